"""Recall and state tracking: trained on short inputs, tested on longer ones.

Command:
  lengen sweep --config=configs/recall.py:TASK --workdir=runs/recall/TASK

TASK is `mqar`, the default, or another name of TASKS below. The tests are at
the greatest training length and 2, 4 and 8 times that. The score is the
accuracy per scored target; for the tasks of RULER it is the share of inputs
whose whole answer is correct.

Tasks, lengths and training of the default size are those of the papers where
they give them:
- mqar, Arora et al. (2023), arXiv:2312.04927: 8192 token ids. They train on
  inputs of 64 to 512 tokens with 4 to 64 pairs, we on 64 to 256 with 16.
- flip_flop, Liu et al. (2023), arXiv:2306.00946: 1.6M inputs of 256
  instructions; the batch size is ours. They also test with ignore=0.1 and 0.98.
- selective_copying, Gu and Dao (2023), arXiv:2312.00752: 16 of 4096 tokens, 16
  token ids, two layers of width 64, 400,000 steps of 64 rows at 1e-4.
- induction_heads, the same: 16 token ids, 256 tokens, 204,800 steps of 8 rows
  at 2e-4 or 1e-3 with Adam. They train RoPE for twice as many steps, and test
  up to 2^20 tokens. Warm-up and decay of the rate are ours.
- s5, a5, z60, Merrill et al. (2024), arXiv:2404.08819: 2 elements or more.
- RULER (niah_..., vt, cwe, fwe), Hsieh et al. (2024), arXiv:2404.06654, has no
  training; ours is.

`:TASK,cpu` trains a run in minutes on two cores. With it, two layers learn mqar
and niah_single_1. `:TASK,tiny` is for tests.
"""

from lengen_jax.training import defaults

# Keys of a task, and the first and last training length: of the papers' size,
# and of 'cpu' and 'tiny'.
TASKS = {
  'mqar': ('pairs=16', (64, 256), 'vocabulary=64', (16, 32)),
  'forgetting_mqar': (
    'pairs=16, updates=8',
    (80, 256),
    'vocabulary=64',
    (20, 32),
  ),
  'niah_single_1': ('', (64, 256), 'digits=3', (16, 32)),
  'niah_single_2': ('', (64, 256), 'digits=3', (16, 32)),
  'niah_single_3': ('', (128, 512), 'digits=4', (16, 32)),
  'niah_multikey_1': ('', (64, 256), 'digits=3', (24, 48)),
  'niah_multikey_2': ('', (64, 256), 'digits=3', (16, 32)),
  'niah_multikey_3': (
    '',
    (512, 1024),
    'digits=2, key_tokens=2',
    (24, 48),
  ),
  'niah_multivalue': ('', (64, 256), 'digits=2', (24, 40)),
  'niah_multiquery': ('', (64, 256), 'digits=2', (24, 40)),
  'vt': ('', (64, 256), 'hops=2', (16, 32)),
  'cwe': ('', (128, 256), 'common=3, words=8', (40, 64)),
  'fwe': ('', (64, 256), 'words=8', (56, 64)),
  'flip_flop': ('', (256, 256), '', (2, 16)),
  'selective_copying': ('', (4096, 4096), 'vocabulary=8, data=4', (8, 24)),
  'induction_heads': ('', (256, 256), '', (8, 32)),
  'associative_recall': ('', (8, 128), '', (4, 16)),
  's5': ('', (2, 32), '', (2, 8)),
  'a5': ('', (2, 32), '', (2, 8)),
  'z60': ('', (2, 32), '', (2, 8)),
}
_TESTED = (1, 2, 4, 8)
_RULER = ('niah_', 'vt', 'cwe', 'fwe')

_FIELDS = {
  'model.num_layers': 2,
  'model.head_dim': [..., ..., 16, 8],
  'model.num_heads': [..., ..., ..., 2],
  'model.width': [..., ..., 64, 16],
  'model.mlp_width': [..., ..., 128, 32],
  'optimizer.name': 'adamw',
  'optimizer.schedule': 'linear',
  'optimizer.clip_norm': 1.0,
  'train.steps': [100_000, 20_000, 800, 20],
  'train.batch_size': [64, ..., ..., 8],
  'train.buckets': [4, ..., 1, 1],
  'train.log_every': [500, ..., 100, 10],
  'train.checkpoint_every': [5000, ..., ..., 10],
  'eval.examples': [2000, 500, 200, 8],
  'eval.batch_tokens': [32768, ..., ..., 512],
  'eval.buckets': [4, ..., 2, 1],
  'sweep.runs': [
    'nope; rope; alibi; fire; rope | randomized(max_position=65536); lstm',
    ...,
    'nope; rope; fire',
    'rope; lstm',
  ],
  'sweep.learning_rates': [(3e-4, 1e-3, 3e-3), ..., (3e-3,), (3e-3,)],
  'sweep.seeds': [..., ..., (0,), (0, 1)],
}
# Settings of single tasks.
_OWN = {
  'flip_flop': {'train.batch_size': [16, ..., 64, 8]},
  'selective_copying': {
    'model.width': [64, ..., ..., 16],
    'optimizer.schedule': ['constant', ..., 'linear', 'linear'],
    'train.steps': [400_000, 20_000, 800, 20],
    'sweep.learning_rates': [(1e-4,), ..., (3e-3,), (3e-3,)],
  },
  'induction_heads': {
    'optimizer.name': 'adam',
    'train.steps': [204_800, 20_000, 800, 20],
    'train.batch_size': [8, ..., 64, 8],
    'sweep.learning_rates': [(2e-4, 1e-3), ..., (3e-3,), (3e-3,)],
  },
}


def get_config(arg=''):
  """Returns the config; `arg` is a task, then perhaps a size."""
  task, size = defaults.choose(arg, TASKS)
  keys, lengths, small_keys, small_lengths = TASKS[task]
  if size in ('cpu', 'tiny'):
    keys, lengths = small_keys, small_lengths
  is_ruler = task.startswith(_RULER)
  retrieves = is_ruler or task.endswith('mqar')
  name = f'{"retrieval" if retrieves else "synthetic"}/{task}'
  config = defaults.get_task(
    f'{name}({keys})' if keys else name,
    'cpu',
    size,
    _FIELDS | _OWN.get(task, {}),
  )
  config.model.encoding = 'rope'
  if config.optimizer.schedule != 'constant':
    config.optimizer.warmup_steps = config.train.steps // 10
  config.train.min_length, config.train.max_length = lengths
  config.eval.lengths = tuple(n * lengths[1] for n in _TESTED)
  config.eval.score = 'exact' if is_ruler else 'accuracy'
  return config
