"""Tests `lengen_jax/models/linear.py`."""

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax.models import linear


def test_starts_at_unit_variance():
  for shape, inputs in (((64, 8, 32), 1), ((8, 32, 64), 2), ((64, 256), 1)):
    axes = ('embed', 'heads', 'kv')[: len(shape)]
    module = linear.Linear(shape, axes, inputs=inputs)
    x = jax.random.normal(jax.random.key(0), (32, 32, *shape[:inputs]))
    y, variables = module.init_with_output(jax.random.key(1), x)
    assert y.shape == (32, 32, *shape[inputs:])
    np.testing.assert_allclose(np.std(y), 1, rtol=0.1)
    assert set(variables['params']) == {'kernel'}


@pytest.mark.parametrize(
  'equation, shape, inputs',
  [
    ('ble,ef->blf', (6, 16), 1),
    ('ble,ef->blf', (16, 6), 1),
    ('ble,ehd->blhd', (4, 3, 5), 1),
    ('blhd,hde->ble', (3, 4, 20), 2),
    ('blhd,hde->ble', (3, 4, 5), 2),
  ],
)
def test_equals_an_einsum(equation, shape, inputs, assert_close):
  axes = ('heads', 'kv', 'embed')[: len(shape)]
  module = linear.Linear(shape, axes, inputs=inputs)
  x = jax.random.normal(jax.random.key(0), (2, 5, *shape[:inputs]))
  kernel = jax.random.normal(jax.random.key(1), shape)

  def loss(product):
    def of(x, kernel):
      return jnp.sum(jnp.sin(product(x, kernel)))

    return jax.value_and_grad(of, (0, 1))(x, kernel)

  got = loss(lambda x, kernel: module.apply({'params': {'kernel': kernel}}, x))
  assert_close(got, loss(lambda x, kernel: jnp.einsum(equation, x, kernel)))


@pytest.mark.parametrize(
  'shape, inputs, alpha', [((6, 2, 8), 1, None), ((2, 8, 6), 2, 6.0)]
)
def test_lora_is_a_kernel_of_low_rank(shape, inputs, alpha, assert_close):
  axes = ('embed', 'heads', 'kv')
  module = linear.Linear(
    shape, axes, inputs=inputs, lora_rank=3, lora_alpha=alpha
  )
  x = jax.random.normal(jax.random.key(0), (2, 5, *shape[:inputs]))
  y, variables = module.init_with_output(jax.random.key(1), x)
  plain = linear.Linear(shape, axes, inputs=inputs)
  without, plain_variables = plain.init_with_output(jax.random.key(1), x)
  # Initially it changes nothing.
  assert_close(y, without)
  params = nn.unbox(variables['params'])
  assert params['lora_in'].shape == (*shape[:inputs], 3)
  assert params['lora_out'].shape == (3, *shape[inputs:])
  assert np.std(params['lora_in']) > 0.1
  b = jax.random.normal(jax.random.key(2), params['lora_out'].shape)
  kernel = plain_variables['params']['kernel'].value
  kernel += (alpha or 3) / 3 * jnp.tensordot(params['lora_in'], b, 1)
  assert_close(
    module.apply({'params': params | {'lora_out': b}}, x),
    plain.apply({'params': {'kernel': kernel}}, x),
  )
