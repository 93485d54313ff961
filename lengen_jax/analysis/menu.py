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
    for column in ('name', 'formula', 'keys', 'source'):
      table.add_column(column, overflow='fold')
    for name, entry in registry.items():
      keys = specs.keys(entry, _FIXED)
      table.add_row(
        name,
        rich.markup.escape(entry.formula),
        rich.markup.escape(
          ', '.join(f'{key}={field.default!r}' for key, field in keys.items())
        ),
        entry.source,
      )
    console.print(table)
    console.print()
