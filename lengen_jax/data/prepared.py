"""Windows that `lengen prepare` wrote, read by index through grain."""

import hashlib
import itertools
import json
import pathlib

import numpy as np

from lengen_jax import errors
from lengen_jax.data import prepare
from lengen_jax.data import vocabulary
from lengen_jax.data import windows

# Batches that are read ahead, and threads that do so.
_AHEAD, _THREADS = 4, 2


class Prepared:
  """A folder of windows.

  Attributes:
    info: where it came from, for results.
    vocab_size: ids are below this.
  """

  scored_by = 'loss'

  def __init__(self, config, longest):
    """Opens a folder and checks that it holds what a config asks for.

    Args:
      config: a DataConfig.
      longest: the longest length that is evaluated; None where nothing is.

    Raises:
      errors.CorpusError: it does not, or files are missing or damaged.
    """
    self._folder = pathlib.Path(config.path).expanduser().absolute()
    manifest = prepare.read_manifest(self._folder)
    self._vocab = vocabulary.create(config.vocabulary)
    longest = manifest['longest'] if longest is None else longest
    wanted = prepare.identity(config, self._vocab, longest)
    prepare.check_identity(manifest, wanted, self._folder)
    self._manifest, self._config = manifest, config
    self.vocab_size = self._vocab.size
    text = json.dumps(manifest, sort_keys=True)
    self.info = {
      'source': f'prepared {config.task}',
      'vocabulary': self._vocab.fingerprint,
      'mode': config.mode,
      **{
        key: {s: found[key] for s, found in manifest['splits'].items()}
        for key in ('documents', 'bytes', 'tokens', 'windows', 'scored')
      },
      'sha256': hashlib.sha256(text.encode()).hexdigest(),
    }

  def training(self, config, *, seed, host=(0, 1)):
    """Batches of the training split; see `corpus.Corpus.training`."""
    return PreparedBatches(
      self._records('train'),
      length=config.train_length,
      batch_size=config.batch_size,
      seed=seed,
      host=host,
      packed=config.mode == 'doc_pad',
    )

  def evaluation(self, config):
    """Windows of the validation split; of an EvalConfig."""
    records, count = self._records('validation'), config.windows
    chosen = np.arange(count) * len(records) // count
    # Fewer than asked for: EvaluationWindows says so.
    chosen = chosen if len(records) >= count else np.arange(len(records))
    return windows.EvaluationWindows(
      records.read(chosen),
      lengths=config.lengths,
      count=count,
      vocab=self._vocab,
    )

  def _records(self, split):
    dtype = np.uint16 if self.vocab_size <= 1 << 16 else np.int32
    files = prepare.shards(self._folder, self._manifest, split)
    return _Records(files, dtype)


class PreparedBatches(windows.IndexedBatches):
  """Batches of windows in an order drawn from the seed, read ahead.

  The batch of an index is the same for any number of hosts.
  """

  def __init__(self, records, *, length, batch_size, seed, host, packed):
    import grain

    if len(records) < batch_size:
      raise errors.CorpusError(
        f'the training split holds {len(records)} windows, fewer than '
        f'data.batch_size={batch_size}; lower it'
      )
    self._records, self._length, self.packed = records, length, packed
    self._batch_size = batch_size
    self._rows = windows.host_rows(batch_size, host)
    self._order = (
      grain.MapDataset.range(len(records)).shuffle(seed=seed).repeat()
    )
    self._ahead = None

  def batch(self, index):
    first = index * self._batch_size
    rows = [self._order[first + row] for row in self._rows]
    tokens, sizes = windows.pad(self._records.read(rows), self._length)
    return windows.lm_batch(tokens, sizes)

  def next(self):
    if self._ahead is None:
      self._ahead = self._read_ahead()
    self._next += 1
    return next(self._ahead)

  def restore(self, folder):
    super().restore(folder)
    self._ahead = None

  def _read_ahead(self):
    import grain

    batches = iter(
      grain.MapDataset.range(1 << 40)
      .map(self.batch)
      .to_iter_dataset(
        grain.ReadOptions(num_threads=_THREADS, prefetch_buffer_size=_AHEAD)
      )
    )
    batches.set_state({'next_index': self._next})
    return batches


class _Records:
  """Windows in ArrayRecord files, by number."""

  def __init__(self, files, dtype):
    from array_record.python import array_record_data_source

    self._dtype = dtype
    self._paths = [path for path, _ in files]
    counts = [shard['records'] for _, shard in files]
    self._starts = [0, *itertools.accumulate(counts)]
    try:
      self._source = array_record_data_source.ArrayRecordDataSource(
        [str(path) for path in self._paths]
      )
      found = len(self._source)
    except Exception as error:  # Of riegeli, whatever it is.
      raise errors.CorpusError(
        f'cannot open the files in {self._paths[0].parent}: '
        f'{str(error).splitlines()[0]}; run lengen prepare again to see which '
        'is damaged'
      ) from error
    if found != self._starts[-1]:
      raise errors.CorpusError(
        f'{self._paths[0].parent} holds {found} windows, the manifest has '
        f'{self._starts[-1]}; run lengen prepare again to see which file is '
        'damaged'
      )

  def __len__(self):
    return self._starts[-1]

  def read(self, numbers):
    """Windows, arrays of token ids, of some numbers."""
    try:
      records = self._source.__getitems__([int(n) for n in numbers])
    except Exception:  # Of riegeli, whatever it is.
      records = [self._read_one(int(number)) for number in numbers]
    return [np.frombuffer(record, self._dtype) for record in records]

  def _read_one(self, number):
    try:
      return self._source[number]
    except Exception as error:
      shard = np.searchsorted(self._starts, number, side='right') - 1
      raise errors.CorpusError(
        f'{self._paths[shard]}: record {number - self._starts[shard]} cannot '
        f'be read ({str(error).splitlines()[0]}); the file is damaged: copy it '
        'again, or write it anew with lengen prepare'
      ) from error
