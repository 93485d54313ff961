"""Tests `lengen_jax/evaluation/generation.py`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import errors, positions
from lengen_jax.evaluation import generation, weights
from lengen_jax.evaluation.config import EvalConfig
from lengen_jax.models import ModelConfig, presets, stacking, transformer
from lengen_jax.training import config as training_config
from lengen_jax.training import sharding
from tests import helpers

NEW = 6
# No token of the model.
NEVER = -1
# All are padded to 16; and the same, with one that is not.
LENGTHS = (3, 14, 16, 0, 7)
LENGTHS_OF_TWO_WIDTHS = (3, 26, 16, 0, 7)


def layout(devices):
  """Rows split over some devices."""
  return sharding.Layout.create(
    training_config.MeshConfig(data=devices), devices
  )


def prompts(lengths=LENGTHS):
  return [np.random.default_rng(n).integers(0, 256, n) for n in lengths]


@functools.lru_cache(None)
def model(encoding='alibi', **kwargs):
  """A model of one layer; its random output varies."""
  config = helpers.tiny_model(encoding=encoding, **{'num_layers': 1} | kwargs)

  def varied(path, leaf):
    names = [entry.key for entry in path]
    if names[-1] == 'scale':
      return 1 + leaf
    # Outputs depend on attention more than on biases and the last token.
    small = names[:2] == ['embed', 'table'] or names[-1] == 'bias'
    return 0.1 * leaf if small else 2 * leaf

  return config, jax.tree_util.tree_map_with_path(
    varied, helpers.params_of(config)
  )


def generator(config, scheme='standard', **kwargs):
  kwargs = dict(max_new=NEW, end_id=NEVER, batch_tokens=64, seed=5) | kwargs
  kwargs.setdefault('layout', layout(2))
  return generation.Generator(config, positions.create(scheme), **kwargs)


def written(config, params, scheme='standard', lengths=LENGTHS, **kwargs):
  return generator(config, scheme, **kwargs).run(params, prompts(lengths))


def written_naively(config, params, scheme='standard', seed=5):
  """The same by a full pass for every token, over all that is planned."""
  scheme = positions.create(scheme)
  held = np.array(LENGTHS) + 1
  planned, rows = held - 1 + NEW, np.arange(len(held))
  inputs = np.zeros((len(rows), planned.max()), np.int32)
  for row, prompt in zip(inputs, prompts(), strict=True):
    row[1 : len(prompt) + 1] = prompt

  @jax.jit
  def given(inputs):
    alone = [
      scheme(
        jnp.arange(planned.max())[None],
        lengths=jnp.full((1, 1), planned[row]),
        tokens=inputs[row : row + 1],
        rng=jax.random.fold_in(
          jax.random.key(seed), 0 if scheme.same_rows else row
        ),
        num_layers=config.num_layers,
      )
      for row in rows
    ]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves, -2), *alone)

  @jax.jit
  def forward(inputs, given):
    lengths = jnp.asarray(planned, jnp.int32)[:, None]
    return transformer.create(config).apply(
      {'params': params}, inputs, given, lengths=lengths
    )

  written = np.zeros((len(rows), NEW), np.int32)
  for step in range(NEW):
    logits = np.asarray(forward(inputs, given(inputs)))[rows, held + step - 1]
    written[:, step] = logits.argmax(-1)
    if step + 1 < NEW:
      inputs[rows, held + step] = written[:, step]
    least, most = np.sort(logits, -1)[:, -2:].T
    assert (most - least).min() > 2e-5, 'rounding may decide'
  return list(written)


def assert_same(got, want):
  assert all(ids.dtype == np.int32 for ids in got)
  assert [ids.tolist() for ids in got] == [ids.tolist() for ids in want]


@pytest.mark.some(3)
@pytest.mark.parametrize(
  'encoding, scheme, kwargs',
  [
    pytest.param('fire', 'standard', {}, marks=pytest.mark.slow),
    ('rope(dynamic=True, train_length=4)', 'standard', {}),
    pytest.param('alibi', 'standard', {}, marks=pytest.mark.slow),
    pytest.param('kerple_log', 'standard', {}, marks=pytest.mark.slow),
    ('fire, t5', 'standard', {'scan_layers': True, 'num_layers': 4}),
    ('rope', 'randomized(max_position=64)', {}),
    pytest.param(
      'shaw, alibi',
      "randomized(max_position=64, mode='distances', draw='layer')",
      {},
      marks=pytest.mark.slow,
    ),
    # Half of the tokens are digits.
    (
      'learned(max_position=32) + rope',
      f'abacus(digits={(*range(128),)}) + randomized(max_position=64)',
      {},
    ),
  ],
)
def test_equals_full_passes(encoding, scheme, kwargs):
  config, params = model(encoding, **kwargs)
  want = written_naively(config, params, scheme)
  assert len(np.unique(want)) > NEW
  assert_same(written(config, params, scheme), want)


@pytest.mark.some(2)
@pytest.mark.parametrize('scan_layers', [False, True])
def test_kernels_are_converted_once(scan_layers, monkeypatch):
  config, params = model(
    'fire', dtype='bfloat16', scan_layers=scan_layers, num_layers=2
  )
  layer = weights.place(params, config, layout(1).whole)['layer_1']
  assert layer['attention']['query']['kernel'].dtype == jnp.bfloat16
  assert layer['mlp']['up']['kernel'].dtype == jnp.bfloat16
  fire = jax.tree.leaves(layer['attention']['encoding'])
  assert {leaf.dtype.name for leaf in fire} == {'float32'}
  got = generator(config).run(params, prompts())
  monkeypatch.setattr(weights, 'place', lambda p, *_: stacking.unstack(p))
  assert_same(got, generator(config).run(params, prompts()))


@pytest.mark.parametrize('scan_layers', [False, True])
def test_numpy_arrays_are_converted_on_the_host(monkeypatch, scan_layers):
  config, params = model('fire', dtype='bfloat16', scan_layers=scan_layers)
  whole = layout(1).whole
  want = weights.place(jax.tree.map(jnp.asarray, params), config, whole)
  sent, put = [], jax.device_put
  monkeypatch.setattr(
    jax, 'device_put', lambda x, where: sent.append(x) or put(x, where)
  )
  got = weights.place(jax.device_get(params), config, whole)
  helpers.assert_same(got, want)
  (tree,) = sent
  dtypes = [leaf.dtype for leaf in jax.tree.leaves(want)]
  assert [leaf.dtype for leaf in jax.tree.leaves(tree)] == dtypes


def test_the_router_stays_float32():
  config, params = model(
    dtype='bfloat16', num_experts=2, activation='swiglu', mlp_bias=True
  )
  found = weights.place(params, config, layout(1).whole)['layer_0']
  assert found['mlp']['router']['kernel'].dtype == jnp.float32
  assert found['mlp']['up_kernel'].dtype == jnp.bfloat16
  assert found['attention']['query']['kernel'].dtype == jnp.bfloat16


@pytest.mark.parametrize('scheme', ['forget', 'repo', 'selective'])
def test_contextual_positions_stay_float32(scheme):
  """They add up: errors of their kernels grow along a text."""
  config, params = model(dtype='bfloat16', contextual_positions=scheme)
  found = weights.place(params, config, layout(1).whole)
  found = found['layer_0']['attention']
  kernels = jax.tree.leaves(found['positions'])
  assert {leaf.dtype.name for leaf in kernels} == {'float32'}
  assert found['query']['kernel'].dtype == jnp.bfloat16


def test_stop_ids():
  config, params = model()
  (whole,) = written(config, params, lengths=(5,))
  counted = []
  for at, stop_ids in ((0, [whole[0]]), (2, [whole[2], 255])):
    (got,) = generator(config).run(
      params,
      prompts((5,)),
      lambda done, steps: counted.append(steps),
      stop_ids=stop_ids,
    )
    # The first token that ends an output is part of it.
    assert at == [*whole].index(whole[at])
    np.testing.assert_array_equal(got, whole[: at + 1])
  assert counted == [1, 3]


def test_samples_have_the_probabilities_of_the_nucleus():
  probabilities = np.array([0.1, 0.4, 0.05, 0.3, 0.15])
  logits = jnp.log(probabilities) + 3
  keys = jax.random.split(jax.random.key(0), 20_000)

  def frequencies(temperature, top_p):
    draw = jax.vmap(
      lambda key: generation.sample(logits, key, temperature, top_p)
    )
    return np.bincount(jax.jit(draw)(keys), minlength=5) / len(keys)

  def check(got, weights):
    np.testing.assert_allclose(got, weights / weights.sum(), atol=0.015)
    assert not got[weights == 0].any()

  check(frequencies(1.0, 1.0), probabilities)
  check(frequencies(0.5, 1.0), probabilities**2)
  check(frequencies(2.0, 1.0), probabilities**0.5)
  # 0.4 + 0.3 is less than 0.75, and with 0.15 more.
  check(frequencies(1.0, 0.75), probabilities * (probabilities >= 0.15))
  check(frequencies(1.0, 0.1), probabilities * (probabilities == 0.4))


def test_samples_depend_on_seed_and_index():
  config, params = model('rope')
  sampling = dict(temperature=1.0, top_p=0.95, batch_tokens=1)
  found = generator(config, **sampling)
  three = found.run(params, prompts((9, 9, 9)))
  assert len(set(map(str, three))) == 3
  assert_same(found.run(params, prompts((9, 9))), three[:2])
  other = written(config, params, lengths=(9, 9), seed=6, **sampling)
  assert not {*map(str, three)} & {*map(str, other)}
  # A nucleus of one token is greedy decoding.
  least = generator(config, temperature=1.0, top_p=1e-6)
  assert_same(least.run(params, prompts()), written(config, params))


@pytest.mark.parametrize(
  'options, message',
  [
    ({'temperature': -1.0}, 'temperature must be 0 .*; got -1.0'),
    # In float32, the logits would overflow.
    ({'temperature': 1e-40}, 'at least 1e-30; got 1e-40'),
    ({'temperature': float('nan')}, '(got|is) nan'),
    ({'temperature': 1.0, 'top_p': 0.0}, 'above 0 and at most 1.* got 0.0'),
    ({'temperature': 1.0, 'top_p': 1.5}, 'got 1.5'),
    ({'top_p': 0.5}, 'top_p=0.5 requires sampling: .*temperature above 0'),
  ],
)
def test_refuses_sampling_options(options, message):
  with pytest.raises(errors.ConfigError, match=message):
    generator(model()[0], **options)
  with pytest.raises(errors.ConfigError, match=f'eval.*{message}'):
    EvalConfig(lengths=(8,), batch_tokens=8, **options)


@pytest.mark.one_jax
def test_first_inputs_are_given_or_part_of_the_prompts():
  config, params = model()
  some = prompts((3, 26, 7))
  started = [np.concatenate([[5], prompt]) for prompt in some]
  given = generator(config, start_id=5).run(params, some)
  assert_same(generator(config, start_id=None).run(params, started), given)
  assert str(given) != str(generator(config).run(params, some))
  with pytest.raises(errors.ConfigError, match='prompt 1 is empty and there'):
    generator(config, start_id=None).run(params, prompts((3, 0)))


@pytest.mark.slow
def test_encodings_show_in_what_is_written():
  """Else the test above would say little."""
  found = [
    str(written(*model(encoding, num_layers=2), lengths=(23, 19)))
    for encoding in ('nope', 'alibi', 'fire')
  ]
  assert len(set(found)) == 3


@pytest.mark.parametrize(
  'encoding, scheme',
  [
    ('rope(dynamic=True, train_length=4)', 'standard'),
    pytest.param(
      'alibi', 'randomized(max_position=64)', marks=pytest.mark.slow
    ),
  ],
)
def test_the_batch_does_not_matter(encoding, scheme):
  config, params = model(encoding)
  lengths = LENGTHS_OF_TWO_WIDTHS
  want = written(config, params, scheme, lengths, batch_tokens=10_000)
  # Two rows at a time; the only one of its width leaves one to fill.
  found = generator(config, scheme, batch_tokens=1)
  reported = []
  got = found.run(params, prompts(lengths), lambda *now: reported.append(now))
  assert_same(got, want)
  assert reported == [(1, NEW), (3, NEW), (5, NEW)]
  # Alone, the first prompt has the same index.
  alone = written(config, params, scheme, lengths[:1], layout=layout(1))
  assert_same(alone, want[:1])


@pytest.mark.slow
def test_draws_go_by_seed_and_index():
  config, params = model('rope')
  scheme = 'randomized(max_position=64)'
  found = generator(config, scheme, batch_tokens=1)
  three = found.run(params, prompts((9, 9, 9)))
  assert len(set(map(str, three))) == 3
  assert_same(found.run(params, prompts((9, 9))), three[:2])
  other = written(config, params, scheme, (9, 9), seed=6)
  assert not {*map(str, three)} & {*map(str, other)}
  alike = "randomized(max_position=64, draw='batch')"
  assert len(set(map(str, written(config, params, alike, (9, 9, 9))))) == 1


def test_the_end_ends_and_is_left_out():
  config, params = model()
  free = written(config, params)
  end = int(free[1][2])
  want = []
  for ids in free:
    at = np.flatnonzero(ids == end)
    want.append(ids[: at[0]] if len(at) else ids)
  assert len(want[1]) == 2 and NEW in map(len, want)
  assert_same(written(config, params, end_id=end), want)


@pytest.mark.parametrize(
  'devices', [pytest.param(1, marks=pytest.mark.slow), 2]
)
def test_stops_when_all_have_ended(devices):
  config, params = model(output_size=256)
  found = generator(config, end_id=9, batch_tokens=500, layout=layout(devices))
  # A batch of each width.
  some = prompts(LENGTHS_OF_TWO_WIDTHS)
  steps = []
  found.run(params, some, lambda _, step: steps.append(step))
  assert steps == [NEW, NEW]
  output = params['head']['output']
  output = output | {'bias': np.where(np.arange(256) == 9, 1e4, 0)}
  params = params | {'head': {'output': output}}
  got = found.run(params, some, lambda _, step: steps.append(step))
  assert steps[2:] == [1, 1]
  assert [len(ids) for ids in got] == [0] * len(LENGTHS)


@pytest.mark.one_jax
def test_what_just_fits_is_not_refused_for_its_padding():
  # 19 tokens of prompt would be padded to 24.
  most = 19 + NEW
  config, params = model(f'learned(max_position={most})')
  assert len(written(config, params, lengths=(3, 19))[1]) == NEW
  with pytest.raises(errors.LengthError, match=f'no entry for position {most}'):
    written(config, params, lengths=(3, 20))
  scheme = f'randomized(max_position={most})'
  with pytest.raises(errors.LengthError, match=f'for a segment of {most + 1}'):
    written(*model('rope'), scheme, lengths=(3, 20))


@pytest.mark.one_jax
def test_what_goes_by_the_slots_gets_no_padding():
  config, params = model('transformer_xl(official_compat=True)')
  lengths = (3, 5, 3)
  got = written(config, params, lengths=lengths)
  one = generator(config, layout=layout(1))
  assert_same(got[:1], one.run(params, prompts(lengths[:1])))
  assert_same(got[2:], got[:1])


def test_a_diverged_model_says_so():
  config, params = model()
  params = params | {'final_norm': {'scale': jnp.full(32, jnp.nan)}}
  params['final_norm']['bias'] = jnp.zeros(32)
  found, steps = generator(config), []
  with pytest.raises(errors.MetricError, match='the model has diverged'):
    found.run(params, prompts(LENGTHS[:1]), lambda *done: steps.append(done))
  assert steps == [(1, 1)]


@pytest.mark.parametrize(
  'prompt, message',
  [
    (
      np.array([3, 256]),
      'prompt 1 has tokens from 0 to 256; .* vocab_size=256',
    ),
    (np.array([-1, 3]), 'prompt 1 has tokens from -1 to 3'),
    (np.array([[1, 2]]), r'prompt 1 is int64 \(1, 2\)'),
    (np.array([1.5]), r'prompt 1 is float64 \(1,\)'),
  ],
)
def test_refuses_what_is_no_prompt(prompt, message):
  with pytest.raises(errors.ConfigError, match=message):
    generator(model()[0]).run({}, [np.array([1]), prompt])


def test_refuses_roles_that_do_not_fit():
  coupled = generator(
    model('learned(max_position=64)')[0], 'coupled(max_position=8)'
  )
  given = [np.array([1, 2]), np.array([1])]
  roles = [np.zeros((1, 2 + NEW), int), np.zeros((1, 1 + NEW), int)]
  with pytest.raises(
    errors.CombinationError, match='coupled.* needs the roles'
  ):
    coupled.run({}, given)
  with pytest.raises(errors.ConfigError, match='2 prompts, but roles for 1'):
    coupled.run({}, given, roles=roles[:1])
  with pytest.raises(errors.ConfigError, match=r'prompt 1 .*\[R, 7\]'):
    coupled.run({}, given, roles=[roles[0], roles[0]])
  with pytest.raises(errors.ConfigError, match='prompt 0 are float64'):
    coupled.run({}, given, roles=[roles[0] / 2, roles[1]])
  with pytest.raises(errors.LengthError, match='role 7; set max_position=9'):
    coupled.run({}, given, roles=[roles[0], roles[1] + 7])


def test_refuses_what_does_not_decode():
  config = ModelConfig(**presets.get('tiny'), architecture='encoder')
  with pytest.raises(errors.ConfigError, match="got 'encoder'"):
    generator(config)
  for name in ('max_new', 'batch_tokens'):
    with pytest.raises(errors.ConfigError, match=f'{name} must be at least 1'):
      generator(model()[0], **{name: 0})
  for first in (-1, model()[0].vocab_size):
    with pytest.raises(errors.ConfigError, match=f'start_id={first} is not a'):
      generator(model()[0], start_id=first)
  found = generator(model('learned(max_position=64)')[0], 'equal_mean')
  with pytest.raises(errors.CombinationError, match='fractional positions'):
    found.run({}, prompts())


def test_no_prompts():
  assert generator(model()[0]).run({}, []) == []


def test_each_token_is_drawn_anew():
  """All logits are equal, so that one draw for all would repeat a token."""
  config, params = model()
  norm = jax.tree.map(jnp.zeros_like, params['final_norm'])
  made = generator(config, temperature=1.0)
  (ids,) = made.run(params | {'final_norm': norm}, prompts((5,)))
  assert len({*ids.tolist()}) > 1
