"""The menu of encodings: name to class, and building one from a spec."""

from collections.abc import Sequence
import numbers
from typing import Any

from lengen_jax import errors
from lengen_jax import specs
from lengen_jax.encodings import absolute
from lengen_jax.encodings import alibi
from lengen_jax.encodings import base
from lengen_jax.encodings import fire
from lengen_jax.encodings import kerple
from lengen_jax.encodings import nope
from lengen_jax.encodings import relative
from lengen_jax.encodings import rotary
from lengen_jax.encodings import sandwich
from lengen_jax.encodings import t5

ENCODINGS = {
  'nope': nope.Nope,
  'sinusoidal': absolute.Sinusoidal,
  'learned': absolute.Learned,
  'shaw': relative.Shaw,
  'transformer_xl': relative.TransformerXL,
  't5': t5.T5,
  'alibi': alibi.Alibi,
  'kerple_log': kerple.KerpleLog,
  'kerple_power': kerple.KerplePower,
  'sandwich': sandwich.Sandwich,
  'fire': fire.Fire,
  'rope': rotary.Rope,
  'ntk': rotary.Ntk,
  'yarn': rotary.Yarn,
  'llama3': rotary.Llama3,
  'longrope': rotary.Longrope,
}


def register(name: str, encoding: type[base.Encoding]) -> None:
  """Adds an Encoding class under `name`, so that specs can name it."""
  if not (isinstance(encoding, type) and issubclass(encoding, base.Encoding)):
    raise errors.SpecError(
      f'{encoding!r} is no class derived from encodings.Encoding'
    )
  specs.register('encoding', ENCODINGS, name, encoding)


def create(
  spec: str,
  *,
  num_heads: int,
  head_dim: int,
  width: int | None = None,
  **module: Any,
) -> base.Encoding:
  """Creates an encoding from a spec.

  Args:
    spec: `name` or `name(key=value, ...)`; every encoding takes `shared`.
    num_heads: attention heads.
    head_dim: size of one head.
    width: width of the model, for encodings added to its input.
    **module: `name` and `parent`, as any linen module takes them.

  Returns:
    An Encoding.

  Raises:
    errors.SpecError: unknown name or key, or a value out of range.
  """
  sizes = num_heads, head_dim
  if not all(isinstance(n, numbers.Integral) and n >= 1 for n in sizes):
    raise errors.ConfigError(
      f'num_heads={num_heads!r} and head_dim={head_dim!r} must be whole numbers'
      ', at least 1'
    )
  return specs.build(
    'encoding',
    ENCODINGS,
    spec,
    num_heads=num_heads,
    head_dim=head_dim,
    width=width,
    **module,
  )


def create_layers(
  spec: str | Sequence[str], num_layers: int, **fixed: Any
) -> list[base.Encoding]:
  """Creates the encoding of each layer of a model.

  Args:
    spec: a spec, several joined by commas, or a tuple of specs; several are
      cycled over the layers ('rope, nope' alternates).
    num_layers: layers of the model.
    **fixed: passed to `create`.

  Returns:
    list of `num_layers` encodings; equal layers hold equal encodings.
  """
  if isinstance(spec, str):
    spec = specs.split(spec)
  if not spec:
    raise errors.SpecError('empty encoding spec; "nope" is the one for none')
  cycle = [create(one, **fixed) for one in spec]
  return [cycle[i % len(cycle)] for i in range(num_layers)]
