"""A model's additive biases in nats, by layer and head, from its parameters.

Positions are 0, 1, 2, ..., also in layers that compute them from contents; see
`position_maps` for those.

Source: FIRE, Li et al. (2023), arXiv:2310.04418, figures 4 and 8, section 4.1.

Shapes: N layers, H heads, K keys.
"""

import collections
from collections.abc import Sequence
import dataclasses
import math
from typing import Any

import jax
from jax.experimental import multihost_utils
import jax.numpy as jnp
import numpy as np

from lengen_jax import encodings, errors
from lengen_jax.encodings import fire
from lengen_jax.models import blocks, stacking
from lengen_jax.models.config import ModelConfig
from lengen_jax.types import Params

LOCAL, ANTI_LOCAL, MIXED = 'local', 'anti-local', 'flat/mixed'
# Minimum absolute rank correlation with distance of a LOCAL or ANTI_LOCAL head.
_CORRELATED = 0.5
# A bias with a smaller range, in nats, is flat: it changes no weight by 10%.
_FLAT = 0.1
# Number of distances of a summary in each direction, without distance 0.
_POINTS = 32
# By architecture: {prefix of layer names: whether attention is bidirectional}.
_SIDES = {
  'decoder': {'': False},
  'encoder': {'': True},
  'encoder_decoder': {'encoder/': True, 'decoder/': False},
}


@dataclasses.dataclass(frozen=True)
class Curves:
  """Biases of a model for one query, by the key's position.

  Attributes:
    layers: names of layers with a bias, such as 'layer_0'.
    keys: positions of the keys, int `[K]`: 0 to query, or 0 to 2 * query if a
      layer's bias is bidirectional.
    biases: float32 `[N, H, K]`, in nats. The mean of each curve is subtracted,
      which changes no attention weight. NaN at later keys of causal layers.
    kind: `[N, H]`: LOCAL if the bias falls with distance, ANTI_LOCAL if it
      rises, MIXED if it does neither or is flat.
    correlation: float64 `[N, H]`, Spearman's correlation of bias and distance;
      0 for constant biases.
    span: float64 `[N, H]`, highest minus lowest bias, nats.
  """

  layers: tuple[str, ...]
  keys: np.ndarray
  biases: np.ndarray
  kind: np.ndarray
  correlation: np.ndarray
  span: np.ndarray

  @property
  def counts(self) -> dict[str, int]:
    """Number of heads of each kind."""
    found = collections.Counter(self.kind.flat)
    return {kind: found[kind] for kind in (LOCAL, ANTI_LOCAL, MIXED)}


def by_layer(
  config: ModelConfig, params: Params
) -> dict[str, tuple[str, encodings.BiasFn | None]]:
  """Returns the additive bias of the self-attention of each layer.

  `params` may be stacked over layers. Its arrays may be on devices of other
  hosts.

  Returns:
    dict from a layer's name, such as 'layer_0' or 'encoder/layer_0', to (path
    of the encoding's parameters, `BiasFn` or None). Layers that share an
    encoding have the same path.
  """
  # Only parameters of encodings, which are small, are copied to the host.
  params = jax.tree_util.tree_map_with_path(
    lambda path, leaf: (
      leaf if "['encoding" in jax.tree_util.keystr(path) else None
    ),
    params,
  )
  if jax.process_count() > 1:
    params = multihost_utils.process_allgather(params, tiled=True)
  params = stacking.unstack(jax.device_get(params))
  layer_encodings = blocks.create_encodings(config)
  owned = {e: n for n, e in blocks.owned_encodings(config).items()}
  found = {}
  for side, bidirectional in _SIDES[config.architecture].items():
    for i, encoding in enumerate(layer_encodings):
      path = side + owned.get(encoding, f'layer_{i}/attention/encoding')
      node = params
      for name in path.split('/'):
        # The tree has no node for a module without parameters.
        node = node.get(name, {})
      bias: Any = encoding.apply(
        {'params': node}, method='bias_fn', bidirectional=bidirectional
      )
      found[f'{side}layer_{i}'] = path, bias
  return found


def curves(
  config: ModelConfig, params: Params, queries: Sequence[int] = (128, 8192)
) -> dict[int, Curves]:
  """Returns a dict from the position of each query to its Curves.

  Raises:
    errors.ConfigError: no layer has an additive bias.
  """
  biases = _biases(config, params)
  if not biases:
    raise errors.ConfigError(
      f'no layer of {", ".join(config.encoding)} has an additive bias'
    )
  both = any(bias.bidirectional for bias in biases.values())
  found = {}
  for query in queries:
    keys_K = np.arange((2 if both else 1) * query + 1)
    layers = []
    for bias in biases.values():
      seen_K = keys_K if bias.bidirectional else keys_K[: query + 1]
      biases_HxK = bias(jnp.array([query]), jnp.asarray(seen_K))[:, 0]
      biases_HxK = np.asarray(biases_HxK - biases_HxK.mean(-1, keepdims=True))
      kinds = classify(biases_HxK, np.abs(query - seen_K))
      unseen = (0, 0), (0, len(keys_K) - len(seen_K))
      biases_HxK = np.pad(biases_HxK, unseen, constant_values=np.nan)
      layers.append((biases_HxK, *kinds))
    arrays = map(np.stack, zip(*layers, strict=True))
    found[query] = Curves(tuple(biases), keys_K, *arrays)
  return found


def classify(
  biases_HxK: np.ndarray, distance_K: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns the kind, correlation and span of each head; see `Curves`."""
  from scipy import stats

  ranks = stats.rankdata(biases_HxK, axis=-1), stats.rankdata(distance_K)
  a, b = (one - one.mean(-1, keepdims=True) for one in ranks)
  norm = np.sqrt((a * a).sum(-1) * (b * b).sum())
  correlation = (a * b).sum(-1) / np.where(norm, norm, 1)
  span = np.ptp(biases_HxK.astype(np.float64), axis=-1)
  falls, rises = correlation <= -_CORRELATED, correlation >= _CORRELATED
  kind = np.select(
    [span < _FLAT, falls, rises], [MIXED, LOCAL, ANTI_LOCAL], MIXED
  )
  return kind, correlation, span


def thresholds(config: ModelConfig, params: Params) -> dict[str, float]:
  """Returns FIRE's learned thresholds in tokens, by layer name.

  A threshold is |threshold_multiplier init_threshold|. In the paper, training
  at length 2048 results in thresholds of 1200 to 1600.
  """
  return {
    name: float(bias.params['threshold'][0])
    for name, bias in _biases(config, params).items()
    if isinstance(bias.encoding, fire.Fire) and 'threshold' in bias.params
  }


def summary(
  config: ModelConfig, params: Params, queries: Sequence[int]
) -> dict[str, Any] | None:
  """Returns a few points of each curve for JSON; None if no layer has a bias.

  'layers' has the names of layers, 'thresholds' the result of `thresholds`, and
  'queries' a dict from the query's position, a string, to: the 'distance' of
  keys (spaced logarithmically), the 'bias' by layer and head with maximum 0 and
  four digits, None at later keys of causal layers, and the 'kind' of each head.
  Values that are not finite are None.
  """
  biases = _biases(config, params)
  if not biases:
    return None
  found = curves(config, params, queries)
  of_queries = {}
  for query, one in found.items():
    near = np.unique(np.geomspace(1, max(query, 1), _POINTS).round())
    distance = np.concatenate([-near[::-1], [0], near]).astype(int)
    distance = distance[np.isin(query - distance, one.keys)]
    shown_NxHxK = one.biases[..., query - distance]
    with np.errstate(invalid='ignore'):  # Infinite biases.
      shown_NxHxK -= np.fmax.reduce(shown_NxHxK, axis=-1, keepdims=True)
    of_queries[str(query)] = {
      'distance': distance.tolist(),
      'bias': [
        [[_rounded(value) for value in head] for head in layer]
        for layer in shown_NxHxK
      ],
      'kind': one.kind.tolist(),
    }
  return {
    'layers': list(biases),
    'thresholds': {
      name: value if math.isfinite(value) else None
      for name, value in thresholds(config, params).items()
    },
    'queries': of_queries,
  }


def _rounded(value: float) -> float | None:
  """Returns a value with four digits; None for NaN and infinity."""
  return float(f'{value:.4g}') if math.isfinite(value) else None


def _biases(config: ModelConfig, params: Params) -> dict[str, encodings.BiasFn]:
  layers = by_layer(config, params).items()
  return {name: bias for name, (_, bias) in layers if bias is not None}
