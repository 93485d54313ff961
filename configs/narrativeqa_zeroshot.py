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

from lengen_jax import papers
from lengen_jax.training import defaults

_LENGTHS = (512, 2048, 4096, 8192, 16384, 24576, 32768)
# Runs of the rows of table 11.
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
_SIZES = {
  'paper': {
    'model.encoding': 'fire',
    'model.dropout_rate': 0.1,
    'data.source': 'seqio',
    'data.task': 'scrolls/narrative_qa',
    'data.vocabulary': 'data/c4_50304.model',
    'data.train_length': 8192,
    'data.batch_size': 128,
    'optimizer.learning_rate': 1e-5,
    'optimizer.schedule': 'constant',
    'optimizer.weight_decay': 0.1,
    'optimizer.b2': 0.95,
    # The workdir to start from is given on the command line.
    'train.init_from': None,
    'train.steps': 25_000,
    'eval.lengths': _LENGTHS,
  },
  'small': {
    'model.num_layers': 4,
    'data.batch_size': 16,
    'train.steps': 2500,
    'eval.examples': 200,
  },
  'cpu': {
    **defaults.BYTES,
    # Too few steps to overfit.
    'model.dropout_rate': 0.0,
    'data.train_length': 128,
    'data.target_length': 16,
    'data.batch_size': 16,
    'optimizer.learning_rate': 1e-3,
    'train.steps': 200,
    'train.checkpoint_every': 100,
    'eval.lengths': (64, 128, 256, 512),
    'eval.examples': 50,
  },
  'tiny': {
    **defaults.BYTES,
    'data.train_length': 64,
    'data.target_length': 8,
    'data.batch_size': 2,
    'optimizer.learning_rate': 1e-3,
    'train.steps': 4,
    'train.log_every': 2,
    'train.checkpoint_every': 2,
    'eval.lengths': (48, 64, 96),
    'eval.examples': 4,
  },
}


def get_config(arg=''):
  """Returns the config; `arg` is a size."""
  (size,) = defaults.choose(arg, _SIZES)
  config = defaults.create('base', size, _SIZES)
  if size == 'paper':
    rows = [(_ROWS[name], row) for name, row in papers.FIRE_TABLE_11.items()]
    config.paper = defaults.table('percent', _LENGTHS, rows)
  return config
