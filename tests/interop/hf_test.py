"""Tests `lengen_jax/interop/hf`.

The models of transformers are described in `tests/golden/llama/README.md` and
`tests/golden/checkpoints/README.md`.
"""

import dataclasses
import errno
import functools
import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors
from safetensors import numpy as safetensors_numpy

from lengen_jax import encodings, errors, models
from lengen_jax.interop import hf, weights
from lengen_jax.interop.hf import config_json, describe, families
from lengen_jax.models import cache as cache_lib
from lengen_jax.models import stacking
from lengen_jax.training import warm_start
from tests import helpers

GOLDEN = helpers.GOLDEN / 'llama'
FAMILIES = helpers.GOLDEN / 'checkpoints'
NAMES = ('untied', 'tied_llama3', 'mistral_yarn')
# By family of `families.FAMILIES`; Llama and Mistral also have NAMES.
OTHERS = (
  *('gemma2', 'gemma3', 'gpt_neox', 'gpt_oss', 'llama3', 'llama4_text'),
  *('ministral', 'olmo2', 'phi3_longrope', 'qwen2', 'qwen3', 'smollm3'),
)
SMALL = GOLDEN / 'untied'
# Options of the encoding of phi3_longrope.
LONGROPE = (
  'train_length=16, short_factors=(1., 1.2), long_factors=(1.5, 3.), '
  'fraction=0.5'
)


def folder_of(name):
  return (GOLDEN if name in NAMES else FAMILIES) / name


@functools.cache
def load(name):
  return hf.load(folder_of(name))


def golden(name):
  folder = folder_of(name)
  if name in NAMES:
    found = np.load(folder / 'logits.npz')
    return jnp.asarray(found['ids'], jnp.int32), found['logits']
  ids = jnp.asarray(np.load(folder / 'ids.npy'))
  return ids, np.load(folder / 'logits.npy')


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
  """Replaces the tensors of a checkpoint by `function(tensors)`."""
  path = folder / 'model.safetensors'
  tensors = function(weights.read(path)[0])
  safetensors_numpy.save_file(tensors, path)
  return tensors


def refused(folder):
  with pytest.raises(errors.CheckpointError) as caught:
    hf.load(folder)
  assert str(folder) in str(caught.value)
  return str(caught.value)


@pytest.mark.some(4)
@pytest.mark.parametrize('name', NAMES + OTHERS)
def test_logits_are_those_of_transformers(name, assert_close):
  params, config = load(name)
  ids, want = golden(name)
  assert_close(logits(params, config, ids), want)


def test_every_family_has_a_model():
  found = {
    config_json.read(folder_of(name))['architectures'][0]
    for name in NAMES + OTHERS
  }
  assert found == set(families.FAMILIES)


@pytest.mark.parametrize(
  'name',
  [name for name in OTHERS if (FAMILIES / name / 'config.v5.json').exists()],
)
def test_old_and_new_configs_describe_one_model(name, tmp_path):
  new = shutil.copyfile(
    FAMILIES / name / 'config.v5.json', tmp_path / 'config.json'
  )
  assert new.exists()
  fields = families.model_fields(tmp_path)
  assert fields == families.model_fields(FAMILIES / name)


def test_mistral_with_types_of_layers(tmp_path):
  """transformers 5 takes it for a Ministral, and ignores none of them."""
  folder = shutil.copytree(FAMILIES / 'ministral', tmp_path / 'copy')
  mistral = {'architectures': ['MistralForCausalLM'], 'model_type': 'mistral'}
  fields = families.model_fields(change(folder, **mistral))
  assert fields == families.model_fields(FAMILIES / 'ministral')
  assert fields['window'] == (None, 6, 6)
  found = json.loads((folder / 'config.json').read_text())
  for types in (['sliding_attention'] * 3, None):
    (folder / 'config.json').write_text(
      json.dumps(found | {'layer_types': types})
    )
    assert families.of(config_json.read(folder)).model_type == 'mistral'
    assert families.model_fields(folder)['window'] == 6
  change(folder, layer_types=[['full_attention']] * 3)
  with pytest.raises(errors.CheckpointError, match='which is not supported'):
    families.model_fields(folder)


@pytest.mark.some(2)
@pytest.mark.parametrize('name', NAMES + OTHERS)
def test_written_and_read_again(name, tmp_path):
  params, config = load(name)
  hf.save(tmp_path, params, config, like=folder_of(name), shard_bytes=40_000)
  assert (tmp_path / 'model.safetensors.index.json').exists()
  again, config_again = hf.load(tmp_path)
  jax.tree.map(np.testing.assert_array_equal, params, again)
  assert config_again == config
  kept = config_json.read(folder_of(name))
  written = config_json.read(tmp_path)
  for key in ('architectures', 'eos_token_id', 'max_position_embeddings'):
    assert written[key] == kept[key]
  # transformers 4 ignores rope_parameters.
  change(tmp_path, rope_parameters=None)
  fields = families.model_fields(tmp_path)
  assert models.ModelConfig(**fields) == config


def replace_bytes(patch, full):
  """Lets the disk be full when a file of this name is written."""

  def write_bytes(path, content):
    if path.name == full:
      raise OSError(errno.ENOSPC, 'No space left on device')
    return write(path, content)

  write = pathlib.Path.write_bytes
  patch.setattr(pathlib.Path, 'write_bytes', write_bytes)


def test_a_failed_write_keeps_the_former_checkpoint(tmp_path, monkeypatch):
  params, config = load('untied')
  hf.save(tmp_path, params, config, shard_bytes=40_000)
  before = {file: file.read_bytes() for file in tmp_path.iterdir()}
  assert len(before) > 4
  other = jax.tree.map(lambda x: x + 1, params)

  def full(*args, **kwargs):
    if len(list(tmp_path.glob('model-*.partial'))) == 3:
      raise safetensors.SafetensorError('I/O error: No space left on device')
    write(*args, **kwargs)

  write = safetensors_numpy.save_file
  monkeypatch.setattr(safetensors_numpy, 'save_file', full)
  message = f'cannot write {tmp_path}/model-00003-of-.*: .*No space left'
  with pytest.raises(errors.CheckpointError, match=message):
    hf.save(tmp_path, other, config, shard_bytes=40_000)
  assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before
  monkeypatch.undo()
  other['final_norm']['scale'] = np.full_like(other['final_norm']['scale'], 1e5)
  message = (
    'model.norm.weight has .* 1e\\+05, and the largest float16 is 6.55e\\+04'
  )
  with pytest.raises(errors.CheckpointError, match=message):
    hf.save(tmp_path, other, config, dtype='float16', shard_bytes=40_000)
  assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before
  other['final_norm']['scale'] = np.full_like(
    other['final_norm']['scale'], np.nan
  )
  message = 'model.norm.weight has values that are NaN or infinite; export an'
  with pytest.raises(errors.CheckpointError, match=message):
    hf.save(tmp_path, other, config, shard_bytes=40_000)
  assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before
  other['final_norm']['scale'] = np.ones_like(other['final_norm']['scale'])
  for name in ('config.json', 'model.safetensors.index.json'):
    with pytest.MonkeyPatch.context() as patch:
      replace_bytes(patch, f'{name}.partial')
      with pytest.raises(errors.CheckpointError, match='No space left'):
        hf.save(tmp_path, other, config, shard_bytes=40_000)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before
  # One file in the place of several.
  hf.save(tmp_path, other, config)
  names = {file.name for file in tmp_path.iterdir()}
  assert names == {'config.json', 'model.safetensors'}
  hf.save(tmp_path, params, config, shard_bytes=40_000)
  assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.peers
@pytest.mark.parametrize('name', NAMES + OTHERS)
def test_transformers_reads_what_is_written(name, tmp_path, assert_close):
  import torch
  import transformers

  params, config = load(name)
  ids, want = golden(name)
  for like in (folder_of(name), None):
    folder = tmp_path / str(like is None)
    hf.save(folder, params, config, like=like)
    model = transformers.AutoModelForCausalLM.from_pretrained(
      folder, dtype=torch.float32, attn_implementation='eager'
    )
    with torch.no_grad():
      found = model(torch.tensor(np.asarray(ids))).logits.numpy()
    assert_close(found, want, 2e-5)


@pytest.mark.peers
@pytest.mark.parametrize(
  'name, encoding',
  [
    ('untied', 'rope(base=1e5, scale=2.)'),
    ('untied', 'ntk(scale=4.)'),
    ('untied', 'ntk(scale=2., train_length=16, dynamic=True)'),
    ('untied', 'yarn(scale=4., train_length=16)'),
    (
      'untied',
      'yarn(scale=4., train_length=16, magnitude_factor=1.2, truncate=False)',
    ),
    ('untied', 'llama3(scale=4., train_length=16)'),
    ('untied', 'rope(proportional=True, fraction=0.5)'),
    (
      'untied',
      'longrope(scale=2., train_length=16, short_factors=(1., 1., 2., 2.), '
      'long_factors=(1., 2., 3., 4.))',
    ),
    ('untied', 'nope'),
    ('untied', 'rope, nope'),
    ('gpt_neox', 'rope'),
    ('gpt_neox', 'yarn(fraction=0.5, scale=4., train_length=16)'),
    ('gpt_neox', 'ntk(scale=4., train_length=16, dynamic=True)'),
    ('phi3_longrope', 'yarn(scale=4., train_length=16)'),
    ('phi3_longrope', f'longrope(scale=4., magnitude_factor=1.3, {LONGROPE})'),
    ('phi3_longrope', f'longrope({LONGROPE})'),
  ],
)
def test_transformers_reads_other_encodings(
  name, encoding, tmp_path, assert_close
):
  import torch
  import transformers

  params, config = load(name)
  config = dataclasses.replace(config, encoding=encoding)
  ids, _ = golden(name)
  ids = jnp.concatenate([ids, ids[:, ::-1]], 1)
  hf.save(tmp_path, params, config, like=folder_of(name))
  model = transformers.AutoModelForCausalLM.from_pretrained(
    tmp_path, dtype=torch.float32, attn_implementation='eager'
  )
  with torch.no_grad():
    found = model(torch.tensor(np.asarray(ids))).logits.numpy()
  assert_close(found, logits(params, config, ids), 2e-5)


@pytest.mark.parametrize(
  'fields, message',
  [
    ({'encoding': 'fire'}, 'transformers has no encoding like fire;'),
    ({'encoding': 'rerope'}, 'transformers has no encoding like rerope;'),
    (
      {'encoding': 'learned(max_position=8) + rope'},
      'transformers has no encoding like learned(max_position=8);',
    ),
    (
      {'encoding': 'yarn(train_length=8, dynamic=True)'},
      'transformers has no encoding like yarn(train_length=8, dynamic=True)',
    ),
    (
      {'logit_cap': 5.0},
      'no family of transformers represents this model: LlamaForCausalLM has '
      'model.logit_cap=None, this model has 5.0; export without --format=hf',
    ),
    ({'window': (4, 8)}, 'LlamaForCausalLM has model.window=(None,), this'),
    (
      {'window': (4, 8), 'sinks': 2},
      'model.window=(None,), this model has (4, 8); model.sinks=',
    ),
    ({'attention_scale': 'ssmax'}, "model.attention_scale=('none',), this"),
    # Gemma has a constant, but no model with a factor of 1.
    (
      {'attention_scale': 'constant'},
      "has model.attention_scale=('none',), th",
    ),
  ],
)
def test_refuses_to_write_other_models(fields, message, tmp_path):
  params, config = load('untied')
  with pytest.raises(errors.CheckpointError) as caught:
    hf.save(tmp_path, params, dataclasses.replace(config, **fields), like=SMALL)
  assert message in str(caught.value)
  assert not list(tmp_path.iterdir())


def test_writes_the_first_family_that_represents_a_model(tmp_path):
  params, config = load('untied')
  config = dataclasses.replace(config, encoding='nope')
  hf.save(tmp_path, params, config, like=SMALL)
  written = config_json.read(tmp_path)
  assert written['architectures'] == ['SmolLM3ForCausalLM']
  assert written['no_rope_layers'] == [0, 0]


@pytest.mark.parametrize('name', NAMES + OTHERS)
def test_finds_the_family_without_an_example(name):
  config = load(name)[1]
  family, written = describe.choose(config, None, None)
  wanted = config_json.read(folder_of(name))['architectures']
  assert [family.architecture] == wanted == written['architectures']


def test_a_family_whose_encoding_cannot_be_created_is_not_chosen():
  # Families without no_rope_layers rotate heads, whose size must be even.
  config = dataclasses.replace(load('untied')[1], encoding='nope', head_dim=7)
  family, _ = describe.choose(config, None, None)
  assert family.architecture == 'SmolLM3ForCausalLM'


def test_heads_of_gpt_neox_may_rotate_whole():
  # Its default partial_rotary_factor is 0.25.
  config = dataclasses.replace(load('gpt_neox')[1], encoding='rope')
  family, written = describe.choose(config, None, None)
  assert written['rope_parameters']['partial_rotary_factor'] == 1
  fields = family.model_fields(config_json.ConfigJson(written, 'written'))
  assert fields['encoding'] == 'rope(base=10000.0)'


@pytest.mark.parametrize(
  'encoding',
  [
    # Phi-3 has no YaRN, and no other family rotates a part of each head.
    'yarn(fraction=0.5, scale=4., train_length=16)',
    'ntk(fraction=0.5, scale=4., proportional=True)',
  ],
)
def test_rotations_that_transformers_lacks(encoding):
  config = dataclasses.replace(load('phi3_longrope')[1], encoding=encoding)
  with pytest.raises(errors.CheckpointError, match='no family|has no encoding'):
    describe.choose(config, None, None)


def test_types_of_numbers_that_are_written():
  """transformers refuses integers for floats, and floats for integers."""
  config = dataclasses.replace(
    load('gemma2')[1], logit_cap=50, output_logit_cap=30
  )
  _, found = describe.choose(config, None, None)
  for key in ('attn_logit_softcapping', 'final_logit_softcapping'):
    assert isinstance(found[key], float)
  other = dataclasses.replace(load('gemma3')[1], output_logit_cap=30)
  _, found = describe.choose(other, None, None)
  assert isinstance(found['final_logit_softcapping'], float)
  scale = 'constant(factor=1.1)'
  config = dataclasses.replace(config, attention_scale=scale)
  with pytest.raises(errors.CheckpointError, match='attention_scale'):
    describe.choose(config, None, None)


def test_heads_of_some_families_divide_the_width():
  config = dataclasses.replace(
    load('untied')[1], width=100, num_heads=3, key_heads=None, head_dim=32
  )
  family, _ = describe.choose(config, None, None)
  assert family.architecture == 'MistralForCausalLM'


def test_what_transformers_computes_from_lengths():
  _, config = load('phi3_longrope')

  def written(encoding, config=config, max_length=None):
    config = dataclasses.replace(config, encoding=encoding)
    return describe.choose(config, None, max_length)[1]

  factors = {'short_factor': [1.0, 1.2], 'long_factor': [1.5, 3.0]}
  found = written(f'longrope(scale=4., {LONGROPE})', max_length=999)
  assert found['rope_scaling'] == {**factors, 'type': 'longrope'}
  assert found['max_position_embeddings'] == 64
  assert found['original_max_position_embeddings'] == 16
  # The lengths do not determine these.
  options = f'scale=4., magnitude_factor=1.3, {LONGROPE}'
  found = written(f'longrope({options})')
  assert found['rope_scaling'].items() > factors.items()
  assert found['rope_scaling']['attention_factor'] == 1.3
  like = dict(config_json.read(folder_of('phi3_longrope')))
  like['rope_parameters'] |= {'factor': 4.0}
  like['max_position_embeddings'] = 128
  like = config_json.ConfigJson(like, 'like')
  config = dataclasses.replace(
    config, encoding=f'longrope(scale=4., {LONGROPE})'
  )
  _, found = describe.choose(config, like, None)
  assert found['max_position_embeddings'] == 128
  assert found['rope_scaling']['factor'] == 4.0

  _, config = load('untied')
  options = 'short_factors=(1., 1., 2., 2.), long_factors=(1., 2., 3., 4.)'
  found = written(f'longrope(scale=2., train_length=16, {options})', config)
  assert found['original_max_position_embeddings'] == 16
  found = written('yarn(scale=4., train_length=16)', config, 999)
  assert found['max_position_embeddings'] == 64
  assert written('rope', config, 999)['max_position_embeddings'] == 999


@pytest.mark.parametrize('field', [{'head_dim': 16}, {'key_heads': 2}])
def test_heads_of_gpt_neox_are_a_share_of_the_width(field):
  config = dataclasses.replace(load('gpt_neox')[1], **field)
  with pytest.raises(errors.CheckpointError, match='no family of transformers'):
    describe.choose(config, None, None)


@pytest.mark.parametrize(
  'name, fields',
  [
    ('untied', {'num_heads': 2, 'key_heads': 2}),
    ('gpt_neox', {'key_heads': 4}),
    # Keys that have their default values.
    ('llama4_text', {'attention_scale': '3*none, llama4(train_length=8)'}),
  ],
)
def test_a_model_that_is_written_in_another_way(name, fields):
  _, config = load(name)
  if 'key_heads' in fields:
    assert fields.get('num_heads', config.num_heads) == fields['key_heads']
  family, _ = describe.choose(dataclasses.replace(config, **fields), None, None)
  assert (
    family.architecture == describe.choose(config, None, None)[0].architecture
  )


@pytest.mark.slow
def test_writes_stacked_layers_with_lora(tmp_path, assert_close):
  _, config = load('untied')
  config = dataclasses.replace(config, lora_rank=2, scan_layers=True)
  params = jax.tree.map(
    lambda x: x + 0.1, stacking.init(config, jax.random.key(0))
  )
  hf.save(tmp_path, params, config)
  ids, _ = golden('untied')
  assert_close(
    logits(*hf.load(tmp_path), ids), logits(params, config, ids), 2e-5
  )


def test_layers_without_windows_keep_the_field(tmp_path):
  # transformers raises an error if layer_types exist and sliding_window does
  # not.
  params, config = load('gemma2')
  config = dataclasses.replace(config, window=None)
  hf.save(tmp_path, params, config, like=FAMILIES / 'gemma2')
  assert config_json.read(tmp_path)['sliding_window'] == 4096
  assert hf.load(tmp_path)[1] == config


def test_the_logit_scale_of_gemma(tmp_path):
  folder = pathlib.Path(shutil.copytree(FAMILIES / 'gemma2', tmp_path / 'a'))
  change(folder, query_pre_attn_scalar=None)
  fields = families.model_fields(folder)
  # The default is 256, and head_dim is 12.
  assert fields['attention_scale'] == f'constant(factor={(12 / 256) ** 0.5!r})'
  change(folder, query_pre_attn_scalar=12)
  assert 'attention_scale' not in families.model_fields(folder)


def test_other_families_ignore_the_logit_scale_of_gemma(copy):
  # As transformers does.
  change(copy, query_pre_attn_scalar=17)
  assert 'attention_scale' not in families.model_fields(copy)


def test_refuses_contradicting_angles(copy):
  scaling = {'rope_type': 'linear', 'factor': 4.0}
  change(copy, rope_parameters={'rope_theta': 1e4}, rope_scaling=scaling)
  assert 'has both rope_parameters and rope_scaling' in refused(copy)


def test_the_default_rotation_of_gpt_oss(tmp_path):
  folder = pathlib.Path(shutil.copytree(FAMILIES / 'gpt_oss', tmp_path / 'a'))
  change(folder, rope_parameters=None, rope_scaling=None)
  assert hf.load(folder)[1].encoding == (
    'yarn(base=150000.0, scale=32.0, train_length=4096, beta_fast=32.0, '
    'beta_slow=1.0, truncate=False)',
  )


def test_refuses_integers(copy):
  rewrite(
    copy,
    lambda found: found | {'lm_head.weight': np.ones((256, 32), np.int8)},
  )
  assert 'has lm_head.weight of dtype I8; supported are F64, F32' in refused(
    copy
  )


@pytest.mark.parametrize('value', [np.nan, -np.inf, 1e300])
def test_refuses_values_that_are_not_finite(copy, value):
  name = 'model.layers.1.mlp.up_proj.weight'

  def spoil(tensors):
    spoilt = tensors[name].astype(np.float64)
    spoilt[-1, -1] = value
    return tensors | {name: spoilt}

  rewrite(copy, spoil)
  message = f'has {name} with values that are NaN or infinite in float32; '
  assert message in refused(copy)


def test_refuses_buckets(tmp_path, monkeypatch):
  # A path without this check is one in the working directory.
  monkeypatch.chdir(tmp_path)
  params, config = load('untied')
  with pytest.raises(errors.CheckpointError, match='gs://b/c is not local'):
    hf.save('gs://b/c', params, config)
  with pytest.raises(errors.CheckpointError, match='gs://b/c is not local'):
    hf.load('gs://b/c')


def test_writes_bfloat16_and_copies_the_tokenizer(copy, tmp_path):
  (copy / 'tokenizer.json').write_text('{}')
  (copy / 'modeling.py').write_text('raise SystemExit')
  params, config = load('untied')
  there = tmp_path / 'new' / 'folder'
  size = hf.save(there, params, config, copy, 'bfloat16', max_length=99)
  assert {path.name for path in there.iterdir()} == {
    *('config.json', 'model.safetensors', 'tokenizer.json'),
  }
  assert size == 2 * sum(leaf.size for leaf in jax.tree.leaves(params))
  written = config_json.read(there)
  assert written['dtype'] == 'bfloat16'
  assert written['max_position_embeddings'] == 99
  again, _ = hf.load(there)
  jax.tree.map(
    lambda a, b: np.testing.assert_array_equal(
      a.astype(ml_dtypes.bfloat16).astype(np.float32), b
    ),
    params,
    again,
  )
  with pytest.raises(errors.CheckpointError, match="unknown dtype 'int8'"):
    hf.save(there, params, config, dtype='int8')


@pytest.mark.parametrize(
  'fields',
  [
    {'architectures': ['GPT2LMHeadModel']},
    {'architectures': None},
    {'quantization_config': {'bits': 4}},
  ],
)
def test_tokenizers_of_models_that_are_not_supported(fields, copy, tmp_path):
  for name in ('tokenizer.json', 'generation_config.json'):
    (copy / name).write_text('{}')
  # The second id is not a token of the model.
  change(copy, bos_token_id=3, pad_token_id=10**6, eos_token_id=[1, 10**6])
  change(copy, max_position_embeddings=4096)
  params, config = load('untied')
  there = tmp_path / 'written'
  hf.save(there, params, config, change(copy, **fields), max_length=99)
  assert (there / 'tokenizer.json').exists()
  assert not (there / 'generation_config.json').exists()
  written = config_json.read(there)
  assert written['max_position_embeddings'] == 4096
  assert written['bos_token_id'] == 3 and written['eos_token_id'] == [1]
  assert 'pad_token_id' not in written


def test_a_tokenizer_that_cannot_be_written(copy, tmp_path, monkeypatch):
  (copy / 'tokenizer.json').write_text('{}')
  params, config = load('untied')
  there = tmp_path / 'written'
  hf.save(there, params, config)
  before = {file: file.read_bytes() for file in there.iterdir()}
  replace_bytes(monkeypatch, 'tokenizer.json.partial')
  other = jax.tree.map(lambda x: x + 1, params)
  with pytest.raises(errors.CheckpointError, match='No space left'):
    hf.save(there, other, config, copy)
  assert {file: file.read_bytes() for file in there.iterdir()} == before


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


# With windows, caps, sinks, chunks and a parallel residual branch.
@pytest.mark.some(6)
@pytest.mark.parametrize(
  'name',
  ('untied', 'gemma2', 'gemma3', 'gpt_neox', 'gpt_oss', 'llama4_text'),
)
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
  assert families.model_fields(GOLDEN / 'mistral_yarn') == dict(
    vocab_size=64,
    num_layers=2,
    num_heads=4,
    head_dim=8,
    key_heads=2,
    width=32,
    mlp_width=48,
    encoding='yarn(base=10000.0, scale=4.0, train_length=16, beta_fast=32.0, '
    'beta_slow=1.0)',
    tied_embedding=False,
    scaled_embedding=False,
    norm='rms',
    norm_epsilon=1e-5,
    activation='swiglu',
    window=8,
  )
  assert families.model_fields(GOLDEN / 'tied_llama3')['tied_embedding']
  assert families.trained_length(GOLDEN / 'tied_llama3') == 128


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
  spec = families.model_fields(folder)['encoding']
  encoding = encodings.create(spec, num_heads=4, head_dim=16, parent=None)
  lengths = jnp.array([[case['length']]])
  found = jnp.asarray(encoding.frequencies(lengths), jnp.float32).ravel()
  assert_close(found / jnp.array(case['frequencies']), jnp.ones(8))
  assert_close(encoding.magnitude(lengths), case['magnitude'])


def test_rope_as_older_versions_wrote_it(copy):
  fields = dict(rope_parameters=None, rope_theta=5e5)
  assert families.model_fields(change(copy, **fields))['encoding'] == (
    'rope(base=500000.0)'
  )
  scaling = {'type': 'linear', 'factor': 2.0}
  folder = change(copy, rope_scaling=scaling, **fields)
  assert families.model_fields(folder)['encoding'] == (
    'rope(base=500000.0, scale=2.0)'
  )
  scaling = {'type': 'yarn', 'factor': 2.0, 'finetuned': True}
  folder = change(
    copy, rope_scaling=scaling, original_max_position_embeddings=8
  )
  found = families.model_fields(folder)['encoding']
  assert 'train_length=8' in found
  # transformers takes 0 for no factor.
  scaling |= {'mscale': 1.0, 'mscale_all_dim': 0}
  folder = change(copy, rope_scaling=scaling)
  assert families.model_fields(folder)['encoding'] == found


@pytest.mark.parametrize(
  ('name', 'fields'),
  [
    ('smollm3', {'no_rope_layer_interval': None}),
    ('llama4_text', {'attn_scale': None, 'floor_scale': None}),
    (
      'qwen3',
      {
        **{'max_window_layers': None, 'layer_types': None},
        **{'use_sliding_window': True, 'sliding_window': 4},
      },
    ),
  ],
)
def test_fields_that_are_null(name, fields):
  given = json.loads((folder_of(name) / 'config.json').read_text()) | fields
  without = {key: given[key] for key in given if given[key] is not None}
  found, want = (
    families.of(one).model_fields(one)
    for one in (config_json.ConfigJson(x, name) for x in (given, without))
  )
  assert found == want


YARN = {'rope_type': 'yarn', 'factor': 4.0}


@pytest.mark.parametrize(
  ('name', 'fields', 'message'),
  [
    ('qwen2', {'is_causal': False}, 'is_causal=False; only True'),
    (
      'llama4_text',
      {'rope_parameters': None, 'rope_scaling': YARN},
      "rope_type='yarn'; this architecture has default",
    ),
    (
      'gemma3',
      {'rope_parameters': YARN, 'rope_scaling': None},
      'without types of layers',
    ),
    (
      'gemma3',
      {
        'rope_parameters': {'full_attention': YARN | {'truncate': False}},
        'rope_scaling': None,
      },
      'truncate=False, which transformers does not read',
    ),
  ],
)
def test_refuses_fields_that_a_family_computes_otherwise(name, fields, message):
  given = json.loads((folder_of(name) / 'config.json').read_text()) | fields
  config = config_json.ConfigJson(given, name)
  with pytest.raises(errors.CheckpointError, match=message):
    families.of(config).model_fields(config)


def test_the_original_length_of_a_family():
  given = json.loads((folder_of('phi3_longrope') / 'config.json').read_text())
  given.pop('original_max_position_embeddings', None)
  given['rope_parameters']['original_max_position_embeddings'] = 512
  given['max_position_embeddings'] = 8192
  config = config_json.ConfigJson(given, 'phi3')
  found = families.of(config).model_fields(config)['encoding']
  assert 'train_length=4096' in found and 'scale=2.0' in found
  # With a rotation for each type of layer, only that of the type is read.
  given = json.loads((folder_of('gemma3') / 'config.json').read_text())
  yarn = YARN | {'original_max_position_embeddings': 64}
  given |= {
    'rope_parameters': {'full_attention': yarn},
    'rope_scaling': None,
    'original_max_position_embeddings': 32,
  }
  config = config_json.ConfigJson(given, 'gemma3')
  found = families.of(config).model_fields(config)['encoding']
  assert 'train_length=64' in str(found)


@pytest.mark.parametrize(
  'scaling, message',
  [
    ({'rope_type': 'xpos', 'factor': 2.0}, "rope_type='xpos'; supported are"),
    (
      {'rope_type': 'linear', 'factor': 4.0, 'power': 1.0},
      "power=1.0 with rope_type='linear', which is not supported",
    ),
    ({'rope_type': 'yarn', 'factor': 4.0, 'mscale': 'a'}, "mscale='a'; it"),
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
      {'architectures': ['BertModel']},
      'architecture BertModel; supported are LlamaForCausalLM, MistralFor',
    ),
    (
      {'architectures': ['MyModel'], 'auto_map': {'AutoModel': 'a.MyModel'}},
      'architecture MyModel (code in the folder is never run); supported are',
    ),
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
    (
      {'hidden_act': 'gelu'},
      "hidden_act='gelu'; supported are 'silu', 'gelu_pytorch_tanh'",
    ),
    ({'attention_bias': 'no'}, "attention_bias='no'; it takes true or false"),
    (
      {'attention_bias': True},
      'lacks model.layers.0.self_attn.q_proj.bias, (32,) (and 7 more)',
    ),
    ({'mlp_bias': True}, 'lacks model.layers.0.mlp.gate_proj.bias, (48,)'),
    ({'quantization_config': {'bits': 4}}, "quantization_config={'bits': 4}"),
    ({'hidden_size': None}, 'lacks hidden_size'),
    ({'architectures': []}, 'architecture unknown; supported are'),
    ({'head_dim': 7}, 'describes an invalid model: fraction=1.0 of head_dim=7'),
    (
      {
        'architectures': ['Gemma3ForCausalLM'],
        'rope_parameters': {'full_attention': {}, 'sliding_attention': 3},
      },
      "has rope_parameters={'sliding_attention': 3}; it takes an object",
    ),
    (
      {'architectures': ['Qwen2ForCausalLM'], 'max_window_layers': 'a'},
      "has max_window_layers='a'; it takes a whole number from 0",
    ),
    (
      {'num_hidden_layers': 1},
      'has model.layers.1.input_layernorm.weight, (32,), which this model does '
      'not use (and 8 more)',
    ),
    (
      {'num_hidden_layers': 3},
      'lacks model.layers.2.input_layernorm.weight, (32,) (and 8 more)',
    ),
    (
      {'num_key_value_heads': 4},
      'has model.layers.0.self_attn.k_proj.weight of shape (16, 32), where its '
      'config requires (32, 32) (and 3 more)',
    ),
    ({'tie_word_embeddings': True}, 'has lm_head.weight, (256, 32), which'),
    (
      {
        'architectures': ['Gemma2ForCausalLM'],
        'use_bidirectional_attention': True,
      },
      'has use_bidirectional_attention=True; only False is supported',
    ),
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
        'model.layers.0.attention.bias': np.ones((1, 1, 4, 4), bool),
        'model.layers.1.attention.bias': np.ones((1, 1, 4, 4), np.uint8),
      }
    ),
  )
  found, _ = hf.load(folder)
  jax.tree.map(np.testing.assert_array_equal, found, load('tied_llama3')[0])


def test_bfloat16(copy):
  tensors = rewrite(
    copy,
    lambda found: {
      name: tensor.astype(ml_dtypes.bfloat16) for name, tensor in found.items()
    },
  )
  params, _ = hf.load(copy)
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
  found, _ = hf.load(copy)
  jax.tree.map(np.testing.assert_array_equal, found, load('untied')[0])

  second = 'model-00002-of-00002.safetensors'
  strange = {**files, 'lm_head.weight': second}
  index.write_text(json.dumps({'weight_map': strange}))
  assert refused(copy) == (
    f'{copy / second} lacks lm_head.weight, which model.safetensors.index.json '
    'lists'
  )
  index.write_text('{}')
  assert 'index.json is broken: it has no weight_map' in refused(copy)
  index.write_text(json.dumps({'weight_map': files}))
  (copy / second).unlink()
  assert f'there is no {copy / second}' in refused(copy)


def test_a_single_file_precedes_an_index(copy):
  """Programs that write one may leave the index of several files."""
  whole = (copy / 'model.safetensors').read_bytes()
  split(copy)
  (copy / 'model.safetensors').write_bytes(whole)
  rewrite(copy, lambda tensors: {k: x + 1 for k, x in tensors.items()})
  found, _ = hf.load(copy)
  want = jax.tree.map(lambda x: x + 1, load('untied')[0])
  jax.tree.map(np.testing.assert_array_equal, found, want)


def test_files_that_are_missing_or_broken(copy):
  path = copy / 'model.safetensors'
  path.write_bytes(path.read_bytes()[:1000])
  assert 'cannot be read as safetensors: ' in refused(copy)
  path.unlink()
  assert f'there is no {path}' in refused(copy)
  (copy / 'pytorch_model.bin').touch()
  assert '; pytorch_model.bin cannot be read: convert' in refused(copy)
  (copy / 'model-00001-of-00002.safetensors').touch()
  assert 'several files need model.safetensors.index.json' in refused(copy)
  (copy / 'config.json').write_text('[')
  assert 'config.json is broken: it is not a JSON object' in refused(copy)
  assert not config_json.is_checkpoint(copy)
  (copy / 'config.json').unlink()
  assert 'config.json cannot be read: No such file' in refused(copy)
  assert config_json.is_checkpoint(SMALL)


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


@pytest.mark.parametrize(
  'name, base', [('untied', 1e4), ('smollm3', 2e6), ('llama4_text', 5e5)]
)
def test_bases_by_default(name, base):
  given = json.loads((folder_of(name) / 'config.json').read_text())
  for key in ('rope_parameters', 'rope_theta', 'rope_scaling'):
    given.pop(key, None)
  config = config_json.ConfigJson(given, name)
  found = families.of(config).model_fields(config)['encoding']
  assert f'base={base!r}' in str(found)


def test_an_extended_model_is_longer_than_its_example():
  encoding = 'yarn(scale=4., train_length=16)'
  config = dataclasses.replace(load('untied')[1], encoding=encoding)
  like = config_json.read(SMALL)
  assert like['max_position_embeddings'] == 32
  _, found = describe.choose(config, like, None)
  assert found['max_position_embeddings'] == 64


def test_a_gpt_neox_with_other_settings(tmp_path):
  """As RedPajama-INCITE."""
  folder = pathlib.Path(shutil.copytree(FAMILIES / 'gpt_neox', tmp_path / 'a'))
  change(folder, rotary_pct=1.0, rotary_emb_base=50000)
  change(folder, use_parallel_residual=False)
  params, config = hf.load(folder)
  assert config.encoding == ('rope(base=50000.0)',)
  assert not config.parallel_residual
  hf.save(tmp_path / 'b', params, config, folder)
  found = config_json.read(tmp_path / 'b')
  assert (found['rotary_pct'], found['rotary_emb_base']) == (1.0, 50000.0)
  assert found['use_parallel_residual'] is False


def test_all_files_of_a_tokenizer_are_copied(copy, tmp_path):
  names = [
    *('tokenizer.json', 'tokenizer_config.json', 'tokenizer.model'),
    *('special_tokens_map.json', 'added_tokens.json', 'vocab.json'),
    *('merges.txt', 'chat_template.jinja', 'chat_template.json'),
    'generation_config.json',
  ]
  for name in names:
    (copy / name).write_text(name)
  hf.save(tmp_path / 'new', *load('untied'), copy)
  for name in names:
    assert (tmp_path / 'new' / name).read_text() == name


def test_windows_of_the_last_layers():
  given = json.loads((FAMILIES / 'qwen2' / 'config.json').read_text())
  given |= {'use_sliding_window': True, 'sliding_window': 64}
  given.pop('layer_types', None)

  def windows(**fields):
    config = config_json.ConfigJson(given | fields, 'qwen2')
    return families.of(config).model_fields(config)['window']

  assert given['num_hidden_layers'] == 3
  assert windows(max_window_layers=2) == (None, None, 64)
  # By default, 28.
  del given['max_window_layers']
  assert windows() is None


@pytest.mark.parametrize('name', ['smollm3', 'llama4_text'])
def test_layers_without_rotation_by_default(name):
  given = json.loads((FAMILIES / name / 'config.json').read_text())
  del given['no_rope_layers'], given['layer_types']
  config = config_json.ConfigJson(given, name)
  found = families.of(config).model_fields(config)
  assert found == families.model_fields(FAMILIES / name)


@pytest.mark.parametrize('name', ['gelu_fast', 'gelu_new'])
def test_activations_that_are_approximated(tmp_path, name):
  folder = pathlib.Path(shutil.copytree(FAMILIES / 'gpt_neox', tmp_path / 'a'))
  change(folder, hidden_act=name)
  assert families.model_fields(folder)['activation'] == 'gelu'


def test_a_gemma3_of_another_pattern(tmp_path):
  folder = pathlib.Path(shutil.copytree(FAMILIES / 'gemma3', tmp_path / 'a'))
  change(folder, sliding_window_pattern=3, rope_local_base_freq=2e4)
  change(folder, layer_types=None)
  fields = families.model_fields(folder)
  window = fields['window']
  assert window[:2] == (8, 8) and window[2] is None
  assert fields['encoding'].startswith('rope(base=20000.0), rope(base=20000')


def test_a_ratio_of_magnitudes(copy):
  scaling = YARN | {'mscale': 0.5, 'mscale_all_dim': 1.0}
  fields = families.model_fields(change(copy, rope_parameters=scaling))
  encoding = encodings.create(fields['encoding'], num_heads=4, head_dim=8)
  growth = 0.1 * np.log(scaling['factor'])
  want = (1 + growth / 2) / (1 + growth)
  assert encoding.magnitude(None) == pytest.approx(want)


def test_ntk_as_it_is_written():
  config = load('untied')[1]
  static = dataclasses.replace(config, encoding='ntk(scale=4.)')
  _, found = describe.choose(static, None, None)
  theta = found['rope_parameters']['rope_theta']
  dim = config.head_dim
  assert theta == pytest.approx(1e4 * 4 ** (dim / (dim - 2)))
  spec = 'ntk(scale=2., train_length={}, dynamic=True)'
  dynamic = dataclasses.replace(config, encoding=spec.format(16))
  _, found = describe.choose(dynamic, config_json.read(SMALL), None)
  assert found['max_position_embeddings'] == 16
  # There is one length for all layers.
  both = f'{spec.format(16)}, {spec.format(64)}'
  two = dataclasses.replace(config, encoding=both)
  with pytest.raises(errors.CheckpointError, match='train_length=64'):
    describe.choose(two, None, None)


def test_a_type_of_rope_that_is_a_list(tmp_path):
  folder = shutil.copytree(FAMILIES / 'phi3_longrope', tmp_path / 'a')
  change(folder, rope_scaling={'type': ['longrope']}, rope_parameters=None)
  assert 'rope_type' in refused(folder)
