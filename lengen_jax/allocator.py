"""Settings of glibc's allocator that keep freed memory for reuse."""

import ctypes
import os

# Constants of malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


def reuse_memory() -> bool:
  """Lets the process reuse freed memory instead of returning it to the kernel.

  XLA's CPU client allocates the temporaries of each call anew. By default glibc
  returns large arrays to the kernel when they are freed, and the kernel clears
  every page that is accessed again. With these settings, arrays of up to 1 GiB
  come from one heap that keeps up to 2 GiB of freed memory. Resident memory can
  be 1.4 times as large.

  Call it before jax starts its threads. It does nothing if the C library is not
  glibc, if the environment variable LENGEN_ALLOCATOR is 'system', or if
  GLIBC_TUNABLES or a MALLOC_ variable configures the allocator.

  Returns:
    Whether the settings apply.
  """
  if 'CS_GNU_LIBC_VERSION' not in getattr(os, 'confstr_names', ()):
    return False
  configured = any(
    name == 'GLIBC_TUNABLES' or name.startswith('MALLOC_')
    for name in os.environ
  )
  if configured or os.environ.get('LENGEN_ALLOCATOR') == 'system':
    return False
  mallopt = ctypes.CDLL(None).mallopt
  # A second arena would not share its free memory, and its heaps are small.
  settings = (
    (_M_MMAP_THRESHOLD, 2**30),
    (_M_TRIM_THRESHOLD, 2**31 - 1),
    (_M_ARENA_MAX, 1),
  )
  return all([mallopt(*setting) for setting in settings])
