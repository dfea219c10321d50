"""Regression adjustment of simulations near the data.

Simulations (theta_i, s_i) with weights w_i represent the prior predictive distribution near the observed summary s_0.
An estimate of the posterior takes the nearest of them and moves each along a regression of theta on s,

    theta_i* = theta_i - B (s_i - s_0),

fitted by weighted ridge regression with Epanechnikov weights of the distance over a wide region. It is done in
coordinates without bounds (see `coordinates`), so that no draw leaves the prior. A posterior in several clusters has a
regression for each of them; and to move nothing is a method, too.

Reference: Beaumont, Zhang and Balding (2002); Blum (2010) for ridge and transforms; West (1993) for smoothing that
keeps the variance.
"""

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.estimators.weights import effective, systematic
from onedraw.failures import NoAnswer
from onedraw.model.coordinates import Support
from onedraw.model.prior import Prior
from onedraw.proposals.mixture import MOST_ROOTS, local_roots, moments

RIDGE, RIDGE_OF_FEW = 1e-3, 0.05
"""Penalty on coefficients of standardised summaries; the second is added if there are few draws per coefficient."""
LOCAL_WIDTH = 0.3
"""Width of the local smoothing kernel in standard deviations of a draw's neighbours."""
CLUSTERS = (2, 4)
TERMS = ("none", "linear", "products")


class Neighbourhood(NamedTuple):
    """Simulations near the data, described by one summary."""

    theta: Array
    """(n, dim) parameters in unbounded coordinates."""
    rows: Array
    """(n, s) summaries, scaled so that Euclidean distance counts; without NaN."""
    log_weights: Array
    """(n,) log of prior density over proposal density."""
    continuous: Array
    """(dim,) which columns may be moved and smoothed: not those of whole numbers."""
    labels: tuple[Array, ...] = ()
    """For each number of CLUSTERS, the cluster of each simulation."""
    own: Callable[[Array, Array], Array] | None = None
    """A user's distance (rows, observed) instead of the Euclidean one."""

    def distances(self, observed: Array) -> Array:
        """Distances (n,) of the rows from an observed one."""
        return distances_from(self.rows, observed) if self.own is None else self.own(self.rows, observed)

    def weights(self, index: Array) -> Array:
        """Weights of some simulations, the largest of them 1."""
        log_weights = self.log_weights[index]
        return np.exp(log_weights - log_weights.max())

    def jittered(self, theta: Array, index: Array) -> Array:
        """Parameters (m, dim) of the simulations at `index`, whole numbers moved to a random place in their cells.

        So a density stands for a probability, and whole numbers that are equal are ranked at random.
        """
        if self.continuous.all():
            return theta
        return np.where(self.continuous, theta, theta + jitter(*self.theta.shape)[index])


@lru_cache(maxsize=1)
def jitter(n: int, dim: int) -> Array:
    """Places (n, dim) in cells of width 1, the same for every method that is tried."""
    places = Rng(0, Phase.RESAMPLE).bulk(Purpose.ACCEPT).random((n, dim)) - 0.5
    places.flags.writeable = False
    return places


class Method(NamedTuple):
    """One way to estimate the posterior from a neighbourhood."""

    summary: int
    """Which of the given neighbourhoods, each of which has its own summary."""
    number: int
    """How many of the nearest simulations are used."""
    terms: str
    """Of the regression: "none", "linear" or "products" (squares and products too)."""
    clusters: int = 1
    local: bool = False
    """Whether draws are smoothed by the covariance of their neighbours or by that of all."""

    def words(self) -> str:
        """In plain words."""
        how = {"none": "not adjusted", "linear": "adjusted by linear regression",
               "products": "adjusted by regression with squares and products"}[self.terms]  # fmt: skip
        return how + (f" in {self.clusters} clusters" if self.clusters > 1 else "")


class AdjustedDraws(NamedTuple):
    """Weighted draws of the posterior given one observed summary."""

    theta: Array
    weights: Array
    source: Array
    """The simulations that they come from."""
    eps: float


def distances_from(rows: Array, observed: Array) -> Array:
    """Euclidean distances (n,) of rows (n, s) from a row (s,)."""
    difference = rows - observed
    return np.sqrt(np.einsum("ij,ij->i", difference, difference))


def design(scaled: Array, terms: str) -> Array:
    """The columns of a regression on standardised summaries (n, s), the intercept first.

    >>> design(np.array([[2.0, 3.0]]), "products").tolist()
    [[1.0, 2.0, 3.0, 4.0, 6.0, 9.0]]
    """
    parts = [np.ones((len(scaled), 1)), scaled]
    if terms == "squares":
        parts.append(scaled**2)
    elif terms == "products":
        i, j = np.triu_indices(scaled.shape[1])
        parts.append(scaled[:, i] * scaled[:, j])
    return np.concatenate(parts, axis=1)


def coefficient_count(width: int, terms: str) -> int:
    """How many coefficients a regression on this many summaries has."""
    return 1 + width + (width * (width + 1) // 2 if terms == "products" else 0)


class Ridge(NamedTuple):
    """A weighted ridge regression on summaries, with its intercept at the observed ones."""

    design: Array
    """(n, k)"""
    share: Array
    """(n,) weights that sum to 1."""
    gram: Array
    penalised: Array
    """(k, k), without and with the penalty."""
    effective: float
    """Effective number of the weights."""

    def moved(self, theta: Array) -> Array:
        """Draws (n, dim) moved along the regression to the observed row.

        Residuals are stretched by the degrees of freedom that the regression used, so that the variance is kept.

        >>> s = np.linspace(-1, 1, 50)[:, None]
        >>> ridge(s, np.array([0.5]), np.full(50, 0.02)).moved(3.0 * s).round(1)[[0, -1]].tolist()
        [[1.5], [1.5]]
        """
        both = np.concatenate([self.gram, self.design.T @ (self.share[:, None] * theta)], axis=1)
        solved = np.linalg.solve(self.penalised, both)
        used, coefficients = float(np.trace(solved)) / self.effective, solved[:, len(self.gram) :]
        moved: Array = coefficients[0] + (theta - self.design @ coefficients) / math.sqrt(1.0 - min(used, 0.8))
        return moved

    def influence(self) -> Array:
        """What a unit change of each draw (n,) adds to the mean of the moved draws.

        Data at the edge of the rows depend on few of them, which the weights alone do not show.

        >>> s = np.linspace(-1, 1, 50)[:, None]
        >>> [round(effective(ridge(s, np.array([at]), np.full(50, 0.02)).influence())) for at in (0.0, 1.0)]
        [50, 13]
        """
        found: Array = self.share * (self.design @ np.linalg.solve(self.penalised, np.eye(len(self.gram))[0]))
        return found


def ridge(rows: Array, observed: Array, weights: Array, terms: str = "linear") -> Ridge:
    """The regression on rows (n, s) around an observed one."""
    share = weights / weights.sum()
    away = rows - observed
    spread = np.sqrt(share @ away**2)
    columns = design(away / np.where(spread > 0, spread, 1.0), terms)
    number, weighted = effective(share), columns * np.sqrt(share)[:, None]
    penalty = np.full(columns.shape[1], RIDGE + (RIDGE_OF_FEW if number < 3 * columns.shape[1] else 0.0))
    penalty[0] = 1e-10
    gram = weighted.T @ weighted
    return Ridge(columns, share, gram, gram + np.diag(penalty), number)


def nearest(distances: Array, count: int) -> Array:
    """Indices of the `count` smallest distances, the smallest first, and of all that are equal to the last of them.

    Fewer if there are fewer finite ones.

    >>> nearest(np.array([1.0, 0.0, 3.0, 1.0, np.inf]), 2).tolist()
    [1, 0, 3]
    """
    count = min(count, int(np.isfinite(distances).sum()))
    if 0 < count < len(distances):
        index = np.flatnonzero(distances <= np.partition(distances, count - 1)[count - 1])
    else:
        index = np.arange(count)
    return index[np.argsort(distances[index], kind="stable")]


Order = tuple[Array, Array]


def ordered(near: Neighbourhood, observed: Array, count: int, left_out: int | None = None) -> Order:
    """Distances (n,) from an observed row, infinite for the simulation left out, and the indices of the nearest."""
    distances = near.distances(observed)
    if left_out is not None:
        distances[left_out] = np.inf
    return distances, nearest(distances, count)


def estimate(
    near: Neighbourhood, observed: Array, method: Method, left_out: int | None = None, order: Order | None = None
) -> AdjustedDraws:
    """The draws that a method gives for an observed row, without the simulation left out.

    `order` is what `ordered` gives for at least one simulation more than the method uses.
    """
    distances, close = ordered(near, observed, method.number + 1, left_out) if order is None else order
    if not len(close):
        raise NoAnswer(
            "the data are so far from all simulations that no distance is a finite number: look at the data's units"
        )
    # Counts are often equally far, and then nothing tells the last that is used from the next.
    count = min(method.number, max(len(close) - 1, 1))
    last = distances[close[count - 1]]
    count = int(np.searchsorted(distances[close], last, side="right"))
    # The tolerance is the distance of the first that is not used.
    if count < len(close):
        eps = float(distances[close[count]])
    else:
        eps = float(np.min(distances, where=(distances > last) & np.isfinite(distances), initial=np.inf))
        eps = eps if math.isfinite(eps) else float(last)
    index = close[:count]
    weights, theta = near.weights(index), near.theta[index]
    if method.terms != "none":
        weights = weights * np.maximum(1.0 - (distances[index] / eps) ** 2 if eps > 0 else 1.0, 1e-9)
        moved = theta.copy()
        for some in _regressions(near, method, index):
            moved[some] = ridge(near.rows[index[some]], observed, weights[some], method.terms).moved(theta[some])
        theta = np.where(near.continuous, moved, theta)
    return AdjustedDraws(theta, weights / weights.sum(), index, eps)


def _regressions(near: Neighbourhood, method: Method, index: Array) -> Iterator[Array]:
    """Which of the simulations at `index` share a regression, for each cluster that has enough of them."""
    if method.terms == "none":
        return
    one = method.clusters == 1
    label = np.zeros(len(index), dtype=np.int64) if one else near.labels[CLUSTERS.index(method.clusters)][index]
    for cluster in range(method.clusters):
        some = np.flatnonzero(label == cluster)
        if some.size > 2 * coefficient_count(near.rows.shape[1], method.terms):
            yield some


def effective_draws(near: Neighbourhood, observed: Array, method: Method, found: AdjustedDraws) -> float:
    """How many independent draws of the posterior would give its mean as exactly as these draws do.

    What a draw adds to the mean is its influence times its distance from the mean of its cluster, and what it adds to
    the share of that cluster.
    """
    mean = found.weights @ found.theta
    added = found.weights[:, None] * (found.theta - mean)
    for some in _regressions(near, method, found.source):
        weights, theta = found.weights[some], found.theta[some]
        middle = weights @ theta / weights.sum()
        there = ridge(near.rows[found.source[some]], observed, weights, method.terms).influence()
        added[some] = weights[:, None] * (middle - mean) + weights.sum() * there[:, None] * (theta - middle)
    variance = found.weights @ np.square(found.theta - mean)
    some = np.flatnonzero(variance > 0)
    if some.size == 0:
        return effective(found.weights)
    return float(1.0 / np.mean(np.square(added).sum(axis=0)[some] / variance[some]))


def with_clusters(near: Neighbourhood, observed: Array) -> Neighbourhood:
    """The same simulations with their clusters, found from those nearest to the observed row."""
    order = np.argsort(near.distances(observed), kind="stable")
    close = order[: max(100, min(len(order) // 10, 500))]
    weights = near.weights(close)
    return near._replace(labels=tuple(clusters(near.theta[close], weights, number, near.theta) for number in CLUSTERS))


def clusters(theta: Array, weights: Array, number: int, points: Array) -> Array:
    """The cluster of each point (m, dim), by k-means of the weighted draws (n, dim) in standard deviations."""
    share = weights / weights.sum()
    mean = share @ theta
    spread = np.sqrt(share @ (theta - mean) ** 2)
    scale = np.where(spread > 0, spread, 1.0)
    scaled, there = (theta - mean) / scale, (points - mean) / scale
    centres = scaled[[int(np.argmax(share))]]
    for _ in range(number - 1):
        away = _squares(scaled, centres).min(axis=0)
        centres = np.concatenate([centres, scaled[[int(np.argmax(share * away))]]])
    for _ in range(20):
        label = _squares(scaled, centres).argmin(axis=0)
        mass = np.bincount(label, share, number)
        sums = np.stack([np.bincount(label, share * column, number) for column in scaled.T], axis=1)
        centres = np.where(mass[:, None] > 0, sums / np.maximum(mass, 1e-300)[:, None], centres)
    return _squares(there, centres).argmin(axis=0)


def _squares(points: Array, centres: Array) -> Array:
    """Squared distances (k, n) of points from centres."""
    return np.array([np.square(points - one).sum(axis=1) for one in centres])


def kernel_width(draws: float, dim: int) -> float:
    """The width of a normal kernel for this many independent draws, in their standard deviations (Silverman's rule)."""
    return (4.0 / ((dim + 2.0) * draws)) ** (1.0 / (dim + 4.0))


def smoothed(rng: np.random.Generator, found: AdjustedDraws, n: int, method: Method) -> tuple[Array, Array]:
    """n draws of equal weight from a smoothed estimate, and the index of the draw that each of them comes from.

    Smoothing as a whole shrinks draws towards their mean by what the noise adds, so that mean and covariance stay.
    Local smoothing adds noise with the shape of a draw's neighbours.
    """
    theta, weights = found.theta, found.weights
    dim = theta.shape[1]
    pick = systematic(weights, n, rng.random())
    noise = rng.standard_normal((n, dim))
    if method.local:
        count = int(min(len(theta), max(2 * dim + 2, math.sqrt(len(theta)))))
        drawn = theta[pick] + LOCAL_WIDTH * _shaped(theta, weights, pick, count, noise)
    else:
        (mean, whole), width = moments(theta, weights), min(0.5, kernel_width(effective(weights), dim))
        root = np.linalg.cholesky(whole + 1e-12 * np.diag(np.diag(whole)) + 1e-300 * np.eye(dim))
        drawn = mean + math.sqrt(1.0 - width**2) * (theta[pick] - mean) + width * noise @ root.T
    order = rng.permutation(n)
    return drawn[order], pick[order]


def _shaped(theta: Array, weights: Array, pick: Array, count: int, noise: Array) -> Array:
    """Noise (n, dim) with the shapes of the `count` neighbours of the draws that are picked (n,)."""
    found, order = np.empty(noise.shape), np.argsort(pick, kind="stable")
    for some in np.array_split(order, -(-noise.size * noise.shape[1] // MOST_ROOTS)):
        centres, place = np.unique(pick[some], return_inverse=True)
        root = local_roots(theta, weights, theta[centres], count)
        found[some] = np.einsum("nij,nj->ni", root[place], noise[some])
    return found


def posterior_draws(
    rng: np.random.Generator,
    near: Neighbourhood,
    found: AdjustedDraws,
    method: Method,
    n: int,
    prior: Prior,
    support: Support,
) -> tuple[Array, Array, float]:
    """n draws (n, dim) of a smoothed estimate inside the prior, their simulations, and the share left unadjusted.

    If a constraint is not a box, a moved draw may leave it. The simulation that it comes from is then used as it is.
    """
    drawn, pick = smoothed(rng, found, n, method)
    source = found.source[pick]
    theta = np.asfortranarray(support.bounded(np.where(near.continuous, drawn, found.theta[pick])))
    outside = prior.logpdf(theta) == -np.inf
    theta[outside] = support.bounded(near.theta[source[outside]])
    return theta, source, float(outside.mean())
