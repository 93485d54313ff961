"""Tests `lengen_jax/tasks/retrieval/passkey.py`."""

import jax
import numpy as np
import pytest

from lengen_jax import errors, tasks


def read(x):
  """Where the passkey stands in one input, its digits, and the filler."""
  x = list(x)
  start = x.index(10)
  end = next(i for i in range(start + 1, len(x)) if x[i] >= 10)
  assert x[-1] == 11
  return start, x[start + 1 : end], x[:start] + x[end:-1]


@pytest.mark.parametrize('depth, start', [(0.0, 0), (0.5, 16), (1.0, 33)])
def test_depth(depth, start):
  task = tasks.create(f'retrieval/passkey(depth={depth})')
  inputs, targets = task.sample(jax.random.key(0), 8, 40)
  for x, y in zip(inputs.tolist(), targets.tolist(), strict=True):
    at, digits, filler = read(x)
    assert (at, digits) == (start, y)
    assert filler == [12 + i % task.phrase for i in range(33)]
  assert len(np.unique(np.asarray(targets), axis=0)) == 8


def test_depth_is_uniform():
  task = tasks.create('retrieval/passkey(digits=2, phrase=3)')
  inputs, targets = task.sample(jax.random.key(0), 1000, 8)
  starts = [read(x)[0] for x in inputs.tolist()]
  assert set(starts) == set(range(5))
  assert np.bincount(starts).min() > 130
  assert set(np.unique(targets)) == set(range(10))


def test_any_length():
  task = tasks.create('retrieval/passkey')
  assert task.min_length == 7
  assert task.vocab_in == 36 and task.vocab_out == 10
  for n in (7, 100, 3000):
    inputs, targets = task.sample(jax.random.key(n), 2, n, 4000)
    assert inputs.shape == (2, 4000) and targets.shape == (2, 5)
    for x, y in zip(
      np.asarray(inputs)[:, :n].tolist(), targets.tolist(), strict=True
    ):
      assert read(x)[1] == y


@pytest.mark.parametrize('keys', ['depth=1.5', 'depth=-.1', 'digits=0'])
def test_refuses(keys):
  with pytest.raises(errors.SpecError, match='passkey'):
    tasks.create(f'retrieval/passkey({keys})')
