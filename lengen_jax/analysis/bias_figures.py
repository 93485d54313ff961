"""Figures of the biases of a trained model, by layer and head.

Source: FIRE, Li et al. (2023), arXiv:2310.04418, figures 4 and 8.
"""

from collections.abc import Sequence
import pathlib

import numpy as np

from lengen_jax.analysis import plots, tables
from lengen_jax.evaluation import bias_maps
from lengen_jax.models.config import ModelConfig
from lengen_jax.training import files
from lengen_jax.types import Params, PathLike

# Number of points of a curve in the CSV.
_POINTS = 129
_COLUMNS = 4


def figure(
  config: ModelConfig,
  params: Params,
  folder: PathLike,
  queries: Sequence[int] = (128, 8192),
) -> list[pathlib.Path]:
  """Draws biases as in FIRE's figures 4 and 8, one panel per layer.

  Returns:
    Paths of the files in `folder`, which is created if it does not exist: a PNG
    per query position in `queries`, bias_maps.csv with points of the curves,
    and bias_kinds.csv with a row per head.
  """
  folder = files.make_folder(folder)
  pictures, points, heads = [], [], []
  for query, found in bias_maps.curves(config, params, queries).items():
    width = max(4.8, 2.6 * min(_COLUMNS, len(found.layers)))
    drawn, panels = plots.layer_panels(found.layers, _COLUMNS, (width, 1.1), 2)
    last = len(found.keys) - 1
    shown = np.unique(np.linspace(0, last, _POINTS).astype(int))
    for (n, head), kind in np.ndenumerate(found.kind):
      bias_K, color = found.biases[n, head], plots.KIND_COLORS[kind]
      panels[n].plot(found.keys, bias_K, color=color, linewidth=1.2)
      row = (query, found.layers[n], head)
      points += [
        (*row, int(found.keys[i]), float(bias_K[i]))
        for i in shown
        if not np.isnan(bias_K[i])
      ]
      measured = found.correlation[n, head], found.span[n, head]
      heads.append((*row, kind, *map(float, measured)))
    for axes in panels:
      axes.axvline(query, color='0.6', linewidth=1, zorder=1)
    for kind, count in found.counts.items():
      label = f'{kind}: {count} of {found.kind.size} heads'
      panels[0].plot([], [], color=plots.KIND_COLORS[kind], label=label)
    drawn.supylabel('bias less its mean, nats', fontsize=9)
    title = f"Bias of the query at position {query} by the key's position"
    drawn.suptitle(title, fontsize=10)
    pictures.append(folder / f'bias_maps_{query}.png')
    plots.finish(drawn, pictures[-1])
  head = ('query', 'layer', 'head')
  maps, kinds = folder / 'bias_maps.csv', folder / 'bias_kinds.csv'
  tables.write_csv(maps, (*head, 'key', 'bias'), points)
  tables.write_csv(kinds, (*head, 'kind', 'correlation', 'span'), heads)
  return [*pictures, maps, kinds]
