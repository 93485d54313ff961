"""Tests `lengen_jax/training/checksums.py`."""

import jax
from jax.experimental import mesh_utils
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import ml_dtypes
import numpy as np
import pytest

from lengen_jax.training import checksums

DTYPES = [
  *(np.float32, np.int32, np.uint32, np.uint8, np.int8, np.int16, np.float16),
  *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn),
]


def sums(array):
  return checksums.of_tree({'a': array})['a']['sums']


def random_bits(dtype, shape=(5, 7)):
  """Elements of any bits, not-numbers too."""
  size = np.dtype(dtype).itemsize
  raw = np.random.default_rng(0).integers(0, 256, (*shape, size), np.uint8)
  return raw.view(dtype)[..., 0]


@pytest.mark.parametrize('dtype', DTYPES, ids=lambda d: np.dtype(d).name)
def test_every_bit_counts(dtype):
  array = random_bits(dtype)
  before = sums(array)
  for place in range(0, array.nbytes * 8, 13):
    changed = array.copy()
    changed.view(np.uint8).reshape(-1)[place // 8] ^= 1 << place % 8
    # Each of the two sums detects the change.
    assert all(a != b for a, b in zip(sums(changed), before, strict=True))


def test_bits_of_64_count():
  with jax.enable_x64(True):
    for dtype in (np.int64, np.float64):
      array = random_bits(dtype, (3,))
      before = sums(array)
      for place in range(0, array.nbytes * 8, 13):
        changed = array.copy()
        changed.view(np.uint8)[place // 8] ^= 1 << place % 8
        assert sums(changed) != before


def test_truth_values():
  assert sums(np.array([True, False])) != sums(np.array([False, True]))
  assert sums(np.array([True, False])) != sums(np.array([False, False]))


def test_places_count():
  array = np.arange(1.0, 13.0, dtype=np.float32).reshape(3, 4)
  others = [array[::-1], array[:, ::-1], array.T.reshape(3, 4), array * 0]
  others += [np.roll(array, 1), -array, array.reshape(4, 3)[[1, 0, 2, 3]]]
  found = [tuple(sums(np.reshape(one, (3, 4)))) for one in [array, *others]]
  assert len({*found}) == len(found)
  # Lost parts do, even if they are zeros.
  assert sums(np.zeros(3, np.float32)) != sums(np.zeros(4, np.float32))


def test_empty_and_scalar():
  assert sums(np.zeros((0, 3), np.float32)) == [0, 0]
  assert sums(np.int32(1)) != sums(np.int32(2))


def test_any_sharding():
  devices = mesh_utils.create_device_mesh((2,))
  mesh = Mesh(devices, ('x',))
  array = random_bits(np.float32, (6, 4))
  for spec in [(), ('x',), (None, 'x')]:
    placed = jax.device_put(array, NamedSharding(mesh, PartitionSpec(*spec)))
    assert sums(placed) == sums(array)


def test_paths_shapes_and_dtypes():
  tree = {'params': {'layer_0': [jnp.ones((2, 3))]}, 'step': jnp.int32(7)}
  assert checksums.describe(tree) == {
    'params/layer_0/0': {'shape': [2, 3], 'dtype': 'float32'},
    'step': {'shape': [], 'dtype': 'int32'},
  }
  found = checksums.of_tree(tree)
  for path, leaf in checksums.describe(jax.eval_shape(lambda: tree)).items():
    assert found[path] == {**leaf, 'sums': found[path]['sums']}


def test_sums_as_defined():
  """Against the definition: checkpoints on disk must stay valid."""
  mask = 2**32 - 1

  def murmur(x):
    x = (x ^ x >> 16) * 0x85EBCA6B & mask
    x = (x ^ x >> 13) * 0xC2B2AE35 & mask
    return x ^ x >> 16

  def lowbias(x):
    x = (x ^ x >> 16) * 0x7FEB352D & mask
    x = (x ^ x >> 15) * 0x846CA68B & mask
    return x ^ x >> 16

  array = random_bits(np.float32, (4, 3, 2))
  words = [int(word) for word in array.reshape(-1).view(np.uint32)]
  first = sum(murmur(w ^ lowbias(i)) for i, w in enumerate(words))
  second = sum(
    lowbias(w + murmur(~i & mask) & mask) for i, w in enumerate(words)
  )
  assert sums(array) == [first & mask, second & mask]


def test_seal():
  content = {'a': (1, 2.5), 'b': {'c': None, 'd': 'x'}}
  sealed = checksums.seal(content)
  assert checksums.unseal(sealed) == {'a': [1, 2.5], 'b': content['b']}
  sealed['content']['b']['d'] = 'y'
  with pytest.raises(ValueError):
    checksums.unseal(sealed)
  for damaged in (None, [], {}, {'content': content}, {'sha256': ''}):
    with pytest.raises(ValueError):
      checksums.unseal(damaged)


def test_files(tmp_path):
  (tmp_path / 'a').mkdir()
  (tmp_path / 'a' / 'b').write_text('x')
  found = checksums.of_files(tmp_path)
  assert [*found] == ['a/b'] and len(found['a/b']) == 64
  (tmp_path / 'a' / 'b').write_text('y')
  assert checksums.of_files(tmp_path) != found
