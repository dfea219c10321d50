"""The time at which work in progress is given up: loops that may take long look at the clock in between.

Work is given a time limit by `in_time`, on whichever thread or machine it is done. The limit is one of wall-clock
time, which machines share. Work that is given up leaves nothing behind, so no number depends on the clock.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class _ThreadLimit(threading.local):
    """What a thread is doing. A default of the class is found faster than that nothing is there."""

    until: float | None = None


_of_thread = _ThreadLimit()


class OutOfTime(Exception):
    """Raised inside work whose time is up."""


def look() -> None:
    """OutOfTime if the time of the work that this thread does is up."""
    until = _of_thread.until
    if until is not None and time.time() > until:
        raise OutOfTime


def limited() -> bool:
    """Whether the work that this thread does has a time limit; it keeps it until it is done."""
    return _of_thread.until is not None


@dataclass(frozen=True, eq=False)
class InTime:
    """A task that is given up at a time, in seconds since the epoch."""

    task: Callable[[Any], Any]
    until: float

    def __call__(self, item: Any) -> Any:
        before = _of_thread.until
        _of_thread.until = self.until if before is None else min(before, self.until)
        try:
            look()
            return self.task(item)
        finally:
            _of_thread.until = before
