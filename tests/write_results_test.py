"""docs/results.md and docs/study.md: generated, and up to date."""

import collections
import itertools
import json
import pathlib
import re

import numpy as np
import pytest

from docs import answers, write_results
from lengen_jax import reproduce
from lengen_jax.analysis import reproduction
from lengen_jax.reproduce import claims
from lengen_jax.reproduce import experiment as experiment_lib

DOCS = pathlib.Path(__file__).parents[1] / 'docs'


def test_the_page_is_that_of_the_results():
  for name, is_study in (('results.md', False), ('study.md', True)):
    assert (DOCS / name).read_text() == write_results.page(
      DOCS / 'results', study=is_study
    ), 'run: make results'


def test_a_copy_of_results_without_its_drawings(tmp_path):
  found = json.loads((DOCS / 'results' / 'su_entropy_cpu.json').read_text())
  paths = reproduction.write(found, tmp_path)
  assert paths and all(path.exists() for path in paths)
  page = (tmp_path / 'report.html').read_text()
  assert 'Files not in the workdir' in page and 'entropy.png' in page


def test_every_claim_is_there():
  page = ''.join(
    write_results.page(DOCS / 'results', study=each) for each in (False, True)
  )
  for experiment in reproduce.EXPERIMENTS.values():
    for claim in experiment.claims:
      assert f'| {claim.key} | {claim.text} | `{experiment.name}` |' in page


def results_of(experiment):
  name = f'{experiment.replace("/", "_")}_hours.json'
  return json.loads((DOCS / 'results' / name).read_text())


def comparisons_of(experiment, lines):
  """Those of one model, tested in two ways, are paired."""
  parts = reproduce.EXPERIMENTS[experiment].parts
  parsed = (experiment_lib.parse_comparisons(line, parts) for line in lines)
  return sum(parsed, ())


def test_statements_are_supported():
  """Each effect that a sentence states is significant, and in its direction."""
  page = (DOCS / 'study.md').read_text()
  for one in [*answers.ADVICE, *itertools.chain(*answers.ANSWERS.values())]:
    found = results_of(one.experiment)
    compared = comparisons_of(one.experiment, one.comparisons)
    assert one.text.count('{}') == len(compared)
    if one.step is not None:
      found = write_results.with_early(found, one.step)
    judged = claims.judge(experiment_lib.Claim('', '', compared), found)
    for each in judged['comparisons']:
      assert each['outcome'] == 'holds', (one.text, each)
      assert f'{each["effect"]:.3g} [{each["interval"][0]:.3g}, ' in page


def test_statements_without_an_effect():
  def outcomes(experiment, *lines):
    compared = comparisons_of(experiment, lines)
    claim = experiment_lib.Claim('', '', compared)
    judged = claims.judge(claim, results_of(experiment))
    return {each['outcome'] for each in judged['comparisons']}

  mlps = 'raw distance|log of the distance'
  line = f'code: {mlps}|fixed length < fire @ 4|8|16'
  assert outcomes('study/interpolation', line) == {'holds'}
  assert outcomes(
    'study/interpolation',
    'code: fire, L from 1 < fire, L from 1/4 @ 16',
    'code: fire, L from 1/4 < fire, L from 1/8 @ 16',
    'code: fire, L from 1 < fire, L from 1/8 @ 16',
  ) == {'unclear'}
  assert outcomes('study/rate', 'faster: raw distance < fire @ 1|2|4') == {
    'unclear'
  }
  assert outcomes('study/text', f'docstrings: {mlps} < fire @ 4|8|16') == {
    'holds'
  }
  assert outcomes('study/text', f'docstrings: {mlps} < fire @ 1|2') == {
    'unclear'
  }
  assert outcomes('study/text', 'docstrings: kerple_log < alibi @ 1|16') == {
    'holds'
  }
  assert outcomes('study/tasks', f'copy: {mlps} > fire @ beyond') == {'unclear'}
  (values,) = (
    row['values']
    for row in results_of('study/tasks')['parts'][0]['rows']
    if row['name'] == 'fire'
  )
  assert round(np.ptp(values, axis=0)[0]) == 73
  for decay, row in itertools.product(('strong', 'no'), ('fire', 'rope')):
    line = f'{decay} decay: {row} @ 16 < code: {row} @ 16'
    assert outcomes('study/regularization', line) == {'unclear'}
  line = 'dropout: rope @ 16 < code: rope @ 16'
  assert outcomes('study/regularization', line) == {'unclear'}
  for line in (
    'code: [rope|rope, half|sinusoidal|learned], log n < [] @ 16',
    'code: t5, randomized, log n < t5, randomized @ 16',
    'code: alibi, randomized, log n < alibi, randomized @ 16',
    'code: kerple_log, randomized, log n < kerple_log, randomized @ 16',
    'code: rope, randomized, log n < rope, randomized @ 16',
    'code: pope, randomized < pope @ 16',
    'code: sinusoidal < sinusoidal, interpolated @ 2|16',
    'code: [rope|rope, half] < [], interpolated @ 16',
  ):
    assert outcomes('study/grid', line) == {'unclear'}
  biases = 't5|fire|alibi|kerple_log|raw distance|kerple_power|sandwich'
  for line in (
    'code: kerple_power|sandwich|transformer_xl @ 16 < @ 1',
    f'code: [pope|{biases}|fire, one hidden layer] < [], interpolated @ 16',
    'code: transformer_xl < transformer_xl, interpolated @ 16',
  ):
    assert outcomes('study/grid', line) == {'holds'}
  # One order of the encodings by all constructions.
  (part,) = (
    part
    for part in results_of('study/protocol')['parts']
    if part['name'] == 'constructions'
  )
  at_4 = [n for n, x in enumerate(part['columns']) if x.endswith(', 4x')]
  orders = {
    tuple(sorted(row_names(part), key=lambda x: row_names(part)[x][n]))
    for n in at_4
  }
  assert len(at_4) == 6 and len(orders) == 1
  # Two of them change places at the training length.
  losses, names = row_names(part), part['columns']
  before = {}
  for n in at_4:
    name = names[n].removesuffix(', 4x')
    gain = names.index(name)
    t5, alibi = (losses[x][n] - losses[x][gain] for x in ('t5', 'alibi'))
    before[name] = t5 < alibi
    assert abs(t5 - alibi) < 0.011
  assert [name for name in before if before[name]] == ['own', 'first']


def test_claims_that_only_the_full_size_decides():
  head = ' '.join(write_results._HEAD.split())
  (listed,) = re.findall(r'\. ([^.]+) can thus be decided at scale', head)
  names = re.findall(r'[A-Z][0-9]+(?: \([a-z ]+\))?', listed)
  for claim in itertools.chain(
    *(one.claims for one in reproduce.EXPERIMENTS.values())
  ):
    number, _, about = claim.key.partition(', ')
    is_listed = number in names or f'{number} ({about})' in names
    assert is_listed == claim.full_size, claim.key


def row_names(part):
  return {row['name']: row['value'] for row in part['rows']}


def test_advice_of_results_of_some_rows():
  """Sentences whose effects are not all measured are left out."""
  name = 'study_biases_hours.json'
  found = json.loads((DOCS / 'results' / name).read_text())
  text = '\n'.join(write_results._advice([found]))
  assert 'use KERPLE (' in text and '\n2. ' in text
  for part in found['parts']:
    part['rows'] = [row for row in part['rows'] if row['name'] != 'alibi']
  text = '\n'.join(write_results._advice([found]))
  assert 'use KERPLE (' not in text and '\n2. ' not in text
  # Scores after all training do not replace those after an earlier step.
  found = json.loads((DOCS / 'results' / name).read_text())
  assert 'FIRE was worse' in '\n'.join(write_results._advice([found]))
  for row in found['parts'][0]['rows']:
    if row['name'] == 'fire':
      row['trajectory']['steps'][0] += 1
  assert 'FIRE was worse' not in '\n'.join(write_results._advice([found]))
  # The scores of the row after an earlier step are missing.
  found = results_of('study/random_positions')
  assert 'the loss of RoPE at 16' in '\n'.join(write_results._advice([found]))
  for row in found['parts'][0]['rows']:
    del row['trajectory']
  assert 'the loss of RoPE at 16' not in '\n'.join(
    write_results._advice([found])
  )


def test_models_that_have_flattened():
  found = {'name': 'fire/table7', 'scale': 'hours', 'parts': []}
  assert write_results._flattened([found]) == []
  curves = (
    [[2.0, 9.0], [1.5, 9.0], [1.46, 5.0]],
    [[2.0, 9.0], [1.5, 9.0], [1.26, 5.0]],
  )
  rows = [
    {
      'folder': f'model{n}',
      'trajectory': {'steps': [1, 2, 4], 'values': [values, values]},
    }
    for n, values in enumerate(curves)
  ]
  # A row that tests the first model at other positions.
  rows.append(
    {
      'folder': 'model0',
      'trajectory': {'steps': [1, 2, 4], 'values': [[[7.0, 9.0]] * 3] * 2},
    }
  )
  part = {'kind': 'curves', 'unit': 'x', 'columns': [1, 2], 'rows': rows}
  part['name'] = 'c4'
  found['parts'] = [part, {'kind': 'sweep', 'rows': rows}]
  # Another experiment shares the models.
  lines = write_results._flattened([found, found, found | {'scale': 'cpu'}])
  assert max(map(len, lines)) <= 80 and lines[-1] == ''
  text = ' '.join(lines)
  assert 'This holds for 1 of the 2 models' in text
  assert 'longer training' not in text
  assert 'fall by 0.04 to 0.24.' in text and 'shorter training.' in text
  # Perplexities are compared by their logarithms; one rate does not decay.
  part |= {'name': 'wikitext103', 'unit': 'perplexity'}
  for row in rows:
    values = np.exp(row['trajectory']['values'])
    row['trajectory']['values'] = values.tolist()
  found['name'] = 'warping/table1'
  text = ' '.join(write_results._flattened([found]))
  assert 'fall by 0.04 to 0.24.' in text
  assert 'except in `warping/table1`, where it is constant.' in text
  # One of two parts; a model without a score is not counted.
  rows[0]['trajectory']['values'][0][2][0] = None
  found['name'] = 'fire/yarn'
  found['parts'] = [part | {'name': x} for x in ('pretrained', 'finetuned')]
  text = ' '.join(write_results._flattened([found]))
  assert 'of the 1 models' in text and 'fall by 0.24 to 0.24.' in text
  assert 'except in the part `finetuned` of `fire/yarn`, where' in text


def test_results_are_taken_and_shown(tmp_path):
  experiment = reproduce.get('fire/table7')
  claim = experiment.claims[0]
  found = {
    'name': 'fire/table7',
    'title': 'a title',
    'scale': 'cpu',
    'seeds': [0, 1],
    'command': 'lengen reproduce fire/table7 --scale=cpu',
    'commit': f'abcdef{34 * "0"}+dirty',
    'parts': [
      {
        'kind': 'curves',
        'name': 'c4',
        'unit': 'nats per token',
        'columns': [2, 4],
        'train_length': 128,
        'tokens': 1024,
        'of_seeds': 'mean',
        'commits': ['123456'],
        'rows': [
          {
            'name': name,
            'run': 'fire',
            'values': [[value, 2 * value], [value + more, 2 * value + more]],
            'value': [value + more / 2, 2 * value + more / 2],
            'paper': [3.05, None],
          }
          for name, value, more in (
            ('without', 1.5, 0.02),
            ('with', 1.75, 0.022),
          )
        ],
        'standin': 'something else',
        'differences': ['train.steps: 1, at full size 2'],
      }
    ],
    'claims': [],
    'ours': ['outdated'],
    'summary': ['a summary'],
  }
  for scale in ('cpu', 'tiny'):
    for folder in (scale, f'{scale}-1234'):
      folder = tmp_path / 'runs' / folder
      folder.mkdir(parents=True)
      seeds = [0, 1] if folder.name == scale else [0]
      (folder / 'reproduction.json').write_text(
        json.dumps(found | {'scale': scale, 'seeds': seeds})
      )
  write_results.main(tmp_path / 'runs', tmp_path / 'docs')
  kept = json.loads(
    (tmp_path / 'docs/results/fire_table7_cpu.json').read_text()
  )
  assert kept['claims'][0]['verdict'] == 'confirmed'
  assert [path.name for path in (tmp_path / 'docs/results').iterdir()] == [
    'fire_table7_cpu.json'
  ]
  text = (tmp_path / 'docs/results.md').read_text()
  title = reproduce.get('fire/table7').title
  for line in (
    '## fire/table7, scale cpu',
    f'{title[0].upper()}{title[1:]}. `lengen reproduce fire/table7 '
    '--scale=cpu`, seeds 0, 1, commit abcdef000000+dirty; every figure of '
    'every seed: [fire_table7_cpu.json](results/fire_table7_cpu.json).',
    '| run | 2x | 4x | paper 2x | paper 4x |',
    '| without | 1.510 ±0.010 | 3.010 ±0.010 | 3.050 | – |',
    "- in place of the paper's data: something else",
    '- train.steps: 1, at full size 2',
    '- a summary',
    f'- {experiment.ours[0]}',
    'Commits at which models were tested, beside this: 123456.',
    f'| {claim.key} | {claim.text} | `fire/table7` '
    '| [cpu](#firetable7-scale-cpu) | 2 | confirmed (2 holds) '
    '| +0.251 [+0.207, +0.295] .. +0.501 [+0.457, +0.545] |',
  ):
    assert line in text.splitlines(), line
  assert 'outdated' not in text


def test_what_a_scale_leaves_out_is_said():
  found = {
    'name': 'fire/figure6',
    'scale': 'cpu',
    'seeds': [0],
    'parts': [{'name': 'c4', 'rows': [{'name': 'fire'}]}],
  }
  rows, seeds = write_results.left_out(found)
  assert rows == 'left out of c4: nope; rope; alibi; kerple; t5'
  assert seeds == '1 of 2 seeds'
  (parts, *_) = write_results.left_out(found | {'parts': []})
  assert parts == 'left out: c4'


def test_a_replication_is_kept_beside_the_first_results(tmp_path, capsys):
  name = 'fire_table7_hours.json'
  first = json.loads((DOCS / 'results' / name).read_text())
  # The verdict of the replication is about its own scores.
  (part,) = first['parts']
  rows = []
  for row in part['rows']:
    worse = 1.0 if row['name'] == 'without' else 0.0
    rows.append(
      row
      | {
        'values': [[x + worse for x in scores] for scores in row['values']],
        'trajectory': {
          **row['trajectory'],
          'values': [
            [*earlier, [x + worse for x in last]]
            for *earlier, last in row['trajectory']['values']
          ],
        },
      }
    )
  again = first | {'seeds': [3, 4, 5], 'parts': [part | {'rows': rows}]}
  some = first | {'rows': ['with'], 'parts': [part | {'rows': rows[1:]}]}
  for found, place in (
    (first, 'fire/table7/hours'),
    (again, 'fire/table7/hours-replication'),
    (some, 'fire/table7/hours-0a1b2c3d'),
  ):
    folder = tmp_path / 'runs' / place
    folder.mkdir(parents=True)
    (folder / 'reproduction.json').write_text(json.dumps(found))
  write_results.main(tmp_path / 'runs', tmp_path / 'docs')
  results = tmp_path / 'docs/results'
  assert {path.name for path in results.iterdir()} == {
    name,
    'fire_table7_hours_replication.json',
  }
  kept = json.loads((results / name).read_text())
  assert kept['seeds'] == [0, 1, 2] and len(kept['parts'][0]['rows']) == 2
  text = (tmp_path / 'docs/results.md').read_text()
  assert '## fire/table7, scale hours, replication' in text.splitlines()
  (line,) = (x for x in text.splitlines() if '| [hours, replication]' in x)
  verdict = '| 3 | depends on training (2 fails; confirmed from step 187,'
  assert f'(#firetable7-scale-hours-replication) {verdict}' in line
  (line,) = (x for x in text.splitlines() if '| [hours](' in x)
  assert '| 3 | not seen (2 unclear' in line
  # Claims are counted with the verdicts of replications and without them.
  assert '| hours | 1 | 0 | 0 | 0 | 1 | 0 | 0 |' in text
  assert '| hours, with replications | 1 | 0 | 0 | 1 | 0 | 0 | 0 |' in text
  # The comparisons that fail are named.
  lines = [x for x in text.splitlines() if x.startswith('- F4, output: fails:')]
  assert [line.partition(' (effect -')[0] for line in lines] == [
    f'- F4, output: fails: without (c4, {n}x) < with (c4, {n}x)' for n in (2, 4)
  ]
  order = '- from step 1500 to 3000, the order of the runs at 512 '
  assert f'{order}does not change (means' in text
  assert f'{order}changes in 2 of 2 places; the best run changes from ' in text
  least = '- runs whose mean score at 512 was less at an earlier step: '
  assert f'{least}without (step 1500)\n' in text and text.count(least) == 1
  # Recorded results are not replaced by those of fewer seeds or rows.
  for fewer, lost in (
    ({'seeds': [3, 4]}, 'seeds 5'),
    ({'parts': [part | {'rows': rows[:1]}]}, f'rows c4: {rows[1]["name"]}'),
  ):
    path = tmp_path / 'runs/fire/table7/hours-replication/reproduction.json'
    path.write_text(json.dumps(again | fewer))
    write_results.main(tmp_path / 'runs', tmp_path / 'docs')
    assert f'{path} lacks its {lost}; to replace it' in capsys.readouterr().out
    kept = json.loads(
      (results / 'fire_table7_hours_replication.json').read_text()
    )
    assert kept['seeds'] == [3, 4, 5] and len(kept['parts'][0]['rows']) == 2
  again |= {'parts': [part | {'rows': rows[:1]}], 'rows': ['without']}
  assert write_results.left_out(again) == [f'left out of c4: {rows[1]["name"]}']


def test_the_readme_counts_the_verdicts():
  page = (DOCS / 'results.md').read_text()
  claims = re.findall(r'^\| [A-Z][0-9]+[^|]*(?:\|[^|]*){5}\|', page, re.M)
  # The README counts the verdicts of laptop scale.
  claims = [x for x in claims if '| [cpu](' in x or 'not measured yet' in x]
  found = collections.Counter(
    re.match('[a-z ]+', line.split('|')[6].strip())[0].strip()
    for line in claims
  )
  readme = ' '.join((DOCS.parent / 'README.md').read_text().split())
  missing = found['not measured'] + found['not measured yet']
  assert (
    f'Of {len(claims)} claims, {found["confirmed"]} are confirmed at that '
    f'scale, {found["refuted"]} are refuted, {found["not seen"]} show no '
    f'significant effect, {found["not comparable"]} are not comparable, '
    "because they depend on the paper's data, model size or hardware, and "
    f'{missing} are not measured.'
  ) in readme


def test_claims_that_hours_was_meant_to_decide():
  keys = {
    claim.key for one in reproduce.EXPERIMENTS.values() for claim in one.claims
  }
  assert {*write_results._DECIDED} <= keys

  def found(scale, **verdicts):
    judged = [{'key': k, 'verdict': one} for k, one in verdicts.items()]
    return {'scale': 'hours', 'seeds': [scale], 'claims': judged}

  first = found(
    0, F1='not seen', F2='not measured', F6='not seen', W4='refuted'
  )
  again = found(1, F1='refuted', F6='not seen')
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(
      write_results,
      '_scale',
      lambda one: 'hours' if one['seeds'] == [0] else 'hours, replication',
    )
    text = ' '.join(write_results._decided([first, again]))
    assert write_results._decided([again]) == []
  assert (
    'decide 3 of these claims (F1; F2; F6). It measures 2 of them: ' in text
  )
  assert '2 are *not seen* with the first seeds, and 1 with rep' in text
