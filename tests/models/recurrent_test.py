"""Tests `lengen_jax/models/recurrent.py`."""

import functools

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lengen_jax import errors
from lengen_jax.models import recurrent
from tests import helpers

NAMES = ['rnn', 'lstm', 'stack_rnn', 'tape_rnn']
B, L, V, OUT, C = 2, 7, 5, 3, 8


def create(name, width=16, vocab_size=V, output_size=OUT, **kwargs):
  return recurrent.create(
    name,
    vocab_size=vocab_size,
    output_size=output_size,
    width=width,
    **kwargs,
  )


def tokens(length=L, batch=B, vocab_size=V):
  return jax.random.randint(jax.random.key(0), (batch, length), 0, vocab_size)


def boxed_shapes(module):
  """Returns the shapes of the parameters without computing them."""
  x = jnp.zeros((1, 1), int)
  return jax.eval_shape(module.init, jax.random.key(0), x)['params']


def params_of(module):
  return helpers.random_params(lambda: nn.unbox(boxed_shapes(module)))


@functools.partial(jax.jit, static_argnums=0)
def apply(module, params, *args):
  return module.apply({'params': params}, *args)


def logits(module, params, *args):
  return np.asarray(apply(module, params, *args))


@pytest.mark.parametrize('name', NAMES)
def test_shapes(name):
  module = create(name)
  params = params_of(module)
  assert set(params) == {'cell', 'out'}
  assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {
    jnp.dtype('float32')
  }
  y = logits(module, params, tokens())
  assert y.shape == (B, L, OUT) and y.dtype == jnp.float32
  assert np.isfinite(y).all()


def test_widths():
  module = recurrent.create('tape_rnn', vocab_size=V, output_size=OUT)
  cell = jax.tree.map(jnp.shape, nn.unbox(boxed_shapes(module)))['cell']
  assert cell['rnn']['i']['kernel'] == (V + C, 256)
  assert cell['hidden_0']['kernel'] == (256, 64)
  assert cell['hidden_1']['kernel'] == (64, 64)
  assert cell['values']['kernel'] == (64, 1, C)
  assert cell['actions']['kernel'] == (256, 1, 5)


def test_rnn_is_that_of_haiku(assert_close):
  """Rectified, and without a residual connection."""
  module = create('rnn')
  params = params_of(module)
  p = jax.tree.map(np.asarray, params)
  h = np.zeros((B, 16))
  want = []
  for x in np.asarray(tokens()).T:
    h = p['cell']['i']['kernel'][x] + h @ p['cell']['h']['kernel']
    h = np.maximum(h + p['cell']['i']['bias'], 0)
    want.append(h @ p['out']['kernel'] + p['out']['bias'])
  assert_close(logits(module, params, tokens()), np.stack(want, 1))


@pytest.mark.parametrize('name', NAMES)
def test_causal(name):
  """A later token changes nothing before it, and something from it on."""
  module = create(name)
  params = params_of(module)
  x = tokens()
  y = logits(module, params, x, 3)
  changed = logits(module, params, x.at[:, 4].set((x[:, 4] + 1) % V), 3)
  np.testing.assert_array_equal(changed[:, :4], y[:, :4])
  assert (np.abs(changed - y).max((0, 2))[4:] > 0).all()


@pytest.mark.parametrize(
  'name,memory_size',
  [(name, None) for name in NAMES[:3]] + [('tape_rnn', 6), ('stack_rnn', 3)],
)
def test_padding_changes_nothing(name, memory_size, assert_close):
  module = create(name, memory_size=memory_size)
  params = params_of(module)
  lengths = jnp.array([3, 4])
  y = logits(module, params, tokens(), lengths)
  padded = jnp.pad(tokens(), ((0, 0), (0, 5)))
  assert_close(logits(module, params, padded, lengths)[:, :L], y, 1e-6)


@pytest.mark.parametrize('name', NAMES)
def test_a_token_outside_the_vocabulary_is_nan(name):
  module = create(name)
  for token in (V, -1):
    x = tokens().at[0, 3].set(token)
    y = logits(module, params_of(module), x)
    assert np.isnan(y[0, 3:]).all()
    assert np.isfinite(y[0, :3]).all() and np.isfinite(y[1]).all()


def programmed(name, num_actions, memory_size=None):
  """A model whose tokens are instructions, and the values they carry.

  Token v takes action v % A with the value of row v // A, and the logits are
  the cell read before that.
  """
  values = np.random.default_rng(0).uniform(0.5, 2, (4, C)).astype(np.float32)
  size = 4 * num_actions
  module = create(name, size + C, size, C, memory_size=memory_size)
  params = jax.tree.map(
    lambda x: np.zeros(x.shape, x.dtype), nn.unbox(boxed_shapes(module))
  )
  cell = params['cell']
  # The hidden state: the token, one-hot, then the cell read.
  cell['rnn']['i']['kernel'][:] = np.eye(size + C)
  for i in range(2 if name == 'tape_rnn' else 0):
    kernel = cell[f'hidden_{i}']['kernel']
    kernel[:] = np.eye(*kernel.shape)
  cell['values']['kernel'][:size, 0] = np.repeat(values, num_actions, axis=0)
  actions = np.tile(np.eye(num_actions), (4, 1))
  cell['actions']['kernel'][:size, 0] = 1e3 * actions
  params['out']['kernel'][size:] = np.eye(C)
  return module, params, values


PUSH, POP, LEAVE = range(3)


def test_stack_pops_in_reverse():
  """And then is empty, even one of as many cells as were popped."""
  module, params, values = programmed('stack_rnn', 3, 4)
  program = [PUSH, PUSH + 3, PUSH + 6, LEAVE, POP, POP, POP, POP, LEAVE]
  y = logits(module, params, jnp.array([program]))[0]
  a, b, c, empty = *values[:3], np.zeros(C)
  want = [empty, a, b, c, c, b, a, empty, empty]
  np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize('memory_size', [None, 4])
def test_stack_runs_programs(memory_size):
  """What is pushed off the bottom of a bounded stack is lost."""
  module, params, values = programmed('stack_rnn', 3, memory_size)
  x = tokens(40, vocab_size=12)
  got = logits(module, params, x)
  bottom = memory_size or 40
  for row, y in zip(np.asarray(x), got, strict=True):
    stack = []
    for v, top in zip(row, y, strict=True):
      np.testing.assert_array_equal(top, stack[0] if stack else np.zeros(C))
      if v % 3 == PUSH:
        stack = [values[v // 3], *stack][:bottom]
      elif v % 3 == POP:
        stack = stack[1:]


def test_actions_are_soft(assert_close):
  module, params, values = programmed('stack_rnn', 3)
  cell = params['cell']
  cell['actions']['kernel'][:] = 0
  cell['actions']['bias'][:] = np.log([0.5, 0.2, 0.3])
  y = logits(module, params, jnp.array([[0, 3, 6]]))[0]
  a, b, _, _ = values
  # Half of it pushed; then half of b pushed, and .3 of what there was left.
  assert_close(y, np.stack([0 * a, 0.5 * a, 0.5 * b + 0.15 * a]), 1e-6)


@pytest.mark.parametrize(
  'memory_size,lengths', [(None, [3, 30]), (6, 4), (6, None)]
)
def test_tape_runs_programs(memory_size, lengths):
  """Writes, then moves on a ring: by one, or by the length of the input."""
  module, params, values = programmed('tape_rnn', 5, memory_size)
  x = tokens(40, vocab_size=20)
  if lengths is None:
    got, jumps = logits(module, params, x), [40, 40]
  else:
    got = logits(module, params, x, jnp.array(lengths))
    jumps = np.broadcast_to(lengths, 2)
  for row, y, n in zip(np.asarray(x), got, jumps, strict=True):
    tape = np.zeros((memory_size or 40, C))
    head = 0
    for v, read in zip(row, y, strict=True):
      np.testing.assert_array_equal(read, tape[head])
      tape[head] = values[v // 5]
      # The tape goes left: the head meets what was to its right.
      head = (head + [0, 1, -1, n, -n][v % 5]) % len(tape)


def test_tape_jumps_back_to_its_start():
  """Three written, one after the other; a jump right; read in order."""
  module, params, values = programmed('tape_rnn', 5, 9)
  left, jump_right = 1, 4
  program = [left, left + 5, left + 10, jump_right, left, left, left]
  y = logits(module, params, jnp.array([program]), 3)[0]
  np.testing.assert_array_equal(y[4:], values[:3])


@pytest.mark.parametrize('name', NAMES[2:])
def test_memories_act_apart(name):
  """Two memories do what each would do alone."""
  module = create(name, num_memories=2, cell_width=4)
  cell = jax.tree.map(jnp.shape, nn.unbox(boxed_shapes(module)))['cell']
  assert cell['rnn']['i']['kernel'] == (V + 8, 16)
  assert cell['values']['kernel'][1:] == (2, 4)
  assert logits(module, params_of(module), tokens()).shape == (B, L, OUT)
  cell = recurrent.MEMORY_CELLS[name]
  keys = jax.random.split(jax.random.key(0), 3)
  memory, actions, values = (
    jax.random.uniform(key, (B, 2, *shape))
    for key, shape in zip(
      keys, [(6, 4), (cell.num_actions,), (4,)], strict=True
    )
  )
  jumps = jnp.array([2, 3])
  both = cell.act(memory, actions, values, jumps)
  for i in range(2):
    one = slice(i, i + 1)
    alone = cell.act(memory[:, one], actions[:, one], values[:, one], jumps)
    np.testing.assert_array_equal(both[:, one], alone)


@pytest.mark.parametrize(
  'name',
  [
    # `generated_test.py` has it learn too.
    pytest.param(n, marks=pytest.mark.slow if n != 'lstm' else ())
    for n in NAMES
  ],
)
def test_learns(name):
  """Which token came two before; all gradients are finite, none is zero."""
  module = create(name, 32, vocab_size=4, output_size=4)
  x = tokens(8, 4, 4)
  targets = jnp.roll(x, 2, axis=1).at[:, :2].set(0)
  optimizer = optax.adam(1e-2)

  def loss_fn(params):
    y = module.apply({'params': params}, x, jnp.array([2, 3, 4, 5]))
    return optax.softmax_cross_entropy_with_integer_labels(y, targets).mean()

  def step(state, _):
    params, moments = state
    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, moments = optimizer.update(grads, moments)
    params = optax.apply_updates(params, updates)
    return (params, moments), (loss, jax.tree.map(optax.tree.norm, grads))

  params = nn.unbox(jax.jit(module.init)(jax.random.key(1), x))['params']
  train = jax.jit(
    lambda p: jax.lax.scan(step, (p, optimizer.init(p)), length=100)
  )
  _, (losses, norms) = train(params)
  for norm in jax.tree.leaves(norms):
    assert np.isfinite(norm).all() and norm[0] > 0
  assert losses[0] > 1 and losses[-1] < 0.1


@pytest.mark.parametrize('name', NAMES)
def test_program_does_not_grow_with_length(name):
  module = create(name, memory_size=4)
  params = params_of(module)

  def lines(length):
    x = jnp.zeros((B, length), int)
    return len(jax.jit(module.apply).lower({'params': params}, x).as_text())

  assert lines(100) < 1.1 * lines(10)


@pytest.mark.parametrize('name', NAMES[2:])
def test_logical_axes(name):
  """All parameters have axes, except those of the cell of flax."""
  boxed = boxed_shapes(create(name))
  del boxed['cell']['rnn']
  for leaf in jax.tree.leaves(
    boxed, is_leaf=lambda x: isinstance(x, nn.meta.AxisMetadata)
  ):
    assert isinstance(leaf, nn.LogicallyPartitioned)
    assert len(leaf.names) == leaf.unbox().ndim


def test_refusals():
  with pytest.raises(errors.ConfigError) as caught:
    create('stack-rnn')
  assert str(caught.value) == (
    "unknown recurrent model 'stack-rnn'; did you mean 'stack_rnn'? "
    'valid: lstm, rnn, stack_rnn, tape_rnn'
  )
  with pytest.raises(errors.ConfigError, match='requires at least 1 cell'):
    create('tape_rnn', memory_size=0)
