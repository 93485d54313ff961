"""docs/results.md: generated, and up to date."""

import json
import pathlib

from lengen_jax import reproduce
from lengen_jax.reproduce import results_page

DOCS = pathlib.Path(__file__).parent.parent.parent / 'docs'


def test_the_page_is_that_of_the_results():
  assert (DOCS / 'results.md').read_text() == results_page.page(
    DOCS / 'results'
  ), 'run: make results'


def test_every_claim_is_there():
  page = results_page.page(DOCS / 'results')
  for experiment in reproduce.EXPERIMENTS.values():
    for claim in experiment.claims:
      assert f'| {claim.key} | {claim.text} | `{experiment.name}` |' in page


def test_results_are_taken_and_shown(tmp_path):
  claim = reproduce.get('fire/table6').claims[0]
  found = {
    'name': 'fire/table6',
    'title': 'a title',
    'scale': 'cpu',
    'seeds': [0, 1],
    'command': 'lengen reproduce fire/table6 --scale=cpu',
    'commit': 'abcdef',
    'parts': [
      {
        'kind': 'curves',
        'name': 'c4',
        'unit': 'nats per token',
        'columns': [1],
        'train_length': 128,
        'tokens': 1024,
        'of_seeds': 'mean',
        'rows': [
          {
            'name': 'relu',
            'run': 'fire',
            'values': [[1.5], [1.7]],
            'value': [1.6],
            'spread': [0.1],
            'paper': [3.05],
          }
        ],
        'standin': 'something else',
        'differences': ['train.steps: 1, at full size 2'],
      }
    ],
    'claims': [
      {
        'key': claim.key,
        'text': claim.text,
        'verdict': 'confirmed',
        'comparisons': [
          {'outcome': 'holds', 'effect': 0.25},
          {'outcome': 'holds', 'effect': 0.5},
        ],
      }
    ],
    'summary': ['a summary'],
  }
  for scale in ('cpu', 'tiny'):
    folder = tmp_path / 'runs' / scale
    folder.mkdir(parents=True)
    (folder / 'reproduction.json').write_text(
      json.dumps(found | {'scale': scale})
    )
  results_page.main(tmp_path / 'runs', tmp_path / 'docs')
  assert [path.name for path in (tmp_path / 'docs/results').iterdir()] == [
    'fire_table6_cpu.json'
  ]
  text = (tmp_path / 'docs/results.md').read_text()
  for line in (
    '## fire/table6, scale cpu',
    '| run | 1x | paper 1x |',
    '| relu | 1.600 ±0.100 | 3.050 |',
    "- in place of the paper's data: something else",
    '- train.steps: 1, at full size 2',
    '- a summary',
    f'| {claim.key} | {claim.text} | `fire/table6` '
    '| [cpu](#firetable6-scale-cpu) | 2 | confirmed (2 holds) '
    '| +0.25 .. +0.5 |',
  ):
    assert line in text.splitlines(), line
