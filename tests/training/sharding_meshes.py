"""Trains on meshes of up to sixteen devices; run by `sharding_test.py`.

Prints losses, gradient norms and scores as JSON, those of one device first.
"""

import json
import os
import re

os.environ['JAX_PLATFORMS'] = 'cpu'

import jax
import numpy as np

from configs import stdlib
from lengen_jax import data
from lengen_jax.data import vocabulary, windows
from lengen_jax.evaluation import config as eval_config
from lengen_jax.evaluation import generation, length_curve
from lengen_jax.training import run as run_lib
from lengen_jax.training import sharding

jax.config.update('jax_num_cpu_devices', 16)
jax.config.update('jax_disable_most_optimizations', True)

ALONE = (1, 1, 1, 1)
# One for each of MODELS.
MESHES = (
  (1, 1, 1, 8),
  (1, 8, 1, 1),
  (2, 2, 2, 2),
  (1, 2, 2, 2),
  (2, 1, 4, 1),
  (8, 1, 1, 1),
  (1, 8, 1, 1),
  (2, 2, 2, 2),
)
MODELS = (
  dict(encoding='fire', implementation='reference', num_layers=1),
  dict(encoding='fire, t5', implementation='blockwise', scan_layers=True),
  dict(
    encoding='shaw(left=4, right=4)', implementation='blockwise', num_layers=1
  ),
  dict(encoding='kerple_log(shared=True)', attention_scale='ssmax'),
  dict(
    encoding='linear, rope',
    contextual_positions='forget, repo',
    implementation='blockwise',
    sink_logits=True,
    query_key_norm='all',
    output_gate='element',
    num_heads=8,
    key_heads=4,
  ),
  dict(
    encoding='kerple_log',
    implementation='pallas',
    num_layers=1,
    num_heads=8,
    key_heads=4,
  ),
  dict(
    encoding='fire(init_threshold=8.)', implementation='pallas', num_layers=1
  ),
  dict(
    encoding='rope',
    num_layers=1,
    norm='rms',
    activation='swiglu',
    tied_embedding=False,
    num_heads=8,
    key_heads=4,
  ),
)


def create(sizes, model):
  config = stdlib.get_config('tiny')
  config.model.update({'num_heads': 4, 'head_dim': 8, **model})
  config.mesh.update(dict(zip(sharding.AXES, sizes, strict=True)))
  config.data.update(batch_size=8, train_length=32)
  config.eval.lengths = (32, 64)
  return run_lib.Run(config)


def train(run):
  """Losses and gradients of three steps, and the text of the program."""
  draw = np.random.default_rng(0).integers
  state, found = run.init_state(), []
  with run.layout.scope():
    step = run.jitted_step(packed=False)
    compiled = step.lower(run.abstract_state, run.abstract_batch()).compile()
  for _ in range(3):
    rows = windows.lm_batch(draw(0, 256, (8, 33)))
    state, metrics = compiled(state, run.layout.place(rows))
    found += [float(metrics['loss']), float(metrics['grad_norm'])]
  return found, compiled.as_text()


def evaluate(run):
  """Losses by length, and what is written after some prompts."""
  draw = np.random.default_rng(0).integers
  corpus = data.Corpus(
    {'validation': [draw(0, 256, 400)]}, vocabulary.Bytes(offset=0), {}
  )
  params = run.init_state().params
  config = eval_config.EvalConfig((32, 64), 512, windows=3)
  curve = length_curve.run(
    run.model,
    run.scheme,
    params,
    corpus.evaluation(config),
    batch_tokens=512,
    seed=0,
    layout=run.layout,
  )
  writer = generation.Generator(
    run.model,
    run.scheme,
    max_new=4,
    end_id=-1,
    batch_tokens=512,
    seed=0,
    layout=run.layout,
  )
  prompts = [draw(0, 256, size) for size in (3, 9, 5)]
  written = [ids.tolist() for ids in writer.run(params, prompts)]
  return [[one.loss, *one.window_loss] for one in curve], written


def largest(text):
  """Numbers in the largest array of a program with four axes or more."""
  shapes = re.findall(r'f32\[(\d+(?:,\d+){3,})\]', text)
  return max(int(np.prod([int(n) for n in s.split(',')])) for s in shapes)


def training():
  """Losses on one device and a mesh; the largest arrays of the first model."""
  trained = [
    [train(create(sizes, model)) for sizes in (ALONE, mesh)]
    for mesh, model in zip(MESHES, MODELS, strict=True)
  ]
  losses = [[found for found, _ in both] for both in trained]
  return {'losses': losses, 'pairs': [largest(text) for _, text in trained[0]]}


def evaluation():
  """Curves and texts of a model on three meshes."""
  meshes = ALONE, (1, 8, 1, 1), (1, 2, 2, 2)
  curves, written = zip(
    *(evaluate(create(sizes, MODELS[1])) for sizes in meshes), strict=True
  )
  return {'curves': curves, 'written': written}


if __name__ == '__main__':
  print(json.dumps(training() | evaluation()))
