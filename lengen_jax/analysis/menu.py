"""What there is to choose from: encodings, position schemes, logit scales."""

import rich.console
import rich.markup
import rich.table

from lengen_jax import encodings
from lengen_jax import positions
from lengen_jax import specs
from lengen_jax.attention import scaling

_FIXED = ('num_heads', 'head_dim', 'width')


def show():
  """Prints three tables."""
  console = rich.console.Console(highlight=False)
  if not console.is_terminal:
    console.width = 160
  for title, registry in (
    ('encodings', encodings.ENCODINGS),
    ('position schemes', positions.SCHEMES),
    ('logit scales', scaling.SCALES),
  ):
    table = rich.table.Table(
      title=title, title_justify='left', title_style='bold', box=None
    )
    for column in ('name', 'formula', 'keys', 'facts', 'source'):
      table.add_column(column, overflow='fold')
    for name, entry in registry.items():
      keys = specs.keys(entry, _FIXED)
      table.add_row(
        name,
        rich.markup.escape(entry.formula),
        rich.markup.escape(
          ', '.join(f'{key}={field.default!r}' for key, field in keys.items())
        ),
        ', '.join(_facts(entry)),
        entry.source,
      )
    console.print(table)
    console.print()


def _facts(entry):
  """What users ask about an entry, where its class alone can tell."""
  facts = {
    'translation_invariant': {
      True: 'translation invariant',
      False: 'absolute',
    },
    'extrapolates': {False: 'not beyond its table'},
    'fractional_positions': {False: 'whole positions only'},
    'needs_content': {True: 'reads contents'},
    'fractional': {True: 'fractional'},
    'random': {True: 'random'},
    'interpolates': {True: 'interpolates'},
    'length_dependent': {True: 'goes by the length'},
  }
  for name, texts in facts.items():
    value = getattr(entry, name, None)
    if isinstance(value, bool) and value in texts:
      yield texts[value]
