"""GLUE and SuperGLUE: finetuned on all tasks at once, at 1024 tokens.

Commands:
  lengen train --config=configs/glue_superglue.py:base --workdir=runs/glue \
    --config.train.init_from=RUN --config.model.encoding=ENCODING
  lengen eval --workdir=runs/glue

MODEL[,SIZE]: `base` or `large`, then perhaps a size. RUN is a run of
configs/fire_c4.py of the same model and size; with '' the model starts
from nothing. ENCODING is that run's, `fire` if left out; the paper's RoPE-PI is
`rope(scale=4.)` from a run of `rope`, taking it that its longest length is 8192
here too.

Paper: FIRE (arXiv:2310.04418), tables 12 and 13; 32 TPUv2 chips. Accuracy, for
MultiRC and ReCoRD exact match, on the validation split; there is no STS-B. The
paper does not say which half of MNLI it has; it stands beside the matched one.

Not in the paper, so ours: the form of prompts (see lengen_jax/data/glue.py),
tasks mixed by their number of examples, the separator before the answer, a
constant rate without warm-up, and the rest of the optimizer, which is as in
pretraining.

Sizes:
  small  Four layers, fewer rows and steps, 500 prompts of each task.
  cpu    Bytes, at 512; minutes on two cores.
  tiny   Seconds; for tests.
"""

import ml_collections
from ml_collections import config_dict

from lengen_jax.data import glue
from lengen_jax.models import presets
from lengen_jax.training import defaults

_MODELS = ('base', 'large')
_SIZES = ('paper', 'small', 'cpu', 'tiny')
# Table 13, percent; a column is a task, a row of the table is a run.
_RUNS = (
  'nope',
  'rope',
  'rope(scale=4.)',
  'alibi',
  'kerple_log',
  't5(num_buckets=64)',
  'fire',
)
_TABLE_13 = {
  'base': {
    'boolq': (72.51, 75.78, 75.72, 69.76, 77.31, 76.30, 76.76),
    'cb': (73.21, 80.36, 80.36, 76.79, 82.14, 83.93, 83.93),
    'cola': (69.42, 74.78, 72.87, 69.32, 74.11, 71.33, 73.63),
    'copa': (67.00, 60.00, 64.00, 58.00, 61.00, 61.00, 59.00),
    'mnli': (79.72, 83.11, 82.87, 78.02, 82.69, 82.10, 83.01),
    'mrpc': (75.98, 79.17, 80.64, 76.72, 80.64, 81.37, 80.39),
    'qnli': (84.70, 87.70, 86.89, 83.97, 87.66, 87.61, 87.83),
    'qqp': (88.72, 90.03, 89.93, 88.14, 90.22, 89.87, 89.97),
    'rte': (71.84, 73.65, 71.48, 68.23, 69.68, 73.65, 75.81),
    'sst2': (91.17, 92.89, 91.51, 88.76, 92.43, 92.20, 92.66),
    'wic': (58.78, 66.93, 65.05, 57.05, 64.89, 63.79, 64.58),
    'wnli': (63.38, 61.97, 60.56, 61.97, 53.52, 60.56, 60.56),
    'multirc': (16.89, 23.19, 22.46, 12.70, 22.56, 20.57, 25.81),
    'record': (35.50, 46.57, 45.96, 29.34, 47.74, 45.71, 46.89),
    'wsc': (67.31, 71.15, 70.19, 63.46, 66.35, 69.23, 66.35),
  },
  'large': {
    'boolq': (79.27, 79.66, 79.45, 74.77, 80.70, 79.88, 79.60),
    'cb': (83.93, 91.07, 92.86, 80.36, 92.86, 87.50, 85.71),
    'cola': (78.24, 80.54, 80.54, 71.05, 79.29, 78.33, 79.10),
    'copa': (61.00, 63.00, 63.00, 58.00, 65.00, 65.00, 65.00),
    'mnli': (84.39, 85.67, 85.31, 81.72, 85.63, 84.80, 84.93),
    'mrpc': (79.90, 81.86, 81.62, 79.41, 80.88, 83.58, 81.13),
    'qnli': (89.79, 90.87, 90.52, 86.18, 90.56, 89.77, 90.37),
    'qqp': (90.74, 91.04, 91.05, 89.75, 90.86, 90.71, 90.84),
    'rte': (77.26, 79.42, 79.06, 72.56, 79.06, 79.78, 80.87),
    'sst2': (93.69, 94.38, 94.61, 91.97, 94.61, 92.89, 93.92),
    'wic': (62.70, 69.59, 70.69, 60.35, 67.24, 64.58, 67.71),
    'wnli': (59.16, 60.56, 56.34, 50.70, 53.52, 54.93, 59.16),
    'multirc': (26.65, 30.64, 31.17, 22.77, 31.17, 29.80, 31.90),
    'record': (51.18, 58.23, 56.69, 40.79, 58.55, 52.54, 54.67),
    'wsc': (70.19, 72.12, 68.27, 66.35, 71.15, 69.23, 72.12),
  },
}


def get_config(arg=''):
  """The configuration; `arg` is a model and a size, each optional."""
  model, size = defaults.choose(arg, _MODELS, _SIZES)
  few = size in ('cpu', 'tiny')
  config = defaults.get(**presets.get(size if few else model))
  config.model.encoding = 'fire'
  config.model.dropout_rate = 0.1
  if few:
    config.model.vocab_size = 259
  else:
    config.model.dtype = 'bfloat16'
    config.model.scan_layers = True
    config.model.remat = 'full'
  if size == 'small':
    config.model.num_layers = 4

  length = {'cpu': 512, 'tiny': 64}.get(size, 1024)
  config.data.source = 'seqio'
  config.data.task = 'glue_superglue'
  config.data.vocabulary = 'bytes' if few else 'data/c4_50304.model'
  config.data.train_length = length
  config.data.batch_size = {'small': 32, 'cpu': 8, 'tiny': 2}.get(size, 256)
  if size == 'tiny':
    config.data.target_length = 16

  config.optimizer.learning_rate = 1e-3 if few else 1e-5
  config.optimizer.schedule = 'constant'
  config.optimizer.weight_decay = 0.1
  config.optimizer.b2 = 0.95

  # A workdir, from the command line.
  config.train.init_from = config_dict.placeholder(str)
  config.train.steps = {'small': 2500, 'cpu': 100, 'tiny': 4}.get(size, 25_000)
  config.train.log_every = {'tiny': 2}.get(size, 10)
  config.train.checkpoint_every = {'cpu': 50, 'tiny': 2}.get(size, 1000)

  config.eval.lengths = (length,)
  config.eval.batch_tokens = {'cpu': 16384, 'tiny': 1024}.get(size, 65536)
  if size != 'paper':
    config.eval.examples = {'small': 500, 'cpu': 20, 'tiny': 4}[size]
  if size == 'paper':
    table = _TABLE_13[model]
    config.paper = ml_collections.ConfigDict(
      dict(
        unit='percent',
        columns=tuple(glue.TASKS[task].name for task in table),
        rows=tuple(zip(_RUNS, zip(*table.values(), strict=True), strict=True)),
      )
    )
  return config
