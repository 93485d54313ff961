"""What README and docs show runs, page by page; their links lead somewhere.

Blocks of Python run top to bottom; one that begins with `# name.py` is a file
of that name. Commands of `sh` blocks run too, at the size `tiny` where they ask
for `cpu`, comparisons and sweeps with one run. What needs data, a pod or hours
is marked `sh notest`: that these commands exist, take these flags, and that
these fields are in the config, is checked all the same.
"""

import ast
import os
import pathlib
import re
import shlex

import pytest

from docs import write_reference
from lengen_jax import arguments as arguments_lib
from lengen_jax import (
  cli,
  encodings,
  errors,
  positions,
  reproduce,
  specs,
  tasks,
)
from lengen_jax.positions import contextual
from lengen_jax.training import config_file, pods, run, runs

ROOT = pathlib.Path(__file__).parent.parent
PAGES = [
  ROOT / 'README.md',
  ROOT / 'CONTRIBUTING.md',
  ROOT / 'CHANGELOG.md',
  ROOT / 'benchmarks' / 'README.md',
  *sorted((ROOT / 'docs').glob('*.md')),
  ROOT / 'tpu_scripts' / 'README.md',
]
# Programs that are not ours.
OTHERS = ('.', 'cd', 'cp', 'gcloud', 'git', 'mkdir', 'ssh-add', 'ssh-keygen')
# How a block begins that is a file.
FILE = re.compile(r'# (\w+\.py)\n')


def blocks(page, info):
  """(number of the first line, text) of each block of a kind."""
  text = page.read_text()
  for match in re.finditer(rf'^```{info}\n(.*?)^```', text, re.M | re.S):
    yield text[: match.start(1)].count('\n'), match[1]


def called(page):
  return str(page.relative_to(ROOT))


def commands(text):
  """Commands of a block, without comments, as lists of words."""
  started = ''
  for line in text.replace('\\\n', ' ').splitlines():
    started += line
    try:
      words = shlex.split(started, comments=True)
    except ValueError:  # Inside of quotes.
      started += '\n'
      continue
    started = ''
    if words:
      yield words


def runnable(page):
  return [
    *((line, 'python', text) for line, text in blocks(page, 'python')),
    *((line, 'sh', text) for line, text in blocks(page, 'sh')),
  ]


@pytest.fixture
def reader(monkeypatch, tmp_path):
  """Somebody in a folder with the repository's, who keeps no encodings."""
  for name in ('configs', 'docs', 'tests', 'tpu_scripts'):
    (tmp_path / name).symlink_to(ROOT / name)
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.setattr('lengen_jax.training.sharding.start', lambda: 0)
  # A checkpoint, and the length it was trained at.
  monkeypatch.setenv('CHECKPOINT', 'tests/golden/checkpoints/llama3')
  monkeypatch.setenv('TRAINED', '64')
  registries = (
    *(encodings.ENCODINGS, contextual.CONTEXTUAL),
    *(positions.SCHEMES, tasks.TASKS),
  )
  before = [dict(registry) for registry in registries]
  yield tmp_path
  for registry, names in zip(registries, before, strict=True):
    for name in registry.keys() - names.keys():
      del registry[name]


@pytest.mark.slow
@pytest.mark.parametrize(
  'page', [page for page in PAGES if runnable(page)], ids=called
)
def test_blocks_run(page, reader):
  names = {}
  write_files(page, reader)
  for line, kind, text in sorted(runnable(page)):
    if kind == 'sh':
      for words in commands(text):
        assert words[0] == 'lengen', f'{page.name}:{line}: sh notest, please'
        words = small([set_in(os.environ, word) for word in words])
        words = [last_run(word, words) for word in words]
        assert cli.main(words[1:]) == 0, words
    elif not FILE.match(text):
      # Line numbers of an error are those of the page.
      exec(compile('\n' * line + text, str(page), 'exec'), names)


def write_files(page, folder):
  for _, text in blocks(page, 'python'):
    if file := FILE.match(text):
      (folder / file[1]).write_text(text)


def small(words):
  """A command at the size `tiny`: one layer, one length, one run of a sweep."""
  words = [re.sub(r'([:,])cpu$', r'\1tiny', word) for word in words]
  words = [re.sub(r'(configs/pretrained.py:.*)', r'\1,tiny', x) for x in words]
  # Models of this size are trained on bytes, which need no vocabulary.
  words = [word for word in words if not word.startswith('--vocabulary=')]
  fields = {}
  # A pretrained checkpoint determines its number of layers.
  sized = [word for word in words if 'pretrained.py' not in word]
  if any(word.endswith(('py:tiny', ',tiny')) for word in sized):
    fields['--config.model.num_layers'] = '1'
  if any(word.endswith('stdlib.py:tiny') for word in words):
    fields['--config.eval.lengths'] = '(64,)'
  if len(sized) < len(words):
    fields['--config.eval.lengths'] = '(128,)'
  if words[1] == 'sweep':
    fields |= {'--config.sweep.seeds': '(0,)', '--config.sweep.runs': 'rope'}
  given = {word.partition('=')[0] for word in words}
  return words + [f'{k}={v}' for k, v in fields.items() if k not in given]


def last_run(word, words):
  """The last run of --runs; all are checked."""
  if not word.startswith('--runs='):
    return word
  arguments, overrides = arguments_lib.create().parse_known_args(words[1:])
  config = config_file.load(arguments.config, overrides)
  for one in runs.parse(arguments.runs, config):
    checked = run.Run(runs.configure(config, one))
    checked.check_step()
    if one.tested_as:
      checked.tested_as(one.tested_as)
  return '--runs=' + specs.split(arguments.runs, ';')[-1]


@pytest.mark.parametrize('page', PAGES, ids=called)
def test_other_blocks_could_run(page, reader):
  for _, text in blocks(page, 'python notest'):
    ast.parse(text)
  write_files(page, reader)
  environment = dict(os.environ)
  for _, text in blocks(page, 'sh notest'):
    for words in commands(text):
      while words and re.match(r'\w+=', words[0]):
        check_given(set_in(environment, words.pop(0)))
      if words and words[0] == 'export':
        words = [set_in(environment, word) for word in words[1:]]
        environment |= dict(word.split('=', 1) for word in words)
        for word in words:
          check_given(word)
      elif words:
        check([set_in(environment, word) for word in words])


def check_given(assignment):
  """The commands that workers of a pod are given, too."""
  name, _, value = assignment.partition('=')
  for command in value.split('&&') if name == 'LENGEN_COMMAND' else ():
    check(shlex.split(command))


def set_in(environment, word):
  """A word with the value of each $NAME in it."""
  return re.sub(r'\$(\w+)', lambda name: environment[name[1]], word)


def check(words):
  """Raises unless a command exists and takes what it is given."""
  program, *rest = words
  program = program.removeprefix('.venv-aot/bin/')
  if program == 'lengen':
    arguments, overrides = arguments_lib.create().parse_known_args(rest)
    if 'config' in arguments:
      config = config_file.load(arguments.config, overrides)
      if arguments.command == 'compare' and '$' not in arguments.runs:
        runs.parse(arguments.runs, config)
    else:
      free = ('reproduce', 'lm_eval')
      assert arguments.command in free or not overrides, words
    if arguments.command == 'reproduce' and arguments.experiment:
      experiment = reproduce.get(arguments.experiment)
      assert any(arguments.scale in part.scales for part in experiment.parts)
    if arguments.command == 'compile':
      pods.get(arguments.pod, arguments.slices)
  elif program == 'make':
    makefile = (ROOT / 'Makefile').read_text()
    for target in rest:
      assert '=' in target or re.search(rf'^{target}:', makefile, re.M), words
  elif program == 'pip':
    setup = (ROOT / 'setup.py').read_text()
    for extra in re.findall(r'\[(.*)\]', ' '.join(rest)):
      assert all(f"'{one}': [" in setup for one in extra.split(',')), words
  elif program == 'python':
    assert rest[0] == '-m', words
    path = ROOT / rest[1].replace('.', '/')
    installed = rest[1].split('.')[0] not in ('benchmarks', 'lengen_jax')
    assert installed or path.with_suffix('.py').exists(), words
  elif program.startswith('tpu_scripts/'):
    assert (ROOT / program).exists(), words
  else:
    assert program in OTHERS, words


@pytest.fixture(scope='session')
def reference(tmp_path_factory):
  """The built reference: every public name is documented and annotated."""
  folder = tmp_path_factory.mktemp('docs') / 'reference'
  write_reference.write(folder)
  return folder


def test_reference_builds(reference):
  pages = {page.name: page.read_text() for page in reference.glob('*.md')}
  assert pages.keys() >= {'index.md', 'encodings.md', 'attention.md'}
  assert 'dot_product_attention(' in pages['attention.md']
  for name, text in pages.items():
    for target in re.findall(r'\]\((?!http)([^)#\s]+)', text):
      assert target in pages, f'{name}: {target}'


@pytest.fixture
def reference_of(monkeypatch, tmp_path):
  """A function that writes the reference of a module with some source."""

  def write(source):
    package = tmp_path / 'lengen_jax'
    package.mkdir()
    (package / '__init__.py').write_text('"""A package."""')
    (package / 'errors.py').write_text(f'"""Errors."""\n{source}')
    monkeypatch.setattr(write_reference, 'ROOT', tmp_path)
    monkeypatch.setattr(write_reference, 'PAGES', {'errors': ('errors',)})
    return write_reference.pages()['errors.md']

  return write


def test_what_is_public_has_a_docstring(reference_of):
  with pytest.raises(ValueError, match='one_of has no docstring'):
    reference_of('def one_of() -> None: pass')


@pytest.mark.parametrize(
  'source, missing',
  [
    ('def one(a, b: int) -> int:\n  "One."', 'one has no annotation of a'),
    ('def one(*a: int, **b) -> int:\n  "One."', 'one has no annotation of b'),
    ('def one(a: int):\n  "One."', 'one has no return annotation'),
    (
      'class A:\n  "A."\n  def one(self): pass',
      'A.one has no return annotation',
    ),
  ],
)
def test_what_is_public_has_hints(source, missing, reference_of):
  with pytest.raises(ValueError, match=missing):
    reference_of(source)


def test_hints_in_the_reference(reference_of):
  source = """
import jax
from lengen_jax import specs

def one(a: specs.Spec, *, b: jax.Array | None = None) -> list[specs.Spec]:
  "One."
"""
  page = reference_of(source)
  assert 'one(a: Spec, *, b: jax.Array | None = None) -> list[Spec]' in page


def test_a_mistake_in_a_command_is_found(reader):
  for line in (
    'make tset',
    "pip install 'lengen_jax[dta]'",
    'python -m benchmarks.attention_gup',
    'tpu_scripts/crate.sh',
    'lengne list',
    'lengen list --config.seed=1',
  ):
    with pytest.raises(AssertionError):
      check(shlex.split(line))
  with pytest.raises(errors.ConfigError):
    check(shlex.split('lengen train --config=configs/c4.py --workdir=x'))


@pytest.mark.parametrize('page', PAGES, ids=called)
def test_links_lead_somewhere(page, reference):
  text = page.read_text()
  for target in re.findall(r'\]\((?!http)([^)\s]+)\)', text):
    path, _, anchor = target.partition('#')
    other = (page.parent / path) if path else page
    if 'reference/' in path:  # Built, not committed.
      other = reference / other.name
    assert other.exists(), target
    if anchor:
      prose = re.sub(r'^```.*?^```', '', other.read_text(), flags=re.M | re.S)
      heads = re.findall(r'^#+ (.*)$', prose, re.M)
      slugs = {
        re.sub(r'[^\w -]', '', head.lower()).replace(' ', '-') for head in heads
      }
      assert anchor in slugs, target
