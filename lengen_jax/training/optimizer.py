"""The optimizer: clipping, Adam or AdamW, a schedule with warm-up."""

import jax
import optax

from lengen_jax import errors

_OPTIMIZERS = ('adam', 'adamw')
_SCHEDULES = ('constant', 'cosine', 'linear')


def create(config, steps):
  """Creates an optimizer.

  Args:
    config: name, learning_rate, schedule, warmup_steps, final_fraction (of
      the learning rate, at the last step), weight_decay, b1, b2, clip_norm
      (0 for none).
    steps: of the whole training.

  Returns:
    An optax gradient transformation.

  Raises:
    errors.ConfigError: unknown name or schedule, or warm-up over all steps.
  """
  if config.name not in _OPTIMIZERS:
    raise errors.ConfigError(
      errors.one_of('optimizer.name', config.name, _OPTIMIZERS)
    )
  rate = schedule(config, steps)
  if config.name == 'adam':
    update = optax.adam(rate, b1=config.b1, b2=config.b2)
  else:
    update = optax.adamw(
      rate,
      b1=config.b1,
      b2=config.b2,
      weight_decay=config.weight_decay,
      mask=decayed,
    )
  if not config.clip_norm:
    return update
  return optax.chain(optax.clip_by_global_norm(config.clip_norm), update)


def schedule(config, steps):
  """Learning rate by step: linear warm-up, then as `config.schedule` says."""
  peak, warmup = config.learning_rate, config.warmup_steps
  if config.schedule not in _SCHEDULES:
    raise errors.ConfigError(
      errors.one_of('optimizer.schedule', config.schedule, _SCHEDULES)
    )
  if not steps:
    return optax.constant_schedule(peak)
  if warmup >= steps:
    raise errors.ConfigError(
      f'optimizer.warmup_steps={warmup} leaves none of train.steps={steps}'
    )
  rest, final = steps - warmup, config.final_fraction
  after = {
    'constant': lambda: optax.constant_schedule(peak),
    'cosine': lambda: optax.cosine_decay_schedule(peak, rest, alpha=final),
    'linear': lambda: optax.linear_schedule(peak, final * peak, rest),
  }[config.schedule]()
  if not warmup:
    return after
  # The first step already moves: rate peak / warmup, not zero.
  rising = optax.linear_schedule(peak / warmup, peak, warmup - 1 or 1)
  return optax.join_schedules([rising, after], [warmup])


def decayed(params):
  """Which parameters decay: kernels and token embeddings.

  Norms do not, nor do parameters of encodings and logit scales, whose values
  mean something.
  """

  def decays(path, _):
    names = [entry.key for entry in path]
    spared = any(n.startswith(('encoding', 'attention_scale')) for n in names)
    return not spared and names[-1] in ('kernel', 'table')

  return jax.tree_util.tree_map_with_path(decays, params)
