"""Tests `lengen_jax/training/pretrained.py`."""

import functools
import json
import pathlib
import shutil

import jax
import numpy as np
import pytest

from configs import stdlib as stdlib_config
from lengen_jax import errors
from lengen_jax.data import vocabulary
from lengen_jax.interop import hf, weights
from lengen_jax.models import stacking
from lengen_jax.training import export, loop, pretrained
from lengen_jax.training import runs as runs_lib
from tests import helpers

LLAMA = helpers.GOLDEN / 'llama' / 'untied'


@pytest.fixture(scope='module')
def run(tmp_path_factory, corpus):
  """The workdir of a run of two scanned layers, which is not trained."""
  folder = tmp_path_factory.mktemp('run') / 'run'
  config = stdlib_config.get_config('tiny')
  config.model.update({'encoding': 'rope', 'scan_layers': True})
  config.positions = 'randomized(max_position=96)'
  config.train.steps = 0
  loop.train(config, folder, corpus=corpus)
  return folder


@pytest.mark.parametrize('mesh', [{'data': 64}, {'fsdp': 3}])
def test_a_mesh_of_another_machine(run, tmp_path, mesh):
  """Rows are split over the devices that there are."""
  folder = shutil.copytree(run, tmp_path / 'run')
  path = folder / 'config.json'
  config = json.loads(path.read_text())
  config['mesh'] |= mesh
  path.write_text(json.dumps(config))
  found = pretrained.restore(folder)
  axes = {name: n for name, n in found.run.layout.mesh.shape.items() if n > 1}
  assert axes == {'data': jax.device_count()}
  specs = runs_lib.Run('rope(base=100.0)', 'standard', 'none')
  assert found.tested_as(specs).run.layout == found.run.layout


def test_exports_of_runs_that_name_each_other(tmp_path):
  for one, other in ('ab', 'ba'):
    folder = tmp_path / one
    folder.mkdir()
    config = stdlib_config.get_config('tiny')
    config.train.init_from = str(tmp_path / other)
    (folder / 'config.json').write_text(config.to_json())
  assert export._original(config) is None


def test_a_run(run):
  found, trained = pretrained.load(run), pretrained.restore(run)
  helpers.assert_same(found.params, stacking.unstack(trained.state.params))
  leaves = jax.tree.leaves(found.params)
  assert all(isinstance(leaf, np.ndarray) for leaf in leaves)
  assert trained.run.model.scan_layers and not found.model.scan_layers
  assert found.positions == 'randomized(max_position=96)'
  assert found.train_length == 32
  # The corpus has bytes without special ids.
  assert found.fingerprint == 'bytes_plus_0'
  assert found.create_vocabulary().fingerprint == 'bytes_plus_0'


def test_an_exported_file(run, tmp_path):
  known, path = pretrained.load(run), tmp_path / 'a.safetensors'
  facts = weights.TrainedOn('bytes_plus_3', 32)
  weights.save(path, known.params, known.model, facts)
  found = pretrained.load(path)
  helpers.assert_same(found.params, known.params)
  assert (found.model, found.train_length) == (known.model, 32)
  assert found.create_vocabulary().fingerprint == 'bytes_plus_3'

  weights.save(path, known.params, known.model)
  found = pretrained.load(path)
  with pytest.raises(errors.CorpusError, match='does not contain its vocab'):
    found.create_vocabulary()
  with pytest.raises(
    errors.CorpusError, match='has 259 tokens, .*vocab_size=256'
  ):
    found.create_vocabulary('bytes')


def test_exports_keep_the_positions(run, tmp_path):
  path = str(tmp_path / 'a.safetensors')
  assert export.to_safetensors(str(run), path, None).startswith(f'wrote {path}')
  assert pretrained.load(path).positions == 'randomized(max_position=96)'
  with pytest.raises(
    errors.CheckpointError, match=r"has no positions='randomized\(max_pos"
  ):
    export.to_hf(str(run), str(tmp_path / 'hf'), None, None, 'float32')
  assert not (tmp_path / 'hf').exists()


def test_a_vocabulary_that_is_given():
  checkpoints = helpers.GOLDEN / 'checkpoints'
  found = pretrained.load(checkpoints / 'llama3')
  assert found.create_vocabulary('bytes').fingerprint == 'bytes_plus_3'
  with pytest.raises(errors.CorpusError, match='has 562 tokens, .*size=320'):
    found.create_vocabulary(str(checkpoints / 'gemma2'))


def test_a_checkpoint_of_transformers(tmp_path):
  found, (params, model) = pretrained.load(LLAMA), hf.load(LLAMA)
  helpers.assert_same(found.params, params)
  assert (found.model, found.positions) == (model, 'standard')
  assert (found.train_length, found.fingerprint) == (32, '')
  assert found.vocabulary is None
  folder = pathlib.Path(shutil.copytree(LLAMA, tmp_path / 'copy'))
  (folder / 'tokenizer.model').touch()
  assert pretrained.load(folder).vocabulary == str(folder / 'tokenizer.model')
  (folder / 'tokenizer.json').touch()
  assert pretrained.load(folder).vocabulary == str(folder)


def test_refuses_what_is_no_checkpoint(tmp_path):
  with pytest.raises(errors.CheckpointError, match=f'there is no {tmp_path}/a'):
    pretrained.load(tmp_path / 'a')
  with pytest.raises(errors.WorkdirError, match='holds no run'):
    pretrained.load(tmp_path)


def test_another_encoding_with_the_same_parameters():
  known = pretrained.load(LLAMA)
  found = known.tested_as('rope, yarn(scale=4., train_length=32)')
  assert found.model.encoding == ('rope', 'yarn(scale=4., train_length=32)')
  assert found.params is known.params
  assert known.tested_as() == known
  found = known.tested_as(positions='interpolated(scale=4)')
  assert found.positions == 'interpolated(scale=4)'
  assert found.model == known.model


@pytest.mark.parametrize(
  'encoding, positions, message',
  [
    ('fire', '', 'fire cannot be tested .* the model in .*/untied: layer_0/'),
    ('', 'repo', 'repo cannot be tested .*attention/positions/.* trained none'),
    ('rope(scale=2.)', 'interpolated(scale=2)', 'interpolates positions and'),
  ],
)
def test_refuses_encodings_that_do_not_fit(encoding, positions, message):
  with pytest.raises(errors.CombinationError, match=message):
    pretrained.load(LLAMA).tested_as(encoding, positions)


def test_refuses_another_vocabulary(run):
  with pytest.raises(
    errors.CorpusError, match="'bytes_plus_0'; 'bytes' has 'bytes_plus_3'"
  ):
    pretrained.load(run).create_vocabulary('bytes')


class WithoutStart(vocabulary.Bytes):
  """Documents are separated by one token."""

  start = end = vocabulary.END


@pytest.mark.parametrize(
  'kind, text, ids',
  [
    (vocabulary.Bytes, 'a', [0, 100]),
    (vocabulary.Bytes, '', [0]),
    (WithoutStart, 'a', [100]),
    (WithoutStart, '', [1]),
    # The bytes of the corpus have no start.
    (functools.partial(vocabulary.Bytes, 0), 'a', [97]),
    (functools.partial(vocabulary.Bytes, 0), '', [0]),
  ],
)
def test_prompts_begin_with_the_start(kind, text, ids):
  found = pretrained.prompt_ids(kind(), text)
  assert found.dtype == np.int32 and found.tolist() == ids


def test_a_prompt_that_is_not_utf_8():
  with pytest.raises(errors.ConfigError, match='not UTF-8 at character 1: '):
    pretrained.prompt_ids(vocabulary.Bytes(), 'a\udcff')


def test_a_vocabulary_that_adds_no_start():
  kind = vocabulary.Bytes()
  kind.adds_start = False
  assert pretrained.prompt_ids(kind, 'a').tolist() == [100]
  assert pretrained.prompt_ids(kind, '').tolist() == [0]


def test_a_start_within_the_text_is_not_repeated():
  kind = vocabulary.Bytes(offset=0)
  kind.adds_start = True
  assert pretrained.prompt_ids(kind, '\0a').tolist() == [0, 97]


def test_a_run_with_parameters_in_bfloat16(tmp_path, corpus):
  config = stdlib_config.get_config('tiny')
  config.train.update(param_dtype='bfloat16', steps=1)
  config.optimizer.warmup_steps = 0
  trained = loop.train(config, tmp_path / 'run', corpus=corpus)
  assert trained.state.params['embed']['table'].dtype == 'bfloat16'
  found = pretrained.load(tmp_path / 'run')
  assert {leaf.dtype for leaf in jax.tree.leaves(found.params)} == {
    np.dtype('float32')
  }
  found.tested_as('', '')
  # The optimizer of a run that starts from it has states in float32.
  config.train.update(init_from=str(tmp_path / 'run'), steps=2)
  state = loop.train(config, tmp_path / 'next', corpus=corpus).state
  assert {leaf.dtype.name for leaf in jax.tree.leaves(state.opt_state)} <= {
    *('float32', 'int32')
  }
