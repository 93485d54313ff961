"""Text as token ids: corpora, and how rows for a model are cut from them.

TensorFlow and seqio are loaded only where data.source is 'seqio' or the raw
data is one of TensorFlow Datasets.
"""

from lengen_jax.data import extra
from lengen_jax.data.config import DataConfig
from lengen_jax.data.corpus import Corpus
from lengen_jax.data.windows import EvaluationWindows
from lengen_jax.data.windows import TrainingWindows

__all__ = [
  'Corpus',
  'DataConfig',
  'EvaluationWindows',
  'TrainingWindows',
  'load',
  'register',
]


def load(config, longest=None):
  """Opens the data of a config.

  Args:
    config: a DataConfig.
    longest: the longest length that is evaluated; None where nothing is.

  Returns:
    An object with `info`, `vocab_size` and `training(config, seed=, host=)`,
    which gives `windows.Batches`. If it is `scored_by` 'loss', also with
    `evaluation(config)`, which gives what `EvaluationWindows` is for text; if
    by 'answers', with `examples(...)` as `seqio_prompts.Prompts`.

  Raises:
    errors.LengenError: the data is missing, or is not what the config says.
  """
  if config.source == 'stdlib':
    from lengen_jax.data import corpus

    return corpus.read_stdlib(config.path)
  if config.source == 'prepared':
    from lengen_jax.data import prepared

    return prepared.Prepared(config, longest)
  return _load_seqio(config)


def _load_seqio(config):
  extra.load('seqio', 'reading tasks of seqio')
  from lengen_jax.data import registration
  from lengen_jax.data import seqio_pictures
  from lengen_jax.data import seqio_prompts
  from lengen_jax.data import seqio_text

  task = config.task.partition('(')[0].strip()
  if ':' in task:
    return seqio_text.Text(config, registration.find(task))
  name = register(
    config.task,
    path=config.path,
    vocab=config.vocabulary,
    separator=config.separator,
  )
  if task in registration.PICTURES:
    return seqio_pictures.Pictures(config, name)
  tasks = registration.prompt_tasks(task)
  if tasks:
    return seqio_prompts.Prompts(config, name, tasks)
  return seqio_text.Text(config, name)


def register(task, **arguments):
  """Registers a task or mixture in seqio; see `registration.register`."""
  extra.load('seqio', 'reading tasks of seqio')
  from lengen_jax.data import registration

  return registration.register(task, **arguments)
