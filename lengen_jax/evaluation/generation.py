"""Decoding of many prompts with a KV cache, greedy or by sampling.

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
from lengen_jax.evaluation import batching, weights
from lengen_jax.evaluation import config as eval_config
from lengen_jax.models import cache as cache_lib
from lengen_jax.models import transformer
from lengen_jax.models.assign import assign
from lengen_jax.models.config import ModelConfig
from lengen_jax.positions import PositionScheme, tokens
from lengen_jax.types import Array, Params

# Errors of `Generator.run` at one length; other lengths may have answers.
REFUSALS = errors.LengthError, errors.CombinationError, errors.MetricError


@dataclasses.dataclass(frozen=True)
class Generator:
  """Continues prompts, many at a time.

  The output for a prompt does not depend on the other prompts, up to rounding.
  The planned length of a row is the length of its prompt, without the first
  input, plus `max_new`. Random positions depend on the seed, the planned length
  and the index of the prompt; schemes that draw once per batch do not use the
  index. Samples depend on the seed, the index of the prompt and the number of
  the token.

  Attributes:
    config: a ModelConfig of a decoder.
    scheme: the position scheme; positions are those of test time.
    max_new: maximum number of tokens generated per prompt.
    end_id: the token that ends an output; an id outside the vocabulary, such as
      -1, disables it.
    batch_tokens: tokens per batch, prompts and outputs together; batches of
      longer prompts have fewer rows.
    seed: seed of samples, and of positions drawn at test time.
    layout: a `training.sharding.Layout`. Rows are split over all devices of its
      mesh.
    temperature: 0 for greedy decoding; else see `sample`.
    top_p: see `sample`.
    start_id: the first input of each row, before its prompt; None where prompts
      contain it.

  Raises:
    errors.ConfigError: the model is not a decoder, `max_new` or `batch_tokens`
      is below 1, `start_id` is not in the vocabulary, `temperature` is
      negative, or `top_p` is not in (0, 1] or is given without a temperature.
  """

  config: ModelConfig
  scheme: PositionScheme
  _: dataclasses.KW_ONLY
  max_new: int
  end_id: int
  batch_tokens: int
  seed: int
  layout: Any
  temperature: float = 0.0
  top_p: float = 1.0
  start_id: int | None = 0

  def __post_init__(self) -> None:
    if self.config.architecture != 'decoder':
      raise errors.ConfigError(
        "generation requires a model of architecture 'decoder', got "
        f'{self.config.architecture!r}'
      )
    for name in ('max_new', 'batch_tokens'):
      if getattr(self, name) < 1:
        raise errors.ConfigError(
          f'{name} must be at least 1, got {getattr(self, name)}'
        )
    first = 0 if self.start_id is None else self.start_id
    if not 0 <= first < self.config.vocab_size:
      raise errors.ConfigError(
        f'start_id={first} is not a token; the model has vocab_size='
        f'{self.config.vocab_size}'
      )
    eval_config.check_sampling('', self.temperature, self.top_p)

  def run(
    self,
    params: Params,
    prompts: Sequence[np.ndarray],
    report: Callable[[int, int], None] = lambda done, steps: None,
    *,
    roles: Sequence[np.ndarray] | None = None,
    stop_ids: Sequence[int] = (),
  ) -> list[np.ndarray]:
    """Returns the tokens that the model generates after each prompt.

    Prompts of similar length share a batch. The longest prompts come first, so
    that a prompt that is too long raises an error immediately.

    Args:
      prompts: token ids, integer arrays `[length]`; without `start_id`, which
        is put before each, or with their first input if it is None.
      report: called after each batch as `report(done, steps)`: the number of
        finished prompts, and of decoding steps on the slowest device.
      roles: for schemes that need them, the roles of the inputs of each row,
        int32 `[R, planned length]`: of its prompt, and of the tokens that are
        expected after it; -1 for a token without a role.
      stop_ids: other tokens that end an output.

    Returns:
      An int32 array per prompt: token ids up to the first `end_id`, which is
      excluded, or the first of `stop_ids`, which is included; at most
      `max_new`.

    Raises:
      errors.ConfigError: a prompt is not an array of ids in the vocabulary, or
        roles do not fit the rows.
      errors.LengthError: the longest prompt plus `max_new` exceeds the range of
        an encoding or of the scheme.
      errors.CombinationError: scheme and encoding are incompatible, or the
        scheme needs roles and there are none.
      errors.MetricError: logits are not finite.
    """
    inputs = [self._inputs(i, prompt) for i, prompt in enumerate(prompts)]
    # The first input does not count.
    lengths = np.array([len(one) - 1 for one in inputs], int)
    roles = self._checked_roles(roles, lengths + self.max_new)
    written: list[Any] = [None] * len(inputs)
    params = weights.place(params, self.config, self.layout.whole)
    is_stop_V = np.isin(np.arange(self.config.vocab_size), [*stop_ids])
    done = 0
    for width, numbers, filled in batching.by_width(
      self.config,
      self.scheme,
      lengths,
      batch_tokens=self.batch_tokens,
      new_tokens=self.max_new,
      parts=self.layout.size,
    ):
      done += len(numbers)
      batch = {
        'tokens': np.zeros((len(filled), width + 1), np.int32),
        'lengths': lengths[filled].astype(np.int32),
        'numbers': filled.astype(np.int32),
      }
      for row, number in zip(batch['tokens'], filled, strict=True):
        row[: lengths[number] + 1] = inputs[number]
      if roles is not None:
        batch['roles'] = _padded(
          [roles[number] for number in filled], width + self.max_new
        )
      batch = jax.device_put(batch, self._by_row)
      ids, steps, finite = jax.device_get(self._write(params, is_stop_V, batch))
      report(done, int(steps.max()))
      if not finite.all():
        raise errors.MetricError(
          'the logits are not finite: the model has diverged, and its output '
          'is meaningless'
        )
      for number, row in zip(numbers, ids, strict=False):
        is_end = row == self.end_id
        ends = np.flatnonzero(is_end | np.isin(row, [*stop_ids]))
        if len(ends):
          row = row[: ends[0] + (not is_end[ends[0]])]
        written[number] = row
    return written

  def _inputs(self, number: int, prompt: np.ndarray) -> np.ndarray:
    """Returns the inputs of a row: its first input and its prompt."""
    prompt = np.asarray(prompt)
    if prompt.ndim != 1 or (prompt.size and prompt.dtype.kind not in 'iu'):
      raise errors.ConfigError(
        f'prompt {number} is {prompt.dtype} {prompt.shape}; it must be token '
        'ids, integers [length]'
      )
    low, high = prompt.min(initial=0), prompt.max(initial=0)
    if low < 0 or high >= self.config.vocab_size:
      raise errors.ConfigError(
        f'prompt {number} has tokens from {low} to {high}; the model has '
        f'vocab_size={self.config.vocab_size}'
      )
    if self.start_id is not None:
      return np.concatenate([[self.start_id], prompt])
    if not prompt.size:
      raise errors.ConfigError(
        f'prompt {number} is empty and there is no start_id; a row requires a '
        'first input'
      )
    return prompt

  def _checked_roles(
    self, roles: Sequence[np.ndarray] | None, planned: np.ndarray
  ) -> list[np.ndarray] | None:
    """Returns the roles of all rows if the scheme needs them, else None."""
    if not self.scheme.needs_roles:
      return None
    if roles is None:
      raise errors.CombinationError(
        f'{self.scheme} needs the roles of all tokens, which only tasks '
        'provide; give `roles`, or use another scheme'
      )
    if len(roles) != len(planned):
      raise errors.ConfigError(
        f'got {len(planned)} prompts, but roles for {len(roles)}'
      )
    roles = [np.asarray(one) for one in roles]
    for number, (one, length) in enumerate(zip(roles, planned, strict=True)):
      want = roles[0].shape[:1] + (length,)
      if one.ndim != 2 or one.shape != want or one.dtype.kind not in 'iu':
        raise errors.ConfigError(
          f'the roles of prompt {number} are {one.dtype} {one.shape}; they '
          f'must be integers, [R, {length}], with as many rows R as those of '
          'prompt 0'
        )
    if roles:
      # Concrete roles are checked against the scheme's largest position.
      longest = int(planned.max())
      self.scheme(
        np.zeros((len(roles), longest), np.int32),
        lengths=planned[:, None].astype(np.int32),
        tokens=np.zeros((len(roles), longest), np.int32),
        roles=np.moveaxis(_padded(roles, longest), 1, 0),
        rng=jax.random.key(self.seed),
        num_layers=self.config.num_layers,
      )
    return roles

  @property
  def _by_row(self) -> NamedSharding:
    mesh = self.layout.mesh
    return NamedSharding(mesh, PartitionSpec(mesh.axis_names))

  @functools.partial(jax.jit, static_argnums=0)
  def _write(
    self, params: Params, is_stop_V: Array, batch: Mapping[str, Array]
  ) -> tuple[Array, Array, Array]:
    """Returns the results of `_write_rows`, run on each device for its rows."""
    written = jax.shard_map(
      self._write_rows,
      mesh=self.layout.mesh,
      in_specs=(PartitionSpec(), PartitionSpec(), self._by_row.spec),
      out_specs=self._by_row.spec,
      check_vma=False,
    )(params, is_stop_V, batch)
    return jax.lax.with_sharding_constraint(written, self.layout.whole)

  def _write_rows(
    self, params: Params, is_stop_V: Array, batch: Mapping[str, Array]
  ) -> tuple[Array, Array, Array]:
    """Generates tokens; reads all tokens of a prompt but the last in one call.

    `batch` has 'tokens' `[B, W + 1]` (first input, prompt and padding),
    'lengths' `[B]` of the prompts, 'numbers' `[B]`, the prompts' indices, and
    'roles' `[B, R, P]`, if the scheme needs them. `is_stop_V` says which tokens
    end an output, as `end_id` does.

    Returns:
      Token ids, int32 `[B, N]`, arbitrary after the end; decoding steps,
      int32 `[1]`; and whether the logits of all unfinished rows were finite,
      bool `[1]`.
    """
    tokens_BxW1, lengths_B = batch['tokens'], batch['lengths']
    rows = len(tokens_BxW1)
    unrolled = dataclasses.replace(self.config, scan_layers=False)
    # Differs from keys of positions, which fold in prompt indices below 2^31.
    rng = jax.random.fold_in(jax.random.key(self.seed), 2**31)
    rng_B = jax.vmap(jax.random.fold_in, (None, 0))(rng, batch['numbers'])

    def choose(logits_V: Array, rng: Array, step: Array) -> Array:
      if not self.temperature:
        return jnp.argmax(logits_V).astype(jnp.int32)
      rng = jax.random.fold_in(rng, step)
      return sample(logits_V, rng, self.temperature, self.top_p)

    def extend(inputs: Array, cache: cache_lib.Cache, **named: Any) -> Any:
      return transformer.create(unrolled).apply(
        {'params': params}, inputs, cache, method='decode', **named
      )

    cache = self._empty_cache(
      tokens_BxW1.shape[1] - 1,
      lengths_B,
      batch['numbers'],
      batch.get('roles'),
    )
    if tokens_BxW1.shape[1] > 1:
      # XLA eliminates the computation of the unused logits.
      _, cache = extend(tokens_BxW1[:, :-1], cache, new_lengths=lengths_B)

    def unfinished(state: tuple[Any, ...]) -> Array:
      step, _, ended_B, finite, _, _ = state
      return (step < self.max_new) & finite & ~jnp.all(ended_B)

    def write_one(state: tuple[Any, ...]) -> tuple[Any, ...]:
      step, token_B, ended_B, finite, ids_BxN, cache = state
      logits_Bx1xV, cache = extend(token_B[:, None], cache)
      logits_BxV = logits_Bx1xV[:, 0]
      finite &= jnp.all(ended_B | jnp.isfinite(logits_BxV).all(-1))
      token_B = jax.vmap(choose, (0, 0, None))(logits_BxV, rng_B, step)
      ids_BxN = ids_BxN.at[:, step].set(token_B)
      ended_B |= (token_B == self.end_id) | is_stop_V[token_B]
      return step + 1, token_B, ended_B, finite, ids_BxN, cache

    first = (
      jnp.int32(0),
      tokens_BxW1[jnp.arange(rows), lengths_B],
      jnp.zeros(rows, bool),
      jnp.bool_(True),
      jnp.full((rows, self.max_new), self.end_id, jnp.int32),
      cache,
    )
    steps, _, _, finite, ids_BxN, _ = jax.lax.while_loop(
      unfinished, write_one, first
    )
    return ids_BxN, steps[None], finite[None]

  def _empty_cache(
    self,
    width: int,
    lengths_B: Array,
    numbers_B: Array,
    roles_BxRxP: Array | None,
  ) -> cache_lib.Cache:
    """Returns a cache whose rows have their own planned lengths."""
    scheme, rng = self.scheme, jax.random.key(self.seed)
    # The last generated token is not an input and needs no slot.
    slots = width + self.max_new
    planned_B = lengths_B + self.max_new

    def positions(
      planned: Array, number: Array, roles_RxP: Array | None
    ) -> Any:
      """Returns the positions of one row, independent of the other rows."""
      index = tokens.position_index(slots, None)
      given = assign(
        self.config,
        scheme,
        index,
        lengths=planned[None, None],
        rng=jax.random.fold_in(rng, 0 if scheme.same_rows else number),
        train=False,
        equal_rows=False,
        # Positions that depend on tokens follow in each step.
        tokens=jnp.zeros_like(index),
        roles=None if roles_RxP is None else roles_RxP[:, None],
      )
      return jax.tree.map(lambda leaf: jnp.squeeze(leaf, -2), given)

    # `create` checks the longest possible planned length, `slots`, because the
    # planned lengths of the rows are traced.
    cache = cache_lib.create(
      self.config,
      len(lengths_B),
      slots,
      scheme=scheme,
      roles=None if roles_BxRxP is None else jnp.moveaxis(roles_BxRxP, 1, 0),
      rng=rng,
    )
    found = tokens.Tokens.create(
      (len(lengths_B), slots),
      jax.vmap(positions, out_axes=-2)(planned_B, numbers_B, roles_BxRxP),
    )
    return dataclasses.replace(
      cache,
      positions=found.positions,
      input_positions=found.input_positions,
      planned=planned_B[:, None],
    )


def _padded(roles: Sequence[np.ndarray], slots: int) -> np.ndarray:
  """Returns roles of rows as one array, int32 `[B, R, P]`, padded with -1."""
  filled = np.full((len(roles), len(roles[0]), slots), -1, np.int32)
  for row, one in zip(filled, roles, strict=True):
    row[:, : one.shape[1]] = one
  return filled


def sample(
  logits_V: Array, rng: Array, temperature: float, top_p: float
) -> Array:
  """Samples a token by nucleus sampling.

  Source: Holtzman et al. (2020), arXiv:1904.09751, section 3.1.

  Args:
    logits_V: logits, `[V]`.
    rng: a key.
    temperature: positive; divides the logits.
    top_p: the probability of the nucleus, the smallest set of most probable
      tokens with at least this probability. Tokens as probable as its least
      probable one also belong to it. 1 for all tokens.

  Returns:
    A token id, int32.
  """
  logits_V = logits_V / temperature
  if top_p < 1:
    sorted_V = jnp.sort(logits_V, descending=True)
    probabilities_V = jax.nn.softmax(sorted_V)
    more_probable_V = jnp.cumsum(probabilities_V) - probabilities_V
    least = jnp.where(more_probable_V < top_p, sorted_V, jnp.inf).min()
    logits_V = jnp.where(logits_V >= least, logits_V, -jnp.inf)
  return jax.random.categorical(rng, logits_V).astype(jnp.int32)
