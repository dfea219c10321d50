"""Pilot simulations: what a distance must learn before a run can begin.

They are drawn from the prior with streams of their own and are not used again: a scale learned from draws that are then
accepted would bias the posterior (docs/theory.md).
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.model.model import Model
from onedraw.run.blocks import Block, cut
from onedraw.run.plan import Bar, Decision, Outcome, Plan, Round

PLAIN_BLOCK = 16
"""Simulations per block for simulators that draw one pseudo-sample per call; the others have blocks of their own."""


@dataclass(frozen=True, eq=False)
class FromPrior:
    """The pure task of a pilot: simulate at draws from the prior."""

    model: Model
    seed: int
    on_error: str

    def __call__(self, block: Block) -> Outcome:
        rng = Rng(self.seed, Phase.PILOT, block.first)
        theta = self.model.prior.sample(rng.bulk(Purpose.PRIOR), block.size)
        found = self.model.simulate_rows(rng, theta, on_error=self.on_error)
        arrays = {"theta": theta, "rows": found.rows[:, 0, :]}
        return Outcome(arrays, found.cost, tuple(found.failures), found.ignored_rng)


def pilot(model: Model, seed: int, budget: int | None, on_error: str) -> Plan[Model]:
    """The model with its distance ready for use."""
    if model.pilot == 0:
        return model
    if budget is not None and budget <= model.pilot:
        raise ValueError(
            f"budget = {budget} leaves nothing after the {model.pilot} pilot simulations of the distance: raise it, "
            f"or lower the pilot, as in od.scaled(pilot={max(10, budget // 10)})"
        )
    outcome = yield pilot_round(model, seed, on_error)
    ready = learned(model, outcome.arrays["rows"])
    yield Decision("distance", lambda: ({}, learned_arrays(ready.distance)))
    return ready


def pilot_round(model: Model, seed: int, on_error: str) -> Round:
    """The simulations from which a distance learns."""
    return Round(
        FromPrior(model, seed, on_error),
        lambda gathered: cut(model.pilot, model.block or PLAIN_BLOCK, gathered.done),
        phase="pilot",
        bar=Bar("pilot", model.pilot, "simulations"),
    )


def learned(model: Model, rows: Array) -> Model:
    """The model with its distance learned from rows (n, s), NaN if a simulation failed."""
    return model.with_distance(model.distance.learnt(rows[~np.isnan(rows[:, 0])], model.places()))


def learned_arrays(distance: Any) -> dict[str, Array]:
    """What a built-in distance has learned; a distance of the user's own learns again from the pilot's rows."""
    if type(distance).__module__ != "onedraw.model.distance":
        return {}
    every = {field.name: getattr(distance, field.name) for field in fields(distance)}
    return {name: value for name, value in every.items() if isinstance(value, np.ndarray)}


def with_learned(distance: Any, arrays: dict[str, Array]) -> Any:
    """A built-in distance with what it has learned."""
    return replace(distance, pilot=0, **arrays)
