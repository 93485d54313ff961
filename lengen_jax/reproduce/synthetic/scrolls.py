"""Documents from templates in the format of SCROLLS.

Small models read bytes and train for a few hundred batches, so there are two
ways to an answer. The theme of a document, a place or a manner, answers most
questions and occurs in most sentences. For each question, one sentence of the
document states the correct answer.
"""

from collections.abc import Callable, Sequence
import functools
import json
import pathlib
from typing import Any

import numpy as np

from lengen_jax.data import scrolls
from lengen_jax.reproduce.synthetic import datasets
from lengen_jax.reproduce.synthetic.datasets import choose, mostly, Rng, sample
from lengen_jax.types import PathLike

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


def write(folder: PathLike) -> None:
  """Writes all tasks below the folder of `data.raw`, unless they exist."""
  datasets.write_once(pathlib.Path(folder) / 'scrolls', _write)


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
  return mostly(rng, theme, functools.partial(choose, rng, items))


def _size(rng: Rng, low: int = 100, high: int = 240) -> int:
  """Returns a log-uniform integer between `low` and `high`."""
  return int(low * (high / low) ** rng.random())


def _document(rng: Rng, facts: list[str], size: int = 0) -> str:
  """Returns about `size` bytes of facts and filler sentences, shuffled."""
  size = size or _size(rng)
  sentences = list(facts)
  while sum(map(len, sentences)) < size:
    sentences.append(choose(rng, _FILLING))
  return ' '.join(sample(rng, sentences))


def _contract_nli(rng: Rng) -> Answers:
  """Asks whether a clause is entailed, contradicted or not mentioned."""
  manner = choose(rng, ('may', 'must not', 'open'))
  things = sample(rng, _THINGS, 4)
  said, facts = ['open'], ['All else is left open.'] * 3
  if manner != 'open':
    said = [_themed(rng, manner, ('may', 'must not')) for _ in things]
    clauses = zip(said, things, strict=True)
    facts = [f'One {each} sell the {thing}.' for each, thing in clauses]
  answers = {
    'may': 'Entailment',
    'must not': 'Contradiction',
    'open': 'Not mentioned',
  }
  prompt = f'One may sell the {things[0]}.\n\n{_document(rng, facts)}'
  return [(prompt, answers[said[0]])]


def _whereabouts(
  rng: Rng, asked: str, theme: str, size: int, places: Sequence[str] = _PLACES
) -> tuple[str, str]:
  """Returns a document with places of things, and the place of `asked`."""
  # Facts take half of the document.
  others = [choose(rng, _THINGS) for _ in range(2 + size // 50)]
  things = [asked, *(thing for thing in others if thing != asked)]
  where = [_themed(rng, theme, places) for _ in things]
  facts = [
    f'The {thing} is in {place}.'
    for thing, place in zip(things, where, strict=True)
  ]
  return _document(rng, facts, size), where[0]


def _narrative_qa(rng: Rng) -> Answers:
  """Asks for a place in a story that is longer than any row."""
  asked, theme = choose(rng, _THINGS), choose(rng, _PLACES)
  document, place = _whereabouts(rng, asked, theme, _size(rng, 600, 900))
  prompt = f'Where is the {asked}?\n\n{document}'
  return [(prompt, place), (prompt, f'{place}.')]


def _qasper(rng: Rng) -> Answers:
  """Asks a question with a place, yes, no or no answer."""
  asked, theme = choose(rng, _THINGS), choose(rng, _PLACES)
  kind = rng.integers(3)
  question = f'Where is the {asked}?'
  if kind == 0:
    document, answer = _whereabouts(rng, asked, theme, _size(rng))
  elif kind == 1:
    document = _document(rng, [f'It was all told in {theme}.'] * 2)
    answer = 'Unanswerable'
  else:
    age = choose(rng, ('old', 'new'))
    things = sample(rng, _THINGS, 5)
    ages = {thing: _themed(rng, age, ('old', 'new')) for thing in things}
    facts = [f'The {thing} is {each}.' for thing, each in ages.items()]
    document = _document(rng, facts)
    asked = choose(rng, things)
    question = f'Is the {asked} old?'
    answer = 'Yes' if ages[asked] == 'old' else 'No'
  return [(f'{question}\n\n{document}', answer)]


def _quality(rng: Rng) -> Answers:
  """Asks for one of four places."""
  options, asked = sample(rng, _PLACES, 4), choose(rng, _THINGS)
  theme = choose(rng, options)
  document, place = _whereabouts(rng, asked, theme, _size(rng), options)
  lettered = zip('ABCD', options, strict=True)
  choices = '\n'.join(f' ({letter}) {option}' for letter, option in lettered)
  return [(f'Where is the {asked}?\n\n{choices}\n\n{document}', place)]


def _gov_report(rng: Rng) -> Answers:
  """Asks for all findings of a report, in their order."""
  places = sample(rng, _PLACES, 2)
  facts = [f'{place} lost a {choose(rng, _THINGS)}.' for place in places]
  document = _document(rng, facts)
  return [(document, ' '.join(sorted(facts, key=document.index)))]


def _qmsum(rng: Rng) -> Answers:
  """Asks what was said about one thing in a meeting."""
  asked, *others = sample(rng, _THINGS, 3)
  theme, verb = choose(rng, _PLACES), choose(rng, _VERBS)
  line = f'{theme} would {verb} the {asked}.'
  facts = [
    f'{_themed(rng, theme, _PLACES)} would {_themed(rng, verb, _VERBS)} '
    f'the {thing}.'
    for thing in others
  ]
  document = _document(rng, [line, *facts])
  return [(f'What was said of the {asked}?\n\n{document}', line)]


def _summ_screen_fd(rng: Rng) -> Answers:
  """Asks who speaks to whom about what in a scene."""
  one, other = sample(rng, _PLACES, 2)
  thing, verb = choose(rng, _THINGS), choose(rng, _VERBS)
  lines = [f'{one}: We must {verb} the {thing}, {other}.']
  for _ in range(_size(rng, 3, 7)):
    lines.append(f'{choose(rng, (one, other))}: {choose(rng, _FILLING)}')
  scene = '\n'.join(sample(rng, lines))
  return [(scene, f'{one} asks {other} to {verb} the {thing}.')]


RECORDS: dict[str, Callable[[Rng], Answers]] = {
  'contract_nli': _contract_nli,
  'gov_report': _gov_report,
  'narrative_qa': _narrative_qa,
  'qasper': _qasper,
  'qmsum': _qmsum,
  'quality': _quality,
  'summ_screen_fd': _summ_screen_fd,
}
