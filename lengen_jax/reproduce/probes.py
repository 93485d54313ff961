"""Looks into models that another part of an experiment has trained."""

import csv

from lengen_jax import data
from lengen_jax.analysis import attention_maps
from lengen_jax.analysis import bias_maps
from lengen_jax.evaluation import order_invariance
from lengen_jax.reproduce import drawings
from lengen_jax.training import loop

# Rows of a batch that is looked at.
_ROWS = 4


def check(part, scale, overrides):
  """Nothing can be wrong with it that is not wrong with what it looks into."""
  del part, scale, overrides


def run(part, scale, folder, seeds, overrides, before):
  """Looks into the models of the first seed; a part of the results."""
  del scale, overrides
  (of,) = (one for one in before if one['name'] == part.of)
  trained = {
    row['name']: loop.restore(
      folder.parent / part.of / f'seed{seeds[0]}' / row['folder']
    )
    for row in of['rows']
    if row['name'] in part.rows
  }
  folder.mkdir(parents=True, exist_ok=True)
  return drawings.part_of(part.name, part.draw(trained, folder), folder)


def biases(trained, folder):
  """FIRE's figures 4 and 8, and the thresholds that were learned."""
  paths = []
  for name, one in trained.items():
    paths += bias_maps.figure(one, folder / name)
    thresholds = bias_maps.thresholds(one)
    path = folder / name / 'thresholds.csv'
    _write(path, ('layer', 'tokens'), thresholds.items())
    paths.append(path)
  return paths


def matrices(trained, folder):
  """Attention matrices at the training length and at four times that."""
  lengths = [
    ratio * one.run.data.train_length
    for one in list(trained.values())[:1]
    for ratio in (1, 4)
  ]
  return attention_maps.figure(trained, _batches(trained, lengths), folder)


def entropy(trained, folder):
  """Entropy of attention by length."""
  (train_length,) = {one.run.data.train_length for one in trained.values()}
  found = {
    name: attention_maps.entropies(one, _windows(one))
    for name, one in trained.items()
  }
  return attention_maps.entropy_figure(found, folder, train_length=train_length)


def order(trained, folder):
  """What redrawn positions change, beside what another order does."""
  rows = []
  for name, one in trained.items():
    (batch,) = _batches({name: one}, [one.run.data.train_length])
    found = order_invariance.measure(
      one.run.model,
      one.run.scheme,
      one.state.params,
      batch,
      seed=one.run.config.seed,
    )
    rows.append(
      (name, found.redrawn.total_variation, found.permuted.total_variation)
    )
  path = folder / 'order.csv'
  _write(path, ('run', 'positions redrawn', 'tokens permuted'), rows)
  return [path]


def _windows(trained):
  run_ = trained.run
  return data.load(run_.data, max(run_.eval.lengths)).evaluation(run_.eval)


def _batches(trained, lengths):
  """The first rows of the windows that are tested, at each length."""
  windows = _windows(next(iter(trained.values())))
  return [
    {name: values[:_ROWS] for name, values in windows.batch(length).items()}
    for length in lengths
  ]


def _write(path, head, rows):
  """Writes a CSV."""
  with path.open('w', newline='') as file:
    lines = csv.writer(file, lineterminator='\n')
    lines.writerow(head)
    lines.writerows(rows)
