"""Tests `lengen_jax/data/vocabulary/tokenizer.py`."""

import json
import pathlib
import shutil
import sys
import unicodedata

import numpy as np
import pytest
import tokenizers

from lengen_jax import errors
from lengen_jax.data import vocabulary
from tests.data.vocabulary.odd import ODD

GOLDEN = pathlib.Path(__file__).parents[2] / 'golden' / 'checkpoints'
FAMILIES = ('gemma2', 'gpt_neox', 'llama3', 'qwen2')
# Those that compose characters: their text is in normal form C.
COMPOSING = ('gpt_neox', 'qwen2')


def create(family):
  return vocabulary.create(str(GOLDEN / family))


def write(folder, change=lambda found: None, family='llama3', **settings):
  """A folder with a changed tokenizer, and settings by the name of a file."""
  folder.mkdir(exist_ok=True)
  found = json.loads((GOLDEN / family / 'tokenizer.json').read_text())
  change(found)
  (folder / 'tokenizer.json').write_text(json.dumps(found))
  for name, content in settings.items():
    (folder / f'{name}.json').write_text(json.dumps(content))
  return str(folder)


def prepending(folder):
  """A tokenizer like that of Llama 2, which puts a space before texts."""
  pieces = ['<unk>', '<s>', '</s>', *(f'<0x{n:02X}>' for n in range(256))]
  pieces += ['▁', *'abcdehlo', '▁a', 'he']
  model = tokenizers.Tokenizer(
    tokenizers.models.BPE(
      {piece: number for number, piece in enumerate(pieces)},
      [('▁', 'a'), ('h', 'e')],
      unk_token='<unk>',
      fuse_unk=True,
      byte_fallback=True,
    )
  )
  normalizers, decoders = tokenizers.normalizers, tokenizers.decoders
  model.normalizer = normalizers.Sequence(
    [normalizers.Prepend('▁'), normalizers.Replace(' ', '▁')]
  )
  model.decoder = decoders.Sequence(
    [
      decoders.Replace('▁', ' '),
      decoders.ByteFallback(),
      decoders.Fuse(),
      decoders.Strip(' ', 1, 0),
    ]
  )
  model.add_special_tokens(
    [tokenizers.AddedToken(p, normalized=False) for p in pieces[:3]]
  )
  model.save(str(folder / 'tokenizer.json'))
  settings = {'bos_token': '<s>', 'eos_token': {'content': '</s>'}}
  (folder / 'tokenizer_config.json').write_text(json.dumps(settings))
  return str(folder)


@pytest.mark.parametrize('family', FAMILIES)
def test_ids_and_texts_of_transformers(family):
  vocab = create(family)
  content = json.loads((GOLDEN / family / 'tokenizer_cases.json').read_text())
  cases = content['cases']
  assert len(cases) > 30
  for case in cases:
    assert vocab.encode(case['text']) == case['ids']
    assert vocab.decode(case['ids']) == case['decoded']
    text = case['decoded_skip_special']
    for ids in (case['ids_with_special'], case['ids']):
      assert vocab.decode(ids, special=False) == text
      assert vocab.num_bytes(ids) == len(text.encode())
  several = vocab.encode([case['text'].encode() for case in cases])
  assert [ids.tolist() for ids in several] == [case['ids'] for case in cases]
  assert {ids.dtype for ids in several} == {np.dtype(np.int32)}


@pytest.mark.parametrize(
  ('family', 'size', 'start', 'end'),
  [
    ('gemma2', 562, 2, 1),
    ('gpt_neox', 320, 0, 0),
    ('llama3', 320, 0, 1),
    # Without a start, and with another in the config of its model.
    ('qwen2', 320, 2, 2),
  ],
)
def test_sizes_and_ends(family, size, start, end):
  vocab = create(family)
  assert (vocab.size, vocab.start, vocab.end) == (size, start, end)
  assert vocab.lossless == (family not in COMPOSING)
  assert vocab.name == str(GOLDEN / family)
  assert vocab.num_bytes([start, end, -1, size]) == 0
  ids = [start, *vocab.encode('a b'), end, -1, size]
  assert vocab.decode(ids, special=False) == 'a b'


@pytest.mark.parametrize('family', FAMILIES)
def test_odd_texts_come_back(family):
  vocab = create(family)
  for text in ODD:
    ids = vocab.encode(text)
    if family in COMPOSING:
      text = unicodedata.normalize('NFC', text)
    assert vocab.decode(ids) == text
    text = vocab.decode(ids, special=False)
    # Wherever text is cut, within a character too.
    sizes = [vocab.num_bytes([number]) for number in ids]
    assert sum(sizes) == vocab.num_bytes(ids) == len(text.encode())
  for text in ('a\xffb'.encode('latin-1'), 'a\ud800'):
    assert vocab.decode(vocab.encode(text)).startswith('a\ufffd')


def test_random_texts_come_back():
  rng = np.random.default_rng(0)
  ranges = ((0, 0x80), (0, 0x300), (0x3000, 0xA000), (0x1F300, 0x1FAFF))
  texts = [
    ''.join(map(chr, rng.integers(*ranges[n % 4], 40))) for n in range(80)
  ]
  for family in ('gemma2', 'llama3'):
    vocab = create(family)
    for text, ids in zip(texts, vocab.encode(texts), strict=True):
      assert vocab.decode(ids) == text
      assert vocab.num_bytes(ids) == len(text.encode())


def test_a_space_before_every_text(tmp_path):
  vocab = vocabulary.create(prepending(tmp_path))
  assert (vocab.start, vocab.end, vocab.lossless) == (1, 2, True)
  for text in ('', ' ', 'hello', '  hello ', 'é漢\t\n'):
    ids = vocab.encode(text)
    marked = [vocab.start, *ids, vocab.end]
    assert vocab.decode(marked, special=False) == text
    # The space that was put before it counts.
    assert vocab.num_bytes(ids) == len(text.encode()) + bool(text)
  ids = vocab.encode('a</s>a')
  assert vocab.end in ids and vocab.decode(ids) == 'a</s> a'
  assert vocab.decode(ids, special=False) == 'a a'


def test_tokens_that_are_no_bytes(tmp_path):
  """Pieces of words, which are joined by spaces."""
  model = tokenizers.Tokenizer(
    tokenizers.models.WordPiece(
      {'[UNK]': 0, '[SEP]': 1, 'play': 2, '##ing': 3, 'é': 4, 'a': 5},
      unk_token='[UNK]',
    )
  )
  model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
  model.decoder = tokenizers.decoders.WordPiece()
  model.save(str(tmp_path / 'tokenizer.json'))
  (tmp_path / 'config.json').write_text('{"eos_token_id": 1}')
  vocab = vocabulary.create(str(tmp_path))
  ids = vocab.encode('play  playing é')
  assert not vocab.lossless
  assert vocab.decode(ids) == 'play playing é'
  assert vocab.num_bytes(ids[1:]) == len(' playing é'.encode())


def test_tokens_added_to_bytes(tmp_path):
  """Ids may have gaps, and runs of spaces be tokens, as in GPT-NeoX."""

  def change(found):
    found['model']['vocab']['unused'] = 400
    kind = dict(found['added_tokens'][0], special=False)
    for number, content in ((401, '   '), (402, '<|漢|>')):
      found['added_tokens'].append(dict(kind, id=number, content=content))

  ends = json.loads((GOLDEN / 'gpt_neox/tokenizer_config.json').read_text())
  vocab = vocabulary.create(
    write(tmp_path / 'a', change, 'gpt_neox', tokenizer_config=ends)
  )
  text = 'a   b<|漢|>é'
  ids = vocab.encode(text)
  assert max(ids) > 320 and vocab.size == 1 + max(*ids, 400)
  assert vocab.num_bytes([350, 399]) == 0
  assert vocab.decode(ids) == text
  assert vocab.num_bytes(ids) == len(text.encode())


def test_texts_are_neither_cut_nor_padded(tmp_path):
  def change(found):
    found['truncation'] = {
      'direction': 'Right',
      'max_length': 3,
      'strategy': 'LongestFirst',
      'stride': 0,
    }
    found['padding'] = {
      'strategy': {'Fixed': 8},
      'direction': 'Right',
      'pad_to_multiple_of': None,
      'pad_id': 0,
      'pad_type_id': 0,
      'pad_token': '<|end_of_text|>',
    }

  vocab = vocabulary.create(
    write(tmp_path / 'a', change, config={'eos_token_id': 1})
  )
  for text in ('a', 'a text of more than three tokens'):
    assert vocab.encode(text) == create('llama3').encode(text)


@pytest.mark.parametrize(
  ('settings', 'start', 'end'),
  [
    ({'tokenizer_config': {'eos_token': '<|eot_id|>'}}, 2, 2),
    (
      {
        'tokenizer_config': {'bos_token': None, 'eos_token': '<|eot_id|>'},
        'config': {'bos_token_id': 0, 'eos_token_id': 1},
      },
      2,
      2,
    ),
    # One that names no end, or none of the tokens.
    (
      {
        'tokenizer_config': {'bos_token': '<|eot_id|>', 'eos_token': None},
        'config': {'bos_token_id': 0, 'eos_token_id': 1},
      },
      0,
      1,
    ),
    (
      {
        'tokenizer_config': {'eos_token': '</s>'},
        'config': {'eos_token_id': 320},
        'generation_config': {'bos_token_id': 0, 'eos_token_id': [2, 1]},
      },
      0,
      2,
    ),
    ({'config': {'bos_token_id': 320, 'eos_token_id': 0}}, 0, 0),
    # A token of text.
    ({'tokenizer_config': {'eos_token': '!'}}, 3, 3),
  ],
)
def test_ends_of_texts(tmp_path, settings, start, end):
  vocab = vocabulary.create(write(tmp_path / 'a', **settings))
  assert (vocab.start, vocab.end) == (start, end)
  ids = [start, *vocab.encode('a'), end]
  assert vocab.decode(ids, special=False) == 'a'
  assert vocab.num_bytes([start, end]) == 0


def test_fingerprints(tmp_path):
  vocab = create('llama3')
  file = vocabulary.create(str(GOLDEN / 'llama3' / 'tokenizer.json'))
  assert file.fingerprint == vocab.fingerprint
  copy = tmp_path / 'copy'
  shutil.copytree(GOLDEN / 'llama3', copy)
  assert vocabulary.create(str(copy)).fingerprint == vocab.fingerprint
  # Prepared windows contain the ends.
  (copy / 'tokenizer_config.json').write_text('{"eos_token": "<|eot_id|>"}')
  other = vocabulary.create(str(copy)).fingerprint
  assert len({vocab.fingerprint, other, create('qwen2').fingerprint}) == 3


def test_copies(tmp_path):
  """The files that determine ids are copied, but not onto themselves."""
  vocab = vocabulary.create(str(GOLDEN / 'qwen2' / 'tokenizer.json'))
  vocab.copy_to(tmp_path)
  folder = tmp_path / 'vocabulary'
  names = ['tokenizer.json', 'tokenizer_config.json']
  assert sorted(path.name for path in folder.iterdir()) == names
  copy = vocabulary.create(str(folder))
  assert copy.fingerprint == vocab.fingerprint
  copy.copy_to(tmp_path)
  assert vocabulary.create(str(folder)).fingerprint == vocab.fingerprint


@pytest.mark.parametrize(
  ('name', 'content', 'reason'),
  [
    (
      'tokenizer.json',
      None,
      r'cannot read .*tokenizer\.json \(No such file.*data\.vocabulary must be '
      "'bytes', the path of a SentencePiece model, or a folder with",
    ),
    ('tokenizer.json', '', r'tokenizer\.json \(0 bytes\) is not a tokenizer'),
    ('tokenizer.json', '{}', r'corrupt \(.*Model missing.*\); copy it again'),
    ('tokenizer_config.json', '{', r'_config\.json is corrupt \(.*\); copy it'),
    ('tokenizer_config.json', '[1]', r'_config\.json is corrupt'),
    (
      'tokenizer_config.json',
      None,
      r'no token of .*tokenizer\.json ends a text: neither eos_token in .* nor '
      r'eos_token_id in config\.json or .*; set eos_token in .*_config\.json',
    ),
  ],
)
def test_files_that_are_missing_or_broken(tmp_path, name, content, reason):
  shutil.copytree(GOLDEN / 'llama3', tmp_path, dirs_exist_ok=True)
  (tmp_path / name).unlink()
  (tmp_path / 'config.json').unlink(missing_ok=True)
  if content is not None:
    (tmp_path / name).write_text(content)
  with pytest.raises(errors.CorpusError, match=reason):
    vocabulary.create(str(tmp_path))


def test_without_the_package(monkeypatch):
  monkeypatch.setitem(sys.modules, 'tokenizers', None)
  with pytest.raises(
    errors.CorpusError, match=r"tokenizer\.json needs .*'lengen_jax\[hf\]'"
  ):
    create('llama3')


@pytest.mark.parametrize(
  'stated, processes, adds',
  [(None, True, True), (None, False, False), (False, True, False)]
  + [(True, False, True)],
)
def test_whether_prompts_begin_with_the_start(
  tmp_path, stated, processes, adds
):
  config = json.loads((GOLDEN / 'llama3' / 'tokenizer_config.json').read_text())
  config['add_bos_token'] = stated

  def change(found):
    if not processes:
      found['post_processor'] = None

  folder = write(tmp_path / 'a', change, tokenizer_config=config)
  assert vocabulary.create(folder).adds_start is adds


def test_the_start_is_stated_where_another_file_names_the_end(tmp_path):
  config = json.loads((GOLDEN / 'llama3' / 'tokenizer_config.json').read_text())
  del config['eos_token']

  def change(found):
    found['post_processor'] = None

  ids = {'bos_token_id': 1, 'eos_token_id': 2}
  for stated in (True, False):
    config['add_bos_token'] = stated
    path = tmp_path / str(stated)
    folder = write(path, change, tokenizer_config=config, config=ids)
    found = vocabulary.create(folder)
    assert (found.end, found.adds_start) == (2, stated)
    found.copy_to(path)
    assert vocabulary.create(vocabulary.copy_in(path)).adds_start is stated
