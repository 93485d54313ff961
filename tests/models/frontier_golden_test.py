"""Tests attention layers against the code of FoX, Cable, RePo and others.

Golden arrays: `golden/frontier/README.json`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import attention, encodings
from lengen_jax.models import layers
from lengen_jax.positions import contextual
from tests import helpers

H, G, D = 4, 2, 8


@functools.cache
def load(name):
  return np.load(helpers.GOLDEN / 'frontier' / f'{name}.npz')


class LinearMap(contextual.Contextual):
  """One linear map per head, or one for all heads; variants of RePo."""

  shared: bool = False

  def setup(self):
    outputs = 1 if self.shared else self.num_heads
    self.map = contextual.base.Float32Linear(
      *(self.width, outputs, ('embed', 'heads')), jax.nn.initializers.zeros
    )

  def values(self, x):
    return jnp.broadcast_to(self.map(x), (*x.shape[:2], self.num_heads))


@pytest.fixture
def registered(monkeypatch):
  menu = {**contextual.CONTEXTUAL, 'linear_map': LinearMap}
  monkeypatch.setattr(contextual, 'CONTEXTUAL', menu)


def heads(weight):
  """Kernel `[E, H, D]` of a projection to heads."""
  return weight.T.reshape(weight.shape[1], -1, D)


def projections(p):
  return {
    'query': {'kernel': heads(p['q_proj.weight'])},
    'key': {'kernel': heads(p['k_proj.weight'])},
    'value': {'kernel': heads(p['v_proj.weight'])},
    'out': {'kernel': p['o_proj.weight'].T.reshape(H, D, -1)},
  }


def norms(p, convert=lambda scale: scale):
  return {
    'query_norm': {'scale': convert(p['q_norm.weight'])},
    'key_norm': {'scale': convert(p['k_norm.weight'])},
  }


def over_all_heads(p):
  return norms(p, lambda scale: scale.reshape(-1, D))


def forget(p):
  gate = {'kernel': p['f_proj.weight'].T, 'bias': p['f_proj.bias']}
  return projections(p) | {'positions': gate}


def forget_gated(p):
  return forget(p) | {'gate': {'kernel': heads(p['g_proj.weight'])}}


def repo(p):
  maps = {'gate': 'gate_map', 'content': 'content_map', 'out': 'final_map'}
  own = {k: {'kernel': p[f'{name}.weight'].T} for k, name in maps.items()}
  return projections(p) | over_all_heads(p) | {'positions': own}


def linear_map(p):
  own = {'map': {'kernel': p['dynamic_map.weight'].T}}
  return projections(p) | over_all_heads(p) | {'positions': own}


def gemma(p):
  """Scales are 1 + w, and logits are divided by sqrt(20)."""
  found = projections(p) | norms(p, lambda w: 1 + w)
  found['query_norm']['scale'] *= (D / 20) ** 0.5
  return found


def gated(p):
  """For each key head, rows of queries come before those of gates."""
  by_key_head = p['q_proj.weight'].reshape(G, -1, p['q_proj.weight'].shape[1])
  queries, gates = jnp.split(by_key_head, [H // G * D], axis=1)
  width = queries.shape[-1]
  p = p | {'q_proj.weight': queries.reshape(-1, width)}
  kernel = jnp.moveaxis(gates.reshape(H, -1, width), 2, 0)
  return projections(p) | norms(p) | {'gate': {'kernel': kernel}}


FORGET = {'encoding': 'linear', 'contextual_positions': 'forget'}
NORMED = {'encoding': 'rope', 'query_key_norm': 'head'}
ALL_NORMED = {'encoding': 'rope', 'query_key_norm': 'all', 'key_heads': H}
CASES = {
  'fox/layer': (forget, FORGET),
  'fox/layer_output_gate': (forget_gated, FORGET | {'output_gate': 'element'}),
  'repo/multihead': (
    repo,
    ALL_NORMED | {'contextual_positions': 'repo'},
  ),
  'repo/linear_per_head': (
    linear_map,
    ALL_NORMED | {'contextual_positions': 'linear_map'},
  ),
  'repo/linear_shared': (
    linear_map,
    ALL_NORMED | {'contextual_positions': 'linear_map(shared=True)'},
  ),
  'qk_norm/qwen3': (lambda p: projections(p) | norms(p), NORMED),
  'qk_norm/gemma3': (gemma, NORMED),
  'qk_norm/olmo2': (
    lambda p: projections(p) | over_all_heads(p),
    ALL_NORMED | {'key_heads': G, 'norm_epsilon': 1e-5},
  ),
  'gated_attention/headwise': (gated, NORMED | {'output_gate': 'head'}),
  'gated_attention/elementwise': (gated, NORMED | {'output_gate': 'element'}),
}


def assert_golden(golden, prefix, function, assert_close, tolerance):
  """Compares outputs and gradients to the source's parameters and x."""

  def of(kind):
    start = f'{prefix}{kind}/'
    return {
      k.removeprefix(start): jnp.asarray(golden[k])
      for k in golden.files
      if k.startswith(start)
    }

  @jax.jit
  def both(params, x):
    y, vjp = jax.vjp(function, params, x)
    return y, vjp(golden[f'{prefix}cot'])

  y, (dparams, dx) = both(of('param'), jnp.asarray(golden[f'{prefix}x']))
  assert_close(y, golden[f'{prefix}out'], tolerance)
  assert_close(dx, golden[f'{prefix}grad_x'], tolerance)
  want = of('grad')
  assert dparams.keys() == want.keys()
  for name in want:
    assert_close(dparams[name], want[name], tolerance)


@pytest.mark.parametrize('case', CASES)
def test_golden_layer(case, registered, assert_close):
  del registered
  name, prefix = case.split('/')
  convert, options = CASES[case]
  layer = layers.Attention(
    num_heads=H, head_dim=D, **{'key_heads': G} | options
  )

  def run(params, x):
    return layer.apply({'params': convert(params)}, x)

  # Positions of RePo are up to 180: float32 angles are off by 2e-5.
  tolerance = 1e-4 if name == 'repo' else 2e-5
  assert_golden(load(name), f'{prefix}/', run, assert_close, tolerance)


def test_golden_cable(assert_close):
  """As FoX with gates of the opposite sign, and logits as they are."""
  scheme = contextual.create('forget', num_heads=H, width=H * D)
  encoding = encodings.create('linear', num_heads=H, head_dim=D)

  def run(p, x):
    def apply(name):
      bias = p[f'{name}.bias'][None, None]
      return x @ jnp.swapaxes(p[f'{name}.weight'], 0, 1)[None] + bias

    gate = {'kernel': -p['h_attn.weight'].T, 'bias': -p['h_attn.bias']}
    own = scheme.apply({'params': gate}, x, method='positions')
    q, k, v = (
      part.reshape(*x.shape[:2], H, D)
      for part in jnp.split(apply('c_attn'), 3, -1)
    )
    y = attention.with_encoding(
      encoding.bind({}),
      *(q, k, v),
      q_positions=own,
      k_positions=own,
      causal=True,
      scale=1.0,
    ).reshape(x.shape)
    return y @ p['c_proj.weight'].T[None] + p['c_proj.bias'][None, None]

  assert_golden(load('cable'), '', run, assert_close, 2e-5)
