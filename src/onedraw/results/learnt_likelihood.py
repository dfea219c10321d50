"""A learnt likelihood as an estimate of the posterior: its trial at held-out simulations, its draws and their error."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.estimators.weights import effective, systematic
from onedraw.model.coordinates import Support
from onedraw.proposals.mixture import local_mixture
from onedraw.results.trial import log_with_broad
from onedraw.surrogate.choice import BRIEFLY_FROM, LONGEST, Form, choose_form, choose_series
from onedraw.surrogate.likelihood import better
from onedraw.surrogate.refits import window_count
from onedraw.surrogate.success import Success, fit_success
from onedraw.surrogate.surrogate import MOST_ROWS, Surrogate, fit_surrogate
from onedraw.surrogate.tempering import Tempered, tempered
from onedraw.surrogate.training import Training, training_of
from onedraw.surrogate.validation import (
    FreeDraws,
    HeldOut,
    choose_power,
    held_out_likelihoods,
    with_other_forms,
    without_groups,
)

MOST_FITTED, EARLIER = 20_000, 0.5
"""Simulations that a surrogate is fitted to, and the share of them that is not of the latest."""
FREE, FREE_BRIEFLY = 4000, 1000
"""Draws over which posteriors of held-out simulations are normalised."""
FEWEST_FREE, MOST_ROWS_TRIED = 500, 20_000_000
"""The fewest of these, and how many rows of data sets or steps of series, times draws, are tried if there are many."""
BREADTH = 2.0
"""Covariances of the normals around known parameters, in covariances of their neighbours."""
GROUPS, MORE_GROUPS, MORE_UPTO = 8, 24, 2000
"""Parts of the simulations that are left out in turn for the errors of estimates; more, up to a number of
simulations for which fits are quick: an error from eight of them is itself uncertain by a fourth."""
LEAST_RELEVANCE = 0.05
"""Of simulations that were proposed far from the posterior."""
LEAST_WEIGHT = 1e-6
"""Of simulations that nothing is learnt from."""
FEWEST_PER_TERM = 5
"""Simulations per term of a quadratic that says where simulations fail."""
CALIBRATION = 100
"""Simulations proposed near the posterior at which intervals are checked, and the power of the likelihood chosen."""
PARTICLES, PER_PARTICLE = 2000, 4
"""Particles that find the posterior, if no fewer draws are wanted of it, and the most draws that come from one."""
MOST_REWEIGHTED = 2000
"""Draws that are reweighted for the errors of estimates: they are the same for all fits, so that few do."""
MOST_PLACED = 1000
"""Draws of the posterior that are compared with the simulations."""
FAR, FAR_AT_LEAST = 5.0, 1.5
"""Distance from all simulations, in usual distances between draws, beyond which a draw is unseen, and the least that
counts as far, in posterior standard deviations."""
LOOKED = 0.5
"""Weight from which a simulation was made to look there, and not by chance."""
CLEARLY = 2.0
"""Standard errors of the log score by which one estimate must be ahead of another that is preferred otherwise: a fit
that counts simulations near the posterior most ahead of one to all in full, and a regression ahead of a surrogate."""
FEWEST_PLACED = 10.0
"""Effective draws among which a known parameter is placed."""
FITS_OF_CHOICE = 30
"""Fits to which the choice of a form amounts, on the simulations that it is made from: terms are tried one by one, and
halves of the simulations choose once more for the errors of estimates."""
LATE_WORK = 3e10
"""Operations that learning a likelihood may take when a run was stopped: some seconds. With more of them, as with 80
parameters and as many summaries, the estimate is a regression until the run goes on."""
WORK_PER_VALUE = 1e8
"""Operations for each value of a long series, in likelihoods at draws: there are many of both."""
PASSES, LIKELY_FROM, BEYOND_EDGE, DECAY = 2, 2500.0, 0.05, 0.3
"""Fits after the first in which those simulations count most at which the data are likely, and effective ones that are
needed; the share of the posterior that is less likely than those that count in full; and the power of the likelihood
with which others count."""
LIKELY_ERRORS = 1.0
"""Standard errors of the log score by which such a fit must be ahead, and the law of a series of learnt summaries."""
MOST_LEARNT = 80
"""Learnt summaries that a surrogate is fitted to at most, if there are too many others."""


class UnweightedPairs(NamedTuple):
    """Simulations whose proposals are not known: a likelihood can be learnt from them, and nothing else."""

    theta: Array
    """(n, dim) of those that succeeded, in unbounded coordinates."""
    rows: Array
    failed: Array
    """(m, dim)"""


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
    aimed: Callable[[Array, Array], Array]
    """The share of the proposals at parameters, of these log weights, that was made for the data; 1 if none was."""
    of_proposals: Callable[[np.random.Generator, int], Array]
    """Draws from the mixture of all proposals."""
    of_prior: Callable[[np.random.Generator, int], Array]
    more: UnweightedPairs | None = None
    for_others: bool = False
    """Whether some were made for other data."""

    def together(self) -> tuple[Array, Array]:
        """Parameters and summaries of all that succeeded, those whose proposals are not known last."""
        if self.more is None:
            return self.theta, self.rows
        return np.concatenate([self.theta, self.more.theta]), np.concatenate([self.rows, self.more.rows])

    def outcomes(self) -> tuple[Array, Array]:
        """Parameters of simulations that succeeded, and of those that failed.

        Simulations of unknown proposals count if some of them failed: otherwise the failed ones may be missing.
        """
        if self.more is None or not len(self.more.failed):
            return self.theta, self.failed
        return self.together()[0], np.concatenate([self.failed, self.more.failed])


class DescribedRows(NamedTuple):
    """The summaries that a surrogate is fitted to."""

    rows: Array
    """(n, s) of all simulations, those whose proposals are not known last; (n, rows, s) if the rows of a data set are
    independent and identically distributed."""
    observed: Array
    learnt: bool
    """Whether they were learnt from the simulations with even numbers."""
    series: bool = False
    """Whether they are taken for one long series."""


NO_GAINS: Array = np.empty(0)
"""Of a likelihood that was not tried."""


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
    looks: Array
    """Parameters of the simulations that were made to look there, and not by chance."""
    gains: Array = NO_GAINS
    """(k,) logs of the densities of parameters known from simulations proposed near the posterior, over those of their
    proposals; bounded."""
    thorough: bool = True
    """Whether the form was chosen thoroughly."""

    @property
    def constant(self) -> bool:
        """Whether it depends on no parameter, as far as the simulations show.

        It is a density of the data, and the posterior would be the prior: no error would show that nothing was learnt.
        """
        return self.surrogate.form.flat and self.surrogate.success is None

    @property
    def rows(self) -> int:
        """How many rows the data have whose likelihoods are multiplied; 0 if it is one likelihood of all summaries."""
        return len(self.observed) if self.observed.ndim == 2 else 0

    def coverage(self, level: float) -> Array:
        """Share (dim,) of the known parameters inside central intervals of this level; NaN if none were placed."""
        inside = np.abs(self.ranks - 0.5) < 0.5 * level
        return inside.mean(axis=0) if len(inside) else np.full(inside.shape[1], np.nan)

    def spread(self) -> Array:
        """(dim,) root mean square of the distances from posterior means, 1 if standard deviations are right."""
        return np.sqrt(np.square(self.away).mean(axis=0)) if len(self.away) else np.full(self.away.shape[1], np.nan)

    def draws(self, simulations: SimulatedPairs, number: int, rng: np.random.Generator) -> Tempered:
        """Draws (number, dim) of the posterior."""
        return tempered(
            simulations.of_prior(rng, max(min(number, PARTICLES), number // PER_PARTICLE)),
            simulations.log_prior,
            lambda points: self.surrogate.data_log_likelihood(self.surrogate.form.columns(points), self.observed),
            simulations.discrete,
            rng,
            number=number,
        )

    def unseen(self, draws: Array) -> Array:
        """Which of some draws (n, dim) are where no stage has looked."""
        return unseen(self.looks, draws)

    def refits(self, draws: Array) -> Array:
        """How the shares of draws (n, dim), or of some of them, change with other simulations and other forms (m, k).

        See `monte_carlo_error.Draws`.
        """
        given = self.surrogate, self.training, self.observed, draws[:: -(-len(draws) // MOST_REWEIGHTED)]
        groups = group_count(len(self.training.rows))
        other = with_other_forms(*given, self.thorough)
        return np.concatenate([without_groups(*given, groups), other]).astype(np.float32)


def group_count(n: int) -> int:
    """Parts of n simulations that are left out in turn."""
    return MORE_GROUPS if n <= MORE_UPTO else GROUPS


def learning_work(described: DescribedRows, parameters: int) -> float:
    """About how many operations it takes to learn a likelihood briefly, with the errors of its estimates.

    The factors are taken to be linear in the parameters and in the summaries before: what they will be is not known.

    >>> rows = np.zeros((8000, 80))
    >>> [f"{learning_work(DescribedRows(rows[:, :k], rows[0, :k], False), k):.0e}" for k in (10, 40, 80)]
    ['4e+08', '2e+10', '2e+11']
    """
    n, width = min(len(described.rows), MOST_FITTED), described.rows.shape[-1]
    at_draws = 0.0
    # A data set is one row, or has several, or is a series of steps.
    if described.series:
        at_draws, number, width = WORK_PER_VALUE * width, min(n * width, window_count(width)), LONGEST
    else:
        number = min(n * math.prod(described.rows.shape[1:-1]), MOST_ROWS)
    fitted = group_count(n) * number + FITS_OF_CHOICE * min(number, BRIEFLY_FROM)
    return float(fitted * width * (parameters + width) ** 2) + at_draws


def unseen(theta: Array, draws: Array) -> Array:
    """Which of some draws (m, dim) are farther from all simulations (n, dim) than nearly all draws should be.

    >>> theta = np.random.default_rng(1).standard_normal((500, 2))
    >>> float(unseen(theta, 0.5 * theta).mean()), float(unseen(theta, np.append(theta, [[9.0, 9.0]], axis=0)).sum())
    (0.0, 1.0)
    """
    from scipy.spatial import cKDTree

    dim = theta.shape[1]
    if not len(theta) or len(draws) <= dim + 1:
        # So few draws have no spread by which distances could be measured.
        return np.full(len(draws), not len(theta))
    whole = np.atleast_2d(np.cov(draws, rowvar=False))
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


def spread_over(n: int, most: int) -> Array:
    """Which of n simulations are used, at most so many, evenly spread.

    >>> spread_over(3, 5).tolist(), spread_over(10, 5).tolist()
    ([0, 1, 2], [0, 2, 4, 6, 8])
    """
    return np.linspace(0, n, min(n, most), endpoint=False).astype(np.int64)


class PickedSimulations(NamedTuple):
    """The simulations that surrogates are fitted to, and at which of them they are tried."""

    training: Training
    """With weights that say how near the posterior they were proposed."""
    even: Array
    """Those from which the summaries were learnt, if they were."""
    held_out: Array
    """Those near the data, at which surrogates are scored."""
    calibration: Array
    """Those proposed near the posterior, at which intervals are checked."""
    free: FreeDraws

    def tried(self) -> Array:
        """All at which surrogates are tried, each once, in order."""
        return np.union1d(self.held_out, self.calibration)

    def weighted(self, least: float) -> Training:
        """As a fit has them, with at least this weight for those proposed far from the posterior."""
        weights = np.maximum(self.training.weights, least)
        weights[self.even] = LEAST_WEIGHT
        return self.training._replace(weights=weights)

    def looks(self) -> Array:
        """Parameters of those that were made to look there, and not by chance."""
        return self.training.theta[self.weighted(LEAST_RELEVANCE).weights >= LOOKED]


def learn_likelihood(
    simulations: SimulatedPairs,
    described: DescribedRows,
    held_out: Array,
    share: Array,
    scale: Array,
    rng: np.random.Generator,
    thorough: bool,
) -> LearntLikelihood | None:
    """The surrogate of these simulations, and how it does at those held out; None if none could be learnt.

    One that depends on no parameter is not tried, and is found only if there is no other.

    `share` (m,) is that of each of them in means.

    `scale` (dim, dim) takes parameters to the coordinates in which densities are compared. If many simulations were
    made for other data, or too few near the posterior, it is tried whether all should count in full. If there are
    many, it is tried whether those should count most at which the data are likely.
    """
    found = _of_all(simulations, described, held_out, share, scale, rng, thorough)
    if not thorough or simulations.for_others or described.series:
        return found
    for _ in range(PASSES):
        other = found and _of_likely(simulations, described, found, held_out, scale, rng)
        if other is None:
            break
        found = other
    return found


def _of_likely(
    simulations: SimulatedPairs,
    described: DescribedRows,
    found: LearntLikelihood,
    held_out: Array,
    scale: Array,
    rng: np.random.Generator,
) -> LearntLikelihood | None:
    """The same, learnt mostly from simulations at which the data are likely; None if they are few, or it is not better.

    Both are compared at simulations near the posterior. Those near the data are not where this one is better: against
    regressions it has the score of the other.
    """
    nearer = likely(simulations, found)
    some = fitted_to(len(simulations.theta))
    theta = simulations.theta[some]
    if found.constant or effective(nearer.aimed(theta, simulations.log_weights(theta))) < LIKELY_FROM:
        return None
    picked = _picked(nearer, described, held_out, rng, thorough=True)
    other = _learnt(nearer, described, picked, LEAST_RELEVANCE, scale, thorough=True)
    if other is None or other.constant:
        return None
    before, free = found.surrogate, picked.free
    held = held_out_likelihoods(before.form, found.training, picked.calibration, free, before.success)
    gains = held.bounded_ratios(free.log_aimed, before.power)
    if not better(other.gains, gains, np.full(len(gains), 1.0 / len(gains)), LIKELY_ERRORS):
        return None
    return other._replace(scores=found.scores, looks=found.looks)


def likely(simulations: SimulatedPairs, found: LearntLikelihood) -> SimulatedPairs:
    """Simulations that count the less the less likely the data are, beyond nearly all of the posterior.

    Early stages proposed around it in a wide region, in which a likelihood may be too curved for one polynomial.
    """
    surrogate = found.surrogate

    def log_likelihood(theta: Array) -> Array:
        return surrogate.data_log_likelihood(surrogate.form.columns(theta), found.observed)

    theta = simulations.theta[fitted_to(len(simulations.theta))]
    there, log_weights = log_likelihood(theta), simulations.log_weights(theta)
    order = np.argsort(there)
    share = np.exp((there + log_weights - (there + log_weights).max())[order])
    edge = float(there[order][np.searchsorted(np.cumsum(share), BEYOND_EDGE * share.sum())])

    def aimed(theta: Array, _: Array) -> Array:
        found: Array = np.exp(DECAY * np.minimum(log_likelihood(theta) - edge, 0.0))
        return found

    return simulations._replace(aimed=aimed)


def _of_all(
    simulations: SimulatedPairs,
    described: DescribedRows,
    held_out: Array,
    share: Array,
    scale: Array,
    rng: np.random.Generator,
    thorough: bool,
) -> LearntLikelihood | None:
    """The same by the proposals alone."""
    picked = _picked(simulations, described, held_out, rng, thorough)
    found = _learnt(simulations, described, picked, LEAST_RELEVANCE, scale, thorough)
    nothing = found is None or found.constant
    if not (picked.training.weights < 1.0).any() or not (nothing or simulations.for_others):
        return found
    in_full = _learnt(simulations, described, picked, 1.0, scale, thorough)
    if found is None or in_full is None:
        return found or in_full
    if found.constant or in_full.constant:
        return in_full if found.constant else found
    return found if better(found.scores, in_full.scores, share, CLEARLY) else in_full


def _picked(
    simulations: SimulatedPairs, described: DescribedRows, held_out: Array, rng: np.random.Generator, thorough: bool
) -> PickedSimulations:
    n, (theta, _) = len(simulations.theta), simulations.together()
    weighted = np.union1d(fitted_to(n), held_out)
    number = np.concatenate([weighted, n + spread_over(len(theta) - n, MOST_FITTED // 2)])
    theta, rows, held_out = theta[number], described.rows[number], np.searchsorted(number, held_out)
    # It depends on the parameters alone, so that it is a right weight also if proposals are not known.
    aimed = simulations.aimed(theta, simulations.log_weights(theta))
    # A learnt summary was learnt from the even ones, and fits them too well.
    odd = (number % 2 == 1) | (number >= n)
    # Parameters are compared with posteriors only if it is known where they come from.
    near = np.where(odd & (number < n), aimed, 0.0)
    calibration = np.unique(systematic(near, min(CALIBRATION, len(weighted) // 4), rng.random()))
    tried, number_free = np.union1d(held_out, calibration), FREE if thorough else FREE_BRIEFLY
    if rows.ndim == 3 or described.series:
        number_free = max(FEWEST_FREE, min(number_free, MOST_ROWS_TRIED // (len(tried) * rows.shape[1])))
    free = _free_draws(simulations, theta[tried], number_free, rng)
    even = np.flatnonzero(~odd) if described.learnt else np.empty(0, dtype=np.int64)
    return PickedSimulations(training_of(theta, rows, aimed), even, held_out, calibration, free)


def _learnt(
    simulations: SimulatedPairs,
    described: DescribedRows,
    picked: PickedSimulations,
    least: float,
    scale: Array,
    thorough: bool,
) -> LearntLikelihood | None:
    """The surrogate, with at least this weight for simulations proposed far from the posterior."""
    training, held_out, calibration, free = picked.weighted(least), picked.held_out, picked.calibration, picked.free
    choose = choose_series if described.series else choose_form
    form = choose(simulations.support, training, described.observed, thorough)
    if form is None:
        return None
    both, success = picked.tried(), success_of(simulations, form)
    if form.flat and success is None:
        none = np.empty((0, training.theta.shape[1]))
        surrogate = fit_surrogate(form, training, None)
        return LearntLikelihood(
            surrogate, training, described.observed, described.learnt, np.empty(0), none, none, picked.looks(),
            thorough=thorough,
        )  # fmt: skip
    held = held_out_likelihoods(form, training, both, free, success)
    near = held.some(np.searchsorted(both, calibration))
    power = choose_power(near, free.log_aimed)
    known = training.theta[held_out]
    scores = _scores(held.some(np.searchsorted(both, held_out)), known, simulations, free, scale, power)
    share = near.weights(free.log_aimed, power)
    enough = 1.0 / np.square(share).sum(axis=1) > FEWEST_PLACED
    ranks, away = _placed(share[enough], free.points, training.theta[calibration][enough], simulations.discrete)
    surrogate = fit_surrogate(form, training, success)._replace(power=power)
    looks, gains = picked.looks(), near.bounded_ratios(free.log_aimed, power)
    return LearntLikelihood(
        surrogate, training, described.observed, described.learnt, scores, ranks, away, looks, gains, thorough
    )


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
        log_aimed = np.log(simulations.aimed(points, log_weights)) + log_proposals - log_mixed
    return FreeDraws(points, log_prior - log_mixed, log_aimed)


def success_of(simulations: SimulatedPairs, form: Form) -> Success | None:
    """The probability that a simulation succeeds, on the features of a form; None if all did."""
    good, failed = simulations.outcomes()
    if not len(failed):
        return None
    form = form._replace(features=form.features.lower(min(form.features.degree, 2), steps=False, along=False))
    both, sets = form.columns(np.concatenate([good, failed])), form.features.sets()
    enough = "2" in sets and FEWEST_PER_TERM * len(sets["2"]) < len(both)
    return fit_success(both[:, sets["2" if enough else "1"]], np.arange(len(both)) < len(good))


def _scores(
    held: HeldOut, known: Array, simulations: SimulatedPairs, free: FreeDraws, scale: Array, power: float
) -> Array:
    """Log densities of known parameters (m, dim) as `trial.log_density` has them."""
    constant = 0.5 * known.shape[1] * math.log(2 * math.pi) - math.log(abs(float(np.linalg.det(scale))))
    inside = simulations.log_prior(known) + held.log_ratios(free.log_weights, power) + constant
    shares = held.weights(free.log_weights, power)
    return log_with_broad(inside, free.points @ scale, shares, known @ scale)


def _placed(weights: Array, points: Array, known: Array, discrete: Array) -> tuple[Array, Array]:
    """Ranks (m, dim) of known parameters among weighted points, and their distances from the means in deviations."""
    ranks = np.empty(known.shape)
    for k, share in enumerate(weights):
        ranks[k] = share @ (points < known[k])
        ranks[k, discrete] += 0.5 * (share @ (points[:, discrete] == known[k, discrete]))
    mean = weights @ points
    deviation = np.sqrt(np.maximum(weights @ np.square(points) - np.square(mean), 1e-300))
    return ranks, (known - mean) / deviation
