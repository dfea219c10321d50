"""How far a run is, where someone can see it: a bar, a line now and then, or a call of the user's function.

In a terminal it is rich's bar, once a run has lasted a second; in a notebook one output that replaces itself and is
empty at the end; in a log (standard error is no terminal) one plain line every 30 seconds, so that short runs leave no
trace. Under pytest there is nothing unless it is asked for.
"""

import inspect
import os
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple

from onedraw import markup

QUIET_SECONDS = 1.0
"""How long a run lasts before a terminal or a notebook shows anything."""
LOG_SECONDS = 30.0
"""Seconds between lines in a log, and before the first."""
LINE_SECONDS = 0.5
BAR_SECONDS = 0.1
CALL_SECONDS = 0.1
"""The least time between two calls of a user's function, the first and the last excepted."""


class Tick(NamedTuple):
    """What a function given as `progress=` receives: how far one part of a run is.

    >>> Tick("rejection", 300, 1000, "draws", 2.0, "0.01 accepted", 150.0).left
    4.666666666666667
    """

    label: str
    """The part of the run: "pilot", "starting points", or the algorithm."""
    done: int
    total: int | None
    """None where it is not known."""
    unit: str
    seconds: float
    """Since this part began, in this session."""
    note: str
    """Acceptance rate, tolerance: what the algorithm says of itself."""
    speed: float | None
    """Units a second in this session; None where nothing was done yet."""
    simulations: int | None = None
    """Simulations made so far, where the unit is another."""
    simulation_speed: float | None = None
    """Simulations a second in this session."""

    @property
    def left(self) -> float | None:
        """Seconds that the rest will take at this speed; None where that is not known."""
        if self.total is None or not self.speed:
            return None
        return max(0, self.total - self.done) / self.speed

    def __str__(self) -> str:
        share = "" if not self.total else f" of {self.total:,} ({100 * self.done / self.total:.0f} %)"
        parts = [f"{self.done:,}{share} {self.unit}".rstrip(), self.pace()]
        if self.left is not None:
            parts.append(f"{clock(self.left)} left")
        return f"{self.label}: {', '.join(part for part in (*parts, self.note) if part)}"

    def pace(self) -> str:
        """Simulations a second where they are counted, otherwise units."""
        if self.simulation_speed:
            return f"{number(self.simulation_speed)} simulations/s"
        return f"{number(self.speed)} {self.unit}/s".replace(" /", "/") if self.speed else ""


Show = bool | None | Callable[[Tick], Any]
"""What `progress=` may be."""


class Progress:
    """Shows `done` of `total` (unknown when None) while it is used as a context.

    `show` is True, False, None (only where somebody looks: not under pytest), or a function that receives a `Tick`.
    """

    def __init__(self, show: Show, label: str, total: int | None, unit: str = "") -> None:
        if not (show is None or isinstance(show, bool) or _takes_one(show)):
            raise ValueError(f"progress must be True, False or None, or a function of one argument, got {show!r}")
        self.asked: Any = show
        self.label, self.total, self.unit = label, total, unit
        self._way = _way(show)
        self._began = time.perf_counter()
        self._first: tuple[int, int | None, float] | None = None
        self._last: Tick | None = None
        self._due = 0.0 if self._way == "call" else self._began + (LOG_SECONDS if self._way == "log" else QUIET_SECONDS)
        """When something is to be shown next."""
        self._bar: Any = None
        self._task: Any = None
        self._output: Any = None

    def due(self) -> bool:
        """Whether an update would be of use; it takes longer to make one than a quick simulation."""
        if self._way == "none":
            return False
        return self._first is None or self._way == "call" or time.perf_counter() >= self._due

    def update(self, done: int, note: str = "", simulations: int | None = None) -> None:
        """Say how far the run is; `simulations` where `done` counts something else."""
        if self._way == "none":
            return
        now = time.perf_counter()
        if self._first is None:
            # A run that goes on begins with what its file holds, which says nothing about speed.
            known = done and now - self._began < CALL_SECONDS
            self._first = (done, simulations, now) if known else (0, 0, self._began)
        tick = self._tick(done, note, simulations, now)
        if now < self._due:
            self._last = tick
        elif self._way == "call":
            self._call(tick, now)
        elif self._way == "bar":
            self._due, self._last = now + BAR_SECONDS, None
            self._show_bar(tick)
        else:
            self._due = now + (LOG_SECONDS if self._way == "log" else LINE_SECONDS)
            self._tell(tick)

    def _tick(self, done: int, note: str, simulations: int | None, now: float) -> Tick:
        assert self._first is not None
        before, simulated, since = self._first

        def speed(count: int | None, then: int | None) -> float | None:
            return (count - (then or 0)) / (now - since) if count and count > (then or 0) and now > since else None

        return Tick(
            self.label, done, self.total, self.unit, now - self._began, note, speed(done, before), simulations,
            speed(simulations, simulated),
        )  # fmt: skip

    def _call(self, tick: Tick, now: float) -> None:
        self._due, self._last = now + CALL_SECONDS, None
        self.asked(tick)

    def _tell(self, tick: Tick) -> None:
        if self._way == "log":
            print(tick, file=sys.stderr, flush=True)
        else:
            self._show_output(str(tick), markup.progress(str(tick), tick.done, tick.total))

    def _show_output(self, text: str, html: str) -> None:
        """Show this in a notebook in place of what was shown before."""
        from IPython.display import display

        output = {"text/plain": text, "text/html": html}
        if self._output is None:
            self._output = display(output, raw=True, display_id=True)
        else:
            self._output.update(output, raw=True)

    def _show_bar(self, tick: Tick) -> None:
        if self._bar is None:
            self._start()
        left = "" if tick.left is None else f"{clock(tick.left)} left"
        fields = {"count": _count(tick), "pace": tick.pace(), "left": left, "note": tick.note}
        self._bar.update(self._task, completed=tick.done, **fields)

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar
        from rich.table import Column

        def text(field: str) -> TextColumn:
            # Notes may hold a user's words: they are text and no markup.
            return TextColumn("{task." + field + "}", markup=False, table_column=Column(no_wrap=True))

        fields = ("count", "pace", "left", "note")
        self._bar = Bar(
            text("description"),
            BarColumn(bar_width=24),
            *(text(f"fields[{field}]") for field in fields),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task(self.label, total=self.total, **dict.fromkeys(fields, ""))
        self._bar.start()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            if self._last is not None:
                self._show_bar(self._last)
            self._bar.stop()
        if self._output is not None:
            self._show_output("", "")
        if self._way == "call" and self._last is not None and kind is None:
            self._call(self._last, time.perf_counter())


def _way(show: Show) -> str:
    """How to show a run: "none", "call", "bar", "notebook" or "log"."""
    if callable(show):
        return "call"
    if show is False or (show is None and "PYTEST_CURRENT_TEST" in os.environ):
        return "none"
    if _in_notebook():
        return "notebook"
    return "bar" if sys.stderr is not None and sys.stderr.isatty() else "none" if sys.stderr is None else "log"


def _takes_one(show: Any) -> bool:
    """Whether this can be called with one argument, as far as can be known."""
    if not callable(show) or isinstance(show, type):
        return False
    try:
        inspect.signature(show).bind(None)
    except TypeError:
        return False
    except ValueError:
        # Functions of compiled modules need not say what they take.
        pass
    return True


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and "ipykernel" in sys.modules and hasattr(shell, "kernel")


def _count(tick: Tick) -> str:
    total = "" if tick.total is None else f"/{tick.total:,}"
    return f"{tick.done:,}{total} {tick.unit}".rstrip()


def number(value: float) -> str:
    """A speed in three figures.

    >>> number(3.14159), number(1234567.0)
    ('3.14', '1,230,000')
    """
    if value < 100:
        return f"{value:.3g}"
    return f"{float(f'{value:.3g}'):,.0f}"


def clock(seconds: float) -> str:
    """Seconds as hours, minutes and seconds.

    >>> clock(59.6), clock(3725), clock(200_000)
    ('1:00', '1:02:05', '2 d 7 h')
    """
    whole = round(seconds)
    if whole >= 86_400:
        return f"{whole // 86_400} d {whole % 86_400 // 3600} h"
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
