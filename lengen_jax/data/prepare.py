"""`lengen prepare`: tokenizes text and writes windows to ArrayRecord files.

The folder holds `train/` and `validation/` with one record per window, a copy
of the vocabulary and the manifest. An interrupted run resumes after the last
finished file and writes the same files as an uninterrupted one. Worker
processes or Beam may encode the text; see `encode`. One process cuts and writes
the windows in the order of the text, so files do not depend on the workers.
"""

import collections
from collections.abc import (
  Callable,
  Generator,
  Iterable,
  Iterator,
  Mapping,
  Sequence,
)
import contextlib
import functools
import itertools
import os
import pathlib
import shutil
import time
from typing import Any

import numpy as np

from lengen_jax import errors, extra, locks
from lengen_jax import progress as progress_lib
from lengen_jax.data import (
  encode,
  mirror,
  readers,
  remote,
  sources,
  vocabulary,
  windows,
)
from lengen_jax.data import manifest as manifest_lib
from lengen_jax.data.config import DataConfig

# A dict as JSON files hold it.
Json = dict[str, Any]
Parts = Sequence[sources.Part]
Opening = Callable[
  [Iterator[encode.Piece]], Generator[encode.Opened, None, None]
]

# In the order in which they are written.
_SPLITS = ('validation', 'train')
# Token ids per file; bounds the number of files that a reader opens.
_SHARD_TOKENS = 1 << 28
# Documents per call of the tokenizer.
_GROUP = 64
# Bad records whose errors are kept, per split.
_NAMED = 5
# Folder of the files that workers write.
_PIECES = 'pieces'
# Bytes of text that a vocabulary is trained on, an equal share per file.
_VOCABULARY_BYTES = 1 << 27


def prepare(
  config: DataConfig,
  *,
  raw: str = '',
  longest: int,
  vocabulary_size: int = 0,
  workers: int = 1,
  runner: str = '',
  beam_options: str = '',
  bad_records: str = 'fail',
) -> Json:
  """Writes the token windows of a data config to `config.path`.

  A call after an interruption resumes the work. If the folder is complete, its
  files are verified instead. The files do not depend on `workers` and `runner`,
  which may differ between calls.

  Args:
    config: its task names a source of text.
    raw: folder of the source's raw data; '' for the default folder.
    longest: tokens per validation window, the longest evaluated length.
    vocabulary_size: if not 0 and `config.vocabulary` does not exist, the number
      of ids of a SentencePiece model that is trained and written there.
    workers: processes that encode text. If more than one, the calling program
      must be importable, as for `multiprocessing`.
    runner: Beam runner that encodes text instead, such as 'direct'.
    beam_options: options of Beam, as in a command.
    bad_records: 'fail', or 'skip' to leave out records that are not JSON or
      have no text, and the rest of damaged files; it may differ between calls.

  Returns:
    The manifest. For each split it counts documents, their bytes and tokens
    (including one end token per document), windows, and scored tokens.
    `left_out` counts the tokens that are not scored: those that fill no window,
    and the first token of each validation document. If records were skipped,
    `bad_records` counts them and `first_bad_records` has the first errors.

  Raises:
    errors.LengenError: the data is missing or corrupt, the folder holds other
      data or that of other files, is being written, or cannot be written, or a
      worker was killed.
  """
  source, skip = sources.create(config.task), bad_records == 'skip'
  folder = mirror.fetch(config.path, missing_ok=True)
  if (folder / manifest_lib.MANIFEST).exists():
    manifest = manifest_lib.read(folder)
    manifest_lib.check_config(manifest, config, longest, folder)
    manifest_lib.verify(folder, manifest)
    _check_raw(source, raw, config.vocabulary, manifest, folder)
    with _locked(folder):
      mirror.push(config.path)
    return manifest
  if runner:
    encode.load_beam()
  parts = _parts(source, raw, config.vocabulary)
  sizes = {split: list(map(_size, found)) for split, found in parts.items()}
  try:
    with _locked(folder):
      if vocabulary_size:
        text = _sample(source, parts['train'], skip)
        _train_vocabulary(config, text, vocabulary_size)
      vocab = vocabulary.create(config.vocabulary)
      _print_note(vocab)
      state: Json = {
        **manifest_lib.identity(config, vocab, longest),
        'read': {
          split: [
            [part.path, part.split, part.dataset, size]
            for part, size in zip(found, sizes[split], strict=True)
          ]
          for split, found in parts.items()
        },
        'splits': {split: _empty_counts() for split in parts},
      }
      state = _resume(folder, state)
      cutter = windows.Cutter(
        config.window_length,
        config.mode,
        start=vocab.start,
        rest=state['splits']['train']['rest'],
      )
      cut: dict[str, Callable[[np.ndarray], Iterable[np.ndarray]]] = {
        'train': cutter.cut,
        'validation': functools.partial(windows.whole, length=longest),
      }
      manifest_lib.write_json(folder / manifest_lib.STATE, state)
      if config.vocabulary != 'bytes':
        vocab.copy_to(folder)
      # Incomplete files of workers that were killed.
      for partial in (folder / _PIECES).glob('*.*'):
        partial.unlink(missing_ok=True)
      encoder = encode.Encoder(source, vocab, _GROUP, folder / _PIECES, skip)
      opened: Opening = functools.partial(encode.here, encoder)
      if runner:
        opened = functools.partial(
          encode.with_beam, encoder, runner=runner, options=beam_options
        )
      elif workers > 1:
        opened = functools.partial(
          encode.in_processes, encoder, workers=workers
        )
      for split, found in parts.items():
        writer = _Split(folder, split, state, cut[split], cutter)
        writer.write(source, found, sizes[split], opened)
      shutil.rmtree(folder / _PIECES, ignore_errors=True)
      manifest = {**state, 'splits': _final_counts(state['splits'])}
      manifest_lib.write_json(folder / manifest_lib.MANIFEST, manifest)
      (folder / manifest_lib.STATE).unlink()
      mirror.push(config.path)
  except OSError as error:
    raise errors.CorpusError(
      f'cannot write {folder}: {errors.reason(error)}; finished files are '
      'kept: correct the cause and run the same command to resume'
    ) from error
  return manifest


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[None]:
  """Creates a folder and locks it until the context or the process ends.

  Raises:
    errors.CorpusError: another process holds the lock.
  """
  folder.mkdir(parents=True, exist_ok=True)

  def busy() -> None:
    raise errors.CorpusError(
      f'another lengen prepare is writing {folder}; wait until it ends, or set '
      'data.path to another folder'
    )

  opened = os.open(folder, os.O_RDONLY)
  try:
    locks.lock(opened, busy)
    yield
  finally:
    os.close(opened)


def _parts(
  source: sources.Source, raw: str, vocabulary_file: str
) -> dict[str, list[sources.Part]]:
  """Returns the Parts of each split, without the file of the vocabulary."""
  file = pathlib.Path(vocabulary_file).expanduser().absolute()
  return {
    split: [part for part in source.parts(raw, split) if part.path != str(file)]
    for split in _SPLITS
  }


def _check_raw(
  source: sources.Source,
  raw: str,
  vocabulary_file: str,
  manifest: Mapping[str, Any],
  folder: pathlib.Path,
) -> None:
  """Raises CorpusError if a folder was prepared from other raw data.

  Raw data that is absent is not compared, because it is no longer needed.
  """
  try:
    found = {
      split: [(part, _size(part)) for part in parts]
      for split, parts in _parts(source, raw, vocabulary_file).items()
    }
  except errors.CorpusError:
    return
  for split, read in manifest.get('read', {}).items():
    # Folders may be copied.
    here: list[list[Any]] = [
      [pathlib.PurePath(part.path).name, part.split, part.dataset, size]
      for part, size in found[split]
    ]
    there = [[pathlib.PurePath(path).name, *rest] for path, *rest in read]
    if here != there:
      place = raw or pathlib.PurePath(found[split][0][0].path).parent
      raise errors.CorpusError(
        f'{folder} was prepared from other files than those of {place}: '
        f'{len(read)} files of {sum(size for *_, size in read):,} bytes for '
        f'{split}, not {len(here)} of {sum(size for *_, size in here):,}; set '
        'data.path to another folder, or delete that folder'
      )


def _print_note(vocab: vocabulary.Vocabulary) -> None:
  if not vocab.lossless:
    print(
      f'note: {vocab.name} changes white space or rare characters: bits per '
      'byte and perplexities per word refer to the changed text'
    )


def _empty_counts() -> Json:
  zero = dict.fromkeys(
    (*manifest_lib.COUNTS, 'part', 'text', 'piece', 'read'), 0
  )
  bad: Json = {'bad_records': 0, 'first_bad_records': []}
  return {**zero, **bad, 'rest': [], 'shards': []}


def _final_counts(splits: Json) -> Json:
  """Returns the counts of all splits as the manifest holds them."""
  final = {}
  for split, counts in splits.items():
    kept = {key: counts[key] for key in (*manifest_lib.COUNTS, 'shards')}
    left_out = counts['tokens'] - counts['scored']
    final[split] = {**kept, 'left_out': left_out}
    if counts['bad_records']:
      for key in ('bad_records', 'first_bad_records'):
        final[split][key] = counts[key]
  return final


def _resume(folder: pathlib.Path, state: Json) -> Json:
  """Returns the state saved in a folder, or `state` if it has no windows.

  Raises:
    errors.CorpusError: the saved state belongs to other windows.
  """
  path = folder / manifest_lib.STATE
  if not path.exists():
    return state
  kept = manifest_lib.read_json(path)
  if not any(split['shards'] for split in kept['splits'].values()):
    return state
  wanted = {k: v for k, v in state.items() if k not in ('read', 'splits')}
  manifest_lib.check(kept, wanted, folder)
  if kept['read'] != state['read']:
    raise errors.CorpusError(
      f'the raw data has changed since {folder} was created; delete that '
      'folder to start again'
    )
  # States of earlier versions do not count bad records.
  for split, counts in kept['splits'].items():
    kept['splits'][split] = {**_empty_counts(), **counts}
  return kept


def _train_vocabulary(
  config: DataConfig, text: Iterator[bytes], size: int
) -> None:
  if config.vocabulary == 'bytes':
    raise errors.ConfigError(
      "data.vocabulary='bytes' cannot be trained; to train a model with "
      '--vocabulary-size, set data.vocabulary to its path'
    )
  if remote.is_remote(config.vocabulary):
    raise errors.ConfigError(
      f'data.vocabulary={config.vocabulary} is in an object store, where '
      '--vocabulary-size cannot write; set it to a local path'
    )
  path = pathlib.Path(config.vocabulary).expanduser()
  if path.exists():
    found = vocabulary.create(config.vocabulary).size
    if found != size:
      raise errors.ConfigError(
        f'{path} exists and has {found} pieces, not --vocabulary-size={size}; '
        'omit --vocabulary-size, or set data.vocabulary to another path'
      )
    return
  print(
    f'prepare: training a vocabulary of {size} pieces on up to '
    f'{_VOCABULARY_BYTES / 1e6:.0f} MB of text: minutes',
    flush=True,
  )
  began = time.monotonic()
  vocabulary.train(text, size, path)
  took = time.monotonic() - began
  print(f'prepare: wrote {path} after {took:.1f} s', flush=True)


def _sample(
  source: sources.Source, parts: Parts, skip: bool
) -> Iterator[bytes]:
  """Yields text from the beginning of each part to train a vocabulary."""
  left = _VOCABULARY_BYTES
  for number, part in enumerate(parts):
    share = left // (len(parts) - number)
    for text in source.read_all(part) if skip else source.read(part):
      if isinstance(text, errors.RecordError):
        continue
      text = text[:share]
      yield text
      share -= len(text)
      left -= len(text)
      if not share:
        break


class _Split:
  """Writer of the windows of one split.

  The counts of the split in the state include the position after the last
  finished file: 'piece' is the index of a piece, 'read' the number of documents
  read from it, 'part' the index of the part of the last document, and 'text'
  the bytes of text read from that part.
  """

  def __init__(
    self,
    folder: pathlib.Path,
    split: str,
    state: Json,
    cut: Callable[[np.ndarray], Iterable[np.ndarray]],
    cutter: windows.Cutter,
  ) -> None:
    self._folder, self._split, self._state = folder, split, state
    self._cut, self._cutter = cut, cutter
    self._counts = state['splits'][split]
    self._file = _Shard(self._path())
    # Numbers and files of the pieces after the last finished file.
    self._pieces: collections.deque[tuple[int, remote.AnyPath]]
    self._pieces = collections.deque()

  def write(
    self,
    source: sources.Source,
    parts: Parts,
    sizes: Sequence[int],
    opening: Opening,
  ) -> None:
    """Writes all parts, starting where the state ends."""
    counts = self._counts
    before = [0, *itertools.accumulate(sizes)]
    pieces = itertools.islice(
      encode.divide(parts, sizes), counts['piece'], None
    )
    with (
      progress_lib.Progress(
        f'prepare {self._split}',
        before[-1] or 1,
        what='byte',
        unit='bytes',
        first=self._done(before, sizes),
      ) as progress,
      contextlib.closing(opening(pieces)) as opened,
    ):
      try:
        for part, documents in itertools.groupby(
          self._documents(opened), lambda found: found[2].part
        ):
          if part != counts['part']:
            counts['part'], counts['text'] = part, 0
          while group := list(itertools.islice(documents, _GROUP)):
            self._write_group(group)
            counts['text'] += sum(document.size for _, _, document in group)
            done = self._done(before, sizes)
            progress.update(done, f'{counts["tokens"]:,} tokens')
        progress.update(before[-1], f'{counts["tokens"]:,} tokens')
        if not counts['windows']:
          raise self._empty(source, parts)
        if self._pieces:
          counts['piece'], counts['read'] = self._pieces[-1][0] + 1, 0
        counts['part'] = len(parts)
        self._finish_shard()
      finally:
        self._file.abandon()

  def _done(self, before: Sequence[int], sizes: Sequence[int]) -> int:
    """Returns the bytes read of all parts, which `before` sums up."""
    part, text = self._counts['part'], self._counts['text']
    if part == len(sizes):
      return before[part]
    # Compressed text is longer than its file: stop below 100%.
    return before[part] + min(text, max(sizes[part] - 1, 0))

  def _documents(
    self, opened: Iterator[encode.Opened]
  ) -> Iterator[tuple[int, int, encode.Document]]:
    """Yields (piece, documents read of it, document) after the position."""
    read = self._counts['read']
    first = self._counts['piece']
    for number, (path, documents) in enumerate(opened, start=first):
      self._pieces.append((number, path))
      for count, document in enumerate(documents(read), start=read + 1):
        yield number, count, document
      read = 0

  def _write_group(
    self, group: Sequence[tuple[int, int, encode.Document]]
  ) -> None:
    counts = self._counts
    for piece, read, document in group:
      counts['piece'], counts['read'] = piece, read
      if document.bad:
        print(f'prepare {self._split}: skipped {document.bad}', flush=True)
        counts['bad_records'] += 1
        if len(counts['first_bad_records']) < _NAMED:
          counts['first_bad_records'].append(document.bad)
        continue
      counts['documents'] += 1
      counts['bytes'] += document.size
      counts['tokens'] += len(document.ids)
      for window in self._cut(document.ids):
        counts['windows'] += 1
        counts['scored'] += len(window) - 1
        self._file.write(window.astype(document.ids.dtype))
    if self._file.tokens >= _SHARD_TOKENS:
      self._finish_shard()

  def _finish_shard(self) -> None:
    """Closes the file and saves the state."""
    counts = self._counts
    if self._file.records:
      counts['shards'].append({**self._file.close(), 'file': self._path().name})
    counts['rest'] = self._cutter.rest.tolist()
    manifest_lib.write_json(self._folder / manifest_lib.STATE, self._state)
    self._file = _Shard(self._path())
    while self._pieces and self._pieces[0][0] < counts['piece']:
      self._pieces.popleft()[1].unlink(missing_ok=True)

  def _path(self) -> pathlib.Path:
    number = len(self._counts['shards'])
    return self._folder / self._split / f'{number:05}.array_record'

  def _empty(self, source: sources.Source, parts: Parts) -> errors.CorpusError:
    found, split = self._counts['documents'], self._split
    if not found:
      text = (
        f'the {split} split has no documents in {len(parts)} files such as '
        f'{parts[0].path}; {source.how}'
      )
      if bad := self._counts['first_bad_records']:
        text += f'; {self._counts["bad_records"]} were skipped: {bad[0]}'
      if parts[0].split:
        text += (
          '; without a validation file, one document in '
          f'{sources.HELD_OUT} is held out by a hash; add validation.jsonl or '
          'validation.txt, or more documents'
        )
      return errors.CorpusError(text)
    length = self._state['train_length' if split == 'train' else 'longest']
    return errors.CorpusError(
      f'the {split} split has no window of {length} tokens in {found} '
      'documents; lower data.train_length or eval.lengths, or add text'
    )


class _Shard:
  """One file, written under a temporary name until it is complete."""

  def __init__(self, path: pathlib.Path) -> None:
    self._path, self._partial = path, path.with_suffix('.partial')
    self._writer: Any = None
    self.records, self.tokens = 0, 0

  def write(self, ids: np.ndarray) -> None:
    if self._writer is None:
      self._path.parent.mkdir(exist_ok=True)
      module = extra.load(
        'array_record.python.array_record_module', 'writing prepared data'
      )
      self._writer = self._guard(
        module.ArrayRecordWriter, str(self._partial), 'group_size:1,zstd:1'
      )
    self._guard(self._writer.write, ids.tobytes())
    self.records += 1
    self.tokens += len(ids)

  def close(self) -> Json:
    """Renames the complete file; returns its entry in the manifest."""
    self._guard(self._writer.close)
    self._writer = None
    os.replace(self._partial, self._path)
    return {
      'records': self.records,
      'size': self._path.stat().st_size,
      'sha256': manifest_lib.sha256(self._path),
    }

  def abandon(self) -> None:
    """Deletes the file if it is incomplete."""
    if self._writer is not None:
      try:
        self._writer.close()
      except Exception:  # The file is deleted; the cause was raised already.
        pass
      self._partial.unlink(missing_ok=True)

  def _guard(self, function: Callable[..., Any], *args: Any) -> Any:
    try:
      return function(*args)
    except RuntimeError as error:
      raise OSError(errors.reason(error)) from error


def _size(part: sources.Part) -> int:
  """Returns bytes of a part, for progress and to detect changes."""
  if not part.dataset:
    return readers.size(part.path)
  files = pathlib.Path(part.path).glob(f'*-{part.dataset.split("@")[1]}.*')
  return sum(file.stat().st_size for file in files)
