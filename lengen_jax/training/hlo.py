"""Reading a compiled program's text: what devices exchange, what is large.

The text is HLO after all passes of the compiler. It holds a loop's body once,
however often it runs, and so counts here do.
"""

import math
import re

COLLECTIVES = (
  'all-gather',
  'all-reduce',
  'reduce-scatter',
  'all-to-all',
  'collective-permute',
)
# TPUs have no reduce-scatter: it is a fusion of this name, with an all-reduce.
_REDUCE_SCATTER = 'all-reduce-scatter'
_COMPUTATION = re.compile(r'(?:ENTRY )?%?([\w.-]+) \(.*\{$')
_INSTRUCTION = re.compile(r'\s+(?:ROOT )?%?([\w.-]+) = (.*?) ([\w-]+)\(')
_SHAPE = re.compile(r'([a-z]\w*)\[([\d,]*)\](?:\{([^}]*)\})?')
# Results that are memory of others.
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
# Parts of a name that say only how the program was made.
_NOISE = {
  'body',
  'checkpoint',
  'closed_call',
  'cond',
  'rematted_computation',
  'while',
}


def collectives(text):
  """How often each kind of collective is in a program, a dict.

  Args:
    text: of a compiled program.
  """
  found = {kind: set() for kind in COLLECTIVES}
  for computation, name, _, op, line in _instructions(text):
    kind = op.removesuffix('-start')
    if kind not in found:
      continue
    if computation.startswith(_REDUCE_SCATTER):
      kind = 'reduce-scatter'
    # Overlapped with computation, one is told in several parts.
    channel = re.search(r'channel_id=(\d+)', line)
    found[kind].add(channel[1] if channel else name)
  return {kind: len(channels) for kind, channels in found.items()}


def largest(text, count):
  """The largest arrays that a program makes, of each shape and dtype one.

  Args:
    text: of a compiled program.
    count: how many.

  Returns:
    List of (bytes, 'dtype[shape]', what it is), the largest first.
  """
  fused = {*re.findall(r' fusion\(.*?calls=%?([\w.-]+)', text)}
  found = {}
  for computation, name, shapes, op, line in _instructions(text):
    # What is started has its operands among its results; what is done has not.
    if computation in fused or op in _ALIASES or op.endswith('-start'):
      continue
    for dtype, dims, layout in _SHAPE.findall(shapes):
      # Memory space 0 is the large one, and goes unsaid.
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


def readable(name):
  """The name of an operation, without what says only how it was made."""
  parts = re.sub(r'\\', '', name).split('/')
  kept = [p for p in parts if p not in _NOISE and not p.startswith('jit(')]
  return '/'.join(kept) or name


def _instructions(text):
  """(computation, name, shapes, operation, line) of each instruction."""
  computation = ''
  for line in text.splitlines():
    if header := _COMPUTATION.match(line):
      computation = header[1]
    elif instruction := _INSTRUCTION.match(line):
      yield computation, *instruction.groups(), line


def _bytes(dtype, dims, layout):
  """Bytes of an array, with the padding of its tiles."""
  bits = re.search(r'\d+', dtype)
  bits = 8 if dtype == 'pred' else int(bits[0]) if bits else 0
  sizes = [int(n) for n in dims.split(',') if n] or [1]
  order, _, tiles = layout.partition(':')
  # From the axis whose entries are far apart to that of neighbours.
  major = [sizes[int(n)] for n in reversed(order.split(',')) if n] or sizes
  tile = re.search(r'T\(([\d,]+)\)', tiles)
  if tile:
    tile = [int(n) for n in tile[1].split(',')][-len(major) :]
    for axis, multiple in zip(range(-len(tile), 0), tile, strict=True):
      major[axis] = -(-major[axis] // multiple) * multiple
  return math.prod(major) * bits // 8
