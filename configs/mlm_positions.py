"""Masked language modelling: trained at 64 tokens, tested on up to 512.

Command:
  lengen compare --config=configs/mlm_positions.py:cpu --workdir=runs/mlm \
    --runs='sinusoidal | standard; sinusoidal | randomized(max_position=512);
      sinusoidal | randomized(max_position=512, test="even");
      sinusoidal | equal_mean; sinusoidal | equal_mean | log_n(train_length=64)'

Source: Su's essay on positional robustness, which has no table. It finds that
random positions in training help beyond the training length. Positions with a
random end whose mean is the true length help more, as do logits scaled by
log n, and positions spaced evenly at test time.

The two lengths, the task and the schemes are those of the essay. Ours: the
encoding (sinusoidal, where schemes differ within minutes), the model, the
optimizer, and the corpus, the Python standard library, which needs no download.
For other text, set data.source, data.task and data.path, and set
model.vocab_size to one more than the ids of the vocabulary, for the mask: 260
for bytes.

Results of size cpu: docs/results.md, su/mlm.

Sizes (`--config=configs/mlm_positions.py:SIZE`):
  paper  Eight layers of width 256.
  small  The same with four layers and fewer steps.
  cpu    A few minutes per run on two cores.
  tiny   Seconds; for tests.
"""

from lengen_jax.training import defaults

_FIELDS = {
  'positions': 'equal_mean',
  'model.architecture': 'encoder',
  # Bytes and the mask token.
  'model.vocab_size': 257,
  'model.encoding': 'sinusoidal',
  'model.num_layers': [..., 4, ..., ...],
  'data.source': 'stdlib',
  'data.train_length': [64, ..., ..., 16],
  'data.batch_size': [256, ..., 32, 4],
  'optimizer.learning_rate': [1e-3, ..., 3e-3, 3e-3],
  'optimizer.warmup_steps': [500, ..., 100, 2],
  'train.steps': [50_000, 10_000, 500, ...],
  'train.checkpoint_every': [..., ..., 400, ...],
  'eval.windows': [256, ..., 96, 2],
}


def get_config(arg=''):
  """Returns the config; `arg` is a size."""
  (size,) = defaults.choose(arg)
  config = defaults.create('enwik8', size, _FIELDS, remat='none')
  length = config.data.train_length
  config.eval.lengths = tuple(length * 2**n for n in range(4))
  return config
