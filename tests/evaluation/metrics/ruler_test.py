"""Tests `lengen_jax/evaluation/metrics/ruler.py`.

Golden scores: `golden/ruler/README.json`.
"""

import json

import pytest

from lengen_jax import errors
from lengen_jax.evaluation.metrics import ruler
from tests import helpers

GOLDEN = json.loads((helpers.GOLDEN / 'ruler' / 'ruler.json').read_text())


@pytest.mark.parametrize('case', GOLDEN['scoring'])
def test_golden(case):
  texts = case['predictions'], case['references']
  for name in ('string_match_all', 'string_match_part'):
    assert getattr(ruler, name)(*texts) == case[name]
  assert [*map(ruler.postprocess, texts[0])] == case['postprocessed']


def test_mistakes():
  with pytest.raises(errors.MetricError, match='nothing to score'):
    ruler.string_match_all([], [])
  with pytest.raises(errors.MetricError, match='1 predictions, 2 references'):
    ruler.string_match_part(['a'], [['a'], ['b']])
  with pytest.raises(errors.MetricError, match="references.0. is 'ab'; pass a"):
    ruler.string_match_all(['ab'], ['ab'])
  with pytest.raises(errors.MetricError, match='one or more strings'):
    ruler.string_match_all(['ab'], [[]])


def test_effective_length():
  averages = {4096: 95.0, 8192: 85.6, 16384: 85.59}
  assert ruler.effective_length(averages) == 8192
  assert ruler.effective_length(averages, 80.0) == 16384
  assert ruler.effective_length(averages, 99.0) is None
  assert ruler.effective_length({}) is None
