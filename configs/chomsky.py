"""The Chomsky hierarchy of tasks: trained on lengths 1..40, tested on 41..500.

Command:
  lengen sweep --config=configs/chomsky.py:TASK --workdir=runs/chomsky/TASK

Papers: Ruoss et al. (2023), arXiv:2305.16843; table B.1 of the paper on
randomized encodings for real tasks. Accuracy per token, mean over lengths
41..500 of 500 examples each, the best of 3 seeds and 3 learning rates. TASK is
one of the fifteen, such as `bucket_sort`; see `lengen list`.

KERPLE and Sandwich draw positions here. The code of Ruoss et al. draws
distances for other biases; the paper does not say which. Nor does it say what
SHAPE shifts: here, sinusoidal positions, by up to 2048. The model differs from
the official one: LayerNorm adds 1e-6 instead of 1e-5 to the variance, initial
kernels are normal instead of truncated normal, initial learned positions are as
small as tokens, and dropout acts on the input with every encoding.

`:TASK,cpu` shows the effect on two cores in minutes, with smaller models, fewer
steps and lengths; `:TASK,tiny` is for tests.
"""

from lengen_jax import papers, tasks
from lengen_jax.training import defaults

_LAYER, _BATCH, _DISTANCES = papers.RUOSS_POSITIONS
# Encodings of Ruoss et al., plain and randomized, with the draws of their code;
# then those of the other paper; then the recurrent networks of Delétang et al.
# (2023).
_RUNS = (
  'nope',
  'sinusoidal',
  f'sinusoidal | {_BATCH}',
  'learned(max_position=2048)',
  f'learned(max_position=2048) | {_BATCH}',
  'rope',
  f'rope | {_LAYER}',
  'alibi(official_compat=True)',
  f'alibi(official_compat=True) | {_DISTANCES}',
  'transformer_xl',
  f'transformer_xl | {_DISTANCES}',
  'kerple_power',
  f'kerple_power | {_LAYER}',
  'kerple_log',
  f'kerple_log | {_LAYER}',
  'sandwich',
  f'sandwich | {_LAYER}',
  'sinusoidal | shape(max_shift=2048)',
  'rnn',
  'lstm',
  'stack_rnn',
  'tape_rnn',
)
_FEW_RUNS = f'sinusoidal; sinusoidal | {_BATCH}'
# Runs of the columns of table B.1.
_COLUMNS = (
  'kerple_power',
  'kerple_log',
  'sandwich',
  'sinusoidal | shape(max_shift=2048)',
  f'kerple_power | {_LAYER}',
  f'kerple_log | {_LAYER}',
  f'sandwich | {_LAYER}',
  'the best of Ruoss et al. (2023)',
)


_FIELDS = {
  'model.num_layers': [..., ..., 2, 2],
  'model.dropout_rate': [..., ..., 0.0, 0.0],
  'model.num_heads': [..., ..., ..., 2],
  'model.width': [..., ..., ..., 16],
  'model.mlp_width': [..., ..., ..., 32],
  'optimizer.name': 'adam',
  'train.min_length': 1,
  'train.max_length': [40, ..., ..., 6],
  'train.steps': [2_000_000, 100_000, 1000, 20],
  'train.batch_size': [128, ..., 32, 8],
  'train.buckets': [5, ..., 2, 2],
  'train.log_every': [1000, ..., 100, 10],
  'train.checkpoint_every': [50_000, ..., 1000, 10],
  'eval.lengths': [
    tuple(range(1, 501)),
    tuple(range(10, 501, 10)),
    (10, 20, 40, 60, 100, 150),
    (3, 6, 8, 12),
  ],
  'eval.examples': [500, ..., 128, 8],
  'eval.batch_tokens': [32768, ..., ..., 512],
  'eval.buckets': [8, ..., 3, 2],
  'eval.score': 'accuracy',
  'sweep.runs': ['; '.join(_RUNS), ..., _FEW_RUNS, _FEW_RUNS],
  'sweep.learning_rates': [(1e-4, 3e-4, 5e-4), ..., (1e-3,), (1e-3,)],
  'sweep.seeds': [..., ..., (0, 1), (0, 1)],
}


def get_config(arg=''):
  """Returns the config; `arg` is a task, then perhaps a size."""
  # The first is the default.
  known = dict.fromkeys(('bucket_sort', *tasks.TASKS['chomsky']))
  task, size = defaults.choose(arg, known)
  config = defaults.get_task(f'chomsky/{task}', 'chomsky', size, _FIELDS)
  config.model.encoding = 'nope'
  # Task, run and percent.
  config.paper = tuple(
    (f'chomsky/{name}', column, figure)
    for name, figures in papers.RANDOMIZED_TABLE_B1.items()
    for column, figure in zip(_COLUMNS, figures, strict=True)
  )
  return config
