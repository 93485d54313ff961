"""Answers to questions of a generated task, decoded token by token."""

from typing import Any

import jax
import numpy as np

from lengen_jax import errors
from lengen_jax.evaluation import generation
from lengen_jax.models.transduction import TaskModel
from lengen_jax.tasks import batches, Task
from lengen_jax.training import sharding
from lengen_jax.training.config import TaskEvalConfig
from lengen_jax.types import Params


def check(model: TaskModel, config: TaskEvalConfig, task: Task) -> None:
  """Raises unless a model generates answers that can be scored.

  Raises:
    errors.ConfigError: the model is not a decoder, targets do not follow the
      input, the score is the loss, or dropout is on.
  """
  if config.dropout:
    raise errors.ConfigError(
      "eval.dropout=True requires eval.by='teacher_forcing'; answers are "
      'generated without dropout'
    )
  valid = model.autoregressive and not task.tags
  if not valid or config.score == 'loss':
    raise errors.ConfigError(
      "eval.by='generation' requires model.architecture='decoder', a task "
      "whose targets follow the input, and eval.score 'exact' or 'accuracy'; "
      f'got {task} and eval.score={config.score!r}'
    )


def generate(
  model: TaskModel,
  task: Task,
  params: Params,
  inputs: jax.Array,
  targets: jax.Array,
  length: int,
  *,
  batch_tokens: int,
) -> np.ndarray:
  """Returns the greedy answers of a decoder, int32 `[B, M]`.

  The model reads its own earlier tokens in place of targets. M is the number of
  targets at a nominal length. If positions depend on roles, the roles of the
  correct row are used: those of the answer are given before it is generated.

  Args:
    model: a model of a generated task.
    task: the task.
    params: the model's parameters.
    inputs: int32 `[B, N]`, of that nominal length, padded at the end.
    targets: int32 `[B, M]`; only their roles are used.
    length: nominal length.
    batch_tokens: tokens per batch, questions and answers together.

  Raises:
    errors.LengthError: rows exceed the range of an encoding or of the scheme.
    errors.MetricError: logits are not finite.
  """
  config: Any = model.config
  scheme: Any = model.scheme
  layout = sharding.Layout.of_rows()
  generator = generation.Generator(
    config,
    scheme,
    max_new=int(task.output_length(length)),
    # The task's mask cuts answers.
    end_id=-1,
    batch_tokens=batch_tokens,
    seed=0,
    layout=layout,
    start_id=None,
  )
  counts = np.broadcast_to(task.input_lengths(inputs, length), len(inputs))
  prompts = [
    np.append(row[:count], task.separator)
    for row, count in zip(np.asarray(inputs), counts, strict=True)
  ]
  roles = None
  if scheme.needs_roles:
    batch = batches.make(task, inputs, targets, length, autoregressive=True)
    roles = [
      row[:, : count + generator.max_new]
      for row, count in zip(
        np.moveaxis(np.asarray(batch['roles']), 1, 0), counts, strict=True
      )
    ]
  return np.stack(generator.run(params, prompts, roles=roles))
