# make demo   the main job: five models, trained short, tested long
# make test   the tests
# Both set up .venv on their first call. PYTHON chooses the interpreter.
#
# make test-slow  the tests that take long
# make test-aot   what TPUs hold, compiled ahead of time; needs no TPU
# make compile-matrix  memory of every recorded program, compiled ahead of time;
#   half an hour
# make test-beam  lengen prepare with Apache Beam, in an environment of its own
# make test-peers  comparisons with transformers and the lm-evaluation-harness,
#   and a run in an emulated bucket; installs them and PyTorch
# make bench-small  every benchmark on small arrays; installs PyTorch
# make soak       kills training at fifty random moments
# make reproduce-cpu  every table, figure and study at a laptop's scale, up to
#   16 hours; or those of EXPERIMENTS='fire/table4 warping/table2'
# make study      how extrapolation changes during training: about two and a half
#   days on two cores, resumable; make -j2 study trains two seeds of text at a
#   time, in four fifths of the time of both in turn (benchmarks/seeds_cpu.py),
#   and those of tasks in turn; STUDY='biases text' runs these two experiments
# make results    docs/results.md and docs/study.md from what was reproduced
# make docs       docs/reference from docstrings, docs/pictures from docs/draw.py

PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= test
BIN := $(VENV)/bin
# Other extras are installed beside those that are there.
READY := $(VENV)/.ready-$(EXTRAS)
DATA := $(VENV)/.data
LIBTPU := $(VENV)/libtpu
# PIP_INSTALL='uv pip install --quiet --python $(BIN)/python' takes a quarter of
# the time.
PIP_INSTALL ?= $(BIN)/python -m pip install --quiet

# tests/conftest.py orders the files.
PARALLEL := --numprocesses=auto --dist=loadfile --no-loadscope-reorder

BENCH ?= bench
BENCHMARKS ?= attention_cpu attention_gpu attention_memory \
  attention_tpu_static chomsky_cpu compile_matrix data_cpu decode_cpu forget_cpu \
  prepare_cpu seeds_cpu train_cpu

DEMO_RUNS := fire; kerple_log; alibi; rope; \
  rope => rope(train_length=128, dynamic=True); nope

STUDY ?= biases random_positions interpolation rate range protocol text tasks \
  regularization grid
SEEDS := study-0 study-1 study-2

.PHONY: demo test test-default test-slow test-aot test-beam test-peers \
  bench-small soak compile-matrix reproduce-cpu study $(SEEDS) results docs lint \
  format setup

demo: $(READY)
	$(BIN)/lengen compare --config=configs/stdlib.py:cpu --workdir=runs/demo \
	  --runs='$(DEMO_RUNS)'

# mypy has one process and runs beside the tests; both must pass.
test: $(DATA)
	$(MAKE) --jobs=2 lint test-default

test-default: $(DATA)
	$(BIN)/python -m pytest $(PARALLEL)

test-slow: $(DATA)
	$(BIN)/python -m pytest -m slow $(PARALLEL)

test-aot: $(LIBTPU)/.ready
	PYTHONPATH=$(abspath $(LIBTPU)) $(BIN)/python -m pytest -m aot tests/aot \
	  --numprocesses=auto --dist=worksteal

test-beam:
	$(MAKE) .venv-beam/.data VENV=.venv-beam EXTRAS='test,data,beam'
	.venv-beam/bin/python -m pytest tests/data/encode_test.py \
	  --numprocesses=auto

test-peers: $(DATA)
	$(PIP_INSTALL) --editable '.[$(BENCH)]'
	$(BIN)/python -m pytest -m peers $(PARALLEL) \
	  $$(grep -rl --include=*_test.py mark[.]peers tests)

# Only that the benchmarks run matters, not how fast.
bench-small: $(DATA) $(LIBTPU)/.ready
	$(PIP_INSTALL) --editable '.[$(BENCH)]'
	echo $(BENCHMARKS) | PYTHONPATH=$(abspath $(LIBTPU)) JAX_PLATFORMS=cpu \
	  JAX_DISABLE_MOST_OPTIMIZATIONS=1 \
	  xargs -n 1 -P 2 sh -c '$(BIN)/python -m benchmarks.$$0 --small'

soak: $(DATA)
	LENGEN_KILLS=50 $(BIN)/python -m pytest -s -m slow \
	  tests/training/kill_test.py -k random

compile-matrix: $(LIBTPU)/.ready
	PYTHONPATH=$(abspath $(LIBTPU)) $(BIN)/python -m benchmarks.compile_matrix --check

$(SEEDS): study-%: $(READY)
	for experiment in $(STUDY); do \
	  $(BIN)/lengen reproduce study/$$experiment --scale=hours --seeds=$* \
	    || failed=1; done; exit $${failed:-0}

study: $(READY)
	-$(MAKE) --keep-going $(SEEDS)
	for experiment in $(STUDY); do \
	  $(BIN)/lengen reproduce study/$$experiment --scale=hours || failed=1; \
	  done; exit $${failed:-0}

reproduce-cpu: $(DATA)
	for experiment in $${EXPERIMENTS:-$$($(BIN)/lengen reproduce --names)}; do \
	  $(BIN)/lengen reproduce $$experiment --scale=cpu || failed=1; done; \
	  exit $${failed:-0}

results: $(READY)
	$(BIN)/python -m docs.write_results runs/reproduce docs

docs: $(READY)
	$(BIN)/python -m docs.write_reference
	$(BIN)/python -m docs.draw

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

setup: $(READY)

$(READY): setup.py
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  "lengen_jax needs Python 3.11 or later; set PYTHON=python3.x")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(PIP_INSTALL) --editable '.[$(EXTRAS)]'
	touch $(READY)

# TensorFlow and what reads data; the demo does without.
$(DATA): $(READY)
	$(PIP_INSTALL) --editable '.[data]'
	touch $(DATA)

# In its own folder, because any process that can import libtpu looks for TPUs.
$(LIBTPU)/.ready: $(READY)
	$(PIP_INSTALL) --upgrade --target $(LIBTPU) 'libtpu>=0.0.51'
	touch $@
