"""Time of a training step on the CPU: this package and PyTorch eager.

Command: .venv/bin/python -m benchmarks.train_cpu   (needs the extra `bench`)

Both train the demo's model without positions: 3 pre-norm blocks, 4 heads, width
128, a tied embedding of bytes; 16 sequences of 128 tokens; AdamW with gradients
clipped at norm 1. Both train on the same batches; a round is ten steps of each.
"""

import jax
import torch
from torch.nn import functional as F

from benchmarks import alternate
from configs import stdlib
from lengen_jax import data
from lengen_jax.training import run as run_lib
from lengen_jax.training import runs as runs_lib
from lengen_jax.training import sharding

STEPS, ROUNDS = 10, 15


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


def torch_stepper(config, batches):
  """Returns a function that trains ten PyTorch steps, and the model size."""
  model = TorchLM(config.model)
  tx = torch.optim.AdamW(
    model.parameters(),
    lr=config.optimizer.learning_rate,
    betas=(config.optimizer.b1, config.optimizer.b2),
    weight_decay=config.optimizer.weight_decay,
  )

  def run():
    for step in range(STEPS):
      batch = batches.batch(step)
      logits = model(torch.from_numpy(batch['inputs']))
      loss = F.cross_entropy(
        logits.flatten(0, 1), torch.from_numpy(batch['targets']).long().ravel()
      )
      tx.zero_grad()
      loss.backward()
      torch.nn.utils.clip_grad_norm_(
        model.parameters(), config.optimizer.clip_norm
      )
      tx.step()
    return loss.item()

  return run, sum(p.numel() for p in model.parameters())


def our_stepper(config, batches):
  """Returns a function that trains ten steps in JAX, and the model's size."""
  run = run_lib.Run(config)
  step_fn = run.jitted_step(packed=False)
  state = [run.init_state()]

  def go():
    for step in range(STEPS):
      batch = run.layout.place(batches.batch(step))
      with run.layout.scope():
        state[0], metrics = step_fn(state[0], batch)
    return float(metrics['loss'])

  parameters = sum(x.size for x in jax.tree.leaves(state[0].params))
  return go, parameters


def main():
  sharding.start()
  config = stdlib.get_config('cpu')
  config.model.encoding = 'nope'
  corpus = data.load(data.DataConfig(**config.data.to_dict()))
  batches = data.TrainingWindows(
    corpus.documents['train'],
    length=config.data.train_length,
    batch_size=config.data.batch_size,
    seed=0,
  )
  ours, parameters = our_stepper(config, batches)
  theirs, torch_parameters = torch_stepper(config, batches)
  assert parameters == torch_parameters, (parameters, torch_parameters)
  seconds = alternate.alternate(
    {'lengen_jax': ours, 'torch eager': theirs}, rounds=ROUNDS, warmups=2
  )
  seconds = {k: [s / STEPS for s in v] for k, v in seconds.items()}
  alternate.record(
    'train_cpu',
    {
      'model': config.model.to_dict(),
      'batch': [config.data.batch_size, config.data.train_length],
      'parameters': parameters,
    },
    seconds,
    {
      'lengen_jax / torch eager': alternate.ratio(
        seconds, 'lengen_jax', 'torch eager'
      )
    },
    runs_lib.versions() | {'torch': torch.__version__},
  )


if __name__ == '__main__':
  main()
