"""Configuration of the mesh: how many devices along each axis."""

import dataclasses

from lengen_jax import errors
from lengen_jax import specs


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """Sizes of the axes that devices are put in.

  Attributes:
    data: splits the rows of a batch. -1 for all devices that are left; of
      those of a single process, for as many as divide the batch.
    fsdp: splits rows, and parameters too, which are gathered when used.
    tensor: splits heads, hidden units and vocabulary.
    sequence: splits the tokens of a row.
  """

  data: int = -1
  fsdp: int = 1
  tensor: int = 1
  sequence: int = 1

  def __post_init__(self):
    specs.check_types('mesh', self)
    for axis, size in dataclasses.asdict(self).items():
      if size < 1 and not (axis == 'data' and size == -1):
        rest = ', or -1 for all devices that are left' * (axis == 'data')
        raise errors.ConfigError(
          f'mesh.{axis} must be at least 1{rest}; got {size}'
        )

  def fits(self, devices):
    """Whether so many devices can be put in these axes."""
    fixed = self.fsdp * self.tensor * self.sequence
    if self.data == -1:
      return devices % fixed == 0
    return self.data * fixed <= devices

  def __str__(self):
    sizes = dataclasses.asdict(self).items()
    return ', '.join(f'mesh.{axis}={size}' for axis, size in sizes)
