"""SCROLLS: finetuned on a task of long documents at 8192 tokens.

Commands:
  lengen train --config=configs/scrolls.py:TASK --workdir=runs/TASK \
    --config.train.init_from=RUN --config.model.encoding=ENCODING
  lengen eval --workdir=runs/TASK --step=best

TASK[,MODEL][,SIZE]: qasper, contract_nli, qmsum, narrative_qa, summ_screen_fd,
gov_report or quality; `base` or `large`; a size. RUN is a run of
configs/fire_c4.py of the same model and size; with '', training starts from
random parameters. ENCODING is that of the run, by default `fire`; the paper's
RoPE-PI is `rope(scale=4.)` from a run of `rope`.

Paper: FIRE (arXiv:2310.04418), tables 1 and 10; 128 TPUv4 chips. Scores are
those of the benchmark, on the validation split: F1, exact match or the
geometric mean of ROUGE-1, -2 and -L. The paper takes the best checkpoint on
that split, as does `lengen eval --step=best`; at full size it is tested here
every 5000 steps.

Not in the paper, so ours: the separator before the answer, maximum tokens of an
answer (see lengen_jax/data/scrolls.py), a constant rate without warm-up, and
the rest of the optimizer, which is as in pretraining.

Sizes:
  small  Four layers, fewer rows and steps at ten times the rate, 500 documents
         tested.
  cpu    Bytes, at 192; minutes on two cores.
  tiny   Seconds; for tests.
"""

from lengen_jax import papers
from lengen_jax.training import defaults

_TASKS = papers.FIRE_TABLE_1_TASKS
_MODELS = ('base', 'large')
_FIELDS = defaults.FINETUNING | {
  'data.train_length': [8192, ..., 192, 64],
  'data.batch_size': [128, 16, 16, 2],
  'data.target_length': [..., ..., 48, 8],
  'optimizer.learning_rate': [1e-5, 1e-4, 1e-3, 1e-3],
  'train.steps': [25_000, 250, 130, 4],
  'train.evaluate_every': [5000, 125, 65, 2],
  'train.checkpoint_every': [..., 125, 65, 2],
  'eval.examples': [..., 500, 50, 4],
}


def get_config(arg=''):
  """Returns the config; `arg` is a task, a model and a size, all optional."""
  task, model, size = defaults.choose(arg, _TASKS, _MODELS)
  config = defaults.create(model, size, _FIELDS)
  config.data.task = f'scrolls/{task}'
  config.eval.lengths = (config.data.train_length,)
  if size == 'paper':
    column = _TASKS.index(task)
    rows = [
      (papers.FIRE_RUNS[name], (row[column],))
      for name, row in papers.FIRE_TABLE_1[model].items()
    ]
    config.paper = defaults.table('percent', config.eval.lengths, rows)
  return config
