"""The arguments of the `lengen` command; nothing heavy is loaded."""

import argparse
import itertools

from lengen_jax import __version__
from lengen_jax import errors

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
  """A parser whose mistakes are errors like all others."""

  def parse_known_args(self, args=None, namespace=None):
    """Also looks for misspelt names before anything is said to be missing."""
    known, whose = self._option_string_actions, f'argument of {self.prog}'
    mine = args
    if self._subparsers is not None:
      # What follows the command is its own parser's.
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

  def error(self, message):
    raise errors.ConfigError(
      f'{message.removeprefix("argument ")}; see {self.prog} --help'
    )


def _some(text):
  """A value that is not empty."""
  if not text:
    raise argparse.ArgumentTypeError('it is empty; give a value')
  return text


def _count(text):
  """A whole number from 1 on."""
  if not text.isdecimal() or int(text) < 1:
    raise argparse.ArgumentTypeError(f'{text!r} is no whole number from 1 on')
  return int(text)


def _step(text):
  """A checkpoint: a number, or 'best'."""
  if text != 'best' and not text.isdecimal():
    raise argparse.ArgumentTypeError(f"{text!r} is no whole number, nor 'best'")
  return text if text == 'best' else int(text)


def _numbers(least):
  """What reads '0,1' as a tuple of ints."""

  def read(text):
    try:
      numbers = tuple(int(part) for part in text.split(','))
    except ValueError:
      numbers = ()
    if not numbers or min(numbers) < least:
      raise argparse.ArgumentTypeError(
        f'{text!r} is no comma-separated list of whole numbers from {least} on'
      )
    return numbers

  return read


def create():
  """The parser of `lengen`.

  Unknown arguments are left to the caller, as --config.KEY=VALUE is one. Its
  mistakes are errors.ConfigError.
  """
  common = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
  common.add_argument(
    '--debug', action='store_true', help='show tracebacks of mistakes'
  )
  workdir = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
  workdir.add_argument(
    '--workdir',
    required=True,
    type=_some,
    help='folder of the run, comparison or sweep',
  )
  config = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
  config.add_argument(
    '--config',
    required=True,
    type=_some,
    metavar='FILE.py[:ARG]',
    help='config file; --config.KEY.KEY=VALUE sets single values',
  )
  parser = _Parser(
    prog='lengen',
    description='Train Transformers on short sequences, test on long ones.',
    epilog=_EPILOG,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  parser.add_argument('--version', action='version', version=__version__)
  commands = parser.add_subparsers(dest='command', metavar='COMMAND')

  def add(name, parents, text):
    return commands.add_parser(
      name,
      parents=[common, *parents],
      help=text,
      description=text,
      allow_abbrev=False,
    )

  add('train', [config, workdir], 'train a model, or go on with it')
  prepare = add(
    'prepare', [config], 'tokenize text once, into windows read by index'
  )
  prepare.add_argument(
    '--vocabulary-size',
    type=_count,
    default=0,
    metavar='N',
    help='train a SentencePiece model of N pieces if data.vocabulary is not '
    'there yet',
  )
  evaluate = add(
    'eval', [workdir], 'evaluate a trained model by length, or by its answers'
  )
  evaluate.add_argument(
    '--lengths',
    type=_numbers(1),
    help="comma-separated; the config's eval.lengths if not given",
  )
  compare = add(
    'compare', [config, workdir], 'train several models and compare by length'
  )
  compare.add_argument(
    '--runs',
    required=True,
    help="'encoding|positions|attention_scale; ...', later parts optional",
  )
  export = add(
    'export', [workdir], 'write the weights of a trained model to one file'
  )
  export.add_argument(
    '--to',
    required=True,
    metavar='FILE.safetensors',
    help='file to write; train.init_from takes it',
  )
  for one in (evaluate, export):
    one.add_argument(
      '--step',
      type=_step,
      help="of the checkpoint, or 'best'; the last if not given",
    )
  add(
    'sweep',
    [config, workdir],
    'train on a generated task: runs, learning rates, seeds; test by length',
  )
  compile_ = add(
    'compile',
    [config],
    'compile for TPUs that need not be there: does it fit, and why not',
  )
  compile_.add_argument(
    '--pod', required=True, help='accelerator type, for example v4-256'
  )
  compile_.add_argument(
    '--slices', type=_count, default=1, metavar='N', help='so many of them'
  )
  reproduce = add(
    'reproduce', [], "a paper's table or figure, its figures beside ours"
  )
  reproduce.add_argument(
    'experiment',
    nargs='?',
    metavar='PAPER/TABLE',
    help='for example fire/table4',
  )
  reproduce.add_argument('--list', action='store_true', help='show all of them')
  reproduce.add_argument(
    '--names', action='store_true', help='print their names, for scripts'
  )
  reproduce.add_argument(
    '--scale', default='paper', help='paper, small, cpu or tiny'
  )
  reproduce.add_argument(
    '--seeds',
    type=_numbers(0),
    help='comma-separated; those of the experiment if not given',
  )
  reproduce.add_argument(
    '--workdir',
    type=_some,
    default='runs/reproduce',
    help='folder of all reproductions, which share models; runs/reproduce if '
    'not given',
  )
  add(
    'report',
    [workdir],
    'draw plots and page of a finished comparison, sweep or reproduction',
  )
  add('list', [], 'show encodings, position schemes, scales, tasks, data')
  return parser
