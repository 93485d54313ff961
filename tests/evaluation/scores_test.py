"""Tests `lengen_jax/evaluation/scores.py`."""

import pytest

from lengen_jax import errors
from lengen_jax.data import glue, prompts, scrolls
from lengen_jax.evaluation import metrics, scores
from lengen_jax.evaluation.metrics import superglue


def test_scrolls():
  got = scores.score(
    scrolls.TASKS['qasper'],
    {'b': 'a red car', 'a': 'blue'},
    {'a': ['red', 'Blue.'], 'b': ['red bike']},
  )
  # The second shares one of two words with each of the two.
  assert got == {
    'f1': 75.0,
    'num_predicted': 2,
    'mean_prediction_length_characters': 6.5,
    'score': 75.0,
  }


@pytest.mark.parametrize('name', ['contract_nli', 'quality'])
def test_scrolls_by_exact_match(name):
  got = scores.score(
    scrolls.TASKS[name], {'a': 'yes', 'b': 'no'}, {'a': ['Yes.'], 'b': ['on']}
  )
  assert got['score'] == got['exact_match'] == 50


def test_scrolls_by_rouge():
  # ROUGE-1 and ROUGE-L 2/3, ROUGE-2 1/2.
  got = scores.score(
    scrolls.TASKS['qmsum'], {'a': 'we met now'}, {'a': ['we met then']}
  )
  assert got['score'] == pytest.approx(100 * (2 / 9) ** (1 / 3), abs=1e-4)


def test_classes():
  # Two of four are right; the class of the third is no class of CB.
  got = scores.score(
    glue.TASKS['cb'],
    {'0': 'neutral', '1': 'contradiction', '2': 'True', '3': 'entailment'},
    {
      '3': ['entailment'],
      '2': ['neutral'],
      '1': ['neutral'],
      '0': ['neutral'],
    },
  )
  assert got['accuracy'] == got['score'] == 50
  assert got['f1'] == pytest.approx(100 * (1 + 0 + 1 / 2) / 3)


@pytest.mark.parametrize(
  ('text', 'want'),
  [
    ('not_entailment', 100),
    (' not_entailment\n', 100),
    ('entailment', 0),
    ('Not_entailment', 0),
    ('not_entailment.', 0),
    ('not entailment', 0),
    ('1', 0),
    ('', 0),
  ],
)
def test_text_must_name_the_class(text, want):
  got = scores.score(glue.TASKS['rte'], {'0': text}, {'0': ['not_entailment']})
  assert got == {'accuracy': want, 'score': want}


@pytest.mark.parametrize('label', ['False', 'True'])
def test_other_text_is_wrong_whatever_is_right(label):
  got = scores.score(glue.TASKS['boolq'], {'0': 'maybe'}, {'0': [label]})
  assert got['score'] == 0


def multirc(predictions, answers):
  """Scores MultiRC from words by 'paragraph/question/answer'."""
  references = {key: [answer] for key, answer in answers.items()}
  return scores.score(glue.TASKS['multirc'], predictions, references)


def test_multirc_needs_all_answers_of_a_question():
  # Questions are numbered within paragraphs: 0/1 and 1/1 are two.
  right = {
    '0/1/0': 'True',
    '1/1/0': 'True',
    '0/1/1': 'False',
    '1/1/1': 'True',
    '1/11/1': 'False',
  }
  assert multirc(right, right)['score'] == 100
  got = multirc({**right, '1/1/0': 'False'}, right)
  assert got['score'] == got['exact_match'] == pytest.approx(200 / 3)
  assert got['f1'] == pytest.approx(80)
  got = multirc({**right, '1/1/0': 'False', '1/1/1': 'False'}, right)
  assert got['score'] == pytest.approx(200 / 3)
  got = multirc({**right, '0/1/1': 'none', '1/1/0': 'False'}, right)
  assert got['score'] == pytest.approx(100 / 3)


def test_multirc_from_records():
  task = glue.TASKS['multirc']
  texts = {'question': 'q', 'answer': 'a', 'paragraph': 'p'}
  rows = [
    *(task.rows(texts | ids(0, 0, 0) | {'label': 1})),
    *(task.rows(texts | ids(0, 0, 1) | {'label': 0})),
    *(task.rows(texts | ids(0, 1, 2) | {'label': 0})),
  ]
  _, references = prompts.group(rows)
  assert len(references) == 3
  got = scores.score(task, dict.fromkeys(references, 'False'), references)
  assert got['score'] == 50


def ids(paragraph, question, answer):
  return {
    'idx/paragraph': paragraph,
    'idx/question': question,
    'idx/answer': answer,
  }


def test_record_takes_the_best_answer():
  references = {'0/1': ['Ann Lee', 'Ann'], '0/2': ['Bo'], '1/3': ['Rome']}
  predictions = {'0/1': 'ann', '0/2': 'Ann', '1/3': 'in Rome'}
  got = scores.score(glue.TASKS['record'], predictions, references)
  assert got['score'] == got['exact_match'] == pytest.approx(100 / 3)
  assert got['f1'] == pytest.approx(100 * (1 + 2 / 3) / 3)


@pytest.mark.parametrize('task', [*glue.TASKS.values()], ids=lambda t: t.name)
def test_right_answers_score_all(task):
  answers = task.labels or ('Rome', 'Oslo')
  references = {f'0/{i}/0': [answer] for i, answer in enumerate(answers)}
  predictions = {key: texts[0] for key, texts in references.items()}
  got = scores.score(task, predictions, references)
  assert list(got.values()) == pytest.approx([100] * len(got))
  names = superglue.TASKS[task.name.split('/')[1]]
  assert list(got) == [*names, 'score']


@pytest.mark.parametrize(
  ('task', 'answer'),
  [
    (glue.TASKS['sst2'], 'positive'),
    (glue.TASKS['record'], 'Rome'),
    (scrolls.TASKS['quality'], 'Rome'),
  ],
  ids=lambda value: getattr(value, 'name', ''),
)
def test_ids_must_go_together(task, answer):
  references = {'a': [answer], 'b': [answer]}
  with pytest.raises(errors.MetricError, match="'b'"):
    scores.score(task, {'a': answer}, references)
  with pytest.raises(errors.MetricError, match="'c'"):
    scores.score(task, {'a': answer, 'b': answer, 'c': answer}, references)
  # As many of each, but not the same.
  with pytest.raises(errors.MetricError, match="'b'.*'c'"):
    scores.score(task, {'a': answer, 'c': answer}, references)
  with pytest.raises(errors.MetricError, match='nothing to score'):
    scores.score(task, {}, {})


def test_a_message_names_a_few_ids():
  references = {str(i): ['positive'] for i in range(7)}
  with pytest.raises(
    errors.MetricError, match=r"^7 ids .*: '0', '1', '2', '3', '4', \.\.\.$"
  ):
    scores.score(glue.TASKS['sst2'], {}, references)


@pytest.mark.parametrize(
  'task',
  [glue.TASKS['sst2'], glue.TASKS['record'], scrolls.TASKS['qasper']],
  ids=lambda task: task.name,
)
def test_answers_of_a_test_split(task):
  with pytest.raises(
    errors.MetricError, match=f'{task.name} has an answer.*use validation'
  ):
    scores.score(task, {'a': 'x', 'b': 'x'}, {'a': [''], 'b': ['']})


def test_one_empty_answer_is_an_answer():
  got = scores.score(
    scrolls.TASKS['quality'], {'a': 'x', 'b': 'x'}, {'a': [''], 'b': ['x']}
  )
  assert got['score'] == 50


def test_a_class_has_one_name():
  with pytest.raises(errors.MetricError, match="'a' has 2 answers"):
    scores.score(
      glue.TASKS['sst2'], {'a': 'positive'}, {'a': ['positive', 'negative']}
    )


def test_average_of_scrolls():
  got = {task.name: 10.0 for task in scrolls.TASKS.values()}
  assert scores.average(got | {'scrolls/qasper': 24.0}) == pytest.approx(12)
  # Each score is rounded to four decimals first.
  got = dict.fromkeys(got, 1.00004)
  assert scores.average(got) == pytest.approx(1, abs=1e-12)
  del got['scrolls/qmsum']
  assert scores.average(got) is None


@pytest.mark.parametrize(
  ('row', 'average'),
  [
    ((16.24, 82.93, 14.58, 9.55, 15.87, 16.31, 24.02), 25.64),
    ((11.01, 79.94, 15.13, 9.4, 15.84, 15.5, 9.92), 22.39),
  ],
)
def test_average_of_scrolls_in_the_paper(row, average):
  # FIRE and RoPE in https://arxiv.org/abs/2310.04418, Table 1.
  tasks = 'qasper contract_nli qmsum narrative_qa summ_screen_fd gov_report'
  names = [f'scrolls/{task}' for task in [*tasks.split(), 'quality']]
  got = scores.average(dict(zip(names, row, strict=True)))
  assert got == pytest.approx(average, abs=0.0051)


# https://arxiv.org/abs/2310.04418, Table 13: tasks, and FIRE at both sizes.
TABLE_13 = (
  'boolq cb cola copa mnli mrpc qnli qqp rte sst2 wic wnli multirc record wsc'
).split()
FIRE_BASE = (
  *(76.76, 83.93, 73.63, 59.0, 83.01, 80.39, 87.83, 89.97),
  *(75.81, 92.66, 64.58, 60.56, 25.81, 46.89, 66.35),
)
FIRE_LARGE = (
  *(79.6, 85.71, 79.1, 65.0, 84.93, 81.13, 90.37, 90.84),
  *(80.87, 93.92, 67.71, 59.16, 31.9, 54.67, 72.12),
)


@pytest.mark.parametrize(
  ('row', 'average'), [(FIRE_BASE, 71.15), (FIRE_LARGE, 74.47)]
)
def test_average_of_fire(row, average):
  assert set(superglue.FIRE_TASKS) == set(TABLE_13) == set(glue.MIXTURE)
  names = [glue.TASKS[name].name for name in TABLE_13]
  got = dict(zip(names, row, strict=True))
  want = scores.average(got)
  assert want == pytest.approx(average, abs=0.005)
  # The split of other genres is reported beside it.
  assert scores.average({**got, 'glue/mnli_mismatched': 90.0}) == want
  del got['super_glue/wsc']
  assert scores.average(got) is None
  assert scores.average({**got, 'glue/mnli_mismatched': 90.0}) is None


def test_average_of_nothing_and_of_both():
  names = [task.name for task in (scrolls.TASKS | glue.TASKS).values()]
  assert scores.average({}) is None
  assert scores.average(dict.fromkeys(names, 1.0)) is None


def test_average_of_an_unknown_task():
  got = {task.name: 1.0 for task in scrolls.TASKS.values()}
  with pytest.raises(errors.MetricError, match="unknown SCROLLS task 'squad'"):
    scores.average({**got, 'scrolls/squad': 1.0})
  with pytest.raises(errors.MetricError, match="did you mean 'qmsum'"):
    scores.average({**got, 'scrolls/qmsun': 1.0})


@pytest.mark.parametrize('references', [None, 3, 'text', [], [None]])
def test_references_must_be_lists_of_strings(references):
  with pytest.raises(errors.MetricError, match='pass a list of one or more'):
    metrics.check_texts(['text'], [references])


def test_references_that_are_none():
  task = next(iter(scrolls.TASKS.values()))
  with pytest.raises(errors.MetricError, match='has an answer'):
    scores.score(task, {'a': 'text'}, {'a': None})


def test_a_class_must_be_a_string():
  task, good = glue.TASKS['sst2'], ['positive']
  with pytest.raises(errors.MetricError, match='pass a string'):
    scores.score(task, {'a': None}, {'a': good})
  for bad in (None, [None]):
    with pytest.raises(errors.MetricError, match='list of one or more'):
      scores.score(task, {'a': 'x', 'b': 'x'}, {'a': bad, 'b': good})
