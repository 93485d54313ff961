"""Attention in kernels for a range of queries, without a bias per pair.

A *range* (`anchors.QueryRange`) has consecutive queries whose bias is computed
in the same way: all queries of a call or, for an anchored bias, those with
anchors of one spacing. The kernels are called once for each range.

The kernels make the bias of a tile from a table of rows by distance, or from
positions of keys. The gradient of the table is the gradient of the tile, summed
along diagonals or over queries. Autodiff computes the gradients of parameters
and positions from it.
"""

import functools
import types

import jax
from jax import Array
import jax.numpy as jnp

from lengen_jax import encodings
from lengen_jax.attention import bias_forms
from lengen_jax.attention.call import AttentionCall
from lengen_jax.attention.fused import merge, tables
from lengen_jax.attention.fused.plan import Inputs, Plan
from lengen_jax.positions import PerHead


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def attend(chip: types.ModuleType, plan: Plan, call: AttentionCall) -> Array:
  """Returns attention of the range's queries, `[B, n, H D]`."""
  return _forward(chip, plan, call)[0]


Residuals = tuple[AttentionCall, Array, Array]


def _forward(
  chip: types.ModuleType, plan: Plan, call: AttentionCall
) -> tuple[Array, Residuals]:
  table = tables.make(plan, call.bias, call)
  part = chip.calls.forward(plan, Inputs.create(plan, call, table))
  y, lse = merge.with_sinks(plan, part, call.sink_logits)
  return y, (call, y, merge.finite(lse))


def _backward(
  chip: types.ModuleType, plan: Plan, residuals: Residuals, dy: Array
) -> tuple[AttentionCall]:
  call, y, lse = residuals
  table, to_bias = jax.vjp(
    lambda bias: tables.make(plan, bias, call), call.bias
  )
  dqueries = dkeys = None
  inputs = Inputs.create(plan, call, table).with_gradients(plan, y, lse, dy)
  if table.weights is not None:
    vary = tables.weights_vary(plan, call.bias, call)
    inputs = inputs.replace(weights_vary=vary)
  dq, dtable = chip.calls.query_gradients(plan, inputs)
  dk, dv, dkey_bias = chip.calls.key_gradients(plan, inputs)
  if plan.form == 'keys':
    dbias, dvalue = _key_gradients(call, dkey_bias)
    dkeys = call.keys.gradient(dvalue)
    # A term that is equal for all keys of a query cancels in the softmax.
    dqueries = call.queries.gradient(jnp.zeros_like(call.queries.learned))
  else:
    (dbias,) = to_bias(dtable)
  after = call.q.shape[1] - plan.before - dq.shape[1]
  dq = jnp.pad(dq, ((0, 0), (plan.before, after), (0, 0)))
  after = call.k.shape[1] - dk.shape[1]
  dk, dv = (jnp.pad(x, ((0, 0), (0, after), (0, 0))) for x in (dk, dv))
  gradients = call.replace(
    q=dq,
    k=dk,
    v=dv,
    bias=dbias,
    sink_logits=merge.sink_gradient(plan, (y, lse), dy, call.sink_logits),
    queries=dqueries,
    keys=dkeys,
  )
  return (gradients,)


def _key_gradients(
  call: AttentionCall, dkey_bias_BxHx1xK: Array
) -> tuple[encodings.BiasFn, Array]:
  """Returns gradients of the bias's parameters, and of positions of keys."""
  value = call.keys.learned
  # Distances to a key in the middle are small.
  middle = jax.lax.stop_gradient(value[:, value.shape[1] // 2, None])

  def of_keys(bias: encodings.BiasFn, value: Array) -> Array:
    return bias_forms.key_bias(bias, PerHead(middle), PerHead(value))

  key_bias, pull = jax.vjp(of_keys, call.bias, value)
  gradient = dkey_bias_BxHx1xK[..., : value.shape[1]]
  unread = value.shape[1] - gradient.shape[3]
  gradient = jnp.pad(gradient, [(0, 0)] * 3 + [(0, unread)])
  if key_bias.shape[0] == 1:
    gradient = gradient.sum(0, keepdims=True)
  return pull(gradient)


attend.defvjp(_forward, _backward)
