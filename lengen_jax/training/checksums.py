"""Checksums of sharded arrays, of files and of JSON."""

from collections.abc import Mapping
import hashlib
import json
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp

from lengen_jax.training import files


def of_tree(tree: Any) -> dict[str, dict[str, Any]]:
  """Returns shape, dtype and checksums of every array in a tree.

  The checksums are sums over elements, each hashed with its index in the whole
  array, and so do not depend on the sharding. They detect a change of one
  element with certainty, and other changes with probability 1 - 2^-64.

  Args:
    tree: tree of arrays; all processes of a run must call.

  Returns:
    {path: {'shape': list, 'dtype': name, 'sums': two numbers}}, JSON-able, with
    paths like 'params/layer_0/attention/query/kernel'.
  """
  # One program per shape compiles faster than one of all leaves. They run one
  # after the other: concurrent collectives can deadlock on CPUs.
  sums = [jax.device_get(_sums(leaf)) for leaf in jax.tree.leaves(tree)]
  return {
    path: {**described, 'sums': [int(total) for total in pair]}
    for (path, described), pair in zip(
      describe(tree).items(), sums, strict=True
    )
  }


def describe(tree: Any) -> dict[str, dict[str, Any]]:
  """Returns `of_tree` without sums; also accepts abstract arrays."""
  return {
    path_name(path): {
      'shape': list(leaf.shape),
      'dtype': str(leaf.dtype),
    }
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }


def path_name(path: Any) -> str:
  """Formats a path of `jax.tree_util` as 'params/layer_0/...'."""
  return jax.tree_util.keystr(path, simple=True, separator='/')


@jax.jit
def _sums(array: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns two sums mod 2^32 over the elements."""
  words = _words(array)
  index = jnp.uint32(0)
  for axis, size in enumerate(words.shape):
    index = index * jnp.uint32(size % 2**32) + lax.broadcasted_iota(
      jnp.uint32, words.shape, axis
    )
  # A bijection of words for each index, so that any single change is detected.
  return (
    jnp.sum(_murmur(words ^ _lowbias(index)), dtype=jnp.uint32),
    jnp.sum(_lowbias(words + _murmur(~index)), dtype=jnp.uint32),
  )


def _words(array: jax.Array) -> jax.Array:
  """Returns the bits of the elements as uint32; 64-bit elements get an axis."""
  if array.dtype == jnp.bool_:
    return array.astype(jnp.uint32)
  width = min(array.dtype.itemsize, 4)
  unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[width]
  return lax.bitcast_convert_type(array, unsigned).astype(jnp.uint32)


def _murmur(x: jax.Array) -> jax.Array:
  """Finalizer of MurmurHash3, a bijection of uint32."""
  x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
  x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
  return x ^ (x >> 16)


def _lowbias(x: jax.Array) -> jax.Array:
  """Wellons' lowbias32, another bijection of uint32."""
  x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
  x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
  return x ^ (x >> 16)


def of_files(folder: files.Path) -> dict[str, str]:
  """Returns {path relative to the folder: SHA-256} of all files in it."""
  sums: dict[str, str] = {}
  # Paths in object stores have no rglob.
  for entry in folder.iterdir():
    if entry.is_dir():
      within = of_files(entry).items()
      sums |= {f'{entry.name}/{name}': digest for name, digest in within}
    else:
      sums[entry.name] = hashlib.sha256(entry.read_bytes()).hexdigest()
  return sums


def seal(content: Any) -> dict[str, Any]:
  """Returns JSON-able content together with its checksum; see `unseal`."""
  content = json.loads(json.dumps(content))
  return {'sha256': _digest(content), 'content': content}


def unseal(sealed: Mapping[str, Any]) -> Any:
  """Returns the content of `seal`, with lists for tuples.

  Raises:
    ValueError: the content does not match its checksum.
  """
  if not isinstance(sealed, dict) or {*sealed} != {'sha256', 'content'}:
    raise ValueError('it is damaged')
  if sealed['sha256'] != _digest(sealed['content']):
    raise ValueError('it does not match its checksum')
  return sealed['content']


def _digest(content: Any) -> str:
  text = json.dumps(content, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()
