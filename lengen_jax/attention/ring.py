"""Ring attention: rows are split over devices, and keys move around a ring.

Each device has consecutive tokens of a row. In step t it computes the attention
of its queries over the keys of the device t places before, and sends these keys
to the next device. The parts are merged by their log-sum-exps. No device holds
all keys. The transfer of the keys of the next step overlaps with the products
of the current step.

With a causal mask, later queries see more keys. Tokens are therefore exchanged
first: of 2 P chunks of a row, device d of P gets chunks d and 2 P - 1 - d
(zigzag order), so that all devices have equally many visible pairs in every
step. With a causal window and no sinks, tokens keep their order, and keys are
sent only as far as the last device whose queries see them.

Sources: Liu et al. (2023), arXiv:2310.01889; zigzag order as in Zhu's
ring-flash-attention and the context parallelism of Llama 3, arXiv:2407.21783.

Shapes: as in `blockwise`; n tokens in a piece, a run of consecutive tokens.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
from jax import Array
import jax.numpy as jnp

from lengen_jax.attention import bands, blockwise
from lengen_jax.attention.blockwise import Plan
from lengen_jax.attention.call import AttentionCall, Side
from lengen_jax.attention.reference import MASKED

# The arrays over queries of a call, or over its keys.
Tokens = tuple[Any, ...]


class Ring(NamedTuple):
  """Devices that share the tokens of each row."""

  axis: str | tuple[str, ...]  # Axis of the mesh, or several.
  devices: int
  # Number of devices whose keys a query may see.
  steps: int
  # Pieces of consecutive tokens on a device: two in zigzag order.
  pieces: int

  def pass_on(self, tree: Any, places: int = 1) -> Any:
    """Returns the arrays of the device `places` before."""
    pairs = [
      (device, (device + places) % self.devices)
      for device in range(self.devices)
    ]
    return jax.tree.map(lambda x: jax.lax.ppermute(x, self.axis, pairs), tree)


def choose(
  call: AttentionCall, axis: str | tuple[str, ...] | None, devices: int
) -> Ring | None:
  """Returns the ring for a call of whole rows; None to gather the keys.

  A ring needs queries and keys of the same tokens, and whole blocks of them on
  each device.
  """
  q_length, k_length = call.q.shape[1], call.k.shape[1]
  whole = q_length == k_length and q_length % devices == 0
  if axis is None or devices == 1 or not whole or call.q_offset != 0:
    return None
  n = q_length // devices
  mask, steps, pieces = call.mask, devices, 1
  if mask.causal and mask.window is not None and not mask.sinks:
    steps = min(devices, 1 + math.ceil((mask.window - 1) / n))
  elif mask.causal and n % 2 == 0:
    pieces = 2
  plans = [blockwise.make_plan(one) for one in _calls(call)]
  sizes = {size for plan in plans for size in (plan.block_q, plan.block_k)}
  for count in (pieces, 1):
    if all(n // count <= size or n // count % size == 0 for size in sizes):
      return Ring(axis, devices, steps, count)
  return None


def attend(ring: Ring, call: AttentionCall) -> Array:
  """Returns attention of this device's queries, `[B, Q, H, D]`.

  The call has the queries and the keys of this device.
  """
  length = call.q.shape[1] * ring.devices
  call = call.replace(mask=dataclasses.replace(call.mask, k_length=length))
  if ring.pieces == 2:
    call = _exchanged(ring, call)
  parts = [_part(ring, one) for one in _calls(call)]
  y = parts[0][0]
  if call.bands or call.sink_logits is not None:
    y, _ = bands.merged(parts, call.sink_logits)
  if ring.pieces == 2:
    y = _zigzag(ring, y, back=True)
  return y.astype(call.q.dtype)


def _calls(call: AttentionCall) -> list[AttentionCall]:
  """Returns a call for each band, or the call without bands."""
  return [bands.of_band(call, band) for band in call.bands] or [call]


def _part(ring: Ring, call: AttentionCall) -> bands.Part:
  """Returns attention without sink logits, and log-sum-exps `[B, H, Q]`."""
  n = call.q.shape[1] // ring.pieces
  plan = blockwise.make_plan(call)
  plan = plan._replace(
    block_q=min(plan.block_q, n), block_k=min(plan.block_k, n), partial=True
  )
  logit_scale = jax.tree.map(lambda x: x[..., None], call.logit_scale)
  return _attend(
    ring, plan, call.replace(sink_logits=None, logit_scale=logit_scale)
  )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(ring: Ring, plan: Plan, call: AttentionCall) -> bands.Part:
  return _forward(ring, plan, call)[0]


def _forward(ring: Ring, plan: Plan, call: AttentionCall) -> tuple[Any, Any]:
  queries, keys = _tokens(call)
  batch, length, heads, _ = call.q.shape
  y = jnp.zeros((batch, length, heads, call.v.shape[-1]), jnp.float32)
  lse = jnp.full((batch, heads, length), MASKED, jnp.float32)

  def over(keys: Tokens, outputs: bands.Part) -> bands.Part:
    """Merges the attention of all pieces over some keys with outputs."""

    def of_pair(
      pair: AttentionCall, outputs: bands.Part, a: Array, _b: Array
    ) -> bands.Part:
      (y_a, lse_a), _ = blockwise.forward(plan, pair)
      y, lse = outputs
      before = _piece(ring, y, a), _piece(ring, lse, a, axis=2)
      y_a, lse_a = bands.merged([before, (y_a, blockwise.whole(lse_a))])
      return _put(y, y_a, a), _put(lse, lse_a, a, axis=2)

    return _over_pieces(ring, call, queries, keys, outputs, of_pair)

  def step(_: Array, carry: Any) -> Any:
    keys, outputs = carry
    following = ring.pass_on(keys)
    return following, over(keys, outputs)

  keys, outputs = jax.lax.fori_loop(0, ring.steps - 1, step, (keys, (y, lse)))
  y, lse = over(keys, outputs)
  if call.mask.band is None:
    y = y.astype(call.q.dtype)
  return (y, lse), (call, y, lse)


def _backward(
  ring: Ring, plan: Plan, residuals: Any, doutputs: bands.Part
) -> tuple[AttentionCall]:
  call, *outputs = residuals
  queries, keys = _tokens(call)
  blocks = call.q.shape[1] // ring.pieces // plan.block_q

  def blocked(x_BxHxn: Array) -> Array:
    """Returns `[N, B, H, q]`, the inverse of `blockwise.whole`."""
    x_BxHxNxq = x_BxHxn.reshape(*x_BxHxn.shape[:2], blocks, -1)
    return jnp.moveaxis(x_BxHxNxq, 2, 0)

  def add(pair: AttentionCall, sums: Any, a: Array, b: Array) -> Any:
    """Adds the gradients of a piece of queries over a piece of keys."""
    (y, lse), (dy, dlse) = (
      (_piece(ring, vectors, a), blocked(_piece(ring, numbers, a, axis=2)))
      for vectors, numbers in (outputs, doutputs)
    )
    (d,) = blockwise.backward(plan, (pair, y, lse), (dy, dlse))
    of_queries, of_keys, shared = sums
    return (
      _add(ring, of_queries, (d.q, d.queries, d.logit_scale), a),
      _add(ring, of_keys, (d.k, d.v, d.keys), b),
      jax.tree.map(jnp.add, shared, (d.bias, d.content)),
    )

  def over(keys: Tokens, sums: Any) -> Any:
    return _over_pieces(ring, call, queries, keys, sums, add)

  def step(_: Array, carry: Any) -> Any:
    keys, sums = carry
    following = ring.pass_on(keys)
    of_queries, of_keys, shared = over(keys, sums)
    return following, (of_queries, ring.pass_on(of_keys), shared)

  zeros = _gradients(call)
  keys, sums = jax.lax.fori_loop(0, ring.steps - 1, step, (keys, zeros))
  (dq, dqueries, dlogit_scale), of_keys, shared = over(keys, sums)
  # The gradients of this device's keys are now on the device `steps - 1` places
  # after it.
  dk, dv, dkeys = ring.pass_on(of_keys, 1 - ring.steps)
  dbias, dcontent = shared
  dq, dk, dv = (
    d.astype(x.dtype) for d, x in ((dq, call.q), (dk, call.k), (dv, call.v))
  )
  return (
    call.replace(
      q=dq,
      k=dk,
      v=dv,
      queries=dqueries,
      keys=dkeys,
      bias=dbias,
      content=dcontent,
      logit_scale=dlogit_scale,
    ),
  )


_attend.defvjp(_forward, _backward)


def _tokens(call: AttentionCall) -> tuple[Tokens, Tokens]:
  """Returns the arrays over queries and over keys."""
  return (
    (call.q, call.queries, call.logit_scale),
    (call.k, call.v, call.keys),
  )


def _gradients(call: AttentionCall) -> Any:
  """Returns zeros for the gradients: of queries, keys and parameters."""
  dqueries, dkeys = (
    side.gradient(side.learned) for side in (call.queries, call.keys)
  )
  of_queries, of_keys = (
    jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), tree)
    for tree in (
      (call.q, dqueries, call.logit_scale),
      (call.k, call.v, dkeys),
    )
  )
  shared = jax.tree.map(jnp.zeros_like, (call.bias, call.content))
  return of_queries, of_keys, shared


def _over_pieces(
  ring: Ring,
  call: AttentionCall,
  queries: Tokens,
  keys: Tokens,
  carry: Any,
  function: Any,
) -> Any:
  """Calls `function(pair, carry, a, b)` for each pair of pieces.

  `pair` is the call for piece a of the queries and piece b of the keys.
  """

  def of_pair(index: Array, carry: Any) -> Any:
    a, b = index // ring.pieces, index % ring.pieces
    q, of_queries, logit_scale = _piece(ring, queries, a)
    k, v, of_keys = _piece(ring, keys, b)
    pair = call.replace(
      q=q, k=k, v=v, queries=of_queries, keys=of_keys, logit_scale=logit_scale
    )
    # A pair of pieces without a visible pair still computes one block of keys
    # per block of queries. This costs less than the copy of `carry` that
    # `lax.cond` would make.
    return function(pair, carry, a, b)

  return jax.lax.fori_loop(0, ring.pieces**2, of_pair, carry)


def _piece(ring: Ring, tree: Any, number: Array, axis: int = 1) -> Any:
  """Returns a piece of arrays over the tokens of a device."""

  def of(x: Array) -> Array:
    n = x.shape[axis] // ring.pieces
    return jax.lax.dynamic_slice_in_dim(x, number * n, n, axis)

  def of_leaf(x: Any) -> Any:
    return x.map(of) if isinstance(x, Side) else of(x)

  return jax.tree.map(of_leaf, tree, is_leaf=lambda x: isinstance(x, Side))


def _put(x: Array, piece: Array, number: Array, axis: int = 1) -> Array:
  """Returns x with a piece replaced; the inverse of `_piece`."""
  start = number * piece.shape[axis]
  return jax.lax.dynamic_update_slice_in_dim(
    x, piece.astype(x.dtype), start, axis
  )


def _add(ring: Ring, total: Any, piece: Any, number: Array) -> Any:
  """Returns the total with a piece of the gradients added."""
  return jax.tree.map(
    lambda x, d: _put(x, _piece(ring, x, number) + d, number), total, piece
  )


def _exchanged(ring: Ring, call: AttentionCall) -> AttentionCall:
  """Returns the call with its tokens in zigzag order."""
  zigzag = functools.partial(_zigzag, ring)

  def of(tree: Any) -> Any:
    return jax.tree.map(zigzag, tree)

  return call.replace(
    q=zigzag(call.q),
    k=zigzag(call.k),
    v=zigzag(call.v),
    queries=call.queries.map(zigzag),
    keys=call.keys.map(zigzag),
    logit_scale=of(call.logit_scale),
    bands=tuple(
      band.replace(
        q=zigzag(band.q),
        k=zigzag(band.k),
        q_places=zigzag(band.q_places),
        k_places=zigzag(band.k_places),
      )
      for band in call.bands
    ),
  )


def _zigzag(ring: Ring, x: Array, back: bool = False) -> Array:
  """Returns the tokens `[B, n, ...]` of this device in zigzag order.

  Device d has chunks 2 d and 2 d + 1 and gets those of `ring`'s docstring, the
  even one first. `back` reverses this.
  """
  halves = []
  for parity, half in enumerate(jnp.split(x, 2, axis=1)):
    pairs = []
    for device in range(ring.devices):
      chunk = 2 * device + parity
      pairs.append((device, min(chunk, 2 * ring.devices - 1 - chunk)))
    if back:
      pairs = [pair[::-1] for pair in pairs]
    halves.append(jax.lax.ppermute(half, ring.axis, pairs))
  return jnp.concatenate(halves, axis=1)
