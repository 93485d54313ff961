"""GLUE and SuperGLUE as text: the 15 tasks that the FIRE paper mixes.

Prompts and answers follow T5 (Raffel et al., 2020,
https://arxiv.org/abs/1910.10683, Appendix D): the name of the task, then each
field after its name, in the order of the alphabet but for MultiRC and ReCoRD;
the answer is the name of the class. Only WSC differs. T5 generates the noun
that a pronoun stands for and learns from rows with the right one, so it needs
more data and leaves out WNLI, which FIRE reports. Here both spans are marked,
and the answer is True or False.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import functools
import re
from typing import Any

from lengen_jax.data import prompts

_VERSIONS = {'glue': '2.0.0', 'super_glue': '1.0.2'}
_BOOLEAN = ('False', 'True')
_NLI = ('entailment', 'neutral', 'contradiction')
_SPANS = ('span1_index', 'span1_text', 'span2_index', 'span2_text')


def _prompt(task: str, texts: Mapping[str, str]) -> str:
  return ' '.join([task, *(f'{name}: {text}' for name, text in texts.items())])


def _class_rows(
  record: Mapping[str, Any],
  *,
  task: str,
  texts: Iterable[str],
  labels: Sequence[str],
) -> list[prompts.Row]:
  """One Row: all `texts` of the record, and the name of its class."""
  prompt = _prompt(task, {name: record[name] for name in texts})
  # The class is -1 in the test split.
  answer = labels[record['label']] if record['label'] >= 0 else ''
  return [prompts.Row(str(record['idx']), prompt, answer)]


def _multirc_rows(
  record: Mapping[str, Any], **options: Any
) -> list[prompts.Row]:
  """One Row, without HTML; what stands before the last '/' is the question."""
  parts = [
    record[f'idx/{part}'] for part in ('paragraph', 'question', 'answer')
  ]
  idx = '/'.join(map(str, parts))
  (row,) = _class_rows({**record, 'idx': idx}, **options)
  prompt = re.sub('</?b>', '', row.prompt.replace('<br>', ' '))
  return [row._replace(prompt=prompt)]


def _record_rows(record: Mapping[str, Any]) -> list[prompts.Row]:
  """A Row for each answer; highlights of the passage become sentences."""
  passage = re.sub(r'([.?!"\'])\n@highlight\n', r'\1 ', record['passage'])
  texts = {
    'query': record['query'],
    'entities': ', '.join(record['entities']),
    'passage': passage.replace('\n@highlight\n', '. '),
  }
  query = f'{record["idx/passage"]}/{record["idx/query"]}'
  prompt = _prompt('record', texts)
  answers = dict.fromkeys(record['answers']) or ['']
  return [prompts.Row(query, prompt, answer) for answer in answers]


def _wsc_rows(record: Mapping[str, Any], **options: Any) -> list[prompts.Row]:
  """One Row, with *noun* and #pronoun# marked in its text."""
  text = record['text']
  marks = [
    (place, mark)
    for span, mark in (('span1', '*'), ('span2', '#'))
    for place in _find(text, record[f'{span}_text'], record[f'{span}_index'])
  ]
  # From the back: a mark moves what follows it.
  for place, mark in sorted(marks, reverse=True):
    text = text[:place] + mark + text[place:]
  return _class_rows({**record, 'text': text}, **options)


def _find(text: str, span: str, index: int) -> tuple[int, int]:
  """Where a span begins and ends, given the index of its first word.

  Spans may lack the punctuation or the case of the text, and a few indices are
  off by a word, so this is where `span` occurs nearest to the word. If it
  occurs nowhere, it is the word itself.

  Args:
    text: words, separated by spaces.
    span: one or more of them.
    index: the number of the first, from 0.

  Returns:
    (start, end) in characters.
  """
  words = [match.span() for match in re.finditer(r'\S+', text)]
  word = words[min(index, len(words) - 1)]
  pattern = r'\s+'.join(map(re.escape, span.split()))
  matches = re.finditer(rf'(?<!\w){pattern}(?!\w)', text, re.IGNORECASE)
  return min(
    (match.span() for match in matches),
    key=lambda place: abs(place[0] - word[0]),
    default=word,
  )


def _task(
  suite: str,
  name: str,
  texts: tuple[str, ...],
  labels: tuple[str, ...],
  num_train: int,
  rows: Callable[..., list[prompts.Row]] = _class_rows,
  others: tuple[str, ...] = ('idx', 'label'),
  **changes: Any,
) -> prompts.PromptTask:
  """A PromptTask of classes; `changes` are attributes that differ."""
  settings: dict[str, Any] = dict(
    name=f'{suite}/{name}',
    dataset=f'{suite}/{name}:{_VERSIONS[suite]}',
    fields=(*texts, *others),
    rows=functools.partial(rows, task=name, texts=texts, labels=labels),
    # Enough for the longest name of a class in bytes.
    target_length=16,
    num_train=num_train,
    labels=labels,
  )
  return prompts.PromptTask(**settings | changes)


_glue = functools.partial(_task, 'glue')
_super_glue = functools.partial(_task, 'super_glue')
_MNLI = _glue(
  'mnli',
  ('hypothesis', 'premise'),
  _NLI,
  392_702,
  splits=(('train', 'train'), ('validation', 'validation_matched')),
)

# By short name. Records are the rates of T5's mixtures, WNLI and WSC those of
# https://www.tensorflow.org/datasets/catalog. RTE is in both suites: the same
# records, taken once.
TASKS = {
  # The question first: what is cut away is at the end.
  'boolq': _super_glue('boolq', ('question', 'passage'), _BOOLEAN, 9_427),
  'cb': _super_glue(
    'cb',
    ('hypothesis', 'premise'),
    ('entailment', 'contradiction', 'neutral'),
    250,
  ),
  'cola': _glue('cola', ('sentence',), ('unacceptable', 'acceptable'), 8_551),
  'copa': _super_glue(
    'copa',
    ('choice1', 'choice2', 'premise', 'question'),
    ('choice1', 'choice2'),
    400,
  ),
  'mnli': _MNLI,
  # For evaluation alone: genres that the training split has not.
  'mnli_mismatched': dataclasses.replace(
    _MNLI,
    name='glue/mnli_mismatched',
    num_train=0,
    splits=(('validation', 'validation_mismatched'),),
  ),
  'mrpc': _glue(
    'mrpc',
    ('sentence1', 'sentence2'),
    ('not_equivalent', 'equivalent'),
    3_668,
  ),
  'multirc': _super_glue(
    'multirc',
    ('question', 'answer', 'paragraph'),
    _BOOLEAN,
    27_243,
    rows=_multirc_rows,
    others=('idx/paragraph', 'idx/question', 'idx/answer', 'label'),
  ),
  'qnli': _glue(
    'qnli', ('question', 'sentence'), ('entailment', 'not_entailment'), 104_743
  ),
  'qqp': _glue(
    'qqp', ('question1', 'question2'), ('not_duplicate', 'duplicate'), 363_849
  ),
  'record': prompts.PromptTask(
    name='super_glue/record',
    dataset='super_glue/record:1.0.2',
    fields=(
      *('query', 'entities', 'passage', 'answers'),
      *('idx/passage', 'idx/query'),
    ),
    rows=_record_rows,
    target_length=64,
    # As T5 counts them: one for each answer, of 100,730 queries.
    num_train=138_854,
  ),
  'rte': _super_glue(
    'rte', ('hypothesis', 'premise'), ('entailment', 'not_entailment'), 2_490
  ),
  'sst2': _glue('sst2', ('sentence',), ('negative', 'positive'), 67_349),
  'wic': _super_glue(
    'wic', ('sentence1', 'sentence2', 'word'), _BOOLEAN, 5_428
  ),
  'wnli': _glue(
    'wnli', ('sentence1', 'sentence2'), ('not_entailment', 'entailment'), 635
  ),
  'wsc': _super_glue(
    'wsc',
    ('text',),
    _BOOLEAN,
    554,
    rows=_wsc_rows,
    others=(*_SPANS, 'idx', 'label'),
    # Where the texts of spans occur in the text.
    dataset='super_glue/wsc.fixed:1.0.2',
  ),
}
# Those that are trained on together.
MIXTURE = tuple(name for name, task in TASKS.items() if task.num_train)
