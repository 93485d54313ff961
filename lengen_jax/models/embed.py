"""Token embedding and output heads.

Shape suffixes: B batch, L length, E width, V vocab_size.
"""

from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
import optax

from lengen_jax import partitioning
from lengen_jax.models import linear
from lengen_jax.types import Array

# Largest chunk of logits in memory: 256 MiB in float32.
_MOST_LOGITS = 2**26


class Embed(nn.Module):
  """Token embedding, output head, or both.

  Attributes:
    vocab_size: V.
    width: E.
    dtype: dtype of the activations.
    scaled: multiply embedded tokens by sqrt(E).
    cap: bounds logits, cap tanh(logit / cap); None for no cap.
  """

  vocab_size: int
  width: int
  dtype: Any = jnp.float32
  scaled: bool = True
  cap: float | None = None

  def setup(self) -> None:
    self.table: Any = self.param(
      'table',
      partitioning.named(nn.initializers.normal(0.02), ('vocab', 'embed')),
      (self.vocab_size, self.width),
      jnp.float32,
    )

  def __call__(self, tokens: Array) -> jax.Array:
    """Embeds tokens: `[B, L] -> [B, L, E]`; NaN for ids outside the table."""
    # Every device has the whole table, so the lookup does not communicate.
    x = (
      jnp.asarray(partitioning.constrain(self.table, None, None))
      .at[tokens]
      .get(mode='fill', fill_value=jnp.nan, wrap_negative_indices=False)
    )
    # In float32, also for a table in bfloat16.
    x = x * jnp.float32(self.width**0.5) if self.scaled else x
    return partitioning.constrain(
      x.astype(self.dtype), 'batch', 'length', 'embed'
    )

  def logits(self, x: jax.Array) -> jax.Array:
    """Returns logits, float32: `[B, L, E] -> [B, L, V]`."""
    return _logits(x, self.table, self.dtype, self.cap)

  def losses(self, x: jax.Array, targets: Any) -> jax.Array:
    """Returns cross-entropy in nats: `[B, L, E], [B, L] -> [B, L]`.

    Large logits are computed in chunks and recomputed in the backward pass.
    """
    # With a sharded sequence, a chunk has tokens of every shard.
    parts = partitioning.shards('length')
    length = x.shape[1] // parts
    devices = partitioning.shards('batch', 'length', 'vocab')
    chunks = -(-targets.size * self.vocab_size // (_MOST_LOGITS * devices))
    # Gathers the table along E once instead of in every chunk.
    table = partitioning.constrain(self.table, 'vocab', None)

    def losses(x: Any, targets: Any) -> jax.Array:
      return _losses(_logits(x, table, self.dtype, self.cap), targets)

    if chunks <= 1:
      return losses(x, targets)
    size = -(-length // min(chunks, length))

    def split(x: jax.Array) -> jax.Array:
      """Splits `[B, L, ...]` into padded `[chunks, B, parts * size, ...]`."""
      rows, _, *rest = x.shape
      x = x.reshape(rows, parts, length, *rest)
      pad = [(0, 0), (0, 0), (0, -length % size)] + [(0, 0)] * len(rest)
      x = jnp.pad(x, pad).reshape(rows, parts, -1, size, *rest)
      return jnp.moveaxis(x, 2, 0).reshape(-1, rows, parts * size, *rest)

    def joined(x: jax.Array) -> jax.Array:
      """The inverse of `split`."""
      rows = x.shape[1]
      x = jnp.moveaxis(x.reshape(-1, rows, parts, size), 0, 2)
      return x.reshape(rows, parts, -1)[:, :, :length].reshape(rows, -1)

    @jax.checkpoint
    def chunk_losses(x_and_targets: tuple[jax.Array, jax.Array]) -> jax.Array:
      return losses(*x_and_targets)

    return joined(jax.lax.map(chunk_losses, (split(x), split(targets))))


class Head(nn.Module):
  """Linear output head, for sizes other than the vocabulary.

  Attributes:
    output_size: V.
    cap: bounds the logits, c tanh(logits / c); None for no bound.
  """

  output_size: int
  cap: float | None = None

  @nn.compact
  def logits(self, x: jax.Array) -> jax.Array:
    """Returns logits, float32: `[B, L, E] -> [B, L, V]`."""
    logits = linear.Linear(
      (x.shape[-1], self.output_size),
      ('embed', 'vocab'),
      use_bias=True,
      name='output',
    )(x)
    return (
      logits if self.cap is None else self.cap * jnp.tanh(logits / self.cap)
    )

  def losses(self, x: jax.Array, targets: Any) -> jax.Array:
    """Returns cross-entropy in nats: `[B, L, E], [B, L] -> [B, L]`."""
    return _losses(self.logits(x), targets)


def _losses(logits: jax.Array, targets: Any) -> jax.Array:
  """Returns cross-entropy, NaN where a target is not an index of logits."""
  # A negative index would count from the end.
  targets = jnp.where(targets < 0, logits.shape[-1], targets)
  return optax.softmax_cross_entropy_with_integer_labels(logits, targets)


def _logits(x: Any, table: Any, dtype: Any, cap: float | None) -> jax.Array:
  logits = jnp.einsum(
    'ble,ve->blv',
    x.astype(dtype),
    table.astype(dtype),
    preferred_element_type=jnp.float32,
  )
  logits = logits if cap is None else cap * jnp.tanh(logits / cap)
  return partitioning.constrain(logits, 'batch', 'length', 'vocab')
