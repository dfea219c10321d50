"""Importance sampling in rounds: proposals that close in on the posterior, and weights in which every round counts.

Round 0 draws from the prior. Each later round draws a defensive share from the prior and the rest from Student
distributions around the nearest draws so far, each with the covariance of *its own* neighbours, so that a posterior
in several pieces is followed piece by piece. With n_k proposals from component q_k, a proposal at theta has the weight

    w(theta) = pi(theta) / sum_k (n_k / n) q_k(theta),      n = sum_k n_k,

whichever component it came from: the balance heuristic. A draw's weight in the posterior is w(theta) times the mean of
K over its pseudo-samples. No simulation of any round is left out, and since the prior is among the q_k, w is never
above n / n_prior.

Reference: Veach and Guibas (1995); Owen and Zhou (2000) for the defensive share; Cornuet, Marin, Mira and Robert (2012)
for reweighting all rounds; Filippi, Barnes, Cornebise and Stumpf (2013) for local covariances.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from onedraw.arguments import positive, whole_number
from onedraw.engines.arrays import Array
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.estimators.average import AbcAverage
from onedraw.model.kernels import EPS_MEANING, Kernel
from onedraw.model.model import Model
from onedraw.model.prior import Prior
from onedraw.model.simulator import Simulated
from onedraw.proposals.proposals import rounded_mass
from onedraw.proposals.weights import systematic
from onedraw.results.posterior import Posterior, Simulations
from onedraw.run.blocks import cut
from onedraw.run.options import Shared, check_model, check_pays, on_engine
from onedraw.run.progress import Show
from onedraw.run.rounds import (
    Found,
    Ledger,
    Outcome,
    Stage,
    effective,
    kernel_family,
    nothing_found,
    run_in_rounds,
    together,
    tolerance_with,
)
from onedraw.run.signals import Stopped
from onedraw.run.specification import distance_setting

PLAIN_BLOCK = 16
"""Simulations a block for simulators that are called once a pseudo-sample."""
FREEDOM = 5
"""Degrees of freedom of the Students: tails that a normal posterior does not outrun."""
DEFENSIVE = 0.1
"""Share of the proposals of every round that comes from the prior."""
COMPONENTS = 16
"""Students in the proposal of a round, at the most."""
NEAR = 0.1
"""Share of the near draws that are the neighbours of one of them."""
STRETCHES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Factors by which the variances of the Students may be widened."""
JUDGES = 1000
"""Draws that judge the widening, about."""
GROWTH = 1.5
"""Size of a round over that of the one before."""
KEPT_NEAR = 0.1
"""Effective number of near draws from which the next proposal is made, as a share of all draws so far."""
CLOSER = 0.4
"""About how much nearer than the last the draws of a round should come: in many dimensions the nearest draws are far
fewer than KEPT_NEAR."""
MOST_NEAR = 10_000.0
"""The same as a number, at the most."""
FEWEST = 20
"""Simulations from which a distance's scale is learnt again, at the least."""
MOPPING = 30
"""Rounds after the last in which what was saved on proposals outside the prior is spent."""
CONSTANT_DRAWS = 2**17
"""Prior draws from which the constant of a `where=` constraint is estimated."""
CHUNK = 2**14
"""Densities of a component computed at once, few enough for the cache."""


class Item(NamedTuple):
    """Parameters at which a block simulates."""

    first: int
    size: int
    step: int
    theta: Array


@dataclass(frozen=True, eq=False)
class Simulate:
    """The pure task of importance sampling: simulate at given parameters."""

    estimator: AbcAverage
    seed: int

    def __call__(self, item: Item) -> Outcome:
        result = self.estimator.evaluate(Rng(self.seed, Phase.IMPORTANCE, item.first), item.theta, None)
        arrays = {"distances": result.distances}
        if result.rows is not None:
            arrays["rows"] = result.rows
        return Outcome(
            arrays, result.simulations, result.setups, 0, result.failed, item.size, result.failures, result.ignored_rng
        )


class Mixture(NamedTuple):
    """Students of equal share, the columns of whole numbers among them rounded normals, independent of the rest."""

    centre: Array
    """(k, dim)"""
    root: Array
    """(k, continuous, continuous), lower triangular."""
    deviation: Array
    """(k, discrete) of the rounded normals."""
    discrete: Array
    """(dim,) which columns are whole numbers."""

    def sample(self, rng: np.random.Generator, n: int) -> Array:
        """n draws, the components taking turns from a random one on: (n, dim)."""
        k = len(self.centre)
        which = (np.arange(n) + rng.integers(k)) % k
        theta = np.array(self.centre[which], order="F")
        free, whole = ~self.discrete, self.discrete
        if free.any():
            normal = rng.standard_normal((n, int(free.sum())))
            stretch = np.sqrt(FREEDOM / rng.chisquare(FREEDOM, n))
            theta[:, free] += np.einsum("nij,nj->ni", self.root[which], normal) * stretch[:, None]
        if whole.any():
            theta[:, whole] = np.rint(
                theta[:, whole] + rng.standard_normal((n, int(whole.sum()))) * self.deviation[which]
            )
        return theta

    def stretched(self, factor: float) -> "Mixture":
        """The same with all variances times a factor."""
        return self._replace(root=self.root * math.sqrt(factor), deviation=self.deviation * math.sqrt(factor))

    def density(self, theta: Array) -> Array:
        """The mean of the components' densities at rows of theta (n, dim)."""
        total = np.zeros(len(theta))
        for top in range(0, len(theta), CHUNK):
            total[top : top + CHUNK] = self._density(theta[top : top + CHUNK])
        return total

    def _density(self, theta: Array) -> Array:
        free, whole = ~self.discrete, self.discrete
        total = np.zeros(len(theta))
        dim = int(free.sum())
        inverse = np.linalg.inv(self.root)
        scale = np.abs(np.prod(np.diagonal(self.root, axis1=1, axis2=2), axis=1))
        constant = math.exp(
            math.lgamma((FREEDOM + dim) / 2) - math.lgamma(FREEDOM / 2) - dim / 2 * math.log(FREEDOM * math.pi)
        )
        for k, centre in enumerate(self.centre):
            if dim:
                z = (theta[:, free] - centre[free]) @ inverse[k].T
                square = np.einsum("ij,ij->i", z, z) if dim > 1 else z[:, 0] * z[:, 0]
                value = half_power(1.0 / (1.0 + square / FREEDOM), FREEDOM + dim) * (constant / scale[k])
            else:
                value = np.ones(len(theta))
            if whole.any():
                value = value * rounded_mass(theta[:, whole] - centre[whole], self.deviation[k]).prod(axis=1)
            total += value
        return total / len(self.centre)


def half_power(base: Array, twice: int) -> Array:
    """base to the power of twice / 2, by products and a root: a general power takes ten times as long.

    >>> half_power(np.array([4.0, 9.0]), 5)
    array([ 32., 243.])
    """
    power = np.sqrt(base) if twice % 2 else None
    twice //= 2
    while twice:
        if twice % 2:
            power = base if power is None else power * base
        base = base * base
        twice //= 2
    return np.ones_like(base) if power is None else power


def around(theta: Array, weight: Array, prior: Prior, rng: np.random.Generator) -> tuple[Mixture, Array]:
    """Students around draws (n, dim) picked by weight, each with the covariance of its own neighbours; and which."""
    n, dim = theta.shape
    mean = weight @ theta / weight.sum()
    variance = weight @ (theta - mean) ** 2 / weight.sum()
    smallest = 1e-12 * np.maximum(mean * mean, float(variance.max()) or 1.0)
    deviation = np.sqrt(np.maximum(variance, smallest))
    k = int(min(COMPONENTS, max(1, effective(weight) // 2)))
    picked = systematic(weight, k, rng.random())
    centre = theta[picked]
    near = int(min(n, max(3 * (dim + 1), math.ceil(NEAR * n))))
    free = ~prior.discrete
    root, apart = np.empty((k, int(free.sum()), int(free.sum()))), np.empty((k, int((~free).sum())))
    scaled = theta / deviation
    for j, middle in enumerate(centre):
        away = scaled - middle / deviation
        square = np.einsum("ij,ij->i", away, away)
        close = np.argpartition(square, near - 1)[:near] if near < n else np.arange(n)
        some, each = away[close], weight[close] / weight[close].sum()
        local = (each[:, None] * some).T @ some
        few = dim / (effective(each) + dim)
        local = (1 - few) * local + few * np.diag(np.maximum(np.diag(local), 1e-4))
        local += np.diag(np.maximum(1e-10 - np.diag(local), 0.0))
        inner = local[np.ix_(free, free)] * np.outer(deviation[free], deviation[free])
        root[j] = np.linalg.cholesky(inner)
        apart[j] = np.maximum(np.sqrt(np.diag(local))[~free] * deviation[~free], 0.5)
    return Mixture(centre, root, apart, np.asarray(prior.discrete)), picked


def best_stretch(
    made: Mixture, theta: Array, weight: Array, log_prior: Array, centres: Array, defensive: float
) -> Mixture:
    """The mixture with its components widened as the draws say is best.

    A weighted mean of f from proposals q has a variance proportional to the sum over the draws of weight² (f - mean)²
    as that sum is under q, which is the integral of pi² E[K] (f - mean)² / q; draws that stand for pi E[K] estimate it
    by the mean of pi (f - mean)² / q. What is least is wider than the posterior: most simulations miss, also where
    the posterior is. Components' own centres are left out, where each of them is sure to be dense.
    """
    other = np.ones(len(theta), dtype=bool)
    other[centres] = False
    if np.count_nonzero(other) < 2:
        return made.stretched(STRETCHES[len(STRETCHES) // 2])
    some = np.flatnonzero(other)
    some = some[:: max(1, some.size // JUDGES)]
    theta, weight, prior = theta[some], weight[some], np.exp(log_prior[some])
    mean = weight @ theta / weight.sum()
    square = (theta - mean) ** 2
    variance = np.maximum(weight @ square / weight.sum(), 1e-300)
    value = weight * prior * (1.0 + (square / variance).mean(axis=1))
    costs = [
        float((value / (defensive * prior + (1 - defensive) * made.stretched(stretch).density(theta))).sum())
        for stretch in STRETCHES
    ]
    return made.stretched(STRETCHES[int(np.argmin(costs))])


def prior_constant(prior: Prior, seed: int) -> tuple[float, float]:
    """The prior probability of a `where=` constraint and its standard error; (1, 0) where there is none.

    The density that a constrained prior gives is that without the constraint, and must be divided by this.
    """
    if prior.where is None:
        return 1.0, 0.0
    theta = prior._draw(Rng(seed, Phase.IMPORTANCE).bulk(Purpose.ACCEPT), CONSTANT_DRAWS)
    share = float(np.count_nonzero(prior._allowed(theta))) / CONSTANT_DRAWS
    # Where hardly a draw is inside, the share is at least known not to be zero.
    share = max(share, 0.5 / CONSTANT_DRAWS)
    return share, math.sqrt(share * (1 - share) / CONSTANT_DRAWS)


class Rounds:
    """An importance run as it goes on: all proposals, their simulations, and the components they came from."""

    def __init__(self, estimator: AbcAverage, arguments: Mapping[str, Any], ledger: Ledger) -> None:
        check_pays(arguments["budget"], estimator.pseudo_samples, ledger.cost.simulations)
        self.estimator, self.ledger, self.seed = estimator, ledger, arguments["seed"]
        self.defensive, self.keep_rows = arguments["defensive"], arguments["keep_rows"]
        self.target, self.ess = arguments["eps"], arguments["ess"]
        self.prior, self.kernel = estimator.prior, estimator.kernel
        self.task = Simulate(estimator, self.seed)
        pseudo_samples = estimator.pseudo_samples
        self.block = max(1, (estimator.model.block or PLAIN_BLOCK) // pseudo_samples)
        self.constant, self.constant_se = prior_constant(self.prior, self.seed)
        self.theta = np.empty((0, self.prior.dim), order="F")
        self.log_prior = np.empty(0)
        self.distances = np.empty((0, pseudo_samples))
        self.rows: list[Array] = []
        self.mixtures: list[Mixture] = []
        self.made: list[int] = []
        """Proposals that came from each mixture."""
        self.densities: list[Array] = []
        """(n,) of each mixture at all draws, NaN where it was not needed yet."""
        self.proposals = self.of_prior = 0
        """Proposals made, and those of them that came from the prior."""
        self.rounds = 0
        self.adaptive = bool(getattr(estimator.model.distance, "adapt", False))
        self.scales: list[list[float]] = []
        """Of the distance, as it was learnt again after each round."""
        self.eps = math.inf
        self.path: list[Stage] = []

    def left(self, limit: int) -> int:
        """Proposals that the rest of the budget pays for."""
        return (limit - self.ledger.cost.simulations) // self.estimator.pseudo_samples

    def round(self, count: int, mixture: Mixture | None) -> None:
        """Propose `count` parameters, from the prior and the mixture, and simulate at those inside the prior."""
        rng = Rng(self.seed, Phase.IMPORTANCE, self.rounds)
        of_prior = count if mixture is None else min(count, math.ceil(self.defensive * count))
        theta = self.prior.sample(rng.bulk(Purpose.PRIOR), of_prior)
        if mixture is not None and of_prior < count:
            theta = np.concatenate([theta, mixture.sample(rng.bulk(Purpose.MOVE), count - of_prior)])
        theta = np.asfortranarray(theta)
        log_prior = self.prior.logpdf(theta) - math.log(self.constant)
        # A proposal outside the prior's support has weight zero whatever it would give.
        inside = np.flatnonzero(log_prior > -np.inf)
        begin = len(self.theta)
        # Made as they are needed: a round of a plain simulator can be many blocks long.
        items = (
            Item(begin + block.first, block.size, self.rounds - 1, np.asfortranarray(theta[inside[rows]]))
            for block in cut(inside.size, self.block)
            for rows in (slice(block.first, block.first + block.size),)
        )
        note = "prior" if math.isinf(self.eps) else f"eps {self.eps:.3g}"
        self.rounds += 1
        try:
            outcomes = self.ledger.run(self.task, items, note)
        except Stopped:
            # What is done of the round counts, as a round of so many proposals.
            done = self.ledger.partial
            some = inside[: sum(len(outcome.arrays["distances"]) for outcome in done)]
            if some.size:
                self._take(theta, log_prior, some, int(some[-1]) + 1, of_prior, mixture, done)
            raise
        self._take(theta, log_prior, inside, count, of_prior, mixture, outcomes)

    def _take(
        self,
        theta: Array,
        log_prior: Array,
        inside: Array,
        count: int,
        of_prior: int,
        mixture: Mixture | None,
        outcomes: list[Outcome],
    ) -> None:
        """Take in the first `count` proposals of a round, of which those `inside` were simulated."""
        self.ledger.skip((count - inside.size) * self.estimator.pseudo_samples, count - inside.size)
        of_prior = min(of_prior, count)
        self.proposals += count
        self.of_prior += of_prior
        if mixture is not None and of_prior < count:
            if not self.mixtures or self.mixtures[-1] is not mixture:
                self.mixtures.append(mixture)
                self.made.append(0)
                self.densities.append(np.full(len(self.theta), np.nan))
            self.made[-1] += count - of_prior
        if outcomes:
            self.theta = np.asfortranarray(np.concatenate([self.theta, theta[inside]]))
            self.log_prior = np.concatenate([self.log_prior, log_prior[inside]])
            new = np.full(inside.size, np.nan)
            self.densities = [np.concatenate([density, new]) for density in self.densities]
            self.distances = np.concatenate([self.distances, together(outcomes, "distances")])
            if self.estimator.keep_rows:
                self.rows.extend(outcome.arrays["rows"] for outcome in outcomes)

    def relearn(self, begin: int) -> None:
        """Scale the distance anew by the simulations from number `begin` on, and measure all draws with it."""
        model = self.estimator.model
        rows = np.concatenate(self.rows)
        good = rows[begin:].reshape(-1, rows.shape[2])
        good = good[~np.isnan(good[:, 0])]
        if len(good) < FEWEST:
            return
        model = model.with_distance(model.distance.relearnt(good, model.observed_row))
        self.estimator = self.estimator.with_model(model)
        self.task = Simulate(self.estimator, self.seed)
        self.distances = model.distances(Simulated(rows, int(np.isnan(rows[:, :, 0]).sum())))
        self.scales.append(np.asarray(model.distance.scale).tolist())

    def log_weight(self, some: Array) -> Array:
        """log of pi over the mixture of all proposals so far, at some of the draws."""
        log_prior = self.log_prior[some]
        with np.errstate(over="ignore", divide="ignore"):
            mixed = self.of_prior * np.exp(log_prior)
            for mixture, made, density in zip(self.mixtures, self.made, self.densities, strict=True):
                missing = some[np.isnan(density[some])]
                density[missing] = mixture.density(self.theta[missing])
                mixed += made * density[some]
            log_weight: Array = log_prior - np.log(mixed / self.proposals)
        # Densities beyond the largest number: both are the prior's there.
        return np.where(np.isfinite(log_weight), log_weight, math.log(self.proposals / self.of_prior))

    def near(self, target: float, least: float) -> tuple[float, Array, Array]:
        """The tolerance, at least `least`, at which the draws are worth `target`; which draws count then, and weights.

        Weights are computed only where they are needed: of the nearest draws, as many as it takes.
        """
        nearest = self.distances.min(axis=1)
        alive = int(np.count_nonzero(np.isfinite(nearest)))
        if alive == 0:
            return math.inf, np.empty(0, dtype=np.intp), np.empty(0)
        support = self.kernel.support
        # Nothing beyond the support counts, and nothing within it may be left out.
        sure = alive if math.isinf(support) else int(np.count_nonzero(nearest < least * support))
        count = min(alive, max(64, int(2 * target), sure))
        while True:
            beyond = math.inf if count == alive else float(np.partition(nearest, count)[count])
            some = np.flatnonzero(nearest < beyond)
            weight = np.exp(self.log_weight(some))
            eps = max(tolerance_with(self.kernel, math.inf, self.distances[some], weight, target), least)
            weight = weight * np.exp(self.kernel.with_eps(eps).log_average(self.distances[some]))
            if count == alive or (effective(weight) >= target and eps * support <= beyond):
                return eps, some, weight
            count = min(alive, 2 * count)

    def adapt(self, least: float) -> Mixture | None:
        """The next proposal, made from the nearest draws; None where there are too few."""
        dim = self.prior.dim
        share = min(KEPT_NEAR, CLOSER**dim)
        target = min(max(min(share * len(self.theta), MOST_NEAR), 10.0 * (dim + 1)), 0.5 * len(self.theta))
        eps, some, weight = self.near(target, least)
        keep = weight > 0
        if np.count_nonzero(keep) < dim + 2:
            return None
        self.eps = eps
        rng = Rng(self.seed, Phase.IMPORTANCE, self.rounds).bulk(Purpose.HANDICAP)
        theta, weight, log_prior = self.theta[some[keep]], weight[keep], self.log_prior[some[keep]]
        made, centres = around(theta, weight, self.prior, rng)
        return best_stretch(made, theta, weight, log_prior, centres, self.defensive)

    def stage(self, eps: float, weight: Array, before: tuple[int, int]) -> None:
        """Add a stage to the path, that began at so many proposals and simulations."""
        proposals, simulations = self.proposals - before[0], self.ledger.cost.simulations - before[1]
        made = len(self.theta) - self.counted
        log_average = self.kernel.with_eps(eps).log_average(self.distances[self.counted :]) if made else np.empty(0)
        rate = float(np.exp(log_average).sum()) / proposals if proposals and math.isfinite(eps) else math.nan
        self.path.append(Stage(eps, rate, proposals, simulations, effective(weight)))
        self.counted = len(self.theta)

    counted = 0

    def begun(self) -> bool:
        """Whether a proposal was simulated."""
        return len(self.theta) > 0

    def run(self) -> str:
        """Spend each budget in turn: why it ended."""
        reason = "budget"
        for limit in self.ledger.limits:
            assert limit is not None
            reason = self._spend(limit)
        return reason

    def _spend(self, limit: int) -> str:
        target, ess = self.target, self.ess
        least = 0.0 if target is None else target
        sizes = round_sizes(self.left(limit), self.prior.dim)
        mixture = None
        for number in range(len(sizes) + MOPPING):
            left = self.left(limit)
            if left < 1:
                return "budget"
            before = self.proposals, self.ledger.cost.simulations
            if self.rounds and number < len(sizes):
                mixture = self.adapt(least)
            count = min(left, sizes[number] if number < len(sizes) else left)
            begin = len(self.theta)
            self.round(count, mixture)
            if number < len(sizes):
                if self.adaptive and mixture is not None:
                    self.relearn(begin)
                eps, _, weight = self.near(self.wanted(), least)
                if math.isfinite(eps):
                    self.stage(eps, weight, before)
                if target is not None and ess is not None and eps <= target and effective(weight) >= ess:
                    return "ess"
        return "budget"

    def wanted(self) -> float:
        """The effective number of draws that the final tolerance is to leave."""
        ess = self.ess
        if ess is None:
            paid = self.ledger.cost.simulations
            ess = math.sqrt(10 * paid) if self.target is None else 10.0 * (self.prior.dim + 1)
        return min(ess, 0.9 * max(len(self.theta), 1))

    def found(self, reason: str) -> Found:
        """The draws at the final tolerance, wherever and why ever the run was stopped."""
        target, notes = self.target, []
        least = 0.0 if target is None else target
        eps, some, weight = self.near(self.wanted(), least)
        resolved = {"distance": distance_setting(self.estimator.model)}
        if self.scales:
            resolved["scales"] = self.scales
        if self.constant_se > 0:
            resolved = {**resolved, "prior_constant": [self.constant, self.constant_se]}
            notes.append(
                f"the constraint where= holds with prior probability {self.constant:.4g} ± {self.constant_se:.1g} "
                f"(estimated from {CONSTANT_DRAWS:,} draws); the weights rest on it"
            )
        failures = tuple(self.ledger.failures)
        if math.isinf(eps) or not weight.any():
            notes.append("no simulation gave a distance: there are no draws")
            empty = nothing_found(self.prior.dim, self.estimator.pseudo_samples, self.ledger.cost, resolved)
            return replace(empty, failures=failures, notes=tuple(notes))
        if target is not None and eps > target:
            notes.append(
                f"eps = {target:g} left draws worth fewer than {self.wanted():.0f}: these are at eps = "
                f"{eps:.4g}; raise the budget"
            )
        keep = weight > 0
        rate = float(np.exp(self.kernel.with_eps(eps).log_average(self.distances)).sum()) / self.proposals
        return Found(
            self.theta[some[keep]], weight[keep] / weight[keep].sum(), self.distances[some[keep]], None, eps, rate,
            math.sqrt(rate * max(1 - rate, 0.0) / self.proposals), tuple(self.path), self.ledger.cost, failures,
            resolved, tuple(notes),
        )  # fmt: skip

    def bank(self) -> Simulations | None:
        """All simulations with their weights, where summaries are kept."""
        if not (self.keep_rows and self.proposals):
            return None
        rows = np.concatenate(self.rows) if self.rows else None
        return Simulations(self.theta, self.distances, self.log_weight(np.arange(len(self.theta))), rows)


def round_sizes(total: int, dim: int) -> list[int]:
    """Proposals of each round, growing, so that most are made where the posterior is known best.

    >>> round_sizes(1000, 1)
    [123, 184, 276, 417]
    """
    if total < 20 * (dim + 1):
        return [max(total, 0)]
    rounds = int(np.clip(2 + 2 * math.log10(total / 100), 2, 12))
    share = GROWTH ** np.arange(rounds)
    sizes = np.floor(total * share / share.sum()).astype(int)
    sizes[-1] += total - int(sizes.sum())
    return [int(size) for size in sizes]


def importance(
    model: Model,
    *,
    budget: int,
    eps: float | None = None,
    ess: float | None = None,
    kernel: Callable[[float], Kernel] | Kernel | None = None,
    pseudo_samples: int = 1,
    defensive: float = DEFENSIVE,
    keep_rows: bool = False,
    seed: int | None = None,
    on_error: str = "reject",
    max_seconds: float | None = None,
    workers: int | None = None,
    executor: Any = None,
    engine: str | None = None,
    timeout: float | None = None,
    store: Any = None,
    segment: float = 30.0,
    progress: Show = None,
) -> Posterior:
    """Weighted draws from pi_K by importance sampling in rounds, at a tolerance that fits the budget.

    Proposals close in on the posterior, piece by piece where it has several, and every simulation of every round is
    weighted by the mixture of all proposals made (docs/theory.md). `settings["eps"]` is the tolerance reached.

    The final tolerance is chosen from the simulations that are then kept. For independent proposals and the uniform
    kernel with M = 1 that does no harm: given the distance of the next draw, which is the tolerance and is left out,
    the nearer ones are as at a tolerance fixed beforehand. With weights this holds only approximately, and proposals
    that learn from earlier rounds tie the rounds together: the draws are consistent as the budget grows, not unbiased.

    A distance `od.scaled(adapt=True)` is learnt again after every round, from all simulations of the round, and all
    draws so far are measured anew: weights do not depend on the distance, so this too bends the draws only as far as
    the last distance and they come from the same simulations.

    The prior's density must be normalised, also that of `od.Prior.joint`. The constant of a `where=` constraint is
    estimated from prior draws, and its error reported in the notes and in `settings["prior_constant"]`.

    Parameters
    ----------
    model
        What to simulate.
    budget
        The most simulations, pilot included: never passed. Proposals outside the prior cost none.
    eps
        The tolerance wanted; where it leaves too few draws (see `ess`) a larger one is used, and a note says so.
        Without it, the tolerance is the smallest that leaves `ess` draws.
    ess
        The effective number of draws, by their weights, that the final tolerance must leave: by default
        sqrt(10 budget), or 10 for each parameter and 10 more where eps is given. With eps and ess, the run ends when
        both are reached.
    kernel
        A function of eps that gives a kernel: `od.uniform` (the default), `od.gaussian`, ...
    pseudo_samples
        M, the pseudo-samples at one theta. More than one pays for simulators whose set-up is expensive.
    defensive
        Share of every round that is proposed from the prior, between 0 and 1: no weight is above its inverse.
    keep_rows
        Keep the summaries of all simulations too: `bank` of the Posterior then has them, with theta, distances and
        weights of every simulation.
    seed, on_error, max_seconds, workers, executor, engine, timeout, store, segment, progress
        As in every sampler: see `od.rejection`.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> post = od.importance(model, budget=10_000, seed=1)
    >>> post.settings["eps"] < 0.2, post.cost.simulations
    (True, 10000)
    >>> abs(post.summary()["theta"].mean - 1.0) < 0.2
    True
    """
    shared = Shared.checked(locals())
    check_model(model)
    family = kernel_family(kernel)
    model = model.limited(timeout)
    budget = whole_number("budget", budget, "the largest number of simulations")
    pseudo_samples = whole_number("pseudo_samples", pseudo_samples, "the number M of pseudo-samples at one theta")
    check_pays(budget, pseudo_samples)
    if eps is not None:
        eps = positive("eps", eps, EPS_MEANING)
    if ess is not None:
        ess = positive("ess", ess, "the effective number of draws wanted")
    if not (isinstance(defensive, int | float) and 0 < defensive < 1):
        raise ValueError(f"defensive must lie between 0 and 1, got {defensive!r}: it is the share from the prior")
    if not isinstance(keep_rows, bool):
        raise ValueError(f"keep_rows must be True or False, got {keep_rows!r}")
    estimator = AbcAverage(
        model, family, pseudo_samples, on_error=on_error, keep_distances=True, early=False,
        keep_rows=keep_rows or bool(getattr(model.distance, "adapt", False)),
    )  # fmt: skip
    estimator = on_engine(estimator, shared)
    arguments = {
        "eps": eps, "ess": ess, "pseudo_samples": pseudo_samples, "defensive": float(defensive), "budget": budget,
        "keep_rows": keep_rows, **shared.identity(estimator),
    }  # fmt: skip
    return run_in_rounds("importance", shared, estimator, arguments, Rounds)
