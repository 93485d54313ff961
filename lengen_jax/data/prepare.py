"""`lengen prepare`: text to windows of token ids, once, in ArrayRecord files.

The folder holds `train/` and `validation/` with one record per window, the
vocabulary, and manifest.json, which says what is in them and is written last.
Until then state.json says how far it is: the same call goes on from the last
file that was finished, and gives the same files as one that was not stopped.
"""

import dataclasses
import hashlib
import itertools
import json
import os
import pathlib
import shutil
import time

import numpy as np

from lengen_jax import errors
from lengen_jax import progress as progress_lib
from lengen_jax.data import documents
from lengen_jax.data import sources
from lengen_jax.data import vocabulary
from lengen_jax.data import windows

MANIFEST = 'manifest.json'
VOCABULARY = 'vocabulary.model'
_STATE = 'state.json'
# Token ids per file, and documents that are tokenized together.
_SHARD_TOKENS = 1 << 26
_GROUP = 64


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
    The manifest, a dict.

  Raises:
    errors.LengenError: the data is missing or broken, the folder holds
      something else, or cannot be written.
  """
  source = sources.create(config.task)
  folder = pathlib.Path(config.path).expanduser().absolute()
  if (folder / MANIFEST).exists():
    return _verify(folder, config, longest)
  parts = {split: source.parts(raw, split) for split in ('validation', 'train')}
  try:
    folder.mkdir(parents=True, exist_ok=True)
    if vocabulary_size:
      _train_vocabulary(config, source, parts['train'], vocabulary_size)
    return _prepare(config, source, parts, folder, longest)
  except OSError as error:
    raise errors.CorpusError(
      f'cannot write {folder}: {error.strerror or error}; the files that are '
      'finished stay, and the same command goes on from them'
    ) from error


def identity(config, vocab, longest):
  """What windows depend on beside the text."""
  return {
    'format': 1,
    'task': config.task,
    'vocabulary': vocab.fingerprint,
    'vocab_size': vocab.size,
    'mode': config.mode,
    'train_length': config.train_length,
    'longest': longest,
  }


def check_identity(found, wanted, folder):
  """Raises where a folder holds other windows than a config asks for."""
  names = {'longest': 'the longest of eval.lengths'}
  differences = [
    f'{names.get(key, "data." + key)}: {found.get(key)!r} there, '
    f'{wanted[key]!r} here'
    for key in wanted
    if found.get(key) != wanted[key]
  ]
  if differences:
    raise errors.CorpusError(
      f'{folder} holds other data ({"; ".join(differences)}); set data.path to '
      'another folder, and run lengen prepare'
    )


def _train_vocabulary(config, source, parts, size):
  path = pathlib.Path(config.vocabulary).expanduser()
  if path.exists():
    return
  if config.vocabulary == 'bytes':
    raise errors.ConfigError(
      "data.vocabulary='bytes' is not trained; set it to the path of the model "
      'that --vocabulary-size is to give'
    )
  print(f'prepare: training a vocabulary of {size} pieces ...', flush=True)
  began = time.monotonic()
  texts = itertools.chain.from_iterable(
    documents.read(source, part) for part in parts
  )
  path.parent.mkdir(parents=True, exist_ok=True)
  vocabulary.train(texts, size, path)
  took = time.monotonic() - began
  print(f'prepare: wrote {path} after {took:.1f} s', flush=True)


def _prepare(config, source, parts, folder, longest):
  vocab = vocabulary.create(config.vocabulary)
  wanted = identity(config, vocab, longest)
  read = {
    split: [[*dataclasses.astuple(part), _size(part)] for part in found]
    for split, found in parts.items()
  }
  state = {'identity': wanted, 'read': read, 'splits': {}}
  if (folder / _STATE).exists():
    kept = json.loads((folder / _STATE).read_text())
    check_identity(kept['identity'], wanted, folder)
    if kept['read'] != read:
      raise errors.CorpusError(
        f'the raw data has changed since {folder} was begun; delete that '
        'folder to start over'
      )
    state = kept
  if config.vocabulary != 'bytes':
    path = pathlib.Path(config.vocabulary).expanduser()
    shutil.copyfile(path, folder / VOCABULARY)
  _write_json(folder / _STATE, state)
  for split in ('validation', 'train'):
    split_state = state['splits'].setdefault(split, _Split.begin())
    if not split_state['finished']:
      _Split(config, source, vocab, folder, longest, split, state).write(
        parts[split]
      )
  manifest = {
    **wanted,
    'read': read,
    'splits': {
      split: {
        key: value
        for key, value in found.items()
        if key not in ('part', 'read', 'rest', 'finished')
      }
      for split, found in state['splits'].items()
    },
  }
  _write_json(folder / MANIFEST, manifest)
  (folder / _STATE).unlink()
  return manifest


class _Split:
  """Writes the windows of one split, file after file."""

  def __init__(self, config, source, vocab, folder, longest, split, state):
    self._config, self._source, self._vocab = config, source, vocab
    self._folder, self._split, self._state = folder, split, state
    self._counts = state['splits'][split]
    self._longest = longest
    self._dtype = np.uint16 if vocab.size <= 1 << 16 else np.int32
    self._cutter = windows.Cutter(
      config.train_length,
      config.mode,
      start=vocabulary.PAD,
      rest=self._counts['rest'],
    )
    self._file = _Shard(self._path())

  @staticmethod
  def begin():
    """The state of a split that has not begun."""
    zero = dict.fromkeys(
      ('part', 'read', 'documents', 'bytes', 'tokens', 'windows', 'scored'), 0
    )
    return {**zero, 'rest': [], 'shards': [], 'finished': False}

  def write(self, parts):
    """Goes through the parts from where the state stands."""
    total = sum(map(_size, parts))
    before = sum(map(_size, parts[: self._counts['part']]))
    label = f'prepare {self._split}'
    with progress_lib.Progress(
      label, total or 1, what='byte', unit='bytes', first=before
    ) as progress:
      try:
        for part in parts[self._counts['part'] :]:
          self._write_part(part)
          before += _size(part)
          progress.update(before, f'{self._counts["tokens"]:,} tokens')
          self._counts['part'] += 1
          self._counts['read'] = 0
        if not self._counts['windows']:
          length = self._config.train_length
          length = length if self._split == 'train' else self._longest
          raise errors.CorpusError(
            f'the {self._split} split has no window of {length} tokens in '
            f'{self._counts["documents"]} documents; lower data.train_length '
            'or eval.lengths, or add text'
          )
        self._finish_shard(finished=True)
      finally:
        self._file.abandon()

  def _write_part(self, part):
    found = documents.read(self._source, part)
    found = itertools.islice(found, self._counts['read'], None)
    while group := list(itertools.islice(found, _GROUP)):
      for text, ids in zip(group, self._vocab.encode(group), strict=True):
        self._write_document(text, np.append(ids, np.int32(vocabulary.END)))
      self._counts['read'] += len(group)
      if self._file.tokens >= _SHARD_TOKENS:
        self._finish_shard()

  def _write_document(self, text, ids):
    counts = self._counts
    counts['documents'] += 1
    counts['bytes'] += len(text)
    counts['tokens'] += len(ids)
    found = (
      self._cutter.cut(ids)
      if self._split == 'train'
      else windows.whole(ids, self._longest)
    )
    for window in found:
      counts['windows'] += 1
      counts['scored'] += len(window) - 1
      self._file.write(window.astype(self._dtype))

  def _finish_shard(self, finished=False):
    """Closes the file and keeps how far we are."""
    if self._file.records:
      self._counts['shards'].append(
        {**self._file.close(), 'file': self._path().name}
      )
    self._counts['rest'] = self._cutter.rest.tolist()
    self._counts['finished'] = finished
    _write_json(self._folder / _STATE, self._state)
    self._file = _Shard(self._path())

  def _path(self):
    number = len(self._counts['shards'])
    return self._folder / self._split / f'{number:05}.array_record'


class _Shard:
  """One file, under another name until it is whole."""

  def __init__(self, path):
    self._path, self._partial = path, path.with_suffix('.partial')
    self._writer, self.records, self.tokens = None, 0, 0

  def write(self, ids):
    if self._writer is None:
      self._path.parent.mkdir(exist_ok=True)
      self._writer = _array_record().ArrayRecordWriter(
        str(self._partial), 'group_size:1,zstd:1'
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
      'sha256': sha256(self._path),
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
      function(*args)
    except RuntimeError as error:
      raise OSError(str(error).splitlines()[0]) from error


def sha256(path):
  """Hash of a file's content."""
  with open(path, 'rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def read_manifest(folder):
  """The manifest of a folder that was prepared.

  Raises:
    errors.CorpusError: there is none, or a file is missing or has another size.
  """
  path = folder / MANIFEST
  if (folder / _STATE).exists() and not path.exists():
    raise errors.CorpusError(
      f'{folder} is not finished; go on with it by lengen prepare'
    )
  try:
    manifest = json.loads(path.read_text())
  except OSError:
    raise errors.CorpusError(
      f'no prepared data in {folder} (no {MANIFEST}); write it with lengen '
      'prepare, or read the raw data by data.source=seqio'
    ) from None
  except ValueError as error:
    raise errors.CorpusError(f'{path} is broken: {error}') from None
  for file, shard in shards(folder, manifest):
    size = file.stat().st_size if file.exists() else None
    if size != shard['size']:
      raise _damaged(
        file, 'is missing' if size is None else f'has {size} bytes', shard
      )
  return manifest


def shards(folder, manifest, split=None):
  """(path, entry of the manifest) of all files, or those of a split."""
  return [
    (folder / name / shard['file'], shard)
    for name, found in manifest['splits'].items()
    for shard in found['shards']
    if split in (None, name)
  ]


def _verify(folder, config, longest):
  """Checks a finished folder file by file; returns its manifest."""
  manifest = read_manifest(folder)
  wanted = identity(config, vocabulary.create(config.vocabulary), longest)
  check_identity(manifest, wanted, folder)
  found = shards(folder, manifest)
  with progress_lib.Progress(
    'prepare: checking', len(found), what='file', unit='files'
  ) as progress:
    for number, (file, shard) in enumerate(found):
      if sha256(file) != shard['sha256']:
        raise _damaged(file, 'has another hash', shard)
      progress.update(number + 1)
  return manifest


def _damaged(file, what, shard):
  return errors.CorpusError(
    f'{file} {what}; the manifest has {shard["size"]} bytes with sha256 '
    f'{shard["sha256"][:12]}...: the file is damaged; copy it again, or delete '
    f'{file.parent.parent} and run lengen prepare'
  )


def _size(part):
  """Bytes of a file, for progress and to see that it is the same."""
  path = pathlib.Path(part.path.split('!/')[0])
  if path.is_file():
    return path.stat().st_size
  return sum(file.stat().st_size for file in path.iterdir() if file.is_file())


def _write_json(path, value):
  partial = path.with_name(path.name + '.partial')
  partial.write_text(json.dumps(value, indent=1) + '\n')
  os.replace(partial, path)


def _array_record():
  try:
    from array_record.python import array_record_module
  except ImportError as error:
    raise errors.CorpusError(
      "prepared data needs the data extra: pip install 'lengen_jax[data]'"
    ) from error
  return array_record_module
