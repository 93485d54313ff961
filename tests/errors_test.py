"""Error messages name the value, the limit and the fix.

`errors_cases.toml` lists mistakes and the facts their messages must contain.
The output of the commands in docs/errors.md must equal the page.
"""

import contextlib
import dataclasses  # noqa: F401
import io
import itertools
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib

import jax
import jax.numpy as jnp
import pytest

from lengen_jax import (
  attention,  # noqa: F401
  cli,
  encodings,  # noqa: F401
  errors,
  models,
  positions,
  tasks,  # noqa: F401
  testing,  # noqa: F401
)
from lengen_jax.evaluation.metrics import scrolls  # noqa: F401
from lengen_jax.interop import (
  nnx,  # noqa: F401
  t5x,  # noqa: F401
)
from lengen_jax.models import layers, presets
from lengen_jax.training import faults, files, loop

ROOT = pathlib.Path(__file__).parent.parent
PAGE = ROOT / 'docs' / 'errors.md'
CASES = tomllib.loads((ROOT / 'tests' / 'errors_cases.toml').read_text())
# The page's names for folders that differ between machines.
HOME, CLONE = '/home/you', '/home/you/lengen_jax'
TRAINED = 'runs/trained'
TRAIN = (
  f'train --config=configs/stdlib.py:tiny --workdir={TRAINED} '
  '--config.train.steps=4 --config.train.checkpoint_every=2'
)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """A folder with a finished run, to be copied."""
  folder = tmp_path_factory.mktemp('trained')
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr('lengen_jax.training.sharding.start', lambda: 0)
    patch.chdir(folder)
    (folder / 'configs').symlink_to(ROOT / 'configs')
    assert cli.main(TRAIN.split()) == 0
  return folder / TRAINED


@pytest.fixture
def home(tmp_path, monkeypatch):
  """A home folder that holds the configs only, as the working directory."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv('HOME', str(tmp_path))
  monkeypatch.delenv('LENGEN_DATA_DIR', raising=False)
  # The devices have started already.
  monkeypatch.setattr('lengen_jax.training.sharding.start', lambda: 0)
  (tmp_path / 'configs').symlink_to(ROOT / 'configs')
  (tmp_path / 'runs').mkdir()
  return tmp_path


def run(command, home):
  """Runs a shell command; of lengen returns (exit status, standard error)."""
  if not command.startswith('lengen '):
    subprocess.run(['sh', '-c', command], check=True)
    return 0, ''
  out, err = io.StringIO(), io.StringIO()
  with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
    status = cli.main(shlex.split(command.replace('\\\n', ' '))[1:])
  printed = err.getvalue()
  assert ('Traceback' in printed) == ('--debug' in command)
  return status, printed.replace(str(home), HOME).replace(str(ROOT), CLONE)


def commands(text):
  """The commands in a text, some of which take several lines."""
  return re.findall(r'^(?:.*\\\n)*.+', text, re.M)


def by_name(cases):
  return [pytest.param(case, id=case['name']) for case in cases]


@pytest.mark.some(6)
@pytest.mark.parametrize('case', by_name(CASES['command']))
def test_message_of_a_command(case, home, monkeypatch, request):
  for module in 'libtpu', 'apache_beam':
    monkeypatch.setitem(sys.modules, module, None)
  if TRAINED in case['run']:
    shutil.copytree(request.getfixturevalue('trained'), home / TRAINED)
  for command in commands(case['run']):
    status, printed = run(command, home)
  assert status == case.get('status', 2)
  *above, message = printed.splitlines()
  assert not above or '--debug' in case['run']
  assert message.startswith('lengen: ') or above
  missing = [fact for fact in case['facts'] if fact not in message]
  assert not missing, message


def given():
  """Values that the code of a [[call]] may use."""
  return {
    'key': jax.random.key(0),
    'x': jnp.ones((2, 16, 32)),
    'index': jnp.broadcast_to(jnp.arange(16)[None], (2, 16)),
    'q': jnp.ones((2, 8, 4, 8)),
    'layer': layers.Attention(num_heads=2, head_dim=16, encoding='rope'),
    'scheme': positions.create('randomized(max_position=64)'),
    'tiny': models.ModelConfig(**presets.get('tiny')),
  }


@pytest.mark.some(2)
@pytest.mark.parametrize('case', by_name(CASES['call']))
def test_message_of_a_call(case):
  names = {**globals(), **given()}
  with pytest.raises(getattr(errors, case['kind'])) as found:
    exec(case['code'], names)
  message = str(found.value)
  assert '\n' not in message
  missing = [fact for fact in case['facts'] if fact not in message]
  assert not missing, message


def at_step(number, happens):
  """Makes something happen when training reaches a step."""

  def arrange(patch):
    reached, calls = faults.Preemption.reached, itertools.count(1)

    def reach(self):
      if next(calls) == number:
        happens()
      return reached(self)

    patch.setattr(faults.Preemption, 'reached', reach)

  return arrange


def interrupt():
  # Workers of pytest-xdist ignore SIGINT.
  before = signal.signal(signal.SIGINT, signal.default_int_handler)
  try:
    signal.raise_signal(signal.SIGINT)
  finally:
    signal.signal(signal.SIGINT, before)


def break_pipe():
  raise BrokenPipeError


def full_disk(patch):
  usage = shutil._ntuple_diskusage(2**30, 2**30, 0)
  patch.setattr(files.shutil, 'disk_usage', lambda folder: usage)


def small_memory(patch):
  def out_of_memory(*arguments):
    raise jax.errors.JaxRuntimeError(
      'RESOURCE_EXHAUSTED: Out of memory allocating 9663676416 bytes.'
    )

  patch.setattr(loop.Loop, 'train', out_of_memory)


def without(*modules):
  def arrange(patch):
    for module in modules:
      patch.setitem(sys.modules, module, None)

  return arrange


# Circumstances that no command brings about, by heading of the page.
CIRCUMSTANCES = {
  'Ctrl-C': at_step(3, interrupt),
  'SIGTERM': at_step(3, lambda: signal.raise_signal(signal.SIGTERM)),
  'A full disk': full_disk,
  'Training that does not fit': small_memory,
  'A closed pipe': at_step(3, break_pipe),
  'A missing extra': without('seqio'),
}
# These train.
SLOW = {'Ctrl-C', 'A closed pipe', 'Losses that are not finite'}


def entries():
  """(heading, console text) of each entry of the page."""
  for part in re.split(r'^### ', PAGE.read_text(), flags=re.M)[1:]:
    heading, _, body = part.partition('\n')
    yield heading, re.search(r'^```console\n(.*?)^```', body, re.M | re.S)[1]


@pytest.mark.some(4)
@pytest.mark.parametrize(
  'heading, text',
  [
    pytest.param(*e, id=e[0], marks=[pytest.mark.slow] * (e[0] in SLOW))
    for e in entries()
  ],
)
def test_page_shows_the_output(heading, text, home, monkeypatch, request):
  if TRAINED in text:
    shutil.copytree(request.getfixturevalue('trained'), home / TRAINED)
  if heading in CIRCUMSTANCES:
    CIRCUMSTANCES[heading](monkeypatch)
  shown, status = '', 0
  for part in re.split(r'^\$ ', text, flags=re.M)[1:]:
    command = re.match(r'(.*\\\n)*.*', part)[0]
    if command == 'echo $?':
      printed = f'{status}\n'
    else:
      status, printed = run(command, home)
    shown += f'$ {command}\n{printed}'
  assert status == 2 or 'echo $?' in text
  pattern = '.*'.join(map(re.escape, text.split('...')))
  assert re.fullmatch(pattern, shown, re.S), f'{PAGE.name} needs:\n{shown}'


def test_headings_are_unique():
  headings = [heading for heading, _ in entries()]
  assert len({*headings}) == len(headings)
  assert not (CIRCUMSTANCES.keys() | SLOW) - {*headings}


def test_the_page_has_every_exit_status():
  def kinds(kind):
    return {kind}.union(*map(kinds, kind.__subclasses__()))

  statuses = {kind.exit_status for kind in kinds(errors.LengenError)}
  table = {int(s) for s in re.findall(r'^\| (\d+) \|', PAGE.read_text(), re.M)}
  assert table == {0, 130} | statuses
