"""A pretrained checkpoint, extended to sequences four times as long.

Commands:
  lengen prepare --config=configs/pretrained.py:FOLDER --config.data.raw=TEXTS
  lengen compare --config=configs/pretrained.py:FOLDER --workdir=runs/extended \
    --runs='rope(scale=4.); yarn(scale=4., train_length=4096); fire'
  lengen train --config=configs/pretrained.py:FOLDER --workdir=runs/as_it_is \
    --config.train.steps=0

The argument is FOLDER[,SIZE]. FOLDER holds a checkpoint of transformers, of any
family in `interop.hf.families`, with its tokenizer.json, or else its
tokenizer.model. Sizes and encoding are those of its config.json, and every run
starts from its weights. docs/extend_rope.md explains each step. The text is any
folder of texts (`data.task=lm`).

The recipe is that of YaRN (arXiv:2309.00071, section 4.1) except for the
length: 400 steps of 64 rows, AdamW with 2e-5 after 20 steps of warm-up; rows
are four times as long as those that the checkpoint was made for. Ours: a
constant rate after that, clipping, and the text.

That length is its max_position_embeddings, which is large if it was already
extended: 131072 in Llama 3.1, whose rows would have 524,288 tokens. For other
lengths, set these fields in every command:
  --config.data.train_length=16384 --config.data.path=data/llama_16384 \
    --config.eval.lengths='(4096, 8192, 16384, 32768)'

To train with less memory, in bfloat16 with float32 values for the optimizer, or
with LoRA:
  --config.train.param_dtype=bfloat16
  --config.model.lora_rank=16

Sizes:
  paper  The recipe.
  tiny   Bytes of the standard library's source; seconds, for tests.
"""

import pathlib

from lengen_jax import errors
from lengen_jax.interop.hf import families
from lengen_jax.models.config import ModelConfig
from lengen_jax.training import defaults

# Values of `paper` come first, those of `tiny` last.
_FIELDS = {
  'model.dtype': ['bfloat16', ..., ..., 'float32'],
  'model.scan_layers': [True, ..., ..., False],
  'model.remat': ['full', ..., ..., 'none'],
  'data.source': ['prepared', ..., ..., 'stdlib'],
  'data.task': ['lm', ..., ..., ''],
  'data.batch_size': [64, ..., ..., 4],
  'optimizer.learning_rate': [2e-5, ..., ..., 1e-3],
  'optimizer.schedule': 'constant',
  'optimizer.warmup_steps': [20, ..., ..., 2],
  'optimizer.weight_decay': 0.0,
  'optimizer.b2': 0.95,
  'train.steps': [400, ..., ..., 8],
  'train.log_every': [..., ..., ..., 4],
  'train.checkpoint_every': [100, ..., ..., 4],
  'eval.windows': [..., ..., ..., 2],
  'eval.batch_tokens': [65536, ..., ..., 1024],
}


def get_config(arg=''):
  """Returns the config; `arg` is a folder, then perhaps a size."""
  folder, _, size = arg.rpartition(',')
  if size not in defaults.SIZES:
    folder, size = arg, 'paper'
  if not folder or size not in ('paper', 'tiny'):
    raise errors.ConfigError(
      'give the folder of a checkpoint, configs/pretrained.py:FOLDER[,SIZE]; '
      f'SIZE is paper or tiny; got {arg!r}'
    )
  path = pathlib.Path(folder).expanduser().absolute()
  fields = families.model_fields(path)
  config = defaults.get(**fields)
  defaults.overlay(config, size, _FIELDS)
  model = ModelConfig(**fields)
  if model.num_layers % model.period:  # As in Gemma 3.
    config.model.scan_layers = False
  trained = families.trained_length(path)
  config.data.train_length = 4 * trained
  if size == 'paper':
    config.data.path = f'data/{path.name}_{4 * trained}'
    # If both exist, transformers reads the first.
    found = (path / 'tokenizer.json').exists()
    vocabulary = path if found else path / 'tokenizer.model'
    config.data.vocabulary = str(vocabulary)
  config.train.init_from = str(path)
  config.eval.lengths = tuple(trained * 2**n // 2 for n in range(5))
  return config
