"""Tests `lengen_jax/cli.py`: the command line, and what it says of mistakes."""

import errno
import io
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import types

import jax
import numpy as np
import pytest

from lengen_jax import cli
from lengen_jax.evaluation import length_curve
from lengen_jax.interop import hf, weights
from tests import helpers

CONFIG = str(pathlib.Path(__file__).parents[1] / 'configs' / 'stdlib.py')
TINY = f'--config={CONFIG}:tiny'
SHORT = [
  '--config.model.num_layers=1',
  '--config.eval.lengths=(32, 64)',
  '--config.train.steps=4',
]


@pytest.fixture(autouse=True)
def keep_devices(monkeypatch):
  """The devices are there already."""
  monkeypatch.setattr('lengen_jax.training.sharding.start', lambda: 0)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """The workdir of a finished run, to be copied."""
  folder = tmp_path_factory.mktemp('trained') / 'run'
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr('lengen_jax.training.sharding.start', lambda: 0)
    assert cli.main(['train', TINY, f'--workdir={folder}', *SHORT]) == 0
  return folder


def mistake(capsys, *arguments):
  """Runs a command that must fail; returns its one message."""
  assert cli.main(arguments) == 2
  error = capsys.readouterr().err
  assert error.startswith('lengen: ')
  assert 'Traceback' not in error
  return error


def test_help_loads_nothing_heavy():
  code = (
    'import sys\n'
    'from lengen_jax import cli\n'
    'try: cli.main(["compare", "--help"])\n'
    'except SystemExit: pass\n'
    'heavy = {"jax", "numpy", "ml_collections", "matplotlib", "tensorflow"}\n'
    'assert not heavy & set(sys.modules), heavy & set(sys.modules)\n'
  )
  done = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True
  )
  assert done.returncode == 0, done.stderr
  assert '--runs' in done.stdout


def test_without_command_shows_help(capsys):
  assert cli.main([]) == 0
  assert 'lengen compare --config' in capsys.readouterr().out


def test_train_eval(tmp_path, capsys, monkeypatch):
  workdir = f'--workdir={tmp_path / "run"}'
  encoding = '--config.model.encoding=rope(train_length=32, dynamic=True)'
  assert cli.main(['train', TINY, workdir, encoding, *SHORT]) == 0
  out = capsys.readouterr().out
  assert 'compiling' in out and 'step 4/4' in out and 'tokens/s' in out
  arguments = ['--lengths=16,64', '--batch-tokens=64', '--step=4']
  with monkeypatch.context() as patch:
    tested, sizes = length_curve.run, []

    def recorded(*args, **kwargs):
      sizes.append(kwargs['batch_tokens'])
      return tested(*args, **kwargs)

    patch.setattr(length_curve, 'run', recorded)
    assert cli.main(['eval', workdir, *arguments]) == 0
  assert sizes == [64]
  out = capsys.readouterr().out
  assert re.search(r'rope.* \d\.\d{3} +\d\.\d{3}', out)
  found = json.loads((tmp_path / 'run' / 'eval.json').read_text())
  assert found['lengths'] == [16, 64]
  assert found['curves'][0]['encoding'].startswith('rope(')


def test_export(tmp_path, trained, capsys):
  workdir, path = f'--workdir={trained}', tmp_path / 'a.safetensors'
  assert cli.main(['export', workdir, f'--to={path}', '--step=4']) == 0
  out = capsys.readouterr().out
  assert f'wrote {path}: step 4, ' in out
  assert ' parameters in float32, 0.1 MiB\n' in out
  other = f'--workdir={tmp_path / "run"}'
  start = f'--config.train.init_from={path}'
  assert cli.main(['train', TINY, other, start, *SHORT]) == 0
  out = capsys.readouterr().out
  assert 'fire: loaded 21 of 21 arrays' in out
  # The file says which vocabulary its model knows.
  assert 'token ids' not in out
  trained_on = weights.trained_on(path)
  assert trained_on == weights.TrainedOn('bytes_plus_0', 32)

  # Before anything is read.
  nothing = f'--workdir={tmp_path / "nothing"}'
  error = mistake(capsys, 'export', nothing, f'--to={tmp_path / "a.npz"}')
  assert f'*.safetensors, got {tmp_path / "a.npz"}' in error
  error = mistake(capsys, 'export', workdir, f'--to={path}', '--step=9')
  assert 'has no step 9; there are: 4' in error
  assert 'holds no run' in mistake(
    capsys, 'export', f'--workdir={tmp_path}', f'--to={path}'
  )


def test_generate(trained, monkeypatch, capsys):
  monkeypatch.setattr('sys.stdin', io.StringIO('import\n\n'))
  start = ['generate', f'--from={trained}', '--max-new=3']
  arguments = ['--prompt=def f(', '--prompt=-', '--temperature=1', '--seed=2']
  assert cli.main([*start, *arguments]) == 0
  out = capsys.readouterr().out
  assert 'generate: compiling for 2 cpu devices ...' in out
  assert re.search(r'generate: \d tokens in .* s, with compilation', out)
  found = re.findall(r'--- prompt (\d of 3)\n(.*)\n--- continuation\n', out)
  assert found == [('1 of 3', 'def f('), ('2 of 3', 'import'), ('3 of 3', '')]
  # A line may contain other separators of lines.
  monkeypatch.setattr('sys.stdin', io.StringIO('a\fb\u2028c\n'))
  assert cli.main([*start, '--prompt=-']) == 0
  assert '--- prompt 1 of 1\na\fb\u2028c\n---' in capsys.readouterr().out
  monkeypatch.setattr('sys.stdin', io.StringIO(''))
  error = mistake(capsys, *start, '--prompt=-')
  assert '--prompt=- reads a prompt from each line of standard input' in error
  error = mistake(capsys, *start, '--prompt=a', '--temperature=hot')
  assert "--temperature: 'hot' is not a number; see lengen generate" in error
  for seed in (-1, 2**32):
    error = mistake(capsys, *start, '--prompt=a', f'--seed={seed}')
    assert f"--seed: '{seed}' is not an integer from 0 to 2^32 - 1" in error
  error = mistake(capsys, *start, '--prompt=a', '--top-p=0.5')
  assert 'top_p=0.5 requires sampling' in error
  latin = io.TextIOWrapper(io.BytesIO(b'one\ncaf\xe9\n'), 'utf-8')
  monkeypatch.setattr('sys.stdin', latin)
  error = mistake(capsys, *start, '--prompt=-')
  assert '--prompt=-: standard input is not utf-8' in error
  for option in ('--encoding', '--positions', '--vocabulary'):
    error = mistake(capsys, *start, '--prompt=a', f'{option}=')
    assert f'{option}: it is empty; give a value' in error


def test_eval_tasks(tmp_path, trained, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  tasks = ['eval', '--tasks=niah_single_1', '--lengths=640']
  options = ['--samples=2', '--encoding=fire', '--seed=1']
  assert cli.main([*tasks, f'--from={trained}', *options]) == 0
  out = capsys.readouterr().out
  assert '--workdir=runs/eval-1\n' in out
  assert 'ruler: niah_single_1 at 640: compiling for 2 cpu devices' in out
  assert 'effective length: none' in out and 'eval-1/ruler.png\n' in out
  found = json.loads((tmp_path / 'runs/eval-1/ruler.json').read_text())
  assert found['scores'] == {'640': {'niah_single_1': 0.0}}
  assert (found['samples'], found['seed']) == (2, 1)
  (tmp_path / 'runs/eval-1/ruler.png').unlink()
  assert cli.main(['report', '--workdir=runs/eval-1']) == 0
  out = capsys.readouterr().out
  assert 'RULER: percent, fire' in out and 'eval-1/ruler.png\n' in out
  lines = (tmp_path / 'runs/eval-1/ruler_predictions.jsonl').read_text()
  assert len(lines.splitlines()) == 2
  # A run is tested in place.
  workdir = f'--workdir={trained}'
  error = mistake(capsys, 'eval', '--tasks=vt', '--lengths=640', workdir)
  assert 'vt does not fit length 640' in error
  error = mistake(capsys, *tasks, workdir, '--step=9')
  assert 'has no step 9; there are: 4' in error


def test_mistakes_in_tasks(trained, capsys):
  workdir, tasks = f'--workdir={trained}', '--tasks=ruler'
  for arguments, message in (
    ([workdir, '--tasks=vtt', '--lengths=9'], "task 'vtt'; did you mean 'vt'"),
    ([workdir, tasks], '--tasks requires --lengths, '),
    ([tasks, '--lengths=4096'], '--tasks requires --from=CHECKPOINT or --work'),
    ([workdir, '--samples=3'], '--samples requires --tasks'),
    ([f'--from={trained}'], '--from requires --tasks'),
    ([workdir, '--seed=0'], '--seed requires --tasks'),
    (['--lengths=9'], 'requires --workdir, the folder of a run'),
    (
      [tasks, '--lengths=9', f'--from={trained}', '--step=4'],
      '--step requires the run to be given as --workdir',
    ),
    (
      [tasks, '--lengths=4096', workdir, '--haystack=/nothing'],
      'there is no text in /nothing',
    ),
  ):
    assert message in mistake(capsys, 'eval', *arguments), arguments


def test_lm_eval_without_its_package(monkeypatch, capsys):
  monkeypatch.setitem(sys.modules, 'lm_eval', None)
  monkeypatch.delitem(sys.modules, 'lengen_jax.interop.lm_eval', raising=False)
  monkeypatch.delattr('lengen_jax.interop.lm_eval', raising=False)
  # Its options are left to it.
  error = mistake(capsys, 'lm_eval', '--model_args', 'a=b', '--tasks', 'c')
  assert "needs the lm_eval extra: pip install 'lengen_jax[lm_eval]'" in error


@pytest.mark.slow
def test_export_by_several_processes(tmp_path, trained):
  workdir = tmp_path / 'run'
  shutil.copytree(trained, workdir)
  config = json.loads((workdir / 'config.json').read_text())
  config['mesh'] |= {'data': 1, 'fsdp': 2}
  (workdir / 'config.json').write_text(json.dumps(config))
  # Each writes elsewhere, so that it is seen who did.
  paths = [tmp_path / f'{number}.safetensors' for number in range(2)]
  environments = helpers.pair_environments(
    os.environ | {'JAX_NUM_CPU_DEVICES': '1'}
  )
  processes = [
    subprocess.Popen(
      [sys.executable, '-m', 'lengen_jax.cli', 'export']
      + [f'--workdir={workdir}', f'--to={path}'],
      env=environment,
      stderr=subprocess.PIPE,
      text=True,
    )
    for path, environment in zip(paths, environments, strict=True)
  ]
  for process in processes:
    _, problems = process.communicate(timeout=240)
    assert process.returncode == 0, problems
  assert [path.exists() for path in paths] == [True, False]
  alone = tmp_path / 'alone.safetensors'
  assert cli.main(['export', f'--workdir={trained}', f'--to={alone}']) == 0
  (params, config), (others, _) = map(weights.load, (paths[0], alone))
  assert config.encoding == ('fire',)
  jax.tree.map(np.testing.assert_array_equal, params, others)
  assert weights.trained_on(paths[0]) == weights.trained_on(alone)


@pytest.mark.slow
def test_export_for_transformers(tmp_path, trained, capsys):
  to = f'--to={tmp_path / "folder"}'
  workdir = f'--workdir={trained}'
  # A run keeps its config.json.
  error = mistake(capsys, 'export', workdir, f'--to={trained}', '--format=hf')
  assert f'cannot write {trained}: its config.json is not that of' in error
  error = mistake(capsys, 'export', workdir, '--to=', '--format=hf')
  assert '--to: it is empty; give a value' in error
  file = f'--to={tmp_path / "a.safetensors"}'
  error = mistake(capsys, 'export', workdir, file, '--format=hf')
  assert 'is a folder, whose name must not end in .safetensors' in error
  assert cli.main(['export', workdir, to, '--format=hf']) == 2
  assert 'transformers has no encoding like fire' in capsys.readouterr().err
  assert cli.main(['export', workdir, to, '--dtype=bfloat16']) == 2
  assert '--like and --dtype require --format=hf' in capsys.readouterr().err
  other = tmp_path / 'rope'
  llama = helpers.GOLDEN / 'llama/untied'
  config = f'--config=configs/pretrained.py:{llama},tiny'
  steps = ['--config.train.steps=0', f'--workdir={other}']
  assert cli.main(['train', config, *steps]) == 0
  assert cli.main(['export', f'--workdir={other}', to, '--format=hf']) == 0
  out = capsys.readouterr().out
  assert f'wrote {tmp_path / "folder"}: step 0, ' in out
  assert 'no tokenizer was found: --like=CHECKPOINT copies one' in out
  written = json.loads((tmp_path / 'folder' / 'config.json').read_text())
  assert written['max_position_embeddings'] == 4 * 32
  params, _ = hf.load(tmp_path / 'folder')
  want, _ = hf.load(llama)
  jax.tree.map(np.testing.assert_array_equal, params, want)


@pytest.mark.one_jax
def test_an_export_has_the_tokenizer_of_the_first_checkpoint(tmp_path, capsys):
  """Also if the run began with another run."""
  llama = helpers.GOLDEN / 'checkpoints/llama3'
  first, second, folder = (tmp_path / name for name in ('1', '2', 'folder'))
  shared = [f'--config=configs/pretrained.py:{llama},tiny']
  shared += ['--config.train.steps=0']
  assert cli.main(['train', *shared, f'--workdir={first}']) == 0
  begin = f'--config.train.init_from={first}'
  assert cli.main(['train', *shared, begin, f'--workdir={second}']) == 0
  export = ['export', f'--workdir={second}', f'--to={folder}', '--format=hf']
  assert cli.main(export) == 0
  out = capsys.readouterr().out
  assert 'no tokenizer' not in out
  # The config of the size tiny has bytes.
  assert re.search(
    'its tokenizer is not the one of training .bytes_plus_0.', out
  )
  found, wanted = (path / 'tokenizer.json' for path in (folder, llama))
  assert found.read_bytes() == wanted.read_bytes()


def test_compare_report(tmp_path, capsys):
  workdir = f'--workdir={tmp_path}'
  runs = '--runs=learned(max_position=40); rope|interpolated(scale=2)'
  assert cli.main(['compare', TINY, workdir, runs, *SHORT]) == 0
  out = capsys.readouterr().out
  assert 'rope | interpolated(scale=2)' in out
  assert 'learned(max_position=40) at 64: ' in out
  files = ['curves.csv', 'positions.csv', 'length_curves.png', 'report.html']
  before = {name: (tmp_path / name).read_bytes() for name in files}
  page = before['report.html'].decode()
  assert 'rope | interpolated(scale=2)' in page
  assert 'max_position=64 or more' in page

  for name in files:
    (tmp_path / name).unlink()
  assert cli.main(['report', workdir]) == 0
  # The same bytes for the same results.
  assert before == {name: (tmp_path / name).read_bytes() for name in files}


def test_defaults_are_the_embedded_corpus_and_a_new_folder(
  tmp_path, monkeypatch, capsys
):
  monkeypatch.chdir(tmp_path)
  called = []
  monkeypatch.setattr(
    'lengen_jax.training.compare.compare',
    lambda config, workdir, runs: called.append((config, workdir)) or {},
  )
  monkeypatch.setattr('lengen_jax.analysis.report.print_table', lambda _: None)
  monkeypatch.setattr('lengen_jax.analysis.report.write', lambda *_: [])
  for number in (1, 2):
    assert cli.main(['compare', '--runs=fire']) == 0
    config, workdir = called[-1]
    assert (config.data.source, config.data.train_length) == ('stdlib', 128)
    assert workdir == f'runs/compare-{number}'
    assert capsys.readouterr().out == f'--workdir={workdir}\n'
    (tmp_path / workdir).mkdir(parents=True)
  monkeypatch.setattr('jax.process_count', lambda: 2)
  error = mistake(capsys, 'compare', '--runs=fire')
  assert 'several processes needs --workdir' in error


def test_results_in_a_bucket_are_drawn_elsewhere(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr('lengen_jax.training.compare.compare', lambda *_: {})
  monkeypatch.setattr('lengen_jax.analysis.report.print_table', lambda _: None)
  workdir = '--workdir=gs://bucket/runs'
  assert cli.main(['compare', TINY, workdir, '--runs=fire']) == 0
  out = capsys.readouterr().out
  assert 'the results are in gs://bucket/runs;' in out
  assert 'lengen report' in out
  assert list(tmp_path.iterdir()) == []


def test_list(capsys):
  from lengen_jax import encodings, positions
  from lengen_jax.attention import scaling

  assert cli.main(['list']) == 0
  out = capsys.readouterr().out
  for name in [*encodings.ENCODINGS, *positions.SCHEMES, *scaling.SCALES]:
    assert re.search(rf'^ *{name}\b', out, re.MULTILINE), name
  assert 'init_threshold=512.0' in out


@pytest.mark.some(2)
@pytest.mark.parametrize(
  'arguments, message',
  [
    (['--config.model.encoding=fier'], "'fier'; did you mean 'fire'"),
    (['--config.positions=standrd'], "'standrd'; did you mean 'standard'"),
    (['--config.model.encoding=fire(width=3)'], "key of fire 'width'"),
    (['--config.model.num_layer=3'], "did you mean 'model.num_layers'"),
    (['--config.model.num_layers=x'], 'num_layers'),
    (['--config.model.colour=red'], "field of the config 'model.colour'"),
    (['--confg.seed=3'], "unknown argument of lengen train '--confg.seed'"),
    (['--config.data.path=/nowhere'], 'no Python sources'),
    (['--config.data.train_length=1000000'], 'fewer than'),
    (['--config.model.encoding=learned(max_position=9)'], 'position 31'),
  ],
)
def test_mistakes_in_the_config(tmp_path, capsys, arguments, message):
  error = mistake(
    capsys, 'train', TINY, f'--workdir={tmp_path / "run"}', *arguments
  )
  assert message in error


@pytest.mark.parametrize(
  'config, message',
  [
    ('/nowhere.py', '/nowhere.py'),
    (
      f'{CONFIG}:huge',
      "'huge' is unknown or out of order; the argument is [paper|small|",
    ),
  ],
)
def test_mistakes_in_the_config_file(tmp_path, capsys, config, message):
  error = mistake(
    capsys, 'train', f'--config={config}', f'--workdir={tmp_path}'
  )
  assert message in error


def test_workdir_of_another_config(trained, capsys):
  workdir = f'--workdir={trained}'
  files = sorted(trained.rglob('*'))
  error = mistake(capsys, 'train', TINY, workdir, '--config.seed=7', *SHORT)
  assert 'seed: 0 there, 7 here' in error and '--workdir' in error
  assert sorted(trained.rglob('*')) == files


def test_unreadable_checkpoint(tmp_path, trained, capsys):
  folder = tmp_path / 'run'
  shutil.copytree(trained, folder)
  workdir = f'--workdir={folder}'
  for file in (folder / 'checkpoints').rglob('d/*'):
    file.write_bytes(b'')
  for command in (['train', TINY, *SHORT], ['eval']):
    error = mistake(capsys, *command, workdir)
    assert 'no checkpoint' in error and 'nothing was changed' in error


def test_mistakes_in_the_workdir(tmp_path, capsys):
  assert 'holds no run' in mistake(capsys, 'eval', f'--workdir={tmp_path}')
  error = mistake(capsys, 'report', f'--workdir={tmp_path}')
  assert 'no results.json' in error
  (tmp_path / 'file').write_text('')
  error = mistake(capsys, 'train', TINY, f'--workdir={tmp_path / "file" / "x"}')
  assert 'cannot make the workdir' in error
  (tmp_path / 'results.json').write_text('{}')
  error = mistake(capsys, 'report', f'--workdir={tmp_path}')
  assert 'lacks curves, lengths, train_length' in error
  for kind, file, field in (
    ('sweep.json', 'results.json', 'baselines'),
    ('reproduction.json', 'reproduction.json', 'claims'),
    ('ruler.json', 'ruler.json', 'average'),
  ):
    folder = tmp_path / field
    folder.mkdir()
    (folder / kind).write_text('{}')
    (folder / file).write_text('{}')
    error = mistake(capsys, 'report', f'--workdir={folder}')
    assert f'{file} lacks ' in error and field in error
  (tmp_path / 'comparison.json').write_text('{}')
  error = mistake(capsys, 'eval', f'--workdir={tmp_path}')
  assert 'holds a comparison' in error
  (tmp_path / 'results.json').write_text('{')
  error = mistake(capsys, 'report', f'--workdir={tmp_path}')
  assert 'cannot read' in error


def test_mistakes_in_lengths(trained, capsys):
  workdir = f'--workdir={trained}'
  assert 'comma-separated' in mistake(capsys, 'eval', workdir, '--lengths=a')
  error = mistake(capsys, 'eval', workdir, '--lengths=24,64')
  assert '24 does not divide the longest, 64' in error
  error = mistake(capsys, 'eval', workdir, '--lengths=1000000')
  assert '0 windows of 1000000' in error


def test_debug_shows_where(tmp_path, capsys):
  assert cli.main(['eval', '--debug', f'--workdir={tmp_path}']) == 2
  error = capsys.readouterr().err
  assert error.startswith('Traceback') and 'errors.WorkdirError: ' in error


@pytest.mark.parametrize(
  'config',
  [
    'fire_c4.py:base,c4,tiny',
    'scrolls.py:qasper,tiny',
    'glue_superglue.py:tiny',
  ],
)
def test_missing_data_is_said_before_anything_loads(tmp_path, config):
  """So that it takes less than a second."""
  arguments = [
    'train',
    f'--config=configs/{config}',
    '--config.train.init_from=',
    f'--config.data.path={tmp_path}',
    f'--config.data.raw={tmp_path}',
    f'--workdir={tmp_path / "run"}',
  ]
  code = (
    'import sys; from lengen_jax import cli; '
    f'status = cli.main({arguments!r}); '
    "print(status, *{'jax', 'tensorflow', 'seqio'} & {*sys.modules})"
  )
  run = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, check=True
  )
  assert run.stdout.strip() == '2'
  assert str(tmp_path) in run.stderr and 'configs/stdlib.py' in run.stderr


@pytest.mark.parametrize('command', ['train', 'prepare', 'compare'])
def test_a_config_of_a_sweep_is_no_run(tmp_path, capsys, command):
  arguments = [command, '--config=configs/chomsky.py:bucket_sort,tiny']
  if command != 'prepare':
    arguments.append(f'--workdir={tmp_path}')
  if command == 'compare':
    arguments.append('--runs=fire')
  assert cli.main(arguments) == 2
  message = capsys.readouterr().err
  assert message.startswith('lengen: ') and message.count('\n') == 1
  assert 'config' in message and 'Traceback' not in message


def test_prepare_requires_no_initial_model(tmp_path, capsys):
  config = '--config=configs/yarn_c4.py:base,tiny'
  error = mistake(capsys, 'prepare', config, f'--config.data.raw={tmp_path}')
  assert 'there is no c4' in error and str(tmp_path) in error
  assert 'init_from' not in error


def test_skipped_records_are_printed(tmp_path, capsys):
  """Their number, and the file and line of each."""
  pytest.importorskip('array_record')
  raw = tmp_path / 'raw'
  raw.mkdir()
  good = [json.dumps({'text': 600 * word}) for word in 'abcd']
  (raw / 'train.jsonl').write_text('\n'.join([*good[:2], 'oops', *good[2:]]))
  (raw / 'valid.jsonl').write_text(good[0])
  arguments = [
    'prepare',
    TINY,
    '--config.data.source=prepared',
    '--config.data.task=lm',
    f'--config.data.path={tmp_path}/out',
    f'--config.data.raw={raw}',
    '--config.data.vocabulary=bytes',
  ]
  assert 'train.jsonl, line 3: no JSON' in mistake(capsys, *arguments)
  assert cli.main([*arguments, '--bad-records=skip']) == 0
  out = capsys.readouterr().out.splitlines()
  at = out.index('train: skipped 1 bad records')
  assert out[at - 1].startswith('train: 4 documents')
  named = f'prepare train: skipped {raw}/train.jsonl, line 3: no JSON object'
  assert sum(line.startswith(named) for line in out) == 1


def test_workers_of_the_direct_runner(tmp_path, monkeypatch):
  """They are options of Beam."""
  seen = {}
  monkeypatch.setattr(
    'lengen_jax.data.prepare.prepare',
    lambda config, **named: seen.update(named) or {'splits': {}},
  )
  arguments = [
    'prepare',
    TINY,
    '--config.data.source=prepared',
    '--config.data.task=lm',
    f'--config.data.path={tmp_path}',
    '--runner=direct',
    '--beam-options=--save_main_session',
  ]
  assert cli.main([*arguments, '--workers=3']) == 0
  assert seen['beam_options'].split() == [
    '--save_main_session',
    '--direct_num_workers=3',
    '--direct_running_mode=multi_processing',
  ]
  assert cli.main(arguments) == 0
  assert seen['beam_options'] == '--save_main_session'


@pytest.mark.skipif(
  not os.path.exists('/dev/full'), reason='no device that is full'
)
def test_output_to_a_full_disk():
  program = 'from lengen_jax import cli; raise SystemExit(cli.main(["list"]))'
  with open('/dev/full', 'w') as full:
    done = subprocess.run(
      [sys.executable, '-c', program],
      stdout=full,
      stderr=subprocess.PIPE,
      text=True,
      check=False,
    )
  assert done.returncode == 1
  assert done.stderr == (
    'lengen: cannot write standard output: No space left on device\n'
  )


def test_output_that_is_closed(capsys, monkeypatch):
  monkeypatch.setattr(sys, 'stdout', None)
  assert cli.main(['reproduce', '--names']) == 0


def test_another_file_on_a_full_disk(monkeypatch):
  """Its error is not that of standard output."""

  def full(*_):
    raise OSError(errno.ENOSPC, 'No space left on device')

  monkeypatch.setitem(cli._COMMANDS, 'list', full)
  with pytest.raises(OSError, match='No space'):
    cli.main(['list'])


class JaxRuntimeError(RuntimeError):
  """Has the name of jax's error."""


class OpError(Exception):
  __module__ = 'tensorflow.python.framework.errors_impl'


class UnavailableError(OpError):
  """Has the name of TensorFlow's error."""

  __module__ = OpError.__module__


@pytest.mark.parametrize(
  ('error', 'status', 'message'),
  [
    (
      PermissionError(errno.EACCES, 'Permission denied', '/theirs'),
      2,
      'cannot use /theirs: Permission denied; change its permissions',
    ),
    (
      JaxRuntimeError('RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes'),
      3,
      'an array does not fit into the memory of a device: RESOURCE_EXHAUSTED',
    ),
    (
      OpError('Error executing an HTTP request for gs://nowhere/x\nand more'),
      2,
      'HTTP request for gs://nowhere/x; check that the bucket exists',
    ),
    (
      UnavailableError('All 10 retry attempts failed for gs://here/x'),
      1,
      'failed for gs://here/x; run the same command again',
    ),
  ],
)
def test_errors_of_files_and_devices(
  monkeypatch, capsys, error, status, message
):
  def fail(*_):
    raise error

  monkeypatch.setitem(cli._COMMANDS, 'list', fail)
  assert cli.main(['list']) == status
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith('lengen: ') and message in line


@pytest.mark.parametrize(
  'error', [PermissionError('no'), JaxRuntimeError('INTERNAL'), OpError('no')]
)
def test_other_errors_are_raised(monkeypatch, error):
  def fail(*_):
    raise error

  monkeypatch.setitem(cli._COMMANDS, 'list', fail)
  with pytest.raises(type(error)):
    cli.main(['list'])


def test_devices_that_are_missing():
  code = (
    'import sys; from lengen_jax import cli; '
    "sys.exit(cli.main(['generate', '--from=x', '--prompt=a']))"
  )
  done = subprocess.run(
    [sys.executable, '-c', code],
    env={**os.environ, 'JAX_PLATFORMS': 'cuda'},
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 2
  (line,) = done.stderr.splitlines()
  start = 'lengen: jax has no devices with JAX_PLATFORMS=cuda: '
  assert line.startswith(start) and 'set it to cpu' in line


def test_ctrl_c_while_modules_are_loaded():
  loaded = []
  # In the background, it is ignored.
  before = signal.signal(signal.SIGINT, signal.default_int_handler)
  try:
    with pytest.raises(KeyboardInterrupt):
      with cli._interrupted_later():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        loaded.append('jax')
    assert loaded == ['jax']
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with cli._interrupted_later():
      os.kill(os.getpid(), signal.SIGINT)
      time.sleep(0.1)
  finally:
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def passed_on(monkeypatch):
  """Returns a function that runs a command, and returns its options.

  They are the keyword arguments of a function that `module` has.
  """

  def run(module, function, *arguments):
    seen = {}
    model = types.SimpleNamespace(create_vocabulary=lambda spec: spec)
    model.tested_as = lambda *_: model

    def record(*_, **named):
      seen.update(named)
      return [''], None

    prefix = 'lengen_jax.training'
    monkeypatch.setattr(f'{prefix}.sharding.start', lambda: 0)
    monkeypatch.setattr(f'{prefix}.pretrained.load', lambda *_: model)
    monkeypatch.setattr(f'{prefix}.{module}.{function}', record)
    monkeypatch.setattr(cli, '_show', lambda *_: None)
    assert cli.main([*arguments, '--from=x', '--seed=7']) == 0
    return seen

  return run


def test_options_of_generate(passed_on):
  arguments = ['generate', '--prompt=a', '--prompt=b', '--max-new=3']
  arguments += ['--temperature=0.5', '--top-p=0.9']
  assert passed_on('continuations', 'write', *arguments) == {
    **{'vocabulary': '', 'max_new': 3, 'temperature': 0.5},
    **{'top_p': 0.9, 'seed': 7},
  }


def test_options_of_eval_tasks(passed_on, tmp_path):
  arguments = ['eval', '--tasks=vt', '--lengths=640', '--samples=3']
  arguments += ['--batch-tokens=99', f'--workdir={tmp_path}']
  seen = passed_on('ruler', 'evaluate', *arguments)
  del seen['save']
  assert seen == {
    **{'vocabulary': '', 'samples': 3, 'batch_tokens': 99, 'seed': 7}
  }


def test_tasks_of_another_encoding(monkeypatch, tmp_path):
  seen, prefix = [], 'lengen_jax.training'
  model = types.SimpleNamespace(
    create_vocabulary=lambda spec: spec, tested_as=lambda *specs: specs
  )
  monkeypatch.setattr(f'{prefix}.pretrained.load', lambda *_: model)
  monkeypatch.setattr(
    f'{prefix}.ruler.evaluate',
    lambda tested, *_, **__: seen.append(tested) or ({}, []),
  )
  monkeypatch.setattr(cli, '_show', lambda *_: None)
  arguments = ['eval', '--tasks=vt', '--lengths=640', '--from=x']
  arguments += ['--encoding=ntk(scale=4.)', '--positions=interpolated']
  assert cli.main([*arguments, f'--workdir={tmp_path}']) == 0
  assert seen == [('ntk(scale=4.)', 'interpolated')]


def test_former_scores_are_kept_until_there_are_new_ones(passed_on, tmp_path):
  (tmp_path / 'ruler.json').write_text('{}')
  arguments = ['eval', '--tasks=vt', '--lengths=640']
  seen = passed_on('ruler', 'evaluate', *arguments, f'--workdir={tmp_path}')
  seen['save']({'scores': {}, 'refused': {}}, [])
  assert (tmp_path / 'ruler.json').read_text() == '{}'


def test_options_of_export(monkeypatch):
  seen = []
  monkeypatch.setattr(
    'lengen_jax.training.export.to_hf', lambda *given: seen.append(given)
  )
  arguments = ['export', '--workdir=w', '--to=t', '--format=hf']
  arguments += ['--step=best', '--like=l', '--dtype=bfloat16']
  assert cli.main(arguments) == 0
  assert seen == [('w', 't', 'best', 'l', 'bfloat16')]


@pytest.mark.parametrize(
  'option', ['haystack', 'vocabulary', 'encoding', 'positions']
)
def test_options_that_require_tasks(capsys, option):
  error = mistake(capsys, 'eval', '--workdir=runs/x', f'--{option}=1')
  assert f'--{option} requires --tasks' in error


def test_eval_with_another_vocabulary(tmp_path, trained, capsys):
  folder = shutil.copytree(trained, tmp_path / 'run')
  path = folder / 'config.json'
  found = json.loads(path.read_text()) | {'data_vocabulary': 'bytes_plus_3'}
  path.write_text(json.dumps(found))
  error = mistake(capsys, 'eval', f'--workdir={folder}')
  assert "'bytes_plus_3'; the data has 'bytes_plus_0'" in error
