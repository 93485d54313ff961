"""From a batch to a loss per token: where scheme and model meet."""

import jax
import jax.numpy as jnp

from lengen_jax import encodings
from lengen_jax import errors
from lengen_jax import positions as position_schemes
from lengen_jax.attention import scaling
from lengen_jax.models import blocks
from lengen_jax.models import tokens
from lengen_jax.models import transformer


def check(config, positions):
  """Raises where a model's encodings and a position scheme do not combine.

  Args:
    config: a ModelConfig.
    positions: spec of a position scheme.

  Raises:
    errors.CombinationError: naming both and the reason.
  """
  scheme = position_schemes.create(positions)
  for encoding in dict.fromkeys(blocks.create_encodings(config)):
    encodings.check_scheme(encoding, scheme)


def sees_padding(config, scheme):
  """Whether padding at the end of a row changes what its tokens are given.

  Where it does not, padded rows are computed like whole ones, which is faster:
  all have the same positions. Nothing that is scored attends to padding.

  Args:
    config: a ModelConfig.
    scheme: a PositionScheme.
  """
  scale = scaling.create(config.attention_scale, num_heads=1, parent=None)
  return (
    config.architecture != 'decoder'
    or scheme.needs_lengths
    or scale.length_dependent
    or any(e.length_dependent for e in blocks.create_encodings(config))
  )


def token_losses(config, scheme, params, batch, *, rng, train, packed):
  """Cross-entropy of each target, nats, float32 `[B, L]`.

  Language modelling, masked tokens and sequence to sequence alike: which it is
  follows from the model's architecture and the batch.

  Args:
    config: a ModelConfig.
    scheme: a PositionScheme.
    params: the model's parameters.
    batch: dict of `[B, L]` arrays; see `data.windows.lm_batch`. For an
      encoder-decoder, the same of the encoder under 'encoder_...'.
    rng: a PRNG key, for positions and dropout.
    train: whether this is training.
    packed: whether rows hold several segments, or padding that matters. If
      not, every row is one segment, and a bias is computed once for all.

  Raises:
    errors.LengthError: the batch is longer than the encoding or the scheme
      can take.
    errors.ConfigError: something is missing in the batch.
  """

  def described(prefix, rng):
    """What the model is told of the tokens on one side."""
    needed = ['inputs', 'segment_positions', 'lengths']
    needed += ['segment_ids'] * packed + ['targets'] * (not prefix)
    for name in needed:
      if prefix + name not in batch:
        raise errors.ConfigError(
          f'the batch lacks {prefix}{name}; it has {", ".join(sorted(batch))}'
        )
    length = batch[f'{prefix}inputs'].shape[1]
    for encoding in dict.fromkeys(blocks.create_encodings(config)):
      encodings.check_extent(encoding, scheme, length, train)
    index = batch[f'{prefix}segment_positions']
    lengths = batch[f'{prefix}lengths']
    if not packed:
      alike = scheme.same_rows or not scheme.draws(train)
      lengths = lengths[:1] if alike else lengths
      index = jnp.broadcast_to(
        tokens.position_index(length, None), (len(lengths), length)
      )
    return {
      f'{prefix}positions': scheme(
        index,
        lengths=lengths,
        rng=rng,
        train=train,
        num_layers=config.num_layers,
      ),
      f'{prefix}segment_ids': batch[f'{prefix}segment_ids'] if packed else None,
      f'{prefix}lengths': lengths,
    }

  named = described('', rng)
  inputs = (batch['inputs'],)
  if config.architecture == 'encoder_decoder':
    named |= described('encoder_', jax.random.fold_in(rng, 1))
    inputs += (batch['encoder_inputs'],)
  return transformer.create(config).apply(
    {'params': params},
    *inputs,
    **named,
    targets=batch['targets'],
    deterministic=not train,
    contiguous=scheme.contiguous,
    rngs={'dropout': rng} if train else {},
  )


def masked(config, batch, rng):
  """A batch for the model's objective: an encoder predicts masked tokens.

  Args:
    config: a ModelConfig; the last id of an encoder's vocabulary masks.
    batch: see `data.windows.lm_batch`; its targets are the tokens.
    rng: a PRNG key.

  Returns:
    The batch itself but for an encoder; then see `mask_tokens`.
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


def mask_tokens(rng, batch, *, mask_id, vocab_size, rate=0.15):
  """Makes a batch for masked language modelling, as BERT.

  Of the tokens that count, a part `rate` is to be predicted: 80 % of those are
  replaced by `mask_id`, 10 % by a random token, the rest stay.

  Source: Devlin et al. (2018), arXiv:1810.04805, section 3.1.

  Args:
    rng: a PRNG key.
    batch: dict of `[B, L]` arrays, its 'inputs' the tokens themselves and its
      'weights' 0 at padding.
    mask_id: the token that masks.
    vocab_size: random tokens are below it.
    rate: see above.

  Returns:
    The batch with new 'inputs', 'targets' and 'weights'.
  """
  ids = batch['inputs']
  chosen, how, other = jax.random.split(rng, 3)
  chosen = jax.random.bernoulli(chosen, rate, ids.shape)
  chosen &= batch['weights'] > 0
  how = jax.random.uniform(how, ids.shape)
  other = jax.random.randint(other, ids.shape, 0, vocab_size)
  replaced = jnp.where(how < 0.8, mask_id, jnp.where(how < 0.9, other, ids))
  return {
    **batch,
    'inputs': jnp.where(chosen, replaced, ids),
    'targets': ids,
    'weights': chosen.astype(jnp.float32),
  }
