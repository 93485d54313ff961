"""The contract of a position scheme: which position each token is given.

A scheme runs once per batch, above the model: it turns the index of each token
within its segment into a position, an int32 or float32 array handed down as an
argument. Every encoding then takes it as data.

Shapes: B batch, L length. A *segment* is one of several sequences packed into a
row; an unpacked row is one segment.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax import errors


@dataclasses.dataclass(frozen=True)
class PositionScheme:
  """Base of all schemes.

  A subclass gives `apply`, and if it draws also `draw` and `at_test`.
  """

  # Facts that models, evaluators and `lengen list` read.
  formula = ''
  source = ''
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
  max_position = None
  # Within a segment, differences of positions equal differences of indices.
  contiguous = False

  def __call__(self, segment_positions, *, lengths=None, rng=None, train=False):
    """Positions of a batch.

    Args:
      segment_positions: int32 `[B, L]`, index of each token in its segment.
      lengths: int32, broadcastable to `[B, L]`: the true length of each
        token's segment; the planned length while decoding.
      rng: a PRNG key, for schemes that draw.
      train: whether this is training; some schemes are plain at test time.

    Returns:
      `[B, L]` int32 or float32.

    Raises:
      errors.LengthError: `lengths` or `rng` is missing where needed, or a
        segment is longer than the scheme has positions.
    """
    self.check_length(segment_positions, lengths)
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
    draws = self.draw(rng, segment_positions, lengths)
    return self.apply(draws, segment_positions, lengths=lengths)

  def draws(self, train):
    """Whether a call draws at random."""
    return self.random if train else self.random_at_test

  def draw(self, rng, segment_positions, lengths):
    """The random numbers of a batch, a dict of arrays."""
    raise NotImplementedError

  def apply(self, draws, segment_positions, *, lengths=None):
    """Positions from given draws; a pure function."""
    raise NotImplementedError

  def at_test(self, segment_positions, lengths):
    """Positions where nothing is drawn."""
    return self.apply({}, segment_positions, lengths=lengths)

  def extent(self, length, train):
    """Positions of a segment of `length` tokens are below this."""
    del train
    return length if self.max_position is None else self.max_position

  def check_length(self, segment_positions, lengths):
    """Raises on a segment longer than the scheme has positions."""
    if self.max_position is None:
      return
    longest = segment_positions.shape[-1]
    if lengths is not None and not isinstance(lengths, jax.core.Tracer):
      longest = int(np.asarray(lengths).max())
    if longest > self.max_position:
      raise errors.LengthError(
        f'{self} has {self.max_position} positions for a segment of {longest} '
        f'tokens; set max_position={longest} or more'
      )


def segment_positions(segment_ids):
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


def segment_starts(segment_positions):
  """Index in the row at which each token's segment starts, int32 `[B, L]`."""
  index_L = jnp.arange(segment_positions.shape[1], dtype=jnp.int32)
  return index_L[None] - segment_positions


def per_segment(values, segment_positions):
  """The value at the first token of each token's segment, `[B, L]`."""
  starts = segment_starts(segment_positions)
  return jnp.take_along_axis(values, starts, axis=1)


def token_keys(rng, shape, *, same_rows=False):
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
