"""Tiny datasets in the formats in which the real ones lie on a disk."""

import gzip
import json
import zipfile

import numpy as np

from lengen_jax.reproduce.synthetic import datasets

_WORDS = (
  'the position of a token tells how far it looks back along text'.split()
)


def write_tokenizer(folder):
  """A tokenizer.json like that of GPT-2: ids 0 and 1 are '!' and '"'."""
  import tokenizers

  bytelevel = tokenizers.pre_tokenizers.ByteLevel
  pieces = [*sorted(bytelevel.alphabet()), '<|endoftext|>']
  ids = {piece: number for number, piece in enumerate(pieces)}
  model = tokenizers.Tokenizer(tokenizers.models.BPE(ids, []))
  model.pre_tokenizer = bytelevel(add_prefix_space=False)
  model.decoder = tokenizers.decoders.ByteLevel()
  model.add_special_tokens(pieces[-1:])
  model.save(str(folder / 'tokenizer.json'))
  settings = json.dumps({'eos_token': pieces[-1]})
  (folder / 'tokenizer_config.json').write_text(settings)
  return str(folder)


def write_pieces(path):
  """A SentencePiece model like that of Llama: start 1, end 2, no padding."""
  import sentencepiece

  with path.open('wb') as file:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=(text(seed, 300) for seed in range(9)),
      model_writer=file,
      vocab_size=300,
      byte_fallback=True,
      normalization_rule_name='identity',
      remove_extra_whitespaces=False,
      hard_vocab_limit=False,
      minloglevel=2,
    )
  return str(path)


def text(seed, size):
  """About `size` bytes of English words."""
  generator = np.random.default_rng(seed)
  words = generator.choice(_WORDS, size // 5)
  return ' '.join(words)


def write_c4(folder, *, files=2, documents=20, size=400):
  """The files of allenai/c4."""
  (folder / 'c4' / 'en').mkdir(parents=True)
  seed = 0
  for split, count in (('train', files), ('validation', 1)):
    for number in range(count):
      name = f'c4-{split}.{number:05}-of-{count:05}.json.gz'
      with gzip.open(folder / 'c4' / 'en' / name, 'wt') as file:
        for _ in range(documents):
          seed += 1
          record = {
            'text': text(seed, size),
            'timestamp': '2019-04-25T12:57:54Z',
            'url': 'https://example.org',
          }
          file.write(json.dumps(record) + '\n')


def write_pile(folder, *, documents=30, size=400):
  """The files of the Pile: every set in each, one frame of zstd."""
  import zstandard

  (folder / 'train').mkdir(parents=True)
  sets = ('ArXiv', 'Github', 'Pile-CC')
  seed = 0
  for name in ('train/00', 'train/01', 'val', 'test'):
    lines = []
    for number in range(documents):
      seed += 1
      record = {
        'text': f'{sets[number % 3]} {text(seed, size)}',
        'meta': {'pile_set_name': sets[number % 3]},
      }
      lines.append(json.dumps(record) + '\n')
    packed = zstandard.ZstdCompressor().compress(''.join(lines).encode())
    (folder / f'{name}.jsonl.zst').write_bytes(packed)


def write_wikitext(folder, *, articles=20, size=400):
  """The zip of WikiText-103, raw: headings, blank lines, paragraphs."""
  with zipfile.ZipFile(folder / 'wikitext-103-raw-v1.zip', 'w') as archive:
    for seed, split in enumerate(('train', 'valid', 'test')):
      content = ''
      for number in range(articles):
        content += f' \n = Article {number} = \n \n'
        content += f' {text(1000 * seed + number, size)} \n'
        content += f' = = Section = = \n \n {text(number, 60)} \n'
      archive.writestr(f'wikitext-103-raw/wiki.{split}.raw', content)


def write_enwik8(folder, *, size=20_000):
  """The zip with one file of bytes, cut anywhere and not always UTF-8."""
  content = ('<mediawiki>\n' + text(3, 2 * size) + 'ä').encode()[:size]
  with zipfile.ZipFile(folder / 'enwik8.zip', 'w') as archive:
    archive.writestr('enwik8', content)


def scrolls_rows(task, count, size=300):
  """Records of a SCROLLS task; the first two share their id."""
  return [
    {
      'id': f'{task}_{max(number, 1)}',
      'pid': f'{task}_{number}',
      'input': f'What is in text {max(number, 1)}?\n\n{text(number, size)}',
      'output': f'answer {number}',
    }
    for number in range(count)
  ]


def write_scrolls_zip(folder, task, *, count=12, answer=None):
  """The zip of a task as of tau/scrolls; all with one answer if given."""
  with zipfile.ZipFile(folder / f'{task}.zip', 'w') as archive:
    for split in ('train', 'validation', 'test'):
      rows = scrolls_rows(task, count)
      if answer is not None:
        rows = [{**row, 'output': answer} for row in rows]
      if split == 'test':
        rows = [{**row, 'output': None} for row in rows]
      lines = ''.join(json.dumps(row) + '\n' for row in rows)
      archive.writestr(f'{task}/{split}.jsonl', lines)


def write_tfds(folder, name, by_split):
  """What TensorFlow Datasets would prepare, with the dataset's own features.

  Args:
    folder: the data_dir.
    name: 'dataset/config:version'.
    by_split: split to list of records.
  """
  datasets.write(folder, name, lambda: by_split)


def write_glue(folder, *, count=6):
  """All tasks of GLUE and SuperGLUE that FIRE has."""
  from lengen_jax.data import glue

  for task in {t.dataset: t for t in glue.TASKS.values()}.values():
    splits = ('train', 'validation')
    if task.dataset.startswith('glue/mnli'):
      splits = ('train', 'validation_matched', 'validation_mismatched')
    records = [_glue_record(task.dataset, n) for n in range(count)]
    write_tfds(folder, task.dataset, dict.fromkeys(splits, records))


def _glue_record(dataset, number):
  """A record of any of these datasets, read off its features."""
  import tensorflow_datasets as tfds

  def value(name, feature):
    if isinstance(feature, tfds.features.FeaturesDict):
      return {key: value(key, feature[key]) for key in feature}
    if isinstance(feature, tfds.features.ClassLabel):
      return number % feature.num_classes
    if isinstance(feature, tfds.features.Sequence):
      return [value(name, feature.feature)]
    if isinstance(feature, tfds.features.Text):
      return f'{name} {number} {text(number, 40)}'
    return 0 if name.startswith('span') else number

  features = tfds.builder(dataset).info.features
  return {name: value(name, features[name]) for name in features}


def write_imagenet(folder, *, count=8):
  """Pictures of noise."""
  generator = np.random.default_rng(0)
  write_tfds(
    folder,
    'imagenet2012:5.1.0',
    {
      split: [
        {
          'image': generator.integers(0, 256, (9, 12, 3)).astype(np.uint8),
          'label': 100 * number,
          'file_name': f'{split}_{number}.JPEG',
        }
        for number in range(count)
      ]
      for split in ('train', 'validation')
    },
  )
