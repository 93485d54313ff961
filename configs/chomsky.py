"""The Chomsky hierarchy of tasks: trained on lengths 1..40, tested on 41..500.

Command:
  lengen sweep --config=configs/chomsky.py:TASK --workdir=runs/chomsky/TASK

Papers: Ruoss et al. (2023), arXiv:2305.16843; table B.1 of the paper on
randomized encodings for real tasks. Accuracy per token, mean over lengths
41..500 of 500 examples each, the best of 3 seeds and 3 learning rates. TASK is
one of the fifteen, `bucket_sort` say; see `lengen list`.

KERPLE and Sandwich randomize positions here, where Ruoss et al.'s code draws
distances for other biases; the paper does not say which. Ours differs from the
official model in that LayerNorm adds 1e-6 to the variance and not 1e-5, kernels
start normal and not truncated, learned positions start as small as tokens, and
dropout acts on the input with every encoding.

`:TASK,cpu` shows the effect on two cores in minutes, with smaller models, fewer
steps and lengths; `:TASK,tiny` is for tests.
"""

import ml_collections

from lengen_jax import errors
from lengen_jax import papers
from lengen_jax.models import presets

_SIZES = ('paper', 'small', 'cpu', 'tiny')
_LAYER, _BATCH, _DISTANCES = papers.RUOSS_POSITIONS
# Ruoss et al.'s encodings, plain and randomized, as their code draws; then
# those of the other paper; then what Delétang et al. (2023) rank them with.
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
# Table B.1, percent; the columns are these runs.
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


def get_config(arg=''):
  """The configuration; `arg` is a task, then perhaps a size."""
  task, _, size = (arg or 'bucket_sort').partition(',')
  size = size or 'paper'
  if size not in _SIZES:
    raise errors.ConfigError(errors.one_of('size', size, _SIZES))
  config = ml_collections.ConfigDict()
  config.task = f'chomsky/{task}'

  config.model = presets.get('chomsky')
  # The vocabulary is that of the task.
  del config.model['vocab_size']
  config.model.encoding = 'nope'
  config.model.attention_scale = 'none'
  if size in ('cpu', 'tiny'):
    config.model.num_layers = 2
    config.model.dropout_rate = 0.0
  if size == 'tiny':
    config.model.num_heads = 2
    config.model.width = 16
    config.model.mlp_width = 32
  config.positions = 'standard'

  config.train = ml_collections.ConfigDict()
  config.train.min_length = 1
  config.train.max_length = {'tiny': 6}.get(size, 40)
  config.train.steps = {'small': 100_000, 'cpu': 1000, 'tiny': 20}.get(
    size, 2_000_000
  )
  config.train.batch_size = {'cpu': 32, 'tiny': 8}.get(size, 128)
  # Widths that lengths are padded to, each compiled once.
  config.train.buckets = {'cpu': 2, 'tiny': 2}.get(size, 5)
  config.train.log_every = {'cpu': 100, 'tiny': 10}.get(size, 1000)
  config.train.checkpoint_every = {'cpu': 1000, 'tiny': 10}.get(size, 50_000)

  config.optimizer = ml_collections.ConfigDict()
  config.optimizer.name = 'adam'
  # Times sweep.learning_rates.
  config.optimizer.learning_rate = 1.0
  config.optimizer.schedule = 'constant'
  config.optimizer.warmup_steps = 0
  config.optimizer.final_fraction = 0.0
  config.optimizer.weight_decay = 0.0
  config.optimizer.b1 = 0.9
  config.optimizer.b2 = 0.999
  config.optimizer.clip_norm = 1.0

  config.eval = ml_collections.ConfigDict()
  lengths = {
    'small': range(10, 501, 10),
    'cpu': (10, 20, 40, 60, 100, 150),
    'tiny': (3, 6, 8, 12),
  }
  config.eval.lengths = tuple(lengths.get(size, range(1, 501)))
  config.eval.examples = {'cpu': 128, 'tiny': 8}.get(size, 500)
  config.eval.batch_tokens = {'tiny': 512}.get(size, 32768)
  config.eval.buckets = {'cpu': 3, 'tiny': 2}.get(size, 8)
  # The official code leaves dropout on.
  config.eval.dropout = False
  config.eval.score = 'accuracy'

  config.sweep = ml_collections.ConfigDict()
  config.sweep.runs = '; '.join(_RUNS)
  config.sweep.learning_rates = (1e-4, 3e-4, 5e-4)
  config.sweep.seeds = (0, 1, 2)
  if size in ('cpu', 'tiny'):
    config.sweep.runs = f'sinusoidal; sinusoidal | {_BATCH}'
    config.sweep.learning_rates = (1e-3,)
    config.sweep.seeds = (0, 1)
  # 'vmap' runs together, 'map' one per device; 'auto' for 'map' on CPUs.
  config.sweep.batching = 'auto'

  # What the paper has: task, run, percent.
  config.paper = tuple(
    (f'chomsky/{name}', column, figure)
    for name, figures in papers.RANDOMIZED_TABLE_B1.items()
    for column, figure in zip(_COLUMNS, figures, strict=True)
  )
  return config
