"""The optimizer: clipping, Adam or AdamW, a schedule with warm-up."""

from typing import Any

import jax
import optax

from lengen_jax import errors
from lengen_jax.training import groups
from lengen_jax.training.config import OptimizerConfig
from lengen_jax.types import Params


def create(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
  """Returns the optimizer for a training of `steps` steps.

  Raises:
    errors.ConfigError: the warm-up is not shorter than the training.
  """
  rate, decay = schedule(config, steps), config.weight_decay
  update = optax.adam(rate, config.b1, config.b2)
  if config.name == 'adamw':
    update = optax.adamw(
      rate, config.b1, config.b2, weight_decay=decay, mask=decayed
    )
  parts = [update]
  if config.clip_norm:
    parts.insert(0, optax.clip_by_global_norm(config.clip_norm))
  if config.encoding_rate != 1:
    parts.append(optax.masked(optax.scale(config.encoding_rate), of_encodings))
  return optax.chain(*parts) if len(parts) > 1 else update


def schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
  """Returns the learning rate by step: linear warm-up, then the schedule.

  Without steps the rate is constant.

  Raises:
    errors.ConfigError: the warm-up is not shorter than the training.
  """
  peak, warmup = config.learning_rate, config.warmup_steps
  if not steps:
    return optax.constant_schedule(peak)
  if warmup >= steps:
    raise errors.ConfigError(
      f'optimizer.warmup_steps={warmup} leaves none of train.steps={steps}; '
      'set it to less'
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


def decayed(params: Params) -> Params:
  """Returns the weight decay mask: True for kernels and token embeddings.

  LoRA kernels decay, and with them the change of the kernel beside them.

  Norms, encodings and logit scales do not decay: zero has no special meaning
  for their parameters.
  """

  def decays(path: tuple[Any, ...], _: jax.Array) -> bool:
    kernels = ('kernel', 'table', *groups.LORA)
    return not _of_encoding(path) and path[-1].key.endswith(kernels)

  return jax.tree_util.tree_map_with_path(decays, params)


def of_encodings(params: Params) -> Params:
  """Returns a mask that is True for the parameters of encodings."""
  return jax.tree_util.tree_map_with_path(
    lambda path, _: _of_encoding(path), params
  )


def _of_encoding(path: tuple[Any, ...]) -> bool:
  return any(entry.key.startswith('encoding') for entry in path)
