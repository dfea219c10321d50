"""Regression adjustment, and the held-out trial that decides whether and how to adjust.

Simulations (theta_i, s_i) with weights w_i stand for the prior predictive distribution near the observed summary s_0.
An estimate of the posterior takes the nearest of them and moves each along a regression of theta on s,

    theta_i* = theta_i - B (s_i - s_0),

fitted by weighted ridge regression with Epanechnikov weights of the distance over a wide region. It is done in
coordinates without bounds (logarithms and logits from the prior's support), so that no draw leaves the prior. Where the
posterior is in pieces, each piece has its own regression; and not to move anything is one of the ways, too.

Which way is best is not assumed but tried out: simulations near the data are taken as data in turn, left out, and
the estimate is scored by the log density that it gives to the parameters which are known to have made them.

Reference: Beaumont, Zhang and Balding (2002); Blum (2010) for ridge and transforms; West (1993) for smoothing that
keeps the variance; Gneiting and Raftery (2007) for scores.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from onedraw.arguments import seed_or_fresh, whole_number
from onedraw.engines.arrays import Array
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.engines.threads import one_blas_thread
from onedraw.model.prior import Prior
from onedraw.proposals.weights import effective, systematic
from onedraw.results.posterior import Posterior

PROBES = 64
"""Prior draws from which the prior's bounds are looked for."""
FARTHEST = 1e6
"""How far out, in spans of prior draws, a density that is still positive means that there is no bound."""
INSIDE = 1e-12
"""The share of a bounded range that is kept free at each end."""
RIDGE, RIDGE_OF_FEW = 1e-3, 0.05
"""Penalty on coefficients of standardised summaries; the second where there are few draws for each of them."""
MOST_PRODUCTS = 70
"""Coefficients beyond which a regression on squares and products is not tried."""
WIDE = 0.02
"""Share of a broad normal in a score, which bounds the damage of a single pseudo-observation."""
LOCAL = 0.3
"""Width of the local smoothing kernel in standard deviations of a draw's neighbours."""
LOOKS = ((16, 16), (48, 8), (192, 8))
"""Pseudo-observations at which ways are tried, and how many ways, the best so far, are then tried at more of them."""
BRIEF_LOOKS = ((8, 6), (32, 6))
"""The same while a run goes on."""
FEWEST_LOOKS = 6
"""Pseudo-observations below which nothing is tried."""
GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
"""Its multiples, taken modulo 1, fill the unit interval evenly from the first few on."""
COUNTS = (60, 150, 400, 1000, 2500)
"""Numbers of nearest simulations that are tried, besides all."""
MOST_SCORED = 1500
"""Draws of an estimate from which its score is computed."""
PIECES = (2, 4)
FORMS = ("none", "linear", "products")
FEWEST = 20
"""Draws that an estimate needs at the least."""


class Support(NamedTuple):
    """The range of each parameter, infinite where it has no bound, and coordinates in which there are none.

    >>> support = Support(np.array([0.0]), np.array([1.0]))
    >>> support.free(np.array([[0.5], [0.75]])).round(4).tolist()
    [[0.0], [1.0986]]
    """

    low: Array
    high: Array

    def free(self, theta: Array) -> Array:
        """Theta (n, dim) in coordinates without bounds: logits, logarithms, or as it is."""
        out = np.array(theta, dtype=float)
        for j, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            if np.isfinite(low) and np.isfinite(high):
                share = np.clip((out[:, j] - low) / (high - low), INSIDE, 1.0 - INSIDE)
                out[:, j] = np.log(share) - np.log1p(-share)
            elif np.isfinite(low):
                out[:, j] = np.log(np.maximum(out[:, j] - low, 1e-300))
            elif np.isfinite(high):
                out[:, j] = -np.log(np.maximum(high - out[:, j], 1e-300))
        return out

    def bounded(self, free: Array) -> Array:
        """The way back."""
        out = np.array(free, dtype=float)
        for j, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            if np.isfinite(low) and np.isfinite(high):
                out[:, j] = low + (high - low) / (1.0 + np.exp(-np.clip(out[:, j], -700.0, 700.0)))
            elif np.isfinite(low):
                out[:, j] = low + np.exp(np.minimum(out[:, j], 700.0))
            elif np.isfinite(high):
                out[:, j] = high - np.exp(np.minimum(-out[:, j], 700.0))
        return out

    def log_jacobian(self, free: Array) -> Array:
        """log |d theta / d free| at each row: what a density gains in these coordinates."""
        total = np.zeros(len(free))
        for j, (low, high) in enumerate(zip(self.low, self.high, strict=True)):
            if np.isfinite(low) and np.isfinite(high):
                total += math.log(high - low) - np.logaddexp(0.0, free[:, j]) - np.logaddexp(0.0, -free[:, j])
            elif np.isfinite(low):
                total += free[:, j]
            elif np.isfinite(high):
                total -= free[:, j]
        return total


def support_of(prior: Prior) -> Support:
    """The bounds of each parameter, found from where the prior's density ends.

    Columns of whole numbers are left as they are. Where the range of one parameter depends on the others, the bounds
    are the widest that were found.

    >>> from scipy import stats
    >>> found = support_of(Prior(a=stats.norm(0, 1), b=stats.uniform(-1, 2), c=stats.gamma(2.0)))
    >>> found.low.round(9).tolist(), found.high.round(9).tolist()
    ([-inf, -1.0, 0.0], [inf, 1.0, inf])
    """
    theta = prior.sample(Rng(0, Phase.PILOT).bulk(Purpose.PRIOR), PROBES)
    low, high = np.full(prior.dim, -np.inf), np.full(prior.dim, np.inf)
    for j in np.flatnonzero(~prior.discrete).tolist():
        span = float(np.ptp(theta[:, j])) or 1.0
        low[j] = -_last_inside(prior, theta, j, span, -1.0)
        high[j] = _last_inside(prior, theta, j, span, 1.0)
    return Support(low, high)


def _last_inside(prior: Prior, theta: Array, column: int, span: float, sign: float) -> float:
    """The largest value of sign * theta_column with a positive density; inf where there seems to be no end."""
    with np.errstate(all="ignore"):
        moved = np.array(theta, order="F")
        moved[:, column] = theta[:, column] + sign * FARTHEST * span
        ends = np.isneginf(prior.logpdf(moved))
        if not ends.all():
            return math.inf
        inside, outside = theta[:, column].copy(), moved[:, column].copy()
        for _ in range(100):
            middle = 0.5 * (inside + outside)
            moved[:, column] = middle
            out = np.isneginf(prior.logpdf(moved))
            outside, inside = np.where(out, middle, outside), np.where(out, inside, middle)
    return float((sign * inside).max())


class Near(NamedTuple):
    """Simulations in one summary's terms: what an estimate is made of."""

    free: Array
    """(n, dim) parameters in free coordinates."""
    rows: Array
    """(n, s) summaries, scaled so that Euclidean distance counts; NaN-free."""
    log_weight: Array
    """(n,) log of prior over proposal density."""
    movable: Array
    """(dim,) which columns may be moved and smoothed: not those of whole numbers."""
    labels: tuple[Array, ...] = ()
    """For each number of PIECES, the piece of each simulation."""
    own: Callable[[Array, Array], Array] | None = None
    """A user's distance (rows, observed) in place of the Euclidean one."""

    def scored(self, free: Array, places: Array) -> Array:
        """Parameters (m, dim) of the simulations at `places` as they are scored: whole numbers anywhere in their cells.

        So a density stands for a probability, and the rank of a whole number among equal ones is left to chance.
        """
        if self.movable.all():
            return free
        return np.where(self.movable, free, free + cells_of(*self.free.shape)[places])

    def distances(self, observed: Array) -> Array:
        """Distances (n,) of the rows from an observed one."""
        return distances_from(self.rows, observed) if self.own is None else self.own(self.rows, observed)


@lru_cache(maxsize=1)
def cells_of(n: int, dim: int) -> Array:
    """Where in its cell, of width 1, each number (n, dim) lies, the same in every way that is tried."""
    cells = Rng(0, Phase.RESAMPLE).bulk(Purpose.ACCEPT).random((n, dim)) - 0.5
    cells.flags.writeable = False
    return cells


class Way(NamedTuple):
    """One way to estimate the posterior."""

    summary: int
    """Which of the given `Near`."""
    number: int
    """How many of the nearest simulations count."""
    form: str
    """"none", "linear" or "products"."""
    pieces: int = 1
    local: bool = False
    """Whether draws are smoothed by the covariance of their neighbours or by that of all."""

    def words(self) -> str:
        """In plain words."""
        how = {"none": "not adjusted", "linear": "adjusted by linear regression",
               "products": "adjusted by regression with squares and products"}[self.form]  # fmt: skip
        return how + (f" in {self.pieces} pieces" if self.pieces > 1 else "")


class Estimate(NamedTuple):
    """Weighted draws of the posterior at one observed summary."""

    free: Array
    weights: Array
    places: Array
    """Which simulations they are."""
    eps: float


def distances_from(rows: Array, observed: Array) -> Array:
    """Euclidean distances (n,) of rows (n, s) from a row (s,)."""
    difference = rows - observed
    return np.sqrt(np.einsum("ij,ij->i", difference, difference))


def regress(free: Array, rows: Array, observed: Array, weights: Array, products: bool = False) -> Array:
    """Draws (n, dim) moved along their weighted ridge regression on rows (n, s) to the observed row.

    Residuals are stretched by the degrees of freedom that the regression used, so that the variance is kept.

    >>> s = np.linspace(-1, 1, 50)[:, None]
    >>> regress(3.0 * s, s, np.array([0.5]), np.full(50, 0.02)).round(1)[[0, -1]].tolist()
    [[1.5], [1.5]]
    """
    share = weights / weights.sum()
    worth = effective(share)
    design, penalty = _design(rows, observed, share, worth, products)
    weighted = design * share[:, None]
    gram = weighted.T @ design
    coefficients = np.linalg.solve(gram + np.diag(penalty), weighted.T @ free)
    used = float(np.trace(np.linalg.solve(gram + np.diag(penalty), gram))) / worth
    moved: Array = coefficients[0] + (free - design @ coefficients) / math.sqrt(1.0 - min(used, 0.8))
    return moved


def _design(rows: Array, observed: Array, share: Array, worth: float, products: bool) -> tuple[Array, Array]:
    """Columns of a regression on rows (n, s), the intercept at the observed row first, and the penalty on each."""
    away = rows - observed
    spread = np.sqrt(share @ away**2)
    scaled = away / np.where(spread > 0, spread, 1.0)
    design = np.column_stack([np.ones(len(rows)), with_products(scaled) if products else scaled])
    penalty = np.full(design.shape[1], RIDGE + (RIDGE_OF_FEW if worth < 3 * design.shape[1] else 0.0))
    penalty[0] = 1e-10
    return design, penalty


def pull(rows: Array, observed: Array, weights: Array, products: bool = False) -> Array:
    """What a change of each draw (n,) would add to the mean of the moved draws: their weights where none is moved.

    Data at the edge of the rows lean on few of them, which the weights alone do not show.

    >>> s = np.linspace(-1, 1, 50)[:, None]
    >>> middle, edge = (effective(pull(s, np.array([at]), np.full(50, 0.02))) for at in (0.0, 1.0))
    >>> round(middle), round(edge)
    (50, 13)
    """
    share = weights / weights.sum()
    design, penalty = _design(rows, observed, share, effective(share), products)
    weighted = design * share[:, None]
    intercept = np.zeros(len(penalty))
    intercept[0] = 1.0
    pulled: Array = weighted @ np.linalg.solve(weighted.T @ design + np.diag(penalty), intercept)
    return pulled


def with_products(columns: Array) -> Array:
    """Columns (n, s) followed by all their squares and products.

    >>> with_products(np.array([[2.0, 3.0]])).tolist()
    [[2.0, 3.0, 4.0, 6.0, 9.0]]
    """
    i, j = np.triu_indices(columns.shape[1])
    return np.concatenate([columns, columns[:, i] * columns[:, j]], axis=1)


def coefficients(width: int, form: str) -> int:
    """How many coefficients a regression on so many summaries has."""
    return 1 + width + (width * (width + 1) // 2 if form == "products" else 0)


def estimate(near: Near, observed: Array, way: Way, left_out: int | None = None) -> Estimate:
    """The draws and weights that one way gives at an observed row, without the simulation left out."""
    distance = near.distances(observed)
    if left_out is not None:
        distance[left_out] = np.inf
    return _estimate(near, observed, way, distance, nearest(distance, way.number + 1))


def nearest(distance: Array, count: int) -> Array:
    """Indices of the `count` least distances, the least first, and of all that are as near as the last of them.

    Fewer where there are fewer finite ones.

    >>> nearest(np.array([1.0, 0.0, 3.0, 1.0, np.inf]), 2).tolist()
    [1, 0, 3]
    """
    count = min(count, int(np.isfinite(distance).sum()))
    if 0 < count < len(distance):
        index = np.flatnonzero(distance <= np.partition(distance, count - 1)[count - 1])
    else:
        index = np.arange(count)
    return index[np.argsort(distance[index], kind="stable")]


def _estimate(near: Near, observed: Array, way: Way, distance: Array, order: Array) -> Estimate:
    # Counts are often equally far, and then nothing tells the last that is counted from the next.
    count = min(way.number, max(len(order) - 1, 1))
    last = distance[order[count - 1]]
    count = int(np.searchsorted(distance[order], last, side="right"))
    # The tolerance is the distance of the first that is not counted.
    if count < len(order):
        eps = float(distance[order[count]])
    else:
        eps = float(np.min(distance, where=(distance > last) & np.isfinite(distance), initial=np.inf))
        eps = eps if math.isfinite(eps) else float(last)
    index = order[:count]
    log_weight = near.log_weight[index]
    weights = np.exp(log_weight - log_weight.max())
    free = near.free[index]
    if way.form != "none":
        weights = weights * np.maximum(1.0 - (distance[index] / eps) ** 2 if eps > 0 else 1.0, 1e-9)
        moved = free.copy()
        for some in _regressions(near, way, index):
            moved[some] = regress(free[some], near.rows[index[some]], observed, weights[some], way.form == "products")
        free = np.where(near.movable, moved, free)
    return Estimate(free, weights / weights.sum(), index, eps)


def _regressions(near: Near, way: Way, index: Array) -> Iterator[Array]:
    """Which of the simulations at `index` share a regression, for each piece that has enough of them."""
    label = near.labels[PIECES.index(way.pieces)][index] if way.pieces > 1 else np.zeros(len(index), dtype=np.int64)
    for piece in range(way.pieces):
        some = np.flatnonzero(label == piece)
        if some.size > 2 * coefficients(near.rows.shape[1], way.form):
            yield some


def worth(near: Near, observed: Array, way: Way, found: Estimate) -> float:
    """How many independent draws of the posterior would give its mean as exactly as an estimate does.

    What a draw adds to the mean is its pull times its distance from the middle of its piece, and what it adds to the
    share of that piece.
    """
    mean = found.weights @ found.free
    added = found.weights[:, None] * (found.free - mean)
    for some in _regressions(near, way, found.places) if way.form != "none" else ():
        weights, free = found.weights[some], found.free[some]
        middle = weights @ free / weights.sum()
        there = pull(near.rows[found.places[some]], observed, weights, way.form == "products")
        added[some] = weights[:, None] * (middle - mean) + weights.sum() * there[:, None] * (free - middle)
    variance = found.weights @ np.square(found.free - mean)
    some = np.flatnonzero(variance > 0)
    if some.size == 0:
        return effective(found.weights)
    return float(1.0 / np.mean(np.square(added).sum(axis=0)[some] / variance[some]))


def pieces(free: Array, weights: Array, number: int, points: Array) -> Array:
    """The piece of each point (m, dim), by k-means of the weighted draws (n, dim) in standard deviations."""
    share = weights / weights.sum()
    mean = share @ free
    spread = np.sqrt(share @ (free - mean) ** 2)
    scale = np.where(spread > 0, spread, 1.0)
    scaled, there = (free - mean) / scale, (points - mean) / scale
    centres = scaled[[int(np.argmax(share))]]
    for _ in range(number - 1):
        away = np.min([np.square(scaled - one).sum(axis=1) for one in centres], axis=0)
        centres = np.concatenate([centres, scaled[[int(np.argmax(share * away))]]])
    for _ in range(20):
        label = _closest(scaled, centres)
        mass = np.bincount(label, share, number)
        sums = np.stack([np.bincount(label, share * column, number) for column in scaled.T], axis=1)
        centres = np.where(mass[:, None] > 0, sums / np.maximum(mass, 1e-300)[:, None], centres)
    return _closest(there, centres)


def _closest(points: Array, centres: Array) -> Array:
    return np.argmin([np.square(points - one).sum(axis=1) for one in centres], axis=0)


def log_density_local(free: Array, weights: Array, point: Array) -> float:
    """Log density that weighted draws give to a point, by a normal kernel shaped like its neighbours."""
    dim, worth = free.shape[1], effective(weights)
    away = free - point
    square = np.einsum("ij,ij->i", away, away)
    count = int(min(len(free), max(2 * dim + 2, worth**0.6) * len(free) / worth))
    close = np.argpartition(square, count - 1)[:count] if count < len(free) else np.arange(len(free))
    mass = float(weights[close].sum())
    if mass <= 0.0:
        return log_density_global(free, weights, point, wide_only=True)
    share = weights[close] / mass
    covariance = _covariance(away[close], share)
    covariance = covariance + (WIDE * float(np.trace(covariance)) / dim + 1e-9) * np.eye(dim)
    root = np.linalg.cholesky(covariance)
    width = _rule_of_thumb(max(effective(share), 2.0), dim)
    inner = np.square(np.linalg.solve(root, away[close].T)).sum(axis=0) / width**2
    log_local = math.log(mass) + math.log(max(float(share @ np.exp(-0.5 * inner)), 1e-300))
    log_local -= dim * math.log(width) + float(np.log(np.diag(root)).sum())
    return float(np.logaddexp(math.log1p(-WIDE) + log_local, log_density_global(free, weights, point, wide_only=True)))


def log_density_global(free: Array, weights: Array, point: Array, wide_only: bool = False) -> float:
    """Log density that weighted draws give to a point when smoothed as a whole with their variance kept.

    `wide_only` gives the share of the broad normal that every score contains.
    """
    dim = free.shape[1]
    centre = weights @ free - point
    root = np.linalg.cholesky(_covariance(free, weights) + 1e-9 * np.eye(dim))
    log_root = float(np.log(np.diag(root)).sum())
    wide = math.log(WIDE) - 0.5 * float(np.square(np.linalg.solve(2 * root, centre)).sum()) - log_root
    wide -= dim * math.log(2.0)
    if wide_only:
        return wide
    width = min(0.5, _rule_of_thumb(effective(weights), dim))
    shrunk = centre + math.sqrt(1 - width**2) * (free - point - centre)
    inner = np.square(np.linalg.solve(root, shrunk.T)).sum(axis=0) / width**2
    log_sum = math.log(max(float(weights @ np.exp(-0.5 * inner)), 1e-300)) - dim * math.log(width) - log_root
    return float(np.logaddexp(math.log1p(-WIDE) + log_sum, wide))


def _covariance(free: Array, share: Array) -> Array:
    away = free - share @ free
    return (away * share[:, None]).T @ away


def _rule_of_thumb(worth: float, dim: int) -> float:
    return (4.0 / ((dim + 2.0) * worth)) ** (1.0 / (dim + 4.0))


def smooth(rng: np.random.Generator, found: Estimate, n: int, local: bool, movable: Array) -> tuple[Array, Array]:
    """n draws of equal weight from a smoothed estimate, and the simulation each of them comes from.

    Smoothing as a whole shrinks draws towards their mean by what the noise adds, so that mean and covariance stay.
    Local smoothing adds noise with the shape of a draw's neighbours.
    """
    dim, free, weights = found.free.shape[1], found.free, found.weights
    pick = systematic(weights, n, rng.random())
    noise = rng.standard_normal((n, dim))
    if local:
        near = int(min(len(free), max(2 * dim + 2, math.sqrt(len(free)))))
        root = local_roots(free, weights, free[np.unique(pick)], near)
        place = np.searchsorted(np.unique(pick), pick)
        drawn = free[pick] + LOCAL * np.einsum("nij,nj->ni", root[place], noise)
    else:
        mean, width = weights @ free, min(0.5, _rule_of_thumb(effective(weights), dim))
        covariance = _covariance(free, weights)
        root = np.linalg.cholesky(covariance + 1e-12 * np.diag(np.diag(covariance)) + 1e-300 * np.eye(dim))
        drawn = mean + math.sqrt(1.0 - width**2) * (free[pick] - mean) + width * noise @ root.T
    order = rng.permutation(n)
    return np.where(movable, drawn, free[pick])[order], found.places[pick[order]]


def local_roots(free: Array, weights: Array, centres: Array, near: int, towards_all: float = 0.0) -> Array:
    """Lower roots (m, dim, dim) of the covariance of each centre's nearest draws, mixed with that of all draws."""
    from scipy.spatial import cKDTree

    dim = free.shape[1]
    whole = _covariance(free, weights / weights.sum())
    floor = np.diag(1e-6 * np.diag(whole) + 1e-300)
    whiten = np.linalg.inv(np.linalg.cholesky(whole + floor))
    _, close = cKDTree(free @ whiten.T).query(centres @ whiten.T, k=min(near, len(free)))
    close = close.reshape(len(centres), -1)
    away = free[close] - centres[:, None, :]
    share = weights[close] / np.maximum(weights[close].sum(axis=1), 1e-300)[:, None]
    local = np.einsum("mk,mki,mkj->mij", share, away, away)
    return np.linalg.cholesky((1 - towards_all) * local + towards_all * whole + floor).reshape(-1, dim, dim)


class Decision(NamedTuple):
    """Which way was chosen, and how the ways did where the answer is known."""

    way: Way
    tried: int
    """Pseudo-observations at which the chosen way was scored."""
    gain: float
    """Mean log score of the best adjusted way over the best without adjustment; NaN where only one kind was tried."""
    gain_se: float
    cover: float
    """Share of the known parameters inside the chosen way's central 90 % intervals."""

    def words(self) -> str:
        """The decision in plain words."""
        if math.isnan(self.gain):
            return f"{self.way.words()}: too few simulations to try other ways"
        return (
            f"{self.way.words()}: at {self.tried} held-out simulations near the data, adjusting changes the log score "
            f"of their known parameters by {self.gain:+.2f} ± {self.gain_se:.2f}; their 90 % intervals cover "
            f"{100 * self.cover:.0f} %"
        )


def ways_for(summary: int, near: Near, most: int, thorough: bool) -> list[Way]:
    """The ways worth a trial with these simulations."""
    n, width, dim = len(near.free), near.rows.shape[1], near.free.shape[1]
    counts = [count for count in COUNTS if FEWEST + 2 * dim <= count < 0.9 * n]
    counts = [count for count in (*counts[:: 1 if thorough or len(counts) < 4 else 2], n - 2) if count <= most]
    found = []
    for count in counts:
        for form in FORMS:
            needed = coefficients(width, form)
            factor = {"none": 0, "linear": 2, "products": 3}[form]
            if count < factor * needed or (form == "products" and (needed > MOST_PRODUCTS or not thorough)):
                continue
            found.append(Way(summary, count, form))
            if form == "linear" and near.labels:
                found += [
                    Way(summary, count, form, number)
                    for number in (PIECES if thorough else PIECES[:1])
                    if count > 3 * needed * number
                ]
    return [way._replace(local=local) for way in found for local in (False, True)]


def decide(
    nears: Sequence[Near],
    held_out: Array,
    thorough: bool = True,
    as_it_is: bool = False,
) -> Decision:
    """Choose a way by its scores at held-out simulations near the data.

    Parameters
    ----------
    nears
        The same simulations in terms of one or more summaries.
    held_out
        Indices of the simulations that are taken as data in turn.
    thorough
        Whether all ways are tried, at many held-out simulations.
    as_it_is
        Whether not to adjust means to keep all simulations, and not the nearest alone.
    """
    ways = [way for k, near in enumerate(nears) for way in ways_for(k, near, len(near.free), thorough)]
    if as_it_is:
        ways = [way for way in ways if way.form != "none" or way.number == len(nears[0].free) - 2]
    if not ways or len(held_out) < FEWEST_LOOKS:
        count = min(len(nears[0].free) - 2, max(FEWEST, len(nears[0].free) // 5))
        return Decision(Way(0, max(count, 1), "none"), 0, math.nan, math.nan, math.nan)
    scale = _scale(nears[0], held_out)
    # Any first part of this order is spread over all of them.
    order = held_out[np.argsort(np.modf(np.arange(len(held_out)) * GOLDEN)[0], kind="stable")]
    scores, cover = np.empty((2, len(ways), 0))
    for upto, number in LOOKS if thorough else BRIEF_LOOKS:
        more = _scores(nears, ways, order[scores.shape[1] : upto], scale)
        scores, cover = np.concatenate([scores, more[0]], axis=1), np.concatenate([cover, more[1]], axis=1)
        mean = scores.mean(axis=1)
        keep = set(np.argsort(mean, kind="stable")[::-1][:number].tolist())
        # The best of each kind goes on, so that the gain from adjusting can be told.
        for plain in (True, False):
            kind = [k for k, way in enumerate(ways) if (way.form == "none") is plain]
            keep |= {max(kind, key=lambda k: mean[k])} if kind else set()
        some = sorted(keep)
        ways, scores, cover, mean = [ways[k] for k in some], scores[some], cover[some], mean[some]
    best = int(mean.argmax())
    chosen = min(
        (k for k in range(len(ways)) if _not_worse(scores[k] - scores[best])),
        key=lambda k: (_preference(ways[k]), -mean[k]),
    )
    plain_best = _best(scores, [way.form == "none" for way in ways])
    moved_best = _best(scores, [way.form != "none" for way in ways])
    gain = np.full(2, np.nan) if plain_best is None or moved_best is None else moved_best - plain_best
    error = float(gain.std(ddof=1)) / math.sqrt(len(gain))
    return Decision(ways[chosen], scores.shape[1], float(gain.mean()), error, float(cover[chosen].mean()))


def _preference(way: Way) -> tuple[int, int, int, int, int]:
    """What is preferred where scores do not tell ways apart: what leans on little, and then what has many draws.

    One regression rather than several, few coefficients, summaries as they were given, and a regression rather than
    none: simulations near the data are nearer to the middle of all than the data are, so that scores show too little
    of the bias that a regression takes away.
    """
    return way.pieces, int(way.form == "products"), way.summary, int(way.form == "none"), -way.number


def _not_worse(difference: Array) -> bool:
    """Whether paired scores fall behind by less than half a standard error."""
    return bool(difference.mean() >= -0.5 * difference.std() / math.sqrt(len(difference)))


def _best(scores: Array, kind: list[bool]) -> Array | None:
    if not any(kind):
        return None
    some = scores[np.array(kind)]
    return some[int(some.mean(axis=1).argmax())]


def _scale(near: Near, held_out: Array) -> Array:
    """A map (dim, dim) to coordinates in which the held-out parameters have unit covariance."""
    dim, known = near.free.shape[1], near.scored(near.free[held_out], held_out)
    covariance = np.atleast_2d(np.cov(known, rowvar=False)) if len(held_out) > dim + 1 else np.eye(dim)
    covariance = covariance + 1e-6 * np.diag(np.diag(covariance)) + 1e-12 * np.eye(dim)
    return np.linalg.inv(np.linalg.cholesky(covariance)).T


def _scores(nears: Sequence[Near], ways: Sequence[Way], held_out: Array, scale: Array) -> tuple[Array, Array]:
    """Log scores (ways, held out), and the share of known parameters inside 90 % intervals (ways, held out)."""
    scores, cover = np.empty((2, len(ways), len(held_out)))
    most = max(way.number for way in ways)
    for place, j in enumerate(held_out.tolist()):
        sorted_by: dict[int, tuple[Array, Array]] = {}
        last: tuple[Way, Estimate] | None = None
        for k, way in enumerate(ways):
            near = nears[way.summary]
            if way.summary not in sorted_by:
                distance = near.distances(near.rows[j])
                # The known answer must not be among the draws that are judged by it.
                distance[j] = np.inf
                sorted_by[way.summary] = distance, nearest(distance, most + 1)
            same = way._replace(local=False)
            if last is None or last[0] != same:
                last = same, _estimate(near, near.rows[j], way, *sorted_by[way.summary])
            found = last[1]
            density = log_density_local if way.local else log_density_global
            thin = slice(None, None, -(-len(found.free) // MOST_SCORED))
            weights = found.weights[thin] / found.weights[thin].sum()
            free, known = near.scored(found.free[thin], found.places[thin]), near.scored(near.free[j], j)
            scores[k, place] = density(free @ scale, weights, known @ scale)
            below = weights @ (free < known)
            cover[k, place] = float(np.mean((below > 0.05) & (below < 0.95)))
    return scores, cover


def ranks(near: Near, way: Way, held_out: Array) -> Array:
    """Where the known parameters lie among the draws that a way gives at each held-out simulation: (m, dim) in [0, 1].

    They are uniform where the draws are those of the posterior. Reference: Prangle, Blum, Popovic and Sisson (2014).
    """
    found = np.empty((len(held_out), near.free.shape[1]))
    for k, j in enumerate(held_out.tolist()):
        there = estimate(near, near.rows[j], way, left_out=j)
        found[k] = there.weights @ (near.scored(there.free, there.places) < near.scored(near.free[j], j))
    return found


def with_pieces(near: Near, observed: Array) -> Near:
    """The same simulations with their pieces, found from those nearest to the observed row."""
    distance = near.distances(observed)
    close = np.argsort(distance, kind="stable")[: max(100, min(len(distance) // 10, 500))]
    weights = np.exp(near.log_weight[close] - near.log_weight[close].max())
    return near._replace(labels=tuple(pieces(near.free[close], weights, number, near.free) for number in PIECES))


def posterior_draws(
    rng: np.random.Generator, near: Near, found: Estimate, way: Way, n: int, prior: Prior, support: Support
) -> tuple[Array, Array, float]:
    """n draws (n, dim) of a smoothed estimate inside the prior, where they come from, and the share left as it was.

    Where a constraint is not a box a moved draw may leave it. The draw that it comes from has not, and stands in.
    """
    drawn, origin = smooth(rng, found, n, way.local, near.movable)
    theta = np.asfortranarray(support.bounded(drawn))
    outside = prior.logpdf(theta) == -np.inf
    theta[outside] = support.bounded(near.free[origin[outside]])
    return theta, origin, float(outside.mean())


def adjusted(post: Posterior, draws: int | None, seed: int | None) -> Posterior:
    """What `Posterior.adjust` gives."""
    model, bank = post.model, post.bank
    if bank is None or bank.rows is None:
        raise ValueError(
            "adjust needs the summaries of the simulations, which this run did not keep: run "
            "od.rejection(..., keep='summaries') or od.importance(..., keep_rows=True); od.infer adjusts by itself"
        )
    if model is None:
        raise ValueError("adjust needs the model: this run was read from a file, which holds no functions")
    if bank.rows.shape[1] > 1:
        raise ValueError(f"adjust needs one pseudo-sample a draw, this run had {bank.rows.shape[1]}: run with one")
    number = math.prod(post.shape) if draws is None else whole_number("draws", draws, "the number of draws")
    seed = seed_or_fresh(post.seed if seed is None else seed)
    fine = np.isfinite(bank.distances[:, 0])
    if np.count_nonzero(fine) < FEWEST:
        note = f"not adjusted: {np.count_nonzero(fine)} simulations are too few to learn a regression from"
        return replace(post, notes=(*post.notes, note))
    support = support_of(model.prior)
    rows = bank.rows[fine, 0, :]
    spread = rows.std(axis=0)
    scale = np.where(spread > 0, spread, 1.0)
    observed = model.observed_row / scale
    near = Near(support.free(bank.theta[fine]), rows / scale, bank.log_weight[fine], ~np.asarray(model.prior.discrete))
    near = with_pieces(near, observed)
    rng = Rng(seed, Phase.RESAMPLE, 1).bulk(Purpose.MOVE)
    close = nearest(near.distances(observed), max(len(near.free) // 5, FEWEST))
    weights = np.exp(near.log_weight[close] - near.log_weight[close].max())
    with one_blas_thread():
        decision = decide([near], np.unique(close[systematic(weights, LOOKS[-1][0], rng.random())]), as_it_is=True)
        if decision.way.form == "none":
            return replace(post, notes=(*post.notes, decision.words()))
        found = estimate(near, observed, decision.way)
        theta, _, _ = posterior_draws(rng, near, found, decision.way, number, model.prior, support)
    return replace(
        post,
        draws={name: column[None, :] for name, column in model.prior.columns(theta).items()},
        weights=None,
        run_weights=None,
        groups=None,
        distances=None,
        kernel=None,
        bank=None,
        independent=True,
        effective=worth(near, observed, decision.way, found),
        settings={**post.settings, "adjustment": decision.way.words(), "nearest": len(found.places)},
        notes=(*post.notes, decision.words()),
    )
