"""Tests `lengen_jax/training/sharding.py` and what models do on a mesh.

`sharding_meshes.py` runs in a separate process with sixteen CPU devices.
"""

import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys
import types

import jax
import numpy as np
import pytest

from configs import stdlib as stdlib_config
from lengen_jax import errors, models, partitioning, testing
from lengen_jax.models import presets, stacking
from lengen_jax.positions import contextual
from lengen_jax.training import config as training_config
from lengen_jax.training import run as run_lib
from lengen_jax.training import sharding
from tests import helpers

MeshConfig = training_config.MeshConfig


@pytest.fixture(scope='module')
def on_meshes():
  """What `sharding_meshes.py` prints."""
  here = pathlib.Path(__file__)
  done = subprocess.run(
    [sys.executable, here.with_name('sharding_meshes.py')],
    env={**os.environ, 'PYTHONPATH': str(here.parents[2])},
    capture_output=True,
    text=True,
    timeout=1800,
  )
  assert done.returncode == 0, done.stderr[-3000:]
  # The compiler says so where it moves whole arrays for want of a better way.
  assert 'Involuntary full rematerialization' not in done.stderr
  return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_losses_are_those_of_one_device(on_meshes):
  models_losses = on_meshes['losses']
  for case, (alone, split) in enumerate(models_losses):
    np.testing.assert_allclose(split, alone, rtol=3e-6)
    # The control: another model, other losses.
    assert not np.allclose(models_losses[case - 1][0], alone, rtol=1e-5)


@pytest.mark.slow
def test_evaluation_on_a_mesh(on_meshes):
  for kind in ('curves', 'written'):
    alone, *others = on_meshes[kind]
    assert len(others) == 2
    for one in others:
      np.testing.assert_allclose(one, alone, rtol=2e-6)


@pytest.mark.slow
def test_pairs_are_split(on_meshes):
  """With the sequence over eight devices, each has pairs of its own queries.

  The keys are then the largest array.
  """
  alone, split = on_meshes['pairs']
  assert split <= alone / 4


def test_parameters_are_split():
  """Each of two devices makes its half of the state, and has no more."""
  config = stdlib_config.get_config('tiny')
  config.model.encoding = 'rope'
  config.mesh.fsdp = 2
  state = run_lib.Run(config).init_state()
  for leaf in jax.tree.leaves((state.params, state.opt_state)):
    parts = 1 if leaf.ndim == 0 else 2
    assert leaf.addressable_shards[0].data.size == leaf.size / parts


def layout(devices=2, batch=4, **sizes):
  return sharding.Layout.create(
    MeshConfig(**sizes), batch, jax.devices()[:devices]
  )


@pytest.mark.some(2)
@pytest.mark.parametrize(
  'scan, norm, gate', [(False, 'head', 'element'), (True, 'all', 'head')]
)
def test_every_parameter_has_axes_with_a_rule(scan, norm, gate):
  encodings = tuple(testing.encoding_specs())
  config = models.ModelConfig(
    **{**presets.get('tiny'), 'head_dim': 8, 'num_layers': len(encodings)},
    encoding=encodings,
    attention_scale='ssmax',
    sink_logits=True,
    query_key_norm=norm,
    output_gate=gate,
    lora_rank=2,
    scan_layers=scan,
  )

  def check(names, leaf):
    assert len(names) == leaf.ndim
    partitioning.spec(*names, rules=sharding.RULES)

  schemes = tuple(contextual.CONTEXTUAL)
  computed = dataclasses.replace(
    config,
    encoding='rope',
    contextual_positions=schemes,
    num_layers=len(schemes),
  )
  for each in (config, computed):
    params = jax.eval_shape(lambda c=each: stacking.init(c, jax.random.key(0)))
    shapes, axes = stacking.abstract(each)
    assert shapes == params
    jax.tree.map(check, axes, params, is_leaf=lambda x: isinstance(x, tuple))


@functools.cache
def contextual_gradients(implementation, **sizes):
  """Loss and gradients of a model with contextual positions on devices."""
  config = models.ModelConfig(
    **presets.get('tiny')
    | {'num_heads': 4, 'head_dim': 8, 'key_heads': 2, 'num_layers': 2},
    encoding='linear, rope',
    contextual_positions='forget, repo',
    sink_logits=True,
    implementation=implementation,
  )
  params = helpers.params_of(config)
  inputs = jax.random.randint(jax.random.key(1), (2, 16), 0, 256)

  def loss(params):
    logits = models.DecoderLM(config).apply({'params': params}, inputs)
    return -jax.nn.log_softmax(logits)[..., 7].mean()

  devices = max(sizes.values(), default=1)
  with layout(devices, batch=2, **sizes).scope():
    return jax.jit(jax.value_and_grad(loss))(params)


@pytest.mark.slow
@pytest.mark.parametrize(
  'implementation, axis',
  [
    ('blockwise', 'tensor'),
    ('blockwise', 'sequence'),
    ('reference', 'sequence'),
    ('reference', 'tensor'),
  ],
)
def test_contextual_positions_on_two_devices(
  implementation, axis, assert_close
):
  want = contextual_gradients('reference')
  got = contextual_gradients(implementation, **{axis: 2})
  assert_close(got[0], want[0], 1e-6)
  largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(want[1]))
  for one, other in zip(*map(jax.tree.leaves, (got, want)), strict=True):
    assert np.abs(np.asarray(one) - other).max() <= 1e-5 * largest


def test_an_axis_without_a_rule():
  with pytest.raises(errors.ConfigError, match="unknown logical axis 'head'"):
    layout().of('batch', 'head')


def test_a_rule_for_an_axis_the_mesh_lacks_is_none():
  """All four axes are there, whatever their sizes."""
  assert layout().mesh.axis_names == sharding.AXES
  axes = jax.tree.leaves([over for _, over in sharding.RULES])
  assert {*axes} == {*sharding.AXES}


@pytest.mark.parametrize(
  'sizes, batch, message',
  [
    (dict(data=2), 3, r'data.batch_size=3 .* 2 parts .* mesh.data=2'),
    (dict(fsdp=2), 5, r'data.batch_size=5 .* mesh.fsdp=2'),
    (dict(data=4), 4, r'mesh.data=4.* requires 4 devices; there are 2'),
    (dict(tensor=3), 4, r'mesh.tensor=3.*, 3, does not divide the 2 devices'),
  ],
)
def test_meshes_that_cannot_be(sizes, batch, message):
  with pytest.raises(errors.ConfigError, match=message):
    layout(batch=batch, **sizes)


def test_a_size_of_nothing():
  with pytest.raises(errors.ConfigError, match=r'mesh.tensor must .* got 0'):
    MeshConfig(tensor=0)


def test_devices_of_one_process_that_do_not_divide_the_batch_are_left_out():
  assert sharding.Layout.create(MeshConfig(), 3).size == 1
  assert sharding.Layout.create(MeshConfig(), 4).size == 2


@pytest.mark.parametrize(
  'changes, message',
  [
    (
      {'mesh.tensor': 2, 'model.num_heads': 3},
      r"mesh.tensor=2 does not divide axis 'heads' of layer_0.*model.num_heads",
    ),
    (
      {'mesh.tensor': 2, 'model.vocab_size': 257},
      r"axis 'vocab' of embed/table .*model.vocab_size",
    ),
    (
      {'mesh.fsdp': 2, 'model.width': 33},
      r"mesh.fsdp=2 does not divide axis 'embed' .*model.width",
    ),
    (
      {'mesh.sequence': 2, 'data.train_length': 33},
      r'mesh.sequence=2 does not divide data.train_length=33',
    ),
    (
      {'mesh.sequence': 2, 'eval.lengths': (32, 65)},
      r'mesh.sequence=2 does not divide eval.lengths=65',
    ),
  ],
)
def test_meshes_that_do_not_divide_a_model(tiny_config, changes, message):
  with tiny_config.unlocked():
    tiny_config.update_from_flattened_dict(changes)
  with pytest.raises(errors.ConfigError, match=message):
    run_lib.Run(tiny_config)


class Device:
  """A device that only has a place and a process."""

  def __init__(self, number, process):
    self.id, self.process_index = number, process


def fake_layout(sizes, per_process, monkeypatch, process):
  """A layout of devices of several processes, seen from one of them."""
  devices = np.array(
    [Device(n, n // per_process) for n in range(int(np.prod(sizes)))]
  ).reshape(sizes)

  class Mesh:
    pass

  mesh = Mesh()
  mesh.devices = devices
  mesh.shape = dict(zip(sharding.AXES, sizes, strict=True))
  monkeypatch.setattr(jax, 'process_index', lambda: process)
  return sharding.Layout(mesh)


@pytest.mark.parametrize(
  'sizes, per_process, hosts',
  [
    ((8, 1, 1, 1), 2, [(0, 4), (1, 4), (2, 4), (3, 4)]),
    ((2, 2, 2, 1), 4, [(0, 2), (1, 2)]),
    # Two processes have a part of the tokens of the same rows each.
    ((2, 1, 1, 4), 2, [(0, 2), (0, 2), (1, 2), (1, 2)]),
    ((1, 1, 2, 4), 4, [(0, 1), (0, 1)]),
  ],
)
def test_processes_that_share_rows_read_the_same(
  monkeypatch, sizes, per_process, hosts
):
  for process, host in enumerate(hosts):
    assert fake_layout(sizes, per_process, monkeypatch, process).host == host


def test_processes_that_share_some_rows(monkeypatch):
  with pytest.raises(errors.ConfigError, match='share only some of their rows'):
    _ = fake_layout((4, 1, 1, 3), 4, monkeypatch, 0).host


def test_rows_are_placed_where_they_belong():
  rows = np.arange(24).reshape(4, 6)
  for sizes in (dict(data=2), dict(fsdp=2), dict(sequence=2)):
    placed = layout(**sizes).place({'inputs': rows})['inputs']
    np.testing.assert_array_equal(placed, rows)
    shards = {shard.data.shape for shard in placed.addressable_shards}
    assert shards == {(4, 3) if 'sequence' in sizes else (2, 6)}


def test_nothing_is_constrained_without_a_mesh():
  x = np.ones((2, 2))
  assert partitioning.constrain(x, 'no such axis', None) is x
  assert partitioning.shards('batch') == 1


def test_an_unknown_axis_of_an_activation():
  with layout().scope(), pytest.raises(errors.ConfigError, match="'bach'"):
    partitioning.constrain(np.ones((2, 2)), 'bach', None)


@pytest.mark.parametrize('processes', [None, 'two'])
def test_a_coordinator_without_numbers(monkeypatch, processes):
  monkeypatch.setenv('JAX_COORDINATOR_ADDRESS', 'localhost:1')
  monkeypatch.setenv('JAX_PROCESS_ID', '0')
  if processes:
    monkeypatch.setenv('JAX_NUM_PROCESSES', processes)
  with pytest.raises(errors.ConfigError, match='JAX_NUM_PROCESSES and JAX_PRO'):
    sharding.start()


@pytest.mark.parametrize('system', ['linux', 'other'])
def test_a_device_per_core(monkeypatch, system):
  if system == 'linux':
    monkeypatch.setattr(
      os, 'sched_getaffinity', lambda _: {1, 5, 6}, raising=False
    )
  else:
    monkeypatch.delattr(os, 'sched_getaffinity', raising=False)
    monkeypatch.setattr(os, 'cpu_count', lambda: 3)
  monkeypatch.delenv('JAX_NUM_CPU_DEVICES')
  updates = {}
  config = types.SimpleNamespace(update=updates.__setitem__)
  monkeypatch.setattr(jax, 'config', config)
  sharding.start()
  assert updates == {'jax_num_cpu_devices': 3}


def test_a_mesh_of_several_slices_spans_them_by_rows():
  """Devices of a slice are neighbours along every other axis."""

  class Device:
    platform, device_kind, process_index = 'cpu', 'cpu', 0

    def __init__(self, number):
      self.id, self.slice_index = number, number // 4

  devices = [Device(n) for n in range(8)]
  mesh = sharding.Layout.create(MeshConfig(fsdp=2), 8, devices).mesh
  slices = np.vectorize(lambda device: device.slice_index)(mesh.devices)
  np.testing.assert_array_equal(slices[:2], 0)
  np.testing.assert_array_equal(slices[2:], 1)
  with pytest.raises(errors.ConfigError, match='mesh.data=1 .* 2 slices'):
    sharding.Layout.create(MeshConfig(fsdp=8), 8, devices)


def test_rows_of_fsdp_leave_devices_out(monkeypatch):
  devices = 2 * jax.devices()[:2]
  monkeypatch.setattr(jax, 'devices', lambda: devices)
  layout = sharding.Layout.create(training_config.MeshConfig(fsdp=2), 2)
  assert layout.mesh.devices.shape == (1, 2, 1, 1)
