"""Tests `lengen_jax/tasks/algorithmic.py`."""

import json

import jax
import numpy as np
import pytest

from lengen_jax import tasks
from tests import helpers

REFERENCES = {
  'copy': lambda x: x,
  'reverse': lambda x: x[::-1],
  'sort': sorted,
  'sum': lambda x: [sum(x) % 10],
}


@pytest.mark.parametrize('name', sorted(REFERENCES))
def test_answers(name):
  task = tasks.create(f'algorithmic/{name}')
  for n in (1, 2, 3, 8, 20, 33, 64):
    inputs, targets = task.sample(jax.random.key(n), 16, n, 64)
    size_out = task.output_length(n)
    for x, y in zip(inputs.tolist(), targets.tolist(), strict=True):
      assert REFERENCES[name](x[:n]) == y[:size_out]


@pytest.mark.parametrize('name', ('copy', 'reverse'))
def test_golden_roles(name):
  """Golden arrays: `golden/arithmetic/README.md`, file coupled."""
  path = helpers.GOLDEN / 'arithmetic' / 'coupled.json'
  cases = json.loads(path.read_text())[f'{name}_coupled']
  task = tasks.create(f'algorithmic/{name}')
  assert len({len(case['positions']) for case in cases}) > 3
  for case in cases:
    n = (len(case['positions']) - 3) // 2
    question = ' '.join(map(str, range(n)))
    found = task.encode(question, task.answer(question))['roles']
    # The first and the last token of the golden rows have no role.
    want = np.array(case['positions'])[1:-1] - case['start']
    np.testing.assert_array_equal(found, want[None])


def test_symbols():
  """The numbers of symbols of the paper; a sum has no zeros to add."""
  for name, symbols in (('copy', 100), ('reverse', 100), ('sort', 50)):
    task = tasks.create(f'algorithmic/{name}')
    assert task.vocab_in == task.vocab_out == symbols
    assert task.chance == 1 / symbols
    inputs, _ = task.sample(jax.random.key(0), 64, 64)
    assert set(np.unique(inputs)) == set(range(symbols))
  inputs, targets = tasks.create('algorithmic/sum').sample(
    jax.random.key(0), 256, 16
  )
  assert set(np.unique(inputs)) == set(range(1, 10))
  assert set(np.unique(targets)) == set(range(10))


def test_keys():
  task = tasks.create('algorithmic/copy(symbols=7)')
  assert task.separator == 7
  inputs, _ = task.sample(jax.random.key(0), 32, 16)
  assert inputs.max() == 6


def test_a_sequence_counts_whole():
  task = tasks.create('algorithmic/reverse')
  _, targets = task.sample(jax.random.key(0), 3, 5, 8)
  predictions = np.array(targets)
  predictions[1, 4] += 1
  predictions[2, 5] += 1  # beyond the sequence
  np.testing.assert_array_equal(
    task.exact_match(predictions, targets, 5), [True, False, True]
  )
