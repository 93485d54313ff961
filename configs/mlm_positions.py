"""Masked language modelling: trained at 64 tokens, tested on up to 512.

Command:
  lengen compare --config=configs/mlm_positions.py:cpu --workdir=runs/mlm \
    --runs='sinusoidal | standard; sinusoidal | randomized(max_position=512);
      sinusoidal | randomized(max_position=512, test="even");
      sinusoidal | equal_mean; sinusoidal | equal_mean | log_n(train_length=64)'

Source: Su's essay on positional robustness, which has no table. It finds that
random positions in training help beyond the training length, that those whose
last one is random with the true length as its mean help more, as do logits
scaled by log n, and positions spaced evenly at test time.

From the essay are the two lengths, the task and the schemes. Ours: the encoding
(sinusoidal, where schemes differ within minutes), the model, the optimizer, and
the corpus, the Python standard library, which needs no download. For other text
set data.source, data.task and data.path, and model.vocab_size to one id more
than the vocabulary has, the last one being the mask: 260 for bytes.

What size cpu gives: docs/results.md, su/mlm.

Sizes (`--config=configs/mlm_positions.py:SIZE`):
  paper  Eight layers of width 256.
  small  The same with four layers and fewer steps.
  cpu    A few minutes per run on two cores.
  tiny   Seconds; for tests.
"""

from lengen_jax import errors
from lengen_jax.models import presets
from lengen_jax.training import defaults

_SIZES = ('paper', 'small', 'cpu', 'tiny')


def get_config(arg=''):
  """The configuration; `arg` is a size."""
  size = arg or 'paper'
  if size not in _SIZES:
    raise errors.ConfigError(errors.one_of('size', size, _SIZES))
  few = size in ('cpu', 'tiny')
  config = defaults.get(**presets.get(size if few else 'enwik8'))
  config.model.architecture = 'encoder'
  # Bytes, and one id that masks.
  config.model.vocab_size = 257
  config.model.encoding = 'sinusoidal'
  if not few:
    config.model.dtype = 'bfloat16'
    config.model.scan_layers = True
  if size == 'small':
    config.model.num_layers = 4
  config.positions = 'equal_mean'

  length = {'tiny': 16}.get(size, 64)
  config.data.source = 'stdlib'
  config.data.train_length = length
  config.data.batch_size = {'cpu': 32, 'tiny': 4}.get(size, 256)

  config.optimizer.learning_rate = {'cpu': 3e-3, 'tiny': 3e-3}.get(size, 1e-3)
  config.optimizer.warmup_steps = {'cpu': 100, 'tiny': 2}.get(size, 500)

  steps = {'small': 10_000, 'cpu': 500, 'tiny': 8}
  config.train.steps = steps.get(size, 50_000)
  config.train.log_every = {'tiny': 4}.get(size, 10)
  config.train.checkpoint_every = {'cpu': 400, 'tiny': 4}.get(size, 1000)

  config.eval.lengths = tuple(length * 2**n for n in range(4))
  config.eval.windows = {'cpu': 96, 'tiny': 2}.get(size, 256)
  config.eval.batch_tokens = {'cpu': 16384, 'tiny': 1024}.get(size, 65536)
  return config
