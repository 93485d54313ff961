"""Order or position: what redrawn positions change, and what other order does.

A model that goes by order alone gives the same output wherever positions are
drawn, and another one when its tokens change places.
"""

from collections.abc import Mapping
import dataclasses
import functools

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax import errors
from lengen_jax.hints import Array
from lengen_jax.hints import Params
from lengen_jax.models import embed
from lengen_jax.models import objective
from lengen_jax.models.config import ModelConfig
from lengen_jax.positions import PositionScheme


@dataclasses.dataclass(frozen=True)
class Change:
  """How far outputs move, mean over the tokens compared.

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
  """What two disturbances do to the same outputs.

  Attributes:
    redrawn: Change under other positions, drawn anew.
    permuted: Change under another order of the tokens.
    compared: outputs compared in each case.
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
  """Changes of outputs under redrawn positions and under permuted tokens.

  Compared is the output at the last token of each row that is scored. It stays
  where it is, and the tokens that it sees, in an encoder all of its segment,
  are put in another order.

  Source: Su (2023), positional robustness: outputs are nearly invariant under
  redrawn positions.

  Args:
    config: a ModelConfig of a decoder or an encoder.
    scheme: a PositionScheme that draws while training, mostly that of training.
    params: the model's parameters.
    batch: see `data.windows.lm_batch`; for an encoder see `objective.masked`.
    seed: of positions and permutations.
    draws: pairs of draws, and permutations, of every row.
    packed: see `objective.token_losses`.

  Returns:
    An Invariance.

  Raises:
    errors.CombinationError: the scheme does not draw, or the model is an
      encoder-decoder.
    errors.ConfigError: no token of the batch is scored.
  """
  if not scheme.random:
    raise errors.CombinationError(
      f'{scheme} draws no positions that could be drawn anew; give a scheme '
      'that does, as randomized(max_position=2048)'
    )
  if config.architecture == 'encoder_decoder':
    raise errors.CombinationError(
      'order is measured in one sequence; an encoder_decoder has two'
    )
  scored_BxL = np.asarray(batch['weights']) > 0
  rows = np.flatnonzero(scored_BxL.any(1))
  if not rows.size:
    raise errors.ConfigError('no token of the batch has a weight above 0')
  last_B = scored_BxL.shape[1] - 1 - scored_BxL[:, ::-1].argmax(1)
  movable_BxL = _movable(config, np.asarray(batch['segment_ids']), last_B)
  generator = np.random.default_rng(seed)
  key = jax.random.key(seed)
  changes = []
  for number in range(draws):
    inputs = np.array(batch['inputs'])
    for tokens, movable_L in zip(inputs, movable_BxL, strict=True):
      tokens[movable_L] = generator.permutation(tokens[movable_L])
    one, other = jax.random.split(jax.random.fold_in(key, number))
    original, redrawn, permuted = (
      np.asarray(
        _log_probabilities(
          params,
          given,
          last_B,
          rng,
          config=config,
          scheme=scheme,
          packed=packed,
        ),
        np.float64,
      )[rows]
      for given, rng in (
        (batch, one),
        (batch, other),
        ({**batch, 'inputs': inputs}, one),
      )
    )
    changes.append([_change(original, redrawn), _change(original, permuted)])
  redrawn, permuted = np.mean(changes, axis=0)
  return Invariance(
    Change(*map(float, redrawn)),
    Change(*map(float, permuted)),
    draws * len(rows),
  )


def _movable(config, segment_ids, last_B):
  """Which tokens change places, bool `[B, L]`."""
  own_Bx1 = np.take_along_axis(segment_ids, last_B[:, None], axis=1)
  index_1xL = np.arange(segment_ids.shape[1])[None]
  before = index_1xL < last_B[:, None]
  after = index_1xL > last_B[:, None]
  if config.architecture == 'decoder':
    after = False
  return (segment_ids == own_Bx1) & (before | after)


@functools.partial(jax.jit, static_argnames=('config', 'scheme', 'packed'))
def _log_probabilities(params, batch, at_B, rng, *, config, scheme, packed):
  """Of the classes at one token of each row, `[B, V]`; positions are drawn."""
  found = []

  def interceptor(next_function, args, kwargs, context):
    """Has the logits of what goes into the losses."""
    module, method = context.module, context.method_name
    if isinstance(module, (embed.Embed, embed.Head)) and method == 'losses':
      x_BxLxE, _ = args
      rows = jnp.arange(x_BxLxE.shape[0])
      found.append(module.logits(x_BxLxE[rows, at_B][:, None])[:, 0])
    return next_function(*args, **kwargs)

  with nn.intercept_methods(interceptor):
    objective.token_losses(
      # Positions are those of training; dropout is not wanted.
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


def _change(original, changed):
  """Total variation and divergence, mean over rows of log probabilities."""
  p, q = np.exp(original), np.exp(changed)
  kl = (p * (original - changed)).sum(-1)
  return np.abs(p - q).sum(-1).mean() / 2, kl.mean()
