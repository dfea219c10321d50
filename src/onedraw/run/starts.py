"""Where chains start: draws of Algorithm 1 at the same kernel, points you give, or draws of an earlier posterior.

An accepted draw of Algorithm 1 with its pseudo-samples is exactly a stationary state of the chain, so there is no
burn-in. For M > 1 it is enough to accept with one pseudo-sample, keep it, and add M - 1 fresh ones (docs/theory.md).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.engines.numba import chains_a_block as compiled_chains
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.estimators.average import AbcAverage, Evaluation, evaluate, joined
from onedraw.model.model import DEVICE_ROWS, DEVICE_VALUES, Model
from onedraw.model.prior import Prior
from onedraw.model.simulator import Failure, JaxSimulator
from onedraw.results.posterior import Posterior
from onedraw.run.blocks import Block, Deadline, cut, in_order
from onedraw.run.progress import Progress, Show
from onedraw.run.record import Record
from onedraw.run.saving import Saver
from onedraw.run.signals import Stopped
from onedraw.samplers.rejection import Collected, block_size, collect

PLAIN_BLOCK, BATCHED_BLOCK, DEVICE_BLOCK = 1, 16_384, 2**22
"""Chains a block, for simulators that are called once a pseudo-sample, for others, and on a device."""
TRIES = 1000
"""Estimates at a given starting point before it is called hopeless."""


@dataclass
class Start:
    """Starting states of all chains, and draws from which a proposal may learn its scale."""

    theta: Array
    log_estimate: Array
    distances: Array
    spread: Array
    """Draws (k, dim) near the posterior that no chain starts from."""
    cost: Cost
    failures: tuple[Failure, ...]
    reason: str
    note: str = ""

    def complete(self, chains: int) -> bool:
        """Whether every chain has its state; a search that was stopped is not, even where it had found enough.

        What else it would have found shapes the proposal, so the run would be another one.
        """
        return len(self.theta) == chains and self.reason in ("enough", "done")


def starting_states(
    start: Any,
    estimator: Any,
    chains: int,
    seed: int,
    budget: int | None,
    deadline: Deadline,
    progress: Show,
    saver: Saver | None = None,
) -> Start:
    """The starting states asked for; fewer than `chains` rows where the budget or the time did not suffice.

    Stopped where a signal came while fresh pseudo-samples were drawn.
    """
    saver = Saver() if saver is None else saver
    known = saver.last("start")
    if known is not None:
        return _loaded(known)
    found = _found(start, estimator, chains, seed, budget, deadline, progress, saver)
    if found.complete(chains):
        scalars = {"cost": found.cost, "failures": [one._asdict() for one in found.failures], "note": found.note}
        saver.put("start", scalars, {name: getattr(found, name) for name in ARRAYS})
    return found


ARRAYS = ("theta", "log_estimate", "distances", "spread")


def _loaded(record: Record) -> Start:
    """The start that an earlier session saved."""
    arrays = {name: record.arrays[name].copy(order="K") for name in ARRAYS}
    failures = tuple(Failure(**one) for one in record.scalars["failures"])
    return Start(**arrays, cost=Cost(*record.scalars["cost"]), failures=failures, reason="enough",
                 note=record.scalars["note"])  # fmt: skip


def _found(
    start: Any,
    estimator: Any,
    chains: int,
    seed: int,
    budget: int | None,
    deadline: Deadline,
    progress: Show,
    saver: Saver,
) -> Start:
    if isinstance(start, str):
        if start != "rejection":
            raise ValueError(f"start must be 'rejection', points or a Posterior, got {start!r}")
        if estimator.log_bound is None:
            raise ValueError(
                "start='rejection' needs an estimator with a known log_bound: give starting points, as in "
                f"start={{{', '.join(f'{name!r}: ...' for name in estimator.prior.names)}}}"
            )
        return _by_rejection(estimator, chains, seed, budget, deadline, progress, saver)
    if isinstance(start, Posterior):
        if start.names != estimator.prior.names:
            raise ValueError(f"start holds draws of {list(start.names)}, the model has {list(estimator.prior.names)}")
        return _from_posterior(start, estimator, chains, seed, budget)
    points = given_points(start, estimator.prior, chains)
    return _at_points(points, points, estimator, seed, budget, "given")


def _by_rejection(
    estimator: Any,
    chains: int,
    seed: int,
    budget: int | None,
    deadline: Deadline,
    progress: Show,
    saver: Saver,
) -> Start:
    abc = isinstance(estimator, AbcAverage)
    cheap = replace(estimator, pseudo_samples=1, early=False, keep_distances=True) if abc else estimator
    cost_each = 1 if abc else pseudo_samples_of(estimator)
    later = estimator.pseudo_samples - 1 if abc else 0
    # The fresh draws that complete M are set aside beforehand, so that the budget is not passed.
    proposals = None if budget is None else max(0, (budget - later * chains) // cost_each)
    # Few, since among few proposals the nearest many would be most of the prior.
    wanted = max(12, 5 * estimator.prior.dim)
    # Whole blocks are paid for, so few chains are looked for in small ones.
    size = 64
    sized: Callable[[int, int], int] | None = None
    if abc:
        size = min(_largest_block(cheap), max(64, 16 * chains))
        if cheap.engine is not None:
            sized = partial(next_block, chains, size, _largest_block(cheap), proposals)
    elif getattr(estimator, "engine", None) is not None:
        size = max(64, min(DEVICE_ROWS // cost_each, 16 * chains))
    found = collect(
        cheap,
        seed=seed,
        phase=Phase.START,
        draws=chains,
        proposals=proposals,
        block=sized or size,
        deadline=deadline,
        progress=Progress(progress, "starting points", chains, "chains"),
        neighbours=wanted,
        saver=saver,
    )
    here = _as_start(found, found.log_estimate)
    return _completed(estimator, found, seed) if here.complete(chains) else here


def next_block(wanted: int, first: int, most: int, budget: int | None, made: int, accepted: int) -> int:
    """Proposals of the next block on a device, which should find the rest: to ask it costs as much as many proposals.

    >>> next_block(100, 1600, 2**21, None, 0, 0), next_block(100, 1600, 2**21, None, 1600, 10)
    (1600, 17600)
    """
    if made == 0:
        return first
    # A seventh more than the rest should need, since it would be missed half of the time; few hits tell little.
    rest = made * min(16 + 8 * accepted, 8 / 7 * (wanted - accepted) / max(accepted, 1e-9))
    if budget is not None:
        # Some is left for steps where the rest needs less than it seems.
        rest = min(rest, 2 / 3 * (budget - made))
    return min(most, max(1, math.ceil(rest / first)) * first)


def _largest_block(estimator: AbcAverage) -> int:
    """Proposals a block at the most: where millions of chains start, a device should not be asked too often."""
    size = block_size(estimator.model, 1)
    return size if estimator.engine is None else min(2**21, max(size, DEVICE_VALUES // estimator.model.recipe.width))


def _completed(estimator: Any, found: Collected, seed: int) -> Start:
    """Starting states from draws with one pseudo-sample each: the other M - 1 are drawn afresh."""
    log_estimate = found.log_estimate
    if isinstance(estimator, AbcAverage) and estimator.pseudo_samples > 1:
        later = estimator.pseudo_samples - 1
        # What is not kept stays on the device.
        keep = estimator.keep_distances or estimator.engine is None
        rest = replace(estimator, pseudo_samples=later, keep_distances=keep, early=False)
        more = estimates(rest, seed, Phase.FILL, np.asfortranarray(found.theta))
        found.cost = found.cost.plus(Cost(simulations=more.simulations, setups=more.setups, failed=more.failed))
        found.failures = (*found.failures, *more.failures)
        if keep:
            found.distances = np.concatenate([found.distances, more.distances], axis=1)
            log_estimate = estimator.kernel.log_average(found.distances)
        else:
            total = np.logaddexp(log_estimate, more.log_estimate + math.log(later))
            log_estimate = np.minimum(total - math.log(later + 1), 0.0)
    if not keeps_distances(estimator):
        found.distances = np.empty((len(found.theta), 0))
    return _as_start(found, log_estimate)


def _as_start(found: Collected, log_estimate: Array) -> Start:
    return Start(found.theta, log_estimate, found.distances, found.neighbours, found.cost, found.failures, found.reason)


def _from_posterior(start: Posterior, estimator: Any, chains: int, seed: int, budget: int | None) -> Start:
    """Draws of an earlier run, each with its own pseudo-sample where that is known and counts at the new kernel."""
    every = np.column_stack([start.draws[name].reshape(-1) for name in start.names]).astype(float)
    rng = Rng(seed, Phase.RESAMPLE).bulk(Purpose.MOVE)
    weights = np.full(len(every), 1.0) if start.weights is None else start.weights.reshape(-1)
    known = isinstance(estimator, AbcAverage) and _same(start.model, estimator.model) and start.distances is not None
    if not known or start.distances is None or start.distances.ndim != 2 or start.kernel is None:
        pool = every[rng.choice(len(every), max(chains, 1000), p=weights / weights.sum())]
        return _at_points(pool[:chains], pool, estimator, seed, budget, "the earlier posterior's")
    kernel, distances = estimator.kernel, start.distances.reshape(-1)
    weights = np.where(np.isneginf(kernel.log_weight(distances)), 0.0, weights)
    if kernel.name == start.kernel.name and kernel.eps <= start.kernel.eps and weights.any():
        reweighted = start.at(kernel.eps).weights
        assert reweighted is not None
        weights = reweighted.reshape(-1)
    if not weights.any():
        raise ValueError(
            f"no draw of the posterior given as start is within eps = {kernel.eps}: the nearest is at distance "
            f"{distances.min():.4g}; start from a run at a smaller eps, or start='rejection'"
        )
    pick = rng.choice(len(every), max(chains, 1000), p=weights / weights.sum())
    chosen = pick[:chains]
    found = Collected(
        np.asfortranarray(every[chosen]), kernel.log_weight(distances[chosen]), distances[chosen][:, None],
        chains, Cost(), (), "enough", every[pick],
    )  # fmt: skip
    return _completed(estimator, found, seed)


def _same(one: Model | None, other: Model) -> bool:
    """Whether two models are one; a run on a device has a copy of its model that is placed there."""
    if one is None or not isinstance(one.simulate, JaxSimulator) or not isinstance(other.simulate, JaxSimulator):
        return one is other
    parts = [(model.prior, model.simulate.function, model.summary, model.distance) for model in (one, other)]
    same = all(a is b for a, b in zip(*parts, strict=True))
    return same and np.array_equal(one.observed_row, other.observed_row)


class Points(NamedTuple):
    """Points of a block of chains at which estimates are wanted."""

    block: Block
    theta: Array


class Tried(NamedTuple):
    """Estimates at the points of a block, and what they cost."""

    evaluation: Evaluation
    nearest: float
    """The least distance of points that have no estimate above zero yet."""

    @property
    def simulations(self) -> int:
        """What the block cost."""
        return self.evaluation.simulations


@dataclass(frozen=True, eq=False)
class Estimates:
    """The pure task: estimates at the points of a block, tried for until each is above zero where `tries` allows."""

    estimator: Any
    seed: int
    phase: int
    tries: int | None = None
    """None: one estimate, whatever it is."""

    def __call__(self, points: Points) -> Tried:
        if self.tries is None:
            return Tried(
                evaluate(self.estimator, Rng(self.seed, self.phase, points.block.first), points.theta, None), 0
            )
        n, nearest = points.block.size, np.inf
        whole = Evaluation(np.full(n, -np.inf), np.empty((0, 0)), 0)
        for attempt in range(self.tries):
            missing = np.flatnonzero(np.isneginf(whole.log_estimate))
            if missing.size == 0:
                break
            needed = np.full(n, np.inf)
            needed[missing] = -np.inf
            rng = Rng(self.seed, self.phase, points.block.first, attempt)
            part = evaluate(self.estimator, rng, points.theta, needed)
            whole.log_estimate[missing] = part.log_estimate[missing]
            distances = whole.distances
            if part.distances.size:
                distances = part.distances if attempt == 0 else distances
                distances[missing] = part.distances[missing]
                nearest = min(nearest, float(part.distances[missing].min()))
            whole = Evaluation(
                whole.log_estimate,
                distances,
                whole.simulations + part.simulations,
                whole.setups + part.setups,
                whole.failed + part.failed,
                (*whole.failures, *part.failures)[:20],
                part.ignored_rng if attempt == 0 else whole.ignored_rng,
            )
        return Tried(whole, nearest)


def estimates(
    estimator: Any, seed: int, phase: int, theta: Array, tries: int | None = None, check: Any = None
) -> Evaluation:
    """Estimates at a point for each chain, by blocks of chains; Stopped where a signal came.

    `check(block, tried)` may look at each block's as it comes.
    """
    parts: list[Evaluation] = []

    def take(points: Points, tried: Tried) -> bool:
        if check is not None:
            check(points.block, tried)
        parts.append(tried.evaluation)
        return False

    asked = (
        Points(block, np.asfortranarray(theta[block.first : block.first + block.size]))
        for block in cut(len(theta), chains_a_block(estimator, len(theta)))
    )
    task = Estimates(estimator, seed, phase, tries)
    reason = in_order(task, asked, take, Deadline(None), Progress(False, "", None))
    if reason != "done":
        raise Stopped(reason)
    return parts[0] if len(parts) == 1 else joined(parts)


def chains_a_block(estimator: Any, chains: int) -> int:
    """Chains that share the streams of proposals and uniforms, and one worker: a part of a run's identity."""
    inner = getattr(estimator, "estimator", estimator)
    if getattr(inner, "engine", None) is not None:
        return DEVICE_BLOCK
    if isinstance(inner, AbcAverage) and inner.model.compiled:
        return compiled_chains(chains)
    return PLAIN_BLOCK if isinstance(inner, AbcAverage) and not inner.model.batched else BATCHED_BLOCK


def pseudo_samples_of(estimator: Any) -> int:
    """Simulations one estimate may take."""
    inner = getattr(estimator, "estimator", estimator)
    return int(getattr(inner, "pseudo_samples", getattr(inner, "simulations", 1)))


def keeps_distances(estimator: Any) -> bool:
    """Whether an estimator hands back the distances of its pseudo-samples."""
    return bool(getattr(getattr(estimator, "estimator", estimator), "keep_distances", False))


def points_in(start: Any) -> int | None:
    """How many starting points are given, where that can be seen: then there are as many chains."""
    if isinstance(start, Mapping):
        lengths = [len(values) for values in start.values() if np.ndim(values) == 1]
        return max(lengths, default=None)
    if isinstance(start, list | tuple | np.ndarray):
        return len(start) if np.ndim(start) == 2 else None
    return None


def given_points(start: Any, prior: Prior, chains: int) -> Array:
    """Points (chains, dim) from a dict by name or an array (dim,) or (chains, dim), inside the prior's support."""
    try:
        if isinstance(start, Mapping):
            if set(start) != set(prior.names):
                raise ValueError(f"start names {sorted(start)}, the model has {sorted(prior.names)}")
            columns = [np.broadcast_to(np.asarray(start[name], dtype=float), chains) for name in prior.names]
            points = np.column_stack(columns)
        else:
            points = np.array(np.broadcast_to(np.asarray(start, dtype=float), (chains, prior.dim)))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"start must be 'rejection', a Posterior, or points of shape ({chains}, {prior.dim}) for {chains} chains "
            f"and parameters {list(prior.names)}: {error}"
        ) from error
    outside = ~np.isfinite(points).all(axis=1)
    outside[~outside] = np.isneginf(prior.logpdf(np.asfortranarray(points[~outside])))
    if outside.any():
        chain = int(np.argmax(outside))
        raise ValueError(f"the start of chain {chain}, {prior.named(points[chain])}, is outside the prior's support")
    return np.asfortranarray(points)


def _at_points(points: Array, pool: Array, estimator: Any, seed: int, budget: int | None, whose: str) -> Start:
    """Estimates above zero at given points, tried for until each has one."""
    chains = len(points)
    draws = pseudo_samples_of(estimator)
    tries = TRIES if budget is None else min(TRIES, budget // (chains * draws))

    def check(block: Block, tried: Tried) -> None:
        missing = np.flatnonzero(np.isneginf(tried.evaluation.log_estimate))
        if missing.size:
            chain = block.first + int(missing[0])
            near = tried.nearest
            remedy = (
                "" if np.isinf(near) else f"; the nearest simulation was at distance {near:.4g}, so try eps above it"
            )
            raise ValueError(
                f"the start of chain {chain}, {estimator.prior.named(points[chain])}, had an estimate of zero in "
                f"{tries} tries{remedy}, or start='rejection'"
            )

    found = estimates(estimator, seed, Phase.START, points, tries, check)
    cost = Cost(found.simulations, found.setups, 0, found.failed)
    distances = found.distances if keeps_distances(estimator) else np.empty((chains, 0))
    log_estimate, failures = found.log_estimate, found.failures[:20]
    return Start(
        np.asfortranarray(points), log_estimate, distances, pool, cost, failures, "enough",
        f"chains start at {whose} points, which are not draws of the posterior: discard what they need to forget them",
    )  # fmt: skip
