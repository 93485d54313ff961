"""Attention weights of a model, taken while it runs, and their entropy.

Methods of the attention layers are listened to. What they gave goes through the
reference implementation once more, with the identity for values: attention is
linear in its values, and what it makes of the identity is its weights.

Shapes: B batch, Q queries, K keys, H heads, G key heads, D head_dim.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any

from flax import linen as nn
from flax import struct
import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax import attention
from lengen_jax import encodings
from lengen_jax import errors
from lengen_jax.attention import call
from lengen_jax.attention import scaling
from lengen_jax.attention import visibility
from lengen_jax.data import windows as data_windows
from lengen_jax.hints import Array
from lengen_jax.hints import Params
from lengen_jax.models import layers
from lengen_jax.models import objective
from lengen_jax.models import stacking
from lengen_jax.models.config import ModelConfig
from lengen_jax.positions import PositionScheme

# Weights per head and layer that are computed at a time.
_MOST_PAIRS = 2**22


@struct.dataclass
class Attended:
  """What the self-attention of a layer was given.

  Attributes:
    q: `[B, Q, H, D]`, turned if the encoding turns it.
    k: `[B, K, G, D]`, likewise.
    q_positions: `[1 or B, Q]`, or Distances.
    k_positions: `[1 or B, K]`, or Distances.
    segment_ids: int32 `[B, Q]` or None.
    bias: a `BiasFn` or None.
    content: a `ContentFn` or None.
    logit_scale: see `dot_product_attention`.
    causal: likewise.
    window: likewise.
    sinks: likewise.
    scale: likewise.
  """

  q: Any
  k: Any
  q_positions: Any
  k_positions: Any
  segment_ids: Any
  bias: Any
  content: Any
  logit_scale: Any
  causal: bool = struct.field(pytree_node=False)
  window: int | None = struct.field(pytree_node=False)
  sinks: int = struct.field(pytree_node=False)
  scale: float | None = struct.field(pytree_node=False)

  def weights(self) -> jax.Array:
    """Attention weights, float32 `[B, H, Q, K]`; 0 where nothing is seen.

    The identity as values makes this K / D times as much work as attention.
    """
    batch, keys, key_heads, _ = self.k.shape
    content: Any = None if self.content is None else _LogitsOf(self.content)
    eye_BxKxGxK = jnp.broadcast_to(
      jnp.eye(keys)[None, :, None], (batch, keys, key_heads, keys)
    )
    # An accelerator would round weights to 16 bits.
    with jax.default_matmul_precision('highest'):
      weights_BxQxHxK = attention.dot_product_attention(
        self.q.astype(jnp.float32),
        self.k.astype(jnp.float32),
        eye_BxKxGxK,
        bias=self.bias,
        content=content,
        q_positions=self.q_positions,
        k_positions=self.k_positions,
        q_segment_ids=self.segment_ids,
        k_segment_ids=self.segment_ids,
        causal=self.causal,
        window=self.window,
        sinks=self.sinks,
        scale=self.scale,
        logit_scale=self.logit_scale,
        implementation='reference',
      )
    return jnp.moveaxis(weights_BxQxHxK, 2, 1)

  def visible(self) -> jax.Array:
    """Which keys each query sees, bool `[B, Q, K]`."""
    batch, queries = self.q.shape[:2]
    shape = (batch, queries, self.k.shape[1])
    queries, keys = (
      call.Side(jnp.arange(n)[None], segment_ids=self.segment_ids)
      for n in shape[1:]
    )
    mask = call.visible_pairs(
      visibility.Mask(self.causal, self.window, self.sinks),
      queries,
      keys.with_sinks(self.sinks),
    )
    return (
      jnp.ones(shape, bool) if mask is None else jnp.broadcast_to(mask, shape)
    )


@dataclasses.dataclass(frozen=True)
class _LogitsOf:
  """A ContentFn without what it adds to values."""

  content: encodings.ContentFn

  def logits(self, *args):
    return self.content.logits(*args)

  def values(self, *args):
    del args


def listen(
  function: Callable[..., Any], *args: Any, **kwargs: Any
) -> dict[str, Attended]:
  """Calls a function that applies a model; what its attention was given.

  Args:
    function: it must neither scan nor rematerialise the layers.
    *args: of the function.
    **kwargs: of the function.

  Returns:
    dict from a layer's name, as 'layer_0' or 'encoder/layer_0', to Attended, in
    the order in which the layers run.
  """
  heard, parts = {}, {}

  def interceptor(next_function, args, kwargs, context):
    module, method = context.module, context.method_name
    result = next_function(*args, **kwargs)
    # The innermost come first: a layer's parts before the layer.
    if isinstance(module, encodings.Encoding) and method == 'rotate':
      parts['q'], parts['k'] = result
      parts['q_positions'], parts['k_positions'] = args[2:4]
    elif isinstance(module, encodings.Encoding) and method == 'bias_fn':
      parts['bias'] = result
    elif isinstance(module, encodings.Encoding) and method == 'content_fn':
      parts['content'] = result
    elif isinstance(module, scaling.LogitScale) and method == '__call__':
      parts['logit_scale'] = result
    elif isinstance(module, layers.Attention) and method == '__call__':
      if kwargs.get('shared') is not None:
        parts['bias'], parts['content'] = kwargs['shared']
      heard['/'.join(module.path[:-1])] = Attended(
        **parts,
        segment_ids=kwargs.get('segment_ids'),
        causal=module.causal,
        window=module.window,
        sinks=module.sinks,
        scale=None if module.scaled_logits else 1.0,
      )
      parts.clear()
    return result

  with nn.intercept_methods(interceptor):
    function(*args, **kwargs)
  return heard


@functools.partial(
  jax.jit, static_argnames=('config', 'scheme', 'of_layer', 'packed')
)
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
  """A function of what each layer's self-attention is given.

  Args:
    config: a ModelConfig.
    scheme: a PositionScheme; positions are those of test time.
    params: the model's parameters.
    batch: see `data.windows.lm_batch`.
    of_layer: a function of an Attended.
    rng: a PRNG key, for schemes that draw.
    packed: see `objective.token_losses`.

  Returns:
    dict from a layer's name to what the function gives; see `listen`.

  Raises:
    errors.LengthError: the batch is longer than encoding or scheme can take.
  """
  # What is heard inside a scan could not leave it.
  unrolled = dataclasses.replace(config, scan_layers=False, remat='none')
  heard = listen(
    objective.token_losses,
    unrolled,
    scheme,
    stacking.unstack(params),
    batch,
    rng=jax.random.key(0) if rng is None else rng,
    train=False,
    packed=packed,
  )
  return {name: of_layer(attended) for name, attended in heard.items()}


@functools.partial(
  jax.jit, static_argnames=('config', 'scheme', 'layer', 'packed')
)
def weights(
  config: ModelConfig,
  scheme: PositionScheme,
  params: Params,
  batch: Mapping[str, Array],
  layer: str,
  *,
  rng: jax.Array | None = None,
  packed: bool = False,
) -> jax.Array:
  """Attention weights of one layer.

  Args:
    config: see `by_layer`.
    scheme: likewise.
    params: likewise.
    batch: likewise.
    layer: its name, as 'layer_0'; with an encoder and a decoder
      'encoder/layer_0' or 'decoder/layer_0'.
    rng: see `by_layer`.
    packed: likewise.

  Returns:
    float32 `[B, H, Q, K]`.

  Raises:
    errors.ConfigError: no such layer.
    errors.LengthError: see `by_layer`.
  """
  found = by_layer(
    config, scheme, params, batch, Attended.weights, rng=rng, packed=packed
  )
  if layer not in found:
    raise errors.ConfigError(errors.one_of('layer', layer, found))
  return found[layer]


@dataclasses.dataclass(frozen=True)
class LengthEntropy:
  """Entropy of attention at one length, mean over heads and queries.

  Attributes:
    length: tokens of a row.
    nats: of each layer by name.
    relative: likewise, entropy over the logarithm of the keys that a query
      sees, between 0 and 1; of queries that see two keys or more.
    refused: why there is none.
  """

  length: int
  nats: dict
  relative: dict
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
  """Entropy of attention at several lengths of the same text.

  Su's claim is that the log-n logit scale keeps it smooth as lengths grow.

  Source: Su (2021, 2023).

  Args:
    config: a ModelConfig.
    scheme: a PositionScheme.
    params: the model's parameters.
    windows: `data.EvaluationWindows`.
    seed: of positions drawn at test time and of masked tokens.
    lengths: some of those of the windows; None for all.

  Yields:
    A LengthEntropy per length; a refused length says why.
  """
  rng = jax.random.key(seed)
  longest = windows.batch(max(windows.lengths))
  inputs = np.asarray(objective.masked(config, longest, rng)['inputs'])
  for length in lengths or windows.lengths:
    batch = windows.batch(length)
    batch['inputs'] = windows.recut(inputs, length)
    # All tokens count, masked or not.
    batch['weights'] = (batch['segment_ids'] > 0).astype(np.float32)
    rows = min(len(batch['inputs']), max(1, _MOST_PAIRS // length**2))
    found: dict[str, Any] = {}
    try:
      for number, part in enumerate(data_windows.padded(batch, rows)):
        queries_by_layer = by_layer(
          config,
          scheme,
          params,
          part,
          _queries,
          rng=jax.random.fold_in(rng, number),
        )
        real_BxQ = part['weights'] > 0
        for name, values in queries_by_layer.items():
          found.setdefault(name, []).append(np.stack(values)[:, real_BxQ])
    except (errors.LengthError, errors.CombinationError) as error:
      yield LengthEntropy(length, {}, {}, refused=str(error))
      continue
    nats, relative = {}, {}
    for name, values in found.items():
      nats_N, keys_N = np.concatenate(values, axis=1, dtype=np.float64)
      nats[name] = float(nats_N.mean())
      several_N = keys_N > 1
      relative[name] = float(
        (nats_N[several_N] / np.log(keys_N[several_N])).mean()
      )
    yield LengthEntropy(length, nats, relative)


def _queries(attended):
  """Each query's entropy, mean over heads, and the keys it sees, `[B, Q]`."""
  nats_BxHxQ = jax.scipy.special.entr(attended.weights()).sum(-1)
  return nats_BxHxQ.mean(1), attended.visible().sum(-1)
