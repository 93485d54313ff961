"""Tests `lengen_jax/training/revision.py`."""

import subprocess

import pytest

from lengen_jax.training import revision
from tests import helpers


def git(folder, *arguments):
  return subprocess.run(
    ['git', '-c', 'user.name=a', '-c', 'user.email=a@b', *arguments],
    capture_output=True,
    check=True,
    cwd=folder,
    env=helpers.without_git_settings(),
    text=True,
  ).stdout.strip()


@pytest.fixture
def checkout(tmp_path):
  (tmp_path / 'package').mkdir()
  (tmp_path / 'package' / 'a.py').write_text('1')
  try:
    git(tmp_path, 'init')
  except OSError:
    pytest.skip('needs git')
  git(tmp_path, 'add', '.')
  git(tmp_path, 'commit', '--message=one')
  return tmp_path


def test_a_checkout(checkout):
  found = revision.of_checkout(checkout / 'package')
  assert len(found) == 40 and {*found} <= {*'0123456789abcdef'}


def test_another_repository_in_the_environment(checkout, tmp_path, monkeypatch):
  """As in a hook of git."""
  found = revision.of_checkout(checkout / 'package')
  assert found is not None
  git(tmp_path, 'init', 'other')
  monkeypatch.setenv('GIT_DIR', str(tmp_path / 'other' / '.git'))
  monkeypatch.setenv('GIT_INDEX_FILE', str(tmp_path / 'index'))
  revision.of_checkout.cache_clear()
  assert revision.of_checkout(checkout / 'package') == found


def test_the_running_code():
  try:
    head = git(helpers.ROOT, 'rev-parse', 'HEAD')
  except (OSError, subprocess.SubprocessError):
    pytest.skip('needs a checkout')
  revision.of_checkout.cache_clear()
  assert revision.running().removesuffix('+dirty') == head


def test_files_that_were_changed(checkout):
  (checkout / 'package' / 'b.py').write_text('')
  assert '+' not in revision.of_checkout(checkout / 'package')
  revision.of_checkout.cache_clear()
  (checkout / 'package' / 'a.py').write_text('2')
  assert revision.of_checkout(checkout / 'package').endswith('+dirty')


def test_no_checkout(checkout, tmp_path_factory, monkeypatch):
  assert revision.of_checkout(tmp_path_factory.mktemp('elsewhere')) is None
  # As a package installed into an environment that lies in the checkout.
  (checkout / 'installed').mkdir()
  (checkout / 'installed' / 'a.py').write_text('1')
  assert revision.of_checkout(checkout / 'installed') is None
  monkeypatch.setenv('PATH', '')
  revision.of_checkout.cache_clear()
  assert revision.of_checkout(checkout / 'package') is None
