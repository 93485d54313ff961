"""Tests `lengen_jax/attention/dot_product.py`: arguments and refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import attention, encodings, errors, positions
from lengen_jax.attention import dot_product
from lengen_jax.training import config as config_lib
from lengen_jax.training import sharding

B, Q, K, H, D = 2, 5, 7, 4, 3


def arrays(q=(B, Q, H, D), k=(B, K, H, D), v=None):
  v = k if v is None else v
  return tuple(
    jax.random.normal(jax.random.key(n), shape)
    for n, shape in enumerate((q, k, v))
  )


def attend(*args, causal=False, **kwargs):
  args = args or arrays()
  return attention.dot_product_attention(*args, causal=causal, **kwargs)


def refused(*args, **kwargs):
  """The message of the refusal."""
  with pytest.raises(errors.ConfigError) as caught:
    attend(*args, **kwargs)
  return str(caught.value)


class Spy:
  """A bias that remembers the positions it is asked for."""

  def __call__(self, q_positions, k_positions):
    self.positions = q_positions, k_positions
    return jnp.zeros((H, Q, K))


def test_causal_must_be_said():
  with pytest.raises(TypeError, match='causal'):
    attention.dot_product_attention(*arrays())


def test_values_may_have_another_size():
  q, k, _ = arrays()
  v = jnp.ones((B, K, H, 9))
  got = attend(q, k, v)
  assert got.shape == (B, Q, H, 9)
  np.testing.assert_allclose(got, 1, rtol=1e-6)


def test_default_scale():
  np.testing.assert_allclose(
    attend(), attend(scale=D**-0.5), rtol=1e-6, atol=1e-6
  )


def test_standard_positions():
  spy = Spy()
  attend(bias=spy)
  i, j = spy.positions
  np.testing.assert_array_equal(np.ravel(i), np.arange(Q))
  np.testing.assert_array_equal(np.ravel(j), np.arange(K))
  assert i.dtype == j.dtype == jnp.int32
  attend(bias=spy, q_offset=3)
  np.testing.assert_array_equal(np.ravel(spy.positions[0]), np.arange(3, 8))
  attend(bias=spy, q_offset=jnp.int32(3))
  np.testing.assert_array_equal(np.ravel(spy.positions[0]), np.arange(3, 8))
  attend(bias=spy, q_offset=jnp.array([3, 1]))
  np.testing.assert_array_equal(
    spy.positions[0], [np.arange(3, 8), np.arange(1, 6)]
  )


@pytest.mark.parametrize('dtype', [jnp.int32, jnp.float32])
def test_positions_reach_the_bias_as_they_are(dtype):
  spy = Spy()
  i = jnp.array([[20_000, 20_001, 20_002, 20_003, 20_064]] * B, dtype)
  j = jnp.arange(K, dtype=dtype) + 20_000
  half = (x.astype(jnp.bfloat16) for x in arrays())
  attend(*half, bias=spy, q_positions=i, k_positions=j)
  for got, given in zip(spy.positions, (i, j), strict=True):
    assert got.dtype == dtype
    np.testing.assert_array_equal(
      np.broadcast_to(got, (B, got.shape[-1])),
      np.broadcast_to(given, (B, given.shape[-1])),
    )


def test_contiguous_is_a_promise_only():
  bias = encodings.create('alibi', num_heads=H, head_dim=D).apply(
    {}, method='bias_fn'
  )
  given = {'q_positions': jnp.arange(Q), 'k_positions': jnp.arange(K)}
  want = attend(causal=True, bias=bias)
  assert np.abs(want - attend(causal=True)).max() > 0.01
  for contiguous in (True, False, None):
    for implementation in ('reference', 'blockwise'):
      given |= {'contiguous': contiguous, 'implementation': implementation}
      got = attend(causal=True, bias=bias, **given)
      np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.parametrize('spec', ['t5', 'kerple_log', 'shaw', 'transformer_xl'])
def test_terms_of_distance_are_computed_once_for_all_rows(spec, monkeypatch):
  """If positions are contiguous, differences of indices replace them."""
  encoding = encodings.create(spec, num_heads=H, head_dim=D)
  i = jnp.array([[4], [9]]) + jnp.arange(Q)[None]
  variables = encoding.init(jax.random.key(3), i, i, method='bias')
  terms = {
    'bias': encoding.apply(variables, method='bias_fn'),
    'content': encoding.apply(variables, method='content_fn'),
  }
  positions_of, attend_all = [], dot_product.IMPLEMENTATIONS['reference']

  def reference(call):
    positions_of.append((call.queries.positions, call.keys.positions))
    return attend_all(call)

  monkeypatch.setitem(dot_product.IMPLEMENTATIONS, 'reference', reference)
  got, want = (
    attend(
      *arrays(k=(B, Q, H, D)),
      **terms,
      q_positions=i,
      k_positions=i,
      contiguous=contiguous,
    )
    for contiguous in (True, False)
  )
  np.testing.assert_allclose(got, want, atol=1e-5)
  shapes = [[x.shape for x in pair] for pair in positions_of]
  assert shapes == [[(1, Q), (1, Q)], [(B, Q), (B, Q)]]


def test_works_inside_jit():
  q, k, v = arrays()
  apply = jax.jit(
    lambda q, k, v, offset, lengths: attend(
      q, k, v, causal=True, q_offset=offset, k_lengths=lengths
    )
  )
  lengths = jnp.array([7, 4])
  for offset in (jnp.int32(2), jnp.array([2, 1])):
    np.testing.assert_allclose(
      apply(q, k, v, offset, lengths),
      attend(q, k, v, causal=True, q_offset=offset, k_lengths=lengths),
      rtol=1e-5,
      atol=1e-6,
    )


@pytest.mark.parametrize(
  'shapes',
  [
    dict(q=(B, Q, D)),
    dict(k=(B, K, D)),
    dict(v=(B, K + 1, H, D)),
    dict(v=(B, K, 2, D)),
    dict(v=(B, K, H)),
  ],
)
def test_refuses_shapes_of_no_attention(shapes):
  message = refused(*arrays(**shapes))
  assert 'must be [B, length, heads, head_dim]' in message
  assert str(next(iter(shapes.values()))) in message


@pytest.mark.parametrize('k', [(3, K, H, D), (B, K, H, 5)])
def test_refuses_different_batches_and_sizes(k):
  message = refused(*arrays(k=k))
  assert 'differ in batch or head_dim' in message
  assert str((B, Q, H, D)) in message and str(k) in message


def test_refuses_heads_that_do_not_divide():
  message = refused(*arrays(k=(B, K, 3, D)))
  assert '4 query heads are not a multiple of 3 key heads' in message


@pytest.mark.parametrize('side', ['q', 'k'])
def test_refuses_lengths_beyond_float32(side):
  long = 2**24 + 1
  q = jax.ShapeDtypeStruct((1, long if side == 'q' else 1, 1, 1), jnp.float32)
  k = jax.ShapeDtypeStruct((1, long if side == 'k' else 1, 1, 1), jnp.float32)
  with pytest.raises(errors.ConfigError, match=f'length {long} is over'):
    jax.eval_shape(attend, q, k, k)


def test_refuses_unknown_implementations():
  message = refused(implementation='refrence')
  assert "implementation 'refrence'; did you mean 'reference'?" in message
  assert 'auto' in message
  for name in dot_product.IMPLEMENTATIONS:
    assert name in message


def test_refuses_unknown_bias_forms():
  message = refused(bias_form='exat')
  assert "bias_form 'exat'; did you mean 'exact'?" in message
  assert 'anchored, auto, exact' in message


def test_the_reference_refuses_approximate_biases():
  message = refused(bias_form='anchored', implementation='reference')
  assert "bias_form='anchored' is not available" in message
  assert "implementation='reference'" in message


@pytest.mark.parametrize('window', [0, -3])
def test_refuses_empty_windows(window):
  assert f'at least 1; got {window}' in refused(window=window)


def test_refuses_sinks_without_a_window():
  assert 'sinks=2 needs a window' in refused(sinks=2)


@pytest.mark.parametrize('side', ['q', 'k'])
@pytest.mark.parametrize(
  'dtype', [jnp.bfloat16, jnp.float16, jnp.int16, jnp.uint32]
)
def test_refuses_positions_of_other_dtypes(side, dtype):
  length = Q if side == 'q' else K
  message = refused(**{f'{side}_positions': jnp.zeros(length, dtype)})
  assert f'{side}_positions are {jnp.dtype(dtype)}' in message
  assert 'int32 or float32' in message


@pytest.mark.parametrize('side', ['q', 'k'])
@pytest.mark.parametrize('shape', [(4,), (3, None), (None, 1), (B, None, 1, 1)])
def test_refuses_positions_of_other_shapes(side, shape):
  length = Q if side == 'q' else K
  shape = tuple(length if n is None else n for n in shape)
  message = refused(**{f'{side}_positions': jnp.zeros(shape, jnp.int32)})
  assert f'{side}_positions have shape {shape}' in message
  assert str((length,)) in message and str((B, length)) in message


@pytest.mark.parametrize('side', ['q', 'k'])
def test_refuses_segments_of_one_side(side):
  length = Q if side == 'q' else K
  ids = jnp.zeros((B, length), jnp.int32)
  message = refused(**{f'{side}_segment_ids': ids})
  assert 'both q_segment_ids and k_segment_ids, or neither' in message


@pytest.mark.parametrize('side', ['q', 'k'])
def test_refuses_segments_of_other_shapes(side):
  ids = {
    'q_segment_ids': jnp.zeros((B, Q), jnp.int32),
    'k_segment_ids': jnp.zeros((B, K), jnp.int32),
    f'{side}_segment_ids': jnp.zeros((1, 3), jnp.int32),
  }
  message = refused(**ids)
  assert f'{side}_segment_ids has shape (1, 3)' in message
  assert str((B, Q if side == 'q' else K)) in message


@pytest.mark.parametrize(
  'shape', [(Q,), (B, 1), (3, Q), (B, Q, 3), (B, Q, H, 1), (B, K)]
)
def test_refuses_logit_scales_of_other_shapes(shape):
  message = refused(logit_scale=jnp.ones(shape))
  assert f'logit_scale has shape {shape}' in message
  assert str((B, Q)) in message and str((B, Q, H)) in message


@pytest.mark.parametrize('shape', [(3,), (B, 1)])
def test_refuses_key_lengths_of_other_shapes(shape):
  message = refused(k_lengths=jnp.ones(shape, jnp.int32))
  assert 'k_lengths' in message and str(shape) in message


@pytest.mark.parametrize('shape', [(3,), (B, 1)])
def test_refuses_offsets_of_other_shapes(shape):
  message = refused(q_offset=jnp.ones(shape, jnp.int32))
  assert 'q_offset' in message and str(shape) in message


@pytest.mark.parametrize('shape', [(H, K, Q), (B, Q, K)])
def test_refuses_biases_of_other_shapes(shape):
  message = refused(bias=jnp.ones(shape))
  assert 'bias' in message and str(shape) in message


def test_refuses_functions_that_give_other_shapes():
  """Written for [Q] and [K] but given a batch, it would broadcast silently."""
  spy = Spy()
  attend(bias=spy)
  i, j = (jnp.atleast_2d(x) for x in spy.positions)
  message = refused(
    q_positions=i,
    k_positions=j,
    bias=lambda q, k: jnp.zeros((1, 1, 1, K)) - k[:, None, None],
  )
  assert 'bias' in message and str((1, 1, 1, K)) in message


@pytest.mark.parametrize(
  'options, message',
  [
    ({'q_offset': 1.5}, 'q_offset must hold integers, got float'),
    (
      {'k_lengths': jnp.ones(1)},
      'k_lengths must hold integers, got float32',
    ),
    ({'k_lengths': [3]}, 'k_lengths must hold integers, got list'),
    ({'window': 2.5}, 'window must be an integer, at least 1; got 2.5'),
    ({'window': 2, 'sinks': -1}, 'sinks must be an integer, at least 0'),
    ({'sinks': None}, 'sinks must be an integer, at least 0; got None'),
    ({'window': True}, 'window must be an integer, at least 1; got True'),
    ({'scale': jnp.ones(())}, 'pass an array as logit_scale'),
    ({'causal': 'no'}, "causal must be True or False, got 'no'"),
    ({'q_positions': 'rope'}, "positions='rope' is a scheme or its spec"),
    ({'bands': ('rope',)}, 'tuple of encodings.Band, got .*rope'),
    ({'bands': 5}, 'tuple of encodings.Band, got 5'),
    ({'bias': lambda *_: None}, r'returned None; .* of shape \(2, 3, 3\)'),
    ({'logit_cap': np.inf}, 'logit_cap must be finite, got inf'),
    ({'scale': np.nan}, 'scale must be finite, got nan'),
  ],
)
def test_refuses_values_of_other_types(options, message):
  x = jnp.zeros((1, 3, 2, 4))
  with pytest.raises(errors.ConfigError, match=message):
    attention.dot_product_attention(x, x, x, **{'causal': True} | options)


def test_refuses_a_contiguous_promise_for_distances():
  x = jnp.zeros((1, 3, 2, 4))
  r = positions.Distances(jnp.array([[0, 2, 5]]))
  with pytest.raises(errors.ConfigError, match='contradicts Distances'):
    attention.dot_product_attention(
      x, x, x, causal=True, q_positions=r, k_positions=r, contiguous=True
    )


def test_refuses_nothing():
  x = jnp.zeros((1, 3, 2, 4))
  with pytest.raises(errors.ConfigError, match='must not be empty'):
    attention.dot_product_attention(x, x[:, :0], x[:, :0], causal=False)


@pytest.mark.parametrize('implementation', ['reference', 'blockwise'])
@pytest.mark.parametrize('dtype', [np.uint8, np.int8, np.int16])
def test_integers_of_any_width(implementation, dtype, assert_close):
  """The number of keys does not fit into one byte."""
  length = 300
  q, k, v = arrays((2, length, 1, 4), (2, length, 1, 4))
  for causal, names in (
    (False, ['k_lengths']),
    (True, ['q_segment_ids', 'k_segment_ids']),
  ):
    value = np.array([100, 40])
    if len(names) == 2:
      value = np.sort(np.arange(2 * length).reshape(2, -1) % 100, 1)
    got, want = (
      attend(
        q,
        k,
        v,
        causal=causal,
        implementation=implementation,
        **dict.fromkeys(names, value.astype(each)),
      )
      for each in (dtype, np.int32)
    )
    assert np.abs(want).min(-1).max() > 0
    np.testing.assert_array_equal(got, want)


def test_functions_get_positions_per_head_as_an_array():
  spy, given = Spy(), jnp.ones((B, Q, H))
  attend(bias=spy, q_positions=given, k_positions=jnp.ones((B, K, H)))
  np.testing.assert_array_equal(spy.positions[0], given)


@pytest.mark.parametrize('devices, kept', [({'data': 2}, True), ({}, False)])
def test_offsets_of_whole_rows_are_known_on_each_device(devices, kept):
  """Kernels then skip keys after the queries."""
  found = []
  layout = sharding.Layout.create(
    config_lib.MeshConfig(**(devices or {'sequence': 2})), 2, jax.devices()[:2]
  )

  def attend(call):
    found.append(call.q_offset)
    return call.q

  with layout.scope(), pytest.MonkeyPatch.context() as patch:
    implementations = {'pallas': dot_product._over_mesh(attend)}
    patch.setattr(dot_product, 'IMPLEMENTATIONS', implementations)
    x = jnp.zeros((2, 4, 2, 4))
    attention.dot_product_attention(
      x, x, x, causal=True, implementation='pallas'
    )
  assert found == [0 if kept else None]


@pytest.mark.parametrize('implementation', ['reference', 'blockwise'])
def test_refuses_a_bias_of_other_heads(implementation):
  x = jnp.zeros((1, 3, 2, 4))
  encoding = encodings.create('alibi', num_heads=4, head_dim=4)
  bias = encoding.apply({}, method='bias_fn')
  with pytest.raises(errors.ConfigError, match='bias function returned shape'):
    attention.dot_product_attention(
      x, x, x, causal=True, bias=bias, implementation=implementation
    )


@pytest.mark.parametrize(
  'dtype, fix', [(bool, r'where\(mask'), (jnp.int32, r'astype\(jnp.float32')]
)
@pytest.mark.parametrize('is_function', [False, True])
def test_a_bias_is_floating_point(dtype, fix, is_function):
  """A mask would add 1 to the logits of the keys that it marks."""
  q = k = v = jnp.ones((1, 4, 2, 8))
  mask = jnp.tril(jnp.ones((1, 2, 4, 4))).astype(dtype)
  bias = (lambda *_: mask) if is_function else mask
  with pytest.raises(errors.ConfigError, match=f'bias has dtype.*{fix}'):
    attention.dot_product_attention(q, k, v, bias=bias, causal=np.False_)


def test_positions_per_head_of_16_bits_are_refused():
  given = {
    'q_positions': jnp.zeros((1, Q, H), jnp.bfloat16),
    'k_positions': jnp.zeros((1, K, H), jnp.bfloat16),
  }
  assert 'must be float32' in refused(**given)


@pytest.mark.parametrize('cap', [0, -1.0])
def test_a_logit_cap_is_positive(cap):
  assert 'logit_cap must be a positive' in refused(logit_cap=cap)
