"""Measurements and drawings of trained models, for `figures.Figure`."""

from collections.abc import Mapping
import pathlib
import statistics
from typing import Any

from lengen_jax import data
from lengen_jax.analysis import attention_maps, bias_figures, tables
from lengen_jax.evaluation import bias_maps, constructions, order_invariance
from lengen_jax.training.run import Trained

# Rows of the batches that are analysed.
_ROWS = 4

Models = Mapping[str, Trained]


def draw_biases(models: Models, folder: pathlib.Path) -> list[pathlib.Path]:
  """Draws FIRE's figures 4 and 8, and writes its learned thresholds."""
  paths = []
  for name, one in models.items():
    model = one.run.model, one.state.params
    path = folder / name / 'thresholds.csv'
    paths += [*bias_figures.figure(*model, folder / name), path]
    thresholds = bias_maps.thresholds(*model).items()
    tables.write_csv(path, ('layer', 'tokens'), thresholds)
  return paths


def thresholds_and_kinds(trained: Trained) -> tuple[float, ...]:
  """Returns the lowest and highest threshold, and shares of two kinds of heads.

  Thresholds are in training lengths. The kinds are local and anti-local, for a
  query at the training length.
  """
  length = trained.run.data.train_length
  model = trained.run.model, trained.state.params
  thresholds = [one / length for one in bias_maps.thresholds(*model).values()]
  counts = bias_maps.curves(*model, queries=(length,))[length].counts
  heads = sum(counts.values())
  kinds = bias_maps.LOCAL, bias_maps.ANTI_LOCAL
  return min(thresholds), max(thresholds), *(counts[k] / heads for k in kinds)


def draw_matrices(models: Models, folder: pathlib.Path) -> list[pathlib.Path]:
  """Draws attention matrices at one and four training lengths."""
  first = next(iter(models.values()))
  return attention_maps.figure(models, _batches(first), folder)


def diagonal(trained: Trained) -> tuple[float, ...]:
  """Returns the weight near the diagonal, relative to uniform attention.

  The first number is at the training length, the second at four times that
  length, for queries beyond it. Both sum weights within two tokens and average
  over layers.
  """
  near, layers = attention_maps.near_diagonal, attention_maps.matrices
  firsts = 0, trained.run.data.train_length
  return tuple(
    statistics.fmean(
      near(weights_QxK, 2, first) / near(uniform_QxK, 2, first)
      for weights_QxK, uniform_QxK in layers(trained, batch).values()
    )
    for batch, first in zip(_batches(trained), firsts, strict=True)
  )


def draw_entropy(models: Models, folder: pathlib.Path) -> list[pathlib.Path]:
  """Draws the entropy of attention by length."""
  (train_length,) = {one.run.data.train_length for one in models.values()}
  found = {name: _entropies(one) for name, one in models.items()}
  return attention_maps.entropy_figure(found, folder, train_length=train_length)


def entropy_growth(trained: Trained) -> tuple[float]:
  """Returns the entropy at the longest length minus that at the shortest."""
  means = [statistics.fmean(one.nats.values()) for one in _entropies(trained)]
  return (means[-1] - means[0],)


def draw_order(models: Models, folder: pathlib.Path) -> list[pathlib.Path]:
  """Writes a CSV of output changes, see `order_changes`."""
  path = folder / 'order.csv'
  head = 'run', 'positions redrawn', 'tokens permuted'
  changes = [(name, *order_changes(one)[:2]) for name, one in models.items()]
  tables.write_csv(path, head, changes)
  return [path]


def order_changes(trained: Trained) -> tuple[float, float, float]:
  """Returns two total variations of the outputs, and their ratio.

  The first is under redrawn positions, the second under permuted tokens.
  """
  run, params = trained.run, trained.state.params
  found = order_invariance.measure(
    run.model, run.scheme, params, _batches(trained)[0], seed=run.config.seed
  )
  redrawn = found.redrawn.total_variation
  permuted = found.permuted.total_variation
  return redrawn, permuted, redrawn / permuted


def constructions_of_curves(trained: Trained) -> tuple[float, ...]:
  """Returns numbers of curves by six constructions of their test windows.

  The first six are losses at four training lengths minus those at one; the
  others are the losses at four. The order is that of `constructions.NAMES`. The
  text is the first `eval.windows` documents.
  """
  run, length = trained.run, trained.run.data.train_length
  corpus = data.load(run.data, 4 * length)
  documents = corpus.documents['validation'][: run.eval.windows]
  losses = {
    n: constructions.document_losses(
      run.model,
      run.scheme,
      trained.state.params,
      documents,
      n,
      batch_tokens=run.eval.batch_tokens,
      seed=run.config.seed,
      layout=run.layout,
    )
    for n in (length, 4 * length)
  }
  curves = constructions.curves(losses).values()
  gaps = (curve[4 * length] - curve[length] for curve in curves)
  return *gaps, *(curve[4 * length] for curve in curves)


def _windows(trained: Trained) -> Any:
  run = trained.run
  return data.load(run.data, max(run.eval.lengths)).evaluation(run.eval)


def _entropies(trained: Trained) -> Any:
  return attention_maps.entropies(trained, _windows(trained))


def _batches(trained: Trained) -> list[dict[str, Any]]:
  """Returns test batches of one and of four training lengths."""
  windows = _windows(trained)
  length = trained.run.data.train_length
  return [
    {name: values[:_ROWS] for name, values in windows.batch(n).items()}
    for n in (length, 4 * length)
  ]
