"""What a job of a job array does: the items of one shard, in order, saved as it goes (`onedraw work`).

A shard can be killed at any moment and started again, on any host, also twice at once: it continues behind its last
saved part, and whoever does the same work writes the same results. Code that has killed the process of a shard three
times without a step forward is run in child processes, as in the workers of a run (`run.pool`).
"""

import os
import pickle
import random
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from onedraw.cost import Cost
from onedraw.engines.children import isolated
from onedraw.engines.threads import one_blas_thread
from onedraw.failures import SimulationError, first_failures, refuse_if_all_failed, told
from onedraw.run.blocks import Deadline, in_chain_blocks, in_order
from onedraw.run.chain_blocks import FIRST_STEPS, next_length
from onedraw.run.lockstep import Advance, Segment, SegmentResult, Tally
from onedraw.run.pool import DEATHS, WorkerError, opened_pool, sendable
from onedraw.run.progress import Progress, Show
from onedraw.run.record import StoreError
from onedraw.run.shard_files import (
    BEATS,
    COMPLETE,
    REMEDIES,
    RUN,
    Damaged,
    Lease,
    RoundClosed,
    ShardRound,
    check_versions,
    disk_time,
    is_alive,
    newest_round,
    process_place,
    process_start,
    read_json,
    read_lease,
    write_lease,
    write_whole,
)
from onedraw.run.signals import Stopped, current_guard, guarded

SAVE_SHARE = 20
"""A part is saved again after at least this many times as long as saving the last one took."""
POLLS = (0.1, 5.0)
"""Seconds between looks for something to do: at first, and after a long wait."""


class ShardSession(NamedTuple):
    """How a shard is worked on."""

    deadline: Deadline
    workers: int | None
    segment: float
    progress: Show
    tell: Callable[[str], None]


def work(
    folder: str | os.PathLike[str],
    shard: int | None = None,
    *,
    wait: float | None = None,
    max_seconds: float | None = None,
    workers: int | None = None,
    segment: float = 60.0,
    progress: Show = False,
    tell: Callable[[str], None] = lambda line: None,
) -> str:
    """Do one shard of the present round of a folder, or, without a number, all that nobody is at.

    Returns "done" if nothing is left to do, "left" if others are still at what is left, or why it was stopped:
    "max_seconds", "interrupted" or "terminated". With `wait`, it goes on with the rounds to come until none has come
    for so many seconds. `tell` gets a line for each shard. An error of a simulation is raised, after it was noted for
    the run.
    """
    path = Path(folder)
    if not path.is_dir():
        raise StoreError(f"{path} is not a folder: give the one that was planned")
    _check_folder(path, shard)
    how = ShardSession(Deadline(max_seconds), workers, segment, progress, tell)
    pause, until = POLLS[0], time.monotonic() + (wait or 0.0)
    with guarded(terminate=True):
        while True:
            now = disk_time(path)
            found = newest_round(path)
            try:
                chosen = None if found is None else _chosen(found, shard, now)
                if found is not None and chosen is not None:
                    reason = _do(found, chosen, now, how)
                    if reason != "done":
                        return reason
                    pause, until = POLLS[0], time.monotonic() + (wait or 0.0)
                    continue
                left = "done" if found is None or shard is not None else _left(found)
            except RoundClosed:
                left = "done"
            if time.monotonic() >= until or (path / COMPLETE).exists():
                return left
            if how.deadline.passed():
                return "max_seconds"
            try:
                current_guard().call(partial(time.sleep, pause))
            except Stopped as stopped:
                return stopped.reason
            pause = min(1.5 * pause, POLLS[1])


def _check_folder(path: Path, shard: int | None) -> None:
    """A StoreError if this is no folder of a job array, or if it has no such shard."""
    known = read_json(path / RUN)
    if known is None:
        raise StoreError(f"{path} is not the folder of a job array: onedraw plan makes one")
    most = known.get("shards") if isinstance(known, dict) else None
    if type(most) is not int:
        raise StoreError(f"{path / RUN} does not hold what a job array writes: {REMEDIES[RUN]}")
    if shard is not None and not 1 <= shard <= most:
        raise StoreError(f"there is no shard {shard}: {path} has shards 1 to {most}")


def _chosen(found: ShardRound, shard: int | None, now: float) -> int | None:
    """The shard to do: the one asked for, or one that nobody is at; None if there is none."""
    parts = found.parts()
    missing = [k for k in range(1, found.shards + 1) if k not in parts or parts[k].done < found.size(k)]
    if shard is not None:
        return shard if shard in missing else None
    free = [k for k in missing if (lease := read_lease(found.lease_name(k))) is None or not is_alive(*lease, now)]
    return random.choice(free) if free else None


def _left(found: ShardRound) -> str:
    parts = found.parts()
    done = all(k in parts and parts[k].done == found.size(k) for k in range(1, found.shards + 1))
    return "done" if done else "left"


class TakenOver(Exception):
    """Another process has done more of this shard."""


class Shard:
    """A shard at work: what is done of it, its parts and its lease."""

    def __init__(self, found: ShardRound, number: int, now: float, how: ShardSession) -> None:
        self.round, self.number, self.how = found, number, how
        self.size = found.size(number)
        self.done = self.simulations = self.failed = 0
        self.results: list[Any] = []
        """Of each item, or of each block of chains."""
        self.collect: Callable[[], list[Any]] = lambda: self.results
        """The results so far."""
        self._began = time.monotonic()
        self._saved, self._saved_at, self._seconds = 0, self._began, 0.0
        self._load()
        self.lease = self._taken_lease(now)

    @property
    def chains(self) -> bool:
        """Whether its items are blocks of chains, of which steps are taken."""
        return bool(self.round.header["kind"] == "chains")

    def _load(self) -> None:
        """Begin behind what was saved. A part that is damaged is made again."""
        while (part := self.round.parts().get(self.number)) is not None:
            try:
                _, (self.results, _) = self.round.unpacked(part)
                self.done, (self.simulations, self.failed) = part.done, self.round.counted(part)
                self._saved = self.done
                return
            except FileNotFoundError:
                # Somebody has just replaced it by a longer one.
                continue
            except Damaged as error:
                self.how.tell(f"{error}. It is made again")
                part.path.unlink(missing_ok=True)

    def _taken_lease(self, now: float) -> Lease:
        known, attempts, place = read_lease(self.round.lease_name(self.number)), 0, process_place()
        if known is not None:
            before, changed = known
            attempts = before.attempts if before.at == self.done else 0
            if is_alive(before, changed, now):
                # Of a process at this place it is known for certain: it has not died of its simulations.
                attempts = max(0, attempts - (before.place == place != ""))
                self.how.tell(f"shard {self.number} is also worked on by process {before.pid} on {before.host}")
            else:
                left = f"process {before.pid} on {before.host} has left it"
                self.how.tell(f"shard {self.number} is taken over: {left}")
        process = (secrets.token_hex(8), socket.gethostname(), os.getpid(), place, process_start(os.getpid()))
        counts = (self.simulations, 0.0, self.done, self.simulations, self.failed)
        return Lease(*process, self.done, attempts, *counts)

    @property
    def alone(self) -> bool:
        """Whether simulations run in children, since they have killed processes before this one."""
        return self.lease.attempts >= DEATHS

    def attempt(self) -> None:
        """Say that simulations begin: if this process dies, they may be to blame."""
        self.lease = self.lease._replace(attempts=self.lease.attempts + 1)
        self.renew()

    def renew(self) -> None:
        """A sign of life."""
        seconds = time.monotonic() - self._began
        now = self.lease._replace(seconds=seconds, done=self.done, simulations=self.simulations, failed=self.failed)
        write_lease(self.round.lease_name(self.number), now)

    def count(self, cost: Cost) -> None:
        """Count what was simulated."""
        self.simulations += int(cost.simulations + cost.surplus)
        self.failed += int(cost.failed)

    def save_if_due(self) -> None:
        """Save if it is time to; a disk that is full is tried again at the next save.

        After a death everything is saved at once, so that a further one shows which item is to blame.
        """
        waited = time.monotonic() - self._saved_at
        if self.lease.attempts < 2 and waited < max(self.how.segment, SAVE_SHARE * self._seconds):
            return
        try:
            self.save()
        except RoundClosed:
            raise
        except StoreError as error:
            self.how.tell(f"warning: {error}. The work goes on, and it is tried again at the next save")
            self._saved_at = time.monotonic()
        self._look_at_earlier()

    def _look_at_earlier(self) -> None:
        """A SimulationError if an earlier shard has ended with an error: the run will not come to this one."""
        now = disk_time(self.round.path)
        for one in self.round.parts().values():
            lease = read_lease(self.round.lease_name(one.shard))
            if one.failed and one.shard < self.number and (lease is None or not is_alive(*lease, now)):
                raise SimulationError(
                    f"shard {one.shard} of this round ended with an error, after which this one is not needed: "
                    f"{self.round.error_of(one)}"
                )

    def save(self, error: Exception | None = None) -> None:
        """Save what is done in one file, and remove those that it replaces; TakenOver if another process has more."""
        mine = [one for one in self.round.all_parts() if one.shard == self.number]
        if max((one.done for one in mine), default=0) > self.done:
            raise TakenOver
        if self.done == self._saved and error is None:
            return
        began, self.results = time.monotonic(), self.collect()
        path = self.round.part_name(self.number, self.done, error is not None)
        header = {
            "token": self.round.token, "shard": self.number, "done": self.done, "of": self.size,
            "error": None if error is None else told(error), "simulations": self.simulations, "failed": self.failed,
            "host": socket.gethostname(),
        }  # fmt: skip
        body = pickle.dumps((self.results, None if error is None else sendable(error)), protocol=5)
        self.round.check_open()
        write_whole(path, header, body)
        self._saved, self._saved_at, self._seconds = self.done, time.monotonic(), time.monotonic() - began
        for one in mine:
            if one.path != path:
                with suppress(OSError):
                    one.path.unlink()

    def leave(self) -> None:
        """Say that this process works on it no more; the lease of another one stays."""
        path = self.round.lease_name(self.number)
        known = read_lease(path)
        if known is None or known[0].token == self.lease.token:
            with suppress(OSError):
                path.unlink()


def _do(found: ShardRound, number: int, now: float, how: ShardSession) -> str:
    """Work on a shard until it is done or something stops it."""
    for line in check_versions(found):
        how.tell(f"warning: {found.path} was made with {line}: the same bytes are not promised")
    while True:
        try:
            return _begun(Shard(found, number, now, how))
        except TakenOver:
            continue


def _begun(shard: Shard) -> str:
    how, found = shard.how, shard.round
    if shard.done == shard.size:
        return "done"
    alone = shard.alone
    if alone:
        how.tell(f"shard {shard.number} has killed {shard.lease.attempts} processes: its simulations run in children")
    try:
        shard.renew()
        task, items = found.task(), found.items(shard.number)
        shard.attempt()
        with _beating(shard), one_blas_thread(), isolated(alone):
            reason = _worked(shard, task, items)
            shard.save()
    except (TakenOver, WorkerError, StoreError):
        raise
    except Exception as error:
        shard.save(error)
        raise
    finally:
        shard.leave()
    so_far = "done" if shard.done == shard.size else f"{100 * shard.done / shard.size:.0f} % done"
    how.tell(
        f"round {found.number}, shard {shard.number}: {so_far}, {shard.simulations:,} simulations, "
        f"{shard.failed:,} failed"
    )
    return reason


def _worked(shard: Shard, task: Any, items: list[Any]) -> str:
    how, threads = shard.how, bool(shard.round.header.get("threads"))
    with opened_pool(how.workers, None, threads=threads) as pool:
        return _steps(shard, pool, task, items) if shard.chains else _items(shard, pool, task, items)


@contextmanager
def _beating(shard: Shard) -> Iterator[None]:
    """Signs of life now and then, also during a long simulation."""
    over = threading.Event()

    def beat() -> None:
        pause, longest = BEATS
        while not over.wait(pause):
            with suppress(StoreError):
                shard.renew()
            pause = min(2 * pause, longest)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _items(shard: Shard, pool: Any, task: Any, items: list[Any]) -> str:
    """Independent items, in order."""
    bar = Progress(shard.how.progress, f"shard {shard.number}", len(items), "items")
    # The first shard makes the first simulations of a run, of which not all may fail.
    first = bool(shard.round.header.get("first")) and shard.number == 1
    failures = first_failures(*(one.failures for one in shard.results))

    def take(item: Any, outcome: Any) -> bool:
        nonlocal failures
        shard.results.append(outcome)
        shard.done += 1
        shard.count(outcome.cost)
        if first:
            failures = first_failures(failures, outcome.failures)
            refuse_if_all_failed(shard.simulations, shard.failed, failures, last=False)
        bar.update(shard.done, f"{shard.failed:,} failed" if shard.failed else "", shard.simulations)
        shard.save_if_due()
        return False

    return in_order(pool, task, items[shard.done :], take, shard.how.deadline, bar)


def _steps(shard: Shard, pool: Any, task: Advance, items: list[Segment]) -> str:
    """Steps of blocks of chains, in segments as long as the clock suggests."""
    bar = Progress(shard.how.progress, f"shard {shard.number}", shard.size, "steps")
    pieces: list[list[SegmentResult]] = [[one] for one in shard.results] or [[] for _ in items]
    begun = [some[0].state if some else item.state for some, item in zip(pieces, items, strict=True)]
    cuts, length = [shard.done], min(task.thin, FIRST_STEPS)

    def segment(block: int, number: int, last: SegmentResult | None) -> Segment | None:
        if cuts[number] == shard.size:
            return None
        if number + 1 == len(cuts):
            cuts.append(cuts[number] + min(length, shard.size - cuts[number]))
        whole, steps = items[block], cuts[number + 1] - cuts[number]
        state = begun[block] if last is None else last.state
        return whole._replace(state=state, first_step=whole.first_step + cuts[number], steps=steps)

    def take(results: list[SegmentResult], seconds: float) -> None:
        nonlocal length
        for some, one in zip(pieces, results, strict=True):
            some.append(one)
            shard.count(one.cost)
        shard.done += results[0].steps
        bar.update(shard.done, "", shard.simulations)
        length = next_length(pool, task, results[0].steps, len(results), seconds)
        shard.save_if_due()

    def collect() -> list[SegmentResult]:
        for some in pieces:
            some[:] = [joined(some)] if some else []
        return [some[0] for some in pieces if some]

    shard.collect = collect
    with bar:
        try:
            return in_chain_blocks(pool, task, len(items), segment, take, shard.how.deadline)
        except Stopped as stopped:
            return stopped.reason


def joined(parts: list[SegmentResult]) -> SegmentResult:
    """Consecutive segments of a block as one."""
    if len(parts) == 1:
        return parts[0]
    tallies = [one.tally for one in parts]
    distances = [one.distances for one in parts if one.distances is not None]
    tally = Tally(
        sum((one.accepted for one in tallies[1:]), tallies[0].accepted),
        sum((one.proposals for one in tallies[1:]), tallies[0].proposals),
        Cost.total([one.cost for one in tallies]),
        sum(one.capped for one in tallies),
        first_failures(*(one.failures for one in tallies)),
        any(one.ignored_rng for one in tallies),
    )
    return SegmentResult(
        parts[-1].state,
        np.concatenate([one.theta for one in parts]),
        np.concatenate(distances) if distances else None,
        tally,
        sum(one.steps for one in parts),
    )
