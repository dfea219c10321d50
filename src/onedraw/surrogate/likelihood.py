"""A surrogate for the likelihood: the law of the summaries given the parameters, one summary after another.

    p(s | theta) = prod_k p(s_k | s_<k, theta),

each factor with a mean and a log scale that are linear in features of the parameters,

    s_k = phi(theta) b_k + sum_{l<k} s_l (psi(theta) c_kl) + exp(chi(theta) g_k) e_k.

In a series the mean may also depend on curves of the earlier summaries, and the log scale on their sizes.

With normal e_k the summaries are jointly normal given the parameters, with a mean and a covariance that depend on them.
Means are fitted by penalised weighted least squares, log scales by Fisher scoring, in turn. The fit does not depend on
the law of the parameters, so that simulations of all stages count without weights.

Reference: Papamakarios, Sterratt and Murray (2019) for the sequential use of a learnt likelihood; Pourahmadi (1999) for
the autoregressive form of a covariance.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.linalg.blas import dtrsm
from scipy.linalg.lapack import dpotrf, dpotrs

from onedraw.engines.arrays import Array
from onedraw.engines.clock import look
from onedraw.surrogate.cells import LEAST_INFORMATION, Cells, Response, Slopes, log_mass, only_two, slopes
from onedraw.surrogate.features import Sets, columns_of

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
ITERATIONS, STEPS = 3, 5
"""Fits of the mean, and steps of the log scale before each."""
LARGEST_STEP = 1.0
"""Of a log scale."""
LARGEST_SQUARE = 10.0
"""Squares of standardised residuals beyond this count as this: a scale that varies does not follow outliers."""
LEAST_SQUARE, MEAN_LOG = 1e-12, math.log(2.0) + np.euler_gamma
"""Added to squares before the log, in their mean, and the negative mean of the log of a squared normal."""
LEAST_LOG_SCALE = math.log(1e-5)
"""Of residuals of standardised summaries, and so of a summary that follows from others: with less, sums of products
would have no correct digits."""
LARGEST_LEVERAGE = 0.95
"""Of a simulation in its own fit, so that its residual without it stays finite."""
LEAST_GAIN = 1e-3
"""In mean log score: less is no reason to change anything."""
ROOM = 4.0
"""Range of log scales around their mean, in their standard deviations."""
BROAD, BREADTH = 0.01, 5.0
"""Share and width of the wide law that bounds a score."""
CELL_ITERATIONS, LEAST_GAIN_OF_CELLS, LARGEST_STEP_IN_CELLS = 12, 1e-4, 4.0
"""Most steps of the fit to the cells of a whole number, the gain in mean log probability below which no other follows,
and the largest step of a log scale."""
NEWTON = (1.0, 2), (0.5, 2), (0.0, 6)
"""How much of the likelihood's own curvature a step goes by, and how often it is halved before the next is tried."""

ALL = 10**6
"""More summaries than there are."""
FARTHEST = 3.0
"""Standard deviations beyond which curves of a summary stay as they are."""
SIZES = ((0.3, 1.81), (1.0, 0.53))
"""Roots of what is added to squares of a summary before the log, and the means of these logs if it is normal."""


class Terms(NamedTuple):
    """Which sets of features a factor has, by name (`Features.sets`), and the penalty on its coefficients."""

    mean: str = "1"
    earlier: str = "0"
    """What multiplies the earlier summaries; "" leaves them out."""
    scale: str = "0"
    ridge: float = 1.0
    lags: int = ALL
    """How many of the earlier summaries count, the latest; a time series depends on few."""
    curves: str = ""
    """What multiplies curves of the earlier summaries (`curved`); "" leaves them out."""
    volatility: str = ""
    """What multiplies sizes of the earlier summaries (`sizes`) in the log scale; "" leaves them out."""
    cells: bool = False
    """Whether the law is the probability of a whole number's cell, and not a density."""

    def names(self) -> tuple[str, ...]:
        """Of all the sets that it has."""
        return tuple(filter(None, (self.mean, self.earlier, self.scale, self.curves, self.volatility)))

    def begin(self, k: int) -> int:
        """The first of the earlier summaries that counts for summary k; k if none does."""
        return max(0, k - self.lags) if self.earlier or self.volatility else k


class Factor(NamedTuple):
    """The law of one standardised summary given the parameters and the earlier ones."""

    mean: Array
    """(p,) coefficients of all features; zero for those that are not used."""
    earlier: Array
    """(k, p)"""
    curves: Array
    """(2, k, p)"""
    scale: Array
    """(p,)"""
    volatility: Array
    """(3, k, p)"""
    low: float
    high: float
    """Range of the log scale."""
    information: float = 1.0
    """How much a simulation says of the mean, where the residual itself says 1: a cell says less."""

    def given(self, before: Array) -> tuple[Array, Array]:
        """Coefficients (..., p) of the mean and of the log scale, given the earlier summaries (..., k)."""
        mean, scale = (
            self.mean + before @ self.earlier,
            np.broadcast_to(self.scale, (*before.shape[:-1], len(self.scale))),
        )
        if self.curves.any():
            mean += np.tensordot(curved(before), self.curves, axes=((0, -1), (0, 1)))
        if self.volatility.any():
            scale = scale + np.tensordot(sizes(before), self.volatility, axes=((0, -1), (0, 1)))
        return mean, scale


class LeftOut(NamedTuple):
    """What a factor says of each simulation if that is left out."""

    residuals: Array
    """(n,) standardised."""
    scores: Array
    """(n,) log densities; of a cell the log of its mean density."""
    bounded: Array
    """(n,) the same of a mixture with a wide law, so that no single simulation dominates."""


class Fit(NamedTuple):
    """A factor with the same."""

    factor: Factor
    residuals: Array
    scores: Array
    bounded: Array


class MeanFits(NamedTuple):
    """Coefficients (m, q) of the means of m summaries, residuals (m, n), and leverages: how far each fitted value
    follows its own datum."""

    coefficients: Array
    residuals: Array
    leverage: Array
    """(m, n), or what these can be broadcast from."""


def design(columns: Array, rows: Array, k: int, terms: Terms, sets: Sets) -> Array:
    """Columns (n, q) of the regression of summary k on features (n, p) and on the earlier summaries."""
    before = rows.T[terms.begin(k) : k]
    products = ((before, terms.earlier), (curved(before), terms.curves)) if len(before) else ()
    return _with_products(columns, terms.mean, products, sets)


def scale_design(columns: Array, rows: Array, k: int, terms: Terms, sets: Sets) -> Array:
    """Columns (n, r) of the regression of the log scale of summary k."""
    before = rows.T[terms.begin(k) : k]
    return _with_products(columns, terms.scale, ((sizes(before), terms.volatility),) if len(before) else (), sets)


def _with_products(columns: Array, own: str, products: Iterable[tuple[Array, str]], sets: Sets) -> Array:
    """The features of a set, and values (..., n) times those of others."""
    # Copies: the order in memory of what is joined decides the last bits of products of matrices.
    parts = [columns[:, sets[own]]]
    for values, name in products:
        if name:
            parts.append((values[..., None, :] * columns.T[sets[name]]).reshape(-1, len(columns)).T)
    return np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]


def curved(values: Array) -> Array:
    """A square and a cube of standardised summaries (...), uncorrelated if these are normal: (2, ...).

    >>> curved(np.array([1.0, 2.0, 9.0])).round(2).tolist()
    [[0.0, 2.12, 5.66], [-0.82, 0.82, 7.35]]
    """
    inside = np.clip(values, -FARTHEST, FARTHEST)
    square = np.square(inside)
    return np.stack([(square - 1.0) / math.sqrt(2.0), inside * (square - 3.0) / math.sqrt(6.0)])


def sizes(values: Array) -> Array:
    """What a log scale may depend on: standardised summaries (...) and logs of two sums with their squares, (3, ...).

    If a variance is linear in the square of a summary, its log is close to a combination of such logs, and grows no
    faster than they do.

    >>> sizes(np.array([0.0, 1.0, 9.0])).round(2).tolist()
    [[0.0, 1.0, 3.0], [-1.81, 0.68, 4.99], [-0.53, 0.16, 3.88]]
    """
    square = np.square(values)
    logs = (np.log1p(square / width**2) - mean for width, mean in SIZES)
    return np.stack([np.clip(values, -FARTHEST, FARTHEST), *logs])


class OfScale(NamedTuple):
    """What the fits of a log scale with the same features share, whatever the summary."""

    z: Array
    """(n, r) features."""
    penalty: Array
    """(r,) on squares of their coefficients."""
    inverse: Array
    """(r, r) of the penalised information."""
    leverages: Array
    """(n,) how far each log scale follows its own datum."""

    def promise(self, weights: Array, residuals: Array) -> float:
        """A score test of a constant log scale by its standardised residuals (n,): 1 per coefficient if it is constant.

        Half of it is about what a fit of these features would gain, which for simulations left out is one unit less.
        """
        gradient = self.z.T @ (weights * (np.minimum(np.square(residuals), LARGEST_SQUARE) - 1.0))
        return float(gradient @ self.inverse @ gradient) / max(float(self.leverages.sum()) - 1.0, 1e-6)


@dataclass(frozen=True, eq=False)
class OfMean:
    """What the fits of a mean on the same features share, whatever the summary."""

    weights: Array
    """(n,)"""
    x: Array
    """(n, q) features."""
    gram: Array
    """(q, q) their weighted sums of products."""
    penalty: Array
    """(q,) on squares of their coefficients."""

    @cached_property
    def root(self) -> Array:
        """The Cholesky root of the penalised sums."""
        return _root(self.gram, self.penalty)

    @cached_property
    def leverages(self) -> Array:
        """(n,) in a fit by these weights."""
        return self.leverages_by(self.root, self.weights)

    def leverages_by(self, root: Array, weights: Array) -> Array:
        """The same with other weights (n,), by the root of their penalised sums."""
        spread = dtrsm(1.0, root, self.x, side=True, lower=True, trans_a=True)
        return np.minimum(weights * np.einsum("ij,ij->i", spread, spread), LARGEST_LEVERAGE)


class Regression(NamedTuple):
    """What fits of the same terms to several summaries share."""

    of_mean: OfMean
    of_scale: OfScale


class Predictors(NamedTuple):
    """Features of simulations with weights, and what regressions on them have in common, once it is known."""

    columns: Array
    """(n, p)"""
    weights: Array
    """(n,)"""
    sets: Sets
    own: dict[str, tuple[Array, Array]]
    """Features (n, q) of a set and their weighted sums of products, by its name."""
    means: dict[tuple[str, float], OfMean]
    """By the name of a set and the penalty."""
    scales: dict[tuple[str, float], OfScale]
    """The same."""

    def of_scale(self, rows: Array, k: int, terms: Terms) -> OfScale:
        """For the log scale of summary k."""
        if terms.volatility:
            z = scale_design(self.columns, rows, k, terms, self.sets)
            return self._of_scale(z, gram(z, np.sqrt(self.weights)), terms.ridge)
        known = terms.scale, terms.ridge
        if known not in self.scales:
            self.scales[known] = self._of_scale(*self._own(terms.scale), terms.ridge)
        return self.scales[known]

    def _of_scale(self, z: Array, information: Array, ridge: float) -> OfScale:
        of_scale = penalty(z.shape[1], ridge)
        inverse = np.linalg.inv(2.0 * information + np.diag(of_scale))
        # The information has each simulation twice its weight.
        own = 2.0 * self.weights * np.einsum("ij,ij->i", z, z @ inverse)
        return OfScale(z, of_scale, inverse, np.minimum(own, LARGEST_LEVERAGE))

    def regression(self, rows: Array, k: int, terms: Terms) -> Regression:
        """That of summary k on features and on the earlier summaries."""
        return Regression(self._of_mean(rows, k, terms), self.of_scale(rows, k, terms))

    def _of_mean(self, rows: Array, k: int, terms: Terms) -> OfMean:
        if terms.earlier and terms.begin(k) < k:
            x = design(self.columns, rows, k, terms, self.sets)
            return OfMean(self.weights, x, gram(x, np.sqrt(self.weights)), penalty(x.shape[1], terms.ridge))
        known = terms.mean, terms.ridge
        if known not in self.means:
            x, sums = self._own(terms.mean)
            self.means[known] = OfMean(self.weights, x, sums, penalty(x.shape[1], terms.ridge))
        return self.means[known]

    def _own(self, name: str) -> tuple[Array, Array]:
        if name not in self.own:
            x = columns_of(self.columns, self.sets[name])
            self.own[name] = x, gram(x, np.sqrt(self.weights))
        return self.own[name]


def predictors(columns: Array, weights: Array, sets: Sets) -> Predictors:
    """Those of features (n, p) of simulations with weights."""
    return Predictors(columns, weights, sets, {}, {}, {})


def fit_factor(
    given: Predictors,
    rows: Array,
    k: int,
    terms: Terms,
    response: Response | None = None,
    near: Factor | None = None,
    steps: int = CELL_ITERATIONS,
) -> Fit:
    """The factor of summary k, from features and standardised summaries (n, s) of simulations.

    The summary itself is the response if there is one; otherwise it is among the summaries. Fits to cells begin at a
    factor `near` by, of other terms, or at a fit to places.
    """
    shared, response = given.regression(rows, k, terms), response or Response(rows[:, k])
    if terms.cells and near is not None:
        start = coefficients_of(near, terms, given.sets)
    else:
        fits, scale, log_scale = _fitted(shared, response.values[None])
        coefficients, start = fits.coefficients, (fits.coefficients[0], scale[0])
    information = 1.0
    if terms.cells:
        assert response.cells is not None
        of_mean, of_scale = shared.of_mean, shared.of_scale
        cells = fit_cells(
            of_mean.x, of_scale.z, (of_mean.penalty, of_scale.penalty), of_mean.weights[None], of_mean.gram[None],
            response.cells, start, steps,
        )  # fmt: skip
        coefficients, scale, log_scale = cells.coefficients, cells.scale, cells.log_scale
        information = float(cells.information[0])
        left_out = _cells_left_out(shared, cells, response.cells)
    else:
        left_out = LeftOut(*(one[0] for one in _left_out(shared.of_scale, fits, log_scale)))
    ends = float(log_scale.min()), float(log_scale.max())
    factor = factor_of(terms, given.sets, given.columns.shape[1], k, coefficients[0], scale[0], *ends, information)
    return Fit(factor, *left_out)


def fit_alike(given: Predictors, values: Array, terms: Terms) -> list[LeftOut]:
    """What factors of the same terms say of several summaries (m, n), none of which depends on the others.

    The same as of each alone, but for rounding.
    """
    shared = given.regression(values.T, 0, terms)
    fits, _, log_scale = _fitted(shared, values)
    return [LeftOut(*one) for one in zip(*_left_out(shared.of_scale, fits, log_scale), strict=True)]


def fit_scores(shared: Regression, y: Array) -> Array:
    """Log densities (n,) that a fit to a summary y (n,) gives to simulations left out."""
    fits, _, log_scale = _fitted(shared, y[None])
    return _left_out(shared.of_scale, fits, log_scale).scores[0]


def _fitted(shared: Regression, y: Array) -> tuple[MeanFits, Array, Array]:
    """The means of summaries y (m, n), coefficients (m, r) of log scales, and these, (m, n) or (m, 1)."""
    look()
    of_mean, of_scale = shared.of_mean, shared.of_scale
    weights, constant = of_mean.weights, of_scale.z.shape[1] == 1
    fits = _first_means(of_mean, y, leverage=constant)
    if constant:
        scale = _log_deviations(_squares(fits), weights)[:, None]
        # All weights change by one factor, and so do sums of products.
        precision = np.exp(-2.0 * scale)
        sums = (one * of_mean.gram for one in precision)
        return _fit_means(of_mean, y, precision * weights, sums), scale, scale
    scale = 2.0 * (weights * half_logs(_squares(fits), weights)) @ of_scale.z @ of_scale.inverse
    for iteration in range(ITERATIONS):
        scale = _fit_scales(of_scale, weights, _squares(fits), scale)
        log_scale = limited(scale @ of_scale.z.T, weights)
        precise = weights * np.exp(-2.0 * log_scale)
        sums = (gram(of_mean.x, root) for root in np.sqrt(precise))
        fits = _fit_means(of_mean, y, precise, sums, leverage=iteration == ITERATIONS - 1)
    return fits, scale, log_scale


class CellFits(NamedTuple):
    """Fits to cells of m parts of the simulations."""

    coefficients: Array
    """(m, q)"""
    mean: Array
    """(m, n)"""
    scale: Array
    """(m, r)"""
    log_scale: Array
    """(m, n)"""
    last: Array
    """(m, n) numbers that the last regressions were on, as far from the mean as a simulation pulls it."""
    curvature: Array
    """(m, n) of the log masses by the mean, in variances of a residual."""
    information: Array
    """(m,) the variance of a fitted value if cells were points, in mean variances of one in cells."""
    of_scale: Array
    """(m,) mean squared slope by the log scale."""


def fit_cells(
    x: Array,
    z: Array,
    penalties: tuple[Array, Array],
    weights: Array,
    grams: Array,
    cells: Cells,
    start: tuple[Array, Array],
    steps: int = CELL_ITERATIONS,
) -> CellFits:
    """Means and log scales by maximum likelihood, from features (n, q) and (n, r) with weights (m, n).

    `penalties` are those of both, and `grams` (m, q, q) weighted sums of products of the former. The first fit begins
    at coefficients (q,) of the mean and (r,) of the log scale, and the others where that one ended.
    """
    # Two numbers do not tell a scale from a mean. Summaries are standardised: the ridge is that of this scale.
    fixed, found = only_two(cells), list[Array]()
    first = np.concatenate([start[0], np.zeros(z.shape[1]) if fixed else start[1]])
    for own in weights:
        found.append(_most_likely(x, z, penalties, own, cells, found[0] if found else first, fixed, steps))
    coefficients, scale = np.split(np.array(found), [x.shape[1]], axis=1)
    total, mean, log_scale = weights.sum(axis=1), coefficients @ x.T, limited(scale @ z.T, weights)
    there = slopes(*cells.standardised(mean, log_scale))
    last = mean + there.mean / there.curvature * np.exp(log_scale)
    of_scale = np.maximum((weights * np.square(there.scale)).sum(axis=1) / total, LEAST_INFORMATION)
    # Cells say least where features are extreme: it is the mean variances of fitted values that are compared.
    in_cells = np.array([gram(x, root) for root in np.sqrt(weights * there.curvature)])
    variance, wider = (
        np.trace(np.linalg.solve(some + np.diag(penalties[0]), grams), axis1=1, axis2=2) for some in (grams, in_cells)
    )
    information = variance / wider
    return CellFits(coefficients, mean, scale, log_scale, last, there.curvature, information, of_scale)


def _most_likely(
    x: Array,
    z: Array,
    penalties: tuple[Array, Array],
    weights: Array,
    cells: Cells,
    start: Array,
    fixed: bool,
    steps: int,
) -> Array:
    """Coefficients (q + r,) of mean and log scale, that of the latter as it is if it is fixed, from a start.

    Newton's steps, halved if the likelihood falls. Far from the optimum it may curve the wrong way: then between both
    ways, or instead, an information counts that is always positive. How much a cell says of the log scale differs from
    cell to cell: squared slopes have its mean.
    """
    q, counted, on = x.shape[1], weights > 0, np.concatenate(penalties)

    def at(both: Array) -> tuple[Array, Slopes, float]:
        log_scale = limited(z @ both[q:], weights)
        found = slopes(*cells.standardised(x @ both[:q], log_scale))
        return log_scale, found, float(weights @ found.log_mass - 0.5 * on @ np.square(both))

    both, (log_scale, found, value) = start, at(start)
    total, little = float(weights.sum()), 0
    for _ in range(steps):
        look()
        precision = np.exp(-log_scale)
        gradient = np.concatenate([(weights * found.mean * precision) @ x, (weights * found.scale) @ z]) - on * both
        of_mean, points = gram(x, np.sqrt(weights * found.curvature) * precision), weights * found.curvature
        mixed, of_scale = (x.T * (weights * found.mixed * precision)) @ z, (z.T * (weights * found.of_scale)) @ z
        before, full = value, False
        for newton, halvings in NEWTON[-1:] if fixed else NEWTON:
            own = newton * of_scale
            if newton < 1.0:
                share = float(weights @ np.square(found.scale) / (2.0 * points.sum()))
                share = (1.0 - newton) * min(max(share, LEAST_INFORMATION), 1.0)
                own = own + gram(z, np.sqrt(2.0 * share * points))
            information = np.block([[of_mean, newton * mixed], [newton * mixed.T, own]]) + np.diag(on)
            root, failed = dpotrf(information, lower=True)
            if failed:
                continue
            step = dpotrs(root, gradient, lower=True)[0]
            if fixed:
                step[q:] = 0.0
            most = min(1.0, LARGEST_STEP_IN_CELLS / (float(np.abs(z[counted] @ step[q:]).max()) + 1e-12))
            lengths = [most * 0.5**k for k in range(halvings + 1)]
            tried = ((length, one, at(one)) for length in lengths for one in [both + length * step])
            taken = next((one for one in tried if one[2][2] >= value), None)
            if taken is not None:
                length, both, (log_scale, found, value) = taken
                full = length == 1.0 and (fixed or newton == 1.0)
                break
        # A short step may gain little far from the optimum, two in a row hardly do.
        little = little + 1 + full if value - before <= LEAST_GAIN_OF_CELLS * total else 0
        if little >= 2:
            break
    if not np.isfinite(both).all():
        raise np.linalg.LinAlgError("the features of a regression are not finite")
    return both


def limited(log_scale: Array, weights: Array) -> Array:
    """Log scales (..., n) near their mean, by weights."""
    total = weights.sum(axis=-1, keepdims=True)
    mean = (weights * log_scale).sum(axis=-1, keepdims=True) / total
    room = ROOM * np.sqrt((weights * np.square(log_scale - mean)).sum(axis=-1, keepdims=True) / total)
    return np.maximum(np.clip(log_scale, mean - room, mean + room), LEAST_LOG_SCALE)


def _cells_left_out(shared: Regression, found: CellFits, cells: Cells) -> LeftOut:
    """As `_left_out`, of the first part: to first order."""
    mean, log_scale, last, curvature = (one[0] for one in (found.mean, found.log_scale, found.last, found.curvature))
    of_mean, own = shared.of_mean, shared.of_scale.leverages
    precise = of_mean.weights * curvature * np.exp(-2.0 * log_scale)
    leverage = of_mean.leverages_by(_root(gram(of_mean.x, np.sqrt(precise)), of_mean.penalty), precise)
    pull = np.clip(slopes(*cells.standardised(mean, log_scale)).scale, -LARGEST_SQUARE, LARGEST_SQUARE)
    without = log_scale - own * pull / found.of_scale[0] / (1.0 - own)
    # The mean without it is uncertain, and so is what it is the mean of.
    spread = without + 0.5 * np.log1p(leverage / curvature / (1.0 - leverage))
    residuals = (last - mean) / (1.0 - leverage)
    low, high = cells.standardised(last - residuals, spread)
    scores, wide = log_mass(low, high) - cells.log_width, log_mass(low / BREADTH, high / BREADTH) - cells.log_width
    return LeftOut(residuals * np.exp(-spread), scores, _bounded(scores, wide - scores))


def mean_gain(scores: Array, others: Array, share: Array) -> tuple[float, float]:
    """The mean of scores (n,) less that of others, by weights that sum to 1, and its standard error.

    >>> mean_gain(np.array([1.0, 3.0]), np.array([0.0, 0.0]), np.array([0.5, 0.5]))
    (2.0, 0.7071067811865476)
    """
    gain = scores - others
    mean = float(share @ gain)
    return mean, math.sqrt(float(np.square(share) @ np.square(gain - mean))) if math.isfinite(mean) else math.inf


def better(scores: Array, others: Array, share: Array, errors: float = 0.0) -> bool:
    """Whether scores (n,) are above others on average, by weights that sum to 1 and by this many standard errors."""
    counted = share > 0
    mean, error = mean_gain(scores[counted], others[counted], share[counted])
    return mean > (max(LEAST_GAIN, errors * error) if math.isfinite(mean) else 0.0)


def penalty(size: int, ridge: float) -> Array:
    """On the squares of so many coefficients, the first that of the constant."""
    found = np.full(size, ridge)
    found[0] = 1e-8
    return found


def gram(x: Array, root_weights: Array) -> Array:
    """Sums (q, q) of products of columns (n, q) over simulations with weights, given their roots."""
    weighted = x * root_weights[:, None]
    found: Array = weighted.T @ weighted
    return found


def _root(sums: Array, on_mean: Array) -> Array:
    """The lower Cholesky root of sums of products (q, q) with a penalty (q,)."""
    penalised = sums.copy()
    np.einsum("ii->i", penalised)[:] += on_mean
    # Symmetric: the transpose has the order in memory that is wanted.
    root, failed = dpotrf(penalised.T, lower=True, overwrite_a=True)
    if failed:
        raise np.linalg.LinAlgError("the features of a regression are not finite")
    return root


def _first_means(of_mean: OfMean, y: Array, leverage: bool) -> MeanFits:
    """Those of summaries y (m, n) by the weights that all share."""
    x = of_mean.x
    coefficients = dpotrs(of_mean.root, ((of_mean.weights * y) @ x).T, lower=True)[0].T
    return MeanFits(coefficients, y - coefficients @ x.T, of_mean.leverages[None] if leverage else _mean_leverage(x))


def _fit_means(of_mean: OfMean, y: Array, weights: Array, sums: Iterable[Array], leverage: bool = True) -> MeanFits:
    """Those of summaries y (m, n), each by its own weights (m, n) and weighted sums (m, q, q) of products."""
    x = of_mean.x
    coefficients, own = (weights * y) @ x, np.empty(y.shape) if leverage else _mean_leverage(x)
    for k, one in enumerate(sums):
        look()
        root = _root(one, of_mean.penalty)
        coefficients[k] = dpotrs(root, coefficients[k], lower=True)[0]
        if leverage:
            own[k] = of_mean.leverages_by(root, weights[k])
    return MeanFits(coefficients, y - coefficients @ x.T, own)


def _mean_leverage(x: Array) -> Array:
    """The mean leverage (1, 1), which is good enough on the way."""
    return np.array([[min(x.shape[1] / len(x), LARGEST_LEVERAGE)]])


def _squares(fits: MeanFits) -> Array:
    """Squared residuals (m, n) whose mean is the variance, in spite of the coefficients that were fitted."""
    found: Array = np.square(fits.residuals) / (1.0 - fits.leverage)
    return found


def half_logs(squares: Array, weights: Array) -> Array:
    """Half the logs of squared residuals (..., n), with the log scale of normal ones as their mean.

    A regression of them is where fits of a scale begin. From a constant, steps would not reach a scale that varies by a
    factor of a hundred: a residual that is far too small says no more than one that is somewhat too small.
    """
    mean = (weights * squares).sum(axis=-1, keepdims=True) / weights.sum(axis=-1, keepdims=True)
    found: Array = 0.5 * (np.log(squares + LEAST_SQUARE * mean + math.exp(2.0 * LEAST_LOG_SCALE)) + MEAN_LOG)
    return found


def _log_deviations(squares: Array, weights: Array) -> Array:
    """(m,) of residuals with these squares (m, n)."""
    found: Array = np.maximum(0.5 * np.log(squares @ weights / weights.sum() + 1e-300), LEAST_LOG_SCALE)
    return found


def _fit_scales(of_scale: OfScale, weights: Array, squares: Array, scale: Array) -> Array:
    """Steps of the coefficients (m, r) of log scales, by squared residuals (m, n)."""
    z = of_scale.z
    log_scale = scale @ z.T
    for _ in range(STEPS):
        ratio = np.minimum(squares * np.exp(-2.0 * log_scale), LARGEST_SQUARE)
        step = ((weights * (ratio - 1.0)) @ z - of_scale.penalty * scale) @ of_scale.inverse
        change = step @ z.T
        length = np.minimum(1.0, LARGEST_STEP / (np.abs(change).max(axis=1, keepdims=True) + 1e-12))
        scale, log_scale = scale + length * step, log_scale + length * change
    return scale


def factor_of(
    terms: Terms,
    sets: Sets,
    p: int,
    k: int,
    coefficients: Array,
    scale: Array,
    low: float,
    high: float,
    information: float = 1.0,
) -> Factor:
    """The factor of summary k with these coefficients of its features, among all p, and this range of log scales."""
    of_mean, of_scale = sets[terms.mean], sets[terms.scale]
    mean, earlier, curves = np.zeros(p), np.zeros((k, p)), np.zeros((2, k, p))
    own, volatility = np.zeros(p), np.zeros((3, k, p))
    mean[of_mean] = coefficients[: len(of_mean)]
    own[of_scale] = scale[: len(of_scale)]
    rest = {"mean": coefficients[len(of_mean) :], "scale": scale[len(of_scale) :]}
    begin = terms.begin(k)
    parts = (("mean", earlier, terms.earlier), ("mean", curves, terms.curves), ("scale", volatility, terms.volatility))
    for kind, found, name in parts if begin < k else ():
        if name:
            shape = (*found.shape[:-2], k - begin, len(sets[name]))
            mine, rest[kind] = np.split(rest[kind], [math.prod(shape)])
            found[..., begin:, sets[name]] = mine.reshape(shape)
    return Factor(mean, earlier, curves, own, volatility, low, high, information)


def coefficients_of(factor: Factor, terms: Terms, sets: Sets) -> tuple[Array, Array]:
    """Coefficients of the mean and of the log scale that a factor of other terms has for these."""
    k = len(factor.earlier)
    begin = terms.begin(k)
    parts = (
        ("mean", factor.earlier, terms.earlier),
        ("mean", factor.curves, terms.curves),
        ("scale", factor.volatility, terms.volatility),
    )
    found = {"mean": [factor.mean[sets[terms.mean]]], "scale": [factor.scale[sets[terms.scale]]]}
    for kind, of, name in parts if begin < k else ():
        if name:
            found[kind].append(of[..., begin:, sets[name]].ravel())
    return np.concatenate(found["mean"]), np.concatenate(found["scale"])


def _left_out(of_scale: OfScale, fit: MeanFits, log_scale: Array) -> LeftOut:
    """Each simulation by the fits (m, n) without it: exact for the mean, to first order for the log scale."""
    own = of_scale.leverages
    # A constant scale is the mean of all squares, as they are.
    most = LARGEST_SQUARE if of_scale.z.shape[1] > 1 else np.inf
    ratio = np.minimum(_squares(fit) * np.exp(-2.0 * log_scale), most)
    without = log_scale - 0.5 * own * (ratio - 1.0) / (1.0 - own)
    # The mean without it is uncertain, too: the variance of what is left out is 1 / (1 - leverage) that of a residual.
    spread = without - 0.5 * np.log1p(-fit.leverage)
    residuals = fit.residuals / (1.0 - fit.leverage) * np.exp(-spread)
    halves = 0.5 * np.square(residuals)
    scores = -halves - spread - HALF_LOG_2PI
    return LeftOut(residuals, scores, _bounded(scores, halves * (1.0 - BREADTH**-2) - math.log(BREADTH)))


def _bounded(scores: Array, wider: Array) -> Array:
    """Log densities of mixtures with a wide law, by the log ratios of its densities to those of these scores."""
    ratio = wider + (math.log(BROAD) - math.log1p(-BROAD))
    found: Array = np.log1p(np.exp(-np.abs(ratio)))
    found += np.maximum(ratio, 0.0)
    found += scores + math.log1p(-BROAD)
    return found
