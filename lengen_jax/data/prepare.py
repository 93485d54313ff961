"""`lengen prepare`: text to windows of token ids, once, in ArrayRecord files.

The folder holds `train/` and `validation/` with one record per window, a copy
of the vocabulary, and what `manifest` tells. The same call goes on from the
last file that was finished, and gives the same files as one that was not
stopped.
"""

import dataclasses
import functools
import itertools
import os
import pathlib
import shutil
import time

import numpy as np

from lengen_jax import errors
from lengen_jax import progress as progress_lib
from lengen_jax.data import documents
from lengen_jax.data import extra
from lengen_jax.data import manifest as manifest_lib
from lengen_jax.data import readers
from lengen_jax.data import sources
from lengen_jax.data import vocabulary
from lengen_jax.data import windows

# A copy; data.vocabulary may name it.
VOCABULARY = 'vocabulary.model'
# Token ids per file: as many files as a process may hold open.
_SHARD_TOKENS = 1 << 28
# Documents that are tokenized together.
_GROUP = 64
# Bytes of text that a vocabulary is trained on, of all files alike.
_VOCABULARY_BYTES = 1 << 27


def prepare(config, *, raw='', longest, vocabulary_size=0):
  """Writes the windows of a config to `config.path`, or goes on with it.

  A folder that is finished is checked file by file instead.

  Args:
    config: a DataConfig; its task names a source of text.
    raw: where the source's data lies; '' for where data lies by default.
    longest: tokens of a validation window, the longest length evaluated.
    vocabulary_size: if not 0 and there is no vocabulary at
      `config.vocabulary`, train a SentencePiece model of so many ids.

  Returns:
    The manifest, a dict. Of each split it counts documents, their bytes and
    tokens (an end of each document included), windows, the tokens scored in
    them, and those left out: they fill no window, or come first in a document
    of validation.

  Raises:
    errors.LengenError: the data is missing or broken, the folder holds
      something else, or cannot be written.
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
  if not vocab.lossless:
    print(
      f'note: {vocab.name} does not keep white space or rare characters: bits '
      'per byte and perplexities per word are of the text that it keeps'
    )
  state = {
    **manifest_lib.identity(config, vocab, longest),
    'read': {
      split: [
        [*dataclasses.astuple(part), size]
        for part, size in zip(found, sizes[split], strict=True)
      ]
      for split, found in parts.items()
    },
    'splits': {split: _begin() for split in parts},
  }
  state = _go_on(folder, state)
  cutter = windows.Cutter(
    config.train_length,
    config.mode,
    start=vocab.start,
    rest=state['splits']['train']['rest'],
  )
  cut = {
    'train': cutter.cut,
    'validation': functools.partial(windows.whole, length=longest),
  }
  try:
    folder.mkdir(parents=True, exist_ok=True)
    manifest_lib.write_json(folder / manifest_lib.STATE, state)
    if config.vocabulary != 'bytes':
      path = pathlib.Path(config.vocabulary).expanduser().absolute()
      if path != folder / VOCABULARY:
        shutil.copyfile(path, folder / VOCABULARY)
    for split, found in parts.items():
      writer = _Split(folder, split, state, vocab, cut[split], cutter)
      writer.write(source, found, sizes[split])
    manifest = {**state, 'splits': {}}
    for split, counts in state['splits'].items():
      left_out = counts['tokens'] - counts['scored']
      kept = {key: counts[key] for key in (*manifest_lib.COUNTS, 'shards')}
      manifest['splits'][split] = {**kept, 'left_out': left_out}
    manifest_lib.write_json(folder / manifest_lib.MANIFEST, manifest)
    (folder / manifest_lib.STATE).unlink()
  except OSError as error:
    raise errors.CorpusError(
      f'cannot write {folder}: {extra.reason(error)}; the files that are '
      'finished stay: mend it, and the same command goes on from them'
    ) from error
  return manifest


def _begin():
  """The state of a split that has not begun."""
  zero = dict.fromkeys((*manifest_lib.COUNTS, 'part', 'read'), 0)
  return {**zero, 'rest': [], 'shards': []}


def _go_on(folder, state):
  """The state that is kept in a folder, or a new one.

  Raises:
    errors.CorpusError: that of other windows.
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
      f'the raw data has changed since {folder} was begun; delete that folder '
      'to start over'
    )
  return kept


def _train_vocabulary(config, source, parts, size):
  if config.vocabulary == 'bytes':
    raise errors.ConfigError(
      "data.vocabulary='bytes' is not trained; set it to the path of the model "
      'that --vocabulary-size is to give'
    )
  path = pathlib.Path(config.vocabulary).expanduser()
  if path.exists():
    found = vocabulary.create(config.vocabulary).size
    if found != size:
      raise errors.ConfigError(
        f'{path} has {found} pieces already, not --vocabulary-size={size}; '
        'leave that out, or set data.vocabulary to another path'
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


def _sample(source, parts):
  """Text from the beginning of each part, as much as a vocabulary needs."""
  left = _VOCABULARY_BYTES
  for number, part in enumerate(parts):
    share = left // (len(parts) - number)
    for text in documents.read(source, part):
      text = text[:share]
      yield text
      share -= len(text)
      left -= len(text)
      if not share:
        break


class _Split:
  """Writes the windows of one split, file after file."""

  def __init__(self, folder, split, state, vocab, cut, cutter):
    self._folder, self._split, self._state = folder, split, state
    self._vocab, self._cut, self._cutter = vocab, cut, cutter
    self._counts = state['splits'][split]
    self._dtype = manifest_lib.dtype(vocab.size)
    self._file = _Shard(self._path())

  def write(self, source, parts, sizes):
    """Goes through the parts from where the state stands."""
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
            # Compressed text is longer than its file: not beyond the end.
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

  def _groups(self, source, part):
    found = documents.read(source, part, self._counts['read'])
    while group := list(itertools.islice(found, _GROUP)):
      yield group

  def _write_group(self, group):
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

  def _finish_shard(self):
    """Closes the file and keeps how far we are."""
    counts = self._counts
    if self._file.records:
      counts['shards'].append({**self._file.close(), 'file': self._path().name})
    counts['rest'] = self._cutter.rest.tolist()
    manifest_lib.write_json(self._folder / manifest_lib.STATE, self._state)
    self._file = _Shard(self._path())

  def _path(self):
    number = len(self._counts['shards'])
    return self._folder / self._split / f'{number:05}.array_record'

  def _empty(self, source, parts):
    found, split = self._counts['documents'], self._split
    if not found:
      text = (
        f'the {split} split has no documents in {len(parts)} files such as '
        f'{parts[0].path}; {source.how}'
      )
      if parts[0].split:
        text += (
          '; as no file is named as validation, one document in '
          f'{sources.HELD_OUT} is held out for it, by a hash; name one so, '
          'validation.jsonl or validation.txt, or add documents'
        )
      return errors.CorpusError(text)
    length = self._state['train_length' if split == 'train' else 'longest']
    return errors.CorpusError(
      f'the {split} split has no window of {length} tokens in {found} '
      'documents; lower data.train_length or eval.lengths, or add text'
    )


class _Shard:
  """One file, under another name until it is whole."""

  def __init__(self, path):
    self._path, self._partial = path, path.with_suffix('.partial')
    self._writer, self.records, self.tokens = None, 0, 0

  def write(self, ids):
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

  def close(self):
    """Gives the file its name; returns what the manifest says of it."""
    self._guard(self._writer.close)
    self._writer = None
    os.replace(self._partial, self._path)
    return {
      'records': self.records,
      'size': self._path.stat().st_size,
      'sha256': manifest_lib.sha256(self._path),
    }

  def abandon(self):
    """Leaves a file that was not finished."""
    if self._writer is not None:
      try:
        self._writer.close()
      except Exception:  # It is thrown away; what was wrong is told already.
        pass
      self._partial.unlink(missing_ok=True)

  def _guard(self, function, *args):
    try:
      return function(*args)
    except RuntimeError as error:
      raise OSError(extra.reason(error)) from error


def _size(part):
  """Bytes of a part, for progress and to see that it is the same."""
  if not part.dataset:
    return readers.size(part.path)
  files = pathlib.Path(part.path).glob(f'*-{part.dataset.split("@")[1]}.*')
  return sum(file.stat().st_size for file in files)
