"""Tests `benchmarks/alternate.py`: ratios, and the files of results."""

import json

import pytest

from benchmarks import alternate


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
  monkeypatch.setattr(alternate, 'RESULTS', tmp_path)
  return tmp_path


def test_functions_take_turns_after_warmups():
  called = []
  functions = {name: lambda name=name: called.append(name) for name in 'ab'}
  seconds = alternate.alternate(functions, rounds=2, warmups=1)
  assert called == [*'ababab']
  assert {name: len(found) for name, found in seconds.items()} == {
    'a': 2,
    'b': 2,
  }


def test_ratios_are_those_of_a_round():
  seconds = {'ours': [1.0, 6.0, 2.0], 'peer': [2.0, 2.0, 1.0]}
  found = alternate.ratio(seconds, 'ours', 'peer')
  assert found == {'median': 2.0, 'min': 0.5, 'max': 3.0}


def results(ratio):
  return {'benchmark': 'speed', 'ratios': {'ours / peer': ratio}}


def test_a_ratio_above_its_record_is_a_regression(folder, capsys):
  alternate.write(results({'median': 1.0, 'min': 0.9, 'max': 2.0}))
  kept = json.loads((folder / 'speed.json').read_text())
  assert kept['ratios'] == {'ours / peer': {'median': 1, 'min': 0.9, 'max': 2}}
  assert {'commit', 'date'} < {*kept}
  for ratio, regressed in ((1.14, False), (1.5, True), (0.5, False)):
    (folder / 'speed.json').write_text(json.dumps(kept))
    capsys.readouterr()
    alternate.write(results(ratio))
    said = capsys.readouterr().out
    assert f'ours / peer                                {ratio:.2f} x' in said
    assert ('REGRESSION: ours / peer' in said) == regressed


def test_small_runs_write_nothing(folder):
  alternate.write(results(1.0), small=True)
  assert not list(folder.iterdir())


def test_cells_are_written_beside_those_on_record(folder):
  for name, cell in (('a', 1), ('b', 2), ('a', 3)):
    alternate.write_cell('memory', name, {'gib': cell}, folder)
  cells = json.loads((folder / 'memory.json').read_text())['cells']
  assert {name: cell['gib'] for name, cell in cells.items()} == {'a': 3, 'b': 2}
  assert all({'commit', 'date'} < {*cell} for cell in cells.values())


def test_names_are_chosen_or_refused():
  assert alternate.chosen('chip', [], ('v4', 'v5e')) == ['v4', 'v5e']
  assert alternate.chosen('chip', ['v4'], ('v4', 'v5e')) == ['v4']
  with pytest.raises(SystemExit, match="unknown chip 'v9'.*v4, v5e"):
    alternate.chosen('chip', ['v9'], ('v4', 'v5e'))


def test_the_error_of_a_process_is_shown():
  with pytest.raises(SystemExit, match=r'(?s)attention_gup.*No module named'):
    alternate.in_process('attention_gup', '--small')
