"""Copy, reverse, sort and sum: trained on lengths 2..M, tested up to 5 M.

Command:
  lengen sweep --config=configs/warping_algorithmic.py:TASK \
    --workdir=runs/warping/TASK

Paper: position-index warping, table A; part of sequences that are right, mean
over lengths M+1..5M. M is 20 for copy and reverse, 8 for sort and sum. TASK is
one of these four, or `figure3`: copy with two layers, trained on 1..10, tested
on 1..20, ALiBi against RoPE.

Unlike the paper we draw every batch anew, where it has 100,000 training
instances and 10,000 of the test; the vocabulary is not given there, and with
ours the model is smaller than its 107M. It also draws from 3 M positions (26.8
on copy, 39.3 on reverse, 43.0 on sort); how they reach lengths of 5 M is not
said, so that column is left out.

`:TASK,cpu` is a small model for two cores, M at most 10 and every fourth length
tested; `:TASK,tiny` is for tests.
"""

import ml_collections

from lengen_jax import errors
from lengen_jax import papers
from lengen_jax.models import presets

_SIZES = ('paper', 'small', 'cpu', 'tiny')
_LONGEST = {'copy': 20, 'reverse': 20, 'sort': 8, 'sum': 8, 'figure3': 10}


def _runs(tokens):
  """The columns of table A, for rows of so many tokens in training."""
  warp = (
    f'rope | head_tail_warp(train_length={tokens}, '
    'alpha=(0.4, 0.5, 0.6, 0.7, 0.8), skew={!r})'
  )
  return (
    'rope',
    f'rope | interpolated(train_length={tokens})',
    'alibi',
    *(f'rope | randomized(max_position={n * tokens})' for n in (10, 5)),
    warp.format('sqrt'),
    warp.format('beta(2,5)'),
  )


def get_config(arg=''):
  """The configuration; `arg` is a task, then perhaps a size."""
  task, _, size = (arg or 'copy').partition(',')
  size = size or 'paper'
  for word, valid in ((size, _SIZES), (task, tuple(_LONGEST))):
    if word not in valid:
      raise errors.ConfigError(errors.one_of('task or size', word, valid))
  small = size in ('cpu', 'tiny')
  longest = {'cpu': min(10, _LONGEST[task]), 'tiny': 4}.get(
    size, _LONGEST[task]
  )
  config = ml_collections.ConfigDict()
  config.task = f'algorithmic/{"copy" if task == "figure3" else task}'
  # Inputs, and as many answers; one to a sum.
  tokens = longest + 1 if task == 'sum' else 2 * longest

  config.model = presets.get('t5_decoder')
  # The vocabulary is that of the task.
  del config.model['vocab_size']
  config.model.encoding = 'rope'
  config.model.attention_scale = 'none'
  if small or task == 'figure3':
    config.model.num_layers = 2
  if small:
    config.model.num_heads = {'tiny': 2}.get(size, 4)
    config.model.head_dim = {'tiny': 8}.get(size, 32)
    config.model.width = {'tiny': 16}.get(size, 128)
    config.model.mlp_width = {'tiny': 32}.get(size, 512)
  config.positions = 'standard'

  config.train = ml_collections.ConfigDict()
  config.train.min_length = 1 if task == 'figure3' else 2
  config.train.max_length = longest
  config.train.steps = {'cpu': 1000, 'tiny': 20}.get(size, 40_000)
  config.train.batch_size = {'cpu': 32, 'tiny': 8}.get(size, 64)
  config.train.buckets = {'cpu': 2, 'tiny': 1}.get(size, 3)
  config.train.log_every = {'cpu': 100, 'tiny': 10}.get(size, 500)
  config.train.checkpoint_every = {'tiny': 10}.get(size, 2000)

  config.optimizer = ml_collections.ConfigDict()
  config.optimizer.name = 'adamw'
  # Times sweep.learning_rates.
  config.optimizer.learning_rate = 1.0
  config.optimizer.schedule = 'linear'
  config.optimizer.warmup_steps = config.train.steps * 6 // 100
  config.optimizer.final_fraction = 0.0
  config.optimizer.weight_decay = 0.05
  config.optimizer.b1 = 0.9
  config.optimizer.b2 = 0.999
  config.optimizer.clip_norm = 1.0

  config.eval = ml_collections.ConfigDict()
  furthest = 2 * longest if task == 'figure3' else 5 * longest
  config.eval.lengths = tuple(
    range(config.train.min_length, furthest + 1, 4 if size == 'cpu' else 1)
  )
  config.eval.examples = {'cpu': 100, 'tiny': 8, 'small': 500}.get(size, 10_000)
  config.eval.batch_tokens = {'tiny': 512}.get(size, 32768)
  config.eval.buckets = {'cpu': 3, 'tiny': 2}.get(size, 5)
  config.eval.dropout = False
  config.eval.score = 'exact'

  runs = ('rope', 'alibi') if task == 'figure3' else _runs(tokens)
  config.sweep = ml_collections.ConfigDict()
  config.sweep.runs = '; '.join(runs)
  config.sweep.learning_rates = (1e-3,) if small else (3e-5,)
  config.sweep.seeds = (0, 1) if small else (0, 1, 2)
  # 'vmap' runs together, 'map' one per device; 'auto' for 'map' on CPUs.
  config.sweep.batching = 'auto'
  # What the paper has: task, run, percent.
  config.paper = tuple(
    (config.task, run, figure)
    for run, figure in zip(
      runs, papers.WARPING_TABLE_A.get(task, ()), strict=False
    )
  )
  return config
