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
from lengen_jax.training import files
from lengen_jax.training import run as run_lib
from lengen_jax.types import Array, PathLike


def matrices(
  trained: run_lib.Trained, batch: Mapping[str, Array]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
  """Returns the attention weights of each layer, averaged over heads and rows.

  `batch` has rows without padding; see `data.windows.lm_batch`.

  Returns:
    {layer: (weights, uniform weights over visible keys)}, float32 `[Q, K]`.

  Raises:
    errors.LengthError: the model does not support the length of the batch.
    errors.CombinationError: the encoding does not support the positions.
  """
  run = trained.run
  found = attention_weights.by_layer(
    run.model,
    run.scheme,
    run_lib.on_host(trained.state.params),
    batch,
    _mean_weights,
    rng=jax.random.key(run.config.seed),
  )
  return {name: jax.device_get(one) for name, one in found.items()}


def _mean_weights(
  attended: attention_weights.Attended,
) -> tuple[jax.Array, jax.Array]:
  visible_BxQxK = attended.visible()
  even_BxQxK = visible_BxQxK / visible_BxQxK.sum(-1, keepdims=True)
  return attended.weights().mean((0, 1)), even_BxQxK.mean(0)


def near_diagonal(weights_QxK: np.ndarray, width: int, first: int = 0) -> float:
  """Returns the share of the weight on keys at most `width` tokens away.

  Queries before index `first` are ignored.
  """
  queries, keys = np.indices(weights_QxK.shape)
  near_QxK = np.where(np.abs(queries - keys) <= width, weights_QxK, 0)
  near, total = (
    each[first:].sum(dtype=np.float64) for each in (near_QxK, weights_QxK)
  )
  return float(near / total)


def figure(
  runs: Mapping[str, run_lib.Trained],
  batches: Sequence[Mapping[str, Array]],
  folder: PathLike,
  *,
  width: int = 2,
) -> list[pathlib.Path]:
  """Draws attention maps in one row per run and length, one column per layer.

  Source: figure B.1 of randomized encodings on real tasks.

  Args:
    batches: a batch for each length; see `matrices`.
    folder: output folder; created if it does not exist.
    width: maximum distance of keys near the diagonal, in tokens.

  Returns:
    Paths of attention_maps.png, of attention_maps.npz with the matrices
    `[layers, Q, K]` by run/length, and of attention_maps.csv with the share of
    the weight near the diagonal, and that share for uniform attention over
    visible keys.

  Raises:
    errors.LengthError: no run supports any of the lengths.
  """
  found, rows, refused = {}, [], []
  for name, trained in runs.items():
    for batch in batches:
      length = batch['inputs'].shape[1]
      try:
        found[name, length] = matrices(trained, batch)
      except (errors.LengthError, errors.CombinationError) as error:
        refused.append((name, length, '', '', '', str(error)))
  if not found:
    reasons = dict.fromkeys(reason for *_, reason in refused)
    raise errors.LengthError('; '.join(reasons))
  columns = max(map(len, found.values()))
  drawn, panels = plt.subplots(
    len(found),
    columns,
    figsize=(1.2 + 1.7 * columns, 0.7 + 1.75 * len(found)),
    layout='compressed',
    squeeze=False,
  )
  for row, ((name, length), layers) in zip(panels, found.items(), strict=True):
    for axes in row[len(layers) :]:
      axes.set_axis_off()
    for axes, (layer, pair) in zip(row, layers.items(), strict=False):
      # Square roots make small weights visible. The scale ends at the mean of
      # the queries' largest weights.
      largest = float(pair[0].max(axis=-1).mean())
      norm = colors.PowerNorm(0.5, vmin=0.0, vmax=largest, clip=True)
      axes.imshow(pair[0], cmap='viridis', norm=norm)
      axes.set(xticks=[], yticks=[])
      share, even = (near_diagonal(each, width) for each in pair)
      axes.set_title(f'{layer}: {share:.2f} (even: {even:.2f})', fontsize=8)
      rows.append((name, length, layer, share, even, ''))
    seen = length <= runs[name].run.data.train_length
    label = f'length {length}, {"trained" if seen else "not trained"}'
    row[0].set_ylabel(f'{textwrap.fill(name, 26)}\n{label}', fontsize=8)
  drawn.suptitle(
    'Attention of queries (down) to keys (across)\n'
    f'and its share within {width} of the diagonal',
    fontsize=9,
  )
  folder = files.make_folder(folder)
  paths = [folder / f'attention_maps.{kind}' for kind in ('png', 'npz', 'csv')]
  plots.save(drawn, paths[0])
  stacked: dict[str, Any] = {
    f'{name}/{length}': np.stack([weights for weights, _ in layers.values()])
    for (name, length), layers in found.items()
  }
  with paths[1].open('wb') as file:
    np.savez_compressed(file, **stacked)
  head = ('run', 'length', 'layer', f'within_{width}', 'if_even', 'refused')
  tables.write_csv(paths[2], head, rows + refused)
  return paths


def entropies(
  trained: run_lib.Trained, windows: windows_lib.EvaluationWindows
) -> list[attention_weights.LengthEntropy]:
  """Returns the entropy of a trained model's attention, by length."""
  run, params = trained.run, run_lib.on_host(trained.state.params)
  return list(
    attention_weights.entropy(
      run.model, run.scheme, params, windows, seed=run.config.seed
    )
  )


def entropy_figure(
  results: Mapping[str, Sequence[attention_weights.LengthEntropy]],
  folder: PathLike,
  *,
  train_length: int,
) -> list[pathlib.Path]:
  """Draws the entropy of attention against length, one curve per run.

  Curves are means over layers; bands show the minimum and maximum over layers.

  Source: Su (2021, 2023): entropy grows with length; log-n scaling slows the
  growth.

  Args:
    results: results of `entropies` by the name of the run.
    folder: output folder; created if it does not exist.
    train_length: tokens of a row in training.

  Returns:
    Paths of entropy.png, and of entropy.csv with a row per layer.
  """
  drawn, panels = plots.panels(2, (9.6, 4.5))
  rows: list[Any] = []
  for number, (name, found) in enumerate(results.items()):
    style = plots.style(number)
    for axes, quantity in zip(panels, ('nats', 'relative'), strict=True):
      by_length = {
        one.length: [
          v for v in getattr(one, quantity).values() if v is not None
        ]
        for one in found
      }
      lengths = [length for length, values in by_length.items() if values]
      if not lengths:
        continue
      by_layer = [by_length[length] for length in lengths]
      # Both panels share a legend.
      label = name if quantity == 'nats' else None
      axes.plot(lengths, [*map(np.mean, by_layer)], label=label, **style)
      low, high = [*map(min, by_layer)], [*map(max, by_layer)]
      band = {'color': style['color'], 'alpha': 0.12, 'linewidth': 0}
      axes.fill_between(lengths, low, high, **band)
    for one in found:
      rows += [
        (name, one.length, layer, nats, one.relative[layer], '')
        for layer, nats in one.nats.items()
      ] or [(name, one.length, '', '', '', one.refused)]
  titles = ('entropy of attention, nats', 'entropy / ln(visible keys)')
  for axes, title in zip(panels, titles, strict=True):
    axes.axvline(train_length, color='0.6', linewidth=1, zorder=1)
    lengths = {one.length for found in results.values() for one in found}
    plots.length_axis(axes, sorted(lengths))
    axes.set_title(title, fontsize=10)
    axes.set_xlabel('context length at test time (vertical line: trained)')
  folder = files.make_folder(folder)
  picture, numbers = folder / 'entropy.png', folder / 'entropy.csv'
  plots.finish(drawn, picture)
  head = ('run', 'length', 'layer', 'nats', 'relative', 'refused')
  tables.write_csv(numbers, head, rows)
  return [picture, numbers]
