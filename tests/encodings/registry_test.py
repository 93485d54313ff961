"""Tests `lengen_jax/encodings/__init__.py`."""

from flax import linen as nn
import jax
import jax.numpy as jnp
import pytest

from lengen_jax import encodings, errors, specs
from lengen_jax.encodings import rotary

H, D, E = 3, 8, 24
# Spec to published parameters: checkpoints have these names and shapes.
TREES = {
  'nope': {},
  'sinusoidal': {},
  'learned(max_position=64)': {'table': (64, E)},
  't5': {'table': (32, H)},
  't5(num_buckets=64, max_distance=256)': {'table': (64, H)},
  'alibi': {},
  'kerple_log': {'p': (H,), 'a': (H,)},
  'kerple_power': {'p': (H,), 'a': (H,)},
  'fire': {
    'c': (1,),
    'threshold_multiplier': (1,),
    'mlp_0/kernel': (1, 32),
    'mlp_0/bias': (32,),
    'mlp_1/kernel': (32, 32),
    'mlp_1/bias': (32,),
    'mlp_2/kernel': (32, H),
    'mlp_2/bias': (H,),
  },
  'fire(hidden_layers=1, mlp_width=5)': {
    'c': (1,),
    'threshold_multiplier': (1,),
    'mlp_0/kernel': (1, 5),
    'mlp_0/bias': (5,),
    'mlp_1/kernel': (5, H),
    'mlp_1/bias': (H,),
  },
  'fire(hidden_layers=0)': {
    'c': (1,),
    'threshold_multiplier': (1,),
    'mlp_0/kernel': (1, H),
    'mlp_0/bias': (H,),
  },
  'rope': {},
  'rope(dynamic=True, train_length=8)': {},
  'shaw': {'key_table': (33, D), 'value_table': (33, D)},
  'shaw(left=4, right=2)': {'key_table': (7, D), 'value_table': (7, D)},
  'transformer_xl': {
    'u': (H, D),
    'v': (H, D),
    'projection/kernel': (H * D, H * D),
  },
  'sandwich': {},
  'linear': {},
  'linear(learned=True)': {'slope': (H,)},
  'pope': {'delta': (H, D)},
  'ntk': {},
  'yarn(train_length=64)': {},
  'llama3': {},
  'longrope(train_length=64, short_factors=(1., 1., 1., 1.), '
  'long_factors=(1., 2., 3., 4.))': {},
  'rerope': {},
  'self_extend': {},
  'dual_chunk': {},
  'lm_infinite': {},
}
P, Q = jnp.arange(3), jnp.zeros((1, 3, H, D))
# Methods of an encoding, and arguments.
HOOKS = {
  'embed': (jnp.zeros((1, 3, E)), P[None]),
  'rotate': (Q, Q, P, P, jnp.full((1, 1), 3)),
  'bias': (P, P),
  'content_bias': (Q, Q, P, P),
  'content_values': (jnp.zeros((1, H, 3, 3)), P, P),
  'bias_fn': (),
}
ROPE = {
  'base': 1e4,
  'layout': 'half',
  'fraction': 1.0,
  'scale': 1.0,
  'train_length': None,
  'dynamic': False,
}
DEFAULTS = {
  'sinusoidal': {'base': 1e4},
  'learned': {'max_position': None},
  't5': {'num_buckets': 32, 'max_distance': 128},
  'fire': {
    'mlp_width': 32,
    'hidden_layers': 2,
    'init_c': 0.1,
    'init_threshold': 512.0,
  },
  'sandwich': {'dbar': 128},
  'linear': {'slope': 1.0, 'learned': False},
  'pope': {'base': 1e4},
  'rope': ROPE,
  'ntk': ROPE,
  'yarn': ROPE | {'beta_fast': 32.0, 'beta_slow': 1.0},
  'llama3': ROPE
  | {'scale': 8.0, 'low_freq': 1.0, 'high_freq': 4.0, 'train_length': 8192},
  'longrope': ROPE | {'short_factors': None, 'long_factors': None},
  'rerope': ROPE | {'leak': None},
  'lm_infinite': ROPE | {'sinks': 4},
}


def create(spec):
  return encodings.create(spec, num_heads=H, head_dim=D, width=E)


@pytest.mark.parametrize('spec', TREES)
@pytest.mark.parametrize('hook', HOOKS)
def test_parameter_trees(spec, hook):
  """They do not depend on the method that initializes the encoding."""
  variables = jax.eval_shape(
    lambda: create(spec).init(jax.random.key(0), *HOOKS[hook], method=hook)
  )
  flat = jax.tree.leaves_with_path(nn.unbox(variables.get('params', {})))
  got = {'/'.join(k.key for k in path): leaf for path, leaf in flat}
  assert {name: leaf.shape for name, leaf in got.items()} == TREES[spec]
  for leaf in got.values():
    assert leaf.dtype == jnp.float32 and leaf.shape != ()


def test_every_encoding_has_a_tree():
  listed = {specs.parse(spec)[0] for spec in TREES}
  assert listed == set(encodings.ENCODINGS)


@pytest.mark.parametrize('name', DEFAULTS)
def test_keys_and_defaults(name):
  fixed = {'num_heads', 'head_dim', 'width'}
  keys = specs.keys(encodings.ENCODINGS[name], fixed)
  got = {key: field.default for key, field in keys.items()}
  assert {k: got.get(k) for k in DEFAULTS[name]} == DEFAULTS[name]


@pytest.mark.parametrize('spec', TREES)
def test_every_encoding_takes_shared(spec):
  name, kwargs = specs.parse(spec)
  keys = ', '.join(f'{k}={v!r}' for k, v in (kwargs | {'shared': True}).items())
  assert create(f'{name}({keys})').shared
  assert not create(spec).shared


def test_create_sets_what_every_encoding_knows():
  encoding = create('fire')
  assert (encoding.num_heads, encoding.head_dim, encoding.width) == (H, D, E)
  encoding = encodings.create(
    'fire(mlp_width=8)', num_heads=2, head_dim=4, width=None, name=None
  )
  assert encoding.mlp_width == 8 and encoding.name is None


def test_create_gives_a_name():
  class Outer(nn.Module):
    @nn.compact
    def __call__(self):
      encoding = encodings.create(
        'kerple_log', num_heads=2, head_dim=4, name='there'
      )
      return encoding.bias_fn()

  variables = Outer().init(jax.random.key(0))
  assert list(variables['params']) == ['there']


def test_create_refuses():
  with pytest.raises(errors.SpecError, match="did you mean 'kerple_log'"):
    create('kerpel_log')
  with pytest.raises(errors.SpecError, match="unknown encoding 'xpos'") as e:
    create('xpos')
  assert all(name in str(e.value) for name in encodings.ENCODINGS)
  with pytest.raises(errors.SpecError, match="did you mean 'mlp_width'"):
    create('fire(mlp_widht=8)')


@pytest.mark.parametrize('spec', ['nope', 'alibi', 'rope', 'fire'])
@pytest.mark.parametrize('sizes', [(0, 8), (2, 0), (-1, 8)])
def test_create_refuses_sizes_below_1(spec, sizes):
  with pytest.raises(errors.ConfigError) as caught:
    encodings.create(spec, num_heads=sizes[0], head_dim=sizes[1])
  assert f'num_heads={sizes[0]} and head_dim={sizes[1]} must be' in str(
    caught.value
  )


@pytest.mark.parametrize('key', ['num_heads', 'head_dim', 'width', 'name'])
def test_create_refuses_what_the_model_sets(key):
  with pytest.raises(errors.SpecError, match=f'unknown key of fire {key!r}'):
    create(f'fire({key}=8)')


@pytest.mark.parametrize(
  'spec',
  [
    *('rope, nope', ' rope ,nope,', 'rope, 1*nope'),
    *(('rope', 'nope'), ['rope', 'nope']),
  ],
)
def test_create_layers_cycles(spec):
  layers = encodings.create_layers(spec, 5, num_heads=H, head_dim=D)
  rope, nope = (create(s).clone(width=None) for s in ('rope', 'nope'))
  assert layers == [(rope,), (nope,), (rope,), (nope,), (rope,)]


def test_create_layers_of_two_parts():
  """And of one part, in turn."""
  layers = encodings.create_layers(
    '2*learned(max_position=8) + rope, nope',
    3,
    num_heads=H,
    head_dim=D,
    width=E,
  )
  learned, rope, nope = map(create, ('learned(max_position=8)', 'rope', 'nope'))
  assert layers == [(learned, rope), (learned, rope), (nope,)]


@pytest.mark.parametrize(
  'spec, error, message',
  [
    ('rope + fire', errors.CombinationError, "'rope . fire' must be an enc"),
    ('sinusoidal + sinusoidal', errors.CombinationError, 'and one in atten'),
    ('sinusoidal + rope + fire', errors.SpecError, 'at_input . in_attention'),
    ('sinusoidal +', errors.SpecError, "cannot read 'sinusoidal .'"),
  ],
)
def test_create_layers_refuses_other_parts(spec, error, message):
  with pytest.raises(error, match=message):
    encodings.create_layers(spec, 2, num_heads=H, head_dim=D, width=E)
  with pytest.raises(errors.SpecError):
    create(spec)


def test_create_layers_of_one():
  layers = encodings.create_layers(
    'fire(mlp_width=8, init_c=.2)', 3, num_heads=H, head_dim=D
  )
  assert len(layers) == 3 and len(set(layers)) == 1
  assert layers[0][0].mlp_width == 8


@pytest.mark.parametrize('spec', ['', ' , ', (), []])
def test_create_layers_refuses_nothing(spec):
  with pytest.raises(errors.SpecError, match='empty encoding spec'):
    encodings.create_layers(spec, 2, num_heads=H, head_dim=D)


def test_register():
  class Mine(encodings.Encoding):
    strength: float = 1.0

  try:
    encodings.register('own', Mine)
    own = create('own(strength=2)')
    assert own.strength == 2.0 and specs.describe(own) == 'own(strength=2.0)'
    encodings.register('mine', Mine)
    assert create('mine(strength=2)').strength == 2.0
    # The first name stays.
    encodings.register('turned', rotary.Rope)
    assert specs.describe(create('rope')) == 'rope'
    encodings.register('mine', Mine)
    with pytest.raises(errors.SpecError, match="'rope' is registered already"):
      encodings.register('rope', Mine)
  finally:
    encodings.ENCODINGS.pop('mine', None)
    encodings.ENCODINGS.pop('own', None)
    encodings.ENCODINGS.pop('turned', None)
  with pytest.raises(errors.SpecError, match="unknown encoding 'mine'"):
    create('mine')


def test_register_refuses_an_embed_that_is_not_called():
  class Mine(encodings.Encoding):
    def embed(self, x, positions):
      return x + positions[..., None]

  with pytest.raises(errors.SpecError, match='Mine has .* embeds is True; set'):
    encodings.register('mine', Mine)
  assert 'mine' not in encodings.ENCODINGS


@pytest.mark.parametrize('method', ['bias', 'content_bias', 'content_values'])
def test_register_refuses_a_bias_that_is_not_called(method):
  mine = type('Mine', (encodings.Encoding,), {method: lambda self, *args: None})
  with pytest.raises(errors.SpecError, match=f'Mine overrides {method}, which'):
    encodings.register('mine', mine)
  assert 'mine' not in encodings.ENCODINGS


@pytest.mark.parametrize('thing', [nn.Dense, lambda q, k: q, 'fire'])
def test_register_refuses_what_is_no_encoding(thing):
  with pytest.raises(errors.SpecError, match='not a subclass of Encoding') as e:
    encodings.register('mine', thing)
  assert repr(thing) in str(e.value)
  assert 'mine' not in encodings.ENCODINGS
