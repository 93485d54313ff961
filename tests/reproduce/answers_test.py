"""Finetuning on stand-ins: scores by length and by task, once."""

import dataclasses
import json

import pytest

from lengen_jax import reproduce
from lengen_jax.analysis import reproduction
from lengen_jax.reproduce import parts, run
from lengen_jax.reproduce.synthetic import glue, scrolls
from lengen_jax.training import loop


def one_row(name, part_name, row_name):
  """An experiment of one row of one part, without claims."""
  experiment = reproduce.get(name)
  (part,) = (part for part in experiment.parts if part.name == part_name)
  rows = tuple(row for row in part.rows if row.name == row_name)
  part = dataclasses.replace(part, rows=rows)
  return dataclasses.replace(experiment, parts=(part,), claims=())


@pytest.mark.slow
def test_a_task_by_length(tmp_path, monkeypatch):
  sizes = {'train': 20, 'validation': 8, 'test': 8}
  monkeypatch.setattr(scrolls, 'SIZES', sizes)
  experiment = one_row('fire/figure3', 'narrative_qa', 'alibi')
  found = run.reproduce(experiment, 'tiny', tmp_path, (0,))
  (part,) = found['parts']
  (row,) = part['rows']
  (path,) = tmp_path.glob('trained/*/seed0/alibi-*/answers.json')
  results = json.loads(path.read_text())
  # What `lengen eval` writes, perhaps of another step, does not count.
  (path.parent / 'eval.json').write_text('{}')
  lengths = sorted(map(int, results['scores']))
  assert row['values'] == [
    [
      results['scores'][str(n)]['scrolls/narrative_qa']['score']
      for n in lengths
    ]
  ]
  # Trained at 64 tokens; the paper's columns at these ratios are for 8192.
  assert part['columns'] == [round(n / part['train_length']) for n in lengths]
  paper = dict(
    zip(
      (0.0625, 0.25, 0.5, 1, 2, 3, 4),
      (4.036, 4.339, 4.190, 4.251, 4.144, 4.086, 3.899),
      strict=True,
    )
  )
  assert row['paper'] == [paper[ratio] for ratio in part['columns']]
  assert 'generated' in part['standin']
  assert (
    'models start from nothing, at full size pretrained'
    in (part['differences'])
  )
  assert (path.parent / 'predictions.jsonl').exists()
  request = parts.Request('tiny', (0,), (), str(tmp_path), experiment.name)
  assert not experiment.parts[0].unfinished(request, ())
  request = dataclasses.replace(request, seeds=(0, 1))
  assert len(experiment.parts[0].unfinished(request, ())) == 1

  def train(*args, **kwargs):
    raise AssertionError('trained again')

  monkeypatch.setattr(loop, 'train', train)
  assert run.reproduce(experiment, 'tiny', tmp_path, (0,)) == found


@pytest.mark.slow
def test_a_mixture_by_task(tmp_path, monkeypatch):
  monkeypatch.setattr(glue, 'SIZES', {'train': 20, 'held_out': 4})
  experiment = one_row('fire/table13', 'glue', 'nope')
  found = run.reproduce(experiment, 'tiny', tmp_path, (0,))
  (part,) = found['parts']
  assert part['columns'][:2] == ['boolq', 'cb'] and len(part['columns']) == 16
  (row,) = part['rows']
  *scores, mean = row['values'][0]
  assert None not in scores
  assert mean == pytest.approx(sum(scores) / 15)
  assert row['paper'][0] == 72.51


def test_a_terminal_shows_the_mean_of_many_tasks(capsys):
  row = {
    'name': 'fire',
    'values': [[1.0, 2.0, 1.5]],
    'value': [1.0, 2.0, 1.5],
    'paper': [None, None, 71.5],
  }
  part = {
    'kind': 'answers',
    'name': 'glue',
    'unit': 'percent',
    'columns': ['cola', 'sst2', 'mean'],
    'train_length': 64,
    'examples': 8,
    'of_seeds': 'mean',
    'rows': [row],
    'standin': None,
    'differences': [],
  }
  found = {'name': 'a/b', 'scale': 'tiny', 'parts': [part], 'summary': []}
  reproduction.print_table(found | {'claims': []})
  out = capsys.readouterr().out
  assert '1.500' in out and '71.5' in out and 'the mean of 2 tasks' in out
  assert 'cola' not in out and len(part['columns']) == 3
