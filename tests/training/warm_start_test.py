"""Tests initialising a model from one with another encoding.

`warm_start.adopt` on trees, and `train.init_from` of the loop.
"""

import functools
import json
import re
import shutil

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import pretrained as config_of_pretrained
from configs import stdlib as stdlib_config
from lengen_jax import encodings, errors
from lengen_jax.encodings import convert
from lengen_jax.interop import hf
from lengen_jax.interop import weights as weights_lib
from lengen_jax.models import config as model_config
from lengen_jax.models import presets, stacking, transformer
from lengen_jax.training import checkpoint, loop, pretrained, warm_start
from lengen_jax.training import run as run_lib
from lengen_jax.training import workdir as workdir_lib
from tests import helpers

LENGTH = 32
LLAMA = helpers.GOLDEN / 'llama' / 'untied'


def model(encoding, **fields):
  fields = presets.get('tiny') | fields
  return model_config.ModelConfig(**fields, encoding=encoding)


@pytest.fixture
def quick_fits(monkeypatch):
  """Fits of fewer steps, where it does not matter how near they come."""
  fit_fire = functools.partial(convert.fit_fire, steps=300)
  monkeypatch.setattr(warm_start.convert, 'fit_fire', fit_fire)


def adopt(config, source_config, source=None):
  """Adopts initial parameters of one model; returns theirs, ours and notes."""
  source = helpers.initial(source_config, 1) if source is None else source
  params, notes = warm_start.adopt(
    helpers.initial(config, 2),
    config,
    source,
    source_config,
    max_length=LENGTH,
    rng=jax.random.key(3),
  )
  fresh = helpers.initial(config, 2)
  assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, fresh)
  return source, params, notes


def flat(params):
  return traverse_util.flatten_dict(stacking.unstack(params), sep='/')


def is_same(got, want):
  return got.shape == want.shape and bool((got == want).all())


def in_encoding(path):
  return any(name.startswith('encoding') for name in path.split('/'))


def assert_rest_is_loaded(params, source):
  params, source = flat(params), flat(source)
  rest = [path for path in params if not in_encoding(path)]
  assert rest == [path for path in source if not in_encoding(path)]
  assert all(is_same(params[path], source[path]) for path in rest)


def assert_encoding_is_fresh(params, config):
  fresh = flat(helpers.initial(config, 2))
  params = flat(params)
  assert all(is_same(params[p], fresh[p]) for p in fresh if in_encoding(p))


@functools.partial(jax.jit, static_argnums=0)
def logits(config, params, tokens):
  return transformer.create(config).apply({'params': params}, tokens)


def tokens(length=LENGTH):
  return jax.random.randint(jax.random.key(4), (2, length), 0, 256)


@pytest.mark.parametrize(
  'encoding, fields',
  [
    ('fire', {}),
    ('learned(max_position=32)', {}),
    ('rope, t5', dict(num_layers=4, attention_scale='ssmax')),
  ],
)
def test_same_encoding_loads_all(encoding, fields):
  config = model(encoding, **fields)
  source, params, notes = adopt(config, config)
  jax.tree.map(np.testing.assert_array_equal, params, source)
  count = len(jax.tree.leaves(source))
  assert notes == [f'loaded {count} of {count} arrays']


def test_arrays_on_the_host_stay_there():
  config = model('rope', scan_layers=True)
  _, params, _ = adopt(config, model('rope'))
  for leaf in jax.tree.leaves(params):
    assert isinstance(leaf, np.ndarray)


@pytest.mark.parametrize(
  'encoding, source_encoding, notes',
  [
    ('learned(max_position=8) + t5', 'learned(max_position=8) + t5', []),
    (
      'learned(max_position=8) + t5',
      'learned(max_position=8)',
      ['layers 0-1: t5 in place of nope, initialised'],
    ),
    (
      'learned(max_position=8) + t5',
      't5',
      ['layers 0-1: learned(max_position=8) in place of nope, initialised'],
    ),
    (
      't5',
      'learned(max_position=8) + t5',
      [
        'layers 0-1: nope in place of learned(max_position=8), nothing to load',
        'layers 0-1: learned(max_position=8) of the source ignored',
      ],
    ),
  ],
)
def test_each_part_of_two_is_loaded(encoding, source_encoding, notes):
  config, source_config = model(encoding), model(source_encoding)
  source, params, found = adopt(config, source_config)
  assert found[1:] == notes
  fresh, params, source = (
    flat(helpers.initial(config, 2)),
    flat(params),
    flat(source),
  )
  for path, leaf in params.items():
    assert is_same(leaf, source.get(path, fresh[path]))


@pytest.mark.parametrize('encoding', ['alibi', 'rope(base=5e5)', 'nope'])
def test_encodings_without_arrays(encoding):
  source, params, notes = adopt(model(encoding), model('rope'))
  jax.tree.map(np.testing.assert_array_equal, params, source)
  assert notes == [
    'loaded 23 of 23 arrays',
    f'layers 0-1: {encoding} in place of rope, nothing to load',
  ]


def test_what_else_makes_another_function_is_said():
  fields = {'norm_epsilon': 1e-5, 'scaled_embedding': False}
  fields['window'] = (8, None)
  source, params, notes = adopt(model('rope'), model('rope', **fields))
  jax.tree.map(np.testing.assert_array_equal, params, source)
  assert notes == [
    'loaded 23 of 23 arrays',
    'layer 0: model.window=None, and 8 in the source',
    'model.norm_epsilon=1e-06, and 1e-05 in the source',
    'model.scaled_embedding=True, and False in the source',
  ]


def test_a_trained_encoding_is_left_behind():
  source, params, notes = adopt(model('rope'), model('kerple_log'))
  assert_rest_is_loaded(params, source)
  assert notes == [
    'loaded 23 of 23 arrays',
    'layers 0-1: rope in place of kerple_log, nothing to load',
    'layers 0-1: kerple_log of the source ignored',
  ]


def test_other_settings_and_other_shapes():
  settings = model('fire(init_threshold=64.)')
  source, params, notes = adopt(settings, model('fire'))
  jax.tree.map(np.testing.assert_array_equal, params, source)
  assert notes[1:] == [
    'layers 0-1: fire(init_threshold=64.) in place of fire, same arrays'
  ]
  shapes = model('t5(num_buckets=16)')
  source, params, notes = adopt(shapes, model('t5'))
  assert_rest_is_loaded(params, source)
  assert_encoding_is_fresh(params, shapes)
  assert notes[1:] == [
    'layers 0-1: t5(num_buckets=16) in place of t5, initialised',
    'layers 0-1: t5 of the source ignored',
  ]


def test_encodings_in_turn():
  fields = dict(num_layers=4)
  config = model('alibi, kerple_log', **fields)
  source, params, notes = adopt(config, model('rope, kerple_log', **fields))
  jax.tree.map(np.testing.assert_array_equal, params, source)
  assert notes[1:] == ['layers 0, 2: alibi in place of rope, nothing to load']
  # The other way round, no layer has what it had.
  config = model('kerple_log, rope', **fields)
  source, params, notes = adopt(config, model('rope, kerple_log', **fields))
  assert_rest_is_loaded(params, source)
  assert_encoding_is_fresh(params, config)
  assert notes[1:] == [
    'layers 0, 2: kerple_log in place of rope, initialised',
    'layers 1, 3: rope in place of kerple_log, nothing to load',
    'layers 1, 3: kerple_log of the source ignored',
  ]


def test_one_shared_encoding_for_each_layer_and_back():
  shared, each = model('fire(shared=True)'), model('fire')
  source, params, notes = adopt(each, shared)
  for i in range(2):
    jax.tree.map(
      np.testing.assert_array_equal,
      params[f'layer_{i}']['attention']['encoding'],
      source['encoding'],
    )
  assert notes == ['loaded 39 of 39 arrays']
  np.testing.assert_allclose(
    logits(each, params, tokens()),
    logits(shared, source, tokens()),
    rtol=1e-5,
    atol=1e-5,
  )
  # As long as the layers are equal, one of them stands for all.
  _, back, notes = adopt(shared, each, params)
  jax.tree.map(np.testing.assert_array_equal, back, source)
  assert notes == ['loaded 31 of 31 arrays']


@pytest.mark.parametrize('encoding', ['fire', 't5'])
def test_layers_that_differ_do_not_become_one(encoding):
  shared = model('fire(shared=True)')
  source, params, notes = adopt(shared, model(encoding))
  assert_rest_is_loaded(params, source)
  assert_encoding_is_fresh(params, shared)
  assert notes == [
    'loaded 23 of 31 arrays',
    f'layers 0-1: fire(shared=True) in place of several ({encoding}), '
    'initialised',
    f'layers 0-1: {encoding} of the source ignored',
  ]


def bias(spec, params, *, bidirectional=False):
  """Bias of all pairs of LENGTH tokens, `[H, L, L]`."""
  encoding = encodings.create(spec, num_heads=2, head_dim=16)
  positions = jnp.arange(LENGTH)

  @jax.jit
  def apply(params):
    return encoding.apply(
      {'params': params},
      positions,
      positions,
      bidirectional=bidirectional,
      method='bias',
    )

  return apply(params)


def relative_rms(got, want):
  """Returns the error over keys up to the query, over the largest entry."""
  q, k = np.tril_indices(LENGTH)
  got, want = np.asarray(got)[:, q, k], np.asarray(want)[:, q, k]
  return np.sqrt(np.mean((got - want) ** 2)) / np.abs(want).max()


def said_error(note):
  found = re.fullmatch(r'.*, rms error (\d+\.\d\d)% of the largest bias', note)
  return float(found[1]) / 100


def test_fire_is_fitted_layer_by_layer(quick_fits):
  config = model('fire')
  source, params, notes = adopt(config, model('kerple_log'))
  assert_rest_is_loaded(params, source)
  old, new = (
    [tree[f'layer_{i}']['attention']['encoding'] for i in range(2)]
    for tree in (source, params)
  )
  wants = [bias('kerple_log', each) for each in old]
  gots = [bias('fire', each) for each in new]
  errors_ = [relative_rms(*pair) for pair in zip(gots, wants, strict=True)]
  assert max(errors_) < 0.03
  assert relative_rms(gots[0], wants[1]) > 0.1
  # The worse of both is told.
  assert len(notes) == 2 and notes[0] == 'loaded 23 of 39 arrays'
  assert notes[1].startswith(
    'layers 0-1: fire fitted to kerple_log up to length 32, rms error'
  )
  assert said_error(notes[1]) == pytest.approx(max(errors_), abs=1e-4)


@pytest.mark.slow
def test_fire_is_fitted_on_both_sides(quick_fits):
  config, source_config = (
    model(encoding, architecture='encoder_decoder', num_layers=4)
    for encoding in ('rope, fire(shared=True)', 'fire, alibi')
  )
  source, params, notes = adopt(config, source_config)
  assert_rest_is_loaded(params, source)
  for side, bidirectional in (('encoder', True), ('decoder', False)):
    got, want = (
      bias(spec, each, bidirectional=bidirectional)
      for spec, each in (('fire', params[side]['encoding']), ('alibi', {}))
    )
    assert relative_rms(got, want) < 0.03
    if bidirectional:
      # Alibi looks ahead as it looks back, and so does FIRE.
      assert relative_rms(got.swapaxes(1, 2), want.swapaxes(1, 2)) < 0.03
  assert [re.sub(r'\d+\.\d\d%', 'x%', note) for note in notes[1:]] == [
    'encoder layers 0, 2: rope in place of fire, nothing to load',
    'encoder layers 1, 3: fire(shared=True) fitted to alibi up to length 32 '
    'at keys up to the query, rms error x% of the largest bias',
    'encoder layers 0, 2: fire of the source ignored',
    'decoder layers 0, 2: rope in place of fire, nothing to load',
    'decoder layers 1, 3: fire(shared=True) fitted to alibi up to length 32, '
    'rms error x% of the largest bias',
    'decoder layers 0, 2: fire of the source ignored',
  ]


@pytest.mark.parametrize(
  'scanned, architecture',
  [
    (0, 'decoder'),
    (1, 'encoder_decoder'),
  ],
)
def test_scanned_and_unrolled(scanned, architecture):
  """Either into the other: the same arrays in the same layers."""
  source_config, config = (
    model(
      'fire, rope',
      num_layers=4,
      architecture=architecture,
      scan_layers=side == scanned,
    )
    for side in range(2)
  )
  source, params, notes = adopt(config, source_config)
  assert len(notes) == 1
  got, want = flat(params), flat(source)
  assert got.keys() == want.keys()
  assert all(is_same(got[path], want[path]) for path in want)


def test_logit_scales():
  plain, scaled = model('rope'), model('rope', attention_scale='ssmax')
  source, params, notes = adopt(plain, scaled)
  assert len(flat(params)) == 23
  assert notes[1:] == ['layers 0-1: logit scale ssmax of the source ignored']
  mixed = model('rope', attention_scale='none, ssmax(init=2.)')
  source, params, notes = adopt(plain, mixed)
  assert notes[1:] == [
    'layer 1: logit scale ssmax(init=2.) of the source ignored'
  ]
  fresh = model('rope', attention_scale='ssmax(init=0.5)')
  source, params, notes = adopt(fresh, plain)
  assert notes == [
    'loaded 23 of 25 arrays',
    'layers 0-1: logit scale ssmax(init=0.5) initialised',
  ]
  for i in range(2):
    path = f'layer_{i}/attention/attention_scale/s'
    assert is_same(flat(params)[path], flat(helpers.initial(fresh, 2))[path])
  source, params, notes = adopt(fresh, scaled)
  jax.tree.map(np.testing.assert_array_equal, params, source)
  assert notes == ['loaded 25 of 25 arrays']
  # Scales without parameters.
  gemma = model('rope', attention_scale='constant(factor=0.5), none')
  _, _, notes = adopt(plain, gemma)
  assert notes[1:] == [
    "layer 0: model.attention_scale='none', and 'constant(factor=0.5)' in the "
    'source'
  ]
  same = model('rope', attention_scale='constant( factor=0.50 ), none')
  assert adopt(same, gemma)[2] == ['loaded 23 of 23 arrays']


def test_options_of_attention():
  plain = model('rope')
  options = {
    'contextual_positions': 'repo, none',
    'query_key_norm': 'head',
    'output_gate': 'head',
    'sink_logits': True,
    'logit_cap': 20.0,
  }
  source, params, notes = adopt(model('rope', **options), plain)
  assert notes[0] == 'loaded 23 of 34 arrays'
  assert 'layer 0: contextual positions repo initialised' in notes
  assert 'layers 0-1: output gate initialised' in notes
  assert 'layers 0-1: sink logits initialised' in notes
  assert 'layers 0-1: norm of queries initialised' in notes
  assert 'model.logit_cap=20.0, and None in the source' in notes
  for path, leaf in flat(source).items():
    assert is_same(flat(params)[path], leaf)
  _, _, notes = adopt(plain, model('rope', **options))
  assert notes[0] == 'loaded 23 of 23 arrays'
  assert 'layer 0: contextual positions repo of the source ignored' in notes


def test_lora_of_another_alpha_is_merged():
  low, other = (
    model('rope', lora_rank=2, lora_alpha=alpha) for alpha in (4.0, 8.0)
  )
  _, _, notes = adopt(other, low)
  assert notes[1:] == [
    'LoRA of the source merged',
    'LoRA of rank 2 initialised',
  ]


def test_lora():
  plain, low = model('rope'), model('fire', lora_rank=2, lora_alpha=4.0)
  source, params, notes = adopt(low, plain)
  assert notes[:2] == [
    'loaded 23 of 55 arrays',
    'LoRA of rank 2 initialised',
  ]
  got, fresh = flat(params), flat(helpers.initial(low, 2))
  assert all(is_same(got[path], leaf) for path, leaf in flat(source).items())
  assert all(is_same(got[p], fresh[p]) for p in fresh if 'lora' in p)
  # The same LoRA is loaded; another one is merged into the kernels.
  source, params, notes = adopt(low, low)
  assert notes == ['loaded 55 of 55 arrays']
  jax.tree.map(np.testing.assert_array_equal, params, source)
  other = model('fire', lora_rank=3)
  _, params, notes = adopt(other, low, source)
  assert notes[1:] == [
    'LoRA of the source merged',
    'LoRA of rank 3 initialised',
  ]
  merged, _ = stacking.merge_lora(source, low)
  path = 'layer_0/attention/query/kernel'
  assert is_same(flat(params)[path], flat(merged)[path])
  assert not is_same(flat(params)[path], flat(source)[path])


def test_an_encoder_from_a_decoder_is_noted():
  encoder = model('alibi', architecture='encoder')
  _, _, notes = adopt(encoder, model('alibi'))
  assert "model.architecture='encoder', and 'decoder' in the source" in notes


@pytest.mark.parametrize(
  'fields, message',
  [
    (
      dict(width=48),
      'cannot load embed/table: (256, 32) in the source, (256, 48) here; set '
      'model.width=32 instead of 48',
    ),
    (
      dict(num_layers=3),
      'cannot load layer_2/attention/key/kernel: missing in the source, '
      '(32, 2, 16) here; set model.num_layers=2 instead of 3',
    ),
    (
      dict(norm='rms', scan_layers=True),
      'cannot load final_norm/bias: (32,) in the source, missing here; set '
      "model.norm='layer' instead of 'rms'",
    ),
    (
      dict(vocab_size=300, mlp_width=32),
      'cannot load embed/table: (256, 32) in the source, (300, 32) here; set '
      'model.vocab_size=256 instead of 300, model.mlp_width=64 instead of 32',
    ),
    (
      dict(architecture='encoder_decoder'),
      'cannot load decoder/final_norm/bias: missing in the source, (32,) here; '
      "set model.architecture='decoder' instead of 'encoder_decoder'",
    ),
  ],
)
def test_models_that_differ(fields, message):
  with pytest.raises(errors.CheckpointError) as caught:
    adopt(model('fire', **fields), model('alibi'))
  assert str(caught.value) == message


# Runs.

SOURCE_STEPS = 40


def run_config(encoding='alibi', source=''):
  config = stdlib_config.get_config('tiny')
  config.model.encoding = encoding
  # Its compilation takes most of the time.
  config.model.num_layers = 1
  config.train.init_from = str(source)
  return config


@pytest.fixture(scope='module')
def trained(tmp_path_factory, corpus):
  """The workdir of a run, of one device where the others have two."""
  folder = tmp_path_factory.mktemp('source') / 'alibi'
  config = run_config()
  config.data.batch_size = 3
  config.train.steps = config.train.checkpoint_every = SOURCE_STEPS
  loop.train(config, folder, corpus=corpus)
  return folder


def losses(folder):
  lines = (folder / 'metrics.jsonl').read_text().splitlines()
  return [json.loads(line)['loss'] for line in lines]


@pytest.mark.slow
def test_fitted_fire_keeps_the_logits(trained, corpus, quick_fits):
  """The point of it all: measured at the length of training."""
  source = pretrained.restore(trained)
  run = run_lib.Run(run_config('fire'))
  state, _ = run.adopt(source.state.params, source.run.model)
  params = jax.device_get(state.params)
  old = jax.device_get(source.state.params)
  anew = flat(params) | {
    path: leaf
    for path, leaf in flat(run.init_state().params).items()
    if in_encoding(path)
  }
  anew = traverse_util.unflatten_dict(anew, sep='/')
  text = jnp.asarray(corpus.documents['validation'][0][None, :LENGTH])
  want = logits(source.run.model, old, text)
  fitted, fresh = (
    float(jnp.sqrt(jnp.mean((logits(run.model, each, text) - want) ** 2)))
    for each in (params, anew)
  )
  scale = float(jnp.std(want))
  assert fitted < 0.01 * scale
  assert fresh > 10 * fitted


def test_a_run_starts_from_another(tmp_path, trained, corpus, capsys):
  before = sorted(trained.rglob('*'))
  capsys.readouterr()
  config, folder = run_config('rope', trained), tmp_path / 'rope'
  adopted = loop.train(config, folder, corpus=corpus, label='rope')
  said = capsys.readouterr().out.splitlines()
  assert said[0] == 'rope: loaded 13 of 13 arrays'
  assert said[1] == 'rope: layer 0: rope in place of alibi, nothing to load'
  assert said[2].startswith('rope: compiling for 2 of 2 cpu devices')
  # It continues where the source ended, with a step and a rate of its own.
  scratch, first = losses(trained), losses(folder)
  assert len(first) == adopted.run.config.train.steps
  assert first[0] < scratch[0] - 1
  assert first[0] < scratch[-1] + 0.5
  restored = pretrained.restore(folder)
  jax.tree.map(
    np.testing.assert_array_equal, adopted.state.weights(), restored.state
  )
  # A finished run does not read the source again.
  loop.train(config, folder, corpus=corpus)
  assert 'loaded' not in capsys.readouterr().out
  assert sorted(trained.rglob('*')) == before


@pytest.mark.slow
def test_the_adopted_state_lies_as_the_initial_one(trained):
  run = run_lib.Run(run_config('rope'))
  source = pretrained.restore(trained)
  state, _ = run.adopt(source.state.params, source.run.model)
  initial_state = run.init_state()
  assert jax.tree.map(lambda x: x.sharding, state) == jax.tree.map(
    lambda x: x.sharding, initial_state
  )
  assert state.step == 0
  jax.tree.map(
    np.testing.assert_array_equal, state.opt_state, initial_state.opt_state
  )
  # A step that is given the memory of the state does not write to the source.
  before = jax.tree.map(np.array, source.state.params)
  batch = jax.tree.map(
    lambda like: jnp.zeros(like.shape, like.dtype), run.abstract_batch()
  )
  with run.layout.scope():
    run.jitted_step(packed=False)(state, batch)
  helpers.assert_same(source.state.params, before)


@pytest.mark.slow
def test_a_resumed_run_does_not_need_the_source(
  tmp_path, trained, corpus, monkeypatch
):
  source = tmp_path / 'source'
  shutil.copytree(trained, source)
  config = run_config('rope', source)
  whole = loop.train(config, tmp_path / 'whole', corpus=corpus)

  def killed(step):
    with monkeypatch.context() as patch:
      helpers.kill_at_step(patch, step)
      with pytest.raises(helpers.Killed):
        loop.train(config, tmp_path / 'cut', corpus=corpus)

  # Once before the first checkpoint: the source is read again.
  killed(2)
  killed(6)
  shutil.rmtree(source)
  cut = loop.train(config, tmp_path / 'cut', corpus=corpus)
  assert losses(tmp_path / 'cut') == losses(tmp_path / 'whole')
  jax.tree.map(np.testing.assert_array_equal, cut.state, whole.state)


@pytest.mark.slow
@pytest.mark.parametrize('rank', [None, 2])
def test_rounded_parameters_and_lora_resume(
  tmp_path, trained, corpus, monkeypatch, rank
):
  """Bit for bit, with all that the checkpoint has."""
  config = run_config('kerple_log', trained)
  config.model.update(lora_rank=rank, scan_layers=True)
  config.train.update(param_dtype='bfloat16', checkpoint_every=2)
  whole = loop.train(config, tmp_path / 'whole', corpus=corpus)
  with monkeypatch.context() as patch:
    helpers.kill_at_step(patch, 5)
    with pytest.raises(helpers.Killed):
      loop.train(config, tmp_path / 'cut', corpus=corpus)
  cut = loop.train(config, tmp_path / 'cut', corpus=corpus)
  assert losses(tmp_path / 'cut') == losses(tmp_path / 'whole')
  jax.tree.map(np.testing.assert_array_equal, cut.state, whole.state)
  restored = pretrained.restore(tmp_path / 'whole').state
  jax.tree.map(np.testing.assert_array_equal, restored, whole.state.weights())
  # Layers are never stacked on disk, whatever part of the parameters has them.
  checkpoints = checkpoint.Checkpointer(tmp_path / 'whole', None)
  paths = ' '.join(checkpoints.record(config.train.steps)['state'])
  checkpoints.close()
  assert 'layer_0' in paths and 'layers' not in paths
  # Frozen parameters are those of the source, rounded; the others have moved.
  before, after = (
    np.asarray(flat(state.params)['layer_0/mlp/up/kernel'])
    for state in (pretrained.restore(trained).state, restored)
  )
  assert after.dtype == jnp.bfloat16
  assert is_same(after, before.astype(jnp.bfloat16)) == (rank is not None)
  # What is exported has no LoRA.
  path = tmp_path / 'a.safetensors'
  weights_lib.save(path, restored.params, whole.run.model)
  params, found = weights_lib.load(path)
  assert found.lora_rank is None
  np.testing.assert_allclose(
    logits(found, params, tokens()),
    logits(whole.run.model, restored.params, tokens()),
    rtol=1e-4,
    atol=1e-4,
  )


def test_lora_needs_weights_to_start_from(tmp_path, corpus):
  config = run_config()
  config.model.lora_rank = 2
  with pytest.raises(errors.ConfigError, match=r'lora_rank=2 .*init_from'):
    loop.train(config, tmp_path / 'run', corpus=corpus)


def refused(config, folder, corpus, kind):
  """The message of a run that cannot start from its source."""
  with pytest.raises(kind) as caught:
    loop.train(config, folder, corpus=corpus)
  assert f'train.init_from={config.train.init_from}' in str(caught.value)
  return str(caught.value)


def test_sources_that_do_not_serve(tmp_path, trained, corpus):
  config = run_config('alibi', tmp_path / 'nowhere')
  error = refused(config, tmp_path / 'run', corpus, errors.CheckpointError)
  assert f'there is no {tmp_path}/nowhere; a checkpoint is' in error
  assert not (tmp_path / 'nowhere').exists()

  config.train.init_from = str(tmp_path / 'empty')
  workdir_lib.claim(tmp_path / 'empty', run_config(), corpus.info)
  error = refused(config, tmp_path / 'run', corpus, errors.CheckpointError)
  assert 'has no checkpoint yet' in error
  assert [f.name for f in (tmp_path / 'empty').iterdir()] == ['config.json']

  config.train.init_from = str(trained)
  config.model.width = 48
  error = refused(config, tmp_path / 'run', corpus, errors.CheckpointError)
  assert 'set model.width=32 instead of 48' in error
  # No folder remains that would block the corrected command.
  assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize('encoding', ['rope(scale=2.)', 'nope'])
def test_a_run_starts_from_weights(tmp_path, corpus, capsys, encoding):
  params, source = hf.load(LLAMA)
  config = config_of_pretrained.get_config(f'{LLAMA},tiny')
  config.train.steps = 0
  config.data.train_length, config.eval.lengths = LENGTH, (LENGTH,)
  config.model.encoding = encoding
  first = loop.train(config, tmp_path / 'run', corpus=corpus, label='run')
  jax.tree.map(np.testing.assert_array_equal, first.state.params, params)
  count = len(jax.tree.leaves(params))
  assert capsys.readouterr().out.splitlines() == [
    f'run: loaded {count} of {count} arrays',
    f'run: layers 0-1: {encoding} in place of '
    f'{source.encoding[0]}, nothing to load',
    'run: the weights do not record their vocabulary; it is assumed to be that '
    "of the data, 'bytes_plus_0'",
  ]


def test_weights_that_say_what_they_were_trained_on(
  tmp_path, trained, corpus, monkeypatch, capsys
):
  path = tmp_path / 'alibi.safetensors'
  config = run_config('alibi', path)
  config.train.steps = 0
  found = model_config.ModelConfig(**config.model.to_dict())
  params = pretrained.restore(trained).state.params

  def save(vocabulary):
    facts = (vocabulary, 4 * LENGTH) if vocabulary else ()
    weights_lib.save(path, params, found, weights_lib.TrainedOn(*facts))

  save(None)
  first = loop.train(config, tmp_path / 'unknown', corpus=corpus)
  jax.tree.map(np.testing.assert_array_equal, first.state.params, params)
  assert "the data, 'bytes_plus_0'" in capsys.readouterr().out
  save('bytes_plus_3')
  error = refused(config, tmp_path / 'run', corpus, errors.CorpusError)
  assert f"{path} was trained with vocabulary 'bytes_plus_3'; the data" in error
  save('bytes_plus_0')
  lengths = []
  adopt = warm_start.adopt

  def spied(*args, max_length, **kwargs):
    lengths.append(max_length)
    return adopt(*args, max_length=max_length, **kwargs)

  monkeypatch.setattr(warm_start, 'adopt', spied)
  loop.train(config, tmp_path / 'run', corpus=corpus)
  assert lengths == [4 * LENGTH]
  assert 'token ids' not in capsys.readouterr().out


def test_a_run_is_not_its_own_source(tmp_path, trained, corpus):
  before = sorted(trained.rglob('*'))
  config = run_config('alibi', trained / '..' / trained.name)
  error = refused(config, trained, corpus, errors.ConfigError)
  assert 'is the workdir of this run' in error
  assert sorted(trained.rglob('*')) == before
