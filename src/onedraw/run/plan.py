"""What a run asks for. A plan is a generator: it yields requests and receives their results (see `run.driver`).

A plan decides from the results so far what to do next, and nothing else: it is a pure function of the seed, the
specification and those results. So a run that is resumed hands the recorded results back, and every decision comes out
as before. Plans delegate to each other with `yield from`, as every sampler does to the pilot of its distance.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.failures import Failure, first_failures
from onedraw.model.first_simulation import FirstSimulation
from onedraw.model.simulator import NOT_FINITE_OUTPUT
from onedraw.run.result import Result

Value = TypeVar("Value")
Plan = Generator[Any, Any, Value]
NOTHING: Mapping[str, Array] = {}


class Outcome(NamedTuple):
    """What a task returns for one item, or the driver for a whole round: arrays by name, and what they cost."""

    arrays: Mapping[str, Array]
    """Joined along their first axis, in the order of the items."""
    cost: Cost
    failures: tuple[Failure, ...] = ()
    ignored_rng: bool = False
    filed: Mapping[str, Array] = NOTHING
    """Arrays that go to the run's file and are not held in memory."""
    first: FirstSimulation | None = None
    """What a worker has seen of the first simulation of the run."""
    before: "Outcome | None" = None
    """What the round before had still to do when it was answered, if it was left open (`Round.prefix`)."""

    @property
    def simulations(self) -> int:
        """Simulations made."""
        return self.cost.simulations


class Condense(NamedTuple):
    """How arrays of a round are reduced as they come in: function(function(a, b), c) must be function(a, b, c)."""

    names: tuple[str, ...]
    function: Callable[[dict[str, Array]], dict[str, Array]]


class Gathered:
    """Outcomes of consecutive items of one round, added up in order."""

    CONDENSE_AT = 64

    def __init__(self, condense: Condense | None = None) -> None:
        self.cost = Cost()
        self.failures: tuple[Failure, ...] = ()
        self.done = 0
        """Sizes of the items so far, added up."""
        self.bytes = 0
        self._condense = condense
        self._parts: dict[str, list[Array]] = {}
        self._rows: dict[str, int] = {}

    def add(self, size: int, outcome: Outcome) -> None:
        """Take in the outcome of the next item."""
        self.done += size
        self.cost = self.cost.plus(outcome.cost)
        if outcome.failures:
            self.failures = first_failures(self.failures, outcome.failures)
        for name, array in outcome.arrays.items():
            parts = self._parts.setdefault(name, [])
            if len(array) or not parts:
                parts.append(array)
                self.bytes += array.nbytes
            self._rows[name] = self._rows.get(name, 0) + len(array)
        if self._condense is not None and len(self._parts.get(self._condense.names[0], ())) > self.CONDENSE_AT:
            self._reduce()

    def rows(self, name: str) -> int:
        """How many rows there are of an array."""
        return self._rows.get(name, 0)

    def _reduce(self) -> None:
        assert self._condense is not None
        found = {name: joined(self._parts[name]) for name in self._condense.names if name in self._parts}
        if found:
            for name, array in self._condense.function(found).items():
                self._parts[name], self._rows[name] = [array], len(array)

    def outcome(self) -> Outcome:
        """Everything so far as one outcome."""
        if self._condense is not None:
            self._reduce()
        arrays = {name: joined(parts) for name, parts in self._parts.items()}
        return Outcome(arrays, self.cost, self.failures)


def both(part: Outcome, rest: Outcome) -> Outcome:
    """The outcome of a round that was left open, from that of its prefix and that of the rest."""
    gathered = Gathered()
    for one in (part, rest):
        gathered.add(0, one)
    return gathered.outcome()


def whole_outcome(block: Any, parts: list[Outcome]) -> Outcome:
    """The outcome of a block from those of its parts, whose arrays are its rows."""
    cost = Cost()
    for part in parts:
        cost = cost.plus(part.cost)
    arrays = {name: joined([part.arrays[name] for part in parts]) for name in parts[0].arrays}
    failures = [one for part in parts for one in part.failures]
    # A block keeps the first that was raised; of outputs that are not finite the first, and only if nothing was raised.
    raised = [one for one in failures if one.message != NOT_FINITE_OUTPUT]
    ignored = all(part.ignored_rng for part in parts)
    return Outcome(arrays, cost, tuple((raised or failures)[:1]), ignored, first=parts[0].first)


def joined(parts: list[Array]) -> Array:
    """Arrays end to end, without a copy if there is only one."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


class Bar(NamedTuple):
    """How the progress of a round is shown, if not as simulations of the whole run."""

    label: str
    total: int | None
    unit: str
    position: Callable[[Gathered], int] = lambda gathered: gathered.done


@dataclass(frozen=True, eq=False)
class Round:
    """Independent items of one pure task. The answer is their joined Outcome.

    If time or a signal ends the round first, Stopped is raised at the `yield`, and its `partial` is the Outcome so far.
    """

    task: Callable[[Any], Outcome]
    items: Callable[[Gathered], Iterable[Any]]
    """The items behind those that are gathered already. Each has a `first` and a `size`, and may be made lazily."""
    phase: str = "run"
    """Names the records in the run's file."""
    enough: Callable[[Gathered], bool] | None = None
    """Ends the round before its items are used up."""
    condense: Condense | None = None
    bar: Bar | None = None
    note: Callable[[Gathered], str] = lambda gathered: ""
    shown: Callable[[], Result] | None = None
    """The result of the run before this round, to be shown while the round goes on."""
    made: bool = False
    """Whether its simulations are made already, so that no worker is needed."""
    join: Callable[[Any, list[Outcome]], Outcome] | None = None
    """The outcome of a block from those of its parts, if the task takes parts of its blocks too, for many workers: each
    simulation has a stream of its own."""
    mixed: bool = False
    """Whether its items are simulations of several models: if the first all fail, others may not."""
    prefix: int | None = None
    """Sizes of the first items, added up, with which the round is answered and left open: workers go on with the
    others while the plan decides what is next. Those come with the answer to the next Round, as its `before`; or with
    Stopped, if time or a signal ends a request. Without `enough`, `condense` and `bar`."""
    rest: Callable[[Gathered, Outcome | None], Iterable[Any]] | None = None
    """The items behind the prefix, if they follow from what the round before had still to do: they are made from that,
    its `before`, once it is complete. `items` then yields those of the prefix alone."""


class Decision(NamedTuple):
    """A value that is made once and kept in the run's file: plain values and arrays. The answer is both."""

    name: str
    make: Callable[[], tuple[Mapping[str, Any], Mapping[str, Array]]]
    droppable: bool = False
    """Whether it is given up when time is up: it takes long, and Stopped is raised at the `yield`."""


class Limits(NamedTuple):
    """How far a run goes; a run that was given larger ones later has several, and fulfils them one by one."""

    draws: int | None
    budget: int | None
