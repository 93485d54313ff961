"""Tests `docs/draw.py`: the pictures on record are those that it draws."""

import re
from xml.etree import ElementTree

import pytest

from docs import draw

# A picture is alike if its numbers are: sums of floats differ by machine.
_NUMBER = re.compile(r'-?\d+\.?\d*')
_TOLERANCE = 0.2


@pytest.fixture(scope='module')
def drawn(tmp_path_factory):
  return {path.name: path for path in draw.draw(tmp_path_factory.mktemp('a'))}


def test_pictures_are_as_drawn(drawn):
  there = {path.name: path for path in draw.PICTURES.glob('*.svg')}
  assert there.keys() == drawn.keys(), 'python -m docs.draw'
  for name, path in drawn.items():
    old, new = (file.read_text() for file in (there[name], path))
    assert _alike(old, new), f'{name}: python -m docs.draw'


def test_pictures_are_whole(drawn):
  for path in drawn.values():
    root = ElementTree.parse(path).getroot()
    width, height = (float(root.get(key)) for key in ('width', 'height'))
    for text in root.iter('{http://www.w3.org/2000/svg}text'):
      assert 0 < float(text.get('x')) < width
      assert 0 < float(text.get('y')) < height


def test_every_picture_is_shown(drawn):
  pages = ''.join(
    page.read_text() for page in draw.PICTURES.parent.glob('*.md')
  )
  for name in drawn:
    assert f'](pictures/{name})' in pages


def test_a_difference_is_seen():
  assert _alike('<a x="10.1"/>', '<a x="10.2"/>')
  assert not _alike('<a x="10.1"/>', '<a x="11"/>')
  assert not _alike('<a x="10"/>', '<b x="10"/>')


def _alike(one, other):
  if _NUMBER.sub('', one) != _NUMBER.sub('', other):
    return False
  pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
  return all(abs(float(a) - float(b)) <= _TOLERANCE for a, b in pairs)
