"""Tests `lengen_jax/positions/pose.py`.

Golden arrays: `golden/arithmetic/README.md`, file pose.
"""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import errors, positions
from tests import helpers

GOLDEN = json.loads((helpers.GOLDEN / 'arithmetic/pose.json').read_text())
KEY = jax.random.key(0)


@functools.partial(jax.jit, static_argnames=('spec', 'train'))
def draw(spec, index, lengths, *, train=True):
  scheme = positions.create(spec)
  return scheme(index, lengths=lengths, rng=KEY, train=train)


@functools.partial(jax.jit, static_argnames='spec')
def draws(spec, index, lengths):
  return positions.create(spec).draw(KEY, index, lengths)


@pytest.mark.parametrize('case', GOLDEN['cases'])
def test_golden(case):
  n = min(case['n'], case['chunk'])
  scheme = positions.create(f'pose(max_position={case["target"]})')
  given = {'first': jnp.array([[case['rt1']]])}
  given['skip'] = jnp.array([[case['skip']]])
  got = scheme.apply(given, helpers.rows(1, n))
  np.testing.assert_array_equal(got, [case['positions']])


@pytest.mark.some(4)
@pytest.mark.parametrize('n, target', [(5, 16), (8, 16), (1, 16), (2, 16)])
def test_draws_are_uniform_in_the_official_ranges(n, target):
  of_first, _, of_skip = next(
    case['ranges']
    for case in GOLDEN['cases']
    if min(case['n'], case['chunk']) == n and case['target'] == target
  )
  lengths = jnp.full((900, n), n)
  found = draws(f'pose(max_position={target})', helpers.rows(900, n), lengths)
  for name, (low, high) in (('first', of_first), ('skip', of_skip)):
    counts = np.bincount(np.asarray(found[name])[:, 0], minlength=high + 1)
    assert len(counts) == high + 1 and not counts[:low].any()
    assert counts[low:].min() > 0.6 * 900 / (high + 1 - low)


@pytest.mark.some(3)
@pytest.mark.parametrize('chunks', [2, 3, 4])
def test_contiguous_but_for_the_jumps(chunks):
  spec = f'pose(max_position=50, chunks={chunks})'
  got = np.asarray(draw(spec, helpers.rows(200, 12), jnp.full((200, 1), 12)))
  jumps = (np.diff(got) > 1).sum(1)
  assert jumps.max() == chunks - 1
  assert (np.diff(got) >= 1).all() and (got[:, 0] == 0).all()
  assert got.min() == 0 and 45 < got.max() < 50


def test_chunks_share_the_rest_of_a_row():
  """The second of three has up to half of what the first leaves."""
  scheme = positions.create('pose(max_position=50, chunks=3)')
  found = jax.jit(scheme.draw)(
    jax.random.key(0), helpers.rows(900, 12), jnp.full((900, 12), 12)
  )
  first, second = (
    np.asarray(found[name])[:, 0] for name in ('first', 'first_1')
  )
  assert {*first.tolist()} == {1, 2, 3, 4}
  for n in range(1, 5):
    lengths = {*(second - first)[first == n].tolist()}
    assert lengths == {*range(1, (12 - n + 1) // 2 + 1)}


def test_padding_and_packing_change_no_draw():
  spec = 'pose(max_position=50)'
  padded = draw(spec, helpers.rows(3, 12), jnp.array([[3], [6], [9]]))
  for b, n in ((0, 3), (2, 9)):
    alone = draw(spec, helpers.rows(3, n), jnp.full((3, 1), n))
    np.testing.assert_array_equal(padded[b, :n], alone[b])
  index = jnp.tile(jnp.array([0, 1, 2, 3, 0, 1, 2, 3]), (60, 1))
  packed = np.asarray(draw(spec, index, jnp.full((60, 1), 4)))
  first = draw(spec, index[:, :4], jnp.full((60, 1), 4))
  np.testing.assert_array_equal(packed[:, :4], first)
  assert (packed[:, :4] != packed[:, 4:]).any(1).mean() > 0.8


def test_plain_at_test_time():
  got = draw('pose(max_position=9)', helpers.rows(2, 12), 12, train=False)
  np.testing.assert_array_equal(got, helpers.rows(2, 12))


def test_refuses():
  with pytest.raises(errors.SpecError, match='chunks of pose is 1'):
    positions.create('pose(max_position=9, chunks=1)')
  scheme = positions.create('pose(max_position=9)')
  with pytest.raises(errors.LengthError, match='segment of 12 tokens'):
    scheme(helpers.rows(2, 12), lengths=12, rng=KEY, train=True)
