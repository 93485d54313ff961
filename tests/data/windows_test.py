"""Tests `lengen_jax/data/windows.py`."""

import numpy as np
import pytest

from lengen_jax import data, errors
from lengen_jax.data import vocabulary, windows
from lengen_jax.evaluation import config
from lengen_jax.evaluation.metrics import lm


def documents(*lengths):
  """Documents whose every token is a number of its own."""
  offsets = np.cumsum([0, *lengths])
  return [
    np.arange(offset, offset + length)
    for offset, length in zip(offsets, lengths, strict=False)
  ]


def evaluation(found, lengths, count):
  corpus = data.Corpus({'validation': found}, vocabulary.Bytes(offset=0), {})
  return corpus.evaluation(
    config.EvalConfig(lengths, batch_tokens=64, windows=count)
  )


def training(**changes):
  settings = dict(length=4, batch_size=3, seed=0) | changes
  return windows.TrainingWindows(documents(23, 5, 4, 40), **settings)


def test_training_windows_lie_within_documents():
  batches = training()
  starts = {0, 4, 8, 12, 16, 23, *range(32, 68, 4)}
  seen = set()
  for step in range(len(batches) // 3):
    batch = batches.batch(step)
    assert (batch['targets'] == batch['inputs'] + 1).all()
    seen |= set(batch['inputs'][:, 0].tolist())
  assert seen == starts
  assert len(batches) == len(starts) == 15


def test_each_epoch_has_every_window_once_in_its_own_order():
  batches = training(batch_size=5)
  epochs = [
    np.concatenate([batches.batch(3 * e + s)['inputs'][:, 0] for s in range(3)])
    for e in range(2)
  ]
  assert sorted(epochs[0]) == sorted(epochs[1])
  assert len(set(epochs[0])) == len(batches)
  assert (epochs[0] != epochs[1]).any()


def test_a_batch_is_a_function_of_seed_and_step():
  forward = [training().batch(step)['inputs'] for step in range(9)]
  again = training()
  backward = [again.batch(step)['inputs'] for step in reversed(range(9))]
  np.testing.assert_array_equal(forward, backward[::-1])
  assert (training(seed=1).batch(0)['inputs'] != forward[0]).any()


def test_too_few_training_windows():
  with pytest.raises(
    errors.CorpusError, match=r'(?s)15 windows .*batch_size=16'
  ):
    training(batch_size=16)


def test_evaluation_scores_the_same_tokens_at_every_length():
  found = evaluation(documents(40, 9, 70), lengths=(4, 8, 16), count=5)
  scored = {}
  for length in found.lengths:
    tokens = found.examples(length)
    assert tokens.shape == (found.tokens // length, length + 1)
    # The first input is the true preceding token.
    assert (np.diff(tokens, axis=1) == 1).all()
    scored[length] = sorted(tokens[:, 1:].ravel().tolist())
  assert scored[4] == scored[8] == scored[16]
  assert len(set(scored[4])) == found.tokens == 80


def test_evaluation_windows_are_spread_evenly():
  found = evaluation(documents(100), lengths=(10,), count=3)
  assert found.examples(10)[:, 0].tolist() == [0, 30, 60]


def test_evaluation_lengths_must_divide_the_longest():
  with pytest.raises(errors.ConfigError, match='6 does not divide .* 16'):
    evaluation(documents(40), lengths=(6, 16), count=1)


def test_too_few_evaluation_windows():
  with pytest.raises(errors.CorpusError, match='2 windows of 16 .*windows=3'):
    evaluation(documents(40, 16), lengths=(16,), count=3)


def test_lm_batch():
  batch = windows.lm_batch(np.arange(10, dtype=np.uint8).reshape(2, 5))
  assert {key: value.shape for key, value in batch.items()} == dict.fromkeys(
    (
      'inputs',
      'targets',
      'weights',
      'segment_ids',
      'segment_positions',
      'lengths',
    ),
    (2, 4),
  )
  assert batch['inputs'].tolist() == [[0, 1, 2, 3], [5, 6, 7, 8]]
  assert batch['targets'].tolist() == [[1, 2, 3, 4], [6, 7, 8, 9]]
  assert batch['segment_positions'].tolist() == [[0, 1, 2, 3]] * 2
  assert (batch['lengths'] == 4).all()


def test_padding_is_a_segment_of_its_own():
  batch = windows.lm_batch(np.ones((3, 6), int), sizes=[6, 4, 0])
  assert batch['segment_ids'].tolist() == [[1] * 5, [1] * 3 + [0] * 2, [0] * 5]
  assert batch['weights'].tolist() == batch['segment_ids'].tolist()
  assert batch['segment_positions'].tolist() == [
    [0, 1, 2, 3, 4],
    [0, 1, 2, 0, 1],
    [0, 1, 2, 3, 4],
  ]
  assert batch['lengths'].tolist() == [[5] * 5, [3] * 3 + [2] * 2, [5] * 5]


def test_tokens_before_the_first_scored_have_no_weight():
  batch = windows.lm_batch(
    np.arange(12).reshape(2, 6), sizes=[6, 5], first_scored=[1, 3]
  )
  assert batch['weights'].tolist() == [[1, 1, 1, 1, 1], [0, 0, 1, 1, 0]]
  assert batch['targets'][1][batch['weights'][1] > 0].tolist() == [9, 10]


def test_pairs():
  batch = windows.pair_batch([[7, 8, 9]], [[5, 6]])
  assert batch['encoder_inputs'].tolist() == [[7, 8, 9]]
  assert batch['inputs'].tolist() == [[0, 5]]
  assert batch['targets'].tolist() == [[5, 6]]
  assert batch['weights'].tolist() == [[1, 1]]
  assert batch['encoder_lengths'].tolist() == [[3] * 3]


@pytest.mark.parametrize('length', [1, 4, 7])
@pytest.mark.parametrize('mode', windows.MODES)
def test_what_is_cut_follows_its_true_predecessor(mode, length):
  """Every token is scored once, or left out as the mode says."""
  found = [document + 1 for document in documents(23, 5, 4, 40)]
  cutter = windows.Cutter(length, mode, start=0)
  cut = [window for document in found for window in cutter.cut(document)]
  before = dict(zip(range(1, 73), range(72), strict=True))
  if mode != 'concat':
    before |= {document[0]: 0 for document in found}
  scored = [int(token) for window in cut for token in window[1:]]
  for window in cut:
    assert [before[int(token)] for token in window[1:]] == window[:-1].tolist()
  if mode == 'doc_window':
    want = [t for d in found for t in d[: len(d) // length * length]]
  else:
    want = np.concatenate(found).tolist()
  if mode == 'concat':
    want = want[: len(want) // length * length]
    assert len(cutter.rest) - 1 == 72 % length
  assert scored == want


def test_a_cutter_goes_on_from_its_rest():
  found = documents(23, 5, 40)
  whole = windows.Cutter(4, 'concat', start=0)
  want = [w.tolist() for d in found for w in whole.cut(d)]
  first = windows.Cutter(4, 'concat', start=0)
  got = [w.tolist() for w in first.cut(found[0])]
  second = windows.Cutter(4, 'concat', start=0, rest=first.rest)
  got += [w.tolist() for d in found[1:] for w in second.cut(d)]
  assert got == want


@pytest.mark.parametrize('hosts', [1, 2, 4, 8])
def test_hosts_have_parts_of_a_batch(hosts):
  whole = training(batch_size=8)
  parts = [
    training(batch_size=8, host=(index, hosts)) for index in range(hosts)
  ]
  for step in range(3):
    want = whole.batch(step)['inputs']
    got = [part.batch(step)['inputs'] for part in parts]
    assert {len(rows) for rows in got} == {8 // hosts}
    np.testing.assert_array_equal(np.concatenate(got), want)


def test_hosts_must_divide_a_batch():
  with pytest.raises(errors.ConfigError, match='batch_size=3 .* 2 hosts'):
    training(host=(0, 2))


def test_batches_go_on_where_they_were_kept(tmp_path):
  first, again = training(), training()
  for _ in range(7):
    first.next()
  first.save(tmp_path)
  again.restore(tmp_path)
  for _ in range(3):
    np.testing.assert_array_equal(
      first.next()['inputs'], again.next()['inputs']
    )
  assert (tmp_path / 'next.json').stat().st_size < 40


def test_evaluation_batches_are_filled_up_with_weight_0():
  batch = windows.lm_batch(np.arange(35).reshape(7, 5))
  parts = list(windows.padded(batch, 3))
  assert [len(part['inputs']) for part in parts] == [3, 3, 3]
  rows = np.concatenate([part['inputs'] for part in parts])
  weights = np.concatenate([part['weights'] for part in parts])
  np.testing.assert_array_equal(rows[weights[:, 0] > 0], batch['inputs'])
  assert weights.sum() == 28


def test_a_word_counts_where_it_begins():
  ids = np.frombuffer(b'hello world wide', np.uint8).astype(np.int32)
  cut = [ids[first : first + 5] for first in (0, 4, 8)]
  found = windows.EvaluationWindows(
    cut, lengths=(4,), count=3, vocab=vocabulary.Bytes(offset=0)
  )
  assert found.texts() == ['ello', ' wor', 'ld w']
  assert found.count_words(lm.count_words) == 2


def test_a_digest_is_that_of_all_scored_tokens():
  def digest(*changed):
    tokens = np.arange(10).reshape(2, 5)
    for place in changed:
      tokens[place] = 99
    return windows.EvaluationWindows(
      tokens, lengths=(4,), count=2, vocab=vocabulary.Bytes(0)
    ).digest

  # The first token of a window is not scored.
  assert digest((1, 0)) == digest()
  assert len({digest(), digest((0, 4)), digest((1, 4))}) == 3
