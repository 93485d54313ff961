"""Tests `lengen_jax/positions/coupled.py`.

Golden arrays: `golden/arithmetic/README.md`, file coupled.
"""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import errors, positions
from tests import helpers

GOLDEN = json.loads((helpers.GOLDEN / 'arithmetic/coupled.json').read_text())
KEY = jax.random.key(0)


@functools.partial(jax.jit, static_argnames=('spec', 'train'))
def draw(spec, index, roles, *, train=True):
  return positions.create(spec)(index, roles=roles, rng=KEY, train=train)


@pytest.mark.parametrize('task', sorted(GOLDEN))
def test_golden(task):
  scheme = positions.create('coupled(max_position=256)')
  for case in GOLDEN[task]:
    want = np.array([[case['positions']]])
    roles = np.where(want > 0, want - case['start'], -1)
    index = helpers.rows(1, want.shape[-1])
    start = jnp.full((1, 1, 1), case['start'])
    got = scheme.apply({'start': start}, index, roles=roles)
    np.testing.assert_array_equal(got, want)
    if case['start'] == 1:
      np.testing.assert_array_equal(scheme(index, roles=roles), want)


def test_starts_are_uniform_up_to_the_last_position():
  """Each row of roles, and each row of a batch, has its own."""
  roles = np.tile([[[0, 1, 2, -1, -1]], [[0, -1, 2, 1, -1]]], (1, 800, 1))
  got = np.asarray(draw('coupled(max_position=8)', helpers.rows(800, 5), roles))
  assert got.shape == roles.shape and got.dtype == np.int32
  assert (got[roles < 0] == 0).all()
  starts = (got - roles)[:, :, 0]
  for start in starts:
    counts = np.bincount(start)[1:]
    assert len(counts) == 5 and counts.min() > 110
  assert got.max() == 7
  assert abs((starts[0] == starts[1]).mean() - 1 / 5) < 0.06


def test_segments_have_their_own_starts():
  index = jnp.tile(jnp.array([0, 1, 2, 0, 1, 0]), (400, 1))
  roles = np.tile([0, 5, 1, 0, 1, -1], (1, 400, 1))
  got = np.asarray(draw('coupled(max_position=8)', index, roles))[0]
  # A segment's largest role bounds its start.
  assert set(got[:, 0]) == {1, 2} and set(got[:, 3]) == {*range(1, 7)}
  np.testing.assert_array_equal(got[:, 1] - got[:, 0], 5)
  np.testing.assert_array_equal(got[:, 4] - got[:, 3], 1)
  short = np.asarray(
    draw('coupled(max_position=8)', index[:, :3], roles[..., :3])
  )
  np.testing.assert_array_equal(got[:, :3], short[0])


def test_padding_and_other_rows_change_nothing():
  roles = np.random.default_rng(0).integers(-1, 9, (2, 3, 12))
  whole = draw('coupled(max_position=40)', helpers.rows(3, 12), roles)
  padded = np.pad(roles, ((0, 0), (0, 0), (0, 4)), constant_values=-1)
  wide = draw('coupled(max_position=40)', helpers.rows(3, 16), padded)
  np.testing.assert_array_equal(wide[..., :12], whole)
  few = draw('coupled(max_position=40)', helpers.rows(2, 12), roles[:, :2])
  np.testing.assert_array_equal(few, whole[:, :2])


def test_segments_may_be_longer_than_the_range():
  roles = np.tile([[0, 1, 2]], (1, 1, 30))
  got = draw('coupled(max_position=8)', helpers.rows(1, 90), roles)
  assert got.max() < 8
  assert positions.create('coupled(max_position=8)').limit(True) is None
  assert positions.create('coupled(max_position=8)').extent(90, True) == 8


@pytest.mark.parametrize('train', [False, True])
def test_refuses_roles_beyond_the_range(train):
  roles = np.array([[[0, 7]]])
  with pytest.raises(errors.LengthError, match='role 7; set max_position=9'):
    positions.create('coupled(max_position=8)')(
      helpers.rows(1, 2), roles=roles, rng=KEY, train=train
    )


@pytest.mark.parametrize(
  'roles, message',
  [
    (None, r'needs roles, int32 \[R, B, L\], from a task that'),
    (np.zeros((2, 3), int), r'roles are int\d\d \[2, 3\]; .* \[R, B, L\]'),
    (np.zeros((1, 3, 2), int), r'\[1, 3, 2\]; .* with \[B, L\] = \[2, 3\]'),
    (np.zeros((1, 2, 3)), r'roles are float'),
  ],
)
def test_refuses_other_roles(roles, message):
  with pytest.raises(errors.ConfigError, match=message):
    positions.create('coupled(max_position=8)')(helpers.rows(2, 3), roles=roles)
