"""The contract of a task: random inputs, and the one right answer to each.

A task is made of two pure functions of one row, `draw` and `answer`; batches,
padding, masks and baselines are here. Everything runs on the device, under jit
and vmap, so that a training step can make its own data.

Shapes: B batch, n nominal length, T_in and T_out tokens of input and target at
that length, W the width of a padded row. A bucket of rows padded to one width
compiles once, whatever the lengths in it.
"""

from collections.abc import Callable
import dataclasses
import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp

from lengen_jax import errors, specs
from lengen_jax.types import Array

# A nominal length; traced where it is an array.
Length = int | jax.Array


@dataclasses.dataclass(frozen=True)
class Task:
  """Base of all tasks.

  A subclass gives `draw` and `answer`, the facts below, and the lengths of
  input and target where they are not the nominal length. Neither function
  need care for what it leaves beyond those lengths: that is zeroed here.

  `tasks.batches` makes standard batches of inputs and targets.
  """

  # Facts that trainers, reports and `lengen list` read.
  family = ''
  level = ''
  formula = ''
  source = ''
  # Tokens are below these.
  vocab_in = 2
  vocab_out = 2
  # Expected accuracy of guessing.
  chance = 0.5
  # The order of the input's tokens does not matter.
  permutation_invariant = False
  # The target ends with this token, and zeros after it; None if it is full.
  terminator = None  # type: int | None

  def __str__(self) -> str:
    return f'{self.family}/{specs.describe(self)}'

  @property
  def min_length(self) -> int:
    """The least nominal length."""
    return 1

  @property
  def separator(self) -> int:
    """A token beside the task's own: between input and answer, say."""
    return max(self.vocab_in, self.vocab_out)

  def input_length(self, length: Length) -> Length:
    """T_in at a nominal length, an int or an int32 array."""
    return length

  def output_length(self, length: Length) -> Length:
    """T_out at a nominal length, an int or an int32 array."""
    return length

  def draw(self, rng: jax.Array, n: Length, width: int) -> jax.Array:
    """One random input, int32 `[width]`.

    The first T_in(n) tokens must not depend on `width`.

    Args:
      rng: a key.
      n: int32 scalar, the nominal length.
      width: T_in of the longest length, an int.
    """
    raise NotImplementedError

  def answer(self, x: jax.Array, n: Length) -> jax.Array:
    """The target of one input.

    Args:
      x: int32 `[W]`, zeros from T_in(n) on.
      n: int32 scalar, the nominal length.

    Returns:
      int32 `[T_out(W)]`.
    """
    raise NotImplementedError

  def sample(
    self,
    rng: jax.Array,
    batch_size: int,
    length: Length,
    padded_length: int | None = None,
  ) -> tuple[jax.Array, jax.Array]:
    """Draws a batch.

    A row depends on the key, its index and the length, on nothing else: neither
    padding nor a larger batch changes it.

    Args:
      rng: a key.
      batch_size: B.
      length: the nominal length n; with `padded_length` it may be traced, and
        then is not checked.
      padded_length: pads the arrays to what this length needs; an int.

    Returns:
      (inputs int32 `[B, T_in]`, targets int32 `[B, T_out]`), both zero from the
      end of the sequence on.

    Raises:
      errors.LengthError: the length is too small or more than `padded_length`,
        or it is traced and there is none; or there is no row.
      errors.ConfigError: `rng` is no key.
    """
    if padded_length is None:
      if isinstance(length, jax.core.Tracer):
        raise errors.LengthError(
          f'{self} cannot size its arrays by a traced length; give '
          'padded_length, an int'
        )
      padded_length = length
    padded = _index('padded_length', padded_length)
    if _index('batch_size', batch_size) < 1:
      raise errors.LengthError(
        f'batch_size must be at least 1, got {batch_size}'
      )
    if not hasattr(rng, 'dtype'):
      raise errors.ConfigError(
        f'rng must be a key, got {rng!r}; jax.random.key({rng!r}) makes one'
      )
    if not isinstance(length, jax.core.Tracer):
      length = self.check_length(length)
      if length > padded:
        raise errors.LengthError(
          f'length={length} is more than padded_length={padded}; set '
          f'padded_length={length} or more'
        )
    return _sample(self, rng, length, batch_size, self.input_length(padded))

  def target(self, inputs: Array, length: Length | None = None) -> jax.Array:
    """The answers to a batch of inputs.

    Args:
      inputs: int32 `[B, W]`.
      length: the nominal length of padded inputs, an int or an int32 scalar.

    Returns:
      int32 `[B, T_out(W)]`, zero from T_out(length) on.
    """
    inputs = jnp.asarray(inputs, jnp.int32)
    length = self._fit('inputs', inputs, length, self.input_length)
    return _target(self, inputs, length)

  def mask(self, targets: Array, length: Length | None = None) -> jax.Array:
    """Which positions of the targets count, bool `[B, T_out]`.

    Those up to the terminator and with it; all of them where there is none.

    Args:
      targets: int32 `[B, T_out]`.
      length: the nominal length of padded targets, an int or an int32 scalar.
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
    """Share of the positions that count and are right, float32 scalar.

    The average is over tokens, as in the papers on the Chomsky hierarchy.
    """
    mask = self.mask(targets, length)
    return jnp.sum(mask & (predictions == targets)) / jnp.sum(mask)

  def exact_match(
    self, predictions: Array, targets: Array, length: Length | None = None
  ) -> jax.Array:
    """Whether all positions that count are right, bool `[B]`."""
    mask = self.mask(targets, length)
    return jnp.all((predictions == targets) | ~mask, axis=1)

  def baselines(
    self, rng: jax.Array, length: int, examples: int = 1024
  ) -> dict[str, float]:
    """Accuracy of two models that do not look at the input.

    They are fitted to one sample and measured on another, so that a small
    sample does not flatter them.

    Args:
      rng: a key.
      length: the nominal length, an int.
      examples: size of each sample.

    Returns:
      Dict of floats: 'constant', always the most frequent class, and
      'positionwise', the most frequent class at each position.
    """
    counts = []
    for key in jax.random.split(rng):
      _, targets = self.sample(key, examples, length)
      position = jnp.broadcast_to(
        jnp.arange(targets.shape[1])[None], targets.shape
      )
      count_TxC = jnp.zeros((targets.shape[1], self.vocab_out), jnp.int32)
      counts.append(
        count_TxC.at[position, targets].add(
          self.mask(targets).astype(jnp.int32)
        )
      )
    fitted, seen = counts
    best = fitted.argmax(axis=1)[:, None]
    return {
      'constant': float(seen.sum(axis=0)[fitted.sum(axis=0).argmax()])
      / float(seen.sum()),
      'positionwise': float(jnp.take_along_axis(seen, best, axis=1).sum())
      / float(seen.sum()),
    }

  def check_length(self, length: Length) -> int:
    """`length` as an int; raises if the task has no input that short."""
    length = _index('length', length)
    if length < self.min_length:
      raise errors.LengthError(
        f'length={length} is too short: {self} starts at length '
        f'{self.min_length}'
      )
    return length

  def _fit(
    self,
    kind: str,
    rows: jax.Array,
    length: Length | None,
    size: Callable[[Length], Length],
  ) -> Length:
    """The length of rows `[B, W]`: as given if it fits them, W if it is not."""
    if rows.ndim != 2:
      raise errors.LengthError(
        f'{kind} have shape {rows.shape}; they must be [B, tokens]'
      )
    width = rows.shape[1]
    if length is None:
      return self.check_length(width)
    if isinstance(length, jax.core.Tracer):
      return length
    length = self.check_length(length)
    if size(length) > width:
      raise errors.LengthError(
        f'length={length} needs {kind} of {size(length)} tokens, got {width}; '
        'pad them or give the length they have'
      )
    return length


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
  return jax.vmap(lambda x: _cut(task.answer(x, n), end))(inputs)


@functools.partial(jax.jit, static_argnames='task')
def _mask(task: Task, targets: jax.Array, end: Length) -> jax.Array:
  counts = jnp.broadcast_to(
    (jnp.arange(targets.shape[1]) < end)[None], targets.shape
  )
  if task.terminator is None:
    return counts
  ends = (targets == task.terminator).astype(jnp.int32)
  return counts & (jnp.cumsum(ends, axis=1) - ends == 0)


def _cut(tokens: jax.Array, end: Length) -> jax.Array:
  """`tokens` as int32, and 0 from index `end` on."""
  inside = jnp.arange(tokens.shape[0]) < end
  return jnp.where(inside, tokens, 0).astype(jnp.int32)


def _index(name: str, value: Any) -> int:
  try:
    return operator.index(value)
  except TypeError:
    raise errors.LengthError(
      f'{name} is {value!r}; it must be a whole number'
    ) from None
