"""Blocks of work: pure tasks run over keyed blocks, results taken in index order.

A block is a range of proposals (or chains) whose random streams are named by its first index, so a task's result
depends on the block alone and not on where or when it is run. Results are used in the order of the blocks, never in
the order of completion, which would favour fast simulations.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple, TypeVar

from onedraw.engines.threads import one_blas_thread
from onedraw.run.pool import Crew, Done, Here, current
from onedraw.run.progress import Progress
from onedraw.run.signals import Stopped

Item = TypeVar("Item")
Result = TypeVar("Result")
AHEAD = 16
"""How far work may run ahead of the slowest, in pieces of work a slot or in legs."""


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


def in_order(
    task: Callable[[Item], Result],
    blocks: Iterable[Item],
    take: Callable[[Item, Result], bool],
    deadline: Deadline,
    progress: Progress,
) -> str:
    """Run the task over the blocks and hand each result to `take`, in order, until it says that it has enough.

    Blocks go to the crew of this run, a few together where they are short; a slow one does not keep the others
    waiting, only their results. Returns why it stopped: "enough", "done" (no block is left), "max_seconds", or
    "interrupted" or "terminated" (by Ctrl-C or SIGTERM; what was then in flight is dropped).
    """
    crew = current()
    with one_blas_thread(), progress:
        try:
            return _in_order(crew, task, iter(blocks), take, deadline)
        except Stopped as stopped:
            crew.drop(kill=True)
            return stopped.reason


def _in_order(
    crew: Here | Crew,
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
        while not reason and len(sent) - len(ended) < crew.slots and number - turn < AHEAD * crew.slots:
            group = list(islice(blocks, together))
            if not group or deadline.passed():
                reason = "max_seconds" if group else "done"
                break
            crew.submit(number, task, group)
            sent[number] = group
            number += 1
        if turn == number:
            return reason
        done = crew.next()
        ended[done.ticket] = done
        if crew.remote:
            together = _sized(done, len(sent[done.ticket]), crew.piece, deadline.seconds() / (8 * crew.slots))
        while turn in ended:
            done, group = ended.pop(turn), sent.pop(turn)
            turn += 1
            for place, (block, result) in enumerate(zip(group, done.results, strict=False)):
                used, simulations = used + 1, simulations + int(getattr(result, "simulations", 0))
                if take(block, result):
                    rest = [*done.results[place + 1 :], *(one for other in ended.values() for one in other.results)]
                    # Before the sum: `drop` adds to the surplus what it can count.
                    lost = crew.drop()
                    crew.surplus += sum(int(getattr(one, "simulations", 0)) for one in rest)
                    # What cannot be counted is put down as the blocks before it.
                    crew.surplus += lost * len(group) * simulations // used
                    return "enough"
            if done.error is not None:
                crew.drop(kill=True)
                raise done.error


def _sized(done: Done, blocks: int, piece: float, share: float) -> int:
    """Blocks to send together: about `piece` seconds of work, and little against what the run has taken so far."""
    wanted = min(piece, max(share, piece / 10))
    return max(1, min(4 * blocks, int(wanted * blocks / max(done.seconds, 1e-9))))


def in_lanes(
    crew: Here | Crew,
    task: Callable[[Item], Result],
    lanes: int,
    item: Callable[[int, int, Result | None], Item | None],
    take: Callable[[list[Result], float], None],
    deadline: Deadline,
) -> str:
    """Run lanes of legs: a leg begins where the one before it in its lane ended, and lanes do not wait for each other.

    `item(lane, leg, last)` is what the task gets for a leg, given the result of the leg before (None for the first),
    or None where the lane is at its end. The results of a leg are handed to `take` in the order of the lanes, once
    all of them are there, with the seconds that a lane took on average. Returns "done" or "max_seconds"; Stopped where
    a signal came.
    """
    waiting: dict[int, dict[int, Done]] = {}
    """By leg, what lanes have done that is not taken yet."""
    first = 0
    """The first leg that is not taken yet."""
    at = [0] * lanes
    """The next leg of each lane."""
    last: list[Result | None] = [None] * lanes
    idle, busy = set(range(lanes)), 0
    goal: int | None = None
    """Where time is up: the leg that the lanes behind still complete."""
    try:
        while True:
            # Those behind go first; none goes so far ahead that an interruption would waste much.
            for lane in sorted(idle, key=at.__getitem__):
                if busy >= crew.slots or at[lane] - first >= AHEAD:
                    break
                piece = item(lane, at[lane], last[lane])
                if piece is None:
                    idle.discard(lane)
                    continue
                if goal is None and at[lane] > 0 and deadline.passed():
                    goal = first if busy or max(at) > first else first - 1
                if goal is not None and at[lane] > goal:
                    break
                crew.submit(at[lane] * lanes + lane, task, [piece])
                idle.discard(lane)
                busy += 1
            if busy == 0:
                return "done" if goal is None or not idle else "max_seconds"
            done = crew.next()
            busy -= 1
            leg, lane = divmod(done.ticket, lanes)
            waiting.setdefault(leg, {})[lane] = done
            if done.error is None:
                last[lane] = done.results[0]
                at[lane] += 1
                idle.add(lane)
            while len(waiting.get(first, ())) == lanes:
                whole = [waiting[first][one] for one in range(lanes)]
                for one in whole:
                    if one.error is not None:
                        raise one.error
                take([one.results[0] for one in whole], sum(one.seconds for one in whole) / lanes)
                del waiting[first]
                first += 1
    finally:
        lost = [one for leg in waiting.values() for done in leg.values() for one in done.results]
        crew.surplus += sum(int(getattr(one, "simulations", 0)) for one in lost)
        if busy:
            crew.drop(kill=True)
