"""Where chains start: draws of Algorithm 1 at the same kernel, points you give, or draws of an earlier posterior.

An accepted draw of Algorithm 1 with its pseudo-samples is exactly a stationary state of the chain, so there is no
burn-in. For M > 1 it is enough to accept with one pseudo-sample, keep it, and add M - 1 fresh ones (docs/theory.md).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from onedraw.arguments import numbers
from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.engines.numba import chains_per_block as compiled_chains
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.estimators.abc_average import AbcAverage
from onedraw.estimators.protocol import evaluate
from onedraw.estimators.weights import effective
from onedraw.failures import Failure, NoAnswer, first_failures
from onedraw.model.kernels import Kernel
from onedraw.model.model import DEVICE_ROWS, DEVICE_VALUES, Model
from onedraw.model.prior import Prior
from onedraw.model.simulator import JaxSimulator
from onedraw.results.posterior import Posterior, points
from onedraw.run.blocks import Block, cut
from onedraw.run.plan import Bar, Gathered, Outcome, Plan, Round
from onedraw.run.prior_draws import PriorDraws, accepted, block_size

PLAIN_CHAINS_PER_BLOCK, BATCHED_CHAINS_PER_BLOCK, DEVICE_CHAINS_PER_BLOCK = 1, 16_384, 2**22
TRIES = 1000
"""Estimates at a given starting point before the run gives up on it."""
FEW_STARTS = 50
"""Effective draws of an earlier posterior below which a run says that its chains start from few."""
SURPLUS_KEPT = 1000
"""Acceptances beyond those asked for from which a proposal may learn its scale."""


class Start(NamedTuple):
    """Starting states of chains, and draws from which a proposal may learn its scale."""

    theta: Array
    """(n, dim); fewer rows than chains if the budget did not suffice."""
    log_estimate: Array
    distances: Array
    spread: Array
    """Draws (k, dim) near the posterior that no chain starts from."""
    cost: Cost
    note: str = ""
    units: Array | None = None
    """(chains,) equal for chains whose starts are not independent of each other; None if all are."""

    def part(self, block: Block) -> "Start":
        """The states of a block of chains."""
        rows = slice(block.first, block.first + block.size)
        return self._replace(
            theta=self.theta[rows], log_estimate=self.log_estimate[rows], distances=self.distances[rows]
        )


def check_start(start: Any, estimator: Any, chains: int) -> None:
    """A ValueError, before anything is simulated, if chains cannot start there."""
    if isinstance(start, str):
        if start != "rejection":
            raise ValueError(f"start must be 'rejection', points or a Posterior, got {start!r}")
        if estimator.log_bound is None:
            raise ValueError(
                "start='rejection' needs an estimator with a known log_bound: give starting points, as in "
                f"start={{{', '.join(f'{name!r}: ...' for name in estimator.prior.names)}}}"
            )
    elif isinstance(start, Posterior):
        if tuple(start.columns) != estimator.prior.labels:
            raise ValueError(
                f"start holds draws of {list(start.columns)}, the model has {list(estimator.prior.labels)}"
            )
        if start.weights is not None and start.weights.min(initial=0.0) < 0:
            raise ValueError(
                "start is a Posterior with negative weights, by which chains cannot start: run od.rejection with"
                " the expensive simulator alone, and start from that"
            )
        if not math.prod(start.shape):
            raise ValueError(f"start is a Posterior without draws ({start.status.message}): chains cannot start there")
    else:
        given_points(start, estimator.prior, chains)


def starting_states(start: Any, estimator: Any, chains: int, seed: int, budget: float | None) -> Plan[Start]:
    """The starting states asked for, of a start that `check_start` has let through."""
    if isinstance(start, str):
        return (yield from _by_rejection(estimator, chains, seed, budget))
    if isinstance(start, Posterior):
        return (yield from _from_posterior(start, estimator, chains, seed, budget))
    points = given_points(start, estimator.prior, chains)
    return (yield from _at_points(points, points, estimator, seed, budget, "given"))


def _by_rejection(estimator: Any, chains: int, seed: int, budget: float | None) -> Plan[Start]:
    abc = isinstance(estimator, AbcAverage)
    cheap = replace(estimator, pseudo_samples=1, early=False, keep_distances=True, certain=True) if abc else estimator
    cost_each = estimator.model.worst if abc else pseudo_samples_of(estimator)
    later = estimator.pseudo_samples - 1 if abc else 0
    # The fresh draws that complete M are set aside beforehand, so that the budget is not passed.
    proposals = None if budget is None else max(0, int((budget - later * chains) // cost_each))
    # Few, since among few proposals the nearest many would be most of the prior.
    neighbours = max(12, 5 * estimator.prior.dim)
    # Whole blocks are paid for, so few chains are looked for in small ones.
    first = 64
    block = lambda made, accepted: first  # noqa: E731
    if abc:
        first = min(_largest_block(cheap), max(64, 16 * chains))
        if cheap.engine is not None:
            block = partial(next_block, chains, first, _largest_block(cheap), proposals)
    elif getattr(estimator, "engine", None) is not None:
        first = max(64, min(DEVICE_ROWS // cost_each, 16 * chains))
    task = PriorDraws(cheap, seed, Phase.START, neighbours)
    found = yield from accepted(task, chains, proposals, block, "start", "starting points", "chains")
    return (yield from _completed(estimator, _first_of(found, chains, neighbours, estimator.prior.dim), chains, seed))


def _first_of(found: Outcome, chains: int, neighbours: int, dim: int) -> Start:
    """The first draws as starts. Those beyond, and the nearest rejected proposals, shape the proposal.

    Given how many proposals were accepted, these are independent of the starts, so a scale learned from them leaves
    the starts exact.
    """
    # A budget of less than one estimate per chain pays for no proposal.
    nothing = {"theta": np.empty((0, dim)), "log_estimate": np.empty(0), "distances": np.empty((0, 1))}
    arrays = found.arrays or {**nothing, "near_theta": nothing["theta"]}
    beyond = arrays["theta"][chains:][:SURPLUS_KEPT]
    if len(beyond) < neighbours:
        beyond = np.concatenate([beyond, arrays["near_theta"][: neighbours - len(beyond)]])
    theta, log_estimate, distances = (arrays[name][:chains] for name in ("theta", "log_estimate", "distances"))
    return Start(theta, log_estimate, distances, beyond, found.cost)


def next_block(wanted: int, first: int, most: int, budget: int | None, made: int, accepted: int) -> int:
    """Proposals of the next block on a device, which should find the rest: a call costs as much as many proposals.

    >>> next_block(100, 1600, 2**21, None, 0, 0), next_block(100, 1600, 2**21, None, 1600, 10)
    (1600, 6400)
    """
    if made == 0:
        return first
    # A seventh more than the rest should need, since it would be missed half of the time; few hits tell little.
    rest = made * min(16 + 8 * accepted, 8 / 7 * (wanted - accepted) / max(accepted, 1e-9))
    if budget is not None:
        # Some is left for steps if the rest needs less than it seems.
        rest = min(rest, 2 / 3 * (budget - made))
    # Each size is a program of its own: the first times a power of four.
    return min(most, first * 4 ** math.floor(math.log(max(rest / first, 1.0), 4) + 1e-9))


def _largest_block(estimator: AbcAverage) -> int:
    """The most proposals per block: if millions of chains start, a device should not be called too often."""
    size = block_size(estimator.model, 1)
    return size if estimator.engine is None else min(2**21, max(size, DEVICE_VALUES // estimator.model.recipe.width))


def _completed(estimator: Any, start: Start, chains: int, seed: int) -> Plan[Start]:
    """Starting states from draws with one pseudo-sample each: the other M - 1 are drawn afresh."""
    if len(start.theta) < chains:
        return start
    log_estimate, distances, cost = start.log_estimate, start.distances, start.cost
    if isinstance(estimator, AbcAverage) and estimator.pseudo_samples > 1:
        later = estimator.pseudo_samples - 1
        # What is not kept stays on the device.
        keep = estimator.keep_distances or estimator.engine is None
        rest = replace(estimator, pseudo_samples=later, keep_distances=keep, early=False)
        more = yield _estimates(Estimates(rest, seed, Phase.FILL), start.theta, "fill")
        cost = cost.plus(more.cost)
        if keep:
            distances = np.concatenate([distances, more.arrays["distances"]], axis=1)
            log_estimate = estimator.kernel.log_average(distances)
        else:
            total = np.logaddexp(log_estimate, more.arrays["log_estimate"] + math.log(later))
            log_estimate = np.minimum(total - math.log(later + 1), 0.0)
    if not keeps_distances(estimator):
        distances = np.empty((len(start.theta), 0))
    return start._replace(log_estimate=log_estimate, distances=distances, cost=cost)


def _from_posterior(start: Posterior, estimator: Any, chains: int, seed: int, budget: float | None) -> Plan[Start]:
    """Draws of an earlier run, each with its own pseudo-sample if that is known and counts at the new kernel."""
    every = points(start.columns)
    rng = Rng(seed, Phase.RESAMPLE).bulk(Purpose.MOVE)
    given = np.full(len(every), 1.0) if start.weights is None else start.weights.reshape(-1)
    known = isinstance(estimator, AbcAverage) and _same(start.model, estimator.model) and start.distances is not None
    # What a simulation in two parts counts is not kept with its distance.
    known = known and estimator.model.pair is None
    if not known or start.distances is None or start.distances.ndim != 2 or start.kernel is None:
        pool = every[rng.choice(len(every), max(chains, 1000), p=given / given.sum())]
        return (yield from _at_points(pool[:chains], pool, estimator, seed, budget, "the earlier posterior's"))
    kernel, distances = estimator.kernel, start.distances.reshape(-1)
    units = units_of(start)
    weights, note = weights_at(kernel, start, units)
    if not weights.any():
        raise NoAnswer(
            f"no draw of the posterior given as start is within eps = {kernel.eps}: the nearest is at distance "
            f"{distances.min():.4g}; start from a run at a smaller eps, or start='rejection'"
        )
    pick = rng.choice(len(every), max(chains, 1000), p=weights / weights.sum())
    chosen = pick[:chains]
    found = Start(
        np.asfortranarray(every[chosen]), kernel.log_weight(distances[chosen]), distances[chosen][:, None],
        every[pick], Cost(), note, units[chosen],
    )  # fmt: skip
    return (yield from _completed(estimator, found, chains, seed))


def units_of(start: Posterior) -> Array:
    """(n,) equal for draws of an earlier run that are not independent of each other.

    Of chains they are segments that are worth two effective draws or more each.
    """
    if start.groups is not None:
        return start.groups.reshape(-1)
    chains, n = start.shape
    if start.independent:
        return np.arange(chains * n)
    effective = min(start.estimate(name).ess for name in start.columns)
    pieces = 1 if math.isnan(effective) else min(max(int(effective / (2 * chains)), 1), n)
    return (np.arange(chains)[:, None] * pieces + np.arange(n) * pieces // n).reshape(-1)


def weights_at(kernel: Kernel, start: Posterior, units: Array) -> tuple[Array, str]:
    """Weights that turn a run's draws with one distance each into draws at a kernel, and what they cannot make good.

    A draw of the run has the density pi p(d|theta) K_run(d), so that its weight is K(d)/K_run(d), if the run could
    accept every distance that the kernel accepts.
    """
    assert start.kernel is not None and start.distances is not None
    distances, given = start.distances.reshape(-1), start.run_weights if "run_eps" in start.settings else start.weights
    log_run, log_new = start.kernel.log_weight(distances), kernel.log_weight(distances)
    log_ratio = np.where(np.isneginf(log_run), -np.inf, log_new - np.maximum(log_run, -1e300))
    weights = np.exp(log_ratio - max(float(log_ratio.max()), -1e300))
    weights = weights if given is None else weights * given.reshape(-1)
    reach, needed = (one.eps * one.support for one in (start.kernel, kernel))
    if needed > reach:
        return weights, (
            f"the posterior given as start comes from a run that accepted distances below {reach:g} only, and this "
            f"kernel ({kernel.name}, eps = {kernel.eps:g}) also counts larger ones: chains do not start in their "
            "posterior; discard the first draws, until the chains have forgotten them, or use start='rejection'"
        )
    count = effective(np.bincount(np.unique(units, return_inverse=True)[1].reshape(-1), weights))
    if count < FEW_STARTS:
        return weights, (
            f"the posterior given as start has {count:.3g} effective draws at this kernel ({kernel.name}, eps = "
            f"{kernel.eps:g}), and all chains start from these: discard the first draws, until the chains have "
            "forgotten them, or use start='rejection'"
        )
    return weights, ""


def _same(one: Model | None, other: Model) -> bool:
    """Whether two models are one; a run on a device has a copy of its model that is placed there."""
    if one is None or not isinstance(one.simulate, JaxSimulator) or not isinstance(other.simulate, JaxSimulator):
        return one is other
    parts = [(model.prior, model.simulate.function, model.summary, model.distance) for model in (one, other)]
    same = all(a is b for a, b in zip(*parts, strict=True))
    return same and np.array_equal(one.observed_row, other.observed_row)


class Points(NamedTuple):
    """Points of a block of chains at which estimates are wanted."""

    first: int
    size: int
    theta: Array


@dataclass(frozen=True, eq=False)
class Estimates:
    """The pure task: estimates at the points of a block; with `tries`, repeated until each is above zero."""

    estimator: Any
    seed: int
    phase: int
    tries: int | None = None

    def __call__(self, points: Points) -> Outcome:
        if self.tries is None:
            found = evaluate(self.estimator, Rng(self.seed, self.phase, points.first), points.theta, None)
            arrays = {"log_estimate": found.log_estimate, "distances": found.distances}
            return Outcome(arrays, found.cost, found.failures, found.ignored_rng)
        log_estimate, distances = np.full(points.size, -np.inf), np.empty((points.size, 0))
        cost, failures, ignored = Cost(), tuple[Failure, ...](), False
        nearest = np.inf
        for attempt in range(self.tries):
            missing = np.flatnonzero(np.isneginf(log_estimate))
            if missing.size == 0:
                break
            needed = np.full(points.size, np.inf)
            needed[missing] = -np.inf
            part = evaluate(self.estimator, Rng(self.seed, self.phase, points.first, attempt), points.theta, needed)
            log_estimate[missing] = part.log_estimate[missing]
            if part.distances.size:
                distances = part.distances if attempt == 0 else distances
                distances[missing] = part.distances[missing]
                nearest = min(nearest, float(part.distances[missing].min()))
            cost, failures = cost.plus(part.cost), first_failures(failures, part.failures)
            ignored = ignored or (attempt == 0 and part.ignored_rng)
        self._refuse_zero(points, log_estimate, nearest)
        return Outcome({"log_estimate": log_estimate, "distances": distances}, cost, failures, ignored)

    def _refuse_zero(self, points: Points, log_estimate: Array, nearest: float) -> None:
        missing = np.flatnonzero(np.isneginf(log_estimate))
        if missing.size:
            row = int(missing[0])
            far = f"; the nearest simulation was at distance {nearest:.4g}, so try eps above it"
            raise NoAnswer(
                f"the start of chain {points.first + row}, {self.estimator.prior.named(points.theta[row])}, had an "
                f"estimate of zero in {self.tries} tries{far if np.isfinite(nearest) else ''}, or start='rejection'"
            )


def _estimates(task: Estimates, theta: Array, phase: str) -> Round:
    """A round of estimates at a point for each chain, by blocks of chains."""
    size = chains_per_block(task.estimator, len(theta))

    def points(gathered: Gathered) -> Any:
        for block in cut(len(theta), size, gathered.done):
            rows = np.asfortranarray(theta[block.first : block.first + block.size])
            yield Points(block.first, block.size, rows)

    return Round(task, points, phase=phase, bar=Bar("starting points", len(theta), "chains"))


def chains_per_block(estimator: Any, chains: int) -> int:
    """Chains that share the streams of proposals and uniforms, and one worker: a part of a run's identity."""
    inner = getattr(estimator, "estimator", estimator)
    if getattr(inner, "engine", None) is not None:
        return DEVICE_CHAINS_PER_BLOCK
    if isinstance(inner, AbcAverage) and inner.model.compiled:
        return compiled_chains(chains)
    plain = isinstance(inner, AbcAverage) and not inner.model.batched
    return PLAIN_CHAINS_PER_BLOCK if plain else BATCHED_CHAINS_PER_BLOCK


def pseudo_samples_of(estimator: Any) -> int:
    """The most simulations of one estimate."""
    inner = getattr(estimator, "estimator", estimator)
    return int(getattr(inner, "pseudo_samples", getattr(inner, "simulations", 1)))


def keeps_distances(estimator: Any) -> bool:
    """Whether an estimator returns the distances of its pseudo-samples."""
    return bool(getattr(getattr(estimator, "estimator", estimator), "keep_distances", False))


def points_in(start: Any, prior: Prior) -> int | None:
    """How many starting points are given, if that can be seen: then there are as many chains."""
    try:
        if isinstance(start, Mapping):
            axes = {name: len(shape) for name, shape in zip(prior.names, prior.layout.shapes, strict=True)}
            lengths = [len(one) for name, one in start.items() if np.ndim(one) == axes.get(name, 0) + 1]
            return max(lengths, default=None)
        if isinstance(start, list | tuple | np.ndarray):
            return len(start) if np.ndim(start) == 2 else None
    except ValueError:
        # Rows of different lengths: `check_start` says so.
        return None
    return None


def given_points(start: Any, prior: Prior, chains: int) -> Array:
    """Points (chains, dim) from a dict by name or an array (dim,) or (chains, dim), inside the prior's support."""
    try:
        if isinstance(start, Mapping):
            if set(start) != set(prior.names):
                raise ValueError(f"start names {sorted(map(str, start))}, the model has {sorted(prior.names)}")
            shapes = zip(prior.names, prior.layout.shapes, strict=True)
            columns = [np.broadcast_to(numbers(start[one]), (chains, *shape)) for one, shape in shapes]
            points = np.column_stack([one.reshape(chains, -1) for one in columns])
        else:
            points = np.array(np.broadcast_to(numbers(start), (chains, prior.dim)))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"start must be 'rejection', a Posterior, or points of shape ({chains}, {prior.dim}) for {chains} chains "
            f"and parameters {list(prior.labels)}: {error}"
        ) from error
    outside = ~np.isfinite(points).all(axis=1)
    outside[~outside] = np.isneginf(prior.logpdf(np.asfortranarray(points[~outside])))
    if outside.any():
        chain = int(np.argmax(outside))
        raise ValueError(f"the start of chain {chain}, {prior.named(points[chain])}, is outside the prior's support")
    return np.asfortranarray(points)


def _at_points(points: Array, pool: Array, estimator: Any, seed: int, budget: float | None, whose: str) -> Plan[Start]:
    """Estimates above zero at given points, tried for until each has one."""
    chains, draws = len(points), pseudo_samples_of(estimator)
    worst = getattr(estimator, "worst", draws)
    tries = TRIES if budget is None else min(TRIES, int(budget // (chains * worst)))
    found = yield _estimates(Estimates(estimator, seed, Phase.START, tries), points, "start")
    distances = found.arrays["distances"] if keeps_distances(estimator) else np.empty((chains, 0))
    note = (
        f"chains start at {whose} points, which are not draws of the posterior: discard the first draws, until the "
        "chains have forgotten them"
    )
    return Start(np.asfortranarray(points), found.arrays["log_estimate"], distances, pool, found.cost, note)
