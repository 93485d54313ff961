"""Settings of the tests that compile for TPUs."""

import os

import jax
import pytest


@pytest.fixture(scope='session', autouse=True)
def real_programs():
  """As users compile, whatever makes other tests fast; these run alone."""
  jax.config.update('jax_disable_most_optimizations', False)
  jax.config.update('jax_enable_compilation_cache', False)
  # libtpu aborts on flags that it does not support.
  os.environ.pop('XLA_FLAGS', None)
