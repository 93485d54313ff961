"""Figures of the biases of a trained model, by layer and head.

Source: FIRE, Li et al. (2023), arXiv:2310.04418, figures 4 and 8.
"""

from collections.abc import Sequence
import pathlib

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
    folder: output folder; created if it does not exist.
    queries: positions of queries.

  Returns:
    Paths of the files: a PNG per query, bias_maps.csv with points of the
    curves, and bias_kinds.csv with a row per head.
  """
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  found = bias_maps.curves(config, params, queries)
  width = max(4.8, 2.6 * min(_COLUMNS, len(found.layers)))
  pictures, points, heads = [], [], []
  for query, classified in bias_maps.kinds(found).items():
    keys = found.keys[query]
    shown = np.unique(np.linspace(0, len(keys) - 1, _POINTS).astype(int))
    drawn, panels = plots.layer_panels(found.layers, _COLUMNS, (width, 1.1), 2)
    for (layer, head), kind in np.ndenumerate(classified.kind):
      bias_K = found.biases[query][layer, head]
      color = plots.KIND_COLORS[kind]
      panels[layer].plot(keys, bias_K, color=color, linewidth=1.2)
      row = (query, found.layers[layer], head)
      points += [(*row, int(keys[i]), float(bias_K[i])) for i in shown]
      of_head = (
        classified.correlation[layer, head],
        classified.span[layer, head],
      )
      heads.append((*row, kind, *map(float, of_head)))
    for axes in panels:
      axes.axvline(query, color='0.6', linewidth=1, zorder=1)
    for kind, count in classified.counts.items():
      label = f'{kind}: {count} of {classified.kind.size} heads'
      panels[0].plot([], [], color=plots.KIND_COLORS[kind], label=label)
    drawn.supylabel('bias less its mean, nats', fontsize=9)
    title = f"Bias of the query at position {query} by the key's position"
    drawn.suptitle(title, fontsize=10)
    pictures.append(folder / f'bias_maps_{query}.png')
    plots.finish(drawn, panels[0], pictures[-1])
  head = ('query', 'layer', 'head')
  maps, kinds = folder / 'bias_maps.csv', folder / 'bias_kinds.csv'
  tables.write_csv(maps, (*head, 'key', 'bias'), points)
  tables.write_csv(kinds, (*head, 'kind', 'correlation', 'span'), heads)
  return [*pictures, maps, kinds]
