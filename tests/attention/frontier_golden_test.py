"""Tests attention against the code of FoX, RePo, PoPE and gpt-oss.

Golden arrays: `golden/frontier/README.json`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import attention, encodings
from lengen_jax.positions import contextual
from tests import helpers

FOX, REPO, POPE, SINKS = (
  np.load(helpers.GOLDEN / 'frontier' / f'{name}.npz')
  for name in ('fox', 'repo', 'pope', 'sinks')
)
IMPLEMENTATIONS = ['reference', 'blockwise']


def arrays(golden, prefix, names):
  return [jnp.asarray(golden[f'{prefix}/{name}']) for name in names]


def value_and_grads(function, cotangent, *inputs):
  """Output, and gradients to all inputs of its product with a cotangent."""

  @jax.jit
  def both(*inputs):
    y, vjp = jax.vjp(function, *inputs)
    return y, *vjp(cotangent)

  return both(*inputs)


def gate_positions(gate_logits, segment_ids=None):
  """Positions of the scheme `forget` with given gates."""
  num_heads = gate_logits.shape[-1]
  scheme = contextual.create('forget', num_heads=num_heads, width=num_heads)
  params = {'kernel': jnp.eye(num_heads), 'bias': jnp.zeros(num_heads)}
  return scheme.apply(
    {'params': params}, gate_logits, segment_ids, method='positions'
  )


@pytest.mark.some(3)
@pytest.mark.parametrize('implementation', IMPLEMENTATIONS)
@pytest.mark.parametrize('case', ['mha', 'gqa', 'window', 'scale1', 'strong'])
def test_golden_forgetting(case, implementation, assert_close):
  prefix = f'attn/{case}'
  names = 'q', 'k', 'v', 'gate_logits'
  q, k, v, gates = arrays(FOX, prefix, names)
  encoding = encodings.create('linear', num_heads=4, head_dim=8)

  def attend(q, k, v, gates):
    p = gate_positions(gates)
    return attention.with_encoding(
      encoding.bind({}),
      *(q, k, v),
      q_positions=p,
      k_positions=p,
      causal=True,
      window=int(FOX[f'{prefix}/window']) or None,
      scale=float(FOX[f'{prefix}/scale']),
      implementation=implementation,
    )

  y, *got = value_and_grads(attend, FOX[f'{prefix}/cot'], q, k, v, gates)
  assert_close(y, FOX[f'{prefix}/out'])
  *want, to_log = arrays(
    FOX, prefix, ('grad_q', 'grad_k', 'grad_v', 'grad_log_f')
  )
  want.append(to_log * jax.nn.sigmoid(-gates))
  for one, other in zip(got, want, strict=True):
    assert_close(one, other, 2e-5)


def test_golden_forgetting_in_packed_rows(assert_close):
  q, k, v, log_f = arrays(FOX, 'packed', ('q', 'k', 'v', 'log_f'))
  starts = FOX['packed/cu_seqlens']
  ids = jnp.asarray(np.repeat(np.arange(3), np.diff(starts)))[None]
  encoding = encodings.create('linear', num_heads=4, head_dim=8)
  gates = log_f - jnp.log(-jnp.expm1(log_f))
  p = jax.jit(gate_positions)(gates, ids)
  for implementation in IMPLEMENTATIONS:
    got = attention.with_encoding(
      encoding.bind({}),
      *(q, k, v),
      q_positions=p,
      k_positions=p,
      q_segment_ids=ids,
      k_segment_ids=ids,
      causal=True,
      implementation=implementation,
    )
    assert_close(got, FOX['packed/out'])


@pytest.mark.some(2)
@pytest.mark.parametrize('case', ['causal', 'bidirectional'])
def test_golden_biases_of_gates(case, assert_close):
  """Gates start open. Above the diagonal, the source has other values."""
  x, weight, want = arrays(FOX, f'xtr/{case}', ('x', 'weight', 'attn_bias'))
  scheme = contextual.create('forget(bias_init=5)', num_heads=4, width=24)
  params = scheme.init(jax.random.key(0), x[:, :1])['params']
  np.testing.assert_array_equal(
    params['bias'].value, FOX[f'xtr/{case}/bias_at_init'][:4]
  )
  params = {'kernel': weight[:4].T, 'bias': params['bias'].value}
  apply = jax.jit(functools.partial(scheme.apply, method='positions'))
  p = apply({'params': params}, x)
  bias_fn = encodings.create('linear', num_heads=4, head_dim=8).bind({})
  got = bias_fn.bias_fn()(p, p)
  assert_close(np.tril(got), np.tril(want))


@pytest.mark.parametrize(
  'case', ['multihead', 'linear_per_head', 'linear_shared']
)
def test_golden_rotation_at_positions_per_head(case, assert_close):
  names = 'q', 'k', 'v', 'positions', 'weights'
  q, k, v, p, want = arrays(REPO, case, names)
  p = jnp.broadcast_to(jnp.moveaxis(p, 1, 2), q.shape[:3])
  encoding = encodings.create('rope', num_heads=4, head_dim=8)

  def attend(v):
    return attention.with_encoding(
      encoding.bind({}), q, k, v, q_positions=p, k_positions=p, causal=True
    )

  length = q.shape[1]
  # These values make the output of a query its weights.
  each = jnp.broadcast_to(
    jnp.eye(length)[None, :, None], (2, length, 4, length)
  )
  got = jnp.moveaxis(attend(each), 1, 2)
  assert_close(got, want, 1e-4)
  y = attend(v).reshape(2, length, -1)
  y @= jnp.asarray(REPO[f'{case}/param/o_proj.weight'].T)[None]
  assert_close(y, REPO[f'{case}/out'], 1e-4)


@pytest.mark.some(3)
@pytest.mark.parametrize(
  'case', ['zero_bias', 'learned_bias', 'float_positions']
)
def test_golden_polar(case, assert_close):
  names = 'q', 'k', 'v', 'positions', 'learned_bias'
  q, k, v, p, delta = arrays(POPE, case, names)
  p = p[None]
  encoding = encodings.create('pope', num_heads=4, head_dim=8)
  params = encoding.project({'delta': delta})
  within = delta == params['delta']
  assert within.all() == (case == 'zero_bias')

  def rotated(q, k, delta):
    return attention.rotated(
      encoding.bind({'params': {'delta': delta}}), q, k, p, p
    )

  # The source adds the phase to keys, so only products are the same.
  rq, rk = rotated(q, k, params['delta'])
  logits = 8**-0.5 * jnp.einsum('bqhd,bkhd->bhqk', rq, rk)
  assert_close(logits, POPE[f'{case}/logits'])

  def attend(q, k, v, delta):
    return attention.with_encoding(
      encoding.bind({'params': {'delta': delta}}),
      *(q, k, v),
      q_positions=p,
      k_positions=p,
      causal=True,
    )

  y, *got = value_and_grads(
    attend, POPE[f'{case}/cot'], q, k, v, params['delta']
  )
  assert_close(y, POPE[f'{case}/out'])
  *want, to_delta = arrays(
    POPE, case, ('grad_q', 'grad_k', 'grad_v', 'grad_learned_bias')
  )
  assert_close(got[:3], want, 2e-5)
  # Where the source clamps, it has no gradient.
  assert_close(got[3] * within, to_delta, 2e-5)


@pytest.mark.parametrize('implementation', IMPLEMENTATIONS)
@pytest.mark.parametrize('case', ['full', 'window', 'window1'])
def test_golden_sink_logits(case, implementation, assert_close):
  names = 'q', 'k', 'v', 'sinks'
  inputs = arrays(SINKS, case, names)

  def attend(q, k, v, sink_logits):
    return attention.dot_product_attention(
      *(q, k, v),
      causal=True,
      window=int(SINKS[f'{case}/window']) or None,
      sink_logits=sink_logits,
      implementation=implementation,
    )

  y, *got = value_and_grads(attend, SINKS[f'{case}/cot'], *inputs)
  assert_close(y, SINKS[f'{case}/out'])
  for name, one in zip(names, got, strict=True):
    assert_close(one, SINKS[f'{case}/grad_{name}'], 2e-5)
