"""Tests `lengen_jax/attention/scaling.py`."""

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import errors
from lengen_jax.attention import scaling
from lengen_jax.models import layers

INDEX = jnp.array([[0, 1, 9, 99, 8190, 8191, 100_000]])


def scale(spec, index=INDEX, lengths=None, num_heads=2, variables=None):
  module = scaling.create(spec, num_heads=num_heads)
  return module.apply(variables or {}, index, lengths=lengths)


def test_none_is_none():
  assert scale('none') is None


def test_log_n():
  n = np.float64(INDEX) + 1
  want = np.log(n) / np.log(64)
  got = scale('log_n(train_length=64, clip=False)')
  np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)
  got = scale('log_n(train_length=64)')
  np.testing.assert_allclose(got, np.maximum(want, 1), rtol=1e-6)
  lengths = jnp.array([[4096]])
  got = scale("log_n(train_length=64, per='sequence')", lengths=lengths)
  np.testing.assert_allclose(got, np.full(INDEX.shape, 2.0), rtol=1e-6)
  assert got.dtype == jnp.float32
  with pytest.raises(errors.LengthError, match='needs lengths'):
    scale("log_n(train_length=64, per='sequence')")


def test_ssmax():
  s = jnp.array([0.5, 2.0])
  got = scale('ssmax', variables={'params': {'s': s}})
  want = np.log(np.float64(INDEX) + 1)[..., None] * np.array([0.5, 2.0])
  np.testing.assert_allclose(got, want, rtol=1e-6)
  module = scaling.create('ssmax(init=0.25)', num_heads=3)
  variables = module.init(jax.random.key(0), INDEX)
  assert variables['params']['s'].names == ('heads',)
  np.testing.assert_array_equal(nn.unbox(variables)['params']['s'], [0.25] * 3)


def test_llama4_steps_at_the_right_token():
  got = np.asarray(scale('llama4'))[0]
  steps = [0, 0, 0, 0, 0, 1, 12]
  np.testing.assert_allclose(got, 1 + 0.1 * np.log1p(steps), rtol=1e-6)


@pytest.mark.parametrize(
  'spec, causal',
  [
    ('log_n(train_length=4)', False),
    ('ssmax(init=0.4)', True),
    ('llama4(train_length=4)', True),
  ],
)
def test_in_attention(spec, causal, assert_close):
  """Equal to scaling each query's logits by hand; packed equals separate."""
  layer = layers.Attention(2, 8, attention_scale=spec, causal=causal)
  plain = layers.Attention(2, 8, causal=causal)
  x = jax.random.normal(jax.random.key(0), (1, 12, 16))
  variables = layer.init(jax.random.key(1), x)
  params = nn.unbox(variables)['params']
  y = layer.apply({'params': params}, x)
  index = jnp.arange(12)[None] if causal else jnp.full((1, 12), 11)
  own = {'params': params.get('attention_scale', {})}
  factor = scale(spec, index, variables=own)
  factor = factor if factor.ndim == 3 else factor[..., None]
  # Queries are linear in their projection, so scaling them scales logits.
  without = {k: v for k, v in params.items() if k != 'attention_scale'}
  for row in (0, 5, 11):
    kernel = without['query']['kernel'] * factor[0, row][None, :, None]
    changed = {**without, 'query': {'kernel': kernel}}
    want = plain.apply({'params': changed}, x)
    assert_close(y[:, row], want[:, row])

  segments = jnp.array([[1] * 5 + [2] * 7])
  lengths = jnp.array([[5] * 5 + [7] * 7])
  packed = layer.apply(
    {'params': params}, x, segment_ids=segments, lengths=lengths
  )
  first = layer.apply({'params': params}, x[:, :5])
  second = layer.apply({'params': params}, x[:, 5:])
  assert_close(packed, jnp.concatenate([first, second], 1))


@pytest.mark.parametrize(
  'spec, want',
  [
    ('ssmax', 0),
    ('log_n(train_length=4)', 1),
    ('log_n(train_length=4, clip=False)', 0),
    ("log_n(train_length=4, per='sequence', clip=False)", 0),
    ('llama4(train_length=4)', 1),
  ],
)
def test_padding_of_length_0_is_finite(spec, want):
  """The last key it sees is then the one before the first."""
  module = scaling.create(spec, num_heads=2)
  index, lengths = jnp.array([[-1, -1]]), jnp.array([[0, 0]])
  got, _ = module.init_with_output(jax.random.key(0), index, lengths=lengths)
  np.testing.assert_array_equal(got, np.full(got.shape, want))


def test_far_out_in_a_bf16_model():
  """Lengths beyond 256 must not be rounded to the model's dtype."""
  index = jnp.arange(8185, 8195)[None]
  got = np.asarray(scale('llama4', index))[0]
  assert (got[:6] == 1).all() and (got[6:] > 1.06).all()


@pytest.mark.parametrize(
  'spec, message',
  [
    ('logn', "'logn'; did you mean 'log_n'"),
    ('log_n', 'train_length of log_n is None; it must be >= 2'),
    ("log_n(train_length=8, per='row')", "'row'"),
    ('constant(factor=0)', 'factor of constant is 0.*; it must be > 0'),
    ('llama4(train_length=0)', 'train_length of llama4 is 0; it must be >= 1'),
  ],
)
def test_bad_keys(spec, message):
  with pytest.raises(errors.SpecError, match=message):
    scaling.create(spec, num_heads=1)
