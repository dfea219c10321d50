"""A run whose simulations are made by the jobs of a queue: `executor=od.job_array(folder, shards=N)`.

The driver asks for the outcomes of a round. They are taken from the folder, in order, as far as shards have done them.
If some are missing, the call ends with ShardsMissing, and the same call, given again, continues: what was taken is in
the run's file, and the plan of the run is followed again from there. Only this process writes that file, so that the
numbers are those of a run in one process. What a shard does is in `run.shard_work`.
"""

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from onedraw.arguments import positive, whole_number
from onedraw.engines.children import packed
from onedraw.run.record import OtherRun, StoreError, is_table
from onedraw.run.saving import Specification, changed_parts, differences, place, same_python, versions
from onedraw.run.shard_files import (
    CLOSED,
    COMPLETE,
    REMEDIES,
    RUN,
    SEEN,
    STORE,
    RoundClosed,
    ShardPart,
    ShardRound,
    ShardsMissing,
    check_versions,
    disk_time,
    is_alive,
    make_folder,
    newest_round,
    read_json,
    read_lease,
    remove_leftovers,
    remove_round,
    write_json,
    write_round,
)
from onedraw.run.signals import Stopped, current_guard

MOST_SHARDS = 100_000
MOST_ITEMS = 1_000_000
"""In a round of shards: what is left is one more round."""
GUESS = 10
"""Proposals per acceptance that are assumed before anything is known."""
FASTEST = 10
"""How many times as many proposals as so far a further round of shards may make for the same round of the run."""
POLLS = (0.1, 5.0)
"""Seconds between looks at the folder: at first, and after a long wait."""


class Place(NamedTuple):
    """A round of a run as the driver counts them, by phase."""

    phase: str
    number: int
    counts: Mapping[str, int]
    """How many rounds of each phase were begun so far, this one included."""

    def is_behind(self, phase: str, number: int) -> bool:
        """Whether another round was over when this one began."""
        return (phase, number) != (self.phase, self.number) and self.counts.get(phase, 0) > number


class Division(NamedTuple):
    """How blocks of a round are simulated in parts (`run.blocks`), so that there are some for every shard."""

    size: Callable[[Sequence[Any], int], int]
    of: Callable[[Iterable[Any], int], Iterable[Any]]
    taking: Callable[[Callable[[Any, Any], bool]], Callable[[Any, Any], bool]]


class Pace(NamedTuple):
    """How far a round is that ends when it has enough."""

    found: int
    wanted: int
    made: int
    """Proposals so far."""


def job_array(folder: str | os.PathLike[str], shards: int, wait: float | None = None) -> "JobArray":
    """A job array as the `executor=` of a run: the work of each round is written to a folder.

    The call raises `od.ShardsMissing` when it needs simulations that are not finished. Then run `onedraw work FOLDER
    --shard N` for each shard, on any host that can see the folder, in any order, as often as you like. The same call,
    given again, continues. The run is kept in FOLDER/run.db, and its numbers are those of one process
    (docs/scaling.md). On the command line, `onedraw plan` and `onedraw step` do the same.

    Parameters
    ----------
    folder
        Created if it does not exist. Anyone who can write there can run code as you, as with a model file.
    shards
        The largest number of parts of a round, each the work of one job.
    wait
        Seconds to wait for missing shards while nothing happens in the folder; by default none.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)), lambda rng, theta: rng.normal(theta, 1.0), observed=2.0)
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> jobs = od.job_array(folder.name, shards=2)
    >>> def call(**more):
    ...     return od.rejection(model, od.uniform(0.5), budget=64, seed=1, **more)
    >>> try:
    ...     call(executor=jobs)
    ... except od.ShardsMissing as missing:
    ...     print(missing)
    round 1 waits for 2 of 2 shards
    >>> from onedraw.run.shard_work import work
    >>> [work(folder.name, shard) for shard in (2, 1)]
    ['done', 'done']
    >>> (call(executor=jobs).draws["theta"] == call().draws["theta"]).all()
    np.True_
    >>> folder.cleanup()
    """
    if not isinstance(folder, str | os.PathLike) or not str(folder):
        raise ValueError(f"folder must be the name of a folder, as in od.job_array('run', shards=8), got {folder!r}")
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise ValueError(f"folder = {str(path)!r} is a file: give the name of a folder")
    number = whole_number("shards", shards, "the number of parts that a round is cut into", most=MOST_SHARDS)
    if wait is not None:
        wait = positive("wait", wait, "the number of seconds to wait for missing shards")
    return JobArray(path, number, wait or 0.0)


class JobArray:
    """The folder of a job array, as the run sees it. Made by `od.job_array`."""

    remote = True
    piece = math.inf
    """There is no longest piece of work."""
    each: float | None = None
    """Seconds of a simulation, which only the shards know."""

    def __init__(self, folder: Path, shards: int, wait: float) -> None:
        self.folder, self.shards, self.wait = folder, shards, wait
        self._threads, self._began = False, 0.0

    def __repr__(self) -> str:
        return f"od.job_array({str(self.folder)!r}, shards={self.shards})"

    def store(self, asked: Any) -> Any:
        """The run's file, which lies in the folder."""
        mine = self.folder / STORE
        if asked is None:
            make_folder(self.folder)
            return mine
        given = place(asked)
        if given is None or given.resolve() != mine.resolve():
            raise ValueError(f"store = {str(given)!r} with {self!r}, which keeps its run in {mine}: leave store= out")
        return asked

    def seed(self, asked: Any) -> Any:
        """The seed given; if there is none, that of the run which the folder holds already."""
        known = read_json(self.folder / RUN) if asked is None else None
        return asked if known is None else _specified(self.folder / RUN, known)["arguments"].get("seed")

    @property
    def surplus(self) -> int:
        """Simulations that shards have made and the run has not used."""
        return sum(one["unused"] for one in closed_rounds(self.folder))

    def begin(self, specification: Specification, threads: bool) -> None:
        """Say which run this is; an OtherRun if the folder is that of another one."""
        self._began, self._threads = disk_time(self.folder), threads
        remove_leftovers(self.folder)
        known, now = read_json(self.folder / RUN), specification.as_json()
        what = [] if known is None else _differs(self.folder / RUN, known, now)
        if what:
            raise OtherRun(
                f"{self.folder} belongs to another run: {'; '.join(what)}",
                "Use the model and the settings that it was planned with, or another folder",
            )
        found = newest_round(self.folder)
        shards = max(self.shards, 0 if found is None else found.shards)
        write_json(self.folder / RUN, {"shards": shards, "specification": now, "versions": versions()})

    def end(self) -> None:
        """Say that the run is complete, for workers that wait for more to do."""
        left = newest_round(self.folder)
        if left is not None:
            self._close(left, 0)
        write_json(self.folder / COMPLETE, {"ended": time.time()})

    # --- answers to the driver -----------------------------------------------------------------------------

    def in_order(
        self,
        here: Place,
        task: Any,
        items: Callable[[], Iterable[Any]],
        take: Callable[[Any, Any], bool],
        pace: Callable[[], Pace] | None,
        keep: Callable[[float], None],
        passed: Callable[[], bool],
        first: bool,
        parts: Division | None = None,
    ) -> str:
        """Hand each outcome of a round to `take`, in order: "enough", "done", or the reason why it was stopped.

        `items()` are those behind what was taken so far. `pace` says how far a round is that ends when it has enough.
        `keep` makes sure that what was taken is in the run's file, and adds seconds that passed between sessions.
        `passed` says whether time is up. `first` marks the first simulations of a run. Items may be done in `parts`.
        """

        def coming(found: ShardRound) -> Iterable[Any]:
            size = found.header["part"]
            return parts.of(items(), size) if parts is not None and size else items()

        while True:
            ahead = next(iter(items()), None)
            if ahead is None:
                return "done"
            found = self._present(here)
            if found is not None and not _holds(found, next(iter(coming(found)))):
                self._close(found, 0)
                found = None
            if found is None:
                number = MOST_ITEMS if pace is None else items_wanted(pace(), ahead.size, self.shards)
                found = self._written(here, "items", task, list(islice(items(), min(number, MOST_ITEMS))), first, parts)
            taking = parts.taking(take) if parts is not None and found.header["part"] else take
            try:
                enough, unused = self._taken(found, coming(found), taking, passed)
            except Stopped as stopped:
                return stopped.reason
            keep(_earlier_seconds(found, self._began))
            self._close(found, unused)
            if enough:
                return "enough"

    def _taken(
        self,
        found: ShardRound,
        items: Iterable[Any],
        take: Callable[[Any, Any], bool],
        passed: Callable[[], bool],
    ) -> tuple[bool, int]:
        """Take the outcomes of a round of shards: whether the run has enough, and simulations that it has no use for.

        With a larger budget than the round was planned for, its last item may be another one than the run now wants.
        """
        coming = iter(items)
        item, parts, begun = next(coming, None), found.parts(), False
        for shard in range(1, found.shards + 1):
            places = found.places(shard)
            if not begun and place_of(item) not in places:
                continue
            first, begun = 0 if begun else places.index(place_of(item)), True
            results, error, parts = self._results(found, shard, parts, passed)
            for k in range(first, len(results)):
                fits = item is not None and place_of(item) == places[k]
                enough = fits and take(item, results[k])
                if enough or not fits:
                    rest = sum(_simulations(one) for one in results[k + fits :])
                    later = range(shard + 1, found.shards + 1)
                    return enough, rest + sum(done_by(found, other, parts)[0] for other in later)
                item = next(coming, None)
            if error is not None:
                raise error
        return False, 0

    def segments(self, here: Place, task: Any, pieces: Sequence[Any], passed: Callable[[], bool]) -> list[Any]:
        """What the chains of a round have done: of each block all steps. Stopped if time or a signal came first."""
        found = self._present(here)
        if found is not None and _all_places(found) != [place_of(one) for one in pieces]:
            # Planned for another number of steps.
            self._close(found, sum(done_by(found, k, found.parts())[0] for k in range(1, found.shards + 1)))
            found = None
        if found is None:
            found = self._written(here, "chains", task, list(pieces), False)
        every: list[Any] = []
        parts = found.parts()
        for shard in range(1, found.shards + 1):
            results, error, parts = self._results(found, shard, parts, passed)
            if error is not None:
                raise error
            every += results
        return every

    def close(self, here: Place, keep: Callable[[float], None]) -> None:
        """Close the round whose segments were taken."""
        found = self._present(here)
        if found is not None:
            keep(_earlier_seconds(found, self._began))
            self._close(found, 0)

    def _results(
        self, found: ShardRound, shard: int, parts: dict[int, ShardPart], passed: Callable[[], bool]
    ) -> tuple[list[Any], Exception | None, dict[int, ShardPart]]:
        """All results of a shard, or those before its error; waited for, if that was asked for."""
        pause, until = POLLS[0], time.monotonic() + self.wait
        while True:
            part = parts.get(shard)
            if part is not None and (part.failed or part.done == found.size(shard)):
                # A shard that was begun again may have replaced it.
                with suppress(FileNotFoundError):
                    results, error = found.unpacked(part)[1]
                    return results, error, parts
            before, now = parts, disk_time(found.path)
            parts = found.parts()
            if parts != before:
                until = time.monotonic() + self.wait
                continue
            if time.monotonic() >= until and not (self.wait and _any_alive(found, now)):
                raise self._missing(found, parts)
            if passed():
                raise Stopped("max_seconds")
            current_guard().call(partial(time.sleep, pause))
            pause = min(1.5 * pause, POLLS[1])

    def _missing(self, found: ShardRound, parts: dict[int, ShardPart]) -> ShardsMissing:
        """The error that names what is missing; the folder remembers how far it was."""
        missing = tuple(k for k in range(1, found.shards + 1) if k not in parts or parts[k].done < found.size(k))
        seen = {"round": found.number, "done": sum(one.done for one in parts.values())}
        moved = read_json(self.folder / SEEN) != seen or _any_alive(found, disk_time(found.path))
        write_json(self.folder / SEEN, seen)
        message = f"round {found.number} waits for {len(missing)} of {found.shards} shards"
        for shard in missing:
            if shard in parts and parts[shard].failed:
                message += f"; shard {shard} ended with an error: {found.error_of(parts[shard])}"
                break
        return ShardsMissing(message, found.number, missing, moved)

    # --- rounds --------------------------------------------------------------------------------------------

    def _present(self, here: Place) -> ShardRound | None:
        """The round that the folder is at, if it is this one; one that was over before is closed."""
        found = newest_round(self.folder)
        if found is None:
            return None
        check_versions(found)
        phase, number = found.header["phase"], found.header["number"]
        if here.is_behind(phase, number):
            self._close(found, 0)
            return None
        if (phase, number) != (here.phase, here.number):
            raise self._stray(found)
        return found

    def _stray(self, found: ShardRound) -> StoreError:
        return StoreError(
            f"{found.path} does not follow from what {self.folder / STORE} holds: plan the run again in another folder"
        )

    def _written(
        self, here: Place, kind: str, task: Any, items: list[Any], first: bool, parts: Division | None = None
    ) -> ShardRound:
        """Write a round for these items, cut into as many shards as there are or can be."""
        part = 0 if parts is None else parts.size(items, self.shards)
        if parts is not None:
            items = list(parts.of(items, part))
        number = 1 + max((one["round"] for one in closed_rounds(self.folder)), default=0)
        shards = min(self.shards, len(items))
        cuts = [len(items) * k // shards for k in range(shards + 1)]
        every = []
        for begin, end in pairwise(cuts):
            some = items[begin:end]
            size = some[0].steps if kind == "chains" else len(some)
            every.append((size, [place_of(one) for one in some], packed(some)))
        header = {
            "phase": here.phase, "number": here.number, "kind": kind, "threads": self._threads, "first": first,
            "part": part,
        }  # fmt: skip
        return write_round(self.folder, number, header, packed(task), every)

    def _close(self, found: ShardRound, unused: int) -> None:
        """Remove a round whose results are in the run's file, and note what was done."""
        try:
            parts = found.parts()
            counts = [done_by(found, shard, parts) for shard in range(1, found.shards + 1)]
        except RoundClosed:
            return
        noted = {
            "round": found.number, "shards": found.shards, "simulations": sum(made for made, _ in counts),
            "failed": sum(failed for _, failed in counts), "unused": unused,
        }  # fmt: skip
        others = [one for one in closed_rounds(self.folder) if one["round"] != found.number]
        write_json(self.folder / CLOSED, [*others, noted])
        remove_round(found)


def place_of(item: Any) -> list[int]:
    """Where in a round an item is: a block, a part of one, or steps of one."""
    block = getattr(item, "block", None)
    if block is None:
        return [item.first, item.size]
    rest = [item.first_step, item.steps] if hasattr(item, "steps") else [item.first, item.size]
    return [block.first, block.size, *rest]


def _holds(found: ShardRound, item: Any) -> bool:
    """Whether a round of shards has an item."""
    return place_of(item) in _all_places(found)


def _all_places(found: ShardRound) -> list[list[int]]:
    return [one for shard in range(1, found.shards + 1) for one in found.places(shard)]


def closed_rounds(folder: Path) -> list[dict[str, int]]:
    """The rounds of shards that are done; a StoreError if the note of them cannot be used."""
    known = read_json(folder / CLOSED)
    names = ("round", "shards", "simulations", "failed", "unused")
    if known is None:
        return []
    if not isinstance(known, list) or not all(map(is_table, known)):
        raise StoreError(f"{folder / CLOSED} {_NOT_OURS}: {REMEDIES[CLOSED]}")
    if not all(type(one.get(name)) is int for one in known for name in names):
        raise StoreError(f"{folder / CLOSED} {_NOT_OURS}: {REMEDIES[CLOSED]}")
    return known


_NOT_OURS = "does not hold what a job array writes"


def items_wanted(pace: Pace, size: int, shards: int) -> int:
    """Items of `size` proposals for a round that ends when it has enough.

    At first as many as are needed for certain, or a few for each shard to learn the rate from; then those that the rest
    will take, and two standard errors more. What is too much is surplus, what is too little costs one more round.

    >>> items_wanted(Pace(0, 1000, 0), 16, 8), items_wanted(Pace(0, 4, 0), 16, 200)
    (63, 10)
    >>> items_wanted(Pace(500, 1000, 1008), 16, 8), items_wanted(Pace(0, 4, 160), 16, 200)
    (71, 40)
    """
    left = max(1, pace.wanted - pace.found)
    least = math.ceil(left / size)
    if pace.made == 0:
        return max(least, min(shards, GUESS * least))
    if pace.found == 0:
        return max(least, math.ceil(4 * pace.made / size))
    margin = 1 + min(1.0, 2 * math.sqrt(1 / pace.found + 1 / left))
    more = min(pace.made * left / pace.found * margin, FASTEST * pace.made)
    return max(least, math.ceil(more / size))


def done_by(found: ShardRound, shard: int, parts: Mapping[int, ShardPart]) -> tuple[int, int]:
    """Simulations that a shard has made, and how many of them failed, as far as the folder knows."""
    made = failed = 0
    lease = read_lease(found.lease_name(shard))
    if lease is not None:
        made, failed = lease[0].simulations, lease[0].failed
    if shard in parts:
        saved = found.counted(parts[shard])
        made, failed = max(made, saved[0]), max(failed, saved[1])
    return made, failed


def _simulations(result: Any) -> int:
    return int(result.cost.simulations + result.cost.surplus)


def _any_alive(found: ShardRound, now: float) -> bool:
    leases = (read_lease(found.lease_name(shard)) for shard in range(1, found.shards + 1))
    return any(lease is not None and is_alive(*lease, now) for lease in leases)


def _earlier_seconds(found: ShardRound, began: float) -> float:
    """Seconds that a round took before this session began."""
    try:
        written = (found.path / "task").stat().st_mtime
        last = max((one.path.stat().st_mtime for one in found.all_parts()), default=written)
    except OSError:
        return 0.0
    return max(0.0, min(last, began) - written)


def _specified(path: Path, known: Any) -> dict[str, Any]:
    """What a folder was planned for."""
    before: Any = known.get("specification") if is_table(known) else None
    if not is_table(before) or not all(is_table(before.get(one)) for one in ("arguments", "parts")):
        raise StoreError(f"{path} {_NOT_OURS}: {REMEDIES[RUN]}")
    return dict(before)


def _differs(path: Path, known: Any, now: Mapping[str, Any]) -> list[str]:
    """What a folder was planned for and what it is used for now, if that is not the same, in words."""
    before = _specified(path, known)
    if before.get("algorithm") != now["algorithm"]:
        return [f"it is a run of {before.get('algorithm')}, not of {now['algorithm']}"]
    there, here = known.get("versions"), versions()
    if not is_table(there) or there.get("onedraw") != here["onedraw"]:
        planned = there.get("onedraw") if is_table(there) else there
        raise StoreError(
            f"{path} was written by onedraw {planned}, and this is onedraw {here['onedraw']}: use the same version, or "
            "plan the run again in another folder"
        )
    changed = changed_parts(before["parts"], now["parts"], code=same_python(there, here))
    return [*differences(before["arguments"], now["arguments"]), *changed]
