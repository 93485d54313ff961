"""Compares the effect of redrawn positions with that of permuted tokens.

The outputs of a model that uses only the order of tokens do not change when
positions are redrawn; they change when tokens are permuted.
"""

from collections.abc import Mapping
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax import errors
from lengen_jax.models import objective
from lengen_jax.models.config import ModelConfig
from lengen_jax.positions import PositionScheme
from lengen_jax.types import Array, Params


class Change(NamedTuple):
  """Difference of two output distributions, mean over the compared tokens.

  Attributes:
    total_variation: half the sum of absolute differences of probabilities,
      between 0 and 1.
    kl: Kullback-Leibler divergence KL(p || q) = sum p ln(p / q), nats, of the
      original output p and the changed output q.
  """

  total_variation: float
  kl: float


class Invariance(NamedTuple):
  """Changes under redrawn positions and under permuted tokens.

  `compared` is the number of outputs compared in each case.
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
  all other tokens of its segment. Positions are drawn as in training.

  Source: Su (2023), positional robustness: outputs are nearly invariant under
  redrawn positions.

  Args:
    config: config of a decoder or an encoder.
    scheme: a scheme that is random in training.
    batch: see `data.windows.lm_batch`; for an encoder see `objective.masked`.
    seed: seed of positions and permutations.
    draws: number of pairs of draws, and of permutations, per row.
    packed: see `objective.token_losses`.

  Raises:
    errors.CombinationError: the scheme is not random, or the model is an
      encoder-decoder.
    errors.ConfigError: no token of the batch is scored.
  """
  if not scheme.random:
    raise errors.CombinationError(
      f'{scheme} is not random, so that its positions cannot be redrawn; use '
      'a random scheme such as randomized(max_position=2048)'
    )
  if config.architecture == 'encoder_decoder':
    raise errors.CombinationError(
      'order invariance is measured in one sequence; an encoder_decoder has two'
    )
  if draws < 1:
    raise errors.ConfigError(f'draws must be at least 1, got {draws}')
  scored_BxL = np.asarray(batch['weights']) > 0
  rows = np.flatnonzero(scored_BxL.any(1))
  if not rows.size:
    raise errors.ConfigError('no token of the batch has a weight above 0')
  last_B = scored_BxL.shape[1] - 1 - scored_BxL[:, ::-1].argmax(1)
  segment_ids = np.asarray(batch['segment_ids'])
  own_Bx1 = np.take_along_axis(segment_ids, last_B[:, None], axis=1)
  after_BxL = np.arange(segment_ids.shape[1]) - last_B[:, None]
  seen = after_BxL < 0 if config.architecture == 'decoder' else after_BxL != 0
  movable_BxL = (segment_ids == own_Bx1) & seen
  generator = np.random.default_rng(seed)
  changes = []
  for number in range(draws):
    inputs = np.array(batch['inputs'])
    for tokens, movable_L in zip(inputs, movable_BxL, strict=True):
      tokens[movable_L] = generator.permutation(tokens[movable_L])
    key = jax.random.fold_in(jax.random.key(seed), number)
    first, second = jax.random.split(key)
    given = (batch['inputs'], first), (batch['inputs'], second), (inputs, first)
    original, *others = (
      _log_probabilities(
        config, scheme, packed, params, {**batch, 'inputs': read}, last_B, rng
      )
      for read, rng in given
    )
    changes.append([change(original[rows], other[rows]) for other in others])
  redrawn, permuted = np.mean(changes, axis=0).tolist()
  return Invariance(Change(*redrawn), Change(*permuted), draws * len(rows))


def change(original_BxV: Array, changed_BxV: Array) -> Change:
  """Returns the Change between two arrays of log probabilities."""
  log_p, log_q = (
    np.asarray(each, np.float64) for each in (original_BxV, changed_BxV)
  )
  p, q = np.exp(log_p), np.exp(log_q)
  kl = (p * (log_p - log_q)).sum(-1)
  return Change(float(np.abs(p - q).sum(-1).mean() / 2), float(kl.mean()))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _log_probabilities(
  config: ModelConfig,
  scheme: PositionScheme,
  packed: bool,
  params: Params,
  batch: Mapping[str, Array],
  at_B: Array,
  rng: jax.Array,
) -> jax.Array:
  """Returns log probabilities at one token of each row, float32 `[B, V]`."""
  rngs = {'positions': rng}
  logits_BxLxV = objective.apply(
    config,
    scheme,
    params,
    batch,
    rngs=rngs,
    train=True,
    packed=packed,
    scored=False,
  )
  return jax.nn.log_softmax(logits_BxLxV[jnp.arange(len(at_B)), at_B])
