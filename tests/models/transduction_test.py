"""Tests `lengen_jax/models/transduction.py`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import errors, tasks, testing
from lengen_jax.models import presets, recurrent, transduction
from lengen_jax.tasks import batches
from tests import helpers

# Two outputs more than inputs, fewer, and outputs at some inputs.
TASKS = (
  'chomsky/duplicate_string',
  'chomsky/compute_sqrt',
  'synthetic/flip_flop',
)
SCHEMES = {
  'kerple_log': 'randomized(max_position=99)',
  'transformer_xl': (
    "randomized(max_position=99, mode='distances', draw='layer')"
  ),
  'sinusoidal': "randomized(max_position=99, draw='batch')",
  'rope': 'interpolated(train_length=4)',
}
# Those that treat padding as another one does.
ALIKE = {
  'nope',
  'learned',
  'transformer_xl',
  't5',
  'alibi',
  'kerple_log',
  'kerple_power',
  'sandwich',
  'ntk',
  'yarn',
  'llama3',
  'longrope',
  'linear',
  'pope',
  'rerope',
  'self_extend',
  'lm_infinite',
}
CASES = [
  *(
    (spec, 'standard')
    for spec in testing.encoding_specs()
    if spec.split('(')[0] not in ALIKE
  ),
  *SCHEMES.items(),
  *((name, 'standard') for name in recurrent.NAMES),
]


def fields(encoding, architecture='encoder', attention_scale='none'):
  return {
    **presets.get('tiny'),
    'architecture': architecture,
    'head_dim': 8,
    'encoding': encoding,
    'attention_scale': attention_scale,
  }


def create(task, encoding, scheme='standard', *more, **options):
  given = fields(encoding, *more, **options)
  model = transduction.create(
    task, given, scheme, train_length=9, test_length=9
  )
  init = functools.partial(model.init, jax.random.key(0))
  return model, jax.tree.map(jnp.asarray, helpers.random_params(init))


def run(task, model, params, inputs, targets, length, train=True):
  """Logits of each target."""
  batch = batches.make(
    task, inputs, targets, length, autoregressive=model.autoregressive
  )
  rngs = {'positions': jax.random.key(4)}
  outputs = model.apply(params, batch, rngs=rngs, train=train, scored=False)
  return batches.at_targets(task, outputs, inputs, targets, length)


@pytest.mark.some(8)
@pytest.mark.parametrize('encoding, scheme', CASES)
def test_padded_equals_unpadded(encoding, scheme, assert_close):
  task = tasks.create(TASKS[len(encoding) % 3])
  model, params = create(task, encoding, scheme)

  def logits(length, width=None):
    batch = task.sample(jax.random.key(3), 2, length, padded_length=width)
    return run(task, model, params, *batch, length)

  alone = jax.jit(functools.partial(logits, 5))()
  assert alone.shape == (2, task.output_length(5), task.vocab_out)
  padded = jax.jit(functools.partial(logits, width=9))(jnp.int32(5))
  assert_close(padded[:, : alone.shape[1]], alone)


@pytest.mark.parametrize(
  'encoding, scheme, architecture',
  [
    ('rope', 'interpolated(train_length=4)', 'encoder'),
    (
      'rope',
      "randomized(max_position=99, draw='batch', test='even')",
      'decoder',
    ),
    ('rope(dynamic=True, train_length=4)', 'standard', 'decoder'),
  ],
)
def test_rows_of_unequal_length(encoding, scheme, architecture, assert_close):
  """Each row has the positions of its own length."""
  task = tasks.create("arithmetic/addition(lengths='uniform')")
  inputs, targets = task.sample(jax.random.key(3), 4, 3)
  sizes = np.asarray(task.input_lengths(inputs, 3))
  assert len(set(sizes)) > 1
  model, params = create(task, encoding, scheme, architecture)

  @jax.jit
  def logits(inputs, targets):
    return run(task, model, params, inputs, targets, 3, train=False)

  found = logits(inputs, targets)
  for row in range(4):
    one = slice(row, row + 1)
    assert_close(found[one], logits(inputs[one], targets[one]))


def test_logit_scales_of_rows_of_unequal_length(assert_close):
  """An encoder sees all keys of its row, as many as the row has."""
  task = tasks.create("arithmetic/addition(lengths='uniform')")
  inputs, targets = task.sample(jax.random.key(3), 4, 9)
  sizes = np.asarray(task.input_lengths(inputs, 9)).ravel()
  assert len({*sizes}) > 1
  model, params = create(task, 'nope', attention_scale='ssmax')

  @jax.jit
  def logits(inputs, targets):
    return run(task, model, params, inputs, targets, 9, train=False)

  order = np.argsort(sizes)
  found, reversed_rows = (
    logits(inputs[rows], targets[rows]) for rows in (order, order[::-1])
  )
  assert_close(reversed_rows[::-1], found)


def test_a_tape_holds_the_longest_test(monkeypatch):
  task, found = tasks.create('chomsky/reverse_string'), {}
  monkeypatch.setattr(
    recurrent, 'create', lambda name, **sizes: found.update(sizes)
  )
  transduction.create(
    task, fields('tape_rnn'), 'standard', train_length=3, test_length=9
  )
  assert found['memory_size'] == batches.count_tokens(task, 9)


def test_recurrent_models_have_no_logit_scale():
  given = fields('lstm', attention_scale='ssmax')
  with pytest.raises(errors.CombinationError, match="remove 'ssmax'"):
    transduction.create(
      tasks.create('chomsky/reverse_string'),
      *(given, 'standard'),
      train_length=3,
      test_length=3,
    )


def test_as_many_positions_as_tokens_suffice():
  task = tasks.create('chomsky/reverse_string')
  count = batches.count_tokens(task, 9)
  create(task, 'rope', f'randomized(max_position={count})')
  with pytest.raises(errors.LengthError, match=f'max_position={count}'):
    create(task, 'rope', f'randomized(max_position={count - 1})')


def test_an_encoder_does_not_see_the_targets():
  task = tasks.create('chomsky/reverse_string')
  model, params = create(task, 'alibi')
  inputs, targets = task.sample(jax.random.key(0), 2, 4)

  got, other = (
    run(task, model, params, inputs, t, 4) for t in (targets, 1 - targets)
  )
  np.testing.assert_array_equal(got, other)
  # Every answer is its own.
  assert np.abs(np.diff(got, axis=1)).max() > 1e-4


def test_a_decoder_sees_earlier_targets_only():
  task = tasks.create('algorithmic/copy')
  model, params = create(task, 'alibi', architecture='decoder')
  inputs, targets = task.sample(jax.random.key(0), 2, 4)

  other = targets.at[:, 1].set((targets[:, 1] + 1) % task.vocab_out)
  before, after = (
    np.asarray(run(task, model, params, inputs, t, 4)) for t in (targets, other)
  )
  np.testing.assert_array_equal(before[:, :2], after[:, :2])
  assert (np.abs(before[:, 2:] - after[:, 2:]).max(-1) > 1e-5).all()


def test_tagged_rows():
  task = tasks.create('synthetic/flip_flop')
  inputs, targets = task.sample(jax.random.key(0), 3, 4, 6)
  assert inputs.shape == targets.shape == (3, 12)
  for autoregressive in (True, False):
    batch = batches.make(
      task, inputs, targets, 4, autoregressive=autoregressive
    )
    batch = jax.tree.map(np.asarray, batch)
    np.testing.assert_array_equal(batch['inputs'], inputs)
    scored = np.asarray(task.mask(targets, 4))
    assert (scored == (np.asarray(inputs) == 1)).all() and scored[:, 6].all()
    np.testing.assert_array_equal(batch['weights'], scored)
    np.testing.assert_array_equal(batch['targets'], targets * scored)
    assert (batch['lengths'] == 8).all()
    np.testing.assert_array_equal(
      batch['segment_ids'], np.broadcast_to(np.arange(12) < 8, (3, 12))
    )
  outputs = np.arange(36).reshape(3, 12)
  at = batches.at_targets(task, outputs, inputs, targets, 4)
  np.testing.assert_array_equal(at, outputs)
  assert batches.count_tokens(task, 6) == 12


@pytest.mark.parametrize(
  'name, want', [('synthetic/flip_flop', 10), ('chomsky/duplicate_string', 5)]
)
def test_a_tape_jumps_by_the_input(monkeypatch, name, want):
  task = tasks.create(name)
  model, params = create(task, 'tape_rnn')
  given = []
  monkeypatch.setattr(
    recurrent.Recurrent,
    'apply',
    lambda *_, input_lengths, **__: given.append(input_lengths),
  )
  run_with = functools.partial(model.apply, params, rngs={}, scored=False)
  inputs, targets = task.sample(jax.random.key(3), 2, 5, 9)
  run_with(batches.make(task, inputs, targets, 5, autoregressive=False))
  assert given[0].tolist() == [want, want]


def test_lora_needs_trained_weights():
  task = tasks.create('algorithmic/copy')
  fields = {**presets.get('tiny'), 'attention_scale': 'none', 'lora_rank': 4}
  with pytest.raises(errors.CombinationError, match='model.lora_rank=4 needs'):
    transduction.create(
      task,
      fields | {'encoding': 'rope'},
      'standard',
      train_length=9,
      test_length=9,
    )


@pytest.mark.parametrize(
  'positions, fits', [(9, False), (12, False), (13, True)]
)
def test_all_roles_of_a_task_need_positions(positions, fits):
  """Also those of rare rows: a sum of 9 and 9 digits may have 10."""
  task = tasks.create('arithmetic/addition(lengths="uniform")')
  arguments = (
    task,
    f'learned(max_position={positions})',
    f'coupled(max_position={positions})',
    'decoder',
  )
  if fits:
    create(*arguments)
    return
  with pytest.raises(errors.LengthError, match='role 11; set max_position=13'):
    create(*arguments)


def test_rows_of_roles_need_as_many_tables():
  keys = "format='reversed', pad=True, operands=3, scratchpad=True"
  task = tasks.create(f'arithmetic/addition({keys})')
  coupled = 'coupled(max_position=40)'
  create(
    task, 'learned(max_position=40, rows=2)', f'{coupled} + standard', 'decoder'
  )
  with pytest.raises(errors.CombinationError, match='rows'):
    create(task, 'learned(max_position=40)', coupled, 'decoder')
  with pytest.raises(errors.CombinationError, match='takes one'):
    create(task, 'rope', coupled, 'decoder')
  task = tasks.create('algorithmic/sort')
  with pytest.raises(errors.ConfigError, match='needs roles'):
    create(task, 'learned(max_position=40)', coupled, 'decoder')
