"""Blocks of work: pure tasks run over keyed blocks, results taken in index order.

A block is a range of proposals (or chains) whose random streams are named by its first index, so a task's result
depends on the block alone and not on where or when it is run. Results are used in the order of the blocks, never in
the order of completion, which would favour fast simulations.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import chain, islice
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.engines.clock import InTime, OutOfTime
from onedraw.engines.threads import one_blas_thread
from onedraw.model.first_simulation import LOOKS
from onedraw.run.pool import Done, InProcess, WorkerPool, simulations_in
from onedraw.run.progress import Progress
from onedraw.run.signals import Stopped

Item = TypeVar("Item")
Result = TypeVar("Result")
AHEAD = 16
"""How far work may run ahead of the slowest: pieces of work per slot, or segments."""
SHARES = 3
"""Pieces of work per worker into which the rest of a round is divided."""
FOLLOWED = 2
"""The same if workers go on with other work behind it."""
FEWEST_SHARES = 4 / 3
"""The same if too many pieces were sent so far."""
PARTS = 8
"""Parts of blocks per worker in a round of which it is not known how long a simulation takes."""
SOME = 16
"""Blocks whose sizes say how long one takes before any is done."""
MOST_LOOKED_AT = 100_000
"""Blocks that are looked at to see whether the end of a round is near."""
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


def divided(blocks: Iterable[Any], size: int) -> tuple[list[Any], list[Any]]:
    """The first blocks, whose sizes add up to at least so much, and the others.

    >>> divided(cut(5, 2), 3)
    ([Block(first=0, size=2), Block(first=2, size=2)], [Block(first=4, size=1)])
    """
    every, first = list(blocks), 0
    while size > 0 and first < len(every):
        size -= every[first].size
        first += 1
    return every[:first], every[first:]


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
    lines = BlockLines(pool, deadline)
    last = lines.add(task, blocks, take)
    with progress:
        return lines.run(last)


class BlockLine(Generic[Item, Result]):
    """Blocks of one task that wait for their turn."""

    def __init__(self, task: Callable[[Item], Result], take: Callable[[Item, Result], bool], supply: "Supply[Item]"):
        self.task, self.take, self.supply = task, take, supply
        self.end: int | None = None
        """The ticket behind its last, once all of its blocks are sent."""


class BlockLines:
    """Lines of blocks, one behind the other: workers that find nothing left in one go on with the next.

    Results are taken in the order of the lines, and in the order of the blocks within each.
    """

    def __init__(self, pool: InProcess | WorkerPool, deadline: Deadline) -> None:
        self._pool, self._deadline = pool, deadline
        self._lines: deque[BlockLine[Any, Any]] = deque()
        """Those that are not used up."""
        self._supply: Supply[Any] | None = None
        """Of the last line."""
        self._sent: dict[int, tuple[BlockLine[Any, Any], list[Any]]] = {}
        self._ended: dict[int, Done] = {}
        self._turn = self._number = 0
        """The ticket whose results are used next, and that of the next piece of work."""
        self._used = self._simulations = 0
        self._out_of_time = False

    def add(
        self,
        task: Callable[[Item], Result],
        blocks: Iterable[Item],
        take: Callable[[Item, Result], bool],
        followed: bool = False,
        early: bool = False,
    ) -> BlockLine[Item, Result]:
        """A line behind the others.

        If it is `followed` by another, workers need not end together; `take` may have enough `early`.
        """
        self._supply = supply = Supply(self._pool, iter(blocks), self._deadline, followed, early, self._supply)
        line = BlockLine(self._deadline.limiting(task), take, supply)
        self._lines.append(line)
        return line

    def end(self) -> None:
        """Send nothing more, and take what workers have in hand."""
        self._lines.clear()
        if self._pool.remote:
            self.run(None)
        else:
            self._pool.drop()

    def run(self, last: BlockLine[Any, Any] | None) -> str:
        """Go on until a line, and so every line before it, is done; workers then go on with those behind it.

        Returns why it ended, as `in_order` does.
        """
        with one_blas_thread():
            try:
                return self._run(last)
            except Stopped as stopped:
                self._pool.drop(kill=True)
                return stopped.reason
            except OutOfTime:
                self._pool.drop(kill=True)
                return "max_seconds"

    def _run(self, last: BlockLine[Any, Any] | None) -> str:
        while True:
            self._send(self._pool.slots)
            if last is not None and last.end is not None and self._turn >= last.end:
                if self._pool.remote:
                    # What is asked for next may take long to decide.
                    self._send(AHEAD * self._pool.slots)
                return "done"
            if self._turn == self._number:
                return "max_seconds"
            done = self._pool.next()
            self._ended[done.ticket] = done
            line, group = self._sent[done.ticket]
            line.supply.took(group[: len(done.results)], done.seconds)
            while self._turn in self._ended:
                if self._take(self._ended.pop(self._turn)):
                    return "enough"

    def _send(self, most: int) -> None:
        """Hand out work until so many pieces are in flight."""
        pool = self._pool
        while self._lines and not self._out_of_time:
            if len(self._sent) - len(self._ended) >= most or self._number - self._turn >= AHEAD * pool.slots:
                return
            line = self._lines[0]
            group = line.supply.next_group()
            if not group:
                line.end = self._number
                self._lines.popleft()
            elif self._deadline.passed():
                self._out_of_time = True
            else:
                pool.submit(self._number, line.task, group)
                self._sent[self._number] = line, group
                self._number += 1

    def _take(self, done: Done) -> bool:
        """Take the results of the piece whose turn it is; whether they are enough."""
        pool, (line, group) = self._pool, self._sent.pop(done.ticket)
        self._turn += 1
        for place, (block, result) in enumerate(zip(group, done.results, strict=False)):
            self._used, self._simulations = self._used + 1, self._simulations + simulations_in([result])
            if line.take(block, result):
                rest = [*done.results[place + 1 :], *(one for other in self._ended.values() for one in other.results)]
                # Before the sum: `drop` adds to the surplus what it can count.
                lost = pool.drop()
                # What cannot be counted is taken to have cost as much as the blocks before it.
                pool.surplus += simulations_in(rest) + lost * len(group) * self._simulations // self._used
                return True
        if done.error is not None:
            pool.drop(kill=True)
            raise done.error
        return False


class Supply(Generic[Item]):
    """Blocks in groups, each a piece of work: as many as take a worker about as long as a piece should.

    How blocks are grouped depends on the clock; no number does, since each block has its own result.
    """

    def __init__(
        self,
        pool: InProcess | WorkerPool,
        blocks: Iterator[Item],
        deadline: Deadline,
        followed: bool = False,
        early: bool = False,
        before: "Supply[Any] | None" = None,
    ) -> None:
        self._pool, self._blocks, self._deadline = pool, blocks, deadline
        self._followed, self._early = followed, early
        self._waiting: deque[Item] = deque()
        """Blocks that were looked at to see whether the end is near."""
        self._done, self._seconds, self._largest = 0, 0.0, 1
        self._units: tuple[Any, int] = (None, 0)
        """The kind of the blocks, and how many steps or simulations were done."""
        self._before = before
        """Whose blocks say how long these may take, if they are of the same kind."""
        self._little: float | None = None
        """Seconds of work for each worker when the end came in sight."""
        self._most: float | None = None
        """Seconds of the largest pieces, if others follow."""

    def took(self, blocks: list[Item], seconds: float) -> None:
        """Note how long some blocks took in a worker."""
        self._done, self._seconds = self._done + len(blocks), self._seconds + seconds
        if blocks:
            self._units = type(blocks[0]), self._units[1] + sum(map(_units, blocks))
            self._before = None

    def next_group(self) -> list[Item]:
        """The blocks of the next piece; none at the end."""
        number = self._together()
        self._largest = max(self._largest, number)
        self._look(number)
        return [self._waiting.popleft() for _ in range(min(number, len(self._waiting)))]

    def _look(self, number: int) -> bool:
        """Whether there are at least so many blocks; as many are fetched, and no more."""
        self._waiting.extend(islice(self._blocks, max(0, number - len(self._waiting))))
        return len(self._waiting) >= number

    def _together(self) -> int:
        each, whole = self._each(), self._pool.piece
        if each is None:
            return 1
        wanted = whole
        if self._early:
            # Little beside what the run has taken so far, since the rest of a piece may turn out not to be needed.
            wanted = min(whole, max(self._deadline.seconds() / 8, whole / 2))
        if self._followed:
            # Workers go on with what follows: some pieces for each, of one size.
            if self._most is None:
                self._most = self._share(whole, each, FOLLOWED) or whole
            wanted = min(wanted, self._most)
        elif (share := self._share(2 * wanted, each, SHARES)) is not None:
            # Smaller and smaller, so that all workers end at about the same time.
            wanted = min(wanted, share)
        number = max(1, round(wanted / each))
        return number if self._done == 0 else min(4 * self._largest, number)

    def _share(self, wanted: float, each: float, pieces: int) -> float | None:
        """Seconds of one of a few pieces for each worker, if there is not work enough for such as are wanted."""
        # Fewer if too many were sent so far, more if few were.
        share = max(pieces / self._pool.longer, FEWEST_SHARES)
        if self._look(min(MOST_LOOKED_AT, math.ceil(share * self._pool.workers * wanted / each))):
            return None
        left = len(self._waiting) * each / self._pool.workers
        # Of little work each gets one piece.
        self._little = left if self._little is None else self._little
        return max(left / share, min(self._pool.least, self._little))

    def _each(self) -> float | None:
        """Seconds of one of the next blocks in a worker, by what was done of this line or, at first, before it."""
        if not self._pool.remote or not self._look(1):
            return None
        self._look(SOME)
        some = list(islice(self._waiting, SOME))
        unit = self.unit(type(some[0]))
        if unit is None and isinstance(some[0], BlockPart):
            unit = self._pool.each
        # The last part of a block may be small, and says little of the others.
        return None if unit is None else max(unit * sum(map(_units, some)) / len(some), 1e-9)

    def unit(self, kind: Any) -> float | None:
        """Seconds for one step or simulation of blocks of this kind, if that is known."""
        if self._done:
            return self._seconds / self._units[1] if self._units[0] is kind else None
        return None if self._before is None else self._before.unit(kind)


def _units(block: Any) -> int:
    """What a block has to do: steps of chains, or simulations."""
    return max(1, getattr(block, "size", 1) * max(1, getattr(block, "steps", 1)))


class BlockPart(NamedTuple):
    """Some rows of a block, from `first` on: simulations of it that have streams of their own."""

    first: int
    size: int
    block: Block


def parts_of(block: Block, size: int) -> list[BlockPart]:
    """A block in parts of at most this size.

    >>> [(part.first, part.size) for part in parts_of(Block(32, 8), 3)]
    [(32, 3), (35, 3), (38, 2)]
    """
    return [BlockPart(*one, block) for one in cut(block.first + block.size, size, block.first)]


def whole_of(item: Block | BlockPart) -> tuple[Block, Array]:
    """The block that an item is, or is a part of, and which of its rows."""
    block = item.block if isinstance(item, BlockPart) else item
    return block, item.first - block.first + np.arange(item.size)


def part_size(blocks: Sequence[Block], workers: int) -> int:
    """Simulations of a part of blocks of which it is not known how long one takes: some parts for every worker.

    None is larger than a block that a run begins with.

    >>> part_size([Block(0, 32), Block(32, 32)], 4), part_size([Block(0, 32)] * 999, 4)
    (2, 32)
    """
    share = sum(block.size for block in blocks[: PARTS * workers]) // (PARTS * workers)
    return max(LOOKS, min([share, *(block.size for block in blocks[:1])]))


def even_parts(blocks: Iterable[Block], most: int) -> Iterator[BlockPart]:
    """All parts of blocks, at most so large, and about as large as each other.

    >>> [(part.first, part.size) for part in even_parts([Block(0, 5), Block(5, 2)], 4)]
    [(0, 3), (3, 2), (5, 2)]
    """
    return (part for one in blocks for part in parts_of(one, math.ceil(one.size / math.ceil(one.size / most))))


def taking_parts(
    take: Callable[[Block, Result], bool],
    join: Callable[[Block, list[Result]], Result],
    count: Callable[[int], None] = lambda simulations: None,
) -> Callable[[BlockPart, Result], bool]:
    """A `take` for parts, which puts their results together; `count` hears of those whose block is not whole yet."""
    waiting: list[Result] = []

    def take_part(part: BlockPart, result: Result) -> bool:
        waiting.append(result)
        count(simulations_in([result]))
        if part.first + part.size < part.block.first + part.block.size:
            return False
        count(-simulations_in(waiting))
        whole = join(part.block, list(waiting))
        waiting.clear()
        return take(part.block, whole)

    return take_part


def in_parts(
    pool: InProcess | WorkerPool,
    blocks: Iterable[Block],
    take: Callable[[Block, Result], bool],
    join: Callable[[Block, list[Result]], Result],
) -> tuple[Iterator[Any], Callable[[Any, Result], bool]]:
    """Blocks in parts if the workers share them better so, and a `take` that puts their results together.

    A task that can simulate a part of a block draws the same numbers for it as in the whole.
    """
    blocks = iter(blocks)
    if not pool.remote:
        return blocks, take
    some: list[Block] = list(islice(blocks, PARTS * pool.workers)) if pool.each is None else []
    at_first = part_size(some, pool.workers)

    def most() -> int:
        """Of the next block: how long a simulation takes shows when the first are done."""
        return at_first if pool.each is None else max(1, int(pool.piece / 32 / max(pool.each, 1e-9)))

    def count(simulations: int) -> None:
        """In vain, unless the whole block is done before the run ends."""
        pool.surplus += simulations

    parts = chain.from_iterable(even_parts([block], most()) for block in chain(some, blocks))
    return parts, taking_parts(take, join, count)


def in_chain_blocks(
    pool: InProcess | WorkerPool,
    task: Callable[[Item], Result],
    blocks: int,
    item: Callable[[int, int, Result | None], Item | None],
    take: Callable[[list[Result], float], None],
    deadline: Deadline,
    took: Callable[[Result, float], None] = lambda result, seconds: None,
) -> str:
    """Run blocks of chains in segments: each begins where the one before it ended, and blocks do not wait for others.

    `item(block, segment, last)` is what the task gets for a segment, given the result of the segment before (None for
    the first), or None at the end of the block's chains. The results of a segment are handed to `take` in the order
    of the blocks once all are there, with the seconds that a block took on average; `took` sees each result and its
    seconds as soon as it is there. Returns "done" or "max_seconds"; Stopped if a signal came.
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
            while idle and busy < pool.few and idle[0][0] - first < AHEAD:
                segment, block = idle[0]
                piece = item(block, segment, last[block])
                if piece is None:
                    heappop(idle)
                    continue
                if goal is None and segment > 0 and deadline.passed():
                    goal = first if busy or ahead > first else first - 1
                if goal is not None and segment > goal:
                    break
                pool.submit(segment * blocks + block, task, [piece], segment)
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
                took(done.results[0], done.seconds)
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
