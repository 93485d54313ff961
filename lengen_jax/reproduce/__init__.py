"""The tables and figures of four papers, each a command."""

from lengen_jax import errors
from lengen_jax.reproduce import fire

EXPERIMENTS = {
  experiment.name: experiment for experiment in (*fire.EXPERIMENTS,)
}


def get(name):
  """An experiment by its name, 'PAPER/TABLE'.

  Raises:
    errors.ConfigError: there is none.
  """
  if name not in EXPERIMENTS:
    raise errors.ConfigError(errors.one_of('experiment', name, EXPERIMENTS))
  return EXPERIMENTS[name]
