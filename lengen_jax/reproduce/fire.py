"""FIRE, arXiv:2310.04418: tables and figures.

The paper cuts its test set anew at each length; here all lengths score the same
tokens, so scores differ from print for that reason too. The paper does not
specify its variant of KERPLE; the rows use the logarithmic one.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import statistics
from typing import Any

from lengen_jax import papers
from lengen_jax.reproduce import model_analysis
from lengen_jax.reproduce.curves import LengthCurves
from lengen_jax.reproduce.experiment import (
  Experiment,
  FULL_SCALES,
  Row,
  rows,
  SCALES,
  SubstituteData,
  with_claims,
)
from lengen_jax.reproduce.figures import Average, Measurements, ModelAnalysis
from lengen_jax.reproduce.finetuning import Finetuning
from lengen_jax.reproduce.synthetic import glue, scrolls
from lengen_jax.reproduce.timings import ForwardTiming

_RATIOS = (0.25, 0.5, 1, 2, 4)
_STORY_RATIOS = (0.0625, 0.25, 0.5, 1, 2, 3, 4)
_HARDWARE = {'base': '128 TPUv4', 'large': '256 TPUv4'}
_OURS_TRAINING = (
  'not in the paper, so ours: vocabulary, schedule, warm-up, weight decay, '
  'clipping, number of tokens tested; KERPLE taken as the logarithmic one',
)
_OURS = (
  *_OURS_TRAINING,
  'here all lengths score the same tokens; the paper cuts its test set anew at '
  'each length',
)
_OURS_YARN = (
  *_OURS,
  'the paper gives no recipe for YaRN: as in arXiv:2309.00071, but for 8192 '
  'tokens; the second claim compares it with FIRE finetuned in the same way',
)
_OURS_PROMPTS = (
  'not in the paper, so ours: form of prompts, separator, lengths of answers, '
  'constant rate, optimizer as in pretraining',
)
_SCROLLS = SubstituteData(
  'generated questions and documents in the format of SCROLLS, in bytes',
  write=scrolls.write,
)
_GLUE = SubstituteData(
  'generated tasks in the format of GLUE and SuperGLUE, in bytes',
  write=glue.write,
)
# Subsets at scales `cpu` and `tiny`: tasks of SCROLLS, and rows of GLUE.
_FEW_TASKS = ('contract_nli',)
_FEW_ROWS = ('nope', 'rope', 'alibi', 'fire')

Run = str | Callable[[int], str]


def _fire(**keys: Any) -> Callable[[int], str]:
  """Returns FIRE runs whose initial threshold is n / 4: 512 at 2048."""
  return _fire_pretrained_at(1, **keys)


def _fire_pretrained_at(ratio: float, **keys: Any) -> Callable[[int], str]:
  """Returns runs of FIRE pretrained at n / ratio tokens."""

  def run(n: int) -> str:
    values = {'init_threshold': n / ratio / 4} | keys
    return f'fire({", ".join(f"{k}={v!r}" for k, v in values.items())})'

  return run


_BASELINES: dict[str, Run] = {
  'nope': 'nope',
  'rope': 'rope',
  'alibi': 'alibi',
  'kerple': 'kerple_log',
  't5': 't5(num_buckets=64)',
}
_OTHERS = tuple(_BASELINES)
_NO_THRESHOLD: dict[str, Run] = {'fire, no threshold': "fire(threshold='none')"}
_NO_LOG: dict[str, Run] = {
  'no log, no threshold': "fire(transform='identity', threshold='none')"
}
_FIRE: dict[str, Run] = {'fire': _fire()}
_FIXED: dict[str, Run] = {
  'raw distance': "fire(transform='identity', threshold='none', "
  "normalizer='none')",
  'fixed length': lambda n: (
    "fire(transform='identity', threshold='none', normalizer='max_length', "
    f'max_length={n})'
  ),
}
_GLUE_FIRE: dict[str, Run] = {'fire': _fire_pretrained_at(0.5)}
_SHARED: dict[str, Run] = {'fire-s': _fire(shared=True)}
_CURVES = rows(_BASELINES | _FIRE)
_TABLE_4 = papers.FIRE_TABLE_4
_ALL = rows(_BASELINES | _NO_THRESHOLD | _FIRE, _TABLE_4)


def _c4(
  name: str,
  runs: Mapping[str, Run] | Sequence[Row],
  paper: Mapping[str, Sequence[float]] | None = None,
  **fields: Any,
) -> LengthCurves:
  """Returns loss curves on C4, of rows or of {name: run}."""
  table = rows(runs, paper) if isinstance(runs, Mapping) else tuple(runs)
  fields = {'config': 'fire_c4.py:base', 'ratios': _RATIOS} | fields
  return LengthCurves(name=name, rows=table, **fields)


def _full_size(
  name: str, config: str, table: Sequence[Row] = _CURVES, **fields: Any
) -> LengthCurves:
  """Returns curves of a model size that smaller scales omit."""
  hardware = _HARDWARE['large' if 'large' in config else 'base']
  return _c4(
    name, table, config=config, scales=FULL_SCALES, hardware=hardware, **fields
  )


def _pretrained(model: str, table: Sequence[Row] = _CURVES) -> LengthCurves:
  """Returns the models that finetuning starts from at full scales."""
  return _full_size(
    _named('c4', model), f'fire_c4.py:{model}', table, substitute=None
  )


def _named(name: str, model: str) -> str:
  return name if model == 'base' else f'{name}, large'


def _finetuned(
  paper: Mapping[str, Any],
  ratio: float,
  shared: bool = True,
  interpolated: Sequence[str] = ('rope-pi',),
) -> tuple[Row, ...]:
  """Returns the rows of finetuning.

  Args:
    paper: {row: the paper's scores}.
    ratio: training length, relative to that of pretraining.
    shared: whether to include FIRE-S.
    interpolated: names of rows of RoPE with scales 4, 16, ...
  """
  scales = {name: 4.0**n for n, name in enumerate(interpolated, 1)}
  runs = _BASELINES | {'fire': _fire_pretrained_at(ratio)}
  if shared:
    runs |= {'fire-s': _fire_pretrained_at(ratio, shared=True)}
  found = []
  for row in rows(runs, paper):
    found.append(row)
    if row.name == 'rope':
      found += [
        Row(name, f'rope(scale={scale!r})', paper.get(name), init_row='rope')
        for name, scale in scales.items()
      ]
  return tuple(found)


def _scrolls(model: str) -> list[Finetuning]:
  """Returns finetuning on each task of SCROLLS."""
  return [
    Finetuning(
      name=_named(task, model),
      config=f'scrolls.py:{task},{model}',
      rows=_finetuned(
        {k: (v[column],) for k, v in papers.FIRE_TABLE_1[model].items()},
        4,
        shared=model == 'base',
      ),
      substitute=_SCROLLS,
      init_part=_named('c4', model),
      scales=SCALES if task in _FEW_TASKS and model == 'base' else FULL_SCALES,
    )
    for column, task in enumerate(papers.FIRE_TABLE_1_TASKS)
  ]


def _glue(model: str, table: Sequence[Row]) -> Finetuning:
  """Returns finetuning on all tasks of GLUE and SuperGLUE."""
  return Finetuning(
    name=_named('glue', model),
    config=f'glue_superglue.py:{model}',
    rows=tuple(table),
    substitute=_GLUE,
    init_part=_named('c4', model),
    tasks=tuple(papers.FIRE_TABLE_13[model]),
    scales=SCALES if model == 'base' else FULL_SCALES,
  )


def _table_13(model: str) -> list[Row]:
  """Returns the rows of table 13, with the mean over tasks."""
  names = ('nope', 'rope', 'rope-pi', 'alibi', 'kerple', 't5', 'fire')
  columns = zip(*papers.FIRE_TABLE_13[model].values(), strict=True)
  paper = {
    name: (*scores, statistics.fmean(scores))
    for name, scores in zip(names, columns, strict=True)
  }
  return [
    row
    if row.name in _FEW_ROWS
    else dataclasses.replace(row, scales=FULL_SCALES)
    for row in _finetuned(paper, 0.5, shared=False)
  ]


def _glue_means(
  runs: Mapping[str, Run], means: Mapping[str, float]
) -> Finetuning:
  """Returns finetuning on GLUE where the paper reports means only."""
  no_tasks = [None] * len(papers.FIRE_TABLE_13['base'])
  paper = {name: (*no_tasks, mean) for name, mean in means.items()}
  return _glue('base', rows(runs, paper))


def _ablation(
  name: str,
  title: str,
  runs: Mapping[str, Run],
  paper: Mapping[str, Sequence[float]] | None,
) -> Experiment:
  """Returns a comparison of variants of FIRE on C4."""
  part = _c4('c4', runs, paper)
  return Experiment(
    f'fire/{name}', title, (part,), _HARDWARE['base'], ours=_OURS
  )


_PI = ('rope-pi, 8192', 'rope-pi, 32768')

_LANGUAGE_MODELLING = (
  Experiment(
    'fire/figure1',
    'log perplexity by length on C4, arXiv and GitHub, base and large; figures '
    '1, 2 and 7',
    (
      _c4('c4', _CURVES),
      _full_size('arxiv', 'fire_c4.py:base,arxiv'),
      _full_size('github', 'fire_c4.py:base,github'),
      _full_size('c4, large', 'fire_c4.py:large,c4'),
      _full_size('arxiv, large', 'fire_c4.py:large,arxiv'),
      _full_size('github, large', 'fire_c4.py:large,github'),
    ),
    _HARDWARE['base'],
    ours=_OURS,
  ),
  Experiment(
    'fire/figure4',
    'the biases that FIRE learns, by layer and head; figures 4 and 8, and the '
    'thresholds',
    (
      _c4('c4', _FIRE, _TABLE_4),
      ModelAnalysis(
        name='biases',
        part='c4',
        rows=('fire',),
        draw=model_analysis.draw_biases,
        measurements=Measurements(
          ('least threshold', 'largest threshold', 'local', 'anti-local'),
          'thresholds in training lengths; shares of heads',
          model_analysis.thresholds_and_kinds,
        ),
      ),
    ),
    _HARDWARE['base'],
    ours=_OURS,
  ),
  Experiment(
    'fire/figure5',
    'time of a forward pass at the training length, models not trained',
    (
      ForwardTiming(
        name='forward',
        config='fire_c4.py:base',
        rows=(*_CURVES, *rows(_SHARED)),
        ratios=(1, 4),
      ),
    ),
    '4 TPUv2',
    # A round takes seconds, and is noisy.
    seeds=(0, 1, 2, 3, 4),
  ),
  Experiment(
    'fire/figure6',
    'trained at 512, tested to 8192: C4',
    (_c4('c4', _CURVES, ratios=(1, 2, 4, 8, 16), shrink=4),),
    _HARDWARE['base'],
    ours=_OURS,
  ),
  Experiment(
    'fire/yarn',
    'YaRN, a RoPE model finetuned at four times the length, beside FIRE',
    (
      _c4('pretrained', {'rope': 'rope'} | _FIRE),
      _c4(
        'finetuned',
        (
          Row(
            'yarn',
            # n is the length of finetuning.
            lambda n: f'yarn(scale=4., train_length={n // 4})',
            init_row='rope',
          ),
          Row('fire', _fire_pretrained_at(4)),
        ),
        config='yarn_c4.py:base',
        ratios=(0.0625, 0.125, 0.25, 0.5, 1),
        init_part='pretrained',
      ),
    ),
    _HARDWARE['base'],
    ours=_OURS_YARN,
  ),
)

_FINETUNING = (
  Experiment(
    'fire/table1',
    'SCROLLS: finetuned at four times the length, scores of seven tasks',
    (
      _pretrained('base', (*_CURVES, *rows(_SHARED))),
      *_scrolls('base'),
      Average(name='mean', members=papers.FIRE_TABLE_1_TASKS),
      _pretrained('large'),
      *_scrolls('large'),
      Average(
        name='mean, large',
        members=tuple(f'{task}, large' for task in papers.FIRE_TABLE_1_TASKS),
        scales=FULL_SCALES,
      ),
    ),
    _HARDWARE['base'],
    ours=_OURS_TRAINING + _OURS_PROMPTS,
  ),
  Experiment(
    'fire/figure3',
    'NarrativeQA by length of the story, finetuned at 8192; table 11',
    (
      _pretrained('base'),
      Finetuning(
        name='narrative_qa',
        config='narrativeqa_zeroshot.py',
        rows=_finetuned(
          papers.FIRE_TABLE_11, 4, shared=False, interpolated=_PI
        ),
        substitute=_SCROLLS,
        init_part='c4',
        ratios=_STORY_RATIOS,
        config_lengths=True,
      ),
    ),
    _HARDWARE['base'],
    ours=_OURS_TRAINING + _OURS_PROMPTS,
  ),
  Experiment(
    'fire/table13',
    'GLUE and SuperGLUE, all tasks at once; the averages of figure 3',
    (
      _pretrained('base'),
      _glue('base', _table_13('base')),
      _pretrained('large'),
      _glue('large', _table_13('large')),
    ),
    '32 TPUv2',
    ours=_OURS_TRAINING + _OURS_PROMPTS,
  ),
)

_ABLATIONS = (
  Experiment(
    'fire/table4',
    'log perplexity on C4 by length, trained at 2048',
    (_c4('c4', _ALL),),
    _HARDWARE['base'],
    ours=_OURS,
  ),
  Experiment(
    'fire/table2',
    'one FIRE for all layers (FIRE-S) against one for each: C4 and GLUE; '
    'SCROLLS is in table 1',
    (
      _c4(
        'c4',
        _FIRE | _SHARED | {'kerple': 'kerple_log'},
        _TABLE_4 | {'fire': (3.15, 3.08, 3.05, 3.05, 3.06)},
      ),
      _glue_means(
        {
          'fire': _fire_pretrained_at(0.5),
          'fire-s': _fire_pretrained_at(0.5, shared=True),
        },
        {'fire': 71.14, 'fire-s': 71.04},
      ),
    ),
    _HARDWARE['base'],
    ours=_OURS + _OURS_PROMPTS,
  ),
  Experiment(
    'fire/table3',
    'the transform and the threshold, one by one: C4 and GLUE',
    (
      _c4(
        'c4',
        _NO_LOG | _NO_THRESHOLD | _FIRE,
        _TABLE_4
        | {'no log, no threshold': (3.194, 3.128, 3.099, 3.216, 3.334)},
      ),
      _glue_means(
        _NO_LOG | _NO_THRESHOLD | _GLUE_FIRE,
        {
          'no log, no threshold': 69.06,
          'fire, no threshold': 70.42,
          'fire': 71.14,
        },
      ),
    ),
    _HARDWARE['base'],
    ours=_OURS + _OURS_PROMPTS,
  ),
  _ablation(
    'table5',
    'how much the function can hold: C4',
    {
      'linear': _fire(hidden_layers=0),
      'one hidden layer': _fire(hidden_layers=1),
      'two hidden layers': _fire(hidden_layers=2),
    },
    {
      'linear': (3.21, 3.14, 3.11, 3.20, 3.32),
      'one hidden layer': (3.17, 3.10, 3.07, 3.06, 3.08),
      'two hidden layers': (3.15, 3.08, 3.05, 3.05, 3.06),
    },
  ),
  _ablation(
    'table6',
    'GELU in place of ReLU: C4',
    {'relu': _fire(), 'gelu': _fire(activation='gelu')},
    {
      'relu': (3.15, 3.08, 3.05, 3.05, 3.06),
      'gelu': (3.36, 3.26, 3.06, 3.05, 3.06),
    },
  ),
  _ablation(
    'table7',
    'an activation on the output, one hidden layer: C4',
    {
      'with': _fire(hidden_layers=1, final_activation='relu'),
      'without': _fire(hidden_layers=1),
    },
    {
      'with': (3.16, 3.10, 3.07, 3.09, 3.19),
      'without': (3.17, 3.10, 3.07, 3.06, 3.08),
    },
  ),
  _ablation(
    'section3',
    'an MLP on the distance itself, and on one divided by a fixed length',
    _FIXED | _FIRE,
    _TABLE_4,
  ),
  _ablation(
    'threshold',
    'a learned threshold against a fixed one',
    {'fixed': _fire(threshold='fixed'), 'learned': _fire()},
    None,
  ),
)

_CLAIMS = """
[fire/figure1]
F1, arxiv: FIRE has the least loss of all encodings at every length
  arxiv: fire < nope|rope|alibi|kerple|t5 @ 0.25|0.5|1|2|4
F1, github: FIRE has the least loss of all encodings at every length
  github: fire < nope|rope|alibi|kerple|t5 @ 0.25|0.5|1|2|4
F1, c4, large: FIRE has the least loss of all encodings at every length
  c4, large: fire < nope|rope|alibi|kerple|t5 @ 0.25|0.5|1|2|4
F1, arxiv, large: FIRE has the least loss of all encodings at every length
  arxiv, large: fire < nope|rope|alibi|kerple|t5 @ 0.25|0.5|1|2|4
F1, github, large: FIRE has the least loss of all encodings at every length
  github, large: fire < nope|rope|alibi|kerple|t5 @ 0.25|0.5|1|2|4
[fire/figure4]
F5, range: learned thresholds end between 0.59 and 0.78 training lengths (1200
    to 1600 at 2048)
  biases: fire @ least threshold > 0.5859375
  biases: fire @ largest threshold < 0.78125
F8: there are heads that learn local and heads that learn anti-local patterns:
    each a twentieth or more
  biases: fire @ local|anti-local > 0.05
[fire/figure5]
F9, T5: FIRE and FIRE-S are faster than T5's bias
  forward: fire|fire-s < t5 @ 1
F9, FIRE-S: FIRE-S is faster than all but NoPE
  forward: fire-s < rope|alibi|kerple|t5|fire @ 1
[fire/figure6]
F1, figure 6: FIRE has the least loss of all encodings at every length, trained
    at 512
  c4: fire < nope|rope|alibi|kerple|t5 @ 1|2|4|8|16
[fire/yarn]
F12: YaRN is worse than FIRE at long lengths and at a quarter of the training
    length
  pretrained: fire @ 4|2|0.25 < finetuned: yarn @ 1|0.5|0.0625
F12, as long trained: YaRN is worse than FIRE trained on in the same way, at
    long lengths and at a quarter of the training length
  finetuned: fire < yarn @ 0.0625|0.5|1
[fire/table1]
F10, SCROLLS: FIRE has the best average of SCROLLS, by half a point or more,
    base
  mean: fire > nope|rope|alibi|kerple|t5|rope-pi @ 1 by 0.5
F7, SCROLLS: FIRE-S is a little worse than FIRE on SCROLLS
  mean: fire > fire-s @ 1
F10, SCROLLS, large: FIRE has the best average of SCROLLS, large
  mean, large: fire > nope|rope|alibi|kerple|t5|rope-pi @ 1
[fire/figure3]
F10, NarrativeQA: FIRE is best at every length
  narrative_qa: fire > nope|rope|alibi|kerple|t5|rope-pi, 8192|rope-pi, 32768 @
    0.0625|0.25|0.5|1|2|3|4
F10, RoPE-PI: RoPE-PI for 8192 drops beyond it and that for 32768 does not (not
    by two points), which is worse than the former when short
  narrative_qa: rope-pi, 8192 @ 1|1 > @ 2|4
  narrative_qa: rope-pi, 32768 @ 4 > @ 1 by -2
  narrative_qa: rope-pi, 32768 > rope-pi, 8192 @ 2|4
  narrative_qa: rope-pi, 8192 > rope-pi, 32768 @ 0.0625|0.5|1
[fire/table13]
F11: short tasks are not hurt: FIRE has at least the mean of RoPE less one
    point, and more than NoPE and ALiBi, base
  glue: fire > rope @ mean by -1
  glue: fire > nope|alibi @ mean
F11, large: RoPE has a higher mean than FIRE, large
  glue, large: rope > fire @ mean
[fire/table4]
F1: FIRE has the least loss of all encodings at every length
  c4: fire < nope|rope|alibi|kerple|t5 @ 0.25|0.5|1|2|4
F2: RoPE, ALiBi, NoPE and T5 get worse beyond the training length, ALiBi most;
    KERPLE stays flat (not worse by 0.02)
  c4: rope|alibi|nope|t5 @ 1 < @ 4
  c4: rope < alibi @ 4
  c4: kerple @ 4 < @ 1 by -0.02
F3, threshold: the threshold helps at short lengths; FIRE without it still beats
    every baseline
  c4: fire < fire, no threshold @ 0.25
  c4: fire, no threshold < nope|rope|alibi|kerple|t5 @ 0.25|0.5|1|2|4
[fire/table2]
F7, GLUE: FIRE-S is a little worse than FIRE on GLUE and SuperGLUE
  glue: fire > fire-s @ mean
F7: FIRE-S is a little worse than FIRE and better than KERPLE when long
  c4: fire < fire-s @ 0.25|0.5|1|2|4
  c4: fire-s < kerple @ 4
[fire/table3]
F3, GLUE: the threshold helps on GLUE and SuperGLUE, and so does the logarithm
  glue: fire > fire, no threshold @ mean
  glue: fire, no threshold > no log, no threshold @ mean
F3, transform: the logarithm helps at four times the length, the threshold at a
    quarter
  c4: fire, no threshold < no log, no threshold @ 4
  c4: fire < fire, no threshold @ 0.25
[fire/table5]
F4, layers: two hidden layers are better than one, one than a linear map
  c4: two hidden layers < one hidden layer @ 0.25|0.5|1|2|4
  c4: one hidden layer < linear @ 0.25|0.5|1|2|4
[fire/table6]
F4, activation: GELU is worse than ReLU at short lengths and the same (to 0.02)
    at long ones
  c4: relu < gelu @ 0.25|0.5
  c4: relu < gelu @ 2|4 by -0.02
  c4: gelu < relu @ 2|4 by -0.02
[fire/table7]
F4, output: no activation on the output is better when long
  c4: without < with @ 2|4
[fire/section3]
F6: an MLP on the raw distance, or on one divided by a fixed length, fails
    beyond the training length
  c4: raw distance|fixed length @ 1 < @ 4
  c4: fire < raw distance|fixed length @ 4
[fire/threshold]
F5, loss: a learned threshold is better than a fixed one
  c4: learned < fixed @ 0.25|0.5|1|2|4
"""

EXPERIMENTS = with_claims(
  _CLAIMS, _LANGUAGE_MODELLING + _FINETUNING + _ABLATIONS
)
