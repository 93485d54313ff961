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
  cpu    Bytes, at 160; minutes on two cores.
  tiny   Seconds; for tests.
"""

import ml_collections
from ml_collections import config_dict

from lengen_jax import papers
from lengen_jax.data import glue
from lengen_jax.models import presets
from lengen_jax.training import defaults

_MODELS = ('base', 'large')
_SIZES = ('paper', 'small', 'cpu', 'tiny')
# Columns of FIRE_TABLE_13.
_RUNS = (
  'nope',
  'rope',
  'rope(scale=4.)',
  'alibi',
  'kerple_log',
  't5(num_buckets=64)',
  'fire',
)


def get_config(arg=''):
  """The configuration; `arg` is a model and a size, each optional."""
  model, size = defaults.choose(arg, _MODELS, _SIZES)
  few = size in ('cpu', 'tiny')
  config = defaults.get(**presets.get(size if few else model))
  config.model.encoding = 'fire'
  # So few steps are not enough to learn anything by heart.
  config.model.dropout_rate = 0.0 if size == 'cpu' else 0.1
  if few:
    config.model.vocab_size = 259
  else:
    config.model.dtype = 'bfloat16'
    config.model.scan_layers = True
    config.model.remat = 'full'
  if size == 'small':
    config.model.num_layers = 4

  length = {'cpu': 160, 'tiny': 64}.get(size, 1024)
  config.data.source = 'seqio'
  config.data.task = 'glue_superglue'
  config.data.vocabulary = 'bytes' if few else 'data/c4_50304.model'
  config.data.train_length = length
  config.data.batch_size = {'small': 32, 'cpu': 16, 'tiny': 2}.get(size, 256)
  if few:
    config.data.target_length = 16

  rate = {'cpu': 2e-3, 'tiny': 1e-3}
  config.optimizer.learning_rate = rate.get(size, 1e-5)
  config.optimizer.schedule = 'constant'
  config.optimizer.weight_decay = 0.1
  config.optimizer.b2 = 0.95

  # A workdir, from the command line.
  config.train.init_from = config_dict.placeholder(str)
  config.train.steps = {'small': 2500, 'cpu': 180, 'tiny': 4}.get(size, 25_000)
  config.train.log_every = {'tiny': 2}.get(size, 10)
  config.train.checkpoint_every = {'cpu': 90, 'tiny': 2}.get(size, 1000)

  config.eval.lengths = (length,)
  # One prompt at a time: then tasks share their programs, which would take
  # longer to compile than to run.
  config.eval.batch_tokens = {'cpu': 128, 'tiny': 1024}.get(size, 65536)
  if size != 'paper':
    config.eval.examples = {'small': 500, 'cpu': 20, 'tiny': 4}[size]
  if size == 'paper':
    table = papers.FIRE_TABLE_13[model]
    config.paper = ml_collections.ConfigDict(
      dict(
        unit='percent',
        columns=tuple(glue.TASKS[task].name for task in table),
        rows=tuple(zip(_RUNS, zip(*table.values(), strict=True), strict=True)),
      )
    )
  return config
