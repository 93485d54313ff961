"""NarrativeQA: finetuned at 8192 tokens, tested on up to 32768.

Commands:
  lengen train --config=configs/narrativeqa_zeroshot.py --workdir=runs/stories \
    --config.train.init_from=RUN --config.model.encoding=ENCODING
  lengen eval --workdir=runs/stories

RUN is a run of configs/fire_c4.py:base of the same size; with '' the model
starts from nothing. ENCODING is that run's,
`fire` if left out; the paper's RoPE-PI with a longest length of 8192 is
`rope(scale=4.)`, that with 32768 `rope(scale=16.)`, both from a run of `rope`.

Paper: FIRE (arXiv:2310.04418), tables 10 and 11, F1 in percent. Each length
asks the same questions, of which more or less of the story is cut off. What the
paper leaves open is as in configs/scrolls.py; that table 11 is of the base
model is an assumption.

Sizes (`--config=configs/narrativeqa_zeroshot.py:SIZE`):
  small  Four layers, fewer rows and steps, 200 questions.
  cpu    Bytes, trained at 128, tested on up to 512; minutes on two cores.
  tiny   Seconds; for tests.
"""

import ml_collections
from ml_collections import config_dict

from lengen_jax import errors
from lengen_jax import papers
from lengen_jax.models import presets
from lengen_jax.training import defaults

_SIZES = ('paper', 'small', 'cpu', 'tiny')
_LENGTHS = (512, 2048, 4096, 8192, 16384, 24576, 32768)
# What we call the rows of table 11.
_ROWS = {
  'nope': 'nope',
  'rope': 'rope',
  'rope-pi, 8192': 'rope(scale=4.)',
  'rope-pi, 32768': 'rope(scale=16.)',
  'alibi': 'alibi',
  'kerple': 'kerple_log',
  't5': 't5(num_buckets=64)',
  'fire': 'fire',
}


def get_config(arg=''):
  """The configuration; `arg` is a size."""
  size = arg or 'paper'
  if size not in _SIZES:
    raise errors.ConfigError(errors.one_of('size', size, _SIZES))
  few = size in ('cpu', 'tiny')
  config = defaults.get(**presets.get(size if few else 'base'))
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

  length = {'cpu': 128, 'tiny': 64}.get(size, 8192)
  config.data.source = 'seqio'
  config.data.task = 'scrolls/narrative_qa'
  config.data.vocabulary = 'bytes' if few else 'data/c4_50304.model'
  config.data.train_length = length
  config.data.batch_size = {'small': 16, 'cpu': 16, 'tiny': 2}.get(size, 128)
  if few:
    config.data.target_length = {'cpu': 16, 'tiny': 8}[size]

  config.optimizer.learning_rate = 1e-3 if few else 1e-5
  config.optimizer.schedule = 'constant'
  config.optimizer.weight_decay = 0.1
  config.optimizer.b2 = 0.95

  # A workdir, from the command line.
  config.train.init_from = config_dict.placeholder(str)
  config.train.steps = {'small': 2500, 'cpu': 200, 'tiny': 4}.get(size, 25_000)
  config.train.log_every = {'tiny': 2}.get(size, 10)
  config.train.checkpoint_every = {'cpu': 100, 'tiny': 2}.get(size, 1000)

  lengths = {'cpu': (64, 128, 256, 512), 'tiny': (48, 64, 96)}
  config.eval.lengths = lengths.get(size, _LENGTHS)
  config.eval.batch_tokens = {'cpu': 16384, 'tiny': 1024}.get(size, 65536)
  if size != 'paper':
    config.eval.examples = {'small': 200, 'cpu': 50, 'tiny': 4}[size]
  if size == 'paper':
    config.paper = ml_collections.ConfigDict(
      dict(
        unit='percent',
        columns=_LENGTHS,
        rows=tuple(
          (_ROWS[name], row) for name, row in papers.FIRE_TABLE_11.items()
        ),
      )
    )
  return config
