"""The lock-step loop: all chains of a block take a step together, in array code.

The loop knows nothing of what a step does. It asks a sampler for `step(rng, state) -> (state, info)`, keeps every
`thin`-th state in arrays made beforehand, and adds up what the steps cost.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.engines.streams import Rng
from onedraw.model.simulator import Failure

FAILURES_KEPT = 20


class Info(NamedTuple):
    """What we report of one step of a block of n chains."""

    accepted: Array
    """(n,) whether the chain moved."""
    proposals: int | Array
    """1 where every chain proposed, or (n,) with 0 for chains that were held."""
    simulations: int
    setups: int = 0
    skipped: int = 0
    failed: int = 0
    failures: tuple[Failure, ...] = ()
    ignored_rng: bool = False
    capped: int = 0
    """Chains whose step was cut short at a limit on its draws."""


class Sampler(Protocol):
    """What the loop asks of an algorithm."""

    def step(self, rng: Rng, state: Any) -> tuple[Any, Info]:
        """One step of every chain of the block."""
        ...


@dataclass
class Tally:
    """Sums over steps, for one block."""

    accepted: Array
    """(batches, n) moves by stretch of the run, from which the error of the acceptance rate is estimated."""
    proposals: Array
    simulations: int = 0
    setups: int = 0
    skipped: int = 0
    failed: int = 0
    capped: int = 0
    failures: list[Failure] = field(default_factory=list)
    ignored_rng: bool = False

    def cost(self) -> Cost:
        """The sums as a Cost."""
        return Cost(self.simulations, self.setups, self.skipped, self.failed, int(self.proposals.sum()))


def advance(
    sampler: Sampler,
    rng: Rng,
    state: Any,
    first_step: int,
    steps: int,
    thin: int,
    theta: Array,
    distances: Array | None,
    batches: int = 1,
    stretch: tuple[int, int] | None = None,
) -> tuple[Any, Tally]:
    """Take `steps` steps from `state`, writing kept states into theta (steps / thin, n, dim) and distances.

    Moves are counted in `batches` equal parts of the `stretch` of steps (from, to) that these steps belong to.
    """
    begin, end = (first_step, first_step + steps) if stretch is None else stretch
    n = len(state.theta)
    tally = Tally(np.zeros((batches, n), dtype=np.int64), np.zeros((batches, n), dtype=np.int64))
    step, counts = sampler.step, tally.accepted
    all_proposed = [0] * batches
    for done in range(steps):
        rng.step = first_step + done
        state, info = step(rng, state)
        batch = (first_step + done - begin) * batches // (end - begin)
        if np.count_nonzero(info.accepted):
            counts[batch] += info.accepted
        if isinstance(info.proposals, int):
            all_proposed[batch] += info.proposals
        else:
            tally.proposals[batch] += info.proposals
        tally.simulations += info.simulations
        tally.setups += info.setups
        tally.skipped += info.skipped
        tally.capped += info.capped
        if info.failed:
            tally.failed += info.failed
            tally.failures.extend(info.failures[: FAILURES_KEPT - len(tally.failures)])
        if info.ignored_rng:
            tally.ignored_rng = True
        if (done + 1) % thin == 0:
            theta[done // thin] = state.theta
            if distances is not None:
                distances[done // thin] = state.distances
    tally.proposals += np.array(all_proposed)[:, None]
    return state, tally
