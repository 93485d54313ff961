"""What the processes of a run have to agree on, lest some wait for the rest."""

import jax
from jax.experimental import multihost_utils
import numpy as np

from lengen_jax import errors


def attempt(function):
  """Calls a function; all processes do.

  Args:
    function: of no arguments, without collective operations.

  Returns:
    (its result, None), or (None, problem) where it failed in any process.

  Raises:
    errors.LengenError: the function did.
  """
  try:
    result, problem = function(), None
  except errors.LengenError:
    raise
  except Exception as error:  # Whatever a library makes of a broken file.
    result, problem = None, first_line(error)
  problem = agreed(problem)
  return (None, problem) if problem is not None else (result, None)


def agreed(problem):
  """A line for this process's problem or another's; None if none has one."""
  if jax.process_count() == 1:
    return problem
  has_one = multihost_utils.process_allgather(np.array(problem is not None))
  if problem is None and has_one.any():
    return f'process {has_one.argmax()} has a problem'
  return problem


def of_first(numbers):
  """What the first process says that some whole numbers are."""
  if jax.process_count() == 1:
    return numbers
  count = int(multihost_utils.broadcast_one_to_all(np.int32(len(numbers))))
  numbers = np.resize(np.array(numbers, np.int32), count)
  return multihost_utils.broadcast_one_to_all(numbers).tolist()


def first_line(error):
  """An exception in one line, of which the middle may be left out."""
  text = str(error).strip() or type(error).__name__
  # What follows of tensorstore's messages is for programs.
  text = text.splitlines()[0].partition(' [tensorstore_spec')[0]
  return text if len(text) <= 250 else f'{text[:120]} ... {text[-120:]}'
