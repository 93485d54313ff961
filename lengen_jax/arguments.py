"""Argument parser of the `lengen` command. Does not import jax."""

import argparse
from collections.abc import Callable, Sequence
import contextlib
import itertools
import math
from typing import Any, NoReturn

from lengen_jax import __version__, errors

_EPILOG = """\
examples:
  lengen list
  lengen compare --config=configs/stdlib.py:cpu --workdir=runs/demo \\
      --runs='fire; alibi; rope; rope(scale=16.) | standard | none'
  lengen train --config=configs/stdlib.py:cpu --workdir=runs/fire \\
      --config.model.encoding='fire(init_threshold=64.)'
  lengen eval --workdir=runs/fire --lengths=128,1024
  lengen eval --from=CHECKPOINT --tasks=ruler --lengths=4096,8192
  lengen generate --from=runs/fire --prompt='def main(' --max-new=32
  lengen compile --config=configs/fire_c4.py:base --pod=v4-256
"""


class _Parser(argparse.ArgumentParser):
  """An ArgumentParser that raises ConfigError instead of exiting.

  Attributes:
    passes_on: whether unknown options are left to another program.
  """

  passes_on = False

  def parse_known_args(
    self, args: Sequence[str], namespace: argparse.Namespace | None = None
  ) -> tuple[argparse.Namespace, list[str]]:
    """Reports unknown options before missing ones."""
    known, whose = self._option_string_actions, f'argument of {self.prog}'
    mine: Any = args
    if self._subparsers is not None:
      # The subparser checks the options after the command.
      mine = itertools.takewhile(lambda one: one.startswith('-'), args)
      whose = 'argument before the command'
    for one in mine:
      name = one.partition('=')[0]
      long = name.startswith('--') and not name.startswith('--config.')
      if long and name not in known and not self.passes_on:
        valid = [option for option in known if option.startswith('--')]
        hint = '; --config.KEY=VALUE sets a value of the config'
        raise errors.ConfigError(
          errors.one_of(whose, name, valid) + hint * ('--config' in known)
        )
    return super().parse_known_args(args, namespace)

  def error(self, message: str) -> NoReturn:
    raise errors.ConfigError(
      f'{message.removeprefix("argument ")}; see {self.prog} --help'
    )


def _non_empty(text: str) -> str:
  if not text:
    raise argparse.ArgumentTypeError('it is empty; give a value')
  return text


def _count(text: str) -> int:
  if not text.isdecimal() or int(text) < 1:
    raise argparse.ArgumentTypeError(f'{text!r} is not an integer from 1 on')
  return int(text)


def _step(text: str) -> str | int:
  if text != 'best' and not text.isdecimal():
    raise argparse.ArgumentTypeError(f"{text!r} is not an integer or 'best'")
  return text if text == 'best' else int(text)


def _number(text: str) -> float:
  with contextlib.suppress(ValueError):
    return float(text)
  raise argparse.ArgumentTypeError(f'{text!r} is not a number')


def _seed(text: str) -> int:
  if not text.isdecimal() or int(text) >= 2**32:
    raise argparse.ArgumentTypeError(
      f'{text!r} is not an integer from 0 to 2^32 - 1'
    )
  return int(text)


def _rows(text: str) -> tuple[str, ...]:
  names = tuple(name for part in text.split(';') if (name := part.strip()))
  if not names:
    raise argparse.ArgumentTypeError('it must name a row; leave it out for all')
  return names


def _names(text: str) -> tuple[str, ...]:
  return tuple(name.strip() for name in text.split(','))


def _numbers(
  least: int, most: float = math.inf
) -> Callable[[str], tuple[int, ...]]:
  """Returns a parser of lists such as '0,1'."""
  limits = f'from {least} on' if most == math.inf else f'from {least} to {most}'

  def read(text: str) -> tuple[int, ...]:
    with contextlib.suppress(ValueError):
      numbers = tuple(int(part) for part in text.split(','))
      if min(numbers) >= least and max(numbers) <= most:
        return numbers
    raise argparse.ArgumentTypeError(
      f'{text!r} is not a comma-separated list of integers {limits}'
    )

  return read


_STDLIB = (
  'config file; --config.KEY.KEY=VALUE overrides a value; default: '
  "configs/stdlib.py:cpu, with the source of Python's standard library",
  {
    'type': _non_empty,
    'metavar': 'FILE.py[:ARG]',
    'default': 'configs/stdlib.py:cpu',
  },
)
_NEW_WORKDIR = (
  'folder of the results; default: a new folder in runs',
  {'type': _non_empty},
)
# Options of `lengen eval` that require --tasks.
OF_TASKS = (
  '--from',
  '--samples',
  '--haystack',
  '--seed',
  '--vocabulary',
  '--encoding',
  '--positions',
)
# Options: help text and settings. A key with a command wins in this command.
_OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
  '--config': (
    'config file; --config.KEY.KEY=VALUE overrides a value',
    {'required': True, 'type': _non_empty, 'metavar': 'FILE.py[:ARG]'},
  ),
  '--workdir': (
    'folder of the run',
    {'required': True, 'type': _non_empty},
  ),
  'report --workdir': (
    'folder of the comparison, sweep, reproduction or scores on RULER',
    {'required': True, 'type': _non_empty},
  ),
  'train --config': _STDLIB,
  'compare --config': _STDLIB,
  'train --workdir': _NEW_WORKDIR,
  'compare --workdir': _NEW_WORKDIR,
  'sweep --workdir': _NEW_WORKDIR,
  'reproduce --workdir': (
    'folder of all reproductions, which share models; default: runs/reproduce',
    {'type': _non_empty, 'default': 'runs/reproduce'},
  ),
  'eval --workdir': (
    'folder of the run; with --from, folder of the results, by default a new '
    'folder in runs',
    {'type': _non_empty},
  ),
  '--step': (
    "step of the checkpoint, or 'best'; default: the last",
    {'type': _step},
  ),
  '--vocabulary-size': (
    'train a SentencePiece model of N pieces if data.vocabulary does not exist',
    {'type': _count, 'default': 0, 'metavar': 'N'},
  ),
  '--workers': (
    'number of processes that tokenize; default: 1',
    {'type': _count, 'default': 1, 'metavar': 'N'},
  ),
  '--runner': (
    "tokenize with Apache Beam: 'direct' on this machine, or another runner of "
    'Beam',
    {'type': _non_empty, 'metavar': 'NAME'},
  ),
  '--beam-options': (
    "with --runner, options of Beam, for example '--region=us-central1'",
    {'type': _non_empty, 'metavar': 'OPTIONS'},
  ),
  '--bad-records': (
    "'fail' at a record that cannot be read, or 'skip' it and count it; "
    'default: fail',
    {'choices': ('fail', 'skip'), 'default': 'fail'},
  ),
  '--lengths': (
    'comma-separated lengths in tokens; default: eval.lengths of the config; '
    'required with --tasks',
    {'type': _numbers(1)},
  ),
  '--tasks': (
    "comma-separated tasks of RULER, or 'ruler' for all; default: the data of "
    'the run',
    {'type': _names, 'metavar': 'NAMES'},
  ),
  'eval --from': (
    'evaluate this in place of --workdir: workdir of a run, file of lengen '
    'export, or folder of a transformers checkpoint',
    {'type': _non_empty, 'dest': 'checkpoint', 'metavar': 'CHECKPOINT'},
  ),
  '--samples': (
    'number of prompts per task and length; default: 500',
    {'type': _count, 'metavar': 'N'},
  ),
  '--haystack': (
    'text file or folder in which the facts to find are hidden; default: '
    'repeated sentences',
    {'type': _non_empty, 'metavar': 'PATH'},
  ),
  '--batch-tokens': (
    'tokens per batch; default: eval.batch_tokens of the config, with --tasks '
    '8192',
    {'type': _count, 'metavar': 'N'},
  ),
  '--runs': (
    "'encoding|positions|attention_scale; ...', later parts optional; 'RUN => "
    "RUN' tests the first as the second",
    {'required': True},
  ),
  '--to': (
    'output file or, with --format=hf, folder; train.init_from reads both',
    {'required': True, 'type': _non_empty, 'metavar': 'PATH'},
  ),
  '--format': (
    "'safetensors', one file with the names of this package, or 'hf', a folder "
    'for transformers; default: safetensors',
    {'choices': ('safetensors', 'hf'), 'default': 'safetensors'},
  ),
  '--like': (
    'with --format=hf, folder of a checkpoint whose tokenizer is copied and '
    'whose family is written; default: train.init_from if it is one',
    {'type': _non_empty, 'metavar': 'FOLDER'},
  ),
  '--dtype': (
    'with --format=hf: float32, bfloat16 or float16; default: float32',
    {
      'choices': ('float32', 'bfloat16', 'float16'),
      'default': 'float32',
    },
  ),
  '--from': (
    'workdir of a run, file written by lengen export, or folder of a '
    'transformers checkpoint',
    {
      'required': True,
      'type': _non_empty,
      'dest': 'checkpoint',
      'metavar': 'CHECKPOINT',
    },
  ),
  '--prompt': (
    "text to continue; may be repeated; '-' reads a prompt from each line of "
    'standard input',
    {
      'required': True,
      'action': 'append',
      'dest': 'prompts',
      'metavar': 'TEXT',
    },
  ),
  '--max-new': (
    'maximum number of new tokens per prompt; default: 64',
    {'type': _count, 'default': 64, 'metavar': 'N'},
  ),
  '--temperature': (
    'divides the logits; default: 0, the most probable token',
    {'type': _number, 'default': 0.0},
  ),
  '--top-p': (
    'sample from the most probable tokens with this total probability; '
    'default: 1',
    {'type': _number, 'default': 1.0},
  ),
  '--seed': (
    'seed of samples and of random positions; default: 0',
    {'type': _seed},
  ),
  '--vocabulary': (
    "'bytes', path of a SentencePiece model, or folder with tokenizer.json; "
    'default: that of the checkpoint',
    {'type': _non_empty, 'metavar': 'SPEC'},
  ),
  '--encoding': (
    'test the model with another encoding that has the same parameters',
    {'type': _non_empty, 'metavar': 'SPEC'},
  ),
  '--positions': (
    'test the model with other positions',
    {'type': _non_empty, 'metavar': 'SPEC'},
  ),
  '--pod': ('accelerator type, for example v4-256', {'required': True}),
  '--slices': (
    'number of pod slices; default: 1',
    {'type': _count, 'default': 1, 'metavar': 'N'},
  ),
  'experiment': (
    'for example fire/table4',
    {'nargs': '?', 'metavar': 'PAPER/TABLE'},
  ),
  '--list': ('list all experiments', {'action': 'store_true'}),
  '--names': (
    'print the names of all experiments, for scripts',
    {'action': 'store_true'},
  ),
  '--scale': (
    'paper (default), small for one GPU, hours, cpu, or tiny for tests; paper '
    'and small may require the data of the paper',
    {'default': 'paper'},
  ),
  '--seeds': (
    'comma-separated; default: the seeds of the experiment',
    {'type': _numbers(0, 2**32 - 1)},
  ),
  '--rows': (
    "rows to run, such as 'fire; PART: rope'; default: all",
    {'type': _rows, 'default': (), 'metavar': 'ROWS'},
  ),
  '--debug': ('show the traceback of an error', {'action': 'store_true'}),
}
# Commands: help text and options.
_COMMANDS = {
  'train': ('train a model, or resume its training', '--config --workdir'),
  'prepare': (
    'tokenize a corpus once, into windows with random access',
    '--config --vocabulary-size --workers --runner --beam-options '
    '--bad-records',
  ),
  'eval': (
    'evaluate a trained model by length, by its answers to prompts, or on '
    'RULER',
    '--workdir --lengths --step --tasks --from --samples --haystack '
    '--batch-tokens --seed --vocabulary --encoding --positions',
  ),
  'compare': (
    'train several models and compare them by length',
    '--config --workdir --runs',
  ),
  'export': (
    'write the weights of a trained model to a file, or for transformers',
    '--workdir --to --step --format --like --dtype',
  ),
  'generate': (
    'continue prompts with a trained model or a checkpoint',
    '--from --prompt --max-new --temperature --top-p --seed --vocabulary '
    '--encoding --positions',
  ),
  'lm_eval': (
    'run the lm-evaluation-harness; its options follow, for example '
    '--model_args pretrained=CHECKPOINT --tasks hellaswag',
    '',
  ),
  'sweep': (
    'train runs, learning rates and seeds on a generated task; test by length; '
    "--config.sweep.runs='rope; alibi' chooses the runs",
    '--config --workdir',
  ),
  'compile': (
    'compile for a TPU pod without TPUs; report whether the program fits',
    '--config --pod --slices',
  ),
  'reproduce': (
    "reproduce a paper's table or figure and compare the results; "
    '--config.KEY=VALUE changes its configs',
    'experiment --list --names --scale --seeds --rows --workdir',
  ),
  'report': (
    'draw the plots and page of a finished comparison, sweep or reproduction, '
    'or of scores on RULER',
    '--workdir',
  ),
  'list': ('list encodings, position schemes, scales, tasks and data', ''),
}


def create() -> argparse.ArgumentParser:
  """Returns the parser of `lengen`.

  `parse_known_args` leaves `--config.KEY=VALUE` overrides to the caller, and
  raises `errors.ConfigError` for invalid arguments.
  """
  parser = _Parser(
    prog='lengen',
    description='Train Transformers on short sequences, test on long ones.',
    epilog=_EPILOG,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  parser.add_argument('--version', action='version', version=__version__)
  commands = parser.add_subparsers(dest='command', metavar='COMMAND')
  for name, (text, options) in _COMMANDS.items():
    command = commands.add_parser(
      name, help=text, description=text, allow_abbrev=False
    )
    for option in [*options.split(), '--debug']:
      key = f'{name} {option}'
      purpose, settings = _OPTIONS[key if key in _OPTIONS else option]
      if name == 'eval' and option in OF_TASKS:
        purpose = f'with --tasks, {purpose}'
      command.add_argument(option, help=purpose, **settings)
    command.passes_on = name == 'lm_eval'
  return parser
