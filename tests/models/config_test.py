"""Tests `lengen_jax/models/config.py`."""

import dataclasses
import json

import numpy as np
import pytest

from lengen_jax import errors
from lengen_jax.attention import bias_forms, dot_product
from lengen_jax.models import config as config_lib
from lengen_jax.models import layers
from tests import helpers

SIZES = ('vocab_size', 'num_layers', 'num_heads', 'head_dim') + (
  'width',
  'mlp_width',
)


def refused(error=errors.ConfigError, **kwargs):
  with pytest.raises(error) as caught:
    helpers.tiny_model(**kwargs)
  return str(caught.value)


def test_numpy_scalars_become_numbers():
  """Such a config can be written as JSON."""
  config = helpers.tiny_model(
    num_layers=np.int64(2),
    window=(np.int64(3), None),
    dropout_rate=np.float32(0),
  )
  assert config == helpers.tiny_model(num_layers=2, window=(3, None))
  assert json.loads(json.dumps(dataclasses.asdict(config)))['window'] == [
    3,
    None,
  ]


def test_defaults():
  config = helpers.tiny_model()
  assert config.encoding == ('nope',)
  assert config.attention_scale == ('none',)
  assert (config.window, config.sinks, config.period) == ((None,), (0,), 1)
  assert (config.dropout_rate, config.dtype) == (0.0, 'float32')
  assert (config.implementation, config.bias_form) == ('auto', 'exact')
  assert (config.scan_layers, config.remat) == (False, 'none')


@pytest.mark.parametrize(
  'encoding, want',
  [
    ('fire', ('fire',)),
    ('rope, nope', ('rope', 'nope')),
    (
      'fire(init_c=.2, mlp_width=8), nope',
      ('fire(init_c=.2, mlp_width=8)', 'nope'),
    ),
    (('rope', 'nope'), ('rope', 'nope')),
    (['rope', 'nope'], ('rope', 'nope')),
    ('2*rope, nope', ('rope', 'rope', 'nope')),
    (('nope', '2*rope'), ('nope', 'rope', 'rope')),
  ],
)
def test_encodings_become_a_tuple(encoding, want):
  config = helpers.tiny_model(encoding=encoding)
  assert config.encoding == want
  hash(config)
  # Replacing another field leaves them as they are.
  assert dataclasses.replace(config, num_heads=4).encoding == want


def test_each_field_has_a_period_of_its_own():
  config = helpers.tiny_model(
    num_layers=7,
    encoding='rope, nope',
    window=[8, 4, None],
    sinks=(2, 1, 0),
    attention_scale='none, ssmax',
  )
  assert config.period == 6
  assert [dataclasses.astuple(layer)[:4] for layer in config.layers] == [
    ('rope', 'none', 8, 2),
    ('nope', 'ssmax', 4, 1),
    ('rope', 'none', None, 0),
    ('nope', 'ssmax', 8, 2),
    ('rope', 'none', 4, 1),
    ('nope', 'ssmax', None, 0),
    ('rope', 'none', 8, 2),
  ]
  hash(config)
  # As JSON, in a file of weights.
  fields = json.loads(json.dumps(dataclasses.asdict(config)))
  assert type(config)(**fields) == config
  assert helpers.tiny_model(window=8) == helpers.tiny_model(window=(8,))


@pytest.mark.parametrize('field', config_lib.PER_LAYER)
@pytest.mark.parametrize('values', [(), []])
def test_refuses_no_value(field, values):
  message = refused(errors.SpecError, **{field: values})
  assert f'model.{field} is empty' in message


@pytest.mark.parametrize('field', ['encoding', 'attention_scale'])
@pytest.mark.parametrize('spec', ['', ' , '])
def test_refuses_no_spec(field, spec):
  message = refused(errors.SpecError, **{field: spec})
  assert f'model.{field} is empty' in message


def test_frozen():
  with pytest.raises(dataclasses.FrozenInstanceError):
    helpers.tiny_model().width = 3


@pytest.mark.parametrize('value', [0, -1])
@pytest.mark.parametrize('field', SIZES)
def test_refuses_sizes(field, value):
  message = refused(**{field: value})
  assert f'model.{field} must be at least 1, got {value}' == message


def test_refuses_dtypes():
  message = refused(dtype='bfloat61')
  assert "unknown model.dtype 'bfloat61'; did you mean 'bfloat16'" in message
  assert "'float16'" in refused(dtype='float16')


def test_refuses_remat():
  message = refused(remat='dot')
  assert "unknown model.remat 'dot'; did you mean 'dots'" in message
  assert 'dots, full, none' in message


@pytest.mark.parametrize('rate', [-0.1, 1.0, 2.0])
def test_refuses_dropout_rates(rate):
  assert f'[0, 1), got {rate}' in refused(dropout_rate=rate)


def test_scanning_needs_whole_turns():
  helpers.tiny_model(num_layers=4, encoding='rope, nope', scan_layers=True)
  helpers.tiny_model(num_layers=3, encoding='rope, nope')
  message = refused(num_layers=3, encoding='rope, nope', scan_layers=True)
  assert 'num_layers=3' in message and '2, the period' in message
  turns = {'encoding': 'rope, nope', 'window': (8, 4, None)}
  helpers.tiny_model(num_layers=6, scan_layers=True, **turns)
  message = refused(num_layers=4, scan_layers=True, **turns)
  assert '6, the period' in message
  assert 'encoding has 2, window has 3' in message


def test_choices_are_those_of_attention():
  """Which a config names without loading jax."""
  assert config_lib.CHOICES['bias_form'] == bias_forms.FORMS
  assert config_lib.CHOICES['implementation'] == (
    'auto',
    *dot_product.IMPLEMENTATIONS,
  )
  for field in ('query_key_norm', 'output_gate'):
    with pytest.raises(errors.ConfigError) as caught:
      layers.Attention(2, 16, **{field: 'x'})
    message = refused(**{field: 'x'})
    assert message == str(caught.value).replace(field, f'model.{field}')


def test_a_string_can_name_none():
  config = helpers.tiny_model(query_key_norm='2*unscaled, None', num_layers=3)
  assert config.query_key_norm == ('unscaled', 'unscaled', None)
  assert helpers.tiny_model(query_key_norm='None').query_key_norm == (None,)


@pytest.mark.parametrize(
  'fields, message',
  [
    ({'implementation': 'refrence'}, "did you mean 'reference'"),
    ({'bias_form': 'exat'}, "did you mean 'exact'"),
    ({'num_heads': 6, 'key_heads': 4}, 'key_heads=4 must divide num_heads=6'),
    ({'window': 0}, 'model.window must be at least 1 or None, got 0'),
    ({'window': (8, 0)}, 'model.window must be at least 1 or None, got 0'),
    ({'window': (8, 'x')}, "model.window is 'x'; it takes int or None"),
    ({'encoding': ('rope', 3)}, 'model.encoding is 3; it takes str'),
    ({'sinks': -1, 'window': 8}, 'model.sinks must be at least 0, got -1'),
    (
      {'sinks': 2},
      'model.sinks=2 requires a window; model.window of layer 0 is None',
    ),
    (
      {'window': (None, 8), 'sinks': (0, 2, 1, 2), 'num_layers': 4},
      'model.sinks=1 requires a window; model.window of layer 2 is None',
    ),
    (
      {'output_gate': 'None'},
      "unknown model.output_gate 'None'; valid: element, head, or None (leave",
    ),
    (
      {'query_key_norm': 'heads'},
      "unknown model.query_key_norm 'heads'; did you mean 'head'? valid: all, "
      'head, unscaled, or None (leave',
    ),
    ({'output_size': 0}, 'model.output_size must be at least 1 or None, got 0'),
    (
      {'output_size': 9, 'tied_embedding': False},
      'model.output_size=9 creates a separate head',
    ),
    ({'norm_epsilon': 0.0}, 'model.norm_epsilon must be positive, got 0.0'),
  ],
)
def test_refuses_what_attention_would(fields, message):
  assert message in refused(**fields)
