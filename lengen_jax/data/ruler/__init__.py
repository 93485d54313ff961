"""The tasks of RULER that need no data (Hsieh et al., 2024), as prompts.

Frames and rules are those of https://github.com/NVIDIA/RULER
(https://arxiv.org/abs/2404.06654). The two tasks of question answering are left
out. Differences:

- Prose is a text of the caller, or the sentences of noise, instead of essays.
- Sentences end at a full stop, question mark or exclamation mark and a space.
- Words come from `word_list`. Keys of one prompt differ.
- Each prompt has its own order of needles and words, and its own size.
- A prompt that cannot fit raises an error.
"""

from collections.abc import Iterable

from lengen_jax import errors
from lengen_jax.data.ruler.base import (
  least_length,
  Prompt,
  sample,
  Setting,
  Task,
)
from lengen_jax.data.ruler.niah import Niah
from lengen_jax.data.ruler.variable_tracking import VariableTracking
from lengen_jax.data.ruler.words import CommonWords, FrequentWords

__all__ = [
  'Prompt',
  'Setting',
  'TASKS',
  'Task',
  'least_length',
  'parse',
  'sample',
]

ALL = 'ruler'
TASKS: dict[str, Task] = {
  'niah_single_1': Niah('noise'),
  'niah_single_2': Niah('prose'),
  'niah_single_3': Niah('prose', value='uuid'),
  'niah_multikey_1': Niah('prose', keys=4),
  'niah_multikey_2': Niah('needles'),
  'niah_multikey_3': Niah('needles', key='uuid', value='uuid'),
  'niah_multivalue': Niah('prose', values=4),
  'niah_multiquery': Niah('prose', keys=4, queries=4),
  'vt': VariableTracking(),
  'cwe': CommonWords(),
  'fwe': FrequentWords(),
}


def parse(names: Iterable[str]) -> list[str]:
  """Returns the tasks of a list of names, in the order of `TASKS`.

  The name 'ruler' stands for all of them.

  Raises:
    errors.SpecError: a name is unknown.
  """
  chosen = set()
  for name in names:
    if name != ALL and name not in TASKS:
      raise errors.SpecError(errors.one_of('task', name, [ALL, *TASKS]))
    chosen |= {*TASKS} if name == ALL else {name}
  return [name for name in TASKS if name in chosen]
