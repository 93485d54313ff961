"""Tests `lengen_jax/interop/llama.py` and `llama_config.py`.

The models of transformers: `tests/golden/llama/README.md`.
"""

import dataclasses
import functools
import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors import numpy as safetensors_numpy

from lengen_jax import encodings, errors, models
from lengen_jax.interop import llama, llama_config, weights
from lengen_jax.models import cache as cache_lib
from lengen_jax.models import stacking
from lengen_jax.training import warm_start
from tests import helpers

GOLDEN = helpers.GOLDEN / 'llama'
NAMES = ('untied', 'tied_llama3', 'mistral_yarn')
SMALL = GOLDEN / 'untied'


@functools.cache
def load(name):
  return llama.load(GOLDEN / name)


def golden(name):
  found = np.load(GOLDEN / name / 'logits.npz')
  return jnp.asarray(found['ids'], jnp.int32), found['logits']


def logits(params, config, ids):
  return jax.jit(models.DecoderLM(config).apply)({'params': params}, ids)


@pytest.fixture
def copy(tmp_path):
  """A copy of a checkpoint, to be spoilt."""
  return pathlib.Path(shutil.copytree(SMALL, tmp_path / 'copy'))


def change(folder, **fields):
  """Sets fields of a config.json; None removes one."""
  found = json.loads((folder / 'config.json').read_text()) | fields
  found = {key: value for key, value in found.items() if value is not None}
  (folder / 'config.json').write_text(json.dumps(found))
  return folder


def rewrite(folder, function):
  """Puts what a function makes of the tensors into the place of them."""
  path = folder / 'model.safetensors'
  tensors = function(weights.read(path)[0])
  safetensors_numpy.save_file(tensors, path)
  return tensors


def refused(folder):
  with pytest.raises(errors.CheckpointError) as caught:
    llama.load(folder)
  assert str(folder) in str(caught.value)
  return str(caught.value)


@pytest.mark.parametrize('name', NAMES)
def test_logits_are_those_of_transformers(name, assert_close):
  params, config = load(name)
  ids, want = golden(name)
  assert_close(logits(params, config, ids), want)


@pytest.mark.some(3)
@pytest.mark.parametrize('name', NAMES)
def test_scanned_losses(name, assert_close):
  params, config = load(name)
  ids, want = golden(name)
  config = dataclasses.replace(
    config, scan_layers=True, remat='full', implementation='blockwise'
  )
  found = jax.jit(models.DecoderLM(config).apply)(
    {'params': stacking.stack(params, config)}, ids[:, :-1], targets=ids[:, 1:]
  )
  want = -jnp.take_along_axis(
    jax.nn.log_softmax(want[:, :-1]), ids[:, 1:, None], -1
  )
  assert_close(found, want[..., 0])


@pytest.mark.some(3)
@pytest.mark.parametrize('name', NAMES)
def test_decoding_equals_a_forward_pass(name, assert_close):
  params, config = load(name)
  ids, want = golden(name)
  decode = jax.jit(
    functools.partial(models.DecoderLM(config).apply, method='decode')
  )
  cache = cache_lib.create(config, *ids.shape)
  found = []
  for part in (ids[:, :5], ids[:, 5:6], ids[:, 6:]):
    out, cache = decode({'params': params}, part, cache)
    found.append(out)
  assert_close(jnp.concatenate(found, 1), want)


def test_fields():
  assert llama_config.model_fields(GOLDEN / 'mistral_yarn') == dict(
    vocab_size=64,
    num_layers=2,
    num_heads=4,
    head_dim=8,
    key_heads=2,
    width=32,
    mlp_width=48,
    encoding='yarn(base=10000.0, scale=4.0, train_length=16, beta_fast=32, '
    'beta_slow=1)',
    tied_embedding=False,
    scaled_embedding=False,
    norm='rms',
    norm_epsilon=1e-5,
    activation='swiglu',
    window=8,
  )
  assert llama_config.model_fields(GOLDEN / 'tied_llama3')['tied_embedding']
  assert llama_config.trained_length(GOLDEN / 'tied_llama3') == 128


@pytest.mark.parametrize(
  'case',
  json.loads((GOLDEN / 'rope.json').read_text()),
  ids=lambda case: f'{case["rope_parameters"]["rope_type"]}-{case["length"]}',
)
def test_angles_are_those_of_transformers(copy, case, assert_close):
  folder = change(
    copy,
    rope_parameters=case['rope_parameters'],
    max_position_embeddings=256,
  )
  spec = llama_config.model_fields(folder)['encoding']
  encoding = encodings.create(spec, num_heads=4, head_dim=16, parent=None)
  lengths = jnp.array([[case['length']]])
  found = jnp.asarray(encoding.frequencies(lengths), jnp.float32).ravel()
  assert_close(found / jnp.array(case['frequencies']), jnp.ones(8))
  assert_close(encoding.magnitude(lengths), case['magnitude'])


def test_rope_as_older_versions_wrote_it(copy):
  fields = dict(rope_parameters=None, rope_theta=5e5)
  assert llama_config.model_fields(change(copy, **fields))['encoding'] == (
    'rope(base=500000.0)'
  )
  scaling = {'type': 'linear', 'factor': 2.0}
  folder = change(copy, rope_scaling=scaling, **fields)
  assert llama_config.model_fields(folder)['encoding'] == (
    'rope(base=500000.0, scale=2.0)'
  )
  scaling = {'type': 'yarn', 'factor': 2.0, 'finetuned': True}
  folder = change(
    copy, rope_scaling=scaling, original_max_position_embeddings=8
  )
  assert 'train_length=8' in llama_config.model_fields(folder)['encoding']


@pytest.mark.parametrize(
  'scaling, message',
  [
    ({'rope_type': 'su', 'factor': 2.0}, "rope_type='su'; supported are"),
    (
      {'rope_type': 'yarn', 'factor': 4.0, 'attention_factor': 1.0},
      "attention_factor=1.0 with rope_type='yarn', which is not supported",
    ),
    ({'rope_type': 'yarn', 'factor': 4.0, 'mscale': 1.0}, 'mscale=1.0'),
    ({'rope_type': 'yarn', 'factor': 4.0, 'truncate': False}, 'truncate=False'),
    ({'rope_type': 'linear'}, "rope_type='linear' without factor"),
    (
      {'rope_type': 'default', 'partial_rotary_factor': 0.5},
      'partial_rotary_factor=0.5',
    ),
    ({'full_attention': {'rope_type': 'default'}}, 'for other layers'),
    ([1], 'has rope_parameters=[1]; it takes an object'),
    ({'rope_type': ['yarn']}, "has rope_type=['yarn']; it takes a text"),
    (
      {'rope_type': 'linear', 'factor': 0},
      'has factor=0; it takes a number above 0',
    ),
    ({'rope_type': 'yarn', 'factor': 'a'}, "has factor='a'; it takes a number"),
    (
      {'rope_type': 'longrope', 'factor': 2.0, 'short_factor': [0.5, None]},
      'has short_factor=[0.5, None]; it takes a list of numbers above 0',
    ),
  ],
)
def test_refuses_other_angles(copy, scaling, message):
  assert message in refused(change(copy, rope_parameters=scaling))


@pytest.mark.parametrize(
  'fields, message',
  [
    (
      {'architectures': ['Qwen2ForCausalLM']},
      'Qwen2ForCausalLM, which has biases of queries, keys and values; '
      'supported are LlamaForCausalLM and MistralForCausalLM',
    ),
    ({'architectures': ['GPTNeoXForCausalLM']}, 'parallel residuals'),
    ({'architectures': ['BertModel']}, 'architecture BertModel; supported are'),
    ({'architectures': None}, 'architecture unknown; supported are'),
    (
      {'architectures': 'LlamaForCausalLM'},
      "architectures='LlamaForCausalLM'; it takes a list of names",
    ),
    ({'hidden_size': '32'}, "hidden_size='32'; it takes a whole number from 1"),
    ({'num_attention_heads': True}, 'num_attention_heads=True; it takes'),
    ({'vocab_size': 256.0}, 'vocab_size=256.0; it takes a whole number'),
    ({'num_hidden_layers': 0}, 'num_hidden_layers=0; it takes a whole number'),
    ({'rms_norm_eps': '1e-5'}, "rms_norm_eps='1e-5'; it takes a number"),
    ({'hidden_act': 'gelu'}, "hidden_act='gelu'; only 'silu'"),
    ({'attention_bias': True}, 'attention_bias=True; only False'),
    ({'mlp_bias': True}, 'mlp_bias=True; only False'),
    ({'quantization_config': {'bits': 4}}, "quantization_config={'bits': 4}"),
    ({'hidden_size': None}, 'lacks hidden_size'),
    (
      {'num_hidden_layers': 1},
      'has model.layers.1.input_layernorm.weight, (32,), which this model does '
      'not use (and 8 more)',
    ),
    (
      {'num_hidden_layers': 3},
      'lacks model.layers.2.self_attn.k_proj.weight, (16, 32) (and 8 more)',
    ),
    (
      {'num_key_value_heads': 4},
      'has model.layers.0.self_attn.k_proj.weight of shape (16, 32), where its '
      'config requires (32, 32) (and 3 more)',
    ),
    ({'tie_word_embeddings': True}, 'has lm_head.weight, (256, 32), which'),
  ],
)
def test_refuses_other_models(copy, fields, message):
  assert message in refused(change(copy, **fields))


def test_a_head_that_is_written_twice_and_frequencies(tmp_path):
  folder = tmp_path / 'copy'
  shutil.copytree(GOLDEN / 'tied_llama3', folder)
  rewrite(
    folder,
    lambda found: (
      found
      | {
        'lm_head.weight': found['model.embed_tokens.weight'],
        'model.layers.0.self_attn.rotary_emb.inv_freq': np.ones(6, np.float32),
      }
    ),
  )
  found, _ = llama.load(folder)
  jax.tree.map(np.testing.assert_array_equal, found, load('tied_llama3')[0])


def test_bfloat16(copy):
  tensors = rewrite(
    copy,
    lambda found: {
      name: tensor.astype(ml_dtypes.bfloat16) for name, tensor in found.items()
    },
  )
  params, _ = llama.load(copy)
  assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(params))
  np.testing.assert_array_equal(
    params['layer_1']['mlp']['gate']['kernel'],
    tensors['model.layers.1.mlp.gate_proj.weight'].T.astype(np.float32),
  )


def split(folder):
  """Writes a checkpoint as two files and their index."""
  tensors, _ = weights.read(folder / 'model.safetensors')
  (folder / 'model.safetensors').unlink()
  names = sorted(tensors)
  files = {}
  for number, part in enumerate((names[:7], names[7:]), start=1):
    file = f'model-0000{number}-of-00002.safetensors'
    part = {name: tensors[name] for name in part}
    safetensors_numpy.save_file(part, folder / file)
    files |= dict.fromkeys(part, file)
  index = folder / 'model.safetensors.index.json'
  index.write_text(json.dumps({'metadata': {}, 'weight_map': files}))
  return index, files


def test_several_files(copy):
  index, files = split(copy)
  found, _ = llama.load(copy)
  jax.tree.map(np.testing.assert_array_equal, found, load('untied')[0])

  second = 'model-00002-of-00002.safetensors'
  strange = {**files, 'lm_head.weight': second}
  index.write_text(json.dumps({'weight_map': strange}))
  assert f'{second} lacks lm_head.weight, which ' in refused(copy)
  index.write_text('{}')
  assert 'index.json is broken: it has no weight_map' in refused(copy)
  index.write_text(json.dumps({'weight_map': files}))
  (copy / second).unlink()
  assert f'there is no {copy / second}' in refused(copy)


def test_files_that_are_missing_or_broken(copy):
  path = copy / 'model.safetensors'
  path.write_bytes(path.read_bytes()[:1000])
  assert 'cannot be read as safetensors: ' in refused(copy)
  path.unlink()
  assert f'there is no {path}' in refused(copy)
  (copy / 'config.json').write_text('[')
  assert 'config.json is broken: it is not a JSON object' in refused(copy)
  assert not llama_config.is_checkpoint(copy)
  (copy / 'config.json').unlink()
  assert 'config.json cannot be read: No such file' in refused(copy)
  assert llama_config.is_checkpoint(SMALL)


def test_its_encoding_can_be_swapped(assert_close):
  encoding = 'fire'
  params, config = load('untied')
  other = dataclasses.replace(config, encoding=encoding)
  adopted, notes = warm_start.adopt(
    stacking.init(other, jax.random.key(0)),
    other,
    params,
    config,
    max_length=32,
    rng=jax.random.key(1),
  )
  count = len(jax.tree.leaves(adopted))
  assert notes[0] == f'loaded 21 of {count} arrays'
  assert notes[1].startswith(f'layers 0-1: {encoding} in place of rope(')
  ids, want = golden('untied')
  found = logits(adopted, other, ids)
  assert np.isfinite(found).all()
  assert np.abs(found - want).max() > 0.1
  # What sees only itself has no distances.
  assert_close(found[:, 0], want[:, 0])
