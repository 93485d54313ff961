"""Tests `lengen_jax/tasks/retrieval/niah.py`."""

import jax
import numpy as np
import pytest

from lengen_jax import errors, tasks

KEY = jax.random.key(0)


def read(task, x):
  """Needles (place, key, digits) of an input, other tokens, keys asked for."""
  x = list(x)
  end = len(x) - task.queries
  assert x[end - 1] == 11 and x.count(11) == 1
  needles, others, at = [], [], 0
  while at < end - 1:
    if x[at] == 10:
      digits = x[at + 2 : at + 2 + task.digits]
      assert all(digit < 10 for digit in digits) and digits[0] > 0
      needles.append((at, x[at + 1], digits))
      at += 2 + task.digits
    else:
      others.append(x[at])
      at += 1
  assert all(name >= 12 + task.phrase for _, name, _ in needles)
  return needles, others, x[end:]


@pytest.mark.some(5)
@pytest.mark.parametrize(
  'name, count, asked',
  [
    ('single_1', 1, 1),
    ('multikey_1', 4, 1),
    ('multikey_2', None, 1),
    ('multivalue', 4, 1),
    ('multiquery', 4, 4),
  ],
)
def test_draws(name, count, asked):
  task = tasks.create(f'retrieval/niah_{name}(digits=3, names=8, phrase=7)')
  assert task.chance == pytest.approx(0.325 if count == 4 else 0.1)
  n = task.min_length + 13
  inputs, targets = map(np.asarray, task.sample(KEY, 64, n, n + 9))
  answered = set()
  for x, y in zip(inputs[:, :n], targets, strict=True):
    needles, others, queries = read(task, x)
    assert len(needles) == (count or (n - 2) // 5)
    assert others == [12 + i % 7 for i in range(len(others))]
    assert len(queries) == len(set(queries)) == asked
    answer = []
    for query in queries:
      found = [i for i, needle in enumerate(needles) if needle[1] == query]
      assert len(found) == task.values
      answered |= set(found)
      answer += [digit for i in found for digit in needles[i][2]]
    assert answer == y.tolist()
  # Every needle of the context is asked for in some row.
  assert answered == set(range(len(needles)))


def test_no_room():
  """Needles have no order of their own."""
  task = tasks.create('retrieval/niah_multikey_1(digits=1)')
  inputs, _ = task.sample(KEY, 64, task.min_length)
  places = set()
  for x in np.asarray(inputs):
    needles, others, (query,) = read(task, x)
    places |= {at for at, key, _ in needles if key == query}
    assert not others
  assert places == {0, 3, 6, 9}


@pytest.mark.some(3)
@pytest.mark.parametrize('depth, place', [(0.0, 0), (0.5, 10), (1.0, 20)])
def test_depth(depth, place):
  spec = f'retrieval/niah_{{}}(digits=3, depth={depth})'
  for name in ('single_1', 'multikey_1', 'multikey_2'):
    task = tasks.create(spec.format(name))
    n = task.min_length + 20 * (5 if name == 'multikey_2' else 1)
    for x in np.asarray(task.sample(KEY, 8, n)[0]):
      needles, _, (query,) = read(task, x)
      (at,) = [at for at, key, _ in needles if key == query]
      if name == 'multikey_2':
        at //= 5
      else:
        at -= 5 * sum(other < at for other, _, _ in needles)
      assert at == place


@pytest.mark.parametrize(
  'keys, message',
  [
    ('depth=1.5', 'it must be'),
    ('queries=5', 'keys of niah_multikey_1 is 4; it must be >= 5'),
    ('names=4', 'it must be > 4'),
    ("haystack='essay'", "'needles', 'phrase'|needles, phrase"),
  ],
)
def test_refuses(keys, message):
  with pytest.raises(errors.SpecError, match=message):
    tasks.create(f'retrieval/niah_multikey_1({keys})')
