"""Figures of attention weights and their entropy, by length.

Shapes: Q queries, K keys.
"""

from collections.abc import Mapping, Sequence
import pathlib
import textwrap
from typing import Any

import jax
from matplotlib import colors
from matplotlib import pyplot as plt
import numpy as np

from lengen_jax import errors
from lengen_jax.analysis import plots, tables
from lengen_jax.data import windows as windows_lib
from lengen_jax.evaluation import attention_weights
from lengen_jax.training import run as run_lib
from lengen_jax.types import Array, PathLike

# Maximum line length of a label, in characters.
_TITLE = 26


def matrices(
  trained: run_lib.Trained, batch: Mapping[str, Array]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
  """Returns the attention weights of each layer, mean over heads and rows.

  Args:
    trained: a run.Trained.
    batch: see `data.windows.lm_batch`; rows without padding.

  Returns:
    {layer: (weights, uniform weights over visible keys)}, float32 `[Q, K]`.

  Raises:
    errors.LengthError: the model does not support the length of the batch.
  """
  run = trained.run
  found = attention_weights.by_layer(
    run.model,
    run.scheme,
    jax.device_get(trained.state.params),
    batch,
    _mean_weights,
    rng=jax.random.key(run.config.seed),
  )
  return jax.device_get(found)


def near_diagonal(weights_QxK: np.ndarray, width: int, first: int = 0) -> float:
  """Returns the share of the weight on keys at most `width` tokens away.

  Args:
    weights_QxK: attention weights.
    width: maximum distance of query and key, in tokens.
    first: index of the first query that counts.
  """
  queries, keys = weights_QxK.shape
  apart_QxK = np.abs(np.arange(queries)[:, None] - np.arange(keys)[None])
  weights_QxK, apart_QxK = weights_QxK[first:], apart_QxK[first:]
  near = weights_QxK[apart_QxK <= width].sum(dtype=np.float64)
  return float(near / weights_QxK.sum(dtype=np.float64))


def figure(
  runs: Mapping[str, run_lib.Trained],
  batches: Sequence[Mapping[str, Array]],
  folder: PathLike,
  *,
  width: int = 2,
) -> list[pathlib.Path]:
  """Draws attention at several lengths: a row per run and length.

  A panel shows one layer, with its own color scale.

  Source: figure B.1 of randomized encodings on real tasks.

  Args:
    runs: dict from a name to a run.Trained.
    batches: one for each length; see `matrices`.
    folder: output folder; created if it does not exist.
    width: maximum distance of keys near the diagonal, in tokens.

  Returns:
    Paths of attention_maps.png, of attention_maps.npz with the matrices
    `[layers, Q, K]` by run/length, and of attention_maps.csv with the share of
    the weight near the diagonal, and that share for uniform attention over
    visible keys.

  Raises:
    errors.LengthError: every run refuses every length.
  """
  drawn, refused = {}, {}
  for name, trained in runs.items():
    for batch in batches:
      length = batch['inputs'].shape[1]
      try:
        drawn[name, length] = matrices(trained, batch)
      except (errors.LengthError, errors.CombinationError) as error:
        refused[name, length] = str(error)
  if not drawn:
    raise errors.LengthError('; '.join(dict.fromkeys(refused.values())))
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  picture, arrays, numbers = (
    folder / f'attention_maps.{kind}' for kind in ('png', 'npz', 'csv')
  )
  shares = {
    key: {
      layer: tuple(near_diagonal(one, width) for one in pair)
      for layer, pair in layers.items()
    }
    for key, layers in drawn.items()
  }
  trained_to = {
    name: trained.run.data.train_length for name, trained in runs.items()
  }
  _draw_matrices(drawn, shares, trained_to, width, picture)
  stacked: dict[str, Any] = {
    f'{name}/{length}': np.stack([weights for weights, _ in layers.values()])
    for (name, length), layers in drawn.items()
  }
  np.savez_compressed(arrays, **stacked)
  tables.write_csv(
    numbers,
    ('run', 'length', 'layer', f'within_{width}', 'if_even', 'refused'),
    [
      (*key, layer, *pair, '')
      for key, layers in shares.items()
      for layer, pair in layers.items()
    ]
    + [(*key, '', '', '', reason) for key, reason in refused.items()],
  )
  return [picture, arrays, numbers]


def entropies(
  trained: run_lib.Trained, windows: windows_lib.EvaluationWindows
) -> list[attention_weights.LengthEntropy]:
  """Returns the entropy of a trained model's attention by length.

  Args:
    trained: a run.Trained.
    windows: a data.EvaluationWindows.

  Returns:
    list of `attention_weights.LengthEntropy`.
  """
  run = trained.run
  return list(
    attention_weights.entropy(
      run.model,
      run.scheme,
      jax.device_get(trained.state.params),
      windows,
      seed=run.config.seed,
    )
  )


def entropy_figure(
  results: Mapping[str, Sequence[attention_weights.LengthEntropy]],
  folder: PathLike,
  *,
  train_length: int,
) -> list[pathlib.Path]:
  """Draws entropy of attention against length, a curve per run.

  Curves are means over layers, bands go from the lowest layer to the highest.

  Source: Su (2021, 2023): entropy grows with length, and less with log n.

  Args:
    results: dict from a name to what `entropies` gives.
    folder: output folder; created if it does not exist.
    train_length: tokens of a row in training.

  Returns:
    Paths of entropy.png, and of entropy.csv with a row per layer.
  """
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  picture, numbers = folder / 'entropy.png', folder / 'entropy.csv'
  drawn, panels = plt.subplots(1, 2, figsize=(9.6, 4.5), layout='constrained')
  table = []
  for number, (name, found) in enumerate(results.items()):
    style = plots.style(number)
    at = [one for one in found if not one.refused]
    lengths = [one.length for one in at]
    for axes, quantity in zip(panels, ('nats', 'relative'), strict=True):
      by_layer = [[*getattr(one, quantity).values()] for one in at]
      if not at:
        continue
      axes.plot(
        lengths,
        np.mean(by_layer, axis=1),
        # Both panels share a legend.
        label=name if quantity == 'nats' else None,
        **style,
      )
      axes.fill_between(
        lengths,
        np.min(by_layer, axis=1),
        np.max(by_layer, axis=1),
        color=style['color'],
        alpha=0.12,
        linewidth=0,
      )
    for one in found:
      table += [
        (name, one.length, layer, nats, one.relative[layer], '')
        for layer, nats in one.nats.items()
      ] or [(name, one.length, '', '', '', one.refused)]
  lengths = sorted({one.length for found in results.values() for one in found})
  for axes, title in zip(
    panels,
    ('entropy of attention, nats', 'entropy / ln(visible keys)'),
    strict=True,
  ):
    axes.axvline(train_length, color='0.6', linewidth=1, zorder=1)
    plots.length_axis(axes, lengths)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel('context length at test time (vertical line: trained)')
    plots.grid(axes)
  plots.finish(drawn, panels[0], picture)
  tables.write_csv(
    numbers,
    ('run', 'length', 'layer', 'nats', 'relative', 'refused'),
    table,
  )
  return [picture, numbers]


def _mean_weights(attended: Any) -> tuple[Any, Any]:
  """Returns weights and uniform weights, as means over heads and rows."""
  visible_BxQxK = attended.visible()
  even_BxQxK = visible_BxQxK / visible_BxQxK.sum(-1, keepdims=True)
  return attended.weights().mean((0, 1)), even_BxQxK.mean(0)


def _draw_matrices(
  drawn: Any, shares: Any, trained_to: Any, width: int, path: Any
) -> None:
  columns = max(map(len, drawn.values()))
  figure_, panels = plt.subplots(
    len(drawn),
    columns,
    figsize=(1.2 + 1.7 * columns, 0.7 + 1.75 * len(drawn)),
    layout='compressed',
    squeeze=False,
  )
  for axes in panels.flat:
    axes.set_axis_off()
  for row, (name, length) in zip(panels, drawn, strict=True):
    layers = drawn[name, length]
    for axes, (layer, (weights_QxK, _)) in zip(
      row, layers.items(), strict=False
    ):
      axes.set_axis_on()
      # Square roots make small weights visible. The scale ends at the mean of
      # the queries' largest weights.
      largest = float(weights_QxK.max(axis=-1).mean())
      norm = colors.PowerNorm(0.5, vmin=0.0, vmax=largest, clip=True)
      axes.imshow(weights_QxK, cmap='viridis', norm=norm)
      axes.set_xticks([])
      axes.set_yticks([])
      share, even = shares[name, length][layer]
      axes.set_title(f'{layer}: {share:.2f} (even: {even:.2f})', fontsize=8)
    seen = 'trained' if length <= trained_to[name] else 'not trained'
    title = textwrap.fill(name, _TITLE)
    row[0].set_ylabel(f'{title}\nlength {length}, {seen}', fontsize=8)
  figure_.suptitle(
    'Attention of queries (down) to keys (across)\n'
    f'and its share within {width} of the diagonal',
    fontsize=9,
  )
  figure_.savefig(path, dpi=160, metadata={'Software': None})
  plt.close(figure_)
