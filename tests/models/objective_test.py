"""Tests `lengen_jax/models/objective.py`."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import errors, models, positions
from lengen_jax.data import windows
from lengen_jax.models import objective, presets, stacking
from tests import helpers

KEY = jax.random.key(0)


def create(encoding, **kwargs):
  return helpers.tiny_model(encoding=encoding, **kwargs)


def lm_batch(rows=2, length=8, seed=0):
  tokens = np.random.default_rng(seed).integers(0, 256, (rows, length + 1))
  return windows.lm_batch(tokens.astype(np.int32))


def token_losses(config, scheme, params, batch, key, train, packed):
  return objective.token_losses(
    config,
    positions.create(scheme),
    params,
    batch,
    rng=jax.random.key(key),
    train=train,
    packed=packed,
  )


compiled_losses = jax.jit(token_losses, static_argnums=(0, 1, 5, 6))


def losses(config, scheme, batch, *, train=False, packed=False):
  """Returns the losses of a batch with initial parameters."""
  params = helpers.initial(config)
  return compiled_losses(config, scheme, params, batch, 1, train, packed)


def with_encoder(batch, length=5):
  encoder = lm_batch(length=length, seed=7)
  return batch | {f'encoder_{k}': v for k, v in encoder.items()}


@pytest.mark.some(2)
@pytest.mark.parametrize('packed', [False, True])
@pytest.mark.parametrize('architecture', ['decoder', 'encoder_decoder'])
def test_loss_is_that_of_the_logits(architecture, packed, assert_close):
  config = create('fire', architecture=architecture)
  batch = with_encoder(lm_batch())
  inputs = (batch['inputs'],)
  if architecture == 'encoder_decoder':
    inputs += (batch['encoder_inputs'],)
  apply = jax.jit(models.create(config).apply)
  logits = apply({'params': helpers.initial(config)}, *inputs)
  want = -np.take_along_axis(
    np.asarray(jax.nn.log_softmax(logits)), batch['targets'][..., None], -1
  )[..., 0]
  assert_close(losses(config, 'standard', batch, packed=packed), want, 1e-5)


def test_both_sides_are_given_their_positions(assert_close):
  config = create('sinusoidal', architecture='encoder_decoder')
  batch = with_encoder(lm_batch())
  want = losses(config, 'standard', batch)
  drawn = losses(config, 'randomized(max_position=64)', batch)
  assert np.abs(drawn - want).max() > 1e-3
  # The encoder goes by the length of its own sequences.
  config = create(
    'rope(dynamic=True, train_length=5)', architecture='encoder_decoder'
  )
  want = losses(config, 'standard', batch)
  longer = batch | {'encoder_lengths': 2 * batch['encoder_lengths']}
  assert np.abs(losses(config, 'standard', longer) - want).max() > 1e-5


def test_each_layer_may_draw_for_itself():
  config = create('alibi')
  per_layer, per_batch = (
    losses(config, f"randomized(max_position=64, draw='{draw}')", lm_batch())
    for draw in ('layer', 'batch')
  )
  assert np.abs(per_layer - per_batch).max() > 1e-6


def test_distances_are_refused_by_name():
  with pytest.raises(errors.CombinationError, match='rope needs a position'):
    objective.check(
      create('rope'), "randomized(max_position=64, mode='distances')"
    )
  objective.check(
    create('alibi'), "randomized(max_position=64, mode='distances')"
  )


def trained(config, scheme, batch, key, train=True):
  """Losses of a batch, unpacked, with the rng of one's choice."""
  params = helpers.initial(config)
  return compiled_losses(config, scheme, params, batch, key, train, False)


def told(monkeypatch, config, scheme, batch, *, train=False, packed=False):
  """What a model is told of a batch, without running it."""
  seen = {}

  class Spy:
    def apply(self, variables, *inputs, **named):
      del variables, inputs
      seen.update(named)

  monkeypatch.setattr(objective.transformer, 'create', lambda config: Spy())
  token_losses(config, scheme, {}, batch, 1, train, packed)
  return seen


def test_the_two_sides_draw_positions_of_their_own(monkeypatch):
  config = create('alibi', architecture='encoder_decoder')
  batch = with_encoder(lm_batch(), length=8)
  for train in (False, True):
    seen = told(
      monkeypatch, config, 'randomized(max_position=999)', batch, train=train
    )
    one, other = (
      seen[key].positions for key in ('positions', 'encoder_positions')
    )
    assert one.shape == other.shape == (2, 8)
    assert (one != other).any(axis=1).all()


def test_the_input_of_the_encoder_and_attention_of_the_decoder(monkeypatch):
  """Of two schemes, each draws for each side."""
  config = create(
    'learned(max_position=2000) + rope', architecture='encoder_decoder'
  )
  batch = with_encoder(lm_batch(), length=8)
  scheme = ' + '.join(['shape(max_shift=999)'] * 2)
  seen = told(monkeypatch, config, scheme, batch, train=True)
  drawn = [
    one
    for key in ('positions', 'encoder_positions')
    for one in (seen[key].positions, seen[key].input_positions)
  ]
  for number, one in enumerate(drawn):
    for other in drawn[:number]:
      assert (one != other).any(axis=1).all()


def test_rows_that_draw_get_draws_of_their_own():
  """The same tokens in both rows: positions alone can tell them apart."""
  config = create('sinusoidal')
  batch = jax.tree.map(lambda x: np.repeat(x[:1], 2, axis=0), lm_batch())
  first, second = trained(config, 'shape(max_shift=500)', batch, 0)
  assert np.abs(first - second).max() > 1e-3
  first, second = trained(config, 'shape(max_shift=500)', batch, 0, train=False)
  np.testing.assert_array_equal(first, second)


def test_rows_that_are_alike_share_their_positions(monkeypatch):
  config = create('alibi')
  scheme = 'shape(max_shift=500)'
  seen = told(monkeypatch, config, scheme, lm_batch())
  assert seen['positions'].positions.shape == (1, 8)
  seen = told(monkeypatch, config, scheme, lm_batch(), train=True)
  assert seen['positions'].positions.shape == (2, 8)
  seen = told(monkeypatch, config, scheme, lm_batch(), packed=True)
  assert seen['positions'].positions.shape == (2, 8)


def packed_row(parts):
  """Batches of one row each, packed into one row."""
  row = {}
  for key in parts[0]:
    pieces = [np.asarray(part[key]) for part in parts]
    if key.endswith('segment_ids'):
      pieces = [piece * 0 + 1 + n for n, piece in enumerate(pieces)]
    if key.endswith('lengths'):
      sizes = [part[key[:-7] + 'inputs'].shape[1] for part in parts]
      pieces = [np.full((1, n), n, np.int32) for n in sizes]
    row[key] = np.concatenate(pieces, axis=1)
  return row


@pytest.mark.slow
def test_packed_pairs_cost_what_separate_ones_do(assert_close):
  config = create('alibi', architecture='encoder_decoder')
  config = dataclasses.replace(config, num_layers=1)
  pairs = []
  for n, (length, source) in enumerate(((3, 5), (4, 2))):
    pair = lm_batch(1, length, seed=n)
    encoder = lm_batch(1, source, seed=7 + n)
    pairs.append(pair | {f'encoder_{k}': v for k, v in encoder.items()})
  got = losses(config, 'standard', packed_row(pairs), packed=True)
  want = [losses(config, 'standard', pair) for pair in pairs]
  want = np.concatenate(want, 1)
  assert_close(got, want, 1e-5)


def test_dropout_goes_by_the_rng():
  config = create('alibi', dropout_rate=0.3)
  one, again, other = (
    trained(config, 'standard', lm_batch(), key) for key in (0, 0, 1)
  )
  np.testing.assert_array_equal(one, again)
  assert np.abs(one - other).max() > 1e-3
  tested = [
    trained(config, 'standard', lm_batch(), key, train=False) for key in (0, 1)
  ]
  np.testing.assert_array_equal(*tested)
  assert np.abs(one - tested[0]).max() > 1e-3


def test_positions_reach_further_while_training():
  """A shift is drawn in training only, and the table must hold it then."""
  config = create('learned(max_position=8)')

  def shape(scheme, train):
    return jax.eval_shape(
      lambda: losses(config, scheme, lm_batch(), train=train)
    ).shape

  assert shape('shape(max_shift=4)', False) == (2, 8)
  assert shape('shape(max_shift=1)', True) == (2, 8)
  with pytest.raises(errors.LengthError, match='no entry for position 10'):
    shape('shape(max_shift=4)', True)


@pytest.mark.parametrize(
  'architecture, missing, packed',
  [
    ('decoder', 'inputs', False),
    ('decoder', 'targets', False),
    ('decoder', 'segment_ids', True),
    ('encoder', 'segment_positions', False),
    ('encoder_decoder', 'encoder_inputs', False),
    ('encoder_decoder', 'encoder_lengths', False),
    ('encoder_decoder', 'encoder_segment_ids', True),
  ],
)
def test_what_a_batch_lacks_is_named(architecture, missing, packed):
  config = create('alibi', architecture=architecture)
  batch = lm_batch()
  if architecture == 'encoder_decoder':
    batch = with_encoder(batch)
  batch.pop(missing)
  with pytest.raises(errors.ConfigError) as caught:
    token_losses(config, 'standard', {}, batch, 1, False, packed)
  assert f'the batch lacks {missing}; it has ' in str(caught.value)


def test_what_is_not_needed_may_be_missing(monkeypatch):
  batch = lm_batch()
  for key in ('segment_ids', 'weights'):
    batch.pop(key)
  seen = told(monkeypatch, create('alibi'), 'standard', batch)
  assert seen['positions'].segment_ids is None


def test_both_sides_are_checked_for_their_length():
  config = create('learned(max_position=6)', architecture='encoder_decoder')
  batch = with_encoder(lm_batch(length=5), length=9)
  with pytest.raises(errors.LengthError, match='position 8'):
    losses(config, 'standard', batch)


def masked(rate=0.15, rows=64, length=128):
  batch = lm_batch(rows, length)
  batch['weights'][:, -28:] = 0
  new = objective.mask_tokens(
    KEY, batch, mask_id=255, vocab_size=200, rate=rate
  )
  return batch, jax.tree.map(np.asarray, new)


def test_masked_tokens_are_predicted():
  batch, new = masked()
  chosen = new['weights'] == 1
  np.testing.assert_array_equal(new['targets'], batch['inputs'])
  np.testing.assert_array_equal(
    new['inputs'][~chosen], batch['inputs'][~chosen]
  )
  assert not chosen[:, -28:].any()
  for key in ('segment_ids', 'segment_positions', 'lengths'):
    np.testing.assert_array_equal(new[key], batch[key])


def test_shares_of_masked_tokens():
  batch, new = masked()
  chosen = new['weights'] == 1
  assert abs(chosen[:, :100].mean() - 0.15) < 0.02
  old, now = batch['inputs'][chosen], new['inputs'][chosen]
  assert abs((now == 255).mean() - 0.8) < 0.05
  other = (now != 255) & (now != old)
  assert abs(other.mean() - 0.1) < 0.04
  assert now[other].max() < 200
  assert abs((now == old).mean() - 0.1) < 0.04


def test_masks_and_positions_are_independent():
  config, batch = create('rope', architecture='encoder'), lm_batch(4, 8)
  scheme = positions.create('head_warp(train_length=8, fraction=0.15)')
  index = batch['segment_positions']

  @jax.jit
  def drawn(rng):
    new = objective.masked(config, batch, rng)
    given = scheme(index, lengths=batch['lengths'], rng=rng, train=True)
    return new['weights'][0, 0], given

  equal = np.zeros(4)
  for seed in range(60):
    weight, given = drawn(jax.random.key(seed))
    warped = (np.asarray(given) != index).any(axis=1)
    equal += warped == bool(weight)
  assert (equal < 60).all()


def test_rate_of_masking():
  assert masked(rate=0.0)[1]['weights'].sum() == 0
  assert abs(masked(rate=0.5)[1]['weights'][:, :100].mean() - 0.5) < 0.03


def test_an_encoder_learns_masked_tokens():
  """A few steps of gradient descent lower the loss at the masked tokens."""
  config = create('rope', architecture='encoder')
  batch = lm_batch(4, 16)
  batch['inputs'] %= 4
  batch = objective.mask_tokens(KEY, batch, mask_id=9, vocab_size=4, rate=0.5)

  @jax.value_and_grad
  def loss(params):
    each = token_losses(config, 'standard', params, batch, 1, False, False)
    return jnp.sum(each * batch['weights']) / jnp.sum(batch['weights'])

  @jax.jit
  def step(params):
    value, grads = loss(params)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

  params = jax.jit(lambda: stacking.init(config, KEY))()
  losses = []
  for _ in range(21):
    value, params = step(params)
    losses.append(value)
  assert losses[-1] < 0.7 * losses[0]


def test_only_an_encoder_masks():
  batch = lm_batch()
  assert objective.masked(create('nope'), batch, KEY) is batch
  fields = presets.get('tiny') | {'vocab_size': 257, 'architecture': 'encoder'}
  got = objective.masked(models.ModelConfig(**fields), batch, KEY)
  chosen = got['weights'] > 0
  assert 0 < chosen.sum() < chosen.size
  # Tokens are those that a decoder would predict; all but the chosen are seen.
  np.testing.assert_array_equal(got['targets'], batch['targets'])
  assert (got['inputs'] == batch['targets'])[~chosen].all()
  assert (np.asarray(got['inputs'])[chosen] == 256).any()


def padded_batch():
  tokens = np.random.default_rng(0).integers(3, 256, (3, 9)).astype(np.int32)
  return windows.lm_batch(tokens, sizes=[4, 9, 6])


@pytest.mark.some(2)
@pytest.mark.parametrize(
  'encoding, scheme',
  [
    ('fire', 'standard'),
    ('rope', 'standard'),
    ('alibi', 'interpolated(scale=2.)'),
    ('kerple_log', 'shape(max_shift=8)'),
  ],
)
def test_padding_at_the_end_need_not_be_told(encoding, scheme, assert_close):
  config, batch = create(encoding), padded_batch()
  assert not objective.sees_padding(config, positions.create(scheme))
  told = losses(config, scheme, batch, train=True, packed=True)
  untold = losses(config, scheme, batch, train=True, packed=False)
  assert_close(untold * batch['weights'], told * batch['weights'])


@pytest.mark.parametrize(
  'fields, scheme',
  [
    ({'encoding': 'rope(train_length=4, dynamic=True)'}, 'standard'),
    ({'encoding': 'rope'}, 'interpolated(train_length=4)'),
    ({'encoding': 'rope'}, 'randomized(max_position=32)'),
    (
      {'attention_scale': "none, log_n(train_length=4, per='sequence')"},
      'standard',
    ),
    ({'architecture': 'encoder'}, 'standard'),
  ],
)
def test_padding_that_must_be_told(fields, scheme):
  config = models.ModelConfig(**presets.get('tiny') | fields)
  assert objective.sees_padding(config, positions.create(scheme))
