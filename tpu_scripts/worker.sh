#!/usr/bin/env bash
# Commands of a worker. setup.sh copies this file to the workers as
# lengen_worker.sh; the other scripts call it there.
#
#   setup REPOSITORY REVISION PYTHON EXTRAS
#   launch ID COMMAND NAME=VALUE...
#   status             lengen-worker HOST STATE EXIT-STATUS SECONDS
#   stop SECONDS       kills the run if it does not end within this time
#   logs LINES [follow]
#
# Files in ~/lengen: source, venv, logs, and for the latest run launch_id,
# launched (seconds since 1970), group (process group) and exit_status. A run
# holds `lock` while it is running. A lock is released with its process, and
# unlike a process id is never reused.
# The functions are called by their names.
# shellcheck disable=SC2329
set -euo pipefail

self=$(cd "$(dirname "$0")" && pwd)/$(basename "$0")
mkdir -p "$HOME/lengen/logs"
cd "$HOME/lengen"

die() {
  printf '%s: %s\n' "$(hostname)" "$*" >&2
  exit 1
}

running() {
  ! flock --nonblock lock true
}

elapsed() {
  echo $(($(date +%s) - $(cat launched)))
}

setup() {
  local wanted="$1 $2 $3 $4"
  if installed "$wanted"; then
    echo "$(hostname): $2 is installed"
    return
  fi
  [[ -d source/.git ]] || git clone --quiet --no-checkout "$1" source
  git -C source fetch --quiet "$1" "$2" \
    || die "cannot fetch $2 from $1; push the commit, or set REVISION"
  # A branch may have moved.
  wanted="$1 $(git -C source rev-parse FETCH_HEAD) $3 $4"
  if installed "$wanted"; then
    echo "$(hostname): $2 is installed"
    return
  fi
  if running; then
    die 'a run is in progress; installing would replace its revision'
  fi
  # Until all of it is installed.
  rm -f installed
  git -C source checkout --quiet --detach FETCH_HEAD
  venv/bin/python -m pip --version > /dev/null 2>&1 || make_venv "$3"
  # Editable, so that checkpoints record the revision of the checkout.
  venv/bin/python -m pip install --quiet --editable "./source[$4]"
  echo "$wanted" > installed
  echo "$(hostname): installed $2"
}

# installed "REPOSITORY COMMIT PYTHON EXTRAS"
installed() {
  [[ -f installed && "$(cat installed)" == "$1" ]]
}

make_venv() {
  if "python$1" -c 'import ensurepip' > /dev/null 2>&1; then
    "python$1" -m venv venv
  else
    # TPU images have Python 3.10, which is too old; uv installs its own.
    python3 -m pip install --quiet --user uv \
      || curl -LsSf https://astral.sh/uv/install.sh | sh
    "$HOME/.local/bin/uv" venv --quiet --seed --allow-existing \
      --python "$1" venv
  fi
}

launch() {
  local id=$1
  [[ -f installed ]] || die 'lengen is not installed; run setup.sh first'
  exec 9>> lock
  # `status` holds the lock for a moment.
  if ! flock --timeout 1 9; then
    [[ "$(cat launch_id)" == "$id" ]] \
      || die 'a run is already in progress; stop.sh ends it'
    return
  fi
  # gcloud repeats a command if the connection is lost.
  if [[ -f launch_id && "$(cat launch_id)" == "$id" ]]; then
    return
  fi
  rm -f exit_status
  date +%s > launched
  echo "$id" > launch_id
  ln -sfn "$id.log" logs/latest.log
  # In a session of its own, which survives the connection and holds the lock.
  setsid bash "$self" run "$@" > "logs/$id.log" 2>&1 < /dev/null &
  echo $! > group
  echo "$(hostname): launched, with the log in $PWD/logs/$id.log"
}

run() {
  local id=$1 command=$2 code=0 name
  shift 2
  # Survive the signal until the command has ended by it.
  trap : INT TERM
  # Stale variables of deleted slices would make the start hang.
  for name in "${!MEGASCALE_@}"; do
    unset "$name"
  done
  export PATH="$PWD/venv/bin:$PATH"
  echo "== $(hostname) $id: $command"
  # The shell of several commands must wait for one that saves after SIGTERM.
  (cd source && exec env "$@" bash -c "trap : INT TERM; $command") || code=$?
  echo "== $(hostname) $id: exit status $code"
  echo "$code $(elapsed)" > exit_status.new
  mv exit_status.new exit_status
}

status() {
  local held=0 state
  # Checked first: a run that ends in between must not look as if it had died.
  ! running || held=1
  if [[ ! -f launch_id ]]; then
    state='none - 0'
  elif [[ -f exit_status ]]; then
    state="exited $(cat exit_status)"
  elif ((held)); then
    state="running - $(elapsed)"
  else
    # Killed, or the machine was restarted.
    state="died 137 $(elapsed)"
  fi
  echo "lengen-worker $(hostname) $state"
}

stop() {
  local i
  running || return 0
  kill -TERM -- "-$(cat group)" 2> /dev/null || true
  for ((i = 0; i < 5 * $1; i++)); do
    running || return 0
    sleep 0.2
  done
  echo "$(hostname): killed what did not end in STOP_SECONDS=$1; steps since" \
    'the last checkpoint are repeated'
  kill -KILL -- "-$(cat group)" 2> /dev/null || true
}

logs() {
  if [[ ! -f logs/latest.log ]]; then
    echo "$(hostname): no log yet"
  elif [[ "${2:-}" == follow ]]; then
    exec tail -n "$1" -F logs/latest.log
  else
    tail -n "$1" logs/latest.log | sed "s/^/$(hostname): /"
  fi
}

case "${1:-}" in
  # Exit on the same line: the file may be replaced while bash is reading it.
  setup | launch | run | status | stop | logs) "$@"; exit ;;
  *) die "'${1:-}' is not a command of a worker" ;;
esac
