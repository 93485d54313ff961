"""Tests the papers' configs at size tiny: train, test, score, by command."""

import functools
import json
from unittest import mock

import pytest

from lengen_jax import cli
from lengen_jax.data import vocabulary
from lengen_jax.evaluation import generation
from tests.data import tiny

FIRE = 'fire_c4.py:base,{},tiny'


# Writers of raw data by config.
RAW = {
  'fire_c4.py:base,c4': tiny.write_c4,
  'fire_c4.py:base,arxiv': lambda raw: tiny.write_pile(raw / 'arxiv', size=600),
  'fire_c4.py:base,github': (
    lambda raw: tiny.write_pile(raw / 'github', size=600)
  ),
  'warping_wikitext103.py': tiny.write_wikitext,
  'randomized_enwik8.py': tiny.write_enwik8,
  'scrolls.py:qasper': lambda raw: tiny.write_scrolls_zip(raw, 'qasper'),
  'narrativeqa_zeroshot.py': (
    lambda raw: tiny.write_scrolls_zip(raw, 'narrative_qa')
  ),
  'glue_superglue.py': tiny.write_glue,
  'randomized_imagenet.py': tiny.write_imagenet,
}
TWO_LENGTHS = '--config.eval.lengths=(16, 64)'
# A layer without parameters of positions compiles fast.
SMALL = ('--config.model.num_layers=1', '--config.model.encoding=alibi')


@pytest.fixture(scope='module')
def raw(tmp_path_factory):
  """Folder of raw data, which `write` fills."""
  return tmp_path_factory.mktemp('raw')


@pytest.fixture(scope='module')
def write(raw):
  """Writes the raw data of a config once."""

  @functools.cache
  def write(config):
    RAW.get(config.removesuffix('tiny').rstrip(':,'), lambda raw: None)(raw)

  return write


@pytest.fixture(scope='module')
def monkeypatch():
  with pytest.MonkeyPatch.context() as patch:
    yield patch


@pytest.fixture(scope='module')
def run(raw, write, tmp_path_factory, monkeypatch):
  """Runs a config and tests it; returns eval.json and the workdir."""
  runs = tmp_path_factory.mktemp('runs')

  def call(command, config, *arguments):
    status = cli.main([command, f'--config=configs/{config}', *arguments])
    assert status == 0, f'{command} {config}'

  def run(name, config, *arguments, prepared=False):
    workdir = runs / name
    write(config)
    if prepared:
      folder = f'--config.data.path={runs / name}_data'
      call('prepare', config, folder, f'--config.data.raw={raw}')
    else:
      # Where nothing else is said.
      folder = '--config.data.raw='
      monkeypatch.setenv('LENGEN_DATA_DIR', str(raw))
    call('train', config, f'--workdir={workdir}', folder, *SMALL, *arguments)
    assert cli.main(['eval', f'--workdir={workdir}']) == 0
    return json.loads((workdir / 'eval.json').read_text()), workdir

  return run


@pytest.fixture(scope='module')
def pretrained(run):
  """A run on prepared windows of C4."""
  return run('c4', FIRE.format('c4'), TWO_LENGTHS, prepared=True)


def check_curve(results, count):
  curve = results['curves'][0]
  assert len(curve['loss']) == len(results['lengths']) == count
  assert all(0 < loss < 10 for loss in curve['loss'])
  return curve


def test_c4_from_prepared_windows(pretrained):
  results, _ = pretrained
  curve = check_curve(results, 2)
  assert curve['bytes_per_token'] == pytest.approx(1, abs=0.05)
  assert (
    results['corpus']['scored']['train']
    == (results['corpus']['tokens']['train'])
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  'corpus, source',
  [('arxiv', 'prepared'), ('github', 'seqio')],
)
def test_corpora(run, corpus, source):
  results, _ = run(
    f'{corpus}_{source}',
    FIRE.format(corpus),
    f'--config.data.source={source}',
    TWO_LENGTHS,
    prepared=source == 'prepared',
  )
  check_curve(results, 2)


@pytest.mark.slow
def test_scrolls_from_a_pretrained_run(run, pretrained):
  _, source = pretrained
  results, workdir = run(
    'qasper', 'scrolls.py:qasper,tiny', f'--config.train.init_from={source}'
  )
  (length,) = results['lengths']
  scores = results['scores'][str(length)]['scrolls/qasper']
  assert 0 <= scores['score'] <= 100
  assert results['examples'] == {'scrolls/qasper': 4}
  lines = (workdir / 'predictions.jsonl').read_text().splitlines()
  assert len(lines) == 4
  first = json.loads(lines[0])
  assert first['references'] == ['answer 0', 'answer 1']


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['bytes', 'tokenizer'])
def test_what_is_learned_is_answered(run, raw, tmp_path, kind):
  """From training on answers to scoring what is generated, all fits."""
  # In the tokenizer, the quotes and the mark are the ids 1 and 0.
  vocab = kind if kind == 'bytes' else tiny.write_tokenizer(tmp_path)
  tiny.write_scrolls_zip(raw, 'quality', answer='"Yes!"')
  create = generation.Generator
  with mock.patch.object(generation, 'Generator', wraps=create) as created:
    results, workdir = run(
      f'quality_{kind}',
      'scrolls.py:quality,tiny',
      f'--config.data.vocabulary={vocab}',
      '--config.train.init_from=',
      '--config.train.steps=60',
      '--config.train.checkpoint_every=60',
      '--config.optimizer.learning_rate=0.01',
      # Nearly greedy.
      '--config.eval.temperature=0.01',
      '--config.eval.top_p=0.5',
    )
  # The model answers after another start, too.
  used, given = vocabulary.create(vocab), created.call_args.kwargs
  assert given['start_id'] == used.start
  assert (given['temperature'], given['top_p']) == (0.01, 0.5)
  (scores,) = results['scores'].values()
  assert scores['scrolls/quality']['score'] == 100
  line = (workdir / 'predictions.jsonl').read_text().splitlines()[0]
  assert json.loads(line)['prediction'] == '"Yes!"'


@pytest.mark.slow
def test_narrativeqa_at_every_length(run, pretrained):
  _, source = pretrained
  results, _ = run(
    'narrativeqa',
    'narrativeqa_zeroshot.py:tiny',
    f'--config.train.init_from={source}',
  )
  assert len(results['scores']) == len(results['lengths']) == 3
  whole = [w['scrolls/narrative_qa'] for w in results['whole'].values()]
  assert whole == sorted(whole)


@pytest.mark.slow
def test_glue_and_superglue(run, pretrained):
  _, source = pretrained
  results, _ = run(
    'glue',
    'glue_superglue.py:tiny',
    f'--config.train.init_from={source}',
    '--config.train.steps=1',
    '--config.train.checkpoint_every=1',
    '--config.eval.examples=1',
  )
  (length,) = results['lengths']
  assert len(results['scores'][str(length)]) == 16
  assert 0 <= results['average'][str(length)] <= 100


@pytest.mark.slow
def test_imagenet(run):
  results, _ = run('imagenet', 'randomized_imagenet.py:tiny')
  curve = check_curve(results, 2)
  assert curve['bits_per_byte'] == [None, None]


@pytest.mark.slow
@pytest.mark.parametrize(
  'config', ['warping_wikitext103.py:tiny', 'randomized_enwik8.py:tiny']
)
def test_text_of_wikipedia(run, config):
  results, _ = run(config.split('.')[0], config, TWO_LENGTHS, prepared=True)
  curve = check_curve(results, 2)
  # Words are longer than a byte.
  for word, byte in zip(
    curve['word_perplexity'], curve['perplexity'], strict=True
  ):
    assert word is None or word > byte**3


@pytest.mark.slow
def test_masked_language_modelling(run):
  results, _ = run('mlm', 'mlm_positions.py:tiny')
  curve = check_curve(results, len(results['lengths']))
  assert 0.1 < curve['tokens'] / (2 * max(results['lengths'])) < 0.2
  # The loss of masked tokens is no likelihood of the text.
  for score in ('bits_per_byte', 'word_perplexity'):
    assert {*curve[score]} == {None}


def test_a_vocabulary_that_is_not_the_models(
  run, pretrained, raw, tmp_path, capsys
):
  _, source = pretrained
  status = cli.main(
    [
      'train',
      '--config=configs/stdlib.py:tiny',
      f'--workdir={tmp_path}',
      f'--config.train.init_from={source}',
      '--config.model.vocab_size=259',
    ]
  )
  assert status == 2
  message = capsys.readouterr().err
  assert "vocabulary 'bytes_plus_3'" in message
  assert "'bytes_plus_0'" in message and 'data.vocabulary' in message


def test_comparing_what_has_no_curve(raw, write, tmp_path, capsys):
  write('scrolls.py:qasper,tiny')
  status = cli.main(
    [
      'compare',
      '--config=configs/scrolls.py:qasper,tiny',
      '--config.train.init_from=',
      f'--workdir={tmp_path}',
      f'--config.data.raw={raw}',
      '--runs=fire; alibi',
    ]
  )
  assert status == 2
  assert 'scored by answers' in capsys.readouterr().err


@pytest.mark.parametrize(
  'config, valid',
  [
    ('randomized_imagenet.py:tiny', "'encoder_decoder'"),
    ('scrolls.py:qasper,tiny', "'decoder'"),
  ],
)
def test_models_that_are_not_for_the_data(
  raw, write, tmp_path, capsys, config, valid
):
  write(config)
  other = {"'decoder'": 'encoder', "'encoder_decoder'": 'decoder'}[valid]
  status = cli.main(
    [
      'train',
      f'--config=configs/{config}',
      '--config.train.init_from=',
      f'--workdir={tmp_path}',
      f'--config.data.raw={raw}',
      f'--config.model.architecture={other}',
      '--config.model.vocab_size=1300',
    ]
  )
  assert status == 2
  assert f'set it to {valid}' in capsys.readouterr().err
