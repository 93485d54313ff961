"""Variable tracking: names that are assigned one value, directly or not."""

from collections.abc import Callable, Sequence
import string

from lengen_jax.data.ruler import base, haystack

_INPUT = (
  'Memorize and track the chain(s) of variable assignment hidden in the '
  'following text.\n\n{context}\nQuestion: Find all variables that are '
  'assigned the value {value} in the text above.'
)
_ANSWER_PREFIX = (
  ' Answer: According to the chain(s) of variable assignment in the text '
  'above, {count} variables are assigned the value {value}, they are: '
)
_HOPS = 4
# Maximum tokens of the example before the question.
_EXAMPLE_TOKENS = 500


class VariableTracking(base.Task):
  """Asks for all names of a chain. A context of size n has n lines of noise.

  The prompt begins with an example, whose names have three letters.
  """

  about = 'the five names that are assigned a value; in noise'
  max_new = 30
  least = _HOPS + 1

  def writer(
    self, draws: base.Draws, setting: base.Setting
  ) -> Callable[[int], base.Prompt]:
    example = _writer(draws, 'example', 3)
    lines = base.largest(
      lambda size: setting.count(solved(example(size))),
      self.least,
      _EXAMPLE_TOKENS,
    )
    before = solved(example(lines or self.least))
    write = _writer(draws, 'question', 5)

    def with_example(size: int) -> base.Prompt:
      prompt = write(size)
      return prompt._replace(input=f'{before}\n\n{prompt.input}')

    return with_example


def frame(context: str, names: Sequence[str], value: str) -> base.Prompt:
  """Returns the prompt that asks for the names with a value."""
  return base.Prompt(
    _INPUT.format(context=context, value=value),
    _ANSWER_PREFIX.format(count=len(names), value=value),
    tuple(names),
  )


def solved(prompt: base.Prompt) -> str:
  """Returns a prompt with its answer."""
  return f'{prompt.text} {" ".join(prompt.outputs)}'


def chain(names: Sequence[str], value: str) -> list[str]:
  """Returns the lines that assign a value, each name after the one before."""
  lines = [f'VAR {names[0]} = {value}']
  for before, name in zip(names, names[1:], strict=False):
    # The space at the end is that of RULER.
    lines.append(f'VAR {name} = VAR {before} ')
  return lines


def _writer(
  draws: base.Draws, purpose: str, letters: int
) -> Callable[[int], base.Prompt]:
  rng = draws(purpose)
  names = base.distinct(
    lambda: ''.join(rng.choices(string.ascii_uppercase, k=letters)), _HOPS + 1
  )
  value = str(rng.randrange(10000, 99999))

  def write(size: int) -> base.Prompt:
    places = draws(f'{purpose} lines').sample(range(size), len(names))
    lines = haystack.insert(
      [haystack.NOISE] * size, chain(names, value), sorted(places)
    )
    return frame('\n'.join(lines), names, value)

  return write
