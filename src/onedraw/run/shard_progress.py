"""How far the shards of a job array are, for those who look on: `onedraw watch`."""

import os
from pathlib import Path
from typing import Any, NamedTuple

from onedraw.run.job_array import closed_rounds
from onedraw.run.record import StoreError, is_table
from onedraw.run.shard_files import (
    COMPLETE,
    REMEDIES,
    RUN,
    STALE,
    RoundClosed,
    ShardPart,
    ShardRound,
    disk_time,
    is_alive,
    newest_round,
    read_json,
    read_lease,
)

STATES = ("done", "running", "stale", "error", "waiting")


class ShardState(NamedTuple):
    """One shard of the present round."""

    shard: int
    state: str
    """One of STATES: stale is one whose process has left it without a word."""
    done: int
    of: int
    """Items, or steps of chains."""
    simulations: int
    failed: int
    host: str | None = None
    pid: int | None = None
    age: float | None = None
    """Seconds since the last sign of life."""
    pace: float = 0.0
    """Simulations per second."""
    share: float = 0.0
    """Of the shard, per second."""
    error: str | None = None


class ArrayState(NamedTuple):
    """A look at a folder."""

    folder: str
    algorithm: str
    budget: int | None
    complete: bool
    round: int | None
    """The present one; None before the first, between two, and after the last."""
    shards: tuple[ShardState, ...]
    simulations: int
    """Of all rounds."""
    failed: int
    unused: int
    """Simulations of earlier rounds that the run has not used."""
    moves: bool
    """Whether somebody works on a shard, or something was written within the last minutes."""

    def count(self, state: str) -> int:
        """How many shards are in this state."""
        return sum(one.state == state for one in self.shards)

    @property
    def pace(self) -> float:
        """Simulations per second of all shards at work."""
        return sum(one.pace for one in self.shards)

    @property
    def seconds_left(self) -> float | None:
        """Of the present round, if those at work go on like this; None if that is not known."""
        speed = sum(one.share for one in self.shards)
        left = sum(1 - one.done / one.of for one in self.shards)
        return left / speed if speed > 0 else None


def look_at(folder: Path) -> ArrayState:
    """How far the shards of a folder are."""
    known = read_json(folder / RUN)
    if known is None:
        raise StoreError(f"{folder} is not the folder of a job array: onedraw plan makes one")
    specification: Any = known.get("specification") if is_table(known) else None
    if not is_table(specification) or not is_table(specification.get("arguments")):
        raise StoreError(f"{folder / RUN} does not hold what a job array writes: {REMEDIES[RUN]}")
    now, closed = disk_time(folder), closed_rounds(folder)
    found = newest_round(folder)
    try:
        shards = () if found is None else _states(found, now)
        moves = found is not None and abs(now - _last_written(found)) < STALE
    except RoundClosed:
        found, shards, moves = None, (), True
    complete = (folder / COMPLETE).exists()
    moves = complete or moves or any(one.state == "running" for one in shards)
    made = sum(one["simulations"] for one in closed) + sum(one.simulations for one in shards)
    failed = sum(one["failed"] for one in closed) + sum(one.failed for one in shards)
    return ArrayState(
        str(folder), str(specification.get("algorithm")), specification["arguments"].get("budget"), complete,
        None if found is None else found.number, shards, made, failed, sum(one["unused"] for one in closed), moves,
    )  # fmt: skip


def _states(found: ShardRound, now: float) -> tuple[ShardState, ...]:
    parts = found.parts()
    return tuple(_state(found, shard, parts.get(shard), now) for shard in range(1, found.shards + 1))


def _state(found: ShardRound, shard: int, part: ShardPart | None, now: float) -> ShardState:
    size, saved = found.size(shard), 0 if part is None else part.done
    made, failed = (0, 0) if part is None else found.counted(part)
    if saved == size:
        return ShardState(shard, "done", size, size, made, failed)
    known = read_lease(found.lease_name(shard))
    if known is not None:
        lease, changed = known
        speed = 1 / lease.seconds if lease.seconds > 0 and is_alive(lease, changed, now) else 0.0
        done = min(max(saved, lease.done), size)
        return ShardState(
            shard, "running" if is_alive(lease, changed, now) else "stale", done, size, max(made, lease.simulations),
            max(failed, lease.failed), lease.host, lease.pid, max(0.0, now - changed),
            speed * max(0, lease.simulations - lease.before), speed * max(0, lease.done - lease.at) / size,
        )  # fmt: skip
    if part is not None and part.failed:
        return ShardState(shard, "error", saved, size, made, failed, error=found.error_of(part))
    return ShardState(shard, "waiting", saved, size, made, failed)


def _last_written(found: ShardRound) -> float:
    """When a part of a round was last written, or the round itself."""
    try:
        return max(found.path.stat().st_mtime, *(os.stat(one.path).st_mtime for one in found.all_parts()), 0.0)
    except OSError as error:
        raise RoundClosed(found.path) from error
