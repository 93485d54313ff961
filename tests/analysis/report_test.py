"""Tests `lengen_jax/analysis/report.py` and the page that it writes."""

import base64
import csv
import html
import json
import re

import numpy as np
import pytest

from lengen_jax.analysis import plots, report
from tests.analysis import made_up


@pytest.fixture
def results():
  return made_up.results()


def page_of(results, folder):
  report.write(results, folder)
  return (folder / 'report.html').read_text()


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """Where the report of the results is."""
  folder = tmp_path_factory.mktemp('report')
  report.write(made_up.results(), folder)
  return folder


@pytest.fixture(scope='module')
def page(folder):
  return (folder / 'report.html').read_text()


def rows(path):
  with open(path) as file:
    return list(csv.DictReader(file))


def cells(page, name):
  """Cells of a run in the first table, as HTML."""
  row = re.search(rf'<span>{re.escape(name)}</span>.*?</tr>', page, re.S)[0]
  return re.findall('<td>(.*?)</td>', row)


def test_csv_has_a_row_for_each_run_and_length(results, folder):
  found = rows(folder / 'curves.csv')
  assert len(found) == 3 * len(results['lengths'])
  assert list(found[0]) == [
    'run',
    'encoding',
    'positions',
    'attention_scale',
    'train_length',
    'length',
    'loss',
    'perplexity',
    'bits_per_byte',
    'word_perplexity',
    'tokens',
    'parameters',
    'train_seconds',
    'refused',
  ]
  measured = {(one['run'], int(one['length'])): one for one in found}
  for name, curve in zip(report.names(results), results['curves'], strict=True):
    for n, length in enumerate(results['lengths']):
      one = measured[name, length]
      for key in ('loss', 'bits_per_byte'):
        value = curve[key][n]
        assert one[key] == ('' if value is None else repr(value))
      assert one['refused'] == curve['refused'].get(str(length), '')
  found = rows(folder / 'positions.csv')
  by_length = results['curves'][1]['loss_by_position']['64']
  assert [
    (int(one['position']) - 1, float(one['loss']))
    for one in found
    if (one['run'], one['length']) == ('rope', '64')
  ] == list(zip(by_length['position'], by_length['loss'], strict=True))


def test_page_is_the_same_for_the_same_results(results, folder, page):
  assert page_of(results, folder) == page


def test_page_needs_nothing_else(results, folder, page):
  assert '<script' not in page and 'http' not in page and '@import' not in page
  links = re.findall(r'\b(?:href|src)="([^"]*)"', page)
  assert links and all(link.startswith(('#', 'data:')) for link in links)
  assert not re.findall(r'url\((?!#)', page)
  ids = re.findall(r' id="([^"]+)"', page)
  assert len(ids) == len({*ids})
  referred = re.findall(r'(?:href="|url\()#([^")]+)', page)
  assert referred and {*referred} <= {*ids}
  links = re.findall(r'download="([^"]+)" href="data:[^,]*base64,(.*?)"', page)
  saved = {name: base64.b64decode(text).decode() for name, text in links}
  assert list(saved) == ['results.json', 'curves.csv', 'positions.csv']
  assert json.loads(saved['results.json']) == results
  for name in ('curves.csv', 'positions.csv'):
    assert saved[name] == (folder / name).read_text()
  assert f'lengen report --workdir={folder}' in page


def test_the_best_of_each_length_is_bold(results, tmp_path):
  losses = [2.0, 1.5, 1.50001, 1.2, 1.1], [1.0, 1.6, 1.5, 1.3, 1.2]
  for curve, loss in zip(results['curves'], losses, strict=False):
    curve['loss'] = loss
  del results['curves'][2]
  page = page_of(results, tmp_path)
  bold = [
    ['<strong>' in cell for cell in cells(page, name)]
    for name in ('fire', 'rope')
  ]
  # What looks the same is the same.
  assert bold == [[0, 1, 1, 1, 1], [1, 0, 1, 0, 0]]


def test_what_is_refused_has_a_dash_and_a_reason(page):
  name = 'learned(max_position=64)'
  assert ['–' in cell for cell in cells(page, name)] == [0, 0, 1, 1, 1]
  # Reasons that differ in a number are told once.
  assert f'{name} at 128, 256, 512: {made_up.REFUSED.format(511)}' in page


def test_curves_are_numbered_as_in_the_table(results, page):
  for number, name in enumerate(report.names(results)):
    row = re.search(rf'id="run-{number}" checked>.*?<span>(.*?)<', page, re.S)
    assert row[1] == html.escape(name)
    # Two figures, and the section of those with biases.
    drawn = page.count(f'data-run="{number}"><title>{html.escape(name)}<')
    assert drawn == 2
    assert page.count(f'<section data-run="{number}">') == (name == 'fire')
  assert 'aria-label="Bias against distance, query at position 511"' in page
  assert '2 local, 2 anti-local, 2 flat/mixed' in page
  assert 'layer_0 12.' in page


def test_cost_and_settings(results, page):
  config = results['config']
  tokens = 8 * config['data']['batch_size'] * config['data']['train_length']
  text = re.sub('<[^>]+>', ' ', page)
  for expected in (f'{tokens:,}', f'{tokens / 4:,.0f}', f'{3 * tokens:,}'):
    assert f' {expected} ' in text
  assert '2026-01-02 03:04' in text and '2 × cpu' in text
  assert re.search(r'optimizer\.learning_rate +0\.003 +0\.0006 ', text)
  assert 'model.encoding ' not in text and 'optimizer.b1 ' not in text
  assert 'corpus sha256' in text and 'c0ffee' in text and 'abc' in text


def test_a_model_that_is_tested_twice_is_counted_once(results, tmp_path):
  again = {**results['curves'][0], 'tested_as': 'rope|standard|none'}
  page = page_of(results | {'curves': [*results['curves'], again]}, tmp_path)
  config, count = results['config'], len(results['curves'])
  tokens = 8 * config['data']['batch_size'] * config['data']['train_length']
  text = re.sub('<[^>]+>', ' ', page)
  assert f' {count * tokens:,} ' in text
  assert f' {(count + 1) * tokens:,} ' not in text


def test_what_the_paper_has_is_there_as_printed(results, tmp_path):
  rows = [['fire', [2.5, 2.25]], ['rope', [2.5, None]]]
  paper = {'unit': 'perplexity', 'columns': [2048, 8192], 'rows': rows}
  page = page_of(results | {'paper': paper}, tmp_path)
  assert '>fire</th><td>2.5</td><td>2.25</td>' in page
  assert '>rope</th><td>2.5</td><td>–</td>' in page


def test_losses_along_training(results, tmp_path):
  assert 'Gap against' not in page_of(results, tmp_path)
  assert not [*tmp_path.glob('trajectories*')]
  lengths = results['lengths']
  for n, curve in enumerate(results['curves'][:2]):
    early = [1.0 + n + length for length in lengths]
    curve['trajectory'] = {'steps': [4, 8], 'loss': [early, curve['loss']]}
  page = page_of(results, tmp_path)
  assert 'Gap against training step' in page
  found = rows(tmp_path / 'trajectories.csv')
  assert len(found) == 2 * 2 * len(lengths)
  row = found[len(lengths) * 2 + 1]
  assert row == {
    'run': report.names(results)[1],
    'step': '4',
    'length': str(lengths[1]),
    'loss': str(2.0 + lengths[1]),
  }
  assert (tmp_path / 'trajectories.png').stat().st_size > 10_000
  # Without a length beyond that of training, there is no gap.
  results['train_length'] = max(lengths)
  assert tmp_path / 'trajectories.png' not in report.write(results, tmp_path)
  assert 'Gap against training step' not in page_of(results, tmp_path)


def test_scores_that_are_missing_are_named():
  figure, axes = plots.panels(1)
  runs = [([4, 8], [1.0, 2.0]), ([4, 8], [np.nan, np.nan])]
  plots.by_step(axes, runs, ['a', 'b'], 'nats')
  labels = [line.get_label() for line in axes.get_lines()]
  assert labels == ['a', 'b (no value)']
  plots.plt.close(figure)


def test_the_gap_along_training(results):
  """It is that of the longest of up to 8 training lengths."""
  results['lengths'] = [32, 64, 256, 512]
  for curve in results['curves']:
    curve['trajectory'] = {
      'steps': [4, 8],
      'loss': [[1.0, 2.0, 4.0, 9.0], [1.0, 2.0, None, 9.0]],
    }
  figure, axes = plots.panels(1)
  plots.trajectories(axes, results, report.names(results), 'nats')
  line = axes.get_lines()[0]
  np.testing.assert_array_equal(line.get_xdata(), [4, 8])
  np.testing.assert_array_equal(line.get_ydata(), [3.0, np.nan])
  assert axes.get_ylabel() == 'nats: length 256 minus length 32'
  # None of these lengths is one of up to 8 training lengths but the nearest.
  results['lengths'] = [64, 512, 768, 1024]
  results['train_length'] = 8
  plots.trajectories(axes, results, report.names(results), 'nats')
  assert axes.get_ylabel() == 'nats: length 1024 minus length 64'
  plots.trajectories(
    axes, results, report.names(results), 'nats per masked token'
  )
  assert axes.get_ylabel() == (
    'nats per masked token: length 1024\nminus length 64'
  )
  plots.plt.close(figure)


def test_ticks_have_room():
  figure, axes = plots.panels(1)
  plots.length_axis(axes, [128, 512, 256])
  assert [*axes.get_xticks()] == [128, 256, 512]
  # The longest, then those that are far enough from the next.
  plots.length_axis(axes, [128, 250, 256, 490, 500, 512])
  assert [*axes.get_xticks()] == [128, 256, 512]
  assert axes.get_xticklabels()[0].get_text() == '128'
  plots.plt.close(figure)


def test_unfinished_runs(results, tmp_path, capsys):
  assert 'Unfinished' not in page_of(results, tmp_path)
  results['unfinished'] = ['rope | abacus']
  page = page_of(results, tmp_path)
  assert 'Unfinished runs:' in page and 'rope | abacus' in page
  report.print_table(results)
  lines = capsys.readouterr().out.splitlines()
  assert ['rope', '|', 'abacus', 'unfinished'] in [x.split() for x in lines]


def test_older_results_are_drawn(results, tmp_path):
  del results['platform']
  for curve in results['curves']:
    for key in ('biases', 'steps', 'memory_bytes', 'sessions'):
      del curve[key]
  page = page_of(results, tmp_path)
  assert 'Biases' not in page and 'started, UTC' in page


def test_names_are_escaped(results, tmp_path):
  results['curves'][0]['positions'] = "<b>&'"
  page = page_of(results, tmp_path)
  assert '<b>&' not in page and '&lt;b&gt;&amp;' in page


def test_contextual_positions_are_drawn_and_written(tmp_path):
  page = page_of(made_up.results(('linear | forget', 'rope')), tmp_path)
  found = rows(tmp_path / 'contextual_positions.csv')
  assert len(found) == 2 * 2 * 3
  assert [*found[5].values()] == ['linear | forget', 'layer_0', '1', '16', '40']
  assert 'download="contextual_positions.csv"' in page
  (section,) = re.findall(r'<section data-run="0">.*?</section>', page, re.S)
  assert 'layer_0' in section and 'layer_2' in section
  # Each panel has the index, and reaches up to its own positions.
  assert section.count('stroke-dasharray') == 2
  assert '>40</text>' in section and '>7.5</text>' in section
  assert section.count('aria-label="Positions against index"') == 1
  assert 'data-run="1"><title' in page and '<section data-run="1">' not in page


def test_losses_by_position_are_those_of_the_longest_window():
  by_length = {
    str(n): {'position': [0, n - 1], 'loss': [2.0, float(n)]}
    for n in (64, 128, 512)
  }
  results = {'train_length': 64, 'curves': [{'loss_by_position': by_length}]}
  figure, axes = plots.panels(1)
  plots.position_curves(axes, results, ['a'], 'nats')
  line = axes.get_lines()[0]
  assert [*line.get_xdata()] == [1, 512] and [*line.get_ydata()] == [2, 512]
  plots.plt.close(figure)
