"""Tests `lengen_jax/analysis/attention_maps.py`."""

import csv
import dataclasses

import jax
import numpy as np
import pytest

from lengen_jax import data, errors
from lengen_jax.analysis import attention_maps
from lengen_jax.data import vocabulary
from lengen_jax.data import windows as data_windows
from lengen_jax.evaluation import attention_weights
from lengen_jax.training import run as run_lib
from tests import helpers


def trained(config, encoding, **model):
  """A run with random parameters, of training length 8."""
  config.model.update(num_layers=2, encoding=encoding, **model)
  config.data.train_length = 8
  config.eval.lengths = (8, 16)
  run = run_lib.Run(config)
  params = helpers.initial(run.model)
  return run_lib.Trained(run, run.abstract_state.replace(params=params), 0.0)


def batch(length):
  tokens = np.random.default_rng(1).integers(0, 256, (3, length + 1))
  return data_windows.lm_batch(tokens)


def read(path):
  with open(path) as file:
    return list(csv.DictReader(file))


def test_near_diagonal():
  eye = np.eye(6)
  assert attention_maps.near_diagonal(eye, 0) == 1
  assert attention_maps.near_diagonal(np.roll(eye, 1, 1), 0) == 0
  # The last query attends to the first key.
  assert attention_maps.near_diagonal(np.roll(eye, 1, 1), 1) == 5 / 6
  even = attention_maps.near_diagonal(np.ones((6, 6)), 1)
  assert even == 16 / 36
  # Only the last two queries.
  assert attention_maps.near_diagonal(np.ones((6, 6)), 1, 4) == 5 / 12
  assert attention_maps.near_diagonal(np.roll(eye, 1, 1), 1, 4) == 1 / 2


def test_matrices_are_mean_weights(tiny_config, assert_close):
  model = trained(tiny_config, 'rope', window=3)
  found = attention_maps.matrices(model, batch(12))
  assert list(found) == ['layer_0', 'layer_1']
  weights = attention_weights.by_layer(
    model.run.model,
    model.run.scheme,
    model.state.params,
    batch(12),
    attention_weights.Attended.weights,
  )
  for layer, (got, even) in found.items():
    assert_close(got, weights[layer].mean((0, 1)))
    # Evenly to three keys, or as many as there are.
    want = np.tril(np.ones((12, 12))) - np.tril(np.ones((12, 12)), -3)
    assert_close(even, want / want.sum(-1, keepdims=True))


@pytest.mark.one_jax
def test_alibi_keeps_to_the_diagonal_and_learned_is_refused(
  tiny_config, tmp_path
):
  """A steep bias out of distribution, and a table that ends."""
  runs = {
    'alibi': trained(tiny_config, 'alibi'),
    'learned': trained(tiny_config, 'learned(max_position=16)'),
    'encoder': trained(tiny_config, 'nope', architecture='encoder'),
  }
  runs['encoder'].state.params.update(
    jax.tree.map(np.zeros_like, runs['encoder'].state.params)
  )
  batches = [batch(8), batch(32)]
  paths, again = (
    attention_maps.figure(runs, batches, tmp_path / name, width=3)
    for name in ('one', 'two')
  )
  assert [path.name for path in paths] == [
    'attention_maps.png',
    'attention_maps.npz',
    'attention_maps.csv',
  ]
  for path, other in zip(paths, again, strict=True):
    assert path.read_bytes() == other.read_bytes()
  rows = read(paths[2])
  assert len(rows) == 2 * 5 + 1
  shares = {
    (row['run'], int(row['length']), row['layer']): (
      float(row['within_3']),
      float(row['if_even']),
    )
    for row in rows
    if not row['refused']
  }
  saved = np.load(paths[1])
  assert set(saved) == {
    'alibi/8',
    'alibi/32',
    'learned/8',
    'encoder/8',
    'encoder/32',
  }
  for (run, length, layer), (share, even) in shares.items():
    matrix = saved[f'{run}/{length}'][int(layer[-1])]
    assert matrix.shape == (length, length)
    assert share == pytest.approx(attention_maps.near_diagonal(matrix, 3))
    if run == 'encoder':
      assert share == pytest.approx(even)
  share, even = shares['alibi', 32, 'layer_0']
  assert share > 1.05 * even
  (refused,) = (row for row in rows if row['refused'])
  assert (refused['run'], refused['length']) == ('learned', '32')
  assert 'max_position=32' in refused['refused']
  with pytest.raises(errors.LengthError, match='max_position=32'):
    attention_maps.figure(
      {'learned': runs['learned']}, [batch(32)], tmp_path / 'none'
    )
  assert not (tmp_path / 'none').exists()


def test_entropy_figure(tiny_config, tmp_path):
  text = np.random.default_rng(0).integers(0, 256, 2 * 16 + 1)
  corpus = data.Corpus({'validation': [text]}, vocabulary.Bytes(offset=0), {})
  runs = {
    'plain': trained(tiny_config, 'nope'),
    'learned': trained(tiny_config, 'learned(max_position=8)'),
  }
  windows = corpus.evaluation(runs['plain'].run.eval)
  results = {
    name: attention_maps.entropies(model, windows)
    for name, model in runs.items()
  }
  model = runs['plain']
  assert results['plain'] == list(
    attention_weights.entropy(
      model.run.model,
      model.run.scheme,
      model.state.params,
      windows,
      seed=model.run.config.seed,
    )
  )
  paths, again = (
    attention_maps.entropy_figure(results, tmp_path / name, train_length=8)
    for name in ('one', 'two')
  )
  assert [path.name for path in paths] == ['entropy.png', 'entropy.csv']
  for path, other in zip(paths, again, strict=True):
    assert path.read_bytes() == other.read_bytes()
  rows = read(paths[1])
  assert [(row['run'], row['length'], row['layer']) for row in rows] == [
    ('plain', '8', 'layer_0'),
    ('plain', '8', 'layer_1'),
    ('plain', '16', 'layer_0'),
    ('plain', '16', 'layer_1'),
    ('learned', '8', 'layer_0'),
    ('learned', '8', 'layer_1'),
    ('learned', '16', ''),
  ]
  assert 'max_position=16' in rows[-1]['refused']
  assert float(rows[3]['nats']) == results['plain'][1].nats['layer_1']
  assert float(rows[3]['relative']) == results['plain'][1].relative['layer_1']
  # Where each query sees one key, no layer has a relative entropy.
  results['plain'] = [
    dataclasses.replace(one, relative=dict.fromkeys(one.nats))
    for one in results['plain']
  ]
  _, numbers = attention_maps.entropy_figure(results, tmp_path, train_length=8)
  assert [row['relative'] for row in read(numbers)[:4]] == [''] * 4
