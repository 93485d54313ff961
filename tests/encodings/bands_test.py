"""Tests `lengen_jax/encodings/bands.py`: positions mapped by distance."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import attention, encodings, errors

GOLDEN = pathlib.Path(__file__).parent.parent / 'golden' / 'frontier'
H, D = 2, 8


def golden(name):
  arrays = np.load(GOLDEN / f'{name}.npz')
  inputs = [arrays[f'inputs/{key}'] for key in 'qkv']
  return arrays, inputs


def attended(spec, q, k, v, **options):
  encoding = encodings.create(spec, num_heads=q.shape[2], head_dim=q.shape[3])
  return attention.with_encoding(
    encoding.bind({}), *map(jnp.asarray, (q, k, v)), causal=True, **options
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
def test_near_pairs_and_blocks(monkeypatch, spec, assert_close):
  """Rows within the first band are RoPE's; blocks equal the whole."""
  monkeypatch.setattr(
    attention.dot_product.blockwise, 'block_size', lambda *_: 8
  )
  q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 24, H, D))
  whole = attended(spec, q, k, v, implementation='reference')
  rope = attended('rope', q, k, v, implementation='reference')
  assert_close(whole[:, :5], rope[:, :5])
  assert np.abs(whole[:, -1] - rope[:, -1]).max() > 0.01
  blocks = attended(spec, q, k, v, implementation='blockwise')
  assert_close(blocks, whole)


def test_far_keys_are_masked():
  """Of lm_infinite, gradients reach the first keys and the last ones."""
  q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 12, H, D))

  def last(v):
    return attended('lm_infinite(window=4, sinks=2)', q, k, v)[:, -1].sum()

  reached = np.abs(jax.grad(last)(v)).sum((0, 2, 3)) > 0
  assert reached.tolist() == [True] * 2 + [False] * 6 + [True] * 4


@pytest.mark.parametrize(
  'spec, words',
  [
    ('dual_chunk(chunk=4, window=4)', 'chunk of dual_chunk is 4'),
    ('rerope(leak=0.5)', 'leak of rerope is 0.5'),
    ('lm_infinite(leak=2.)', 'leave it out'),
    ('self_extend(dynamic=True, train_length=8)', 'no dynamic form'),
  ],
)
def test_refused(spec, words):
  with pytest.raises(errors.SpecError, match=words):
    encodings.create(spec, num_heads=H, head_dim=D)
