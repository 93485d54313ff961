"""Tests what happens on the workers: each is a folder, all else is real."""

import os
import re
import subprocess
import sys
import time

import pytest

from tests import helpers
from tests.tpu_scripts import conftest

pytestmark = [
  pytest.mark.one_jax,
  pytest.mark.skipif(
    sys.platform != 'linux', reason='workers are Linux machines'
  ),
]

# Makes an environment whose pip installs the `lengen` of the test.
PYTHON = r"""
case "$*" in
  "-c import ensurepip") ;;
  "-m venv venv")
    mkdir -p venv/bin
    cp "$0" venv/bin/python
    ;;
  "-m pip --version") ;;
  "-m pip install --quiet --editable ./source"*)
    echo "$*" >> pip.log
    cp "$STUB/lengen" venv/bin/lengen
    ;;
  *) exit 9 ;;
esac
"""


def git(*words):
  done = subprocess.run(
    ['git', '-c', 'user.name=n', '-c', 'user.email=e', *words],
    check=True,
    capture_output=True,
    env=helpers.without_git_settings(),
    text=True,
  )
  return done.stdout.strip()


def commit(repository, text):
  (repository / 'text').write_text(text)
  git('-C', repository, 'add', 'text')
  git('-C', repository, 'commit', '-qm', text)
  return git('-C', repository, 'rev-parse', 'HEAD')


class Pod(conftest.Cloud):
  """A machine that was created, with a repository to install from."""

  def __init__(self, root):
    super().__init__(root)
    self.repository = root / 'repository'
    git('init', '-q', self.repository)
    self.env['REPOSITORY'] = str(self.repository)
    self.env['REVISION'] = commit(self.repository, 'first')
    self.env['SIMULATE'] = '0'
    self.program('remote/hostname', 'echo "$FAKE_HOST"')
    self.program('remote/python3.11', PYTHON)
    self.homes = [root / 'home-0', root / 'home-1']

  def lengen(self, text):
    """What the `lengen` that is installed does."""
    self.program('lengen', text)

  def ready(self, text):
    self.exists()
    self.lengen(text)
    done = self.run('setup.sh')
    assert done.returncode == 0, done.stderr
    return done

  def states(self):
    done = self.run('status.sh')
    assert done.returncode == 0, done.stderr
    return [line.split()[1:3] for line in done.stdout.splitlines()[1:]]

  def wait(self, state, *status):
    for _ in range(100):
      states = self.states()
      if states == [[state, *status]] * 2:
        return
      time.sleep(0.05)
    raise AssertionError(states)

  @property
  def log(self):
    return self.homes[1] / 'lengen/logs/latest.log'

  def wait_for_text(self, text):
    limit = time.monotonic() + 60
    while text not in self.log.read_text():
      assert time.monotonic() < limit
      time.sleep(0.02)

  def worker(self, *words, timeout=20):
    """Runs worker.sh on the first worker, past the scripts."""
    return subprocess.run(
      ['bash', 'lengen_worker.sh', *words],
      cwd=self.homes[0],
      env=self.env
      | {
        'HOME': str(self.homes[0]),
        'PATH': f'{self.root}/remote:{os.environ["PATH"]}',
        'FAKE_HOST': 'w0',
      },
      capture_output=True,
      text=True,
      timeout=timeout,
    )

  def end(self):
    for home in self.homes:
      if (home / 'lengen_worker.sh').exists():
        subprocess.run(
          ['bash', 'lengen_worker.sh', 'stop', '0'],
          cwd=home,
          env=self.env | {'HOME': str(home), 'PATH': os.environ['PATH']},
          capture_output=True,
          timeout=20,
        )


@pytest.fixture
def pod(tmp_path):
  pod = Pod(tmp_path)
  yield pod
  pod.end()


def test_setup(pod):
  done = pod.ready('exit 0')
  first = pod.env['REVISION']
  assert done.stdout == ''.join(f'w{n}: installed {first}\n' for n in (0, 1))
  pip = [home / 'lengen/pip.log' for home in pod.homes]
  install = '-m pip install --quiet --editable ./source[tpu,data]\n'
  assert [path.read_text() for path in pip] == [install] * 2
  # Again: nothing is installed twice, and nothing is removed.
  (pod.homes[0] / 'lengen/source/mine').touch()
  assert 'is installed' in pod.run('setup.sh').stdout
  assert pip[0].read_text() == install
  # The revision is no longer the newest.
  second = commit(pod.repository, 'second')
  commit(pod.repository, 'third')
  pod.env['REVISION'] = second
  assert pod.run('setup.sh').returncode == 0
  assert pip[0].read_text() == install * 2
  source = pod.homes[1] / 'lengen/source'
  assert git('-C', source, 'rev-parse', 'HEAD') == second
  assert (source / 'text').read_text() == 'second'
  assert (pod.homes[0] / 'lengen/source/mine').exists()


def test_setup_of_a_branch_that_moves(pod):
  branch = git('-C', pod.repository, 'symbolic-ref', '--short', 'HEAD')
  pod.env['REVISION'] = branch
  pod.ready('exit 0')
  assert 'is installed' in pod.run('setup.sh').stdout
  moved = commit(pod.repository, 'second')
  assert pod.run('setup.sh').returncode == 0
  source = pod.homes[1] / 'lengen/source'
  assert git('-C', source, 'rev-parse', 'HEAD') == moved


def test_launch_before_setup(pod):
  pod.exists()
  done = pod.run('launch.sh')
  assert done.returncode == 1
  assert 'run setup.sh first' in done.stderr
  # An installation that has failed.
  assert pod.run('setup.sh', REVISION='nothing').returncode != 0
  done = pod.worker('launch', 'id', 'true')
  assert done.returncode == 1
  assert 'is not installed' in done.stderr


def test_setup_that_fails(pod):
  pod.exists()
  assert pod.run('setup.sh', REVISION='nothing').returncode != 0
  pod.lengen('exit 0')
  # It goes on from there.
  assert pod.run('setup.sh').returncode == 0


def test_setup_where_python_is_too_old(pod):
  pod.program('remote/python3.11', 'exit 1')

  # Those programs refuse to do anything else.
  def does(words, command):
    return f'[[ "$*" == {words} ]] || exit 9; {command}'

  pod.program(
    'remote/python3',
    does(
      '"-m pip install --quiet --user uv"',
      'mkdir -p ~/.local/bin; cp "$STUB/uv" ~/.local/bin/uv',
    ),
  )
  pod.program(
    'uv',
    does(
      '"venv "*" --seed "*"--python 3.11 venv"',
      'mkdir -p venv/bin; cp "$STUB/python" venv/bin/python',
    ),
  )
  pod.program('python', PYTHON)
  pod.ready('exit 0')
  assert (pod.homes[1] / 'lengen/venv/bin/lengen').exists()


def test_launch(pod):
  pod.ready(
    'echo "got $*"; echo "${!MEGASCALE_@}$LIBTPU_INIT_ARGS"; pwd; exit 7'
  )
  assert pod.states() == [['none', '-']] * 2
  command = 'lengen train --encoding=\'fire(a=1., b="x y")\' $((1 + 1))'
  done = pod.run(
    'launch.sh', LENGEN_COMMAND=command, LIBTPU_INIT_ARGS='--a=1 --b=2'
  )
  assert done.returncode == 0, done.stderr
  pod.wait('exited', '7')
  for n, home in enumerate(pod.homes):
    log = (home / 'lengen/logs/latest.log').read_text().splitlines()
    assert log[0].endswith(command) and f'== w{n} ' in log[0]
    assert log[1:-1] == [
      'got train --encoding=fire(a=1., b="x y") 2',
      '--a=1 --b=2',
      str(home / 'lengen/source'),
    ]
    assert log[-1].endswith('exit status 7')
    status, seconds = (home / 'lengen/exit_status').read_text().split()
    assert status == '7' and seconds.isdecimal()
  done = pod.run('logs.sh --lines=1')
  assert re.findall(r'^(w\d): == w\d .*7$', done.stdout, re.M) == ['w0', 'w1']


def test_launch_is_detached(pod):
  # It lasts longer than whoever waits for it.
  pod.ready('echo started; sleep 100')
  assert pod.run('launch.sh').returncode == 0
  pod.wait('running', '-')
  group = int((pod.homes[0] / 'lengen/group').read_text())
  assert os.getsid(group) == group != os.getsid(0)


def test_one_run_at_a_time(pod):
  pod.ready('sleep 100')
  assert pod.run('launch.sh').returncode == 0
  done = pod.run('launch.sh')
  assert done.returncode == 1
  assert 'already in progress' in done.stderr
  # Nor where it is only one worker that finds out.
  done = pod.worker('launch', 'other', 'true')
  assert done.returncode == 1
  assert 'w0: a run is already in progress' in done.stderr
  # The same launch once more is none, while it runs and when it has ended.
  name = (pod.homes[0] / 'lengen/launch_id').read_text().strip()
  assert pod.worker('launch', name, 'exit 9').returncode == 0
  pod.wait('running', '-')
  done = pod.worker('setup', str(pod.repository), 'HEAD', '3.11', 'tpu')
  assert done.returncode == 1
  assert 'a run is in progress' in done.stderr
  pod.end()
  done = pod.worker('launch', name, 'exit 9')
  assert (done.returncode, done.stdout) == (0, '')


def test_run_after_run(pod):
  pod.ready('exit 75')
  assert pod.run('launch.sh').returncode == 0
  pod.wait('exited', '75')
  assert pod.run('launch.sh', LENGEN_COMMAND='exit 0').returncode == 0
  pod.wait('exited', '0')
  assert pod.run('launch.sh', LENGEN_COMMAND='sleep 100').returncode == 0
  assert pod.states() == [['running', '-']] * 2
  assert len(list((pod.homes[0] / 'lengen/logs').glob('2*.log'))) == 3


def test_stop(pod):
  wait = 'while :; do sleep 0.05; done'
  pod.ready(f"trap 'echo saved; exit 75' TERM; echo started; {wait}")
  assert pod.run('launch.sh').returncode == 0
  pod.wait_for_text('started')
  assert pod.run('stop.sh').returncode == 0
  assert pod.states() == [['exited', '75']] * 2
  assert 'saved' in pod.log.read_text()
  # Nothing to stop is no mistake.
  assert pod.run('stop.sh').returncode == 0


def test_stop_of_several_commands(pod):
  # The status of the one that saves, and no further one.
  wait = 'while :; do sleep 0.05; done'
  pod.ready(f"trap 'sleep 0.2; exit 75' TERM; echo started; {wait}")
  assert pod.run('launch.sh', LENGEN_COMMAND='lengen && exit 0').returncode == 0
  pod.wait_for_text('started')
  assert pod.run('stop.sh').returncode == 0
  assert pod.states() == [['exited', '75']] * 2


def test_stop_of_what_does_not_listen(pod):
  pod.ready("trap '' TERM; sleep 100")
  assert pod.run('launch.sh').returncode == 0
  done = pod.run('stop.sh', STOP_SECONDS='0')
  assert done.returncode == 0
  assert 'w1: killed' in done.stdout
  pod.wait('died', '137')
  assert pod.run('launch.sh', LENGEN_COMMAND='exit 0').returncode == 0


def test_logs_of_one_worker(pod):
  pod.ready('echo "on $FAKE_HOST"')
  assert 'no log yet' in pod.run('logs.sh').stdout
  assert pod.run('launch.sh').returncode == 0
  pod.wait('exited', '0')
  done = pod.run('logs.sh --worker=1 --lines=3')
  assert done.stdout.count('\n') == 3
  # What is followed never ends by itself.
  with pytest.raises(subprocess.TimeoutExpired) as expired:
    pod.worker('logs', '2', 'follow', timeout=0.5)
  assert expired.value.stdout.startswith(b'on w0\n== w0 ')


def test_watch(pod):
  """READY, PREEMPTED, READY: the run is resumed on the next machine."""
  pod.lengen(
    'echo "$*" >> "$STUB/bucket-$FAKE_HOST"\n'
    '[[ $(wc -l < "$STUB/bucket-$FAKE_HOST") -ge 3 ]] || exit 75'
  )
  pod.plays(describe=['', '', 'READY', 'READY', 'PREEMPTED'])
  # Runs end in no time, and need a little of it.
  pod.program('local/sleep', '/bin/sleep 0.1')
  done = pod.run('watch.sh', SPOT='1')
  assert done.returncode == 0, done.stderr
  assert 'lengen is PREEMPTED' in done.stderr
  verbs = pod.verbs
  assert verbs[0] == 'create' and verbs.count('create') == 2
  lost = verbs.index('delete')
  assert verbs[lost : lost + 5] == [
    'delete',
    'create',
    'setup',
    'stop',
    'launch',
  ]
  for n in (0, 1):
    trained = (pod.root / f'bucket-w{n}').read_text().splitlines()
    assert len(trained) >= 3
    assert set(trained) == {
      'train --config=configs/a.py:base --workdir=gs://b/w'
    }
