"""Addition trained on few digits, tested on more: formats and positions.

Command, for FORMAT in plain, reversed, hints:
  lengen sweep --config=configs/arithmetic.py:FORMAT \
    --workdir=runs/arithmetic/FORMAT

Paper: Zhou et al. (2024), arXiv:2402.09371, whose model of 25M parameters is
trained on 1..40 digits and tested on up to 100. The score is the part of
answers that are right, hints included. In the format

- `hints`, numbers are reversed and padded, and have index hints;
- `reversed`, they are reversed and padded;
- `plain`, they are padded and start with the most significant digit.

Results differ much between seeds: the paper's are the best of ten. The report
has the best seed, and mean and deviation over seeds; curves.csv has every seed.
The report also has a heat map for each run by the digits of both operands.
Unlike in the paper, all rows of a batch have the same length, drawn for each
step. With `hints`, a batch has as many tokens on average as the paper's packed
rows of 2048, and half as many in the other formats. The paper does not give the
range of randomized positions; ours is the length of a row with three times the
digits of training and index hints, at least that of any row tested. Nor does it
give betas and clipping of gradients; ours are 0.9, 0.999 and 1.

Beside FIRE, with and without randomized positions, the runs are RoPE, KERPLE
and no encoding (except at `cpu` and `tiny`), coupled positions
(arXiv:2405.20671) for a learned encoding and, for reversed numbers, Abacus
positions (arXiv:2405.17399) for a learned encoding at the input, with FIRE in
attention.

`:FORMAT,2M`, `5M` and `268M` are the paper's other models. `:FORMAT,small`
trains the same model for fewer steps. `:FORMAT,cpu` trains a small model on
1..8 digits and tests it on up to 24, on two cores, and `:FORMAT,2M,cpu` a
smaller one; `:FORMAT,tiny` is for tests.
"""

from lengen_jax import papers
from lengen_jax.training import defaults

_TASKS = {
  'hints': "arithmetic/addition(format='reversed', pad=True, index_hints=True)",
  'reversed': (
    "arithmetic/addition(format='reversed', reverse_operands=True, pad=True)"
  ),
  'plain': 'arithmetic/addition(pad=True)',
}
# The fields of _SHAPE at the paper's size and at 'cpu'.
_MODELS = {
  '25M': [(6, 8, 64, 512, 2048), (2, 4, 32, 128, 256)],
  '2M': [(2, 4, 64, 256, 1024), (1, 2, 32, 64, 128)],
  '5M': [(4, 4, 64, 256, 1024), (2, 2, 32, 64, 128)],
  '268M': [(16, 16, 64, 1024, 4096), (3, 6, 32, 192, 384)],
}
_SHAPE = ('num_layers', 'num_heads', 'head_dim', 'width', 'mlp_width')
_TINY = (1, 2, 8, 16, 32)
_METHODS = ('fire', 'fire, randomized', 'coupled')


def _runs(n, *others):
  runs = papers.zhou_runs(n)
  return '; '.join(runs[name] for name in (*_METHODS, *others))


_FIELDS = {
  'model.norm_placement': [..., ..., 'pre', ...],
  'optimizer.name': 'adamw',
  'optimizer.schedule': 'cosine',
  'optimizer.warmup_steps': [500, ..., 100, 2],
  'optimizer.final_fraction': 0.1,
  'optimizer.weight_decay': [0.1, ..., 0.0, ...],
  'optimizer.clip_norm': 1.0,
  'train.min_length': 1,
  'train.max_length': [40, ..., 8, 3],
  'train.steps': [50_000, 10_000, 2500, 20],
  'train.batch_size': [2048, 512, 64, 8],
  'train.buckets': [4, ..., ..., 1],
  'train.log_every': [100, ..., ..., 10],
  'train.checkpoint_every': [2000, ..., 1000, 10],
  'eval.lengths': [
    (1, *range(5, 101, 5)),
    ...,
    (1, 2, 4, 6, 8, 10, 12, 16, 20, 24),
    (1, 3, 5),
  ],
  'eval.examples': [1000, ..., 128, 8],
  'eval.operand_examples': [20_000, ..., 2304, 0],
  'eval.batch_tokens': [65536, ..., 16384, 512],
  'eval.buckets': [5, ..., 2, 1],
  'eval.score': 'exact',
  'sweep.runs': [
    _runs(40, 'rope', 'kerple', 'nope'),
    ...,
    _runs(8),
    _runs(3),
  ],
  'sweep.learning_rates': [(3e-4,), ..., (1e-3,), (3e-3,)],
  'sweep.seeds': [tuple(range(10)), ..., (0, 1, 2), (0,)],
}


def get_config(arg=''):
  """Returns the config; `arg` is a format, a model and a size, all optional."""
  name, model, size = defaults.choose(arg, _TASKS, _MODELS)
  whole, small = _MODELS[model]
  shapes = zip(_SHAPE, whole, small, _TINY, strict=True)
  fields = {f'model.{key}': [a, ..., b, c] for key, a, b, c in shapes}
  config = defaults.get_task(_TASKS[name], 'zhou', size, fields | _FIELDS)
  if name == 'reversed':
    # Places count from the least significant digit, in runs of digits.
    abacus = papers.zhou_runs(config.train.max_length)['abacus']
    config.sweep.runs += f'; {abacus}'
  config.model.encoding = papers.zhou_runs(config.train.max_length)['fire']
  return config
