"""Training and evaluating on a generated task: vectorized, bucketed steps.

The points of a sweep, pairs of seed and learning rate, lie along an axis R that
is sharded over the devices and vectorized on each; fewer points than devices
leave devices idle. Each step draws one length for all points and pads it to the
next of a few widths; each width is compiled.
"""

from collections.abc import Callable, Iterable, Sequence
import contextlib
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import ml_collections
import numpy as np
import optax

from lengen_jax import errors, tasks
from lengen_jax.models import transduction
from lengen_jax.tasks import batches
from lengen_jax.tasks.arithmetic import expression
from lengen_jax.training import config as config_lib
from lengen_jax.training import optimizer, task_answers
from lengen_jax.training import run as run_lib
from lengen_jax.training import state as state_lib
from lengen_jax.types import Array, Params


class Points(state_lib.TrainState):
  """The training state of some points of a sweep; leaves are `[R, ...]`.

  `loss` is the mean over the last steps, in nats per target.
  """

  loss: jax.Array
  seeds: jax.Array
  learning_rates: jax.Array


class TaskTrainer:
  """Trains and evaluates one run of a sweep at several points.

  Attributes:
    config: the sections of the config.
    devices: number of devices that points can be sharded over.
    train_widths, test_widths: nominal lengths that rows are padded to.
  """

  def __init__(self, config: ml_collections.ConfigDict) -> None:
    """Builds task, model, position scheme and optimizer.

    Raises:
      errors.LengenError: the config, see configs/chomsky.py, is invalid.
    """
    self.config = config_lib.check_task(config)
    self.task = tasks.create(config.task)
    if self.config.model.get('scan_layers'):
      raise errors.ConfigError(
        'sweeps do not support model.scan_layers=True; set it to False, which '
        'does not change scores'
      )
    train, test = self.config.train, self.config.eval
    for length in test.lengths:
      self.task.check_length(length)
    if not self.task.min_length <= train.min_length <= train.max_length:
      raise errors.ConfigError(
        f'train.min_length={train.min_length} and train.max_length='
        f'{train.max_length} must be in this order, and at least '
        f'{self.task.min_length}, the minimum length of {config.task}'
      )
    create = functools.partial(
      transduction.create,
      fields=self.config.model,
      positions=config.positions,
      train_length=train.max_length,
      test_length=max(test.lengths),
    )
    self._model = create(self.task)
    if test.by == 'generation':
      task_answers.check(self._model, test, self.task)
    self._operand_task = None
    if test.operand_examples:
      self._operand_task = _with_uniform_operands(
        self.task, test.operand_examples
      )
      scheme = self._model.scheme
      if scheme is not None and scheme.needs_roles:
        _check_equal_roles(self.task, self._operand_task)
      try:
        # Its rows may be longer than those of the task.
        create(self._operand_task, train_length=self.task.min_length)
      except errors.LengthError as error:
        raise errors.LengthError(
          f'eval.operand_examples={test.operand_examples} has two operands of '
          f'up to {max(test.lengths)} digits: {error}; or set it to 0'
        ) from error
    self.train_widths = widths(
      range(train.min_length, train.max_length + 1), train.buckets
    )
    self.test_widths = widths(test.lengths, test.buckets)
    self._tx = optimizer.create(self.config.optimizer, train.steps)
    self.devices = jax.device_count()

  def init(
    self, seeds: Sequence[int] | Array, learning_rates: Sequence[float] | Array
  ) -> Points:
    """Returns the initial state of R points.

    R is at most the number of devices, or a multiple of it.
    """
    return self._init_all(
      jnp.asarray(seeds, jnp.uint32), jnp.asarray(learning_rates, jnp.float32)
    )

  @functools.partial(jax.jit, static_argnums=0)
  def _init_all(self, seeds: jax.Array, learning_rates: jax.Array) -> Points:
    return self._shard(self._init, 2)(seeds, learning_rates)

  def abstract(self, count: int) -> Points:
    """Returns shapes, dtypes and shardings of the state of `count` points."""
    sharding = NamedSharding(self._mesh(count), PartitionSpec('runs'))
    return jax.tree.map(
      lambda leaf: leaf.update(sharding=sharding),
      jax.eval_shape(self.init, np.zeros(count), np.zeros(count)),
    )

  @functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
  def train(
    self, points: Points, first: int | jax.Array, last: int | jax.Array
  ) -> Points:
    """Returns the points after steps `first` ... `last - 1`.

    The buffers of `points` are donated. With `last == first` the program is
    compiled and no step is done.
    """
    return self._shard(self._train, 1, 2)(points, first, last)

  def test(self, points: Points, length: int) -> dict[str, jax.Array]:
    """Returns the scores of the points at one nominal length, float32 `[R]`.

    'accuracy' is the share of correct targets, 'exact' the share of sequences
    whose targets are all correct, and 'loss' in nats per target, which is NaN
    if answers are generated. Targets outside the task's mask are not scored.
    'right' says which of the E sequences are correct, bool `[R, E]`.
    """
    width = min(w for w in self.test_widths if w >= length)
    if self.config.eval.by == 'generation':
      return self._generate(points.params, length, width)
    return self._test(points.params, jnp.int32(length), width=width)

  def test_operands(self, points: Points) -> dict[str, np.ndarray]:
    """Returns the accuracy by the digits of both operands.

    Each operand has from 1 to N digits, where N is the longest of
    `eval.lengths`; models read the earlier targets. At [i, j] are operands of
    i + 1 and j + 1 digits.

    Returns:
      'share', float `[R, N, N]`, NaN without examples or finite logits; and
      'count', the number of examples, int `[N, N]`.
    """
    found = self._test_operands(points.params)
    exact_RxE, digits_RxEx2 = run_lib.on_host(found)
    n = self.test_widths[-1]
    # All points have the same examples.
    cell_E = np.ravel_multi_index(tuple(digits_RxEx2[0].T - 1), (n, n))
    count = np.bincount(cell_E, minlength=n * n)
    right = [np.bincount(cell_E, row, minlength=n * n) for row in exact_RxE]
    with np.errstate(invalid='ignore'):
      share = np.stack(right) / count
    return {'share': share.reshape(-1, n, n), 'count': count.reshape(n, n)}

  def check(self) -> None:
    """Traces a step and an evaluation, to raise errors before training."""
    points = self.abstract(self.devices)
    scalar = jax.ShapeDtypeStruct((), jnp.int32)
    train = self._shard(self._train, 1, 2)
    jax.eval_shape(train, points, scalar, scalar)
    test = functools.partial(self._test, width=self.test_widths[-1])
    jax.eval_shape(test, points.params, scalar)
    if self._operand_task:
      jax.eval_shape(self._test_operands, points.params)

  def _mesh(self, count: int) -> Mesh:
    """Returns a mesh of one device per point, or of all devices if fewer."""
    # In any order, because points do not communicate.
    devices = np.asarray(jax.devices()[:count])
    return Mesh(devices, ('runs',), axis_types=(AxisType.Auto,))

  def _shard(
    self, function: Callable[..., Any], mapped: int, shared: int = 0
  ) -> Callable[..., Any]:
    """Vectorizes a function of one point and shards it over the devices.

    Of its arguments, `mapped` have an axis of points; `shared` more have none.
    """

    def of_points(*args: Any) -> Any:
      if _count(args[0]) > 1:
        axes = (0,) * mapped + (None,) * shared
        return jax.vmap(function, axes)(*args)
      squeezed = jax.tree.map(lambda x: x[0], args[:mapped])
      outputs = function(*squeezed, *args[mapped:])
      return jax.tree.map(lambda x: x[None], outputs)

    def of_all_points(*args: Any) -> Any:
      runs = PartitionSpec('runs')
      sharded = jax.shard_map(
        of_points,
        mesh=self._mesh(_count(args[0])),
        in_specs=(runs,) * mapped + (PartitionSpec(),) * shared,
        out_specs=runs,
        check_vma=False,
      )
      return sharded(*args)

    return of_all_points

  def _init(self, seed: jax.Array, learning_rate: jax.Array) -> Points:
    rng = jax.random.fold_in(jax.random.key(seed), 0)
    params = self._model.init(rng)
    return Points(
      step=jnp.zeros((), jnp.int32),
      params=params,
      opt_state=self._tx.init(params),
      loss=jnp.full((), jnp.nan, jnp.float32),
      seeds=seed,
      learning_rates=learning_rate,
    )

  def _train(self, point: Points, first: jax.Array, last: jax.Array) -> Points:
    lengths = self.config.train.min_length, self.config.train.max_length + 1
    branches = [functools.partial(self._step, w) for w in self.train_widths]

    def step(
      number: jax.Array, carry: tuple[Points, jax.Array]
    ) -> tuple[Points, jax.Array]:
      point, total = carry
      # All points draw the same length. With a length for each of them, vmap
      # would compute every branch.
      rng = jax.random.fold_in(jax.random.key(0), number)
      length = jax.random.randint(rng, (), *lengths)
      bucket = jnp.searchsorted(jnp.asarray(self.train_widths), length)
      point, loss = jax.lax.switch(bucket, branches, point, number, length)
      return point, total + loss

    carry = point, jnp.zeros((), jnp.float32)
    new, total = jax.lax.fori_loop(first, last, step, carry)
    loss = jnp.where(last > first, total / (last - first), point.loss)
    return new.replace(loss=loss)

  def _step(
    self, width: int, point: Points, number: jax.Array, length: jax.Array
  ) -> tuple[Points, jax.Array]:
    """Takes one step of one point on rows padded to `width`."""
    rng = jax.random.fold_in(jax.random.key(point.seeds), number + 1)
    task_rng, model_rng = jax.random.split(rng)
    inputs, targets = self.task.sample(
      task_rng, self.config.train.batch_size, length, padded_length=width
    )
    point, metrics = state_lib.train_step(
      point,
      self._make_batch(self.task, inputs, targets, length),
      token_losses=functools.partial(
        self._model.apply, rngs=_rngs(model_rng, True), train=True
      ),
      project=self._model.project,
      tx=self._tx,
      learning_rate=point.learning_rates,
      # A run that diverges has no score.
      skip_nonfinite=False,
    )
    return point, metrics['loss']

  @functools.partial(jax.jit, static_argnames=('self', 'width'))
  def _test(
    self, params: Params, length: jax.Array, *, width: int
  ) -> dict[str, jax.Array]:
    of_point = functools.partial(self._scores, width)
    return self._shard(of_point, 1, 1)(params, length)

  def _scores(
    self, width: int, params: Params, length: jax.Array
  ) -> dict[str, jax.Array]:
    """Returns the scores of one point on rows padded to `width`."""
    examples = self.config.eval.examples

    def score(rngs: jax.Array) -> dict[str, jax.Array]:
      _, targets, logits_BxMxV = self._predict(
        self.task, params, rngs, length, width
      )
      answers = logits_BxMxV.argmax(-1)
      mask = self.task.mask(targets, length)
      losses = optax.softmax_cross_entropy_with_integer_labels(
        logits_BxMxV, targets
      )
      return {
        'accuracy': (mask & (answers == targets)).sum(),
        'exact': self.task.exact_match(answers, targets, length),
        'loss': jnp.where(mask, losses, 0.0).sum(),
        'count': mask.sum(),
      }

    rngs = self._blocks(self.task, self._example_rngs(length), width)
    found = jax.lax.map(score, rngs)
    sums = jax.tree.map(jnp.sum, found)
    count = sums.pop('count')
    # Without finite logits, there are no answers.
    count = jnp.where(jnp.isfinite(sums['loss']), count, jnp.nan)
    examples = jnp.where(jnp.isfinite(sums['loss']), examples, jnp.nan)
    scores = {
      name: total / (examples if name == 'exact' else count)
      for name, total in sums.items()
    }
    right = found['exact'].ravel() & jnp.isfinite(sums['loss'])
    return scores | {'right': right}

  @functools.partial(jax.jit, static_argnums=0)
  def _test_operands(self, params: Params) -> tuple[jax.Array, jax.Array]:
    return self._shard(self._operand_answers, 1)(params)

  def _operand_answers(self, params: Params) -> tuple[jax.Array, jax.Array]:
    """Returns the results of one point on E examples of `test_operands`.

    They are 1.0 for right answers, 0.0 for wrong ones and NaN without finite
    logits, float32 `[E]`, and the digits of the operands, int32 `[E, 2]`.
    """
    task, length = self._operand_task, self.test_widths[-1]

    def answer(rngs: jax.Array) -> tuple[jax.Array, jax.Array]:
      inputs, targets, logits_BxMxV = self._predict(
        task, params, rngs, length, length
      )
      exact = task.exact_match(logits_BxMxV.argmax(-1), targets, length)
      mask_BxM = task.mask(targets, length)
      finite_BxM = jnp.isfinite(logits_BxMxV).all(-1) | ~mask_BxM
      right = jnp.where(finite_BxM.all(-1), exact, jnp.nan)
      return right, task.operand_digits(inputs)

    # Tasks with operands have no nominal length 0: no other key is equal.
    rngs = self._example_rngs(0, self.config.eval.operand_examples)
    found = jax.lax.map(answer, self._blocks(task, rngs, length))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), found)

  def _predict(
    self,
    task: tasks.Task,
    params: Params,
    rngs: jax.Array,
    length: int | jax.Array,
    width: int,
  ) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns an example for each key: inputs, targets, logits at targets."""
    inputs, targets = self._sample(task, rngs, length, width)
    outputs = self._model.apply(
      params,
      self._make_batch(task, inputs, targets, length),
      rngs=_rngs(jax.random.fold_in(rngs[0], 1), self.config.eval.dropout),
      train=False,
      equal_lengths=task.equal_lengths,
      scored=False,
    )
    logits = batches.at_targets(task, outputs, inputs, targets, length)
    return inputs, targets, logits

  def _make_batch(
    self,
    task: tasks.Task,
    inputs: jax.Array,
    targets: jax.Array,
    length: int | jax.Array,
  ) -> dict[str, jax.Array]:
    return batches.make(
      task,
      inputs,
      targets,
      length,
      autoregressive=self._model.autoregressive,
    )

  def _blocks(self, task: tasks.Task, rngs: jax.Array, width: int) -> jax.Array:
    """Returns keys of examples `[E]` as blocks that fit `eval.batch_tokens`."""
    tokens, examples = batches.count_tokens(task, width), len(rngs)
    most = max(1, min(self.config.eval.batch_tokens // tokens, examples))
    rows = max(d for d in range(1, most + 1) if examples % d == 0)
    return rngs.reshape(-1, rows)

  def _generate(
    self, params: Params, length: int, width: int
  ) -> dict[str, jax.Array]:
    """Returns the scores of generated answers on rows padded to `width`."""
    sample = jax.jit(self._sample, static_argnums=(0, 3))
    inputs, targets = sample(
      self.task, self._example_rngs(length), length, width
    )
    targets = targets[:, : int(self.task.output_length(length))]
    scores = []
    for point in range(_count(params)):
      # Without finite logits, there are no answers.
      one: dict[str, Any] = dict.fromkeys(config_lib.SCORES, jnp.nan)
      one['right'] = jnp.zeros(len(targets), bool)
      with contextlib.suppress(errors.MetricError):
        answers = task_answers.generate(
          self._model,
          self.task,
          jax.tree.map(lambda leaf, n=point: np.asarray(leaf[n]), params),
          inputs,
          targets,
          length,
          batch_tokens=self.config.eval.batch_tokens,
        )
        one['right'] = self.task.exact_match(answers, targets, length)
        one['exact'] = one['right'].mean()
        one['accuracy'] = self.task.accuracy(answers, targets, length)
      scores.append(one)
    return jax.tree.map(lambda *values: jnp.array(values), *scores)

  def _example_rngs(
    self, length: int | jax.Array, examples: int | None = None
  ) -> jax.Array:
    """Returns keys of the examples, for all points and any batching."""
    # Differs from keys of training, which fold in step numbers below 2^31.
    rng = jax.random.fold_in(jax.random.key(1), 2**31)
    rng = jax.random.fold_in(rng, length)
    return jax.random.split(rng, examples or self.config.eval.examples)

  def _sample(
    self,
    task: tasks.Task,
    rngs: jax.Array,
    length: int | jax.Array,
    width: int,
  ) -> tuple[jax.Array, jax.Array]:
    """Returns an example for each key, inputs and targets."""
    inputs, targets = jax.vmap(
      lambda rng: task.sample(rng, 1, length, padded_length=width)
    )(rngs)
    return inputs[:, 0], targets[:, 0]


def _count(points: Any) -> int:
  """Returns the number of points of a tree, whose leaves are `[R, ...]`."""
  return len(jax.tree.leaves(points)[0])


def widths(lengths: Iterable[int], buckets: int) -> tuple[int, ...]:
  """Returns the lengths to pad to: the greatest of each of `buckets` groups."""
  distinct = sorted({*lengths})
  groups = np.array_split(distinct, min(buckets, len(distinct)))
  return tuple(int(group[-1]) for group in groups)


def _with_uniform_operands(
  task: tasks.Task, examples: int
) -> expression.Expression:
  """Returns a task whose two operands each have from 1 to n digits."""
  if isinstance(task, expression.Expression) and task.operands == 2:
    return dataclasses.replace(task, lengths='uniform', second_digits=None)
  raise errors.ConfigError(
    f'eval.operand_examples={examples} requires a task of the family '
    f'arithmetic with two operands, got {task}; set eval.operand_examples=0'
  )


def _check_equal_roles(task: tasks.Task, other: tasks.Task) -> None:
  """Raises errors.CombinationError if the roles of a row differ."""
  inputs, targets = task.sample(jax.random.key(0), 1, task.min_length + 1)
  row = task.text(inputs[0]), task.text(targets[0])
  mine, theirs = (one.encode(*row)['roles'] for one in (task, other))
  if not np.array_equal(mine, theirs):
    raise errors.CombinationError(
      f'second_digits determines the roles of {task}, and the operands of '
      'eval.operand_examples have other lengths; set it to 0'
    )


def _rngs(rng: jax.Array, dropout: bool) -> dict[str, jax.Array]:
  rngs = dict(zip(('positions', 'dropout'), jax.random.split(rng), strict=True))
  return rngs if dropout else {'positions': rngs['positions']}
