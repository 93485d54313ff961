"""Loss as a function of length, on the same tokens at every length."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax import errors
from lengen_jax.data import windows as data_windows
from lengen_jax.evaluation import bias_error
from lengen_jax.models import objective
from lengen_jax.models.config import ModelConfig
from lengen_jax.positions import PositionScheme
from lengen_jax.types import Array, Params


@dataclasses.dataclass(frozen=True)
class LengthLoss:
  """The loss at one length.

  Attributes:
    length: tokens of context and prediction per window.
    loss: nats per token; None where the length is refused.
    tokens: tokens scored.
    position: first position of each bucket, for loss by position.
    position_loss: nats per token within each bucket.
    refused: why there is no loss.
    bias_error: largest error of a bias, nats; 0 where biases are exact, see
      `bias_error`.
  """

  length: int
  loss: float | None
  tokens: int
  position: tuple = ()
  position_loss: tuple = ()
  refused: str = ''
  bias_error: float = 0.0

  @property
  def perplexity(self) -> float | None:
    """exp(loss)."""
    # Beyond what a float holds there is no number to give.
    return math.exp(self.loss) if self.loss and self.loss < 700 else None

  def bits_per_byte(self, bytes_per_token: float | None) -> float | None:
    """Loss in bits over the bytes that the tokens stand for, if there are."""
    if self.loss is None or bytes_per_token is None:
      return None
    return self.loss / math.log(2) / bytes_per_token


class LengthCurve:
  """Evaluates a model at several lengths on the same tokens.

  Of an encoder, these are the tokens that are masked. Losses are summed over
  all of them, and over all hosts, before dividing.
  """

  def __init__(
    self,
    config: ModelConfig,
    scheme: PositionScheme,
    windows: Any,
    *,
    batch_tokens: int,
    seed: int,
    layout: Any,
  ) -> None:
    """Prepares the evaluation.

    Args:
      config: a ModelConfig.
      scheme: a PositionScheme.
      windows: `data.EvaluationWindows`, or pictures.
      batch_tokens: tokens per batch; the number of rows goes down as the
        length goes up.
      seed: of positions drawn at test time.
      layout: of rows on devices; see `training.sharding.Layout`.
    """
    self._config, self._scheme = config, scheme
    self._windows = windows
    self._batch_tokens = batch_tokens
    self._layout = layout
    # The same tokens are masked at every length.
    self._masked, self._tokens = {}, windows.tokens
    if config.architecture == 'encoder':
      batch = windows.batch(max(windows.lengths))
      batch = objective.masked(config, batch, jax.random.key(seed))
      self._masked = {
        name: np.asarray(batch[name]) for name in ('inputs', 'weights')
      }
      self._tokens = int(self._masked['weights'].sum(dtype=np.float64))

    self._rng = functools.partial(jax.random.fold_in, jax.random.key(seed))

  def run(
    self, params: Params, lengths: Sequence[int] | None = None
  ) -> Iterator[LengthLoss]:
    """Yields a LengthLoss per length; a refused length says why.

    Args:
      params: of the model.
      lengths: some of those of the windows; None for all.
    """
    for length in lengths or self._windows.lengths:
      try:
        yield self._at(params, length)
      except (errors.LengthError, errors.CombinationError) as error:
        yield LengthLoss(length, None, self._tokens, refused=str(error))

  def _at(self, params: Params, length: int) -> LengthLoss:
    batch = self._windows.batch(length)
    for name, values in self._masked.items():
      batch[name] = self._windows.recut(values, length)
    count_L = batch['weights'].sum(0, dtype=np.float64)
    # A multiple of the devices, and no more than there is to do.
    count = len(batch['inputs'])
    parts = self._layout.row_parts
    share = max(1, self._batch_tokens // length // self._layout.size)
    share = min(share, -(-count // parts))
    total_L = np.zeros_like(count_L)
    batches = data_windows.padded(batch, share * parts)
    for number, rows in enumerate(batches):
      with self._layout.scope():
        losses_L = position_losses(
          params,
          self._place(rows),
          self._rng(number),
          config=self._config,
          scheme=self._scheme,
          sharding=self._layout.whole,
        )
      total_L += np.asarray(losses_L, np.float64)
    if not np.isfinite(total_L).all():
      reason = 'the loss is not finite: the model has diverged'
      return LengthLoss(length, None, self._tokens, refused=reason)
    starts = position_buckets(len(total_L))
    counts = np.add.reduceat(count_L, starts)
    by_position = np.add.reduceat(total_L, starts) / np.maximum(counts, 1)
    return LengthLoss(
      length=length,
      loss=float(total_L.sum() / count_L.sum()),
      tokens=self._tokens,
      position=tuple(int(start) for start in starts),
      position_loss=tuple(map(float, by_position)),
      bias_error=max(
        bias_error.largest(self._config, self._scheme, params, length).values(),
        default=0.0,
      ),
    )

  def _place(self, rows: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
    """This host's part of a batch, on the mesh."""
    mine = data_windows.host_rows(len(rows['inputs']), self._layout.host)
    return self._layout.place(
      {name: values[mine.start : mine.stop] for name, values in rows.items()}
    )


@functools.partial(jax.jit, static_argnames=('config', 'scheme', 'sharding'))
def position_losses(
  params: Params,
  batch: Mapping[str, Array],
  rng: jax.Array,
  *,
  config: ModelConfig,
  scheme: PositionScheme,
  sharding: jax.sharding.Sharding,
) -> jax.Array:
  """The losses at each position, summed over rows, float32 `[L]`.

  Args:
    params: of the model.
    batch: see `data.windows.lm_batch`.
    rng: a PRNG key.
    config: a ModelConfig.
    scheme: a PositionScheme.
    sharding: of the result.
  """
  losses_BxL = objective.token_losses(
    config, scheme, params, batch, rng=rng, train=False, packed=False
  )
  losses_L = jnp.sum(losses_BxL * batch['weights'], axis=0)
  return jax.lax.with_sharding_constraint(losses_L, sharding)


def position_buckets(length: int) -> np.ndarray:
  """First position of each bucket: 0, then about four per doubling."""
  edges = np.unique(np.round(2 ** np.arange(0, math.log2(length), 0.25)))
  return np.concatenate([[0], edges[edges < length]]).astype(int)
