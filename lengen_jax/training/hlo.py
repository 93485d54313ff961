"""Collectives and large arrays of a compiled program, read from its HLO.

The text is HLO after all compiler passes. It contains the body of a loop once,
so all counts are per iteration.
"""

from collections.abc import Iterator
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
  found: dict[str, set[str]] = {kind: set() for kind in COLLECTIVES}
  for computation, name, _, op, line in _instructions(text):
    kind = op.removesuffix('-start')
    if kind not in found:
      continue
    if computation.startswith(_REDUCE_SCATTER):
      kind = 'reduce-scatter'
    # A collective that overlaps with computation has several instructions, but
    # permutations share a channel.
    channel = re.search(r'channel_id=(\d+)', line)
    shares = channel is None or kind == 'collective-permute'
    found[kind].add(f'{computation} {name}' if shares else channel[1])
  return {kind: len(channels) for kind, channels in found.items()}


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
