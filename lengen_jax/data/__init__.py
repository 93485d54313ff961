"""Text as token ids: corpora, and how rows for a model are cut from them.

TensorFlow and seqio are loaded only where data.source is 'seqio' or the raw
data is one of TensorFlow Datasets.
"""

import pathlib
from typing import Any

from lengen_jax.data import extra
from lengen_jax.data.config import DataConfig
from lengen_jax.data.corpus import Corpus
from lengen_jax.data.windows import EvaluationWindows, TrainingWindows

__all__ = [
  'Corpus',
  'DataConfig',
  'EvaluationWindows',
  'TrainingWindows',
  'check_present',
  'load',
  'register',
]


def load(config: DataConfig, longest: int | None = None) -> Any:
  """Opens the data of a config.

  Args:
    config: a DataConfig.
    longest: the longest length that is evaluated; None where nothing is.

  Returns:
    An object with `info`, `vocab_size`, `architectures` (of models that it
    serves) and `training(config, seed=, host=)`, which gives
    `windows.Batches`. If it is `scored_by` 'loss', also with
    `evaluation(config)`, which gives what `EvaluationWindows` is for text; if
    by 'answers', with `examples(...)` as `seqio_prompts.Prompts`.

  Raises:
    errors.LengenError: the data is missing, or is not what the config says.
  """
  if config.source == 'stdlib':
    from lengen_jax.data import corpus

    return corpus.read_stdlib(config.path)
  if config.source == 'prepared':
    from lengen_jax.data import prepared

    return prepared.Prepared(config, longest)
  return _load_seqio(config)


def check_present(config: DataConfig) -> None:
  """Raises where the data of a config is missing, at once.

  Args:
    config: a DataConfig.

  Raises:
    errors.LengenError: naming where we looked, and how to get it.
  """
  if config.source == 'prepared':
    from lengen_jax.data import manifest

    manifest.read(pathlib.Path(config.path).expanduser().absolute())
  elif config.source == 'seqio' and not _theirs(config.task):
    from lengen_jax.data import menu

    menu.check_present(config.task, config.raw)


def _theirs(task: str) -> bool:
  """Whether a task is 'module:name', of somebody else."""
  return ':' in task.partition('(')[0]


def _load_seqio(config: DataConfig) -> Any:
  check_present(config)
  extra.load('seqio', 'reading tasks of seqio')
  from lengen_jax.data import (
    menu,
    registration,
    seqio_pictures,
    seqio_prompts,
    seqio_text,
  )

  if _theirs(config.task):
    return seqio_text.Text(config, registration.find(config.task))
  name = register(
    config.task,
    path=config.raw,
    vocab=config.vocabulary,
    separator=config.separator,
  )
  if menu.pictures(config.task):
    return seqio_pictures.Pictures(config, name)
  if tasks := menu.prompt_tasks(config.task):
    return seqio_prompts.Prompts(config, name, tasks)
  return seqio_text.Text(config, name)


def register(task: str, **arguments: Any) -> str:
  """Registers a task or mixture in seqio; see `registration.register`."""
  extra.load('seqio', 'reading tasks of seqio')
  from lengen_jax.data import registration

  return registration.register(task, **arguments)
