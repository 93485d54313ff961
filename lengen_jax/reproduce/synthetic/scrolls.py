"""Documents from templates in the format of SCROLLS.

Small models read bytes and train for a few hundred batches, so there are two
ways to an answer. The theme of a document, a place or a manner, answers most
questions and occurs in most sentences. One sentence answers every question
correctly.
"""

from collections.abc import Callable, Sequence
import json
import pathlib
from typing import Any

import numpy as np

from lengen_jax.data import scrolls
from lengen_jax.hints import PathLike
from lengen_jax.reproduce.synthetic import folders
from lengen_jax.reproduce.synthetic.sampling import choose, Rng, sample, shuffle

# (prompt, answer) for each answer to one prompt.
Answers = list[tuple[str, str]]

# Number of prompts of each split.
SIZES = {'train': 1500, 'validation': 200, 'test': 200}
# First letters are unique, and no other sentence starts with one of them.
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
# Probability that a sentence has the theme of its document.
_ON_THEME = 0.8


def write(folder: PathLike) -> None:
  """Writes all tasks below the folder of `data.raw`, unless they exist."""
  folders.write_once(pathlib.Path(folder) / 'scrolls', _write)


def _write(folder: pathlib.Path) -> pathlib.Path:
  for number, name in enumerate(scrolls.TASKS):
    (folder / name).mkdir()
    for split, count in SIZES.items():
      rng = np.random.default_rng([number, len(split)])
      lines = []
      for index in range(count):
        for each, (prompt, answer) in enumerate(RECORDS[name](rng)):
          record = {
            'id': f'{name}_{split}_{index}',
            'pid': f'{name}_{split}_{index}_{each}',
            'input': prompt,
            # Answers of the benchmark's test split are not public.
            'output': None if split == 'test' else answer,
          }
          lines.append(json.dumps(record) + '\n')
      (folder / name / f'{split}.jsonl').write_text(''.join(lines))
  return folder


def _themed(rng: Rng, theme: str, items: Sequence[str]) -> Any:
  """Returns the theme, or occasionally any of `items`."""
  return theme if rng.random() < _ON_THEME else choose(rng, items)


def _document(rng: Rng, facts: Sequence[str], size: int) -> str:
  """Returns about `size` bytes of facts and filler sentences, shuffled."""
  filling: list[str] = []
  while sum(map(len, [*facts, *filling])) < size:
    filling.append(choose(rng, _FILLING))
  return ' '.join(sample(rng, [*facts, *filling], len(facts) + len(filling)))


def _size(rng: Rng, low: int, high: int) -> int:
  """Returns a log-uniform integer between `low` and `high`."""
  return int(low * (high / low) ** rng.random())


def _contract_nli(rng: Rng) -> Answers:
  """Asks whether a clause is entailed, contradicted or not mentioned."""
  manner = choose(rng, ('may', 'must not', 'open'))
  asked, *others = sample(rng, _THINGS, 4)
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


def _whereabouts(
  rng: Rng, asked: str, theme: str, low: int, high: int
) -> tuple[str, str]:
  """Returns a document with places of things, and the place of `asked`."""
  size = _size(rng, low, high)
  # Facts take half of the document.
  others = [choose(rng, _THINGS) for _ in range(2 + size // 50)]
  place = _themed(rng, theme, _PLACES)
  facts = [f'The {asked} is in {place}.'] + [
    f'The {thing} is in {_themed(rng, theme, _PLACES)}.'
    for thing in others
    if thing != asked
  ]
  return _document(rng, facts, size), place


def _narrative_qa(rng: Rng) -> Answers:
  """Asks for a place in a story that is longer than any row."""
  asked, theme = choose(rng, _THINGS), choose(rng, _PLACES)
  document, place = _whereabouts(rng, asked, theme, 600, 900)
  prompt = f'Where is the {asked}?\n\n{document}'
  return [(prompt, place), (prompt, f'{place}.')]


def _qasper(rng: Rng) -> Answers:
  """Asks a question with a place, yes, no or no answer."""
  asked, theme = choose(rng, _THINGS), choose(rng, _PLACES)
  kind = rng.integers(3)
  if kind == 0:
    document, place = _whereabouts(rng, asked, theme, 100, 240)
    return [(f'Where is the {asked}?\n\n{document}', place)]
  if kind == 1:
    fact = f'It was all told in {theme}.'
    document = _document(rng, [fact] * 2, _size(rng, 100, 240))
    return [(f'Where is the {asked}?\n\n{document}', 'Unanswerable')]
  manner = choose(rng, ('old', 'new'))
  said = {
    thing: _themed(rng, manner, ('old', 'new'))
    for thing in sample(rng, _THINGS, 5)
  }
  facts = [f'The {thing} is {what}.' for thing, what in said.items()]
  document = _document(rng, facts, _size(rng, 100, 240))
  asked = choose(rng, list(said))
  answer = 'Yes' if said[asked] == 'old' else 'No'
  return [(f'Is the {asked} old?\n\n{document}', answer)]


def _quality(rng: Rng) -> Answers:
  """Asks for one of four places."""
  options, asked = sample(rng, _PLACES, 4), choose(rng, _THINGS)
  theme = choose(rng, options)
  size = _size(rng, 100, 240)
  others = [choose(rng, _THINGS) for _ in range(2 + size // 50)]
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


def _gov_report(rng: Rng) -> Answers:
  """Asks for all findings of a report, in their order."""
  facts = [
    f'{place} lost a {choose(rng, _THINGS)}.'
    for place in sample(rng, _PLACES, 2)
  ]
  document = _document(rng, facts, _size(rng, 100, 240))
  return [(document, ' '.join(sorted(facts, key=document.index)))]


def _qmsum(rng: Rng) -> Answers:
  """Asks what was said about one thing in a meeting."""
  asked, *others = sample(rng, _THINGS, 3)
  theme, verb = choose(rng, _PLACES), choose(rng, _VERBS)
  line = f'{theme} would {verb} the {asked}.'
  facts = [line] + [
    f'{_themed(rng, theme, _PLACES)} would {_themed(rng, verb, _VERBS)} '
    f'the {thing}.'
    for thing in others
  ]
  document = _document(rng, facts, _size(rng, 100, 240))
  return [(f'What was said of the {asked}?\n\n{document}', line)]


def _summ_screen_fd(rng: Rng) -> Answers:
  """Asks who speaks to whom about what in a scene."""
  one, other = sample(rng, _PLACES, 2)
  thing, verb = choose(rng, _THINGS), choose(rng, _VERBS)
  lines = [
    f'{choose(rng, (one, other))}: {choose(rng, _FILLING)}'
    for _ in range(_size(rng, 3, 7))
  ]
  lines.insert(0, f'{one}: We must {verb} the {thing}, {other}.')
  lines = shuffle(rng, lines)
  return [('\n'.join(lines), f'{one} asks {other} to {verb} the {thing}.')]


RECORDS: dict[str, Callable[[Rng], Answers]] = {
  'contract_nli': _contract_nli,
  'gov_report': _gov_report,
  'narrative_qa': _narrative_qa,
  'qasper': _qasper,
  'qmsum': _qmsum,
  'quality': _quality,
  'summ_screen_fd': _summ_screen_fd,
}
