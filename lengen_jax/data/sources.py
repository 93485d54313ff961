"""Where the text of language models comes from, source by source.

A source knows how its files are named, which split each belongs to, and what a
document is. `SOURCES` is the menu; a spec such as `c4` or
`lm(text_key='content')` names one.
"""

import abc
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import hashlib
import pathlib
import re
from typing import Any

from lengen_jax import errors
from lengen_jax import specs
from lengen_jax.data import paths
from lengen_jax.data import readers

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
# Without a split of its own, one document in so many is held out for each of
# validation and test.
HELD_OUT = 200
_TEXT_FILE = re.compile(r'(?:.*\.)?(\w+)\.txt(?:\.gz|\.zst)?')
_TITLE = re.compile(rb' = (?!= ).+ = \s*')


@dataclasses.dataclass(frozen=True)
class Part:
  """What is read in one go: a file, or a split in TensorFlow Datasets.

  Attributes:
    path: of the file; of a dataset its folder.
    split: only documents whose hash puts them there, '' for all.
    dataset: 'name/config:version' in TensorFlow Datasets and the split, joined
      by '@'; '' for a file.
  """

  path: str
  split: str = ''
  dataset: str = ''


@dataclasses.dataclass(frozen=True)
class Source(abc.ABC):
  """Base of the sources."""

  # Name and version in TensorFlow Datasets, '' where it is in none.
  dataset = ''
  # How to get it, for messages.
  how = ''
  # What is in it.
  about = ''

  def parts(self, path: str, split: str) -> list[Part]:
    """The Parts that hold a split.

    Args:
      path: folder with the data, or file; '' for where data lies by default.
      split: 'train', 'validation' or 'test'.

    Raises:
      errors.CorpusError: there are none; naming where we looked.
    """
    name, tried = specs.name(self), []
    for folder in paths.candidates(path, name):
      tried.append(str(folder))
      found = self._file_parts(folder)
      if folder.name != name and self._may_be_others(folder):
        found = {}
      # All splits come out of the same folder.
      if any(found.values()):
        break
    else:
      if self.dataset:
        folder = paths.prepared_dataset(path, self.dataset)
        tried.append(str(folder))
        found = {
          split: [Part(str(folder), dataset=f'{self.dataset}@{split}')]
          for split in SPLITS
          if any(folder.glob(f'*-{split}.*'))
        }
    if not found.get(split):
      raise paths.missing(
        f'{name} ({self.about}), split {split}', tried, self.how
      )
    return found[split]

  def _may_be_others(self, folder: pathlib.Path) -> bool:
    """Whether what a folder holds may be of other sources."""
    return False

  @abc.abstractmethod
  def documents(self, part: Part) -> Iterator[bytes]:
    """Yields the documents of a file, `bytes`; of those in `part.split`."""

  def from_record(self, record: Mapping[str, Any]) -> bytes:
    """The document in a record of TensorFlow Datasets, `bytes`."""
    return record['text']

  @abc.abstractmethod
  def _file_parts(self, folder: pathlib.Path) -> dict[str, list[Part]]:
    """The Parts of a folder, or of a file, by split."""


@dataclasses.dataclass(frozen=True)
class Records(Source):
  """Documents as records of JSON lines or Parquet, several sets perhaps mixed.

  Files belong to the split that their path names, or to training. Where none is
  of validation, each document of the training files belongs to the split that
  its hash says.

  Attributes:
    text_key: of the text; '' for 'text', or 'content' as in the-stack.
  """

  text_key: str = ''

  # Key to the values it has in records of this source; records without the
  # key are taken to be of this source.
  keep = {}  # type: dict[str, tuple]

  def _may_be_others(self, folder: pathlib.Path) -> bool:
    # Records that do not say which set they are of are taken to be ours, so
    # that a folder with the folders of several sources is none of them.
    return bool(self.keep) and any((folder / each).exists() for each in SOURCES)

  def documents(self, part: Part) -> Iterator[bytes]:
    for text in self._texts(part.path):
      if not part.split or _hash_split(text) == part.split:
        yield text

  def _file_parts(self, folder: pathlib.Path) -> dict[str, list[Part]]:
    found: dict[str, list[Part]] = {split: [] for split in SPLITS}
    for file in filter(self._reads, readers.files(folder)):
      found[self._told_split(folder, file) or 'train'].append(Part(file))
    if not found['validation']:
      files = [part.path for part in found.pop('train')]
      for split in SPLITS:
        hashed = [Part(file, split) for file in files]
        found[split] = found.get(split, []) + hashed
    return found

  def _reads(self, file: str) -> bool:
    """Whether a file holds text of this source."""
    return readers.is_records(file)

  def _told_split(self, folder: pathlib.Path, file: str) -> str:
    """The split that a file's path below `folder` names, '' for none."""
    path = pathlib.Path(folder)
    root = path.parent if path.is_file() else path
    relative = file.removeprefix(str(root))
    for word in re.split('[^a-z]+', relative.lower()):
      if word in _SPLIT_WORDS:
        return _SPLIT_WORDS[word]
    return ''

  def _texts(self, path: str) -> Iterator[bytes]:
    """Yields all documents of a file, `bytes`."""
    for where, record in readers.records(path):
      if not self._is_ours(record):
        continue
      default = 'content' if 'content' in record else 'text'
      key = self.text_key or ('text' if 'text' in record else default)
      try:
        value = readers.field(path, where, record, key)
      except errors.CorpusError as error:
        raise errors.CorpusError(
          f'{error}; name the key of the text, as in '
          f'data.task="{specs.name(self)}(text_key=\'KEY\')"'
        ) from None
      if not isinstance(value, str):
        raise errors.CorpusError(
          f'{path}, {where}: {key!r} is {type(value).__name__}, no text; mend '
          'or remove the record, or name another key as text_key'
        )
      yield value.encode('utf-8', errors='surrogatepass')

  def _is_ours(self, record: Mapping[str, Any]) -> bool:
    for key, values in self.keep.items():
      value = record
      for name in key.split('.'):
        value = value.get(name) if isinstance(value, dict) else None
      if value is not None and value not in values:
        return False
    return True


@dataclasses.dataclass(frozen=True)
class C4(Records):
  """English web text: of TensorFlow Datasets, or the files of allenai/c4."""

  about = 'the Colossal Clean Crawled Corpus, English'
  dataset = 'c4/en:3.1.0'
  how = (
    'fetch en/c4-train.*.json.gz and en/c4-validation.*.json.gz of '
    'https://huggingface.co/datasets/allenai/c4 (305 GB), or prepare c4/en '
    'with TensorFlow Datasets'
  )

  def _reads(self, file: str) -> bool:
    # Beside it lie other corpora, or what TensorFlow Datasets keeps.
    others = {'en.noblocklist', 'en.noclean', 'multilingual', 'realnewslike'}
    parts = pathlib.PurePath(file).parts
    return (
      super()._reads(file)
      and parts[-1].startswith('c4-')
      and not others & {*parts}
    )


@dataclasses.dataclass(frozen=True)
class Arxiv(Records):
  """Papers of arXiv in LaTeX: of the Pile, RedPajama, SlimPajama or like it."""

  about = 'papers of arXiv as JSON lines'
  how = (
    'any JSON lines with the papers serve, .gz and .zst too: the Pile (which '
    'the papers used), https://huggingface.co/datasets/cerebras/SlimPajama-627B'
    ' or https://huggingface.co/datasets/togethercomputer/RedPajama-Data-1T; '
    'records of other sets are passed over'
  )
  keep = {
    'meta.pile_set_name': ('ArXiv',),
    'meta.redpajama_set_name': ('RedPajamaArXiv', 'RedPajamaArxiv'),
    'red_pajama_subset': ('arxiv',),
  }


@dataclasses.dataclass(frozen=True)
class Github(Records):
  """Code of GitHub: of the Pile, SlimPajama, the-stack or like it."""

  about = 'code of GitHub as JSON lines or Parquet'
  how = (
    'any JSON lines with the code serve, .gz and .zst too: the Pile (which the '
    'papers used), https://huggingface.co/datasets/cerebras/SlimPajama-627B or '
    'https://huggingface.co/datasets/bigcode/the-stack-dedup; records of other '
    'sets are passed over'
  )
  keep = {
    'meta.pile_set_name': ('Github',),
    'meta.redpajama_set_name': ('RedPajamaGithub',),
    'red_pajama_subset': ('github',),
  }


@dataclasses.dataclass(frozen=True)
class Lm(Records):
  """Any folder: JSON lines, Parquet, or files that are a document each.

  Of the latter only text files named as `valid.txt` or `ptb.valid.txt` tell
  their split: in a folder of code, `test` means something else.

  Attributes:
    text_key: see Records.
    pattern: files whose path matches, as `pathlib.PurePath.match`.
  """

  pattern: str = '*'

  about = 'any folder of text'
  how = (
    'any folder of JSON lines (.gz, .zst and .zip too), Parquet or plain text '
    'files serves'
  )

  def _reads(self, file: str) -> bool:
    return pathlib.PurePath(file).match(self.pattern)

  def _told_split(self, folder: pathlib.Path, file: str) -> str:
    if readers.is_records(file):
      return super()._told_split(folder, file)
    named = _TEXT_FILE.fullmatch(pathlib.PurePath(file).name)
    return _SPLIT_WORDS.get(named[1], '') if named else ''

  def _texts(self, path: str) -> Iterator[bytes]:
    if readers.is_records(path):
      yield from super()._texts(path)
    elif text := readers.text(path):
      yield text


@dataclasses.dataclass(frozen=True)
class Wikitext103(Source):
  """Articles of Wikipedia (Merity et al., 2016, arXiv:1609.07843).

  Attributes:
    variant: 'raw', or 'tokens' with words outside the vocabulary as <unk>.
  """

  variant: str = 'raw'

  about = 'WikiText-103'
  how = (
    'fetch wikitext-103-raw-v1.zip (variant raw) or wikitext-103-v1.zip '
    '(variant tokens), which hold wiki.{train,valid,test}.{raw,tokens}; the '
    'zip serves as it is'
  )

  def __post_init__(self) -> None:
    if self.variant not in ('raw', 'tokens'):
      raise errors.SpecError(
        errors.one_of('variant of wikitext103', self.variant, ('raw', 'tokens'))
      )

  def documents(self, part: Part) -> Iterator[bytes]:
    # ` = Title = ` after a blank line begins an article, ` = = Section = = `
    # does not. Blank lines before it end the last article.
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

  def _file_parts(self, folder: pathlib.Path) -> dict[str, list[Part]]:
    words = {'train': 'train', 'validation': 'valid', 'test': 'test'}
    return {
      split: [Part(f) for f in _find(folder, f'wiki.{word}.{self.variant}')]
      for split, word in words.items()
    }


@dataclasses.dataclass(frozen=True)
class Enwik8(Source):
  """The first 10^8 bytes of Wikipedia, 90 % / 5 % / 5 % in their order."""

  about = 'enwik8'
  how = 'fetch http://mattmahoney.net/dc/enwik8.zip; the zip serves as it is'

  def documents(self, part: Part) -> Iterator[bytes]:
    text = readers.text(part.path)
    first, second = len(text) * 90 // 100, len(text) * 95 // 100
    yield {
      'train': text[:first],
      'validation': text[first:second],
      'test': text[second:],
    }[part.split]

  def _file_parts(self, folder: pathlib.Path) -> dict[str, list[Part]]:
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
  """The source that a spec names.

  Raises:
    errors.SpecError: unknown name or key.
  """
  name = str(spec).partition('(')[0].strip()
  if name not in SOURCES:
    raise errors.SpecError(
      errors.one_of('source of text in data.task', name, SOURCES)
    )
  return specs.build('source', SOURCES, spec)


def _find(folder: pathlib.Path, name: str) -> list[str]:
  """The first file of a name, in a list; it may lie there unpacked, too."""
  found = readers.files(folder)
  return [file for file in found if pathlib.PurePath(file).name == name][:1]


def _hash_split(text: bytes) -> str:
  """The split that a document's content puts it into."""
  part = int.from_bytes(hashlib.sha256(text).digest()[:4], 'big') % HELD_OUT
  return {0: 'validation', 1: 'test'}.get(part, 'train')
