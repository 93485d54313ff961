"""Tests `lengen_jax/models/stacking.py`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import models
from lengen_jax.models import cache, presets, stacking
from tests import helpers

KEY = jax.random.key(0)


def create(encoding, num_layers=4, **kwargs):
  sizes = presets.get('tiny') | dict(
    vocab_size=11, width=16, head_dim=4, mlp_width=16
  )
  sizes['num_layers'] = num_layers
  return models.ModelConfig(**sizes, encoding=encoding, **kwargs)


def init(*args, **kwargs):
  return stacking.init(create(*args, **kwargs), KEY)


def assert_equal(got, want):
  assert jax.tree.structure(got) == jax.tree.structure(want)
  jax.tree.map(np.testing.assert_array_equal, got, want)


@pytest.mark.parametrize(
  'encoding', ['fire', 'rope, nope', 'kerple_log, fire, nope, rope']
)
def test_stack_and_unstack_are_inverse(encoding):
  params = init(encoding)
  config = create(encoding, scan_layers=True)
  stacked = stacking.stack(params, config)
  turn = config.period
  assert set(stacked) == {'embed', 'final_norm', 'layers'}
  assert set(stacked['layers']) == {f'block_{j}' for j in range(turn)}
  for leaf in jax.tree.leaves(stacked['layers']):
    assert leaf.shape[0] == 4 // turn
  assert_equal(stacking.unstack(stacked), params)
  assert_equal(stacking.unstack(params), params)


def test_where_a_layer_goes():
  params = init('rope, nope')
  stacked = stacking.stack(params, create('rope, nope', scan_layers=True))
  for i in range(4):
    block = stacked['layers'][f'block_{i % 2}']
    assert_equal(
      jax.tree.map(lambda leaf, n=i // 2: leaf[n], block),
      params[f'layer_{i}'],
    )


@pytest.mark.parametrize('encoding', ['fire', 'fire(shared=True)'])
def test_init_of_a_scanned_model_is_that_of_the_unrolled(encoding):
  scanned = init(encoding, scan_layers=True, remat='full')
  assert_equal(stacking.unstack(scanned), init(encoding))


def test_init_differs_between_layers_and_keys():
  params = init('fire')
  for leaf in ('attention/query/kernel', 'attention/encoding/mlp_0/kernel'):

    def get(tree, leaf=leaf):
      for name in leaf.split('/'):
        tree = tree[name]
      return np.asarray(tree)

    layers = [get(params[f'layer_{i}']) for i in range(4)]
    other = stacking.init(create('fire'), jax.random.key(1))
    layers.append(get(other['layer_0']))
    for i, one in enumerate(layers):
      for two in layers[:i]:
        assert np.abs(one - two).max() > 1e-3


def test_init_depends_on_depth_only_where_branches_end():
  """More layers shrink what each adds at first and change nothing else."""
  deep, shallow = init('rope'), init('rope', num_layers=2)
  for i in range(2):
    for branch, end in (('attention', 'out'), ('mlp', 'down')):
      wide = shallow[f'layer_{i}'][branch].pop(end)['kernel']
      narrow = deep[f'layer_{i}'][branch].pop(end)['kernel']
      ratio = np.asarray(narrow / wide)
      np.testing.assert_allclose(ratio, ratio.mean(), rtol=1e-5)
      assert 0 < ratio.mean() <= 1
  for name in shallow:
    assert_equal(shallow[name], deep[name])


def test_init_gives_plain_float32_arrays():
  for leaf in jax.tree.leaves(init('fire', dtype='bfloat16')):
    assert isinstance(leaf, jax.Array) and leaf.dtype == jnp.float32
    assert leaf.shape != ()


def test_init_needs_no_lengths():
  init('rope(dynamic=True, train_length=8)', num_layers=1)


OUTSIDE = {
  'kerple_log': ([-1.0, 5.0], [0.01, 5.0]),
  'kerple_power': ([-1.0, 5.0], [0.01, 2.0]),
}


@pytest.mark.parametrize('scan_layers', [False, True])
@pytest.mark.parametrize('name', OUTSIDE)
def test_project_reaches_every_layer(name, scan_layers):
  windows = (8, 4, 2, None)
  config = create(f'{name}, rope', scan_layers=scan_layers, window=windows)
  params = stacking.init(config, KEY)
  before, after = OUTSIDE[name]

  def spoil(path, leaf):
    if path[-1].key == 'p':
      return jnp.broadcast_to(jnp.array(before), leaf.shape)
    return leaf

  spoilt = jax.tree.map_with_path(spoil, params)
  projected = stacking.project(spoilt, config)
  assert jax.tree.structure(projected) == jax.tree.structure(params)
  clamped = 0
  for path, leaf in jax.tree.leaves_with_path(projected):
    if path[-1].key == 'p':
      clamped += leaf.size // 2
      np.testing.assert_allclose(leaf, np.broadcast_to(after, leaf.shape))
  assert clamped == 2
  # Everything else is untouched, and what was given is not changed.
  for (path, got), want in zip(
    jax.tree.leaves_with_path(projected), jax.tree.leaves(params), strict=True
  ):
    if path[-1].key not in 'pa':
      np.testing.assert_array_equal(got, want)
  assert all(
    leaf.min() == -1.0
    for path, leaf in jax.tree.leaves_with_path(spoilt)
    if path[-1].key == 'p'
  )


@pytest.mark.parametrize('scan_layers', [False, True])
def test_project_reaches_shared_encodings(scan_layers):
  config = create('kerple_log(shared=True)', scan_layers=scan_layers)
  params = stacking.init(config, KEY)
  params['encoding']['p'] = jnp.array([-1.0, 5.0])
  projected = stacking.project(params, config)
  np.testing.assert_allclose(projected['encoding']['p'], [0.01, 5.0])


def test_project_runs_inside_jit():
  config = create('kerple_log')
  params = stacking.init(config, KEY)
  project = jax.jit(lambda params: stacking.project(params, config))
  assert_equal(project(params), stacking.project(params, config))


@functools.partial(jax.jit, static_argnums=0)
def logits(config, params, *tokens):
  return models.create(config).apply({'params': params}, *tokens)


@pytest.mark.parametrize('scan_layers', [False, True])
def test_merged_lora_gives_the_same_logits(scan_layers, assert_close):
  fields = {'scan_layers': scan_layers, 'remat': 'full'}
  config = create('rope', 2, lora_rank=2, lora_alpha=3.0, **fields)
  params = helpers.params_of(config)
  merged, plain = stacking.merge_lora(params, config)
  assert plain == create('rope', 2, **fields)
  shapes = jax.tree.map(jnp.shape, stacking.abstract(plain)[0])
  assert jax.tree.map(jnp.shape, merged) == shapes
  tokens = jnp.arange(10).reshape(2, 5)
  want = logits(config, params, tokens)
  assert_close(logits(plain, merged, tokens), want)
  # The control: without the products, other logits.
  without = jax.tree_util.tree_map_with_path(
    lambda path, leaf: leaf * (path[-1].key != 'lora_out'), params
  )
  assert np.abs(logits(config, without, tokens) - want).max() > 0.01
  assert stacking.merge_lora(merged, plain) == (merged, plain)


def test_lora_decodes_and_attends_to_an_encoder(assert_close):
  """Logits of decoding equal those of one forward pass, also when merged."""
  config = create(
    'rope', 1, lora_rank=2, architecture='encoder_decoder', key_heads=1
  )
  params = helpers.params_of(config)
  tokens = jnp.arange(6).reshape(2, 3)
  want = logits(config, params, tokens, tokens)
  merged, plain = stacking.merge_lora(params, config)
  assert_close(logits(plain, merged, tokens, tokens), want)

  @jax.jit
  def decoded(params):
    model = models.create(config).bind({'params': params})
    state = cache.create(config, batch_size=2, max_length=3)
    encoded = model.encode(tokens)
    _, state = model.decode(tokens[:, :2], state, encoded)
    return model.decode(tokens[:, 2:], state, encoded)[0]

  assert_close(decoded(params), want[:, 2:])


@pytest.mark.parametrize('scan_layers', [False, True])
def test_project_reaches_both_stacks(scan_layers):
  config = helpers.tiny_model(
    encoding='kerple_log',
    architecture='encoder_decoder',
    scan_layers=scan_layers,
  )
  params = jax.tree.map(lambda x: x * 0 - 1, helpers.initial(config))
  found = stacking.unstack(stacking.project(params, config))
  for side in ('encoder', 'decoder'):
    for i in range(config.num_layers):
      p = found[side][f'layer_{i}']['attention']['encoding']['p']
      assert (np.asarray(p) > 0).all()
