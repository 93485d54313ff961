"""The `lengen` command line.

Arguments are parsed before jax and TensorFlow are imported.
"""

import argparse
from collections.abc import Iterator, Sequence
import contextlib
import os
import signal
import sys
import threading
import traceback
from typing import Any

from lengen_jax import allocator, errors
from lengen_jax import arguments as arguments_lib


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line, by default with `sys.argv[1:]`.

  Returns the exit status: 0 on success, the `exit_status` of a LengenError (by
  default 2), 130 for Ctrl-C, or 1 if standard output cannot be written.
  """
  allocator.reuse_memory()
  # A spec may name a user module in the working directory.
  if '' not in sys.path:
    sys.path.append('')
  argv = sys.argv[1:] if argv is None else list(argv)
  try:
    parser = arguments_lib.create()
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
    else:
      valid = {'reproduce': '--config.', 'lm_eval': ''}
      prefix = valid.get(arguments.command, ())
      strange = [one for one in overrides if not one.startswith(prefix)]
      if strange:
        raise errors.ConfigError(
          f'unknown argument {strange[0]!r}; see lengen {arguments.command} '
          '--help'
        )
    arguments.overrides = overrides
    with _explained_errors():
      _COMMANDS[arguments.command](arguments, config)
    if sys.stdout:
      sys.stdout.flush()
    return 0
  except errors.LengenError as error:
    if '--debug' in argv:
      traceback.print_exc()
    else:
      _show_error(str(error))
    status = error.exit_status
    if error.of_all:
      return status
  except KeyboardInterrupt:
    _show_error(f'interrupted{_resuming(argv)}')
    status = 130
  except (BrokenPipeError, SystemExit) as error:
    # Rich turns BrokenPipeError into SystemExit.
    if not isinstance(error.__context__ or error, BrokenPipeError):
      raise
    _discard_output()
    if advice := _resuming(argv):
      _show_error(f'the output pipe is closed{advice}')
    status = 1
  except OSError as error:
    # Only an error of standard output occurs again.
    try:
      print(flush=True)
    except OSError:
      pass
    else:
      _exit_alone(1, show=True)
      raise
    _discard_output()
    _show_error(
      f'cannot write standard output: {error.strerror}{_resuming(argv)}'
    )
    status = 1
  except Exception:
    _exit_alone(1, show=True)
    raise
  _exit_alone(status)
  return status


def _show_error(message: str) -> None:
  """Prints a message to standard error, if this can be written."""
  with contextlib.suppress(OSError, ValueError):
    print(f'lengen: {message}', file=sys.stderr, flush=True)


@contextlib.contextmanager
def _explained_errors() -> Iterator[None]:
  """Raises a LengenError in place of errors that any file or device may have.

  They are missing permissions, failures of an object store, and arrays that do
  not fit into the memory of a device.
  """
  try:
    yield
  except PermissionError as error:
    if error.filename is None:
      raise
    raise errors.WorkdirError(
      f'cannot use {error.filename}: {error.strerror}; change its permissions, '
      'or choose another path'
    ) from error
  except Exception as error:
    kind, text = type(error), str(error).splitlines()
    first = text[0] if text else ''
    if kind.__name__ == 'JaxRuntimeError' and 'RESOURCE_EXHAUSTED' in first:
      raise errors.FitError(
        f'an array does not fit into the memory of a device: {first}; use '
        'fewer rows at a time (--batch-tokens, eval.batch_tokens), shorter '
        'rows or more devices'
      ) from error
    # Object stores are read through TensorFlow.
    if kind.__module__.startswith('tensorflow.') and '://' in first:
      if fix := errors.again(error):
        raise errors.StorageError(f'{first}; {fix}') from error
      raise errors.WorkdirError(f'{first}; {errors.BUCKET_HINT}') from error
    raise


def _discard_output() -> None:
  """Discards standard output: flushing the rest at exit would fail again."""
  with contextlib.suppress(OSError):
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _resuming(argv: Sequence[str]) -> str:
  """Returns advice on how to resume a command; '' if it starts again."""
  if not argv or argv[0] not in _RESUMABLE or '--list' in argv:
    return ''
  given = any(one.startswith('--workdir') for one in argv)
  which = '' if given or not _RESUMABLE[argv[0]] else ' with its --workdir'
  return f'; run the same command again{which} to resume'


def _exit_alone(status: int, show: bool = False) -> None:
  """Exits immediately in a multi-process run; otherwise does nothing.

  At exit jax waits for the other processes, which may wait for this one. With
  `show`, the traceback of the current exception is printed.
  """
  jax = sys.modules.get('jax')
  alone = jax is None or not jax.distributed.is_initialized()
  if alone or jax.process_count() == 1:
    return
  try:
    if show:
      traceback.print_exc()
    if sys.stdout:
      sys.stdout.flush()
    sys.stderr.flush()
  finally:
    # Also if an output cannot be written.
    os._exit(status)


def _check_data(config: Any) -> None:
  """Raises for missing data before jax is imported."""
  from lengen_jax import data
  from lengen_jax.training import config as config_lib

  data.check_present(config_lib.check_run(config).data)


def _start(saves: bool = False) -> None:
  """Starts jax; SIGTERM ends the process unless the command saves its work."""
  with _interrupted_later():
    import jax

    from lengen_jax.training import sharding

  # The service catches SIGTERM for `faults.Preemption`.
  jax.config.update('jax_enable_preemption_service', saves)
  sharding.start()
  try:
    jax.devices()
  # jax asserts that some backend was initialised.
  except (RuntimeError, AssertionError) as error:
    wanted = os.environ.get('JAX_PLATFORMS', '')
    reason = str(error).splitlines()[0] if str(error) else 'it finds none'
    raise errors.ConfigError(
      f'jax has no devices with JAX_PLATFORMS={wanted}: {reason}; unset '
      'JAX_PLATFORMS, set it to cpu, or install jax for these devices'
    ) from error


@contextlib.contextmanager
def _interrupted_later() -> Iterator[None]:
  """Delays Ctrl-C to the end of the context.

  Extension modules that are interrupted while they are loaded may ignore it or
  crash.
  """
  before = signal.getsignal(signal.SIGINT)
  is_main = threading.current_thread() is threading.main_thread()
  if before is not signal.default_int_handler or not is_main:
    # Ctrl-C is ignored, or handled elsewhere.
    yield
    return
  interrupts: list[int] = []
  signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
  try:
    yield
  finally:
    signal.signal(signal.SIGINT, before)
  if interrupts:
    raise KeyboardInterrupt


def _choose_workdir(arguments: argparse.Namespace) -> None:
  """Sets the workdir to a new folder in runs/, and prints it, if it is None."""
  if arguments.workdir is not None:
    return
  import jax

  if jax.process_count() > 1:
    raise errors.ConfigError(
      'a run of several processes needs --workdir, the folder that they share'
    )
  prefix = f'runs/{arguments.command}'
  number = 1
  while os.path.exists(f'{prefix}-{number}'):
    number += 1
  arguments.workdir = f'{prefix}-{number}'
  print(f'--workdir={arguments.workdir}', flush=True)


def _train(arguments: argparse.Namespace, config: Any) -> None:
  _check_data(config)
  _start(saves=True)
  from lengen_jax.training import loop

  _choose_workdir(arguments)
  trained = loop.train(config, arguments.workdir, label=config.model.encoding)
  print(
    f'trained {trained.run.parameters:,} parameters in '
    f'{trained.seconds:.1f} s; next: lengen eval --workdir={arguments.workdir}'
  )


def _eval(arguments: argparse.Namespace, _: Any) -> None:
  if arguments.tasks:
    _eval_tasks(arguments)
    return
  for option in arguments_lib.OF_TASKS:
    name = option.removeprefix('--').replace('-', '_')
    if getattr(arguments, 'checkpoint' if name == 'from' else name) is not None:
      raise errors.ConfigError(
        f'{option} requires --tasks, such as --tasks=ruler'
      )
  if not arguments.workdir:
    raise errors.ConfigError(
      'lengen eval requires --workdir, the folder of a run; or --tasks with '
      '--from=CHECKPOINT'
    )
  _start()
  from lengen_jax import data
  from lengen_jax.analysis import report
  from lengen_jax.training import evaluate, files, pretrained
  from lengen_jax.training import workdir as workdir_lib

  changes = {
    name: value
    for name in ('lengths', 'batch_tokens')
    if (value := getattr(arguments, name))
  }
  trained = pretrained.restore(
    arguments.workdir, step=arguments.step, **changes
  )
  run = trained.run
  step, steps = int(trained.state.step), run.config.train.steps
  if step < steps:
    hint = '' if arguments.step else '; lengen train resumes the run'
    print(f'note: this is step {step} of {steps}{hint}')
  corpus = data.load(run.data, max(run.eval.lengths))
  workdir_lib.check_vocabulary(arguments.workdir, corpus.info)
  results, predictions = evaluate.evaluate(trained, corpus)
  _, path = workdir_lib.read_config(arguments.workdir)
  written = []
  try:
    if corpus.scored_by != 'loss':
      files.write_lines(path / 'predictions.jsonl', predictions)
      written.append('predictions.jsonl')
    files.write_json(path / 'eval.json', results)
    written.append('eval.json')
  finally:
    # The table is shown even if no file can be written.
    if corpus.scored_by == 'loss':
      report.print_table(results)
    else:
      report.print_scores(results)
    for name in written:
      print(f'wrote {path / name}')


def _eval_tasks(arguments: argparse.Namespace) -> None:
  from lengen_jax.data import ruler

  tasks = ruler.parse(arguments.tasks)
  if not arguments.lengths:
    raise errors.ConfigError(
      '--tasks requires --lengths, the tokens of a prompt with its answer, for '
      'example --lengths=4096,8192'
    )
  if not (arguments.checkpoint or arguments.workdir):
    raise errors.ConfigError(
      '--tasks requires --from=CHECKPOINT or --workdir, the folder of a run'
    )
  if arguments.checkpoint and arguments.step is not None:
    raise errors.ConfigError(
      '--step requires the run to be given as --workdir, without --from'
    )
  _start()
  from lengen_jax.analysis import ruler_report
  from lengen_jax.training import files, pretrained
  from lengen_jax.training import ruler as training_ruler

  loaded = pretrained.load(
    arguments.checkpoint or arguments.workdir, arguments.step
  )
  tested = _tested(arguments, loaded)
  vocabulary = loaded.create_vocabulary(arguments.vocabulary or '')

  def save(results: dict[str, Any], predictions: list[dict[str, Any]]) -> None:
    _choose_workdir(arguments)
    folder = files.make_folder(arguments.workdir)
    # Former results are kept until there are new ones.
    if results['scores'] or results['refused']:
      files.write_json(folder / ruler_report.RESULTS, results)
      files.write_lines(folder / ruler_report.PREDICTIONS, predictions)

  optional = {
    'samples': arguments.samples,
    'haystack': arguments.haystack,
    'batch_tokens': arguments.batch_tokens,
  }
  results, _ = training_ruler.evaluate(
    tested,
    tasks,
    sorted({*arguments.lengths}),
    vocabulary=vocabulary,
    seed=arguments.seed or 0,
    save=save,
    **{key: value for key, value in optional.items() if value},
  )
  _show(ruler_report, results, arguments.workdir)


def _export(arguments: argparse.Namespace, _: Any) -> None:
  for_hf = arguments.format == 'hf'
  if not for_hf and (arguments.like or arguments.dtype != 'float32'):
    raise errors.ConfigError(
      '--like and --dtype require --format=hf; a safetensors file is float32'
    )
  _start()
  from lengen_jax.training import export

  step = arguments.step
  if for_hf:
    summary = export.to_hf(
      arguments.workdir, arguments.to, step, arguments.like, arguments.dtype
    )
  else:
    summary = export.to_safetensors(arguments.workdir, arguments.to, step)
  if summary is not None:
    print(summary)


def _generate(arguments: argparse.Namespace, _: Any) -> None:
  prompts = []
  for prompt in arguments.prompts:
    try:
      lines = sys.stdin if prompt == '-' else (prompt,)
      prompts += [line.removesuffix('\n') for line in lines]
    except UnicodeDecodeError as error:
      raise errors.ConfigError(
        f'--prompt=-: standard input is not {error.encoding} ({error.reason} '
        f'at byte {error.start}); convert it, for example with iconv -f latin1 '
        '-t utf-8'
      ) from error
  if not prompts:
    raise errors.ConfigError(
      '--prompt=- reads a prompt from each line of standard input, which is '
      'empty'
    )
  _start()
  from lengen_jax.training import continuations, pretrained

  trained = pretrained.load(arguments.checkpoint)
  written = continuations.write(
    _tested(arguments, trained),
    prompts,
    vocabulary=trained.create_vocabulary(arguments.vocabulary or ''),
    max_new=arguments.max_new,
    temperature=arguments.temperature,
    top_p=arguments.top_p,
    seed=arguments.seed or 0,
  )
  for number, (prompt, text) in enumerate(
    zip(prompts, written, strict=True), start=1
  ):
    print(f'--- prompt {number} of {len(prompts)}\n{prompt}')
    print(f'--- continuation\n{text}')


def _tested(arguments: argparse.Namespace, model: Any) -> Any:
  """Returns a model with the encoding and positions of the arguments."""
  return model.tested_as(arguments.encoding or '', arguments.positions or '')


def _lm_eval(arguments: argparse.Namespace, _: Any) -> None:
  _start()
  from lengen_jax.interop import lm_eval

  lm_eval.run(arguments.overrides)


def _prepare(arguments: argparse.Namespace, config: Any) -> None:
  from lengen_jax.data import prepare
  from lengen_jax.training import config as config_lib

  _set_no_initial_model(config)
  section = config_lib.check_run(config).data
  if section.source != 'prepared':
    raise errors.ConfigError(
      "lengen prepare writes what data.source='prepared' reads; set it, and "
      'data.path to the folder to write'
    )
  beam_options = arguments.beam_options or ''
  if arguments.runner == 'direct' and arguments.workers > 1:
    beam_options += (
      f' --direct_num_workers={arguments.workers}'
      ' --direct_running_mode=multi_processing'
    )
  elif arguments.runner and arguments.workers > 1:
    raise errors.ConfigError(
      f'--workers={arguments.workers} applies to --runner=direct only; '
      f'{arguments.runner} has options of its own, see --beam-options'
    )
  if arguments.beam_options and not arguments.runner:
    raise errors.ConfigError(
      '--beam-options requires --runner, such as --runner=direct'
    )
  manifest = prepare.prepare(
    section,
    raw=section.raw,
    longest=max(config.eval.lengths),
    vocabulary_size=arguments.vocabulary_size,
    workers=arguments.workers,
    runner=arguments.runner or '',
    beam_options=beam_options,
    bad_records=arguments.bad_records,
  )
  text = (
    '{}: {documents:,} documents, {bytes:,} bytes, {tokens:,} tokens, of which '
    '{scored:,} in {windows:,} windows'
  )
  for split, found in manifest['splits'].items():
    print(text.format(split, **found))
    if 'bad_records' in found:
      print(f'{split}: skipped {found["bad_records"]:,} bad records')
  print(f'{config.data.path} is complete; next: lengen train with this config')


def _compare(arguments: argparse.Namespace, config: Any) -> None:
  _check_data(config)
  _start(saves=True)
  from lengen_jax.analysis import report
  from lengen_jax.training import compare, runs

  chosen = runs.parse(arguments.runs, config)
  _choose_workdir(arguments)
  results = compare.compare(config, arguments.workdir, chosen)
  _show(report, results, arguments.workdir)


def _sweep(arguments: argparse.Namespace, config: Any) -> None:
  _start(saves=True)
  from lengen_jax.analysis import sweep_report
  from lengen_jax.training import sweep

  _choose_workdir(arguments)
  results = sweep.sweep(config, arguments.workdir)
  _show(sweep_report, results, arguments.workdir)


def _reproduce(arguments: argparse.Namespace, _: Any) -> None:
  from lengen_jax import reproduce

  if arguments.names:
    print(*reproduce.EXPERIMENTS, sep='\n')
    return
  from lengen_jax.analysis import reproduction

  if arguments.list or not arguments.experiment:
    from lengen_jax.reproduce import costs

    reproduction.print_list(
      [
        (one, costs.hours(one), [costs.minutes(one, at) for at in costs.SCALES])
        for one in reproduce.EXPERIMENTS.values()
      ]
    )
    return
  experiment = reproduce.get(arguments.experiment)
  _start(saves=True)
  from lengen_jax.reproduce import run

  workdir, seeds = arguments.workdir, arguments.seeds
  found = run.reproduce(
    experiment,
    arguments.scale,
    workdir,
    seeds,
    arguments.overrides,
    arguments.rows,
  )
  _show(reproduction, found, f'{workdir}/{found["folder"]}')


def _set_no_initial_model(config: Any) -> None:
  """Clears the initial model, which neither data nor programs depend on."""
  if 'init_from' in config.get('train', {}):
    config.train.init_from = ''


def _compile(arguments: argparse.Namespace, config: Any) -> None:
  from lengen_jax.training import config as config_lib
  from lengen_jax.training import pods

  pod = pods.get(arguments.pod, arguments.slices)
  _set_no_initial_model(config)
  config_lib.check_run(config)
  from lengen_jax.analysis import compile_report

  compile_report.report(config, pod)


def _report(arguments: argparse.Namespace, _: Any) -> None:
  from lengen_jax.analysis import (
    report,
    reproduction,
    ruler_report,
    sweep_report,
  )

  workdir = arguments.workdir
  try:
    for kind in (reproduction, sweep_report, ruler_report, report):
      results = kind.read(workdir)
      if results is not None:
        _show(kind, results, workdir)
        return
  except errors.LengenError:
    raise
  except (AttributeError, LookupError, TypeError, ValueError) as error:
    # The results are damaged or were edited by hand.
    raise errors.WorkdirError(
      f'the results in {workdir} cannot be read ({type(error).__name__}: '
      f'{error}); delete {kind.RESULTS}, and run the command that wrote it '
      'again'
    ) from error


def _show(report: Any, results: dict[str, Any], folder: str) -> None:
  """Prints the tables of results, writes a report and prints its paths."""
  from lengen_jax.training import multihost

  report.print_table(results)
  if not multihost.is_first():
    return
  if '://' in folder:
    advice = 'lengen report draws them from a local copy'
    print(f'the results are in {folder}; {advice}')
    return
  for path in report.write(results, folder):
    print(f'wrote {path}')


def _list(_: argparse.Namespace, __: Any) -> None:
  from lengen_jax.analysis import menu

  menu.show()


# Commands that can be resumed: whether a call without --workdir creates a new
# workdir.
_RESUMABLE = {
  'train': True,
  'compare': True,
  'sweep': True,
  'reproduce': False,
  'prepare': False,
}
_COMMANDS = {
  'train': _train,
  'eval': _eval,
  'export': _export,
  'generate': _generate,
  'lm_eval': _lm_eval,
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
