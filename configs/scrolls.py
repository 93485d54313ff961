"""SCROLLS: finetuned on a task of long documents at 8192 tokens.

Commands:
  lengen train --config=configs/scrolls.py:TASK --workdir=runs/TASK \
    --config.train.init_from=RUN --config.model.encoding=ENCODING
  lengen eval --workdir=runs/TASK --step=best

TASK[,MODEL][,SIZE]: qasper, contract_nli, qmsum, narrative_qa, summ_screen_fd,
gov_report or quality; `base` or `large`; a size. RUN is a run of
configs/fire_c4.py of the same model and size; with '' the model starts
from nothing. ENCODING is that run's, `fire` if left out; the paper's RoPE-PI is
`rope(scale=4.)` from a run of `rope`.

Paper: FIRE (arXiv:2310.04418), tables 1 and 10; 128 TPUv4 chips. Validation
split, by the benchmark's own metrics: F1, exact match or the geometric mean of
ROUGE-1, -2 and -L. The paper takes the best checkpoint on that split, as does
`lengen eval --step=best`; here it is tested every 5000 steps.

Not in the paper, so ours: the separator before the answer, tokens kept of an
answer (see lengen_jax/data/scrolls.py), a constant rate without warm-up, and
the rest of the optimizer, which is as in pretraining.

Sizes:
  small  Four layers, fewer rows and steps, 500 documents tested.
  cpu    Bytes, at 192; minutes on two cores.
  tiny   Seconds; for tests.
"""

import ml_collections
from ml_collections import config_dict

from lengen_jax import papers
from lengen_jax.models import presets
from lengen_jax.training import defaults

_TASKS = papers.FIRE_TABLE_1_TASKS
_MODELS = ('base', 'large')
_SIZES = ('paper', 'small', 'cpu', 'tiny')
# What we call the rows of table 1.
_ROWS = {
  'nope': 'nope',
  'rope': 'rope',
  'rope-pi': 'rope(scale=4.)',
  'alibi': 'alibi',
  'kerple': 'kerple_log',
  't5': 't5(num_buckets=64)',
  'fire': 'fire',
  'fire-s': 'fire(shared=True)',
}


def get_config(arg=''):
  """The configuration; `arg` is a task, a model and a size, each optional."""
  task, model, size = defaults.choose(arg, _TASKS, _MODELS, _SIZES)
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

  length = {'cpu': 192, 'tiny': 64}.get(size, 8192)
  config.data.source = 'seqio'
  config.data.task = f'scrolls/{task}'
  config.data.vocabulary = 'bytes' if few else 'data/c4_50304.model'
  config.data.train_length = length
  config.data.batch_size = {'small': 16, 'cpu': 16, 'tiny': 2}.get(size, 128)
  if few:
    config.data.target_length = {'cpu': 48, 'tiny': 8}[size]

  config.optimizer.learning_rate = 1e-3 if few else 1e-5
  config.optimizer.schedule = 'constant'
  config.optimizer.weight_decay = 0.1
  config.optimizer.b2 = 0.95

  # A workdir, from the command line.
  config.train.init_from = config_dict.placeholder(str)
  config.train.steps = {'small': 2500, 'cpu': 130, 'tiny': 4}.get(size, 25_000)
  config.train.log_every = {'tiny': 2}.get(size, 10)
  config.train.checkpoint_every = {'cpu': 65, 'tiny': 2}.get(size, 1000)
  validated = {'small': 1000, 'cpu': 65, 'tiny': 2}
  config.train.evaluate_every = validated.get(size, 5000)

  config.eval.lengths = (length,)
  config.eval.batch_tokens = {'cpu': 16384, 'tiny': 1024}.get(size, 65536)
  if size != 'paper':
    config.eval.examples = {'small': 500, 'cpu': 50, 'tiny': 4}[size]
  if size == 'paper':
    column = _TASKS.index(task)
    rows = tuple(
      (_ROWS[name], (row[column],))
      for name, row in papers.FIRE_TABLE_1[model].items()
    )
    config.paper = ml_collections.ConfigDict(
      dict(unit='percent', columns=(length,), rows=rows)
    )
  return config
