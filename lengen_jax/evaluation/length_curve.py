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
    length: tokens per window.
    loss: nats per token; None if `refused`.
    tokens: number of scored tokens.
    position: first position of each bucket.
    position_loss: nats per token within each bucket.
    refused: the reason if there is no loss.
    bias_error: maximum error of a bias, nats; 0 for exact biases, see
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
    """Returns exp(loss)."""
    # Floats overflow beyond.
    return math.exp(self.loss) if self.loss and self.loss < 700 else None

  def bits_per_byte(self, bytes_per_token: float | None) -> float | None:
    """Returns the loss in bits per byte of text, None without text."""
    if self.loss is None or bytes_per_token is None:
      return None
    return self.loss / math.log(2) / bytes_per_token


class LengthCurve:
  """Evaluates a model at several lengths on the same tokens.

  In an encoder, these are the masked tokens. Losses are summed over all tokens
  and hosts before division.
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
      batch_tokens: tokens per batch.
      seed: seed of positions drawn at test time.
      layout: a `training.sharding.Layout`.
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
    """Yields a LengthLoss for each length, by default all of the windows."""
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
    # Rows are a multiple of the devices, and at most those of the batch.
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
    """Returns the part of a batch of this host, on the mesh."""
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
  """Returns the losses at each position, summed over rows, float32 `[L]`."""
  losses_BxL = objective.token_losses(
    config, scheme, params, batch, rng=rng, train=False, packed=False
  )
  losses_L = jnp.sum(losses_BxL * batch['weights'], axis=0)
  return jax.lax.with_sharding_constraint(losses_L, sharding)


def position_buckets(length: int) -> np.ndarray:
  """Returns the first position of each bucket: 0, then four per doubling."""
  edges = np.unique(np.round(2 ** np.arange(0, math.log2(length), 0.25)))
  return np.concatenate([[0], edges[edges < length]]).astype(int)
