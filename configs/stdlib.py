"""Train short, test long, on the Python standard library's own source.

Command:
  lengen compare --config=configs/stdlib.py:cpu --workdir=runs/demo \
    --runs='fire; kerple_log; alibi; rope; nope'

Sizes (`--config=configs/stdlib.py:SIZE`):
  paper  FIRE's base model (arXiv:2310.04418, table 8) on bytes, train length
         512. No paper has this corpus; the name is the same everywhere.
  small  The same with four layers.
  cpu    A minute or so per run on two cores.
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
  config = defaults.get(**presets.get(size if few else 'base'))
  # Bytes.
  config.model.vocab_size = 256
  config.model.encoding = 'fire'
  if not few:
    config.model.dtype = 'bfloat16'
    config.model.scan_layers = True
    config.model.remat = 'full'
  if size == 'small':
    config.model.num_layers = 4

  length = {'cpu': 128, 'tiny': 32}.get(size, 512)
  config.data.source = 'stdlib'
  config.data.train_length = length
  config.data.batch_size = {'cpu': 16, 'tiny': 4}.get(size, 64)

  config.optimizer.learning_rate = {'cpu': 4e-3, 'tiny': 3e-3}.get(size, 6e-4)
  config.optimizer.warmup_steps = {'cpu': 50, 'tiny': 2}.get(size, 500)

  config.train.steps = {'cpu': 350, 'tiny': 8}.get(size, 10000)
  config.train.log_every = {'tiny': 4}.get(size, 10)
  config.train.checkpoint_every = {'cpu': 100, 'tiny': 4}.get(size, 1000)

  # Each divides the longest: all score the same tokens.
  config.eval.lengths = tuple(length * 2**n for n in range(5))
  config.eval.windows = {'cpu': 24, 'tiny': 2}.get(size, 64)
  config.eval.batch_tokens = {'cpu': 16384, 'tiny': 1024}.get(size, 65536)
  return config
