"""Tables on a terminal, or in a log as wide as they need."""

from collections.abc import Sequence
import csv
import io
from typing import Any

import rich.console
import rich.table

from lengen_jax.training import files


def create() -> rich.table.Table:
  """An empty table."""
  return rich.table.Table(box=None)


def loss(value: Any) -> str:
  """A loss, or a dash where there is none."""
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
  """A table as CSV, the same text for the same table.

  Args:
    header: names of the columns.
    rows: lists of values; None is an empty cell.
  """
  text = io.StringIO()
  lines = csv.writer(text, lineterminator='\n')
  lines.writerow(header)
  lines.writerows(rows)
  return text.getvalue()


def write_csv(path: Any, header: Sequence[str], rows: Any) -> None:
  """Writes a table as CSV; see `csv_text`."""
  files.write_text(path, csv_text(header, rows))
