"""Tests what the scripts have in common, and the commands that they call."""

import contextlib
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.tpu_scripts import conftest

pytestmark = pytest.mark.one_jax

FILES = sorted(conftest.SCRIPTS.glob('*.sh'))
NOT_CALLED = ('env.sh', 'common.sh', 'cloud.sh', 'worker.sh')
NAMES = [path.name for path in FILES if path.name not in NOT_CALLED]
COMMON = ['--project=p', '--zone=z', '--quiet']


def test_all_are_found():
  assert set(NAMES) == {
    'create.sh',
    'setup.sh',
    'launch.sh',
    'watch.sh',
    'status.sh',
    'logs.sh',
    'stop.sh',
    'teardown.sh',
  }


def test_shellcheck():
  beside = sys.executable.rpartition('/')[0]
  found = shutil.which('shellcheck', path=beside) or shutil.which('shellcheck')
  assert found, "pip install 'lengen_jax[test]'"
  files = [*FILES, conftest.HERE / 'gcloud.sh']
  done = subprocess.run([found, *files], capture_output=True, text=True)
  assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize('path', FILES, ids=lambda path: path.name)
def test_written_strictly(path):
  subprocess.run(['bash', '-n', path], check=True)
  text = path.read_text()
  assert text.startswith('#!/usr/bin/env bash\n# ')
  assert '\nset -euo pipefail\n' in text
  assert max(map(len, text.splitlines())) <= 80
  assert (path.name in NAMES) <= bool(path.stat().st_mode & 0o100)


def test_one_file_calls_gcloud():
  callers = set()
  for path in FILES:
    code = re.sub(r'^\s*#.*', '', path.read_text(), flags=re.MULTILINE)
    if re.search(r'\bgcloud\b', code):
      callers.add(path.name)
  assert callers == {'cloud.sh'}


@pytest.mark.parametrize('name', NAMES)
def test_help(cloud, name):
  unset = dict.fromkeys(conftest.SETTINGS, '')
  done = cloud.run(f'{name} --help', **unset)
  assert done.returncode == 0, done.stderr
  known = re.search(r"^parse '(.*)' ", source(name), re.MULTILINE)[1].split()
  usage, *options = re.findall(r'^usage: .*|^  --.*', done.stdout, re.MULTILINE)
  for option in (*known, 'dry-run', 'help'):
    assert f'[--{option}' in usage
    assert any(line.startswith(f'  --{option}') for line in options)
  assert len(options) == len(known) + 2
  assert not cloud.calls


def source(name):
  return (conftest.SCRIPTS / name).read_text()


@pytest.mark.parametrize('name', NAMES)
def test_unknown_arguments_are_refused(cloud, name):
  for argument in ('--dry-run=1', '--replaces', 'x'):
    done = cloud.run(f'{name} {argument}')
    assert done.returncode == 2
    assert f"unknown argument '{argument}'" in done.stderr
  assert not cloud.calls


def commands(done):
  """The commands that a dry run has printed, as words."""
  assert done.returncode == 0, done.stderr
  lines = done.stdout.splitlines()
  return [shlex.split(x, comments=True)[1:] for x in lines if x[:1] != '#']


@pytest.mark.parametrize('settings', [{}, {'SPOT': '1', 'SLICES': '2'}])
@pytest.mark.parametrize(
  'line',
  [
    'setup.sh',
    'launch.sh',
    'status.sh',
    'logs.sh',
    'logs.sh --worker=1 --follow --lines=7',
    'stop.sh',
    'teardown.sh --yes',
  ],
)
def test_dry_run_prints_what_is_called(cloud, line, settings):
  settings = settings | {'LENGEN_COMMAND': "lengen 'it''s' \"$x\" (1 | 2)"}
  printed = commands(cloud.run(f'{line} --dry-run', **settings))
  assert printed
  assert not cloud.calls
  cloud.exists()
  cloud.plays(status=['none - 0|none - 0'])
  done = cloud.run(line, **settings)
  assert done.returncode == 0, done.stderr
  assert without_ids(printed) == without_ids(cloud.calls)


def without_ids(calls):
  """Launches have a name of their own each time."""
  pattern = r'launch \d{8}-\d{6}-\d+ '
  return [[re.sub(pattern, 'launch ID ', x) for x in call] for call in calls]


def test_dry_run_of_create(cloud):
  printed = commands(cloud.run('create.sh --dry-run --replace'))
  assert not cloud.calls
  cloud.exists('PREEMPTED')
  assert cloud.run('create.sh --replace').returncode == 0
  # Asked for the state before and after each step.
  describe, delete, create = printed
  assert cloud.calls == [describe, delete, describe, create, describe]


def test_dry_run_of_watch(cloud):
  done = cloud.run('watch.sh --dry-run')
  assert not cloud.calls
  printed = [words[3] for words in commands(done)]
  assert {'describe', 'create', 'delete', 'scp', 'ssh'} == set(printed)
  for verb in ('setup', 'launch', 'stop', 'status', 'logs'):
    assert f'lengen_worker.sh {verb}' in done.stdout


V4 = '--accelerator-type=v4-16'
BASE = 'tpu-ubuntu2204-base'


@pytest.mark.parametrize(
  'settings, kind, options',
  [
    ({}, 'tpu-vm', [f'--version={BASE}']),
    ({'SPOT': '1'}, 'tpu-vm', [f'--version={BASE}', '--spot']),
    (
      {'QUEUED': '1', 'NAME': 'x'},
      'queued-resources',
      [f'--runtime-version={BASE}', '--node-id=x'],
    ),
    (
      {'SLICES': '4', 'SPOT': '1', 'NAME': 'x'},
      'queued-resources',
      [
        f'--runtime-version={BASE}',
        '--node-count=4',
        '--node-prefix=x',
        '--spot',
      ],
    ),
    (
      {'CREATE_FLAGS': '--network=n --reserved', 'RUNTIME_VERSION': 'v'},
      'tpu-vm',
      ['--version=v', '--network=n', '--reserved'],
    ),
  ],
)
def test_create(cloud, settings, kind, options):
  done = cloud.run('create.sh', **settings)
  assert done.returncode == 0, done.stderr
  name = settings.get('NAME', 'lengen')
  field = 'state' if kind == 'tpu-vm' else 'state.state'
  group = ['compute', 'tpus', kind]
  describe = [*group, 'describe', name, f'--format=value({field})', *COMMON]
  create = [*group, 'create', name, V4, *options, *COMMON]
  assert cloud.calls == [describe, create, describe]


@pytest.mark.parametrize(
  'accelerator, version',
  [
    ('v2-8', BASE),
    ('v3-32', BASE),
    ('v5litepod-256', 'v2-alpha-tpuv5-lite'),
    ('v5p-128', 'v2-alpha-tpuv5'),
    ('v6e-64', 'v2-alpha-tpuv6e'),
  ],
)
def test_runtime_version(cloud, accelerator, version):
  done = cloud.run('create.sh --dry-run', ACCELERATOR_TYPE=accelerator)
  assert f'--version={version}' in commands(done)[-1]


def test_generations_without_this_api(cloud):
  done = cloud.run('create.sh', ACCELERATOR_TYPE='tpu7x-128')
  assert done.returncode == 2
  assert 'Compute Engine' in done.stderr
  done = cloud.run('create.sh', ACCELERATOR_TYPE='v9-8')
  assert done.returncode == 2
  assert 'RUNTIME_VERSION is not set' in done.stderr
  assert not cloud.calls


@pytest.mark.parametrize(
  'name, setting',
  [
    ('create.sh', 'PROJECT'),
    ('create.sh', 'ZONE'),
    ('create.sh', 'ACCELERATOR_TYPE'),
    ('setup.sh', 'REPOSITORY'),
    ('launch.sh', 'CONFIG'),
    ('launch.sh', 'WORKDIR'),
    *(('watch.sh', name) for name in conftest.SETTINGS if name != 'REVISION'),
    *((name, 'PROJECT') for name in NAMES),
  ],
)
def test_settings_that_are_missing(cloud, name, setting):
  done = cloud.run(name, **{setting: ''})
  assert done.returncode == 2
  (line,) = done.stderr.splitlines()
  assert f'{setting} is not set' in line
  assert f'export {setting}=' in line
  assert 'env.sh' in line
  assert not cloud.calls


@pytest.mark.parametrize(
  'setting, value',
  [
    ('SPOT', 'yes'),
    ('QUEUED', ''),
    ('SLICES', '0'),
    ('POLL_SECONDS', '1.5'),
    ('FAILURE_LIMIT', 'three'),
    ('NAME', 'MY-PC'),
  ],
)
def test_settings_that_are_wrong(cloud, setting, value):
  done = cloud.run('create.sh', **{setting: value})
  if setting == 'QUEUED':
    # An empty setting counts as unset.
    assert done.returncode == 0
    return
  assert done.returncode == 2
  assert f"{setting} is '{value}'" in done.stderr
  assert not cloud.calls


def test_workdir_must_outlive_the_machine(cloud):
  done = cloud.run('launch.sh', WORKDIR='runs/c4')
  assert done.returncode == 2
  assert 'lost with the machine' in done.stderr
  assert not cloud.calls


def test_paths_with_spaces(cloud):
  settings = {'CONFIG': 'configs/a.py:/my models/x', 'WORKDIR': 'gs://b/x (1)'}
  done = cloud.run('launch.sh --dry-run', **settings)
  *_, command = commands(done)[-1][:-3]
  worker = shlex.split(command.removeprefix('--command='))
  assert shlex.split(worker[4]) == [
    'lengen',
    'train',
    '--config=configs/a.py:/my models/x',
    '--workdir=gs://b/x (1)',
  ]


def test_variables_that_are_passed(cloud):
  cloud.exists()
  cloud.plays(status=['none - 0|none - 0'])
  names = {'LENGEN_DATA_DIR': '/d', 'XDG_CACHE_HOME': '/home/me/.cache'}
  done = cloud.run('launch.sh', **names)
  assert 'passing LENGEN_DATA_DIR\n' in done.stderr
  assert 'LENGEN_DATA_DIR=/d' in cloud.calls[-1][-4]
  # A folder of this computer.
  assert 'XDG_CACHE_HOME' not in done.stderr + cloud.calls[-1][-4]


def test_revision_is_what_is_checked_out():
  ask = ['git', '-C', str(conftest.SCRIPTS), 'rev-parse', 'HEAD']
  here = subprocess.run(ask, capture_output=True, text=True)
  if here.returncode:
    pytest.skip('no checkout')
  # Children of a script have it too.
  text = f'. {conftest.SCRIPTS}/env.sh; bash -c \'echo "$REVISION"\''
  said = subprocess.run(['bash', '-c', text], capture_output=True, text=True)
  assert said.stdout == here.stdout


def test_create_waits(cloud):
  states = ['CREATING'] * 6 + ['ERROR', 'READY']
  cloud.plays(describe=states)
  done = cloud.run('create.sh')
  assert done.returncode == 0, done.stderr
  assert len(cloud.calls) == len(states)
  # Ever longer, but not for ever.
  assert cloud.slept == ['60', '120', '240', '480', '600', '600', '600']


def test_create_tries_again(cloud):
  cloud.plays(create=['RESOURCE_EXHAUSTED: no capacity'] * 2)
  done = cloud.run('create.sh')
  assert done.returncode == 0, done.stderr
  assert 'no capacity' in done.stderr
  assert cloud.verbs == ['create'] * 3
  assert cloud.slept == ['60', '120', '60']


@pytest.mark.parametrize('reason', ['INVALID_ARGUMENT', 'PERMISSION_DENIED'])
def test_create_that_cannot_succeed(cloud, reason):
  cloud.plays(create=[f'{reason}: no'])
  assert cloud.run('create.sh').returncode == 2
  assert cloud.verbs == ['create']


def test_create_without_gcloud(cloud):
  (cloud.root / 'local/gcloud').unlink()
  for name in ('bash', 'git', 'basename', 'dirname'):
    (cloud.root / f'local/{name}').symlink_to(shutil.which(name))
  done = cloud.run('create.sh', PATH=f'{cloud.root}/local')
  assert done.returncode == 2
  assert 'gcloud is not installed' in done.stderr


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_interrupt_reaches_gcloud(cloud, number):
  cloud.exists()
  cloud.plays(status=['HANG'])
  process = subprocess.Popen(
    # A runner in the background ignores SIGINT.
    ['env', '--default-signal=INT', 'bash', conftest.SCRIPTS / 'status.sh'],
    env=cloud.env,
    stderr=subprocess.DEVNULL,
    start_new_session=True,
  )
  wait_for(lambda: 'status' in str(cloud.calls))
  wait_for(lambda: processes(cloud.root))
  os.killpg(process.pid, number)
  assert process.wait(10) != 0
  wait_for(lambda: not processes(cloud.root))


def processes(root):
  """Returns the processes that were started with the folder of the stub."""
  found = []
  for path in pathlib.Path('/proc').glob('[0-9]*/environ'):
    with contextlib.suppress(OSError):
      if f'STUB={root}\0'.encode() in path.read_bytes():
        if b'gcloud' in (path.parent / 'cmdline').read_bytes():
          found.append(path.parent.name)
  return found


def wait_for(condition):
  limit = time.monotonic() + 10
  while not condition():
    assert time.monotonic() < limit
    time.sleep(0.02)


def test_states_that_are_not_known(cloud):
  cloud.plays(describe=['DENIED'])
  done = cloud.run('create.sh')
  assert done.returncode == 2
  assert 'no such zone' in done.stderr
  cloud.plays(describe=['CREATING', 'ERROR', 'CREATING', *['ERROR'] * 2])
  done = cloud.run('create.sh', UNANSWERED_LIMIT='2')
  assert done.returncode == 1
  assert 'the state of lengen is not known' in done.stderr
  assert len(cloud.calls) == 6 and cloud.verbs == []


def test_create_gives_up(cloud):
  cloud.plays(describe=['WAITING_FOR_RESOURCES'])
  done = cloud.run('create.sh', WAIT_HOURS='0', QUEUED='1')
  assert done.returncode == 1
  assert 'WAIT_HOURS=0' in done.stderr


def test_create_deletes_only_when_told(cloud):
  cloud.exists('STOPPED')
  done = cloud.run('create.sh')
  assert done.returncode == 1
  assert '--replace' in done.stderr
  assert cloud.verbs == []
  assert cloud.run('create.sh --replace').returncode == 0
  assert cloud.verbs == ['delete', 'create']


@pytest.mark.parametrize('answer', ['n\n', '\n', ''])
def test_teardown_asks(cloud, answer):
  cloud.exists()
  done = cloud.run('teardown.sh', stdin=answer)
  assert done.returncode == 1
  assert 'Delete lengen in z of p' in done.stderr
  assert not cloud.calls


@pytest.mark.parametrize(
  'settings, options',
  [({}, []), ({'SLICES': '2'}, ['--force']), ({'QUEUED': '1'}, ['--force'])],
)
def test_teardown(cloud, settings, options):
  cloud.exists()
  assert cloud.run('teardown.sh', stdin='y\n', **settings).returncode == 0
  # What is gone already is as good.
  again = cloud.run('teardown.sh --yes', **settings)
  assert again.returncode == 0
  assert 'named lengen in z; NAME, ZONE, QUEUED and SLICES' in again.stderr
  kind = 'queued-resources' if options else 'tpu-vm'
  delete = ['compute', 'tpus', kind, 'delete', 'lengen', *options, *COMMON]
  assert cloud.calls == [delete] * 2
  cloud.plays(delete=['INTERNAL: no'])
  assert cloud.run('teardown.sh --yes', **settings).returncode == 1


def test_workers_of_slices(cloud):
  cloud.exists('ACTIVE')
  flags = {'SLICES': '2', 'SSH_FLAGS': '--internal-ip'}
  assert cloud.run('stop.sh', **flags).returncode == 0
  assert cloud.run('logs.sh --worker=1:0', **flags).returncode == 0
  at = [call[5:-4] for call in cloud.calls]
  assert at == [
    ['--node=all', '--worker=all', '--internal-ip'],
    ['--node=1', '--worker=0', '--internal-ip'],
  ]
  done = cloud.run('logs.sh --worker=first', **flags)
  assert done.returncode == 2


def test_log_that_is_followed(cloud):
  cloud.exists()
  assert cloud.run('logs.sh --follow --lines=7').returncode == 0
  command = '--command=bash lengen_worker.sh logs 7 follow'
  assert cloud.calls[0][5:-3] == ['--worker=0', command]


def test_gcloud_reads_nothing(cloud):
  # Or it would eat what a loop reads, and stop in the background.
  cloud.exists()
  assert cloud.run('stop.sh', stdin='for others\n').returncode == 0


def test_slices_that_are_skipped(cloud):
  cloud.exists('ACTIVE')
  cloud.plays(status=['SKIPPED'])
  done = cloud.run('launch.sh', SLICES='2')
  assert done.returncode == 1
  assert 'not all workers answer' in done.stderr
  cloud.plays(status=['HALF'])
  assert cloud.run('launch.sh', SLICES='2').returncode == 1
  cloud.plays(stop=['SKIPPED'])
  assert cloud.run('stop.sh', SLICES='2').returncode == 1
  assert cloud.verbs == ['stop']


def test_launch_beside_a_run(cloud):
  cloud.exists()
  cloud.plays(status=['exited 0 5|running - 5'])
  done = cloud.run('launch.sh')
  assert done.returncode == 1
  assert 'w1 running' in done.stderr and 'stop.sh' in done.stderr
  assert cloud.verbs == []


def test_status(cloud):
  cloud.exists()
  cloud.plays(status=['running - 5|exited 3 7'])
  done = cloud.run('status.sh')
  assert done.stdout == 'lengen: READY\nw0 running - 5\nw1 exited 3 7\n'
  cloud.plays(describe=['PREEMPTED'])
  assert cloud.run('status.sh').stdout == 'lengen: PREEMPTED\n'
  cloud.plays(describe=['ERROR'])
  assert cloud.run('status.sh').returncode == 1
