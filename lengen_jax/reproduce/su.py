"""Su's essay on positional robustness, which has figures but no tables."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from lengen_jax import papers
from lengen_jax.reproduce import model_analysis
from lengen_jax.reproduce.curves import LengthCurves
from lengen_jax.reproduce.experiment import beats
from lengen_jax.reproduce.experiment import beats_pairwise
from lengen_jax.reproduce.experiment import Claim
from lengen_jax.reproduce.experiment import Comparison
from lengen_jax.reproduce.experiment import Experiment
from lengen_jax.reproduce.experiment import FULL_SCALES
from lengen_jax.reproduce.experiment import increases
from lengen_jax.reproduce.experiment import Row
from lengen_jax.reproduce.experiment import rows
from lengen_jax.reproduce.experiment import SCALES
from lengen_jax.reproduce.figures import Average
from lengen_jax.reproduce.figures import Measurements
from lengen_jax.reproduce.figures import ModelAnalysis
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


def _masked_claims(part: str) -> list[Claim]:
  long = (4, 8)
  even = 'random, even at test time'
  return [
    Claim(
      f'S1, {part}',
      'random positions in training help beyond the training length, with log '
      'n more',
      beats_pairwise(
        part, (('random', 'standard'), ('random, log n', 'random')), long
      ),
    ),
    Claim(
      f'S2, {part}',
      'equal-mean positions with log n are best; plain random ones are worse '
      'than equal-mean',
      (
        *beats(part, 'equal mean', 'random', long),
        *beats(
          part,
          'equal mean, log n',
          ('standard, log n', 'random, log n', f'{even}, log n', 'equal mean'),
          long,
        ),
      ),
    ),
    Claim(
      f'S3, {part}',
      'at test time evenly spaced positions beat a random draw',
      # At eight training lengths, every position is drawn.
      beats(part, even, 'random', (1, 2, 4)),
    ),
  ]


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
_NETWORKS = ('transformer', 'rnn', 'lstm', 'stack-rnn', 'tape-rnn')
_FIGURE_1 = rows(
  dict(
    zip(
      _NETWORKS,
      ('sinusoidal', 'rnn', 'lstm', 'stack_rnn', 'tape_rnn'),
      strict=True,
    )
  )
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
_RANDOM_PAIRS = tuple(
  (f'{name}, random', name)
  for name in ('sin/cos', 'learned', 'rope', 'alibi', 'relative')
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
_WINDOWED = rows({'rope': 'rope', 'nope': 'nope'})

EXPERIMENTS = (
  Experiment(
    'su/mlm',
    'masked language modelling from 64 tokens to 512: positions and log n',
    (_masked('sinusoidal'), _masked('rope')),
    (*_masked_claims('sinusoidal'), *_masked_claims('rope')),
    ours=_OURS,
  ),
  Experiment(
    'su/entropy',
    'entropy of attention by length, with log n and without',
    (
      _text(
        'text',
        (
          Row('rope', 'rope'),
          Row(
            'rope, log n',
            lambda n: f'rope||log_n(train_length={n})',
            trained_as='rope',
          ),
        ),
      ),
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
    (
      Claim(
        'S4',
        'with log n the entropy of attention grows less with length',
        beats('entropy', 'rope, log n', 'rope', 'growth'),
      ),
    ),
    ours=_OURS,
  ),
  Experiment(
    'su/order',
    'outputs under redrawn positions, and under another order',
    (
      _text(
        'text',
        rows(
          {
            'random': (
              lambda n: f'sinusoidal | randomized(max_position={8 * n})'
            )
          }
        ),
      ),
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
    (
      Claim(
        'S5',
        'outputs are nearly invariant under redrawn positions: they change by '
        'less than a tenth of what another order of the tokens does',
        (Comparison(('order', 'random', 'ratio'), 0.1),),
      ),
    ),
    ours=_OURS,
  ),
  Experiment(
    'su/window',
    'attention in a sliding window as the control',
    (_text('text', _WINDOWED), _text('window', _WINDOWED, window=0.5)),
    (
      Claim(
        'S4, window',
        'a window of half the training length keeps RoPE and NoPE from getting '
        'worse beyond it (by more than 0.02)',
        increases('window', ('rope', 'nope'), (4, 1), -0.02),
      ),
    ),
    ours=_OURS,
  ),
  Experiment(
    'su/figure1',
    'the Chomsky tasks: a Transformer beside recurrent networks',
    _sweeps(_FIGURE_1, _LEVELS),
    (
      Claim(
        'S6',
        'Transformer < RNN < LSTM < Stack-RNN < Tape-RNN, mean over the '
        'Chomsky tasks',
        beats_pairwise(
          'tasks',
          tuple(zip(_NETWORKS[1:], _NETWORKS, strict=False)),
          'beyond',
          higher=True,
        ),
      ),
    ),
  ),
  Experiment(
    'su/figure2',
    'the Chomsky tasks: six encodings, plain and randomized',
    _sweeps(_FIGURE_2, _FEW),
    (
      Claim(
        'S6, randomized',
        'random positions recover part: better than plain ones with each '
        'encoding, mean over the Chomsky tasks',
        beats_pairwise('tasks', _RANDOM_PAIRS, 'beyond', higher=True),
      ),
      Claim(
        'S7',
        'ALiBi with random positions is worse than RoPE with them, mean over '
        'the Chomsky tasks',
        beats('tasks', 'rope, random', 'alibi, random', 'beyond', higher=True),
      ),
      Claim(
        'S7, bucket sort',
        'bucket sort becomes perfect with random positions: above 99 percent '
        'with every encoding',
        tuple(
          Comparison(99.0, ('bucket_sort', random, 'beyond'))
          for random, _ in _RANDOM_PAIRS
        ),
      ),
    ),
  ),
  Experiment(
    'su/chomsky_log_n',
    'the Chomsky tasks with log n, which the essay could not run',
    _sweeps(_LOG_N, _FEW),
    (
      Claim(
        'S7, log n',
        'log n helps random positions, mean over the Chomsky tasks',
        beats_pairwise(
          'tasks',
          tuple(
            (f'{name}, log n', name)
            for name in ('rope, random', 'sin/cos, random')
          ),
          'beyond',
          higher=True,
        ),
      ),
    ),
  ),
)
