"""A study of this package: how extrapolation changes along training.

The experiments are at scale `hours`, whose models are also tested earlier.
Their claims are hypotheses: they were written before the runs at this scale,
with the losses of one seed after 2000 steps at hand.
"""

from collections.abc import Iterable
from typing import Any

from lengen_jax.reproduce import experiment
from lengen_jax.reproduce.curves import LengthCurves

_SCALES = ('hours', 'cpu', 'tiny')
_NO_THRESHOLD = "threshold='none'"
_RAW = f"normalizer='none', {_NO_THRESHOLD}"


def _longest(run: str) -> experiment.Run:
  """Returns a run with positions randomized up to 16 training lengths.

  Sequences of a batch share a draw: the bias of FIRE is computed once for all.
  """
  return lambda n: f"{run} | randomized(max_position={16 * n}, draw='batch')"


_RUNS: dict[str, experiment.Run] = {
  'kerple_log': 'kerple_log',
  'alibi': 'alibi',
  'fire': 'fire',
  'fire, L from 1/4': lambda n: f'fire(init_threshold={n / 4})',
  'fire, one hidden layer, L from 1/4': lambda n: (
    f'fire(hidden_layers=1, init_threshold={n / 4})'
  ),
  'fire, randomized': _longest('fire'),
  'rope, randomized': _longest('rope'),
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
}


def _curves(names: Iterable[str]) -> list[Any]:
  return [
    LengthCurves(
      name='code',
      config='stdlib.py',
      rows=experiment.rows(_RUNS, names=names, scales=_SCALES),
      ratios=(1, 2, 4, 8, 16),
      scales=_SCALES,
      substitute=None,
    )
  ]


_PARTS = {
  'biases': _curves([*_RUNS][:5]),
  'random_positions': _curves(
    ('fire', 'fire, randomized', 'rope', 'rope, randomized')
  ),
  'interpolation': _curves(
    ('kerple_log', 'alibi', 'fire', *[*_RUNS][10:], 'nope', 't5')
  ),
}
_TEXT = """
[biases] biases along training: the gap between long contexts and that of
    training
L1: KERPLE and ALiBi lose nothing at 16 times the length
  code: kerple_log|alibi @ 16 < @ 1
L2: FIRE loses at 16 times the length
  code: fire @ 16 > @ 1
L3: a threshold that starts at a quarter of the training length extrapolates
    worse than one that starts at 512
  code: fire, L from 1/4 > fire @ 4|16
L4: one hidden layer extrapolates better than two
  code: fire, one hidden layer, L from 1/4 < fire, L from 1/4 @ 4|16
[random_positions] random positions along training
L5: random positions help RoPE at 16 times the length
  code: rope, randomized < rope @ 16
L6: random positions harm FIRE at the training length and at 16 times it
  code: fire, randomized > fire @ 1|16
[interpolation] whether interpolation makes a learned bias extrapolate
L7: an MLP on the raw distance is better than FIRE at every length
  code: raw distance < fire @ 1|2|4|8|16
L8: an MLP on the logarithm of the distance is better than FIRE at every length
  code: log of the distance < fire @ 1|2|4|8|16
L9: the threshold does not help: FIRE without it is not worse (by 0.02)
  code: fire, no threshold < fire @ 1|2|4|8|16 by -0.02
"""

EXPERIMENTS = experiment.read('study', _TEXT, _PARTS, {})
