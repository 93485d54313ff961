"""Tests `lengen_jax/data/ruler`: the draws, and prompts that fit a length.

That prompts are those of RULER is tested in `golden_test.py`.
"""

import collections
import hashlib
import itertools
import random
import re

import pytest

from lengen_jax import errors
from lengen_jax.data import ruler, vocabulary
from lengen_jax.data.ruler import base, haystack, niah, words
from lengen_jax.data.ruler.word_list import ADJECTIVES, NOUNS

BYTES = vocabulary.create('bytes')
# Bytes need about four times the tokens of other vocabularies.
LENGTH = 2048


def setting(length=LENGTH, seed=0, text=haystack.NOISE):
  return ruler.Setting(BYTES, length, text.split(), seed)


def sample(name, index=0, **options):
  return ruler.sample(ruler.TASKS[name], name, index, setting(**options))


@pytest.mark.parametrize('name', ruler.TASKS)
def test_prompts_fit_exactly(name):
  task, asked = ruler.TASKS[name], setting()
  prompt = sample(name)
  used = asked.count(prompt.text) + task.max_new
  # The longest unit is a needle with two UUIDs.
  assert LENGTH - 140 < used <= LENGTH
  assert sample(name, length=used) == prompt
  assert sample(name, length=used - 1) != prompt


@pytest.mark.parametrize('name', ruler.TASKS)
def test_answers_depend_on_seed_and_index_only(name):
  prompt = sample(name)
  assert sample(name) == prompt
  assert sample(name, length=3000).outputs == prompt.outputs
  assert sample(name, length=3000).input != prompt.input
  assert sample(name, index=1).outputs != prompt.outputs
  assert sample(name, seed=1).outputs != prompt.outputs


def test_tasks_draw_independently():
  first = [sample(f'niah_single_{n}').answer_prefix for n in (1, 2, 3)]
  assert len({*first}) == 3


def test_prompts_do_not_depend_on_the_python():
  """Scores of two machines are comparable."""
  texts = ''.join(sample(name, index=3).text for name in ruler.TASKS)
  assert hashlib.sha256(texts.encode()).hexdigest()[:16] == 'acae28b722e28ad7'


@pytest.mark.parametrize('name', ruler.TASKS)
def test_a_length_that_is_too_short(name):
  with pytest.raises(errors.LengthError) as found:
    sample(name, length=256)
  message = str(found.value)
  assert message.startswith(f'{name} does not fit length 256')
  assert "vocabulary 'bytes'" in message
  least = int(re.search(r'from (\d+) on', message)[1])
  assert sample(name, length=least)
  with pytest.raises(errors.LengthError):
    sample(name, length=least - 1)
  # As docs/retrieval.md has it.
  assert least == {'vt': 1746, 'cwe': 1770}.get(name, least)


@pytest.mark.parametrize(
  'name, keys, values, asked',
  [
    ('niah_single_1', 1, 1, 1),
    ('niah_single_2', 1, 1, 1),
    ('niah_single_3', 1, 1, 1),
    ('niah_multikey_1', 4, 1, 1),
    ('niah_multivalue', 1, 4, 4),
    ('niah_multiquery', 4, 1, 4),
  ],
)
def test_number_of_needles(name, keys, values, asked):
  prompt = sample(name)
  found = re.findall(r'magic \w+ for (\S+) is: (\S+)\.', prompt.input)
  assert len(found) == keys * values
  assert len({key for key, _ in found}) == keys
  assert len(prompt.outputs) == asked
  assert {*prompt.outputs} <= {value for _, value in found}
  assert ('all' in prompt.input.split('\n')[-1]) == (asked > 1)


def test_kinds_of_keys_and_values():
  uuid, number = r'[0-9a-f]{8}-[0-9a-f]{4}-4\w{3}-[89ab]\w{3}-\w{12}', r'\d{7}'
  for name, key, value in (
    ('niah_multikey_2', r'[a-z]+-[a-z]+', number),
    ('niah_multikey_3', uuid, uuid),
    ('niah_single_3', r'[a-z]+-[a-z]+', uuid),
  ):
    prompt = sample(name)
    assert re.search(f'for {key} mentioned', prompt.input), name
    assert re.fullmatch(value, prompt.outputs[0]), name


def test_one_needle_of_many_has_the_key(monkeypatch):
  """Few words would give a key to two needles."""
  monkeypatch.setattr(niah.word_list, 'ADJECTIVES', ADJECTIVES[:5])
  monkeypatch.setattr(niah.word_list, 'NOUNS', NOUNS[:6])
  prompt = sample('niah_multikey_2')
  keys = re.findall(r'numbers for (\S+) is: ', prompt.input)
  assert len(keys) == len({*keys}) > 15
  assert prompt.input.count(prompt.outputs[0]) == 1


def test_needles_are_at_all_depths():
  def depth(name, index):
    prompt = sample(name, index)
    return prompt.input.index(prompt.outputs[0]) / len(prompt.input)

  for name in ('niah_single_1', 'niah_single_2', 'niah_multikey_2'):
    depths = [depth(name, index) for index in range(40)]
    assert min(depths) < 0.25 and max(depths) > 0.75, name
    assert len({*depths}) > 5, name


def test_depths_of_needles_in_prose():
  for index in range(10):
    prompt = sample('niah_single_2', index, length=3000)
    context = prompt.input.split('\n')[1]
    parts = re.split(r'(?<=\.) ', context)
    (at,) = (n for n, one in enumerate(parts) if 'magic' in one)
    count = len(parts) - 1
    assert at in {count * depth // 100 for depth in niah.DEPTHS}


def test_needles_at_the_ends_of_prose():
  assert niah.DEPTHS[0] == 0 and niah.DEPTHS[-1] == 100
  assert len({*niah.DEPTHS}) == 40
  assert haystack.insert('abc', 'XYZ', [0, 0, 3]) == [*'XYabcZ']


@pytest.mark.parametrize(
  'length, often, seldom, example', [(2048, 6, 1, 3), (8192, 30, 3, 10)]
)
def test_how_often_words_occur(length, often, seldom, example):
  prompt = sample('cwe', length=length)
  first, second = re.findall(r'often\.\n(.*)\nQuestion', prompt.input)
  found = collections.Counter(re.split(r' ?\d+\. ', second)[1:])
  common = found.most_common(len(prompt.outputs))
  assert {*prompt.outputs} == {word for word, _ in common}
  assert {*found.values()} == {often, seldom}
  counts = collections.Counter(re.split(r' ?\d+\. ', first)[1:])
  assert max(counts.values()) == example
  assert len(counts) == (20 if length < 4096 else 40)


def test_more_words_than_the_list_has(monkeypatch):
  monkeypatch.setattr(words.word_list, 'ADJECTIVES', ADJECTIVES[:10])
  monkeypatch.setattr(words.word_list, 'NOUNS', NOUNS[:10])
  prompt = sample('cwe')
  found = collections.Counter(
    re.split(r' ?\d+\. ', prompt.input.rpartition('often.\n')[2])[1:]
  )
  assert any('-' in word for word in found)
  assert not any('-' in word for word in prompt.outputs)


def test_answers_are_the_most_frequent_words():
  for size in range(ruler.TASKS['fwe'].least, 1000):
    counts = words.frequencies(size, 11)
    assert counts[3] > counts[4], size
    assert counts == sorted(counts, reverse=True)


def test_frequent_words_of_a_prompt():
  prompt = sample('fwe')
  text = re.search(r'words\. (.*)\nQuestion', prompt.input)[1].split()
  (dots, _), *others = collections.Counter(text).most_common(4)
  assert dots == '...' and {*prompt.outputs} == {word for word, _ in others}


def test_the_lists_of_words():
  every = [*ADJECTIVES, *NOUNS]
  assert len({*every}) == len(every) > 2000
  assert all(re.fullmatch('[a-z]{2,10}', word) for word in every)


def test_prose_of_files(tmp_path):
  (tmp_path / 'b.txt').write_text('It rained\nall  day. Was it cold? No.')
  (tmp_path / 'a.txt').write_text('A title. ')
  (tmp_path / 'c.jsonl').write_text('{"text": "no prose"}\n')
  text = haystack.read(str(tmp_path))
  assert ' '.join(text) == 'A title. It rained all day. Was it cold? No.'
  assert haystack.sentences(text, 12) == [
    *('A title.', 'It rained all day.', 'Was it cold?', 'No.', 'A title.')
  ]
  (tmp_path / 'a.txt').unlink()
  (tmp_path / 'b.txt').unlink()
  for path in (tmp_path, tmp_path / 'nothing'):
    with pytest.raises(errors.CorpusError, match=f'no text in {path};'):
      haystack.read(str(path))


def test_prose_without_sentences(tmp_path):
  path = tmp_path / 'prose.txt'
  texts = {
    'word ' * 900: 'do not end; ',
    '句子。' * 900: 'do not end; ',
    'word ' * 900 + 'end. ': 'have 4,504 characters, over 2000',
    'no end': 'do not end; ',
  }
  for text, message in texts.items():
    path.write_text(text)
    message = f'the sentences of .* {message}'
    with pytest.raises(errors.CorpusError, match=message):
      haystack.read(str(path))
  # The text repeats: one sentence is enough.
  path.write_text('It rained all day.')
  assert len(haystack.sentences(haystack.read(str(path)), 8)) == 2


def test_prose_of_files_hides_needles():
  text = 'The ship left. The sea was calm.'
  prompt = sample('niah_single_2', text=text)
  assert 'The ship left. The sea' in prompt.input
  assert 'grass' not in prompt.input
  assert 'grass' in sample('niah_single_1', text=text).input


def test_largest_size():
  rng = random.Random(0)
  for _ in range(300):
    steps = [rng.choice([0, 0, 1, 5, 100]) for _ in range(300)]
    used = list(itertools.accumulate(steps))
    least, most = rng.randint(1, 20), rng.randint(0, used[-1])

    def tokens(size, used=used):
      return used[size] if size < 300 else used[-1] + size

    fits = [size for size in range(least, 300) if used[size] <= most]
    assert base.largest(tokens, least, most) == max(fits, default=0)


def test_few_long_texts_are_counted():
  asked = []

  def tokens(size):
    asked.append(size)
    return 100 + int(19.3 * size)

  assert base.largest(tokens, 5, 128_000) == 6626
  assert sum(asked) < 6 * 6626


def test_a_vocabulary_without_the_characters():
  with pytest.raises(errors.CorpusError, match='words of text have 7 tokens'):
    base.largest(lambda size: 7, 1, 128)


def test_names_of_tasks():
  assert ruler.parse(['ruler']) == list(ruler.TASKS)
  assert ruler.parse(['vt', 'niah_single_1', 'vt']) == ['niah_single_1', 'vt']
  with pytest.raises(errors.SpecError, match="task 'vtt'.*'vt'.*fwe.*ruler"):
    ruler.parse(['vt', 'vtt'])
