"""Compares the effect of redrawn positions with that of permuted tokens.

The outputs of a model that uses only the order of tokens do not change when
positions are redrawn; they change when tokens are permuted.
"""

from collections.abc import Callable, Mapping
import dataclasses
import functools
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax import errors
from lengen_jax.models import embed, objective
from lengen_jax.models.config import ModelConfig
from lengen_jax.positions import PositionScheme
from lengen_jax.types import Array, Params


@dataclasses.dataclass(frozen=True)
class Change:
  """Difference of two output distributions, mean over the compared tokens.

  Attributes:
    total_variation: half the sum of absolute differences of probabilities,
      between 0 and 1.
    kl: Kullback-Leibler divergence of the changed output from the original,
      nats.
  """

  total_variation: float
  kl: float


@dataclasses.dataclass(frozen=True)
class Invariance:
  """Changes of the same outputs under redrawn positions and permuted tokens.

  Attributes:
    redrawn: Change when positions are redrawn.
    permuted: Change when tokens are permuted.
    compared: number of outputs compared in each case.
  """

  redrawn: Change
  permuted: Change
  compared: int


def measure(
  config: ModelConfig,
  scheme: PositionScheme,
  params: Params,
  batch: Mapping[str, Array],
  *,
  seed: int,
  draws: int = 4,
  packed: bool = False,
) -> Invariance:
  """Returns changes of outputs under redrawn positions and permuted tokens.

  Outputs are compared at the last scored token of each row. That token keeps
  its place; the tokens that it attends to are permuted. In an encoder these are
  all other tokens of its segment.

  Source: Su (2023), positional robustness: outputs are nearly invariant under
  redrawn positions.

  Args:
    config: a ModelConfig of a decoder or an encoder.
    scheme: a PositionScheme that is random in training.
    params: the model's parameters.
    batch: see `data.windows.lm_batch`; for an encoder see `objective.masked`.
    seed: seed of positions and permutations.
    draws: number of pairs of draws, and of permutations, per row.
    packed: see `objective.token_losses`.

  Returns:
    An Invariance.

  Raises:
    errors.CombinationError: the scheme is not random, or the model is an
      encoder-decoder.
    errors.ConfigError: no token of the batch is scored.
  """
  _check(config, scheme)
  scored_BxL = np.asarray(batch['weights']) > 0
  rows = np.flatnonzero(scored_BxL.any(1))
  if not rows.size:
    raise errors.ConfigError('no token of the batch has a weight above 0')
  last_B = scored_BxL.shape[1] - 1 - scored_BxL[:, ::-1].argmax(1)
  movable_BxL = _movable(config, np.asarray(batch['segment_ids']), last_B)
  generator = np.random.default_rng(seed)
  key = jax.random.key(seed)
  outputs = functools.partial(
    _log_probabilities, config=config, scheme=scheme, packed=packed
  )
  changes = []
  for number in range(draws):
    inputs = np.array(batch['inputs'])
    for tokens, movable_L in zip(inputs, movable_BxL, strict=True):
      tokens[movable_L] = generator.permutation(tokens[movable_L])
    first, second = jax.random.split(jax.random.fold_in(key, number))
    original = outputs(params, batch, last_B, first)
    redrawn = outputs(params, batch, last_B, second)
    permuted = outputs(params, {**batch, 'inputs': inputs}, last_B, first)
    original, redrawn, permuted = (
      np.asarray(log_p_BxV, np.float64)[rows]
      for log_p_BxV in (original, redrawn, permuted)
    )
    changes.append([_change(original, redrawn), _change(original, permuted)])
  redrawn, permuted = np.mean(changes, axis=0)
  return Invariance(
    Change(*map(float, redrawn)),
    Change(*map(float, permuted)),
    draws * len(rows),
  )


def _check(config: ModelConfig, scheme: PositionScheme) -> None:
  if not scheme.random:
    raise errors.CombinationError(
      f'{scheme} is not random, so that its positions cannot be redrawn; use '
      'a random scheme such as randomized(max_position=2048)'
    )
  if config.architecture == 'encoder_decoder':
    raise errors.CombinationError(
      'order invariance is measured in one sequence; an encoder_decoder has two'
    )


def _movable(
  config: ModelConfig, segment_ids: np.ndarray, last_B: np.ndarray
) -> np.ndarray:
  """Returns which tokens are permuted, bool `[B, L]`."""
  own_Bx1 = np.take_along_axis(segment_ids, last_B[:, None], axis=1)
  index_1xL = np.arange(segment_ids.shape[1])[None]
  before = index_1xL < last_B[:, None]
  after = index_1xL > last_B[:, None]
  if config.architecture == 'decoder':
    after = np.zeros_like(before)
  return (segment_ids == own_Bx1) & (before | after)


@functools.partial(jax.jit, static_argnames=('config', 'scheme', 'packed'))
def _log_probabilities(
  params: Params,
  batch: Mapping[str, Array],
  at_B: Array,
  rng: jax.Array,
  *,
  config: ModelConfig,
  scheme: PositionScheme,
  packed: bool,
) -> Array:
  """Returns log probabilities at one token of each row, float32 `[B, V]`."""
  found = []

  def interceptor(
    next_function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    context: nn.module.InterceptorContext,
  ) -> Any:
    """Computes the logits from the inputs of the loss."""
    module, method = context.module, context.method_name
    if isinstance(module, (embed.Embed, embed.Head)) and method == 'losses':
      x_BxLxE, _ = args
      rows = jnp.arange(x_BxLxE.shape[0])
      found.append(module.logits(x_BxLxE[rows, at_B][:, None])[:, 0])
    return next_function(*args, **kwargs)

  with nn.intercept_methods(interceptor):
    objective.token_losses(
      # Positions are drawn as in training, without dropout.
      dataclasses.replace(config, dropout_rate=0.0),
      scheme,
      params,
      batch,
      rng=rng,
      train=True,
      packed=packed,
    )
  (logits_BxV,) = found
  return jax.nn.log_softmax(logits_BxV)


def _change(
  original: np.ndarray, changed: np.ndarray
) -> tuple[np.floating, np.floating]:
  """Returns total variation and divergence, mean over rows."""
  p, q = np.exp(original), np.exp(changed)
  kl = (p * (original - changed)).sum(-1)
  return np.abs(p - q).sum(-1).mean() / 2, kl.mean()
