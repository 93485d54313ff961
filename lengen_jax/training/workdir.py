"""Workdirs: the folder of a run, a comparison or a sweep and its config."""

from collections.abc import Iterator, Mapping
import dataclasses
import json
import os
from typing import Any

import ml_collections

from lengen_jax import errors
from lengen_jax.training import config as training_config
from lengen_jax.training import defaults, files
from lengen_jax.types import PathLike

_CORPUS, _VOCABULARY = 'corpus_sha256', 'data_vocabulary'
# Fields that may differ on resume: no training step depends on them.
FREE = {
  'eval': ('operand_examples',),
  'mesh': tuple(
    field.name for field in dataclasses.fields(training_config.MeshConfig)
  ),
  'train': (
    'log_every',
    'checkpoint_every',
    'keep_every',
    'evaluate_every',
    'max_skipped',
    'stall_seconds',
    'tensorboard',
    'wandb',
    'profile',
  ),
}

RUN, COMPARISON, SWEEP = 'config.json', 'comparison.json', 'sweep.json'
# Config file to the kind of workdir that has it and the command that makes it.
_KINDS = {
  RUN: ('run', 'train'),
  COMPARISON: ('comparison', 'compare'),
  SWEEP: ('sweep', 'sweep'),
}
# Config file to what a workdir has beside it, and patterns of these files.
_RESULTS = {
  RUN: ('checkpoints', ('checkpoints',)),
  COMPARISON: ('trained runs', (f'*/{RUN}',)),
  SWEEP: ('scores', ('*/learning_rate=*.json', '*/unfinished-*')),
}
_RESTORE = 'restore the file, or choose another folder'


def claim(
  workdir: PathLike,
  config: ml_collections.ConfigDict,
  corpus_info: Mapping[str, Any] | None = None,
  kind: str = RUN,
) -> files.Path:
  """Writes the config into a new workdir, or compares it with an old one's.

  The config file, whose name is `kind`, includes checksum and vocabulary of the
  corpus whose `info` is given. Returns the absolute path of the folder.

  Raises:
    errors.WorkdirError: the workdir has another configuration or kind, or
      cannot be written.
  """
  path = files.make_folder(workdir)
  _check_kind(path, kind)
  mine = json.loads(config.to_json())
  if corpus_info is not None:
    mine[_CORPUS] = corpus_info['sha256']
    mine[_VOCABULARY] = corpus_info['vocabulary']
  if not (path / kind).exists():
    _check_unused(path, kind)
    files.write_json(path / kind, mine)
    return path
  theirs = _read_fields(path / kind)
  free = dict(FREE)
  # `batch_tokens` may differ, too. It is not in FREE, because scores depend on
  # it if positions are drawn at test time, and folder names of `lengen
  # reproduce` omit the fields in FREE.
  free['eval'] += ('batch_tokens',)
  if kind == SWEEP:
    # A sweep keeps scores of these steps, and needs no checkpoints of them.
    free['eval'] += ('steps',)
  if corpus_info is not None and theirs.get(_CORPUS) == mine[_CORPUS]:
    # The same data may be read from another path.
    free['data'] = ('path', 'raw')
  for section, fields in free.items():
    for field in fields:
      if field in mine.get(section, {}):
        theirs.setdefault(section, {})[field] = mine[section][field]
  sources = [each.get('train', {}).get('init_from') for each in (theirs, mine)]
  if all(sources) and len({*map(os.path.normpath, sources)}) == 1:
    # One path may be written in several ways.
    theirs['train']['init_from'] = mine['train']['init_from']
  differences = [
    f'{key}: {a!r} there, {b!r} here'
    for key, a, b in _differences(theirs, mine)
  ]
  if differences:
    raise errors.WorkdirError(
      f'{path} belongs to a run of another configuration ('
      + '; '.join(differences)
      + '); choose another --workdir, or delete it to start over'
    )
  files.write_json(path / kind, theirs)
  return path


def _check_unused(path: files.Path, kind: str) -> None:
  """Raises if a folder has results but lacks the config file `kind`."""
  results, patterns = _RESULTS[kind]
  if any(any(path.glob(pattern)) for pattern in patterns):
    raise errors.WorkdirError(
      f'{path} has {results} but no {kind}, so that their configuration is '
      f'unknown; choose another --workdir, or restore {kind} if it was lost'
    )


def _check_kind(path: files.Path, kind: str) -> None:
  """Raises if a folder is a workdir of another kind."""
  for other, (what, command) in _KINDS.items():
    if other != kind and (path / other).exists():
      raise errors.WorkdirError(
        f'{path} holds a {what}, made by lengen {command}, and cannot hold a '
        f'{_KINDS[kind][0]} too; choose another --workdir'
      )


def read_config(
  workdir: PathLike,
) -> tuple[ml_collections.ConfigDict, files.Path]:
  """Returns the ConfigDict of the run in `workdir`, and its absolute path.

  Raises:
    errors.WorkdirError: the workdir has no run.
  """
  path = files.locate(workdir)
  if (path / SWEEP).exists():
    raise errors.WorkdirError(
      f'{path} holds a sweep, which keeps scores and no models; see them with '
      'lengen report'
    )
  if (path / COMPARISON).exists():
    runs = sorted(str(run.parent.name) for run in path.glob(f'*/{RUN}'))
    raise errors.WorkdirError(
      f'{path} holds a comparison; give the folder of one of its runs: '
      + (', '.join(runs) or 'there are none yet')
    )
  if not (path / RUN).exists():
    _check_unused(path, RUN)
    raise errors.WorkdirError(
      f'{path} holds no run (no {RUN}); start one with lengen train'
    )
  fields = _with_tuples(_read_fields(path / RUN))
  for key in (_CORPUS, _VOCABULARY):
    fields.pop(key, None)
  return ml_collections.ConfigDict(fields), path


def vocabulary(workdir: PathLike) -> str:
  """Returns the fingerprint of the vocabulary that a run was trained on.

  Raises:
    errors.WorkdirError: the workdir has no run.
  """
  _, path = read_config(workdir)
  return files.read_json(path / RUN, (_VOCABULARY,), _RESTORE)[_VOCABULARY]


def check_vocabulary(
  path: PathLike,
  corpus_info: Mapping[str, Any],
  trained_on: str | None = None,
) -> None:
  """Raises if a model was trained on another vocabulary than a corpus has.

  `trained_on` is the fingerprint of the vocabulary of the model at `path`; None
  to read it from the workdir at `path`.

  Raises:
    errors.CorpusError: the vocabularies differ.
  """
  theirs = vocabulary(path) if trained_on is None else trained_on
  mine = corpus_info['vocabulary']
  if theirs != mine:
    raise errors.CorpusError(
      f'the model in {files.locate(path)} was trained with vocabulary '
      f'{theirs!r}; the data has {mine!r}; set data.vocabulary to the one it '
      'was trained with'
    )


def _read_fields(file: files.Path) -> dict[str, Any]:
  """Returns the config in a file of a workdir, as a dict.

  Raises:
    errors.WorkdirError: the file has no config.
  """
  sections = ['model', 'train', 'eval', 'optimizer']
  if file.name == RUN:
    sections += ['data', 'mesh']
  fields = files.read_json(file, sections, _RESTORE)
  for section in sections:
    if not isinstance(fields[section], dict):
      raise errors.WorkdirError(
        f'{file} has {section}={fields[section]!r:.60}, which is not a section '
        f'of a config; {_RESTORE}'
      )
  # Files of older versions lack fields that were added since.
  is_sweep = file.name == SWEEP
  known = defaults.sections(
    training_config.TaskConfig if is_sweep else training_config.RunConfig
  )
  for section in {'model', 'train', 'eval', 'optimizer'} & known.keys():
    added = json.loads(known[section].to_json())
    fields[section] = added | fields[section]
  return fields


def _with_tuples(node: Any) -> Any:
  """Converts the lists of JSON to the tuples of configs."""
  if isinstance(node, dict):
    return {key: _with_tuples(value) for key, value in node.items()}
  return tuple(map(_with_tuples, node)) if isinstance(node, list) else node


def _differences(
  a: Mapping[str, Any], b: Mapping[str, Any], prefix: str = ''
) -> Iterator[tuple[str, Any, Any]]:
  """Yields (key, value in a, value in b) where they differ; keys are dotted."""
  for key in sorted({*a, *b}):
    x, y = a.get(key), b.get(key)
    if isinstance(x, dict) and isinstance(y, dict):
      yield from _differences(x, y, f'{prefix}{key}.')
    elif x != y:
      yield f'{prefix}{key}', x, y
