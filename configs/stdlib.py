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

from lengen_jax.training import defaults

_SIZES = {
  'paper': {
    'model.vocab_size': 256,
    'model.encoding': 'fire',
    'data.source': 'stdlib',
    'data.train_length': 512,
    'data.batch_size': 64,
    'optimizer.warmup_steps': 500,
    'eval.windows': 64,
  },
  'small': {'model.num_layers': 4},
  'cpu': {
    'data.train_length': 128,
    'data.batch_size': 16,
    'optimizer.learning_rate': 4e-3,
    'optimizer.warmup_steps': 50,
    'train.steps': 350,
    'train.checkpoint_every': 100,
    'eval.windows': 24,
  },
  'tiny': {
    'data.train_length': 32,
    'data.batch_size': 4,
    'optimizer.learning_rate': 3e-3,
    'optimizer.warmup_steps': 2,
    'eval.windows': 2,
  },
}


def get_config(arg=''):
  """Returns the config; `arg` is a size."""
  (size,) = defaults.choose(arg, _SIZES)
  config = defaults.create('base', size, _SIZES)
  # Each length divides the greatest: all lengths score the same tokens.
  length = config.data.train_length
  config.eval.lengths = tuple(length * 2**n for n in range(5))
  return config
