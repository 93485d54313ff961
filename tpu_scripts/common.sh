#!/usr/bin/env bash
# Shared by all scripts: settings, arguments, messages and calls to workers.
# Sourced.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
script=$(basename "$0")
: "${DRY_RUN:=0}"
export DRY_RUN
# A dry run prints commands to the terminal, even if a script reads the output
# of the command.
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

# Prints a comment in a dry run.
note() {
  if dry_run; then
    printf '# %s\n' "$*" >&4
  fi
}

# Quotes the arguments for a shell, on one line.
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

# Prints the comment at the top of the script.
help() {
  awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$0"
  cat << EOF
  --dry-run   print the exact commands; ask and change nothing
  --help      this text

Settings are in $here/env.sh; environment variables override them.
EOF
}

# parse 'NAME NAME= ...' ARGUMENT...: stores --NAME and --NAME=VALUE in the
# variable option_NAME.
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

# A misspelt SPOT would order a machine at full price.
check_settings() {
  local name
  [[ "$NAME" =~ ^[a-z]([a-z0-9-]*[a-z0-9])?$ ]] || die 2 "NAME is '$NAME'; it" \
    "must consist of lower-case letters, digits and hyphens, such as 'lengen'"
  for name in SPOT QUEUED DRY_RUN; do
    [[ "${!name}" == [01] ]] || die 2 "$name is '${!name}'; it must be 0 or 1"
  done
  for name in SLICES FAILURE_LIMIT UNANSWERED_LIMIT ANSWER_SECONDS \
    SETUP_SECONDS; do
    [[ "${!name}" =~ ^[1-9][0-9]*$ ]] \
      || die 2 "$name is '${!name}'; it must be 1 or more"
  done
  for name in POLL_SECONDS BACKOFF_SECONDS WAIT_HOURS FAST_MINUTES \
    STRAGGLER_MINUTES STOP_SECONDS; do
    [[ "${!name}" =~ ^(0|[1-9][0-9]*)$ ]] \
      || die 2 "$name is '${!name}'; it must be a whole number"
  done
}

# require NAME...: exits with status 2 if a setting is missing.
require() {
  local name
  for name in "$@"; do
    [[ -n "${!name}" ]] || die 2 "$name is not set; for example," \
      "export $name=$(example "$name"), or set it in $here/env.sh"
  done
}

# require_run: requires a config and a workdir that outlives the machine.
require_run() {
  # A custom command may use neither.
  if [[ "$LENGEN_COMMAND" == "$default_command" ]]; then
    require CONFIG WORKDIR
    [[ "$WORKDIR" == gs://* ]] || die 2 "WORKDIR is '$WORKDIR', which would" \
      "be lost with the machine; for example," \
      "export WORKDIR=$(example WORKDIR)"
  fi
}

# back_off ATTEMPT: sleeps with exponential backoff; attempts count from 0.
back_off() {
  local seconds=$POLL_SECONDS i
  for ((i = 0; i < $1 && seconds < BACKOFF_SECONDS; i++)); do
    seconds=$((2 * seconds))
  done
  sleep $((seconds < BACKOFF_SECONDS ? seconds : BACKOFF_SECONDS))
}

# remote WORD...: prints the command that runs worker.sh on a worker.
remote() {
  quote bash lengen_worker.sh "$@"
}

# Prints one line per worker: lengen-worker HOST STATE EXIT-STATUS SECONDS.
# Fails unless all workers answer.
workers() {
  # gcloud prints a line per worker about its connections.
  local lines cloud_limit=$ANSWER_SECONDS cloud_quiet=1
  # A new machine does not have worker.sh yet.
  # shellcheck disable=SC2016
  lines=$(cloud_ssh all 'if [ -f lengen_worker.sh ];'\
' then bash lengen_worker.sh status;'\
' else echo "lengen-worker $(hostname) none - 0"; fi') || return 1
  dry_run || grep '^lengen-worker ' <<< "$lines"
}
