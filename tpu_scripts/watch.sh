#!/usr/bin/env bash
# Keeps the run going until it is done: creates a missing machine, sets it up,
# launches the run, waits, and launches again after a preemption or a crash.
# Deletes and recreates a machine that was preempted, stopped or has failed. May
# be ended and restarted at any time; the run continues. The machine stays when
# the watcher ends: teardown.sh deletes it.
#
# To repeat a run that has ended, or for another LENGEN_COMMAND, run setup.sh
# and launch.sh first.
#
# Exit status: that of the run if it is done (0), if the configuration or the
# data is wrong (2), if it does not fit into memory (3) or if losses are no
# longer finite (4); 1 if the watcher has given up.
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

# end STATUS: exits, with a reminder.
end() {
  report "if $NAME exists, it is billed until teardown.sh deletes it"
  exit "$1"
}

give_up() {
  report "giving up: $*"
  end 1
}

failures=0
count_failure() {
  failures=$((failures + 1))
  ((failures < FAILURE_LIMIT)) || give_up "$failures fast failures in a row" \
    "(FAILURE_LIMIT), each within FAST_MINUTES=$FAST_MINUTES of its launch"
}

# Whether the run has been running since the watcher started.
launched=0

# Installs and launches the run, with retries. Returns if the machine is lost:
# the loop below creates it again.
start() {
  until "$here/setup.sh" && "$here/stop.sh" && "$here/launch.sh"; do
    state=$(cloud_state) || state=
    [[ "$(cloud_condition "$state")" == ready ]] || return 0
    report 'could not launch'
    count_failure
    back_off "$failures"
  done
  launched=1
  report 'launched'
}

# Prints the end of the logs, which are deleted with the machine.
show_logs() {
  "$here/logs.sh" >&2 || true
}

# Prints the priority of an exit status for the run as a whole.
weight() {
  case "$1" in
    2 | 3 | 4) echo 3 ;;
    75) echo 2 ;;
    0) echo 0 ;;
    *) echo 1 ;;
  esac
}

# read_workers LINES: counts workers by state. Of those that have ended, `code`
# is the exit status of highest priority, and `seconds` the shortest time to a
# failure.
read_workers() {
  local state status time long=0
  none=0 active=0 ended=0 code=0 seconds=
  while read -r _ _ state status time; do
    case "$state" in
      running)
        active=$((active + 1)) launched=1
        ((time < 60 * FAST_MINUTES)) || long=1
        continue
        ;;
      # Other workers were launched, this one was not.
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
  # Stragglers of a crash may run for long, too.
  ((long == 0 || code != 0)) || failures=0
}

# All workers have ended, with `code` after `seconds`: exits or relaunches.
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
    0 | 2 | 3 | 4)
      ((launched)) || report 'this run had ended before; to run' \
        'LENGEN_COMMAND again: setup.sh, launch.sh, watch.sh'
      end "$code"
      ;;
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

# Consecutive requests without an answer from the API and from the workers.
unknown=0 silent=0
# Whether the workers have ever answered. If not, the ssh key may be wrong.
met=0
straggling=
while :; do
  if ! state=$(cloud_state); then
    unknown=$((unknown + 1))
    ((unknown < UNANSWERED_LIMIT)) || give_up "the state of $NAME is not" \
      "known after UNANSWERED_LIMIT=$UNANSWERED_LIMIT requests"
    back_off "$unknown"
    continue
  fi
  unknown=0
  if [[ "$(cloud_condition "$state")" != ready ]]; then
    report "$NAME is $state"
    "$here/create.sh" --replace || give_up "$NAME could not be created"
    silent=0 straggling=
    continue
  fi
  if ! lines=$(workers); then
    silent=$((silent + 1))
    report "not all workers of $NAME answer"
    ((met)) \
      || report 'for several workers, ssh-add ~/.ssh/google_compute_engine'
    if ((silent >= UNANSWERED_LIMIT)); then
      # Never delete a machine because of a wrong key.
      ((met)) || give_up 'the workers cannot be reached'
      report "deleting $NAME, which does not answer"
      cloud_delete || true
      # A new machine that never answers is not the fault of the old one.
      silent=0 met=0
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
    # The others may wait forever for the one that has failed.
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
