"""The contract of a position scheme: which position each token is given.

A scheme runs once per batch, above the model: it turns the index of each token
within its segment into a position, an int32 or float32 array handed down as an
argument. Every encoding then takes it as data.

Shapes: B batch, L length. A *segment* is one of several sequences packed into a
row; an unpacked row is one segment.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax import errors, specs
from lengen_jax.hints import Array


@struct.dataclass
class Distances:
  """Distances of pairs, in place of a position for each token.

  Pair (i, j) of a segment is sign(i - j) r_|i - j| apart: the bias keeps its
  diagonals, and a distance is no difference of positions.

  Attributes:
    r: int32 `[B, L]`, or `[layers, B, L]` where every layer has its own. The
      distances 0 = r_0 < r_1 < ... of a segment stand where its tokens do.
    index: int32 `[1 or B, N]`, where in the row the tokens at hand are; None
      for all of them, in order.
    start: int32 `[1 or B, N]`, where in the row their segments start; None
      for 0.
    size: distances are below this; None if unknown.
  """

  r: Any
  index: Any = None
  start: Any = None
  size: int | None = struct.field(pytree_node=False, default=None)

  @property
  def shape(self) -> tuple[int, ...]:
    """Shape of r, as that of an array of positions."""
    return self.r.shape

  def at(self, index: Array) -> 'Distances':
    """The same for the tokens at `index`, int32 `[1 or B, N]`."""
    start = self.start
    if start is not None:
      start = _take(start, index)
    return dataclasses.replace(self, index=index, start=start)

  def rows(self, keys: 'Distances') -> tuple[jax.Array, jax.Array]:
    """Where in r the distance of each pair stands, and i - j.

    Args:
      keys: Distances of the same r; self holds the queries.

    Returns:
      Two of int32 `[1 or B, Q, K]`.
    """
    length = self.r.shape[-1]
    everywhere = jnp.arange(length, dtype=jnp.int32)[None]
    i = everywhere if self.index is None else self.index
    j = everywhere if keys.index is None else keys.index
    start = jnp.zeros_like(i) if self.start is None else self.start
    apart = i[:, :, None] - j[:, None, :]
    # Pairs of different segments may point anywhere; they are masked.
    row = jnp.clip(start[:, :, None] + jnp.abs(apart), 0, length - 1)
    return row, apart

  def to(self, keys: 'Distances') -> jax.Array:
    """Signed distance of each query to each key, float32 `[B, Q, K]`."""
    row, apart = self.rows(keys)
    sign = jnp.sign(apart).astype(jnp.float32)
    batch = max(row.shape[0], self.r.shape[0])
    row = jnp.broadcast_to(row, (batch, *row.shape[1:]))
    r = jnp.broadcast_to(self.r, (batch, self.r.shape[-1]))
    return sign * jax.vmap(lambda r, row: r[row])(r, row).astype(jnp.float32)


# Of tokens or, by their distances, of pairs.
Positions = Array | Distances


@dataclasses.dataclass(frozen=True)
class PositionScheme:
  """Base of all schemes.

  A subclass gives `apply`, and if it draws also `draw` and `at_test`.
  """

  # Facts that models, evaluators and `lengen list` read.
  formula = ''
  source = ''
  # What it gives at test time, and what decoding needs to know for that.
  test_time = 'the same'
  at_decoding = 'nothing'
  # Gives float32 positions.
  fractional = False
  # Rescales positions by length (position interpolation).
  interpolates = False
  # Needs the true length of each segment.
  needs_lengths = False
  # Draws at random while training.
  random = False
  # Draws at random at test time too.
  random_at_test = False
  # Positions given are below this; None where there is no limit.
  max_position = None  # type: int | None
  # Within a segment, differences of positions equal differences of indices.
  contiguous = False
  # Gives `Distances` of pairs and no position of a token.
  gives_distances = False
  # Draws for every layer of a model anew.
  per_layer = False
  # Where it draws, equally long rows of a batch get the same.
  same_rows = False

  def __call__(
    self,
    segment_positions: Array,
    *,
    lengths: int | Array | None = None,
    rng: jax.Array | None = None,
    train: bool = False,
    num_layers: int | None = None,
  ) -> Positions:
    """Positions of a batch.

    Args:
      segment_positions: int32 `[B, L]`, index of each token in its segment.
      lengths: int32, broadcastable to `[B, L]`: the true length of each
        token's segment; the planned length while decoding.
      rng: a PRNG key, for schemes that draw.
      train: whether this is training; some schemes are plain at test time.
      num_layers: layers of the model, for schemes that draw for each.

    Returns:
      int32 or float32 `[B, L]`, or `[num_layers, B, L]` where every layer has
      its own; `Distances` from a scheme that gives them.

    Raises:
      errors.LengthError: `lengths` or `rng` is missing where needed, or a
        segment is longer than the scheme has positions. Inside jit a row
        counts as one segment.
      errors.ConfigError: `segment_positions` is not `[B, L]`, or `lengths` do
        not go with it; or `rng` is no key.
    """
    if jnp.ndim(segment_positions) != 2:
      raise errors.ConfigError(
        f'segment_positions have shape {jnp.shape(segment_positions)}; they '
        'must be [B, L]'
      )
    segment_positions = jnp.asarray(segment_positions)
    for name, value in (
      ('segment_positions', segment_positions),
      ('lengths', lengths),
    ):
      _check_whole(name, value, segment_positions.shape)
    self.check_length(segment_positions, lengths, train)
    if self.needs_lengths:
      if lengths is None:
        raise errors.LengthError(
          f'{self} needs lengths: the true length of each segment, '
          'broadcastable to [B, L]'
        )
      lengths = jnp.broadcast_to(lengths, segment_positions.shape)
    if not self.draws(train):
      return self.at_test(segment_positions, lengths)
    if rng is None:
      raise errors.LengthError(f'{self} draws positions and needs rng, a key')
    if jnp.ndim(rng) == 0 and not hasattr(rng, 'dtype'):
      raise errors.ConfigError(
        f'rng must be a key, got {rng!r}; jax.random.key({rng!r}) makes one'
      )

    def positions(rng: jax.Array) -> Positions:
      draws = self.draw(rng, segment_positions, lengths)
      return self.apply(draws, segment_positions, lengths=lengths)

    if not self.per_layer:
      return positions(rng)
    if num_layers is None:
      raise errors.LengthError(
        f'{self} draws for every layer and needs num_layers'
      )
    layers = jnp.arange(num_layers)
    return jax.vmap(positions)(
      jax.vmap(jax.random.fold_in, (None, 0))(rng, layers)
    )

  def __str__(self) -> str:
    return specs.describe(self)

  def draws(self, train: bool) -> bool:
    """Whether a call draws at random."""
    return self.random if train else self.random_at_test

  def draw(
    self, rng: jax.Array, segment_positions: Array, lengths: int | Array | None
  ) -> dict[str, jax.Array]:
    """The random numbers of a batch, a dict of arrays."""
    raise NotImplementedError

  def apply(
    self,
    draws: Mapping[str, Array],
    segment_positions: Array,
    *,
    lengths: int | Array | None = None,
  ) -> Positions:
    """Positions from given draws; a pure function."""
    raise NotImplementedError

  def at_test(
    self, segment_positions: Array, lengths: int | Array | None
  ) -> Positions:
    """Positions where nothing is drawn."""
    return self.apply({}, segment_positions, lengths=lengths)

  def limit(self, train: bool) -> int | None:
    """The longest segment that there are positions for; None for any."""
    return self.max_position if self.draws(train) else None

  def extent(self, length: int, train: bool) -> int:
    """Whole positions of a segment of `length` tokens are below this."""
    limit = self.limit(train)
    return length if limit is None else limit

  def check_length(
    self, segment_positions: Array, lengths: int | Array | None, train: bool
  ) -> None:
    """Raises on a segment longer than the scheme has positions."""
    limit = self.limit(train)
    if limit is None:
      return
    longest = segment_positions.shape[-1]
    if lengths is not None and not isinstance(lengths, jax.core.Tracer):
      longest = int(np.asarray(lengths).max())
    if longest > limit:
      raise errors.LengthError(
        f'{self} has {limit} positions for a segment of {longest} '
        f'tokens; set max_position={longest} or more'
      )


def _check_whole(name: str, value: Any, shape: tuple[int, ...]) -> None:
  """Raises unless a value is None or whole numbers that broadcast to a shape.

  Those that the host knows must be 0 or more.
  """
  if value is None:
    return
  if not jnp.issubdtype(jnp.result_type(value), jnp.integer):
    raise errors.ConfigError(
      f'{name} are {jnp.result_type(value)}; they must be whole numbers'
    )
  try:
    fits = jnp.broadcast_shapes(jnp.shape(value), shape) == shape
    fits = fits and jnp.ndim(value) in (0, 2)
  except ValueError:
    fits = False
  if not fits:
    raise errors.ConfigError(
      f'{name} have shape {jnp.shape(value)}; they must be one number, or '
      f'[B, 1] or [B, L] for [B, L] = {list(shape)}'
    )
  if isinstance(value, jax.core.Tracer):
    return
  least = int(np.asarray(value).min(initial=0))
  if least < 0:
    raise errors.ConfigError(f'{name} must not be negative, got {least}')


def segment_positions(segment_ids: Array) -> jax.Array:
  """Index of each token within its segment, int32 `[B, L]`.

  A segment is a run of equal ids.

  Args:
    segment_ids: int32 `[B, L]`.
  """
  index_BxL = jnp.broadcast_to(
    jnp.arange(segment_ids.shape[1], dtype=jnp.int32)[None], segment_ids.shape
  )
  first = jnp.ones_like(segment_ids[:, :1], bool)
  starts = jnp.concatenate(
    [first, segment_ids[:, 1:] != segment_ids[:, :-1]], 1
  )
  start_BxL = jax.lax.cummax(jnp.where(starts, index_BxL, 0), axis=1)
  return index_BxL - start_BxL


def segment_lengths(segment_ids: Array) -> jax.Array:
  """Length of each token's segment, int32 `[B, L]`.

  A segment is a run of equal ids.

  Args:
    segment_ids: int32 `[B, L]`.
  """
  index = segment_positions(segment_ids)
  from_end = segment_positions(segment_ids[:, ::-1])[:, ::-1]
  return index + from_end + 1


def segment_starts(segment_positions: Array) -> jax.Array:
  """Index in the row at which each token's segment starts, int32 `[B, L]`."""
  index_L = jnp.arange(segment_positions.shape[1], dtype=jnp.int32)
  return index_L[None] - segment_positions


def per_segment(values: Array, segment_positions: Array) -> jax.Array:
  """The value at the first token of each token's segment, `[B, L]`."""
  starts = segment_starts(segment_positions)
  return jnp.take_along_axis(values, starts, axis=1)


def take(positions: Positions, index: Array) -> Positions:
  """Positions of some tokens.

  Args:
    positions: `[1 or B, L]`, or Distances.
    index: int32 `[1 or B, N]`, where in the row they stand.

  Returns:
    `[1 or B, N]`, or Distances.
  """
  if isinstance(positions, Distances):
    return positions.at(index)
  return _take(positions, index)


def _take(values: Array, index: Array) -> jax.Array:
  batch = max(values.shape[0], index.shape[0])
  values, index = (
    jnp.broadcast_to(x, (batch, x.shape[1])) for x in (values, index)
  )
  return jnp.take_along_axis(values, index, axis=1)


def token_keys(
  rng: jax.Array, shape: tuple[int, ...], *, same_rows: bool = False
) -> jax.Array:
  """A PRNG key per token, `[B, L]`.

  The key of a token depends on its row and column only, not on the width of
  the batch, so that padding changes no draw.

  Args:
    rng: a key.
    shape: (B, L).
    same_rows: give all rows the keys of row 0.
  """
  rows = jnp.zeros(shape[0], jnp.uint32) if same_rows else jnp.arange(shape[0])
  columns = jnp.arange(shape[1])
  fold_columns = jax.vmap(jax.random.fold_in, (None, 0))
  return jax.vmap(
    lambda row: fold_columns(jax.random.fold_in(rng, row), columns)
  )(rows)
