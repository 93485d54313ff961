#!/usr/bin/env bash
# Settings of all scripts, and the one place for them. Edit them here or export
# them: what the environment says goes first.
set -euo pipefail

# What has no default. The scripts ask for those that they need.
: "${PROJECT:=}"
: "${ZONE:=}"
: "${ACCELERATOR_TYPE:=}"
: "${REPOSITORY:=}"
: "${WORKDIR:=}"
: "${CONFIG:=}"

# The machine. The number in v2 to v5p types counts cores, two per chip.
: "${NAME:=lengen}"
: "${SPOT:=0}"   # 1: far cheaper, and taken away at any time
: "${QUEUED:=0}" # 1: waits in a queue for capacity, instead of being refused
: "${SLICES:=1}" # 2 or more: multislice, which is always queued
case "$ACCELERATOR_TYPE" in
  v2-* | v3-* | v4-*) : "${RUNTIME_VERSION:=tpu-ubuntu2204-base}" ;;
  v5litepod-*) : "${RUNTIME_VERSION:=v2-alpha-tpuv5-lite}" ;;
  v5p-*) : "${RUNTIME_VERSION:=v2-alpha-tpuv5}" ;;
  v6e-*) : "${RUNTIME_VERSION:=v2-alpha-tpuv6e}" ;;
  *) : "${RUNTIME_VERSION:=}" ;;
esac
# More options, separated by spaces: --network=..., --internal-ip, ...
: "${CREATE_FLAGS:=}"
: "${SSH_FLAGS:=}"

# What is installed. The revision is pinned and exported, so that a watcher goes
# on with the one that it began with: by default, what is checked out here.
: "${REVISION:=$(git -C "$(dirname "${BASH_SOURCE[0]}")" rev-parse HEAD \
  2> /dev/null || true)}"
export REVISION
: "${PYTHON_VERSION:=3.11}"
: "${EXTRAS:=tpu,data}"

# What is run, in a checkout of the repository; the same command starts a run
# and goes on with it. WORKDIR lies in a bucket: a machine that is taken away
# takes its disks along.
: "${LENGEN_COMMAND:=lengen train --config=$CONFIG --workdir=$WORKDIR}"

# Flags of libtpu, which refuses to load for one that it does not know; `make
# test-aot` loads it with these. A single slice has none: the compiler's own
# choices are what its memory was measured with. Across slices,
# - a run that hangs or fails in their network ends, so that it can be launched
#   again, instead of waiting for ever;
# - sums of gradients, of whatever size, travel while others are computed.
# --xla_enable_async_all_gather is left out: it has crashed runs on pods.
if [[ "$SLICES" != 1 ]]; then
  : "${LIBTPU_INIT_ARGS:=--megascale_abort_on_hangs=true \
--megascale_abort_on_errors=true \
--xla_tpu_enable_data_parallel_all_reduce_opt=true \
--xla_tpu_data_parallel_opt_different_sized_ops=true}"
fi
: "${LIBTPU_INIT_ARGS:=}"
# Variables that the run is given, of those that are set. Whoever can write to
# the compilation cache can run code in the run.
: "${RUN_VARIABLES:=LIBTPU_INIT_ARGS LENGEN_DATA_DIR JAX_COMPILATION_CACHE_DIR}"

# Waiting and giving up.
: "${POLL_SECONDS:=60}"
: "${BACKOFF_SECONDS:=600}"  # between attempts, at most
: "${WAIT_HOURS:=24}"        # for a machine
: "${UNANSWERED_LIMIT:=10}"  # questions in a row that nobody answers
: "${FAILURE_LIMIT:=3}"      # failures in a row, each ...
: "${FAST_MINUTES:=10}"      # ... within this time of the launch
: "${STRAGGLER_MINUTES:=10}" # for workers to end once another one has failed
: "${STOP_SECONDS:=120}"     # for a run to save and end when it is told to

# An example of a setting, for the message that asks for it.
example() {
  case "$1" in
    PROJECT) echo 'my-project' ;;
    ZONE) echo 'us-central2-b' ;;
    ACCELERATOR_TYPE) echo 'v4-256' ;;
    RUNTIME_VERSION) echo 'tpu-ubuntu2204-base' ;;
    REPOSITORY) echo 'https://github.com/me/lengen_jax' ;;
    REVISION) echo 'main' ;;
    WORKDIR) echo 'gs://my-bucket/runs/c4' ;;
    CONFIG) echo 'configs/fire_c4.py:base' ;;
    *) echo '...' ;;
  esac
}
