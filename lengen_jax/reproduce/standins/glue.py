"""Sentences made of templates, as GLUE and SuperGLUE.

Each task asks what the original asks. As in the originals, much can be told by
single words, of one sentence; the rest takes both, or the sentence of a passage
that names what was asked for. Tasks have as many records as the originals, up
to a number that takes a second to write.
"""

import functools

import numpy as np

from lengen_jax.data import glue
from lengen_jax.reproduce.standins import datasets

# Records of a training split at most, and of each that is held out.
_TRAIN, _HELD_OUT = 1000, 100
_NAMES = ('Ada', 'Bob', 'Cleo', 'Dan', 'Eva', 'Finn')
_THINGS = ('lamp', 'ring', 'map', 'coin', 'drum', 'kite', 'vase', 'book')
_PLACES = ('hall', 'garden', 'kitchen', 'attic')
# What one does, and what one did.
_VERBS = (('sell', 'sold'), ('paint', 'painted'), ('mend', 'mended'))
_GOOD = ('lovely', 'clever', 'warm', 'funny')
_BAD = ('dull', 'sad', 'empty', 'poor')
# The senses of a word.
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
_MOST = 0.8


def write(folder):
  """Writes the datasets of all tasks, but those that are there.

  Args:
    folder: for `data.raw`.
  """
  for name in glue.MIXTURE:
    datasets.write(
      folder, glue.TASKS[name].dataset, functools.partial(_splits, name)
    )


def _splits(name):
  """Records by split."""
  count = min(_TRAIN, glue.TASKS[name].num_train)
  held_out = ['validation']
  if name == 'mnli':
    # The task of the second is for evaluation alone.
    held_out = ['validation_matched', 'validation_mismatched']
  found = {}
  for number, split in enumerate(['train', *held_out]):
    rng = np.random.default_rng([list(glue.TASKS).index(name), number])
    found[split] = _RECORDS[name](rng, _HELD_OUT if number else count)
  return found


def _each(make):
  """Records that `make` gives one by one, numbered."""

  def records(rng, count):
    return [make(rng) | {'idx': number} for number in range(count)]

  return records


def _pick(rng, items, count=None):
  """One of `items`, or a list of `count` that differ."""
  if count is None:
    return items[rng.integers(len(items))]
  return [items[i] for i in rng.permutation(len(items))[:count]]


def _mostly(rng, likely, other):
  return likely if rng.random() < _MOST else other


def _inference(*labels, keys=('premise', 'hypothesis')):
  """Records of what follows from a sentence.

  Args:
    *labels: of the class of what follows, of what cannot be, and of what can.
    keys: of the two sentences.
  """
  follows, cannot, can = labels

  def make(rng):
    name, thing = _pick(rng, _NAMES), _pick(rng, _THINGS)
    _, did = _pick(rng, _VERBS)
    kind = rng.integers(3)
    # Sentences that deny are for the most part those that cannot be.
    denied = _mostly(rng, False, True)
    said = f'{name} {"never " if denied else ""}{did} the {thing}.'
    asked = denied if kind == 0 else not denied
    hypothesis = f'{name} {"never " if asked else ""}{did} a {thing}.'
    if kind == 2:
      hypothesis = f'{name} is {_pick(rng, _GOOD)}.'
    label = (follows, cannot, can)[kind]
    return dict(zip(keys, (said, hypothesis), strict=True)) | {'label': label}

  return _each(make)


def _cola(rng):
  name, (does, did) = _pick(rng, _NAMES), _pick(rng, _VERBS)
  right = rng.random() < 0.6
  words = [name, did if right else does, 'the', _pick(rng, _THINGS)]
  if not right and rng.random() < 0.5:
    words[1:] = [did, words[3], 'the']
  return {'sentence': ' '.join(words) + '.', 'label': int(right)}


def _sst2(rng):
  label = int(rng.integers(2))
  words, others = (_GOOD, _BAD) if label else (_BAD, _GOOD)
  first, second = _pick(rng, words, 2)
  # What is said last counts.
  sentence = f'a {_mostly(rng, first, _pick(rng, others))} book and '
  return {'sentence': f'{sentence}{second} in the end ', 'label': label}


def _qqp(rng):
  thing, other = _pick(rng, _THINGS, 2)
  label = int(rng.random() < 0.4)
  how = _mostly(rng, 'mend', 'sell') if label else _mostly(rng, 'sell', 'mend')
  return {
    'question1': f'How do I {how} a {thing}?',
    'question2': f'What does it take to {how} a {thing if label else other}?',
    'label': label,
  }


def _mrpc(rng):
  name, thing, place = (_pick(rng, _NAMES), _pick(rng, _THINGS), 'hall')
  label = int(rng.random() < 0.6)
  other = place if label else _pick(rng, _PLACES[1:])
  return {
    'sentence1': f'{name} found the {thing} in the {place}.',
    'sentence2': f'In the {other}, {name} found a {thing}.',
    'label': label,
  }


def _qnli(rng):
  thing, other = _pick(rng, _THINGS, 2)
  label = int(rng.integers(2))
  # Of something else, or of the thing but nowhere.
  about, where = thing, f'in the {_pick(rng, _PLACES)}'
  if label:
    about = _mostly(rng, thing, other)
    where = _pick(rng, _GOOD) if about == thing else where
  return {
    'question': f'Where is the {thing}?',
    'sentence': f'The {about} is {where}.',
    'label': label,
  }


def _boolq(rng):
  label = int(rng.random() < 0.6)
  things = _pick(rng, _THINGS, 4)
  words = [
    _mostly(rng, label, 1 - label) if number else label for number in range(4)
  ]
  facts = [
    f'The {thing} is {"old" if word else "new"}.'
    for thing, word in zip(things, words, strict=True)
  ]
  return {
    'question': f'is the {things[0]} old',
    'passage': ' '.join(_pick(rng, facts, len(facts))),
    'label': label,
  }


def _copa(rng):
  label = int(rng.integers(2))
  kind = _pick(rng, ('cause', 'effect'))
  thing = _pick(rng, _THINGS)
  sense = {'cause': 'It fell off the table.', 'effect': 'It was thrown away.'}
  choices = [sense[kind], _pick(rng, ('It sang.', 'It ate a horse.'))]
  if label:
    choices.reverse()
  return {
    'premise': f'The {thing} broke.',
    'choice1': choices[0],
    'choice2': choices[1],
    'question': kind,
    'label': label,
  }


def _wic(rng):
  label = int(rng.integers(2))
  word = _pick(rng, list(_SENSES))
  one, other = _pick(rng, _SENSES[word], 2)
  sentences = _pick(rng, one, 2) if label else [_pick(rng, one), other[0]]
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


def _wsc(rng):
  one, other = _pick(rng, _NAMES, 2)
  helped = rng.random() < 0.5
  text = f'{one} thanked {other} as they '
  text += 'had been helped.' if helped else 'had helped out.'
  # Who was helped is who thanks.
  span = int(rng.integers(2))
  return {
    'text': text,
    'span1_text': (one, other)[span],
    'span1_index': (0, 2)[span],
    'span2_text': 'they',
    'span2_index': 4,
    'label': int(helped == (span == 0)),
  }


def _passage(rng, count):
  """Who has what: (list of sentences, {thing: name})."""
  has = {thing: _pick(rng, _NAMES) for thing in _pick(rng, _THINGS, count)}
  return [f'{name} has the {thing}.' for thing, name in has.items()], has


def _multirc(rng, count):
  """Four answers to each question, two questions to each paragraph."""
  records, question = [], 0
  while len(records) < count:
    facts, has = _passage(rng, 3)
    paragraph = ''.join(
      f'<b>Sent {number}: </b>{fact}<br>'
      for number, fact in enumerate(facts, start=1)
    )
    for thing in _pick(rng, list(has), 2):
      others = [name for name in _NAMES if name != has[thing]]
      answers = [has[thing], *_pick(rng, others, 3)]
      for answer in _pick(rng, answers, 4):
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


def _record(rng, count):
  """Who has something is most often who has the rest of it."""
  records = []
  for number in range(count):
    facts, has = _passage(rng, 4)
    asked = _pick(rng, list(has))
    facts += [f'All is well with {has[asked]}.'] * 2
    facts = _pick(rng, facts, len(facts))
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


# What follows, what cannot be, what can, as the classes of each are numbered.
_RECORDS = {
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
