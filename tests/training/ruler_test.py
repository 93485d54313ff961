"""Tests `training/ruler.py` and `analysis/ruler_report.py` of the package.

The command line is tested in `cli_test.py`, with a real model.
"""

import json
import re

import pytest

from lengen_jax import errors
from lengen_jax.analysis import ruler_report
from lengen_jax.data import vocabulary
from lengen_jax.training import continuations, pretrained, ruler
from tests import helpers

BYTES = vocabulary.create('bytes')
TASKS = ('niah_single_1', 'niah_multiquery', 'vt')


@pytest.fixture
def model(monkeypatch):
  """A model that repeats its prompts, but for those that are too long.

  It answers with nothing from 3000 tokens on, and has no positions from 4000.
  """
  batches = []

  def write(trained, prompts, *, max_new, label, **options):
    batches.append((label, len(prompts), max_new, options))
    longest = max(map(len, prompts)) + max_new
    if longest > 4000:
      raise errors.LengthError(f'no position {longest}')
    return [text if longest < 3000 else 'Nothing.' for text in prompts]

  monkeypatch.setattr(continuations, 'write', write)
  trained = pretrained.load(helpers.GOLDEN / 'checkpoints' / 'llama3')
  return trained, batches


def evaluate(trained, lengths, tasks=TASKS, **options):
  options = {'samples': 2} | options
  return ruler.evaluate(trained, tasks, lengths, vocabulary=BYTES, **options)


def test_scores_by_length(model, capsys, tmp_path):
  trained, batches = model
  results, predictions = evaluate(trained, (2000, 3500, 4500), seed=3)
  right, wrong = ({name: score for name in TASKS} for score in (100.0, 0.0))
  assert results['scores'] == {'2000': right, '3500': wrong}
  assert results['average'] == {'2000': 100.0, '3500': 0.0}
  assert results['effective_length'] == 2000
  assert results['refused']['4500'].startswith('no position 4')
  out = capsys.readouterr().out
  assert 'ruler: length 2000: written prompt 6/6' in out
  assert 'ruler: vt at 2000: 100.00\n' in out
  assert 'ruler: length 4500: no position' in out
  # Both tasks with answers of 128 tokens share batches.
  shared, alone, *_ = batches
  assert shared[:3] == ('ruler: 2 tasks at 2000', 4, 128)
  assert alone[:3] == ('ruler: vt at 2000', 2, 30)
  assert alone[3]['seed'] == 3 and alone[3]['batch_tokens'] == 8192
  last = predictions[-1]
  assert last['task'] == 'vt' and last['length'] == 3500
  assert (last['index'], last['prediction']) == (1, 'Nothing.')
  assert len(last['references']) == 5
  assert len(predictions) == 2 * 3 * 2

  results = json.loads(json.dumps(results))
  ruler_report.print_table(results)
  *_, title, head, first, _, _, average, effective, refused = (
    capsys.readouterr().out.splitlines()
  )
  assert title == 'RULER: percent, ' + results['encoding'] + (
    ', 2 prompts per task and length'
  )
  assert head.split() == ['2000', '3500', '4500']
  assert first.split() == ['niah_single_1', '100.00', '0.00', '–']
  assert average.split() == ['average', '100.00', '0.00', '–']
  assert effective.startswith('effective length: 2000, the longest with')
  assert refused.startswith('at 4500: no position')
  # The results of an evaluation that is not finished.
  del results['average']['3500'], results['scores']['3500']
  ruler_report.print_table(results)
  *_, effective, _, left = capsys.readouterr().out.splitlines()
  assert effective.startswith('effective length so far: 2000, the longest with')
  assert left == 'at 3500: not evaluated yet'
  paths = ruler_report.write(results, tmp_path)
  assert [path.name for path in paths] == [
    *('ruler.json', 'ruler_predictions.jsonl', 'ruler.png')
  ]
  assert (tmp_path / 'ruler.png').stat().st_size > 10_000


def test_results_are_saved_by_length(model, monkeypatch):
  trained, _ = model
  write, saved = continuations.write, []

  def fails(trained, prompts, **options):
    if max(map(len, prompts)) > 2500:
      raise errors.MetricError('the logits are not finite')
    if max(map(len, prompts)) > 2000:
      raise MemoryError
    return write(trained, prompts, **options)

  monkeypatch.setattr(continuations, 'write', fails)
  with pytest.raises(MemoryError):
    evaluate(
      trained,
      (1800, 3000, 2200),
      ('vt',),
      save=lambda results, predictions: saved.append(
        ({**results['average']}, [*results['refused']], len(predictions))
      ),
    )
  average = {'1800': 100.0}
  assert saved[0] == ({}, [], 0)
  assert saved[1:] == [(average, [], 2), (average, ['3000'], 2)]


def test_no_effective_length(model, capsys):
  results, _ = evaluate(model[0], (3500,))
  assert results['effective_length'] is None
  ruler_report.print_table(results)
  assert 'effective length: none; no length has' in capsys.readouterr().out


def test_a_length_that_is_too_short(model):
  """Nothing is generated before the error."""
  trained, batches = model
  with pytest.raises(errors.LengthError, match='vt does not fit length 600'):
    evaluate(trained, (2000, 600), ('niah_single_1', 'vt'))
  assert not batches


def test_a_length_that_is_too_short_for_some_prompts(model):
  """The least length that the error names suffices for all prompts."""
  trained, batches = model
  with pytest.raises(errors.LengthError, match='cwe does not fit') as found:
    evaluate(trained, (1740,), ('cwe',), samples=8)
  least = int(re.search(r'from (\d+) on', str(found.value))[1])
  with pytest.raises(errors.LengthError, match=f'from {least} on'):
    evaluate(trained, (least - 1,), ('cwe',), samples=8)
  assert not batches
  evaluate(trained, (least,), ('cwe',), samples=8)


def test_a_haystack_of_another_text(model, tmp_path):
  file = tmp_path / 'a.txt'
  file.write_text('The ship left. The sea was calm.')
  results, predictions = evaluate(
    model[0], (1500,), ('niah_multikey_1',), haystack=str(file)
  )
  assert results['haystack'] == str(file)
  assert 'The sea was calm. The ship' in predictions[0]['prediction']
