"""Training one model: from a config and a corpus to a trained state."""

import dataclasses
import functools
import json
import time

import jax

from lengen_jax import data
from lengen_jax import errors
from lengen_jax import positions as position_schemes
from lengen_jax.attention import scaling
from lengen_jax.models import config as model_config
from lengen_jax.models import objective
from lengen_jax.training import checkpoint
from lengen_jax.training import optimizer
from lengen_jax.training import progress as progress_lib
from lengen_jax.training import sharding
from lengen_jax.training import state as state_lib
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
  """A run: everything that follows from its config, checked at once."""

  def __init__(self, config):
    """Builds model config, scheme and optimizer.

    Args:
      config: a ConfigDict with seed, model, positions, data, optimizer,
        train and eval; see configs/stdlib.py.

    Raises:
      errors.LengenError: whatever in the config cannot work, before anything
        is computed.
    """
    fields = config.model.to_dict()
    try:
      self.model = model_config.ModelConfig(**fields)
    except TypeError:
      valid = {f.name for f in dataclasses.fields(model_config.ModelConfig)}
      wrong = sorted({*fields} - valid)
      missing = 'config.model lacks fields of ModelConfig'
      raise errors.ConfigError(
        errors.one_of('field of model', wrong[0], valid) if wrong else missing
      ) from None
    self.config = config
    self.scheme = position_schemes.create(config.positions)
    scaling.create(self.model.attention_scale, num_heads=1, parent=None)
    objective.check(self.model, config.positions)
    self.tx = optimizer.create(config.optimizer, config.train.steps)
    self.mesh = sharding.make_mesh(config.data.batch_size)

  def abstract_state(self):
    """Shapes, dtypes and shardings of the training state."""
    abstract = jax.eval_shape(self._init)
    return jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct(
        leaf.shape, leaf.dtype, sharding=sharding.replicated(self.mesh)
      ),
      abstract,
    )

  def init_state(self):
    """The initial state, on the mesh."""
    init = jax.jit(self._init, out_shardings=sharding.replicated(self.mesh))
    return init()

  def _init(self):
    return state_lib.init(self.model, self.tx, jax.random.key(self.config.seed))


def train(config, workdir, *, corpus=None, label='train'):
  """Trains a model, or goes on where an earlier call stopped.

  The workdir gets config.json, metrics.jsonl (a line per step) and
  checkpoints. A resumed run repeats an uninterrupted one bit for bit on the
  same devices and versions.

  Args:
    config: a ConfigDict; see configs/stdlib.py.
    workdir: folder of the run.
    corpus: a data.Corpus; loaded as the config says if None.
    label: what to call the run in progress lines.

  Returns:
    A Trained.

  Raises:
    errors.LengenError: the config, the corpus or the workdir do not serve.
  """
  run = Run(config)
  corpus = corpus or data.load(config.data.source, config.data.path)
  if corpus.vocab_size > run.model.vocab_size:
    raise errors.ConfigError(
      f'model.vocab_size={run.model.vocab_size} is less than the '
      f'{corpus.vocab_size} token ids of {config.data.source}'
    )
  batches = data.TrainingWindows(
    corpus.documents['train'],
    length=config.data.train_length,
    batch_size=config.data.batch_size,
    seed=config.seed,
  )
  path = workdir_lib.claim(workdir, config)
  checkpoints = checkpoint.Checkpointer(path, run.model)
  state = checkpoints.restore(run.abstract_state())
  if state is None:
    state = run.init_state()
  first, steps = int(state.step), config.train.steps
  log = _StepLog(path / 'metrics.jsonl', first)
  try:
    if first < steps:
      state = _steps(run, state, batches, log, checkpoints, label)
    checkpoints.save(state)
  finally:
    log.close()
    checkpoints.close()
  return Trained(run, state, seconds=log.seconds)


def restore(workdir):
  """What the run in a workdir has trained so far.

  Returns:
    A Trained.

  Raises:
    errors.LengenError: no run, or none of its checkpoints can be read.
  """
  config, path = workdir_lib.read_config(workdir)
  run = Run(config)
  checkpoints = checkpoint.Checkpointer(path, run.model)
  state = checkpoints.restore(run.abstract_state())
  checkpoints.close()
  if state is None:
    raise errors.CheckpointError(
      f'{path} has no checkpoint yet; run lengen train first'
    )
  _, seconds = _read_log(path / 'metrics.jsonl', int(state.step))
  return Trained(run, state, seconds)


def _steps(run, state, batches, log, checkpoints, label):
  """The loop: from the state's step to the last."""
  config = run.config
  step_fn = jax.jit(
    functools.partial(
      state_lib.train_step,
      config=run.model,
      scheme=run.scheme,
      tx=run.tx,
      seed=config.seed,
      packed=batches.packed,
    ),
    donate_argnums=0,
    out_shardings=sharding.replicated(run.mesh),
  )
  rows = sharding.by_batch(run.mesh)
  first, steps = int(state.step), config.train.steps
  tokens = config.data.batch_size * config.data.train_length
  with progress_lib.Progress(
    label, steps, tokens_per_step=tokens, first_step=first
  ) as progress:
    progress.announce(
      f'compiling for {run.mesh.devices.size} of {jax.device_count()} '
      f'{jax.default_backend()} devices ...'
    )
    began = time.monotonic()
    batch = jax.device_put(batches.batch(first), rows)
    compiled = step_fn.lower(state, batch).compile()
    progress.announce(f'compiled in {time.monotonic() - began:.1f} s')
    pending, began = [], time.monotonic()
    for step in range(first, steps):
      state, metrics = compiled(state, batch)
      pending.append((step + 1, metrics))
      if step + 1 < steps:
        # While the devices work on this step.
        batch = jax.device_put(batches.batch(step + 1), rows)
      saves = (step + 1) % config.train.checkpoint_every == 0
      if saves or len(pending) == config.train.log_every or step + 1 == steps:
        loss = log.write(pending, time.monotonic() - began)
        pending = []
        progress.update(step + 1, loss)
      if saves and step + 1 < steps:
        checkpoints.save(state)
  return state


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
