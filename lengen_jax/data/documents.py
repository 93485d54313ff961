"""Reads the documents of a Part, from files or TensorFlow Datasets."""

from collections.abc import Iterator, Mapping
import itertools
from typing import Any

from lengen_jax import errors
from lengen_jax.data import extra, sources


def read(
  source: sources.Source, part: sources.Part, first: int = 0
) -> Iterator[bytes]:
  """Yields the documents of a part from number `first` on, in a fixed order.

  Raises:
    errors.CorpusError: a file or dataset cannot be read.
  """
  if part.dataset:
    for record in _records(part, first):
      yield source.from_record(record)
  else:
    yield from itertools.islice(source.documents(part), first, None)


def _records(part: sources.Part, first: int) -> Iterator[Mapping[str, Any]]:
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
      f'{part.path} holds no prepared {name}: {extra.reason(error)}; prepare '
      'it again'
    ) from error
  if split not in builder.info.splits:
    raise errors.CorpusError(
      f'{part.path} has no split {split!r}, only '
      f'{", ".join(builder.info.splits)}; prepare it again'
    )
  if first >= builder.info.splits[split].num_examples:
    return
  dataset = builder.as_dataset(
    # Files in sequence, so that skipped files are not read.
    tfds.core.ReadInstruction(split, from_=first, unit='abs'),
    read_config=tfds.ReadConfig(interleave_cycle_length=1),
    shuffle_files=False,
  )
  try:
    yield from dataset.as_numpy_iterator()
  except tf.errors.OpError as error:
    raise errors.CorpusError(
      f'cannot read split {split!r} in {part.path}: {extra.reason(error)}; the '
      'file is damaged: copy it again, or prepare it again'
    ) from error
