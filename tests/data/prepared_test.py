"""Tests `lengen_jax/data/prepared.py`: grain, hosts, resuming, evaluation."""

import collections
import gc
import json
import math
import os
import pathlib
import resource
import sys

from array_record.python import array_record_data_source
import numpy as np
import pytest

from lengen_jax import data, errors
from lengen_jax.data import manifest as manifest_lib
from lengen_jax.data import prepare, prepared, vocabulary, windows
from lengen_jax.evaluation import config as eval_config
from tests.data import tiny

LENGTH, LONGEST = 16, 64


def config(folder, **fields):
  fields = dict(train_length=LENGTH, batch_size=8, mode='doc_pad') | fields
  fields = dict(task='lm', path=str(folder)) | fields
  return data.DataConfig(source='prepared', **fields)


def write(folder, shard_tokens=300, documents=40, size=100, **fields):
  """Prepares text in small files."""
  raw = folder / 'raw'
  raw.mkdir(exist_ok=True)
  for name, first, count in (('train', 0, documents), ('valid', 1000, 8)):
    lines = [
      json.dumps({'text': tiny.text(seed, size + seed % 7)})
      for seed in range(first, first + count)
    ]
    (raw / f'{name}.jsonl').write_text('\n'.join(lines))
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(prepare, '_SHARD_TOKENS', shard_tokens)
    patch.setattr(prepare, '_GROUP', 1)
    settings = config(folder / 'out', **fields)
    prepare.prepare(settings, raw=str(raw), longest=LONGEST)
  return folder / 'out'


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """Windows in some ten files, the last ones of documents padded."""
  return write(tmp_path_factory.mktemp('prepared'))


def load(folder, longest=LONGEST, **fields):
  return data.load(config(folder, **fields), longest)


def training(folder, seed=0, host=(0, 1), **fields):
  settings = config(folder, **fields)
  return data.load(settings, LONGEST).training(settings, seed=seed, host=host)


def rows(batch):
  """Each row as bytes."""
  return [
    inputs.tobytes() + targets.tobytes()
    for inputs, targets in zip(batch['inputs'], batch['targets'], strict=True)
  ]


def assert_equal(got, want):
  assert got.keys() == want.keys()
  for key in want:
    np.testing.assert_array_equal(got[key], want[key])


def written(folder):
  """All training windows as rows, in the order of the files."""
  manifest = manifest_lib.read(folder)
  files = manifest_lib.shards(folder, manifest, 'train')
  assert len(files) > 5
  source = array_record_data_source.ArrayRecordDataSource(
    [str(path) for path, _ in files]
  )
  found = [np.frombuffer(record, '<u2') for record in source]
  return windows.lm_batch(*windows.pad(found, LENGTH))


def test_every_epoch_has_every_window_once(folder):
  want = collections.Counter(rows(written(folder)))
  count = want.total()
  assert count % 5
  batches = training(folder, batch_size=5)
  found = []
  while len(found) < 3 * count:
    found += rows(batches.next())
  epochs = [found[n * count : (n + 1) * count] for n in range(3)]
  for epoch in epochs:
    assert collections.Counter(epoch) == want
  assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
  # Nor is it the order of the files.
  assert epochs[0] != rows(written(folder))


def test_all_tokens_are_scored_in_an_epoch(folder):
  tokens = load(folder).info['tokens']['train']
  assert written(folder)['weights'].sum() == tokens


def test_a_batch_is_a_function_of_seed_and_index(folder):
  batches = training(folder)
  forward = [batches.next() for _ in range(9)]
  again = training(folder)
  for index in reversed(range(9)):
    assert_equal(again.batch(index), forward[index])
  others = [
    rows(training(folder, seed=seed).batch(0)) for seed in (0, 1, 2, 2**40)
  ]
  assert len(set(map(tuple, others))) == 4
  # The next epoch of a seed is not the first of the next.
  epoch = len(rows(written(folder)))
  first, second = (training(folder, s, batch_size=epoch) for s in (0, 1))
  assert rows(first.batch(1)) != rows(second.batch(0))


def test_padding(folder):
  batch = training(folder, batch_size=64).next()
  assert batch['inputs'].shape == (64, LENGTH)
  real = batch['weights'] == 1
  assert 0 < real.sum() < real.size
  np.testing.assert_array_equal(real, batch['targets'] > 0)
  assert training(folder).padded


def test_whole_windows_are_not_padded(tmp_path):
  out = write(tmp_path, mode='concat')
  batches = training(out, mode='concat')
  assert not batches.padded
  assert (batches.next()['weights'] == 1).all()


@pytest.mark.parametrize('hosts', [1, 2, 4, 8])
def test_hosts_have_each_row_once(folder, hosts):
  """Their parts, one below the other, are the batch of a single host."""
  single = training(folder)
  parts = [training(folder, host=(h, hosts)) for h in range(hosts)]
  for _ in range(5):
    want, found = single.next(), [part.next() for part in parts]
    assert all(len(part['weights']) == 8 // hosts for part in found)
    joined = {
      key: np.concatenate([part[key] for part in found]) for key in want
    }
    assert_equal(joined, want)


def test_hosts_that_do_not_divide_a_batch(folder):
  with pytest.raises(errors.ConfigError, match='batch_size=8 .* 3 hosts'):
    training(folder, host=(0, 3))


@pytest.mark.parametrize('hosts', [1, 2, 8])
@pytest.mark.parametrize('steps', [0, 1, 40])
def test_goes_on_as_if_never_stopped(folder, tmp_path, steps, hosts):
  """On any number of hosts, bit for bit; what was read ahead does not count."""
  batches = training(folder)
  for _ in range(steps):
    batches.next()
  batches.save(tmp_path)
  assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 64
  later = [training(folder, host=(host, hosts)) for host in range(hosts)]
  for part in later:
    part.next()
    part.restore(tmp_path)
  for _ in range(4):
    want, found = batches.next(), [part.next() for part in later]
    assert_equal(
      {key: np.concatenate([part[key] for part in found]) for key in want}, want
    )


def evaluation(folder, lengths, count=4):
  settings = eval_config.EvalConfig(lengths, batch_tokens=64, windows=count)
  return load(folder, max(lengths)).evaluation(settings)


def test_evaluation_scores_the_same_tokens_at_every_length(folder):
  found = evaluation(folder, (8, 16, 32, 64))
  texts = found.texts()
  assert len(texts) == 4 and all(len(text) == LONGEST for text in texts)
  for length in found.lengths:
    tokens = found.examples(length)
    assert tokens.shape == (4 * LONGEST // length, length + 1)
    assert sorted(tokens[:, 1:].ravel()) == sorted(found.scored.ravel())
    assert found.batch(length)['weights'].all()
  assert found.bytes_per_token == 1
  # The first of all, as where text is read straight from its source.
  everything = evaluation(folder, (8, 64), count=8).texts()
  assert texts == everything[:4]


def test_evaluation_up_to_a_shorter_length(folder):
  """What was written serves: its windows are cut, predecessors kept."""
  long = evaluation(folder, (64,), count=8)
  short = evaluation(folder, (8, 16), count=32)
  np.testing.assert_array_equal(
    short.scored.reshape(8, LONGEST), long.scored.reshape(8, LONGEST)
  )
  np.testing.assert_array_equal(
    short.batch(16)['inputs'].reshape(8, LONGEST), long.batch(64)['inputs']
  )
  some = evaluation(folder, (16,), count=3)
  assert some.texts() == short.texts()[:3]
  # A length that divides nothing.
  odd = evaluation(folder, (24,), count=16)
  assert odd.texts()[:2] == [long.texts()[0][:24], long.texts()[0][24:48]]


def test_too_few_windows(folder):
  with pytest.raises(errors.CorpusError, match='8 windows of 64 .*windows=9'):
    evaluation(folder, (64,), count=9)
  with pytest.raises(errors.CorpusError, match='32 windows of 16 .*windows=33'):
    evaluation(folder, (16,), count=33)
  with pytest.raises(errors.CorpusError, match=r'\d+ windows, .*size=9999'):
    training(folder, batch_size=9999)


def test_a_model_without_context_has_a_flat_curve(folder):
  """Only context may move a curve: bigram loss is equal at every length."""
  pairs, singles = collections.Counter(), collections.Counter()
  batch = written(folder)
  real = batch['weights'] == 1
  both = [batch[key][real].tolist() for key in ('inputs', 'targets')]
  pairs.update(zip(*both, strict=True))
  singles.update(both[0])
  found = evaluation(folder, (1, 8, 16, 32, 64), count=8)

  def loss(length):
    batch = found.batch(length)
    losses = [
      math.log((singles[a] + 259) / (pairs[a, b] + 1))
      for a, b in zip(batch['inputs'].flat, batch['targets'].flat, strict=True)
    ]
    return np.mean(losses)

  losses = [loss(length) for length in found.lengths]
  assert 1 < losses[0] < 4
  np.testing.assert_allclose(losses, losses[0], rtol=0, atol=1e-6)


def test_what_results_record(folder, tmp_path):
  info = load(folder).info
  assert info['source'] == 'prepared lm'
  assert info['vocabulary'] == 'bytes_plus_3'
  assert info['mode'] == 'doc_pad'
  assert info['documents'] == {'validation': 8, 'train': 40}
  for split in ('train', 'validation'):
    assert info['tokens'][split] == sum(
      info[key][split] for key in ('scored', 'left_out')
    )
  json.dumps(info)
  # The same text from another place is the same; other text is not.
  same, other = tmp_path / 'same', tmp_path / 'other'
  same.mkdir()
  other.mkdir()
  assert load(write(same)).info == info
  assert load(write(other, size=101)).info['sha256'] != info['sha256']
  assert load(folder).vocab_size == 259


CHANGES = [
  (dict(task='c4'), "data.task: 'lm' there, 'c4' here"),
  (dict(mode='concat'), "data.mode: 'doc_pad' there, 'concat' here"),
  (
    dict(train_length=32),
    'data.train_length or data.source_length: 16 there, 32 here',
  ),
  (dict(longest=128), 'the longest of eval.lengths: 64 there, 128 here'),
]


@pytest.mark.parametrize('change, reason', CHANGES)
def test_a_folder_of_other_windows(folder, change, reason):
  with pytest.raises(
    errors.CorpusError,
    match=rf'out contains other data \({reason}\); set data.pa',
  ):
    load(folder, **change)


def test_another_vocabulary(folder, monkeypatch):
  monkeypatch.setattr(
    vocabulary, 'create', lambda spec: vocabulary.Bytes(offset=4)
  )
  with pytest.raises(
    errors.CorpusError, match="'bytes_plus_3' there, 'bytes_plus_4' here"
  ):
    load(folder)


def test_where_nothing_is_evaluated(folder):
  assert load(folder, longest=None).vocab_size == 259


def test_folders_that_are_not_there_or_not_finished(tmp_path):
  with pytest.raises(errors.CorpusError, match='no prepared data .*prepare'):
    load(tmp_path / 'nothing')
  out = write(tmp_path)
  (out / 'manifest.json').rename(out / 'state.json')
  with pytest.raises(
    errors.CorpusError, match='incomplete; run lengen prepare to resume'
  ):
    load(out)


@pytest.mark.parametrize('what', ['is missing', 'has 5 bytes'])
def test_files_that_are_missing_or_cut_short(tmp_path, what):
  out = write(tmp_path)
  path = out / 'train' / '00003.array_record'
  path.unlink()
  if what != 'is missing':
    path.write_bytes(b'short')
  with pytest.raises(
    errors.CorpusError,
    match=rf'train/00003\.array_record {what}; the manifest has \d+ bytes .*'
    'copy the file again, or delete',
  ):
    load(out)


def damage(path, first, last):
  content = bytearray(path.read_bytes())
  for at in range(first, last):
    content[at] ^= 255
  path.write_bytes(content)


def test_a_record_that_cannot_be_read(tmp_path):
  """It is named when a batch asks for it, and asking again does not hang."""
  out = write(tmp_path)
  path = out / 'train' / '00002.array_record'
  damage(path, 700, 720)
  source = array_record_data_source.ArrayRecordDataSource([str(path)])
  broken = []
  for number in range(len(source)):
    try:
      source[number]
    except RuntimeError:
      broken.append(number)
  assert broken and len(broken) < len(source)
  named = rf'00002\.array_record: record ({"|".join(map(str, broken))}) cannot'
  batches = training(out)
  with pytest.raises(
    errors.CorpusError, match=f'{named} be read .* copy the file'
  ):
    for _ in range(100):
      batches.next()
  for _ in range(2):
    with pytest.raises(errors.CorpusError, match=named):
      batches.next()
  # What comes before it is as of the whole file.
  again, good = training(out), 0
  with pytest.raises(errors.CorpusError, match=named):
    while True:
      again.batch(good)
      good += 1
  again.save(tmp_path)
  assert json.loads((tmp_path / 'next.json').read_text()) == {'next_index': 0}
  batches.save(tmp_path)
  assert json.loads((tmp_path / 'next.json').read_text()) == {
    'next_index': good
  }


def test_a_file_that_cannot_be_opened(tmp_path):
  out = write(tmp_path)
  path = out / 'train' / '00002.array_record'
  damage(path, 0, path.stat().st_size)
  with pytest.raises(
    errors.CorpusError, match='cannot open the files in .*train: .*prepare'
  ):
    training(out)


def test_files_with_other_windows_than_the_manifest_says(tmp_path):
  out = write(tmp_path)
  manifest = json.loads((out / 'manifest.json').read_text())
  manifest['splits']['train']['shards'][0]['records'] += 1
  (out / 'manifest.json').write_text(json.dumps(manifest))
  with pytest.raises(
    errors.CorpusError, match=r'contains \d+ windows, the mani'
  ):
    training(out)


@pytest.mark.slow
def test_more_files_than_a_process_may_open_at_first(tmp_path):
  out = write(tmp_path, shard_tokens=1, documents=90)
  assert len(list((out / 'train').iterdir())) == 90
  limits = resource.getrlimit(resource.RLIMIT_NOFILE)
  gc.collect()
  try:
    few = len(os.listdir('/dev/fd')) + 40
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, limits[1]))
    batches = training(out, batch_size=64)
    for _ in range(12):
      batches.next()
  finally:
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize(
  'module', ['grain', 'array_record.python.array_record_data_source']
)
def test_packages_that_are_missing(folder, monkeypatch, module):
  monkeypatch.setitem(sys.modules, module, None)
  with pytest.raises(
    errors.CorpusError, match=r'reading prepared data needs .*lengen_jax\[data'
  ):
    training(folder)


def test_the_first_record_of_a_file_is_named():
  records = object.__new__(prepared._Records)
  records._paths = [pathlib.Path(name) for name in 'ab']
  records._starts, records._source = [0, 5, 9], {}
  with pytest.raises(errors.CorpusError, match='^b: record 0 cannot'):
    records._read_one(5)
