"""The factors of a surrogate, fitted to several parts of the same simulations at once.

Each fit is that of `likelihood.fit_factor` to the simulations that are kept, without what it says of those left out.
Simulations that a part leaves out have the weight zero there, so that all parts share features and products.
"""

import math
from typing import NamedTuple

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.engines.clock import look
from onedraw.surrogate.cells import Response, Summaries
from onedraw.surrogate.features import Sets, columns_of
from onedraw.surrogate.likelihood import (
    ITERATIONS,
    LARGEST_LEVERAGE,
    LARGEST_SQUARE,
    LARGEST_STEP,
    LEAST_LOG_SCALE,
    STEPS,
    Factor,
    Terms,
    coefficients_of,
    design,
    factor_of,
    fit_cells,
    gram,
    half_logs,
    limited,
    penalty,
    scale_design,
)

FEWEST_WINDOWS, WINDOWS_EACH, MOST_WINDOWS = 60_000, 300, 300_000
"""Values in series, with those before them, from which their common law is fitted: a number for each value of a series,
because what is wrong with the law adds up over them; at least the first, and at most the last."""


class OfScales(NamedTuple):
    """What the fits of a log scale with the same features share."""

    z: Array
    """(n, r) features."""
    penalty: Array
    """(r,)"""
    inverse: Array
    """(m, r, r) of the penalised information of each part."""


class Parts(NamedTuple):
    """Features of simulations, m parts of these, and what regressions have in common, once it is known."""

    columns: Array
    """(n, p)"""
    weights: Array
    """(m, n), zero for those that a part leaves out."""
    kept: Array
    """(m, n) which it has."""
    sets: Sets
    own: dict[str, tuple[Array, Array]]
    """Features (n, q) of a set and their weighted sums of products (m, q, q), by its name."""
    scales: dict[tuple[str, float], OfScales]
    """By the name of a set and the penalty."""

    def of_scale(self, rows: Array, k: int, terms: Terms) -> OfScales:
        """For log scales of summary k."""
        if terms.volatility:
            z = scale_design(self.columns, rows, k, terms, self.sets)
            return _of_scales(z, _grams(z, self.weights), terms.ridge)
        known = terms.scale, terms.ridge
        if known not in self.scales:
            self.scales[known] = _of_scales(*self._own(terms.scale), terms.ridge)
        return self.scales[known]

    def of_mean(self, rows: Array, k: int, terms: Terms) -> tuple[Array, Array]:
        """The features (n, q) of the mean of summary k and their weighted sums of products (m, q, q)."""
        if not terms.earlier or terms.begin(k) == k:
            return self._own(terms.mean)
        x = design(self.columns, rows, k, terms, self.sets)
        return x, _grams(x, self.weights)

    def first(self) -> "Parts":
        """The first of them alone."""
        return Parts(self.columns, self.weights[:1], self.kept[:1], self.sets, {}, {})

    def _own(self, name: str) -> tuple[Array, Array]:
        if name not in self.own:
            x = columns_of(self.columns, self.sets[name])
            self.own[name] = x, _grams(x, self.weights)
        return self.own[name]


def parts_of(columns: Array, weights: Array, kept: Array, sets: Sets) -> Parts:
    """Parts (m, n) of simulations with features (n, p) and weights (n,)."""
    return Parts(columns, np.where(kept, weights, 0.0), kept, sets, {}, {})


class Windows(NamedTuple):
    """Values in series, each with those before it."""

    values: Array
    """(m, lags + 1), the value itself last."""
    number: Array
    """(m,) of the series that it is from."""
    time: Array
    """(m,) its own number in that series."""


def windows(series: Array, lags: int, most: int) -> Windows:
    """Each value of series (n, s) but the first ones with those before it, or at most so many of them, evenly spread.

    >>> windows(np.array([[1, 2, 3], [4, 5, 6]]), 1, 9).values.tolist()
    [[1, 2], [2, 3], [4, 5], [5, 6]]
    >>> windows(np.zeros((100, 101)), 1, 50).number[:5].tolist()
    [0, 2, 4, 6, 8]
    """
    times = series.shape[1] - lags
    stride = -(-len(series) * times // most)
    # A stride with a factor in common with the number of times would pick the same few times of all series.
    while math.gcd(stride, times) > 1:
        stride += 1
    number, first = np.divmod(np.arange(0, len(series) * times, stride), times)
    return Windows(series[number[:, None], first[:, None] + np.arange(lags + 1)], number, first + lags)


def window_count(width: int) -> int:
    """From how many values the common law of series of this many values is fitted.

    >>> window_count(40), window_count(500), window_count(5000)
    (60000, 150000, 300000)
    """
    return min(max(FEWEST_WINDOWS, WINDOWS_EACH * width), MOST_WINDOWS)


def fit_common(given: Parts, series: Summaries, terms: Terms, lags: int) -> list[Factor]:
    """The one factor of all summaries from number `lags` on, given as many before them, for each part."""
    values, number, time = windows(series.middle, lags, window_count(series.middle.shape[1]))
    parts = Parts(given.columns[number], given.weights[:, number], given.kept[:, number], given.sets, {}, {})
    return fit_factors(parts, values, lags, terms, series.at((number, time)))


def fit_factors(given: Parts, rows: Array, k: int, terms: Terms, response: Response | None = None) -> list[Factor]:
    """The factor of summary k for each part, from standardised summaries (n, s), as `fit_factor` has them."""
    look()
    response = response or Response(rows[:, k])
    (x, grams), of_scale, y = given.of_mean(rows, k, terms), given.of_scale(rows, k, terms), response.values
    weights, total, on_mean = given.weights, given.weights.sum(axis=1), penalty(x.shape[1], terms.ridge)
    information, constant = np.ones(len(weights)), of_scale.z.shape[1] == 1
    if terms.cells:
        assert response.cells is not None
        (places,) = fit_factors(given.first(), rows, k, terms._replace(cells=False), response)
        start, on_both = coefficients_of(places, terms, given.sets), (on_mean, of_scale.penalty)
        found = fit_cells(x, of_scale.z, on_both, weights, grams, response.cells, start)
        coefficients, scale, log_scale, information = (
            found.coefficients, found.scale, found.log_scale, found.information,
        )  # fmt: skip
    else:
        # The mean leverage is good enough on the way.
        mean = np.minimum(x.shape[1] / given.kept.sum(axis=1), LARGEST_LEVERAGE)[:, None]
        coefficients = _coefficients(x, grams, on_mean, weights, y)
        squares = np.square(y - coefficients @ x.T)
        squares /= 1.0 - (_leverages(x, grams, on_mean, weights) if constant else mean)
        if constant:
            variance = np.maximum((weights * squares).sum(axis=1) / total, math.exp(2.0 * LEAST_LOG_SCALE))
            scale = 0.5 * np.log(variance)[:, None]
            # All weights change by one factor, and so do sums of products.
            precision = np.exp(-2.0 * scale)
            coefficients = _coefficients(x, precision[:, :, None] * grams, on_mean, precision * weights, y)
            low = high = scale[:, 0]
        else:
            of_logs = 2.0 * (weights * half_logs(squares, weights)) @ of_scale.z
            scale = (of_scale.inverse @ of_logs[:, :, None])[:, :, 0]
            for _ in range(ITERATIONS):
                scale = _fit_scales(of_scale, given, squares, scale)
                log_scale = limited(scale @ of_scale.z.T, weights)
                precise = weights * np.exp(-2.0 * log_scale)
                coefficients = _coefficients(x, _grams(x, precise), on_mean, precise, y)
                squares = np.square(y - coefficients @ x.T) / (1.0 - mean)
    if terms.cells or not constant:
        low = np.min(log_scale, axis=1, where=given.kept, initial=np.inf)
        high = np.max(log_scale, axis=1, where=given.kept, initial=-np.inf)
    p = given.columns.shape[1]
    each = zip(coefficients, scale, low.tolist(), high.tolist(), information.tolist(), strict=True)
    return [factor_of(terms, given.sets, p, k, *one) for one in each]


def _of_scales(z: Array, information: Array, ridge: float) -> OfScales:
    of_scale = penalty(z.shape[1], ridge)
    return OfScales(z, of_scale, np.linalg.inv(2.0 * information + np.diag(of_scale)))


def _grams(x: Array, weights: Array) -> Array:
    """Sums (m, q, q) of products of columns (n, q) with weights (m, n)."""
    return np.array([gram(x, root) for root in np.sqrt(weights)])


def _coefficients(x: Array, grams: Array, on_mean: Array, weights: Array, y: Array) -> Array:
    """Those (m, q) of regressions of y (n,) with weights (m, n)."""
    found: Array = np.linalg.solve(grams + np.diag(on_mean), ((weights * y) @ x)[:, :, None])[:, :, 0]
    if not np.isfinite(found).all():
        raise np.linalg.LinAlgError("the features of a regression are not finite")
    return found


def _leverages(x: Array, grams: Array, on_mean: Array, weights: Array) -> Array:
    """How far each fitted value (m, n) follows its own datum."""
    inverse = np.linalg.inv(grams + np.diag(on_mean))
    found = weights * np.array([np.einsum("ij,ij->i", x @ one, x) for one in inverse])
    return np.minimum(found, LARGEST_LEVERAGE)


def _fit_scales(of_scale: OfScales, given: Parts, squares: Array, scale: Array) -> Array:
    z = of_scale.z
    log_scale = scale @ z.T
    for _ in range(STEPS):
        ratio = np.minimum(squares * np.exp(-2.0 * log_scale), LARGEST_SQUARE)
        gradient = (given.weights * (ratio - 1.0)) @ z - of_scale.penalty * scale
        step = (of_scale.inverse @ gradient[:, :, None])[:, :, 0]
        change = step @ z.T
        largest = np.max(np.abs(change), axis=1, where=given.kept, initial=0.0)
        length = np.minimum(1.0, LARGEST_STEP / (largest + 1e-12))[:, None]
        scale, log_scale = scale + length * step, log_scale + length * change
    return scale
