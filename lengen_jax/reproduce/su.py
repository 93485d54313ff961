"""Su's essay on positional robustness, which has figures but no tables."""

from collections.abc import Callable, Sequence
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
  with_claims,
)
from lengen_jax.reproduce.figures import Average, Measurements, ModelAnalysis
from lengen_jax.reproduce.sweeps import TaskSweep

_OURS = (
  'of the essay are task, lengths and schemes; ours are model, encoding, '
  'optimizer and corpus',
)
_TASKS = tuple(papers.RANDOMIZED_TABLE_B1)
_LAYER, _BATCH, _DISTANCES = papers.RUOSS_POSITIONS


def _masked(encoding: str) -> LengthCurves:
  """Returns every position scheme, without log n and with it."""

  def run(scheme: str, log_n: bool) -> Callable[[int], str]:
    def run_at(n: int) -> str:
      scale = f' | log_n(train_length={n})' if log_n else ''
      return f'{encoding} | {scheme.format(8 * n)}{scale}'

    return run_at

  # All rows train at one length, where log n changes nothing.
  table = []
  for name, scheme, trained_as in (
    ('standard', 'standard', 'standard'),
    ('random', 'randomized(max_position={})', 'random'),
    (
      'random, even at test time',
      "randomized(max_position={}, test='even')",
      'random',
    ),
    ('equal mean', 'equal_mean', 'equal mean'),
  ):
    model = None if name == trained_as else trained_as
    table += [
      Row(name, run(scheme, False), trained_as=model),
      Row(f'{name}, log n', run(scheme, True), trained_as=trained_as),
    ]
  return LengthCurves(
    name=encoding,
    config='mlm_positions.py',
    rows=tuple(table),
    ratios=(1, 2, 4, 8),
    unit='nats per masked token',
    substitute=None,
  )


def _text(name: str, table: Sequence[Row], **fields: Any) -> LengthCurves:
  """Returns byte-level language models of the demo's size."""
  return LengthCurves(
    name=name,
    config='stdlib.py',
    rows=tuple(table),
    ratios=(1, 2, 4),
    substitute=None,
    **fields,
  )


def _sweeps(
  table: tuple[Row, ...], few: Sequence[str]
) -> tuple[TaskSweep | Average, ...]:
  """Returns the Chomsky tasks and their mean; only `few` at small scales."""
  return (
    *(
      TaskSweep(
        name=task,
        config=f'chomsky.py:{task}',
        rows=table,
        unit='accuracy, percent',
        scales=SCALES if task in few else FULL_SCALES,
      )
      for task in _TASKS
    ),
    Average(name='tasks', members=_TASKS),
  )


# Tasks at scales `cpu` and `tiny`: one of each level of the hierarchy for the
# networks, and the task that the essay discusses most for positions.
_LEVELS = ('parity_check', 'reverse_string', 'bucket_sort')
_FEW = ('bucket_sort',)
_FIGURE_1 = rows(
  {
    'transformer': 'sinusoidal',
    'rnn': 'rnn',
    'lstm': 'lstm',
    'stack-rnn': 'stack_rnn',
    'tape-rnn': 'tape_rnn',
  }
)
_FIGURE_2 = rows(
  {
    'none': 'nope',
    'sin/cos': 'sinusoidal',
    'sin/cos, random': f'sinusoidal | {_BATCH}',
    'learned': 'learned(max_position=2048)',
    'learned, random': f'learned(max_position=2048) | {_BATCH}',
    'rope': 'rope',
    'rope, random': f'rope | {_LAYER}',
    'alibi': 'alibi(official_compat=True)',
    'alibi, random': f'alibi(official_compat=True) | {_DISTANCES}',
    'relative': 'transformer_xl',
    'relative, random': f'transformer_xl | {_DISTANCES}',
  }
)
_LOG_N = rows(
  {
    'rope, random': f'rope | {_LAYER}',
    'rope, random, log n': (
      lambda n: f'rope | {_LAYER} | log_n(train_length={n})'
    ),
    'sin/cos, random': f'sinusoidal | {_BATCH}',
    'sin/cos, random, log n': (
      lambda n: f'sinusoidal | {_BATCH} | log_n(train_length={n})'
    ),
  }
)
_ROPE_LOG_N = Row(
  'rope, log n',
  lambda n: f'rope||log_n(train_length={n})',
  trained_as='rope',
)
_RANDOM = Row(
  'random', lambda n: f'sinusoidal | randomized(max_position={8 * n})'
)
_WINDOWED = rows({'rope': 'rope', 'nope': 'nope'})

_EXPERIMENTS = (
  Experiment(
    'su/mlm',
    'masked language modelling from 64 tokens to 512: positions and log n',
    (_masked('sinusoidal'), _masked('rope')),
    ours=_OURS,
  ),
  Experiment(
    'su/entropy',
    'entropy of attention by length, with log n and without',
    (
      _text('text', (*rows({'rope': 'rope'}), _ROPE_LOG_N)),
      ModelAnalysis(
        name='entropy',
        part='text',
        rows=('rope', 'rope, log n'),
        draw=model_analysis.draw_entropy,
        measurements=Measurements(
          ('growth',), 'nats from 1x to 4x', model_analysis.entropy_growth
        ),
      ),
    ),
    ours=_OURS,
  ),
  Experiment(
    'su/order',
    'outputs under redrawn positions, and under another order',
    (
      _text('text', (_RANDOM,)),
      ModelAnalysis(
        name='order',
        part='text',
        rows=('random',),
        draw=model_analysis.draw_order,
        measurements=Measurements(
          ('redrawn', 'permuted', 'ratio'),
          'total variation of outputs',
          model_analysis.order_changes,
        ),
      ),
    ),
    ours=_OURS,
  ),
  Experiment(
    'su/window',
    'attention in a sliding window as the control',
    (_text('text', _WINDOWED), _text('window', _WINDOWED, window=0.5)),
    ours=_OURS,
  ),
  Experiment(
    'su/figure1',
    'the Chomsky tasks: a Transformer beside recurrent networks',
    _sweeps(_FIGURE_1, _LEVELS),
  ),
  Experiment(
    'su/figure2',
    'the Chomsky tasks: six encodings, plain and randomized',
    _sweeps(_FIGURE_2, _FEW),
  ),
  Experiment(
    'su/chomsky_log_n',
    'the Chomsky tasks with log n, which the essay could not run',
    _sweeps(_LOG_N, _FEW),
  ),
)

_CLAIMS = """
[su/mlm]
S1, sinusoidal: random positions in training help beyond the training length,
    with log n more
  sinusoidal: random < standard @ 4|8
  sinusoidal: random, log n < random @ 4|8
S2, sinusoidal: equal-mean positions with log n are best; plain random ones are
    worse than equal-mean
  sinusoidal: equal mean < random @ 4|8
  sinusoidal: equal mean, log n < standard, log n|random, log n|random, even at
    test time, log n|equal mean @ 4|8
S3, sinusoidal: at test time evenly spaced positions beat a random draw
  sinusoidal: random, even at test time < random @ 1|2|4
S1, rope: random positions in training help beyond the training length, with log
    n more
  rope: random < standard @ 4|8
  rope: random, log n < random @ 4|8
S2, rope: equal-mean positions with log n are best; plain random ones are worse
    than equal-mean
  rope: equal mean < random @ 4|8
  rope: equal mean, log n < standard, log n|random, log n|random, even at test
    time, log n|equal mean @ 4|8
S3, rope: at test time evenly spaced positions beat a random draw
  rope: random, even at test time < random @ 1|2|4
[su/entropy]
S4: with log n the entropy of attention grows less with length
  entropy: rope, log n < rope @ growth
[su/order]
S5: outputs are nearly invariant under redrawn positions: they change by less
    than a tenth of what another order of the tokens does
  order: random @ ratio < 0.1
[su/window]
S4, window: a window of half the training length keeps RoPE and NoPE from
    getting worse beyond it (by more than 0.02)
  window: rope|nope @ 4 < @ 1 by -0.02
[su/figure1]
S6: Transformer < RNN < LSTM < Stack-RNN < Tape-RNN, mean over the Chomsky tasks
  tasks: rnn > transformer @ beyond
  tasks: lstm > rnn @ beyond
  tasks: stack-rnn > lstm @ beyond
  tasks: tape-rnn > stack-rnn @ beyond
[su/figure2]
S6, randomized: random positions recover part: better than plain ones with each
    encoding, mean over the Chomsky tasks
  tasks: sin/cos, random > sin/cos @ beyond
  tasks: learned, random > learned @ beyond
  tasks: rope, random > rope @ beyond
  tasks: alibi, random > alibi @ beyond
  tasks: relative, random > relative @ beyond
S7: ALiBi with random positions is worse than RoPE with them, mean over the
    Chomsky tasks
  tasks: rope, random > alibi, random @ beyond
S7, bucket sort: bucket sort becomes perfect with random positions: above 99
    percent with every encoding
  bucket_sort: sin/cos, random|learned, random|rope, random|alibi,
    random|relative, random @ beyond > 99.0
[su/chomsky_log_n]
S7, log n: log n helps random positions, mean over the Chomsky tasks
  tasks: rope, random, log n > rope, random @ beyond
  tasks: sin/cos, random, log n > sin/cos, random @ beyond
"""

EXPERIMENTS = with_claims(_CLAIMS, _EXPERIMENTS)
