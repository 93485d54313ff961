"""Tests `lengen_jax/data/remote.py`; `encode_test.py` has a whole bucket."""

import gzip
import io
import types

import pytest

from lengen_jax.data import readers, remote


class Blob(io.BufferedIOBase):
  """A file as that of Google Cloud Storage: it has no `peek`."""

  def __init__(self, content):
    self._file, self.reads = io.BytesIO(content), 0

  def readable(self):
    return True

  def seekable(self):
    return True

  def seek(self, *args):
    return self._file.seek(*args)

  def tell(self):
    return self._file.tell()

  def read(self, size=-1):
    self.reads += 1
    return self._file.read(size)


@pytest.fixture
def store(monkeypatch):
  """{path: file} of a store."""
  files = {}
  systems = types.SimpleNamespace(
    open=lambda path, compression_type: files[path], create=None
  )
  monkeypatch.setattr(remote, '_systems', lambda: systems)
  return files


@pytest.mark.parametrize(
  'pack, name', [(bytes, 'jsonl'), (gzip.compress, 'jsonl.gz')]
)
def test_files_without_peek(store, pack, name):
  lines = b''.join(b'{"text": "%d"}\n' % n for n in range(2000))
  store['gs://bucket/a'] = blob = Blob(pack(lines))
  store[f'gs://bucket/a.{name}'] = blob
  found = [r['text'] for _, r in readers.records(f'gs://bucket/a.{name}')]
  assert found == [str(n) for n in range(2000)]
  # Not byte by byte.
  assert blob.reads < 10
