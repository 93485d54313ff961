"""Settings of the tests that compile for TPUs."""

import jax
import pytest


@pytest.fixture(scope='module', autouse=True)
def real_programs():
  """As users compile, whatever makes other tests fast; these run apart."""
  names = ('jax_disable_most_optimizations', 'jax_enable_compilation_cache')
  before = {name: jax.config.values[name] for name in names}
  for name in names:
    jax.config.update(name, False)
  with pytest.MonkeyPatch.context() as patch:
    # libtpu aborts on flags that it does not support.
    patch.delenv('XLA_FLAGS', raising=False)
    yield
  for name, value in before.items():
    jax.config.update(name, value)
