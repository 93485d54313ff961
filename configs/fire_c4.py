"""FIRE's pretraining: trained at 2048 tokens, tested at 512 .. 8192.

Commands:
  lengen prepare --config=configs/fire_c4.py:base --vocabulary-size=50304
  lengen compare --config=configs/fire_c4.py:base --workdir=runs/c4 \
    --runs='nope; rope; alibi; kerple_log; t5(num_buckets=64); fire;
      fire(shared=True)'

Paper: FIRE (arXiv:2310.04418), settings of tables 8 and 9, figures of tables 2
and 4; 128 TPUv4 chips for base, 256 for large. The argument is
MODEL[,CORPUS][,SIZE]: `base` (125M) or `large` (350M); `c4`, or `arxiv` or
`github`, which the paper took from the Pile. The paper has numbers for the
base model on C4, and curves for the rest.

Not in the paper, so ours: the vocabulary, 50304 pieces trained on the corpus;
schedule, warm-up, weight decay, betas and clipping, similar to GPT-3; the
number of tokens tested; KERPLE as its logarithmic form; KERPLE and T5 with
parameters of their own in each layer, T5 with distances up to 128. Documents
shorter than 2048 are padded, as the paper's text says. The paper cuts its test
set separately for each length; here long documents are re-cut, so that all
lengths score the same tokens. This also makes losses differ from the paper's.

Sizes:
  small  Four layers, fewer rows and steps; an estimated two minutes per run
         on a GPU with 80 GB.
  cpu    Bytes, trained at 128; a minute or two per run on two cores.
  tiny   Seconds; for tests.
"""

from lengen_jax import papers
from lengen_jax.training import defaults

_MODELS = ('base', 'large')
_CORPORA = ('c4', 'arxiv', 'github')
_LENGTHS = (512, 1024, 2048, 4096, 8192)
_FIELDS = {
  'model.encoding': 'fire',
  'model.num_layers': [..., 4, ..., ...],
  'model.vocab_size': [..., ..., 259, 259],
  'data.source': 'prepared',
  'data.mode': 'doc_pad',
  'data.train_length': [2048, ..., 128, 32],
  'data.batch_size': [256, 32, 16, 4],
  'data.vocabulary': [..., ..., 'bytes', 'bytes'],
  'optimizer.warmup_steps': [1000, 100, 50, 2],
  'optimizer.final_fraction': 0.1,
  'optimizer.weight_decay': 0.1,
  'optimizer.b2': 0.95,
  'optimizer.learning_rate': [..., ..., 4e-3, 3e-3],
  'train.steps': [600_000, 1000, 250, ...],
  'train.checkpoint_every': [..., ..., 100, ...],
  'eval.windows': [128, 64, 24, 2],
}


def get_config(arg=''):
  """Returns the config; `arg` is a model, a corpus and a size, all optional."""
  model, corpus, size = defaults.choose(arg, _MODELS, _CORPORA)
  config = defaults.create(model, size, _FIELDS)
  if size in ('paper', 'small'):
    config.data.vocabulary = f'data/{corpus}_50304.model'
    config.optimizer.learning_rate = {'base': 6e-4, 'large': 3e-4}[model]
  length = config.data.train_length
  config.data.task = corpus
  config.data.path = f'data/{corpus}_{length}'
  config.eval.lengths = tuple(length * 2**n // 4 for n in range(5))
  if (model, corpus, size) == ('base', 'c4', 'paper'):
    table = papers.FIRE_TABLE_4
    rows = [(papers.FIRE_RUNS[name], row) for name, row in table.items()]
    config.paper = defaults.table('nats per token', _LENGTHS, rows)
  return config
