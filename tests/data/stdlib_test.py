"""Tests `lengen_jax/data/stdlib.py` and `corpus.py`."""

import collections
import math

import numpy as np
import pytest

from lengen_jax import data, errors
from lengen_jax.data import corpus as corpus_lib
from lengen_jax.data import stdlib
from lengen_jax.evaluation import config as eval_config


def library(folder, count=60):
  for n in range(count):
    (folder / f'module_{n}.py').write_text(f'value = {n}\n' * 50)
  return folder


def test_reads_this_pythons_library():
  corpus = corpus_lib.read_stdlib()
  train, validation, test = (
    corpus.info['bytes'][split] for split in ('train', 'validation', 'test')
  )
  assert train > 5_000_000
  assert min(validation, test) > 100_000
  long = [d for d in corpus.documents['validation'] if len(d) > 8192]
  assert len(long) >= 5
  assert corpus.vocab_size == 256


def test_splits_by_path_without_overlap(tmp_path):
  documents, info = stdlib.read(str(library(tmp_path)))
  texts = [bytes(d) for found in documents.values() for d in found]
  assert len(texts) == len(set(texts)) == info['files'] == 60
  assert all(documents.values())
  again, info_again = stdlib.read(str(tmp_path))
  assert info == info_again
  assert list(map(bytes, again['test'])) == list(map(bytes, documents['test']))


def test_leaves_out_copies_tests_tables_and_other_packages(tmp_path):
  library(tmp_path)
  before = stdlib.read(str(tmp_path))
  (tmp_path / 'copy.py').write_bytes((tmp_path / 'module_0.py').read_bytes())
  (tmp_path / 'empty.py').write_text('')
  (tmp_path / '_sysconfigdata_x.py').write_text('build = {}')
  for name in ('test', 'site-packages', 'encodings', 'deep'):
    folder = tmp_path / name / ('tests' if name == 'deep' else '')
    folder.mkdir(parents=True)
    (folder / 'another.py').write_text(f'# {name}')
  after = stdlib.read(str(tmp_path))
  # The first of two copies in the order of paths counts.
  assert after[1]['files'] == before[1]['files']
  assert after[1]['bytes'] != {} and sum(after[1]['bytes'].values()) == sum(
    before[1]['bytes'].values()
  )


@pytest.mark.parametrize('where', ['empty', 'absent'])
def test_missing_sources(tmp_path, where):
  folder = tmp_path / where
  if where == 'empty':
    folder.mkdir()
  with pytest.raises(
    errors.CorpusError, match=f'no Python .*data.path=.*{where}'
  ):
    corpus_lib.read_stdlib(str(folder))


MODULE = '''"""A module.

Its second paragraph.
"""

# A comment.
class Outer:

  def method(self):
    """A method, before the class's later ones."""
    return 'no docstring'

  async def later(self):
    """   Indented.

       As is the rest.
    """

def function():
  """Is after the class."""
'''


def test_docstrings_are_documents(tmp_path):
  library(tmp_path)
  for n in range(90):
    (tmp_path / f'text_{n}.py').write_text(
      MODULE.replace('A module', f'M{n:02}')
    )
  config = data.DataConfig('docstrings', 8, 1, path=str(tmp_path))
  corpus = data.load(config)
  texts = [bytes(d) for found in corpus.documents.values() for d in found]
  # Files without docstrings are left out.
  assert len(texts) == corpus.info['files'] == 90
  assert corpus.info['source'] == 'docstrings'
  (text,) = [text.decode() for text in texts if text.startswith(b'M07.')]
  assert text == (
    'M07.\n\nIts second paragraph.\n\n'
    "A method, before the class's later ones.\n\n"
    'Indented.\n\nAs is the rest.\n\n'
    'Is after the class.'
  )
  # A split does not depend on what is read of a file.
  whole, _ = stdlib.read(str(tmp_path))
  for split, found in corpus.documents.items():
    names = {bytes(d)[:4] for d in found}
    sources = [bytes(d) for d in whole[split] if d[:3].tobytes() == b'"""']
    assert names == {source[3:7] for source in sources}


def test_docstrings_of_another_version_of_python(tmp_path):
  library(tmp_path)
  with pytest.raises(errors.CorpusError, match='no docstrings for the train'):
    stdlib.read(str(tmp_path), only_docstrings=True)
  for text in ('match = = 3', 'x = ' + '-' * 100_000 + '1', 'x\0'):
    (tmp_path / 'newer.py').write_text(text)
    with pytest.raises(errors.CorpusError, match=r'newer\.py.*data\.path'):
      stdlib.read(str(tmp_path), only_docstrings=True)


def test_this_pythons_docstrings_are_enough_for_a_study():
  corpus = corpus_lib.read_stdlib(only_docstrings=True)
  assert corpus.info['bytes']['train'] > 1_000_000
  # Raises an error if there are fewer windows.
  corpus.evaluation(
    eval_config.EvalConfig((128, 2048), batch_tokens=1, windows=16)
  )


@pytest.mark.parametrize('source', ['stdlib', 'docstrings'])
def test_fields_of_other_sources(source):
  with pytest.raises(
    errors.ConfigError, match=f"task.*no effect with.*'{source}'"
  ):
    data.DataConfig(source, 8, 1, task='c4')


def test_unknown_source():
  with pytest.raises(errors.ConfigError, match=r"'stdlb'; did you .*'stdlib'"):
    data.DataConfig(source='stdlb', train_length=1, batch_size=1)


def test_a_model_without_context_has_a_flat_curve():
  """Only context may move a curve: bigram loss is equal at every length."""
  corpus = corpus_lib.read_stdlib()
  found = corpus.evaluation(
    eval_config.EvalConfig((128, 512, 2048), batch_tokens=1, windows=16)
  )
  pairs, singles = collections.Counter(), collections.Counter()
  for document in corpus.documents['train'][:50]:
    tokens = document.tolist()
    pairs.update(zip(tokens[:-1], tokens[1:], strict=True))
    singles.update(tokens[:-1])

  def loss(length):
    tokens = found.examples(length)
    losses = [
      math.log((singles[a] + 256) / (pairs[a, b] + 1))
      for a, b in zip(tokens[:, :-1].flat, tokens[:, 1:].flat, strict=True)
    ]
    return np.mean(losses)

  losses = [loss(length) for length in found.lengths]
  np.testing.assert_allclose(losses, losses[0], rtol=1e-12)
