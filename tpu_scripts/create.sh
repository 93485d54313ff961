#!/usr/bin/env bash
# Creates the TPU machine and waits until it is ready.
#
# usage: create.sh [--replace] [--dry-run] [--help]
#
#   --replace   delete a machine that was preempted, stopped or has failed, and
#               create it again; a spot machine cannot be restarted
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

option_replace=0
parse 'replace' "$@"
require PROJECT ZONE ACCELERATOR_TYPE
case "$ACCELERATOR_TYPE" in
  tpu7x* | v7x*)
    die 2 "the Cloud TPU API has no $ACCELERATOR_TYPE;" \
      "TPU7x and later need Compute Engine or GKE"
    ;;
esac
require RUNTIME_VERSION

if dry_run; then
  cloud_state
  if [[ "$option_replace" == 1 ]]; then
    note 'where it is lost'
    cloud_delete
  fi
  note 'where it is missing'
  cloud_create
  exit
fi

attempt=0 unknown=0
until
  status=0 answer=0
  state=$(cloud_state) || answer=$?
  [[ "$(cloud_condition "$state")" == ready ]]
do
  ((answer != 2)) || die 2 'a retry cannot succeed'
  unknown=$((answer ? unknown + 1 : 0))
  ((unknown < UNANSWERED_LIMIT)) || die 1 "the state of $NAME is not known" \
    "after UNANSWERED_LIMIT=$UNANSWERED_LIMIT requests; check the login," \
    "PROJECT and ZONE"
  case "$(cloud_condition "$state")" in
    missing)
      say "creating $NAME ($ACCELERATOR_TYPE)"
      cloud_create || status=$?
      ((status != 2)) || die 2 'a retry cannot succeed'
      ;;
    lost)
      [[ "$option_replace" == 1 ]] || die 1 "$NAME is $state and will not" \
        'come back; --replace deletes it and creates it again'
      say "deleting $NAME, which is $state"
      cloud_delete || status=$?
      ;;
    *)
      status=1
      say "waiting for $NAME, which is ${state:-not known}"
      ;;
  esac
  ((SECONDS < 3600 * WAIT_HOURS)) \
    || die 1 "$NAME was not ready within WAIT_HOURS=$WAIT_HOURS; it is billed" \
      "once it is ready: run create.sh again, or teardown.sh"
  # Check soon after a success, and with backoff after a failure.
  if ((status == 0)); then
    attempt=0
    back_off 0
  else
    back_off "$attempt"
    attempt=$((attempt + 1))
  fi
done
say "$NAME is $state"
