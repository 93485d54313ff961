"""Tests `lengen_jax/interop/weights.py`: our models as safetensors files."""

import dataclasses
import json
import sys

import jax
import numpy as np
import pytest
import safetensors
from safetensors import numpy as safetensors_numpy

from lengen_jax import errors
from lengen_jax.interop import weights
from lengen_jax.models import config as model_config
from lengen_jax.models import presets, stacking
from tests import helpers


def model(**fields):
  fields = presets.get('tiny') | {'encoding': 'fire, rope(base=5e5)'} | fields
  return model_config.ModelConfig(**fields)


def initial(config):
  return helpers.initial(config, seed=1)


@pytest.mark.parametrize(
  'fields',
  [
    {},
    {'scan_layers': True, 'attention_scale': 'ssmax'},
    {'architecture': 'encoder_decoder', 'encoding': 'fire(shared=True)'},
  ],
  ids=str,
)
def test_what_is_written_is_read(tmp_path, fields):
  config = model(**fields)
  params = initial(config)
  path = tmp_path / 'a.safetensors'
  assert weights.save(path, params, config) == path.stat().st_size
  assert [file.name for file in tmp_path.iterdir()] == ['a.safetensors']
  found, found_config = weights.load(path)
  assert found_config == dataclasses.replace(config, scan_layers=False)
  jax.tree.map(np.testing.assert_array_equal, found, stacking.unstack(params))


def test_what_it_was_trained_on(tmp_path):
  path = tmp_path / 'a.safetensors'
  weights.save(path, initial(model()), model())
  assert weights.trained_on(path) == weights.TrainedOn('', 0)
  known = weights.TrainedOn('bytes_plus_0', 64)
  weights.save(path, initial(model()), model(), known)
  assert weights.trained_on(path) == known
  # As others wrote it, or older versions.
  written(path, {'a': np.ones(3)})
  assert weights.trained_on(path) == weights.TrainedOn()
  metadata = {'lengen_jax.trained_on': '{"colour": "red"}'}
  safetensors_numpy.save_file({'a': np.ones(3)}, path, metadata=metadata)
  with pytest.raises(errors.CheckpointError, match='cannot be read: .*colour'):
    weights.trained_on(path)


def test_others_may_read_it_as_any_file(tmp_path):
  path, other = tmp_path / 'a.safetensors', tmp_path / 'other'
  weights.save(path, initial(model()), model())
  other.touch()
  assert path.stat().st_mode == other.stat().st_mode


def test_names_are_our_paths(tmp_path):
  path = tmp_path / 'a.safetensors'
  weights.save(path, initial(model()), model())
  with safetensors.safe_open(path, framework='np') as file:
    names = set(file.keys())
    metadata = file.metadata()
  assert {
    'embed/table',
    'layer_0/attention/query/kernel',
    'layer_0/attention/encoding/mlp_0/kernel',
    'layer_1/mlp/down/kernel',
  } <= names
  found = json.loads(metadata['lengen_jax.model'])
  assert found['encoding'] == ['fire', 'rope(base=5e5)']


def written(path, arrays, **fields):
  config = dataclasses.asdict(model()) | fields
  metadata = {'lengen_jax.model': json.dumps(config)}
  safetensors_numpy.save_file(arrays, path, metadata=metadata)


def refused(path):
  with pytest.raises(errors.CheckpointError) as caught:
    weights.load(path)
  assert str(path) in str(caught.value)
  return str(caught.value)


def test_refuses_what_is_not_all_of_a_model(tmp_path):
  path = tmp_path / 'a.safetensors'
  weights.save(path, initial(model()), model())
  arrays, _ = weights.read(path)
  table = arrays.pop('embed/table')
  written(path, arrays)
  assert 'lacks embed/table, (256, 32)' in refused(path)
  written(path, arrays | {'embed/table': table, 'strange': np.ones(3)})
  assert 'has strange, (3,), which this model does not use' in refused(path)
  written(path, arrays | {'embed/table': table[:9].copy()})
  assert (
    'has embed/table of shape (9, 32), where its config requires'
    in refused(path)
  )
  written(path, arrays, colour='red')
  assert 'ModelConfig in' in refused(path) and 'colour' in refused(path)
  safetensors_numpy.save_file(arrays, path)
  assert 'was not written by lengen export' in refused(path)


def test_refuses_files_that_are_none(tmp_path):
  path = tmp_path / 'a.safetensors'
  assert 'there is no ' in refused(path)
  path.write_text('x')
  assert 'cannot be read as safetensors: ' in refused(path)
  assert 'is not local; safetensors files' in refused(
    'gs://bucket/a.safetensors'
  )


@pytest.mark.parametrize(
  'name, message',
  [
    ('a.npz', 'must be named \\*.safetensors, got .*/a.npz'),
    ('nowhere/a.safetensors', 'folder .*/nowhere does not exist; create it'),
  ],
)
def test_refuses_places_that_cannot_be_written(tmp_path, name, message):
  for refuse in (
    weights.check_path,
    lambda path: weights.save(path, initial(model()), model()),
  ):
    with pytest.raises(errors.CheckpointError, match=message):
      refuse(tmp_path / name)
  assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_place_of_the_file(tmp_path):
  (tmp_path / 'a.safetensors').mkdir()
  with pytest.raises(errors.CheckpointError, match='cannot write .*directory'):
    weights.save(tmp_path / 'a.safetensors', initial(model()), model())
  assert [file.name for file in tmp_path.iterdir()] == ['a.safetensors']


def test_without_the_package(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'safetensors', None)
  monkeypatch.setitem(sys.modules, 'safetensors.numpy', None)
  extra = r"the weights extra: pip install 'lengen_jax\[weights\]'"
  with pytest.raises(errors.CheckpointError, match=extra):
    weights.load(tmp_path / 'a.safetensors')
  with pytest.raises(errors.CheckpointError, match=extra):
    weights.save(tmp_path / 'a.safetensors', initial(model()), model())
