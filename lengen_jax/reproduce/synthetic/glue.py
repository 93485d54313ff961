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
from lengen_jax.reproduce.synthetic import datasets
from lengen_jax.reproduce.synthetic.datasets import (
  choose,
  mostly,
  Record,
  Rng,
  sample,
)
from lengen_jax.types import PathLike

# Maximum number of training records, and number of held-out records.
SIZES = {'train': 1000, 'held_out': 100}
_NAMES = ('Ada', 'Bob', 'Cleo', 'Dan', 'Eva', 'Finn')
_THINGS = ('lamp', 'ring', 'map', 'coin', 'drum', 'kite', 'vase', 'book')
_PLACES = ('hall', 'garden', 'kitchen', 'attic')
# Present and past tense.
_VERBS = (('sell', 'sold'), ('paint', 'painted'), ('mend', 'mended'))
_GOOD = ('lovely', 'clever', 'warm', 'funny')
_BAD = ('dull', 'sad', 'empty', 'poor')
# Examples of the two senses of a word.
_BANK = ('the bank of the river', 'a bank of mud and grass')
_BANK_2 = ('money in the bank', 'the bank lent him a coin')
_BARK = ('the bark of a tree', 'bark as rough as stone')
_BARK_2 = ('the bark of a dog', 'a loud bark at night')
_MATCH = ('a match to light the lamp', 'the match burnt out')
_MATCH_2 = ('a match of two teams', 'we won the match')
_SENSES = {
  'bank': (_BANK, _BANK_2),
  'bark': (_BARK, _BARK_2),
  'match': (_MATCH, _MATCH_2),
}


def write(folder: PathLike) -> None:
  """Writes the missing tasks into the folder of `data.raw`."""
  for name in glue.MIXTURE:
    records = functools.partial(splits, name)
    datasets.write(folder, glue.TASKS[name].dataset, records)


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


def _each(make: Callable[..., Record], *args: Any) -> Callable[..., Any]:
  """Returns a function that makes numbered records."""

  def records(rng: Rng, count: int) -> list[Record]:
    return [make(rng, *args) | {'idx': number} for number in range(count)]

  return records


def _inference(rng: Rng, labels: tuple[int, ...], keys: str) -> Record:
  """Returns a pair of sentences that entail, contradict or are neutral."""
  name, thing = choose(rng, _NAMES), choose(rng, _THINGS)
  _, did = choose(rng, _VERBS)
  kind = rng.integers(3)
  denied = mostly(rng, False, True)
  said = f'{name} {"never " if denied else ""}{did} the {thing}.'
  asked = denied if kind == 0 else not denied
  hypothesis = f'{name} {"never " if asked else ""}{did} a {thing}.'
  if kind == 2:
    hypothesis = f'{name} is {choose(rng, _GOOD)}.'
  pair: Record = dict(zip(keys.split(), (said, hypothesis), strict=True))
  return pair | {'label': labels[kind]}


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
  # The last adjective determines the label.
  first, last = sample(rng, words, 2)
  other = choose(rng, others)
  first = mostly(rng, first, other)
  return {'sentence': f'a {first} book and {last} in the end ', 'label': label}


def _qqp(rng: Rng) -> Record:
  thing, other = sample(rng, _THINGS, 2)
  label = int(rng.random() < 0.4)
  how = mostly(rng, *(('mend', 'sell') if label else ('sell', 'mend')))
  return {
    'question1': f'How do I {how} a {thing}?',
    'question2': f'What does it take to {how} a {thing if label else other}?',
    'label': label,
  }


def _mrpc(rng: Rng) -> Record:
  name, thing = choose(rng, _NAMES), choose(rng, _THINGS)
  label = int(rng.random() < 0.6)
  place = 'hall' if label else choose(rng, _PLACES[1:])
  return {
    'sentence1': f'{name} found the {thing} in the hall.',
    'sentence2': f'In the {place}, {name} found a {thing}.',
    'label': label,
  }


def _qnli(rng: Rng) -> Record:
  thing, other = sample(rng, _THINGS, 2)
  label = int(rng.integers(2))
  # Without an answer: about another thing, or without its place.
  about, where = thing, f'in the {choose(rng, _PLACES)}'
  if label:
    about = mostly(rng, thing, other)
    where = choose(rng, _GOOD) if about == thing else where
  return {
    'question': f'Where is the {thing}?',
    'sentence': f'The {about} is {where}.',
    'label': label,
  }


def _boolq(rng: Rng) -> Record:
  label = int(rng.random() < 0.6)
  things = sample(rng, _THINGS, 4)
  old = [label, *(mostly(rng, label, 1 - label) for _ in things[1:])]
  facts = [
    f'The {thing} is {"old" if each else "new"}.'
    for thing, each in zip(things, old, strict=True)
  ]
  return {
    'question': f'is the {things[0]} old',
    'passage': ' '.join(sample(rng, facts)),
    'label': label,
  }


def _copa(rng: Rng) -> Record:
  label = int(rng.integers(2))
  kind, thing = choose(rng, ('cause', 'effect')), choose(rng, _THINGS)
  sense = {'cause': 'It fell off the table.', 'effect': 'It was thrown away.'}
  choices = [sense[kind], choose(rng, ('It sang.', 'It ate a horse.'))]
  return {
    'premise': f'The {thing} broke.',
    'choice1': choices[label],
    'choice2': choices[1 - label],
    'question': kind,
    'label': label,
  }


def _wic(rng: Rng) -> Record:
  label = int(rng.integers(2))
  word = choose(rng, list(_SENSES))
  one, other = sample(rng, _SENSES[word])
  sentences = sample(rng, one) if label else [choose(rng, one), other[0]]
  record: Record = {'word': word, 'label': label}
  for number, sentence in enumerate(sentences, start=1):
    start = sentence.index(word)
    record[f'sentence{number}'] = sentence
    record |= {f'start{number}': start, f'end{number}': start + len(word)}
  return record


def _wsc(rng: Rng) -> Record:
  people = sample(rng, _NAMES, 2)
  helped = rng.random() < 0.5
  text = '{} thanked {} as they had '.format(*people)
  # The first person thanks because the first person was helped.
  span = int(rng.integers(2))
  return {
    'text': text + ('been helped.' if helped else 'helped out.'),
    'span1_text': people[span],
    'span1_index': 2 * span,
    'span2_text': 'they',
    'span2_index': 4,
    'label': int(helped == (span == 0)),
  }


def _owners(rng: Rng, count: int) -> tuple[dict[str, str], list[str]]:
  """Returns {thing: name of its owner}, and sentences that say so."""
  has = {thing: choose(rng, _NAMES) for thing in sample(rng, _THINGS, count)}
  return has, [f'{name} has the {thing}.' for thing, name in has.items()]


def _multirc(rng: Rng, count: int) -> list[Record]:
  """Returns two questions per paragraph, with four answers each."""
  records: list[Record] = []
  while len(records) < count:
    has, facts = _owners(rng, 3)
    numbered = (
      f'<b>Sent {n}: </b>{fact}<br>' for n, fact in enumerate(facts, 1)
    )
    paragraph = ''.join(numbered)
    for thing in sample(rng, list(has), 2):
      others = [name for name in _NAMES if name != has[thing]]
      for answer in sample(rng, [has[thing], *sample(rng, others, 3)]):
        number = len(records)
        index = {'paragraph': number // 8, 'question': number // 4}
        records.append(
          {
            'question': f'Who has the {thing}?',
            'answer': answer,
            'paragraph': paragraph,
            'idx': index | {'answer': number},
            'label': int(answer == has[thing]),
          }
        )
  return records[:count]


def _record(rng: Rng, count: int) -> list[Record]:
  """Returns questions whose answer occurs most often in the passage."""
  records = []
  for number in range(count):
    has, facts = _owners(rng, 4)
    asked = choose(rng, list(has))
    facts = sample(rng, facts + [f'All is well with {has[asked]}.'] * 2)
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


_PAIR = 'premise hypothesis'
# Labels of `_inference`: entailment, contradiction, neutral.
RECORDS: dict[str, Callable[[Rng, int], list[Record]]] = {
  'boolq': _each(_boolq),
  'cb': _each(_inference, (0, 1, 2), _PAIR),
  'cola': _each(_cola),
  'copa': _each(_copa),
  'mnli': _each(_inference, (0, 2, 1), _PAIR),
  'mrpc': _each(_mrpc),
  'multirc': _multirc,
  'qnli': _each(_qnli),
  'qqp': _each(_qqp),
  'record': _record,
  'rte': _each(_inference, (0, 1, 1), _PAIR),
  'sst2': _each(_sst2),
  'wic': _each(_wic),
  'wnli': _each(_inference, (1, 0, 0), 'sentence1 sentence2'),
  'wsc': _each(_wsc),
}
