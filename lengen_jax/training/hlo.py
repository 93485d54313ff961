"""Collectives and large arrays of a compiled program, read from its HLO.

The text is HLO after all compiler passes. It contains the body of a loop once,
so counts are per iteration. Bytes are per execution of the program.
"""

import collections
from collections.abc import Callable, Iterator
import functools
import math
import re

COLLECTIVES = (
  'all-gather',
  'all-reduce',
  'reduce-scatter',
  'all-to-all',
  'collective-permute',
)
# libtpu replaces reduce-scatter by a fusion of this name with an all-reduce.
_REDUCE_SCATTER = 'all-reduce-scatter'
_COMPUTATION = re.compile(r'(?:ENTRY )?%?([\w.-]+) \(.*\{$')
_INSTRUCTION = re.compile(r'\s+(?:ROOT )?%?([\w.-]+) = (.*?) ([\w-]+)\(')
_SHAPE = re.compile(r'([a-z]\w*)\[([\d,]*)\](?:\{([^}]*)\})?')
# The computations that an instruction calls: names in braces, or one name.
_CALLED = re.compile(
  r'\b(body|calls|to_apply|(?:branch|called|true|false)_computations?)='
  r'(?:\{([^}]*)\}|(%?[\w.-]+))'
)
# Operations whose results share the memory of their operands.
_ALIASES = {
  'bitcast',
  'call',
  'conditional',
  'get-tuple-element',
  'optimization-barrier',
  'parameter',
  'tuple',
  'while',
}
# Parts of an operation's name that only describe how it was traced.
_NOISE = {
  'body',
  'checkpoint',
  'closed_call',
  'cond',
  'rematted_computation',
  'while',
}


def collectives(text: str) -> dict[str, int]:
  """Counts the collectives of each kind in the text of a compiled program."""
  return {kind: len(sizes) for kind, sizes in _sizes(text).items()}


def sent(text: str) -> dict[str, int]:
  """Returns the bytes that each device sends in collectives of each kind.

  Ring algorithms are assumed. For an array of n bytes and g devices, a device
  sends n (g - 1) / g bytes in an all-gather, a reduce-scatter or an all-to-all,
  2 n (g - 1) / g in an all-reduce, and n in a collective-permute. A loop of
  unknown length counts as one iteration. All branches of a conditional count.
  """
  return {kind: sum(sizes) for kind, sizes in _sizes(text).items()}


def largest(text: str, count: int) -> list[tuple[int, str, str]]:
  """Returns at most `count` of the largest arrays that a program computes.

  One per shape and dtype: (bytes, 'dtype[shape]', operation), largest first.
  """
  fused = {*re.findall(r' fusion\(.*?calls=%?([\w.-]+)', text)}
  found: dict[tuple[str, str], tuple[int, str]] = {}
  for computation, name, shapes, op, line in _instructions(text):
    # The results of '-start' include its operands; those of '-done' do not.
    if computation in fused or op in _ALIASES or op.endswith('-start'):
      continue
    for dtype, dims, layout in _SHAPE.findall(shapes):
      # Memory spaces other than the default, HBM, are marked by 'S(n)'.
      if 'S(' not in layout:
        where = re.search(r'op_name="(.*?[^\\])"', line)
        found.setdefault(
          (dtype, dims),
          (_bytes(dtype, dims, layout), readable(where[1] if where else name)),
        )
  ranked = sorted(found.items(), key=lambda item: -item[1][0])
  return [
    (size, f'{dtype}[{dims}]', what)
    for (dtype, dims), (size, what) in ranked[:count]
  ]


def readable(name: str) -> str:
  """Removes the parts of an operation's name that only describe tracing."""
  parts = re.sub(r'\\', '', name).split('/')
  kept = [p for p in parts if p not in _NOISE and not p.startswith('jit(')]
  return '/'.join(kept) or name


def _sizes(text: str) -> dict[str, list[int]]:
  """Returns the bytes that each collective of a kind sends."""
  found: dict[str, dict[str, int]] = {kind: {} for kind in COLLECTIVES}
  executions = _executions(text)
  for computation, name, shapes, op, line in _instructions(text):
    kind = op.removesuffix('-start')
    if kind not in found:
      continue
    size = _sent(kind, shapes, op, line) * executions(computation)
    if computation.startswith(_REDUCE_SCATTER):
      # Its scattering half follows as a slice.
      kind, size = 'reduce-scatter', size // 2
    # A collective that overlaps with computation has several instructions, of
    # one channel and shape. Permutations share a channel.
    channel = re.search(r'channel_id=(\d+)', line)
    shares = channel is None or kind == 'collective-permute'
    arrays = [array[:2] for array in _SHAPE.findall(shapes)]
    key = f'{computation} {name}' if shares else f'{channel[1]} {arrays}'
    found[kind][key] = max(size, found[kind].get(key, 0))
  return {kind: [*sizes.values()] for kind, sizes in found.items()}


def _sent(kind: str, shapes: str, op: str, line: str) -> int:
  """Returns the bytes that a device sends in one collective."""
  arrays = [
    _bytes(dtype, dims, '') for dtype, dims, _ in _SHAPE.findall(shapes)
  ]
  if kind == 'collective-permute':
    # '-start' returns the operand, the result and two counters.
    return arrays[0]
  if kind == 'all-gather' and op.endswith('-start'):
    arrays = arrays[len(arrays) // 2 :]
  size, devices = sum(arrays), _group_size(line)
  if kind == 'reduce-scatter':
    size *= devices
  each = size * (devices - 1) // devices
  return 2 * each if kind == 'all-reduce' else each


def _group_size(line: str) -> int:
  """Returns the number of devices that a collective connects."""
  if match := re.search(r'replica_groups=\[\d+,(\d+)\]', line):
    return int(match[1])
  if match := re.search(r'replica_groups=\{\{([\d,]+)\}', line):
    return match[1].count(',') + 1
  # Sizes of the axes of the mesh, and the axes that a group spans.
  if match := re.search(r'replica_groups=mesh\[(.*?)\] \{(.*?)\}', line):
    sizes = dict(axis.split('=') for axis in match[1].split(','))
    return math.prod(int(sizes[axis]) for axis in match[2].split(','))
  return 1


def _executions(text: str) -> Callable[[str], int]:
  """Returns a function from a computation to the number of its executions.

  The condition of a loop of known length is `number < constant`.
  """
  calls: dict[str, list[tuple[str, str]]] = collections.defaultdict(list)
  constants: dict[str, list[str]] = collections.defaultdict(list)
  for computation, _, _, op, line in _instructions(text):
    if op == 'constant':
      constants[computation] += re.findall(r'constant\((\d+)\)', line)
    for name, braces, one in _CALLED.findall(line):
      for called in re.findall(r'[\w.-]+', braces or one):
        calls[called].append((computation, line if name == 'body' else ''))

  def trips(loop: str) -> int:
    condition = re.search(r'condition=%?([\w.-]+)', loop)
    bounds = constants[condition[1]] if condition else []
    return int(bounds[0]) if len(bounds) == 1 else 1

  @functools.cache
  def executions(computation: str) -> int:
    callers = calls[computation]
    return sum(executions(one) * trips(loop) for one, loop in callers) or 1

  return executions


def _instructions(text: str) -> Iterator[tuple[str, str, str, str, str]]:
  """Yields (computation, name, shapes, operation, line) per instruction."""
  computation = ''
  for line in text.splitlines():
    if header := _COMPUTATION.match(line):
      computation = header[1]
    elif instruction := _INSTRUCTION.match(line):
      name, shapes, operation = instruction.groups()
      yield computation, name, shapes, operation, line


def _bytes(dtype: str, dims: str, layout: str) -> int:
  """Returns the bytes of an array, including the padding of its tiles."""
  bits = re.search(r'\d+', dtype)
  width = 8 if dtype == 'pred' else int(bits[0]) if bits else 0
  sizes = [int(n) for n in dims.split(',') if n] or [1]
  order, _, tiles = layout.partition(':')
  # From the most major to the most minor axis.
  major = [sizes[int(n)] for n in reversed(order.split(',')) if n] or sizes
  match = re.search(r'T\(([\d,]+)\)', tiles)
  if match:
    tile = [int(n) for n in match[1].split(',')][-len(major) :]
    for axis, multiple in zip(range(-len(tile), 0), tile, strict=True):
      major[axis] = -(-major[axis] // multiple) * multiple
  return math.prod(major) * width // 8
