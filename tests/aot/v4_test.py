"""What one TPU v4 chip holds, told by its compiler, ahead of time.

No TPU is needed: libtpu compiles for a chip that is not there. Run by
`make test-aot`.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import compile_matrix
from lengen_jax import attention, encodings
from lengen_jax.training import ahead_of_time, pods, sharding
from lengen_jax.training import config as training_config
from lengen_jax.training import run as run_lib

pytestmark = pytest.mark.aot
MIB = 2**20
CHIP_GIB = 30.75
HEADS, HEAD_DIM = 12, 64


@pytest.fixture(scope='module')
def on_chip():
  """Compiles a function for one chip; arguments are shapes."""
  layout = sharding.Layout.create(
    training_config.MeshConfig(), 1, ahead_of_time.devices(pods.get('v4-2'))
  )

  def compile_for(function, *args):
    one = layout.whole
    jitted = jax.jit(function, in_shardings=one, out_shardings=one)
    with layout.scope():
      return jitted.lower(*args).compile()

  return compile_for


def attention_gradients(spec, bias_form):
  """Gradients of one layer of attention to q, k, v and parameters."""
  encoding = encodings.create(spec, num_heads=HEADS, head_dim=HEAD_DIM)
  variables = jax.eval_shape(
    lambda: encoding.init(jax.random.key(0), method='bias_fn')
  )

  def loss(q, k, v, variables):
    y = attention.dot_product_attention(
      q,
      k,
      v,
      bias=encoding.apply(variables, method='bias_fn'),
      causal=True,
      bias_form=bias_form,
      implementation='blockwise',
    )
    return y.astype(jnp.float32).sum()

  return jax.grad(loss, (0, 1, 2, 3)), variables


@pytest.fixture(scope='module')
def fire_attention(on_chip):
  def at(length, bias_form='exact'):
    gradients, variables = attention_gradients('fire', bias_form)
    x = jax.ShapeDtypeStruct((1, length, HEADS, HEAD_DIM), jnp.bfloat16)
    return on_chip(gradients, x, x, x, variables)

  return at


def temporary(compiled):
  return compiled.memory_analysis().temp_size_in_bytes


def test_memory_of_anchors(fire_attention):
  assert temporary(fire_attention(8192, 'anchored')) <= 128 * MIB


def test_memory_is_linear_in_the_length(fire_attention):
  for length in (8192, 131072):
    compiled = fire_attention(length)
    # 8 bytes per channel: the gradient of q in float32, two arrays in bfloat16.
    limit = 8 * length * HEADS * HEAD_DIM
    assert limit / 10 < temporary(compiled) <= limit
  # There is no array over all pairs.
  shapes = re.findall(r'(?:f32|bf16|s32|pred)\[([\d,]+)\]', compiled.as_text())
  largest = max(np.prod([int(n) for n in shape.split(',')]) for shape in shapes)
  assert length * HEADS * HEAD_DIM <= largest < length * length / 8


def test_context_of_a_training_step():
  """A step of the 125M FIRE model at 524,288 tokens.

  `make compile-matrix` compiles it with Pallas kernels, which takes minutes.
  """
  run = run_lib.Run(
    compile_matrix.load('512k'), devices=ahead_of_time.devices(pods.get('v4-2'))
  )
  program = ahead_of_time.training_step(run)
  assert not program.refused
  assert 5 < program.needs < CHIP_GIB
