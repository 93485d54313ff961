"""Deterministic context-free tasks, solvable by a pushdown automaton.

Source: Delétang et al. (2023), arXiv:2207.02098, and its code.
"""

from collections.abc import Iterable
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lengen_jax.tasks import chomsky, draws
from lengen_jax.tasks.base import Length

MODULUS = 5
PLUS, MINUS, TIMES, OPEN, CLOSE = 5, 6, 7, 8, 9


class StackManipulation(chomsky.ChomskyTask):
  """Content of a stack after a sequence of actions, from the top down.

  The input is the stack of 0 and 1 from the bottom up, then the actions: 2
  pops, 3 pushes a 0, 4 pushes a 1. Popping an empty stack has no effect.
  """

  formula = 'stack, top first, then 2'
  vocab_in = 5
  vocab_out = 3
  terminator = 2

  def _is_question(self, x: np.ndarray) -> bool:
    acts = x >= 2
    # The stack is not empty and precedes the actions.
    return not (acts[:1].all() or (acts[:-1] & ~acts[1:]).any())

  def output_length(self, length: Length) -> Length:
    return length + 1

  def draw(self, rng: jax.Array, n: Length, width: int) -> jax.Array:
    bits, once = draws.column_bits(rng, width, (2,))
    size = 1 + draws.below(once[0], jnp.maximum(n - 1, 1))
    in_stack = jnp.arange(width) < size
    return jnp.where(in_stack, draws.below(bits, 2), 2 + draws.below(bits, 3))

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    width = x.shape[0]
    step = jnp.where(x == 2, -1, 1)
    step = jnp.where(jnp.arange(width) < n, step, 0)
    # Depth after each action: a random walk reflected at 0.
    walk = jnp.cumsum(step)
    depth = walk - jnp.minimum(jax.lax.cummin(walk), 0)
    # A pushed token remains if the depth never falls below its own.
    stays = (step > 0) & (jax.lax.cummin(depth, reverse=True) >= depth)
    size = depth[-1]
    place = jnp.where(stays, size - depth, width + 1)
    y = jnp.zeros(width + 1, jnp.int32)
    y = y.at[place].set(x - 3 * (x > 2), mode='drop')
    return y.at[size].set(self.terminator)


class ReverseString(chomsky.ChomskyTask):
  """The input bits in reverse order."""

  formula = 'x_n ... x_1'

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    return x[jnp.maximum(n - 1 - jnp.arange(x.shape[0]), 0)]


class ModularArithmeticBrackets(chomsky.ChomskyTask):
  """Value of an expression with brackets, modulo 5.

  Tokens: 0 to 4 are digits, then + - * ( ); 10 is never drawn.
  """

  formula = '(A op B) mod 5'
  vocab_in = 11
  vocab_out = MODULUS
  chance = 1 / MODULUS
  target_length = 1

  def _is_question(self, x: np.ndarray) -> bool:
    return is_expression(x.tolist())

  def draw(self, rng: jax.Array, n: Length, width: int) -> jax.Array:
    bits = draws.column_bits(rng, width, (3,))
    return draw_expression(bits, n, num_operators=3)

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    inside = jnp.arange(x.shape[0]) < n
    return evaluate(jnp.where(inside, x, -1))[None]


class SolveEquation(chomsky.ChomskyTask):
  """The value of x in an equation modulo 5.

  The input is an expression of + and - with x in place of one digit, `=` and
  its value. Token ids are digits, then + - ( ) x =. Below length 3, all tokens
  and the target are 0.
  """

  formula = 'x in expression(x) = value mod 5'
  vocab_in = 11
  vocab_out = MODULUS
  chance = 1 / MODULUS
  target_length = 1

  UNKNOWN, EQUALS = 9, 10

  # Shorter ones are all zeros.
  _example_length = 5

  def _is_question(self, x: np.ndarray) -> bool:
    *left, equals, value = [-1, -1, *map(int, x)]
    # With 0 for x, and brackets numbered as in `evaluate`.
    tokens = [
      0 if t == self.UNKNOWN else t + (t >= OPEN - 1) for t in left if t >= 0
    ]
    return (
      left.count(self.UNKNOWN) == 1
      and TIMES not in tokens
      and is_expression(tokens)
      and equals == self.EQUALS
      and value < MODULUS
    )

  def draw(self, rng: jax.Array, n: Length, width: int) -> jax.Array:
    *bits, once = draws.column_bits(rng, width, (4,))
    size = jnp.maximum(n - 2, 1)
    column = jnp.arange(width)
    x = draw_expression(bits, size, num_operators=2)
    x = jnp.where(column < size, x, -1)
    # The hidden digit is the first at or (cyclically) after a uniform place, so
    # that digits after operators or brackets are hidden more often.
    place = draws.below(once[0], size)
    is_digit = (x >= 0) & (x < MODULUS)
    after = jnp.where(is_digit, (column - place) % size, width)
    value = evaluate(x)
    x = jnp.where(x >= OPEN, x - 1, x)
    x = jnp.where(column == jnp.argmin(after), self.UNKNOWN, x)
    x = jnp.where(column == size, self.EQUALS, x)
    x = jnp.where(column == size + 1, value, x)
    return jnp.where(n < 3, 0, x)

  def solve(self, x: jax.Array, n: Length) -> jax.Array:
    column = jnp.arange(x.shape[0])
    is_bracket = (x == OPEN - 1) | (x == CLOSE - 1)
    tokens = jnp.where(is_bracket, x + 1, x)
    tokens = jnp.where(column < n - 2, tokens, -1)
    # The expression is a + b x, and b is 1 or -1, its own inverse.
    a, at_one = (
      evaluate(jnp.where(x == self.UNKNOWN, digit, tokens)) for digit in (0, 1)
    )
    solution = (x[n - 1] - a) * (at_one - a) % MODULUS
    return jnp.where(n < 3, 0, solution)[None]


def draw_expression(
  bits: Iterable[jax.Array], n: Length, num_operators: int
) -> jax.Array:
  """Draws an expression of n >= 1 tokens, int32 `[W]`, arbitrary beyond n.

  By length: 1 `d`, 2 `-d`, 3 `(d)`, 4 `(-d)`, and from 5 on `(A op B)` with a
  uniform length of A. `sizes` stores the lengths of A and B at their first
  tokens.

  Args:
    bits: three arrays of random bits, uint32 `[W]`.
    n: int32 scalar.
    num_operators: number of distinct operators, the first ones of +, - and *.
  """
  cuts, operators, digits = bits
  width = cuts.shape[0]
  column = jnp.arange(width)

  def expand(i: jax.Array, state: Any) -> Any:
    tokens, sizes = state
    size = sizes[i]
    splits = size >= 5
    left = 1 + draws.below(cuts[i], jnp.maximum(size - 4, 1))
    left = jnp.where(splits, left, jnp.where(size == 4, 2, 1))
    middle = jnp.where(splits, i + 1 + left, width)
    end = jnp.where(size >= 3, i + size - 1, width)
    digit = draws.below(digits[i], MODULUS)
    first = jnp.where(size == 1, digit, jnp.where(size == 2, MINUS, OPEN))
    tokens = jnp.where((column == i) & (size > 0), first, tokens)
    operator = PLUS + draws.below(operators[i], num_operators)
    tokens = jnp.where(column == middle, operator, tokens)
    tokens = jnp.where(column == end, CLOSE, tokens)
    sizes = jnp.where((column == i + 1) & (size >= 2), left, sizes)
    sizes = jnp.where(column == middle + 1, size - 3 - left, sizes)
    return tokens, sizes

  tokens = jnp.zeros(width, jnp.int32)
  sizes = jnp.where(column == 0, n, 0)
  return jax.lax.fori_loop(0, width, expand, (tokens, sizes))[0]


def is_expression(tokens: Iterable[int]) -> bool:
  """Returns whether tokens are an expression that `evaluate` can read.

  Each operator of two operands has its own brackets.
  """
  symbols = dict(enumerate('00000+-*()'))
  text = ''.join(symbols.get(token, '?') for token in tokens)
  text, more = re.sub(r'(?<![0)])-0|0', 'A', text), 1
  while more:
    text, more = re.subn(r'\(A([-+*]A)?\)', 'A', text)
  return text == 'A'


def evaluate(tokens: jax.Array) -> jax.Array:
  """Returns the value of an expression modulo 5, int32 scalar.

  The tokens to the left of an operand of value v within its brackets map it to
  p + q v; the stack stores p and q for each open bracket. Negative tokens are
  ignored.
  """
  level = jnp.arange(tokens.shape[0] // 2 + 1, dtype=jnp.int32)

  def read(state: Any, token: jax.Array) -> tuple[Any, None]:
    p_stack, q_stack, depth, value, waiting = state
    opens, closes = token == OPEN, token == CLOSE
    is_digit = (token >= 0) & (token < MODULUS)
    is_operator = (token >= PLUS) & (token <= TIMES)
    depth = depth + opens - closes
    p, q = p_stack[depth], q_stack[depth]
    # A minus before an operand is a sign.
    is_sign = (token == MINUS) & waiting
    after_p = jnp.where(token == TIMES, 0, value)
    after_q = jnp.where(token == PLUS, 1, jnp.where(token == MINUS, -1, value))
    p = jnp.where(opens, 0, jnp.where(is_operator & ~is_sign, after_p, p))
    q = jnp.where(opens, 1, jnp.where(is_operator & ~is_sign, after_q, q))
    q = jnp.where(is_sign, -q, q)
    operand = jnp.where(is_digit, token, value)
    done = is_digit | closes
    value = jnp.where(done, (p + q * operand) % MODULUS, value)
    waiting = jnp.where(done, False, waiting | opens | is_operator)
    p_stack = jnp.where(level == depth, p, p_stack)
    q_stack = jnp.where(level == depth, q, q_stack)
    return (p_stack, q_stack, depth, value, waiting), None

  zero = jnp.zeros_like(tokens[0])
  start: Any = jnp.zeros_like(level), jnp.ones_like(level), zero, zero, True
  return jax.lax.scan(read, start, tokens)[0][3]
