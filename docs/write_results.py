"""Writes docs/results.md, results next to the papers' figures, and study.md.

`python -m docs.write_results RUNS DOCS`, or `make results`, copies every
reproduction.json below RUNS into DOCS/results and generates both pages from the
files there. docs/study.md has the experiments of `reproduce.study`.
"""

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
import pathlib
import sys
import textwrap
from typing import Any

import numpy as np

from docs import answers as answers_lib
from lengen_jax import reproduce
from lengen_jax.analysis import reproduction
from lengen_jax.reproduce import claims
from lengen_jax.reproduce.experiment import (
  Claim,
  EARLY,
  Experiment,
  parse_comparisons,
  Results,
)
from lengen_jax.reproduce.parts import ConfiguredPart, load_config
from lengen_jax.training import files

_HEAD = """\
# Results

Results of `lengen reproduce`, next to the figures of the papers. `make results`
generates this page from [results/](results/), which has one file for each
experiment, scale and replication, with every score of every seed. `+dirty`
marks a commit with uncommitted changes.

## Scales

`paper` is the paper's setting; `small` uses a smaller model and fewer steps, so
that an experiment which trains one size on one corpus takes at most 40 minutes
on a GPU with 80 GB (estimated from operations, not measured); `cpu` takes
minutes on two cores, and a claim about quality may or may not show at that
size; `hours` is `cpu` with twelve times the steps and three seeds, and models
are also tested at a sixteenth, an eighth, a quarter and half of their steps. Of
several learning rates, the best after all steps counts at every step. Most
experiments at `hours` take one to five hours on two cores; `su/mlm`,
`warping/tableA`, `randomized/table1`, `study/text` and `study/interpolation`
take six to nine, and `study/grid` about a day. At `hours` and larger scales, an
experiment estimates its duration before it starts, from the time of 20 steps;
sweeps of generated tasks do not. Where a paper's data is not available, `hours`
and `cpu` use substitute data, named below the table. Scores on different data
cannot be compared, but rankings can.

Seeds of a sweep of generated tasks are trained in one program. Seeds of text
models are trained in turn. Two commands with one seed each, at the same time,
share their models with a later command with both seeds. On two cores, they take
0.80 of the time of training in turn, and one program of both seeds would take
0.92 (`python -m benchmarks.seeds_cpu`).

## Verdicts

A claim is *confirmed* at a scale if all of its comparisons hold. A comparison
is a one-sided t test over seeds at the 5 % level. Scores of the same model, or
of models trained from the same one, are compared seed by seed. Others are
compared by Welch's test: each of the two models has a variance of its own. All
models are tested on the same few windows of text. Where the scores of single
windows are known, as the notes below a table say, the variance of the
difference over windows, which is what a bootstrap over windows estimates, is
added to that over seeds; elsewhere a comparison is about the tested windows
only. In simulations of models that do not differ, a comparison holds in at most
7 % of the cases, for each of these tests. A claim is *refuted* if the opposite
of a comparison is significant after Holm's correction; otherwise it is *not
seen*. In simulations with 25 comparisons, a claim about models that do not
differ is refuted in at most 8 % of the cases with three seeds and in 16 % with
two; if one of the two models of every comparison has nearly all of their
variance, in at most 14 % and 39 %. Verdicts at earlier steps are not corrected
for the number of steps. Comparisons that a scale omits are not counted. Where
rows are not trained yet, or a model has diverged, a claim is refuted or *not
measured*. A claim is *not comparable* where the substitute data has only the
format of the paper's data, such as template sentences, or where it depends on
the paper's data, model or hardware and the scale is not `paper`; and *not
measured* where fewer than half of the parts of a mean were measured. F9, F10,
F11, R3, Z5, F5 (range) and S7 (bucket sort) can thus be decided at scale
`paper` only. A claim *depends on training* where it is confirmed at one of the
tested steps and refuted at another. Other changes during training are given in
brackets after its verdict. The effect is the smallest and the largest
difference over the comparisons, in the unit of the table, each with its 90 %
interval; negative differences contradict the claim. A comparison holds if its
interval is above the claim's margin, which is mostly 0. Comparisons that fail
are listed below the tables. A claim refuted at `cpu` is refuted for models
trained for about a minute.

± is half the range over seeds. Intervals of percentages include the variance
over the test examples, which all seeds share, or that due to their number,
where they are recorded. If single answers are not recorded, and all seeds have
equal scores or all paired differences are equal, the variance is unknown and
the comparison is *unclear*.

The paper on randomized encodings concludes that language models can seem to
generalize to longer inputs when they do not. This is not a claim of its own
here: it combines R1 and R3.

## Replications

A *replication* repeats rows of an experiment with seeds that no earlier result
has, and judges claims on these seeds alone. A claim that also compares rows
which it leaves out can be refuted, but not confirmed. In the count of claims
with replications, a claim that its replication decides has that verdict; others
have the verdict of the first seeds. A claim thus has two chances to be decided;
the rates of errors above are those of one. The rows and the number of the seeds
of a replication are chosen from the earlier results, before it is trained:

- `fire/table4`, seeds 3 to 6, rows `fire`, `fire, no threshold` and `kerple`,
  for F3, threshold: four seeds decide it with a probability of 99 %, according
  to `lengen reproduce`, if the recorded differences are true. Six of its 26
  comparisons are between these rows; of the baselines, only KERPLE is there.
  The row `fire` is not trained yet.
- `su/mlm`, seeds 3 to 9, rows `random` and `random, log n` with both encodings,
  and then `standard` and `standard, log n` with RoPE, for S1 and S8. At eight
  times the training length, log n made these rows worse in the results of three
  seeds. If those differences are true, seven seeds refute S1, sinusoidal, with
  a probability of 99 %, S1, rope, with 74 % and S8 with 93 %. (S1, rope, had 81
  % in the first version of this plan, half an hour earlier.) The rows
  `standard` with sinusoidal positions are left out. The results of the rows
  `random` had been seen before the rows `standard` were trained. With these
  seeds, log n makes no row `random` worse after all steps, and S1, sinusoidal,
  stays open: the differences of three seeds, where these leave a claim open,
  may be due to chance. Each seed masks other tokens of the same windows. At
  eight times the length, log n makes the row `standard` with RoPE worse, which
  refutes S8; with sinusoidal positions, log n helps at two, four and eight
  times the length. S1, rope, is refuted by another comparison than expected: at
  four times the length, random positions are worse.
- `warping/tableA`, seeds 3 to 8, rows `rope`, `randomized, 5 M` and
  `randomized, 10 M` of copy, reverse and sort, `alibi` of reverse and sort, and
  `interpolated` of sort, with 1000 test examples of each length in place of
  100, for W3, ALiBi, W5, seen lengths, and W5, against R and S. If the
  differences of three seeds are true, six seeds decide these with probabilities
  of 99 %, 85 % and 88 %, and with 100 examples, 67 %, 15 % and 81 %. W3, ALiBi,
  also compares rows that are left out, so that it can be refuted only. W5 is
  judged, too, but six seeds decide it with 6 %. These seeds refute W3, ALiBi,
  confirm W5, seen lengths, and W5, against R and S, and leave W5 open.

## What was known before

S7, bucket sort, and Z5 name an accuracy that needs the full size: they were
*refuted* at `cpu`, and are *not comparable* since.

The test seed by seed was introduced after the results of `randomized/table2`
and `study/protocol` at `hours` had been seen. It changed two verdicts. R2,
which compares finetuned models with the model that they start from, was *not
seen* and is *confirmed*. L16, which compares two constructions of the curve of
a model, was *not seen* and is *refuted*. L1 is confirmed from an earlier step.
Welch's test takes such scores for independent. L16 is about the tested text
only: scores of its windows are not recorded.

The variance over test examples was introduced after five of the 45 runs of
`warping/tableA` at `hours` had been seen. Without it, one claim of this table
that is *not seen* would be *confirmed*: W5, seen lengths of sequences. Where
answers to single examples are not recorded, models are treated as if they were
tested on different examples. They are recorded for ALiBi on reverse and sort,
for RoPE and random positions on sort, which were trained twice, with equal
scores, and for `interpolated` and the task sum. ALiBi was trained after the
results of the other rows of copy, reverse and sort had been seen;
`interpolated` and the task sum were trained after all of these.

Up to the training length, interpolated positions are the standard ones, so that
`interpolated` trains the model of RoPE. On sum, the scores of both on the
lengths of training are equal. On the other tasks they are not: RoPE was trained
there at another commit and on another machine.

The models with sinusoidal positions of `su/mlm` at `hours` were trained after
the results of those with RoPE had been seen. Of `randomized/table1` at `hours`,
the results of RoPE, sin/cos, SHAPE, ALiBi and KERPLE had been seen before the
other rows were trained.

The models of `warping/table1` at `hours` were trained twice. The first scores
of RoPE, `interpolated` and random positions were known when the other rows of
`warping/table3` were trained; they differ, and the verdicts do not.

Of `fire/table3` at `hours`, one row was trained at the commit named there. The
rows `fire` and `fire, no threshold` are those recorded for `fire/table4`.

Commits 3296726ab8a8, 4146de37757c and 76795e100923 are not in this history,
which has their changes in one later commit. The settings of `fire/table4`,
`fire/table6` and `fire/table7` are those of commit 5200989, an earlier one.
"""

_STUDY = """\
# How extrapolation changes during training

This study measures how the loss of models trained on short sequences changes on
long ones while they are trained, and recommends encodings. Models of
`configs/stdlib.py:cpu`, with three layers of width 128 and four heads, are
trained with AdamW at 128 bytes of the Python standard library's source for 4200
steps of 16 rows and tested at 128 to 2048 bytes, the same bytes at every
length, after 262, 525, 1050, 2100 and all steps. Those of `study/protocol` are
models of `configs/fire_c4.py:base,cpu`, trained for 3000 steps and tested at 32
to 512 bytes. FIRE's threshold starts at 512 here, unless a row says otherwise;
in the experiments `fire/...` at scale `hours`, it starts at 32, a quarter of
the training length. Encodings, position schemes and the logit scale `log n` are
those of the [menu](../README.md#the-menu), constructions of curves those of
[curves.md](curves.md). `make study` runs the experiments, which takes about two
and a half days on two cores, one of them for `study/grid`, and continues where
it was interrupted; `make results` generates this page from
[results/](results/).
"""

_STUDY_SETUP = """\
## Setup, and what was known before

The hypotheses are our own. They and the settings were committed before the runs
that test them, with three exceptions: L4 was restricted to the threshold of its
rows after its result; the draw of random positions, one sample per batch, was
set after L5 and L6 were written; and L15 to L17 were committed together with
the results of `study/protocol` and of `fire/table4`, which has the same models.
When L1 to L9 were written, the losses of one seed after 2000 steps were known;
for L10 to L17, also the results of `study/biases`, `study/random_positions`,
`fire/section3`, `fire/table5`, `fire/threshold` and `warping/table1`; for the
others, all results at scale `hours` before them. The test seed by seed (see
[results.md](results.md)) was introduced after the results of `study/protocol`
had been seen; it changed L16 from *not seen* to *refuted*.

Some rows of `study/range` and `study/tasks` have the settings of rows of
`warping/tableA`, whose results were known before these experiments were
trained: RoPE with standard positions and with the smallest range on copy and
reverse, and ALiBi on copy. They are trained again, tested on 1000 instead of
100 examples of each length; the scores of models of the same seed differ
between commits and machines. By the means of `warping/tableA`, L14 does not
hold for that range on reverse, and L22, copy, holds for ALiBi. The threshold of
FIRE on copy and the first comparisons of L21, without which two models that
fail would confirm it, were changed after that, and before any other row was
trained.

In `study/interpolation`, the rows `kerple_log`, `alibi`, `fire` and `fire, L
from 1/4` are those recorded for `study/biases`, and `fire, L from 1/8`, `fire,
L from 1`, `fire, linear`, `fire, one hidden layer`, `t5` and `fixed length`
were trained last, at commit c5d1800a4a09, the last four after the results of
the two before them had been seen; in `study/rate`, those of the part `code` are
those recorded for `study/interpolation`, trained at earlier commits. Seed 0 of
the raw distance, trained again at the commit of `faster`, has losses of 1.105
and 0.997 at 1 and 16 times the length
([results/again](results/again/raw_distance_seed0.json)), where 1.119 and 1.027
are recorded; intervals do not include such changes. The higher learning rate
was not tried with the other biases. In `study/range`, the rows `rope` and
`range 1x` on text are those recorded for `study/random_positions`, and `rope`
on copy is that of `study/tasks`. In `study/regularization`, the rows of the
part `code` are those recorded for `study/random_positions`. The results of
`study/text` with KERPLE, ALiBi and FIRE had been seen before the other rows
were trained.

In `study/grid`, sixteen encodings are trained with standard positions, and
eleven of them also with random ones. NoPE, T5, FIRE, RoPE, PoPE, and sinusoidal
and learned vectors are trained at commit 9eef26e8b4ab; of these, the rows that
combine log n with interpolated or with random positions were added last, after
the losses of the other rows had been seen for one seed. The others are trained
after the results of these had been seen: ALiBi, KERPLE, the raw distance, and
T5 with random positions at commit 3ee05f2f6cf8, after L31 to L33 were
committed; then FIRE with one hidden layer, power KERPLE, Sandwich, Shaw's
encoding, half RoPE and Transformer-XL's encoding at the commits d434d8cd7b78
and 584f3be94cad. No test loss of these six had been seen when L34 to L37 were
committed, except that of FIRE with one hidden layer in `study/interpolation`.
RoPE, FIRE, the raw distance, power KERPLE and Sandwich are trained with random
positions last, at commit 584f3be94cad, after L38 and L39 were committed. Other
experiments have `alibi`, `fire`, `kerple_log`, `nope`, `raw distance`, `rope`
and `t5` of earlier commits, and `study/random_positions` has FIRE and RoPE with
random positions. NoPE has no positions to interpolate, and Shaw's encoding and
learned vectors require integers. Other rows that are left out, with random
positions, are not trained yet.

At four times the training length, the test windows of `own` are those of
`first`, and those of `whole` are those of `recut`: L17 compares four different
constructions.

On text, runs with random positions draw one sample of the positions 0 to 2047
for each batch; `range 3x` draws from three times as many. The tasks copy and
reverse are those of `configs/warping_algorithmic.py:cpu`, trained on up to 10
tokens and tested on up to 50, at twelve times the steps. Their random positions
are drawn for each row, from as many as the longest tested row has tokens. The
passkey is RULER's single needle in noise,
`configs/recall.py:niah_single_1,cpu`, also at twelve times the steps: a number
of three digits in 16 to 32 tokens, tested at 32 (`seen`) and at 64, 128 and 256
(`beyond`). Answers are scored in parallel, given the true tokens before each.
The English text is that of the docstrings in the same files, 1.6 MB. Training
reads the docstrings 5.4 times and the source code once. Verdicts, tests and
intervals are those of [results.md](results.md); the steps are those at which
the verdict changed. L15 to L17 are measured after all steps only. Models are
trained for 4200 steps, those of `study/protocol` for 3000, those of copy and
reverse for 12,000, and those of the passkey for 9600. Pictures show the
difference between eight times the training length and this length. Commits are
named with each experiment.
"""
_STUDY_NAME = 'study/'
# Claims for which scale `hours` was designed.
_DECIDED = (
  *('F1', 'F2', 'F3, threshold', 'F3, GLUE', 'F3, transform', 'F4, layers'),
  *('F4, activation', 'F4, output', 'F5, loss', 'F6', 'W3', 'W3, ALiBi'),
  *('W5, against R and S', 'W6', 'W8', 'R1, relative', 'R1, randomized', 'R2'),
  *('S1, sinusoidal', 'S1, rope', 'S2, sinusoidal', 'S2, rope', 'S8'),
)
# Nats per byte; see `_flattened`.
_FLAT = 0.05
_CHOICE = """\
## What to choose

These sentences and the answers below hold for models of this size on these
texts and tasks at scale `hours`. They were written after the results; the
intervals are not corrected for the choice of comparisons. Differences are in
nats per byte, or in points of sequences that are all right, with 90 %
intervals. Intervals include the variance over test windows or test examples
where the notes below a table say so.
"""


def page(folder: pathlib.Path, *, study: bool = False) -> str:
  """Returns a page in Markdown, given the folder of result files.

  It has the experiments of the papers, or those of the study.
  """
  experiments = {
    name: one
    for name, one in reproduce.EXPERIMENTS.items()
    if name.startswith(_STUDY_NAME) == study
  }
  order = list(experiments)
  results = [
    found
    for path in sorted(folder.glob('*.json'))
    if (found := files.read_json(path))['name'] in order
  ]
  results.sort(key=lambda found: (order.index(found['name']), _scale(found)))
  for found in results:
    found['claims'] = _judged(found)
  head = ['claim', 'says', 'experiment', 'scale', 'seeds', 'verdict', 'effect']
  rows = []
  pairs = [(e, c) for e in experiments.values() for c in e.claims]
  for experiment, claim in sorted(pairs, key=_number):
    verdicts = [
      _verdict(found, claim)
      for found in results
      if found['name'] == experiment.name
    ]
    for verdict in verdicts or [('', '', 'not measured yet', '')]:
      rows.append([claim.key, claim.text, f'`{experiment.name}`', *verdict])
  flattened = _flattened(results)
  title = ['## Length of training', ''] if flattened else []
  heading = [_HEAD, *title, *flattened, '## Claims']
  if study:
    heading = [_STUDY, *flattened, *_advice(results), '## Hypotheses']
  counts = [*_counts(results), ''] if results else []
  counts += [] if study else _decided(results)
  lines = [*heading, '', *counts, *_table(head, rows)]
  if study:
    lines += ['', _STUDY_SETUP.rstrip()]
  for found in results:
    lines += ['', *_section(found)]
  return '\n'.join(lines) + '\n'


def _counts(results: Sequence[Results]) -> Iterator[str]:
  """Yields a table of how many claims have each verdict, by scale.

  With replications, a claim has the verdict of its replication if this is not
  an open one, else that of the first seeds.
  """
  first, again = _verdicts(results)
  counted = dict(first)
  for scale, verdicts in again.items():
    counted[f'{scale}, with replications'] = first[scale] | verdicts
  lines = []
  for scale, verdicts in sorted(counted.items()):
    number = collections.Counter(verdicts.values())
    each = (number[verdict] for verdict in claims.VERDICTS)
    lines.append([scale, len(verdicts), *each])
  yield from _table(['scale', 'claims', *claims.VERDICTS], lines)


def _verdicts(
  results: Sequence[Results],
) -> tuple[dict[str, dict[str, str]], dict[str, dict[str, str]]]:
  """Returns verdicts by scale and claim, and those of replications.

  The latter are those that are not open.
  """
  first = collections.defaultdict[str, dict[str, str]](dict)
  again = collections.defaultdict[str, dict[str, str]](dict)
  for found in results:
    verdicts = {one['key']: one['verdict'] for one in found['claims']}
    if _scale(found) == found['scale']:
      first[found['scale']] |= verdicts
    else:
      again[found['scale']] |= {
        key: one for key, one in verdicts.items() if one not in claims.OPEN
      }
  return first, again


def _decided(results: Sequence[Results]) -> list[str]:
  """Returns how many claims of `_DECIDED` scale `hours` decides."""
  first, again = _verdicts(results)
  meant = {key: one for key, one in first['hours'].items() if key in _DECIDED}
  if not meant:
    return []
  counted = [
    list(verdicts.values()).count('not seen')
    for verdicts in (meant, meant | _only(again['hours'], meant))
  ]
  measured = sum(one != 'not measured' for one in meant.values())
  text = (
    f'Scale `hours` was meant to decide {len(meant)} of these claims '
    f'({"; ".join(meant)}). It measures {measured} of them: {counted[0]} are '
    f'*not seen* with the first seeds, and {counted[1]} with replications.'
  )
  return [*textwrap.wrap(text, 80), '']


def _only(verdicts: Mapping[str, str], keys: Iterable[str]) -> dict[str, str]:
  return {key: verdicts[key] for key in keys if key in verdicts}


def _advice(results: Sequence[Results]) -> list[str]:
  """Returns the sections with the statements of `study` that are measured."""
  measured = {one['name']: one for one in results if _scale(one) == 'hours'}
  advice = [
    text for one in answers_lib.ADVICE if (text := _stated(one, measured))
  ]
  lines = [f'{n}. {text}' for n, text in enumerate(advice, start=1)]
  answers = []
  for question, statements in answers_lib.ANSWERS.items():
    known = [text for one in statements if (text := _stated(one, measured))]
    if known:
      answers.append(f'**{question}** {" ".join(known)}')
  lines = [_CHOICE, *lines, ''] if lines else []
  if answers:
    lines += ['## Answers', '']
    for answer in answers:
      lines += [answer, '']
  return lines


def _stated(one: answers_lib.Advice, measured: Mapping[str, Results]) -> str:
  """Returns a statement with its effects; '' if one is not measured."""
  if one.experiment not in measured:
    return ''
  found = measured[one.experiment]
  if one.step is not None:
    found = with_early(found, one.step)
  parts = reproduce.EXPERIMENTS[one.experiment].parts
  lines_of = (parse_comparisons(x, parts) for x in one.comparisons)
  judged = claims.judge(Claim('', '', sum(lines_of, ())), found)
  # Results of some rows only may lack an effect, or a step.
  if any(each['interval'] is None for each in judged['comparisons']):
    return ''
  effects = (reproduction.effect(x, sign='') for x in judged['comparisons'])
  return one.text.format(*effects)


def with_early(found: Results, step: int) -> Results:
  """Returns results with each part also at a step, as 'PART early'.

  It lacks rows that were not tested at this step.
  """
  early = [
    part
    | {
      'name': part['name'] + EARLY,
      'rows': [
        row
        for row in part['rows']
        if step in row.get('trajectory', {'steps': ()})['steps']
      ],
    }
    for part in claims.at_step(found, step)['parts']
  ]
  return found | {'parts': [*found['parts'], *early]}


def _flattened(results: Sequence[Results]) -> list[str]:
  """Returns a paragraph on how much losses fall over the last half of training.

  They are those of curves at scale `hours`, at the training length, means over
  seeds. A model that several experiments share is counted once.
  """
  falls: dict[bytes, float] = {}
  constant = set()
  for found in results:
    if found['scale'] != 'hours':
      continue
    parts = [part for part in found['parts'] if part['kind'] == 'curves']
    names = {part['name'] for part in parts}
    fixed = {x for x in names if _has_constant_rate(found['name'], x)}
    constant |= (
      {f'`{found["name"]}`'}
      if fixed and fixed == names
      else {f'the part `{x}` of `{found["name"]}`' for x in fixed}
    )
    for part in parts:
      near = part['columns'].index(1)
      rows = [row for row in part['rows'] if 'trajectory' in row]
      # The row that trains a model precedes those that only test it.
      trained = {row['folder']: row for row in reversed(rows)}
      for row in trained.values():
        values = np.array(row['trajectory']['values'], float)[:, -2:, near]
        if part['unit'] == 'perplexity':
          values = np.log(values)
        half, last = values.mean(0)
        if np.isfinite(half - last):
          falls[values.tobytes()] = half - last
  if not falls:
    return []
  few = sum(fall < _FLAT for fall in falls.values())
  text = (
    f'A loss has flattened where it falls by less than {_FLAT} nats from half '
    f'of the steps to all. This holds for {few} of the {len(falls)} models at '
    'scale `hours` on this page, whose losses at the training length fall by '
    f'{min(falls.values()):.2f} to {max(falls.values()):.2f}. '
  )
  if few < len(falls) / 2:
    text += 'With longer training, results may change. '
  text += (
    'The learning rate decays over all steps, so that an earlier step is not '
    'the end of a shorter training'
  )
  if constant:
    text += f', except in {", ".join(sorted(constant))}, where it is constant'
  text += '.'
  return [*textwrap.wrap(text, 80), '']


def _has_constant_rate(experiment: str, name: str) -> bool:
  """Returns whether the learning rate of a part does not decay."""
  (part,) = (
    x for x in reproduce.EXPERIMENTS[experiment].parts if x.name == name
  )
  assert isinstance(part, ConfiguredPart)
  config = load_config(part.config, 'cpu', [])
  return config.optimizer.schedule == 'constant'


def _number(pair: tuple[Experiment, Claim]) -> tuple[int, int]:
  """Returns the paper and the number of a claim."""
  key = pair[1].key.partition(',')[0]
  return 'FWRSZACL'.index(key[0]), int(key[1:])


def _judged(found: Results) -> list[Results]:
  """Returns the claims of an experiment as now defined, with verdicts."""
  experiment = reproduce.EXPERIMENTS[found['name']]
  wanted = {
    (part.name, row.name)
    for part in experiment.parts
    if isinstance(part, ConfiguredPart) and found['scale'] in part.scales
    for row in part.rows_at(found['scale'])
  }
  partial = not wanted <= _rows(found)
  return [claims.judge(one, found, partial) for one in experiment.claims]


def _rows(found: Results) -> set[tuple[str, str]]:
  """Returns (part, row) of all rows of results."""
  return {
    (part['name'], row['name'])
    for part in found['parts']
    for row in part['rows']
  }


def _verdict(found: Results, claim: Claim) -> tuple[Any, ...]:
  """Returns (scale, seeds, verdict, effect) of a claim."""
  (judged,) = (one for one in found['claims'] if one['key'] == claim.key)
  # The anchor that code hosts derive from a section's heading.
  anchor = f'{found["name"]}-scale-{_scale(found)}'.lower()
  anchor = anchor.replace('/', '').replace(', ', '-')
  return (
    f'[{_scale(found)}](#{anchor})',
    len(found['seeds']),
    reproduction.verdict(judged) + _scope(judged, found),
    reproduction.effects(judged),
  )


def _scope(judged: Results, found: Results) -> str:
  """Returns which parts of a mean were measured; '' if all were."""
  operands = [one[k] for one in judged['comparisons'] for k in ('low', 'high')]
  names = {at[0] for at in operands if isinstance(at, list)}
  for part in found['parts']:
    if part['name'] in names and part['kind'] == 'average':
      if len(part['of']) < part['of_all']:
        some = ', '.join(part['of'])
        return f', of {len(part["of"])} of {part["of_all"]}: {some}'
  return ''


def _section(found: Results) -> list[str]:
  seeds = ', '.join(map(str, found['seeds']))
  lines = [
    f'## {found["name"]}, scale {_scale(found)}',
    '',
    f'{found["title"][0].upper()}{found["title"][1:]}. `{found["command"]}`, '
    f'seeds {seeds}, commit {_short(found["commit"])}; every figure of every '
    f'seed: [{_file(found)}](results/{_file(found)}).',
  ]
  tested = set()
  for part in found['parts']:
    if part['rows']:
      lines += ['', f'**{part["name"]}**: {reproduction.describe(part)}', '']
      lines += _table(*reproduction.table(part))
      if by_step := reproduction.trajectory(part):
        title = 'by training step, means over seeds'
        lines += ['', f'**{part["name"]}, {title}**', '']
        lines += [*_table(*by_step), '']
        picture = _picture(found, part)
        lines.append(f'![{part["name"]}, by step](pictures/{picture})')
      lines += ['', *(f'- {note}' for note in reproduction.notes(part))]
      lines += _specs(part) if found['name'].startswith(_STUDY_NAME) else []
    if 'commits' in part:
      tested |= {*(part['commits'] or ['unrecorded'])}
  if tested := tested - {str(found['commit'])}:
    some = ', '.join(sorted(map(_short, tested)))
    lines += ['', f'Commits at which models were tested, beside this: {some}.']
  failed = [
    f'{claim["key"]}: {line}'
    for claim in found['claims']
    for line in reproduction.against(claim, ('fails',))
  ]
  for group in (failed, left_out(found), found['summary'], found['ours']):
    if group:
      lines += ['', *(f'- {line}' for line in group)]
  return lines


def _specs(part: Results) -> list[str]:
  """Returns a line with the specs of rows that have another name."""
  specs = [
    f'{row["name"]} is `{row["run"]}`'
    for row in part['rows']
    if row.get('run', '') not in ('', row['name'])
  ]
  return [f'- specs: {"; ".join(specs)}'] if specs else []


def left_out(found: Results) -> list[str]:
  """Returns a line for each part and row that results omit."""
  experiment = reproduce.EXPERIMENTS[found['name']]
  measured = {part['name']: part['rows'] for part in found['parts']}
  lines = []
  for part in experiment.parts:
    if isinstance(part, ConfiguredPart) and part.name in measured:
      names = [row['name'] for row in measured[part.name]]
      rows = '; '.join(row.name for row in part.rows if row.name not in names)
      if rows:
        lines.append(f'left out of {part.name}: {rows}')
  # Separated by semicolons, because names contain commas.
  parts = '; '.join(p.name for p in experiment.parts if p.name not in measured)
  if parts:
    lines.append(f'left out: {parts}')
  seeds, default = len(found['seeds']), experiment.seeds_at(found['scale'])
  if seeds < len(default):
    lines.append(f'{seeds} of {len(default)} seeds')
  elif seeds < len(experiment.seeds):
    lines.append(f'{seeds} seeds, at full size {len(experiment.seeds)}')
  return lines


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
  def line(cells: Sequence[Any]) -> str:
    return '| ' + ' | '.join(str(c).replace('|', '\\|') for c in cells) + ' |'

  yield from (line(head), '|' + '---|' * len(head), *map(line, rows))


def _scale(found: Results) -> str:
  """Returns the scale of results, and whether they are a replication."""
  experiment = reproduce.EXPERIMENTS[found['name']]
  replicates = experiment.replicates(found['scale'], found['seeds'])
  return found['scale'] + (', replication' if replicates else '')


def _short(commit: str | None) -> str:
  """Returns the first digits of a commit, and '+dirty' if it has that."""
  digits, plus, dirty = str(commit).partition('+')
  return digits[:12] + plus + dirty


def _file(found: Results) -> str:
  """Returns the name of a result file."""
  name = f'{found["name"]}_{_scale(found)}.json'
  return name.replace('/', '_').replace(', ', '_')


def _picture(found: Results, part: Results) -> str:
  """Returns the name of the picture of a part's trajectories."""
  name = part['name'].replace(' ', '_')
  return _file(found).replace('.json', f'_{name}.png')


def _take(found: Results, source: pathlib.Path, path: pathlib.Path) -> None:
  """Writes results to `path`, unless those there have more seeds or rows."""
  if path.exists():
    old = files.read_json(path)
    fewer = [
      f'{what} {", ".join(map(str, sorted(lost)))}'
      for what, lost in (
        ('seeds', {*old['seeds']} - {*found['seeds']}),
        ('rows', {': '.join(x) for x in _rows(old) - _rows(found)}),
      )
      if lost
    ]
    if fewer:
      print(
        f'{path} is kept: {source} lacks its {" and its ".join(fewer)}; to '
        'replace it, delete it'
      )
      return
  files.write_json(path, found)


def main(runs: str, docs: str) -> None:
  """Copies results from the folder of runs and writes pages and pictures."""
  folder = pathlib.Path(docs) / 'results'
  folder.mkdir(parents=True, exist_ok=True)
  for path in sorted(pathlib.Path(runs).rglob(reproduction.RESULTS)):
    found = files.read_json(path)
    # Folders of results with overrides or chosen rows have another suffix.
    replication = f'{found["scale"]}-replication'
    kept = path.parent.name in (found['scale'], replication)
    if found['scale'] != 'tiny' and kept:
      _take(found, path, folder / _file(found))
  for path in folder.glob('*.json'):
    found = files.read_json(path)
    found['claims'] = _judged(found)
    found['ours'] = list(reproduce.EXPERIMENTS[found['name']].ours)
    found['title'] = reproduce.EXPERIMENTS[found['name']].title
    files.write_json(path, found)
    for part in found['parts']:
      if reproduction.trajectory(part):
        picture = pathlib.Path(docs) / 'pictures' / _picture(found, part)
        picture.parent.mkdir(exist_ok=True)
        reproduction.draw_trajectories(part, picture)
  for name, study in (('results.md', False), ('study.md', True)):
    path = pathlib.Path(docs) / name
    path.write_text(page(folder, study=study))
    print(f'wrote {path}')


if __name__ == '__main__':
  main(*sys.argv[1:])
