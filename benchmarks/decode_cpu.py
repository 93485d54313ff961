"""Forward pass, prefill and decoding on the CPU: this package and transformers.

Command: .venv/bin/python -m benchmarks.decode_cpu [--small]
  (needs the extra `bench`)

A random Llama: 8 layers, width 512, 8 heads on 4 key heads, 8192 tokens; both
packages have the same float32 weights, and their logits must agree. PyTorch
runs eagerly. The program measures a forward pass over one row of 2048 tokens,
prefill of 512 and 2048 tokens into a cache (transformers: StaticCache) with the
first token after it, and decoding of one token after these. Prefill and
decoding are of 1 and 8 rows. A round of decoding is 16 tokens.
"""

import functools
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import alternate
from lengen_jax.interop import hf
from lengen_jax.models import cache as cache_lib
from lengen_jax.models import transformer
from lengen_jax.training import runs as runs_lib

VOCAB, HEADS, KEY_HEADS = 8192, 8, 4
# Maximum difference of logits, which are about 1 in size.
TOLERANCE = 1e-4


class Ours:
  """The model in this package."""

  def __init__(self, folder):
    params, self.config = hf.load(folder)
    self.params = jax.device_put(params)
    model = transformer.create(self.config)

    @jax.jit
    def forward(params, tokens):
      return model.apply({'params': params}, tokens)

    def extend(params, cache, tokens):
      logits, cache = model.apply(
        {'params': params}, tokens, cache, method='decode'
      )
      return jnp.argmax(logits[:, -1:], -1).astype(jnp.int32), cache

    @functools.partial(jax.jit, donate_argnums=1)
    def prefill(params, cache, tokens):
      # XLA eliminates the unused logits of all tokens but the last.
      _, cache = extend(params, cache, tokens[:, :-1])
      return extend(params, cache, tokens[:, -1:])

    self._forward, self._prefill = forward, prefill
    self._extend = jax.jit(extend, donate_argnums=1)

  def forward(self, tokens):
    return np.asarray(self._forward(self.params, tokens))

  def start(self, tokens, slots):
    """Returns functions that read the prompts, and that decode after them.

    The first takes no argument. The second takes the number of new tokens.
    """
    rows, length = tokens.shape
    state = []

    def prefill():
      cache = cache_lib.create(self.config, rows, slots)
      state[:] = self._prefill(self.params, cache, tokens)
      jax.block_until_ready(state)

    def decode(count):
      token, cache = state
      cache = cache.replace(length=jnp.full(rows, length, jnp.int32))
      for _ in range(count):
        token, cache = self._extend(self.params, cache, token)
      state[:] = jax.block_until_ready((token, cache))

    return prefill, decode


class Theirs:
  """The model in transformers."""

  def __init__(self, folder, layers, width, slots):
    import torch
    import transformers

    torch.set_num_threads(alternate.cores())
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    self.torch, self.transformers = torch, transformers
    self.config = transformers.LlamaConfig(
      vocab_size=VOCAB,
      hidden_size=width,
      intermediate_size=3 * width,
      num_hidden_layers=layers,
      num_attention_heads=HEADS,
      num_key_value_heads=KEY_HEADS,
      max_position_embeddings=slots,
      tie_word_embeddings=False,
    )
    self.model = transformers.LlamaForCausalLM(self.config).eval()
    self.model.save_pretrained(folder)

  def forward(self, tokens):
    tokens = self.torch.from_numpy(tokens).long()
    return self.model(tokens, use_cache=False).logits.numpy()

  def start(self, tokens, slots):
    """Returns functions that read the prompts, and that decode after them.

    The first takes no argument. The second takes the number of new tokens.
    """
    length = tokens.shape[1]
    tokens = self.torch.from_numpy(tokens).long()
    cache = self.transformers.StaticCache(
      config=self.config, max_cache_len=slots
    )
    state = []

    def extend(tokens):
      logits = self.model(
        tokens, past_key_values=cache, logits_to_keep=1
      ).logits
      return logits[:, -1:].argmax(-1)

    def prefill():
      cache.reset()
      state[:] = [extend(tokens)]

    def decode(count):
      for layer in cache.layers:
        layer.cumulative_length.fill_(length)
      token = state[0]
      for _ in range(count):
        token = extend(token)

    return prefill, decode


def main():
  small = alternate.is_small(__doc__)
  layers, width = (2, 128) if small else (8, 512)
  lengths, rounds, count = ((32, 64), 2, 4) if small else ((512, 2048), 7, 16)
  seconds = {}
  with tempfile.TemporaryDirectory() as folder:
    theirs = Theirs(folder, layers, width, max(lengths) + count)
    ours = Ours(folder)
  models = {'lengen_jax': ours, 'transformers': theirs}
  rng = np.random.default_rng(0)

  def timed(what, functions, divisor=1):
    found = alternate.alternate(functions, rounds=rounds, warmups=2)
    for name, values in found.items():
      seconds[f'{what}: {name}'] = [value / divisor for value in values]
    print(f'{what}: done', flush=True)

  tokens = rng.integers(0, VOCAB, (1, max(lengths))).astype(np.int32)
  logits = [model.forward(tokens) for model in models.values()]
  difference = float(np.abs(logits[0] - logits[1]).max())
  assert difference < TOLERANCE, difference
  timed(
    f'forward, {max(lengths)} tokens',
    {
      name: functools.partial(model.forward, tokens)
      for name, model in models.items()
    },
  )
  for rows in (1, 8):
    for length in lengths:
      tokens = rng.integers(0, VOCAB, (rows, length)).astype(np.int32)
      started = {
        name: model.start(tokens, length + count)
        for name, model in models.items()
      }
      where = f'{rows} x {length}'
      timed(f'prefill, {where}', {k: v[0] for k, v in started.items()})
      timed(
        f'token after {where}',
        {k: functools.partial(v[1], count) for k, v in started.items()},
        divisor=count,
      )
  cases = [name.split(':')[0] for name in seconds if 'lengen_jax' in name]
  alternate.record(
    'decode_cpu',
    {
      'layers': layers,
      'width': width,
      'heads': HEADS,
      'key_heads': KEY_HEADS,
      'vocabulary': VOCAB,
      'difference of logits': difference,
    },
    seconds,
    {
      f'{case}: lengen_jax / transformers': alternate.ratio(
        seconds, f'{case}: lengen_jax', f'{case}: transformers'
      )
      for case in cases
    },
    runs_lib.versions()
    | {
      'torch': theirs.torch.__version__,
      'transformers': theirs.transformers.__version__,
    },
    small=small,
  )


if __name__ == '__main__':
  main()
