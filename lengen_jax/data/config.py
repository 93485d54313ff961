"""The data section of a config: one frozen dataclass, fields listed once."""

import dataclasses

from lengen_jax import errors, specs
from lengen_jax.data import windows

# Corpora that are part of every Python installation; see `stdlib.read`.
_EMBEDDED = ('stdlib', 'docstrings')
SOURCES = (*_EMBEDDED, 'prepared', 'seqio')


@dataclasses.dataclass(frozen=True)
class DataConfig:
  """Data for training and evaluation.

  Attributes:
    source: 'stdlib', the source code of Python's standard library;
      'docstrings', its docstrings; 'prepared', windows written by `lengen
      prepare`; 'seqio', the raw data.
    train_length: tokens per row in training.
    batch_size: rows per step, over all hosts.
    path: for 'stdlib' and 'docstrings', the library of another Python; for
      'prepared', the folder of the windows, which may be in an object store
      ('gs://...').
    raw: folder of the raw data, for 'seqio' and `lengen prepare`; '' for
      LENGEN_DATA_DIR or ~/.lengen/data.
    task: a source of text such as 'c4', a task of prompts such as
      'scrolls/qasper', 'glue_superglue', 'imagenet', or 'module:name', a text
      task that a module registers in seqio.
    vocabulary: 'bytes', the path of a SentencePiece model, or a folder with the
      `tokenizer.json` of a checkpoint.
    mode: how training text is cut into windows; see `windows.MODES`.
    separator: text between a prompt and its answer; never truncated.
    source_length: tokens of the windows of text from which each row keeps two
      chunks, `train_length` tokens in total; see `chunks.ChunkedBatches`. None
      for rows that are windows. Requires the position scheme pose.
    target_length: maximum tokens of an answer, including its end; None for the
      length of the task.
  """

  source: str
  train_length: int
  batch_size: int
  path: str = ''
  raw: str = ''
  task: str = ''
  vocabulary: str = 'bytes'
  mode: str = 'doc_window'
  separator: str = '\n\nAnswer: '
  source_length: int | None = None
  target_length: int | None = None

  def __post_init__(self) -> None:
    specs.check_types('data', self)
    for field, valid in (('source', SOURCES), ('mode', windows.MODES)):
      if getattr(self, field) not in valid:
        raise errors.ConfigError(
          errors.one_of(f'data.{field}', getattr(self, field), valid)
        )
    counts = 'train_length', 'batch_size', 'target_length', 'source_length'
    for field in counts:
      value = getattr(self, field)
      if value is not None and value < 1:
        raise errors.ConfigError(
          f'data.{field} must be at least 1, got {value}'
        )
    if self.source_length is not None:
      if self.source_length < self.train_length:
        raise errors.ConfigError(
          f'data.source_length={self.source_length} must be at least '
          f'data.train_length={self.train_length}, the tokens that a row keeps'
        )
      if self.source == 'seqio' or self.mode == 'doc_pad':
        raise errors.ConfigError(
          f'data.source_length={self.source_length} requires whole windows of '
          "'stdlib', 'docstrings' or 'prepared' data, got data.source="
          f'{self.source!r} and data.mode={self.mode!r}'
        )
    if self.source == 'prepared' and not self.path:
      raise errors.ConfigError(
        "data.source='prepared' needs data.path, the folder that lengen "
        'prepare wrote'
      )
    if self.source in _EMBEDDED:
      for field in ('raw', 'task', 'vocabulary', 'mode'):
        if (
          getattr(self, field) != type(self).__dataclass_fields__[field].default
        ):
          raise errors.ConfigError(
            f'data.{field}={getattr(self, field)!r} has no effect with '
            f'data.source={self.source!r}; remove it, or set another '
            'data.source'
          )
    if self.source == 'seqio' and not self.task:
      raise errors.ConfigError(
        "data.source='seqio' needs data.task, for example 'c4'"
      )

  @property
  def window_length(self) -> int:
    """Tokens of the windows that training text is cut into."""
    return self.source_length or self.train_length
