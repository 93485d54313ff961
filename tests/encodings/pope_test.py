"""Tests `lengen_jax/encodings/pope.py`.

Arrays of another implementation are in `tests/attention`.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax import encodings

B, L, H, D = 2, 5, 3, 6


def create(spec='pope'):
  return encodings.create(spec, num_heads=H, head_dim=D)


def arrays(*shapes):
  rng = np.random.default_rng(0)
  return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def rotate(encoding, delta, q, k, i, j):
  variables = {'params': {'delta': delta}}
  return encoding.apply(variables, q, k, i, j, method='rotate')


def logits(encoding, delta, q, k, i, j):
  return jnp.einsum('bqhd,bkhd->bhqk', *rotate(encoding, delta, q, k, i, j))


def literal(delta, q, k, i, j, base=1e4):
  """Logits before scaling, by the formula, float64; positions `[B, L, H]`."""
  q, k = (np.log1p(np.exp(np.float64(x))) for x in (q, k))
  found = np.zeros((B, H, L, L))
  for c in range(D):
    distance = i[:, :, None] - j[:, None]
    angle = distance * base ** (-c / D) - np.float64(delta[:, c])
    product = q[:, :, None, :, c] * k[:, None, :, :, c]
    found += np.moveaxis(product * np.cos(angle), 3, 1)
  return found


def test_formula(assert_close):
  q, k, i, j, delta = arrays(*[(B, L, H, D)] * 2, *[(B, L, H)] * 2, (H, D))
  i, j = 9 * i, 9 * j
  encoding = create('pope(base=50.)')
  rq, rk = rotate(encoding, delta, q, k, i, j)
  assert rq.shape == rk.shape == (B, L, H, 2 * D)
  got = logits(encoding, delta, q, k, i, j)
  assert_close(got, literal(delta, q, k, i, j, base=50.0), 5e-6)
  # Positions that are the same for all heads.
  same = np.broadcast_to(i[..., :1], i.shape)
  assert_close(
    logits(encoding, delta, q, k, i[..., 0], i[..., 0]),
    literal(delta, q, k, same, same, base=50.0),
    5e-6,
  )
  half = jnp.asarray(q, jnp.bfloat16)
  assert rotate(encoding, delta, half, half, i, j)[0].dtype == jnp.bfloat16


def test_fewer_key_heads(assert_close):
  """Phases belong to query heads."""
  q, k, delta = arrays((B, L, H, D), (B, L, 1, D), (H, D))
  i = np.arange(L, dtype=np.int32)[None]
  encoding = create()
  rq, rk = rotate(encoding, delta, q, k, i, i)
  assert rk.shape == (B, L, 1, 2 * D)
  got = jnp.einsum('bqhd,bkd->bhqk', rq, rk[:, :, 0])
  index = np.broadcast_to(i[..., None], (B, L, H))
  repeated = np.repeat(k, H, axis=2)
  assert_close(got, literal(delta, q, repeated, index, index), 5e-6)


def test_gradient_at_the_initial_phase_is_whole(assert_close):
  """A clamp to [-2 pi, 0] in the forward pass would halve or cut it."""
  q, k, cotangent = arrays(*[(B, L, H, D)] * 2, (B, H, L, L))
  i = np.arange(L, dtype=np.float32)[None]
  encoding = create()
  variables = encoding.init(jax.random.key(0), q, k, i, i, method='rotate')
  delta = variables['params']['delta'].unbox()
  np.testing.assert_array_equal(delta, np.zeros((H, D)))
  got = jax.grad(
    lambda delta: jnp.vdot(logits(encoding, delta, q, k, i, i), cotangent)
  )(delta)
  index = np.broadcast_to(i[..., None], (B, L, H))
  step, want = 1e-6, np.zeros((H, D))
  for h in range(H):
    for c in range(D):
      moved = np.zeros((2, H, D))
      moved[:, h, c] = step, -step
      above, below = (
        np.vdot(literal(x, q, k, index, index), cotangent) for x in moved
      )
      want[h, c] = (above - below) / (2 * step)
  assert_close(got, want, 1e-5)


def test_project():
  delta = jnp.array([[1.0, 0.0, -1.0, -2 * math.pi, -7.0]])
  got = create().project({'delta': delta, 'other': delta})
  np.testing.assert_allclose(
    got['delta'], [[0.0, 0.0, -1.0, -2 * math.pi, -2 * math.pi]]
  )
  np.testing.assert_array_equal(got['other'], delta)


def test_facts():
  encoding = create()
  assert encoding.caches_unrotated_keys and not encoding.length_dependent
  assert encodings.kind(encoding) == 'rotation'
  assert not create('rope').caches_unrotated_keys
