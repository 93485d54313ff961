"""FIRE, arXiv:2310.04418: its tables and figures.

The paper cuts its test set at each length alike, and here all lengths score the
same tokens, so that ours differ from print for that too. 'Kerple' there is not
said to be logarithmic or power; the rows have it as logarithmic.
"""

import dataclasses
import statistics

from lengen_jax import papers
from lengen_jax.reproduce import probes
from lengen_jax.reproduce.experiment import Answers
from lengen_jax.reproduce.experiment import Average
from lengen_jax.reproduce.experiment import beats
from lengen_jax.reproduce.experiment import Claim
from lengen_jax.reproduce.experiment import Curves
from lengen_jax.reproduce.experiment import Experiment
from lengen_jax.reproduce.experiment import Figures
from lengen_jax.reproduce.experiment import Less
from lengen_jax.reproduce.experiment import Probe
from lengen_jax.reproduce.experiment import Row
from lengen_jax.reproduce.experiment import SCALES
from lengen_jax.reproduce.experiment import Standin
from lengen_jax.reproduce.experiment import Timing
from lengen_jax.reproduce.standins import glue
from lengen_jax.reproduce.standins import scrolls

_RATIOS = (0.25, 0.5, 1, 2, 4)
_HARDWARE, _HARDWARE_LARGE = '128 TPUv4', '256 TPUv4'
_OURS_TRAINING = (
  'not in the paper, so ours: vocabulary, schedule, warm-up, weight decay, '
  'clipping, number of tokens tested; KERPLE taken as the logarithmic one',
)
_OURS = (
  *_OURS_TRAINING,
  'here all lengths score the same tokens; the paper cuts its test set anew at '
  'each length',
)
_OURS_YARN = (
  *_OURS,
  'the paper gives no recipe for YaRN: as in arXiv:2309.00071, but for 8192 '
  'tokens; the second claim compares it with FIRE finetuned in the same way',
)
_OURS_PROMPTS = (
  'not in the paper, so ours: form of prompts, separator, lengths of answers, '
  'constant rate, optimizer as in pretraining',
)
_OURS_ANSWERS = _OURS_TRAINING + _OURS_PROMPTS


def _fire(n, **keys):
  """A FIRE whose initial threshold is what 512 is to 2048."""
  keys = {'init_threshold': n / 4} | keys
  inside = ', '.join(f'{key}={value!r}' for key, value in keys.items())
  return f'fire({inside})'


def _c4(name, rows, **kwargs):
  return Curves(name, 'fire_c4.py:base', rows, _RATIOS, **kwargs)


# Table 4.
_BASELINES = (
  Row('nope', 'nope', papers.FIRE_TABLE_4['nope']),
  Row('rope', 'rope', papers.FIRE_TABLE_4['rope']),
  Row('alibi', 'alibi', papers.FIRE_TABLE_4['alibi']),
  Row('kerple', 'kerple_log', papers.FIRE_TABLE_4['kerple']),
  Row('t5', 't5(num_buckets=64)', papers.FIRE_TABLE_4['t5']),
)
_FIRE = Row('fire', _fire, papers.FIRE_TABLE_4['fire'])
_NO_THRESHOLD = Row(
  'fire, no threshold',
  "fire(threshold='none')",
  papers.FIRE_TABLE_4['fire, no threshold'],
)


_OTHERS = ('nope', 'rope', 'alibi', 'kerple', 't5')

_ALL = (*_BASELINES, _NO_THRESHOLD, _FIRE)
_CURVES = tuple(Row(row.name, row.run) for row in (*_BASELINES, _FIRE))
_SHARED = Row('fire-s', lambda n: _fire(n, shared=True))
# What scales of minutes have of SCROLLS, and of the rows of GLUE.
_FEW_TASKS = ('contract_nli',)
_FEW_ROWS = ('nope', 'rope', 'alibi', 'fire')


_LARGE = ('c4, large', 'arxiv, large', 'github, large')


_SCROLLS = Standin(
  'generated questions and documents in the format of SCROLLS, in bytes',
  {},
  scrolls.write,
)
_GLUE = Standin(
  'generated tasks in the format of GLUE and SuperGLUE, in bytes',
  {},
  glue.write,
)
_FULL = ('paper', 'small')


def _finetuned(figures, lengths, shared=True, pi=('rope-pi',)):
  """Rows of finetuning.

  Args:
    figures: the paper's, {row: figures}.
    lengths: training length here, in those of pretraining.
    shared: whether FIRE-S is among them.
    pi: names of interpolated RoPE, from the one of four times the length on.
  """

  def fire(n, **keys):
    # As it was pretrained.
    return _fire(n, init_threshold=n / lengths / 4, **keys)

  runs = {
    'nope': 'nope',
    'rope': 'rope',
    **{name: f'rope(scale={4.0**n!r})' for n, name in enumerate(pi, 1)},
    'alibi': 'alibi',
    'kerple': 'kerple_log',
    't5': 't5(num_buckets=64)',
    'fire': fire,
  }
  rows = [
    Row(name, run, figures.get(name), start='rope' if name in pi else None)
    for name, run in runs.items()
  ]
  if shared:
    rows.append(
      Row(
        'fire-s',
        lambda n: fire(n, shared=True),
        figures.get('fire-s'),
      )
    )
  return tuple(rows)


def _scrolls(task, model, cpu):
  """Finetuning on a task of SCROLLS."""
  name = task if model == 'base' else f'{task}, large'
  column = papers.FIRE_TABLE_1_TASKS.index(task)
  figures = {
    row: (figures[column],)
    for row, figures in papers.FIRE_TABLE_1[model].items()
  }
  return Answers(
    name,
    f'scrolls.py:{task},{model}',
    _finetuned(figures, 4, shared=model == 'base'),
    _SCROLLS,
    'c4' if model == 'base' else 'c4, large',
    scales=SCALES if cpu else _FULL,
  )


def _glue(name, model, rows):
  """Finetuning on all of GLUE and SuperGLUE."""
  return Answers(
    name,
    f'glue_superglue.py:{model}',
    rows,
    _GLUE,
    'c4' if model == 'base' else 'c4, large',
    tasks=tuple(papers.FIRE_TABLE_13[model]),
    scales=SCALES if model == 'base' else _FULL,
  )


def _table_13(model):
  """Rows of table 13, with the mean over tasks."""
  names = ('nope', 'rope', 'rope-pi', 'alibi', 'kerple', 't5', 'fire')
  by_row = zip(
    names, zip(*papers.FIRE_TABLE_13[model].values(), strict=True), strict=True
  )
  figures = {
    name: (*scores, statistics.fmean(scores)) for name, scores in by_row
  }
  return tuple(
    row if row.name in _FEW_ROWS else dataclasses.replace(row, scales=_FULL)
    for row in _finetuned(figures, 0.5, shared=False)
  )


def _glue_fire(n, **keys):
  """FIRE as it was pretrained at twice the length of GLUE."""
  return _fire(n, init_threshold=n / 2, **keys)


def _by(margin, comparisons):
  """Comparisons that are to hold by a margin."""
  return tuple(dataclasses.replace(one, by=margin) for one in comparisons)


def _only_mean(figure):
  """The paper's figures where it prints the mean alone."""
  return (*[None] * len(papers.FIRE_TABLE_13['base']), figure)


def _pretrained(name, model, rows):
  """What finetuning starts from; a stand-in's models start from nothing."""
  return Curves(
    name,
    f'fire_c4.py:{model}',
    rows,
    _RATIOS,
    standin=None,
    scales=_FULL,
    hardware=_HARDWARE if model == 'base' else _HARDWARE_LARGE,
  )


def _corpus(name, model, corpus):
  """A part of figures 1, 2 and 7; small scales have one corpus in any case."""
  return Curves(
    name,
    f'fire_c4.py:{model},{corpus}',
    _CURVES,
    _RATIOS,
    scales=_FULL,
    hardware=_HARDWARE if model == 'base' else _HARDWARE_LARGE,
  )


EXPERIMENTS = (
  Experiment(
    'fire/figure1',
    'log perplexity by length on C4, arXiv and GitHub, base and large; figures '
    '1, 2 and 7',
    (
      _c4('c4', _CURVES),
      _corpus('arxiv', 'base', 'arxiv'),
      _corpus('github', 'base', 'github'),
      *(_corpus(name, 'large', name.partition(',')[0]) for name in _LARGE),
    ),
    (
      *(
        Claim(
          f'F1, {name}',
          'FIRE has the least loss of all encodings at every length',
          beats(name, 'fire', _OTHERS, _RATIOS),
        )
        for name in ('arxiv', 'github', *_LARGE)
      ),
    ),
    _HARDWARE,
    ours=_OURS,
  ),
  Experiment(
    'fire/figure4',
    'the biases that FIRE learns, by layer and head; figures 4 and 8, and the '
    'thresholds',
    (
      _c4('c4', (_FIRE,)),
      Probe(
        'biases',
        'c4',
        ('fire',),
        probes.biases,
        Figures(
          ('least threshold', 'largest threshold', 'local', 'anti-local'),
          'thresholds in training lengths; shares of heads',
          probes.thresholds_and_kinds,
        ),
      ),
    ),
    (
      Claim(
        'F5, range',
        'learned thresholds end between 0.59 and 0.78 training lengths (1200 '
        'to 1600 at 2048)',
        (
          Less(1200 / 2048, ('biases', 'fire', 'least threshold')),
          Less(('biases', 'fire', 'largest threshold'), 1600 / 2048),
        ),
      ),
      Claim(
        'F8',
        'there are heads that learn local and heads that learn anti-local '
        'patterns: each a twentieth or more',
        (
          Less(0.05, ('biases', 'fire', 'local')),
          Less(0.05, ('biases', 'fire', 'anti-local')),
        ),
      ),
    ),
    _HARDWARE,
    ours=_OURS,
  ),
  Experiment(
    'fire/figure5',
    'time of a forward pass at the training length, models not trained',
    (Timing('forward', 'fire_c4.py:base', (*_CURVES, _SHARED), (1, 4)),),
    (
      Claim(
        'F9, T5',
        "FIRE and FIRE-S are faster than T5's bias",
        (
          *beats('forward', 'fire', ('t5',), (1,)),
          *beats('forward', 'fire-s', ('t5',), (1,)),
        ),
      ),
      Claim(
        'F9, FIRE-S',
        'FIRE-S is faster than all but NoPE',
        beats(
          'forward', 'fire-s', ('rope', 'alibi', 'kerple', 't5', 'fire'), (1,)
        ),
      ),
    ),
    '4 TPUv2',
    # A round takes seconds, and is noisy.
    seeds=(0, 1, 2, 3, 4),
  ),
  Experiment(
    'fire/figure6',
    'trained at 512, tested to 8192: C4',
    (Curves('c4', 'fire_c4.py:base', _CURVES, (1, 2, 4, 8, 16), shrink=4),),
    (
      Claim(
        'F1, figure 6',
        'FIRE has the least loss of all encodings at every length, trained at '
        '512',
        beats('c4', 'fire', _OTHERS, (1, 2, 4, 8, 16)),
      ),
    ),
    _HARDWARE,
    ours=_OURS,
  ),
  Experiment(
    'fire/yarn',
    'YaRN, a RoPE model finetuned at four times the length, beside FIRE',
    (
      _c4('pretrained', (Row('rope', 'rope'), Row('fire', _fire))),
      Curves(
        'finetuned',
        'yarn_c4.py:base',
        (
          Row(
            'yarn',
            # The config is that of the length it is finetuned at.
            lambda n: f'yarn(scale=4., train_length={n // 4})',
            start='rope',
          ),
          Row('fire', lambda n: _fire(n, init_threshold=n / 16)),
        ),
        (0.0625, 0.125, 0.25, 0.5, 1),
        starts_from='pretrained',
      ),
    ),
    (
      Claim(
        'F12',
        'YaRN is worse than FIRE at long lengths and at a quarter of the '
        'training length',
        (
          Less(('pretrained', 'fire', 4), ('finetuned', 'yarn', 1)),
          Less(('pretrained', 'fire', 2), ('finetuned', 'yarn', 0.5)),
          Less(('pretrained', 'fire', 0.25), ('finetuned', 'yarn', 0.0625)),
        ),
      ),
      Claim(
        'F12, as long trained',
        'YaRN is worse than FIRE trained on in the same way, at long lengths '
        'and at a quarter of the training length',
        beats('finetuned', 'fire', ('yarn',), (0.0625, 0.5, 1)),
      ),
    ),
    _HARDWARE,
    ours=_OURS_YARN,
  ),
  Experiment(
    'fire/table1',
    'SCROLLS: finetuned at four times the length, scores of seven tasks',
    (
      _pretrained('c4', 'base', (*_CURVES, _SHARED)),
      *(
        _scrolls(task, 'base', task in _FEW_TASKS)
        for task in papers.FIRE_TABLE_1_TASKS
      ),
      Average('mean', papers.FIRE_TABLE_1_TASKS),
      _pretrained('c4, large', 'large', _CURVES),
      *(_scrolls(task, 'large', False) for task in papers.FIRE_TABLE_1_TASKS),
      Average(
        'mean, large',
        tuple(f'{task}, large' for task in papers.FIRE_TABLE_1_TASKS),
        _FULL,
      ),
    ),
    (
      Claim(
        'F10, SCROLLS',
        'FIRE has the best average of SCROLLS, by half a point or more, base',
        _by(
          0.5, beats('mean', 'fire', (*_OTHERS, 'rope-pi'), (1,), higher=True)
        ),
      ),
      Claim(
        'F7, SCROLLS',
        'FIRE-S is a little worse than FIRE on SCROLLS',
        beats('mean', 'fire', ('fire-s',), (1,), higher=True),
      ),
      Claim(
        'F10, SCROLLS, large',
        'FIRE has the best average of SCROLLS, large',
        beats('mean, large', 'fire', (*_OTHERS, 'rope-pi'), (1,), higher=True),
      ),
    ),
    _HARDWARE,
    ours=_OURS_ANSWERS,
  ),
  Experiment(
    'fire/figure3',
    'NarrativeQA by length of the story, finetuned at 8192; table 11',
    (
      _pretrained('c4', 'base', _CURVES),
      Answers(
        'narrative_qa',
        'narrativeqa_zeroshot.py',
        _finetuned(
          papers.FIRE_TABLE_11,
          4,
          shared=False,
          pi=('rope-pi, 8192', 'rope-pi, 32768'),
        ),
        _SCROLLS,
        'c4',
        (0.0625, 0.25, 0.5, 1, 2, 3, 4),
        of_config=True,
      ),
    ),
    (
      Claim(
        'F10, NarrativeQA',
        'FIRE is best at every length',
        beats(
          'narrative_qa',
          'fire',
          (*_OTHERS, 'rope-pi, 8192', 'rope-pi, 32768'),
          (0.0625, 0.25, 0.5, 1, 2, 3, 4),
          higher=True,
        ),
      ),
      Claim(
        'F10, RoPE-PI',
        'RoPE-PI for 8192 drops beyond it and that for 32768 does not (not by '
        'two points), which is worse than the former when short',
        (
          *(
            Less(
              ('narrative_qa', 'rope-pi, 8192', longer),
              ('narrative_qa', 'rope-pi, 8192', 1),
            )
            for longer in (2, 4)
          ),
          Less(
            ('narrative_qa', 'rope-pi, 32768', 1),
            ('narrative_qa', 'rope-pi, 32768', 4),
            by=-2.0,
          ),
          *beats(
            'narrative_qa',
            'rope-pi, 32768',
            ('rope-pi, 8192',),
            (2, 4),
            higher=True,
          ),
          *beats(
            'narrative_qa',
            'rope-pi, 8192',
            ('rope-pi, 32768',),
            (0.0625, 0.5, 1),
            higher=True,
          ),
        ),
      ),
    ),
    _HARDWARE,
    ours=_OURS_ANSWERS,
  ),
  Experiment(
    'fire/table13',
    'GLUE and SuperGLUE, all tasks at once; the averages of figure 3',
    (
      _pretrained('c4', 'base', _CURVES),
      _glue('glue', 'base', _table_13('base')),
      _pretrained('c4, large', 'large', _CURVES),
      _glue('glue, large', 'large', _table_13('large')),
    ),
    (
      Claim(
        'F11',
        'short tasks are not hurt: FIRE has at least the mean of RoPE less '
        'one point, and more than NoPE and ALiBi, base',
        (
          Less(('glue', 'rope', 'mean'), ('glue', 'fire', 'mean'), by=-1.0),
          *beats('glue', 'fire', ('nope', 'alibi'), ('mean',), higher=True),
        ),
      ),
      Claim(
        'F11, large',
        'RoPE has a higher mean than FIRE, large',
        beats('glue, large', 'rope', ('fire',), ('mean',), higher=True),
      ),
    ),
    '32 TPUv2',
    ours=_OURS_ANSWERS,
  ),
  Experiment(
    'fire/table4',
    'log perplexity on C4 by length, trained at 2048',
    (_c4('c4', _ALL),),
    (
      Claim(
        'F1',
        'FIRE has the least loss of all encodings at every length',
        beats('c4', 'fire', _OTHERS, _RATIOS),
      ),
      Claim(
        'F2',
        'RoPE, ALiBi, NoPE and T5 get worse beyond the training length, ALiBi '
        'most; KERPLE stays flat (not worse by 0.02)',
        (
          *(
            Less(('c4', row, 1), ('c4', row, 4))
            for row in ('rope', 'alibi', 'nope', 't5')
          ),
          Less(('c4', 'rope', 4), ('c4', 'alibi', 4)),
          Less(('c4', 'kerple', 4), ('c4', 'kerple', 1), by=-0.02),
        ),
      ),
      Claim(
        'F3, threshold',
        'the threshold helps at short lengths; FIRE without it still beats '
        'every baseline',
        (
          Less(('c4', 'fire', 0.25), ('c4', 'fire, no threshold', 0.25)),
          *beats('c4', 'fire, no threshold', _OTHERS, _RATIOS),
        ),
      ),
    ),
    _HARDWARE,
    ours=_OURS,
  ),
  Experiment(
    'fire/table2',
    'one FIRE for all layers (FIRE-S) against one for each: C4 and GLUE; '
    'SCROLLS is in table 1',
    (
      _c4(
        'c4',
        (
          Row('fire', _fire, (3.15, 3.08, 3.05, 3.05, 3.06)),
          dataclasses.replace(_SHARED, paper=papers.FIRE_TABLE_4['fire-s']),
          _BASELINES[3],
        ),
      ),
      _glue(
        'glue',
        'base',
        (
          Row('fire', _glue_fire, _only_mean(71.14)),
          Row(
            'fire-s',
            lambda n: _glue_fire(n, shared=True),
            _only_mean(71.04),
          ),
        ),
      ),
    ),
    (
      Claim(
        'F7, GLUE',
        'FIRE-S is a little worse than FIRE on GLUE and SuperGLUE',
        beats('glue', 'fire', ('fire-s',), ('mean',), higher=True),
      ),
      Claim(
        'F7',
        'FIRE-S is a little worse than FIRE and better than KERPLE when long',
        (
          *beats('c4', 'fire', ('fire-s',), _RATIOS),
          Less(('c4', 'fire-s', 4), ('c4', 'kerple', 4)),
        ),
      ),
    ),
    _HARDWARE,
    ours=_OURS + _OURS_PROMPTS,
  ),
  Experiment(
    'fire/table3',
    'the transform and the threshold, one by one: C4 and GLUE',
    (
      _c4(
        'c4',
        (
          Row(
            'no log, no threshold',
            "fire(transform='identity', threshold='none')",
            (3.194, 3.128, 3.099, 3.216, 3.334),
          ),
          _NO_THRESHOLD,
          _FIRE,
        ),
      ),
      _glue(
        'glue',
        'base',
        (
          Row(
            'no log, no threshold',
            "fire(transform='identity', threshold='none')",
            _only_mean(69.06),
          ),
          Row(
            'fire, no threshold', "fire(threshold='none')", _only_mean(70.42)
          ),
          Row('fire', _glue_fire, _only_mean(71.14)),
        ),
      ),
    ),
    (
      Claim(
        'F3, GLUE',
        'the threshold helps on GLUE and SuperGLUE, and so does the logarithm',
        (
          *beats(
            'glue', 'fire', ('fire, no threshold',), ('mean',), higher=True
          ),
          *beats(
            'glue',
            'fire, no threshold',
            ('no log, no threshold',),
            ('mean',),
            higher=True,
          ),
        ),
      ),
      Claim(
        'F3, transform',
        'the logarithm helps at four times the length, the threshold at a '
        'quarter',
        (
          Less(
            ('c4', 'fire, no threshold', 4), ('c4', 'no log, no threshold', 4)
          ),
          Less(('c4', 'fire', 0.25), ('c4', 'fire, no threshold', 0.25)),
        ),
      ),
    ),
    _HARDWARE,
    ours=_OURS + _OURS_PROMPTS,
  ),
  Experiment(
    'fire/table5',
    'how much the function can hold: C4',
    (
      _c4(
        'c4',
        (
          Row(
            'linear',
            lambda n: _fire(n, hidden_layers=0),
            (3.21, 3.14, 3.11, 3.20, 3.32),
          ),
          Row(
            'one hidden layer',
            lambda n: _fire(n, hidden_layers=1),
            (3.17, 3.10, 3.07, 3.06, 3.08),
          ),
          Row(
            'two hidden layers',
            lambda n: _fire(n, hidden_layers=2),
            (3.15, 3.08, 3.05, 3.05, 3.06),
          ),
        ),
      ),
    ),
    (
      Claim(
        'F4, layers',
        'two hidden layers are better than one, one than a linear map',
        (
          *beats('c4', 'two hidden layers', ('one hidden layer',), _RATIOS),
          *beats('c4', 'one hidden layer', ('linear',), _RATIOS),
        ),
      ),
    ),
    _HARDWARE,
    ours=_OURS,
  ),
  Experiment(
    'fire/table6',
    'GELU in place of ReLU: C4',
    (
      _c4(
        'c4',
        (
          Row('relu', _fire, (3.15, 3.08, 3.05, 3.05, 3.06)),
          Row(
            'gelu',
            lambda n: _fire(n, activation='gelu'),
            (3.36, 3.26, 3.06, 3.05, 3.06),
          ),
        ),
      ),
    ),
    (
      Claim(
        'F4, activation',
        'GELU is worse than ReLU at short lengths and the same (to 0.02) at '
        'long ones',
        (
          *beats('c4', 'relu', ('gelu',), (0.25, 0.5)),
          *(
            Less(('c4', a, ratio), ('c4', b, ratio), by=-0.02)
            for a, b in (('relu', 'gelu'), ('gelu', 'relu'))
            for ratio in (2, 4)
          ),
        ),
      ),
    ),
    _HARDWARE,
    ours=_OURS,
  ),
  Experiment(
    'fire/table7',
    'an activation on the output, one hidden layer: C4',
    (
      _c4(
        'c4',
        (
          Row(
            'with',
            lambda n: _fire(n, hidden_layers=1, final_activation='relu'),
            (3.16, 3.10, 3.07, 3.09, 3.19),
          ),
          Row(
            'without',
            lambda n: _fire(n, hidden_layers=1),
            (3.17, 3.10, 3.07, 3.06, 3.08),
          ),
        ),
      ),
    ),
    (
      Claim(
        'F4, output',
        'no activation on the output is better when long',
        beats('c4', 'without', ('with',), (2, 4)),
      ),
    ),
    _HARDWARE,
    ours=_OURS,
  ),
  Experiment(
    'fire/section3',
    'an MLP on the distance itself, and on one divided by a fixed length',
    (
      _c4(
        'c4',
        (
          Row(
            'raw distance',
            "fire(transform='identity', threshold='none', normalizer='none')",
          ),
          Row(
            'fixed length',
            lambda n: (
              "fire(transform='identity', threshold='none', "
              f"normalizer='max_length', max_length={n})"
            ),
          ),
          _FIRE,
        ),
      ),
    ),
    (
      Claim(
        'F6',
        'an MLP on the raw distance, or on one divided by a fixed length, '
        'fails beyond the training length',
        (
          Less(('c4', 'raw distance', 1), ('c4', 'raw distance', 4)),
          Less(('c4', 'fixed length', 1), ('c4', 'fixed length', 4)),
          *beats('c4', 'fire', ('raw distance', 'fixed length'), (4,)),
        ),
      ),
    ),
    _HARDWARE,
    ours=_OURS,
  ),
  Experiment(
    'fire/threshold',
    'a learned threshold against a fixed one',
    (
      _c4(
        'c4',
        (
          Row('fixed', lambda n: _fire(n, threshold='fixed')),
          Row('learned', _fire),
        ),
      ),
    ),
    (
      Claim(
        'F5, loss',
        'a learned threshold is better than a fixed one',
        beats('c4', 'learned', ('fixed',), _RATIOS),
      ),
    ),
    _HARDWARE,
    ours=_OURS,
  ),
)
