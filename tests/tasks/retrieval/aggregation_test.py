"""Tests `lengen_jax/tasks/retrieval/aggregation.py`."""

import collections
import math

import jax
import numpy as np
import pytest

from lengen_jax import errors, tasks

KEY = jax.random.key(0)


@pytest.mark.parametrize('chains', (1, 2))
def test_vt(chains):
  keys = f'chains={chains}, hops=2, names=8, phrase=5'
  task = tasks.create(f'retrieval/vt({keys})')
  inputs, targets = map(np.asarray, task.sample(KEY, 64, 40, 50))
  starts = set()
  for x, y in zip(inputs[:, :40].tolist(), targets.tolist(), strict=True):
    assert x[38] == 17
    values, others, at = {}, [], 0
    while at < 38:
      if x[at] == 16:
        name, source = x[at + 1 : at + 3]
        assert name < 8 and name not in values
        # A variable that is read was assigned before.
        values[name] = values[source] if source < 8 else source
        starts.add(at)
        at += 3
      else:
        others.append(x[at])
        at += 1
    assert others == [18 + i % 5 for i in range(len(others))]
    assert len(values) == 3 * chains and len(set(values.values())) == chains
    assert [name for name in values if values[name] == x[39]] == y
  assert starts == set(range(36))


def test_cwe():
  task = tasks.create('retrieval/cwe(common=3, words=9)')
  for n in (36, 100):
    inputs, targets = map(np.asarray, task.sample(KEY, 32, n, 110))
    for x, y in zip(inputs.tolist(), targets.tolist(), strict=True):
      counts = collections.Counter(x[:n])
      assert len(counts) == 9
      assert sorted(word for word in counts if counts[word] >= n // 6) == y
      # Four in five tokens, or a few more, are one of three words.
      rare = [count for word, count in counts.items() if word not in y]
      assert rare == 6 * [n // 36]
      common = [counts[word] for word in y]
      assert max(common) - min(common) <= 1 and min(common) >= 10 * rare[0]
    assert len(np.unique(targets)) == 9


def test_fwe():
  task = tasks.create('retrieval/fwe(words=9)')
  for n in (53, 200):
    inputs, targets = map(np.asarray, task.sample(KEY, 32, n, 210))
    for x, y in zip(inputs.tolist(), targets.tolist(), strict=True):
      counts = collections.Counter(x[:n])
      del counts[0]
      want = [int(n * 6 / math.pi**2 / k**2) for k in range(2, 11)]
      assert sorted(counts.values()) == sorted(filter(None, want))
      ranked = sorted(counts, key=lambda word: (-counts[word], word))
      assert ranked[:3] == y
      assert counts[y[2]] > counts[ranked[3]]
    assert len(np.unique(targets)) == 9


@pytest.mark.parametrize(
  'spec', ('vt(names=4)', 'vt(hops=0)', 'cwe(words=10)', 'fwe(words=2)')
)
def test_refuses(spec):
  with pytest.raises(errors.SpecError, match='it must be'):
    tasks.create(f'retrieval/{spec}')


def test_all_names_and_values_are_drawn():
  task = tasks.create('retrieval/vt(hops=2, names=8, phrase=5)')
  x, y = map(np.asarray, task.sample(KEY, 200, 40))
  assert {*y.ravel()} == {*range(8)} and {*x[:, -1]} == {*range(8, 16)}
