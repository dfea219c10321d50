"""The first simulation of a run, inspected before the others are run.

It is one of the run's own simulations, so it costs nothing and changes no number. The run ends here if the code cannot
run at any parameters, or if the first two simulations do not have the form of the data or raise a TypeError or
AttributeError. A listener
(`listening`) is told how long it took and, in this process, whether the same random stream gives the same data: a quick
simulation is repeated for that.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from onedraw.failures import SimulationError, in_words, told
from onedraw.model.layout import WrongForm

MISWRITTEN = (NameError, ImportError)
"""Errors that a simulator raises whatever the parameters are."""
MISTAKES = (TypeError, AttributeError)
"""Errors that it most probably raises whatever the parameters are: two of them in a row end the run."""
LOOKS = 2
"""Simulations, at different parameters if there are several, whose form is checked."""
QUICK = 10.0
"""Simulations that take longer, in seconds, are not repeated."""


class _ThreadLooks(threading.local):
    """What a thread knows of its run."""

    first = False
    listener: "Listener | None" = None


_of_thread = _ThreadLooks()


class FirstSimulation(NamedTuple):
    """What the first simulation of a run has shown."""

    theta: dict[str, float | int]
    seconds: float
    """For one simulation; of several that were made together, the mean."""
    together: int
    """How many were made together."""
    used_rng: bool
    same: bool | None
    """Whether the same stream gives the same data; None if that was not tried."""
    failed: str
    """Why it failed; "" if it did not."""
    workers: int = 1
    """How many simulate at the same time."""


class Listener(NamedTuple):
    """The function to call with the first simulation, and how many simulations may be repeated for it."""

    tell: Callable[[FirstSimulation], None]
    repeat: int = 1


@contextmanager
def listening(tell: Callable[[FirstSimulation], None], repeat: int = 1) -> Iterator[None]:
    """In here, `tell` is called with the first simulation of each run that this thread makes itself."""
    before = _of_thread.listener
    _of_thread.listener = Listener(tell, repeat)
    try:
        yield
    finally:
        _of_thread.listener = before


@dataclass(frozen=True, eq=False)
class LooksAtFirst:
    """The task of a run's first round, in which the first simulation of the first item is inspected.

    With `workers`, one of them runs it, and what it has shown comes back with its outcome.
    """

    task: Callable[[Any], Any]
    workers: int | None = None

    def __call__(self, item: Any) -> Any:
        _of_thread.first = getattr(item, "first", None) == 0
        try:
            return self._told(item) if _of_thread.first and self.workers is not None else self.task(item)
        finally:
            _of_thread.first = False

    def _told(self, item: Any) -> Any:
        assert self.workers is not None
        heard: list[FirstSimulation] = []
        with listening(heard.append, repeat=0):
            outcome = self.task(item)
        return outcome._replace(first=heard[0]._replace(workers=self.workers)) if heard else outcome


def is_first() -> bool:
    """Whether the next simulation is the first of its run; asked a second time, it is not."""
    first = _of_thread.first
    _of_thread.first = False
    return first


def listener() -> Listener | None:
    """The listener of this thread."""
    return _of_thread.listener


def left_to_look_at(left: int, error: BaseException | None, theta: dict[str, float | int], word: str) -> int:
    """How many simulations are still to be inspected, after one that has raised `error` or nothing.

    A SimulationError if every other simulation would fail as well. If the form of the data is wrong, or there is
    one of the MISTAKES, the next one decides: it may be so at some parameters only.
    """
    if isinstance(error, WrongForm):
        if left == 1:
            raise SimulationError(
                f"the first simulations failed: at {in_words(theta)} the {word} {error}. Return data in the same form "
                "as the observed data, or NaN in place of numbers that cannot be simulated"
            ) from error
        return left - 1
    if isinstance(error, MISTAKES) and left > 1:
        return left - 1
    if isinstance(error, MISWRITTEN + MISTAKES):
        raise SimulationError(f"the first simulation failed at {in_words(theta)}: {told(error)}") from error
    return 0
