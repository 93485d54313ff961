"""Scores of a trained model on the tasks of RULER, by length."""

import collections
from collections.abc import Callable, Mapping, Sequence
import itertools
import platform
import statistics
from typing import Any

from lengen_jax import progress as progress_lib
from lengen_jax.data import ruler
from lengen_jax.data import vocabulary as vocabulary_lib
from lengen_jax.data.ruler import haystack as haystack_lib
from lengen_jax.evaluation import generation
from lengen_jax.evaluation.metrics import ruler as metrics
from lengen_jax.training import continuations, pretrained, revision, runs

_LABEL = 'ruler'


def evaluate(
  trained: pretrained.Pretrained,
  tasks: Sequence[str],
  lengths: Sequence[int],
  *,
  vocabulary: vocabulary_lib.Vocabulary,
  samples: int = 500,
  haystack: str = '',
  seed: int = 0,
  batch_tokens: int = 8192,
  save: Callable[[dict[str, Any], list[dict[str, Any]]], None] = (
    lambda results, predictions: None
  ),
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
  """Returns the contents of ruler.json, and the generated texts.

  Answers are decoded greedily. Scores are in percent; see
  `metrics.ruler.string_match_all`. A length that the model does not support, or
  at which it diverges, has no scores, and 'refused' says why.

  Args:
    trained: a decoder.
    tasks: keys of `data.ruler.TASKS`.
    lengths: tokens per row, prompt and answer together.
    vocabulary: the vocabulary of the model.
    samples: number of prompts per task and length.
    haystack: path of the text that hides needles in place of essays; see
      `data.ruler.haystack.read`.
    seed: seed of the prompts and of random positions.
    batch_tokens: tokens per batch; longer rows mean fewer rows.
    save: called with the results so far: once the arguments are checked, with
      none, and after each length.

  Raises:
    errors.LengthError: the shortest prompt of a task does not fit a length.
    errors.CorpusError: `haystack` has no text.
  """
  words = haystack_lib.read(haystack)
  settings = [
    ruler.Setting(vocabulary, length, words, seed) for length in lengths
  ]
  for setting in settings:
    _check_fits(tasks, setting, samples)
  found: dict[str, Any] = {'scores': {}, 'average': {}, 'refused': {}}
  predictions: list[dict[str, Any]] = []

  def results() -> dict[str, Any]:
    averages = {int(length): one for length, one in found['average'].items()}
    return {
      'checkpoint': str(trained.path),
      'encoding': ', '.join(trained.model.encoding),
      'positions': trained.positions,
      'train_length': trained.train_length,
      'vocabulary': vocabulary.name,
      'tasks': list(tasks),
      'lengths': list(lengths),
      'samples': samples,
      'haystack': haystack,
      'seed': seed,
      **found,
      'threshold': metrics.THRESHOLD,
      'effective_length': metrics.effective_length(averages),
      'versions': runs.versions(),
      'platform': platform.platform(),
      'commit': revision.running(),
    }

  save(results(), predictions)
  for setting in settings:
    length = str(setting.length)
    prompts = _prompts(tasks, setting, samples)
    try:
      texts = _texts(trained, prompts, setting, batch_tokens)
    except generation.REFUSALS as error:
      found['refused'][length] = str(error)
      print(f'{_LABEL}: length {length}: {error}', flush=True)
      save(results(), predictions)
      continue
    scores = {}
    for name in tasks:
      references = [list(prompt.outputs) for prompt in prompts[name]]
      scores[name] = metrics.string_match_all(texts[name], references)
      print(f'{_LABEL}: {name} at {length}: {scores[name]:.2f}', flush=True)
      about = {'task': name, 'length': setting.length}
      predictions += [
        {**about, 'index': index, 'prediction': text, 'references': right}
        for index, (text, right) in enumerate(
          zip(texts[name], references, strict=True)
        )
      ]
    found['scores'][length] = scores
    found['average'][length] = round(statistics.fmean(scores.values()), 2)
    save(results(), predictions)
  return results(), predictions


def _check_fits(
  tasks: Sequence[str], setting: ruler.Setting, samples: int
) -> None:
  """Raises errors.LengthError for the prompt with the greatest least length."""

  def least(prompt: tuple[str, int]) -> int:
    name, index = prompt
    return ruler.least_length(ruler.TASKS[name], name, index, setting)

  name, index = max(itertools.product(tasks, range(samples)), key=least)
  ruler.sample(ruler.TASKS[name], name, index, setting)


def _prompts(
  tasks: Sequence[str], setting: ruler.Setting, samples: int
) -> dict[str, list[ruler.Prompt]]:
  """Returns the prompts of each task; shows the progress."""
  prompts: dict[str, list[ruler.Prompt]] = {name: [] for name in tasks}
  label, total = f'{_LABEL}: length {setting.length}', len(tasks) * samples
  with progress_lib.Progress(
    label, total, what='written prompt', unit='prompts'
  ) as bar:
    for done, (name, index) in enumerate(
      itertools.product(tasks, range(samples)), start=1
    ):
      prompts[name].append(
        ruler.sample(ruler.TASKS[name], name, index, setting)
      )
      bar.update(done)
  return prompts


def _texts(
  trained: pretrained.Pretrained,
  prompts: Mapping[str, Sequence[ruler.Prompt]],
  setting: ruler.Setting,
  batch_tokens: int,
) -> dict[str, list[str]]:
  """Returns the text generated after each prompt.

  Tasks with answers of the same length share batches, and so the program.
  """
  groups = collections.defaultdict(list)
  for name in prompts:
    groups[ruler.TASKS[name].max_new].append(name)
  texts = {}
  for max_new, names in groups.items():
    what = names[0] if len(names) == 1 else f'{len(names)} tasks'
    written = iter(
      continuations.write(
        trained,
        [prompt.text for name in names for prompt in prompts[name]],
        vocabulary=setting.vocabulary,
        max_new=max_new,
        seed=setting.seed,
        label=f'{_LABEL}: {what} at {setting.length}',
        batch_tokens=batch_tokens,
      )
    )
    for name in names:
      texts[name] = list(itertools.islice(written, len(prompts[name])))
  return texts
