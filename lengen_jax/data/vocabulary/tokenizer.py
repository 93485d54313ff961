"""Vocabularies of the tokenizers that transformers writes.

Only `tokenizer.json` and JSON settings beside it are read. No code of a
checkpoint is run.
"""

from collections.abc import Mapping, Sequence
import hashlib
import json
import pathlib
import re
import shutil
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lengen_jax import errors, extra
from lengen_jax.data.vocabulary import base

_FILE = 'tokenizer.json'
# Files that name the special tokens. The first that names an end is used.
_SETTINGS = ('tokenizer_config.json', 'config.json', 'generation_config.json')
# The copy in a folder of prepared data.
COPY = 'vocabulary'
# A token that is one byte, where the decoder has ByteFallback.
_BYTE = re.compile('<0x[0-9A-F]{2}>')


class Tokenizer(base.Vocabulary):
  """Vocabulary of a `tokenizer.json`; invalid UTF-8 becomes U+FFFD.

  As in transformers, a special token within a text becomes its id. The start
  token is added to prompts if `add_bos_token` says so or, without it, if the
  post-processor of `tokenizer.json` adds it. `num_bytes` counts special tokens
  as 0 bytes. A space that the tokenizer puts before a text, as that of Llama 2,
  counts as 1 byte: it is part of the first token of a document, which is not
  scored.

  The start and the end of a document are `bos_token` and `eos_token` of
  `tokenizer_config.json`. If that names no end, `bos_token_id` and
  `eos_token_id` of `config.json` or `generation_config.json` are used. Without
  a token for the start, as in GPT-NeoX and Qwen, the start is the end:
  documents are separated by it.
  """

  def __init__(self, path: str | pathlib.Path) -> None:
    """Loads a tokenizer.

    Args:
      path: a folder that contains `tokenizer.json`, or the path of that file.

    Raises:
      errors.CorpusError: the file is missing or corrupt, or no file names the
        token that ends a text.
    """
    tokenizers = extra.load('tokenizers', 'a tokenizer.json', 'hf')
    self.name = str(path)
    path = pathlib.Path(path).expanduser()
    self._file = path if path.suffix == '.json' else path / _FILE
    content = _read(self._file)
    try:
      self._model = tokenizers.Tokenizer.from_buffer(content)
    except Exception as error:  # The type depends on the version.
      raise errors.CorpusError(
        f'{self._file} ({len(content)} bytes) is not a tokenizer, or corrupt '
        f'({errors.reason(error)}); copy it again'
      ) from None
    # Files may ask for truncation or padding, which would change the text.
    self._model.no_truncation()
    self._model.no_padding()
    pieces = self._model.get_vocab()
    self._ids = 1 + max(pieces.values(), default=-1)
    self.start, self.end, self._settings = self._find_ends()
    ids = hashlib.sha256(content + f'{self.start} {self.end}'.encode())
    self.fingerprint = ids.hexdigest()[:16]
    self._special = np.zeros(self._ids, bool)
    added = self._model.get_added_tokens_decoder()
    special = [number for number, token in added.items() if token.special]
    self._special[[*special, self.start, self.end]] = True
    # Models may lack embeddings of the last special tokens, as Gemma 3 1B does.
    used = {self.start, self.end, *np.flatnonzero(~self._special).tolist()}
    self.size = 1 + max(used)
    self._num_bytes = self._count_bytes(
      pieces,
      _kinds(json.loads(content).get('decoder')),
      set(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
    )
    self.lossless = self.decode(self.encode(base.PROBE)) == base.PROBE
    processed = self._model.encode('a', add_special_tokens=True).ids
    stated = self._stated('add_bos_token')
    adds = processed[:1] == [self.start]
    self.adds_start = adds if stated is None else bool(stated)

  def decode(self, ids: ArrayLike, *, special: bool = True) -> str:
    ids = self._valid(ids)
    if not special:
      ids = ids[~self._special[ids]]
    return self._model.decode(ids.tolist(), skip_special_tokens=False)

  def seqio(self) -> Any:
    from lengen_jax.data import seqio_vocabulary

    return seqio_vocabulary.Wrapped(self)

  def copy_to(self, folder: pathlib.Path) -> None:
    copies = folder / COPY
    if self._file.parent.absolute() == copies:
      return
    copies.mkdir(exist_ok=True)
    shutil.copyfile(self._file, copies / _FILE)
    for path in {self._settings, self._file.parent / _SETTINGS[0]}:
      if path.exists():
        shutil.copyfile(path, copies / path.name)

  def _encode(self, texts: Sequence[bytes]) -> list[np.ndarray]:
    found = self._model.encode_batch_fast(
      [text.decode('utf-8', errors='replace') for text in texts],
      add_special_tokens=False,
    )
    return [np.asarray(each.ids, np.int32) for each in found]

  def _stated(self, key: str) -> Any:
    """Returns a value of `tokenizer_config.json`, None if there is none."""
    path = self._file.parent / _SETTINGS[0]
    return _json(path).get(key) if path.exists() else None

  def _find_ends(self) -> tuple[int, int, pathlib.Path]:
    """Returns the ids of start and end, and the file that names them."""
    folder = self._file.parent
    for path in (folder / name for name in _SETTINGS):
      if path.exists():
        settings = _json(path)
        start, end = self._id(settings, 'bos'), self._id(settings, 'eos')
        if end is not None:
          return (end if start is None else start), end, path
    raise errors.CorpusError(
      f'no token of {self._file} ends a text: neither eos_token in '
      f'{_SETTINGS[0]} nor eos_token_id in {" or ".join(_SETTINGS[1:])} is one '
      f'of its tokens; set eos_token in {folder / _SETTINGS[0]}'
    )

  def _id(self, settings: Mapping[str, Any], role: str) -> int | None:
    """Returns the id of the 'bos' or 'eos' token; None if there is none."""
    token = settings.get(f'{role}_token')
    if isinstance(token, dict):
      token = token.get('content')
    if isinstance(token, str):
      return self._model.token_to_id(token)
    found = settings.get(f'{role}_token_id')
    if isinstance(found, list):
      found = found[0] if found else None
    valid = isinstance(found, int) and 0 <= found < self._ids
    return found if valid else None

  def _count_bytes(
    self, pieces: Mapping[str, int], kinds: set[str], alphabet: set[str]
  ) -> np.ndarray:
    """Returns the bytes of text of each token, int64 `[size]`.

    Args:
      pieces: ids by token.
      kinds: types of the decoder and its parts.
      alphabet: the characters that stand for one byte each in ByteLevel.
    """
    # What a token adds to a text: a space at the beginning may be removed.
    before = self.encode('a')
    added = self._model.decode_batch(
      [[*before, number] for number in range(self._ids)],
      skip_special_tokens=False,
    )
    without = len(self._model.decode(before).encode())
    found = np.array([len(text.encode()) for text in added]) - without
    # Several tokens may be one character: alone they decode to U+FFFD.
    for piece, number in pieces.items():
      if 'ByteLevel' in kinds and set(piece) <= alphabet:
        found[number] = len(piece)
      elif 'ByteFallback' in kinds and _BYTE.fullmatch(piece):
        found[number] = 1
    return np.where(self._special, 0, found)


def _kinds(decoder: Mapping[str, Any] | None) -> set[str]:
  """Returns the types of a decoder in tokenizer.json and of its parts."""
  if decoder is None:
    return set()
  parts = map(_kinds, decoder.get('decoders', ()))
  return {decoder['type']}.union(*parts)


def _read(path: pathlib.Path) -> bytes:
  try:
    return path.read_bytes()
  except OSError as error:
    raise errors.CorpusError(
      f'cannot read {path} ({error.strerror}); data.vocabulary must be '
      "'bytes', the path of a SentencePiece model, or a folder with "
      'tokenizer.json'
    ) from None


def _json(path: pathlib.Path) -> dict[str, Any]:
  try:
    return dict(json.loads(_read(path)))
  except (TypeError, ValueError) as error:
    raise errors.CorpusError(
      f'{path} is corrupt ({errors.reason(error)}); copy it again'
    ) from None
