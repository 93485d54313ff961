"""Reports of the tasks of RULER: table and plot."""

from collections.abc import Mapping
import pathlib
from typing import Any

from lengen_jax.analysis import plots, tables
from lengen_jax.training import files
from lengen_jax.types import PathLike

RESULTS, PREDICTIONS = 'ruler.json', 'ruler_predictions.jsonl'
_FIELDS = ('lengths', 'tasks', 'scores', 'average', 'refused', 'threshold')


def read(workdir: PathLike) -> dict[str, Any] | None:
  """Returns the contents of ruler.json; None if the folder has other results.

  Raises:
    errors.WorkdirError: ruler.json cannot be read.
  """
  path = files.locate(workdir) / RESULTS
  if (path.parent / 'results.json').exists() or not path.exists():
    return None
  return files.read_json(path, _FIELDS)


def print_table(results: Mapping[str, Any]) -> None:
  """Prints the scores, tasks by length, given the contents of ruler.json."""
  lengths = [str(length) for length in results['lengths']]
  rows = [
    (name, *(_score(results, length, name) for length in lengths))
    for name in results['tasks']
  ]
  averages = (results['average'].get(length) for length in lengths)
  left = _unmeasured(results)
  rows.append(('average', *(tables.number(one, 2) for one in averages)))
  tables.show(
    f'RULER: percent, {results["encoding"]}, {results["samples"]} prompts per '
    'task and length',
    ('', *lengths),
    rows,
    [
      effective(results),
      *(f'at {length}: {why}' for length, why in results['refused'].items()),
      *(f'at {length}: not evaluated yet' for length in left),
    ],
  )


def effective(results: Mapping[str, Any]) -> str:
  """Returns a sentence with the effective length."""
  threshold, found = results['threshold'], results['effective_length']
  why = f'average of at least {threshold}'
  what = 'effective length' + ' so far' * bool(_unmeasured(results))
  if found is None:
    return f'{what}: none; no length has an {why}'
  return f'{what}: {found}, the longest with an {why}'


def _unmeasured(results: Mapping[str, Any]) -> list[int]:
  """Returns the lengths that an interrupted evaluation did not reach."""
  done = {*results['average'], *results['refused']}
  return [length for length in results['lengths'] if str(length) not in done]


def write(results: Mapping[str, Any], folder: PathLike) -> list[pathlib.Path]:
  """Draws the plot into a folder that has ruler.json.

  Returns the paths of all files of the results.
  """
  path = files.locate(folder)
  figure, axes = plots.panels(1)
  _draw(axes, results)
  plots.finish(figure, path / 'ruler.png')
  return [path / name for name in (RESULTS, PREDICTIONS, 'ruler.png')]


def _draw(axes: Any, results: Mapping[str, Any]) -> None:
  """Draws scores against length, one curve per task."""
  lengths = results['lengths']
  curves = {
    name: [results['scores'].get(str(n), {}).get(name) for n in lengths]
    for name in results['tasks']
  }
  for number, (name, curve) in enumerate(curves.items()):
    axes.plot(
      lengths, plots.floats(curve), label=name, **plots.style(number), alpha=0.6
    )
  average = plots.floats([results['average'].get(str(n)) for n in lengths])
  axes.plot(lengths, average, color='black', linewidth=3, label='average')
  axes.axhline(results['threshold'], color='0.6', linewidth=1, zorder=1)
  plots.length_axis(axes, lengths)
  axes.set_ylim(0, 102)
  axes.set(
    xlabel='tokens of prompt and answer (horizontal line: threshold)',
    ylabel='score, percent',
  )


def _score(results: Mapping[str, Any], length: str, name: str) -> str:
  return tables.number(results['scores'].get(length, {}).get(name), 2)
