"""The tables and figures of four papers, each a command."""

from lengen_jax import errors
from lengen_jax.reproduce import fire
from lengen_jax.reproduce import randomized
from lengen_jax.reproduce import su
from lengen_jax.reproduce import warping

EXPERIMENTS = {
  experiment.name: experiment
  for paper in (fire, warping, randomized, su)
  for experiment in paper.EXPERIMENTS
}


def get(name):
  """An experiment by its name, 'PAPER/TABLE'.

  Raises:
    errors.ConfigError: there is none.
  """
  if name not in EXPERIMENTS:
    raise errors.ConfigError(errors.one_of('experiment', name, EXPERIMENTS))
  return EXPERIMENTS[name]
