"""Data sets and their batches of token ids.

TensorFlow and seqio are imported only if data.source is 'seqio' or the raw data
is a dataset of TensorFlow Datasets.
"""

from typing import Any

from lengen_jax import extra
from lengen_jax.data.config import DataConfig
from lengen_jax.data.corpus import Corpus, read_stdlib
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
    longest: maximum evaluated length, if any.

  Returns:
    An object with `info`, `vocab_size`, `architectures` (of supported models)
    and `training(config, seed=, host=)`, which returns `windows.Batches`. If
    `scored_by` is 'loss', it has `evaluation(config)`, which returns windows
    such as EvaluationWindows; if 'answers', `examples(...)` and `check(length)`
    as `seqio_prompts.Prompts`.

  Raises:
    errors.LengenError: the data is missing, or does not match the config.
  """
  if config.source == 'stdlib':
    return read_stdlib(config.path)
  if config.source == 'docstrings':
    return read_stdlib(config.path, only_docstrings=True)
  if config.source == 'prepared':
    from lengen_jax.data import prepared

    return prepared.Prepared(config, longest)
  return _load_seqio(config)


def check_present(config: DataConfig) -> None:
  """Raises LengenError if data is missing, with the searched paths."""
  if config.source == 'prepared':
    from lengen_jax.data import manifest, mirror

    manifest.read(mirror.fetch(config.path))
  elif config.source == 'seqio' and not _theirs(config.task):
    from lengen_jax.data import menu

    menu.check_present(config.task, config.raw)


def _theirs(task: str) -> bool:
  """Returns whether a task is 'module:name', from another package."""
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
