"""Tests `lengen_jax/models/presets.py`."""

import math

import jax
import pytest

from lengen_jax import errors, models
from lengen_jax.models import presets, stacking


def count(name, **kwargs):
  """Parameters of a preset, without making them."""
  config = models.ModelConfig(**presets.get(name), **kwargs)
  shapes = jax.eval_shape(lambda: stacking.init(config, jax.random.key(0)))
  return sum(math.prod(x.shape) for x in jax.tree.leaves(shapes))


@pytest.mark.parametrize('name', sorted(presets.PRESETS))
def test_every_preset_is_a_model(name):
  config = models.ModelConfig(**presets.get(name))
  assert config.num_heads * config.head_dim == config.width


def test_base_has_125_million_parameters():
  block = 4 * 768 * 768 + 2 * 768 * 3072 + 2 * 2 * 768
  want = 12 * block + 50304 * 768 + 2 * 768
  assert count('base') == want
  assert abs(want / 125e6 - 1) < 0.02


def test_large_has_350_million_parameters():
  block = 4 * 1024 * 1024 + 2 * 1024 * 4096 + 2 * 2 * 1024
  want = 24 * block + 50304 * 1024 + 2 * 1024
  assert count('large') == want
  assert abs(want / 350e6 - 1) < 0.02


def test_gpt2_has_124_million_parameters():
  block = 4 * 768 * 768 + 2 * 768 * 3072 + 2 * 2 * 768
  want = 12 * block + 50257 * 768 + 2 * 768
  assert count('gpt2') == want
  # Called 117M by its authors and 124M by those who counted.
  assert 117e6 < want < 124e6


def test_t5_decoder_has_107_million_parameters():
  # The norms have no bias.
  block = 4 * 768 * 768 + 2 * 768 * 3072 + 2 * 768
  want = 12 * block + 28672 * 768 + 768
  assert count('t5_decoder') == want
  assert abs(want / 107e6 - 1) < 0.01


def test_enwik8_is_a_model_of_8_layers():
  block = 4 * 256 * 256 + 2 * 256 * 1024 + 2 * 2 * 256
  assert count('enwik8') == 8 * block + 256 * 256 + 2 * 256


def test_chomsky_is_post_norm_with_biases():
  # No norm at the end; biases of the MLP, none in attention.
  block = 4 * 64 * 64 + 2 * 64 * 256 + (256 + 64) + 2 * 2 * 64
  assert count('chomsky') == 5 * block + 256 * 64
  config = models.ModelConfig(**presets.get('chomsky'))
  assert config.architecture == 'encoder'
  assert config.norm_placement == 'post' and config.mlp_bias
  assert (config.num_heads, config.activation) == (8, 'relu')
  assert config.dropout_rate == 0.1


@pytest.mark.parametrize(
  'name, norm, activation, scaled_logits, norm_placement',
  [
    ('base', 'layer', 'gelu', True, 'pre'),
    ('gpt2', 'layer', 'gelu', True, 'pre'),
    ('t5_decoder', 'rms', 'relu', False, 'pre'),
    ('enwik8', 'layer', 'gelu', True, 'pre'),
  ],
)
def test_forms(name, norm, activation, scaled_logits, norm_placement):
  config = models.ModelConfig(**presets.get(name))
  assert config.architecture == 'decoder'
  assert (config.norm, config.activation) == (norm, activation)
  assert config.scaled_logits == scaled_logits
  assert config.norm_placement == norm_placement
  assert not config.mlp_bias and config.dropout_rate == 0


def test_encodings_add_little():
  plain = count('tiny')
  fire = (1 + 1) + (32 + 32) + (32 * 32 + 32) + (32 * 2 + 2)
  assert count('tiny', encoding='fire') == plain + 2 * fire
  assert count('tiny', encoding='fire(shared=True)') == plain + fire
  assert count('tiny', encoding='kerple_log') == plain + 2 * 2 * 2


def test_a_preset_is_a_fresh_dict():
  sizes = presets.get('tiny')
  sizes['width'] = 0
  assert presets.get('tiny')['width'] != 0


def test_refuses_unknown_names():
  with pytest.raises(errors.ConfigError) as caught:
    presets.get('larg')
  assert "unknown model preset 'larg'; did you mean 'large'" in str(
    caught.value
  )
  assert 'base, chomsky, cpu, enwik8' in str(caught.value)


def test_form_of_zhou():
  config = models.ModelConfig(**presets.get('zhou'))
  form = config.norm, config.norm_placement, config.activation
  assert form == ('rms', 'both', 'geglu')
