"""What a run's file holds, one entry at a time, and what is said where it cannot be used. The file is in store.py."""

from typing import Any, NamedTuple

from onedraw.engines.arrays import Array


class StoreError(ValueError):
    """A run's file that cannot be used as asked; the message says why and what to do.

    >>> import onedraw as od
    >>> od.load("no-such-run.db")
    Traceback (most recent call last):
    ...
    onedraw.run.record.StoreError: no-such-run.db does not exist: there is no run to read
    """


class LostFile(StoreError):
    """What lies under the name of a run's file is no longer the file that this run has begun to write."""


class Record(NamedTuple):
    """One entry of a file: plain values and arrays (read-only)."""

    sequence: int
    name: str
    scalars: dict[str, Any]
    arrays: dict[str, Array]
    more: int = 0
    """Rows of the file that it takes besides its own."""
