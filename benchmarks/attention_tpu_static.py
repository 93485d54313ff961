"""Cost of a bias in attention kernels in the schedules of the TPU compiler.

Command: python -m benchmarks.attention_tpu_static
  (needs the extra `aot`; no TPU; about ten minutes)

This program runs no kernel. libtpu compiles each kernel ahead of time and
writes its final schedule, one line per bundle of instructions that are issued
together. The program counts the bundles of one tile of 512 queries and 512 keys
of a head, all visible, and reports ratios to the same kernels without a bias,
and of the forward kernel without a bias to JAX's flash attention. A bundle
takes about one cycle. The count excludes waiting for memory, for other units
and between programs, so it ranks programs but does not measure time. The rows
of the batch that share a tile of the bias are computed in a loop: the cost of a
tile is the loop body, and its share of the code around the loop. The number of
rows per loop depends on the chip's vector memory (rows_that_fit).
docs/kernels.md explains tiles, anchors and FIRE's threshold.

ALiBi represents all biases that depend only on distance: their kernels are the
same program with other inputs. 'FIRE' is the kernel for queries from 2048 on,
most of a long row. 'FIRE, early' is the kernel for queries from 1024 to 2048,
which have closer anchors; queries before 1024 have still closer anchors. The
count excludes the additional work of tiles that contain the threshold. With one
row per loop, a tile reuses half of the input of the previous tile's bias; the
count excludes the first tile of a block of queries, which computes both halves.
"""

import argparse
import json
import pathlib
import re
import tempfile

import jax
from jax.experimental.pallas.ops.tpu import flash_attention
import jax.numpy as jnp

from benchmarks import alternate, compile_matrix
from lengen_jax import attention, encodings
from lengen_jax.attention import visibility
from lengen_jax.attention.fused import anchors
from lengen_jax.attention.pallas_tpu import bias as biases
from lengen_jax.attention.pallas_tpu import plan as tpu_plans
from lengen_jax.training import ahead_of_time, pods, sharding
from lengen_jax.training import config as training_config

CHIPS = {'v4': 'v4-2', 'v5e': 'v5e-1', 'v5p': 'v5p-2', 'v6e': 'v6e-1'}
BLOCK = 512
LENGTH = 4 * BLOCK
# {name: (spec of the encoding, queries between two anchors of FIRE)}.
KINDS = {
  'none': ('nope', None),
  'ALiBi': ('alibi', None),
  'FIRE': ('fire', 512),
  'FIRE, early': ('fire', 256),
}
KERNELS = ('forward', 'query_gradient', 'key_gradient')
BATCHES = (1, 2, 4, 8)


def compile_kernels(chip, kind, head_dim, batch):
  """Compiles the gradients of attention for a chip."""
  spec, spacing = KINDS[kind]
  if spacing:
    anchors.query_ranges = lambda length, *_: [
      anchors.QueryRange('anchored', BLOCK, 0, length, spacing)
    ]
    # Only tiles that contain the threshold need this function.
    biases.add_weight_gradient = lambda *_: None
  # Only the first tile of a row of tiles needs this function.
  biases.put_near_half = lambda *_: None
  encoding = encodings.create(
    spec, num_heads=128 // head_dim, head_dim=head_dim
  )
  variables = jax.eval_shape(
    lambda: encoding.init(jax.random.key(0), method='bias_fn')
  )

  def loss(q, k, v, variables):
    y = attention.dot_product_attention(
      q,
      k,
      v,
      bias=encoding.apply(variables, method='bias_fn'),
      causal=False,
      bias_form='auto',
      implementation='pallas',
    )
    return y.astype(jnp.float32).sum()

  _compile(chip, jax.grad(loss, (0, 1, 2, 3)), head_dim, batch, variables)


def compile_peer(chip, head_dim):
  """Compiles the forward pass of JAX's own flash attention."""
  sizes = flash_attention.BlockSizes(BLOCK, BLOCK, BLOCK, 1)

  def forward(q, k, v):
    q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))
    return flash_attention.flash_attention(q, k, v, block_sizes=sizes)

  _compile(chip, forward, head_dim, 1)


def _compile(chip, function, head_dim, batch, *more):
  shape = (batch, LENGTH, 128 // head_dim, head_dim)
  x = jax.ShapeDtypeStruct(shape, jnp.bfloat16)
  layout = _layout(chip)
  one = layout.whole
  jitted = jax.jit(function, in_shardings=one, out_shardings=one)
  with layout.scope():
    jitted.lower(x, x, x, *more).compile()


def _layout(chip):
  return sharding.Layout.create(
    training_config.MeshConfig(),
    1,
    ahead_of_time.devices(pods.get(CHIPS[chip]))[:1],
  )


def schedules(*arguments):
  """Compiles in a new process; returns {kernel: lines of its schedule}."""
  with tempfile.TemporaryDirectory() as folder:
    flags = f'--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true'
    alternate.in_process(
      'attention_tpu_static', '--one', *arguments, LIBTPU_INIT_ARGS=flags
    )
    found = {}
    for path in pathlib.Path(folder).glob('*-final_bundles.txt'):
      named = re.search(
        r'(flash_attention|' + '|'.join(KERNELS) + ')', path.name
      )
      if named and 'schedule' not in path.name:
        found[named[0]] = path.read_text().splitlines()
    return found


def parts(lines):
  """Returns (bundles, whether in a loop) of each branch-free part."""
  found, count, in_loop = [], 0, False
  for line in lines:
    bundle = re.match(r'\s*(?:0x[0-9a-f]+|0)\s*(L\w|P\w|CT)?\s*:\s*(>*)', line)
    if not bundle:
      continue
    if bundle[1] and count:
      found.append((count, in_loop))
      count = 0
    if not count:
      in_loop = bundle[1] == 'LB' and len(bundle[2]) > 1
    count += 1
    if 'sbr.rel' in line:
      found.append((count, in_loop))
      count = 0
  return found


class Schedule:
  """A kernel's schedule; some of its parts run several times per program.

  Attributes:
    body: bundles of the loop over rows; 0 if there is one row.
    loops: bundles of the bodies of all other loops.
    rest: bundles that run once.
  """

  def __init__(self, lines, batch):
    found = parts(lines)
    loops = sorted((n for n, in_loop in found if in_loop), reverse=True)
    self.body = loops.pop(0) if batch > 1 else 0
    self.loops = loops
    self.rest = sum(n for n, in_loop in found if not in_loop)

  def around(self, none, pieces):
    """Returns bundles around the loop over rows, minus those of `none`."""
    own = list(self.loops)
    for same in none.loops:
      nearest = min(own, key=lambda n: abs(n - same), default=None)
      if nearest is not None:
        own.remove(nearest)
    return self.rest - none.rest + pieces * sum(own)


def measure(chip, head_dim, kinds):
  """Returns bundles per tile and head, by kind, kernel and number of rows."""
  pieces = {kind: 1 for kind in kinds} | {'FIRE, early': 2}
  kernels_of = {}
  for kind in kinds:
    for batch in (1, 8):
      print(f'{chip}, heads of {head_dim}: {kind}, batch {batch}', flush=True)
      compiled = schedules(chip, kind, head_dim, batch)
      kernels_of[kind, batch] = {
        name: Schedule(lines, batch) for name, lines in compiled.items()
      }
  heads = 128 // head_dim
  found = {}
  for kind in kinds:
    for name in KERNELS:
      none, none_alone, own, alone = (
        kernels_of[one, batch][name]
        for one in ('none', kind)
        for batch in (8, 1)
      )
      around = own.around(none, pieces[kind])
      bundles = {n: own.body + around / n for n in BATCHES if n > 1}
      # Without a loop over rows, `rest` includes the computation of the row.
      bundles[1] = none.body + alone.around(none_alone, pieces[kind])
      found.setdefault(kind, {})[name] = {
        str(n): round(bundles[n] / heads) for n in BATCHES
      }
  return found


def ratios(found, fits):
  """Returns ratios of bundles with and without a bias: forward, all kernels.

  Keys are numbers of rows that share a tile. 'fits' uses the largest number of
  rows that fits the chip's vector memory, of a batch of 8, in each kernel.
  """
  result = {}
  for kind, kernels in found.items():
    of_kind = result[kind] = {}
    for what, names in (('forward', KERNELS[:1]), ('all', KERNELS)):
      rows = {str(n): dict.fromkeys(names, n) for n in BATCHES} | {'fits': fits}
      of_kind[what] = {
        label: round(
          sum(kernels[name][str(of_kernel[name])] for name in names)
          / sum(found['none'][name][str(of_kernel[name])] for name in names),
          3,
        )
        for label, of_kernel in rows.items()
      }
  return result


def rows_that_fit(chip, head_dim):
  """Returns how many rows of a batch of 8 fit into memory in each kernel."""
  plan = tpu_plans.Plan(
    form='anchored',
    block=BLOCK,
    first=0,
    blocks_q=LENGTH // BLOCK,
    blocks_k=LENGTH // BLOCK,
    head_dim=head_dim,
    itemsize=2,
    mask=visibility.Mask(causal=True),
    scale=1.0,
    lowest=-1,
    spacing=BLOCK,
    two_sided=False,
    shared_positions=True,
    interpret=False,
  )
  needs = tpu_plans.FORWARD, tpu_plans.QUERIES, tpu_plans.KEYS
  with _layout(chip).scope():
    return {
      kernel: tpu_plans.with_rows(plan, of_kernel, 8).rows
      for kernel, of_kernel in zip(KERNELS, needs, strict=True)
    }


def peer(chip, head_dim):
  """Returns the bundles of the largest part of JAX's flash attention."""
  (lines,) = schedules(chip, 'peer', head_dim, 1).values()
  return max(n for n, _ in parts(lines))


def main():
  parser = alternate.parser(__doc__)
  parser.add_argument(
    'chips', nargs='*', help=f'of {[*CHIPS]}; v4 and v5e if none is named'
  )
  parser.add_argument('--one', nargs=4, help=argparse.SUPPRESS)
  arguments = parser.parse_args()
  if arguments.one:
    chip, kind, head_dim, batch = arguments.one
    if kind == 'peer':
      compile_peer(chip, int(head_dim))
    else:
      compile_kernels(chip, kind, int(head_dim), int(batch))
    return
  chips = alternate.chosen('chip', arguments.chips or ('v4', 'v5e'), CHIPS)
  head_dims, kinds = (64, 128), KINDS
  if arguments.small:
    chips, head_dims, kinds = ('v5e',), (64,), ('none', 'ALiBi')
  for chip in chips:
    for head_dim in head_dims:
      bundles = measure(chip, head_dim, kinds)
      fits = rows_that_fit(chip, head_dim)
      found = ratios(bundles, fits)
      print(json.dumps(found, indent=1), flush=True)
      if arguments.small:
        continue
      flash = peer(chip, head_dim)
      cell = {
        'ratios': found,
        'forward_to_jax_flash_attention': round(
          bundles['none']['forward']['1'] / flash, 3
        ),
        'bundles': bundles,
        'jax_flash_attention_forward': flash,
        'rows_that_fit': fits,
        'tile': [BLOCK, BLOCK],
        'versions': compile_matrix.versions(),
      }
      name = f'{chip}, heads of {head_dim}'
      alternate.write_cell('attention_tpu_static', name, cell)


if __name__ == '__main__':
  main()
