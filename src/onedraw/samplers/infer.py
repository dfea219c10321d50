"""The most accurate posterior for a budget: stages that aim each other, and a conclusion that is tried out.

1. *Pilot*: simulations at draws from the prior, from which the scale of each summary is learnt.
2. *Stages*: the simulations so far are studied (`adjustment.decide`): which summary, how wide a region and which kind
   of regression predict held-out simulations near the data best. The next stage draws from the prior, or from
   normals around the nearest draws with local covariances, whichever promises more effective draws in that region. With
   prior draws in the region R, a simulation from q is worth 1 / E_R[pi / q] of one from the prior; this is measured on
   draws that q was not made from. A simulation at theta has the weight

       w(theta) = pi(theta) / sum_k (n_k / n) q_k(theta),

   whichever q_k it came from, the prior among them, so that every simulation counts to the end.
3. *Conclusion*: the study once more, thoroughly, and draws from the smoothed estimate. A part of the budget is spent on
   simulations at these draws, to see whether they look like the data.

Everything that is decided is a function of the simulations and the seed, so a run goes on from its file to the same
bytes.

Reference: docs/choosing.md; Cornuet, Marin, Mira and Robert (2012) for the weights; Filippi et al. (2013) for local
covariances.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from onedraw.arguments import whole_number
from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.engines.threads import one_blas_thread
from onedraw.estimators.average import AbcAverage
from onedraw.model.distance import Euclidean
from onedraw.model.kernels import uniform
from onedraw.model.model import Model
from onedraw.model.prior import Prior
from onedraw.model.simulator import Batched, Failure
from onedraw.proposals.proposals import rounded_mass
from onedraw.proposals.weights import effective, systematic
from onedraw.results import adjustment as adjust
from onedraw.results.adjustment import Decision, Estimate, Near, Support, support_of
from onedraw.results.posterior import Posterior, Status
from onedraw.run.blocks import Block, Deadline, cut, in_order
from onedraw.run.fingerprint import fingerprint
from onedraw.run.options import Shared, on_engine, opened
from onedraw.run.pilot import refuse_hopeless, warn_ignored_rng
from onedraw.run.progress import Progress, Show
from onedraw.run.saving import Saver, Specification
from onedraw.run.specification import in_time, model_facts, model_parts
from onedraw.tuning.fit_summary import Fitted, block_rows, learn, terms_for

PILOT, PILOT_GROWTH = 200, 0.7
"""Pilot simulations at a budget of 1000, and the power of the budget with which they grow."""
GROWTH = 0.5
"""Simulations of a stage, as a share of all before it."""
LAST = 0.35
"""A rest of the budget below this share of what was done is no stage of its own."""
DEFENSIVE = 10
"""One in so many proposals of a stage comes from the prior."""
COMPONENTS = 300
TRIAL_COMPONENTS = 200
SCALES = (0.5, 1.0, 2.0, 4.0)
"""Covariances of the normals, in those of a draw's neighbours, that are tried."""
LEAST_DEVIATION = 0.5
"""Of the normals that are rounded to whole numbers: one draw in three moves."""
WORTHWHILE = 1.1
"""Gain over the prior from which a proposal is used."""
NEAREST = 5000
"""Simulations by each summary that are studied."""
LEARN_FROM, LEARN_SHARE = 5000, 0.3
"""Simulations from which a summary is learnt at the most, and the share of all, the nearest, they are taken from."""
OWN_LOOKS = 12
"""Simulations that are taken as data where the distance is the user's own, which may be slow."""
CHECK_SHARE, CHECK_MOST = 50, 100
"""One in so many simulations, and at most so many, are made at posterior draws to compare them with the data."""
INTERIM = 1000
"""Draws of the estimates that a file holds while a run goes on."""
FAILURES_KEPT = 20
FAR = 0.99
"""Share of simulated data sets that must have nearer neighbours than the observed data before a warning is given."""
FEW_DRAWS = 100
CONSTANT_DRAWS = 2**14
CHECK_FROM, CHECK_STAGE = 1000, 2**20
"""The budget from which a part is spent on the check, and the number that names its streams."""
FEW_CHECKS, LEAST_ALIKE = 20, 0.02
LEAST_COVER = 0.8
LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Of the intervals whose coverage is measured on request."""
SMALL_REST = 0.02
LATEST = 3
"""Ends of stages from which it is told what a larger budget would bring."""
MOST_PROPOSALS = 20
"""Proposals for each simulation of the budget after which a run ends: nearly all were outside the prior."""


class Mixture(NamedTuple):
    """Normals of equal share in free coordinates; columns of whole numbers are rounded, and independent of the rest."""

    centre: Array
    """(k, dim)"""
    root: Array
    """(k, continuous, continuous), lower triangular."""
    deviation: Array
    """(k, whole) of the normals that are rounded."""
    whole: Array
    """(dim,) which columns are whole numbers."""

    def sample(self, rng: np.random.Generator, n: int) -> Array:
        """n draws (n, dim)."""
        which = rng.integers(0, len(self.centre), n)
        normal = rng.standard_normal((n, self.centre.shape[1]))
        drawn = self.centre[which]
        drawn[:, ~self.whole] += np.einsum("nij,nj->ni", self.root[which], normal[:, ~self.whole])
        drawn[:, self.whole] = np.rint(drawn[:, self.whole] + self.deviation[which] * normal[:, self.whole])
        return drawn

    def log_density(self, free: Array) -> Array:
        """Log density at rows (n, dim)."""
        smooth, centre = free[:, ~self.whole], self.centre[:, ~self.whole]
        # Of whole numbers there are few that differ.
        counts = [np.unique(column, return_inverse=True) for column in free[:, self.whole].T]
        k, dim = centre.shape
        inverse = np.linalg.inv(self.root)
        constant = -np.log(np.diagonal(self.root, axis1=1, axis2=2)).sum(axis=1) - 0.5 * dim * math.log(2 * math.pi)
        total = np.full(len(free), -np.inf)
        for j in range(k):
            z = (smooth - centre[j]) @ inverse[j].T
            log_one = constant[j] - 0.5 * np.einsum("ij,ij->i", z, z)
            for (values, place), middle, width in zip(
                counts, self.centre[j, self.whole], self.deviation[j], strict=True
            ):
                with np.errstate(divide="ignore"):
                    log_one = log_one + np.log(rounded_mass(values - middle, width))[place]
            np.logaddexp(total, log_one, out=total)
        return total - math.log(k)


class Drawn(NamedTuple):
    """What one block of proposals yields."""

    theta: Array
    rows: Array
    proposals: int
    setups: int
    failed: int
    failures: tuple[Failure, ...]
    ignored_rng: bool

    @property
    def simulations(self) -> int:
        """Proposals that were inside the prior."""
        return len(self.theta)

    def scalars(self) -> dict[str, Any]:
        """What it cost, for the file."""
        return {**{name: getattr(self, name) for name in COUNTS}, "failures": [one._asdict() for one in self.failures]}


PLANNED = ("centre", "root", "deviation")
"""What a file holds of a mixture."""
COUNTS = ("simulations", "setups", "failed", "proposals")


def joined(parts: list[Drawn]) -> Drawn:
    """Several blocks as one."""
    theta, rows = (np.concatenate([getattr(part, name) for part in parts]) for name in ("theta", "rows"))
    proposals, setups, failed = (
        sum(getattr(part, name) for part in parts) for name in ("proposals", "setups", "failed")
    )
    failures = tuple(one for part in parts for one in part.failures)[:FAILURES_KEPT]
    return Drawn(theta, rows, proposals, setups, failed, failures, parts[0].ignored_rng)


@dataclass(frozen=True, eq=False)
class Simulate:
    """The pure task of a stage: propose and simulate in one block."""

    model: Model
    support: Support
    mixture: Mixture | None
    seed: int
    stage: int
    on_error: str
    given: Array | None = None
    """Parameters to simulate at, where they are not to be proposed."""

    def __call__(self, block: Block) -> Drawn:
        rng = Rng(self.seed, Phase.RUN, block.first, self.stage)
        prior = self.model.prior
        if self.given is not None:
            theta = np.asfortranarray(self.given[block.first : block.first + block.size])
        elif self.mixture is None:
            theta = prior.sample(rng.bulk(Purpose.PRIOR), block.size)
        else:
            theta = self.support.bounded(self.mixture.sample(rng.bulk(Purpose.MOVE), block.size))
            safe = np.flatnonzero((block.first + np.arange(block.size)) % DEFENSIVE == 0)
            theta[safe] = prior.sample(rng.bulk(Purpose.PRIOR), len(safe))
            theta = np.asfortranarray(theta)
        # A proposal outside the prior has weight zero whatever it would give.
        inside = np.flatnonzero(prior.logpdf(theta) > -np.inf)
        theta = theta if len(inside) == len(theta) else np.asfortranarray(theta[inside])
        result = self.model.simulate_rows(rng, theta, inside, on_error=self.on_error)
        return Drawn(
            theta, result.rows[:, 0, :], block.size, result.setups, result.failed, tuple(result.failures),
            result.ignored_rng,
        )  # fmt: skip


@dataclass
class Bank:
    """All simulations of a run, and the proposals they came from."""

    prior: Prior
    support: Support
    theta: list[Array]
    rows: list[Array]
    mixtures: list[tuple[Mixture, int]]
    """Proposals of the stages, with how many were made from each."""
    of_prior: int = 0
    simulations: int = 0
    setups: int = 0
    failed: int = 0
    proposals: int = 0
    failures: tuple[Failure, ...] = ()
    log_constant: float = 0.0
    """Log of what the prior's density integrates to, where it is not 1."""

    def add(self, drawn: Drawn) -> None:
        """Take in a block."""
        self.theta.append(drawn.theta)
        self.rows.append(drawn.rows)
        self.spent(drawn.scalars())

    def spent(self, scalars: Mapping[str, Any]) -> None:
        """Add what a record of the file has spent."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + int(scalars[name]))
        self.failures = (*self.failures, *(Failure(**one) for one in scalars["failures"]))[:FAILURES_KEPT]

    def good(self) -> tuple[Array, Array]:
        """Parameters and summaries of all simulations that did not fail."""
        theta, rows = np.concatenate(self.theta), np.concatenate(self.rows)
        fine = ~np.isnan(rows[:, 0])
        # In one layout, whether they come from blocks or from a file: sums depend on it in their last bit.
        return np.ascontiguousarray(theta[fine]), np.ascontiguousarray(rows[fine])

    def log_weight(self, free: Array) -> Array:
        """log of the prior over the mixture of all proposals, at rows in free coordinates."""
        if not self.mixtures:
            return np.zeros(len(free))
        log_prior = self.log_prior(free)
        made = self.of_prior + sum(number for _, number in self.mixtures)
        log_mixed = log_prior + math.log(self.of_prior / made)
        for mixture, number in self.mixtures:
            log_mixed = np.logaddexp(log_mixed, mixture.log_density(free) + math.log(number / made))
        return log_prior - log_mixed

    def log_prior(self, free: Array) -> Array:
        """Log density of the prior in free coordinates."""
        theta = np.asfortranarray(self.support.bounded(free))
        log_density: Array = self.prior.logpdf(theta) + self.support.log_jacobian(free) - self.log_constant
        return log_density


def log_constant(prior: Prior, support: Support, mixture: Mixture, seed: int) -> float:
    """Log of the prior density's integral, by bridge sampling between prior and mixture.

    The density of a constrained or joint prior need not integrate to 1, and must before it is put beside others. Only
    the prior's functions are used, no simulation. Reference: Meng and Wong (1996).
    """
    rng = Rng(seed, Phase.PILOT, 1)
    of_prior = support.free(prior.sample(rng.bulk(Purpose.PRIOR), CONSTANT_DRAWS))
    of_mixture = mixture.sample(rng.bulk(Purpose.MOVE), CONSTANT_DRAWS)

    def log_ratio(free: Array) -> Array:
        theta = np.asfortranarray(support.bounded(free))
        return prior.logpdf(theta) + support.log_jacobian(free) - mixture.log_density(free)

    at_prior, at_mixture = log_ratio(of_prior), log_ratio(of_mixture)
    found = 0.0
    for _ in range(100):
        upper = np.mean(1.0 / (1.0 + np.exp(np.clip(found - at_mixture, -700, 700))))
        lower = np.mean(1.0 / (1.0 + np.exp(np.clip(at_prior - found, -700, 700))))
        if not (upper > 0 and lower > 0):
            break
        step = math.log(float(upper)) - math.log(float(lower))
        found += step
        if abs(step) < 1e-10:
            break
    return found


class Study(NamedTuple):
    """What the simulations so far say."""

    nears: tuple[Near, ...]
    observed: tuple[Array, ...]
    names: tuple[str, ...]
    decision: Decision
    found: Estimate
    places: Array
    """Which of all good simulations are studied."""
    held_out: Array
    """Which of the studied simulations the ways were tried at."""
    distance: Callable[[Array], Array]
    """From raw summaries to distances in the chosen summary's terms."""


def own_distance(model: Model) -> Callable[[Array, Array], Array]:
    """The user's distance on flat rows."""
    restore, distance = model.recipe.layout.restore, model.distance
    if isinstance(distance, Batched):
        return lambda rows, observed: np.asarray(distance(restore(rows), restore(observed)), dtype=float)
    return lambda rows, observed: np.array([distance(restore(row), restore(observed)) for row in rows], dtype=float)


def spread_of(rows: Array) -> Array:
    """The spread of each column: from the median absolute deviation, the standard deviation where that is zero."""
    median = np.median(rows, axis=0)
    spread = np.median(np.abs(rows - median), axis=0) / 0.6744897501960817
    spread = np.where(spread > 0, spread, rows.std(axis=0))
    return np.where(spread > 0, spread, 1.0)


def given_scale(model: Model, rows: Array) -> tuple[str, Callable[[Array], Array]]:
    """The model's distance as a map to rows whose Euclidean distance it is, learnt from pilot rows where needed."""
    distance = model.distance
    if isinstance(distance, Euclidean):
        spread = spread_of(rows)
        return "scaled summaries", lambda some: some / spread
    if model.pilot:
        distance = distance.learnt(rows, model.labels())
    scale, whiten = getattr(distance, "scale", None), getattr(distance, "whiten", None)
    if scale is not None:
        return "scaled summaries", lambda some: some / scale
    if whiten is not None:
        return "whitened summaries", lambda some: some @ whiten.T
    return "the distance given", lambda some: some


def study(bank: Bank, model: Model, pilot: int, seed: int, stage: int, thorough: bool) -> Study:
    """Which way to estimate the posterior does best at held-out simulations near the data."""
    theta, rows = bank.good()
    free = bank.support.free(theta)
    name, scale = given_scale(model, rows[:pilot])
    own = None if hasattr(model.distance, "learnt") else own_distance(model)
    distance = _distance_of(scale, own)
    away = distance(rows, model.observed_row)
    maps, names = [scale], [name]
    order = np.argsort(away, kind="stable")
    if own is None and len(rows) >= 10 * (rows.shape[1] + 1):
        some = order[: max(int(LEARN_SHARE * len(rows)), min(len(rows), 1000))]
        # Those that judge a summary, the odd ones, are not among those that it is learnt from.
        some = some[some % 2 == 0]
        some = some[:: max(1, math.ceil(len(some) / LEARN_FROM))]
        weight = bank.log_weight(free[some])
        learnt = learn(
            free[some], scale(rows[some]), np.exp(weight - weight.max()), terms_for(rows.shape[1], len(some))
        )
        if learnt is not None:
            maps.append(lambda raw: learnt(scale(raw)))
            names.append("learnt summaries")
    nearest = [order[:NEAREST]]
    for other in maps[1:]:
        there = adjust.distances_from(other(rows), other(model.observed_row[None])[0])
        nearest.append(np.argsort(there, kind="stable")[:NEAREST])
    index = np.unique(np.concatenate(nearest))
    log_weight = bank.log_weight(free[index])
    observed = tuple(one(model.observed_row[None])[0] for one in maps)
    movable = ~np.asarray(model.prior.discrete)
    nears = []
    for one, there in zip(maps, observed, strict=True):
        near = Near(free[index], one(rows[index]), log_weight, movable, (), own)
        nears.append(adjust.with_pieces(near, there) if len(index) >= 100 else near)
    most = (adjust.LOOKS if thorough else adjust.BRIEF_LOOKS)[-1][0]
    look = most if own is None else min(most, OWN_LOOKS)
    held_out = _held_out(nears, observed, index, len(rows), seed, stage, look)
    decision = adjust.decide(nears, held_out, thorough)
    k = decision.way.summary
    found = adjust.estimate(nears[k], observed[k], decision.way)
    return Study(
        tuple(nears), observed, tuple(names), decision, found, index, held_out, _distance_from(maps[k], own, model)
    )


def _distance_of(scale: Callable[[Array], Array], own: Any) -> Callable[[Array, Array], Array]:
    if own is not None:
        measure: Callable[[Array, Array], Array] = own
        return measure
    return lambda rows, observed: adjust.distances_from(scale(rows), scale(observed[None])[0])


def _distance_from(chosen: Callable[[Array], Array], own: Any, model: Model) -> Callable[[Array], Array]:
    measure = _distance_of(chosen, own)
    return lambda rows: measure(rows, model.observed_row)


def _held_out(
    nears: list[Near],
    observed: tuple[Array, ...],
    index: Array,
    simulations: int,
    seed: int,
    stage: int,
    number: int,
) -> Array:
    """Simulations near the data by each summary, picked by weight so that they stand for the prior."""
    rng = Rng(seed, Phase.RESAMPLE, 1 + stage).bulk(Purpose.MOVE)
    odd, each = index % 2 == 1, max(1, number // len(nears))
    among = min(max(60, simulations // 50), len(index) // 2)
    picked = [_near_data(*both, odd, among, each, rng) for both in zip(nears, observed, strict=True)]
    return np.unique(np.concatenate(picked))


def _near_data(near: Near, observed: Array, allowed: Array, among: int, number: int, rng: np.random.Generator) -> Array:
    """`number` of those allowed, of the `among` nearest, picked by weight, so that they stand for the prior."""
    order = np.argsort(near.distances(observed), kind="stable")
    close = order[allowed[order]][:among]
    if len(close) == 0:
        return close
    weight = np.exp(near.log_weight[close] - near.log_weight[close].max())
    return close[systematic(weight, number, rng.random())]


class Coverage(NamedTuple):
    """How often central intervals held the known parameters of simulations near the data."""

    number: int
    """Simulations that were taken as data."""
    levels: tuple[float, ...]
    held: Array
    """(levels, dim) shares."""
    error: tuple[float, ...]
    """Standard errors of such shares, of each level, where the level is true."""

    def as_settings(self, names: tuple[str, ...]) -> dict[str, Any]:
        """For `settings` and the file."""
        held = {name: [float(one) for one in column] for name, column in zip(names, self.held.T, strict=True)}
        return {"number": self.number, "levels": list(self.levels), "held": held, "se": list(self.error)}

    def words(self, names: tuple[str, ...]) -> str:
        """In plain words, with two standard errors."""
        if not self.number:
            return "coverage: no simulations near the data are left to take as data; raise the budget"
        levels = " / ".join(f"{100 * level:.0f}" for level in self.levels)
        shares = [
            f"{name} {' / '.join(f'{100 * one:.0f}' for one in column)} %"
            for name, column in zip(names, self.held.T, strict=True)
        ]
        error = " / ".join(f"{200 * one:.0f}" for one in self.error)
        return (
            f"coverage: {levels} % intervals at {self.number} simulations near the data, taken as data, hold the known "
            f"parameters: {', '.join(shares)} (± {error} % by chance)"
        )


def measured_coverage(said: Study, number: int, seed: int, stage: int) -> Coverage:
    """Intervals at simulations near the data that no choice rests on: neither the way's nor a learnt summary's.

    They are picked by weight, so that they stand for data from the prior that are like those observed; there a
    posterior's intervals hold the parameters as often as they say.
    """
    way = said.decision.way
    near, there = said.nears[way.summary], said.observed[way.summary]
    allowed = said.places % 2 == 1
    allowed[said.held_out] = False
    rng = Rng(seed, Phase.RESAMPLE, 1 + stage, 3).bulk(Purpose.MOVE)
    among = max(4 * number, int(np.count_nonzero(allowed)) // 10)
    picked, times = np.unique(_near_data(near, there, allowed, among, number, rng), return_counts=True)
    if len(picked) == 0:
        return Coverage(0, (), np.empty((0, near.free.shape[1])), ())
    with one_blas_thread():
        away = np.abs(adjust.ranks(near, way, picked) - 0.5)
    held = np.stack([times @ (away < 0.5 * level) / times.sum() for level in LEVELS])
    worth = effective(times.astype(float))
    return Coverage(len(picked), LEVELS, held, tuple(math.sqrt(level * (1 - level) / worth) for level in LEVELS))


class Aim(NamedTuple):
    """Where the next stage draws, and what that promises."""

    mixture: Mixture | None
    gain: float
    """Effective draws in the region studied, as a multiple of those from the prior."""


def aim(bank: Bank, said: Study, seed: int, stage: int) -> Aim:
    """The prior, or normals around the nearest draws, whichever promises more effective draws near the data."""
    near = said.nears[said.decision.way.summary]
    index, dim = said.found.places, near.free.shape[1]
    if len(index) < 4 * (dim + 1):
        return Aim(None, 1.0)
    free, log_weight = near.free[index], near.log_weight[index]
    weight = np.exp(log_weight - log_weight.max())
    half = np.arange(max(30, len(index) // 2) if len(index) > 30 else len(index))
    # Those that judge a proposal are not among those it is made from.
    judges = half[half % 2 == 1]
    makers = np.setdiff1d(np.arange(len(index)), judges)
    log_prior = bank.log_prior(free[judges])
    best = (WORTHWHILE, 0.0)
    rng = Rng(seed, Phase.RESAMPLE, 1 + stage, 1)
    for scale in SCALES:
        trial = around(free[makers], weight[makers], scale, TRIAL_COMPONENTS, rng.bulk(Purpose.PRIOR), ~near.movable)
        log_mixed = np.logaddexp(
            trial.log_density(free[judges]) + math.log1p(-1 / DEFENSIVE), log_prior - math.log(DEFENSIVE)
        )
        gain = 1.0 / float(weight[judges] @ np.exp(log_prior - log_mixed) / weight[judges].sum())
        best = max(best, (gain, scale))
    if best[1] == 0.0:
        return Aim(None, 1.0)
    return Aim(around(free, weight, best[1], COMPONENTS, rng.bulk(Purpose.MOVE), ~near.movable), best[0])


def around(free: Array, weight: Array, scale: float, number: int, rng: np.random.Generator, whole: Array) -> Mixture:
    """Normals around draws picked by weight, each with the covariance of its neighbours times `scale`."""
    n, dim = free.shape
    centre = free[systematic(weight, min(number, n), rng.random())]
    near = int(min(n, max(2 * dim + 2, n**0.7)))
    root = adjust.local_roots(free, weight, centre, near, min(1.0, (dim + 1) / near)) * math.sqrt(scale)
    if not whole.any():
        return Mixture(centre, root, np.empty((len(centre), 0)), whole)
    covariance = root @ root.transpose(0, 2, 1)
    deviation = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2)[:, whole])
    smooth = np.flatnonzero(~whole)
    return Mixture(
        centre,
        np.linalg.cholesky(covariance[:, smooth[:, None], smooth]),
        np.maximum(deviation, LEAST_DEVIATION),
        whole,
    )


def next_size(budget: int, done: int) -> int:
    """Simulations of the next stage, when so many of the budget are done.

    >>> sizes, done = [], 0
    >>> while done < 1000:
    ...     sizes.append(next_size(1000, done)); done += sizes[-1]
    >>> sizes
    [200, 100, 150, 225, 325]
    """
    left = budget - done
    if done == 0:
        size = max(PILOT, round(PILOT * (budget / 1000) ** PILOT_GROWTH))
        return budget if budget < 1.25 * size else size
    size = max(1, round(GROWTH * done))
    return left if left - size < LAST * (done + size) else size


def infer(
    model: Model | Fitted,
    *,
    budget: int,
    seed: int | None = None,
    draws: int = 10_000,
    coverage: int = 0,
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
    """The most accurate posterior that a budget of simulations gives, and how accurate it is.

    Method, tolerance, summary and adjustment are chosen by what does best at held-out simulations near the data
    (docs/choosing.md); `post.notes` and `post.summary()` say what was chosen and why.

    Parameters
    ----------
    model
        What to simulate. Its distance is kept where you gave one; otherwise summaries are scaled, and summaries
        learnt by regression are tried beside them. The result of `od.fit_summary` may be given: its simulations count
        towards the budget and are used.
    budget
        The largest number of simulations, checks included. It is never passed.
    seed
        A whole number; drawn and recorded when None. The same seed gives the same bytes.
    draws
        How many draws to return. They are drawn from a smoothed estimate, and worth fewer independent ones: `summary()`
        says how many.
    coverage
        Take so many simulations near the data as data in turn, and see how often intervals hold the parameters that
        made them: `post.settings["coverage"]`, and a line of the summary. It takes time, and no simulations.
    on_error, max_seconds, workers, executor, engine, timeout, store, segment, progress
        As in `od.rejection`.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> post = od.infer(model, budget=2000, seed=1)
    >>> bool(abs(post.summary()["theta"].mean - 1.0) < 0.1), post.cost.simulations
    (True, 2000)
    """
    shared = Shared.checked(locals())
    fitted = model if isinstance(model, Fitted) else None
    if isinstance(model, Fitted):
        model = model.model
    if not isinstance(model, Model):
        raise ValueError(f"model must be an od.Model or the result of od.fit_summary, got {type(model).__name__}")
    budget = whole_number("budget", budget, "the largest number of simulations")
    draws = whole_number("draws", draws, "the number of posterior draws")
    coverage = whole_number("coverage", coverage, "how many simulations are taken as data", least=0)
    if fitted is not None and fitted.cost.simulations > budget:
        raise ValueError(
            f"budget = {budget} is below the {fitted.cost.simulations} simulations that od.fit_summary has spent: they "
            "count towards it"
        )
    # The kernel is not used: what is put on an engine is the simulator.
    estimator = on_engine(AbcAverage(model.limited(timeout), uniform(1.0)), shared)
    placed: Model = estimator.model
    arguments = {
        "parameters": list(placed.prior.names), "budget": budget, "draws": draws, "coverage": coverage,
        **shared.identity(estimator),
    }  # fmt: skip

    def run(saver: Saver, deadline: Deadline) -> Posterior:
        post = Run(placed, fitted, budget, draws, coverage, shared.seed, on_error, deadline, shared.progress).all(saver)
        return replace(post, notes=(*post.notes, *in_time(arguments)))

    return opened(shared, lambda: _specification(placed, fitted, arguments), run, threads=placed.compiled)


def _specification(model: Model, fitted: Fitted | None, arguments: Mapping[str, Any]) -> Specification:
    parts = {"prior": fingerprint(model.prior), **model_parts(model)}
    if fitted is not None:
        parts["simulations of od.fit_summary"] = fingerprint((fitted.theta, fitted.rows))
    facts = {"discrete": [bool(one) for one in model.prior.discrete], "estimator": False, **model_facts(model)}
    return Specification("infer", arguments, parts, facts)


@dataclass
class Run:
    """One run of `infer`."""

    model: Model
    fitted: Fitted | None
    budget: int
    draws: int
    coverage: int
    seed: int
    on_error: str
    deadline: Deadline
    progress: Show

    def all(self, saver: Saver) -> Posterior:
        """Stages until the budget is spent, and the conclusion."""
        self.saver = saver
        self.bank = Bank(self.model.prior, support_of(self.model.prior), [], [], [])
        self.ends: list[int] = []
        """Good simulations at the end of each stage."""
        finished = saver.last("infer.finished")
        if finished is not None and finished.scalars["asked"] == self._asked():
            return self._posterior(finished.scalars, finished.arrays)
        if self.fitted is not None:
            self._take_over(self.fitted)
        plans = {int(record.scalars["stage"]): record for record in saver.records("infer.plan")}
        segments: dict[int, list[Any]] = {}
        for record in saver.records("infer.segment"):
            segments.setdefault(int(record.scalars["stage"]), []).append(record)
        checks = list(saver.records("infer.check"))
        for record in checks:
            # Checks of a run with a smaller budget were paid for, and say nothing about this one.
            if record.scalars["budget"] != self.budget:
                self.bank.spent(record.scalars)
        check = min(CHECK_MOST, self.budget // CHECK_SHARE) if self.budget >= CHECK_FROM else 0
        limit = max(self.budget - check, self.bank.simulations)
        reason, stage = "done", 0
        said: Study | None = None
        while reason == "done" and self.bank.simulations < limit and self.bank.proposals < MOST_PROPOSALS * limit:
            plan = plans.get(stage)
            if plan is None:
                size, mixture = self._plan(said, stage, limit)
                arrays = {} if mixture is None else {name: getattr(mixture, name) for name in PLANNED}
                saver.put("infer.plan", {"stage": stage, "size": size}, arrays)
            else:
                size = int(plan.scalars["size"])
                whole = np.asarray(self.model.prior.discrete)
                mixture = Mixture(**{name: plan.arrays[name] for name in PLANNED}, whole=whole) if plan.arrays else None
            reason = self._stage(stage, size, mixture, segments.get(stage, []))
            stage += 1
            if self._number() == 0:
                continue
            self.ends.append(self._number())
            if reason == "done" and self.bank.simulations < limit and stage not in plans:
                said = self._study(stage, thorough=False)
                scalars, arrays = self._conclude(said, INTERIM, stage)
                saver.put("infer.interim", scalars, arrays)
        return self._finish(reason, stage, check, [one for one in checks if one.scalars["budget"] == self.budget])

    def _asked(self) -> list[int]:
        """What a finished run must have been asked for, to be the answer to this call."""
        return [self.budget, self.draws, self.coverage]

    def _take_over(self, fitted: Fitted) -> None:
        """Use the simulations that a summary was learnt from: they are at draws from the prior."""
        rows = np.full((len(fitted.rows), self.model.observed_row.size), np.nan)
        fine = ~np.isnan(fitted.rows[:, 0])
        rows[fine] = fitted.learnt(fitted.rows[fine])
        self.bank.add(Drawn(fitted.theta, rows, len(rows), fitted.cost.setups, fitted.cost.failed, (), False))
        self.bank.of_prior += len(rows)
        self.ends.append(self._number())

    def _number(self) -> int:
        """Simulations that did not fail, checks not counted."""
        return sum(int(np.count_nonzero(~np.isnan(rows[:, 0]))) for rows in self.bank.rows)

    def _study(self, stage: int, thorough: bool) -> Study:
        with one_blas_thread():
            return study(self.bank, self.model, self.ends[0], self.seed, stage, thorough)

    def _plan(self, said: Study | None, stage: int, limit: int) -> tuple[int, Mixture | None]:
        """How many proposals the next stage makes, and from what."""
        done = self.bank.simulations
        size = next_size(limit, done)
        # A small rest, left by proposals outside the prior, goes to the prior, which makes none.
        if self._number() < 2 * self.model.prior.dim + 10 or limit - done < SMALL_REST * limit:
            return size, None
        said = self._study(stage, thorough=False) if said is None else said
        with one_blas_thread():
            return size, aim(self.bank, said, self.seed, stage).mixture

    def _stage(self, stage: int, size: int, mixture: Mixture | None, records: list[Any]) -> str:
        """Make `size` proposals and simulate at them; why it ended."""
        made = 0
        for record in records:
            self.bank.theta.append(record.arrays["theta"])
            self.bank.rows.append(record.arrays["rows"])
            self.bank.spent(record.scalars)
            made = int(record.scalars["made"])
        new: list[Drawn] = []

        def take(block: Block, drawn: Drawn) -> bool:
            nonlocal made
            if stage == 0 and block.first == 0 and drawn.ignored_rng:
                warn_ignored_rng()
            self.bank.add(drawn)
            made = block.first + block.size
            refuse_hopeless(self.bank.simulations, self.bank.failed, list(self.bank.failures), made == size)
            new.append(drawn)
            bar.update(self.bank.simulations)
            if self.saver.due(sum(one.theta.nbytes + one.rows.nbytes for one in new)):
                save()
            return False

        def save() -> None:
            if new:
                part = joined(new)
                scalars = {"stage": stage, "made": made, **part.scalars()}
                self.saver.put("infer.segment", scalars, {"theta": part.theta, "rows": part.rows})
                new.clear()

        bar = Progress(self.progress, f"stage {stage + 1}", self.budget, "simulations")
        task = Simulate(self.model, self.bank.support, mixture, self.seed, stage, self.on_error)
        try:
            reason = in_order(task, cut(size, block_rows(self.model), made), take, self.deadline, bar)
        finally:
            save()
        safe = made if mixture is None else -(-made // DEFENSIVE)
        self.bank.of_prior += safe
        if mixture is not None and made > safe:
            if not self.bank.mixtures and not integrates_to_one(self.model.prior):
                self.bank.log_constant = log_constant(self.model.prior, self.bank.support, mixture, self.seed)
            self.bank.mixtures.append((mixture, made - safe))
        return reason

    def _finish(self, reason: str, stage: int, check: int, records: list[Any]) -> Posterior:
        """The conclusion from all simulations, and its check."""
        if self._number() == 0:
            status = _status(reason, self.budget, self.bank.simulations)
            nothing = {"notes": [_nothing(self.bank)], "settings": {}, "effective": math.nan, "rate": math.nan}
            return self._posterior({**nothing, **self._spent(), "status": list(status)}, {})
        said = self._study(stage, thorough=True)
        scalars, arrays = self._conclude(said, self.draws, stage)
        if reason == "done" and check:
            reason, note = self._check(arrays["theta"], check, records)
            scalars |= {"notes": [*scalars["notes"], *note], **self._spent()}
        if reason == "done" and self.coverage:
            covered = measured_coverage(said, self.coverage, self.seed, stage)
            names = self.model.prior.names
            scalars["settings"]["coverage"] = covered.as_settings(names)
            scalars["notes"] = [*scalars["notes"], covered.words(names)]
        status = _status(reason, self.budget, self.bank.simulations)
        scalars |= {"status": list(status), "asked": self._asked()}
        self.saver.put("infer.finished" if reason == "done" else "infer.interim", scalars, arrays)
        self.saver.finish(status.reason, status.message, scalars["notes"])
        return self._posterior(scalars, arrays, said)

    def _spent(self) -> dict[str, Any]:
        bank = self.bank
        cost = [bank.simulations, bank.setups, bank.proposals - bank.simulations, bank.failed, bank.proposals]
        return {"cost": cost, "failures": [one._asdict() for one in bank.failures]}

    def _check(self, theta: Array, number: int, records: list[Any]) -> tuple[str, list[str]]:
        """Simulate at posterior draws and see whether the data look like these simulations."""
        number = min(number, self.budget - self.bank.simulations, len(theta))
        parts = [record.arrays["rows"] for record in records]
        made = sum(map(len, parts))
        for record in records:
            self.bank.spent(record.scalars)
        given = theta[:: len(theta) // number][:number] if number else theta[:0]

        def take(block: Block, drawn: Drawn) -> bool:
            self.bank.spent(drawn.scalars())
            parts.append(drawn.rows)
            self.saver.put("infer.check", {"budget": self.budget, **drawn.scalars()}, {"rows": drawn.rows})
            return False

        task = Simulate(self.model, self.bank.support, None, self.seed, CHECK_STAGE, self.on_error, given)
        bar = Progress(self.progress, "check", number, "simulations")
        reason = in_order(task, cut(number, block_rows(self.model), made), take, self.deadline, bar)
        rows = np.concatenate([np.empty((0, self.model.observed_row.size)), *parts])
        rows = rows[~np.isnan(rows[:, 0])]
        return reason, predictive_notes(rows, self.model.observed_row) if reason == "done" else []

    def _conclude(self, said: Study, number: int, stage: int) -> tuple[dict[str, Any], dict[str, Array]]:
        """Draws of the estimate and everything there is to say of them."""
        way, found, decision = said.decision.way, said.found, said.decision
        near = said.nears[way.summary]
        rng = Rng(self.seed, Phase.RESAMPLE, 1 + stage, 2).bulk(Purpose.MOVE)
        theta, origin, left = adjust.posterior_draws(rng, near, found, way, number, self.model.prior, self.bank.support)
        path, promise = self._path(said)
        worth = adjust.worth(near, said.observed[way.summary], way, found)
        settings = {
            "method": self._method(), "summary": said.names[way.summary], "eps": found.eps,
            "nearest": len(found.places), "adjustment": way.words(), "smoothing": "local" if way.local else "whole",
            "budget": self.budget, "stages": len(self.ends), "path": path, "on_error": self.on_error,
            "held_out": {"number": decision.tried, "gain": _or_none(decision.gain), "se": _or_none(decision.gain_se),
                         "cover_90": _or_none(decision.cover)},
        }  # fmt: skip
        scalars = {
            "notes": self._notes(said, worth, promise, left), "settings": settings, "effective": worth,
            "rate": len(found.places) / self._number(), **self._spent(),
        }  # fmt: skip
        return scalars, {"theta": theta, "distances": near.distances(said.observed[way.summary])[origin]}

    def _method(self) -> str:
        stages = len(self.bank.mixtures)
        if stages == 0:
            return "simulations from the prior"
        return f"simulations from the prior and from {stages} proposals that close in on the posterior"

    def _path(self, said: Study) -> tuple[list[list[float]], str]:
        """Tolerance against simulations, and what ten times the budget would buy."""
        _, rows = self.bank.good()
        distance = said.distance(rows)
        count = max(10, min(len(said.found.places), self.ends[0] // 4))
        path = [[end, float(np.partition(distance[:end], count)[count])] for end in self.ends if end > count]
        usable = [(n, eps) for n, eps in path if eps > 0]
        if len(usable) < 2:
            return path, ""
        # The first stages close in on the posterior and fall faster than simulations from one proposal can: where these
        # lie along a line the tolerance falls with their number, and in more dimensions more slowly.
        log_n, log_eps = np.log(np.array(usable[-LATEST:])).T
        slope = float(np.clip(np.polyfit(log_n, log_eps, 1)[0], -1.0, 0.0))
        now = said.found.eps
        if 10**slope > 0.95:
            return path, f"ten times the budget would leave the tolerance near {now:.3g} and bring ten times the draws"
        return path, (
            f"ten times the budget would bring the tolerance from {now:.3g} to about {now * 10**slope:.2g} for as many "
            "draws, or ten times the draws"
        )

    def _notes(self, said: Study, worth: float, promise: str, left: float) -> list[str]:
        decision, found, bank = said.decision, said.found, self.bank
        name = said.names[decision.way.summary]
        notes = [
            f"method: {self._method()}; the nearest {len(found.places):,} of {self._number():,} by {name}",
            f"tolerance: {found.eps:.4g}; worth about {worth:.0f} independent draws",
            decision.words(),
        ]
        if promise:
            notes.append(promise)
        if worth < FEW_DRAWS:
            notes.append(
                f"warning: only about {worth:.0f} independent draws stand behind these numbers: they are rough; raise "
                "the budget"
            )
        if decision.tried and decision.cover < LEAST_COVER:
            notes.append(
                f"warning: 90 % intervals cover only {100 * decision.cover:.0f} % of known parameters near the data: "
                "the posterior given here is too narrow or off"
            )
        far = self._far()
        if far > FAR:
            notes.append(
                f"warning: the data are farther from the simulations than {100 * far:.0f} % of simulated data sets "
                "are: check that prior and simulator can produce them"
            )
        if left > 0.01:
            notes.append(f"{100 * left:.0f} % of the draws were not adjusted, since that would have left the prior")
        if bank.failed:
            first = f"; the first failed {bank.failures[0]}" if bank.failures else ""
            notes.append(f"{bank.failed:,} of {bank.simulations:,} simulations failed and count as misses{first}")
        return notes

    def _far(self) -> float:
        """Share of pilot simulations that have nearer neighbours among the pilot than the data have."""
        _, rows = self.bank.good()
        pilot = rows[: min(self.ends[0], 500)]
        if len(pilot) < 50 or not hasattr(self.model.distance, "learnt"):
            return 0.0
        _, scale = given_scale(self.model, rows[: self.ends[0]])
        scaled, there = scale(pilot), scale(self.model.observed_row[None])[0]
        near = max(2, len(pilot) // 50)
        data = np.partition(adjust.distances_from(scaled, there), near)[near]
        # Each is its own nearest neighbour.
        others = [np.partition(adjust.distances_from(scaled, one), near + 1)[near + 1] for one in scaled[:200]]
        return float(np.mean(np.array(others) < data))

    def _posterior(
        self, scalars: Mapping[str, Any], arrays: Mapping[str, Array], said: Study | None = None
    ) -> Posterior:
        cost = Cost(*scalars["cost"])._replace(seconds=self.saver.seconds())
        prior, notes = self.model.prior, self.saver.notes
        return posterior_of(scalars, arrays, prior, cost, Status(*scalars["status"]), self.seed, self.model, notes)


def predictive_notes(rows: Array, observed: Array) -> list[str]:
    """Whether the observed row looks like simulated ones (n, s), in words; nothing where there are too few."""
    if len(rows) < FEW_CHECKS:
        return []
    spread, middle = spread_of(rows), np.median(rows, axis=0)
    away = np.abs((np.concatenate([rows, observed[None]]) - middle) / spread).mean(axis=1)
    share = float(np.mean(away[:-1] >= away[-1]))
    if share < LEAST_ALIKE:
        return [
            f"warning: simulations at these draws do not look like the data: {100 * share:.0f} % of {len(rows)} lie as "
            "far out. The model may not be able to produce such data"
        ]
    return [f"simulations at these draws look like the data: {100 * share:.0f} % of {len(rows)} lie as far out"]


def posterior_of(
    scalars: Mapping[str, Any],
    arrays: Mapping[str, Array],
    prior: Any,
    cost: Cost,
    status: Status,
    seed: int,
    model: Model | None,
    notes: tuple[str, ...],
) -> Posterior:
    """The Posterior of a run; of `prior` only the columns' names and types are used."""
    theta = arrays["theta"] if "theta" in arrays else np.empty((0, len(prior.names)))
    number, rate = scalars["settings"].get("nearest", 0), float(scalars["rate"])
    return Posterior(
        draws={name: column[None, :] for name, column in prior.columns(theta).items()},
        weights=None,
        distances=arrays["distances"][None, :] if "distances" in arrays else None,
        acceptance_rate=rate,
        acceptance_rate_se=rate * math.sqrt((1 - rate) / number) if number else math.nan,
        cost=cost,
        status=status,
        seed=seed,
        settings={"algorithm": "infer", **scalars["settings"]},
        failures=tuple(Failure(**one) for one in scalars["failures"]),
        model=model,
        independent=True,
        effective=float(scalars["effective"]),
        notes=(*scalars["notes"], *notes),
    )


def integrates_to_one(prior: Prior) -> bool:
    """Whether the prior's density is known to integrate to 1."""
    return prior.where is None and prior._trusted


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def _status(reason: str, budget: int, made: int) -> Status:
    if reason == "done":
        return Status("budget", f"the budget of {budget:,} simulations is spent")
    if reason == "max_seconds":
        return Status("max_seconds", f"stopped by max_seconds after {made:,} simulations")
    return Status(reason, f"{reason} after {made:,} simulations")


def _nothing(bank: Bank) -> str:
    if bank.simulations:
        return f"all of the {bank.simulations:,} simulations made failed: there is no posterior"
    return "no simulation was made: there is no posterior"
