"""Warped positions on WikiText-103: trained at 512 tokens, tested up to 4096.

Commands:
  lengen prepare --config=configs/warping_wikitext103.py --vocabulary-size=50257
  lengen compare --config=configs/warping_wikitext103.py --workdir=runs/warp \
    --runs='rope; rope | standard; rope | interpolated(train_length=512);
      rope | randomized(max_position=8072); alibi | standard'

A run without positions has warped ones.

Paper: position-index warping, tables 1, 3 and B, perplexity. Of the training
instances 15 % are head-warped, 15 % tail-warped; alpha is 1/6, the skew that of
Beta(2, 5). Tables 3 and B give this method different figures; the config has
both. The paper also tests 3072, which does not divide 4096: all lengths could
not score the same tokens, so it is left out.

Not in the paper, so ours: steps, warm-up (none), clipping, and the vocabulary,
50257 pieces trained on the corpus in place of GPT-2's; perplexity per token
depends on it. The tests use 16 of about thirty windows of the validation split
that lie within one article.

Sizes (`--config=configs/warping_wikitext103.py:SIZE`):
  small  Four layers, fewer steps at ten times the rate.
  cpu    Bytes, trained at 128; minutes per run on two cores.
  tiny   Seconds; for tests.
"""

from lengen_jax import papers
from lengen_jax.training import defaults

_LENGTHS = (512, 1024, 2048, 4096)
_FIELDS = {
  'model.encoding': 'rope',
  'model.num_layers': [..., 4, ..., ...],
  'model.vocab_size': [..., ..., 259, 259],
  'data.source': 'prepared',
  'data.task': 'wikitext103',
  'data.vocabulary': ['data/wikitext103_50257.model', ..., 'bytes', 'bytes'],
  'data.mode': 'concat',
  'data.train_length': [512, ..., 128, 32],
  'data.batch_size': [64, ..., 16, 4],
  'optimizer.learning_rate': [5e-5, 5e-4, 2e-3, 3e-3],
  'optimizer.schedule': 'constant',
  'optimizer.weight_decay': 0.0,
  'optimizer.b2': 0.999,
  'train.steps': [100_000, 3000, 250, ...],
  'train.checkpoint_every': [..., ..., 100, ...],
  'eval.windows': [16, ..., 24, 2],
}


def _warp(length, alpha=1 / 6):
  return (
    f"head_tail_warp(train_length={length}, alpha={alpha!r}, skew='beta(2,5)')"
  )


# Runs of the rows of the tables; table 1 is a part of table 3.
_ROWS = {
  'rope': 'rope',
  'interpolated': 'rope | interpolated(train_length=512)',
  'randomized, 8072': 'rope | randomized(max_position=8072)',
  'randomized, 4096': 'rope | randomized(max_position=4096)',
  'randomized, 1024': 'rope | randomized(max_position=1024)',
  'alibi': 'alibi',
  'warped': f'rope | {_warp(512)}',
  '1/2': f'rope | {_warp(512, 1 / 2)}',
  '1/4': f'rope | {_warp(512, 1 / 4)}',
  '1/6': f'rope | {_warp(512)}, in table B',
  '1/8': f'rope | {_warp(512, 1 / 8)}',
}


def get_config(arg=''):
  """Returns the config; `arg` is a size."""
  (size,) = defaults.choose(arg)
  config = defaults.create('gpt2', size, _FIELDS)
  length = config.data.train_length
  config.positions = _warp(length)
  config.data.path = f'data/wikitext103_{length}'
  config.eval.lengths = tuple(length * 2**n for n in range(4))
  if size == 'paper':
    rows = [
      (_ROWS[name], figures)
      for table in (papers.WARPING_TABLE_3, papers.WARPING_TABLE_B)
      for name, figures in table.items()
    ]
    config.paper = defaults.table('perplexity', _LENGTHS, rows)
  return config
