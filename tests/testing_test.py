"""Tests `lengen_jax/testing.py`: every encoding with every position scheme.

Whatever is registered is tested here by being registered.
"""

import dataclasses
import functools
import itertools

from flax import linen as nn
import jax
import jax.numpy as jnp
import pytest

from lengen_jax import encodings, errors, positions, testing
from lengen_jax.attention import scaling
from lengen_jax.models import layers
from lengen_jax.positions import contextual

H, D, E = testing.HEADS, testing.HEAD_DIM, testing.WIDTH
# Beside the plain entries of the registry, the forms whose code differs.
FORMS = [
  'fire(normalizer="none", hidden_layers=1, shared=True)',
  'fire(transform="identity", normalizer="max_length", max_length=24)',
  'rope(layout="interleaved", fraction=0.5)',
  'rope(proportional=True, fraction=0.5)',
  'rope(dynamic=True, train_length=6)',
  'ntk(dynamic=True, train_length=6, scale=1.)',
  'yarn(dynamic=True, train_length=6)',
]
SPECS = [*testing.encoding_specs(), *FORMS]
# One spec for each way to act on attention, and each setting; others are slow.
QUICK = (
  'fire(init_threshold=8.)',
  f'learned(max_position={testing.FAR + 64})',
  'rope(dynamic=True, train_length=6)',
)
# In the slow tests, float32 covers every spec, bfloat16 one for each hook.
BFLOAT16 = (
  'fire(init_threshold=8.)',
  'yarn(dynamic=True, train_length=6)',
  'transformer_xl',
  'sinusoidal',
)
# These differ from another spec in numbers only, so that one kind of positions
# is enough.
VARIANTS = ('rope(prop', 'ntk', 'yarn', 'llama3', 'kerple_power', 'sandwich')
SCALES = [
  'constant(factor=0.5)',
  'log_n(train_length=6)',
  "log_n(train_length=6, per='sequence', clip=False)",
  'ssmax',
  'llama4(train_length=6)',
]

FRACTIONAL = {
  'interpolated',
  'cape',
  'head_warp',
  'tail_warp',
  'head_tail_warp',
  'equal_mean',
}
INTERPOLATING = {'interpolated', 'head_warp', 'tail_warp', 'head_tail_warp'}


def slow_but(quick, specs):
  return [
    pytest.param(spec, marks=() if spec in quick else pytest.mark.slow)
    for spec in specs
  ]


@functools.cache
def properties(spec, **kwargs):
  return testing.Properties(spec, **kwargs)


@pytest.mark.parametrize('spec', SPECS)
def test_supported_schemes(spec):
  *schemes, distances, fractional = testing.scheme_specs()
  one = testing.Properties(spec)
  refused = {
    scheme.split('(')[0] for scheme in schemes if not one.takes(scheme)
  }
  name = spec.split('(')[0]
  want = set()
  if name in ('learned', 'shaw'):
    want |= FRACTIONAL
  if name in ('ntk', 'yarn', 'llama3', 'longrope') or 'dynamic' in spec:
    want |= INTERPOLATING
  takes_distances = {'nope', 'shaw', 'transformer_xl', 't5', 'alibi'} | {
    'kerple_log',
    'kerple_power',
    'sandwich',
    'linear',
  }
  if name not in takes_distances and 'normalizer=' not in spec:
    assert not one.takes(distances)
  else:
    assert one.takes(distances)
  assert one.takes(fractional) == (name not in ('learned', 'shaw'))
  assert refused == want


@pytest.mark.parametrize('spec', slow_but(QUICK, SPECS))
def test_every_scheme_in_float32(spec, monkeypatch):
  one = testing.Properties(spec)
  assert one.params  # Initialization is traced here, not below.
  traced = []
  attend = layers.attention.with_encoding
  monkeypatch.setattr(
    layers.attention,
    'with_encoding',
    lambda *args, **kwargs: traced.append(1) or attend(*args, **kwargs),
  )
  if spec.startswith(VARIANTS):
    schemes = ['shape(max_shift=16)', 'random_padding(max_position=64)']
    monkeypatch.setattr(testing, 'scheme_specs', lambda: schemes)
  taken = one.check_schemes()
  # Schemes are data: each kind of positions is traced once forward and once
  # with a cache.
  distances = any('distances' in scheme for scheme in taken)
  kinds = 1 + ('equal_mean' in taken) + distances
  assert len(traced) == 2 * kinds


@pytest.mark.slow
@pytest.mark.parametrize('spec', BFLOAT16)
def test_every_scheme_in_bfloat16(spec):
  half = properties(spec, dtype='bfloat16')
  half.check_schemes()
  half.check_far(properties(spec))


@pytest.mark.parametrize(
  'spec',
  slow_but(
    ('shaw(left=4, right=4)', 'fire(sign=True)'),
    ['shaw(left=4, right=4)', 'fire(sign=True)', 'transformer_xl']
    + ['t5(num_buckets=8, max_distance=16)', 'alibi(official_compat=True)'],
  ),
)
def test_both_directions(spec):
  encoder = testing.Properties(spec, causal=False)
  for scheme in ('standard', 'randomized(max_position=64)'):
    encoder.check_causality(scheme)
    encoder.check_packing(scheme)


@pytest.mark.parametrize(
  'dtype, scale',
  [
    ('float32', SCALES[1]),
    ('bfloat16', 'ssmax'),
    pytest.param('float32', SCALES[0], marks=pytest.mark.slow),
    pytest.param('float32', SCALES[3], marks=pytest.mark.slow),
  ],
)
def test_every_logit_scale(dtype, scale):
  assert scale.split('(')[0] in scaling.SCALES
  one = testing.Properties('kerple_log', attention_scale=scale, dtype=dtype)
  for scheme in ('standard', 'randomized(max_position=64)'):
    one.check_causality(scheme)
    one.check_packing(scheme)
    one.check_decoding(scheme)


def test_every_scale_is_among_them():
  assert set(scaling.SCALES) == {
    *('none', 'constant', 'log_n', 'ssmax', 'llama4'),
  }


def test_check_encoding(monkeypatch):
  """Every check, and the supported schemes; blocks of README run the checks."""
  distances = testing.scheme_specs()[-2]
  assert 'distances' in distances
  monkeypatch.setattr(testing, 'scheme_specs', lambda: ['standard', distances])
  checked = []

  def counted(check):
    def count(self, *_):
      config = self.config
      checked.append((check, config.dtype, config.contextual_positions))

    monkeypatch.setattr(testing.Properties, f'check_{check}', count)

  of_schemes = ['causality', 'packing', 'decoding', 'translation']
  for check in (*of_schemes, 'blockwise', 'contextual', 'far'):
    counted(check)
  assert testing.check_encoding('fire') == ['standard']
  schemes = [(scheme,) for scheme in testing.contextual_specs()]
  want = [
    *((check, 'float32', ('none',)) for check in (*of_schemes, 'blockwise')),
    *(('contextual', 'float32', scheme) for scheme in schemes),
    *((check, 'bfloat16', ('none',)) for check in (*of_schemes, 'far')),
  ]
  assert checked == want
  checked.clear()
  testing.check_encoding(f'learned(max_position={testing.FAR + 64})')
  assert 'contextual' not in [check for check, *_ in checked]


@pytest.mark.slow
@pytest.mark.parametrize(
  'spec, scheme',
  [
    # A bias per key with every scheme; others with one.
    *itertools.product(['linear(learned=True)'], testing.contextual_specs()),
    *zip(
      ('rope', 'pope', 'rope(dynamic=True, train_length=6)')
      + ('fire(init_threshold=8.)', 'transformer_xl', 'kerple_log'),
      itertools.cycle(testing.contextual_specs()),
      strict=False,
    ),
  ],
)
def test_every_contextual_scheme(spec, scheme):
  one = testing.Properties(spec, contextual_positions=scheme)
  assert one.takes_contextual(scheme)
  one.check_contextual()


@pytest.mark.parametrize('spec', SPECS)
def test_which_encodings_take_contextual_positions(spec):
  """All but those at the input and those that read rows of a table."""
  refuses = spec.split('(')[0] in ('sinusoidal', 'learned', 'shaw')
  one = testing.Properties(spec)
  for scheme in testing.contextual_specs():
    assert one.takes_contextual(scheme) == (not refuses)


class Jumping(contextual.Contextual):
  """Positions that grow by what the token says, as the keys say."""

  fault: str = 'none'
  cumulative = True

  def setup(self):
    self.step = self.param(
      'step', nn.initializers.ones, (self.width, self.num_heads)
    )

  def values(self, x):
    return jax.nn.sigmoid(x @ self.step[None])

  def positions(self, x, segment_ids=None, before=None):
    if self.fault == 'packing':
      segment_ids = None
    if self.fault == 'decoding':
      before = None
    if self.fault == 'causality':
      x = x + x.mean(1, keepdims=True)
    return super().positions(x, segment_ids, before)


@pytest.fixture
def jumping(monkeypatch):
  """A scheme that lasts for one test."""
  menu = {**contextual.CONTEXTUAL, 'jumping': Jumping}
  monkeypatch.setattr(contextual, 'CONTEXTUAL', menu)


def test_check_contextual(jumping, monkeypatch):
  del jumping
  checked = []

  def counted(self):
    (encoding,), (scheme,) = (
      self.config.encoding,
      self.config.contextual_positions,
    )
    checked.append((encoding.split('(')[0], scheme))

  monkeypatch.setattr(testing.Properties, 'check_contextual', counted)
  testing.check_contextual('jumping')
  assert checked == [(one, 'jumping') for one in ('linear', 'fire', 'rope')]
  with pytest.raises(errors.SpecError, match="scheme 'jumpin'"):
    testing.check_contextual('jumpin')


@pytest.mark.some(3)
@pytest.mark.parametrize(
  'fault, message',
  [
    ('causality', 'has gradients to tokens'),
    ('packing', 'packed and alone differ'),
    ('decoding', 'decoding from .* differ'),
  ],
)
def test_contextual_faults_are_told(jumping, fault, message):
  del jumping
  # A bias of differences sees neither a start nor a restart.
  fire = 'fire(hidden_layers=0, init_threshold=8.)'
  one = testing.Properties(
    fire if fault == 'packing' else 'linear',
    contextual_positions=f'jumping(fault={fault!r})',
  )
  check = getattr(one, f'check_{fault}')
  with pytest.raises(AssertionError, match=f'jumping.*{message}'):
    check('standard')


def broken(monkeypatch, cls):
  """Properties of an encoding that lasts for one test."""
  menu = {**encodings.ENCODINGS, 'broken': cls}
  monkeypatch.setattr('lengen_jax.encodings.ENCODINGS', menu)
  return testing.Properties('broken')


class Absolute(encodings.Encoding):
  """Claims translation invariance without having it."""

  def tile_params(self):
    return {}

  @nn.nowrap
  def tile(self, params, q_positions, k_positions, *, bidirectional=False):
    k = jnp.sin(k_positions.astype(jnp.float32))
    b = jnp.broadcast_to(
      k[..., None, :], q_positions.shape + k_positions.shape[-1:]
    )
    return jnp.stack([b] * H, -3)


class Batch(encodings.Encoding):
  """Goes by the width of the batch instead of by the segment."""

  translation_invariant = False

  def rotate(self, q, k, q_positions, k_positions, lengths=None):
    place = jnp.arange(k.shape[1], dtype=jnp.float32)
    return q, k * jnp.cos(place)[None, :, None, None]


class Centred(encodings.Encoding):
  """Depends on all keys of a tile."""

  translation_invariant = False

  def tile_params(self):
    return {}

  @nn.nowrap
  def tile(self, params, q_positions, k_positions, *, bidirectional=False):
    b = jnp.sin(q_positions[..., :, None] + k_positions[..., None, :])
    return jnp.stack([b / jnp.abs(b).max(-1, keepdims=True)] * H, -3)


class Rounded(encodings.Encoding):
  """Puts positions into the model's dtype."""

  def tile_params(self):
    return {}

  @nn.nowrap
  def tile(self, params, q_positions, k_positions, *, bidirectional=False):
    q, k = (p.astype(jnp.bfloat16) for p in (q_positions, k_positions))
    distance = (q[..., :, None] - k[..., None, :]).astype(jnp.float32)
    return jnp.stack([-distance] * H, -3)


class Torn(encodings.Encoding):
  """Says one thing of distances and another of positions."""

  def tile_params(self):
    return {}

  @nn.nowrap
  def strip(self, params, distances, *, bidirectional=False):
    return jnp.stack([-0.5 * distances] * H)

  @nn.nowrap
  def tile(self, params, q_positions, k_positions, *, bidirectional=False):
    distance = encodings.base.signed_distance(q_positions, k_positions)
    return jnp.stack([-distance] * H, -3)


class Turning(encodings.Encoding):
  """Turns keys by the length of the sequence and does not say so."""

  translation_invariant = False

  def rotate(self, q, k, q_positions, k_positions, lengths=None):
    return q, k * (k_positions[..., None, None] < k.shape[1] / 2)


def test_a_claim_that_does_not_hold_is_told(monkeypatch):
  with pytest.raises(AssertionError, match='shifted by 37 and not differ'):
    broken(monkeypatch, Absolute).check_translation('standard')


def test_packing_that_does_not_hold_is_told(monkeypatch):
  with pytest.raises(AssertionError, match='packed and alone differ'):
    broken(monkeypatch, Batch).check_packing('standard')


def test_decoding_that_does_not_hold_is_told(monkeypatch):
  with pytest.raises(AssertionError, match='decoding from .* differ'):
    broken(monkeypatch, Turning).check_decoding('standard')


def test_a_strip_of_another_bias_is_told(monkeypatch):
  with pytest.raises(
    AssertionError, match='standard positions: outputs differ'
  ):
    broken(monkeypatch, Torn).check_blockwise()


def test_a_bias_that_depends_on_its_tile_is_told(monkeypatch):
  with pytest.raises(AssertionError, match='by blocks and at once, .* differ'):
    broken(monkeypatch, Centred).check_blockwise()


def test_rounded_positions_are_told(monkeypatch):
  one = broken(monkeypatch, Rounded)
  exact = testing.Properties('alibi')
  with pytest.raises(AssertionError, match='from 10000 on have an'):
    one.check_far(exact)


def test_a_view_of_later_tokens_is_told(monkeypatch):
  one = testing.Properties('alibi')
  attend = layers.attention.with_encoding
  monkeypatch.setattr(
    layers.attention,
    'with_encoding',
    lambda *args, **kwargs: attend(*args, **{**kwargs, 'causal': False}),
  )
  with pytest.raises(AssertionError, match='has gradients to tokens'):
    one.check_causality('standard')


def test_a_refusal_that_names_nobody_is_told(monkeypatch):
  def refuse(encoding, scheme):
    raise errors.CombinationError('no')

  monkeypatch.setattr(encodings, 'check_scheme', refuse)
  with pytest.raises(AssertionError, match='is not named'):
    properties('alibi').takes('standard')


def test_scheme_specs_cover_the_registry():
  names = {spec.split('(')[0] for spec in testing.scheme_specs()}
  assert names == set(positions.SCHEMES)


def test_a_users_scheme_that_requires_a_key_is_left_out(monkeypatch):
  @dataclasses.dataclass(frozen=True)
  class Half(positions.PositionScheme):
    scale: float | None = None
    ranges = {'scale': '> 0'}

    def apply(self, draws, i, *, lengths=None):
      return i * self.scale

  monkeypatch.setattr(positions, 'SCHEMES', {**positions.SCHEMES})
  before = testing.scheme_specs()
  positions.SCHEMES['half'] = Half
  assert testing.scheme_specs() == before


@pytest.mark.parametrize(
  'spec, want',
  [
    ('head_tail_warp(train_length=6)', 'head_tail_warp(train_length=6)'),
    ('standard', 'standard'),
    (
      "randomized(draw='batch', max_position=8)",
      "randomized(max_position=8, draw='batch')",
    ),
  ],
)
def test_schemes_print_as_their_specs(spec, want):
  assert str(positions.create(spec)) == want
