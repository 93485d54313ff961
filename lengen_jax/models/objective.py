"""Losses and logits of models on standard batches.

A standard batch is a dict of `[B, L]` arrays; see `data.windows.lm_batch`.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax import encodings, errors, specs
from lengen_jax import positions as position_schemes
from lengen_jax.models import blocks, transformer
from lengen_jax.models.assign import assign
from lengen_jax.models.config import ModelConfig
from lengen_jax.positions import PositionScheme
from lengen_jax.positions.tokens import position_index, Tokens
from lengen_jax.types import Array, Params

Batch = Mapping[str, Array]
# PRNG keys by use: 'positions' and, if dropout is on, 'dropout'.
Rngs = Mapping[str, jax.Array]
# Folded into keys. Rows, layers and parts fold in smaller numbers.
_ENCODER, _MASK = 2**31, 2**31 + 1


def token_losses(
  config: ModelConfig,
  scheme: PositionScheme,
  params: Params,
  batch: Batch,
  *,
  rng: jax.Array,
  train: bool,
  packed: bool,
) -> jax.Array:
  """Returns the cross-entropy of each target in nats, float32 `[B, L]`.

  The architecture and the batch determine the objective: language modelling,
  masked language modelling or sequence to sequence.

  Args:
    config: the model's configuration.
    scheme: the position scheme.
    params: the model's parameters.
    batch: a standard batch. For an encoder-decoder it has the arrays of the
      encoder under 'encoder_...'.
    rng: a PRNG key, for positions and dropout.
    train: whether this is training, with dropout.
    packed: whether rows have several segments, or padding whose positions
      matter; see `sees_padding`. If False, every row is one segment, and rows
      share one bias where the scheme gives them the same positions.

  Raises:
    errors.LengthError: the batch is longer than the encoding or the scheme
      supports.
    errors.CombinationError: the encoding does not support the positions.
    errors.ConfigError: the batch lacks an array.
  """
  rngs = {'positions': rng} | ({'dropout': rng} if train else {})
  return apply(
    config, scheme, params, batch, rngs=rngs, train=train, packed=packed
  )


def apply(
  config: ModelConfig,
  scheme: PositionScheme,
  params: Params,
  batch: Batch,
  *,
  rngs: Rngs,
  train: bool,
  packed: bool = False,
  masks_padding: bool = False,
  equal_lengths: bool = True,
  scored: bool = True,
  method: str = '__call__',
) -> jax.Array:
  """Returns losses `[B, L]`, or logits `[B, L, V]` unless `scored`; float32.

  V is the number of logits per token. The following arguments are not those of
  `token_losses`. `rngs` contains the PRNG key 'positions' and, to enable
  dropout, 'dropout'. `masks_padding` masks the padding of rows that are not
  packed. `equal_lengths` says whether all rows that are not packed have the
  same number of tokens; if not, each row has the positions and biases of its
  own length, where these depend on it. `scored` selects losses, which are
  computed without an array of logits. `method` is the name of the method of the
  model that is called.
  """
  sides = ['', 'encoder_'][: 1 + (config.architecture == 'encoder_decoder')]
  masked = packed or masks_padding
  alike = equal_lengths or not depends_on_length(config, scheme, train)
  names = ['inputs', 'segment_positions', 'lengths'] + ['segment_ids'] * masked
  needed = [side + name for side in sides for name in names]
  for name in needed + ['targets'] * scored:
    if name not in batch:
      raise errors.ConfigError(
        f'the batch lacks {name}; it has {", ".join(sorted(batch))}'
      )
  named: dict[str, Any] = {'targets': batch['targets']} if scored else {}
  for number, side in enumerate(sides):
    index, lengths = batch[side + 'segment_positions'], batch[side + 'lengths']
    inputs, rng = batch[side + 'inputs'], rngs['positions']
    rng = jax.random.fold_in(rng, _ENCODER) if number else rng
    shape = inputs.shape
    if not packed:
      shared = scheme.same_rows or not scheme.draws(train)
      # Logit scales depend on the number of visible keys of each row.
      lengths = lengths[:1] if shared and equal_lengths else lengths
      index = jnp.broadcast_to(position_index(shape[1], None), shape)
    positions = assign(
      config,
      scheme,
      index,
      lengths=lengths,
      rng=rng,
      train=train,
      equal_rows=not packed and alike,
      tokens=inputs,
      segment_ids=batch[side + 'segment_ids'] if packed else None,
      roles=batch.get(side + 'roles'),
      chunks=batch.get('chunks'),
    )
    named[side + 'positions'] = Tokens.create(
      shape,
      positions,
      segment_ids=batch[side + 'segment_ids'] if masked else None,
      lengths=lengths,
      contiguous=scheme.contiguous,
    )
  dropout = {key: rng for key, rng in rngs.items() if key == 'dropout'}
  outputs: Any = transformer.create(config).apply(
    {'params': params},
    *(batch[side + 'inputs'] for side in sides),
    **named,
    deterministic=not dropout,
    rngs=dropout,
    method=method,
  )
  return outputs


def check_ids(config: ModelConfig, batch: Mapping[str, np.ndarray]) -> None:
  """Raises CorpusError if a batch has token ids that a model does not have.

  The embedding of such an id is NaN. A tokenizer may return such ids: its
  `size` excludes its last special tokens.
  """
  names = ('inputs', 'encoder_inputs', 'targets')
  every = [batch[name] for name in names if name in batch]
  if (least := min(ids.min(initial=0) for ids in every)) < 0:
    raise errors.CorpusError(
      f'the data has token id {least}; ids must not be negative, also where '
      'weights are 0'
    )
  most = max(ids.max(initial=0) for ids in every)
  if most >= config.vocab_size:
    raise errors.CorpusError(
      f'the data has token id {most}, over the last id of the model; set '
      f'model.vocab_size (now {config.vocab_size}) to {most + 1} or more, or '
      'remove the text of that special token from the data'
    )


def check(config: ModelConfig, positions: str) -> None:
  """Raises unless a model's encodings and scale support a position scheme.

  Raises:
    errors.CombinationError: names the encoding, the scheme and the reason.
    errors.SpecError: the model's attention scale is invalid.
  """
  scheme = position_schemes.create(positions)
  blocks.create_scales(config)
  every = blocks.distinct_encodings(config)
  for encoding in every:
    encodings.check_scheme(encoding, scheme)
  has_parts = scheme.at_input is not scheme.in_attention
  if has_parts and not any(encoding.embeds for encoding in every):
    raise errors.CombinationError(
      f'{scheme} has positions for the input of the model, and '
      f'{", ".join(config.encoding)} acts in attention only; leave out '
      f'{scheme.at_input}, or add an encoding: learned(max_position=...) + '
      f'{config.encoding[0]}'
    )
  standard = position_schemes.create('standard')
  for own in blocks.create_contextual(config):
    if not own.is_none and scheme.in_attention != standard:
      raise errors.CombinationError(
        f'{specs.describe(own)} computes positions from contents and {scheme} '
        'from indices; use one of them'
      )


def sees_padding(config: ModelConfig, scheme: PositionScheme) -> bool:
  """Returns whether padding at the end of rows changes a model's outputs.

  If it does not, padded rows are computed like full ones. This is faster, since
  all rows have the same positions, and no scored token attends to padding.
  """
  return config.architecture != 'decoder' or depends_on_length(
    config, scheme, train=True
  )


def depends_on_length(
  config: ModelConfig, scheme: PositionScheme, train: bool
) -> bool:
  """Returns whether positions, biases or scales depend on a row's length."""
  needed = scheme.needs_lengths and (train or not scheme.standard_at_test)
  return needed or blocks.is_length_dependent(config)


def masked(config: ModelConfig, batch: Batch, rng: jax.Array) -> Batch:
  """Returns the batch for masked language modelling if the model is an encoder.

  See `mask_tokens`. The last id of the vocabulary is the mask token. For other
  models, returns the batch unchanged.
  """
  if config.architecture != 'encoder':
    return batch
  mask_id = config.vocab_size - 1
  return mask_tokens(
    jax.random.fold_in(rng, _MASK),
    {**batch, 'inputs': batch['targets']},
    mask_id=mask_id,
    vocab_size=mask_id,
  )


def mask_tokens(
  rng: jax.Array,
  batch: Batch,
  *,
  mask_id: int,
  vocab_size: int,
  rate: float = 0.15,
) -> dict[str, Array]:
  """Returns a batch for masked language modelling, as in BERT.

  A share `rate` of the tokens with positive weight becomes targets. Of these
  tokens, 80 % are replaced by `mask_id`, 10 % by a random token, and 10 % stay.

  Source: Devlin et al. (2018), arXiv:1810.04805, section 3.1.

  Args:
    rng: a PRNG key.
    batch: dict of `[B, L]` arrays. 'inputs' are the original tokens; 'weights'
      are 0 at padding.
    mask_id: id of the mask token.
    vocab_size: random tokens are less than this.
    rate: share of the tokens that become targets.

  Returns:
    The batch with new 'inputs', 'targets' and 'weights'.
  """
  ids = jnp.asarray(batch['inputs'])
  chosen, how, random = jax.random.split(rng, 3)
  chosen = jax.random.bernoulli(chosen, rate, ids.shape)
  chosen &= batch['weights'] > 0
  how = jax.random.uniform(how, ids.shape)
  random = jax.random.randint(random, ids.shape, 0, vocab_size)
  replaced = jnp.where(how < 0.8, mask_id, jnp.where(how < 0.9, random, ids))
  return {
    **batch,
    'inputs': jnp.where(chosen, replaced, ids),
    'targets': ids,
    'weights': chosen.astype(jnp.float32),
  }
