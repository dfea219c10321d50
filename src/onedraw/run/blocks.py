"""Blocks of work: pure tasks run over keyed blocks, results taken in index order.

A block is a range of proposals (or chains) whose random streams are named by its first index, so a task's result
depends on the block alone and not on where or when it is run. Results are used in the order of the blocks, never in
the order of completion, which would favour fast simulations.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import NamedTuple, TypeVar

from onedraw.engines.clock import InTime, OutOfTime
from onedraw.engines.threads import one_blas_thread
from onedraw.run.pool import Done, InProcess, WorkerPool, simulations_in
from onedraw.run.progress import Progress
from onedraw.run.signals import Stopped

Item = TypeVar("Item")
Result = TypeVar("Result")
AHEAD = 16
"""How far work may run ahead of the slowest: pieces of work per slot, or segments."""
GRACE = 1.0
"""Seconds after a time limit that work in progress still has; then it is given up and lost."""


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

    def limiting(self, task: Callable[[Item], Result]) -> Callable[[Item], Result]:
        """The task, given up a little after the limit: where a single piece takes long, blocks alone are too coarse."""
        if self.max_seconds is None:
            return task
        return InTime(task, time.time() + self.max_seconds - self.seconds() + GRACE)


def in_order(
    pool: InProcess | WorkerPool,
    task: Callable[[Item], Result],
    blocks: Iterable[Item],
    take: Callable[[Item, Result], bool],
    deadline: Deadline,
    progress: Progress,
) -> str:
    """Run the task over the blocks and hand each result to `take`, in order, until it says that it has enough.

    Blocks go to the worker pool of this run, short ones several at a time; a slow one does not keep the others
    waiting, only their results. Returns why it stopped: "enough", "done" (no block is left), "max_seconds", or
    "interrupted" or "terminated" (by Ctrl-C or SIGTERM; work in flight is then dropped).
    """
    with one_blas_thread(), progress:
        try:
            return _in_order(pool, deadline.limiting(task), iter(blocks), take, deadline)
        except Stopped as stopped:
            pool.drop(kill=True)
            return stopped.reason
        except OutOfTime:
            pool.drop(kill=True)
            return "max_seconds"


def _in_order(
    pool: InProcess | WorkerPool,
    task: Callable[[Item], Result],
    blocks: Iterator[Item],
    take: Callable[[Item, Result], bool],
    deadline: Deadline,
) -> str:
    sent: dict[int, list[Item]] = {}
    ended: dict[int, Done] = {}
    turn = number = 0
    """The ticket whose results are used next, and that of the next piece of work."""
    together = 1
    reason = ""
    used = simulations = 0
    while True:
        while not reason and len(sent) - len(ended) < pool.slots and number - turn < AHEAD * pool.slots:
            group = list(islice(blocks, together))
            if not group or deadline.passed():
                reason = "max_seconds" if group else "done"
                break
            pool.submit(number, task, group)
            sent[number] = group
            number += 1
        if turn == number:
            return reason
        done = pool.next()
        ended[done.ticket] = done
        if pool.remote:
            together = _sized(done, len(sent[done.ticket]), pool.piece, deadline.seconds() / (8 * pool.slots))
        while turn in ended:
            done, group = ended.pop(turn), sent.pop(turn)
            turn += 1
            for place, (block, result) in enumerate(zip(group, done.results, strict=False)):
                used, simulations = used + 1, simulations + simulations_in([result])
                if take(block, result):
                    rest = [*done.results[place + 1 :], *(one for other in ended.values() for one in other.results)]
                    # Before the sum: `drop` adds to the surplus what it can count.
                    lost = pool.drop()
                    # What cannot be counted is taken to have cost as much as the blocks before it.
                    pool.surplus += simulations_in(rest) + lost * len(group) * simulations // used
                    return "enough"
            if done.error is not None:
                pool.drop(kill=True)
                raise done.error


def _sized(done: Done, blocks: int, piece: float, share: float) -> int:
    """Blocks to send together: about `piece` seconds of work, and little against what the run has taken so far."""
    wanted = min(piece, max(share, piece / 10))
    return max(1, min(4 * blocks, int(wanted * blocks / max(done.seconds, 1e-9))))


def in_chain_blocks(
    pool: InProcess | WorkerPool,
    task: Callable[[Item], Result],
    blocks: int,
    item: Callable[[int, int, Result | None], Item | None],
    take: Callable[[list[Result], float], None],
    deadline: Deadline,
) -> str:
    """Run blocks of chains in segments: each begins where the one before it ended, and blocks do not wait for others.

    `item(block, segment, last)` is what the task gets for a segment, given the result of the segment before (None for
    the first), or None at the end of the block's chains. The results of a segment are handed to `take` in the order
    of the blocks once all are there, with the seconds that a block took on average. Returns "done" or "max_seconds";
    Stopped if a signal came.
    """
    task = deadline.limiting(task)
    waiting: dict[int, dict[int, Done]] = {}
    """By segment, what blocks have done that is not taken yet."""
    first = 0
    """The first segment that is not taken yet."""
    last: list[Result | None] = [None] * blocks
    idle, busy = [(0, block) for block in range(blocks)], 0
    """A heap of (next segment, block), so that those behind go first; and how many are not in it."""
    ahead = 0
    """The furthest segment that any block has come to."""
    goal: int | None = None
    """When time is up: the segment that the blocks behind still complete."""
    try:
        while True:
            # None goes so far ahead that an interruption would waste much.
            while idle and busy < pool.slots and idle[0][0] - first < AHEAD:
                segment, block = idle[0]
                piece = item(block, segment, last[block])
                if piece is None:
                    heappop(idle)
                    continue
                if goal is None and segment > 0 and deadline.passed():
                    goal = first if busy or ahead > first else first - 1
                if goal is not None and segment > goal:
                    break
                pool.submit(segment * blocks + block, task, [piece])
                heappop(idle)
                busy += 1
            if busy == 0:
                return "done" if goal is None or not idle else "max_seconds"
            done = pool.next()
            busy -= 1
            if isinstance(done.error, OutOfTime):
                raise done.error
            segment, block = divmod(done.ticket, blocks)
            waiting.setdefault(segment, {})[block] = done
            if done.error is None:
                last[block] = done.results[0]
                heappush(idle, (segment + 1, block))
                ahead = max(ahead, segment + 1)
            while len(waiting.get(first, ())) == blocks:
                whole = [waiting[first][one] for one in range(blocks)]
                for one in whole:
                    if one.error is not None:
                        raise one.error
                take([one.results[0] for one in whole], sum(one.seconds for one in whole) / blocks)
                del waiting[first]
                first += 1
    except OutOfTime:
        return "max_seconds"
    finally:
        pool.surplus += simulations_in(
            one for some in waiting.values() for done in some.values() for one in done.results
        )
        if busy:
            pool.drop(kill=True)
