"""Attention weights of a running model, and their entropy.

Attention is linear in its values: with the identity as values, its output is
the matrix of weights.

Shapes: B batch, Q queries, K keys, H heads, G key heads, D head_dim.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import functools
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax import attention, encodings, errors
from lengen_jax.attention import bands, call, visibility
from lengen_jax.data import windows as data_windows
from lengen_jax.models import layers, objective, stacking
from lengen_jax.models.config import ModelConfig
from lengen_jax.positions import PositionScheme
from lengen_jax.types import Array, Params

# Largest number of weights per head and layer that are computed at a time.
MOST_PAIRS = 2**22
# Methods of encodings, and what attention gets from them.
_OF_ENCODING = {
  'rotate': 'rotated',
  'bands': 'bands',
  'bias_fn': 'bias',
  'content_fn': 'content',
}


@dataclasses.dataclass(frozen=True)
class Attended:
  """Arguments of `dot_product_attention` in a layer's self-attention.

  Attributes:
    q: `[B, Q, H, D]`, rotated if the encoding rotates; those of the first band
      if it has bands.
    k: `[B, K, G, D]`, likewise.
    options: all other arguments except `v`, by name.
  """

  q: jax.Array
  k: jax.Array
  options: dict[str, Any]

  def weights(self) -> jax.Array:
    """Returns attention weights, float32 `[B, H, Q, K]`; 0 where masked.

    The weights of a query sum to 1, or to less with `sink_logits`.
    """
    batch, keys, key_heads, _ = self.k.shape
    options = dict(self.options)
    if options['content'] is not None:
      options['content'] = _LogitsOf(options['content'])
    q, k, options['bands'] = jax.tree.map(
      lambda x: x.astype(jnp.float32), (self.q, self.k, options['bands'])
    )
    eye_BxKxGxK = jnp.broadcast_to(
      jnp.eye(keys)[None, :, None], (batch, keys, key_heads, keys)
    )
    # By default an accelerator would round weights to 16 bits.
    with jax.default_matmul_precision('highest'):
      weights_BxQxHxK = attention.dot_product_attention(
        q,
        k,
        eye_BxKxGxK,
        **options,
        implementation='reference',
      )
    return jnp.moveaxis(weights_BxQxHxK, 2, 1)

  def visible(self) -> jax.Array:
    """Returns which keys each query sees, bool `[B, Q, K]`."""
    shape = (*self.q.shape[:2], self.k.shape[1])
    mask = visibility.Mask(
      *(self.options[name] for name in ('causal', 'window', 'sinks'))
    )
    queries, keys = (
      call.Side(jnp.arange(n)[None], segment_ids=self.options['q_segment_ids'])
      for n in shape[1:]
    )
    seen = call.visible_pairs(mask, queries, keys.with_sinks(mask.sinks))
    seen = True if seen is None else seen
    if self.options['bands']:
      # A pair in no band is masked.
      inside = [
        bands.pairs(band.limits, band.q_places, band.k_places).any(1)
        for band in self.options['bands']
      ]
      seen &= functools.reduce(jnp.logical_or, inside)
    return jnp.broadcast_to(seen, shape)


@dataclasses.dataclass(frozen=True)
class _LogitsOf:
  """A ContentFn that adds to logits but not to outputs."""

  content: encodings.ContentFn

  def logits(self, *args: Any) -> jax.Array:
    return self.content.logits(*args)

  def values(self, *args: Any) -> None:
    del args


def by_layer(
  config: ModelConfig,
  scheme: PositionScheme,
  params: Params,
  batch: Mapping[str, Array],
  of_layer: Callable[[Attended], Any],
  *,
  rng: jax.Array | None = None,
  packed: bool = False,
) -> dict[str, Any]:
  """Applies a function to the inputs of each layer's self-attention.

  Args:
    config: a ModelConfig.
    scheme: a PositionScheme; positions are those of test time.
    params: parameters of the model.
    batch: see `data.windows.lm_batch`.
    of_layer: a function of an Attended, such as `Attended.weights`.
    rng: a PRNG key, for schemes with random positions.
    packed: see `objective.token_losses`.

  Returns:
    dict from a layer's name, such as 'layer_0' or 'encoder/layer_0', to the
    function's result, in the order in which the layers run.

  Raises:
    errors.LengthError: the encoding or the scheme does not support the length.
    errors.CombinationError: the encoding does not support the positions.
  """
  found = _by_layer(
    config, scheme, params, batch, of_layer, rng=rng, packed=packed
  )

  def order(name: str) -> tuple[bool, int]:
    return name.startswith('decoder'), int(name.rpartition('_')[2])

  # The keys of a dict that jit returns are sorted.
  return {name: found[name] for name in sorted(found, key=order)}


@functools.partial(
  jax.jit, static_argnames=('config', 'scheme', 'of_layer', 'packed')
)
def _by_layer(
  config: ModelConfig,
  scheme: PositionScheme,
  params: Params,
  batch: Mapping[str, Array],
  of_layer: Callable[[Attended], Any],
  *,
  rng: jax.Array | None,
  packed: bool,
) -> dict[str, Any]:
  """Returns the results of `by_layer` in any order."""
  found: dict[str, Any] = {}
  parts: dict[str, Any] = {}

  def interceptor(
    next_function: Callable[..., Any],
    args: tuple,
    kwargs: dict[str, Any],
    context: nn.module.InterceptorContext,
  ) -> Any:
    module, method = context.module, context.method_name
    result = next_function(*args, **kwargs)
    # Inner modules return first: an encoding's parts before the layer.
    if isinstance(module, encodings.Encoding) and method in _OF_ENCODING:
      parts[_OF_ENCODING[method]] = result
    elif isinstance(module, layers.Attention) and method == 'attend':
      options = parts | kwargs
      q, k = options.pop('rotated', args[1:3])
      if bands := options.setdefault('bands', ()):
        q, k = bands[0].q, bands[0].k
      for name in ('lengths', 'rotate', 'bias_form', 'implementation'):
        del options[name]
      found['/'.join(module.path[:-1])] = of_layer(Attended(q, k, options))
      parts.clear()
    return result

  with nn.intercept_methods(interceptor):
    objective.token_losses(
      # Tracers of a scan's body must not leave it.
      dataclasses.replace(config, scan_layers=False, remat='none'),
      scheme,
      stacking.unstack(params),
      batch,
      rng=jax.random.key(0) if rng is None else rng,
      train=False,
      packed=packed,
    )
  return found


@dataclasses.dataclass(frozen=True)
class LengthEntropy:
  """Mean entropy of attention over heads and queries, at one length.

  Attributes:
    length: tokens of a row.
    nats: entropy by layer name.
    relative: entropy divided by the logarithm of the number of visible keys, 0
      to 1, by layer name. Excludes queries with fewer than two visible keys;
      None if there are no others.
    refused: why the result is missing; '' if it is not.
  """

  length: int
  nats: dict[str, float]
  relative: dict[str, float | None]
  refused: str = ''


def entropy(
  config: ModelConfig,
  scheme: PositionScheme,
  params: Params,
  windows: data_windows.EvaluationWindows,
  *,
  seed: int,
  lengths: Sequence[int] | None = None,
) -> Iterator[LengthEntropy]:
  """Computes the entropy of attention at several lengths of the same text.

  Su claims that the log-n logit scale keeps entropy stable as lengths grow.

  Source: Su (2021, 2023).

  Args:
    seed: seed of positions drawn at test time and of masked tokens.
    lengths: a subset of the windows' lengths; None for all.
  """
  rng = jax.random.key(seed)
  longest = windows.batch(max(windows.lengths))
  inputs = np.asarray(objective.masked(config, longest, rng)['inputs'])
  for length in lengths or windows.lengths:
    batch = windows.batch(length)
    batch['inputs'] = windows.recut(inputs, length)
    # All tokens count, masked or not.
    batch['weights'] = (batch['segment_ids'] > 0).astype(np.float32)
    rows = min(len(batch['inputs']), max(1, MOST_PAIRS // length**2))
    found: dict[str, Any] = {}
    try:
      for number, part in enumerate(data_windows.padded(batch, rows)):
        key = jax.random.fold_in(rng, number)
        queries = by_layer(config, scheme, params, part, _queries, rng=key)
        real_BxQ = part['weights'] > 0
        for name, values in queries.items():
          found.setdefault(name, []).append(np.stack(values)[:, real_BxQ])
    except (errors.LengthError, errors.CombinationError) as error:
      yield LengthEntropy(length, {}, {}, refused=str(error))
      continue
    nats, relative = {}, {}
    for name, values in found.items():
      nats_N, keys_N = np.concatenate(values, axis=1, dtype=np.float64)
      nats[name] = float(nats_N.mean())
      several_N = keys_N > 1
      shares_N = nats_N[several_N] / np.log(keys_N[several_N])
      relative[name] = float(shares_N.mean()) if len(shares_N) else None
    yield LengthEntropy(length, nats, relative)


def _queries(attended: Attended) -> tuple[jax.Array, jax.Array]:
  """Returns mean entropy and number of visible keys of queries, `[B, Q]`."""
  weights_BxHxQxK = attended.weights()
  # With sink logits, the weights of a query sum to less than 1; the weights of
  # padding sum to 0.
  total_BxHxQx1 = weights_BxHxQxK.sum(-1, keepdims=True)
  weights_BxHxQxK /= jnp.maximum(total_BxHxQx1, jnp.finfo(jnp.float32).tiny)
  nats_BxHxQ = jax.scipy.special.entr(weights_BxHxQxK).sum(-1)
  return nats_BxHxQ.mean(1), attended.visible().sum(-1)
