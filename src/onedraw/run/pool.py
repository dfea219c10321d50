"""Who does the work: this process, or the workers of any executor.

A crew takes pieces of work (a pure task and a few items) under a ticket and hands back what they gave, in whatever
order they end; `engine.blocks` puts them in order. Executors do the rest: loky for `workers=N`, or one of the user's.
What is added here is what a run must be able to rely on: one BLAS thread, work of dead workers done again with the
same streams, and an error instead of an endless wait.
"""

import hashlib
import os
import queue
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from onedraw.arguments import whole_number
from onedraw.engines.children import end_children, isolated, packed
from onedraw.engines.threads import one_blas_thread
from onedraw.run.signals import current as current_guard

PATIENCE = 300.0
"""Seconds in which nothing runs and nothing ends, after which a run gives up waiting. Set it higher to wait longer."""
PIECE_SECONDS = 0.2
"""About how long a piece of work should take that is sent to a worker: sending it costs about a millisecond."""
DEATHS = 3
"""Workers that one piece of work may cost before its simulations are run in processes of their own."""
LAST_WAIT = 1.0
"""Seconds that work nobody needs any more is waited for, so that it can be counted."""
TASKS_KEPT = 4
"""Tasks that a worker keeps unpacked."""


class WorkerError(RuntimeError):
    """The workers of a run were lost or do nothing; what the run had done is in its file, if it has one.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> pool = ThreadPoolExecutor(2)
    >>> pool.shutdown()
    >>> od.rejection(model, od.uniform(0.5), draws=10, seed=1, executor=pool)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    onedraw.run.pool.WorkerError: ...
    """


class Done(NamedTuple):
    """A finished piece of work."""

    ticket: int
    results: list[Any]
    """One for each item, or fewer where one of them failed."""
    error: BaseException | None
    seconds: float
    """What the work took where it was done."""


class Here:
    """This process: work is done when its result is asked for."""

    slots = 1
    """Pieces of work that may be in flight."""
    piece = PIECE_SECONDS
    """About how long a piece of work should take."""
    remote = False
    surplus = 0

    def __init__(self) -> None:
        self._queue: list[tuple[int, Callable[[Any], Any], Sequence[Any]]] = []

    def submit(self, ticket: int, task: Callable[[Any], Any], items: Sequence[Any]) -> None:
        """Take a piece of work."""
        self._queue.append((ticket, task, items))

    def next(self) -> Done:
        """Do the next piece; Stopped where a signal came."""
        ticket, task, items = self._queue.pop(0)
        began = time.perf_counter()
        call = current_guard().call
        results = [call(partial(task, item)) for item in items]
        return Done(ticket, results, None, time.perf_counter() - began)

    def drop(self, kill: bool = False) -> int:
        """Forget what was not done; how many pieces of work that were begun are lost uncounted."""
        self._queue = []
        return 0


class Crew:
    """The workers of an executor."""

    remote = True

    def __init__(self, executor: Any, renew: Callable[[], Any] | None = None) -> None:
        self._executor, self._renew = executor, renew
        self._client: Any = None
        if not isinstance(executor, Executor):
            self._client = executor
            self._executor = executor.get_executor(pure=False)
        self._shared = isinstance(self._executor, ThreadPoolExecutor)
        self._packed: tuple[Any, bytes, bytes] | None = None
        self._work: dict[int, tuple[Callable[[Any], Any], Sequence[Any]]] = {}
        self._flight: dict[int, Future[Any]] = {}
        self._ended: queue.SimpleQueue[tuple[int, Future[Any]]] = queue.SimpleQueue()
        self._suspects: list[int] = []
        """Work in flight when a worker died, to be run alone until it is known whose fault it was."""
        self._waiting: list[int] = []
        self._deaths: dict[int, int] = {}
        self._careful = False
        self._lively = time.monotonic()
        self._workers, self._counted = 1, -1.0
        self.surplus = 0
        """Simulations done again after a death."""

    @property
    def workers(self) -> int:
        """Workers at this moment: a Dask cluster may grow and shrink."""
        if time.monotonic() - self._counted > 2.0:
            self._workers, self._counted = max(1, self._count()), time.monotonic()
        return self._workers

    def _count(self) -> int:
        if self._client is not None:
            return sum(self._client.nthreads().values())
        for name in ("_max_workers", "num_workers"):
            number = getattr(self._executor, name, None)
            if isinstance(number, int):
                return number
        return os.cpu_count() or 1

    @property
    def slots(self) -> int:
        """Two pieces a worker, so that none waits for us."""
        return 2 * self.workers

    @property
    def piece(self) -> float:
        """About how long a piece of work should take: one process hands out all of them, so more for many workers."""
        return PIECE_SECONDS * max(1.0, self.workers / 20)

    def submit(self, ticket: int, task: Callable[[Any], Any], items: Sequence[Any]) -> None:
        """Take a piece of work."""
        self._work[ticket] = (task, items)
        if self._suspects:
            self._waiting.append(ticket)
        else:
            self._send(ticket)

    def _send(self, ticket: int) -> None:
        task, items = self._work[ticket]
        # Code that has killed workers will do so again: from then on all simulations run in processes of their own.
        self._careful = alone = self._careful or self._deaths.get(ticket, 0) >= DEATHS
        if self._shared:
            call = partial(_run, task, list(items), alone)
        else:
            digest, body = self._pack(task)
            call = partial(_unpack_and_run, digest, body, packed(list(items)), alone)
        try:
            future = self._executor.submit(call)
        except BrokenExecutor as error:
            future = Future()
            future.set_exception(error)
        except RuntimeError as error:
            raise WorkerError(f"the executor takes no more work ({error}): give one that is not shut down") from error
        self._flight[ticket] = future
        future.add_done_callback(partial(_note, self._ended, ticket))

    def _pack(self, task: Callable[[Any], Any]) -> tuple[bytes, bytes]:
        """The task as bytes, made once: workers unpack it once, too."""
        if self._packed is None or self._packed[0] is not task:
            body = packed(task)
            self._packed = (task, hashlib.sha256(body).digest(), body)
        return self._packed[1:]

    def next(self) -> Done:
        """Wait for a piece of work to end."""
        while True:
            ticket, future = current_guard().call(self._wait)
            if self._flight.get(ticket) is not future:
                continue
            del self._flight[ticket]
            try:
                results, error, seconds = future.result()
            except (BrokenExecutor, CancelledError) as broken:
                self._worker_died(ticket, broken)
                continue
            except Exception as other:
                if type(other).__name__ != "KilledWorker":
                    raise
                # Dask has tried it on several workers already. The rest would go the same way, so it is sent again.
                self._deaths[ticket] = max(DEATHS, self._deaths.get(ticket, 0) + 1)
                self._give_up_on(ticket, other)
                rest, self._flight = self._flight, {}
                for future in rest.values():
                    future.cancel()
                for one in (ticket, *rest):
                    self._send(one)
                continue
            self._work.pop(ticket)
            if self._deaths.pop(ticket, 0):
                self.surplus += sum(int(getattr(result, "simulations", 0)) for result in results)
            if ticket in self._suspects:
                self._suspects.remove(ticket)
                self._send_suspect()
            return Done(ticket, results, error, seconds)

    def _wait(self) -> tuple[int, Future[Any]]:
        while True:
            try:
                ended = self._ended.get(timeout=min(1.0, PATIENCE / 4))
                self._lively = time.monotonic()
                return ended
            except queue.Empty:
                self._look_for_life()

    def _look_for_life(self) -> None:
        if self._client is None:
            busy = any(future.running() for future in self._flight.values())
        else:
            busy = self._client.status == "running" and any(self._client.processing().values())
        if busy:
            self._lively = time.monotonic()
        elif time.monotonic() - self._lively > PATIENCE:
            raise WorkerError(
                f"nothing has run on the {'Dask cluster' if self._client is not None else 'executor'} for "
                f"{PATIENCE:.0f} s, with {len(self._flight)} pieces of work sent to it: look whether its workers are "
                "alive (and wait for them to start, as with client.wait_for_workers(1)). What was done is saved where "
                "the run has a store; the same call goes on from there"
            )

    def _worker_died(self, ticket: int, error: BaseException) -> None:
        """One dead worker fails all work in flight: who was to blame shows when each is run alone."""
        if self._renew is None and self._client is None:
            raise WorkerError(
                f"the executor is broken ({type(error).__name__}: {error}): a worker died and it cannot replace it. "
                "What was done is saved where the run has a store; the same call with a new executor, or with "
                "workers=N, goes on from there"
            ) from error
        flying = sorted({ticket, *self._flight})
        if len(flying) == 1:
            self._deaths[ticket] = self._deaths.get(ticket, 0) + 1
            self._give_up_on(ticket, error)
        for one in flying:
            self._deaths.setdefault(one, 0)
        self._flight.clear()
        self._suspects = sorted({*self._suspects, *flying})
        if self._renew is not None:
            self._executor = self._renew()
        self._send_suspect()

    def _give_up_on(self, ticket: int, error: BaseException) -> None:
        """Stop where work kills its workers even with each simulation in a process of its own."""
        if self._deaths[ticket] > 2 * DEATHS:
            items = self._work[ticket][1]
            raise WorkerError(
                f"the work on {_place(items)} has killed {self._deaths[ticket]} workers in a row ({error}), the last "
                "of them with each simulation in a process of its own: look at the memory that it needs. What was "
                "done before is saved where the run has a store"
            ) from error

    def _send_suspect(self) -> None:
        if self._suspects:
            if not self._flight:
                self._send(self._suspects[0])
            return
        waiting, self._waiting = self._waiting, []
        for ticket in waiting:
            self._send(ticket)

    def drop(self, kill: bool = False) -> int:
        """Forget all work; how many pieces that were begun are lost uncounted.

        Work that runs is given a moment to end, unless `kill` asks for no delay.
        """
        running = {ticket: future for ticket, future in self._flight.items() if not future.cancel()}
        give_up = time.monotonic() + (0.0 if kill else LAST_WAIT)
        lost = 0
        for future in running.values():
            try:
                results, _, _ = future.result(timeout=max(0.0, give_up - time.monotonic()))
                self.surplus += sum(int(getattr(result, "simulations", 0)) for result in results)
            except (Exception, CancelledError):
                lost += 1
        if lost and self._renew is not None:
            # Long work nobody waits for would keep the workers from the next one.
            self._executor.shutdown(wait=False, kill_workers=True)
            self._executor = self._renew()
        self._work, self._flight, self._suspects, self._waiting, self._deaths = {}, {}, [], [], {}
        self._ended = queue.SimpleQueue()
        return lost

    def dismiss(self) -> None:
        """Send the workers home; what they are at ends without them being waited for."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def _place(items: Sequence[Any]) -> str:
    """Where in a run some items are, in words."""
    blocks = [item if hasattr(item, "first") else getattr(item, "block", None) for item in items]
    known = [block for block in blocks if block is not None]
    if not known:
        return f"{len(items)} blocks"
    return f"chains or proposals {known[0].first} to {known[-1].first + known[-1].size - 1}"


def _note(ended: "queue.SimpleQueue[tuple[int, Future[Any]]]", ticket: int, future: "Future[Any]") -> None:
    ended.put((ticket, future))


_tasks: "OrderedDict[bytes, Callable[[Any], Any]]" = OrderedDict()
_tasks_lock = threading.Lock()


def _unpack_and_run(digest: bytes, body: bytes, items: bytes, alone: bool) -> tuple[list[Any], Any, float]:
    """In a worker: the task, unpacked once, on each of the items."""
    import pickle

    with _tasks_lock:
        task = _tasks.pop(digest, None)
        task = pickle.loads(body) if task is None else task
        _tasks[digest] = task
        while len(_tasks) > TASKS_KEPT:
            _tasks.popitem(last=False)
    return _run(task, pickle.loads(items), alone)


def _run(task: Callable[[Any], Any], items: list[Any], alone: bool) -> tuple[list[Any], Any, float]:
    began = time.perf_counter()
    results = []
    error: Exception | None = None
    with one_blas_thread(), isolated(alone):
        for item in items:
            try:
                results.append(task(item))
            except Exception as raised:
                error = _sendable(raised)
                break
    return results, error, time.perf_counter() - began


def _sendable(error: Exception) -> Exception:
    """An exception that survives the way back, with its traceback as a note."""
    import pickle

    where = "".join(traceback.format_exception(error))
    try:
        again = pickle.loads(packed(error))
        if type(again) is not type(error):
            raise TypeError
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(f"In the worker:\n{where}")
    return error


def _ignore_interrupts() -> None:
    """Ctrl-C reaches every process of a terminal; the run itself decides what it means."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)


_pools: dict[int, Any] = {}
_pools_lock = threading.Lock()
IDLE_SECONDS = 120
"""Workers of `workers=N` end after so long without work; until then the next run finds them warm."""


def _pool(workers: int, renew: bool = False) -> Any:
    """The loky pool of so many workers, which runs share."""
    import loky

    with _pools_lock:
        pool = _pools.get(workers)
        if pool is None or renew or pool._flags.broken is not None or pool._flags.shutdown:
            if pool is not None:
                pool.shutdown(wait=False, kill_workers=True)
            pool = _pools[workers] = loky.ProcessPoolExecutor(
                workers, timeout=IDLE_SECONDS, initializer=_ignore_interrupts
            )
        return pool


_of_thread = threading.local()


def current() -> Here | Crew:
    """The crew of this thread's run; this process where there is none."""
    crew: Here | Crew | None = getattr(_of_thread, "crew", None)
    return Here() if crew is None else crew


@contextmanager
def hired(workers: Any, executor: Any, threads: bool = False) -> Iterator[Here | Crew]:
    """The crew of a run: `workers=N` of loky, or the user's executor; a run inside another run shares its crew.

    With `threads`, workers are threads of this process: for work that lets go of Python's lock.
    """
    crew = _crew(workers, executor, threads)
    before = getattr(_of_thread, "crew", None)
    if before is not None and workers is None and executor is None:
        yield before
        return
    _of_thread.crew = crew
    try:
        yield crew
    except BaseException:
        crew.drop(kill=True)
        raise
    finally:
        _of_thread.crew = before
        if threads and isinstance(crew, Crew) and executor is None:
            crew.dismiss()
        if before is None:
            end_children()


def _crew(workers: Any, executor: Any, threads: bool) -> Here | Crew:
    if executor is not None:
        if workers is not None:
            raise ValueError("give workers= or executor=, not both: an executor has its own number of workers")
        if not isinstance(executor, Executor) and not hasattr(executor, "get_executor"):
            raise ValueError(
                f"executor must be a concurrent.futures.Executor or a dask.distributed.Client, got {executor!r}"
            )
        return Crew(executor)
    if workers is None:
        return Here()
    number = whole_number("workers", workers, "the number of workers that simulate side by side")
    if number == 1:
        return Here()
    return Crew(ThreadPoolExecutor(number)) if threads else Crew(_pool(number), partial(_pool, number, renew=True))
