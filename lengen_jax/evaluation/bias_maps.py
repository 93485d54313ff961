"""A trained model's additive biases, by layer and head.

A curve is the bias of one query as a function of the key's position, in nats,
the unit of logits.

Source: FIRE, Li et al. (2023), arXiv:2310.04418, figures 4 and 8, and section
4.1 on learned thresholds.

Shapes: N layers, H heads, K keys.
"""

import collections
from collections.abc import Sequence
import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from lengen_jax import encodings, errors
from lengen_jax.encodings import fire
from lengen_jax.evaluation import layer_biases
from lengen_jax.models.config import ModelConfig
from lengen_jax.types import Params

LOCAL, ANTI_LOCAL, MIXED = 'local', 'anti-local', 'flat/mixed'
# Least absolute rank correlation of a bias that falls or rises with distance.
_CORRELATED = 0.5
# Range of a bias, in nats, below which it is flat: it changes no weight by 10%.
_FLAT = 0.1
# Distances of a summary in each direction, besides 0.
_POINTS = 32


@dataclasses.dataclass(frozen=True)
class Curves:
  """Biases of a model by the key's position.

  Attributes:
    layers: names of layers with a bias, such as 'layer_0'.
    skipped: names of layers without one.
    keys: positions of the keys, int `[K]`, by the query's position: those up to
      the query, and in an encoder as many after it.
    biases: float32 `[N, H, K]` by the query's position, in nats. The mean of
      each curve is subtracted, which changes no attention weight.
  """

  layers: tuple
  skipped: tuple
  keys: dict
  biases: dict


@dataclasses.dataclass(frozen=True)
class Kinds:
  """The kind of each head's bias.

  Attributes:
    kind: `[N, H]`: LOCAL if the bias falls with distance, ANTI_LOCAL if it
      rises, MIXED if it does neither or is flat.
    correlation: float64 `[N, H]`, rank correlation of bias and distance.
    span: float64 `[N, H]`, highest minus lowest bias, nats.
  """

  kind: np.ndarray
  correlation: np.ndarray
  span: np.ndarray

  @property
  def counts(self) -> dict[str, int]:
    """Number of heads of each kind."""
    found = collections.Counter(self.kind.flat)
    return {kind: found[kind] for kind in (LOCAL, ANTI_LOCAL, MIXED)}


def curves(
  config: ModelConfig, params: Params, queries: Sequence[int] = (128, 8192)
) -> Curves:
  """Biases of every layer and head.

  Args:
    config: a ModelConfig.
    params: the model's parameters.
    queries: positions of queries.

  Returns:
    A Curves.

  Raises:
    errors.ConfigError: no layer has an additive bias.
  """
  found = _biases(config, params)
  biases = {name: bias for name, bias in found.items() if bias is not None}
  if not biases:
    raise errors.ConfigError(
      f'no layer of {", ".join(config.encoding)} has an additive bias'
    )
  keys, centred = {}, {}
  for query in queries:
    both = any(bias.bidirectional for bias in biases.values())
    keys[query] = np.arange((2 if both else 1) * query + 1)
    biases_NxHxK = np.stack(
      [
        bias(jnp.array([query]), jnp.asarray(keys[query]))[:, 0]
        for bias in biases.values()
      ]
    )
    centred[query] = biases_NxHxK - biases_NxHxK.mean(-1, keepdims=True)
  return Curves(
    tuple(biases),
    tuple(name for name in found if name not in biases),
    keys,
    centred,
  )


def kinds(found: Curves) -> dict[int, Kinds]:
  """Classifies the heads of a Curves; returns Kinds by query position."""
  return {
    query: _kinds(biases_NxHxK, np.abs(query - found.keys[query]))
    for query, biases_NxHxK in found.biases.items()
  }


def thresholds(config: ModelConfig, params: Params) -> dict[str, float]:
  """Returns FIRE's learned thresholds, |threshold_multiplier init_threshold|.

  In the paper they end at 1200 to 1600, with training at length 2048.

  Args:
    config: a ModelConfig.
    params: the model's parameters.

  Returns:
    dict from a layer's name to tokens, for layers with a learned threshold.
  """
  return {
    name: float(bias.params['threshold'][0])
    for name, bias in _biases(config, params).items()
    if bias is not None
    and isinstance(bias.encoding, fire.Fire)
    and 'threshold' in bias.params
  }


def summary(
  config: ModelConfig, params: Params, queries: Sequence[int]
) -> dict[str, Any] | None:
  """Samples each curve at a few points, to be plotted later.

  Args:
    config: a ModelConfig.
    params: the model's parameters.
    queries: positions of queries.

  Returns:
    A dict for JSON, or None if no layer has a bias. 'layers': names of layers;
    'thresholds': see `thresholds`; 'queries': by position of the query, as a
    string, the 'distance' of keys (spaced logarithmically), the 'bias' by layer
    and head, with 0 as its maximum and four digits, and the 'kind' of each
    head.
  """
  if not any(_biases(config, params).values()):
    return None
  found = curves(config, params, queries)
  classified = kinds(found)
  of_queries = {}
  for query in queries:
    keys, biases_NxHxK = found.keys[query], found.biases[query]
    near = np.unique(np.geomspace(1, max(query, 1), _POINTS).round())
    distance = np.concatenate([-near[::-1], [0], near]).astype(int)
    distance = distance[np.isin(query - distance, keys)]
    shown_NxHxK = biases_NxHxK[..., query - distance]
    shown_NxHxK = shown_NxHxK - shown_NxHxK.max(-1, keepdims=True)
    of_queries[str(query)] = {
      'distance': distance.tolist(),
      'bias': [
        [[float(f'{value:.4g}') for value in head] for head in layer]
        for layer in shown_NxHxK
      ],
      'kind': classified[query].kind.tolist(),
    }
  return {
    'layers': list(found.layers),
    'thresholds': thresholds(config, params),
    'queries': of_queries,
  }


def _biases(
  config: ModelConfig, params: Params
) -> dict[str, encodings.BiasFn | None]:
  found = layer_biases.by_layer(config, params)
  return {name: layer.bias for name, layer in found.items()}


def _kinds(biases_NxHxK: np.ndarray, distance_K: np.ndarray) -> Kinds:
  correlation = np.apply_along_axis(
    _rank_correlation, -1, biases_NxHxK, distance_K
  )
  span = np.ptp(biases_NxHxK.astype(np.float64), axis=-1)
  kind = np.select(
    [span < _FLAT, correlation <= -_CORRELATED, correlation >= _CORRELATED],
    [MIXED, LOCAL, ANTI_LOCAL],
    MIXED,
  )
  return Kinds(kind, correlation, span)


def _rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
  """Returns Spearman's rank correlation; 0 if an argument is constant."""
  a, b = (ranks - ranks.mean() for ranks in map(_ranks, (a, b)))
  norm = np.sqrt((a * a).sum() * (b * b).sum())
  return (a * b).sum() / norm if norm else 0.0


def _ranks(values: np.ndarray) -> np.ndarray:
  """Returns ranks, with the mean rank for equal values."""
  _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
  return (np.cumsum(counts) - (counts - 1) / 2)[which]
