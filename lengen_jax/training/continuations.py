"""Texts that a trained model writes after prompts."""

from collections.abc import Sequence
import time

import jax

from lengen_jax import positions as position_schemes
from lengen_jax import progress as progress_lib
from lengen_jax.data import vocabulary as vocabulary_lib
from lengen_jax.evaluation import generation
from lengen_jax.training import pretrained, sharding


def write(
  trained: pretrained.Pretrained,
  prompts: Sequence[str],
  *,
  vocabulary: vocabulary_lib.Vocabulary,
  max_new: int,
  temperature: float = 0.0,
  top_p: float = 1.0,
  seed: int = 0,
  label: str = 'generate',
  batch_tokens: int = 8192,
) -> list[str]:
  """Returns the text that a model generates after each prompt.

  Each prompt becomes a row with the ids of `pretrained.prompt_ids`. Rows are
  split over all devices. Progress lines start with `label`. For the other
  arguments, see `generation.Generator`.

  Raises:
    errors.LengenError: see `Generator` and `Generator.run`.
  """
  generator = generation.Generator(
    trained.model,
    position_schemes.create(trained.positions),
    max_new=max_new,
    end_id=vocabulary.end,
    batch_tokens=batch_tokens,
    seed=seed,
    layout=sharding.Layout.of_rows(),
    temperature=temperature,
    top_p=top_p,
    start_id=None,
  )
  rows = [pretrained.prompt_ids(vocabulary, prompt) for prompt in prompts]
  with progress(label, len(rows), 'prompt') as bar:
    began = time.monotonic()
    written = generator.run(
      trained.params, rows, report=lambda done, _: bar.update(done)
    )
    bar.announce(
      f'{sum(map(len, written)):,} tokens in {time.monotonic() - began:.1f} s, '
      'with compilation'
    )
  texts = []
  for row, ids in zip(rows, written, strict=True):
    # Some vocabularies drop the space before the first token of a text.
    whole, before = vocabulary.decode([*row, *ids]), vocabulary.decode(row)
    continues = whole.startswith(before)
    # An incomplete character may change how the bytes before it decode.
    texts.append(whole[len(before) :] if continues else vocabulary.decode(ids))
  return texts


def progress(label: str, count: int, what: str) -> progress_lib.Progress:
  """Returns the progress of `count` rows, and announces the compilation.

  `what` names a row.
  """
  bar = progress_lib.Progress(label, count, what=what, unit=f'{what}s')
  devices = f'{jax.device_count()} {jax.default_backend()} devices'
  bar.announce(f'compiling for {devices} ...')
  return bar
