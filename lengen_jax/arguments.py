"""Argument parser of the `lengen` command. Does not import jax."""

import argparse
from collections.abc import Callable, Sequence
import contextlib
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
    with contextlib.suppress(ValueError):
      numbers = tuple(int(part) for part in text.split(','))
      if min(numbers) >= least:
        return numbers
    raise argparse.ArgumentTypeError(
      f'{text!r} is not a comma-separated list of integers from {least} on'
    )

  return read


_STDLIB = (
  'config file; --config.KEY.KEY=VALUE overrides a value; default: '
  'configs/stdlib.py:cpu, with the embedded corpus',
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
# Options: help text and settings. A key with a command wins in this command.
_OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
  '--config': (
    'config file; --config.KEY.KEY=VALUE overrides a value',
    {'required': True, 'type': _non_empty, 'metavar': 'FILE.py[:ARG]'},
  ),
  '--workdir': (
    'folder of the run, comparison or sweep',
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
  '--step': (
    "step of the checkpoint, or 'best'; default: the last",
    {'type': _step},
  ),
  '--vocabulary-size': (
    'train a SentencePiece model of N pieces if data.vocabulary does not exist',
    {'type': _count, 'default': 0, 'metavar': 'N'},
  ),
  '--lengths': (
    'comma-separated lengths in tokens; default: eval.lengths of the config',
    {'type': _numbers(1)},
  ),
  '--runs': (
    "'encoding|positions|attention_scale; ...', later parts optional; 'RUN => "
    "RUN' tests the first as the second",
    {'required': True},
  ),
  '--to': (
    'output file; train.init_from reads it',
    {'required': True, 'metavar': 'FILE.safetensors'},
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
  '--scale': ('paper, small, cpu or tiny', {'default': 'paper'}),
  '--seeds': (
    'comma-separated; default: the seeds of the experiment',
    {'type': _numbers(0)},
  ),
  '--debug': ('show the traceback of an error', {'action': 'store_true'}),
}
# Commands: help text and options.
_COMMANDS = {
  'train': ('train a model, or resume its training', '--config --workdir'),
  'prepare': (
    'tokenize a corpus once, into windows with random access',
    '--config --vocabulary-size',
  ),
  'eval': (
    'evaluate a trained model by length, or by its answers to prompts',
    '--workdir --lengths --step',
  ),
  'compare': (
    'train several models and compare them by length',
    '--config --workdir --runs',
  ),
  'export': (
    'write the weights of a trained model to one file',
    '--workdir --to --step',
  ),
  'sweep': (
    'train runs, learning rates and seeds on a generated task; test by length',
    '--config --workdir',
  ),
  'compile': (
    'compile for a TPU pod without TPUs; report whether the program fits',
    '--config --pod --slices',
  ),
  'reproduce': (
    "reproduce a paper's table or figure and compare the results",
    'experiment --list --names --scale --seeds --workdir',
  ),
  'report': (
    'draw the plots and page of a finished comparison, sweep or reproduction',
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
      command.add_argument(option, help=purpose, **settings)
  return parser
