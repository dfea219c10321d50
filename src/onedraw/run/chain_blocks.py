"""Blocks of chains advanced in segments, side by side: what the driver does for a `ChainRound`.

Chains are cut into blocks whose size is part of the run's identity. A block's next segment begins where its last one
ended, and blocks do not wait for each other. The clock decides how long segments are; no number depends on it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.engines.streams import Phase
from onedraw.failures import Failure, first_failures, warn_ignored_rng
from onedraw.run.blocks import SHARES, Block, Deadline, in_chain_blocks, in_order
from onedraw.run.job_array import JobArray
from onedraw.run.lockstep import Advance, Segment, SegmentResult
from onedraw.run.pool import InProcess
from onedraw.run.progress import Progress
from onedraw.run.record import Record
from onedraw.run.signals import Stopped

FIRST_STEPS = 64
"""The most steps of a first segment, when nobody knows yet how long they take."""
GROWTH = 4
"""How many times as long as the last a segment may be."""
FIRST_ROOM = 2**30
"""Bytes of draws for which there is room from the first; twice as much whenever that is full."""
LOOK_SECONDS, LEAST_LOOK_SECONDS = 0.5, 0.2
"""About how often a run looks at the clock and at Ctrl-C, and shows progress; and at most, if it is to save often."""
DEVICE_SECONDS = 0.2
"""About how long a segment takes on a device, where longer ones were slower."""


class ChainDraws(NamedTuple):
    """What the chains of a round have done so far."""

    theta: Array
    """(kept, chains, dim)"""
    distances: Array | None
    """(kept, chains, M) if they are kept."""
    accepted: Array
    """(batches, chains) moves, by part of the round."""
    proposals: Array
    cost: Cost
    capped: int
    """Steps that were cut short at a limit on their draws."""
    states: list[Any]
    """Of each block."""
    steps: int


@dataclass(frozen=True, eq=False)
class ChainRound:
    """Steps of all chains, `steps` of them each. The answer is a ChainDraws."""

    task: Advance
    blocks: list[Block]
    states: list[Any]
    """Of each block, at the round's first step."""
    first_step: int
    steps: int
    worst: float
    """The most simulations of one step of one chain."""
    label: str
    wanted: int | None
    """Steps that the run is to take, if that is what ends it."""
    budget: int | None
    in_process: bool = False
    """Whether the steps are taken here, and only what they ask for is done by workers."""

    @property
    def chains(self) -> int:
        """All of them."""
        return sum(block.size for block in self.blocks)

    def draws_of(self, records: list[Record]) -> ChainDraws:
        """What the file holds of the round."""
        if not records:
            counts = np.zeros((self.task.batches, self.chains), dtype=np.int64)
            dim, width = self.states[0].theta.shape[1], self.states[0].distances.shape[1]
            distances = np.empty((0, self.chains, width)) if self.task.keep_distances else None
            theta = np.empty((0, self.chains, dim))
            return ChainDraws(theta, distances, counts, counts.copy(), Cost(), 0, list(self.states), 0)
        kind, last = type(self.states[0]), records[-1].arrays
        return recorded_draws(records)._replace(states=[_state_of(kind, last, block) for block in self.blocks])


def recorded_draws(records: list[Record]) -> ChainDraws:
    """The draws that a file holds of one round, without the states."""
    last, theta = records[-1], [record.arrays["theta"] for record in records]
    cost = Cost()
    for record in records:
        cost = cost.plus(Cost(*record.scalars["cost"]))
    distances = [record.arrays["distances"] for record in records if "distances" in record.arrays]
    return ChainDraws(
        theta=theta[0] if len(theta) == 1 else np.concatenate(theta),
        distances=np.concatenate(distances) if distances else None,
        accepted=last.arrays["accepted"].copy(),
        proposals=last.arrays["proposals"].copy(),
        cost=cost,
        capped=sum(int(record.scalars["capped"]) for record in records),
        states=[],
        steps=int(last.scalars["steps"]),
    )


def advance_blocks(driver: Any, request: ChainRound, known: ChainDraws, number: int) -> ChainDraws:
    """Take the steps of a round that are not in the file yet; Stopped if time or a signal came first."""
    with Advancing(driver, request, known, number) as work:
        reason = work.run()
    if reason != "done":
        raise Stopped(reason, work.draws())
    return work.draws()


class Advancing:
    """A round of steps as it goes on: segments of all blocks, cut as the clock says."""

    def __init__(self, driver: Any, request: ChainRound, known: ChainDraws, number: int) -> None:
        self.driver, self.request, self.number = driver, request, number
        self.task, self.thin = request.task, request.task.thin
        self.pool = driver.pool
        self._look = min(LOOK_SECONDS, max(LEAST_LOOK_SECONDS, driver.saver.segment))
        if request.in_process:
            self.task, self.pool = _sharing_draws(request.task, driver.pool), InProcess()
        self._most = request.steps // self.thin
        """Draws of a chain at the end of the round. There may be far fewer: time or a signal may end it."""
        self.theta, self.distances = known.theta, known.distances
        self._make_room(0)
        self._in_place = isinstance(self.pool, InProcess) and self.task.engine is None and len(self.theta) == self._most
        """Whether segments write their draws where they belong, instead of handing them on."""
        self.accepted, self.proposals = known.accepted, known.proposals
        self.states, self.taken = list(known.states), known.steps
        self.cost, self.capped = known.cost, known.capped
        self._saved = known.steps
        self._unsaved: tuple[Cost, int, tuple[Failure, ...]] = (Cost(), 0, ())
        self._cuts = [known.steps]
        """The step of the round at which each segment begins."""
        self._length, self._growth = min(self.thin, FIRST_STEPS), GROWTH
        self._stepped, self._seconds = 0, 0.0
        """Steps that workers have taken, and how long they took."""
        if self.task.engine is not None:
            # A segment must be worth a call to the device, and the first may well be the last. Starting points are
            # found by short calls, so the pace there is mostly that of the calls.
            step_seconds = driver.pace * request.chains * request.worst
            self._growth, self._look = 64, DEVICE_SECONDS
            self._length = int(np.clip(5 * DEVICE_SECONDS / (step_seconds * self.thin), 8, 64)) * self.thin
        elif self.pool.remote and self.pool.each is not None:
            # Short segments of many chains are many pieces of work. The starts have shown how long a simulation takes.
            step_seconds = max(self.pool.each * request.worst * request.blocks[0].size, 1e-9)
            self._length = whole_draws(self.task, self.pool.piece / 2 / step_seconds)
        total = request.wanted or request.budget
        self.bar = Progress(driver.show, request.label, total, "steps" if request.wanted else "simulations")

    def __enter__(self) -> "Advancing":
        self.bar.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.save()
        self.bar.__exit__(*error)

    def run(self) -> str:
        """Advance all blocks: "done", or why it ended."""
        if isinstance(self.pool, JobArray):
            return self._from_shards(self.pool)
        try:
            return in_chain_blocks(
                self.pool, self.task, len(self.request.blocks), self._segment, self._take, self.driver.deadline,
                self._took,
            )  # fmt: skip
        except Stopped as stopped:
            return stopped.reason

    def _from_shards(self, array: JobArray) -> str:
        """All steps that are left, as one segment."""
        self._length, here = self.request.steps, self.driver.place("run", self.number)
        pieces = [self._segment(block, 0, None) for block in range(len(self.request.blocks))]
        try:
            results = array.segments(here, self.task, pieces, self.driver.deadline.passed)
        except Stopped as stopped:
            return stopped.reason
        self._take(results, 0.0)
        self.save()
        array.close(here, self.driver.saver.commit)
        return "done"

    def _failure_known(self) -> bool:
        return any(one.phase == Phase.RUN for one in self.driver.failures)

    def _segment(self, block: int, number: int, last: SegmentResult | None) -> Segment | None:
        """The next segment of a block, which begins at the state that the last one left."""
        steps, cuts = self.request.steps, self._cuts
        if cuts[number] == steps:
            return None
        if number + 1 == len(cuts):
            length = self._length
            if self.pool.remote and not isinstance(self.pool, JobArray):
                # Shorter and shorter towards the end, so that the workers end at about the same time.
                left = whole_draws(
                    self.task, max((steps - cuts[number]) * min(self.pool.longer / SHARES, 1.0), length / 4)
                )
                length = min(length, left)
                # No last one of a few steps.
                length = steps - cuts[number] if steps - cuts[number] < 1.5 * length else length
            cuts.append(cuts[number] + self.task.length(min(length, steps - cuts[number]), self.states[block]))
        state = self.states[block] if last is None else last.state
        first, known = self.request.first_step + cuts[number], self._failure_known()
        segment = Segment(self.request.blocks[block], state, first, cuts[number + 1] - cuts[number], known)
        return segment._replace(room=self._places(segment)) if self._in_place else segment

    def _places(self, segment: Segment) -> tuple[Array, Array | None]:
        """Where the draws of a segment belong."""
        block, taken = segment.block, segment.first_step - self.request.first_step
        rows = slice(taken // self.thin, (taken + segment.steps) // self.thin)
        columns = slice(block.first, block.first + block.size)
        return self.theta[rows, columns], None if self.distances is None else self.distances[rows, columns]

    def _take(self, results: list[SegmentResult], seconds: float) -> None:
        with self.driver.saver.at_once:
            self._taken_at_once(results, seconds)

    def _taken_at_once(self, results: list[SegmentResult], seconds: float) -> None:
        taken, now = self.taken, self.taken + results[0].steps
        rows = slice(taken // self.thin, now // self.thin)
        if rows.stop > len(self.theta):
            self._make_room(rows.stop)
        for k, (block, one) in enumerate(zip(self.request.blocks, results, strict=True)):
            if not self._in_place:
                columns = slice(block.first, block.first + block.size)
                self.theta[rows, columns] = one.theta
                if self.distances is not None:
                    self.distances[rows, columns] = one.distances
            self.states[k] = one.state
        self._count(results, first=self.request.first_step == taken == 0)
        self.taken = now
        moves, tried = int(self.accepted.sum()), int(self.proposals.sum())
        simulations = self.driver.cost.simulations
        position = self.request.first_step + now if self.request.wanted else simulations
        self.bar.update(position, f"{moves / max(tried, 1):.3g} accepted", simulations)
        if self.driver.saver.due(self._unsaved_bytes()):
            self.save()
        if not self.pool.remote:
            steps = now - taken
            self._length = next_length(self.pool, self.task, steps, len(results), seconds, self._growth, self._look)

    def _took(self, result: SegmentResult, seconds: float) -> None:
        """Workers say how long segments should be one by one: some may be far ahead when the last is done."""
        if self.pool.remote:
            self._stepped, self._seconds = self._stepped + result.steps, self._seconds + seconds
            each = self._seconds / self._stepped
            self._length = next_length(self.pool, self.task, result.steps, 1, each * result.steps, self._growth)

    def _make_room(self, rows: int) -> None:
        """Room for so many draws of each chain: for all of the round if they are not many, else as they come."""
        width = self.theta.shape[2] + (0 if self.distances is None else self.distances.shape[2])
        first = FIRST_ROOM // (8 * self.request.chains * width)
        room = min(self._most, max(rows, 2 * len(self.theta), first, 1))
        self.theta = _room(self.theta, room)
        if self.distances is not None:
            self.distances = _room(self.distances, room)

    def _count(self, results: list[SegmentResult], first: bool) -> None:
        driver, tallies = self.driver, [one.tally for one in results]
        self.accepted += np.concatenate([tally.accepted for tally in tallies], axis=1)
        self.proposals += np.concatenate([tally.proposals for tally in tallies], axis=1)
        cost = Cost()
        for tally in tallies:
            cost = cost.plus(tally.cost)
        capped = sum(tally.capped for tally in tallies)
        # By step, not by block: which failures are kept must not depend on where segments were cut.
        new = sorted((one for tally in tallies for one in tally.failures), key=lambda one: (one.step, one.chain))
        if self.task.engine is not None:
            # A segment on a device reports its first failure only; more would depend on where segments are cut.
            new = [] if self._failure_known() else new[:1]
        kept = first_failures(driver.failures, new)[len(driver.failures) :]
        driver.cost, driver.failures = driver.cost.plus(cost), (*driver.failures, *kept)
        driver.fresh = True
        self.cost, self.capped = self.cost.plus(cost), self.capped + capped
        before, some, failures = self._unsaved
        self._unsaved = before.plus(cost), some + capped, (*failures, *kept)
        if first and all(tally.ignored_rng for tally in tallies):
            warn_ignored_rng()

    def _unsaved_bytes(self) -> int:
        row = self.theta[:1].nbytes + (0 if self.distances is None else self.distances[:1].nbytes)
        return (self.taken - self._saved) // self.thin * row

    def save(self) -> None:
        """Put what is new into the file, with all that is needed to go on from here."""
        if self.taken == self._saved or self.driver.saver.at_once.torn:
            return
        with self.driver.saver.at_once:
            self._saved_at_once()

    def _saved_at_once(self) -> None:
        rows = slice(self._saved // self.thin, self.taken // self.thin)
        draws = {"theta": self.theta[rows], "accepted": self.accepted.copy(), "proposals": self.proposals.copy()}
        if self.distances is not None:
            draws["distances"] = self.distances[rows]
        names = type(self.states[0])._fields
        states = {f"state.{name}": _joined([np.asarray(getattr(one, name)) for one in self.states]) for name in names}
        cost, capped, failures = self._unsaved
        scalars = {
            "round": self.number, "steps": self.taken, "cost": list(cost), "capped": capped,
            "failures": [one._asdict() for one in failures],
        }  # fmt: skip
        self.driver.saver.put("run.segment", scalars, {**draws, **states})
        self._saved, self._unsaved = self.taken, (Cost(), 0, ())

    def draws(self) -> ChainDraws:
        """Everything so far."""
        kept = self.taken // self.thin
        distances = None if self.distances is None else self.distances[:kept]
        return ChainDraws(
            self.theta[:kept], distances, self.accepted, self.proposals, self.cost, self.capped, self.states, self.taken
        )


def next_length(
    pool: Any, task: Advance, steps: int, blocks: int, seconds: float, growth: int = GROWTH, look: float = LOOK_SECONDS
) -> int:
    """Steps of the next segment, after one of `steps` that took a block so many seconds on average."""
    aim = pool.piece if pool.remote else look / blocks
    return whole_draws(task, min(aim * steps / max(seconds, 1e-9), growth * steps))


def whole_draws(task: Advance, longest: float) -> int:
    """Steps of a segment: whole numbers of kept draws, unless the steps between two of them take too long for that."""
    whole = task.engine is not None or longest >= task.thin
    return max(1, round(longest / task.thin)) * task.thin if whole else max(1, round(longest))


def _sharing_draws(task: Advance, pool: Any) -> Advance:
    """The task with the pseudo-samples of each estimate shared out to the pool, for `layout="draws"`."""

    def map_draws(work: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        results: list[Any] = []

        def take(_: Any, result: Any) -> bool:
            results.append(result)
            return False

        reason = in_order(pool, work, items, take, Deadline(None), Progress(False, "", None))
        if reason != "done":
            raise Stopped(reason)
        return results

    sampler: Any = task.sampler
    return replace(task, sampler=replace(sampler, estimator=replace(sampler.estimator, map_draws=map_draws)))


def _room(known: Array, rows: int) -> Array:
    """Room for so many rows, the first of them those that are known."""
    room = np.empty((rows, *known.shape[1:]))
    room[: len(known)] = known
    return room


def _joined(parts: list[Array]) -> Array:
    """Arrays of all blocks as one, in the order in memory that they have."""
    if len(parts) == 1:
        return parts[0]
    joined = np.concatenate(parts)
    return np.asfortranarray(joined) if any(map(_columnwise, parts)) else joined


def _columnwise(array: Array) -> bool:
    return array.flags.f_contiguous and not array.flags.c_contiguous


def _state_of(kind: Any, arrays: dict[str, Array], block: Block) -> Any:
    """The state of a block from the saved one of all."""
    rows = slice(block.first, block.first + block.size)
    whole = {name: arrays[f"state.{name}"] for name in kind._fields}
    # Contiguous in the order that the whole had: some sums depend on it in their last bit.
    return kind(
        **{
            name: np.asfortranarray(value[rows]).copy(order="F") if _columnwise(value) else value[rows].copy(order="C")
            for name, value in whole.items()
        }
    )
