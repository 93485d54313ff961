"""Where others look at metrics: TensorBoard, Weights & Biases.

A board has `write(entries, now)`, lines of metrics.jsonl and seconds since
1970, and `close()`.
"""

import contextlib
import hashlib
import json

from lengen_jax import errors


def create(config, folder, first_step, began, now):
  """The boards that a config asks for.

  Args:
    config: the run's ConfigDict, with train.tensorboard and train.wandb.
    folder: the workdir.
    first_step: the run goes on from there.
    began: when its first session did, text.
    now: seconds since 1970.

  Returns:
    list of boards.

  Raises:
    errors.ConfigError: what a board needs is not installed, or refuses.
  """
  boards = []
  if config.train.tensorboard:
    boards.append(TensorBoard(folder / 'tensorboard', first_step, now))
  if config.train.wandb:
    boards.append(Wandb(config, folder, began))
  return boards


class TensorBoard:
  """A file for TensorBoard, which shows no step of earlier files done again.

  Of tensorboardX the part that writes at once: from its SummaryWriter, a thread
  with a queue, a killed run would lose steps that are saved.
  """

  def __init__(self, folder, first_step, now):
    try:
      from tensorboardX import event_file_writer
      from tensorboardX.proto import event_pb2
      from tensorboardX.proto import summary_pb2
    except ImportError as error:
      raise errors.ConfigError(
        'train.tensorboard needs the extra tensorboard: pip install '
        f"'lengen_jax[tensorboard]' ({error})"
      ) from None
    self._event, self._summary = event_pb2.Event, summary_pb2.Summary
    event_file_writer.directory_check(str(folder))
    # Files of one second would overwrite each other but for the step.
    self._writer = event_file_writer.EventsWriter(
      str(folder / 'events'), f'.{first_step}'
    )
    restart = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    self._writer.write_event(
      self._event(wall_time=now, step=first_step + 1, session_log=restart)
    )
    self._writer.flush()

  def write(self, entries, now):
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

  def close(self):
    # All is written, or has been found impossible to write.
    with contextlib.suppress(OSError):
      self._writer.close()


class Wandb:
  """A run of Weights & Biases, the same one over all sessions.

  It takes no step twice, and one that is done again has the same numbers.
  WANDB_MODE=offline writes to the folder wandb/ and sends nothing.
  """

  def __init__(self, config, folder, began):
    try:
      import wandb
    except ImportError as error:
      raise errors.ConfigError(
        'train.wandb needs the extra wandb: pip install '
        f"'lengen_jax[wandb]' ({error})"
      ) from None
    # A folder that was deleted and made again is another run.
    run_id = hashlib.sha256(f'{folder} {began}'.encode()).hexdigest()[:16]
    try:
      self._run = wandb.init(
        project=config.train.wandb,
        id=run_id,
        resume='allow',
        name=folder.name,
        dir=None if '://' in str(folder) else folder,
        config=json.loads(config.to_json()),
        settings=wandb.Settings(console='off', silent=True),
      )
    except wandb.errors.Error as error:
      raise errors.ConfigError(
        f'train.wandb={config.train.wandb!r}: {str(error).rstrip(".")}; or '
        'write to files alone, with WANDB_MODE=offline in the environment'
      ) from error

  def write(self, entries, now):
    del now
    for entry in entries:
      self._run.log(_numbers(entry), step=entry['step'])

  def close(self):
    self._run.finish()


def _numbers(entry):
  """What a line of metrics.jsonl says of its step, less what is unknown."""
  return {
    name: value
    for name, value in entry.items()
    if name != 'step' and value is not None
  }
