"""Tests `lengen_jax/data/sources.py` and `paths.py`."""

import gzip
import itertools
import json
import pathlib
import sys
import zipfile

import pyarrow
from pyarrow import parquet
import pytest
import zstandard

from lengen_jax import errors
from lengen_jax.data import paths, readers, remote, sources
from tests.data import tiny


def read(spec, path, split):
  """Documents of a split, as text."""
  source = sources.create(spec)
  return [
    document.decode()
    for part in source.parts(str(path), split)
    for document in source.read(part)
  ]


def write(path, records):
  """A file of JSON lines, packed as its name says."""
  path.parent.mkdir(parents=True, exist_ok=True)
  content = ''.join(json.dumps(record) + '\n' for record in records).encode()
  if path.suffix == '.gz':
    content = gzip.compress(content)
  if path.suffix == '.zst':
    content = zstandard.ZstdCompressor().compress(content)
  path.write_bytes(content)


def texts(count, word='document'):
  return [f'{word} {n}' for n in range(count)]


def records(count, word='document', **more):
  return [{'text': text, **more} for text in texts(count, word)]


def check_splits(spec, path, everything):
  """Splits are disjoint, and nothing is in none of them."""
  found = {split: read(spec, path, split) for split in sources.SPLITS}
  assert sorted(itertools.chain(*found.values())) == sorted(everything)
  assert len(set(everything)) == len(everything)
  return found


def test_c4(tmp_path):
  tiny.write_c4(tmp_path, files=3, documents=5)
  assert len(read('c4', tmp_path, 'train')) == 15
  assert len(read('c4', tmp_path, 'validation')) == 5
  # As fetched by hand: in no folder of that name; one file.
  folder = tmp_path / 'c4' / 'en'
  assert len(read('c4', folder, 'train')) == 15
  with pytest.raises(errors.CorpusError, match='no c4 .*, split test; looked'):
    read('c4', tmp_path, 'test')


def test_c4_is_english_web_text_and_nothing_beside_it(tmp_path):
  tiny.write_c4(tmp_path, files=1, documents=5)
  own = read('c4', tmp_path, 'train')
  for name in (
    'multilingual/c4-de.tfrecord-00000-of-00010.json.gz',
    'realnewslike/c4-train.00000-of-00512.json.gz',
    'en.noblocklist/c4-train.00000-of-01024.json.gz',
    'dataset_info.json',
  ):
    write(tmp_path / 'c4' / name, records(3))
  assert read('c4', tmp_path, 'train') == own


def test_what_tensorflow_datasets_prepared(tmp_path):
  """Found by the names of its files; its own JSON is no text."""
  folder = tmp_path / 'c4' / 'en' / '3.1.0'
  write(folder / 'dataset_info.json', [{'name': 'c4'}])
  (folder / 'c4-train.tfrecord-00000-of-00001').write_text('')
  found = sources.create('c4').parts(str(tmp_path), 'train')
  assert found == [sources.Part(str(folder), dataset='c4/en:3.1.0@train')]
  with pytest.raises(errors.CorpusError, match='c4/en/3.1.0'):
    read('c4', tmp_path, 'validation')


@pytest.mark.parametrize(
  'task, name', [('arxiv', 'ArXiv'), ('github', 'Github')]
)
def test_the_pile(tmp_path, task, name):
  tiny.write_pile(tmp_path, documents=12)
  sizes = [len(read(task, tmp_path, split)) for split in sources.SPLITS]
  assert sizes == [8, 4, 4]
  found = read(task, tmp_path, 'train')
  assert all(text.startswith(f'{name} ') for text in found)


@pytest.mark.parametrize(
  'keys',
  [
    lambda name: {'meta': {'arxiv_id': '1'}, 'red_pajama_subset': name},
    lambda name: {'meta': {'pile_set_name': name}},
    lambda name: {
      'meta': {
        'redpajama_set_name': {
          'arxiv': 'RedPajamaArXiv',
          'github': 'RedPajamaGithub',
        }.get(name, 'RedPajamaC4')
      }
    },
  ],
  ids=['RedPajama', 'Pile', 'SlimPajama'],
)
def test_sets_that_are_mixed(tmp_path, keys):
  mixed = []
  for number, name in enumerate(('arxiv', 'other', 'github') * 4):
    # The Pile's own names.
    more = keys(name)
    if more.get('meta', {}).get('pile_set_name'):
      pile = {'arxiv': 'ArXiv', 'github': 'Github', 'other': 'Enron Emails'}
      more = {'meta': {'pile_set_name': pile[name]}}
    mixed.append({'text': f'{name} {number}', **more})
  write(tmp_path / 'train.jsonl.zst', mixed)
  write(tmp_path / 'validation' / '0.jsonl.gz', mixed)
  for task, first in (('arxiv', 0), ('github', 2)):
    want = [f'{task} {n}' for n in range(first, 12, 3)]
    assert read(task, tmp_path, 'train') == want
    assert read(task, tmp_path, 'validation') == want


def test_the_stack(tmp_path):
  """Parquet of the training split alone, the text under another key."""
  rows = [{'content': f'x = {n}\n', 'lang': 'py'} for n in range(900)]
  folder = tmp_path / 'github' / 'data' / 'python'
  folder.mkdir(parents=True)
  for number in range(3):
    table = pyarrow.Table.from_pylist(rows[number::3])
    parquet.write_table(table, folder / f'train-{number:05}-of-00003.parquet')
  found = check_splits('github', tmp_path, [row['content'] for row in rows])
  assert all(found.values())


def test_splits_by_hash(tmp_path):
  """They do not depend on names, order or packing, nor on a run."""
  everything = texts(2000)
  write(tmp_path / 'a' / 'x.jsonl', records(2000))
  found = check_splits('lm', tmp_path / 'a', everything)
  assert [len(found[split]) for split in sources.SPLITS] == [1981, 7, 12]
  assert found['validation'][:2] == ['document 209', 'document 1149']
  turned = records(2000)[::-1]
  write(tmp_path / 'b' / 'one.json.gz', turned[:700])
  write(tmp_path / 'b' / 'two.jsonl.zst', turned[700:])
  again = check_splits('lm', tmp_path / 'b', everything)
  assert {split: sorted(found[split]) for split in found} == {
    split: sorted(again[split]) for split in again
  }


@pytest.mark.parametrize(
  'names, sizes',
  [
    (('train', 'valid', 'test'), (400, 400, 400)),
    (('train-00', 'part', 'dev'), (800, 400, 0)),
    (('training/0', 'val/0', 'val/1'), (400, 800, 0)),
    # The name of a file counts before that of its folder.
    (('eval/train', 'eval/dev', 'train-0/test'), (400, 400, 400)),
    # Without one for validation, documents of training files are held out.
    (('train', 'train_1', 'test'), (792, 1, 407)),
    (('0', '1', '2'), (1186, 3, 11)),
  ],
)
def test_splits_by_the_names_of_files(tmp_path, names, sizes):
  everything = texts(1200)
  for number, name in enumerate(names):
    part = records(1200)[400 * number : 400 * (number + 1)]
    write(tmp_path / 'arxiv' / f'{name}.jsonl', part)
  found = {}
  for split, size in zip(sources.SPLITS, sizes, strict=True):
    if size:
      found[split] = read('arxiv', tmp_path, split)
    else:
      with pytest.raises(errors.CorpusError, match=f'split {split}'):
        read('arxiv', tmp_path, split)
  assert sorted(itertools.chain(*found.values())) == sorted(everything)
  assert tuple(len(found.get(split, ())) for split in sources.SPLITS) == sizes


def test_all_splits_come_out_of_one_folder(tmp_path):
  """A split that a source lacks is not taken from what lies beside it."""
  for name in ('arxiv/train', 'arxiv/valid', 'github/test'):
    write(tmp_path / f'{name}.jsonl', records(3, name))
  assert read('arxiv', tmp_path, 'train') == texts(3, 'arxiv/train')
  with pytest.raises(errors.CorpusError, match='no arxiv .*, split test'):
    read('arxiv', tmp_path, 'test')


def test_sources_in_a_bucket(tmp_path, monkeypatch):
  """Each in a folder of its name, which is not searched for another source."""
  write(tmp_path / 'c4' / 'c4-train.json', records(3, 'web'))
  write(tmp_path / 'github' / 'train.jsonl', records(3, 'code'))
  bucket = f'mem:/{tmp_path}'

  def files(folder):
    found = pathlib.Path(folder.removeprefix('mem:/')).rglob('*.json*')
    return [f'mem:/{path}' for path in sorted(found)]

  monkeypatch.setattr(remote, 'files', files)
  (part,) = sources.create('github').parts(bucket, 'train')
  assert part.path == f'{bucket}/github/train.jsonl'
  with pytest.raises(errors.CorpusError, match=f'{bucket}/arxiv, {bucket}'):
    sources.create('arxiv').parts(bucket, 'train')


def test_prompts_in_a_bucket():
  with pytest.raises(errors.ConfigError, match='local folder only, not gs://'):
    paths.data_folder('gs://bucket/data')


def test_folders_may_come_from_the_environment(tmp_path, monkeypatch):
  """It holds all sources, each in a folder of its name."""
  write(tmp_path / 'arxiv' / 'train.jsonl', records(3))
  monkeypatch.setenv('LENGEN_DATA_DIR', str(tmp_path))
  assert len(read('arxiv', '', 'train')) == 3
  with pytest.raises(errors.CorpusError, match='no github'):
    read('github', '', 'train')


def test_text_under_other_keys(tmp_path):
  rows = [{'body': {'de': f'eins {n}'}, 'id': n} for n in range(3)]
  write(tmp_path / 'train.jsonl', rows)
  write(tmp_path / 'valid.jsonl', rows)
  assert read("lm(text_key='body.de')", tmp_path, 'train') == [
    'eins 0',
    'eins 1',
    'eins 2',
  ]
  with pytest.raises(
    errors.CorpusError,
    match=r"train\.jsonl, line 1: .* no 'text'; it has 'body', 'id'; name the "
    r"key .*data\.task=\"lm\(text_key='KEY'\)\"",
  ):
    read('lm', tmp_path, 'train')
  with pytest.raises(
    errors.CorpusError, match="'id' must be text, got int; correct"
  ):
    read("arxiv(text_key='id')", tmp_path, 'train')


def test_a_folder_of_plain_files(tmp_path):
  """Each is a document; a folder called test says nothing."""
  for number in range(600):
    path = tmp_path / ('test' if number % 2 else 'src') / f'{number}.py'
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'x = {number}\n')
  (tmp_path / 'src' / 'empty.py').write_text('')
  (tmp_path / 'src' / 'eval.py').write_text('pass')
  (tmp_path / 'README.md').write_text('# Title')
  everything = [f'x = {number}\n' for number in range(600)] + ['pass']
  found = check_splits("lm(pattern='*.py')", tmp_path, everything)
  assert len(found['train']) > 580 and found['validation'] and found['test']
  check_splits('lm', tmp_path, everything + ['# Title'])


def test_text_files_that_name_their_split(tmp_path):
  for name in ('ptb.train.txt', 'ptb.valid.txt', 'test.txt', 'latest.txt'):
    (tmp_path / name).write_text(name)
  with gzip.open(tmp_path / 'dev.txt.gz', 'wt') as file:
    file.write('dev.txt')
  assert [read('lm', tmp_path, split) for split in sources.SPLITS] == [
    ['latest.txt', 'ptb.train.txt'],
    ['dev.txt', 'ptb.valid.txt'],
    ['test.txt'],
  ]


def test_a_file_alone_may_name_its_split(tmp_path):
  """A zip, too; the folder that it is in does not."""
  folder = tmp_path / 'train' / 'deep'
  folder.mkdir(parents=True)
  (folder / 'valid.txt').write_text('text')
  write(folder / 'dev.jsonl', records(3))
  with zipfile.ZipFile(folder / 'val.zip', 'w') as archive:
    archive.write(folder / 'dev.jsonl', 'part.jsonl')
  for name, found in (
    ('valid.txt', ['text']),
    ('dev.jsonl', texts(3)),
    ('val.zip', texts(3)),
  ):
    assert read('lm', folder / name, 'validation') == found
    with pytest.raises(errors.CorpusError, match='split train'):
      read('lm', folder / name, 'train')


def test_lines_of_other_names(tmp_path):
  for name in ('train', 'valid'):
    write(tmp_path / f'{name}.ndjson', records(3, name))
  assert read('lm', tmp_path, 'train') == texts(3, 'train')


@pytest.mark.parametrize(
  'name', ['train.jsonl.xz', 'train.tar.gz', 'a.7z', 'a.tar.zst']
)
def test_compression_that_is_not_supported(tmp_path, name):
  (tmp_path / name).write_bytes(b'packed')
  (tmp_path / 'valid.txt').write_text('text')
  with pytest.raises(
    errors.CorpusError, match=f'{name} is compressed .* not supported; unpack'
  ):
    read('lm', tmp_path, 'train')
  assert read("lm(pattern='*.txt')", tmp_path, 'validation') == ['text']


def test_an_archive_within_an_archive(tmp_path):
  with zipfile.ZipFile(tmp_path / 'a.zip', 'w') as archive:
    archive.writestr('train.zip', b'packed')
  with pytest.raises(errors.CorpusError, match='train.zip is compressed'):
    read('lm', tmp_path, 'train')


def test_records_compressed_in_another_way(tmp_path):
  write(tmp_path / 'train.jsonl', records(3, 'train'))
  (tmp_path / 'more.jsonl.xz').write_bytes(b'packed')
  with pytest.raises(errors.CorpusError, match='more.jsonl.xz is compressed'):
    read('arxiv', tmp_path, 'train')


def test_c4_in_a_folder_named_like_another_corpus(tmp_path):
  folder = tmp_path / 'multilingual' / 'c4'
  (folder / 'en').mkdir(parents=True)
  write(folder / 'en' / 'c4-train.0.json', records(3, 'train'))
  write(folder / 'en' / 'c4-validation.0.json', records(1, 'validation'))
  found = sources.create('c4').parts(str(tmp_path / 'multilingual'), 'train')
  assert len(found) == 1


def test_bytes_are_kept(tmp_path):
  """Plain files need not be UTF-8, and strings may hold half a character."""
  (tmp_path / 'train.txt').write_bytes(b'\xff\x00a\r\n')
  write(tmp_path / 'valid.jsonl', [{'text': '\ud800'}])
  source = sources.create('lm')
  found = [
    list(source.read(part))
    for split in ('train', 'validation')
    for part in source.parts(str(tmp_path), split)
  ]
  assert found == [[b'\xff\x00a\r\n'], [b'\xed\xa0\x80']]


def test_wikitext103(tmp_path):
  tiny.write_wikitext(tmp_path, articles=7)
  with zipfile.ZipFile(tmp_path / 'wikitext-103-raw-v1.zip') as archive:
    raw = {
      split: archive.read(f'wikitext-103-raw/wiki.{name}.raw').decode()
      for split, name in zip(
        sources.SPLITS, ('train', 'valid', 'test'), strict=True
      )
    }
  for split, content in raw.items():
    found = read('wikitext103', tmp_path, split)
    assert ''.join(found) == content
    assert len(found) == 7
    for number, article in enumerate(found):
      assert article.count(f' = Article {number} = \n') == 1
      assert article.count(' = = Section = = \n') == 1
  # Unpacked beside the zip, it is not read twice.
  folder = tmp_path / 'wikitext-103-raw'
  folder.mkdir()
  (folder / 'wiki.train.raw').write_text(raw['train'])
  assert ''.join(read('wikitext103', tmp_path, 'train')) == raw['train']
  with pytest.raises(errors.CorpusError, match='variant tokens'):
    read("wikitext103(variant='tokens')", tmp_path, 'train')
  folder = tmp_path / 'wikitext103'
  folder.mkdir()
  (folder / 'wiki.valid.tokens').write_text(' \n = <unk> = \n \n a')
  found = read("wikitext103(variant='tokens')", tmp_path, 'validation')
  assert found == [' \n = <unk> = \n \n a']
  with pytest.raises(errors.SpecError, match="'tok'; did you mean 'tokens'"):
    sources.create("wikitext103(variant='tok')")


@pytest.mark.parametrize(
  'lines, articles',
  [
    (' = A = \n \n a \n \n = B = C = \n b\n', 2),
    (' \n = A = \n \n = = S = = \n \n = = = T = = = \n \n a', 1),
    (' \n \n', 1),
    ('', 0),
    # A formula within a paragraph.
    (' = A = \n \n a \n = b = \n c \n', 1),
    (' = A = \n \n x = y \n \n = = \n \n a = \n \n = z \n', 1),
    # Odd ends of lines stay in the text.
    (' = A = \r\n \r\n a\x0cb\x1c\u2028c \r\n', 1),
  ],
)
def test_headings_of_articles(tmp_path, lines, articles):
  (tmp_path / 'wiki.train.raw').write_bytes(lines.encode())
  found = read('wikitext103', tmp_path, 'train')
  assert len(found) == articles
  assert ''.join(found) == lines


@pytest.mark.parametrize('packed', [True, False])
def test_enwik8(tmp_path, packed):
  tiny.write_enwik8(tmp_path, size=20_000)
  if not packed:
    with zipfile.ZipFile(tmp_path / 'enwik8.zip') as archive:
      archive.extract('enwik8', tmp_path)
  source = sources.create('enwik8')
  found = [
    b''.join(source.read(part))
    for split in sources.SPLITS
    for part in source.parts(str(tmp_path), split)
  ]
  assert [len(text) for text in found] == [18_000, 1_000, 1_000]
  with zipfile.ZipFile(tmp_path / 'enwik8.zip') as archive:
    assert b''.join(found) == archive.read('enwik8')


@pytest.mark.parametrize('length', [1, 30, 31, 100, 10**6])
@pytest.mark.parametrize('end', ['', '\n', '\n\n'])
def test_parts_of_a_file(tmp_path, length, end):
  """Every line is in one of them, and keeps its number."""
  write(tmp_path / 'train.jsonl', records(9))
  content = (tmp_path / 'train.jsonl').read_text()
  (tmp_path / 'train.jsonl').write_text(content[:-1] + end)
  source = sources.create('lm')
  [part] = source.parts(str(tmp_path), 'train')
  divided = list(part.divided(length))
  found = [[*source.read(one)] for one in divided]
  assert sum(found, []) == [*source.read(part)]
  if length < 100:
    assert len(found) > 4
  seen = [
    where
    for one in divided
    for where, _ in readers.all_records(part.path, one.span)
  ]
  assert seen == [f'line {n}' for n in range(1, 10)]


def test_parts_that_are_not_divided(tmp_path):
  for name in ('train.jsonl.gz', 'train.txt', 'train_1.jsonl.zst'):
    write(tmp_path / name, records(9))
  write(tmp_path / 'in.jsonl', records(9))
  with zipfile.ZipFile(tmp_path / 'z.zip', 'w') as archive:
    archive.write(tmp_path / 'in.jsonl', 'train.jsonl')
  (tmp_path / 'in.jsonl').unlink()
  (tmp_path / 'train_2.jsonl').write_text('')
  write(tmp_path / 'valid.jsonl', records(1))
  parts = sources.create('lm').parts(str(tmp_path), 'train')
  assert len(parts) == 5
  for part in parts:
    assert list(part.divided(20)) == [part]


@pytest.mark.parametrize('path', ['', 'given', 'file'])
@pytest.mark.parametrize('name', sources.SOURCES)
def test_missing_data(tmp_path, monkeypatch, name, path):
  """Told at once what it is, where we looked, and what to do."""
  # Whoever imports TensorFlow meets another error than is expected here.
  monkeypatch.setitem(sys.modules, 'tensorflow', None)
  monkeypatch.setitem(sys.modules, 'tensorflow_datasets', None)
  monkeypatch.setenv('LENGEN_DATA_DIR', str(tmp_path / 'default'))
  given = str(tmp_path / path) if path else ''
  with pytest.raises(errors.CorpusError) as caught:
    sources.create(name).parts(given, 'train')
  told = str(caught.value)
  wanted = [f'there is no {name} (', 'split train; looked in: ']
  wanted += [str(tmp_path / (path or 'default') / name)]
  wanted += [f', {given}'] if given else []
  wanted += ['To get it: ', 'LENGEN_DATA_DIR', 'data.raw']
  wanted += ['without these data: --config=configs/stdlib.py']
  if name == 'c4':
    wanted += [str(tmp_path / (path or 'default') / 'c4' / 'en' / '3.1.0')]
  for part in wanted:
    assert part in told


@pytest.mark.parametrize(
  'spec, reason',
  [
    ('arxv', "source of text in data.task 'arxv'; did you mean 'arxiv'"),
    ('scrolls/qasper', "'scrolls/qasper'; valid: arxiv, c4"),
    ('', 'source of text in data.task'),
    ("lm(key='x')", "unknown key of lm 'key'.* pattern, text_key"),
    ('lm(pattern=3)', 'pattern of lm is 3; it takes str'),
    ("lm(pattern='')", "pattern of lm is ''; set it to"),
  ],
)
def test_unknown_sources(spec, reason):
  with pytest.raises(errors.SpecError, match=reason):
    sources.create(spec)


@pytest.mark.parametrize('name', ['arxiv', 'github'])
def test_a_folder_of_several_sources_is_none_of_them(tmp_path, name):
  """Records that say nothing of their set are not taken for another source."""
  tiny.write_c4(tmp_path)
  with pytest.raises(errors.CorpusError, match=f'there is no {name}'):
    sources.create(name).parts(str(tmp_path), 'train')
  # One that is named, or holds nothing else, is.
  assert sources.create(name).parts(str(tmp_path / 'c4'), 'train')
