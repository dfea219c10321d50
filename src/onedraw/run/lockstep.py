"""The lock-step loop: all chains of a block take a step together, in array code.

The loop knows nothing of what a step does. It asks a sampler for `step(rng, state) -> (state, info)`, keeps every
`thin`-th state in arrays made beforehand, and adds up what the steps cost.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from onedraw.cost import Cost
from onedraw.engines import numba_chains
from onedraw.engines.arrays import Array
from onedraw.engines.clock import look
from onedraw.engines.streams import Borrowed, Phase, Rng
from onedraw.failures import Failure, first_failures
from onedraw.model.simulator import loop_failures
from onedraw.run import batched_chains, one_chain
from onedraw.run.blocks import Block


class Info(NamedTuple):
    """What we report of one step of a block of n chains."""

    accepted: Array
    """(n,) whether the chain moved."""
    proposals: int | Array
    """1 where every chain proposed, or (n,) with 0 for chains that were held."""
    cost: Cost
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
    cost: Cost = field(default_factory=Cost)
    capped: int = 0
    failures: tuple[Failure, ...] = ()
    ignored_rng: bool = False


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
    """Take `steps` steps from `state`, writing kept states into theta (kept, n, dim) and distances.

    Moves are counted in `batches` equal parts of the `stretch` of steps (from, to) that these steps belong to, and
    every `thin`-th step of the stretch is kept.
    """
    begin, end = (first_step, first_step + steps) if stretch is None else stretch
    n = len(state.theta)
    tally = Tally(np.zeros((batches, n), dtype=np.int64), np.zeros((batches, n), dtype=np.int64))
    step, counts = sampler.step, tally.accepted
    all_proposed = [0] * batches
    costs: list[Cost] = []
    kept = 0
    for done in range(steps):
        look()
        rng.step = first_step + done
        state, info = step(rng, state)
        batch = (first_step + done - begin) * batches // (end - begin)
        if np.count_nonzero(info.accepted):
            counts[batch] += info.accepted
        if isinstance(info.proposals, int):
            all_proposed[batch] += info.proposals
        else:
            tally.proposals[batch] += info.proposals
        costs.append(info.cost)
        tally.capped += info.capped
        if info.failures:
            tally.failures = first_failures(tally.failures, info.failures)
        if info.ignored_rng:
            tally.ignored_rng = True
        if (first_step + done + 1 - begin) % thin == 0:
            theta[kept] = state.theta
            if distances is not None:
                distances[kept] = state.distances
            kept += 1
    tally.proposals += np.array(all_proposed)[:, None]
    tally.cost = Cost.total(costs)._replace(proposals=int(tally.proposals.sum()))
    return state, tally


class Segment(NamedTuple):
    """Some steps of one block of chains, from the state that they begin with."""

    block: Block
    state: Any
    first_step: int
    steps: int
    failure_known: bool = False
    """Whether a failure of an earlier step is known: a device looks for the first one only."""
    room: tuple[Array, Array | None] | None = None
    """Where draws (kept, n, dim) and their distances go, in the process that asks for them."""


class SegmentResult(NamedTuple):
    """What a segment gives."""

    state: Any
    theta: Array
    distances: Array | None
    tally: Tally
    steps: int

    @property
    def cost(self) -> Cost:
        """Of the segment."""
        return self.tally.cost


@dataclass(frozen=True, eq=False)
class Advance:
    """The pure task of chains: take the steps of one segment."""

    sampler: Sampler
    seed: int
    thin: int
    batches: int
    stretch: tuple[int, int]
    keep_distances: bool

    @property
    def engine(self) -> Any:
        """The JAX engine, if the steps are taken there."""
        return getattr(getattr(self.sampler, "estimator", None), "engine", None)

    def length(self, steps: int, state: Any) -> int:
        """Steps of a segment that is to take about this many."""
        if self.engine is None:
            return steps
        from onedraw.engines.jax import most_kept

        return min(steps, most_kept(state) * self.thin)

    def __call__(self, segment: Segment) -> SegmentResult:
        if self.engine is not None:
            return self._on_device(segment)
        with Borrowed(self.seed, Phase.RUN, segment.block.first) as rng:
            return self._here(rng, segment)

    def _here(self, rng: Rng, segment: Segment) -> SegmentResult:
        n, before = segment.block.size, segment.first_step - self.stretch[0]
        kept = (before + segment.steps) // self.thin - before // self.thin
        if segment.room is not None:
            theta, distances = segment.room
        else:
            theta = np.empty((kept, n, segment.state.theta.shape[1]))
            distances = np.empty((kept, n, segment.state.distances.shape[1])) if self.keep_distances else None
        if one_chain.alone(self.sampler, n):
            rng.step = segment.first_step
            return self._alone(rng, segment, theta, distances)
        if batched_chains.suits(self.sampler, n):
            rng.step = segment.first_step
            found = batched_chains.advance(
                self.sampler, rng, segment.state, segment.steps, theta, distances, thin=self.thin,
                batches=self.batches, stretch=self.stretch,
            )  # fmt: skip
            tally = Tally(found.accepted, found.proposals, found.cost, 0, found.failures, found.ignored_rng)
            return SegmentResult(found.state, theta, distances, tally, segment.steps)
        loop = numba_chains.chain_loop(self.sampler)
        if loop is not None:
            state, tally = self._in_one_loop(loop, rng, segment, theta, distances)
            return SegmentResult(state, theta, distances, tally, segment.steps)
        state, tally = advance(
            self.sampler, rng, segment.state, segment.first_step, segment.steps, self.thin, theta, distances,
            self.batches, self.stretch,
        )  # fmt: skip
        return SegmentResult(state, theta, distances, tally, segment.steps)

    def _alone(self, rng: Rng, segment: Segment, theta: Array, distances: Array | None) -> SegmentResult:
        """As `advance`, for one chain of a plain simulator."""
        found = one_chain.advance(
            self.sampler, rng, segment.state, segment.steps, thin=self.thin, batches=self.batches, stretch=self.stretch
        )
        if len(found.theta):
            theta[:] = found.theta
            if distances is not None:
                distances[:, 0, 0] = found.distances
        made = sum(found.proposals)
        cost = Cost(found.simulations, skipped=made - found.simulations, failed=found.failed, proposals=made)
        accepted, proposals = np.array([found.accepted, found.proposals], dtype=np.int64)[:, :, None]
        state = type(segment.state)(*(found.state[name] for name in segment.state._fields))
        tally = Tally(accepted, proposals, cost, 0, found.failures, found.ignored_rng)
        return SegmentResult(state, theta, distances, tally, segment.steps)

    def _in_one_loop(
        self, loop: numba_chains.ChainLoop, rng: Rng, segment: Segment, theta: Array, distances: Array | None
    ) -> tuple[Any, Tally]:
        """As `advance`, in compiled code."""
        rng.step = segment.first_step
        found = numba_chains.advance(
            loop, rng, segment.state, segment.steps, theta, distances, thin=self.thin, batches=self.batches,
            stretch=self.stretch,
        )  # fmt: skip
        failures: tuple[Failure, ...] = ()
        on_error = self.sampler.estimator.on_error  # type: ignore[attr-defined]
        for one in found.failures:
            rng.step = one.step
            noted = loop_failures(loop.model.recipe, rng, one.theta, [one.chain], 0, one.report, on_error)
            failures = first_failures(failures, noted)
        made = int(found.proposals.sum())
        cost = Cost(
            found.simulations, skipped=made * loop.draws - found.simulations, failed=found.failed, proposals=made
        )  # fmt: skip
        state = type(segment.state)(*(found.state[name] for name in segment.state._fields))
        return state, Tally(found.accepted, found.proposals, cost, 0, failures, found.ignored_rng)

    def _on_device(self, segment: Segment) -> SegmentResult:
        from onedraw.engines import jax as device

        rng = Rng(self.seed, Phase.RUN, segment.block.first, segment.first_step)
        found = device.advance(
            self.sampler, self.engine, rng, segment.state, segment.steps, thin=self.thin, batches=self.batches,
            stretch=self.stretch, keep_distances=self.keep_distances, find_failure=not segment.failure_known,
        )  # fmt: skip
        made = int(found.proposals.sum())
        cost = Cost(found.simulations, failed=found.failed, proposals=made, surplus=found.surplus)
        tally = Tally(found.accepted, found.proposals, cost, found.capped, found.failures)
        return SegmentResult(found.state, found.theta, found.distances, tally, segment.steps)
