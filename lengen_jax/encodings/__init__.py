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
from lengen_jax.encodings.base import (
  BiasFn,
  ContentFn,
  Encoding,
  FromFunction,
  is_per_head,
)
from lengen_jax.encodings.checks import (
  check_contextual,
  check_extent,
  check_positions,
  check_scheme,
  check_width,
  kind,
)

__all__ = [
  'ENCODINGS',
  'BiasFn',
  'ContentFn',
  'Encoding',
  'FromFunction',
  'check_contextual',
  'check_extent',
  'check_positions',
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


def register(name: str, encoding: type[Encoding]) -> None:
  """Registers an Encoding class under a name for specs."""
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
  fixed = {'num_heads': num_heads, 'head_dim': head_dim, 'width': width}
  return specs.build('encoding', ENCODINGS, spec, **fixed, **module)


def create_layers(
  spec: str | Sequence[str], num_layers: int, **fixed: Any
) -> list[Encoding]:
  """Creates the encoding of each layer of a model.

  Args:
    spec: a spec, several joined by commas, or a sequence of specs; several are
      cycled over the layers ('rope, nope' alternates); see `specs.cycle`.
    num_layers: layers of the model.
    **fixed: further arguments of `create`.
  """
  cycle = [create(one, **fixed) for one in specs.cycle(spec)]
  if not cycle:
    raise errors.SpecError('empty encoding spec; use "nope" for no encoding')
  return [cycle[i % len(cycle)] for i in range(num_layers)]
