"""Documents made of templates, in the files of SCROLLS.

Small models see bytes and a few hundred batches, so that there are two ways to
an answer. Most of what a document says has one theme, a place or a manner, that
answers most questions and needs no more than to look everywhere. The rest is
answered by the one sentence that names what was asked for.
"""

import json
import pathlib

import numpy as np

from lengen_jax.data import scrolls
from lengen_jax.reproduce.standins import folders

# Records of training and of each split that is held out.
_TRAIN, _HELD_OUT = 1500, 200
# Told apart by their first letters, with which no sentence begins.
_PLACES = ('Ashby', 'Barrow', 'Corley', 'Dunmore', 'Kelby')
_THINGS = ('lamp', 'ring', 'map', 'coin', 'drum', 'kite', 'vase', 'book')
_VERBS = ('sell', 'paint', 'mend', 'hide')
_FILLING = (
  'It had rained for days.',
  'The road was long and wet.',
  'We sat by the fire until late.',
  'The old dog slept at the door.',
  'Then a cold wind came up.',
  'We ate bread and some cheese.',
  'The birds were quiet that day.',
  'There was little left to say.',
)
# How often a sentence has the theme of its document.
_ON_THEME = 0.8


def write(folder):
  """Writes all seven tasks, unless they are there.

  Args:
    folder: for `data.raw`; gets a folder `scrolls`.
  """
  folders.write_once(pathlib.Path(folder) / 'scrolls', _write)


def _write(folder):
  for number, name in enumerate(scrolls.TASKS):
    (folder / name).mkdir()
    for split, count in (
      ('train', _TRAIN),
      ('validation', _HELD_OUT),
      ('test', _HELD_OUT),
    ):
      rng = np.random.default_rng([number, len(split)])
      lines = []
      for index in range(count):
        for each, (prompt, answer) in enumerate(_RECORDS[name](rng)):
          record = {
            'id': f'{name}_{split}_{index}',
            'pid': f'{name}_{split}_{index}_{each}',
            'input': prompt,
            # The benchmark's are not public.
            'output': None if split == 'test' else answer,
          }
          lines.append(json.dumps(record) + '\n')
      (folder / name / f'{split}.jsonl').write_text(''.join(lines))
  return folder


def _pick(rng, items, count=None):
  """One of `items`, or a list of `count` that differ."""
  if count is None:
    return items[rng.integers(len(items))]
  return [items[i] for i in rng.permutation(len(items))[:count]]


def _themed(rng, theme, items):
  """The theme, or now and then any of `items`."""
  return theme if rng.random() < _ON_THEME else _pick(rng, items)


def _document(rng, facts, size):
  """Facts in any order among filling, about `size` bytes."""
  filling = []
  while sum(map(len, [*facts, *filling])) < size:
    filling.append(_pick(rng, _FILLING))
  return ' '.join(_pick(rng, [*facts, *filling], len(facts) + len(filling)))


def _size(rng, low, high):
  """A length between two, short ones being as likely as long ones."""
  return int(low * (high / low) ** rng.random())


def _contract_nli(rng):
  """Clauses that allow, forbid, or leave open."""
  manner = _pick(rng, ('may', 'must not', 'open'))
  asked, *others = _pick(rng, _THINGS, 4)
  said, facts = 'open', ['All else is left open.'] * 3
  if manner != 'open':
    said = _themed(rng, manner, ('may', 'must not'))
    facts = [f'One {said} sell the {asked}.']
  facts += [
    f'One {_themed(rng, manner, ("may", "must not"))} sell the {thing}.'
    for thing in others
    if manner != 'open'
  ]
  answers = {
    'may': 'Entailment',
    'must not': 'Contradiction',
    'open': 'Not mentioned',
  }
  document = _document(rng, facts, _size(rng, 100, 240))
  return [(f'One may sell the {asked}.\n\n{document}', answers[said])]


def _whereabouts(rng, asked, theme, low, high):
  """A document that says where things are, and where one of them is."""
  size = _size(rng, low, high)
  # Half of it, so that a long document says more.
  others = [_pick(rng, _THINGS) for _ in range(2 + size // 50)]
  place = _themed(rng, theme, _PLACES)
  facts = [f'The {asked} is in {place}.'] + [
    f'The {thing} is in {_themed(rng, theme, _PLACES)}.'
    for thing in others
    if thing != asked
  ]
  return _document(rng, facts, size), place


def _narrative_qa(rng):
  """A story that is longer than any row; two have answered."""
  asked, theme = _pick(rng, _THINGS), _pick(rng, _PLACES)
  document, place = _whereabouts(rng, asked, theme, 600, 900)
  prompt = f'Where is the {asked}?\n\n{document}'
  return [(prompt, place), (prompt, f'{place}.')]


def _qasper(rng):
  """Yes, no, a place, or nothing that would answer."""
  asked, theme = _pick(rng, _THINGS), _pick(rng, _PLACES)
  kind = rng.integers(3)
  if kind == 0:
    document, place = _whereabouts(rng, asked, theme, 100, 240)
    return [(f'Where is the {asked}?\n\n{document}', place)]
  if kind == 1:
    fact = f'It was all told in {theme}.'
    document = _document(rng, [fact] * 2, _size(rng, 100, 240))
    return [(f'Where is the {asked}?\n\n{document}', 'Unanswerable')]
  manner = _pick(rng, ('old', 'new'))
  said = {
    thing: _themed(rng, manner, ('old', 'new'))
    for thing in _pick(rng, _THINGS, 5)
  }
  facts = [f'The {thing} is {what}.' for thing, what in said.items()]
  document = _document(rng, facts, _size(rng, 100, 240))
  asked = _pick(rng, list(said))
  answer = 'Yes' if said[asked] == 'old' else 'No'
  return [(f'Is the {asked} old?\n\n{document}', answer)]


def _quality(rng):
  """Four places to choose from."""
  options, asked = _pick(rng, _PLACES, 4), _pick(rng, _THINGS)
  theme = _pick(rng, options)
  size = _size(rng, 100, 240)
  others = [_pick(rng, _THINGS) for _ in range(2 + size // 50)]
  place = _themed(rng, theme, options)
  facts = [f'The {asked} is in {place}.'] + [
    f'The {thing} is in {_themed(rng, theme, options)}.'
    for thing in others
    if thing != asked
  ]
  choices = '\n'.join(
    f' ({letter}) {option}'
    for letter, option in zip('ABCD', options, strict=True)
  )
  document = _document(rng, facts, size)
  return [(f'Where is the {asked}?\n\n{choices}\n\n{document}', place)]


def _gov_report(rng):
  """Findings, and a summary that has all of them, in their order."""
  facts = [
    f'{place} lost a {_pick(rng, _THINGS)}.' for place in _pick(rng, _PLACES, 2)
  ]
  document = _document(rng, facts, _size(rng, 100, 240))
  return [(document, ' '.join(sorted(facts, key=document.index)))]


def _qmsum(rng):
  """A meeting; what was said of one thing."""
  asked, *others = _pick(rng, _THINGS, 3)
  theme, verb = _pick(rng, _PLACES), _pick(rng, _VERBS)
  line = f'{theme} would {verb} the {asked}.'
  facts = [line] + [
    f'{_themed(rng, theme, _PLACES)} would {_themed(rng, verb, _VERBS)} '
    f'the {thing}.'
    for thing in others
  ]
  document = _document(rng, facts, _size(rng, 100, 240))
  return [(f'What was said of the {asked}?\n\n{document}', line)]


def _summ_screen_fd(rng):
  """Who speaks, to whom, of what: all lines are of one scene."""
  one, other = _pick(rng, _PLACES, 2)
  thing, verb = _pick(rng, _THINGS), _pick(rng, _VERBS)
  lines = [
    f'{_pick(rng, (one, other))}: {_pick(rng, _FILLING)}'
    for _ in range(_size(rng, 3, 7))
  ]
  lines.insert(0, f'{one}: We must {verb} the {thing}, {other}.')
  # Anywhere.
  lines = _pick(rng, lines, len(lines))
  return [('\n'.join(lines), f'{one} asks {other} to {verb} the {thing}.')]


# Each gives (prompt, answer) for every answer to one prompt.
_RECORDS = {
  'contract_nli': _contract_nli,
  'gov_report': _gov_report,
  'narrative_qa': _narrative_qa,
  'qasper': _qasper,
  'qmsum': _qmsum,
  'quality': _quality,
  'summ_screen_fd': _summ_screen_fd,
}
