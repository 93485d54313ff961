"""Tests what the watcher does about every end that a run can have."""

import re

import pytest

pytestmark = pytest.mark.one_jax

NONE = 'none - 0|none - 0'
RUNNING = 'running - 60|running - 60'
DONE = 'exited 0 99|exited 0 99'
START = ['setup', 'stop', 'launch']
RENEW = ['delete', 'create']


def both(first, second=None):
  return f'{first}|{second or first}'


def crash(seconds=5, status=1):
  return both(f'exited {status} {seconds}')


def watched(cloud, status, describe=(), machine='READY', **settings):
  if machine:
    cloud.exists(machine)
  cloud.plays(status=status, describe=list(describe))
  settings = {'UNANSWERED_LIMIT': '3'} | settings
  return cloud.run('watch.sh', **settings)


def test_done(cloud):
  done = watched(cloud, [RUNNING, RUNNING, DONE])
  assert done.returncode == 0, done.stderr
  assert cloud.verbs == []
  assert cloud.slept == ['60', '60']


def test_from_nothing(cloud):
  done = watched(cloud, [NONE, NONE, RUNNING, DONE], machine=None)
  assert done.returncode == 0, done.stderr
  assert cloud.verbs == ['create', *START]


def test_saved(cloud):
  saved = crash(status=75)
  done = watched(cloud, [saved, NONE, saved, NONE, DONE], FAILURE_LIMIT='1')
  assert done.returncode == 0, done.stderr
  assert cloud.verbs == START * 2


@pytest.mark.parametrize(
  'kind, ready, lost',
  [
    ('vm', 'READY', 'PREEMPTED'),
    ('vm', 'READY', 'TERMINATED'),
    ('vm', 'READY', 'STOPPED'),
    ('queued', 'ACTIVE', 'FAILED'),
    ('queued', 'ACTIVE', 'SUSPENDED'),
  ],
)
def test_preempted(cloud, kind, ready, lost):
  done = watched(
    cloud,
    [RUNNING, NONE, NONE, RUNNING, DONE],
    [ready, lost],
    machine=ready,
    QUEUED=str(int(kind == 'queued')),
    SPOT='1',
  )
  assert done.returncode == 0, done.stderr
  assert cloud.verbs == [*RENEW, *START]
  assert f'lengen is {lost}' in done.stderr


def test_deleted(cloud):
  states = ['DELETING', 'DELETING', 'MISSING']
  done = watched(cloud, [NONE, NONE, DONE], states)
  assert done.returncode == 0, done.stderr
  assert 'waiting for lengen, which is DELETING' in done.stderr
  assert cloud.verbs == ['create', *START]


@pytest.mark.parametrize('status', [2, 3, 4])
def test_ends_that_no_launch_can_help(cloud, status):
  done = watched(cloud, [crash(status=status)])
  assert done.returncode == status
  assert cloud.verbs == ['logs']


@pytest.mark.parametrize(
  'ends, result',
  [
    (('0', '2'), 2),
    (('75', '3'), 3),
    (('1', '4'), 4),
    (('2', '134'), 2),
    # Gives up at the first crash, but not at what was saved.
    (('1', '0'), 1),
    (('0', '134'), 1),
    (('75', '0'), 0),
    (('134', '75'), 0),
  ],
)
def test_workers_that_disagree(cloud, ends, result):
  ends = both(*(f'exited {end} 5' for end in ends))
  done = watched(cloud, [ends, NONE, DONE], FAILURE_LIMIT='1')
  assert done.returncode == result, done.stderr
  assert cloud.verbs.count('launch') == (result == 0)


@pytest.mark.parametrize(
  'states',
  [
    'died 137 5|died 137 5',
    'exited 0 5|died 137 5',
    # Its launch has failed.
    'exited 0 5|none - 0',
  ],
)
def test_workers_that_died(cloud, states):
  done = watched(cloud, [states], FAILURE_LIMIT='1')
  assert done.returncode == 1
  assert 'crashed (137)' in done.stderr
  assert 'giving up' in done.stderr


def test_two_crashes(cloud):
  status = [RUNNING, crash(), NONE, RUNNING, crash(), NONE, DONE]
  done = watched(cloud, status)
  assert done.returncode == 0, done.stderr
  assert cloud.verbs == ['logs', *START] * 2


@pytest.mark.parametrize('limit', [1, 3])
def test_fast_crashes(cloud, limit):
  status = [crash(2699), NONE] * 4
  done = watched(cloud, status, FAILURE_LIMIT=str(limit))
  assert done.returncode == 1
  assert f'giving up: {limit} fast failures' in done.stderr
  assert cloud.verbs.count('launch') == limit - 1
  assert cloud.verbs.count('logs') == limit


def test_slow_crashes(cloud):
  status = [crash(2700), NONE] * 4 + [DONE]
  done = watched(cloud, status, FAILURE_LIMIT='1')
  assert done.returncode == 0, done.stderr
  assert cloud.verbs.count('launch') == 4


def test_failures_before_a_long_run_do_not_count(cloud):
  lost = crash(status=137)
  long = both('running - 2700')
  status = [lost, NONE, lost, NONE, long, lost, NONE, lost, NONE, DONE]
  done = watched(cloud, status)
  assert done.returncode == 0, done.stderr
  assert cloud.verbs.count('launch') == 4


def test_stragglers_do_not_hide_a_fast_crash(cloud):
  half = both('exited 1 5', 'running - 99')
  status = [half, crash(), NONE] * 3
  settings = {'FAST_MINUTES': '1', 'FAILURE_LIMIT': '2'}
  done = watched(cloud, status, **settings)
  assert done.returncode == 1
  assert 'giving up: 2 fast failures' in done.stderr


@pytest.mark.parametrize('status', [0, 2])
def test_runs_that_ended_before(cloud, status):
  ended = crash(status=status)
  done = watched(cloud, [ended])
  assert done.returncode == status
  assert 'this run had ended before' in done.stderr
  assert 'is billed until teardown.sh' in done.stderr
  for first in (RUNNING, NONE):
    done = watched(cloud, [first, first, ended][first == RUNNING :])
    assert done.returncode == status
    assert 'this run had ended before' not in done.stderr


def test_crashes_in_a_row(cloud):
  status = []
  for seconds in (5, 5, 2700, 5, 5):
    status += [crash(seconds), NONE]
  done = watched(cloud, [*status, crash(5), DONE])
  assert done.returncode == 1
  assert cloud.verbs.count('launch') == len(status) / 2


def test_fastest_worker_counts(cloud):
  ends = both('exited 1 5', 'exited 134 9999')
  done = watched(cloud, [ends], FAILURE_LIMIT='1', FAST_MINUTES='1')
  assert done.returncode == 1
  assert 'after 5 s' in done.stderr


def test_stragglers_are_waited_for(cloud):
  half = both('exited 3 5', 'running - 5')
  done = watched(cloud, [half, half, crash(status=3)])
  assert done.returncode == 3
  assert 'stop' not in cloud.verbs
  # Not for ever, and what they then say has no weight.
  done = watched(
    cloud, [half, both('exited 3 5', 'exited 2 5')], STRAGGLER_MINUTES='0'
  )
  assert done.returncode == 3
  assert cloud.verbs[1:] == ['stop', 'logs']


def test_those_that_are_done_wait_for_the_others(cloud):
  half = both('exited 0 5', 'running - 5')
  done = watched(cloud, [half, half, DONE], STRAGGLER_MINUTES='0')
  assert done.returncode == 0, done.stderr
  assert cloud.verbs == []


def test_service_that_does_not_answer(cloud):
  describe = ['ERROR', 'ERROR', 'READY', 'ERROR', 'ERROR']
  done = watched(cloud, [RUNNING, DONE], describe)
  assert done.returncode == 0, done.stderr
  assert cloud.verbs == []
  done = watched(cloud, [RUNNING], ['READY', *['ERROR'] * 3])
  assert done.returncode == 1
  assert 'giving up' in done.stderr
  assert cloud.verbs == []


def test_requests_that_hang(cloud):
  status = [RUNNING, 'HANG', RUNNING, DONE]
  done = watched(cloud, status, ['READY', 'HANG'], ANSWER_SECONDS='1')
  assert done.returncode == 0, done.stderr
  assert 'no answer from gcloud in 1 s' in done.stderr
  assert 'not all workers of lengen answer' in done.stderr
  assert cloud.verbs == []


def test_workers_that_do_not_answer(cloud):
  silent = ['ERROR'] * 3
  done = watched(cloud, [RUNNING, *silent[1:], RUNNING, *silent[1:], DONE])
  assert done.returncode == 0, done.stderr
  assert cloud.verbs == []
  done = watched(cloud, [RUNNING, *silent, NONE, NONE, DONE])
  assert done.returncode == 0, done.stderr
  assert cloud.verbs == [*RENEW, *START]


def test_a_machine_is_replaced_once_if_the_new_one_does_not_answer(cloud):
  done = watched(cloud, [RUNNING, *['ERROR'] * 9])
  assert done.returncode == 1
  assert 'ssh-add' in done.stderr
  assert cloud.verbs == RENEW


@pytest.mark.parametrize('verb', START)
def test_launches_that_hang(cloud, verb):
  cloud.exists()
  # `launch` also asks for the status.
  asked = [NONE] * (3 if verb == 'launch' else 2)
  cloud.plays(status=[*asked, DONE], **{verb: ['HANG']})
  limits = dict.fromkeys(('ANSWER_SECONDS', 'SETUP_SECONDS'), '1')
  done = cloud.run('watch.sh', STOP_SECONDS='0', **limits)
  assert done.returncode == 0, done.stderr
  assert 'could not launch' in done.stderr


def test_workers_that_have_never_answered(cloud):
  done = watched(cloud, ['ERROR'] * 3)
  assert done.returncode == 1
  assert 'ssh-add' in done.stderr
  assert cloud.verbs == []


def test_launches_that_fail(cloud):
  cloud.exists()
  cloud.plays(status=[NONE, NONE, NONE, DONE], launch=['ERROR'], setup=[])
  assert cloud.run('watch.sh').returncode == 0
  assert cloud.verbs == START * 2
  cloud.plays(status=[NONE], setup=['ERROR'] * 9)
  done = cloud.run('watch.sh')
  assert done.returncode == 1
  assert cloud.verbs == START * 2 + ['setup'] * 3


def test_preempted_while_it_is_set_up(cloud):
  cloud.exists()
  cloud.plays(
    describe=['READY', 'PREEMPTED'],
    setup=['ERROR'],
    status=[NONE, NONE, NONE, DONE],
  )
  done = cloud.run('watch.sh', FAILURE_LIMIT='1')
  assert done.returncode == 0, done.stderr
  assert cloud.verbs == ['setup', *RENEW, *START]


def test_machine_that_cannot_be_had(cloud):
  cloud.plays(create=['INVALID_ARGUMENT: no such type'])
  done = cloud.run('watch.sh')
  assert done.returncode == 1
  assert 'no such type' in done.stderr
  assert cloud.verbs == ['create']


def test_one_revision(cloud):
  # Somebody commits all the time.
  cloud.program('local/git', 'date +%N')
  del cloud.env['REVISION']
  done = watched(cloud, [NONE, NONE, crash(), NONE, DONE])
  assert done.returncode == 0, done.stderr
  text = ' '.join(call[-4] for call in cloud.calls)
  revisions = re.findall(r'setup \S+ (\S+)', text)
  assert len(revisions) == 2 and len(set(revisions)) == 1
