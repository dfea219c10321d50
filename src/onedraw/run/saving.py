"""When a run saves, what it compares when it goes on, and what it does where saving fails.

A run's result is a function of its seed and its specification. So to resume is to run the same code again: what the
file holds is loaded instead of computed, and the run goes on behind it. The clock decides only when something is
saved.
"""

import contextlib
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.failures import NoAnswer
from onedraw.run.record import LostFile, OtherRun, Record, StoreError
from onedraw.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from onedraw.run.store import Store

LARGEST = 64 * 2**20
"""Bytes after which a run saves whatever the clock says: SQLite keeps no record above 1 GB, and memory is finite."""
LIMITS = ("draws", "budget", "coverage", "data_sets")
"""Arguments that say how far a run goes; they may be raised."""

Name = str | os.PathLike[str]
Entry = tuple[str, dict[str, Any], dict[str, Array]]


@dataclass(frozen=True)
class Continue:
    """A file that must hold a run already, with what to do where the model has changed; made by `od.resume`."""

    path: Name
    force: bool = False
    reached: list[Name] = field(default_factory=list, compare=False)
    """Filled when the file is opened to be written: all arguments were accepted then."""


@dataclass(frozen=True)
class Part:
    """A part of the file of a measurement that makes several runs, given to one of them as its store."""

    saver: "Saver"
    prefix: str


@dataclass(frozen=True)
class Specification:
    """What a run is: all that its numbers depend on."""

    algorithm: str
    arguments: Mapping[str, Any]
    """Plain values. Where one differs, the run is another one and cannot go on in the same file."""
    parts: Mapping[str, Mapping[str, str]]
    """Fingerprints of what cannot be stored: the user's functions and data (see `engine.fingerprint`)."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What a reader without the model needs to know, such as the parameters' names."""

    def as_json(self) -> dict[str, Any]:
        """For the file."""
        return {
            "algorithm": self.algorithm,
            "arguments": dict(self.arguments),
            "parts": {key: dict(value) for key, value in self.parts.items()},
            "facts": dict(self.facts),
        }


class AtOnce:
    """Around changes of what is saved that belong together.

    A second Ctrl-C may come between any two lines. If it, or an error, ends such a change half-way, nothing more is
    saved: the file then ends before the change or behind it, and the run continues from there.
    """

    def __init__(self) -> None:
        self.torn = False
        self._depth = 0

    @property
    def begun(self) -> bool:
        """Whether a change was begun that has not come to its end."""
        return self.torn or self._depth > 0

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, kind: Any, *_: object) -> None:
        self.torn = self.torn or kind is not None
        self._depth -= 1


class Saver:
    """A run's way to its file; without a file it does nothing."""

    def __init__(self, store: "Store | None" = None, segment: float = math.inf) -> None:
        self._store = self._opened = store
        self.segment = segment
        self.notes: tuple[str, ...] = ()
        self.limits: list[list[int | None]] = []
        """Draws and budget of this and earlier sessions."""
        self._pending: list[Entry] = []
        self._warned = False
        self._began = self._saved = time.perf_counter()
        self._before = 0.0
        self._prefix, self._whole = "", self
        self.at_once = AtOnce()
        if store is not None:
            last = store.last()
            self._before = 0.0 if last is None else float(last.scalars.get("seconds", 0.0))

    def part(self, prefix: str) -> "Saver":
        """The same file under names with a prefix; whoever opened the file closes it."""
        inner = Saver(None, self.segment)
        inner._whole, inner._prefix, inner.at_once = self, prefix, self.at_once
        return inner

    @property
    def store(self) -> "Store | None":
        """The file; None where there is none, or none any more."""
        return self._whole._store

    def records(self, name: str) -> Iterator[Record]:
        """What an earlier session saved under this name, first to last."""
        if self.store is not None:
            # What is lost with its file is computed again.
            with contextlib.suppress(LostFile):
                yield from self.store.records(self._prefix + name)

    def last(self, name: str | None = None) -> Record | None:
        """The last of these."""
        if self.store is None:
            return None
        with contextlib.suppress(LostFile):
            return self.store.last(self._prefix + (name or "finished")) if self._prefix else self.store.last(name)
        return None

    def seconds(self) -> float:
        """Wall-clock time of all sessions up to now."""
        return self._before + time.perf_counter() - self._began

    def due(self, unsaved: int = 0) -> bool:
        """Whether it is time to save, with so many bytes not saved yet."""
        if self.store is None:
            return False
        return unsaved >= LARGEST or time.perf_counter() - self._whole._saved >= self.segment

    def put(
        self,
        name: str,
        scalars: Mapping[str, Any],
        arrays: Mapping[str, Array] | None = None,
        along: Mapping[str, Mapping[str, Array]] | None = None,
    ) -> None:
        """Save a record, at once where it is time to; `along` are records of arrays that belong to it.

        Arrays must not be written to afterwards.
        """
        if self.store is None or self.at_once.torn:
            return
        if self._whole is not self:
            named = {self._prefix + other: more for other, more in (along or {}).items()}
            self._whole.put(self._prefix + name, scalars, arrays, named)
            return
        seconds = {"seconds": self.seconds()}
        with self.at_once:
            self._pending += [(other, seconds, dict(more)) for other, more in (along or {}).items()]
            self._pending.append((name, {**scalars, **seconds}, dict(arrays or {})))
            # A commit costs more than a small record, so records wait for each other as long as the user allows.
            if self.due(sum(array.nbytes for _, _, some in self._pending for array in some.values())):
                self._flush()

    def _flush(self) -> None:
        import sqlite3

        assert self.store is not None
        self._saved = time.perf_counter()
        try:
            self.store.put(*self._pending)
            self._pending = []
        except LostFile as error:
            self._store, self._pending = None, []
            warnings.warn(
                f"{error}: the run continues in memory and saves nothing more; the posterior that it returns is whole",
                stacklevel=2,
            )
        except (sqlite3.Error, StoreError, OSError) as error:
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"{self.store.path} could not be written ({error}): the run continues in memory and tries again at "
                    "the next save; what was saved before is safe. Make room, or make the file writable again",
                    stacklevel=2,
                )

    def commit(self, earlier: float = 0.0) -> None:
        """Save everything now, and count seconds that passed before this session; a StoreError if it cannot be."""
        whole = self._whole
        whole._before += earlier
        with self.at_once:
            if whole._pending:
                whole._flush()
        if whole._pending or whole.store is None:
            name = "the file of the run" if whole.store is None else whole.store.path
            raise StoreError(f"{name} could not be written: make room, and give the same call again")

    def ended_with(self, message: str) -> bool:
        """Whether the file already says that the run ended like this."""
        last = None if self._whole._pending else self.last()
        return last is not None and last.name.endswith("finished") and last.scalars.get("message") == message

    def finish(self, reason: str, message: str, notes: Sequence[str] = ()) -> None:
        """Say how this session ended, unless the file says so already."""
        if self.store is not None and not self.ended_with(message):
            self.put("finished", {"reason": reason, "message": message, "notes": list(notes)})

    def close(self) -> None:
        """A last try to save what could not be saved, and let go of the file."""
        if self._opened is None or self._whole is not self:
            return
        if self._pending and not self.at_once.begun:
            self._flush()
        if self._pending and not self.at_once.begun:
            warnings.warn(
                f"{self._opened.path} could not be written to the end: its last {len(self._pending)} records are lost "
                "when this process ends. The posterior returned is whole; od.resume would compute them again",
                stacklevel=2,
            )
        self._opened.close()

    def __enter__(self) -> "Saver":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def as_recorded(saver: Saver, taken: Callable[[], bool]) -> Iterator[None]:
    """Around what is done with recorded results: if they have another form than a run's, the error says so.

    `taken` says, when there was an error, whether anything came from the file.
    """
    try:
        yield
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        if saver.store is None or isinstance(error, StoreError | NoAnswer) or not taken():
            raise
        raise StoreError(
            f"the run cannot continue from what {saver.store.path} holds ({error!r}): the file was changed or written "
            "by another version, or a function of yours failed. Give store= another name"
        ) from error


def place(store: Any) -> "Path | None":
    """The file that `store=` names, None where there is none."""
    if store is None or isinstance(store, Part):
        return None
    path = store.path if isinstance(store, Continue) else store
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise ValueError(f"store must be the name of a file, as in store='run.db', or None, got {store!r}")
    from pathlib import Path

    return Path(path)


def recorded_seed(store: Any, seed: Any) -> Any:
    """The seed given; where none is, that of the run which the file holds already."""
    path = place(store)
    if seed is not None or path is None:
        return seed
    from onedraw.run.store import Store, found

    there = found(path)
    if there is None or there.st_size == 0 or path.is_dir():
        return seed
    with Store(path) as file:
        written = file.meta("specification")
        return written["arguments"].get("seed") if written and file.count() else None


def begin(store: Any, segment: float, make_specification: Callable[[], Specification]) -> Saver:
    """The way to the file that `store=` names: a new one, or one that holds this very run already."""
    if isinstance(store, Part):
        return store.saver.part(store.prefix)
    path = place(store)
    if path is None:
        return Saver()
    force = isinstance(store, Continue) and store.force
    from onedraw.run.store import Store, found

    if isinstance(store, Continue) and found(path) is None:
        raise StoreError(f"{path} does not exist: there is no run to resume")
    specification = make_specification()
    if isinstance(store, Continue):
        store.reached.append(store.path)

    file = Store(path, write=True)
    try:
        if force:
            _cut_off_damage(file)
        written = file.meta("specification")
        now: dict[str, Any] = {
            "began": time.strftime("%Y-%m-%d %H:%M:%S"), "versions": versions(specification.arguments.get("engine")),
            "limits": [specification.arguments.get(name) for name in ("draws", "budget")],
        }  # fmt: skip
        # A file in which nothing was saved yet binds nobody.
        sessions = [now]
        if written is not None and file.count():
            before = list(file.meta("sessions") or [])
            changed = _compare(file, written, specification, before, now["versions"], force)
            sessions = [*before, {**now, "forced": changed} if changed else now]
        file.set_meta({"specification": specification.as_json(), "sessions": sessions})
        saver = Saver(file, segment)
        saver.notes = forced_notes(sessions)
        saver.limits = [one["limits"] for one in sessions]
        return saver
    except BaseException:
        file.close()
        raise


def forced_notes(sessions: Any) -> tuple[str, ...]:
    """What a reader must know of sessions that went on although something had changed."""
    return tuple(
        f"this run was continued with force=True although {', '.join(session['forced'])}: it mixes two models"
        for session in sessions
        if session.get("forced")
    )


def versions(engine: str | None = None) -> dict[str, str]:
    """What the bytes of a run depend on besides its specification; on a device also JAX and the device."""
    import scipy

    device: dict[str, str] = {}
    if engine is not None:
        from onedraw.engines import jax

        device = jax.versions()
    return {
        "onedraw": __version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        **device,
    }


def _compare(
    file: "Store",
    written: dict[str, Any],
    given: Specification,
    sessions: list[dict[str, Any]],
    now: dict[str, str],
    force: bool,
) -> list[str]:
    """An OtherRun that names what has changed; what `force` let pass, in words."""
    if written["algorithm"] != given.algorithm:
        raise OtherRun(
            f"{file.path} holds a run of {written['algorithm']}, not of {given.algorithm}", "Give store= another name"
        )
    settings = differences(written["arguments"], given.arguments)
    if settings:
        raise OtherRun(
            f"{file.path} holds another run: {'; '.join(settings)}", "Give the same settings, or store= another name"
        )
    before = sessions[-1]["versions"] if sessions else now
    other = [f"{name} {before.get(name)} -> {version}" for name, version in now.items() if before.get(name) != version]
    if other:
        warnings.warn(
            f"{file.path} was written with other versions ({', '.join(other)}): the run continues, but identical "
            "results are no longer guaranteed",
            stacklevel=6,
        )
    parts = changed_parts(written["parts"], given.parts, code=same_python(before, now))
    if parts and not force:
        raise OtherRun(
            f"{file.path} belongs to a different version of your model: {'; '.join(parts)}",
            "Use the model that it was made with, or another file; od.resume(..., force=True) continues all the same "
            "and says so in the file",
        )
    return parts


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Arguments that differ, in words; a limit that was raised or lifted does not."""
    found = []
    for key in (*before, *(key for key in now if key not in before)):
        old, new = before.get(key), now.get(key)
        if old == new or (isinstance(old, float) and isinstance(new, float) and math.isnan(old) and math.isnan(new)):
            continue
        if key in LIMITS:
            if old is not None and (new is None or new > old):
                continue
            found.append(f"{key}: {old} -> {new} (it may be raised, not lowered)")
        else:
            found.append(f"{key}: {old} -> {new}")
    return found


def same_python(before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Whether two sessions ran the same version of Python: between versions, bytecode says nothing about a function.

    >>> same_python({"python": "3.11.2"}, {"python": "3.11.9"}), same_python({}, {"python": "3.11.9"})
    (True, False)
    """
    return before.get("python", "").split(".")[:2] == now["python"].split(".")[:2]


def changed_parts(
    before: Mapping[str, Mapping[str, str]], now: Mapping[str, Mapping[str, str]], code: bool = True
) -> list[str]:
    """Parts whose fingerprints differ, in words, as in "model.simulate changed (global RATE)"."""
    found = []
    for part in dict.fromkeys((*before, *now)):
        old, new = before.get(part, {}), now.get(part, {})
        keys = [key for key in dict.fromkeys((*old, *new)) if old.get(key) != new.get(key)]
        keys = [key for key in keys if code or key != "code"]
        if keys:
            found.append(f"{part} changed ({', '.join(keys)})")
    return found


def _cut_off_damage(file: "Store") -> None:
    """With force, records from the first damaged one on are removed: the run computes them again."""
    if file.empty:
        return
    good, count, _ = file.good()
    if count is not None and good < count:
        warnings.warn(f"{file.path}: {count - good} damaged records are removed and computed again", stacklevel=6)
        file.drop_after(good)
