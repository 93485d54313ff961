"""Text as seqio tasks, and windows of such text."""

from collections.abc import Mapping
import functools
import re
from typing import Any

import seqio
import tensorflow as tf

from lengen_jax import errors, specs
from lengen_jax.data import (
  seqio_files,
  sources,
  stream,
  vocabulary,
  windows,
)
from lengen_jax.data.config import DataConfig

# Size of the shuffle buffer, windows. Checkpoints include this buffer and the
# 1000 documents in the shuffle buffer of seqio.
_SHUFFLE = 1024


def register(source: sources.Source, path: str, vocab: str) -> str:
  """Registers a source of text in seqio; returns the name of the task."""
  spec = specs.describe(source)
  found = vocabulary.create(vocab)
  slug = re.sub('[^a-z0-9]+', '_', spec.lower()).strip('_')
  parts = {}
  for split in sources.SPLITS:
    try:
      parts[split] = source.parts(path, split)
    except errors.CorpusError:
      if split != 'test':
        raise

  def arguments() -> dict[str, Any]:
    feature = seqio.Feature(found.seqio(), add_eos=True)
    if any(part.dataset for part in parts['train']):
      data = seqio_files.tfds(source.dataset, path, list(parts))
    else:
      data = seqio_files.Files(
        parts,
        lambda part: ((text,) for text in source.read(part)),
        ('text',),
      )
    return {
      'source': data,
      'preprocessors': [
        functools.partial(
          seqio.preprocessors.rekey, key_map={'targets': 'text'}
        ),
        functools.partial(
          seqio.preprocessors.tokenize, copy_pretokenized=False
        ),
        seqio.CacheDatasetPlaceholder(),
        seqio.preprocessors.append_eos,
        split_to_length,
      ],
      'output_features': {'targets': feature},
    }

  # Changed data replaces the registration.
  key = (path, str(source), found.name, str(parts))
  kind = 'bytes' if vocab == 'bytes' else found.fingerprint
  name = f'{slug}_lm_{kind}'
  return seqio_files.add(name, key, arguments)


def split_to_length(
  dataset: Any, sequence_length: Mapping[str, int] | None
) -> Any:
  """Splits 'targets' into pieces of `sequence_length['targets']` tokens.

  By default, seqio truncates to the first piece.
  """
  if not sequence_length or not sequence_length.get('targets'):
    return dataset
  length = sequence_length['targets']

  def pieces(example: Mapping[str, Any]) -> Any:
    ids = example['targets']
    starts = tf.data.Dataset.range(0, tf.size(ids, tf.int64), length)
    return starts.map(lambda at: {'targets': ids[at : at + length]})

  return dataset.flat_map(pieces)


class Text:
  """Windows of the text of a seqio task.

  Attributes:
    info: description of the data, for results.
    vocab_size: number of token ids.
  """

  scored_by = 'loss'
  architectures = ('decoder', 'encoder')

  def __init__(self, config: DataConfig, name: str) -> None:
    """Opens a task by its name in seqio's registry."""
    self._config, self._task = config, seqio.get_mixture_or_task(name)
    self._vocab = vocabulary.create(config.vocabulary)
    self.vocab_size = self._vocab.size
    theirs = self._task.output_features.get('targets')
    if theirs is None or theirs.vocabulary != self._vocab.seqio():
      raise errors.ConfigError(
        f'the targets of {name} have the vocabulary '
        f'{getattr(theirs, "vocabulary", None)}, not that of '
        f'data.vocabulary={config.vocabulary!r}; set both to the same'
      )
    self.info = stream.info(
      config, self._task, self._vocab.fingerprint, mode=config.mode
    )

  def training(
    self, config: DataConfig, *, seed: int, host: tuple[int, int] = (0, 1)
  ) -> stream.StreamBatches:
    """Returns batches of the training split; see `corpus.Corpus.training`."""

    def to_windows(dataset: Any) -> Any:
      length, mode = config.train_length, config.mode
      dataset = cut(dataset, length, mode, start=self._vocab.start)
      return dataset.shuffle(_SHUFFLE, seed=seed)

    return stream.StreamBatches(
      self._task,
      config.batch_size,
      to_windows,
      lengths=None,
      seed=seed,
      host=host,
      padded=config.mode == 'doc_pad',
    )

  def evaluation(self, config: Any) -> windows.EvaluationWindows:
    """Returns the first windows of the longest length in validation."""
    longest, count = max(config.lengths), config.windows
    stream.check_split(self._task, 'validation')
    documents = stream.read(self._task, lengths=None, split='validation')
    found = []
    with stream.original_errors(self._task):
      for document in documents.as_numpy_iterator():
        found += windows.whole(document['targets'], longest)
        if len(found) >= count:
          break
    return windows.EvaluationWindows(
      found[:count], lengths=config.lengths, count=count, vocab=self._vocab
    )


def cut(dataset: Any, length: int, mode: str, *, start: int) -> Any:
  """Cuts documents into windows like `windows.Cutter`, within tf.data.

  Args:
    dataset: Dataset of dicts with 'targets', token ids of a document.
    length: tokens to predict per window.
    mode: one of `windows.MODES`.
    start: token id before each document, or before the first in 'concat'.

  Returns:
    Dataset of dicts with `tokens` `[length + 1]` and their `size`.
  """
  begin = tf.constant([start])

  def windows_of(tokens: Any) -> tuple[dict[str, Any], Any]:
    """Returns whole windows, and the tokens from the end of the last one on."""
    count = (tf.size(tokens) - 1) // length
    index = tf.range(count)[:, None] * length + tf.range(length + 1)[None]
    found = {
      'tokens': tf.gather(tokens, index),
      'size': tf.fill([count], length + 1),
    }
    return found, tokens[count * length :]

  def go_on(
    rest: Any, document: Mapping[str, Any]
  ) -> tuple[Any, dict[str, Any]]:
    found, rest = windows_of(tf.concat([rest, document['targets']], 0))
    return rest, found

  def alone(document: Mapping[str, Any]) -> dict[str, Any]:
    found, rest = windows_of(tf.concat([begin, document['targets']], 0))
    if mode == 'doc_window':
      return found
    size = tf.size(rest)
    last = {
      'tokens': tf.pad(rest, [[0, length + 1 - size]])[None],
      'size': size[None],
    }
    # `rest` may contain only the predecessor; then there is no last window.
    return {
      name: tf.concat([found[name], last[name][: tf.minimum(size - 1, 1)]], 0)
      for name in found
    }

  if mode == 'concat':
    return dataset.scan(begin, go_on).unbatch()
  return dataset.map(alone).unbatch()
