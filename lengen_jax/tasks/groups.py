"""Word problems of groups: the product of all elements up to each token.

Source: Merrill et al. (2024), arXiv:2404.08819. There, a token that starts the
sequence precedes the elements and is scored.
"""

import functools
import itertools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax.tasks import base
from lengen_jax.tasks.base import Length


@functools.cache
def permutations(size: int, even: bool) -> np.ndarray:
  """Returns the table of a group of permutations, int32 `[g, g]`.

  Elements are in lexicographic order. Entry (a, b) is a * b, which applies b
  first and then a.
  """
  elements = np.array([*itertools.permutations(range(size))])
  if even:
    i, j = np.triu_indices(size, 1)
    swaps = np.sum(elements[:, i] > elements[:, j], 1)
    elements = elements[swaps % 2 == 0]
  code = size ** np.arange(size)[::-1]
  products = elements[:, elements] @ code
  return np.searchsorted(elements @ code, products).astype(np.int32)


class WordProblem(base.Task):
  """Base of the word problems: uniform elements of a group.

  The target at each token is the product of the elements up to it, in order.
  Token 0 is the identity.
  """

  family = 'synthetic'
  source = 'arXiv:2404.08819'
  tags = True
  # Number of elements.
  order: ClassVar[int]

  @property
  def vocab_in(self) -> int:
    return self.order

  vocab_out = vocab_in

  @property
  def chance(self) -> float:
    return 1 / self.order


class S5(WordProblem):
  """The permutations of five elements, in lexicographic order."""

  formula = 'permutations of 5: x_1 * ... * x_t at each t'
  order = 120
  even = False

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    table = jnp.asarray(permutations(5, self.even))
    return jax.lax.associative_scan(lambda a, b: table[a, b], x)


class A5(S5):
  """The even permutations of five elements, in lexicographic order."""

  formula = 'even permutations of 5: x_1 * ... * x_t at each t'
  order = 60
  even = True


class Z60(WordProblem):
  """Addition modulo 60."""

  formula = 'x_1 + ... + x_t mod 60 at each t'
  order = 60

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    return jnp.cumsum(x) % self.order
