"""Which layers have full, sliding or chunked attention, and which rotate.

The functions read this from a config.json. Most families list the types as
layer_types in new files, and derive them from other fields in old ones. Does
not import jax.
"""

from lengen_jax.interop.hf.config_json import ConfigJson

FULL, SLIDING, CHUNKED = (
  *('full_attention', 'sliding_attention', 'chunked_attention'),
)


def all_full(config: ConfigJson) -> list[str]:
  """Returns the types if all layers have full attention."""
  return [FULL] * config['num_hidden_layers']


def all_sliding(config: ConfigJson) -> list[str]:
  """Returns the types if all layers have the window, if there is one."""
  return [SLIDING] * config['num_hidden_layers']


def sliding_by_default(config: ConfigJson) -> list[str]:
  """Returns layer_types; by default, all layers have the window."""
  return _listed(config, all_sliding(config))


def every_second(config: ConfigJson) -> list[str]:
  """Returns layer_types; by default, every second layer is full."""
  count = config['num_hidden_layers']
  return _listed(config, [(SLIDING, FULL)[i % 2] for i in range(count)])


def every_sixth(config: ConfigJson) -> list[str]:
  """Returns layer_types; by default, every sixth layer is full."""
  period = config.get('sliding_window_pattern') or 6
  count = range(1, config['num_hidden_layers'] + 1)
  return _listed(config, [FULL if i % period == 0 else SLIDING for i in count])


def after_max_window_layers(config: ConfigJson) -> list[str]:
  """Returns layer_types; by default, the first max_window_layers are full."""
  count = config['num_hidden_layers']
  key = 'max_window_layers'
  first = config[key] if key in config else 28
  if not config.get('use_sliding_window', False):
    return [FULL] * count
  return _listed(config, [FULL if i < first else SLIDING for i in range(count)])


def sliding_without_rope(config: ConfigJson) -> list[str]:
  """Returns layer_types; by default, layers that do not rotate are sliding."""
  window = (
    config.get('use_sliding_window', False) and 'sliding_window' in config
  )
  return _listed(
    config,
    [SLIDING if window and not one else FULL for one in rotates(config)],
  )


def chunked_with_rope(config: ConfigJson) -> list[str]:
  """Returns layer_types; by default, layers that rotate are chunked."""
  return _listed(config, [CHUNKED if one else FULL for one in rotates(config)])


def rotates(config: ConfigJson) -> list[bool]:
  """Returns whether each layer rotates; no_rope_layers is 1 where it does."""
  count = config['num_hidden_layers']
  interval = config.get('no_rope_layer_interval') or 4
  default = [(i + 1) % interval != 0 for i in range(count)]
  found = config.get('no_rope_layers') or default
  if len(found) != count:
    raise config.error(
      f'has {len(found)} no_rope_layers for num_hidden_layers={count}'
    )
  for one in found:
    if one not in (0, 1):
      raise config.error(f'has no_rope_layers with {one!r}; values are 0 and 1')
  return [bool(one) for one in found]


def _listed(config: ConfigJson, default: list[str]) -> list[str]:
  """Returns layer_types if config.json has it, else the default."""
  found = config.get('layer_types') or default
  if len(found) != config['num_hidden_layers']:
    raise config.error(
      f'has {len(found)} layer_types for num_hidden_layers='
      f'{config["num_hidden_layers"]}'
    )
  return found
