"""Time of forgetting attention on the CPU: this package and PyTorch.

Command: python -m benchmarks.forget_cpu [--small]
  (needs the extra `bench`)

One layer, batch 1, 12 heads of 64, float32, forward and backward with gradients
of queries, keys, values, gates and the layer's input. The run `linear | forget`
is compared with the same attention without a bias and with the Forgetting
Transformer's attention over all pairs in PyTorch, the reference in the authors'
tests of their Triton kernels.
"""

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.nn import functional as F

from benchmarks import alternate
from lengen_jax import attention, encodings, positions
from lengen_jax.training import runs as runs_lib

HEADS, HEAD_DIM, WIDTH = 12, 64, 768


def ours(spec, contextual, arrays):
  """Returns a compiled forward and backward pass of this package."""
  q, k, v, x, dy = map(jnp.asarray, arrays)
  encoding = encodings.create(spec, num_heads=HEADS, head_dim=HEAD_DIM)
  variables = encoding.init(jax.random.key(0), method='bias_fn')
  scheme = positions.contextual.create(contextual, num_heads=HEADS, width=WIDTH)
  gates = {} if scheme.is_none else scheme.init(jax.random.key(0), x)

  def forward(q, k, v, x, gates):
    own = None
    if not scheme.is_none:
      own = scheme.apply(gates, x, method='positions')
    return attention.with_encoding(
      encoding.bind(variables),
      q,
      k,
      v,
      q_positions=own,
      k_positions=own,
      causal=True,
      implementation='blockwise',
    )

  @jax.jit
  def backward(*inputs):
    return jax.vjp(forward, *inputs)[1](dy)

  return lambda: jax.block_until_ready(backward(q, k, v, x, gates))


def theirs(arrays):
  """Returns the forward and backward pass over all pairs in PyTorch."""
  q, k, v, x, dy = map(torch.from_numpy, arrays)
  gate = torch.nn.Linear(WIDTH, HEADS)
  inputs = q, k, v, x, gate.weight, gate.bias
  for leaf in inputs:
    leaf.requires_grad_()
  future = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).triu(1)

  def backward():
    for leaf in inputs:
      leaf.grad = None
    c = F.logsigmoid(gate(x)).cumsum(1).transpose(1, 2)
    q_, k_, v_ = (a.transpose(1, 2) for a in (q, k, v))
    logits = q_ @ k_.transpose(2, 3) * HEAD_DIM**-0.5
    logits = logits + c[..., :, None] - c[..., None, :]
    logits = logits.masked_fill(future, -torch.inf)
    y = logits.softmax(-1) @ v_
    y.transpose(1, 2).backward(dy)

  return backward


def main():
  small = alternate.is_small(__doc__)
  torch.set_num_threads(alternate.cores())
  seconds, ratios = {}, {}
  for length in (256,) if small else (512, 2048):
    rng = np.random.default_rng(0)
    shape = 1, length, HEADS, HEAD_DIM
    arrays = [rng.normal(size=shape).astype(np.float32) for _ in range(4)]
    arrays.insert(3, rng.normal(size=(1, length, WIDTH)).astype(np.float32))
    own = alternate.alternate(
      {
        f'{length}: linear | forget': ours('linear', 'forget', arrays),
        f'{length}: no bias': ours('nope', 'none', arrays),
        f'{length}: torch, all pairs': theirs(arrays),
      },
      rounds=1 if small else 7,
    )
    seconds |= own
    name, *peers = own
    for peer in peers:
      _, _, label = peer.partition(': ')
      ratios[f'{name} / {label}'] = alternate.ratio(own, name, peer)
  versions = runs_lib.versions() | {'torch': torch.__version__}
  setting = {'heads': HEADS, 'head_dim': HEAD_DIM, 'batch': 1}
  alternate.record(
    'forget_cpu', setting, seconds, ratios, versions, small=small
  )


if __name__ == '__main__':
  main()
