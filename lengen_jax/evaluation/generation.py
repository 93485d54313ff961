"""What a language model writes: greedy decoding of many prompts, with a cache.

Shape suffixes: B rows, W width of the padded prompts, P slots of the cache, N
new tokens, V vocab_size.
"""

from collections.abc import Callable
from collections.abc import Sequence
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
import numpy as np

from lengen_jax import errors
from lengen_jax.hints import Params
from lengen_jax.models import blocks
from lengen_jax.models import cache as cache_lib
from lengen_jax.models import transformer
from lengen_jax.models.config import ModelConfig
from lengen_jax.positions import PositionScheme
from lengen_jax.positions import tokens

# Inputs of a row begin with it, as in training.
_START = 0
_LEAST_WIDTH = 16


class Generator:
  """Continues prompts greedily, many at a time.

  What follows a prompt does not depend on the other prompts, up to rounding:
  each row has a plan of its own, for its prompt and `max_new` tokens: as long
  as a row of training with the longest answer. Positions drawn at test time are
  a function of the seed, the index of the prompt and its plan; where a scheme
  draws for a whole batch, of the seed and the plan.

  Attributes:
    steps: decoding steps of the last run, one token per row each; of several
      devices, those of the slowest.
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
    """Prepares the decoding.

    Args:
      config: a ModelConfig of a decoder.
      scheme: a PositionScheme.
      max_new: tokens written at most after each prompt.
      end_id: the token after which nothing comes; one that the model does not
        have, as -1, for none.
      batch_tokens: tokens per batch, prompts and what is written; the number
        of rows goes down as the prompts get longer.
      seed: of positions drawn at test time.
      layout: of arrays on devices; see `training.sharding.Layout`. Rows are
        split over all devices, whatever the axes of its mesh.

    Raises:
      errors.ConfigError: the model is no decoder, or a number is too low.
    """
    if config.architecture != 'decoder':
      raise errors.ConfigError(
        "only a model of architecture 'decoder' continues prompts, not "
        f'{config.architecture!r}'
      )
    for name, value in (('max_new', max_new), ('batch_tokens', batch_tokens)):
      if value < 1:
        raise errors.ConfigError(f'{name} must be at least 1, got {value}')
    self.steps = 0
    self._max_new, self._end_id = max_new, end_id
    self._batch_tokens, self._vocab_size = batch_tokens, config.vocab_size
    # What goes by the number of slots takes no padding.
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
    """What the model writes after each prompt.

    Prompts of similar length share a batch, the longest coming first, so that
    one that is too long is refused at once.

    Args:
      params: the model's parameters.
      prompts: list of integer arrays, `[length]` each, token ids without a
        start token.
      report: called as `report(done, total)` after each batch, in prompts.

    Returns:
      List of int32 arrays in the order of the prompts: token ids up to the
      first `end_id`, which is left out, `max_new` at most.

    Raises:
      errors.ConfigError: a prompt is no array of the model's tokens.
      errors.LengthError: the longest prompt and what is to be written exceed
        what an encoding or the scheme can take.
      errors.CombinationError: scheme and encoding do not go together.
      errors.MetricError: logits are not finite.
    """
    prompts = [self._checked(i, prompt) for i, prompt in enumerate(prompts)]
    lengths = np.array([len(prompt) for prompt in prompts], int)
    widths = lengths
    if not self._exact:
      # No wider than the longest, so that no table is read beyond any plan.
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

  def _num_rows(self, width, count):
    """Rows per batch: a multiple of the devices, all batches about as full."""
    share = self._batch_tokens // (width + self._max_new) // self._num_devices
    batches = -(-count // (max(1, share) * self._num_devices))
    return -(-count // (batches * self._num_devices)) * self._num_devices

  def _batch(self, params, prompts, chosen, rows, width):
    """Token ids that follow some prompts, `[rows, max_new]`."""
    # Rows that are left repeat the last, and so cost no further step.
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
        'the logits are not finite: the model has diverged, and what it would '
        'write means nothing'
      )
    return ids_BxN

  def _checked(self, number, prompt):
    """A prompt as the model takes it."""
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
  """The least of 16, 24, 32, 48, 64, ... that holds `length` tokens."""
  width, wider = _LEAST_WIDTH, _LEAST_WIDTH * 3 // 2
  while width < length:
    width, wider = wider, 2 * width
  return width


@functools.lru_cache(maxsize=8)
def _writer(config, scheme, max_new, end_id, seed, layout):
  """The compiled `_write`, kept for the next who validates the same model."""
  by_row, whole = PartitionSpec(layout.mesh.axis_names), PartitionSpec()
  # Each device decodes its rows for itself, and stops when they have ended.
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


def _write(config, scheme, max_new, end_id, seed, params, batch):
  """Reads prompts, all tokens but the last at once, and continues them.

  Args:
    config: see Generator.
    scheme: see Generator.
    max_new: N.
    end_id: see Generator.
    seed: see Generator.
    params: the model's parameters.
    batch: 'inputs' `[B, W]`, start token and prompt without its last token;
      'last' `[B]`, that token; 'lengths' `[B]`, how many inputs are real; and
      'numbers' `[B]`, indices of the prompts.

  Returns:
    Token ids, int32 `[B, N]`, those behind an `end_id` meaning nothing; steps,
    int32 `[1]`; and whether all logits that count were finite, bool `[1]`.
  """
  inputs_BxW, lengths_B = batch['inputs'], batch['lengths']
  rows, width = inputs_BxW.shape
  # The last token that is written is never read.
  slots = width + max_new
  planned_B = lengths_B + max_new
  rng = jax.random.key(seed)
  index_1xP = tokens.position_index(slots, None)

  def positions(planned, number):
    """Of one row, as if it were alone."""
    given = scheme(
      index_1xP,
      lengths=planned[None, None],
      rng=jax.random.fold_in(rng, 0 if scheme.same_rows else number),
      num_layers=config.num_layers,
    )
    return jax.tree.map(lambda leaf: jnp.squeeze(leaf, -2), given)

  # Made for a plan as long as there are slots, which is what it checks; the
  # plans themselves are known when the program runs.
  cache = cache_lib.create(config, rows, slots, scheme=scheme, rng=rng)
  cache = cache.replace(
    positions=jax.vmap(positions, out_axes=-2)(planned_B, batch['numbers']),
    planned=planned_B[:, None],
  )

  def extend(inputs, cache, new_lengths=None):
    return transformer.create(config).apply(
      {'params': params},
      inputs,
      cache,
      new_lengths=new_lengths,
      method='decode',
    )

  if width:
    # Nobody asks for these logits, so that they are not computed.
    _, cache = extend(inputs_BxW, cache, lengths_B)

  def going_on(state):
    step, _, ended_B, finite, _, _ = state
    return (step < max_new) & finite & ~jnp.all(ended_B)

  def write_one(state):
    step, token_B, ended_B, finite, ids_BxN, cache = state
    logits_Bx1xV, cache = extend(token_B[:, None], cache)
    logits_BxV = logits_Bx1xV[:, 0]
    finite &= jnp.all(ended_B | jnp.isfinite(logits_BxV).all(-1))
    token_B = jnp.argmax(logits_BxV, axis=-1).astype(jnp.int32)
    ids_BxN = ids_BxN.at[:, step].set(token_B)
    ended_B |= token_B == end_id
    return step + 1, token_B, ended_B, finite, ids_BxN, cache

  steps, _, _, finite, ids_BxN, _ = jax.lax.while_loop(
    going_on,
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
