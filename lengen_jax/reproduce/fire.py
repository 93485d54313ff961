"""FIRE, arXiv:2310.04418: tables and figures.

The paper cuts its test set anew at each length. This package scores the same
tokens at all lengths, which is one reason why scores differ from the paper's.
The paper does not specify its variant of KERPLE; the rows use kerple_log.
"""

from collections.abc import Callable, Iterable, Mapping
import dataclasses
import statistics
from typing import Any

from lengen_jax import papers
from lengen_jax.reproduce import experiment, model_analysis
from lengen_jax.reproduce.curves import LengthCurves
from lengen_jax.reproduce.experiment import FULL_SCALES, Run, SCALES, Scores
from lengen_jax.reproduce.figures import Average, Figure
from lengen_jax.reproduce.finetuning import Finetuning
from lengen_jax.reproduce.synthetic import glue, scrolls
from lengen_jax.reproduce.timings import ForwardTiming

_OURS_TRAINING = (
  'not in the paper, so ours: vocabulary, schedule, warm-up, weight decay, '
  'clipping, number of tokens tested; KERPLE taken as the logarithmic one; '
  'KERPLE and T5 with parameters of their own in each layer, where the code '
  'of their authors shares them, and T5 with distances up to 128',
)
_OURS = (
  *_OURS_TRAINING,
  'here all lengths score the same tokens; the paper cuts its test set anew at '
  'each length',
)
_OURS_YARN = (
  'the paper gives no recipe for YaRN: as in arXiv:2309.00071, but for 8192 '
  'tokens; the second claim compares it with FIRE finetuned in the same way',
)
_OURS_PROMPTS = (
  'not in the paper, so ours: form of prompts, separator, lengths of answers, '
  'constant rate, optimizer as in pretraining',
  'the attention dropout of 0.1 of finetuning is not in the model',
)
_SCROLLS = experiment.SubstituteData(
  'generated questions and documents in the format of SCROLLS, in bytes',
  write=scrolls.write,
  same_kind=False,
)
_GLUE = experiment.SubstituteData(
  'generated tasks in the format of GLUE and SuperGLUE, in bytes',
  write=glue.write,
  same_kind=False,
)
# By model: the suffix of its parts' names, and the paper's hardware.
_MODELS = {'base': ('', '128 TPUv4'), 'large': (', large', '256 TPUv4')}


def _fire(keys: str = '', ratio: float = 1) -> Callable[[int], str]:
  """Returns a run of FIRE with further `keys`, pretrained at n / ratio tokens.

  The initial threshold is a quarter of n / ratio, such as 512 for 2048.
  """
  return lambda n: f'fire(init_threshold={n / ratio / 4}{keys})'


_NO_LOG = "fire(transform='identity', threshold='none'"
_RUNS: dict[str, Run] = {
  **papers.FIRE_RUNS,
  'fire': _fire(),
  'fire-s': _fire(', shared=True'),
  'no log, no threshold': f'{_NO_LOG})',
  'linear': _fire(', hidden_layers=0'),
  'one hidden layer': _fire(', hidden_layers=1'),
  'two hidden layers': _fire(),
  'relu': _fire(),
  'gelu': _fire(", activation='gelu'"),
  'with': _fire(", hidden_layers=1, final_activation='relu'"),
  'without': _fire(', hidden_layers=1'),
  'raw distance': f"{_NO_LOG}, normalizer='none')",
  'fixed length': lambda n: (
    f"{_NO_LOG}, normalizer='max_length', max_length={n})"
  ),
  'fixed': _fire(", threshold='fixed'"),
  'learned': _fire(),
}
_SIX = ('nope', 'rope', 'alibi', 'kerple', 't5', 'fire')


def _c4(
  names: Iterable[str] = _SIX,
  model: str = 'base',
  corpus: str = '',
  **fields: Any,
) -> LengthCurves:
  """Returns LengthCurves; only large scales have large models and all corpora.

  `names` are the rows, or {row: the paper's scores}.
  """
  paper = names if isinstance(names, Mapping) else None
  suffix, hardware = _MODELS[model]
  fields = {
    'name': (corpus or 'c4') + suffix,
    'config': f'fire_c4.py:{model}' + (f',{corpus}' if corpus else ''),
    'rows': experiment.rows(_RUNS, paper, names),
    'ratios': (0.25, 0.5, 1, 2, 4),
    'scales': SCALES if model == 'base' and not corpus else FULL_SCALES,
    'hardware': hardware,
  } | fields
  return LengthCurves(**fields)


# Finetuning is not run at `hours`: with substitute data, which has only the
# format of the paper's, no claim about it is decided.
_FINETUNED_AT = tuple(one for one in SCALES if one != 'hours')
# Models from which finetuning starts at scales that use the paper's data.
_PRETRAINED: dict[str, Any] = {'scales': FULL_SCALES, 'substitute': None}


def _finetuned(
  name: str,
  config: str,
  paper: Mapping[str, Scores],
  ratio: float = 4,
  model: str = 'base',
  **fields: Any,
) -> Finetuning:
  """Returns the Finetuning of the rows in `paper`, {row: the paper's scores}.

  `ratio` is the training length divided by the pretraining length.
  """
  suffix, _ = _MODELS[model]
  runs = _RUNS | {
    'fire': _fire('', ratio),
    'fire-s': _fire(', shared=True', ratio),
    'rope-pi': 'rope(scale=4.0)',
    'rope-pi, 8192': 'rope(scale=4.0)',
    'rope-pi, 32768': 'rope(scale=16.0)',
  }
  fields = {
    'name': name + suffix,
    'config': config,
    'rows': tuple(
      dataclasses.replace(row, init_row='rope') if '-pi' in row.name else row
      for row in experiment.rows(runs, paper, paper)
    ),
    'init_part': f'c4{suffix}',
    'scales': _FINETUNED_AT if model == 'base' else FULL_SCALES,
  } | fields
  return Finetuning(**fields)


def _scrolls(model: str) -> tuple[Any, ...]:
  """Returns finetuning on each task of SCROLLS, and the mean."""
  # Scales with substitute data run one task.
  small = ('contract_nli', 'base')
  tasks = [
    _finetuned(
      task,
      f'scrolls.py:{task},{model}',
      {k: (v[column],) for k, v in papers.FIRE_TABLE_1[model].items()},
      model=model,
      substitute=_SCROLLS,
      scales=_FINETUNED_AT if (task, model) == small else FULL_SCALES,
    )
    for column, task in enumerate(papers.FIRE_TABLE_1_TASKS)
  ]
  members = tuple(task.name for task in tasks)
  scales = _FINETUNED_AT if model == 'base' else FULL_SCALES
  name = f'mean{_MODELS[model][0]}'
  return *tasks, Average(name=name, members=members, scales=scales)


def _glue(paper: Mapping[str, Scores], model: str = 'base') -> Finetuning:
  """Returns finetuning on all tasks of GLUE and SuperGLUE."""
  return _finetuned(
    'glue',
    f'glue_superglue.py:{model}',
    paper,
    ratio=0.5,
    model=model,
    substitute=_GLUE,
    tasks=tuple(papers.FIRE_TABLE_13[model]),
  )


def _glue_means(means: Mapping[str, float]) -> Finetuning:
  """Returns finetuning on GLUE for tables in which the paper reports means."""
  no_tasks = (None,) * len(papers.FIRE_TABLE_13['base'])
  return _glue({name: (*no_tasks, mean) for name, mean in means.items()})


def _table_13(model: str) -> Finetuning:
  """Returns table 13, with the mean over tasks; few rows at smaller scales."""
  names = ('nope', 'rope', 'rope-pi', 'alibi', 'kerple', 't5', 'fire')
  columns = zip(*papers.FIRE_TABLE_13[model].values(), strict=True)
  paper = {
    name: (*scores, statistics.fmean(scores))
    for name, scores in zip(names, columns, strict=True)
  }
  part = _glue(paper, model)
  few = 'nope', 'rope', 'alibi', 'fire'
  table = (
    dataclasses.replace(row, scales=SCALES if row.name in few else FULL_SCALES)
    for row in part.rows
  )
  return dataclasses.replace(part, rows=tuple(table))


_TABLE_4 = papers.FIRE_TABLE_4
_PARTS: dict[str, list[Any]] = {
  'figure1': [
    _c4(),
    *(_c4(_SIX, 'base', corpus) for corpus in ('arxiv', 'github')),
    *(_c4(_SIX, 'large', corpus) for corpus in ('c4', 'arxiv', 'github')),
  ],
  'figure4': [
    _c4({'fire': _TABLE_4['fire']}),
    Figure(
      name='biases',
      part='c4',
      rows=('fire',),
      draw=model_analysis.draw_biases,
      columns=('least threshold', 'largest threshold', 'local', 'anti-local'),
      unit='thresholds in training lengths; shares of heads',
      measure=model_analysis.thresholds_and_kinds,
    ),
  ],
  'figure5': [
    ForwardTiming(
      name='forward',
      config='fire_c4.py:base',
      rows=experiment.rows(_RUNS, names=(*_SIX, 'fire-s')),
      ratios=(1, 4),
    )
  ],
  # The threshold starts at 512 here, too, which is the training length.
  'figure6': [
    _c4(
      rows=experiment.rows(_RUNS | {'fire': _fire(ratio=0.25)}, names=_SIX),
      ratios=(1, 2, 4, 8, 16),
      shrink=4,
    )
  ],
  'yarn': [
    _c4(['rope', 'fire'], name='pretrained'),
    _c4(
      name='finetuned',
      config='yarn_c4.py:base',
      rows=(
        experiment.Row(
          'yarn',
          lambda n: f'yarn(scale=4., train_length={n // 4})',
          init_row='rope',
        ),
        experiment.Row('fire', _fire('', 4)),
      ),
      ratios=(0.0625, 0.125, 0.25, 0.5, 1),
      init_part='pretrained',
    ),
  ],
  'table1': [
    _c4((*_SIX, 'fire-s'), **_PRETRAINED),
    *_scrolls('base'),
    _c4(_SIX, 'large', **_PRETRAINED),
    *_scrolls('large'),
  ],
  'figure3': [
    _c4(**_PRETRAINED),
    _finetuned(
      'narrative_qa',
      'narrativeqa_zeroshot.py',
      papers.FIRE_TABLE_11,
      substitute=_SCROLLS,
      ratios=(0.0625, 0.25, 0.5, 1, 2, 3, 4),
      config_lengths=True,
    ),
  ],
  'table13': [
    _c4(**_PRETRAINED),
    _table_13('base'),
    _c4(_SIX, 'large', **_PRETRAINED),
    _table_13('large'),
  ],
  'table4': [_c4({k: v for k, v in _TABLE_4.items() if k != 'fire-s'})],
  'table2': [_c4(papers.FIRE_TABLE_2), _glue_means(papers.FIRE_TABLE_2_GLUE)],
  'table3': [_c4(papers.FIRE_TABLE_3), _glue_means(papers.FIRE_TABLE_3_GLUE)],
  'table5': [_c4(papers.FIRE_TABLE_5)],
  'table6': [_c4(papers.FIRE_TABLE_6)],
  'table7': [_c4(papers.FIRE_TABLE_7)],
  'section3': [
    _c4({'raw distance': None, 'fixed length': None, 'fire': _TABLE_4['fire']})
  ],
  'threshold': [_c4(['fixed', 'learned'])],
}
_FINETUNED: dict[str, Any] = {'ours': _OURS_TRAINING + _OURS_PROMPTS}
_BOTH = {'ours': _OURS + _OURS_PROMPTS}
_FIELDS: dict[str, dict[str, Any]] = {
  # Five seeds, because a round of timings takes seconds and is noisy.
  'figure5': {'hardware': '4 TPUv2', 'ours': (), 'seeds': (0, 1, 2, 3, 4)},
  'yarn': {'ours': _OURS + _OURS_YARN},
  'table1': _FINETUNED,
  'figure3': _FINETUNED,
  'table13': _FINETUNED | {'hardware': '32 TPUv2'},
  'table2': _BOTH,
  'table3': _BOTH,
}


def _best_tasks(model: str) -> str:
  """Returns comparisons for the tasks of SCROLLS at which FIRE is best."""
  suffix, _ = _MODELS[model]
  table = {k: v for k, v in papers.FIRE_TABLE_1[model].items() if k != 'fire-s'}
  others = '|'.join(name for name in table if name != 'fire')
  return '\n'.join(
    f'  {task}{suffix}: fire > {others} @ 1'
    for n, task in enumerate(papers.FIRE_TABLE_1_TASKS)
    if max(table, key=lambda name: table[name][n]) == 'fire'
  )


_F1 = '\n'.join(
  f'F1, {part.name}: FIRE has the least loss of all encodings at every length\n'
  f'  {part.name}: fire < nope|rope|alibi|kerple|t5 @ 0.25|0.5|1|2|4'
  for part in _PARTS['figure1'][1:]
)
_TEXT = f"""
[figure1] log perplexity by length on C4, arXiv and GitHub, base and large;
    figures 1, 2 and 7
{_F1}
[figure4] the biases that FIRE learns, by layer and head; figures 4 and 8, and
    the thresholds
F5, range*: learned thresholds end between 0.59 and 0.78 training lengths (1200
    to 1600 at 2048)
  biases: fire @ least threshold > 0.5859375
  biases: fire @ largest threshold < 0.78125
F8: there are heads that learn local and heads that learn anti-local patterns:
    each a twentieth or more
  biases: fire @ local|anti-local > 0.05
[figure5] time of a forward pass at the training length, models not trained
F9, T5*: FIRE and FIRE-S are faster than T5's bias
  forward: fire|fire-s < t5 @ 1
F9, FIRE-S*: FIRE-S is faster than all but NoPE
  forward: fire-s < rope|alibi|kerple|t5|fire @ 1
[figure6] trained at 512, tested to 8192: C4
F1, figure 6: FIRE has the least loss of all encodings at every length, trained
    at 512
  c4: fire < nope|rope|alibi|kerple|t5 @ 1|2|4|8|16
[yarn] YaRN, a RoPE model finetuned at four times the length, beside FIRE
F12: YaRN is worse than FIRE at long lengths and at a quarter of the length of
    pretraining
  pretrained: fire @ 4|2|0.25 < finetuned: yarn @ 1|0.5|0.0625
F12, as long trained: YaRN is worse than FIRE trained on in the same way, at
    long lengths and at a quarter of the length of pretraining
  finetuned: fire < yarn @ 0.0625|0.5|1
[table1] SCROLLS: finetuned at four times the length, scores of seven tasks
F10, SCROLLS*: FIRE has the best average of SCROLLS, by a point or more, base
  mean: fire > nope|rope|alibi|kerple|t5|rope-pi @ 1 by 1.0
F10, tasks*: FIRE is best at four tasks of SCROLLS, base
{_best_tasks('base')}
F7, SCROLLS: FIRE-S is a little worse than FIRE on SCROLLS
  mean: fire > fire-s @ 1
F7, SCROLLS, others: FIRE-S has a better average of SCROLLS than all but FIRE
  mean: fire-s > nope|rope|alibi|kerple|t5|rope-pi @ 1
F10, SCROLLS, large*: FIRE has the best average of SCROLLS, by a point or more,
    large
  mean, large: fire > nope|rope|alibi|kerple|t5|rope-pi @ 1 by 1.0
F10, tasks, large*: FIRE is best at five tasks of SCROLLS, large
{_best_tasks('large')}
[figure3] NarrativeQA by length of the story, finetuned at 8192; table 11
F10, NarrativeQA*: FIRE is best at every length
  narrative_qa: fire > nope|rope|alibi|kerple|t5|rope-pi, 8192|rope-pi, 32768 @
    0.0625|0.25|0.5|1|2|3|4
F10, RoPE-PI*: RoPE-PI for 8192 drops beyond it and that for 32768 does not (not
    by two points), which is worse than the former when short
  narrative_qa: rope-pi, 8192 @ 1|1 > @ 2|4
  narrative_qa: rope-pi, 32768 @ 4 > @ 1 by -2
  narrative_qa: rope-pi, 32768 > rope-pi, 8192 @ 2|4
  narrative_qa: rope-pi, 8192 > rope-pi, 32768 @ 0.0625|0.5|1
[table13] GLUE and SuperGLUE, all tasks at once; the averages of figure 3
F11*: short tasks are not hurt: FIRE has at least the mean of RoPE less one
    point, and more than NoPE and ALiBi, base
  glue: fire > rope @ mean by -1
  glue: fire > nope|alibi @ mean
F11, large*: RoPE has a higher mean than FIRE, large
  glue, large: rope > fire @ mean
[table4] log perplexity on C4 by length, trained at 2048
F1: FIRE has the least loss of all encodings at every length
  c4: fire < nope|rope|alibi|kerple|t5 @ 0.25|0.5|1|2|4
F2: RoPE, ALiBi, NoPE and T5 get worse beyond the training length, where ALiBi
    is worse than RoPE; KERPLE stays flat (not worse by 0.02)
  c4: rope|alibi|nope|t5 @ 1 < @ 4
  c4: rope < alibi @ 4
  c4: kerple @ 4 < @ 1 by -0.02
F3, threshold: the threshold helps at short lengths; FIRE without it still beats
    every baseline
  c4: fire < fire, no threshold @ 0.25
  c4: fire, no threshold < nope|rope|alibi|kerple|t5 @ 0.25|0.5|1|2|4
[table2] one FIRE for all layers (FIRE-S) against one for each: C4 and GLUE;
    SCROLLS is in table 1
F7, GLUE: FIRE-S is a little worse than FIRE on GLUE and SuperGLUE
  glue: fire > fire-s @ mean
F7: FIRE-S is a little worse than FIRE and better than KERPLE at every length
  c4: fire < fire-s @ 0.25|0.5|1|2|4
  c4: fire-s < kerple @ 0.25|0.5|1|2|4
[table3] the transform and the threshold, one by one: C4 and GLUE
F3, GLUE: the threshold helps on GLUE and SuperGLUE, and so does the logarithm
  glue: fire > fire, no threshold @ mean
  glue: fire, no threshold > no log, no threshold @ mean
F3, transform: the logarithm helps at every length, the threshold at a quarter
    of the training length
  c4: fire, no threshold < no log, no threshold @ 0.25|0.5|1|2|4
  c4: fire < fire, no threshold @ 0.25
[table5] how much the function can hold: C4
F4, layers: two hidden layers are better than one, one than a linear map
  c4: two hidden layers < one hidden layer @ 0.25|0.5|1|2|4
  c4: one hidden layer < linear @ 0.25|0.5|1|2|4
[table6] GELU in place of ReLU: C4
F4, activation: GELU is worse than ReLU at short lengths and the same (to 0.02)
    at long ones
  c4: relu < gelu @ 0.25|0.5
  c4: relu < gelu @ 2|4 by -0.02
  c4: gelu < relu @ 2|4 by -0.02
[table7] an activation on the output, one hidden layer: C4
F4, output: no activation on the output is better when long
  c4: without < with @ 2|4
[section3] an MLP on the distance itself, and on one divided by a fixed length
F6: an MLP on the raw distance, or on one divided by a fixed length, fails
    beyond the training length
  c4: raw distance|fixed length @ 1 < @ 4
  c4: fire < raw distance|fixed length @ 4
[threshold] a learned threshold against a fixed one
F5, loss: a learned threshold is better than a fixed one
  c4: learned < fixed @ 0.25|0.5|1|2|4
"""

EXPERIMENTS = experiment.read(
  'fire', _TEXT, _PARTS, _FIELDS, ours=_OURS, hardware=_MODELS['base'][1]
)
