"""Standard batches of generated tasks.

A row is [input | one token per target | padding]. In place of targets, a model
reads separators; an autoregressive one reads one separator, then the targets
shifted by one.

Shapes: B batch, N input tokens, M targets, T = N + M tokens of a row.
"""

import jax
import jax.numpy as jnp

from lengen_jax.tasks.base import Length, Task


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
    targets. Padding has segment id 0, and positions that continue the row.
  """
  n, m = task.input_length(length), task.output_length(length)
  (batch, n_max), m_max = inputs.shape, targets.shape[1]
  shape = batch, n_max + m_max
  slot_1xT = jnp.arange(n_max + m_max, dtype=jnp.int32)[None]
  target_1xT = jnp.clip(slot_1xT - n, 0, m_max - 1)
  separator = jnp.full((batch, 1), task.separator, jnp.int32)
  read_BxM = jnp.broadcast_to(separator, targets.shape)
  if autoregressive:
    read_BxM = jnp.concatenate([separator, targets[:, :-1]], 1)
  tokens = jnp.where(
    slot_1xT < n,
    jnp.pad(inputs, ((0, 0), (0, m_max))),
    read_BxM[:, target_1xT[0]],
  )
  is_token = slot_1xT < n + m
  is_target = (slot_1xT >= n) & is_token
  return {
    'inputs': jnp.where(is_token, tokens, 0),
    'targets': jnp.where(is_target, targets[:, target_1xT[0]], 0),
    'weights': jnp.broadcast_to(is_target, shape).astype(jnp.float32),
    'segment_ids': jnp.broadcast_to(is_token, shape).astype(jnp.int32),
    'segment_positions': jnp.broadcast_to(slot_1xT, shape),
    'lengths': jnp.full(shape, n + m, jnp.int32),
  }


def at_targets(
  task: Task, outputs: jax.Array, targets: jax.Array, length: Length
) -> jax.Array:
  """Returns a model's outputs at the targets of its rows, `[B, M, ...]`.

  `outputs` are `[B, T, ...]`, for a batch of `make` with the same arguments.
  Outputs at padding are unspecified.
  """
  slots_M = task.input_length(length) + jnp.arange(targets.shape[1])
  return outputs[:, jnp.clip(slots_M, 0, outputs.shape[1] - 1)]


def count_tokens(task: Task, length: int) -> int:
  """Returns T, the number of tokens of a row, at a nominal length."""
  return int(task.input_length(length) + task.output_length(length))
