"""Tests `lengen_jax/analysis/menu.py`, and that what it tells is so."""

import re

from flax import linen as nn
import jax
import jax.numpy as jnp
import pytest

from lengen_jax import encodings, positions, testing
from lengen_jax.analysis import menu
from lengen_jax.attention import scaling
from lengen_jax.positions import contextual


@pytest.fixture(scope='module')
def shown():
  with pytest.MonkeyPatch.context() as patch:
    lines = []
    patch.setattr(
      menu.rich.console.Console,
      'print',
      lambda self, *args: lines.append(_text(self, *args)),
    )
    menu.show()
  return '\n'.join(lines)


def _text(console, *args):
  return ''.join(segment.text for a in args for segment in console.render(a))


def entry(shown, name, title=''):
  """What is shown of one entry of the list with a title, on one line."""
  shown = shown[shown.index(title) :]
  match = re.search(rf'\n  {name} +(\S.*?)(?=\n  \S|\n\S|\Z)', shown, re.S)
  return ' '.join(match[1].split())


@pytest.mark.parametrize(
  'title, registry',
  [
    ('encodings', encodings.ENCODINGS),
    ('position schemes', positions.SCHEMES),
    ('contextual position schemes', contextual.CONTEXTUAL),
    ('logit scales', scaling.SCALES),
  ],
)
def test_every_entry_is_shown(shown, title, registry):
  for name, cls in registry.items():
    text = entry(shown, name, title)
    assert text.startswith(' '.join(cls.formula.split())), name
    assert 'decoding needs: ' in text, name
    assert name in ('standard', 'none') or 'source: ' in text, name


def test_data_is_shown(shown):
  assert 'c4/en:3.1.0' in entry(shown, 'c4')
  assert "variant='raw'" in entry(shown, 'wikitext103')
  assert 'scrolls/qasper:1.0.0' in entry(shown, 'scrolls/qasper')
  assert 'super_glue/wsc.fixed:1.0.2' in entry(shown, 'super_glue/wsc')
  assert 'ILSVRC2012' in entry(shown, 'imagenet')


def test_tasks_of_ruler_are_shown(shown):
  title = 'tasks of lengen eval --tasks'
  assert 'in prose; keys are words' in entry(shown, 'niah_single_3', title)
  assert 'ten most common words' in entry(shown, 'cwe', title)


def test_facts(shown):
  assert 'translation invariant: no' in entry(shown, 'fire')
  assert 'translation invariant: yes' in entry(shown, 'longrope')
  assert 'positions: integers only' in entry(shown, 'shaw')
  assert 'positions:' not in entry(shown, 'alibi')
  assert 'at test time: drawn again' in entry(shown, 'randomized')
  assert "draw='sequence'" in entry(shown, 'randomized')
  assert 'values: fractional' in entry(shown, 'cape')
  assert 'init=1.0' in entry(shown, 'ssmax')
  assert 'bias_init=0.0' in entry(shown, 'forget')
  assert 'num_heads' not in shown


@pytest.mark.parametrize('name', sorted(encodings.ENCODINGS))
def test_parameters_are_those_that_there_are(name):
  spec = testing.ENCODING_SPECS.get(name, name)
  spec = {'linear': 'linear(learned=True)'}.get(name, spec)
  encoding = encodings.create(spec, num_heads=4, head_dim=8, width=8)
  shapes = jax.eval_shape(
    lambda: encoding.init(jax.random.key(0), method='bias_fn')
  )
  assert made(shapes) == told(encoding.parameters)


@pytest.mark.parametrize('name', contextual.CONTEXTUAL)
def test_parameters_of_contextual_schemes(name):
  scheme = contextual.create(name, num_heads=4, width=16)
  if not scheme.is_none:
    shapes = jax.eval_shape(
      scheme.init, jax.random.key(0), jnp.ones((1, 3, 16))
    )
    assert made(shapes) == told(scheme.parameters)


def made(shapes):
  """Paths of parameters."""
  return {
    '/'.join(re.sub(r'\d+$', 'i', entry.key) for entry in path)
    for path, _ in jax.tree.leaves_with_path(nn.unbox(shapes).get('params', {}))
  }


def told(parameters):
  """Paths of parameters in a text."""
  return {*re.findall(r'([a-z_]+(?:/[a-z]+)?)(?= \[| likewise)', parameters)}


@pytest.mark.parametrize('name', sorted(encodings.ENCODINGS))
def test_what_decoding_needs_of_encodings(name):
  spec = testing.ENCODING_SPECS.get(name, name)
  cls = encodings.ENCODINGS[name]
  encoding = encodings.create(spec, num_heads=4, head_dim=8, width=8)
  if encoding.length_dependent:
    assert cls.at_decoding.startswith('the planned length')
  else:
    assert cls.at_decoding.startswith('nothing')


@pytest.mark.parametrize('spec', testing.scheme_specs())
def test_what_decoding_needs_of_schemes(spec):
  """Positions at test time that go by the length need a plan."""
  scheme = positions.create(spec)
  index = jnp.arange(16)[None]
  seen = {'tokens': index, 'roles': index[None]}
  one, other = (
    scheme(index, lengths=jnp.full((1, 1), n), rng=jax.random.key(0), **seen)
    for n in (8, 16)
  )
  differ = jax.tree.map(lambda a, b: bool((a != b).any()), one, other)
  assert any(jax.tree.leaves(differ)) == (
    'planned length' in scheme.at_decoding
  )


@pytest.mark.parametrize('spec', testing.scheme_specs())
def test_test_time_is_as_stated(spec):
  scheme = positions.create(spec)
  index, lengths = jnp.arange(12)[None], jnp.full((1, 1), 12)
  seen = {'lengths': lengths, 'tokens': index, 'roles': index[None]}
  drawn = [
    jax.tree.leaves(scheme(index, rng=jax.random.key(n), **seen))[0]
    for n in range(2)
  ]
  again = bool((drawn[0] != drawn[1]).any())
  assert again == scheme.test_time.startswith('drawn again')
  plain = bool((drawn[0].reshape(1, 12) == index).all())
  assert plain == (scheme.test_time.split(';')[0] == 'i' or spec == 'standard')
  assert plain == scheme.standard_at_test
