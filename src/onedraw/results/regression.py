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
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.estimators.weights import effective, systematic
from onedraw.failures import NoAnswer
from onedraw.model.coordinates import Support
from onedraw.model.prior import Prior
from onedraw.proposals.mixture import MOST_ROOTS, covariance_of_all, local_roots, moments, neighbours

RIDGE, RIDGE_OF_FEW = 1e-3, 0.05
"""Penalty on coefficients of standardised summaries; the second is added if there are few draws per coefficient."""
LOCAL_WIDTH = 0.3
"""Width of the local smoothing kernel in standard deviations of a draw's neighbours."""
MOST_CENTRES, SLACK = 2**12, 2.0
"""Draws whose neighbours are looked at, and how much farther than the nearest of them another one may be taken."""
AT_ONCE = 2**16
"""Numbers that the regressions of several observed rows have at once, few enough for the cache."""
FEWEST_TOGETHER, ROWS_TOGETHER = 8, 2**9
"""Regressions on nearly all simulations from which on they are fitted together, by so many simulations at a time."""
WIDEST_TOGETHER = 300
"""Coefficients and parameters up to which that takes less time: products of all pairs of columns are written down."""
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
    """The columns of a regression on standardised summaries (..., n, s), the intercept first.

    >>> design(np.array([[2.0, 3.0]]), "products").tolist()
    [[1.0, 2.0, 3.0, 4.0, 6.0, 9.0]]
    """
    width = scaled.shape[-1]
    size = 1 + width + {"squares": width, "products": width * (width + 1) // 2}.get(terms, 0)
    # In the same order in memory, which decides the last bits of products of matrices.
    found = np.empty_like(scaled, shape=(*scaled.shape[:-1], size))
    found[..., 0], found[..., 1 : width + 1] = 1.0, scaled
    if terms == "squares":
        np.square(scaled, out=found[..., width + 1 :])
    elif terms == "products":
        first = width + 1
        for k in range(width):
            last = first + width - k
            np.multiply(scaled[..., k : k + 1], scaled[..., k:], out=found[..., first:last])
            first = last
    return found


def coefficient_count(width: int, terms: str) -> int:
    """How many coefficients a regression on this many summaries has."""
    return 1 + width + (width * (width + 1) // 2 if terms == "products" else 0)


class Ridge(NamedTuple):
    """A weighted ridge regression of parameters on summaries, with its intercept at the observed ones, or several."""

    observed: Array
    scale: Array
    """(..., s), the spread of the summaries around the observed ones."""
    terms: str
    gram: Array
    """(..., k, k) of the columns of the regression."""
    products: Array
    """(..., k, dim) of these with the parameters."""
    effective: Array
    """(...) effective number of the weights."""

    def columns(self, rows: Array) -> Array:
        """The columns (..., n, k) of rows (..., n, s)."""
        scaled = rows - self.observed[..., None, :]
        scaled /= self.scale[..., None, :]
        return design(scaled, self.terms)

    def penalised(self) -> Array:
        """The gram matrices with the penalty."""
        size = self.gram.shape[-1]
        few = np.where(self.effective < 3 * size, RIDGE_OF_FEW, 0.0)
        found = self.gram + (RIDGE + few)[..., None, None] * np.eye(size)
        found[..., 0, 0] = self.gram[..., 0, 0] + 1e-10
        return found

    def moved(self, rows: Array, theta: Array) -> Array:
        """Draws (..., n, dim) with these rows, moved along the regression to the observed row.

        Residuals are stretched by the degrees of freedom that the regression used, so that the variance is kept.

        >>> s, all_of_them, same = np.linspace(-1, 1, 50)[:, None], np.arange(50)[None], np.full((1, 50), 0.02)
        >>> ridge(s, 3.0 * s, all_of_them, np.array([[0.5]]), same).moved(s, 3.0 * s).round(1)[0, [0, -1]].tolist()
        [[1.5], [1.5]]
        """
        size = self.gram.shape[-1]
        solved = np.linalg.solve(self.penalised(), np.concatenate([self.gram, self.products], axis=-1))
        used, coefficients = np.einsum("...ii->...", solved[..., :size]), solved[..., size:]
        stretched = np.sqrt(1.0 - np.minimum(used / self.effective, 0.8))[..., None, None]
        moved: Array = coefficients[..., :1, :] + (theta - self.columns(rows) @ coefficients) / stretched
        return moved

    def influence(self, rows: Array, share: Array) -> Array:
        """What a unit change of each draw (..., n) with these shares adds to the mean of the moved draws.

        Data at the edge of the rows depend on few of them, which the weights alone do not show.

        >>> s, all_of_them, same = np.linspace(-1, 1, 50)[:, None], np.arange(50)[None], np.full((1, 50), 0.02)
        >>> fits = (ridge(s, s, all_of_them, np.array([[at]]), same) for at in (0.0, 1.0))
        >>> [round(effective(fit.influence(s, same)[0])) for fit in fits]
        [50, 13]
        """
        first = np.eye(self.gram.shape[-1])[:, :1]
        found: Array = share * (self.columns(rows) @ np.linalg.solve(self.penalised(), first))[..., 0]
        return found


def ridge(rows: Array, theta: Array, index: Array, observed: Array, weights: Array, terms: str = "linear") -> Ridge:
    """The regressions of theta (N, dim) on rows (N, s) around observed ones (m, s).

    Each has the simulations at its row of `index` (m, n), or all have those at an `index` (n,); with weights (m, n).
    """
    share = weights / weights.sum(axis=1, keepdims=True)
    sums = (_sums if index.ndim == 2 else _sums_together)(rows, theta, index, observed, share, terms)
    square = np.diagonal(sums, axis1=1, axis2=2)[:, 1 : rows.shape[1] + 1]
    scale = np.sqrt(np.where(square > 0, square, 1.0))
    factor = design(1.0 / scale[:, None], terms)
    gram, products = np.split(np.swapaxes(factor, 1, 2) * sums, [factor.shape[2]], axis=2)
    return Ridge(observed, scale, terms, gram * factor, products, 1.0 / np.square(share).sum(axis=1))


def _sums(rows: Array, theta: Array, index: Array, observed: Array, share: Array, terms: str) -> Array:
    """Weighted sums (m, k, k + dim) of products of a regression's columns with each other and with theta."""
    some = np.flatnonzero(share.any(axis=0))
    found, size = np.zeros(()), max(1, AT_ONCE // (len(index) * coefficient_count(rows.shape[1], terms)))
    for top in range(0, len(some), size):
        each = some[top : top + size]
        columns = design(rows[index[:, each]] - observed[:, None], terms)
        both = np.concatenate([columns, theta[index[:, each]]], axis=2)
        found = found + np.swapaxes(share[:, each, None] * columns, 1, 2) @ both
    return found


def _sums_together(rows: Array, theta: Array, index: Array, observed: Array, share: Array, terms: str) -> Array:
    """The same, from the products of columns around one centre, which all the regressions share."""
    some, centre = np.flatnonzero(share.any(axis=0)), observed.mean(axis=0)
    k, dim = coefficient_count(rows.shape[1], terms), theta.shape[1]
    i, j = np.triu_indices(k, m=k + dim)
    found: Array = np.zeros((len(observed), len(i)))
    for top in range(0, len(some), ROWS_TOGETHER):
        each = some[top : top + ROWS_TOGETHER]
        both = np.concatenate([design(rows[index[each]] - centre, terms), theta[index[each]]], axis=1).T.copy()
        products = np.concatenate([both[c] * both[c:] for c in range(k)])
        found += share[:, each] @ products.T
    sums = np.empty((len(observed), k, k + dim))
    sums[:, i, j] = found
    sums[:, j[j < k], i[j < k]] = found[:, j < k]
    gram, shift = sums[:, :, :k], shifting(observed - centre, terms)
    shifted = np.swapaxes(shift, 1, 2) @ np.concatenate([gram @ shift, sums[:, :, k:]], axis=2)
    # A summary that is the same everywhere has no spread, but for rounding.
    before, after = (np.diagonal(one, axis1=1, axis2=2)[:, 1 : rows.shape[1] + 1] for one in (gram, shifted))
    alive = design((after > 1e-9 * before)[:, None].astype(float), terms)
    shifted *= np.swapaxes(alive, 1, 2)
    shifted[:, :, :k] *= alive
    return shifted


def shifting(by: Array, terms: str) -> Array:
    """Matrices (m, k, k) that take the columns of summaries to those of summaries less `by` (m, s).

    >>> s, by = np.array([[2.0, 5.0]]), np.array([[1.0, 3.0]])
    >>> (design(s, "products") @ shifting(by, "products")[0]).tolist(), design(s - by, "products").tolist()
    ([[1.0, 1.0, 2.0, 1.0, 2.0, 4.0]], [[1.0, 1.0, 2.0, 1.0, 2.0, 4.0]])
    """
    m, width = by.shape
    found = np.tile(np.eye(coefficient_count(width, terms)), (m, 1, 1))
    found[:, 0] = design(-by[:, None], terms)[:, 0]
    if terms == "products":
        i, j = np.triu_indices(width)
        pair = 1 + width + np.arange(len(i))
        found[:, 1 + i, pair] -= by[:, j]
        found[:, 1 + j, pair] -= by[:, i]
    return found


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
    return index[sorting(distances[index])]


def sorting(values: Array) -> Array:
    """Indices of values (n,), the smallest first, and equal ones in their order."""
    # If none are equal, any way to sort gives the same, and the stable one takes four times as long.
    order = np.argsort(values)
    there = values[order]
    return np.argsort(values, kind="stable") if (there[1:] == there[:-1]).any() else order


class Order(NamedTuple):
    """The simulations nearest to an observed row."""

    distances: Array
    """(n,) of all, infinite for the one left out."""
    close: Array
    """Indices of the nearest, the nearest first."""
    sorted: Array
    """Their distances."""

    def region(self, number: int) -> tuple[int, float]:
        """How many are used if `number` are wanted, and the tolerance: the distance of the first that is not used."""
        # Counts are often equally far, and then nothing tells the last that is used from the next.
        count = min(number, max(len(self.close) - 1, 1))
        last = self.sorted[count - 1]
        count = int(np.searchsorted(self.sorted, last, side="right"))
        if count < len(self.close):
            return count, float(self.sorted[count])
        farther = (self.distances > last) & np.isfinite(self.distances)
        eps = float(np.min(self.distances, where=farther, initial=np.inf))
        return count, eps if math.isfinite(eps) else float(last)


def ordered(near: Neighbourhood, observed: Array, count: int, left_out: int | None = None) -> Order:
    """The simulations nearest to an observed row, and those as far as the last of them, without the one left out."""
    distances = near.distances(observed)
    if left_out is not None:
        distances[left_out] = np.inf
    close = nearest(distances, count)
    if not len(close):
        raise NoAnswer(
            "the data are so far from all simulations that no distance is a finite number: look at the data's units"
        )
    return Order(distances, close, distances[close])


def estimate(near: Neighbourhood, observed: Array, method: Method, left_out: int | None = None) -> AdjustedDraws:
    """The draws that a method gives for an observed row, without the simulation left out."""
    order = ordered(near, observed, method.number + 1, left_out)
    ((_, found),) = estimates(near, observed[None], method, [order])
    return AdjustedDraws(found.theta[0], found.weights[0], found.source[0], float(found.eps[0]))


class SeveralDraws(NamedTuple):
    """Weighted draws given several observed summaries, equally many of each: see `AdjustedDraws`."""

    theta: Array
    """(m, n, dim)"""
    weights: Array
    source: Array
    """(m, n)"""
    eps: Array
    """(m,)"""


def estimates(
    near: Neighbourhood, observed: Array, method: Method, orders: Sequence[Order], most: int | None = None
) -> Iterator[tuple[Array, SeveralDraws]]:
    """The draws that a method gives for observed rows (m, s), some rows at a time: which of them, and the draws.

    `orders` are those of at least one simulation more than the method uses. If there are more than `most` draws, only
    every second, third... is moved and returned.
    """
    regions = [order.region(method.number) for order in orders]
    counts, eps = np.array([count for count, _ in regions]), np.array([one for _, one in regions])
    coefficients, dim = coefficient_count(near.rows.shape[1], method.terms), near.theta.shape[1]
    width, shareable = max(coefficients, dim), coefficients + dim <= WIDEST_TOGETHER
    for count in np.unique(counts).tolist():
        same = np.flatnonzero(counts == count)
        parts = min(len(same), -(-len(same) * count * width // AT_ONCE))
        together = shareable and 2 * count > len(near.rows) and len(same) >= FEWEST_TOGETHER
        for which in np.array_split(same, 1 if together else parts):
            some, thin = [orders[k] for k in which.tolist()], slice(None, count, -(-count // (most or count)))
            source, away = np.array([one.close[thin] for one in some]), np.array([one.sorted[thin] for one in some])
            weights = _weights(near.log_weights[source], away, eps[which], method.terms)
            theta = rows = near.theta[source]
            if method.terms != "none":
                moved, rows, label = theta, near.rows[source], _labels(near, method)[source]
                for cluster, enough, fit in _fits(near, observed[which], method, some, count, eps[which], together):
                    mine = (label == cluster) & enough[:, None]
                    moved = np.where(mine[:, :, None], fit.moved(rows, theta), moved)
                theta = np.where(near.continuous, moved, theta)
            yield which, SeveralDraws(theta, weights / weights.sum(axis=1, keepdims=True), source, eps[which])


def _weights(log_weights: Array, distances: Array, eps: Array, terms: str) -> Array:
    """Weights (m, n) of simulations of these log weights and distances; for a regression, by Epanechnikov's kernel."""
    found = np.exp(log_weights - log_weights.max(axis=1, keepdims=True))
    if terms != "none":
        ratio = distances / np.where(eps > 0, eps, np.inf)[:, None]
        found *= np.maximum(1.0 - np.square(ratio), 1e-9)
    return found


def _labels(near: Neighbourhood, method: Method) -> Array:
    """The cluster of each simulation."""
    one = method.clusters == 1
    return np.zeros(len(near.theta), dtype=np.int64) if one else near.labels[CLUSTERS.index(method.clusters)]


def _fits(
    near: Neighbourhood,
    observed: Array,
    method: Method,
    orders: Sequence[Order],
    count: int,
    eps: Array,
    together: bool,
) -> Iterator[tuple[int, Array, Ridge]]:
    """The regressions of a method on the `count` simulations nearest to each observed row (m, s), by cluster.

    With each cluster comes for which rows (m,) there are enough of it.
    """
    if together:
        # In the order that the simulations have, all rows share one product of matrices.
        index, distances = np.arange(len(near.rows)), np.array([one.distances for one in orders])
        inside = distances <= np.array([one.sorted[count - 1] for one in orders])[:, None]
        log_weights, distances = np.where(inside, near.log_weights, -np.inf), np.where(inside, distances, 0.0)
    else:
        index, distances = (
            np.array([one.close[:count] for one in orders]),
            np.array([one.sorted[:count] for one in orders]),
        )
        inside, log_weights = np.ones(index.shape, dtype=bool), near.log_weights[index]
    weights, label = _weights(log_weights, distances, eps, method.terms), _labels(near, method)[index]
    for cluster in range(method.clusters):
        mine = inside & (label == cluster)
        enough = mine.sum(axis=1) > 2 * coefficient_count(near.rows.shape[1], method.terms)
        if enough.any():
            counted = np.where(mine | ~enough[:, None], weights, 0.0)
            yield cluster, enough, ridge(near.rows, near.theta, index, observed, counted, method.terms)


def effective_draws(near: Neighbourhood, observed: Array, method: Method, found: AdjustedDraws) -> float:
    """How many independent draws of the posterior would give its mean as exactly as these draws do.

    What a draw adds to the mean is its influence times its distance from the mean of its cluster, and what it adds to
    the share of that cluster.
    """
    mean = found.weights @ found.theta
    added = found.weights[:, None] * (found.theta - mean)
    label = _labels(near, method)[found.source]
    for cluster in range(method.clusters if method.terms != "none" else 0):
        some = np.flatnonzero(label == cluster)
        if len(some) <= 2 * coefficient_count(near.rows.shape[1], method.terms):
            continue
        weights, theta = found.weights[some], found.theta[some]
        source, share = found.source[some], weights / weights.sum()
        middle = share @ theta
        fit = ridge(near.rows, near.theta, source[None], observed[None], weights[None], method.terms)
        there = fit.influence(near.rows[source], share)[0]
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


def kernel_width(draws: Any, dim: int) -> Any:
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
        around, mass, place = _centres(theta, weights, pick)
        count = int(min(len(around), max(2 * dim + 2, math.sqrt(len(around)))))
        drawn = theta[pick] + LOCAL_WIDTH * _shaped(around, mass, place, count, noise)
    else:
        (mean, whole), width = moments(theta, weights), min(0.5, kernel_width(effective(weights), dim))
        root = np.linalg.cholesky(whole + 1e-12 * np.diag(np.diag(whole)) + 1e-300 * np.eye(dim))
        drawn = mean + math.sqrt(1.0 - width**2) * (theta[pick] - mean) + width * noise @ root.T
    order = rng.permutation(n)
    return drawn[order], pick[order]


def _centres(theta: Array, weights: Array, pick: Array) -> tuple[Array, Array, Array]:
    """Draws whose neighbours give the shapes of the noise, with their weights, and which of them each pick (n,) has.

    Each pick has its own if there are few, otherwise one nearby: the neighbours of every one of n draws in many
    dimensions would take n^2 operations.
    """
    if len(theta) <= MOST_CENTRES:
        return theta, weights, pick
    some, times = np.unique(systematic(weights, MOST_CENTRES, 0.5), return_counts=True)
    whole, floor = covariance_of_all(theta[some], times)
    return theta[some], times, neighbours(theta[some], theta[pick], whole + floor, 1, SLACK)[:, 0]


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
