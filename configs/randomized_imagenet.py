"""Randomized positions on ImageNet: trained on 506 pixels, tested on 2025 too.

Command:
  lengen compare --config=configs/randomized_imagenet.py --workdir=runs/pixels \
    --runs='rope; rope | standard; kerple_log; kerple_log | standard; ...'

A run without positions has randomized ones. The data is imagenet2012 of
TensorFlow Datasets; --config.data.raw names its folder.

Paper: randomized encodings on real tasks, table 3: an encoder-decoder reads
gray pixels, 22 x 23 = 506 or 45 x 45 = 2025 with a black one at the end of each
row, and predicts the class. Scores are nats per picture, the least of 3 seeds
(--config.seed=1, 2); uniform predictions give ln 1000 = 6.9.

Not in the paper, so ours: the range of randomized positions and of learned ones
(4048, eight training lengths), one draw per sequence for all layers, also for
biases, SHAPE of sinusoidal positions, by shifts of up to 4048, and that the
black pixel is one of the 23 columns. Tests use the validation split.

`:no_delimiter` leaves the black pixels out, which the paper's text says is
considerably worse: 22 x 22 and 44 x 44 pixels.

Sizes (`--config=configs/randomized_imagenet.py:[no_delimiter,]SIZE`):
  small  The same model, 4000 steps at ten times the rate, 5000 pictures
         tested.
  cpu    A smaller model, 10 x 11 and 20 x 21 pixels; minutes on two cores.
  tiny   4 x 5 and 6 x 7 pixels; seconds, for tests.
"""

from lengen_jax import papers
from lengen_jax.data import imagenet
from lengen_jax.training import defaults

_ROW_ENDS = ('delimiter', 'no_delimiter')
# Sides of the squares of pixels, in training and beyond.
_SIDES = {'cpu': (10, 20), 'tiny': (4, 6)}
_LENGTHS = (506, 2025)
_RANDOM = 'randomized(max_position=4048)'
_FIELDS = {
  'positions': [
    _RANDOM,
    ...,
    'randomized(max_position=880)',
    'randomized(max_position=64)',
  ],
  'model.architecture': 'encoder_decoder',
  'model.vocab_size': imagenet.PIXELS + imagenet.CLASSES,
  'model.encoding': 'rope',
  'data.source': 'seqio',
  'data.batch_size': [32, ..., 16, 4],
  'optimizer.learning_rate': [1e-5, 1e-4, 1e-3, 3e-3],
  'optimizer.name': 'adam',
  'optimizer.schedule': 'constant',
  'optimizer.weight_decay': 0.0,
  'optimizer.b2': 0.999,
  'train.steps': [1_000_000, 4000, 250, ...],
  'train.checkpoint_every': [5000, 1000, 125, ...],
  'eval.examples': [..., 5000, 200, 8],
}


def get_config(arg=''):
  """Returns the config; `arg` is `no_delimiter` and a size, both optional."""
  rows, size = defaults.choose(arg, _ROW_ENDS)
  config = defaults.create('enwik8', size, _FIELDS, remat='none')
  if rows == 'delimiter':
    config.data.task = 'imagenet'
    lengths = tuple(n * (n + 1) for n in _SIDES.get(size, ())) or _LENGTHS
  else:
    config.data.task = 'imagenet(delimiter=False)'
    lengths = tuple(n * n for n in _SIDES.get(size, (22, 44)))
  config.eval.lengths = lengths
  config.data.train_length = lengths[0]
  if (rows, size) == ('delimiter', 'paper'):
    figures_by_run = [
      (
        papers.RANDOMIZED_RUNS[name].replace('2048', '4048') + positions,
        figures,
      )
      for name, both in papers.RANDOMIZED_TABLE_3.items()
      for positions, figures in zip(('', f' | {_RANDOM}'), both, strict=True)
      if figures
    ]
    config.paper = defaults.table('nats per picture', _LENGTHS, figures_by_run)
  return config
