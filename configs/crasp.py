"""C-RASP: tasks that are predicted to generalize to longer inputs, or not to.

Command:
  lengen sweep --config=configs/crasp.py:TASK --workdir=runs/crasp/TASK

Paper: Huang et al. (2024), arXiv:2410.02140. TASK is `bin_majority`, the
default, or another task of the family `crasp`. Training uses all lengths up to
50. The tests use lengths 50, 100 and 150; those of the paper use 2000 rows from
each of three ranges. The score is the part of rows whose answer and eos are
right.

The runs are a learned encoding with a random start, as in the paper, and NoPE.
The paper selects layers (1, 2, 4), heads (1, 2, 4), width (16, 64, 256) and
learning rate by the accuracy at training lengths; here the model is the largest
one and the sweep has both learning rates. Unlike there, training does not stop
at an accuracy of 100 %, `parity` has no empty inputs, and the rate has a
warm-up.

`:TASK,small` has 10,000 steps, `:TASK,cpu` is a small model for minutes on two
cores, and `:TASK,tiny` is for tests.
"""

from lengen_jax import tasks
from lengen_jax.tasks import batches
from lengen_jax.training import defaults

_FIELDS = {
  'model.num_layers': [4, ..., 2, 1],
  'model.num_heads': [4, ..., 4, 2],
  'model.head_dim': [64, ..., 16, 8],
  'model.width': [256, ..., 64, 16],
  'model.mlp_width': [1024, ..., 256, 32],
  'optimizer.name': 'adamw',
  'optimizer.schedule': 'linear',
  'optimizer.clip_norm': 1.0,
  'train.max_length': [50, ..., 20, 8],
  'train.steps': [30_000, 10_000, 1500, 20],
  'train.batch_size': [64, ..., ..., 8],
  'train.buckets': [4, ..., ..., 1],
  'train.log_every': [500, ..., 100, 10],
  'train.checkpoint_every': [5000, ..., ..., 10],
  'eval.lengths': [(50, 100, 150), ..., (20, 40, 60), (8, 16)],
  'eval.examples': [2000, ..., 500, 8],
  'eval.batch_tokens': [32768, ..., ..., 512],
  'eval.buckets': [3, ..., ..., 1],
  'eval.score': 'exact',
  'sweep.learning_rates': [(1e-3, 1e-4), ..., (1e-3,), (3e-3,)],
  'sweep.seeds': [(0, 1, 2, 3, 4), ..., (0,), (0,)],
}


def get_config(arg=''):
  """Returns the config; `arg` is a task, then perhaps a size."""
  task, size = defaults.choose(arg, tasks.TASKS['crasp'])
  config = defaults.get_task(f'crasp/{task}', 'cpu', size, _FIELDS)
  config.optimizer.warmup_steps = config.train.steps // 10
  rows = tasks.create(config.task)
  config.train.min_length = max(1, rows.min_length)
  longest = batches.count_tokens(rows, max(config.eval.lengths))
  positions = f'(max_position={longest})'
  config.model.encoding = f'learned{positions}'
  config.sweep.runs = f'learned{positions} | random_padding{positions}; nope'
  return config
