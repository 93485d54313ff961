"""Losses and logits of models on standard batches.

A standard batch is a dict of `[B, L]` arrays; see `data.windows.lm_batch`.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from lengen_jax import encodings, errors
from lengen_jax import positions as position_schemes
from lengen_jax.attention import scaling
from lengen_jax.hints import Array, Params
from lengen_jax.models import blocks, stacking, transformer
from lengen_jax.models.config import ModelConfig
from lengen_jax.positions import PositionScheme
from lengen_jax.positions.tokens import position_index, Tokens

Batch = Mapping[str, Array]
# PRNG keys by use: 'positions' and, if dropout is on, 'dropout'.
Rngs = Mapping[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class TransformerModel:
  """A Transformer with a position scheme, applied to standard batches.

  Attributes:
    config: sizes, encoding and precision.
    scheme: the position scheme.
    packed: whether rows have several segments, or padding whose positions
      matter; see `sees_padding`. If False, every row is one segment, and rows
      share one bias where the scheme gives them the same positions.
    masks_padding: whether attention masks the padding of rows that are not
      packed.
  """

  config: ModelConfig
  scheme: PositionScheme
  packed: bool = False
  masks_padding: bool = False

  def init(self, rng: jax.Array) -> Params:
    """Returns initial parameters, a tree of float32 arrays."""
    return stacking.init(self.config, rng)

  def project(self, params: Params) -> Params:
    """Returns parameters projected onto their domain."""
    return stacking.project(params, self.config)

  def logits(
    self, params: Params, batch: Batch, *, rngs: Rngs, train: bool
  ) -> jax.Array:
    """Returns logits, float32 `[B, L, V]`; see `token_losses`."""
    return self._apply(params, batch, rngs, train, scored=False)

  def token_losses(
    self, params: Params, batch: Batch, *, rngs: Rngs, train: bool
  ) -> jax.Array:
    """Returns the cross-entropy of each target in nats, float32 `[B, L]`.

    Args:
      params: the model's parameters.
      batch: a standard batch. For an encoder-decoder it has the arrays of the
        encoder under 'encoder_...'.
      rngs: PRNG keys for 'positions' and 'dropout'; without the latter, dropout
        is off.
      train: whether the scheme returns positions for training.

    Raises:
      errors.LengthError: the batch is longer than the encoding or the scheme
        supports.
      errors.ConfigError: the batch lacks an array.
    """
    return self._apply(params, batch, rngs, train, scored=True)

  def _apply(
    self,
    params: Params,
    batch: Batch,
    rngs: Rngs,
    train: bool,
    *,
    scored: bool,
  ) -> jax.Array:
    rng = rngs['positions']
    named: dict[str, Any] = {'positions': self._tokens('', batch, rng, train)}
    inputs = [batch['inputs']]
    if scored:
      _require(batch, 'targets')
      named['targets'] = batch['targets']
    if self.config.architecture == 'encoder_decoder':
      rng = jax.random.fold_in(rng, 1)
      named['encoder_positions'] = self._tokens('encoder_', batch, rng, train)
      inputs.append(batch['encoder_inputs'])
    dropout = {k: v for k, v in rngs.items() if k == 'dropout'}
    outputs: Any = transformer.create(self.config).apply(
      {'params': params},
      *inputs,
      **named,
      deterministic=not dropout,
      rngs=dropout,
    )
    return outputs

  def _tokens(
    self, prefix: str, batch: Batch, rng: jax.Array, train: bool
  ) -> Tokens:
    """Returns positions, segments and lengths of one side of the batch."""
    masked = self.packed or self.masks_padding
    for name in ('inputs', 'segment_positions', 'lengths'):
      _require(batch, prefix + name)
    if masked:
      _require(batch, f'{prefix}segment_ids')
    shape = batch[f'{prefix}inputs'].shape
    for encoding in dict.fromkeys(blocks.create_encodings(self.config)):
      encodings.check_extent(encoding, self.scheme, shape[1], train)
    index = batch[f'{prefix}segment_positions']
    lengths = batch[f'{prefix}lengths']
    if not self.packed:
      # Where all rows have the same positions, one row stands for all.
      shared = self.scheme.same_rows or not self.scheme.draws(train)
      lengths = lengths[:1] if shared else lengths
      index = jnp.broadcast_to(
        position_index(shape[1], None), (len(lengths), shape[1])
      )
    positions = self.scheme(
      index,
      lengths=lengths,
      rng=rng,
      train=train,
      num_layers=self.config.num_layers,
    )
    return Tokens.create(
      shape,
      positions,
      segment_ids=batch[f'{prefix}segment_ids'] if masked else None,
      lengths=lengths,
      contiguous=self.scheme.contiguous,
    )


def _require(batch: Batch, name: str) -> None:
  if name not in batch:
    raise errors.ConfigError(
      f'the batch lacks {name}; it has {", ".join(sorted(batch))}'
    )


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
    batch: see `TransformerModel.token_losses`.
    rng: a PRNG key, for positions and dropout.
    train: whether this is training, with dropout.
    packed: see `TransformerModel`.

  Raises:
    errors.LengthError: the batch is longer than the encoding or the scheme
      supports.
    errors.ConfigError: the batch lacks an array.
  """
  rngs = {'positions': rng} | ({'dropout': rng} if train else {})
  return TransformerModel(config, scheme, packed).token_losses(
    params, batch, rngs=rngs, train=train
  )


def mean_loss(losses: jax.Array, weights: Array) -> jax.Array:
  """Returns the weighted mean of losses; 0 if all weights are 0.

  Args:
    losses: `[B, L]`, one per token.
    weights: `[B, L]`.
  """
  return jnp.sum(losses * weights) / jnp.maximum(jnp.sum(weights), 1)


def check(config: ModelConfig, positions: str) -> None:
  """Raises unless a model's encodings and scale support a position scheme.

  Args:
    config: the model's configuration.
    positions: spec of a position scheme.

  Raises:
    errors.CombinationError: names the encoding, the scheme and the reason.
    errors.SpecError: the model's attention scale is invalid.
  """
  scheme = position_schemes.create(positions)
  scaling.create(config.attention_scale, num_heads=1, parent=None)
  for encoding in dict.fromkeys(blocks.create_encodings(config)):
    encodings.check_scheme(encoding, scheme)


def sees_padding(config: ModelConfig, scheme: PositionScheme) -> bool:
  """Returns whether padding at the end of rows changes a model's outputs.

  If it does not, padded rows are computed like full ones. This is faster, since
  all rows have the same positions, and no scored token attends to padding.
  """
  scale = scaling.create(config.attention_scale, num_heads=1, parent=None)
  return (
    config.architecture != 'decoder'
    or scheme.needs_lengths
    or scale.length_dependent
    or any(e.length_dependent for e in blocks.create_encodings(config))
  )


def masked(config: ModelConfig, batch: Batch, rng: jax.Array) -> Batch:
  """Returns the batch for a model's objective.

  Args:
    config: the model's configuration. The last id of an encoder's vocabulary is
      the mask token.
    batch: a standard batch for language modelling; its targets are the tokens.
    rng: a PRNG key.

  Returns:
    For an encoder, the batch for masked language modelling (see `mask_tokens`);
    otherwise the batch itself.
  """
  if config.architecture != 'encoder':
    return batch
  mask_id = config.vocab_size - 1
  return mask_tokens(
    jax.random.fold_in(rng, 2),
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
