"""Su's essay on positional robustness, which has figures but no tables."""

from collections.abc import Mapping
from typing import Any

from lengen_jax import papers
from lengen_jax.reproduce import experiment, model_analysis
from lengen_jax.reproduce.curves import LengthCurves
from lengen_jax.reproduce.experiment import Row, rows, Run
from lengen_jax.reproduce.figures import Figure
from lengen_jax.reproduce.randomized import chomsky

_OURS = (
  'of the essay are task, lengths and schemes; ours are model, encoding, '
  'optimizer and corpus',
)
_LAYER, _BATCH, _DISTANCES = papers.RUOSS_POSITIONS
# Position schemes; {} stands for eight training lengths.
_SCHEMES = {
  'standard': 'standard',
  'random': 'randomized(max_position={})',
  'random, even at test time': "randomized(max_position={}, test='even')",
  'equal mean': 'equal_mean',
}


def _run(run: str, log_n: bool = False) -> Run:
  """Returns a run, with or without log-n scaling, for a training length."""
  scale = ' | log_n(train_length={})' if log_n else ''
  return lambda n: run.format(8 * n) + scale.format(n)


def _masked(encoding: str) -> LengthCurves:
  """Returns curves of every position scheme, with and without log-n scaling."""
  table = []
  for name, scheme in _SCHEMES.items():
    run = f'{encoding} | {scheme}'
    # All rows train at one length, at which log-n scaling has no effect.
    model = name.partition(',')[0]
    table += [
      Row(name, _run(run), trained_as=None if name == model else model),
      Row(f'{name}, log n', _run(run, log_n=True), trained_as=model),
    ]
  return _text(
    table,
    name=encoding,
    config='mlm_positions.py',
    ratios=(1, 2, 4, 8),
    unit='nats per masked token',
  )


def _text(table: Any, **fields: Any) -> LengthCurves:
  """Returns byte-level language models of the demo's size."""
  fields = {'name': 'text', 'config': 'stdlib.py', 'ratios': (1, 2, 4)} | fields
  return LengthCurves(rows=tuple(table), substitute=None, **fields)


def _sweeps(runs: Mapping[str, Run], *few: str) -> list[Any]:
  return chomsky(lambda task: rows(runs), few)


_FIGURE_1: dict[str, Run] = {
  'transformer': 'sinusoidal',
  'rnn': 'rnn',
  'lstm': 'lstm',
  'stack-rnn': 'stack_rnn',
  'tape-rnn': 'tape_rnn',
}
_FIGURE_2: dict[str, Run] = {
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
_LOG_N: dict[str, Run] = {
  'rope, random': f'rope | {_LAYER}',
  'rope, random, log n': _run(f'rope | {_LAYER}', log_n=True),
  'sin/cos, random': f'sinusoidal | {_BATCH}',
  'sin/cos, random, log n': _run(f'sinusoidal | {_BATCH}', log_n=True),
}
_ROPE: dict[str, Run] = {'rope': 'rope'}
_ROPE_LOG_N = Row(
  'rope, log n', lambda n: f'rope||log_n(train_length={n})', trained_as='rope'
)
_WINDOWED = rows(_ROPE | {'nope': 'nope'})
_PARTS: dict[str, list[Any]] = {
  'mlm': [_masked('sinusoidal'), _masked('rope')],
  'entropy': [
    _text((*rows(_ROPE), _ROPE_LOG_N)),
    Figure(
      name='entropy',
      part='text',
      rows=('rope', 'rope, log n'),
      draw=model_analysis.draw_entropy,
      columns=('growth',),
      unit='nats from 1x to 4x',
      measure=model_analysis.entropy_growth,
    ),
  ],
  'order': [
    _text([Row('random', _run('sinusoidal | randomized(max_position={})'))]),
    Figure(
      name='order',
      part='text',
      rows=('random',),
      draw=model_analysis.draw_order,
      columns=('redrawn', 'permuted', 'ratio'),
      unit='total variation of outputs',
      measure=model_analysis.order_changes,
    ),
  ],
  'window': [_text(_WINDOWED), _text(_WINDOWED, name='window', window=0.5)],
  # Smaller scales run one task of each level of the hierarchy for the networks,
  # and the most discussed task for positions.
  'figure1': _sweeps(
    _FIGURE_1, 'parity_check', 'reverse_string', 'bucket_sort'
  ),
  'figure2': _sweeps(_FIGURE_2, 'bucket_sort'),
  'chomsky_log_n': _sweeps(_LOG_N, 'bucket_sort'),
}
_CHOMSKY = {
  'ours': (
    'means are of one encoding over all tasks; the essay may mean the best '
    'encoding of each task',
  )
}
_FIELDS: dict[str, Any] = dict.fromkeys(('figure1', 'figure2'), _CHOMSKY)
_FIELDS['chomsky_log_n'] = {
  'ours': (
    *_CHOMSKY['ours'],
    'log n counts all tokens of a row, which are up to three times the 40 of '
    'the longest input in training: at the lengths of training, it scales '
    'queries of reverse_string by up to 1.2, and of duplicate_string by 1.3',
  )
}
_MLM = """\
S1, {0}: random positions in training help at four times the training length
    and beyond, with log n more
  {0}: random < standard @ 4|8
  {0}: random, log n < random @ 4|8
S2, {0}: equal-mean positions with log n are best; plain random ones are
    worse than equal-mean
  {0}: equal mean < random @ 4|8
  {0}: equal mean, log n < standard, log n|random, log n|random, even at
    test time, log n|equal mean @ 4|8
S3, {0}: at test time evenly spaced positions beat a random draw
  {0}: random, even at test time < random @ 1|2|4"""
_TEXT = f"""
[mlm] masked language modelling from 64 tokens to 512: positions and log n
{_MLM.format('sinusoidal')}
{_MLM.format('rope')}
S8: log n alone, without random positions, helps beyond the training length
  [sinusoidal|rope]: standard, log n < standard @ 2|4|8
[entropy] entropy of attention by length, with log n and without
S4: with log n the entropy of attention grows less with length
  entropy: rope, log n < rope @ growth
[order] outputs under redrawn positions, and under another order
S5: outputs are nearly invariant under redrawn positions: they change by less
    than a tenth of what another order of the tokens does
  order: random @ ratio < 0.1
[window] attention in a sliding window as the control
S4, window: a window of half the training length keeps RoPE from getting worse
    beyond it (by more than 0.02)
  window: rope @ 4 < @ 1 by -0.02
[figure1] the Chomsky tasks: a Transformer beside recurrent networks
S6: Transformer < RNN < LSTM < Stack-RNN < Tape-RNN, mean over the Chomsky tasks
  tasks: rnn > transformer @ beyond
  tasks: lstm > rnn @ beyond
  tasks: stack-rnn > lstm @ beyond
  tasks: tape-rnn > stack-rnn @ beyond
[figure2] the Chomsky tasks: six encodings, plain and randomized
S6, randomized: random positions recover part: better than plain ones with each
    encoding, mean over the Chomsky tasks
  tasks: [sin/cos|learned|rope|alibi|relative], random > [] @ beyond
S7: ALiBi with random positions is worse than RoPE with them, mean over the
    Chomsky tasks
  tasks: rope, random > alibi, random @ beyond
S7, bucket sort*: bucket sort becomes perfect with random positions: above 99
    percent with RoPE (the essay names no encoding)
  bucket_sort: rope, random @ beyond > 99.0
[chomsky_log_n] the Chomsky tasks with log n, which the essay could not run
S7, log n: log n helps random positions, mean over the Chomsky tasks
  tasks: [rope, random|sin/cos, random], log n > [] @ beyond
"""

EXPERIMENTS = experiment.read('su', _TEXT, _PARTS, _FIELDS, ours=_OURS)
