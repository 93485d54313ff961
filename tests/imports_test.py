"""Tests what `lengen_jax` imports, and when."""

import ast
import pathlib
import subprocess
import sys

import pytest

import lengen_jax

ROOT = pathlib.Path(lengen_jax.__file__).parent

# A module imports from its own rank or below.
RANKS = {
  'cli': 8,
  'allocator': 0,
  'arguments': 0,
  'reproduce': 7,
  'analysis': 6,
  'training': 5,
  'interop': 5,
  'testing': 5,
  'evaluation': 4,
  'models': 3,
  'data': 3,
  'tasks': 3,
  'attention': 2,
  'encodings': 1,
  'positions': 1,
  'locks': 0,
  'partitioning': 0,
  'papers': 0,
  'progress': 0,
  'specs': 0,
  'submodules': 0,
  'errors': 0,
  'extra': 0,
  'types': 0,
}
TENSORFLOW = {
  'tensorflow',
  'tensorflow_datasets',
  'tensorflow_text',
  'seqio',
  'tfds',
}


def layer(path):
  """Which layer of the package a source file belongs to."""
  return path.relative_to(ROOT).parts[0].removesuffix('.py')


def imported(tree):
  """Names of all modules that a syntax tree imports, wherever it does so."""
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, 'imports name the package'
      yield from (f'{node.module}.{alias.name}' for alias in node.names)


def sources():
  return sorted(
    path for path in ROOT.rglob('*.py') if path != ROOT / '__init__.py'
  )


def upward(source, name):
  """Imports in `source`, a module of layer `name`, that point upwards."""
  return [
    target
    for target in imported(ast.parse(source))
    if target.startswith('lengen_jax.')
    and RANKS.get(target.split('.')[1], -1) > RANKS[name]
  ]


def loaded(statement, names):
  """Those of `names` that a fresh interpreter has loaded after `statement`."""
  code = f'import sys\n{statement}\nprint(*sorted(sys.modules))'
  run = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, check=True
  )
  return sorted(
    {module.split('.')[0] for module in run.stdout.split()} & set(names)
  )


def test_package_loads_nothing_heavy():
  heavy = {'jax', 'flax', 'numpy', 'matplotlib', *TENSORFLOW}
  assert loaded('import lengen_jax; lengen_jax.__version__', heavy) == []


def test_encodings_load_neither_tensorflow_nor_matplotlib():
  names = {'jax', 'matplotlib', *TENSORFLOW}
  assert loaded('from lengen_jax import encodings', names) == ['jax']


@pytest.mark.parametrize(
  'name', ['models.presets', 'models.config', 'interop.hf.families']
)
def test_model_sizes_load_no_jax(name):
  names = {'jax', 'flax', 'matplotlib', *TENSORFLOW}
  assert loaded(f'import lengen_jax.{name}', names) == []


def test_submodules_load_on_use():
  statement = 'import lengen_jax; lengen_jax.encodings.create'
  assert loaded(statement, {'jax', 'matplotlib'}) == ['jax']


def test_unknown_attribute():
  with pytest.raises(AttributeError, match="no attribute 'encoding'"):
    _ = lengen_jax.encoding


@pytest.mark.parametrize(
  'path', sources(), ids=lambda path: str(path.relative_to(ROOT))
)
def test_imports_point_downwards(path):
  name = layer(path)
  assert name in RANKS, f'{name} has no rank; add it'
  source = path.read_text()
  assert upward(source, name) == []
  roots = {target.split('.')[0] for target in imported(ast.parse(source))}
  if name != 'data':
    assert not roots & TENSORFLOW
  if name != 'analysis':
    assert 'matplotlib' not in roots


def test_upward_imports_are_found():
  source = 'def f():\n  from lengen_jax import training, errors\n'
  assert upward(source, 'models') == ['lengen_jax.training']
  assert upward('import lengen_jax.cli', 'analysis') == ['lengen_jax.cli']
  assert upward('from lengen_jax.models import config', 'encodings') == [
    'lengen_jax.models.config'
  ]
  assert upward('from lengen_jax.positions import base', 'encodings') == []


def test_submodules_are_attributes():
  for name in 'interop.weights', 'evaluation.metrics.scrolls', 'training.sweep':
    module = lengen_jax
    for part in name.split('.'):
      module = getattr(module, part)
    assert module.__name__ == f'lengen_jax.{name}'
  with pytest.raises(AttributeError, match="no attribute 'nothing'"):
    _ = lengen_jax.interop.nothing
