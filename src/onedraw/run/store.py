"""One run in one SQLite file: a specification and a list of records that only ever grows.

A record is a name, a few plain values and a few arrays. Its header (JSON) lists the values and each array's name,
type and shape; its body is the arrays' bytes end to end, little-endian. One CRC32 covers number, name and header, one
the body, and the number of records is written down, so that neither a changed nor a lost record goes unnoticed. One
record is one transaction: a process that is killed at any moment leaves a file that ends with a whole record.
Nothing is ever unpickled: what a file holds is numbers and text.

The rollback journal is used, since SQLite's write-ahead log fails on network file systems. Other processes may read
while a run goes on. Who may write is settled by a second, tiny SQLite file, `<name>.lock`, in which the writer keeps
a transaction open: the operating system ends it with the process, and readers of the run are not held up.
"""

import contextlib
import json
import os
import re
import secrets
import sqlite3
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.run.record import Record, StoreError

FORMAT = 2
APPLICATION_ID = 0x6F6E6564
"""Marks an SQLite file as a run of onedraw."""
READ_PATIENCE, WRITE_PATIENCE = 10.0, 2.0
"""Seconds to wait for another process's lock: a run should not stand still for a slow reader."""
PAGE = 16_384
"""Bytes a page of a new file: large arrays are written in two thirds of the time that pages of 4,096 take."""
LARGEST_COPY = 2**30
"""Bytes of a damaged file that are copied to see what of it is good."""
TYPES = re.compile(r"<[iuf][248]|\|[iub]1")
"""Array types that may be stored: plain numbers."""
SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE record (
    sequence INTEGER PRIMARY KEY, name TEXT NOT NULL, header TEXT NOT NULL, header_crc INTEGER NOT NULL,
    body_crc INTEGER NOT NULL, body BLOB NOT NULL
);
"""


class Store:
    """A run's file, open for reading or for writing."""

    def __init__(self, path: str | os.PathLike[str], *, write: bool = False) -> None:
        self.path = Path(path)
        self.write = write
        self._lock: Lock | None = None
        self._connection: sqlite3.Connection | None = None
        if self.path.is_dir():
            raise StoreError(f"{self.path} is a directory: give the name of a file in it, as in {self.path}/run.db")
        if write and not self.path.absolute().parent.is_dir():
            raise StoreError(f"{self.path}: the directory {self.path.absolute().parent} does not exist: make it first")
        if not write and not self.path.exists():
            raise StoreError(f"{self.path} does not exist: there is no run to read")
        if write and self.path.exists() and not os.access(self.path, os.W_OK):
            raise StoreError(f"{self.path} is read-only: make it writable to continue, or read it with od.load")
        try:
            if write:
                self._lock = Lock(self.path)
            self._connect()
            self._check_identity()
        except BaseException:
            self.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            mode = "rwc" if self.write else "rw"
            patience = WRITE_PATIENCE if self.write else READ_PATIENCE
            try:
                # Not mode=ro: a reader must be able to undo the half-written commit of a process that was killed.
                # Without write permission SQLite falls back to reading by itself.
                connection = sqlite3.connect(
                    f"file:{quote(str(self.path.absolute()))}?mode={mode}",
                    uri=True,
                    isolation_level=None,
                    timeout=patience,
                )
                self._connection = connection
                # The file may come from anyone: its schema gets no trust.
                connection.execute("PRAGMA trusted_schema = OFF")
                connection.execute("PRAGMA cell_size_check = ON")
                connection.execute("PRAGMA query_only = OFF" if self.write else "PRAGMA query_only = ON")
                if self.write:
                    connection.execute(f"PRAGMA page_size = {PAGE}")
                    connection.execute("PRAGMA journal_mode = DELETE")
                    connection.execute("PRAGMA synchronous = FULL")
            except sqlite3.Error as error:
                raise self._broken(error) from error
        return self._connection

    def _check_identity(self) -> None:
        connection = self._connect()
        try:
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        except sqlite3.Error as error:
            raise self._broken(error) from error
        # A process that was killed while it made the file leaves an empty one.
        self.empty = application == 0 and not tables
        if self.empty and not self.write:
            raise StoreError(f"{self.path} is empty: no run was begun in it")
        if not self.empty and (application != APPLICATION_ID or not {"meta", "record"} <= tables):
            raise StoreError(f"{self.path} is an SQLite file, but not a run of onedraw: give another name")
        if not self.empty and version > FORMAT:
            raise StoreError(f"{self.path} has format {version}, this onedraw reads format {FORMAT}: update onedraw")
        if not self.empty and version < FORMAT:
            raise StoreError(
                f"{self.path} was written by an earlier onedraw (format {version}; this one reads format {FORMAT}): "
                "run it again under another name"
            )

    def _broken(self, error: BaseException) -> StoreError:
        text = str(error)
        if "locked" in text or "busy" in text:
            return StoreError(f"{self.path} is locked by another process: {text}; try again later")
        if "not a database" in text:
            return StoreError(
                f"{self.path} is not a run of onedraw (it is no SQLite file), or its first page is damaged"
            )
        if "malformed" in text or "corrupt" in text:
            return StoreError(f"{self.path} is damaged or cut short ({text}): {_good_of_a_cut(self.path)}")
        return StoreError(f"{self.path} cannot be {'written' if self.write else 'read'}: {text}")

    def set_meta(self, values: Mapping[str, Any]) -> None:
        """Put plain values under their keys, all in one transaction; makes the tables in a new file."""
        connection = self._connect()
        try:
            with _transaction(connection):
                if self.empty:
                    for statement in SCHEMA.split(";")[:-1]:
                        connection.execute(statement)
                    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                    connection.execute(f"PRAGMA user_version = {FORMAT}")
                    _write_meta(connection, "records", 0)
                for key, value in values.items():
                    _write_meta(connection, key, value)
        except sqlite3.Error as error:
            raise self._broken(error) from error
        self.empty = False

    def meta(self, key: str) -> Any:
        """The plain value under a key, None where there is none."""
        if self.empty:
            return None
        try:
            row = self._connect().execute("SELECT value, crc FROM meta WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error as error:
            raise self._broken(error) from error
        if row is None:
            return None
        return self._value(key, *row)

    def _value(self, key: str, text: Any, crc: Any) -> Any:
        if not isinstance(text, str) or _crc(f"{key}:{text}") != crc:
            raise StoreError(f"{self.path} is damaged: the checksum of its {key!r} does not fit")
        return _from_json(text)

    def count(self) -> int:
        """The number of records."""
        if self.empty:
            return 0
        try:
            # One query, since a writer may commit between two.
            query = "SELECT value, crc, (SELECT max(sequence) FROM record) FROM meta WHERE key = 'records'"
            text, crc, last = self._connect().execute(query).fetchone() or ("null", None, None)
        except sqlite3.Error as error:
            raise self._located(error) from error
        written = self._value("records", text, crc)
        if written != (last or 0):
            raise self._located(ValueError(f"it should hold {written} records, the last that is found is {last}"))
        return int(written)

    def put(self, *records: tuple[str, Mapping[str, Any], Mapping[str, Array]]) -> None:
        """Append records (name, values, arrays), in one transaction; an sqlite3.Error leaves the file as it was."""
        connection = self._connect()
        try:
            with _transaction(connection):
                (last,) = connection.execute("SELECT max(sequence) FROM record").fetchone()
                for sequence, (name, scalars, arrays) in enumerate(records, start=(last or 0) + 1):
                    header, parts = _packed(scalars, arrays)
                    body_crc = 0
                    for part in parts:
                        body_crc = zlib.crc32(part, body_crc)
                    row = (sequence, name, header, _crc(f"{sequence}:{name}:{header}"), body_crc, sum(map(len, parts)))
                    connection.execute("INSERT INTO record VALUES (?, ?, ?, ?, ?, zeroblob(?))", row)
                    if row[-1]:
                        # Written in place, large arrays take half the time of an INSERT, and no copy.
                        with connection.blobopen("record", "body", sequence) as body:
                            for part in parts:
                                body.write(part)
                _write_meta(connection, "records", (last or 0) + len(records))
        except sqlite3.Error:
            # A connection that met a full disk or a lost file is not used again.
            self._disconnect()
            raise

    def records(self, name: str | None = None) -> Iterator[Record]:
        """The records (with this name), first to last, each checked; a StoreError at the first that is damaged."""
        for sequence in range(1, self.count() + 1):
            record = self._record(sequence, name)
            if record is not None:
                yield record

    def last(self, name: str | None = None) -> Record | None:
        """The last record (with this name)."""
        for sequence in range(self.count(), 0, -1):
            record = self._record(sequence, name)
            if record is not None:
                return record
        return None

    def _record(self, sequence: int, name: str | None) -> Record | None:
        """One record; None where it has another name, which is told from its header alone."""
        try:
            return self._read(sequence, name)
        except (sqlite3.Error, ValueError) as error:
            raise self._located(error) from error

    def _read(self, sequence: int, name: str | None = None) -> Record | None:
        # One query each, and none for all: a cursor left open would keep the writer from committing.
        execute = self._connect().execute
        row = execute("SELECT name, header, header_crc FROM record WHERE sequence = ?", (sequence,)).fetchone()
        if row is None:
            raise ValueError(f"record {sequence} is missing")
        found, header, crc = row
        if not isinstance(found, str) or not isinstance(header, str):
            raise ValueError(f"record {sequence} is not made of text and bytes")
        if _crc(f"{sequence}:{found}:{header}") != crc:
            raise ValueError(f"the checksum of the header of record {sequence} does not fit")
        if name is not None and found != name:
            return None
        body, crc = execute("SELECT body, body_crc FROM record WHERE sequence = ?", (sequence,)).fetchone()
        if not isinstance(body, bytes) or zlib.crc32(body) != crc:
            raise ValueError(f"the checksum of record {sequence}, {found!r}, does not fit")
        return _unpacked(sequence, found, header, body)

    def _located(self, error: BaseException) -> StoreError:
        """What is wrong, and up to which record the file is good."""
        good, count, where = self.good()
        of = "" if count is None else f" of {count}"
        until = f"the file is good up to record {good}{of}{where}" if good else "no record before it is good"
        what = str(error)
        if isinstance(error, sqlite3.Error):
            what = f"SQLite says {what!r}"
        return StoreError(f"{self.path} is damaged or cut short ({what}): {until}")

    def good(self) -> tuple[int, int | None, str]:
        """The last of the records that are whole from the first on, how many there should be, and what that one is."""
        good, where, count = 0, "", None
        with contextlib.suppress(sqlite3.Error, StoreError, TypeError, ValueError):
            count = int(self.meta("records"))
        with contextlib.suppress(sqlite3.Error, ValueError, TypeError):
            while count is None or good < count:
                record = self._read(good + 1)
                assert record is not None
                good = record.sequence
                where = f" ({record.name}, {float(record.scalars.get('seconds', 0)):.1f} s into the run)"
        return good, count, where

    def drop_after(self, good: int) -> None:
        """Remove the records after number `good`."""
        connection = self._connect()
        try:
            with _transaction(connection):
                connection.execute("DELETE FROM record WHERE sequence > ?", (good,))
                _write_meta(connection, "records", good)
        except sqlite3.Error as error:
            raise self._broken(error) from error

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Let go of the file."""
        self._disconnect()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Lock:
    """The right to write a run's file, held until it is released or the process ends, however it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(path.name + ".lock")
        for _ in range(3):
            if self._taken(path):
                return
        raise StoreError(f"{path}: the lock {self.path} keeps changing hands; try again later")

    def _taken(self, path: Path) -> bool:
        try:
            self._connection = sqlite3.connect(self.path, isolation_level=None, timeout=0.1)
            # What this file says ends with the process, so it need not outlive the machine.
            self._connection.execute("PRAGMA synchronous = OFF")
        except sqlite3.Error as error:
            raise StoreError(f"{path} cannot be locked for writing ({self.path}: {error})") from error
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute("CREATE TABLE IF NOT EXISTS holder (process, host, since, token)")
            self._connection.execute("DELETE FROM holder")
            token, since = secrets.token_hex(8), time.strftime("%Y-%m-%d %H:%M:%S")
            # Not needed to read, and slow to import.
            import socket

            holder = (os.getpid(), socket.gethostname(), since, token)
            self._connection.execute("INSERT INTO holder VALUES (?, ?, ?, ?)", holder)
            self._connection.execute("COMMIT")
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            who = self._holder()
            self._connection.close()
            if "locked" in str(error) or "busy" in str(error):
                raise StoreError(
                    f"{path} is being written by {who}: wait for it or stop it; od.load reads the file meanwhile"
                ) from None
            raise StoreError(f"{path} cannot be locked for writing ({self.path}: {error})") from error
        # The last holder may have removed its lock file while we opened it: then what we hold is not there for others.
        with contextlib.suppress(sqlite3.Error):
            there = sqlite3.connect(f"file:{quote(str(self.path.absolute()))}?mode=rw", uri=True, timeout=0.1)
            with contextlib.closing(there):
                if there.execute("SELECT token FROM holder").fetchone() == (token,):
                    return True
        self._connection.close()
        return False

    def _holder(self) -> str:
        with contextlib.suppress(sqlite3.Error):
            row = self._connection.execute("SELECT process, host, since FROM holder").fetchone()
            if row is not None:
                return f"process {row[0]} on {row[1]} since {row[2]}"
        return "another process"

    def release(self) -> None:
        """Let others write."""
        with contextlib.suppress(OSError):
            self.path.unlink()
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()


def writer(path: str | os.PathLike[str]) -> str | None:
    """Who writes a run's file at this moment, in words; None where nobody does."""
    lock = Path(path).with_name(Path(path).name + ".lock")
    if not lock.exists():
        return None
    try:
        there = sqlite3.connect(
            f"file:{quote(str(lock.absolute()))}?mode=rw", uri=True, isolation_level=None, timeout=0
        )
        with contextlib.closing(there):
            row = there.execute("SELECT process, host, since FROM holder").fetchone()
            try:
                # A lock that can be had was left by a process that was killed.
                there.execute("BEGIN IMMEDIATE")
                there.execute("ROLLBACK")
                return None
            except sqlite3.OperationalError:
                return "another process" if row is None else f"process {row[0]} on {row[1]} since {row[2]}"
    except sqlite3.Error:
        # Just made, or just removed.
        return None


def _good_of_a_cut(path: Path) -> str:
    """Up to which record a file is good of which SQLite reads nothing, because it is shorter than it says.

    A copy is filled up with zeros to its full length; then the pages that are there can be read.
    """
    with contextlib.suppress(OSError, sqlite3.Error, ValueError), tempfile.TemporaryDirectory() as folder:
        if path.stat().st_size > LARGEST_COPY:
            return "what of it is good was not looked for, since it is large"
        content = path.read_bytes()
        full = int.from_bytes(content[16:18], "big") * int.from_bytes(content[28:32], "big")
        if full > len(content):
            copy = Path(folder) / "copy.db"
            copy.write_bytes(content)
            os.truncate(copy, full)
            with Store(copy) as store:
                good, count, where = store.good()
            if good:
                return f"the file is good up to record {good} of {count}{where}"
    return "no record of it can be read"


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        raise


def _crc(text: str) -> int:
    return zlib.crc32(text.encode(errors="surrogatepass"))


def _write_meta(connection: sqlite3.Connection, key: str, value: Any) -> None:
    text = json.dumps(value)
    connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?, ?)", (key, text, _crc(f"{key}:{text}")))


def _packed(scalars: Mapping[str, Any], arrays: Mapping[str, Array]) -> tuple[str, list[memoryview]]:
    """Header and body of a record, the body in parts."""
    described: list[list[Any]] = []
    parts: list[memoryview] = []
    for name, array in arrays.items():
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        # Some sums depend on the order in memory in their last bit, so it is part of an array.
        order = "F" if little.flags.f_contiguous and not little.flags.c_contiguous else "C"
        if TYPES.fullmatch(little.dtype.str) is None:
            raise TypeError(f"array {name!r} is of type {array.dtype}, which a store does not keep")
        described.append([name, little.dtype.str, list(little.shape), order])
        flat = np.ascontiguousarray(little.T if order == "F" else little).reshape(-1)
        parts.append(memoryview(flat.view(np.uint8).data))
    return json.dumps({"scalars": dict(scalars), "arrays": described}), parts


def _unpacked(sequence: int, name: str, header: str, body: bytes) -> Record:
    """A Record from its header and body; a ValueError where they are not those of one."""
    content = _from_json(header)
    try:
        scalars, arrays, offset = dict(content["scalars"]), {}, 0
        for key, dtype, shape, order in content["arrays"]:
            if TYPES.fullmatch(dtype) is None or order not in ("C", "F") or not all(type(n) is int for n in shape):
                raise ValueError
            # Plain integers, since NumPy's would wrap: sizes that do not fit the body are found out here.
            count = 1
            for n in shape:
                count *= n
            if min(shape, default=0) < 0 or offset + count * np.dtype(dtype).itemsize > len(body):
                raise ValueError
            array = np.frombuffer(body, dtype, count, offset) if count else np.empty(0, dtype)
            arrays[str(key)] = array.reshape(shape, order=order)
            offset += array.nbytes
        if offset != len(body):
            raise ValueError
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError(f"record {sequence}, {name!r}, does not have the form of one") from error
    return Record(sequence, name, scalars, arrays)


def _from_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"a header is not JSON ({type(error).__name__})") from error
