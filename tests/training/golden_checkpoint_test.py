"""A checkpoint of an earlier version restores, evaluates and resumes."""

import json
import shutil

import numpy as np
import pytest

from lengen_jax.data import corpus as corpus_lib
from lengen_jax.training import evaluate, loop, pretrained
from lengen_jax.training import workdir as workdir_lib
from tests.golden.checkpoint import make


@pytest.fixture
def run(tmp_path):
  return shutil.copytree(make.FOLDER / 'run', tmp_path / 'run')


@pytest.fixture
def text(tmp_path):
  make.write_text(tmp_path / 'text')
  return corpus_lib.read_stdlib(str(tmp_path / 'text'))


def check(got, name):
  """Compares with the record; the last digits depend on the CPU."""
  expected = json.loads((make.FOLDER / 'expected.json').read_text())
  np.testing.assert_allclose(got, expected[name], rtol=1e-6)


def test_it_evaluates_to_the_same_losses(run, text):
  trained = pretrained.restore(run)
  assert int(trained.state.step) == make.SAVED_STEP
  windows = text.evaluation(trained.run.eval)
  curve = evaluate.curve(trained, windows)
  check(curve['loss'], 'loss')
  check(curve['perplexity'], 'perplexity')


def test_it_resumes_with_the_same_losses(run, text):
  config, _ = workdir_lib.read_config(run)
  loop.train(config, run, corpus=text)
  lines = (run / 'metrics.jsonl').read_text().splitlines()
  check([json.loads(line)['loss'] for line in lines], 'training_loss')
