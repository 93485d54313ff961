"""Tests `lengen_jax/encodings/base.py`: what holds for every encoding."""

import dataclasses
import functools

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import encodings, errors, positions, testing
from lengen_jax.encodings import base
from lengen_jax.models import layers
from tests import helpers

# Keys without a default.
SPECS = {
  'learned': 'learned(max_position=64)',
  'yarn': 'yarn(scale=4., train_length=64)',
  'longrope': 'longrope(train_length=64, scale=4., '
  'short_factors=(1., 1., 1., 1.), long_factors=(1., 2., 3., 4.))',
}
NAMES = sorted(encodings.ENCODINGS)
ROTARY = {'rope', 'ntk', 'yarn', 'llama3', 'longrope', 'pope'}
BANDS = {'rerope', 'self_extend', 'dual_chunk', 'lm_infinite'}
CONTENT = {'shaw', 'transformer_xl'}
WITHOUT_BIAS = {'nope', 'sinusoidal', 'learned', *ROTARY, *BANDS, *CONTENT}
# Every encoding with a bias, and forms of it that a tile sees.
BIASES = [name for name in NAMES if name not in WITHOUT_BIAS] + [
  "fire(normalizer='max_length', max_length=64)",
  "fire(normalizer='none', sign=True, hidden_layers=0)",
  'alibi(official_compat=True)',
]
HEADS, HEAD_DIM, WIDTH = 4, 8, 32
HOOKS = ('embed', 'rotate', 'bias', 'bias_fn', 'content_fn')


def create(name, **kwargs):
  return encodings.create(
    SPECS.get(name, name),
    num_heads=HEADS,
    head_dim=HEAD_DIM,
    width=WIDTH,
    **kwargs,
  )


TRANSLATION_INVARIANT = [
  name for name in BIASES if create(name).translation_invariant
]


def init(encoding, hook='bias_fn', seed=0):
  x = jnp.zeros((1, 2, WIDTH))
  q = jnp.zeros((1, 2, HEADS, HEAD_DIM))
  p = jnp.arange(2)[None]
  args = {
    'embed': (x, p),
    'rotate': (q, q, p, p, jnp.full((1, 1), 2)),
    'bias': (p, p),
    'bias_fn': (),
    'content_fn': (),
  }[hook]
  return encoding.init(jax.random.key(seed), *args, method=hook)


def biases_and_directions(names):
  """Each bias in one direction by turns, those that differ in both in both."""
  cases = {(name, bool(n % 2)) for n, name in enumerate(names)}
  for name in {'t5', 'fire', 'alibi(official_compat=True)'} & {*names}:
    cases |= {(name, False), (name, True)}
  return pytest.mark.parametrize('name, bidirectional', sorted(cases))


@functools.cache
def make_bias_fn(name, bidirectional=False):
  """The BiasFn of an encoding, with random parameters."""
  encoding = create(name)
  variables = nn.unbox(init(encoding))
  return encoding.apply(
    variables, bidirectional=bidirectional, method='bias_fn'
  )


@jax.jit
def tile(bias_fn, q_positions, k_positions):
  """Compiled, which is faster than op by op."""
  return bias_fn(q_positions, k_positions)


def random_positions(seed, *shape, fractional=True):
  x = np.random.default_rng(seed).uniform(0, 900, shape)
  return jnp.asarray(x, jnp.float32 if fractional else jnp.int32)


def shapes(variables):
  return jax.tree.map(
    lambda x: (x.shape, x.dtype), nn.unbox(variables.get('params', {}))
  )


@pytest.mark.parametrize('name', NAMES)
def test_which_encodings_have_a_bias_or_content(name):
  bias_fn = make_bias_fn(name)
  assert (bias_fn is None) == (name in WITHOUT_BIAS)
  encoding = create(name)
  p = jnp.arange(3)
  variables = nn.unbox(init(encoding))
  got = encoding.apply(variables, p, p, method='bias')
  assert (got is None) == (name in WITHOUT_BIAS)
  content_fn = encoding.apply(variables, method='content_fn')
  assert (content_fn is None) == (name not in CONTENT)
  assert encoding.needs_content == (name in CONTENT)
  assert (encodings.kind(encoding) == 'bands') == (name in BANDS)


@pytest.mark.parametrize('name', NAMES)
def test_every_hook_creates_every_parameter_alike(name):
  encoding = create(name)
  make = init
  if name not in ('fire', 'transformer_xl'):
    # Values matter where there are submodules; elsewhere shapes suffice.
    def make(*args):
      return jax.eval_shape(lambda: init(*args))

  trees = [nn.unbox(make(encoding, hook)) for hook in HOOKS]
  for tree in trees[1:]:
    assert jax.tree.structure(tree) == jax.tree.structure(trees[0])
    assert shapes(tree) == shapes(trees[0])
    if make is init:
      jax.tree.map(np.testing.assert_array_equal, tree, trees[0])


@pytest.mark.parametrize('name', NAMES)
def test_hooks_do_nothing_by_default(name):
  encoding = create(name)
  variables = nn.unbox(init(encoding))
  key = jax.random.key(0)
  x = jax.random.normal(key, (2, 5, WIDTH))
  q = jax.random.normal(key, (2, 5, HEADS, HEAD_DIM))
  p = jnp.arange(1, 6)[None]
  embedded = encoding.apply(variables, x, p, method='embed')
  assert (embedded is x) == (not encoding.embeds)
  lengths = jnp.full((1, 1), 5)
  turned, _ = encoding.apply(variables, q, q, p, p, lengths, method='rotate')
  assert (turned is q) == (name not in ROTARY)


@pytest.mark.parametrize('name', NAMES)
def test_logical_axes(name):
  boxed = jax.eval_shape(lambda: init(create(name)))
  leaves = jax.tree.leaves(
    boxed, is_leaf=lambda x: isinstance(x, nn.meta.AxisMetadata)
  )
  for leaf in leaves:
    assert isinstance(leaf, nn.LogicallyPartitioned)
    assert len(leaf.names) == leaf.unbox().ndim
    assert set(leaf.names) <= helpers.AXES
    assert len(set(leaf.names)) == len(leaf.names)


@pytest.mark.parametrize('name', NAMES)
def test_make_param_is_the_only_way_parameters_are_made(name):
  made = {}

  def make_param(module, name, init, shape, axes):
    made[(*module.path, name)] = axes
    assert len(axes) == len(shape)
    return module.param(name, init, shape, jnp.float32)

  plain = init(create(name))
  substituted = init(create(name).clone(make_param=make_param))
  jax.tree.map(np.testing.assert_array_equal, substituted, nn.unbox(plain))
  flat = jax.tree.leaves_with_path(substituted.get('params', {}))
  assert {tuple(k.key for k in path) for path, _ in flat} == set(made)
  boxed = jax.tree.leaves(
    plain, is_leaf=lambda x: isinstance(x, nn.meta.AxisMetadata)
  )
  assert sorted(leaf.names for leaf in boxed) == sorted(made.values())


@pytest.mark.parametrize('name', ['learned', 'fire', 'kerple_log', 't5'])
def test_parameters_may_be_numpy_arrays(name):
  """As they come from a checkpoint, eagerly and closed over by jit."""
  encoding = create(name)
  variables = jax.device_get(nn.unbox(init(encoding)))
  p = jnp.arange(5)
  x = jnp.zeros((1, 5, WIDTH))

  def apply(p):
    return (
      encoding.apply(variables, p, p, method='bias'),
      encoding.apply(variables, x, p, method='embed'),
    )

  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
    jax.jit(apply)(p),
    apply(p),
  )


@pytest.mark.parametrize('name', NAMES)
def test_encodings_are_hashable_and_compared_by_value(name):
  one, other = create(name), create(name)
  assert one == other and hash(one) == hash(other)
  assert one != one.clone(shared=True)
  bound = one.bind(nn.unbox(init(one)))
  assert bound.unbound() == one and hash(bound.unbound()) == hash(one)


@pytest.mark.parametrize('name', NAMES)
def test_facts_are_readable_unbound(name):
  encoding = create(name)
  for fact in (
    'translation_invariant',
    'fractional_positions',
    'length_dependent',
    'interpolates',
    'embeds',
    'needs_content',
    'takes_distances',
  ):
    assert isinstance(getattr(encoding, fact), bool), fact
  assert encoding.max_position is None or encoding.max_position > 0
  assert encoding.formula and encoding.source and encoding.beyond


@pytest.mark.parametrize('bidirectional', [False, True])
@pytest.mark.parametrize('name', BIASES)
def test_shapes_and_dtypes(name, bidirectional):
  bias_fn = make_bias_fn(name, bidirectional)
  assert bias_fn.bidirectional is bidirectional
  for dtype in (jnp.int32, jnp.float32):
    q, k = jnp.zeros((2, 3), dtype), jnp.zeros((2, 5), dtype)
    flat = jax.eval_shape(bias_fn, q[0], k[0])
    assert flat.shape == (HEADS, 3, 5) and flat.dtype == jnp.float32
    batched = jax.eval_shape(bias_fn, q, k)
    assert batched.shape == (2, HEADS, 3, 5)
    assert batched.dtype == jnp.float32


@biases_and_directions(BIASES)
def test_tile_is_a_slice_of_the_whole(name, bidirectional, assert_close):
  """And `[Q], [K]` is a row of `[B, Q], [B, K]`."""
  bias_fn = make_bias_fn(name, bidirectional)
  q, k = random_positions(0, 2, 9), random_positions(1, 2, 11)
  whole = tile(bias_fn, q, k)
  part = tile(bias_fn, q[1, 2:5], k[1, 4:8])
  assert_close(part, whole[1, :, 2:5, 4:8], 1e-6)


@pytest.mark.parametrize('name', BIASES)
def test_integers_and_whole_floats_agree(name, assert_close):
  bias_fn = make_bias_fn(name)
  q, k = (random_positions(n, 2, 9, fractional=False) for n in (0, 1))
  want = tile(bias_fn, q.astype(jnp.float32), k.astype(jnp.float32))
  assert_close(tile(bias_fn, q, k), want, 1e-6)


@biases_and_directions(TRANSLATION_INVARIANT)
def test_strip_equals_tile(name, bidirectional, assert_close):
  bias_fn = make_bias_fn(name, bidirectional)
  n = 9
  p = jnp.arange(n) + 100
  want = tile(bias_fn, p, p)
  index = np.arange(n)[:, None] - np.arange(n) + n - 1
  strip = jax.jit(
    lambda params, d: bias_fn.encoding.strip(
      params, d, bidirectional=bidirectional
    )
  )
  for dtype in (jnp.int32, jnp.float32):
    got = strip(bias_fn.params, jnp.arange(-n + 1, n, dtype=dtype))
    assert got.shape == (HEADS, 2 * n - 1) and got.dtype == jnp.float32
    assert_close(got[:, index], want, 1e-6)


@pytest.mark.parametrize('name', TRANSLATION_INVARIANT)
def test_far_integer_positions_are_exact(name):
  bias_fn = make_bias_fn(name)
  near = jnp.arange(65)
  want = tile(bias_fn, near, near)
  # Beyond 2^24 float32 skips integers; differences are still exact.
  for shift in (20_000, 2**24 + 1):
    got = tile(bias_fn, near + shift, near + shift)
    np.testing.assert_array_equal(got, want)


@biases_and_directions(BIASES)
def test_finite_on_both_sides_of_the_diagonal(name, bidirectional):
  p = jnp.array([0, 1, 2, 127, 128, 4095, 100_000])

  @jax.jit
  @functools.partial(jax.grad, has_aux=True)
  def gradient(bias_fn):
    bias = bias_fn(p, p)
    return bias.sum(), bias

  for leaf in jax.tree.leaves(gradient(make_bias_fn(name, bidirectional))):
    assert np.isfinite(leaf).all()


@pytest.mark.parametrize('name', BIASES)
def test_head_slices(name, assert_close):
  """Cutting every leaf along its 'heads' axis gives the bias of those heads."""
  bias_fn = make_bias_fn(name)
  leaves, treedef = jax.tree.flatten(bias_fn.params)
  assert len(leaves) == len(bias_fn.axes)
  assert any('heads' in axes for axes in bias_fn.axes)
  for leaf, axes in zip(leaves, bias_fn.axes, strict=True):
    assert leaf.dtype == jnp.float32 and leaf.ndim == len(axes) > 0
    assert set(axes) <= helpers.AXES and len(set(axes)) == len(axes)
  heads = slice(1, 3)
  cut = [
    leaf[tuple(heads if axis == 'heads' else slice(None) for axis in axes)]
    for leaf, axes in zip(leaves, bias_fn.axes, strict=True)
  ]
  q, k = random_positions(0, 2, 5), random_positions(1, 2, 7)
  part = tile(bias_fn.replace(params=treedef.unflatten(cut)), q, k)
  assert_close(part, tile(bias_fn, q, k)[:, heads], 1e-6)


# Forms that take positions per head, which are fractional.
PER_HEAD = [
  name
  for name in [*BIASES, 'linear(learned=True)']
  if create(name).fractional_positions and create(name).tileable
]


@pytest.mark.some(2)
@pytest.mark.parametrize('name', PER_HEAD)
def test_positions_per_head(name, assert_close):
  """Each head has the bias that it has alone at its positions."""
  bias_fn = make_bias_fn(name)
  q, k = random_positions(0, 2, 5, HEADS), random_positions(1, 2, 7, HEADS)
  got = tile(bias_fn, q, k)
  assert got.shape == (2, HEADS, 5, 7) and got.dtype == jnp.float32
  for head in range(HEADS):
    alone = tile(bias_fn, q[..., head], k[..., head])[:, head]
    assert_close(got[:, head], alone, 2e-6)
  # As on a device that has two of the heads.
  own = slice(1, 3)
  params = {
    n: bias_fn.params[n][
      tuple(own if axis == 'heads' else slice(None) for axis in axes)
    ]
    for n, axes in zip(sorted(bias_fn.params), bias_fn.axes, strict=True)
  }
  part = tile(bias_fn.replace(params=params), q[..., own], k[..., own])
  assert_close(part, got[:, own], 2e-6)


@pytest.mark.some(2)
@pytest.mark.parametrize('name', PER_HEAD)
def test_gradients_to_positions_per_head(name, assert_close):
  """They are finite where distances are 0, and those of each head alone."""
  bias_fn = make_bias_fn(name)
  p, head = random_positions(0, 2, 5, HEADS), 2
  cotangent = jax.random.normal(jax.random.key(3), (2, 5, 5))

  @jax.jit
  @jax.grad
  def gradient(p):
    return jnp.vdot(bias_fn(p, p)[:, head], cotangent)

  got, want = gradient(p), gradient(p[..., head])
  assert np.isfinite(got).all()
  # Buckets are steps.
  assert np.any(want) == (name != 't5')
  assert_close(got[..., head], want, 2e-5)
  np.testing.assert_array_equal(np.delete(got, head, axis=-1), 0)


def test_errors_of_positions_are_added_to_distances(assert_close):
  bias_fn = make_bias_fn('linear')
  exact = 1e5 + np.float64(random_positions(0, 1, 6, HEADS)) / 90
  value = np.float32(exact)
  given = positions.PerHead(value, np.float32(exact - value))
  got = bias_fn(given, given)
  by_head = np.moveaxis(exact, 2, 1)
  want = by_head[:, :, None] - by_head[..., None]
  assert_close(got, want, 1e-6)
  assert np.abs(bias_fn(value, value) - want).max() > 1e-3
  # Errors have no gradient of their own.
  gradient = jax.grad(lambda p: bias_fn(p, given)[0, 0].sum(), allow_int=True)(
    given
  )
  assert np.abs(gradient.value).max() > 0
  np.testing.assert_array_equal(gradient.error, 0)


def test_a_function_of_positions_per_head():
  """The function returns all heads; each head gets its own."""

  def function(q_positions, k_positions):
    d = q_positions[..., :, None] - k_positions[..., None, :]
    return jnp.stack([d, 2 * d], -3)

  encoding = encodings.FromFunction(2, 8, function=function)
  q, k = random_positions(0, 2, 3, 2), random_positions(1, 2, 4, 2)
  got = encoding.apply({}, q, k, method='bias')
  d = q[:, :, None] - k[:, None]
  want = jnp.stack([d[..., 0], 2 * d[..., 1]], 1)
  np.testing.assert_array_equal(got, want)


def test_content_at_positions_per_head(assert_close):
  encoding = create('transformer_xl')
  variables = nn.unbox(init(encoding))
  content_fn = encoding.apply(variables, method='content_fn')
  q, k = (
    jax.random.normal(jax.random.key(n), (2, 5, HEADS, HEAD_DIM))
    for n in (0, 1)
  )
  i, j = random_positions(0, 2, 5, HEADS), random_positions(1, 2, 5, HEADS)
  logits = jax.jit(type(content_fn).logits)
  got = logits(content_fn, q, k, i, j)
  for head in range(HEADS):
    alone = logits(content_fn, q, k, i[..., head], j[..., head])
    assert_close(got[:, head], alone[:, head], 1e-5)
  assert content_fn.values(got, i, j) is None
  # A pair has a gradient to its own positions only, not to the first query's.
  gradient = jax.jit(
    jax.grad(lambda i: logits(content_fn, q, k, i, j)[1, 2, 3, 4])
  )(i)
  assert np.argwhere(gradient).tolist() == [[1, 3, 2]]
  tables = create('shaw')
  content_fn = tables.apply(nn.unbox(init(tables)), method='content_fn')
  with pytest.raises(errors.CombinationError, match='shaw adds to values'):
    content_fn.values(got, i, j)


@pytest.mark.parametrize('name', ['fire', 'kerple_log', 't5'])
def test_bias_fn_is_static_under_jit(name, assert_close):
  traces = []

  @jax.jit
  def f(bias_fn, q, k):
    traces.append(bias_fn)
    return bias_fn(q, k)

  q, k = random_positions(0, 3), random_positions(1, 4)
  first = make_bias_fn(name)
  # Made anew, with other parameters, in another module: equal all the same.
  second = make_bias_fn.__wrapped__(name)
  assert second.encoding is not first.encoding
  assert_close(f(first, q, k), first(q, k), 1e-5)
  f(second, q, k)
  f(jax.tree.map(lambda x: x * 2, first), q, k)
  assert len(traces) == 1, 'equal encodings were traced again'
  f(make_bias_fn(name, True), q, k)
  assert len(traces) == 2, 'another direction was not traced'


@pytest.mark.parametrize('name', ['fire', 'kerple_log', 't5'])
def test_bias_fn_survives_grad_scan_and_remat(name, assert_close):
  bias_fn = make_bias_fn(name)
  q, k = random_positions(0, 6), random_positions(1, 4)
  weights = jnp.cos(jnp.arange(6 * 4.0)).reshape(6, 4)

  def direct(bias_fn):
    return jnp.sum(bias_fn(q, k) * weights[None])

  def scanned(bias_fn):
    @jax.checkpoint
    def step(carry, x):
      bias_fn, total = carry
      q, w = x
      return (
        bias_fn,
        total + jnp.sum(bias_fn(q[None], k)[:, 0] * w[None]),
      ), None

    return jax.lax.scan(step, (bias_fn, 0.0), (q, weights))[0][1]

  want, want_gradient = jax.jit(jax.value_and_grad(direct))(bias_fn)
  got, got_gradient = jax.jit(jax.value_and_grad(scanned))(bias_fn)
  assert_close(got, want, 1e-5)
  assert isinstance(got_gradient, encodings.BiasFn)
  assert got_gradient.encoding == bias_fn.encoding
  for g, w in zip(
    jax.tree.leaves(got_gradient), jax.tree.leaves(want_gradient), strict=True
  ):
    if np.abs(w).max() > 1e-3:
      assert_close(g, w, 1e-4)


@pytest.mark.parametrize('name', ['fire', 'kerple_log', 't5'])
def test_bias_is_bias_fn_applied(name):
  encoding = create(name)
  variables = nn.unbox(init(encoding))
  q, k = random_positions(0, 2, 3), random_positions(1, 2, 4)
  for bidirectional in (False, True):
    np.testing.assert_array_equal(
      encoding.apply(
        variables, q, k, bidirectional=bidirectional, method='bias'
      ),
      make_bias_fn(name, bidirectional)(q, k),
    )


@pytest.mark.parametrize('name', NAMES)
def test_project_keeps_the_tree(name):
  encoding = create(name)
  params = nn.unbox(init(encoding)).get('params', {})
  projected = encoding.project(params)
  assert shapes({'params': projected}) == shapes({'params': params})
  again = encoding.project(projected)
  jax.tree.map(np.testing.assert_array_equal, again, projected)


def test_signed_distance_subtracts_integers_first():
  q = jnp.array([2**24 + 3, 2**30 + 1])
  k = jnp.array([2**24 + 1, 2**30])
  got = base.signed_distance(q, k)
  assert got.dtype == jnp.float32
  np.testing.assert_array_equal(np.diag(got), [2, 1])


def test_from_function():
  def function(q_positions, k_positions):
    d = q_positions[..., :, None] - k_positions[..., None, :]
    return jnp.stack([d, 2 * d], -3)

  encoding = encodings.FromFunction(2, 8, function=function)
  q, k = jnp.array([[3, 5]]), jnp.array([[1, 2, 4]])
  got = encoding.apply({}, q, k, method='bias')
  assert got.dtype == jnp.float32
  np.testing.assert_array_equal(
    got, [[[[2, 1, -1], [4, 3, 1]], [[4, 2, -2], [8, 6, 2]]]]
  )
  assert not encoding.translation_invariant
  assert encoding == encodings.FromFunction(2, 8, function=function)
  mask = encodings.FromFunction(2, 8, function=lambda i, j: function(i, j) > 0)
  with pytest.raises(errors.ConfigError, match='returned bool; .* For a mask'):
    mask.apply({}, q, k, method='bias')


def test_a_function_of_one_row():
  """It takes positions [Q] and [K] only, as in a layer of its own."""

  def function(q, k):
    return jnp.stack([q[:, None] - k[None], 2 * (q[:, None] - k[None])])

  encoding = encodings.FromFunction(2, 8, function=function)
  q, k = jnp.array([3, 5]), jnp.array([1, 2, 4])
  want = encoding.apply({}, q, k, method='bias')
  got = encoding.apply({}, q[None], k[None], method='bias')
  np.testing.assert_array_equal(got, want[None])
  assert want.tolist() == [[[2, 1, -1], [4, 3, 1]], [[4, 2, -2], [8, 6, 2]]]


@pytest.mark.parametrize(
  'spec, method',
  [
    ('fire', 'bias'),
    ('rope', 'rotate'),
    ('pope', 'rotate'),
    ('rerope', 'bands'),
    ('sinusoidal', 'embed'),
  ],
)
def test_hooks_refuse_distances(spec, method):
  d = positions.Distances(jnp.array([[0, 2, 3, 9]]))
  q, x = jnp.ones((1, 4, 2, 8)), jnp.ones((1, 4, 8))
  arguments = {'bias': (d, d), 'embed': (x, d)}.get(method, (q, q, d, d))
  encoding = encodings.create(spec, num_heads=2, head_dim=8, width=8)
  with pytest.raises(errors.CombinationError, match=f'{spec} needs a position'):
    encoding.init(jax.random.key(0), *arguments, method=method)


def test_an_encoding_of_ones_own_needs_only_strip():
  class Plain(encodings.Encoding):
    def tile_params(self):
      return {'one': (jnp.ones(self.num_heads), ('heads',))}

    @nn.nowrap
    def strip(self, params, distances, *, bidirectional=False):
      return base.per_head(params['one'], distances.ndim + 1) * distances[None]

  encoding = Plain(2, 8)
  bias_fn = encoding.apply({}, method='bias_fn')
  assert bias_fn.axes == (('heads',),)
  np.testing.assert_array_equal(
    bias_fn(jnp.array([2, 3]), jnp.array([0, 1]))[1], [[2, 1], [3, 2]]
  )


@pytest.mark.parametrize(
  'dtype', [jnp.float16, jnp.bfloat16, jnp.int8, jnp.int16, jnp.uint32, bool]
)
def test_check_positions_refuses_other_dtypes(dtype):
  with pytest.raises(errors.CombinationError) as caught:
    encodings.check_positions(create('rope'), jnp.ones(3, dtype))
  assert f'positions are {jnp.dtype(dtype)}' in str(caught.value)
  assert 'int32 or float32' in str(caught.value)


def test_check_positions_refuses_fractions_where_rows_are_read():
  learned = create('learned')
  with pytest.raises(errors.CombinationError, match='learned .* got float32'):
    encodings.check_positions(learned, jnp.arange(3.0))
  encodings.check_positions(learned, jnp.arange(3))
  encodings.check_positions(create('t5'), jnp.arange(3.0))


def test_check_positions_against_the_table():
  learned = create('learned')
  encodings.check_positions(learned, None, 64)
  encodings.check_positions(learned, jnp.array([0, 63]))
  encodings.check_positions(learned, jnp.zeros((1, 0), jnp.int32))
  for args in ((None, 65), (jnp.array([[0, 64]]), None)):
    with pytest.raises(errors.LengthError) as caught:
      encodings.check_positions(learned, *args)
    assert 'learned(max_position=64)' in str(caught.value)
    assert 'position 64' in str(caught.value)
    assert 'max_position=65 or more' in str(caught.value)
  with pytest.raises(errors.LengthError, match='-3; positions begin at 0'):
    encodings.check_positions(learned, jnp.array([[0, -3]]))
  for name in NAMES:
    if name != 'learned':
      encodings.check_positions(create(name), jnp.array([[0, -3]]))
      encodings.check_positions(create(name), None, 10**6)


def test_check_scheme():
  def check(encoding, scheme):
    encodings.check_scheme(
      encodings.create(encoding, num_heads=2, head_dim=4),
      positions.create(scheme),
    )

  check('learned(max_position=64)', 'standard')
  check('learned(max_position=64)', 'randomized(max_position=64)')
  check('rope', 'interpolated(scale=2.)')
  check('rope(scale=2.)', 'randomized(max_position=64)')
  check('fire', 'interpolated(train_length=64)')
  with pytest.raises(errors.CombinationError) as caught:
    check('learned(max_position=64)', 'interpolated(scale=2.)')
  assert 'learned' in str(caught.value) and 'fractional' in str(caught.value)
  for encoding in ('rope(scale=4.)', 'rope(dynamic=True, train_length=8)'):
    with pytest.raises(errors.CombinationError) as caught:
      check(encoding, 'interpolated(scale=2.)')
    assert 'rope' in str(caught.value) and 'interpolates' in str(caught.value)
  with pytest.raises(errors.CombinationError) as caught:
    check('learned(max_position=64)', 'randomized(max_position=65)')
  assert 'max_position=64' in str(caught.value)
  assert 'max_position=65 or more' in str(caught.value)


def test_check_extent():
  def check(encoding, scheme, *args):
    encodings.check_extent(
      encodings.create(encoding, num_heads=2, head_dim=4),
      positions.create(scheme),
      *args,
    )

  learned = 'learned(max_position=64)'
  check(learned, 'standard', 64, True)
  check(learned, 'randomized(max_position=64)', 9, True)
  check('rope', 'standard', 10**6, False)
  with pytest.raises(errors.LengthError, match='max_position=66 or more'):
    check(learned, 'standard', 66, False)
  with pytest.raises(errors.LengthError, match='position 64;'):
    check(learned, 'randomized(max_position=65)', 9, False)


def test_bias_fn_fields():
  fields = {f.name: f.metadata for f in dataclasses.fields(encodings.BiasFn)}
  assert list(fields) == ['params', 'encoding', 'axes', 'bidirectional']
  leaves = {name for name, m in fields.items() if m.get('pytree_node', True)}
  assert leaves == {'params'}


@pytest.mark.parametrize('dtype', [np.int8, np.uint8, np.uint32])
def test_distances_of_narrow_integers(dtype):
  module = encodings.create('alibi', num_heads=1, head_dim=8)
  ends = np.array([100, 0], np.int64)
  want = module.apply({}, ends, ends, method='bias', bidirectional=True)
  ends = ends.astype(dtype)
  got = module.apply({}, ends, ends, method='bias', bidirectional=True)
  np.testing.assert_array_equal(got, want)


@pytest.mark.some(3)
@pytest.mark.parametrize(
  'spec',
  ['sandwich']
  + [
    spec
    for spec in testing.encoding_specs()
    if spec.split('(')[0] not in ('sinusoidal', 'learned', 'sandwich')
  ],
)
def test_32_bits_with_64_bit_types(spec):
  with jax.enable_x64(True):
    layer = layers.Attention(
      num_heads=2, head_dim=8, encoding=spec, implementation='blockwise'
    )
    x = jnp.ones((1, 5, 16), jnp.float32)
    y, variables = jax.eval_shape(
      lambda: layer.init_with_output(
        jax.random.key(0), x, np.arange(5), lengths=np.full((1, 1), 5)
      )
    )
  dtypes = {leaf.dtype.name for leaf in jax.tree.leaves((y, variables))}
  assert dtypes == {'float32'}


def test_parameters_of_tiles_need_axes():
  class Own(encodings.Encoding):
    def setup(self):
      init = nn.initializers.ones
      self.s = self.make_param(self, 's', init, (self.num_heads,), ('heads',))

    def tile_params(self):
      return {'s': self.s}

  module = Own(num_heads=2, head_dim=8, parent=None)
  with pytest.raises(
    errors.ConfigError, match="'s' of own must be .array, log"
  ):
    module.init(jax.random.key(0), method='bias_fn')
