"""Where the data stands, as part of a checkpoint: a folder per process."""

import dataclasses
import json

from etils import epath
import jax
import orbax.checkpoint as ocp

from lengen_jax.training import checksums


class Handler(ocp.CheckpointHandler):
  """Lets the data write into the checkpoint."""

  def save(self, directory, args):
    directory, name = epath.Path(directory), str(jax.process_index())
    folder = directory / name
    folder.mkdir()
    args.batches.save(folder)
    sealed = checksums.seal(
      {'step': args.step, 'files': checksums.of_files(folder)}
    )
    (directory / f'{name}.json').write_text(json.dumps(sealed))

  def restore(self, directory, args):
    # `check` and the data itself read; they need no barriers between processes.
    raise NotImplementedError

  def finalize(self, directory):
    pass


# Orbax wants to be told of both.
@ocp.args.register_with_handler(Handler, for_save=True, for_restore=True)
@dataclasses.dataclass
class SaveArgs(ocp.args.CheckpointArgs):
  """What the handler is given.

  Attributes:
    batches: a `data.windows.Batches`.
    step: of the checkpoint.
  """

  batches: object
  step: int


def check(directory, step, count):
  """Checks what a process has to read.

  Args:
    directory: that of the data in a checkpoint.
    step: of the checkpoint.
    count: of the folders in it.

  Returns:
    The folder that this process is to restore its data from.

  Raises:
    ValueError: there is none, or it was changed.
  """
  if not count:
    raise ValueError('it does not say where the data stands')
  # In a run of other processes than it was saved by, whichever there is.
  name = str(jax.process_index() % count)
  try:
    sealed = json.loads((directory / f'{name}.json').read_bytes())
    found = {'step': step, 'files': checksums.of_files(directory / name)}
    if checksums.unseal(sealed) == found:
      return directory / name
  except (OSError, ValueError):
    pass
  raise ValueError('the state of the data is damaged')
