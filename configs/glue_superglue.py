"""GLUE and SuperGLUE: finetuned on all tasks at once, at 1024 tokens.

Commands:
  lengen train --config=configs/glue_superglue.py:base --workdir=runs/glue \
    --config.train.init_from=RUN --config.model.encoding=ENCODING
  lengen eval --workdir=runs/glue

MODEL[,SIZE]: `base` or `large`, optionally followed by a size. RUN is a run of
configs/fire_c4.py of the same model and size; with '', training starts from
random parameters. ENCODING is that of the run, by default `fire`; the paper's
RoPE-PI is `rope(scale=4.)` from a run of `rope`, assuming that its longest
length is 8192 here, too.

Paper: FIRE (arXiv:2310.04418), tables 12 and 13; 32 TPUv2 chips. Accuracy, for
MultiRC and ReCoRD exact match, on the validation split; there is no STS-B. The
paper does not say whether it reports matched or mismatched MNLI; ours is
matched.

Not in the paper, so ours: the form of prompts (see lengen_jax/data/glue.py),
tasks mixed by their number of examples, the separator before the answer, a
constant rate without warm-up, and the rest of the optimizer, which is as in
pretraining.

Sizes:
  small  Four layers, fewer rows and steps at ten times the rate, 500 prompts of
         each task.
  cpu    Bytes, at 160; minutes on two cores.
  tiny   Seconds; for tests.
"""

from lengen_jax import papers
from lengen_jax.data import glue
from lengen_jax.training import defaults

_MODELS = ('base', 'large')
# Columns of FIRE_TABLE_13.
_RUNS = tuple(
  papers.FIRE_RUNS[name]
  for name in ('nope', 'rope', 'rope-pi', 'alibi', 'kerple', 't5', 'fire')
)
_FIELDS = defaults.FINETUNING | {
  'data.task': 'glue_superglue',
  'data.train_length': [1024, ..., 160, 64],
  'data.batch_size': [256, 32, 16, 2],
  'data.target_length': [..., ..., 16, 16],
  'optimizer.learning_rate': [1e-5, 1e-4, 2e-3, 1e-3],
  'train.steps': [25_000, 500, 180, 4],
  'train.checkpoint_every': [..., ..., 90, 2],
  'eval.examples': [..., 500, 20, 4],
  # One prompt per batch, so that tasks share compiled programs.
  'eval.batch_tokens': [..., ..., 128, ...],
}


def get_config(arg=''):
  """Returns the config; `arg` is a model and a size, both optional."""
  model, size = defaults.choose(arg, _MODELS)
  config = defaults.create(model, size, _FIELDS)
  config.eval.lengths = (config.data.train_length,)
  if size == 'paper':
    figures = papers.FIRE_TABLE_13[model]
    config.paper = defaults.table(
      'percent',
      (glue.TASKS[task].name for task in figures),
      zip(_RUNS, zip(*figures.values(), strict=True), strict=True),
    )
  return config
