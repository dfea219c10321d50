"""Ctrl-C and SIGTERM during a run: the work in flight is dropped, what is done is kept.

A run asks for this with `guarded()` and says with `Guard.call` which work may be dropped. A signal that comes then
ends that work at once; one that comes at any other moment (while results are added up or saved) is remembered and
looked at afterwards. A second signal leaves at once, wherever the run is.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

Result = TypeVar("Result")

REASONS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class Stopped(KeyboardInterrupt):
    """Work that was dropped because of a signal; `reason` is that of the Status."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Guard:
    """What signals have asked of the run of this thread."""

    def __init__(self) -> None:
        self.asked = ""
        self.leaving = False
        self._droppable = False

    def call(self, work: Callable[[], Result]) -> Result:
        """The result of work that may be dropped; Stopped where it was."""
        if self.asked:
            raise Stopped(self.asked)
        try:
            self._droppable = True
            result = work()
            self._droppable = False
        except KeyboardInterrupt:
            self._droppable = False
            if self.leaving:
                raise
            self.asked = self.asked or "interrupted"
            raise Stopped(self.asked) from None
        return result

    def handle(self, number: int, frame: FrameType | None) -> None:
        """A signal's handler."""
        if self.asked:
            self.leaving = True
            if number == signal.SIGTERM:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGTERM)
            raise KeyboardInterrupt
        self.asked = REASONS[signal.Signals(number)]
        if self._droppable:
            raise KeyboardInterrupt


_of_thread = threading.local()


def current() -> Guard:
    """The guard of this thread's run, or one that no signal reaches."""
    guard: Guard | None = getattr(_of_thread, "guard", None)
    return Guard() if guard is None else guard


@contextmanager
def guarded(terminate: bool) -> Iterator[Guard]:
    """A run's guard; SIGTERM is taken too where `terminate`, which is where there is a file to save to.

    Only Python's own handlers are replaced, and only in the main thread, where signals arrive; a handler of the
    user's stays. A run inside another run shares its guard.
    """
    if getattr(_of_thread, "guard", None) is not None:
        yield _of_thread.guard
        return
    guard = _of_thread.guard = Guard()
    before = {}
    try:
        if threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                before[signal.SIGINT] = signal.signal(signal.SIGINT, guard.handle)
            if terminate and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                before[signal.SIGTERM] = signal.signal(signal.SIGTERM, guard.handle)
        yield guard
    finally:
        _of_thread.guard = None
        for number, handler in before.items():
            signal.signal(number, handler)
