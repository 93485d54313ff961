#!/usr/bin/env bash
# The Cloud TPU API; no other file calls gcloud. Google has frozen this API,
# which does not support TPU7x. For Compute Engine or GKE, reimplement these
# functions. Sourced by common.sh.
set -euo pipefail

# cloud_call KIND VERB WORD...: runs a command, or prints it in a dry run. It
# fails after $cloud_limit seconds, if this is set.
cloud_call() {
  local command=(gcloud compute tpus "$@")
  command+=("--project=$PROJECT" "--zone=$ZONE" --quiet)
  if dry_run; then
    quote "${command[@]}" >&4
  elif ! command -v gcloud > /dev/null; then
    echo 'gcloud is not installed: https://cloud.google.com/sdk/docs/install' \
      >&2
    return 127
  # macOS has no `timeout`.
  elif [[ -n "${cloud_limit:-}" ]] && command -v timeout > /dev/null; then
    cloud_limited "${command[@]}"
  else
    # gcloud must not read the standard input of the script.
    "${command[@]}" < /dev/null
  fi
}

# Runs a command for at most $cloud_limit seconds. `timeout` runs it in another
# process group, which Ctrl-C does not reach.
cloud_limited() (
  trap 'kill "$!" 2> /dev/null; trap - INT TERM; kill -INT "$BASHPID"' INT TERM
  timeout "$cloud_limit" "$@" < /dev/null &
  wait "$!"
)

# Calls cloud_call and also stores its standard error in cloud_error. If
# $cloud_quiet is set, it prints this only after a failure.
cloud_try() {
  if [[ -z "${cloud_quiet:-}" ]]; then
    { cloud_error=$(cloud_call "$@" 2>&1 >&3 | tee >(cat >&2)); } 3>&1
  elif ! { cloud_error=$(cloud_call "$@" 2>&1 >&3); } 3>&1; then
    printf '%s\n' "$cloud_error" >&2
    return 1
  fi
}

# Multislice machines must be queued resources.
cloud_queued() {
  [[ "$QUEUED" == 1 ]] || ((SLICES > 1))
}

cloud_kind() {
  if cloud_queued; then
    echo queued-resources
  else
    echo tpu-vm
  fi
}

# Creates the machine. Returns 2 for an error that a retry cannot fix.
cloud_create() {
  local words
  words=("$(cloud_kind)" create "$NAME")
  words+=("--accelerator-type=$ACCELERATOR_TYPE")
  if ((SLICES > 1)); then
    words+=("--runtime-version=$RUNTIME_VERSION")
    words+=("--node-count=$SLICES" "--node-prefix=$NAME")
  elif cloud_queued; then
    words+=("--runtime-version=$RUNTIME_VERSION" "--node-id=$NAME")
  else
    words+=("--version=$RUNTIME_VERSION")
  fi
  if [[ "$SPOT" == 1 ]]; then
    words+=(--spot)
  fi
  # Split into words.
  # shellcheck disable=SC2206
  words+=($CREATE_FLAGS)
  if cloud_try "${words[@]}"; then
    return 0
  fi
  cloud_failure "$cloud_error"
}

# cloud_failure ERROR: returns 2 for an error that a retry cannot fix, else 1.
cloud_failure() {
  case "$1" in
    *INVALID_ARGUMENT* | *PERMISSION_DENIED* | *UNAUTHENTICATED* | \
      *'not installed'* | *'active account'* | *Reauthentication* | \
      *'Quota limit'* | *'Invalid choice'* | *'unrecognized arguments'*)
      return 2
      ;;
    *) return 1 ;;
  esac
}

# Prints the state as the API names it, or MISSING. Returns 1 if the API does
# not answer, and 2 for an error that a retry cannot fix.
cloud_state() {
  local error field=state cloud_limit=$ANSWER_SECONDS
  if cloud_queued; then
    field=state.state
  fi
  if { error=$(cloud_call "$(cloud_kind)" describe "$NAME" \
    "--format=value($field)" 2>&1 >&3); } 3>&1; then
    return 0
  fi
  case "$error" in
    *NOT_FOUND*) echo MISSING ;;
    *)
      say "${error:-no answer from gcloud in $ANSWER_SECONDS s}"
      cloud_failure "$error"
      ;;
  esac
}

# cloud_condition STATE: ready, missing, lost (never to come back) or waiting.
cloud_condition() {
  case "$1" in
    READY | ACTIVE) echo ready ;;
    MISSING) echo missing ;;
    PREEMPTED | TERMINATED | STOPPED | HIDDEN | UNKNOWN) echo lost ;;
    FAILED | SUSPENDED) echo lost ;;
    *) echo waiting ;;
  esac
}

cloud_delete() {
  local words
  words=("$(cloud_kind)" delete "$NAME")
  if cloud_queued; then
    # Also deletes the nodes.
    words+=(--force)
  fi
  if ! cloud_try "${words[@]}"; then
    [[ "$cloud_error" == *NOT_FOUND* ]] || return 1
    echo "no ${words[0]} named $NAME in $ZONE; NAME, ZONE, QUEUED and SLICES" \
      "must be those of create.sh" >&2
  fi
}

# cloud_at WORKER: prints the options for `all`, N, or SLICE:N.
cloud_at() {
  if [[ "$1" == all ]]; then
    ! cloud_queued || echo --node=all
    echo --worker=all
  else
    ! cloud_queued || [[ "$1" != *:* ]] || echo "--node=${1%%:*}"
    echo "--worker=${1##*:}"
  fi
}

# cloud_ssh WORKER COMMAND
cloud_ssh() {
  # Split into words, here and below.
  # shellcheck disable=SC2046,SC2086
  cloud_try "$(cloud_kind)" ssh "$NAME" $(cloud_at "$1") $SSH_FLAGS \
    "--command=$2" || return
  cloud_reached_all
}

# cloud_copy FILE NAME: to the home folders of all workers.
cloud_copy() {
  # shellcheck disable=SC2046,SC2086
  cloud_try "$(cloud_kind)" scp "$1" "$NAME:$2" $(cloud_at all) $SSH_FLAGS \
    || return
  cloud_reached_all
}

# gcloud skips slices that do not answer with a warning, and succeeds.
cloud_reached_all() {
  [[ "$cloud_error" != *'Could not prepare all'* ]]
}
