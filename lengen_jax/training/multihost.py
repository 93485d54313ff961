"""Agreement between the processes of a run.

A process that fails alone leaves the others waiting in a collective operation.
Functions here turn a local result or failure into the same one everywhere. The
module loads jax only when it is needed: reports run without it.
"""

from collections.abc import Callable, Sequence
import sys
from typing import TypeVar

import numpy as np

from lengen_jax import errors

_T = TypeVar('_T')


def is_first() -> bool:
  """Returns whether this is the process that writes files and prints."""
  # Neither loads jax nor initialises its devices.
  jax = sys.modules.get('jax')
  if jax is None or not jax.distributed.is_initialized():
    return True
  return jax.process_index() == 0


def attempt(function: Callable[[], _T]) -> tuple[_T | None, str | None]:
  """Calls a function in every process; it must not run collectives.

  Returns (result, None), or (None, problem) if the function failed in any
  process. Errors that do not indicate a damaged file are raised instead: a
  LengenError of the function, too little memory, and the errors below.

  Raises:
    PermissionError: the local file system denies access.
    errors.WorkdirError: an object store denies access; StorageError if storage
      fails and a retry may succeed.
  """
  try:
    result, problem = function(), None
  except (errors.LengenError, MemoryError, PermissionError):
    raise
  except Exception as error:  # Libraries raise many types for a damaged file.
    if 'RESOURCE_EXHAUSTED' in str(error):
      raise
    if (failure := errors.of_storage(error)) is not None:
      raise failure from error
    result, problem = None, first_line(error)
  problem = any_problem(problem)
  return (None, problem) if problem is not None else (result, None)


def any_problem(problem: str | None) -> str | None:
  """Returns this process's problem or another's; None if there is none."""
  import jax
  from jax.experimental import multihost_utils

  if jax.process_count() == 1:
    return problem
  failed = multihost_utils.process_allgather(np.array(problem is not None))
  if problem is None and failed.any():
    return f'process {failed.argmax()} failed; see its output'
  return problem


def barrier(name: str) -> None:
  """Waits until all processes of a run have called it with the same name.

  If a process ends before its call, the others are aborted after five minutes.
  """
  import jax
  from jax.experimental import multihost_utils

  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(name)


def broadcast(numbers: Sequence[int]) -> Sequence[int]:
  """Returns the integers that the first process passed."""
  import jax
  from jax.experimental import multihost_utils

  if jax.process_count() == 1:
    return numbers
  count = int(multihost_utils.broadcast_one_to_all(np.int32(len(numbers))))
  numbers = np.resize(np.array(numbers, np.int32), count)
  return multihost_utils.broadcast_one_to_all(numbers).tolist()


def first_line(error: BaseException) -> str:
  """Returns the message of an exception in one line of at most 250 characters.

  The middle of a longer line is left out.
  """
  text = str(error).strip() or type(error).__name__
  text = text.splitlines()[0]
  # The rest of tensorstore's messages is a JSON specification.
  for rest in (' [tensorstore_spec', ' See full TensorStore'):
    text = text.partition(rest)[0]
  return text if len(text) <= 250 else f'{text[:120]} ... {text[-120:]}'
