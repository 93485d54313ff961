"""From a batch to a loss per token: where scheme and model meet."""

import optax

from lengen_jax import encodings
from lengen_jax import positions as position_schemes
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
  for encoding in dict.fromkeys(transformer.create_encodings(config)):
    encodings.check_scheme(encoding, scheme)


def token_losses(config, scheme, params, batch, *, rng, train, packed):
  """Cross-entropy of each target, nats, float32 `[B, L]`.

  Args:
    config: a ModelConfig.
    scheme: a PositionScheme.
    params: the model's parameters.
    batch: dict of `[B, L]` arrays; see `data.windows.lm_batch`.
    rng: a PRNG key, for positions and dropout.
    train: whether this is training.
    packed: whether rows hold several segments or padding. If not, all rows
      are alike in their positions and a bias is computed once for all.

  Raises:
    errors.LengthError: the batch is longer than the encoding or the scheme
      can take.
  """
  length = batch['inputs'].shape[1]
  for encoding in dict.fromkeys(transformer.create_encodings(config)):
    encodings.check_extent(encoding, scheme, length, train)
  segment_positions, lengths = batch['segment_positions'], batch['lengths']
  if not packed and not scheme.draws(train):
    segment_positions, lengths = segment_positions[:1], lengths[:1]
  positions = scheme(segment_positions, lengths=lengths, rng=rng, train=train)
  logits = transformer.DecoderLM(config).apply(
    {'params': params},
    batch['inputs'],
    positions,
    segment_ids=batch['segment_ids'] if packed else None,
    lengths=lengths,
    deterministic=not train,
    rngs={'dropout': rng} if train else {},
  )
  return optax.softmax_cross_entropy_with_integer_labels(
    logits, batch['targets']
  )
