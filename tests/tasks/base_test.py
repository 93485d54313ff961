"""Tests `lengen_jax/tasks/base.py`, and what holds for every task."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import errors, tasks

ALL = tasks.names()
KEY = jax.random.key(5)


def arrays(*values):
  return tuple(np.array(value) for value in values)


@pytest.mark.some(20)
@pytest.mark.parametrize('name', ALL)
def test_padding_and_order(name):
  """Padding changes no row; the order of tokens matters where it should."""
  task = tasks.create(name)
  padded_length = task.min_length + 11

  @functools.partial(jax.jit, static_argnums=0)
  def exact(n):
    inputs, targets = task.sample(KEY, 32, n)
    return inputs, targets, task.mask(targets)

  # One program for all lengths, as in training.
  @jax.jit
  def padded_to_a_length(n):
    inputs, targets = task.sample(KEY, 32, n, padded_length)
    return inputs, targets, task.mask(targets, n)

  target = jax.jit(task.target)
  for n in (task.min_length, task.min_length + 9):
    inputs, targets, mask = arrays(*exact(n))
    padded, padded_targets, padded_mask = arrays(*padded_to_a_length(n))
    size, size_out = task.input_length(n), task.output_length(n)
    assert inputs.shape == (32, size) and targets.shape == (32, size_out)
    assert padded.shape == (32, task.input_length(padded_length))
    assert padded_targets.shape == (32, task.output_length(padded_length))
    np.testing.assert_array_equal(padded[:, :size], inputs)
    np.testing.assert_array_equal(padded_targets[:, :size_out], targets)
    assert not padded[:, size:].any() and not padded_targets[:, size_out:].any()
    np.testing.assert_array_equal(target(padded, n), padded_targets)
    assert padded_mask.shape == padded_targets.shape
    assert padded_mask.dtype == bool
    np.testing.assert_array_equal(padded_mask[:, :size_out], mask)
    assert not padded_mask[:, size_out:].any() and mask.any(1).all()
  answer = task.text(np.where(mask[0], targets[0], -1))
  assert task.answer(task.text(inputs[0])) == answer
  order = np.random.RandomState(0).permutation(size)
  padded[:, :size] = padded[:, order]
  same = np.array_equal(target(padded, n), padded_targets)
  assert same == task.permutation_invariant


@pytest.mark.parametrize('name', ALL)
def test_facts(name):
  task = tasks.create(name)
  assert task.formula and task.source.startswith('arXiv:')
  assert str(task) == name and tasks.create(str(task)) == task
  assert 0 < task.chance <= 0.5


def test_jit_and_vmap():
  task = tasks.create('chomsky/compute_sqrt')

  def run(key, n):
    inputs, targets = task.sample(key, 3, n, 16)
    again = task.target(inputs, n)
    mask = task.mask(targets, n)
    return inputs, targets, again, mask

  lengths = jnp.array([1, 9, 16])
  keys = jax.random.split(KEY, 3)
  jitted = jax.jit(run)
  together = jax.vmap(run)(keys, lengths)
  for i, n in enumerate((1, 9, 16)):
    one = jitted(keys[i], jnp.int32(n))
    plain = task.sample(keys[i], 3, n, 16)
    np.testing.assert_array_equal(one[0], plain[0])
    np.testing.assert_array_equal(one[1], plain[1])
    np.testing.assert_array_equal(one[2], one[1])
    assert one[3].sum() == 3 * task.output_length(n)
    for got, want in zip(arrays(*together), one, strict=True):
      np.testing.assert_array_equal(got[i], want)


def test_rows_and_keys():
  """A row does not depend on the batch; rows and keys differ."""
  task = tasks.create('chomsky/reverse_string')
  inputs = np.asarray(task.sample(KEY, 8, 32)[0])
  np.testing.assert_array_equal(task.sample(KEY, 3, 32)[0], inputs[:3])
  assert len(np.unique(inputs, axis=0)) == 8
  assert (task.sample(jax.random.key(6), 8, 32)[0] != inputs).any()


def test_mask_ends_with_the_terminator():
  task = tasks.create('chomsky/stack_manipulation')
  targets = np.array([[2, 0, 0, 0], [1, 0, 2, 0], [1, 1, 0, 2]])
  want = [[1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
  np.testing.assert_array_equal(task.mask(targets), np.array(want, bool))
  predictions = np.array([[2, 2, 2, 2], [1, 1, 2, 0], [1, 1, 0, 0]])
  np.testing.assert_allclose(task.accuracy(predictions, targets), 6 / 8)
  np.testing.assert_array_equal(
    task.exact_match(predictions, targets), [True, False, False]
  )


def test_unscored_targets():
  task = tasks.create('synthetic/flip_flop(ignore=0.)')
  targets = np.array([[-1, 3, 4, -1, 3, -1], [-1, -1, 4, -1, -1, 4]])
  want = [[0, 1, 1, 0, 1, 0], [0, 0, 1, 0, 0, 1]]
  np.testing.assert_array_equal(task.mask(targets), np.array(want, bool))
  predictions = np.array([[0, 3, 3, 1, 3, 2], [2, 3, 4, 4, 4, 4]])
  np.testing.assert_allclose(task.accuracy(predictions, targets), 4 / 5)
  np.testing.assert_array_equal(
    task.exact_match(predictions, targets), [False, True]
  )
  # A constant is right half the time, as is the best token of each place.
  for share in task.baselines(KEY, 8).values():
    assert 0.45 < share < 0.55
  row = task.encode('0 3 1 3 0 4 1 4', '3 4')
  assert task.answer('0 3 1 3 0 4 1 4') == '3 4'
  assert row['tokens'].tolist() == [0, 3, 1, 3, 0, 4, 1, 4]
  assert row['weights'].tolist() == [0, 0, 1, 0, 0, 0, 1, 0]
  assert row['roles'].shape == (0, 8)


def test_refuses_lengths():
  task = tasks.create('chomsky/parity_check')
  for n in (0, -3):
    with pytest.raises(errors.LengthError, match=f'length={n} is too short.*1'):
      task.sample(KEY, 2, n)
  with pytest.raises(errors.LengthError, match='set padded_length=9 or more'):
    task.sample(KEY, 2, 9, 8)
  with pytest.raises(errors.LengthError, match='must be an integer, got 2.5'):
    task.sample(KEY, 2, 2.5)
  with pytest.raises(
    errors.LengthError, match='traced length of .* requires padded_length'
  ):
    jax.jit(lambda n: task.sample(KEY, 2, n))(3)
  with pytest.raises(errors.LengthError, match='requires 7 or more'):
    tasks.create('retrieval/passkey').sample(KEY, 2, 6)


def test_refuses_rows():
  task = tasks.create('chomsky/binary_addition')
  with pytest.raises(errors.LengthError, match=r'must be \[B, tokens\]'):
    task.target(np.zeros(4, int))
  with pytest.raises(errors.LengthError, match='inputs of 5 tokens, got 4'):
    task.target(np.zeros((2, 4), int), 5)
  with pytest.raises(errors.LengthError, match='targets of 6 tokens, got 5'):
    task.mask(np.zeros((2, 5), int), 5)


@pytest.mark.one_jax
@pytest.mark.parametrize(
  'task, question',
  [
    ('retrieval/niah_single_1(digits=3, phrase=8)', '12 13 12 33 14 11 33'),
    ('retrieval/niah_single_1(digits=3, phrase=8)', '12 13 0 1 2 11 33'),
    ('retrieval/niah_single_1(digits=3, phrase=8)', '33'),
    ('retrieval/vt(hops=1, names=4, phrase=8)', '0 1 10 8 2 4 9 5'),
    ('retrieval/vt(hops=1, names=4, phrase=8)', ''),
    ('retrieval/cwe(common=1, words=3)', '0 0 1 1 2'),
    ('retrieval/fwe(words=4)', ' '.join(53 * '1')),
    ('synthetic/flip_flop', '0 4 1'),
    ('synthetic/flip_flop', '4 0 1 3'),
    ('synthetic/flip_flop', '1 3 1 4'),
    ('synthetic/majority', '1 1 0'),
    ('synthetic/majority', '2 1 0'),
    ('crasp/addition', '1 4 5 4'),
    ('crasp/addition', '1 5 6 5 6 5'),
    ('crasp/addition', '1 5 5 6'),
    ('crasp/unique_copy(symbols=3)', '1 4 4'),
    ('retrieval/passkey', '1 2 3 4 5 6 7 11'),
    ('retrieval/passkey', '10 1 2 3 4 11'),
    ('retrieval/passkey', '12 10 1 2 3 4 5 12'),
    ('synthetic/associative_recall(vocabulary=8)', '1 4 2 5 7'),
    ('synthetic/associative_recall(vocabulary=8)', '1 4 2 5 7 3'),
    ('synthetic/associative_recall(vocabulary=8)', '1 4 1 5 7 1'),
    ('synthetic/associative_recall(vocabulary=8)', '1 4 2 5 6 1'),
    ('synthetic/associative_recall(vocabulary=8)', '1 2 7 1'),
    ('synthetic/associative_recall(vocabulary=8)', '7 1'),
    ('chomsky/modular_arithmetic', '1 5'),
    ('chomsky/modular_arithmetic', '1 2 3'),
    ('chomsky/modular_arithmetic', '1 8 3'),
    ('chomsky/modular_arithmetic_brackets', '8 1 5 2'),
    ('chomsky/modular_arithmetic_brackets', '1 5 2'),
    ('chomsky/modular_arithmetic_brackets', '8 1 5 2 5 3 9'),
    ('chomsky/modular_arithmetic_brackets', '8 1 5 10 9'),
    ('chomsky/solve_equation', '7 1 5 2 8 10 3'),
    ('chomsky/solve_equation', '7 9 5 9 8 10 3'),
    ('chomsky/solve_equation', '9 5 2 10 3'),
    ('chomsky/solve_equation', '9 10'),
    ('chomsky/solve_equation', '9 10 5'),
    ('crasp/bin_majority_interleave', '1 4 4 5 5'),
    ('crasp/bin_majority', '4 5 5'),
    ('crasp/bin_majority', '1 4 2'),
    ('crasp/parity', '1 6 7'),
    ('crasp/addition', '1 5 6 7 5'),
    ('synthetic/vocab_majority', '0 3 2'),
    ('synthetic/selective_copying(data=2)', '0 1 0 15 15'),
    ('synthetic/selective_copying(data=2)', '0 1 15 15 15'),
    ('synthetic/selective_copying(data=2)', '1 2 0 3 15'),
    ('synthetic/selective_copying(data=2)', '15'),
    ('chomsky/missing_duplicate_string', '0 1 0 1'),
    ('chomsky/missing_duplicate_string', '0 2 1 1'),
    ('chomsky/missing_duplicate_string', '0 2 0 1 1'),
    ('chomsky/missing_duplicate_string', '0'),
    ('chomsky/binary_addition', '1 2 1 2 1'),
    ('chomsky/binary_addition', '2 1 1'),
    ('chomsky/binary_multiplication', '1 1 1'),
    ('chomsky/stack_manipulation', ''),
    ('chomsky/stack_manipulation', '0 2 1'),
    ('chomsky/stack_manipulation', '2 3'),
    # Two chains have one value.
    ('retrieval/vt(hops=1, names=4, phrase=8)', '8 0 4 8 1 4 8 2 1 9 4'),
  ],
)
def test_what_is_no_question_has_no_answer(task, question):
  task = tasks.create(task)
  with pytest.raises(errors.ConfigError, match='not a question') as error:
    task.answer(question)
  assert task.answer(str(error.value).partition(" such as '")[2][:-1])


def test_answers_must_have_the_form_of_the_task():
  task = tasks.create('synthetic/flip_flop')
  assert task.encode('0 4 1 3', '3')['weights'].tolist() == [0, 0, 1, 0]
  with pytest.raises(errors.ConfigError, match='has 2 tokens; .* 1 tokens'):
    task.encode('0 4 1 3', '4 4')
  with pytest.raises(errors.ConfigError, match='not a token of synthetic'):
    task.encode('0 4 1 3', 'w')
  for name in ('synthetic/flip_flop', 'arithmetic/addition'):
    with pytest.raises(errors.ConfigError):
      tasks.create(name).answer(5)


@pytest.mark.parametrize(
  'spec',
  [
    'arithmetic/addition',
    'chomsky/compute_sqrt',
    'chomsky/modular_arithmetic_brackets',
  ],
)
def test_numbers_of_64_bits(spec):
  """Arrays stay int32 where jax has 64 bits."""
  with jax.enable_x64(True):
    inputs, targets = tasks.create(spec).sample(jax.random.key(0), 2, 5)
  assert inputs.dtype == targets.dtype == np.int32


def test_baselines_are_fitted_to_other_rows():
  """Of 10 rows, the most frequent of 100 symbols is at least one."""
  task = tasks.create('algorithmic/copy')
  assert task.baselines(KEY, 8, examples=10)['positionwise'] < 0.08


def test_tokens_of_answers_are_not_those_of_questions():
  with pytest.raises(errors.ConfigError, match='not a question'):
    tasks.create('chomsky/cycle_navigation').answer('3 4')
  with pytest.raises(errors.ConfigError, match='tokens are 0 to 1'):
    tasks.create('chomsky/parity_check').answer('2')


@pytest.mark.parametrize(
  'spec, classes',
  [
    ('synthetic/selective_copying(vocabulary=8)', 6),
    ('synthetic/induction_heads(vocabulary=8)', 6),
    ('synthetic/associative_recall(vocabulary=8)', 3),
    ('synthetic/vocab_majority(vocabulary=5)', 4),
    ('synthetic/s5', 120),
    ('synthetic/a5', 60),
    ('synthetic/z60', 60),
    ('retrieval/vt(chains=2, hops=1, names=8)', 4),
    ('retrieval/cwe', 32),
    ('retrieval/fwe', 32),
    ('retrieval/passkey', 10),
    ('arithmetic/addition', 10),
    ('algorithmic/sum', 10),
    ('crasp/majority', 26),
    ('crasp/parity', 2),
  ],
)
def test_chance(spec, classes):
  assert tasks.create(spec).chance == pytest.approx(1 / classes)


def test_defaults_are_the_settings_of_the_papers():
  assert tasks.create('synthetic/flip_flop').ignore == 0.8
  assert tasks.create('synthetic/selective_copying').data == 16
  task = tasks.create('retrieval/mqar')
  assert (task.pairs, task.power, task.random_fillers) == (4, 0.01, True)
  for name, tokens in (('single_3', 1), ('multikey_3', 32)):
    task = tasks.create(f'retrieval/niah_{name}')
    assert (task.digits, task.radix, task.key_tokens) == (32, 16, tokens)
  assert task.names == 16
