"""Text of a task of seqio, in windows."""

import tensorflow as tf

from lengen_jax.data import stream
from lengen_jax.data import vocabulary
from lengen_jax.data import windows

# Windows that are shuffled among each other; they are kept in checkpoints, as
# are the 1000 documents that seqio shuffles before.
_SHUFFLE = 1024


class Text:
  """Text of a seqio task, in windows.

  Attributes:
    info: where it comes from, for results.
    vocab_size: ids are below this.
  """

  scored_by = 'loss'

  def __init__(self, config, name):
    """Takes a task.

    Args:
      config: a DataConfig.
      name: in seqio's registry.
    """
    self._config, self._name = config, name
    self._vocab = vocabulary.create(config.vocabulary)
    self.vocab_size = self._vocab.size
    self.info = stream.info(config, self._vocab.fingerprint, mode=config.mode)

  def training(self, config, *, seed, host=(0, 1)):
    """Batches of the training split; see `corpus.Corpus.training`."""
    stream.check_files(self._name, host)

    def rows(**order):
      dataset = stream.read(self._name, lengths=None, split='train', **order)
      return cut(dataset, config.train_length, config.mode)

    stream.check_not_empty(
      rows(),
      f'the training split of {config.task} has no window of '
      f'{config.train_length} tokens in mode {config.mode!r}; lower '
      'data.train_length, or take another data.mode',
    )
    dataset = rows(seed=seed, host=host)
    dataset = dataset.shuffle(_SHUFFLE, seed=seed)
    return stream.StreamBatches(
      dataset,
      rows=len(windows.host_rows(config.batch_size, host)),
      host=host,
      padded=config.mode == 'doc_pad',
    )

  def evaluation(self, config):
    """The first windows of the validation split that are long enough."""
    longest, count = max(config.lengths), config.windows
    documents = stream.read(self._name, lengths=None, split='validation')
    found = []
    with stream.own_errors():
      for document in documents.as_numpy_iterator():
        found += windows.whole(document['targets'], longest)
        if len(found) >= count:
          break
    return windows.EvaluationWindows(
      found[:count], lengths=config.lengths, count=count, vocab=self._vocab
    )


def cut(dataset, length, mode):
  """Windows of documents 'targets'; as `windows.Cutter`, within tf.data.

  Args:
    dataset: of dicts with 'targets', token ids of a document.
    length: tokens to predict per window.
    mode: one of `windows.MODES`.

  Returns:
    Dataset of dicts with `tokens` `[length + 1]` and their `size`.
  """
  start = tf.constant([vocabulary.PAD])

  def windows_of(tokens):
    """Whole windows, and what is left with its predecessor."""
    count = (tf.size(tokens) - 1) // length
    index = tf.range(count)[:, None] * length + tf.range(length + 1)[None]
    found = {
      'tokens': tf.gather(tokens, index),
      'size': tf.fill([count], length + 1),
    }
    return found, tokens[count * length :]

  def go_on(rest, document):
    found, rest = windows_of(tf.concat([rest, document['targets']], 0))
    return rest, found

  def alone(document):
    found, rest = windows_of(tf.concat([start, document['targets']], 0))
    if mode == 'doc_window':
      return found
    size = tf.size(rest)
    last = {
      'tokens': tf.pad(rest, [[0, length + 1 - size]])[None],
      'size': size[None],
    }
    # What is left may be a predecessor and nothing after it.
    return {
      name: tf.concat([found[name], last[name][: tf.minimum(size - 1, 1)]], 0)
      for name in found
    }

  if mode == 'concat':
    return dataset.scan(start, go_on).unbatch()
  return dataset.map(alone).unbatch()
