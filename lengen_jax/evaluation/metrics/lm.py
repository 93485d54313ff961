"""Perplexity and bits per unit of text, from summed losses.

Every function takes `nats`, the negative log likelihood summed over all tokens
of all hosts, and the number of units that those tokens stand for. Sums are
added up before anything is divided: a mean of means weighs rows unequally.

WikiText (Merity et al., 2016, https://arxiv.org/abs/1609.07843) is compared per
word of the tokenised text, whatever the tokens of the model are. enwik8 is
compared in bits per byte, often called bits per character: its symbols are
bytes.
"""

import math

from lengen_jax import errors


def perplexity(nats: float, tokens: float) -> float:
  """exp(nats per token), infinite where that is beyond a float."""
  return _exp(_per(nats, tokens, 'tokens'))


def word_perplexity(nats: float, words: float) -> float:
  """Perplexity per word, comparable over vocabularies; see `count_words`."""
  return _exp(_per(nats, words, 'words'))


def bits_per_byte(nats: float, num_bytes: float) -> float:
  """Bits per byte of the text, as for enwik8."""
  return _per(nats, num_bytes, 'bytes') / math.log(2)


def bits_per_character(nats: float, characters: float) -> float:
  """Bits per character of the text; a character may be several bytes."""
  return _per(nats, characters, 'characters') / math.log(2)


def count_words(text: str) -> int:
  """Words as WikiText counts them: one more for the end of each line.

  Counted so, the tokenised WikiText-103 has 217,646 words for validation and
  245,569 for testing; blank lines count.

  Args:
    text: tokenised text, words apart by spaces.

  Returns:
    The number of words to divide by.
  """
  return len(text.split()) + text.count('\n')


def _per(nats: float, count: float, units: str) -> float:
  nats, count = float(nats), float(count)
  if not (0 < count < math.inf):
    raise errors.MetricError(
      f'{count:g} {units}: there is nothing to divide by'
    )
  # Losses near 0 may come out below it by rounding.
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
