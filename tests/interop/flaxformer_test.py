"""Flaxformer's gate, on a stand-in with the classes that it tests for."""

import abc
import sys
import types

from flax import linen as nn
import jax
import pytest

from lengen_jax import errors
from lengen_jax.interop import flaxformer, t5x


@pytest.fixture
def theirs(monkeypatch):
  """Modules named as Flaxformer's, with its two classes."""

  class RelativeAttentionAPI(metaclass=abc.ABCMeta):
    @abc.abstractmethod
    def __call__(self, qlen, klen, bidirectional, decode):
      raise NotImplementedError

  class RelativePositionBiases(nn.Module, RelativeAttentionAPI):
    def __call__(self, qlen, klen, bidirectional=True, decode=False):
      raise NotImplementedError

  names = (
    'flaxformer',
    'flaxformer.components',
    'flaxformer.components.relative_position_biases',
  )
  for name in names:
    module = types.ModuleType(name)
    module.__path__ = []
    monkeypatch.setitem(sys.modules, name, module)
  module.RelativeAttentionAPI = RelativeAttentionAPI
  module.RelativePositionBiases = RelativePositionBiases
  return module


def test_ours_is_let_in(theirs):
  ours = t5x.RelativePositionBiases(num_heads=2)
  # The decoder asks for the first, the encoder for the second.
  gates = (theirs.RelativeAttentionAPI, theirs.RelativePositionBiases)
  assert not any(isinstance(ours, gate) for gate in gates)
  flaxformer.register()
  flaxformer.register()
  assert all(isinstance(ours, gate) for gate in gates)
  assert not isinstance(nn.Dense(2), gates)
  variables = ours.init(jax.random.key(0), 3, 3, False)
  assert ours.apply(variables, 3, 3, False, decode=False).shape == (1, 2, 3, 3)


def test_without_flaxformer():
  with pytest.raises(errors.ConfigError, match='install Flaxformer'):
    flaxformer.register()


def test_its_own_imports_are_not_hidden(theirs, monkeypatch):
  name = 'flaxformer.components.relative_position_biases'
  monkeypatch.delitem(sys.modules, name)

  class Broken:
    def find_spec(self, wanted, path=None, target=None):
      if wanted == name:
        raise ModuleNotFoundError('No module named aqt', name='aqt')

  monkeypatch.setattr(sys, 'meta_path', [Broken(), *sys.meta_path])
  with pytest.raises(ModuleNotFoundError, match='aqt'):
    flaxformer.register()
