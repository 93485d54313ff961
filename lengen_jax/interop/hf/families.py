"""The supported architectures of transformers, in `FAMILIES`.

Fields that an entry omits are those of Llama. Does not import jax.
"""

import os
from typing import Any

from lengen_jax.interop.hf import config_json, extras, layer_types, names
from lengen_jax.interop.hf.config_json import ConfigJson
from lengen_jax.interop.hf.family import Family, Key

_GATED = {'silu': 'swiglu', 'gelu_pytorch_tanh': 'geglu'}
_PLAIN = {
  'gelu': 'gelu_exact',
  'gelu_pytorch_tanh': 'gelu',
  'gelu_new': 'gelu',
  'gelu_fast': 'gelu',
  'relu': 'relu',
}
_BIAS = {True: 'all', False: None}
_TIED = Key('tie_word_embeddings', default=False)
_ALWAYS_TIED = Key('tie_word_embeddings', default=True)
_ACTIVATION = Key('hidden_act', 'silu', _GATED)
_BIASES = Key('attention_bias', False, _BIAS)
_MLP_BIAS = Key('mlp_bias', default=False)
_GEMMA = {
  'norm': 'rms_zero_centered',
  'norm_placement': 'both',
  'scaled_embedding': True,
}
_GEMMA_KEYS = {
  'tied_embedding': _ALWAYS_TIED,
  'activation': Key('hidden_activation', 'gelu_pytorch_tanh', _GATED),
  'attention_bias': _BIASES,
}
_COMMON = {'tied_embedding': _TIED, 'activation': _ACTIVATION}

FAMILIES: dict[str, Family] = {
  family.architecture: family
  for family in (
    Family(
      'LlamaForCausalLM',
      'llama',
      keys=_COMMON | {'attention_bias': _BIASES, 'mlp_bias': _MLP_BIAS},
      divides_width=True,
    ),
    Family(
      'MistralForCausalLM',
      'mistral',
      keys=_COMMON,
      layer_types=layer_types.all_sliding,
      has={'sliding_window'},
      window=4096,
    ),
    Family(
      'MinistralForCausalLM',
      'ministral',
      keys=_COMMON,
      layer_types=layer_types.sliding_by_default,
      has={'layer_types', 'sliding_window'},
      window=4096,
    ),
    Family(
      'Qwen2ForCausalLM',
      'qwen2',
      fields={'attention_bias': 'qkv'},
      keys=_COMMON,
      layer_types=layer_types.after_max_window_layers,
      has={'layer_types', 'sliding_window', 'use_sliding_window'},
      window=4096,
    ),
    Family(
      'Qwen3ForCausalLM',
      'qwen3',
      fields={'query_key_norm': 'head'},
      keys=_COMMON | {'attention_bias': _BIASES},
      head_dim=128,
      layer_types=layer_types.after_max_window_layers,
      has={'layer_types', 'sliding_window', 'use_sliding_window'},
      window=4096,
      layer=names.PRE_NORMS | names.ATTENTION | names.HEAD_NORMS | names.MLP,
    ),
    Family(
      'Phi3ForCausalLM',
      'phi3',
      keys=_COMMON,
      epsilon=('rms_norm_eps', 1e-5),
      layer_types=layer_types.all_sliding,
      has={
        'sliding_window',
        'partial_rotary_factor',
        'original_max_position_embeddings',
      },
      rope_types={'default', 'longrope'},
      layer=names.PRE_NORMS
      | {
        'attention/query/kernel': 'self_attn.qkv_proj.weight',
        'attention/key/kernel': 'self_attn.qkv_proj.weight',
        'attention/value/kernel': 'self_attn.qkv_proj.weight',
        'attention/out/kernel': 'self_attn.o_proj.weight',
        'mlp/gate/kernel': 'mlp.gate_up_proj.weight',
        'mlp/up/kernel': 'mlp.gate_up_proj.weight',
        'mlp/down/kernel': 'mlp.down_proj.weight',
      },
      original=4096,
    ),
    Family(
      'Olmo2ForCausalLM',
      'olmo2',
      fields={'query_key_norm': 'all', 'norm_placement': 'output'},
      keys=_COMMON | {'attention_bias': _BIASES},
      epsilon=('rms_norm_eps', 1e-5),
      layer={
        'attention_output_norm/scale': 'post_attention_layernorm.weight',
        'mlp_output_norm/scale': 'post_feedforward_layernorm.weight',
      }
      | names.ATTENTION
      | names.HEAD_NORMS
      | names.MLP,
    ),
    Family(
      'SmolLM3ForCausalLM',
      'smollm3',
      keys=_COMMON
      | {
        'tied_embedding': _ALWAYS_TIED,
        'attention_bias': _BIASES,
        'mlp_bias': _MLP_BIAS,
      },
      layer_types=layer_types.sliding_without_rope,
      has={
        'layer_types',
        'sliding_window',
        'use_sliding_window',
        'no_rope_layers',
      },
      base=2000000.0,
    ),
    Family(
      'Gemma2ForCausalLM',
      'gemma2',
      fields=_GEMMA,
      keys=_GEMMA_KEYS
      | {
        'logit_cap': Key('attn_logit_softcapping', 50.0),
        'output_logit_cap': Key('final_logit_softcapping', 30.0),
      },
      fixed={'use_bidirectional_attention': False},
      head_dim=256,
      layer_types=layer_types.every_second,
      has={'layer_types', 'sliding_window'},
      window=4096,
      extra=extras.GEMMA,
      layer=names.GEMMA_NORMS | names.ATTENTION | names.MLP,
      divides_width=True,
    ),
    Family(
      'Gemma3ForCausalLM',
      'gemma3_text',
      fields=_GEMMA | {'query_key_norm': 'head'},
      keys=_GEMMA_KEYS
      | {'output_logit_cap': Key('final_logit_softcapping', None)},
      # transformers ignores a cap of attention.
      fixed={
        'use_bidirectional_attention': False,
        'attn_logit_softcapping': None,
      },
      head_dim=256,
      layer_types=layer_types.every_sixth,
      has={'layer_types', 'sliding_window'},
      window=4096,
      base=1000000.0,
      rope_by_type=True,
      extra=extras.GEMMA,
      layer=names.GEMMA_NORMS | names.ATTENTION | names.HEAD_NORMS | names.MLP,
      divides_width=True,
    ),
    Family(
      'GPTNeoXForCausalLM',
      'gpt_neox',
      fields={'norm': 'layer', 'mlp_bias': True, 'key_heads': None},
      keys={
        'tied_embedding': _TIED,
        'activation': Key('hidden_act', 'gelu', _PLAIN),
        'attention_bias': Key('attention_bias', True, _BIAS),
        'parallel_residual': Key('use_parallel_residual', default=True),
      },
      # It is hidden_size / num_attention_heads.
      fixed={'head_dim': None},
      epsilon=('layer_norm_eps', 1e-5),
      fraction=0.25,
      keys_before_version_5=('rotary_emb_base', 'rotary_pct'),
      has={'partial_rotary_factor'},
      layer={
        **{
          f'{ours}/{kind}': f'{theirs}.{tensor}'
          for ours, theirs in (
            ('attention_norm', 'input_layernorm'),
            ('mlp_norm', 'post_attention_layernorm'),
          )
          for kind, tensor in (('scale', 'weight'), ('bias', 'bias'))
        },
        **{
          f'{ours}/{kind}': f'{theirs}.{tensor}'
          for ours, theirs in (
            ('attention/query', 'attention.query_key_value'),
            ('attention/key', 'attention.query_key_value'),
            ('attention/value', 'attention.query_key_value'),
            ('attention/out', 'attention.dense'),
            ('mlp/up', 'mlp.dense_h_to_4h'),
            ('mlp/down', 'mlp.dense_4h_to_h'),
          )
          for kind, tensor in (('kernel', 'weight'), ('bias', 'bias'))
        },
      },
      layout_of={'query_key_value': 'by_head'},
      model={
        'embed/table': 'gpt_neox.embed_in.weight',
        'head/table': 'embed_out.weight',
        'final_norm/scale': 'gpt_neox.final_layer_norm.weight',
        'final_norm/bias': 'gpt_neox.final_layer_norm.bias',
      },
      prefix='gpt_neox.layers',
      divides_width=True,
    ),
    Family(
      'GptOssForCausalLM',
      'gpt_oss',
      fields={
        'activation': 'swiglu_clipped',
        'mlp_bias': True,
        'sink_logits': True,
      },
      keys={
        'tied_embedding': _TIED,
        'attention_bias': Key('attention_bias', True, _BIAS),
        'num_experts': Key('num_local_experts', 128),
        'experts_per_token': Key('num_experts_per_tok', 4),
      },
      fixed={'hidden_act': 'silu', 'swiglu_alpha': 1.702, 'swiglu_limit': 7.0},
      head_dim=64,
      epsilon=('rms_norm_eps', 1e-5),
      layer_types=layer_types.every_second,
      has={'layer_types', 'sliding_window'},
      window=128,
      base=150000.0,
      default_rope={
        'rope_type': 'yarn',
        'factor': 32.0,
        'truncate': False,
        'original_max_position_embeddings': 4096,
      },
      layer=names.PRE_NORMS
      | names.ATTENTION
      | {
        'attention/sink_logits': 'self_attn.sinks',
        'mlp/router/kernel': 'mlp.router.weight',
        'mlp/router/bias': 'mlp.router.bias',
        'mlp/gate_kernel': 'mlp.experts.gate_up_proj',
        'mlp/up_kernel': 'mlp.experts.gate_up_proj',
        'mlp/gate_bias': 'mlp.experts.gate_up_proj_bias',
        'mlp/up_bias': 'mlp.experts.gate_up_proj_bias',
        'mlp/down_kernel': 'mlp.experts.down_proj',
        'mlp/down_bias': 'mlp.experts.down_proj_bias',
      },
      layout_of={'.experts.': 'experts'},
    ),
    Family(
      'Llama4ForCausalLM',
      'llama4_text',
      keys=_COMMON | {'attention_bias': _BIASES},
      # Its experts are scaled and shared in other ways than `mlp.Experts`.
      fixed={'moe_layers': []},
      head_dim=128,
      epsilon=('rms_norm_eps', 1e-5),
      layer_types=layer_types.chunked_with_rope,
      has={'layer_types', 'no_rope_layers'},
      chunk=8192,
      base=500000.0,
      layout='interleaved',
      extra=extras.LLAMA4,
      mlp_width='intermediate_size_mlp',
      layer=names.PRE_NORMS
      | names.ATTENTION
      | {
        f'mlp/{name}/kernel': f'feed_forward.{name}_proj.weight'
        for name in ('gate', 'up', 'down')
      },
      # Its RMS norm follows the rotation and cancels the magnitude factor of
      # other rope types.
      rope_types={'default', 'linear', 'dynamic', 'llama3', 'proportional'},
    ),
  )
}


def of(config: ConfigJson) -> Family:
  """Returns the family of a config.json.

  Raises:
    errors.CheckpointError: its architecture is not supported.
  """
  found = config.get('architectures') or ['unknown']
  if not isinstance(found, list):
    raise config.error(f'has architectures={found!r}; it takes a list of names')
  name = ' and '.join(map(str, found))
  if name == 'MistralForCausalLM' and _has_other_layers(config):
    name = 'MinistralForCausalLM'  # As in transformers 5.
  if name in FAMILIES:
    return FAMILIES[name]
  code = ''
  if 'auto_map' in config:
    code = ' (code in the folder is never run)'
  raise config.error(
    f'is of architecture {name}{code}; supported are {", ".join(FAMILIES)}'
  )


def _has_other_layers(config: ConfigJson) -> bool:
  """Returns whether a layer has no window."""
  types = config.get('layer_types') or ()
  return any(one != layer_types.SLIDING for one in types)


def model_fields(folder: str | os.PathLike[str]) -> dict[str, Any]:
  """Returns the ModelConfig fields of the checkpoint in a folder.

  Raises:
    errors.CheckpointError: config.json is missing or broken, or describes a
      model that no ModelConfig represents exactly.
  """
  config = config_json.read(folder)
  return of(config).model_fields(config)


def trained_length(folder: str | os.PathLike[str]) -> int:
  """Returns max_position_embeddings, the maximum length in tokens.

  Raises:
    errors.CheckpointError: config.json is missing or invalid.
  """
  return config_json.read(folder)['max_position_embeddings']
