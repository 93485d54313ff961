"""Tables on a terminal, or in a log as wide as they need."""

import csv
import io

import rich.console
import rich.table

from lengen_jax.training import files


def create():
  """An empty table."""
  return rich.table.Table(box=None)


def loss(value):
  """A loss, or a dash where there is none."""
  return '–' if value is None else f'{value:.3f}'


def show(title, table, notes=()):
  """Prints a title, a table, and lines below it."""
  console = rich.console.Console(highlight=False)
  if not console.is_terminal:
    console.width = 200
  console.print(title, markup=False, style='italic', soft_wrap=True)
  console.print(table)
  for note in notes:
    console.print(note, markup=False, soft_wrap=True)


def csv_text(header, rows):
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


def write_csv(path, header, rows):
  """Writes a table as CSV; see `csv_text`."""
  files.write_text(path, csv_text(header, rows))
