"""Tests `lengen_jax/models/config.py`."""

import dataclasses

import pytest

from lengen_jax import errors
from lengen_jax.attention import bias_forms, dot_product
from lengen_jax.models import config as config_lib
from tests import helpers

SIZES = ('vocab_size', 'num_layers', 'num_heads', 'head_dim') + (
  'width',
  'mlp_width',
)


def refused(error=errors.ConfigError, **kwargs):
  with pytest.raises(error) as caught:
    helpers.tiny_model(**kwargs)
  return str(caught.value)


def test_defaults():
  config = helpers.tiny_model()
  assert config.encoding == ('nope',)
  assert config.attention_scale == 'none'
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
  ],
)
def test_encodings_become_a_tuple(encoding, want):
  config = helpers.tiny_model(encoding=encoding)
  assert config.encoding == want
  hash(config)
  # Replacing another field leaves them as they are.
  assert dataclasses.replace(config, num_heads=4).encoding == want


@pytest.mark.parametrize('encoding', ['', ' , ', (), []])
def test_refuses_no_encoding(encoding):
  assert 'empty encoding spec' in refused(errors.SpecError, encoding=encoding)


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
  assert 'num_layers=3' in message and 'encodings, 2' in message


def test_choices_are_those_of_attention():
  """Which a config names without loading jax."""
  assert config_lib._CHOICES['bias_form'] == bias_forms.FORMS
  assert config_lib._CHOICES['implementation'] == (
    'auto',
    *dot_product.IMPLEMENTATIONS,
  )


@pytest.mark.parametrize(
  'fields, message',
  [
    ({'implementation': 'refrence'}, "did you mean 'reference'"),
    ({'bias_form': 'exat'}, "did you mean 'exact'"),
    ({'num_heads': 6, 'key_heads': 4}, 'key_heads=4 must divide num_heads=6'),
    ({'window': 0}, 'model.window must be at least 1 or None, got 0'),
    ({'sinks': 2}, 'model.sinks=2 must not be negative, and requires a window'),
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
