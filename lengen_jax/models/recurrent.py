"""Recurrent baselines: RNN, LSTM, Stack-RNN and Tape-RNN.

After Delétang et al. (2023), 'Neural Networks and the Chomsky Hierarchy',
arXiv:2207.02098, and its code, models/rnn.py, stack_rnn.py and tape_rnn.py of
google-deepmind/neural_networks_chomsky_hierarchy. The stack is that of Joulin
and Mikolov (2015), arXiv:1503.01007.

A memory is moved under a fixed head: the network reads and writes cell 0. An
action is soft: the memory becomes the mean of what each action would make of
it, weighted by their probabilities.

Shape suffixes: B batch, L length, V vocab_size, E width, O output_size, N
memories, M cells of a memory, C width of a cell, A actions.
"""

from collections.abc import Callable
import functools
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from lengen_jax import errors
from lengen_jax.models import linear
from lengen_jax.types import Array


def create(
  name: str,
  *,
  vocab_size: int,
  output_size: int,
  width: int = 256,
  memory_size: int | None = None,
  num_memories: int = 1,
  cell_width: int = 8,
) -> 'Recurrent':
  """A recurrent model of token sequences.

  Args:
    name: 'rnn', 'lstm', 'stack_rnn' or 'tape_rnn'.
    vocab_size: V.
    output_size: O.
    width: E, hidden units.
    memory_size: M, see Recurrent.
    num_memories: N, stacks or tapes.
    cell_width: C.

  Returns:
    A Recurrent.

  Raises:
    errors.ConfigError: no such name, or a memory without cells.
  """
  if name not in NAMES:
    raise errors.ConfigError(errors.one_of('recurrent model', name, NAMES))
  if memory_size is not None and memory_size < 1:
    raise errors.ConfigError(
      f'memory_size={memory_size}: a stack or tape needs at least 1 cell; '
      'leave it out for as many as tokens'
    )
  return Recurrent(
    name,
    vocab_size,
    output_size,
    width,
    memory_size,
    num_memories,
    cell_width,
  )


class Recurrent(nn.Module):
  """Tokens, one-hot, through a recurrent cell to logits.

  Parameters: those of the cell under 'cell', and the head 'out', `[E, O]` and
  `[O]`, which reads the rectified hidden state. A cell 'rnn' or 'lstm' is of
  flax: nn.SimpleCell, rectified, or nn.OptimizedLSTMCell.

  Attributes:
    kind: see `create`.
    vocab_size: V.
    output_size: O.
    width: E.
    memory_size: M, cells of the stack or tape, if there is one; None for L. A
      stack then never overflows. A tape wraps around at its end, so that what
      comes round depends on M, and under None on padding.
    num_memories: N.
    cell_width: C.
  """

  kind: str
  vocab_size: int
  output_size: int
  width: int = 256
  memory_size: int | None = None
  num_memories: int = 1
  cell_width: int = 8

  @nn.compact
  def __call__(
    self, inputs: Array, input_lengths: int | Array | None = None
  ) -> jax.Array:
    """Logits after each token; they depend on no later one.

    Args:
      inputs: int32 `[B, L]`. A token outside the vocabulary makes its logits
        and all later ones NaN.
      input_lengths: int32, `[B]` or scalar, how far a tape jumps: the length
        of the input proper, without the tokens for output and padding after
        it. None for L, which on a tape of L cells is to stay. Models without
        a tape have no use for it.

    Returns:
      float32 `[B, L, O]`.
    """
    batch, length = inputs.shape
    x_BxLxV = (
      jnp.eye(self.vocab_size)
      .at[inputs]
      .get(mode='fill', fill_value=jnp.nan, wrap_negative_indices=False)
    )
    h_BxLxE: Any
    if self.kind in MEMORY_CELLS:
      cell = nn.scan(
        MEMORY_CELLS[self.kind],
        variable_broadcast='params',
        split_rngs={'params': False},
        in_axes=(1, nn.broadcast),
        out_axes=1,
      )(self.width, self.num_memories, self.cell_width, name='cell')
      cells = self.memory_size or length
      carry = (
        jnp.zeros((batch, self.width)),
        jnp.zeros((batch, self.num_memories, cells, self.cell_width)),
      )
      jump = length if input_lengths is None else input_lengths
      _, h_BxLxE = cell(carry, x_BxLxV, jnp.broadcast_to(jump, (batch,)))
    else:
      cell = _PLAIN_CELLS[self.kind](self.width, name='cell')
      h_BxLxE = nn.RNN(cell)(x_BxLxV)
    return linear.Einsum(
      'ble,eo->blo',
      (self.width, self.output_size),
      ('embed', 'vocab'),
      use_bias=True,
      name='out',
    )(nn.relu(h_BxLxE))


# The plain RNN of the code, which is Haiku's: rectified, no kernel orthogonal.
_rnn_cell = functools.partial(
  nn.SimpleCell,
  activation_fn=nn.relu,
  recurrent_kernel_init=nn.initializers.lecun_normal(),
)


class _MemoryCell(nn.Module):
  """A plain RNN that reads cell 0 of its memories, then acts on them.

  Parameters: 'rnn', that of an nn.SimpleCell of tokens and cells read; maybe
  layers 'hidden_0', ...; 'values', `[E or the last layer's, N, C]`, what there
  is to write; 'actions', `[E, N, A]`, logits of the actions.

  Attributes:
    width: E.
    num_memories: N.
    cell_width: C.
  """

  width: int
  num_memories: int
  cell_width: int

  hidden = ()  # type: tuple[int, ...]
  num_actions = None  # type: int | None

  @nn.compact
  def __call__(
    self, carry: Any, x_BxV: jax.Array, jump_B: jax.Array
  ) -> tuple[Any, jax.Array]:
    h_BxE, memory_BxNxMxC = carry
    read_BxNC = memory_BxNxMxC[:, :, 0].reshape(x_BxV.shape[0], -1)
    _, h_BxE = _rnn_cell(self.width, name='rnn')(
      h_BxE, jnp.concatenate([x_BxV, read_BxNC], -1)
    )
    y_BxF = h_BxE
    for i, size in enumerate(self.hidden):
      y_BxF = nn.relu(
        linear.Einsum(
          'be,ef->bf',
          (y_BxF.shape[-1], size),
          ('embed' if i == 0 else None, 'mlp'),
          use_bias=True,
          name=f'hidden_{i}',
        )(y_BxF)
      )
    values_BxNxC = linear.Einsum(
      'bf,fnc->bnc',
      (y_BxF.shape[-1], self.num_memories, self.cell_width),
      ('mlp' if self.hidden else 'embed', None, None),
      use_bias=True,
      name='values',
    )(y_BxF)
    logits_BxNxA = linear.Einsum(
      'be,ena->bna',
      (self.width, self.num_memories, self.num_actions),
      ('embed', None, None),
      use_bias=True,
      name='actions',
    )(h_BxE)
    memory_BxNxMxC = self.act(
      memory_BxNxMxC, nn.softmax(logits_BxNxA), values_BxNxC, jump_B
    )
    return (h_BxE, memory_BxNxMxC), h_BxE


# Of a step only the memory is kept for the backward pass, not what each action
# makes of it.
_checkpoint = functools.partial(jax.checkpoint, prevent_cse=False)


class _StackCell(_MemoryCell):
  """Stack-RNN; actions in order: push, pop, leave. Cell 0 is the top.

  Of several stacks each has probabilities of its own; in the code those of all
  stacks sum to one.
  """

  num_actions = 3

  @staticmethod
  @_checkpoint
  def act(
    memory_BxNxMxC: jax.Array,
    actions_BxNxA: jax.Array,
    values_BxNxC: jax.Array,
    jump_B: jax.Array,
  ) -> jax.Array:
    del jump_B
    values_BxNx1xC = values_BxNxC[:, :, None]
    pushed = jnp.concatenate([values_BxNx1xC, memory_BxNxMxC[:, :, :-1]], 2)
    popped = jnp.concatenate(
      [memory_BxNxMxC[:, :, 1:], jnp.zeros_like(values_BxNx1xC)], 2
    )
    return _mean(actions_BxNxA, [pushed, popped, memory_BxNxMxC])


class _TapeCell(_MemoryCell):
  """Tape-RNN; actions in order: stay, left, right, jump left, jump right.

  Each first writes to cell 0, then moves the tape: left by one brings cell 1
  to the head. A jump moves it by the length of the input. The tape is a ring.
  """

  hidden = (64, 64)
  num_actions = 5

  @staticmethod
  @_checkpoint
  def act(
    memory_BxNxMxC: jax.Array,
    actions_BxNxA: jax.Array,
    values_BxNxC: jax.Array,
    jump_B: jax.Array,
  ) -> jax.Array:
    tape = jnp.concatenate(
      [values_BxNxC[:, :, None], memory_BxNxMxC[:, :, 1:]], 2
    )
    leap = jax.vmap(functools.partial(jnp.roll, axis=1))
    outcomes = [
      tape,
      jnp.roll(tape, -1, axis=2),
      jnp.roll(tape, 1, axis=2),
      leap(tape, -jump_B),
      leap(tape, jump_B),
    ]
    return _mean(actions_BxNxA, outcomes)


def _mean(actions_BxNxA: jax.Array, outcomes: Any) -> jax.Array:
  """Mean of one memory `[B, N, M, C]` per action, by their probabilities."""
  return sum(
    actions_BxNxA[:, :, i, None, None] * outcome
    for i, outcome in enumerate(outcomes)
  )


_PLAIN_CELLS: dict[str, Callable] = {
  'rnn': _rnn_cell,
  'lstm': nn.OptimizedLSTMCell,
}
MEMORY_CELLS = {'stack_rnn': _StackCell, 'tape_rnn': _TapeCell}
NAMES = (*_PLAIN_CELLS, *MEMORY_CELLS)
