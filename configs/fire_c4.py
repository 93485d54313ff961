"""FIRE's pretraining: trained at 2048 tokens, tested at 512 .. 8192.

Commands:
  lengen prepare --config=configs/fire_c4.py:base --vocabulary-size=50304
  lengen compare --config=configs/fire_c4.py:base --workdir=runs/c4 \
    --runs='nope; rope; alibi; kerple_log; t5(num_buckets=64); fire;
      fire(shared=True)'

Paper: FIRE (arXiv:2310.04418), settings of tables 8 and 9, figures of tables 2
and 4; 128 TPUv4 chips for base, 256 for large. The argument is
MODEL[,CORPUS][,SIZE]: `base` (125M) or `large` (350M); `c4`, or `arxiv` or
`github`, which the paper took from the Pile. It has numbers for base on C4
alone, and curves for the rest.

Not in the paper, so ours: the vocabulary, 50304 pieces trained on the corpus;
schedule, warm-up, weight decay, betas and clipping, as GPT-3; the number of
tokens tested; KERPLE as its logarithmic form. Documents shorter than 2048 are
padded, which is what the paper's text says if taken literally. It cuts its test
set at each length alike; here long documents are re-cut, so that all lengths
score the same tokens. Losses differ from the paper's for that too.

Sizes:
  small  Four layers, fewer rows and steps.
  cpu    Bytes, trained at 128; a minute or two per run on two cores.
  tiny   Seconds; for tests.
"""

import ml_collections

from lengen_jax import papers
from lengen_jax.models import presets
from lengen_jax.training import defaults

_MODELS = ('base', 'large')
_CORPORA = ('c4', 'arxiv', 'github')
_SIZES = ('paper', 'small', 'cpu', 'tiny')
_LENGTHS = (512, 1024, 2048, 4096, 8192)
# What we call the rows of table 4.
_ROWS = {
  'nope': 'nope',
  'rope': 'rope',
  'alibi': 'alibi',
  'kerple': 'kerple_log',
  't5': 't5(num_buckets=64)',
  'fire, no threshold': "fire(threshold='none')",
  'fire': 'fire',
  'fire-s': 'fire(shared=True)',
}


def get_config(arg=''):
  """The configuration; `arg` is a model, a corpus and a size, each optional."""
  model, corpus, size = defaults.choose(arg, _MODELS, _CORPORA, _SIZES)
  few = size in ('cpu', 'tiny')
  config = defaults.get(**presets.get(size if few else model))
  config.model.encoding = 'fire'
  if few:
    config.model.vocab_size = 259
  else:
    config.model.dtype = 'bfloat16'
    config.model.scan_layers = True
    config.model.remat = 'full'
  if size == 'small':
    config.model.num_layers = 4

  length = {'cpu': 128, 'tiny': 32}.get(size, 2048)
  config.data.source = 'prepared'
  config.data.task = corpus
  config.data.path = f'data/{corpus}_{length}'
  config.data.vocabulary = 'bytes' if few else f'data/{corpus}_50304.model'
  config.data.mode = 'doc_pad'
  config.data.train_length = length
  config.data.batch_size = {'small': 32, 'cpu': 16, 'tiny': 4}.get(size, 256)

  rate = {'base': 6e-4, 'large': 3e-4}[model]
  config.optimizer.learning_rate = {'cpu': 4e-3, 'tiny': 3e-3}.get(size, rate)
  config.optimizer.warmup_steps = {'cpu': 50, 'tiny': 2}.get(size, 1000)
  config.optimizer.final_fraction = 0.1
  config.optimizer.weight_decay = 0.1
  config.optimizer.b2 = 0.95

  steps = {'small': 20_000, 'cpu': 250, 'tiny': 8}
  config.train.steps = steps.get(size, 600_000)
  config.train.log_every = {'tiny': 4}.get(size, 10)
  config.train.checkpoint_every = {'cpu': 100, 'tiny': 4}.get(size, 1000)

  config.eval.lengths = tuple(length * 2**n // 4 for n in range(5))
  config.eval.windows = {'small': 64, 'cpu': 24, 'tiny': 2}.get(size, 128)
  config.eval.batch_tokens = {'cpu': 16384, 'tiny': 1024}.get(size, 65536)
  if (model, corpus, size) == ('base', 'c4', 'paper'):
    config.paper = ml_collections.ConfigDict(
      dict(
        unit='nats per token',
        columns=_LENGTHS,
        rows=tuple(
          (run, papers.FIRE_TABLE_4[name]) for name, run in _ROWS.items()
        ),
      )
    )
  return config
