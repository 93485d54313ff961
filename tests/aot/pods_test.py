"""Tests `lengen compile` and the figures on record, through libtpu.

Run by `make test-aot`; the whole matrix of figures is `make compile-matrix`.
"""

import json
import pathlib
import re

import jax
import jax.numpy as jnp
import pytest

from benchmarks import compile_matrix
from configs import fire_c4
from lengen_jax import cli, partitioning
from lengen_jax.attention import ring
from lengen_jax.training import ahead_of_time, pods, sharding, task_trainer
from lengen_jax.training import config as training_config
from lengen_jax.training import run as run_lib

pytestmark = pytest.mark.aot
CONFIG = f'--config={pathlib.Path(__file__).parents[2]}/configs/fire_c4.py'


def lengen_compile(capfd, *arguments):
  """(exit status, what was printed) of a command."""
  status = cli.main(['compile', *arguments])
  printed = capfd.readouterr()
  return status, printed.out + printed.err


def measured(cell):
  """A compiled cell whose memory and collectives are as on record."""
  recorded = json.loads(compile_matrix.PATH.read_text())['cells'][cell]
  found = compile_matrix.measure(cell)
  assert found['fits']
  assert not compile_matrix.differs(found, recorded)
  for kind, count in found['collectives'].items():
    assert count <= recorded['collectives'][kind], kind
  return found


def test_memory_is_as_on_record():
  assert measured('base, 256 chips')['collectives']['all-gather'] == 0


def test_gradients_of_split_parameters_are_reduced_and_scattered():
  """Those of 12 layers in bfloat16; that of the table in float32 is not."""
  found = measured('base, v5e, fsdp')
  layer = 4 * 768 * 768 + 2 * 768 * 3072
  whole = 12 * layer * 2 * 15 / 16 / 2**30
  assert found['sent_gib']['reduce-scatter'] == pytest.approx(whole, abs=2e-3)
  # Parts of them are reduced over the axis 'data', and the table over both.
  parts, table = whole / 16, 50304 * 768 * 4 / 2**30
  most = 2 * parts + 2 * table + 0.01
  assert found['sent_gib']['all-reduce'] < most


def test_keys_travel_around_a_ring(monkeypatch):
  """No device gathers the keys, unlike without a ring."""

  def sent():
    config = fire_c4.get_config('base,tiny')
    config.data.update(train_length=2**12, batch_size=1)
    config.mesh.sequence = 4
    config.model.update(
      implementation='blockwise', encoding='alibi', num_layers=1
    )
    devices = ahead_of_time.devices(pods.get('v4-8'))
    program = ahead_of_time.training_step(run_lib.Run(config, devices=devices))
    return program.sent

  around = sent()
  monkeypatch.setattr(ring, 'choose', lambda *_: None)
  gathered = sent()
  assert around['all-gather'] < 0.01 * gathered['all-gather']
  assert around['collective-permute'] > gathered['collective-permute']


def test_report_of_a_program_that_fits(capfd):
  status, text = lengen_compile(
    capfd,
    f'{CONFIG}:tiny',
    '--pod=v4-8',
    '--config.mesh.fsdp=2',
    '--config.mesh.tensor=2',
    # Wide enough for every axis to be split.
    '--config.model.vocab_size=260',
  )
  assert status == 0, text
  assert text.startswith('v4-8: 4 chips, 8 cores, 1 host, topology 2x2x1')
  assert 'mesh: data 1, fsdp 2, tensor 2, sequence 1' in text
  for name in ('training step', 'evaluation at 128'):
    assert re.search(rf'{name}: fits, 0\.\d\d of 30.75 GiB per device', text)
  assert re.search(r'collectives.*: \d+ all-gather, \d+ all-reduce', text)
  assert re.search(r'\d\.\d{3}  f32\[\d', text)
  assert 'slow' not in text


def test_arrays_that_can_only_be_gathered():
  layout = sharding.Layout.create(
    training_config.MeshConfig(fsdp=4, tensor=2),
    4,
    ahead_of_time.devices(pods.get('v4-16')),
  )
  array = jax.ShapeDtypeStruct(
    (1024, 1024), jnp.float32, sharding=layout.of('embed', None)
  )

  def found(*names):
    def move(x):
      x = partitioning.constrain(x, 'embed', None)
      return partitioning.constrain(jnp.sin(x), *names)

    with layout.scope():
      traced = jax.jit(move).trace(array)
    return ahead_of_time.compiled('move', traced, layout).gathered

  assert found('embed', None) == 0
  assert found(None, 'mlp') == 1


def test_report_of_a_program_that_does_not_fit(capfd):
  status, text = lengen_compile(
    capfd, f'{CONFIG}:large', '--pod=v4-8', '--config.model.remat=none'
  )
  assert status == 3
  needs = re.search(r'does not fit, needs (\d+)\.\d\d of 30.75 GiB', text)
  assert int(needs[1]) > 200
  assert 'bfloat16[24,256,2048,4096]' in text
  assert "model.remat='full' (now 'none')" in text
  assert 'data.batch_size=24 (now 256)' in text
  assert '--pod=v4-128' in text


def test_mistakes(capfd):
  status, text = lengen_compile(capfd, f'{CONFIG}:tiny', '--pod=v4-100')
  assert status == 2
  assert "unknown pod 'v4-100'" in text and 'v4-1024' in text
  status, text = lengen_compile(
    capfd, f'{CONFIG}:tiny', '--pod=v4-8', '--config.mesh.fsdp=3'
  )
  assert status == 2
  assert 'does not divide the 4 devices' in text


def test_slices(capfd):
  run = run_lib.Run(
    fire_c4.get_config('tiny'), devices=ahead_of_time.devices(pods.get('v4-8'))
  )
  assert run.layout.size == 4
  two = ahead_of_time.devices(pods.get('v4-8', slices=2))
  assert [device.slice_index for device in two] == [0] * 4 + [1] * 4


@pytest.mark.parametrize(
  'name, slices', [('v4-256', 1), ('v4-128', 2), ('v5e-64', 1), ('v6e-64', 1)]
)
@pytest.mark.parametrize(
  'sizes', [{'fsdp': 2}, {'tensor': 2}, {'fsdp': 2, 'sequence': 4}]
)
def test_axes_of_a_mesh_are_parts_of_those_of_the_network(name, slices, sizes):
  """Two of eight chips in a row, for example."""
  devices = ahead_of_time.devices(pods.get(name, slices=slices))
  layout = sharding.Layout.create(
    training_config.MeshConfig(**sizes), len(devices), devices
  )
  assert layout.size == len(devices)
  assert len({*layout.mesh.devices.flat}) == len(devices)
  assert sizes.items() <= layout.mesh.shape.items()


@pytest.mark.parametrize('name', ['v4-8', 'v5e-8'])
def test_sweeps_on_some_devices_of_a_host(name, monkeypatch):
  """Three chips are not a cuboid."""
  devices = ahead_of_time.devices(pods.get(name))
  monkeypatch.setattr(jax, 'devices', lambda: devices)
  for count in range(1, len(devices) + 1):
    mesh = task_trainer.TaskTrainer._mesh(None, count)
    assert [*mesh.devices] == devices[:count]
  layout = sharding.Layout.create(training_config.MeshConfig(fsdp=3), 3)
  assert layout.mesh.devices.size == 3


@pytest.mark.parametrize(
  'name', ['v2-8', 'v3-8', 'v4-8', 'v5e-4', 'v5p-8', 'v6e-4']
)
def test_table_has_what_libtpu_has(name):
  """Devices, hosts, and the memory that the compiler allows."""
  pod = pods.get(name)
  devices = ahead_of_time.devices(pod)
  assert len(devices) == pod.devices
  assert len({device.process_index for device in devices}) == pod.hosts
  layout = sharding.Layout.create(
    training_config.MeshConfig(data=1), 1, devices[:1]
  )
  entries = int((pod.device_gib + 0.02) * 2**30 / 4)
  array = jax.ShapeDtypeStruct((entries,), jnp.float32, sharding=layout.whole)
  with layout.scope():
    traced = jax.jit(jnp.sum).trace(array)
  program = ahead_of_time.compiled('sum', traced, layout)
  assert f'({pod.device_gib}G)' in program.refused
