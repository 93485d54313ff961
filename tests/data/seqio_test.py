"""Tests what data.source='seqio' reads; all that loads TensorFlow is here."""

import dataclasses
import json
import pathlib
import sys
import types

import numpy as np
import pytest
import seqio
import tensorflow as tf

from configs import scrolls as scrolls_config
from lengen_jax import data, errors
from lengen_jax.data import (
  encode,
  glue,
  imagenet,
  paths,
  prepare,
  scrolls,
  seqio_files,
  seqio_prompts,
  seqio_text,
  stream,
  vocabulary,
  windows,
)
from lengen_jax.evaluation import config as eval_config
from lengen_jax.training import loop
from tests.data import tiny

GOLDEN = pathlib.Path(__file__).parents[1] / 'golden' / 'checkpoints'
TOKENIZERS = ('gemma2', 'gpt_neox', 'llama3', 'qwen2', 'gpt2')


@pytest.fixture(scope='module')
def specs(tmp_path_factory):
  """Vocabularies of others by name: tokenizers, and pieces like Llama's."""
  path = tmp_path_factory.mktemp('vocabularies')
  found = {name: str(GOLDEN / name) for name in TOKENIZERS}
  found['gpt2'] = tiny.write_tokenizer(path)
  return found | {'llama': tiny.write_pieces(path / 'llama.model')}


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A data folder with every dataset."""
  path = tmp_path_factory.mktemp('data')
  tiny.write_c4(path)
  tiny.write_pile(path / 'arxiv')
  tiny.write_wikitext(path)
  tiny.write_enwik8(path)
  tiny.write_scrolls_zip(path, 'qasper')
  rows = tiny.scrolls_rows('qmsum', 8)
  splits = {'train': rows, 'validation': rows}
  tiny.write_tfds(path, 'scrolls/qmsum:1.0.0', splits)
  tiny.write_glue(path)
  tiny.write_imagenet(path)
  return path


def config(folder, task, **fields):
  fields = dict(train_length=32, batch_size=4, raw=str(folder)) | fields
  return data.DataConfig(source='seqio', task=task, **fields)


def take(batches, count):
  return [batches.next() for _ in range(count)]


def assert_equal(got, want):
  assert len(got) == len(want)
  for a, b in zip(got, want, strict=True):
    assert a.keys() == b.keys()
    for key in a:
      np.testing.assert_array_equal(a[key], b[key])


def text_of(ids):
  return vocabulary.Bytes().decode(ids)


def documents(folder, task='c4', vocab='bytes'):
  """Token ids of the training documents of a task, in order."""
  name = data.register(task, path=str(folder), vocab=vocab)
  found = seqio.TaskRegistry.get(name).get_dataset(
    sequence_length=None, split='train', shuffle=False, num_epochs=1
  )
  return [row['targets'] for row in found.as_numpy_iterator()]


def test_registering_may_be_repeated(folder, tmp_path):
  name = data.register('c4', path=str(folder))
  task = seqio.TaskRegistry.get(name)
  assert data.register('c4', path=str(folder)) == name == 'c4_lm_bytes'
  assert seqio.TaskRegistry.get(name) is task
  # Other data under the same name is read anew.
  tiny.write_c4(tmp_path, documents=3)
  data.register('c4', path=str(tmp_path))
  assert len(documents(tmp_path)) == 6
  assert len(documents(folder)) == 40


@pytest.mark.parametrize('length', [16, 4096])
def test_other_code_loses_no_token(folder, length):
  """As T5X loads it, every token of every document is in the loss."""
  name = data.register('c4', path=str(folder))
  rows = seqio.get_dataset(
    mixture_or_task_name=name,
    task_feature_lengths={'targets': length},
    feature_converter=seqio.LMFeatureConverter(pack=False),
    dataset_split='train',
    shuffle=False,
    num_epochs=1,
  )
  rows = list(rows.as_numpy_iterator())
  scored = sum(row['decoder_loss_weights'].sum() for row in rows)
  assert scored == sum(map(len, documents(folder)))
  text = ''.join(text_of(row['decoder_target_tokens']) for row in rows)
  assert text == ''.join(map(text_of, documents(folder)))


@pytest.mark.some(2)
@pytest.mark.parametrize('length', [7, 1000])
@pytest.mark.parametrize('mode', windows.MODES)
def test_windows_are_those_of_prepare(folder, mode, length):
  found = documents(folder)
  cutter = windows.Cutter(length, mode, start=7)
  want = [window for document in found for window in cutter.cut(document)]
  dataset = tf.data.Dataset.from_generator(
    lambda: ({'targets': document} for document in found),
    output_signature={'targets': tf.TensorSpec([None], tf.int32)},
  )
  got = seqio_text.cut(dataset, length, mode, start=7)
  got = list(got.as_numpy_iterator())
  assert [row['size'] for row in got] == [len(window) for window in want]
  for row, window in zip(got, want, strict=True):
    np.testing.assert_array_equal(row['tokens'][: len(window)], window)
    assert not row['tokens'][len(window) :].any()


@pytest.mark.parametrize(
  'spec, vocab',
  [
    ('c4', 'bytes'),
    ('c4', str(GOLDEN / 'qwen2')),
    pytest.param('arxiv', 'bytes', marks=pytest.mark.slow),
    pytest.param('wikitext103', 'bytes', marks=pytest.mark.slow),
    pytest.param('enwik8', 'bytes', marks=pytest.mark.slow),
  ],
  ids=lambda value: value.rpartition('/')[2],
)
def test_the_same_windows_as_prepared_data(folder, tmp_path, spec, vocab):
  shared = dict(
    task=spec, vocabulary=vocab, mode='doc_pad', batch_size=1, train_length=32
  )
  written = data.DataConfig(
    source='prepared', path=str(tmp_path / 'prepared'), **shared
  )
  manifest = prepare.prepare(written, raw=str(folder), longest=64)
  count = manifest['splits']['train']['windows']
  indexed = take(data.load(written).training(written, seed=3), count)
  dataset = seqio_text.cut(
    tf.data.Dataset.from_generator(
      lambda: ({'targets': ids} for ids in documents(folder, spec, vocab)),
      output_signature={'targets': tf.TensorSpec([None], tf.int32)},
    ),
    32,
    'doc_pad',
    start=vocabulary.create(vocab).start,
  )
  streamed = [row['tokens'] for row in dataset.as_numpy_iterator()]
  assert sorted(tokens[1:].tobytes() for tokens in streamed) == sorted(
    batch['targets'].tobytes() for batch in indexed
  )
  # Batches of the stream consist of them.
  settings = config(
    folder, spec, vocabulary=vocab, mode='doc_pad', batch_size=1
  )
  known = {tokens.tobytes() for tokens in streamed}
  for batch in take(data.load(settings).training(settings, seed=3), 50):
    row = np.append(batch['inputs'][0], batch['targets'][0, -1])
    assert row.astype(np.int32).tobytes() in known
  # Both routes score the same tokens.
  evaluated = [
    data.load(each).evaluation(eval_config.EvalConfig((16, 64), 1, 2))
    for each in (settings, written)
  ]
  np.testing.assert_array_equal(evaluated[0].scored, evaluated[1].scored)
  assert evaluated[0].bytes_per_token == evaluated[1].bytes_per_token
  if vocab == 'bytes':
    assert evaluated[0].bytes_per_token == pytest.approx(1, abs=0.02)


def c4_records(count):
  return {
    split: [
      {
        'text': tiny.text(seed, 300),
        'timestamp': '2019',
        'url': 'https://example.org',
        'content-length': '300',
        'content-type': 'text/plain',
      }
      for seed in range(first, first + count)
    ]
    for split, first in (('train', 0), ('validation', 100))
  }


def test_files_of_tensorflow_datasets_are_read_in_sequence(tmp_path):
  tiny.write_tfds(tmp_path, 'c4/en:3.1.0', c4_records(40))
  place = paths.prepared_dataset(tmp_path, 'c4/en:3.1.0')
  # Each split in two files.
  for file in place.glob('*.tfrecord-00000-of-00001'):
    records = list(tf.data.TFRecordDataset(str(file)).as_numpy_iterator())
    for n, part in enumerate((records[:20], records[20:])):
      name = file.name.replace('00000-of-00001', f'0000{n}-of-00002')
      with tf.io.TFRecordWriter(str(place / name)) as writer:
        for record in part:
          writer.write(record)
    file.unlink()
  path = place / 'dataset_info.json'
  info = json.loads(path.read_text())
  for split in info['splits']:
    split['shardLengths'] = ['20', '20']
  path.write_text(json.dumps(info))

  shared = dict(task='c4', mode='doc_pad', batch_size=4, train_length=64)
  written = data.DataConfig(
    source='prepared', path=str(tmp_path / 'prepared'), **shared
  )
  prepare.prepare(written, raw=str(tmp_path), longest=128)
  settings = config(tmp_path, 'c4', mode='doc_pad', train_length=64)
  # 60 of 120 windows: those of 20 documents.
  evaluated = [
    data.load(each).evaluation(eval_config.EvalConfig((64, 128), 1, 60))
    for each in (settings, written)
  ]
  np.testing.assert_array_equal(evaluated[0].scored, evaluated[1].scored)


def test_c4_of_tensorflow_datasets(tmp_path, monkeypatch):
  """Prepared or straight, from what tfds build has written."""
  records = c4_records(8)
  tiny.write_tfds(tmp_path, 'c4/en:3.1.0', records)
  texts = [record['text'] for record in records['train']]
  assert [text_of(ids) for ids in documents(tmp_path)] == texts
  shared = dict(task='c4', mode='doc_pad', batch_size=4, train_length=64)
  written = data.DataConfig(
    source='prepared', path=str(tmp_path / 'prepared'), **shared
  )
  manifest = prepare.prepare(written, raw=str(tmp_path), longest=128)
  assert manifest['splits']['train']['documents'] == 8
  assert manifest['splits']['train']['bytes'] == sum(map(len, texts))
  # Or file by file.
  place = paths.prepared_dataset(tmp_path, 'c4/en:3.1.0')
  assert paths.shard_lengths(str(place), 'c4/en:3.1.0@train') == [8]
  monkeypatch.setattr(paths, 'shard_lengths', lambda *_: [3, 0, 5])
  monkeypatch.setattr(encode, '_PIECE_BYTES', 100)
  divided = dataclasses.replace(written, path=str(tmp_path / 'divided'))
  again = prepare.prepare(divided, raw=str(tmp_path), longest=128)
  assert again == manifest
  settings = config(tmp_path, 'c4', mode='doc_pad', train_length=64)
  evaluated = [
    data.load(each).evaluation(eval_config.EvalConfig((64, 128), 1, 5))
    for each in (settings, written)
  ]
  np.testing.assert_array_equal(evaluated[0].scored, evaluated[1].scored)


@pytest.mark.parametrize(
  'hosts', [1, 2, 4, pytest.param(8, marks=pytest.mark.slow)]
)
def test_hosts_share_the_documents(folder, hosts):
  """Over hosts, every document comes once in an epoch."""
  task = seqio.get_mixture_or_task(data.register('c4', path=str(folder)))
  seen = []
  for index in range(hosts):
    dataset = stream.read(
      task, lengths=None, split='train', seed=5, host=(index, hosts)
    )
    rows = [row['targets'] for row in dataset.as_numpy_iterator()]
    assert len(rows) == 40 // hosts
    seen += [row.tobytes() for row in rows]
  assert sorted(seen) == sorted(d.tobytes() for d in documents(folder))
  assert len({*seen}) == 40


def test_data_that_are_open_stay_when_others_are_registered(tmp_path):
  opened = {}
  for letter in 'ab':
    path = tmp_path / letter
    path.mkdir()
    for split in ('train', 'valid'):
      (path / f'{split}.txt').write_text(letter * 200)
    opened[letter] = data.load(config(path, 'lm')), config(path, 'lm')
  for letter, (found, settings) in opened.items():
    scored = found.evaluation(eval_config.EvalConfig((64,), 1, 1)).scored
    trained = found.training(settings, seed=0).next()['targets']
    for ids in (scored, trained):
      assert vocabulary.create('bytes').decode(ids.ravel()[:8]) == letter * 8


def test_a_mixture_whose_texts_are_short(tmp_path):
  """It is endless, but has no window."""
  (tmp_path / 'train.txt').write_text('short')
  (tmp_path / 'valid.txt').write_text('short')
  name = data.register('lm', path=str(tmp_path))
  seqio.MixtureRegistry.remove('short_texts')
  seqio.MixtureRegistry.add('short_texts', [(name, 1.0)])
  settings = config(tmp_path, 'seqio:short_texts')
  with pytest.raises(errors.CorpusError, match='has no row for host 0 of 1'):
    data.load(settings).training(settings, seed=0)


def test_an_epoch_of_training_has_every_row_once(folder):
  settings = config(folder, 'scrolls/qasper', train_length=64, target_length=12)
  batches = data.load(settings).training(settings, seed=0)
  for _ in range(2):
    rows = np.concatenate([b['targets'] for b in take(batches, 3)])
    assert len({row.tobytes() for row in rows}) == 12


def test_a_host_without_rows_says_so(tmp_path):
  """Its files are there, its documents too short: it must not wait forever."""
  for number, size in enumerate((4000, 50)):
    path = tmp_path / 'c4' / f'c4-train.{number:05}-of-00002.json'
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({'text': tiny.text(number, size)}) + '\n')
  validation = tmp_path / 'c4' / 'c4-validation.00000-of-00001.json'
  validation.write_text(json.dumps({'text': tiny.text(2, 50)}) + '\n')
  settings = config(tmp_path, 'c4', train_length=128)
  found = []
  for index in range(2):
    batches = data.load(settings).training(settings, seed=0, host=(index, 2))
    try:
      batches.next()
      found.append('rows')
    except errors.CorpusError as error:
      found.append(str(error))
  assert 'rows' in found
  assert any(f'for host {index} of 2' in found[index] for index in range(2))


def test_other_files_are_other_data(tmp_path):
  tiny.write_c4(tmp_path)
  settings = config(tmp_path, 'c4')
  before = data.load(settings).info['sha256']
  moved = tmp_path / 'moved'
  moved.mkdir()
  (tmp_path / 'c4').rename(moved / 'c4')
  settings = config(moved, 'c4')
  assert data.load(settings).info['sha256'] == before
  next((moved / 'c4' / 'en').glob('*train.00001*')).unlink()
  assert data.load(settings).info['sha256'] != before


def test_a_function_has_no_files(tmp_path, monkeypatch):
  """A folder that is named like its split is not its data."""
  source = seqio.FunctionDataSource(
    lambda split, shuffle_files, seed=None: None, splits=['train']
  )
  task = types.SimpleNamespace(name='own', splits=['train'], source=source)
  monkeypatch.chdir(tmp_path)
  settings = config(tmp_path, 'own')
  before = stream.info(settings, task, 'bytes')
  assert before['files'] == 0
  (tmp_path / 'train').mkdir()
  assert stream.info(settings, task, 'bytes') == before


def test_one_epoch_of_a_long_document_is_held_once(tmp_path):
  """A shuffle of repeated documents would hold a thousand copies."""
  tiny.write_enwik8(tmp_path, size=200_000)
  settings = config(tmp_path, 'enwik8', train_length=256)
  batches = data.load(settings).training(settings, seed=0)
  batches.next()
  batches.save(tmp_path)
  size = sum(f.stat().st_size for f in tmp_path.glob('pipeline*'))
  assert size < 20 * 200_000


def test_more_hosts_than_files_is_said(folder, capsys):
  settings = config(folder, 'c4')
  data.load(settings).training(settings, seed=0, host=(0, 4))
  assert '2 files for 4 hosts' in capsys.readouterr().out


@pytest.mark.some(2)
@pytest.mark.parametrize(
  'task, fields',
  [
    *(('c4', {'mode': mode}) for mode in windows.MODES if mode != 'doc_pad'),
    ('scrolls/qasper', {'target_length': 12, 'train_length': 64}),
    pytest.param(
      'glue_superglue',
      {'target_length': 16, 'train_length': 64},
      marks=pytest.mark.slow,
    ),
    ('imagenet', {'train_length': 20}),
  ],
  ids=lambda value: (
    value if isinstance(value, str) else '-'.join(map(str, value.values()))
  ),
)
def test_goes_on_where_it_stopped(folder, tmp_path, monkeypatch, task, fields):
  # Shuffles of a thousand are slow to fill out of six records.
  monkeypatch.setattr(glue, 'MIXTURE', ('cb', 'multirc'))
  settings = config(folder, task, **fields)
  data.load(settings)
  for name in seqio.TaskRegistry.names():
    each = seqio.TaskRegistry.get(name)
    monkeypatch.setattr(each, '_shuffle_buffer_size', 16)

  def batches():
    return data.load(settings).training(settings, seed=1)

  first = batches()
  start = take(first, 5)
  first.save(tmp_path)
  want = take(first, 12)
  again = batches()
  # The same seed gives the same rows; another does not.
  assert_equal(take(again, 1), start[:1])
  again.restore(tmp_path)
  assert_equal(take(again, 12), want)
  other = data.load(settings).training(settings, seed=2)
  key = 'encoder_inputs' if task == 'imagenet' else 'inputs'
  assert any(
    (a[key] != b[key]).any() for a, b in zip(take(other, 5), start, strict=True)
  )


def test_blocks_may_be_read_in_any_order():
  rows = [(bytes([n]),) for n in range(200)]
  blocks = seqio_files._Blocks(lambda: iter(rows))
  assert [len(blocks(n)) for n in range(5)] == [64, 64, 64, 8, 0]
  for number in (2, 0, 3, 1, 1):
    assert blocks(number) == rows[64 * number : 64 * number + 64]


def test_a_pipeline_of_other_hosts_is_refused(folder, tmp_path):
  settings = config(folder, 'c4')
  loaded = data.load(settings)
  loaded.training(settings, seed=0).save(tmp_path)
  with pytest.raises(errors.CheckpointError, match='by 1 hosts .* on 2'):
    loaded.training(settings, seed=0, host=(0, 2)).restore(tmp_path)


def test_prompts_are_cut_before_the_separator_and_answers_are_scored(folder):
  settings = config(
    folder, 'scrolls/qasper', train_length=80, target_length=12, batch_size=8
  )
  batch = data.load(settings).training(settings, seed=0).next()
  answers = set()
  for tokens, targets, weights, segments in zip(
    batch['inputs'],
    batch['targets'],
    batch['weights'],
    batch['segment_ids'],
    strict=True,
  ):
    assert tokens[0] == vocabulary.PAD
    scored = targets[weights > 0]
    assert scored[-1] == vocabulary.END
    answers.add(text_of(scored))
    prompt = text_of(tokens[: np.flatnonzero(weights)[0] + 1])
    assert prompt.endswith('\n\nAnswer: ') and prompt.startswith('What is in')
    # 80 tokens less 12 of the answer are full: the texts are longer.
    assert len(prompt) == 68
    assert segments.sum() == 68 + len(scored)
  assert answers <= {f'answer {n}' for n in range(12)} and len(answers) > 3


@pytest.mark.some(3)
@pytest.mark.parametrize('name', [*TOKENIZERS, 'llama'])
def test_prompts_in_vocabularies_of_others(specs, tmp_path, name):
  """Answers with the ids 0 and 1 of GPT-2, and batches that are padded."""
  raw = tmp_path / 'qasper'
  raw.mkdir()
  texts = {f'Who {n * "!"} "left"?': f'{n * "!"}"Yes!"' for n in range(4)}
  lines = [
    json.dumps({'id': prompt, 'pid': prompt, 'input': prompt, 'output': answer})
    for prompt, answer in texts.items()
  ]
  for split in ('train', 'validation'):
    (raw / f'{split}.jsonl').write_text('\n'.join(lines))
  settings = config(
    tmp_path,
    'scrolls/qasper',
    vocabulary=specs[name],
    train_length=64,
    target_length=20,
  )
  loaded, vocab = data.load(settings), vocabulary.create(specs[name])
  assert loaded.vocab_size == vocab.size
  assert (loaded.start, loaded.end) == (vocab.start, vocab.end)
  separator = vocab.encode(settings.separator)
  want = {
    (vocab.start, *vocab.encode(prompt), *separator): (*ids, vocab.end)
    for prompt, answer in texts.items()
    for ids in [vocab.encode(answer)]
  }
  batch = loaded.training(settings, seed=0).next()
  found = {}
  for inputs, targets, weights, segments in zip(
    *(batch[key] for key in ('inputs', 'targets', 'weights', 'segment_ids')),
    strict=True,
  ):
    first, size = np.flatnonzero(weights)[0] + 1, segments.sum() + 1
    row = [inputs[0], *targets]
    found[tuple(row[:first])] = tuple(row[first:size])
    assert weights[first - 1 :].sum() == size - first
    assert (
      vocab.decode(row[first : size - 1])
      == texts[vocab.decode(row[1 : first - len(separator)])]
    )
  assert found == want
  examples = loaded.examples(0, 64)
  assert [(vocab.start, *e.tokens) for e in examples] == list(want)
  assert all(example.whole for example in examples)
  for example in examples:
    answer = want[vocab.start, *example.tokens]
    assert [loaded.decode(answer)] == example.references


def test_an_answer_too_long_keeps_its_end(folder):
  settings = config(
    folder, 'scrolls/qasper', train_length=64, target_length=5, batch_size=4
  )
  batch = data.load(settings).training(settings, seed=0).next()
  for targets, weights in zip(batch['targets'], batch['weights'], strict=True):
    scored = targets[weights > 0]
    assert text_of(scored) == 'answ' and scored[-1] == vocabulary.END


@pytest.mark.parametrize('task', ['scrolls/qasper', 'scrolls/qmsum'])
def test_examples_have_one_prompt_per_id(folder, task):
  """From the zip and from TensorFlow Datasets alike."""
  settings = config(folder, task, train_length=64, target_length=12)
  loaded = data.load(settings)
  short, long = (loaded.examples(0, length) for length in (64, 512))
  rows = tiny.scrolls_rows(task.split('/')[1], len(short) + 1)
  assert [e.id for e in short] == [e.id for e in long]
  assert [e.id for e in short] == list(dict.fromkeys(r['id'] for r in rows))
  assert short[0].references == ['answer 0', 'answer 1']
  assert [e.references for e in short] == [e.references for e in long]
  assert not any(e.whole for e in short) and all(e.whole for e in long)
  assert text_of(long[3].tokens) == rows[4]['input'] + '\n\nAnswer: '
  cut = rows[4]['input'][: 64 - 12 - 10] + '\n\nAnswer: '
  assert text_of(short[3].tokens) == cut
  assert len(loaded.examples(0, 64, limit=2)) == 2


@pytest.mark.slow
def test_glue_and_superglue_as_one_mixture(folder):
  settings = config(folder, 'glue_superglue', train_length=512)
  loaded = data.load(settings)
  rates = seqio.MixtureRegistry.get('glue_superglue')._task_to_rate
  assert rates['glue_mnli'] == 392_702 and rates['super_glue_cb'] == 250
  assert len(rates) == 15 and 'glue_mnli_mismatched' not in rates
  assert len(loaded.tasks) == 16
  for number, task in enumerate(loaded.tasks):
    examples = loaded.examples(number, 512)
    records = [tiny._glue_record(task.dataset, n) for n in range(6)]
    assert 1 <= len(examples) <= len(records)
    if task.labels:
      assert all(e.references[0] in task.labels for e in examples), task.name
    name = task.name.split('/')[1].split('_')[0]
    assert text_of(examples[0].tokens).startswith(name), task.name


@pytest.mark.parametrize('suite', [scrolls, glue], ids=['scrolls', 'glue'])
def test_fields_are_those_of_the_real_datasets(suite, tmp_path):
  import tensorflow_datasets as tfds

  for task in suite.TASKS.values():
    features = tfds.builder(task.dataset, data_dir=tmp_path).info.features
    for field in task.fields:
      value = features
      for key in field.split('/'):
        assert key in value, (task.name, field)
        value = value[key]
    if task.labels:
      assert tuple(features['label'].names) == task.labels or task.name in (
        # Label words of their own.
        'super_glue/copa',
      )


def test_pictures(folder):
  settings = config(folder, 'imagenet', train_length=506)
  loaded = data.load(settings)
  batch = loaded.training(settings, seed=0).next()
  assert batch['encoder_inputs'].shape == (4, 506)
  rows = batch['encoder_inputs'].reshape(4, 22, 23)
  assert not rows[:, :, 22].any() and rows[:, :, :22].any()
  assert rows.max() < 256
  assert batch['targets'].shape == (4, 1) and not batch['inputs'].any()
  assert {*(batch['targets'].ravel() - 256)} <= {100 * n for n in range(8)}
  found = loaded.evaluation(
    eval_config.EvalConfig((506, 2025), batch_tokens=1, examples=5)
  )
  assert found.tokens == 5
  big = found.batch(2025)
  assert big['encoder_inputs'].shape == (5, 2025)
  np.testing.assert_array_equal(found.batch(506)['targets'], big['targets'])


def test_shapes_of_pictures():
  assert imagenet.Imagenet().shape(506) == (22, 22)
  assert imagenet.Imagenet().shape(2025) == (45, 44)
  assert imagenet.Imagenet(delimiter=False).shape(2025) == (45, 45)
  assert imagenet.Imagenet(rows=4, cols=7).shape(32) == (4, 7)
  with pytest.raises(errors.ConfigError, match='509 tokens .* 1 x 508'):
    imagenet.Imagenet().shape(509)


def test_our_vocabularies_are_those_of_seqio(folder, tmp_path):
  text = 'Tabs\tand  two spaces, 日本語 🙂\n'
  model = tmp_path / 'small.model'
  texts = [tiny.text(n, 3000).encode() for n in range(5)] + [text.encode()] * 9
  vocabulary.train(texts, 300, model)
  for spec in ('bytes', str(model)):
    ours = vocabulary.create(spec)
    theirs = ours.seqio()
    ids = ours.encode([text.encode()])[0]
    assert ids.tolist() == theirs.encode(text)
    assert ids.tolist() == theirs.encode_tf(text).numpy().tolist()
    assert ours.decode(ids) == theirs.decode(ids.tolist()) == text
    assert (theirs.pad_id, theirs.eos_id) == (vocabulary.PAD, vocabulary.END)
    assert theirs.vocab_size == ours.size
  with pytest.raises(errors.CorpusError, match='no vocabulary at .*none'):
    data.load(config(folder, 'c4', vocabulary=str(tmp_path / 'none.model')))


@pytest.mark.parametrize('name', [*TOKENIZERS, 'llama'])
def test_vocabularies_of_others_in_seqio(specs, name):
  ours = vocabulary.create(specs[name])
  theirs = ours.seqio()
  for text in ('A!"  b\n日本語 🙂', '!', ''):
    ids = ours.encode(text)
    assert list(theirs.encode(text)) == ids
    dataset = tf.data.Dataset.from_tensors(text).map(theirs.encode_tf)
    assert dataset.element_spec == tf.TensorSpec([None], tf.int32)
    (found,) = dataset.as_numpy_iterator()
    assert found.tolist() == ids
    assert theirs.decode([*ids, ours.end, *ids]) == text
  assert (theirs.bos_id, theirs.eos_id) == (ours.start, ours.end)
  assert theirs.vocab_size == ours.size
  assert theirs == vocabulary.create(specs[name]).seqio()
  others = [vocabulary.create(s).seqio() for s in specs.values()]
  assert [theirs == other for other in others].count(True) == 1
  assert theirs != seqio.ByteVocabulary() != theirs


def test_tokenizers_decode_in_seqio(specs):
  """What follows the end is padding, as zeros are, though 0 is '!'."""
  ours = vocabulary.create(specs['gpt2'])
  theirs = ours.seqio()
  assert ours.encode('!"') == [0, 1]
  rows = [[*ours.encode(text), ours.end, 0, 0] for text in ('a!', 'é', '""')]
  assert theirs.decode_tf(tf.constant(rows[0])).numpy() == b'a!'
  dataset = tf.data.Dataset.from_tensors(rows).map(theirs.decode_tf)
  assert dataset.element_spec == tf.TensorSpec([3], tf.string)
  (found,) = dataset.as_numpy_iterator()
  assert found.tolist() == [b'a!', 'é'.encode(), b'""']
  assert specs['gpt2'] in str(theirs) and ours.fingerprint in str(theirs)


def test_pieces_of_others_are_those_of_their_tasks(specs):
  theirs = seqio.SentencePieceVocabulary(specs['llama'])
  assert vocabulary.create(specs['llama']).seqio() == theirs


def test_a_task_of_somebody_else(folder, tmp_path, monkeypatch):
  module = types.ModuleType('their_tasks')
  monkeypatch.setitem(sys.modules, 'their_tasks', module)
  name = data.register('c4', path=str(folder))
  seqio.TaskRegistry.remove('theirs')
  seqio.TaskRegistry.add_provider('theirs', seqio.TaskRegistry.get(name))
  settings = config('', 'their_tasks:theirs')
  batch = data.load(settings).training(settings, seed=0).next()
  assert batch['inputs'].shape == (4, 32)
  found = vocabulary.Bytes().seqio()
  other = seqio.ByteVocabulary(extra_ids=4)
  theirs = seqio.TaskRegistry.get('theirs').replace(
    name='others',
    output_features={'targets': seqio.Feature(other)},
  )
  assert theirs.output_features['targets'].vocabulary != found
  seqio.TaskRegistry.remove('others')
  seqio.TaskRegistry.add_provider('others', theirs)
  with pytest.raises(errors.ConfigError, match="data.vocabulary='bytes'"):
    data.load(config('', 'their_tasks:others'))
  with pytest.raises(errors.ConfigError, match='their_tasks:nothing'):
    data.load(config('', 'their_tasks:nothing'))
  with pytest.raises(errors.ConfigError, match='nowhere'):
    data.load(config('', 'nowhere:nothing'))
  source = seqio.FunctionDataSource(
    lambda split, shuffle_files: None, splits=('validation',)
  )
  untrained = seqio.TaskRegistry.get('theirs').replace(source=source)
  seqio.TaskRegistry.remove('untrained')
  seqio.TaskRegistry.add_provider('untrained', untrained)
  with pytest.raises(errors.ConfigError, match="no split 'train', only"):
    settings = config('', 'their_tasks:untrained')
    data.load(settings).training(settings, seed=0)
  (tmp_path / 'broken_tasks.py').write_text('import math\nmath.inff\n')
  monkeypatch.syspath_prepend(tmp_path)
  with pytest.raises(errors.ConfigError, match='AttributeError: .*inff'):
    data.load(config('', 'broken_tasks:nothing'))


@pytest.mark.parametrize(
  'task, needs',
  [
    ('c4', 'en/c4-train.*.json.gz'),
    ('arxiv', 'JSON lines'),
    ('wikitext103', 'wikitext-103-raw-v1.zip'),
    ('enwik8', 'enwik8.zip'),
    ('scrolls/qasper', 'qasper.zip'),
    ('glue_superglue', 'tfds build'),
    ('imagenet', 'ILSVRC2012_img_train.tar'),
  ],
)
def test_missing_data_is_said_without_asking_the_network(
  tmp_path, monkeypatch, task, needs
):
  def refuse(*args, **kwargs):
    raise AssertionError('the network was asked')

  monkeypatch.setattr('socket.socket.connect', refuse)
  with pytest.raises(errors.CorpusError) as raised:
    data.load(config(tmp_path, task))
  message = str(raised.value)
  for part in ('looked in', str(tmp_path), needs, 'configs/stdlib.py'):
    assert part in message


def test_unknown_tasks():
  with pytest.raises(errors.SpecError, match="did you mean 'scrolls/qasper'"):
    data.load(config('', 'scrolls/quasper'))


def test_a_broken_record_is_named(folder, tmp_path):
  for split in ('train', 'validation'):
    lines = [json.dumps({'text': tiny.text(n, 300)}) for n in range(5)]
    lines[3] = lines[3][:-5]
    path = tmp_path / 'c4' / f'c4-{split}.00000-of-00001.json'
    path.parent.mkdir(exist_ok=True)
    path.write_text('\n'.join(lines))
  settings = config(tmp_path, 'c4')
  loaded = data.load(settings)
  with pytest.raises(errors.CorpusError, match='c4-train.*json, line 4: no'):
    take(loaded.training(settings, seed=0), 99)
  with pytest.raises(errors.CorpusError, match='c4-validation.*line 4: no'):
    loaded.evaluation(eval_config.EvalConfig((64,), 1, windows=99))


def test_a_broken_record_that_was_read_ahead_is_named(folder):
  """It was met in the background, before it was asked for."""
  task = seqio.get_mixture_or_task(data.register('c4', path=str(folder)))
  seqio_files.raised[:] = [
    errors.CorpusError('other.json, line 2: no'),
    errors.CorpusError('this.json, line 4: no'),
  ]
  with pytest.raises(errors.CorpusError, match='^this.json, line 4: no$'):
    with stream.original_errors(task):
      raise tf.errors.InvalidArgumentError(
        None, None, 'CorpusError: this.json, line 4: no\nTraceback ...'
      )
  with pytest.raises(errors.CorpusError, match='c4/en is corrupt .*unheard'):
    with stream.original_errors(task):
      raise tf.errors.DataLossError(None, None, 'DATA_LOSS: unheard')
  seqio_files.raised.clear()


def test_tensorflow_datasets_have_their_own_key(tmp_path):
  tiny.write_tfds(tmp_path, 'c4/en:3.1.0', c4_records(4))
  data.load(config(tmp_path, 'c4'))
  with pytest.raises(errors.ConfigError, match='leave text_key out of data.t'):
    data.load(config(tmp_path, "c4(text_key='content')"))


def test_another_schema_is_named(tmp_path):
  rows = [{'id': '1', 'input': 'a', 'answer': 'b'}] * 3
  (tmp_path / 'qasper').mkdir()
  for split in ('train', 'validation'):
    path = tmp_path / 'qasper' / f'{split}.jsonl'
    path.write_text('\n'.join(map(json.dumps, rows)))
  settings = config(tmp_path, 'scrolls/qasper', train_length=256)
  with pytest.raises(errors.CorpusError, match="no 'output'.*'answer'"):
    data.load(settings).examples(0, 256)


@pytest.mark.parametrize('value', [None, 7])
def test_a_record_of_another_kind_is_named(tmp_path, value):
  rows = [{'id': '1', 'input': value, 'output': 'b'}] * 3
  (tmp_path / 'qasper').mkdir()
  for split in ('train', 'validation'):
    path = tmp_path / 'qasper' / f'{split}.jsonl'
    path.write_text('\n'.join(map(json.dumps, rows)))
  settings = config(tmp_path, 'scrolls/qasper', train_length=256)
  with pytest.raises(errors.CorpusError, match="line 1: 'input' must be text"):
    data.load(settings).examples(0, 256)


def test_an_unfinished_dataset_is_missing(tmp_path):
  (tmp_path / 'scrolls' / 'quality' / '1.0.0').mkdir(parents=True)
  with pytest.raises(errors.CorpusError, match='there is no scrolls/quality'):
    data.load(config(tmp_path, 'scrolls/quality'))


def test_a_damaged_dataset_is_named(tmp_path):
  rows = tiny.scrolls_rows('qmsum', 4)
  tiny.write_tfds(
    tmp_path, 'scrolls/qmsum:1.0.0', {'train': rows, 'validation': rows}
  )
  for path in pathlib.Path(tmp_path).rglob('*.tfrecord*'):
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)
  settings = config(tmp_path, 'scrolls/qmsum', train_length=600)
  folder = 'scrolls/qmsum/1.0.0 is corrupt .*prepare it again'
  with pytest.raises(errors.CorpusError, match=folder):
    data.load(settings).examples(0, 600)


def test_an_empty_split_is_named(tmp_path):
  (tmp_path / 'qasper').mkdir()
  for split in ('train', 'validation'):
    (tmp_path / 'qasper' / f'{split}.jsonl').write_text('')
  settings = config(tmp_path, 'scrolls/qasper', train_length=256)
  loaded = data.load(settings)
  for read in (
    lambda: loaded.examples(0, 256),
    lambda: loaded.training(settings, seed=0).next(),
  ):
    with pytest.raises(errors.CorpusError, match='qasper .*is empty'):
      read()


def test_no_window_is_long_enough(folder):
  settings = config(folder, 'c4', train_length=5000)
  with pytest.raises(errors.CorpusError, match='no row for host 0 of 1'):
    data.load(settings).training(settings, seed=0).next()


def test_no_room_for_a_prompt(folder):
  settings = config(folder, 'scrolls/qasper', train_length=64)
  loaded = data.load(settings)
  with pytest.raises(errors.ConfigError, match='target_length=128'):
    loaded.training(settings, seed=0)
  settings = config(folder, 'scrolls/qasper', target_length=60)
  with pytest.raises(errors.ConfigError, match='separator of 10 tokens'):
    data.load(settings).examples(0, 64)


def test_prompts_that_cannot_be_tested_stop_a_training_before(folder, tmp_path):
  settings = scrolls_config.get_config('qasper,tiny')
  settings.data.raw, settings.train.init_from = str(folder), ''
  settings.train.steps = 0
  settings.eval.lengths = (8, 64)
  with pytest.raises(errors.ConfigError, match='rows of 8 tokens are too'):
    loop.train(settings, tmp_path / 'run')
  assert not (tmp_path / 'run').exists()
  settings.eval.lengths = (64,)
  loop.train(settings, tmp_path / 'run')


@pytest.fixture
def prompts(monkeypatch):
  """Prompts of three rows, two of which are one example."""
  rows = [
    {
      'id': key,
      'targets_pretokenized': answer,
      'inputs': np.zeros(3, np.int32),
      'inputs_size': 2,
    }
    for key, answer in ((b'1', b'a'), (b'2', b'b'), (b'1', b'c'))
  ]
  dataset = types.SimpleNamespace(as_numpy_iterator=lambda: iter(rows))
  monkeypatch.setattr(stream, 'read', lambda *_, **__: dataset)
  found = object.__new__(seqio_prompts.Prompts)
  found._tasks, found.target_lengths = [None], [4]
  found._vocab = vocabulary.Bytes()
  found._config = types.SimpleNamespace(separator='\n')
  return found


def test_a_limit_keeps_all_references(prompts):
  (one,) = prompts.examples(0, 8, limit=1)
  assert one.references == ['a', 'c'] and one.whole


def test_an_answer_leaves_room_for_a_prompt(prompts):
  with pytest.raises(errors.ConfigError, match='rows of 4 tokens are too'):
    prompts.examples(0, 4)


def test_other_sizes_of_files_are_other_data(tmp_path):
  path = tmp_path / 'train.txt'
  source = types.SimpleNamespace(list_shards=lambda split: [str(path)])
  task = types.SimpleNamespace(name='own', splits=['train'], source=source)
  found = set()
  for text in ('a', 'ab'):
    path.write_text(text)
    config = types.SimpleNamespace(task='own')
    found.add(stream.info(config, task, 'bytes')['sha256'])
  assert len(found) == 2


def test_tensorflow_leaves_the_gpu_alone():
  assert not tf.config.get_visible_devices('GPU')
