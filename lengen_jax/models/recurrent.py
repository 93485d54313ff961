"""Recurrent baselines: RNN, LSTM, Stack-RNN and Tape-RNN.

After Delétang et al. (2023), 'Neural Networks and the Chomsky Hierarchy',
arXiv:2207.02098, and its code, models/rnn.py, stack_rnn.py and tape_rnn.py of
google-deepmind/neural_networks_chomsky_hierarchy. The stack is that of Joulin
and Mikolov (2015), arXiv:1503.01007.

The network reads and writes cell 0 of a memory; actions shift the memory. The
new memory is the mean of the results of all actions, weighted by their
probabilities.

Shape suffixes: B batch, L length, V vocab_size, E width, O output_size, N
memories, M cells of a memory, C width of a cell, A actions.
"""

from collections.abc import Callable
import functools
from typing import Any, ClassVar

from flax import linen as nn
import jax
import jax.numpy as jnp

from lengen_jax import errors
from lengen_jax.models import linear
from lengen_jax.types import Array


def create(name: str, **sizes: Any) -> 'Recurrent':
  """Creates a recurrent model of token sequences.

  Args:
    name: 'rnn', 'lstm', 'stack_rnn' or 'tape_rnn'.
    **sizes: fields of Recurrent; `vocab_size` and `output_size` are required.

  Raises:
    errors.ConfigError: the name is unknown, or a memory has no cells.
  """
  if name not in NAMES:
    raise errors.ConfigError(errors.one_of('recurrent model', name, NAMES))
  memory_size = sizes.get('memory_size')
  if memory_size is not None and memory_size < 1:
    raise errors.ConfigError(
      f'memory_size={memory_size}: a stack or tape requires at least 1 cell; '
      'leave it out for as many cells as tokens'
    )
  return Recurrent(name, **sizes)


class Recurrent(nn.Module):
  """Recurrent cell on one-hot tokens, and a linear head.

  Parameters: `cell/...`, and `out/{kernel,bias}`, `[E, O]` and `[O]`. The head
  reads the rectified hidden state. 'rnn' is a rectified nn.SimpleCell, 'lstm'
  an nn.OptimizedLSTMCell.

  Attributes:
    kind: see `create`.
    vocab_size: V.
    output_size: O.
    width: E.
    memory_size: M, number of cells of a stack or tape. If None, M is L: a stack
      never overflows, and the size of a tape, a ring of M cells, depends on
      padding.
    num_memories: N, number of stacks or tapes.
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
    """Returns logits after each token, which depend on no later token.

    Args:
      inputs: int32 `[B, L]`. A token outside the vocabulary makes its logits
        and all later ones NaN.
      input_lengths: int32, `[B]` or scalar, length of the input without output
        tokens and padding. A tape model moves by this many cells when it jumps;
        None for L, for which a jump is the identity. Other models ignore it.

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
    return linear.Linear(
      (self.width, self.output_size),
      ('embed', 'vocab'),
      use_bias=True,
      name='out',
    )(nn.relu(h_BxLxE))


# The RNN of Haiku, as in the official code: rectified, no orthogonal kernel.
_rnn_cell = functools.partial(
  nn.SimpleCell,
  activation_fn=nn.relu,
  recurrent_kernel_init=nn.initializers.lecun_normal(),
)


class _MemoryCell(nn.Module):
  """RNN that reads cell 0 of its memories and then updates them.

  Parameters: `rnn`, an nn.SimpleCell on the token and the cells read; optional
  layers `hidden_{i}`; `values`, `[E or hidden units, N, C]`, for the values to
  write; `actions`, `[E, N, A]`, for the logits of the actions.

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
  outcomes: ClassVar[Callable[..., tuple]]

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
        linear.Linear(
          (y_BxF.shape[-1], size),
          ('embed' if i == 0 else None, 'mlp'),
          use_bias=True,
          name=f'hidden_{i}',
        )(y_BxF)
      )
    values_BxNxC = linear.Linear(
      (y_BxF.shape[-1], self.num_memories, self.cell_width),
      ('mlp' if self.hidden else 'embed', None, None),
      use_bias=True,
      name='values',
    )(y_BxF)
    logits_BxNxA = linear.Linear(
      (self.width, self.num_memories, self.num_actions),
      ('embed', None, None),
      use_bias=True,
      name='actions',
    )(h_BxE)
    memory_BxNxMxC = self.act(
      memory_BxNxMxC, nn.softmax(logits_BxNxA), values_BxNxC, jump_B
    )
    return (h_BxE, memory_BxNxMxC), h_BxE

  @classmethod
  def act(
    cls, memory: Any, actions_BxNxA: Any, values_BxNxC: Any, jump_B: Any
  ) -> jax.Array:
    """Returns the mean of `outcomes`, weighted by the actions' probabilities.

    A subclass defines `outcomes(memory, values, jump)`, one memory `[B, N, M,
    C]` per action. The backward pass recomputes them.
    """

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def mean(memory: Any, actions: Any, values: Any, jump: Any) -> Any:
      memories = cls.outcomes(memory, values[:, :, None], jump)
      return sum(
        actions[:, :, i, None, None] * memory
        for i, memory in enumerate(memories)
      )

    return mean(memory, actions_BxNxA, values_BxNxC, jump_B)


class _StackCell(_MemoryCell):
  """Stack-RNN with actions push, pop and keep. Cell 0 is the top.

  The probabilities of each stack's actions sum to 1. In the official code, the
  probabilities of all stacks sum to 1.
  """

  num_actions = 3

  @staticmethod
  def outcomes(memory: jax.Array, new: jax.Array, jump_B: jax.Array) -> Any:
    del jump_B
    pushed = jnp.concatenate([new, memory[:, :, :-1]], 2)
    popped = jnp.concatenate([memory[:, :, 1:], jnp.zeros_like(new)], 2)
    return pushed, popped, memory


class _TapeCell(_MemoryCell):
  """Tape-RNN with actions stay, left, right, jump left and jump right.

  Each action first writes to cell 0 and then rotates the tape, a ring: 'left'
  moves cell 1 to cell 0. A jump rotates by the length of the input.
  """

  hidden = (64, 64)
  num_actions = 5

  @staticmethod
  def outcomes(memory: jax.Array, new: jax.Array, jump_B: jax.Array) -> Any:
    tape = jnp.concatenate([new, memory[:, :, 1:]], 2)
    jump = jax.vmap(functools.partial(jnp.roll, axis=1))
    left, right = (jnp.roll(tape, shift, axis=2) for shift in (-1, 1))
    return tape, left, right, jump(tape, -jump_B), jump(tape, jump_B)


_PLAIN_CELLS: dict[str, Callable] = {
  'rnn': _rnn_cell,
  'lstm': nn.OptimizedLSTMCell,
}
MEMORY_CELLS = {'stack_rnn': _StackCell, 'tape_rnn': _TapeCell}
NAMES = (*_PLAIN_CELLS, *MEMORY_CELLS)
