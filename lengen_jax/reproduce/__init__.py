"""The tables and figures of five papers, and a study, as commands."""

from lengen_jax import errors
from lengen_jax.reproduce import fire, randomized, study, su, warping, zhou
from lengen_jax.reproduce.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
  experiment.name: experiment
  for paper in (fire, warping, randomized, su, zhou, study)
  for experiment in paper.EXPERIMENTS
}


def get(name: str) -> Experiment:
  """Returns the experiment called 'PAPER/TABLE'.

  Raises:
    errors.ConfigError: unknown name.
  """
  if name not in EXPERIMENTS:
    raise errors.ConfigError(errors.one_of('experiment', name, EXPERIMENTS))
  return EXPERIMENTS[name]
