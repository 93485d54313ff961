"""Tests `lengen_jax/tasks/retrieval/niah.py`."""

import jax
import numpy as np
import pytest

from lengen_jax import errors, tasks

KEY = jax.random.key(0)


def read(task, x):
  """Needles (place, key, digits) of an input, other tokens, keys asked for."""
  x, radix, size = list(x), task.radix, task.key_tokens
  end = len(x) - task.queries * size
  assert x[end - 1] == radix + 1 and x.count(radix + 1) == 1
  needles, others, at = [], [], 0
  while at < end - 1:
    if x[at] == radix:
      first = at + 1 + size
      digits = x[first : first + task.digits]
      assert all(digit < radix for digit in digits)
      assert digits[0] > 0 or radix != 10
      needles.append((at, tuple(x[at + 1 : first]), digits))
      at = first + task.digits
    else:
      others.append(x[at] - radix - 2)
      at += 1
  names = radix + 2 + task.phrase
  assert all(min(key) >= names for _, key, _ in needles)
  asked = [tuple(x[i : i + size]) for i in range(end, len(x), size)]
  return needles, others, asked


@pytest.mark.some(8)
@pytest.mark.parametrize(
  'name, keys, count, asked, haystack',
  [
    ('single_1', '', 1, 1, 'phrase'),
    ('single_2', '', 1, 1, 'random'),
    ('single_3', ', radix=16', 1, 1, 'random'),
    ('multikey_1', '', 4, 1, 'random'),
    ('multikey_2', '', None, 1, 'needles'),
    ('multikey_3', ', radix=16, key_tokens=2', None, 1, 'needles'),
    ('multivalue', '', 4, 1, 'random'),
    ('multiquery', '', 4, 4, 'random'),
  ],
)
def test_draws(name, keys, count, asked, haystack):
  spec = f'retrieval/niah_{name}(digits=3, names=8, phrase=7{keys})'
  task = tasks.create(spec)
  assert task.haystack == haystack
  assert task.chance == pytest.approx(
    0.25 + 0.75 / task.radix if count == 4 else 1 / task.radix
  )
  n = task.min_length + 13
  inputs, targets = map(np.asarray, task.sample(KEY, 64, n, n + 9))
  answered, fillers, firsts = set(), set(), set()
  for x, y in zip(inputs[:, :n], targets, strict=True):
    needles, others, queries = read(task, x)
    room = n - 1 - asked * task.key_tokens
    assert len(needles) == (count or room // task.needle_tokens)
    fillers |= {*others}
    firsts |= {digits[0] for _, _, digits in needles}
    if haystack != 'random':
      assert others == [i % 7 for i in range(len(others))]
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
  # A UUID may start with 0.
  assert (0 in firsts) == (task.radix == 16)
  if haystack == 'random':
    assert fillers == set(range(7))


def test_keys_of_several_tokens():
  """Other keys share tokens with the key asked for, and never all of them."""
  keys = 'digits=1, names=2, key_tokens=3'
  task = tasks.create(f'retrieval/niah_multikey_3({keys})')
  n = task.min_length + 9 * task.needle_tokens
  shared = np.zeros(3, int)
  for x in np.asarray(task.sample(KEY, 64, n)[0]):
    needles, _, (asked,) = read(task, x)
    same = np.array([key for _, key, _ in needles]) == asked
    assert (same.sum(1) == 3).sum() == 1
    shared += same.sum(0) - 1
  # A token differs in a third of the others, and in half of the rest.
  np.testing.assert_allclose(shared / (64 * 9), 1 / 3, atol=0.06)


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


def test_all_digits_and_names_are_drawn():
  task = tasks.create('retrieval/niah_multikey_1(digits=3, names=8)')
  inputs, targets = map(np.asarray, task.sample(KEY, 400, task.min_length))
  assert {*targets[:, 0]} == {*range(1, 10)}
  assert {*targets[:, 1:].ravel()} == {*range(10)}
  names = task.radix + 2 + task.phrase
  assert {*inputs[:, -1]} == {*range(names, names + 8)}
  task = tasks.create('retrieval/niah_single_1(digits=1, key_tokens=2)')
  inputs, _ = task.sample(KEY, 64, task.min_length)
  first, second = np.asarray(inputs)[:, -2:].T
  assert (first != second).mean() > 0.9
