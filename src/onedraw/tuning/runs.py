"""Runs of samplers that a measurement makes: one budget, one seed, one file and one worker pool for all of them."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.engines.streams import derived_seed
from onedraw.results.posterior import Posterior
from onedraw.run.blocks import Deadline
from onedraw.run.driver import drive
from onedraw.run.job_array import JobArray
from onedraw.run.options import Options
from onedraw.run.plan import Plan
from onedraw.run.pool import opened_pool
from onedraw.run.record import StoreError
from onedraw.run.saving import Part, Saver, Specification, as_recorded, begin
from onedraw.run.signals import Stopped, guarded

Value = TypeVar("Value")


class CannotTell(Exception):
    """Raised inside `od.advise` if a reliable answer is not possible; never leaves it."""


@dataclass
class Runs:
    """All runs of one measurement go through `run`, which passes the options on and adds up the cost."""

    budget: int | None
    """The most simulations of all runs together; None for no limit."""
    options: Options
    saver: Saver
    deadline: Deadline
    cost: Cost = field(default_factory=Cost)
    made: int = 0
    """Runs so far, by which the file names them."""

    @property
    def seed(self) -> int:
        """Of the whole measurement."""
        return self.options.seed

    @property
    def left(self) -> float:
        """Simulations that are left of the budget."""
        return math.inf if self.budget is None else self.budget - self.cost.simulations

    def pay(self, cost: Cost) -> None:
        """Add a cost."""
        self.cost = self.cost.plus(cost)

    def run(self, sampler: Callable[..., Posterior], *model: Any, **arguments: Any) -> Posterior:
        """Call a sampler with the options and these arguments; Ctrl-C ends the measurement, not only this run."""
        asked, options = self.options, {}
        for name in ("engine", "timeout", "on_error", "progress"):
            options[name] = getattr(asked, name)
        if asked.max_seconds is not None:
            options["max_seconds"] = max(asked.max_seconds - self.deadline.seconds(), 1e-3)
        if self.saver.store is not None:
            options |= {"store": self._part(arguments), "segment": asked.segment}
        self.made += 1
        post = sampler(*model, **{**options, **arguments})
        self.pay(post.cost)
        if post.status.reason in ("interrupted", "terminated"):
            raise KeyboardInterrupt(post.status.reason)
        if post.status.reason == "max_seconds":
            raise self._late()
        return post

    def drive(self, plan: Plan[Value]) -> Value:
        """What a plan returns that makes no Posterior."""
        try:
            return drive(plan, self.deadline)
        except Stopped as stopped:
            if stopped.reason != "max_seconds":
                raise
            raise self._late() from None

    def _late(self) -> TimeoutError:
        return TimeoutError(
            f"max_seconds = {self.options.max_seconds:g} passed after {self.cost.simulations:,} simulations, before "
            "there was an answer: raise it; with store= the same call continues"
        )

    def _part(self, arguments: Mapping[str, Any]) -> Part:
        """The next run's part of the file, which must have been asked for the same before."""
        prefix = f"run {self.made}/"
        plain = {name: value for name, value in arguments.items() if isinstance(value, int | float | str | None)}
        known = self.saver.last(prefix + "asked")
        if known is None:
            self.saver.put(prefix + "asked", {"asked": plain})
        elif known.scalars["asked"] != plain:
            raise StoreError("the file's runs do not follow from this call: give store= another name")
        return Part(self.saver, prefix)

    def recorded(self, name: str, make: Callable[[], tuple[Mapping[str, Array], Cost]]) -> Mapping[str, Array]:
        """Arrays that cost simulations outside of any run: from the file, or made now and kept there."""
        known = self.saver.last(name)
        if known is not None:
            self.pay(Cost(*known.scalars["cost"]))
            return known.arrays
        arrays, cost = make()
        self.saver.put(name, {"cost": list(cost)}, arrays)
        self.pay(cost)
        return arrays

    def seed_of(self, *part: int) -> int:
        """A seed for each part of the measurement."""
        return derived_seed(self.seed, *part)


def _held(saver: Saver) -> Callable[[], bool]:
    """Whether the file holds records of an earlier session."""
    held = saver.last() is not None
    return lambda: held


@contextmanager
def measurement(options: Options, budget: int | None, specification: Callable[[], Specification]) -> Iterator[Runs]:
    """The runs of a measurement, with the worker pool and the file that its options ask for."""
    if isinstance(options.executor, JobArray):
        raise ValueError(
            f"executor = {options.executor!r} is for single runs, od.calibrate, od.compare and od.fit_summary, and "
            "this makes several runs: give workers= instead"
        )
    deadline = Deadline(options.max_seconds)
    with (
        opened_pool(options.workers, options.executor),
        guarded(terminate=options.store is not None),
        begin(options.store, options.segment, specification) as saver,
        as_recorded(saver, _held(saver)),
    ):
        yield Runs(budget, options, saver, deadline)
