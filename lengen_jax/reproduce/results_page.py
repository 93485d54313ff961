"""Writes docs/results.md: measured results next to the papers' figures.

`make results` copies every reproduction.json below runs/reproduce into
docs/results and generates the page from the files there.
"""

from collections.abc import Iterator, Sequence
import pathlib
import shutil
import sys
from typing import Any

from lengen_jax import reproduce
from lengen_jax.analysis import reproduction
from lengen_jax.reproduce import claims
from lengen_jax.reproduce.experiment import Claim, Experiment, Results
from lengen_jax.reproduce.parts import ConfiguredPart
from lengen_jax.training import files

_HEAD = """\
# Results

Results of `lengen reproduce`, next to the figures of the papers. `make results`
generates this page from [results/](results/), which has one file for each
experiment and scale, with every score of every seed.

Scales: `paper` is the paper's setting; `small` uses a smaller model and fewer
steps; `cpu` takes minutes on two cores, and a claim about quality may or may
not show at that size. Where a paper's data is not available, `cpu` uses
substitute data, named below the table. Scores on different data cannot be
compared, but rankings can.

A claim is *confirmed* at a scale if all of its comparisons hold. A comparison
is a one-sided paired t test over seeds at the 5 % level. Its variance is the
larger of the comparison's own and the one pooled over the claim. Its degrees of
freedom are the further seeds of each distinct pair of rows in the claim, and do
not grow with the number of lengths; the test does not model that pairs may
share a model. A claim is *refuted* if the opposite of a comparison is
significant after Holm's correction; otherwise it is *not seen*. Comparisons
that a scale omits are not counted. The effect is the range of margins over the
comparisons, in the unit of the table; negative margins contradict the claim. A
claim refuted at `cpu` is refuted for models trained for about a minute.

± is half the range over seeds. Where all seeds agree exactly, the variance is
unknown and the comparison is unclear.
"""


def page(folder: pathlib.Path) -> str:
  """Returns the page in Markdown, given the folder of result files."""
  order = list(reproduce.EXPERIMENTS)
  results = [
    found
    for path in sorted(folder.glob('*.json'))
    if (found := files.read_json(path))['name'] in order
  ]
  results.sort(key=lambda found: (order.index(found['name']), found['scale']))
  lines = [_HEAD, '## Claims', '']
  lines += _table(
    ['claim', 'says', 'experiment', 'scale', 'seeds', 'verdict', 'effect'],
    [
      [claim.key, claim.text, f'`{experiment.name}`', *found]
      for experiment, claim in _claims()
      for found in _verdicts(results, experiment, claim)
    ],
  )
  for found in results:
    lines += ['', *_section(found)]
  return '\n'.join(lines) + '\n'


def _claims() -> list[tuple[Experiment, Claim]]:
  """Returns all claims, sorted by paper and number."""
  return sorted(
    (
      (experiment, claim)
      for experiment in reproduce.EXPERIMENTS.values()
      for claim in experiment.claims
    ),
    key=lambda pair: (
      'FWRS'.index(pair[1].key[0]),
      int(pair[1].key[1:].partition(',')[0]),
    ),
  )


def _verdicts(
  results: Sequence[Results], experiment: Experiment, claim: Claim
) -> list[tuple[Any, ...]]:
  """Returns (scale, seeds, verdict, effect) for each scale that was run."""
  found: list[tuple[Any, ...]] = []
  for one in results:
    if one['name'] == experiment.name:
      # By the claim's current definition.
      judged = claims.judge(claim, one)
      found.append(
        (
          f'[{one["scale"]}](#{_anchor(one)})',
          len(one['seeds']),
          reproduction.verdict(judged) + _scope(judged, one),
          _effect(judged),
        )
      )
  return found or [('', '', 'not measured yet', '')]


def _scope(judged: Results, found: Results) -> str:
  """Returns which parts of a mean were measured, if not all of them."""
  names = {
    at[0]
    for one in judged['comparisons']
    for at in (one['low'], one['high'])
    if isinstance(at, list)
  }
  for part in found['parts']:
    if part['name'] in names and part['kind'] == 'average':
      if len(part['of']) < part['of_all']:
        some = ', '.join(part['of'])
        return f', of {len(part["of"])} of {part["of_all"]}: {some}'
  return ''


def _effect(judged: Results) -> str:
  """Returns the smallest and the largest effect of a claim's comparisons."""
  effects = [
    one['effect'] for one in judged['comparisons'] if one['effect'] is not None
  ]
  if not effects:
    return ''
  low, high = (f'{value:+.3g}' for value in (min(effects), max(effects)))
  return low if low == high else f'{low} .. {high}'


def _anchor(found: Results) -> str:
  """Returns the anchor that code hosts derive from a section's heading."""
  return f'{found["name"]}-scale-{found["scale"]}'.replace('/', '').lower()


def _section(found: Results) -> list[str]:
  seeds = ', '.join(map(str, found['seeds']))
  lines = [
    f'## {found["name"]}, scale {found["scale"]}',
    '',
    f'{found["title"][0].upper()}{found["title"][1:]}. `{found["command"]}`, '
    f'seeds {seeds}, commit {str(found["commit"])[:12]}; every figure of every '
    f'seed: [{_file(found)}](results/{_file(found)}).',
  ]
  for part in found['parts']:
    if part['rows']:
      lines += ['', f'**{part["name"]}**: {reproduction.describe(part)}', '']
      lines += _table(reproduction.head(part), reproduction.lines(part))
      lines += ['', *(f'- {note}' for note in reproduction.notes(part))]
  trained = {
    commit
    for part in found['parts']
    if 'commits' in part
    for commit in part['commits'] or ['unrecorded']
  } - {str(found['commit'])}
  if trained:
    some = ', '.join(sorted(commit[:12] for commit in trained))
    lines += ['', f'Commits at which models were tested, beside this: {some}.']
  if left_out := _left_out(found):
    lines += ['', *(f'- {line}' for line in left_out)]
  for group in (found['summary'], found['ours']):
    if group:
      lines += ['', *(f'- {line}' for line in group)]
  return lines


def _left_out(found: Results) -> list[str]:
  """Returns a line for each part and row that the scale omits."""
  experiment = reproduce.EXPERIMENTS[found['name']]
  measured = {part['name']: part['rows'] for part in found['parts']}
  parts, lines = [], []
  for part in experiment.parts:
    if part.name not in measured:
      parts.append(part.name)
      continue
    names = [row['name'] for row in measured[part.name]]
    rows = []
    if isinstance(part, ConfiguredPart):
      rows = [row.name for row in part.rows if row.name not in names]
    if rows:
      lines.append(f'left out of {part.name} at this scale: {"; ".join(rows)}')
  if parts:
    # Names contain commas.
    lines.append(f'left out at this scale: {"; ".join(parts)}')
  if len(found['seeds']) < len(experiment.seeds):
    lines.append(
      f'{len(found["seeds"])} seeds, at full size {len(experiment.seeds)}'
    )
  return lines


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
  def line(cells: Sequence[Any]) -> str:
    return '| ' + ' | '.join(str(c).replace('|', '\\|') for c in cells) + ' |'

  yield from (line(head), '|' + '---|' * len(head), *map(line, rows))


def _file(found: Results) -> str:
  """Returns the name of a result file."""
  return f'{found["name"].replace("/", "_")}_{found["scale"]}.json'


def main(runs: str, docs: str) -> None:
  """Copies results from a folder of runs and writes the page.

  Args:
    runs: folder of all reproductions, 'runs/reproduce'.
    docs: folder of the documentation.
  """
  folder = pathlib.Path(docs) / 'results'
  folder.mkdir(parents=True, exist_ok=True)
  for path in sorted(pathlib.Path(runs).rglob(reproduction.RESULTS)):
    found = files.read_json(path)
    # Folders of runs with overrides have a suffix.
    if path.parent.name == found['scale'] != 'tiny':
      shutil.copyfile(path, folder / _file(found))
  for path in folder.glob('*.json'):
    found = files.read_json(path)
    # By the claims' current definitions, as on the page.
    found['claims'] = [
      claims.judge(claim, found)
      for claim in reproduce.EXPERIMENTS[found['name']].claims
    ]
    files.write_json(path, found)
  path = pathlib.Path(docs) / 'results.md'
  path.write_text(page(folder))
  print(f'wrote {path}')


if __name__ == '__main__':
  main(*sys.argv[1:])
