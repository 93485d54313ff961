"""Lists of the registered encodings, schemes, scales, tasks and data."""

from typing import Any

import rich.console
import rich.padding
import rich.table
import rich.text

from lengen_jax import encodings, errors, positions, specs, tasks
from lengen_jax.attention import scaling
from lengen_jax.data import menu, prompts, ruler, sources
from lengen_jax.positions import contextual

_TASKS = {
  f'{family}/{name}': task
  for family, entries in tasks.TASKS.items()
  for name, task in entries.items()
}
_DATA = {**sources.SOURCES, **menu.PROMPTS, **menu.PICTURES}
# Title of a list, its registry, and the attributes of entries that it shows.
_LISTS: Any = (
  (
    'encodings',
    encodings.ENCODINGS,
    'parameters translation_invariant beyond at_decoding fractional_positions '
    'keys source',
  ),
  (
    'position schemes',
    positions.SCHEMES,
    'fractional test_time at_decoding keys source',
  ),
  (
    'contextual position schemes',
    contextual.CONTEXTUAL,
    'parameters at_decoding keys source',
  ),
  ('logit scales', scaling.SCALES, 'parameters at_decoding keys source'),
  ('tasks', _TASKS, 'tokens chance keys source'),
  ('tasks of lengen eval --tasks', ruler.TASKS, ''),
  ('data', _DATA, 'dataset keys how'),
)
# Labels of attributes that differ from their names.
_LABELS = {
  'translation_invariant': 'translation invariant',
  'beyond': 'beyond the training length',
  'at_decoding': 'decoding needs',
  'fractional_positions': 'positions',
  'fractional': 'values',
  'test_time': 'at test time',
  'how': 'to get it',
}
# Texts of boolean attributes: (False, True).
_WORDS = {
  'translation_invariant': ('no', 'yes'),
  'fractional_positions': ('integers only', ''),
  'fractional': ('integers', 'fractional'),
}


def show() -> None:
  """Prints the lists."""
  console = rich.console.Console(highlight=False)
  if not console.is_terminal:
    console.width = 100
  for title, registry, attributes in _LISTS:
    table = rich.table.Table.grid(padding=(0, 2))
    table.add_column(style='bold', no_wrap=True)
    table.add_column(overflow='fold')
    for name, entry in registry.items():
      about = getattr(entry, 'about', '') or getattr(entry, 'formula', '')
      if isinstance(entry, prompts.PromptTask):
        about = f'answers of up to {entry.target_length} tokens'
      table.add_row(name, rich.text.Text(about))
      for attribute in attributes.split():
        if fact := _fact(entry, attribute):
          line = f'{_LABELS.get(attribute, attribute)}: {fact}'
          table.add_row('', rich.text.Text(line, style='dim'))
    console.print(rich.text.Text(title, style='bold'))
    console.print(rich.padding.Padding(table, (0, 0, 1, 2)))


def _fact(entry: Any, name: str) -> str:
  """Returns the text of an attribute of an entry; '' if there is none."""
  if name == 'keys' and isinstance(entry, type):
    fields = specs.keys(entry, ('num_heads', 'head_dim', 'width')).items()
    return ', '.join(f'{key}={field.default!r}' for key, field in fields)
  if name == 'tokens':
    task = entry()
    return f'{task.vocab_in} in, {task.vocab_out} out'
  if name == 'chance':
    return f'{entry().chance:.0%}'
  value: Any = getattr(entry, name, '')
  if isinstance(value, property):
    try:
      value = getattr(entry(num_heads=1, head_dim=8), name)
    except errors.SpecError:  # A key has no default.
      value = False
  return _WORDS[name][bool(value)] if name in _WORDS else value
