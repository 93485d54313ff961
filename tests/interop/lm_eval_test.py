"""Tests `lengen_jax/interop/lm_eval.py` with the lm-evaluation-harness.

Scores and windows of token ids: `tests/evaluation/likelihood_test.py`.
"""

import json
import math
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import cli, errors, models
from lengen_jax.data import vocabulary
from lengen_jax.evaluation import likelihood
from lengen_jax.interop import weights
from lengen_jax.training import continuations, pretrained
from tests import helpers

# make test-peers installs it.
pytest.importorskip('lm_eval')
import lm_eval
from lm_eval import tasks, utils
from lm_eval.api import instance, registry

from lengen_jax.interop import lm_eval as backend

pytestmark = pytest.mark.peers
BYTES = vocabulary.Bytes(offset=0)


@pytest.fixture(scope='module')
def path(tmp_path_factory):
  """A file with a model of bytes that was trained at 32 tokens."""
  config = helpers.tiny_model(num_layers=1, encoding='rope')
  params = helpers.params_of(config)
  path = tmp_path_factory.mktemp('model') / 'model.safetensors'
  weights.save(path, params, config, weights.TrainedOn('bytes_plus_0', 32))
  return path


@pytest.fixture(scope='module')
def model(path):
  return backend.Lengen(str(path), batch_tokens=64)


def requests(kind, *arguments):
  return [
    instance.Instance(kind, {}, one, number)
    for number, one in enumerate(arguments)
  ]


def by_hand(path, inputs, scored):
  """The score of the last `scored` targets after inputs, bytes."""
  known = pretrained.load(path)
  row = jnp.asarray(list(inputs), jnp.int32)[None]
  forward = jax.jit(models.DecoderLM(known.model).apply)
  logits = forward({'params': known.params}, row[:, :-1])[0, -scored:]
  targets = row[0, -scored:]
  log_probs = jax.nn.log_softmax(logits)[jnp.arange(scored), targets]
  return float(log_probs.sum()), bool((logits.argmax(-1) == targets).all())


def assert_scores(found, want):
  for (got, greedy), (log_prob, is_greedy) in zip(found, want, strict=True):
    assert abs(got - log_prob) < 1e-4
    assert greedy is is_greedy


def test_the_harness_knows_the_model():
  assert registry.get_model('lengen') is backend.Lengen


def test_continuations_after_contexts(path, model):
  found = model.loglikelihood(
    requests(
      'loglikelihood',
      ('ab', ' cd'),
      # Spaces at the end belong to the continuation.
      ('ab  ', 'c'),
      ('', 'cd'),
      (' \n', 'cd'),
    )
  )
  assert_scores(
    found,
    [
      by_hand(path, b'ab cd', 3),
      by_hand(path, b'ab  c', 3),
      by_hand(path, b'\0cd', 2),
      by_hand(path, b'\0 \ncd', 4),
    ],
  )


def test_a_start_that_is_the_end_is_for_empty_contexts(path):
  model = backend.Lengen(str(path))
  model._vocabulary = vocabulary.Bytes(offset=0)
  model._vocabulary.start, model._vocabulary.adds_start = 1, True
  given = ('ab', 'c'), ('', 'bc'), ('  ', 'c')
  found = model.loglikelihood(requests('loglikelihood', *given))
  want = by_hand(path, b'abc', 1), by_hand(path, b'\1bc', 2)
  assert_scores(found, [*want, by_hand(path, b'\1  c', 3)])


def test_a_tokenizer_that_merges_the_continuation(path, monkeypatch):
  model = backend.Lengen(str(path))
  ids = {'ab': [5], 'a': [97], 'b': [98], '': []}
  monkeypatch.setattr(model, 'tok_encode', lambda text, **_: ids[text])
  assert model._encode_pair('a', 'b') == ([97], [98])
  with pytest.raises(errors.ConfigError, match="continuation '' .* no tokens"):
    model.loglikelihood(requests('loglikelihood', ('a', '')))


def test_long_contexts_are_cut_from_the_left(path, capsys):
  short = backend.Lengen(str(path), max_length=6)
  pair = ('a long context', 'cd')
  found = short.loglikelihood(requests('loglikelihood', pair, ('a', 'b')))
  assert_scores(found, [by_hand(path, b'ntextcd', 2), by_hand(path, b'ab', 1)])
  assert '1 of 2 contexts are cut to max_length=6' in capsys.readouterr().out
  with pytest.raises(errors.LengthError, match='has 7 tokens, more than max_l'):
    short.loglikelihood(requests('loglikelihood', ('a', 'seven c')))


def test_options_of_null_are_left_out():
  given = {'until': None, 'temperature': 0.7, 'top_p': None}
  options, until = backend._options(given, 512)
  assert (options['temperature'], options['top_p'], until) == (0.7, 1.0, [])


@pytest.mark.parametrize('seed', [-1, 2**32])
def test_seeds_outside_their_range(path, seed):
  with pytest.raises(errors.ConfigError, match=f'seed in .* got {seed}'):
    backend.Lengen(str(path), seed=seed)


def test_whole_texts(path, model):
  text = 'A text of more than thirty-two bytes.'
  found = model.loglikelihood_rolling(
    requests('loglikelihood_rolling', (text,), ('ab',), ('',))
  )
  row = b'\0' + text.encode()
  whole = by_hand(path, row[:33], 32)[0]
  whole += by_hand(path, row[-33:], len(text) - 32)[0]
  want = [whole, by_hand(path, b'\0ab', 2)[0], 0.0]
  np.testing.assert_allclose(found, want, atol=1e-4)


@pytest.mark.parametrize('count', [0, 1, 3, 4, 9])
def test_windows_are_those_of_the_harness(count):
  want = utils.get_rolling_token_windows([*range(count)], 99, 4, 1)
  want = [utils.make_disjoint_window(window) for window in want]
  assert [*likelihood.rolling([*range(count)], 99, 4)] == want


def test_texts_end_at_stop_strings(path, model):
  known = pretrained.load(path)
  contexts = ['ab', '', 'ba']
  whole = continuations.write(known, contexts, vocabulary=BYTES, max_new=9)
  assert all(whole)
  stops = [[], 'zz', [whole[2][-1], whole[2]]]
  found = model.generate_until(
    requests(
      'generate_until',
      *(
        (context, {'until': until, 'max_gen_toks': 9, 'num_beams': 1})
        for context, until in zip(contexts, stops, strict=True)
      ),
    )
  )
  first = whole[2].index(whole[2][-1])
  assert found == [*whole[:2], whole[2][:first]]
  # Bytes that end the output.
  assert model._stop_ids(['b', 'zz', '']) == [ord('b')]


def test_special_tokens_are_stop_strings(tmp_path):
  """A text ends before them, as they have no text in an answer."""
  tokenizer = helpers.GOLDEN / 'checkpoints' / 'llama3'
  vocab = vocabulary.create(str(tokenizer))
  config = helpers.tiny_model(num_layers=1, vocab_size=vocab.size + 8)
  path = tmp_path / 'model.safetensors'
  weights.save(path, helpers.params_of(config), config)
  model = backend.Lengen(str(path), vocabulary=str(tokenizer))
  (special,) = model._stop_ids(['<|eot_id|>'])
  assert vocab.decode([special]) == '<|eot_id|>'
  assert not vocab.decode([special], special=False)


def test_options_of_generation(path, model):
  long = 'a context of more than thirty-two bytes'
  sampled = {'max_gen_toks': 9, 'temperature': 1.0, 'do_sample': True}
  found = model.generate_until(
    requests('generate_until', (long, sampled), ('a', {'max_gen_toks': 2}))
  )
  known = pretrained.load(path)
  # Without the start token, which is cut.
  cut = vocabulary.Bytes(offset=0)
  cut.start = cut.end
  options = {'vocabulary': cut, 'max_new': 9, 'temperature': 1.0}
  assert found[:1] == continuations.write(known, [long[-23:]], **options)
  (short,) = continuations.write(known, ['a'], vocabulary=BYTES, max_new=2)
  assert found[1] == short


@pytest.mark.parametrize(
  'options, kind, message',
  [
    ({'max_gen_toks': 32}, errors.LengthError, 'max_gen_toks=32 leaves no'),
    ({}, errors.LengthError, 'max_gen_toks=256 leaves .* max_length=32'),
    (
      {'max_gen_toks': 4, 'top_k': 5},
      errors.ConfigError,
      'top_k=5 is not supp',
    ),
    ({'max_gen_toks': 4, 'num_beams': 2}, errors.ConfigError, 'num_beams=2 is'),
  ],
)
def test_refuses_options_of_generation(model, options, kind, message):
  with pytest.raises(kind, match=message):
    model.generate_until(requests('generate_until', ('a', options)))


def test_other_encodings_and_lengths(path, model):
  assert model.max_length == 32
  other = backend.Lengen(
    str(path), encoding='rope(scale=8.)', positions='standard', max_length=64
  )
  assert other.max_length == 64
  given = requests('loglikelihood', ('a context of some words', ' and more'))
  (found, _), (own, _) = other.loglikelihood(given) + model.loglikelihood(given)
  assert abs(found - own) > 1e-2


TASKS = {
  'choose': {
    'output_type': 'multiple_choice',
    'doc_to_text': '{{question}}',
    'doc_to_choice': '{{choices}}',
    'doc_to_target': 'answer',
    'target_delimiter': '',
    'metric_list': [{'metric': 'acc'}],
  },
  'perplexity': {
    'output_type': 'loglikelihood_rolling',
    'doc_to_text': '',
    'doc_to_target': '{{text}}',
    'metric_list': [{'metric': 'byte_perplexity'}],
  },
  'write': {
    'output_type': 'generate_until',
    'doc_to_text': '{{question}}',
    'doc_to_target': '{{choices[0]}}',
    'generation_kwargs': {'until': ['\n'], 'max_gen_toks': 4},
    'metric_list': [{'metric': 'exact_match'}],
  },
}


def by_command(path, folder, names, capsys):
  """Metrics that `lengen lm_eval` prints."""
  arguments = [f'pretrained={path},encoding=rope(base=1e4, scale=1.)']
  arguments += ['--tasks', ','.join(names), '--include_path', str(folder)]
  assert cli.main(['lm_eval', '--model_args', *arguments]) == 0
  return {
    metric: float(value)
    for metric, value in re.findall(
      r'\|(\w+) *\|[↑↓] *\| *([\d.]+)\|', capsys.readouterr().out
    )
  }


def by_function(path, folder, names, capsys):
  """Metrics that `lm_eval.simple_evaluate` returns."""
  found = lm_eval.simple_evaluate(
    model='lengen',
    model_args=f'pretrained={path}',
    tasks=names,
    # The others take seconds to find.
    task_manager=tasks.TaskManager(
      include_path=str(folder), include_defaults=False
    ),
    bootstrap_iters=0,
  )
  return {
    key.removesuffix(',none'): value
    for of_task in found['results'].values()
    for key, value in of_task.items()
  }


@pytest.mark.parametrize('run', [by_function, by_command])
def test_tasks_of_the_harness(run, path, model, tmp_path, monkeypatch, capsys):
  """One of each kind, on a file of data."""
  monkeypatch.setattr('lengen_jax.training.sharding.start', lambda: 0)
  texts = ['A text.', 'Another text of more bytes than the model reads']
  pairs = [('a', ['b', 'c']), ('', ['de', 'd'])]
  scores = model.loglikelihood(
    requests(
      'loglikelihood', *((text, one) for text, both in pairs for one in both)
    )
  )
  # The model prefers the answer of the first question, not of the second.
  best = [int(np.argmax([s for s, _ in scores[i : i + 2]])) for i in (0, 2)]
  with (tmp_path / 'data.jsonl').open('w') as file:
    for text, (question, choices), answer in zip(
      texts, pairs, (best[0], 1 - best[1]), strict=True
    ):
      fields = dict(text=text, question=question, choices=choices)
      file.write(json.dumps(fields | {'answer': answer}) + '\n')
  for name, fields in TASKS.items():
    task = fields | {
      'task': f'lengen_{name}',
      'dataset_path': 'json',
      'dataset_kwargs': {
        'data_files': {'test': str(tmp_path / 'data.jsonl')},
        'cache_dir': str(tmp_path / 'cache'),
      },
      'test_split': 'test',
    }
    (tmp_path / f'{name}.yaml').write_text(json.dumps(task))
  found = run(path, tmp_path, [f'lengen_{name}' for name in TASKS], capsys)
  losses = model.loglikelihood_rolling(
    requests('loglikelihood_rolling', *((text,) for text in texts))
  )
  perplexity = math.exp(-sum(losses) / sum(map(len, texts)))
  assert found['acc'] == 0.5
  assert found['exact_match'] == 0.0
  assert abs(found['byte_perplexity'] / perplexity - 1) < 1e-3


@pytest.mark.parametrize(
  'options, message',
  [
    ({}, 'the model lengen needs a checkpoint; give --model_args pretrained='),
    ({'pretrained': 'nowhere'}, 'there is no .*nowhere; a checkpoint is'),
    ({'encoding': 'fire'}, 'fire cannot be tested with'),
    ({'max_length': 0}, 'max_length in .* a whole number, at least 1, got 0'),
    ({'vocabulary': 'bytes'}, "'bytes_plus_0'; 'bytes' has 'bytes_plus_3'"),
  ],
)
def test_refuses_models(path, options, message):
  options = {'pretrained': str(path)} | options if options else {}
  with pytest.raises(errors.LengenError, match=message):
    backend.Lengen(**options)


def test_mistakes_of_the_command(monkeypatch, capsys):
  monkeypatch.setattr('lengen_jax.training.sharding.start', lambda: 0)
  monkeypatch.setattr(backend.command_line, 'cli_evaluate', backend.Lengen)
  before = sys.argv
  assert cli.main(['lm_eval', '--tasks', 'arc_easy']) == 2
  assert 'lengen: the model lengen needs a' in capsys.readouterr().err
  assert sys.argv is before


def test_other_positions(path, model):
  other = backend.Lengen(str(path), positions='interpolated(scale=8)')
  given = requests('loglikelihood', ('a context of some words', ' and more'))
  ((found, _),) = other.loglikelihood(given)
  ((own, _),) = model.loglikelihood(given)
  assert abs(found - own) > 1e-3


def test_top_p_and_seeds(path):
  given = {'until': [], 'temperature': 1.0, 'top_p': 0.5}
  assert backend._options(given, 512)[0]['top_p'] == 0.5
  sampled = {'max_gen_toks': 9, 'temperature': 1.0, 'do_sample': True}
  texts = [
    backend.Lengen(str(path), seed=seed).generate_until(
      requests('generate_until', ('ab', sampled))
    )
    for seed in (1, 2)
  ]
  assert texts[0] != texts[1]
