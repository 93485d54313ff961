"""Tests `lengen_jax/tasks/circuits.py`.

Golden arrays: `golden/retrieval/README.md`.
"""

import collections

import jax
import numpy as np
import pytest

from lengen_jax import errors, tasks
from tests import helpers

GOLDEN = np.load(helpers.GOLDEN / 'retrieval' / 'zoology.npz')
KEY = jax.random.key(9)


@pytest.mark.parametrize(
  'name', ('parity_5', 'majority_6', 'cumulative_parity_7')
)
def test_golden(name):
  task = tasks.create(f'synthetic/{name[:-2]}')
  labels = GOLDEN[f'{name}_labels']
  want = np.where(labels == -100, -1, labels)
  np.testing.assert_array_equal(task.target(GOLDEN[f'{name}_inputs']), want)


ANSWERS = {
  'parity': lambda bits: sum(bits) % 2,
  'majority': lambda bits: int(sum(bits) > len(bits) / 2),
  'cumulative_parity': lambda bits: sum(bits) % 2,
  'cumulative_majority': lambda bits: int(sum(bits) >= len(bits) / 2),
}


@pytest.mark.parametrize('name', ANSWERS)
def test_draws(name):
  task = tasks.create(f'synthetic/{name}')
  cumulative = name.startswith('cumulative')
  for n in (1, 6, 9):
    inputs, targets = map(np.asarray, task.sample(KEY, 64, n, 10))
    for x, y in zip(inputs.tolist(), targets.tolist(), strict=True):
      if cumulative:
        assert y[:n] == [ANSWERS[name](x[: t + 1]) for t in range(n)]
      else:
        assert x[n] == 2
        assert y[: n + 1] == [-1] * n + [ANSWERS[name](x[:n])]
    assert set(np.unique(inputs[:, :n])) == {0, 1}
  # Half the bits are ones: a tie in `majority`, but a win in the other.
  if 'majority' in name:
    question, won = ('0 1', '0 1') if cumulative else ('0 1 2', '0')
    assert task.answer(question) == won


def test_vocab_majority():
  task = tasks.create('synthetic/vocab_majority(vocabulary=5)')
  n = 7
  inputs, targets = map(np.asarray, task.sample(KEY, 400, n, 9))
  assert (inputs[:, n:] == 0).all()
  won = collections.Counter()
  for x, y in zip(inputs.tolist(), targets.tolist(), strict=True):
    (winner, count), *others = collections.Counter(x[:n]).most_common(2)
    assert 1 <= min(x[:n]) <= max(x[:n]) <= 4
    assert all(other < count for _, other in others)
    assert y[: n + 1] == [-1] * n + [winner]
    won[winner] += 1
  # Ties go to the least token.
  assert won[1] > won[2] > won[3] > won[4] > 30


def test_ties_of_vocab_majority():
  """The greater of two tokens becomes the lesser."""
  task = tasks.create('synthetic/vocab_majority(vocabulary=6)')
  inputs, targets = map(np.asarray, task.sample(KEY, 200, 2))
  assert (inputs[:, 0] == inputs[:, 1]).all()
  assert (targets[:, 2] == inputs[:, 0]).all()
  # 9 of 25 pairs have the lesser token 1.
  assert abs((inputs[:, 0] == 1).mean() - 9 / 25) < 0.1
  with pytest.raises(errors.SpecError, match='it must be >= 3'):
    tasks.create('synthetic/vocab_majority(vocabulary=2)')
