"""Mixtures of normal or Student distributions as proposals, and the weights of draws from several of them.

With n_k proposals from q_k, the prior among them, a proposal at theta has the weight

    w(theta) = pi(theta) / sum_k (n_k / n) q_k(theta),      n = sum_k n_k,

whichever q_k it came from: the balance heuristic. The prior's density must integrate to one for it, which `where=` and
joint priors need not do: `log_prior_constant` estimates what they integrate to.

Reference: Veach and Guibas (1995); Meng and Wong (1996) for bridge sampling.
"""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.engines.clock import look
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.estimators.weights import systematic
from onedraw.model.prior import Prior
from onedraw.proposals.random_walk import rounded_mass

CHUNK = 2**17
"""Densities of components computed at once, few enough for the cache."""
LEAST_DEVIATION = 0.5
"""Of the normals that are rounded to whole numbers: one draw in three moves."""
NEAR = 1e4
"""Distances, in the smallest standard deviations, up to which their squares are sums of products of coordinates."""
MOST_ROOTS, FEWEST_COMPONENTS = 2**20, 20
"""Numbers that the roots of a mixture's covariances may hold, and the components that it may have all the same."""
CONSTRAINT_DRAWS, BRIDGE_DRAWS = 2**17, 2**14
"""Prior draws from which the probability of a constraint is estimated, and draws of each side of a bridge."""


class SquaredDistances(NamedTuple):
    """From the centres of normals, in their standard deviations: quadratic functions, as one product of matrices.

    Far from all centres little would be left of differences of large numbers. There they are added up one by one.
    """

    centre: Array
    """(k, dim)"""
    inverse: Array
    """(k, dim, dim), of the roots of the covariances."""
    middle: Array
    """(dim,) of the centres."""
    coefficients: Array
    """(f, k) of products of coordinates around the middle, of the coordinates, and of 1."""
    near: float
    """Coordinates around the middle up to which these are used."""

    def __call__(self, points: Array) -> Array:
        """Values (k, n) at points (n, dim)."""
        away = (points - self.middle).T
        if np.abs(away).max(initial=0.0) > self.near:
            z = ((points - one) @ inverse.T for one, inverse in zip(self.centre, self.inverse, strict=True))
            return np.array([np.einsum("ij,ij->i", one, one) for one in z])
        i, j = np.triu_indices(len(away))
        features = np.concatenate([away[i] * away[j], away, np.ones((1, len(points)))])
        found: Array = self.coefficients.T @ features
        return np.maximum(found, 0.0, out=found)


def squared_distances(centre: Array, root: Array) -> SquaredDistances:
    """From centres (k, dim) of normals whose covariances have these roots (k, dim, dim).

    >>> squared_distances(np.ones((1, 1)), np.full((1, 1, 1), 2.0))(np.array([[3.0], [5.0]])).tolist()
    [[1.0, 4.0]]
    """
    inverse, middle = np.linalg.inv(root), np.median(centre, axis=0)
    precision, away = inverse.transpose(0, 2, 1) @ inverse, centre - middle
    moved = np.einsum("kij,kj->ki", precision, away)
    i, j = np.triu_indices(len(middle))
    products, constant = precision[:, i, j] * np.where(i == j, 1.0, 2.0), np.einsum("ki,ki->k", moved, away)
    near = NEAR / max(float(np.abs(inverse).max(initial=0.0)), 1e-300)
    coefficients = np.concatenate([products, -2.0 * moved, constant[:, None]], axis=1).T
    usable = np.isfinite(coefficients).all() and np.abs(away).max(initial=0.0) < near
    return SquaredDistances(centre, inverse, middle, coefficients, near if usable else -1.0)


class Mixture(NamedTuple):
    """Normal or Student distributions of equal share; discrete columns are rounded normals, independent of the rest.

    >>> one = Mixture(np.zeros((1, 1)), np.ones((1, 1, 1)), np.empty((1, 0)), np.array([False]))
    >>> one.log_density(np.array([[0.0], [1.0]])).round(4).tolist()
    [-0.9189, -1.4189]
    >>> one.widened(4.0).sample(np.random.default_rng(1), 3).shape
    (3, 1)
    """

    centre: Array
    """(k, dim)"""
    root: Array
    """(k, continuous, continuous), lower triangular."""
    deviation: Array
    """(k, discrete) of the normals that are rounded."""
    discrete: Array
    """(dim,) which columns are whole numbers."""
    freedom: int | None = None
    """Degrees of freedom of Student distributions; None: normal ones."""

    def sample(self, rng: np.random.Generator, n: int) -> Array:
        """n draws (n, dim); the components take turns, from a random one on."""
        k, dim = self.centre.shape
        which = (np.arange(n) + rng.integers(k)) % k
        drawn, normal = np.array(self.centre[which], order="F"), rng.standard_normal((n, dim))
        moved = np.einsum("nij,nj->ni", self.root[which], normal[:, ~self.discrete])
        if self.freedom is not None:
            moved *= np.sqrt(self.freedom / rng.chisquare(self.freedom, n))[:, None]
        drawn[:, ~self.discrete] += moved
        drawn[:, self.discrete] = np.rint(drawn[:, self.discrete] + self.deviation[which] * normal[:, self.discrete])
        return drawn

    def widened(self, factor: float) -> "Mixture":
        """The same with all variances times a factor; whole numbers move all the same."""
        deviation = np.maximum(self.deviation * math.sqrt(factor), LEAST_DEVIATION)
        return self._replace(root=self.root * math.sqrt(factor), deviation=deviation)

    def log_density(self, points: Array) -> Array:
        """Log density at rows (n, dim)."""
        squares, constant = squared_distances(self.centre[:, ~self.discrete], self.root), self._log_constants()
        size = max(64, CHUNK // max(len(self.centre), len(squares.coefficients) // 4))
        chunks = [points[top : top + size] for top in range(0, len(points), size)]
        return np.concatenate([np.empty(0), *(self._log_density(chunk, squares, constant) for chunk in chunks)])

    def _log_constants(self) -> Array:
        """(k,) log densities of the continuous columns at the components' centres."""
        dim = self.root.shape[1]
        spread: Array = np.log(np.abs(np.diagonal(self.root, axis1=1, axis2=2))).sum(axis=1)
        if self.freedom is None:
            return -spread - 0.5 * dim * math.log(2 * math.pi)
        upper, lower = math.lgamma((self.freedom + dim) / 2), math.lgamma(self.freedom / 2)
        return upper - lower - 0.5 * dim * math.log(self.freedom * math.pi) - spread

    def _log_density(self, points: Array, squares: SquaredDistances, constant: Array) -> Array:
        look()
        each = squares(points[:, ~self.discrete])
        if self.freedom is None:
            each *= -0.5
        else:
            each /= self.freedom
            each += 1.0
            np.log(each, out=each)
            each *= -0.5 * (self.freedom + self.root.shape[1])
        each += constant[:, None]
        for column, middles, deviations in zip(
            points[:, self.discrete].T, self.centre[:, self.discrete].T, self.deviation.T, strict=True
        ):
            # Few whole numbers differ.
            values, place = np.unique(column, return_inverse=True)
            with np.errstate(divide="ignore"):
                each += np.log(rounded_mass(values - middles[:, None], deviations[:, None]))[:, place]
        top = np.maximum(each.max(axis=0), -1e300)
        each -= top
        with np.errstate(divide="ignore"):
            log_density: Array = top + np.log(np.exp(each, out=each).mean(axis=0))
        return log_density


def moments(points: Array, share: Array) -> tuple[Array, Array]:
    """Mean and covariance of points (n, dim) whose weights sum to 1."""
    mean = share @ points
    return mean, spread_around(points, mean, share)


def spread_around(points: Array, centre: Array, share: Array) -> Array:
    """The covariance (dim, dim) of points (n, dim) around a centre, by weights that sum to 1."""
    look()
    away = (points - centre) * np.sqrt(share)[:, None]
    found: Array = away.T @ away
    return found


def _spreads(points: Array, centres: Array, share: Array) -> Array:
    """The same (m, dim, dim) of several sets of points (m, n, dim)."""
    look()
    away = points - centres[:, None]
    away *= np.sqrt(share)[:, :, None]
    found: Array = np.swapaxes(away, 1, 2) @ away
    return found


def local_mixture(
    points: Array,
    weights: Array,
    centres: Array,
    count: int,
    discrete: Array,
    freedom: int | None = None,
    towards_all: float = 0.0,
    shrink: bool = False,
) -> Mixture:
    """Components at some of the points (n, dim), given by number, each with the covariance of its `count` nearest.

    `towards_all` is the share of the covariance of all points that is mixed in; `shrink` shrinks the correlations, the
    more the fewer points there are.
    """
    root, smooth = local_roots(points, weights, points[centres], count, towards_all, shrink), np.flatnonzero(~discrete)
    deviation = np.sqrt(np.square(root[:, discrete]).sum(axis=2))
    if discrete.any():
        root = np.linalg.cholesky((root @ root.transpose(0, 2, 1))[:, smooth[:, None], smooth])
    return Mixture(points[centres], root, np.maximum(deviation, LEAST_DEVIATION), discrete, freedom)


def normals_around(
    theta: Array, weights: Array, scale: float, number: int, rng: np.random.Generator, discrete: Array
) -> Mixture:
    """Normals around draws picked by weight, each with the covariance of its neighbours times `scale`.

    They are `number`, or fewer if there are many parameters.
    """
    n, dim = theta.shape
    number, count = min(number, max(FEWEST_COMPONENTS, MOST_ROOTS // dim**2)), int(min(n, max(2 * dim + 2, n**0.7)))
    centres, towards_all = systematic(weights, min(number, n), rng.random()), min(1.0, (dim + 1) / count)
    return local_mixture(theta, weights, centres, count, discrete, towards_all=towards_all).widened(scale)


def local_roots(
    points: Array, weights: Array, centres: Array, count: int, towards_all: float = 0.0, shrink: bool = False
) -> Array:
    """Cholesky roots (m, dim, dim) of the covariances of each centre's nearest points: see `local_mixture`."""
    whole, floor = covariance_of_all(points, weights)
    close = neighbours(points, centres, whole + floor, min(count, len(points)))
    share = weights[close] / np.maximum(weights[close].sum(axis=1), 1e-300)[:, None]
    parts = -(-close.size * points.shape[1] // CHUNK)
    each = (np.array_split(one, parts) for one in (close, centres, share))
    local = np.concatenate([_spreads(points[some], *rest) for some, *rest in zip(*each, strict=True)])
    if shrink:
        # Correlations of few neighbours are mostly noise.
        few = points.shape[1] / (1.0 / np.square(share).sum(axis=1) + points.shape[1])
        diagonal = np.einsum("mii->mi", local)[:, :, None] * np.eye(points.shape[1])
        local = (1 - few)[:, None, None] * local + few[:, None, None] * diagonal
    return np.linalg.cholesky((1 - towards_all) * local + towards_all * whole + floor)


def covariance_of_all(points: Array, weights: Array) -> tuple[Array, Array]:
    """The covariance (dim, dim) of weighted points, and what makes it a full one if points agree in a column."""
    mean, whole = moments(points, weights / weights.sum())
    least = np.where(np.diag(whole) > 0, 0.0, 1e-12 * np.maximum(mean * mean, 1.0))
    return whole, np.diag(1e-6 * np.diag(whole) + least)


def neighbours(points: Array, centres: Array, covariance: Array, count: int, slack: float = 0.0) -> Array:
    """Numbers (m, count) of the points nearest to each centre, in standard deviations of this covariance.

    `slack` is the share by which the distance of one that is found may exceed that of the nearest.
    """
    from scipy.spatial import cKDTree

    whiten = np.linalg.inv(np.linalg.cholesky(covariance))
    found: Array = cKDTree(points @ whiten.T).query(centres @ whiten.T, k=count, eps=slack)[1]
    return found.reshape(len(centres), count)


def log_weights(log_prior: Array, of_prior: int, others: Iterable[tuple[int, Array]]) -> Array:
    """Log weights (n,) of the balance heuristic at points of this log prior density.

    `of_prior` proposals came from the prior; `others` are the numbers of proposals of the other distributions, with
    their log densities (n,) at the points.

    >>> log_weights(np.zeros(2), 1, [(1, np.log([1.0, 3.0]))]).round(4).tolist()
    [0.0, -0.6931]
    """
    log_mixed, proposals = log_prior + math.log(of_prior), of_prior
    for number, log_density in others:
        log_mixed = np.logaddexp(log_mixed, log_density + math.log(number))
        proposals += number
    weights: Array = log_prior - log_mixed + math.log(proposals)
    return weights


def log_prior_constant(
    prior: Prior,
    seed: int,
    mixture: Mixture,
    transform: Callable[[Array], Array] = lambda theta: theta,
    log_density: Callable[[Array], Array] | None = None,
) -> tuple[float, float]:
    """Log of what the prior's density integrates to, and its standard error; (0, 0) if that is known to be one.

    It is the probability of a `where=` constraint on named parameters, estimated by the share of draws that fulfil it;
    for joint priors it is found by bridge sampling between prior and mixture. `transform` takes parameters to the
    mixture's coordinates, in which `log_density` is the prior's (by default both are those of the prior itself).
    """
    if prior.normalised and prior.where is None:
        return 0.0, 0.0
    rng = Rng(seed, Phase.IMPORTANCE, 0, 1)
    if prior.normalised:
        allowed = prior._allowed(prior._draw(rng.bulk(Purpose.PRIOR), CONSTRAINT_DRAWS))
        # If hardly a draw is inside, the share is at least known not to be zero.
        share = max(float(np.count_nonzero(allowed)), 0.5) / CONSTRAINT_DRAWS
        return math.log(share), math.sqrt((1 - share) / (share * CONSTRAINT_DRAWS))
    of_prior = transform(prior.sample(rng.bulk(Purpose.PRIOR), BRIDGE_DRAWS))
    of_mixture = mixture.sample(rng.bulk(Purpose.MOVE), BRIDGE_DRAWS)
    log_prior = prior.logpdf if log_density is None else log_density
    at_prior, at_mixture = (log_prior(some) - mixture.log_density(some) for some in (of_prior, of_mixture))
    return bridge(at_prior, at_mixture)


def bridge(at_first: Array, at_second: Array) -> tuple[float, float]:
    """Log of the ratio of the integrals of two densities, and its standard error.

    Given are the log ratios of the densities, first over second, at as many draws from the first as from the second.
    """
    found, upper, lower = float(np.median(at_first)), np.ones(1), np.ones(1)
    for _ in range(100):
        upper = 1.0 / (1.0 + np.exp(np.clip(found - at_second, -700, 700)))
        lower = 1.0 / (1.0 + np.exp(np.clip(at_first - found, -700, 700)))
        step = math.log(float(upper.mean())) - math.log(float(lower.mean()))
        found += step
        if abs(step) < 1e-10:
            break
    return found, math.sqrt(sum(float(part.var()) / (part.size * float(part.mean()) ** 2) for part in (upper, lower)))
