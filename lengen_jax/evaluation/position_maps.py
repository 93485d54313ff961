"""Contextual positions of the tokens of a text, by layer and head."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from lengen_jax.evaluation import attention_weights
from lengen_jax.models import objective
from lengen_jax.models.config import ModelConfig
from lengen_jax.positions import PerHead, PositionScheme
from lengen_jax.types import Array, Params

# Number of tokens of a summary.
_POINTS = 65


def by_layer(
  config: ModelConfig,
  scheme: PositionScheme,
  params: Params,
  batch: Mapping[str, Array],
  *,
  rng: jax.Array | None = None,
) -> dict[str, np.ndarray]:
  """Returns the positions that each layer computes from the tokens of a batch.

  Arguments are those of `attention_weights.by_layer`.

  Returns:
    dict from a layer's name, such as 'layer_0', to float32 `[B, L, H]`. Layers
    without contextual positions are left out.
  """
  found = attention_weights.by_layer(
    config, scheme, params, batch, _positions, rng=rng
  )
  return {k: jax.device_get(v) for k, v in found.items() if v is not None}


def _positions(attended: attention_weights.Attended) -> jax.Array | None:
  positions = attended.options['q_positions']
  return positions.value if isinstance(positions, PerHead) else None


def summary(
  config: ModelConfig,
  scheme: PositionScheme,
  params: Params,
  batch: Mapping[str, Array],
  *,
  rng: jax.Array,
) -> dict[str, Any]:
  """Returns positions of some tokens of the first row of a batch, for JSON.

  Arguments are those of `by_layer`.

  Returns:
    dict from a layer's name to: the index of each 'token', from 0, and the
    'position' of each by head, with six digits.
  """
  row = {name: values[:1] for name, values in batch.items()}
  row = objective.masked(config, row, rng)
  found = {}
  for name, positions in by_layer(config, scheme, params, row, rng=rng).items():
    last = positions.shape[1] - 1
    token = np.unique(np.linspace(0, last, _POINTS).astype(int))
    found[name] = {
      'token': token.tolist(),
      'position': [
        [float(f'{value:.6g}') for value in head]
        for head in positions[0, token].T
      ],
    }
  return found
