"""Loss as a function of length, on the same tokens at every length."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import functools
import math
from typing import Any

import jax
import numpy as np

from lengen_jax import errors
from lengen_jax.data import windows as data_windows
from lengen_jax.evaluation import bias_error
from lengen_jax.evaluation.metrics import lm
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
    position: first position of each bucket that has scored tokens.
    position_loss: nats per token within each bucket.
    window_loss: nats per token within each window of the longest length, with
      mean `loss`. If windows have unequal numbers n_w of scored tokens, N on
      average, it is loss + (total_w - loss n_w) / N. () for pictures.
    refused: why the loss is missing; '' if it is not.
    bias_error: maximum error of a bias, nats; 0 for exact biases, see
      `bias_error`.
  """

  length: int
  loss: float | None
  tokens: int
  position: tuple[int, ...] = ()
  position_loss: tuple[float, ...] = ()
  window_loss: tuple[float, ...] = ()
  refused: str = ''
  bias_error: float = 0.0

  @property
  def perplexity(self) -> float | None:
    """Returns exp(loss); None if the loss is missing or exp overflows."""
    return perplexity(self.loss)

  def bits_per_byte(self, bytes_per_token: float | None) -> float | None:
    """Returns the loss in bits per byte of text; None if data are not text."""
    if self.loss is None or bytes_per_token is None:
      return None
    return lm.bits_per_byte(self.loss, bytes_per_token)


def perplexity(loss: float | None) -> float | None:
  """Returns exp(loss); None if the loss is missing or exp overflows."""
  return math.exp(loss) if loss is not None and loss < 700 else None


def run(
  config: ModelConfig,
  scheme: PositionScheme,
  params: Params,
  windows: Any,
  *,
  batch_tokens: int,
  seed: int,
  layout: Any,
  lengths: Sequence[int] | None = None,
  after_batch: Callable[[], None] = lambda: None,
) -> Iterator[LengthLoss]:
  """Evaluates a model at several lengths on the same tokens.

  For an encoder, these are the masked tokens. Losses are summed over all tokens
  and hosts before division.

  Args:
    config: a ModelConfig.
    scheme: the position scheme; positions are those of test time.
    params: parameters of the model.
    windows: `data.EvaluationWindows`, or pictures.
    batch_tokens: maximum tokens per batch, over all devices. A batch has at
      least one row for each part that rows are split into.
    seed: seed of masked tokens and of positions drawn at test time.
    layout: a `training.sharding.Layout`.
    lengths: lengths of windows; None for all.
    after_batch: called after each batch; may raise to end the evaluation.

  Raises:
    errors.CorpusError: a token id is not in the model's vocabulary.
  """
  masked, tokens = {}, windows.tokens
  if config.architecture == 'encoder':
    batch = windows.batch(max(windows.lengths))
    batch = objective.masked(config, batch, jax.random.key(seed))
    masked = {name: np.asarray(batch[name]) for name in ('inputs', 'weights')}
    tokens = int(masked['weights'].sum(dtype=np.float64))
  for length in lengths or windows.lengths:
    batch = windows.batch(length)
    for name, values in masked.items():
      batch[name] = windows.recut(values, length)
    count_L = batch['weights'].sum(0, dtype=np.float64)
    total_L, row_losses = np.zeros_like(count_L), []
    try:
      for losses_BxL in batch_losses(
        config, scheme, params, batch, batch_tokens, seed, layout
      ):
        total_L += losses_BxL.sum(0)
        row_losses.append(losses_BxL.sum(1))
        after_batch()
      inexact = bias_error.largest(config, scheme, params, length)
    except (errors.LengthError, errors.CombinationError) as error:
      yield LengthLoss(length, None, tokens, refused=str(error))
      continue
    if not np.isfinite(total_L).all():
      reason = 'the loss is not finite: the model has diverged'
      yield LengthLoss(length, None, tokens, refused=reason)
      continue
    if not count_L.any():
      reason = 'no token is masked; raise eval.windows or eval.lengths'
      yield LengthLoss(length, None, tokens, refused=reason)
      continue
    # The last rows of the last batch are padding.
    losses_N = np.concatenate(row_losses)[: len(batch['inputs'])]
    loss = float(total_L.sum() / count_L.sum())
    excess_N = losses_N - loss * batch['weights'].sum(1, dtype=np.float64)
    excess_W = windows.window_sums(excess_N)
    per_window = count_L.sum() / max(1, len(excess_W))
    starts = position_buckets(len(total_L))
    sums, counts = (np.add.reduceat(x, starts) for x in (total_L, count_L))
    # An encoder has few scored tokens, and none in some buckets.
    scored = counts > 0
    yield LengthLoss(
      length=length,
      loss=loss,
      tokens=tokens,
      position=tuple(starts[scored].tolist()),
      position_loss=tuple((sums[scored] / counts[scored]).tolist()),
      window_loss=tuple((loss + excess_W / per_window).tolist()),
      bias_error=max(inexact.values(), default=0.0),
    )


def rows_of_batch(
  count: int, tokens: int, batch_tokens: int, layout: Any
) -> int:
  """Returns the rows of a batch, given `count` rows of `tokens` tokens.

  It is a multiple of the number of row shards.
  """
  parts = layout.row_parts
  share = max(1, batch_tokens // tokens // layout.size)
  return min(share, -(-count // parts)) * parts


def batch_losses(
  config: ModelConfig,
  scheme: PositionScheme,
  params: Params,
  batch: Mapping[str, np.ndarray],
  batch_tokens: int,
  seed: int,
  layout: Any,
  *,
  padded: bool = False,
) -> Iterator[np.ndarray]:
  """Yields the weighted losses of the rows of `batch`, float64 `[B, L]`.

  The batch is computed in parts of `batch_tokens` tokens over all devices. The
  last part is filled with rows of weight 0. `padded` says whether other rows
  have padding. For the other arguments see `run`.

  Raises:
    errors.CorpusError: a token id is not in the model's vocabulary.
  """
  objective.check_ids(config, batch)
  sides = ('inputs', 'encoder_inputs')
  tokens = sum(batch[name].shape[1] for name in sides if name in batch)
  rows = rows_of_batch(len(batch['weights']), tokens, batch_tokens, layout)
  for number, part in enumerate(data_windows.padded(batch, rows)):
    with layout.scope():
      losses_BxL = weighted_losses(
        params,
        jax.device_put(part, layout.batch),
        jax.random.fold_in(jax.random.key(seed), number),
        config=config,
        scheme=scheme,
        sharding=layout.whole,
        packed=padded and objective.sees_padding(config, scheme),
      )
    yield np.asarray(losses_BxL, np.float64)


@functools.partial(
  jax.jit, static_argnames=('config', 'scheme', 'sharding', 'packed')
)
def weighted_losses(
  params: Params,
  batch: Mapping[str, Array],
  rng: jax.Array,
  *,
  config: ModelConfig,
  scheme: PositionScheme,
  sharding: jax.sharding.Sharding,
  packed: bool = False,
) -> jax.Array:
  """Returns the weighted loss of each token, float32 `[B, L]`, to all hosts.

  For `packed` see `objective.token_losses`.
  """
  losses_BxL = objective.token_losses(
    config, scheme, params, batch, rng=rng, train=False, packed=packed
  )
  losses_BxL *= batch['weights']
  return jax.lax.with_sharding_constraint(losses_BxL, sharding)


def position_buckets(length: int) -> np.ndarray:
  """Returns the first position of each bucket: 0, then four per doubling."""
  edges = np.unique(np.round(2 ** np.arange(0, math.log2(length), 0.25)))
  return np.concatenate([[0], edges[edges < length]]).astype(int)
