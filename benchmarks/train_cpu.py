"""Time of a training step on the CPU: this package and PyTorch.

Command: .venv/bin/python -m benchmarks.train_cpu [--small]
  (needs the extra `bench`, and a C++ compiler for torch.compile)

Both train the demo's model without positions: 3 pre-norm blocks, 4 heads, width
128, a tied embedding of bytes; 16 sequences of 128 tokens; AdamW with gradients
clipped at norm 1. PyTorch runs eagerly and with torch.compile. All train on the
same batches; a round is ten steps of each. The limit is the time of the matrix
products alone, for visible pairs only (`throughput.model_flops`), at the
largest rate measured for a product on this machine.
"""

import jax
import jax.numpy as jnp
import torch
from torch.nn import functional as F

from benchmarks import alternate, seeds_cpu
from lengen_jax.training import runs as runs_lib
from lengen_jax.training import sharding, throughput

STEPS, ROUNDS = 10, 15
# Width of the square matrices that measure the rate of products.
SQUARE = 2048


# Whether a peer is compiled.
PEERS = {'torch eager': False, 'torch.compile': True}


class TorchBlock(torch.nn.Module):
  """A pre-norm block with causal attention."""

  def __init__(self, model):
    super().__init__()
    inner = model.num_heads * model.head_dim
    self.heads = model.num_heads
    self.attention_norm = torch.nn.LayerNorm(model.width)
    self.qkv = torch.nn.Linear(model.width, 3 * inner, bias=False)
    self.out = torch.nn.Linear(inner, model.width, bias=False)
    self.mlp_norm = torch.nn.LayerNorm(model.width)
    self.up = torch.nn.Linear(model.width, model.mlp_width, bias=False)
    self.down = torch.nn.Linear(model.mlp_width, model.width, bias=False)

  def forward(self, x):
    batch, length, _ = x.shape
    q, k, v = self.qkv(self.attention_norm(x)).chunk(3, -1)
    q, k, v = (
      y.view(batch, length, self.heads, -1).transpose(1, 2) for y in (q, k, v)
    )
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    x = x + self.out(y.transpose(1, 2).reshape(batch, length, -1))
    h = F.gelu(self.up(self.mlp_norm(x)), approximate='tanh')
    return x + self.down(h)


class TorchLM(torch.nn.Module):
  """The demo's model without positions."""

  def __init__(self, model):
    super().__init__()
    self.scale = model.width**0.5
    self.embed = torch.nn.Embedding(model.vocab_size, model.width)
    self.blocks = torch.nn.ModuleList(
      TorchBlock(model) for _ in range(model.num_layers)
    )
    self.final_norm = torch.nn.LayerNorm(model.width)

  def forward(self, tokens):
    x = self.embed(tokens) * self.scale
    for block in self.blocks:
      x = block(x)
    return self.final_norm(x) @ self.embed.weight.T


def torch_stepper(config, batch_at, steps, compiled):
  """Returns a function that trains some PyTorch steps, and the model size."""
  model = TorchLM(config.model)

  def loss_fn(inputs, targets):
    return F.cross_entropy(model(inputs).flatten(0, 1), targets)

  loss_fn = torch.compile(loss_fn) if compiled else loss_fn
  tx = torch.optim.AdamW(
    model.parameters(),
    lr=config.optimizer.learning_rate,
    betas=(config.optimizer.b1, config.optimizer.b2),
    weight_decay=config.optimizer.weight_decay,
  )

  def run():
    for step in range(steps):
      batch = batch_at(step)
      loss = loss_fn(
        torch.from_numpy(batch['inputs']),
        torch.from_numpy(batch['targets']).long().ravel(),
      )
      tx.zero_grad()
      loss.backward()
      torch.nn.utils.clip_grad_norm_(
        model.parameters(), config.optimizer.clip_norm
      )
      tx.step()
    return loss.item()

  return run, sum(p.numel() for p in model.parameters())


def product_rate(size, rounds):
  """Returns the largest rate of a square matrix product, in operations/s."""
  x = jnp.ones((size, size))
  product = jax.jit(jnp.matmul)
  times = alternate.alternate(
    {'product': lambda: product(x, x).block_until_ready()}, rounds=rounds
  )
  return 2 * size**3 / min(times['product'])


def main():
  small = alternate.is_small(__doc__)
  steps, rounds = (1, 2) if small else (STEPS, ROUNDS)
  sharding.start()
  torch.set_num_threads(alternate.cores())
  run, batch_at = seeds_cpu.create('nope', 0, small)
  config, ours = run.config, seeds_cpu.stepper(run, batch_at)
  functions = {'lengen_jax': lambda: ours(steps)}
  peers = {k: v for k, v in PEERS.items() if not v or alternate.compiles()}
  for name, compiled in peers.items():
    functions[name], of_peer = torch_stepper(config, batch_at, steps, compiled)
    assert run.parameters == of_peer, (run.parameters, of_peer)
  seconds = alternate.alternate(functions, rounds=rounds, warmups=2)
  seconds = {k: [s / steps for s in v] for k, v in seconds.items()}
  rate = product_rate(512 if small else SQUARE, rounds)
  sizes = config.data.batch_size, config.data.train_length
  limit = throughput.model_flops(run.model, *sizes) / rate
  print(
    f'limit: {1e3 * limit:.1f} ms, the matrix products at {rate / 1e9:.0f} '
    'Gflop/s'
  )
  alternate.record(
    'train_cpu',
    {
      'model': config.model.to_dict(),
      'batch': sizes,
      'parameters': run.parameters,
      'limit_ms': 1e3 * limit,
    },
    seconds,
    {
      f'lengen_jax / {peer}': alternate.ratio(seconds, 'lengen_jax', peer)
      for peer in peers
    },
    runs_lib.versions() | {'torch': torch.__version__},
    small=small,
  )


if __name__ == '__main__':
  main()
