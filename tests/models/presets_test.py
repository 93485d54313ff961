"""Tests `lengen_jax/models/presets.py`."""

import math

import jax
import pytest

from lengen_jax import errors
from lengen_jax import models
from lengen_jax.models import presets
from lengen_jax.models import stacking


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
