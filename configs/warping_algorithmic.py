"""Copy, reverse, sort and sum: trained on lengths 2..M, tested up to 5 M.

Command:
  lengen sweep --config=configs/warping_algorithmic.py:TASK \
    --workdir=runs/warping/TASK

Paper: position-index warping, table A; part of sequences that are right. The
paper's means are over lengths 2..5M, training lengths included; `lengen
reproduce warping/tableA` compares with them. A sweep reports the mean over
lengths beyond M. M is 20 for copy and reverse, 8 for sort and sum. TASK is
one of these four, or `figure3`: copy with two layers, trained on 1..10, tested
on 1..20, ALiBi against RoPE.

Every batch is drawn anew; the paper has 100,000 training and 10,000 test
instances. It does not give the vocabulary; with ours, the model is smaller than
its 107M. The paper also draws random positions from a range of three times M
(26.8 on copy, 39.3 on reverse, 43.0 on sort). That column is left out, because
the paper does not say how it tests lengths up to five times M.

`:TASK,cpu` is a small model for two cores, M at most 10 and every fourth length
tested; `:TASK,tiny` is for tests.
"""

from lengen_jax import papers
from lengen_jax.training import defaults

_LONGEST = {'copy': 20, 'reverse': 20, 'sort': 8, 'sum': 8, 'figure3': 10}

_FIELDS = {
  'model.num_layers': [..., ..., 2, 2],
  'model.num_heads': [..., ..., 4, 2],
  'model.head_dim': [..., ..., 32, 8],
  'model.width': [..., ..., 128, 16],
  'model.mlp_width': [..., ..., 512, 32],
  'optimizer.name': 'adamw',
  'optimizer.schedule': 'linear',
  'optimizer.weight_decay': 0.05,
  'optimizer.clip_norm': 1.0,
  'train.steps': [40_000, ..., 1000, 20],
  'train.batch_size': [64, ..., 32, 8],
  'train.buckets': [3, ..., 2, 1],
  'train.log_every': [500, ..., 100, 10],
  'train.checkpoint_every': [2000, ..., ..., 10],
  'eval.examples': [10_000, 1000, 1000, 8],
  'eval.batch_tokens': [32768, ..., ..., 512],
  'eval.buckets': [5, ..., 3, 2],
  'eval.score': 'exact',
  'sweep.learning_rates': [(3e-5,), ..., (1e-3,), (1e-3,)],
  'sweep.seeds': [..., ..., (0, 1), (0, 1)],
}


def get_config(arg=''):
  """Returns the config; `arg` is a task, then perhaps a size."""
  task, size = defaults.choose(arg, _LONGEST)
  longest = _LONGEST[task]
  longest = {'cpu': min(10, longest), 'tiny': 4}.get(size, longest)
  # Inputs and as many targets; a sum has one target.
  tokens = longest + 1 if task == 'sum' else 2 * longest
  is_figure = task == 'figure3'
  name = f'algorithmic/{"copy" if is_figure else task}'
  config = defaults.get_task(name, 't5_decoder', size, _FIELDS)
  config.model.encoding = 'rope'
  if is_figure:
    config.model.num_layers = 2
  config.optimizer.warmup_steps = config.train.steps * 6 // 100
  config.train.min_length = 1 if is_figure else 2
  config.train.max_length = longest
  config.eval.lengths = tuple(
    range(
      config.train.min_length,
      (2 if is_figure else 5) * longest + 1,
      4 if size == 'cpu' else 1,
    )
  )
  runs = papers.warping_runs(tokens)
  names = ('rope', 'alibi') if is_figure else tuple(runs)
  config.sweep.runs = '; '.join(runs[name] for name in names)
  return config
