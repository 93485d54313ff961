"""The embedded corpora: the Python standard library, or its docstrings.

The source code has about 9 MB, is part of every Python installation, and
contains files that are long enough for long contexts. Its docstrings are 1.7 MB
of technical English. Each byte is a token. The text depends on the version of
Python; results therefore record the version and a checksum.
"""

import ast
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


def read(
  path: str = '', *, only_docstrings: bool = False
) -> tuple[dict[str, list[np.ndarray]], dict[str, Any]]:
  """Reads the standard library.

  Files are de-duplicated by content and split by a hash of their path: one in
  twenty for validation, one in twenty for test.

  Args:
    path: folder of another standard library; '' for that of this interpreter.
    only_docstrings: whether a document has only the docstrings of a file, in
      order and separated by empty lines. Files without docstrings are omitted.

  Returns:
    ({'train': [uint8 arrays], 'validation': ..., 'test': ...}, info dict).

  Raises:
    errors.CorpusError: a split has no documents, or `only_docstrings` is set
      and a file is not valid source code for this version of Python.
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
  # Editors leave links to missing files.
  for file in filter(pathlib.Path.is_file, files):
    relative = file.relative_to(root).as_posix()
    if _EXCLUDED & set(relative.split('/')):
      continue
    if file.name.startswith(_EXCLUDED_FILES):
      continue
    content = file.read_bytes()
    if only_docstrings:
      content = _docstrings(content, file)
    digest = hashlib.sha256(content).digest()
    if not content or digest in seen:
      continue
    seen.add(digest)
    checksum.update(relative.encode() + digest)
    documents[_split(relative)].append(np.frombuffer(content, np.uint8))
  what = 'docstrings' if only_docstrings else 'Python sources'
  for split, found in documents.items():
    if not found:
      cause = 'this Python keeps its standard library zipped or stripped'
      if path:
        cause = (
          f'data.path={path} is not a standard library, or has too few files'
        )
      raise errors.CorpusError(
        f'no {what} for the {split} split in {root}: {cause}; set data.path to '
        'the lib/python3.x folder of a full installation'
      )
  info = {
    'source': 'docstrings' if only_docstrings else 'stdlib',
    'python': platform.python_version() if not path else None,
    'path': path or None,
    'files': len(seen),
    'bytes': {k: int(sum(map(len, v))) for k, v in documents.items()},
    'sha256': checksum.hexdigest(),
  }
  return documents, info


def _docstrings(source: bytes, file: pathlib.Path) -> bytes:
  """Returns the docstrings of a module, its classes and functions."""
  kinds = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
  try:
    tree = ast.parse(source)
  except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
    raise errors.CorpusError(
      f'Python {platform.python_version()} cannot parse {file}: '
      f'{errors.reason(error)}; set '
      'data.path to the library of the same version or an older one'
    ) from None
  nodes = [node for node in ast.walk(tree) if isinstance(node, kinds)]
  nodes.sort(key=lambda node: getattr(node, 'lineno', 0))
  found = filter(None, map(ast.get_docstring, nodes))
  return '\n\n'.join(found).encode(errors='replace')


def _split(relative: str) -> str:
  part = hashlib.sha256(relative.encode()).digest()[0] % 20
  return {0: 'validation', 1: 'test'}.get(part, 'train')
