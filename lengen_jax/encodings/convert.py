"""Other additive biases as FIRE: exactly, and by least squares.

Theorem 3.1 of Li et al. (2023), arXiv:2310.04418: up to a given maximum length
FIRE represents T5's bias, ALiBi, KERPLE and Sandwich. With a threshold L of at
least that length the normaliser psi(max(i, L)) is one number, which the first
kernel takes up; the multilayer perceptron is then free to be any function of
the distance d = i - j, and `to_fire` writes down the one wanted:

  ALiBi            -s_h d                          linear, no hidden layer
  T5               t_0 + sum_k (t_k - t_{k-1}) [d >= r_k]   steps
  Sandwich         sum_k r_h cos(w_k d)            cosines
  KERPLE (log)     -p_h ln(1 + a_h d)              one ln(1 + x) per head
  KERPLE (power)   -a_h exp(p_h ln d)              one exponential per head, of
                                                   psi(d) = ln d

`fit_fire` fits a FIRE of any settings, the default say, to any bias.
"""

from collections.abc import Callable
import dataclasses
import functools
import math
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from lengen_jax import errors
from lengen_jax import specs
from lengen_jax.encodings import alibi
from lengen_jax.encodings import base
from lengen_jax.encodings import fire as fire_lib
from lengen_jax.encodings import kerple
from lengen_jax.encodings import sandwich
from lengen_jax.encodings import t5
from lengen_jax.hints import Params


def to_fire(
  encoding: base.Encoding, params: Params, max_length: int
) -> tuple[str, Params]:
  """Writes a known bias as a FIRE that equals it up to a length.

  The FIRE has as many heads as `encoding` and equals its causal bias, up to
  float32, at whole positions 0 <= j <= i < max_length. From its threshold on,
  the least power of two that is neither below `max_length` nor below 32, it
  interpolates, as FIRE does.

  Source: theorem 3.1 and its proof, Li et al. (2023), arXiv:2310.04418.

  Args:
    encoding: an Alibi, T5, KerpleLog, KerplePower or Sandwich.
    params: its parameters, the tree under 'params'; {} where it has none.
    max_length: all positions are below this.

  Returns:
    (spec, params): the spec of a FIRE and its parameters, float32.

  Raises:
    errors.CombinationError: the encoding has no such form.
    errors.LengthError: `max_length` is below 1.
  """
  _check_length(max_length)
  form = _FORMS.get(type(encoding))
  if form is None:
    raise errors.CombinationError(_no_form(encoding))
  # A power of two from 32 on: L + 1e-6 is L in float32 and d / L is exact.
  threshold = float(1 << max(5, (max_length - 1).bit_length()))
  bias_fn: Any = encoding.unbound().apply({'params': params}, method='bias_fn')
  tile = {k: np.asarray(x, np.float64) for k, x in bias_fn.params.items()}
  keys, layers = form(encoding, tile, threshold)
  keys = {
    'hidden_layers': len(layers) - 1,
    'transform': 'identity',
    'threshold': 'fixed',
    'init_threshold': threshold,
    **keys,
  }
  if len(layers) > 1:
    keys['mlp_width'] = layers[0][0].shape[1]
  if encoding.shared:
    keys['shared'] = True
  spec = ', '.join(f'{key}={value!r}' for key, value in keys.items())
  return f'fire({spec})', {
    f'mlp_{n}': {
      'kernel': jnp.asarray(kernel, jnp.float32),
      'bias': jnp.asarray(bias, jnp.float32),
    }
    for n, (kernel, bias) in enumerate(layers)
  }


# Each form returns keys of the spec and a (kernel, bias) per layer.


def _alibi(encoding, tile, threshold):
  del encoding
  slopes_H = tile['slopes']
  return {}, [(-slopes_H[None] * threshold, np.zeros_like(slopes_H))]


def _t5(encoding, tile, threshold):
  table_NxH = tile['table']
  least = t5.thresholds(encoding.num_buckets, encoding.max_distance)
  # Between whole distances, so that no rounding moves a boundary.
  steps = 0.5 - np.array(least, np.float64)
  hidden = np.full((1, len(least)), threshold), steps
  return {'activation': 'step'}, [
    hidden,
    (np.diff(table_NxH, axis=0), table_NxH[0]),
  ]


def _sandwich(encoding, tile, threshold):
  ratio_H = tile['ratio']
  frequencies = 10000.0 ** (-np.arange(0, encoding.dbar, 2) / encoding.dbar)
  hidden = frequencies[None] * threshold, np.zeros_like(frequencies)
  heads = np.tile(ratio_H[None], (len(frequencies), 1))
  return {'activation': 'cosine'}, [hidden, (heads, np.zeros_like(ratio_H))]


def _kerple_log(encoding, tile, threshold):
  del encoding
  p_H, a_H = tile['p'], tile['a']
  zeros_H = np.zeros_like(p_H)
  return {'activation': 'log1p'}, [
    (a_H[None] * threshold, zeros_H),
    (np.diag(-p_H), zeros_H),
  ]


def _kerple_power(encoding, tile, threshold):
  del encoding
  p_H, a_H = tile['p'], tile['a']
  zeros_H = np.zeros_like(p_H)
  return {'transform': 'ln', 'activation': 'exp'}, [
    (p_H[None] * (math.log(threshold) + 1e-6), zeros_H),
    (np.diag(-a_H), zeros_H),
  ]


_FORMS = {
  alibi.Alibi: _alibi,
  t5.T5: _t5,
  sandwich.Sandwich: _sandwich,
  kerple.KerpleLog: _kerple_log,
  kerple.KerplePower: _kerple_power,
}


def _no_form(encoding):
  name = specs.name(encoding)
  if isinstance(encoding, fire_lib.Fire):
    return f'{name} is FIRE already; use it and its parameters as they are'
  if type(encoding).tile_params is base.Encoding.tile_params:
    return (
      f'{name} has no additive bias, and FIRE is nothing else; keep {name} as '
      'it is'
    )
  return (
    f'{name} has no known form as FIRE; fit_fire fits one to any additive bias'
  )


@dataclasses.dataclass(frozen=True)
class Fit:
  """A FIRE fitted to a bias, and how far it is from it.

  Errors are over all heads and all pairs 0 <= j <= i < max_length.

  Attributes:
    params: the parameters, float32, the tree under 'params'.
    max_error: largest absolute error.
    rms_error: root of the mean squared error.
    scale: largest absolute value of the bias, to tell relative errors.
  """

  params: Any
  max_error: float
  rms_error: float
  scale: float


def fit_fire(
  bias: Callable[[jax.Array, jax.Array], jax.Array],
  fire: fire_lib.Fire,
  *,
  max_length: int,
  rng: jax.Array,
  steps: int = 2000,
) -> Fit:
  """Fits a FIRE to a causal bias by least squares.

  A warm start where the encoding of a trained model is replaced. Every head is
  fitted relative to its own largest value, by Adam with a rate that decays
  from 0.01, on pairs of which half are spread evenly and half logarithmically,
  queries and distances alike. Where a learned threshold is below `max_length`,
  a second start has it there, as in the theorem, which suits a bias of distance
  alone; the better fit is kept.

  Args:
    bias: `(q_positions [Q], k_positions [K]) -> [H, Q, K]`, int32 positions; a
      BiasFn is one. Values at keys after the query are ignored.
    fire: a Fire, with any settings.
    max_length: all positions are below this.
    rng: a key of `jax.random`: initial parameters and sampled pairs.
    steps: of the optimizer.

  Returns:
    A Fit.

  Raises:
    errors.CombinationError: `fire` is no Fire, or `bias` has a shape other
      than `[H, Q, K]` with the heads of `fire`.
    errors.LengthError: `max_length` is below 1.
  """
  _check_length(max_length)
  if not isinstance(fire, fire_lib.Fire):
    raise errors.CombinationError(
      f'{specs.name(fire)} is no FIRE; fit_fire takes an encoding '
      "as encodings.create('fire', ...) gives"
    )
  fire = fire.unbound()
  init_rng, pairs_rng = jax.random.split(rng)
  params = nn.unbox(fire.init(init_rng, method='bias_fn')['params'])
  starts = [params]
  if 'threshold_multiplier' in params and 0 < fire.init_threshold < max_length:
    raised = jnp.full((1,), max_length / fire.init_threshold)
    starts.append({**params, 'threshold_multiplier': raised})
  q_R, k_RxN = _sample_pairs(pairs_rng, max_length)
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

  @jax.jit
  def fitted(q_positions, k_positions):
    return _bias(fire, params, q_positions, k_positions)

  total, max_error, scale = 0.0, 0.0, 0.0
  everything = np.arange(max_length, dtype=np.int32)
  wanted = _blocks(bias, fire, everything, max_length)
  got = _blocks(fitted, fire, everything, max_length)
  for (_, want), (_, have) in zip(wanted, got, strict=True):
    error = np.abs(have - want)
    total += np.sum(error**2, dtype=np.float64)
    max_error = np.maximum(max_error, error.max())
    scale = np.maximum(scale, np.abs(want).max())
  pairs = fire.num_heads * max_length * (max_length + 1) // 2
  return Fit(params, float(max_error), math.sqrt(total / pairs), float(scale))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _fit(fire, steps, params, q_R, k_RxN, target_RxNxH, scale_H):
  """Adam on the sampled pairs: parameters and loss after `steps`."""
  last = f'mlp_{fire.hidden_layers}'

  def in_units_of_bias(params):
    output = {
      'kernel': params[last]['kernel'] * scale_H[None],
      'bias': params[last]['bias'] * scale_H,
    }
    return {**params, last: output}

  def loss(params):
    b_RxHx1xN = _bias(fire, in_units_of_bias(params), q_R[:, None], k_RxN)
    error = jnp.swapaxes(b_RxHx1xN[:, :, 0], 1, 2) - target_RxNxH
    return jnp.mean((error / scale_H[None, None]) ** 2)

  optimizer = optax.adam(optax.cosine_decay_schedule(0.01, steps))

  def step(_, carry):
    params, state = carry
    updates, state = optimizer.update(jax.grad(loss)(params), state)
    return optax.apply_updates(params, updates), state

  params, _ = jax.lax.fori_loop(
    0, steps, step, (params, optimizer.init(params))
  )
  return in_units_of_bias(params), loss(params)


def _bias(fire, params, q_positions, k_positions):
  return fire.apply({'params': params}, q_positions, k_positions, method='bias')


def _sample_pairs(rng, max_length, queries=128, keys=32):
  """Query positions `[R]` and for each of them key positions `[R, N]`.

  The first half of either is spread evenly, the second logarithmically, of the
  queries over 0 .. max_length - 1 and of the keys over distances 0 .. i from
  the query i: one at random in each of N / 2 intervals.
  """
  q_R = np.concatenate(
    [
      np.linspace(0, max_length - 1, queries // 2),
      np.geomspace(1, max_length, queries // 2) - 1,
    ]
  )
  q_R = np.round(q_R).astype(np.int32)
  half = keys // 2
  u = np.asarray(jax.random.uniform(rng, (queries, 2, half)), np.float64)
  u = (np.arange(half)[None, None] + u) / half
  i = q_R[:, None]
  distances = np.concatenate(
    [u[:, 0] * (i + 1), (i + 1.0) ** u[:, 1] - 1], axis=1
  )
  distances = np.minimum(distances.astype(np.int32), i)
  return q_R, i - distances


def _blocks(bias, fire, q_positions, max_length):
  """Yields the bias of all keys, a few queries at a time.

  Yields:
    (slice of the queries, float32 `[H, queries, max_length]`, 0 at keys after
    the query), of about 2^18 pairs.
  """
  count = max(1, 2**18 // max_length)
  k_positions = np.arange(max_length, dtype=np.int32)
  for start in range(0, len(q_positions), count):
    rows = slice(start, start + count)
    q = q_positions[rows]
    block = np.asarray(bias(jnp.asarray(q), jnp.asarray(k_positions)))
    shape = (fire.num_heads, len(q), max_length)
    if block.shape != shape:
      raise errors.CombinationError(
        f'the bias of {len(q)} queries and {max_length} keys has shape '
        f'{block.shape}, not {shape}; give fire as many heads as the bias has'
      )
    yield rows, np.where(k_positions <= q[:, None], block, 0)


def _check_length(max_length):
  if max_length < 1:
    raise errors.LengthError(f'max_length must be at least 1, got {max_length}')
