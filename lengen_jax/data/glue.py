"""GLUE and SuperGLUE as text: the 15 tasks that the FIRE paper mixes.

Prompts and answers follow T5 (Raffel et al., 2020,
https://arxiv.org/abs/1910.10683, Appendix D): the name of the task, then each
field after its name, in alphabetical order except in MultiRC and ReCoRD; the
answer is the name of the class. BoolQ and WSC differ from T5. In BoolQ the
question comes first, so that a passage that is cut keeps it. In WSC, T5
generates the noun that a pronoun refers to and trains on the positive examples
only. It therefore requires more data and excludes WNLI, which the FIRE paper
reports. Here both spans are marked, and the answer is True or False.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
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
  """Returns one Row: the fields `texts` and the name of the class."""
  prompt = _prompt(task, {name: record[name] for name in texts})
  # Labels of test splits are -1.
  answer = labels[record['label']] if record['label'] >= 0 else ''
  return [prompts.Row(str(record['idx']), prompt, answer)]


def _multirc_rows(
  record: Mapping[str, Any], **options: Any
) -> list[prompts.Row]:
  """Returns one Row without HTML; its id is paragraph/question/answer."""
  parts = [
    record[f'idx/{part}'] for part in ('paragraph', 'question', 'answer')
  ]
  idx = '/'.join(map(str, parts))
  (row,) = _class_rows({**record, 'idx': idx}, **options)
  prompt = re.sub('</?b>', '', row.prompt.replace('<br>', ' '))
  return [row._replace(prompt=prompt)]


def _record_rows(record: Mapping[str, Any]) -> list[prompts.Row]:
  """Returns one Row per answer; highlights become sentences."""
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
  """Returns one Row with *noun* and #pronoun# marked in the text."""
  text = record['text']
  marks = [
    (place, mark)
    for span, mark in (('span1', '*'), ('span2', '#'))
    for place in _find(text, record[f'{span}_text'], record[f'{span}_index'])
  ]
  # Last mark first: an insertion shifts all later offsets.
  for place, mark in sorted(marks, reverse=True):
    text = text[:place] + mark + text[place:]
  return _class_rows({**record, 'text': text}, **options)


def _find(text: str, span: str, index: int) -> tuple[int, int]:
  """Returns the offsets of a span, given the index of its first word.

  The data omits punctuation or case in some spans, and some indices are off by
  one. The result is therefore the occurrence of `span` nearest to that word, or
  the word itself if `span` does not occur.

  Args:
    text: words separated by white space.
    span: one or more words.
    index: index of the first word of the span, from 0.

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
  """Returns a classification PromptTask; `changes` override attributes."""
  settings: dict[str, Any] = dict(
    name=f'{suite}/{name}',
    dataset=f'{suite}/{name}:{_VERSIONS[suite]}',
    fields=(*texts, *others),
    rows=functools.partial(rows, task=name, texts=texts, labels=labels),
    # At least the bytes of the longest class name.
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

# Tasks by short name. Numbers of training records are the mixing rates of T5;
# those of WNLI and WSC follow https://www.tensorflow.org/datasets/catalog. GLUE
# and SuperGLUE share the records of RTE, which occur here once.
TASKS = {
  # The question comes first, because truncation removes the end.
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
  # For evaluation only: genres that are absent from the training split.
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
    # As in T5: one record per answer to the 100,730 queries.
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
    # In this version the span texts occur in the text.
    dataset='super_glue/wsc.fixed:1.0.2',
  ),
}
# Short names of the tasks in the training mixture.
MIXTURE = tuple(name for name, task in TASKS.items() if task.num_train)
