"""Sentences from templates in the format of GLUE and SuperGLUE.

Each task asks the question of the original. As in the originals, single words
predict most answers; the others require both sentences, or the sentence of a
passage that contains the answer. Tasks have as many records as the originals,
up to a limit.
"""

from collections.abc import Callable
import functools
from typing import Any

import numpy as np

from lengen_jax.data import glue
from lengen_jax.hints import PathLike
from lengen_jax.reproduce.synthetic import datasets
from lengen_jax.reproduce.synthetic.sampling import (
  choose,
  Record,
  Rng,
  sample,
  shuffle,
)

# Maximum number of training records, and number of held-out records.
SIZES = {'train': 1000, 'held_out': 100}
_NAMES = ('Ada', 'Bob', 'Cleo', 'Dan', 'Eva', 'Finn')
_THINGS = ('lamp', 'ring', 'map', 'coin', 'drum', 'kite', 'vase', 'book')
_PLACES = ('hall', 'garden', 'kitchen', 'attic')
# Present and past tense.
_VERBS = (('sell', 'sold'), ('paint', 'painted'), ('mend', 'mended'))
_GOOD = ('lovely', 'clever', 'warm', 'funny')
_BAD = ('dull', 'sad', 'empty', 'poor')
# Examples of the senses of a word.
_SENSES = {
  'bank': (
    ('the bank of the river', 'a bank of mud and grass'),
    ('money in the bank', 'the bank lent him a coin'),
  ),
  'bark': (
    ('the bark of a tree', 'bark as rough as stone'),
    ('the bark of a dog', 'a loud bark at night'),
  ),
  'match': (
    ('a match to light the lamp', 'the match burnt out'),
    ('a match of two teams', 'we won the match'),
  ),
}
# Probability of the more likely of two alternatives.
_MOST = 0.8


def write(folder: PathLike) -> None:
  """Writes the missing tasks into the folder of `data.raw`."""
  for name in glue.MIXTURE:
    datasets.write(
      folder, glue.TASKS[name].dataset, functools.partial(splits, name)
    )


def splits(name: str) -> dict[str, list[Record]]:
  """Returns {split: records} of a task."""
  count = min(SIZES['train'], glue.TASKS[name].num_train)
  held_out = ['validation']
  if name == 'mnli':
    held_out = ['validation_matched', 'validation_mismatched']
  found = {}
  for number, split in enumerate(['train', *held_out]):
    rng = np.random.default_rng([list(glue.TASKS).index(name), number])
    found[split] = RECORDS[name](rng, SIZES['held_out'] if number else count)
  return found


def _each(make: Callable[[Rng], Record]) -> Callable[[Rng, int], list[Record]]:
  """Returns a function that makes numbered records."""

  def records(rng: Rng, count: int) -> list[Record]:
    return [make(rng) | {'idx': number} for number in range(count)]

  return records


def _mostly(rng: Rng, likely: Any, other: Any) -> Any:
  return likely if rng.random() < _MOST else other


def _inference(
  *labels: int, keys: tuple[str, str] = ('premise', 'hypothesis')
) -> Callable[[Rng, int], list[Record]]:
  """Returns a function that makes records of natural language inference.

  Args:
    *labels: labels of entailment, contradiction and neutral pairs.
    keys: fields of the two sentences.
  """

  def make(rng: Rng) -> Record:
    name, thing = choose(rng, _NAMES), choose(rng, _THINGS)
    _, did = choose(rng, _VERBS)
    kind = rng.integers(3)
    denied = _mostly(rng, False, True)
    said = f'{name} {"never " if denied else ""}{did} the {thing}.'
    asked = denied if kind == 0 else not denied
    hypothesis = f'{name} {"never " if asked else ""}{did} a {thing}.'
    if kind == 2:
      hypothesis = f'{name} is {choose(rng, _GOOD)}.'
    pair: Record = dict(zip(keys, (said, hypothesis), strict=True))
    return pair | {'label': labels[kind]}

  return _each(make)


def _cola(rng: Rng) -> Record:
  name, (does, did) = choose(rng, _NAMES), choose(rng, _VERBS)
  right = rng.random() < 0.6
  words = [name, did if right else does, 'the', choose(rng, _THINGS)]
  if not right and rng.random() < 0.5:
    words[1:] = [did, words[3], 'the']
  return {'sentence': ' '.join(words) + '.', 'label': int(right)}


def _sst2(rng: Rng) -> Record:
  label = int(rng.integers(2))
  words, others = (_GOOD, _BAD) if label else (_BAD, _GOOD)
  first, second = sample(rng, words, 2)
  # The last adjective determines the label.
  sentence = f'a {_mostly(rng, first, choose(rng, others))} book and '
  return {'sentence': f'{sentence}{second} in the end ', 'label': label}


def _qqp(rng: Rng) -> Record:
  thing, other = sample(rng, _THINGS, 2)
  label = int(rng.random() < 0.4)
  how = _mostly(rng, 'mend', 'sell') if label else _mostly(rng, 'sell', 'mend')
  return {
    'question1': f'How do I {how} a {thing}?',
    'question2': f'What does it take to {how} a {thing if label else other}?',
    'label': label,
  }


def _mrpc(rng: Rng) -> Record:
  name, thing, place = (choose(rng, _NAMES), choose(rng, _THINGS), 'hall')
  label = int(rng.random() < 0.6)
  other = place if label else choose(rng, _PLACES[1:])
  return {
    'sentence1': f'{name} found the {thing} in the {place}.',
    'sentence2': f'In the {other}, {name} found a {thing}.',
    'label': label,
  }


def _qnli(rng: Rng) -> Record:
  thing, other = sample(rng, _THINGS, 2)
  label = int(rng.integers(2))
  # Without an answer: about another thing, or without its place.
  about, where = thing, f'in the {choose(rng, _PLACES)}'
  if label:
    about = _mostly(rng, thing, other)
    where = choose(rng, _GOOD) if about == thing else where
  return {
    'question': f'Where is the {thing}?',
    'sentence': f'The {about} is {where}.',
    'label': label,
  }


def _boolq(rng: Rng) -> Record:
  label = int(rng.random() < 0.6)
  things = sample(rng, _THINGS, 4)
  words = [
    _mostly(rng, label, 1 - label) if number else label for number in range(4)
  ]
  facts = [
    f'The {thing} is {"old" if word else "new"}.'
    for thing, word in zip(things, words, strict=True)
  ]
  return {
    'question': f'is the {things[0]} old',
    'passage': ' '.join(shuffle(rng, facts)),
    'label': label,
  }


def _copa(rng: Rng) -> Record:
  label = int(rng.integers(2))
  kind = choose(rng, ('cause', 'effect'))
  thing = choose(rng, _THINGS)
  sense = {'cause': 'It fell off the table.', 'effect': 'It was thrown away.'}
  choices = [sense[kind], choose(rng, ('It sang.', 'It ate a horse.'))]
  if label:
    choices.reverse()
  return {
    'premise': f'The {thing} broke.',
    'choice1': choices[0],
    'choice2': choices[1],
    'question': kind,
    'label': label,
  }


def _wic(rng: Rng) -> Record:
  label = int(rng.integers(2))
  word = choose(rng, list(_SENSES))
  one, other = sample(rng, _SENSES[word], 2)
  sentences = sample(rng, one, 2) if label else [choose(rng, one), other[0]]
  places = [sentence.index(word) for sentence in sentences]
  return {
    'word': word,
    'sentence1': sentences[0],
    'sentence2': sentences[1],
    'start1': places[0],
    'start2': places[1],
    'end1': places[0] + len(word),
    'end2': places[1] + len(word),
    'label': label,
  }


def _wsc(rng: Rng) -> Record:
  one, other = sample(rng, _NAMES, 2)
  helped = rng.random() < 0.5
  text = f'{one} thanked {other} as they '
  text += 'had been helped.' if helped else 'had helped out.'
  # The first person thanks because the first person was helped.
  span = int(rng.integers(2))
  return {
    'text': text,
    'span1_text': (one, other)[span],
    'span1_index': (0, 2)[span],
    'span2_text': 'they',
    'span2_index': 4,
    'label': int(helped == (span == 0)),
  }


def _passage(rng: Rng, count: int) -> tuple[list[str], dict[str, str]]:
  """Returns sentences and {thing: name of its owner}."""
  has = {thing: choose(rng, _NAMES) for thing in sample(rng, _THINGS, count)}
  return [f'{name} has the {thing}.' for thing, name in has.items()], has


def _multirc(rng: Rng, count: int) -> list[Record]:
  """Returns two questions per paragraph, with four answers each."""
  records: list[Record] = []
  question = 0
  while len(records) < count:
    facts, has = _passage(rng, 3)
    paragraph = ''.join(
      f'<b>Sent {number}: </b>{fact}<br>'
      for number, fact in enumerate(facts, start=1)
    )
    for thing in sample(rng, list(has), 2):
      others = [name for name in _NAMES if name != has[thing]]
      answers = [has[thing], *sample(rng, others, 3)]
      for answer in sample(rng, answers, 4):
        records.append(
          {
            'question': f'Who has the {thing}?',
            'answer': answer,
            'paragraph': paragraph,
            'idx': {
              'paragraph': question // 2,
              'question': question,
              'answer': len(records),
            },
            'label': int(answer == has[thing]),
          }
        )
      question += 1
  return records[:count]


def _record(rng: Rng, count: int) -> list[Record]:
  """Returns questions whose answer occurs most often in the passage."""
  records = []
  for number in range(count):
    facts, has = _passage(rng, 4)
    asked = choose(rng, list(has))
    facts += [f'All is well with {has[asked]}.'] * 2
    facts = shuffle(rng, facts)
    records.append(
      {
        'passage': '\n@highlight\n'.join([' '.join(facts[:3]), *facts[3:]]),
        'query': f'@placeholder has the {asked}',
        'entities': sorted({*has.values()}),
        'answers': [has[asked]],
        'idx': {'passage': number, 'query': number},
      }
    )
  return records


# Arguments of `_inference` number the classes as the original data set does.
RECORDS: dict[str, Callable[[Rng, int], list[Record]]] = {
  'boolq': _each(_boolq),
  'cb': _inference(0, 1, 2),
  'cola': _each(_cola),
  'copa': _each(_copa),
  'mnli': _inference(0, 2, 1),
  'mrpc': _each(_mrpc),
  'multirc': _multirc,
  'qnli': _each(_qnli),
  'qqp': _each(_qqp),
  'record': _record,
  'rte': _inference(0, 1, 1),
  'sst2': _each(_sst2),
  'wic': _each(_wic),
  'wnli': _inference(1, 0, 0, keys=('sentence1', 'sentence2')),
  'wsc': _each(_wsc),
}
