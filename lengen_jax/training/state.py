"""The training state and the training step."""

from collections.abc import Callable
import functools
from typing import Any, TypeVar

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np
import optax

from lengen_jax.models import objective, stacking
from lengen_jax.models.config import ModelConfig
from lengen_jax.training import groups, sharding
from lengen_jax.types import Params


class TrainState(struct.PyTreeNode):
  """What training carries from step to step.

  Attributes:
    step: number of completed steps.
    params: all parameters of the model.
    opt_state: state of the optimizer of the trained parameters.
  """

  step: jax.Array
  params: Params
  opt_state: Any

  def weights(self) -> 'TrainState':
    """Returns params and step, without what only further training needs."""
    return TrainState(step=self.step, params=self.params, opt_state=None)

  def trained(self) -> Params:
    """Returns the trained parameters, float32; see `groups`."""
    return groups.trained(self.params)

  def after_step(self: 'State', trained: Params, opt_state: Any) -> 'State':
    """Returns the state of the next step, with new trained parameters."""
    params = groups.merged(self.params, trained)
    return self.replace(step=self.step + 1, params=params, opt_state=opt_state)


class RoundedState(TrainState):
  """A TrainState whose parameters are rounded to bfloat16; see `groups`.

  Attributes:
    master: float32 values of the trained parameters that are rounded.
  """

  master: Params

  def trained(self) -> Params:
    return groups.merged(super().trained(), self.master)

  def after_step(self, trained: Params, opt_state: Any) -> 'RoundedState':
    new = super().after_step(groups.rounded(trained), opt_state)
    return new.replace(master=groups.low(trained))


State = TypeVar('State', bound=TrainState)


def init(
  params: Params, tx: optax.GradientTransformation, param_dtype: str = 'float32'
) -> TrainState:
  """Returns the initial state for float32 parameters.

  For `param_dtype` see `config.TrainConfig`.
  """
  trained = groups.trained(params)
  common: dict[str, Any] = {
    'step': jnp.zeros((), jnp.int32),
    'opt_state': tx.init(trained),
  }
  if param_dtype == 'float32':
    return TrainState(params=params, **common)
  return RoundedState(
    params=groups.rounded(params), master=groups.low(trained), **common
  )


def place(
  params: Params, abstract_state: State, tx: optax.GradientTransformation
) -> State:
  """Returns the initial state for float32 parameters on the host.

  Arrays are placed one by one, in the dtypes that they have in the state, so
  that the devices hold no more than the state.

  Args:
    params: numpy arrays, equal in all processes.
    abstract_state: see `abstract`.
    tx: the optimizer.
  """

  def put(like: jax.ShapeDtypeStruct, leaf: Any) -> jax.Array:
    return jax.device_put(np.asarray(leaf, like.dtype), like.sharding)

  values = {'step': np.int32(0), 'params': params}
  if isinstance(abstract_state, RoundedState):
    values['master'] = groups.low(groups.trained(params))
  placed = {
    name: jax.tree.map(put, getattr(abstract_state, name), value)
    for name, value in values.items()
  }
  state = abstract_state.replace(**placed, opt_state=None)
  opt_state = jax.jit(
    lambda state: tx.init(state.trained()),
    out_shardings=jax.tree.map(
      lambda leaf: leaf.sharding, abstract_state.opt_state
    ),
  )(state)
  return state.replace(opt_state=opt_state)


def abstract(
  layout: sharding.Layout,
  config: ModelConfig,
  tx: optax.GradientTransformation,
  param_dtype: str = 'float32',
) -> TrainState:
  """Returns a TrainState of ShapeDtypeStructs with shardings.

  Parameters are sharded by their logical axes. The optimizer's arrays for a
  parameter, and its float32 value, have its sharding.

  Raises:
    errors.ConfigError: the mesh does not divide a parameter.
  """
  param_shapes, axes = stacking.abstract(config)
  layout.check(axes, param_shapes)
  shapes = jax.eval_shape(
    functools.partial(init, tx=tx, param_dtype=param_dtype), param_shapes
  )
  whole = layout.whole
  params = jax.tree.map(
    lambda names: layout.of(*names),
    axes,
    is_leaf=lambda node: isinstance(node, tuple),
  )
  trained = groups.trained(params)
  opt_state = optax.tree.map_params(
    tx,
    lambda _, sharding: sharding,
    shapes.opt_state,
    trained,
    transform_non_params=lambda _: whole,
  )
  shardings = shapes.replace(step=whole, params=params, opt_state=opt_state)
  if isinstance(shardings, RoundedState):
    shardings = shardings.replace(master=groups.low(trained))
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

  The loss is differentiated with respect to the trained parameters alone.

  Args:
    state: the state before the step.
    batch: a standard batch; see `data.windows.lm_batch`.
    token_losses: returns the loss of each token, `[B, L]`.
    project: returns trained parameters projected onto their domain.
    tx: the optimizer.
    learning_rate: scalar factor of the optimizer's updates; None for 1.
    skip_nonfinite: whether a step whose loss or gradient is not finite leaves
      parameters and optimizer unchanged. The step is counted either way.

  Returns:
    (new state, {'loss': weighted mean of nats per token, 'grad_norm': before
    clipping, 'skipped': int32, 1 if loss or gradient is not finite, else 0}).
  """

  def loss_fn(part: Params) -> jax.Array:
    params = groups.merged(state.params, part)
    losses_BxL, weights_BxL = token_losses(params, batch), batch['weights']
    # The loss is 0 if all weights are 0.
    total = jnp.maximum(jnp.sum(weights_BxL), 1)
    return jnp.sum(losses_BxL * weights_BxL) / total

  loss, grads = jax.value_and_grad(loss_fn)(groups.trained(state.params))
  grads = jax.tree.map(lambda grad: grad.astype(jnp.float32), grads)
  old = state.trained()
  updates, opt_state = tx.update(grads, state.opt_state, old)
  if learning_rate is not None:
    updates = jax.tree.map(lambda update: learning_rate * update, updates)
  new = project(optax.apply_updates(old, updates))
  grad_norm = optax.tree.norm(grads)
  finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
  if skip_nonfinite:
    new, opt_state = jax.tree.map(
      lambda new, old: jnp.where(finite, new, old),
      (new, opt_state),
      (old, state.opt_state),
    )
  skipped = 1 - finite.astype(jnp.int32)
  metrics = {'loss': loss, 'grad_norm': grad_norm, 'skipped': skipped}
  return state.after_step(new, opt_state), metrics
