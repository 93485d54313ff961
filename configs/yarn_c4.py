"""YaRN beside FIRE: a RoPE model finetuned at 8192 tokens.

Commands:
  lengen prepare --config=configs/yarn_c4.py:base
  lengen train --config=configs/yarn_c4.py:base --workdir=runs/yarn \
    --config.train.init_from=RUN
  lengen eval --workdir=runs/yarn

RUN is a run of configs/fire_c4.py with encoding `rope`, of the same model and
size; its vocabulary must be there. MODEL[,SIZE] is `base` or `large`, then
perhaps a size.

Paper: FIRE (arXiv:2310.04418), which finetunes YaRN on long sequences and finds
it worse than FIRE at long lengths and at 512, in a figure without numbers and
without a recipe. The recipe is that of YaRN (arXiv:2309.00071, section 4.1) but
for its length of 64k: 400 steps of 64 rows, AdamW with 2e-5 after 20 steps of
warm-up. Ours: a constant rate after that, clipping, and the data, whole windows
of documents of 8192 tokens or more; the others would be padding for the most
part. The windows tested are those of fire_c4.

Sizes:
  small  Four layers, fewer rows.
  cpu    Bytes, from 128 to 512; minutes on two cores.
  tiny   Seconds; for tests.
"""

from ml_collections import config_dict

from lengen_jax.models import presets
from lengen_jax.training import defaults

_MODELS = ('base', 'large')
_SIZES = ('paper', 'small', 'cpu', 'tiny')


def get_config(arg=''):
  """The configuration; `arg` is a model and a size, each optional."""
  model, size = defaults.choose(arg, _MODELS, _SIZES)
  few = size in ('cpu', 'tiny')
  config = defaults.get(**presets.get(size if few else model))
  short = {'cpu': 128, 'tiny': 32}.get(size, 2048)
  config.model.encoding = f'yarn(scale=4., train_length={short})'
  if few:
    config.model.vocab_size = 259
  else:
    config.model.dtype = 'bfloat16'
    config.model.scan_layers = True
    config.model.remat = 'full'
  if size == 'small':
    config.model.num_layers = 4

  length = 4 * short
  config.data.source = 'prepared'
  config.data.task = 'c4'
  config.data.path = f'data/c4_long_{length}'
  config.data.vocabulary = 'bytes' if few else 'data/c4_50304.model'
  config.data.mode = 'doc_window'
  config.data.train_length = length
  config.data.batch_size = {'small': 16, 'cpu': 4, 'tiny': 2}.get(size, 64)

  config.optimizer.learning_rate = 4e-4 if few else 2e-5
  config.optimizer.schedule = 'constant'
  config.optimizer.warmup_steps = {'tiny': 2}.get(size, 20)
  config.optimizer.weight_decay = 0.0
  config.optimizer.b2 = 0.95

  # A workdir, from the command line.
  config.train.init_from = config_dict.placeholder(str)
  config.train.steps = {'cpu': 100, 'tiny': 8}.get(size, 400)
  config.train.log_every = {'tiny': 4}.get(size, 10)
  config.train.checkpoint_every = {'tiny': 4}.get(size, 100)

  config.eval.lengths = tuple(length * 2**n // 16 for n in range(5))
  config.eval.windows = {'small': 64, 'cpu': 24, 'tiny': 2}.get(size, 128)
  config.eval.batch_tokens = {'cpu': 16384, 'tiny': 1024}.get(size, 65536)
  return config
