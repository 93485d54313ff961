"""Makes the checkpoint beside this file; see README.md."""

import importlib.metadata
import json
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile

FOLDER = pathlib.Path(__file__).parent
OPTIONS = (
  '--config=configs/stdlib.py:tiny',
  '--config.model.encoding=fire, kerple_log',
  '--config.model.head_dim=8',
  '--config.model.mlp_width=32',
  '--config.model.scan_layers=True',
  '--config.model.width=16',
  '--config.train.steps=6',
  '--config.train.checkpoint_every=4',
  '--config.eval.lengths=(32, 64)',
)
# Those of tests/conftest.py, on which the last digits depend.
ENVIRONMENT = {
  'JAX_DISABLE_MOST_OPTIMIZATIONS': '1',
  'JAX_NUM_CPU_DEVICES': '2',
  'JAX_PLATFORMS': 'cpu',
}
SAVED_STEP = 4


def write_text(folder):
  """Writes three files: one each for validation, test and training."""
  folder.mkdir(exist_ok=True)
  for name, power in (('a', 1), ('ba', 2), ('b', 3)):
    lines = [f'{n} to the {power} is {n**power}' for n in range(120)]
    (folder / f'{name}.py').write_text('\n'.join(lines))


def platform_facts():
  """Returns what the last digits depend on besides the code."""
  cpus = pathlib.Path('/proc/cpuinfo')
  lines = cpus.read_text().splitlines() if cpus.exists() else []
  models = [line for line in lines if line.startswith('model name')]
  return {
    'jax': importlib.metadata.version('jax'),
    'python': platform.python_version(),
    'cpu': models[0].partition(': ')[2] if models else platform.processor(),
  }


def main():
  def lengen(*arguments):
    command = [sys.executable, '-m', 'lengen_jax.cli', *arguments]
    subprocess.run(['env', *settings, *command], check=True)

  settings = [f'{name}={value}' for name, value in ENVIRONMENT.items()]
  with tempfile.TemporaryDirectory() as temporary:
    text, run = pathlib.Path(temporary) / 'text', FOLDER / 'run'
    write_text(text)
    shutil.rmtree(run, ignore_errors=True)
    workdir = f'--workdir={run}'
    lengen('train', *OPTIONS, f'--config.data.path={text}', workdir)
    log = run / 'metrics.jsonl'
    lines = log.read_text().splitlines(keepends=True)
    # As if the run had been killed after its first checkpoint.
    shutil.rmtree(run / 'checkpoints' / '6')
    log.write_text(''.join(lines[:SAVED_STEP]))
    lengen('eval', workdir)
  curve = json.loads((run / 'eval.json').read_text())['curves'][0]
  expected = {
    **platform_facts(),
    'loss': curve['loss'],
    'perplexity': curve['perplexity'],
    'training_loss': [json.loads(line)['loss'] for line in lines],
  }
  (FOLDER / 'expected.json').write_text(json.dumps(expected, indent=1) + '\n')
  (run / 'eval.json').unlink()


if __name__ == '__main__':
  main()
