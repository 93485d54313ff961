"""Groups of a model's parameters, by their paths.

Added parameters are those that a pretrained checkpoint may lack: encodings, the
options of attention in `OPTIONS`, and LoRA kernels. All others are the base.

  trained   all parameters; of a model with LoRA, the added ones.
  low       stored in bfloat16 with train.param_dtype='bfloat16': kernels and
            token tables of the base. Norms, biases and added parameters are
            small, or are read in float32, and stay float32.
"""

from collections.abc import Callable
from typing import Any

from flax import traverse_util
import jax
import jax.numpy as jnp

from lengen_jax.types import Params

# Modules and parameters of options of attention.
OPTIONS = {
  'attention_scale': 'logit scale',
  'positions': 'contextual positions',
  'sink_logits': 'sink logits',
  'gate': 'output gate',
  'query_norm': 'norm of queries',
  'key_norm': 'norm of keys',
}
LORA = ('lora_in', 'lora_out')

# Names from the root of the parameters to an array, layers stacked or not.
Path = tuple[str, ...]


def is_added(path: Path) -> bool:
  """Returns whether a pretrained checkpoint may lack an array."""
  in_encoding = any(name.startswith('encoding') for name in path)
  parents = zip(path, path[1:], strict=False)
  in_option = any(a == 'attention' and b in OPTIONS for a, b in parents)
  return in_encoding or in_option or path[-1] in LORA


def added(params: Params) -> Params:
  """Returns the added parameters."""
  return _select(params, is_added)


def trained(params: Params) -> Params:
  """Returns the parameters that training updates."""
  flat = traverse_util.flatten_dict(params)
  if not any(path[-1] in LORA for path in flat):
    return params
  return added(params)


def low(params: Params) -> Params:
  """Returns the parameters that bfloat16 can store.

  Routers of experts are float32: rounding may choose other experts.
  """

  def is_low(path: Path) -> bool:
    is_kernel = path[-1].endswith(('kernel', 'table'))
    return is_kernel and 'router' not in path and not is_added(path)

  return _select(params, is_low)


def rounded(params: Params) -> Params:
  """Returns parameters with those of `low` in bfloat16."""
  return merged(
    params, jax.tree.map(lambda x: x.astype(jnp.bfloat16), low(params))
  )


def merged(params: Params, part: Params) -> Params:
  """Returns parameters with the arrays of a part of them replaced."""
  flat = traverse_util.flatten_dict(params, keep_empty_nodes=True)
  return traverse_util.unflatten_dict(
    {**flat, **traverse_util.flatten_dict(part)}
  )


def _select(params: Params, keep: Callable[[Path], bool]) -> Any:
  flat = traverse_util.flatten_dict(params)
  return traverse_util.unflatten_dict(
    {path: leaf for path, leaf in flat.items() if keep(path)}
  )
