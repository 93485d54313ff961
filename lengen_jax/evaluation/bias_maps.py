"""What a trained model's biases look like, layer by layer and head by head.

The additive bias of one query as a function of the key's position, in nats, as
logits have it.

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

from lengen_jax import errors
from lengen_jax.encodings import fire
from lengen_jax.evaluation import layer_biases
from lengen_jax.hints import Params
from lengen_jax.models.config import ModelConfig

LOCAL, ANTI_LOCAL, MIXED = 'local', 'anti-local', 'flat/mixed'
# A rank correlation from which on a bias falls or rises with distance.
_CORRELATED = 0.5
# Nats from its lowest to its highest below which a bias is flat: it changes
# no weight by as much as a tenth.
_FLAT = 0.1
# Distances of a summary, of either sign, besides 0.
_POINTS = 32


@dataclasses.dataclass(frozen=True)
class Curves:
  """Biases of a model by the key's position.

  Attributes:
    layers: names of those that have a bias, as 'layer_0'.
    skipped: names of those that have none.
    keys: positions of the keys, int `[K]`, by the query's position. They go up
      to the query, and in an encoder as far beyond it.
    biases: float32 `[N, H, K]` by the query's position, nats; each curve less
      its own mean, which changes no attention weight.
  """

  layers: tuple
  skipped: tuple
  keys: dict
  biases: dict


@dataclasses.dataclass(frozen=True)
class Kinds:
  """What kind of pattern each head has.

  Attributes:
    kind: `[N, H]`, of LOCAL, where the bias falls with distance, ANTI_LOCAL,
      where it rises, and MIXED, where it does neither or is flat.
    correlation: float64 `[N, H]`, rank correlation of bias and distance.
    span: float64 `[N, H]`, from the lowest to the highest bias, nats.
  """

  kind: np.ndarray
  correlation: np.ndarray
  span: np.ndarray

  @property
  def counts(self) -> dict[str, int]:
    """How many heads are of each kind."""
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
  """Which heads look near and which far.

  Args:
    found: a Curves.

  Returns:
    dict from the query's position to Kinds.
  """
  return {
    query: _kinds(biases_NxHxK, np.abs(query - found.keys[query]))
    for query, biases_NxHxK in found.biases.items()
  }


def thresholds(config: ModelConfig, params: Params) -> dict[str, float]:
  """FIRE's learned thresholds, |threshold_multiplier init_threshold|.

  In the paper they end at 1200 to 1600, with training at length 2048.

  Args:
    config: a ModelConfig.
    params: the model's parameters.

  Returns:
    dict from a layer's name to tokens; a layer without a learned threshold is
    left out.
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
) -> dict[str, Any]:
  """Few points of each curve, for a file that is drawn from later.

  Args:
    config: a ModelConfig.
    params: the model's parameters.
    queries: positions of queries.

  Returns:
    A dict for JSON, None where no layer has a bias: 'layers', their names;
    'thresholds' as of `thresholds`; and 'queries', of each query's position,
    as a string, the 'distance' of keys before it, closer where they are near,
    the 'bias' at these by layer and head, less its largest there, to four
    digits, and the 'kind' of each head.
  """
  found = _biases(config, params)
  if not any(bias is not None for bias in found.values()):
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


def _biases(config, params):
  """The `BiasFn` of every layer by name, None where it has none."""
  found = layer_biases.by_layer(config, params)
  return {name: layer.bias for name, layer in found.items()}


def _kinds(biases_NxHxK, distance_K):
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


def _rank_correlation(a, b):
  """Spearman's; 0 where one of them is constant."""
  a, b = (ranks - ranks.mean() for ranks in map(_ranks, (a, b)))
  norm = np.sqrt((a * a).sum() * (b * b).sum())
  return (a * b).sum() / norm if norm else 0.0


def _ranks(values):
  """The mean rank of those that are equal to each."""
  _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
  return (np.cumsum(counts) - (counts - 1) / 2)[which]
