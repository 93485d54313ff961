"""Tests `lengen_jax/tasks/arithmetic/`."""

import functools
import json
import operator
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import errors, tasks
from lengen_jax.tasks import batches
from lengen_jax.tasks.arithmetic import symbols
from tests import helpers

KEY = jax.random.key(3)
GROUPS = json.loads((helpers.GOLDEN / 'arithmetic/questions.json').read_text())
SIGNS = {'+': operator.add, '-': operator.sub, '*': operator.mul}
# Each key, and the formats of the papers.
SPECS = [
  'addition',
  "addition(format='reversed', pad=True, lengths='uniform')",
  "addition(format='reversed', pad=True, index_hints=True)",
  'subtraction',
  "subtraction(format='reversed', reverse_operands=True, lengths='uniform')",
  "multiplication(format='reversed', pad=True, second_digits=2)",
  'multiplication(reverse_operands=True)',
  "addition(format='reversed', pad=True, operands=3)",
  'addition(index_hints=True, pad=True, second_digits=4)',
  'subtraction(pad=True, second_digits=1)',
]


def create(spec):
  return tasks.create(f'arithmetic/{spec}')


def padded(rows, width):
  return np.array([row + [0] * (width - len(row)) for row in rows])


@pytest.mark.some(3)
@pytest.mark.parametrize('group', GROUPS, ids=lambda group: group['task'])
def test_answers_and_roles_of_the_papers(group):
  task = tasks.create(group['task'])
  questions, answers, *roles = zip(*group['cases'], strict=True)
  rows = [task.parse(question) for question in questions]
  assert [task.text(row) for row in rows] == list(questions)
  longest = max(len(re.sub('[a-z]', '', q)) for q in questions)
  targets = task.target(padded(rows, task.input_length(longest)), longest)
  assert [task.text(row) for row in targets] == list(answers)
  # The end is scored, and nothing after it.
  counts = [len(task.parse(answer)) + 1 for answer in answers]
  assert task.mask(targets, longest).sum(1).tolist() == counts
  for want in roles:
    whole = [
      [*row, task.separator, *task.parse(answer)]
      for row, answer in zip(rows, answers, strict=True)
    ]
    whole = padded(whole, max(map(len, whole)))
    got = np.asarray(jax.jit(jax.vmap(task.roles))(whole))[:, 0]
    assert [row[row >= 0].tolist() for row in got] == list(want)


def value(text, reverses):
  """The number that a text means, and its number of digits."""
  digits = re.sub('[a-z]', '', text)
  return int(digits[::-1] if reverses else digits), len(digits)


@pytest.mark.some(12)
@pytest.mark.parametrize('spec', SPECS)
def test_integers(spec):
  """Answers are right, numbers have their digits, and padding changes none."""
  task = create(spec)
  reverses_operands = task.reverse_operands
  if reverses_operands is None:
    reverses_operands = task.format == 'reversed' and task.index_hints
  sign = task.text([task.sign])
  few, few_targets = task.sample(KEY, 8, 3)
  for n in (1, 3, 12) if task.min_length == 1 else (3, 12):
    inputs, targets = task.sample(KEY, 64, jnp.int32(n), 12)
    masks = np.asarray(task.mask(targets, n))
    if n == 3:
      np.testing.assert_array_equal(inputs[:8, : few.shape[1]], few)
      width = few_targets.shape[1]
      np.testing.assert_array_equal(targets[:8, :width], few_targets)
    sizes = [n, task.second_digits or n, *[n] * (task.operands - 2)]
    seen = [set() for _ in sizes]
    counted = np.asarray(task.operand_digits(inputs)).tolist()
    rows = zip(np.asarray(inputs), np.asarray(targets), masks, strict=True)
    for (x, y, mask), count in zip(rows, counted, strict=True):
      question = task.text(x)
      assert task.parse(question) == x[x > 0].tolist()
      assert (x > 0).sum() <= task.input_length(n)
      numbers, widths = zip(
        *(value(one, reverses_operands) for one in question.split(sign)),
        strict=True,
      )
      got, size = value(task.text(y), task.format == 'reversed')
      assert got == functools.reduce(SIGNS[sign], numbers)
      for one, digits in zip(seen, numbers, strict=True):
        one.add(len(str(digits)))
      assert count == [len(str(number)) for number in numbers]
      scored = y[mask]
      assert scored[-1] == symbols.END and (scored[:-1] > symbols.END).all()
      if task.pad and sign != '*':
        assert len(set(widths)) == 1
      if not task.pad:
        assert size == len(str(got))
        assert widths == tuple(len(str(number)) for number in numbers)
    if task.lengths == 'uniform':
      assert set.union(*seen) == {*range(1, n + 1)}
      assert all(len(one) > n // 2 for one in seen)
    elif sign != '-' or n == 1 or task.second_digits:
      assert seen == [{size} for size in sizes]


@pytest.mark.one_jax
def test_padded_answers():
  """The longest answer that operands of these lengths have."""
  task = create("multiplication(format='reversed', pad=True)")
  assert task.answer('10x3') == '030'
  assert create('subtraction(pad=True)').answer('100-099') == '001'


@pytest.mark.one_jax
def test_hints_are_consecutive_and_fit():
  task = create("addition(format='reversed', pad=True, index_hints=True)")
  starts = set()
  inputs, targets = task.sample(KEY, 128, jnp.int32(98), 110)
  for x, y in zip(np.asarray(inputs), np.asarray(targets), strict=True):
    hints = x[x >= symbols.HINT] - symbols.HINT
    first = hints[0]
    want = np.arange(first, first + 99)
    np.testing.assert_array_equal(hints, np.tile(want, 2))
    np.testing.assert_array_equal(y[y >= symbols.HINT] - symbols.HINT, want)
    starts.add(int(first))
  assert starts == {0, 1, 2, 3}
  # Beyond 102 digits, hints start again.
  inputs, _ = task.sample(KEY, 128, jnp.int32(110), 110)
  assert inputs.max() == task.vocab_in - 1


@pytest.mark.one_jax
def test_first_digits():
  """A number has no leading zero, but 0 is a number of one digit."""
  task = create('addition')
  inputs, _ = task.sample(KEY, 300, jnp.int32(1), 2)
  assert np.unique(inputs[:, 0]).tolist() == list(range(4, 14))
  inputs, _ = task.sample(KEY, 300, jnp.int32(2), 2)
  assert np.unique(inputs[:, 0]).tolist() == list(range(5, 14))
  assert np.unique(inputs[:, 1]).tolist() == list(range(4, 14))


@pytest.mark.parametrize('scratchpad', [True, False])
def test_parity(scratchpad):
  task = create(f'parity(scratchpad={scratchpad})')
  inputs, targets = task.sample(KEY, 8, 5, 9)
  for x, y in zip(np.asarray(inputs), np.asarray(targets), strict=True):
    want = np.cumsum(x[:5] - symbols.ZERO) % 2 + symbols.ZERO
    want = [*(want if scratchpad else want[-1:]), symbols.END]
    assert y[: len(want)].tolist() == want and not y[len(want) :].any()
  assert task.answer('0110') == ('0100' if scratchpad else '0')
  if scratchpad:
    roles = task.encode('011', '010')['roles']
    assert roles.tolist() == [[1, 2, 3, 0, 1, 2, 3]]


@pytest.mark.one_jax
def test_reversed_parity():
  """The parities start at the last bit, and descend with its roles."""
  task = create("parity(format='reversed')")
  inputs, targets = task.sample(KEY, 8, 5, 9)
  for x, y in zip(np.asarray(inputs), np.asarray(targets), strict=True):
    want = np.cumsum(x[4::-1] - symbols.ZERO) % 2 + symbols.ZERO
    assert y[:7].tolist() == [*want, symbols.END, 0]
  assert task.answer('0111') == '1011'
  roles = task.encode('0111', '1011')['roles']
  assert roles.tolist() == [[0, 1, 2, 3, 4, 3, 2, 1, 0]]


def sums_and_roles(numbers, width):
  """The scratchpad of a sum of texts, and its two rows of roles."""
  sums = [sum(map(int, numbers[:i])) for i in range(len(numbers) + 1)]
  sums = [str(one).zfill(width)[::-1] for one in sums]
  rows = [[], []]
  for i, number in enumerate(numbers):
    rows[0] += [*range(len(number), 0, -1), 0]
    rows[1] += [i] * (len(number) + 1)
  for row in rows:
    row.pop()
  for i, one in enumerate(sums):
    rows[0] += range(len(one) + 1)
    rows[1] += [i] * (len(one) + 1)
  return '>'.join(sums), rows


_PADDED = "format='reversed', pad=True"


@pytest.mark.some(3)
@pytest.mark.parametrize(
  'spec',
  [
    "arithmetic/addition(lengths='uniform')",
    "arithmetic/addition(format='reversed', lengths='uniform')",
    f'arithmetic/addition({_PADDED}, operands=4)',
    f'arithmetic/addition({_PADDED}, operands=3, scratchpad=True)',
    f'arithmetic/subtraction({_PADDED})',
    "arithmetic/multiplication(lengths='uniform')",
    f'arithmetic/multiplication({_PADDED}, second_digits=2)',
    f'arithmetic/multiplication({_PADDED}, scratchpad=True)',
    'arithmetic/parity(scratchpad=True)',
    "arithmetic/parity(format='reversed', scratchpad=True)",
    'algorithmic/copy',
    'algorithmic/reverse',
  ],
)
def test_largest_role(spec):
  """No role is larger, and some row has it."""
  task = tasks.create(spec)

  @jax.jit
  def roles(n):
    rows = task.sample(jax.random.key(n), 512, n, padded_length=2)
    return batches.make(task, *rows, n, autoregressive=True)['roles']

  for n in (1, 2):
    roles_BxRxL = np.asarray(roles(n))
    found = roles_BxRxL.max()
    assert roles_BxRxL.min() >= -1
    # The last digit of an answer is no input.
    assert task.largest_role(n) - 1 <= found <= task.largest_role(n)


@pytest.mark.one_jax
def test_answers_that_are_too_long_have_no_roles():
  for spec, question, answer in [
    ('algorithmic/reverse', '1 2 3', '3 2 1 5 5'),
    (
      f'arithmetic/multiplication({_PADDED}, second_digits=2)',
      '31*12',
      '2730000',
    ),
    ("arithmetic/parity(format='reversed', scratchpad=True)", '011', '0110111'),
  ]:
    roles = tasks.create(spec).encode(question, answer)['roles']
    assert roles.min() == -1


@pytest.mark.one_jax
def test_roles_of_n_by_m_multiplication_descend():
  """T - 1 - j at digits of significance j and T at signs, T = N + M."""
  keys = "format='reversed', pad=True, second_digits=2"
  task = tasks.create(f'arithmetic/multiplication({keys})')
  assert task.answer('314*02') == '82600'
  roles = task.encode('314*02', '82600')['roles']
  assert roles.tolist() == [[2, 3, 4, 5, 3, 4, 5, 4, 3, 2, 1, 0]]
  make = functools.partial(batches.make, task, autoregressive=True)
  batch = jax.jit(make)(*task.sample(jax.random.key(0), 4, 3, 5), 3)
  # The last token of the answer is not read.
  np.testing.assert_array_equal(batch['roles'][0, :, :12], [roles[0]] * 4)
  assert (batch['roles'][0, :, 12:] == -1).all()


def products_and_roles(numbers, pads):
  """The scratchpad of a product of texts, and its three rows of roles."""
  a, b = numbers
  products = [int(a) * int(digit) for digit in b[::-1]]
  sums = [
    sum(one * 10**i for i, one in enumerate(products[: count + 1]))
    for count in range(len(b))
  ]
  widths = (len(a) + 1, len(a) + len(b)) if pads else (0, 0)
  products, sums = (
    [str(one).zfill(width)[::-1] for one in each]
    for each, width in zip((products, sums), widths, strict=True)
  )
  rows = [
    [*range(len(a), 0, -1), -1, *[-1] * len(b)],
    [*[-1] * (len(a) + 1), *range(len(b) - 1, -1, -1)],
    [-1] * (len(a) + 1 + len(b)),
  ]
  for i, one in enumerate(products):
    rows[0] += range(len(one) + 1)
    rows[1] += [i] * (len(one) + 1)
    rows[2] += range(i, i + len(one) + 1)
  for i, one in enumerate(sums):
    rows[0] += [-1] * (len(one) + 1)
    rows[1] += [i] * (len(one) + 1)
    rows[2] += range(len(one) + 1)
  return '+'.join(products) + '=' + '>'.join(sums), rows


@pytest.mark.some(2)
@pytest.mark.parametrize(
  'spec',
  [
    'addition(operands=3, pad=True',
    'addition(pad=False',
    'multiplication(pad=True',
    'multiplication(second_digits=2',
  ],
)
def test_scratchpads(spec):
  task = create(
    f"{spec}, format='reversed', lengths='uniform', scratchpad=True)"
  )
  rows = task.sample(KEY, 16, jnp.int32(4), 5)
  make = functools.partial(batches.make, task, autoregressive=True)
  batch_roles = np.asarray(jax.jit(make)(*rows, 4)['roles'])
  inputs, targets, mask = map(np.asarray, (*rows, task.mask(rows[1], 4)))
  lengths = set()
  for row in range(len(inputs)):
    question = task.text(inputs[row])
    numbers = question.split(task.text([task.sign]))
    if task.sign == symbols.PLUS:
      want, roles = sums_and_roles(numbers, len(numbers[0]) * task.pad)
    else:
      want, roles = products_and_roles(numbers, task.pad)
    answer = targets[row][mask[row]]
    assert task.text(answer) == want and answer[-1] == symbols.END
    got = batch_roles[:, row]
    # The end of an answer is not read.
    size = len(roles[0])
    assert got[:, :size].tolist() == roles
    assert (got[:, size:] == -1).all()
    lengths.add(size)
  assert len(lengths) > 1
  if task.pad:
    assert task.output_length(4) == (5 * 4 + 4 if '3' in spec else 4 * 15)


@pytest.mark.one_jax
def test_scratchpads_by_hand():
  keys = "format='reversed', pad=True, scratchpad=True"
  task = create(f'addition(operands=3, {keys})')
  answer = '000>750>501>102'
  assert task.answer('057+048+096') == answer
  assert task.encode('057+048+096', answer)['roles'].tolist() == [
    [3, 2, 1, 0] * 2 + [3, 2, 1] + [0, 1, 2, 3] * 4,
    [0] * 4 + [1] * 4 + [2] * 3 + [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4,
  ]
  task = create(f'multiplication({keys})')
  assert task.answer('31*12') == '260+130=2600>2730'
  question = [2, 1, -1, -1, -1], [-1, -1, -1, 1, 0], [-1] * 5
  products = [0, 1, 2, 3] * 2, [0] * 4 + [1] * 4, [0, 1, 2, 3, 1, 2, 3, 4]
  sums = [-1] * 10, [0] * 5 + [1] * 5, [0, 1, 2, 3, 4] * 2
  want = [
    [*q, *p, *s] for q, p, s in zip(question, products, sums, strict=True)
  ]
  row = task.encode('31*12', '260+130=2600>2730')
  assert row['roles'].tolist() == want


@pytest.mark.one_jax
def test_rows_have_their_own_lengths_and_roles():
  """Answers follow their questions; the end and padding have no role."""
  task = create("addition(format='reversed', pad=True, lengths='uniform')")
  inputs, targets = map(np.asarray, task.sample(KEY, 16, 3, 4))
  make = functools.partial(batches.make, task, autoregressive=True)
  batch = jax.device_get(jax.jit(make)(inputs, targets, 3))
  assert batch['roles'].shape == (1, *batch['inputs'].shape)
  lengths = set()
  for row in range(16):
    question = task.text(inputs[row])
    answer = task.text(targets[row])
    size = len(question) + 1 + len(answer)
    assert task.text(batch['inputs'][row]) == f'{question}={answer}'
    at = batch['weights'][row] > 0
    assert at.nonzero()[0].tolist() == list(range(len(question), size))
    want = task.encode(question, answer)['roles'][0]
    roles = batch['roles'][0, row]
    np.testing.assert_array_equal(roles[:size], want)
    assert (roles[size:] == -1).all()
    lengths.add(size)
  assert len(lengths) > 1


def test_encode():
  """A row may have a wrong answer, or its beginning."""
  row = create("addition(format='reversed')").encode('12 + 3', '51')
  assert row['tokens'].tolist() == [5, 6, 14, 7, 17, 9, 5]
  assert row['weights'].tolist() == [0, 0, 0, 0, 0, 1, 1]
  assert row['roles'].tolist() == [[2, 1, 0, 1, 0, 1, 2]]
  part = create("addition(format='reversed')").encode('12+3', '5')
  np.testing.assert_array_equal(part['roles'], row['roles'][:, :-1])


@pytest.mark.parametrize(
  'spec, question, message',
  [
    (
      'addition',
      '1+',
      "'1.' is not a question of .*; write one such as '..[+]",
    ),
    ('addition(operands=3)', '1+2', 'is not a question'),
    ('addition(index_hints=True)', '1+2', "such as '([a-z]+[0-9]){2}[+]"),
    ('subtraction', '1-2', "first number of '1-2' is less than the second"),
    ('parity', '012', 'is not a question'),
    (
      'multiplication(second_digits=1, scratchpad=True)',
      '12*34',
      "second number of '12.34' has 2 digits; set second_digits=2",
    ),
    (
      'addition(pad=True, operands=3)',
      '57+48+96',
      "answer to '57.48.96' has 3 digits, and .* pads it to 2; begin the oper",
    ),
    ('addition(pad=True, pad_operands=True)', '99+1', 'has 3 digits, and'),
    (
      'addition(pad=True, operands=3, reverse_operands=True)',
      '75+84+69',
      'pads it to 2; end the operands with 0',
    ),
    (
      'addition(pad=True, operands=3, scratchpad=True)',
      '57+48+6',
      'has 3 digits, and .* pads it to 2',
    ),
  ],
)
def test_refuses_questions(spec, question, message):
  with pytest.raises(errors.ConfigError, match=message):
    create(spec).answer(question)


@pytest.mark.parametrize(
  'spec, question, answer',
  [
    ('addition(pad=True)', '99+1', '100'),
    ('addition(pad=True, operands=3)', '057+048+096', '201'),
    ('addition(pad=True, operands=3)', '11+12+13', '36'),
    (
      'addition(pad=True, operands=3, reverse_operands=True)',
      *('750+840+690', '201'),
    ),
  ],
)
def test_answers_to_padded_questions(spec, question, answer):
  assert create(spec).answer(question) == answer


@pytest.mark.parametrize('length', [1, 3, 4])
def test_targets_of_inputs_with_a_padded_second_operand(length):
  """Operands of 1 to 4 digits have inputs of one width."""
  task = create('addition(pad=True, second_digits=4)')
  inputs, targets = task.sample(jax.random.key(0), 40, length)
  np.testing.assert_array_equal(task.target(inputs), targets)


def test_refuses_characters():
  with pytest.raises(errors.ConfigError, match="'a' in '1a' is not a token"):
    create('addition').encode('1+2', '1a')
  with pytest.raises(errors.ConfigError, match='hints from a to cx'):
    create('addition(index_hints=True)').encode('a1+a2', 'cy3')


@pytest.mark.one_jax
def test_hints_need_operands_as_long_as_a_plain_answer():
  """Else equal hints would mark digits of other significance."""
  keys = 'index_hints=True, pad=True, pad_operands=False'
  with pytest.raises(errors.SpecError, match='pad_operands=False, or format'):
    tasks.create(f'arithmetic/addition({keys})')
  task = tasks.create(f"arithmetic/addition({keys}, format='reversed')")
  assert task.answer('a7b4+a7b3') == 'a4b8c0'


@pytest.mark.parametrize('spec', ['addition', 'multiplication', 'subtraction'])
def test_targets_of_sampled_inputs_need_no_length(spec):
  task = tasks.create(f'arithmetic/{spec}')
  inputs, targets = task.sample(jax.random.key(0), 8, 3)
  for function in (task.target, jax.jit(task.target)):
    np.testing.assert_array_equal(function(inputs), targets)


def test_a_number_may_have_more_digits_than_the_length_of_its_inputs():
  # Both have as many tokens as two numbers of two digits.
  task = tasks.create('arithmetic/addition')
  assert task.answer('99+99') == '198'
  assert task.answer('9+999') == '1008'


def test_a_sum_of_ten_numbers_has_one_more_digit():
  task = create('addition(operands=10)')
  assert task.answer('+'.join(10 * ['99'])) == '990'
  with pytest.raises(errors.SpecError, match='<= 10'):
    create('addition(operands=11)')


def test_symbols_precede_reversed_operands():
  keys = "format='reversed', reverse_operands=True, pad=True, scratchpad=True"
  task = create(f'addition({keys})')
  answer = task.answer('70+80')
  assert answer == '00>70>51'
  roles = task.encode('70+80', answer)['roles'][1]
  assert roles.tolist() == [0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_operands_are_padded_only_with_the_answer():
  with pytest.raises(errors.SpecError, match='set pad=True'):
    create('addition(pad_operands=True)')


def test_an_answer_that_is_a_number():
  task = create('addition')
  assert task.encode('1+2', 3)['tokens'].tolist() == (
    task.encode('1+2', '3')['tokens'].tolist()
  )
