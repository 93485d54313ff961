"""Errors of the approximate biases that a model computes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax.attention import bias_forms, blockwise, dot_product, pallas
from lengen_jax.attention.call import Side
from lengen_jax.encodings import BiasFn
from lengen_jax.evaluation import bias_maps
from lengen_jax.models.config import ModelConfig
from lengen_jax.positions import PositionScheme
from lengen_jax.types import Params

# Number of tiles or queries whose errors are measured.
_SAMPLES = 32


def largest(
  config: ModelConfig, scheme: PositionScheme, params: Params, length: int
) -> dict[str, float]:
  """Estimates the largest error of each approximate bias, in nats.

  Compares 32 random tiles (with 'pallas', the bias of 32 random queries) with
  exact ones. The seed is fixed. Each row of tokens is one segment; in packed
  rows, 'pallas' computes exact tiles. Gradients with respect to FIRE's
  parameters may have larger errors.

  Returns:
    dict from path in `params` to an error; empty if every bias is exact.
  """
  implementation = dot_product.choose(
    config.implementation, config.bias_form, length, length
  )
  exact = config.bias_form == 'exact' or not scheme.contiguous
  if exact or implementation == 'reference':
    return {}
  largest_of = {'blockwise': _of_tiles, 'pallas': _of_rows}[implementation]
  # Biases at contextual positions are exact.
  indexed = {
    f'layer_{i}'
    for i, layer in enumerate(config.layers)
    if layer.contextual_positions == 'none'
  }
  biases = dict(
    found
    for name, found in bias_maps.by_layer(config, params).items()
    if name.rpartition('/')[2] in indexed
  )
  return {
    path: float(largest_of(bias, length))
    for path, bias in biases.items()
    if bias is not None
    and bias.encoding.has_rows
    and bias_forms.choose(bias, config.bias_form, True) == 'anchored'
  }


@functools.partial(jax.jit, static_argnums=1)
def _of_tiles(bias: BiasFn, length: int) -> jax.Array:
  """Returns the largest error of a bias as 'blockwise' approximates it."""
  size = min(blockwise.block_size(bias, bias.encoding.head_dim), length)
  i, j = jax.random.randint(jax.random.key(0), (2, _SAMPLES), 0, length // size)
  if not bias.bidirectional:
    i, j = jnp.maximum(i, j), jnp.minimum(i, j)

  def error(i_and_j: tuple[jax.Array, jax.Array]) -> jax.Array:
    queries, keys = (
      Side(index=block, positions=block)
      for block in (n * size + jnp.arange(size)[None] for n in i_and_j)
    )
    visible = queries.index[:, :, None] >= keys.index[:, None]
    visible |= bias.bidirectional
    exact, approximate = (
      bias_forms.tile(form, bias, queries, keys)
      for form in ('exact', 'anchored')
    )
    return jnp.where(visible[:, None], jnp.abs(exact - approximate), 0).max()

  return jax.lax.map(error, (i, j)).max()


@functools.partial(jax.jit, static_argnums=1)
def _of_rows(bias: BiasFn, length: int) -> jax.Array:
  """Returns the largest error of a bias as the 'pallas' kernels compute it."""
  queries = np.random.default_rng(0).integers(0, length, _SAMPLES)
  worst = []
  for i in map(int, queries):
    distances = i - jnp.arange(length)
    exact = bias.rows(jnp.array([i]), distances)[0]
    off = jnp.abs(pallas.row(bias, i, distances) - exact)
    visible = (distances >= 0) | bias.bidirectional
    worst.append(jnp.where(visible[None], off, 0).max())
  return jnp.stack(worst).max()
