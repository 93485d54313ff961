"""Scores of generated answers after finetuning."""

import dataclasses
from typing import Any, ClassVar

from lengen_jax import data, errors
from lengen_jax.reproduce import parts
from lengen_jax.reproduce.experiment import Results
from lengen_jax.training import config as training_config
from lengen_jax.training import evaluate, files, loop, pretrained, workdir
from lengen_jax.training import runs as runs_lib

MEAN = 'mean'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finetuning(parts.ConfiguredPart):
  """Scores of each row's answers to prompts, after finetuning.

  Models start from `init_part` at scales `paper` and `small`, and from random
  parameters where substitute data is used.

  Attributes:
    tasks: tasks of a mixture, tested at the training length. Each task is a
      column; the last column is 'mean'. None for a single task, whose columns
      are lengths.
  """

  ratios: tuple[float, ...] = (1,)
  tasks: tuple[str, ...] | None = None
  unit: ClassVar[str] = 'percent'
  kind: ClassVar[str] = 'answers'
  # `lengen eval` writes eval.json, of any step and lengths.
  result: ClassVar[str | None] = 'answers.json'
  # The best of the checkpoints that they determine is scored.
  scored: ClassVar[tuple[str, ...]] = ('evaluate_every', 'checkpoint_every')

  def first_model(self, row: str) -> tuple[str, str]:
    # With substitute data, models start from random parameters.
    return self.name, row

  def make_config(self, request: parts.Request) -> parts.Config:
    config = super().make_config(request)
    config.train.init_from = ''
    return config

  def init_part_at(self, scale: str) -> str | None:
    return None if self.substitute_at(scale) else self.init_part

  def check(self, request: parts.Request) -> None:
    super().check(request)
    fields = self.make_config(request).train.to_dict()
    train = training_config.TrainConfig(**fields)
    steps = range(train.checkpoint_every, train.steps, train.checkpoint_every)
    if train.evaluate_every and not any(
      map(train.validates, (*steps, train.steps))
    ):
      raise errors.ConfigError(
        f'{self.name}: no step of train.steps={train.steps} is validated, so '
        'that there is no best checkpoint to score; lower '
        f'train.evaluate_every={train.evaluate_every}, or set it to 0 to score '
        'the last one'
      )

  def train(
    self,
    request: parts.Request,
    config: parts.Config,
    folder: files.Path,
    init: Results | None,
  ) -> parts.Outcome:
    runs = self.parse(config, request.scale)
    corpus = data.load(
      data.DataConfig(**config.data.to_dict()), max(config.eval.lengths)
    )
    scores, results = [], []
    for row in self.rows_at(request.scale):
      found = []
      for seed in request.seeds:
        each = runs_lib.configure(config, runs[row.name])
        each.seed = seed
        place = folder / f'seed{seed}'
        with files.locked(place):
          place /= self.init_folder(row, init)
          place /= runs_lib.folder(runs[row.name])
          try:
            if init is not None:
              each.train.init_from = self.init_workdir(row, request, seed, init)
            found.append(_finetune(each, place, corpus))
          except errors.DivergedError as error:
            # The other models do not depend on it.
            print(f'{row.name}: {error}', flush=True)
            refused = {str(n): 'training diverged' for n in config.eval.lengths}
            found.append({'scores': {}, 'average': {}, 'refused': refused})
      by_seed = [self._scores(config, one) for one in found]
      scores.append((by_seed, {'refused': parts.first_reasons(found)}))
      results += [one for one in found if 'train_seconds' in one]
    if not results:
      raise errors.DivergedError(f'{self.name}: all models diverged')
    fields: Results = {
      'unit': self.unit,
      'columns': (
        [*self.tasks, MEAN] if self.tasks else list(self.columns(config))
      ),
      'train_length': config.data.train_length,
      'examples': sum(results[0]['examples'].values()),
    }
    if init is None:
      fields['differences'] = [
        'models start from nothing, at full size pretrained'
      ]
    return scores, results, fields

  def _scores(self, config: parts.Config, results: Results) -> parts.Scores:
    """Returns a score per column; None where evaluation was refused."""
    # Scores by task, one dict per length.
    scores = [results['scores'].get(str(n), {}) for n in config.eval.lengths]
    if self.tasks is None:
      tasks = [[*each.values()] for each in scores]
      return [one[0]['score'] if one else None for one in tasks]
    by_task = {
      name.partition('/')[2]: one['score'] for name, one in scores[0].items()
    }
    mean = results['average'].get(str(config.eval.lengths[0]))
    return [*map(by_task.get, self.tasks), mean]


def _finetune(config: parts.Config, folder: files.Path, corpus: Any) -> Results:
  """Returns the scores of a run, which is trained and scored if necessary."""
  path = folder / Finetuning.result
  if path.exists():
    workdir.claim(folder, config, corpus.info)
    return files.read_json(path)
  label = config.model.encoding
  trained = loop.train(config, folder, corpus=corpus, label=label)
  if config.train.evaluate_every:
    trained = pretrained.restore(folder, step='best')
  results, predictions = evaluate.evaluate(trained, corpus, label)
  files.write_lines(folder / 'predictions.jsonl', predictions)
  files.write_json(path, results)
  return results
