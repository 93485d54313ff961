"""Memory of the papers' training steps on their TPUs, according to XLA.

Command: python -m benchmarks.compile_matrix [CELL ...] [--check | --small]
  (needs the extra `aot`; no TPU; about two minutes per cell)

A cell is a training step, compiled as by `lengen compile`: models of 125M and
350M parameters on 256 rows of 2048 tokens, the same models on SCROLLS with 128
rows of 8192, and single rows of up to 2**22 tokens on up to 16 chips. For a
cell that does not fit, another cell has the change that makes it fit. Results
are recorded or, with --check, compared with the recorded ones. With --small,
only a tiny model is compiled and nothing is recorded.
"""

import argparse
from collections.abc import Mapping
import importlib.metadata
import json
import sys
from typing import Any

import ml_collections

from benchmarks import alternate
from lengen_jax.training import ahead_of_time, pods
from lengen_jax.training import run as run_lib
from lengen_jax.training import runs as runs_lib

PATH = alternate.RESULTS / 'compile_matrix.json'
# Relative tolerance of --check; compiler versions differ by less.
TOLERANCE = 0.05

_ROW = {'data.batch_size': 1}
# {name: (module in configs, its argument, changes of the config, pod)}.
CELLS = {
  'base': ('fire_c4', 'base', {}, 'v4-256'),
  'base, 256 chips': ('fire_c4', 'base', {}, 'v4-512'),
  'base, v5e': ('fire_c4', 'base', {}, 'v5e-256'),
  'base, v5e, fsdp': ('fire_c4', 'base', {'mesh.fsdp': 16}, 'v5e-256'),
  'large': ('fire_c4', 'large', {}, 'v4-256'),
  'large, 256 chips': ('fire_c4', 'large', {}, 'v4-512'),
  'large, v5e': ('fire_c4', 'large', {}, 'v5e-256'),
  'scrolls, base': ('scrolls', 'qasper,base', {}, 'v4-256'),
  'scrolls, large': ('scrolls', 'qasper,large', {}, 'v4-256'),
  '32k': ('fire_c4', 'base', {**_ROW, 'data.train_length': 2**15}, 'v4-2'),
  '128k': ('fire_c4', 'base', {**_ROW, 'data.train_length': 2**17}, 'v4-2'),
  **{
    f'128k, {encoding} | forget': (
      'fire_c4',
      'base',
      {
        **_ROW,
        'data.train_length': 2**17,
        'model.encoding': encoding,
        'model.contextual_positions': 'forget',
      },
      'v4-2',
    )
    for encoding in ('linear', 'fire')
  },
  '512k': ('fire_c4', 'base', {**_ROW, 'data.train_length': 2**19}, 'v4-2'),
  '512k, kernels': (
    'fire_c4',
    'base',
    {
      **_ROW,
      'data.train_length': 2**19,
      'model.implementation': 'pallas',
      'model.bias_form': 'auto',
    },
    'v4-2',
  ),
  '1024k': ('fire_c4', 'base', {**_ROW, 'data.train_length': 2**20}, 'v4-2'),
  '1024k, 4 chips': (
    'fire_c4',
    'base',
    {**_ROW, 'data.train_length': 2**20, 'mesh.sequence': 4},
    'v4-8',
  ),
  '4096k, 16 chips': (
    'fire_c4',
    'base',
    {**_ROW, 'data.train_length': 2**22, 'mesh.sequence': 16},
    'v4-32',
  ),
}
# The cell of --small.
SMALL = 'tiny'
_SMALL_CELL = ('fire_c4', 'base,tiny', {'data.batch_size': 8}, 'v5e-4')


def _cell(name: str) -> tuple[str, str, dict[str, Any], str]:
  return _SMALL_CELL if name == SMALL else CELLS[name]


def load(name: str) -> ml_collections.ConfigDict:
  """Returns the ConfigDict of a cell."""
  module, argument, changes, _ = _cell(name)
  config = importlib.import_module(f'configs.{module}').get_config(argument)
  config.update_from_flattened_dict({'train.init_from': '', **changes})
  return config


def measure(name: str) -> dict[str, Any]:
  """Compiles a cell and returns its memory and other results."""
  module, argument, changes, pod_name = _cell(name)
  pod = pods.get(pod_name)
  run = run_lib.Run(load(name), devices=ahead_of_time.devices(pod))
  program = ahead_of_time.training_step(run)
  return {
    'config': f'configs/{module}.py:{argument}',
    'changes': changes,
    'pod': pod_name,
    'chips': pod.chips,
    'rows': run.data.batch_size,
    'length': run.data.train_length,
    'mesh': dict(run.layout.mesh.shape),
    'fits': not program.refused,
    'gib_per_device': round(program.needs, 3),
    'of_gib': pod.device_gib,
    'state_gib': round(run.state_bytes / ahead_of_time.GIB, 3),
    'temporaries_gib': round(program.temporaries, 3),
    'compile_seconds': round(program.seconds),
    'collectives': program.collectives,
    'sent_gib': {kind: round(n, 3) for kind, n in program.sent.items()},
  }


def in_fresh_process(name: str) -> dict[str, Any]:
  """Calls `measure` in a new process, which frees memory when it ends."""
  return json.loads(alternate.in_process('compile_matrix', '--one', name))


def differs(found: Mapping[str, Any], recorded: Mapping[str, Any]) -> bool:
  """Returns whether the results of a cell differ from the recorded ones."""
  if found['fits'] != recorded['fits']:
    return True
  want = recorded['gib_per_device']
  return abs(found['gib_per_device'] - want) > TOLERANCE * want


def versions() -> dict[str, str]:
  """Returns the versions of packages that affect the results."""
  libtpu = importlib.metadata.version('libtpu')
  return {**runs_lib.versions(), 'libtpu': libtpu}


def show(name: str, found: Mapping[str, Any], note: str = '') -> None:
  fits = 'fits' if found['fits'] else 'DOES NOT FIT'
  counts = [f'{n} {kind}' for kind, n in found['collectives'].items() if n]
  print(
    f'{name:22} {found["pod"]:8} {found["gib_per_device"]:7.2f} of '
    f'{found["of_gib"]:5.2f} GiB  {fits}  {found["compile_seconds"]:4} s  '
    f'{", ".join(counts)} {note}',
    flush=True,
  )


def main() -> None:
  parser = alternate.parser(__doc__)
  parser.add_argument('cells', nargs='*', help='all if none is named')
  parser.add_argument('--check', action='store_true', help='record nothing')
  parser.add_argument('--one', help=argparse.SUPPRESS)
  arguments = parser.parse_args()
  if arguments.one:
    print(json.dumps(measure(arguments.one)))
    return
  if arguments.small:
    show(SMALL, in_fresh_process(SMALL))
    return
  recorded = json.loads(PATH.read_text())['cells'] if PATH.exists() else {}
  wrong = []
  for name in alternate.chosen('cell', arguments.cells, CELLS):
    if arguments.check and name not in recorded:
      parser.error(f'{name} is not on record; run it without --check')
    found = in_fresh_process(name)
    if not arguments.check:
      show(name, found)
      cell = found | {'versions': versions()}
      alternate.write_cell('compile_matrix', name, cell)
      continue
    before = recorded[name]
    if differs(found, before):
      wrong.append(name)
    show(name, found, f'(recorded: {before["gib_per_device"]:.2f} GiB)')
  if wrong:
    sys.exit(f'more than {TOLERANCE:.0%} off the record: {", ".join(wrong)}')


if __name__ == '__main__':
  main()
