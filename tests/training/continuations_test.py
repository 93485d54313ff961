"""Tests `lengen_jax/training/continuations.py`."""

import dataclasses

import jax
import numpy as np

from lengen_jax import positions
from lengen_jax.data import vocabulary
from lengen_jax.evaluation import generation
from lengen_jax.training import continuations, pretrained, sharding
from tests import helpers


def test_texts_are_what_the_generator_writes(tmp_path, capsys):
  config = helpers.tiny_model(num_layers=1, encoding='rope')
  params = helpers.params_of(config)
  # Only letters are written.
  bytes_ = vocabulary.Bytes(offset=0)
  table = np.array(params['embed']['table'])
  table[[*range(97), *range(123, 256)]] *= 0.01
  params = params | {'embed': {'table': table}}
  trained = pretrained.Pretrained(tmp_path, params, config)
  prompts = ['ab', '', 'a longer prompt than the others']
  options = dict(max_new=5, temperature=1.0, top_p=0.9, seed=3)
  texts = continuations.write(trained, prompts, vocabulary=bytes_, **options)
  written = generation.Generator(
    config,
    positions.create('standard'),
    end_id=1,
    batch_tokens=1,
    layout=sharding.Layout.of_rows(),
    **options,
  ).run(jax.device_get(params), [*map(bytes_ids, prompts)])
  assert texts == [bytes_.decode(ids) for ids in written]
  assert all(texts) and len({*texts}) == 3
  out = capsys.readouterr().out.splitlines()
  assert out[0] == 'generate: compiling for 2 cpu devices ...'
  assert 'prompt 3/3' in out[-2]
  other = dataclasses.replace(trained, positions='interpolated(scale=8)')
  again = continuations.write(other, prompts, vocabulary=bytes_, **options)
  assert again != texts


def bytes_ids(text):
  return np.frombuffer(text.encode(), np.uint8)


class Stripping(vocabulary.Bytes):
  """Drops the space before a text, as some tokenizers do."""

  def decode(self, ids):
    return super().decode(ids).lstrip(' ')


def test_spaces_after_a_prompt_are_kept(tmp_path, monkeypatch):
  config = helpers.tiny_model(num_layers=1)
  trained = pretrained.Pretrained(tmp_path, {}, config)
  monkeypatch.setattr(
    generation.Generator,
    'run',
    lambda self, params, prompts, report: [bytes_ids(' b') + 3],
  )
  texts = continuations.write(trained, ['a'], vocabulary=Stripping(), max_new=2)
  assert texts == [' b']


class Bracketing(vocabulary.Bytes):
  """Decodes a row otherwise if it ends in an incomplete character."""

  def decode(self, ids):
    incomplete = ids[-1] >= 0x80 + 3
    return '?' * len(ids) if incomplete else super().decode(ids)


def test_an_incomplete_character_after_a_prompt(tmp_path, monkeypatch):
  config = helpers.tiny_model(num_layers=1)
  trained = pretrained.Pretrained(tmp_path, {}, config)
  half = np.array([0xF0, 0x9F]) + 3
  monkeypatch.setattr(
    generation.Generator, 'run', lambda self, params, prompts, report: [half]
  )
  texts = continuations.write(
    trained, ['abc'], vocabulary=Bracketing(), max_new=2
  )
  assert texts == ['??']
