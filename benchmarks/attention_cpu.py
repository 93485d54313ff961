"""Time of causal attention on the CPU: this package and PyTorch.

Command: .venv/bin/python -m benchmarks.attention_cpu [--small]
  (needs the extra `bench`, and a C++ compiler for flex_attention)

One layer, batch 1, 12 heads of 64, float32, with no bias and with FIRE of one
and two hidden layers. Block-by-block attention (exact, and with
bias_form='anchored') is compared with attention over all pairs in memory
(naive), with PyTorch's scaled_dot_product_attention and FIRE as in appendix E
of its paper, eager and compiled, and, without a bias and forward only, with
flex_attention. The paper's module has one hidden layer; with two, the same
module has one more. The backward pass computes gradients of q, k, v and FIRE's
parameters.
"""

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.nn import functional as F
from torch.nn.attention import flex_attention

from benchmarks import alternate
from lengen_jax import attention, encodings
from lengen_jax.training import runs as runs_lib

HEADS, HEAD_DIM = 12, 64
SPECS = {
  'no bias': 'nope',
  'fire 1': 'fire(hidden_layers=1)',
  'fire 2': 'fire',
}
# Number of rounds by length; long sequences have fewer rounds.
ROUNDS = {512: 15, 2048: 5, 4096: 3}
# Naive attention is left out from this length on, to save time.
NAIVE_BELOW = 4096


class TorchFire(torch.nn.Module):
  """FIRE's bias of all pairs, as in appendix E of its paper."""

  def __init__(self, hidden_layers):
    super().__init__()
    sizes = [1] + [32] * hidden_layers + [HEADS]
    layers = [torch.nn.Linear(1, 32)]
    for inputs, outputs in zip(sizes[1:], sizes[2:], strict=False):
      layers += [torch.nn.ReLU(), torch.nn.Linear(inputs, outputs)]
    self.mlp = torch.nn.Sequential(*layers)
    self.c = torch.nn.Parameter(torch.tensor(0.1))
    self.threshold = torch.nn.Parameter(torch.tensor(1.0))

  def forward(self, length):
    i = torch.arange(length)[:, None]
    distance = i - torch.arange(length)[None]
    limit = torch.abs(self.threshold * 512.0)
    i = torch.maximum(i.float(), limit)
    position = torch.log(torch.abs(self.c * i) + 1)
    x = torch.log(torch.abs(self.c * distance) + 1) / (position + 1e-6)
    return self.mlp(x[..., None]).permute(2, 0, 1)[None]


def ours(spec, implementation, arrays, bias_form='exact'):
  """Returns compiled functions of this package's attention, by direction."""
  encoding = encodings.create(spec, num_heads=HEADS, head_dim=HEAD_DIM)
  variables = encoding.init(jax.random.key(0), method='bias_fn')

  def forward(q, k, v, variables):
    return attention.dot_product_attention(
      q,
      k,
      v,
      bias=encoding.apply(variables, method='bias_fn'),
      causal=True,
      bias_form=bias_form,
      implementation=implementation,
    )

  def backward(q, k, v, variables, dy):
    _, vjp = jax.vjp(forward, q, k, v, variables)
    return vjp(dy)

  q, k, v, dy = (jnp.asarray(x) for x in arrays)
  forward, backward = jax.jit(forward), jax.jit(backward)
  return {
    'forward': lambda: jax.block_until_ready(forward(q, k, v, variables)),
    'forward + backward': lambda: jax.block_until_ready(
      backward(q, k, v, variables, dy)
    ),
  }


def theirs(fire, length, arrays):
  """Returns functions of PyTorch's fused attention, by direction.

  If `fire` is given, its bias of all pairs is added.
  """
  q, k, v, dy = (torch.from_numpy(x).transpose(1, 2) for x in arrays)
  for x in (q, k, v):
    x.requires_grad_()
  future = torch.ones(length, length, dtype=torch.bool).triu(1)

  def attend():
    if fire is None:
      return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    bias = fire(length).masked_fill(future, -torch.inf)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)

  def forward():
    with torch.no_grad():
      attend()

  def backward():
    for x in (q, k, v, *(() if fire is None else fire.parameters())):
      x.grad = None
    attend().backward(dy)

  return {'forward': forward, 'forward + backward': backward}


def flex(length, arrays):
  """Returns compiled flex_attention; it has no backward pass on the CPU."""
  q, k, v, _ = (torch.from_numpy(x).transpose(1, 2) for x in arrays)
  mask = flex_attention.create_block_mask(
    lambda b, h, i, j: i >= j, None, None, length, length, device='cpu'
  )
  attend = torch.compile(flex_attention.flex_attention, dynamic=False)

  def forward():
    with torch.no_grad():
      attend(q, k, v, block_mask=mask)

  return {'forward': forward}


def candidates(length):
  """Returns a dict from name to functions by direction."""
  rng = np.random.default_rng(0)
  shape = (1, length, HEADS, HEAD_DIM)
  arrays = [rng.normal(size=shape).astype(np.float32) for _ in range(4)]
  found = {}
  for name, spec in SPECS.items():
    found[f'blockwise, {name}'] = ours(spec, 'blockwise', arrays)
    if name != 'no bias':
      anchored = ours(spec, 'blockwise', arrays, 'anchored')
      found[f'anchored, {name}'] = anchored
    if length < NAIVE_BELOW:
      found[f'naive, {name}'] = ours(spec, 'reference', arrays)
  found['torch, no bias'] = theirs(None, length, arrays)
  compiles = alternate.compiles()
  for hidden_layers in (1, 2):
    fire = TorchFire(hidden_layers)
    found[f'torch, fire {hidden_layers}'] = theirs(fire, length, arrays)
    if compiles:
      fire = torch.compile(TorchFire(hidden_layers), dynamic=False)
      compiled = theirs(fire, length, arrays)
      found[f'torch.compile, fire {hidden_layers}'] = compiled
  if compiles:
    found['torch flex, no bias'] = flex(length, arrays)
  return found


def pairs(direction, length):
  """Yields the pairs of names whose times are compared at a length."""
  for name in SPECS:
    for peer in ('torch', 'torch.compile'):
      yield f'blockwise, {name}', f'{peer}, {name}'
      if name != 'no bias':
        yield f'anchored, {name}', f'{peer}, {name}'
    if length < NAIVE_BELOW:
      yield f'blockwise, {name}', f'naive, {name}'
    if name != 'no bias':
      yield f'blockwise, {name}', 'blockwise, no bias'
      yield f'anchored, {name}', 'blockwise, no bias'
  if direction == 'forward':
    yield 'blockwise, no bias', 'torch flex, no bias'


def main():
  small = alternate.is_small(__doc__)
  torch.set_num_threads(alternate.cores())
  seconds, ratios = {}, {}
  for length, rounds in ({128: 2} if small else ROUNDS).items():
    found = candidates(length)
    for direction in ('forward', 'forward + backward'):
      functions = {
        name: functions[direction]
        for name, functions in found.items()
        if direction in functions
      }
      timed = alternate.alternate(functions, rounds=rounds)
      prefix = f'{length} {direction}'
      seconds |= {f'{prefix}: {k}': v for k, v in timed.items()}
      for one, other in pairs(direction, length):
        if other in timed:
          ratios[f'{prefix}: {one} / {other}'] = alternate.ratio(
            timed, one, other
          )
      print(f'{prefix}: done', flush=True)
  alternate.record(
    'attention_cpu',
    {'heads': HEADS, 'head_dim': HEAD_DIM, 'batch': 1, 'rounds': ROUNDS},
    seconds,
    ratios,
    runs_lib.versions() | {'torch': torch.__version__},
    small=small,
  )


if __name__ == '__main__':
  main()
