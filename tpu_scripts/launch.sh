#!/usr/bin/env bash
# Launches LENGEN_COMMAND on all workers, detached, with a log per worker. A run
# with checkpoints in its workdir resumes.
#
# usage: launch.sh [--dry-run] [--help]
#
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

parse '' "$@"
require PROJECT ZONE
require_run
cloud_limit=$ANSWER_SECONDS

found=$(workers) \
  || die 1 'not all workers answer; nothing was launched; for several' \
    'workers, ssh-add ~/.ssh/google_compute_engine'
if grep ' running ' <<< "$found" >&2; then
  die 1 'a run is already in progress; stop.sh ends it'
fi

id=$(date +%Y%m%d-%H%M%S)-$$
words=(launch "$id" "$LENGEN_COMMAND")
for name in $RUN_VARIABLES; do
  if [[ -n "${!name:-}" ]]; then
    words+=("$name=${!name}")
    say "passing $name"
  fi
done
cloud_ssh all "$(remote "${words[@]}")" \
  || die 1 'not launched on all workers; if lengen is not installed there,' \
    'run setup.sh first'
