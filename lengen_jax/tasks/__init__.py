"""Tasks generated on the device: random inputs and their exact answers."""

from lengen_jax.tasks.base import Task
from lengen_jax.tasks.registry import create, names, register, TASKS

__all__ = ['TASKS', 'Task', 'create', 'names', 'register']
