"""Nothing outlives a run: workers and programs end when the process that started them is killed.

A process that is killed can end nothing itself. Workers end by themselves: on Linux the kernel ends them, even if their
simulation holds Python's lock, and elsewhere a thread looks. Programs know nothing of the run; a small process of ours,
the guardian, outlives the run by a moment and ends them with all that they have started.
"""

import os
import queue
import secrets
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

LOOK_SECONDS = 0.5
"""How often a worker looks whether its parent is still there."""
WAITING = 4096
"""Workers that may hold the line of one process."""
MARK = "ONEDRAW_STARTED_BY"
"""A variable in the environment of programs: what they start has it too, also in a session of its own."""

GUARDIAN = """
import os, sys
groups = set()

def marked(mark):
    for name in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc/self") else ()):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if b"\\0" + mark.encode() in b"\\0" + file.read():
                    yield int(name)
        except OSError:
            pass

def end(numbers, how):
    found = False
    for number in numbers:
        try:
            how(number, 9)
            found = True
        except OSError:
            pass
    return found

def end_marked(mark):
    # Some may be starting others at this moment.
    for _ in range(20):
        if not end(marked(mark), os.kill):
            return

for line in sys.stdin:
    if line[0] == "!":
        end_marked(line[1:-1])
    else:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
end(groups, os.killpg)
end_marked(sys.argv[1])
"""


class Guardian:
    """A small process that outlives this one by a moment, and ends the programs that it has left behind."""

    def __init__(self) -> None:
        self.process: Any = None
        """The guardian itself, if there was anything to watch."""
        self._token, self._count = "", 0
        self._groups: dict[int, tuple[Any, str]] = {}
        """Programs that run and their marks, by the number of their process, which is that of their group."""
        self._lock = threading.Lock()
        self._ended: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        """What has been said of programs and is not told yet."""

    def start(self, call: Sequence[str], environment: Mapping[str, str], **more: Any) -> Any:
        """A program that leads a session of its own, and does not outlive this process, nor does what it starts."""
        import subprocess

        # Until the program is known to the guardian, none may be sent to rest.
        with self._lock:
            self._tell("")
            self._count += 1
            mark = f"{self._token}.{self._count}."
            marked = {**os.environ, **environment, MARK: mark}
            process = subprocess.Popen(call, env=marked, start_new_session=True, **more)
            self._groups[process.pid] = process, mark
            self._tell(f"+{process.pid}\n")
        self._tell_ended()
        return process

    def end(self, process: Any) -> None:
        """End a program with all that it has started, also in sessions of their own."""
        end_group(process)
        self._ended.put(("!", process))
        self._tell_ended()

    def let_go(self, process: Any) -> None:
        """A program that has ended."""
        self._ended.put(("-", process))
        self._tell_ended()

    def _tell_ended(self) -> None:
        """Nobody waits here: children are also ended when they are collected as garbage, while the lock may be held."""
        if self._lock.acquire(blocking=False):
            try:
                self._tell_all()
            finally:
                self._lock.release()

    def _tell_all(self) -> None:
        while not self._ended.empty():
            what, process = self._ended.get()
            known, mark = self._groups.get(process.pid, (None, ""))
            if known is process and what == "!":
                self._tell(f"!{MARK}={mark}\n")
            elif known is process:
                del self._groups[process.pid]
                self._tell(f"-{process.pid}\n")

    def rest(self) -> None:
        """End the guardian if there is nothing to watch, and with it what programs have left behind."""
        with self._lock:
            self._tell_all()
            if self.process is not None and not self._groups:
                self.process.stdin.close()
                self.process.wait()
                self.process = None

    def forget(self) -> None:
        """In a fork: the guardian is the parent's, and is not to wait for this process."""
        if self.process is not None:
            self.process.stdin.close()
        self.process, self._token, self._groups = None, "", {}
        self._lock, self._ended = threading.Lock(), queue.SimpleQueue()

    def _tell(self, line: str) -> None:
        if not hasattr(os, "killpg"):
            return
        for _ in range(2):
            if self.process is None or self.process.poll() is not None:
                self._start()
                line = "".join(f"+{group}\n" for group in self._groups)
            try:
                self.process.stdin.write(line.encode())
                return
            except OSError:
                # It was killed: another one takes over.
                self.process = None

    def _start(self) -> None:
        import subprocess

        self._token = self._token or secrets.token_hex(8)
        unmarked = {name: value for name, value in os.environ.items() if name != MARK}
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", GUARDIAN, f"{MARK}={self._token}."],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, bufsize=0,
            start_new_session=True, env=unmarked,
        )  # fmt: skip


guardian = Guardian()


def end_group(process: Any) -> None:
    """End a process with all that it has started; it leads a group of its own."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (AttributeError, ProcessLookupError, PermissionError):
        process.kill()


class Line:
    """A socket that is open as long as this process lives; nothing is sent through it."""

    def __init__(self) -> None:
        self._socket: Any = None
        self._name = ""

    def name(self) -> str:
        """What workers on this machine know it by; empty if the system has nothing of the kind."""
        import socket

        if self._socket is None and sys.platform == "linux":
            self._name = f"\0onedraw-{secrets.token_hex(8)}"
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.bind(self._name)
            self._socket.listen(WAITING)
        return self._name

    def forget(self) -> None:
        """In a fork: the line is the parent's, and is not to stay open for this process."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._name = None, ""


line = Line()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=guardian.forget)
    os.register_at_fork(after_in_child=line.forget)

_held: list[Any] = []


def end_with_parent(parent: int, name: str) -> None:
    """In a worker: end when the process with this number and this line does. Its own guardian ends what it started."""

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_SECONDS)
        os._exit(1)

    if not hasattr(os, "killpg"):
        return
    if name:
        _end_with_line(name)
    threading.Thread(target=look, daemon=True).start()


def _end_with_line(name: str) -> bool:
    """Have the kernel end this process when the other end of the line closes, whatever its threads do.

    Whether there is such a line, which only processes of the same machine reach.
    """
    import fcntl
    import socket

    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    end.setblocking(False)
    try:
        end.connect(name)
    except OSError:
        # Nobody is there any more, or too many hold the line: the thread looks in any case.
        return False
    fcntl.fcntl(end, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(end, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) | os.O_ASYNC)
    _held.append(end)
    return True


_joined: set[int] = set()


def end_with_run(run: int, name: str) -> None:
    """In a worker of somebody else's pool, or in Dask's scheduler: end with the run's process if that has started it.

    Workers of a cluster belong to nobody's run, and go on.
    """
    if os.getpid() in _joined:
        return
    _joined.add(os.getpid())
    processes = sys.modules.get("multiprocessing")
    parent = None if processes is None else processes.parent_process()
    if parent is not None and parent.pid == run:
        end_with_parent(os.getppid(), name)
    elif os.getppid() == run and name:
        # The same number on another machine is another process.
        _end_with_line(name)
