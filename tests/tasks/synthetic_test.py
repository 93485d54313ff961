"""Tests `lengen_jax/tasks/synthetic.py` and `groups.py`.

Targets are compared with those of other code (`golden/retrieval/README.md`),
inputs with the rules, in plain Python.
"""

import collections
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


@pytest.mark.parametrize(
  'sizes', [(8, 3, 6), (48, 16, 16), (240, 16, 16), (20, 5, 10)]
)
def test_copying_golden(sizes):
  arrays = np.load(GOLDEN / 'copying.npz')
  noise, data, vocabulary = sizes
  kind = 'plain' if noise == 20 else 'selective'
  name = f'L{noise}_M{data}_A{vocabulary}_{kind}'
  keys = f'vocabulary={vocabulary}, data={data}'
  task = tasks.create(
    f'synthetic/selective_copying({keys}, selective={kind == "selective"})'
  )
  inputs = arrays[f'{name}_inputs']
  want = np.full(inputs.shape, -100)
  want[:, -data:] = arrays[f'{name}_targets']
  agree(task, inputs, want)
  assert inputs.shape[1] == task.input_length(noise + data)


def test_copying_draws_data_first():
  keys = 'vocabulary=6, data=3, selective=False'
  task = tasks.create(f'synthetic/selective_copying({keys})')
  inputs, targets = map(np.asarray, task.sample(KEY, 200, 8))
  np.testing.assert_array_equal(inputs[:, :3], targets[:, 8:])
  assert (inputs[:, 3:8] == 0).all() and (inputs[:, 8:] == 5).all()
  assert {*np.unique(inputs[:, :3])} == {1, 2, 3, 4}


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


@pytest.mark.parametrize(
  'sizes', [(16, 8, 1), (16, 32, 1), (16, 256, 1), (20, 64, 2)]
)
def test_induction_heads_golden(sizes):
  arrays = np.load(GOLDEN / 'induction.npz')
  vocabulary, length, copied = sizes
  name = f'induction_V{vocabulary}_n{length}_m{copied}'
  keys = f'vocabulary={vocabulary}, copied={copied}'
  task = tasks.create(f'synthetic/induction_heads({keys})')
  inputs = arrays[f'{name}_inputs']
  agree(task, inputs, arrays[f'{name}_targets'])
  assert inputs.shape[1] == task.input_length(length)


@pytest.mark.parametrize('sizes', [(16, 8), (16, 32), (16, 256), (20, 64)])
def test_associative_recall_golden(sizes):
  arrays = np.load(GOLDEN / 'induction.npz')
  vocabulary, tokens = sizes
  name = f'recall_V{vocabulary}_n{tokens}'
  task = tasks.create(f'synthetic/associative_recall(vocabulary={vocabulary})')
  inputs = arrays[f'{name}_inputs']
  agree(task, inputs, arrays[f'{name}_targets'])
  assert inputs.shape[1] == task.input_length(tokens // 2)
  # The same pairs of tokens occur in our draws.
  drawn = np.asarray(task.sample(KEY, 64, tokens // 2)[0])
  for column in (0, 1):
    want = np.unique(inputs[:, column:-2:2])
    assert {*want} <= {*np.unique(drawn[:, column:-2:2])}


def test_associative_recall_draws():
  task = tasks.create('synthetic/associative_recall(vocabulary=8)')
  inputs, targets = map(np.asarray, task.sample(KEY, 600, 4, 6))
  asked = collections.Counter()
  for x, y in zip(inputs[:, :10].tolist(), targets.tolist(), strict=True):
    values = dict(zip(x[:8:2], x[1:8:2], strict=True))
    assert all(values[key] == x[2 * i + 1] for i, key in enumerate(x[:8:2]))
    assert x[8] == 7 and y[:9] == 9 * [-1] and y[9] == values[x[9]]
    assert {*values} <= {1, 2, 3} and {*values.values()} <= {4, 5, 6}
    # How often a key occurs does not matter.
    if sorted(map(x[:8:2].count, values)) == [1, 3]:
      asked[x[:8:2].count(x[9])] += 1
  assert sum(asked.values()) > 100
  assert 0.35 < asked[1] / sum(asked.values()) < 0.65
  assert np.ptp(np.unique(inputs[:, 9], return_counts=True)[1]) < 80


def test_induction_heads_repeat_what_followed():
  task = tasks.create('synthetic/induction_heads(vocabulary=6, copied=3)')
  inputs, targets = map(np.asarray, task.sample(KEY, 200, 8, 9))
  first = np.argmax(inputs == 5, 1)
  assert set(first) == set(range(4)) and (inputs[:, 8] == 5).all()
  for x, y, place in zip(inputs, targets, first, strict=True):
    assert y[8:11].tolist() == x[place + 1 : place + 4].tolist()
    assert x[9:11].tolist() == y[8:10].tolist()
    assert (y[:8] == -1).all()


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
