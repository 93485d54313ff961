"""The embedded corpus: source code of the Python standard library.

The corpus has about 9 MB, is part of every Python installation, and contains
files that are long enough for long contexts. Each byte is a token. The text
depends on the version of Python; results therefore record the version and a
checksum.
"""

import hashlib
import pathlib
import platform
import sysconfig
from typing import Any

import numpy as np

from lengen_jax import errors

# Third-party packages, tests, and generated tables.
_EXCLUDED = {
  '__pycache__',
  'dist-packages',
  'encodings',
  'idle_test',
  'lib2to3',
  'pydoc_data',
  'site-packages',
  'test',
  'tests',
}
_EXCLUDED_FILES = ('_sysconfigdata', 'sitecustomize', 'usercustomize')


def read(path: str = '') -> tuple[dict[str, list[np.ndarray]], dict[str, Any]]:
  """Reads the standard library.

  Files are de-duplicated by content and split by a hash of their path: one in
  twenty for validation, one in twenty for test.

  Args:
    path: folder of another standard library; '' for that of this interpreter.

  Returns:
    ({'train': [uint8 arrays], 'validation': ..., 'test': ...}, info dict).

  Raises:
    errors.CorpusError: a split has no source files.
  """
  root = pathlib.Path(path or sysconfig.get_paths()['stdlib'])
  documents: dict[str, list[np.ndarray]] = {
    'train': [],
    'validation': [],
    'test': [],
  }
  seen = set()
  checksum = hashlib.sha256()
  files = sorted(root.rglob('*.py')) if root.is_dir() else []
  for file in files:
    relative = file.relative_to(root).as_posix()
    if _EXCLUDED & set(relative.split('/')):
      continue
    if file.name.startswith(_EXCLUDED_FILES):
      continue
    content = file.read_bytes()
    digest = hashlib.sha256(content).digest()
    if not content or digest in seen:
      continue
    seen.add(digest)
    checksum.update(relative.encode() + digest)
    documents[_split(relative)].append(np.frombuffer(content, np.uint8))
  for split, found in documents.items():
    if not found:
      raise errors.CorpusError(
        f'no Python sources for the {split} split in {root}: this Python keeps '
        'its standard library zipped or stripped; set data.path to the '
        'lib/python3.x folder of a full installation'
      )
  info = {
    'source': 'stdlib',
    'python': platform.python_version() if not path else None,
    'path': path or None,
    'files': len(seen),
    'bytes': {k: int(sum(map(len, v))) for k, v in documents.items()},
    'sha256': checksum.hexdigest(),
  }
  return documents, info


def _split(relative: str) -> str:
  part = hashlib.sha256(relative.encode()).digest()[0] % 20
  return {0: 'validation', 1: 'test'}.get(part, 'train')
