"""Figures of the biases of a trained model, by layer and head.

Source: FIRE, Li et al. (2023), arXiv:2310.04418, figures 4 and 8.

Shapes: N layers, H heads, K keys.
"""

from collections.abc import Sequence
import dataclasses
import pathlib
from typing import Any

from matplotlib import pyplot as plt
import numpy as np

from lengen_jax.analysis import plots, tables
from lengen_jax.evaluation import bias_maps
from lengen_jax.models.config import ModelConfig
from lengen_jax.types import Params, PathLike

# Points of a curve in the CSV.
_POINTS = 129
_COLUMNS = 4


def figure(
  config: ModelConfig,
  params: Params,
  folder: PathLike,
  queries: Sequence[int] = (128, 8192),
) -> list[pathlib.Path]:
  """Draws biases as FIRE's figures 4 and 8, a panel per layer.

  Args:
    config: a ModelConfig.
    params: the model's parameters.
    folder: output folder; created if it does not exist.
    queries: positions of queries.

  Returns:
    Paths of the files: a PNG per query, bias_maps.csv with points of the
    curves, and bias_kinds.csv with a row per head.
  """
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  found = bias_maps.curves(config, params, queries)
  classified = bias_maps.kinds(found)
  paths, points, heads = [], [], []
  for query in queries:
    path = folder / f'bias_maps_{query}.png'
    _draw(found, query, classified[query], path)
    paths.append(path)
    keys, biases_NxHxK = found.keys[query], found.biases[query]
    shown = np.unique(np.linspace(0, len(keys) - 1, _POINTS).astype(int))
    for layer, head in np.ndindex(biases_NxHxK.shape[:2]):
      who = (query, found.layers[layer], head)
      points += [
        (*who, int(keys[i]), float(biases_NxHxK[layer, head, i])) for i in shown
      ]
      of_head = dataclasses.astuple(classified[query])
      heads.append((*who, *(values[layer, head].item() for values in of_head)))
  for name, header, rows in (
    ('bias_maps', ('key', 'bias'), points),
    ('bias_kinds', ('kind', 'correlation', 'span'), heads),
  ):
    paths.append(folder / f'{name}.csv')
    tables.write_csv(paths[-1], ('query', 'layer', 'head', *header), rows)
  return paths


def _draw(found: Any, query: Any, classified: Any, path: Any) -> None:
  """Returns a figure with a panel per layer and a curve per head."""
  columns = min(_COLUMNS, len(found.layers))
  rows = -(-len(found.layers) // columns)
  drawn, panels = plt.subplots(
    rows,
    columns,
    figsize=(max(4.8, 2.6 * columns), 1.1 + 2.0 * rows),
    layout='constrained',
    squeeze=False,
  )
  for axes in panels.flat[len(found.layers) :]:
    axes.set_visible(False)
  for layer, (axes, name) in enumerate(
    zip(panels.flat, found.layers, strict=False)
  ):
    for head, bias_K in enumerate(found.biases[query][layer]):
      color = plots.KIND_COLORS[classified.kind[layer, head]]
      axes.plot(found.keys[query], bias_K, color=color, linewidth=1.2)
    axes.axvline(query, color='0.6', linewidth=1, zorder=1)
    axes.set_title(name, fontsize=9)
    axes.tick_params(labelsize=8)
    plots.grid(axes)
  for kind, count in classified.counts.items():
    label = f'{kind}: {count} of {classified.kind.size} heads'
    panels[0, 0].plot([], [], color=plots.KIND_COLORS[kind], label=label)
  drawn.supylabel('bias less its mean, nats', fontsize=9)
  drawn.suptitle(
    f"Bias of the query at position {query} by the key's position", fontsize=10
  )
  plots.finish(drawn, panels[0, 0], path)
