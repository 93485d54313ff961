"""Tables on a terminal and in CSV files."""

from collections.abc import Iterable, Sequence
import csv
import io
from typing import Any

import rich.console
import rich.table
import rich.text

from lengen_jax.training import files


def show(
  title: str,
  head: Sequence[str],
  rows: Iterable[Sequence[str]],
  notes: Sequence[str] = (),
  left: int = 1,
) -> None:
  """Prints a title, a table and lines below it.

  The first `left` columns are aligned left, the others right.
  """
  console = rich.console.Console(highlight=False)
  if not console.is_terminal:
    console.width = 200
  table = rich.table.Table(box=None)
  for number, column in enumerate(head):
    table.add_column(
      rich.text.Text(column),
      justify='left' if number < left else 'right',
      overflow='fold',
    )
  for row in rows:
    table.add_row(*map(rich.text.Text, row))
  console.print(title, markup=False, style='italic', soft_wrap=True)
  console.print(table)
  for note in notes:
    console.print(note, markup=False, soft_wrap=True)


def number(value: Any, digits: int = 3) -> str:
  """Returns a number with `digits` decimals; a dash for None.

  Numbers from 10^9 on have an exponent.
  """
  if value is None:
    return '–'
  return f'{value:.3e}' if abs(value) >= 1e9 else f'{value:.{digits}f}'


def csv_text(header: Sequence[str], rows: Any) -> str:
  """Returns a table as CSV; cells that are None are empty."""
  text = io.StringIO()
  csv.writer(text, lineterminator='\n').writerows([header, *rows])
  return text.getvalue()


def write_csv(path: Any, header: Sequence[str], rows: Any) -> None:
  """Writes a table as CSV; see `csv_text`."""
  files.write_text(path, csv_text(header, rows))
