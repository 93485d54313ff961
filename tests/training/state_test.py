"""Tests `lengen_jax/training/state.py`."""

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lengen_jax import positions
from lengen_jax.data import windows
from lengen_jax.models import objective
from lengen_jax.training import groups
from lengen_jax.training import run as run_lib
from lengen_jax.training import state as state_lib
from tests import helpers


def batch_of(rows, length=16):
  tokens = np.random.default_rng(9).integers(0, 256, (rows, length + 1))
  return windows.lm_batch(tokens.astype(np.int32))


def stepper(run, *, packed=False):
  return jax.jit(run.step_fn(packed=packed))


@pytest.mark.parametrize(
  'param_dtype, lora_rank, scan_layers',
  [('float32', None, False), ('bfloat16', None, True), ('bfloat16', 2, False)],
)
def test_place(tiny_config, monkeypatch, param_dtype, lora_rank, scan_layers):
  """It has the values of `init`, and transfers the bytes of the state."""
  tiny_config.train.param_dtype = param_dtype
  tiny_config.model.update(lora_rank=lora_rank, scan_layers=scan_layers)
  run = run_lib.Run(tiny_config)
  params, put, sent = helpers.initial(run.model), jax.device_put, []

  def counted(leaf, sharding):
    sent.append(leaf.nbytes)
    return put(leaf, sharding)

  want = state_lib.init(params, run.tx, param_dtype)
  with monkeypatch.context() as patch:
    patch.setattr(jax, 'device_put', counted)
    state = state_lib.place(params, run.abstract_state, run.tx)
  helpers.assert_same(state, want)
  for leaf, like in zip(
    jax.tree.leaves(state), jax.tree.leaves(run.abstract_state), strict=True
  ):
    assert (leaf.dtype, leaf.sharding) == (like.dtype, like.sharding)
  held = jax.tree.leaves(state.replace(opt_state=None))
  assert sum(sent) == sum(leaf.nbytes for leaf in held)


def test_weights_choose_what_is_learned(tiny_config):
  run = run_lib.Run(tiny_config)
  state, batch = run.init_state(), batch_of(4)
  step = stepper(run)
  half = batch | {'weights': batch['weights'] * (np.arange(4) < 2)[:, None]}
  # Means over these rows twice are those over the rows.
  twice = jax.tree.map(lambda x: np.concatenate([x[:2], x[:2]]), batch)
  got, wanted = step(state, half)[1], step(state, twice)[1]
  np.testing.assert_allclose(got['loss'], wanted['loss'], rtol=1e-6)
  np.testing.assert_allclose(got['grad_norm'], wanted['grad_norm'], rtol=1e-5)


def test_packed_rows_equal_rows_of_their_own(tiny_config):
  tiny_config.model.encoding = 'fire'
  run = run_lib.Run(tiny_config)
  state, batch = run.init_state(), batch_of(4, length=8)
  packed = {key: value.reshape(2, 16) for key, value in batch.items()}
  packed['segment_ids'] = packed['segment_ids'] + (np.arange(16) >= 8)
  got = stepper(run, packed=True)(state, packed)[1]
  wanted = stepper(run)(state, batch)[1]
  np.testing.assert_allclose(got['loss'], wanted['loss'], rtol=1e-6)
  np.testing.assert_allclose(got['grad_norm'], wanted['grad_norm'], rtol=1e-5)


def test_parameters_stay_in_their_domain(tiny_config):
  tiny_config.model.encoding = 'kerple_log'
  tiny_config.optimizer.learning_rate = 100.0
  run = run_lib.Run(tiny_config)
  state = run.init_state()
  step, batch = stepper(run), batch_of(2)
  for _ in range(4):
    state, _ = step(state, batch)
  kerple = state.params['layer_0']['attention']['encoding']
  assert min(kerple['p'].min(), kerple['a'].min()) >= np.float32(0.01)


def test_randomness_is_a_function_of_seed_and_step(tiny_config):
  tiny_config.positions = 'randomized(max_position=512)'
  tiny_config.model.encoding = 'alibi'
  run = run_lib.Run(tiny_config)
  state, batch = run.init_state(), batch_of(2)

  def loss(step, state):
    return float(step(state, batch)[1]['loss'])

  step = stepper(run)
  first = loss(step, state)
  assert first == loss(step, state)
  assert first != loss(step, state.replace(step=state.step + 1))
  tiny_config.seed = 1
  assert first != loss(stepper(run_lib.Run(tiny_config)), state)


@pytest.mark.parametrize('train', [True, False])
def test_rows_alike_share_one_bias(tiny_config, train):
  """Unpacked standard positions must not cost a bias per row."""
  tiny_config.model.encoding = 'fire'
  run = run_lib.Run(tiny_config)
  batch = batch_of(4, length=64)
  text = (
    jax.jit(
      lambda params: objective.token_losses(
        run.model,
        positions.create('standard'),
        params,
        batch,
        rng=jax.random.key(0),
        train=train,
        packed=False,
      )
    )
    .lower(run.abstract_state.params)
    .as_text()
  )
  assert f'tensor<{64 * 64}x32xf32>' in text
  assert f'tensor<{4 * 64 * 64}x32xf32>' not in text


def flat(tree):
  return traverse_util.flatten_dict(tree, sep='/')


@pytest.mark.slow
def test_lora_trains_its_kernels_and_the_encoding(tiny_config):
  tiny_config.model.update(lora_rank=2, encoding='fire')
  run = run_lib.Run(tiny_config)
  state = run.init_state()
  added = flat(groups.trained(state.params))
  moments = [x for x in jax.tree.leaves(state.opt_state) if x.ndim]
  assert len(moments) == 2 * len([x for x in added.values() if x.ndim])
  step = stepper(run)
  # LoRA kernels on the inputs have a gradient from the second step on.
  after, _ = step(step(state, batch_of(4))[0], batch_of(4))
  before = flat(state.params)
  for path, leaf in flat(after.params).items():
    assert (leaf == before[path]).all() == (path not in added), path


@pytest.mark.some(2)
@pytest.mark.parametrize('scan_layers', [False, True])
def test_frozen_kernels_have_no_gradients(tiny_config, scan_layers):
  """A frozen kernel needs two of three products, and less memory."""
  found = []
  for rank in (None, 1):
    tiny_config.model.update(
      lora_rank=rank, encoding='nope', mlp_width=512, scan_layers=scan_layers
    )
    run = run_lib.Run(tiny_config)
    with run.layout.scope():
      lowered = run.jitted_step(packed=False).lower(
        run.abstract_state, run.abstract_batch()
      )
    found.append(lowered.compile())
  whole, lora = (each.cost_analysis()['flops'] for each in found)
  assert lora < 0.8 * whole
  whole, lora = (each.memory_analysis() for each in found)
  assert lora.temp_size_in_bytes < whole.temp_size_in_bytes
  assert lora.argument_size_in_bytes < 0.5 * whole.argument_size_in_bytes


def test_rounded_parameters_follow_their_float32_values(tiny_config):
  tiny_config.optimizer.learning_rate = 1e-5
  want = run_lib.Run(tiny_config)
  tiny_config.train.param_dtype = 'bfloat16'
  run = run_lib.Run(tiny_config)
  state, exact, batch = run.init_state(), want.init_state(), batch_of(4)
  moments = [x for x in jax.tree.leaves(state.opt_state) if x.ndim]
  assert {x.dtype for x in moments} == {jnp.dtype('float32')}
  first, losses = state, []
  step, exact_step = stepper(run), stepper(want)
  for _ in range(3):
    state, metrics = step(state, batch)
    exact, exact_metrics = exact_step(exact, batch)
    losses.append((metrics['loss'], exact_metrics['loss']))
  np.testing.assert_allclose(*np.transpose(losses), rtol=1e-2)
  master, params, before = map(flat, (state.master, state.params, first.master))
  assert params['embed/table'].dtype == jnp.bfloat16
  assert params['final_norm/scale'].dtype == jnp.float32
  for path, leaf in master.items():
    assert leaf.dtype == jnp.float32
    assert (params[path] == leaf.astype(jnp.bfloat16)).all()
    # A step is smaller than the last bit of most rounded entries.
    moved = (leaf != before[path]).mean()
    seen = (params[path] != flat(first.params)[path]).mean()
    assert moved > 0.9 > 0.5 > seen
    largest = np.abs(flat(exact.params)[path] - before[path]).max()
    assert np.abs(leaf - before[path]).max() == pytest.approx(largest, rel=0.1)


def test_a_skipped_step_keeps_the_float32_values(tiny_config):
  tiny_config.train.param_dtype = 'bfloat16'
  run = run_lib.Run(tiny_config)
  state = run.init_state()
  nan = dict(batch_of(2), weights=jnp.full((2, 16), jnp.nan))
  after, metrics = stepper(run)(state, nan)
  assert metrics['skipped'] == 1 and after.step == 1
  jax.tree.map(
    np.testing.assert_array_equal, after.replace(step=state.step), state
  )


def test_rounded_parameters_and_lora(tiny_config):
  """Frozen parameters have neither float32 values nor moments."""
  tiny_config.model.lora_rank = 2
  tiny_config.train.param_dtype = 'bfloat16'
  state = run_lib.Run(tiny_config).abstract_state
  assert not jax.tree.leaves(state.master)
  dtypes = {path: x.dtype for path, x in flat(state.params).items()}
  assert dtypes['layer_0/mlp/up/kernel'] == jnp.bfloat16
  assert dtypes['layer_0/attention/query/lora_in'] == jnp.float32


@pytest.mark.slow
@pytest.mark.parametrize('axis', ['fsdp', 'tensor'])
def test_lora_on_a_mesh(tiny_config, axis):
  """Losses are those of one device, and the base is split."""
  tiny_config.model.update(lora_rank=2, scan_layers=True)
  tiny_config.optimizer.learning_rate = 0.01
  losses = []
  for size in (1, 2):
    tiny_config.mesh.update(data=1, **{axis: size})
    run = run_lib.Run(tiny_config)
    state, step = run.init_state(), run.layout.jit(run.step_fn(packed=False))
    losses.append([])
    for _ in range(3):
      state, metrics = step(state, batch_of(4))
      losses[-1].append(metrics['loss'])
    query = state.params['layers']['block_0']['attention']['query']
    for name in ('kernel', 'lora_in' if axis == 'fsdp' else 'lora_out'):
      part = query[name].addressable_shards[0].data
      assert part.size == query[name].size / size
  np.testing.assert_allclose(*losses, rtol=1e-6)
  assert abs(losses[0][0] - losses[0][2]) > 1e-4


def test_a_batch_without_weights_has_no_loss():
  tx = optax.sgd(1.0)
  state = state_lib.init({'kernel': jnp.ones(2)}, tx)
  after, metrics = state_lib.train_step(
    state,
    {'weights': jnp.zeros((1, 2))},
    token_losses=lambda params, batch: params['kernel'][None],
    project=lambda params: params,
    tx=tx,
  )
  assert (metrics['loss'], metrics['skipped']) == (0, 0)
  np.testing.assert_array_equal(after.params['kernel'], [1, 1])
