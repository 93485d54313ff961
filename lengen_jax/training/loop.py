"""Training one model: from a config and a corpus to a trained state."""

import dataclasses
import functools
import json
import pathlib
import time

import jax
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
from lengen_jax.training import fields
from lengen_jax.training import optimizer
from lengen_jax.training import sharding
from lengen_jax.training import state as state_lib
from lengen_jax.training import swap
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
    self.abstract_state = state_lib.abstract(self.layout, self.model, self.tx)

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
      jax.device_get(state.params),
      self.model,
      jax.device_get(source.state.params),
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


def train(config, workdir, *, corpus=None, label='train'):
  """Trains a model, or goes on where an earlier call stopped.

  The workdir gets config.json, metrics.jsonl (a line per step) and
  checkpoints. A resumed run repeats an uninterrupted one bit for bit on the
  same devices and versions. A model starts from the parameters of another run,
  whose encoding may differ, where `train.init_from` names its workdir; step and
  optimizer start afresh, and a resumed run does not need the other any more.

  Args:
    config: a ConfigDict; see configs/stdlib.py.
    workdir: folder of the run.
    corpus: what `data.load` gives; loaded as the config says if None.
    label: what to call the run in progress lines.

  Returns:
    A Trained.

  Raises:
    errors.LengenError: the config, the corpus or the workdir do not serve.
  """
  run = Run(config)
  run.check_step()
  corpus = corpus or data.load(run.data, max(run.eval.lengths))
  _check_corpus(run, corpus)
  batches = corpus.training(run.data, seed=config.seed, host=run.layout.host)
  state, notes = _adopted(run, workdir, corpus)
  path = workdir_lib.claim(workdir, config, corpus.info)
  for note in notes:
    print(f'{label}: {note}', flush=True)
  checkpoints = checkpoint.Checkpointer(path, run.model)
  if state is None:
    state = checkpoints.restore(run.abstract_state, batches=batches)
    checkpoints.set_aside_unreadable()
  if state is None:
    state = run.init_state()
  first, steps = int(state.step), config.train.steps
  log = _StepLog(path / 'metrics.jsonl', first)
  try:
    if first < steps:
      state = _steps(run, state, batches, log, checkpoints, label)
    checkpoints.save(state, batches)
  finally:
    log.close()
    checkpoints.close()
  return Trained(run, state, seconds=log.seconds)


def restore(workdir, **eval_changes):
  """What the run in a workdir has trained so far.

  Args:
    workdir: of the run.
    **eval_changes: fields of its eval section that are to be others.

  Returns:
    A Trained.

  Raises:
    errors.LengenError: no run, or none of its checkpoints can be read.
  """
  config, path = workdir_lib.read_config(workdir)
  config.eval.update(eval_changes)
  run = Run(config)
  if not checkpoint.steps(path):
    raise errors.CheckpointError(
      f'{path} has no checkpoint yet; run lengen train first'
    )
  checkpoints = checkpoint.Checkpointer(path, run.model)
  state = checkpoints.restore(run.abstract_state)
  checkpoints.close()
  _, seconds = _read_log(path / 'metrics.jsonl', int(state.step))
  return Trained(run, state, seconds)


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
  here, there = (
    pathlib.Path(p).expanduser().absolute() for p in (workdir, source)
  )
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


def _steps(run, state, batches, log, checkpoints, label):
  """The loop: from the state's step to the last."""
  config = run.config
  step_fn = run.jitted_step(
    packed=batches.padded and objective.sees_padding(run.model, run.scheme)
  )
  first, steps = int(state.step), config.train.steps
  tokens = config.data.batch_size * config.data.train_length
  with progress_lib.Progress(
    label, steps, unit='tokens', per=tokens, first=first
  ) as progress:
    progress.announce(
      f'compiling for {run.layout.size} of {jax.device_count()} '
      f'{jax.default_backend()} devices ...'
    )
    began = time.monotonic()
    batch = run.layout.place(batches.next())
    with run.layout.scope():
      compiled = step_fn.lower(state, batch).compile()
    progress.announce(f'compiled in {time.monotonic() - began:.1f} s')
    progress.start_clock()
    pending, began = [], time.monotonic()
    for step in range(first, steps):
      state, metrics = compiled(state, batch)
      pending.append((step + 1, metrics))
      last = step + 1 == steps
      saves = last or (step + 1) % config.train.checkpoint_every == 0
      if not saves:
        # While the devices work on this step.
        batch = run.layout.place(batches.next())
      if saves:
        metrics |= _bias_error(run, state.params, progress)
      if saves or len(pending) == config.train.log_every:
        loss = log.write(pending, time.monotonic() - began)
        pending = []
        progress.update(step + 1, f'loss {loss:.4f}')
      if saves and not last:
        # What is logged is logged, and the data stands at this step.
        checkpoints.save(state, batches)
        batch = run.layout.place(batches.next())
  return state


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


def _read_log(path, last):
  """Lines of metrics.jsonl up to step `last`, and the seconds they took."""
  lines, seconds = [], 0.0
  for line in path.read_text().splitlines() if path.exists() else ():
    try:
      entry = json.loads(line)
    except ValueError:
      break  # Half a line, from a killed run.
    if entry['step'] > last:
      break
    lines.append(line)
    seconds = entry['seconds']
  return lines, seconds


class _StepLog:
  """metrics.jsonl: a line per step, cut back to where a run resumes."""

  def __init__(self, path, first):
    lines, self.seconds = _read_log(path, first)
    workdir_lib.write_text(path, ''.join(line + '\n' for line in lines))
    self._before = self.seconds
    self._file = path.open('a')

  def write(self, pending, seconds):
    """Writes the metrics of some steps; returns the last loss."""
    self.seconds = self._before + seconds
    for step, metrics in pending:
      values = {name: float(value) for name, value in metrics.items()}
      entry = {'step': step, **values, 'seconds': round(self.seconds, 3)}
      self._file.write(json.dumps(entry) + '\n')
    self._file.flush()
    return values['loss']

  def close(self):
    self._file.close()
