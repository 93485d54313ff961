#!/usr/bin/env bash
# Keeps the run going until it has ended: creates the machine where there is
# none, sets it up, launches, waits, and launches again what was preempted or
# has crashed. A machine that was preempted, stopped or has failed is deleted
# and created anew. May be ended and started at any time; the run goes on.
#
# Exit status: that of the run if it is done (0), if the configuration or data
# is wrong (2), if memory does not suffice (3) or if losses are no longer finite
# (4); 1 if the watcher has given up.
#
# usage: watch.sh [--dry-run] [--help]
#
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

parse '' "$@"
require PROJECT ZONE ACCELERATOR_TYPE RUNTIME_VERSION REPOSITORY REVISION
require_run

report() {
  say "$(date '+%Y-%m-%d %H:%M:%S') $*"
}

give_up() {
  report "giving up: $*"
  exit 1
}

failures=0
count_failure() {
  failures=$((failures + 1))
  ((failures < FAILURE_LIMIT)) || give_up "$failures fast failures in a row"
}

# Launches the run, on a machine in whatever condition; where that was lost in
# the meantime, the loop below has to create it.
start() {
  until "$here/setup.sh" && "$here/stop.sh" && "$here/launch.sh"; do
    state=$(cloud_state) || state=
    [[ "$(cloud_condition "$state")" == ready ]] || return 0
    report 'could not launch'
    count_failure
    back_off "$failures"
  done
  report 'launched'
}

# The ends of the logs. A machine that is deleted takes them along.
show_logs() {
  "$here/logs.sh" >&2 || true
}

# How much an exit status says about the run as a whole.
weight() {
  case "$1" in
    2 | 3 | 4) echo 3 ;;
    75) echo 2 ;;
    0) echo 0 ;;
    *) echo 1 ;;
  esac
}

# read_workers LINES: counts them by state. Of those that have ended, `code` is
# the exit status that says most, and `seconds` the shortest time to a failure.
read_workers() {
  local state status time
  none=0 active=0 ended=0 code=0 seconds=
  while read -r _ _ state status time; do
    case "$state" in
      running)
        active=$((active + 1))
        continue
        ;;
      # Beside others that were, this one was not launched.
      none) none=$((none + 1)) status=137 ;;
      *) ended=$((ended + 1)) ;;
    esac
    if (($(weight "$status") > $(weight "$code"))); then
      code=$status
    fi
    if ((status != 0)) && ((time < ${seconds:-$((time + 1))})); then
      seconds=$time
    fi
  done <<< "$1"
}

# All have ended, with `code` after `seconds`: ends, or launches again.
conclude() {
  case "$code" in
    0) report 'done' ;;
    2) report 'the configuration or the data is wrong (2)' ;;
    3) report 'it does not fit into memory (3)' ;;
    4) report 'losses are no longer finite (4)' ;;
    75) report 'preempted and saved (75)' ;;
    *) report "crashed ($code) after $seconds s" ;;
  esac
  [[ "$code" == 0 || "$code" == 75 ]] || show_logs
  case "$code" in
    0 | 2 | 3 | 4) exit "$code" ;;
    75) failures=0 ;;
    *)
      if ((seconds < 60 * FAST_MINUTES)); then
        count_failure
      else
        failures=0
      fi
      ;;
  esac
  start
}

if dry_run; then
  note "every $POLL_SECONDS s"
  cloud_state
  workers
  note 'where the machine is missing or lost'
  "$here/create.sh" --replace
  note 'where nothing was launched, or the run was preempted or has crashed'
  "$here/logs.sh"
  "$here/setup.sh"
  "$here/stop.sh"
  "$here/launch.sh"
  exit
fi

# Questions in a row that were not answered: by the API, by the workers.
unknown=0 silent=0
# Whether the workers have ever answered, so that they would if they could.
met=0
straggling=
while :; do
  if ! state=$(cloud_state); then
    unknown=$((unknown + 1))
    ((unknown < UNANSWERED_LIMIT)) || give_up "the state of $NAME is not known"
    back_off "$unknown"
    continue
  fi
  unknown=0
  if [[ "$(cloud_condition "$state")" != ready ]]; then
    report "$NAME is $state"
    "$here/create.sh" --replace || give_up "there is no $NAME"
    silent=0 straggling=
    continue
  fi
  if ! lines=$(workers); then
    silent=$((silent + 1))
    report "not all workers of $NAME answer"
    if ((silent >= UNANSWERED_LIMIT)); then
      # Nothing is deleted because of a key.
      ((met)) || give_up 'the workers cannot be reached; for several of them,' \
        'ssh-add ~/.ssh/google_compute_engine'
      report "deleting $NAME, which does not answer"
      cloud_delete || true
      silent=0
    fi
    back_off "$silent"
    continue
  fi
  silent=0 met=1
  read_workers "$lines"
  if ((active + ended == 0)); then
    report 'nothing was launched yet'
    start
  elif ((active == 0)); then
    straggling=
    conclude
  elif ((code != 0)); then
    # The others wait for the one that has failed, perhaps for ever.
    : "${straggling:=$SECONDS}"
    if ((SECONDS - straggling >= 60 * STRAGGLER_MINUTES)); then
      report "a worker ended with $code; stopping $active others"
      "$here/stop.sh" || true
      straggling=
      conclude
    fi
  fi
  sleep "$POLL_SECONDS"
done
