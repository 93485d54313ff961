"""Standard batches of generated tasks.

A row is [input | one token per target | padding]. In place of targets, a model
reads separators; an autoregressive one reads one separator, then the targets
shifted by one. If a task tags its input, a row is [input | padding].

Shapes: B batch, N input tokens, M targets, T = N + M tokens of a row.
"""

import jax
import jax.numpy as jnp

from lengen_jax.tasks.base import Length, Task, UNSCORED


def make(
  task: Task,
  inputs: jax.Array,
  targets: jax.Array,
  length: Length,
  *,
  autoregressive: bool,
) -> dict[str, jax.Array]:
  """Returns the standard batch of some inputs and targets of a task.

  Args:
    task: the task that `inputs` and `targets` were sampled from.
    inputs: int32 `[B, N]`, padded at the end.
    targets: int32 `[B, M]`, padded at the end.
    length: nominal length of all rows; N and M may be those of a greater one.
    autoregressive: whether the model reads earlier targets.

  Returns:
    dict of `[B, T]` arrays; see `data.windows.lm_batch`. Weights are 1 at
    targets. Padding has segment id 0, and positions that continue the row. If
    tokens of the task have roles, 'roles' is int32 `[R, B, T]`, -1 for none.
  """
  tokens, ends_Bx1 = inputs, _input_lengths(task, inputs, length)
  if not task.tags:
    tokens, targets = _joined(task, inputs, targets, ends_Bx1, autoregressive)
    ends_Bx1 += task.output_length(length)
  slot_1xT = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
  is_token = jnp.broadcast_to(slot_1xT < ends_Bx1, tokens.shape)
  is_target = is_token & (targets != UNSCORED)
  tokens = jnp.where(is_token, tokens, 0)
  batch = {
    'inputs': tokens,
    'targets': jnp.where(is_target, targets, 0),
    'weights': is_target.astype(jnp.float32),
    'segment_ids': is_token.astype(jnp.int32),
    'segment_positions': jnp.broadcast_to(slot_1xT, tokens.shape),
    'lengths': jnp.broadcast_to(ends_Bx1, tokens.shape),
  }
  if task.num_roles:
    roles_BxRxT = jax.vmap(task.roles)(tokens)
    roles_BxRxT = jnp.where(is_token[:, None], roles_BxRxT, -1)
    batch['roles'] = jnp.moveaxis(roles_BxRxT, 1, 0)
  return batch


def _joined(
  task: Task,
  inputs: jax.Array,
  targets: jax.Array,
  n_Bx1: jax.Array,
  autoregressive: bool,
) -> tuple[jax.Array, jax.Array]:
  """Returns tokens and targets of rows `[B, N + M]`; inputs have n tokens."""
  m_max = targets.shape[1]
  shape = len(inputs), inputs.shape[1] + m_max
  slot_1xT = jnp.arange(shape[1], dtype=jnp.int32)[None]
  target_BxT = jnp.broadcast_to(jnp.clip(slot_1xT - n_Bx1, 0, m_max - 1), shape)
  separator = jnp.full((len(inputs), 1), task.separator, jnp.int32)
  read_BxM = jnp.broadcast_to(separator, targets.shape)
  if autoregressive:
    earlier = jnp.maximum(targets[:, :-1], 0)
    read_BxM = jnp.concatenate([separator, earlier], 1)
  tokens = jnp.where(
    slot_1xT < n_Bx1,
    jnp.pad(inputs, ((0, 0), (0, m_max))),
    jnp.take_along_axis(read_BxM, target_BxT, 1),
  )
  targets = jnp.take_along_axis(targets, target_BxT, 1)
  targets = jnp.where(slot_1xT < n_Bx1, UNSCORED, targets)
  return tokens, targets


def _input_lengths(task: Task, inputs: jax.Array, length: Length) -> jax.Array:
  """Returns the tokens of each input, int32 `[B, 1]`."""
  lengths = jnp.asarray(task.input_lengths(inputs, length), jnp.int32)
  return jnp.broadcast_to(lengths, (len(inputs),))[:, None]


def at_targets(
  task: Task,
  outputs: jax.Array,
  inputs: jax.Array,
  targets: jax.Array,
  length: Length,
) -> jax.Array:
  """Returns a model's outputs at the targets of its rows, `[B, M, ...]`.

  `outputs` are `[B, T, ...]`, for a batch of `make` with the same arguments.
  Outputs at padding are unspecified.
  """
  if task.tags:
    return outputs
  first_Bx1 = _input_lengths(task, inputs, length)
  slots_BxM = jnp.clip(
    first_Bx1 + jnp.arange(targets.shape[1])[None], 0, outputs.shape[1] - 1
  )
  slots_BxM = slots_BxM.reshape(*slots_BxM.shape, *[1] * (outputs.ndim - 2))
  return jnp.take_along_axis(outputs, slots_BxM, 1)


def count_tokens(task: Task, length: int) -> int:
  """Returns T, the number of tokens of a row, at a nominal length."""
  if task.tags:
    return int(task.input_length(length))
  return int(task.input_length(length) + task.output_length(length))
