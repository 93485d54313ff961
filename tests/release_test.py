"""Tests what is released: the wheel, and what says which version it is."""

import os
import pathlib
import re
import subprocess
import sys
import zipfile

import pytest

import lengen_jax
from tests import mutations

ROOT = pathlib.Path(lengen_jax.__file__).parent.parent


def test_version_is_the_same_everywhere():
  cff = (ROOT / 'CITATION.cff').read_text()
  assert f'\nversion: {lengen_jax.__version__}\n' in cff
  changes = (ROOT / 'CHANGELOG.md').read_text()
  assert re.search(r'^## (\S+?),? ', changes, re.M)[1] == lengen_jax.__version__


def test_mutations_change_the_code(capsys):
  """The texts that tests/mutations.py replaces are in the package."""
  assert not mutations.main(['--list']), capsys.readouterr().out


@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
  folder = tmp_path_factory.mktemp('wheel')
  # From a copy: building leaves folders behind.
  files = subprocess.run(
    ['git', 'ls-files', '-z', 'lengen_jax', 'configs', 'setup.py', 'README.md'],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=True,
  ).stdout.split('\0')
  for name in filter(None, files):
    copy = folder / 'source' / name
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes((ROOT / name).read_bytes())
  subprocess.run(
    [sys.executable, '-m', 'pip', 'wheel', '--quiet', '--no-deps']
    + ['--wheel-dir', folder, folder / 'source'],
    check=True,
  )
  (path,) = folder.glob('*.whl')
  return path


@pytest.mark.slow
def test_wheel_has_all_and_no_more(wheel):
  names = zipfile.ZipFile(wheel).namelist()
  have = {name for name in names if '.dist-info/' not in name}
  package = {str(p.relative_to(ROOT)) for p in ROOT.glob('lengen_jax/**/*.py')}
  configs = {f'lengen_jax/configs/{p.name}' for p in ROOT.glob('configs/*.py')}
  assert have == package | configs | {'lengen_jax/py.typed'}
  (metadata,) = (name for name in names if name.endswith('/METADATA'))
  text = zipfile.ZipFile(wheel).read(metadata).decode()
  assert f'\nVersion: {lengen_jax.__version__}\n' in text


@pytest.mark.slow
def test_wheel_works_without_the_repository(wheel, tmp_path):
  with zipfile.ZipFile(wheel) as file:
    file.extractall(tmp_path / 'site')
  command = (
    'import lengen_jax, sys; from lengen_jax import cli; '
    'print(lengen_jax.__file__); sys.exit(cli.main(sys.argv[1:]))'
  )
  done = subprocess.run(
    [sys.executable, '-c', command, 'train', '--config=configs/stdlib.py:tiny']
    + ['--workdir=run', '--config.train.steps=4'],
    cwd=tmp_path,
    env={
      **{k: v for k, v in os.environ.items() if k.startswith(('JAX', 'XLA'))},
      'PYTHONPATH': str(tmp_path / 'site'),
    },
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  assert done.stdout.startswith(str(tmp_path / 'site'))
