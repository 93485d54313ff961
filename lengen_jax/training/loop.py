"""Training one model: from a config and a corpus to a trained state."""

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import functools
import time
from typing import Any

import jax
import ml_collections

from lengen_jax import data, errors
from lengen_jax import progress as progress_lib
from lengen_jax.data import windows
from lengen_jax.evaluation import bias_error
from lengen_jax.models import objective
from lengen_jax.training import (
  checkpoint,
  evaluate,
  faults,
  files,
  multihost,
  pretrained,
  sharding,
  throughput,
  trackers,
)
from lengen_jax.training import metrics as metrics_lib
from lengen_jax.training import run as run_lib
from lengen_jax.training import state as state_lib
from lengen_jax.training import workdir as workdir_lib
from lengen_jax.types import Params, PathLike

_TOKENS = (
  'the weights do not record their vocabulary; it is assumed to be that of the '
  'data, {!r}'
)
_DIVERGED = (
  'loss or gradient was not finite in {} steps in a row before step {} '
  '(train.max_skipped={}); these steps were skipped, and checkpoints are not '
  'affected; lower optimizer.learning_rate or raise optimizer.warmup_steps'
)


def train(
  config: ml_collections.ConfigDict,
  workdir: PathLike,
  *,
  corpus: Any = None,
  label: str = 'train',
) -> run_lib.Trained:
  """Trains a model, or resumes training from the last checkpoint.

  The workdir gets config.json, metrics.jsonl (a line per step; see `metrics`)
  and checkpoints. On SIGTERM, a run saves its current step and stops. A resumed
  run repeats an uninterrupted one bit for bit on the same devices and versions.
  A validation that was interrupted is repeated first.

  With parameters from `train.init_from`, step and optimizer start anew, and a
  resumed run does not read these parameters again. With train.steps=0 the
  initial model is the result.

  The corpus is a result of `data.load`; None loads it according to the config.
  Progress lines start with `label`.

  Raises:
    errors.PreemptedError: the run was stopped by SIGTERM.
    errors.DivergedError: too many consecutive steps were not finite.
    errors.LengenError: the config, the corpus or the workdir is invalid.
  """
  run = run_lib.Run(config)
  run.check_step()
  if run.data.source != 'seqio':
    # Lengths of pictures and prompts need not divide the longest.
    windows.check_lengths(run.eval.lengths)
  corpus = corpus or data.load(run.data, max(run.eval.lengths))
  check_corpus(run, corpus)
  check_state_fits(run)
  if config.train.evaluate_every:
    # Raises before training if a validation would have no data.
    if corpus.scored_by == 'loss':
      corpus.evaluation(run.eval)
    else:
      corpus.check(min(run.eval.lengths))
  batches = corpus.training(run.data, seed=config.seed, host=run.layout.host)
  state, notes = _adopted(run, workdir, corpus)
  # Two trainings would delete each other's checkpoints.
  with files.locked(workdir, wait=False):
    return _train(run, corpus, batches, state, notes, workdir, label)


def _train(
  run: run_lib.Run,
  corpus: Any,
  batches: windows.Batches,
  state: state_lib.TrainState | None,
  notes: list[str],
  workdir: PathLike,
  label: str,
) -> run_lib.Trained:
  """Trains in a locked workdir, from `state` if it is given; see `train`."""
  config = run.config
  # The first process claims the workdir before the others.
  if not multihost.is_first():
    multihost.barrier('workdir')
  path = workdir_lib.claim(workdir, config, corpus.info)
  if multihost.is_first():
    multihost.barrier('workdir')
  for note in notes:
    print(f'{label}: {note}', flush=True)
  checkpoints = pretrained.open_checkpoints(path, run)
  if state is None:
    state = checkpoints.restore(run.abstract_state, batches=batches)
  if state is None:
    state = run.init_state()
  # Until the last checkpoint is written.
  with faults.Preemption() as preemption:
    try:
      unvalidated = _lacks_validation(run, path, int(state.step))
      if int(state.step) < config.train.steps or unvalidated:
        loop = Loop(run, batches, corpus, path, checkpoints, preemption, label)
        with must_fit(run.layout):
          state = loop.train(state, unvalidated)
      elif not config.train.steps:
        checkpoints.save(state, batches)
    finally:
      checkpoints.close()
  return pretrained.with_costs(run, state, path)


def check_state_fits(run: run_lib.Run) -> None:
  """Raises FitError if parameters and optimizer exceed the memory of a device.

  Devices of CPUs share the memory of the machine.
  """
  size = run.state_bytes
  device = jax.local_devices()[0]
  limit = (device.memory_stats() or {}).get('bytes_limit')
  if device.platform == 'cpu':
    size *= len(run.layout.mesh.local_devices)
    limit = files.physical_memory()
  if limit and size > limit:
    raise errors.FitError(
      f'{run.parameters:,} parameters and the state of the optimizer need '
      f'{files.readable_size(size)} of memory per '
      f'{"machine" if device.platform == "cpu" else "device"}, which has '
      f'{files.readable_size(limit)}; use a smaller model, or tables with a '
      'smaller max_position'
    )


@contextlib.contextmanager
def must_fit(layout: sharding.Layout) -> Iterator[None]:
  """Raises FitError instead of the error of a device without free memory."""
  try:
    yield
  except jax.errors.JaxRuntimeError as error:
    if 'RESOURCE_EXHAUSTED' not in str(error):
      raise
    raise errors.FitError(
      f'training does not fit into the memory of {layout.size} '
      f'{jax.default_backend()} devices: {str(error).splitlines()[0]}; for '
      'TPUs, lengen compile lists settings that need less memory'
    ) from error


def check_corpus(run: run_lib.Run, corpus: Any) -> None:
  """Raises ConfigError unless architecture and vocabulary fit the data."""
  if run.model.architecture not in corpus.architectures:
    raise errors.ConfigError(
      f'{run.data.task or run.data.source} does not support '
      f'model.architecture={run.model.architecture!r}; set it to '
      f'{" or ".join(map(repr, corpus.architectures))}'
    )
  masks = run.model.architecture == 'encoder'
  if corpus.vocab_size + masks > run.model.vocab_size:
    source, fix = run.data.task or run.data.source, 'raise it'
    if run.data.vocabulary != 'bytes':
      source += f' with data.vocabulary={run.data.vocabulary!r}'
      fix += ', or set data.vocabulary to that of the model'
    raise errors.ConfigError(
      f'model.vocab_size={run.model.vocab_size} is less than the '
      f'{corpus.vocab_size} token ids of {source}'
      f'{" and a mask token" if masks else ""}; {fix}'
    )


def _adopted(
  run: run_lib.Run, workdir: PathLike, corpus: Any
) -> tuple[state_lib.TrainState | None, list[str]]:
  """Returns the state of a run that starts from trained weights, and notes."""
  source = run.config.train.init_from
  if not source:
    if run.model.lora_rank is not None:
      raise errors.ConfigError(
        f'model.lora_rank={run.model.lora_rank} trains a few kernels beside '
        'trained ones; set train.init_from to the weights to start from, or '
        'leave model.lora_rank=None'
      )
    return None, []
  here, there = files.locate(workdir), files.locate(source)
  if here.resolve() == there.resolve():
    raise errors.ConfigError(
      f'train.init_from={source} is the workdir of this run; choose another '
      '--workdir'
    )
  if checkpoint.steps(here):
    return None, []
  try:
    found = pretrained.load(there)
    if found.fingerprint:
      workdir_lib.check_vocabulary(there, corpus.info, found.fingerprint)
    state, notes = run.adopt(found.params, found.model, found.train_length)
    if not found.fingerprint:
      notes = [*notes, _TOKENS.format(corpus.info['vocabulary'])]
    return state, notes
  except errors.LengenError as error:
    raise type(error)(f'train.init_from={source}: {error}') from error


def _lacks_validation(run: run_lib.Run, path: files.Path, step: int) -> bool:
  """Returns whether a run was stopped before it validated its last step."""
  if not step or not run.train.validates(step):
    return False
  lines, _ = metrics_lib.read(path / metrics_lib.STEPS, step)
  lacks = (
    metrics_lib.last_step(lines) == step and '"validation_' not in lines[-1]
  )
  return bool(multihost.broadcast([lacks])[0])


@dataclasses.dataclass
class Loop:
  """The training loop of one session of a run."""

  run: run_lib.Run
  batches: windows.Batches
  corpus: Any
  path: files.Path
  checkpoints: checkpoint.Checkpointer
  preemption: faults.Preemption
  label: str

  def train(
    self, state: state_lib.TrainState, unvalidated: bool
  ) -> state_lib.TrainState:
    """Returns the state after the last step of the config.

    If `state` is `unvalidated`, it is validated first.
    """
    run, config = self.run, self.run.train
    place, batches = run.place, self.batches
    with contextlib.ExitStack() as stack:
      watchdog = stack.enter_context(faults.Watchdog(config.stall_seconds))
      first, batch = int(state.step), place(batches.next())
      progress, log, profile = self._reporters(stack, first, batch)
      if unvalidated:
        self._validate(state, first, log, watchdog)
      if first == config.steps:
        return state
      with watchdog.paused():
        step_fn = self._compile(state, batch, progress)
      progress.start_clock()
      # `pause` is the time spent in validation, in seconds.
      pending, began, pause = [], time.monotonic(), 0.0
      for step in range(first + 1, config.steps + 1):
        watchdog.reset()
        self.checkpoints.check()
        profile.before(step, state)
        state, metrics = step_fn(state, batch)
        profile.after(step, state)
        pending.append((step, metrics))
        last, preempted = step == config.steps, self.preemption.reached()
        saves = last or preempted or step % config.checkpoint_every == 0
        saves |= step in run.eval.steps
        if not saves:
          # Overlaps with the step on the devices.
          batch = place(batches.next())
        else:
          metrics |= _bias_error(run, state.params, progress)
        if saves or len(pending) == config.log_every:
          for _, computed in pending:
            # Steps are computed while later ones are dispatched.
            jax.block_until_ready(computed['loss'])
            watchdog.reset()
          spent = time.monotonic() - began - pause
          durable = self.checkpoints.durable_step()
          written = log.write(pending, spent, durable, saves)
          pending = []
          progress.update(step, f'loss {written.loss:.4f}')
          if written.skipped >= config.max_skipped:
            raise errors.DivergedError(
              _DIVERGED.format(written.skipped, step + 1, config.max_skipped)
            )
        if saves:
          # The log is complete and the data is at this step.
          self.checkpoints.save(state, batches)
        validates = run.train.validates(step)
        # A machine about to be preempted has no time for a validation.
        if preempted and (validates or not last):
          raise faults.preempted(self._saved(step))
        if validates:
          paused = time.monotonic()
          self._validate(state, step, log, watchdog)
          pause += time.monotonic() - paused
        if saves and not last:
          batch = place(batches.next())
    return state

  def _validate(
    self,
    state: state_lib.TrainState,
    step: int,
    log: metrics_lib.Log,
    watchdog: faults.Watchdog,
  ) -> None:
    """Validates a step that is saved, or raises PreemptedError."""

    def after_batch() -> None:
      watchdog.reset()
      self.preemption.stop(self._saved(step))

    found, cost = evaluate.validate(
      run_lib.Trained(self.run, state, seconds=0.0),
      self.corpus,
      f'{self.label}: step {step}',
      after_batch,
    )
    watchdog.reset()
    self.checkpoints.rate(step, cost)
    # Last: a step whose line has no validation is validated on resumption.
    log.add(step, found)

  def _saved(self, step: int) -> str:
    return f'saved step {step} of {self.run.train.steps} in {self.path}'

  def _reporters(
    self, stack: contextlib.ExitStack, first: int, batch: dict[str, jax.Array]
  ) -> tuple[progress_lib.Progress, metrics_lib.Log, metrics_lib.Profile]:
    """Opens progress line, log and profiler; `stack` closes them."""
    run, (rows, length) = self.run, batch['inputs'].shape
    first_process = multihost.is_first()
    encoder = batch.get('encoder_inputs')
    encoder_length = None if encoder is None else encoder.shape[1]
    flops = throughput.model_flops(run.model, rows, length, encoder_length)
    tokens, steps = rows * length, run.train.steps
    progress = progress_lib.Progress(
      self.label, steps, unit='tokens', per=tokens, first=first
    )
    stack.enter_context(progress)
    log = metrics_lib.Log(
      self.path,
      first,
      devices=run.layout.mesh.devices.flat,
      tokens=tokens,
      flops=flops,
      primary=first_process,
      trackers=functools.partial(trackers.create, run.config),
    )
    stack.callback(log.close)
    profile = metrics_lib.Profile(
      run.train.profile, self.path, progress.announce, primary=first_process
    )
    stack.callback(profile.close)
    return progress, log, profile

  def _compile(
    self,
    state: state_lib.TrainState,
    batch: dict[str, jax.Array],
    progress: progress_lib.Progress,
  ) -> Callable[..., Any]:
    """Returns the compiled training step."""
    run = self.run
    packed = objective.sees_padding(run.model, run.scheme)
    step_fn = run.jitted_step(packed=packed and self.batches.padded)
    progress.announce(
      f'compiling for {run.layout.size} of {jax.device_count()} '
      f'{jax.default_backend()} devices ...'
    )
    began = time.monotonic()
    with run.layout.scope():
      compiled = step_fn.lower(state, batch).compile()
    progress.announce(f'compiled in {time.monotonic() - began:.1f} s')
    return compiled


def _bias_error(
  run: run_lib.Run, params: Params, progress: progress_lib.Progress
) -> dict[str, float]:
  """Returns and prints the error of approximated biases, if there are any."""
  length = run.config.data.train_length
  found = bias_error.largest(run.model, run.scheme, params, length)
  if not found:
    return {}
  worst = max(found, key=found.get)
  progress.announce(
    f'bias_form={run.model.bias_form!r} has errors of up to '
    f'{found[worst]:.1e} nats ({worst})'
  )
  return {'bias_error': found[worst]}
