"""Tests `lengen_jax/evaluation/likelihood.py`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import errors, positions
from lengen_jax.evaluation import likelihood
from lengen_jax.models import transformer
from lengen_jax.training import config as training_config
from lengen_jax.training import sharding
from tests import helpers

# (tokens of the context, tokens of the continuation): two widths.
SIZES = ((3, 2), (4, 0), (1, 16), (20, 5), (9, 1))


# (tokens of the context, last token) of choices with the same inputs.
CHOICES = ((5, 1), (5, 2), (3, 3), (4, 4))


def model(encoding='rope', **kwargs):
  config = helpers.tiny_model(encoding=encoding, **{'num_layers': 1} | kwargs)
  return config, helpers.params_of(config)


def requests(sizes=SIZES):
  rng = np.random.default_rng(0)
  return [
    likelihood.Request(*np.split(rng.integers(0, 256, sum(size)), size[:1]))
    for size in sizes
  ]


def scorer(config, scheme='standard', devices=2, batch_tokens=64):
  return likelihood.Scorer(
    config,
    positions.create(scheme),
    batch_tokens=batch_tokens,
    seed=5,
    layout=sharding.Layout.create(
      training_config.MeshConfig(data=devices), devices
    ),
  )


def logits(config, params, inputs):
  """All logits of one row, which is not padded."""
  lengths = jnp.full((1, 1), len(inputs))
  forward = jax.jit(transformer.create(config).apply)
  inputs = jnp.asarray(inputs, jnp.int32)[None]
  return forward({'params': params}, inputs, lengths=lengths)[0]


def scored_alone(config, params, request):
  context, continuation = request
  if not len(continuation):
    return 0.0, True
  row = np.concatenate([context, continuation])
  found = logits(config, params, row[:-1])[len(context) - 1 :]
  log_probs = jax.nn.log_softmax(found)[np.arange(len(found)), continuation]
  return float(log_probs.sum()), bool((found.argmax(-1) == continuation).all())


def assert_same(got, want):
  got, want = (zip(*scores, strict=True) for scores in (got, want))
  np.testing.assert_allclose(next(got), next(want), rtol=2e-6, atol=1e-5)
  assert next(got) == next(want)


@pytest.mark.some(2)
@pytest.mark.parametrize(
  'encoding, kwargs',
  [
    ('rope(dynamic=True, train_length=4)', {'scan_layers': True}),
    ('alibi', {'tied_embedding': False}),
    # The widths of its rows are exact.
    ('transformer_xl(official_compat=True)', {}),
  ],
)
def test_equals_the_full_pass_over_each_row(encoding, kwargs, monkeypatch):
  # Logits of a few tokens at a time.
  monkeypatch.setattr(likelihood, '_MOST_LOGITS', 7 * 256)
  config, params = model(encoding, **kwargs)
  reported = []
  found = scorer(config).run(params, requests(), reported.append)
  assert_same(found, [scored_alone(config, params, one) for one in requests()])
  assert all(isinstance(one, likelihood.Score) for one in found)
  assert reported[-1] == len(SIZES) and reported == sorted(reported)


def test_requests_with_the_same_inputs_share_a_row(monkeypatch):
  config, params = model()
  row = [5, 6, 7, 8, 9]
  given = [
    likelihood.Request(row[:n], np.array(row[n:] + [x])) for n, x in CHOICES
  ]
  given.insert(1, likelihood.Request([5, 6], np.array([7])))
  made, batch = [], likelihood._batch
  monkeypatch.setattr(
    likelihood, '_batch', lambda *args: made.append(args) or batch(*args)
  )
  found = scorer(config, devices=1).run(params, given)
  assert_same(found, [scored_alone(config, params, one) for one in given])
  ((rows, _, _),) = made
  # A row of five inputs has five scored tokens at most.
  assert sorted(map(len, rows)) == [1, 1, 3]


@pytest.mark.one_jax
def test_greedy_is_that_each_token_is_the_most_probable():
  config, params = model()
  row = [7, 8]
  for _ in range(4):
    row.append(int(logits(config, params, row)[-1].argmax()))
  other = [*row[:3], (row[3] + 1) % 256, *row[4:]]
  given = [likelihood.Request(one[:2], one[2:]) for one in (row, other)]
  found = scorer(config).run(params, given)
  assert [score.greedy for score in found] == [True, False]
  assert found[0].log_prob > found[1].log_prob


@pytest.mark.one_jax
@pytest.mark.some(2)
@pytest.mark.parametrize(
  'scheme',
  ['randomized(max_position=64)', "randomized(max_position=64, draw='batch')"],
)
def test_random_positions_depend_on_the_index_alone(scheme):
  config, params = model()
  given = [requests()[0]] * 2 + requests()
  want = scorer(config, scheme).run(params, given)
  # Three rows of one width, with others and alone.
  assert_same(scorer(config, scheme, 1, 1).run(params, given), want)
  assert_same(scorer(config, scheme).run(params, given[:1]), want[:1])
  same = abs(want[0].log_prob - want[1].log_prob) < 1e-4
  assert same == ('batch' in scheme)


def test_what_just_fits_is_not_refused_for_its_padding():
  # 20 inputs would be padded to 24.
  config, params = model('learned(max_position=20)')
  fits, longer = requests(((20, 1), (20, 2)))
  assert scorer(config).run(params, [fits])[0].log_prob < 0
  with pytest.raises(errors.LengthError, match='no entry for position 20'):
    scorer(config).run(params, [longer])


def test_refuses_what_is_no_request():
  config, params = model()
  for context, message in (
    ([], 'context of request 1 is empty'),
    ([256], 'request 1 has tokens from 2 to 256; .* vocab_size=256'),
    ([-1], 'request 1 has tokens from -1 to 2'),
    ([2**40], 'request 1 has tokens from 2 to 1099511627776'),
    ([1.5], 'type float64; they must be integers'),
  ):
    given = [requests()[0], likelihood.Request(context, [2])]
    with pytest.raises(errors.ConfigError, match=message):
      scorer(config).run(params, given)
  with pytest.raises(errors.ConfigError, match="got 'encoder'"):
    scorer(helpers.tiny_model(architecture='encoder'))
  with pytest.raises(errors.ConfigError, match='batch_tokens must be at least'):
    scorer(config, batch_tokens=0)
  assert scorer(config).run(params, []) == []


def test_a_diverged_model_says_so():
  config, params = model()
  norm = {'scale': jnp.full(32, jnp.nan), 'bias': jnp.zeros(32)}
  with pytest.raises(errors.MetricError, match='the model has diverged'):
    scorer(config).run(params | {'final_norm': norm}, requests()[:1])


def test_rolling_rows_are_full_and_score_each_token_once():
  found = list(likelihood.rolling(range(10), 99, 4))
  assert found == [
    ([99], [0, 1, 2, 3]),
    ([3], [4, 5, 6, 7]),
    ([5, 6, 7], [8, 9]),
  ]
  assert list(likelihood.rolling([1, 2], 99, 4)) == [([99], [1, 2])]
  assert list(likelihood.rolling([], 99, 4)) == []


def test_rolling_sums_are_those_of_full_rows():
  config, params = model()
  ids = np.random.default_rng(1).integers(0, 256, 11)
  found = scorer(config).run(params, list(likelihood.rolling(ids, 3, 4)))
  # Rows of four inputs: tokens -1 to 2, 3 to 6, and 6 to 9 for the last three.
  row, want = [3, *ids], 0.0
  for first, scored in ((0, 4), (4, 4), (7, 3)):
    log_probs = jax.nn.log_softmax(
      logits(config, params, row[first : first + 4])
    )
    for i in range(4 - scored, 4):
      want += float(log_probs[i, row[first + i + 1]])
  assert abs(sum(score.log_prob for score in found) - want) < 1e-4


def test_positions_are_those_of_test_time():
  """`shape` shifts positions only in training."""
  config, params = model('sinusoidal')
  want = scorer(config).run(params, requests())
  assert_same(
    scorer(config, 'shape(max_shift=32)').run(params, requests()), want
  )
