"""Tests `lengen_jax/attention/fused`: kernels' numbers, without their chip."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import (
  attention,
  encodings,
  errors,
  partitioning,
  positions,
  testing,
)
from lengen_jax.attention import pallas, pallas_gpu, pallas_tpu
from lengen_jax.attention.fused import anchors, dense
from lengen_jax.attention.fused import plan as plans
from lengen_jax.attention.fused.anchors import QueryRange
from lengen_jax.attention.pallas_gpu import calls as gpu_calls
from lengen_jax.attention.pallas_tpu import plan as tpu_plans
from lengen_jax.encodings import convert

B, H, D, L = 2, 2, 64, 300
SEGMENTS = np.stack(
  [np.repeat([3, 1, 2], [100, 140, 60]), np.repeat([5, 5, 0], [90, 140, 70])]
)
POSITIONS = np.cumsum(
  np.random.default_rng(0).integers(1, 5, (B, L)), axis=1
).astype(np.int32)
OPTIONS = {
  'causal': {'causal': True},
  'causal, grouped heads, scaled logits': {
    'causal': True,
    'num_heads': 4,
    'logit_scale': True,
  },
  'packed': {
    'causal': True,
    'q_segment_ids': SEGMENTS,
    'k_segment_ids': SEGMENTS,
    'q_positions': positions.segment_positions(SEGMENTS),
    'k_positions': positions.segment_positions(SEGMENTS),
    'contiguous': True,
  },
  'both directions, given positions': {
    'causal': False,
    'q_positions': POSITIONS,
    'k_positions': POSITIONS,
  },
  'both directions, window': {'causal': False, 'window': 50},
  'causal, window, heads that fill no register': {
    'causal': True,
    'window': 150,
    'head_dim': 24,
  },
  'later queries': {'causal': True, 'q_length': 130, 'q_offset': 170},
  'earlier queries': {'causal': True, 'q_length': 130, 'q_offset': -40},
  'cross, padded keys': {
    'causal': False,
    'q_length': 140,
    'k_lengths': np.array([250, 0]),
    'head_dim': 128,
  },
  'sink logits, grouped heads, padded keys': {
    'causal': True,
    'num_heads': 4,
    'sink_logits': True,
    'k_lengths': np.array([250, 0]),
  },
}
# One of each kind of table: none, by distance without and with parameters, and
# dense. Other encodings differ in how XLA computes the table.
SPECS = [
  spec
  for spec in testing.encoding_specs()
  if spec.split('(')[0] in ('nope', 'alibi', 'kerple_log', 'fire')
]
# Causal rows on a TPU, and grouped heads on a GPU, have tests below, some slow.
QUICK = [
  ('tpu', 'kerple_log', 'causal, grouped heads, scaled logits'),
  ('tpu', 'fire(init_threshold=8.)', 'both directions, given positions'),
  ('gpu', 'alibi', 'cross, padded keys'),
  ('tpu', 'alibi', 'sink logits, grouped heads, padded keys'),
]


@pytest.fixture(params=['gpu', 'tpu'])
def chip(monkeypatch, request):
  """Whose kernels are interpreted."""
  kernels = {'tpu': pallas_tpu, 'gpu': pallas_gpu}[request.param]
  monkeypatch.setitem(pallas.CHIPS, 'cpu', kernels)
  return request.param


def make(spec, num_heads=H, head_dim=D):
  """An encoding and parameters that are not as small as initial ones."""
  encoding = encodings.create(spec, num_heads=num_heads, head_dim=head_dim)
  variables = encoding.init(jax.random.key(0), method='bias_fn')
  return encoding, jax.tree.map(lambda x: 4 * x if x.ndim > 1 else x, variables)


def arrays(q_length, num_heads, head_dim, dtype=np.float32, batch=B):
  rng = np.random.default_rng(1)
  shapes = (
    (batch, q_length, num_heads, head_dim),
    *[(batch, L, H, head_dim)] * 2,
  )
  return [rng.normal(size=shape).astype(dtype) for shape in shapes]


def value_and_grads(attend, *inputs):
  """Output, and gradients to all inputs, of a random function of the output."""

  def loss(inputs):
    y = attend(*inputs)
    cotangent = np.random.default_rng(2).normal(size=y.shape)
    return jnp.sum(y.astype(jnp.float32) * cotangent.astype(np.float32)), y

  grads, y = jax.jit(jax.grad(loss, has_aux=True))(inputs)
  return y, *grads


def attended(spec, implementation, *, dtype=np.float32, **options):
  """`value_and_grads` of an implementation."""
  num_heads, head_dim = options.pop('num_heads', H), options.pop('head_dim', D)
  q_length, batch = options.pop('q_length', L), options.pop('batch', B)
  q, k, v = arrays(q_length, num_heads, head_dim, dtype=dtype, batch=batch)
  encoding, variables = make(spec, num_heads, head_dim)
  inputs = q, k, v, variables
  if options.pop('logit_scale', False):
    scale = 1 + 0.2 * np.random.default_rng(3).normal(size=q.shape[:3])
    inputs += (scale.astype(np.float32),)
  if options.pop('sink_logits', False):
    sinks = np.random.default_rng(4).normal(size=num_heads)
    inputs += None, sinks.astype(np.float32)

  def attend(q, k, v, variables, logit_scale=None, sink_logits=None):
    return attention.dot_product_attention(
      q,
      k,
      v,
      bias=encoding.apply(
        variables, method='bias_fn', bidirectional=not options['causal']
      ),
      logit_scale=logit_scale,
      sink_logits=sink_logits,
      implementation=implementation,
      **options,
    )

  return value_and_grads(attend, *inputs)


def both(spec, **options):
  """`attended` by the reference and by the kernels."""
  return [attended(spec, one, **options) for one in ('reference', 'pallas')]


@functools.cache
def expected(spec, name, batch=B):
  """`attended` by the reference, with options of OPTIONS."""
  return attended(spec, 'reference', batch=batch, **OPTIONS[name])


def assert_equal(got, want, tolerance):
  """Compares arrays relative to their largest entry, parameters as one array.

  Parameters are summed over all pairs, with much that cancels: of KERPLE's, the
  reference is 3e-6 off what float64 gives, the kernels 1e-5.
  """
  for name, a, b in zip('yqkvpsl', got, want, strict=False):
    a, b = (
      [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(x)]
      for x in (a, b)
    )
    scale = max((np.abs(leaf).max() for leaf in b), default=1)
    for x, y in zip(a, b, strict=True):
      assert np.isfinite(x).all()
      limit = tolerance * scale * (2 if name == 'p' else 1)
      assert np.abs(x - y).max() <= limit, name


@pytest.mark.parametrize(
  'chip, spec, name',
  [
    pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
    for n, chip in enumerate(('tpu', 'gpu'))
    for i, spec in enumerate(SPECS)
    for j, name in enumerate(OPTIONS)
    # Each chip with each spec and each option, and two specs for each option.
    if (case := (chip, spec, name)) in QUICK or (2 * n + i + j) % 4 == 0
  ],
  indirect=['chip'],
)
def test_equals_the_reference(chip, spec, name):
  del chip
  want = expected(spec, name)
  got = attended(spec, 'pallas', **OPTIONS[name])
  assert_equal(got, want, 1e-5)
  for gradient in want[1:4]:
    assert np.abs(gradient).max() > 1e-3
  if 'k_lengths' in OPTIONS[name]:
    # Fully masked queries output zero.
    np.testing.assert_array_equal(got[0][1], 0)
    assert np.abs(got[0][0]).max() > 0


@pytest.mark.slow
@pytest.mark.parametrize(
  'chip, batch, name',
  [
    # A row that is alone keeps half of a tile's distances for the next tile.
    *(
      (chip, batch, name)
      for n, (chip, batch) in enumerate((('tpu', 1), ('tpu', 2), ('gpu', 2)))
      for i, name in enumerate(OPTIONS)
      if (n + i) % 3 == 1
      and name not in ('causal', 'packed', 'both directions, given positions')
      and (batch == B or 'k_lengths' not in OPTIONS[name])
    ),
  ],
  indirect=['chip'],
)
def test_several_blocks(monkeypatch, chip, batch, name):
  del chip
  # Tiles of fewer than 256 tokens consist of far halves only.
  monkeypatch.setattr(plans, 'BLOCK', 256)
  want = expected('kerple_log', name, batch)
  got = attended('kerple_log', 'pallas', batch=batch, **OPTIONS[name])
  assert_equal(got, want, 1e-5)


LATER = {'causal': True, 'num_heads': 4, 'q_length': 140, 'q_offset': 100}


@pytest.mark.parametrize(
  'chip, spec, options',
  [
    ('gpu', 't5(num_buckets=8, max_distance=16)', {'causal': True}),
    *(
      pytest.param(*case, marks=pytest.mark.slow)
      for case in (
        ('tpu', 't5(num_buckets=8, max_distance=16)', {'causal': True}),
        ('tpu', 'fire(init_threshold=8.)', {'causal': True}),
        ('gpu', 'alibi', {'causal': False}),
        ('tpu', 'kerple_log', LATER),
        ('gpu', 'kerple_log', LATER),
        ('tpu', 'nope', {'causal': False, 'window': 90}),
      )
    ),
  ],
  indirect=['chip'],
)
def test_packed_rows_of_several_blocks(monkeypatch, chip, spec, options):
  del chip
  monkeypatch.setattr(plans, 'BLOCK', 128)
  # Lengths are not multiples of the block; in the first row some tiles are
  # skipped.
  segment_ids = np.stack(
    [
      np.repeat([9, 5, 2], [130, 120, 50]),
      np.repeat([4], [300]),
      np.repeat([7, 2, 5, 3], [30, 120, 15, 135]),
    ]
  )
  length, offset = options.get('q_length', L), options.get('q_offset', 0)
  own = slice(offset, offset + length)
  given = positions.segment_positions(segment_ids)
  want, got = both(
    spec,
    batch=3,
    q_segment_ids=segment_ids[:, own],
    k_segment_ids=segment_ids,
    q_positions=given[:, own],
    k_positions=given,
    contiguous=True,
    **options,
  )
  assert_equal(got, want, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
  'chip, options',
  [
    # The last chunk of keys is padding; one row has no visible key.
    ('tpu', {'causal': False, 'k_lengths': np.array([200, 0]), 'window': 90}),
    ('gpu', {'causal': True, 'q_offset': -40}),
  ],
  indirect=['chip'],
)
def test_chunks_of_keys_with_a_bias_per_pair(monkeypatch, chip, options):
  del chip
  monkeypatch.setattr(plans, 'BLOCK', 128)
  # Room for one tile: three chunks of keys.
  monkeypatch.setattr(dense, 'MAX_BYTES', 1)
  want, got = both('fire(init_threshold=8.)', **options)
  assert_equal(got, want, 2e-5)


def at_positions_per_head(implementation, options, num_heads=4):
  """Output and gradients, also to positions per head and their slopes."""
  length = options.get('q_length', L)
  own = {k: x for k, x in options.items() if k != 'q_length'}
  encoding = encodings.create(
    'linear(slope=0.3, learned=True)', num_heads=num_heads, head_dim=D
  )
  rng = np.random.default_rng(3)
  steps = rng.uniform(0.1, 1.0, (B, L, num_heads)).astype(np.float32)
  k_positions = np.cumsum(steps, axis=1)
  start = own.get('q_offset', 0)
  slope = np.linspace(0.2, 0.5, num_heads, dtype=np.float32)

  def attend(q, k, v, slope, q_positions, k_positions):
    return attention.dot_product_attention(
      q,
      k,
      v,
      bias=encoding.apply({'params': {'slope': slope}}, method='bias_fn'),
      q_positions=q_positions,
      k_positions=k_positions,
      implementation=implementation,
      **own,
    )

  q_positions = k_positions[:, start : start + length]
  inputs = arrays(length, num_heads, D), slope, q_positions, k_positions
  return value_and_grads(attend, *inputs[0], *inputs[1:])


@pytest.mark.parametrize(
  'options',
  [
    # Several blocks, and heads that share keys.
    {'causal': True},
    pytest.param(
      {
        'causal': True,
        'q_segment_ids': SEGMENTS,
        'k_segment_ids': SEGMENTS,
      },
      marks=pytest.mark.slow,
    ),
    pytest.param(
      {'causal': True, 'window': 90, 'q_length': 130, 'q_offset': 170},
      marks=pytest.mark.slow,
    ),
  ],
)
def test_a_bias_per_key_from_positions_per_head(monkeypatch, options):
  monkeypatch.setattr(plans, 'BLOCK', 128)
  want, got = (
    at_positions_per_head(one, options) for one in ('reference', 'pallas')
  )
  # Gradients of positions sum over queries, with much that cancels.
  for a, b, tolerance in zip(got, want, [1e-5] * 4 + [5e-5] * 3, strict=True):
    scale = np.abs(b).max()
    if scale < 1e-5:  # Positions of queries have no effect.
      scale = np.abs(want[-1]).max()
    assert np.abs(a - b).max() <= tolerance * scale


@pytest.mark.parametrize(
  'chip, num_heads, head_dim, batch',
  [
    # Keys in common; a copy for each half of a register; for each head.
    ('tpu', 4, 128, 1),
    pytest.param('tpu', 8, 64, 2, marks=pytest.mark.slow),
    pytest.param('tpu', 6, 64, 1, marks=pytest.mark.slow),
    pytest.param('gpu', 6, 64, 1, marks=pytest.mark.slow),
  ],
  indirect=['chip'],
)
def test_grouped_heads(monkeypatch, chip, num_heads, head_dim, batch):
  monkeypatch.setattr(plans, 'BLOCK', 128)
  want, got = both(
    'kerple_log',
    num_heads=num_heads,
    head_dim=head_dim,
    batch=batch,
    **OPTIONS['causal'],
  )
  assert_equal(got, want, 1e-5)


@pytest.mark.parametrize(
  'num_heads, head_dim, copies', [(4, 128, 1), (8, 64, 2), (6, 64, 3)]
)
def test_copies_of_keys_on_a_tpu(num_heads, head_dim, copies):
  assert pallas_tpu.plan.key_copies(num_heads, H, head_dim) == copies
  assert pallas_tpu.plan.key_copies(H, H, head_dim) == 1
  assert pallas_gpu.plan.key_copies(num_heads, H, head_dim) == 1


@pytest.mark.parametrize(
  'chip, spec, batch',
  [
    pytest.param(
      chip,
      spec,
      batch,
      marks=()
      if (chip, spec[:4], batch) in [('gpu', 'fire', 1), ('tpu', 'alib', 1)]
      else pytest.mark.slow,
    )
    for chip, spec, batch in (
      ('gpu', 'fire(init_threshold=8.)', 1),
      ('tpu', 'alibi', 1),
      ('tpu', 'fire(init_threshold=8.)', 2),
      ('gpu', 'alibi', 2),
    )
  ],
  indirect=['chip'],
)
def test_tiles_of_other_segments_are_passed_over(
  monkeypatch, chip, spec, batch
):
  del chip
  monkeypatch.setattr(plans, 'BLOCK', 128)
  segment_ids = np.repeat([[1, 2, 3]], batch, axis=0).repeat(128, axis=1)
  # A tile that is computed and masked spreads what is no number.
  q, k, v = np.random.default_rng(0).normal(size=(3, batch, 384, H, D))
  q, k, v = (x.astype(np.float32) for x in (q, k, v))
  v[:, :128] = np.inf
  given = positions.segment_positions(segment_ids)
  encoding, variables = make(spec)

  def loss(q, k, v):
    y = attention.dot_product_attention(
      q,
      k,
      v,
      bias=encoding.apply(variables, method='bias_fn', bidirectional=True),
      q_positions=given,
      k_positions=given,
      q_segment_ids=segment_ids,
      k_segment_ids=segment_ids,
      causal=False,
      contiguous=True,
      implementation='pallas',
    )
    return y[:, 128:].sum(), y

  grads, y = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(q, k, v)
  for x in (y, *grads):
    assert np.isfinite(x[:, 128:]).all()
  assert not np.isfinite(y[:, :128]).any()


def test_quick_cases_are_cases():
  assert all(spec in SPECS and name in OPTIONS for _, spec, name in QUICK)


@pytest.mark.slow
@pytest.mark.parametrize('chip', ['gpu'], indirect=True)
def test_sums_of_tiles_in_parts(monkeypatch, chip):
  del chip
  monkeypatch.setattr(gpu_calls, 'MAX_SUM_BYTES', 1)
  name = 'causal, grouped heads, scaled logits'
  want = expected('kerple_log', name)
  got = attended('kerple_log', 'pallas', **OPTIONS[name])
  assert_equal(got, want, 1e-5)


@pytest.mark.parametrize(
  'chip, window',
  [
    ('gpu', 2**31 - 1),
    pytest.param('gpu', 1000, marks=pytest.mark.slow),
    pytest.param('tpu', 2**31 - 1, marks=pytest.mark.slow),
  ],
  indirect=['chip'],
)
def test_a_window_beyond_all_is_none(chip, window):
  del chip
  q, k, v = arrays(L, H, D)
  want, got = (
    attention.dot_product_attention(
      q, k, v, causal=False, window=size, implementation='pallas'
    )
    for size in (None, window)
  )
  np.testing.assert_allclose(got, want, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
  'chip, causal', [('tpu', False), ('gpu', True)], indirect=['chip']
)
def test_drawn_distances(chip, causal):
  del chip
  drawn = positions.create("randomized(max_position=999, mode='distances')")
  index = np.arange(L, dtype=np.int32)[None]
  given = drawn(
    index, lengths=np.full((1, L), L), rng=jax.random.key(3), train=True
  )
  want, got = both('alibi', causal=causal, q_positions=given, k_positions=given)
  assert_equal(got, want, 1e-5)


def test_bfloat16(chip):
  want = expected('alibi', 'causal')
  got = attended('alibi', 'pallas', causal=True, dtype=jnp.bfloat16)
  assert got[0].dtype == got[1].dtype == jnp.bfloat16
  assert_equal(got, want, 0.03)


def anchored(bias, length, ranges, start=0):
  """FIRE's bias as anchors have it, `[H, L, L]`; (first, spacing) of ranges.

  Ranges are of indices; positions are `start` more.
  """

  def row(i, spacing, first):
    distances = i - jnp.arange(length)
    if not spacing:
      return bias.rows(start + i[None], distances)[0]
    before = first + (i - first) // spacing * spacing
    before = (start + before).astype(jnp.float32)
    after, i = before + spacing, start + i
    near, far = bias.rows(jnp.stack([before, after]), distances)
    # For keys up to the query, the MLP's input is linear in 1 / psi(max(i, L)).
    c, threshold = (bias.params[name][0] for name in ('c', 'threshold'))
    c = jax.lax.stop_gradient(c)
    x_before, x, x_after = (
      1 / (jnp.log1p(c * jnp.maximum(p, threshold)) + 1e-6)
      for p in (before, i, after)
    )
    varies = x_before > x_after
    span = jnp.where(varies, x_after - x_before, 1.0)
    weight = jnp.where(varies, (x - x_before) / span, 0.0)
    weight = jnp.where(distances < 0, (i - before) / spacing, weight)
    return near + weight[None] * (far - near)

  rows = []
  for (first, spacing), (end, _) in zip(
    ranges, [*ranges[1:], (length, 0)], strict=True
  ):
    over = jax.vmap(row, (0, None, None), 1)
    rows.append(over(jnp.arange(first, end), spacing, first))
  return jnp.concatenate(rows, axis=1)


def check_anchors(length, ranges, causal=True, start=(0,), **options):
  """The kernels are exactly attention with the bias that anchors have."""
  heads, head_dim = options.pop('heads', (1, 128))
  threshold = options.pop('threshold', 150.0)
  spec = f'fire(init_threshold={threshold})'
  encoding, variables = make(spec, heads, head_dim)
  rng = np.random.default_rng(1)
  shape = (len(start), length, heads, head_dim)
  q, k, v = rng.normal(size=(3, *shape)).astype(np.float32)
  index = np.arange(length, dtype=np.int32)
  given = None
  if len(start) > 1:
    given = np.array(start, np.int32)[:, None] + index

  def bias_fn(variables):
    return encoding.apply(variables, method='bias_fn', bidirectional=not causal)

  def kernels(q, k, v, variables):
    return attention.dot_product_attention(
      q,
      k,
      v,
      bias=bias_fn(variables),
      q_positions=given,
      k_positions=given,
      contiguous=True,
      causal=causal,
      bias_form='anchored',
      implementation='pallas',
    )

  def by_definition(q, k, v, variables):
    bias = [anchored(bias_fn(variables), length, ranges, at) for at in start]
    return attention.dot_product_attention(
      q, k, v, bias=jnp.stack(bias), causal=causal
    )

  want, got = (
    value_and_grads(attend, q, k, v, variables)
    for attend in (by_definition, kernels)
  )
  assert_equal(got, want, 2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
  'chip, length, ranges, options',
  [
    ('tpu', 600, [(0, 0), (128, 16), (512, 128)], {'causal': True}),
    (
      'gpu',
      1100,
      [(0, 0), (512, 64), (1024, 128)],
      {'causal': False, 'heads': (1, 64)},
    ),
  ],
  indirect=['chip'],
)
def test_anchors(chip, length, ranges, options):
  # Where the threshold is in a range with anchors.
  threshold = {'tpu': 150.0, 'gpu': 530.0}[chip]
  check_anchors(length, ranges, threshold=threshold, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
  'chip, length, block, spacing, causal',
  [
    # Blocks that share anchors, and blocks in several pieces.
    ('tpu', 384, 128, 256, True),
    ('tpu', 600, 256, 64, False),
    ('gpu', 600, 128, 256, True),
  ],
  indirect=['chip'],
)
def test_anchors_further_on(monkeypatch, chip, length, block, spacing, causal):
  del chip
  exact = 128 if length < 600 else 256

  def ranges(length, *_):
    return [
      QueryRange('dense', exact, 0, exact, 1),
      QueryRange('anchored', block, exact, length, spacing),
    ]

  monkeypatch.setattr(anchors, 'query_ranges', ranges)
  # A threshold within an interval.
  threshold = 200.0 if length < 600 else 333.0
  heads = (1, 128) if length < 600 else (2, 64)
  check_anchors(
    length,
    [(0, 0), (exact, spacing)],
    causal=causal,
    threshold=threshold,
    heads=heads,
  )


@pytest.mark.slow
@pytest.mark.parametrize('chip', ['tpu'], indirect=True)
def test_smaller_blocks_where_gradients_of_anchors_have_no_room(
  monkeypatch, chip
):
  del chip
  halved = []

  def halve(plan):
    halved.append(plan.block)
    return whole(plan)

  whole = tpu_plans.Plan.halved
  monkeypatch.setattr(tpu_plans.Plan, 'halved', halve)
  monkeypatch.setattr(tpu_plans, 'vector_memory', lambda: 2**21)
  ranges = [
    QueryRange('dense', 128, 0, 128, 1),
    QueryRange('anchored', 128, 128, 256, 16),
    QueryRange('anchored', 256, 256, 512, 256),
  ]
  monkeypatch.setattr(anchors, 'query_ranges', lambda *_: ranges)
  check_anchors(400, [(0, 0), (128, 16), (256, 256)], threshold=333.0)
  assert halved == [256]


@pytest.mark.slow
@pytest.mark.parametrize(
  'chip, spacing',
  [('gpu', 64), ('tpu', 16)],
  indirect=['chip'],
)
def test_rows_that_start_at_positions_of_their_own(monkeypatch, chip, spacing):
  del chip
  monkeypatch.setattr(
    anchors,
    'query_ranges',
    lambda length, *_: [
      QueryRange('dense', 128, 0, 128, 1),
      QueryRange('anchored', 128, 128, length, spacing),
    ],
  )
  # In one row the threshold is between anchors, in the other before them.
  check_anchors(250, [(0, 0), (128, spacing)], start=[0, 400], heads=(1, 64))


def in_bfloat16(bias, i, distances):
  """A row of FIRE's bias by an MLP in 16 bits, as a model in bfloat16 has."""
  params, encoding = bias.params, bias.encoding
  c = params['c'][0]
  i = jnp.maximum(i, params['threshold'][0])
  if bias.bidirectional:
    i = jnp.maximum(i, i - distances)
  h = jnp.log1p(c * jnp.abs(distances)) / (jnp.log1p(c * i) + 1e-6)
  h = h[:, None].astype(jnp.bfloat16)
  for n in range(encoding.hidden_layers + 1):
    kernel, b = (
      params[f'{name}_{n}'].astype(jnp.bfloat16) for name in ('kernel', 'bias')
    )
    h = h @ kernel + b[None]
    h = jax.nn.relu(h) if n < encoding.hidden_layers else h
  return h.T.astype(jnp.float32)


def fire(hidden_layers, threshold, fitted, bidirectional=False):
  """A FIRE's BiasFn, as initialised or fitted to ALiBi."""
  encoding, variables = make(
    f'fire(hidden_layers={hidden_layers}, init_threshold={threshold}.)'
  )
  if fitted:
    alibi, nothing = make('alibi')
    fit = convert.fit_fire(
      alibi.apply(nothing, method='bias_fn'),
      encoding,
      max_length=1024,
      rng=jax.random.key(0),
      steps=300,
    )
    # What is sharp there is sharp at another threshold too.
    one = jnp.ones(1)
    variables = {'params': {**fit.params, 'threshold_multiplier': one}}
  return encoding.apply(
    variables, method='bias_fn', bidirectional=bidirectional
  )


@pytest.mark.some(3)
@pytest.mark.parametrize(
  'hidden_layers, threshold, fitted, bidirectional',
  [
    (1, 700, False, False),
    (2, 64, False, False),
    pytest.param(1, 700, False, True, marks=pytest.mark.slow),
    (1, 1500, True, False),
    pytest.param(2, 5000, True, False, marks=pytest.mark.slow),
    pytest.param(1, 1500, True, True, marks=pytest.mark.slow),
  ],
)
def test_anchors_beat_an_mlp_in_bfloat16(
  hidden_layers, threshold, fitted, bidirectional
):
  length = 8192
  bias = fire(hidden_layers, threshold, fitted, bidirectional)
  least = 1 - length if bidirectional else 0
  distances = jnp.arange(least, length, dtype=jnp.float32)
  exact = jax.jit(lambda i: bias.rows(i[None], distances)[0])
  rounded = jax.jit(lambda i: in_bfloat16(bias, i, distances))
  everywhere = np.arange(128, length, 97)
  near_threshold = threshold + np.arange(-40, 41, 8)
  near_threshold = near_threshold[near_threshold >= 128]
  assert len(near_threshold) or threshold < 80
  for rows in (everywhere, near_threshold):
    worst, squares = np.zeros(2), np.zeros(2)
    for i in rows:
      approximate = pallas.row(bias, int(i), distances)
      for n, row in enumerate((approximate, rounded(jnp.float32(i)))):
        off = np.asarray(row - exact(jnp.float32(i)))
        # The keys from 0 to the last.
        last = length - 1 if bidirectional else i
        off = off[:, i - last - least : i - least + 1]
        worst[n] = max(worst[n], np.abs(off).max())
        squares[n] += (off**2).sum()
    if len(rows):
      assert worst[0] < worst[1]
      assert squares[0] < squares[1]


@pytest.mark.slow
def test_gradients_of_anchors_beat_those_of_an_mlp_in_bfloat16():
  length = 4096
  bias = fire(hidden_layers=1, threshold=700, fitted=True)
  distances = jnp.arange(length, dtype=jnp.float32)
  # Some that the threshold is close to, too.
  queries = sorted({*range(140, length, 201), *range(520, 1024, 29)})

  def gradient(row):
    """As the bias learns another, of logarithms."""

    def loss(bias):
      total = 0.0
      for i in queries:
        off = row(bias, i, distances) + jnp.log1p(distances)[None]
        total += jnp.where(distances[None] <= i, off**2, 0.0).mean()
      return total

    return jax.jit(jax.grad(loss))(bias).params

  def off(gradients):
    return jax.tree.map(
      lambda a, b: float(jnp.linalg.norm(a - b)), gradients, exact
    )

  exact = gradient(lambda bias, i, d: bias.rows(jnp.array([i]), d)[0])
  anchored, rounded = off(gradient(pallas.row)), off(gradient(in_bfloat16))
  # How far queries are between anchors is taken not to depend on c.
  assert anchored.pop('c') < 0.005 * abs(float(exact['c'][0]))
  for name, error in anchored.items():
    # Where all queries are behind the threshold, it has no gradient at all.
    assert error < rounded[name] or error == rounded[name] == 0, name


@pytest.mark.parametrize(
  'options, named',
  [
    ({'window': 8, 'sinks': 2}, 'sinks'),
    ({'q_offset': jnp.array([3, 4])}, 'q_offset'),
    ({'encoding': 'shaw(left=4, right=4)'}, 'content terms'),
    ({'encoding': 'rerope'}, 'bands of distance'),
    ({'bias_form': 'anchored', 'packed': True}, 'packed rows'),
    ({'v': 3}, f'keys of size {D} with values of size 3, as pope'),
    ({'dtype': jnp.float16}, 'float16'),
    ({'platform': 'neuron'}, 'neuron'),
  ],
)
def test_what_is_refused_is_named(monkeypatch, options, named):
  options = dict(options)
  q, k, v = arrays(L, H, D)
  q = q.astype(options.pop('dtype', q.dtype))
  platform = options.pop('platform', 'cpu')
  monkeypatch.setattr(partitioning, 'platform', lambda: platform)
  v = v[..., : options.pop('v', D)]
  spec = options.pop('encoding', 'fire')
  encoding = encodings.create(spec, num_heads=H, head_dim=D)
  variables = encoding.init(jax.random.key(0), method='bias_fn')
  if encoding.needs_content:
    options['content'] = encoding.apply(variables, method='content_fn')
  elif encodings.kind(encoding) == 'bands':
    p = jnp.arange(L)
    options['bands'] = encoding.apply({}, q, k, p, p, method='bands')
  else:
    options['bias'] = encoding.apply(variables, method='bias_fn')
  if options.pop('packed', False):
    options |= {'q_segment_ids': SEGMENTS, 'k_segment_ids': SEGMENTS}
  with pytest.raises(errors.ConfigError, match=named) as caught:
    attention.dot_product_attention(
      q, k, v, causal=True, implementation='pallas', **options
    )
  assert 'pallas' in str(caught.value)


@pytest.mark.parametrize('chip', [pallas_tpu, pallas_gpu])
def test_ranges_cover_all_queries(chip):
  for length in (128, 384, 512, 1024, 8192, 2**19):
    size = chip.plan.block_size(length, 'anchored', 64, 2)
    ranges = anchors.query_ranges(length, size, chip.plan.EXACT)
    assert ranges[0][2:4] == (0, min(chip.plan.EXACT, length))
    for one, following in itertools.pairwise(ranges):
      assert one[3] == following[2]
    assert ranges[-1][3] == length
    for _, block, first, end, spacing in ranges[1:]:
      assert spacing <= first / 4
      assert first % block == (end - first) % block == 0


@pytest.mark.parametrize(
  'length, options',
  [
    (128, {'window': 127}),
    (127, {}),
    # Beyond the keys, which are padded to whole tiles.
    (100, {'k_lengths': np.array([120])}),
  ],
)
def test_masks_at_the_edge_of_a_tile(length, options, assert_close):
  q, k, v = jax.random.normal(jax.random.key(0), (3, 1, length, H, D))
  want, got = (
    attention.dot_product_attention(
      q, k, v, causal=False, implementation=one, **options
    )
    for one in ('reference', 'pallas')
  )
  assert_close(got, want)


def test_errors_of_positions_per_head(assert_close):
  q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 128, H, D))
  encoding = encodings.create('linear(slope=0.3)', num_heads=H, head_dim=D)
  bias = encoding.bind({}).bias_fn()
  value, error = jax.random.uniform(jax.random.key(1), (2, 1, 128, H), maxval=4)
  given = positions.PerHead(value, error)
  want, got = (
    attention.dot_product_attention(
      *(q, k, v),
      causal=True,
      bias=bias,
      q_positions=given,
      k_positions=given,
      implementation=one,
    )
    for one in ('reference', 'pallas')
  )
  assert_close(got, want)


@pytest.mark.parametrize(
  'spec, options, per_head, named',
  [
    ('nope', {'logit_cap': 2.0}, False, 'logit_cap'),
    (
      *('linear', {'sink_logits': np.zeros(H, np.float32)}, True),
      'sink_logits with positions per head',
    ),
    ('kerple_log', {}, True, 'except for a bias linear in them'),
  ],
)
def test_what_kernels_do_not_compute(spec, options, per_head, named):
  q, k, v = arrays(4, H, D)
  encoding, variables = make(spec)
  if per_head:
    given = {
      'q_positions': jnp.ones((1, 4, H)),
      'k_positions': jnp.ones((1, L, H)),
    }
    options = options | given
  with pytest.raises(errors.ConfigError, match=named):
    jax.eval_shape(
      lambda: attention.dot_product_attention(
        *(q, k, v),
        causal=True,
        bias=encoding.apply(variables, method='bias_fn'),
        implementation='pallas',
        **options,
      )
    )
