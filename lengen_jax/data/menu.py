"""Values of `data.task`: sources of text, prompt tasks, and pictures."""

from collections.abc import Mapping
from typing import Any

from lengen_jax import errors, specs
from lengen_jax.data import glue, imagenet, paths, prompts, scrolls, sources

PROMPTS = {
  task.name: task for task in (*scrolls.TASKS.values(), *glue.TASKS.values())
}
GLUE_SUPERGLUE = 'glue_superglue'
PICTURES = {'imagenet': imagenet.Imagenet}


def prompt_tasks(task: str) -> list[prompts.PromptTask]:
  """Returns the PromptTasks of a task or mixture, [] for any other task.

  The tasks of 'glue_superglue' include mismatched MNLI, for evaluation only.
  """
  if task == GLUE_SUPERGLUE:
    return list(glue.TASKS.values())
  return [PROMPTS[task]] if task in PROMPTS else []


def pictures(task: str) -> imagenet.Imagenet | None:
  """Returns the `Imagenet` of an image task; None for other tasks."""
  return _build(task, PICTURES)


def source(task: str) -> sources.Source | None:
  """Returns the source of a text task; None for other tasks."""
  return _build(task, sources.SOURCES)


def check_present(task: str, path: str) -> None:
  """Raises an error if raw data of a task is missing; reads no data.

  Args:
    task: see `data.DataConfig`; 'module:name' is not accepted.
    path: folder of the raw data; see `paths`.

  Raises:
    errors.LengenError: the task is unknown, or its data is missing.
  """
  if asked := prompt_tasks(task):
    for each in asked:
      prompts.check_present(each, path)
  elif pictures(task):
    there = paths.dataset_splits(path, imagenet.DATASET)
    if not {'train', 'validation'} <= {*there}:
      raise paths.missing(
        f'ImageNet ({imagenet.DATASET} of TensorFlow Datasets)',
        [str(paths.prepared_dataset(path, imagenet.DATASET))],
        imagenet.HOW,
      )
  elif text := source(task):
    for split in ('train', 'validation'):
      text.parts(path, split)
  else:
    raise errors.SpecError(
      errors.one_of(
        'data.task',
        task,
        [*sources.SOURCES, *PROMPTS, GLUE_SUPERGLUE, *PICTURES],
      )
    )


def _build(task: str, registry: Mapping[str, type]) -> Any:
  name = task.partition('(')[0].strip()
  return specs.build('data.task', registry, task) if name in registry else None
