"""Tests `lengen_jax/tasks/retrieval/mqar.py`.

Golden arrays: `golden/retrieval/README.md`.
"""

import jax
import numpy as np
import pytest

from lengen_jax import errors, tasks
from tests import helpers

GOLDEN = np.load(helpers.GOLDEN / 'retrieval' / 'zoology.npz')
KEY = jax.random.key(4)


@pytest.mark.parametrize(
  'name, spec, exact',
  [
    ('mqar_0', 'mqar', True),
    # Random fillers include keys, some of them more than once.
    ('mqar_1', 'mqar(vocabulary=128)', False),
    ('mqar_2', 'mqar', True),
    ('mqar_3', 'mqar', False),
    (
      'forgetting_mqar_4',
      'forgetting_mqar(vocabulary=128, pairs=8, updates=4)',
      True,
    ),
  ],
)
def test_golden(name, spec, exact):
  inputs, labels = GOLDEN[f'{name}_inputs'], GOLDEN[f'{name}_labels']
  got = np.asarray(tasks.create(f'retrieval/{spec}').target(inputs))
  scored = labels != -100
  np.testing.assert_array_equal(got[scored], labels[scored])
  assert not exact or (got[~scored] == -1).all()


@pytest.mark.parametrize('fillers', (True, False))
@pytest.mark.parametrize('updates', (0, 3))
def test_draws(fillers, updates):
  name = 'forgetting_mqar' if updates else 'mqar'
  keys = f'vocabulary=40, pairs=4, random_fillers={fillers}'
  keys += f', updates={updates}' * bool(updates)
  task = tasks.create(f'retrieval/{name}({keys})')
  inputs, targets = map(np.asarray, task.sample(KEY, 64, 41))
  end = task.context
  for x, y in zip(inputs.tolist(), targets.tolist(), strict=True):
    known = {}
    for t in range(0, end, 2):
      known[x[t]] = x[t + 1]
    assert len(known) == 4 and all(0 < key < 20 for key in known)
    assert len(set(x[1:end:2])) == end // 2 and min(x[1:end:2]) >= 20
    asked = [t for t in range(end, 41) if x[t] in known]
    assert sorted(x[t] for t in asked) == sorted(known)
    assert all(t % 2 == 0 for t in asked)
    assert [y[t] for t in asked] == [known[x[t]] for t in asked]
    others = [x[t] for t in range(end, 41) if t not in asked]
    assert (min(others) >= 20) if fillers else not any(others)
    assert sum(z != -1 for z in y) == 4


@pytest.mark.parametrize(
  'spec, values',
  [
    ('mqar(pairs=4)', 4),
    ('forgetting_mqar(pairs=4, updates=2)', 6),
    ('compositional_mqar(pairs=4)', 4),
  ],
)
def test_chance_is_one_of_the_values(spec, values):
  assert tasks.create(f'retrieval/{spec}').chance == pytest.approx(1 / values)


def test_queries_follow_the_power_law():
  """The first query drawn has weights (1 + g)^(power - 1)."""
  for power in (0.01, 2.0):
    spec = f'retrieval/mqar(vocabulary=20, pairs=2, power={power})'
    inputs, targets = map(np.asarray, tasks.create(spec).sample(KEY, 4000, 20))
    # The first pair's key is the first that is drawn.
    query = np.argmax(inputs[:, 4:] == inputs[:, :1], 1) // 2
    weights = (1 + np.arange(8.0)) ** (power - 1)
    got = np.bincount(query, minlength=8) / 4000
    np.testing.assert_allclose(got, weights / weights.sum(), atol=0.025)


@pytest.mark.parametrize('fillers', (True, False))
def test_compositional_draws(fillers):
  task = tasks.create(
    'retrieval/compositional_mqar'
    f'(vocabulary=31, pairs=9, random_fillers={fillers})'
  )
  # Thirds of 10, and values from 20 to 30.
  n, end = 65, 27
  inputs, targets = map(np.asarray, task.sample(KEY, 64, n, 70))
  orders = set()
  for x, y in zip(inputs.tolist(), targets.tolist(), strict=True):
    known = {}
    for t in range(0, end, 3):
      known[x[t], x[t + 1]] = x[t + 2]
    first, second = (sorted(set(keys)) for keys in zip(*known, strict=True))
    assert len(known) == 9 and len(first) == len(second) == 3
    assert 1 <= first[0] and first[-1] < 10 <= second[0] and second[-1] < 20
    values = set(known.values())
    assert len(values) == 9 and min(values) >= 20 and max(values) <= 30
    orders.add(tuple(first.index(key) for key, _ in known))
    asked = [t for t in range(end, n - 1) if tuple(x[t : t + 2]) in known]
    assert sorted(tuple(x[t : t + 2]) for t in asked) == sorted(known)
    assert all((t - end) % 3 == 0 for t in asked)
    want = [-1] * n
    for t in asked:
      want[t + 1] = known[x[t], x[t + 1]]
    assert y[:n] == want
    queries = {t + i for t in asked for i in (0, 1)}
    others = [x[t] for t in range(end, n) if t not in queries]
    assert (min(others) >= 20) if fillers else not any(others)
  assert len(orders) > 30


@pytest.mark.parametrize(
  'spec',
  ['mqar(vocabulary=9)', 'mqar(pairs=1)', 'mqar(vocabulary=8, pairs=4)']
  + ['mqar(power=0.)', 'forgetting_mqar(updates=5)']
  + ['compositional_mqar(pairs=1)', 'compositional_mqar(pairs=8)']
  + ['compositional_mqar(vocabulary=11)'],
)
def test_refuses(spec):
  with pytest.raises(errors.SpecError, match='it must be'):
    tasks.create(f'retrieval/{spec}')


def test_all_keys_and_values_are_drawn():
  task = tasks.create('retrieval/mqar(vocabulary=40, pairs=4)')
  x = np.asarray(task.sample(KEY, 200, 16)[0])
  assert {*x[:, :8:2].ravel()} == {*range(1, 20)}
  assert {*x[:, 1:8:2].ravel()} == {*range(20, 40)}
