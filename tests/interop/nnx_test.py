"""Encodings as nnx modules."""

import functools

from flax import linen as nn
from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lengen_jax import attention, encodings, errors
from lengen_jax.interop import nnx as lengen_nnx
from lengen_jax.interop import t5x
from lengen_jax.models import layers

BIASES = ['fire', 'kerple_log', 'alibi', 't5', 'linear(learned=True)']
HEADS, HEAD_DIM = 4, 8


@pytest.mark.parametrize('spec', BIASES)
def test_bias_is_that_of_linen(spec, assert_close):
  module = lengen_nnx.Bias(spec, num_heads=HEADS, rngs=nnx.Rngs(0))
  q, k = jnp.arange(3) + 4, jnp.arange(7)
  linen = encodings.create(spec, num_heads=HEADS, head_dim=HEAD_DIM)
  params = nnx.to_pure_dict(nnx.state(module, nnx.Param))

  @nnx.jit(static_argnames='both')
  def biases(module, params, both):
    want = linen.apply(
      {'params': params}, q, k, bidirectional=both, method='bias'
    )
    called = module(q, k, bidirectional=both)
    return called, module.bias_fn(bidirectional=both)(q, k), want

  for both in (False, True):
    called, by_function, want = biases(module, params, both)
    assert_close(called, want)
    assert_close(by_function, want)
  assert jax.eval_shape(module, q).shape == (HEADS, 3, 3)
  # The tree is that of a checkpoint.
  named = jax.eval_shape(
    lambda: linen.init(jax.random.key(0), method='tile_params')
  )
  assert jax.tree.map(jnp.shape, params) == jax.tree.map(
    lambda box: box.value.shape,
    named.get('params', {}),
    is_leaf=lambda x: hasattr(x, 'names'),
  )


@pytest.mark.parametrize('spec', ['rope', 'yarn(scale=4., train_length=8)'])
def test_rotary_is_called_as_maxtext_does(spec, assert_close):
  module = lengen_nnx.Rotary(spec, head_dim=HEAD_DIM)
  x = jax.random.normal(jax.random.key(0), (2, 5, HEADS, HEAD_DIM))
  position = jnp.asarray([[0, 1, 2, 0, 1], [4, 5, 6, 7, 8]])
  linen = encodings.create(spec, num_heads=HEADS, head_dim=HEAD_DIM)
  rotate = jax.jit(functools.partial(linen.apply, method='rotate'))
  want, _ = rotate({}, x, x, position, position)
  apply = jax.jit(module)
  assert_close(apply(x, position), want)
  assert_close(apply(x), apply(x, jnp.arange(5)))


def test_rotary_by_positions_per_head(assert_close):
  module = lengen_nnx.Rotary('rope', head_dim=HEAD_DIM)
  x = jax.random.normal(jax.random.key(0), (2, 5, HEADS, HEAD_DIM))
  position = 9 * jax.random.uniform(jax.random.key(1), (2, 5, HEADS))
  rotated = jax.jit(module)(x, position)
  for head in range(HEADS):
    alone = module(x[:, :, head : head + 1], position[:, :, head])
    assert_close(rotated[:, :, head : head + 1], alone)


def test_rotary_by_length(assert_close):
  module = lengen_nnx.Rotary('rope(train_length=4, dynamic=True)', head_dim=8)
  x = jnp.ones((1, 8, 1, 8))
  plain = lengen_nnx.Rotary('rope', head_dim=8)
  got = jax.jit(module)(x, None, jnp.full((1, 1), 8))
  assert_close(got, jax.jit(plain)(x, jnp.arange(8) / 2))
  with pytest.raises(errors.LengthError, match='pass lengths'):
    module(x)


@pytest.mark.parametrize('spec', ['sinusoidal', 'learned(max_position=9)'])
def test_embedding_is_added(spec, assert_close):
  module = lengen_nnx.Embedding(spec, width=6, rngs=nnx.Rngs(1))
  x = jnp.ones((2, 9, 6))
  added = module(x) - x
  assert_close(added[0], added[1])
  assert jnp.abs(added[0, 1:] - added[0, :-1]).max() > 0.01
  assert_close(module(x, jnp.full((2, 9), 3)) - x, added[:, 3:4] + 0 * x)


@pytest.mark.parametrize('spec', ['shaw(left=3, right=3)', 'transformer_xl'])
def test_content(spec, assert_close):
  module = lengen_nnx.Content(
    spec, num_heads=HEADS, head_dim=HEAD_DIM, rngs=nnx.Rngs(0)
  )
  q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 6, HEADS, HEAD_DIM))
  linen = encodings.create(spec, num_heads=HEADS, head_dim=HEAD_DIM)
  params = nnx.to_pure_dict(nnx.state(module, nnx.Param))

  @jax.jit
  def attend(content):
    return attention.dot_product_attention(
      q, k, v, content=content, causal=True
    )

  content = linen.apply({'params': params}, method='content_fn')
  got = attend(module.content_fn())
  assert_close(got, attend(content))
  assert np.abs(got - attend(None)).max() > 1e-3


def test_bands(assert_close):
  spec, sizes = 'rerope(window=2)', {'num_heads': HEADS, 'head_dim': HEAD_DIM}
  q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 6, HEADS, HEAD_DIM))
  p = jnp.arange(6)
  bands = lengen_nnx.Bands(spec, **sizes).bands(q, k, p, p)
  got = attention.dot_product_attention(q, k, v, bands=bands, causal=True)
  encoding = encodings.create(spec, **sizes).bind({})
  assert_close(
    got, attention.with_encoding(encoding, q, k, v, causal=True), 1e-6
  )
  # Of one query, as in decoding.
  module = lengen_nnx.Bands(spec, **sizes)
  last, want = (x.bands(q[:, -1:], k, p[-1:], p) for x in (module, encoding))
  for got, expected in zip(last, want, strict=True):
    assert_close(got.q, expected.q)
    assert_close(got.k, expected.k)


class Attention(nnx.Module):
  """A layer of somebody's model."""

  def __init__(self, encoding, rngs):
    self.qkv = nnx.Linear(16, 3 * HEADS * HEAD_DIM, rngs=rngs)
    self.out = nnx.Linear(HEADS * HEAD_DIM, 16, rngs=rngs)
    self.bias = lengen_nnx.Bias(encoding, num_heads=HEADS, rngs=rngs)
    self.rotary = lengen_nnx.Rotary('rope', head_dim=HEAD_DIM)

  def __call__(self, x):
    qkv = self.qkv(x).reshape(*x.shape[:2], 3, HEADS, HEAD_DIM)
    q, k, v = (qkv[:, :, i] for i in range(3))
    y = attention.dot_product_attention(
      self.rotary(q),
      self.rotary(k),
      v,
      bias=self.bias.bias_fn(),
      causal=True,
      implementation='reference',
    )
    return x + self.out(y.reshape(*x.shape[:2], -1))


@pytest.mark.parametrize('spec', ['fire', 'alibi'])
def test_trains_under_jit(spec):
  model = Attention(spec, nnx.Rngs(0))
  optimizer = nnx.Optimizer(model, optax.adam(0.01), wrt=nnx.Param)
  x, y = jax.random.normal(jax.random.key(1), (2, 2, 8, 16))
  before = nnx.to_pure_dict(nnx.state(model.bias, nnx.Param))

  @nnx.jit
  def train(model, optimizer):
    def loss(model):
      return jnp.mean((model(x) - y) ** 2)

    value, gradients = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradients)
    return value

  losses = [float(train(model, optimizer)) for _ in range(20)]
  assert np.isfinite(losses).all()
  assert losses[-1] < 0.8 * losses[0]
  after = nnx.to_pure_dict(nnx.state(model.bias, nnx.Param))
  moved = jax.tree.map(lambda a, b: bool(jnp.any(a != b)), before, after)
  # A constant added to all logits of a head has no gradient.
  moved.get('mlp_2', {}).pop('bias', None)
  assert all(jax.tree.leaves(moved))
  assert len(jax.tree.leaves(moved)) == {'fire': 7, 'alibi': 0}[spec]


def test_layers_are_scanned(assert_close):
  spec = 'fire'

  @nnx.split_rngs(splits=3)
  @nnx.vmap(in_axes=(0,), out_axes=0)
  def layers(rngs):
    return Attention(spec, rngs)

  model = nnx.jit(layers)(nnx.Rngs(0))
  x = jax.random.normal(jax.random.key(1), (2, 8, 16))

  @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
  def run(layer, x):
    return layer(x)

  got = nnx.jit(run)(model, x)
  want = x
  graph, state = nnx.split(model)

  @jax.jit
  def apply(state, x):
    return nnx.merge(graph, state)(x)

  for i in range(3):
    want = apply(jax.tree.map(lambda leaf, i=i: leaf[i], state), want)
  assert_close(got, want)
  kernel = model.bias.mlp_1['kernel'][...]
  assert jnp.abs(kernel[0] - kernel[1]).max() > 0.01


def test_linen_modules_through_the_bridge(assert_close):
  """`nnx.bridge.ToNNX` takes the linen modules as they are."""
  q = jnp.arange(6)
  linen = encodings.create('fire', num_heads=HEADS, head_dim=HEAD_DIM)
  module = nnx.bridge.ToNNX(linen, rngs=nnx.Rngs(0))
  nnx.bridge.lazy_init(module.bias, q, q)
  assert module.bias(q, q).shape == (HEADS, 6, 6)

  x = jax.random.normal(jax.random.key(0), (2, 6, 16))
  linen = layers.Attention(
    num_heads=HEADS, head_dim=HEAD_DIM, encoding='kerple_log'
  )
  module = nnx.bridge.ToNNX(linen, rngs=nnx.Rngs(0)).lazy_init(x)
  optimizer = nnx.Optimizer(module, optax.sgd(1e-4), wrt=nnx.Param)

  @nnx.jit
  def train(module, optimizer):
    value, gradients = nnx.value_and_grad(lambda m: jnp.sum(m(x) ** 2))(module)
    optimizer.update(module, gradients)
    return value

  before = train(module, optimizer)
  assert train(module, optimizer) < before

  biases = t5x.RelativePositionBiases(num_heads=HEADS)
  module = nnx.bridge.ToNNX(biases, rngs=nnx.Rngs(0)).lazy_init(6, 6, False)
  assert module(6, 6, False).shape == (1, HEADS, 6, 6)


def test_the_bridge_on_a_mesh():
  """Parameters lie on it by the names of their axes."""
  mesh = jax.make_mesh(
    (2,), ('model',), axis_types=(jax.sharding.AxisType.Auto,)
  )
  linen = encodings.create('kerple_log', num_heads=HEADS, head_dim=HEAD_DIM)
  q = jnp.arange(6)
  with nn.logical_axis_rules((('heads', 'model'),)), jax.set_mesh(mesh):
    module = nnx.bridge.ToNNX(linen, rngs=nnx.Rngs(0))
    nnx.bridge.lazy_init(module.bias, q, q)
    assert module.bias(q, q).shape == (HEADS, 6, 6)
  assert module.p[...].sharding.spec == jax.sharding.PartitionSpec('model')


def test_a_mesh_that_leaves_nothing_to_the_compiler():
  mesh = jax.make_mesh(
    (2,), ('model',), axis_types=(jax.sharding.AxisType.Explicit,)
  )
  layer = layers.MLP(8)
  with nn.logical_axis_rules(
    (('mlp', 'model'), ('batch', None), ('length', None))
  ):
    with jax.set_mesh(mesh), pytest.raises(errors.ConfigError, match='Auto,'):
      jax.eval_shape(layer.init, jax.random.key(0), jnp.ones((2, 3, 4)))


@pytest.mark.parametrize(
  ('make', 'message'),
  [
    (lambda: lengen_nnx.Bias('rope', num_heads=4), 'it is an nnx.Rotary'),
    (lambda: lengen_nnx.Rotary('fire', head_dim=4), 'it is an nnx.Bias'),
    (lambda: lengen_nnx.Bias('learned(max_position=4)', num_heads=4), 'Embed'),
    (lambda: lengen_nnx.Embedding('alibi', width=4), 'it is an nnx.Bias'),
    (lambda: lengen_nnx.Bias('transformer_xl', num_heads=4), 'an nnx.Content'),
    (lambda: lengen_nnx.Bias('fire', num_heads=4), 'pass rngs=nnx.Rngs'),
    (lambda: lengen_nnx.Bias('fier', num_heads=4), "did you mean 'fire'"),
    (lambda: lengen_nnx.Bias('fire', num_heads=0), 'num_heads=0'),
    (
      lambda: lengen_nnx.Bias('alibi', num_heads=2)(
        jnp.arange(4, dtype=jnp.bfloat16)
      ),
      'positions are bfloat16',
    ),
    (
      lambda: lengen_nnx.Rotary('rope', head_dim=8)(jnp.ones((1, 2, 1, 16))),
      'head_dim=8',
    ),
  ],
)
def test_mistakes(make, message):
  with pytest.raises(errors.LengenError, match=message):
    make()
