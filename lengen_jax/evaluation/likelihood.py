"""Log-probabilities of given continuations of contexts.

Shape suffixes: B rows, L tokens, E width, S scored tokens, V vocab_size.
"""

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import functools
import math
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
    scored = collections.Counter[int]()
    params = weights.place(params, self.config, self.layout.whole)
    # Rows with draws of their own are computed one at a time.
    scheme = self.scheme
    alone = scheme.draws(train=False) and not scheme.same_rows
    # Requests with the same inputs share a row, as choices of one token do.
    # A row has at most as many scored tokens as inputs.
    shared: list[list[int]] = []
    last: dict[Any, int] = {}
    for i, (row, request) in enumerate(zip(rows, requests, strict=True)):
      if count := len(request.continuation):
        inputs = i if alone else row[:-1].tobytes()
        n = last.get(inputs)
        if n is None or scored[n] + count >= len(row):
          n = last[inputs] = len(shared)
          shared.append([])
        shared[n].append(i)
        scored[n] += count
    done, parts = len(rows) - sum(map(len, shared)), self.layout.row_parts
    for width, numbers, filled in batching.by_width(
      self.config,
      self.scheme,
      [len(rows[first]) - 1 for first, *_ in shared],
      batch_tokens=1 if alone else self.batch_tokens,
      new_tokens=0,
      parts=1 if alone else parts,
    ):
      filled = np.pad(filled, (0, -len(filled) % parts), mode='edge')
      batch = _batch(
        [[rows[i] for i in shared[n]] for n in filled],
        [[len(requests[i].continuation) for i in shared[n]] for n in filled],
        width,
      )
      rng = jax.random.key(self.seed)
      rng = jax.random.fold_in(rng, shared[numbers[0]][0]) if alone else rng
      with self.layout.scope():
        on_mesh = jax.device_put(batch, self.layout.batch)
        found = jax.device_get(self._score(params, on_mesh, rng))
      for n, log_probs_S, greedy_S in zip(numbers, *found, strict=False):
        end = 0
        for i in shared[n]:
          start, end = end, end + len(requests[i].continuation)
          log_prob = float(log_probs_S[start:end].sum())
          scores[i] = Score(log_prob, bool(greedy_S[start:end].all()))
          if not math.isfinite(log_prob):
            raise errors.MetricError(
              'a log-probability is not finite: the model has diverged, and '
              'its scores are meaningless'
            )
        done += len(shared[n])
      report(done)
    return scores

  def _checked(self, number: int, request: Request) -> np.ndarray:
    """Returns the tokens of a request, its context first."""
    if not len(request.context):
      raise errors.ConfigError(
        f'the context of request {number} is empty; it requires a first input'
      )
    row = np.array([*request.context, *request.continuation])
    if not np.issubdtype(row.dtype, np.integer):
      raise errors.ConfigError(
        f'request {number} has tokens of type {row.dtype}; they must be '
        'integers'
      )
    if row.min() < 0 or row.max() >= self.config.vocab_size:
      raise errors.ConfigError(
        f'request {number} has tokens from {row.min()} to {row.max()}; the '
        f'model has vocab_size={self.config.vocab_size}'
      )
    return row.astype(np.int32)

  @functools.partial(jax.jit, static_argnums=0)
  def _score(
    self, params: Params, batch: Mapping[str, Array], rng: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Returns log-probabilities of scored tokens, and which are greedy.

    Both are `[B, S]`.
    """
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
    return jax.lax.with_sharding_constraint(
      (log_probs_SxB.T, greedy_SxB.T), self.layout.whole
    )


def _batch(
  rows: Sequence[Sequence[np.ndarray]],
  scored: Sequence[Sequence[int]],
  width: int,
) -> dict[str, np.ndarray]:
  """Returns a batch whose rows are the inputs that some requests share.

  A standard batch, and arrays `[B, S]` with the scored tokens of each row:
  'scored', indices of the inputs before them, and 'scored_targets', their ids.

  Args:
    rows: tokens of the requests of each row, equal except for the last token.
    scored: how many of them, at their end, are scored.
    width: number of inputs, including padding.
  """
  tokens = np.zeros((len(rows), width + 1), np.int32)
  # Padded to few different sizes, because each size is compiled separately.
  most = min(width, batching.padded_width(max(map(sum, scored))))
  index = np.zeros((len(rows), most), np.int32)
  targets = np.zeros((len(rows), most), np.int32)
  sizes = np.array([len(first) for first, *_ in rows])
  for n, (sharing, counts) in enumerate(zip(rows, scored, strict=True)):
    tokens[n, : sizes[n]] = sharing[0]
    places = [np.arange(sizes[n] - count, sizes[n]) for count in counts]
    index[n, : sum(counts)] = np.concatenate(places) - 1
    targets[n, : sum(counts)] = np.concatenate(
      [row[place] for row, place in zip(sharing, places, strict=True)]
    )
  batch = windows.lm_batch(tokens, sizes)
  return batch | {'scored': index, 'scored_targets': targets}


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
