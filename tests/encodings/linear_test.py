"""Tests `lengen_jax/encodings/linear.py`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import encodings


def create(spec):
  return encodings.create(spec, num_heads=3, head_dim=8)


@pytest.mark.parametrize('bidirectional', [False, True])
def test_formula(bidirectional):
  q, k = np.float32([[1, 2.5]]), np.float32([[4, 0, 2]])
  got = create('linear(slope=0.5)').apply(
    {}, q, k, method='bias', bidirectional=bidirectional
  )
  distances = q[:, None, :, None] - k[:, None, None]
  want = -0.5 * (np.abs(distances) if bidirectional else distances)
  np.testing.assert_array_equal(got, np.repeat(want, 3, axis=1))


def test_learned_slopes():
  encoding = create('linear(slope=0.5, learned=True)')
  variables = encoding.init(jax.random.key(0), method='bias_fn')
  np.testing.assert_array_equal(variables['params']['slope'].unbox(), [0.5] * 3)
  slopes = jnp.array([1.0, -2.0, 0.0])
  p = jnp.arange(4)

  def bias(slopes):
    return encoding.apply({'params': {'slope': slopes}}, p, p, method='bias')

  distances = p[:, None] - p[None]
  np.testing.assert_array_equal(
    bias(slopes), -slopes[:, None, None] * distances[None]
  )
  gradient = jax.grad(lambda x: jnp.tril(bias(x)).sum())(slopes)
  np.testing.assert_array_equal(gradient, [-10.0] * 3)
