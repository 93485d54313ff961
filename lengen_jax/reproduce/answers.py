"""Runs `experiment.Answers`: finetunes each row and scores its answers."""

import dataclasses

from lengen_jax import data
from lengen_jax.reproduce import curves
from lengen_jax.reproduce import rows as rows_lib
from lengen_jax.reproduce import settings
from lengen_jax.training import evaluate
from lengen_jax.training import files
from lengen_jax.training import loop
from lengen_jax.training import runs as runs_lib

MEAN = 'mean'


def make_config(part, request):
  """The config that all rows share."""
  overrides = [*settings.standin(part, request), *request.overrides]
  config = settings.load(part.config, request.scale, overrides)
  with config.unlocked():
    config.eval.lengths = tuple(settings.columns(part, config).values())
    config.train.init_from = ''
    if 'paper' in config:
      del config.paper
  return config


def check(part, request):
  """Raises unless its config and runs can be read and its data is there."""
  settings.check(part, request, make_config)


def run(part, request, before):
  """Finetunes and scores every row with every seed; a part of the results."""
  config = make_config(part, request)
  specs = settings.runs(part, config, request.scale)
  runs = settings.parse(part, config, request.scale)
  from_nothing = bool(settings.standin(part, request))
  if not from_nothing:
    config.train.init_from = curves.start_part(part, before)['trained']
  trained = request.trained(part, config)
  corpus = data.load(
    data.DataConfig(**config.data.to_dict()), max(config.eval.lengths)
  )
  columns = list(settings.columns(part, config))
  if part.tasks:
    columns = [*part.tasks, MEAN]
  lines, results = [], []
  folder = files.locate(request.root) / trained
  with files.locked(folder):
    for row in settings.rows(part, request.scale):
      found = []
      for seed in request.seeds:
        each = runs_lib.configure(config, runs[row.name])
        each.seed = seed
        of_run = folder / f'seed{seed}'
        if not from_nothing:
          of_run /= curves.group(part, row)
          each.train.init_from = curves.start_of(
            part, row, request, seed, before
          )
        of_run /= runs_lib.folder(runs[row.name])
        found.append(_scores(each, of_run, corpus))
      if not part.tasks:
        row = settings.with_columns(row, part, columns)
      figures = [_figures(part, config, one) for one in found]
      lines.append(
        rows_lib.make(row, specs[row.name], figures, 'mean')
        | {'refused': found[0]['refused']}
      )
      results += found
  full = dataclasses.replace(request, scale='paper', overrides=())
  differences = settings.differences(
    make_config(part, full), config, part, request.scale
  )
  if from_nothing:
    differences.append('models start from nothing, at full size pretrained')
  return {
    'kind': 'answers',
    'name': part.name,
    'unit': 'percent',
    'columns': columns,
    'train_length': config.data.train_length,
    'examples': sum(results[0]['examples'].values()),
    'of_seeds': 'mean',
    'rows': lines,
    'commits': settings.commits(results),
    'standin': part.standin.text if from_nothing else None,
    'differences': differences,
    'train_seconds': sum(one['train_seconds'] for one in results),
  }


def _scores(config, folder, corpus):
  """What eval.json of a run holds, which is finetuned and scored if need be."""
  path = folder / 'eval.json'
  if path.exists():
    return files.read_json(path)
  label = config.model.encoding
  trained = loop.train(config, folder, corpus=corpus, label=label)
  if config.train.evaluate_every:
    trained = loop.restore(folder, step='best')
  results, predictions = evaluate.evaluate(trained, corpus, label)
  files.write_lines(folder / 'predictions.jsonl', predictions)
  files.write_json(path, results)
  return results


def _figures(part, config, results):
  """A figure for each column of a part, None for what was refused."""
  scores = results['scores']
  if part.tasks is None:
    return [
      next(iter(scores[str(length)].values()))['score']
      if str(length) in scores
      else None
      for length in config.eval.lengths
    ]
  (length,) = config.eval.lengths
  by_task = {
    name.partition('/')[2]: one['score']
    for name, one in scores.get(str(length), {}).items()
  }
  figures = [by_task.get(task) for task in part.tasks]
  return [*figures, results['average'].get(str(length))]
