"""Perplexity and bits per unit of text, from summed losses.

`nats` is the negative log likelihood summed over all tokens of all hosts.
Results on WikiText (Merity et al., 2016, https://arxiv.org/abs/1609.07843) are
perplexities per word, and those on enwik8 bits per byte, often called bits per
character.

Functions raise `errors.MetricError` if a count is not positive and finite, or
`nats` per unit is below -0.001, more than rounding explains.
"""

import math

from lengen_jax import errors


def perplexity(nats: float, tokens: float) -> float:
  """Returns exp(nats per token), infinity on overflow."""
  return _exp(_per(nats, tokens, 'tokens'))


def word_perplexity(nats: float, words: float) -> float:
  """Returns the perplexity per word; see `count_words`."""
  return _exp(_per(nats, words, 'words'))


def bits_per_byte(nats: float, num_bytes: float) -> float:
  """Returns bits per byte of the text."""
  return _per(nats, num_bytes, 'bytes') / math.log(2)


def count_words(text: str) -> int:
  """Returns the number of words of tokenized text, plus one per line end.

  WikiText-103 has 217,646 such words in validation and 245,569 in test.
  """
  return len(text.split()) + text.count('\n')


def _per(nats: float, count: float, units: str) -> float:
  nats, count = float(nats), float(count)
  if not (0 < count < math.inf):
    raise errors.MetricError(
      f'the number of {units} must be positive and finite, got {count:g}'
    )
  # Rounding may make losses near 0 negative.
  if nats / count < -1e-3:
    raise errors.MetricError(
      f'{nats:g} nats are negative; pass the sum of negative log likelihoods'
    )
  return nats / count


def _exp(loss: float) -> float:
  try:
    return math.exp(loss)
  except OverflowError:
    return math.inf
