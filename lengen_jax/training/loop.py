"""Training one model: from a config and a corpus to a trained state."""

import contextlib
import dataclasses
import functools
import json
import time

import jax
from jax.experimental import multihost_utils
import numpy as np

from lengen_jax import data
from lengen_jax import errors
from lengen_jax import positions as position_schemes
from lengen_jax import progress as progress_lib
from lengen_jax.attention import scaling
from lengen_jax.data import windows
from lengen_jax.evaluation import bias_error
from lengen_jax.evaluation import config as eval_config
from lengen_jax.models import config as model_config
from lengen_jax.models import objective
from lengen_jax.training import checkpoint
from lengen_jax.training import config as training_config
from lengen_jax.training import evaluate
from lengen_jax.training import faults
from lengen_jax.training import fields
from lengen_jax.training import metrics as metrics_lib
from lengen_jax.training import optimizer
from lengen_jax.training import sharding
from lengen_jax.training import state as state_lib
from lengen_jax.training import swap
from lengen_jax.training import throughput
from lengen_jax.training import workdir as workdir_lib


@dataclasses.dataclass(frozen=True)
class Trained:
  """What training gives.

  Attributes:
    run: the Run.
    state: the final TrainState.
    seconds: spent in steps, over all sittings of the run.
  """

  run: 'Run'
  state: state_lib.TrainState
  seconds: float

  @property
  def parameters(self):
    """How many numbers the model has."""
    return sum(leaf.size for leaf in jax.tree.leaves(self.state.params))


class Run:
  """A run: everything that follows from its config, checked at once.

  Attributes:
    config: its ConfigDict.
    data: a DataConfig.
    eval: an EvalConfig.
    model: a ModelConfig.
    scheme: a PositionScheme.
    tx: an optax gradient transformation.
    layout: a sharding.Layout.
    abstract_state: shapes, dtypes and shardings of the training state.
  """

  def __init__(self, config, devices=None):
    """Builds model config, scheme, optimizer and mesh.

    Args:
      config: a ConfigDict with seed, model, positions, data, optimizer,
        train, mesh and eval; see configs/stdlib.py.
      devices: to run on; those of jax if None.

    Raises:
      errors.LengenError: whatever in the config cannot work, before anything
        is computed.
    """
    fields.check_run(config)
    self.data = data.DataConfig(**config.data.to_dict())
    self.eval = eval_config.EvalConfig(**config.eval.to_dict())
    self.model = model_config.ModelConfig(**config.model.to_dict())
    self.config = config
    self.scheme = position_schemes.create(config.positions)
    scaling.create(self.model.attention_scale, num_heads=1, parent=None)
    objective.check(self.model, config.positions)
    self.tx = optimizer.create(config.optimizer, config.train.steps)
    self.layout = sharding.Layout.create(
      training_config.MeshConfig(**config.mesh.to_dict()),
      config.data.batch_size,
      devices,
    )
    for name, length in self._lengths():
      self.layout.check_length(name, length)
    metrics_lib.profile_steps(config.train.profile)
    self.abstract_state = state_lib.abstract(self.layout, self.model, self.tx)

  def validates(self, step):
    """Whether the model is validated after a step, if that is saved.

    It is the first to be saved after so many steps or a multiple of them, and
    mostly the last.
    """
    train = self.config.train
    every = train.evaluate_every
    if not every or (step % train.checkpoint_every and step < train.steps):
      return False
    return step // every > (step - train.checkpoint_every) // every

  def check_step(self):
    """Traces a step, so that what cannot train says so at once.

    Raises:
      errors.LengenError: naming what does not go together.
    """
    with self.layout.scope():
      jax.eval_shape(
        self.step_fn(packed=False), self.abstract_state, self.abstract_batch()
      )

  def abstract_batch(self):
    """Shapes, dtypes and shardings of a batch."""
    rows, length = self.data.batch_size, self.data.train_length
    if self.model.architecture == 'encoder_decoder':
      batch = windows.pair_batch(
        np.zeros((1, length), np.int32),
        np.zeros((1, self.data.target_length or 1), np.int32),
      )
    else:
      batch = windows.lm_batch(np.zeros((1, length + 1), np.int32))
    return {
      name: jax.ShapeDtypeStruct(
        (rows, *array.shape[1:]), array.dtype, sharding=self.layout.batch
      )
      for name, array in batch.items()
    }

  def step_fn(self, *, packed):
    """The training step, `(state, batch) -> (state, metrics)`."""
    return functools.partial(
      state_lib.train_step,
      config=self.model,
      scheme=self.scheme,
      tx=self.tx,
      seed=self.config.seed,
      packed=packed,
    )

  def jitted_step(self, *, packed):
    """The training step compiled over the mesh; lower it within its scope."""
    return jax.jit(
      self.step_fn(packed=packed),
      donate_argnums=0,
      out_shardings=(self.shardings, self.layout.whole),
    )

  @property
  def shardings(self):
    """How the training state lies on the mesh."""
    return jax.tree.map(lambda leaf: leaf.sharding, self.abstract_state)

  def init_state(self):
    """The initial state, made on the mesh: no device ever holds all of it."""
    return jax.jit(self._init, out_shardings=self.shardings)()

  def adopt(self, source):
    """The initial state, with parameters of another run as far as they serve.

    Args:
      source: a Trained; see `swap.adopt`.

    Returns:
      (state, notes): the state on the mesh and lines that say what was done.

    Raises:
      errors.CheckpointError: the models differ in more than their encodings.
    """
    state = self.init_state()
    # Through the host: the two runs may have meshes of different devices.
    params, notes = swap.adopt(
      _on_host(state.params),
      self.model,
      _on_host(source.state.params),
      source.run.model,
      max_length=max(
        run.config.data.train_length for run in (self, source.run)
      ),
      rng=jax.random.fold_in(jax.random.key(self.config.seed), 1),
    )
    params = jax.device_put(params, self.shardings.params)
    opt_state = jax.jit(self.tx.init, out_shardings=self.shardings.opt_state)(
      params
    )
    return state.replace(params=params, opt_state=opt_state), notes

  def _lengths(self):
    """Lengths of rows, with the fields that say them."""
    yield 'data.train_length', self.data.train_length
    if self.model.architecture == 'encoder_decoder':
      yield 'data.target_length', self.data.target_length or 1
    for length in self.eval.lengths:
      yield 'eval.lengths', length

  def _init(self):
    return state_lib.init(self.model, self.tx, jax.random.key(self.config.seed))


def _on_host(params):
  """All of the parameters, wherever they lie."""
  if jax.process_count() > 1:
    return multihost_utils.process_allgather(params, tiled=True)
  return jax.device_get(params)


def train(config, workdir, *, corpus=None, label='train'):
  """Trains a model, or goes on where an earlier call stopped.

  The workdir gets config.json, metrics.jsonl (a line per step; see `metrics`)
  and checkpoints. Told to stop by SIGTERM, a run saves the step it is at. A
  resumed run repeats an uninterrupted one bit for bit on the same devices and
  versions. A model starts from the parameters of another run, whose encoding
  may differ, where `train.init_from` names its workdir; step and optimizer
  start afresh, and a resumed run does not need the other any more.

  Args:
    config: a ConfigDict; see configs/stdlib.py.
    workdir: folder of the run.
    corpus: what `data.load` gives; loaded as the config says if None.
    label: what to call the run in progress lines.

  Returns:
    A Trained.

  Raises:
    errors.LengenError: the config, the corpus or the workdir do not serve;
      errors.PreemptedError: it was told to stop; errors.DivergedError: too many
      steps were not finite.
  """
  run = Run(config)
  run.check_step()
  corpus = corpus or data.load(run.data, max(run.eval.lengths))
  _check_corpus(run, corpus)
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
  return Trained(run, state, _seconds(path, state))


def restore(workdir, *, step=None, **eval_changes):
  """What the run in a workdir has trained so far.

  Args:
    workdir: of the run; its mesh is taken if the devices here can have it, and
      else rows alone are split.
    step: of the checkpoint, or 'best'; None for the newest.
    **eval_changes: fields of its eval section that are to be others.

  Returns:
    A Trained.

  Raises:
    errors.LengenError: no run, or none of its checkpoints can be read.
  """
  config, path = workdir_lib.read_config(workdir)
  config.eval.update(eval_changes)
  mesh = training_config.MeshConfig(**config.mesh.to_dict())
  if not mesh.fits(jax.device_count()):
    # Trained on a pod, looked at on a laptop.
    config.mesh.update(dataclasses.asdict(training_config.MeshConfig()))
  run = Run(config)
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
  return Trained(run, state, _seconds(path, state))


def _checkpoints(path, run):
  return checkpoint.Checkpointer(
    path,
    run.model,
    keep_every=run.config.train.keep_every,
    best='min',
    run_config=json.loads(run.config.to_json()),
  )


def _seconds(path, state):
  """Seconds spent in steps up to a state."""
  return metrics_lib.read(path / metrics_lib.STEPS, int(state.step))[1]


def _claimed(workdir, config, info):
  """The workdir, made the run's by the first process before others look."""
  if sharding.is_primary():
    path = workdir_lib.claim(workdir, config, info)
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices('workdir')
  if not sharding.is_primary():
    path = workdir_lib.claim(workdir, config, info)
  return path


def _check_corpus(run, corpus):
  """Raises unless the model is one for the data, and has all its token ids."""
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
  """The first state of a run that starts from another, and notes about it.

  Returns:
    (None, []) for a run that starts from scratch or has checkpoints already.
  """
  source = run.config.train.init_from
  if not source:
    return None, []
  here, there = workdir_lib.locate(workdir), workdir_lib.locate(source)
  if here.resolve() == there.resolve():
    raise errors.ConfigError(
      f'train.init_from={source} is the workdir itself; give the run another '
      '--workdir'
    )
  if checkpoint.steps(here):
    return None, []
  try:
    workdir_lib.check_vocabulary(source, corpus.info)
    return run.adopt(restore(source))
  except errors.LengenError as error:
    raise type(error)(f'train.init_from={source}: {error}') from error


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
      primary=sharding.is_primary(),
      tensorboard=config.train.tensorboard,
    )
    stack.callback(log.close)
    profile = metrics_lib.Profile(
      config.train.profile,
      path,
      progress.announce,
      primary=sharding.is_primary(),
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
      watchdog.alive()
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
        with watchdog.asleep():
          found, cost = evaluate.validate(
            Trained(run, state, seconds=0.0), corpus, f'{label}: step {step}'
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
