"""Base class of position schemes, and functions on positions and segments.

Shapes: B batch, L length. A *segment* is one of several sequences packed into a
row; an unpacked row is one segment.
"""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax import errors, specs
from lengen_jax.positions import kinds
from lengen_jax.positions.kinds import Assigned, Positions
from lengen_jax.types import Array

_fold_in = jax.vmap(jax.random.fold_in, (None, 0))
# Lengths of segments, broadcastable to [B, L].
Lengths = int | Array | None
# Random numbers of a batch, by name.
Draws = Mapping[str, Array]


@dataclasses.dataclass(frozen=True)
class PositionScheme:
  """Base class of position schemes.

  A scheme maps i, the index of each token in its segment, to a position, once
  per batch and outside the model. A subclass implements `apply`; a random one
  also `draw`. i is int32 `[B, L]`; lengths are those of each token's segment.
  """

  # Ranges of keys; see `specs.check_ranges`.
  ranges: ClassVar[Mapping[str, str | tuple]] = {}
  # Attributes read by models, evaluation and `lengen list`.
  formula = ''
  source = ''
  # Positions at test time, and the input that decoding requires for them.
  test_time = 'the same'
  at_decoding = 'nothing'
  # Positions are float32.
  fractional = False
  # Rescales positions by length (position interpolation).
  interpolates = False
  # Requires the true length of each segment.
  needs_lengths = False
  # Requires the ids of the tokens: `draw`, `apply` and `at_test` also get
  # `tokens` and `segment_ids` (or None). The position of a token must not
  # depend on later tokens.
  needs_tokens = False
  # Requires `roles`, int32 [R, B, L], which these methods also get, and returns
  # positions of the same shape.
  needs_roles = False
  # Rows may be chunks of a text: in training, `draw` and `apply` also get
  # `chunks` if they are given.
  takes_chunks = False
  # Random in training.
  random = False
  # Random at test time too.
  random_at_test = False
  # Exclusive upper bound of the positions; None if unbounded.
  max_position = None  # type: int | None
  # Within a segment, differences of positions equal differences of indices.
  contiguous = False
  # Returns Distances.
  gives_distances = False
  # Draws separately for each layer of a model.
  per_layer = False
  # Rows of a batch with equal lengths get equal draws.
  same_rows = False

  def __post_init__(self) -> None:
    specs.check_ranges(self)

  def __call__(
    self,
    segment_positions: Array,
    *,
    lengths: Lengths = None,
    tokens: Array | None = None,
    segment_ids: Array | None = None,
    roles: Array | None = None,
    chunks: Array | None = None,
    rng: jax.Array | None = None,
    train: bool = False,
    num_layers: int | None = None,
  ) -> Assigned:
    """Returns the positions of a batch.

    Args:
      segment_positions: int32 `[B, L]`, index of each token in its segment.
      lengths: int32, broadcastable to `[B, L]`: the true length of each
        token's segment; in decoding, the planned length.
      tokens: int32 `[B, L]`, token ids, if the scheme needs them.
      segment_ids: int32 `[B, L]` of packed rows.
      roles: int32 `[R, B, L]`, if the scheme needs them; -1 for a token without
        a role.
      chunks: int32 `[B, L]`, 0 or 1, the chunk of a text that a token belongs
        to; see `data.chunks`. Only schemes with `takes_chunks` use it.
      rng: a PRNG key, required if the scheme is random.
      train: whether the batch is for training.
      num_layers: layers of the model, required if the scheme draws per layer.

    Returns:
      int32 or float32 `[B, L]`; `[num_layers, B, L]` if the call draws per
      layer; `[R, B, L]` if it needs roles; Distances if `gives_distances`;
      Parts if it has two parts.

    Raises:
      errors.LengthError: an argument is required and missing, or a segment has
        more tokens than the scheme has positions. If `lengths` is None or
        traced, the length of the row is checked instead.
      errors.ConfigError: tokens or roles are required and missing, or an
        argument has another shape or dtype.
    """
    segment_positions = jnp.asarray(segment_positions)
    shape = segment_positions.shape
    if len(shape) != 2:
      raise errors.ConfigError(
        f'segment_positions have shape {shape}; they must be [B, L]'
      )
    if isinstance(lengths, list | tuple):
      lengths = np.asarray(lengths)
    _check_whole('segment_positions', segment_positions, shape)
    _check_whole('lengths', lengths, shape)
    self.check_length(segment_positions, lengths, train)
    segment_positions = segment_positions.astype(jnp.int32)
    if lengths is not None:
      lengths = jnp.asarray(lengths, jnp.int32)
    if self.needs_lengths and lengths is None:
      raise errors.LengthError(
        f'{self} needs lengths of segments, broadcastable to [B, L]'
      )
    if self.needs_lengths:
      lengths = jnp.broadcast_to(lengths, shape)
    seen = self._seen(shape, tokens, segment_ids, roles)
    if not self.draws(train):
      found = self.at_test(segment_positions, lengths, **seen)
      return self._checked(found, shape)
    if self.takes_chunks and chunks is not None:
      seen['chunks'] = chunks
    rng = self.checked_key(rng)

    def positions(rng: jax.Array) -> Positions:
      draws = self.draw(rng, segment_positions, lengths, **seen)
      found = self.apply(draws, segment_positions, lengths=lengths, **seen)
      return self._checked(found, shape)

    if not self.per_layer:
      return positions(rng)
    if num_layers is None:
      raise errors.LengthError(f'{self} draws per layer and needs num_layers')
    return jax.vmap(positions)(_fold_in(rng, jnp.arange(num_layers)))

  def _checked(self, found: Any, shape: tuple[int, ...]) -> Any:
    """Checks positions that a scheme computes; returns them in 32 bits."""
    if self.gives_distances:
      return kinds.in_32_bits(found)
    dtype = getattr(found, 'dtype', None)
    if dtype is None:
      raise errors.ConfigError(
        f'{self} returned {errors.shown(found)}; positions must be an array'
      )
    whole = jnp.issubdtype(dtype, jnp.integer)
    if not whole and dtype not in ('float32', 'float64'):
      raise errors.ConfigError(
        f'{self} returned {dtype}; positions must be int32 or float32'
      )
    if not whole and not self.fractional:
      raise errors.ConfigError(
        f'{self} returned {dtype}; positions must be int32, unless the class '
        'sets fractional = True'
      )
    if found.shape[-2:] not in (shape, (1, shape[1])):
      raise errors.ConfigError(
        f'{self} returned positions of shape {found.shape} for tokens of shape '
        f'{shape}; the shapes must be equal'
      )
    return found.astype(jnp.int32 if whole else jnp.float32)

  def __str__(self) -> str:
    return specs.describe(self)

  @property
  def at_input(self) -> 'PositionScheme':
    """The scheme of the encoding that acts at the input of a model."""
    return self

  @property
  def in_attention(self) -> 'PositionScheme':
    """The scheme of the encodings that act in attention."""
    return self

  def by_part(
    self,
    call: Callable[..., Positions],
    rng: jax.Array | None,
    num_layers: int | None,
  ) -> Assigned:
    """Returns `call(self, rng, num_layers)`.

    TwoParts calls it for each of its schemes, and returns Parts.
    """
    return call(self, rng, num_layers)

  def draws(self, train: bool) -> bool:
    """Returns whether a call is random."""
    return self.random if train else self.random_at_test

  def draw(self, rng: jax.Array, i: Array, lengths: Lengths) -> Draws:
    """Returns the random numbers of a batch, a dict of arrays."""
    raise NotImplementedError

  def apply(
    self, draws: Draws, i: Array, *, lengths: Lengths = None
  ) -> Positions:
    """Returns the positions for given draws; a pure function."""
    raise NotImplementedError

  def at_test(self, i: Array, lengths: Lengths) -> Positions:
    """Returns the positions without randomness; i for a random scheme."""
    if self.random:
      return i.astype(jnp.float32) if self.fractional else i
    return self.apply({}, i, lengths=lengths)

  @property
  def standard_at_test(self) -> bool:
    """Whether positions at test time are those of `standard`."""
    overridden = type(self).at_test is not PositionScheme.at_test
    if overridden or self.random_at_test:
      return False
    return self.random or self.contiguous

  def limit(self, train: bool) -> int | None:
    """Returns the longest supported segment length; None if unbounded."""
    return self.max_position if self.draws(train) else None

  def extent(self, length: int, train: bool) -> int:
    """Returns the exclusive upper bound of integer positions at `length`."""
    return self.limit(train) or length

  def check_length(self, i: Array, lengths: Lengths, train: bool) -> None:
    """Raises errors.LengthError if a segment exceeds the scheme's limit."""
    limit, longest = self.limit(train), i.shape[-1]
    if lengths is not None and not isinstance(lengths, jax.core.Tracer):
      longest = int(np.asarray(lengths).max())
    if limit is not None and longest > limit:
      raise errors.LengthError(
        f'{self} has {limit} positions for a segment of {longest} '
        f'tokens; set max_position={longest} or more'
      )

  def checked_key(self, rng: jax.Array | None) -> jax.Array:
    """Checks and returns the key of random positions."""
    if rng is None:
      raise errors.LengthError(f'{self} draws random positions and needs rng')
    dtype = getattr(rng, 'dtype', None)
    if jnp.ndim(rng) == 0 and not jnp.issubdtype(dtype, jax.dtypes.prng_key):
      raise errors.ConfigError(
        f'rng must be a key, got {rng!r}; jax.random.key(seed) makes one'
      )
    return rng

  def _seen(
    self,
    shape: tuple[int, ...],
    tokens: Array | None,
    segment_ids: Array | None,
    roles: Array | None,
  ) -> dict[str, Any]:
    """Checks and returns the arguments that the scheme declares."""
    seen: dict[str, Any] = {}
    if self.needs_tokens:
      seen |= {'tokens': tokens, 'segment_ids': segment_ids}
    if self.needs_roles:
      seen['roles'] = roles
    for name, value in seen.items():
      want, ndim = ('[R, B, L]', 3) if name == 'roles' else ('[B, L]', 2)
      if value is None and name == 'segment_ids':
        continue
      if value is None:
        which = 'from a task that assigns them' if ndim == 3 else 'token ids'
        raise errors.ConfigError(f'{self} needs {name}, int32 {want}, {which}')
      got, dtype = jnp.shape(value), jnp.result_type(value)
      is_whole = jnp.issubdtype(dtype, jnp.integer)
      if len(got) != ndim or got[-2:] != shape or not is_whole:
        raise errors.ConfigError(
          f'{name} are {dtype} {list(got)}; they must be integers, {want} with '
          f'[B, L] = {list(shape)}'
        )
      seen[name] = jnp.asarray(value)
    return seen


def _check_whole(name: str, value: Any, shape: tuple[int, ...]) -> None:
  """Checks that a value is None, or non-negative integers that fit a shape."""
  if value is None:
    return
  if not jnp.issubdtype(jnp.result_type(value), jnp.integer):
    raise errors.ConfigError(
      f'{name} are {jnp.result_type(value)}; they must be integers'
    )
  rows, columns = shape
  got = jnp.shape(value)
  fitting = (), (columns,), (1, 1), (1, columns), (rows, 1), shape
  if got not in fitting:
    raise errors.ConfigError(
      f'{name} have shape {got}; they must be a scalar, [L], [B, 1] or [B, L] '
      f'with [B, L] = {list(shape)}'
    )
  if isinstance(value, jax.core.Tracer):
    return
  if (least := int(np.asarray(value).min(initial=0))) < 0:
    raise errors.ConfigError(f'{name} must not be negative, got {least}')


def segment_positions(segment_ids: Array) -> jax.Array:
  """Returns the index of each token in its segment, a run of equal ids.

  int32 `[B, L] -> [B, L]`.

  Raises:
    errors.ConfigError: `segment_ids` is not an array `[B, L]`.
  """
  if len(getattr(segment_ids, 'shape', ())) != 2:
    raise errors.ConfigError(
      f'segment_ids must be an array [B, L], got {errors.shown(segment_ids)}'
    )
  index_BxL = jax.lax.broadcasted_iota(jnp.int32, segment_ids.shape, 1)
  first = jnp.ones_like(segment_ids[:, :1], bool)
  starts = jnp.hstack([first, segment_ids[:, 1:] != segment_ids[:, :-1]])
  start_BxL = jax.lax.cummax(jnp.where(starts, index_BxL, 0), axis=1)
  return index_BxL - start_BxL


def segment_lengths(segment_ids: Array) -> jax.Array:
  """Returns the length of each token's segment, int32 `[B, L] -> [B, L]`."""
  index = segment_positions(segment_ids)
  from_end = segment_positions(segment_ids[:, ::-1])[:, ::-1]
  return index + from_end + 1


def segment_starts(segment_positions: Array) -> jax.Array:
  """Returns the row index of the first token of each token's segment."""
  index_L = jnp.arange(segment_positions.shape[1], dtype=jnp.int32)
  return index_L[None] - segment_positions


def per_segment(values: Array, segment_positions: Array) -> jax.Array:
  """Returns the value at the first token of each token's segment, `[B, L]`."""
  starts = segment_starts(segment_positions)
  return jnp.take_along_axis(values, starts, axis=1)


def below(key: jax.Array, bound: Array) -> jax.Array:
  """Returns a random integer of 0 .. bound - 1."""
  return jax.random.randint(key, (), 0, bound)


def per_token(
  draw: Callable[..., Any],
  rng: jax.Array,
  shape: tuple[int, ...],
  *values: Array,
  same_rows: bool = False,
) -> jax.Array:
  """Returns `draw(key, *values)` of each token, with a key of its own.

  The key depends on the row and column of the token and not on the width of
  the batch, so padding does not change the draws.

  Args:
    draw: function of a key and the token's values.
    rng: a key.
    shape: (B, L).
    *values: arrays `[B, L]`.
    same_rows: use the keys of row 0 for all rows.
  """
  rows = jnp.zeros(shape[0], jnp.uint32) if same_rows else jnp.arange(shape[0])
  columns = jnp.arange(shape[1])
  keys = jax.vmap(_fold_in, (0, None))(_fold_in(rng, rows), columns)
  return jax.vmap(jax.vmap(draw))(keys, *values)
