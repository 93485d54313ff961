#!/usr/bin/env bash
# Tells the run to save and end, on all workers. The machine stays. A watcher
# would launch the run again: end that first.
#
# usage: stop.sh [--dry-run] [--help]
#
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

parse '' "$@"
require PROJECT ZONE

cloud_ssh all "$(remote stop "$STOP_SECONDS")"
