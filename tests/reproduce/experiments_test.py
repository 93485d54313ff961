"""The experiments: their figures are those of print, their configs are read.

Printed tables: `golden/papers/README.md`.
"""

import json
import pathlib

import numpy as np
import pytest

from lengen_jax import data, errors, reproduce
from lengen_jax.reproduce import experiment as experiment_lib
from lengen_jax.reproduce import figures, finetuning, idealised, run
from lengen_jax.reproduce import parts as parts_lib

TABLES = json.loads(
  (
    pathlib.Path(__file__).parent.parent / 'golden/papers/tables.json'
  ).read_text()
)


def request(experiment, scale, overrides=()):
  return parts_lib.Request(scale, (0, 1), overrides, 'runs', experiment.name)


def printed(name, part, rows, columns, table, scale=1.0):
  """Compares figures of an experiment with a table.

  Args:
    name: of the experiment.
    part: name of the part.
    rows: {name of a row: name in the table}.
    columns: which of the table's columns are ours.
    table: the table's name.
    scale: per column, what the table's figures are divided by.
  """
  (found,) = (one for one in reproduce.get(name).parts if one.name == part)
  ours = {row.name: row.paper for row in found.rows}
  for row, key in rows.items():
    want = [TABLES[table][key][n] for n in columns]
    scales = scale if isinstance(scale, tuple) else (scale,) * len(want)
    assert len(ours[row]) == len(want)
    for a, b, by in zip(ours[row], want, scales, strict=True):
      assert (a is None) == (b is None)
      assert a is None or a == pytest.approx(b / by, rel=1e-12), (row, a, b)


def test_figures_of_fire():
  every = range(5)
  c4 = 'fire/table4_c4_log_ppl'
  rows = {name: name for name in ('nope', 'rope', 'alibi', 't5', 'fire')}
  rows |= {'kerple': 'kerple_log', 'fire, no threshold': 'fire_no_threshold'}
  printed('fire/table4', 'c4', rows, every, c4)
  printed(
    'fire/table2',
    'c4',
    {'fire': 'fire', 'fire-s': 'fire_shared'},
    every,
    'fire/table2_sharing_c4_log_ppl',
  )
  printed(
    'fire/table3',
    'c4',
    {
      'no log, no threshold': 'no_log_no_threshold',
      'fire, no threshold': 'log_no_threshold',
      'fire': 'log_threshold',
    },
    every,
    'fire/table3_transform_ablation_c4_log_ppl',
  )
  printed(
    'fire/table5',
    'c4',
    {
      'linear': 'linear',
      'one hidden layer': 'hidden_1',
      'two hidden layers': 'hidden_2',
    },
    every,
    'fire/table5_capacity_c4_log_ppl',
  )
  for name, table in (
    ('fire/table6', 'fire/table6_activation_c4_log_ppl'),
    ('fire/table7', 'fire/table7_final_activation_c4_log_ppl'),
  ):
    names = [row.name for row in reproduce.get(name).parts[0].rows]
    printed(name, 'c4', {n: n for n in names}, every, table)


def test_figures_of_finetuning():
  names = {
    'nope': 'nope',
    'rope': 'rope',
    'rope-pi': 'rope_pi',
    'alibi': 'alibi',
    'kerple': 'kerple_log',
    't5': 't5',
    'fire': 'fire',
  }
  scrolls = TABLES['fire/table1_scrolls']
  glue = TABLES['fire/table13_glue_superglue']
  for part in reproduce.get('fire/table1').parts:
    if isinstance(part, finetuning.Finetuning):
      task, _, large = part.name.partition(', ')
      table = scrolls[large or 'base']
      column = scrolls['columns'].index(task)
      for row in part.rows:
        key = names.get(row.name, 'fire_shared')
        assert row.paper == (table[key][column],), (part.name, row.name)
  for part in reproduce.get('fire/table13').parts:
    if isinstance(part, finetuning.Finetuning):
      table = glue['large' if 'large' in part.name else 'base']
      assert list(part.tasks) == glue['columns']
      for row in part.rows:
        assert list(row.paper[:-1]) == table[names[row.name]]
        assert row.paper[-1] == pytest.approx(sum(row.paper[:-1]) / 15)
  stories = 'fire/table11_narrativeqa_f1'
  rows = dict(names)
  del rows['rope-pi']
  rows |= {'rope-pi, 8192': 'rope_pi_8192', 'rope-pi, 32768': 'rope_pi_32768'}
  printed('fire/figure3', 'narrative_qa', rows, range(7), stories)


def test_figures_of_warping():
  columns = (0, 1, 2, 4)
  table = 'warping/table3_wikitext103_ppl'
  printed(
    'warping/table3',
    'wikitext103',
    {
      'rope': 'rope',
      'interpolated': 'interpolated',
      'randomized, 8072': 'randomized_8072',
      'randomized, 4096': 'randomized_4096',
      'randomized, 1024': 'randomized_1024',
      'alibi': 'alibi',
      'head and tail warped': 'head_tail_warp',
    },
    columns,
    table,
  )
  printed(
    'warping/tableB',
    'wikitext103',
    {name: name for name in ('1/2', '1/4', '1/6', '1/8')},
    columns,
    'warping/tableB_alpha_ppl',
  )
  order = TABLES['warping/tableA_sequence_accuracy']['columns']
  ours = [n for n, name in enumerate(order) if name != 'randomized_3M']
  for part in reproduce.get('warping/tableA').parts[:-1]:
    want = TABLES['warping/tableA_sequence_accuracy'][part.name]
    assert [row.paper and row.paper[0] for row in part.rows] == [
      want[n] for n in ours
    ]


def test_figures_of_randomized_encodings():
  table = 'randomized/table1_enwik8_loss'
  names = {
    'nope': 'nope',
    'sin/cos': 'sinusoidal',
    'alibi': 'alibi',
    'transformer-xl': 'transformer_xl',
    'rope': 'rope',
    'learned': 'learned',
    'power kerple': 'kerple_power',
    'log kerple': 'kerple_log',
    'sandwich': 'sandwich',
    'shape': 'shape',
  }
  lengths = (256, 1024)
  printed('randomized/table1', 'enwik8', names, (0, 2), table, lengths)
  randomized = {
    f'{ours}, randomized': theirs
    for ours, theirs in names.items()
    if ours not in ('nope', 'shape')
  }
  printed('randomized/table1', 'enwik8', randomized, (1, 3), table, lengths)
  table = 'randomized/table3_imagenet_loss'
  printed('randomized/table3', 'imagenet', names, (0, 2), table)
  printed('randomized/table3', 'imagenet', randomized, (1, 3), table)
  finetuned = TABLES['randomized/table2_enwik8_finetuning']
  rows = [
    row
    for part in reproduce.get('randomized/table2').parts
    for row in part.rows
  ]
  for n, row in enumerate(rows):
    want = finetuned['256'][n] / 256, finetuned['1024'][n] / 1024
    assert row.paper == pytest.approx(want)
  for part in reproduce.get('randomized/tableB1').parts[:-1]:
    want = TABLES['randomized/tableB1_chomsky_accuracy'][part.name]
    ours = [row.paper[0] for row in part.rows if row.paper]
    assert ours == want[: len(ours)] and len(ours) == 7


def test_the_rule_behind_the_gain():
  from lengen_jax.reproduce import randomized

  parts = [
    {
      'name': 'a task',
      'kind': 'sweep',
      'rows': [
        {'name': name, 'value': [value]}
        for name, value in (
          ('power kerple', 10.0),
          ('log kerple', 50.0),
          ('sandwich', None),  # All of its models diverge.
          ('shape', 30.0),
          ('log kerple, randomized', 40.0),
          ('rope, randomized', 55.0),
        )
      ],
    }
  ]
  rule, plain = randomized.gains({'parts': parts})
  assert '+5.0 points here (1 tasks), +7.4 in the paper' in rule
  assert plain.endswith('+4.5')
  parts[0]['rows'] = parts[0]['rows'][:4]
  assert randomized.gains({'parts': parts}) == []


@pytest.mark.some(3)
@pytest.mark.parametrize('name', reproduce.EXPERIMENTS)
@pytest.mark.parametrize(
  'scale',
  [
    'paper',
    'cpu',
    *(
      pytest.param(one, marks=pytest.mark.slow)
      for one in ('small', 'hours', 'tiny')
    ),
  ],
)
def test_configs_and_runs_are_read(name, scale, monkeypatch):
  monkeypatch.setattr(data, 'check_present', lambda config: None)
  experiment = reproduce.get(name)
  parts = [part for part in experiment.parts if scale in part.scales]
  if scale == 'hours':
    # These are about finetuned models only.
    expected = name not in ('fire/table1', 'fire/figure3', 'fire/table13')
  else:
    # Only the study has no paper whose data could be missing.
    expected = scale in ('cpu', 'tiny') or not name.startswith('study/')
  assert bool(parts) == expected
  for part in parts:
    monkeypatch.setattr(
      parts_lib.ConfiguredPart, 'write_substitute', lambda *args: None
    )
    part.check(request(experiment, scale))


def columns_of(part, parts):
  """{row: columns} of a part, by their names."""
  if isinstance(part, figures.Average):
    by_part = [columns_of(parts[name], parts) for name in part.members]
    return {
      row: columns
      for row, columns in by_part[0].items()
      if all(row in other for other in by_part)
    }
  if isinstance(part, figures.Figure):
    rows = part.rows
    if part.measure and not part.part:
      rows = part.measure()
      assert {len(row) for row in rows.values()} == {len(part.columns)}
    return dict.fromkeys(rows, part.columns)
  columns = getattr(part, 'means', ()) or part.ratios
  if getattr(part, 'tasks', None):
    columns = (*part.tasks, 'mean')
  return dict.fromkeys((row.name for row in part.rows), columns)


@pytest.mark.parametrize('name', reproduce.EXPERIMENTS)
def test_claims_name_what_there_is(name, monkeypatch):
  # RoPE's score at every distance takes seconds.
  monkeypatch.setattr(idealised, 'rope_score', np.cos)
  experiment = reproduce.get(name)
  parts = {part.name: part for part in experiment.parts}
  columns = {name: columns_of(part, parts) for name, part in parts.items()}
  for claim in experiment.claims:
    assert claim.comparisons
    for comparison in claim.comparisons:
      for at in (comparison.low, comparison.high):
        if isinstance(at, tuple):
          part, row, column = at
          assert column in columns[part][row], (claim.key, at)


def at_cpu(parts, at):
  """Whether a scale of minutes measures a figure."""
  if not isinstance(at, tuple):
    return True
  part, name, _ = at
  if isinstance(parts[part], figures.Average):
    some = [one for one in parts[part].members if 'cpu' in parts[one].scales]
    return some and all(at_cpu(parts, (one, name, None)) for one in some)
  rows = [
    row
    for row in getattr(parts[part], 'rows', ())
    if getattr(row, 'name', None) == name
  ]
  return 'cpu' in parts[part].scales and all('cpu' in r.scales for r in rows)


def test_claims_can_be_seen_on_a_laptop():
  """The others are of models or corpora that only full size has."""
  unseen = set()
  for experiment in reproduce.EXPERIMENTS.values():
    parts = {part.name: part for part in experiment.parts}
    for claim in experiment.claims:
      if not any(
        at_cpu(parts, comparison.low) and at_cpu(parts, comparison.high)
        for comparison in claim.comparisons
      ):
        unseen.add(claim.key)
  assert unseen == {
    *(f'F1, {corpus}' for corpus in ('arxiv', 'github')),
    *(f'F1, {corpus}, large' for corpus in ('c4', 'arxiv', 'github')),
    'F10, SCROLLS, large',
    'F10, tasks, large',
    'F11, large',
  }


def test_a_shorter_training_length_has_its_own_data():
  (part,) = reproduce.get('fire/figure6').parts
  experiment = reproduce.get('fire/figure6')
  config = part.make_config(request(experiment, 'paper'))
  assert config.data.train_length == 512
  assert config.data.path == 'data/c4_512'


def test_what_makes_no_other_model_makes_no_other_folder():
  experiment = reproduce.get('fire/table4')
  (part,) = experiment.parts

  def folder(*overrides):
    asked = request(experiment, 'tiny', overrides)
    return part.trained_folder(asked, part.make_config(asked))

  same = folder('--config.train.log_every=3', '--config.data.path=elsewhere')
  assert folder() == same != folder('--config.train.steps=9')
  assert request(experiment, 'tiny').folder.name == 'tiny'
  assert request(experiment, 'tiny', ('--config.a=1',)).folder.name != 'tiny'
  # The last of two values counts.
  a, b, c = '--config.a=1', '--config.a=2', '--config.b=3'
  names = {
    request(experiment, 'tiny', given).folder.name
    for given in ((a, b, c), (c, b), (b, c))
  }
  assert len(names) == 1
  assert request(experiment, 'tiny', (b, a, c)).folder.name not in names


def test_what_chooses_the_scored_checkpoint_makes_another_folder():
  experiment = reproduce.get('fire/table13')
  (part,) = (part for part in experiment.parts if part.name == 'glue')

  def folder(*overrides):
    asked = request(experiment, 'tiny', overrides)
    return part.trained_folder(asked, part.make_config(asked))

  for field in ('evaluate_every', 'checkpoint_every'):
    assert folder() != folder(f'--config.train.{field}=3')
  assert folder() == folder('--config.train.log_every=3')


def test_what_finetuning_init_part_is_there():
  """At the scales that finetune what was trained."""
  for experiment in reproduce.EXPERIMENTS.values():
    for number, part in enumerate(experiment.parts):
      if getattr(part, 'init_part', None) is None:
        continue
      (of,) = (p for p in experiment.parts[:number] if p.name == part.init_part)
      scales = {*part.scales} & (
        {'paper', 'small'}
        if isinstance(part, finetuning.Finetuning)
        else {*experiment_lib.SCALES}
      )
      assert scales <= {*of.scales}
      starts = {row.init_row or row.name for row in part.rows}
      assert starts <= {row.name for row in of.rows}, experiment.name


def test_rows_tested_otherwise_name_a_row_that_is_trained():
  for experiment in reproduce.EXPERIMENTS.values():
    for part in experiment.parts:
      rows = {
        row.name: row
        for row in getattr(part, 'rows', ())
        if isinstance(row, experiment_lib.Row)
      }
      for row in rows.values():
        if row.trained_as:
          assert rows[row.trained_as].trained_as is None
          assert {*row.scales} <= {*rows[row.trained_as].scales}


def test_names_are_distinct():
  for experiment in reproduce.EXPERIMENTS.values():
    for group in (experiment.parts, experiment.claims):
      names = [getattr(one, 'name', None) or one.key for one in group]
      assert len(set(names)) == len(names)
  keys = [c.key for e in reproduce.EXPERIMENTS.values() for c in e.claims]
  assert len(set(keys)) == len(keys)


def test_unknown_names():
  with pytest.raises(errors.ConfigError, match="did you mean 'fire/table4'"):
    reproduce.get('fire/tabel4')
  with pytest.raises(errors.ConfigError, match="unknown scale 'cpus'"):
    run.reproduce(reproduce.get('fire/table4'), 'cpus', 'anywhere')
  with pytest.raises(errors.ConfigError, match='use --seeds'):
    run.reproduce(
      reproduce.get('fire/table4'), 'tiny', 'x', None, ['--config.seed=3']
    )
  # The rate distinguishes the parts.
  with pytest.raises(errors.ConfigError, match='encoding_rate is set by'):
    rate = ['--config.optimizer.encoding_rate=2']
    run.reproduce(reproduce.get('study/rate'), 'tiny', 'x', None, rate)
  with pytest.raises(errors.ConfigError, match='each once'):
    run.reproduce(reproduce.get('fire/table4'), 'tiny', 'anywhere', (1, 1))


def test_probes_look_into_what_is_trained():
  for experiment in reproduce.EXPERIMENTS.values():
    for number, part in enumerate(experiment.parts):
      if getattr(part, 'part', ''):
        (of,) = (p for p in experiment.parts[:number] if p.name == part.part)
        assert {*part.rows} <= {row.name for row in of.rows}
        assert {*part.scales} <= {*of.scales}


def test_missing_data_is_said_before_anything_is_trained(tmp_path, monkeypatch):
  """Also where only a later part needs it."""
  monkeypatch.chdir(tmp_path)
  first, *rest = reproduce.get('warping/tableA').parts
  later = reproduce.get('fire/yarn').parts
  both = experiment_lib.Experiment('a/b', 'both', (first, *later))
  with pytest.raises(
    errors.LengenError, match='fire_c4.py:base at scale paper'
  ):
    run.reproduce(both, 'paper', tmp_path / 'runs')
  assert not [*(tmp_path / 'runs').iterdir()]


def test_what_a_user_sets_comes_last():
  (part,) = reproduce.get('fire/table4').parts
  experiment = reproduce.get('fire/table4')
  overrides = ('--config.data.path=elsewhere',)
  config = part.make_config(request(experiment, 'tiny', overrides))
  assert (config.data.source, config.data.path) == ('stdlib', 'elsewhere')
  assert config.model.vocab_size == 256
  small = part.make_config(request(experiment, 'small'))
  assert small.data.source == 'prepared'


def test_nothing_is_finetuned_for_hours_on_data_of_another_kind():
  found = [
    part
    for experiment in reproduce.EXPERIMENTS.values()
    for part in experiment.parts
    if isinstance(part, finetuning.Finetuning)
  ]
  assert found
  for part in found:
    assert 'hours' not in part.scales
  scales = {one.name: one.scales for one in reproduce.get('fire/table3').parts}
  assert 'hours' in scales['c4'] and 'cpu' in scales['glue']
