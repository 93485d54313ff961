"""A pretrained RoPE checkpoint, extended to sequences four times as long.

Commands:
  lengen prepare --config=configs/llama.py:FOLDER --config.data.raw=TEXTS
  lengen compare --config=configs/llama.py:FOLDER --workdir=runs/extended \
    --runs='rope(scale=4.); yarn(scale=4., train_length=4096); fire'
  lengen train --config=configs/llama.py:FOLDER --workdir=runs/as_it_is \
    --config.train.steps=0

The argument is FOLDER[,SIZE]. FOLDER holds a Llama or Mistral as transformers
writes it, with its tokenizer.model: sizes and encoding are those of its
config.json, and every run starts from its weights. docs/extend_rope.md goes
through it step by step. Text is any folder (`data.task=lm`).

The recipe is that of YaRN (arXiv:2309.00071, section 4.1) but for its length:
400 steps of 64 rows, AdamW with 2e-5 after 20 steps of warm-up; rows are four
times as long as those that the checkpoint was made for. Ours: a constant rate
after that, clipping, and the text.

That length is its max_position_embeddings, which is large where it was extended
already: 131072 in Llama 3.1, whose rows would have 524,288 tokens. Set others
together, in every command:
  --config.data.train_length=16384 --config.data.path=data/llama_16384 \
    --config.eval.lengths='(4096, 8192, 16384, 32768)'

Sizes:
  full   The recipe.
  tiny   Bytes of the embedded corpus; seconds, for tests.
"""

import pathlib

from lengen_jax import errors
from lengen_jax.interop import llama_config
from lengen_jax.training import defaults

_FIELDS = {
  'data.batch_size': 64,
  'optimizer.learning_rate': 2e-5,
  'optimizer.schedule': 'constant',
  'optimizer.warmup_steps': 20,
  'optimizer.weight_decay': 0.0,
  'optimizer.b2': 0.95,
}
_SIZES = {
  'full': {
    'model.dtype': 'bfloat16',
    'model.scan_layers': True,
    'model.remat': 'full',
    'data.source': 'prepared',
    'data.task': 'lm',
    'train.steps': 400,
    'train.checkpoint_every': 100,
    'eval.batch_tokens': 65536,
  },
  'tiny': {
    'data.source': 'stdlib',
    'data.batch_size': 4,
    'optimizer.learning_rate': 1e-3,
    'optimizer.warmup_steps': 2,
    'train.steps': 8,
    'train.log_every': 4,
    'train.checkpoint_every': 4,
    'eval.windows': 2,
    'eval.batch_tokens': 1024,
  },
}


def get_config(arg=''):
  """Returns the config; `arg` is a folder, then perhaps a size."""
  folder, _, size = arg.rpartition(',')
  if size not in _SIZES:
    folder, size = arg, 'full'
  if not folder:
    raise errors.ConfigError(
      f'give the folder of a checkpoint, configs/llama.py:FOLDER[,SIZE]; SIZE '
      f'is one of {", ".join(_SIZES)}'
    )
  path = pathlib.Path(folder).expanduser().absolute()
  config = defaults.get(**llama_config.model_fields(path))
  defaults.overlay(config, _FIELDS | _SIZES[size])
  trained = llama_config.trained_length(path)
  config.data.train_length = 4 * trained
  if size == 'full':
    config.data.path = f'data/{path.name}_{4 * trained}'
    config.data.vocabulary = str(path / 'tokenizer.model')
  config.train.init_from = str(path)
  config.eval.lengths = tuple(trained * 2**n // 2 for n in range(5))
  return config
