"""Tests `lengen_jax/encodings/rotary.py`.

Golden arrays: `golden/encodings/README.json`, files rope_hf (settings in
rope_meta.json), rope_layouts_hf and ruoss_official.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lengen_jax import encodings, errors
from tests import helpers

FOLDER = helpers.GOLDEN / 'encodings'
GOLDEN = np.load(FOLDER / 'rope_hf.npz')
META = json.loads((FOLDER / 'rope_meta.json').read_text())
LAYOUTS = np.load(FOLDER / 'rope_layouts_hf.npz')
RUOSS = np.load(FOLDER / 'ruoss_official.npz')
VARIANTS = ['default_1e4', 'linear4']


def create(keys='', num_heads=2, head_dim=16):
  return encodings.create(
    f'rope({keys})', num_heads=num_heads, head_dim=head_dim
  )


def rotate(encoding, q, k, q_positions, k_positions=None, **kwargs):
  k_positions = q_positions if k_positions is None else k_positions
  return encoding.apply(
    {}, q, k, q_positions, k_positions, method='rotate', **kwargs
  )


def from_golden(variant):
  meta = META[variant]['rope_parameters']
  keys = f'base={meta["rope_theta"]}, scale={meta.get("factor", 1.0)}'
  return create(keys, 1, META[variant]['head_dim'])


def turn(x, p, keys):
  """One vector turned in float64, pair by pair."""
  x = np.float64(x)
  y = x.copy()
  size = int(keys.get('fraction', 1.0) * len(x))
  for n in range(size // 2):
    angle = (
      p / keys.get('scale', 1.0) * keys.get('base', 1e4) ** (-2 * n / size)
    )
    if keys.get('layout') == 'interleaved':
      a, b = 2 * n, 2 * n + 1
    else:
      a, b = n, n + size // 2
    y[a] = x[a] * np.cos(angle) - x[b] * np.sin(angle)
    y[b] = x[b] * np.cos(angle) + x[a] * np.sin(angle)
  return y


def random_qk(seed=0, q_heads=2, k_heads=2, head_dim=16, lengths=(5, 7)):
  rng = np.random.default_rng(seed)
  shapes = [
    (2, lengths[0], q_heads, head_dim),
    (2, lengths[1], k_heads, head_dim),
  ]
  return [np.float32(rng.normal(size=shape)) for shape in shapes]


@pytest.mark.parametrize('kind', ['pos', 'fpos'])
@pytest.mark.parametrize('variant', VARIANTS)
def test_golden_tables(variant, kind):
  """Turning (1 .. 1, 0 .. 0) reads off (cos, sin)."""
  encoding = from_golden(variant)
  half = encoding.head_dim // 2
  positions = GOLDEN[kind]
  assert kind == 'pos' or (positions % 1 != 0).any()
  positions = positions.astype(np.int32 if kind == 'pos' else np.float32)
  x = np.zeros((1, len(positions), 1, 2 * half), np.float32)
  x[..., :half] = 1
  got, _ = rotate(encoding, x, x, jnp.asarray(positions))
  # Angles are float32 products, hence good to so many units in the last place.
  angle = positions[:, None] * np.float64(GOLDEN[f'{variant}/inv_freq_init'])
  bound = 1e-6 + 2.5e-7 * angle
  for table, part in (('cos', slice(half)), ('sin', slice(half, None))):
    want = GOLDEN[f'{variant}/{kind}/{table}']
    assert (np.abs(got[0, :, 0, part] - want) <= bound).all()


@pytest.mark.parametrize('variant', VARIANTS)
def test_golden_rotation(variant, assert_close):
  encoding = from_golden(variant)
  q, k = (GOLDEN[f'{variant}/rot/{n}'].swapaxes(1, 2) for n in 'qk')
  positions = GOLDEN[f'{variant}/rot/pos'].astype(np.int32)
  got = rotate(encoding, q, k, positions)
  for y, name in zip(got, ('q_out', 'k_out'), strict=True):
    want = GOLDEN[f'{variant}/rot/{name}'].swapaxes(1, 2)
    assert_close(y, want, 1e-5)


@pytest.mark.parametrize('size', [16, 32])
def test_golden_interleaved(size, assert_close):
  x = LAYOUTS['gptj/x']
  keys = f"layout='interleaved', fraction={size / 32}"
  positions = LAYOUTS['gptj/pos'].astype(np.int32)
  got, _ = rotate(create(keys, 2, 32), x, x, positions)
  assert_close(got, LAYOUTS[f'gptj/rot{size}/out'], 1e-5)


def test_golden_partial(assert_close):
  x = LAYOUTS['neox/pct0.25/x'].swapaxes(1, 2)
  positions = LAYOUTS['gptj/pos'].astype(np.int32)
  encoding = create('fraction=.25', 2, 32)
  _, got = rotate(encoding, x, x, positions)
  assert_close(got, LAYOUTS['neox/pct0.25/out'].swapaxes(1, 2), 1e-5)
  np.testing.assert_allclose(
    np.ravel(encoding.frequencies(None)),
    LAYOUTS['neox/pct0.25/inv_freq'],
    rtol=1e-6,
  )
  # The part that is not turned is left alone, bit for bit.
  np.testing.assert_array_equal(got[..., 8:], x[..., 8:])


@pytest.mark.parametrize('n', ['', '2'])
def test_golden_interleaved_at_far_positions(n):
  x = RUOSS['rotary/x']
  encoding = create("layout='interleaved'", 3, 16)
  positions = RUOSS[f'rotary/pos{n}'].astype(np.int32)
  got, _ = rotate(encoding, x, x, positions)
  want = RUOSS[f'rotary/out_interleaved{"_pos" + n if n else ""}']
  # A float32 angle of 2047 is good to 1.2e-4.
  np.testing.assert_allclose(got, want, atol=1e-5 + 2.5e-7 * positions.max())


@pytest.mark.parametrize(
  'keys',
  [
    {},
    {'layout': 'interleaved'},
    {'base': 500.0, 'scale': 3.0},
    {'fraction': 0.5},
    {'fraction': 0.25, 'layout': 'interleaved', 'base': 100.0},
  ],
)
def test_formula(keys, assert_close):
  encoding = create(', '.join(f'{k}={v!r}' for k, v in keys.items()))
  q, k = random_qk()
  rng = np.random.default_rng(1)
  q_positions = np.float32(rng.uniform(0, 50, (2, 5)))
  k_positions = np.float32(rng.uniform(0, 50, (2, 7)))
  got = rotate(encoding, q, k, q_positions, k_positions)
  for y, x, p in zip(got, (q, k), (q_positions, k_positions), strict=True):
    want = np.zeros_like(x)
    for b, n, h in np.ndindex(x.shape[:3]):
      want[b, n, h] = turn(x[b, n, h], np.float64(p[b, n]), keys)
    assert_close(y, want)


def test_positions_without_a_batch(assert_close):
  encoding = create()
  q, k = random_qk()
  flat = rotate(encoding, q, k, jnp.arange(3, 8), jnp.arange(7))
  full = rotate(
    encoding,
    q,
    k,
    jnp.tile(jnp.arange(3, 8), (2, 1)),
    jnp.tile(jnp.arange(7), (2, 1)),
  )
  assert_close(flat, full, 1e-6)


@pytest.mark.some(3)
@pytest.mark.parametrize(
  'keys', ["layout='interleaved', fraction=0.5", '', 'scale=4.']
)
def test_positions_per_head(keys, assert_close):
  encoding = create(keys, num_heads=3)
  q, k = random_qk(q_heads=3, k_heads=3)
  rng = np.random.default_rng(1)
  i, j = (np.float32(rng.uniform(0, 9, (2, n, 3))) for n in (5, 7))
  got = rotate(encoding, q, k, i, j)
  for head in range(3):
    one = slice(head, head + 1)
    want = rotate(
      encoding, q[:, :, one], k[:, :, one], i[..., head], j[..., head]
    )
    assert_close(tuple(x[:, :, one] for x in got), want, 1e-6)
  whole = np.broadcast_to(i[..., :1], i.shape)
  again, _ = rotate(encoding, q, k, whole, j)
  assert_close(again, rotate(encoding, q, k, i[..., 0], j[..., 0])[0], 1e-6)


@pytest.mark.parametrize('layout', ['half', 'interleaved'])
def test_scores_depend_on_differences_only(layout, assert_close):
  encoding = create(f'layout={layout!r}')
  q, k = random_qk()
  rng = np.random.default_rng(1)
  i, j = (np.float32(rng.uniform(0, 9, (2, n))) for n in (5, 7))

  def scores(shift):
    turned = rotate(encoding, q, k, i + shift, j + shift)
    return jnp.einsum('bqhd,bkhd->bhqk', *turned)

  assert_close(scores(20.0), scores(0.0), 2e-5)
  assert np.abs(rotate(encoding, q, k, i + 20, j)[0] - q).max() > 0.1


def test_layouts_agree_up_to_a_permutation(assert_close):
  q, k = random_qk(lengths=(5, 5))
  positions = jnp.arange(5)
  split, _ = rotate(create(), q, k, positions)
  order = np.arange(16).reshape(2, 8).T.ravel()
  woven, _ = rotate(create("layout='interleaved'"), q[..., order], k, positions)
  assert_close(woven, np.asarray(split)[..., order], 1e-6)


def test_fewer_key_heads(assert_close):
  encoding = create(num_heads=4)
  q, k = random_qk(q_heads=4, k_heads=2, lengths=(5, 5))
  positions = jnp.arange(5)
  turned_q, turned_k = rotate(encoding, q, k, positions)
  assert turned_q.shape == q.shape and turned_k.shape == k.shape
  assert_close(rotate(encoding, k, k, positions)[0], turned_k, 1e-6)


def test_far_positions_in_bfloat16(assert_close):
  """Positions keep their value and output its dtype in a 16-bit model."""
  encoding = create()
  q, k = (jnp.asarray(x, jnp.bfloat16) for x in random_qk(lengths=(5, 5)))
  i = np.int32([[20_000, 20_001, 20_003, 20_030, 20_064]] * 2)
  got, _ = rotate(encoding, q, k, i)
  assert got.dtype == jnp.bfloat16
  want = np.zeros(q.shape)
  for b, n, h in np.ndindex(q.shape[:3]):
    want[b, n, h] = turn(q[b, n, h], int(i[b, n]), {})
  assert_close(got, want, 6e-3)


def test_scale_divides_positions(assert_close):
  q, k = random_qk(lengths=(5, 5))
  positions = jnp.arange(5)
  scaled = rotate(create('scale=4.'), q, k, positions)
  assert_close(scaled, rotate(create(), q, k, positions / 4), 1e-6)


def test_dynamic_goes_by_each_sequence(assert_close):
  dynamic, plain = create('dynamic=True, train_length=4'), create()
  q, k = random_qk(lengths=(6, 6))
  positions = jnp.arange(6)
  # Row 0 fits into the training length, row 1 is twice as long.
  lengths = jnp.array([[3], [8]])
  q_got, k_got = rotate(dynamic, q, k, positions, lengths=lengths)
  for b, factor in ((0, 1.0), (1, 0.5)):
    want = rotate(plain, q[b:][:1], k[b:][:1], positions * factor)
    assert_close((q_got[b:][:1], k_got[b:][:1]), want, 1e-6)


def test_dynamic_in_a_packed_row(assert_close):
  dynamic, plain = create('dynamic=True, train_length=2'), create()
  q, k = random_qk(lengths=(6, 6))
  positions = jnp.array([[0, 1, 2, 3, 0, 1]])
  lengths = jnp.array([[4, 4, 4, 4, 2, 2]])
  got = rotate(dynamic, q, k, positions, lengths=lengths)
  factors = jnp.array([[0.5, 0.5, 0.5, 0.5, 1.0, 1.0]])
  assert_close(got, rotate(plain, q, k, positions * factors), 1e-6)


def test_dynamic_needs_lengths():
  encoding = create('dynamic=True, train_length=4')
  q, k = random_qk()
  i, j = jnp.arange(5), jnp.arange(7)
  with pytest.raises(errors.LengthError, match='rope depends on the length'):
    rotate(encoding, q, k, i, j)
  # A length per query says nothing about more keys.
  with pytest.raises(errors.LengthError, match=r'5 queries and 7 keys.*2, 5'):
    rotate(encoding, q, k, i, j, lengths=jnp.full((2, 5), 7))
  rotate(encoding, q, k, i, j, lengths=jnp.full((2, 1), 7))


def test_facts():
  plain = create()
  assert plain.translation_invariant and plain.fractional_positions
  assert not plain.length_dependent and not plain.interpolates
  assert create('scale=2.').interpolates
  assert not create('scale=2.').length_dependent
  dynamic = create('dynamic=True, train_length=4')
  assert dynamic.interpolates and dynamic.length_dependent


def test_gradient_is_the_inverse_rotation(assert_close):
  encoding = create()
  q, k = random_qk(lengths=(5, 5))
  positions = jnp.arange(5)
  gradient = jax.grad(
    lambda x: jnp.sum(rotate(encoding, x, k, positions)[0] * q)
  )(q)
  assert_close(gradient, rotate(encoding, q, k, -positions)[0], 1e-6)


@pytest.mark.parametrize(
  'keys, value',
  [
    ("layout='split'", "unknown layout of rope 'split'"),
    ('fraction=0.', 'fraction=0.0'),
    ('fraction=1.5', 'fraction=1.5'),
    ('fraction=-.5', 'fraction=-0.5'),
    ('fraction=.2', 'is 3 dimensions'),
    ('fraction=.01', 'is 0 dimensions'),
    ('scale=0.', 'scale of rope is 0.0; it must be > 0'),
    ('scale=-2.', 'scale of rope is -2.0'),
    ('base=1.', 'base of rope is 1.0; it must be > 1'),
    ('base=-2.', 'base of rope is -2.0'),
    ('train_length=0', 'train_length of rope is 0; it must be None or >= 1'),
    ('dynamic=True', 'dynamic needs train_length'),
    ('dynamic=True, train_length=8, scale=2.', 'scale=2.0'),
  ],
)
def test_refuses(keys, value):
  with pytest.raises(errors.SpecError, match=value):
    create(keys)
