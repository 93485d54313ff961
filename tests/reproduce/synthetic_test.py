"""Tests `lengen_jax/reproduce/synthetic`: our readers take what they write."""

import collections
import re
import sys

import pytest

from lengen_jax import data, errors
from lengen_jax.data import glue as glue_tasks
from lengen_jax.data import menu, prompts, readers
from lengen_jax.data import scrolls as scrolls_tasks
from lengen_jax.evaluation import config as eval_config
from lengen_jax.reproduce.synthetic import datasets, glue, pictures, scrolls

# seqio is not built for other systems; see setup.py.
needs_seqio = pytest.mark.skipif(
  sys.platform != 'linux', reason='reads through seqio'
)


@pytest.fixture(scope='module')
def documents(tmp_path_factory):
  """The stand-in of SCROLLS."""
  folder = tmp_path_factory.mktemp('scrolls')
  scrolls.write(folder)
  return folder


@pytest.fixture(scope='module')
def few(tmp_path_factory):
  """Few records of three tasks of GLUE, and few pictures."""
  folder = tmp_path_factory.mktemp('few')
  write_few(folder)
  return folder


def write_few(folder):
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(glue_tasks, 'MIXTURE', ('mnli', 'multirc', 'record'))
    patch.setattr(scrolls, 'SIZES', {'train': 10, 'validation': 8, 'test': 8})
    patch.setattr(glue, 'SIZES', {'train': 20, 'held_out': 8})
    patch.setattr(pictures, 'SIZES', {'train': 20, 'validation': 8})
    for module in (glue, pictures, scrolls):
      module.write(folder)


def contents(folder):
  return {
    str(file.relative_to(folder)): file.read_bytes()
    for file in folder.rglob('*')
    if file.is_file()
  }


def rows(folder, name, use):
  """All Rows of a task of SCROLLS."""
  task = scrolls_tasks.TASKS[name]
  (part,) = prompts.raw_files(task, str(folder))[use]
  return [
    row for _, record in readers.records(part.path) for row in task.rows(record)
  ]


def config(folder, task, **fields):
  fields = dict(train_length=128, batch_size=4) | fields
  return data.DataConfig(source='seqio', task=task, raw=str(folder), **fields)


@pytest.mark.parametrize('name', scrolls_tasks.TASKS)
def test_documents(documents, name):
  menu.check_present(f'scrolls/{name}', str(documents))
  asked, answers = prompts.group(rows(documents, name, 'validation'))
  assert len(asked) == 200
  assert len(prompts.group(rows(documents, name, 'train'))[0]) == 1500
  assert all(map(all, answers.values()))
  # Few are alike, and so are the splits.
  assert len({*asked.values()}) > 180
  learned = {row.prompt for row in rows(documents, name, 'train')}
  assert len(learned & {*asked.values()}) < 20
  # No constant answer is right in half of them.
  counts = collections.Counter(each[0] for each in answers.values())
  assert max(counts.values()) < 100


def test_answers_of_documents(documents):
  found = rows(documents, 'contract_nli', 'validation')
  labels = {'Entailment', 'Contradiction', 'Not mentioned'}
  assert {row.answer for row in found} == labels
  for row in rows(documents, 'quality', 'validation'):
    assert row.answer in re.findall(r'\n \([A-D]\) (\w+)', row.prompt)
  _, answers = prompts.group(rows(documents, 'narrative_qa', 'validation'))
  assert {len(each) for each in answers.values()} == {2}
  short = {row.answer for row in rows(documents, 'qasper', 'validation')}
  assert {'Yes', 'No', 'Unanswerable'} < short
  for row in rows(documents, 'gov_report', 'validation'):
    first, second = re.findall(r'\w.*?\.', row.answer)
    assert 0 <= row.prompt.find(first) < row.prompt.find(second)
  for row in rows(documents, 'qmsum', 'validation'):
    assert row.answer in row.prompt


def test_the_fact_asked_for_is_in_the_document(documents):
  found = rows(documents, 'narrative_qa', 'validation')[::2]
  for row in found:
    (thing,) = re.match(r'Where is the (\w+)\?', row.prompt).groups()
    assert re.findall(rf'The {thing} is in (\w+)\.', row.prompt) == [row.answer]
  # More of it is seen in longer rows, of any length that is tested.
  assert min(len(row.prompt) for row in found) > 512
  places = [row.prompt.find(f' in {row.answer}.') for row in found]
  assert sum(place < 100 for place in places) < 150


def test_answers_of_the_test_split_are_not_public(documents):
  file = documents / 'scrolls' / 'qasper' / 'test.jsonl'
  outputs = {record['output'] for _, record in readers.records(file)}
  assert outputs == {None}


@pytest.mark.parametrize('name', glue_tasks.MIXTURE)
def test_sentences(name):
  task = glue_tasks.TASKS[name]
  found = glue.splits(name)
  held_out = 200 if name == 'mnli' else 100
  train = found.pop('train')
  assert len(train) == min(1000, task.num_train)
  assert sum(map(len, found.values())) == held_out
  read = []
  for record in train:
    fields = {
      field: record['idx'][field[4:]] if '/' in field else record[field]
      for field in task.fields
    }
    read += task.rows(fields)
  assert len({row.id for row in read}) == len(train)
  counts = collections.Counter(row.answer for row in read)
  if task.labels:
    assert {*counts} == {*task.labels}
  assert max(counts.values()) <= 0.76 * len(read)


def test_spans():
  for record in glue.splits('wsc')['train']:
    words = record['text'].split()
    for span in ('span1', 'span2'):
      assert words[record[f'{span}_index']] == record[f'{span}_text']
  for record in glue.splits('wic')['train']:
    for number in '12':
      first, last = record[f'start{number}'], record[f'end{number}']
      assert record[f'sentence{number}'][first:last] == record['word']
  for record in glue.splits('record')['train']:
    assert {*record['answers']} <= {*record['entities']}
    assert all(name in record['passage'] for name in record['entities'])


@pytest.mark.some(2)
@needs_seqio
@pytest.mark.parametrize(
  'task',
  [
    'glue/mnli_mismatched',
    'super_glue/multirc',
    'super_glue/record',
    'scrolls/narrative_qa',
  ],
)
def test_prompts_are_read(few, task):
  found = data.load(config(few, task, target_length=16))
  (prompt_task,) = found.tasks
  examples = found.examples(0, 128)
  assert len(examples) == 8
  for example in examples:
    assert all(example.references)
    if prompt_task.labels:
      assert {*example.references} <= {*prompt_task.labels}
  if prompt_task.num_train:
    batch = found.training(found._config, seed=0).next()
    assert batch['inputs'].shape == (4, 128)


@needs_seqio
def test_pictures_are_read(few):
  found = data.load(config(few, 'imagenet', train_length=110), 420)
  tested = found.evaluation(
    eval_config.EvalConfig(lengths=(110, 420), batch_tokens=9999)
  )
  assert tested.tokens == 8
  for length in (110, 420):
    batch = tested.batch(length)
    assert batch['encoder_inputs'].shape == (8, length)
    assert {*batch['targets'].ravel() - 256} <= {*pictures.CLASSES}
  assert found.training(
    config(few, 'imagenet', train_length=110), seed=0
  ).next()['encoder_inputs'].shape == (4, 110)


@needs_seqio
def test_the_same_bytes_twice(few, tmp_path, monkeypatch):
  write_few(tmp_path)
  assert contents(tmp_path) == contents(few)
  # What is there is not written again.
  monkeypatch.setattr(datasets, 'tempfile', None)
  write_few(tmp_path)


def test_an_interrupted_write(tmp_path, monkeypatch):
  sizes = dict.fromkeys(('train', 'validation', 'test'), 5)
  monkeypatch.setattr(scrolls, 'SIZES', sizes)
  # As a write leaves it that was killed.
  killed = tmp_path / '.scrolls-abc' / 'qasper'
  killed.mkdir(parents=True)
  (killed / 'train.jsonl').write_text('{"id": "a", "inp')

  def interrupt(rng):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    # The last of them.
    patch.setitem(scrolls.RECORDS, 'summ_screen_fd', interrupt)
    with pytest.raises(KeyboardInterrupt):
      scrolls.write(tmp_path)
  assert [path.name for path in tmp_path.iterdir()] == ['.scrolls-abc']
  for name in scrolls_tasks.TASKS:
    with pytest.raises(errors.CorpusError, match='there is no'):
      menu.check_present(f'scrolls/{name}', str(tmp_path))
  scrolls.write(tmp_path)
  for name in scrolls_tasks.TASKS:
    menu.check_present(f'scrolls/{name}', str(tmp_path))
    assert len(prompts.group(rows(tmp_path, name, 'train'))[0]) == 5


@needs_seqio
def test_an_interrupted_write_of_one_dataset(tmp_path, monkeypatch):
  monkeypatch.setattr(glue_tasks, 'MIXTURE', ('cb', 'copa'))
  monkeypatch.setattr(glue, 'SIZES', {'train': 5, 'held_out': 100})

  def interrupt(rng, count):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setitem(glue.RECORDS, 'copa', interrupt)
    with pytest.raises(KeyboardInterrupt):
      glue.write(tmp_path)
  menu.check_present('super_glue/cb', str(tmp_path))
  with pytest.raises(errors.CorpusError, match='there is no'):
    menu.check_present('super_glue/copa', str(tmp_path))
  glue.write(tmp_path)
  menu.check_present('super_glue/copa', str(tmp_path))
