"""The Python of the README and of the docs runs, page by page; so does sh."""

import os
import pathlib
import re
import shlex

import pytest

from lengen_jax import cli
from lengen_jax import encodings

ROOT = pathlib.Path(__file__).parent.parent
PAGES = [ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md'))]


def blocks(page, language='python'):
  """(number of the first line, code) of each block that is to run."""
  text = page.read_text()
  for match in re.finditer(rf'^```{language}\n(.*?)^```', text, re.M | re.S):
    yield text[: match.start(1)].count('\n'), match[1]


@pytest.fixture
def registry():
  """Forgets the encodings that a page registers."""
  before = dict(encodings.ENCODINGS)
  yield
  for name in encodings.ENCODINGS.keys() - before.keys():
    del encodings.ENCODINGS[name]


@pytest.mark.parametrize(
  'page',
  [
    # It runs all properties of an encoding.
    pytest.param(page, marks=[pytest.mark.slow] * (page.name == 'README.md'))
    for page in PAGES
    if list(blocks(page))
  ],
  ids=lambda page: page.name,
)
def test_python_runs(page, registry, monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  names = {}
  for line, code in blocks(page):
    # Line numbers of an error are those of the page.
    exec(compile('\n' * line + code, str(page), 'exec'), names)


@pytest.mark.slow
@pytest.mark.parametrize(
  'page',
  [page for page in PAGES if list(blocks(page, 'sh'))],
  ids=lambda page: page.name,
)
def test_commands_run(page, monkeypatch, tmp_path):
  """On a tiny model, where they name one."""
  monkeypatch.setattr('lengen_jax.training.sharding.start', lambda: 0)
  monkeypatch.setenv('LLAMA', f'{ROOT}/tests/golden/llama/untied,tiny')
  monkeypatch.setenv('TRAINED', '32')
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'configs').symlink_to(ROOT / 'configs')
  for _, code in blocks(page, 'sh'):
    for line in code.replace('\\\n', '').split('\nlengen '):
      words = shlex.split(os.path.expandvars(line.removeprefix('lengen ')))
      assert cli.main(words) == 0, line


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
  text = page.read_text()
  for target in re.findall(r'\]\((?!http)([^)\s]+)\)', text):
    path, _, anchor = target.partition('#')
    other = (page.parent / path) if path else page
    assert other.exists(), target
    if anchor:
      heads = re.findall(r'^#+ (.*)$', other.read_text(), re.M)
      slugs = {
        re.sub(r'[^\w -]', '', head.lower()).replace(' ', '-') for head in heads
      }
      assert anchor in slugs, target
