"""Tasks and mixtures in the registry of seqio, for us and for T5X-style code.

Registering is explicit and may be repeated. What is registered never downloads,
and loses no text: documents longer than `sequence_length` are split, prompts
are cut before their separator is added.
"""

import importlib

import seqio

from lengen_jax import errors
from lengen_jax import specs
from lengen_jax.data import glue
from lengen_jax.data import imagenet
from lengen_jax.data import registry
from lengen_jax.data import scrolls
from lengen_jax.data import seqio_pictures
from lengen_jax.data import seqio_prompts
from lengen_jax.data import seqio_text
from lengen_jax.data import sources

PROMPT_TASKS = {
  task.name: task for task in (*scrolls.TASKS.values(), *glue.TASKS.values())
}
GLUE_SUPERGLUE = 'glue_superglue'
PICTURES = {'imagenet': imagenet.Imagenet}


def register(task, *, path='', vocab='bytes', separator='\n\nAnswer: '):
  """Registers a task or mixture of ours.

  Text: feature 'targets'. Pictures: 'inputs', pixels, and 'targets', a class.
  Prompts: 'inputs', which ends with the separator,
  and 'targets'; also 'id', texts under 'inputs_pretokenized' and
  'targets_pretokenized', and 'inputs_size', tokens before they were cut.

  Args:
    task: 'c4' or another source of text, `family/name` of a task of prompts,
      'glue_superglue', or 'imagenet'.
    path: where the raw data lies; see `paths`.
    vocab: 'bytes', or the path of a SentencePiece model.
    separator: text between prompt and answer.

  Returns:
    The name in seqio's registry.

  Raises:
    errors.LengenError: an unknown task, or data that is missing.
  """
  if task == GLUE_SUPERGLUE:
    names = {
      name: seqio_prompts.register(each, path, vocab, separator)
      for name, each in glue.TASKS.items()
    }
    rates = [(names[name], glue.TASKS[name].num_train) for name in glue.MIXTURE]
    return registry.add(
      GLUE_SUPERGLUE,
      (path, vocab, separator, tuple(rates)),
      seqio.MixtureRegistry,
      lambda: {'tasks': rates},
    )
  if task in PROMPT_TASKS:
    return seqio_prompts.register(PROMPT_TASKS[task], path, vocab, separator)
  name = str(task).partition('(')[0].strip()
  if name in PICTURES:
    return seqio_pictures.register(specs.build('task', PICTURES, task), path)
  if name in sources.SOURCES:
    return seqio_text.register(sources.create(task), path, vocab)
  raise errors.SpecError(
    errors.one_of(
      'data.task',
      task,
      [*sources.SOURCES, *PROMPT_TASKS, GLUE_SUPERGLUE, *PICTURES],
    )
  )


def prompt_tasks(task):
  """PromptTasks that 'family/name' or a mixture consists of.

  Returns:
    Dict by name in seqio's registry, {} for a task of another kind. Of
    'glue_superglue' one, of mismatched MNLI, is for evaluation alone.
  """
  found = [PROMPT_TASKS[task]] if task in PROMPT_TASKS else []
  if task == GLUE_SUPERGLUE:
    found = glue.TASKS.values()
  return {seqio_prompts.seqio_name(each): each for each in found}


def find(task):
  """The name in seqio's registry of 'module:name', a task of somebody else's.

  Raises:
    errors.ConfigError: no such module, or it registers no such task.
  """
  module, _, name = task.partition(':')
  try:
    importlib.import_module(module)
    seqio.get_mixture_or_task(name)
  except (ImportError, ValueError) as error:
    raise errors.ConfigError(f'data.task={task!r}: {error}') from error
  return name
