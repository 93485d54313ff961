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

Sizes (`--config=configs/randomized_imagenet.py:SIZE`):
  small  The same model, a twentieth of the steps, 5000 pictures tested.
  cpu    A smaller model, 10 x 11 and 20 x 21 pixels; minutes on two cores.
  tiny   4 x 5 and 6 x 7 pixels; seconds, for tests.
"""

import ml_collections

from lengen_jax.data import imagenet
from lengen_jax.models import presets
from lengen_jax.training import defaults

_SIZES = ('paper', 'small', 'cpu', 'tiny')
_LENGTHS = (506, 2025)
_RANDOM = 'randomized(max_position=2048)'
# Table 3: figures at both lengths, plain and randomized.
_TABLE_3 = (
  ('nope', (5.741, 6.115), None),
  ('sinusoidal', (5.257, 7.369), (5.371, 6.133)),
  ('alibi', (4.949, 7.120), (5.017, 5.373)),
  ('transformer_xl', (4.397, 7.934), (4.921, 5.141)),
  ('rope', (4.325, 7.946), (5.117, 5.341)),
  ('learned(max_position=2048)', (5.262, 7.194), (5.754, 6.140)),
  ('kerple_power', (4.929, 6.221), (5.252, 5.427)),
  ('kerple_log', (5.152, 5.526), (5.283, 5.876)),
  ('sandwich', (5.161, 5.497), (5.443, 7.011)),
  ('sinusoidal | shape(max_shift=2048)', (5.563, 6.332), None),
)


def get_config(arg=''):
  """The configuration; `arg` is a size."""
  size = arg or 'paper'
  if size not in _SIZES:
    raise ValueError(f'unknown size {size!r}; valid: {", ".join(_SIZES)}')
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

  config.eval.lengths = {'cpu': (110, 420), 'tiny': (20, 42)}.get(
    size, _LENGTHS
  )
  config.data.source = 'seqio'
  config.data.task = 'imagenet'
  config.data.train_length = config.eval.lengths[0]
  config.data.batch_size = {'tiny': 4}.get(size, 32)

  config.optimizer.name = 'adam'
  config.optimizer.learning_rate = {'cpu': 1e-3, 'tiny': 3e-3}.get(size, 1e-5)
  config.optimizer.schedule = 'constant'
  config.optimizer.weight_decay = 0.0
  config.optimizer.b2 = 0.999

  steps = {'small': 50_000, 'cpu': 1000, 'tiny': 8}
  config.train.steps = steps.get(size, 1_000_000)
  config.train.log_every = {'tiny': 4}.get(size, 10)
  config.train.checkpoint_every = {'cpu': 100, 'tiny': 4}.get(size, 5000)

  if size != 'paper':
    config.eval.examples = {'small': 5000, 'cpu': 500, 'tiny': 8}[size]
  config.eval.batch_tokens = {'cpu': 16384, 'tiny': 1024}.get(size, 65536)
  if size == 'paper':
    rows = tuple(
      (run + positions, figures)
      for run, *both in _TABLE_3
      for positions, figures in zip(('', f' | {_RANDOM}'), both, strict=True)
      if figures
    )
    config.paper = ml_collections.ConfigDict(
      dict(unit='nats per token', columns=_LENGTHS, rows=rows)
    )
  return config
