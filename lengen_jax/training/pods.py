"""TPU slices by accelerator type: 'v4-256', 'v5e-256', ...

The number counts cores up to v5p, two to a chip, and chips from v5e on; so
v4-256 has 128 chips. From v4 on the two cores of a chip are one device.

Sources: cloud.google.com/tpu/docs, 'Supported TPU configurations' and the page
of each generation. The memory available to programs is what libtpu 0.0.51
reports when a program does not fit.
"""

from collections.abc import Mapping
import dataclasses
import math

from lengen_jax import errors


def _by_chips(*topologies: str) -> dict[int, str]:
  """Returns {chips: edges of a slice}."""
  return {math.prod(map(int, t.split('x'))): t for t in topologies}


_SQUARES = _by_chips(
  *('1x1', '2x2', '2x4', '4x4', '4x8', '8x8', '8x16', '16x16')
)
# A single chip of v4 and v5p cannot be ordered. It is listed because programs
# can be compiled for it.
_CUBES = _by_chips(
  *('1x1x1', '2x2x1', '2x2x2', '2x2x4', '2x4x4', '4x4x4', '4x4x8', '4x8x8'),
  *('8x8x8', '8x8x16', '8x16x16'),
)


@dataclasses.dataclass(frozen=True)
class _Generation:
  """Properties of a TPU generation.

  Attributes:
    chip_gib: memory of a chip.
    device_gib: memory of a device that is available to programs.
    topologies: number of chips to the edges of a slice.
    cores: cores of a chip.
    cores_counted: cores of a chip that accelerator types count.
    megacore: whether the cores of a chip form one device.
    one_host: maximum number of chips of a slice with one host.
  """

  chip_gib: int
  device_gib: float
  topologies: Mapping[int, str]
  cores: int = 2
  cores_counted: int = 2
  megacore: bool = False
  one_host: int = 4


def _without(topologies: Mapping[int, str], *chips: int) -> dict[int, str]:
  return {n: edges for n, edges in topologies.items() if n not in chips}


_GENERATIONS = {
  'v2': _Generation(16, 7.48, _without(_SQUARES, 1, 8, 32)),
  'v3': _Generation(
    32,
    15.48,
    {**_without(_SQUARES, 1, 8), **_by_chips('16x32', '32x32')},
  ),
  'v4': _Generation(32, 30.75, _CUBES, megacore=True),
  'v5p': _Generation(
    96,
    95.73,
    {**_CUBES, **_by_chips('16x16x16', '16x16x24')},
    megacore=True,
  ),
  'v5e': _Generation(16, 15.75, _SQUARES, cores=1, cores_counted=1, one_host=8),
  'v6e': _Generation(32, 31.24, _SQUARES, cores=1, cores_counted=1, one_host=8),
}
# Chips per host of a slice with several hosts.
_HOST_CHIPS = 4


@dataclasses.dataclass(frozen=True)
class Pod:
  """One or more TPU slices. Counts are totals over all slices.

  Attributes:
    name: accelerator type of a slice, for example 'v4-256'.
    generation: for example 'v4'.
    topology: edges of a slice in chips, for example '4x4x8'.
    slices: number of slices.
    chips: number of chips.
    cores: number of cores.
    devices: number of JAX devices.
    hosts: number of hosts.
    chip_gib: memory of a chip.
    device_gib: memory of a device that is available to programs.
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
  def chip_config(self) -> str:
    """Name of libtpu for one device per chip or one per core."""
    return 'megacore' if _GENERATIONS[self.generation].megacore else 'default'

  def __str__(self) -> str:
    several = self.slices > 1
    counts = {'chip': self.chips, 'core': self.cores, 'host': self.hosts}
    counted = [f'{n:,} {what}{"s" * (n > 1)}' for what, n in counts.items()]
    return (
      f'{f"{self.slices} slices of " * several}{self.name}: '
      f'{", ".join(counted)}, topology {self.topology}{" each" * several}, '
      f'{self.chip_gib} GiB per chip'
    )


def get(name: str, slices: int = 1) -> Pod:
  """Returns the Pod of an accelerator type such as 'v4-256'.

  'v5litepod-' is accepted for 'v5e-'. Several slices are connected by the
  data-centre network.

  Raises:
    errors.ConfigError: the type is unknown, or `slices` is less than 1.
  """
  if slices < 1:
    raise errors.ConfigError(f'--slices must be at least 1, got {slices}')
  known = names()
  canonical = name.replace('v5litepod-', 'v5e-')
  if canonical not in known:
    raise errors.ConfigError(errors.one_of('pod', name, known))
  version, chips = known[canonical]
  generation = _GENERATIONS[version]
  devices = chips if generation.megacore else chips * generation.cores
  hosts = 1 if chips <= generation.one_host else chips // _HOST_CHIPS
  return Pod(
    name=canonical,
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


def names() -> dict[str, tuple[str, int]]:
  """Returns {accelerator type: (generation, chips)} of all known slices."""
  return {
    f'{version}-{chips * generation.cores_counted}': (version, chips)
    for version, generation in _GENERATIONS.items()
    for chips in generation.topologies
  }


def larger(pod: Pod, times: float) -> str | None:
  """Returns the smallest slice with `times` the chips of a single slice.

  Its generation is that of `pod`; None if no slice is large enough.
  """
  enough = [
    (chips, name)
    for name, (version, chips) in names().items()
    if version == pod.generation and chips >= times * pod.chips
  ]
  return min(enough)[1] if enough else None
