"""NarrativeQA: finetuned at 8192 tokens, tested on up to 32768.

Commands:
  lengen train --config=configs/narrativeqa_zeroshot.py --workdir=runs/stories \
    --config.train.init_from=RUN --config.model.encoding=ENCODING
  lengen eval --workdir=runs/stories

RUN is a run of configs/fire_c4.py:base of the same size; with '', training
starts from random parameters. ENCODING is that of the run, by default `fire`;
the paper's RoPE-PI for 8192 is `rope(scale=4.)`, that for 32768
`rope(scale=16.)`, both from a run of `rope`.

Paper: FIRE (arXiv:2310.04418), tables 10 and 11, F1 in percent. All lengths
have the same questions; shorter ones truncate more of the story. Settings that
the paper does not specify are those of configs/scrolls.py, but the last
checkpoint is tested, not the best one. We assume that table 11 is of the base
model.

Sizes (`--config=configs/narrativeqa_zeroshot.py:SIZE`):
  small  Four layers, fewer rows and steps at ten times the rate, 200 questions.
  cpu    Bytes, trained at 128, tested on up to 512; minutes on two cores.
  tiny   Seconds; for tests.
"""

from lengen_jax import papers
from lengen_jax.training import defaults

_LENGTHS = (512, 2048, 4096, 8192, 16384, 24576, 32768)
_FIELDS = defaults.FINETUNING | {
  'data.task': 'scrolls/narrative_qa',
  'data.train_length': [8192, ..., 128, 64],
  'data.batch_size': [128, 16, 16, 2],
  'data.target_length': [..., ..., 16, 8],
  'optimizer.learning_rate': [1e-5, 1e-4, 1e-3, 1e-3],
  'train.steps': [25_000, 250, 200, 4],
  'train.checkpoint_every': [..., ..., 100, 2],
  'eval.lengths': [_LENGTHS, ..., (64, 128, 256, 512), (48, 64, 96)],
  'eval.examples': [..., 200, 50, 4],
}


def get_config(arg=''):
  """Returns the config; `arg` is a size."""
  (size,) = defaults.choose(arg)
  config = defaults.create('base', size, _FIELDS)
  if size == 'paper':
    rows = [
      (papers.FIRE_RUNS[name], row)
      for name, row in papers.FIRE_TABLE_11.items()
    ]
    config.paper = defaults.table('percent', _LENGTHS, rows)
  return config
