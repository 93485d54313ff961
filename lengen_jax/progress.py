"""Progress of long computations: a bar on a terminal, lines in a log."""

import sys
import time

import rich.console
import rich.progress

_PLAIN_SECONDS = 10


class Progress:
  """Shows completed steps, rate and remaining time.

  On a terminal it draws a bar; otherwise it prints a line every 10 s.
  """

  def __init__(
    self,
    label: str,
    total: int,
    *,
    what: str = 'step',
    unit: str,
    per: float = 1,
    first: int = 0,
  ) -> None:
    """Starts the clock.

    Lines start with `label`. `total` includes the `first` steps completed
    before a resume. `what` names a step. The rate is in `unit` per second, for
    example 'tokens'. A step has `per` units.
    """
    self._label, self._total, self._what = label, total, what
    self._unit, self._per, self._first = unit, per, first
    self._console = rich.console.Console(file=sys.stdout, highlight=False)
    self._live = self._console.is_terminal
    self._began = self._printed = time.monotonic()
    self._bar = rich.progress.Progress(
      rich.progress.TextColumn('{task.description}', markup=False),
      rich.progress.BarColumn(),
      rich.progress.TextColumn('{task.fields[text]}', markup=False),
      console=self._console,
      disable=not self._live,
      transient=True,
    )
    self._task = self._bar.add_task(
      label, total=total, completed=first, text=''
    )

  def __enter__(self) -> 'Progress':
    self._bar.start()
    return self

  def __exit__(self, *exception: object) -> None:
    self._bar.stop()

  def announce(self, text: str) -> None:
    """Prints a line."""
    self._console.print(f'{self._label}: {text}', markup=False)

  def start_clock(self) -> None:
    """Restarts the clock of the rate."""
    self._began = time.monotonic()

  def update(self, done: int, text: str = '') -> None:
    """Shows the number of completed steps and an optional text."""
    now = time.monotonic()
    rate = (done - self._first) / max(now - self._began, 1e-9)
    left = (self._total - done) / max(rate, 1e-9)
    text = (
      f'{self._what} {done:,}/{self._total:,}  {text}{"  " * bool(text)}'
      f'{rate * self._per:,.0f} {self._unit}/s  {_clock(left)} left'
    )
    if self._live:
      self._bar.update(self._task, completed=done, text=text)
    elif done == self._total or now - self._printed >= _PLAIN_SECONDS:
      self._printed = now
      print(f'{self._label}: {text}', flush=True)


def _clock(seconds: float) -> str:
  minutes, rest = divmod(int(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  if hours:
    return f'{hours}:{minutes:02}:{rest:02}'
  return f'{minutes}:{rest:02}'
