"""Looks into models that another part of an experiment has trained."""

import statistics

from lengen_jax import data
from lengen_jax.analysis import attention_maps
from lengen_jax.analysis import bias_figures
from lengen_jax.analysis import tables
from lengen_jax.evaluation import bias_maps
from lengen_jax.evaluation import order_invariance
from lengen_jax.reproduce import curves
from lengen_jax.reproduce import drawings
from lengen_jax.training import files

# Rows of a batch that is looked at.
_ROWS = 4


def check(part, request):
  """Nothing can be wrong with it that is not wrong with what it looks into."""
  del part, request


def run(part, request, before):
  """Draws the models of the first seed and measures those of all."""
  (of,) = (one for one in before if one['name'] == part.of)
  by_seed = [_models(part, of, request, seed) for seed in request.seeds]
  folder = request.folder / part.name
  folder.mkdir(parents=True, exist_ok=True)
  numbers = []
  if part.figures is not None:
    numbers = [
      {name: part.figures.measure(one) for name, one in models.items()}
      for models in by_seed
    ]
  drawn = drawings.results(part, part.draw(by_seed[0], folder), folder, numbers)
  return drawn | {'standin': of['standin']}


def _models(part, of, request, seed):
  """{row: Trained} of one seed."""
  folder = files.locate(request.root) / of['trained'] / f'seed{seed}'
  return {
    row['name']: curves.restore(folder / row['folder'], row['run'])
    for row in of['rows']
    if row['name'] in part.rows
  }


def biases(trained, folder):
  """FIRE's figures 4 and 8, and the thresholds that were learned."""
  paths = []
  for name, one in trained.items():
    model = one.run.model, one.state.params
    paths += bias_figures.figure(*model, folder / name)
    thresholds = bias_maps.thresholds(*model)
    path = folder / name / 'thresholds.csv'
    tables.write_csv(path, ('layer', 'tokens'), thresholds.items())
    paths.append(path)
  return paths


def thresholds_and_kinds(trained):
  """Least and largest threshold, and shares of local and anti-local heads.

  Thresholds are in training lengths; patterns are those of a query at the
  training length.
  """
  length = trained.run.data.train_length
  model = trained.run.model, trained.state.params
  thresholds = [one / length for one in bias_maps.thresholds(*model).values()]
  curves_ = bias_maps.curves(*model, queries=(length,))
  counts = bias_maps.kinds(curves_)[length].counts
  heads = sum(counts.values())
  return (
    min(thresholds),
    max(thresholds),
    counts[bias_maps.LOCAL] / heads,
    counts[bias_maps.ANTI_LOCAL] / heads,
  )


def matrices(trained, folder):
  """Attention matrices at the training length and at four times that."""
  first = next(iter(trained.values()))
  return attention_maps.figure(trained, _batches(first), folder)


def diagonal(trained):
  """The weight within two tokens of the diagonal, over that if it were even.

  At the training length, and of queries beyond it at four times that; means
  over layers.
  """
  shares = []
  for batch, first in zip(
    _batches(trained), (0, trained.run.data.train_length), strict=True
  ):
    layers = attention_maps.matrices(trained, batch).values()
    shares.append(
      statistics.fmean(
        attention_maps.near_diagonal(weights_QxK, 2, first)
        / attention_maps.near_diagonal(even_QxK, 2, first)
        for weights_QxK, even_QxK in layers
      )
    )
  return tuple(shares)


def entropy(trained, folder):
  """Entropy of attention by length."""
  (train_length,) = {one.run.data.train_length for one in trained.values()}
  found = {
    name: attention_maps.entropies(one, _windows(one))
    for name, one in trained.items()
  }
  return attention_maps.entropy_figure(found, folder, train_length=train_length)


def entropy_growth(trained):
  """Nats by which entropy grows from the shortest to the longest length."""
  found = attention_maps.entropies(trained, _windows(trained))
  first, last = (
    statistics.fmean(one.nats.values()) for one in (found[0], found[-1])
  )
  return (last - first,)


def order(trained, folder):
  """What redrawn positions change, beside what another order does."""
  path = folder / 'order.csv'
  tables.write_csv(
    path,
    ('run', 'positions redrawn', 'tokens permuted'),
    [(name, *order_changes(one)[:2]) for name, one in trained.items()],
  )
  return [path]


def order_changes(trained):
  """Total variation under redrawn positions, under another order, the ratio."""
  found = order_invariance.measure(
    trained.run.model,
    trained.run.scheme,
    trained.state.params,
    _batches(trained)[0],
    seed=trained.run.config.seed,
  )
  redrawn = found.redrawn.total_variation
  permuted = found.permuted.total_variation
  return redrawn, permuted, redrawn / permuted


def _windows(trained):
  run_ = trained.run
  return data.load(run_.data, max(run_.eval.lengths)).evaluation(run_.eval)


def _batches(trained):
  """The first rows of what is tested, at 1x and 4x the training length."""
  windows = _windows(trained)
  length = trained.run.data.train_length
  return [
    {name: values[:_ROWS] for name, values in windows.batch(n).items()}
    for n in (length, 4 * length)
  ]
