"""Attention over bands of pairs, each with its own queries and keys.

A softmax over all pairs equals softmaxes over the bands, merged by their
log-sum-exps. Each band is a call of its own, which computes only the tiles that
have pairs of the band.

Shapes: B batch, Q queries, K keys, H heads, D head_dim.
"""

from collections.abc import Sequence
import dataclasses
import functools

import jax
from jax import Array
import jax.numpy as jnp

from lengen_jax.attention.call import AttentionCall
from lengen_jax.encodings import Band

# The output of a band, float32 `[B, Q, H, D]`, and the log-sum-exp of each
# softmax, float32 `[B, H, Q]`.
Part = tuple[Array, Array]


def of_band(call: AttentionCall, band: Band) -> AttentionCall:
  """Returns the call for the pairs of a band, without sink logits."""
  return call.replace(
    q=band.q,
    k=band.k,
    queries=call.queries.replace(places=band.q_places),
    keys=call.keys.replace(places=band.k_places),
    mask=dataclasses.replace(call.mask, band=band.limits),
    sink_logits=None,
    bands=(),
  )


def merged(parts: Sequence[Part], sink_logits_H: Array | None = None) -> Part:
  """Merges the outputs and log-sum-exps of parts into those of all pairs.

  y = sum_p exp(lse_p - lse) y_p with lse = log sum_p exp(lse_p).
  """
  lse_PxBxHxQ = jnp.stack([lse for _, lse in parts])
  total_BxHxQ = jax.nn.logsumexp(lse_PxBxHxQ, axis=0)
  if sink_logits_H is not None:
    # The sink is a key without a value.
    total_BxHxQ = jnp.logaddexp(total_BxHxQ, sink_logits_H[None, :, None])
  weights_PxBxHxQ = jnp.exp(lse_PxBxHxQ - total_BxHxQ[None])
  weights_PxBxQxH = jnp.swapaxes(weights_PxBxHxQ, 2, 3)
  terms = [
    y * weights[..., None]
    for (y, _), weights in zip(parts, weights_PxBxQxH, strict=True)
  ]
  return functools.reduce(jnp.add, terms), total_BxHxQ


def pairs(
  limits: tuple[float, float], q_places: Array, k_places: Array
) -> Array:
  """Returns which pairs are in a band, bool `[1 or B, 1 or H, Q, K]`.

  Places of queries and keys are `[1 or B, Q or K, 1 or H]`; see `Band`.
  """
  q_places, k_places = (jnp.swapaxes(x, 1, 2) for x in (q_places, k_places))
  apart = q_places[..., :, None] - k_places[..., None, :]
  return (limits[0] <= apart) & (apart < limits[1])


def may_meet(
  limits: tuple[float, float], q_places: Array, k_places: Array
) -> Array:
  """Returns whether a tile may have a pair of a band, a bool scalar.

  False is certain. True may be returned for a tile without such pairs.
  """
  nearest = q_places.min(1) - k_places.max(1)
  farthest = q_places.max(1) - k_places.min(1)
  # Comparisons with NaN are False: a tile with a NaN place is kept.
  return (~(farthest < limits[0]) & ~(nearest >= limits[1])).any()
