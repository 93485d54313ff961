"""How a tile of a bias is computed: exactly, or with less work.

At contiguous positions a tile of q by k pairs has q + k - 1 distances. A
translation-invariant bias is one number per head and distance: a *strip* of
them, skewed, is the tile, exactly. FIRE's bias also depends on the query's
position, but slowly: an *anchored* tile interpolates (`BiasFn.row_weights`)
between strips of every 32nd query. The first 128 queries are exact. A bias
linear in positions per head is one number per head and *key*, because a term
that is equal for all keys of a query cancels in the softmax.

These are the tiles of `blockwise`, which computes strips for each tile. Kernels
read tables, whose anchors must be fewer (`fused.anchors`). Measured for FIRE
with 12 heads at 8,192 tokens, largest error of the bias in nats:

  anchors            initial   fitted to ALiBi   tables at 8,192, 32,768 tokens
  every 32 queries   1.9e-4    0.5               101 MB, 1.6 GB
  those of kernels   7.2e-4    3.7               18 MB, 91 MB

In `blockwise`, gradients at 2,048 tokens take 1.35 CPU seconds with anchors
every 32 queries, 1.09 with every 128, and 1.78 with an exact bias: dense
anchors are cheap without tables.

Shapes: q and k tokens in a tile, H heads, N = q + k - 1 distances.
"""

from typing import Any

import jax
from jax import Array
import jax.numpy as jnp

from lengen_jax import encodings, errors, specs
from lengen_jax.attention.call import Side
from lengen_jax.positions import PerHead

FORMS = ('exact', 'anchored', 'auto')
# Queries from one anchor to the next.
_SPACING = 32
# Tiles before this position are exact: rows vary quickly there.
_FIRST = 128


def choose(
  bias: encodings.BiasFn | None,
  bias_form: str,
  contiguous: bool,
  per_key: bool = False,
) -> str:
  """Returns the form of tiles: 'exact', 'strip', 'anchored' or 'keys'.

  `per_key` asks for 'keys' if the bias is linear in the position.

  Raises:
    errors.ConfigError: 'anchored' is not available for the bias.
  """
  if per_key and bias is not None and bias.slopes is not None:
    return 'keys'
  if bias is not None and bias.encoding.takes_distances:
    return 'strip' if contiguous else 'exact'
  if bias is None or bias_form == 'exact':
    return 'exact'
  if contiguous and bias.encoding.has_rows:
    return 'anchored'
  if bias_form == 'anchored':
    reason = 'it needs contiguous positions, and the same q_offset in all rows'
    if contiguous:
      encoding = specs.describe(bias.encoding)
      reason = f'{encoding} has no rows to interpolate between'
    raise errors.ConfigError(
      f"bias_form='anchored' is not available: {reason}; use 'exact'"
    )
  return 'exact'


def tile(
  form: str, bias: encodings.BiasFn | None, queries: Side, keys: Side
) -> Array | None:
  """Returns the bias of a tile in a form of `choose`, `[1 or B, H, q, k]`.

  In the form 'keys' it is `[1 or B, H, 1, k]`, up to a constant per query.
  """
  if bias is None:
    return None
  if form == 'keys':
    first = jax.tree.map(
      lambda x: jax.lax.stop_gradient(x[:, :1]), queries.positions
    )
    return key_bias(bias, first, keys.positions)
  if form == 'strip':
    return _strip_tile(bias, queries, keys)
  if form == 'anchored':
    # In packed rows, positions may restart within a block.
    given = queries.positions
    in_order = (jnp.diff(given, axis=1) == 1).all()
    is_late = in_order & (given[:, 0].min() >= _FIRST)
    forms = _anchored_tile, _exact_tile
    return jax.lax.cond(is_late, *forms, bias, queries, keys)
  return _exact_tile(bias, queries, keys)


def interpolation_weights(
  bias: encodings.BiasFn, first_B: Array, index_Q: Array, spacing: int
) -> Array:
  """Returns weights of queries: 0 at the anchor before, 1 at the one after.

  Anchors are `spacing` queries apart, from query 0 on. The position of query 0
  in each row is `first_B`, `[1 or B]`. The result, float32 `[1 or B, Q]`, is
  for keys up to the query; for later keys the weight is linear in the query.
  """
  before_Q = index_Q // spacing * spacing
  around = (
    (first_B[:, None] + x[None]).astype(jnp.float32)
    for x in (before_Q, index_Q, before_Q + spacing)
  )
  return jax.vmap(bias.row_weights)(*around)


def key_bias(bias: encodings.BiasFn, origin: PerHead, keys: PerHead) -> Array:
  """Returns s_h (p_j - p) of keys at p_j, `[1 or B, H, 1, k]`.

  The result for another origin p, `[1 or B, 1, H]`, differs by a constant.
  """
  origin, own = (
    jax.tree.map(lambda x: jnp.swapaxes(x, 1, 2), p) for p in (origin, keys)
  )
  return -bias.slopes[None, :, None, None] * origin.to(own)


def _exact_tile(bias: Any, queries: Side, keys: Side) -> Array:
  every = bias(queries.positions, keys.positions)
  return every.reshape(-1, *every.shape[-3:])


def _strip_tile(bias: Any, queries: Side, keys: Side) -> Array:
  q, k = queries.index.shape[1], keys.index.shape[1]
  distances_N = _distances(queries.index[0, 0] - keys.index[0, 0], q, k)
  return _skew(bias.strip(distances_N), q, k)[None]


def _anchored_tile(bias: Any, queries: Side, keys: Side) -> Array:
  q, k = queries.index.shape[1], keys.index.shape[1]
  apart = queries.index[0, 0] - keys.index[0, 0]
  first_B = queries.positions[:, 0]

  def strips(first: Array, group: Array) -> Array:
    """Returns the strips of the anchors before and after a group of queries."""
    skipped = group * _SPACING
    anchors = first + skipped + jnp.array([0, _SPACING])
    return bias.rows(anchors, _distances(apart + skipped, _SPACING, k))

  groups = jnp.arange(-(-q // _SPACING))
  over_groups = jax.vmap(strips, (None, 0), 2)
  strips_Bx2xHxGxN = jax.vmap(over_groups, (0, None))(first_B, groups)
  before, after = (_skew(strips_Bx2xHxGxN[:, n], _SPACING, k) for n in (0, 1))
  index = jnp.arange(len(groups) * _SPACING)
  weight_BxQ = interpolation_weights(bias, first_B, index, _SPACING)
  # The last axis has size 1, or K if the attention is bidirectional.
  weight_BxQxK = weight_BxQ[:, :, None]
  if bias.bidirectional:
    is_seen = (apart + index)[:, None] >= jnp.arange(k)[None]
    linear = (index % _SPACING).astype(jnp.float32)[:, None] / _SPACING
    weight_BxQxK = jnp.where(is_seen[None], weight_BxQxK, linear[None])
  *_, width = weight_BxQxK.shape
  weight = weight_BxQxK.reshape(-1, 1, len(groups), _SPACING, width)
  rows = before + weight * (after - before)
  return rows.reshape(*rows.shape[:2], -1, k)[:, :, :q]


def _distances(apart: Array, q: int, k: int) -> Array:
  """Returns a tile's distances, largest first; `apart` is the first pair's."""
  return (apart + q - 1 - jnp.arange(q + k - 1)).astype(jnp.float32)


def _skew(strip: Array, q: int, k: int) -> Array:
  """Returns `[..., N]` by distance, largest first, as tiles `[..., q, k]`.

  Row i of the tile begins at q - 1 - i of the strip: rows of length N + 1 read
  as rows of length N shift by one each.
  """
  lead, n = strip.shape[:-1], q + k - 1
  rows = jnp.pad(strip, [(0, 0)] * len(lead) + [(0, 1)])
  rows = jnp.broadcast_to(rows[..., None, :], (*lead, q, n + 1))
  rows = rows.reshape(*lead, q * (n + 1))[..., : q * n].reshape(*lead, q, n)
  return rows[..., q - 1 :]
