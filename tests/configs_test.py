"""Tests of the config files: each builds a run, at every size."""

import collections
import dataclasses
import functools
import importlib
import itertools
import math
import pathlib
import shutil

from absl import flags
import jax
from ml_collections import config_flags
import pytest

from configs import stdlib
from lengen_jax import errors
from lengen_jax.data import imagenet, scrolls
from lengen_jax.interop.hf import families
from lengen_jax.models import objective
from lengen_jax.models.config import ModelConfig
from lengen_jax.training import config as config_lib
from lengen_jax.training import config_file, defaults, optimizer, workdir
from lengen_jax.training import run as run_lib

SIZES = ('paper', 'small', 'cpu', 'tiny')
MODELS = ('base', 'large')
# The arguments of each file, as menus of which a word each is taken.
MENUS = {
  'fire_c4': (MODELS, ('c4', 'arxiv', 'github'), SIZES),
  'glue_superglue': (MODELS, SIZES),
  'mlm_positions': (SIZES,),
  'narrativeqa_zeroshot': (SIZES,),
  'randomized_enwik8': (('train', 'finetune'), SIZES),
  'randomized_imagenet': (('delimiter', 'no_delimiter'), SIZES),
  'scrolls': (tuple(scrolls.TASKS), MODELS, SIZES),
  'stdlib': (SIZES,),
  'warping_wikitext103': (SIZES,),
  'yarn_c4': (MODELS, SIZES),
}
# Sweeps, which have tests of their own.
SWEEPS = {'arithmetic', 'chomsky', 'crasp', 'recall', 'warping_algorithmic'}
# Configs of models that the user supplies.
OWN = {'pretrained'}
LLAMA = pathlib.Path(__file__).parent / 'golden' / 'llama' / 'untied'
ALL = [
  (name, ','.join(words))
  for name, menus in MENUS.items()
  for words in itertools.product(*menus)
]


@functools.cache
def module(name):
  return importlib.import_module(f'configs.{name}')


def get(name, arg=''):
  """A config, as if one asked it to start from nothing."""
  config = module(name).get_config(arg)
  if config.train.init_from is None:
    config.train.init_from = ''
  return config


def test_every_file_is_here():
  folder = pathlib.Path(__file__).parents[1] / 'configs'
  assert {path.stem for path in folder.glob('*.py')} == {*MENUS} | SWEEPS | OWN


@pytest.mark.some(5)
@pytest.mark.parametrize('size', SIZES)
@pytest.mark.parametrize('name', MENUS)
def test_builds(name, size):
  """Every argument is valid; one of each size builds mesh and state too."""
  arguments = [a for n, a in ALL if n == name and a.split(',')[-1] == size]
  for number, arg in enumerate(arguments):
    config = get(name, arg).lock()
    run = config_lib.check_run(config)
    objective.check(run.model, config.positions)
    optimizer.create(run.optimizer, run.train.steps)
    # The papers' figures are for their own size.
    assert 'paper' not in config or size == 'paper'
    if run.data.source != 'seqio':
      assert all(max(run.eval.lengths) % n == 0 for n in run.eval.lengths)
    if run.data.vocabulary == 'bytes' and run.data.source == 'prepared':
      assert run.model.vocab_size == 259
    if not number and (size != 'small' or name == 'fire_c4'):
      run_lib.Run(config)


def test_folders():
  """What `lengen prepare` would write differently lies in other folders."""
  found = collections.defaultdict(set)
  for name, arg in ALL:
    data, lengths = get(name, arg).data, get(name, arg).eval.lengths
    if data.source == 'prepared':
      found[data.path].add(
        (data.task, data.vocabulary, data.mode, data.train_length, max(lengths))
      )
  assert len(found) > 9
  for path, settings in found.items():
    assert len(settings) == 1, (path, settings)


@pytest.mark.some(3)
@pytest.mark.parametrize('name', MENUS)
def test_tiny_steps(name):
  run_lib.Run(get(name, 'tiny')).check_step()


@pytest.mark.parametrize('name', MENUS)
def test_paper_is_default(name):
  # `test_builds` has it as a run.
  assert get(name).to_dict() == get(name, 'paper').to_dict()


@pytest.mark.parametrize('name', MENUS)
def test_unknown_argument(name):
  for arg in ('huge', 'tiny,huge', 'tiny,tiny'):
    with pytest.raises(ValueError, match='unknown') as error:
      get(name, arg)
    for word in itertools.chain(*MENUS[name]):
      assert word in str(error.value)


@pytest.mark.parametrize(
  'name',
  [
    # One that trains from nothing, one that goes on and is scored by answers.
    pytest.param(
      name, marks=() if name in ('stdlib', 'scrolls') else pytest.mark.slow
    )
    for name in MENUS
  ],
)
def test_overrides(name):
  """What has no value is set from the command line all the same."""
  values = flags.FlagValues()
  argv = [
    'lengen',
    '--config.train.init_from=runs/rope',
    '--config.eval.examples=3',
    '--config.eval.lengths=(64,)',
    '--config.data.target_length=5',
    '--config.data.path=somewhere',
    '--config.model.window=7',
    '--config.model.encoding=nope',
  ]
  config_flags.DEFINE_config_dict(
    'config', get(name).lock(), flag_values=values, sys_argv=argv
  )
  values(argv)
  run = run_lib.Run(values.config)
  assert values.config.train.init_from == 'runs/rope'
  assert (run.eval.examples, run.eval.lengths) == (3, (64,))
  assert (run.data.target_length, run.data.path) == (5, 'somewhere')
  assert (run.model.window, run.model.encoding) == ((7,), ('nope',))


@pytest.mark.parametrize(
  'window, sinks, want',
  [
    ('512', '4', ((512,), (4,))),
    ('(512, None)', '(4,0)', ((512, None), (4, 0))),
    ('None', '0', ((None,), (0,))),
    ('[8]', '(0)', ((8,), (0,))),
  ],
)
def test_overrides_of_layers(tmp_path, window, sinks, want):
  overrides = [
    f'--config.model.window={window}',
    f'--config.model.sinks={sinks}',
    '--config.model.attention_scale=none, 2*ssmax',
  ]
  config = config_file.load('configs/stdlib.py:tiny', overrides)
  model = run_lib.Run(config).model
  assert (model.window, model.sinks) == want
  assert model.attention_scale == ('none', 'ssmax', 'ssmax')
  # A run is resumed, and its folder has the config.
  for _ in range(2):
    workdir.claim(tmp_path, config)
  assert run_lib.Run(workdir.read_config(tmp_path)[0]).model == model


def parameters(name, arg):
  state = run_lib.Run(get(name, arg)).abstract_state
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state.params))


@pytest.mark.parametrize(
  ('model', 'millions', 'rate'), [('base', 125, 6e-4), ('large', 350, 3e-4)]
)
def test_fire_c4(model, millions, rate):
  """Tables 8 and 9."""
  config = get('fire_c4', model)
  assert parameters('fire_c4', model) == pytest.approx(millions * 1e6, rel=0.05)
  assert config.optimizer.learning_rate == rate
  assert (config.optimizer.name, config.model.dropout_rate) == ('adamw', 0.0)
  assert (config.data.batch_size, config.train.steps) == (256, 600_000)
  assert config.data.train_length == 2048
  assert config.eval.lengths == (512, 1024, 2048, 4096, 8192)
  # Only the base model on C4 has printed results.
  assert ('paper' in config) == (model == 'base')
  assert 'paper' not in get('fire_c4', f'{model},arxiv')


def test_fire_c4_table():
  paper = get('fire_c4').paper
  assert dict(paper.rows)['fire'] == (3.149, 3.083, 3.054, 3.046, 3.056)
  assert paper.unit == 'nats per token'


def test_yarn_c4():
  config = get('yarn_c4')
  assert config.model.encoding == 'yarn(scale=4., train_length=2048)'
  assert config.data.train_length == 4 * get('fire_c4').data.train_length
  assert (config.train.steps, config.optimizer.warmup_steps) == (400, 20)
  assert config.optimizer.learning_rate == 2e-5
  assert (config.optimizer.b1, config.optimizer.b2) == (0.9, 0.95)


@pytest.mark.parametrize(
  ('name', 'length', 'batch'),
  [
    ('scrolls', 8192, 128),
    ('narrativeqa_zeroshot', 8192, 128),
    ('glue_superglue', 1024, 256),
  ],
)
def test_finetuning(name, length, batch):
  """Tables 10 and 12."""
  config = get(name)
  assert (config.data.train_length, config.data.batch_size) == (length, batch)
  assert (config.train.steps, config.model.dropout_rate) == (25_000, 0.1)
  assert config.optimizer.learning_rate == 1e-5
  assert config.optimizer.name == 'adamw'


@pytest.mark.parametrize('size', SIZES)
@pytest.mark.parametrize(
  'name', ['scrolls', 'narrativeqa_zeroshot', 'glue_superglue', 'yarn_c4']
)
def test_finetuning_goes_on(name, size):
  """The models and token ids are those of the pretraining of that size."""
  first, then = get('fire_c4', size), get(name, size)
  assert first.data.vocabulary == then.data.vocabulary
  for config in (first, then):
    config.model.encoding = 'fire'
    config.model.dropout_rate = 0.0
  assert first.model.to_dict() == then.model.to_dict()


def test_answers_tables():
  table = dict(get('scrolls', 'contract_nli,large').paper.rows)
  assert table['rope(scale=4.)'] == (84.28,)
  config = get('narrativeqa_zeroshot')
  assert config.eval.lengths == config.paper.columns
  assert dict(config.paper.rows)['fire'][-1] == 9.417
  paper = get('glue_superglue').paper
  fire = dict(zip(paper.columns, dict(paper.rows)['fire'], strict=True))
  assert (fire['super_glue/wsc'], fire['glue/mnli']) == (66.35, 83.01)


def test_warping_wikitext103():
  config = get('warping_wikitext103')
  scheme = run_lib.Run(config).scheme
  assert (scheme.train_length, scheme.fraction) == (512, 0.15)
  assert (scheme.alpha, scheme.skew) == (1 / 6, 'beta(2,5)')
  assert config.optimizer.learning_rate == 5e-5
  assert (config.optimizer.b1, config.optimizer.b2) == (0.9, 0.999)
  assert config.optimizer.weight_decay == 0
  assert config.data.batch_size == 64
  assert config.paper.unit == 'perplexity'
  assert config.positions in config.paper.rows[6][0]
  assert config.paper.rows[6][1] == (19.80, 18.87, 18.26, 19.00)


def test_randomized_enwik8():
  config = get('randomized_enwik8')
  assert (config.optimizer.name, config.optimizer.clip_norm) == ('adam', 1.0)
  assert config.optimizer.learning_rate == 1e-4
  assert (config.train.steps, config.data.batch_size) == (1_000_000, 64)
  assert config.eval.lengths == (256, 1024)
  table = dict(config.paper.rows)
  assert table['kerple_power'] == (216.8, 845.3)
  assert table[f'kerple_power | {config.positions}'] == (221.8, 1151.0)
  assert len(get('randomized_enwik8', 'finetune').paper.rows) == 4


def test_randomized_imagenet():
  config = get('randomized_imagenet')
  assert (config.optimizer.name, config.optimizer.clip_norm) == ('adam', 1.0)
  assert config.optimizer.learning_rate == 1e-5
  assert (config.train.steps, config.data.batch_size) == (1_000_000, 32)
  assert config.model.architecture == 'encoder_decoder'
  assert config.model.vocab_size == 1256
  table = dict(config.paper.rows)
  assert table[f'rope | {config.positions}'] == (5.117, 5.341)
  for size in SIZES:
    for length in get('randomized_imagenet', size).eval.lengths:
      rows, cols = imagenet.Imagenet().shape(length)
      assert rows * (cols + 1) == length


def test_mlm_positions():
  run = run_lib.Run(get('mlm_positions'))
  assert (run.model.architecture, run.model.vocab_size) == ('encoder', 257)
  assert run.eval.lengths == (64, 128, 256, 512)
  assert run.data.train_length == 64


@pytest.mark.parametrize(
  ('name', 'arg'),
  [
    ('scrolls', 'qasper,tiny'),
    ('narrativeqa_zeroshot', 'tiny'),
    ('glue_superglue', 'tiny'),
    ('yarn_c4', 'tiny'),
    ('randomized_enwik8', 'finetune,tiny'),
  ],
)
def test_finetuning_asks_for_the_run_to_start_from(name, arg):
  config = module(name).get_config(arg)
  with pytest.raises(
    errors.ConfigError, match='lacks train.init_from; .*workdir'
  ):
    run_lib.Run(config)


@pytest.mark.parametrize('size', ['', ',paper', ',tiny'])
def test_pretrained(size):
  config = get('pretrained', f'{LLAMA}{size}').lock()
  run = run_lib.Run(config)
  run.check_step()
  assert config.train.init_from == str(LLAMA)
  assert run.model.encoding == ('rope(base=10000.0)',)
  assert (run.model.key_heads, run.model.tied_embedding) == (2, False)
  assert run.data.train_length == 4 * 32
  assert run.eval.lengths == (16, 32, 64, 128, 256)
  if size != ',tiny':
    assert run.data.vocabulary == str(LLAMA / 'tokenizer.model')
    assert (config.train.steps, run.data.batch_size) == (400, 64)


@pytest.mark.parametrize('arg', ['', f'{LLAMA},cpu'])
def test_sizes_of_pretrained(arg):
  with pytest.raises(errors.ConfigError, match='SIZE is paper or tiny; got'):
    get('pretrained', arg)


def test_a_size_without_a_task():
  short, long = map(module('chomsky').get_config, ('tiny', 'bucket_sort,tiny'))
  assert short.to_json() == long.to_json()


def test_a_period_that_does_not_divide_the_layers():
  """Gemma 3 has 26 layers with a period of 6, or here 5 of period 4."""
  checkpoints = LLAMA.parents[1] / 'checkpoints'
  config = get('pretrained', str(checkpoints / 'smollm3'))
  assert not config.model.scan_layers
  assert get('pretrained', str(checkpoints / 'gemma3')).model.scan_layers
  run_lib.Run(config)


@pytest.mark.parametrize(
  'folder',
  sorted((LLAMA.parents[1] / 'checkpoints').glob('*/config.json')),
  ids=lambda path: path.parent.name,
)
def test_pretrained_of_every_family(folder):
  config = get('pretrained', f'{folder.parent},tiny')
  model = run_lib.Run(config).model
  assert model == dataclasses.replace(
    ModelConfig(**families.model_fields(folder.parent)),
    dtype='float32',
    implementation=model.implementation,
  )


def test_pretrained_prefers_tokenizer_json(tmp_path):
  shutil.copy(LLAMA / 'config.json', tmp_path)
  for name in ('tokenizer.model', 'tokenizer.json'):
    (tmp_path / name).touch()
  config = get('pretrained', str(tmp_path))
  assert config.data.vocabulary == str(tmp_path)
  (tmp_path / 'tokenizer.json').unlink()
  config = get('pretrained', str(tmp_path))
  assert config.data.vocabulary == str(tmp_path / 'tokenizer.model')


def test_pretrained_needs_a_folder(tmp_path):
  with pytest.raises(errors.ConfigError, match='give the folder of a check'):
    get('pretrained')
  with pytest.raises(errors.CheckpointError, match='config.json cannot be re'):
    get('pretrained', f'{tmp_path},tiny')


def test_two_sizes_are_no_typing_error():
  with pytest.raises(
    errors.ConfigError, match="'cpu' is unknown or out of order; the arg"
  ) as found:
    stdlib.get_config('tiny,cpu')
  assert 'did you mean' not in str(found.value)


@pytest.mark.parametrize('kind', [config_lib.RunConfig, config_lib.TaskConfig])
def test_fields_have_the_types_of_their_dataclasses(kind):
  """A config takes a fraction only where the default value is a float."""
  for section in dataclasses.fields(kind):
    if not dataclasses.is_dataclass(section.type):
      continue
    fields = defaults.sections(kind)[section.name]
    for field in dataclasses.fields(section.type):
      if field.type in (bool, int, float, str):
        assert fields.get_type(field.name) is field.type, field.name
