"""How a tile of a bias is computed: exactly, or by less work.

This is how `blockwise` does it; kernels have anchors elsewhere (`fused.plan`).

At contiguous positions, where differences of positions are differences of
indices, a tile of q by k pairs has q + k - 1 distances. A translation-invariant
bias is one number per head and distance, so that a *strip* of them, skewed, is
the tile, exactly. FIRE's bias depends on the query's position too, but slowly:
a tile *anchored* at every 32nd query is the strips of these queries, with
interpolation between (`BiasFn.row_weights`). The first 128 queries are exact.

Shapes: q and k tokens in a block, H heads, N = q + k - 1 distances.
"""

import jax
import jax.numpy as jnp

from lengen_jax import errors
from lengen_jax import specs

FORMS = ('exact', 'table', 'anchored', 'auto')
# Queries from one anchor to the next.
_SPACING = 32
# Tiles before this position are exact: a bias by i / j is not slow there.
_FIRST = 128


def choose(bias, bias_form, contiguous):
  """The form in which tiles are computed: 'exact', 'strip' or 'anchored'.

  Args:
    bias: a BiasFn or None.
    bias_form: one of FORMS.
    contiguous: whether differences of positions are differences of indices.

  Raises:
    errors.ConfigError: the bias cannot have this form here.
  """
  if bias is None:
    return 'exact'
  if bias.encoding.takes_distances:
    return 'strip' if contiguous else 'exact'
  if bias_form == 'exact':
    return 'exact'
  if contiguous and bias.encoding.has_rows:
    return 'anchored'
  if bias_form == 'anchored':
    name = specs.describe(bias.encoding)
    reason = f'{name} has no rows to interpolate between'
    if not contiguous:
      reason = (
        'it needs contiguous positions, and the same q_offset in all rows'
      )
    raise errors.ConfigError(
      f"bias_form='anchored' does not serve: {reason}; use 'exact'"
    )
  return 'exact'


def tile(form, bias, one, other):
  """Bias of a tile, `[1 or B, H, q, k]`, or None.

  Args:
    form: what `choose` gave.
    bias: a BiasFn or None.
    one: Tokens of a block of queries.
    other: Tokens of a block of keys.
  """
  if bias is None:
    return None
  if form == 'strip':
    return _strip_tile(bias, one, other)
  if form == 'anchored':
    # Within a block of packed rows positions may start again.
    serves = (jnp.diff(one.positions, axis=1) == 1).all()
    serves &= one.positions[:, 0].min() >= _FIRST
    return jax.lax.cond(serves, _anchored_tile, _exact_tile, bias, one, other)
  return _exact_tile(bias, one, other)


def _exact_tile(bias, one, other):
  every = bias(one.positions, other.positions)
  return every.reshape(-1, *every.shape[-3:])


def _strip_tile(bias, one, other):
  q, k = one.index.shape[1], other.index.shape[1]
  distances = _distances(one.index[0, 0] - other.index[0, 0], q, k)
  return _skew(bias.strip(distances), q, k)[None]


def _anchored_tile(bias, one, other):
  q, k = one.index.shape[1], other.index.shape[1]
  apart = one.index[0, 0] - other.index[0, 0]

  def strips(first, group):
    """The strips of the anchors before and after a group of queries."""
    skipped = group * _SPACING
    anchors = first + skipped + jnp.array([0, _SPACING])
    distances = _distances(apart + skipped, _SPACING, k)
    return bias.rows(anchors, distances)

  groups = jnp.arange(-(-q // _SPACING))
  over_groups = jax.vmap(strips, (None, 0), 2)
  strips_Bx2xHxGxN = jax.vmap(over_groups, (0, None))(
    one.positions[:, 0], groups
  )
  before, after = (_skew(strips_Bx2xHxGxN[:, n], _SPACING, k) for n in (0, 1))
  index = jnp.arange(len(groups) * _SPACING)
  first = one.positions[:, :1]
  anchors = first + (index // _SPACING * _SPACING)[None]
  places = (anchors, first + index[None], anchors + _SPACING)
  weight = jax.vmap(bias.row_weights)(*(p.astype(jnp.float32) for p in places))
  weight = weight[:, :, None]
  if bias.bidirectional:
    is_seen = (apart + index)[:, None] >= jnp.arange(k)[None]
    linear = (index % _SPACING / _SPACING)[:, None]
    weight = jnp.where(is_seen[None], weight, linear[None])
  weight = weight.reshape(-1, 1, len(groups), _SPACING, weight.shape[2])
  rows = before + weight * (after - before)
  return rows.reshape(*rows.shape[:2], -1, k)[:, :, :q]


def _distances(apart, q, k):
  """Distances, largest first, in a tile whose first tokens are `apart`."""
  return (apart + q - 1 - jnp.arange(q + k - 1)).astype(jnp.float32)


def _skew(strip, q, k):
  """`[..., N]` by distance, largest first, as `[..., q, k]`.

  Row i of the tile begins at q - 1 - i of the strip: rows of length N + 1 read
  as rows of length N shift by one each.
  """
  lead, n = strip.shape[:-1], q + k - 1
  rows = jnp.pad(strip, [(0, 0)] * len(lead) + [(0, 1)])
  rows = jnp.broadcast_to(rows[..., None, :], (*lead, q, n + 1))
  rows = rows.reshape(*lead, q * (n + 1))[..., : q * n].reshape(*lead, q, n)
  return rows[..., q - 1 :]
