#!/usr/bin/env bash
# Stops the run on all workers, after it has saved; kills it if it does not end
# within STOP_SECONDS. The machine stays. End a watcher first: it would launch
# the run again.
#
# usage: stop.sh [--dry-run] [--help]
#
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

parse '' "$@"
require PROJECT ZONE
cloud_limit=$((STOP_SECONDS + ANSWER_SECONDS))

cloud_ssh all "$(remote stop "$STOP_SECONDS")"
