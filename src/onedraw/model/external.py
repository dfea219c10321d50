"""Simulators in any language: a program that is started for each pseudo-sample.

Parameters go in as arguments, environment variables or a JSON file; the data set comes out as JSON, CSV or a NumPy
file, on standard output or in a file. No shell is involved, so no value is ever read as a command.
"""

import os
import re
import signal
import string
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from onedraw.arguments import LONGEST, positive, shown
from onedraw.engines.children import TimedOut, end_group, guardian
from onedraw.failures import FAULTS, told

KEPT = 2000
"""Characters of a failed program's standard error that are kept."""
MOST = 64 * 2**20
"""Bytes of output that a program may write."""
READ_AT_ONCE = 65_536
LOOK_SECONDS = 0.1
"""How often a program that has not closed its output is looked at."""
LAST_OUTPUT = 1.0
"""Seconds after a program's end in which what it has started may still write."""
FILES = ("input", "output")
"""Names in braces that stand for files and not for parameters."""


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

    def __call__(self, rng: np.random.Generator, **parameters: Any) -> Any:
        import json
        import tempfile
        from pathlib import Path

        words = {name: _text(value) for name, value in parameters.items()}
        if "seed" not in words:
            words["seed"] = str(int(rng.integers(2**31)))
        with tempfile.TemporaryDirectory(prefix="onedraw-") as scratch:
            files = {name: str(Path(scratch, name)) for name in FILES}
            if any("{input}" in part for part in self.templates()):
                numbers = {name: _number(value) for name, value in parameters.items()}
                Path(files["input"]).write_text(json.dumps({**numbers, "seed": int(words["seed"])}))
            said = self._run({**words, **{name: path for name, path in files.items() if name not in words}})
            if any("{output}" in part for part in self.templates()):
                if not Path(files["output"]).is_file():
                    raise CommandFailed(f"{self.arguments[0]} ended well and wrote no file at {{output}}")
                if Path(files["output"]).stat().st_size > MOST:
                    raise CommandFailed(
                        f"{self.arguments[0]} wrote more than {MOST // 2**20} MiB to {{output}}: write less"
                    )
                said = Path(files["output"]).read_bytes()
        return self._parsed(said)

    def templates(self) -> tuple[str, ...]:
        """All texts in which names in braces are replaced."""
        return (*self.arguments, *(value for _, value in self.environment))

    def names(self) -> set[str]:
        """The names in braces, files left out."""
        found = {name for part in self.templates() for _, name, _, _ in string.Formatter().parse(part) if name}
        return found - set(FILES)

    def _run(self, words: Mapping[str, str]) -> bytes:
        import subprocess

        call = [part.format_map(words) for part in self.arguments]
        more = {name: value.format_map(words) for name, value in self.environment}
        process = subprocess.Popen(
            call,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.folder,
            env={**os.environ, **more} if more else None,
            start_new_session=True,
        )
        guardian.watch(process.pid)
        out, err = Reader(process.stdout, MOST), Reader(process.stderr, None)
        try:
            finished = _finished(process, out, err, self.timeout)
        finally:
            # The program may have started others: all of its session ends with it.
            end_group(process)
            process.wait()
            guardian.let_go(process.pid)
        said = bytes(err.kept).decode(errors="replace").strip()[-KEPT:]
        if out.over:
            raise CommandFailed(
                f"{call[0]} wrote more than {MOST // 2**20} MiB to standard output, and was killed: write less, or to "
                "{output}" + (f". It said: {said}" if said else "")
            )
        if not finished:
            raise TimedOut(f"{call[0]} not finished after timeout = {self.timeout:g} s, and killed")
        if process.returncode != 0:
            code = process.returncode
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
            raise CommandFailed(f"{' '.join(call)} {how}" + (f": {said}" if said else " and said nothing"))
        return bytes(out.kept)

    def _parsed(self, said: bytes) -> Any:
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
            if isinstance(value, dict):
                return {key: np.asarray(part, dtype=float) for key, part in value.items()}
            return np.asarray(value, dtype=float) if isinstance(value, list) else value
        except FAULTS as error:
            start = said[:200].decode(errors="replace")
            name = "parse" if callable(self.parse) else self.parse
            raise CommandFailed(
                f"the output of {self.arguments[0]} cannot be read as {name} ({told(error)}): {start!r}"
            ) from error


def command(
    arguments: Sequence[str],
    parse: str | Callable[[bytes], Any] = "json",
    *,
    environment: Mapping[str, str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
) -> Command:
    """A program in any language as a simulator.

    Parameters
    ----------
    arguments
        The program and its arguments. `{mu}` is replaced by the value of the parameter mu, `{seed}` by a whole number
        below 2**31 from the simulation's own random stream (the program must draw all its randomness from it),
        `{input}` by the name of a JSON file with all of these, and `{output}` by the name of a file to write to.
        Doubled braces stand for themselves.
    parse
        How to read what the program writes to `{output}` or, without it, to standard output: "json" (a number, an
        array, or an object of them), "csv" (numbers, with a line of column names or without), "npy", or a function
        of the bytes.
    environment
        Variables to set, with the same names in braces.
    folder
        Where to run it.
    timeout
        Seconds after which it is killed and the simulation counts as failed.

    A status other than 0 is a failed simulation, with the end of standard error in its message; so is output of more
    than 64 MiB. What the program has started ends with it.

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
    variables = tuple((str(name), str(value)) for name, value in (environment or {}).items())
    made = Command(parts, parse, variables, None if folder is None else str(folder), timeout)
    for part in made.templates():
        try:
            list(string.Formatter().parse(part))
        except ValueError as error:
            raise ValueError(
                f"{part!r} has braces that do not match ({error}): double those meant as they are"
            ) from None
    return made


def _text(value: Any) -> str:
    """A parameter as a program reads it: all digits of a float, no decimal point in a whole number."""
    return repr(_number(value))


def _number(value: Any) -> int | float:
    return int(value) if isinstance(value, int | np.integer) else float(value)


def _csv(text: str) -> Any:
    """Numbers from CSV: a dict of columns if the first line names them, otherwise an array."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise ValueError("there is nothing")
    first = re.split(r"\s*,\s*", lines[0].strip())
    named = not all(_is_number(word) for word in first)
    rows = np.atleast_2d(np.array([[float(word) for word in line.split(",")] for line in lines[named:]]))
    if named:
        return {name: rows[:, column] for column, name in enumerate(first)}
    return rows[:, 0] if rows.shape[1] == 1 else rows[0] if len(rows) == 1 else rows


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
