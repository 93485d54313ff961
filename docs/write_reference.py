"""Builds docs/reference from docstrings: `python -m docs.write_reference`.

The pages list every public name of the modules below. A missing docstring or
annotation raises ValueError.
"""

import pathlib
import re

import griffe

ROOT = pathlib.Path(__file__).parent.parent
# Modules by page. A package lists the names it exports.
PAGES = {
  'positions': (
    'positions',
    'positions.standard',
    'positions.interpolated',
    'positions.randomized',
    'positions.shifted',
    'positions.warped',
    'positions.equal_mean',
    'positions.pose',
    'positions.abacus',
    'positions.coupled',
    'positions.contextual',
    'positions.contextual.forget',
    'positions.contextual.repo',
    'positions.contextual.selective',
  ),
  'encodings': (
    'encodings',
    'encodings.nope',
    'encodings.absolute',
    'encodings.rotary',
    'encodings.bands',
    'encodings.pope',
    'encodings.linear',
    'encodings.alibi',
    'encodings.kerple',
    'encodings.t5',
    'encodings.sandwich',
    'encodings.fire',
    'encodings.relative',
    'encodings.convert',
  ),
  'attention': ('attention', 'attention.scaling'),
  'models': (
    'models.config',
    'models.transformer',
    'models.layers',
    'models.mlp',
    'models.norms',
    'models.cache',
    'models.stacking',
    'models.presets',
    'models.recurrent',
  ),
  'tasks': (
    'tasks',
    'tasks.algorithmic',
    'tasks.arithmetic.expression',
    'tasks.arithmetic.addition',
    'tasks.arithmetic.subtraction',
    'tasks.arithmetic.multiplication',
    'tasks.arithmetic.parity',
    'tasks.retrieval.passkey',
    'tasks.retrieval.niah',
    'tasks.retrieval.aggregation',
    'tasks.retrieval.mqar',
    'tasks.synthetic',
    'tasks.groups',
    'tasks.circuits',
    'tasks.crasp',
  ),
  'data': (
    'data',
    'data.config',
    'data.ruler',
    'data.vocabulary',
    'data.windows',
  ),
  'training': (
    'training.config',
    'training.defaults',
    'training.loop',
    'training.pretrained',
    'training.continuations',
    'training.ruler',
    'training.compare',
    'training.sweep',
    'training.runs',
    'training.warm_start',
    'training.groups',
  ),
  'evaluation': (
    'evaluation.config',
    'evaluation.length_curve',
    'evaluation.constructions',
    'evaluation.generation',
    'evaluation.likelihood',
    'evaluation.attention_weights',
    'evaluation.bias_error',
    'evaluation.bias_maps',
    'evaluation.position_maps',
    'evaluation.order_invariance',
    'evaluation.metrics.lm',
    'evaluation.metrics.ruler',
    'evaluation.metrics.scrolls',
    'evaluation.metrics.superglue',
  ),
  'analysis': (
    'analysis.report',
    'analysis.sweep_report',
    'analysis.bias_figures',
    'analysis.attention_maps',
  ),
  'interop': (
    'interop.t5x',
    'interop.flaxformer',
    'interop.nnx',
    'interop.lm_eval',
    'interop.weights',
    'interop.hf',
    'interop.hf.families',
    'interop.hf.family',
  ),
  'testing': ('testing',),
  'errors': ('errors', 'specs'),
}
# Methods of linen modules that need no docstring.
_LINEN = ('__call__', 'setup')
_HEAD = """# Reference

Built from the docstrings by `make docs`.

"""
_FOOT = """
In signatures, `Array` is a `jax.Array` or an `np.ndarray`; `Positions` is an
`Array` or [`Distances`](positions.md); `Assigned` is `Positions` or
[`Parts`](positions.md); `Params` is a tree of arrays; `Length` is an `int` or,
if traced, a `jax.Array`; `PathLike` is a `str` or an `os.PathLike`.
"""
_HEADINGS = {'parameters': 'Args', 'attributes': 'Attributes'}


def pages():
  """Returns the text of each page by file name."""
  package = griffe.load(
    'lengen_jax',
    search_paths=[ROOT],
    try_relative_path=False,
    docstring_parser='google',
    docstring_options={'warnings': False},
    resolve_aliases=True,
  )
  texts, lines = {}, []
  for page, names in PAGES.items():
    modules = [package[name] for name in names]
    parts = [f'# {page}', *(part for one in modules for part in _module(one))]
    texts[f'{page}.md'] = '\n\n'.join(parts) + '\n'
    lines.append(f'- [{page}]({page}.md): {_summary(package[page])}')
  texts['index.md'] = _HEAD + '\n'.join(lines) + '\n' + _FOOT
  return texts


def _module(module):
  """Yields the sections of a module."""
  yield f'## {module.path.removeprefix("lengen_jax.")}'
  yield from _docstring(module)
  chosen = module.exports or [
    name
    for name, member in module.members.items()
    if not (member.is_alias or name.startswith('_'))
  ]
  for name in chosen:
    member = module.members[str(name)]
    if member.is_class or member.is_function:
      yield from _member(member, f'### {name}')
      if member.is_class:
        for method in _methods(member):
          yield from _member(method, f'#### {name}.{method.name}')


def _methods(cls):
  """Returns the public methods of a class, and `__call__`, with a docstring.

  Raises ValueError if a method without one overrides none that has one.
  """
  found = []
  for name, member in cls.members.items():
    public = name == '__call__' or not name.startswith('_')
    if not (member.is_function and public):
      continue
    _check_hints(member)
    if member.docstring:
      found.append(member)
    elif name not in _LINEN and not _inherits(cls, name):
      raise ValueError(f'{member.path} has no docstring')
  return found


def _inherits(cls, name):
  """Returns whether a base class has a docstring for the method."""
  for base in cls.bases:
    # The loader does not resolve `base.Encoding` if `base` is an import.
    module, _, short = str(base).rpartition('.')
    where = cls.parent.members[module] if module else cls.parent
    above = where.members.get(short)
    if above is None or not above.is_class:
      continue
    method = above.members.get(name)
    if (method and method.docstring) or _inherits(above, name):
      return True
  return False


def _member(member, heading):
  """Yields the sections of a class or a function."""
  if not member.docstring:
    raise ValueError(f'{member.path} has no docstring')
  yield heading
  if member.is_function:
    _check_hints(member)
    yield f'```python\n{_signature(member)}\n```'
  elif fields := _fields(member):
    yield f'```python\n{member.name}({fields})\n```'
  yield from _docstring(member)


def _check_hints(function):
  """Raises ValueError if an annotation of a function is missing."""
  for one in function.parameters:
    if one.annotation is None and one.name not in ('self', 'cls'):
      raise ValueError(f'{function.path} has no annotation of {one.name}')
  if function.returns is None:
    raise ValueError(f'{function.path} has no return annotation')


def _hint(function, annotation):
  """Returns an annotation without the module names of this package."""

  def shorter(prefix):
    member = function.module.members.get(prefix[1])
    ours = member and member.is_alias and 'lengen_jax' in member.target_path
    return '' if ours else prefix[0]

  return re.sub(r'\b(\w+)\.', shorter, str(annotation))


def _signature(function):
  """Returns the signature, on one line or with one line per parameter."""
  shown, star = [], False
  for one in function.parameters:
    if one.name in ('self', 'cls'):
      continue
    text = {
      griffe.ParameterKind.var_positional: '*',
      griffe.ParameterKind.var_keyword: '**',
    }.get(one.kind, '') + one.name
    if one.kind is griffe.ParameterKind.keyword_only and not star:
      shown.append('*')
    star = star or one.kind in (
      griffe.ParameterKind.keyword_only,
      griffe.ParameterKind.var_positional,
    )
    text += f': {_hint(function, one.annotation)}'
    if one.default is not None and not text.startswith('*'):
      text += f' = {one.default}'
    shown.append(text)
  name = function.name
  returns = f' -> {_hint(function, function.returns)}'
  line = f'{name}({", ".join(shown)}){returns}'
  if len(line) <= 80:
    return line
  body = ''.join(f'  {one},\n' for one in shown)
  return f'{name}(\n{body}){returns}'


def _fields(cls):
  """Returns the fields of a dataclass or module as keyword arguments."""
  fields = [
    name if member.value is None else f'{name}={_default(member.value)}'
    for name, member in cls.members.items()
    if member.is_attribute
    and 'property' not in member.labels
    and member.annotation is not None
    and not name.startswith('_')
  ]
  line = ', '.join(fields)
  if len(line) + len(cls.name) > 76:
    line = '\n' + ''.join(f'  {field},\n' for field in fields)
  return line


def _default(value):
  """Returns a default value, also of `field(default=...)`."""
  if isinstance(value, griffe.ExprCall):
    for one in value.arguments:
      if isinstance(one, griffe.ExprKeyword) and one.name == 'default':
        return one.value
  return value


def _docstring(member):
  """Yields the sections of a docstring as Markdown."""
  if not member.docstring:
    raise ValueError(f'{member.path} has no docstring')
  for section in member.docstring.parsed:
    kind = section.kind.value
    if kind == 'text':
      yield section.value
    elif kind in _HEADINGS:
      items = [f'- `{one.name}`: {_flat(one)}' for one in section.value]
      yield '\n'.join([f'**{_HEADINGS[kind]}**\n', *items])
    elif kind == 'raises':
      items = [f'- `{one.annotation}`: {_flat(one)}' for one in section.value]
      yield '\n'.join(['**Raises**\n', *items])
    elif kind in ('returns', 'yields'):
      text = ' '.join(_flat(one) for one in section.value)
      yield f'**{kind.capitalize()}** {text}'
    else:
      raise ValueError(f'{member.path}: a docstring with {kind}')


def _flat(element):
  return ' '.join(element.description.split())


def _summary(module):
  first = module.docstring.value.split('\n\n')[0]
  return ' '.join(first.split())


def write(folder):
  """Writes the pages into a folder."""
  folder.mkdir(exist_ok=True)
  for name, text in pages().items():
    (folder / name).write_text(text)


if __name__ == '__main__':
  write(ROOT / 'docs' / 'reference')
