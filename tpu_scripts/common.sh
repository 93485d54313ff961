#!/usr/bin/env bash
# What all scripts share: settings, arguments, messages, words with workers.
# Sourced.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
script=$(basename "$0")
: "${DRY_RUN:=0}"
export DRY_RUN
# What a dry run prints goes to the terminal, even where a script would read
# the output of the command.
exec 4>&1

source "$here/env.sh"
source "$here/cloud.sh"

say() {
  printf '%s: %s\n' "$script" "$*" >&2
}

# die STATUS MESSAGE
die() {
  local status=$1
  shift
  say "$@"
  exit "$status"
}

dry_run() {
  [[ "$DRY_RUN" == 1 ]]
}

# A comment among the commands that a dry run prints.
note() {
  if dry_run; then
    printf '# %s\n' "$*" >&4
  fi
}

# The words as one line that a shell reads as these words.
quote() {
  local word line=
  for word in "$@"; do
    case "$word" in
      '' | *[!A-Za-z0-9_@%+=:,./-]*)
        word=$(printf '%s\n' "$word" \
          | sed "s/'/'\\\\''/g; 1s/^/'/; \$s/\$/'/")
        ;;
    esac
    line+=" $word"
  done
  printf '%s\n' "${line# }"
}

# The comment that a script opens with.
help() {
  awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$0"
  cat << EOF
  --dry-run   print the exact commands; ask and change nothing
  --help      this text

Settings are in $here/env.sh; those in the environment go first.
EOF
}

# parse 'NAME NAME= ...' ARGUMENT...: puts --NAME and --NAME=VALUE into
# option_NAME.
parse() {
  local known=" $1 " word name
  shift
  for word in "$@"; do
    name=${word#--}
    name=${name%%=*}
    case "$word" in
      --help | -h)
        help
        exit
        ;;
      --dry-run) DRY_RUN=1 ;;
      --*=*)
        [[ "$known" == *" $name= "* ]] || refuse "$word"
        printf -v "option_$name" '%s' "${word#*=}"
        ;;
      --*)
        [[ "$known" == *" $name "* ]] || refuse "$word"
        printf -v "option_$name" 1
        ;;
      *) refuse "$word" ;;
    esac
  done
  check_settings
}

refuse() {
  die 2 "unknown argument '$1'; see $script --help"
}

# A switch that is misspelt would be a machine at full price.
check_settings() {
  local name
  for name in SPOT QUEUED DRY_RUN; do
    [[ "${!name}" == [01] ]] || die 2 "$name is '${!name}'; it must be 0 or 1"
  done
  for name in SLICES FAILURE_LIMIT UNANSWERED_LIMIT; do
    [[ "${!name}" =~ ^[1-9][0-9]*$ ]] \
      || die 2 "$name is '${!name}'; it must be 1 or more"
  done
  for name in POLL_SECONDS BACKOFF_SECONDS WAIT_HOURS FAST_MINUTES \
    STRAGGLER_MINUTES STOP_SECONDS; do
    [[ "${!name}" =~ ^(0|[1-9][0-9]*)$ ]] \
      || die 2 "$name is '${!name}'; it must be a whole number"
  done
}

# require NAME...: settings without which the script cannot go on.
require() {
  local name
  for name in "$@"; do
    [[ -n "${!name}" ]] || die 2 "$name is not set; say, for example," \
      "export $name=$(example "$name"), or set it in $here/env.sh"
  done
}

# require_run: what is run must be known, and its workdir outlive the machine.
require_run() {
  # Whoever gives a command of their own has said it all.
  if [[ "$LENGEN_COMMAND" == "lengen train --config=$CONFIG \
--workdir=$WORKDIR" ]]; then
    require CONFIG WORKDIR
    [[ "$WORKDIR" == gs://* ]] || die 2 "WORKDIR is '$WORKDIR', which would" \
      "be lost with the machine; say, for example," \
      "export WORKDIR=$(example WORKDIR)"
  fi
}

# back_off ATTEMPT: sleeps twice as long at every attempt, from 0 on.
back_off() {
  local seconds=$POLL_SECONDS i
  for ((i = 0; i < $1 && seconds < BACKOFF_SECONDS; i++)); do
    seconds=$((2 * seconds))
  done
  sleep $((seconds < BACKOFF_SECONDS ? seconds : BACKOFF_SECONDS))
}

# remote WORD...: the command that has a worker do what worker.sh says.
remote() {
  quote bash lengen_worker.sh "$@"
}

# One line per worker: lengen-worker HOST STATE EXIT-STATUS SECONDS. Fails where
# not all of them answer.
workers() {
  local lines
  # A fresh machine has nothing that could answer.
  # shellcheck disable=SC2016
  lines=$(cloud_ssh all 'if [ -f lengen_worker.sh ];'\
' then bash lengen_worker.sh status;'\
' else echo "lengen-worker $(hostname) none - 0"; fi') || return 1
  dry_run || grep '^lengen-worker ' <<< "$lines"
}
