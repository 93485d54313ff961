"""Tests `lengen_jax/encodings/relative.py`.

Golden arrays: `golden/encodings/README.json`, files ruoss_official (txl) and
shaw_key_hf.
"""

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import encodings, errors
from tests import helpers

FOLDER = helpers.GOLDEN / 'encodings'
RUOSS = np.load(FOLDER / 'ruoss_official.npz')
SHAW = np.load(FOLDER / 'shaw_key_hf.npz')
HEADS, HEAD_DIM = 2, 6


def content(encoding, params, q, k, q_positions, k_positions):
  return encoding.apply(
    {'params': params}, q, k, q_positions, k_positions, method='content_bias'
  )


def create(spec, seed=0):
  """An encoding, its parameters, q, k, and positions with gaps."""
  encoding = encodings.create(spec, num_heads=HEADS, head_dim=HEAD_DIM)
  rng = np.random.default_rng(seed)
  q = rng.normal(size=(2, 5, HEADS, HEAD_DIM)).astype(np.float32)
  k = rng.normal(size=(2, 7, HEADS, HEAD_DIM)).astype(np.float32)
  q_positions = np.sort(rng.choice(40, (2, 5)), axis=1).astype(np.int32)
  k_positions = np.sort(rng.choice(40, (2, 7)), axis=1).astype(np.int32)
  variables = encoding.init(
    jax.random.key(seed), q, k, q_positions, k_positions, method='content_bias'
  )
  params = jax.tree.map(np.asarray, nn.unbox(variables))['params']
  return encoding, params, q, k, q_positions, k_positions


@pytest.mark.parametrize(
  'kind, spec',
  [
    ('bi', 'transformer_xl'),
    ('causal', 'transformer_xl(official_compat=True)'),
  ],
)
def test_transformer_xl_golden(kind, spec, assert_close):
  prefix = f'txl/{kind}/n7'
  q, k = RUOSS[f'{prefix}/q'], RUOSS[f'{prefix}/k']
  shape = q.shape[2:]
  params = {
    'u': RUOSS[f'{prefix}/param/root.relpos_contentbias'].reshape(shape),
    'v': RUOSS[f'{prefix}/param/root.relpos_relativebias'].reshape(shape),
    'projection': {'kernel': RUOSS[f'{prefix}/param/linear.w']},
  }
  encoding = encodings.create(spec, num_heads=shape[0], head_dim=shape[1])
  p = jnp.arange(7)
  got = np.einsum('bqhd,bkhd->bhqk', q, k) + content(
    encoding, params, q, k, p, p
  )
  want = RUOSS[f'{prefix}/logits_unscaled']
  if kind == 'causal':
    got, want = np.tril(got), np.tril(want)
  assert_close(got, want, 2e-6)


def test_transformer_xl_pair_by_pair(assert_close):
  encoding, params, q, k, q_positions, k_positions = create('transformer_xl')
  kernel = params['projection']['kernel'].astype(np.float64)
  inner = HEADS * HEAD_DIM
  frequency = 10000.0 ** (-np.arange(0, inner, 2) / inner)
  want = np.zeros((2, HEADS, 5, 7))
  for b, h, i, j in np.ndindex(*want.shape):
    t = (k_positions[b, j] - q_positions[b, i]) * frequency
    r = np.concatenate([np.sin(t), np.cos(t)]) @ kernel
    r = r.reshape(HEADS, HEAD_DIM)[h]
    want[b, h, i, j] = (q[b, i, h] + params['v'][h]) @ r
    want[b, h, i, j] += params['u'][h] @ k[b, j, h]
  got = content(encoding, params, q, k, q_positions, k_positions)
  assert_close(got, want, 1e-5)
  assert (
    encoding.apply(
      {'params': params},
      np.zeros((2, HEADS, 5, 7), np.float32),
      q_positions,
      k_positions,
      method='content_values',
    )
    is None
  )


def test_transformer_xl_far_out_sees_differences_only(assert_close):
  encoding, params, q, k, q_positions, k_positions = create('transformer_xl')
  near = content(encoding, params, q, k, q_positions, k_positions)
  far = content(
    encoding, params, q, k, q_positions + 10**6, k_positions + 10**6
  )
  assert_close(far, near, 1e-6)


def test_shaw_golden(assert_close):
  q, k = (np.swapaxes(SHAW[f'sym8/{x}'], 1, 2) for x in 'qk')
  table = SHAW['sym8/table_k']
  encoding = encodings.create(
    'shaw(left=8, right=8)', num_heads=q.shape[2], head_dim=q.shape[3]
  )
  p = jnp.arange(q.shape[1])
  params = {'key_table': table, 'value_table': table}
  logits = np.einsum('bqhd,bkhd->bhqk', q, k) + content(
    encoding, params, q, k, p, p
  )
  got = jax.nn.softmax(logits / q.shape[3] ** 0.5, -1)
  assert_close(got, SHAW['sym8/probs'], 1e-5)


def test_shaw_pair_by_pair(assert_close):
  encoding, params, q, k, q_positions, k_positions = create(
    'shaw(left=9, right=3)'
  )
  rng = np.random.default_rng(1)
  weights = rng.random((2, HEADS, 5, 7)).astype(np.float32)
  logits = np.zeros((2, HEADS, 5, 7))
  values = np.zeros((2, 5, HEADS, HEAD_DIM))
  for b, h, i, j in np.ndindex(*logits.shape):
    row = int(np.clip(k_positions[b, j] - q_positions[b, i], -9, 3)) + 9
    logits[b, h, i, j] = q[b, i, h] @ params['key_table'][row]
    values[b, i, h] += weights[b, h, i, j] * params['value_table'][row]
  assert_close(
    content(encoding, params, q, k, q_positions, k_positions), logits
  )
  got = encoding.apply(
    {'params': params},
    weights,
    q_positions,
    k_positions,
    method='content_values',
  )
  assert_close(got, values)


@pytest.mark.parametrize('spec', ['shaw', 'transformer_xl'])
def test_tiles_are_slices_of_the_whole(spec, assert_close):
  encoding, params, q, k, q_positions, k_positions = create(spec)
  content_fn = encoding.apply({'params': params}, method='content_fn')
  whole = content_fn.logits(q, k, q_positions, k_positions)
  part = content_fn.logits(
    q[:, 1:4], k[:, 2:], q_positions[:, 1:4], k_positions[:, 2:]
  )
  assert_close(part, whole[:, :, 1:4, 2:], 1e-5)


@pytest.mark.parametrize(
  'spec, tree',
  [
    (
      'shaw(left=4, right=2)',
      {'key_table': (7, HEAD_DIM), 'value_table': (7, HEAD_DIM)},
    ),
    (
      'transformer_xl',
      {
        'u': (HEADS, HEAD_DIM),
        'v': (HEADS, HEAD_DIM),
        'projection': {'kernel': (HEADS * HEAD_DIM, HEADS * HEAD_DIM)},
      },
    ),
  ],
)
def test_parameter_trees(spec, tree):
  _, params, *_ = create(spec)
  assert jax.tree.map(np.shape, params) == tree


def test_bad_keys():
  with pytest.raises(
    errors.SpecError, match='left of shaw is -1; it must be >= 0'
  ):
    create('shaw(left=-1)')
  with pytest.raises(errors.SpecError, match='even, got 1 . 3'):
    encodings.create('transformer_xl', num_heads=1, head_dim=3)
