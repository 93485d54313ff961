"""Tests `lengen_jax/data/chunks.py`, and positions that skip with the text."""

import jax
import numpy as np
import pytest

from configs import stdlib as stdlib_config
from lengen_jax import errors, positions
from lengen_jax.data import chunks, corpus, vocabulary
from lengen_jax.data import config as data_config
from lengen_jax.positions import pose
from lengen_jax.training import loop
from lengen_jax.training import run as run_lib
from lengen_jax.training import runs as runs_lib

N, TOTAL, ROWS = 7, 20, 64
CONFIG = data_config.DataConfig(
  'stdlib', train_length=N, batch_size=ROWS, source_length=TOTAL
)
# Tokens that are their own places.
DOCUMENTS = {'train': [np.arange(TOTAL * ROWS + 1, dtype=np.int32)]}
CORPUS = corpus.Corpus(DOCUMENTS, vocabulary.Bytes(offset=0), {})


def test_rows_are_two_chunks_of_a_window():
  batches = CORPUS.training(CONFIG, seed=3)
  firsts, ends = set(), set()
  for _ in range(20):
    batch = batches.next()
    tokens = np.concatenate([batch['inputs'], batch['targets'][:, -1:]], 1)
    np.testing.assert_array_equal(batch['inputs'][:, 1:], tokens[:, 1:-1])
    places = tokens - tokens[:, :1]
    assert (tokens[:, 0] % TOTAL == 0).all() and places.max() <= TOTAL
    for row, number in zip(places, batch['chunks'], strict=True):
      first = int((number == 0).sum())
      assert sorted(number) == [*number]
      np.testing.assert_array_equal(row[:first], np.arange(first))
      assert (np.diff(row[first:]) == 1).all()
      firsts.add(first)
      ends.add(int(row[-1]) + 1)
  # The official ranges: the first chunk has at most half of the tokens.
  assert firsts == {*range(1, (N + 1) // 2 + 1)}
  assert ends == {*range(N + 1, TOTAL + 2)}


def test_batches_continue_and_hosts_share_them(tmp_path):
  batches = CORPUS.training(CONFIG, seed=3)
  first = batches.next()
  batches.save(tmp_path)
  second = batches.next()
  assert (first['chunks'] != second['chunks']).any()
  again = CORPUS.training(CONFIG, seed=3)
  again.restore(tmp_path)
  hosts = [CORPUS.training(CONFIG, seed=3, host=(n, 2)) for n in range(2)]
  for one in hosts:
    one.restore(tmp_path)
  halves = [one.next() for one in hosts]
  for name, array in again.next().items():
    np.testing.assert_array_equal(array, second[name])
    shared = np.concatenate([half[name] for half in halves])
    np.testing.assert_array_equal(shared, second[name])


def test_positions_skip_where_the_text_does():
  batch = CORPUS.training(CONFIG, seed=3).next()
  index = batch['segment_positions']
  got = positions.create('pose(max_position=100)')(
    index,
    lengths=batch['lengths'],
    chunks=batch['chunks'],
    rng=jax.random.key(0),
    train=True,
  )
  skip = np.asarray(got) - index
  most = skip.max(1, keepdims=True)
  np.testing.assert_array_equal(skip, most * batch['chunks'])
  assert (most > 0).mean() > 0.8 and most.max() <= 100 - N


def test_roles_of_a_task_are_no_chunks():
  index = np.tile(np.arange(12, dtype=np.int32), (3, 1))
  given = {'lengths': np.full((3, 1), 12), 'rng': jax.random.key(0)}
  scheme = positions.create('pose(max_position=100)')
  for train in (False, True):
    want = scheme(index, train=train, **given)
    roles = np.tile(index % 3, (1, 1, 1))
    np.testing.assert_array_equal(
      scheme(index, train=train, roles=roles, **given), want
    )


def tiny(**changes):
  config = stdlib_config.get_config('tiny')
  config.positions = 'pose(max_position=128)'
  fields = {'data.source_length': 96, 'model.num_layers': 1, 'train.steps': 3}
  fields |= {'model.encoding': 'rope', 'eval.lengths': (32, 64)}
  config.update_from_flattened_dict(fields | changes)
  return config


@pytest.mark.one_jax
def test_a_run_trains_on_chunks(tmp_path, monkeypatch):
  seen = []
  draw = pose.Pose.draw

  def spied(self, rng, i, lengths, chunks=None):
    seen.append(chunks)
    return draw(self, rng, i, lengths, chunks)

  monkeypatch.setattr(pose.Pose, 'draw', spied)
  loop.train(tiny(), tmp_path)
  assert seen and all(chunks.shape == (4, 32) for chunks in seen)


def test_other_positions_may_be_tested():
  tested = run_lib.Run(tiny()).tested_as(
    runs_lib.Run('rope', 'standard', 'none')
  )
  assert str(tested.scheme) == 'standard'


@pytest.mark.parametrize(
  'changes, error, fact',
  [
    ({'data.source_length': 31}, errors.ConfigError, 'data.train_length=32'),
    ({'positions': 'standard'}, errors.CombinationError, "'pose(max"),
    (
      {'positions': 'pose(max_position=128, chunks=3)'},
      errors.CombinationError,
      'two chunks',
    ),
  ],
)
def test_refuses(changes, error, fact):
  with pytest.raises(error) as caught:
    run_lib.Run(tiny(**changes)).check_step()
  assert fact in str(caught.value) and 'data.source_length=' in str(
    caught.value
  )


def test_requires_whole_windows():
  assert (
    chunks.chunked(
      None,
      data_config.DataConfig('stdlib', 4, 2),
      **{
        'seed': 0,
        'host': (0, 1),
      },
    )
    is None
  )
  with pytest.raises(errors.ConfigError, match="'docstrings' or 'prepared'"):
    data_config.DataConfig('seqio', 4, 2, task='c4', source_length=8)


def test_seeds_draw_other_chunks():
  first, other = (
    CORPUS.training(CONFIG, seed=seed).next()['chunks'] for seed in (3, 4)
  )
  assert (first != other).any()


def test_rows_may_be_whole_windows():
  config = data_config.DataConfig(
    'stdlib', train_length=7, batch_size=2, source_length=7
  )
  assert config.window_length == 7
