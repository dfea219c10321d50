"""Blocks of work: pure tasks run over keyed blocks, results taken in index order.

A block is a range of proposals (or chains) whose random streams are named by its first index, so a task's result
depends on the block alone and not on where or when it is run. Results are used in the order of the blocks, never in
the order of completion, which would favour fast simulations.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar

from onedraw.engine.signals import Stopped, current
from onedraw.progress import Progress

Result = TypeVar("Result")


class Block(NamedTuple):
    """`size` consecutive proposals or chains, the first of them having index `first`."""

    first: int
    size: int


def cut(total: int | None, size: int, first: int = 0) -> Iterator[Block]:
    """Blocks of at most `size` from `first` up to `total`, or without end.

    >>> list(cut(5, 2))
    [Block(first=0, size=2), Block(first=2, size=2), Block(first=4, size=1)]
    """
    while total is None or first < total:
        yield Block(first, size if total is None else min(size, total - first))
        first += size


class Deadline:
    """A wall-clock limit that starts when it is made."""

    def __init__(self, max_seconds: float | None) -> None:
        self.began = time.perf_counter()
        self.max_seconds = max_seconds

    def seconds(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.began

    def passed(self) -> bool:
        """Whether the limit is over."""
        return self.max_seconds is not None and self.seconds() >= self.max_seconds


def one_blas_thread() -> AbstractContextManager[object]:
    """Simulations run with one BLAS thread: a matrix product may differ in its last bits between one and two."""
    limits: AbstractContextManager[object] = _thread_pools(len(sys.modules)).limit(limits=1)
    return limits


@lru_cache(maxsize=1)
def _thread_pools(modules: int) -> Any:
    """The BLAS libraries in this process; looked for again (3 ms) only where modules were imported since."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def in_order(
    task: Callable[[Block], Result],
    blocks: Iterable[Block],
    take: Callable[[Block, Result], bool],
    deadline: Deadline,
    progress: Progress,
) -> str:
    """Run the task over the blocks and hand each result to `take`, in order, until it says that it has enough.

    Returns why it stopped: "enough", "done" (no block is left), "max_seconds", or "interrupted" or "terminated" (by
    Ctrl-C or SIGTERM; the block then in flight is dropped).
    """
    guard = current()
    with one_blas_thread(), progress:
        try:
            for block in blocks:
                if deadline.passed():
                    return "max_seconds"
                if take(block, guard.call(partial(task, block))):
                    return "enough"
        except Stopped as stopped:
            return stopped.reason
    return "done"
