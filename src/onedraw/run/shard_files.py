"""The folder of a job array: what its files are called, and how they are written and read.

A file appears whole or not at all: it is written under another name and renamed. No file is written by two processes,
but for one shard that two of them work on, whose results are the same. What a folder holds is code and results in
pickles: it is trusted as the model file is.

    run/
      plan.json             the options of `onedraw plan`
      run.json              what the run is, and how many shards a round has at most
      run.db                the run's file, written by `step` alone
      closed.json           rounds that are done, and what of them was not used
      seen.json             how far the round was when the run last asked for it
      complete              there when the run has come to its end
      round-0003/           the present round
        task                the pure task of the round
        items-00017         what shard 17 is to do, in order
        lease-00017         who works on it
        part-00017-000000042           results of the first 42 of its items (or steps, of chains)
        part-00017-000000042.error     the same, and the error that came next
"""

import errno
import hashlib
import json
import os
import pickle
import re
import secrets
import shutil
import socket
import stat
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from onedraw.run.record import StoreError, is_table
from onedraw.run.saving import versions

MAGIC = b"onedraw job array 2\n"
STALE = 180.0
"""Seconds without a sign of life after which a shard counts as left by its process: more than network disks delay."""
BEATS = (0.5, 20.0)
"""Seconds between signs of life: at first, and later."""
ROUND = re.compile(r"round-(\d{4,})")
PART = re.compile(r"part-(\d{5,})-(\d{9,})(\.error)?")
STORE, RUN, CLOSED, SEEN, COMPLETE = "run.db", "run.json", "closed.json", "seen.json", "complete"
PLAN = "plan.json"
REMEDIES = {
    CLOSED: "remove it: nothing but counts is lost",
    SEEN: "remove it: nothing is lost",
    RUN: "remove it, and with the same model and settings the next step writes it again",
    PLAN: "remove it, and give onedraw plan again, with the same options",
}
"""What to do about a file of plain values that cannot be read."""


class ShardsMissing(RuntimeError):
    """A run on an `od.job_array` waits for shards that are not finished; the same call continues when they are.

    `round` is the number of the round in its folder, `shards` are those that are missing, and `moved` says whether
    any was worked on since the last call.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> od.rejection(model, od.uniform(0.5), budget=64, seed=1, executor=od.job_array(folder.name, shards=2))
    Traceback (most recent call last):
    ...
    onedraw.run.shard_files.ShardsMissing: round 1 waits for 2 of 2 shards
    >>> folder.cleanup()
    """

    def __init__(self, message: str, round: int, shards: tuple[int, ...], moved: bool) -> None:
        super().__init__(message)
        self.round, self.shards, self.moved = round, shards, moved


class RoundClosed(StoreError):
    """The files of a round are no longer there: its results are in the run's file."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} was removed while it was used: give the same command again")


class Damaged(StoreError):
    """A file of a folder that is not as it was written."""


class ShardPart(NamedTuple):
    """A file with the results of a shard so far."""

    path: Path
    shard: int
    done: int
    failed: bool
    """Whether an error came after them."""


class Lease(NamedTuple):
    """Who works on a shard, and how far it is."""

    token: str
    """Drawn for the lease: neither host names nor numbers of processes are unique."""
    host: str
    pid: int
    place: str
    """Where this number means this process (`process_place`); empty where nobody can tell."""
    start: int
    """When it was started, by the clock of its system."""
    at: int
    """What was done of the shard when it began."""
    attempts: int
    """How many processes, this one included, have begun to simulate at the same place; none before it does."""
    before: int
    """Simulations that were made then."""
    seconds: float
    """Since it began."""
    done: int
    simulations: int
    failed: int


def write_whole(path: Path, header: Mapping[str, Any], body: bytes = b"") -> None:
    """A file with a checksum and a line of JSON, and a body, renamed into place."""
    digest = hashlib.blake2b(body, digest_size=16).hexdigest()
    line = checked({**header, "bytes": len(body), "digest": digest}).encode()
    with _renamed(path) as hidden, hidden.open("wb") as file:
        file.write(MAGIC + line + b"\n")
        file.write(body)
        file.flush()
        os.fsync(file.fileno())


def checked(value: Any, indent: int | None = None) -> str:
    """Plain values as JSON, with a checksum.

    >>> checked({"budget": 3})
    '{"crc": 3926048392, "value": {"budget": 3}}'
    >>> unchecked('{"crc": 3926048392, "value": {"budget": 2}}')
    Traceback (most recent call last):
    ...
    ValueError: its checksum does not fit
    """
    return json.dumps({"crc": _crc(value), "value": value}, indent=indent)


def unchecked(text: str | bytes) -> Any:
    """The values of such a text; a ValueError if they are not those that were written."""
    try:
        found = json.loads(text)
        if not is_table(found) or set(found) != {"crc", "value"} or found["crc"] != _crc(found["value"]):
            raise ValueError("its checksum does not fit")
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return found["value"]


def _crc(value: Any) -> int:
    return zlib.crc32(json.dumps(value).encode())


@contextmanager
def _renamed(path: Path) -> Iterator[Path]:
    """Another name for a file until it is whole. If it cannot be written, a StoreError, and nothing of it is left."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        yield hidden
        hidden.replace(path)
    except OSError as error:
        with suppress(OSError):
            hidden.unlink()
        if _gone(error) and ROUND.fullmatch(path.parent.name):
            raise RoundClosed(path.parent) from error
        raise _not_written(path, error) from error


def _not_written(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"{path} could not be written ({error.strerror or error}): make room, or make it writable, and give the same "
        "command again"
    )


def _gone(error: OSError) -> bool:
    return error.errno in (errno.ENOENT, errno.ESTALE)


def header_of(path: Path) -> dict[str, Any]:
    """The header of such a file."""
    with _read(path) as file:
        return _header(path, file)


@contextmanager
def _read(path: Path) -> Iterator[BinaryIO]:
    """A file to read from; a FileNotFoundError if there is none, and a StoreError if it cannot be read."""
    try:
        with open(path, "rb", opener=_opened) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "it is no plain file")
            yield file
    except OSError as error:
        if _gone(error):
            raise FileNotFoundError(error.errno, error.strerror, str(path)) from error
        raise StoreError(
            f"{path} cannot be read ({error}): make it readable, and give the same command again; or {_remedy(path)}"
        ) from error


def _opened(path: str, flags: int) -> int:
    """A pipe of this name is not waited for: nothing is in it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _header(path: Path, file: BinaryIO) -> dict[str, Any]:
    if file.read(len(MAGIC)) != MAGIC:
        raise Damaged(f"{path} is no file of a job array of this version of onedraw: {_remedy(path)}")
    try:
        found = unchecked(file.readline())
        if not is_table(found):
            raise ValueError("no header")
    except ValueError as error:
        raise Damaged(f"{path} is damaged: its first lines cannot be read; {_remedy(path)}") from error
    return dict(found)


def _remedy(path: Path) -> str:
    """What to do about a file that cannot be used."""
    if path.name in REMEDIES:
        return REMEDIES[path.name]
    if PART.fullmatch(path.name):
        return "remove it, and start the work on that shard again"
    return f"remove the folder {path.parent}, and the next step writes this round again"


def read_whole(path: Path) -> tuple[dict[str, Any], bytes]:
    """Header and body; a StoreError if the file is not whole."""
    with _read(path) as file:
        header = _header(path, file)
        body = file.read()
    if len(body) != header["bytes"] or hashlib.blake2b(body, digest_size=16).hexdigest() != header["digest"]:
        raise Damaged(f"{path} is damaged: it is not as it was written; {_remedy(path)}")
    return header, body


def unpickled(path: Path, body: bytes) -> Any:
    """The value in a body; a StoreError if this Python cannot make it."""
    try:
        return pickle.loads(body)
    except Exception as error:
        raise StoreError(
            f"{path} cannot be unpacked here ({type(error).__name__}: {error}): all hosts of a job array need the same "
            "versions of Python, onedraw and of the packages that the model imports"
        ) from error


def write_json(path: Path, value: Any) -> None:
    """A small file of plain values, with a checksum, renamed into place."""
    with _renamed(path) as hidden:
        hidden.write_text(checked(value, indent=1) + "\n")


def read_json(path: Path) -> Any:
    """The values in it; None if there is no such file."""
    try:
        with _read(path) as file:
            return unchecked(file.read())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise Damaged(f"{path} cannot be read ({error}): {_remedy(path)}") from error


def listed(folder: Path) -> list[str]:
    """The names in a folder."""
    try:
        return os.listdir(folder)
    except OSError as error:
        if _gone(error) and ROUND.fullmatch(folder.name):
            raise RoundClosed(folder) from error
        raise StoreError(
            f"{folder} cannot be read ({error}): make it readable, and give the same command again"
        ) from error


def make_folder(folder: Path) -> None:
    """Make a folder, unless it is there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"the folder {folder} could not be made ({error}): give another name, or make room") from error


def disk_time(folder: Path) -> float:
    """Now by the clock of the disk. A file is made for it, after which a network disk lists the folder as it is."""
    probe = folder / f".look.{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(4)}"
    try:
        probe.touch()
        return probe.stat().st_mtime
    except OSError:
        return time.time()
    finally:
        with suppress(OSError):
            probe.unlink()


# --- rounds ------------------------------------------------------------------------------------------------


class ShardRound(NamedTuple):
    """A round as it lies in a folder."""

    path: Path
    number: int
    header: Mapping[str, Any]

    @property
    def shards(self) -> int:
        """How many it has."""
        return int(self.header["shards"])

    @property
    def token(self) -> str:
        """Of this round and no other."""
        return str(self.header["token"])

    def size(self, shard: int) -> int:
        """Items of a shard, or steps of its chains."""
        return int(self.header["sizes"][shard - 1])

    def check_open(self) -> None:
        """RoundClosed if there is another round under its name."""
        with self._whole(self.path / "task"):
            if header_of(self.path / "task").get("token") != self.token:
                raise RoundClosed(self.path)

    def parts(self) -> dict[int, ShardPart]:
        """The furthest part of each shard that has one."""
        found: dict[int, ShardPart] = {}
        for one in self.all_parts():
            known = found.get(one.shard)
            if known is None or (one.done, one.failed) > (known.done, known.failed):
                found[one.shard] = one
        return found

    def all_parts(self) -> Iterator[ShardPart]:
        """Every part."""
        for name in listed(self.path):
            match = PART.fullmatch(name)
            if match is None or not 1 <= int(match[1]) <= self.shards:
                continue
            if int(match[2]) <= self.size(int(match[1])):
                yield ShardPart(self.path / name, int(match[1]), int(match[2]), match[3] is not None)

    def part_name(self, shard: int, done: int, failed: bool = False) -> Path:
        """Where a part is kept."""
        return self.path / f"part-{shard:05d}-{done:09d}{'.error' if failed else ''}"

    def lease_name(self, shard: int) -> Path:
        """Where its lease is kept."""
        return self.path / f"lease-{shard:05d}"

    def unpacked(self, part: ShardPart) -> tuple[dict[str, Any], Any]:
        """Header and results of a part; a StoreError if it is not one of this round."""
        header, body = read_whole(part.path)
        if header.get("token") != self.token or header.get("done") != part.done or header.get("shard") != part.shard:
            raise Damaged(f"{part.path} belongs to another round or shard: {_remedy(part.path)}")
        found = unpickled(part.path, body)
        if not isinstance(found, tuple) or len(found) != 2 or not isinstance(found[0], list):
            raise Damaged(f"{part.path} does not hold results: {_remedy(part.path)}")
        if self.header["kind"] == "items" and len(found[0]) != part.done:
            raise Damaged(f"{part.path} holds {len(found[0])} results, not {part.done}: {_remedy(part.path)}")
        return header, found

    def counted(self, part: ShardPart) -> tuple[int, int]:
        """Simulations in a part, and how many of them failed; none if it is gone."""
        try:
            header = header_of(part.path)
        except FileNotFoundError:
            return 0, 0
        made, failed = header.get("simulations"), header.get("failed")
        if type(made) is not int or type(failed) is not int:
            raise Damaged(f"{part.path} does not say what was simulated: {_remedy(part.path)}")
        return made, failed

    def error_of(self, part: ShardPart) -> str:
        """The error that a part ended with, in words."""
        try:
            return str(header_of(part.path).get("error"))
        except FileNotFoundError:
            return "it was begun again"

    def task(self) -> Any:
        """What is done with the items."""
        path = self.path / "task"
        with self._whole(path):
            return unpickled(path, read_whole(path)[1])

    @contextmanager
    def _whole(self, path: Path) -> Iterator[None]:
        """Around reading a file that every round has."""
        try:
            yield
        except FileNotFoundError as error:
            if not self.path.exists():
                raise RoundClosed(self.path) from error
            raise Damaged(f"{path} is missing: {_remedy(path)}") from error

    def places(self, shard: int) -> list[Any]:
        """Where in the run the items of a shard are."""
        path = self._items(shard)
        with self._whole(path):
            header = header_of(path)
        if header.get("token") != self.token or not isinstance(header.get("places"), list):
            raise StoreError(f"{path} belongs to another round: {_remedy(path)}")
        return list(header["places"])

    def items(self, shard: int) -> list[Any]:
        """What a shard is to do."""
        path = self._items(shard)
        self.places(shard)
        with self._whole(path):
            found: list[Any] = unpickled(path, read_whole(path)[1])
        return found

    def _items(self, shard: int) -> Path:
        return self.path / f"items-{shard:05d}"


def newest_round(folder: Path) -> ShardRound | None:
    """The round that a folder is at; None if there is none."""
    numbers = [int(match[1]) for name in listed(folder) if (match := ROUND.fullmatch(name))]
    if not numbers:
        return None
    path = folder / f"round-{max(numbers):04d}"
    try:
        header = header_of(path / "task")
    except FileNotFoundError:
        # Its results were taken a moment ago.
        return None
    if header.get("kind") not in ("items", "chains"):
        raise StoreError(f"{path / 'task'} has no {'kind'!r} that is known: {_remedy(path / 'task')}")
    wanted = {
        "shards": int, "token": str, "sizes": list, "phase": str, "number": int, "versions": dict, "part": int,
    }  # fmt: skip
    for name, kind in wanted.items():
        if not isinstance(header.get(name), kind):
            raise StoreError(f"{path / 'task'} has no {name!r}: {_remedy(path / 'task')}")
    sizes = header["sizes"]
    if header["part"] < 0 or len(sizes) != header["shards"] or not all(type(one) is int and one > 0 for one in sizes):
        raise StoreError(f"{path / 'task'} does not say what its shards do: {_remedy(path / 'task')}")
    return ShardRound(path, max(numbers), header)


def check_versions(found: ShardRound) -> list[str]:
    """A StoreError if a round was made by another onedraw or Python; other packages that differ, in words."""
    here, there = versions(), found.header["versions"]
    for name in ("onedraw", "python"):
        places = 2 if name == "python" else 3
        if here[name].split(".")[:places] != str(there.get(name)).split(".")[:places]:
            raise StoreError(
                f"{found.path} was made with {name} {there.get(name)}, and this is {name} {here[name]}: use the same "
                "on all hosts of a job array"
            )
    return [f"{name} {there.get(name)}, here {here[name]}" for name in here if here[name] != there.get(name)]


def write_round(
    folder: Path,
    number: int,
    header: Mapping[str, Any],
    task: bytes,
    shards: list[tuple[int, list[Any], bytes]],
) -> ShardRound:
    """A round, renamed into place as a whole: of each shard its size, the places of its items, and the items."""
    token = secrets.token_hex(8)
    hidden = folder / f".round-{number:04d}.{os.getpid()}.{token}"
    try:
        hidden.mkdir()
    except OSError as error:
        raise _not_written(hidden, error) from error
    sizes = [size for size, _, _ in shards]
    whole = {**header, "token": token, "shards": len(shards), "sizes": sizes, "versions": versions()}
    write_whole(hidden / "task", whole, task)
    for k, (_, places, items) in enumerate(shards):
        write_whole(hidden / f"items-{k + 1:05d}", {"token": token, "places": places}, items)
    made = ShardRound(folder / f"round-{number:04d}", number, whole)
    try:
        (folder / COMPLETE).unlink(missing_ok=True)
        if made.path.exists():
            # The rest of a round whose task is missing, which nobody can do.
            remove_round(made)
        hidden.rename(made.path)
    except OSError as error:
        raise _not_written(made.path, error) from error
    return made


def remove_leftovers(folder: Path) -> None:
    """Remove what a process did not come to write or to remove to the end."""
    for name in listed(folder):
        if name.startswith((".round-", ".gone-")):
            shutil.rmtree(folder / name, ignore_errors=True)
        elif name.startswith(tuple(f".{one}." for one in (RUN, CLOSED, SEEN, COMPLETE))):
            with suppress(OSError):
                (folder / name).unlink()


def remove_round(found: ShardRound) -> None:
    """Remove the files of a round. Workers that are still at it notice that they are gone."""
    gone = found.path.with_name(f".gone-{found.number:04d}.{found.token}")
    with suppress(OSError):
        found.path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


# --- leases ------------------------------------------------------------------------------------------------


def write_lease(path: Path, lease: Lease) -> None:
    """Say who works on a shard; RoundClosed if there is nothing to work on any more."""
    write_json(path, lease._asdict())


def read_lease(path: Path) -> tuple[Lease, float] | None:
    """The lease of a shard and when it was renewed; None if there is none that can be read."""
    try:
        with _read(path) as file:
            value, changed = unchecked(file.read()), os.fstat(file.fileno()).st_mtime
        known = Lease(**value)
        kinds = (str, str, int, str, int, int, int, int, float, int, int, int)
        return (known, changed) if all(map(isinstance, known, kinds)) else None
    except (OSError, StoreError, ValueError, TypeError):
        return None


def process_place() -> str:
    """Where numbers of processes mean what they mean here: the start of this system, and its space of processes.

    Hosts may have the same name, and containers on one host each their own processes. Empty where it is not known.
    """
    try:
        if os.readlink("/proc/self") != str(os.getpid()):
            return ""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def process_start(pid: int) -> int:
    """When a process of this place was started; 0 where that is not known."""
    try:
        # Its name, in parentheses, may hold anything.
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def is_gone(lease: Lease) -> bool:
    """Whether it is known for certain that the process of a lease is not there any more."""
    if not lease.place or lease.place != process_place():
        return False
    try:
        os.kill(lease.pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass
    # Its number may be that of another one by now: in a container that was started again it often is.
    start = process_start(lease.pid)
    return 0 not in (start, lease.start) and start != lease.start


def is_alive(lease: Lease, changed: float, now: float) -> bool:
    """Whether somebody still works on a shard: at the same place by its process, elsewhere by its last sign of life."""
    # A sign of life far in the future is of a clock that was set back since.
    return not is_gone(lease) and abs(now - changed) < STALE
