#!/usr/bin/env bash
# Settings of all scripts. Edit them here or export them: environment variables
# override this file.
set -euo pipefail

# Settings without a default. Each script checks those that it needs.
: "${PROJECT:=}"
: "${ZONE:=}"
: "${ACCELERATOR_TYPE:=}"
: "${REPOSITORY:=}"
: "${WORKDIR:=}"
: "${CONFIG:=}"

# The machine. The number in v2 to v5p types counts cores, two per chip.
: "${NAME:=lengen}"
: "${SPOT:=0}"   # 1: much cheaper, but may be preempted at any time
: "${QUEUED:=0}" # 1: waits in a queue for capacity instead of failing
: "${SLICES:=1}" # 2 or more: multislice, always queued
case "$ACCELERATOR_TYPE" in
  v2-* | v3-* | v4-*) : "${RUNTIME_VERSION:=tpu-ubuntu2204-base}" ;;
  v5litepod-*) : "${RUNTIME_VERSION:=v2-alpha-tpuv5-lite}" ;;
  v5p-*) : "${RUNTIME_VERSION:=v2-alpha-tpuv5}" ;;
  v5e-*)
    echo "ACCELERATOR_TYPE=$ACCELERATOR_TYPE: Cloud TPU calls this type" \
      "v5litepod-${ACCELERATOR_TYPE#v5e-}" >&2
    exit 2
    ;;
  v6e-*) : "${RUNTIME_VERSION:=v2-alpha-tpuv6e}" ;;
  *) : "${RUNTIME_VERSION:=}" ;;
esac
# More options, separated by spaces: --network=..., --internal-ip, ...
: "${CREATE_FLAGS:=}"
: "${SSH_FLAGS:=}"

# What to install. The revision is pinned and exported, so that a watcher keeps
# installing the same one; the default is the local checkout.
: "${REVISION:=$(git -C "$(dirname "${BASH_SOURCE[0]}")" rev-parse HEAD \
  2> /dev/null || true)}"
export REVISION
: "${PYTHON_VERSION:=3.11}"
: "${EXTRAS:=tpu,data}"

# What to run, in a checkout of the repository. The same command starts and
# resumes a run. WORKDIR must be in a bucket: the disks of a machine are deleted
# with it.
default_command=$(printf 'lengen train --config=%q --workdir=%q' \
  "$CONFIG" "$WORKDIR")
: "${LENGEN_COMMAND:=$default_command}"

# Flags of libtpu, which fails to load with an unknown flag; `make test-aot`
# loads it with these. A single slice uses the defaults, with which its memory
# was measured. With several slices,
# - a run that hangs or fails in their network ends, so that it can be launched
#   again;
# - all-reduces of gradients of any size overlap with computation.
# --xla_enable_async_all_gather is not set: it has crashed runs on pods.
if [[ "$SLICES" != 1 ]]; then
  : "${LIBTPU_INIT_ARGS:=--megascale_abort_on_hangs=true \
--megascale_abort_on_errors=true \
--xla_tpu_enable_data_parallel_all_reduce_opt=true \
--xla_tpu_data_parallel_opt_different_sized_ops=true}"
fi
: "${LIBTPU_INIT_ARGS:=}"
# Variables that are passed to the run if they are set. Anyone who can write to
# the compilation cache can execute code in the run.
: "${RUN_VARIABLES:=LIBTPU_INIT_ARGS LENGEN_DATA_DIR \
JAX_COMPILATION_CACHE_DIR}"

# Waiting and giving up.
: "${POLL_SECONDS:=60}"
: "${BACKOFF_SECONDS:=600}"  # between attempts, at most
: "${WAIT_HOURS:=24}"        # for a machine
: "${ANSWER_SECONDS:=300}"   # for a request to be answered
: "${SETUP_SECONDS:=3600}"   # for the installation
: "${UNANSWERED_LIMIT:=10}"  # consecutive requests without an answer
: "${FAILURE_LIMIT:=3}"      # consecutive failures, each ...
# A run that hangs when it starts ends after train.stall_seconds, 30 minutes.
: "${FAST_MINUTES:=45}"      # ... within this time of the launch
: "${STRAGGLER_MINUTES:=10}" # for workers to end after another has failed
: "${STOP_SECONDS:=120}"     # for a run to save and end after SIGTERM

# Prints an example of a setting, for error messages.
example() {
  case "$1" in
    PROJECT) echo 'my-project' ;;
    ZONE) echo 'us-central2-b' ;;
    ACCELERATOR_TYPE) echo 'v4-256' ;;
    RUNTIME_VERSION) echo 'tpu-ubuntu2204-base' ;;
    REPOSITORY) echo 'https://github.com/me/lengen_jax' ;;
    REVISION) git rev-parse HEAD 2> /dev/null || echo v0.1.0 ;;
    WORKDIR) echo 'gs://my-bucket/runs/c4' ;;
    CONFIG) echo 'configs/fire_c4.py:base' ;;
    *) echo '...' ;;
  esac
}
