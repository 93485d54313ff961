"""Sources of text for language models.

A source defines the names of its files, the split of each file, and the extent
of a document. `SOURCES` lists all sources; a spec such as `c4` or
`lm(text_key='content')` selects one.
"""

import abc
from collections.abc import Iterator, Mapping
import dataclasses
import hashlib
import os
import pathlib
import re
from typing import Any

from lengen_jax import errors, extra, specs
from lengen_jax.data import manifest, paths, readers, remote

SPLITS = ('train', 'validation', 'test')
_SPLIT_WORDS = {
  'train': 'train',
  'training': 'train',
  'val': 'validation',
  'valid': 'validation',
  'validation': 'validation',
  'dev': 'validation',
  'eval': 'validation',
  'test': 'test',
}
# In a source without splits, validation and test each hold one document in
# HELD_OUT.
HELD_OUT = 200
_TEXT_FILE = re.compile(r'(?:.*\.)?(\w+)\.txt(?:\.gz|\.zst)?')
# Files that would be read as one text each.
_ARCHIVES = ('.tar', '.tar.gz', '.tgz', '.tar.zst', '.zip', '.7z', '.rar')
_PACKED = ('.xz', '.bz2', '.lz4', *_ARCHIVES)
_TITLE = re.compile(rb' = (?!= ).+ = \s*')


@dataclasses.dataclass(frozen=True)
class Part:
  """A unit of reading: a file, or a split in TensorFlow Datasets.

  Attributes:
    path: path of the file, or folder of the dataset.
    split: split to which documents are restricted by their hash; '' for all.
    dataset: 'name/config:version@split' in TensorFlow Datasets; '' for a file.
    span: lines of the file, or examples of the dataset; None for all.
  """

  path: str
  split: str = ''
  dataset: str = ''
  span: readers.Span | None = None

  def divided(self, length: int) -> 'Iterator[Part]':
    """Yields Parts of about `length` bytes, or of a file of a dataset.

    In order, they have the documents of this Part. A Part that can only be read
    from its beginning is yielded whole.

    Raises:
      errors.CorpusError: the file cannot be read.
    """
    whole = True
    found = self._shards() if self.dataset else readers.spans(self.path, length)
    for span in found:
      whole = False
      yield dataclasses.replace(self, span=span)
    if whole:
      yield self

  def _shards(self) -> Iterator[readers.Span]:
    """Yields the examples of each file of the dataset."""
    start = 0
    for count in paths.shard_lengths(self.path, self.dataset):
      if count:
        yield readers.Span(start, start + count)
      start += count


@dataclasses.dataclass(frozen=True)
class Source(abc.ABC):
  """Base class of all sources."""

  # Name and version in TensorFlow Datasets; '' if it has no such dataset.
  dataset = ''
  # How to get the data, for error messages.
  how = ''
  # Short description of the data.
  about = ''

  def parts(self, path: str, split: str) -> list[Part]:
    """Returns the Parts that hold one of SPLITS.

    `path` is the folder of the data, or a file, possibly in an object store; ''
    for the default folder.

    Raises:
      errors.CorpusError: there is none; lists the searched paths.
    """
    name = specs.name(self)
    folder, found = self._found(path)
    tried = [str(folder) for folder in self._folders(path)]
    if folder is None:
      if self.dataset and not remote.is_remote(path):
        prepared = paths.prepared_dataset(path, self.dataset)
        tried.append(str(prepared))
        found = {
          split: [Part(str(prepared), dataset=f'{self.dataset}@{split}')]
          for split in SPLITS
          if any(prepared.glob(f'*-{split}.*'))
        }
    if not found.get(split):
      raise paths.missing(
        f'{name} ({self.about}), split {split}', tried, self.how
      )
    return found[split]

  def _folders(self, path: str) -> list[remote.AnyPath]:
    name = specs.name(self)
    if remote.is_remote(path):
      return [remote.Path(path) / name, remote.Path(path)]
    return [*paths.candidates(path, name)]

  def _found(
    self, path: str
  ) -> tuple[remote.AnyPath | None, dict[str, list[Part]]]:
    """Returns the folder of the source's files, and its Parts by split."""
    for folder in self._folders(path):
      found = self._file_parts(folder)
      if folder.name != specs.name(self) and self._may_be_others(folder):
        found = {}
      # All splits are taken from the same folder.
      if any(found.values()):
        return folder, found
    return None, {}

  def _may_be_others(self, folder: remote.AnyPath) -> bool:
    """Returns whether a folder may hold data of other sources."""
    return False

  @abc.abstractmethod
  def documents(self, part: Part) -> Iterator[bytes | errors.RecordError]:
    """Yields the documents of a file in `part.split`, `bytes`.

    An error takes the place of a bad record, in each split of its file.
    """

  def read(self, part: Part) -> Iterator[bytes]:
    """Yields the documents of a part, in a fixed order.

    Raises:
      errors.CorpusError: a file or dataset cannot be read.
    """
    for text in self.read_all(part):
      if isinstance(text, errors.RecordError):
        raise text
      yield text

  def read_all(self, part: Part) -> Iterator[bytes | errors.RecordError]:
    """Yields the items of `read`, and an error in place of a bad record.

    Raises:
      errors.CorpusError: the rest cannot be read.
    """
    if part.dataset:
      return map(self.from_record, _records(part))
    return self.documents(part)

  def from_record(self, record: Mapping[str, Any]) -> bytes:
    """Returns the document in a record of TensorFlow Datasets, `bytes`."""
    return record['text']

  @abc.abstractmethod
  def _file_parts(self, folder: remote.AnyPath) -> dict[str, list[Part]]:
    """Returns the Parts of a folder or a file, by split."""


@dataclasses.dataclass(frozen=True)
class Records(Source):
  """Documents as records of JSON lines or Parquet, possibly of mixed sets.

  A file belongs to the split named in its path, or else to training. Without a
  validation file, a hash assigns each training document to a split.

  Attributes:
    text_key: key of the text; '' for 'text', or 'content' as in the-stack.
  """

  text_key: str = ''

  # Maps a key to its values in records of this source. Records without the key
  # are included.
  keep = {}  # type: dict[str, tuple]

  def parts(self, path: str, split: str) -> list[Part]:
    found = super().parts(path, split)
    if self.text_key and found[0].dataset:
      raise errors.ConfigError(
        f'{found[0].path} of TensorFlow Datasets has its text under "text"; '
        'leave text_key out of data.task'
      )
    return found

  def _may_be_others(self, folder: remote.AnyPath) -> bool:
    # Records without a set name are included. A folder that contains the
    # folders of several sources is therefore not searched.
    if not self.keep:
      return False
    if isinstance(folder, pathlib.Path):
      return any((folder / each).exists() for each in SOURCES)
    # Object stores have files, and no folders.
    return any(readers.files(folder / each) for each in SOURCES)

  def documents(self, part: Part) -> Iterator[bytes | errors.RecordError]:
    for text in self._texts(part):
      if (
        isinstance(text, errors.RecordError)
        or not part.split
        or _hash_split(text) == part.split
      ):
        yield text

  def _file_parts(self, folder: remote.AnyPath) -> dict[str, list[Part]]:
    found: dict[str, list[Part]] = {split: [] for split in SPLITS}
    files = _without_prepared(readers.files(folder))
    # The name of a file counts for its split, that of the folder does not.
    is_folder = any(file.startswith(f'{folder}/') for file in files)
    root = str(folder if is_folder else folder.parent)
    for file in files:
      relative = file.removeprefix(root)
      if self._reads(file, relative):
        found[self._told_split(relative) or 'train'].append(Part(file))
    if not found['validation']:
      files = [part.path for part in found.pop('train')]
      for split in SPLITS:
        hashed = [Part(file, split) for file in files]
        found[split] = found.get(split, []) + hashed
    return found

  def _reads(self, file: str, relative: str) -> bool:
    """Returns whether a file, with its path below the folder, holds text."""
    del relative
    if file.endswith(_PACKED) and readers.is_records(file.rpartition('.')[0]):
      raise _packed(file)
    return readers.is_records(file)

  def _told_split(self, relative: str) -> str:
    """Returns the split named in a path below the folder, '' for none."""
    # The name of a file counts before those of its folders.
    for name in reversed(relative.lower().split('/')):
      for word in re.split('[^a-z]+', name):
        if word in _SPLIT_WORDS:
          return _SPLIT_WORDS[word]
    return ''

  def _texts(self, part: Part) -> Iterator[bytes | errors.RecordError]:
    """Yields `documents` of all splits in a file or span."""
    for where, record in readers.all_records(part.path, part.span):
      if isinstance(record, errors.RecordError):
        yield record
      elif self._is_ours(record):
        yield self._text(part.path, where, record)

  def _text(
    self, path: str, where: str, record: Mapping[str, Any]
  ) -> bytes | errors.RecordError:
    """Returns the text of a record, or the error of a bad one."""
    default = 'content' if 'content' in record else 'text'
    key = self.text_key or ('text' if 'text' in record else default)
    try:
      value = readers.field(path, where, record, key)
    except errors.CorpusError as error:
      return errors.RecordError(
        f'{error}; name the key of the text, as in '
        f'data.task="{specs.name(self)}(text_key=\'KEY\')"'
      )
    if not isinstance(value, str):
      return errors.RecordError(
        f'{path}, {where}: {key!r} must be text, got {type(value).__name__}; '
        'correct or remove the record, or name another key as text_key'
      )
    return value.encode('utf-8', errors='surrogatepass')

  def _is_ours(self, record: Mapping[str, Any]) -> bool:
    for key, values in self.keep.items():
      value = record
      for name in key.split('.'):
        value = value.get(name) if isinstance(value, dict) else None
      if value is not None and value not in values:
        return False
    return True


def _without_prepared(files: list[str]) -> list[str]:
  """Leaves out the files of folders that `lengen prepare` has written."""
  prepared = tuple(
    f'{os.path.dirname(file)}/'
    for file in files
    if os.path.basename(file) in (manifest.MANIFEST, manifest.STATE)
    and manifest.is_valid(pathlib.Path(file))
  )
  return [file for file in files if not file.startswith(prepared)]


@dataclasses.dataclass(frozen=True)
class C4(Records):
  """English web text, from TensorFlow Datasets or allenai/c4 files."""

  about = 'the Colossal Clean Crawled Corpus, English'
  dataset = 'c4/en:3.1.0'
  how = (
    'fetch en/c4-train.*.json.gz and en/c4-validation.*.json.gz of '
    'https://huggingface.co/datasets/allenai/c4 (305 GB), or prepare c4/en '
    'with TensorFlow Datasets'
  )

  def _reads(self, file: str, relative: str) -> bool:
    # The folder may contain other corpora, or files of TensorFlow Datasets.
    others = {'en.noblocklist', 'en.noclean', 'multilingual', 'realnewslike'}
    parts = pathlib.PurePath(relative).parts
    return (
      parts[-1].startswith('c4-')
      and not others & {*parts}
      and super()._reads(file, relative)
    )


@dataclasses.dataclass(frozen=True)
class Arxiv(Records):
  """Papers of arXiv in LaTeX, from the Pile, RedPajama, or SlimPajama."""

  about = 'papers of arXiv as JSON lines'
  how = (
    'use any JSON lines with the papers (.gz and .zst too): the Pile (as in '
    'the papers), https://huggingface.co/datasets/cerebras/SlimPajama-627B or '
    'https://huggingface.co/datasets/togethercomputer/RedPajama-Data-1T; '
    'records of other sets are skipped'
  )
  keep = {
    'meta.pile_set_name': ('ArXiv',),
    'meta.redpajama_set_name': ('RedPajamaArXiv', 'RedPajamaArxiv'),
    'red_pajama_subset': ('arxiv',),
  }


@dataclasses.dataclass(frozen=True)
class Github(Records):
  """Code of GitHub, from the Pile, SlimPajama, or the-stack."""

  about = 'code of GitHub as JSON lines or Parquet'
  how = (
    'use any JSON lines with the code (.gz and .zst too): the Pile (as in the '
    'papers), https://huggingface.co/datasets/cerebras/SlimPajama-627B or '
    'https://huggingface.co/datasets/bigcode/the-stack-dedup; records of other '
    'sets are skipped'
  )
  keep = {
    'meta.pile_set_name': ('Github',),
    'meta.redpajama_set_name': ('RedPajamaGithub',),
    'red_pajama_subset': ('github',),
  }


@dataclasses.dataclass(frozen=True)
class Lm(Records):
  """Any folder of JSON lines, Parquet, or files of one document each.

  Among files of one document, only names such as `valid.txt` or `ptb.valid.txt`
  determine the split: in a folder of code, `test` has another meaning.

  Attributes:
    text_key: see Records.
    pattern: pattern of included paths; see `pathlib.PurePath.match`.
  """

  pattern: str = '*'

  about = 'any folder of text'
  how = (
    'use any folder of JSON lines (.gz, .zst and .zip too), Parquet or plain '
    'text files'
  )

  def __post_init__(self) -> None:
    if not self.pattern:
      raise errors.SpecError(
        "pattern of lm is ''; set it to a pattern of paths such as '*.txt', or "
        'leave it out for all files'
      )

  def _reads(self, file: str, relative: str) -> bool:
    del relative
    return pathlib.PurePath(file).match(self.pattern)

  def _told_split(self, relative: str) -> str:
    if readers.is_records(relative):
      return super()._told_split(relative)
    named = _TEXT_FILE.fullmatch(pathlib.PurePath(relative).name)
    return _SPLIT_WORDS.get(named[1], '') if named else ''

  def _texts(self, part: Part) -> Iterator[bytes | errors.RecordError]:
    if readers.is_records(part.path):
      yield from super()._texts(part)
      return
    if part.path.endswith(_PACKED):
      raise _packed(part.path)
    try:
      text = readers.text(part.path)
    except errors.RecordError as error:
      yield error
    else:
      if text:
        yield text


@dataclasses.dataclass(frozen=True)
class Wikitext103(Source):
  """Articles of Wikipedia (Merity et al., 2016, arXiv:1609.07843).

  Attributes:
    variant: 'raw', or 'tokens', in which rare words are replaced by <unk>.
  """

  variant: str = 'raw'

  about = 'WikiText-103'
  how = (
    'fetch wikitext-103-raw-v1.zip (variant raw) or wikitext-103-v1.zip '
    '(variant tokens), which contain wiki.{train,valid,test}.{raw,tokens}; no '
    'need to unpack it'
  )

  def __post_init__(self) -> None:
    if self.variant not in ('raw', 'tokens'):
      raise errors.SpecError(
        errors.one_of('variant of wikitext103', self.variant, ('raw', 'tokens'))
      )

  def documents(self, part: Part) -> Iterator[bytes]:
    # ` = Title = ` after a blank line starts an article, ` = = Section = = `
    # does not. Blank lines before a title belong to the previous article.
    article: list[bytes] = []
    blank = True
    for line in readers.lines(part.path):
      begins = blank and _TITLE.fullmatch(line)
      blank = not line.strip()
      if begins and any(map(bytes.strip, article)):
        yield b''.join(article)
        article = []
      article.append(line)
    if article:
      yield b''.join(article)

  def _file_parts(self, folder: remote.AnyPath) -> dict[str, list[Part]]:
    words = {'train': 'train', 'validation': 'valid', 'test': 'test'}
    return {
      split: [Part(f) for f in _find(folder, f'wiki.{word}.{self.variant}')]
      for split, word in words.items()
    }


@dataclasses.dataclass(frozen=True)
class Enwik8(Source):
  """The first 10^8 bytes of Wikipedia, split 90 % / 5 % / 5 % in order."""

  about = 'enwik8'
  how = 'fetch http://mattmahoney.net/dc/enwik8.zip; no need to unpack it'

  def documents(self, part: Part) -> Iterator[bytes]:
    text = readers.text(part.path)
    first, second = len(text) * 90 // 100, len(text) * 95 // 100
    yield {
      'train': text[:first],
      'validation': text[first:second],
      'test': text[second:],
    }[part.split]

  def _file_parts(self, folder: remote.AnyPath) -> dict[str, list[Part]]:
    files = _find(folder, 'enwik8')
    return {split: [Part(f, split) for f in files] for split in SPLITS}


SOURCES = {
  'arxiv': Arxiv,
  'c4': C4,
  'enwik8': Enwik8,
  'github': Github,
  'lm': Lm,
  'wikitext103': Wikitext103,
}


def create(spec: str) -> Source:
  """Returns the source that a spec describes.

  Raises:
    errors.SpecError: the name or a key is unknown.
  """
  name = str(spec).partition('(')[0].strip()
  if name not in SOURCES:
    raise errors.SpecError(
      errors.one_of('source of text in data.task', name, SOURCES)
    )
  return specs.build('source', SOURCES, spec)


def _packed(path: str) -> errors.CorpusError:
  """Returns the error of a file that would be read as one text."""
  return errors.CorpusError(
    f'{path} is compressed in a format that is not supported; unpack it, use '
    '.gz, .zst or .zip, or leave it out: move it away, or set the pattern in '
    'data.task="lm(pattern=\'*.txt\')"'
  )


def _find(folder: remote.AnyPath, name: str) -> list[str]:
  """Returns a list of the first file with a name, [] if there is none."""
  found = readers.files(folder)
  return [file for file in found if pathlib.PurePath(file).name == name][:1]


def _hash_split(text: bytes) -> str:
  """Returns the split of a document, by a hash of its content."""
  part = int.from_bytes(hashlib.sha256(text).digest()[:4], 'big') % HELD_OUT
  return {0: 'validation', 1: 'test'}.get(part, 'train')


def _records(part: Part) -> Iterator[Mapping[str, Any]]:
  """Yields records of a split prepared by TensorFlow Datasets."""
  tfds = extra.load('tensorflow_datasets', f'reading {part.path}')
  tf = extra.load('tensorflow', f'reading {part.path}')
  # TensorFlow only reads data and must not claim accelerators.
  for kind in ('GPU', 'TPU'):
    tf.config.set_visible_devices([], kind)
  name, split = part.dataset.split('@')
  try:
    builder = tfds.builder_from_directory(part.path)
  except Exception as error:  # The type depends on the damage.
    raise errors.CorpusError(
      f'{part.path} holds no prepared {name}: {errors.reason(error)}; prepare '
      'it again'
    ) from error
  if split not in builder.info.splits:
    raise errors.CorpusError(
      f'{part.path} has no split {split!r}, only '
      f'{", ".join(builder.info.splits)}; prepare it again'
    )
  if not builder.info.splits[split].num_examples:
    return
  only = {}
  if part.span:
    only = {'from_': part.span.start, 'to': part.span.stop, 'unit': 'abs'}
  dataset = builder.as_dataset(
    # Files in sequence, so that skipped files are not read.
    tfds.core.ReadInstruction(split, **only),
    read_config=tfds.ReadConfig(interleave_cycle_length=1),
    shuffle_files=False,
  )
  try:
    yield from dataset.as_numpy_iterator()
  except tf.errors.OpError as error:
    raise errors.CorpusError(
      f'cannot read split {split!r} in {part.path}: {errors.reason(error)}; '
      'the file is damaged: copy it again, or prepare it again'
    ) from error
