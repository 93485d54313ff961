"""Tests `lengen_jax/training/groups.py`."""

import jax
import jax.numpy as jnp
import pytest

from lengen_jax import models
from lengen_jax.models import presets, stacking
from lengen_jax.training import groups, optimizer
from tests import helpers

EVERYTHING = dict(
  num_layers=4,
  encoding='fire, learned(max_position=32), fire(shared=True), rope',
  attention_scale='ssmax',
  contextual_positions='none, none, none, repo(hidden=4)',
  sink_logits=True,
  query_key_norm='head',
  output_gate='element',
  tied_embedding=False,
  mlp_bias=True,
)
LOW = {
  *('embed/table', 'head/table', 'mlp/up/kernel', 'mlp/down/kernel'),
  *(f'attention/{name}/kernel' for name in ('query', 'key', 'value', 'out')),
}
BASE = LOW | {
  *('mlp/up/bias', 'mlp/down/bias', 'final_norm/scale', 'final_norm/bias'),
  *('attention_norm/scale', 'attention_norm/bias'),
  *('mlp_norm/scale', 'mlp_norm/bias'),
}


def names(params):
  """Paths without layers."""
  return {
    '/'.join(
      entry.key
      for entry in path
      if not entry.key.startswith(('layer', 'block'))
    )
    for path, _ in jax.tree.leaves_with_path(params)
  }


@pytest.mark.parametrize('scan_layers', [False, True])
def test_groups_of_a_decoder(scan_layers):
  config = helpers.tiny_model(
    **EVERYTHING, lora_rank=2, scan_layers=scan_layers
  )
  params, _ = stacking.abstract(config)
  added = names(groups.trained(params))
  assert added == names(params) - BASE
  assert names(params) >= BASE
  assert added >= {
    *('encoding/table', 'encoding_1/mlp_0/kernel'),
    *('attention/encoding/mlp_0/kernel', 'attention/positions/gate/kernel'),
    *('attention/gate/kernel', 'attention/query_norm/scale'),
    *('attention/sink_logits', 'attention/attention_scale/s'),
    *('attention/query/lora_in', 'attention/out/lora_out'),
  }
  assert names(groups.low(params)) == LOW
  # Without LoRA everything is trained.
  plain, _ = stacking.abstract(helpers.tiny_model(**EVERYTHING))
  assert groups.trained(plain) == plain


def test_cross_attention():
  config = models.ModelConfig(
    **presets.get('tiny') | {'architecture': 'encoder_decoder'}, lora_rank=2
  )
  trained = names(groups.trained(stacking.abstract(config)[0]))
  assert {name.rpartition('/')[2] for name in trained} == {*groups.LORA}
  assert 'decoder/cross_attention/key/lora_in' in trained
  assert 'encoder/attention/out/lora_out' in trained


def test_experts():
  config = helpers.tiny_model(num_experts=2, activation='swiglu')
  params, _ = stacking.abstract(config)
  low, decays = names(groups.low(params)), optimizer.decayed(params)
  kernels = {f'mlp/{name}_kernel' for name in ('gate', 'up', 'down')}
  assert kernels <= low and 'mlp/router/kernel' not in low
  for path, value in jax.tree.leaves_with_path(decays):
    assert value == path[-1].key.endswith(('kernel', 'table')), path


def test_a_part_replaces_arrays():
  params = {'embed': {'table': jnp.ones(2)}, 'norm': {'scale': jnp.ones(1)}}
  low = groups.low(params)
  assert names(low) == {'embed/table'}
  merged = groups.merged(params, {'embed': {'table': jnp.zeros(2)}})
  assert merged['embed']['table'].sum() == 0
  assert merged['norm']['scale'].sum() == 1
  rounded = groups.rounded(params)
  assert rounded['embed']['table'].dtype == jnp.bfloat16
  assert rounded['norm']['scale'].dtype == jnp.float32
