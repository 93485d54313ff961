"""Tokens of the arithmetic tasks, and their text."""

import re
from typing import Any

import jax
import numpy as np

from lengen_jax import errors

# Those of the code of McLeish et al. (2024), arXiv:2405.17399, and GREATER, the
# symbol between the sums of a scratchpad.
PADDING, END, ZERO = 0, 3, 4
PLUS, MINUS, TIMES, EQUALS, GREATER = 14, 15, 16, 17, 18
# The first hint. Id 19 has no symbol.
HINT = 20
# Number of hints in Zhou et al. (2024), arXiv:2402.09371.
HINTS = 102

_CHARACTERS = {
  **{str(digit): ZERO + digit for digit in range(10)},
  '+': PLUS,
  '-': MINUS,
  '*': TIMES,
  '=': EQUALS,
  '>': GREATER,
}


def _letters(number: int) -> str:
  """Returns the text of a hint: a to z, then aa, ab and so on."""
  first, last = divmod(number, 26)
  return (chr(96 + first) if first else '') + chr(97 + last)


_HINTS = {_letters(number): HINT + number for number in range(HINTS)}
_TEXTS = {token: text for text, token in (_CHARACTERS | _HINTS).items()}


def parse(text: str, hints: bool) -> list[int]:
  """Returns the token ids of a text such as `42+39`, without its spaces.

  With `hints`, letters before a digit are a hint, as in `a4b2+a3b9`: a to z,
  then aa, ab and so on. Without, `x` is `*`.

  Raises:
    errors.ConfigError: a part of the text is not a token.
  """
  known = _CHARACTERS | (_HINTS if hints else {'x': TIMES})
  ids = []
  for part in re.findall('[a-z]+|[^a-z]', re.sub(r'\s', '', str(text))):
    if part not in known:
      letters = f', and hints from a to {_letters(HINTS - 1)}' * hints
      raise errors.ConfigError(
        f'{part!r} in {text!r} is not a token; write digits, + - * = >{letters}'
      )
    ids.append(known[part])
  return ids


def check_hints(text: str, ids: Any) -> None:
  """Checks that hints of each number are consecutive, from the same first one.

  Raises:
    errors.ConfigError: a hint differs.
  """
  given = np.asarray(ids).tolist()
  first = expected = given[0]
  for token in given:
    if token < HINT:
      expected = first if token in (PLUS, EQUALS) else expected
    elif token != expected:
      raise errors.ConfigError(
        f'{text!r} has the hint {_TEXTS[token]} where {_TEXTS[expected]} is '
        f'expected; the hints of each number start at {_TEXTS[first]}'
      )
    else:
      expected = HINT + (token + 1 - HINT) % HINTS


def text(ids: Any) -> str:
  """Returns the text of token ids; padding and the end token have none."""
  return ''.join(_TEXTS.get(i, '') for i in np.asarray(ids).tolist())


def is_digit(tokens: jax.Array) -> jax.Array:
  """Returns which tokens are digits, bool."""
  return (tokens >= ZERO) & (tokens < ZERO + 10)


def is_mark(tokens: jax.Array) -> jax.Array:
  """Returns which tokens are symbols between numbers, bool."""
  return (tokens >= PLUS) & (tokens < HINT)
