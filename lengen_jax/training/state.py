"""The training state and the jitted step."""

from typing import Any

from flax import struct
import jax
import jax.numpy as jnp
import optax

from lengen_jax.models import objective
from lengen_jax.models import stacking


@struct.dataclass
class TrainState:
  """All that training carries from step to step.

  Attributes:
    step: int32, steps done.
    params: of the model, float32.
    opt_state: of the optimizer.
  """

  step: jax.Array
  params: Any
  opt_state: Any


def init(config, tx, rng):
  """The initial state.

  Args:
    config: a ModelConfig.
    tx: an optax gradient transformation.
    rng: a PRNG key.
  """
  return _begin(stacking.init(config, rng), tx)


def abstract(layout, config, tx):
  """Shapes, dtypes and shardings of the state: nothing is computed.

  Parameters lie on the mesh by their axes, and what the optimizer keeps of each
  lies as it does.

  Args:
    layout: a sharding.Layout.
    config: a ModelConfig.
    tx: an optax gradient transformation.

  Returns:
    A TrainState of ShapeDtypeStructs.

  Raises:
    errors.ConfigError: the mesh does not divide a parameter.
  """
  param_shapes, axes = stacking.abstract(config)
  layout.check(axes, param_shapes)
  shapes = jax.eval_shape(lambda params: _begin(params, tx), param_shapes)
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
    transform_non_params=lambda _: layout.whole,
  )
  shardings = TrainState(layout.whole, params, opt_state)
  return jax.tree.map(
    lambda leaf, sharding: leaf.update(sharding=sharding), shapes, shardings
  )


def _begin(params, tx):
  return TrainState(
    step=jnp.zeros((), jnp.int32), params=params, opt_state=tx.init(params)
  )


def train_step(state, batch, *, config, scheme, tx, seed, packed):
  """One step of the optimizer; a pure function.

  Args:
    state: a TrainState.
    batch: dict of `[B, L]` arrays; see `data.windows.lm_batch`.
    config: a ModelConfig.
    scheme: a PositionScheme.
    tx: an optax gradient transformation.
    seed: all randomness is a function of it and the step.
    packed: whether rows hold several segments or padding.

  Returns:
    (new state, {'loss': mean nats per token, 'grad_norm': before clipping,
    'skipped': 1 if either is not finite, else 0}). Such a step counts, but
    leaves parameters and optimizer as they were.
  """
  rng = jax.random.fold_in(jax.random.key(seed), state.step)
  batch = objective.masked(config, batch, rng)

  def loss_fn(params):
    losses_BxL = objective.token_losses(
      config, scheme, params, batch, rng=rng, train=True, packed=packed
    )
    weights_BxL = batch['weights']
    total = jnp.maximum(jnp.sum(weights_BxL), 1)
    return jnp.sum(losses_BxL * weights_BxL) / total

  loss, grads = jax.value_and_grad(loss_fn)(state.params)
  updates, opt_state = tx.update(grads, state.opt_state, state.params)
  params = optax.apply_updates(state.params, updates)
  params = stacking.project(params, config)
  grad_norm = optax.tree.norm(grads)
  finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
  params, opt_state = jax.tree.map(
    lambda new, old: jnp.where(finite, new, old),
    (params, opt_state),
    (state.params, state.opt_state),
  )
  new = TrainState(step=state.step + 1, params=params, opt_state=opt_state)
  metrics = {'loss': loss, 'grad_norm': grad_norm}
  return new, {**metrics, 'skipped': 1 - finite.astype(jnp.int32)}
