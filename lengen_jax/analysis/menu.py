"""Lists of the registered encodings, schemes, scales, tasks and data."""

from typing import Any

import rich.console
import rich.padding
import rich.table
import rich.text

from lengen_jax import encodings, errors, positions, specs, tasks
from lengen_jax.attention import scaling
from lengen_jax.data import glue, imagenet, prompts, scrolls, sources

_FIXED = ('num_heads', 'head_dim', 'width')


def show() -> None:
  """Prints the lists."""
  console = rich.console.Console(highlight=False)
  if not console.is_terminal:
    console.width = 100
  for title, registry, facts in (
    ('encodings', encodings.ENCODINGS, _encoding_facts),
    ('position schemes', positions.SCHEMES, _scheme_facts),
    ('logit scales', scaling.SCALES, _scale_facts),
    ('tasks', _tasks(), _task_facts),
    ('data', _data(), _data_facts),
  ):
    console.print(rich.text.Text(title, style='bold'))
    table = rich.table.Table.grid(padding=(0, 2))
    table.add_column(style='bold', no_wrap=True)
    table.add_column(overflow='fold')
    for name, entry in registry.items():
      table.add_row(name, rich.text.Text(_about(entry)))
      for label, value in facts(entry).items():
        table.add_row('', rich.text.Text(f'{label}: {value}', style='dim'))
    console.print(rich.padding.Padding(table, (0, 0, 1, 2)))


def _about(entry: Any) -> str:
  """Returns a line that describes an entry."""
  if isinstance(entry, prompts.PromptTask):
    return f'answers of up to {entry.target_length} tokens'
  return getattr(entry, 'about', '') or entry.formula


def _encoding_facts(entry: Any) -> dict[str, Any]:
  invariant = _fact(entry, 'translation_invariant')
  return _known(
    {
      'parameters': entry.parameters,
      'translation invariant': 'yes' if invariant else 'no',
      'beyond the training length': entry.beyond,
      'decoding needs': entry.at_decoding,
      'positions': _fact(entry, 'fractional_positions') or 'integers only',
      'keys': _keys(entry),
      'source': entry.source,
    }
  )


def _scheme_facts(entry: Any) -> dict[str, Any]:
  return _known(
    {
      'values': 'fractional' if _fact(entry, 'fractional') else 'integers',
      'at test time': entry.test_time,
      'decoding needs': entry.at_decoding,
      'keys': _keys(entry),
      'source': entry.source,
    }
  )


def _scale_facts(entry: Any) -> dict[str, Any]:
  return _known(
    {
      'parameters': entry.parameters,
      'decoding needs': entry.at_decoding,
      'keys': _keys(entry),
      'source': entry.source,
    }
  )


def _tasks() -> dict[str, Any]:
  """Returns the tasks by full name."""
  return {
    f'{family}/{name}': task
    for family, entries in tasks.TASKS.items()
    for name, task in entries.items()
  }


def _task_facts(entry: Any) -> dict[str, Any]:
  task = entry()
  return _known(
    {
      'tokens': f'{task.vocab_in} in, {task.vocab_out} out',
      'chance': f'{task.chance:.0%}',
      'keys': _keys(entry),
      'source': task.source,
    }
  )


def _data() -> dict[str, Any]:
  """Returns the values of data.task by name."""
  asked = [*scrolls.TASKS.values(), *glue.TASKS.values()]
  return {
    **sources.SOURCES,
    **{task.name: task for task in asked},
    'imagenet': imagenet.Imagenet,
  }


def _data_facts(entry: Any) -> dict[str, Any]:
  if isinstance(entry, prompts.PromptTask):
    return {'dataset': entry.dataset}
  return _known(
    {'dataset': entry.dataset, 'keys': _keys(entry), 'to get it': entry.how}
  )


def _known(facts: dict[str, Any]) -> dict[str, Any]:
  """Removes facts without a value."""
  return {k: v for k, v in facts.items() if v not in ('', True)}


def _keys(entry: Any) -> str:
  return ', '.join(
    f'{key}={field.default!r}'
    for key, field in specs.keys(entry, _FIXED).items()
  )


def _fact(entry: Any, name: str) -> Any:
  """Returns an attribute of a class, or that of its default instance."""
  value = getattr(entry, name)
  if not isinstance(value, property):
    return value
  try:
    return getattr(entry(num_heads=1, head_dim=8), name)
  except errors.SpecError:  # A key without a default.
    return None
