"""Reads JSON lines, Parquet, and text files.

Files may be compressed (.gz, .zst) or members of a zip archive, written
`archive.zip!/member`. Files are read sequentially and never decompressed to
disk.
"""

from collections.abc import Iterator, Mapping
import contextlib
import dataclasses
import functools
import gzip
import io
import json
import os
import pathlib
from typing import Any
import zipfile
import zlib

from lengen_jax import errors, extra
from lengen_jax.data import remote

_MEMBER = '.zip!/'
_LINES = ('.jsonl', '.ndjson', '.json')
# The types depend on the format and the store.
_BROKEN = Exception

# Those of damaged files; ValueError is that of pyarrow.
_DAMAGED = (
  gzip.BadGzipFile,
  EOFError,
  ValueError,
  zlib.error,
  zipfile.BadZipFile,
)


@dataclasses.dataclass(frozen=True)
class Span:
  """Consecutive lines of a file, or examples of a dataset.

  Attributes:
    start: first byte, or number of the first example.
    stop: end of the last.
    line: number of lines before `start`.
  """

  start: int
  stop: int
  line: int = 0


def files(folder: str | remote.AnyPath) -> list[str]:
  """Returns the sorted files below a folder, including members of zips.

  `folder` may be a zip or a single file, too, or in an object store. Symbolic
  links are followed.
  Hidden files and folders are excluded.

  Raises:
    errors.CorpusError: a zip is corrupt, or a folder cannot be read.
  """
  names = []
  for path in _walk(str(folder)):
    if not path.endswith('.zip'):
      names.append(path)
      continue
    try:
      members = sorted(_archive(path).namelist())
    except _BROKEN as error:
      raise _broken(path, error) from None
    names += [
      f'{path}!/{member}'
      for member in members
      if not member.endswith('/') and not _hidden(*member.split('/'))
    ]
  return names


def size(path: str) -> int:
  """Returns the size of one of `files` on disk, bytes.

  Raises:
    errors.CorpusError: the file does not exist.
  """
  archive, member = _split(path)
  try:
    if member:
      return _archive(archive).getinfo(member).compress_size
    return _size(path)
  except _BROKEN as error:
    raise _broken(path, error) from None


def is_records(path: str) -> bool:
  """Returns whether the extension of a file is that of JSON or Parquet."""
  return _kind(path) in (*_LINES, '.parquet')


def spans(path: str, length: int) -> Iterator[Span]:
  """Yields Spans of `length` bytes, rounded up to the end of a line.

  Only JSON lines that are neither compressed nor in a zip can be divided; other
  files yield nothing.

  Raises:
    errors.CorpusError: the file cannot be read.
  """
  if pathlib.PurePath(path).suffix not in _LINES or _split(path)[1]:
    return
  start = line = 0
  try:
    with _opened(path) as file:
      while block := file.read(length):
        block += file.readline()
        yield Span(start, start + len(block), line)
        start += len(block)
        line += block.count(b'\n')
  except _BROKEN as error:
    raise _broken(path, error) from None


def records(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields (line or row, record) of a file of JSON lines or a Parquet file.

  Raises:
    errors.CorpusError: a line cannot be read; names the file and the line.
  """
  for where, record in all_records(path):
    if isinstance(record, errors.RecordError):
      raise record
    yield where, record


def all_records(
  path: str, span: Span | None = None
) -> Iterator[tuple[str, dict[str, Any] | errors.RecordError]]:
  """Yields the items of `records`, and an error in place of a bad record.

  The rest of a damaged file is one bad record. Only the lines of `span` are
  read, if given.

  Raises:
    errors.CorpusError: the file cannot be read, but is not damaged.
  """
  try:
    if _kind(path) == '.parquet':
      yield from _rows(path)
      return
    first = span.line + 1 if span else 1
    for number, line in enumerate(lines(path, span), start=first):
      if line.strip():
        yield f'line {number}', _parsed(path, number, line)
  except errors.RecordError as error:
    yield '', error


def _parsed(
  path: str, number: int, line: bytes
) -> dict[str, Any] | errors.RecordError:
  try:
    record = json.loads(line)
    if not isinstance(record, dict):
      raise ValueError(f'it holds a {type(record).__name__}')
  except (ValueError, RecursionError) as error:
    reason = getattr(error, 'msg', error)
    return errors.RecordError(
      f'{path}, line {number}: no JSON object ({reason}); each line must be '
      'one: correct or remove it, or fetch the file again'
    )
  return record


def lines(path: str, span: Span | None = None) -> Iterator[bytes]:
  """Yields the lines of a file or a span, `bytes` including line ends.

  Raises:
    errors.CorpusError: the file cannot be read; names the last readable line.
  """
  count = span.line if span else 0
  try:
    with _opened(path) as file:
      offset = file.seek(span.start) if span else 0
      for line in file:
        count += 1
        yield line
        offset += len(line)
        if span and offset >= span.stop:
          break
  except _BROKEN as error:
    raise _broken(path, error, f' after line {count}') from None


def text(path: str) -> bytes:
  """Returns the content of a file, `bytes`.

  Raises:
    errors.CorpusError: the file cannot be read.
  """
  try:
    with _opened(path) as file:
      return file.read()
  except _BROKEN as error:
    raise _broken(path, error) from None


def field(path: str, where: str, record: Mapping[str, Any], key: str) -> Any:
  """Returns the value of a record at `key`; dots separate nested keys.

  Raises:
    errors.CorpusError: the key is missing; lists the keys of the record.
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


def _walk(folder: str) -> list[str]:
  """Returns the sorted paths of all files below a folder."""

  def fail(error: OSError) -> None:
    raise _broken(error.filename, error)

  if remote.is_remote(folder):
    return [
      path
      for path in remote.files(folder)
      if not _hidden(*path.removeprefix(folder).split('/'))
    ]
  if not os.path.isdir(folder):
    return [folder] if os.path.isfile(folder) else []
  found, seen = [], set()
  for root, folders, names in os.walk(folder, onerror=fail, followlinks=True):
    # A symbolic link may form a cycle.
    folders[:] = sorted(name for name in folders if not _hidden(name))
    if os.path.realpath(root) in seen:
      folders.clear()
      continue
    seen.add(os.path.realpath(root))
    found += [os.path.join(root, name) for name in names if not _hidden(name)]
  # Dangling links are kept, so that reading them raises an error.
  return sorted(
    path for path in found if os.path.isfile(path) or not os.path.exists(path)
  )


def _hidden(*names: str) -> bool:
  return any(name.startswith(('.', '__MACOSX')) for name in names)


def _split(path: str) -> tuple[str, str]:
  """Returns (archive, member) of a path, ('', '') if it is not in a zip."""
  archive, separator, member = str(path).partition(_MEMBER)
  return (f'{archive}.zip', member) if separator else ('', '')


def _size(path: str) -> int:
  return remote.size(path) if remote.is_remote(path) else os.stat(path).st_size


def _open(path: str) -> Any:
  if remote.is_remote(path):
    return remote.Path(path).open('rb')
  return open(path, 'rb')


def _archive(path: str) -> zipfile.ZipFile:
  if remote.is_remote(path):
    return _opened_archive(path)
  stat = os.stat(path)
  return _opened_archive(str(path), stat.st_size, stat.st_mtime_ns)


# Reading the index of a zip with many members is slow.
@functools.lru_cache(maxsize=1)
def _opened_archive(path: str, *_: int) -> zipfile.ZipFile:
  return zipfile.ZipFile(_open(path) if remote.is_remote(path) else path)


def _kind(path: str) -> str:
  """Returns the extension of a file without that of its compression."""
  suffixes = pathlib.PurePath(path).suffixes
  while suffixes and suffixes[-1] in ('.gz', '.zst'):
    suffixes.pop()
  return suffixes[-1] if suffixes else ''


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Any]:
  """Opens a binary file and decompresses it while reading."""
  path = str(path)
  archive, member = _split(path)
  with contextlib.ExitStack() as stack:
    file: Any = _archive(archive).open(member) if member else _open(path)
    stack.enter_context(file)
    if path.endswith(('.gz', '.zst')) and not file.peek(1):
      raise EOFError('it is empty')
    if path.endswith('.gz'):
      file = stack.enter_context(gzip.GzipFile(fileobj=file))
    elif path.endswith('.zst'):
      zstandard = extra.load('zstandard', f'reading {path}')
      file = stack.enter_context(
        io.BufferedReader(_Unpacked(file, zstandard), 1 << 20)
      )
    yield file


class _Unpacked(io.RawIOBase):
  """Decompresses zstd frames; raises EOFError if the last is truncated."""

  def __init__(self, file: Any, zstandard: Any) -> None:
    self._file, self._zstandard = file, zstandard
    self._frame: Any = None
    self._ready = memoryview(b'')

  def readable(self) -> bool:
    return True

  def readinto(self, buffer: Any) -> int:
    while not self._ready:
      ended = self._frame is None or self._frame.eof
      packed = self._frame.unused_data if self._frame and ended else b''
      packed = packed or self._file.read(1 << 18)
      if not packed:
        if not ended:
          raise EOFError('the last zstd frame is truncated')
        return 0
      if ended:
        # The largest window of `zstd --long`.
        self._frame = self._zstandard.ZstdDecompressor(
          max_window_size=1 << 31
        ).decompressobj()
      try:
        self._ready = memoryview(self._frame.decompress(packed))
      except self._zstandard.ZstdError as error:
        raise OSError(str(error)) from None
    count = min(len(buffer), len(self._ready))
    buffer[:count], self._ready = self._ready[:count], self._ready[count:]
    return count


def _rows(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields the records of a Parquet file; see `records`."""
  parquet = extra.load('pyarrow.parquet', f'reading {path}')
  number = 0
  try:
    with _opened(path) as file:
      for batch in parquet.ParquetFile(file).iter_batches(256):
        for record in batch.to_pylist():
          yield f'row {number}', record
          number += 1
  except Exception as error:  # pyarrow raises many types.
    raise _broken(path, error, f' after {number} rows') from None


def _broken(
  path: str, error: BaseException, where: str = ''
) -> errors.CorpusError:
  if isinstance(error, errors.CorpusError):
    return error
  # Other errors of the system and of stores may be temporary. Damaged Parquet
  # files raise OSError itself, without a number.
  damaged = isinstance(error, _DAMAGED)
  damaged |= type(error) is OSError and error.errno is None
  kind = errors.RecordError if damaged else errors.CorpusError
  return kind(
    f'cannot read {path}{where}: {errors.reason(error)}; it may be incomplete: '
    'fetch it again'
  )
