"""Checksums: of arrays, however they lie on devices, of files and of JSON."""

import hashlib
import json

import jax
from jax import lax
import jax.numpy as jnp


def of_tree(tree):
  """Describes every leaf of a tree of arrays so that a change is seen.

  The sums are over elements, each mixed with its place in the whole array, and
  so do not depend on how arrays are split over devices. A change of one
  element always changes them, other changes all but 2^-64 of the time.

  Args:
    tree: of arrays; in a run of several processes all of them must call.

  Returns:
    {path: {'shape': list, 'dtype': name, 'sums': two numbers}}, JSON-able,
    paths like 'params/layer_0/attention/query/kernel'.
  """
  # A program per shape, as one of all leaves would take long to compile; and
  # one after the other, as CPUs may mix up those that communicate.
  sums = [jax.device_get(_sums(leaf)) for leaf in jax.tree.leaves(tree)]
  return {
    path: {**described, 'sums': [int(one) for one in pair]}
    for (path, described), pair in zip(
      describe(tree).items(), sums, strict=True
    )
  }


def describe(tree):
  """As `of_tree`, without sums and for abstract arrays too."""
  return {
    jax.tree_util.keystr(path, simple=True, separator='/'): {
      'shape': list(leaf.shape),
      'dtype': str(leaf.dtype),
    }
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }


@jax.jit
def _sums(array):
  """Two sums mod 2^32 over the elements; scalars, so whole on every device."""
  words = _words(array)
  index = jnp.uint32(0)
  for axis, size in enumerate(words.shape):
    index = index * jnp.uint32(size % 2**32) + lax.broadcasted_iota(
      jnp.uint32, words.shape, axis
    )
  # For each index a bijection of words, so that no single change is lost.
  return (
    jnp.sum(_murmur(words ^ _lowbias(index)), dtype=jnp.uint32),
    jnp.sum(_lowbias(words + _murmur(~index)), dtype=jnp.uint32),
  )


def _words(array):
  """The bits of the elements as uint32, with an axis more if they have 64."""
  if array.dtype == jnp.bool_:
    return array.astype(jnp.uint32)
  width = min(array.dtype.itemsize, 4)
  unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[width]
  return lax.bitcast_convert_type(array, unsigned).astype(jnp.uint32)


def _murmur(x):
  """The last steps of MurmurHash3: a bijection of uint32."""
  x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
  x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
  return x ^ (x >> 16)


def _lowbias(x):
  """Wellons' lowbias32: another bijection of uint32."""
  x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
  x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
  return x ^ (x >> 16)


def of_files(folder):
  """{path within the folder: SHA-256} of all files under it."""
  sums = {}
  # Not by rglob, which paths in a bucket do not have.
  for entry in folder.iterdir():
    if entry.is_dir():
      within = of_files(entry).items()
      sums |= {f'{entry.name}/{name}': digest for name, digest in within}
    else:
      sums[entry.name] = hashlib.sha256(entry.read_bytes()).hexdigest()
  return sums


def seal(content):
  """JSON-able content along with its own checksum; see `unseal`."""
  content = json.loads(json.dumps(content))
  return {'sha256': _digest(content), 'content': content}


def unseal(sealed):
  """What `seal` was given, tuples as lists.

  Raises:
    ValueError: it was changed.
  """
  if not isinstance(sealed, dict) or {*sealed} != {'sha256', 'content'}:
    raise ValueError('it is damaged')
  if sealed['sha256'] != _digest(sealed['content']):
    raise ValueError('it does not have its checksum')
  return sealed['content']


def _digest(content):
  text = json.dumps(content, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()
