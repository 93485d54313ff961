"""A workdir: which run it belongs to, and files written whole or not at all."""

import contextlib
import dataclasses
import json
import pathlib
import sys

from etils import epath
import ml_collections

from lengen_jax import errors
from lengen_jax.training import config as training_config

_CORPUS, _VOCABULARY = 'corpus_sha256', 'data_vocabulary'
# What may change from sitting to sitting: no step depends on it.
FREE = {
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
# What a file tells that a workdir holds, and what makes it.
_KINDS = {
  RUN: ('run', 'train'),
  COMPARISON: ('comparison', 'compare'),
  SWEEP: ('sweep', 'sweep'),
}


def claim(workdir, config, corpus_info=None, kind=RUN):
  """Makes `workdir` this run's, or checks that it is.

  Args:
    workdir: a folder; made if missing.
    config: the run's ConfigDict, kept in the folder.
    corpus_info: of the corpus, if there is one; another text is another run.
    kind: RUN, COMPARISON or SWEEP, the name of the file that keeps the config.

  Returns:
    The folder as an absolute path.

  Raises:
    errors.WorkdirError: it belongs to another configuration or is of another
      kind, or cannot be written.
  """
  path = make(workdir)
  _check_kind(path, kind)
  mine = json.loads(config.to_json())
  if corpus_info is not None:
    mine[_CORPUS] = corpus_info['sha256']
    mine[_VOCABULARY] = corpus_info['vocabulary']
  if not (path / kind).exists():
    write_json(path / kind, mine)
    return path
  theirs = _read_fields(path / kind)
  free = dict(FREE)
  if corpus_info is not None and theirs.get(_CORPUS) == mine[_CORPUS]:
    # The same data, wherever it lies now.
    free['data'] = ('path', 'raw')
  for section, fields in free.items():
    for field in fields:
      if field in mine.get(section, {}):
        theirs.setdefault(section, {})[field] = mine[section][field]
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
  write_json(path / kind, theirs)
  return path


def _check_kind(path, kind):
  """Raises if a folder is the workdir of something else."""
  for other, (what, command) in _KINDS.items():
    if other != kind and (path / other).exists():
      raise errors.WorkdirError(
        f'{path} holds a {what}, made by lengen {command}, and cannot hold a '
        f'{_KINDS[kind][0]} too; choose another --workdir'
      )


def make(workdir):
  """Makes a folder if it is missing.

  Returns:
    The folder as an absolute path.

  Raises:
    errors.WorkdirError: it cannot be made.
  """
  path = locate(workdir)
  try:
    path.mkdir(parents=True, exist_ok=True)
    path.exists()
  except Exception as error:  # Whatever a store makes of lacking credentials.
    hint = ''
    if '://' in str(path):
      hint = (
        '; is the bucket there, and does this machine have credentials for it '
        '(gcloud auth application-default login)?'
      )
    raise errors.WorkdirError(
      f'cannot make the workdir {path}: {_reason(error)}{hint}'
    ) from None
  return path


@contextlib.contextmanager
def locked(folder):
  """Makes a folder this process's own for a while.

  It waits for another process that is at work there, and says so. Folders of a
  store are not locked, nor is anything on Windows.
  """
  path = make(folder)
  if '://' in str(path) or not is_first() or sys.platform == 'win32':
    yield
    return
  # Windows has none, and does all but this.
  import fcntl

  with (path / '.lock').open('w') as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      print(f'waiting for another process at work in {path} ...', flush=True)
      fcntl.flock(file, fcntl.LOCK_EX)
    yield


def read_config(workdir):
  """The ConfigDict of the run in `workdir`, and its absolute path.

  Raises:
    errors.WorkdirError: there is no run.
  """
  path = locate(workdir)
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
    raise errors.WorkdirError(
      f'{path} holds no run (no {RUN}); start one with lengen train'
    )
  fields = _with_tuples(_read_fields(path / RUN))
  for key in (_CORPUS, _VOCABULARY):
    fields.pop(key, None)
  return ml_collections.ConfigDict(fields), path


def _read_fields(file):
  """The config that a file of a workdir keeps, as a dict.

  Raises:
    errors.WorkdirError: it holds none.
  """
  fields = read_json(file)
  sections = ('model', 'train', 'eval')
  if not isinstance(fields, dict) or not all(
    isinstance(fields.get(section), dict) for section in sections
  ):
    raise errors.WorkdirError(
      f'{file} is damaged: it holds no config; put it back as it was, or '
      'choose another --workdir'
    )
  return fields


def check_vocabulary(workdir, corpus_info):
  """Raises unless a run was trained on the vocabulary of a corpus.

  Args:
    workdir: of the run.
    corpus_info: the corpus's `info`.

  Raises:
    errors.CorpusError: naming both.
  """
  check_same_vocabulary(workdir, vocabulary(workdir), corpus_info)


def vocabulary(workdir):
  """The fingerprint of the vocabulary that a run was trained on.

  Raises:
    errors.WorkdirError: there is no run.
  """
  _, path = read_config(workdir)
  return read_json(path / RUN)[_VOCABULARY]


def check_same_vocabulary(path, theirs, corpus_info):
  """Raises unless a model was trained on the vocabulary of a corpus.

  Args:
    path: where the model lies.
    theirs: the fingerprint of its vocabulary.
    corpus_info: the corpus's `info`.

  Raises:
    errors.CorpusError: naming both.
  """
  mine = corpus_info['vocabulary']
  if theirs != mine:
    raise errors.CorpusError(
      f'the model in {locate(path)} was trained with vocabulary {theirs!r}; '
      f'the data has {mine!r}; set data.vocabulary to the one it was trained '
      'with'
    )


def locate(workdir):
  """A workdir as an absolute path, or as one of a store: 'gs://...'."""
  if '://' in str(workdir):
    return epath.Path(workdir)
  return pathlib.Path(workdir).expanduser().absolute()


def write_json(path, value):
  """Writes JSON so that the file is never seen half-written."""
  write_text(path, json.dumps(value, indent=1, allow_nan=False) + '\n')


def write_lines(path, values):
  """Writes JSON lines so that the file is never seen half-written."""
  write_text(path, ''.join(json.dumps(value) + '\n' for value in values))


def write_text(path, text):
  """Writes a text file so that it is never seen half-written.

  Of a run of several processes, the first does.
  """
  if not is_first():
    return
  path = locate(path)
  partial = path.with_name(path.name + '.partial')
  try:
    partial.write_text(text)
    partial.replace(path)
  except Exception as error:  # OSError, or whatever a store raises.
    raise errors.WorkdirError(
      f'cannot write {path}: {_reason(error)}'
    ) from None


def is_first():
  """Whether this is the process that does what only one of a run may do."""
  # Asked without loading jax or starting its devices, as reports need neither.
  jax = sys.modules.get('jax')
  if jax is None or not jax.distributed.is_initialized():
    return True
  return jax.process_index() == 0


def _reason(error):
  reason = getattr(error, 'strerror', None) or str(error).strip()
  return reason.splitlines()[0] if reason else type(error).__name__


def read_json(path):
  """Reads JSON.

  Raises:
    errors.WorkdirError: it cannot be read.
  """
  try:
    return json.loads(path.read_text())
  except (OSError, ValueError) as error:
    raise errors.WorkdirError(f'cannot read {path}: {_reason(error)}') from None


def _with_tuples(node):
  """Lists as tuples, which JSON lacks and configs use."""
  if isinstance(node, dict):
    return {key: _with_tuples(value) for key, value in node.items()}
  return tuple(map(_with_tuples, node)) if isinstance(node, list) else node


def _differences(a, b, prefix=''):
  """(key, value in a, value in b) for all that differs, nested keys dotted."""
  for key in sorted({*a, *b}):
    x, y = a.get(key), b.get(key)
    if isinstance(x, dict) and isinstance(y, dict):
      yield from _differences(x, y, f'{prefix}{key}.')
    elif x != y:
      yield f'{prefix}{key}', x, y
