"""Running an experiment: its results, its files, and going on with it."""

import contextlib
import csv
import dataclasses
import json
import re
import types

import numpy as np
import pytest
from scipy import stats

from lengen_jax import cli, errors, reproduce
from lengen_jax.analysis import plots, reproduction
from lengen_jax.reproduce import (
  claims,
  curves,
  figures,
  finetuning,
  parts,
  run,
  sweeps,
)
from lengen_jax.reproduce import experiment as experiment_lib
from lengen_jax.training import compare, files, loop, sweep


def draw(folder):
  path = folder / 'numbers.csv'
  path.write_text('1,2\n')
  return [path]


def look(trained, folder):
  """Which models were handed over, and how far they are trained."""
  path = folder / 'steps.csv'
  lines = [f'{name},{int(one.state.step)}' for name, one in trained.items()]
  path.write_text('\n'.join(lines))
  return [path]


def scaled(trained):
  """Whether a model's logits are scaled by the length."""
  return (float('log_n' in trained.run.config.model.attention_scale),)


SMALL = experiment_lib.Experiment(
  'paper/table',
  'a little of everything',
  (
    curves.LengthCurves(
      name='text',
      config='fire_c4.py:base',
      rows=(
        experiment_lib.Row('rope', 'rope', (3.0, 4.0)),
        experiment_lib.Row('bounded', lambda n: f'learned(max_position={n})'),
        experiment_lib.Row('large', 'alibi', scales=('paper',)),
        experiment_lib.Row(
          'rope, log n',
          lambda n: f'rope||log_n(train_length={n})',
          trained_as='rope',
        ),
      ),
      ratios=(0.5, 2),
    ),
    curves.LengthCurves(
      name='tuned',
      config='randomized_enwik8.py:finetune',
      rows=(experiment_lib.Row('alibi', 'alibi | standard', init_row='rope'),),
      ratios=(1,),
      init_part='text',
    ),
    sweeps.TaskSweep(
      name='sort',
      config='chomsky.py:bucket_sort',
      seed_reduction='max',
      rows=(
        experiment_lib.Row('none', 'nope', (49.0,)),
        experiment_lib.Row('log n', lambda n: f'nope||log_n(train_length={n})'),
      ),
    ),
    sweeps.TaskSweep(
      name='more sort',
      config='chomsky.py:reverse_string',
      rows=(experiment_lib.Row('none', 'nope', (51.0,)),),
    ),
    figures.Figure(
      name='numbers',
      draw=draw,
      columns=('n',),
      measure=lambda: {'one': (1.0,)},
    ),
    figures.Figure(
      name='look',
      part='text',
      rows=('rope', 'rope, log n'),
      draw=look,
      columns=('scaled',),
      measure=scaled,
    ),
    figures.Average(name='mean', members=('sort', 'more sort', 'elsewhere')),
  ),
  claims=(
    experiment_lib.Claim(
      'X1',
      'longer is better',
      experiment_lib.parse_comparisons('text: rope @ 2 < @ 0.5'),
    ),
  ),
  summary=lambda found: [f'{len(found["parts"])} parts'],
)


ONE_LAYER = ['--config.model.num_layers=1']


@pytest.fixture(scope='module')
def done(tmp_path_factory):
  root = tmp_path_factory.mktemp('reproduce')
  found = run.reproduce(SMALL, 'tiny', root, (0, 1), ONE_LAYER)
  folder = root / found['folder']
  return root, folder, found, reproduction.write(found, folder)


@pytest.mark.slow
def test_results(done):
  root, folder, found, _ = done
  assert json.loads((folder / 'reproduction.json').read_text()) == found
  text, tuned, sort, _, numbers, looked, mean = found['parts']
  assert [r['name'] for r in text['rows']] == ['rope', 'bounded', 'rope, log n']
  rope, bounded, log_n = text['rows']
  assert rope['paper'] == [3.0, 4.0] and bounded['paper'] is None
  for seed in (0, 1):
    for row in (rope, bounded):
      curve = root / text['trained'] / f'seed{seed}' / row['folder']
      curve = json.loads((curve / 'curve.json').read_text())
      assert row['values'][seed] == curve['loss']
  assert rope['values'][0] != rope['values'][1]
  assert rope['value'][1] == sum(v[1] for v in rope['values']) / 2
  # A table of 32 positions has no loss at 64, and says why.
  assert bounded['run'] == 'learned(max_position=32)'
  assert bounded['value'][0] and bounded['value'][1] is None
  assert 'max_position' in bounded['refused']['64']
  assert text['standin'] and text['train_length'] == 32
  assert 'train.steps: 8, at full size 600000' in text['differences']
  assert any(
    line.startswith(
      'bounded: learned(max_position=32), at full size learned('
      'max_position=2048)'
    )
    for line in text['differences']
  )
  # The same model, in which only queries of more keys are another matter.
  assert log_n['folder'] == rope['folder']
  assert log_n['value'] != rope['value']
  from_rope = root / tuned['trained'] / 'seed1/from-rope'
  (config,) = from_rope.glob('alibi*/config.json')
  start = json.loads(config.read_text())['train']['init_from']
  assert start.endswith(f'{text["trained"]}/seed1/{rope["folder"]}')
  results = json.loads((root / sort['trained'] / 'results.json').read_text())
  for row, entry in zip(sort['rows'], results['runs'], strict=True):
    # Six digits.
    assert row['value'][0] == pytest.approx(100 * entry['best'], rel=1e-5)
  assert sort['rows'][1]['run'] == 'nope | log_n(train_length=6)'
  assert sort['rows'][0]['paper'] == [49.0, None]
  assert sort['chance'] == pytest.approx(20.0)
  assert numbers['files'] == ['numbers.csv']
  assert numbers['rows'][0]['values'] == [[1.0], [1.0]]
  assert looked['files'] == ['steps.csv']
  assert (folder / 'look/steps.csv').read_text() == 'rope,8\nrope, log n,8'
  assert [row['value'] for row in looked['rows']] == [[0.0], [1.0]]
  assert mean['of'] == ['sort', 'more sort']
  (both,) = mean['rows']
  assert both['name'] == 'none' and both['paper'] == [50.0, None]
  assert found['summary'] == ['7 parts']
  command = 'lengen reproduce paper/table --scale=tiny'
  assert found['command'] == f'{command} {ONE_LAYER[0]}'


@pytest.mark.slow
def test_a_row_tested_otherwise_is_what_it_would_have_been(done, tmp_path):
  """Log n changes nothing in training, which has one length."""
  *_, found, _ = done
  text, *_ = SMALL.parts
  rows = [dataclasses.replace(row, trained_as=None) for row in text.rows]
  apart = dataclasses.replace(
    SMALL, parts=(dataclasses.replace(text, rows=tuple(rows)),), claims=()
  )
  again = run.reproduce(apart, 'tiny', tmp_path, (0,), ONE_LAYER)
  (part,) = again['parts']
  assert part['rows'][2]['folder'] != part['rows'][0]['folder']
  for row, one in zip(part['rows'], found['parts'][0]['rows'], strict=True):
    assert row['values'][0] == one['values'][0]


@pytest.mark.slow
def test_experiments_share_models(done, monkeypatch):
  root, _, found, _ = done

  def train(*args, **kwargs):
    raise AssertionError('trained again')

  monkeypatch.setattr(loop, 'train', train)
  text, *_ = SMALL.parts
  other = dataclasses.replace(
    SMALL, name='paper/other', parts=(text,), claims=()
  )
  again = run.reproduce(other, 'tiny', root, (0, 1), ONE_LAYER)
  assert again['parts'] == found['parts'][:1]
  with pytest.raises(AssertionError, match='trained again'):
    run.reproduce(
      other, 'tiny', root, (0, 1), [*ONE_LAYER, '--config.train.steps=7']
    )


@pytest.mark.slow
def test_files(done):
  _, folder, found, paths = done
  assert {path.name for path in paths} == {
    'text.png',
    'text.csv',
    'tuned.png',
    'tuned.csv',
    'sort.png',
    'sort, by length.png',
    'sort.csv',
    'more sort.png',
    'more sort, by length.png',
    'more sort.csv',
    'mean.png',
    'mean.csv',
    'numbers.csv',
    'steps.csv',
    'report.html',
  }
  assert all(path.exists() for path in paths)
  lines = list(csv.DictReader((folder / 'text.csv').open()))
  rope = found['parts'][0]['rows'][0]
  assert [float(one['seed 1']) for one in lines[:2]] == rope['values'][1]
  assert [one['paper'] for one in lines] == ['3.0', '4.0', '', '', '', '']
  page = (folder / 'report.html').read_text()
  for text in ('paper 0.5x', 'X1', 'at full size 600000', '7 parts', 'Python'):
    assert text in page
  assert 'src="http' not in page and '<script' not in page


@pytest.mark.slow
def test_what_is_done_is_not_done_again(done, monkeypatch):
  root, _, found, _ = done

  def train(*args, **kwargs):
    raise AssertionError('trained again')

  monkeypatch.setattr(loop, 'train', train)
  assert run.reproduce(SMALL, 'tiny', root, (0, 1), ONE_LAYER) == found


@pytest.mark.slow
def test_changes_of_outputs(tmp_path):
  found = run.reproduce(
    reproduce.get('su/order'), 'tiny', tmp_path, (0,), ONE_LAYER
  )
  (row,) = found['parts'][1]['rows']
  redrawn, permuted, ratio = row['value']
  assert ratio == pytest.approx(redrawn / permuted)
  # A model that is hardly trained has not learned to ignore the draw.
  assert 0 < permuted < redrawn / 2
  path = tmp_path / found['folder'] / 'order/order.csv'
  (line,) = csv.DictReader(path.open())
  assert float(line['positions redrawn']) == pytest.approx(redrawn)


@pytest.mark.slow
def test_processes_can_train_other_seeds(done, monkeypatch):
  """The models of a seed are locked, or a whole sweep."""
  root, *_ = done
  locked = []

  @contextlib.contextmanager
  def lock(folder):
    locked.append('/'.join(folder.parts[-2:]).rpartition('-')[0])
    locked.append(folder.name)
    yield

  monkeypatch.setattr(files, 'locked', lock)
  run.reproduce(SMALL, 'tiny', root, (1,), ONE_LAYER)
  names, folders = locked[::2], locked[1::2]
  assert folders[:2] == ['seed1', 'from-rope']
  assert names[2:] == [
    'trained/chomsky-bucket_sort-tiny',
    'trained/chomsky-reverse_string-tiny',
  ]


def test_the_command(monkeypatch, tmp_path, capsys):
  drawn = experiment_lib.Experiment(
    'paper/drawing',
    'a drawing',
    (figures.Figure(name='numbers', draw=draw),),
  )
  monkeypatch.setitem(reproduce.EXPERIMENTS, 'paper/drawing', drawn)
  workdir = str(tmp_path / 'here')
  command = ['reproduce', 'paper/drawing', '--scale=tiny']
  assert cli.main([*command, f'--workdir={workdir}', '--seeds=3,4']) == 0
  folder = tmp_path / 'here/paper/drawing/tiny-replication'
  found = json.loads((folder / 'reproduction.json').read_text())
  assert found['command'].endswith('--scale=tiny --seeds=3,4')
  (folder / 'report.html').unlink()
  assert cli.main(['report', f'--workdir={folder}']) == 0
  assert (folder / 'report.html').exists()
  capsys.readouterr()
  assert cli.main(['reproduce', '--list']) == 0
  listed = capsys.readouterr().out
  assert all(name in listed for name in reproduce.EXPERIMENTS)
  # Three seeds at `hours`, and at `cpu` two.
  assert re.search('study/protocol .* 5 x 3 ', listed)
  for arguments, message in (
    (['reproduce', 'fire/table44'], "did you mean 'fire/table4'"),
    ([*command, '--seeds=one'], "--seeds: 'one' is not a comma-separated list"),
    (['reproduce', 'fire/table4', '--scale=big'], "unknown scale 'big'"),
    ([*command, '--nonsense=1'], "argument of lengen reproduce '--nonsense'"),
    ([*command, '--config.seeed=1'], 'paper/drawing trains nothing'),
    ([*command, '--rows=rope'], 'has no rows; leave out --rows'),
    (
      ['reproduce', 'fire/table4', '--scale=tiny', '--rows=fire; keple'],
      "unknown row at scale tiny 'keple'; did you mean 'kerple'? valid: ali",
    ),
    (
      ['reproduce', 'randomized/table1', '--scale=hours', '--rows=sandwich'],
      "unknown row at scale hours 'sandwich'",
    ),
    ([*command, '--rows=; '], '--rows: it must name a row; leave it out for'),
  ):
    assert cli.main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
  ('rows', 'names'),
  [
    (
      ('rope, log n', 'bounded'),
      {
        'text': ('rope', 'bounded', 'rope, log n'),
        'look': ('rope', 'rope, log n'),
      },
    ),
    (('alibi',), {'text': ('rope',), 'tuned': ('alibi',), 'look': ('rope',)}),
    (('log n',), {'sort': ('log n',), 'mean': None}),
    (('none',), {'sort': ('none',), 'more sort': ('none',), 'mean': None}),
    (('more sort: none',), {'more sort': ('none',), 'mean': None}),
    (('more sort:none',), {'more sort': ('none',), 'mean': None}),
    # Parts that have no row in common have no mean.
    (
      ('sort: log n', 'more sort: none'),
      {'sort': ('log n',), 'more sort': ('none',)},
    ),
    (
      ('tuned: alibi', 'sort: none'),
      {
        'text': ('rope',),
        'tuned': ('alibi',),
        'sort': ('none',),
        'look': ('rope',),
        'mean': None,
      },
    ),
  ],
)
def test_some_rows(rows, names):
  """With the rows whose models they need, and the parts that have any."""
  found = {}
  for part in run._with_rows(SMALL.parts, rows, 'tiny'):
    kept = getattr(part, 'rows', None)
    found[part.name] = kept and tuple(getattr(row, 'name', row) for row in kept)
  assert found == names


def test_what_a_user_sets_is_kept_apart(monkeypatch, tmp_path):
  drawn = figures.Figure(name='numbers', draw=draw)

  class Untrained(sweeps.TaskSweep):
    def check(self, request):
      pass

    def run(self, request, previous):
      return drawn.run(request, previous)

  rows = experiment_lib.rows({'none': 'nope', 'alibi': 'alibi'})
  part = Untrained(name='sort', config='chomsky.py:bucket_sort', rows=rows)
  both = experiment_lib.Experiment('paper/both', 'both', (part, drawn))
  monkeypatch.setitem(reproduce.EXPERIMENTS, 'paper/both', both)
  command = ['reproduce', 'paper/both', '--scale=tiny', f'--workdir={tmp_path}']
  assert cli.main(command) == 0
  assert cli.main([*command, '--config.train.steps=3']) == 0
  assert cli.main([*command, '--rows=none']) == 0
  # A replication mostly has some of the rows.
  assert cli.main([*command, '--rows=none', '--seeds=7']) == 0
  assert cli.main([*command, '--rows=alibi', '--seeds=7']) == 0
  plain, *others, again = sorted((tmp_path / 'paper/both').iterdir())
  assert plain.name == 'tiny' and again.name == 'tiny-replication'
  assert len(others) == 2
  for other in others:
    assert re.fullmatch('tiny-[0-9a-f]{8}', other.name)
  assert (plain / 'report.html').exists() and (other / 'report.html').exists()


@pytest.mark.parametrize(
  'means, best',
  [(('all', 'beyond', 'seen'), 0), (('beyond', 'seen'), 1)],
)
def test_means_of_a_sweep(monkeypatch, tmp_path, means, best):
  """The first of them determines the best learning rate."""
  points = [
    {'seed': 0, 'exact': [1.0, 0.9, 0.2, 0.3]},
    {'seed': 0, 'exact': [0.2, 0.2, 0.6, 0.2]},
  ]
  # The first of ten examples are right.
  bits = [
    [format(0xFFFF << (16 - round(10 * x)) & 0xFFFF, '04x') for x in exact]
    for exact in ([0.0, 0.2, 0.1, 0.3], *(p['exact'] for p in points))
  ]
  for point, right in zip(points, bits[1:], strict=True):
    point['right'] = right
    tested = [[0.0, 0.2, 0.1, 0.3], point['exact']]
    point['trajectory'] = {
      'steps': [5, 10],
      'exact': tested,
      'right': [bits[0], right],
    }
  points += [point | {'seed': 1} for point in points]
  found = {
    'score': 'exact',
    'chance': 0.5,
    'baselines': {},
    'lengths': [2, 4, 6, 8],
    'train_lengths': [2, 4],
    'runs': [{'run': 'nope', 'points': points}],
  }
  monkeypatch.setattr(sweep, 'sweep', lambda config, folder: found)
  part = sweeps.TaskSweep(
    name='sort',
    config='chomsky.py:bucket_sort',
    rows=(experiment_lib.Row('none', 'nope'),),
    means=means,
  )
  request = types.SimpleNamespace(seeds=(0, 1), scale='tiny')
  config = types.SimpleNamespace(
    sweep=types.SimpleNamespace(), eval=types.SimpleNamespace(examples=10)
  )
  [(scores, more)], _, fields = part.train(request, config, tmp_path, None)
  assert fields['columns'] == [*means]
  want = [
    {'all': 60.0, 'beyond': 25.0, 'seen': 95.0},
    {'all': 30.0, 'beyond': 40.0, 'seen': 20.0},
  ][best]
  assert scores == [pytest.approx([want[column] for column in means])] * 2
  assert more['trajectory']['steps'] == [5, 10]
  earlier = {'all': 15.0, 'beyond': 20.0, 'seen': 10.0}
  first = pytest.approx([earlier[column] for column in means])
  # At each length, 10 examples and two more, of which one is right.
  shares = [[1.0, 0.9, 0.2, 0.3], [0.2, 0.2, 0.6, 0.2]][best]
  laplace = [(10 * share + 1) / 12 for share in shares]
  variances = [100**2 * p * (1 - p) / 10 for p in laplace]
  indices = {'all': range(4), 'beyond': (2, 3), 'seen': (0, 1)}
  for column, of_column in zip(means, more['examples'], strict=True):
    of = indices[column]
    want = sum(variances[n] for n in of) / len(of) ** 2
    assert of_column == {'variance': pytest.approx(want), 'count': 10 * len(of)}
  for column, scores_E in zip(means, more['windows'], strict=True):
    shares_L = np.array([points[best]['exact'][n] for n in indices[column]])
    right_LxE = np.arange(10) < 10 * shares_L[:, None] - 0.5
    assert scores_E['mean'] == pytest.approx(100 * right_LxE.mean(0), abs=1e-5)
    assert scores_E['noise'] == pytest.approx(0, abs=1e-9)
  for key in ('examples', 'windows'):
    assert more['trajectory'][key][1] == more[key]
    assert more['trajectory'][key][0] != more[key]
  assert more['trajectory']['values'] == [[first, scores[0]]] * 2
  # Points of an older sweep have neither earlier scores nor single answers.
  for point in points:
    del point['trajectory'], point['right']
  [(again, more)], _, _ = part.train(request, config, tmp_path, None)
  assert again == scores and 'trajectory' not in more


def test_trajectories_of_scores(tmp_path):
  """A mean over parts has them, too, and claims compare them by step."""

  def sweep_part(name, shift):
    # More steps than seeds.
    steps = [[10.0 + shift, 50.0], [30.0 + shift, 70.0], [40.0 + shift, 80.0]]
    values = [steps] * 2
    rows = [
      parts.table_row(row, row, [one[-1] for one in values])
      for row in ('a', 'b')
    ]
    for row, sign in zip(rows, (1, -1), strict=True):
      by_seed = [
        [[sign * (x + seed) for x in step] for step in one]
        for seed, one in enumerate(values)
      ]
      row['trajectory'] = {'steps': [1, 2, 3], 'values': by_seed}
      row['values'] = [one[-1] for one in by_seed]
    fields = {'unit': 'percent', 'columns': ['beyond', 'seen']}
    shared = {'of_seeds': 'mean', 'standin': None, 'same_kind': True}
    return {'name': name, 'kind': 'sweep', 'rows': rows, **shared, **fields}

  both = [sweep_part('copy', 0.0), sweep_part('sort', 4.0)]
  request = types.SimpleNamespace()
  average = figures.Average(name='mean', members=('copy', 'sort'))
  found = average.run(request, both)
  assert found['rows'][0]['trajectory'] == {
    'steps': [1, 2, 3],
    'values': [
      [[12.0, 50.0], [32.0, 70.0], [42.0, 80.0]],
      [[13.0, 51.0], [33.0, 71.0], [43.0, 81.0]],
    ],
  }
  head, body = reproduction.trajectory(found)
  assert head == ['run', 'score', 'step 1', 'step 2', 'step 3']
  assert body[0] == ['a', 'beyond', '12.5 ±0.5', '32.5 ±0.5', '42.5 ±0.5']
  assert [line[:2] for line in body[1:]] == [
    ['a', 'seen'],
    ['b', 'beyond'],
    ['b', 'seen'],
  ]
  reproduction.draw_trajectories(found, tmp_path / 'by_step.png')
  assert (tmp_path / 'by_step.png').stat().st_size > 10_000
  comparisons = experiment_lib.parse_comparisons('mean: a > b @ beyond')
  claim = experiment_lib.Claim('X', '', comparisons)
  # Parts that the claim does not compare were tested at other steps.
  row = {'name': 'c', 'values': [[0.0]] * 2}
  row['trajectory'] = {'steps': [4], 'values': [[[0.0]]] * 2}
  other = {'name': 'other', 'columns': [1], 'rows': [row]}
  results = {'seeds': [0, 1], 'scale': 'hours', 'parts': [*both, found, other]}
  judged = claims.judge(claim, results)
  assert judged['by_step'] == [[step, 'confirmed'] for step in (1, 2, 3)]
  # The variance of a mean of two is a quarter of the sum of both.
  for part, x in zip(both, (1.0, 3.0), strict=True):
    for row in part['rows']:
      row['examples'] = [{'variance': x, 'count': 5}, None]
      row['windows'] = [{'mean': [x, 4.0], 'noise': x}, None]
      for key in ('examples', 'windows'):
        row['trajectory'][key] = [row[key]] * 3
  row = average.run(request, both)['rows'][0]
  assert row['examples'] == [{'variance': 1.0, 'count': 10}, None]
  assert row['windows'] == [{'mean': [2.0, 4.0], 'noise': 1.0}, None]
  for key in ('examples', 'windows'):
    assert row['trajectory'][key] == [row[key]] * 3
  # Single examples of parts with different numbers are not averaged.
  both[1]['rows'][0]['windows'][0]['mean'] = [1.0]
  assert average.run(request, both)['rows'][0]['windows'] == [None, None]
  row['trajectory']['examples'][0] = 'first'
  results = {'parts': [{'name': 'mean', 'rows': [row]}]}
  first = row['trajectory']['steps'][0]
  assert (
    claims.at_step(results, first)['parts'][0]['rows'][0]['examples'] == 'first'
  )
  # Without the earlier scores of a part, the mean has none.
  del both[1]['rows'][0]['trajectory']
  rows = average.run(request, both)['rows']
  assert ['trajectory' in row for row in rows] == [False, True]


def result(low, high):
  """Results with two rows, of a figure for each seed."""
  return {
    'seeds': list(range(len(low))),
    'scale': 'cpu',
    'parts': [
      {
        'name': 'part',
        'columns': [1],
        'rows': [
          {'name': 'low', 'values': [[x] for x in low]},
          {'name': 'high', 'values': [[x] for x in high]},
        ],
      }
    ],
  }


def test_a_learning_rate_that_diverged_is_not_the_best(monkeypatch, tmp_path):
  points = [{'seed': 0, 'exact': [1.0, None]}, {'seed': 0, 'exact': [0.1, 0.2]}]
  found = {
    'score': 'exact',
    'chance': 0.5,
    'baselines': {},
    'lengths': [2, 4],
    'train_lengths': [1, 2],
    'runs': [{'run': 'nope', 'points': points}],
  }
  monkeypatch.setattr(sweep, 'sweep', lambda config, folder: found)
  rows = (experiment_lib.Row('none', 'nope'),)
  part = sweeps.TaskSweep(
    name='sort', config='chomsky.py:bucket_sort', rows=rows
  )
  request = types.SimpleNamespace(seeds=(0,), scale='tiny')
  config = types.SimpleNamespace(
    sweep=types.SimpleNamespace(), eval=types.SimpleNamespace(examples=10)
  )
  [(scores, _)], _, _ = part.train(request, config, tmp_path, None)
  assert scores == [[20.0, 10.0]]


def test_fields_of_curves(monkeypatch, tmp_path):
  """Time of training is that of trained rows, and windows have a digest."""
  rows = (
    experiment_lib.Row('rope', 'rope'),
    experiment_lib.Row('log n', 'rope||log_n', trained_as='rope'),
  )
  part = curves.LengthCurves(
    name='part', config='fire_c4.py:base', rows=rows, ratios=(1,)
  )
  one = {
    'loss': [1.0],
    'perplexity': [2.0],
    'window_loss': [[1.0, 1.0]],
    'windows_digest': 'abcd',
    'refused': {},
    'tokens': 8,
    'train_seconds': 3.0,
    'trajectory': {
      'steps': [8],
      'loss': [[1.0]],
      'window_loss': [[[1.0, 1.0]]],
    },
  }
  monkeypatch.setattr(
    compare,
    'compare',
    lambda config, folder, runs: {'curves': [dict(one) for _ in runs]},
  )
  request = parts.Request('tiny', (0, 1), (), str(tmp_path), 'paper/table')
  found = part.run(request, ())
  assert found['windows_digest'] == 'abcd'
  assert found['train_seconds'] == 2 * 3.0


def test_a_model_that_diverged_has_no_score(monkeypatch, tmp_path):
  """Other seeds and rows are trained and keep their scores."""
  rows = [experiment_lib.Row(name, name) for name in ('rope', 'nope')]
  part = curves.LengthCurves(
    name='part', config='fire_c4.py:base', rows=tuple(rows), ratios=(1,)
  )
  losses = {'loss': [[1.0]] * 2, 'window_loss': [[[1.0, 1.0]]] * 2}
  known = {'loss': [1.0], 'perplexity': [2.0], 'window_loss': [[1.0, 1.0]]}
  known |= {'refused': {}, 'tokens': 8, 'train_seconds': 3.0}
  known['trajectory'] = {'steps': [4, 8], **losses}
  one = None

  def diverge(config, folder, runs):
    if config.seed == 0:
      raise errors.DivergedError('rope: 10 steps were not finite')
    return {'curves': [dict(known) for _ in runs]}

  monkeypatch.setattr(compare, 'compare', diverge)
  monkeypatch.setattr(compare, 'finished', lambda folder, runs: [None, one])
  request = parts.Request('tiny', (0, 1), (), str(tmp_path), 'paper/table')
  one = dict(known)
  found = part.run(request, ())
  rope, nope = found['rows']
  lengths = len(rope['refused'])
  assert rope['values'] == [[None] * lengths, [1.0]]
  assert {*rope['refused'].values()} == {'training diverged'}
  assert 'trajectory' not in rope and nope['trajectory']['steps'] == [4, 8]
  assert nope['values'] == [[1.0], [1.0]] and not nope['refused']
  assert (found['tokens'], found['train_seconds']) == (8, 3 * 3.0)
  one = None
  with pytest.raises(errors.DivergedError, match='all models diverged'):
    part.run(dataclasses.replace(request, seeds=(0,)), ())


def test_what_depends_on_a_model_that_diverged(monkeypatch, tmp_path):
  """Models that start from it have no score, and figures are not drawn."""
  request = parts.Request('tiny', (3, 4), (), str(tmp_path), 'paper/table')
  row = {'name': 'rope', 'run': 'rope', 'folder': 'rope'}
  row['values'] = [[None, None], [1.0, None]]
  fields = {'name': 'first', 'trained': 'trained/x', 'kind': 'curves'}
  fields |= {'standin': None, 'same_kind': True}
  init = fields | {'rows': [row]}
  part = curves.LengthCurves(
    name='part',
    config='fire_c4.py:base',
    rows=(experiment_lib.Row('rope', 'rope'),),
    ratios=(1,),
    init_part='first',
  )
  known = {'loss': [1.0], 'perplexity': [2.0], 'window_loss': [[1.0, 1.0]]}
  known |= {'refused': {}, 'tokens': 8, 'train_seconds': 3.0}
  known['trajectory'] = {'steps': []}
  starts = []

  def trained(config, folder, runs):
    starts.append(config.train.init_from)
    return {'curves': [dict(known) for _ in runs]}

  monkeypatch.setattr(compare, 'compare', trained)
  (found,) = part.run(request, [init])['rows']
  assert [seed[0] for seed in found['values']] == [None, 1.0]
  assert starts == [str(tmp_path / 'trained/x/seed4/rope')]
  figure = figures.Figure(name='f', draw=None, rows=('rope',), part='first')
  found = figure.run(request, [init])
  assert found['rows'] == found['files'] == []


def test_finetuning_that_diverged_has_no_score(monkeypatch, tmp_path):
  (part,) = (
    part
    for part in reproduce.get('fire/table1').parts
    if part.name == 'contract_nli'
  )

  def finetune(config, folder, corpus):
    if config.seed == 0 and config.model.encoding == 'nope':
      raise errors.DivergedError('not finite')
    scores = {str(max(config.eval.lengths)): {'scrolls/x': {'score': 5.0}}}
    found = {'scores': scores, 'average': {}, 'refused': {}}
    return found | {'train_seconds': 2.0, 'examples': {'scrolls/x': 3}}

  monkeypatch.setattr(finetuning, '_finetune', finetune)
  monkeypatch.setattr(finetuning.data, 'load', lambda *_: None)
  request = parts.Request('tiny', (0, 1), (), str(tmp_path), 'fire/table1')
  found = part.run(request, ())
  nope, *others = found['rows']
  assert {*nope['values'][0]} == {None} and nope['values'][1][-1] == 5.0
  assert {*nope['refused'].values()} == {'training diverged'}
  assert all(row['values'][0][-1] == 5.0 for row in others)
  assert found['train_seconds'] == 2.0 * (2 * len(found['rows']) - 1)
  assert found['examples'] == 3


@pytest.mark.parametrize(
  'name, scale, override, text',
  [
    ('study/tasks', 'hours', 'train.max_length=24', "no length is 'seen'"),
    ('warping/tableA', 'hours', 'train.max_length=40', "is 'beyond'.*is 40"),
    ('fire/table1', 'small', 'train.evaluate_every=1000', 'no best checkpoint'),
    ('fire/table1', 'tiny', None, None),
    ('study/tasks', 'hours', None, None),
  ],
)
def test_settings_without_a_score_are_found_at_once(
  name, scale, override, text, tmp_path, monkeypatch
):
  monkeypatch.setattr(parts.data, 'check_present', lambda config: None)
  overrides = [f'--config.{override}'] if override else []
  request = parts.Request(scale, (0,), tuple(overrides), str(tmp_path), name)
  kinds = sweeps.TaskSweep, finetuning.Finetuning
  checked = [
    part for part in reproduce.get(name).parts if isinstance(part, kinds)
  ]
  assert checked
  expected = contextlib.nullcontext()
  if text:
    expected = pytest.raises(errors.ConfigError, match=text)
  with expected:
    for part in checked:
      part.check(request)


def test_means_over_parts_of_the_best_seed():
  rows = [parts.table_row('a', 'a', [[1.0], [x]], None, 'max') for x in (3, 5)]
  shared = {
    'kind': 'sweep',
    'unit': '',
    'columns': ['mean'],
    'of_seeds': 'max',
    'standin': None,
    'same_kind': True,
  }
  found = [
    {'name': name, 'rows': [row], **shared}
    for name, row in zip('xy', rows, strict=True)
  ]
  mean = figures.Average(name='m', members=('x', 'y')).run(None, found)
  assert mean['rows'][0]['value'] == [4.0]


def test_the_first_reason_of_a_refusal_is_shown():
  found = [{'refused': {'64': 'a'}}, {'refused': {'64': 'b', '8': 'c'}}]
  assert parts.first_reasons(found) == {'64': 'a', '8': 'c'}


def test_differences_include_what_a_user_sets():
  part = reproduce.get('fire/table4').parts[0]
  override = '--config.model.num_layers=1'
  request = parts.Request('tiny', (0,), (override,), 'runs', 'fire/table4')
  found = part.differences(part.make_config(request), request)
  assert any(x.startswith('model.num_layers: 1, at full size') for x in found)


def test_rows_in_any_order_have_one_folder():
  folders = {
    parts.Request('tiny', (0,), (), 'runs', 'a/b', rows=rows).folder_name
    for rows in (('fire', 'rope'), ('rope', 'fire'))
  }
  assert len(folders) == 1


def test_models_of_other_substitute_data_are_trained_again(monkeypatch):
  part = next(
    part
    for part in reproduce.get('fire/table13').parts
    if getattr(part, 'substitute', None) and part.substitute.write
  )
  request = parts.Request('tiny', (0,), (), 'runs', 'fire/table13')
  folders = set()
  for source in ('one generator', 'another'):
    monkeypatch.setattr(parts.inspect, 'getsource', lambda _, s=source: s)
    folders.add(part.trained_folder(request, part.make_config(request)))
  assert len(folders) == 2


@pytest.mark.parametrize(
  ('low', 'high', 'verdict'),
  [
    ((1.0, 1.1), (2.0, 2.2), 'confirmed'),
    # The seeds differ, the difference does not: pairs are not used.
    ((1.0, 3.0, 2.0), (1.2, 3.1, 2.2), 'not seen'),
    # Equal seeds of one model leave the variance of the other.
    ((1.0, 1.0, 1.0), (1.9, 2.0, 2.2), 'confirmed'),
    ((2.0, 2.2), (1.0, 1.1), 'refuted'),
    # Two seeds of one sign are not much.
    ((1.0, 1.0), (1.1, 1.3), 'not seen'),
    ((1.0, 1.0), (1.3, 0.8), 'not seen'),
    ((1.0, 1.0), (1.0, 1.0), 'not seen'),
    # No spread at all: coarse scores happen to agree.
    ((1.0, 1.0), (2.0, 2.0), 'not seen'),
    ((1.0,), (2.0,), 'not seen'),
    ((1.0, None), (2.0, 2.0), 'not measured'),
  ],
)
def test_verdicts(low, high, verdict):
  claim = experiment_lib.Claim(
    'X', 'low', experiment_lib.parse_comparisons('part: low < high @ 1')
  )
  judged = claims.judge(claim, result(low, high))
  assert judged['verdict'] == verdict
  if verdict == 'confirmed':
    (compared,) = judged['comparisons']
    assert compared['effect'] == pytest.approx(
      sum(b - a for a, b in zip(low, high, strict=True)) / len(low)
    )


def test_chosen_rows_do_not_confirm_claims_about_others():
  claim = experiment_lib.Claim(
    'X', '', experiment_lib.parse_comparisons('part: low < high|other @ 1')
  )
  for scores, verdict in (
    (((1.0, 1.1), (2.0, 2.2)), 'confirmed'),
    (((2.0, 2.2), (1.0, 1.1)), 'refuted'),
  ):
    found = result(*scores)
    assert claims.judge(claim, found)['verdict'] == verdict
    chosen = claims.judge(claim, found | {'rows': ['low', 'high']})
    wanted = 'not measured' if verdict == 'confirmed' else verdict
    assert chosen['verdict'] == wanted


def test_rows_that_are_not_trained_yet_confirm_nothing():
  claim = experiment_lib.Claim(
    'X', '', experiment_lib.parse_comparisons('part: low < high|other @ 1')
  )
  found = result((1.0, 1.1), (2.0, 2.2))
  assert claims.judge(claim, found, True)['verdict'] == 'not measured'


@pytest.mark.parametrize('missing', [(None, 1.1), (None, None)])
def test_models_that_diverged_confirm_nothing(missing):
  claim = experiment_lib.Claim(
    'X', '', experiment_lib.parse_comparisons('part: low < high|other @ 1')
  )
  found = result((1.0, 1.1), (2.0, 2.2))
  other = {'name': 'other', 'values': [[x] for x in missing]}
  found['parts'][0]['rows'].append(other)
  judged = claims.judge(claim, found)
  assert judged['verdict'] == 'not measured'
  # Other comparisons still refute.
  found = result((2.0, 2.2), (1.0, 1.1))
  found['parts'][0]['rows'].append(other)
  assert claims.judge(claim, found)['verdict'] == 'refuted'


@pytest.mark.slow
@pytest.mark.parametrize(
  ('seeds', 'comparisons', 'dominant', 'bound'),
  [
    (3, 25, False, 0.08),
    (2, 25, False, 0.16),
    (3, 25, True, 0.14),
    (2, 25, True, 0.39),
  ],
)
def test_refuted_as_rarely_as_stated(seeds, comparisons, dominant, bound):
  """Models that do not differ, by the bounds of docs/results.md."""
  rng = np.random.default_rng(0)
  draws, windows = 3000, 24
  spread_NxCx2 = np.exp(rng.normal(size=(draws, comparisons, 2)))
  if dominant:
    spread_NxCx2[:] = 1.0, 0.05
  score_NxCx2xS = spread_NxCx2[..., None] * rng.normal(
    size=(draws, comparisons, 2, seeds)
  )
  share = 0.03 if dominant else 0.1
  true_NxC = share * (spread_NxCx2**2).sum(-1) / seeds
  noise_NxC = rng.normal(size=true_NxC.shape) * np.sqrt(true_NxC)
  seen_NxC = rng.chisquare(windows - 1, true_NxC.shape) / (windows - 1)
  seen_NxC *= true_NxC
  variance_NxCx2 = score_NxCx2xS.var(-1, ddof=1) / seeds
  variances = np.concatenate([variance_NxCx2, seen_NxC[..., None]], -1)
  mean_NxC = score_NxCx2xS.mean(-1) @ [-1, 1] + noise_NxC
  refuted = 0
  freedoms = (seeds - 1, seeds - 1, windows - 1)
  for mean_C, variance_Cx3 in zip(mean_NxC, variances, strict=True):
    tests = [
      claims.Test(mean, 0.0, tuple(each), freedoms)
      for mean, each in zip(mean_C, variance_Cx3, strict=True)
    ]
    refuted += 'fails' in claims._outcomes(tests)
  assert refuted / draws < bound


@pytest.mark.parametrize(
  ('fields', 'verdict'),
  [
    ({}, 'refuted'),
    ({'same_kind': False}, 'not comparable'),
    ({'of': ['a'], 'of_all': 3}, 'not measured'),
    ({'of': ['a', 'b'], 'of_all': 4}, 'refuted'),
  ],
)
def test_verdicts_on_other_data_and_on_few_parts(fields, verdict):
  claim = experiment_lib.Claim(
    'X', 'low', experiment_lib.parse_comparisons('part: low < high @ 1')
  )
  found = result((2.0, 2.2), (1.0, 1.1))
  found['parts'][0] |= fields
  # Other parts do not matter.
  found['parts'].append({**found['parts'][0], 'name': 'x', 'same_kind': False})
  assert claims.judge(claim, found)['verdict'] == verdict


@pytest.mark.parametrize(
  ('scale', 'verdict'),
  [
    ('paper', 'refuted'),
    ('small', 'not comparable'),
    ('hours', 'not comparable'),
    ('cpu', 'not comparable'),
  ],
)
def test_small_scales_do_not_decide_what_needs_the_full_size(scale, verdict):
  text = '[t] a table\nX1*: low\n  part: low < high @ 1'
  (experiment,) = experiment_lib.read('x', text, {'t': ()}, {})
  (claim,) = experiment.claims
  assert claim.key == 'X1'
  found = result((2.0, 2.2), (1.0, 1.1)) | {'scale': scale}
  assert claims.judge(claim, found)['verdict'] == verdict
  ordinary = dataclasses.replace(claim, full_size=False)
  assert claims.judge(ordinary, found)['verdict'] == 'refuted'


@pytest.mark.parametrize(
  ('earlier', 'verdict', 'text'),
  [
    # (low, high) after 1 and 2 steps; after 4, low is lower.
    (
      [((1.0, 1.1), (2.0, 2.2)), ((1.0, 1.1), (2.0, 2.2))],
      'confirmed',
      '1 holds; at all steps tested, from 1 on',
    ),
    (
      [((2.0, 2.2), (1.0, 1.1)), ((1.0, 1.0), (1.3, 0.8))],
      'depends on training',
      '1 holds; refuted from step 1, not seen from step 2, '
      'confirmed from step 4',
    ),
    (
      [((1.0, 1.0), (1.3, 0.8)), ((1.0, 1.1), (2.0, 2.2))],
      'confirmed',
      '1 holds; not seen from step 1, confirmed from step 2',
    ),
  ],
)
def test_verdicts_along_training(earlier, verdict, text):
  claim = experiment_lib.Claim(
    'X', 'low', experiment_lib.parse_comparisons('part: low < high @ 1')
  )
  found = result((1.0, 1.1), (2.0, 2.2))
  for n, row in enumerate(found['parts'][0]['rows']):
    values = [
      [*([pair[n][seed]] for pair in earlier), row['values'][seed]]
      for seed in (0, 1)
    ]
    row['trajectory'] = {'steps': [1, 2, 4], 'values': values}
  judged = claims.judge(claim, found)
  assert judged['verdict'] == verdict
  assert reproduction.verdict(judged) == f'{verdict} ({text})'
  # Windows that differ by step decide at their step.
  if verdict == 'confirmed':
    low, high = found['parts'][0]['rows']
    for row, last in ((low, 0.0), (high, 9.0)):
      row['trajectory']['windows'] = [
        [{'mean': [x, -x], 'noise': 0.0}] for x in (last, 0.0, 0.0)
      ]
    unclear, *others = claims.judge(claim, found)['by_step']
    assert unclear == [1, 'not seen']
    assert others == judged['by_step'][1:]
  # Those after all training are known without those of its trajectory.
  if verdict == 'confirmed':
    for row, last in ((low, 0.0), (high, 9.0)):
      del row['trajectory']['windows']
      row['windows'] = [{'mean': [last, -last], 'noise': 0.0}]
    by_step = claims.judge(claim, found)['by_step']
    assert [kind for _, kind in by_step] == [
      *[kind for _, kind in judged['by_step'][:-1]],
      'not seen',
    ]
    for row in (low, high):
      del row['windows']
  # Windows of the last step are not those of earlier ones.
  (part,) = found['parts']
  row = part['rows'][0] | {'windows': [{'mean': [0.0], 'noise': 0.0}]}
  row['trajectory'] = {k: row['trajectory'][k] for k in ('steps', 'values')}
  results = {'parts': [part | {'rows': [row]}]}
  (at_first,) = claims.at_step(results, 1)['parts']
  assert at_first['rows'][0]['windows'] is None
  # The history is that of the steps at which all compared rows were tested.
  more = part['rows'][1] | {'name': 'other'}
  more['trajectory'] = more['trajectory'] | {'steps': [1, 3, 4]}
  part['rows'].append(more)
  other = experiment_lib.parse_comparisons('part: low < other @ 1')
  compared = claims.judge(dataclasses.replace(claim, comparisons=other), found)
  assert [step for step, _ in compared['by_step']] == [1, 4]
  assert [step for step, _ in claims.judge(claim, found)['by_step']] == [
    1,
    2,
    4,
  ]
  part['rows'][0]['trajectory']['steps'] = [1, 3, 4]
  head, body = reproduction.trajectory(part)
  assert head[2:] == ['step 1', 'step 2', 'step 3', 'step 4']
  # Each row has a line for one length, and one for all lengths.
  assert [line.index('–') for line in body] == [3, 3, 4, 4, 3, 3]
  compared = claims.judge(claim, found)
  assert [step for step, _ in compared['by_step']] == [1, 4]
  part['rows'][0]['trajectory']['steps'] = [1, 3, 5]
  judged = claims.judge(claim, found)
  assert judged['verdict'] == verdict.replace(
    'depends on training', 'confirmed'
  )
  assert 'by_step' not in judged


def test_models_from_which_others_start_are_those_after_training():
  """At each step, a finetuned model is compared with the final first one."""
  claim = experiment_lib.Claim(
    'X', '', experiment_lib.parse_comparisons('part: low < first: low @ 1')
  )
  found = result((1.0, 1.1), (0.0, 0.0))
  found['parts'].append(result((2.0, 2.2), (0.0, 0.0))['parts'][0])
  found['parts'][1]['name'] = 'first'
  for part, earlier in zip(found['parts'], (3.0, 9.0), strict=True):
    row = part['rows'][0]
    row['trajectory'] = {
      'steps': [1, 2],
      'values': [[[earlier + x], [x]] for (x,) in row['values']],
    }
  confirmed = [[1, 'confirmed'], [2, 'confirmed']]
  assert claims.judge(claim, found)['by_step'] == confirmed
  found['parts'][0]['init_part'] = 'first'
  assert claims.judge(claim, found)['by_step'] == [
    [1, 'refuted'],
    [2, 'confirmed'],
  ]


def test_scale_hours():
  part = reproduce.get('fire/table4').parts[0]
  cpu, hours = (
    part.make_config(parts.Request(scale, (0,), (), 'runs', 'fire/table4'))
    for scale in ('cpu', 'hours')
  )
  assert hours.train.steps == 12 * cpu.train.steps
  assert hours.eval.steps == tuple(
    hours.train.steps // n for n in (16, 8, 4, 2)
  )
  assert not cpu.eval.steps
  assert hours.data.source == cpu.data.source
  short = parts.Request(
    'hours', (0,), ('--config.train.steps=160',), 'runs', 'fire/table4'
  )
  assert part.make_config(short).eval.steps == (10, 20, 40, 80)
  shorter = dataclasses.replace(short, overrides=('--config.train.steps=5',))
  assert part.make_config(shorter).eval.steps == (1, 2)
  experiment = reproduce.get('fire/table4')
  assert experiment.seeds_at('hours') == (0, 1, 2)
  assert experiment.seeds_at('cpu') == experiment.seeds


def test_the_folder_of_a_sweep_does_not_depend_on_tested_steps():
  """Finished sweeps are found again."""
  folders = set()
  for more in ((), ('--config.eval.steps=(2, 4)',)):
    request = parts.Request('cpu', (0,), more, 'runs', 'warping/tableA')
    _, _, folder = (
      reproduce.get('warping/tableA').parts[0].prepared(request, ())
    )
    folders.add(folder)
  assert len(folders) == 1


def test_settings_of_a_part():
  def prepared(name, number=0):
    experiment = reproduce.get(name)
    part = experiment.parts[number]
    request = parts.Request('hours', (0,), (), 'runs', name)
    config, _, folder = part.prepared(request, ())
    return part, config, folder, part.differences(config, request)

  part, config, folder, notes = prepared('study/rate', 1)
  assert config.optimizer.encoding_rate == 10.0
  assert notes == ['optimizer.encoding_rate: 10.0']
  # Runs at the plain rate are those of other parts of the study.
  _, plain, shared, notes = prepared('study/rate')
  assert plain.optimizer.encoding_rate == 1.0 and notes == []
  assert shared == prepared('study/interpolation')[2] != folder
  spec = part.runs(config, 'hours')['raw distance']
  interpolation = prepared('study/interpolation')[0]
  assert spec == interpolation.runs(plain, 'hours')['raw distance']
  ranges = prepared('study/range')[0].runs(plain, 'hours')
  random = prepared('study/random_positions')[0].runs(plain, 'hours')
  assert ranges['range 1x'] == random['rope, randomized']
  assert 'max_position=20480' in ranges['range 10x']
  # English text, tasks, regularization and the grid.
  text, config, folder, notes = prepared('study/text')
  assert config.data.source == 'docstrings' and folder != shared
  assert "data.source: 'docstrings'" in notes
  assert prepared('study/tasks')[2] == prepared('study/range', 1)[2]
  assert prepared('study/tasks', 1)[1].task.startswith('retrieval/niah_single')
  assert prepared('study/regularization')[2] == shared
  strong = prepared('study/regularization', 2)[1]
  assert strong.optimizer.weight_decay == 10 * plain.optimizer.weight_decay
  assert prepared('study/regularization', 3)[1].model.dropout_rate == 0.1
  grid, _, folder, _ = prepared('study/grid')
  assert folder == shared
  parsed = grid.parse(plain, 'hours')
  # The names of models are those of other parts of the study.
  for name in ('rope', 'rope, randomized', 'fire'):
    spec = prepared('study/random_positions')[0].parse(plain, 'hours')[name]
    assert parsed[name] == spec
  assert len([run for run in parsed.values() if not run.tested_as]) == 31
  assert parsed['rope, interpolated, log n'].tested_as == (
    'rope',
    'interpolated(train_length=128)',
    'log_n(train_length=128)',
    None,
  )
  assert parsed['rope, randomized, log n'] == parsed[
    'rope, randomized'
  ]._replace(
    tested_as=parsed['rope, randomized']._replace(
      attention_scale='log_n(train_length=128)'
    )
  )
  assert 'shaw, interpolated' not in parsed


def test_a_step_that_one_seed_lacks_is_left_out():
  curve = {
    'steps': [1, 2, 4],
    'loss': [[3.0], [2.0], [1.0]],
    'window_loss': [[[3.0]], [[2.0]], [[1.0]]],
  }
  less = {key: [one[0], one[2]] for key, one in curve.items()}
  found = curves._trajectory(
    [{'trajectory': curve}, {'trajectory': less}], 'loss'
  )['trajectory']
  assert found['steps'] == [1, 4]
  assert found['values'] == [[[3.0], [1.0]]] * 2
  assert len(found['windows']) == 2
  last = {key: one[2:] for key, one in curve.items()}
  both = [{'trajectory': curve}, {'trajectory': last}]
  assert curves._trajectory(both, 'loss') == {}


@pytest.mark.slow
def test_trajectories_are_kept_and_drawn(tmp_path):
  experiment = dataclasses.replace(
    reproduce.get('study/biases'),
    parts=(
      dataclasses.replace(
        reproduce.get('study/biases').parts[0],
        rows=(experiment_lib.Row('nope', 'nope'),),
      ),
    ),
    claims=(),
  )
  overrides = ['--config.eval.steps=(4,)', '--config.model.num_layers=1']
  found = run.reproduce(experiment, 'tiny', tmp_path, (0, 1), overrides)
  (part,) = found['parts']
  (row,) = part['rows']
  steps, values = row['trajectory']['steps'], row['trajectory']['values']
  assert steps == [4, 8]
  assert [seed[-1] for seed in values] == row['values']
  assert values[0][0] != values[0][1]
  for n, windows in enumerate(row['trajectory']['windows']):
    mean = np.mean([seed[n] for seed in values], 0)
    by_window = [np.mean(column['mean']) for column in windows]
    np.testing.assert_allclose(by_window, mean, rtol=1e-5)
  assert row['windows'] == row['trajectory']['windows'][-1]
  # The same models in another unit, whose windows are linear in those losses.
  (curves_part,) = experiment.parts
  other = dataclasses.replace(
    experiment,
    parts=(dataclasses.replace(curves_part, unit='perplexity'),),
  )
  again = run.reproduce(other, 'tiny', tmp_path, (0, 1), overrides)
  (perplexities,) = again['parts'][0]['rows']
  losses = np.array(row['values'])
  assert perplexities['values'][1] == pytest.approx(np.exp(losses[1]))
  slope = np.exp(losses).mean(0)
  for n, column in enumerate(perplexities['windows']):
    mean = np.array(column['mean'])
    assert mean.mean() == pytest.approx(perplexities['value'][n], rel=1e-6)
    # Seeds have nearly the same perplexity, and so nearly the same slope.
    want = np.ptp(row['windows'][n]['mean']) * slope[n]
    assert np.ptp(mean) == pytest.approx(want, rel=0.02)
  head, body = reproduction.trajectory(part)
  assert head == ['run', 'score', 'step 4', 'step 8']
  names = ['1x', '16x - 1x', '1x 2x 4x 8x 16x']
  assert [line[:2] for line in body] == [['nope', name] for name in names]
  means = np.mean([seed[0] for seed in values], 0)
  assert body[2][2] == ' '.join(f'{x:.3f}' for x in means)
  gaps = [seed[1][4] - seed[1][0] for seed in values]
  half = abs(gaps[0] - gaps[1]) / 2
  assert body[1][3] == f'{sum(gaps) / 2:.3f} ±{half:.3f}'
  folder = tmp_path / found['folder']
  assert folder / 'code, by step.png' in reproduction.write(found, folder)
  assert (folder / 'code, by step.png').stat().st_size > 10_000
  assert part['differences'] == []
  (note,) = reproduction.notes(part)
  assert note == 'intervals include the variance over 2 test windows'
  part['rows'] += [{'name': 'old, one'}, {'name': 'two'}]
  rows = 'these rows: old, one; two'
  assert reproduction.notes(part)[-1] == f'{note}, but not for {rows}'
  (note,) = reproduction.notes(part | {'kind': 'average'})
  assert '2 test examples of each length; for these rows, that' in note
  assert note.endswith(': old, one; two')


def test_trajectories_up_to_the_training_length(tmp_path, monkeypatch):
  """They have no gap to longer contexts."""
  values = [[[3.0, 4.0], [1.0, 2.0]]]
  row = {'name': 'a', 'values': [[1.0, 2.0]]}
  row['trajectory'] = {'steps': [4, 8], 'values': values}
  part = {'columns': [0.5, 1], 'unit': 'nats', 'train_length': 64}
  part['rows'] = [row]
  _, body = reproduction.trajectory(part)
  assert body == [
    ['a', '1x', '4.000', '2.000'],
    ['a', '0.5x 1x', '3.000 4.000', '1.000 2.000'],
  ]
  drawn = []
  monkeypatch.setattr(
    plots, 'write', lambda *arguments: drawn.append(arguments)
  )
  reproduction.draw_trajectories(part, tmp_path / 'by_step.png')
  ((_, draw, [(steps, losses)], names, label),) = drawn
  assert (draw, steps, names) == (plots.by_step, [4, 8], ['a'])
  assert [*losses] == [4.0, 2.0] and label == 'length 64, nats'


def test_one_comparison_that_fails_refutes():
  comparisons = (
    *experiment_lib.parse_comparisons('part: low < high @ 1'),
    *experiment_lib.parse_comparisons('part: low > high @ 1'),
  )
  claim = experiment_lib.Claim('X', 'both', comparisons)
  judged = claims.judge(claim, result((1.0, 1.1), (2.0, 2.2)))
  assert judged['verdict'] == 'refuted'
  missing = experiment_lib.Comparison(('part', 'low', 1), ('other', 'high', 1))
  claim = experiment_lib.Claim('X', 'nothing', (missing,))
  assert (
    claims.judge(claim, result((1.0,), (2.0,)))['verdict'] == 'not measured'
  )


def test_claims_of_numbers_and_margins():
  found = result((1.0, 1.1), (2.0, 2.2))
  low, high = ('part', 'low', 1), ('part', 'high', 1)
  for less, verdict in (
    (experiment_lib.Comparison(low, 1.5), 'confirmed'),
    (experiment_lib.Comparison(1.5, low), 'refuted'),
    (experiment_lib.Comparison(low, high, margin=0.5), 'confirmed'),
    (experiment_lib.Comparison(low, high, margin=2.0), 'refuted'),
    (experiment_lib.Comparison(high, low, margin=-2.0), 'confirmed'),
    (experiment_lib.Comparison(low, high, 0.3, relative=True), 'confirmed'),
    (experiment_lib.Comparison(low, high, 0.7, relative=True), 'refuted'),
    (experiment_lib.Comparison(high, low, -1.5, relative=True), 'confirmed'),
  ):
    judged = claims.judge(experiment_lib.Claim('X', '', (less,)), found)
    assert judged['verdict'] == verdict, less


def test_a_mean_of_bests_is_drawn(tmp_path, monkeypatch):
  """It may be above the best of the means."""
  part = {
    'columns': ['beyond'],
    'unit': 'percent',
    'rows': [
      {'name': 'a', 'values': [[1.0], [2.0]], 'value': [2.5], 'paper': None},
      {'name': 'b', 'values': [[1.0], [None]], 'value': [None], 'paper': None},
    ],
  }
  labels = []
  monkeypatch.setattr(
    plots,
    'finish',
    lambda figure, path: labels.extend(figure.axes[0].get_yticklabels()),
  )
  plots.bars_beside(part, tmp_path / 'bars.png')
  assert [one.get_text() for one in labels] == ['b (no score)', 'a']
  monkeypatch.undo()
  plots.plt.close('all')
  plots.bars_beside(part, tmp_path / 'bars.png')
  assert (tmp_path / 'bars.png').stat().st_size > 1000


def test_what_no_seed_changes_is_exact():
  found = result((1.0, 1.0), (2.0, 2.0))
  found['parts'][0]['exact'] = True
  for row, other, verdict in (
    ('low', 'high', 'confirmed'),
    ('high', 'low', 'refuted'),
  ):
    comparisons = experiment_lib.parse_comparisons(f'part: {row} < {other} @ 1')
    claim = experiment_lib.Claim('X', '', comparisons)
    assert claims.judge(claim, found)['verdict'] == verdict


@pytest.mark.some(4)
@pytest.mark.parametrize('seeds', (2, 3, 5))
@pytest.mark.parametrize('noise', [(1, 1), (0.2, 1), (1, 0.2)])
def test_equal_models_rarely_differ(seeds, noise):
  """Rows against a shared reference, which may be noisier than they are."""
  generator = np.random.default_rng(0)
  comparisons = experiment_lib.parse_comparisons('part: a|b|c < reference @ 1')
  claim = experiment_lib.Claim('X', '', comparisons)
  trials, held = 500, 0
  for _ in range(trials):
    spreads = {**dict.fromkeys('abc', noise[0]), 'reference': noise[1]}
    rows = [
      {'name': name, 'values': generator.normal(0, x, (seeds, 1)).tolist()}
      for name, x in spreads.items()
    ]
    part = {'name': 'part', 'columns': [1], 'rows': rows}
    found = {'scale': 'cpu', 'seeds': [*range(seeds)], 'parts': [part]}
    judged = claims.judge(claim, found)
    held += [one['outcome'] for one in judged['comparisons']].count('holds')
  # 5 %, and twice the standard error of 500 draws of the reference.
  assert 0.01 < held / trials / 3 < 0.07


@pytest.mark.some(3)
@pytest.mark.parametrize('seeds', (2, 3, 5))
@pytest.mark.parametrize('noise', [0.0, 1.0])
def test_equal_paired_scores_rarely_differ(seeds, noise):
  """A model at two lengths, tested on windows with `noise` or without."""
  generator = np.random.default_rng(0)
  comparisons = experiment_lib.parse_comparisons('part: low @ 1 < @ 2')
  claim = experiment_lib.Claim('X', '', comparisons)
  trials, held = 1000, 0
  for _ in range(trials):
    found = result([0] * seeds, [0] * seeds)
    found['parts'][0]['columns'] = [1, 2]
    row = found['parts'][0]['rows'][0]
    loss_CxSxW = noise * generator.normal(0, 1, (2, 1, 24))
    # Noise of a seed on a window, the same at both lengths.
    loss_CxSxW = loss_CxSxW + 2 * noise * generator.normal(0, 1, (seeds, 24))
    # Noise of a seed, the same at both lengths and not.
    loss_CxSxW += generator.normal(0, 1, (seeds, 1))
    loss_CxSxW += generator.normal(0, 0.1, (2, seeds, 1))
    row['values'] = loss_CxSxW.mean(2).T.tolist()
    if noise:
      tested = [
        {'loss': [0.0, 0.0], 'window_loss': loss_CxSxW[:, n]}
        for n in range(seeds)
      ]
      row['windows'] = curves.window_scores(tested, 'loss')
    held += claims.judge(claim, found)['verdict'] == 'confirmed'
  assert 0.02 < held / trials < 0.065


def test_paired_scores():
  """Seeds that differ by much, all of which improve."""
  low, high = (1.0, 2.0, 3.0), (1.2, 2.3, 3.4)
  found = result(low, high)
  comparison = experiment_lib.parse_comparisons('part: low < high @ 1')[0]
  paired = dataclasses.replace(comparison, paired=True)
  test = claims.test(found, paired)
  # Differences of 0.2, 0.3 and 0.4.
  assert test.mean == pytest.approx(0.3)
  assert test.error == pytest.approx(0.1 / 3**0.5)
  assert test.freedom == pytest.approx(2)
  for one, verdict in ((comparison, 'not seen'), (paired, 'confirmed')):
    claim = experiment_lib.Claim('X', '', (one,))
    assert claims.judge(claim, found)['verdict'] == verdict
  # Equal differences have no variance, whatever is lost in rounding.
  coarse = result((100 * 0.25, 100 * 0.37), (100 * 0.29, 100 * 0.41))
  assert claims.test(coarse, paired).variances is None
  # A margin of 50 % is one of each seed: bounds of 0.6, 1.15 and 1.7.
  half = dataclasses.replace(paired, margin=0.5, relative=True)
  assert claims.test(found, half).error == pytest.approx(0.45 / 3**0.5)
  # The noise of windows is not subtracted.
  for row, mean_W in zip(
    found['parts'][0]['rows'], ([1.0, 2.0, 3.0], [2.0, 2.0, 5.0]), strict=True
  ):
    row['windows'] = [{'mean': mean_W, 'noise': 0.5}]
  assert claims.test(found, paired).variances[2:] == pytest.approx((1 / 3,))
  assert claims.test(found, comparison).variances[2:] == pytest.approx((2 / 9,))


@pytest.mark.parametrize(
  ('low', 'high', 'margin', 'verdict'),
  [
    (0, 50, 0, 'confirmed'),
    (0, 0, 0, 'not seen'),
    (100, 100, 0, 'not seen'),
    # Not worse by five points.
    (100, 100, -5, 'confirmed'),
    (100, 94, -5, 'not seen'),
    (100, 80, -5, 'refuted'),
    (99, 100, 0, 'not seen'),
  ],
)
@pytest.mark.parametrize('paired', [False, True])
def test_right_answers_of_all_seeds(low, high, margin, verdict, paired):
  """Equal shares of few examples are not exact."""
  found = result([low] * 3, [high] * 3)
  comparison = experiment_lib.Comparison(
    ('part', 'low', 1), ('part', 'high', 1), margin, paired=paired
  )
  claim = experiment_lib.Claim('X', '', (comparison,))
  assert claims.judge(claim, found)['verdict'] == 'not seen'
  for row, mean in zip(found['parts'][0]['rows'], (low, high), strict=True):
    share = (mean + 1) / 102
    variance = 100**2 * share * (1 - share) / 100
    row['examples'] = [{'variance': variance, 'count': 100}]
  assert claims.judge(claim, found)['verdict'] == verdict


def test_variance_due_to_test_examples():
  comparison = experiment_lib.Comparison(
    ('part', 'low', 1), ('part', 'high', 1)
  )
  found = result([10.0, 20.0], [40.0, 60.0])
  low, high = found['parts'][0]['rows']
  low['examples'] = [{'variance': 3.0, 'count': 50}]
  high['examples'] = [{'variance': 4.0, 'count': 30}]
  test = claims.test(found, comparison)
  assert test.variances == pytest.approx((25, 100, 7))
  assert test.freedoms == (1, 1, 29)
  # A constant has none, and those of earlier versions are unknown.
  constant = dataclasses.replace(comparison, low=10.0)
  assert claims.test(found, constant).variances == pytest.approx((0, 100, 4))
  low['examples'][0]['count'] = 1
  assert claims.test(found, comparison).variances == pytest.approx((25, 100))
  low['examples'] = [None]
  assert claims.test(found, comparison).variances == pytest.approx((25, 100, 4))
  del low['examples'], high['examples']
  assert claims.test(found, comparison).variances == pytest.approx((25, 100))


def test_answers_to_single_examples():
  """Models that err on the same examples differ by those of one only."""
  found = result([90.0, 90.0, 90.0], [93.0, 94.0, 95.0])
  low, high = found['parts'][0]['rows']
  right_ExR = np.ones((100, 2))
  right_ExR[:10, 0] = 0
  right_ExR[:6, 1] = 0
  for row, right_E in zip((low, high), right_ExR.T, strict=True):
    row['examples'] = [{'variance': 9.0, 'count': 100}]
    row['windows'] = [{'mean': (100 * right_E).tolist(), 'noise': 0.0}]
  comparison = experiment_lib.Comparison(
    ('part', 'low', 1), ('part', 'high', 1)
  )
  test = claims.test(found, comparison)
  # Four of 100 differ; two more examples are right for one model each.
  differences = 100**2 * 0.04 * 0.96 * 100 / 99
  assert test.variances[2] == pytest.approx(differences / 100 + 2)
  assert test.freedoms[2] == 99
  # Constant scores leave one more example.
  constant = dataclasses.replace(comparison, low=80.0)
  errors = 100**2 * 0.06 * 0.94 * 100 / 99
  assert claims.test(found, constant).variances[2] == pytest.approx(
    errors / 100 + 1
  )


@pytest.mark.some(3)
@pytest.mark.parametrize('shared', [0.0, 0.5, 1.0])
@pytest.mark.parametrize('known', [False, True])
def test_seeds_that_share_test_examples(shared, known):
  """Two equal models are not told apart more often than the level says.

  Of a share of the examples, all seeds of a model answer alike.
  """
  rng = np.random.default_rng(0)
  trials, seeds, examples, p = 3000, 3, 100, 0.3
  shape = (trials, 2, seeds, examples)
  own, common = rng.random(shape) < p, rng.random(shape)[:, :, :1] < p
  right = np.where(rng.random(shape)[:, :, :1] < shared, common, own)
  scores = 100 * right
  comparison = experiment_lib.Comparison(
    ('part', 'low', 1), ('part', 'high', 1)
  )
  held = 0
  for both in scores:
    found = result(*both.mean(-1))
    for row, values in zip(found['parts'][0]['rows'], both, strict=True):
      share = (values.mean() + 1) / (examples + 2)
      variance = 100**2 * share * (1 - share) / examples
      row['examples'] = [{'variance': variance, 'count': examples}]
      if known:
        row['windows'] = [curves.crossed(values)]
    test = claims.test(found, comparison)
    t = test.mean / test.error
    held += stats.t.sf(t, test.freedom) < claims.LEVEL
  assert (0.04 if shared == 1.0 else 0.0) <= held / trials <= 0.06


@pytest.mark.parametrize(
  ('name', 'line', 'paired'),
  [
    # A model at two lengths, and one that is tested in two ways.
    ('warping/table1', 'wikitext103: rope @ 1 < @ 2', True),
    ('warping/table1', 'wikitext103: interpolated < rope @ 2', True),
    ('warping/table1', 'wikitext103: rope < randomized, 8072 @ 1', False),
    # A model and one finetuned from it, and two finetuned from one.
    ('randomized/table2', 'pretrained: rope < finetuned: rope @ 4', True),
    ('randomized/table2', 'finetuned: alibi < rope, randomized @ 4', True),
    ('randomized/table2', 'pretrained: rope < finetuned: alibi @ 4', True),
    ('fire/yarn', 'pretrained: fire @ 4 < finetuned: yarn @ 1', False),
    ('fire/yarn', 'pretrained: rope @ 4 < finetuned: yarn @ 1', True),
    ('fire/yarn', 'finetuned: fire < yarn @ 1', False),
    # Answers of models that start from nothing where data is a substitute.
    ('fire/figure3', 'narrative_qa: rope < rope-pi, 8192 @ 1', False),
    # Numbers that are measured on models.
    ('su/entropy', 'entropy: rope, log n < rope @ growth', True),
    # Means of other parts, and constants.
    ('warping/tableA', 'three tasks: rope @ all < @ beyond', True),
    ('warping/tableA', 'three tasks: rope < alibi @ all', False),
    ('warping/table1', 'wikitext103: rope @ 1 < 2', False),
  ],
)
def test_which_scores_are_paired(name, line, paired):
  parts_of = reproduce.EXPERIMENTS[name].parts
  (comparison,) = experiment_lib.parse_comparisons(line, parts_of)
  assert comparison.paired == paired


def test_claims_have_paired_scores():
  (claim,) = reproduce.EXPERIMENTS['randomized/table2'].claims
  assert all(one.paired for one in claim.comparisons)


@pytest.mark.some(6)
@pytest.mark.parametrize('seeds', [2, 3, 5])
@pytest.mark.parametrize(
  ('of_seeds', 'both', 'held_by_seeds'),
  [
    # Seeds, alike in both models or not, and what is specific to a seed and a
    # window, beside the differences between windows.
    ((0.1, 0.1), 0.1, 0.1),
    ((0.0, 0.0), 1.0, 0.0),
    ((0.0, 1.5), 0.1, 0.0),
    ((0.3, 0.3), 1.0, 0.0),
  ],
)
def test_equal_models_rarely_differ_on_few_windows(
  of_seeds, both, held_by_seeds, seeds
):
  """Models of equal expected loss that differ on the windows tested."""
  generator = np.random.default_rng(0)
  comparisons = experiment_lib.parse_comparisons('part: low < high @ 1')
  claim = experiment_lib.Claim('X', '', comparisons)
  trials, held = 1000, {'seeds': 0, 'windows': 0}
  for _ in range(trials):
    found, windows = result([0] * seeds, [0] * seeds), []
    # Some windows are harder for both models.
    common_W = generator.normal(0, 5, 24)
    for row, of_seed in zip(found['parts'][0]['rows'], of_seeds, strict=True):
      loss_SxW = common_W + generator.normal(0, 1, 24)
      loss_SxW = loss_SxW + generator.normal(0, of_seed, (seeds, 1))
      loss_SxW += generator.normal(0, both, loss_SxW.shape)
      row['values'] = loss_SxW.mean(1, keepdims=True).tolist()
      tested = [{'loss': [0.0], 'window_loss': [one]} for one in loss_SxW]
      windows.append(curves.window_scores(tested, 'loss'))
    held['seeds'] += claims.judge(claim, found)['verdict'] == 'confirmed'
    for row, scores in zip(found['parts'][0]['rows'], windows, strict=True):
      row['windows'] = scores
    held['windows'] += claims.judge(claim, found)['verdict'] == 'confirmed'
  assert 0.015 < held['windows'] / trials < 0.065
  assert held['seeds'] / trials >= held_by_seeds


def test_variance_over_windows():
  found = result((1.0, 1.2), (2.0, 2.2))
  low, high = found['parts'][0]['rows']

  def term(line):
    (comparison,) = experiment_lib.parse_comparisons(line)
    test = claims.test(found, comparison)
    return dict(zip(test.freedoms[2:], test.variances[2:], strict=True))

  low['windows'] = [{'mean': [1.1, 1.0, 1.2], 'noise': 0.004}]
  high['windows'] = [{'mean': [2.1, 1.8, 2.4], 'noise': 0.008}]
  # The differences on the windows are 1, 0.8 and 1.2; two seeds have half of
  # the noise.
  want = (0.04 - 0.006) / 3
  assert term('part: low < high @ 1') == pytest.approx({2: want})
  comparison = experiment_lib.parse_comparisons('part: low < high @ 1')[0]
  test = claims.test(found, comparison)
  assert test.error == pytest.approx((0.02 + want) ** 0.5)
  assert test.freedom == pytest.approx((0.02 + want) / (0.01 + want / 2))
  # A constant is the same on all windows; a margin of 50 % halves the higher.
  assert term('part: low @ 1 < 2') == pytest.approx({2: 0.008 / 3})
  # Their variance of 0.0025 is less than half of the noise, 0.003.
  assert term('part: low < high @ 1 by 50%') == {2: 0.0}
  for row in (low, high):
    row['windows'][0]['noise'] /= 10
  want_half = (0.0025 - 0.0003) / 3
  assert term('part: low < high @ 1 by 50%') == pytest.approx({2: want_half})
  for row in (low, high):
    row['windows'][0]['noise'] *= 10
  # Windows of another part are used if they are the same.
  other = found['parts'][0] | {'name': 'other'}
  found['parts'].append(other)
  across = 'part: low @ 1 < other: high @ 1'
  assert term(across) == {}
  for part in found['parts']:
    part['windows_digest'] = 'abcd'
  assert term(across) == pytest.approx({2: want})
  other['windows_digest'] = 'ef01'
  assert term(across) == {}
  # Those of an earlier step are the same, even without a digest.
  for part in found['parts']:
    del part['windows_digest']
  other['name'] = 'part' + experiment_lib.EARLY
  earlier = f'part: low @ 1 < {other["name"]}: high @ 1'
  assert term(earlier) == pytest.approx({2: want})
  # Nor are windows of one of the rows, or a single window.
  for windows in ([None], [{'mean': [2.0], 'noise': 0.0}]):
    low['windows'] = high['windows'] = windows
    assert term('part: low < high @ 1') == {}
  del low['windows']
  assert term('part: low < high @ 1') == {}


def test_noise_of_a_seed_on_a_window():
  """It is what means of seeds and of windows do not explain."""
  tested = [
    {'loss': [2.0], 'window_loss': [[1.0, 3.0]]},
    {'loss': [3.0], 'window_loss': [[4.0, 2.0]]},
  ]
  (column,) = curves.window_scores(tested, 'loss')
  assert column['mean'] == [2.5, 2.5]
  # Residuals of -1, 1, 1 and -1, with one degree of freedom.
  assert column['noise'] == pytest.approx(4.0)
  # Columns without losses, of results of an earlier version or of one seed.
  missing = tested[0] | {'loss': [None], 'window_loss': [[]]}
  assert curves.window_scores([missing, tested[1]], 'loss') == [None]
  assert curves.window_scores([{'loss': [2.0]}] * 2, 'loss') == [None]
  # A perplexity beyond float64.
  large = {
    'loss': [800.0],
    'perplexity': [None],
    'window_loss': [[790.0, 810.0]],
  }
  assert curves.window_scores([large] * 2, 'perplexity') == [None]
  (alone,) = curves.window_scores(tested[:1], 'loss')
  assert alone == {'mean': [1.0, 3.0], 'noise': 0.0}


def test_intervals():
  comparisons = experiment_lib.parse_comparisons('part: low < high @ 1 by -1')
  claim = experiment_lib.Claim('X', '', comparisons)
  (one,) = claims.judge(claim, result((1.0, 1.2), (2.0, 2.2)))['comparisons']
  # The variance of the difference of means is 0.02, with 2 degrees of freedom.
  reach = 2.919986 * 0.02**0.5
  assert one['effect'] == pytest.approx(1.0)
  assert one['interval'] == pytest.approx([1 - reach, 1 + reach])
  (one,) = claims.judge(claim, result((1.0,), (2.0,)))['comparisons']
  assert one['effect'] == 1.0 and one['interval'] is None


def test_what_a_scale_leaves_out_is_not_counted():
  comparisons = experiment_lib.parse_comparisons('part: low < high|other @ 1|2')
  judged = claims.judge(
    experiment_lib.Claim('X', '', comparisons), result((1.0, 1.1), (2.0, 2.2))
  )
  assert judged['verdict'] == 'confirmed'
  outcomes = [one['outcome'] for one in judged['comparisons']]
  assert outcomes == ['holds', *['not measured'] * 3]


def test_one_of_many_is_not_refuted_by_chance():
  """A lone failure must be as clear as its company is numerous."""
  columns = list(range(12))
  found = {
    'seeds': [0, 1, 2],
    'scale': 'cpu',
    'parts': [
      {
        'name': 'part',
        'columns': columns,
        'rows': [
          {'name': 'low', 'values': [[0.0] * 12] * 3},
          {
            'name': 'high',
            # About 0 and 1 apart from seed to seed, but for the last one.
            'values': [
              [-1.0, 1.0] * 5 + [0.0, -1.4],
              [1.0, -1.0] * 5 + [1.0, -1.0],
              [0.0] * 10 + [-1.0, -1.2],
            ],
          },
        ],
      }
    ],
  }
  comparisons = experiment_lib.parse_comparisons(
    f'part: low < high @ {"|".join(map(str, columns))}'
  )
  claim = experiment_lib.Claim('X', '', comparisons)
  assert claims.judge(claim, found)['verdict'] == 'not seen'
  alone = experiment_lib.Claim('X', '', comparisons[-1:])
  assert claims.judge(alone, found)['verdict'] == 'refuted'


def test_figures_of_seeds():
  by_seed = [[3.0, None], [5.0, 7.0]]
  for of, value in (('mean', 4.0), ('min', 3.0), ('max', 5.0)):
    made = parts.table_row('name', 'run', by_seed, (1.0, 2.0), of)
    assert made['value'] == [value, None]


def test_comparisons_are_parsed():
  compare = experiment_lib.Comparison
  low, high = ('p', 'a, b', 1), ('p', 'c', 1)
  for line, expected in (
    ('p: a, b < c @ 1', [compare(low, high)]),
    ('p: a, b > c @ 1 by 0.5', [compare(high, low, 0.5)]),
    ('p: a, b < c @ 1 by -5%', [compare(low, high, -0.05, relative=True)]),
    ('p: a, b @ 1 < @ 2.5', [compare(low, ('p', 'a, b', 2.5), paired=True)]),
    ('p: a, b @ 1 < q: c @ x:2', [compare(low, ('q', 'c', 'x:2'))]),
    ('p: a, b @ 1 > 0.1', [compare(0.1, low)]),
    (
      'p: [a|d], b < [] @ 1',
      [compare(('p', f'{name}, b', 1), ('p', name, 1)) for name in ('a', 'd')],
    ),
    (
      'p|q: c < d @ 1|2',
      [
        compare((part, 'c', column), (part, 'd', column))
        for part in ('p', 'q')
        for column in (1, 2)
      ],
    ),
  ):
    assert [*experiment_lib.parse_comparisons(line)] == expected, line
