"""Tests `lengen_jax/attention/encoded.py`."""

import functools

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import attention, encodings, errors
from lengen_jax.positions import Distances, PerHead

B, Q, K, H, D = 2, 5, 9, 4, 8


def arrays(key_heads=H):
  rng = np.random.default_rng(0)
  shapes = (B, Q, H, D), *[(B, K, key_heads, D)] * 2
  return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def given(*shape, seed=1):
  return np.random.default_rng(seed).uniform(0, 9, shape).astype(np.float32)


def bound(spec):
  """An encoding bound to parameters that are not as small as initial ones."""
  encoding = encodings.create(spec, num_heads=H, head_dim=D)
  variables = nn.unbox(encoding.init(jax.random.key(0), method='bias_fn'))
  return encoding.bind(jax.tree.map(lambda x: 4 * x - 0.3, variables))


def literal(q, k, v, bias=0.0, scale=D**-0.5):
  """Causal attention of the last queries, float64; bias `[B, H, Q, K]`."""
  k, v = (np.repeat(x, H // x.shape[2], axis=2) for x in (k, v))
  q, k, v = (np.float64(x) for x in (q, k, v))
  logits = scale * np.einsum('bqhd,bkhd->bhqk', q, k) + bias
  visible = np.tril(np.ones((Q, K), bool), K - Q)
  weights = np.exp(logits - logits.max(-1, keepdims=True)) * visible
  weights /= weights.sum(-1, keepdims=True)
  return np.einsum('bhqk,bkhd->bqhd', weights, v)


def attend(encoding, q, k, v, **options):
  options = {'causal': True, 'q_offset': K - Q} | options
  return attention.with_encoding(encoding, q, k, v, **options)


def standard():
  index = jnp.arange(K)[None]
  return index[:, K - Q :], index


@pytest.mark.parametrize('key_heads', [H, 2])
def test_rotation(key_heads, assert_close):
  q, k, v = arrays(key_heads)
  encoding, (i, j) = bound('rope'), standard()
  turned = encoding.rotate(q, k, i, j)
  assert_close(attend(encoding, q, k, v), literal(*turned, v))
  own = {'q_positions': 2.5 * i, 'k_positions': 2.5 * j}
  turned = encoding.rotate(q, k, *own.values())
  assert_close(attend(encoding, q, k, v, **own), literal(*turned, v))
  # Keys of a cache are rotated already.
  got = attend(encoding, *turned, v, rotate=False)
  assert_close(got, literal(*turned, v))


@pytest.mark.parametrize('key_heads', [H, 2])
def test_polar_rotation_is_scaled_as_heads_are(key_heads, assert_close):
  q, k, v = arrays(key_heads)
  encoding, (i, j) = bound('pope'), standard()
  turned = encoding.rotate(q, k, i, j)
  assert turned[0].shape[-1] == 2 * D
  assert_close(attend(encoding, q, k, v), literal(*turned, v))
  got = attend(encoding, q, k, v, scale=0.5)
  assert_close(got, literal(*turned, v, scale=0.5))


@pytest.mark.parametrize('implementation', ['reference', 'blockwise'])
def test_bias(implementation, assert_close):
  q, k, v = arrays(2)
  encoding, (i, j) = bound('alibi'), standard()
  bias = np.asarray(encoding.bias(i, j))
  got = attend(encoding, q, k, v, implementation=implementation)
  assert_close(got, literal(q, k, v, bias))
  # Buckets differ by direction, and the last query sees the same keys.
  buckets = bound('t5(num_buckets=4, max_distance=8)')
  one, both = (
    attend(buckets, q, k, v, causal=causal)[:, -1] for causal in (True, False)
  )
  assert np.abs(both - one).max() > 1e-3


@pytest.mark.parametrize('implementation', ['reference', 'blockwise'])
def test_content(implementation, assert_close):
  q, k, v = arrays()
  encoding, (i, j) = bound('transformer_xl'), standard()
  content = encoding.content_bias(q, k, i, j)
  bias = D**-0.5 * np.asarray(content)
  got = attend(encoding, q, k, v, implementation=implementation)
  assert_close(got, literal(q, k, v, bias))


@pytest.mark.parametrize('spec', ['rope', 'pope', 'kerple_log'])
def test_fewer_key_heads_at_positions_per_head(spec, assert_close):
  """Query heads of a key head have positions of their own."""
  q, k, v = arrays(2)
  encoding, i, j = bound(spec), given(B, Q, H), given(B, K, H, seed=2)
  full_k, full_v = (np.repeat(x, H // 2, axis=2) for x in (k, v))
  if spec == 'kerple_log':
    want = literal(q, k, v, np.asarray(encoding.bias(i, j)))
  else:
    want = literal(*encoding.rotate(q, full_k, i, j), full_v)
  for own in ((i, j), (PerHead(i), PerHead(j))):
    got = attend(encoding, q, k, v, q_positions=own[0], k_positions=own[1])
    assert_close(got, want)


def test_rotated_leaves_out_what_does_not_rotate():
  q, k, _ = arrays(2)
  i, j = given(B, Q, H), given(B, K, H)
  got = attention.rotated(bound('alibi'), q, k, i, j)
  assert got[0] is q and got[1] is k
  got = attention.rotated(bound('rope'), q, k, i, j)
  assert got[1].shape == (B, K, H, D)


# Values of bfloat16 from 8,192 on are 64 apart.
FAR = 10_000


@functools.cache
def far(spec, dtype, rounded):
  """Attention at positions per head from 10,000 on, float32."""
  encoding = bound(spec)
  q, k, v = (jnp.asarray(x, dtype) for x in arrays())
  i, j = (FAR + given(B, n, H, seed=n) * 9 for n in (Q, K))
  if rounded:
    i, j = (np.float32(jnp.asarray(p, jnp.bfloat16)) for p in (i, j))
  y = attend(encoding, q, k, v, q_positions=i, k_positions=j)
  assert y.dtype == dtype
  return np.asarray(y, np.float32)


@pytest.mark.parametrize(
  'spec', ['linear(slope=0.1)', 'fire(init_threshold=8.)', 'kerple_log', 'rope']
)
def test_far_positions_per_head_in_bfloat16(spec):
  want = far(spec, jnp.float32, False)
  limit = 0.03 * np.abs(want).max()
  assert np.abs(far(spec, jnp.bfloat16, False) - want).max() < limit
  # The control: positions that are rounded.
  assert np.abs(far(spec, jnp.float32, True) - want).max() > 1.5 * limit


@pytest.mark.parametrize(
  'encoding, options, words',
  [
    ('rope', {}, 'bound to its parameters'),
    (encodings.create('rope', num_heads=H, head_dim=D), {}, 'bind'),
    (
      encodings.create('alibi', num_heads=H, head_dim=4).bind({}),
      {},
      'head_dim=4',
    ),
    (
      encodings.create('sinusoidal', num_heads=H, head_dim=D).bind({}),
      {},
      'acts at the input',
    ),
    (
      encodings.create('rope', num_heads=H, head_dim=D).bind({}),
      {'q_positions': given(B, Q, 3), 'k_positions': given(B, K, 3)},
      r'must be float32 \(2, 5, 4\)',
    ),
    (
      encodings.create('rope', num_heads=H, head_dim=D).bind({}),
      {'q_positions': given(B, Q, H), 'k_positions': given(B, K)},
      'per head for both or for neither',
    ),
    (
      encodings.create('rope', num_heads=H, head_dim=D).bind({}),
      {
        'q_positions': Distances(jnp.arange(Q)[None]),
        'k_positions': Distances(jnp.arange(K)[None]),
      },
      'positions of tokens',
    ),
    (
      'shaw',
      {'q_positions': given(B, Q), 'k_positions': given(B, K)},
      'shaw takes whole positions only',
    ),
    (
      'fire',
      {
        'q_positions': Distances(jnp.arange(Q)[None]),
        'k_positions': Distances(jnp.arange(K)[None]),
      },
      'fire needs a position per token',
    ),
    (
      'transformer_xl(official_compat=True)',
      {
        'q_segment_ids': np.ones((B, Q), np.int32),
        'k_segment_ids': np.ones((B, K), np.int32),
      },
      'depends on the number of keys',
    ),
  ],
)
def test_refused(encoding, options, words):
  if isinstance(encoding, str) and encoding != 'rope':
    encoding = bound(encoding)
  with pytest.raises(errors.LengenError, match=words):
    attend(encoding, *arrays(), **options)
