#!/usr/bin/env bash
# A gcloud that has one machine, of two workers. It writes down what it is
# called with and plays the next scene of $STUB/plays/VERB, a line each; then it
# does what was asked for: workers are folders, and ssh runs commands in them.
set -euo pipefail

# Waits for longer than any test. The `sleep` of the tests takes no time.
hang() {
  command -p sleep 60
}

# The next scene; empty where the play is over or has nothing to say.
play() {
  local scenes=() file="$STUB/plays/$1"
  if [[ -s "$file" ]]; then
    mapfile -t scenes < "$file"
    printf '%s\n' "${scenes[@]:1}" > "$file"
  fi
  scene=${scenes[0]:-}
}

fail() {
  echo "ERROR: (gcloud.compute.tpus) $1" >&2
  exit "${2:-1}"
}

describe() {
  case "$scene" in
    ERROR) fail 'UNAVAILABLE: The service is currently unavailable.' ;;
    DENIED) fail 'PERMISSION_DENIED: no permission, or no such zone' ;;
    HANG) hang ;;
    MISSING) rm "$STUB/machine" ;;
    ?*) echo "$scene" > "$STUB/machine" ;;
  esac
  [[ -f "$STUB/machine" ]] || fail "NOT_FOUND: Resource 'n' was not found"
  echo "$(< "$STUB/machine")"
}

create() {
  [[ -z "$scene" ]] || fail "$scene"
  [[ ! -f "$STUB/machine" ]] || fail 'ALREADY_EXISTS: it is there already'
  if [[ "$kind" == tpu-vm ]]; then
    echo READY > "$STUB/machine"
  else
    echo ACTIVE > "$STUB/machine"
  fi
  # What was on the disks of a machine that is gone is gone.
  rm -rf "$STUB"/home-*
  mkdir "$STUB"/home-{0,1}
}

delete() {
  [[ -z "$scene" ]] || fail "$scene"
  [[ -f "$STUB/machine" ]] || fail 'NOT_FOUND: there is no such thing'
  rm "$STUB/machine"
}

scp() {
  local n
  for n in $workers; do
    cp "$5" "$STUB/home-$n/${6#*:}"
  done
}

ssh() {
  local n state worst=0
  state=$(< "$STUB/machine")
  [[ "$state" == READY || "$state" == ACTIVE ]] || fail "it is $state"
  case "$scene" in
    ERROR) fail 'the connection broke' 255 ;;
    HANG) hang ;;
    HALF)
      echo 'lengen-worker w0 none - 0'
      fail 'the connection broke' 255
      ;;
    SKIPPED) echo 'Could not prepare all 2 nodes, attempting ...' >&2 ;;
    ?*)
      echo 'Welcome to the machine'
      echo "lengen-worker w0 ${scene%|*}"
      echo "lengen-worker w1 ${scene#*|}"
      return
      ;;
  esac
  if [[ "$SIMULATE" == 1 ]]; then
    # A play that is too short must not pass for a run.
    [[ "$verb" != status ]]
    return
  fi
  # A connection carries standard input, output and errors, and no more.
  exec 3>&- 4>&-
  for n in $workers; do
    (
      cd "$STUB/home-$n"
      # No variable comes along but those that the tests are made of.
      exec env -i HOME="$PWD" PATH="$STUB/remote:$REMOTE_PATH" STUB="$STUB" \
        FAKE_HOST="w$n" MEGASCALE_COORDINATOR_ADDRESS=gone bash -c "$command"
    ) || worst=$?
  done
  return "$worst"
}

# Words end with one separator, calls with another.
printf '%s\037' "$@" >> "$STUB/calls"
printf '\036' >> "$STUB/calls"
kind=$3 verb=$4 workers='0 1'
for word in "$@"; do
  case "$word" in
    --worker=[0-9]*) workers=${word#*=} ;;
    --command=*)
      command=${word#*=}
      # What worker.sh is told to do; the question for the state is longer.
      [[ "$command" =~ lengen_worker.sh\ ([a-z]+) ]]
      verb=${BASH_REMATCH[1]}
      ;;
  esac
done
if read -r; then
  fail "it reads what is meant for others: $REPLY"
fi
play "$verb"
"$4" "$@"
