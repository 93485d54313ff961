"""Encodes a corpus in pieces: in this process, in workers, or with Beam.

Pieces depend on the raw data only. Workers write the token ids of a piece to a
file that is renamed when it is complete, so a piece may be written twice, by
any worker, and the result is read in the order of the pieces.
"""

import collections
from collections.abc import Callable, Generator, Iterator, Sequence
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import multiprocessing
from multiprocessing import connection
import os
import pickle
import shlex
import signal
import threading
import time
import traceback
from typing import Any, NamedTuple
import uuid

import numpy as np

from lengen_jax import errors, extra
from lengen_jax.data import manifest as manifest_lib
from lengen_jax.data import remote, sources, vocabulary

# Bytes of files per piece. A larger file is divided if it can be. A state.json
# counts pieces: unfinished folders cannot be resumed with another value.
_PIECE_BYTES = 1 << 23
# Pieces that are encoded ahead of the one that is read, per worker.
_AHEAD = 2
# Polling interval for the files that Beam writes, in seconds.
_POLL = 0.2


class Document(NamedTuple):
  """A document: number of its part, size in bytes, and ids with the end token.

  A bad record that is skipped has no ids; `bad` is its error.
  """

  part: int
  size: int
  ids: np.ndarray
  bad: str = ''


@dataclasses.dataclass(frozen=True)
class Piece:
  """Consecutive documents.

  Attributes:
    parts: the Parts that hold them, with their numbers in the split and the
      bytes of their files.
  """

  parts: tuple[tuple[sources.Part, int, int], ...]


# The file of a piece, and a function that returns an iterator over its
# documents, given the index of the first one.
Opened = tuple[remote.AnyPath, Callable[[int], Iterator[Document]]]


def divide(
  parts: Sequence[sources.Part], sizes: Sequence[int]
) -> Iterator[Piece]:
  """Yields the pieces of all parts; `sizes` are the bytes of each part."""
  some: list[tuple[sources.Part, int, int]] = []
  filled = 0
  for number, (part, size) in enumerate(zip(parts, sizes, strict=True)):
    large = size > _PIECE_BYTES
    for one in part.divided(_PIECE_BYTES) if large else (part,):
      if some and filled + size > _PIECE_BYTES:
        yield Piece(tuple(some))
        some, filled = [], 0
      some.append((one, number, size))
      filled += size
  if some:
    yield Piece(tuple(some))


@dataclasses.dataclass(frozen=True)
class Encoder:
  """Encodes the documents of pieces.

  Attributes:
    source: reads the documents.
    vocab: encodes them.
    group: documents per call of the vocabulary.
    folder: folder of the files of pieces.
    skip: whether to skip bad records.
  """

  source: sources.Source
  vocab: vocabulary.Vocabulary
  group: int
  folder: remote.AnyPath
  skip: bool = False

  def documents(self, piece: Piece, first: int = 0) -> Iterator[Document]:
    """Yields the documents of a piece from number `first` on.

    Raises:
      errors.CorpusError: a document cannot be read; names its file and line.
    """
    dtype = manifest_lib.dtype(self.vocab.size)
    read_texts = read_skipping if self.skip else sources.Source.read
    found = (
      (number, text)
      for part, number, _ in piece.parts
      for text in read_texts(self.source, part)
    )
    found = itertools.islice(found, first, None)
    while group := list(itertools.islice(found, self.group)):
      texts = [text for _, text in group if isinstance(text, bytes)]
      encoded = iter(self.vocab.encode(texts))
      for number, text in group:
        if isinstance(text, errors.RecordError):
          yield Document(number, 0, np.zeros(0, dtype), str(text))
          continue
        ids = np.append(next(encoded), np.int32(self.vocab.end))
        if (most := ids.max()) > np.iinfo(dtype).max:
          raise errors.CorpusError(
            f'a document has token id {most}, over the {self.vocab.size:,} ids '
            'of the vocabulary; remove the text of that special token'
          )
        yield Document(number, len(text), ids.astype(dtype))

  def file(self, piece: Piece) -> remote.AnyPath:
    """Returns the path of the file of a piece.

    The name is a hash of what determines the content: the vocabulary, the
    source, the piece and `skip`.
    """
    what = repr((self.vocab.fingerprint, self.source, piece, self.skip))
    return self.folder / hashlib.sha256(what.encode()).hexdigest()[:24]

  def write(self, piece: Piece) -> None:
    """Writes the file of a piece, unless it exists."""
    path: Any = self.file(piece)
    if path.exists():
      return
    # Beam may run a piece twice at the same time.
    partial = path.with_name(f'{path.name}.{uuid.uuid4().hex}')
    documents = self.documents(piece)
    with partial.open('wb') as file:
      while group := list(itertools.islice(documents, self.group)):
        sizes = [(one.part, one.size, len(one.ids)) for one in group]
        np.save(file, np.array(sizes, np.int64))
        np.save(file, np.concatenate([one.ids for one in group]))
        np.save(file, np.array([one.bad for one in group]))
      # A file that was cut short lacks this.
      np.save(file, np.zeros((0, 3), np.int64))
    partial.replace(path)


def read_skipping(
  source: sources.Source, part: sources.Part
) -> Iterator[bytes | errors.RecordError]:
  """Yields the documents of a part, and the errors of bad records.

  Bad records of a file without a split of its own count as training documents.
  """
  for text in source.read_all(part):
    if isinstance(text, bytes) or part.split in ('', 'train'):
      yield text


def read(path: remote.AnyPath, first: int = 0) -> Iterator[Document]:
  """Yields the documents in the file of a piece, from number `first` on.

  Raises:
    errors.CorpusError: the file is damaged.
  """
  return itertools.islice(_read(path), first, None)


def _read(path: remote.AnyPath) -> Iterator[Document]:
  try:
    with path.open('rb') as file:
      while len(sizes := np.load(file)):
        ids = np.split(np.load(file), np.cumsum(sizes[:-1, 2]))
        bad = np.load(file).tolist()
        for (part, size, _), *each in zip(
          sizes.tolist(), ids, bad, strict=True
        ):
          yield Document(part, size, *each)
  except (EOFError, ValueError) as error:
    raise errors.CorpusError(
      f'{path} is damaged ({errors.reason(error)}); delete it and run the same '
      'command again'
    ) from None


def here(
  encoder: Encoder, found: Iterator[Piece]
) -> Generator[Opened, None, None]:
  """Yields the pieces, and encodes their documents as they are read."""
  for piece in found:
    yield encoder.file(piece), functools.partial(encoder.documents, piece)


def in_processes(
  encoder: Encoder, found: Iterator[Piece], *, workers: int
) -> Generator[Opened, None, None]:
  """Yields the pieces, whose files are written by processes.

  Raises:
    errors.CorpusError: a process was killed, or ended early.
  """
  encoder.folder.mkdir(exist_ok=True)
  started: list[_Worker] = []
  waiting: collections.deque[tuple[Piece, _Worker]] = collections.deque()
  try:
    for _ in range(workers):
      started.append(_Worker())
    for worker in started:
      worker.send(encoder)
    # The Nones drain the pieces in progress.
    for piece in itertools.chain(found, itertools.repeat(None)):
      if piece is not None:
        worker = min(started, key=_Worker.unwritten)
        worker.start_writing(piece)
        waiting.append((piece, worker))
        if len(waiting) <= _AHEAD * workers:
          continue
      if not waiting:
        break
      piece, worker = waiting.popleft()
      worker.wait()
      path = encoder.file(piece)
      yield path, functools.partial(read, path)
  except _EndedError as error:
    status = error.args[0]
    what = (
      'was killed, by a signal or for lack of memory'
      if status < 0
      else f'ended with status {status}; the cause is printed above'
    )
    raise errors.CorpusError(
      f'one of {workers} workers {what}; finished pieces are kept: run the '
      'same command again, with a lower --workers if memory is short'
    ) from None
  finally:
    for worker in started:
      worker.end()


class _EndedError(Exception):
  """A process ended early. The argument is its exit status."""


class _Worker:
  """A process that writes the files of the pieces that it is sent, in order.

  Each process has a pipe of its own and no lock: a ProcessPoolExecutor can
  hang if one of its processes is killed while another one starts. The Encoder
  is the first object that is sent. If a large one were an argument of the
  process, `start` would block forever when the process is killed before it has
  read the argument.
  """

  def __init__(self) -> None:
    context = multiprocessing.get_context('spawn')
    self._pipe, its_pipe = context.Pipe()
    self._process = context.Process(target=_work, args=(its_pipe,), daemon=True)
    self._unanswered = 0
    # The errors of pieces, or None, that `wait` has not returned.
    self._answers: collections.deque[BaseException | None] = collections.deque()
    self._process.start()
    # The process has the only copy of this end: reading raises EOFError when it
    # has ended.
    its_pipe.close()

  def send(self, sent: Encoder | Piece) -> None:
    """Sends an object. Raises _EndedError."""
    with self._running():
      self._pipe.send(sent)

  def start_writing(self, piece: Piece) -> None:
    """Sends a piece. Raises _EndedError."""
    self.send(piece)
    self._unanswered += 1

  def unwritten(self) -> int:
    """Returns how many of the pieces are not written yet.

    Raises:
      _EndedError: the process has ended.
    """
    while self._pipe.poll():
      self._receive()
    return self._unanswered

  def wait(self) -> None:
    """Waits for the first piece that `wait` has not waited for.

    Raises:
      _EndedError: the process has ended.
      Exception: any error of `Encoder.write`.
    """
    if not self._answers:
      self._receive()
    if (error := self._answers.popleft()) is not None:
      raise error

  def end(self) -> None:
    """Ends the process, also if it is at work."""
    self._process.kill()
    self._process.join()
    self._pipe.close()

  def _receive(self) -> None:
    with self._running():
      self._answers.append(self._pipe.recv())
    self._unanswered -= 1

  @contextlib.contextmanager
  def _running(self) -> Iterator[None]:
    try:
      yield
    except (EOFError, ConnectionError):
      self._process.join()
      raise _EndedError(self._process.exitcode) from None


def _work(pipe: connection.Connection) -> None:
  """Writes the pieces that arrive, until the first process has ended."""
  # The first process handles Ctrl-C.
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  # Tokenizers of transformers would start a thread per core.
  os.environ.setdefault('TOKENIZERS_PARALLELISM', 'false')
  threading.Thread(target=_end_with_parent, daemon=True).start()
  with contextlib.suppress(EOFError, ConnectionError):
    encoder = pipe.recv()
    while True:
      pipe.send(_error_of(encoder, pipe.recv()))


def _end_with_parent() -> None:
  """Ends this process when the one that started it has ended."""
  parent = multiprocessing.parent_process()
  assert parent is not None
  parent.join()
  os._exit(1)


def _error_of(encoder: Encoder, piece: Piece) -> BaseException | None:
  """Writes the file of a piece. Returns an error, which can be pickled."""
  try:
    encoder.write(piece)
  except BaseException as error:  # Raised again by the first process.
    error.add_note(traceback.format_exc())
    try:
      pickle.loads(pickle.dumps(error))
    except Exception:  # Errors of any type: see `pickle`.
      return RuntimeError(f'{type(error).__name__}: {error}')
    return error
  return None


def with_beam(
  encoder: Encoder, found: Iterator[Piece], *, runner: str, options: str
) -> Generator[Opened, None, None]:
  """Yields the pieces, whose files are written by a Beam pipeline.

  Args:
    encoder: encodes the pieces. All workers must share its folder, or have
      the option --temp_location in an object store.
    found: the pieces.
    runner: name of a runner: 'direct', 'FlinkRunner', ...
    options: options of Beam and its runner.

  Raises:
    errors.CorpusError: a document cannot be read, or the pipeline failed.
    errors.ConfigError: there is no such runner.
  """
  beam = load_beam()
  try:
    parsed = beam.options.pipeline_options.PipelineOptions(
      shlex.split(options), runner=runner
    )
    pipeline = beam.Pipeline(options=parsed)
    shared = parsed.get_all_options()['temp_location'] or ''
  except (ValueError, SystemExit) as error:
    raise errors.ConfigError(
      f'--runner={runner} with --beam-options={options!r}: '
      f'{errors.reason(error)}; runners are direct, FlinkRunner, SparkRunner '
      'and others of Beam'
    ) from None
  if remote.is_remote(shared):
    # A folder for each data.path: pieces are deleted when they are written.
    mine = hashlib.sha256(str(encoder.folder).encode()).hexdigest()[:16]
    folder = remote.Path(shared) / 'lengen_prepare' / mine
    encoder = dataclasses.replace(encoder, folder=folder)
  encoder.folder.mkdir(exist_ok=True)
  listed = list(found)
  missing = [piece for piece in listed if not encoder.file(piece).exists()]
  for piece in missing:
    _told(encoder.file(piece)).unlink(missing_ok=True)
  written = pipeline | beam.Create(missing) | beam.Reshuffle()
  _ = written | beam.Map(_write_or_tell, encoder=encoder)

  failed: list[BaseException] = []
  started: list[Any] = []

  def run() -> None:
    try:
      started.append(pipeline.run())
      started[0].wait_until_finish()
    except Exception as error:  # The type depends on the runner.
      failed.append(error)

  thread = threading.Thread(target=run, daemon=True)
  if missing:
    print(
      f'prepare: the Beam runner {runner} encodes {len(missing)} pieces',
      flush=True,
    )
    thread.start()
  try:
    for piece in listed:
      path = encoder.file(piece)
      while not path.exists():
        running = thread.is_alive()
        if _told(path).exists():
          raise errors.CorpusError(_told(path).read_text())
        if not running and not path.exists():
          reason = errors.reason(failed[0]) if failed else 'it ended early'
          raise errors.CorpusError(
            f'the Beam runner {runner} failed: {reason}; finished pieces are '
            'kept: correct the cause and run the same command again'
          ) from (failed[0] if failed else None)
        time.sleep(_POLL)
      yield path, functools.partial(read, path)
  finally:
    # A remote pipeline would continue, and be billed.
    if thread.is_alive() and started:
      started[0].cancel()


def load_beam() -> Any:
  """Imports Beam; see `extra.load`."""
  return extra.load('apache_beam', '--runner', 'beam')


def _write_or_tell(piece: Piece, encoder: Encoder) -> None:
  """Writes a piece, or the error of its data, which a retry would repeat."""
  try:
    encoder.write(piece)
  except errors.LengenError as error:
    _told(encoder.file(piece)).write_text(str(error))


def _told(path: remote.AnyPath) -> remote.AnyPath:
  """Returns the path of the error of a piece, given the path of its file."""
  return path.with_name(path.name + '.error')
