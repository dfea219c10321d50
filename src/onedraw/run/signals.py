"""Ctrl-C and SIGTERM during a run: the work in flight is dropped, what is done is kept.

A run asks for this with `guarded()` and says with `Guard.call` which work may be dropped. A signal during such work
ends it at once; one that comes at another moment (while results are added up or saved) is remembered and acted on
afterwards. A second signal ends the run at once.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

Result = TypeVar("Result")

REASONS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class Stopped(KeyboardInterrupt):
    """Work that ended early because of a signal or a time limit; `reason` is that of the Status.

    `partial` is what was done of it, for a plan that can use it.
    """

    def __init__(self, reason: str, partial: Any = None) -> None:
        super().__init__(reason)
        self.reason, self.partial = reason, partial


class Guard:
    """What signals have asked of this thread's run."""

    def __init__(self) -> None:
        self.asked = ""
        self.leaving = False
        self._droppable = False

    def call(self, work: Callable[[], Result]) -> Result:
        """The result of work that may be dropped; Stopped if it was."""
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


def current_guard() -> Guard:
    """The guard of this thread's run, or one that no signal reaches."""
    guard: Guard | None = getattr(_of_thread, "guard", None)
    return Guard() if guard is None else guard


@contextmanager
def guarded(terminate: bool) -> Iterator[Guard]:
    """A run's guard; with `terminate` SIGTERM is handled too, which a run with a file to save to asks for.

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
