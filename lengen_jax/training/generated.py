"""Training on a generated task: many runs, lengths in buckets, one program.

Inputs are sampled on the device. All runs of a group do the same steps with
their own seed and learning rate; they lie along an axis that is split over the
devices, and what one device has of it is vectorised. A step draws a length and
pads it to the next of a few widths, so that what is compiled is one branch per
width and not one program per length.
"""

import functools
import numbers
from typing import Any

from flax import struct
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
import numpy as np
import optax

from lengen_jax import errors
from lengen_jax import tasks
from lengen_jax.models import transduction
from lengen_jax.training import fields
from lengen_jax.training import optimizer

# What a config holds beside `model`; numbers with their least values.
_FIELDS = {
  'optimizer': fields.OPTIMIZER,
  'train': {
    'min_length': 1,
    'max_length': 1,
    'steps': 1,
    'batch_size': 1,
    'buckets': 1,
    'log_every': 1,
    'checkpoint_every': 1,
  },
  'eval': {
    'lengths': None,
    'examples': 1,
    'batch_tokens': 1,
    'buckets': 1,
    'dropout': None,
    'score': None,
  },
  'sweep': dict.fromkeys(('runs', 'learning_rates', 'seeds', 'batching')),
}
SCORES = ('accuracy', 'exact', 'loss')


def check(config):
  """Raises errors.ConfigError unless the config is one of a sweep."""
  fields.check(
    config,
    _FIELDS,
    dict.fromkeys(('task', 'positions', 'paper')),
    classes={},
    without=('vocab_size', 'output_size'),
  )
  for name, value, valid in (
    ('eval.score', config.eval.score, SCORES),
    ('sweep.batching', config.sweep.batching, ('auto', 'map', 'vmap')),
  ):
    if value not in valid:
      raise errors.ConfigError(errors.one_of(name, value, valid))
  seeds, rates = config.sweep.seeds, config.sweep.learning_rates
  for name, values in (
    ('eval.lengths', config.eval.lengths),
    ('sweep.seeds', seeds),
    ('sweep.learning_rates', rates),
  ):
    if not isinstance(values, tuple | list) or not all(
      isinstance(value, numbers.Real) for value in values
    ):
      raise errors.ConfigError(
        f"{name} takes numbers, for example '(1, 2)'; got {values!r}"
      )
    if not values or len({*values}) < len(values):
      raise errors.ConfigError(
        f'{name} must be some values, each once; got {tuple(values)}'
      )
  if min(seeds) < 0 or max(seeds) >= 2**32 or not min(rates) > 0:
    raise errors.ConfigError(
      f'sweep.seeds must be from 0 to 2^32 - 1 and sweep.learning_rates above '
      f'0; got {tuple(seeds)} and {tuple(rates)}'
    )
  task = tasks.create(config.task)
  for length in config.eval.lengths:
    task.check_length(length)


@struct.dataclass
class Runs:
  """The state of a group of runs, stacked.

  Attributes:
    step: int32 `[R]`, steps done, the same number for all.
    loss: float32 `[R]`, nats per target, mean over the last steps.
    params: of the models, float32 `[R, ...]`.
    opt_state: of the optimizer, likewise.
    seeds: uint32 `[R]`.
    learning_rates: float32 `[R]`.
  """

  step: Any
  loss: Any
  params: Any
  opt_state: Any
  seeds: Any
  learning_rates: Any


class Program:
  """What a config's runs compute."""

  def __init__(self, config):
    """Builds task, model and scheme, and checks that they go together.

    Args:
      config: a ConfigDict; see configs/chomsky.py.

    Raises:
      errors.LengenError: whatever cannot work.
    """
    check(config)
    self.config = config
    self.task = tasks.create(config.task)
    shortest, longest = config.train.min_length, config.train.max_length
    if not self.task.min_length <= shortest <= longest:
      raise errors.ConfigError(
        f'train.min_length={shortest} and train.max_length={longest} must be '
        f'in this order, and {config.task} begins at {self.task.min_length}'
      )
    self._model = transduction.create(
      self.task,
      config.model.to_dict(),
      config.positions,
      train_length=longest,
      test_length=max(config.eval.lengths),
    )
    self.train_widths = widths(
      range(shortest, longest + 1), config.train.buckets
    )
    self.test_widths = widths(config.eval.lengths, config.eval.buckets)
    self._tx = optimizer.create(config.optimizer, config.train.steps)
    self._mesh = jax.make_mesh(
      (jax.device_count(),), ('runs',), axis_types=(AxisType.Auto,)
    )

  @property
  def devices(self):
    """Devices that runs are split over."""
    return self._mesh.devices.size

  @property
  def group_size(self):
    """Runs that are computed together; None for all."""
    return self.devices if self._batching == 'map' else None

  @property
  def _batching(self):
    batching = self.config.sweep.batching
    if batching == 'auto':
      return 'map' if jax.default_backend() == 'cpu' else 'vmap'
    return batching

  def init(self, seeds, learning_rates):
    """The state of some runs, as many as the devices divide."""
    init = self._split(self._init, 2)
    return jax.jit(init)(
      jnp.asarray(seeds, jnp.uint32), jnp.asarray(learning_rates, jnp.float32)
    )

  def abstract(self, count):
    """Shapes, dtypes and shardings of the state of so many runs."""
    runs = NamedSharding(self._mesh, PartitionSpec('runs'))
    return jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=runs),
      jax.eval_shape(self.init, np.zeros(count), np.zeros(count)),
    )

  def train(self, runs, first, last):
    """The runs after steps first .. last - 1; no steps only compile."""
    return self._train(runs, jnp.int32(first), jnp.int32(last))

  def test(self, runs, length):
    """Scores the runs at one length.

    Returns:
      dict of float32 `[R]`: 'accuracy', the part of the targets that count
      which are right; 'exact', the part of the sequences in which all are; and
      'loss', nats per target that counts.
    """
    width = min(w for w in self.test_widths if w >= length)
    return self._test(runs.params, jnp.int32(length), width=width)

  def check(self):
    """Traces a step and a test, so that what cannot work says so at once."""
    count = self.devices
    runs = jax.eval_shape(self.init, np.zeros(count), np.zeros(count))
    one = jax.ShapeDtypeStruct((), jnp.int32)
    jax.eval_shape(self._train, runs, one, one)
    for width in self.test_widths[-1:]:
      jax.eval_shape(
        functools.partial(self._test, width=width), runs.params, one
      )

  def count_parameters(self):
    """How many numbers a model has."""
    one = jax.eval_shape(self._init, jnp.uint32(0), jnp.float32(0))
    return sum(leaf.size for leaf in jax.tree.leaves(one.params))

  def _split(self, function, split, whole=0):
    """A function of runs, split over the devices.

    Args:
      function: of one run.
      split: how many of its arguments have an axis of runs.
      whole: how many after them are the same for all runs.
    """

    def of_some(*args):
      own, shared = args[:split], args[split:]
      count = jax.tree.leaves(own)[0].shape[0]
      if count > 1:
        axes = (0,) * split + (None,) * whole
        return jax.vmap(function, axes)(*own, *shared)
      one = jax.tree.map(lambda x: x[0], own)
      return jax.tree.map(lambda x: x[None], function(*one, *shared))

    runs = PartitionSpec('runs')
    return jax.shard_map(
      of_some,
      mesh=self._mesh,
      in_specs=(runs,) * split + (PartitionSpec(),) * whole,
      out_specs=runs,
      check_vma=False,
    )

  def _init(self, seed, learning_rate):
    rng = jax.random.fold_in(jax.random.key(seed), 0)
    params = self._model.init(rng)
    return Runs(
      step=jnp.zeros((), jnp.int32),
      loss=jnp.full((), jnp.nan, jnp.float32),
      params=params,
      opt_state=self._tx.init(params),
      seeds=seed,
      learning_rates=learning_rate,
    )

  @functools.cached_property
  def _train(self):
    shortest, longest = (
      self.config.train.min_length,
      self.config.train.max_length,
    )

    def train(runs, first, last):
      def step(number, carry):
        runs, total = carry
        # The same length for all runs: else each would compute every branch.
        rng = jax.random.fold_in(jax.random.key(0), number)
        length = jax.random.randint(rng, (), shortest, longest + 1)
        bucket = jnp.searchsorted(jnp.asarray(self.train_widths), length)
        runs, loss = jax.lax.switch(
          bucket,
          [functools.partial(self._step, w) for w in self.train_widths],
          runs,
          number,
          length,
        )
        return runs, total + loss

      zero = jnp.zeros((), jnp.float32)
      before = runs.loss
      runs, total = jax.lax.fori_loop(first, last, step, (runs, zero))
      loss = jnp.where(last > first, total / (last - first), before)
      return runs.replace(loss=loss)

    return jax.jit(self._split(train, 1, 2), donate_argnums=0)

  def _step(self, width, runs, number, length):
    """A step of one run."""
    task_rng, model_rng = jax.random.split(
      jax.random.fold_in(jax.random.key(runs.seeds), number + 1)
    )
    inputs, targets = self.task.sample(
      task_rng, self.config.train.batch_size, length, padded_length=width
    )
    m = self.task.output_length(length)

    def loss_fn(params):
      logits = self._model.logits(
        params,
        inputs,
        targets,
        length=length,
        rng=model_rng,
        train=True,
        dropout=True,
      )
      losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
      counts = jnp.arange(targets.shape[1])[None] < m
      return jnp.sum(losses * counts) / (targets.shape[0] * m)

    loss, grads = jax.value_and_grad(loss_fn)(runs.params)
    updates, opt_state = self._tx.update(grads, runs.opt_state, runs.params)
    params = jax.tree.map(
      lambda p, u: p + runs.learning_rates * u, runs.params, updates
    )
    params = self._model.project(params)
    new = runs.replace(step=number + 1, params=params, opt_state=opt_state)
    return new, loss

  @functools.cached_property
  def _test(self):
    examples = self.config.eval.examples

    def test(width, params, length):
      tokens = self.task.input_length(width) + self.task.output_length(width)
      most = self.config.eval.batch_tokens // tokens
      rows = _divisor(examples, max(1, most))

      def score(rngs):
        inputs, targets = jax.vmap(
          lambda rng: self.task.sample(rng, 1, length, padded_length=width)
        )(rngs)
        inputs, targets = inputs[:, 0], targets[:, 0]
        logits = self._model.logits(
          params,
          inputs,
          targets,
          length=length,
          rng=jax.random.fold_in(rngs[0], 1),
          train=False,
          dropout=self.config.eval.dropout,
        )
        answers = logits.argmax(-1)
        mask = self.task.mask(targets, length)
        losses = optax.softmax_cross_entropy_with_integer_labels(
          logits, targets
        )
        return {
          'accuracy': (mask & (answers == targets)).sum(),
          'exact': self.task.exact_match(answers, targets, length).sum(),
          'loss': jnp.where(mask, losses, 0.0).sum(),
          'count': mask.sum(),
        }

      # The same examples for every run, however they are split.
      rng = jax.random.fold_in(jax.random.key(1), length)
      rngs = jax.random.split(rng, examples).reshape(-1, rows)
      sums = jax.tree.map(jnp.sum, jax.lax.map(score, rngs))
      count = sums.pop('count')
      return {
        name: total / (examples if name == 'exact' else count)
        for name, total in sums.items()
      }

    @functools.partial(jax.jit, static_argnames='width')
    def of_runs(params, length, *, width):
      return self._split(functools.partial(test, width), 1, 1)(params, length)

    return of_runs


def widths(lengths, buckets):
  """Widths that lengths are padded to: the longest of each of some groups."""
  groups = np.array_split(sorted({*lengths}), min(buckets, len({*lengths})))
  return tuple(int(group[-1]) for group in groups)


def _divisor(number, most):
  """The largest divisor that is not over `most`."""
  return max(d for d in range(1, min(number, most) + 1) if number % d == 0)
