"""`lengen prepare`: tokenizes text and writes windows to ArrayRecord files.

The folder holds `train/` and `validation/` with one record per window, a copy
of the vocabulary and the manifest. An interrupted run resumes after the last
finished file and writes the same files as an uninterrupted one.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
import dataclasses
import functools
import itertools
import os
import pathlib
import time
from typing import Any

import numpy as np

from lengen_jax import errors
from lengen_jax import progress as progress_lib
from lengen_jax.data import (
  extra,
  readers,
  sources,
  vocabulary,
  windows,
)
from lengen_jax.data import manifest as manifest_lib
from lengen_jax.data.config import DataConfig

# A dict as JSON files hold it.
Json = dict[str, Any]
Parts = Sequence[sources.Part]

# Token ids per file; bounds the number of files that a reader opens.
_SHARD_TOKENS = 1 << 28
# Documents per call of the tokenizer.
_GROUP = 64
# Bytes of text that a vocabulary is trained on, an equal share per file.
_VOCABULARY_BYTES = 1 << 27


def prepare(
  config: DataConfig, *, raw: str = '', longest: int, vocabulary_size: int = 0
) -> Json:
  """Writes the token windows of a data config to `config.path`.

  A call after an interruption resumes the work. If the folder is complete, its
  files are verified instead.

  Args:
    config: its task names a source of text.
    raw: folder of the source's raw data; '' for the default folder.
    longest: tokens per validation window, the longest evaluated length.
    vocabulary_size: if not 0 and `config.vocabulary` does not exist, the number
      of ids of a SentencePiece model that is trained and written there.

  Returns:
    The manifest. For each split it counts documents, their bytes and tokens
    (including one end token per document), windows, and scored tokens.
    `left_out` counts the tokens that are not scored: those that fill no window,
    and the first token of each validation document.

  Raises:
    errors.LengenError: the data is missing or corrupt, the folder holds other
      data, or cannot be written.
  """
  source = sources.create(config.task)
  folder = pathlib.Path(config.path).expanduser().absolute()
  if (folder / manifest_lib.MANIFEST).exists():
    manifest = manifest_lib.read(folder)
    manifest_lib.check_config(manifest, config, longest, folder)
    manifest_lib.verify(folder, manifest)
    return manifest
  parts = {split: source.parts(raw, split) for split in ('validation', 'train')}
  sizes = {split: list(map(_size, found)) for split, found in parts.items()}
  if vocabulary_size:
    _train_vocabulary(config, source, parts['train'], vocabulary_size)
  vocab = vocabulary.create(config.vocabulary)
  _print_note(vocab)
  state: Json = {
    **manifest_lib.identity(config, vocab, longest),
    'read': {
      split: [
        [*dataclasses.astuple(part), size]
        for part, size in zip(found, sizes[split], strict=True)
      ]
      for split, found in parts.items()
    },
    'splits': {split: _empty_counts() for split in parts},
  }
  state = _resume(folder, state)
  cutter = windows.Cutter(
    config.train_length,
    config.mode,
    start=vocab.start,
    rest=state['splits']['train']['rest'],
  )
  cut: dict[str, Callable[[np.ndarray], Iterable[np.ndarray]]] = {
    'train': cutter.cut,
    'validation': functools.partial(windows.whole, length=longest),
  }
  try:
    folder.mkdir(parents=True, exist_ok=True)
    manifest_lib.write_json(folder / manifest_lib.STATE, state)
    if config.vocabulary != 'bytes':
      vocab.copy_to(folder)
    for split, found in parts.items():
      writer = _Split(folder, split, state, vocab, cut[split], cutter)
      writer.write(source, found, sizes[split])
    manifest = {**state, 'splits': _final_counts(state['splits'])}
    manifest_lib.write_json(folder / manifest_lib.MANIFEST, manifest)
    (folder / manifest_lib.STATE).unlink()
  except OSError as error:
    raise errors.CorpusError(
      f'cannot write {folder}: {extra.reason(error)}; finished files are kept: '
      'correct the cause and run the same command to resume'
    ) from error
  return manifest


def _print_note(vocab: vocabulary.Vocabulary) -> None:
  if not vocab.lossless:
    print(
      f'note: {vocab.name} changes white space or rare characters: bits per '
      'byte and perplexities per word refer to the changed text'
    )


def _empty_counts() -> Json:
  zero = dict.fromkeys((*manifest_lib.COUNTS, 'part', 'read'), 0)
  return {**zero, 'rest': [], 'shards': []}


def _final_counts(splits: Json) -> Json:
  """Returns the counts of all splits as the manifest holds them."""
  final = {}
  for split, counts in splits.items():
    kept = {key: counts[key] for key in (*manifest_lib.COUNTS, 'shards')}
    left_out = counts['tokens'] - counts['scored']
    final[split] = {**kept, 'left_out': left_out}
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
  return kept


def _train_vocabulary(
  config: DataConfig, source: sources.Source, parts: Parts, size: int
) -> None:
  if config.vocabulary == 'bytes':
    raise errors.ConfigError(
      "data.vocabulary='bytes' cannot be trained; to train a model with "
      '--vocabulary-size, set data.vocabulary to its path'
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
  vocabulary.train(_sample(source, parts), size, path)
  took = time.monotonic() - began
  print(f'prepare: wrote {path} after {took:.1f} s', flush=True)


def _sample(source: sources.Source, parts: Parts) -> Iterator[bytes]:
  """Yields text from the beginning of each part to train a vocabulary."""
  left = _VOCABULARY_BYTES
  for number, part in enumerate(parts):
    share = left // (len(parts) - number)
    for text in source.read(part):
      text = text[:share]
      yield text
      share -= len(text)
      left -= len(text)
      if not share:
        break


class _Split:
  """Writer of the windows of one split."""

  def __init__(
    self,
    folder: pathlib.Path,
    split: str,
    state: Json,
    vocab: vocabulary.Vocabulary,
    cut: Callable[[np.ndarray], Iterable[np.ndarray]],
    cutter: windows.Cutter,
  ) -> None:
    self._folder, self._split, self._state = folder, split, state
    self._vocab, self._cut, self._cutter = vocab, cut, cutter
    self._counts = state['splits'][split]
    self._dtype = manifest_lib.dtype(vocab.size)
    self._file = _Shard(self._path())

  def write(
    self, source: sources.Source, parts: Parts, sizes: Sequence[int]
  ) -> None:
    """Writes all parts, starting where the state ends."""
    counts, first = self._counts, self._counts['part']
    before = sum(sizes[:first])
    with progress_lib.Progress(
      f'prepare {self._split}',
      sum(sizes) or 1,
      what='byte',
      unit='bytes',
      first=before,
    ) as progress:
      try:
        for part, size in zip(parts[first:], sizes[first:], strict=True):
          text = 0
          for group in self._groups(source, part):
            self._write_group(group)
            # Compressed text is longer than its file: stop below 100%.
            text += sum(map(len, group))
            done = before + min(text, max(size - 1, 0))
            progress.update(done, f'{counts["tokens"]:,} tokens')
          before += size
          counts['part'], counts['read'] = counts['part'] + 1, 0
        progress.update(before, f'{counts["tokens"]:,} tokens')
        if not counts['windows']:
          raise self._empty(source, parts)
        self._finish_shard()
      finally:
        self._file.abandon()

  def _groups(
    self, source: sources.Source, part: sources.Part
  ) -> Iterator[list[bytes]]:
    found = source.read(part, self._counts['read'])
    while group := list(itertools.islice(found, _GROUP)):
      yield group

  def _write_group(self, group: list[bytes]) -> None:
    counts = self._counts
    for text, ids in zip(group, self._vocab.encode(group), strict=True):
      ids = np.append(ids, np.int32(self._vocab.end))
      counts['documents'] += 1
      counts['bytes'] += len(text)
      counts['tokens'] += len(ids)
      for window in self._cut(ids):
        counts['windows'] += 1
        counts['scored'] += len(window) - 1
        self._file.write(window.astype(self._dtype))
    counts['read'] += len(group)
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
      raise OSError(extra.reason(error)) from error


def _size(part: sources.Part) -> int:
  """Returns bytes of a part, for progress and to detect changes."""
  if not part.dataset:
    return readers.size(part.path)
  files = pathlib.Path(part.path).glob(f'*-{part.dataset.split("@")[1]}.*')
  return sum(file.stat().st_size for file in files)
