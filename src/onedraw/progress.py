"""A progress bar for long runs: rich's, in a terminal, once a run has lasted a second."""

import sys
import time
from types import TracebackType
from typing import Any

QUIET_SECONDS = 1.0


class Progress:
    """Shows `done` of `total` (unknown when None) while it is used as a context.

    `show` is True, False, or None: then a bar appears only where standard error is a terminal.
    """

    def __init__(self, show: bool | None, label: str, total: int | None, unit: str = "") -> None:
        if not (show is None or isinstance(show, bool)):
            raise ValueError(f"progress must be True, False or None, got {show!r}")
        self.asked = show
        self.show = sys.stderr.isatty() if show is None else show
        self.label, self.total, self.unit = label, total, unit
        self._began = time.perf_counter()
        self._bar: Any = None
        self._task: Any = None

    def update(self, done: int, note: str = "") -> None:
        """Say how far the run is."""
        if not self.show:
            return
        if self._bar is None:
            if time.perf_counter() - self._began < QUIET_SECONDS:
                return
            self._start()
        self._bar.update(self._task, completed=done, note=note)

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as Bar

        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(self.unit),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task(self.label, total=self.total, note="")
        self._bar.start()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
