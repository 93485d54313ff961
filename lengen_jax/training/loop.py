"""Training one model: from a config and a corpus to a trained state."""

import contextlib
import dataclasses
import functools
import json
import time
from typing import Any

import jax
from jax.experimental import multihost_utils
import ml_collections

from lengen_jax import data
from lengen_jax import errors
from lengen_jax import progress as progress_lib
from lengen_jax.evaluation import bias_error
from lengen_jax.hints import PathLike
from lengen_jax.interop import llama
from lengen_jax.interop import llama_config
from lengen_jax.interop import weights as weights_lib
from lengen_jax.models import objective
from lengen_jax.training import checkpoint
from lengen_jax.training import config as training_config
from lengen_jax.training import evaluate
from lengen_jax.training import faults
from lengen_jax.training import files
from lengen_jax.training import metrics as metrics_lib
from lengen_jax.training import multihost
from lengen_jax.training import run as run_lib
from lengen_jax.training import throughput
from lengen_jax.training import trackers
from lengen_jax.training import workdir as workdir_lib

_TOKENS = (
  'token ids of the data (vocabulary {!r}) are taken for those of the weights, '
  'which do not say'
)


def train(
  config: ml_collections.ConfigDict,
  workdir: PathLike,
  *,
  corpus: Any = None,
  label: str = 'train',
) -> run_lib.Trained:
  """Trains a model, or goes on where an earlier call stopped.

  The workdir gets config.json, metrics.jsonl (a line per step; see `metrics`)
  and checkpoints. Told to stop by SIGTERM, a run saves the step it is at. A
  resumed run repeats an uninterrupted one bit for bit on the same devices and
  versions. A model starts from the parameters of another, whose encoding may
  differ, where `train.init_from` names them: the workdir of a run, a file that
  lengen export wrote, or the folder of a Llama. Step and optimizer start
  afresh, and a resumed run does not need the other any more. With train.steps=0
  what it starts from is the result.

  Args:
    config: a ConfigDict; see configs/stdlib.py.
    workdir: folder of the run.
    corpus: what `data.load` gives; loaded as the config says if None.
    label: what to call the run in progress lines.

  Returns:
    A run.Trained.

  Raises:
    errors.LengenError: the config, the corpus or the workdir do not serve;
      errors.PreemptedError: it was told to stop; errors.DivergedError: too many
      steps were not finite.
  """
  run = run_lib.Run(config)
  run.check_step()
  corpus = corpus or data.load(run.data, max(run.eval.lengths))
  check_corpus(run, corpus)
  if corpus.scored_by == 'loss' and config.train.evaluate_every:
    # What cannot be validated says so before it is trained.
    corpus.evaluation(run.eval)
  batches = corpus.training(run.data, seed=config.seed, host=run.layout.host)
  state, notes = _adopted(run, workdir, corpus)
  path = _claimed(workdir, config, corpus.info)
  for note in notes:
    print(f'{label}: {note}', flush=True)
  checkpoints = _checkpoints(path, run)
  if state is None:
    state = checkpoints.restore(run.abstract_state, batches=batches)
  if state is None:
    state = run.init_state()
  try:
    if int(state.step) < config.train.steps:
      state = _steps(run, state, batches, corpus, path, checkpoints, label)
    elif not config.train.steps:
      checkpoints.save(state, batches)
  except jax.errors.JaxRuntimeError as error:
    if 'RESOURCE_EXHAUSTED' not in str(error):
      raise
    raise errors.FitError(
      f'training does not fit into the memory of {run.layout.size} '
      f'{jax.default_backend()} devices: {str(error).splitlines()[0]}; lengen '
      'compile says for TPUs what would help'
    ) from error
  finally:
    checkpoints.close()
  return _trained(run, state, path)


def restore(
  workdir: PathLike, *, step: int | str | None = None, **eval_changes: Any
) -> run_lib.Trained:
  """What the run in a workdir has trained so far.

  Args:
    workdir: of the run; its mesh is taken if the devices here can have it, and
      else rows alone are split.
    step: of the checkpoint, or 'best'; None for the newest.
    **eval_changes: fields of its eval section that are to be others.

  Returns:
    A run.Trained.

  Raises:
    errors.LengenError: no run, or none of its checkpoints can be read.
  """
  config, path = workdir_lib.read_config(workdir)
  config.eval.update(eval_changes)
  mesh = training_config.MeshConfig(**config.mesh.to_dict())
  if not mesh.fits(jax.device_count()):
    # Trained on a pod, looked at on a laptop.
    config.mesh.update(dataclasses.asdict(training_config.MeshConfig()))
  run = run_lib.Run(config)
  if not checkpoint.steps(path):
    raise errors.CheckpointError(
      f'{path} has no checkpoint yet; run lengen train first'
    )
  checkpoints = _checkpoints(path, run)
  try:
    if step == 'best':
      step = checkpoints.best_step()
      if step is None:
        raise errors.CheckpointError(
          f'{path} has no best checkpoint: no step was validated, with '
          f'train.evaluate_every={config.train.evaluate_every}'
        )
    state = checkpoints.restore(run.abstract_state, step=step)
  finally:
    checkpoints.close()
  return _trained(run, state, path)


def _checkpoints(path, run):
  return checkpoint.Checkpointer(
    path,
    run.model,
    keep_every=run.config.train.keep_every,
    best='min',
    run_config=json.loads(run.config.to_json()),
  )


def _trained(run, state, path):
  """A state and what it took to get there."""
  lines, seconds = metrics_lib.read(path / metrics_lib.STEPS, int(state.step))
  return run_lib.Trained(
    run,
    state,
    seconds,
    memory_bytes=metrics_lib.peak_memory(lines),
    sessions=metrics_lib.sessions(path),
  )


def _claimed(workdir, config, info):
  """The workdir, made the run's by the first process before others look."""
  if multihost.is_first():
    path = workdir_lib.claim(workdir, config, info)
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices('workdir')
  if not multihost.is_first():
    path = workdir_lib.claim(workdir, config, info)
  return path


def check_corpus(run: run_lib.Run, corpus: Any) -> None:
  """Raises unless the model is one for the data, and has all its token ids.

  Args:
    run: the model's.
    corpus: what `data.load` gives.

  Raises:
    errors.ConfigError: naming what to set.
  """
  if run.model.architecture not in corpus.architectures:
    raise errors.ConfigError(
      f'{run.data.task or run.data.source} is not for '
      f'model.architecture={run.model.architecture!r}; set it to '
      f'{" or ".join(map(repr, corpus.architectures))}'
    )
  masks = run.model.architecture == 'encoder'
  if corpus.vocab_size + masks > run.model.vocab_size:
    raise errors.ConfigError(
      f'model.vocab_size={run.model.vocab_size} is less than the '
      f'{corpus.vocab_size} token ids of {run.data.task or run.data.source}'
      f'{" and one that masks" if masks else ""}; raise it'
    )


def _adopted(run, workdir, corpus):
  """The first state of a run that starts from weights, and notes about them.

  Returns:
    (None, []) for a run that starts from scratch or has checkpoints already.
  """
  source = run.config.train.init_from
  if not source:
    return None, []
  here, there = files.locate(workdir), files.locate(source)
  if here.resolve() == there.resolve():
    raise errors.ConfigError(
      f'train.init_from={source} is the workdir itself; give the run another '
      '--workdir'
    )
  if checkpoint.steps(here):
    return None, []
  try:
    weights = _exported(there)
    if weights is not None:
      params, model, known = weights
      if known.vocabulary:
        workdir_lib.check_vocabulary(there, corpus.info, known.vocabulary)
      state, notes = run.adopt(params, model, known.length)
      if not known.vocabulary:
        notes = [*notes, _TOKENS.format(corpus.info['vocabulary'])]
      return state, notes
    workdir_lib.check_vocabulary(source, corpus.info)
    trained = restore(source)
    return run.adopt(
      trained.state.params,
      trained.run.model,
      trained.run.config.data.train_length,
    )
  except errors.LengenError as error:
    raise type(error)(f'train.init_from={source}: {error}') from error


def _exported(source):
  """(params, ModelConfig, TrainedOn) of weights; None for a workdir."""
  if source.suffix == weights_lib.SUFFIX:
    return *weights_lib.load(source), weights_lib.trained_on(source)
  if llama_config.is_checkpoint(source):
    return *llama.load(source), weights_lib.TrainedOn()
  return None


def _steps(run, state, batches, corpus, path, checkpoints, label):
  """The loop: from the state's step to the last."""
  config = run.config
  step_fn = run.jitted_step(
    packed=batches.padded and objective.sees_padding(run.model, run.scheme)
  )
  first, steps = int(state.step), config.train.steps
  batch = run.layout.place(batches.next())
  rows, length = batch['inputs'].shape
  encoder = batch.get('encoder_inputs')
  with contextlib.ExitStack() as stack:
    progress = stack.enter_context(
      progress_lib.Progress(
        label, steps, unit='tokens', per=rows * length, first=first
      )
    )
    log = metrics_lib.Log(
      path,
      first,
      devices=run.layout.mesh.devices.flat,
      tokens=rows * length,
      flops=throughput.model_flops(
        run.model, rows, length, None if encoder is None else encoder.shape[1]
      ),
      primary=multihost.is_first(),
      trackers=functools.partial(trackers.create, config),
    )
    stack.callback(log.close)
    profile = metrics_lib.Profile(
      config.train.profile,
      path,
      progress.announce,
      primary=multihost.is_first(),
    )
    stack.callback(profile.close)
    preemption = stack.enter_context(faults.Preemption())
    progress.announce(
      f'compiling for {run.layout.size} of {jax.device_count()} '
      f'{jax.default_backend()} devices ...'
    )
    began = time.monotonic()
    with run.layout.scope():
      compiled = step_fn.lower(state, batch).compile()
    progress.announce(f'compiled in {time.monotonic() - began:.1f} s')
    progress.start_clock()
    watchdog = stack.enter_context(faults.Watchdog(config.train.stall_seconds))
    pending, began, aside = [], time.monotonic(), 0.0
    for step in range(first + 1, steps + 1):
      watchdog.reset()
      checkpoints.check()
      profile.before(step, state)
      state, metrics = compiled(state, batch)
      profile.after(step, state)
      pending.append((step, metrics))
      last, told = step == steps, preemption.reached(step)
      saves = last or told or step % config.train.checkpoint_every == 0
      if not saves:
        # While the devices work on this step.
        batch = run.layout.place(batches.next())
      cost = None
      if saves:
        metrics |= _bias_error(run, state.params, progress)
      # There is no time for it where the machine is about to go.
      if saves and not told and run.validates(step):
        since = time.monotonic()
        with watchdog.paused():
          found, cost = evaluate.validate(
            run_lib.Trained(run, state, seconds=0.0),
            corpus,
            f'{label}: step {step}',
          )
        metrics |= found
        aside += time.monotonic() - since
      if saves or len(pending) == config.train.log_every:
        spent = time.monotonic() - began - aside
        written = log.write(pending, spent, checkpoints.durable_step(), saves)
        pending = []
        progress.update(step, f'loss {written.loss:.4f}')
        _check_skipped(run, written.skipped, step)
      if saves:
        # What is logged is logged, and the data stands at this step.
        checkpoints.save(state, batches, value=cost)
      if told and not last:
        raise errors.PreemptedError(
          f'told to stop; saved step {step} of {steps} in {path}; the same '
          'command goes on from there'
        )
      if saves and not last:
        batch = run.layout.place(batches.next())
  return state


def _check_skipped(run, skipped, step):
  """Raises if too many last steps in a row changed nothing."""
  most = run.config.train.max_skipped
  if skipped >= most:
    raise errors.DivergedError(
      f'loss or gradient was not finite in {skipped} steps in a row before '
      f'step {step + 1} (train.max_skipped={most}); they changed nothing, and '
      'checkpoints are as good as before; lower optimizer.learning_rate or '
      'raise optimizer.warmup_steps'
    )


def _bias_error(run, params, progress):
  """The metric bias_error, where a bias is approximated; also printed."""
  length = run.config.data.train_length
  errors_by_path = bias_error.largest(run.model, run.scheme, params, length)
  if not errors_by_path:
    return {}
  worst = max(errors_by_path, key=errors_by_path.get)
  progress.announce(
    f'bias_form={run.model.bias_form!r} is off by up to '
    f'{errors_by_path[worst]:.1e} nats ({worst})'
  )
  return {'bias_error': errors_by_path[worst]}
