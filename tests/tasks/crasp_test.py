"""Tests `lengen_jax/tasks/crasp.py`.

Golden rows: `golden/retrieval/README.md`. Other rows are compared with the
rules, in plain Python.
"""

import collections
import json

import jax
import numpy as np
import pytest

from lengen_jax import errors, tasks
from tests import helpers

GOLDEN = json.loads((helpers.GOLDEN / 'retrieval' / 'crasp.json').read_text())
KEY = jax.random.key(8)
# Numbers of symbols in a body; others have two.
SYMBOLS = {'majority': 26, 'unique_copy': 150, 'sort': 150, 'addition': 3}


def majority(body):
  (winner, count), *others = collections.Counter(body).most_common(2)
  assert all(other < count for _, other in others)
  return winner


def add(body):
  a, b = ''.join(map(str, body)).split('2')
  assert all(number in ('0', '1') or number[0] == '1' for number in (a, b))
  return [int(digit) for digit in f'{int(a, 2) + int(b, 2):b}']


ANSWERS = {
  'bin_majority': lambda body: [majority(body)],
  'majority': lambda body: [majority(body)],
  'bin_majority_interleave': lambda body: [
    majority(body[i::3]) for i in (0, 1, 2)
  ],
  'unique_copy': list,
  'sort': sorted,
  'repeat_copy': list,
  'parity': lambda body: [2 + sum(body) % 2],
  'addition': add,
}


def body_size(name, n):
  return {'bin_majority_interleave': n // 3 * 3, 'addition': n - 1}.get(name, n)


@pytest.mark.parametrize('name', GOLDEN)
def test_golden(name):
  """Rows are those of the paper's code, whose special tokens come last."""
  golden, task = GOLDEN[name], tasks.create(f'crasp/{name}')
  special = golden['bos'], golden['sep'], golden['eos'], golden['pad']
  assert special == tuple(range(task.symbols, task.symbols + 4))
  ours = np.array([*range(4, 4 + task.symbols), 1, 2, 3, 0])
  longest = max(case['n'] for case in golden['cases'])
  rows, want = [], []
  for case in golden['cases']:
    ids, start = ours[case['ids']].tolist(), case['answer_start']
    assert ids[start - 1] == task.separator
    assert task.input_length(case['n']) == start - 1
    rows.append(ids[: start - 1])
    want.append(ids[start:])
  width = task.input_length(longest)
  inputs = np.array([row + [0] * (width - len(row)) for row in rows])
  targets = np.asarray(task.target(inputs, longest)).tolist()
  for target, row in zip(targets, want, strict=True):
    assert target == row + [-1] * (len(target) - len(row))


@pytest.mark.parametrize('name', ANSWERS)
def test_draws(name):
  task = tasks.create(f'crasp/{name}')
  width = task.input_length(40)
  for n in (task.min_length, task.min_length + 1, 20, 39):
    size = body_size(name, n)
    inputs, targets = map(np.asarray, task.sample(KEY, 64, n, 40))
    assert inputs.shape == (64, width)
    assert (inputs[:, 0] == 1).all()
    assert not inputs[:, 1 + size :].any()
    for x, y in zip(inputs[:, 1 : 1 + size] - 4, targets, strict=True):
      answer = [4 + z for z in ANSWERS[name](x.tolist())]
      end = len(answer) + 1
      assert y[:end].tolist() == [*answer, 3]
      rest = y[end : task.output_length(n)]
      assert (rest == -1).all()
      assert name not in ('unique_copy', 'sort') or len(set(x)) == n
  symbols = set(np.unique(inputs[:, 1 : 1 + size] - 4))
  assert symbols == set(range(SYMBOLS.get(name, 2)))


@pytest.mark.some(2)
@pytest.mark.parametrize('name, n', [('bin_majority', 6), ('parity', 5)])
def test_counts_are_uniform(name, n):
  inputs, _ = tasks.create(f'crasp/{name}').sample(KEY, 4000, n)
  ones = np.bincount(np.sum(np.asarray(inputs) == 5, 1), minlength=n + 1)
  want = np.full(7, 1 / 6)
  want[3] = 0
  want = want if name == 'bin_majority' else np.full(6, 1 / 6)
  np.testing.assert_allclose(ones / 4000, want, atol=0.025)
  # The order is random.
  rates = np.mean(np.asarray(inputs)[:, 1:] == 5, 0)
  np.testing.assert_allclose(rates, 0.5, atol=0.03)


def test_interleaved_strings_differ():
  task = tasks.create('crasp/bin_majority_interleave')
  answers = np.asarray(task.sample(KEY, 256, 11)[1])[:, :3]
  assert len(np.unique(answers, axis=0)) == 8


@pytest.mark.slow
def test_majority_of_two_is_drawn_until_they_agree():
  inputs, _ = tasks.create('crasp/majority').sample(KEY, 1000, 2)
  letters = np.asarray(inputs)[:, 1]
  assert np.abs(np.bincount(letters)[4:] / 1000 - 1 / 26).max() < 0.025


def test_operand_lengths_are_uniform():
  inputs = np.asarray(tasks.create('crasp/addition').sample(KEY, 3000, 8)[0])
  sizes = np.argmax(inputs == 6, 1) - 1
  np.testing.assert_allclose(
    np.bincount(sizes)[1:] / 3000, np.full(5, 0.2), atol=0.03
  )


def test_answer_of_a_text():
  assert tasks.create('crasp/addition').answer('1 5 5 6 5') == '5 4 4 3'
  assert tasks.create('crasp/sort').answer('1 9 5 7') == '5 7 9 3'
  assert tasks.create('crasp/unique_copy').answer('1 9 5 7') == '9 5 7 3'
  interleave = tasks.create('crasp/bin_majority_interleave')
  assert interleave.answer('1 4 5 4') == '4 5 4 3'
  # Ties, which are never drawn, are won by the one.
  assert tasks.create('crasp/bin_majority').answer('1 4 5') == '5 3'
  assert tasks.create('crasp/parity').answer('1') == '6 3'


def test_refuses_more_tokens_than_symbols():
  task = tasks.create('crasp/unique_copy(symbols=3)')
  inputs, _ = task.sample(KEY, 2, 3)
  assert sorted(np.asarray(inputs)[0]) == [1, 4, 5, 6]
  for padded_length in (None, 4):
    with pytest.raises(errors.LengthError, match='set symbols=4 or more'):
      task.sample(KEY, 2, 4, padded_length)
