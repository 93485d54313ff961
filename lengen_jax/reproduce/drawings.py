"""Makes `experiment.Drawing`."""


def check(part, scale, overrides):
  """Nothing can be wrong with it."""
  del part, scale, overrides


def run(part, scale, folder, seeds, overrides, before):
  """Draws it; the same at every scale."""
  del scale, seeds, overrides, before
  folder.mkdir(parents=True, exist_ok=True)
  return part_of(part.name, part.draw(folder), folder)


def part_of(name, paths, folder):
  """A part of the results that is files and no figures.

  Args:
    name: of the part.
    paths: of the files.
    folder: in or below which they are.
  """
  return {
    'kind': 'drawing',
    'name': name,
    'files': [str(path.relative_to(folder)) for path in paths],
    'columns': [],
    'rows': [],
    'standin': None,
    'differences': [],
    'train_seconds': 0.0,
  }
