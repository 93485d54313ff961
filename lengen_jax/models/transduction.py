"""Models of generated tasks: Transformers and recurrent networks."""

from collections.abc import Callable
import functools
from typing import Any, NamedTuple

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from lengen_jax import encodings, errors
from lengen_jax import positions as position_schemes
from lengen_jax.models import blocks, objective, recurrent, stacking
from lengen_jax.models.config import ModelConfig
from lengen_jax.positions import PositionScheme
from lengen_jax.tasks import batches, Task
from lengen_jax.types import Params


class TaskModel(NamedTuple):
  """Functions of a model on standard batches.

  Attributes:
    init: `init(rng)` returns initial parameters.
    apply: `apply(params, batch, *, rngs, train, scored, equal_lengths)` returns
      losses or logits; see `objective.apply`. By default, `equal_lengths` is
      that of the task.
    project: `project(params)` projects parameters to their domain.
    autoregressive: whether the model reads earlier targets.
    config, scheme: of a Transformer; None for recurrent networks.
  """

  init: Callable[[jax.Array], Params]
  apply: Callable[..., jax.Array]
  project: Callable[[Params], Params]
  autoregressive: bool
  config: ModelConfig | None = None
  scheme: position_schemes.PositionScheme | None = None


def create(
  task: Task,
  fields: dict[str, Any],
  positions: str,
  *,
  train_length: int,
  test_length: int,
) -> TaskModel:
  """Returns the model of a generated task.

  `fields` are those of ModelConfig without `vocab_size` and `output_size`,
  which follow from the task. `encoding` may be the name of a recurrent model.
  `train_length` and `test_length` are the greatest nominal lengths.

  Raises:
    errors.LengenError: an invalid combination, or a length beyond the positions
      that the scheme or the encoding supports.
  """
  name = fields['encoding']
  vocab_size = max(task.vocab_in, task.vocab_out, task.separator + 1)
  sizes = {'vocab_size': vocab_size, 'output_size': task.vocab_out}
  if name in recurrent.NAMES:
    options = (
      (positions, 'standard'),
      (fields.get('contextual_positions', 'none'), 'none'),
      (fields['attention_scale'], 'none'),
    )
    given = [repr(value) for value, default in options if value != default]
    if given:
      raise errors.CombinationError(
        f'{name} has neither positions nor attention; remove '
        + ' and '.join(given)
      )
    longest = max(train_length, test_length)
    # The size of a tape must not depend on a row's padding.
    memory = batches.count_tokens(task, longest) if name == 'tape_rnn' else None
    network = recurrent.create(name, **sizes, memory_size=memory)
    return _recurrent(network, task.tags)
  if name.isidentifier() and name not in encodings.ENCODINGS:
    known = [*encodings.ENCODINGS, *recurrent.NAMES]
    raise errors.SpecError(
      errors.one_of('encoding or recurrent model', name, known)
    )
  config = ModelConfig(**fields | sizes)
  if config.lora_rank is not None:
    raise errors.CombinationError(
      f'model.lora_rank={config.lora_rank} needs pretrained weights; models of '
      'generated tasks are trained from random weights, so leave it None'
    )
  objective.check(config, positions)
  scheme = position_schemes.create(positions)
  for length, train in ((train_length, True), (test_length, False)):
    tokens, limit = batches.count_tokens(task, length), scheme.limit(train)
    if limit is not None and tokens > limit:
      raise errors.LengthError(
        f'{task} of length {length} has {tokens} tokens and {scheme} only '
        f'{limit} positions; set max_position={tokens} or more, or use shorter '
        'lengths'
      )
    for encoding in blocks.distinct_encodings(config):
      encodings.check_extent(encoding, scheme, tokens, train)
  if scheme.needs_roles:
    _check_roles(task, config, scheme, max(train_length, test_length))
  return TaskModel(
    functools.partial(stacking.init, config),
    functools.partial(
      objective.apply,
      config,
      scheme,
      masks_padding=True,
      equal_lengths=task.equal_lengths,
    ),
    functools.partial(stacking.project, config=config),
    config.architecture == 'decoder',
    config,
    scheme,
  )


def _check_roles(
  task: Task, config: ModelConfig, scheme: PositionScheme, length: int
) -> None:
  """Raises unless a scheme has a position for each role up to a length.

  Raises:
    errors.CombinationError: the model does not read the answers, on whose
      tokens roles depend, or an encoding does not take as many rows of roles.
    errors.ConfigError: the task has no roles.
    errors.LengthError: a role is beyond the scheme's positions.
  """
  if config.architecture != 'decoder' and not task.tags:
    raise errors.CombinationError(
      f'{scheme} needs roles of the tokens of answers, which only decoders '
      f"read; set model.architecture='decoder', not {config.architecture!r}"
    )
  one = np.zeros((1, 1), np.int32)
  roles = None
  if task.num_roles:
    roles = np.full((task.num_roles, 1, 1), task.largest_role(length))
    for encoding in blocks.distinct_encodings(config):
      encodings.check_roles(encoding, scheme, task.num_roles)
  # Concrete roles are checked.
  scheme(one, lengths=one + 1, tokens=one, segment_ids=one, roles=roles)


def _recurrent(network: recurrent.Recurrent, tags: bool) -> TaskModel:
  def init(rng: jax.Array) -> Params:
    variables = network.init(rng, jnp.zeros((1, 2), jnp.int32))
    return nn.unbox(variables)['params']

  def apply(
    params: Params, batch: objective.Batch, *, scored: bool = True, **_: Any
  ) -> jax.Array:
    if tags:
      input_lengths_B = jnp.asarray(batch['lengths'])[:, 0]
    else:
      # A row's input ends at its first target.
      input_lengths_B = (jnp.asarray(batch['weights']) > 0).argmax(axis=1)
    logits: Any = network.apply(
      {'params': params}, batch['inputs'], input_lengths=input_lengths_B
    )
    if not scored:
      return logits
    return optax.softmax_cross_entropy_with_integer_labels(
      logits, batch['targets']
    )

  return TaskModel(init, apply, lambda params: params, False)
