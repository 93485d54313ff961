"""Trained models: of runs, exported files and transformers checkpoints."""

import contextlib
import dataclasses
import json
from typing import Any

import jax
import numpy as np

from lengen_jax import errors
from lengen_jax.data import vocabulary as vocabulary_lib
from lengen_jax.interop import hf
from lengen_jax.interop import weights as weights_lib
from lengen_jax.interop.hf import config_json, families
from lengen_jax.models import objective, stacking
from lengen_jax.models.config import ModelConfig
from lengen_jax.positions import contextual
from lengen_jax.training import checkpoint, files, sharding
from lengen_jax.training import config as training_config
from lengen_jax.training import metrics as metrics_lib
from lengen_jax.training import run as run_lib
from lengen_jax.training import state as state_lib
from lengen_jax.training import workdir as workdir_lib
from lengen_jax.types import Params, PathLike

# Vocabularies without a file, by fingerprint.
_BYTES = {
  vocabulary.fingerprint: vocabulary
  for vocabulary in map(vocabulary_lib.Bytes, (0, 3))
}
# Files of a transformers checkpoint that hold its vocabulary.
_TOKENIZER, _PIECES = 'tokenizer.json', 'tokenizer.model'


@dataclasses.dataclass(frozen=True)
class Pretrained:
  """A trained model and what is known of its training.

  Attributes:
    path: the checkpoint.
    params: numpy arrays, layers unstacked.
    model: its ModelConfig, with scan_layers=False.
    positions: spec of its position scheme.
    vocabulary: spec of its vocabulary, see `data.vocabulary.create`; None if
      unknown.
    fingerprint: fingerprint of its vocabulary; '' if unknown.
    train_length: maximum tokens per row in training; 0 if unknown.
  """

  path: files.Path
  params: Params
  model: ModelConfig
  positions: str = 'standard'
  vocabulary: str | None = None
  fingerprint: str = ''
  train_length: int = 0

  def tested_as(self, encoding: str = '', positions: str = '') -> 'Pretrained':
    """Returns the model with another encoding or other positions.

    Args:
      encoding: spec of an encoding; '' for its own.
      positions: spec of a position scheme, or of a contextual one; '' for its
        own.

    Raises:
      errors.CombinationError: the specs require other parameters or do not
        support each other.
      errors.SpecError: a spec is invalid.
    """
    fields: dict[str, Any] = {'encoding': encoding} if encoding else {}
    scheme = positions or self.positions
    if positions:
      fields['contextual_positions'] = 'none'
    if contextual.is_contextual(scheme):
      fields['contextual_positions'], scheme = scheme, 'standard'
    model = dataclasses.replace(self.model, **fields)
    objective.check(model, scheme)
    run_lib.check_same_parameters(
      self.params,
      stacking.abstract(model)[0],
      f'the model in {self.path}',
      ' | '.join(filter(None, (encoding, positions))),
    )
    return dataclasses.replace(self, model=model, positions=scheme)

  def create_vocabulary(self, spec: str = '') -> vocabulary_lib.Vocabulary:
    """Returns the vocabulary of the model.

    Args:
      spec: see `data.vocabulary.create`; '' for the one that the checkpoint
        records.

    Raises:
      errors.CorpusError: the vocabulary is unknown, missing, another one than
        in training, or larger than that of the model.
    """
    if spec:
      found: vocabulary_lib.Vocabulary = vocabulary_lib.create(spec)
    elif self.fingerprint in _BYTES:
      found = _BYTES[self.fingerprint]
    elif self.vocabulary:
      found = vocabulary_lib.create(self.vocabulary)
    else:
      raise errors.CorpusError(
        f'{self.path} does not contain its vocabulary; set vocabulary (lengen '
        "generate: --vocabulary=) to 'bytes', the path of a SentencePiece "
        f'model, or a folder with {_TOKENIZER}'
      )
    if self.fingerprint not in ('', found.fingerprint):
      raise errors.CorpusError(
        f'the model in {self.path} was trained with vocabulary '
        f'{self.fingerprint!r}; {spec or self.vocabulary!r} has '
        f'{found.fingerprint!r}; give the one it was trained with'
      )
    if not self.fingerprint and found.size > self.model.vocab_size:
      raise errors.CorpusError(
        f'{found.name} has {found.size} tokens, and the model in {self.path} '
        f'has vocab_size={self.model.vocab_size}; give the vocabulary that it '
        'was trained with'
      )
    return found


def load(path: PathLike, step: int | str | None = None) -> Pretrained:
  """Loads a trained model; all processes of a run must call it.

  Args:
    path: the workdir of a run; a file written by `interop.weights.save`,
      '*.safetensors'; or the folder of a transformers checkpoint.
    step: for a run, step of the checkpoint, or 'best'; None for the last.

  Raises:
    errors.CheckpointError: there is no checkpoint, or it cannot be read.
    errors.WorkdirError: the folder has no run.
  """
  path = files.locate(path)
  if not path.exists():
    raise errors.CheckpointError(
      f'there is no {path}; a checkpoint is the workdir of a run, a file '
      f'*{weights_lib.SUFFIX} that lengen export wrote, or the folder of a '
      'transformers checkpoint, which has a config.json'
    )
  if path.suffix == weights_lib.SUFFIX:
    params, model = weights_lib.load(path)
    known = weights_lib.trained_on(path)
    return Pretrained(
      path,
      params,
      model,
      positions=known.positions,
      fingerprint=known.vocabulary,
      train_length=known.length,
    )
  if config_json.is_checkpoint(path):
    params, model = hf.load(path)
    return Pretrained(
      path,
      params,
      model,
      vocabulary=next(iter(vocabularies(path)), None),
      train_length=families.trained_length(path),
    )
  trained = restore(path, step=step)
  params = stacking.unstack(run_lib.on_host(trained.state.params))
  return Pretrained(
    path,
    # A run may keep them in bfloat16.
    jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), params),
    dataclasses.replace(trained.run.model, scan_layers=False),
    positions=trained.run.config.positions,
    vocabulary=trained.run.data.vocabulary,
    fingerprint=workdir_lib.vocabulary(path),
    train_length=trained.run.data.train_length,
  )


def prompt_ids(vocabulary: vocabulary_lib.Vocabulary, text: str) -> np.ndarray:
  """Returns the token ids of a text that begins a row, int32 `[length]`.

  They begin with the start token if the vocabulary adds it and it is not also
  the end token, which separates documents, as in GPT-2. An empty text is the
  start token.

  Raises:
    errors.ConfigError: the text has characters that UTF-8 cannot encode.
  """
  try:
    encoded = text.encode()
  except UnicodeEncodeError as error:
    raise errors.ConfigError(
      f'a prompt is not UTF-8 at character {error.start}: {text[:40]!r}'
    ) from None
  (ids,) = vocabulary.encode([encoded])
  adds = vocabulary.adds_start and vocabulary.start != vocabulary.end
  if (adds and vocabulary.start not in ids[:1]) or not len(ids):
    ids = np.concatenate([[vocabulary.start], ids])
  return ids.astype(np.int32)


def vocabularies(folder: files.Path) -> list[str]:
  """Returns the specs of the vocabularies in a transformers checkpoint."""
  found = [str(folder)] * (folder / _TOKENIZER).exists()
  return found + [str(folder / _PIECES)] * (folder / _PIECES).exists()


def restore(
  workdir: PathLike, *, step: int | str | None = None, **eval_changes: Any
) -> run_lib.Trained:
  """Restores params and step of the run in a workdir, without its optimizer.

  The mesh is that of the run if the available devices can form it; otherwise
  only rows are sharded. `eval_changes` are new values of the section eval.

  Raises:
    errors.LengenError: there is no run, or no readable checkpoint.
  """
  config, path = workdir_lib.read_config(workdir)
  config.eval.update(eval_changes)
  mesh = training_config.MeshConfig(**config.mesh.to_dict())
  try:
    layout = sharding.Layout.create(mesh, config.data.batch_size)
  except errors.ConfigError:
    # A run trained on a pod may be evaluated on one device.
    layout = sharding.Layout.of_rows()
  run = run_lib.Run(config, layout=layout)
  if not checkpoint.steps(path):
    raise errors.CheckpointError(
      f'{path} has no checkpoint yet; run lengen train first'
    )
  with contextlib.closing(open_checkpoints(path, run)) as checkpoints:
    number: Any = step
    if step == 'best':
      number = checkpoints.best_step()
      if number is None:
        raise errors.CheckpointError(
          f'{path} has no best checkpoint: no step was validated, with '
          f'train.evaluate_every={config.train.evaluate_every}'
        )
    state = checkpoints.restore(run.abstract_state.weights(), step=number)
  return with_costs(run, state, path)


def open_checkpoints(
  path: files.Path, run: run_lib.Run
) -> checkpoint.Checkpointer:
  """Returns the Checkpointer of a run; the caller closes it."""
  return checkpoint.Checkpointer(
    path,
    run.model,
    keep_every=run.train.keep_every,
    keep_steps=run.eval.steps,
    best='min',
    run_config=json.loads(run.config.to_json()),
  )


def earlier(
  trained: run_lib.Trained, path: files.Path, step: int
) -> run_lib.Trained:
  """Returns a trained model as it was at a step whose checkpoint is kept.

  Raises:
    errors.CheckpointError: there is no readable checkpoint of that step.
  """
  weights = trained.run.abstract_state.weights()
  with contextlib.closing(open_checkpoints(path, trained.run)) as checkpoints:
    state = checkpoints.restore(weights, step=step)
  return dataclasses.replace(trained, state=state)


def with_costs(
  run: run_lib.Run, state: state_lib.TrainState, path: files.Path
) -> run_lib.Trained:
  """Returns a state with the time and memory of its training."""
  lines, seconds = metrics_lib.read(path / metrics_lib.STEPS, int(state.step))
  memory, sessions = metrics_lib.peak_memory(lines), metrics_lib.sessions(path)
  return run_lib.Trained(run, state, seconds, memory, sessions)
