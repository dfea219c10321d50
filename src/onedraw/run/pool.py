"""The worker pool of a run: this process, or the workers of any executor.

A pool takes pieces of work (a pure task and a few items) under a ticket and hands back their results in the order in
which they end; `run.blocks` sorts them. Executors do the rest: loky for `workers=N`, or one of the user's. Added here
is what a run must be able to rely on: one BLAS thread, work of dead workers done again with the same streams, and an
error instead of an endless wait.
"""

import hashlib
import math
import os
import queue
import sys
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

from onedraw.arguments import whole_number
from onedraw.engines.children import Family, family_of_run, isolated, packed, working_for
from onedraw.engines.lifetimes import end_with_parent, end_with_run, line
from onedraw.engines.threads import one_blas_thread
from onedraw.failures import FAULTS, SimulationError, told
from onedraw.run.job_array import JobArray
from onedraw.run.signals import current_guard

PATIENCE = 300.0
"""Seconds without any activity after which a run gives up waiting. Set it higher to wait longer."""
PIECE_SECONDS = 0.2
"""About how long a worker should take for a piece of work: sending it costs about a millisecond."""
PIECES_PER_SECOND = 45
"""That one process hands out, however many workers there are: their pieces take longer. 50 are the most that are wanted
on the whole."""
MOST_LONGER = 2.5
"""How many times as long pieces are at most if more than that were handed out so far, as at the ends of rounds; and how
many times as short the smallest are if fewer were."""
QUEUED_SECONDS = 10.0
"""Work for each worker of a Dask cluster that waits there: adaptive clusters grow if there is more than 5 s of it."""
MOST_QUEUED = 64
"""Pieces for each worker of a Dask cluster."""
WAY_SECONDS = 0.05
"""About how long a result takes home, and the next piece out: as much work waits at workers that have few pieces."""
DEATHS = 3
"""Workers that one piece of work may kill before its simulations run in processes of their own."""
GAVE_UP = ("KilledWorker", "WorkerCrashedError")
"""The errors of Dask and of Ray for work that has killed several workers, which they have replaced."""
LAST_WAIT = 1.0
"""Seconds to wait for work that is no longer needed, so that it can be counted."""
TASKS_KEPT = 4
"""Tasks that a worker keeps unpacked."""


class WorkerError(RuntimeError):
    """The workers of a run were lost or do not respond; finished work is in its file, if it has one.

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


def simulations_in(results: Iterable[Any]) -> int:
    """Simulations of results that are not used, those included that only filled up a program."""
    costs = (result.cost for result in results if hasattr(result, "cost"))
    return sum(int(cost.simulations + cost.surplus) for cost in costs)


class Done(NamedTuple):
    """A finished piece of work."""

    ticket: int
    results: list[Any]
    """One for each item, or fewer if one of them failed."""
    error: BaseException | None
    seconds: float
    """That the work took in its worker."""


class InProcess:
    """This process as a pool of one: work is done when its result is asked for."""

    slots = 1
    """Pieces of work that may be in flight."""
    few = 1
    """The same where the next piece is better chosen late."""
    longer, piece, least = 1.0, PIECE_SECONDS, PIECE_SECONDS / 4
    """As of a `WorkerPool`."""
    remote = False
    surplus = 0
    workers = 1
    each: float | None = None
    """Seconds of a simulation in a worker, if that is known."""

    def __init__(self) -> None:
        self._queue: list[tuple[int, Callable[[Any], Any], Sequence[Any]]] = []

    def submit(self, ticket: int, task: Callable[[Any], Any], items: Sequence[Any], later: int = 0) -> None:
        """Take a piece of work."""
        self._queue.append((ticket, task, items))

    def next(self) -> Done:
        """Do the next piece; Stopped if a signal came."""
        ticket, task, items = self._queue.pop(0)
        began = time.perf_counter()
        call = current_guard().call
        try:
            results = [call(partial(attempted, task, item)) for item in items]
        except SystemExit as error:
            raise _exited(error) from error
        return Done(ticket, results, None, time.perf_counter() - began)

    def drop(self, kill: bool = False) -> int:
        """Forget what is not done; returns how many pieces that were begun are lost uncounted."""
        self._queue = []
        return 0


class WorkerPool:
    """The workers of an executor."""

    remote = True

    def __init__(self, executor: Any, renew: Callable[[], Any] | None = None) -> None:
        self._executor, self._renew = executor, renew
        self.family: Family | None = None
        """To whom children of worker threads belong."""
        self._client: Any = None
        if not isinstance(executor, Executor):
            self._client = executor
            self._executor = executor.get_executor(pure=False)
            _end_its_scheduler(executor)
        self._shared = isinstance(self._executor, ThreadPoolExecutor)
        self._packed: tuple[Any, bytes, bytes] | None = None
        self._work: dict[int, tuple[Callable[[Any], Any], Sequence[Any], int]] = {}
        self._in_flight: dict[int, Future[Any]] = {}
        self._ended: queue.SimpleQueue[tuple[int, Future[Any]]] = queue.SimpleQueue()
        self._suspects: list[int] = []
        """Work in flight when a worker died, run one by one until it is known which of it is at fault."""
        self._waiting: list[int] = []
        self._deaths: dict[int, int] = {}
        self._isolated = False
        self._active_at = time.monotonic()
        self._workers, self._counted = 1, -math.inf
        self._began: float | None = None
        """When the first piece of work was handed out."""
        self._sent = 0
        """How many were."""
        self._pieces, self._simulations, self._seconds = 0, 0, 0.0
        """What has been done, and the seconds that it took in workers."""
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
        """Two pieces per worker, so that none waits for us; more on Dask, so that adaptive clusters see work."""
        if self._client is None or not self._pieces:
            return 2 * self.workers
        queued = QUEUED_SECONDS * self._pieces / max(self._seconds, 1e-9)
        return math.ceil(self.workers * min(MOST_QUEUED, max(2.0, 1 + queued)))

    @property
    def few(self) -> int:
        """Hardly more than one piece per worker, so that the next is chosen late; Dask chooses by `later` itself."""
        if self._client is not None:
            return self.slots
        return self.workers + math.ceil(self.workers * min(1.0, WAY_SECONDS / self.piece))

    @property
    def longer(self) -> float:
        """How many times as long as usual pieces should take, by how many were handed out so far.

        If the workers get one each now, as many as should have been handed out by the time they are done.
        """
        elapsed = 0.0 if self._began is None else time.monotonic() - self._began
        wanted = (self.workers + self._sent) / PIECES_PER_SECOND - elapsed
        return min(max(wanted / self._usual, 1 / MOST_LONGER), MOST_LONGER)

    @property
    def _usual(self) -> float:
        """Seconds of a piece with so many workers."""
        return max(PIECE_SECONDS, self.workers / PIECES_PER_SECOND)

    @property
    def piece(self) -> float:
        """About how long a piece of work should take: longer for many workers, since one process serves them all."""
        return self._usual * max(self.longer, 1.0)

    @property
    def least(self) -> float:
        """The same of the smallest pieces, at the end of a round."""
        return self._usual / 4 * self.longer

    @property
    def each(self) -> float | None:
        """Seconds of a simulation in a worker, if that is known."""
        return self._seconds / self._simulations if self._simulations else None

    def submit(self, ticket: int, task: Callable[[Any], Any], items: Sequence[Any], later: int = 0) -> None:
        """Take a piece of work; of those that wait on a Dask cluster, one with a smaller `later` goes first."""
        self._work[ticket] = (task, items, later)
        if self._suspects:
            self._waiting.append(ticket)
        else:
            self._send(ticket)

    def _send(self, ticket: int) -> None:
        task, items, later = self._work[ticket]
        # Code that has killed workers will do so again: from then on every simulation runs in a process of its own.
        self._isolated = alone = self._isolated or self._deaths.get(ticket, 0) >= DEATHS
        if self._shared:
            call = partial(_run, task, list(items), alone, self.family)
        else:
            digest, body = self._pack(task)
            call = partial(_unpack_and_run, digest, body, packed(list(items)), alone, os.getpid(), line.name())
        try:
            future = self._executor.submit(call, **({} if self._client is None else {"priority": -later}))
        except BrokenExecutor as error:
            future = Future()
            future.set_exception(error)
        except RuntimeError as error:
            raise WorkerError(f"the executor takes no more work ({error}): give one that is not shut down") from error
        self._began = time.monotonic() if self._began is None else self._began
        self._sent += 1
        self._in_flight[ticket] = future
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
            if self._in_flight.get(ticket) is not future:
                continue
            del self._in_flight[ticket]
            try:
                results, error, seconds = future.result()
            except (BrokenExecutor, CancelledError) as broken:
                self._worker_died(ticket, broken)
                continue
            except Exception as other:
                if type(other).__name__ not in GAVE_UP:
                    raise
                # Several workers have tried it already. The rest would go the same way, so it is sent again.
                self._deaths[ticket] = max(DEATHS, self._deaths.get(ticket, 0) + 1)
                self._give_up_on(ticket, other)
                rest, self._in_flight = self._in_flight, {}
                for future in rest.values():
                    future.cancel()
                for one in (ticket, *rest):
                    self._send(one)
                continue
            self._work.pop(ticket)
            if self._deaths.pop(ticket, 0):
                self.surplus += simulations_in(results)
            if ticket in self._suspects:
                self._suspects.remove(ticket)
                self._send_suspect()
            self._pieces, self._seconds = self._pieces + 1, self._seconds + seconds
            self._simulations += simulations_in(results)
            return Done(ticket, results, error, seconds)

    def _wait(self) -> tuple[int, Future[Any]]:
        while True:
            try:
                ended = self._ended.get(timeout=min(1.0, PATIENCE / 4))
                self._active_at = time.monotonic()
                return ended
            except queue.Empty:
                self._check_activity()

    def _check_activity(self) -> None:
        if self._client is None:
            busy = any(future.running() for future in self._in_flight.values())
        else:
            busy = self._client.status == "running" and any(self._client.processing().values())
        if busy:
            self._active_at = time.monotonic()
        elif time.monotonic() - self._active_at > PATIENCE:
            raise WorkerError(
                f"nothing has run on the {'Dask cluster' if self._client is not None else 'executor'} for "
                f"{PATIENCE:.0f} s, with {len(self._in_flight)} pieces of work sent to it: look whether its workers "
                "are alive (and wait for them to start, as with client.wait_for_workers(1)). A run with a store has "
                "saved what was done; the same call continues from there"
            )

    def _worker_died(self, ticket: int, error: BaseException) -> None:
        """One dead worker fails all work in flight: run one by one, the piece at fault shows."""
        if self._renew is None and self._client is None:
            raise WorkerError(
                f"the executor is broken ({type(error).__name__}: {error}): a worker died and it cannot replace it. "
                "A run with a store has saved what was done; the same call with a new executor, or with workers=N, "
                "goes on from there"
            ) from error
        flying = sorted({ticket, *self._in_flight})
        if len(flying) == 1:
            self._deaths[ticket] = self._deaths.get(ticket, 0) + 1
            self._give_up_on(ticket, error)
        for one in flying:
            self._deaths.setdefault(one, 0)
        self._in_flight.clear()
        self._suspects = sorted({*self._suspects, *flying})
        self._replace_workers()
        self._send_suspect()

    def _give_up_on(self, ticket: int, error: BaseException) -> None:
        """Stop if work kills its workers even with each simulation in a process of its own."""
        if self._deaths[ticket] > 2 * DEATHS:
            items = self._work[ticket][1]
            raise WorkerError(
                f"the work on {_place(items)} has killed {self._deaths[ticket]} workers in a row ({error}), the last "
                "of them with each simulation in a process of its own: look at the memory that it needs. A run with a "
                "store has saved what was done before"
            ) from error

    def _send_suspect(self) -> None:
        if self._suspects:
            if not self._in_flight:
                self._send(self._suspects[0])
            return
        waiting, self._waiting = self._waiting, []
        for ticket in waiting:
            self._send(ticket)

    def drop(self, kill: bool = False) -> int:
        """Forget all work; returns how many pieces that were begun are lost uncounted.

        Running work is given a moment to end, unless `kill` asks for no delay.
        """
        running = {ticket: future for ticket, future in self._in_flight.items() if not future.cancel()}
        give_up = time.monotonic() + (0.0 if kill else LAST_WAIT)
        lost = 0
        for future in running.values():
            try:
                results, _, _ = future.result(timeout=max(0.0, give_up - time.monotonic()))
                self.surplus += simulations_in(results)
            except (Exception, CancelledError):
                lost += 1
        if lost:
            # Long work that nobody waits for would keep the workers busy.
            self._replace_workers()
        self._work, self._in_flight, self._suspects, self._waiting, self._deaths = {}, {}, [], [], {}
        self._ended = queue.SimpleQueue()
        return lost

    def _replace_workers(self) -> None:
        if self._renew is not None:
            self._executor.shutdown(wait=False, kill_workers=True)
            self._executor = self._renew()

    def give_back(self) -> None:
        """Leave the workers to runs to come, if this run has started them."""
        if self._renew is not None:
            _given_back(self._executor._max_workers, self._executor)

    def shut_down(self) -> None:
        """End the workers without waiting for them."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def _end_its_scheduler(client: Any) -> None:
    """Have Dask's scheduler end with this process if that has started it as a program, as `SubprocessCluster` does.

    That of a `LocalCluster` is a thread of this process.
    """
    from distributed.comm import get_address_host
    from distributed.utils import get_ip

    # One elsewhere is nobody's child here, and one without onedraw stays.
    with suppress(Exception):
        if get_address_host(client.scheduler.address) in ("127.0.0.1", "::1", get_ip()):
            client.run_on_scheduler(end_with_run, os.getpid(), line.name())


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


def _unpack_and_run(
    digest: bytes, body: bytes, items: bytes, alone: bool, run: int, its_line: str
) -> tuple[list[Any], Any, float]:
    """In a worker: the task, unpacked once, on each of the items."""
    import pickle

    end_with_run(run, its_line)
    with _tasks_lock:
        task = _tasks.pop(digest, None)
        task = pickle.loads(body) if task is None else task
        _tasks[digest] = task
        while len(_tasks) > TASKS_KEPT:
            _tasks.popitem(last=False)
    return _run(task, pickle.loads(items), alone)


def _run(
    task: Callable[[Any], Any], items: list[Any], alone: bool, family: Family | None = None
) -> tuple[list[Any], Any, float]:
    began = time.perf_counter()
    results = []
    error: Exception | None = None
    with one_blas_thread(), isolated(alone), working_for(family):
        for item in items:
            try:
                results.append(attempted(task, item))
            except FAULTS as raised:
                error = sendable(raised if isinstance(raised, Exception) else _exited(raised))
                break
    return results, error, time.perf_counter() - began


def attempted(task: Callable[[Any], Any], item: Any) -> Any:
    """The task on an item. If memory runs out, again with its simulations in a process of their own.

    Simulations may leak memory, and then it is not the one that finds none which is at fault. One that finds none in a
    process of its own counts as failed.
    """
    try:
        return task(item)
    except MemoryError:
        try:
            with isolated(True):
                return task(item)
        except MemoryError as error:
            why = told(error.__cause__ or error)
            raise SimulationError(
                f"this process has no memory left, not even to send the simulator to another one ({why}): if "
                "the simulator keeps something of every simulation, as in a global list, have it forget that, or run "
                "with workers=2, whose processes are replaced when they have grown. A run with a store has saved what "
                "was done before"
            ) from error


def _exited(error: BaseException) -> SimulationError:
    """`sys.exit` in code that makes no single simulation, such as an estimator or a prior of the user's own."""
    code = getattr(error, "code", None)
    return SimulationError(
        f"a function of the model called sys.exit({code!r}): raise an exception that says what failed"
    )


def sendable(error: Exception) -> Exception:
    """An exception that can be pickled, with its traceback as a note."""
    import pickle

    where = "".join(traceback.format_exception(error))
    try:
        again = pickle.loads(packed(error))
        if type(again) is not type(error):
            raise TypeError
    except Exception:
        error = RuntimeError(told(error))
    error.add_note(f"In the worker:\n{where}")
    return error


def _begin_worker(parent: int, its_line: str) -> None:
    """Ctrl-C reaches every process of a terminal, and the run decides what to do; without the run no work is done."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent, its_line)


_idle: dict[int, list[Any]] = {}
"""Loky pools that no run has, by their number of workers."""
_began_in: int | None = None
"""The process that has started workers: a fork of it cannot, since loky's threads and locks are not there."""
_idle_lock = threading.Lock()
IDLE_SECONDS = 120
"""Workers of `workers=N` end after this time without work; a run that comes earlier finds them started."""


def _new_workers(workers: int) -> Any:
    import loky

    global _began_in
    _began_in = os.getpid()
    return loky.ProcessPoolExecutor(
        workers, timeout=IDLE_SECONDS, initializer=_begin_worker, initargs=(os.getpid(), line.name())
    )


def _borrowed(workers: int) -> Any:
    """A loky pool with this number of workers for one run alone: those of an earlier run, or new ones."""
    with _idle_lock:
        idle = _idle.get(workers, [])
        while idle:
            pool = idle.pop()
            if pool._flags.broken is None and not pool._flags.shutdown:
                return pool
    return _new_workers(workers)


def _given_back(workers: int, pool: Any) -> None:
    """Keep one pool for runs to come."""
    with _idle_lock:
        idle = _idle.setdefault(workers, [])
        if not idle:
            idle.append(pool)
            return
    pool.shutdown(wait=False)


_of_thread = threading.local()


def current_pool() -> InProcess | WorkerPool:
    """The pool of this thread's run; this process if there is none."""
    pool: InProcess | WorkerPool | None = getattr(_of_thread, "pool", None)
    return InProcess() if pool is None else pool


@contextmanager
def opened_pool(workers: Any, executor: Any, threads: bool = False) -> Iterator[InProcess | WorkerPool | JobArray]:
    """The pool of a run: `workers=N` of loky, or the user's executor; a run inside another run shares its pool.

    With `threads`, workers are threads of this process: for work that releases Python's lock. A job array is for the
    rounds of one run alone, and what is run inside it stays in this process.
    """
    pool = _chosen_pool(workers, executor, threads)
    if isinstance(pool, JobArray):
        with family_of_run():
            yield pool
        return
    before = getattr(_of_thread, "pool", None)
    if before is not None and workers is None and executor is None:
        yield before
        return
    with family_of_run() as family:
        if isinstance(pool, WorkerPool):
            pool.family = family
        _of_thread.pool = pool
        try:
            yield pool
        except BaseException:
            pool.drop(kill=True)
            raise
        finally:
            _of_thread.pool = before
            if isinstance(pool, WorkerPool):
                if threads and executor is None:
                    pool.shut_down()
                pool.give_back()


def _chosen_pool(workers: Any, executor: Any, threads: bool) -> InProcess | WorkerPool | JobArray:
    if executor is not None:
        if workers is not None:
            raise ValueError("give workers= or executor=, not both: an executor has its own number of workers")
        if isinstance(executor, JobArray):
            return executor
        if not isinstance(executor, Executor) and not hasattr(executor, "get_executor"):
            raise ValueError(
                "executor must be a concurrent.futures.Executor, a dask.distributed.Client or an od.job_array, got "
                f"{executor!r}"
            )
        return WorkerPool(executor)
    if workers is None:
        return InProcess()
    number = whole_number("workers", workers, "the number of workers that simulate side by side")
    if number == 1:
        return InProcess()
    if threads:
        return WorkerPool(ThreadPoolExecutor(number))
    # A process that was started by it has it loaded.
    processes = sys.modules.get("multiprocessing")
    if processes is not None and processes.current_process().daemon:
        raise ValueError(
            f"workers = {number} cannot be started in a daemonic process, which may have no processes of its own: run "
            "without workers=, or start this process with daemon=False"
        )
    if _began_in not in (None, os.getpid()):
        raise ValueError(
            f"workers = {number} cannot be started in a process that was forked from one with workers: run without "
            "workers=, or start this process anew, as multiprocessing.get_context('spawn') does"
        )
    return WorkerPool(_borrowed(number), partial(_new_workers, number))
