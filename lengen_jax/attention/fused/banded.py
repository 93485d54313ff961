"""Attention in kernels for a band of queries, with a bias by distance or none.

The kernels make the bias of a tile from a table of rows by distance. Its
gradient is the gradient of the tile, summed along diagonals; autodiff computes
that of the parameters from it.
"""

import functools
import types

import jax
from jax import Array
import jax.numpy as jnp

from lengen_jax.attention.call import AttentionCall
from lengen_jax.attention.fused import merge, tables
from lengen_jax.attention.fused.plan import Inputs, Plan


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def attend(chip: types.ModuleType, plan: Plan, call: AttentionCall) -> Array:
  """Returns attention of the band's queries, `[B, n, H D]`."""
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
  inputs = Inputs.create(plan, call, table).with_gradients(plan, y, lse, dy)
  if table.weights is not None:
    vary = tables.weights_vary(plan, call.bias, call)
    inputs = inputs.replace(weights_vary=vary)
  dq, dtable = chip.calls.query_gradients(plan, inputs)
  (dbias,) = to_bias(dtable)
  dk, dv = chip.calls.key_gradients(plan, inputs)
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
    queries=None,
    keys=None,
  )
  return (gradients,)


attend.defvjp(_forward, _backward)
