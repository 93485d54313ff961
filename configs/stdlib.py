"""Train short, test long, on the Python standard library's own source.

Command:
  lengen compare --config=configs/stdlib.py:cpu --workdir=runs/demo \
    --runs='fire; kerple_log; alibi; rope; nope'

Sizes (`--config=configs/stdlib.py:SIZE`):
  paper  FIRE's base model (arXiv:2310.04418, table 8) on bytes, train length
         512. No paper uses this corpus; `paper` is the full size, as elsewhere.
  small  The same with four layers.
  cpu    A minute or so per run on two cores.
  tiny   Seconds; for tests.
"""

from lengen_jax.training import defaults

_FIELDS = {
  'model.vocab_size': 256,
  'model.encoding': 'fire',
  'model.num_layers': [..., 4, ..., ...],
  'data.source': 'stdlib',
  'data.train_length': [512, ..., 128, 32],
  'data.batch_size': [64, ..., 16, 4],
  'optimizer.warmup_steps': [500, ..., 50, 2],
  'optimizer.learning_rate': [..., ..., 4e-3, 3e-3],
  'train.steps': [..., ..., 350, ...],
  'train.checkpoint_every': [..., ..., 100, ...],
  # Standard libraries have some fifty windows of 8192 bytes.
  'eval.windows': [32, ..., 24, 2],
}


def get_config(arg=''):
  """Returns the config; `arg` is a size."""
  (size,) = defaults.choose(arg)
  config = defaults.create('base', size, _FIELDS)
  # Each length divides the greatest: all lengths score the same tokens.
  length = config.data.train_length
  config.eval.lengths = tuple(length * 2**n for n in range(5))
  return config
