"""Randomized positions on ImageNet: trained on 506 pixels, tested on 2025 too.

Command:
  lengen compare --config=configs/randomized_imagenet.py --workdir=runs/pixels \
    --runs='rope; rope | standard; kerple_log; kerple_log | standard; ...'

A run without positions has randomized ones. The data is imagenet2012 of
TensorFlow Datasets; --config.data.raw names its folder.

Paper: randomized encodings on real tasks, table 3: an encoder-decoder reads
gray pixels, 22 x 23 = 506 or 45 x 45 = 2025 with a black one at the end of each
row, and names the class; nats per picture, the least of 3 seeds
(--config.seed=1, 2). A guess costs ln 1000 = 6.9.

Not in the paper, so ours: the range of randomized positions and of learned ones
(2048), that SHAPE shifts sinusoidal ones, by up to 2048, and that the black
pixel is one of the 23 columns. Tested is the validation split.

`:no_delimiter` leaves the black pixels out, which the paper's text says is
considerably worse: 22 x 22 and 44 x 44 pixels.

Sizes (`--config=configs/randomized_imagenet.py:[no_delimiter,]SIZE`):
  small  The same model, a twentieth of the steps, 5000 pictures tested.
  cpu    A smaller model, 10 x 11 and 20 x 21 pixels; minutes on two cores.
  tiny   4 x 5 and 6 x 7 pixels; seconds, for tests.
"""

import ml_collections

from lengen_jax import papers
from lengen_jax.data import imagenet
from lengen_jax.models import presets
from lengen_jax.training import defaults

_ROW_ENDS = ('delimiter', 'no_delimiter')
_SIZES = ('paper', 'small', 'cpu', 'tiny')
# Squares of pixels, in training and beyond.
_SIDES = {'cpu': (10, 20), 'tiny': (4, 6)}
_LENGTHS = (506, 2025)
_RANDOM = 'randomized(max_position=2048)'
# What we call the rows of table 3.
_ROWS = {
  'nope': 'nope',
  'sin/cos': 'sinusoidal',
  'alibi': 'alibi',
  'transformer-xl': 'transformer_xl',
  'rope': 'rope',
  'learned': 'learned(max_position=2048)',
  'power kerple': 'kerple_power',
  'log kerple': 'kerple_log',
  'sandwich': 'sandwich',
  'shape': 'sinusoidal | shape(max_shift=2048)',
}


def get_config(arg=''):
  """The configuration; `arg` is `no_delimiter` and a size, each optional."""
  rows, size = defaults.choose(arg, _ROW_ENDS, _SIZES)
  few = size in ('cpu', 'tiny')
  config = defaults.get(**presets.get(size if few else 'enwik8'))
  config.model.architecture = 'encoder_decoder'
  config.model.vocab_size = imagenet.PIXELS + imagenet.CLASSES
  config.model.encoding = 'rope'
  if not few:
    config.model.dtype = 'bfloat16'
    config.model.scan_layers = True
  config.positions = {
    'cpu': 'randomized(max_position=512)',
    'tiny': 'randomized(max_position=64)',
  }.get(size, _RANDOM)

  if rows == 'delimiter':
    lengths = tuple(n * (n + 1) for n in _SIDES.get(size, ())) or _LENGTHS
  else:
    lengths = tuple(n * n for n in _SIDES.get(size, (22, 44)))
  config.eval.lengths = lengths
  config.data.source = 'seqio'
  config.data.task = {
    'delimiter': 'imagenet',
    'no_delimiter': 'imagenet(delimiter=False)',
  }[rows]
  config.data.train_length = config.eval.lengths[0]
  config.data.batch_size = {'cpu': 16, 'tiny': 4}.get(size, 32)

  config.optimizer.name = 'adam'
  config.optimizer.learning_rate = {'cpu': 1e-3, 'tiny': 3e-3}.get(size, 1e-5)
  config.optimizer.schedule = 'constant'
  config.optimizer.weight_decay = 0.0
  config.optimizer.b2 = 0.999

  steps = {'small': 50_000, 'cpu': 250, 'tiny': 8}
  config.train.steps = steps.get(size, 1_000_000)
  config.train.log_every = {'tiny': 4}.get(size, 10)
  config.train.checkpoint_every = {'cpu': 125, 'tiny': 4}.get(size, 5000)

  if size != 'paper':
    config.eval.examples = {'small': 5000, 'cpu': 200, 'tiny': 8}[size]
  config.eval.batch_tokens = {'cpu': 16384, 'tiny': 1024}.get(size, 65536)
  if (rows, size) == ('delimiter', 'paper'):
    rows = tuple(
      (_ROWS[name] + positions, figures)
      for name, both in papers.RANDOMIZED_TABLE_3.items()
      for positions, figures in zip(('', f' | {_RANDOM}'), both, strict=True)
      if figures
    )
    config.paper = ml_collections.ConfigDict(
      dict(unit='nats per token', columns=_LENGTHS, rows=rows)
    )
  return config
