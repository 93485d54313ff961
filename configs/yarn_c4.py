"""YaRN beside FIRE: a RoPE model finetuned at 8192 tokens.

Commands:
  lengen prepare --config=configs/yarn_c4.py:base
  lengen train --config=configs/yarn_c4.py:base --workdir=runs/yarn \
    --config.train.init_from=RUN
  lengen eval --workdir=runs/yarn

RUN is a run of configs/fire_c4.py with encoding `rope`, of the same model and
size; its vocabulary must exist. MODEL[,SIZE] is `base` or `large`, optionally
followed by a size.

Paper: FIRE (arXiv:2310.04418), which finetunes YaRN on long sequences and finds
it worse than FIRE at long lengths and at 512, in a figure without numbers and
without a recipe. The recipe is that of YaRN (arXiv:2309.00071, section 4.1)
except for its length of 64k: 400 steps of 64 rows, AdamW with 2e-5 after 20
steps of warm-up. Ours: a constant rate after that, clipping, and the data,
whole windows of documents of 8192 tokens or more; shorter ones would be mostly
padding. The windows tested are those of fire_c4.

Sizes:
  small  Four layers, fewer rows.
  cpu    Bytes, from 128 to 512; minutes on two cores.
  tiny   Seconds; for tests.
"""

from lengen_jax.training import defaults

_MODELS = ('base', 'large')
_FIELDS = {
  'model.num_layers': [..., 4, ..., ...],
  'model.vocab_size': [..., ..., 259, 259],
  'data.source': 'prepared',
  'data.task': 'c4',
  'data.vocabulary': ['data/c4_50304.model', ..., 'bytes', 'bytes'],
  'data.mode': 'doc_window',
  'data.train_length': [8192, ..., 512, 128],
  'data.batch_size': [64, 16, 4, 2],
  'optimizer.learning_rate': [2e-5, ..., 4e-4, 4e-4],
  'optimizer.schedule': 'constant',
  'optimizer.warmup_steps': [20, ..., ..., 2],
  'optimizer.weight_decay': 0.0,
  'optimizer.b2': 0.95,
  'train.init_from': None,
  'train.steps': [400, ..., 100, ...],
  'train.checkpoint_every': 100,
  'eval.windows': [128, 64, 24, 2],
}


def get_config(arg=''):
  """Returns the config; `arg` is a model and a size, both optional."""
  model, size = defaults.choose(arg, _MODELS)
  config = defaults.create(model, size, _FIELDS)
  length = config.data.train_length
  config.model.encoding = f'yarn(scale=4., train_length={length // 4})'
  config.data.path = f'data/c4_long_{length}'
  config.eval.lengths = tuple(length * 2**n // 16 for n in range(5))
  return config
