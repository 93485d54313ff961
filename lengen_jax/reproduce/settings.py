"""The settings of a part at a scale, and how they differ from the paper's."""

import copy
import dataclasses
import hashlib
import inspect
import json
import math
import sys

from lengen_jax import data
from lengen_jax import errors
from lengen_jax.training import config_file
from lengen_jax.training import files
from lengen_jax.training import runs as runs_lib
from lengen_jax.training import workdir

# What a stand-in's text says already, and what no figure depends on.
_SAID = (
  'data.source',
  'data.task',
  'data.path',
  'data.raw',
  'eval.batch_tokens',
  'eval.lengths',
  'model.remat',
  'model.scan_layers',
  'seed',
  'sweep.batching',
  'sweep.runs',
  'sweep.seeds',
  'train.checkpoint_every',
  'train.init_from',
  'train.log_every',
  'train.buckets',
  'eval.buckets',
)


@dataclasses.dataclass(frozen=True)
class Request:
  """What is to be reproduced, and where.

  Attributes:
    scale: one of experiment.SCALES.
    seeds: tuple of ints.
    overrides: tuple of '--config.KEY=VALUE'.
    root: folder of all reproductions.
    name: of the experiment, 'PAPER/TABLE'.
  """

  scale: str
  seeds: tuple
  overrides: tuple
  root: str
  name: str

  @property
  def folder_name(self):
    """PAPER/TABLE/SCALE; another one where settings are a user's."""
    name = f'{self.name}/{self.scale}'
    if self.overrides:
      name += f'-{_digest(sorted(self.overrides))}'
    return name

  @property
  def folder(self):
    """Of the experiment at this scale."""
    return files.locate(self.root) / self.folder_name

  def trained(self, part, config):
    """Folder of the runs of a config, below `root`.

    Experiments that train the same model find it there. Neither where data
    lies nor what no step depends on makes another model.

    Args:
      part: whose config it is.
      config: what its runs share.
    """
    shared = copy.deepcopy(config)
    with shared.unlocked():
      for key in ('sweep', 'paper', 'seed', 'mesh'):
        if key in shared:
          del shared[key]
      free = workdir.FREE | {'data': ('path', 'raw')}
      for section, keys in free.items():
        for key in keys:
          if key in shared.get(section, {}):
            del shared[section][key]
    shared.model.encoding = shared.positions = ''
    shared.model.attention_scale = ''
    name = part.config.replace('.py', '').replace(':', ',').replace(',', '-')
    written = None
    if standin(part, self) and part.standin.write is not None:
      written = _standin_folder(part, self).name
    digest = _digest([json.loads(shared.to_json()), written])
    return f'trained/{name}-{self.scale}-{digest}'


def _digest(value):
  """Eight letters that tell values of JSON apart."""
  text = json.dumps(value, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:8]


def load(text, scale, overrides):
  """The config of a part at a scale.

  Args:
    text: as `experiment.Curves.config`.
    scale: one of experiment.SCALES.
    overrides: list of '--config.KEY=VALUE'.
  """
  file, _, arg = text.partition(':')
  arg = ','.join([arg, scale] if arg else [scale])
  return config_file.load(f'{config_file.folder() / file}:{arg}', overrides)


def standin(part, request):
  """Overrides that put a part's stand-in for its data in place, if it has one.

  Args:
    part: the part.
    request: a Request.

  Returns:
    list of '--config.KEY=VALUE'; what they name need not be there yet.
  """
  source = getattr(part, 'standin', None)
  if request.scale not in ('cpu', 'tiny') or source is None:
    return []
  changes = dict(part.standin.changes)
  if part.standin.write is not None:
    changes['data.raw'] = str(_standin_folder(part, request))
  return [f'--config.{key}={value}' for key, value in changes.items()]


def write_standin(part, request):
  """Writes a part's stand-in for its data, if it has one of files."""
  if standin(part, request) and part.standin.write is not None:
    part.standin.write(_standin_folder(part, request))


def _standin_folder(part, request):
  """Where its files are: another place whenever they are written otherwise."""
  module = sys.modules[part.standin.write.__module__]
  name = module.__name__.rpartition('.')[2]
  version = _digest(inspect.getsource(module))
  return files.locate(request.root) / 'standins' / f'{name}-{version}'


def columns(part, config):
  """{ratio: length tested} of a part.

  Args:
    part: the part.
    config: of the part, at some scale.
  """
  train_length = config.data.train_length
  if not part.of_config:
    return {ratio: int(train_length * ratio) for ratio in part.ratios}
  return {
    min(
      part.ratios,
      key=lambda ratio: abs(math.log(length / train_length / ratio)),
    ): length
    for length in config.eval.lengths
  }


def with_columns(row, part, names):
  """A row whose figures of the paper are those of some of a part's ratios."""
  if row.paper is None:
    return row
  paper = tuple(row.paper[part.ratios.index(name)] for name in names)
  return dataclasses.replace(row, paper=paper)


def rows(part, scale):
  """The rows of a part that are run at a scale."""
  return [row for row in part.rows if scale in row.scales]


def runs(part, config, scale):
  """The run of each row, by its name, as `lengen compare --runs` takes them."""
  section = config.data if 'data' in config else config.train
  longest = section.get('train_length', section.get('max_length'))
  return {row.name: row.run_at(longest) for row in rows(part, scale)}


def parse(part, config, scale):
  """The run of each row, by its name, as (encoding, positions, scale)."""
  given = runs(part, config, scale)
  parsed = runs_lib.parse('; '.join(given.values()), config)
  return dict(zip(given, parsed, strict=True))


def check(part, request, make_config):
  """Raises unless a part can be run; writes its stand-in if it has one.

  Args:
    part: Curves or Answers.
    request: a Request.
    make_config: of the part's kind.

  Raises:
    errors.LengenError: its config or runs cannot be read, or its data is not
      there.
  """
  write_standin(part, request)
  config = make_config(part, request)
  parse(part, config, request.scale)
  try:
    data.check_present(data.DataConfig(**config.data.to_dict()))
  except errors.LengenError as error:
    raise errors.CorpusError(
      f'{part.config} at scale {request.scale}: {error}; --scale=cpu needs no '
      'data'
    ) from None


def commits(results):
  """The commits at which models were tested."""
  return sorted({str(one.get('commit', 'unrecorded')) for one in results})


def differences(paper, config, part, scale):
  """What was run, and what the config of the paper's size has instead.

  Args:
    paper: ConfigDict of that size.
    config: of what was run.
    part: the part.
    scale: of what was run.

  Returns:
    list of lines.
  """
  theirs, ours = _flat(paper), _flat(config)
  lines = [
    f'{key}: {ours.get(key)!r}, at full size {theirs.get(key)!r}'
    for key in sorted(theirs.keys() | ours.keys())
    if theirs.get(key) != ours.get(key) and key not in _SAID
  ]
  full = runs(part, paper, scale)
  lines += [
    f'{name}: {run}, at full size {full[name]}'
    for name, run in runs(part, config, scale).items()
    if run != full[name]
  ]
  return lines


def _flat(config):
  """{'section.key': value} of a ConfigDict, but for its runs."""
  skip = ('model.encoding', 'model.attention_scale', 'positions', 'paper')
  flat = {}
  for key, value in json.loads(config.to_json()).items():
    if isinstance(value, dict):
      flat |= {f'{key}.{inner}': each for inner, each in value.items()}
    else:
      flat[key] = value
  return {key: value for key, value in flat.items() if key not in skip}
