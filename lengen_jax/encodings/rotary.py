"""Rotary encodings, which differ in the frequencies w_k of one rotation.

Shapes: B batch, L length, H heads, D head_dim, F = D_r / 2 frequencies.
"""

import math

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax import errors, specs
from lengen_jax.encodings import base
from lengen_jax.encodings.angles import angles
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
    layout: dimensions of a pair: 'half' (k, k + D_r/2) as in Llama and
      GPT-NeoX, 'interleaved' (2k, 2k + 1) as in GPT-J.
    proportional: D_r = D, and the first `fraction` of the pairs is rotated.
    train_length: longest training length, required by `dynamic`.
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

  ranges = {
    'layout': ('half', 'interleaved'),
    'base': '> 1',
    'scale': '> 0',
    'train_length': 'None or >= 1',
  }
  _has_dynamic = True
  _dynamic_uses_scale = False

  def __post_init__(self) -> None:
    super().__post_init__()
    rotated = self._rotated
    if not 0 < self.fraction <= 1 or rotated % 2 or not rotated:
      raise errors.SpecError(
        f'fraction={self.fraction} of head_dim={self.head_dim} is {rotated} '
        'dimensions; it must be even and between 2 and head_dim'
      )
    if self.proportional and self.head_dim % 2:
      raise errors.SpecError(
        f'proportional needs an even head_dim, got {self.head_dim}'
      )
    if self.dynamic and not self._has_dynamic:
      raise errors.SpecError(
        f'{specs.name(self)} has no dynamic form; leave out dynamic'
      )
    if self.dynamic and not self.train_length:
      raise errors.SpecError('dynamic needs train_length')
    if self.dynamic and self.scale != 1 and not self._dynamic_uses_scale:
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
    """Returns the angle per unit of position.

    float32 `[B, 1 or L, F]` if `length_dependent`, which requires `lengths`
    `[B, 1]` or `[B, L]`; else float64 `[F]`.
    """
    if not self.dynamic:
      return self.plain_frequencies() / self.scale
    ratio = interpolated.ratio(self.train_length, lengths)
    return _float32(self.plain_frequencies()) * ratio[..., None]

  @nn.nowrap
  def magnitude(self, lengths: Array | None) -> float | jax.Array:
    """Returns the factor on queries and keys, scalar or `[B, 1 or L]`."""
    return 1.0

  def rotate(
    self,
    q: Array,
    k: Array,
    q_positions: Array,
    k_positions: Array,
    lengths: Array | None = None,
  ) -> tuple[Array, Array]:
    """Rotates queries `[B, Q, H, D]` and keys `[B, K, H', D]`.

    Positions per head are `[B, Q, H]` and `[B, K, H']`. `lengths` are those of
    each token's sequence, `[B, 1]` or `[B, Q]`.

    Raises:
      errors.ConfigError: queries, keys or their positions have another shape.
      errors.LengthError: the encoding depends on the length, and `lengths` is
        None or does not match the keys.
    """
    base.check_distances(self, q_positions, k_positions)
    name = specs.name(self)
    for x, positions in ((q, q_positions), (k, k_positions)):
      shape = jnp.shape(jnp.atleast_1d(positions))
      length = shape[1] if len(shape) == 3 else shape[-1]
      if (length, self.head_dim) != (x.shape[1], x.shape[-1]):
        raise errors.ConfigError(
          f'{name} with head_dim={self.head_dim} rotates [B, L, H, '
          f'{self.head_dim}] at positions [L], [B, L] or [B, L, H]; got '
          f'{x.shape} at positions of shape {shape}'
        )
      if len(shape) == 3 and shape[2] not in (1, x.shape[2]):
        raise errors.ConfigError(
          f'{name}: {x.shape[2]} heads have positions of {shape[2]}; repeat '
          'grouped keys for each query head'
        )
    if self.length_dependent and lengths is None:
      raise errors.LengthError(
        f'{name} depends on the length of each sequence; pass lengths, [B, 1] '
        'or [B, L]'
      )
    if self.length_dependent:
      shape = jnp.shape(lengths)
      if len(shape) != 2 or shape[-1] not in (1, k.shape[1]):
        raise errors.LengthError(
          f'{name} needs lengths [B, 1] for {q.shape[1]} queries and '
          f'{k.shape[1]} keys, got {shape}'
        )
    q = self._rotate(q, q_positions, lengths)
    return q, self._rotate(k, k_positions, lengths)

  @nn.nowrap
  def _rotate(
    self, x_BxLxHxD: Array, positions: Array, lengths: Array | None
  ) -> jax.Array:
    frequencies = self.frequencies(lengths)
    if self.proportional:
      pairs = np.arange(self.head_dim // 2)
      frequencies = frequencies * (pairs < self._rotated // 2)
    positions = jnp.atleast_2d(positions)
    positions_BxLxH = positions.reshape(*positions.shape[:2], -1)
    if isinstance(frequencies, np.ndarray):
      angle_BxLxHxF = angles(positions_BxLxH, frequencies)
    else:
      # In float32: 16-bit floats cannot represent positions, let alone phases.
      positions_BxLxH = positions_BxLxH.astype(jnp.float32)
      angle_BxLxHxF = positions_BxLxH[..., None] * frequencies[:, :, None]
    magnitude = self.magnitude(lengths)
    if not isinstance(magnitude, float):
      magnitude = magnitude[..., None, None]
    cos = magnitude * jnp.cos(angle_BxLxHxF)
    sin = magnitude * jnp.sin(angle_BxLxHxF)
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
  _dynamic_uses_scale = True

  def __post_init__(self) -> None:
    super().__post_init__()
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

  Pairs that make fewer than `beta_slow` rotations over the training length are
  interpolated, those that make more than `beta_fast` are unchanged, and between
  the two the interpolation falls linearly in k. Queries and keys are multiplied
  by 0.1 ln s + 1. s is `scale` or, with `dynamic`, max(1, n / train_length) for
  a sequence of length n.

  Source: Peng et al. (2023), arXiv:2309.00071, section 3.

  Attributes:
    truncate: whether the two ends of the linear range are rounded outwards to
      whole pairs, as in the authors' code. gpt-oss does not round them.
    magnitude_factor: factor on queries and keys; None for 0.1 ln s + 1.
  """

  beta_fast: float = 32.0
  beta_slow: float = 1.0
  truncate: bool = True
  magnitude_factor: float | None = None

  formula = 'rope, slow pairs w_k / s, fast ones w_k; q, k times 0.1 ln s + 1'
  source = 'arXiv:2309.00071'
  beyond = 'interpolates slow pairs'
  ranges = {
    **Rope.ranges,
    'scale': '>= 1',
    'train_length': '>= 1',
    'beta_slow': '> 0',
    'beta_fast': '> {0.beta_slow}',
    'magnitude_factor': 'None or > 0',
  }

  @nn.nowrap
  def _ramp(self) -> np.ndarray:
    """Returns the weight of interpolation per pair, 0 to 1, float64 `[F]`."""
    dim = self.rotary_dim

    def pair_of(rotations: float) -> float:
      angle = self.train_length / rotations / (2 * math.pi)
      return dim * math.log(angle) / (2 * math.log(self.base))

    low, high = pair_of(self.beta_fast), pair_of(self.beta_slow)
    if self.truncate:
      low, high = math.floor(low), math.ceil(high)
    low, high = (min(max(pair, 0), dim - 1) for pair in (low, high))
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
    if self.magnitude_factor is not None:
      return float(self.magnitude_factor)
    if not self.dynamic:
      return 0.1 * math.log(self.scale) + 1.0
    return 1.0 - 0.1 * jnp.log(interpolated.ratio(self.train_length, lengths))


class Llama3(Rope):
  """Llama 3.1's RoPE: interpolation by wavelength.

  Pairs with a wavelength above train_length / low_freq are interpolated, those
  below train_length / high_freq are unchanged, those between are mixed.

  Source: Llama team (2024), arXiv:2407.21783; as in the released code.
  """

  scale: float = 8.0
  train_length: int | None = 8192
  low_freq: float = 1.0
  high_freq: float = 4.0

  formula = 'rope, w_k / s where 2 pi / w_k is long, w_k where short'
  source = 'arXiv:2407.21783'
  beyond = 'interpolates slow pairs'
  at_decoding = 'nothing'
  ranges = {
    **Rope.ranges,
    'scale': '>= 1',
    'train_length': '>= 1',
    'low_freq': '> 0',
    'high_freq': '> {0.low_freq}',
  }
  _has_dynamic = False

  @nn.nowrap
  def frequencies(self, lengths: Array | None) -> Array:
    plain = self.plain_frequencies()
    rotations = self.train_length * plain / (2 * np.pi)
    kept = (rotations - self.low_freq) / (self.high_freq - self.low_freq)
    kept = np.clip(kept, 0, 1)
    return kept * plain + (1 - kept) * plain / self.scale


class Longrope(Rope):
  """LongRoPE: a searched divisor per pair, one list for short, one for long.

  Frequencies are divided by `short_factors` in sequences of up to
  `train_length` tokens, by `long_factors` in longer ones. Queries and keys are
  multiplied by sqrt(1 + ln s / ln train_length).

  Source: Ding et al. (2024), arXiv:2402.13753; magnitude and switch as in the
  code of Phi-3.

  Attributes:
    magnitude_factor: factor on queries and keys; None for the formula.
  """

  short_factors: tuple | None = None
  long_factors: tuple | None = None
  magnitude_factor: float | None = None

  formula = 'rope with w_k / factor_k, two lists; q, k scaled by ln s'
  source = 'arXiv:2402.13753'
  beyond = 'interpolates every pair by a searched factor'
  at_decoding = 'the planned length, keys kept unrotated'
  length_dependent = True
  interpolates = True

  ranges = {
    **Rope.ranges,
    'scale': '>= 1',
    'train_length': '>= 2',
    'magnitude_factor': 'None or > 0',
  }
  _has_dynamic = False

  def __post_init__(self) -> None:
    super().__post_init__()
    for name in ('short_factors', 'long_factors'):
      factors = getattr(self, name)
      pairs = self.rotary_dim // 2
      if not factors or len(factors) != pairs or not _are_positive(factors):
        raise errors.SpecError(
          f'{name} of longrope must be {pairs} positive numbers, got {factors}'
        )

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
    if self.magnitude_factor is not None:
      return float(self.magnitude_factor)
    return math.sqrt(1 + math.log(self.scale) / math.log(self.train_length))


def _are_positive(factors: tuple) -> bool:
  return all(isinstance(one, int | float) and one > 0 for one in factors)


def _float32(x_F: np.ndarray) -> jax.Array:
  """Returns float64 `[F]` as float32 `[1, 1, F]`."""
  return jnp.asarray(x_F[None, None], jnp.float32)
