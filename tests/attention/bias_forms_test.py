"""Tests `lengen_jax/attention/bias_forms.py`."""

import jax
from jax.flatten_util import ravel_pytree
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import attention, encodings, errors, testing
from lengen_jax.attention import bias_forms, blockwise
from lengen_jax.attention.call import Side
from lengen_jax.encodings import convert

H = 4
INVARIANT = ('alibi', 'kerple_log', 'kerple_power', 't5', 'sandwich')


def make(spec, key=0):
  encoding = encodings.create(spec, num_heads=H, head_dim=8)
  return encoding, encoding.init(jax.random.key(key), method='bias_fn')


def tokens(start, count):
  index = start + jnp.arange(count, dtype=jnp.int32)[None]
  return Side(index=index, positions=index)


@pytest.mark.some(2)
@pytest.mark.parametrize('spec', INVARIANT)
@pytest.mark.parametrize('bidirectional', [False, True])
def test_a_strip_is_the_tile_exactly(spec, bidirectional):
  encoding, variables = make(spec)
  bias = encoding.apply(
    variables, method='bias_fn', bidirectional=bidirectional
  )
  assert bias_forms.choose(bias, 'exact', contiguous=True) == 'strip'
  for i, j, q, k in (40, 40, 16, 16), (40, 8, 5, 16), (0, 300, 16, 3):
    one, other = tokens(i, q), tokens(j, k)
    strip, exact = jax.jit(
      lambda *pair: [
        bias_forms.tile(form, bias, *pair) for form in ('strip', 'exact')
      ]
    )(one, other)
    assert strip.shape == (1, H, q, k)
    np.testing.assert_allclose(strip, exact, rtol=1e-6, atol=1e-7)


def causal_tiles(length, block=64):
  return [
    (tokens(i, block), tokens(j, block))
    for i in range(0, length, block)
    for j in range(0, i + 1, block)
  ]


def rounded(bias):
  """The bias with its MLP in 16 bits, as a model in bfloat16 has it."""
  encoding = bias.encoding

  def tile(one, other):
    i, j = one.positions[0, :, None], other.positions[0, None]
    params = bias.params
    apart = jnp.abs(i - j).astype(jnp.float32)
    i = jnp.maximum(i, params['threshold'][0])
    c = params['c'][0]
    h = jnp.log1p(c * apart) / (jnp.log1p(c * i) + 1e-6)
    h = h[..., None].astype(jnp.bfloat16)
    for n in range(encoding.hidden_layers + 1):
      kernel, b = (
        params[f'{name}_{n}'].astype(jnp.bfloat16)
        for name in ('kernel', 'bias')
      )
      h = h @ kernel + b[None, None]
      h = jax.nn.relu(h) if n < encoding.hidden_layers else h
    return jnp.moveaxis(h, -1, 0)[None].astype(jnp.float32)

  return tile


@pytest.mark.slow
@pytest.mark.parametrize(
  'hidden_layers, fitted',
  [(2, True), (1, False)],
)
def test_anchors_beat_an_mlp_in_bfloat16(hidden_layers, fitted):
  spec = f'fire(hidden_layers={hidden_layers}, init_threshold=256.)'
  encoding, variables = make(spec)
  if fitted:
    alibi, no_variables = make('alibi')
    steep = alibi.apply(no_variables, method='bias_fn')
    fit = convert.fit_fire(
      steep, encoding, max_length=1024, rng=jax.random.key(0), steps=300
    )
    variables = {'params': fit.params}
  bias = encoding.apply(variables, method='bias_fn')
  assert bias_forms.choose(bias, 'auto', contiguous=True) == 'anchored'
  exact_tile, anchored_tile = (
    jax.jit(
      lambda one, other, form=form: bias_forms.tile(form, bias, one, other)
    )
    for form in ('exact', 'anchored')
  )
  rounded_tile = jax.jit(rounded(bias))
  worst, squares = np.zeros(2), np.zeros(2)
  for one, other in causal_tiles(1024):
    causal = one.index[0, :, None] >= other.index[0, None]
    exact = exact_tile(one, other)
    for n, tile in enumerate((anchored_tile, rounded_tile)):
      off = jnp.where(causal, tile(one, other) - exact, 0.0)
      worst[n] = max(worst[n], float(jnp.abs(off).max()))
      squares[n] += float((off**2).sum())
  assert worst[0] < worst[1]
  assert squares[0] < squares[1]
  # Up to the threshold rows differ by nothing, and anchors are exact.
  before = tokens(128, 64), tokens(64, 64)
  np.testing.assert_allclose(
    anchored_tile(*before), exact_tile(*before), rtol=1e-5, atol=1e-6
  )


def losses(bias_form, *, positions=None, segment_ids=None, causal=True):
  """Output, and gradients to q and to FIRE's parameters as it learns ALiBi."""
  fire, variables = make('fire(init_threshold=40.)')
  alibi, nothing = make('alibi')
  rng = np.random.default_rng(0)
  q, k, v = rng.normal(size=(3, 2, 256, H, 8)).astype(np.float32)

  def attend(q, bias, bias_form):
    return attention.dot_product_attention(
      q,
      k,
      v,
      bias=bias,
      q_positions=positions,
      k_positions=positions,
      q_segment_ids=segment_ids,
      k_segment_ids=segment_ids,
      causal=causal,
      contiguous=True,
      bias_form=bias_form,
      implementation='blockwise',
    )

  def bias(encoding, variables):
    return encoding.apply(variables, method='bias_fn', bidirectional=not causal)

  target = attend(q, bias(alibi, nothing), 'exact')

  def loss(q, variables):
    y = attend(q, bias(fire, variables), bias_form)
    return jnp.mean((y - target) ** 2), y

  return jax.jit(jax.grad(loss, (0, 1), has_aux=True))(q, variables)


SEGMENT_IDS = jnp.asarray(np.repeat([[1, 2]], [56, 200], axis=1)).repeat(2, 0)
OPTIONS = {
  'causal': {},
  'both directions': {'causal': False},
  'rows begin anywhere': {
    'positions': jnp.arange(256)[None] + jnp.array([[0], [37]])
  },
  'packed': {
    'positions': jnp.asarray(
      np.concatenate([np.arange(56), np.arange(200)])[None].repeat(2, 0)
    ),
    'segment_ids': SEGMENT_IDS,
  },
}


@pytest.mark.parametrize(
  'options',
  [
    # Rows that begin anywhere are causal too, and packed ones.
    pytest.param(
      options,
      id=name,
      marks=() if name in ('both directions', 'packed') else pytest.mark.slow,
    )
    for name, options in OPTIONS.items()
  ],
)
def test_anchored_attention_is_close_with_its_gradients(monkeypatch, options):
  monkeypatch.setattr(blockwise, 'block_size', lambda *_: 64)
  exact_grads, exact = losses('exact', **options)
  grads, y = losses('anchored', **options)
  assert relative_error(y, exact) < 1e-3
  assert not np.array_equal(y, exact)
  dq, dparams = zip(grads, exact_grads, strict=True)
  assert relative_error(*dq) < 1e-3
  assert relative_error(*(ravel_pytree(d)[0] for d in dparams)) < 0.02


def relative_error(x, y):
  """Distance over size."""
  return np.linalg.norm(np.asarray(x - y).ravel()) / np.linalg.norm(
    np.asarray(y).ravel()
  )


@pytest.mark.some(3)
@pytest.mark.parametrize(
  'spec',
  [s for s in testing.encoding_specs() if s.split('(')[0] in INVARIANT],
)
def test_strips_and_tiles_give_the_same_gradients(spec):
  encoding, variables = make(spec)
  q, k, v = np.random.default_rng(0).normal(size=(3, 2, 256, H, 8))

  def loss(variables, contiguous):
    return jnp.sum(
      attention.dot_product_attention(
        *(jnp.asarray(x, jnp.float32) for x in (q, k, v)),
        bias=encoding.apply(variables, method='bias_fn'),
        causal=True,
        contiguous=contiguous,
        implementation='blockwise',
      )
      ** 2
    )

  grad = jax.jit(jax.grad(loss), static_argnums=1)
  for one, other in zip(
    *(jax.tree.leaves(grad(variables, c)) for c in (True, False)),
    strict=True,
  ):
    np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-4)


@pytest.mark.parametrize(
  'spec, form, options, message',
  [
    (
      'fire',
      'anchored',
      {'contiguous': False},
      "bias_form='anchored' is not available: it needs contiguous positions, .*"
      "use 'exact'",
    ),
    ('fire', 'table', {}, "bias_form 'table'"),
    (
      'fire',
      'anchored',
      {'implementation': 'reference'},
      "bias_form='anchored' is not available with implementation='reference'",
    ),
    (
      "fire(transform='identity')",
      'anchored',
      {},
      "fire\\(transform='identity'\\) has no rows to interpolate between",
    ),
    (
      'fire',
      'anchored',
      {'q_offset': jnp.zeros(2, int)},
      'the same q_offset in all rows',
    ),
  ],
)
def test_refuses_forms_that_do_not_serve(spec, form, options, message):
  encoding, variables = make(spec)
  x = jnp.zeros((2, 4, H, 8))
  with pytest.raises(errors.ConfigError, match=message):
    attention.dot_product_attention(
      x,
      x,
      x,
      bias=encoding.apply(variables, method='bias_fn'),
      causal=True,
      bias_form=form,
      **options,
    )


def test_an_approximate_form_needs_tiles():
  x = jnp.zeros((1, 4, H, 8))
  message = "bias_form='anchored' needs implementation='blockwise', which takes"
  with pytest.raises(errors.ConfigError, match=message):
    attention.dot_product_attention(
      x, x, x, bias=jnp.zeros((H, 4, 4)), causal=True, bias_form='anchored'
    )


def test_auto_is_exact_where_rows_do_not_serve():
  encoding, variables = make('fire')
  bias = encoding.apply(variables, method='bias_fn')
  assert bias_forms.choose(bias, 'auto', contiguous=False) == 'exact'
  assert bias_forms.choose(bias, 'exact', contiguous=True) == 'exact'
  assert bias_forms.choose(None, 'anchored', contiguous=False) == 'exact'


@pytest.mark.parametrize('start', [2**28, 2**29, 2**30 - 64])
def test_anchors_beyond_float32(start):
  """Positions of anchors around a query may be equal in float32."""
  encoding, variables = make('fire')
  index = jnp.arange(64, dtype=jnp.int32)[None]
  side = Side(index=index, positions=start + index)
  bias = encoding.apply(variables, method='bias_fn')
  got, want = (
    bias_forms.tile(form, bias, side, side) for form in ('anchored', 'exact')
  )
  np.testing.assert_allclose(np.tril(got), np.tril(want), rtol=1e-5, atol=1e-6)


def test_anchors_with_64_bit_types():
  with jax.enable_x64(True):
    encoding, variables = make('fire')
    bias = encoding.apply(variables, method='bias_fn', bidirectional=True)
    side = tokens(0, 64)
    tile = bias_forms.tile('anchored', bias, side, side)
  assert tile.dtype == jnp.float32


def test_anchors_only_where_all_rows_are_late():
  encoding, variables = make('fire(init_threshold=8.)')
  bias = encoding.apply(variables, method='bias_fn')
  index = jnp.arange(64, dtype=jnp.int32)[None]
  side = Side(index=index, positions=index + jnp.array([[0], [200]]))
  got, want = (
    bias_forms.tile(form, bias, side, side) for form in ('anchored', 'exact')
  )
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
