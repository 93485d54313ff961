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
import pathlib

import jax
import jax.numpy as jnp
from matplotlib import pyplot as plt
import numpy as np

from lengen_jax import errors
from lengen_jax.analysis import plots
from lengen_jax.analysis import tables
from lengen_jax.data import windows
from lengen_jax.encodings import fire
from lengen_jax.evaluation import attention_weights
from lengen_jax.hints import PathLike
from lengen_jax.training import run as run_lib

LOCAL, ANTI_LOCAL, MIXED = 'local', 'anti-local', 'flat/mixed'
# A rank correlation from which on a bias falls or rises with distance.
_CORRELATED = 0.5
# Nats from its lowest to its highest below which a bias is flat: it changes
# no weight by as much as a tenth.
_FLAT = 0.1
# Points of a curve in the CSV.
_POINTS = 129
_COLUMNS = 4


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
  trained: run_lib.Trained, queries: Sequence[int] = (128, 8192)
) -> Curves:
  """Biases of every layer and head.

  Args:
    trained: a run.Trained.
    queries: positions of queries.

  Returns:
    A Curves.

  Raises:
    errors.ConfigError: no layer has an additive bias.
  """
  found = _biases(trained)
  biases = {name: bias for name, bias in found.items() if bias is not None}
  if not biases:
    raise errors.ConfigError(
      f'no layer of {", ".join(trained.run.model.encoding)} has an additive '
      'bias'
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


def thresholds(trained: run_lib.Trained) -> dict[str, float]:
  """FIRE's learned thresholds, |threshold_multiplier init_threshold|.

  In the paper they end at 1200 to 1600, with training at length 2048.

  Args:
    trained: a run.Trained.

  Returns:
    dict from a layer's name to tokens; a layer without a learned threshold is
    left out.
  """
  return {
    name: float(bias.params['threshold'][0])
    for name, bias in _biases(trained).items()
    if bias is not None
    and isinstance(bias.encoding, fire.Fire)
    and 'threshold' in bias.params
  }


def figure(
  trained: run_lib.Trained,
  folder: PathLike,
  queries: Sequence[int] = (128, 8192),
) -> list[pathlib.Path]:
  """Draws biases as FIRE's figures 4 and 8, a panel per layer.

  Args:
    trained: a run.Trained.
    folder: where the files go; made if it is not there.
    queries: positions of queries.

  Returns:
    Paths: of a PNG per query, bias_maps.csv with points of the curves, and
    bias_kinds.csv with a row per head.
  """
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  found = curves(trained, queries)
  classified = kinds(found)
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


def _biases(trained):
  """The `BiasFn` of every layer by name, None where it has none."""
  token = np.zeros((1, 1), np.int32)
  return attention_weights.by_layer(
    trained.run.model,
    trained.run.scheme,
    jax.device_get(trained.state.params),
    windows.pair_batch(token, token),
    _bias,
  )


def _bias(attended):
  return attended.bias


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


def _draw(found, query, classified, path):
  """One picture: a panel per layer, a curve per head, coloured by kind."""
  columns = min(_COLUMNS, len(found.layers))
  rows = -(-len(found.layers) // columns)
  drawn, panels = plt.subplots(
    rows,
    columns,
    figsize=(max(4.8, 2.6 * columns), 1.1 + 2.0 * rows),
    layout='constrained',
    squeeze=False,
  )
  counts = classified.counts
  colors = {
    kind: plots.style(number)['color'] for number, kind in enumerate(counts)
  }
  colors[MIXED] = '0.6'
  for axes in panels.flat[len(found.layers) :]:
    axes.set_visible(False)
  for layer, (axes, name) in enumerate(
    zip(panels.flat, found.layers, strict=False)
  ):
    for head, bias_K in enumerate(found.biases[query][layer]):
      color = colors[classified.kind[layer, head]]
      axes.plot(found.keys[query], bias_K, color=color, linewidth=1.2)
    axes.axvline(query, color='0.6', linewidth=1, zorder=0)
    axes.set_title(name, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(True, color='0.9')
    axes.spines[['top', 'right']].set_visible(False)
  for kind, count in counts.items():
    label = f'{kind}: {count} of {classified.kind.size} heads'
    panels[0, 0].plot([], [], color=colors[kind], label=label)
  drawn.supylabel('bias less its mean, nats', fontsize=9)
  drawn.suptitle(
    f"Bias of the query at position {query} by the key's position", fontsize=10
  )
  plots.finish(drawn, panels[0, 0], path)
