"""Randomized positions on enwik8: trained at 256 bytes, tested at 256 and 1024.

Commands:
  lengen prepare --config=configs/randomized_enwik8.py
  lengen compare --config=configs/randomized_enwik8.py --workdir=runs/enwik8 \
    --runs='rope; rope | standard; kerple_log; kerple_log | standard; ...'

A run without positions has randomized ones. `:finetune` starts from a model of
RoPE, given by --config.train.init_from=RUN, and trains the runs `rope |
standard; rope; alibi | standard`.

Paper: randomized encodings on real tasks, tables 1 and 2: the least loss of 3
seeds (--config.seed=1, 2). The paper does not specify its unit; 218.8 at 256
bytes can only be a sum over the sequence: 218.8 / 256 = 0.855 nats per byte,
the unit of our table. Divided by ln 2, it is in bits per byte.

Not in the paper, so ours: the range of randomized positions and of learned ones
(2048), one draw per sequence for all layers, also for biases, SHAPE of
sinusoidal positions, by shifts of up to 2048, and the number of windows tested
(1024, of the validation split). Training windows are consecutive, and read in a
random order.

Sizes (`--config=configs/randomized_enwik8.py:[finetune,]SIZE`):
  small  The same model, 5000 steps at ten times the rate.
  cpu    A smaller model, trained at 64; minutes per run on two cores.
  tiny   Seconds; for tests.
"""

from ml_collections import config_dict

from lengen_jax import papers
from lengen_jax.training import defaults

_TABLES = ('train', 'finetune')
_LENGTHS = (256, 1024)
_RANDOM = 'randomized(max_position=2048)'
# Runs of the rows of table 2.
_FINETUNED = {
  'before': 'rope before finetuning',
  'rope': 'rope',
  'rope, randomized': f'rope | {_RANDOM}',
  'alibi': 'alibi',
}
_FIELDS = {
  'positions': [
    _RANDOM,
    ...,
    'randomized(max_position=512)',
    'randomized(max_position=256)',
  ],
  'model.vocab_size': 259,
  'model.encoding': 'rope',
  'data.source': 'prepared',
  'data.task': 'enwik8',
  'data.mode': 'concat',
  'data.train_length': [256, ..., 64, 32],
  'data.batch_size': [64, ..., 32, 4],
  'optimizer.learning_rate': [1e-4, 1e-3, 2e-3, 3e-3],
  'optimizer.name': 'adam',
  'optimizer.schedule': 'constant',
  'optimizer.weight_decay': 0.0,
  'optimizer.b2': 0.999,
  'train.steps': [1_000_000, 5000, 250, ...],
  'train.checkpoint_every': [5000, 1000, 100, ...],
  'eval.windows': [1024, ..., 64, 2],
}


def get_config(arg=''):
  """Returns the config; `arg` is `finetune` and a size, both optional."""
  table, size = defaults.choose(arg, _TABLES)
  config = defaults.create('enwik8', size, _FIELDS, remat='none')
  length = config.data.train_length
  config.data.path = f'data/enwik8_{length}'
  config.eval.lengths = (length, 4 * length)
  if table == 'finetune':
    # The workdir to start from is given on the command line.
    config.train.init_from = config_dict.placeholder(str)
  if size == 'paper':
    rows = [
      (papers.RANDOMIZED_RUNS[name] + positions, figures)
      for name, both in papers.RANDOMIZED_TABLE_1.items()
      for positions, figures in zip(('', f' | {_RANDOM}'), both, strict=True)
      if figures
    ]
    if table == 'finetune':
      finetuned = papers.RANDOMIZED_TABLE_2
      rows = [(_FINETUNED[name], row) for name, row in finetuned.items()]
    config.paper = defaults.table('nats per sequence, it seems', _LENGTHS, rows)
  return config
