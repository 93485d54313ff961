"""What docs/study.md advises and answers, with comparisons of measured scores.

`docs.write_results` fills in the effects.
"""

from typing import NamedTuple


class Advice(NamedTuple):
  """A recommendation or an answer, with measured effects.

  Attributes:
    text: the statement; each '{}' stands for the effect of a comparison.
    experiment: name of the experiment with the results.
    comparisons: lines of comparisons; see `experiment.parse_comparisons`. A
      part called 'PART early' has the scores of PART at `step`.
    step: an earlier tested step; None if no comparison needs one.
  """

  text: str
  experiment: str
  comparisons: tuple[str, ...]
  step: int | None = None


ADVICE = (
  Advice(
    'For contexts longer than those of training, use KERPLE (`kerple_log`) '
    'or ALiBi (`alibi`), which are better at 16 times the training length '
    'than at the training length, by {} and {}, and there better than FIRE by '
    '{} and {}; on English, ALiBi is worse than KERPLE at both lengths '
    '(`study/text`). Power KERPLE and Sandwich lose nothing either (L34), '
    "nor does Transformer-XL's encoding (`study/grid`).",
    'study/biases',
    ('code: kerple_log|alibi @ 16 < @ 1', 'code: kerple_log|alibi < fire @ 16'),
  ),
  Advice(
    'For a learned function of the distance in a model of text, use an MLP '
    "on the raw distance, `fire(transform='identity', normalizer='none', "
    "threshold='none')`, which is better than FIRE at 16 times the training "
    'length by {}; with FIRE, keep the threshold, without which it is worse '
    'at twice the length by {}.',
    'study/interpolation',
    (
      'code: raw distance < fire @ 16',
      'code: fire < fire, no threshold @ 2',
    ),
  ),
  Advice(
    'With RoPE, random positions lower the loss at 16 times the training '
    'length by {} and raise it at the training length by {}, but the loss '
    'still rises by {} between the two; do not use them with FIRE, T5, ALiBi '
    'and KERPLE, where they raise the loss at both (L6, L32), nor with the '
    'biases of L38.',
    'study/range',
    (
      'code: range 1x < rope @ 16',
      'code: rope < range 1x @ 1',
      'code: range 1x @ 1 < @ 16',
    ),
  ),
  Advice(
    'Do not judge extrapolation early in training: after a sixteenth of the '
    'steps, FIRE was worse at 16 times the training length than at the '
    'training length by only {}, and after all steps by {}.',
    'study/biases',
    (
      'code early: fire @ 1 < @ 16',
      'code: fire @ 1 < @ 16',
    ),
    262,
  ),
  Advice(
    'Compare gains from length only between curves of one construction: '
    'from one to four training lengths, the loss of ALiBi falls more than '
    'on the same text by {} over the beginnings of the documents that are '
    'long enough for each length (`own`), and by {} over those that are '
    'long enough for all lengths (`first`).',
    'study/protocol',
    (
      'constructions: alibi @ own < @ recut',
      'constructions: alibi @ first < @ recut',
    ),
  ),
)
# Answers to the questions of the study, each of several statements.
ANSWERS = {
  'Does a learned bias extrapolate because it interpolates?': (
    Advice(
      'No: an MLP on the logarithm of the distance is better at 16 times the '
      'training length than FIRE without its threshold, which differs only in '
      'that it interpolates, by {}. FIRE with its threshold interpolates '
      'beyond the threshold, which starts at four training lengths. From '
      'there on, MLPs on the distance, on its logarithm and on the distance '
      'divided by the training length are better than FIRE, at 16 times the '
      'length by {}, {} and {}. FIRE without its threshold is worse than FIRE '
      'by {}.',
      'study/interpolation',
      (
        'code: log of the distance < fire, no threshold @ 16',
        'code: raw distance < fire @ 16',
        'code: log of the distance < fire @ 16',
        'code: fixed length < fire @ 16',
        'code: fire < fire, no threshold @ 16',
      ),
    ),
    Advice(
      'At 16 times the length, FIRE whose threshold starts at four training '
      'lengths is better than with a start at one by {}; starts at an eighth, '
      'a quarter and one do not differ significantly (L29). At this length, '
      'FIRE with one hidden layer is better than with two by {}, and than with '
      'none by {}; at twice the training length, it is worse than with two by '
      '{} (L30).',
      'study/interpolation',
      (
        'code: fire < fire, L from 1 @ 16',
        'code: fire, one hidden layer < fire @ 16',
        'code: fire, one hidden layer < fire, linear @ 16',
        'code: fire < fire, one hidden layer @ 2',
      ),
    ),
    Advice(
      'The learning rate explains a part of the difference: if the parameters '
      'of biases learn ten times faster, FIRE improves by {} at four and {} '
      'at 16 times the length. At 16 times, the MLP on the raw distance is '
      'better than this FIRE by {} if it also learns ten times faster, and by '
      '{} if it does not; with equal rates, they do not differ significantly '
      'up to four times the length.',
      'study/rate',
      (
        'faster: fire @ 4 < code: fire @ 4',
        'faster: fire @ 16 < code: fire @ 16',
        'faster: raw distance < fire @ 16',
        'code: raw distance < faster: fire @ 16',
      ),
    ),
    Advice(
      'On English, both MLPs are better than FIRE from four times the length '
      'on, at 16 times by {} and {}, and do not differ from it significantly '
      'up to twice the length.',
      'study/text',
      (
        'docstrings: raw distance < fire @ 16',
        'docstrings: log of the distance < fire @ 16',
      ),
    ),
    Advice(
      'This holds for text: beyond the lengths of training, the MLPs copy {} '
      'and {} points fewer sequences than KERPLE does. FIRE with a threshold '
      'from a quarter of the training length copies {} points more than the '
      'MLP on the raw distance. Whether FIRE with the usual threshold copies '
      'more is undecided: its seeds differ by up to 73 points.',
      'study/tasks',
      (
        'copy: kerple_log > raw distance|log of the distance @ beyond',
        'copy: fire, L from 1/4 > raw distance @ beyond',
      ),
    ),
  ),
  'Does the construction of a curve change which encoding is best?': (
    Advice(
      'Not at four times the training length, where the order is KERPLE, '
      'ALiBi, T5, NoPE and RoPE by all six constructions (means over seeds). '
      'At the training length, T5 is before ALiBi by `own` and `first` and '
      'behind it by the others, with differences of at most 0.011 nats. The '
      'gain from a longer context depends on the construction; see above.',
      'study/protocol',
      (),
    ),
  ),
  'When do random positions help, and why do papers disagree?': (
    Advice(
      'On copy and reverse, RoPE answers {} and {} points more sequences '
      'beyond the lengths of training if random positions are drawn from as '
      'many as the longest test has tokens. A range ten times as large helps '
      'less, by {} and {} points. At the lengths of training, random '
      'positions cost {} and {} points. On text, they help RoPE at 16 times '
      'the length and cost at the training length; the effect of the range is '
      'undecided there (L12). Papers that draw from different ranges, test '
      'other tasks or only longer inputs can thus disagree.',
      'study/range',
      (
        'copy: range 1x > rope @ beyond',
        'reverse: range 1x > rope @ beyond',
        'copy: range 1x > range 10x @ beyond',
        'reverse: range 1x > range 10x @ beyond',
        'copy: rope > range 1x @ seen',
        'reverse: rope > range 1x @ seen',
      ),
    ),
    Advice(
      'With sinusoidal and learned vectors, random positions lower the loss on '
      'text by {} and {} at 16 times the training length, and raise it by {} '
      'and {} at the training length. With PoPE, they lower it by {} at four '
      'times the length and raise it by {} at the training length; at 16 '
      'times, their effect is undecided (L27). With T5, ALiBi and KERPLE, they '
      'raise it at the training length, by {}, {} and {}, and at 16 times, by '
      '{}, {} and {}: ALiBi and KERPLE, which extrapolate without them, no '
      'longer do (L32). '
      'Nor do an MLP on the raw distance, power KERPLE and Sandwich, whose '
      'loss at 16 times the length they raise by {}, {} and {} (L38).',
      'study/grid',
      (
        'code: sinusoidal, randomized < sinusoidal @ 16',
        'code: learned, randomized < learned @ 16',
        'code: sinusoidal < sinusoidal, randomized @ 1',
        'code: learned < learned, randomized @ 1',
        'code: pope, randomized < pope @ 4',
        'code: pope < pope, randomized @ 1',
        'code: [t5|alibi|kerple_log] < [], randomized @ 1',
        'code: [t5|alibi|kerple_log] < [], randomized @ 16',
        'code: [raw distance|kerple_power|sandwich] < [], randomized @ 16',
      ),
    ),
  ),
  'Do log n or interpolated positions help a model that is not trained with '
  'them?': (
    Advice(
      'The logit scale log n depends on the encoding. At 16 times the length, '
      'it raises the loss with biases that are added to the logits and without '
      'an encoding, by {}, {}, {}, {}, {} and {} with T5, FIRE, ALiBi, KERPLE, '
      'the MLP on the raw distance and NoPE (L26, L31), and by {}, {} and {} '
      'with power KERPLE, Sandwich and FIRE with one hidden layer, and by {} '
      "with Transformer-XL's encoding. It lowers the loss of PoPE and, against "
      "L35, of Shaw's encoding, by {} and {}; with RoPE, half RoPE, sinusoidal "
      'and learned vectors, its effect is undecided. With models that are '
      'trained with random positions, it lowers the loss of PoPE, sinusoidal '
      'and learned vectors by {}, {} and {}, raises it by {}, {}, {} and {} '
      'with FIRE, the MLP on the raw distance, power KERPLE and Sandwich, and '
      'is undecided with RoPE (L39), T5, ALiBi and KERPLE.',
      'study/grid',
      (
        'code: [t5|fire|alibi|kerple_log] < [], log n @ 16',
        'code: raw distance < raw distance, log n @ 16',
        'code: nope < nope, log n @ 16',
        'code: [kerple_power|sandwich] < [], log n @ 16',
        'code: fire, one hidden layer < fire, one hidden layer, log n @ 16',
        'code: transformer_xl < transformer_xl, log n @ 16',
        'code: [pope|shaw], log n < [] @ 16',
        'code: pope, randomized, log n < pope, randomized @ 16',
        'code: sinusoidal, randomized, log n < sinusoidal, randomized @ 16',
        'code: learned, randomized, log n < learned, randomized @ 16',
        'code: fire, randomized < fire, randomized, log n @ 16',
        'code: raw distance, randomized < raw distance, randomized, log n @ 16',
        'code: kerple_power, randomized < kerple_power, randomized, log n @ 16',
        'code: sandwich, randomized < sandwich, randomized, log n @ 16',
      ),
    ),
    Advice(
      'Interpolated positions do not help at twice the length. There they '
      'raise the loss by {}, {}, {}, {}, {}, {} and {} with RoPE, PoPE, T5, '
      'FIRE, ALiBi, KERPLE and the MLP on the raw distance (L28, L33), and by '
      '{}, {}, {}, {} and {} with power KERPLE, Sandwich, half RoPE, FIRE with '
      "one hidden layer and Transformer-XL's encoding (L36). "
      'At 16 times, their effect with RoPE and half RoPE is '
      'undecided, as it is with sinusoidal vectors at both lengths, and they '
      'raise the loss with the others of these encodings.',
      'study/grid',
      (
        'code: [rope|pope|t5|fire] < [], interpolated @ 2',
        'code: [alibi|kerple_log] < [], interpolated @ 2',
        'code: raw distance < raw distance, interpolated @ 2',
        'code: [kerple_power|sandwich|rope, half] < [], interpolated @ 2',
        'code: [fire, one hidden layer] < [], interpolated @ 2',
        'code: transformer_xl < transformer_xl, interpolated @ 2',
      ),
    ),
  ),
  'What keeps a model flat: stopping early, weight decay, dropout?': (
    Advice(
      'Stopping early keeps no model flat. After a sixteenth of the steps, '
      'the loss of RoPE at 16 times the training length is already {} above '
      'that at the training length. From there to all steps, the former rises '
      'by {} and the latter falls by {}. With FIRE, the former falls by {}.',
      'study/random_positions',
      (
        'code early: rope @ 1 < @ 16',
        'code early: rope @ 16 < code: rope @ 16',
        'code: rope @ 1 < code early: rope @ 1',
        'code: fire @ 16 < code early: fire @ 16',
      ),
      262,
    ),
    Advice(
      'From a quarter of the steps to all, the loss of FIRE on English rises '
      'by {} at 16 times the length and falls by {} at the training length. '
      'The learning rate decays over all steps, so that an earlier step is '
      'not the end of a shorter training.',
      'study/text',
      (
        'docstrings early: fire @ 16 < docstrings: fire @ 16',
        'docstrings: fire @ 1 < docstrings early: fire @ 1',
      ),
      1050,
    ),
    Advice(
      'With weight decay ten times as strong, or none, FIRE and RoPE do not '
      'differ significantly from the models with the usual one at 16 times the '
      'length (L23, L25). Dropout of 0.1 raises the loss of FIRE by {} at the '
      'training length and by {} at 16 times (a single comparison; L24, which '
      'is corrected for both, is undecided), and that of RoPE by {} at the '
      'training length; for RoPE at 16 times, its effect is undecided.',
      'study/regularization',
      (
        'code: fire @ 1 < dropout: fire @ 1',
        'code: fire @ 16 < dropout: fire @ 16',
        'code: rope @ 1 < dropout: rope @ 1',
      ),
    ),
  ),
}
