"""A run as its file holds it, read without its model."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.failures import Failure, first_failures
from onedraw.model.layout import Layout
from onedraw.results.posterior import SimulatedData
from onedraw.run.plan import Gathered, Outcome
from onedraw.run.record import Record
from onedraw.run.result import Result, nothing

if TYPE_CHECKING:
    from onedraw.run.store import Store

PHASES = ("bank", "pilot", "start", "fill", "run", "check")
"""Whose segments are counted, in the order in which runs make them."""


class Columns(NamedTuple):
    """What a file knows of a prior: the parameters' names and shapes, and which columns are whole numbers."""

    layout: Layout
    discrete: tuple[bool, ...]


class Recorded:
    """What a run's file holds."""

    def __init__(self, store: "Store", written: Mapping[str, Any]) -> None:
        self.store = store
        self.arguments: Mapping[str, Any] = written["arguments"]
        self.facts: Mapping[str, Any] = written["facts"]
        layout = Layout(tuple(self.arguments["parameters"]), tuple(map(tuple, self.facts["parameter_shapes"])))
        self.columns = Columns(layout, tuple(self.facts["discrete"]))
        self.ended = store.last()
        """The last record, read first: a run that goes on meanwhile is then shown as unfinished, never as more."""

    def segments(self, phase: str) -> Iterator[Record]:
        """The segments of a phase, in order."""
        return self.store.records(f"{phase}.segment")

    def decision(self, name: str) -> Record | None:
        """The last decision of this name."""
        return self.store.last(name)

    def outcome(self, phase: str, number: int | None = None) -> Outcome:
        """All segments of a phase as one, or those of one of its rounds."""
        gathered = Gathered()
        for record in self.segments(phase):
            if number is not None and record.scalars["round"] != number:
                continue
            gathered.add(int(record.scalars["size"]), Outcome(record.arrays, *_spent(record)))
        return gathered.outcome()

    def spent(self) -> tuple[Cost, tuple[Failure, ...]]:
        """What all segments have cost, and the first failures."""
        cost, failures = Cost(), first_failures()
        for phase in PHASES:
            for record in self.segments(phase):
                more, some = _spent(record)
                cost, failures = cost.plus(more), first_failures(failures, some)
        seconds = 0.0 if self.ended is None else float(self.ended.scalars["seconds"])
        return cost._replace(seconds=seconds), failures

    @property
    def finished(self) -> Record | None:
        """How the run ended, if it did."""
        return self.ended if self.ended is not None and self.ended.name == "finished" else None


def _spent(record: Record) -> tuple[Cost, tuple[Failure, ...]]:
    return Cost(*record.scalars["cost"]), tuple(Failure(**one) for one in record.scalars["failures"])


def recorded_result(run: Recorded) -> Result:
    """The last result that the run has recorded; nothing if there is none yet."""
    record = run.decision("result")
    if record is None:
        return nothing(run.columns.layout.size, "unfinished", settings={"distance": run.facts.get("distance")})
    arrays: Mapping[str, Array] = record.arrays
    return replace(Result.unpacked(record.scalars, arrays), kept=recorded_simulations(run))


def recorded_simulations(run: Recorded) -> SimulatedData | None:
    """The simulations that the segments hold, in the order in which they were made; None if they hold none."""
    bank, pilot, made = ([record.arrays for record in run.segments(phase)] for phase in ("bank", "pilot", "run"))
    if not all({"theta", "rows"} <= one.keys() and len(one["theta"]) == len(one["rows"]) for one in made):
        return None
    unweighted = [{"theta": one["more_theta"], "rows": one["more_rows"]} for one in bank]
    return joined([*bank, *pilot, *made, *unweighted]) if made else None


def joined(found: Sequence[Mapping[str, Array]]) -> SimulatedData | None:
    """Arrays theta and rows of several records as one."""
    parts = [SimulatedData.of(one["theta"], one["rows"]) for one in found if len(one["theta"])]
    return SimulatedData(*map(np.concatenate, zip(*parts, strict=True))) if parts else None
