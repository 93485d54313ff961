"""The training state and the training step."""

from collections.abc import Callable
import functools
from typing import Any, TypeVar

from flax import struct
import jax
import jax.numpy as jnp
import optax

from lengen_jax.models import objective, stacking
from lengen_jax.models.config import ModelConfig
from lengen_jax.training import sharding
from lengen_jax.types import Params


class TrainState(struct.PyTreeNode):
  """What training carries from step to step; `step` counts completed steps."""

  step: jax.Array
  params: Params
  opt_state: Any


State = TypeVar('State', bound=TrainState)


def init(params: Params, tx: optax.GradientTransformation) -> TrainState:
  """Returns the initial state."""
  step = jnp.zeros((), jnp.int32)
  return TrainState(step=step, params=params, opt_state=tx.init(params))


def abstract(
  layout: sharding.Layout, config: ModelConfig, tx: optax.GradientTransformation
) -> TrainState:
  """Returns a TrainState of ShapeDtypeStructs with shardings.

  Parameters are sharded by their logical axes. The optimizer's arrays for a
  parameter have its sharding.

  Raises:
    errors.ConfigError: the mesh does not divide a parameter.
  """
  param_shapes, axes = stacking.abstract(config)
  layout.check(axes, param_shapes)
  shapes = jax.eval_shape(functools.partial(init, tx=tx), param_shapes)
  whole = layout.whole
  params = jax.tree.map(
    lambda names: layout.of(*names),
    axes,
    is_leaf=lambda node: isinstance(node, tuple),
  )
  opt_state = optax.tree.map_params(
    tx,
    lambda _, sharding: sharding,
    shapes.opt_state,
    params,
    transform_non_params=lambda _: whole,
  )
  shardings = shapes.replace(step=whole, params=params, opt_state=opt_state)
  return jax.tree.map(
    lambda leaf, sharding: leaf.update(sharding=sharding), shapes, shardings
  )


def train_step(
  state: State,
  batch: objective.Batch,
  *,
  token_losses: Callable[[Params, objective.Batch], jax.Array],
  project: Callable[[Params], Params],
  tx: optax.GradientTransformation,
  learning_rate: jax.Array | None = None,
  skip_nonfinite: bool = True,
) -> tuple[State, dict[str, jax.Array]]:
  """Returns the state after one optimizer step, and metrics; a pure function.

  Args:
    batch: a standard batch; see `data.windows.lm_batch`.
    token_losses: returns the loss of each token, `[B, L]`.
    project: returns parameters projected onto their domain.
    learning_rate: scalar factor of the optimizer's updates; None for 1.
    skip_nonfinite: whether a step whose loss or gradient is not finite leaves
      parameters and optimizer unchanged. The step is counted either way.

  Returns:
    (new state, {'loss': weighted mean of nats per token, 'grad_norm': before
    clipping, 'skipped': int32, 1 if loss or gradient is not finite, else 0}).
  """

  def loss_fn(params: Params) -> jax.Array:
    losses_BxL, weights_BxL = token_losses(params, batch), batch['weights']
    # The loss is 0 if all weights are 0.
    total = jnp.maximum(jnp.sum(weights_BxL), 1)
    return jnp.sum(losses_BxL * weights_BxL) / total

  loss, grads = jax.value_and_grad(loss_fn)(state.params)
  updates, opt_state = tx.update(grads, state.opt_state, state.params)
  if learning_rate is not None:
    updates = jax.tree.map(lambda update: learning_rate * update, updates)
  params = project(optax.apply_updates(state.params, updates))
  grad_norm = optax.tree.norm(grads)
  finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
  if skip_nonfinite:
    params, opt_state = jax.tree.map(
      lambda new, old: jnp.where(finite, new, old),
      (params, opt_state),
      (state.params, state.opt_state),
    )
  new = state.replace(step=state.step + 1, params=params, opt_state=opt_state)
  skipped = 1 - finite.astype(jnp.int32)
  return new, {'loss': loss, 'grad_norm': grad_norm, 'skipped': skipped}
