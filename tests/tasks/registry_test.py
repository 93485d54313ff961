"""Tests `lengen_jax/tasks/__init__.py`."""

import dataclasses

import jax
import numpy as np
import pytest

from lengen_jax import errors, tasks


@pytest.mark.parametrize('name', tasks.names())
def test_create(name):
  family, short = name.split('/')
  task = tasks.create(name)
  assert type(task) is tasks.TASKS[family][short]
  assert task == tasks.create(name)
  hash(task)


@pytest.mark.parametrize(
  'spec, message',
  [
    ('chomsky/revers_string', "did you mean 'reverse_string'"),
    ('chomski/reverse_string', "did you mean 'chomsky/reverse_string'"),
    ('reverse_string', "did you mean 'chomsky/reverse_string'"),
    ('chomsky', 'unknown task'),
    ('chomsky/', 'cannot read the spec'),
    (None, "unknown task 'None'|unknown task None"),
    ('chomsky/parity_check(modulus=3)', 'takes no keys'),
    ('algorithmic/copy(symbol=3)', "did you mean 'symbols'"),
    ('algorithmic/copy(symbols=1.5)', 'it takes int'),
    ('algorithmic/copy(symbols=1)', 'symbols of copy is 1; it must be >= 2'),
  ],
)
def test_create_refuses(spec, message):
  with pytest.raises(errors.SpecError, match=message):
    tasks.create(spec)


def test_unknown_task_lists_all():
  with pytest.raises(errors.SpecError) as caught:
    tasks.create('nothing')
  assert all(name in str(caught.value) for name in tasks.names())


def test_register():
  @dataclasses.dataclass(frozen=True)
  class Shifted(tasks.Task):
    by: int = 1

    family = 'mine'

    def draw(self, rng, n, width):
      return jax.numpy.arange(width)

    def solve(self, x, n):
      return x + self.by

  try:
    tasks.register('mine/shifted', Shifted)
    task = tasks.create('mine/shifted(by=2)')
    assert str(task) == 'mine/shifted(by=2)'
    inputs, targets = task.sample(jax.random.key(0), 1, 3, 4)
    np.testing.assert_array_equal(inputs, [[0, 1, 2, 0]])
    np.testing.assert_array_equal(targets, [[2, 3, 4, 0]])
    with pytest.raises(errors.SpecError, match="'copy' is registered"):
      tasks.register('algorithmic/copy', Shifted)
    with pytest.raises(errors.SpecError, match='must be family/name'):
      tasks.register('/shifted', Shifted)
    with pytest.raises(errors.SpecError, match='not an identifier'):
      tasks.register('other/', Shifted)
    assert 'other' not in tasks.TASKS
  finally:
    tasks.TASKS.pop('mine', None)


@pytest.mark.parametrize('thing', [dict, lambda x: x, 'copy'])
def test_register_refuses_what_is_no_task(thing):
  with pytest.raises(errors.SpecError, match='not a subclass of'):
    tasks.register('mine/thing', thing)
  assert 'mine' not in tasks.TASKS
