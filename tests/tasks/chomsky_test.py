"""Tests `lengen_jax/tasks/chomsky`.

Answers are compared with the official code's (`golden/chomsky/README.md`) and
with references in plain Python; what is drawn, with the grammars and
distributions of that code.
"""

import collections
import math

import jax
import numpy as np
import pytest

from lengen_jax import tasks
from tests import helpers

GOLDEN = helpers.GOLDEN / 'chomsky'
GOLDENS = sorted(path.stem[5:] for path in GOLDEN.glob('task_*.npz'))
GOLDEN_LENGTHS = (1, 2, 3, 5, 8, 13, 20, 40)

LENGTHS = (*range(1, 10), 16, 31, 40)
PADDED = 40
ROWS = 1000
BRACKETS = '01234+-*()'
EQUATION = '01234+-()x='
FIVE_CLASSES = {
  'modular_arithmetic',
  'cycle_navigation',
  'modular_arithmetic_brackets',
  'solve_equation',
  'bucket_sort',
}


def create(name):
  return tasks.create(f'chomsky/{name}')


def number(bits):
  """The number that bits, lowest first, stand for."""
  return int(''.join(map(str, reversed(bits))) or '0', 2)


def bits(number, size=0):
  """The bits of a number, highest first."""
  return list(map(int, f'{number:b}'.zfill(size)))


def text(tokens, alphabet):
  return ''.join(alphabet[token] for token in tokens)


def terminated(tokens, size):
  return (tokens + [2] + [0] * size)[:size]


def stack_manipulation(x):
  stack = []
  for token in x:
    if token != 2:
      stack.append(token % 3)
    elif stack:
      stack.pop()
  return terminated(stack[::-1], len(x) + 1)


def solve_equation(x):
  if len(x) < 3:
    return [0]
  left, right = text(x, EQUATION).split('=')
  return [
    d for d in range(5) if eval(left.replace('x', str(d))) % 5 == int(right)
  ]


def missing_duplicate_string(x):
  half = len(x) // 2
  if not half:
    return [1]
  pairs = zip(x[:half], x[half : 2 * half], strict=True)
  return [min(pair) for pair in pairs if 2 in pair]


def arithmetic(operation, size):
  def answer(x):
    a = x[: x.index(2)] if 2 in x else x
    result = operation(number(a), number(x[len(a) + 1 :]))
    return terminated(bits(result)[::-1], size(len(x)))

  return answer


def multiplication(x):
  if len(x) == 1:
    return [2]
  return arithmetic(lambda a, b: a * b, lambda n: n)(x)


REFERENCES = {
  'even_pairs': lambda x: [sum(np.diff(x) != 0) % 2],
  'modular_arithmetic': lambda x: [eval(text(x, BRACKETS)) % 5],
  'parity_check': lambda x: [x.count(1) % 2],
  'cycle_navigation': lambda x: [(x.count(2) - x.count(0)) % 5],
  'stack_manipulation': stack_manipulation,
  'reverse_string': lambda x: x[::-1],
  'modular_arithmetic_brackets': lambda x: [eval(text(x, BRACKETS)) % 5],
  'solve_equation': solve_equation,
  'duplicate_string': lambda x: x + x,
  'missing_duplicate_string': missing_duplicate_string,
  'odds_first': lambda x: x[1::2] + x[::2],
  'binary_addition': arithmetic(lambda a, b: a + b, lambda n: n + 1),
  'binary_multiplication': multiplication,
  'compute_sqrt': lambda x: bits(
    math.isqrt(number(x[::-1])), math.ceil(len(x) / 2)
  ),
  'bucket_sort': sorted,
}


def test_every_task_has_a_reference():
  assert set(REFERENCES) == set(tasks.TASKS['chomsky'])
  assert len(REFERENCES) == 15 and len(GOLDENS) == 8


@pytest.mark.parametrize('name', GOLDENS)
def test_golden(name):
  task, golden = create(name), np.load(GOLDEN / f'task_{name}.npz')
  width, width_out = task.input_length(40), task.output_length(40)
  for n in GOLDEN_LENGTHS:
    x = golden[f'input_{n}'].astype(np.int32)
    want = golden[f'target_{n}'].reshape(4, -1)
    assert x.shape[1] == task.input_length(n)
    assert want.shape[1] == task.output_length(n)
    assert golden[f'logits_{n}'].shape[-1] == task.vocab_out
    x, want, mask, logits = (
      np.pad(a, ((0, 0), (0, size - a.shape[1])) + ((0, 0),) * (a.ndim - 2))
      for a, size in (
        (x, width),
        (want, width_out),
        (golden[f'mask_{n}'].reshape(want.shape), width_out),
        (golden[f'logits_{n}'].reshape(*want.shape, -1), width_out),
      )
    )
    np.testing.assert_array_equal(task.target(x, n), want)
    np.testing.assert_array_equal(task.mask(want, n), mask.astype(bool))
    np.testing.assert_allclose(
      task.accuracy(logits.argmax(-1), want, n), golden[f'acc_{n}'], rtol=1e-6
    )


def check_answers(name, rows, n, padded):
  """Compares eight of `rows` of a sample with the reference."""
  task = create(name)
  sample = task.sample(jax.random.key(n), rows, n, padded)
  inputs, targets = (np.asarray(a) for a in sample)
  size, size_out = task.input_length(n), task.output_length(n)
  assert inputs.dtype == targets.dtype == np.int32
  assert inputs.shape == (rows, task.input_length(padded))
  assert targets.shape == (rows, task.output_length(padded))
  assert 0 <= inputs.min() and inputs.max() < task.vocab_in
  assert 0 <= targets.min() and targets.max() < task.vocab_out
  assert not inputs[:, size:].any() and not targets[:, size_out:].any()
  for x, y in zip(inputs[:8].tolist(), targets[:8].tolist(), strict=True):
    assert REFERENCES[name](x[:size]) == y[:size_out], (n, x[:size])


@pytest.mark.some(3)
@pytest.mark.parametrize('name', sorted(REFERENCES))
def test_answers(name):
  """Samples have the shape of `draw`, so that they share its compilation."""
  for n in LENGTHS:
    check_answers(name, ROWS, n, PADDED)


@pytest.mark.slow
@pytest.mark.parametrize('name', sorted(REFERENCES))
def test_answers_of_500_tokens(name):
  for n in (499, 500):
    check_answers(name, 8, n, 500)


@pytest.mark.parametrize('name', sorted(REFERENCES))
def test_facts(name):
  task = create(name)
  assert task.chance == (0.2 if name in FIVE_CLASSES else 0.5)
  assert (task.terminator == 2) == (
    name in ('stack_manipulation', 'binary_addition', 'binary_multiplication')
  )
  assert task.permutation_invariant == (
    name in ('parity_check', 'cycle_navigation', 'bucket_sort')
  )


def parse(s):
  """The length of the first subexpression of `s`; fails on bad grammar."""
  if s[0].isdigit():
    return 1
  if s[0] == '-':
    assert s[1].isdigit()
    return 2
  assert s[0] == '('
  size = 1 + parse(s[1:])
  if s[size] != ')':
    assert s[size] in '+-*'
    size += 1
    size += parse(s[size:])
  else:
    assert size in (2, 3), 'only a digit stands in brackets alone'
  assert s[size] == ')'
  return size + 1


def check_uniform(values, support):
  """Each of `support` makes up its share of `values`, to 5 deviations."""
  counts = collections.Counter(values)
  assert set(counts) == set(support)
  share = 1 / len(counts)
  slack = 5 * math.sqrt(len(values) * share * (1 - share))
  for count in counts.values():
    assert abs(count - len(values) * share) <= slack, counts


def draw(name, n):
  inputs, _ = create(name).sample(jax.random.key(7), ROWS, n, PADDED)
  return np.asarray(inputs)[:, :n].tolist()


@pytest.mark.parametrize(
  'name, alphabet, operators',
  [
    ('modular_arithmetic_brackets', BRACKETS, '+-*'),
    ('solve_equation', EQUATION, '+-'),
  ],
)
def test_expressions(name, alphabet, operators):
  """They follow the grammar, and the length of A is uniform."""
  extra = 2 if name == 'solve_equation' else 0
  for row in draw(name, PADDED)[:32]:
    s = text(row, alphabet).replace('x', '0')[: PADDED - extra]
    assert parse(s) == len(s)
  for size, form in ((1, 'd'), (2, '-d'), (3, '(d)'), (4, '(-d)')):
    for row in draw(name, size + extra)[:9]:
      s = text(row, alphabet)[:size]
      assert ''.join('d' if c in '01234x' else c for c in s) == form
  rows = [text(row, alphabet)[:9] for row in draw(name, 9 + extra)]
  rows = [row.replace('x', '0') for row in rows]
  sizes = [parse(row[1:]) for row in rows]
  check_uniform(sizes, range(1, 6))
  tops = [row[1 + size] for row, size in zip(rows, sizes, strict=True)]
  check_uniform(tops, operators)


def test_unknown_is_the_next_digit():
  """In `(d+(d))=v` four places of seven lead to the first digit."""
  rows = [row for row in draw('solve_equation', 9) if row[2] in (5, 6)]
  places = [row.index(9) for row in rows]
  assert set(places) == {1, 4} and len(rows) > 250
  assert abs(places.count(1) / len(places) - 4 / 7) < 0.08


def test_stack_is_any_part_of_the_input():
  rows = draw('stack_manipulation', 5)
  check_uniform([sum(token < 2 for token in row) for row in rows], range(1, 5))
  check_uniform([row[0] for row in rows], range(2))
  check_uniform([row[-1] for row in rows], (2, 3, 4))


def test_hidden_bit_is_anywhere():
  rows = draw('missing_duplicate_string', 7)
  check_uniform([row.index(2) for row in rows], range(6))
  assert {row[-1] for row in rows} == {3}


@pytest.mark.parametrize('name', ['binary_addition', 'binary_multiplication'])
def test_operands_are_uniform(name):
  rows = draw(name, 6)
  sizes = [row.index(2) for row in rows]
  check_uniform(sizes, range(1, 5))
  for size in range(1, 5):
    chosen = [row for row in rows if row.index(2) == size]
    a = [number(row[:size]) for row in chosen]
    b = [number(row[size + 1 :]) for row in chosen]
    check_uniform(a, range(1, 2**size))
    check_uniform(b, range(1, 2 ** (5 - size)))
  assert {number(row) for row in draw(name, 1)} == {0}
  check_uniform([number(row) for row in draw(name, 2)], range(3))


def test_squares_are_uniform():
  rows = draw('compute_sqrt', 4)
  check_uniform([number(row[::-1]) for row in rows], range(1, 16))


@pytest.mark.parametrize(
  'name, count',
  [
    ('even_pairs', 2),
    ('cycle_navigation', 3),
    ('bucket_sort', 5),
  ],
)
def test_tokens_are_uniform(name, count):
  for column in (0, 5):
    check_uniform([row[column] for row in draw(name, 6)], range(count))


def test_simple_arithmetic_is_uniform():
  rows = draw('modular_arithmetic', 7)
  check_uniform([row[2] for row in rows], range(5))
  check_uniform([row[3] for row in rows], (5, 6, 7))


def test_baselines():
  """What position alone gives away, and the classes that are not even."""
  key = jax.random.key(0)
  got = create('bucket_sort').baselines(key, 101)
  assert abs(got['positionwise'] - 0.862) < 0.01
  assert abs(got['constant'] - 0.2) < 0.01
  # According to the recursion of the grammar, 30.33 % of the values are 0.
  got = create('modular_arithmetic_brackets').baselines(key, 41, 500)
  assert abs(got['constant'] - 0.3033) < 0.05
