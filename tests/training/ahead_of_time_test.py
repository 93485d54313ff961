"""Tests `pods.py`, `hlo.py` and `ahead_of_time.py`, without libtpu."""

import dataclasses
import importlib.util

import jax
import jax.numpy as jnp
import pytest

from configs import fire_c4, scrolls, stdlib
from lengen_jax import errors
from lengen_jax.analysis import compile_report
from lengen_jax.training import ahead_of_time, hlo, pods
from lengen_jax.training import run as run_lib
from tests import helpers

# As libtpu 0.0.51 writes it, shortened.
PROGRAM = (helpers.GOLDEN / 'hlo' / 'tpu_v4.txt').read_text()
QUERY = 'jvp(DecoderLM)/stack/query/ble,ehd->blhd/dot_general'


@pytest.mark.parametrize(
  ('name', 'slices', 'text'),
  [
    ('v4-256', 1, '128 chips, 256 cores, 32 hosts, topology 4x4x8, 32 GiB'),
    ('v4-2', 1, '1 chip, 2 cores, 1 host, topology 1x1x1, 32 GiB'),
    ('v3-32', 1, '16 chips, 32 cores, 4 hosts, topology 4x4, 32 GiB'),
    ('v5litepod-8', 1, '8 chips, 8 cores, 1 host, topology 2x4, 16 GiB'),
    ('v5e-256', 2, '512 chips, 512 cores, 128 hosts, topology 16x16 each'),
    ('v5p-128', 1, '64 chips, 128 cores, 16 hosts, topology 4x4x4, 96 GiB'),
  ],
)
def test_what_a_name_means(name, slices, text):
  assert text in str(pods.get(name, slices))


def test_every_pod_is_made_of_its_chips():
  for name in pods.names():
    pod = pods.get(name)
    edges = [int(n) for n in pod.topology.split('x')]
    assert pod.chips == jnp.prod(jnp.array(edges))
    number = int(name.rpartition('-')[2])
    per_chip = 1 if pod.generation in ('v5e', 'v6e') else 2
    assert number == pod.chips * per_chip
    assert pod.cores == number
    one_each = pod.generation in ('v2', 'v3')
    assert pod.devices == (pod.cores if one_each else pod.chips)
    assert pod.device_gib <= pod.chip_gib


def test_unknown_pod():
  with pytest.raises(errors.ConfigError, match="mean 'v4-256'.* v5e-256"):
    pods.get('v4-255')
  with pytest.raises(errors.ConfigError, match='at least 1'):
    pods.get('v4-256', slices=0)


def test_larger():
  assert pods.larger(pods.get('v4-256'), 2.1) == 'v4-1024'
  assert pods.larger(pods.get('v5e-256'), 2) is None


def test_collectives():
  assert hlo.collectives(PROGRAM) == {
    'all-gather': 1,
    'all-reduce': 1,
    'reduce-scatter': 2,
    'all-to-all': 0,
    'collective-permute': 1,
  }


def test_bytes_sent():
  """Those of a loop of 12 iterations count 12 times."""
  assert hlo.sent(PROGRAM) == {
    'all-gather': 12 * 768 * 12 * 64 * 2 // 2,
    'all-reduce': 2 * (768 + 1) * 4 * 3 // 4,
    'reduce-scatter': 12 * 768 * (1536 + 64) * 2 // 2,
    'all-to-all': 0,
    'collective-permute': 2048 * 4,
  }


def test_largest():
  """None that is fused, an argument, in fast memory, or only started."""
  first, second = hlo.largest(PROGRAM, 2)
  assert first[1:] == ('bf16[768,12,64]', QUERY)
  assert second == (384 * 1536 * 2, 'bf16[384,1536]', 'fusion.9')
  names = [shape for _, shape, _ in hlo.largest(PROGRAM, 10)]
  assert names[2:5] == ['bf16[384,64]', 'f32[8,128]', 'f32[768]']


def test_padding_of_tiles():
  size = dict((shape, n) for n, shape, _ in hlo.largest(PROGRAM, 10))
  # In the layout {1,2,0}, 12 heads are the minor dimension, padded to 128.
  assert size['bf16[768,12,64]'] == 768 * 128 * 64 * 2
  assert size['f32[]'] == 128 * 4


def test_names_are_readable():
  names = {shape: what for _, shape, what in hlo.largest(PROGRAM, 10)}
  assert names['bf16[768,12,64]'] == QUERY
  assert hlo.readable('jit(step)/while/body') == 'jit(step)/while/body'


@pytest.mark.parametrize(
  ('text', 'gib'),
  [
    (
      'the total memory required for HLO temporaries (264.87G) exceeds '
      'available HBM (30.75G). HLO module: jit_train_step.',
      264.87,
    ),
    (
      'Ran out of memory in memory space hbm. Used 512.00M of 30.75G hbm.',
      0.5,
    ),
  ],
)
def test_what_a_refused_program_needs(text, gib):
  assert ahead_of_time.needed_gib(text) == gib


def test_libtpu_is_asked_for(monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(errors.ConfigError, match=r'lengen_jax\[aot\]'):
    ahead_of_time.devices(pods.get('v4-8'))


@pytest.fixture
def make_run():
  def make(config, devices=None, **changes):
    config.update_from_flattened_dict({'train.init_from': '', **changes})
    return run_lib.Run(config, devices)

  return make


def refused(needs, name=ahead_of_time.TRAINING):
  return ahead_of_time.Program(name, 1.0, needs, refused='RESOURCE_EXHAUSTED')


def test_advice(make_run):
  pod = pods.get('v4-8')
  run = make_run(fire_c4.get_config('large'), **{'model.remat': 'none'})
  rows = run.data.batch_size // run.layout.row_parts
  state = run.state_bytes / ahead_of_time.GIB
  twice = state + 2 * (pod.device_gib - state)
  text = '\n'.join(compile_report.advice(run, pod, refused(twice)))
  assert "model.remat='full'" in text
  assert f'data.batch_size={rows // 2 * run.layout.row_parts} (now 256)' in text
  assert '--pod=v4-16' in text
  assert 'mesh' not in text and 'blockwise' not in text


def test_advice_on_pairs_and_a_large_state(make_run):
  pod = dataclasses.replace(pods.get('v4-8'), device_gib=2.0)
  run = make_run(
    fire_c4.get_config('base'),
    **{
      'model.implementation': 'reference',
      'model.dtype': 'float32',
      'data.batch_size': 2,
    },
  )
  text = '\n'.join(compile_report.advice(run, pod, refused(8.0)))
  assert "model.implementation='blockwise'" in text
  assert "model.dtype='bfloat16'" in text
  assert 'mesh.fsdp=2 (now 1)' in text
  assert 'mesh.sequence=2 (now 1)' in text
  assert 'remat' not in text and 'batch_size' not in text


def test_advice_on_evaluation(make_run):
  run = make_run(fire_c4.get_config('base'))
  program = refused(40.0, 'evaluation at 8192')
  lines = compile_report.advice(run, pods.get('v4-8'), program)
  assert lines == [
    'mesh.sequence=2 (now 1): splits the tokens of a row',
  ]


def test_advice_for_one_device(make_run):
  """It has no other device to hold a part of a row."""
  run = make_run(fire_c4.get_config('base'), devices=jax.devices()[:1])
  program = refused(40.0, 'evaluation at 8192')
  assert compile_report.advice(run, pods.get('v5e-1'), program) == [
    '--pod=v5e-4 with mesh.sequence=2 (now 1): splits the tokens of a row'
  ]


def test_programs_of_a_run(make_run):
  """On the devices at hand: what is compiled needs no data."""
  run = make_run(stdlib.get_config('tiny'), **{'eval.lengths': (16, 64)})
  step, test = ahead_of_time.training_step(run), ahead_of_time.evaluation(run)
  assert (step.name, test.name) == ('training step', 'evaluation at 64')
  for program in (step, test):
    assert program.needs > program.arguments > 0
    assert program.largest[0][0] >= program.largest[-1][0] > 0
  assert run.state_bytes / ahead_of_time.GIB < step.arguments
  assert step.collectives['all-reduce'] >= 1
  text = '\n'.join(compile_report.describe(step, pods.get('v4-8')))
  assert 'training step: fits' in text and 'all-reduce' in text


def test_answers_to_prompts_are_no_evaluation_by_loss(make_run):
  run = make_run(scrolls.get_config('qasper,base,tiny'))
  assert ahead_of_time.evaluation(run) is None


@pytest.mark.parametrize(
  ('config', 'changes', 'packed'),
  [
    (fire_c4, {}, False),
    (fire_c4, {'positions': 'randomized(max_position=99)'}, True),
    (
      fire_c4,
      {'positions': 'randomized(max_position=99)', 'data.mode': 'doc_window'},
      False,
    ),
    (scrolls, {'positions': 'randomized(max_position=99)'}, True),
  ],
)
def test_padding_is_that_of_the_data(
  make_run, monkeypatch, config, changes, packed
):
  class StopError(Exception):
    pass

  def jitted_step(self, *, packed):
    raise StopError(packed)

  run = make_run(config.get_config('tiny'), **changes)
  monkeypatch.setattr(run_lib.Run, 'jitted_step', jitted_step)
  with pytest.raises(StopError, match=str(packed)):
    ahead_of_time.training_step(run)


def test_refused_program_names_arrays(make_run):
  """Those of loops and products, which are there before any compiling."""
  run = make_run(
    fire_c4.get_config('base'),
    **{'model.remat': 'none', 'model.num_layers': 3},
  )

  class Traced:
    """A program that the compiler refuses."""

    def __init__(self, jaxpr):
      self.jaxpr = jaxpr

    def lower(self):
      return self

    def compile(self):
      raise jax.errors.JaxRuntimeError(
        'RESOURCE_EXHAUSTED: HLO temporaries (99.50G) exceeds (30.75G).\nmore'
      )

  with run.layout.scope():
    traced = run.jitted_step(packed=False).trace(
      run.abstract_state, run.abstract_batch()
    )
  program = ahead_of_time.compiled('step', Traced(traced.jaxpr), run.layout)
  assert program.needs == 99.5
  assert 'more' not in program.refused
  size, shape, what = program.largest[0]
  assert shape == 'bfloat16[3,256,2048,3072]' and size == 9.0
  assert what.endswith('stack/scan')
  # Within the loop over layers.
  assert (
    3.0,
    'bfloat16[256,2048,3072]',
    'linear/dot_general',
  ) in program.largest
  text = '\n'.join(compile_report.describe(program, pods.get('v4-8')))
  assert 'does not fit, needs 99.50 of 30.75 GiB' in text
