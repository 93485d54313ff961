#!/usr/bin/env bash
# Installs lengen on all workers, at the pinned revision. Skips workers that
# have it, and removes nothing.
#
# usage: setup.sh [--dry-run] [--help]
#
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

parse '' "$@"
require PROJECT ZONE REPOSITORY REVISION
cloud_limit=$SETUP_SECONDS

if [[ "$REVISION" == "$(git -C "$here" rev-parse HEAD 2> /dev/null)" ]] \
  && [[ -n "$(git -C "$here" status --porcelain)" ]]; then
  say 'note: uncommitted changes are not installed; commit and push them'
fi
cloud_copy "$here/worker.sh" lengen_worker.sh
cloud_ssh all \
  "$(remote setup "$REPOSITORY" "$REVISION" "$PYTHON_VERSION" "$EXTRAS")"
