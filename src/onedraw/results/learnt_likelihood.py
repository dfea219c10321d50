"""A learnt likelihood as an estimate of the posterior: its trial at held-out simulations, its draws and their error."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.estimators.weights import systematic
from onedraw.model.coordinates import Support
from onedraw.proposals.mixture import local_mixture
from onedraw.results.trial import log_with_broad
from onedraw.surrogate.choice import Form, choose_form
from onedraw.surrogate.success import Success, fit_success
from onedraw.surrogate.surrogate import Surrogate, fit_surrogate
from onedraw.surrogate.tempering import tempered_draws
from onedraw.surrogate.training import Training, training_of
from onedraw.surrogate.validation import (
    FreeDraws,
    HeldOut,
    choice_error,
    choose_power,
    held_out_likelihoods,
    jackknife_error,
)

MOST_FITTED, EARLIER = 20_000, 0.5
"""Simulations that a surrogate is fitted to, and the share of them that is not of the latest."""
FREE, FREE_BRIEFLY = 4000, 2000
"""Draws over which posteriors of held-out simulations are normalised."""
BREADTH = 2.0
"""Covariances of the normals around known parameters, in covariances of their neighbours."""
GROUPS = 8
"""Parts of the simulations that are left out in turn for the error of the posterior means."""
LEAST_RELEVANCE = 0.05
"""Of simulations that were proposed far from the posterior."""
LEAST_WEIGHT = 1e-6
"""Of simulations that nothing is learnt from."""
FEWEST_PER_TERM = 5
"""Simulations per term of a quadratic that says where simulations fail."""
CALIBRATION = 100
"""Simulations proposed near the posterior at which intervals are checked, and the power of the likelihood chosen."""
MOST_PLACED = 1000
"""Draws of the posterior that are compared with the simulations."""
FAR, FAR_AT_LEAST = 5.0, 1.5
"""Distance from all simulations, in usual distances between draws, beyond which a draw is unseen, and the least that
counts as far, in posterior standard deviations."""
LOOKED = 0.5
"""Weight from which a simulation was made to look there, and not by chance."""
FEWEST_PLACED = 10.0
"""Effective draws among which a known parameter is placed."""
MOST_COLUMNS = 40
"""Summaries that a surrogate is fitted to: beyond it, only to learnt ones."""


class SimulatedPairs(NamedTuple):
    """The simulations of a run, as its assessment needs them; parameters are in unbounded coordinates."""

    support: Support
    theta: Array
    """(n, dim) of those that succeeded."""
    rows: Array
    """(n, s)"""
    failed: Array
    """(m, dim) parameters of those that failed."""
    discrete: Array
    """(dim,) which parameters are whole numbers."""
    log_weights: Callable[[Array], Array]
    """Log of the prior over the mixture of all proposals."""
    log_prior: Callable[[Array], Array]
    prior_share: float
    """Share of the proposals that came from the prior."""
    of_proposals: Callable[[np.random.Generator, int], Array]
    """Draws from the mixture of all proposals."""
    of_prior: Callable[[np.random.Generator, int], Array]

    def aimed(self, log_weights: Array) -> Array:
        """The share of the proposals at parameters of these log weights that is not from the prior; 1 if all are."""
        if self.prior_share == 1.0:
            return np.ones(len(log_weights))
        return np.clip(1.0 - self.prior_share * np.exp(log_weights), 0.0, 1.0)


class FittedSummaries(NamedTuple):
    """The summaries that a surrogate is fitted to."""

    rows: Array
    """(n, s) of all simulations."""
    observed: Array
    learnt: bool
    """Whether they were learnt from the simulations with even numbers."""


class LearntLikelihood(NamedTuple):
    """A surrogate, fitted to all simulations, and how it did at held-out ones."""

    surrogate: Surrogate
    training: Training
    observed: Array
    learnt_summary: bool
    """Whether it is fitted to learnt summaries."""
    scores: Array
    """(m,) log densities of the known parameters of simulations near the data."""
    ranks: Array
    """(k, dim) of the known parameters in their posteriors, in [0, 1]."""
    away: Array
    """(k, dim) of the known parameters from their posterior means, in posterior standard deviations."""

    def coverage(self, level: float) -> Array:
        """Share (dim,) of the known parameters inside central intervals of this level; NaN if none were placed."""
        inside = np.abs(self.ranks - 0.5) < 0.5 * level
        return inside.mean(axis=0) if len(inside) else np.full(inside.shape[1], np.nan)

    def draws(self, simulations: SimulatedPairs, number: int, rng: np.random.Generator) -> Array:
        """Draws (number, dim) of the posterior."""
        given = self.surrogate.at(self.observed[None])[0]
        return tempered_draws(
            simulations.of_prior(rng, number),
            simulations.log_prior,
            lambda points: self.surrogate.log_likelihood(self.surrogate.form.columns(points), given),
            simulations.discrete,
            rng,
        )

    def unseen(self, draws: Array) -> Array:
        """Which of some draws (n, dim) are where no stage has looked."""
        return unseen(self.training.theta[self.training.weights >= LOOKED], draws)

    def effective_draws(self, draws: Array) -> float:
        """How many independent draws would give posterior means as exactly as these draws (n, dim) do."""
        given = self.surrogate, self.training, self.observed, draws
        error = np.hypot(jackknife_error(*given, GROUPS), choice_error(*given))
        variance = draws.var(axis=0)
        some = variance > 0
        return float(1.0 / (np.mean(np.square(error[some]) / variance[some]) + 1.0 / len(draws))) if some.any() else 1.0


def unseen(theta: Array, draws: Array) -> Array:
    """Which of some draws (m, dim) are farther from all simulations (n, dim) than nearly all draws should be.

    >>> theta = np.random.default_rng(1).standard_normal((500, 2))
    >>> float(unseen(theta, 0.5 * theta).mean()), float(unseen(theta, np.append(theta, [[9.0, 9.0]], axis=0)).sum())
    (0.0, 1.0)
    """
    from scipy.spatial import cKDTree

    whole, dim = np.atleast_2d(np.cov(draws, rowvar=False)), theta.shape[1]
    whiten = np.linalg.inv(np.linalg.cholesky(whole + 1e-9 * np.diag(np.diag(whole)) + 1e-300 * np.eye(dim)))
    there = draws @ whiten.T
    # From a fourth as many draws of the posterior itself as there are simulations, others are this far.
    some = there[:: -(-len(there) // MOST_PLACED)]
    number = max(5, min(len(some) // 2, len(theta) // 4))
    usual = np.median(cKDTree(some[:number]).query(some[number:], k=1)[0]) if len(some) > number else 0.0
    away, _ = cKDTree(theta @ whiten.T).query(there, k=1, distance_upper_bound=max(FAR * float(usual), FAR_AT_LEAST))
    return np.isinf(away)


def fitted_to(n: int) -> Array:
    """Which of n simulations a surrogate is fitted to: the latest, and some of all earlier ones.

    Without these a fit forgets where earlier stages have looked in vain.

    >>> len(fitted_to(500)), len(fitted_to(10**6)), int(fitted_to(10**6)[0])
    (500, 20000, 0)
    """
    if n <= MOST_FITTED:
        return np.arange(n)
    earlier = round(EARLIER * MOST_FITTED)
    latest = np.arange(n - (MOST_FITTED - earlier), n)
    return np.concatenate([np.linspace(0, latest[0], earlier, endpoint=False).astype(np.int64), latest])


def learn_likelihood(
    simulations: SimulatedPairs,
    described: FittedSummaries,
    held_out: Array,
    scale: Array,
    rng: np.random.Generator,
    thorough: bool,
) -> LearntLikelihood | None:
    """The surrogate of these simulations, and how it does at those held out; None if no summary varies.

    `scale` (dim, dim) takes parameters to the coordinates in which densities are compared.
    """
    number = np.union1d(fitted_to(len(simulations.theta)), held_out)
    theta, rows, held_out = simulations.theta[number], described.rows[number], np.searchsorted(number, held_out)
    aimed = simulations.aimed(simulations.log_weights(theta))
    odd, weights = number % 2 == 1, np.maximum(aimed, LEAST_RELEVANCE)
    # A learnt summary was learnt from the even ones, and fits them too well.
    calibration = np.unique(systematic(np.where(odd, aimed, 0.0), min(CALIBRATION, len(aimed) // 4), rng.random()))
    training = training_of(theta, rows, np.where(odd, weights, LEAST_WEIGHT) if described.learnt else weights)
    both = np.unique(np.concatenate([held_out, calibration]))
    free = _free_draws(simulations, theta[both], FREE if thorough else FREE_BRIEFLY, rng)
    form = choose_form(simulations.support, training, described.observed, thorough)
    if form is None:
        return None
    success = _success(simulations, form)
    held = held_out_likelihoods(form, training, both, free, success)
    near = held.some(np.searchsorted(both, calibration))
    power = choose_power(near, free.log_aimed)
    scores = _scores(held.some(np.searchsorted(both, held_out)), theta[held_out], simulations, free, scale, power)
    share = near.weights(free.log_aimed, power)
    enough = 1.0 / np.square(share).sum(axis=1) > FEWEST_PLACED
    ranks, away = _placed(share[enough], free.points, theta[calibration][enough], simulations.discrete)
    surrogate = fit_surrogate(form, training, success)._replace(power=power)
    return LearntLikelihood(surrogate, training, described.observed, described.learnt, scores, ranks, away)


def _free_draws(simulations: SimulatedPairs, known: Array, number: int, rng: np.random.Generator) -> FreeDraws:
    """Draws around known parameters (m, dim) and from the proposals of the run, as many of each."""
    m, dim = known.shape
    count = int(min(m, max(2 * dim + 2, math.sqrt(m))))
    around = local_mixture(
        known, np.ones(m), np.arange(m), count, simulations.discrete, towards_all=min(1.0, dim / count)
    )
    around = around.widened(BREADTH)
    points = around.sample(rng, number // 2)
    points = points[simulations.log_prior(points) > -np.inf]
    points = np.concatenate([points, simulations.of_proposals(rng, number // 2)])
    log_prior, log_weights = simulations.log_prior(points), simulations.log_weights(points)
    log_proposals = log_prior - log_weights
    log_mixed = np.logaddexp(log_proposals, around.log_density(points)) - math.log(2.0)
    with np.errstate(divide="ignore"):
        log_aimed = np.log(simulations.aimed(log_weights)) + log_proposals - log_mixed
    return FreeDraws(points, log_prior - log_mixed, log_aimed)


def _success(simulations: SimulatedPairs, form: Form) -> Success | None:
    if not len(simulations.failed):
        return None
    both, sets = form.columns(np.concatenate([simulations.theta, simulations.failed])), form.features.sets()
    enough = "2" in sets and FEWEST_PER_TERM * len(sets["2"]) < len(both)
    return fit_success(both[:, sets["2" if enough else "1"]], np.arange(len(both)) < len(simulations.theta))


def _scores(
    held: HeldOut, known: Array, simulations: SimulatedPairs, free: FreeDraws, scale: Array, power: float
) -> Array:
    """Log densities of known parameters (m, dim) as `trial.log_density` has them."""
    constant = 0.5 * known.shape[1] * math.log(2 * math.pi) - math.log(abs(float(np.linalg.det(scale))))
    inside = simulations.log_prior(known) + held.log_ratios(free.log_weights, power) + constant
    points, shares = free.points @ scale, held.weights(free.log_weights, power)
    found = [
        log_with_broad(one, points, share, there)
        for one, share, there in zip(inside, shares, known @ scale, strict=True)
    ]
    return np.array(found)


def _placed(weights: Array, points: Array, known: Array, discrete: Array) -> tuple[Array, Array]:
    """Ranks (m, dim) of known parameters among weighted points, and their distances from the means in deviations."""
    ranks = np.empty(known.shape)
    for k, share in enumerate(weights):
        equal = np.where(discrete, 0.5 * (points == known[k]), 0.0)
        ranks[k] = share @ ((points < known[k]) + equal)
    mean = weights @ points
    deviation = np.sqrt(np.maximum(weights @ np.square(points) - np.square(mean), 1e-300))
    return ranks, (known - mean) / deviation
