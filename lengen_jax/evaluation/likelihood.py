"""Log-probabilities of given continuations of contexts.

Shape suffixes: B rows, L tokens, E width, S scored tokens, V vocab_size.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax import errors
from lengen_jax.data import windows
from lengen_jax.evaluation import batching, weights
from lengen_jax.models import objective, transformer
from lengen_jax.models.config import ModelConfig
from lengen_jax.positions import PositionScheme
from lengen_jax.types import Array, Params

# Largest array of logits in memory on a device: 256 MiB in float32.
_MOST_LOGITS = 2**26


class Request(NamedTuple):
  """A context and the continuation to score, sequences of token ids.

  The first token of the context is the first input of the row.
  """

  context: Sequence[int]
  continuation: Sequence[int]


class Score(NamedTuple):
  """The score of a continuation.

  Attributes:
    log_prob: sum of the log-probabilities of its tokens, nats.
    greedy: whether each of its tokens is the most probable one.
  """

  log_prob: float
  greedy: bool


@dataclasses.dataclass(frozen=True)
class Scorer:
  """Scores continuations, many at a time.

  A row is a context and its continuation without the last token. The score of a
  request does not depend on the other requests, up to rounding. Random
  positions depend on the seed and the index of the request; schemes that draw
  once per batch do not use the index.

  Attributes:
    config: a ModelConfig of a decoder.
    scheme: the position scheme.
    batch_tokens: tokens per batch; batches of longer rows have fewer rows.
    seed: seed of positions drawn at test time.
    layout: a `training.sharding.Layout`, which splits the rows.

  Raises:
    errors.ConfigError: the model is not a decoder, or `batch_tokens` is below
      1.
  """

  config: ModelConfig
  scheme: PositionScheme
  _: dataclasses.KW_ONLY
  batch_tokens: int
  seed: int
  layout: Any

  def __post_init__(self) -> None:
    if self.config.architecture != 'decoder':
      raise errors.ConfigError(
        "scoring requires a model of architecture 'decoder', got "
        f'{self.config.architecture!r}'
      )
    if self.batch_tokens < 1:
      raise errors.ConfigError(
        f'batch_tokens must be at least 1, got {self.batch_tokens}'
      )

  def run(
    self,
    params: Params,
    requests: Sequence[Request],
    report: Callable[[int], None] = lambda done: None,
  ) -> list[Score]:
    """Returns the score of each request; that of an empty continuation is 0.

    Args:
      params: the model's parameters.
      requests: the requests.
      report: called after each batch with the number of finished requests.

    Raises:
      errors.ConfigError: a context is empty, or an id is not in the vocabulary.
      errors.LengthError: the longest row exceeds the range of an encoding or of
        the scheme.
      errors.CombinationError: scheme and encoding are incompatible.
      errors.MetricError: a score is not finite.
    """
    rows = [self._checked(i, request) for i, request in enumerate(requests)]
    scores = [Score(0.0, True)] * len(rows)
    some = [i for i, one in enumerate(requests) if len(one.continuation)]
    params = weights.place(params, self.config, self.layout.whole)
    # Rows with draws of their own are computed one at a time.
    scheme = self.scheme
    alone = scheme.draws(train=False) and not scheme.same_rows
    done, parts = len(rows) - len(some), self.layout.row_parts
    for width, numbers, filled in batching.by_width(
      self.config,
      [len(rows[i]) - 1 for i in some],
      batch_tokens=1 if alone else self.batch_tokens,
      new_tokens=0,
      parts=1 if alone else parts,
    ):
      filled = np.pad(filled, (0, -len(filled) % parts), mode='edge')
      chosen = [some[i] for i in numbers]
      batch = _batch(
        [rows[some[i]] for i in filled],
        [len(requests[some[i]].continuation) for i in filled],
        width,
      )
      rng = jax.random.key(self.seed)
      rng = jax.random.fold_in(rng, chosen[0]) if alone else rng
      with self.layout.scope():
        on_mesh = jax.device_put(batch, self.layout.batch)
        log_probs, greedy = self._score(params, on_mesh, rng)
      if not np.isfinite(log_probs).all():
        raise errors.MetricError(
          'a log-probability is not finite: the model has diverged, and its '
          'scores are meaningless'
        )
      found = zip(np.asarray(log_probs), np.asarray(greedy), strict=True)
      for number, (log_prob, is_greedy) in zip(chosen, found, strict=False):
        scores[number] = Score(float(log_prob), bool(is_greedy))
      done += len(chosen)
      report(done)
    return scores

  def _checked(self, number: int, request: Request) -> np.ndarray:
    """Returns the tokens of a request, its context first."""
    if not len(request.context):
      raise errors.ConfigError(
        f'the context of request {number} is empty; it requires a first input'
      )
    row = np.array([*request.context, *request.continuation], np.int32)
    if row.min() < 0 or row.max() >= self.config.vocab_size:
      raise errors.ConfigError(
        f'request {number} has tokens from {row.min()} to {row.max()}; the '
        f'model has vocab_size={self.config.vocab_size}'
      )
    return row

  @functools.partial(jax.jit, static_argnums=0)
  def _score(
    self, params: Params, batch: Mapping[str, Array], rng: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Returns the log-probability and whether it is greedy, of each row."""
    config = dataclasses.replace(self.config, scan_layers=False)
    x_BxLxE = objective.apply(
      config,
      self.scheme,
      params,
      batch,
      rngs={'positions': rng},
      train=False,
      packed=objective.sees_padding(config, self.scheme),
      scored=False,
      method='hidden',
    )
    x_BxSxE = jnp.take_along_axis(x_BxLxE, batch['scored'][..., None], axis=1)

    def score(x_BxE: Array, target_B: Array) -> tuple[jax.Array, jax.Array]:
      logits_Bx1xV: Any = transformer.create(config).apply(
        {'params': params}, x_BxE[:, None], method='logits'
      )
      logits_BxV = logits_Bx1xV[:, 0]
      logit_B = jnp.take_along_axis(logits_BxV, target_B[:, None], 1)[:, 0]
      return (
        logit_B - jax.nn.logsumexp(logits_BxV, -1),
        jnp.argmax(logits_BxV, -1) == target_B,
      )

    rows = len(x_BxSxE) // self.layout.row_parts
    log_probs_SxB, greedy_SxB = jax.lax.map(
      lambda each: score(*each),
      (x_BxSxE.swapaxes(0, 1), batch['scored_targets'].T),
      batch_size=max(1, _MOST_LOGITS // (rows * config.vocab_size)),
    )
    is_scored_SxB = batch['is_scored'].T
    return jax.lax.with_sharding_constraint(
      (
        jnp.sum(log_probs_SxB, axis=0, where=is_scored_SxB),
        jnp.all(greedy_SxB, axis=0, where=is_scored_SxB),
      ),
      self.layout.whole,
    )


def _batch(
  rows: Sequence[np.ndarray], scored: Sequence[int], width: int
) -> dict[str, np.ndarray]:
  """Returns a batch of rows whose last `scored` tokens are scored.

  A standard batch, and arrays `[B, S]` with the scored tokens of each row:
  'scored', indices of the inputs before them; 'scored_targets', their ids; and
  'is_scored', False at padding.
  """
  tokens = np.zeros((len(rows), width + 1), np.int32)
  for padded, row in zip(tokens, rows, strict=True):
    padded[: len(row)] = row
  sizes = np.array([len(row) for row in rows])
  batch = windows.lm_batch(tokens, sizes)
  # Padded to few different sizes, because each size is compiled separately.
  most = min(width, batching.padded_width(max(scored)))
  count = np.array(scored)[:, None]
  index = np.arange(most)[None]
  inputs = np.minimum(sizes[:, None] - 1 - count + index, width - 1)
  return batch | {
    'scored': inputs.astype(np.int32),
    'scored_targets': np.take_along_axis(batch['targets'], inputs, axis=1),
    'is_scored': index < count,
  }


def rolling(
  ids: Sequence[int], start: int, max_length: int
) -> Iterator[Request]:
  """Yields requests that score each token of a text once.

  The first token follows `start`. A row has at most `max_length` inputs; every
  row after the first has exactly as many, so that the last one repeats inputs
  of the row before it as context.

  Args:
    ids: the text.
    start: the first input.
    max_length: maximum number of inputs per row.
  """
  row = [start, *ids]
  for first in range(0, len(ids), max_length):
    end = min(first + max_length, len(ids))
    begin = max(0, end - max_length)
    yield Request(row[begin : first + 1], row[first + 1 : end + 1])
