"""A backend of the lm-evaluation-harness (lm_eval 0.4) for trained models.

Importing this module registers the model 'lengen'. The harness does not search
for models of other packages, so `lengen lm_eval` imports it first:

    lengen lm_eval --model_args pretrained=CHECKPOINT --tasks hellaswag

From Python:

    import lm_eval
    from lengen_jax.interop import lm_eval as backend

    model = backend.Lengen(pretrained=CHECKPOINT)
    lm_eval.simple_evaluate(model=model, tasks=['hellaswag'])
"""

import collections
from collections.abc import Sequence
import functools
import sys
from typing import Any

import numpy as np

from lengen_jax import errors
from lengen_jax import positions as position_schemes
from lengen_jax.evaluation import generation, likelihood
from lengen_jax.training import continuations, sharding
from lengen_jax.training import pretrained as pretrained_lib

try:
  from lm_eval import __main__ as command_line
  from lm_eval.api import model as model_api
  from lm_eval.api import registry
  from lm_eval.models import utils as harness
except ImportError as error:
  raise errors.ConfigError(
    'the lm-evaluation-harness needs the lm_eval extra: pip install '
    f"'lengen_jax[lm_eval]' ({error})"
  ) from error

# Defaults of the harness's backend for transformers.
_MAX_LENGTH, _MAX_GEN_TOKS = 2048, 256
_ARGUMENTS = (
  *('pretrained', 'encoding', 'positions', 'vocabulary'),
  *('max_length', 'batch_tokens', 'seed'),
)
# Options of generation that are read, or mean nothing for greedy decoding.
_READ = ('do_sample', 'top_p', 'until')


@registry.register_model('lengen')
class Lengen(model_api.TemplateLM):
  """A trained model of this package, or a checkpoint that it loads.

  Contexts begin with the start token if the vocabulary adds it; see
  `pretrained.prompt_ids`.
  Continuations are split from contexts by the harness: trailing spaces of a
  context belong to the continuation. Rows with more than `max_length` inputs
  lose the first tokens of their context. `loglikelihood_rolling` scores each
  token of a text once, the first after the start token.
  """

  def __init__(
    self,
    pretrained: str = '',
    *,
    encoding: str = '',
    positions: str = '',
    vocabulary: str = '',
    max_length: int | None = None,
    batch_tokens: int = 8192,
    seed: int = 0,
    batch_size: Any = None,
    max_batch_size: Any = None,
    device: Any = None,
    **unknown: Any,
  ) -> None:
    """Loads a model.

    Args:
      pretrained: a checkpoint; see `training.pretrained.load`.
      encoding: spec of an encoding to test the model with; '' for its own.
      positions: spec of positions to test the model with; '' for its own.
      vocabulary: spec of the vocabulary; '' for the one that the checkpoint
        records.
      max_length: maximum number of inputs per row; None for the length of
        training, or 2048 if that is unknown.
      batch_tokens: tokens per batch; batches of longer rows have fewer rows.
      seed: seed of samples and of positions drawn at test time.
      batch_size: not used; the harness passes it.
      max_batch_size: not used.
      device: not used; rows are split over all devices of jax.

    Raises:
      errors.LengenError: there is no checkpoint or no vocabulary, the specs do
        not fit the model, or an argument is unknown or of another type.
    """
    super().__init__()
    for name in unknown:
      raise errors.ConfigError(
        errors.one_of('argument in --model_args', name, _ARGUMENTS)
      )
    sizes = {'batch_tokens': batch_tokens, 'seed': seed}
    if max_length is not None:
      sizes['max_length'] = max_length
    for name, value in sizes.items():
      least = 0 if name == 'seed' else 1
      if not isinstance(value, int) or value < least:
        raise errors.ConfigError(
          f'{name} in --model_args must be a whole number, at least {least}, '
          f'got {value!r}'
        )
    if seed >= 2**32:
      raise errors.ConfigError(
        f'seed in --model_args must be below 2**32, got {seed}'
      )
    if not pretrained:
      raise errors.ConfigError(
        'the model lengen needs a checkpoint; give --model_args '
        'pretrained=CHECKPOINT'
      )
    trained = pretrained_lib.load(str(pretrained))
    self._trained = trained.tested_as(encoding, positions)
    self._vocabulary = self._trained.create_vocabulary(vocabulary)
    self.max_length = max_length or self._trained.train_length or _MAX_LENGTH
    self._rows: dict[str, Any] = {
      'batch_tokens': batch_tokens,
      'seed': seed,
      'layout': sharding.Layout.of_rows(),
    }
    self._scheme = position_schemes.create(self._trained.positions)
    self._scorer = likelihood.Scorer(
      self._trained.model, self._scheme, **self._rows
    )

  @property
  def tokenizer_name(self) -> str:
    return self._vocabulary.name

  def apply_chat_template(
    self, chat_history: Sequence[Any], add_generation_prompt: bool = True
  ) -> str:
    """Raises errors.ConfigError: there are no chat templates."""
    raise errors.ConfigError(
      'the model lengen has no chat templates; run without '
      '--apply_chat_template'
    )

  @property
  def eot_token_id(self) -> int:
    return self._vocabulary.end

  @property
  def prefix_token_id(self) -> int:
    return self._vocabulary.start

  def tok_encode(
    self, string: str, add_special_tokens: bool | None = None, **_: Any
  ) -> list[int]:
    """Returns token ids; see `pretrained.prompt_ids`.

    If `add_special_tokens` is False, there is no start token.
    """
    if add_special_tokens is False:
      (ids,) = self._vocabulary.encode([string.encode()])
      return ids.tolist()
    return pretrained_lib.prompt_ids(self._vocabulary, string).tolist()

  def loglikelihood_rolling(
    self, requests: Sequence[Any], disable_tqdm: bool = False
  ) -> list[float]:
    """Returns the log-probability of each text, in nats."""
    windows = [
      list(
        likelihood.rolling(
          self.tok_encode(text, add_special_tokens=False),
          self.prefix_token_id,
          self.max_length,
        )
      )
      for (text,) in (request.args for request in requests)
    ]
    scores = iter(self._score([one for some in windows for one in some]))
    return [sum(next(scores).log_prob for _ in some) for some in windows]

  def generate_until(
    self, requests: Sequence[Any], disable_tqdm: bool = False
  ) -> list[str]:
    """Returns the text generated after each context, up to a stop string.

    Raises:
      errors.ConfigError: an option of generation is not supported.
      errors.LengthError: `max_gen_toks` leaves no room for a context.
    """
    groups = collections.defaultdict(list)
    for number, request in enumerate(requests):
      options, until = _options(request.args[1], self.max_length)
      groups[tuple(options.items()), tuple(until)].append(number)
    texts = [''] * len(requests)
    for (options, until), numbers in groups.items():
      generator = generation.Generator(
        self._trained.model,
        self._scheme,
        end_id=self.eot_token_id,
        start_id=None,
        **dict(options),
        **self._rows,
      )
      most = self.max_length - generator.max_new
      prompts = [self.tok_encode(requests[i].args[0]) for i in numbers]
      with continuations.progress('lm_eval', len(numbers), 'prompt') as bar:
        written = generator.run(
          self._trained.params,
          [np.array(prompt[-most:]) for prompt in prompts],
          report=lambda done, _: bar.update(done),  # noqa: B023
          stop_ids=self._stop_ids(until),
        )
      for number, ids in zip(numbers, written, strict=True):
        texts[number] = harness.postprocess_generated_text(
          self._vocabulary.decode(ids, special=False), [*until], None
        )
    return texts

  def _stop_ids(self, until: Sequence[str]) -> list[int]:
    """Returns the tokens whose text contains a string of `until`."""
    # The harness ignores empty strings.
    until = [string for string in until if string]
    texts = enumerate(self._texts if until else ())
    return [
      number for number, text in texts if any(map(text.__contains__, until))
    ]

  @functools.cached_property
  def _texts(self) -> list[str]:
    """The text of each token that the model may generate."""
    ids = range(self._trained.model.vocab_size)
    return [self._vocabulary.decode([i]) for i in ids]

  def _encode_pair(
    self, context: str, continuation: str
  ) -> tuple[list[int], list[int]]:
    # All spaces of the context belong to the continuation.
    if context.isspace():
      return [self.prefix_token_id], self.tok_encode(
        context + continuation, add_special_tokens=False
      )
    context_ids, ids = super()._encode_pair(context, continuation)
    if not ids:
      # The tokenizer merges the continuation into the end of the context.
      ids = self.tok_encode(continuation, add_special_tokens=False)
    return context_ids, ids

  def _loglikelihood_tokens(
    self, requests: Sequence[Any], disable_tqdm: bool = False, **_: Any
  ) -> list[tuple[float, bool]]:
    rows, cut = [], 0
    for texts, context, continuation in requests:
      if not continuation:
        raise errors.ConfigError(
          f'the continuation {texts[1]!r} of a request has no tokens; remove '
          'the empty choice from the task'
        )
      if len(continuation) > self.max_length:
        raise errors.LengthError(
          f'a continuation has {len(continuation)} tokens, more than '
          f'max_length={self.max_length}; raise it with --model_args'
        )
      # The last token of a row is not an input.
      most = self.max_length + 1 - len(continuation)
      cut += len(context) > most
      rows.append(likelihood.Request(context[-most:], continuation))
    if cut:
      print(
        f'lm_eval: {cut} of {len(rows)} contexts are cut to max_length='
        f'{self.max_length}',
        flush=True,
      )
    return [(one.log_prob, one.greedy) for one in self._score(rows)]

  def _score(
    self, rows: Sequence[likelihood.Request]
  ) -> list[likelihood.Score]:
    with continuations.progress('lm_eval', len(rows), 'row') as bar:
      return self._scorer.run(self._trained.params, rows, report=bar.update)


def run(arguments: Sequence[str]) -> None:
  """Runs the command line of the harness with the model 'lengen'."""
  before = sys.argv
  # The harness reads its arguments there.
  sys.argv = ['lm_eval', 'run', '--model', 'lengen', *arguments]
  try:
    command_line.cli_evaluate()
  finally:
    sys.argv = before


def _options(
  given: dict[str, Any], max_length: int
) -> tuple[dict[str, Any], list[str]]:
  """Returns options of `Generator`, and strings that end a text."""
  known = {key: value for key, value in given.items() if value is not None}
  found = harness.normalize_gen_kwargs(known, _MAX_GEN_TOKS)
  max_new, temperature = found.pop('max_gen_toks'), found.pop('temperature', 0)
  options = {'max_new': max_new, 'temperature': float(temperature)}
  if temperature:
    options['top_p'] = float(found.get('top_p', 1))
  for key, value in found.items():
    if key not in _READ and (key, value) != ('num_beams', 1):
      raise errors.ConfigError(
        f'generation_kwargs {key}={value!r} is not supported; supported are '
        'until, max_gen_toks, do_sample, temperature and top_p'
      )
  if max_new >= max_length:
    raise errors.LengthError(
      f'max_gen_toks={max_new} leaves no room for a context in max_length='
      f'{max_length}; lower it with --gen_kwargs or raise max_length with '
      '--model_args'
    )
  return options, found['until']
