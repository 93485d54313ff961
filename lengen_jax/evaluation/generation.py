"""Greedy decoding of many prompts, with a KV cache.

Shape suffixes: B rows, W width of the padded prompts, P slots of the cache, N
new tokens, V vocab_size.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np

from lengen_jax import errors
from lengen_jax.models import blocks, transformer
from lengen_jax.models import cache as cache_lib
from lengen_jax.models.config import ModelConfig
from lengen_jax.positions import PositionScheme, tokens
from lengen_jax.types import Array, Params

# The first input of each row, as in training.
_START = 0
_LEAST_WIDTH = 16


class Generator:
  """Continues prompts greedily, many at a time.

  The output for a prompt does not depend on the other prompts, up to rounding.
  The planned length of each row is that of its prompt plus `max_new`. Positions
  drawn at test time depend on the seed, the index of the prompt and the planned
  length; if a scheme draws once per batch, on the seed and the planned length.

  Attributes:
    steps: decoding steps of the last run, each one token per row; with several
      devices, the steps of the slowest.
  """

  def __init__(
    self,
    config: ModelConfig,
    scheme: PositionScheme,
    *,
    max_new: int,
    end_id: int,
    batch_tokens: int,
    seed: int,
    layout: Any,
  ) -> None:
    """Creates the decoding function.

    Args:
      config: a ModelConfig of a decoder.
      scheme: a PositionScheme.
      max_new: maximum number of tokens generated per prompt.
      end_id: the token that ends an output; an id outside the vocabulary, such
        as -1, disables it.
      batch_tokens: tokens per batch, prompts and outputs together; batches of
        longer prompts have fewer rows.
      seed: seed of positions drawn at test time.
      layout: a `training.sharding.Layout`. Rows are split over all devices of
        its mesh.

    Raises:
      errors.ConfigError: the model is not a decoder, or `max_new` or
        `batch_tokens` is below 1.
    """
    if config.architecture != 'decoder':
      raise errors.ConfigError(
        "generation requires a model of architecture 'decoder', got "
        f'{config.architecture!r}'
      )
    for name, value in (('max_new', max_new), ('batch_tokens', batch_tokens)):
      if value < 1:
        raise errors.ConfigError(f'{name} must be at least 1, got {value}')
    self.steps = 0
    self._max_new, self._end_id = max_new, end_id
    self._batch_tokens, self._vocab_size = batch_tokens, config.vocab_size
    # Encodings that read the number of slots require exact widths.
    layer_encodings = blocks.create_encodings(config)
    self._exact = not all(encoding.tileable for encoding in layer_encodings)
    self._num_devices = layout.size
    self._by_row = NamedSharding(
      layout.mesh, PartitionSpec(layout.mesh.axis_names)
    )
    self._write = _writer(config, scheme, max_new, end_id, seed, layout)

  def run(
    self,
    params: Params,
    prompts: Sequence[np.ndarray],
    report: Callable[[int, int], None] | None = None,
  ) -> list[np.ndarray]:
    """Returns the tokens that the model generates after each prompt.

    Prompts of similar length share a batch. The longest prompts come first, so
    that a prompt that is too long raises an error immediately.

    Args:
      params: the model's parameters.
      prompts: token ids without a start token, integer arrays `[length]`.
      report: called after each batch as `report(done, total)`, both numbers of
        prompts.

    Returns:
      List of int32 arrays in the order of the prompts: token ids up to the
      first `end_id`, which is excluded; at most `max_new`.

    Raises:
      errors.ConfigError: a prompt is not an array of ids in the vocabulary.
      errors.LengthError: the longest prompt plus `max_new` exceeds the range of
        an encoding or of the scheme.
      errors.CombinationError: scheme and encoding are incompatible.
      errors.MetricError: logits are not finite.
    """
    prompts = [self._checked(i, prompt) for i, prompt in enumerate(prompts)]
    lengths = np.array([len(prompt) for prompt in prompts], int)
    widths = lengths
    if not self._exact:
      # At most the longest length, so that no table is read out of range.
      padded = [padded_width(length) for length in lengths]
      widths = np.minimum(np.array(padded, int), lengths.max(initial=0))
    order = np.argsort(-lengths, kind='stable')
    written: list[Any] = [None] * len(prompts)
    done, self.steps = 0, 0
    for width in np.unique(widths)[::-1]:
      numbers = order[widths[order] == width]
      rows = self._num_rows(width, len(numbers))
      for first in range(0, len(numbers), rows):
        chosen = numbers[first : first + rows]
        ids = self._batch(params, prompts, chosen, rows, width)
        for number, row in zip(chosen, ids, strict=False):
          ended = np.flatnonzero(row == self._end_id)
          written[number] = row[: ended[0]] if len(ended) else row
        done += len(chosen)
        if report is not None:
          report(done, len(prompts))
    return written

  def _num_rows(self, width: int, count: int) -> int:
    """Returns rows per batch, a multiple of the number of devices."""
    share = self._batch_tokens // (width + self._max_new) // self._num_devices
    batches = -(-count // (max(1, share) * self._num_devices))
    return -(-count // (batches * self._num_devices)) * self._num_devices

  def _batch(
    self,
    params: Params,
    prompts: Sequence[np.ndarray],
    chosen: np.ndarray,
    rows: int,
    width: int,
  ) -> np.ndarray:
    """Returns ids generated after the chosen prompts, `[rows, max_new]`."""
    # Unused rows repeat the last prompt, which adds no decoding step.
    numbers = np.pad(chosen, (0, rows - len(chosen)), mode='edge')
    batch = {
      'inputs': np.zeros((rows, width), np.int32),
      'last': np.zeros(rows, np.int32),
      'lengths': np.zeros(rows, np.int32),
      'numbers': numbers.astype(np.int32),
    }
    for row, number in enumerate(numbers):
      tokens = [_START, *prompts[number]]
      length = len(tokens) - 1
      batch['inputs'][row, :length] = tokens[:-1]
      batch['last'][row], batch['lengths'][row] = tokens[-1], length
    batch = jax.device_put(batch, self._by_row)
    ids_BxN, steps, finite = jax.device_get(self._write(params, batch))
    self.steps += int(steps.max())
    if not finite.all():
      raise errors.MetricError(
        'the logits are not finite: the model has diverged, and its output is '
        'meaningless'
      )
    return ids_BxN

  def _checked(self, number: int, prompt: np.ndarray) -> np.ndarray:
    prompt = np.asarray(prompt)
    if prompt.ndim != 1 or (prompt.size and prompt.dtype.kind not in 'iu'):
      raise errors.ConfigError(
        f'prompt {number} is {prompt.dtype} {prompt.shape}; it must be token '
        'ids, integers [length]'
      )
    low, high = prompt.min(initial=0), prompt.max(initial=0)
    if low < 0 or high >= self._vocab_size:
      raise errors.ConfigError(
        f'prompt {number} has tokens from {low} to {high}; the model has '
        f'vocab_size={self._vocab_size}'
      )
    return prompt


def padded_width(length: int) -> int:
  """Returns the least of 16, 24, 32, 48, 64, ... that is at least `length`."""
  width, wider = _LEAST_WIDTH, _LEAST_WIDTH * 3 // 2
  while width < length:
    width, wider = wider, 2 * width
  return width


@functools.lru_cache(maxsize=8)
def _writer(
  config: ModelConfig,
  scheme: PositionScheme,
  max_new: int,
  end_id: int,
  seed: int,
  layout: Any,
) -> Callable[[Params, Mapping[str, Array]], tuple[Array, Array, Array]]:
  """Returns `_write`, jitted over the mesh and cached across Generators."""
  by_row, whole = PartitionSpec(layout.mesh.axis_names), PartitionSpec()
  # Each device decodes its own rows and stops when all of them have ended.
  return jax.jit(
    jax.shard_map(
      functools.partial(_write, config, scheme, max_new, end_id, seed),
      mesh=layout.mesh,
      in_specs=(whole, by_row),
      out_specs=by_row,
      check_vma=False,
    ),
    out_shardings=layout.whole,
  )


def _write(
  config: ModelConfig,
  scheme: PositionScheme,
  max_new: int,
  end_id: int,
  seed: int,
  params: Params,
  batch: Mapping[str, Array],
) -> tuple[Array, Array, Array]:
  """Generates tokens; reads all tokens of a prompt but the last in one call.

  Args:
    config: see Generator, also for the next arguments.
    scheme: a PositionScheme.
    max_new: N.
    end_id: the token that ends an output.
    seed: seed of positions.
    params: the model's parameters.
    batch: 'inputs' `[B, W]`, start token and prompt without its last token;
      'last' `[B]`, the last token; 'lengths' `[B]`, numbers of inputs without
      padding; and 'numbers' `[B]`, indices of the prompts.

  Returns:
    Token ids, int32 `[B, N]`, arbitrary after an `end_id`; decoding steps,
    int32 `[1]`; and whether the logits of all unfinished rows were finite, bool
    `[1]`.
  """
  rows, width = batch['inputs'].shape
  cache = _empty_cache(config, scheme, max_new, seed, batch)

  def extend(
    inputs: Array, cache: cache_lib.Cache, new_lengths: Array | None = None
  ) -> Any:
    return transformer.create(config).apply(
      {'params': params},
      inputs,
      cache,
      new_lengths=new_lengths,
      method='decode',
    )

  if width:
    # XLA eliminates the computation of the unused logits.
    _, cache = extend(batch['inputs'], cache, batch['lengths'])

  def unfinished(state: tuple[Any, ...]) -> Array:
    step, _, ended_B, finite, _, _ = state
    return (step < max_new) & finite & ~jnp.all(ended_B)

  def write_one(state: tuple[Any, ...]) -> tuple[Any, ...]:
    step, token_B, ended_B, finite, ids_BxN, cache = state
    logits_Bx1xV, cache = extend(token_B[:, None], cache)
    logits_BxV = logits_Bx1xV[:, 0]
    finite &= jnp.all(ended_B | jnp.isfinite(logits_BxV).all(-1))
    token_B = jnp.argmax(logits_BxV, axis=-1).astype(jnp.int32)
    ids_BxN = ids_BxN.at[:, step].set(token_B)
    ended_B |= token_B == end_id
    return step + 1, token_B, ended_B, finite, ids_BxN, cache

  steps, _, _, finite, ids_BxN, _ = jax.lax.while_loop(
    unfinished,
    write_one,
    (
      jnp.int32(0),
      batch['last'],
      jnp.zeros(rows, bool),
      jnp.bool_(True),
      jnp.full((rows, max_new), end_id, jnp.int32),
      cache,
    ),
  )
  return ids_BxN, steps[None], finite[None]


def _empty_cache(
  config: ModelConfig,
  scheme: PositionScheme,
  max_new: int,
  seed: int,
  batch: Mapping[str, Array],
) -> cache_lib.Cache:
  """Returns a cache whose rows have their own planned lengths."""
  rows, width = batch['inputs'].shape
  # The last generated token is never read.
  slots = width + max_new
  planned_B = batch['lengths'] + max_new
  rng = jax.random.key(seed)
  index_1xP = tokens.position_index(slots, None)

  def positions(planned: Array, number: Array) -> Any:
    """Returns the positions of one row, independent of the other rows."""
    given = scheme(
      index_1xP,
      lengths=planned[None, None],
      rng=jax.random.fold_in(rng, 0 if scheme.same_rows else number),
      num_layers=config.num_layers,
    )
    return jax.tree.map(lambda leaf: jnp.squeeze(leaf, -2), given)

  # `create` checks ranges for `slots`, the longest possible plan; the planned
  # lengths of the rows are traced.
  cache = cache_lib.create(config, rows, slots, scheme=scheme, rng=rng)
  return dataclasses.replace(
    cache,
    positions=jax.vmap(positions, out_axes=-2)(planned_B, batch['numbers']),
    planned=planned_B[:, None],
  )
