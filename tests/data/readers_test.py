"""Tests `lengen_jax/data/readers.py`."""

import gzip
import io
import json
import os
import sys
import zipfile

import pyarrow
from pyarrow import parquet
import pytest
import zstandard

from lengen_jax import errors
from lengen_jax.data import readers

RECORDS = [
  {'text': f'line {n}\n\ttab  ä 漢字 😀', 'meta': {'n': n}} for n in range(300)
]
LINES = ''.join(json.dumps(record) + '\n' for record in RECORDS).encode()


def zstd(content, size=None):
  """Frames of `size` bytes each, and between them one to be passed over."""
  packer = zstandard.ZstdCompressor()
  pieces = range(0, len(content), size or len(content))
  other = b'\x50\x2a\x4d\x18' + (5).to_bytes(4, 'little') + b'other'
  return other.join(
    packer.compress(content[i : i + (size or len(content))]) for i in pieces
  )


def zstd_stream(content):
  """As of a pipe: the frame does not say how long it is."""
  packer = zstandard.ZstdCompressor().compressobj()
  return packer.compress(content) + packer.flush()


def table():
  file = io.BytesIO()
  parquet.write_table(pyarrow.Table.from_pylist(RECORDS), file)
  return file.getvalue()


FILES = {
  'a.jsonl': LINES,
  'a.json': LINES,
  'a.jsonl.gz': gzip.compress(LINES),
  'two.jsonl.gz': gzip.compress(LINES[:777]) + gzip.compress(LINES[777:]),
  'a.jsonl.zst': zstd(LINES),
  'stream.jsonl.zst': zstd_stream(LINES),
  'frames.jsonl.zst': zstd(LINES, 100),
  'a.parquet': table(),
  'z.zip!/deep/a.jsonl': LINES,
  'z.zip!/a.jsonl.zst': zstd(LINES),
  'z.zip!/a.parquet': table(),
}
TEXTS = [name for name in FILES if 'parquet' not in name]
PACKED = [name for name in FILES if name.endswith(('.gz', '.zst', '.parquet'))]


def write(folder, name, content):
  """Writes a file, or a zip that holds it; returns one of `readers.files`."""
  archive, _, member = name.rpartition('!/')
  if archive:
    with zipfile.ZipFile(folder / archive, 'w', zipfile.ZIP_DEFLATED) as file:
      file.writestr(member, content)
  else:
    (folder / name).write_bytes(content)
  assert readers.files(folder) == [f'{folder}/{name}']
  return f'{folder}/{name}'


@pytest.mark.parametrize('name', FILES)
def test_records_of_every_format(tmp_path, name):
  path = write(tmp_path, name, FILES[name])
  assert readers.is_records(path)
  where, found = zip(*readers.records(path), strict=True)
  assert list(found) == RECORDS
  word, first = ('row', 0) if 'parquet' in name else ('line', 1)
  assert list(where) == [f'{word} {first + n}' for n in range(300)]


@pytest.mark.parametrize('name', TEXTS)
def test_text_of_a_whole_file(tmp_path, name):
  path = write(tmp_path, name, FILES[name])
  assert readers.text(path) == LINES
  assert readers.size(path) <= len(FILES[name])


def test_frames_of_a_large_window(tmp_path):
  """As `zstd --long` writes them: what may be referred to lies far back."""
  magic, header, window = b'\x28\xb5\x2f\xfd', b'\x00', b'\x90'  # 256 MiB.
  block = (3 << 3 | 1).to_bytes(3, 'little') + b'abc'
  path = write(tmp_path, 'a.zst', magic + header + window + block)
  assert readers.text(path) == b'abc'


@pytest.mark.parametrize('name', PACKED)
def test_a_file_that_is_of_another_kind(tmp_path, name):
  path = write(tmp_path, name, LINES)
  with pytest.raises(errors.CorpusError, match='cannot read .*fetch it again'):
    list(readers.records(path))


def test_frames_longer_than_what_is_read_at_once(tmp_path):
  """A frame may end anywhere in what was read, and be much longer unpacked."""
  content = os.urandom(1_000_000) + b'0' * 5_000_000 + os.urandom(300_000)
  path = write(tmp_path, 'a.zst', zstd(content, 400_000))
  assert readers.text(path) == content


@pytest.mark.parametrize('left', [0, 1, 20, 0.5, 0.999])
@pytest.mark.parametrize('name', PACKED)
def test_a_file_that_breaks_off(tmp_path, name, left):
  """What comes before is not taken for the whole, wherever it breaks off."""
  content = FILES[name]
  content = content[: int(len(content) * left) if 0 < left < 1 else left]
  path = write(tmp_path, name, content)
  with pytest.raises(errors.CorpusError) as caught:
    list(readers.records(path))
  assert f'cannot read {path}' in str(caught.value)
  assert 'fetch it again' in str(caught.value)


def test_a_file_that_breaks_off_names_the_last_line(tmp_path):
  path = write(tmp_path, 'a.jsonl.zst', FILES['frames.jsonl.zst'][:-5])
  with pytest.raises(errors.CorpusError, match='after line 299: the last'):
    list(readers.records(path))


def test_broken_zips(tmp_path):
  path = write(tmp_path, 'z.zip!/a.jsonl', LINES)
  whole = (tmp_path / 'z.zip').read_bytes()
  other = bytearray(whole)
  other[100] ^= 1
  (tmp_path / 'z.zip').write_bytes(other)
  with pytest.raises(errors.CorpusError, match=r'z\.zip!/a\.jsonl after line'):
    list(readers.records(path))
  (tmp_path / 'z.zip').write_bytes(whole[:-30])
  with pytest.raises(errors.CorpusError, match=r'z\.zip: File is not a zip'):
    readers.files(tmp_path)
  with pytest.raises(errors.CorpusError, match='not a zip'):
    list(readers.records(path))
  # The flag of encryption, at the member and in the index.
  locked = bytearray(whole)
  locked[6] |= 1
  locked[locked.index(b'PK\x01\x02') + 8] |= 1
  (tmp_path / 'z.zip').write_bytes(locked)
  with pytest.raises(errors.CorpusError, match=r'a\.jsonl.* encrypted'):
    list(readers.records(path))


@pytest.mark.parametrize(
  'line, reason',
  [
    (b'{"text": "a"', 'Expecting'),
    (b'oops', 'Expecting value'),
    (b'["text"]', 'it holds a list'),
    (b'{"text": "\xff"}', 'codec can.t decode byte 0xff'),
    (b'[' * 200_000, 'recursion'),
  ],
)
def test_a_line_that_is_no_record(tmp_path, line, reason):
  path = write(tmp_path, 'a.jsonl', b'{"text": "a"}\n\n' + line + b'\n')
  found = readers.records(path)
  assert next(found) == ('line 1', {'text': 'a'})
  with pytest.raises(
    errors.CorpusError, match=rf'a\.jsonl, line 3: no JSON .*{reason}.*; each'
  ):
    next(found)


def test_byte_order_marks_and_ends_of_other_systems(tmp_path):
  content = b'\xef\xbb\xbf{"text": "a"}\r\n{"text": "b"}'
  path = write(tmp_path, 'a.jsonl', content)
  assert [r['text'] for _, r in readers.records(path)] == ['a', 'b']


def test_fields():
  record = {'text': 'a', 'meta': {'set': 'x'}}
  assert readers.field('f', 'line 1', record, 'meta.set') == 'x'
  for key in ('body', 'meta.name', 'text.set'):
    with pytest.raises(
      errors.CorpusError, match=f"^f, line 1: .*'{key}'; it has 'meta', 'text'$"
    ):
      readers.field('f', 'line 1', record, key)


def test_files_of_a_folder(tmp_path):
  """Sorted, links followed once, hidden ones left out; nothing hangs."""
  folder, other = tmp_path / 'folder', tmp_path / 'other'
  for name in ('b', '.cache', 'a', 'wow!'):
    (folder / name).mkdir(parents=True)
    (folder / name / 'x.jsonl').write_text('')
  other.mkdir()
  (other / 'far.jsonl').write_text('')
  (folder / '.hidden.jsonl').write_text('')
  (folder / 'c').symlink_to(other)
  (folder / 'b' / 'up').symlink_to(folder)
  (folder / 'lost.jsonl').symlink_to(tmp_path / 'gone')
  os.mkfifo(folder / 'pipe.jsonl')
  with zipfile.ZipFile(folder / 'z.zip', 'w') as archive:
    for name in ('d/', 'd/y.txt', '__MACOSX/d/._y.txt', 'b.txt'):
      archive.writestr(name, '')
  names = [file.removeprefix(f'{folder}/') for file in readers.files(folder)]
  assert names == [
    'a/x.jsonl',
    'b/x.jsonl',
    'c/far.jsonl',
    'lost.jsonl',
    'wow!/x.jsonl',
    'z.zip!/b.txt',
    'z.zip!/d/y.txt',
  ]
  assert not list(readers.records(f'{folder}/wow!/x.jsonl'))
  with pytest.raises(errors.CorpusError, match='lost.jsonl.*No such file'):
    list(readers.records(f'{folder}/lost.jsonl'))
  with pytest.raises(errors.CorpusError, match='lost.jsonl: No such file'):
    readers.size(f'{folder}/lost.jsonl')
  assert readers.files(folder / 'z.zip') == [
    f'{folder}/z.zip!/b.txt',
    f'{folder}/z.zip!/d/y.txt',
  ]
  assert readers.files(tmp_path / 'nothing') == []


def test_a_zip_that_is_written_anew(tmp_path):
  for text in ('a', 'bb'):
    path = write(tmp_path, 'z.zip!/a.txt', text.encode())
    assert readers.text(path) == text.encode()


@pytest.mark.parametrize(
  'name, module',
  [('a.jsonl.zst', 'zstandard'), ('a.parquet', 'pyarrow.parquet')],
)
def test_packages_that_are_missing(tmp_path, monkeypatch, name, module):
  path = write(tmp_path, name, FILES[name])
  monkeypatch.setitem(sys.modules, module, None)
  with pytest.raises(
    errors.CorpusError, match=rf'^reading .*{name} needs .*lengen_jax\[data\]'
  ):
    list(readers.records(path))


@pytest.mark.parametrize(
  'name, content',
  [
    ('a.jsonl.zst', LINES),
    ('a.jsonl.gz', FILES['a.jsonl.gz'][:10] + b'\xff' * 99),
  ],
)
def test_damaged_files_are_bad_records(tmp_path, name, content):
  (tmp_path / name).write_bytes(content)
  found = [record for _, record in readers.all_records(str(tmp_path / name))]
  assert isinstance(found[-1], errors.RecordError)


def test_the_size_of_a_member_is_that_on_disk(tmp_path):
  with zipfile.ZipFile(tmp_path / 'z.zip', 'w', zipfile.ZIP_DEFLATED) as file:
    file.writestr('a.jsonl', LINES)
  assert readers.size(f'{tmp_path}/z.zip!/a.jsonl') < len(LINES) / 2
