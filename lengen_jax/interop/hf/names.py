"""Names of tensors that families share, by path of the parameter."""

# Norms before attention and MLP, and the projections of most families.
PRE_NORMS = {
  'attention_norm/scale': 'input_layernorm.weight',
  'mlp_norm/scale': 'post_attention_layernorm.weight',
}
ATTENTION = {
  f'attention/{name}/{kind}': f'self_attn.{letter}_proj.{tensor}'
  for name, letter in (
    ('query', 'q'),
    ('key', 'k'),
    ('value', 'v'),
    ('out', 'o'),
  )
  for kind, tensor in (('kernel', 'weight'), ('bias', 'bias'))
}
MLP = {
  f'mlp/{name}/{kind}': f'mlp.{name}_proj.{tensor}'
  for name in ('gate', 'up', 'down')
  for kind, tensor in (('kernel', 'weight'), ('bias', 'bias'))
}
HEAD_NORMS = {
  'attention/query_norm/scale': 'self_attn.q_norm.weight',
  'attention/key_norm/scale': 'self_attn.k_norm.weight',
}
MODEL = {
  'embed/table': 'model.embed_tokens.weight',
  'head/table': 'lm_head.weight',
  'final_norm/scale': 'model.norm.weight',
}
GEMMA_NORMS = {
  'attention_norm/scale': 'input_layernorm.weight',
  'attention_output_norm/scale': 'post_attention_layernorm.weight',
  'mlp_norm/scale': 'pre_feedforward_layernorm.weight',
  'mlp_output_norm/scale': 'post_feedforward_layernorm.weight',
}
