"""Evaluation of a trained model: loss by length, or scores of its answers.

A corpus is a result of `data.load`. Progress lines start with `label`.
`after_batch` is called after each batch and may raise to end an evaluation.
"""

from collections.abc import Callable, Sequence
import json
import math
import platform
import statistics
from typing import Any

import jax
import ml_collections

from lengen_jax import progress as progress_lib
from lengen_jax.evaluation import (
  bias_maps,
  generation,
  length_curve,
  position_maps,
)
from lengen_jax.evaluation import scores as scores_lib
from lengen_jax.evaluation.metrics import lm
from lengen_jax.training import revision
from lengen_jax.training import run as run_lib
from lengen_jax.training import runs as runs_lib


def evaluate(
  trained: run_lib.Trained, corpus: Any, label: str = 'eval'
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
  """Returns the contents of eval.json, and generated texts as a list of dicts.

  Raises:
    errors.LengenError: the data does not fit the model.
  """
  config = trained.run.config
  if corpus.scored_by == 'loss':
    curves = [curve(trained, corpus.evaluation(trained.run.eval), label)]
    return results(config, corpus, curves=curves), []
  tested, predictions = answers(trained, corpus, label)
  return results(config, corpus, **tested), predictions


def validate(
  trained: run_lib.Trained,
  corpus: Any,
  label: str,
  after_batch: Callable[[], None],
) -> tuple[dict[str, float], float | None]:
  """Validates a model during training, at the length nearest to training's.

  Returns:
    (metrics for the log, cost). The best model has the least cost; a cost of
    None ranks below all others.
  """
  run = trained.run
  length = min(run.eval.lengths, key=lambda n: abs(n - run.data.train_length))
  if corpus.scored_by == 'loss':
    windows = corpus.evaluation(run.eval)
    (one,) = losses(trained, windows, label, after_batch, [length])
    loss = math.nan if one.loss is None else one.loss
    return {'validation_loss': loss}, one.loss
  tested, _ = answers(trained, corpus, label, [length], after_batch)
  scores = tested['scores'].get(str(length), {}).values()
  if not scores:
    return {'validation_score': math.nan}, None
  score = statistics.fmean(one['score'] for one in scores)
  return {'validation_score': score}, -score


def results(
  config: ml_collections.ConfigDict, corpus: Any, **found: Any
) -> dict[str, Any]:
  """Returns the contents of results.json: `found`, settings and versions."""
  settings = json.loads(config.to_json())
  return {
    'train_length': config.data.train_length,
    'lengths': list(config.eval.lengths),
    'corpus': corpus.info,
    'paper': settings.get('paper'),
    'config': settings,
    'versions': runs_lib.versions(),
    'platform': platform.platform(),
    **found,
  }


def curve(
  trained: run_lib.Trained,
  windows: Any,
  label: str = 'eval',
  after_batch: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
  """Returns a curve of results.json: the loss by length, and details.

  `windows` is a data.EvaluationWindows, or pictures.
  """
  run = trained.run
  found = losses(trained, windows, label, after_batch)
  distances = sorted({run.data.train_length - 1, max(windows.lengths) - 1})
  bytes_per_token, words = windows.bytes_per_token, 0.0
  if run.model.architecture == 'encoder':
    # The loss of masked tokens is no likelihood of the text.
    bytes_per_token = None
  else:
    words = windows.count_words(lm.count_words) / windows.tokens
  return {
    **_facts(trained),
    'loss': [one.loss for one in found],
    'window_loss': [[*one.window_loss] for one in found],
    'windows_digest': windows.digest,
    'perplexity': [one.perplexity for one in found],
    'bits_per_byte': [one.bits_per_byte(bytes_per_token) for one in found],
    'bytes_per_token': windows.bytes_per_token,
    'word_perplexity': [_word_perplexity(one.loss, words) for one in found],
    'tokens': found[0].tokens,
    'bias_error': [one.bias_error for one in found],
    'refused': {str(one.length): one.refused for one in found if one.refused},
    'loss_by_position': {
      str(one.length): {
        'position': [*one.position],
        'loss': [*one.position_loss],
      }
      for one in found
      if not one.refused
    },
    'biases': bias_maps.summary(run.model, trained.state.params, distances),
    'contextual_positions': _contextual_positions(trained, windows, found),
  }


def _contextual_positions(
  trained: run_lib.Trained, windows: Any, losses: Sequence[Any]
) -> dict[str, Any] | None:
  """Returns positions in the first window of the longest length with a loss."""
  run, longest = trained.run, [one.length for one in losses if not one.refused]
  if not longest or {*run.model.contextual_positions} == {'none'}:
    return None
  return position_maps.summary(
    run.model,
    run.scheme,
    run_lib.on_host(trained.state.params),
    windows.batch(max(longest)),
    rng=jax.random.key(run.config.seed),
  )


def losses(
  trained: run_lib.Trained,
  windows: Any,
  label: str,
  after_batch: Callable[[], None],
  lengths: Sequence[int] | None = None,
) -> list[Any]:
  """Returns the LengthLoss of each length, and prints each."""
  run = trained.run
  found = []
  for one in length_curve.run(
    run.model,
    run.scheme,
    trained.state.params,
    windows,
    batch_tokens=run.eval.batch_tokens,
    seed=run.config.seed,
    layout=run.layout,
    lengths=lengths,
    after_batch=after_batch,
  ):
    what = f'{one.loss:.4f} nats' if one.loss is not None else one.refused
    if one.bias_error:
      what += f'; bias error of up to {one.bias_error:.1e} nats'
    print(f'{label}: length {one.length}: {what}', flush=True)
    found.append(one)
  return found


def _word_perplexity(loss: float | None, words: float) -> float | None:
  """Returns the perplexity per word; None if undefined or infinite."""
  if loss is None or not words:
    return None
  found = lm.word_perplexity(loss, words)
  return found if math.isfinite(found) else None


def answers(
  trained: run_lib.Trained,
  prompts: Any,
  label: str = 'eval',
  lengths: Sequence[int] | None = None,
  after_batch: Callable[[], None] = lambda: None,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
  """Scores a model's answers to prompts at some lengths, or at eval.lengths.

  Returns:
    (contents of eval.json, generated texts as a list of dicts).
  """
  run = trained.run
  generators = {
    length: generation.Generator(
      run.model,
      run.scheme,
      max_new=length,
      end_id=prompts.end,
      batch_tokens=run.eval.batch_tokens,
      seed=run.config.seed,
      layout=run.layout,
      temperature=run.eval.temperature,
      top_p=run.eval.top_p,
      start_id=prompts.start,
    )
    for length in {*prompts.target_lengths}
  }
  found: dict[str, Any] = {
    name: {} for name in ('scores', 'average', 'whole', 'refused', 'examples')
  }
  predictions = []
  for length in lengths or run.eval.lengths:
    scores, whole, counts, texts_at = {}, {}, {}, []
    for number, task in enumerate(prompts.tasks):
      examples = prompts.examples(number, length, run.eval.examples)
      count, name = len(examples), f'{label}: {task.name} at {length}'
      generator = generators[prompts.target_lengths[number]]
      try:
        outputs = _generate(generator, trained, examples, name, after_batch)
      except generation.REFUSALS as error:
        found['refused'][str(length)] = str(error)
        print(f'{name}: {error}', flush=True)
        break
      texts = {
        example.id: prompts.decode(output)
        for example, output in zip(examples, outputs, strict=True)
      }
      references = {e.id: e.references for e in examples}
      score = scores_lib.score(task, texts, references)
      share = sum(e.whole for e in examples) / count
      shown = f'{score["score"]:.2f}, {100 * share:.0f} % of the prompts whole'
      print(f'{name}: {shown}', flush=True)
      scores[task.name], whole[task.name] = score, share
      about = {'task': task.name, 'length': length}
      texts_at += [
        {**about, 'id': key, 'prediction': texts[key], 'references': right}
        for key, right in references.items()
      ]
      counts[task.name] = count
    else:
      predictions += texts_at
      found['examples'] |= counts
      found['scores'][str(length)] = scores
      found['whole'][str(length)] = whole
      found['average'][str(length)] = scores_lib.average(
        {name: score['score'] for name, score in scores.items()}
      )
  found['target_lengths'] = prompts.target_lengths
  return _facts(trained) | found, predictions


def _generate(
  generator: generation.Generator,
  trained: run_lib.Trained,
  examples: Sequence[Any],
  name: str,
  after_batch: Callable[[], None],
) -> list[Any]:
  """Returns the output for each example; shows the progress."""
  count = len(examples)
  with progress_lib.Progress(name, count, what='prompt', unit='prompts') as bar:

    def report(done: int, _: int) -> None:
      bar.update(done)
      after_batch()

    prompts = [example.tokens for example in examples]
    return generator.run(trained.state.params, prompts, report=report)


def _facts(trained: run_lib.Trained) -> dict[str, Any]:
  """Returns the run, the cost of training and the commit of the code."""
  config = trained.run.config
  return {
    'encoding': config.model.encoding,
    'positions': runs_lib.positions(config),
    'attention_scale': config.model.attention_scale,
    'parameters': trained.run.parameters,
    'steps': int(trained.state.step),
    'train_seconds': round(trained.seconds, 3),
    'memory_bytes': trained.memory_bytes,
    'sessions': list(trained.sessions),
    'commit': revision.running(),
  }
