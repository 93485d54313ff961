"""Rotary encodings: queries and keys turned by angles that grow with position.

All members of the family share one rotation and differ in the frequencies.
"""

import jax.numpy as jnp
import numpy as np

from lengen_jax import errors
from lengen_jax.encodings import base
from lengen_jax.positions import interpolated


class Rope(base.Encoding):
  """Rotary position embedding, with position interpolation (PI).

  Pairs of dimensions are turned by p w_k with w_k = base^(-2k/D_r), k < D_r/2,
  D_r = fraction * D; the other dimensions stay. PI divides positions by
  `scale`, or, with `dynamic`, multiplies them by min(1, train_length / length)
  of each sequence.

  Sources: Su et al. (2021), arXiv:2104.09864, eq. 34; PI: Chen et al. (2023),
  arXiv:2306.15595, eq. 4.

  Attributes:
    base: base of the frequencies.
    layout: which dimensions form a pair: 'half' (k, k + D_r/2) as in Llama and
      GPT-NeoX, 'interleaved' (2k, 2k + 1) as in GPT-J.
    fraction: part of the head dimensions that is turned.
    scale: positions are divided by it.
    train_length: longest training length, for `dynamic`.
    dynamic: interpolate by each sequence's own length.
  """

  base: float = 10000.0
  layout: str = 'half'
  fraction: float = 1.0
  scale: float = 1.0
  train_length: int | None = None
  dynamic: bool = False

  formula = 'turn pairs of q, k by p w_k, w_k = base^(-2k/D); PI: w_k / scale'
  source = 'arXiv:2104.09864, arXiv:2306.15595'

  def __post_init__(self):
    if self.layout not in ('half', 'interleaved'):
      raise errors.SpecError(
        errors.one_of('layout', self.layout, ['half', 'interleaved'])
      )
    if not 0 < self.fraction <= 1 or self.rotary_dim % 2:
      raise errors.SpecError(
        f'fraction={self.fraction} of head_dim={self.head_dim} gives '
        f'{self.rotary_dim} dimensions; it must be even and between 2 and '
        'head_dim'
      )
    if self.scale <= 0:
      raise errors.SpecError(f'scale must be positive, got {self.scale}')
    if self.dynamic and not self.train_length:
      raise errors.SpecError('dynamic needs train_length')
    if self.dynamic and self.scale != 1:
      raise errors.SpecError(
        f'dynamic interpolates by train_length / length; scale={self.scale} '
        'beside it has no meaning'
      )
    super().__post_init__()

  @property
  def rotary_dim(self):
    """Dimensions that are turned, D_r."""
    return int(self.fraction * self.head_dim)

  @property
  def length_dependent(self):
    return self.dynamic

  @property
  def interpolates(self):
    return self.dynamic or self.scale != 1

  def frequencies(self, lengths):
    """Angle per unit of position, float32.

    Args:
      lengths: `[B, 1]` or `[B, L]`; used where `length_dependent`.

    Returns:
      `[1, 1, D_r/2]` or `[B, L or 1, D_r/2]`.
    """
    k = np.arange(self.rotary_dim // 2)
    omega = self.base ** (-2 * k / self.rotary_dim) / self.scale
    omega_1x1xF = jnp.asarray(omega[None, None], jnp.float32)
    if not self.dynamic:
      return omega_1x1xF
    ratio = interpolated.ratio(self.train_length, lengths)
    return omega_1x1xF * ratio[..., None]

  def rotate(self, q, k, q_positions, k_positions, lengths=None):
    """Rotates queries and keys.

    Args:
      q: `[B, Q, H, D]`.
      k: `[B, K, H, D]`; the number of heads may differ from that of q.
      q_positions: `[Q]` or `[B, Q]`.
      k_positions: `[K]` or `[B, K]`.
      lengths: `[B, 1]` or `[B, Q]`, the length of each token's sequence.

    Returns:
      q and k, turned, in their own dtypes.

    Raises:
      errors.LengthError: the encoding depends on the length and `lengths` is
        None or does not fit the keys.
    """
    if self.length_dependent:
      name = type(self).__name__.lower()
      if lengths is None:
        raise errors.LengthError(
          f'{name} depends on the length of each sequence; pass lengths [B, 1]'
          ' or [B, L]'
        )
      if lengths.shape[-1] not in (1, k.shape[1]):
        raise errors.LengthError(
          f'{name} needs lengths [B, 1] for {q.shape[1]} queries and '
          f'{k.shape[1]} keys, got {lengths.shape}'
        )
    frequencies = self.frequencies(lengths)
    return (
      self._turn(q, q_positions, frequencies),
      self._turn(k, k_positions, frequencies),
    )

  def _turn(self, x, positions, frequencies):
    positions_BxL = jnp.atleast_2d(positions).astype(jnp.float32)
    # Angles and the products with them in float32: 16 bits cannot hold a
    # position, let alone its phase.
    angle_BxLx1xF = (positions_BxL[..., None] * frequencies)[:, :, None]
    cos, sin = jnp.cos(angle_BxLx1xF), jnp.sin(angle_BxLx1xF)
    y, rest = jnp.split(x, [self.rotary_dim], -1)
    y = y.astype(jnp.float32)
    if self.layout == 'half':
      y1, y2 = jnp.split(y, 2, -1)
    else:
      y1, y2 = y[..., ::2], y[..., 1::2]
    z1, z2 = y1 * cos - y2 * sin, y2 * cos + y1 * sin
    if self.layout == 'half':
      z = jnp.concatenate([z1, z2], -1)
    else:
      z = jnp.stack([z1, z2], -1).reshape(y.shape)
    return jnp.concatenate([z.astype(x.dtype), rest], -1)
