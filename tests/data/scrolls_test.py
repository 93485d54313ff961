"""Tests `lengen_jax/data/scrolls.py`."""

import pytest

from lengen_jax.data import prompts, scrolls
from lengen_jax.evaluation.metrics import scrolls as metric

# Examples of train, validation and test together: Table 1 of the paper,
# https://arxiv.org/abs/2201.03533. Those held out: TensorFlow Datasets.
EXAMPLES = {
  'contract_nli': (10_319, 1_037 + 2_091),
  'gov_report': (19_402, 972 + 973),
  'narrative_qa': (71_187, 5_878 + 10_306),
  'qasper': (5_692, 1_726 + 1_399),
  'qmsum': (1_810, 272 + 281),
  'quality': (6_737, 2_086 + 2_128),
  'summ_screen_fd': (4_348, 338 + 337),
}
RECORD = {
  'id': 'a1',
  'pid': 'a1_0',
  'input': ' Who left?\n\n The  cat\tleft.\n',
  'output': 'the cat ',
}


def test_tasks_are_those_of_the_benchmark():
  assert set(scrolls.TASKS) == set(metric.TASKS)


@pytest.mark.parametrize('name', scrolls.TASKS)
def test_a_row_is_the_record_unchanged(name):
  task = scrolls.TASKS[name]
  record = {field: RECORD[field] for field in task.fields}
  assert task.rows(record) == [
    prompts.Row('a1', ' Who left?\n\n The  cat\tleft.\n', 'the cat ')
  ]


@pytest.mark.parametrize('output', [None, ''])
def test_a_row_of_the_test_split(output):
  (row,) = scrolls.TASKS['qasper'].rows({**RECORD, 'output': output})
  assert row.answer == ''


def test_rows_of_one_question():
  rows = [
    *scrolls.TASKS['narrative_qa'].rows(RECORD),
    *scrolls.TASKS['narrative_qa'].rows({**RECORD, 'output': 'a cat'}),
  ]
  asked, answers = prompts.group(rows)
  assert asked == {'a1': RECORD['input']}
  assert answers == {'a1': ['the cat ', 'a cat']}


@pytest.mark.parametrize('name', scrolls.TASKS)
def test_where_a_task_lies(name):
  task = scrolls.TASKS[name]
  assert task.name == f'scrolls/{name}'
  assert task.dataset == f'scrolls/{name}:1.0.0'
  assert task.folder == name
  assert task.splits == (('train', 'train'), ('validation', 'validation'))
  assert task.labels == ()


@pytest.mark.parametrize('name', scrolls.TASKS)
def test_records_add_up_to_those_of_the_paper(name):
  total, held_out = EXAMPLES[name]
  assert scrolls.TASKS[name].num_train == total - held_out


def test_lengths_of_answers():
  lengths = {name: task.target_length for name, task in scrolls.TASKS.items()}
  assert lengths == {
    'contract_nli': 16,
    'gov_report': 1024,
    'narrative_qa': 128,
    'qasper': 128,
    'qmsum': 512,
    'quality': 128,
    'summ_screen_fd': 512,
  }
