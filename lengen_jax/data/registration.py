"""Registers tasks and mixtures in seqio, for this package and T5X-style code.

Registration is explicit and may be repeated. Registered tasks never download
data. Documents longer than `sequence_length` are split into several examples.
Prompts are truncated before the separator is appended. Feature converters of
seqio give no weight to id 0, so that code that uses them requires a vocabulary
whose id 0 is padding.
"""

import importlib

import seqio

from lengen_jax import errors
from lengen_jax.data import (
  glue,
  menu,
  seqio_files,
  seqio_pictures,
  seqio_prompts,
  seqio_text,
)


def register(
  task: str,
  *,
  path: str = '',
  vocab: str = 'bytes',
  separator: str = '\n\nAnswer: ',
) -> str:
  """Registers a task or mixture of this package.

  Text: feature 'targets'. Pictures: 'inputs', pixels, and 'targets', a class.
  Prompts: 'inputs', which ends with the separator, and 'targets'; also 'id',
  texts under 'inputs_pretokenized' and 'targets_pretokenized', and
  'inputs_size', tokens before truncation.

  Args:
    task: 'c4' or another source of text, `family/name` of a task of prompts,
      'glue_superglue', or 'imagenet'.
    path: folder of the raw data; see `paths`.
    vocab: see `data.vocabulary.create`.
    separator: text between prompt and answer.

  Returns:
    The name in seqio's registry.

  Raises:
    errors.LengenError: the task is unknown, or its data is missing.
  """
  menu.check_present(task, path)
  names = {
    each.name: seqio_prompts.register(each, path, vocab, separator)
    for each in menu.prompt_tasks(task)
  }
  if task == menu.GLUE_SUPERGLUE:
    mixed = [glue.TASKS[name] for name in glue.MIXTURE]
    rates = [(names[each.name], each.num_train) for each in mixed]
    key = (path, vocab, separator, tuple(rates))
    return seqio_files.add(
      task, key, lambda: {'tasks': rates}, seqio.MixtureRegistry
    )
  if names:
    return names[task]
  if pictures := menu.pictures(task):
    return seqio_pictures.register(pictures, path)
  return seqio_text.register(menu.source(task), path, vocab)


def find(task: str) -> str:
  """Imports the module of 'module:name'; returns the name of its seqio task.

  Raises:
    errors.ConfigError: the module cannot be imported, or it registers no such
      task.
  """
  module, _, name = task.partition(':')
  try:
    importlib.import_module(module)
  except Exception as error:  # The module may raise anything.
    raise errors.ConfigError(
      f'data.task={task!r}: cannot import {module!r} '
      f'({type(error).__name__}: {error}); it must be on PYTHONPATH or in the '
      'current folder, and raise no errors'
    ) from error
  try:
    seqio.get_mixture_or_task(name)
  except ValueError as error:
    raise errors.ConfigError(f'data.task={task!r}: {error}') from error
  return name
