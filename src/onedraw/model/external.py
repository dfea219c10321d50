"""Simulators in any language: a program that is started for each pseudo-sample, or once for many.

Parameters go in as arguments, environment variables or a JSON file; the data set comes out as JSON, CSV or a NumPy
file, on standard output or in a file. No shell is involved, so no value is ever read as a command.

A program that starts slowly is started once per worker (`persistent=True`): it reads one line of JSON for each
pseudo-sample and answers with one. It is started again if it dies, and killed if it takes too long, does not keep to
one answer per line, or has had nothing to do for a while.
"""

import os
import queue
import signal
import string
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onedraw.arguments import LONGEST, one_of, positive, shown, true_or_false
from onedraw.engines.children import TimedOut, family
from onedraw.engines.lifetimes import end_group, guardian
from onedraw.failures import FAULTS, told

KEPT = 2000
"""Characters of what a failed program wrote that are kept."""
MOST = 64 * 2**20
"""Bytes of output that a program may write."""
READ_AT_ONCE = 65_536
LOOK_SECONDS = 0.1
"""How often a program that has not closed its output is looked at."""
LAST_OUTPUT = 1.0
"""Seconds after a program's end in which what it has started may still write."""
FILES = ("input", "output")
"""Names in braces that stand for files and not for parameters."""
UNREAD = 100
"""Lines of a persistent program that are kept although nothing was asked."""
STARTING = 60.0
"""Seconds that a persistent program may take to start, besides the time limit of a simulation."""
IDLE_SECONDS = 60.0
"""A persistent program without a request for this long is ended: in a worker nobody says that the run is over."""


class Reader(threading.Thread):
    """Reads a pipe to its end, whoever holds it open, and keeps no more than it may.

    With `most`, the first bytes are kept, and the reading ends when there are more; without it, the last ones.
    """

    def __init__(self, pipe: Any, most: int | None) -> None:
        super().__init__(daemon=True)
        self._pipe, self._most = pipe, most
        self.kept, self.over = bytearray(), False
        self.start()

    def run(self) -> None:
        with self._pipe, suppress(OSError, ValueError):
            while piece := self._pipe.read1(READ_AT_ONCE):
                self.kept += piece
                if self._most is None:
                    del self.kept[: -4 * KEPT]
                elif len(self.kept) > self._most:
                    self.over = True
                    return


def _finished(process: Any, out: Reader, err: Reader, timeout: float | None) -> bool:
    """Whether a program has ended in time; what it wrote is read by then, unless there is too much of it."""
    import subprocess

    began, ended = time.monotonic(), None
    for reader in (out, err):
        while reader.is_alive() and not out.over:
            now = time.monotonic()
            if ended is None and process.poll() is not None:
                ended = now
            # What it has started and left behind may hold the pipe open for ever.
            if ended is not None and now - ended > LAST_OUTPUT:
                return True
            if ended is None and timeout is not None and now - began > timeout:
                return False
            left = LOOK_SECONDS if timeout is None or ended is not None else began + timeout - now
            reader.join(min(LOOK_SECONDS, max(left, 0.001)))
    if out.over:
        return True
    try:
        process.wait(None if timeout is None else max(0.0, began + timeout - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


class CommandFailed(Exception):
    """A program ended with another status than 0, or gave what cannot be read."""


@dataclass(frozen=True)
class Command:
    """A program as a simulator; made by `command`."""

    arguments: tuple[str, ...]
    parse: str | Callable[[bytes], Any]
    environment: tuple[tuple[str, str], ...]
    folder: str | None
    timeout: float | None
    unused: str = "error"
    persistent: bool = False
    beside: str | None = field(default=None, compare=False, repr=False, metadata={"fingerprint": False})
    """The folder of the file that made it; it may be another one when a run is resumed elsewhere."""

    def __call__(self, rng: np.random.Generator, **parameters: Any) -> Any:
        import json
        import tempfile
        from pathlib import Path

        if self.persistent:
            return self._parsed(*self._asked(rng, parameters))
        words = {name: _text(value) for name, value in parameters.items()}
        if "seed" not in words:
            words["seed"] = str(int(rng.integers(2**31)))
        with tempfile.TemporaryDirectory(prefix="onedraw-") as scratch:
            files = {name: Path(scratch, name) for name in self.files() if name not in words}
            if "input" in files:
                numbers = {name: _number(value) for name, value in parameters.items()}
                files["input"].write_text(json.dumps({**numbers, "seed": int(words["seed"])}))
            said, error = self._run({**words, **{name: str(path) for name, path in files.items()}})
            if "output" in files:
                if not files["output"].is_file():
                    raise CommandFailed(
                        f"{self.arguments[0]} ended with status 0 but wrote no file at {{output}}{_told(error, said)}"
                    )
                if files["output"].stat().st_size > MOST:
                    raise CommandFailed(
                        f"{self.arguments[0]} wrote more than {MOST // 2**20} MiB to {{output}}: write less"
                    )
                said = files["output"].read_bytes()
        return self._parsed(said, error)

    def templates(self) -> tuple[str, ...]:
        """All texts in which names in braces are replaced."""
        return (*self.arguments, *(value for _, value in self.environment))

    def placeholders(self) -> set[str]:
        """All names in braces; doubled braces hold none."""
        return {name for part in self.templates() for _, name, _, _ in string.Formatter().parse(part) if name}

    def names(self) -> set[str]:
        """The names in braces, files left out."""
        return self.placeholders() - set(FILES)

    def files(self) -> list[str]:
        """The files that are named in braces."""
        return sorted(self.placeholders() & set(FILES))

    def place(self) -> str | None:
        """The folder in which the program runs: relative ones are relative to the file that made the command."""
        if self.beside is None or not os.path.isdir(self.beside):
            return self.folder
        return os.path.join(self.beside, self.folder or "")

    def uses(self, name: str) -> bool:
        """Whether the program gets this parameter."""
        return self.persistent or not {"input", name}.isdisjoint(self.placeholders())

    def started(self, words: Mapping[str, str], stdin: int) -> Any:
        """The program as a process, with these words for the names in braces."""
        import subprocess

        call = [part.format_map(words) for part in self.arguments]
        more = {name: value.format_map(words) for name, value in self.environment}
        try:
            return guardian.start(
                call, more, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=self.place()
            )
        except FileNotFoundError as error:
            beside = os.path.join(self.place() or "", call[0])
            if os.sep not in call[0] and os.path.exists(beside):
                error.filename = f"{call[0]} (for the program beside the model, write ./{call[0]})"
            raise

    def _asked(self, rng: np.random.Generator, parameters: Mapping[str, Any]) -> tuple[bytes, str]:
        """The line with which a persistent program answers, and what it wrote to standard error."""
        import json

        numbers = {name: _number(value) for name, value in parameters.items()}
        request = json.dumps({**numbers, "seed": numbers.get("seed", int(rng.integers(2**31)))}).encode() + b"\n"
        while True:
            program = running(self)
            fresh, began = program.fresh, time.monotonic()
            try:
                answer = program.ask(request, self.timeout)
            except queue.Empty:
                raise TimedOut(f"{self.arguments[0]} gave no answer in timeout = {self.timeout:g} s, and was killed"
                               f"{_told(program.said())}") from None  # fmt: skip
            # The first answer comes with the start of the program, which no simulation is to blame for.
            late = fresh and self.timeout is not None and time.monotonic() - began > self.timeout
            if answer is not None and not late:
                return answer, program.said()
            # A program may have died of what it was asked before: its simulation is asked of a new one.
            if answer is None and fresh:
                how = _ended(program.process.wait())
                raise CommandFailed(
                    f"{' '.join(self.arguments)} {how} and gave no answer{_told(program.said(), program.rest)}"
                )

    def _run(self, words: Mapping[str, str]) -> tuple[bytes, str]:
        """What the program writes to standard output and to standard error."""
        import subprocess

        process = self.started(words, subprocess.DEVNULL)
        name = self.arguments[0].format_map(words)
        out, err = Reader(process.stdout, MOST), Reader(process.stderr, None)
        try:
            finished = _finished(process, out, err, self.timeout)
        finally:
            # The program may have started others: all of its session ends with it.
            (end_group if process.poll() is not None else guardian.end)(process)
            process.wait()
            guardian.let_go(process)
        said = _last(err.kept)
        if out.over:
            raise CommandFailed(
                f"{name} wrote more than {MOST // 2**20} MiB to standard output, and was killed: write less, or to "
                "{output}" + (f". It said: {said}" if said else "")
            )
        if not finished:
            raise TimedOut(
                f"{name} not finished after timeout = {self.timeout:g} s, and killed{_told(said, bytes(out.kept))}"
            )
        if process.returncode != 0:
            call = " ".join(part.format_map(words) for part in self.arguments)
            raise CommandFailed(f"{call} {_ended(process.returncode)}{_told(said, out.kept) or ' and said nothing'}")
        return bytes(out.kept), said

    def _parsed(self, said: bytes, error: str) -> Any:
        import io
        import json

        try:
            if callable(self.parse):
                return self.parse(said)
            if self.parse == "npy":
                return np.load(io.BytesIO(said), allow_pickle=False)
            text = said.decode()
            if self.parse == "csv":
                return _csv(text)
            value = json.loads(text)
            if self.persistent and isinstance(value, dict) and set(value) == {"error"}:
                raise CommandFailed(f"{self.arguments[0]} answered with an error: {value['error']}")
            if isinstance(value, dict):
                return {key: np.asarray(part, dtype=float) for key, part in value.items()}
            return np.asarray(value, dtype=float) if isinstance(value, list) else value
        except CommandFailed:
            raise
        except FAULTS as fault:
            start = said[:200].decode(errors="replace")
            name = "parse" if callable(self.parse) else self.parse
            raise CommandFailed(
                f"the output of {self.arguments[0]} cannot be read as {name} ({told(fault)}): {start!r}"
                + (f"; on standard error: {error}" if error else "")
            ) from fault


class Program:
    """A persistent program: a process that is asked for one pseudo-sample after another."""

    def __init__(self, made: Command) -> None:
        import subprocess

        self.process = made.started({}, subprocess.PIPE)
        self.fresh = True
        """Whether it has answered nothing yet."""
        self.rest = b""
        """What it wrote after its last whole line."""
        self._err = Reader(self.process.stderr, None)
        self._answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._asked, self._busy, self._lock = time.monotonic(), False, threading.Lock()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        threading.Thread(target=self._wait, daemon=True).start()
        family().add(self)

    def alive(self) -> bool:
        """Whether it can be asked."""
        return self.process.poll() is None

    def said(self) -> str:
        """The end of what it wrote to standard error."""
        if not self.alive():
            self._err.join(LAST_OUTPUT)
        return _last(self._err.kept)

    def ask(self, request: bytes, timeout: float | None) -> bytes | None:
        """The line with which it answers; None if it has died, queue.Empty if it took too long."""
        with self._lock:
            self._busy = True
        try:
            return self._answer(request, timeout)
        except BaseException:
            # An answer that comes later would be taken for that to another question.
            self.kill()
            raise
        finally:
            with self._lock:
                self._busy, self._asked = False, time.monotonic()

    def _answer(self, request: bytes, timeout: float | None) -> bytes | None:
        if not self._answers.empty():
            line = self._answers.get()
            if line is None:
                return None
            raise CommandFailed(
                f"{self.process.args[0]} wrote a line that it was not asked for, {_last(line)!r}, so answers may "
                "belong to other questions: write one line to standard output for each line that is read, and "
                "everything else to standard error"
            )
        if not self.fresh:
            del self._err.kept[:]
        # If it is dead, the listener says so.
        with suppress(OSError, ValueError):
            self.process.stdin.write(request)
            self.process.stdin.flush()
        answer = self._answers.get(timeout=None if timeout is None else timeout + STARTING * self.fresh)
        self.fresh = False
        return answer

    def _listen(self) -> None:
        with self.process.stdout, suppress(OSError, ValueError):
            while (line := self.process.stdout.readline(MOST)).endswith(b"\n"):
                self._answers.put(line)
                while self._answers.qsize() > UNREAD and self.alive():
                    # It goes on without being asked, and waits until the next question finds these lines.
                    time.sleep(LOOK_SECONDS)
            self.rest = line
            if len(line) >= MOST:
                self.rest = f"a line of more than {MOST // 2**20} MiB".encode()
                guardian.end(self.process)
        self.process.wait()
        guardian.let_go(self.process)
        with suppress(OSError):
            self.process.stdin.close()
        self._answers.put(None)

    def _wait(self) -> None:
        """End the program when it has had nothing to do for a while."""
        while self.alive():
            with self._lock:
                if not self._busy and time.monotonic() - self._asked > IDLE_SECONDS:
                    self.kill()
            time.sleep(LOOK_SECONDS)

    def kill(self) -> None:
        """End the program with all that it has started."""
        guardian.end(self.process)
        self._listener.join(LAST_OUTPUT)


_of_thread = threading.local()


def running(made: Command) -> Program:
    """This thread's process of a persistent program, started if there is none; a fork has its own."""
    programs: dict[Any, Program] = getattr(_of_thread, "programs", {})
    _of_thread.programs = programs
    key = os.getpid(), made.arguments, made.environment, made.place()
    program = programs.get(key)
    if program is None or not program.alive():
        program = programs[key] = Program(made)
    return program


def _ended(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"


def _last(text: bytes | bytearray) -> str:
    return bytes(text[-4 * KEPT :]).decode(errors="replace").strip()[-KEPT:]


def _told(error: str, out: bytes | bytearray = b"") -> str:
    """What a program wrote to standard error and standard output, as the end of a message."""
    said = _last(out)
    return (f": {error}" if error else "") + (f"{';' if error else ':'} on standard output: {said}" if said else "")


def command(
    arguments: Sequence[str],
    parse: str | Callable[[bytes], Any] = "json",
    *,
    environment: Mapping[str, str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
    unused: str = "error",
    persistent: bool = False,
) -> Command:
    """A program in any language as a simulator.

    Parameters
    ----------
    arguments
        The program and its arguments. `{mu}` is replaced by the value of the parameter mu (those of a
        vector with commas between them), `{seed}` by a whole number
        below 2**31 from the simulation's own random stream (the program must take all its randomness from it),
        `{input}` by the name of a JSON file with all of these, and `{output}` by the name of a file to write to.
        Doubled braces stand for themselves.
    parse
        How to read what the program writes to `{output}` or, without it, to standard output: "json" (a number, an
        array, or an object of them), "csv" (numbers between commas or spaces, with or without a line of column
        names), "npy", or a function of the bytes.
    environment
        Variables to set, with the same names in braces.
    folder
        Where to run it; by default the folder of the Python file that calls `od.command`, so that `./simulator` and
        `data.csv` are those beside the model file. A relative folder is relative to that one.
    timeout
        Seconds after which it is killed and the simulation counts as failed.
    unused
        A parameter of the model without a placeholder is an error unless this is "allow".
    persistent
        Start the program once per worker. It reads one line of JSON for each simulation, such as
        `{"mu": 1.5, "seed": 1234}` with all parameters, and answers with one line: the data as JSON, or
        `{"error": "why"}` for a failed simulation. Templates in R, Julia, C and shell are in examples/programs. A
        program that dies is started again; starting does not count towards `timeout`.

    A simulation fails if the program exits with a status other than 0 (the message has the end of what it wrote), or
    if its output exceeds 64 MiB. Processes that the program starts end with it.

    >>> import sys
    >>> simulate = command([sys.executable, "-c", "import sys; print(float(sys.argv[1]) * 2)", "{mu}"])
    >>> simulate(np.random.default_rng(1), mu=1.5)
    3.0
    """
    if isinstance(arguments, str | bytes) or not isinstance(arguments, Sequence) or not arguments:
        raise ValueError(
            f"arguments must be a list such as ['./simulator', '{{mu}}', '{{seed}}'], got {shown(arguments)}"
        )
    parts = tuple(str(part) if isinstance(part, os.PathLike) else part for part in arguments)
    if not all(isinstance(part, str) for part in parts):
        raise ValueError(f"arguments must all be text, got {arguments!r}")
    if not callable(parse) and not (isinstance(parse, str) and parse in ("json", "csv", "npy")):
        raise ValueError(
            f"parse must be 'json', 'csv', 'npy' or a function of the program's output, got {shown(parse)}"
        )
    if environment is not None and not isinstance(environment, Mapping):
        raise ValueError(f"environment must be a dict of variables and their values, got {shown(environment)}")
    if folder is not None and not isinstance(folder, str | os.PathLike):
        raise ValueError(f"folder must be the name of a folder, got {shown(folder)}")
    if timeout is not None:
        timeout = positive("timeout", timeout, "the number of seconds that one simulation may take", LONGEST)
    unused = one_of("unused", unused, ("error", "allow"))
    persistent = true_or_false("persistent", persistent)
    variables = tuple((str(name), str(value)) for name, value in (environment or {}).items())
    made = Command(
        parts, parse, variables, None if folder is None else str(folder), timeout, unused, persistent,
        _folder_of_caller(sys._getframe(1).f_globals),
    )  # fmt: skip
    for part in made.templates():
        try:
            list(string.Formatter().parse(part))
        except ValueError as error:
            raise ValueError(
                f"{part!r} has braces that do not match ({error}): double those that are meant literally"
            ) from None
    named = sorted(made.names()) + made.files()
    if persistent and named:
        raise ValueError(
            f"the arguments name {{{named[0]}}}, and a persistent program is started before any simulation: it reads "
            "the parameters as lines of JSON from standard input; leave it out"
        )
    if persistent and parse in ("csv", "npy"):
        raise ValueError(f"parse = {parse!r} is not for persistent programs, which answer with one line: use 'json'")
    return made


def _folder_of_caller(names: Mapping[str, Any]) -> str | None:
    """The folder of the file whose global names these are; None in a notebook or at a prompt."""
    file = names.get("__file__")
    return os.path.dirname(os.path.abspath(file)) if isinstance(file, str) else None


def _text(value: Any) -> str:
    """A parameter as a program reads it: all digits of a float, no decimal point in a whole number."""
    number = _number(value)
    return ",".join(map(repr, number)) if isinstance(number, list) else repr(number)


def _number(value: Any) -> int | float | list[Any]:
    """A parameter as JSON has it: a number, or a list of numbers for a vector."""
    if isinstance(value, np.ndarray):
        numbers: list[Any] = value.tolist()
        return numbers
    return int(value) if isinstance(value, int | np.integer) else float(value)


def _csv(text: str) -> Any:
    """Numbers between commas or spaces: a dict of columns if the first line names them, otherwise an array."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise ValueError("there is nothing")
    # With spaces instead of commas, as R's cat and many programs in Fortran and C write numbers.
    separator = "," if "," in lines[0] else None
    words = [[word.strip().strip('"') for word in line.split(separator)] for line in lines]
    first = words[0]
    named = not all(_is_number(word) for word in first)
    if named and len(lines) == 1:
        raise ValueError("there is a line of names and no line of numbers")
    rows = np.atleast_2d(np.array([[float(word) for word in line] for line in words[named:]]))
    if named:
        return {name: rows[:, column] for column, name in enumerate(first)}
    return rows[:, 0] if rows.shape[1] == 1 else rows[0] if len(rows) == 1 else rows


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
