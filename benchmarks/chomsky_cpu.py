"""Training and testing on a Chomsky task on the CPU: this package and a peer.

Command: .venv/bin/python -m benchmarks.chomsky_cpu [--small]

reverse_string with RoPE, the official model: 5 post-norm blocks, 8 heads, width
64, dropout 0.1, batch 128. The peer is the official training step rewritten in
plain jax: rows of one length without padding, and one program per length. The
program measures a step at length 32, compilation of training on lengths 1..40,
and testing of lengths 41..500 with 8 examples each. The peer compiles every
fifth training length and every 41st test length; the sums are scaled to all
lengths.
"""

import functools
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import alternate
from configs import chomsky
from lengen_jax.training import runs as runs_lib
from lengen_jax.training import task_trainer

LAYERS, HEADS, HEAD_DIM, WIDTH = 5, 8, 8, 64
BATCH, STEPS, EXAMPLES = 128, 5, 8
TRAIN_EVERY, TEST_EVERY = 5, 41


class Sizes(NamedTuple):
  """Length of a timed step, longest training and test length, and rounds."""

  length: int = 32
  longest: int = 40
  tested: int = 500
  rounds: int = 10


SMALL = Sizes(length=4, longest=5, tested=8, rounds=2)


def peer_params(rng):
  """Returns parameters of the peer, which has as many as this package."""
  keys = iter(jax.random.split(rng, 64))

  def linear(inputs, outputs):
    return jax.random.normal(next(keys), (inputs, outputs)) * inputs**-0.5

  def norm():
    return jnp.ones(WIDTH), jnp.zeros(WIDTH)

  layers = [
    {
      'qkvo': [linear(WIDTH, WIDTH) for _ in range(4)],
      'up': (linear(WIDTH, 4 * WIDTH), jnp.zeros(4 * WIDTH)),
      'down': (linear(4 * WIDTH, WIDTH), jnp.zeros(WIDTH)),
      'norms': (norm(), norm()),
    }
    for _ in range(LAYERS)
  ]
  return {
    'embed': 0.02 * jax.random.normal(next(keys), (3, WIDTH)),
    'layers': layers,
    'out': (linear(WIDTH, 2), jnp.zeros(2)),
  }


def peer_logits(params, inputs, rng=None):
  """Returns the official encoder's logits for n empty tokens, `[B, n, 2]`.

  The empty tokens follow the n inputs. Without `rng`, dropout is off.
  """
  batch, n = inputs.shape
  keys = iter(() if rng is None else jax.random.split(rng, 2 * LAYERS))

  def drop(x):
    if rng is None:
      return x
    keep = jax.random.bernoulli(next(keys), 0.9, x.shape)
    return jnp.where(keep, x / 0.9, 0.0)

  def norm(x, scale_and_offset):
    scale, offset = scale_and_offset
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + offset

  empty = jnp.full_like(inputs, 2)
  tokens = jax.nn.one_hot(jnp.concatenate([inputs, empty], 1), 3)
  x = tokens @ params['embed'] * WIDTH**0.5
  frequencies = 10000.0 ** (-jnp.arange(0, HEAD_DIM, 2) / HEAD_DIM)
  angles = jnp.arange(2 * n)[:, None] * frequencies
  cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]

  def rotate(x):
    a, b = x[..., ::2], x[..., 1::2]
    turned = jnp.stack([a * cos - b * sin, a * sin + b * cos], -1)
    return turned.reshape(x.shape)

  for layer in params['layers']:
    q, k, v = (
      (x @ w).reshape(batch, 2 * n, HEADS, HEAD_DIM) for w in layer['qkvo'][:3]
    )
    logits = jnp.einsum('bqhd,bkhd->bhqk', rotate(q), rotate(k))
    weights = jax.nn.softmax(logits * HEAD_DIM**-0.5)
    y = jnp.einsum('bhqk,bkhd->bqhd', weights, v).reshape(x.shape)
    x = norm(x + drop(y @ layer['qkvo'][3]), layer['norms'][0])
    h = jax.nn.relu(x @ layer['up'][0] + layer['up'][1])
    h = h @ layer['down'][0] + layer['down'][1]
    x = norm(x + drop(h), layer['norms'][1])
  return x[:, n:] @ params['out'][0] + params['out'][1]


TX = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))


@functools.partial(jax.jit, static_argnums=2, donate_argnums=0)
def peer_step(state, rng, n):
  """Trains one step at length n; returns (state, loss)."""
  params, opt_state = state
  inputs_rng, model_rng = jax.random.split(rng)
  inputs = jax.random.randint(inputs_rng, (BATCH, n), 0, 2)

  def loss_fn(params):
    logits = peer_logits(params, inputs, model_rng)
    return optax.softmax_cross_entropy_with_integer_labels(
      logits, inputs[:, ::-1]
    ).mean()

  loss, grads = jax.value_and_grad(loss_fn)(params)
  updates, opt_state = TX.update(grads, opt_state)
  return (optax.apply_updates(params, updates), opt_state), loss


@functools.partial(jax.jit, static_argnums=2)
def peer_test(params, rng, n):
  """Returns the accuracy at length n."""
  inputs = jax.random.randint(rng, (EXAMPLES, n), 0, 2)
  logits = peer_logits(params, inputs)
  return (logits.argmax(-1) == inputs[:, ::-1]).mean()


def ours(sizes, **train):
  """Returns this package's trainer, and the initial state of one run."""
  config = chomsky.get_config('reverse_string')
  config.model.encoding = 'rope'
  config.train.update({'max_length': sizes.longest} | train)
  config.eval.lengths = tuple(range(sizes.longest + 1, sizes.tested + 1))
  config.eval.examples = EXAMPLES
  program = task_trainer.TaskTrainer(config)
  return program, program.init((0,), (1e-3,))


def peer_state():
  params = peer_params(jax.random.key(0))
  return params, TX.init(params)


def steps(sizes):
  """Returns seconds per step at one length; both programs take turns."""
  length = sizes.length
  program, runs = ours(sizes, min_length=length, max_length=length, buckets=1)
  state = {'ours': runs, 'peer': peer_state()}

  def our_steps():
    state['ours'] = program.train(state['ours'], 0, STEPS)
    jax.block_until_ready(state['ours'].loss)

  def peer_steps():
    for number in range(STEPS):
      rng = jax.random.key(number)
      state['peer'], loss = peer_step(state['peer'], rng, length)
    jax.block_until_ready(loss)

  seconds = alternate.alternate(
    {'step, ours': our_steps, 'step, peer': peer_steps}, rounds=sizes.rounds
  )
  return {name: [s / STEPS for s in v] for name, v in seconds.items()}


def timed(function):
  """Returns the seconds of a call."""
  began = time.perf_counter()
  jax.block_until_ready(function())
  return time.perf_counter() - began


def compiling(sizes):
  """Returns the seconds to compile training on lengths 1..40."""
  program, runs = ours(sizes)
  one = timed(lambda: program.train(runs, 0, 1).loss)
  every = range(TRAIN_EVERY, sizes.longest + 1, TRAIN_EVERY)
  states, rng = [peer_state() for _ in every], jax.random.key(0)
  jax.block_until_ready(states)
  some = sum(
    timed(lambda n=n, state=state: peer_step(state, rng, n)[1])
    for n, state in zip(every, states, strict=True)
  )
  return {
    'compile, ours': [one],
    'compile, peer': [some * sizes.longest / len(every)],
  }


def testing(sizes):
  """Returns the seconds to test lengths 41..500, including compilation."""
  program, runs = ours(sizes)
  lengths = program.config.eval.lengths
  all_of_them = timed(lambda: [program.test(runs, n) for n in lengths])
  every = lengths[::TEST_EVERY]
  params, rng = peer_params(jax.random.key(0)), jax.random.key(0)
  some = sum(timed(lambda n=n: peer_test(params, rng, n)) for n in every)
  return {
    'test, ours': [all_of_them],
    'test, peer': [some * len(lengths) / len(every)],
  }


def main():
  small = alternate.is_small(__doc__)
  sizes = SMALL if small else Sizes()
  seconds = steps(sizes) | compiling(sizes) | testing(sizes)
  count, own_count = (
    sum(np.size(x) for x in jax.tree.leaves(params))
    for params in (peer_state()[0], ours(sizes)[1].params)
  )
  alternate.record(
    'chomsky_cpu',
    {
      'parameters of the peer': int(count),
      'parameters': int(own_count),
      'batch': BATCH,
      'length of a step': sizes.length,
      'examples per length': EXAMPLES,
    },
    seconds,
    {
      f'{what}: ours / peer': alternate.ratio(
        seconds, f'{what}, ours', f'{what}, peer'
      )
      for what in ('step', 'compile', 'test')
    },
    runs_lib.versions(),
    small=small,
  )


if __name__ == '__main__':
  main()
