"""Pilot simulations: what a distance and a continuation probability must learn before a run can begin.

They are drawn from the prior with streams of their own and are not used again: a scale learned from draws that are then
accepted would bias the posterior (docs/theory.md).
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.estimators.pairs import draw_pairs, learnt_rule
from onedraw.model.kernels import Kernel
from onedraw.model.model import Model
from onedraw.model.pair import ContinuationRule
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


@dataclass(frozen=True, eq=False)
class PairsFromPrior:
    """The pure task of the pilot of a simulator in two parts: run both parts at draws from the prior."""

    model: Model
    seed: int
    on_error: str

    def __call__(self, block: Block) -> Outcome:
        rng = Rng(self.seed, Phase.PILOT, block.first, 1)
        theta = self.model.prior.sample(rng.bulk(Purpose.PRIOR), block.size)
        found = draw_pairs(self.model, rng, theta, None, self.on_error, certain=True)
        arrays = {"theta": theta, "signal": found.signal, "cheap": found.cheap, "expensive": found.distances}
        return Outcome(arrays, found.cost, found.failures, found.ignored_rng)


def pilot(
    model: Model, seed: int, budget: int | None, on_error: str, kernel: Kernel | None = None, by_hits: bool = False
) -> Plan[Model]:
    """The model with its distance ready for use, and its continuation probability.

    That is for a kernel, and for estimates or, `by_hits`, for proposals that are accepted or not.
    """
    if budget is not None and 0 < model.ahead >= budget:
        left = f"budget = {budget} leaves nothing after the"
        if model.pair is not None and model.pair.learns:
            raise ValueError(
                f"{left} pilot of the continuation probability, which costs {model.ahead:g}: raise it, lower the pilot "
                f"(pilot = {model.pair.pilot}), or give continuation="
            )
        raise ValueError(
            f"{left} {model.pilot} pilot simulations of the distance: raise it, or lower the pilot, as in "
            f"od.scaled(pilot={max(10, budget // 10)})"
        )
    if model.pilot:
        outcome = yield pilot_round(FromPrior(model, seed, on_error), model.pilot)
        model = learned(model, outcome.arrays["rows"])
        arrays = learned_arrays(model.distance)
        yield Decision("distance", lambda: ({}, arrays))
    if model.pair is not None and model.pair.learns:
        assert kernel is not None and kernel.eps is not None and model.pair.pilot is not None
        outcome = yield pilot_round(PairsFromPrior(model, seed, on_error), model.pair.pilot)
        signal, cheap, expensive = (outcome.arrays[name] for name in ("signal", "cheap", "expensive"))
        rule, eps = learnt_rule(model.pair, kernel, signal, cheap, expensive, by_hits)
        yield Decision("continuation", lambda: ({"eps": repr(eps)}, rule._asdict()))
        model = replace(model, simulate=model.pair.with_rule(rule))
    return model


def continuation_setting(model: Model) -> dict[str, Any]:
    """The continuation probability as a run's settings have it, with what was learnt; nothing without one."""
    if model.pair is None:
        return {}
    rule: Any = model.pair.continuation
    if isinstance(rule, ContinuationRule):
        rule = {"edges": rule.edges.tolist(), "alpha": rule.alpha.tolist()}
    price = None if model.pair.price is None else list(model.pair.price)
    return {"continuation": "your own" if callable(rule) else rule, "price": price}


def pilot_round(task: FromPrior | PairsFromPrior, count: int) -> Round:
    """The simulations from which a distance or a continuation probability is learnt."""
    return Round(
        task,
        lambda gathered: cut(count, task.model.block or PLAIN_BLOCK, gathered.done),
        phase="pilot",
        bar=Bar("pilot", count, "simulations"),
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
