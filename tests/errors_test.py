"""Makes the mistakes of docs/errors.md and compares what is said of them."""

import contextlib
import io
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys

import jax
import pytest

from lengen_jax import cli
from lengen_jax import errors
from lengen_jax.training import faults
from lengen_jax.training import files
from lengen_jax.training import loop

ROOT = pathlib.Path(__file__).parent.parent
PAGE = ROOT / 'docs' / 'errors.md'
# The page's names for folders that differ from machine to machine.
HOME, CLONE = '/home/you', '/home/you/lengen_jax'
# The run that entries may take for granted, which is made once.
TRAINED = 'runs/trained'
TRAIN = (
  f'train --config=configs/stdlib.py:tiny --workdir={TRAINED} '
  '--config.train.steps=4 --config.train.checkpoint_every=2'
)


def entries():
  """(heading, fences) of each entry; a fence is (language, its text)."""
  for part in re.split(r'^### ', PAGE.read_text(), flags=re.M)[1:]:
    heading, _, body = part.partition('\n')
    fences = re.findall(r'^```(console|pycon)\n(.*?)^```', body, re.M | re.S)
    yield heading, fences


def prelude():
  """The imports that the page's Python takes for granted."""
  return re.search(r'^```python\n(.*?)^```', PAGE.read_text(), re.M | re.S)[1]


def commands(text):
  """The commands of a console, some over several lines."""
  for part in re.split(r'^\$ ', text, flags=re.M)[1:]:
    command = re.match(r'(.*\\\n)*.*', part)[0]
    yield command


def statements(text):
  """The statements of a Python session, and what its last one prints."""
  lines = text.splitlines()
  code = [line[4:] for line in lines if line.startswith(('>>> ', '... '))]
  return '\n'.join(code), '\n'.join(lines[len(code) :])


def matches(printed, page):
  """Whether a page has what is printed, '...' there standing for anything."""
  pattern = '.*'.join(map(re.escape, page.split('...')))
  return re.fullmatch(pattern, printed, re.S) is not None


def last_line(error):
  """The last line of the traceback of an error."""
  kind = type(error)
  return f'{kind.__module__}.{kind.__qualname__}: {error}\n'


class Console:
  """A shell in a folder, whose `lengen` runs in this process."""

  def __init__(self, folder):
    self._folder, self._status = folder, None

  def run(self, command):
    """What a command prints on stderr, in the page's words for folders."""
    if command == 'echo $?':
      return f'{self._status}\n'
    if not command.startswith('lengen '):
      subprocess.run(['sh', '-c', command], check=True)
      return ''
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
      arguments = shlex.split(command.replace('\\\n', ' '))
      self._status = cli.main(arguments[1:])
    printed = err.getvalue()
    assert ('Traceback' in printed) == ('--debug' in command)
    return printed.replace(str(self._folder), HOME).replace(str(ROOT), CLONE)

  @property
  def status(self):
    """Of the last lengen."""
    return self._status


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
  """A home folder, to work in, with nothing but the configs."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv('HOME', str(tmp_path))
  monkeypatch.delenv('LENGEN_DATA_DIR', raising=False)
  # The devices are there already.
  monkeypatch.setattr('lengen_jax.training.sharding.start', lambda: 0)
  (tmp_path / 'configs').symlink_to(ROOT / 'configs')
  (tmp_path / 'runs').mkdir()
  return tmp_path


def at_step(number, happens):
  """Has something happen when a step is reached."""

  def arrange(patch):
    reached = faults.Preemption.reached

    def reach(self, step):
      if step == number:
        happens()
      return reached(self, step)

    patch.setattr(faults.Preemption, 'reached', reach)

  return arrange


def signalled(number):
  return at_step(3, lambda: os.kill(os.getpid(), number))


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

  patch.setattr(loop, '_steps', out_of_memory)


def without(*modules):
  def arrange(patch):
    for module in modules:
      patch.setitem(sys.modules, module, None)

  return arrange


# What no command brings about, by heading.
CIRCUMSTANCES = {
  'Ctrl-C': signalled(signal.SIGINT),
  'Told to stop': signalled(signal.SIGTERM),
  'A full disk': full_disk,
  'Training that does not fit': small_memory,
  'Output that nobody reads': at_step(3, break_pipe),
  'Without the extra for data': without('seqio'),
  'Without the extra for TPUs that are not there': without('libtpu'),
}
# They train.
SLOW = {'Ctrl-C', 'Output that nobody reads', 'Losses that are not finite'}


def show(language, text, home):
  """A fence as it ought to be: its commands, and what they print now."""
  if language == 'pycon':
    code, _ = statements(text)
    names = {}
    exec(prelude(), names)
    with pytest.raises(errors.LengenError) as found:
      exec(code, names)
    shown = [line for line in text.splitlines() if line[:4] in ('>>> ', '... ')]
    return '\n'.join(shown) + '\n' + last_line(found.value)
  console, shown = Console(home), ''
  for command in commands(text):
    shown += f'$ {command}\n{console.run(command)}'
  # The page says so where it is another.
  if 'echo $?' not in text:
    assert console.status == 2
  return shown


@pytest.mark.parametrize(
  'heading, fences',
  [
    pytest.param(
      *entry, id=entry[0], marks=[pytest.mark.slow] * (entry[0] in SLOW)
    )
    for entry in entries()
  ],
)
def test_the_page_has_what_is_printed(
  heading, fences, home, monkeypatch, request
):
  assert fences, f'{heading} has nothing to run'
  if any(TRAINED in text for _, text in fences):
    shutil.copytree(request.getfixturevalue('trained'), home / TRAINED)
  if heading in CIRCUMSTANCES:
    CIRCUMSTANCES[heading](monkeypatch)
  for language, text in fences:
    printed = show(language, text, home)
    assert matches(printed, text), f'{PAGE.name} should have:\n{printed}'


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
