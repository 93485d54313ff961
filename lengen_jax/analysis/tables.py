"""Tables on a terminal, or in a log as wide as they need."""

import rich.console
import rich.table


def create():
  """An empty table."""
  return rich.table.Table(box=None)


def show(title, table, notes=()):
  """Prints a title, a table, and lines below it."""
  console = rich.console.Console(highlight=False)
  if not console.is_terminal:
    console.width = 200
  console.print(title, markup=False, style='italic', soft_wrap=True)
  console.print(table)
  for note in notes:
    console.print(note, markup=False, soft_wrap=True)
