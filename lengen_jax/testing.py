"""Checks of the properties that every encoding must have.

`check_encoding('mine')` runs them all for a registered encoding, with every
position scheme that it supports, and `check_contextual('mine')` some of them
for a registered contextual position scheme. A model of one layer is compiled
once per kind of positions (integers, fractions, distances, contextual).

Shapes: B rows, L tokens, E width.
"""

import contextlib
import dataclasses
import functools
from typing import Any
from unittest import mock

from flax import traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax import encodings, errors, models, positions, specs
from lengen_jax.attention import blockwise
from lengen_jax.models import blocks, stacking
from lengen_jax.models import cache as cache_lib
from lengen_jax.positions import contextual
from lengen_jax.positions.tokens import Tokens
from lengen_jax.types import Array, Params

TRAIN_LENGTH = 6
LENGTH = 4 * TRAIN_LENGTH
ROWS = 4
WIDTH, HEADS, HEAD_DIM = 32, 4, 8
_BLOCK = 8
# Lengths of segments of a packed row, and of rows that are decoded.
SEGMENTS = (11, 8, 5)
PLANNED = (24, 17, 9, 24)
# Row, first token and length of each segment.
_PARTS = tuple(zip(range(3), (0, 11, 19), SEGMENTS, strict=True))
# Above 8192, bfloat16 numbers are 64 apart.
FAR = 10_000

# Specs of registered entries that are not tested with their defaults.
ENCODING_SPECS = {
  'learned': f'learned(max_position={FAR + 64})',
  'yarn': f'yarn(scale=4., train_length={TRAIN_LENGTH})',
  'ntk': 'ntk(scale=4.)',
  'llama3': f'llama3(train_length={TRAIN_LENGTH})',
  'longrope': (
    f'longrope(train_length={TRAIN_LENGTH}, scale=4., '
    'short_factors=(1., 1., 1., 1.), long_factors=(1., 2., 3., 4.))'
  ),
  'rerope': 'rerope(window=5)',
  'self_extend': 'self_extend(window=6, group=3)',
  'dual_chunk': 'dual_chunk(chunk=9, window=3)',
  'lm_infinite': 'lm_infinite(window=5, sinks=2)',
  'fire': 'fire(init_threshold=8.)',
  'shaw': 'shaw(left=4, right=4)',
  't5': 't5(num_buckets=8, max_distance=16)',
}
SCHEME_SPECS = {
  'interpolated': f'interpolated(train_length={TRAIN_LENGTH})',
  'randomized': 'randomized(max_position=64)',
  'shape': 'shape(max_shift=16)',
  'random_padding': 'random_padding(max_position=64)',
  'cape': 'cape(mean_normalize=True)',
  'head_warp': f'head_warp(train_length={TRAIN_LENGTH})',
  'tail_warp': f'tail_warp(train_length={TRAIN_LENGTH})',
  'head_tail_warp': f'head_tail_warp(train_length={TRAIN_LENGTH})',
  'pose': 'pose(max_position=64)',
  # At far positions, `linear` gives weights that are exactly 0.
  'abacus': 'abacus(max_offset=16)',
  'coupled': 'coupled(max_position=64)',
}
# Specs whose positions are of another kind than those of the defaults.
_FORMS = (
  "randomized(max_position=64, mode='distances')",
  'randomized(max_position=64, fractional=True)',
)


class Properties:
  """Checks of one encoding; each raises AssertionError if it fails."""

  def __init__(
    self,
    encoding: str,
    *,
    attention_scale: str = 'none',
    contextual_positions: str = 'none',
    dtype: str = 'float32',
    causal: bool = True,
  ) -> None:
    """Configures a model of one layer.

    Args:
      encoding: spec of the encoding.
      attention_scale: spec of a logit scale.
      contextual_positions: spec of a contextual position scheme.
      dtype: dtype of activations, 'float32' or 'bfloat16'.
      causal: whether later tokens are masked.
    """
    self.encoding = encoding
    self._computes = contextual_positions != 'none'
    self._label = encoding
    if self._computes:
      self._label += f' and {contextual_positions}'
    self.config = models.ModelConfig(
      vocab_size=8,
      num_layers=1,
      num_heads=HEADS,
      head_dim=HEAD_DIM,
      width=WIDTH,
      mlp_width=WIDTH,
      encoding=encoding,
      attention_scale=attention_scale,
      contextual_positions=contextual_positions,
      dtype=dtype,
    )
    self._instance = blocks.create_encodings(self.config)[0]
    blocks.create_contextual(self.config)
    limit = self._instance.max_position
    if limit is not None and limit < FAR + LENGTH:
      raise errors.LengthError(
        f'{encoding} has max_position={limit}, and the checks use positions up '
        f'to {FAR + LENGTH - 1}; give it max_position={FAR + LENGTH} or more'
      )
    self._tolerance = 2e-5 if dtype == 'float32' else 3e-2
    self._causal = causal
    self._stack = blocks.Stack(self.config, causal=causal)
    shape = (ROWS, LENGTH, WIDTH)
    self.x = np.asarray(jax.random.normal(jax.random.key(1), shape))
    self._run = jax.jit(self._forward_and_gradient)
    self._extend = jax.jit(self._decode)

  @functools.cached_property
  def params(self) -> Params:
    """Parameters of the layers, scaled up as if trained."""
    init = jax.jit(stacking.init, static_argnums=0)
    params = init(self.config, jax.random.key(0))
    params.pop('embed')
    return jax.tree_util.tree_map_with_path(_amplified, params)

  def takes(self, scheme: str) -> bool:
    """Returns whether the encoding supports a scheme; errors must name both."""
    try:
      encodings.check_scheme(self._instance, positions.create(scheme))
    except errors.CombinationError as error:
      for one in (self.encoding, scheme):
        name, _ = specs.parse(specs.imported(one))
        assert name in str(error), f'{one} is not named: {error}'
      return False
    return True

  def takes_contextual(self, scheme: str) -> bool:
    """Returns whether the encoding supports a contextual position scheme."""
    own = contextual.create(scheme, num_heads=HEADS, width=WIDTH, parent=None)
    try:
      encodings.check_contextual(self._instance, own)
    except errors.CombinationError:
      return False
    return True

  def check_causality(self, scheme: str) -> None:
    """Checks that an output depends on visible tokens of its segment only."""
    ids, lengths, index = packed_rows()
    at = SEGMENTS[0] + SEGMENTS[1] // 2
    cotangent = np.zeros_like(self.x)
    cotangent[:, at] = np.random.default_rng(2).normal(size=WIDTH)
    tokens = _tokens(draw(scheme, index, lengths, train=True), ids, lengths)
    _, dx = self._run(self.params, self.x, tokens, cotangent)
    reached = np.abs(np.asarray(dx, np.float32)).max(-1) > 0
    end = at + 1 if self._causal else SEGMENTS[0] + SEGMENTS[1]
    want = (np.arange(LENGTH) >= SEGMENTS[0]) & (np.arange(LENGTH) < end)
    if self._instance.masks:
      # Each row may reach fewer tokens.
      want = want & reached
    assert (reached == want).all(), (
      f'{self._label} with {scheme}: the output at {at} of a row with '
      f'segments {SEGMENTS} has gradients to tokens '
      f'{np.flatnonzero(reached[0]).tolist()}'
    )

  def check_packing(self, scheme: str) -> None:
    """Checks that packed segments have the outputs of unpacked ones."""
    ids, lengths, index = packed_rows()
    given = draw(scheme, index, lengths, train=True)
    packed = self._forward(self.x, _tokens(given, ids, lengths))[0]
    x, lengths, given = jax.tree.map(_unpacked, (self.x, lengths, given))
    ids = (lengths > 0).astype(np.int32)
    if isinstance(given, positions.Distances):
      given = dataclasses.replace(given, start=jnp.zeros_like(ids))
    alone = self._forward(x, _tokens(given, ids, np.maximum(lengths, 1)))
    for row, first, size in _PARTS:
      self._equal(
        packed[first : first + size],
        alone[row, :size],
        f'{self._label} with {scheme}: segment {row} packed and alone',
      )

  def check_decoding(self, scheme: str) -> None:
    """Checks that decoding equals a full pass at 4 times the train length."""
    planned = np.asarray(PLANNED, np.int32)
    index, ones = _whole_rows()
    lengths = planned[:, None] * ones
    given = draw(scheme, index, lengths, train=False)
    full = self._forward(self.x, _tokens(given, ones, lengths))
    cache = cache_lib.create(self.config, ROWS, LENGTH, planned=planned)
    cache = dataclasses.replace(cache, positions=given)
    chunk = 4
    prompt = np.array([4, 3, 2, 1])
    padded = np.pad(self.x, ((0, 0), (0, chunk), (0, 0)))
    while (left := planned - np.asarray(cache.length)).any():
      done = np.asarray(cache.length)
      new = prompt if not done.any() else np.full(ROWS, 1)
      new = np.minimum(new if done.max() < 8 else chunk, left)
      columns = done[:, None] + np.arange(chunk)
      x = np.take_along_axis(padded, columns[..., None], axis=1)
      y, cache = self._extend(self.params, x, cache, new)
      for row in range(ROWS):
        self._equal(
          np.asarray(y[row, : new[row]], np.float32),
          full[row, done[row] : done[row] + new[row]],
          f'{self._label} with {scheme}: decoding from {done[row]} in row '
          f'{row}',
        )

  def check_translation(self, scheme: str) -> None:
    """Checks that translation-invariant encodings ignore shifts."""
    index, ones = _whole_rows()
    given = draw(scheme, index, LENGTH * ones, train=True)
    distances = isinstance(given, positions.Distances)
    if distances or not self._instance.translation_invariant:
      return
    # Sums and differences of multiples of 1/64 are exact.
    given = np.asarray(given)
    given = (np.round(given * 64) / 64).astype(given.dtype)
    self._equal(
      self._whole(given + 37),
      self._whole(given),
      f'{self._label} with {scheme}: shifted by 37 and not',
    )

  def check_blockwise(self) -> None:
    """Checks that blockwise attention equals the reference, with gradients."""
    if not self._instance.tileable:
      return
    index, _ = _whole_rows()
    # With standard positions, a bias of distance alone is computed by `strip`;
    # with other positions, by `tile`.
    for given in (None,) if self._computes else (None, index + index // 5):
      want = self._gradients('reference', given)
      # Several blocks of these short rows.
      with mock.patch.object(blockwise, 'block_size', lambda *_: _BLOCK):
        got = self._gradients('blockwise', given)
      which = 'standard' if given is None else 'other'
      what = f'{self._label} by blocks and at once, with {which} positions'
      self._equal(got[0], want[0], f'{what}: outputs')
      for path, gradient in got[1].items():
        # The gradient of one number is a sum over all pairs.
        self._equal(gradient, want[1][path], f'{what}: d/d {path}', slack=10)

  def check_far(self, exact: 'Properties') -> None:
    """Checks that positions above 8192 are not rounded to the model's dtype.

    Args:
      exact: Properties of the same encoding in float32.
    """
    far = FAR + _whole_rows()[0]
    rounded = np.asarray(far.astype(jnp.bfloat16), np.int32)
    want = exact._whole(far)
    error = np.abs(self._whole(far) - want).max()
    effect = np.abs(exact._whole(rounded) - want).max()
    noise = self._tolerance * np.abs(want).max()
    assert effect == 0 or effect > 1.5 * noise, (
      f'{self.encoding}: rounded positions have an error of {effect:.1e}, '
      f'too close to the tolerance of {noise:.1e}'
    )
    assert error <= noise, (
      f'{self.encoding}: positions from {FAR} on have an error of {error:.1e}, '
      f'over {noise:.1e}; rounded positions have {effect:.1e}'
    )

  def check_schemes(self) -> list[str]:
    """Checks every supported scheme; returns these schemes."""
    taken = [scheme for scheme in scheme_specs() if self.takes(scheme)]
    for scheme in taken:
      self.check_causality(scheme)
      self.check_packing(scheme)
      self.check_decoding(scheme)
      self.check_translation(scheme)
    return taken

  def check_contextual(self) -> None:
    """Checks a model with contextual positions.

    A scheme must not see later tokens or other segments, must continue its
    positions while decoding, and must have gradients by blocks.
    """
    self.check_causality('standard')
    self.check_packing('standard')
    self.check_decoding('standard')
    self.check_blockwise()

  def _forward_and_gradient(
    self, params: Params, x: Array, tokens: Tokens, cotangent: Array
  ) -> tuple[jax.Array, jax.Array]:
    """Returns outputs, and the gradient with respect to the inputs."""

    def forward(x: Array) -> jax.Array:
      x = x.astype(self.config.dtype)
      return self._stack.apply({'params': params}, x, tokens)[0]

    y, vjp = jax.vjp(forward, x)
    return y, vjp(cotangent.astype(y.dtype))[0]

  def _gradients(
    self, implementation: str, given: Array | None
  ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Returns outputs, and gradients by the paths of parameters, float32."""
    config = dataclasses.replace(self.config, implementation=implementation)
    stack = blocks.Stack(config, causal=self._causal)
    tokens = _tokens(given, None, LENGTH * _whole_rows()[1])

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def weighted(params: Params) -> tuple[jax.Array, jax.Array]:
      x = self.x.astype(config.dtype)
      y, _ = stack.apply({'params': params}, x, tokens)
      return jnp.vdot(y.astype(jnp.float32), self.x[::-1]), y

    (_, y), gradients = weighted(self.params)
    flat = traverse_util.flatten_dict(gradients, sep='/')
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), (y, flat))

  def _forward(self, x: Array, tokens: Tokens) -> np.ndarray:
    y, _ = self._run(self.params, x, tokens, np.zeros_like(x))
    y = np.asarray(y, np.float32)
    assert np.isfinite(y).all(), f'{self._label}: outputs are not finite'
    return y

  def _whole(self, given: Array) -> np.ndarray:
    """Returns outputs of rows that are one segment."""
    _, ones = _whole_rows()
    return self._forward(self.x, _tokens(given, ones, LENGTH * ones))

  def _decode(
    self, params: Params, x: Array, cache: Any, new: Array
  ) -> tuple[jax.Array, Any]:
    x, tokens = x.astype(self.config.dtype), cache.new_tokens(x.shape[1])
    y, cached = self._stack.apply(
      {'params': params}, x, tokens, cache=cache.layers
    )
    return y, cache.replace(layers=cached, length=cache.length + new)

  def _equal(
    self, got: np.ndarray, want: np.ndarray, what: str, slack: float = 1
  ) -> None:
    error = np.abs(got - want).max(initial=0)
    limit = slack * self._tolerance * max(1.0, np.abs(want).max(initial=0))
    assert error <= limit, f'{what} differ by {error:.1e}, over {limit:.1e}'


def check_encoding(name: str) -> list[str]:
  """Runs every check on a registered encoding, given by name or spec.

  Returns:
    Specs of the position schemes that it supports.

  Raises:
    AssertionError: a property does not hold.
    errors.LengenError: an unknown encoding, or one with too small a table.
  """
  spec = ENCODING_SPECS.get(name, name)
  exact = Properties(spec)
  taken = exact.check_schemes()
  exact.check_blockwise()
  for scheme in filter(exact.takes_contextual, contextual_specs()):
    Properties(spec, contextual_positions=scheme).check_contextual()
  rounded = Properties(spec, dtype='bfloat16')
  rounded.check_schemes()
  rounded.check_far(exact)
  return taken


def check_contextual(name: str) -> None:
  """Checks a registered contextual position scheme, given by name or spec.

  The encodings are a bias of distance, a bias of positions, and a rotation.

  Raises:
    AssertionError: a property does not hold.
    errors.LengenError: an unknown scheme.
  """
  for encoding in ('linear', ENCODING_SPECS['fire'], 'rope'):
    Properties(encoding, contextual_positions=name).check_contextual()


def encoding_specs() -> list[str]:
  """Returns a spec of every registered encoding."""
  return [ENCODING_SPECS.get(name, name) for name in encodings.ENCODINGS]


def scheme_specs() -> list[str]:
  """Returns a spec of each registered scheme, and forms of `randomized`.

  User-defined schemes that require keys are left out.
  """
  found = []
  for name in positions.SCHEMES:
    spec = SCHEME_SPECS.get(name, name)
    with contextlib.suppress(errors.SpecError):
      positions.create(spec)
      found.append(spec)
  return [*found, *_FORMS]


def contextual_specs() -> list[str]:
  """Returns a spec of each registered scheme that computes positions."""
  return [name for name in contextual.CONTEXTUAL if name != 'none']


def _amplified(path: tuple[Any, ...], leaf: Array) -> Array:
  """Scales up an encoding's matrices and attention's output kernel."""
  names, leaf = [entry.key for entry in path], np.asarray(leaf)
  if names[-2:] == ['out', 'kernel']:
    return 8 * leaf
  if 'positions' in names:
    # Kernels that are initially 0 get other values.
    noise = np.random.default_rng(leaf.size).normal(size=leaf.shape)
    return (10 * leaf + 0.1 * noise).astype(leaf.dtype)
  return 4 * leaf if 'encoding' in names and leaf.ndim > 1 else leaf


def packed_rows() -> tuple[np.ndarray, ...]:
  """Returns segment ids, lengths and indices of packed rows, `[B, L]`."""
  ids = np.repeat(np.arange(len(SEGMENTS), dtype=np.int32), SEGMENTS)
  lengths = np.repeat(np.asarray(SEGMENTS, np.int32), SEGMENTS)
  index = np.concatenate([np.arange(n, dtype=np.int32) for n in SEGMENTS])
  return tuple(np.tile(row, (ROWS, 1)) for row in (ids, lengths, index))


@functools.partial(jax.jit, static_argnames=('scheme', 'train'))
def draw(scheme: str, index: Array, lengths: Array, *, train: bool) -> Any:
  """Returns a scheme's positions; compiled once for all encodings.

  Schemes that need tokens or roles get some, with one row of roles.
  """
  created = positions.create(scheme)
  tokens, roles = np.random.default_rng(3).integers(-1, 14, (2, *index.shape))
  given: Any = created(
    index,
    lengths=lengths,
    tokens=np.maximum(tokens, 0),
    roles=roles[None],
    rng=jax.random.key(7),
    train=train,
  )
  return given[0] if created.needs_roles else given


def _tokens(given: Any, ids: Array | None, lengths: Array) -> Tokens:
  shape = (ROWS, LENGTH)
  return Tokens.create(shape, given, segment_ids=ids, lengths=lengths)


def _whole_rows() -> tuple[np.ndarray, np.ndarray]:
  """Returns index and segment ids of rows that are one segment, `[B, L]`."""
  index = np.tile(np.arange(LENGTH, dtype=np.int32), (ROWS, 1))
  return index, np.ones_like(index)


def _unpacked(leaf: Array) -> np.ndarray:
  """Returns the segments of row 0, each at the start of a row."""
  alone = np.zeros((ROWS, *leaf.shape[1:]), leaf.dtype)
  for row, first, size in _PARTS:
    alone[row, :size] = leaf[0, first : first + size]
  return alone
