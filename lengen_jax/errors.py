"""Errors that a user can fix. The command line prints them as one message.

Each is a `ValueError`, so library users can catch them without these names.
A message names the value, the limit and the fix.
"""

from collections.abc import Iterable
import errno

# The fix where a bucket cannot be reached.
BUCKET_HINT = (
  'check that the bucket exists and that this machine has credentials for it '
  '(gcloud auth application-default login)'
)

# Statuses at the start of tensorstore's messages: transient errors, and missing
# permissions.
_RETRIED = ('ABORTED: ', 'DEADLINE_EXCEEDED: ', 'UNAVAILABLE: ')
_DENIED = ('PERMISSION_DENIED: ', 'UNAUTHENTICATED: ')
# Names of TensorFlow's transient errors.
_TRANSIENT = (
  'AbortedError',
  'DeadlineExceededError',
  'InternalError',
  'ResourceExhaustedError',
  'UnavailableError',
  'UnknownError',
)


class LengenError(ValueError):
  """Base class of errors that the caller can fix.

  Attributes:
    exit_status: exit status of the command. A crash exits with 1.
    of_all: whether all processes of a run raise the error together.
  """

  exit_status = 2
  of_all = False


class SpecError(LengenError):
  """A spec string names something unknown or has a wrong key or value."""


class CombinationError(LengenError):
  """An unsupported combination of encoding, position scheme or logit scale."""


class LengthError(LengenError):
  """A length or position beyond the range of an encoding or scheme."""


class ConfigError(LengenError):
  """A configuration or an argument that is invalid or not supported."""


class WorkdirError(LengenError):
  """A workdir of another run, or a file in it that is missing or unusable."""


class CheckpointError(LengenError):
  """A checkpoint that cannot be written or read."""


class FitError(LengenError):
  """A program that does not fit into device memory."""

  exit_status = 3


class DivergedError(LengenError):
  """Losses or gradients that are not finite, too many times in a row."""

  exit_status = 4
  of_all = True


class PreemptedError(LengenError):
  """Training was stopped by a signal after saving a checkpoint."""

  exit_status = 75
  of_all = True


class CorpusError(LengenError):
  """A corpus or vocabulary that is missing, damaged or too short."""


class RecordError(CorpusError):
  """A record, or the rest of a damaged file, that cannot be read."""


class SaveError(CheckpointError):
  """A checkpoint could not be written, possibly temporarily."""

  exit_status = 1


class StorageError(WorkdirError):
  """A disk, object store or service that fails, possibly temporarily."""

  exit_status = 1


class MetricError(LengenError):
  """Predictions, references or sums that cannot be scored."""


def one_of(
  kind: str,
  name: object,
  valid: Iterable[str | None],
  separator: str = ', ',
) -> str:
  """Returns a message for an unknown name of a kind, such as 'encoding'.

  The message lists the valid names, joined by the separator. If `valid`
  contains None, the list ends with 'None (leave it out)'.
  """
  import difflib

  valid = {*valid}
  names = sorted(one for one in valid if one is not None)
  close = difflib.get_close_matches(str(name), names, n=1)
  hint = f'; did you mean {close[0]!r}?' if close else ';'
  listed = separator.join(names)
  listed += f'{separator}or None (leave it out)' * (None in valid)
  return f'unknown {kind} {name!r}{hint} valid: {listed}'


def shown(value: object) -> str:
  """Returns the start of the representation of a value, in one line."""
  return f'{" ".join(repr(value).split()):.60}'


def again(error: BaseException) -> str:
  """Returns advice for an error that a retry may resolve, else ''.

  These are full disks and transient errors of an object store, which is used
  through TensorFlow or gcsfs, and through tensorstore for arrays.
  """
  kind = type(error)
  if getattr(error, 'errno', None) in (errno.ENOSPC, errno.EDQUOT):
    return 'free some space and run the same command again'
  if (
    (kind.__module__.startswith('tensorflow.') and kind.__name__ in _TRANSIENT)
    or kind.__module__.startswith(('gcsfs.', 'aiohttp.'))
    or str(error).startswith(_RETRIED)
  ):
    return 'run the same command again'
  return ''


def of_storage(error: BaseException) -> WorkdirError | None:
  """Returns the error to raise if storage refuses or fails; None otherwise."""
  if fix := again(error):
    return StorageError(f'{reason(error)}; {fix}')
  if str(error).startswith(_DENIED):
    hint = BUCKET_HINT if '://' in str(error) else 'change its permissions'
    return WorkdirError(f'{reason(error)}; {hint}')
  return None


def reason(error: BaseException) -> str:
  """Returns the first line of the message of an exception."""
  text = getattr(error, 'strerror', None) or str(error).strip()
  return text.splitlines()[0] if text else type(error).__name__
