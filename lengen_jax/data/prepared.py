"""Reads windows written by `lengen prepare` with grain."""

from collections.abc import Iterable, Mapping, Sequence
import itertools
import pathlib
import resource
from typing import Any

import numpy as np

from lengen_jax import errors, extra
from lengen_jax.data import chunks, mirror, windows
from lengen_jax.data import manifest as manifest_lib
from lengen_jax.data.config import DataConfig

# Number of prefetched batches and of threads.
_AHEAD, _THREADS = 4, 2


class Prepared:
  """A folder of windows.

  Attributes:
    info: description of the data, for results.
    vocab_size: number of token ids.
  """

  scored_by = 'loss'
  architectures = ('decoder', 'encoder')

  def __init__(self, config: DataConfig, longest: int | None) -> None:
    """Opens a folder; `longest` is the maximum evaluated length, if any.

    Raises:
      errors.CorpusError: the folder does not match the config, or a file is
        missing or corrupt.
    """
    self._folder = mirror.fetch(config.path)
    self._manifest = manifest = manifest_lib.read(self._folder)
    self._vocab = manifest_lib.check_config(
      manifest, config, longest or 0, self._folder
    )
    self.vocab_size = self._vocab.size
    self.info = {
      'source': f'prepared {config.task}',
      'vocabulary': self._vocab.fingerprint,
      'mode': config.mode,
      **{
        key: {s: found[key] for s, found in manifest['splits'].items()}
        for key in (*manifest_lib.COUNTS, 'left_out')
      },
      'sha256': manifest_lib.content(manifest),
    }

  def training(
    self, config: DataConfig, *, seed: int, host: tuple[int, int] = (0, 1)
  ) -> windows.Batches:
    """Returns batches of the training split; see `corpus.Corpus.training`."""
    batches = PreparedBatches(
      self._records('train'),
      length=config.window_length,
      batch_size=config.batch_size,
      seed=seed,
      host=host,
      padded=config.mode == 'doc_pad',
    )
    return chunks.chunked(batches, config, seed=seed, host=host)

  def evaluation(self, config: Any) -> windows.EvaluationWindows:
    """Returns the first validation windows for an EvalConfig."""
    records, longest = self._records('validation'), max(config.lengths)
    # A longer window is split into several windows.
    each = self._manifest['longest'] // longest
    total = each * len(records)
    # EvaluationWindows raises an error if there are too few.
    count = min(config.windows, total)
    numbers, pieces = np.divmod(np.arange(count), each)
    found = [
      record[piece * longest :][: longest + 1]
      for record, piece in zip(records.read(numbers), pieces, strict=True)
    ]
    return windows.EvaluationWindows(
      found, lengths=config.lengths, count=config.windows, vocab=self._vocab
    )

  def _records(self, split: str) -> '_Records':
    files = manifest_lib.shards(self._folder, self._manifest, split)
    return _Records(files, manifest_lib.dtype(self.vocab_size))


class PreparedBatches(windows.IndexedBatches):
  """Prefetched batches of windows, equal for any number of hosts."""

  def __init__(
    self,
    records: '_Records',
    *,
    length: int,
    batch_size: int,
    seed: int,
    host: tuple[int, int],
    padded: bool,
  ) -> None:
    self._grain = extra.load('grain', 'reading prepared data')
    if len(records) < batch_size:
      raise errors.CorpusError(
        f'the training split contains {len(records)} windows, fewer than '
        f'data.batch_size={batch_size}; lower data.batch_size'
      )
    self._records, self._length, self.padded = records, length, padded
    self._batch_size = batch_size
    self._rows = windows.host_rows(batch_size, host)
    # grain adds the number of an epoch to its seed.
    seed = int(np.random.SeedSequence(seed).generate_state(1)[0])
    numbers = self._grain.MapDataset.range(len(records))
    self._order = numbers.shuffle(seed=seed).repeat()
    self._ahead = None

  def batch(self, index: int) -> dict[str, np.ndarray]:
    first = index * self._batch_size
    rows = [self._order[first + row] for row in self._rows]
    tokens, sizes = windows.pad(self._records.read(rows), self._length)
    return windows.lm_batch(tokens, sizes)

  def next(self) -> dict[str, np.ndarray]:
    # After an error, reading starts again.
    ahead, self._ahead = self._ahead or self._read_ahead(), None
    batch = next(ahead)
    self._ahead = ahead
    self.next_index += 1
    return batch

  def restore(self, folder: pathlib.Path) -> None:
    super().restore(folder)
    self._ahead = None

  def _read_ahead(self) -> Any:
    batches = self._grain.MapDataset.range(1 << 40).map(self.batch)
    options = self._grain.ReadOptions(
      num_threads=_THREADS, prefetch_buffer_size=_AHEAD
    )
    batches = iter(batches.to_iter_dataset(options))
    batches.set_state({'next_index': self.next_index})
    return batches


class _Records:
  """Windows in ArrayRecord files by index."""

  def __init__(
    self,
    files: Sequence[tuple[pathlib.Path, Mapping[str, Any]]],
    dtype: np.dtype,
  ) -> None:
    module = extra.load(
      'array_record.python.array_record_data_source', 'reading prepared data'
    )
    self._dtype = dtype
    self._paths = [path for path, _ in files]
    counts = [shard['records'] for _, shard in files]
    self._starts = [0, *itertools.accumulate(counts)]
    _allow_open_files(len(files))
    again = 'run lengen prepare again to see which file is damaged'
    try:
      paths = [str(path) for path in self._paths]
      self._source = module.ArrayRecordDataSource(paths)
    except Exception as error:  # The type depends on the damage.
      raise errors.CorpusError(
        f'cannot open the files in {self._paths[0].parent}: '
        f'{errors.reason(error)}; {again}'
      ) from error
    if len(self._source) != len(self):
      raise errors.CorpusError(
        f'{self._paths[0].parent} contains {len(self._source)} windows, the '
        f'manifest has {len(self)}; {again}'
      )

  def __len__(self) -> int:
    return self._starts[-1]

  def read(self, numbers: Iterable[int]) -> list[np.ndarray]:
    """Returns the windows at some indices, arrays of token ids."""
    try:
      records = self._source.__getitems__([int(n) for n in numbers])
    except Exception:  # The type depends on the damage.
      records = [self._read_one(int(number)) for number in numbers]
    return [np.frombuffer(record, self._dtype) for record in records]

  def _read_one(self, number: int) -> bytes:
    try:
      return self._source[number]
    except Exception as error:
      shard = np.searchsorted(self._starts, number, side='right') - 1
      raise errors.CorpusError(
        f'{self._paths[shard]}: record {number - self._starts[shard]} cannot '
        f'be read ({errors.reason(error)}); copy the file again, or write it '
        'again with lengen prepare'
      ) from error


def _allow_open_files(count: int) -> None:
  """Raises the soft limit of open files, because each file stays open."""
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  # Other parts of a process may open 1024 files.
  wanted = count + 1024
  if hard != resource.RLIM_INFINITY:
    wanted = min(wanted, hard)
  if soft != resource.RLIM_INFINITY and soft < wanted:
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
