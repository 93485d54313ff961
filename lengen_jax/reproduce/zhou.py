"""Addition beyond the lengths seen: index hints, random positions, seeds.

Zhou et al. (2024), arXiv:2402.09371. The paper has figures and no tables, so
that experiments are named by their contents and have no printed scores. Its
figures are the best of ten seeds; claims here compare means over seeds, and the
summary lists every seed.
"""

from collections.abc import Sequence
from typing import Any

from lengen_jax import papers
from lengen_jax.reproduce import experiment
from lengen_jax.reproduce.experiment import Results, Row
from lengen_jax.reproduce.sweeps import TaskSweep

_OURS = (
  'not in the paper, so ours: the range of random positions and of the tables '
  'of positions; betas and clipping; a batch has numbers of one length, where '
  'the paper packs rows of 2048 tokens; Abacus and coupled positions, from '
  'other papers',
)


def _row(name: str) -> Row:
  return Row(name, lambda n: papers.zhou_runs(n)[name])


def _sweep(numbers: str, *names: str, model: str = '') -> TaskSweep:
  """Returns runs on a format of `configs/arithmetic.py`."""
  return TaskSweep(
    name=model or numbers,
    config=f'arithmetic.py:{numbers}' + f',{model}' * bool(model),
    rows=tuple(map(_row, names)),
    unit='answers all right, percent',
  )


def _every_seed(results: Results) -> list[str]:
  """Returns a line per row with the score of each seed beyond training."""
  lines = []
  for part in results['parts']:
    column = part['columns'].index('beyond')
    for row in part['rows']:
      scores = sorted((scores[column] for scores in row['values']), key=_order)
      text = ', '.join('-' if x is None else f'{x:.1f}' for x in scores)
      lines.append(f'{part["name"]}, {row["name"]}, each seed: {text}')
  return lines


def _order(score: float | None) -> float:
  return -1.0 if score is None else score


_RANDOM = 'fire, randomized'
_PARTS: dict[str, Sequence[Any]] = {
  'formats': (
    _sweep('plain', 'fire'),
    _sweep('reversed', 'fire', 'abacus', 'coupled'),
    _sweep('hints', 'fire', _RANDOM),
  ),
  'encodings': (
    _sweep('hints', _RANDOM, 'rope', 'kerple', 'kerple, randomized', 'nope'),
  ),
  'sizes': tuple(
    _sweep('hints', _RANDOM, model=model)
    for model in ('2M', '5M', '25M', '268M')
  ),
  'seeds': (_sweep('hints', _RANDOM),),
}
_TEXT = """
[formats] addition, FIRE: plain, reversed, with index hints, with random
    positions; Abacus and coupled positions beside it
Z1: index hints and reversed numbers are needed for length: more right answers
    than reversed numbers alone, and than plain ones
  hints: fire > reversed: fire @ beyond
  hints: fire > plain: fire @ beyond
Z1, seen lengths: without index hints FIRE does not fit the lengths it is
    trained on: at least one answer in a hundred less than with them
  hints: fire > reversed: fire @ seen by 1
Z2: random positions improve FIRE with index hints
  hints: fire, randomized > fire @ beyond
A1, Abacus: Abacus positions improve FIRE on reversed numbers
  reversed: abacus > fire @ beyond
C1, coupling: coupled positions beat FIRE on reversed numbers
  reversed: coupled > fire @ beyond
[encodings] addition with index hints: encodings, with random positions
Z3: FIRE with random positions beats RoPE, KERPLE and NoPE beyond the training
    length
  hints: fire, randomized > rope|kerple|nope @ beyond
Z4: random positions hurt KERPLE
  hints: kerple > kerple, randomized @ beyond
[sizes] addition with index hints, FIRE and random positions: four sizes of
    models
Z6: the largest model is not the best: the one of 5M parameters beats the one of
    268M
  5M: fire, randomized > 268M: fire, randomized @ beyond
[seeds] addition with index hints, FIRE and random positions: ten seeds
Z5*: the lengths of training are fitted: 99 percent or more, mean over seeds
  hints: fire, randomized @ seen > 99
"""
_FIELDS = {'seeds': {'seeds': tuple(range(10))}}

EXPERIMENTS = experiment.read(
  'zhou',
  _TEXT,
  _PARTS,
  _FIELDS,
  ours=_OURS,
  seeds=(0, 1, 2),
  summary=_every_seed,
)
