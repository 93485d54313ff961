"""Errors that a user can mend: the command line prints them as one message.

Every one is a `ValueError`, so that library users need not know these names.
A message names the value, the limit and the fix.
"""

from collections.abc import Iterable


class LengenError(ValueError):
  """Base of the errors that are the caller's to mend.

  Attributes:
    exit_status: of the command that it ends. 1 is that of a crash.
    of_all: whether all processes of a run raise it, together.
  """

  exit_status = 2
  of_all = False


class SpecError(LengenError):
  """A spec string names something unknown or has a wrong key or value."""


class CombinationError(LengenError):
  """An encoding, a scheme or a scale that do not go together."""


class LengthError(LengenError):
  """A length or position beyond what an encoding or a scheme can take."""


class ConfigError(LengenError):
  """A configuration that cannot be run."""


class WorkdirError(LengenError):
  """A workdir that belongs to another run or lacks what is asked of it."""


class CheckpointError(LengenError):
  """A checkpoint that cannot be written or read."""


class FitError(LengenError):
  """A program that the devices have not enough memory for."""

  exit_status = 3


class DivergedError(LengenError):
  """Losses or gradients that are not finite, too many times in a row."""

  exit_status = 4
  of_all = True


class PreemptedError(LengenError):
  """Training was told to stop, and saved what it had; it can go on."""

  exit_status = 75
  of_all = True


class CorpusError(LengenError):
  """Text that is missing or too short for what is asked of it."""


class SaveError(CheckpointError):
  """A checkpoint that could not be written, perhaps for a passing reason."""

  exit_status = 1


class MetricError(LengenError):
  """Predictions, references or sums that cannot be scored."""


def one_of(kind: str, name: object, valid: Iterable[str]) -> str:
  """Says that `name` is no `kind`, what it may have meant, and what is valid.

  Args:
    kind: what was looked up, for example 'encoding'.
    name: what was asked for.
    valid: the names there are.

  Returns:
    One line for a message.
  """
  import difflib

  valid = sorted(valid)
  close = difflib.get_close_matches(str(name), valid, n=1)
  hint = f'; did you mean {close[0]!r}?' if close else ';'
  return f'unknown {kind} {name!r}{hint} valid: {", ".join(valid)}'
