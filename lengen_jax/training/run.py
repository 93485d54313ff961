"""A run: the objects built from its config, and the result of training."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import math
from typing import Any

import jax
from jax.experimental import multihost_utils
import ml_collections
import numpy as np

from lengen_jax import errors
from lengen_jax import positions as position_schemes
from lengen_jax.attention import checks
from lengen_jax.data import windows
from lengen_jax.models import config as model_config
from lengen_jax.models import objective, stacking
from lengen_jax.training import (
  checksums,
  groups,
  optimizer,
  runs,
  sharding,
  warm_start,
)
from lengen_jax.training import config as config_lib
from lengen_jax.training import metrics as metrics_lib
from lengen_jax.training import state as state_lib
from lengen_jax.types import Params


class Run:
  """The objects built from the config of a run.

  Attributes:
    config: the ConfigDict.
    data, eval, model, train: its sections.
    scheme: the position scheme.
    tx: the optimizer.
    layout: the mesh and its sharding rules.
    abstract_state: shapes, dtypes and shardings of the training state.
  """

  def __init__(
    self,
    config: ml_collections.ConfigDict,
    devices: Sequence[jax.Device] | None = None,
    *,
    layout: sharding.Layout | None = None,
  ) -> None:
    """Builds the objects; computes nothing.

    For `config` see `defaults.get`. The mesh of `config` has the given devices,
    or all of them; if a `layout` is given, its mesh is used instead.

    Raises:
      errors.LengenError: the config is invalid.
    """
    sections = config_lib.check_run(config)
    self.data, self.eval = sections.data, sections.eval
    self.model, self.train = sections.model, sections.train
    self.config = config
    self.scheme = position_schemes.create(config.positions)
    objective.check(self.model, config.positions)
    self.tx = optimizer.create(sections.optimizer, self.train.steps)
    self.layout = layout or sharding.Layout.create(
      sections.mesh, self.data.batch_size, devices
    )
    lengths = [('data.train_length', self.data.train_length)]
    if self.model.architecture == 'encoder_decoder':
      lengths.append(('data.target_length', self.data.target_length or 1))
    lengths += [('eval.lengths', length) for length in self.eval.lengths]
    for name, length in lengths:
      if length > checks.MAX_LENGTH:
        raise errors.ConfigError(
          f'{name}={length} is over {checks.MAX_LENGTH}, beyond which '
          'float32 cannot represent every position'
        )
      self.layout.check_length(name, length)
    profile = metrics_lib.profile_steps(self.train.profile)
    if profile and profile[0] > self.train.steps:
      raise errors.ConfigError(
        f'train.profile={self.train.profile!r} begins after the last step, '
        f'train.steps={self.train.steps}; choose earlier steps'
      )
    self.abstract_state = state_lib.abstract(
      self.layout, self.model, self.tx, self.train.param_dtype
    )
    self._jitted_steps: dict[bool, Any] = {}

  @property
  def parameters(self) -> int:
    """Number of parameters of the model."""
    return sum(
      leaf.size for leaf in jax.tree.leaves(self.abstract_state.params)
    )

  @property
  def state_bytes(self) -> int:
    """Bytes of the training state per device."""
    return sum(
      math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
      for leaf in jax.tree.leaves(self.abstract_state)
    )

  def check_step(self) -> None:
    """Traces a step, to raise a LengenError before training."""
    if self.data.source_length and not self.scheme.takes_chunks:
      raise errors.CombinationError(
        f'data.source_length={self.data.source_length} keeps two chunks of a '
        f'text, and the positions {self.config.positions} do not skip between '
        "them; set positions='pose(max_position=...)' with two chunks"
      )
    with self.layout.scope():
      self.jitted_step(packed=False).eval_shape(
        self.abstract_state, self.abstract_batch()
      )

  def tested_as(self, specs: runs.Run) -> 'Run':
    """Returns the run of other specs that take the same parameters.

    Raises:
      errors.CombinationError: they take other parameters.
    """
    config = runs.configure(self.config, specs)
    other = Run(config, layout=self.layout)
    check_same_parameters(
      self.abstract_state.params,
      other.abstract_state.params,
      runs.name(runs.of(self.config)),
      runs.name(specs),
    )
    return other

  def abstract_batch(self) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns shapes, dtypes and shardings of a batch."""
    rows, length = self.data.batch_size, self.data.train_length
    if self.model.architecture == 'encoder_decoder':
      targets = np.zeros((1, self.data.target_length or 1), np.int32)
      batch = windows.pair_batch(np.zeros((1, length), np.int32), targets)
    else:
      batch = windows.lm_batch(np.zeros((1, length + 1), np.int32))
      if self.data.source_length:
        batch['chunks'] = np.zeros_like(batch['inputs'])
    return {
      name: jax.ShapeDtypeStruct(
        (rows, *array.shape[1:]), array.dtype, sharding=self.layout.batch
      )
      for name, array in batch.items()
    }

  def place(self, rows: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
    """Returns a batch on the mesh from the rows of this process.

    Raises:
      errors.CorpusError: a token id is not in the model's vocabulary.
    """
    objective.check_ids(self.model, rows)
    return self.layout.place(rows)

  def step_fn(self, *, packed: bool) -> Callable[..., Any]:
    """Returns the training step, `(state, batch) -> (state, metrics)`.

    All randomness is a function of the config's seed and the state's step. For
    `packed` see `objective.token_losses`.
    """
    how: dict[str, Any] = {'train': True, 'packed': packed}

    def step(
      state: state_lib.TrainState, batch: objective.Batch
    ) -> tuple[state_lib.TrainState, dict[str, jax.Array]]:
      rng = jax.random.fold_in(jax.random.key(self.config.seed), state.step)
      losses = functools.partial(
        objective.token_losses, self.model, self.scheme, rng=rng, **how
      )
      return state_lib.train_step(
        state,
        objective.masked(self.model, batch, rng),
        token_losses=losses,
        project=functools.partial(stacking.project, config=self.model),
        tx=self.tx,
      )

    return step

  def jitted_step(self, *, packed: bool) -> Any:
    """Returns the jitted training step; lower it within `layout.scope()`.

    It is the same function in each call, so that it is traced once.
    """
    if packed not in self._jitted_steps:
      self._jitted_steps[packed] = jax.jit(
        self.step_fn(packed=packed),
        donate_argnums=0,
        out_shardings=(self.shardings, self.layout.whole),
      )
    return self._jitted_steps[packed]

  @property
  def shardings(self) -> Any:
    """Shardings of the training state."""
    return jax.tree.map(lambda leaf: leaf.sharding, self.abstract_state)

  def init_state(self) -> state_lib.TrainState:
    """Returns the initial state, created sharded over the mesh."""

    def init() -> state_lib.TrainState:
      params = self._init_params(self.model)
      return state_lib.init(params, self.tx, self.train.param_dtype)

    return jax.jit(init, out_shardings=self.shardings)()

  def _init_params(self, model: model_config.ModelConfig) -> Params:
    """Returns initial parameters, float32."""
    return stacking.init(model, jax.random.key(self.config.seed))

  def adopt(
    self,
    source_params: Params,
    source_model: model_config.ModelConfig,
    source_length: int = 0,
  ) -> tuple[state_lib.TrainState, list[str]]:
    """Returns the initial state with another model's parameters, and notes.

    See `warm_start.adopt`. `source_length` is the tokens per row in the other
    model's training, 0 if unknown.

    Raises:
      errors.CheckpointError: the models differ in more than their encodings.
    """
    unrolled = dataclasses.replace(self.model, scan_layers=False)
    initial, _ = stacking.abstract(unrolled)
    added = jax.jit(lambda: groups.added(self._init_params(unrolled)))()
    # On the host, since the meshes of the two runs may differ.
    params, notes = warm_start.adopt(
      groups.merged(initial, jax.device_get(added)),
      self.model,
      on_host(source_params),
      source_model,
      max_length=max(self.config.data.train_length, source_length),
      rng=jax.random.fold_in(jax.random.key(self.config.seed), 1),
    )
    return state_lib.place(params, self.abstract_state, self.tx), notes


@dataclasses.dataclass(frozen=True)
class Trained:
  """A trained model.

  Attributes:
    run: its run.
    state: the training state; restored ones have no optimizer state, see
      `state.TrainState.weights`.
    seconds: spent in steps, over all sessions of the run.
    memory_bytes: peak memory of a device in the last session; None where it is
      not recorded.
    sessions: the starts of the run; see `metrics.sessions`.
  """

  run: Run
  state: state_lib.TrainState
  seconds: float
  memory_bytes: int | None = None
  sessions: tuple = ()

  def tested_as(self, specs: runs.Run | None) -> 'Trained':
    """Returns the model with the specs to test it with; None for its own."""
    if specs is None:
      return self
    return dataclasses.replace(self, run=self.run.tested_as(specs))


def on_host(params: Params) -> Params:
  """Returns a tree of arrays as numpy arrays; all processes must call it."""
  if jax.process_count() == 1:
    return jax.device_get(params)

  def gather(leaf: Any) -> Any:
    # Arrays read from a file are complete on every host.
    if isinstance(leaf, np.ndarray):
      return leaf
    return multihost_utils.process_allgather(leaf, tiled=True)

  return jax.tree.map(gather, params)


def check_same_parameters(
  trained: Params, tested: Params, trained_name: str, tested_name: str
) -> None:
  """Raises unless two trees of arrays or shapes have the same paths and shapes.

  The names are those of the models, for the error.

  Raises:
    errors.CombinationError: naming the first parameter that differs.
  """
  mine, theirs = map(checksums.describe, (trained, tested))
  differing = sorted(
    path for path in {*mine, *theirs} if mine.get(path) != theirs.get(path)
  )
  if differing:
    shapes = [
      one[differing[0]]['shape'] if differing[0] in one else 'none'
      for one in (mine, theirs)
    ]
    raise errors.CombinationError(
      f'{tested_name} cannot be tested with the parameters of {trained_name}: '
      f'{differing[0]} has shape {shapes[1]}, trained {shapes[0]}; train it as '
      'a run of its own'
    )
