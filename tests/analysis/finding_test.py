"""Tests `lengen_jax/analysis/finding.py`."""

from lengen_jax.analysis import finding


def of_curves(curves, lengths=(32, 64), train_length=32):
  results = {
    'lengths': lengths,
    'train_length': train_length,
    'curves': [{'loss': loss} for loss in curves.values()],
  }
  return finding.of_curves(results, list(curves))


def test_best_where_trained_and_at_the_longest():
  assert of_curves({'a': [1.5, 1.25], 'b': [1.4, 1.6]}) == (
    'Best at the training length 32 is b with 1.400 nats per token; '
    'best at the longest, 64, is a with 1.250; '
    'from 32 to 64 the loss falls in 1 of 2 runs (a).'
  )


def test_what_looks_the_same_is_level():
  found = of_curves({'a': [1.50001, 2], 'b': [1.50002, 2], 'c': [1.6, 1.6]})
  assert 'at the training length 32 are a and b, equal at 1.500 nats' in found
  assert 'falls in 0 of 3 runs.' in found
  found = of_curves({name: [1, 1] for name in 'abcd'})
  assert 'length 32 are 4 runs, equal at 1.000 nats' in found


def test_what_is_missing_is_told():
  found = of_curves({'a': [1.5, 1.25], 'b': [1.4, None]})
  assert found.endswith('1 of 2 runs (a); 1 has no value at 64 (b).')
  found = of_curves({'a': [1.5, None], 'b': [1.4, None]})
  assert 'the longest, 64, is none, because no run has a value' in found
  assert found.endswith('2 have no value at 64 (a, b).')


def test_other_lengths_than_that_of_training():
  found = of_curves({'a': [1.5, 1.25]}, lengths=(40, 64))
  assert found.startswith('Best at the length 40 is a with 1.500 nats')
  assert of_curves({'a': [1.5]}, lengths=(32,)) == (
    'Best at the training length 32 is a with 1.500 nats per token.'
  )


def test_the_order_over_the_last_doubling():
  def found(*losses, steps=(100, 200, 300, 400)):
    """Each of `losses` has the losses of a run at the longest length."""
    curves = [
      {
        'loss': [1.0, run[-1]],
        'trajectory': {'steps': steps, 'loss': [[1.0, loss] for loss in run]},
      }
      for run in losses
    ]
    results = {'lengths': (32, 64), 'train_length': 32, 'curves': curves}
    return finding.of_curves(results, 'abc'[: len(losses)])

  assert found((3, 2, 5, 2), (4, 3, 1, 3)).endswith(
    'From step 200 to 400, the order of the runs at 64 does not change.'
  )
  assert found((3, 2, 2, 4), (4, 3, 3, 3), (5, 5, 5, 5)).endswith(
    'From step 200 to 400, the order of the runs at 64 changes in 2 of 3 '
    'places; the best run changes from a to b.'
  )
  assert found((1, 1, 1, 1), (1, 2, 3, 3), (1, 3, 2, 2)).endswith(
    'changes in 2 of 3 places.'
  )
  # A run without a loss, one run, and no step up to half of the last.
  assert 'step' not in found((3, 2, 2, None), (4, 3, 3, 3))
  assert 'step' not in found((1, 2, 3, 4))
  assert 'step' not in found((1, 2), (2, 1), steps=(300, 400))


def test_scores():
  def of_scores(means, score='accuracy'):
    runs = [{'run': name, 'mean': mean} for name, mean in means.items()]
    results = {'score': score, 'runs': runs, 'train_lengths': [1, 40]}
    return finding.of_scores(results, 'unit', 100 if score != 'loss' else 1)

  assert of_scores({'a': 0.5, 'b': 0.75, 'c': None}) == (
    'Trained to length 40, best beyond it is b with 75.0 (unit).'
  )
  assert 'is a with 0.500' in of_scores({'a': 0.5, 'b': 0.75}, 'loss')
  assert 'is none' in of_scores({})
