"""Makes `experiment.Drawing`."""


def check(part, scale, overrides):
  """Nothing can be wrong with it."""
  del part, scale, overrides


def run(part, scale, folder, seeds, overrides, before):
  """Draws it; the same at every scale."""
  del scale, seeds, overrides, before
  folder.mkdir(parents=True, exist_ok=True)
  paths = part.draw(folder)
  return {
    'kind': 'drawing',
    'name': part.name,
    'files': [path.name for path in paths],
    'columns': [],
    'rows': [],
    'standin': None,
    'differences': [],
    'train_seconds': 0.0,
  }
