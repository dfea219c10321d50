"""Draws from the prior, simulated and accepted by Algorithm 1: what rejection returns and chains start from."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.engines.streams import Borrowed, Purpose, Rng
from onedraw.estimators.pairs import hits
from onedraw.estimators.protocol import Evaluation, evaluate
from onedraw.model.model import Model
from onedraw.model.simulator import CHUNK_VALUES, Simulated
from onedraw.run.blocks import Block, BlockPart, whole_of
from onedraw.run.pilot import PLAIN_BLOCK
from onedraw.run.plan import Bar, Condense, Gathered, Outcome, Plan, Round, whole_outcome

NEAR = ("near_theta", "near_distance")
GROW_FROM, GROW_SHARE, MOST_PLAIN = 4096, 64, 256
"""Simulations from which on blocks of a plain simulator grow, the share of them that the next has, and the largest."""


@dataclass(frozen=True, eq=False)
class PriorDraws:
    """The pure task: propose from the prior, simulate, and accept when u < estimate / bound, in one block.

    Of a simulator in two parts, accepted is what counts with K replaced by whether u < K, and it has a weight.
    """

    estimator: Any
    seed: int
    phase: int
    neighbours: int = 0
    """How many of the nearest rejected proposals to return."""
    keep: str = "draws"
    """Whose summaries are returned, if the estimator has them: "summaries" of accepted draws, or "all" to the file."""

    def __call__(self, item: Block | BlockPart) -> Outcome:
        block = item.block if isinstance(item, BlockPart) else item
        with Borrowed(self.seed, self.phase, block.first) as rng:
            engine = getattr(self.estimator, "engine", None)
            if engine is not None:
                return self._on_device(engine, rng, block)
            theta = self.estimator.prior.sample(rng.bulk(Purpose.PRIOR), block.size)
            if item.size == block.size:
                return self._accepted(rng, block, theta, evaluate(self.estimator, rng, theta, None))
            some = whole_of(item)[1]
            found = self.estimator.simulated(rng, theta[some], some)
            return Outcome({"simulated": found.rows}, found.cost, found.failures, found.ignored_rng)

    def joined(self, block: Block, parts: list[Outcome]) -> Outcome:
        """The outcome of a block whose parts were simulated apart: compared and accepted as a whole."""
        if len(parts) == 1:
            return parts[0]
        whole = whole_outcome(block, parts)
        found = Simulated(whole.arrays["simulated"], whole.cost, whole.failures, whole.ignored_rng)
        with Borrowed(self.seed, self.phase, block.first) as rng:
            theta = self.estimator.prior.sample(rng.bulk(Purpose.PRIOR), block.size)
            outcome = self._accepted(rng, block, theta, self.estimator.compared(found, rng, theta, None, 0))
        return outcome._replace(first=whole.first)

    def _accepted(self, rng: Rng, block: Block, theta: Array, result: Evaluation) -> Outcome:
        weight = None
        if result.counted is None:
            chosen = choose(rng, result.log_estimate, self.estimator.log_bound)
        else:
            log_u = -rng.bulk(Purpose.ACCEPT).standard_exponential(block.size)
            weight = hits(self.estimator.kernel, log_u, result.distances[:, 0], result.counted)
            chosen = np.flatnonzero(weight)
        distances = result.distances[chosen] if result.distances.size else np.empty((chosen.size, 0))
        arrays = {"theta": theta[chosen], "log_estimate": result.log_estimate[chosen], "distances": distances}
        if weight is not None:
            arrays["weight"] = weight[chosen]
        if result.rows is not None and self.keep == "summaries":
            arrays["rows"] = result.rows[chosen]
        if self.neighbours:
            near = self._nearest_rejected(result.distances, chosen)
            arrays |= {"near_theta": theta[near], "near_distance": result.distances[near, 0] if near.size else NONE}
        filed = {}
        if result.rows is not None and self.keep == "all":
            filed = {"theta": theta, "rows": result.rows, "distances": result.distances, "sizes": _size(block)}
        cost = result.cost._replace(proposals=block.size)
        return Outcome(arrays, cost, result.failures, result.ignored_rng, filed)

    def _on_device(self, engine: Any, rng: Rng, block: Block) -> Outcome:
        from onedraw.engines import jax as device

        found = device.proposals(
            self.estimator, engine, rng, block.size, log_bound=self.estimator.log_bound, passes=passes,
            neighbours=self.neighbours, keep=self.keep,
        )  # fmt: skip
        distances = np.empty((len(found.theta), 0)) if found.distances is None else found.distances
        arrays = {"theta": found.theta, "log_estimate": found.log_estimate, "distances": distances}
        if found.rows is not None:
            arrays["rows"] = found.rows
        if self.neighbours:
            arrays |= {"near_theta": found.near_theta, "near_distance": found.near_distance}
        cost = Cost(found.simulations, failed=found.failed, proposals=block.size, surplus=found.surplus)
        filed = {**found.bank, "sizes": _size(block)} if found.bank else {}
        return Outcome(arrays, cost, found.failures, filed=filed)

    def _nearest_rejected(self, distances: Array, chosen: Array) -> Array:
        if distances.size == 0:
            return np.empty(0, dtype=np.intp)
        nearest = distances[:, 0].copy()
        nearest[chosen] = np.inf
        rejected = np.flatnonzero(nearest < np.inf)
        if rejected.size <= self.neighbours:
            return rejected
        return rejected[np.argpartition(nearest[rejected], self.neighbours)[: self.neighbours]]


NONE = np.empty(0)


def _size(block: Block) -> Array:
    """Blocks name the streams with which proposals were accepted, so the file holds their sizes."""
    return np.array([block.size], dtype=np.int64)


def choose(rng: Rng, log_estimate: Array, log_bound: float) -> Array:
    """Which proposals of a block are accepted: u < estimate, decided on the log scale."""
    # A uniform is needed only if the estimate is above zero.
    some = np.flatnonzero(log_estimate > -np.inf)
    if some.size == 0:
        return some
    log_u = -rng.bulk(Purpose.ACCEPT).standard_exponential(some.size)
    return some[passes(log_u, log_estimate[some], log_bound)]


def passes(log_u: Array, log_estimate: Array, log_bound: float) -> Array:
    """u < estimate / bound on the log scale; an estimate of zero never passes."""
    passed: Array = log_u < log_estimate - log_bound
    return passed


def accepted(
    task: PriorDraws,
    draws: int | None,
    proposals: int | None,
    block: Callable[[int, int], int],
    phase: str,
    label: str,
    unit: str,
    begin: int = 0,
    in_parts: bool = False,
) -> Plan[Outcome]:
    """Run Algorithm 1 until there are `draws` acceptances or `proposals` proposals were made.

    `block` gives the size of the next block from the numbers of proposals made and accepted so far; `begin` is the
    number of the first proposal. Workers may share a block `in_parts` of a model for which that is `parted`.
    """
    neighbours = task.neighbours

    def enough(gathered: Gathered) -> bool:
        return draws is not None and gathered.rows("theta") >= draws and gathered.done >= draws + neighbours

    def position(gathered: Gathered) -> int:
        return gathered.done if draws is None else min(gathered.rows("theta"), draws)

    def nearest(arrays: dict[str, Array]) -> dict[str, Array]:
        order = np.argsort(arrays["near_distance"], kind="stable")[:neighbours]
        return {name: array[order] for name, array in arrays.items()}

    outcome: Outcome = yield Round(
        task,
        lambda gathered: _blocks(gathered, proposals, block, begin),
        phase=phase,
        join=task.joined if in_parts else None,
        enough=None if draws is None else enough,
        condense=Condense(NEAR, nearest) if neighbours else None,
        bar=Bar(label, proposals if draws is None else draws, unit, position),
        note=lambda gathered: f"{gathered.rows('theta') / max(gathered.done, 1):.3g} accepted",
    )
    return outcome


def _blocks(gathered: Gathered, proposals: int | None, size: Callable[[int, int], int], begin: int) -> Iterator[Block]:
    """Blocks behind those gathered; only a device's sizes follow what was found, and it has one block at a time."""
    first = gathered.done
    while proposals is None or first < proposals:
        some = size(first, gathered.rows("theta"))
        yield Block(begin + first, some if proposals is None else min(some, proposals - first))
        first += some


def parted(model: Model) -> bool:
    """Whether a block may be simulated in parts: simulations have their own streams, and the distance is built in."""
    return model.block is None and model.pair is None and hasattr(model.distance, "learnt")


def grown(size: int, model: Model, pseudo_samples: int, made: int) -> int:
    """Proposals of the next block, after this many: few at first, and of many a small share.

    A block is what a kill loses, and what a run that has enough draws simulates in vain. Workers share a large one.
    """
    simulations = made * pseudo_samples
    if simulations < GROW_FROM or not parted(model):
        return size
    most = min(simulations // GROW_SHARE, MOST_PLAIN, CHUNK_VALUES // model.recipe.width)
    return max(size, most // pseudo_samples)


def block_size(model: Model, pseudo_samples: int) -> int:
    """Proposals per block: a chunk of simulations for batched simulators, few for those called one by one."""
    return max(1, (model.block or PLAIN_BLOCK) // pseudo_samples)
