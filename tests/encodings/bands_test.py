"""Tests `lengen_jax/encodings/bands.py`: positions mapped by distance."""

import collections
import functools
import itertools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import attention, encodings, errors
from lengen_jax.attention import blockwise, call
from lengen_jax.positions import segment_positions
from lengen_jax.positions.kinds import take

GOLDEN = pathlib.Path(__file__).parent.parent / 'golden' / 'frontier'
H, D = 2, 8


def golden(name):
  arrays = np.load(GOLDEN / f'{name}.npz')
  inputs = [arrays[f'inputs/{key}'] for key in 'qkv']
  return arrays, inputs


def attended(spec, q, k, v, **options):
  options = {'causal': True} | options
  encoding = encodings.create(spec, num_heads=q.shape[2], head_dim=q.shape[3])
  return attention.with_encoding(
    encoding.bind({}), *map(jnp.asarray, (q, k, v)), **options
  )


def scaled_by_log(q, base):
  """Queries times max(1, log_base n), as in the authors' code."""
  n = np.arange(1, q.shape[1] + 1)
  return q * np.maximum(1, np.log(n) / np.log(base))[None, :, None, None]


def cases(name):
  with np.load(GOLDEN / f'{name}.npz') as arrays:
    keys = (key.rpartition('/') for key in arrays.files)
    return sorted(case for case, _, leaf in keys if leaf == 'out')


@pytest.mark.parametrize('case', cases('rerope'))
def test_golden_rerope(case, assert_close):
  arrays, (q, k, v) = golden('rerope')
  spec = f'window={int(arrays[f"{case}/window"])}'
  if case.startswith('leaky'):
    spec += f', leak={float(arrays[f"{case}/factor"])}'
  if not case.split('/')[1].startswith('no_scale'):
    q = scaled_by_log(q, float(arrays[f'{case}/training_length']))
  want = arrays[f'{case}/out']
  assert_close(attended(f'rerope({spec})', q, k, v), want)


def test_distances_of_lm_infinite(assert_close):
  """Sinks are `window` tokens away, and tokens in the window as they are."""
  q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 12, 1, D))
  distance_K = np.minimum(11 - np.arange(12), 4)
  seen_K = (distance_K < 4) | (np.arange(12) < 2)
  rope = encodings.create('rope', num_heads=1, head_dim=D)
  _, keys = rope.apply(
    {}, k, k, np.zeros(12, int), -distance_K, method='rotate'
  )
  logits_K = keys[0, :, 0] @ q[0, 11, 0] / D**0.5
  want = jax.nn.softmax(jnp.where(seen_K, logits_K, -jnp.inf)) @ v[0, :, 0]
  got = attended('lm_infinite(window=4, sinks=2)', q, k, v)
  assert_close(got[0, 11, 0], want)


@pytest.mark.parametrize('case', cases('selfextend'))
def test_golden_self_extend(case, assert_close):
  arrays, (q, k, v) = golden('selfextend')
  window, group = (int(arrays[f'{case}/{n}']) for n in ('window', 'group'))
  if (base := float(arrays[f'{case}/scale_base'])) > 0:
    q = scaled_by_log(q, base)
  spec = f'self_extend(window={window}, group={group})'
  assert_close(attended(spec, q, k, v), arrays[f'{case}/out'])


@pytest.mark.parametrize(
  'case', [case for case in cases('dca') if 'bf16' not in case]
)
def test_golden_dual_chunk(case, assert_close):
  arrays, (q, k, v) = golden('dca')
  chunk = int(arrays[f'{case}/chunk_size'])
  window = int(arrays[f'{case}/local_window'])
  q = q * arrays[f'{case}/mscale'] ** 2
  spec = f'dual_chunk(chunk={chunk}, window={window})'
  assert_close(attended(spec, q, k, v), arrays[f'{case}/out'])


SPECS = [
  'rerope(window=5)',
  'rerope(window=5, leak=3.)',
  'self_extend(window=6, group=3)',
  'dual_chunk(chunk=9, window=3)',
  'lm_infinite(window=5, sinks=2)',
]


@pytest.mark.parametrize('spec', SPECS)
def test_near_pairs(spec, assert_close):
  """Rows within the first band are RoPE's."""
  q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 24, H, D))
  whole, rope = (attended(one, q, k, v) for one in (spec, 'rope'))
  assert_close(whole[:, :5], rope[:, :5])
  assert np.abs(whole[:, -1] - rope[:, -1]).max() > 0.01


# Segments end within blocks of 8, and positions restart with them.
IDS = jnp.asarray(
  np.repeat([[1, 2, 3], [4, 5, 0]], [9, 14, 7] * 2).reshape(2, -1)
)
OPTIONS = {
  'packed': {
    'q_segment_ids': IDS,
    'k_segment_ids': IDS,
    'q_positions': segment_positions(IDS),
    'k_positions': segment_positions(IDS),
    'sink_logits': jnp.float32([0.5, -1.0, 2.0, 0.0]),
  },
  'bidirectional': {
    'causal': False,
    'k_lengths': jnp.array([30, 11]),
    'logit_cap': 2.0,
    'logit_scale': 1 + jnp.arange(30.0)[None].repeat(2, 0) / 30,
  },
  # Queries before the keys see none.
  'window': {'window': 11, 'sinks': 2, 'q_offset': jnp.array([-2, 1])},
  'per_head': {},
}


def test_padding_beyond_a_cache_does_not_hide_tokens(monkeypatch, assert_close):
  """Of a block with both, also at positions that are not integers."""
  monkeypatch.setattr(blockwise, 'block_size', lambda *_: 8)
  q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 16, 2, D))
  index = jnp.arange(16)[None]
  i = take(index / 4.0, index.at[:, 10:].add(20))
  assert np.isfinite(i).all()
  got, want = (
    attended(
      'rerope(window=2)',
      *(q, k, v),
      q_positions=i.at[:, 10:].set(fill),
      k_positions=index / 4.0,
      implementation=implementation,
    )[:, :10]
    for fill, implementation in ((np.nan, 'blockwise'), (0.0, 'reference'))
  )
  assert_close(got, want, 1e-5)


def test_a_bias_per_key_beside_a_sink_logit(monkeypatch, assert_close):
  monkeypatch.setattr(blockwise, 'block_size', lambda *_: 8)
  q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 32, 2, D))
  i = jnp.cumsum(jax.random.uniform(jax.random.key(1), (1, 32, 2)), 1)
  rerope = encodings.create('rerope(window=4)', num_heads=2, head_dim=D)
  linear = encodings.create('linear(slope=0.5)', num_heads=2, head_dim=D)
  got, want = (
    attention.dot_product_attention(
      *(q, k, v),
      bands=rerope.bind({}).bands(q, k, i, i),
      bias=linear.bind({}).bias_fn(),
      q_positions=i,
      k_positions=i,
      sink_logits=jnp.zeros(2),
      causal=True,
      implementation=implementation,
    )
    for implementation in ('blockwise', 'reference')
  )
  assert_close(got, want, 1e-5)


@pytest.mark.parametrize(
  'spec, option',
  [
    (SPECS[0], 'packed'),
    (SPECS[2], 'window'),
    (SPECS[4], 'packed'),
    # `dual_chunk` with every option, the others with some.
    *(
      pytest.param(spec, option, marks=pytest.mark.slow)
      for spec, option in (
        *itertools.product([SPECS[3]], OPTIONS),
        (SPECS[4], 'per_head'),
        (SPECS[1], 'bidirectional'),
        (SPECS[2], 'per_head'),
        (SPECS[4], 'window'),
      )
    ),
  ],
)
def test_blocks_equal_the_reference(monkeypatch, spec, option, assert_close):
  """Outputs and all gradients."""
  monkeypatch.setattr(blockwise, 'block_size', lambda *_: 8)
  keys = jax.random.split(jax.random.key(0), 5)
  q, dy = jax.random.normal(keys[0], (2, 2, 30, 4, D))
  k, v = jax.random.normal(keys[1], (2, 2, 30, 2, D))
  options = {'causal': True} | OPTIONS[option]
  learned = {}
  if option == 'per_head':
    # Fractional steps, some of them backwards.
    steps = jax.random.uniform(keys[2], (2, 30, 4), minval=-0.4, maxval=1.5)
    learned['q_positions'] = learned['k_positions'] = jnp.cumsum(steps, 1)
  if 'sink_logits' in options:
    learned['sink_logits'] = options.pop('sink_logits')
  if 'logit_scale' in options:
    learned['logit_scale'] = options.pop('logit_scale')

  @functools.partial(jax.jit, static_argnames='implementation')
  def run(q, k, v, learned, *, implementation):
    def loss(*arguments):
      *vectors, learned = arguments
      y = attended(
        spec, *vectors, implementation=implementation, **options, **learned
      )
      return (y * dy).sum(), y

    return jax.grad(loss, (0, 1, 2, 3), has_aux=True)(q, k, v, learned)

  got, want = (
    run(q, k, v, learned, implementation=name)
    for name in ('blockwise', 'reference')
  )
  for one, other in zip(
    jax.tree.leaves(got), jax.tree.leaves(want), strict=True
  ):
    assert np.abs(other).max() > 1e-2
    assert_close(one, other, 1e-5)


@pytest.mark.some(5)
@pytest.mark.parametrize('spec', SPECS)
def test_last_queries(spec, assert_close):
  """Queries at an offset, as in decoding, equal those of the whole row."""
  q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 24, H, D))
  offsets = jnp.array([23, 14])
  last = jnp.stack([q[0, 23:], q[1, 14:15]])
  own = {'q_offset': offsets, 'k_lengths': offsets + 1, 'rotate': False}
  whole = attended(spec, q, k, v)
  for implementation in ('reference', 'blockwise'):
    got = attended(spec, last, k, v, implementation=implementation, **own)
    assert_close(got[:, 0], jnp.stack([whole[0, 23], whole[1, 14]]))


def distance(i, j):
  return i - j


@pytest.mark.some(2)
@pytest.mark.parametrize(
  'spec, in_bands',
  [
    (
      'rerope(window=8)',
      [lambda i, j: distance(i, j) < 8, lambda i, j: distance(i, j) >= 8],
    ),
    (
      'dual_chunk(chunk=12, window=6)',
      [
        lambda i, j: distance(i // 6, j // 6) == 0,
        lambda i, j: distance(i // 6, j // 6) == 1,
        lambda i, j: distance(i // 6, j // 6) >= 2,
      ],
    ),
    (
      'lm_infinite(window=7, sinks=2)',
      [
        lambda i, j: distance(i, j) < 7,
        lambda i, j: (distance(i, j) >= 7) & (j < 2),
      ],
    ),
  ],
)
def test_tiles_outside_of_a_band_are_skipped(
  traced_anew, monkeypatch, spec, in_bands
):
  """Forward and backward."""
  length, block = 32, 4
  computed = collections.defaultdict(set)
  visible_pairs = call.visible_pairs

  def noted(mask, queries, keys):
    jax.debug.callback(
      lambda i, j: computed[mask.band].add((int(i[0, 0]), int(j[0, 0]))),
      queries.index,
      keys.index,
    )
    return visible_pairs(mask, queries, keys)

  monkeypatch.setattr(call, 'visible_pairs', noted)
  monkeypatch.setattr(blockwise, 'block_size', lambda *_: block)
  q, k, v = jax.random.normal(jax.random.key(0), (3, 1, length, H, D))

  def loss(q):
    return attended(spec, q, k, v, implementation='blockwise').sum()

  jax.block_until_ready(jax.jit(jax.grad(loss))(q))
  jax.effects_barrier()
  i, j = np.indices((length, length))
  for in_band, got in zip(
    in_bands, (computed[limits] for limits in sorted(computed)), strict=True
  ):
    seen = in_band(i, j) & (j <= i)
    # Tiles of a block of queries and one of keys.
    some = seen.reshape(8, block, 8, block).any((1, 3))
    assert got == {(m * block, n * block) for m, n in np.argwhere(some)}


@pytest.mark.some(5)
@pytest.mark.parametrize('spec', SPECS)
def test_no_array_over_all_pairs(spec):
  """The memory of gradients at 8192 tokens, of which one row has 1 head."""
  x = jax.ShapeDtypeStruct((1, 8192, 1, D), jnp.float32)

  def loss(q, k, v):
    return attended(spec, q, k, v).sum()

  compiled = jax.jit(jax.grad(loss, (0, 1, 2))).lower(x, x, x).compile()
  assert compiled.memory_analysis().temp_size_in_bytes < 8192**2 / 8


def test_far_keys_are_masked():
  """Gradients of lm_infinite reach the first and the last keys."""
  q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 12, H, D))

  def last(v):
    return attended('lm_infinite(window=4, sinks=2)', q, k, v)[:, -1].sum()

  reached = np.abs(jax.jit(jax.grad(last))(v)).sum((0, 2, 3)) > 0
  assert reached.tolist() == [True] * 2 + [False] * 6 + [True] * 4


@pytest.mark.parametrize(
  'spec, words',
  [
    ('dual_chunk(chunk=4, window=4)', 'chunk of dual_chunk is 4'),
    ('rerope(leak=0.5)', 'leak of rerope is 0.5'),
    ('lm_infinite(leak=2.)', 'leak'),
    ('self_extend(dynamic=True, train_length=8)', 'no dynamic form'),
  ],
)
def test_refused(spec, words):
  with pytest.raises(errors.SpecError, match=words):
    encodings.create(spec, num_heads=H, head_dim=D)


@pytest.mark.parametrize(
  'spec, rule, part',
  [
    # Positions of far keys are groups.
    ('self_extend(window=5, group=41)', 1, 0),
    # Places are chunks.
    ('dual_chunk(chunk=44, window=3)', 0, 1),
  ],
)
def test_groups_and_chunks_begin_at_multiples(spec, rule, part):
  """XLA multiplies by 1 / 41, which is below 1 at 41."""
  encoding = encodings.create(spec, num_heads=H, head_dim=D)
  positions = jnp.arange(1000, dtype=jnp.float32)[None, :, None]
  rules = jax.jit(lambda p: [each[:2] for each in encoding._rules(p, p)])
  _, found = rules(positions)[rule][part]
  np.testing.assert_array_equal(found[0, :, 0], np.arange(1000) // 41)
