"""A first look at a model: one simulation, and the data that the prior expects beside those observed."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.estimators.abc_average import AbcAverage
from onedraw.failures import Failure, refuse_if_all_failed
from onedraw.model.first_simulation import FirstSimulation, listening
from onedraw.model.kernels import uniform
from onedraw.model.model import Model
from onedraw.run.blocks import Deadline, cut
from onedraw.run.driver import drive
from onedraw.run.options import placed
from onedraw.run.pilot import FromPrior
from onedraw.run.plan import Outcome, Plan, Round
from onedraw.run.pool import opened_pool
from onedraw.run.signals import Stopped, guarded

SLOW = 0.01
"""Seconds of a simulation beside which what onedraw does around it counts little."""
LEVELS = (0.05, 0.5, 0.95)
"""Quantiles of the simulated numbers that are shown."""


class Beside(NamedTuple):
    """One number that is compared, beside the same number of simulations at draws from the prior."""

    label: str
    observed: float
    quantiles: tuple[float, ...]
    """Of the simulated ones, at LEVELS."""
    below: float
    """The share of simulations below the observed number; half of those equal to it count."""

    @property
    def outside(self) -> bool:
        """Whether no simulation reaches the observed number."""
        return self.below in (0.0, 1.0)


class FirstLook(NamedTuple):
    """What a few simulations say of a model."""

    first: FirstSimulation
    seconds: float
    """For one simulation, without those in which programs start and code is loaded."""
    beside: tuple[Beside, ...]
    cost: Cost
    failures: tuple[Failure, ...]
    seed: int


def first_look(model: Model, simulations: int, seed: int, timeout: float | None, max_seconds: float) -> FirstLook:
    """Simulate at draws from the prior, at most `simulations` times and for about `max_seconds`."""
    heard: list[FirstSimulation] = []
    deadline = Deadline(max_seconds)
    ready = placed(AbcAverage(model.limited(timeout), uniform(1.0)), None).model
    with opened_pool(None, None), guarded(terminate=False), listening(heard.append, repeat=simulations):
        outcome = drive(_simulated(ready, simulations, seed), deadline)
    refuse_if_all_failed(outcome.cost.simulations, outcome.cost.failed, outcome.failures, last=True)
    rows = outcome.arrays["rows"]
    rows = rows[np.isfinite(rows).all(axis=1)]
    first, made = heard[0], outcome.cost.simulations + outcome.cost.surplus
    seconds = _seconds(first, deadline.seconds(), made)
    numbers = beside(rows, model.observed_row, model.labels())
    return FirstLook(first, seconds, numbers, outcome.cost, outcome.failures, seed)


def _seconds(first: FirstSimulation, all_of_them: float, made: int) -> float:
    """The time of one simulation: without the first, in which programs start and code is loaded.

    What comes before and after a simulation is part of the others' time. It counts little, and for quick ones too much.

    >>> first = FirstSimulation({}, 2.0, 1, True, None, "")
    >>> [round(_seconds(first, 2.0 + 99 * later, 100), 6) for later in (3.0, 0.02, 0.002)], _seconds(first, 2.0, 1)
    ([3.0, 0.02, 0.002], 2.0)
    """
    if first.together > 1 or made < 2:
        return first.seconds
    later = (all_of_them - first.seconds) / (made - 1)
    return later if later > SLOW else min(first.seconds, later)


def _simulated(model: Model, simulations: int, seed: int) -> Plan[Outcome]:
    # Two, so that the form of the data is looked at twice; few, so that they end in time.
    size = 2 if model.block is None else model.block
    try:
        outcome: Outcome = yield Round(
            FromPrior(model, seed, "reject"), lambda gathered: cut(simulations, size, gathered.done), phase="pilot"
        )
    except Stopped as stopped:
        if stopped.reason != "max_seconds":
            raise
        outcome = stopped.partial
    return outcome


def beside(rows: Array, observed: Array, labels: Sequence[str]) -> tuple[Beside, ...]:
    """Each number of the data beside those of simulations (n, s).

    >>> one, = beside(np.array([[1.0], [2.0], [3.0], [4.0]]), np.array([2.0]), ["mean"])
    >>> one.below, one.outside
    (0.375, False)
    """
    if len(rows) == 0:
        return ()
    quantiles = np.quantile(rows, LEVELS, axis=0)
    below = np.mean((rows < observed) + 0.5 * (rows == observed), axis=0)
    return tuple(
        Beside(label, float(observed[k]), tuple(quantiles[:, k].tolist()), float(below[k]))
        for k, label in enumerate(labels)
    )
