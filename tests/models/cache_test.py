"""Tests `lengen_jax/models/cache.py` and decoding with whole models.

That decoding equals a full pass for every encoding and scheme is tested in
`tests/testing_test.py`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import errors, models, positions
from lengen_jax.models import cache as cache_lib
from tests import helpers

LENGTH = 10
PLANNED = np.array([7, 10])
KEY = jax.random.key(3)


def create(encoding='nope', **kwargs):
  return helpers.tiny_model(encoding=encoding, **kwargs)


def initial(config):
  return jax.tree.map(jnp.asarray, helpers.initial(config))


def tokens(length=LENGTH):
  return jax.random.randint(jax.random.key(1), (2, length), 0, 256)


def full_pass(config, params, scheme, **kwargs):
  index = jnp.tile(jnp.arange(LENGTH)[None], (2, 1))
  lengths = jnp.asarray(PLANNED)[:, None]
  given = scheme(index, lengths=lengths, rng=KEY, num_layers=config.num_layers)
  apply = jax.jit(models.create(config).apply)
  return apply(
    {'params': params}, tokens(), *kwargs.values(), given, lengths=lengths
  )


@functools.partial(jax.jit, static_argnums=0)
def step(config, params, inputs, cache, new_lengths, *encoded):
  return models.create(config).apply(
    {'params': params},
    inputs,
    cache,
    *encoded,
    new_lengths=new_lengths,
    method='decode',
  )


def decoded(config, params, cache, *encoded, prompt=(2, 4), next_width=1):
  """Returns logits of all planned tokens; the first call takes prompts.

  Later calls take one token per row and pad it to `next_width`; the width of
  the prompts saves a compilation.
  """
  logits = [[], []]
  padded = jnp.pad(tokens(), ((0, 0), (0, 4)))
  new = jnp.array(prompt)
  width = max(prompt)
  while int(new.max()) > 0:
    at = cache.length[:, None] + jnp.arange(width)[None]
    inputs = jnp.take_along_axis(padded, at, axis=1, mode='clip')
    got, cache = step(config, params, inputs, cache, new, *encoded)
    for row in range(2):
      logits[row] += [*got[row, : new[row]]]
    width = next_width
    new = jnp.minimum(1, jnp.asarray(PLANNED) - cache.length)
  np.testing.assert_array_equal(cache.length, PLANNED)
  return [jnp.stack(row) for row in logits]


# Layers one by one are tested with every encoding in `testing_test.py`.
@pytest.mark.some(2)
@pytest.mark.parametrize(
  'scan_layers', [pytest.param(False, marks=pytest.mark.slow), True]
)
@pytest.mark.parametrize(
  'encoding, scheme, kwargs',
  [
    ('fire(shared=True), rope(dynamic=True, train_length=4)', 'standard', {}),
    ('sinusoidal', "randomized(max_position=32, draw='layer')", {}),
    (
      'shaw, alibi',
      "randomized(max_position=32, mode='distances', draw='layer')",
      {'attention_scale': 'ssmax'},
    ),
    (
      'learned(max_position=32), t5(shared=True)',
      "randomized(max_position=32, test='even')",
      {'attention_scale': "log_n(train_length=4, per='sequence')"},
    ),
    (
      'kerple_log',
      'equal_mean',
      {
        **{'norm_placement': 'post', 'norm': 'rms'},
        **{'window': (3, None), 'sinks': (1, 0)},
      },
    ),
    ('rope, fire', 'standard', {'window': 3, 'sinks': 1, 'key_heads': 1}),
    ('shaw, transformer_xl', 'standard', {'key_heads': 1}),
  ],
)
def test_decoding_equals_a_full_pass(
  encoding, scheme, kwargs, scan_layers, assert_close
):
  config = create(encoding, scan_layers=scan_layers, **kwargs)
  params = initial(config)
  scheme = positions.create(scheme)
  want = full_pass(config, params, scheme)
  cache = cache_lib.create(
    config, 2, LENGTH, scheme=scheme, planned=PLANNED, rng=KEY
  )
  got = decoded(config, params, cache, next_width=4)
  for row, planned in enumerate(PLANNED):
    assert_close(got[row], want[row, :planned], 1e-5)


@pytest.mark.parametrize(
  'encoding, contextual, kwargs',
  [
    ('rope, linear', 'repo, forget', {'key_heads': 1}),
    pytest.param(
      'fire(shared=True)',
      'forget, none',
      {'window': (3, None), 'sink_logits': (True, False)},
      marks=pytest.mark.slow,
    ),
    pytest.param(
      'pope(shared=True)',
      'selective',
      {
        **{'key_heads': 1, 'query_key_norm': 'head', 'output_gate': 'head'},
        'scan_layers': True,
      },
      marks=pytest.mark.slow,
    ),
    pytest.param(
      'transformer_xl, pope',
      'forget(bias_init=2), none',
      {'logit_cap': 0.5, 'query_key_norm': 'all', 'output_gate': 'element'},
      marks=pytest.mark.slow,
    ),
  ],
)
def test_contextual_positions_continue_while_decoding(
  encoding, contextual, kwargs, assert_close
):
  """Sums go on from call to call, at other lengths in each row."""
  config = create(encoding, contextual_positions=contextual, **kwargs)
  params = initial(config)
  want = full_pass(config, params, positions.create('standard'))
  for prompt in ((2, 4), (4, 1)):
    cache = cache_lib.create(config, 2, LENGTH, planned=PLANNED)
    got = decoded(config, params, cache, prompt=prompt, next_width=4)
    for row, planned in enumerate(PLANNED):
      assert_close(got[row], want[row, :planned], 1e-5)


def test_slots_hold_contextual_positions():
  config = create('rope', contextual_positions='repo, none', dtype='bfloat16')
  cache = cache_lib.create(config, 2, LENGTH)
  given = [positions_of for _, _, positions_of in cache.layers]
  assert given[0].value.shape == (2, LENGTH, config.num_heads)
  assert given[0].value.dtype == jnp.float32
  assert given[1] is None


def test_an_encoder_decoder_decodes(assert_close):
  config = create('alibi', architecture='encoder_decoder')
  params = initial(config)
  source = tokens(5)
  model = models.EncoderDecoder(config)
  want = full_pass(config, params, positions.create('standard'), source=source)
  encode = jax.jit(functools.partial(model.apply, method='encode'))
  encoded = encode({'params': params}, source)
  cache = cache_lib.create(config, 2, LENGTH, planned=PLANNED)
  got = decoded(config, params, cache, encoded)
  for row, planned in enumerate(PLANNED):
    assert_close(got[row], want[row, :planned], 1e-5)


def test_padding_of_the_encoder_is_not_seen(assert_close):
  config = create('alibi', architecture='encoder_decoder')
  params = initial(config)
  model = models.EncoderDecoder(config)

  @jax.jit
  def first_logits(source, ids):
    encoded = model.apply(
      {'params': params}, source, segment_ids=ids, method='encode'
    )
    return model.apply(
      {'params': params},
      tokens(3),
      cache_lib.create(config, 2, LENGTH),
      encoded,
      encoded_segment_ids=ids,
      method='decode',
    )[0]

  source = tokens(5)
  padded = jnp.pad(source, ((0, 0), (0, 2)), constant_values=9)
  ids = jnp.array([[1] * 5 + [0] * 2] * 2)
  want = first_logits(source, None)
  assert_close(first_logits(padded, ids), want, 1e-5)
  assert np.abs(first_logits(padded, ids * 0 + 1) - want).max() > 1e-4


def test_rows_that_are_alike_share_positions():
  config = create('alibi')
  assert cache_lib.create(config, 2, LENGTH).positions.shape == (1, LENGTH)
  cache = cache_lib.create(config, 2, LENGTH, planned=PLANNED)
  assert cache.positions.shape == (2, LENGTH)
  scheme = positions.create("randomized(max_position=32, draw='layer')")
  drawn = cache_lib.create(config, 2, LENGTH, scheme=scheme, rng=KEY)
  assert drawn.positions.shape == (config.num_layers, 1, LENGTH)
  scheme = positions.create('randomized(max_position=32)')
  drawn = cache_lib.create(config, 2, LENGTH, scheme=scheme, rng=KEY)
  assert drawn.positions.shape == (2, LENGTH)


@pytest.mark.parametrize('scan_layers', [False, True])
def test_shapes(scan_layers):
  config = create('alibi', scan_layers=scan_layers, dtype='bfloat16')
  cache = cache_lib.create(config, 2, LENGTH)
  assert len(cache.layers) == config.num_layers
  for keys, values, positions_of in cache.layers:
    assert keys.shape == (2, 2, 16, LENGTH)
    assert values.shape == (2, 2, LENGTH, 16)
    assert keys.dtype == values.dtype == jnp.bfloat16
    assert positions_of is None


def test_beyond_the_plan_there_are_no_logits():
  config = create('alibi')
  params = initial(config)
  cache = cache_lib.create(config, 2, LENGTH, planned=PLANNED)
  logits, cache = step(config, params, tokens(), cache, None)
  told = np.isfinite(logits).all(-1)
  np.testing.assert_array_equal(told.sum(1), PLANNED)
  kept = jax.tree.map(np.asarray, cache.layers)
  logits, cache = step(config, params, tokens(1), cache, None)
  assert np.isnan(logits).all()
  # Nothing in the cache is overwritten.
  jax.tree.map(np.testing.assert_array_equal, cache.layers, kept)


def test_a_longer_plan_rotates_cached_keys_again(assert_close):
  """Cached keys are unrotated if the rotation depends on the length."""
  config = create('rope(dynamic=True, train_length=4)')
  params = initial(config)
  short = cache_lib.create(config, 2, LENGTH, planned=np.array([4, 4]))
  _, short = step(config, params, tokens(4), short, None)
  long = cache_lib.create(config, 2, LENGTH)
  _, long = step(config, params, tokens(4), long, None)
  assert_close(short.layers[0], long.layers[0], 1e-6)
  grown = short.replace(planned=long.planned)
  one = params | {'layer_1': jax.tree.map(jnp.zeros_like, params['layer_1'])}
  assert_close(
    step(config, one, tokens(1), grown, None)[0],
    step(config, one, tokens(1), long, None)[0],
    1e-5,
  )


@pytest.mark.parametrize(
  'encoding, kwargs, error, message',
  [
    (
      'learned(max_position=8)',
      {},
      errors.LengthError,
      'no entry for position 9',
    ),
    (
      'learned(max_position=32)',
      {'scheme': 'equal_mean'},
      errors.CombinationError,
      'equal_mean has fractional positions',
    ),
    (
      'rope',
      {'scheme': 'randomized(max_position=8)'},
      errors.LengthError,
      'segment of 10',
    ),
    (
      'rope',
      {'planned': [3, 11]},
      errors.LengthError,
      'from 3 to 11; they must be between 1 and max_length=10',
    ),
    ('rope', {'planned': [3.7, 3.0]}, errors.ConfigError, 'float64'),
    (
      'rope',
      {'planned': [3]},
      errors.ConfigError,
      r'integers, shape \(2,\)',
    ),
    ('rope', {'planned': [0, 3]}, errors.LengthError, 'from 0 to 3'),
    (
      'alibi, transformer_xl(official_compat=True)',
      {'planned': PLANNED},
      errors.LengthError,
      r'transformer_xl\(official_compat=True\) depends on the number of slots: '
      'max_length=10',
    ),
  ],
)
def test_refuses(encoding, kwargs, error, message):
  kwargs = dict(kwargs)
  with pytest.raises(error, match=message):
    cache_lib.create(create(encoding), 2, LENGTH, rng=KEY, **kwargs)


def test_a_scheme_may_be_a_spec():
  config = create('alibi')
  spec = 'randomized(max_position=32)'
  one, other = (
    cache_lib.create(config, 2, LENGTH, scheme=scheme, rng=KEY).positions
    for scheme in (spec, positions.create(spec))
  )
  np.testing.assert_array_equal(one, other)


def test_refuses_models_and_rows_that_do_not_decode():
  with pytest.raises(errors.ConfigError, match='an encoder does not decode'):
    cache_lib.create(create(architecture='encoder'), 2, LENGTH)
  with pytest.raises(errors.ConfigError, match='batch_size=0'):
    cache_lib.create(create(), 0, LENGTH)
  with pytest.raises(errors.ConfigError, match='concrete planned lengths'):
    jax.eval_shape(
      lambda planned: cache_lib.create(create(), 2, LENGTH, planned=planned),
      PLANNED,
    )


def test_slots_may_be_counted_where_all_are_planned():
  config = create('transformer_xl(official_compat=True)')
  cache = cache_lib.create(config, 2, LENGTH, planned=[LENGTH] * 2)
  np.testing.assert_array_equal(cache.planned, [[LENGTH]] * 2)


@pytest.mark.parametrize(
  'encoding',
  [
    'fire',
    pytest.param('kerple_log', marks=pytest.mark.slow),
    pytest.param('t5', marks=pytest.mark.slow),
    'rope',
  ],
)
def test_a_token_costs_as_much_as_there_are_slots(encoding):
  """And no more: the bias of one row, not of all pairs."""
  config = create(encoding)
  params = initial(config)

  def cost(slots):
    cache = cache_lib.create(config, 1, slots)
    compiled = step.lower(
      config, params, jnp.zeros((1, 1), int), cache, None
    ).compile()
    largest = compiled.memory_analysis().temp_size_in_bytes
    return compiled.cost_analysis()['flops'], largest

  (flops, size), (flops_of_more, size_of_more) = cost(512), cost(2048)
  assert flops_of_more < 4.2 * flops
  assert size_of_more < 4.2 * size
