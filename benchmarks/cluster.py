"""A cluster in virtual time: the real code of a run, with workers, scheduler and clock that are simulated.

The run hands its pieces of work to an executor, as always. Each piece is done at once, in this process; the seconds
that its simulators say they take, `spend`, and the scheduler's time for it are added up in a model of the cluster, and
the run sees its results in the order in which they would have come. So a minute shows hours of a thousand workers.

The scheduler is one server: a piece takes it `piece_seconds` on its way out and back together. The run's own process
takes no time, unless `own_time` adds what it really takes.
"""

import heapq
import math
import queue
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor, Future
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace
from unittest.mock import patch

from onedraw.engines import clock as clock_module
from onedraw.run import blocks as blocks_module
from onedraw.run import pool as pool_module

PIECE_SECONDS = 0.002
"""Seconds that a piece of work costs the run's process and Dask's scheduler, if each has a core (docs/scaling.md)."""


class Cluster(Executor):
    """Workers in virtual time; as an executor of a run inside `virtual`."""

    def __init__(self, workers: int, piece_seconds: float = PIECE_SECONDS, own_time: bool = False) -> None:
        self._max_workers = workers
        self.piece_seconds, self.own_time = piece_seconds, own_time
        self.now = 0.0
        self.pieces = 0
        self.busy = 0.0
        """Seconds of the scheduler."""
        self.worked = 0.0
        """Seconds of all workers."""
        self.away = 0.0
        """Virtual seconds of the piece that is being done."""
        self._idle, self._queue = workers, deque()
        self._events, self._number = [], count()
        self._scheduler_free = 0.0
        self._real = time.process_time()

    # --- the clock ---------------------------------------------------------------------------------------------

    def clock(self) -> float:
        """Seconds, as the run or the worker sees them."""
        return self.now + self.away

    def _catch_up(self) -> None:
        """Add the time that the run's process has really taken since the last call."""
        real = time.process_time()
        if self.own_time:
            self.now += real - self._real
        self._real = real

    # --- the executor ------------------------------------------------------------------------------------------

    def submit(self, function, /, *args, **kwargs):
        self._catch_up()
        future = Piece(self)
        before, self.away = self.away, 0.0
        future.outcome = function(*args, **kwargs)
        future.seconds, self.away = self.away, before
        self._real = time.process_time()
        self.pieces += 1
        self._at(self.now, "arrives", future)
        return future

    def shutdown(self, wait=True, *, cancel_futures=False):
        pass

    def _at(self, when: float, what: str, future: "Piece") -> None:
        heapq.heappush(self._events, (when, next(self._number), what, future))

    def step(self) -> bool:
        """Let the next thing happen; False if nothing is under way."""
        if not self._events:
            return False
        when, _, what, future = heapq.heappop(self._events)
        if what in ("arrives", "returns"):
            begins = max(when, self._scheduler_free)
            self._scheduler_free = begins + self.piece_seconds / 2
            self.busy += self.piece_seconds / 2
            self._at(self._scheduler_free, {"arrives": "waits", "returns": "home"}[what], future)
        elif what == "waits":
            self._queue.append(future)
        elif what == "ends":
            self._idle += 1
            self._at(when, "returns", future)
        elif what == "home":
            self.now = max(self.now, when)
            future.set_result(future.outcome)
        while self._idle and self._queue:
            one = self._queue.popleft()
            if one.set_running_or_notify_cancel():
                self._idle -= 1
                self.worked += one.seconds
                self._at(when + one.seconds, "ends", one)
        return True


_here: list[Cluster] = []


def spend(seconds: float) -> None:
    """In a simulator: take this long. A function of this module, since models are sent to workers by value."""
    _here[-1].away += seconds


class Piece(Future):
    """A piece of work in virtual time."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self.cluster, self.outcome, self.seconds = cluster, None, 0.0

    def result(self, timeout=None):
        until = math.inf if timeout is None else self.cluster.now + timeout
        while not self.done() and self.cluster._events and self.cluster._events[0][0] <= until:
            self.cluster.step()
        if not self.done():
            raise CancelledError
        return super().result(0)


class VirtualQueue:
    """What has come home; waiting for more lets the cluster go on."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._items = cluster, deque()

    def put(self, item) -> None:
        self._items.append(item)

    def get(self, timeout=None):
        self._cluster._catch_up()
        while not self._items:
            if not self._cluster.step():
                raise queue.Empty
        return self._items.popleft()


@contextmanager
def virtual(cluster: Cluster) -> Iterator[Cluster]:
    """Runs in here see the cluster's clock."""
    clock = SimpleNamespace(perf_counter=cluster.clock, monotonic=cluster.clock, time=cluster.clock, sleep=spend)
    queues = SimpleNamespace(SimpleQueue=lambda: VirtualQueue(cluster), Empty=queue.Empty)
    with (
        patch.object(pool_module, "time", clock),
        patch.object(blocks_module, "time", clock),
        patch.object(clock_module, "time", clock),
        patch.object(pool_module, "queue", queues),
    ):
        _here.append(cluster)
        try:
            yield cluster
        finally:
            _here.remove(cluster)
