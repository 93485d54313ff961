"""Tests reports in a browser: what is drawn, on a phone and in the dark."""

import html
import json
import re
import shutil
import subprocess

from matplotlib import pyplot as plt
import numpy as np
import pytest

from lengen_jax.analysis import plots, report, sweep_report
from tests.analysis import made_up

BROWSER = next(
  filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'chrome'))),
  None,
)
pytestmark = [
  pytest.mark.slow,
  pytest.mark.skipif(BROWSER is None, reason='no chromium is installed'),
]
QUIET = (
  '--headless',
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
  '--hide-scrollbars',
)
DARK = '--blink-settings=preferredColorScheme=0'
NARROW, WIDE = 360, 1280
LONG = (
  "rope(base=5e5) | randomized(max_position=4096, draw='batch', test='even')"
)
# More than there are colours.
RUNS = ('fire', LONG, 'rope', 'nope', 'ntk', 'yarn', 'alibi', 'learned(x=64)')


@pytest.fixture(scope='module')
def page(tmp_path_factory):
  """A page whose runs have long names, and many lengths."""
  folder = tmp_path_factory.mktemp('report')
  results = made_up.results(RUNS)
  report.write(results, folder)
  return (folder / 'report.html').read_text()


def browse(folder, *arguments):
  """Runs the browser; returns what it prints."""
  profile = f'--user-data-dir={folder / "profile"}'
  return subprocess.run(
    [BROWSER, *QUIET, profile, *arguments],
    capture_output=True,
    check=True,
    text=True,
    timeout=120,
  ).stdout


def measure(page, folder, script, *arguments, width=WIDE):
  """What a function body gives of a page, opened in a window of a width.

  Args:
    page: its text.
    folder: for what the browser leaves.
    script: JavaScript that sees the page as `page` and its window as `view`.
    *arguments: of the browser.
    width: of the window, pixels; a frame's, as browsers' own have a least one.
  """
  file = folder / 'framed.html'
  file.write_text(
    f'<iframe width={width} height=900 style="border:0" '
    f'srcdoc="{html.escape(page)}"></iframe><pre id=found></pre><script>'
    'onload = () => { const view = frames[0], page = view.document; '
    'document.getElementById("found").textContent = '
    f'JSON.stringify((() => {{ {script} }})()) }}</script>'
  )
  dom = browse(folder, *arguments, '--dump-dom', file.as_uri())
  found = re.search('<pre id="found">(.*?)</pre>', dom, re.S)[1]
  return json.loads(html.unescape(found))


def sweep_page(folder):
  results = made_up.sweep_results(RUNS, {LONG: 99.0})
  sweep_report.write(results, folder)
  return (folder / 'report.html').read_text()


@pytest.mark.parametrize('kind', ['comparison', 'sweep'])
def test_nothing_is_wider_than_a_phone(page, tmp_path, kind):
  if kind == 'sweep':
    page = sweep_page(tmp_path)
  script = (
    'page.querySelector("details").open = true;'
    'const right = (e) => e.getBoundingClientRect().right;'
    'return [view.innerWidth, page.documentElement.scrollWidth,'
    '[...page.querySelectorAll("figure, p, h1, h2, h3, pre, form")].map(right),'
    '[...page.querySelectorAll(".scroll")].map('
    '  (e) => [right(e), e.scrollWidth > e.clientWidth])]'
  )
  width, scrolled, blocks, boxes = measure(page, tmp_path, script, width=NARROW)
  assert width == scrolled == NARROW
  assert max(blocks) <= NARROW and max(right for right, _ in boxes) <= NARROW
  # Tables scroll within.
  assert any(within for _, within in boxes)


def test_a_box_hides_and_shows_the_curves_of_its_run(page, tmp_path):
  script = (
    'const shown = () => [...page.querySelectorAll("[data-run]")].filter('
    '  (e) => view.getComputedStyle(e).display != "none"'
    ').map((e) => Number(e.dataset.run));'
    'const found = [shown()];'
    'const label = page.querySelector("label:has(#run-1)");'
    'label.click(); found.push(shown());'
    'page.querySelector("#run-0").click(); found.push(shown());'
    'page.querySelector("button").click(); found.push(shown());'
    'return found'
  )
  everything, less, few, again = measure(page, tmp_path, script)
  # Two figures, and a section for the biases.
  assert [everything.count(n) for n in range(len(RUNS))] == [3, *[2] * 7]
  assert less == [n for n in everything if n != 1]
  assert few == [n for n in everything if n > 1]
  assert again == everything


CURVES = (
  '[...page.querySelectorAll("g[data-run] path")].map('
  '  (e) => view.getComputedStyle(e).stroke)'
)


@pytest.mark.parametrize('scheme', [(), (DARK,)], ids=['light', 'dark'])
def test_everything_stands_out_from_the_paper(page, tmp_path, scheme):
  script = (
    'const of = (e, name) => view.getComputedStyle(e)[name];'
    'const all = (css) => [...page.querySelectorAll(css)];'
    'return [of(page.body, "backgroundColor"),'
    'all("h1, h2, p, figcaption, th, td, a, summary, b, i, small").map('
    '  (e) => of(e, "color")),'
    f'all("svg text").map((e) => of(e, "fill")), {CURVES}]'
  )
  paper, words, numbers, curves = measure(page, tmp_path, script, *scheme)
  assert (luminance(paper) < 0.1) == bool(scheme)
  for color in {*words, *numbers}:
    assert contrast(color, paper) >= 4.5, color
  assert len({*curves}) == len(plots.COLORS)
  for color in {*curves}:
    assert contrast(color, paper) >= 3, color


def test_curves_are_painted(page, tmp_path):
  (tmp_path / 'page.html').write_text(page)
  picture = tmp_path / 'page.png'
  browse(
    tmp_path,
    f'--screenshot={picture}',
    f'--window-size={WIDE},900',
    (tmp_path / 'page.html').as_uri(),
  )
  pixels = np.round(255 * plt.imread(picture)[..., :3]).astype(int)
  painted = {*map(tuple, pixels.reshape(-1, 3).tolist())}
  curves = measure(page, tmp_path, f'return {CURVES}')
  assert {rgb(color) for color in curves} <= painted


def rgb(color):
  """'rgb(1, 2, 3)' as numbers."""
  return tuple(map(int, re.findall('[0-9]+', color)))


def luminance(color):
  """Relative luminance, as the W3C's WCAG 2.2 has it."""
  linear = [
    c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
    for c in (one / 255 for one in rgb(color))
  ]
  return float(np.dot((0.2126, 0.7152, 0.0722), linear))


def contrast(one, other):
  low, high = sorted(map(luminance, (one, other)))
  return (high + 0.05) / (low + 0.05)
