#!/usr/bin/env bash
# Shows the end of the log of every worker, or of one.
#
# usage: logs.sh [--worker=N] [--lines=N] [--follow] [--dry-run] [--help]
#
#   --worker=N  of one worker; SLICE:N with several slices
#   --lines=N   how many lines of each (20)
#   --follow    go on with what is written (of worker 0, if not told)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

option_worker='' option_lines=20 option_follow=0
parse 'worker= lines= follow' "$@"
require PROJECT ZONE
[[ "$option_worker" =~ ^([0-9]+:)?[0-9]*$ ]] \
  || die 2 "--worker=$option_worker is neither N nor SLICE:N"
[[ "$option_lines" =~ ^[0-9]+$ ]] \
  || die 2 "--lines=$option_lines is no whole number"

if [[ "$option_follow" == 1 ]]; then
  cloud_ssh "${option_worker:-0}" "$(remote logs "$option_lines" follow)"
else
  cloud_ssh "${option_worker:-all}" "$(remote logs "$option_lines")"
fi
