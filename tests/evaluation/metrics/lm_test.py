"""Tests `lengen_jax/evaluation/metrics/lm.py`."""

import math

import numpy as np
import pytest

from lengen_jax import errors
from lengen_jax.evaluation.metrics import lm

FUNCTIONS = [
  lm.perplexity,
  lm.word_perplexity,
  lm.bits_per_byte,
]


def test_uniform_model():
  """Guessing among 256 bytes: 256 per byte and 8 bits, whatever the tokens."""
  text = 'naïve\n'
  num_bytes = len(text.encode())
  nats = num_bytes * math.log(256)
  assert lm.perplexity(nats, num_bytes) == pytest.approx(256)
  assert lm.bits_per_byte(nats, num_bytes) == pytest.approx(8)
  # One character of six is two bytes.
  # A word and the end of its line.
  words = lm.count_words(text)
  assert lm.word_perplexity(nats, words) == pytest.approx(256**3.5)


def test_sums_of_hosts_and_not_means_of_means():
  # 10 nats on 10 tokens and 90 on 30; a mean of means would be 2 per token.
  nats, tokens = np.float32([10, 90]), np.int32([10, 30])
  got = lm.perplexity(nats.sum(), tokens.sum())
  assert got == pytest.approx(math.exp(2.5))
  assert isinstance(got, float)


def test_count_words():
  lines = ' \n = Robert = \n \n He said " no " . \n'
  # Robert's heading has 3 words, the sentence 6; each of 4 lines has an end.
  assert lm.count_words(lines) == 13
  assert lm.count_words('') == 0


def test_perplexity_beyond_a_float():
  assert lm.perplexity(1e6, 1) == math.inf
  assert lm.word_perplexity(1e6, 1) == math.inf
  assert lm.perplexity(math.inf, 1) == math.inf
  assert math.isnan(lm.perplexity(math.nan, 1))


def test_perfect_model():
  assert lm.perplexity(0.0, 5) == 1
  assert lm.bits_per_byte(0.0, 5) == 0
  # Rounding may leave a loss below 0.
  assert lm.perplexity(-1e-6, 5) == pytest.approx(1)


@pytest.mark.parametrize('function', FUNCTIONS)
@pytest.mark.parametrize('count', [0, -1, math.nan])
def test_nothing_to_divide_by(function, count):
  with pytest.raises(errors.MetricError, match='must be positive and finite'):
    function(1.0, count)


@pytest.mark.parametrize('function', FUNCTIONS)
def test_log_likelihoods_of_the_wrong_sign(function):
  with pytest.raises(errors.MetricError, match='-12 nats are negative'):
    function(-12.0, 4)
