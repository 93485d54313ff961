"""Tests `lengen_jax/data/glue.py`."""

import pytest

from lengen_jax.data import glue, prompts
from lengen_jax.evaluation.metrics import superglue

# Task: fields but for `idx` and `label`; the prompt; the answers by class.
CLASSES = {
  'boolq': (
    {'question': 'is it wet', 'passage': 'Rain is wet.'},
    'boolq question: is it wet passage: Rain is wet.',
    ['False', 'True'],
  ),
  'cb': (
    {'premise': 'It may rain.', 'hypothesis': 'it rains'},
    'cb hypothesis: it rains premise: It may rain.',
    ['entailment', 'contradiction', 'neutral'],
  ),
  'cola': (
    {'sentence': 'Them went.'},
    'cola sentence: Them went.',
    ['unacceptable', 'acceptable'],
  ),
  'copa': (
    {
      'premise': 'The cup broke.',
      'choice1': 'It fell.',
      'choice2': 'It sang.',
      'question': 'cause',
    },
    'copa choice1: It fell. choice2: It sang. premise: The cup broke. '
    'question: cause',
    ['choice1', 'choice2'],
  ),
  'mnli': (
    {'premise': 'All sing.', 'hypothesis': 'Ann sings.'},
    'mnli hypothesis: Ann sings. premise: All sing.',
    ['entailment', 'neutral', 'contradiction'],
  ),
  # The model is asked as in `mnli`, which it has learned.
  'mnli_mismatched': (
    {'premise': 'All sing.', 'hypothesis': 'Ann sings.'},
    'mnli hypothesis: Ann sings. premise: All sing.',
    ['entailment', 'neutral', 'contradiction'],
  ),
  'mrpc': (
    {'sentence1': 'He ran.', 'sentence2': 'He was running.'},
    'mrpc sentence1: He ran. sentence2: He was running.',
    ['not_equivalent', 'equivalent'],
  ),
  'qnli': (
    {'question': 'Who ran?', 'sentence': 'He ran.'},
    'qnli question: Who ran? sentence: He ran.',
    ['entailment', 'not_entailment'],
  ),
  'qqp': (
    {'question1': 'Why?', 'question2': 'How so?'},
    'qqp question1: Why? question2: How so?',
    ['not_duplicate', 'duplicate'],
  ),
  'rte': (
    {'premise': 'All sing.', 'hypothesis': 'Ann sings.'},
    'rte hypothesis: Ann sings. premise: All sing.',
    ['entailment', 'not_entailment'],
  ),
  'sst2': (
    {'sentence': 'a joy '},
    'sst2 sentence: a joy ',
    ['negative', 'positive'],
  ),
  'wic': (
    {'word': 'bank', 'sentence1': 'a bank', 'sentence2': 'the river bank'},
    'wic sentence1: a bank sentence2: the river bank word: bank',
    ['False', 'True'],
  ),
  'wnli': (
    {'sentence1': 'Ann saw Bo. She ran.', 'sentence2': 'Ann ran.'},
    'wnli sentence1: Ann saw Bo. She ran. sentence2: Ann ran.',
    ['not_entailment', 'entailment'],
  ),
  'wsc': (
    {
      'text': 'Ann told Bo that he won.',
      'span1_text': 'Bo',
      'span1_index': 2,
      'span2_text': 'he',
      'span2_index': 4,
    },
    'wsc text: Ann told *Bo* that #he# won.',
    ['False', 'True'],
  ),
}
MULTIRC = {
  'question': 'Who <b>ran</b>?',
  'answer': 'Ann',
  'paragraph': '<b>Sent 1: </b>Ann ran.<br><b>Sent 2: </b>Bo sat.<br>',
  'idx/paragraph': 3,
  'idx/question': 14,
  'idx/answer': 15,
  'label': 1,
}
RECORD = {
  'query': 'The @placeholder won.',
  'entities': ['Ajax', 'Rome', 'ajax'],
  'passage': 'Ajax met Roma.\n@highlight\nRome lost\n@highlight\n"Ajax won"',
  'answers': ['Ajax', 'ajax', 'Ajax'],
  'idx/passage': 7,
  'idx/query': 21,
}


def read(task, record):
  """Rows of a record that has no fields but those of the task."""
  return task.rows({field: record[field] for field in task.fields})


def test_tasks():
  assert set(glue.TASKS) == {*CLASSES, 'multirc', 'record'}
  assert set(glue.MIXTURE) == set(superglue.FIRE_TASKS)
  assert {*glue.MIXTURE, 'mnli_mismatched'} == set(glue.TASKS)
  assert set(glue.TASKS) == set(superglue.TASKS)


@pytest.mark.parametrize('name', CLASSES)
def test_rows_of_classes(name):
  texts, prompt, words = CLASSES[name]
  task = glue.TASKS[name]
  assert task.labels == tuple(words)
  for label, word in enumerate(words):
    record = {**texts, 'idx': 9, 'label': label}
    assert read(task, record) == [prompts.Row('9', prompt, word)]


@pytest.mark.parametrize('name', [*CLASSES, 'multirc'])
def test_rows_of_the_test_split(name):
  texts = CLASSES[name][0] if name in CLASSES else MULTIRC
  (row,) = read(glue.TASKS[name], {**texts, 'idx': 0, 'label': -1})
  assert row.answer == ''


def test_rows_of_multirc():
  prompt = (
    'multirc question: Who ran? answer: Ann paragraph: Sent 1: Ann ran. '
    'Sent 2: Bo sat. '
  )
  task = glue.TASKS['multirc']
  assert read(task, MULTIRC) == [prompts.Row('3/14/15', prompt, 'True')]
  (row,) = read(task, {**MULTIRC, 'label': 0})
  assert row.answer == task.labels[0] == 'False'


def test_rows_of_record():
  prompt = (
    'record query: The @placeholder won. entities: Ajax, Rome, ajax '
    'passage: Ajax met Roma. Rome lost. "Ajax won"'
  )
  assert read(glue.TASKS['record'], RECORD) == [
    prompts.Row('7/21', prompt, 'Ajax'),
    prompts.Row('7/21', prompt, 'ajax'),
  ]


@pytest.mark.parametrize('end', '.?!"\'')
def test_highlights_of_record_become_sentences(end):
  passage = f'A cat{end}\n@highlight\nA dog\n@highlight\nA cow'
  row, *_ = read(glue.TASKS['record'], {**RECORD, 'passage': passage})
  assert row.prompt.endswith(f'passage: A cat{end} A dog. A cow')


def test_record_of_the_test_split():
  (row,) = read(glue.TASKS['record'], {**RECORD, 'answers': []})
  assert (row.id, row.answer) == ('7/21', '')


@pytest.mark.parametrize(
  ('text', 'spans', 'want'),
  [
    # The second pronoun comes first, at the start of the text.
    ('It hit the old car.', ('old car', 3, 'It', 0), '#It# hit the *old car*.'),
    # The index tells which of several is meant.
    (
      'He saw him. "Let him,"',
      ('him', 2, 'him', 4),
      'He saw *him*. "Let #him#,"',
    ),
    # It is off by a word; `use` holds no pronoun.
    ('They use it , now', ('They', 0, 'it', 1), '*They* use #it# , now'),
    # Another case, another number of spaces.
    ('The  big dog ate', ('the big dog', 0, 'ate', 3), '*The  big dog* #ate#'),
    # It is not in the text.
    ('Ann, and Bo ran', ('Ann and Bo', 0, 'ran', 3), '*Ann,* and Bo #ran#'),
    ('Ann saw Bo', ('Ann', 0, 'she', 8), '*Ann* saw #Bo#'),
    # What looks like a pattern is text.
    ('Is Bo (5) 15?', ('(5)', 2, '15?', 3), 'Is Bo *(5)* #15?#'),
    # Parts of words are no words.
    ('he saw the man', ('man', 3, 'he', 2), '#he# saw the *man*'),
    ('he met heirs', ('met', 1, 'he', 2), '#he# *met* heirs'),
    # One lies in the other.
    ('Ann met her son', ('her son', 2, 'her', 2), 'Ann met #*her# son*'),
  ],
)
def test_marks_of_wsc(text, spans, want):
  names = ('span1_text', 'span1_index', 'span2_text', 'span2_index')
  record = dict(zip(names, spans, strict=True))
  record |= {'text': text, 'idx': 0, 'label': 1}
  (row,) = read(glue.TASKS['wsc'], record)
  assert row.prompt == f'wsc text: {want}'


def test_where_tasks_lie():
  suites = {
    'glue': 'cola mnli mnli_mismatched mrpc qnli qqp sst2 wnli',
    'super_glue': 'boolq cb copa multirc record rte wic wsc',
  }
  versions = {'glue': '2.0.0', 'super_glue': '1.0.2'}
  # WSC has a version whose spans are mended; MNLI holds both of its splits.
  others = {'wsc': 'wsc.fixed', 'mnli_mismatched': 'mnli'}
  for suite, names in suites.items():
    for name in names.split():
      task = glue.TASKS[name]
      assert task.name == f'{suite}/{name}'
      config = others.get(name, name)
      assert task.dataset == f'{suite}/{config}:{versions[suite]}'
      assert task.folder == ''
  assert len(sum(map(str.split, suites.values()), [])) == len(glue.TASKS)


def test_splits():
  splits = {name: dict(task.splits) for name, task in glue.TASKS.items()}
  assert splits.pop('mnli_mismatched') == {
    'validation': 'validation_mismatched'
  }
  assert splits.pop('mnli') == {
    'train': 'train',
    'validation': 'validation_matched',
  }
  usual = {'train': 'train', 'validation': 'validation'}
  assert all(value == usual for value in splits.values())


def test_rates_of_the_mixture():
  rates = {name: task.num_train for name, task in glue.TASKS.items()}
  assert rates == {
    'boolq': 9_427,
    'cb': 250,
    'cola': 8_551,
    'copa': 400,
    'mnli': 392_702,
    'mnli_mismatched': 0,
    'mrpc': 3_668,
    'multirc': 27_243,
    'qnli': 104_743,
    'qqp': 363_849,
    'record': 138_854,
    'rte': 2_490,
    'sst2': 67_349,
    'wic': 5_428,
    'wnli': 635,
    'wsc': 554,
  }


def test_names_of_classes_fit():
  # In bytes, with an end.
  for task in glue.TASKS.values():
    assert all(len(label) < task.target_length for label in task.labels)
