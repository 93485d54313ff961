"""Su's essay on positional robustness, which has figures and no table."""

from lengen_jax import papers
from lengen_jax.reproduce import probes
from lengen_jax.reproduce.experiment import Average
from lengen_jax.reproduce.experiment import beats
from lengen_jax.reproduce.experiment import Claim
from lengen_jax.reproduce.experiment import Curves
from lengen_jax.reproduce.experiment import Experiment
from lengen_jax.reproduce.experiment import Figures
from lengen_jax.reproduce.experiment import Less
from lengen_jax.reproduce.experiment import Probe
from lengen_jax.reproduce.experiment import Row
from lengen_jax.reproduce.experiment import SCALES
from lengen_jax.reproduce.experiment import Sweep

_RATIOS = (1, 2, 4, 8)
_OURS = (
  'of the essay are task, lengths and schemes; ours are model, encoding, '
  'optimizer and corpus',
)
_TASKS = tuple(papers.RANDOMIZED_TABLE_B1)
_BEYOND = ('beyond',)
_LAYER, _BATCH, _DISTANCES = papers.RUOSS_POSITIONS


def _schemes(encoding):
  """Every way of giving positions, without log n and with it."""

  def run(positions, scaled):
    def of(n):
      scale = f' | log_n(train_length={n})' if scaled else ''
      return f'{encoding} | {positions.format(8 * n)}{scale}'

    return of

  # All rows are trained at one length, where log n changes nothing.
  return tuple(
    Row(
      f'{name}, log n' if scaled else name,
      run(positions, scaled),
      trained_as=trained_as if scaled or trained_as != name else None,
    )
    for name, positions, trained_as in (
      ('standard', 'standard', 'standard'),
      ('random', 'randomized(max_position={})', 'random'),
      (
        'random, even at test time',
        "randomized(max_position={}, test='even')",
        'random',
      ),
      ('equal mean', 'equal_mean', 'equal mean'),
    )
    for scaled in (False, True)
  )


def _mlm(encoding):
  return Curves(
    encoding,
    'mlm_positions.py',
    _schemes(encoding),
    _RATIOS,
    'nats per masked token',
    standin=None,
  )


def _text(name, rows, window=None):
  """Next bytes, trained as the demo trains."""
  return Curves(name, 'stdlib.py', rows, (1, 2, 4), standin=None, window=window)


def _random_sinusoidal(n):
  return f'sinusoidal | randomized(max_position={8 * n})'


# What scales of minutes have of the tasks: for the networks one of each of
# three levels of the hierarchy, for positions the one that the essay dwells on.
_LEVELS = ('parity_check', 'reverse_string', 'bucket_sort')
_FEW = ('bucket_sort',)


def _sweeps(rows, few):
  """A part for each task, and their mean; `few` tasks at scales of minutes."""
  return (
    *(
      Sweep(
        task,
        f'chomsky.py:{task}',
        rows,
        'accuracy, percent',
        scales=SCALES if task in few else ('paper', 'small'),
      )
      for task in _TASKS
    ),
    Average('tasks', _TASKS),
  )


_RANKED = ('transformer', 'rnn', 'lstm', 'stack-rnn', 'tape-rnn')
_FIGURE_1 = (
  Row('transformer', 'sinusoidal'),
  Row('rnn', 'rnn'),
  Row('lstm', 'lstm'),
  Row('stack-rnn', 'stack_rnn'),
  Row('tape-rnn', 'tape_rnn'),
)
_FIGURE_2 = (
  Row('none', 'nope'),
  Row('sin/cos', 'sinusoidal'),
  Row('sin/cos, random', f'sinusoidal | {_BATCH}'),
  Row('learned', 'learned(max_position=2048)'),
  Row('learned, random', f'learned(max_position=2048) | {_BATCH}'),
  Row('rope', 'rope'),
  Row('rope, random', f'rope | {_LAYER}'),
  Row('alibi', 'alibi(official_compat=True)'),
  Row('alibi, random', f'alibi(official_compat=True) | {_DISTANCES}'),
  Row('relative', 'transformer_xl'),
  Row('relative, random', f'transformer_xl | {_DISTANCES}'),
)
_LOG_N = (
  Row('rope, random', f'rope | {_LAYER}'),
  Row(
    'rope, random, log n',
    lambda n: f'rope | {_LAYER} | log_n(train_length={n})',
  ),
  Row('sin/cos, random', f'sinusoidal | {_BATCH}'),
  Row(
    'sin/cos, random, log n',
    lambda n: f'sinusoidal | {_BATCH} | log_n(train_length={n})',
  ),
)


def _mlm_claims(part):
  return (
    Claim(
      f'S1, {part}',
      'random positions in training help beyond the training length, with log '
      'n more',
      (
        *beats(part, 'random', ('standard',), (4, 8)),
        *beats(part, 'random, log n', ('random',), (4, 8)),
      ),
    ),
    Claim(
      f'S2, {part}',
      'equal-mean positions with log n are best; plain random ones are worse '
      'than equal-mean',
      (
        *beats(part, 'equal mean', ('random',), (4, 8)),
        *beats(
          part,
          'equal mean, log n',
          (
            'standard, log n',
            'random, log n',
            'random, even at test time, log n',
            'equal mean',
          ),
          (4, 8),
        ),
      ),
    ),
    Claim(
      f'S3, {part}',
      'at test time evenly spaced positions beat a random draw',
      # At eight times the length all positions there are are drawn.
      beats(part, 'random, even at test time', ('random',), (1, 2, 4)),
    ),
  )


EXPERIMENTS = (
  Experiment(
    'su/mlm',
    'masked language modelling from 64 tokens to 512: positions and log n',
    (_mlm('sinusoidal'), _mlm('rope')),
    (*_mlm_claims('sinusoidal'), *_mlm_claims('rope')),
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
      Probe(
        'entropy',
        'text',
        ('rope', 'rope, log n'),
        probes.entropy,
        Figures(('growth',), 'nats from 1x to 4x', probes.entropy_growth),
      ),
    ),
    (
      Claim(
        'S4',
        'with log n the entropy of attention grows less with length',
        (
          Less(
            ('entropy', 'rope, log n', 'growth'), ('entropy', 'rope', 'growth')
          ),
        ),
      ),
    ),
    ours=_OURS,
  ),
  Experiment(
    'su/order',
    'outputs under redrawn positions, and under another order',
    (
      _text('text', (Row('random', _random_sinusoidal),)),
      Probe(
        'order',
        'text',
        ('random',),
        probes.order,
        Figures(
          ('redrawn', 'permuted', 'ratio'),
          'total variation of outputs',
          probes.order_changes,
        ),
      ),
    ),
    (
      Claim(
        'S5',
        'outputs are nearly invariant under redrawn positions: they change by '
        'less than a tenth of what another order of the tokens does',
        (Less(('order', 'random', 'ratio'), 0.1),),
      ),
    ),
    ours=_OURS,
  ),
  Experiment(
    'su/window',
    'attention in a sliding window as the control',
    (
      _text('text', (Row('rope', 'rope'), Row('nope', 'nope'))),
      _text(
        'window',
        (Row('rope', 'rope'), Row('nope', 'nope')),
        window=0.5,
      ),
    ),
    (
      Claim(
        'S4, window',
        'a window of half the training length keeps RoPE and NoPE from getting '
        'worse beyond it (by more than 0.02)',
        tuple(
          Less(('window', row, 4), ('window', row, 1), by=-0.02)
          for row in ('rope', 'nope')
        ),
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
        tuple(
          Less(('tasks', worse, 'beyond'), ('tasks', better, 'beyond'))
          for worse, better in zip(_RANKED, _RANKED[1:], strict=False)
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
        tuple(
          one
          for name in ('sin/cos', 'learned', 'rope', 'alibi', 'relative')
          for one in beats(
            'tasks', f'{name}, random', (name,), _BEYOND, higher=True
          )
        ),
      ),
      Claim(
        'S7',
        'ALiBi with random positions is worse than RoPE with them, mean over '
        'the Chomsky tasks',
        beats(
          'tasks', 'rope, random', ('alibi, random',), _BEYOND, higher=True
        ),
      ),
      Claim(
        'S7, bucket sort',
        'bucket sort becomes perfect with random positions: above 99 percent '
        'with every encoding',
        tuple(
          Less(99.0, ('bucket_sort', f'{name}, random', 'beyond'))
          for name in ('sin/cos', 'learned', 'rope', 'alibi', 'relative')
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
        tuple(
          one
          for name in ('rope, random', 'sin/cos, random')
          for one in beats(
            'tasks', f'{name}, log n', (name,), _BEYOND, higher=True
          )
        ),
      ),
    ),
  ),
)
