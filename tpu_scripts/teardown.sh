#!/usr/bin/env bash
# Deletes the machine and its disks, after asking. The bucket stays. End a
# watcher first: it would create the machine again.
#
# usage: teardown.sh [--yes] [--dry-run] [--help]
#
#   --yes       do not ask
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

option_yes=0
parse 'yes' "$@"
require PROJECT ZONE

if ! dry_run && [[ "$option_yes" != 1 ]]; then
  printf 'Delete %s in %s of %s, with its disks? (A watcher that has not been \
ended creates it again.) [y/N] ' \
    "$NAME" "$ZONE" "$PROJECT" >&2
  answer=
  read -r answer || true
  [[ "$answer" == [yY]* ]] || die 1 "$NAME was left as it is"
fi
cloud_delete
