"""What data.task names: text, prompts with answers, pictures."""

from collections.abc import Mapping
from typing import Any

from lengen_jax import errors
from lengen_jax import specs
from lengen_jax.data import glue
from lengen_jax.data import imagenet
from lengen_jax.data import paths
from lengen_jax.data import prompts
from lengen_jax.data import scrolls
from lengen_jax.data import sources

PROMPTS = {
  task.name: task for task in (*scrolls.TASKS.values(), *glue.TASKS.values())
}
GLUE_SUPERGLUE = 'glue_superglue'
PICTURES = {'imagenet': imagenet.Imagenet}


def prompt_tasks(task: str) -> list[prompts.PromptTask]:
  """PromptTasks that 'family/name' or a mixture consists of, [] for others.

  Of 'glue_superglue' one, of mismatched MNLI, is for evaluation alone.
  """
  if task == GLUE_SUPERGLUE:
    return list(glue.TASKS.values())
  return [PROMPTS[task]] if task in PROMPTS else []


def pictures(task: str) -> imagenet.Imagenet | None:
  """What a spec of pictures describes, None for another task."""
  return _build(task, PICTURES)


def source(task: str) -> sources.Source | None:
  """The source of text that a spec describes, None for another task."""
  return _build(task, sources.SOURCES)


def check_present(task: str, path: str) -> None:
  """Raises unless the raw data of a task is there, without reading it.

  Args:
    task: see `data.DataConfig`; not one of somebody else's.
    path: where the raw data lies; see `paths`.

  Raises:
    errors.LengenError: there is no such task, or its data is missing.
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
