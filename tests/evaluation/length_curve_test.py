"""Tests `lengen_jax/evaluation/length_curve.py`."""

import jax
import numpy as np
import pytest

from lengen_jax import data, positions
from lengen_jax.data import vocabulary
from lengen_jax.data import windows as data_windows
from lengen_jax.evaluation import config as eval_config
from lengen_jax.evaluation import length_curve
from lengen_jax.models import DecoderLM, Encoder, objective
from lengen_jax.training import config as training_config
from lengen_jax.training import sharding
from tests import helpers

LENGTHS = (8, 16, 64)


def layout(devices):
  """Rows split over some devices."""
  return sharding.Layout.create(
    training_config.MeshConfig(data=devices), devices
  )


@pytest.fixture(scope='module')
def windows():
  documents = [
    np.random.default_rng(n).integers(0, 256, 64 * 3 + 1) for n in range(3)
  ]
  corpus = data.Corpus(
    {'validation': documents}, vocabulary.Bytes(offset=0), {}
  )
  return corpus.evaluation(
    eval_config.EvalConfig(LENGTHS, batch_tokens=256, windows=5)
  )


def tiny(**fields):
  return helpers.tiny_model(num_layers=1, **fields)


def run(
  config, params, windows, scheme='standard', lengths=None, batch_tokens=256
):
  return length_curve.run(
    config,
    positions.create(scheme),
    params,
    windows,
    batch_tokens=batch_tokens,
    seed=0,
    layout=layout(2),
    lengths=lengths,
  )


def curve(windows, encoding, *args, **kwargs):
  config = tiny(encoding=encoding)
  params = helpers.params_of(config)
  return config, params, list(run(config, params, windows, *args, **kwargs))


def test_loss_equals_a_plain_computation(windows):
  # Batches of 256 tokens leave a last batch with rows to fill.
  config, params, losses = curve(windows, 'alibi')
  for one, length in zip(losses, LENGTHS, strict=True):
    tokens = windows.examples(length)
    apply = jax.jit(DecoderLM(config).apply)
    logits = apply({'params': params}, tokens[:, :-1])
    chosen = np.take_along_axis(
      np.asarray(jax.nn.log_softmax(logits), np.float64),
      tokens[:, 1:, None],
      axis=2,
    )[..., 0]
    assert one.length == length
    assert one.tokens == windows.tokens == chosen.size
    np.testing.assert_allclose(one.loss, -chosen.mean(), rtol=1e-6)
    starts = np.asarray(one.position)
    assert starts[0] == 0 and (np.diff(starts) > 0).all()
    for first, end, loss in zip(
      starts, [*starts[1:], length], one.position_loss, strict=True
    ):
      np.testing.assert_allclose(loss, -chosen[:, first:end].mean(), rtol=1e-5)
    # Pieces of all windows follow each other.
    by_window = -chosen.reshape(64 // length, 5, length).mean((0, 2))
    np.testing.assert_allclose(one.window_loss, by_window, rtol=1e-5)
    assert one.perplexity == pytest.approx(np.exp(one.loss))
    assert one.bits_per_byte(2.0) == pytest.approx(one.loss / np.log(2) / 2)


@pytest.mark.slow
def test_batch_size_does_not_matter(windows):
  _, _, few = curve(windows, 'fire', batch_tokens=64)
  _, _, many = curve(windows, 'fire', batch_tokens=100_000)
  np.testing.assert_allclose(
    [one.loss for one in few], [one.loss for one in many], rtol=1e-6
  )


def test_batches_of_an_encoder_and_a_decoder(monkeypatch):
  """Tokens of both count."""
  rows = []

  def losses(params, part, *args, **kwargs):
    rows.append(len(part['inputs']))
    return np.zeros(part['weights'].shape)

  monkeypatch.setattr(length_curve, 'weighted_losses', losses)
  ones = np.ones((6, 16), np.int32)
  batch = data_windows.pair_batch(ones, ones[:, :1])
  config = tiny(architecture='encoder_decoder')
  scheme = positions.create('standard')
  arguments = (config, scheme, None, batch, 64, 0, layout(1))
  found = np.concatenate([*length_curve.batch_losses(*arguments)])
  # A row has 17 tokens.
  assert rows == [3, 3] and found.shape == (6, 1)


def test_an_encoder_is_tested_on_the_same_masked_tokens(windows):
  config = tiny(vocab_size=257, architecture='encoder')
  params = helpers.params_of(config)
  masked = objective.masked(config, windows.batch(64), jax.random.key(0))
  masked = jax.device_get(masked)
  seen = {}
  found = [*run(config, params, windows)]
  for one, length in zip(found, LENGTHS, strict=True):
    weights = windows.recut(masked['weights'], length) > 0
    inputs = windows.recut(masked['inputs'], length)
    targets = windows.examples(length)[:, 1:]
    assert (inputs == targets)[~weights].all()
    assert 0.6 < (inputs == 256)[weights].mean() < 0.95
    seen[length] = sorted(targets[weights].tolist())
    assert one.tokens == len(seen[length])
    logits = jax.jit(Encoder(config).apply)({'params': params}, inputs)
    chosen = np.take_along_axis(
      np.asarray(jax.nn.log_softmax(logits), np.float64), targets[..., None], 2
    )[..., 0]
    np.testing.assert_allclose(one.loss, -chosen[weights].mean(), rtol=1e-6)
    np.testing.assert_allclose(np.mean(one.window_loss), one.loss, rtol=1e-9)
    # Buckets of positions without a masked token are left out.
    starts = length_curve.position_buckets(length)
    wanted = {
      int(first): -chosen[:, first:end][weights[:, first:end]].mean()
      for first, end in zip(starts, [*starts[1:], length], strict=True)
      if weights[:, first:end].any()
    }
    assert [*wanted] == [*one.position]
    np.testing.assert_allclose(one.position_loss, [*wanted.values()], rtol=1e-5)
    # Windows have unequal numbers of masked tokens.
    excess = (-chosen - one.loss) * weights
    excess = excess.reshape(64 // length, 5, length).sum((0, 2))
    np.testing.assert_allclose(
      one.window_loss, one.loss + excess / one.tokens * 5, rtol=1e-5
    )
  assert seen[8] == seen[16] == seen[64]
  assert len(found[-1].position) < len(length_curve.position_buckets(64))


def test_a_diverged_model_says_so(windows):
  config = tiny(encoding='alibi')
  params = helpers.params_of(config)
  params['embed']['table'] *= np.nan
  for one in run(config, params, windows):
    assert one.loss is None and 'not finite' in one.refused


def test_nothing_masked_says_so(windows, monkeypatch):
  def unmasked(config, batch, rng):
    return {**batch, 'weights': np.zeros_like(batch['weights'])}

  monkeypatch.setattr(length_curve.objective, 'masked', unmasked)
  config = tiny(vocab_size=257, architecture='encoder')
  for one in run(config, helpers.params_of(config), windows):
    assert one.loss is None and 'no token is masked' in one.refused


@pytest.mark.one_jax
def test_what_cannot_go_on_says_so(windows):
  _, _, losses = curve(windows, 'learned(max_position=16)', lengths=(16, 64))
  assert [one.loss is None for one in losses] == [False, True]
  assert 'max_position=64 or more' in losses[1].refused
  _, _, losses = curve(windows, 'rope', 'randomized(max_position=20)', (16, 64))
  assert [one.loss is None for one in losses] == [False, True]
  assert 'for a segment of 64' in losses[1].refused
  assert losses[1].tokens == losses[0].tokens
  assert losses[1].perplexity is None and losses[1].bits_per_byte(1) is None


@pytest.mark.one_jax
def test_dynamic_interpolation_goes_by_the_evaluated_length(windows):
  _, _, plain = curve(windows, 'rope', lengths=(16, 64))
  _, _, dynamic = curve(
    windows, 'rope(train_length=16, dynamic=True)', lengths=(16, 64)
  )
  _, _, scheme = curve(
    windows, 'rope', 'interpolated(train_length=16)', (16, 64)
  )
  for a, b, c in zip(plain, dynamic, scheme, strict=True):
    assert (a.loss == b.loss) == (a.length <= 16)
    np.testing.assert_allclose(b.loss, c.loss, rtol=1e-6)


@pytest.mark.slow
def test_random_positions_at_test_time_repeat(windows):
  spec = 'randomized(max_position=128)'
  _, _, first = curve(windows, 'alibi', spec)
  _, _, again = curve(windows, 'alibi', spec)
  _, _, even = curve(
    windows, 'alibi', "randomized(max_position=64,test='even')"
  )
  _, _, plain = curve(windows, 'alibi')
  assert [one.loss for one in first] == [one.loss for one in again]
  assert first[2].loss != plain[2].loss
  np.testing.assert_allclose(even[2].loss, plain[2].loss, rtol=1e-6)


@pytest.mark.parametrize('length', [1, 2, 3, 10, 128, 2048])
def test_position_buckets(length):
  starts = length_curve.position_buckets(length)
  assert starts[0] == 0 and starts[-1] < length
  assert (np.diff(starts) > 0).all()
  assert len(starts) <= 45
  # Four buckets for each doubling.
  first = [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 13, 16]
  assert starts.tolist()[:13] == first[: len(starts)]


def test_seeds_draw_other_positions_in_each_batch(monkeypatch):
  keys = []

  def weighted_losses(params, part, rng, **options):
    keys.append(tuple(jax.random.key_data(rng).tolist()))
    return np.zeros(part['weights'].shape)

  monkeypatch.setattr(length_curve, 'weighted_losses', weighted_losses)
  rows = np.ones((4, 17), np.int32)
  batch = data_windows.lm_batch(rows, np.full(4, 17))
  scheme = positions.create('standard')
  for seed in (0, 1):
    list(
      length_curve.batch_losses(
        tiny(), scheme, None, batch, 32, seed, layout(1)
      )
    )
  assert len(keys) == len({*keys}) == 4


def test_seeds_mask_other_tokens(windows, monkeypatch):
  keys = []

  def masked(config, batch, rng):
    keys.append(tuple(jax.random.key_data(rng).tolist()))
    return {**batch, 'weights': np.zeros_like(batch['weights'])}

  monkeypatch.setattr(objective, 'masked', masked)
  config = tiny(vocab_size=257, architecture='encoder')
  for seed in (0, 1):
    list(
      length_curve.run(
        config,
        positions.create('standard'),
        helpers.params_of(config),
        windows,
        batch_tokens=256,
        seed=seed,
        layout=layout(2),
        lengths=LENGTHS[:1],
      )
    )
  assert len(keys) == len({*keys}) == 2


def test_positions_and_dropout_are_those_of_test_time(windows):
  """`shape` shifts positions only in training."""
  _, params, plain = curve(windows, 'sinusoidal')
  config = tiny(encoding='sinusoidal', dropout_rate=0.5)
  found = run(config, params, windows, 'shape(max_shift=32)')
  np.testing.assert_allclose(
    [one.loss for one in found], [one.loss for one in plain], rtol=1e-6
  )


def test_the_largest_error_of_interpolated_biases(windows, monkeypatch):
  monkeypatch.setattr(
    length_curve.bias_error,
    'largest',
    lambda config, scheme, params, length: {'a': length / 8, 'b': 1.5},
  )
  _, _, losses = curve(windows, 'alibi')
  assert [one.bias_error for one in losses] == [1.5, 2.0, 8.0]
