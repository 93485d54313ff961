"""Folders of local data. This package never downloads data."""

from collections.abc import Sequence
import json
import os
import pathlib
from typing import Any

from lengen_jax import errors
from lengen_jax.data import remote

_VARIABLE = 'LENGEN_DATA_DIR'


def data_folder(path: str | os.PathLike) -> pathlib.Path:
  """Returns `path`, else $LENGEN_DATA_DIR, else ~/.lengen/data.

  Raises:
    errors.ConfigError: the folder is in an object store.
  """
  path = path or os.environ.get(_VARIABLE) or '~/.lengen/data'
  if remote.is_remote(path):
    raise errors.ConfigError(
      f'these data are read from a local folder only, not {path}; copy it and '
      f'set data.raw or {_VARIABLE} to the copy'
    )
  return pathlib.Path(path).expanduser().absolute()


def candidates(path: str, name: str) -> list[pathlib.Path]:
  """Returns folders that may hold the files of a source, best first.

  `path` may be the folder of that source. The default folder has one subfolder
  per source.
  """
  folder = data_folder(path)
  return [folder / name, *([folder] if path else [])]


def prepared_dataset(path: str | os.PathLike, dataset: str) -> pathlib.Path:
  """Returns the TensorFlow Datasets folder of 'name/config:version'."""
  name, _, version = dataset.partition(':')
  return data_folder(path) / name / version


def dataset_splits(path: str, dataset: str) -> tuple[str, ...]:
  """Returns the splits of a prepared dataset, () if there is none.

  Raises:
    errors.CorpusError: dataset_info.json cannot be read.
  """
  folder = prepared_dataset(path, dataset)
  return tuple(_dataset_info(folder, dataset))


def shard_lengths(folder: str, dataset: str) -> list[int]:
  """Returns the number of examples in each file of 'name@split', in order.

  `folder` is that of the prepared dataset.

  Raises:
    errors.CorpusError: dataset_info.json cannot be read.
  """
  name, _, split = dataset.partition('@')
  found = _dataset_info(pathlib.Path(folder), name).get(split, {})
  return [int(count) for count in found.get('shardLengths', ())]


def _dataset_info(folder: pathlib.Path, dataset: str) -> dict[str, Any]:
  """Returns the splits in dataset_info.json, by name; {} without a file."""
  file = folder / 'dataset_info.json'
  if not file.is_file():
    return {}
  try:
    splits = json.loads(file.read_text())['splits']
    return {split['name']: split for split in splits}
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise errors.CorpusError(
      f'{file} is broken ({type(error).__name__}: {error}); delete its folder '
      f'and prepare it again: tfds build {dataset}'
    ) from None


def missing(what: str, tried: Sequence[str], how: str) -> errors.CorpusError:
  """Returns the error for missing data."""
  return errors.CorpusError(
    f'there is no {what}; looked in: {", ".join(tried)}. To get it: {how}. '
    f'Then name its folder by data.raw or {_VARIABLE}. {WITHOUT}'
  )


WITHOUT = (
  'Language models also train without these data: --config=configs/stdlib.py'
)
