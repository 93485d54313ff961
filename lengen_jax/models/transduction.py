"""Models of generated tasks: Transformers and recurrent networks."""

import dataclasses
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
import optax

from lengen_jax import encodings, errors
from lengen_jax import positions as position_schemes
from lengen_jax.hints import Params
from lengen_jax.models import blocks, objective, recurrent
from lengen_jax.models.config import ModelConfig
from lengen_jax.tasks import batches, Task


@dataclasses.dataclass(frozen=True)
class RecurrentModel:
  """A recurrent network, with the methods of `objective.TransformerModel`.

  Attributes:
    network: the network. It reads neither positions nor segment ids.
  """

  network: recurrent.Recurrent

  def init(self, rng: jax.Array) -> Params:
    """Returns initial parameters, a tree of float32 arrays."""
    variables = self.network.init(rng, jnp.zeros((1, 2), jnp.int32))
    return nn.unbox(variables)['params']

  def project(self, params: Params) -> Params:
    """Returns the parameters unchanged."""
    return params

  def logits(
    self,
    params: Params,
    batch: objective.Batch,
    *,
    rngs: objective.Rngs,
    train: bool,
  ) -> jax.Array:
    """Returns logits, float32 `[B, L, V]`."""
    del rngs, train
    # A row's input ends at its first target.
    input_lengths_B = (jnp.asarray(batch['weights']) > 0).argmax(axis=1)
    logits: Any = self.network.apply(
      {'params': params}, batch['inputs'], input_lengths=input_lengths_B
    )
    return logits

  def token_losses(
    self,
    params: Params,
    batch: objective.Batch,
    *,
    rngs: objective.Rngs,
    train: bool,
  ) -> jax.Array:
    """Returns the cross-entropy of each target in nats, float32 `[B, L]`."""
    return optax.softmax_cross_entropy_with_integer_labels(
      self.logits(params, batch, rngs=rngs, train=train), batch['targets']
    )


TaskModel = objective.TransformerModel | RecurrentModel


def create(
  task: Task,
  fields: dict[str, Any],
  positions: str,
  *,
  train_length: int,
  test_length: int,
) -> TaskModel:
  """Returns the model of a generated task.

  Args:
    task: the task.
    fields: fields of ModelConfig without `vocab_size` and `output_size`, which
      follow from the task. `encoding` may be the name of a recurrent model.
    positions: spec of a position scheme.
    train_length: the greatest nominal length in training.
    test_length: the greatest nominal length in evaluation.

  Raises:
    errors.LengenError: an invalid combination, or a length beyond the positions
      that the scheme or the encoding supports.
  """
  name = fields['encoding']
  sizes = {'vocab_size': task.separator + 1, 'output_size': task.vocab_out}
  if name in recurrent.NAMES:
    if (positions, fields['attention_scale']) != ('standard', 'none'):
      raise errors.CombinationError(
        f'{name} has neither positions nor attention; remove {positions!r} and '
        f'{fields["attention_scale"]!r}'
      )
    longest = max(train_length, test_length)
    # The size of a tape must not depend on a row's padding.
    memory = batches.count_tokens(task, longest) if name == 'tape_rnn' else None
    return RecurrentModel(recurrent.create(name, **sizes, memory_size=memory))
  if name.isidentifier() and name not in encodings.ENCODINGS:
    known = [*encodings.ENCODINGS, *recurrent.NAMES]
    raise errors.SpecError(
      errors.one_of('encoding or recurrent model', name, known)
    )
  config = ModelConfig(**fields | sizes)
  objective.check(config, positions)
  scheme = position_schemes.create(positions)
  for length, train in ((train_length, True), (test_length, False)):
    _check_length(task, config, scheme, length, train)
  return objective.TransformerModel(config, scheme, masks_padding=True)


def is_autoregressive(model: TaskModel) -> bool:
  """Returns whether a model reads earlier targets."""
  return (
    isinstance(model, objective.TransformerModel)
    and model.config.architecture == 'decoder'
  )


def _check_length(
  task: Task,
  config: ModelConfig,
  scheme: position_schemes.PositionScheme,
  length: int,
  train: bool,
) -> None:
  """Raises on a nominal length that positions or encodings do not support."""
  tokens, limit = batches.count_tokens(task, length), scheme.limit(train)
  if limit is not None and tokens > limit:
    raise errors.LengthError(
      f'{task} of length {length} has {tokens} tokens and {scheme} only '
      f'{limit} positions; set max_position={tokens} or more, or use shorter '
      'lengths'
    )
  for encoding in dict.fromkeys(blocks.create_encodings(config)):
    encodings.check_extent(encoding, scheme, tokens, train)
