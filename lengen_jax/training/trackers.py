"""Experiment trackers that show the metrics: TensorBoard, Weights & Biases."""

from collections.abc import Mapping, Sequence
import contextlib
import hashlib
import json
from typing import Any, Protocol

import ml_collections

from lengen_jax import errors, extra
from lengen_jax.training import files


class Tracker(Protocol):
  """Interface of a tracker."""

  def write(self, entries: Sequence[Mapping[str, Any]], now: float) -> None:
    """Logs lines of metrics.jsonl; `now` is in seconds since 1970."""

  def close(self) -> None: ...


def create(
  config: ml_collections.ConfigDict,
  folder: files.Path,
  first_step: int,
  began: str,
  now: float,
) -> list[Tracker]:
  """Returns the trackers that a config enables.

  Args:
    config: ConfigDict of the run, with train.tensorboard and train.wandb.
    folder: workdir.
    first_step: steps already done.
    began: date of the first session of the run.
    now: seconds since 1970.

  Raises:
    errors.ConfigError: a package is not installed, or W&B refuses the run.
    errors.StorageError: W&B cannot be reached.
  """
  trackers: list[Tracker] = []
  if config.train.tensorboard:
    trackers.append(TensorBoard(folder / 'tensorboard', first_step, now))
  if config.train.wandb:
    trackers.append(Wandb(config, folder, began))
  return trackers


class TensorBoard:
  """An event file for TensorBoard, which hides repeated steps of older files.

  Writes synchronously: the queue of tensorboardX.SummaryWriter would lose steps
  that are already in a checkpoint when a run is killed.
  """

  def __init__(self, folder: files.Path, first_step: int, now: float) -> None:
    extra.load(
      'tensorboardX', 'train.tensorboard', 'tensorboard', errors.ConfigError
    )
    from tensorboardX import event_file_writer
    from tensorboardX.proto import event_pb2, summary_pb2

    self._event, self._summary = event_pb2.Event, summary_pb2.Summary
    event_file_writer.directory_check(str(folder))
    # File names have a resolution of one second; the step makes them unique.
    path = str(folder / 'events')
    try:
      self._writer = event_file_writer.EventsWriter(path, f'.{first_step}')
    except ImportError as error:
      raise errors.ConfigError(
        f'train.tensorboard cannot write to {folder}: {error}'
      ) from error
    restart = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    self._writer.write_event(
      self._event(wall_time=now, step=first_step + 1, session_log=restart)
    )
    self._writer.flush()

  def write(self, entries: Sequence[Mapping[str, Any]], now: float) -> None:
    for entry in entries:
      values = [
        self._summary.Value(tag=name, simple_value=value)
        for name, value in _numbers(entry).items()
      ]
      self._writer.write_event(
        self._event(
          wall_time=now, step=entry['step'], summary=self._summary(value=values)
        )
      )
    self._writer.flush()

  def close(self) -> None:
    # `write` has flushed everything or raised.
    with contextlib.suppress(OSError):
      self._writer.close()


class Wandb:
  """A run of Weights & Biases, the same one in all sessions.

  It ignores repeated steps, whose metrics are equal. With WANDB_MODE=offline it
  writes to the folder wandb/ and sends nothing.
  """

  def __init__(
    self, config: ml_collections.ConfigDict, folder: files.Path, began: str
  ) -> None:
    wandb = extra.load('wandb', 'train.wandb', 'wandb', errors.ConfigError)
    # The date distinguishes a folder that was deleted and created again.
    run_id = hashlib.sha256(f'{folder} {began}'.encode()).hexdigest()[:16]
    try:
      self._run = wandb.init(
        project=config.train.wandb,
        id=run_id,
        resume='allow',
        name=folder.name,
        dir=None if files.is_remote(folder) else folder,
        config=json.loads(config.to_json()),
        settings=wandb.Settings(console='off', silent=True),
      )
    except wandb.errors.Error as error:
      kind: type[errors.LengenError] = errors.ConfigError
      refused = isinstance(error, wandb.errors.AuthenticationError)
      if isinstance(error, wandb.errors.CommError) and not refused:
        kind = errors.StorageError
      raise kind(
        f'train.wandb={config.train.wandb!r}: {str(error).rstrip(".")}; or set '
        'WANDB_MODE=offline in the environment to write to files only'
      ) from error

  def write(self, entries: Sequence[Mapping[str, Any]], now: float) -> None:
    del now
    for entry in entries:
      self._run.log(_numbers(entry), step=entry['step'])

  def close(self) -> None:
    self._run.finish()


def _numbers(entry: Mapping[str, Any]) -> dict[str, float]:
  """Returns the metrics of a line without its step and unknown values."""
  return {
    name: value
    for name, value in entry.items()
    if name != 'step' and value is not None
  }
