"""Tests `lengen_jax/attention/reference.py` against a slow numpy loop."""

from typing import Any

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import attention, encodings

B, Q, K, H, G, D = 2, 5, 7, 4, 2, 3


def random_qkv(q_length=Q, k_length=K, k_heads=G, seed=0):
  rng = np.random.default_rng(seed)
  return (
    np.float32(rng.normal(size=(B, q_length, H, D))),
    np.float32(rng.normal(size=(B, k_length, k_heads, D))),
    np.float32(rng.normal(size=(B, k_length, k_heads, D))),
  )


def loop(
  q,
  k,
  v,
  *,
  causal,
  bias=None,
  content_logits=None,
  content_values=None,
  q_segment_ids=None,
  k_segment_ids=None,
  q_offset=0,
  k_lengths=None,
  window=None,
  sinks=0,
  scale=None,
  logit_scale=None,
):
  """Attention in float64, one query and head at a time.

  `bias` and `content_logits` are arrays `[B, H, Q, K]`, `content_values` maps
  weights of one query and head, with its indices, to `[D]`.
  """
  q, k, v = (np.float64(x) for x in (q, k, v))
  offsets = np.broadcast_to(q_offset, (B,))
  scale = q.shape[-1] ** -0.5 if scale is None else scale
  y = np.zeros((*q.shape[:3], v.shape[-1]))
  for b, i, h in np.ndindex(q.shape[:3]):
    g = h // (q.shape[2] // k.shape[2])
    index = offsets[b] + i
    logits = {}
    for j in range(k.shape[1]):
      if causal and j > index:
        continue
      if k_lengths is not None and j >= k_lengths[b]:
        continue
      first = 0
      if q_segment_ids is not None:
        if q_segment_ids[b, i] != k_segment_ids[b, j]:
          continue
        first = j
        while first and k_segment_ids[b, first - 1] == k_segment_ids[b, j]:
          first -= 1
      near = window is None or abs(index - j) < window
      if not near and j - first >= sinks:
        continue
      logit = q[b, i, h] @ k[b, j, g]
      if content_logits is not None:
        logit += content_logits[b, h, i, j]
      logit *= scale
      if logit_scale is not None:
        factor = logit_scale[b, i]
        logit *= factor if np.ndim(factor) == 0 else factor[h]
      if bias is not None:
        logit += bias[b, h, i, j]
      logits[j] = logit
    if not logits:
      continue
    top = max(logits.values())
    total = sum(np.exp(x - top) for x in logits.values())
    weights = np.zeros(k.shape[1])
    for j, logit in logits.items():
      weights[j] = np.exp(logit - top) / total
    y[b, i, h] = weights @ v[b, :, g]
    if content_values is not None:
      y[b, i, h] += content_values(weights, b, i)
  return y


@pytest.mark.parametrize(
  'options',
  [
    dict(causal=True),
    dict(causal=False),
    dict(causal=True, q_offset=2),
    dict(causal=True, q_offset=np.array([2, 0])),
    dict(causal=False, k_lengths=np.array([7, 3])),
    dict(causal=True, k_lengths=np.array([2, 5])),
    dict(causal=True, window=3, q_offset=2),
    dict(causal=False, window=2),
    dict(causal=True, window=1),
    dict(causal=True, window=2, sinks=1, q_offset=2),
    dict(causal=False, window=2, sinks=2),
    dict(causal=True, window=2, sinks=1, q_offset=np.array([1, 2])),
    dict(causal=True, scale=1.0),
    dict(causal=False, scale=0.3, k_lengths=np.array([6, 2]), window=4),
  ],
  ids=str,
)
def test_masks(options, assert_close):
  q, k, v = random_qkv()
  got = attention.dot_product_attention(q, k, v, **as_jax(options))
  assert got.dtype == jnp.float32
  assert_close(got, loop(q, k, v, **options))


@pytest.mark.parametrize(
  'options',
  [
    dict(causal=True),
    dict(causal=False),
    dict(causal=True, window=2),
    dict(causal=True, window=2, sinks=1),
    dict(causal=False, window=2, sinks=2),
    dict(causal=False, k_lengths=np.array([5, 4])),
  ],
  ids=str,
)
def test_packed(options, assert_close):
  """Sinks are the first keys of each segment, not of the row."""
  q, k, v = random_qkv(K, K)
  ids = np.array([[1, 1, 1, 1, 2, 2, 2], [3, 4, 4, 4, 4, 4, 0]])
  options = dict(options, q_segment_ids=ids, k_segment_ids=ids)
  got = attention.dot_product_attention(q, k, v, **as_jax(options))
  assert_close(got, loop(q, k, v, **options))


@pytest.mark.parametrize('k_heads', [1, 2, 4])
def test_grouped_heads(k_heads, assert_close):
  q, k, v = random_qkv(k_heads=k_heads)
  got = attention.dot_product_attention(q, k, v, causal=False)
  assert_close(got, loop(q, k, v, causal=False))


@pytest.mark.parametrize('shape', [(B, Q), (B, Q, H), (1, Q), (B, Q, 1)])
def test_logit_scale(shape, assert_close):
  """It multiplies the scaled logits, and not the bias."""
  q, k, v = random_qkv()
  rng = np.random.default_rng(1)
  logit_scale = np.float32(rng.uniform(0.5, 2, shape))
  bias = np.float32(rng.normal(size=(B, H, Q, K)))
  got = attention.dot_product_attention(
    q, k, v, causal=False, logit_scale=jnp.asarray(logit_scale), bias=bias
  )
  full = np.broadcast_to(
    logit_scale if len(shape) == 3 else logit_scale[..., None], (B, Q, H)
  )
  assert_close(got, loop(q, k, v, causal=False, logit_scale=full, bias=bias))


@pytest.mark.parametrize(
  'shape',
  [(B, H, Q, K), (1, H, Q, K), (H, Q, K), (1, Q, K), (Q, K), (B, 1, 1, K)],
)
def test_bias_as_an_array(shape, assert_close):
  q, k, v = random_qkv()
  bias = np.float32(np.random.default_rng(1).normal(size=shape))
  got = attention.dot_product_attention(
    q, k, v, causal=True, q_offset=2, bias=jnp.asarray(bias)
  )
  full = np.broadcast_to(bias, (B, H, Q, K))
  assert_close(got, loop(q, k, v, causal=True, q_offset=2, bias=full))


def distance_bias(slopes, q_positions, k_positions):
  """ALiBi's bias in float64, `[B, H, Q, K]`."""
  d = np.float64(q_positions)[:, :, None] - np.float64(k_positions)[:, None]
  return -np.float64(slopes)[None, :, None, None] * np.abs(d)[:, None]


def alibi():
  encoding = encodings.create('alibi', num_heads=H, head_dim=D)
  return encoding.apply({}, method='bias_fn')


@pytest.mark.parametrize('batched', [True, False])
def test_bias_as_a_function_of_given_positions(batched, assert_close):
  q, k, v = random_qkv()
  rng = np.random.default_rng(1)
  i, j = (np.float32(rng.uniform(0, 20, (B, n))) for n in (Q, K))
  if not batched:
    i, j = i[0], j[0]
  bias_fn = alibi()
  got = attention.dot_product_attention(
    q,
    k,
    v,
    causal=True,
    q_offset=2,
    bias=bias_fn,
    q_positions=jnp.asarray(i),
    k_positions=jnp.asarray(j),
  )
  bias = distance_bias(
    bias_fn.params['slopes'],
    *(np.broadcast_to(x, (B, x.shape[-1])) for x in (i, j)),
  )
  # Masks go by index, whatever the positions are.
  assert_close(got, loop(q, k, v, causal=True, q_offset=2, bias=bias))


@pytest.mark.parametrize('q_offset', [0, 2, np.array([2, 0])], ids=str)
def test_bias_as_a_function_of_standard_positions(q_offset, assert_close):
  """Without positions a query stands at its offset among the keys."""
  q, k, v = random_qkv()
  bias_fn = alibi()
  got = attention.dot_product_attention(
    q, k, v, causal=True, bias=bias_fn, q_offset=as_jax(q_offset)
  )
  i = np.broadcast_to(q_offset, (B,))[:, None] + np.arange(Q)
  j = np.broadcast_to(np.arange(K), (B, K))
  bias = distance_bias(bias_fn.params['slopes'], i, j)
  assert_close(got, loop(q, k, v, causal=True, q_offset=q_offset, bias=bias))


@pytest.mark.parametrize('side', ['q', 'k'])
def test_positions_of_one_side_may_lack_the_batch(side, assert_close):
  q, k, v = random_qkv()
  i = jnp.array([[3, 4, 5, 6, 7], [2, 3, 4, 5, 6]])
  j = jnp.array([[0, 1, 2, 3, 4, 5, 6], [0, 2, 4, 6, 8, 10, 12]])
  if side == 'q':
    i = i[0]
  else:
    j = j[0]
  bias_fn = alibi()
  got = attention.dot_product_attention(
    q, k, v, causal=False, bias=bias_fn, q_positions=i, k_positions=j
  )
  bias = distance_bias(
    bias_fn.params['slopes'],
    np.broadcast_to(i, (B, Q)),
    np.broadcast_to(j, (B, K)),
  )
  assert_close(got, loop(q, k, v, causal=False, bias=bias))


@struct.dataclass
class TableContent:
  """Relative tables for keys and values, as an encoding by content has."""

  params: Any
  clip: int = struct.field(pytree_node=False)

  def _rows(self, name, q_positions, k_positions):
    d = q_positions[..., :, None] - k_positions[..., None, :]
    return self.params[name][jnp.clip(d, -self.clip, self.clip) + self.clip]

  def logits(self, q, k, q_positions, k_positions):
    del k
    rows = self._rows('keys', q_positions, k_positions)
    return jnp.einsum('bqhd,bqkd->bhqk', q, rows)

  def values(self, weights, q_positions, k_positions):
    rows = self._rows('values', q_positions, k_positions)
    return jnp.einsum('bhqk,bqkd->bqhd', weights, rows)


@pytest.mark.parametrize('k_heads', [H, G])
def test_content(k_heads, assert_close):
  """Content logits are scaled with those of the keys, the bias is not."""
  q, k, v = random_qkv(k_heads=k_heads)
  rng = np.random.default_rng(1)
  keys, values = np.float32(rng.normal(size=(2, 5, D)))
  i, j = (rng.integers(0, 9, (B, n)) for n in (Q, K))
  bias = np.float32(rng.normal(size=(B, H, Q, K)))
  logit_scale = np.float32(rng.uniform(0.5, 2, (B, Q)))
  row = np.clip(i[:, :, None] - j[:, None], -2, 2) + 2
  content = TableContent(
    {'keys': jnp.asarray(keys), 'values': jnp.asarray(values)}, 2
  )
  got = attention.dot_product_attention(
    q,
    k,
    v,
    causal=True,
    q_offset=2,
    bias=jnp.asarray(bias),
    content=content,
    logit_scale=jnp.asarray(logit_scale),
    q_positions=jnp.asarray(i, jnp.int32),
    k_positions=jnp.asarray(j, jnp.int32),
  )
  want = loop(
    q,
    k,
    v,
    causal=True,
    q_offset=2,
    bias=bias,
    logit_scale=logit_scale,
    content_logits=np.einsum('bqhd,bqkd->bhqk', q, keys[row]),
    content_values=lambda weights, b, i: weights @ values[row[b, i]],
  )
  assert_close(got, want)


def test_content_without_values(assert_close):
  @struct.dataclass
  class LogitsOnly:
    def logits(self, q, k, q_positions, k_positions):
      return jnp.full((B, H, Q, K), 2.0) * k_positions[None, None, None]

    def values(self, weights, q_positions, k_positions):
      return None

  q, k, v = random_qkv()
  got = attention.dot_product_attention(
    q, k, v, causal=False, content=LogitsOnly()
  )
  logits = np.broadcast_to(2.0 * np.arange(K), (B, H, Q, K))
  assert_close(got, loop(q, k, v, causal=False, content_logits=logits))


def test_a_query_without_visible_keys_gets_nothing(assert_close):
  q, k, v = random_qkv()
  q_ids = jnp.array([[1, 1, 9, 1, 1], [2, 2, 2, 2, 9]])
  k_ids = jnp.array([[1] * K, [2] * K])

  def total(q, k, v):
    y = attention.dot_product_attention(
      q,
      k,
      v,
      causal=True,
      q_segment_ids=q_ids,
      k_segment_ids=k_ids,
      bias=alibi(),
    )
    return jnp.sum(y**2), y

  gradient, y = jax.grad(total, (0, 1, 2), has_aux=True)(q, k, v)
  assert np.isfinite(y).all()
  assert all(np.isfinite(g).all() for g in gradient)
  # A query without a visible key has gradient 0.
  np.testing.assert_array_equal(gradient[0][0, 2], 0)
  y = attention.dot_product_attention(
    q, k, v, causal=False, k_lengths=jnp.array([0, 3])
  )
  np.testing.assert_array_equal(y[0], 0)
  assert np.isfinite(y).all()


def test_bfloat16(assert_close):
  """Half in, half out; logits, bias and softmax stay float32."""
  half = [jnp.asarray(x, jnp.bfloat16) for x in random_qkv()]
  full = [x.astype(jnp.float32) for x in half]
  options = dict(causal=True, q_offset=2, bias=alibi())
  got = attention.dot_product_attention(*half, **options)
  assert got.dtype == jnp.bfloat16
  want = attention.dot_product_attention(*full, **options)
  # Weights and result are rounded once each, to 8 bits.
  assert_close(got, want, 2**-7)


def test_bfloat16_logits_are_not_rounded():
  """Two keys whose logits differ by less than 16 bits can tell."""
  q = jnp.full((1, 1, 1, 2), 16.0, jnp.bfloat16)
  k = jnp.array([[16.0, 1.0], [16.0, 1.0625]], jnp.bfloat16)[None, :, None]
  v = jnp.array([[0.0], [1.0]], jnp.bfloat16)[None, :, None]
  got = attention.dot_product_attention(q, k, v, causal=False, scale=1.0)
  # Logits 272 and 273; in bfloat16 both would be 272.
  np.testing.assert_allclose(
    np.float32(got).item(), 1 / (1 + np.exp(-1)), rtol=2**-8
  )


def test_gradients(assert_close):
  q, k, v = random_qkv()
  slopes = alibi().params['slopes']
  cotangent = np.random.default_rng(1).normal(size=q.shape)
  i = np.broadcast_to(np.arange(Q) + 2, (B, Q))
  j = np.broadcast_to(np.arange(K), (B, K))
  options = dict(causal=True, q_offset=2)

  def total(bias_fn):
    y = attention.dot_product_attention(q, k, v, bias=bias_fn, **options)
    return jnp.sum(y * cotangent)

  got = jax.grad(total)(alibi()).params['slopes']
  want = []
  for h in range(H):
    ends = []
    for step in (1e-5, -1e-5):
      moved = np.float64(slopes) + step * (np.arange(H) == h)
      y = loop(q, k, v, bias=distance_bias(moved, i, j), **options)
      ends.append(np.sum(y * cotangent))
    want.append((ends[0] - ends[1]) / 2e-5)
  assert_close(got, np.array(want), 1e-4)


def test_positions_have_no_gradient():
  q, k, v = random_qkv()

  def total(positions):
    y = attention.dot_product_attention(
      q,
      k,
      v,
      causal=False,
      bias=alibi(),
      q_positions=positions,
      k_positions=jnp.arange(7.0),
    )
    return jnp.sum(y**2)

  np.testing.assert_array_equal(jax.grad(total)(jnp.arange(5.0)), 0)


def as_jax(tree):
  return jax.tree.map(
    lambda x: jnp.asarray(x, jnp.int32) if isinstance(x, np.ndarray) else x,
    tree,
  )


def test_queries_before_all_keys_get_nothing():
  y = attention.dot_product_attention(
    *random_qkv(), causal=True, q_offset=-2, implementation='reference'
  )
  np.testing.assert_array_equal(y[:, :2], 0)


@pytest.mark.parametrize('implementation', ['reference', 'blockwise'])
def test_content_reads_the_key_head_of_a_group(implementation, assert_close):
  q, k, v = random_qkv(q_length=K)
  encoding = encodings.create('transformer_xl', num_heads=H, head_dim=D)
  variables = encoding.init(jax.random.key(0), method='bias_fn')
  bound = encoding.bind(jax.tree.map(lambda x: x + 1.0, variables))
  options = {'causal': True, 'implementation': implementation}
  got = attention.with_encoding(bound, q, k, v, **options)
  k, v = (np.repeat(x, H // G, axis=2) for x in (k, v))
  assert_close(attention.with_encoding(bound, q, k, v, **options), got)
