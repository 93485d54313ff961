"""Runs the scripts with a gcloud that plays; see gcloud.sh."""

import os
import pathlib
import re
import signal
import subprocess

import pytest

HERE = pathlib.Path(__file__).parent
SCRIPTS = HERE.parents[1] / 'tpu_scripts'
SETTINGS = {
  'PROJECT': 'p',
  'ZONE': 'z',
  'ACCELERATOR_TYPE': 'v4-16',
  'REPOSITORY': 'https://host/repository',
  'REVISION': 'abc',
  'WORKDIR': 'gs://b/w',
  'CONFIG': 'configs/a.py:base',
}


class Cloud:
  """A folder with the stub, what it plays and what it was called with."""

  def __init__(self, root):
    self.root = root
    self.env = {
      'PATH': f'{root}/local:{os.environ["PATH"]}',
      'REMOTE_PATH': os.environ['PATH'],
      'STUB': str(root),
      'HOME': str(root),
      'SIMULATE': '1',
      **SETTINGS,
    }
    (root / 'local').mkdir()
    (root / 'local/gcloud').symlink_to(HERE / 'gcloud.sh')
    # Scripts sleep in no time, and tell for how long.
    self.program('local/sleep', f'echo "$1" >> {root}/slept')

  def program(self, name, text):
    path = self.root / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/bash\n{text}\n')
    path.chmod(0o755)

  def exists(self, state='READY'):
    (self.root / 'machine').write_text(state)
    for n in range(2):
      (self.root / f'home-{n}').mkdir(exist_ok=True)

  def plays(self, **plays):
    """What gcloud says next, for each of its verbs and those of worker.sh."""
    folder = self.root / 'plays'
    folder.mkdir(exist_ok=True)
    for verb, scenes in plays.items():
      (folder / verb).write_text(''.join(f'{scene}\n' for scene in scenes))

  def run(self, line, stdin='', **settings):
    """Runs a script; `line` is its name and arguments."""
    name, *arguments = line.split()
    process = subprocess.Popen(
      ['bash', SCRIPTS / name, *arguments],
      env=self.env | settings,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      start_new_session=True,
    )
    try:
      out, err = process.communicate(stdin, timeout=30)
    finally:
      # What a script that goes on for ever has called would do so, too.
      if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(line, process.returncode, out, err)

  @property
  def calls(self):
    path = self.root / 'calls'
    text = path.read_text() if path.exists() else ''
    return [call.split('\37')[:-1] for call in text.split('\36')[:-1]]

  @property
  def verbs(self):
    """What was done, without the questions."""
    done = []
    for call in self.calls:
      command = re.search(r'lengen_worker\.sh (\w+)', call[-4])
      done.append(command[1] if call[3] == 'ssh' else call[3])
    return [verb for verb in done if verb not in ('describe', 'status', 'scp')]

  @property
  def slept(self):
    path = self.root / 'slept'
    return path.read_text().split() if path.exists() else []


@pytest.fixture
def cloud(tmp_path):
  return Cloud(tmp_path)
