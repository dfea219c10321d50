"""One run in one SQLite file: a specification and a list of records that only ever grows.

A record is a name, a few plain values and a few arrays. Its header (JSON) lists the values and each array's name,
type and shape; its body is the arrays' bytes end to end, little-endian. One CRC32 covers number, name and header, one
the body, and the number of records is written down, so that neither a changed nor a lost record goes unnoticed. One
record is one transaction: a process that is killed at any moment leaves a file that ends with a whole record.
Nothing is ever unpickled: what a file holds is numbers and text.

The rollback journal is used, since SQLite's write-ahead log fails on network file systems. Other processes may read
while a run goes on. Who may write is settled by a second, tiny SQLite file, `<name>.lock`, in which the writer keeps
a transaction open: the operating system ends it with the process, and readers of the run are not held up.

A file may come from anyone. Readers open it read-only, so that nothing beside it is played, changed or removed: what a
killed writer left half-written is undone in a private copy. A journal that names a second journal, which SQLite would
delete, is no journal of a run. Nothing is asked of a file whose tables are not literally those of `SCHEMA`.
"""

import contextlib
import filecmp
import gc
import json
import os
import re
import secrets
import shutil
import sqlite3
import stat
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from onedraw.arguments import shown
from onedraw.engines.arrays import Array
from onedraw.run.record import (
    LostFile,
    Record,
    StoreError,
    check_record,
    check_sessions,
    check_specification,
    is_count,
)

FORMAT = 3
APPLICATION_ID = 0x6F6E6564
"""Marks an SQLite file as a run of onedraw."""
READ_PATIENCE, WRITE_PATIENCE = 10.0, 2.0
"""Seconds to wait for another process's lock: a run should not stand still for a slow reader."""
PAGE = 16_384
"""Bytes a page of a new file: large arrays are written in two thirds of the time that pages of 4,096 take."""
LONGEST_NAME, LONGEST_PATH = 255, 510
"""Bytes in the name of a file, and in that with all folders, that file systems and SQLite accept."""
LARGEST_BODY = 2**28
"""Bytes in one row: SQLite keeps none above 1 GB. What is larger continues in the next rows, whose name is MORE."""
MORE, MOST_ROWS = "+", 2**16
LARGEST_HEADER = 2**26
"""Characters in the header of a record."""
LONGEST_CUT = 2**36
"""Bytes that a file may have lost: what says that it lost more is no run."""
LARGEST_COPY = 2**30
"""Bytes of a damaged file that are copied to see what of it is good."""
COPIED = 2**26
"""Bytes of records that a copy commits together."""
TYPES = re.compile(r"<[iuf][248]|\|[iub]1")
"""Array types that may be stored: plain numbers."""
SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE record (
    sequence INTEGER PRIMARY KEY, name TEXT NOT NULL, header TEXT NOT NULL, header_crc INTEGER NOT NULL,
    body_crc INTEGER NOT NULL, body BLOB NOT NULL
);
"""
TABLES = tuple(statement.strip() for statement in SCHEMA.split(";")[:-1])
HOLDER = "CREATE TABLE holder (process, host, since, token)"
"""The one table of a lock file."""
JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
"""Begins every journal of SQLite, and ends those that name a second journal, which is deleted once they are played."""
LIMITS = {
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 4096,
    sqlite3.SQLITE_LIMIT_COLUMN: 16,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 16,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 2,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
}
"""More than our own statements need."""


def _any(_: Any) -> None:
    """Nothing is asked of what a user's own sampler may keep."""


def _check_count(value: Any) -> None:
    if not is_count(value):
        raise ValueError(f"its number of records is {ascii(value)[:80]}")


CHECKS = {"specification": check_specification, "sessions": check_sessions, "records": _check_count}


class Store:
    """A run's file, open for reading or for writing."""

    def __init__(self, path: str | os.PathLike[str], *, write: bool = False) -> None:
        self.path = file_name(path)
        self.write = write
        self._lock: Lock | None = None
        self._connection: sqlite3.Connection | None = None
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        self._file: tuple[int, int] | None = None
        """Device and number of the file that is being written: a name may come to lead to another one."""
        self._token: str | None = None
        """What this session has put into the file to know it again."""
        there = found(self.path)
        if there is not None and stat.S_ISDIR(there.st_mode):
            raise StoreError(f"{self.path} is a directory: give the name of a file in it, as in {self.path}/run.db")
        if write and found(self.path.absolute().parent) is None:
            raise StoreError(f"{self.path}: the directory {self.path.absolute().parent} does not exist: make it first")
        if not write and there is None:
            raise StoreError(f"{self.path} does not exist: there is no run to read")
        if there is not None and not os.access(self.path, os.R_OK):
            raise StoreError(f"{self.path} cannot be read: you have no permission to")
        if write and there is not None and not os.access(self.path, os.W_OK):
            raise StoreError(f"{self.path} is read-only: make it writable to continue, or read it with od.load")
        self._real = self.path.resolve()
        """The file itself, whatever links lead to it."""
        _check_length(self._real, self.path)
        if write and there is not None and there.st_nlink > 1:
            raise StoreError(
                f"{self.path} has {there.st_nlink} names (hard links), under each of which it could be written: remove "
                "the others, or copy it and continue the copy"
            )
        try:
            if write:
                self._lock = Lock(self.path)
            self._check_identity()
        except BaseException:
            self.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            place = self._real if self._copy is None else Path(self._copy.name) / "copy.db"
            self._check_surroundings(place)
            self._check_ours()
            mode = "rwc" if self.write and self._file is None else "rw" if self.write or self._copy else "ro"
            try:
                connection = _connected(place, mode, WRITE_PATIENCE if self.write else READ_PATIENCE)
                self._connection = connection
                connection.execute("PRAGMA query_only = OFF" if self.write else "PRAGMA query_only = ON")
                if self.write:
                    _check_tables(connection, TABLES, self.path)
                    connection.execute(f"PRAGMA page_size = {PAGE}")
                    connection.execute("PRAGMA journal_mode = DELETE")
                    connection.execute("PRAGMA synchronous = FULL")
                    there = self._real.stat()
                    self._file = self._file or (there.st_dev, there.st_ino)
                    _WRITTEN_HERE.add(self._file)
            except (sqlite3.Error, OSError) as error:
                raise self._broken(error) from error
        return self._connection

    def _check_ours(self) -> None:
        """A LostFile where the name leads no longer to the file that this run has begun to write."""
        if self._file is None:
            return
        there = found(self._real)
        if there is None:
            raise LostFile(f"{self.path} was deleted or moved while the run was writing it")
        if (there.st_dev, there.st_ino) != self._file:
            raise LostFile(f"{self.path} was replaced by another file while the run was writing it")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction, in a file that is still that of this session."""
        self._check_ours()
        connection = self._connect()
        with _transaction(connection):
            if self._token is not None and self.meta("token") != self._token:
                raise LostFile(f"{self.path} was continued by another process while the run was writing it")
            yield connection

    def _check_surroundings(self, place: Path) -> None:
        """What must be known of a file, and of what lies beside it, before SQLite may see it."""
        _check_beside(place, self.path, play=self.write)
        try:
            there = found(place)
            if there is None:
                return
            if not stat.S_ISREG(there.st_mode):
                raise StoreError(f"{self.path} is not a file: give the name of one")
            # To close a file ends all locks that this process has on it: one that is written here was checked before.
            if (there.st_dev, there.st_ino) in _WRITTEN_HERE:
                return
            with place.open("rb") as file:
                start = file.read(20)
        except OSError as error:
            raise self._broken(error) from error
        if start and not start.startswith(b"SQLite format 3\0"):
            raise self._broken(ValueError("it is not a database"))
        if len(start) == 20 and start[18:] != b"\1\1":
            raise StoreError(
                f"{self.path} is no run of onedraw, or its first page is damaged: it asks for another kind of journal"
            )

    def _query(self, statement: str, *values: Any) -> list[Any]:
        """All rows; of the file as it was before a commit that a killed process has left half-written."""
        try:
            return self._connect().execute(statement, values).fetchall()
        except sqlite3.OperationalError as error:
            if self.write or self._copy or _code(error) != sqlite3.SQLITE_READONLY_ROLLBACK:
                raise
        self._disconnect()
        self._copy = _copied(self._real, self.path)
        return self._connect().execute(statement, values).fetchall()

    def _check_identity(self) -> None:
        try:
            ((application,),) = self._query("PRAGMA application_id")
            ((version,),) = self._query("PRAGMA user_version")
            tables = _check_tables(self._connect(), TABLES, self.path)
        except sqlite3.Error as error:
            raise self._broken(error) from error
        # A process that was killed while it made the file leaves an empty one.
        self.empty = application == 0 and not tables
        if self.empty and not self.write:
            raise StoreError(f"{self.path} is empty: no run was begun in it")
        if not self.empty and (application != APPLICATION_ID or not tables):
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
        if "decode" in text:
            # The words of this error hold all of the text.
            return StoreError(f"{self.path} is damaged: it holds text that is not UTF-8")
        if "malformed" in text or "corrupt" in text:
            return StoreError(f"{self.path} is damaged or cut short ({text}): {_good_of_a_cut(self.path)}")
        return StoreError(f"{self.path} cannot be {'written' if self.write else 'read'}: {text}")

    def set_meta(self, values: Mapping[str, Any]) -> None:
        """Put plain values under their keys, all in one transaction; makes the tables in a new file."""
        token = secrets.token_hex(8)
        try:
            with self._writing() as connection:
                if self.empty:
                    for statement in TABLES:
                        connection.execute(statement)
                    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                    connection.execute(f"PRAGMA user_version = {FORMAT}")
                    _write_meta(connection, "records", 0)
                for key, value in {**values, "token": token}.items():
                    _write_meta(connection, key, value)
        except sqlite3.Error as error:
            raise self._broken(error) from error
        self.empty, self._token = False, token

    def meta(self, key: str) -> Any:
        """The plain value under a key, None where there is none."""
        if self.empty:
            return None
        try:
            rows = self._query("SELECT value, crc FROM meta WHERE key = ?", key)
        except sqlite3.Error as error:
            raise self._broken(error) from error
        if not rows:
            return None
        value = self._value(key, *rows[0])
        try:
            CHECKS.get(key, _any)(value)
        except ValueError as error:
            raise StoreError(f"{self.path} does not hold what a run of onedraw holds ({error})") from error
        return value

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
            text, crc, last = next(iter(self._query(query)), ("null", None, None))
        except sqlite3.Error as error:
            raise self._located(error) from error
        written = self._value("records", text, crc)
        if not is_count(written) or written != (last or 0):
            raise self._located(ValueError(f"it should hold {written} records, the last that is found is {last}"))
        return int(written)

    def put(self, *records: tuple[str, Mapping[str, Any], Mapping[str, Array]]) -> None:
        """Append records (name, values, arrays), in one transaction; an sqlite3.Error leaves the file as it was."""
        try:
            with self._writing() as connection:
                (last,) = connection.execute("SELECT max(sequence) FROM record").fetchone()
                sequence = last or 0
                for name, scalars, arrays in records:
                    for row in _rows(name, scalars, arrays):
                        sequence += 1
                        _insert(connection, sequence, *row)
                _write_meta(connection, "records", sequence)
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
        """One record; None where it has another name, which is told from its header alone, or is part of another."""
        try:
            return self._read(sequence, name)
        except (sqlite3.Error, ValueError) as error:
            raise self._located(error) from error

    def _read(self, sequence: int, name: str | None = None) -> Record | None:
        found, header = self._header(sequence)
        if found == MORE or (name is not None and found != name):
            return None
        content = _from_json(header)
        more = content.get("more", 0) if isinstance(content, dict) else 0
        if type(more) is not int or not 0 <= more < MOST_ROWS:
            raise ValueError(f"record {sequence}, {found!r}, does not have the form of one")
        body = [self._body(sequence, found)]
        for row in range(sequence + 1, sequence + 1 + more):
            if self._header(row)[0] != MORE:
                raise ValueError(f"row {row}, which belongs to record {sequence}, {found!r}, is another record")
            body.append(self._body(row, found))
        record = _unpacked(sequence, found, content, body[0] if len(body) == 1 else b"".join(body), more)
        check_record(record)
        return record

    def _header(self, sequence: int) -> tuple[str, str]:
        # One query each, and none for all: a cursor left open would keep the writer from committing.
        query = "SELECT name, header, header_crc, length(header) FROM record WHERE sequence = ?"
        rows = self._query(query.replace(" header,", f" substr(header, 1, {LARGEST_HEADER}),", 1), sequence)
        if not rows:
            raise ValueError(f"record {sequence} is missing")
        name, header, crc, length = rows[0]
        if not isinstance(name, str) or not isinstance(header, str):
            raise ValueError(f"record {sequence} is not made of text and bytes")
        if length > LARGEST_HEADER:
            raise ValueError(f"the header of record {sequence} has {length:,} characters, more than a run writes")
        if _crc(f"{sequence}:{name}:{header}") != crc:
            raise ValueError(f"the checksum of the header of record {sequence} does not fit")
        return name, header

    def _body(self, sequence: int, name: str) -> bytes:
        ((body, crc),) = self._query("SELECT body, body_crc FROM record WHERE sequence = ?", sequence)
        if not isinstance(body, bytes) or zlib.crc32(body) != crc:
            raise ValueError(f"the checksum of record {sequence}, {name!r}, does not fit")
        return body

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
            count = self.meta("records")
        with contextlib.suppress(sqlite3.Error, ValueError, TypeError):
            while count is None or good < count:
                record = self._read(good + 1)
                if record is None:
                    break
                good = record.sequence + record.more
                where = f" ({record.name}, {float(record.scalars.get('seconds', 0)):.1f} s into the run)"
        return good, count, where

    def copy(self, path: Path, good: int | None = None) -> None:
        """Write a new file with what this one holds, each record checked; or with its records up to number `good`."""
        some: list[tuple[str, Mapping[str, Any], Mapping[str, Array]]] = []
        size = 0
        try:
            with Store(path, write=True) as fresh:
                fresh.set_meta({key: self.meta(key) for key in ("specification", "sessions")})
                for sequence in range(1, (self.count() if good is None else good) + 1):
                    record = self._record(sequence, None)
                    if record is None:
                        continue
                    some.append((record.name, record.scalars, record.arrays))
                    size += sum(array.nbytes for array in record.arrays.values())
                    if size >= COPIED:
                        fresh.put(*some)
                        some, size = [], 0
                fresh.put(*some)
        except sqlite3.Error as error:
            raise StoreError(f"{path} cannot be written: {error}") from error

    def drop_after(self, good: int) -> None:
        """Remove the records after number `good`."""
        try:
            with self._writing() as connection:
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
        if self._file is not None:
            _WRITTEN_HERE.discard(self._file)
        if self._copy is not None:
            self._copy.cleanup()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


TRIES = 5
"""How often a lock is asked for that its holder removes meanwhile."""


class Lock:
    """The right to write a run's file, held until it is released or the process ends, however it ends."""

    def __init__(self, path: Path) -> None:
        self.path = _lock_of(path)
        self._token = secrets.token_hex(8)
        for left in reversed(range(TRIES)):
            if self._taken(path, last=left == 0):
                return
            time.sleep(0.01)
        raise StoreError(f"{path}: the lock {self.path} keeps changing hands; try again later")

    def _taken(self, path: Path, last: bool) -> bool:
        _check_lock(self.path, path)
        try:
            self._connection = _connected(self.path, "rwc", 0.1)
        except sqlite3.Error as error:
            raise StoreError(f"{path} cannot be locked for writing ({self.path}: {error})") from error
        # Not needed to read, and slow to import.
        import socket

        try:
            # What this file says ends with the process, so it need not outlive the machine.
            self._connection.execute("PRAGMA synchronous = OFF")
            self._connection.execute("BEGIN IMMEDIATE")
            if not _check_tables(self._connection, (HOLDER,), self.path):
                self._connection.execute(HOLDER)
            self._connection.execute("DELETE FROM holder")
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            own = (os.getpid(), socket.gethostname(), since, self._token)
            self._connection.execute("INSERT INTO holder VALUES (?, ?, ?, ?)", own)
            self._connection.execute("COMMIT")
            # Exclusive, so that others who only read can tell.
            self._connection.execute("BEGIN EXCLUSIVE")
        except StoreError:
            self._connection.close()
            raise
        except sqlite3.Error as error:
            self._connection.close()
            if "locked" in str(error) or "busy" in str(error):
                holder = _holder(self.path)
                if not last and holder is not None and holder[:2] == (os.getpid(), socket.gethostname()):
                    # A run in this process whose end was interrupted: its lock goes when its frames are collected.
                    gc.collect()
                    return False
                raise StoreError(
                    f"{path} is being written by {_described(_holder(self.path))}: wait for it or stop it; od.load "
                    "reads the file meanwhile"
                ) from None
            code = _code(error)
            if code == sqlite3.SQLITE_READONLY_DBMOVED or (code & 0xFF == sqlite3.SQLITE_IOERR and not last):
                # Its last holder may have removed it since it was opened.
                return False
            raise StoreError(f"{path} cannot be locked for writing ({self.path}: {error})") from error
        if self._is_there():
            return True
        self._connection.close()
        return False

    def _is_there(self) -> bool:
        """Whether what we hold is what others find: its last holder may have removed it while we opened it."""
        holder = _holder(self.path)
        return holder is not None and holder[3] == self._token

    def release(self) -> None:
        """Let others write."""
        with contextlib.suppress(OSError, StoreError):
            if self._is_there():
                self.path.unlink()
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()


def _code(error: sqlite3.Error) -> int:
    """What SQLite calls an error; 0 of an error that Python's own code raises, as when a text is not UTF-8."""
    return int(getattr(error, "sqlite_errorcode", 0))


def writer(path: str | os.PathLike[str]) -> str | None:
    """Who writes a run's file at this moment, in words; None where nobody does."""
    try:
        lock = _lock_of(Path(path))
        if found(lock) is None:
            return None
        _check_lock(lock, Path(path))
        with contextlib.closing(_connected(lock, "ro", 0.0)) as there:
            # What can be read was left by a process that was killed.
            there.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError as error:
        if _code(error) & 0xFF == sqlite3.SQLITE_BUSY:
            return _described(_holder(lock))
    except (sqlite3.Error, StoreError):
        # Just made, just removed, or not a lock.
        pass
    return None


def is_run(path: Path) -> bool:
    """Whether a file says at its beginning that it is a run of onedraw, damaged or not; an empty one may become one."""
    try:
        with path.open("rb") as file:
            head = file.read(72)
    except OSError:
        return False
    return not head or (head.startswith(b"SQLite format 3\0") and head[68:] == APPLICATION_ID.to_bytes(4, "big"))


def file_name(path: Any) -> Path:
    """The name of a run's file; a ValueError if it is none."""
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise ValueError(f"path must be the name of a run's file, as in 'run.db', got {shown(path)}")
    return Path(path)


def found(path: Path) -> os.stat_result | None:
    """What lies under a name, None where nothing does; a StoreError where that cannot be told."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StoreError(f"{str(path)[:300]!r} cannot be opened: {reason}. Give another name") from error


def _check_length(real: Path, path: Path) -> None:
    """A StoreError where a name leaves no room for those of the files beside it."""
    beside = len(".lock-journal")
    if len(os.fsencode(real.name)) + beside > LONGEST_NAME or len(os.fsencode(real)) + beside > LONGEST_PATH:
        raise StoreError(
            f"{path} is too long a name for a run: at most {LONGEST_NAME - beside} bytes, and {LONGEST_PATH - beside} "
            "with all its folders"
        )


def _lock_of(path: Path) -> Path:
    real = path.resolve()
    return real.with_name(real.name + ".lock")


def _check_lock(lock: Path, path: Path) -> None:
    _check_beside(lock, lock, play=True)
    with contextlib.suppress(FileNotFoundError):
        _check_plain(lock, f"{path} cannot be locked for writing")


def _holder(lock: Path) -> tuple[Any, ...] | None:
    """What a lock file says of its holder, read as it is: its holder lets nobody else in."""
    try:
        with contextlib.closing(_connected(lock, "ro&immutable=1", 0)) as there:
            if not _check_tables(there, (HOLDER,), lock):
                return None
            row: tuple[Any, ...] | None = there.execute("SELECT process, host, since, token FROM holder").fetchone()
            return row
    except (sqlite3.Error, StoreError):
        return None


def _described(holder: tuple[Any, ...] | None) -> str:
    if holder is None or not all(isinstance(one, str | int) for one in holder[:3]):
        return "another process"
    process, host, since = (str(one)[:100].encode("ascii", "replace").decode() for one in holder[:3])
    text = f"process {process} on {host} since {since}"
    return text if text.isprintable() else "another process"


_WRITTEN_HERE: set[tuple[int, int]] = set()
"""Device and number of the files that this process has open for writing."""


def _connected(place: Path, mode: str, patience: float) -> sqlite3.Connection:
    """A connection that gives a file no trust: nothing in its schema is called, and nothing outside it is reached."""
    uri = f"file:{quote(str(place.absolute()))}?mode={mode}"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=patience)
    for limit, value in LIMITS.items():
        connection.setlimit(limit, value)
    if sys.version_info >= (3, 12):
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_TRIGGER, False)
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_VIEW, False)
    # Neither of them reads the file.
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    return connection


def _check_tables(connection: sqlite3.Connection, statements: Sequence[str], path: Path) -> bool:
    """Whether a file has these very tables (True) or none at all (False); a StoreError where it has others."""
    # Only an index that SQLite makes for a primary key has no SQL.
    query = "SELECT type, sql FROM sqlite_master WHERE sql IS NOT NULL LIMIT 9"
    found = sorted(connection.execute(query).fetchall(), key=repr)
    if found and found != sorted((("table", statement) for statement in statements), key=repr):
        raise StoreError(
            f"{path} is an SQLite file, but not a run of onedraw: its tables are not those of a run. Give another name"
        )
    return bool(found)


def _check_plain(path: Path, what: str) -> None:
    """A StoreError unless this is a file of its own, reached by no link."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        raise StoreError(f"{what}: {path} is a link or no file, which no run makes: remove it")


def _check_beside(place: Path, path: Path, *, play: bool) -> None:
    """A StoreError where SQLite would meet something beside a file that no run has put there."""
    log = place.with_name(place.name + "-wal")
    if os.path.lexists(log):
        raise StoreError(f"{path} cannot be opened: a run has no write-ahead log, and {log} is there: remove it")
    journal = place.with_name(place.name + "-journal")
    with contextlib.suppress(FileNotFoundError):
        _check_plain(journal, f"{path} cannot be opened")
        if play:
            _check_journal(journal, journal, path)


def _check_journal(journal: Path, named: Path, path: Path) -> None:
    """A StoreError where a journal ends with the name of a second one, as those of several databases do."""
    with journal.open("rb") as file:
        if file.seek(0, os.SEEK_END) >= 16:
            file.seek(-8, os.SEEK_END)
            if file.read(8) == JOURNAL_MAGIC:
                raise StoreError(
                    f"{path} cannot be opened: the journal {named} was not written by a run, since it names another "
                    "file, which SQLite would delete. Do not use files from this source; nothing was changed"
                )


def _copied(place: Path, path: Path) -> "tempfile.TemporaryDirectory[str] | None":
    """A private copy of a file and its journal, in which the half-written commit of a killed process can be undone.

    None where the journal is gone meanwhile.
    """
    journal = place.with_name(place.name + "-journal")
    folder = tempfile.TemporaryDirectory(prefix="onedraw-")
    try:
        copy = Path(folder.name) / "copy.db"
        mine = copy.with_name("copy.db-journal")
        for _ in range(20):
            size, room = place.stat().st_size + journal.stat().st_size, shutil.disk_usage(folder.name).free
            if size > room:
                raise StoreError(
                    f"{path} was left in the middle of a save and is read from a copy, for which {folder.name} has no "
                    f"room ({size:,} bytes): set TMPDIR to a larger disk, or continue the run with od.resume"
                )
            _check_plain(journal, f"{path} cannot be opened")
            shutil.copyfile(journal, mine)
            _check_journal(mine, journal, path)
            shutil.copyfile(place, copy)
            # While the journal stays as it is, it turns whatever was copied into the state before the commit.
            if filecmp.cmp(journal, mine, shallow=False):
                return folder
        raise StoreError(f"{path} is being changed too often to be read: try again later")
    except FileNotFoundError:
        folder.cleanup()
        return None
    except OSError as error:
        folder.cleanup()
        raise StoreError(f"{path} cannot be read: {error}") from error
    except BaseException:
        folder.cleanup()
        raise


def _good_of_a_cut(path: Path) -> str:
    """Up to which record a file is good of which SQLite reads nothing, because it is shorter than it says."""
    with contextlib.suppress(OSError, sqlite3.Error, ValueError):
        if path.stat().st_size > LARGEST_COPY:
            return "what of it is good was not looked for, since it is large; od.resume(..., force=True) does"
        with _filled_up(path) as store:
            good, count, where = (0, None, "") if store is None else store.good()
        if good:
            return f"the file is good up to record {good} of {count}{where}"
    return "no record of it can be read"


@contextlib.contextmanager
def _filled_up(path: Path) -> Iterator[Store | None]:
    """A copy of a file that is shorter than it says, filled up with zeros: then the pages that are there can be read.

    None where the file is as long as it says, or is not only cut: a journal is to be played first.
    """
    with tempfile.TemporaryDirectory(prefix="onedraw-") as folder:
        copy, size = Path(folder) / "copy.db", path.stat().st_size
        with path.open("rb") as file:
            start = file.read(32)
        # One stands for the largest page, of 65,536 bytes.
        page = int.from_bytes(start[16:18], "big")
        full = (65_536 if page == 1 else page) * int.from_bytes(start[28:32], "big")
        if not size < full <= LONGEST_CUT + 2 * size or os.path.lexists(path.with_name(path.name + "-journal")):
            yield None
            return
        shutil.copyfile(path, copy)
        os.truncate(copy, full)
        with Store(copy) as store:
            yield store


def mend(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    """Write a file that was cut short anew, with the records that are whole.

    Returns their number and that of all records that it held; None where the file is not cut, or nothing is whole.
    """
    real = file_name(path).resolve()
    if found(real) is None or (found(real.with_name(real.name + "-journal")) is not None):
        return None
    lock = Lock(Path(path))
    try:
        with _filled_up(real) as cut:
            if cut is None:
                return None
            good, count, _ = cut.good()
            if not good or count is None:
                return None
            with tempfile.TemporaryDirectory(prefix=".onedraw-", dir=real.parent) as folder:
                fresh = Path(folder) / "mended.db"
                cut.copy(fresh, good)
                shutil.copymode(real, fresh)
                os.replace(fresh, real)
            return good, count
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"{path} is cut short and cannot be mended: {error}") from error
    finally:
        lock.release()


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


def _rows(
    name: str, scalars: Mapping[str, Any], arrays: Mapping[str, Array]
) -> Iterator[tuple[str, str, list[memoryview]]]:
    """A record as name, header and body of a row; where its body is too large for one, of several."""
    described, parts = _packed(arrays)
    pieces: list[list[memoryview]] = [[]]
    room = LARGEST_BODY
    for part in parts:
        while len(part) > room:
            pieces[-1].append(part[:room])
            part, room = part[room:], LARGEST_BODY
            pieces.append([])
        pieces[-1].append(part)
        room -= len(part)
    more = {"more": len(pieces) - 1} if len(pieces) > 1 else {}
    header = json.dumps({"scalars": dict(scalars), "arrays": described, **more})
    if len(header) > LARGEST_HEADER:
        raise TypeError(f"record {name!r} has {len(header):,} characters of plain values, more than a store keeps")
    for number, piece in enumerate(pieces):
        yield (MORE, str(number), piece) if number else (name, header, piece)


def _insert(connection: sqlite3.Connection, sequence: int, name: str, header: str, parts: list[memoryview]) -> None:
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


def _packed(arrays: Mapping[str, Array]) -> tuple[list[list[Any]], list[memoryview]]:
    """Arrays as a header describes them, and their bytes."""
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
    return described, parts


def _unpacked(sequence: int, name: str, content: Any, body: bytes, more: int) -> Record:
    """A Record from its header and body; a ValueError where they are not those of one."""
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
    return Record(sequence, name, scalars, arrays, more)


def _from_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"a header is not JSON ({type(error).__name__})") from error
