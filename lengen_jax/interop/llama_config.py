"""What the config.json of a Llama says, as fields of a ModelConfig; no jax.

What our model computes otherwise than transformers is refused by name.
"""

import json
import math
import pathlib

from lengen_jax import errors

_FILE = 'config.json'
# Of those that are asked for most, what our model lacks.
_LACKING = {
  'Qwen2ForCausalLM': 'biases of queries, keys and values',
  'Qwen3ForCausalLM': 'norms of queries and keys',
  'GPTNeoXForCausalLM': 'parallel residuals and biases in attention',
  'Phi3ForCausalLM': 'joined kernels',
  'GemmaForCausalLM': 'norms with 1 added to their scale',
}
_TAKEN = ('LlamaForCausalLM', 'MistralForCausalLM')
# Their name to our spec, and our keys to theirs.
_KINDS = {
  'default': ('rope', {}),
  'linear': ('rope', {'scale': 'factor'}),
  'dynamic': ('ntk', {'scale': 'factor'}),
  'llama3': (
    'llama3',
    {
      'scale': 'factor',
      'low_freq': 'low_freq_factor',
      'high_freq': 'high_freq_factor',
    },
  ),
  'yarn': ('yarn', {'scale': 'factor'}),
  'longrope': (
    'longrope',
    {
      'scale': 'factor',
      'short_factors': 'short_factor',
      'long_factors': 'long_factor',
    },
  ),
}
# What fields are, where they are there at all.
_COUNTS = (
  'vocab_size',
  'hidden_size',
  'intermediate_size',
  'num_hidden_layers',
  'num_attention_heads',
  'num_key_value_heads',
  'head_dim',
  'sliding_window',
  'max_position_embeddings',
  'original_max_position_embeddings',
)
_NUMBERS = (
  'rms_norm_eps',
  'rope_theta',
  'factor',
  'low_freq_factor',
  'high_freq_factor',
  'beta_fast',
  'beta_slow',
)
_FACTORS = ('short_factor', 'long_factor')
_OBJECTS = ('rope_parameters', 'rope_scaling')
_TEXTS = ('rope_type', 'type')


def is_checkpoint(folder):
  """Whether a folder has the config.json of a transformers model."""
  try:
    found = json.loads((pathlib.Path(folder) / _FILE).read_text())
  except (OSError, ValueError):
    return False
  return isinstance(found, dict) and bool(
    {'architectures', 'model_type'} & {*found}
  )


def model_fields(folder):
  """The fields of a checkpoint's ModelConfig that are not default, a dict.

  Args:
    folder: of the checkpoint.

  Raises:
    errors.CheckpointError: there is no config.json, or it is of a model that
      ours is not exactly.
  """
  found = _Config(folder)
  names = found.get('architectures') or ['unknown']
  if not isinstance(names, list):
    raise found.error(f'has architectures={names!r}; it takes a list of names')
  name = ' and '.join(map(str, names))
  if name not in _TAKEN:
    lacks = f', which has {_LACKING[name]}' if name in _LACKING else ''
    raise found.error(
      f'is of architecture {name}{lacks}; what can be loaded is '
      f'{" and ".join(_TAKEN)}'
    )
  for key, wanted in (
    ('hidden_act', 'silu'),
    ('attention_bias', False),
    ('mlp_bias', False),
    ('quantization_config', None),
  ):
    if found.get(key, wanted) != wanted:
      raise found.error(
        f'has {key}={found.get(key)!r}; only {wanted!r} can be loaded'
      )
  window = None
  if name == 'MistralForCausalLM':
    window = found.get('sliding_window', 4096)
  width, heads = found['hidden_size'], found['num_attention_heads']
  key_heads = found.get('num_key_value_heads') or heads
  return dict(
    vocab_size=found['vocab_size'],
    num_layers=found['num_hidden_layers'],
    num_heads=heads,
    head_dim=found.get('head_dim') or width // heads,
    key_heads=None if key_heads == heads else key_heads,
    width=width,
    mlp_width=found['intermediate_size'],
    encoding=_encoding(found),
    tied_embedding=bool(found.get('tie_word_embeddings', False)),
    scaled_embedding=False,
    norm='rms',
    norm_epsilon=found.get('rms_norm_eps', 1e-6),
    activation='swiglu',
    window=window,
  )


def trained_length(folder):
  """Tokens that a checkpoint was made for: its max_position_embeddings."""
  return _Config(folder)['max_position_embeddings']


class _Config:
  """config.json, whose errors name it."""

  def __init__(self, folder):
    self._path = pathlib.Path(folder).expanduser() / _FILE
    try:
      self._found = json.loads(self._path.read_text())
      self.get = self._found.get
    except OSError as error:
      raise self.error(f'cannot be read: {error.strerror}') from None
    except (ValueError, AttributeError):
      raise self.error('is broken: it is no JSON object') from None
    self.check(self._found)

  def __getitem__(self, key):
    if self._found.get(key) is None:
      raise self.error(f'lacks {key}')
    return self._found[key]

  def check(self, fields):
    """Raises unless fields are of their kinds."""
    for keys, is_one, kind in (
      (_COUNTS, _is_count, 'a whole number from 1 on'),
      (_NUMBERS, _is_number, 'a number above 0'),
      (_FACTORS, _are_numbers, 'a list of numbers above 0'),
      (_OBJECTS, lambda value: isinstance(value, dict), 'an object'),
      (_TEXTS, lambda value: isinstance(value, str), 'a text'),
    ):
      for key in keys:
        value = fields.get(key)
        if value is not None and not is_one(value):
          raise self.error(f'has {key}={value!r}; it takes {kind}')

  def error(self, text):
    return errors.CheckpointError(f'{self._path} {text}')


def _is_number(value):
  number = isinstance(value, int | float) and not isinstance(value, bool)
  return number and 0 < value < math.inf


def _is_count(value):
  return _is_number(value) and isinstance(value, int)


def _are_numbers(value):
  return isinstance(value, list) and all(map(_is_number, value))


def _encoding(config):
  """The spec of our encoding that turns by the same angles."""
  # Today's rope_parameters, or yesterday's rope_theta and rope_scaling.
  found = dict(
    config.get('rope_parameters') or config.get('rope_scaling') or {}
  )
  if any(isinstance(value, dict) for value in found.values()):
    raise config.error('has other rope_parameters for other layers')
  config.check(found)
  kind = found.pop('rope_type', None) or found.get('type') or 'default'
  found.pop('type', None)
  if kind not in _KINDS:
    raise config.error(
      f'has rope_type={kind!r}; what can be loaded is {", ".join(_KINDS)}'
    )
  base = found.pop('rope_theta', None) or config.get('rope_theta') or 10000.0
  longest = config['max_position_embeddings']
  original = (
    config.get('original_max_position_embeddings')
    or found.pop('original_max_position_embeddings', None)
    or longest
  )
  found.pop('original_max_position_embeddings', None)
  if kind in ('yarn', 'longrope') and not found.get('factor'):
    found['factor'] = longest / original

  def take(key):
    value = found.pop(key, None)
    if value is None:
      raise config.error(f'has rope_type={kind!r} without {key}')
    return value

  spec, keys = _KINDS[kind]
  values = {'base': float(base)}
  values |= {ours: take(key) for ours, key in keys.items()}
  if kind == 'dynamic':
    values |= {'train_length': longest, 'dynamic': True}
  elif kind in ('llama3', 'yarn', 'longrope'):
    values['train_length'] = original
  if kind == 'yarn':
    for key, default in (('beta_fast', 32), ('beta_slow', 1)):
      values[key] = found.pop(key, None) or default
  _check_rest(config, kind, found, values)
  values = {
    key: tuple(value) if isinstance(value, list) else value
    for key, value in values.items()
  }
  return f'{spec}({", ".join(f"{k}={v!r}" for k, v in values.items())})'


def _check_rest(config, kind, rest, values):
  """Raises on what is left of their parameters and makes other angles."""
  harmless = {'partial_rotary_factor': 1.0}
  if kind == 'default':
    harmless['factor'] = 1.0
  if kind == 'yarn':
    harmless |= {
      'attention_factor': 0.1 * math.log(values['scale']) + 1,
      'truncate': True,
      # A word of old configs, which nothing reads.
      'finetuned': rest.get('finetuned'),
    }
  if kind == 'longrope':
    growth = math.log(values['scale']) / math.log(values['train_length'])
    harmless['attention_factor'] = math.sqrt(1 + growth)
  for key, value in rest.items():
    if value is None:
      continue
    wanted = harmless.get(key)
    same = value == wanted
    if isinstance(wanted, float) and isinstance(value, int | float):
      same = math.isclose(value, wanted, rel_tol=1e-6)
    if not same:
      raise config.error(
        f'has {key}={value!r} with rope_type={kind!r}, which ours lacks'
      )
