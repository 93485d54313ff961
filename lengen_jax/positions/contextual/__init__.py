"""Contextual position schemes, which compute positions from contents.

A contextual scheme is a module in each attention layer. Its positions replace
those of tokens, for any encoding that supports fractional positions.
"""

from collections.abc import Sequence
from typing import Any

from lengen_jax import specs
from lengen_jax.positions.contextual import forget, repo, selective
from lengen_jax.positions.contextual.base import Contextual

__all__ = ['CONTEXTUAL', 'Contextual', 'create', 'is_contextual', 'register']

CONTEXTUAL = {
  'none': Contextual,
  'forget': forget.Forget,
  'repo': repo.Repo,
  'selective': selective.Selective,
}
_KIND = 'contextual position scheme'


def register(name: str, scheme: type[Contextual]) -> None:
  """Registers a Contextual class under `name` for use in specs.

  Raises:
    errors.SpecError: not such a class, or the name is taken or not an
      identifier.
  """
  specs.register(_KIND, CONTEXTUAL, name, scheme, Contextual)


def create(
  spec: str, *, num_heads: int, width: int, **module: Any
) -> Contextual:
  """Creates a contextual scheme from `name` or `name(key=value, ...)`.

  Args:
    spec: the spec; 'none' is a scheme that does not compute positions.
    num_heads: query heads, H.
    width: size of the layer's input, E.
    **module: arguments of any linen module, such as `name` and `parent`.

  Raises:
    errors.SpecError: unknown name or key, or a value out of range.
  """
  fixed = {'num_heads': num_heads, 'width': width}
  return specs.build(_KIND, CONTEXTUAL, spec, **fixed, **module)


def is_contextual(spec: str | Sequence[str]) -> bool:
  """Returns whether a spec, or one of several, names a contextual scheme.

  A spec of two parts does not.
  """
  each = [specs.parts(one) for one in specs.cycle(spec)]
  names = {
    specs.parse(specs.imported(one))[0] for one, *rest in each if not rest
  }
  return not names.isdisjoint(CONTEXTUAL.keys() - {'none'})
