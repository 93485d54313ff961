"""The `lengen` command. Arguments are parsed before anything heavy loads."""

import argparse
from collections.abc import Sequence
import contextlib
import itertools
import os
import sys
import traceback

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


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line.

  Args:
    argv: arguments; those of the process if None.

  Returns:
    The exit status: 0; 2 for a mistake of the user's, told in one message; 130
    for Ctrl-C; or another that an error has, see `errors`.
  """
  # What `python` itself would do: a spec may name a module of the user's.
  if '' not in sys.path:
    sys.path.append('')
  argv = sys.argv[1:] if argv is None else list(argv)
  try:
    parser = _parser()
    if argv and not argv[0].startswith('-') and argv[0] not in _COMMANDS:
      raise errors.ConfigError(errors.one_of('command', argv[0], _COMMANDS))
    arguments, overrides = parser.parse_known_args(argv)
    if not arguments.command:
      parser.print_help()
      return 0
    config = None
    if 'config' in arguments:
      from lengen_jax.training import config_file

      config = config_file.load(arguments.config, overrides)
    elif strange := [
      one
      for one in overrides
      if not one.startswith('--config.') or arguments.command != 'reproduce'
    ]:
      raise errors.ConfigError(
        f'unknown argument {strange[0]!r}; see lengen {arguments.command} '
        '--help'
      )
    arguments.overrides = overrides
    _COMMANDS[arguments.command](arguments, config)
    return 0
  except errors.LengenError as error:
    if '--debug' in argv:
      traceback.print_exc()
    else:
      print(f'lengen: {error}', file=sys.stderr)
    status = error.exit_status
    if error.of_all:
      return status
  except KeyboardInterrupt:
    print(
      'lengen: interrupted; the same command goes on from what is kept',
      file=sys.stderr,
    )
    status = 130
  except (BrokenPipeError, SystemExit) as error:
    # Rich makes the one of the other.
    if not isinstance(error.__context__ or error, BrokenPipeError):
      raise
    # What is left to print would fail once more when Python ends.
    with contextlib.suppress(OSError):
      os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if any(one.startswith('--workdir') for one in argv):
      print(
        'lengen: nobody reads the output any more; the same command goes on '
        'from what is kept',
        file=sys.stderr,
      )
    status = 1
  except Exception:
    _leave_the_others(1, show=True)
    raise
  _leave_the_others(status)
  return status


def _leave_the_others(status, show=False):
  """Ends one of several processes at once; else does nothing.

  Jax would wait for the others, which may be waiting for this one.

  Args:
    status: of the process.
    show: whether to show the exception that is being handled.
  """
  jax = sys.modules.get('jax')
  alone = jax is None or not jax.distributed.is_initialized()
  if alone or jax.process_count() == 1:
    return
  if show:
    traceback.print_exc()
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(status)


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


def _parser():
  common = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
  common.add_argument(
    '--debug', action='store_true', help='show tracebacks of mistakes'
  )
  workdir = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
  workdir.add_argument(
    '--workdir',
    required=True,
    type=_some,
    help='folder of the run or comparison',
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
    '--step', help="of the checkpoint, or 'best'; the last if not given"
  )
  evaluate.add_argument(
    '--lengths', help="comma-separated; the config's eval.lengths if not given"
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
  export.add_argument(
    '--step', help="of the checkpoint, or 'best'; the last if not given"
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
    '--seeds', help='comma-separated; those of the experiment if not given'
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
  add('list', [], 'show encodings, position schemes, scales, tasks')
  return parser


def _check_data(config):
  """Says at once what data is missing, before anything heavy loads."""
  from lengen_jax import data
  from lengen_jax.training import fields

  fields.check_run(config)
  data.check_present(data.DataConfig(**config.data.to_dict()))


def _train(arguments, config):
  _check_data(config)
  from lengen_jax.training import loop
  from lengen_jax.training import sharding

  sharding.start()
  trained = loop.train(config, arguments.workdir, label=config.model.encoding)
  print(
    f'trained {trained.parameters:,} parameters in {trained.seconds:.1f} s; '
    f'next: lengen eval --workdir={arguments.workdir}'
  )


def _eval(arguments, _):
  from lengen_jax import data
  from lengen_jax.analysis import report
  from lengen_jax.analysis import score_report
  from lengen_jax.training import evaluate
  from lengen_jax.training import loop
  from lengen_jax.training import sharding
  from lengen_jax.training import workdir as workdir_lib

  sharding.start()
  changes = {}
  if arguments.lengths is not None:
    changes['lengths'] = _whole_numbers('--lengths', arguments.lengths, 1)
  step = _step(arguments)
  trained = loop.restore(arguments.workdir, step=step, **changes)
  run = trained.run
  step, steps = int(trained.state.step), run.config.train.steps
  if step < steps:
    print(f'note: this is step {step} of {steps}; lengen train goes on with it')
  corpus = data.load(run.data, max(run.eval.lengths))
  workdir_lib.check_vocabulary(arguments.workdir, corpus.info)
  results, predictions = evaluate.evaluate(trained, corpus)
  _, path = workdir_lib.read_config(arguments.workdir)
  workdir_lib.write_json(path / 'eval.json', results)
  if corpus.scored_by == 'loss':
    report.print_table(results)
  else:
    workdir_lib.write_lines(path / 'predictions.jsonl', predictions)
    score_report.print_table(results)
    print(f'wrote {path / "predictions.jsonl"}')
  print(f'wrote {path / "eval.json"}')


def _export(arguments, _):
  from lengen_jax.interop import weights
  from lengen_jax.training import disk
  from lengen_jax.training import loop
  from lengen_jax.training import sharding

  sharding.start()
  trained = loop.restore(arguments.workdir, step=_step(arguments))
  written = weights.save(arguments.to, trained.state.params, trained.run.model)
  print(
    f'wrote {arguments.to}: step {int(trained.state.step)}, '
    f'{trained.parameters:,} parameters in float32, {disk.size(written)}'
  )


def _prepare(arguments, config):
  from lengen_jax import data
  from lengen_jax.data import prepare
  from lengen_jax.training import fields

  fields.check_run(config)
  if config.data.source != 'prepared':
    raise errors.ConfigError(
      "lengen prepare writes what data.source='prepared' reads; set it, and "
      'data.path to the folder to write'
    )
  manifest = prepare.prepare(
    data.DataConfig(**config.data.to_dict()),
    raw=config.data.raw,
    longest=max(config.eval.lengths),
    vocabulary_size=arguments.vocabulary_size,
  )
  for split, found in manifest['splits'].items():
    print(
      f'{split}: {found["documents"]:,} documents, {found["bytes"]:,} bytes, '
      f'{found["tokens"]:,} tokens, of which {found["scored"]:,} in '
      f'{found["windows"]:,} windows'
    )
  print(f'{config.data.path} is complete; next: lengen train with this config')


def _compare(arguments, config):
  _check_data(config)
  from lengen_jax.analysis import report
  from lengen_jax.training import compare
  from lengen_jax.training import runs
  from lengen_jax.training import sharding

  sharding.start()
  chosen = runs.parse(arguments.runs, config)
  results = compare.compare(config, arguments.workdir, chosen)
  report.print_table(results)
  _write(report, results, arguments.workdir)


def _sweep(arguments, config):
  from lengen_jax.analysis import sweep_report
  from lengen_jax.training import sharding
  from lengen_jax.training import sweep

  sharding.start()
  results = sweep.sweep(config, arguments.workdir)
  sweep_report.print_table(results)
  _write(sweep_report, results, arguments.workdir)


def _reproduce(arguments, _):
  from lengen_jax import reproduce

  if arguments.names:
    print(*reproduce.EXPERIMENTS, sep='\n')
    return
  if arguments.list or not arguments.experiment:
    from lengen_jax.analysis import reproduction
    from lengen_jax.reproduce import costs

    reproduction.print_list(
      [
        (one, costs.hours(one), costs.minutes(one))
        for one in reproduce.EXPERIMENTS.values()
      ]
    )
    return
  experiment = reproduce.get(arguments.experiment)
  from lengen_jax.reproduce import run
  from lengen_jax.training import sharding

  seeds = None
  if arguments.seeds is not None:
    seeds = _whole_numbers('--seeds', arguments.seeds)
  sharding.start()
  found = run.reproduce(
    experiment, arguments.scale, arguments.workdir, seeds, arguments.overrides
  )
  _show_reproduction(found, f'{arguments.workdir}/{found["folder"]}')


def _show_reproduction(found, folder):
  from lengen_jax.analysis import reproduction

  reproduction.print_tables(found)
  _write(reproduction, found, folder)


def _compile(arguments, config):
  from lengen_jax.training import fields
  from lengen_jax.training import pods

  pod = pods.get(arguments.pod, arguments.slices)
  if 'init_from' in config.get('train', {}):
    # Where the parameters come from makes no other program.
    config.train.init_from = ''
  fields.check_run(config)
  from lengen_jax.analysis import compile_report

  compile_report.report(config, pod)


def _report(arguments, _):
  try:
    _draw(arguments.workdir)
  except errors.LengenError:
    raise
  except (AttributeError, LookupError, TypeError, ValueError) as error:
    # Whatever comes of results that were damaged or written by hand.
    raise errors.WorkdirError(
      f'the results in {arguments.workdir} are not as lengen writes them '
      f'({type(error).__name__}: {error}); delete results.json, and the '
      'command that made it makes it anew from what is kept'
    ) from error


def _draw(workdir):
  from lengen_jax.analysis import report
  from lengen_jax.analysis import reproduction
  from lengen_jax.analysis import sweep_report

  found = reproduction.read(workdir)
  if found is not None:
    _show_reproduction(found, workdir)
    return
  results = sweep_report.read(workdir)
  if results is not None:
    sweep_report.print_table(results)
    _write(sweep_report, results, workdir)
    return
  results = report.read(workdir)
  report.print_table(results)
  _write(report, results, workdir)


def _write(kind, results, folder):
  """Writes results as a report of their kind, and says what it wrote."""
  from lengen_jax.training import workdir as workdir_lib

  if not workdir_lib.is_first():
    return
  if '://' in folder:
    print(
      f'wrote {folder}/results.json; copied to a disk, lengen report draws it'
    )
    return
  for path in kind.write(results, folder):
    print(f'wrote {path}')


def _list(arguments, _):
  del arguments
  from lengen_jax.analysis import menu

  menu.show()


def _step(arguments):
  """Which checkpoint is asked for: a number, 'best', or None."""
  step = arguments.step
  return step if step in (None, 'best') else _whole_number('--step', step)


def _whole_number(name, text):
  if not text.isdecimal():
    raise errors.ConfigError(f"{name}={text} must be a whole number, or 'best'")
  return int(text)


def _whole_numbers(name, text, least=0):
  """'0,1' as a tuple of ints."""
  try:
    numbers = tuple(int(part) for part in text.split(','))
  except ValueError:
    numbers = ()
  if not numbers or min(numbers) < least:
    raise errors.ConfigError(
      f'{name}={text} is no comma-separated list of whole numbers from {least} '
      'on'
    )
  return numbers


_COMMANDS = {
  'train': _train,
  'eval': _eval,
  'export': _export,
  'compare': _compare,
  'sweep': _sweep,
  'reproduce': _reproduce,
  'compile': _compile,
  'prepare': _prepare,
  'report': _report,
  'list': _list,
}

if __name__ == '__main__':
  sys.exit(main())
