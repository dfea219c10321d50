"""Pilot simulations: what a distance must learn before a run can begin.

They are drawn from the prior with streams of their own and are not used again, since a tolerance or scale chosen
from draws that are then accepted would bend the posterior (docs/theory.md).
"""

import warnings
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.model.model import Model
from onedraw.model.simulator import Failure, Simulated, SimulationError
from onedraw.run.blocks import Block, Deadline, cut, in_order
from onedraw.run.progress import Progress, Show
from onedraw.run.saving import Saver
from onedraw.run.signals import Stopped

PLAIN_BLOCK = 16
"""Simulations a block for simulators that are called once a pseudo-sample."""
HOPELESS = 100
"""Simulations that may all fail before a run stops."""


class Piloted(NamedTuple):
    """Draws from the prior, and what was simulated at them."""

    theta: Array
    result: Simulated

    @property
    def simulations(self) -> int:
        """What the block cost."""
        return self.result.simulations


@dataclass(frozen=True, eq=False)
class FromPrior:
    """The pure task of a pilot: simulate at draws from the prior."""

    model: Model
    seed: int
    on_error: str

    def __call__(self, block: Block) -> Piloted:
        rng = Rng(self.seed, Phase.PILOT, block.first)
        theta = self.model.prior.sample(rng.bulk(Purpose.PRIOR), block.size)
        return Piloted(theta, self.model.simulate_rows(rng, theta, on_error=self.on_error))


def learn_distance(
    model: Model, seed: int, budget: int | None, on_error: str, progress: Show, saver: Saver | None = None
) -> tuple[Model, Cost]:
    """The model with its distance ready for use, and what that cost; Stopped where a signal came first."""
    if model.pilot == 0:
        return model, Cost()
    if budget is not None and budget <= model.pilot:
        raise ValueError(
            f"budget = {budget} leaves nothing after the {model.pilot} pilot simulations of the distance: raise it, "
            f"or lower the pilot, as in od.scaled(pilot={max(10, budget // 10)})"
        )
    saver = Saver() if saver is None else saver
    learnt = saver.last("pilot")
    if learnt is not None:
        return model.with_distance(ready(model.distance, learnt.arrays)), Cost(*learnt.scalars["cost"])
    size = model.block or PLAIN_BLOCK
    rows: list[Array] = []
    done = saved = failed = setups = 0
    first_failure: list[Failure] = []
    for record in saver.records("pilot.segment"):
        rows.append(record.arrays["rows"])
        done, failed, setups = (int(record.scalars[name]) for name in ("done", "failed", "setups"))
        first_failure = [Failure(**one) for one in record.scalars["failures"]]
        saved = len(rows)

    def take(block: Block, piloted: Piloted) -> bool:
        nonlocal done, failed, setups
        result = piloted.result
        rows.append(result.rows[:, 0, :])
        failed += result.failed
        setups += result.setups
        first_failure.extend(result.failures[: 1 - len(first_failure)])
        done = block.first + block.size
        refuse_hopeless(done, failed, first_failure, last=done == model.pilot)
        bar.update(done)
        if saver.due():
            save()
        return False

    def save() -> None:
        nonlocal saved
        if saved < len(rows):
            some = {"done": done, "failed": failed, "setups": setups}
            failures = [one._asdict() for one in first_failure]
            saver.put("pilot.segment", {**some, "failures": failures}, {"rows": np.concatenate(rows[saved:])})
            saved = len(rows)

    bar = Progress(progress, "pilot", model.pilot, "simulations")
    deadline = Deadline(None)
    try:
        reason = in_order(FromPrior(model, seed, on_error), cut(model.pilot, size, done), take, deadline, bar)
    finally:
        save()
    if reason != "done":
        raise Stopped(reason)
    good = np.concatenate(rows)
    good = good[~np.isnan(good[:, 0])]
    cost = Cost(simulations=model.pilot, setups=setups, failed=failed, seconds=deadline.seconds())
    distance = model.distance.learnt(good, model.labels())
    if type(distance).__module__ == "onedraw.model.distance":
        # A distance of the user's own learns again from the rows that are kept.
        saver.put("pilot", {"cost": cost}, learnt_arrays(distance))
    return model.with_distance(distance), cost


def learnt_arrays(distance: Any) -> dict[str, Array]:
    """What a built-in distance has learnt."""
    every = {field.name: getattr(distance, field.name) for field in fields(distance)}
    return {name: value for name, value in every.items() if isinstance(value, np.ndarray)}


def ready(distance: Any, arrays: dict[str, Array]) -> Any:
    """A built-in distance with what it has learnt."""
    return replace(distance, pilot=0, **arrays)


def refuse_hopeless(simulations: int, failed: int, failures: list[Failure], last: bool) -> None:
    """Stop a run in which every simulation so far has failed, with the first one's own traceback."""
    if failed == simulations > 0 and (simulations >= HOPELESS or last):
        first = failures[0]
        text = f"\nThe first failure's traceback:\n{first.traceback}" if first.traceback else ""
        raise SimulationError(f"all of the first {simulations} simulations failed. The first failed {first}.{text}")


def warn_ignored_rng() -> None:
    """Say that a simulator does not use the generator it is given."""
    warnings.warn(
        "the simulator drew nothing from the rng it was given. A deterministic simulator is fine; one that draws "
        "from numpy.random or another source of its own makes runs that cannot be repeated or resumed",
        stacklevel=4,
    )
