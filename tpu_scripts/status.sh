#!/usr/bin/env bash
# Shows the state of the machine and of the run on every worker: none, running,
# exited or died, the exit status, and the elapsed seconds.
#
# usage: status.sh [--dry-run] [--help]
#
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

parse '' "$@"
require PROJECT ZONE

state=$(cloud_state) || die 1 "the state of $NAME is unknown"
if dry_run || [[ "$(cloud_condition "$state")" == ready ]]; then
  dry_run || echo "$NAME: $state"
  workers | sed 's/^lengen-worker //'
else
  echo "$NAME: $state"
fi
