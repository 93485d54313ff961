"""Results as a comparison leaves them, without training anything."""

import json
import math
import random

from configs import stdlib

REFUSED = 'no position {}; raise max_position'


def results(runs=('fire', 'rope', 'learned(max_position=64)')):
  """A results.json of runs, of which learned ones are refused beyond 64."""
  config = stdlib.get_config('tiny')
  lengths = list(config.eval.lengths)
  return {
    'train_length': config.data.train_length,
    'lengths': lengths,
    'corpus': {'source': 'stdlib', 'sha256': 'c0ffee', 'bytes': {'train': 9}},
    'paper': None,
    'config': json.loads(config.to_json()) | {'positions': ''},
    'versions': {'python': '3', 'jax': '0'},
    'platform': 'here',
    'curves': [curve(spec, lengths) for spec in runs],
  }


def curve(spec, lengths):
  """One curve; `spec` is 'encoding' or 'encoding | positions'."""
  draw = random.Random(spec)
  encoding, _, positions = spec.partition(' | ')
  refused = {
    str(n): REFUSED.format(n - 1)
    for n in lengths
    if encoding.startswith('learned') and n > 64
  }
  loss = [None if str(n) in refused else 1 + draw.random() for n in lengths]
  measured = [one for one in loss if one is not None]
  return {
    'encoding': encoding,
    'positions': positions or 'standard',
    'attention_scale': 'none',
    'loss': loss,
    'perplexity': [one and math.exp(one) for one in loss],
    'bits_per_byte': [one and one / math.log(2) for one in loss],
    'bytes_per_token': 1.0,
    'word_perplexity': [None] * len(loss),
    'tokens': 1024,
    'bias_error': [0.0] * len(loss),
    'refused': refused,
    'loss_by_position': {
      str(n): {
        'position': [0, 1, n // 2],
        'loss': [draw.random() for _ in range(3)],
      }
      for n in lengths[: len(measured)]
    },
    'biases': biases(draw, lengths) if encoding == 'fire' else None,
    'contextual_positions': (
      contextual_positions() if positions == 'forget' else None
    ),
    'parameters': 2000,
    'steps': 8,
    'train_seconds': 4.0,
    'memory_bytes': None,
    'sessions': [
      {
        'started': '2026-01-02T03:04:05.678+00:00',
        'first_step': 0,
        'devices': 2,
        'device_kind': 'cpu',
      }
    ],
    'commit': 'abc',
  }


def biases(draw, lengths):
  """As `bias_maps.summary` gives them, of two layers with three heads."""
  queries = {}
  for query in (lengths[0] - 1, lengths[-1] - 1):
    distance = [0, 1, 2, 8, query]
    queries[str(query)] = {
      'distance': distance,
      'bias': [
        [[-draw.random() * d for d in distance] for _ in range(3)]
        for _ in range(2)
      ],
      'kind': [['local', 'anti-local', 'flat/mixed']] * 2,
    }
  return {
    'layers': ['layer_0', 'layer_1'],
    'thresholds': {'layer_0': 12.3},
    'queries': queries,
  }


def contextual_positions():
  """As `position_maps.summary` gives them, of two layers with two heads."""
  token = [0, 8, 16]
  return {
    'layer_0': {'token': token, 'position': [[0.7, 6.3, 9.5], [0.1, 0.5, 40]]},
    'layer_2': {'token': token, 'position': [[0.7, 6.3, 9.5], [0, 0, 0.25]]},
  }


def sweep_results(runs, paper_only):
  """Results of a sweep with one point per run, tested at its last step."""
  drawn = [0.1, 0.9, 0.5]
  point = {'learning_rate': 0.1, 'seed': 0, 'commit': None}
  point |= dict.fromkeys(('train_seconds', 'test_seconds'), 2.0)
  point |= dict.fromkeys(('accuracy', 'exact', 'loss'), drawn)
  run = {'best': 0.5, 'mean': 0.4, 'std': None, 'paper': 49.0}
  run |= {'curve': drawn, 'points': [point]}
  run['best_at'] = {'learning_rate': 0.1, 'seed': 0}
  return {
    'task': 'copy',
    'score': 'accuracy',
    'train_lengths': [1, 20],
    'lengths': [10, 20, 40],
    'chance': 0.2,
    'baselines': {'positionwise': 0.3},
    'runs': [run | {'run': name} for name in runs],
    'unfinished': [],
    'paper_only': paper_only,
    'config': {'train': {'steps': 100}, 'sweep': {'runs': '; '.join(runs)}},
    'versions': {'jax': '0'},
  }
