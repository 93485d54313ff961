"""Tests that `lengen_jax/data/ruler` renders the prompts of RULER.

Golden prompts: `golden/ruler/README.json`. A test reads the draws of a prompt
from its text, and renders the prompt again.
"""

import collections
import json
import re

import pytest

from lengen_jax.data import ruler
from lengen_jax.data.ruler import haystack, niah, variable_tracking, words
from tests import helpers

GOLDEN = json.loads((helpers.GOLDEN / 'ruler' / 'ruler.json').read_text())
NEEDLE = re.compile(r'One of the special magic (\w+)s for (\S+) is: (\S+)\.')


def cases(*names):
  return [
    pytest.param(name, case, id=f'{name}-{number}')
    for name in names
    for number, case in enumerate(GOLDEN[name]['cases'])
  ]


def assert_same(prompt, case):
  assert prompt.input == case['input']
  assert prompt.answer_prefix == case['answer_prefix']
  assert list(prompt.outputs) == case['outputs']
  assert prompt.text == case['input'] + case['answer_prefix']


def places(parts):
  """Returns (parts without needles, needles, the part after each needle)."""
  needles = [
    niah.Needle(*NEEDLE.fullmatch(one).groups()[1:])
    for one in parts
    if NEEDLE.fullmatch(one)
  ]
  before = [
    number - count
    for count, number in enumerate(
      n for n, one in enumerate(parts) if NEEDLE.fullmatch(one)
    )
  ]
  return [one for one in parts if not NEEDLE.fullmatch(one)], needles, before


def check_task(name):
  """The options of a task are those of the official script."""
  given, task = GOLDEN[name]['args'], ruler.TASKS[name]
  assert task.hay == {'essay': 'prose', 'needle': 'needles'}.get(
    given['type_haystack'], given['type_haystack']
  )
  assert task.key + 's' == given['type_needle_k']
  assert task.value + 's' == given['type_needle_v']
  assert task.keys == max(given['num_needle_k'], given['num_needle_q'])
  assert task.values == given['num_needle_v']
  assert task.queries == given['num_needle_q']


@pytest.mark.parametrize('name, case', cases('niah_single_1'))
def test_needle_in_noise(name, case):
  check_task(name)
  context = case['input'].split('\n')[1:-1]
  parts, needles, before = places(context)
  assert {*parts} == {haystack.NOISE}
  hidden = [needle.sentence('number') for needle in needles]
  lines = haystack.insert([haystack.NOISE] * len(parts), hidden, before)
  prompt = niah.frame('number', '\n'.join(lines), case['keys'], case['outputs'])
  assert_same(prompt, case)


@pytest.mark.parametrize('name, case', cases('niah_multikey_2'))
def test_needle_among_needles(name, case):
  check_task(name)
  lines = case['input'].split('\n')[1:-1]
  rest, needles, _ = places(lines)
  assert not rest and len(needles) == case['needles']
  lines = [needle.sentence('number') for needle in needles]
  prompt = niah.frame('number', '\n'.join(lines), case['keys'], case['outputs'])
  assert_same(prompt, case)


@pytest.mark.parametrize(
  'name, case', cases('niah_single_2', 'niah_multikey_1', 'niah_multiquery')
)
def test_needles_in_prose(name, case):
  check_task(name)
  context = '\n'.join(case['input'].split('\n')[1:-1])
  pieces = context.split(' ')
  parts, needles, before = places(haystack.sentences(pieces, len(pieces)))
  assert len(needles) == case['needles']
  size = sum(len(one.split()) for one in parts)
  assert parts == haystack.sentences(haystack.read(), size)
  allowed = {len(parts) * depth // 100 for depth in niah.DEPTHS}
  assert {*before} <= allowed
  hidden = [needle.sentence('number') for needle in needles]
  text = ' '.join(haystack.insert(parts, hidden, before))
  prompt = niah.frame('number', text, case['keys'], case['outputs'])
  assert_same(prompt, case)
  found = {needle.key: needle.value for needle in needles}
  assert [found[key] for key in case['keys']] == case['outputs']


def chain_of(text):
  """Returns the prompt of a text with a chain, rendered again."""
  lines = text.split('\n\n', 1)[1].split('\nQuestion')[0].split('\n')
  numbers = [n for n, line in enumerate(lines) if line.startswith('VAR')]
  names = [lines[number].split()[1] for number in numbers]
  value = lines[numbers[0]].split()[-1]
  context = haystack.insert(
    [haystack.NOISE] * (len(lines) - len(numbers)),
    variable_tracking.chain(names, value),
    [number - count for count, number in enumerate(numbers)],
  )
  return variable_tracking.frame('\n'.join(context), names, value)


@pytest.mark.parametrize('name, case', cases('vt'))
def test_variable_tracking(name, case):
  example, question = case['input'].split('\n\nMemorize')
  before = variable_tracking.solved(chain_of(example))
  prompt = chain_of(f'Memorize{question}')
  assert_same(prompt._replace(input=f'{before}\n\n{prompt.input}'), case)


def listed(text, common):
  """Returns the prompt of a text with a list of words, rendered again."""
  context = re.search(r'most often\.\n(.*)\nQuestion', text)[1]
  return words.list_frame(re.split(r' ?\d+\. ', context)[1:], common)


@pytest.mark.parametrize('name, case', cases('cwe'))
def test_common_words(name, case):
  example, question = case['input'].split('\nBelow')
  answer = example.split(' in the list are: ')[1]
  common = re.split(r' ?\d+\. ', answer)[1:]
  prompt = listed(question, case['outputs'])
  before = f'{listed(example, common).text} {words.numbered(common)}'
  assert_same(prompt._replace(input=f'{before}\n{prompt.input}'), case)


@pytest.mark.parametrize('name, case', cases('fwe'))
def test_frequent_words(name, case):
  context = re.search(r'coded words\. (.*)\nQuestion', case['input'])[1].split()
  assert_same(words.coded_frame(context, case['outputs']), case)
  counts = sorted(collections.Counter(context).values(), reverse=True)
  size = next(n for n in range(1000) if words.frequencies(n, 11) == counts)
  assert size > len(context)
