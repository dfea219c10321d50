"""A learnt likelihood as an estimate of the posterior: its trial at held-out simulations, its draws and their error."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.estimators.weights import systematic
from onedraw.model.coordinates import Support
from onedraw.proposals.mixture import local_mixture
from onedraw.results.trial import BROAD
from onedraw.surrogate.choice import choose_form
from onedraw.surrogate.success import Success, fit_success
from onedraw.surrogate.surrogate import Surrogate, fit_surrogate
from onedraw.surrogate.tempering import tempered_draws
from onedraw.surrogate.transforms import places_in_cells
from onedraw.surrogate.validation import FreeDraws, HeldOut, choose_power, held_out_likelihoods, jackknife_error

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
CALIBRATION = 100
"""Simulations proposed near the posterior at which intervals are checked, and the power of the likelihood chosen."""
MOST_PLACED = 1000
"""Draws of the posterior that are compared with the simulations."""
FAR = 5.0
"""Distance from all simulations, in usual distances between draws, beyond which a draw is unseen."""
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
    aimed: Callable[[Array], Array]
    """The share of the proposals at these parameters that does not come from the prior; 1 if all do."""
    of_proposals: Callable[[np.random.Generator, int], Array]
    """Draws from the mixture of all proposals."""
    of_prior: Callable[[np.random.Generator, int], Array]


class LearntLikelihood(NamedTuple):
    """A surrogate, fitted to all simulations, and how it did at held-out ones."""

    surrogate: Surrogate
    summary: int
    """Which description of the data it is fitted to."""
    rows: Array
    places: Array
    weights: Array
    observed: Array
    quality: float
    """Mean log score at simulations that were proposed near the posterior, up to a constant."""
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
            lambda points: self.surrogate.log_likelihood(self.surrogate.columns(points), given),
            simulations.discrete,
            rng,
        )

    def effective_draws(self, theta: Array, draws: Array) -> float:
        """How many independent draws would give posterior means as exactly as these draws (n, dim) do."""
        error = jackknife_error(
            self.surrogate, theta, self.rows, self.places, self.weights, self.observed, draws, GROUPS
        )
        variance = draws.var(axis=0)
        some = variance > 0
        return float(1.0 / (np.mean(np.square(error[some]) / variance[some]) + 1.0 / len(draws))) if some.any() else 1.0


def share_unseen(theta: Array, draws: Array) -> float:
    """Share of draws (m, dim) that are farther from all simulations (n, dim) than nearly all of these are.

    >>> theta = np.random.default_rng(1).standard_normal((500, 2))
    >>> share_unseen(theta, 0.5 * theta), share_unseen(theta, 9.0 + theta)
    (0.0, 1.0)
    """
    from scipy.spatial import cKDTree

    whole = np.atleast_2d(np.cov(draws, rowvar=False))
    dim = theta.shape[1]
    whiten = np.linalg.inv(np.linalg.cholesky(whole + 1e-9 * np.diag(np.diag(whole)) + 1e-300 * np.eye(dim)))
    tree, there = cKDTree(theta @ whiten.T), draws[:: -(-len(draws) // MOST_PLACED)] @ whiten.T
    away, _ = tree.query(there, k=1)
    # From a fourth as many draws of the posterior itself as there are simulations, others are this far.
    some = max(5, min(len(there) // 2, len(theta) // 4))
    usual = np.median(cKDTree(there[:some]).query(there[some:], k=1)[0]) if len(there) > some else 0.0
    return float(np.mean(away > FAR * max(float(usual), 1e-12)))


def learn_likelihood(
    simulations: SimulatedPairs,
    described: list[tuple[int, Array, Array]],
    held_out: Array,
    scale: Array,
    rng: np.random.Generator,
    thorough: bool,
) -> LearntLikelihood | None:
    """The surrogate that does best at held-out simulations, by their number; None if there is none.

    `described` has the summaries (n, s) of all simulations and of the data in one or more ways, each with its number;
    `scale` (dim, dim) takes parameters to the coordinates in which densities are compared.
    """
    aimed, odd = simulations.aimed(simulations.theta), np.arange(len(simulations.theta)) % 2 == 1
    # A learnt summary was learnt from the even ones.
    calibration = np.unique(systematic(np.where(odd, aimed, 0.0), min(CALIBRATION, len(aimed) // 4), rng.random()))
    relevance = np.maximum(aimed, LEAST_RELEVANCE)
    both = np.unique(np.concatenate([held_out, calibration]))
    free = _free_draws(simulations, simulations.theta[both], FREE if thorough else FREE_BRIEFLY, rng)
    tried = (_tried(simulations, *one, relevance, held_out, calibration, free, scale, thorough) for one in described)
    return max((one for one in tried if one is not None), key=lambda one: one.quality, default=None)


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
    log_prior = simulations.log_prior(points)
    log_proposals = log_prior - simulations.log_weights(points)
    log_mixed = np.logaddexp(log_proposals, around.log_density(points)) - math.log(2.0)
    with np.errstate(divide="ignore"):
        log_aimed = np.log(simulations.aimed(points)) + log_proposals - log_mixed
    return FreeDraws(points, log_prior - log_mixed, log_aimed)


def _tried(
    simulations: SimulatedPairs,
    number: int,
    rows: Array,
    observed: Array,
    relevance: Array,
    held_out: Array,
    calibration: Array,
    free: FreeDraws,
    scale: Array,
    thorough: bool,
) -> LearntLikelihood | None:
    theta, places = simulations.theta, places_in_cells(*rows.shape)
    if number:
        # The summary fits those that it was learnt from too well.
        relevance = np.where(np.arange(len(theta)) % 2 == 1, relevance, LEAST_WEIGHT)
    form = choose_form(simulations.support, theta, rows, places, observed, relevance, thorough)
    if form is None:
        return None
    success = _success(simulations, lambda some: form.features(form.coordinates(some)))
    both = np.unique(np.concatenate([held_out, calibration]))
    held = held_out_likelihoods(form, theta, rows, places, relevance, both, free, success)
    aimed = held.some(np.searchsorted(both, calibration))
    power, quality = choose_power(aimed, free.log_aimed)
    known = theta[held_out]
    trial = held.some(np.searchsorted(both, held_out))
    scores = _scores(trial, known, simulations.log_prior(known), free, scale, power)
    share = aimed.weights(free.log_aimed, power)
    enough = 1.0 / np.square(share).sum(axis=1) > FEWEST_PLACED
    ranks, away = _placed(share[enough], free.points, theta[calibration][enough], simulations.discrete)
    surrogate = fit_surrogate(form, theta, rows, places, relevance, success)._replace(power=power)
    return LearntLikelihood(surrogate, number, rows, places, relevance, observed, quality, scores, ranks, away)


def _success(simulations: SimulatedPairs, columns: Callable[[Array], Array]) -> Success | None:
    if not len(simulations.failed):
        return None
    dim = simulations.theta.shape[1]
    quadratic = 1 + dim + dim * (dim + 1) // 2
    both = columns(np.concatenate([simulations.theta, simulations.failed]))
    width = quadratic if quadratic * 5 < len(both) and quadratic <= both.shape[1] else 1 + dim
    return fit_success(both[:, :width], np.arange(len(both)) < len(simulations.theta))


def _scores(held: HeldOut, known: Array, log_prior: Array, free: FreeDraws, scale: Array, power: float) -> Array:
    """Log densities as `trial.log_density` has them: in scaled coordinates, mixed with that of a broad normal."""
    dim = known.shape[1]
    constant = 0.5 * dim * math.log(2 * math.pi) - math.log(abs(float(np.linalg.det(scale))))
    inside = log_prior + held.log_ratios(free.log_weights, power) + constant
    points, there = free.points @ scale, known @ scale
    broad = np.empty(len(known))
    for k, weights in enumerate(held.weights(free.log_weights, power)):
        mean = weights @ points
        away = points - mean
        root = np.linalg.cholesky((away * weights[:, None]).T @ away + 1e-9 * np.eye(dim))
        broad[k] = -0.5 * float(np.square(np.linalg.solve(2 * root, there[k] - mean)).sum())
        broad[k] -= float(np.log(np.diag(root)).sum()) + dim * math.log(2.0)
    return np.logaddexp(math.log1p(-BROAD) + inside, math.log(BROAD) + broad)


def _placed(weights: Array, points: Array, known: Array, discrete: Array) -> tuple[Array, Array]:
    """Ranks (m, dim) of known parameters among weighted points, and their distances from the means in deviations."""
    ranks = np.empty(known.shape)
    for k, share in enumerate(weights):
        equal = np.where(discrete, 0.5 * (points == known[k]), 0.0)
        ranks[k] = share @ ((points < known[k]) + equal)
    mean = weights @ points
    deviation = np.sqrt(np.maximum(weights @ np.square(points) - np.square(mean), 1e-300))
    return ranks, (known - mean) / deviation
