"""Base class of tasks: random inputs with exact targets.

All functions work under jit and vmap, so that a training step can generate its
own data.

Shapes: B batch, n nominal length, T_in and T_out tokens of input and target at
that length, W width of a padded row. Lengths padded to the same width share one
compilation.
"""

from collections.abc import Callable, Mapping
import dataclasses
import functools
import operator
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax import errors, specs
from lengen_jax.tasks import draws
from lengen_jax.types import Array

# A nominal length; arrays are traced.
Length = int | jax.Array
# Target where nothing is predicted.
UNSCORED = -1


@dataclasses.dataclass(frozen=True)
class Task:
  """Base of all tasks.

  A subclass defines the pure functions of one row `solve` and, unless tokens
  are uniform, `draw`, the attributes below, and the lengths of input and target
  if they are not the nominal length. Tokens beyond those lengths are set to 0.
  Targets are UNSCORED where nothing is predicted.
  """

  # Ranges of keys; see `specs.check_ranges`.
  ranges: ClassVar[Mapping[str, str | tuple]] = {}
  family = ''
  formula = ''
  source = ''
  # Numbers of token ids.
  vocab_in = 2
  vocab_out = 2
  # Expected accuracy of random guesses.
  chance = 0.5
  # Whether the target is the same for any order of the input.
  permutation_invariant = False
  # Last token of the target, followed by zeros; None if targets fill T_out.
  terminator = None  # type: int | None
  # T_out if it is the same for all lengths.
  target_length = None  # type: int | None
  # Whether there is a target at each token of the input. Otherwise targets
  # follow the input.
  tags = False
  # Whether all inputs of a nominal length have the same number of tokens.
  equal_lengths = True
  # Number of roles of a token; see `roles`.
  num_roles = 0
  # Nominal length of the example in errors; None for the second smallest.
  _example_length = None  # type: int | None

  def __post_init__(self) -> None:
    specs.check_ranges(self)

  def __str__(self) -> str:
    return f'{self.family}/{specs.describe(self)}'

  @property
  def min_length(self) -> int:
    """Minimum nominal length."""
    return 1

  @property
  def separator(self) -> int:
    """Token id between input and target; by default one that neither has."""
    return max(self.vocab_in, self.vocab_out)

  def input_length(self, length: Length) -> Length:
    """Returns T_in at a nominal length, an int or an int32 array."""
    return length

  def output_length(self, length: Length) -> Length:
    """Returns T_out at a nominal length, an int or an int32 array."""
    return length if self.target_length is None else self.target_length

  def draw(self, rng: jax.Array, n: Length, width: int) -> jax.Array:
    """Returns a random input, int32 `[width]`; by default uniform tokens.

    The first T_in(n) tokens must not depend on `width`.
    """
    return draws.symbols(rng, self.vocab_in, width)

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    """Returns the target of an input, int32 `[W] -> [T_out(W)]`.

    x is 0 from index T_in(n) on, where n is the nominal length.
    """
    raise NotImplementedError

  def input_lengths(self, inputs: jax.Array, length: Length) -> Any:
    """Returns the number of tokens of each input, int32 `[B]`, or one for all.

    `inputs` have shape `[B, T_in]`. If `equal_lengths` is False, inputs of a
    nominal length have different numbers of tokens, up to T_in.
    """
    return self.input_length(length)

  def roles(self, tokens: jax.Array) -> jax.Array:
    """Returns the roles of the tokens of one row, int32 `[T] -> [R, T]`.

    Tokens with equal roles get equal positions from the scheme `coupled`. A
    token has `num_roles` roles, which are -1 for none.
    """
    raise NotImplementedError

  def largest_role(self, length: int) -> int:
    """Returns a bound on the roles of rows up to a nominal length."""
    raise NotImplementedError

  def parse(self, text: str) -> list[int]:
    """Returns the token ids of a text; by default ids separated by spaces.

    Raises:
      errors.ConfigError: a part of the text is not a token of the task.
    """
    try:
      ids = [int(word) for word in text.split()]
    except (AttributeError, ValueError):
      ids = [-1]
    count = max(self.vocab_in, self.vocab_out)
    if any(not 0 <= i < count for i in ids):
      raise errors.ConfigError(
        f'{text!r} has a part that is not a token of {self}; its tokens are 0 '
        f'to {count - 1}, separated by spaces'
      )
    return ids

  def text(self, ids: Any) -> str:
    """Returns the text of token ids, without those that are UNSCORED."""
    return ' '.join(str(i) for i in np.asarray(ids).tolist() if i != UNSCORED)

  def answer(self, question: str) -> str:
    """Returns the answer to a question, both as text; see `parse`.

    Raises:
      errors.LengenError: the question is not one of the task.
    """
    targets = np.asarray(self.target(self._question(question)))
    target = np.where(self.mask(targets), targets, UNSCORED)[0]
    scored = target[target != UNSCORED]
    if (
      not scored.size or not 0 <= scored.min() <= scored.max() < self.vocab_out
    ):
      raise self._not_a_question(question)
    return self.text(target)

  def encode(self, question: str, answer: str) -> dict[str, np.ndarray]:
    """Returns the row of a question and an answer, which may be wrong.

    Returns:
      'tokens', int32 `[L]`; 'roles', int32 `[R, L]`; and 'weights', float32
      `[L]`, 1 at the tokens of the answer. If the task tags its input, the row
      is the question, and the weights are 1 at the tokens with a target.

    Raises:
      errors.LengenError: a text has parts that are not tokens of the task, or
        the answer to a task that tags its input has another number of tokens.
    """
    inputs = np.asarray(self._question(question))
    tokens, weights = inputs[0], self.target(inputs)[0] != UNSCORED
    answered = self.parse(answer)
    if self.tags and len(answered) != weights.sum():
      raise errors.ConfigError(
        f'{answer!r} has {len(answered)} tokens; the question has '
        f'{weights.sum()} tokens with a target'
      )
    if not self.tags:
      tokens = np.concatenate([tokens, [self.separator], answered])
      weights = np.arange(len(tokens)) > inputs.shape[1]
    tokens = np.asarray(tokens, np.int32)
    roles = np.zeros((0, len(tokens)), np.int32)
    if self.num_roles:
      roles = np.asarray(_roles(self, jnp.asarray(tokens)))
    return {
      'tokens': tokens,
      'roles': roles,
      'weights': np.asarray(weights, np.float32),
    }

  def _question(self, text: str) -> jax.Array:
    """Returns a question as inputs, int32 `[1, T_in]`."""
    ids = self.parse(text)
    is_input = max(ids, default=0) < self.vocab_in
    if not is_input or not self._is_question(np.asarray(ids, np.int32)):
      raise self._not_a_question(text)
    return jnp.asarray(ids, jnp.int32)[None]

  def _is_question(self, x: np.ndarray) -> bool:
    """Returns whether inputs, int32 `[T_in]`, are a question."""
    del x
    return True

  def _not_a_question(self, text: str) -> errors.ConfigError:
    """Returns the error, with an example of a question."""
    length = self._example_length or self.min_length + 1
    inputs, _ = self.sample(jax.random.key(0), 1, length)
    return errors.ConfigError(
      f'{text!r} is not a question of {self}; write one such as '
      f'{self.text(inputs[0])!r}'
    )

  def sample(
    self,
    rng: jax.Array,
    batch_size: int,
    length: Length,
    padded_length: int | None = None,
  ) -> tuple[jax.Array, jax.Array]:
    """Draws a batch, in which a row depends on the key, its index and length.

    Args:
      rng: a key.
      batch_size: B.
      length: nominal length n; traced only with `padded_length`.
      padded_length: nominal length that the arrays are padded to.

    Returns:
      (inputs int32 `[B, T_in]`, targets int32 `[B, T_out]`), padded with 0.

    Raises:
      errors.LengthError: a length or `batch_size` is out of range, or `length`
        is traced without `padded_length`.
      errors.ConfigError: `rng` is not a key.
    """
    traced = isinstance(length, jax.core.Tracer)
    if traced and padded_length is None:
      raise errors.LengthError(
        f'a traced length of {self} requires padded_length, an int'
      )
    padded_length = length if padded_length is None else padded_length
    padded = _index('padded_length', padded_length)
    if _index('batch_size', batch_size) < 1:
      raise errors.LengthError(
        f'batch_size must be at least 1, got {batch_size}'
      )
    if not hasattr(rng, 'dtype'):
      raise errors.ConfigError(
        f'rng must be a key such as jax.random.key(0), got {rng!r}'
      )
    length = length if traced else self.check_length(length)
    if not traced and length > padded:
      raise errors.LengthError(
        f'length={length} exceeds padded_length={padded}; set '
        f'padded_length={length} or more'
      )
    return _sample(self, rng, length, batch_size, self.input_length(padded))

  def target(self, inputs: Array, length: Length | None = None) -> jax.Array:
    """Returns the targets of inputs `[B, W]`, int32 `[B, T_out(W)]`.

    Padded inputs require their nominal length, an int or an int32 scalar.
    """
    inputs = jnp.asarray(inputs, jnp.int32)
    length = self._fit('inputs', inputs, length, self.input_length)
    return _target(self, inputs, length)

  def mask(self, targets: Array, length: Length | None = None) -> jax.Array:
    """Returns which tokens of targets `[B, T_out]` are scored, bool.

    These are the tokens that are not UNSCORED, up to and including the
    terminator, if the task has one. Padded targets require their nominal
    length.
    """
    targets = jnp.asarray(targets)
    end = targets.shape[-1]
    if length is not None:
      length = self._fit('targets', targets, length, self.output_length)
      end = self.output_length(length)
    return _mask(self, targets, end)

  def accuracy(
    self, predictions: Array, targets: Array, length: Length | None = None
  ) -> jax.Array:
    """Returns the accuracy over all scored tokens, float32 scalar.

    Predictions and targets are `[B, T_out]`; for `length` see `mask`.

    Raises:
      errors.LengthError: the length is invalid or does not fit the targets.
    """
    mask = self.mask(targets, length)
    return jnp.sum(mask & (predictions == targets)) / jnp.sum(mask)

  def exact_match(
    self, predictions: Array, targets: Array, length: Length | None = None
  ) -> jax.Array:
    """Returns whether all scored tokens of a row are correct, bool `[B]`.

    For arguments and errors see `accuracy`.
    """
    mask = self.mask(targets, length)
    return jnp.all((predictions == targets) | ~mask, axis=1)

  def baselines(
    self, rng: jax.Array, length: int, examples: int = 1024
  ) -> dict[str, float]:
    """Returns the accuracies of two models that ignore the input.

    'constant' predicts the most frequent class of another sample of `examples`
    rows, 'positionwise' its most frequent class at each position.
    """
    counts = []
    for key in jax.random.split(rng):
      _, targets = self.sample(key, examples, length)
      columns = jnp.broadcast_to(jnp.arange(targets.shape[1]), targets.shape)
      counted = jnp.zeros((targets.shape[1], self.vocab_out), jnp.int32)
      scored = self.mask(targets).astype(jnp.int32)
      counts.append(counted.at[columns, targets].add(scored))
    fitted_TxC, seen_TxC = counts
    total = float(seen_TxC.sum())
    constant = seen_TxC.sum(0)[fitted_TxC.sum(0).argmax()]
    best_Tx1 = fitted_TxC.argmax(1)[:, None]
    positionwise = jnp.take_along_axis(seen_TxC, best_Tx1, axis=1).sum()
    return {
      'constant': float(constant) / total,
      'positionwise': float(positionwise) / total,
    }

  def check_length(self, length: Length) -> int:
    """Returns `length` as an int; raises LengthError if it is too small."""
    length = _index('length', length)
    if length < self.min_length:
      raise errors.LengthError(
        f'length={length} is too short: {self} requires {self.min_length} or '
        'more'
      )
    return length

  def _fit(self, kind: str, rows: Array, length: Any, size: Callable) -> Length:
    """Returns the checked length of rows `[B, W]`, by default W."""
    if rows.ndim != 2:
      raise errors.LengthError(
        f'{kind} have shape {rows.shape}; they must be [B, tokens]'
      )
    width = rows.shape[1]
    if isinstance(length, jax.core.Tracer):
      return length
    if length is None:
      return self.check_length(width)
    length = self.check_length(length)
    if size(length) > width:
      raise errors.LengthError(
        f'length={length} requires {kind} of {size(length)} tokens, got {width}'
      )
    return length


@dataclasses.dataclass(frozen=True)
class OneVocabularyTask(Task):
  """Base of tasks whose inputs and targets have the same tokens.

  Attributes:
    vocabulary: number of token ids.
  """

  vocabulary: int = 16

  @property
  def vocab_in(self) -> int:
    return self.vocabulary

  vocab_out = vocab_in


@functools.partial(jax.jit, static_argnames=('task', 'batch_size', 'width'))
def _sample(
  task: Task, rng: jax.Array, n: Length, batch_size: int, width: int
) -> tuple[jax.Array, jax.Array]:
  n = jnp.asarray(n, jnp.int32)

  def row(index: jax.Array) -> jax.Array:
    x = task.draw(jax.random.fold_in(rng, index), n, width)
    return _cut(x, task.input_length(n))

  inputs = jax.vmap(row)(jnp.arange(batch_size))
  return inputs, _target(task, inputs, n)


@functools.partial(jax.jit, static_argnames='task')
def _target(task: Task, inputs: jax.Array, n: Length) -> jax.Array:
  n = jnp.asarray(n, jnp.int32)
  end = task.output_length(n)
  return jax.vmap(lambda x: _cut(task.solve(x, n), end))(inputs)


@functools.partial(jax.jit, static_argnames='task')
def _mask(task: Task, targets: jax.Array, end: Length) -> jax.Array:
  slots = jax.lax.broadcasted_iota(jnp.int32, targets.shape, 1)
  scored = (slots < end) & (targets != UNSCORED)
  if task.terminator is None:
    return scored
  ends = (targets == task.terminator).astype(jnp.int32)
  return scored & (jnp.cumsum(ends, axis=1) - ends == 0)


@functools.partial(jax.jit, static_argnames='task')
def _roles(task: Task, tokens: jax.Array) -> jax.Array:
  return task.roles(tokens)


def _cut(tokens: jax.Array, end: Length) -> jax.Array:
  """Returns `tokens` as int32, set to 0 from index `end` on."""
  inside = jnp.arange(tokens.shape[0]) < end
  return jnp.where(inside, tokens, 0).astype(jnp.int32)


def _index(name: str, value: Any) -> int:
  try:
    return operator.index(value)
  except TypeError:
    message = f'{name} must be an integer, got {value!r}'
    raise errors.LengthError(message) from None
