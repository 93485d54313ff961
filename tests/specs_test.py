"""Tests `lengen_jax/specs.py`."""

import dataclasses
import sys
import types

import pytest

from lengen_jax import errors, specs


@dataclasses.dataclass(frozen=True)
class Sieve:
  """An entry of a registry, with a field of every type that specs take."""

  mesh: int = 3
  rate: float = 0.5
  limit: int | None = None
  sizes: tuple = ()
  wet: bool = False
  kind: str = 'round'
  make_param: object = None
  name: str | None = None
  parent: object = None
  secret: int = dataclasses.field(default=0, init=False)


@dataclasses.dataclass(frozen=True)
class Plain:
  """An entry without keys."""


REGISTRY = {'sieve': Sieve, 'plain': Plain}


def build(spec, **fixed):
  return specs.build('tool', REGISTRY, spec, **fixed)


@pytest.mark.parametrize(
  'text, parts',
  [
    ('a', ['a']),
    ('a, b', ['a', 'b']),
    ('a(x=1, y=2), b', ['a(x=1, y=2)', 'b']),
    ('a(x=(1, 2), y=[3, {4: 5}]),b', ['a(x=(1, 2), y=[3, {4: 5}])', 'b']),
    ("a(x='),'), b", ["a(x='),')", 'b']),
    ('a(x="\',"), b', ['a(x="\',")', 'b']),
    (' a ,, b, ', ['a', 'b']),
    ('', []),
    (' , ', []),
  ],
)
def test_split(text, parts):
  assert specs.split(text) == parts


def test_split_at_another_separator():
  text = 'fire; rope(scale=4., base=1e4) | standard; t5'
  runs = specs.split(text, ';')
  assert runs == ['fire', 'rope(scale=4., base=1e4) | standard', 't5']
  assert specs.split(runs[1], '|') == ['rope(scale=4., base=1e4)', 'standard']


@pytest.mark.parametrize(
  'values, want',
  [
    ('5*rope(x=2), nope', ('rope(x=2)',) * 5 + ('nope',)),
    ('1 * a,2* b', ('a', 'b', 'b')),
    ("a(x='2*b')", ("a(x='2*b')",)),
    (('2*a', 'b'), ('a', 'a', 'b')),
    ([512, None], (512, None)),
    (None, (None,)),
    (' , ', ()),
  ],
)
def test_cycle(values, want):
  assert specs.cycle(values) == want


@pytest.mark.parametrize(
  'text', ['0*rope', 'x*rope', '-1*rope', '2.5*rope', '2*', '*rope', '2*3*rope']
)
def test_cycle_refuses_what_repeats_nothing(text):
  with pytest.raises(errors.SpecError) as caught:
    specs.cycle(f'nope, {text}')
  assert f'cannot repeat {text!r}; write N*spec' in str(caught.value)


@pytest.mark.parametrize(
  'spec, name, kwargs',
  [
    ('a', 'a', {}),
    (' a ', 'a', {}),
    ('a()', 'a', {}),
    ('a(x=1)', 'a', {'x': 1}),
    ('a( x = -1.5 , y="z" )', 'a', {'x': -1.5, 'y': 'z'}),
    ('a(x=(1, 2), y=None, z=True)', 'a', {'x': (1, 2), 'y': None, 'z': True}),
  ],
)
def test_parse(spec, name, kwargs):
  assert specs.parse(spec) == (name, kwargs)


@pytest.mark.parametrize(
  'spec',
  ['', 'a(', 'a b', '1', "'a'", 'a.b', 'a.b(x=1)', 'a(x=1)(y=2)', 'a = 1']
  + ['lambda: a', '[a]', 3, None],
)
def test_parse_refuses_what_is_no_spec(spec):
  with pytest.raises(errors.SpecError, match='cannot read the spec') as caught:
    specs.parse(spec)
  assert repr(spec) in str(caught.value)
  assert 'name(key=value, ...)' in str(caught.value)


@pytest.mark.parametrize('spec', ['a(1)', 'a(1, x=2)', 'a(*b)', 'a(**b)'])
def test_parse_refuses_a_value_without_a_key(spec):
  with pytest.raises(errors.SpecError, match='value without a key') as caught:
    specs.parse(spec)
  assert repr(spec) in str(caught.value)


@pytest.mark.parametrize(
  'value', ['b', '1 + 1', 'f(1)', 'b.c', '[b]', 'lambda: 1', '{[]: 1}']
)
def test_parse_refuses_what_is_no_literal(value):
  with pytest.raises(errors.SpecError, match='x in .* is not a literal'):
    specs.parse(f'a(x={value})')


def test_parse_refuses_a_key_given_twice():
  with pytest.raises(errors.SpecError, match='x'):
    specs.parse('a(x=1, x=2)')


def test_build_sets_fields():
  assert build('sieve') == Sieve()
  built = build(
    "sieve(mesh=5, rate=.25, limit=7, sizes=(1, 2), wet=True, kind='flat')"
  )
  assert built == Sieve(5, 0.25, 7, (1, 2), True, 'flat')
  assert build('sieve(limit=None)').limit is None
  assert build('plain') == Plain()


def test_build_takes_an_int_for_a_float_and_a_list_for_a_tuple():
  rate = build('sieve(rate=2)').rate
  assert rate == 2.0 and type(rate) is float
  assert build('sieve(sizes=[1, 2])').sizes == (1, 2)
  hash(build('sieve(sizes=[1, 2])'))


def test_build_passes_fixed_fields():
  assert build('sieve(rate=.1)', mesh=9, name='x') == Sieve(9, 0.1, name='x')


def test_build_refuses_an_unknown_name():
  with pytest.raises(errors.SpecError) as caught:
    build('seive(mesh=2)')
  message = str(caught.value)
  assert "unknown tool 'seive'" in message
  assert "did you mean 'sieve'?" in message
  assert message.endswith('valid: plain, sieve')


@pytest.mark.parametrize(
  'kind', ['encoding', 'position scheme', 'attention scale']
)
def test_build_says_how_to_name_ones_own(kind):
  with pytest.raises(errors.SpecError, match='; your own is written module:na'):
    specs.build(kind, {'plain': Plain}, 'palin')


def test_build_suggests_nothing_for_a_far_name():
  with pytest.raises(errors.SpecError) as caught:
    build('zzz')
  assert 'did you mean' not in str(caught.value)
  assert 'valid: plain, sieve' in str(caught.value)


def test_build_refuses_an_unknown_key():
  with pytest.raises(errors.SpecError) as caught:
    build('sieve(mash=2)')
  message = str(caught.value)
  assert "unknown key of sieve 'mash'; did you mean 'mesh'?" in message
  assert 'kind, limit, mesh, rate, sizes, wet' in message


@pytest.mark.parametrize('key', ['name', 'parent', 'make_param', 'secret'])
def test_build_refuses_hidden_keys(key):
  with pytest.raises(errors.SpecError, match=f'unknown key of sieve {key!r}'):
    build(f'sieve({key}=1)')


def test_build_refuses_a_fixed_key():
  with pytest.raises(errors.SpecError, match="unknown key of sieve 'mesh'"):
    build('sieve(mesh=1)', mesh=9)


def test_build_says_where_there_are_no_keys():
  with pytest.raises(errors.SpecError, match="plain takes no keys, got 'mesh'"):
    build('plain(mesh=1)')


@pytest.mark.parametrize(
  'key, value, wanted',
  [
    ('mesh', '1.5', 'int'),
    ('mesh', 'True', 'int'),
    ('mesh', 'None', 'int'),
    ('mesh', "'2'", 'int'),
    ('rate', "'2.'", 'finite float'),
    ('rate', 'False', 'finite float'),
    ('rate', '1j', 'finite float'),
    ('limit', '1.', 'int or None'),
    ('sizes', '1', 'tuple'),
    ('wet', '1', 'bool'),
    ('kind', '1', 'str'),
  ],
)
def test_build_refuses_a_wrong_type(key, value, wanted):
  with pytest.raises(errors.SpecError) as caught:
    build(f'sieve({key}={value})')
  message = str(caught.value)
  assert f'{key} of sieve is {value}' in message
  assert message.endswith(f'it takes {wanted}')


@pytest.mark.parametrize('value', ['1e999', '-1e999'])
def test_build_refuses_infinity(value):
  with pytest.raises(errors.SpecError, match='rate of sieve is -?inf'):
    build(f'sieve(rate={value})')


def test_keys():
  assert list(specs.keys(Sieve, {'mesh'})) == [
    'rate',
    'limit',
    'sizes',
    'wet',
    'kind',
  ]


def test_register():
  registry = dict(REGISTRY)

  @dataclasses.dataclass(frozen=True)
  class Rake:
    teeth: int = 8

  specs.register('tool', registry, 'rake', Rake, object)
  assert specs.build('tool', registry, 'rake(teeth=9)') == Rake(9)
  # The same class again is no clash: a module may be loaded twice.
  specs.register('tool', registry, 'rake', Rake, object)
  with pytest.raises(errors.SpecError, match="tool 'rake' is registered"):
    specs.register('tool', registry, 'rake', Plain, object)
  assert registry['rake'] is Rake


@pytest.mark.parametrize('name', ['two words', '2nd', 'a-b', ''])
def test_register_refuses_a_name_that_no_spec_can_hold(name):
  registry = {}
  with pytest.raises(errors.SpecError, match='not an identifier') as caught:
    specs.register('tool', registry, name, Plain, object)
  assert repr(name) in str(caught.value)
  assert not registry


def test_errors_are_value_errors():
  assert issubclass(errors.LengenError, ValueError)
  for name, error in vars(errors).items():
    if isinstance(error, type) and error.__module__ == errors.__name__:
      assert issubclass(error, errors.LengenError), name


def test_module_of_a_spec(tmp_path, monkeypatch):
  monkeypatch.syspath_prepend(tmp_path)
  module = 'the_tools_of_a_user'
  (tmp_path / f'{module}.py').write_text(
    'from tests_registry import REGISTRY, Plain\nREGISTRY["theirs"] = Plain\n'
  )
  registry = types.SimpleNamespace(REGISTRY={}, Plain=Plain)
  monkeypatch.setitem(sys.modules, 'tests_registry', registry)
  built = specs.build('tool', registry.REGISTRY, f'{module}:theirs')
  assert built == Plain()
  with pytest.raises(errors.SpecError, match="tool 'their'; did you mean 'th"):
    specs.build('tool', registry.REGISTRY, f'{module}:their')


def test_module_that_cannot_be_imported(tmp_path, monkeypatch):
  monkeypatch.syspath_prepend(tmp_path)
  with pytest.raises(errors.SpecError, match="'nowhere'.*No module named"):
    build('nowhere:sieve')
  (tmp_path / 'broken_tools.py').write_text('1 / 0\n')
  with pytest.raises(errors.SpecError, match="'broken_tools'.*ZeroDivision"):
    build('broken_tools:sieve')


def test_a_colon_in_a_value_names_no_module():
  assert build("sieve(kind='a:b')").kind == 'a:b'


@dataclasses.dataclass(frozen=True)
class Gear:
  """A class with ranges of every form."""

  teeth: int = 8
  ratio: float = 0.5
  spare: int | None = None
  shape: str | None = 'round'
  size: int = dataclasses.field(default=2, metadata={'key': 'width'})

  ranges = {
    'teeth': 'even and >= 2',
    'ratio': '> 0 and <= 0.5',
    'spare': 'None or >= 1',
    'shape': ('round', 'flat', None),
    'width': '>= 1 and <= {0.teeth}',
  }


def test_values_in_range():
  specs.check_ranges(Gear())
  specs.check_ranges(Gear(teeth=2, spare=1, shape=None, size=1))


@pytest.mark.parametrize(
  'field, value, message',
  [
    ('teeth', 7, 'teeth of gear is 7; it must be even and >= 2'),
    ('teeth', 0, 'teeth of gear is 0'),
    ('teeth', None, 'teeth of gear is None'),
    ('ratio', 0.0, 'ratio of gear is 0.0; it must be > 0 and <= 0.5'),
    ('ratio', 0.6, 'ratio of gear is 0.6'),
    ('spare', 0, 'spare of gear is 0; it must be None or >= 1'),
    ('shape', 'rond', "unknown shape of gear 'rond'; did you mean 'round'"),
    ('size', 0, 'width of gear is 0'),
    ('size', 9, 'width of gear is 9; it must be >= 1 and <= 8'),
  ],
)
def test_values_out_of_range(field, value, message):
  with pytest.raises(errors.SpecError, match=message):
    specs.check_ranges(Gear(**{field: value}))
