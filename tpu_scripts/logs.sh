#!/usr/bin/env bash
# Prints the last lines of the log of every worker, or of one.
#
# usage: logs.sh [--worker=N] [--lines=N] [--follow] [--dry-run] [--help]
#
#   --worker=N  one worker only; SLICE:N with several slices
#   --lines=N   number of lines per worker (20)
#   --follow    keep printing new lines (of worker 0 by default)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

option_worker='' option_lines=20 option_follow=0
parse 'worker= lines= follow' "$@"
require PROJECT ZONE
[[ "$option_worker" =~ ^(([0-9]+:)?[0-9]+)?$ ]] \
  || die 2 "--worker=$option_worker is neither N nor SLICE:N"
[[ "$option_lines" =~ ^[0-9]+$ ]] \
  || die 2 "--lines=$option_lines is not a whole number"

if [[ "$option_follow" == 1 ]]; then
  cloud_ssh "${option_worker:-0}" "$(remote logs "$option_lines" follow)"
else
  cloud_limit=$ANSWER_SECONDS
  cloud_ssh "${option_worker:-all}" "$(remote logs "$option_lines")"
fi
