"""Tests `lengen_jax/evaluation/constructions.py`."""

import jax
import numpy as np
import pytest

from lengen_jax import data, errors, positions
from lengen_jax.data import vocabulary
from lengen_jax.evaluation import config as eval_config
from lengen_jax.evaluation import constructions, length_curve
from lengen_jax.models import DecoderLM
from lengen_jax.training import config as training_config
from lengen_jax.training import sharding
from tests import helpers

# Documents with 5, 2 and no whole windows of 16 tokens.
SIZES = (85, 33, 12)


def test_losses_of_documents():
  """Those of each window alone, and of the windows of curves."""
  rng = np.random.default_rng(0)
  documents = [rng.integers(0, 256, size) for size in SIZES]
  config = helpers.tiny_model(num_layers=1, encoding='alibi')
  params = helpers.params_of(config)
  layout = sharding.Layout.create(training_config.MeshConfig(data=2), 2)
  given = config, positions.create('standard'), params
  options = dict(batch_tokens=40, seed=0, layout=layout)
  apply = jax.jit(DecoderLM(config).apply)
  losses = {}
  for length in (8, 16):
    losses[length] = constructions.document_losses(
      *given, documents, length, **options
    )
    for document, found in zip(documents, losses[length], strict=True):
      want = []
      for start in range(0, len(document) - 1, length):
        piece = document[start : start + length + 1]
        padded = np.pad(piece, (0, length + 1 - len(piece)))[None]
        logits = apply({'params': params}, padded[:, :-1])[0]
        chosen = np.asarray(jax.nn.log_softmax(logits), np.float64)
        want += [-chosen[i, token] for i, token in enumerate(piece[1:])]
      np.testing.assert_allclose(found, want, rtol=1e-5)
  curves = constructions.curves(losses)
  corpus = data.Corpus(
    {'validation': documents}, vocabulary.Bytes(offset=0), {}
  )
  windows = corpus.evaluation(eval_config.EvalConfig((8, 16), 40, windows=7))
  for one in length_curve.run(*given, windows, **options):
    np.testing.assert_allclose(curves['recut'][one.length], one.loss, rtol=1e-6)


def test_documents_without_a_scored_token():
  with pytest.raises(errors.CorpusError, match='fewer than two tokens'):
    constructions.document_losses(
      *(helpers.tiny_model(), positions.create('standard'), None),
      [np.array([1])],
      8,
      batch_tokens=8,
      seed=0,
      layout=None,
    )


def test_windows_shorter_than_the_others():
  """Positions that depend on the length are those of the tokens that exist."""
  rng = np.random.default_rng(0)
  documents = [rng.integers(0, 256, size) for size in (17, 12)]
  config = helpers.tiny_model(num_layers=1, encoding='rope')
  layout = sharding.Layout.create(training_config.MeshConfig(data=2), 2)
  scheme = positions.create('interpolated(train_length=4)')
  given = config, scheme, helpers.params_of(config)
  (_, short), (alone,) = (
    constructions.document_losses(
      *given, some, length, batch_tokens=40, seed=0, layout=layout
    )
    for some, length in ((documents, 16), (documents[1:], 11))
  )
  np.testing.assert_allclose(short, alone, rtol=1e-5)


def test_constructions():
  """The loss of these tokens does not depend on the windows."""
  texts = [np.array([9.0, 5, 3, 2, 2, 1]), np.array([8.0, 4, 1])]
  found = constructions.curves({1: texts, 2: texts, 4: texts})
  assert tuple(found) == constructions.NAMES
  assert found['own'] == {1: 8.5, 2: 6.5, 4: 4.75}
  assert found['first'] == {1: 9, 2: 7, 4: 4.75}
  assert found['whole'] == {1: 35 / 9, 2: 34 / 8, 4: 4.75}
  assert found['everything'] == dict.fromkeys((1, 2, 4), 35 / 9)
  assert found['recut'] == dict.fromkeys((1, 2, 4), 4.75)
  assert found['per window'] == {
    1: 35 / 9,
    2: (7 + 2.5 + 1.5 + 6 + 1) / 5,
    4: (4.75 + 1.5 + 13 / 3) / 3,
  }


def test_documents_that_are_too_short():
  losses = {2: [np.ones(3)], 4: [np.ones(3)]}
  with pytest.raises(errors.CorpusError, match='no document has 4 scored'):
    constructions.curves(losses)


def test_an_empty_document_has_no_losses():
  documents = [np.arange(size) for size in (10, 0, 10)]
  config = helpers.tiny_model(num_layers=1, encoding='alibi')
  found = constructions.document_losses(
    *(config, positions.create('standard'), helpers.params_of(config)),
    documents,
    8,
    batch_tokens=40,
    seed=0,
    layout=sharding.Layout.create(training_config.MeshConfig(data=2), 2),
  )
  assert [*map(len, found)] == [9, 0, 9]
  np.testing.assert_array_equal(found[0], found[2])
