"""The fifteen tasks of Delétang et al. (2023), by level of Chomsky's hierarchy.

Ruoss et al. (2023) use the same tasks. Where paper and code differ, these tasks
follow the code.
"""

from lengen_jax.tasks import base


class ChomskyTask(base.Task):
  """Base of the fifteen tasks."""

  family = 'chomsky'
  source = 'arXiv:2207.02098, arXiv:2305.16843'
