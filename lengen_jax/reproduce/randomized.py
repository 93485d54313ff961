"""Randomized encodings on real tasks: its tables and figure.

The paper does not specify its unit on enwik8. As 218.8 at 256 bytes can only be
a sum over the sequence, its scores are divided by the length here: nats per
byte. The range of random positions is not specified either; it is eight
training lengths here, and so is the range of SHAPE's shifts.
"""

from collections.abc import Callable, Mapping, Sequence
import statistics
from typing import Any

from lengen_jax import papers
from lengen_jax.reproduce import model_analysis
from lengen_jax.reproduce.curves import LengthCurves
from lengen_jax.reproduce.experiment import (
  Experiment,
  FULL_SCALES,
  Results,
  Row,
  rows,
  SCALES,
  STDLIB,
  SubstituteData,
  with_claims,
)
from lengen_jax.reproduce.figures import Average, Measurements, ModelAnalysis
from lengen_jax.reproduce.sweeps import TaskSweep
from lengen_jax.reproduce.synthetic import pictures

_RATIOS = (1, 4)
_OURS = (
  'not in the paper, so ours: random and learned positions below eight '
  'training lengths, SHAPE as sin/cos shifted by as much, number of windows '
  'tested',
)
_OURS_CHOMSKY = (
  'not in the paper, so ours: KERPLE and Sandwich draw positions, where the '
  'code of Ruoss et al. draws distances; dropout is off in testing; of their '
  'encodings, whose figures are those of their paper, the randomized ones',
)
_PICTURES = SubstituteData(
  'generated pictures of simple shapes in the format of ImageNet',
  write=pictures.write,
)
# Encodings for the longest training length.
_ENCODINGS: dict[str, Callable[[int], str]] = {
  'nope': lambda n: 'nope',
  'sin/cos': lambda n: 'sinusoidal',
  'alibi': lambda n: 'alibi',
  'transformer-xl': lambda n: 'transformer_xl',
  'rope': lambda n: 'rope',
  'learned': lambda n: f'learned(max_position={8 * n})',
  'power kerple': lambda n: 'kerple_power',
  'log kerple': lambda n: 'kerple_log',
  'sandwich': lambda n: 'sandwich',
}
# Subsets at scales `cpu` and `tiny`: rows of tables 1 and 3, and Chomsky tasks.
_TABLE_1_ROWS = tuple(
  name for name in _ENCODINGS if name not in ('power kerple', 'sandwich')
)
_TABLE_3_ROWS = ('nope', 'sin/cos', 'alibi', 'rope', 'log kerple', 'sandwich')
_FEW_TASKS = ('bucket_sort',)
# Rows that are also tested without a delimiter.
_DELIMITED = ('rope', 'alibi')

Scores = Sequence[float]


def _per_byte(scores: Scores) -> tuple[float, ...]:
  """Returns nats per byte, given sums over 256 and over 1024 bytes."""
  return tuple(x / n for x, n in zip(scores, (256, 1024), strict=True))


def _standard(encoding: Callable[[int], str]) -> Callable[[int], str]:
  return lambda n: f'{encoding(n)} | standard'


def _random(encoding: Callable[[int], str]) -> Callable[[int], str]:
  return lambda n: f'{encoding(n)} | randomized(max_position={8 * n})'


def _random_name(name: str) -> str:
  return f'{name}, randomized'


def _rows(
  table: Mapping[str, tuple[Scores, Scores | None]],
  convert: Callable[[Scores], tuple[float, ...]],
  names: Sequence[str],
  scales: tuple[str, ...] = SCALES,
) -> list[Row]:
  """Returns each encoding's plain and randomized rows.

  Args:
    table: {name: (plain scores, randomized scores or None)}.
    convert: converts the paper's scores.
    names: names of the encodings.
    scales: scales at which the rows are run.
  """
  found = []
  for name in names:
    encoding, (plain, randomized) = _ENCODINGS[name], table[name]
    found.append(Row(name, _standard(encoding), convert(plain), scales))
    if randomized:
      found.append(
        Row(_random_name(name), _random(encoding), convert(randomized), scales)
      )
  return found


def _all_rows(
  table: Mapping[str, tuple[Scores, Scores | None]],
  convert: Callable[[Scores], tuple[float, ...]],
  few: Sequence[str],
) -> tuple[Row, ...]:
  """Returns all rows of a table, of which smaller scales have a few."""
  others = [name for name in _ENCODINGS if name not in few]
  return (
    *_rows(table, convert, few),
    *_rows(table, convert, others, FULL_SCALES),
    Row(
      'shape',
      lambda n: f'sinusoidal | shape(max_shift={8 * n})',
      convert(table['shape'][0]),
    ),
  )


def _enwik8(name: str, table: Sequence[Row], **fields: Any) -> LengthCurves:
  fields = {
    'config': 'randomized_enwik8.py',
    'seed_reduction': 'min',
  } | fields
  return LengthCurves(
    name=name,
    rows=tuple(table),
    ratios=_RATIOS,
    unit='nats per byte',
    substitute=STDLIB,
    **fields,
  )


def _imagenet(name: str, config: str, table: Sequence[Row]) -> LengthCurves:
  return LengthCurves(
    name=name,
    config=config,
    rows=tuple(table),
    ratios=_RATIOS,
    unit='nats per picture',
    substitute=_PICTURES,
    config_lengths=True,
    seed_reduction='min',
  )


_LAYER, _BATCH, _DISTANCES = papers.RUOSS_POSITIONS
_PLAIN = ('power kerple', 'log kerple', 'sandwich', 'shape')
_TABLE_B1 = {
  'power kerple': 'kerple_power',
  'log kerple': 'kerple_log',
  'sandwich': 'sandwich',
  'shape': 'sinusoidal | shape(max_shift=2048)',
  'power kerple, randomized': f'kerple_power | {_LAYER}',
  'log kerple, randomized': f'kerple_log | {_LAYER}',
  'sandwich, randomized': f'sandwich | {_LAYER}',
}
# Encodings of Ruoss et al., with the draws of their code. The last column of
# table B.1 is the best of them.
_RUOSS = {
  'sin/cos, randomized': f'sinusoidal | {_BATCH}',
  'learned, randomized': f'learned(max_position=2048) | {_BATCH}',
  'rope, randomized': f'rope | {_LAYER}',
  'alibi, randomized': f'alibi(official_compat=True) | {_DISTANCES}',
  'transformer-xl, randomized': f'transformer_xl | {_DISTANCES}',
}


def _chomsky(task: str) -> TaskSweep:
  scores = papers.RANDOMIZED_TABLE_B1[task]
  paper = {
    name: (score,) for name, score in zip(_TABLE_B1, scores, strict=False)
  }
  return TaskSweep(
    name=task,
    config=f'chomsky.py:{task}',
    rows=rows(_TABLE_B1 | _RUOSS, paper),
    unit='accuracy, percent',
    scales=SCALES if task in _FEW_TASKS else FULL_SCALES,
  )


def gains(results: Results) -> list[str]:
  """Returns the gain of randomization here and in the paper, in lines.

  The gain of a task is the best randomized score minus the best plain score.
  Its mean over the tasks of the paper's table is the reported 7.4 points.
  """
  printed = statistics.fmean(
    max(scores[4:]) - max(scores[:4])
    for scores in papers.RANDOMIZED_TABLE_B1.values()
  )
  ours = []
  for part in results['parts']:
    if part['kind'] == 'sweep':
      values = {row['name']: row['value'][0] for row in part['rows']}
      random = [v for name, v in values.items() if name.endswith('randomized')]
      ours.append(max(random) - max(values[name] for name in _PLAIN))
  mean_gain = statistics.fmean(
    statistics.fmean(scores[4:7]) - statistics.fmean(scores[:3])
    for scores in papers.RANDOMIZED_TABLE_B1.values()
  )
  return [
    'best randomized minus best plain, mean over tasks: '
    f'{statistics.fmean(ours):+.1f} points here ({len(ours)} tasks), '
    f'{printed:+.1f} in the paper (15 tasks), which says +7.4',
    'mean of the three encodings randomized minus their mean plain, in the '
    f"paper's figures: {mean_gain:+.1f}",
  ]


_TABLE_1, _TABLE_3 = papers.RANDOMIZED_TABLE_1, papers.RANDOMIZED_TABLE_3
_TABLE_2 = {k: _per_byte(v) for k, v in papers.RANDOMIZED_TABLE_2.items()}
_EXPERIMENTS = (
  Experiment(
    'randomized/table1',
    'enwik8: ten encodings, plain and randomized, trained at 256 bytes',
    (_enwik8('enwik8', _all_rows(_TABLE_1, _per_byte, _TABLE_1_ROWS)),),
    seeds=(0, 1, 2),
    ours=_OURS,
  ),
  Experiment(
    'randomized/table2',
    'enwik8: a RoPE model finetuned with RoPE, randomized RoPE, or ALiBi',
    (
      _enwik8(
        'pretrained', (Row('rope', 'rope | standard', _TABLE_2['before']),)
      ),
      _enwik8(
        'finetuned',
        (
          *rows({'rope': 'rope | standard'}, _TABLE_2),
          *rows(
            {
              'rope, randomized': _random(_ENCODINGS['rope']),
              'alibi': 'alibi | standard',
            },
            _TABLE_2,
            init_row='rope',
          ),
        ),
        config='randomized_enwik8.py:finetune',
        init_part='pretrained',
      ),
    ),
    seeds=(0, 1, 2),
    ours=_OURS,
  ),
  Experiment(
    'randomized/table3',
    'ImageNet: ten encodings, plain and randomized, trained on 506 pixels',
    (
      _imagenet(
        'imagenet',
        'randomized_imagenet.py',
        _all_rows(_TABLE_3, tuple, _TABLE_3_ROWS),
      ),
      _imagenet(
        'no delimiter',
        'randomized_imagenet.py:no_delimiter',
        rows({name: _standard(_ENCODINGS[name]) for name in _DELIMITED}),
      ),
    ),
    seeds=(0, 1, 2),
    ours=_OURS,
  ),
  Experiment(
    'randomized/figureB1',
    'attention matrices in distribution and out of it, sin/cos',
    (
      _enwik8(
        'enwik8',
        _rows(_TABLE_1, _per_byte, ('sin/cos',)),
        seed_reduction='mean',
      ),
      ModelAnalysis(
        name='matrices',
        part='enwik8',
        rows=('sin/cos', 'sin/cos, randomized'),
        draw=model_analysis.draw_matrices,
        measurements=Measurements(
          ('1x', 'beyond'),
          'weight within two tokens of the diagonal, times what it is if even',
          model_analysis.diagonal,
        ),
      ),
    ),
    ours=_OURS,
  ),
  Experiment(
    'randomized/tableB1',
    'the Chomsky hierarchy: 15 tasks, trained on lengths 1..40',
    (
      *map(_chomsky, papers.RANDOMIZED_TABLE_B1),
      Average(name='tasks', members=tuple(papers.RANDOMIZED_TABLE_B1)),
    ),
    summary=gains,
    seeds=(0, 1, 2),
    ours=_OURS_CHOMSKY,
  ),
)

_CLAIMS = """
[randomized/table1]
R1, relative: KERPLE, Transformer-XL and ALiBi, plain, generalise best
  enwik8: power kerple|log kerple|transformer-xl|alibi <
    sin/cos|rope|learned|nope|sandwich|shape @ 4
R1, randomized: randomization helps sin/cos and RoPE and hurts KERPLE,
    Transformer-XL, ALiBi and learned positions
  enwik8: sin/cos, randomized < sin/cos @ 4
  enwik8: rope, randomized < rope @ 4
  enwik8: power kerple < power kerple, randomized @ 4
  enwik8: log kerple < log kerple, randomized @ 4
  enwik8: transformer-xl < transformer-xl, randomized @ 4
  enwik8: alibi < alibi, randomized @ 4
  enwik8: learned < learned, randomized @ 4
R4, text: SHAPE, which shifts sin/cos, is not enough: worse beyond the training
    length than randomized sin/cos
  enwik8: sin/cos, randomized < shape @ 4
[randomized/table2]
R2: finetuning RoPE makes four times the length worse, randomized RoPE repairs
    much of it, ALiBi most
  pretrained: rope @ 4 < finetuned: @ 4
  finetuned: rope, randomized < pretrained: rope @ 4
  finetuned: alibi < rope, randomized @ 4
[randomized/table3]
R3, plain: beyond the training length every plain relative encoding is worse
    than none (print has Log KERPLE and Sandwich better)
  imagenet: nope < alibi|transformer-xl|rope|power kerple|log kerple|sandwich @
    4
R3, randomized: randomization repairs every encoding but Sandwich and Log KERPLE
  imagenet: sin/cos, randomized < sin/cos @ 4
  imagenet: alibi, randomized < alibi @ 4
  imagenet: transformer-xl, randomized < transformer-xl @ 4
  imagenet: rope, randomized < rope @ 4
  imagenet: learned, randomized < learned @ 4
  imagenet: power kerple, randomized < power kerple @ 4
  imagenet: sandwich < sandwich, randomized @ 4
  imagenet: log kerple < log kerple, randomized @ 4
R4, ImageNet: SHAPE is not enough: worse than randomized sin/cos
  imagenet: sin/cos, randomized < shape @ 4
R6: a delimiter at the end of each row is better than none
  imagenet: rope|alibi @ 1|4 < no delimiter: @ 1|4
[randomized/figureB1]
R7: with randomized sin/cos queries beyond the training length attend near the
    diagonal, twice what is even or more; without, less than that
  matrices: sin/cos, randomized @ beyond > 2.0
  matrices: sin/cos @ beyond < 2.0
[randomized/tableB1]
R5, Sandwich: Sandwich gains nothing from randomization, mean over the tasks
  tasks: sandwich > sandwich, randomized @ beyond
R5, KERPLE: randomization helps KERPLE, mean over the tasks
  tasks: power kerple, randomized > power kerple @ beyond
  tasks: log kerple, randomized > log kerple @ beyond
R4, Chomsky: SHAPE is not enough: worse than randomized sin/cos, mean over the
    tasks
  tasks: sin/cos, randomized > shape @ beyond
"""

EXPERIMENTS = with_claims(_CLAIMS, _EXPERIMENTS)
