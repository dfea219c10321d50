"""Simulations in a process of their own, which can be killed: for time limits, and for code that kills its process.

The child is started with `subprocess` (workers of loky and Dask may not start children of `multiprocessing`), keeps the
simulator, and is asked for one simulation after another. It gets the very stream that the simulation has anyway, so
the numbers are those of a run without it. It ends when its parent does.
"""

import os
import pickle
import queue
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import update_wrapper
from typing import Any, BinaryIO

import numpy as np

from onedraw.engines.lifetimes import guardian
from onedraw.failures import FAULTS, told

ATTEMPTS = 3
"""Children that one simulation may kill, one after another, before it counts as failed."""
IDLE_SECONDS = 2.0
"""A child without a request for this long ends: in a worker process nobody tells it that its run has ended."""
IDLE = "idle"
"""What a child says before it ends because of that: a simulator may end it with any exit status."""


class TimedOut(Exception):
    """A simulation did not end in its time limit."""


class ChildDied(Exception):
    """A simulation killed the process that it ran in."""


class Failed(Exception):
    """What went wrong in the child; its text is that of the exception there."""


class NoRoom(MemoryError):
    """There is too little memory to send a simulator to another process."""


def packed(value: Any) -> bytes:
    """A task or a simulator as bytes, lambdas and functions of notebooks included."""
    import cloudpickle

    try:
        made: bytes = cloudpickle.dumps(value)
    except MemoryError as error:
        raise NoRoom(*error.args) from error
    except Exception as error:
        raise ValueError(
            f"the model cannot be sent to workers ({told(error)}): make locks, open files and "
            "connections inside the simulator, or run without workers"
        ) from error
    return made


class Limited:
    """A function of (rng, ...) that is run in a child, and given up after `timeout` seconds (None: never)."""

    def __init__(self, function: Callable[..., Any], timeout: float | None) -> None:
        self.function, self.timeout = function, timeout
        self._mine = threading.local()
        update_wrapper(self, function, updated=())

    def __reduce__(self) -> Any:
        return Limited, (self.function, self.timeout)

    def __call__(self, rng: np.random.Generator, *args: Any, **kwargs: Any) -> Any:
        request = pickle.dumps((rng.bit_generator, args, kwargs))
        died: list[str] = []
        while len(died) < ATTEMPTS:
            child = getattr(self._mine, "child", None)
            if child is None or not child.alive():
                child = self._mine.child = Child(self.function)
            try:
                answer = child.ask(request, self.timeout)
            except queue.Empty:
                child.kill()
                self._mine.child = None
                raise TimedOut(f"not finished after timeout = {self.timeout:g} s, and killed") from None
            if answer is not None and answer != IDLE:
                value, after, error = answer
                if after is not None:
                    rng.bit_generator.state = after
                if error is not None:
                    raise Failed(error[0]) from RuntimeError(error[1])
                return value
            self._mine.child = None
            if answer is None:
                died.append(child.exit_reason())
        raise ChildDied(f"the simulation killed its process {ATTEMPTS} times in a row ({died[-1]})")


class Child:
    """A process that keeps a function and calls it on request."""

    def __init__(self, function: Callable[..., Any]) -> None:
        import subprocess

        path = os.pathsep.join(part or os.getcwd() for part in sys.path)
        self._process = guardian.start(
            [sys.executable, "-c", "from onedraw.engines.children import serve; serve()"],
            {"PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        family().add(self)
        self._send(packed(function))
        if self._answers.get() is None:
            raise ChildDied(f"no process could be started for the simulator ({self.exit_reason()})")

    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    def ask(self, request: bytes, timeout: float | None) -> Any:
        """What the function gave; None if the child died, queue.Empty if it took too long."""
        self._send(request)
        return self._answers.get(timeout=timeout)

    def _send(self, message: bytes) -> None:
        assert self._process.stdin is not None
        # If the child is dead, the listener says so.
        with suppress(OSError):
            _write(self._process.stdin, message)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        while (message := _read(self._process.stdout)) is not None:
            self._answers.put(pickle.loads(message))
        self._process.wait()
        guardian.let_go(self._process)
        self._answers.put(None)

    def exit_reason(self) -> str:
        """How the child ended."""
        code = self._process.wait()
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"

    def kill(self) -> None:
        """End the child with all that it has started."""
        if self._process.poll() is None:
            guardian.end(self._process)
        self._process.wait()
        guardian.let_go(self._process)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()

    def __del__(self) -> None:
        if hasattr(self, "_process"):
            self.kill()


def serve() -> None:
    """The child's side: the function first, then one request after another, until the parent is gone."""
    from onedraw.engines.threads import one_blas_thread

    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    source, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # What the simulator prints must not end up among the answers, and it must not read the requests.
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)

    def listen() -> None:
        while (message := _read(source)) is not None:
            requests.put(message)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    function = pickle.loads(requests.get())
    _write(answers, pickle.dumps("ready"))
    fresh, mine = True, os.getpid()
    while True:
        try:
            request = requests.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            _write(answers, pickle.dumps(IDLE))
            os._exit(0)
        bit_generator, args, kwargs = pickle.loads(request)
        before = pickle.dumps(bit_generator.state)
        value, error = None, None
        try:
            with one_blas_thread():
                value = function(np.random.Generator(bit_generator), *args, **kwargs)
        except FAULTS as raised:
            if isinstance(raised, MemoryError) and not fresh:
                # Earlier simulations may have left too little memory: the next child is asked again.
                os._exit(1)
            error = told(raised), "".join(traceback.format_exception(raised))
        if os.getpid() != mine:
            # A fork that the simulator has made: a second answer would be taken for that of the next simulation.
            os._exit(0)
        fresh = False
        # Whoever draws after this, such as the second part of a simulation, goes on where the stream is now.
        after = bit_generator.state
        after = None if pickle.dumps(after) == before else after
        try:
            answer = pickle.dumps((value, after, error))
        except FAULTS as raised:
            error = told(raised), f"the simulator's result cannot be handed over: {told(raised)}"
            answer = pickle.dumps((None, after, error))
        _write(answers, answer)


def _write(pipe: BinaryIO | Any, message: bytes) -> None:
    pipe.write(len(message).to_bytes(8, "little"))
    pipe.write(message)
    pipe.flush()


def _read(pipe: BinaryIO | Any) -> bytes | None:
    try:
        size = pipe.read(8)
        if len(size) < 8:
            return None
        message: bytes = pipe.read(int.from_bytes(size, "little"))
    except (OSError, ValueError):
        return None
    return message if len(message) == int.from_bytes(size, "little") else None


class Family:
    """The children that one run has started in this process, from whichever thread."""

    def __init__(self) -> None:
        self._children: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lock, self._ended = threading.Lock(), False

    def add(self, child: Any) -> None:
        """Take in a child, or anything with a `kill`.

        One that comes after the end, from a thread whose work was dropped, ends at once.
        """
        with self._lock:
            self._children.add(child)
            late = self._ended
        if late:
            child.kill()

    def end(self) -> None:
        """End all children."""
        with self._lock:
            self._ended = True
            children = list(self._children)
        for child in children:
            child.kill()


class _ThreadChildren(threading.local):
    """What is so for the work of a thread."""

    family: Family | None = None
    alone = False
    known: Any = None


_of_thread = _ThreadChildren()


def family() -> Family:
    """That of this thread; children of worker processes have none, and end when they are idle."""
    return _of_thread.family or Family()


@contextmanager
def family_of_run() -> Iterator[Family]:
    """The children that the work in here starts, which end with it; a run inside another run shares its family."""
    outer = _of_thread.family
    family = Family() if outer is None else outer
    try:
        with working_for(family):
            yield family
    finally:
        if outer is None:
            family.end()
            if guardian.process is not None:
                guardian.rest()


@contextmanager
def working_for(family: Family | None) -> Iterator[None]:
    """Children that this thread starts in here belong to this family."""
    before = _of_thread.family
    _of_thread.family = family
    try:
        yield
    finally:
        _of_thread.family = before


@contextmanager
def isolated(alone: bool) -> Iterator[None]:
    """With `alone`, simulations in here run in a child: this work has killed its workers before."""
    _of_thread.alone = alone
    try:
        yield
    finally:
        _of_thread.alone = False


def apart() -> bool:
    """Whether work here is `isolated`."""
    return bool(_of_thread.alone)


def kept_apart(function: Callable[..., Any]) -> Callable[..., Any]:
    """The simulator, to be run in a child if work must be `isolated`."""
    if not _of_thread.alone or isinstance(function, Limited):
        return function
    known = _of_thread.known
    if known is None or known[0] != function:
        known = _of_thread.known = (function, Limited(function, None))
    limited: Limited = known[1]
    return limited
