"""Position encodings: how a model uses the positions of its tokens."""

from collections.abc import Sequence
import numbers
from typing import Any

from lengen_jax import errors, specs
from lengen_jax.encodings import (
  absolute,
  alibi,
  bands,
  fire,
  kerple,
  linear,
  nope,
  pope,
  relative,
  rotary,
  sandwich,
  t5,
)
from lengen_jax.encodings.base import Encoding, FromFunction
from lengen_jax.encodings.checks import (
  check_contextual,
  check_extent,
  check_positions,
  check_roles,
  check_scheme,
  check_width,
  kind,
)
from lengen_jax.encodings.terms import (
  Band,
  BiasFn,
  ContentFn,
  is_per_head,
)

__all__ = [
  'ENCODINGS',
  'Band',
  'BiasFn',
  'ContentFn',
  'Encoding',
  'FromFunction',
  'check_contextual',
  'check_extent',
  'check_positions',
  'check_roles',
  'check_scheme',
  'check_width',
  'create',
  'create_layers',
  'is_per_head',
  'kind',
  'register',
]

ENCODINGS = {
  'nope': nope.Nope,
  'sinusoidal': absolute.Sinusoidal,
  'learned': absolute.Learned,
  'shaw': relative.Shaw,
  'transformer_xl': relative.TransformerXL,
  't5': t5.T5,
  'linear': linear.Linear,
  'alibi': alibi.Alibi,
  'kerple_log': kerple.KerpleLog,
  'kerple_power': kerple.KerplePower,
  'sandwich': sandwich.Sandwich,
  'fire': fire.Fire,
  'pope': pope.Pope,
  'rope': rotary.Rope,
  'ntk': rotary.Ntk,
  'yarn': rotary.Yarn,
  'llama3': rotary.Llama3,
  'longrope': rotary.Longrope,
  'rerope': bands.Rerope,
  'self_extend': bands.SelfExtend,
  'dual_chunk': bands.DualChunk,
  'lm_infinite': bands.LmInfinite,
}


# Methods for the whole range of pairs, and those that define them.
_IN_TILES = {
  'bias': 'tile_params and strip or tile',
  'content_bias': 'content_params and content_logits',
  'content_values': 'content_params and content_sums',
}


def register(name: str, encoding: type[Encoding]) -> None:
  """Registers an Encoding class under a name for specs.

  Raises:
    errors.SpecError: not an Encoding class, the name is taken or not an
      identifier, or the class overrides a method that models would not call.
  """
  for method, instead in _IN_TILES.items():
    of_base = getattr(Encoding, method)
    if getattr(encoding, method, None) not in (None, of_base):
      raise errors.SpecError(
        f'{encoding.__name__} overrides {method}, which attention does not '
        f'call; define {instead}'
      )
  embed = getattr(encoding, 'embed', Encoding.embed)
  if embed is not Encoding.embed and not getattr(encoding, 'embeds', False):
    raise errors.SpecError(
      f'{encoding.__name__} has a method embed, which is called only where '
      'embeds is True; set this class attribute'
    )
  specs.register('encoding', ENCODINGS, name, encoding, Encoding)


def create(
  spec: str,
  *,
  num_heads: int,
  head_dim: int,
  width: int | None = None,
  **module: Any,
) -> Encoding:
  """Creates an encoding from a spec.

  Args:
    spec: `name` or `name(key=value, ...)`; every encoding takes `shared`.
    num_heads: attention heads.
    head_dim: size of one head.
    width: width of the model, for encodings added to its input.
    **module: arguments of any linen module, such as `name` and `parent`.

  Raises:
    errors.SpecError: unknown name or key, or a value out of range.
    errors.ConfigError: a size that is not a positive integer.
  """
  sizes = num_heads, head_dim
  if not all(isinstance(n, numbers.Integral) and n >= 1 for n in sizes):
    raise errors.ConfigError(
      f'num_heads={num_heads!r} and head_dim={head_dim!r} must be whole numbers'
      ', at least 1'
    )
  if len(specs.parts(spec)) == 2:
    raise errors.SpecError(
      f'{spec!r} is two encodings, of which a model takes the first at its '
      'input and the second in attention; give one'
    )
  fixed = {'num_heads': num_heads, 'head_dim': head_dim, 'width': width}
  return specs.build('encoding', ENCODINGS, spec, **fixed, **module)


def create_layers(
  spec: str | Sequence[str], num_layers: int, **fixed: Any
) -> list[tuple[Encoding, ...]]:
  """Creates the encodings of each layer of a model.

  Args:
    spec: a spec, several joined by commas, or a sequence of specs; several are
      cycled over the layers ('rope, nope' alternates); see `specs.cycle`.
      `learned(max_position=64) + rope` is one encoding at the input of the
      model and one in attention.
    num_layers: layers of the model.
    **fixed: further arguments of `create`.

  Returns:
    The encodings of each layer: one, or one at the input and one in attention.

  Raises:
    errors.SpecError: there is no spec, or an invalid one.
    errors.CombinationError: two encodings act in the same place.
  """
  cycle = [_create_parts(one, **fixed) for one in specs.cycle(spec)]
  if not cycle:
    raise errors.SpecError('empty encoding spec; use "nope" for no encoding')
  return [cycle[i % len(cycle)] for i in range(num_layers)]


def _create_parts(spec: str, **fixed: Any) -> tuple[Encoding, ...]:
  found = tuple(create(part, **fixed) for part in specs.parts(spec))
  if len(found) == 2 and (not found[0].embeds or found[1].embeds):
    raise errors.CombinationError(
      f'{spec!r} must be an encoding at the input of the model, learned or '
      'sinusoidal, and one in attention: learned(max_position=64) + rope'
    )
  return found
