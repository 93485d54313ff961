"""Rotary encodings, which rotate queries and keys by angles p w_k.

The members of the family share one rotation and differ in its frequencies w_k.

Shapes: B batch, L length, H heads, D head_dim, F = D_r / 2 frequencies.
"""

import math

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax import errors, specs
from lengen_jax.encodings import base
from lengen_jax.positions import interpolated
from lengen_jax.types import Array


class Rope(base.Encoding):
  """Rotary position embedding, with position interpolation (PI).

  Pairs of dimensions are rotated by p w_k with w_k = base^(-2k/D_r), k < D_r/2,
  D_r = fraction * D; the other dimensions are unchanged. PI divides positions
  by `scale` or, with `dynamic`, multiplies them by min(1, train_length /
  length) of each sequence.

  Sources: Su et al. (2021), arXiv:2104.09864, eq. 34; PI: Chen et al. (2023),
  arXiv:2306.15595, eq. 4.

  Attributes:
    base: base of the frequencies.
    layout: which dimensions form a pair: 'half' (k, k + D_r/2) as in Llama and
      GPT-NeoX, 'interleaved' (2k, 2k + 1) as in GPT-J.
    fraction: fraction of the head dimensions that is rotated.
    proportional: D_r = D, and only the first `fraction` of the pairs is
      rotated.
    scale: divisor of positions.
    train_length: longest training length, required by `dynamic`.
    dynamic: scale by each sequence's own length.
  """

  base: float = 10000.0
  layout: str = 'half'
  fraction: float = 1.0
  proportional: bool = False
  scale: float = 1.0
  train_length: int | None = None
  dynamic: bool = False

  formula = 'rotate pairs of q, k by p w_k, w_k = base^(-2k/D); PI: w_k / scale'
  source = 'arXiv:2104.09864, arXiv:2306.15595'
  beyond = 'angles never seen, unless scale or dynamic interpolates'
  at_decoding = 'nothing; with dynamic the planned length, keys kept unrotated'

  def __post_init__(self) -> None:
    layouts = ('half', 'interleaved')
    if self.layout not in layouts:
      raise errors.SpecError(errors.one_of('layout', self.layout, layouts))
    rotated = int(self.fraction * self.head_dim)
    if not 0 < self.fraction <= 1 or rotated % 2 or not rotated:
      raise errors.SpecError(
        f'fraction={self.fraction} of head_dim={self.head_dim} is {rotated} '
        'dimensions; it must be even and between 2 and head_dim'
      )
    if self.proportional and self.head_dim % 2:
      raise errors.SpecError(
        f'proportional needs an even head_dim, got {self.head_dim}'
      )
    if self.scale <= 0 or self.base <= 1:
      raise errors.SpecError(
        f'scale={self.scale} must be positive and base={self.base} above 1'
      )
    if self.train_length is not None and self.train_length < 1:
      raise errors.SpecError(
        f'train_length must be at least 1, got {self.train_length}'
      )
    if self.dynamic and not self.train_length:
      raise errors.SpecError('dynamic needs train_length')
    self._check_scale()
    super().__post_init__()

  @nn.nowrap
  def _check_scale(self) -> None:
    """Raises if `scale` contradicts the other fields."""
    if self.dynamic and self.scale != 1:
      raise errors.SpecError(
        f'dynamic interpolates by train_length / length and excludes scale='
        f'{self.scale}; leave out one of them'
      )

  @property
  def rotary_dim(self) -> int:
    """D_r, the number of dimensions that form pairs."""
    return self.head_dim if self.proportional else self._rotated

  @property
  def _rotated(self) -> int:
    """Dimensions that are rotated."""
    return int(self.fraction * self.head_dim)

  @property
  def length_dependent(self) -> bool:
    return self.dynamic

  @property
  def interpolates(self) -> bool:
    return self.dynamic or self.scale != 1

  @nn.nowrap
  def plain_frequencies(self) -> np.ndarray:
    """Returns w_k = base^(-2k/D_r), float64 `[D_r/2]`."""
    k = np.arange(self.rotary_dim // 2)
    return self.base ** (-2 * k / self.rotary_dim)

  @nn.nowrap
  def frequencies(self, lengths: Array | None) -> Array:
    """Returns angle per unit of position.

    Args:
      lengths: `[B, 1]` or `[B, L]`; required if `length_dependent`.

    Returns:
      float32 `[B, 1 or L, F]` if `length_dependent`, else float64 `[F]`.
    """
    if not self.dynamic:
      return self.plain_frequencies() / self.scale
    ratio = interpolated.ratio(self.train_length, lengths)
    return _float32(self.plain_frequencies()) * ratio[..., None]

  @nn.nowrap
  def magnitude(self, lengths: Array | None) -> float | jax.Array:
    """Returns the factor on queries and keys, scalar or `[B, 1 or L]`."""
    del lengths
    return 1.0

  def rotate(
    self,
    q: Array,
    k: Array,
    q_positions: Array,
    k_positions: Array,
    lengths: Array | None = None,
  ) -> tuple[Array, Array]:
    """Rotates queries and keys.

    Args:
      q: `[B, Q, H, D]`.
      k: `[B, K, H, D]`; the number of heads may differ from that of q.
      q_positions: `[Q]` or `[B, Q]`.
      k_positions: `[K]` or `[B, K]`.
      lengths: `[B, 1]` or `[B, Q]`, the length of each token's sequence.

    Returns:
      The rotated q and k, in their own dtypes.

    Raises:
      errors.LengthError: the encoding depends on the length, and `lengths` is
        None or does not match the keys.
    """
    if self.length_dependent:
      name = specs.name(self)
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
    return (
      self._rotate(q, q_positions, lengths),
      self._rotate(k, k_positions, lengths),
    )

  @nn.nowrap
  def _rotate(
    self, x_BxLxHxD: Array, positions: Array, lengths: Array | None
  ) -> jax.Array:
    frequencies = self.frequencies(lengths)
    if self.proportional:
      pairs = np.arange(self.head_dim // 2)
      frequencies = frequencies * (pairs < self._rotated // 2)
    if isinstance(frequencies, np.ndarray):
      frequencies = _float32(frequencies)
    # Angles and rotations in float32: 16-bit floats cannot represent positions,
    # let alone phases.
    positions_BxL = jnp.atleast_2d(positions).astype(jnp.float32)
    angle_BxLx1xF = (positions_BxL[..., None] * frequencies)[:, :, None]
    magnitude = self.magnitude(lengths)
    if not isinstance(magnitude, float):
      magnitude = magnitude[..., None, None]
    cos = magnitude * jnp.cos(angle_BxLx1xF)
    sin = magnitude * jnp.sin(angle_BxLx1xF)
    y, rest = jnp.split(x_BxLxHxD, [self.rotary_dim], -1)
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
    return jnp.concatenate([z.astype(x_BxLxHxD.dtype), rest], -1)


class Ntk(Rope):
  """NTK-aware RoPE, which enlarges the base.

  base' = base r^(D_r / (D_r - 2)) divides the lowest frequency by r and keeps
  the highest. r is `scale` or, with `dynamic`,
  r = scale n / train_length - (scale - 1) for a sequence whose length n exceeds
  `train_length`, else 1.

  Sources: bloc97 (2023), and emozilla (2023) for the dynamic form; both are
  described in Peng et al. (2023), arXiv:2309.00071, section 3.
  """

  formula = 'rope with base s^(D/(D-2)) times as large'
  source = 'arXiv:2309.00071'
  beyond = 'interpolates slow pairs'

  @nn.nowrap
  def _check_scale(self) -> None:
    if self.rotary_dim < 4:
      raise errors.SpecError(
        f'ntk needs at least 4 rotated dimensions, got {self.rotary_dim}'
      )

  @nn.nowrap
  def frequencies(self, lengths: Array | None) -> Array:
    k = np.arange(self.rotary_dim // 2)
    exponent = -2 * k / (self.rotary_dim - 2)
    plain = self.plain_frequencies()
    if not self.dynamic:
      return plain * self.scale**exponent
    longer = 1 / interpolated.ratio(self.train_length, lengths)
    r = self.scale * longer - (self.scale - 1)
    return _float32(plain) * r[..., None] ** _float32(exponent)


class Yarn(Rope):
  """YaRN: interpolates slow pairs, keeps fast ones, scales the logits.

  Pairs that make less than `beta_slow` rotations over the training length are
  interpolated, pairs that make more than `beta_fast` are unchanged, and between
  the two the interpolation falls linearly in k. Queries and keys are multiplied
  by 0.1 ln s + 1. s is `scale` or, with `dynamic`, max(1, n / train_length) for
  a sequence of length n.

  Source: Peng et al. (2023), arXiv:2309.00071, section 3.

  Attributes:
    beta_fast: rotations from which on a pair is unchanged.
    beta_slow: rotations up to which a pair is fully interpolated.
  """

  beta_fast: float = 32.0
  beta_slow: float = 1.0

  formula = 'rope, slow pairs w_k / s, fast ones w_k; q, k times 0.1 ln s + 1'
  source = 'arXiv:2309.00071'
  beyond = 'interpolates slow pairs'

  @nn.nowrap
  def _check_scale(self) -> None:
    super()._check_scale()
    _check_extension(self)
    if not self.beta_fast > self.beta_slow > 0:
      raise errors.SpecError(
        f'beta_fast={self.beta_fast} must exceed beta_slow={self.beta_slow}, '
        'which must be positive'
      )

  @nn.nowrap
  def _ramp(self) -> np.ndarray:
    """Returns weight of interpolation per pair, 0 to 1, float64 `[F]`."""
    dim = self.rotary_dim

    def pair_of(rotations: float) -> float:
      """Returns the k of the pair with this many turns in the train length."""
      wavelength = self.train_length / rotations
      return (
        dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(self.base))
      )

    low = max(math.floor(pair_of(self.beta_fast)), 0)
    high = min(math.ceil(pair_of(self.beta_slow)), dim - 1)
    high = high + 0.001 if low == high else high
    return np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)

  @nn.nowrap
  def frequencies(self, lengths: Array | None) -> Array:
    plain, ramp = self.plain_frequencies(), self._ramp()
    if not self.dynamic:
      return plain / self.scale * ramp + plain * (1 - ramp)
    ratio = interpolated.ratio(self.train_length, lengths)[..., None]
    return _float32(plain) * (ratio * _float32(ramp) + _float32(1 - ramp))

  @nn.nowrap
  def magnitude(self, lengths: Array | None) -> float | jax.Array:
    if not self.dynamic:
      return 0.1 * math.log(self.scale) + 1.0
    return 1.0 - 0.1 * jnp.log(interpolated.ratio(self.train_length, lengths))


class Llama3(Rope):
  """Llama 3.1's RoPE: interpolation by wavelength.

  Pairs with a wavelength above train_length / low_freq are interpolated, those
  below train_length / high_freq are unchanged, those between are mixed.

  Source: Llama team (2024), arXiv:2407.21783; as in the released code.

  Attributes:
    low_freq: see above.
    high_freq: see above.
  """

  scale: float = 8.0
  train_length: int | None = 8192
  low_freq: float = 1.0
  high_freq: float = 4.0

  formula = 'rope, w_k / s where 2 pi / w_k is long, w_k where short'
  source = 'arXiv:2407.21783'
  beyond = 'interpolates slow pairs'
  at_decoding = 'nothing'

  @nn.nowrap
  def _check_scale(self) -> None:
    if self.dynamic:
      raise errors.SpecError('llama3 has no dynamic form')
    _check_extension(self)
    if not 0 < self.low_freq < self.high_freq:
      raise errors.SpecError(
        f'low_freq={self.low_freq} must be positive and below high_freq='
        f'{self.high_freq}'
      )

  @nn.nowrap
  def frequencies(self, lengths: Array | None) -> Array:
    del lengths
    plain = self.plain_frequencies()
    rotations = self.train_length * plain / (2 * np.pi)
    kept = (rotations - self.low_freq) / (self.high_freq - self.low_freq)
    kept = np.clip(kept, 0, 1)
    return kept * plain + (1 - kept) * plain / self.scale


class Longrope(Rope):
  """LongRoPE: a searched divisor per pair, one list for short, one for long.

  Sequences of up to `train_length` use `short_factors`, longer ones
  `long_factors`. Queries and keys are multiplied by
  sqrt(1 + ln s / ln train_length).

  Source: Ding et al. (2024), arXiv:2402.13753; magnitude and switch as in the
  code of Phi-3.

  Attributes:
    short_factors: divisors of the frequencies of short sequences.
    long_factors: divisors of the frequencies of long sequences.
  """

  short_factors: tuple | None = None
  long_factors: tuple | None = None

  formula = 'rope with w_k / factor_k, two lists; q, k scaled by ln s'
  source = 'arXiv:2402.13753'
  beyond = 'interpolates every pair by a searched factor'
  at_decoding = 'the planned length, keys kept unrotated'
  length_dependent = True
  interpolates = True

  @nn.nowrap
  def _check_scale(self) -> None:
    if self.dynamic:
      raise errors.SpecError(
        'longrope depends on the length in any case; leave out dynamic'
      )
    _check_extension(self, least_length=2)
    for name in ('short_factors', 'long_factors'):
      factors = getattr(self, name)
      if factors is None or len(factors) != self.rotary_dim // 2:
        raise errors.SpecError(
          f'longrope needs {name}, {self.rotary_dim // 2} numbers; got '
          f'{factors if factors is None else len(factors)}'
        )
      if min(factors) <= 0:
        raise errors.SpecError(f'{name} must be positive, got {factors}')

  @nn.nowrap
  def frequencies(self, lengths: Array | None) -> Array:
    plain = self.plain_frequencies()
    short, long = (
      _float32(plain / np.asarray(factors))
      for factors in (self.short_factors, self.long_factors)
    )
    return jnp.where((lengths <= self.train_length)[..., None], short, long)

  @nn.nowrap
  def magnitude(self, lengths: Array | None) -> float | jax.Array:
    del lengths
    return math.sqrt(1 + math.log(self.scale) / math.log(self.train_length))


def _check_extension(encoding: Rope, least_length: int = 1) -> None:
  """Raises unless an encoding has a train_length and a scale of 1 or more."""
  name = specs.name(encoding)
  if (encoding.train_length or 0) < least_length:
    raise errors.SpecError(
      f'{name} needs train_length, at least {least_length}'
    )
  if encoding.scale < 1:
    raise errors.SpecError(
      f'scale of {name} is {encoding.scale}; it must be at least 1'
    )


def _float32(x_F: np.ndarray) -> jax.Array:
  """Returns float64 `[F]` as float32 `[1, 1, F]`."""
  return jnp.asarray(x_F[None, None], jnp.float32)
