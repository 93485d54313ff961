"""TPUs by the names that they are ordered under: 'v4-256', 'v5e-256', ...

The number counts cores up to v5p, two to a chip, and chips from v5e on; so
v4-256 is 128 chips. From v4 on the two cores of a chip work as one device.

Sources: cloud.google.com/tpu/docs, 'Supported TPU configurations' and the page
of each generation. What programs may use of a chip's memory is what libtpu
0.0.51 says where they need more.
"""

import dataclasses

from lengen_jax import errors

# Edges of a slice, by its chips. Of a cube, one chip is none that can be had
# alone: it tells what one holds.
_SQUARES = {
  1: '1x1',
  4: '2x2',
  8: '2x4',
  16: '4x4',
  32: '4x8',
  64: '8x8',
  128: '8x16',
  256: '16x16',
}
_CUBES = {
  1: '1x1x1',
  4: '2x2x1',
  8: '2x2x2',
  16: '2x2x4',
  32: '2x4x4',
  64: '4x4x4',
  128: '4x4x8',
  256: '4x8x8',
  512: '8x8x8',
  1024: '8x8x16',
  2048: '8x16x16',
}


@dataclasses.dataclass(frozen=True)
class _Generation:
  """What TPUs of a generation have in common.

  Attributes:
    chip_gib: memory of a chip.
    device_gib: what programs may use of it, per device.
    topologies: chips to the edges of a slice.
    cores: of a chip.
    cores_counted: of a chip, by the number in a name.
    megacore: whether the cores of a chip are one device.
    one_host: chips that a host of its own may have at most.
  """

  chip_gib: int
  device_gib: float
  topologies: dict
  cores: int = 2
  cores_counted: int = 2
  megacore: bool = False
  one_host: int = 4


_GENERATIONS = {
  'v2': _Generation(
    chip_gib=16,
    device_gib=7.48,
    topologies={n: _SQUARES[n] for n in (4, 16, 64, 128, 256)},
  ),
  'v3': _Generation(
    chip_gib=32,
    device_gib=15.48,
    topologies={
      **{n: _SQUARES[n] for n in (4, 16, 32, 64, 128, 256)},
      512: '16x32',
      1024: '32x32',
    },
  ),
  'v4': _Generation(
    chip_gib=32, device_gib=30.75, topologies=_CUBES, megacore=True
  ),
  'v5p': _Generation(
    chip_gib=96,
    device_gib=95.73,
    topologies={**_CUBES, 4096: '16x16x16', 6144: '16x16x24'},
    megacore=True,
  ),
  'v5e': _Generation(
    chip_gib=16,
    device_gib=15.75,
    topologies=_SQUARES,
    cores=1,
    cores_counted=1,
    one_host=8,
  ),
  'v6e': _Generation(
    chip_gib=32,
    device_gib=31.24,
    topologies=_SQUARES,
    cores=1,
    cores_counted=1,
    one_host=8,
  ),
}
# Chips of a host of several.
_HOST_CHIPS = 4


@dataclasses.dataclass(frozen=True)
class Pod:
  """One or more slices of TPUs.

  Attributes:
    name: of a slice, as 'v4-256'.
    generation: as 'v4'.
    topology: edges of a slice in chips, as '4x4x8'.
    slices: how many.
    chips: of all slices.
    cores: of all slices.
    devices: of all slices, as jax counts them.
    hosts: of all slices.
    chip_gib: memory of a chip.
    device_gib: memory that programs may use of a device.
  """

  name: str
  generation: str
  topology: str
  slices: int
  chips: int
  cores: int
  devices: int
  hosts: int
  chip_gib: int
  device_gib: float

  @property
  def chip_config(self):
    """What libtpu calls one device per chip of two cores, or one per core."""
    return 'megacore' if _GENERATIONS[self.generation].megacore else 'default'

  def __str__(self):
    several = self.slices > 1
    counts = {'chip': self.chips, 'core': self.cores, 'host': self.hosts}
    counted = [f'{n:,} {what}{"s" * (n > 1)}' for what, n in counts.items()]
    return (
      f'{f"{self.slices} slices of " * several}{self.name}: '
      f'{", ".join(counted)}, topology {self.topology}{" each" * several}, '
      f'{self.chip_gib} GiB per chip'
    )


def get(name, slices=1):
  """The TPUs of a name.

  Args:
    name: as Google's accelerator types; v5e goes by 'v5litepod' too.
    slices: how many of them, joined by the data centre's network.

  Returns:
    A Pod.

  Raises:
    errors.ConfigError: there is no such name, or no slice.
  """
  if slices < 1:
    raise errors.ConfigError(f'--slices must be at least 1, got {slices}')
  known = names()
  asked = name.replace('v5litepod-', 'v5e-')
  if asked not in known:
    raise errors.ConfigError(errors.one_of('pod', name, known))
  version, chips = known[asked]
  generation = _GENERATIONS[version]
  devices = chips if generation.megacore else chips * generation.cores
  hosts = 1 if chips <= generation.one_host else chips // _HOST_CHIPS
  return Pod(
    name=asked,
    generation=version,
    topology=generation.topologies[chips],
    slices=slices,
    chips=slices * chips,
    cores=slices * chips * generation.cores,
    devices=slices * devices,
    hosts=slices * hosts,
    chip_gib=generation.chip_gib,
    device_gib=generation.device_gib,
  )


def names():
  """All names of a slice, each with its generation and chips."""
  return {
    f'{version}-{chips * generation.cores_counted}': (version, chips)
    for version, generation in _GENERATIONS.items()
    for chips in generation.topologies
  }


def larger(pod, times):
  """The smallest slice of a generation with `times` the devices, or None.

  Args:
    pod: a Pod of one slice.
    times: a number.
  """
  enough = [
    (chips, name)
    for name, (version, chips) in names().items()
    if version == pod.generation and chips >= times * pod.chips
  ]
  return min(enough)[1] if enough else None
