"""Tables on a terminal and in CSV files."""

from collections.abc import Sequence
import csv
import io
from typing import Any

import rich.console
import rich.table

from lengen_jax.training import files


def create() -> rich.table.Table:
  """Returns an empty table."""
  return rich.table.Table(box=None)


def loss(value: Any) -> str:
  """Formats a loss; None is a dash."""
  return '–' if value is None else f'{value:.3f}'


def show(title: str, table: Any, notes: Sequence[str] = ()) -> None:
  """Prints a title, a table, and lines below it."""
  console = rich.console.Console(highlight=False)
  if not console.is_terminal:
    console.width = 200
  console.print(title, markup=False, style='italic', soft_wrap=True)
  console.print(table)
  for note in notes:
    console.print(note, markup=False, soft_wrap=True)


def csv_text(header: Sequence[str], rows: Any) -> str:
  """Returns a table as CSV; cells that are None are empty."""
  text = io.StringIO()
  csv.writer(text, lineterminator='\n').writerows([header, *rows])
  return text.getvalue()


def write_csv(path: Any, header: Sequence[str], rows: Any) -> None:
  """Writes a table as CSV; see `csv_text`."""
  files.write_text(path, csv_text(header, rows))
