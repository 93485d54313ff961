"""Argument parser of the `lengen` command. Does not import jax."""

import argparse
from collections.abc import Callable, Sequence
import itertools
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
  lengen compile --config=configs/fire_c4.py:base --pod=v4-256
"""


class _Parser(argparse.ArgumentParser):
  """An ArgumentParser that raises ConfigError instead of exiting."""

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
      if long and name not in known:
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


def _numbers(least: int) -> Callable[[str], tuple[int, ...]]:
  """Returns a parser of lists such as '0,1'."""

  def read(text: str) -> tuple[int, ...]:
    numbers: tuple[int, ...]
    try:
      numbers = tuple(int(part) for part in text.split(','))
    except ValueError:
      numbers = ()
    if not numbers or min(numbers) < least:
      raise argparse.ArgumentTypeError(
        f'{text!r} is not a comma-separated list of integers from {least} on'
      )
    return numbers

  return read


_CONFIG = {
  '--config': {
    'required': True,
    'type': _non_empty,
    'metavar': 'FILE.py[:ARG]',
    'help': 'config file; --config.KEY.KEY=VALUE overrides a value',
  }
}
_WORKDIR = {
  '--workdir': {
    'required': True,
    'type': _non_empty,
    'help': 'folder of the run, comparison or sweep',
  }
}
_STEP = {
  '--step': {
    'type': _step,
    'help': "step of the checkpoint, or 'best'; default: the last",
  }
}
# (help text, options) by command.
_COMMANDS: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
  'train': ('train a model, or resume its training', _CONFIG | _WORKDIR),
  'prepare': (
    'tokenize a corpus once, into windows with random access',
    {
      **_CONFIG,
      '--vocabulary-size': {
        'type': _count,
        'default': 0,
        'metavar': 'N',
        'help': 'train a SentencePiece model of N pieces if data.vocabulary '
        'does not exist',
      },
    },
  ),
  'eval': (
    'evaluate a trained model by length, or by its answers to prompts',
    {
      **_WORKDIR,
      '--lengths': {
        'type': _numbers(1),
        'help': 'comma-separated lengths in tokens; default: eval.lengths of '
        'the config',
      },
      **_STEP,
    },
  ),
  'compare': (
    'train several models and compare them by length',
    {
      **_CONFIG,
      **_WORKDIR,
      '--runs': {
        'required': True,
        'help': "'encoding|positions|attention_scale; ...', later parts "
        "optional; 'RUN => RUN' tests the first as the second",
      },
    },
  ),
  'export': (
    'write the weights of a trained model to one file',
    {
      **_WORKDIR,
      '--to': {
        'required': True,
        'metavar': 'FILE.safetensors',
        'help': 'output file; train.init_from reads it',
      },
      **_STEP,
    },
  ),
  'sweep': (
    'train runs, learning rates and seeds on a generated task; test by length',
    _CONFIG | _WORKDIR,
  ),
  'compile': (
    'compile for a TPU pod without TPUs; report whether the program fits',
    {
      **_CONFIG,
      '--pod': {
        'required': True,
        'help': 'accelerator type, for example v4-256',
      },
      '--slices': {
        'type': _count,
        'default': 1,
        'metavar': 'N',
        'help': 'number of pod slices; default: 1',
      },
    },
  ),
  'reproduce': (
    "reproduce a paper's table or figure and compare the results",
    {
      'experiment': {
        'nargs': '?',
        'metavar': 'PAPER/TABLE',
        'help': 'for example fire/table4',
      },
      '--list': {'action': 'store_true', 'help': 'list all experiments'},
      '--names': {
        'action': 'store_true',
        'help': 'print the names of all experiments, for scripts',
      },
      '--scale': {'default': 'paper', 'help': 'paper, small, cpu or tiny'},
      '--seeds': {
        'type': _numbers(0),
        'help': 'comma-separated; default: the seeds of the experiment',
      },
      '--workdir': {
        'type': _non_empty,
        'default': 'runs/reproduce',
        'help': 'folder of all reproductions, which share models; default: '
        'runs/reproduce',
      },
    },
  ),
  'report': (
    'draw the plots and page of a finished comparison, sweep or reproduction',
    _WORKDIR,
  ),
  'list': ('list encodings, position schemes, scales, tasks and data', {}),
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
    for option, settings in options.items():
      command.add_argument(option, **settings)
    command.add_argument(
      '--debug', action='store_true', help='show the traceback of an error'
    )
  return parser
