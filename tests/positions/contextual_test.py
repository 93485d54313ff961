"""Tests `lengen_jax/positions/contextual`."""

import functools

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import errors
from lengen_jax import positions as position_schemes
from lengen_jax.positions import contextual
from lengen_jax.positions.contextual import base

B, L, E, H = 2, 13, 24, 3
SPECS = ['forget', 'repo', 'selective']
SEGMENTS = np.stack(
  [np.repeat([3, 1, 2], [5, 1, 7]), np.repeat([4, 0], [9, 4])]
)


def create(spec, width=E, num_heads=H):
  return contextual.create(spec, num_heads=num_heads, width=width)


def random(*shape, seed=0):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def random_params(scheme, seed=1):
  """Normal parameters, shaped as those of the scheme."""
  x = jnp.zeros((1, 1, scheme.width))
  shapes = nn.unbox(jax.eval_shape(scheme.init, jax.random.key(0), x))
  leaves, tree = jax.tree.flatten(shapes['params'])
  rng = np.random.default_rng(seed)
  return jax.tree.unflatten(
    tree,
    [rng.normal(size=leaf.shape).astype(np.float32) for leaf in leaves],
  )


def positions(scheme, params, x, *args):
  return scheme.apply({'params': params}, x, *args, method='positions')


def exact(found):
  """The positions of a PerHead, float64."""
  error = 0.0 if found.error is None else np.asarray(found.error, np.float64)
  return np.asarray(found.value, np.float64) + error


def forget(p, x):
  gate = 1 / (1 + np.exp(-(x @ p['kernel'] + p['bias'])))
  return -np.log(gate)


def repo(p, x):
  gate = x @ p['gate']['kernel']
  hidden = gate / (1 + np.exp(-gate)) * (x @ p['content']['kernel'])
  return hidden @ p['out']['kernel']


def selective(p, x):
  return 1 + x @ p['steps']['kernel']


def literal(spec, params, x, ids):
  """Positions token by token, float64."""
  values = {'forget': forget, 'repo': repo, 'selective': selective}[spec]
  params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
  found = np.zeros((B, L, H))
  for b in range(B):
    for i in range(L):
      found[b, i] = values(params, np.float64(x[b, i]))
      continues = i > 0 and (ids is None or ids[b, i] == ids[b, i - 1])
      if spec != 'repo' and continues:
        found[b, i] += found[b, i - 1]
  return found


@pytest.mark.parametrize('packed', [False, True])
@pytest.mark.parametrize('spec', SPECS)
def test_formula(spec, packed, assert_close):
  scheme, x = create(spec), random(B, L, E)
  params, ids = random_params(scheme), SEGMENTS if packed else None
  found = positions(scheme, params, x, ids)
  assert found.value.dtype == jnp.float32
  assert_close(exact(found), literal(spec, params, x, ids), 2e-6)
  np.testing.assert_array_equal(
    scheme.apply({'params': params}, x, ids), found.value
  )
  # The input is as it is in a model, and positions are float32.
  rounded = positions(scheme, params, jnp.asarray(x, jnp.bfloat16), ids)
  assert rounded.value.dtype == jnp.float32
  near = np.asarray(jnp.asarray(x, jnp.bfloat16), np.float32)
  assert_close(exact(rounded), literal(spec, params, near, ids), 2e-6)


@pytest.mark.parametrize(
  'spec, params',
  [
    ('forget', {'kernel': (E, H), 'bias': (H,)}),
    (
      'repo',
      {'gate/kernel': (E, 3), 'content/kernel': (E, 3), 'out/kernel': (3, H)},
    ),
    ('selective', {'steps/kernel': (E, H)}),
  ],
)
def test_initial(spec, params):
  scheme, x = create(spec), random(B, L, E)
  variables = nn.unbox(scheme.init(jax.random.key(0), x))
  shapes = {
    '/'.join(entry.key for entry in path): leaf.shape
    for path, leaf in jax.tree.leaves_with_path(variables['params'])
  }
  assert shapes == params
  found = exact(positions(scheme, variables['params'], x))
  index = np.arange(1, L + 1)[None, :, None]
  if spec == 'selective':
    np.testing.assert_array_equal(found, np.broadcast_to(index, (B, L, H)))
  elif spec == 'repo':
    assert 0 < np.abs(found).max() < 0.05
  else:
    # Each gate is near 1/2.
    assert np.abs(found / index - np.log(2)).max() < 0.2
    slow = create('forget(bias_init=5)')
    bias = nn.unbox(slow.init(jax.random.key(0), x))['params']['bias']
    np.testing.assert_array_equal(bias, 5)
  assert create('repo(hidden=7)').init_with_output(jax.random.key(0), x)[1][
    'params'
  ]['gate']['kernel'].unbox().shape == (E, 7)


def plain(values, ids):
  """Sums over segments by matrices, which differentiate themselves."""
  visible = np.tril(np.ones((L, L), np.float32))[None]
  if ids is not None:
    same = ids[:, :, None] == ids[:, None, :]
    visible = visible * same
  return jnp.einsum('bij,bjh->bih', jnp.asarray(visible), values)


@pytest.mark.parametrize('ids', [None, SEGMENTS], ids=['whole', 'packed'])
def test_gradient_of_sums(ids, assert_close):
  values, cotangent = random(B, L, H), random(B, L, H, seed=2)
  want, to_values = jax.vjp(functools.partial(plain, ids=ids), values)
  if ids is None:
    assert_close(jnp.cumsum(values, 1), want)
  got, vjp = jax.vjp(lambda values: base._sums(values, ids)[0], values)
  assert_close(got, want)
  assert_close(vjp(cotangent), to_values(cotangent))


@pytest.mark.parametrize('spec', SPECS)
def test_gradient_to_the_input_and_parameters(spec, assert_close):
  """By central differences of the literal positions."""
  scheme, x = create(spec), random(B, L, E)
  params, cotangent = random_params(scheme), random(B, L, H, seed=2)
  step, direction = 1e-5, random(B, L, E, seed=3)
  toward = jax.tree.map(lambda leaf: random(*leaf.shape, seed=4), params)

  def at(sign):
    moved = jax.tree.map(
      lambda a, b: np.float64(a) + sign * step * b, params, toward
    )
    shifted = np.float64(x) + sign * step * direction
    return np.vdot(literal(spec, moved, shifted, SEGMENTS), cotangent)

  want = (at(1) - at(-1)) / (2 * step)
  _, vjp = jax.vjp(
    lambda p, x: positions(scheme, p, x, SEGMENTS).value, params, x
  )
  got = sum(
    np.vdot(np.float64(a), b)
    for a, b in zip(
      jax.tree.leaves(vjp(cotangent)),
      jax.tree.leaves((toward, direction)),
      strict=True,
    )
  )
  assert_close(got, want, 1e-5)


@functools.cache
def many(spec, level):
  """Positions of 131,072 tokens, and those of sums in float64."""
  scheme, x = create(spec, width=4, num_heads=2), random(1, 2**17, 4)
  params = nn.unbox(scheme.init(jax.random.key(0), x[:, :1]))['params']
  run = jax.jit(
    functools.partial(positions, scheme),
    compiler_options={'xla_backend_optimization_level': level},
  )
  values = scheme.apply({'params': params}, x, method='values')
  return run(params, x), np.cumsum(np.asarray(values, np.float64), 1)


@pytest.mark.some(3)
@pytest.mark.parametrize('bias, level', [(0, 0), (0, 3), (5, 0), (5, 3)])
def test_distances_of_131072_tokens_are_exact(bias, level):
  found, want = many(f'forget(bias_init={bias})', level)
  assert np.abs(exact(found) - want).max() < 1e-4
  at = np.array([0, 1, 2**16, 2**17 - 30, 2**17 - 2, 2**17 - 1])
  chosen = jax.tree.map(lambda leaf: leaf[0, at, 0], found)
  distance = want[0][at, :1] - want[0][at, 0][None]
  # The result is one float32.
  limit = 1e-4 + 1e-7 * np.abs(distance)
  assert (np.abs(chosen.to(chosen) - distance) < limit).all()
  # The control: one float32 per position is off.
  rounded = chosen.value[:, None] - chosen.value[None]
  assert np.abs(rounded - distance).max() > (1e-3 if bias == 0 else 1e-5)


@pytest.mark.parametrize('spec', SPECS)
def test_before_continues_a_sum(spec, assert_close):
  scheme, x = create(spec), random(B, L, E)
  params = random_params(scheme)
  want = positions(scheme, params, x)
  parts, before, start = [], None, 0
  for size in (5, 1, 1, 6):
    part = positions(scheme, params, x[:, start : start + size], None, before)
    before = jax.tree.map(lambda leaf: leaf[:, -1:], part)
    parts.append(exact(part))
    start += size
  assert_close(np.concatenate(parts, 1), exact(want), 1e-6)
  if scheme.cumulative:
    zeros = jax.tree.map(lambda leaf: 0 * leaf[:, :1], want)
    again = positions(scheme, params, x, None, zeros)
    jax.tree.map(np.testing.assert_array_equal, again, want)


@pytest.mark.parametrize('spec', SPECS)
def test_no_tokens(spec):
  scheme = create(spec)
  found = positions(scheme, random_params(scheme), random(B, 0, E))
  assert found.shape == (B, 0, H)


@pytest.mark.parametrize('spec', ['none', *SPECS])
def test_slots_of_a_cache(spec):
  scheme = create(spec)
  slots = scheme.slots(B, L)
  assert scheme.is_none == (spec == 'none') == (slots is None)
  if slots is not None:
    assert slots.shape == (B, L, H)
    assert (slots.error is None) == (not scheme.cumulative)
    assert all(not leaf.any() for leaf in jax.tree.leaves(slots))
    # Buffers that are equal cannot be donated.
    jax.jit(lambda x: jax.tree.map(jnp.sin, x), donate_argnums=0)(slots)


@pytest.mark.parametrize('name', sorted(contextual.CONTEXTUAL))
def test_facts(name):
  scheme = create(name)
  assert type(scheme) is contextual.CONTEXTUAL[name]
  assert scheme.formula and scheme.parameters
  assert bool(scheme.source) == (name != 'none')
  assert contextual.is_contextual(name) == (name != 'none')
  assert contextual.is_contextual(f'none, 2*{name}') == (name != 'none')


def test_position_schemes_are_not_contextual():
  assert not contextual.is_contextual('standard')
  for name, words in (('forget', 'in each layer'), ('forgett', "'forget'")):
    with pytest.raises(errors.SpecError, match=words):
      position_schemes.create(name)
  assert not contextual.is_contextual('randomized(max_position=9), standard')


@pytest.mark.parametrize(
  'spec, facts',
  [
    ('forgets', ["unknown contextual position scheme 'forgets'", "'forget'"]),
    ('forget(bias=5)', ['bias', "'bias_init'"]),
    ('selective(hidden=2)', ['selective', 'hidden', 'no keys']),
    ('repo(hidden=0)', ['hidden', '0', 'None or >= 1']),
    ("repo(hidden='x')", ['hidden', "'x'"]),
    ('forget(num_heads=2)', ['num_heads']),
  ],
)
def test_refuses(spec, facts):
  with pytest.raises(errors.SpecError) as caught:
    create(spec)
  missing = [fact for fact in facts if fact not in str(caught.value)]
  assert not missing, caught.value


class Counted(contextual.Contextual):
  """Sums a constant."""

  step: float = 2.0
  cumulative = True

  def values(self, x):
    return jnp.full((*x.shape[:2], self.num_heads), self.step)


def test_register(monkeypatch):
  monkeypatch.setattr(contextual, 'CONTEXTUAL', {**contextual.CONTEXTUAL})
  contextual.register('counted', Counted)
  got = create('counted(step=3.)').apply({}, random(B, L, E), SEGMENTS)
  want = literal_counts(SEGMENTS) * 3.0
  np.testing.assert_array_equal(got, np.stack([want] * H, -1))
  assert contextual.is_contextual('counted(step=3.)')
  with pytest.raises(errors.SpecError, match="'forget' is registered"):
    contextual.register('forget', Counted)


def literal_counts(ids):
  counts = np.ones(ids.shape)
  for i in range(1, ids.shape[1]):
    counts[:, i] += (ids[:, i] == ids[:, i - 1]) * counts[:, i - 1]
  return counts


@pytest.mark.parametrize('thing', [dict, lambda x: x, 'forget'])
def test_register_refuses_what_is_no_scheme(thing):
  with pytest.raises(errors.SpecError, match='not a subclass of'):
    contextual.register('mine', thing)
  assert 'mine' not in contextual.CONTEXTUAL


def test_without_a_scheme_positions_are_those_of_the_segment():
  found = create('none').apply({}, random(B, L, E))
  np.testing.assert_array_equal(found, np.indices((B, L, H))[1])
  ids = jnp.arange(L)[None] // 3 * jnp.ones((B, 1))
  found = create('none').apply({}, random(B, L, E), ids)
  np.testing.assert_array_equal(found, np.indices((B, L, H))[1] % 3)


def test_a_subclass_without_values():
  class Empty(contextual.Contextual):
    pass

  with pytest.raises(NotImplementedError, match='Empty has no values'):
    Empty(num_heads=H, width=E).apply({}, random(B, L, E))
