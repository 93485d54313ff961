"""Tests `lengen_jax/tasks/synthetic.py` and `groups.py`.

Targets are compared with those of other code (`golden/retrieval/README.md`),
inputs with the rules, in plain Python.
"""

import itertools

import jax
import numpy as np
import pytest

from lengen_jax import errors, tasks
from lengen_jax.tasks import groups
from tests import helpers

GOLDEN = helpers.GOLDEN / 'retrieval'
KEY = jax.random.key(3)


def agree(task, inputs, want):
  """Whether targets are the golden ones, and UNSCORED where those are -100."""
  got = np.asarray(task.target(inputs))
  want = np.asarray(want, int)
  want = np.where(want == -100, -1, want)
  np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize('count', (2, 8, 64))
def test_flip_flop_golden(count):
  arrays = np.load(GOLDEN / 'flipflop.npz')
  task = tasks.create('synthetic/flip_flop')
  for p in ('0.8', '0.1', '0.98'):
    name = f'T{count}_p{p}'
    ids = arrays[f'ids_{name}'].copy()
    agree(task, ids, arrays[f'targets_{name}'])
    # The bit after r is not read.
    ids[:, 1::2][ids[:, ::2] == 1] = 0
    agree(task, ids, arrays[f'targets_{name}'])


@pytest.mark.parametrize('ignore', (0.8, 0.1, 0.98))
def test_flip_flop_draws(ignore):
  task = tasks.create(f'synthetic/flip_flop(ignore={ignore})')
  inputs, targets = map(np.asarray, task.sample(KEY, 64, 100))
  kinds, bits = inputs[:, ::2], inputs[:, 1::2]
  assert (kinds[:, 0] == 0).all() and (kinds[:, -1] == 1).all()
  assert set(np.unique(bits)) == {3, 4}
  inner = kinds[:, 1:-1]
  assert abs((inner == 2).mean() - ignore) < 0.02
  assert abs((inner == 0).mean() - (1 - ignore) / 2) < 0.02
  free = bits[kinds != 1]
  assert abs((free == 3).mean() - 0.5) < 0.03
  for kind, bit, target in zip(kinds, bits, targets, strict=True):
    memory = None
    for t in range(100):
      memory = bit[t] if kind[t] == 0 else memory
      read = kind[t] == 1
      assert target[2 * t] == (memory if read else -1)
      assert target[2 * t + 1] == -1
      assert not read or bit[t] == memory


@pytest.mark.parametrize('sizes', [(8, 3, 6), (48, 16, 16), (240, 16, 16)])
def test_selective_copying_golden(sizes):
  arrays = np.load(GOLDEN / 'copying.npz')
  noise, data, vocabulary = sizes
  name = f'L{noise}_M{data}_A{vocabulary}_selective'
  task = tasks.create(
    f'synthetic/selective_copying(vocabulary={vocabulary}, data={data})'
  )
  inputs = arrays[f'{name}_inputs']
  want = np.full(inputs.shape, -100)
  want[:, -data:] = arrays[f'{name}_targets']
  agree(task, inputs, want)
  assert inputs.shape[1] == task.input_length(noise + data)


def test_selective_copying_draws():
  task = tasks.create('synthetic/selective_copying(vocabulary=6, data=3)')
  inputs, targets = map(np.asarray, task.sample(KEY, 2000, 8))
  assert (inputs[:, 8:] == 5).all() and (targets[:, :8] == -1).all()
  for x, y in zip(inputs[:, :8], targets[:, 8:], strict=True):
    assert x[x > 0].tolist() == y.tolist()
  # All sets of places are equally likely, and so is all data.
  places = {tuple(np.flatnonzero(x)) for x in inputs[:, :8]}
  assert places == set(itertools.combinations(range(8), 3))
  rates = (inputs[:, :8] > 0).mean(0)
  assert np.abs(rates - 3 / 8).max() < 0.05
  assert np.abs(np.bincount(targets[:, 8:].ravel())[1:] / 6000 - 0.25).max() < (
    0.03
  )


@pytest.mark.parametrize('length', (8, 32, 256))
def test_induction_heads_golden(length):
  arrays = np.load(GOLDEN / 'induction.npz')
  name = f'induction_V16_n{length}_m1'
  task = tasks.create('synthetic/induction_heads')
  inputs = arrays[f'{name}_inputs']
  agree(task, inputs, arrays[f'{name}_targets'])
  assert inputs.shape[1] == task.input_length(length)


def test_induction_heads_draws():
  task = tasks.create('synthetic/induction_heads(vocabulary=6)')
  inputs, targets = map(np.asarray, task.sample(KEY, 400, 7))
  assert (np.sum(inputs == 5, 1) == 2).all() and (inputs[:, -1] == 5).all()
  first = np.argmax(inputs == 5, 1)
  assert set(first) == set(range(5))
  assert (targets[:, :-1] == -1).all()
  follows = inputs[np.arange(400), first + 1]
  assert targets[:, -1].tolist() == follows.tolist()
  assert set(follows) == {1, 2, 3, 4}


@pytest.mark.parametrize('name', ('a5', 'z60'))
def test_word_problems_golden(name):
  arrays = np.load(GOLDEN / 'word_problems.npz')
  task = tasks.create(f'synthetic/{name}')
  group = name.upper()
  for n in (1, 2, 3, 5, 8, 13, 20, 64):
    agree(task, arrays[f'{group}_inputs_{n}'], arrays[f'{group}_targets_{n}'])
  if name == 'a5':
    table = groups.permutations(5, even=True)
    np.testing.assert_array_equal(table, arrays['A5_table'])


def test_s5_is_composition():
  """Products of permutations, of which the newest acts first."""
  elements = list(itertools.permutations(range(5)))
  inputs, targets = map(
    np.asarray, tasks.create('synthetic/s5').sample(KEY, 4, 20)
  )
  for x, y in zip(inputs, targets, strict=True):
    product = tuple(range(5))
    for element, want in zip(x, y, strict=True):
      product = tuple(product[i] for i in elements[element])
      assert elements[want] == product
  assert len(np.unique(inputs)) > 40


@pytest.mark.parametrize(
  'spec',
  [
    'flip_flop(ignore=1.5)',
    'selective_copying(data=0)',
    'induction_heads(vocabulary=3)',
  ],
)
def test_refuses(spec):
  with pytest.raises(errors.SpecError, match='it must be'):
    tasks.create(f'synthetic/{spec}')
