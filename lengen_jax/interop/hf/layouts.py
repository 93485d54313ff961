"""Conversion between parameters and the tensors of a checkpoint.

A tensor of a linear layer is `[outputs, inputs]`, and kernels here are
`[inputs..., outputs...]`. Some families join several kernels in one tensor.
"""

from collections.abc import Mapping
import dataclasses
import math
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Entry:
  """A tensor of a checkpoint, which holds one or several parameters.

  Attributes:
    paths: paths of the parameters.
    shapes: their shapes.
    layout: how the tensor holds them. 'joined': one after another along its
      outputs. 'by_head': joined for each head. 'experts': interleaved along the
      last axis, and not transposed.
  """

  paths: tuple[str, ...]
  shapes: tuple[tuple[int, ...], ...]
  layout: str = 'joined'

  @property
  def shape(self) -> tuple[int, ...]:
    """The shape of the tensor."""
    if self.layout == 'experts':
      *lead, last = self.shapes[0]
      return (*lead, last * len(self.paths))
    matrices = [self._matrix(i) for i in range(len(self.paths))]
    return (sum(shape[0] for shape in matrices), *matrices[0][1:])

  def split(self, tensor: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the parameters in a tensor, by path."""
    count = len(self.paths)
    if self.layout == 'experts':
      return {
        path: np.ascontiguousarray(tensor[..., i::count])
        for i, path in enumerate(self.paths)
      }
    if self.layout == 'by_head':
      parts = tensor.reshape(-1, count, *self._head(), *tensor.shape[1:])
      matrices = [parts[:, i].reshape(self._matrix(i)) for i in range(count)]
    else:
      sizes = [self._matrix(i)[0] for i in range(count)]
      matrices = np.split(tensor, np.cumsum(sizes)[:-1])
    return {
      path: np.ascontiguousarray(
        matrix.T if self._is_kernel(i) else matrix
      ).reshape(self.shapes[i])
      for i, (path, matrix) in enumerate(zip(self.paths, matrices, strict=True))
    }

  def join(self, params: Mapping[str, Any]) -> np.ndarray:
    """Returns the tensor of parameters, the inverse of `split`."""
    arrays = [np.asarray(params[path], np.float32) for path in self.paths]
    if self.layout == 'experts':
      return np.stack(arrays, -1).reshape(self.shape)
    matrices = []
    for i, array in enumerate(arrays):
      shape = self._matrix(i)
      matrices.append(
        array.reshape(shape[::-1]).T
        if self._is_kernel(i)
        else array.reshape(shape)
      )
    if self.layout == 'by_head':
      rest = matrices[0].shape[1:]
      by_head = [one.reshape(-1, 1, *self._head(), *rest) for one in matrices]
      return np.concatenate(by_head, 1).reshape(self.shape)
    return np.concatenate(matrices) if len(matrices) > 1 else matrices[0]

  def _is_kernel(self, i: int) -> bool:
    return self.paths[i].endswith('/kernel')

  def _head(self) -> tuple[int]:
    """Returns the size of one head in a joined tensor."""
    return (self.shapes[0][-1],)

  def _matrix(self, i: int) -> tuple[int, ...]:
    """Returns the shape of parameter i as a part of the tensor."""
    shape = self.shapes[i]
    if self._is_kernel(i):
      inputs = math.prod(shape[:-1]) if '/out/' in self.paths[i] else shape[0]
      return math.prod(shape) // inputs, inputs
    # Biases and norms of heads are flat; the embedding is not.
    return shape if self.paths[i].endswith('table') else (math.prod(shape),)
