"""Records out of files: JSON lines, Parquet, or a file as one text.

JSON lines may be compressed (.gz, .zst) or lie in a zip, whose members are
written `archive.zip!/member`. Files are read from front to back and never
unpacked to disk.
"""

import gzip
import importlib
import io
import json
import pathlib
import zipfile
import zlib

from lengen_jax import errors

_MEMBER = '!/'


def files(folder):
  """All files below a folder, those in zips included, sorted.

  Args:
    folder: a folder, a zip, or a single file.

  Returns:
    Paths as strings; of members of a zip `archive.zip!/member`.

  Raises:
    errors.CorpusError: a zip is broken.
  """
  folder = pathlib.Path(folder)
  found = [folder] if folder.is_file() else sorted(folder.rglob('*'))
  names = []
  for path in found:
    if path.suffix == '.zip':
      try:
        with zipfile.ZipFile(path) as archive:
          members = archive.namelist()
      except (OSError, zipfile.BadZipFile) as error:
        raise _broken(path, error) from None
      names += [
        f'{path}{_MEMBER}{member}'
        for member in sorted(members)
        if not member.endswith('/')
      ]
    elif path.is_file() and not path.name.startswith('.'):
      names.append(str(path))
  return names


def is_records(path):
  """Whether a file holds records, going by its name."""
  return _kind(path) in ('.jsonl', '.json', '.parquet')


def records(path):
  """Yields the records of a file of JSON lines or of a Parquet file.

  Args:
    path: one of `files`.

  Yields:
    (where, record): the line or row, and a dict.

  Raises:
    errors.CorpusError: naming the file and the line that cannot be read.
  """
  if _kind(path) == '.parquet':
    yield from _parquet(path)
    return
  number = 0
  try:
    with _open(path) as lines:
      for number, line in enumerate(lines, start=1):
        if line.strip():
          record = json.loads(line)
          if not isinstance(record, dict):
            raise ValueError('no JSON object')
          yield f'line {number}', record
  except ValueError as error:
    raise errors.CorpusError(
      f'{path}, line {number}: no JSON record ({error}); mend or remove the '
      'line, or fetch the file again'
    ) from None
  except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
    raise _broken(path, error, f'after line {number}') from None


def text(path):
  """The content of a whole file, `bytes`.

  Raises:
    errors.CorpusError: it cannot be read.
  """
  try:
    with _open(path) as file:
      return file.read()
  except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
    raise _broken(path, error) from None


def field(path, where, record, key):
  """The value of a record at `key`, nested keys joined by dots.

  Raises:
    errors.CorpusError: there is none; naming file, line and the keys there are.
  """
  value = record
  for part in key.split('.'):
    if not isinstance(value, dict) or part not in value:
      raise errors.CorpusError(
        f'{path}, {where}: the record has no {key!r}; it has '
        f'{", ".join(map(repr, sorted(record)))}'
      )
    value = value[part]
  return value


def _kind(path):
  """Ending that says what is in a file, whatever it is compressed with."""
  suffixes = pathlib.PurePath(path).suffixes
  while suffixes and suffixes[-1] in ('.gz', '.zst'):
    suffixes.pop()
  return suffixes[-1] if suffixes else ''


def _open(path):
  """A file of lines, bytes, unpacked on the way."""
  path = str(path)
  if _MEMBER in path:
    archive, member = path.split(_MEMBER, 1)
    file = zipfile.ZipFile(archive).open(member)
  else:
    file = open(path, 'rb')  # The caller closes it.
  if path.endswith('.gz'):
    return gzip.GzipFile(fileobj=file)
  if path.endswith('.zst'):
    return io.BufferedReader(_Unpacked(file, path), 1 << 20)
  return file


class _Unpacked(io.RawIOBase):
  """Reads zstd frames, and says so where the last one breaks off."""

  def __init__(self, file, path):
    self._file, self._zstandard = file, _data_extra('zstandard', path)
    self._frame, self._ready = None, b''

  def readable(self):
    return True

  def readinto(self, buffer):
    while not self._ready:
      ended = self._frame is not None and self._frame.eof
      packed = self._frame.unused_data if ended else b''
      packed = packed or self._file.read(1 << 18)
      if not packed:
        if self._frame is not None and not ended:
          raise EOFError('it breaks off within a zstd frame')
        return 0
      if self._frame is None or ended:
        self._frame = self._zstandard.ZstdDecompressor().decompressobj()
      try:
        self._ready = self._frame.decompress(packed)
      except self._zstandard.ZstdError as error:
        raise OSError(str(error)) from None
    size = min(len(buffer), len(self._ready))
    buffer[:size], self._ready = self._ready[:size], self._ready[size:]
    return size

  def close(self):
    self._file.close()
    super().close()


def _data_extra(module, path):
  try:
    return importlib.import_module(module)
  except ImportError as error:
    raise errors.CorpusError(
      f"reading {path} needs the data extra: pip install 'lengen_jax[data]'"
    ) from error


def _parquet(path):
  parquet = _data_extra('pyarrow.parquet', path)
  number = 0
  try:
    for batch in parquet.ParquetFile(path).iter_batches(256):
      for record in batch.to_pylist():
        yield f'row {number}', record
        number += 1
  except (OSError, ValueError) as error:
    raise _broken(path, error, f'after row {number}') from None


def _broken(path, error, where=''):
  reason = getattr(error, 'strerror', None) or error
  return errors.CorpusError(
    f'cannot read {path}{" " * bool(where)}{where}: {reason}; it may be '
    'incomplete: fetch it again'
  )
