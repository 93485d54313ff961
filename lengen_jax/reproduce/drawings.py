"""Makes `experiment.Drawing`."""

from lengen_jax.reproduce import experiment as experiment_lib
from lengen_jax.reproduce import rows as rows_lib


def check(part, request):
  """Nothing can be wrong with it."""
  del part, request


def run(part, request, before):
  """Draws it; the same at every scale."""
  del before
  folder = request.folder / part.name
  folder.mkdir(parents=True, exist_ok=True)
  by_seed = []
  if part.figures is not None:
    # Nothing in it depends on a seed.
    by_seed = [part.figures.measure()] * len(request.seeds)
  return results(part, part.draw(folder), folder, by_seed) | {'exact': True}


def results(part, paths, folder, by_seed):
  """A part of the results that is files, and numbers for claims.

  Args:
    part: a Drawing or a Probe.
    paths: of the files.
    folder: in or below which they are.
    by_seed: for each seed {row: a number for each column}; none without
      figures.
  """
  names = list(by_seed[0]) if by_seed else []
  return {
    'kind': 'drawing',
    'name': part.name,
    'unit': part.figures.unit if part.figures else '',
    'files': [str(path.relative_to(folder)) for path in paths],
    'columns': list(part.figures.columns) if part.figures else [],
    'of_seeds': 'mean',
    'rows': [
      rows_lib.make(
        experiment_lib.Row(name, '', part.figures.paper.get(name)),
        '',
        [list(found[name]) for found in by_seed],
        'mean',
      )
      for name in names
    ],
    'standin': None,
    'differences': [],
    'train_seconds': 0.0,
  }
