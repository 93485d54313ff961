"""Writes the weights of a trained model for other programs."""

import ml_collections

from lengen_jax import errors
from lengen_jax.data import vocabulary
from lengen_jax.interop import hf, weights
from lengen_jax.interop.hf import config_json
from lengen_jax.training import files, multihost, pretrained
from lengen_jax.training import run as run_lib
from lengen_jax.training import workdir as workdir_lib
from lengen_jax.types import Params


def to_safetensors(workdir: str, path: str, step: int | None) -> str | None:
  """Writes a checkpoint of a run to one file; see `weights.save`.

  All processes take part, and the first one writes.

  Returns:
    A summary; None in other processes.

  Raises:
    errors.LengenError: there is no such checkpoint, or the file cannot be
      written.
  """
  if multihost.is_first():
    weights.check_path(path)
  trained = pretrained.restore(workdir, step=step)
  params = run_lib.on_host(trained.state.params)
  summary = None
  if multihost.is_first():
    trained_on = weights.TrainedOn(
      workdir_lib.vocabulary(workdir),
      trained.run.data.train_length,
      trained.run.config.positions,
    )
    size = weights.save(path, params, trained.run.model, trained_on)
    summary = _summary(path, trained, 'float32', size)
  multihost.barrier('exported')
  return summary


def to_hf(
  workdir: str, folder: str, step: int | None, like: str | None, dtype: str
) -> str | None:
  """Writes a checkpoint of a run for transformers; see `hf.save`.

  `like` is by default the checkpoint from which training started, also through
  other runs, or that of the tokenizer. For the rest see `to_safetensors`.

  Raises:
    errors.CheckpointError: also, the position scheme has other positions at
      test time than `standard`, which transformers does not have.
  """
  if multihost.is_first():
    hf.check_folder(folder)
  trained = pretrained.restore(workdir, step=step)
  if not trained.run.scheme.standard_at_test:
    raise errors.CheckpointError(
      f'transformers has no positions={trained.run.config.positions!r}; to '
      f'export the weights, start a run with train.init_from={workdir}, '
      "train.steps=0 and positions='standard'; for interpolated(scale=s) with "
      "rope, also set model.encoding='rope(scale=s)'"
    )
  params = run_lib.on_host(trained.state.params)
  summary = None
  if multihost.is_first():
    summary = _save_hf(folder, params, trained, like, dtype, workdir)
  multihost.barrier('exported')
  return summary


def _save_hf(
  folder: str,
  params: Params,
  trained: run_lib.Trained,
  like: str | None,
  dtype: str,
  workdir: str,
) -> str:
  """Writes the folder of `to_hf`, and returns a summary."""
  like = like or _original(trained.run.config)
  length = trained.run.data.train_length or None
  size = hf.save(
    folder, params, trained.run.model, like, dtype, max_length=length
  )
  summary = _summary(folder, trained, dtype, size)
  return summary + _tokenizer_note(
    pretrained.vocabularies(files.locate(folder)),
    workdir_lib.vocabulary(workdir),
  )


def _tokenizer_note(copied: list[str], trained_on: str) -> str:
  """Returns a note unless one of the copied tokenizers is that of training."""
  if not copied:
    return '; no tokenizer was found: --like=CHECKPOINT copies one'
  try:
    found = [vocabulary.create(spec).fingerprint for spec in copied]
  except errors.LengenError as error:
    return f'; its tokenizer cannot be compared with that of training: {error}'
  if trained_on in found:
    return ''
  return (
    f'; its tokenizer is not the one of training ({trained_on}): '
    '--like=CHECKPOINT copies another one'
  )


def _original(config: ml_collections.ConfigDict) -> str | None:
  """Returns the checkpoint of transformers that a run began with, if known.

  The runs between them must still exist. Otherwise, it is the checkpoint whose
  tokenizer the run uses.
  """
  source = config.train.init_from
  seen = set()
  # Workdirs that were trained again may name each other.
  while source and not config_json.is_checkpoint(source) and source not in seen:
    seen.add(source)
    try:
      earlier, _ = workdir_lib.read_config(source)
    except errors.LengenError:
      break
    source = earlier.train.init_from
  for found in (source, config.data.vocabulary):
    if found and config_json.is_checkpoint(found):
      return found
  return None


def _summary(path: str, trained: run_lib.Trained, dtype: str, size: int) -> str:
  return (
    f'wrote {path}: step {int(trained.state.step)}, '
    f'{trained.run.parameters:,} parameters in {dtype}, '
    f'{files.readable_size(size)}'
  )
