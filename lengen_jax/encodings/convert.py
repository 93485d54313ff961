"""Fits a FIRE to any other additive bias, by least squares.

FIRE can represent T5's bias, ALiBi, KERPLE and Sandwich up to a given length:
Li et al. (2023), arXiv:2310.04418, theorem 3.1.

Shapes: R queries, N keys of each query, H heads.
"""

from collections.abc import Callable, Iterator
import dataclasses
import functools
import math
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from lengen_jax import errors, specs
from lengen_jax.encodings import fire as fire_lib
from lengen_jax.types import Array, Params


@dataclasses.dataclass(frozen=True)
class Fit:
  """A FIRE fitted to a bias, and its error.

  Errors are over all heads and all pairs 0 <= j <= i < max_length.

  Attributes:
    params: the parameters, float32, the tree under 'params'.
    max_error: largest absolute error.
    rms_error: root of the mean squared error.
    scale: largest absolute value of the bias.
  """

  params: Any
  max_error: float
  rms_error: float
  scale: float


def fit_fire(
  bias: Callable[[jax.Array, jax.Array], Array],
  fire: fire_lib.Fire,
  *,
  max_length: int,
  rng: jax.Array,
  steps: int = 2000,
) -> Fit:
  """Fits a FIRE to a causal bias by least squares.

  Each head is fitted relative to its own largest value by Adam, with a rate
  that decays from 0.01. If a learned threshold starts below `max_length`, a
  second fit starts with the threshold there, which suits a bias of distance
  alone; the better fit is returned.

  Args:
    bias: `(q_positions [Q], k_positions [K]) -> [H, Q, K]`, int32 positions,
      such as a BiasFn. Values at keys after the query are ignored.
    fire: a Fire, with any settings.
    max_length: exclusive upper bound of positions.
    rng: a PRNG key for initial parameters and sampled pairs.
    steps: optimizer steps.

  Raises:
    errors.CombinationError: `fire` is not a Fire, or `bias` has a shape other
      than `[H, Q, K]` with the heads of `fire`.
    errors.LengthError: `max_length` is below 1.
  """
  if max_length < 1:
    raise errors.LengthError(f'max_length must be at least 1, got {max_length}')
  if not isinstance(fire, fire_lib.Fire):
    raise errors.CombinationError(
      f'{specs.name(fire)} is not FIRE; fit_fire requires '
      "encodings.create('fire', ...)"
    )
  fire = fire.clone(parent=None, name=None)
  init_rng, pairs_rng = jax.random.split(rng)
  params = nn.unbox(fire.init(init_rng, method='bias_fn')['params'])
  starts = [params]
  if 'threshold_multiplier' in params and 0 < fire.init_threshold < max_length:
    raised = jnp.full((1,), max_length / fire.init_threshold)
    starts.append({**params, 'threshold_multiplier': raised})
  q_R, k_RxN = sample_pairs(pairs_rng, max_length)
  target_RxNxH = np.concatenate(
    [
      np.moveaxis(np.take_along_axis(block, k_RxN[None, rows], 2), 0, -1)
      for rows, block in _blocks(bias, fire, q_R, max_length)
    ]
  )
  scale_H = np.abs(target_RxNxH).max((0, 1))
  scale_H = np.where(scale_H > 0, scale_H, 1)
  fits = [
    _fit(fire, steps, start, q_R, k_RxN, target_RxNxH, scale_H)
    for start in starts
  ]
  params, _ = min(fits, key=lambda params_and_loss: params_and_loss[1])
  fitted = jax.jit(functools.partial(_bias, fire, params))
  total, max_error, scale = 0.0, 0.0, 0.0
  queries = np.arange(max_length, dtype=np.int32)
  for (_, want), (_, got) in zip(
    _blocks(bias, fire, queries, max_length),
    _blocks(fitted, fire, queries, max_length),
    strict=True,
  ):
    error = np.abs(got - want)
    total += np.sum(error**2, dtype=np.float64)
    max_error = np.maximum(max_error, error.max())
    scale = np.maximum(scale, np.abs(want).max())
  pairs = fire.num_heads * max_length * (max_length + 1) // 2
  return Fit(params, float(max_error), math.sqrt(total / pairs), float(scale))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _fit(
  fire: fire_lib.Fire,
  steps: int,
  params: Params,
  q_R: Array,
  k_RxN: Array,
  target_RxNxH: Array,
  scale_H: Array,
) -> tuple[Params, jax.Array]:
  """Returns parameters and loss after `steps` steps of Adam."""
  last = f'mlp_{fire.hidden_layers}'

  def in_units_of_bias(params: Params) -> Params:
    kernel, bias = (params[last][name] for name in ('kernel', 'bias'))
    output = {'kernel': kernel * scale_H[None], 'bias': bias * scale_H}
    return {**params, last: output}

  def loss(params: Params) -> jax.Array:
    b_RxHx1xN = _bias(fire, in_units_of_bias(params), q_R[:, None], k_RxN)
    error = jnp.swapaxes(b_RxHx1xN[:, :, 0], 1, 2) - target_RxNxH
    return jnp.mean((error / scale_H[None, None]) ** 2)

  optimizer = optax.adam(optax.cosine_decay_schedule(0.01, steps))

  def step(_: int, carry: tuple[Params, Any]) -> tuple[Params, Any]:
    params, state = carry
    updates, state = optimizer.update(jax.grad(loss)(params), state)
    return optax.apply_updates(params, updates), state

  start = params, optimizer.init(params)
  params, _ = jax.lax.fori_loop(0, steps, step, start)
  return in_units_of_bias(params), loss(params)


def _bias(fire: fire_lib.Fire, params: Params, q: Array, k: Array) -> Any:
  return fire.apply({'params': params}, q, k, method='bias')


def sample_pairs(
  rng: jax.Array, max_length: int
) -> tuple[np.ndarray, np.ndarray]:
  """Samples 128 queries, and 32 keys up to each of them.

  Half of the queries are spaced evenly over 0 .. max_length - 1 and half
  logarithmically. So are the distances 0 .. i of keys from a query i, one drawn
  at random from each of 16 intervals. Positions are int32 `[R]` and `[R, N]`.
  """
  queries, half = 128, 16
  even = np.linspace(0, max_length - 1, queries // 2)
  logarithmic = np.geomspace(1, max_length, queries // 2) - 1
  q_R = np.round(np.concatenate([even, logarithmic])).astype(np.int32)
  u = np.asarray(jax.random.uniform(rng, (queries, 2, half)), np.float64)
  u = (np.arange(half)[None, None] + u) / half
  i = q_R[:, None]
  distances = np.hstack([u[:, 0] * (i + 1), (i + 1.0) ** u[:, 1] - 1])
  return q_R, i - np.minimum(distances.astype(np.int32), i)


def _blocks(
  bias: Callable, fire: fire_lib.Fire, q_R: np.ndarray, max_length: int
) -> Iterator[tuple[slice, np.ndarray]]:
  """Yields slices of queries, of about 2^18 pairs, and their bias on all keys.

  The bias is float32 `[H, queries, max_length]`, 0 at keys after the query.
  """
  count = max(1, 2**18 // max_length)
  k_positions = np.arange(max_length, dtype=np.int32)
  for start in range(0, len(q_R), count):
    rows = slice(start, start + count)
    q = q_R[rows]
    block = np.asarray(bias(jnp.asarray(q), jnp.asarray(k_positions)))
    shape = (fire.num_heads, len(q), max_length)
    if block.shape != shape:
      raise errors.CombinationError(
        f'the bias of {len(q)} queries and {max_length} keys has shape '
        f'{block.shape}, not {shape}; create fire with as many heads as the '
        'bias has'
      )
    yield rows, np.where(k_positions <= q[:, None], block, 0)
