"""Tasks and mixtures in the registry of seqio, for us and for T5X-style code.

Registering is explicit and may be repeated. What is registered never downloads,
and loses no text: documents longer than `sequence_length` are split, prompts
are cut before their separator is added.
"""

import functools
import importlib
import re

import seqio
import tensorflow as tf

from lengen_jax import errors
from lengen_jax import specs
from lengen_jax.data import documents
from lengen_jax.data import glue
from lengen_jax.data import imagenet
from lengen_jax.data import paths
from lengen_jax.data import readers
from lengen_jax.data import scrolls
from lengen_jax.data import seqio_files
from lengen_jax.data import sources
from lengen_jax.data import vocabulary

PROMPT_TASKS = {
  task.name: task for task in (*scrolls.TASKS.values(), *glue.TASKS.values())
}
GLUE_SUPERGLUE = 'glue_superglue'
PICTURES = {'imagenet': imagenet.Imagenet}
# Task name to the arguments that it was registered with.
_registered = {}


def register(task, *, path='', vocab='bytes', separator='\n\nAnswer: '):
  """Registers a task or mixture of ours.

  Text: feature 'targets'. Pictures: 'inputs', pixels, and 'targets', a class.
  Prompts: 'inputs', which ends with the separator,
  and 'targets'; also 'id', texts under 'inputs_pretokenized' and
  'targets_pretokenized', and 'inputs_size', tokens before they were cut.

  Args:
    task: 'c4' or another source of text, `family/name` of a task of prompts,
      'glue_superglue', or 'imagenet'.
    path: where the raw data lies; see `paths`.
    vocab: 'bytes', or the path of a SentencePiece model.
    separator: text between prompt and answer.

  Returns:
    The name in seqio's registry.

  Raises:
    errors.LengenError: an unknown task, or data that is missing.
  """
  if task == GLUE_SUPERGLUE:
    names = {
      name: _register_prompts(each, path, vocab, separator)
      for name, each in glue.TASKS.items()
    }
    rates = [(names[name], glue.TASKS[name].num_train) for name in glue.MIXTURE]
    return _add(
      GLUE_SUPERGLUE,
      (path, vocab, separator, tuple(rates)),
      seqio.MixtureRegistry,
      lambda: {'tasks': rates},
    )
  if task in PROMPT_TASKS:
    return _register_prompts(PROMPT_TASKS[task], path, vocab, separator)
  name = str(task).partition('(')[0].strip()
  if name in PICTURES:
    return _register_pictures(specs.build('task', PICTURES, task), path)
  if name in sources.SOURCES:
    return _register_text(sources.create(task), path, vocab)
  raise errors.SpecError(
    errors.one_of(
      'data.task',
      task,
      [*sources.SOURCES, *PROMPT_TASKS, GLUE_SUPERGLUE, *PICTURES],
    )
  )


def prompt_tasks(task):
  """PromptTasks that 'family/name' or a mixture consists of.

  Returns:
    Dict by name in seqio's registry, {} for a task of another kind. Of
    'glue_superglue' one, of mismatched MNLI, is for evaluation alone.
  """
  found = [PROMPT_TASKS[task]] if task in PROMPT_TASKS else []
  if task == GLUE_SUPERGLUE:
    found = glue.TASKS.values()
  return {_seqio_name(each): each for each in found}


def find(task):
  """The name in seqio's registry of 'module:name', a task of somebody else's.

  Raises:
    errors.ConfigError: no such module, or it registers no such task.
  """
  module, _, name = task.partition(':')
  try:
    importlib.import_module(module)
    seqio.get_mixture_or_task(name)
  except (ImportError, ValueError) as error:
    raise errors.ConfigError(f'data.task={task!r}: {error}') from error
  return name


def _register_text(source, path, vocab):
  """One task for all lengths: they are given when it is loaded."""
  spec = specs.describe(source)
  found = vocabulary.create(vocab)
  slug = re.sub('[^a-z0-9]+', '_', spec.lower()).strip('_')
  parts = {}
  for split in sources.SPLITS:
    try:
      parts[split] = source.parts(path, split)
    except errors.CorpusError:
      if split != 'test':
        raise

  def arguments():
    feature = seqio.Feature(found.seqio(), add_eos=True)
    if any(part.dataset for part in parts['train']):
      data = seqio.TfdsDataSource(
        source.dataset,
        tfds_data_dir=str(paths.data_folder(path)),
        splits=list(parts),
        read_only=True,
      )
    else:
      data = seqio_files.Files(
        parts,
        lambda part: ((text,) for text in documents.read(source, part)),
        ('text',),
      )
    return {
      'source': data,
      'preprocessors': [
        functools.partial(
          seqio.preprocessors.rekey, key_map={'targets': 'text'}
        ),
        functools.partial(
          seqio.preprocessors.tokenize, copy_pretokenized=False
        ),
        seqio.CacheDatasetPlaceholder(),
        seqio.preprocessors.append_eos,
        split_to_length,
      ],
      'output_features': {'targets': feature},
    }

  # Registered anew where the data is other data.
  key = (path, found.name, str(parts))
  kind = 'bytes' if vocab == 'bytes' else found.fingerprint
  name = f'{slug}_lm_{kind}'
  return _add(name, key, seqio.TaskRegistry, arguments)


def _register_prompts(task, path, vocab, separator):
  found = vocabulary.create(vocab)
  files = {
    split: _raw_files(task, path, stored) for split, stored in task.splits
  }
  if not all(files.values()):
    folder = paths.prepared_dataset(path, task.dataset)
    if not folder.is_dir():
      raise _missing_prompts(task, path, folder)

  def arguments():
    inputs = seqio.Feature(found.seqio(), add_eos=False)
    targets = seqio.Feature(found.seqio(), add_eos=True)
    if all(files.values()):
      data = seqio_files.Files(files, functools.partial(_rows, task), _COLUMNS)
      before = []
    else:
      data = seqio.TfdsDataSource(
        task.dataset,
        tfds_data_dir=str(paths.data_folder(path)),
        splits=dict(task.splits),
        read_only=True,
      )
      before = [functools.partial(_to_rows, task=task)]
    return {
      'source': data,
      'preprocessors': [
        *before,
        seqio.preprocessors.tokenize,
        seqio.CacheDatasetPlaceholder(),
        functools.partial(
          add_separator, separator=found.encode([separator.encode()])[0]
        ),
        seqio.preprocessors.append_eos_after_trim,
      ],
      'output_features': {'inputs': inputs, 'targets': targets},
    }

  key = (path, found.name, found.fingerprint, separator)
  name = _seqio_name(task)
  return _add(name, key, seqio.TaskRegistry, arguments)


def _register_pictures(pictures, path):
  folder = paths.prepared_dataset(path, imagenet.DATASET)
  if not folder.is_dir():
    raise paths.missing(
      f'ImageNet ({imagenet.DATASET} of TensorFlow Datasets)',
      [str(folder)],
      imagenet.HOW,
    )

  def tokens(dataset, sequence_length):
    length = sequence_length['inputs']
    shape = pictures.shape(length)

    def convert(record):
      pixels = imagenet.flatten(record['image'], *shape, pictures.delimiter)
      label = tf.cast(record['label'], tf.int32) + imagenet.PIXELS
      return {
        'inputs': tf.ensure_shape(pixels, [length]),
        'targets': label[None],
      }

    return dataset.map(convert, num_parallel_calls=tf.data.AUTOTUNE)

  def arguments():
    vocab = seqio.PassThroughVocabulary(imagenet.PIXELS + imagenet.CLASSES)
    return {
      'source': seqio.TfdsDataSource(
        imagenet.DATASET,
        tfds_data_dir=str(paths.data_folder(path)),
        splits=('train', 'validation'),
        read_only=True,
      ),
      'preprocessors': [tokens],
      'output_features': {
        name: seqio.Feature(vocab, add_eos=False)
        for name in ('inputs', 'targets')
      },
    }

  return _add('imagenet', (path, pictures), seqio.TaskRegistry, arguments)


def split_to_length(dataset, sequence_length):
  """Splits 'targets' into pieces of `sequence_length['targets']` tokens.

  seqio would keep the first piece and drop the rest.
  """
  if not sequence_length or not sequence_length.get('targets'):
    return dataset
  length = sequence_length['targets']

  def pieces(example):
    ids = example['targets']
    starts = tf.data.Dataset.range(0, tf.size(ids, tf.int64), length)
    return starts.map(lambda at: {'targets': ids[at : at + length]})

  return dataset.flat_map(pieces)


def add_separator(dataset, sequence_length, *, separator):
  """Cuts 'inputs' so that the separator fits behind them, and appends it."""
  room = None
  if sequence_length and sequence_length.get('inputs'):
    room = sequence_length['inputs'] - len(separator)
    if room < 1:
      raise errors.ConfigError(
        f'{sequence_length["inputs"]} tokens for a prompt leave no room for it '
        f'beside the separator of {len(separator)} tokens; raise '
        'data.train_length and eval.lengths, or lower data.target_length'
      )

  def add(example):
    ids = example['inputs']
    return {
      **example,
      'inputs': tf.concat([ids[:room], separator], 0),
      'inputs_size': tf.size(ids),
    }

  return dataset.map(add)


def _add(name, key, registry, arguments):
  """Adds to a registry of seqio what is not there yet."""
  if _registered.get(name) == key and name in registry.names():
    return name
  registry.remove(name)
  registry.add(name, **arguments())
  _registered[name] = key
  return name


_COLUMNS = ('id', 'inputs', 'targets')


def _seqio_name(task):
  return re.sub('[^a-z0-9]+', '_', task.name)


def _encoded(row):
  return tuple(value.encode() for value in row)


def _rows(task, part):
  """Rows of a file of JSON lines, as bytes."""
  for where, record in readers.records(part.path):
    fields = {
      field: readers.field(part.path, where, record, field)
      for field in task.fields
    }
    yield from map(_encoded, task.rows(fields))


def _to_rows(dataset, task):
  """Records of TensorFlow Datasets to rows of text."""

  def rows(*values):
    record = {
      field: _python(value)
      for field, value in zip(task.fields, values, strict=True)
    }
    found = [_encoded(row) for row in task.rows(record)]
    return [seqio_files.texts(column) for column in zip(*found, strict=True)]

  def convert(record):
    values = []
    for field in task.fields:
      value = record
      for key in field.split('/'):
        value = value[key]
      values.append(value)
    columns = tf.numpy_function(
      rows, values, [tf.string] * len(_COLUMNS), stateful=False
    )
    for column in columns:
      column.set_shape([None])
    return tf.data.Dataset.from_tensor_slices(
      dict(zip(_COLUMNS, columns, strict=True))
    )

  return dataset.flat_map(convert)


def _python(value):
  """A value of a record as Python has it."""
  if isinstance(value, bytes):
    return value.decode()
  value = value.tolist()
  if isinstance(value, list):
    return [v.decode() if isinstance(v, bytes) else v for v in value]
  return value.decode() if isinstance(value, bytes) else value


def _raw_files(task, path, split):
  """The file of a split of a task's raw form, as Parts; [] for none."""
  if not task.folder:
    return []
  family = task.name.split('/')[0]
  for folder in (*paths.candidates(path, family), paths.data_folder(path)):
    for place in (
      folder / task.folder / f'{split}.jsonl',
      folder / f'{split}.jsonl',
    ):
      if place.is_file() and task.folder in place.parts:
        return [sources.Part(str(place))]
    archive = folder / f'{task.folder}.zip'
    if archive.is_file():
      ending = f'{split}.jsonl'
      found = [f for f in readers.files(archive) if f.endswith(ending)]
      return [sources.Part(file) for file in found[:1]]
  return []


def _missing_prompts(task, path, folder):
  tried, how = [str(folder)], f'tfds build {task.dataset}'
  if task.folder:
    family = task.name.split('/')[0]
    for place in paths.candidates(path, family):
      tried += [
        str(place / task.folder / '{train,validation}.jsonl'),
        str(place / f'{task.folder}.zip'),
      ]
    how += (
      f', or fetch {task.folder}.zip of '
      'https://huggingface.co/datasets/tau/scrolls, which serves as it is'
    )
  return paths.missing(
    f'{task.name} ({task.dataset} of TensorFlow Datasets)', tried, how
  )
