"""Curves of loss over lengths by six constructions of their test windows.

Only 'everything' and 'recut' score the same tokens, equally weighted, at every
length; see docs/curves.md.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lengen_jax import errors
from lengen_jax.data import windows as data_windows
from lengen_jax.evaluation import length_curve
from lengen_jax.models.config import ModelConfig
from lengen_jax.positions import PositionScheme
from lengen_jax.types import Params

NAMES = ('own', 'first', 'whole', 'per window', 'everything', 'recut')


def document_losses(
  config: ModelConfig,
  scheme: PositionScheme,
  params: Params,
  documents: Sequence[np.ndarray],
  length: int,
  *,
  batch_tokens: int,
  seed: int,
  layout: Any,
) -> list[np.ndarray]:
  """Returns the losses of documents that are read in windows of a length.

  Args:
    documents: token ids `[n]` each; the first is not scored.
    batch_tokens: tokens per batch, over all devices.
    seed: seed of positions drawn at test time.
    layout: a `training.sharding.Layout`.

  Returns:
    nats of each scored token, float64 `[max(n - 1, 0)]` per document.

  Raises:
    errors.CorpusError: no document has two tokens.
  """
  pieces = [
    document[start : start + length + 1]
    for document in documents
    for start in range(0, len(document) - 1, length)
  ]
  if not pieces:
    raise errors.CorpusError(
      'all documents have fewer than two tokens; raise the number of documents'
    )
  sizes = np.array([len(piece) for piece in pieces])
  tokens = [np.pad(piece, (0, length + 1 - len(piece))) for piece in pieces]
  batch = data_windows.lm_batch(np.stack(tokens), sizes)
  found = length_curve.batch_losses(
    config, scheme, params, batch, batch_tokens, seed, layout, padded=True
  )
  losses_NxL = np.concatenate(list(found))[: len(pieces)]
  flat = losses_NxL[np.arange(length) < sizes[:, None] - 1]
  ends = np.cumsum([max(len(document) - 1, 0) for document in documents])
  return np.split(flat, ends[:-1])


def curves(
  losses: Mapping[int, Sequence[np.ndarray]],
) -> dict[str, dict[int, float]]:
  """Returns the loss by length of each construction in NAMES.

  Args:
    losses: losses of the tokens of each document, by the length of the windows
      in which it is read. Each length divides the longest.

  Raises:
    errors.CorpusError: no document has as many scored tokens as the longest
      window.
  """
  longest = max(losses)
  if not any(len(text) >= longest for text in losses[longest]):
    raise errors.CorpusError(
      f'no document has {longest} scored tokens; reduce the lengths, or raise '
      'the number of documents'
    )
  found: dict[str, dict[int, float]] = {name: {} for name in NAMES}
  for length, texts in losses.items():
    pieces = [
      text[start : start + length]
      for text in texts
      for start in range(0, len(text), length)
    ]
    chosen = {
      # Beginnings of the documents that are long enough for this length.
      'own': [text[:length] for text in texts if len(text) >= length],
      # Beginnings of the documents that are long enough for all lengths.
      'first': [text[:length] for text in texts if len(text) >= longest],
      'whole': [piece for piece in pieces if len(piece) == length],
      'everything': texts,
      # Whole windows of the longest length, cut into shorter ones.
      'recut': [text[: len(text) // longest * longest] for text in texts],
    }
    for name, parts in chosen.items():
      found[name][length] = float(np.concatenate(parts).mean())
    found['per window'][length] = float(np.mean([p.mean() for p in pieces]))
  return found
