"""A study of this package: how extrapolation changes during training.

The experiments are at scale `hours`, whose models are also tested earlier.
Their claims are hypotheses, which were written before the runs that test them;
docs/study.md says what was known.
"""

from collections.abc import Iterable, Mapping
import dataclasses
import itertools
from typing import Any

from lengen_jax import papers
from lengen_jax.evaluation.constructions import NAMES
from lengen_jax.reproduce import experiment, model_analysis
from lengen_jax.reproduce.curves import LengthCurves
from lengen_jax.reproduce.figures import Figure
from lengen_jax.reproduce.sweeps import TaskSweep

_SCALES = ('hours', 'cpu', 'tiny')
_NO_THRESHOLD = "threshold='none'"
_RAW = f"normalizer='none', {_NO_THRESHOLD}"


def _joined(*parts: experiment.Run) -> experiment.Run:
  """Returns the run 'encoding | positions | attention_scale'."""
  return lambda n: ' | '.join(x(n) if callable(x) else x for x in parts)


def _sampled(times: int = 1) -> experiment.Run:
  """Returns random positions below `times` the longest tested length.

  That is 16 training lengths. Sequences of a batch share a draw: the bias of
  FIRE is computed once for all.
  """
  return lambda n: f"randomized(max_position={times * 16 * n}, draw='batch')"


def _randomized_task(times: int) -> experiment.Run:
  """Returns a run with positions below `times` the longest tested row.

  Rows have m input tokens and as many targets; the longest has 5 m of each.
  """
  return lambda m: f'rope | randomized(max_position={times * 10 * m})'


def _fire_from(share: float) -> experiment.Run:
  """Returns a run whose threshold starts at a share of the training length."""
  return lambda n: f'fire(init_threshold={share * n})'


_RUNS: dict[str, experiment.Run] = {
  'kerple_log': 'kerple_log',
  'alibi': 'alibi',
  'fire': 'fire',
  'fire, L from 1/4': _fire_from(1 / 4),
  'fire, one hidden layer, L from 1/4': lambda n: (
    f'fire(hidden_layers=1, init_threshold={n / 4})'
  ),
  'fire, randomized': _joined('fire', _sampled()),
  'rope, randomized': _joined('rope', _sampled()),
  'rope': 'rope',
  'nope': 'nope',
  't5': 't5',
  'raw distance': f"fire(transform='identity', {_RAW})",
  'log of the distance': f'fire({_RAW})',
  'fixed length': lambda n: (
    f"fire(transform='identity', {_NO_THRESHOLD}, normalizer='max_length', "
    f'max_length={n})'
  ),
  'fire, no threshold': f'fire({_NO_THRESHOLD})',
  'fire, linear': 'fire(hidden_layers=0)',
  'fire, one hidden layer': 'fire(hidden_layers=1)',
  'fire, L from 1/8': _fire_from(1 / 8),
  'fire, L from 1': _fire_from(1.0),
}
_ENCODINGS: dict[str, experiment.Run] = {
  **{name: _RUNS[name] for name in ('nope', 't5', 'alibi', 'kerple_log')},
  **{name: _RUNS[name] for name in ('fire', 'raw distance', 'rope')},
  'fire, one hidden layer': _RUNS['fire, one hidden layer'],
  'kerple_power': 'kerple_power',
  'sandwich': 'sandwich',
  'sinusoidal': 'sinusoidal',
  'learned': lambda n: f'learned(max_position={16 * n})',
  'shaw': 'shaw',
  'transformer_xl': 'transformer_xl',
  'pope': 'pope',
  'rope, half': 'rope(fraction=0.5)',
}
_ONLY_INTEGERS = ('learned', 'shaw')
# Ranges of random positions, in longest tested lengths.
_RANGES = (1, 3, 5, 10)
_CODE_RANGES = {
  f'range {times}x': _joined('rope', _sampled(times)) for times in _RANGES
}
_RANGE_NAMES = [*_CODE_RANGES]
_TASK_RANGES = {f'range {times}x': _randomized_task(times) for times in _RANGES}


def _grid() -> tuple[experiment.Row, ...]:
  """Returns rows of each encoding, with each position scheme and logit scale.

  Models are trained with standard or random positions, and without a logit
  scale: log n is 1 up to the training length. The other rows only test them.
  """
  schemes: dict[str, experiment.Run] = {
    '': 'standard',
    ', randomized': _sampled(),
    ', interpolated': lambda n: f'interpolated(train_length={n})',
  }
  scales: dict[str, experiment.Run] = {
    '': 'none',
    ', log n': lambda n: f'log_n(train_length={n})',
  }

  def trained(encoding: str, scheme: str, scale: str) -> str | None:
    """Returns the row that trains the model of another one."""
    if 'interpolated' in scheme:
      return encoding
    return f'{encoding}{scheme}' if scale else None

  return tuple(
    experiment.Row(
      f'{encoding}{scheme}{scale}',
      _joined(_ENCODINGS[encoding], schemes[scheme], scales[scale]),
      scales=_SCALES,
      trained_as=trained(encoding, scheme, scale),
    )
    for encoding, scale, scheme in itertools.product(
      _ENCODINGS, scales, schemes
    )
    if not scheme or encoding != 'nope'
    if 'interpolated' not in scheme or encoding not in _ONLY_INTEGERS
  )


def _curves(
  names: Iterable[str], name: str = 'code', **settings: Any
) -> LengthCurves:
  return LengthCurves(
    name=name,
    config='stdlib.py',
    rows=experiment.rows(_RUNS | _CODE_RANGES, names=names, scales=_SCALES),
    ratios=(1, 2, 4, 8, 16),
    scales=_SCALES,
    substitute=None,
    settings=settings,
  )


def _task(
  name: str, config: str, runs: Mapping[str, experiment.Run]
) -> TaskSweep:
  return TaskSweep(
    name=name,
    config=config,
    rows=experiment.rows(runs, scales=_SCALES),
    scales=_SCALES,
    unit='sequences all right, percent',
  )


# Losses at four training lengths, by construction.
_AT_4 = tuple(f'{name}, 4x' for name in NAMES)
# Encodings of FIRE's table 4, whose models this part shares.
_BASELINES = ('nope', 'rope', 'alibi', 'kerple', 't5')
_BIASES = ('kerple_log', 'fire', 'raw distance', 'log of the distance')
# These inputs are shorter than FIRE's threshold of 512; that of one row starts
# at a quarter of the training length.
_ON_TASKS = {
  row: _RUNS[row]
  for row in (*_BIASES, 'fire, L from 1/4', 'alibi', 'rope', 'nope')
}
_REGULARIZED = ('fire', 'rope')
_COPY, _REVERSE = (f'warping_algorithmic.py:{x}' for x in ('copy', 'reverse'))
# RULER's single needle in noise, of one number, is a passkey.
_PASSKEY = 'recall.py:niah_single_1'


_PARTS: dict[str, list[Any]] = {
  'biases': [_curves([*_RUNS][:5])],
  'random_positions': [
    _curves(('fire', 'fire, randomized', 'rope', 'rope, randomized'))
  ],
  'interpolation': [
    _curves(
      (
        *('kerple_log', 'alibi', 'fire', 'fire, L from 1/4', 'raw distance'),
        *('log of the distance', 'fixed length', 'fire, no threshold'),
        *('fire, linear', 'fire, one hidden layer', 'fire, L from 1/8'),
        *('fire, L from 1', 'nope', 't5'),
      )
    )
  ],
  'rate': [
    _curves(_BIASES),
    _curves(_BIASES, 'faster', **{'optimizer.encoding_rate': 10.0}),
  ],
  'range': [
    _curves(('rope', *_RANGE_NAMES)),
    _task('copy', _COPY, {'rope': 'rope'} | _TASK_RANGES),
    _task('reverse', _REVERSE, {'rope': 'rope'} | _TASK_RANGES),
  ],
  'text': [
    _curves(
      (*_BIASES, 'alibi', 'rope'),
      'docstrings',
      **{'data.source': 'docstrings', 'eval.windows': 16},
    )
  ],
  'tasks': [
    # The training length counts inputs; copy has as many targets.
    _task('copy', _COPY, _ON_TASKS | {'fire, L from 1/4': _fire_from(2 / 4)}),
    _task('passkey', _PASSKEY, _ON_TASKS),
  ],
  'regularization': [
    _curves(_REGULARIZED, name, **settings)
    for name, settings in (
      ('code', {}),
      ('no decay', {'optimizer.weight_decay': 0.0}),
      ('strong decay', {'optimizer.weight_decay': 0.1}),
      ('dropout', {'model.dropout_rate': 0.1}),
    )
  ],
  'protocol': [
    LengthCurves(
      name='code',
      config='fire_c4.py:base',
      rows=experiment.rows(papers.FIRE_RUNS, None, _BASELINES, scales=_SCALES),
      ratios=(0.25, 0.5, 1, 2, 4),
      scales=_SCALES,
    ),
    Figure(
      name='constructions',
      part='code',
      rows=_BASELINES,
      columns=(*NAMES, *_AT_4),
      unit='nats per byte, at four training lengths minus at one; then at four',
      measure=model_analysis.constructions_of_curves,
      scales=_SCALES,
    ),
  ],
  'grid': [dataclasses.replace(_curves(()), rows=_grid())],
}
_ALL = '|'.join(_BASELINES)
_ALL_RANGES = '|'.join(_RANGE_NAMES)
_TEXT = f"""
[biases] biases along training: the gap between long contexts and that of
    training
L1: KERPLE and ALiBi lose nothing at 16 times the length
  code: kerple_log|alibi @ 16 < @ 1
L2: FIRE loses at 16 times the length
  code: fire @ 16 > @ 1
L3: a threshold that starts at a quarter of the training length extrapolates
    worse than one that starts at 512
  code: fire, L from 1/4 > fire @ 4|16
L4: with a threshold from a quarter of the training length, one hidden layer
    extrapolates better than two
  code: fire, one hidden layer, L from 1/4 < fire, L from 1/4 @ 4|16
[random_positions] random positions along training
L5: random positions help RoPE at 16 times the length
  code: rope, randomized < rope @ 16
L6: random positions harm FIRE at the training length and at 16 times it
  code: fire, randomized > fire @ 1|16
[interpolation] learned biases: interpolation, threshold and hidden layers
L7: an MLP on the raw distance is better than FIRE at every length
  code: raw distance < fire @ 1|2|4|8|16
L8: an MLP on the logarithm of the distance is better than FIRE at every length
  code: log of the distance < fire @ 1|2|4|8|16
L9: the threshold does not help: FIRE without it is not worse (by 0.02)
  code: fire, no threshold < fire @ 1|2|4|8|16 by -0.02
L29: FIRE is better at 16 times the length the larger its initial threshold is,
    of an eighth, a quarter, one and four training lengths
  code: fire < fire, L from 1 @ 16
  code: fire, L from 1 < fire, L from 1/4 @ 16
  code: fire, L from 1/4 < fire, L from 1/8 @ 16
L30: at four and 16 times the length, FIRE with one hidden layer is better than
    with two, and with none better than with one
  code: fire, one hidden layer < fire @ 4|16
  code: fire, linear < fire, one hidden layer @ 4|16
[rate] biases whose parameters learn ten times faster: the raw distance is a
    larger input than FIRE's, so that its MLP learns faster
L10: the learning rate is not the reason: FIRE that learns ten times faster is
    still worse than an MLP on the raw distance at four times the length and
    more
  code: raw distance @ 4|8|16 < faster: fire @ 4|8|16
L11: an MLP on the raw distance that learns ten times faster loses nothing at 16
    times the length
  faster: raw distance @ 16 < @ 1
[range] random positions by range: text and two tasks
L12: on text, random positions cost RoPE loss at the training length; ten times
    the range costs more there and at 16 times the length
  code: rope < {_ALL_RANGES} @ 1
  code: range 1x < range 10x @ 1|16
L13: on copy and reverse, random positions of any range help beyond the training
    lengths
  copy|reverse: {_ALL_RANGES} > rope @ beyond
L14: on copy and reverse, random positions of any range cost less than five
    points at lengths seen
  copy|reverse: {_ALL_RANGES} > rope @ seen by -5
[protocol] six constructions of a curve over lengths, for the same models
L15: by the beginnings of the documents that are long enough for each length,
    every encoding gains more from four times the length than on the same text
  constructions: {_ALL} @ own < @ recut
L16: by the mean over windows of unequal size, every encoding gains less from
    four times the length than on the same text
  constructions: {_ALL} @ recut < @ per window
L17: by every construction, ALiBi and KERPLE are better than RoPE, NoPE and T5
    at four times the length
  constructions: alibi|kerple < rope|nope|t5 @ {'|'.join(_AT_4)}
[text] biases on English text: the docstrings of the standard library
L18: on English, too, KERPLE and ALiBi lose nothing at 16 times the length
  docstrings: kerple_log|alibi @ 16 < @ 1
L19: on English, too, FIRE loses at 16 times the length
  docstrings: fire @ 16 > @ 1
L20: on English, too, an MLP on the raw distance is better than FIRE at every
    length
  docstrings: raw distance < fire @ 1|2|4|8|16
[tasks] biases where distant tokens have to be found: copy and a passkey
L21, copy: beyond the training lengths, FIRE with a threshold from a quarter of
    the length copies more than 10 %, and an MLP on the raw distance at most
    five points worse
  copy: fire, L from 1/4 @ beyond > 10
  copy: raw distance > fire, L from 1/4 @ beyond by -5
L21, passkey: beyond the training lengths, FIRE with a threshold from a quarter
    of the length finds more than 10 % of the passkeys, and an MLP on the raw
    distance at most five points worse
  passkey: fire, L from 1/4 @ beyond > 10
  passkey: raw distance > fire, L from 1/4 @ beyond by -5
L22, copy: with KERPLE and ALiBi, at least five points fewer copies are right
    beyond the training lengths
  copy: kerple_log|alibi @ beyond < @ seen by 5
L22, passkey: with KERPLE and ALiBi, at least five points fewer passkeys are
    found beyond the training lengths
  passkey: kerple_log|alibi @ beyond < @ seen by 5
[regularization] weight decay and dropout
L23: weight decay ten times as strong improves FIRE and RoPE at 16 times the
    length
  strong decay: [fire|rope] @ 16 < code: [] @ 16
L24: dropout of 0.1 improves FIRE and RoPE at 16 times the length
  dropout: [fire|rope] @ 16 < code: [] @ 16
L25: no weight decay makes FIRE and RoPE worse at 16 times the length
  no decay: [fire|rope] @ 16 > code: [] @ 16
[grid] sixteen encodings with each position scheme and logit scale
L26: the logit scale log n improves models with RoPE, T5, NoPE and FIRE at 16
    times the length
  code: [rope|t5|nope|fire], log n < [] @ 16
L27: random positions improve PoPE and sinusoidal and learned vectors at 16
    times the length
  code: [pope|sinusoidal|learned], randomized < [] @ 16
L28: with RoPE, PoPE and sinusoidal vectors, positions that are interpolated
    only in tests are worse than standard ones at twice the length
  code: [rope|pope|sinusoidal] < [], interpolated @ 2
L31: the logit scale log n makes models with ALiBi, KERPLE and an MLP on the raw
    distance worse at 16 times the length
  code: [alibi|kerple_log|raw distance] < [], log n @ 16
L32: random positions make models with T5, ALiBi and KERPLE worse at the
    training length and at 16 times it
  code: [t5|alibi|kerple_log] < [], randomized @ 1|16
L33: with ALiBi, KERPLE and an MLP on the raw distance, positions that are
    interpolated only in tests are worse than standard ones at two and 16 times
    the length
  code: [alibi|kerple_log|raw distance] < [], interpolated @ 2|16
L34: power KERPLE and Sandwich lose nothing at 16 times the length
  code: kerple_power|sandwich @ 16 < @ 1
L35: the logit scale log n makes models with power KERPLE, Sandwich, FIRE with
    one hidden layer and the relative encodings of Shaw and Transformer-XL worse
    at 16 times the length
  code: [kerple_power|sandwich|fire, one hidden layer|shaw|transformer_xl] < [],
    log n @ 16
L36: with power KERPLE, Sandwich, Transformer-XL's encoding and half RoPE,
    positions that are interpolated only in tests are worse than standard ones
    at two and 16 times the length
  code: [kerple_power|sandwich|transformer_xl|rope, half] < [], interpolated
    @ 2|16
L37: half RoPE is better than RoPE at 16 times the length
  code: rope, half < rope @ 16
L38: random positions make models with an MLP on the raw distance, power KERPLE
    and Sandwich worse at the training length and at 16 times it
  code: [raw distance|kerple_power|sandwich] < [], randomized @ 1|16
L39: the logit scale log n improves RoPE that is trained with random positions,
    at 16 times the length
  code: rope, randomized, log n < rope, randomized @ 16
"""

EXPERIMENTS = experiment.read('study', _TEXT, _PARTS, {})
