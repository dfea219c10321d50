"""The whole surrogate likelihood: how it is fitted to simulations, and its value at parameters for given summaries."""

import itertools
from typing import Any, NamedTuple

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.surrogate.choice import Form, coefficient_count
from onedraw.surrogate.features import Sets, columns_of
from onedraw.surrogate.likelihood import ALL, Factor, Terms, gram, penalty
from onedraw.surrogate.refits import fit_common, fit_factors, parts_of, window_count
from onedraw.surrogate.success import Success
from onedraw.surrogate.training import Training

MOST_ROWS = 60_000
"""Rows that a surrogate is fitted to, if data sets have several."""
CHUNK = 2**16
"""Residuals of rows computed at once, few enough for the cache."""
AT_ONCE = 2**20
"""Residuals of summaries computed at once at draws, few enough for memory."""
CERTAIN = 100.0
"""Simulations per coefficient from which coefficients count as known."""
LEAST_LEFT = 0.1
"""Share of the simulations that is left at least when coefficients are fitted."""
FEWEST_FREE = 3.0
"""Degrees of freedom that a scale has at least."""
PLACES, WIDE_CELL = 8, 0.5
"""Places in the cells of whole numbers over which the likelihood of the data is averaged, if a cell is wider than this
share of a standard deviation: below it, the middle is right within .01 in log likelihood."""
PRODUCTS = 8
"""Variances that are multiplied before a logarithm is taken: few enough for a product to stay finite."""


class Coefficients(NamedTuple):
    """A surrogate for one row of summaries, or for several, as a function of the features of parameters."""

    row: Array
    """(k,) or (rows, k)"""
    mean: Array
    """(k, p); of several rows, without what earlier summaries add."""
    scale: Array | None = None
    """(k, p) of the log scales; None if they do not depend on the row."""


class DataCells(NamedTuple):
    """The data at places in the cells of their whole numbers, or in the middle alone."""

    places: tuple[Coefficients, ...]
    log_slopes: Array
    """(m,) of the transform there, relative to the middle."""


class Uncertain(NamedTuple):
    """How uncertain the k factors are at n places, whatever the row."""

    mean: Array
    """(k, n) variances of residuals with those of their means, without what the earlier summaries add."""
    earlier: Array
    """(k, n) what a unit of the earlier summaries' squared residuals adds to them."""
    freedom: Array
    """(k, n) degrees of freedom of the scales."""


class Leverages(NamedTuple):
    """How far fitted values are uncertain: the variance f'Cf of a fit to features f, in variances of a residual."""

    columns: tuple[Array, ...]
    """Of each set of features and penalty that a factor has."""
    roots: tuple[Array, ...]
    """(q, q) whose product with its transpose is C."""
    mean: Array
    """(k,) which of these belong to the mean of each factor."""
    earlier: Array
    """(k,) to the coefficients of earlier summaries; -1 if there are none."""
    scale: Array
    """(k,) to the log scale."""
    begin: Array
    """(k,) the first of the earlier summaries that counts."""
    left: Array
    """(k,) share of the simulations that is left when the coefficients of the mean are fitted."""
    times: Array
    """(k,) how many summaries of a simulation have the same coefficients, which are known the better."""

    def at(self, columns: Array) -> Uncertain:
        """At features (n, p)."""
        spread = (columns_of(columns, some) @ root for some, root in zip(self.columns, self.roots, strict=True))
        found = np.array([np.einsum("ij,ij->i", one, one) for one in spread])
        left, times = self.left[:, None], self.times[:, None]
        earlier = np.where(self.earlier[:, None] < 0, 0.0, found[self.earlier] / np.maximum(left, LEAST_LEFT) / times)
        freedom = np.maximum(left * times / found[self.scale], FEWEST_FREE)
        return Uncertain(1.0 + found[self.mean] / times, earlier, freedom)

    def variances(self, there: Uncertain, residuals: Array) -> Array:
        """Variances (k, n) of residuals (k, n) with those of the mean.

        The residuals of the earlier summaries are independent of each other and of the features: each of their
        coefficients adds its own variance. These residuals are fitted ones, which are smaller than they would be.
        """
        if len(residuals) == 1:
            return there.mean
        squares = np.empty(residuals.shape)
        squares[0] = 0.0
        np.square(residuals[:-1], out=squares[1:])
        # Sums over earlier summaries: np.cumsum takes ten times as long along the first axis.
        for before, here in itertools.pairwise(squares[1:]):
            here += before
        if self.begin.any():
            squares -= squares[self.begin]
        squares *= there.earlier
        squares += there.mean
        return squares


class There(NamedTuple):
    """What a surrogate says at n places, whatever the row."""

    scale: Array
    """(k, n)"""
    log_scale: Array
    """(n,) sum of their logarithms."""
    uncertain: Uncertain | None


class Surrogate(NamedTuple):
    """The law of the summaries given the parameters, and the probability that a simulation succeeds."""

    form: Form
    factors: tuple[Factor, ...]
    success: Success | None
    power: float = 1.0
    """Of the likelihood: below 1 if the surrogate is too sure."""
    leverages: Leverages | None = None
    """How uncertain the coefficients are; None if there are so many simulations that they are not."""

    def at(self, rows: Array, places: Array | None = None) -> list[Coefficients]:
        """For each of some rows of summaries (m, s), or of some data sets of rows (m, rows, s)."""
        if rows.ndim == 3:
            mean = np.array([factor.mean for factor in self.factors])
            flat = None if places is None else places.reshape(-1, rows.shape[2])
            every = self.form.transform(rows.reshape(-1, rows.shape[2]), flat).reshape(len(rows), rows.shape[1], -1)
            return [Coefficients(some, mean) for some in every]
        transformed, lags = self.form.transform(rows, places), self.form.common
        parts = [one.given(transformed[:, None, :k]) for k, one in enumerate(self.factors[:lags])]
        if lags < len(self.form.terms):
            before = np.lib.stride_tricks.sliding_window_view(transformed, lags, axis=1)[:, :-1]
            parts.append(self.factors[-1].given(before))
        means, scales = (np.concatenate(some, axis=1) for some in zip(*parts, strict=True))
        if not any(one.volatility for one in self.form.terms):
            return [Coefficients(*one) for one in zip(transformed, means, strict=True)]
        return [Coefficients(*one) for one in zip(transformed, means, scales, strict=True)]

    def there(self, columns: Array) -> There:
        """What it says at features (n, p), whatever the row: scales are those without earlier summaries."""
        uncertain = None if self.leverages is None else self.leverages.at(columns)
        return There(*self._scales(columns, self._each([factor.scale for factor in self.factors])), uncertain)

    def _each(self, of_factors: list[Any]) -> Array:
        """What is known of factors for each summary: in a series, all but the first have the last one."""
        return np.array(of_factors)[np.minimum(np.arange(len(self.form.terms)), len(self.factors) - 1)]

    def _scales(self, columns: Array, coefficients: Array) -> tuple[Array, Array]:
        """Scales (k, n) at features (n, p), and sums (n,) of their logs."""
        low, high = self._each([(factor.low, factor.high) for factor in self.factors]).T[:, :, None]
        log_scale = coefficients @ columns.T
        np.minimum(np.maximum(log_scale, low, out=log_scale), high, out=log_scale)
        return np.exp(log_scale), log_scale.sum(axis=0)

    def of_data(self, observed: Array) -> DataCells:
        """The data: one row (s,), or a data set of rows.

        The probability of a whole number is the integral of a density over its cell. If summaries have a scale that is
        not much wider than a cell, as small counts have, a smooth density differs from its mean over the cell. Places
        are a Latin hypercube, the same in every run.
        """
        transform, typical = self.form.transform, self._each([factor.scale[0] for factor in self.factors])
        if observed.ndim == 1 and transform.whole.any():
            ends = transform(np.array([observed, observed]), np.outer([-0.5, 0.5], np.ones(len(observed))))
            if (np.diff(ends, axis=0)[0] > WIDE_CELL * np.exp(typical))[transform.whole].any():
                order = Rng(0, Phase.RESAMPLE).bulk(Purpose.PRIOR).random((PLACES, len(observed))).argsort(axis=0)
                places = np.zeros(order.shape)
                whole = transform.kept[transform.whole]
                places[:, whole] = (order[:, whole] + 0.5) / PLACES - 0.5
                slopes = np.array([transform.log_slope(observed + one) for one in places])
                found = self.at(np.tile(observed, (PLACES, 1)), places)
                return DataCells(tuple(found), slopes - transform.log_slope(observed))
        return DataCells(tuple(self.at(observed[None])), np.zeros(1))

    def data_log_likelihood(self, columns: Array, data: DataCells, there: There | None = None) -> Array:
        """Log likelihood of the data at features (n, p): a mean over places in their cells, to the power.

        `there` may be given.
        """
        pieces = -(-len(columns) * len(self.form.terms) // AT_ONCE)
        if there is None and pieces > 1:
            return np.concatenate([self.data_log_likelihood(one, data) for one in np.array_split(columns, pieces)])
        there = self.there(columns) if there is None else there
        if len(data.places) == 1:
            return self.log_likelihood(columns, data.places[0], there)
        plain = self._replace(power=1.0)
        each = np.array([plain.log_likelihood(columns, one, there) for one in data.places]) + data.log_slopes[:, None]
        top = each.max(axis=0)
        found: Array = self.power * (top + np.log(np.exp(each - top).mean(axis=0)))
        return found

    def log_likelihood(self, columns: Array, given: Coefficients, there: There | None = None) -> Array:
        """Log density of a row, or of all rows of a data set, in transformed summaries, at features (n, p).

        That of a row is averaged over the uncertainty of the coefficients. `there` may be given.
        """
        there = self.there(columns) if there is None else there
        if given.row.ndim == 2:
            found = self._of_rows(columns, given, there)
        else:
            if given.scale is not None:
                there = There(*self._scales(columns, given.scale), there.uncertain)
            residuals = given.mean @ columns.T
            np.subtract(given.row[:, None], residuals, out=residuals)
            residuals /= there.scale
            found = self._predictive(residuals, there.uncertain) - there.log_scale
        if self.success is not None:
            found = found + self.success.log_probability(columns)
        return self.power * found

    def _predictive(self, residuals: Array, uncertain: Uncertain | None) -> Array:
        """Log densities (n,) of residuals (k, n), averaged over the uncertainty of the coefficients."""
        if self.leverages is None or uncertain is None:
            return self.form.law.log_density(residuals.T)
        variances = self.leverages.variances(uncertain, residuals)
        # The log of a product of few variances is one logarithm instead of many.
        products = [variances[k : k + PRODUCTS].prod(axis=0) for k in range(0, len(variances), PRODUCTS)]
        residuals /= np.sqrt(variances)
        return self.form.law.log_density(residuals.T, uncertain.freedom.T) - 0.5 * np.log(products).sum(axis=0)

    def _of_rows(self, columns: Array, given: Coefficients, there: There) -> Array:
        """Sums (n,) of the log densities of the rows of a data set."""
        (number, width), mean, scale = given.row.shape, columns @ given.mean.T, there.scale.T
        slopes = [columns @ factor.earlier.T for factor in self.factors]
        found, size = np.empty(len(columns)), max(1, CHUNK // (number * width))
        for some in (slice(top, top + size) for top in range(0, len(columns), size)):
            residuals = given.row - mean[some, None, :]
            for k, slope in enumerate(slopes):
                if self.factors[k].earlier.any():
                    residuals[:, :, k] -= slope[some] @ given.row[:, :k].T
            residuals /= scale[some, None, :]
            found[some] = self.form.law.log_density(residuals.reshape(-1, width)).reshape(-1, number).sum(axis=1)
        return found - number * there.log_scale

    def log_density(self, points: Array, row: Array) -> Array:
        """Log density (n,) of one row of summaries as they are, at parameters (n, dim); of counts, a probability."""
        slope = self.form.transform.log_slope(row)
        return self.data_log_likelihood(self.form.columns(points), self.of_data(row)) + slope


def fit_surrogate(form: Form, training: Training, success: Success | None) -> Surrogate:
    """The surrogate of a form, fitted to simulations; its own form has no features beyond those that are used."""
    return fit_surrogates(form, training, np.ones((1, len(training.rows)), dtype=bool), success)[0]


def fit_surrogates(form: Form, training: Training, kept: Array, success: Success | None) -> list[Surrogate]:
    """Surrogates of a form, each fitted to the simulations that one row of `kept` (m, n) has."""
    form = form.trimmed(0 if success is None else len(success.coefficients))
    theta, rows, places, weights = training.single_rows(MOST_ROWS)
    kept = np.repeat(kept, len(rows) // len(training.rows), axis=1)
    columns, sets, transformed = form.columns(theta), form.features.sets(), form.transform(rows, places)
    parts = parts_of(columns, weights, kept, sets)
    each = [fit_factors(parts, transformed, k, terms) for k, terms in enumerate(form.terms[: form.common])]
    if form.common < len(form.terms):
        each.append(fit_common(parts, transformed, form.terms[-1], form.common))
    known = training.rows.ndim == 3
    return [
        Surrogate(
            form, one, success, leverages=None if known else leverages_of(form.terms, columns, mine, sets, form.common)
        )
        for one, mine in zip(zip(*each, strict=True), parts.weights, strict=True)
    ]


def leverages_of(
    terms: tuple[Terms, ...], columns: Array, weights: Array, sets: Sets, common: int = ALL
) -> Leverages | None:
    """How uncertain the coefficients of factors are that were fitted to features (n, p) of simulations with weights.

    Those of curves and volatility only count by their number: where factors have them, coefficients are known well.
    """
    later = np.arange(len(terms)) >= common
    times = np.where(later, np.clip(window_count(len(terms)) / len(columns), 1.0, later.sum()), 1.0)
    number = np.array([coefficient_count(one, k, sets) - len(sets[one.scale]) for k, one in enumerate(terms)]) / times
    total = float(weights.sum())
    if CERTAIN * number.max() <= total:
        return None
    known: dict[tuple[str, float], int] = {}
    mean, earlier, scale = (
        [known.setdefault((getattr(one, kind), one.ridge), len(known)) if getattr(one, kind) else -1 for one in terms]
        for kind in ("mean", "earlier", "scale")
    )
    some = [sets[name] for name, _ in known]
    roots = [
        np.linalg.inv(np.linalg.cholesky(gram(columns[:, one], np.sqrt(weights)) + np.diag(penalty(len(one), ridge)))).T
        for one, (_, ridge) in zip(some, known, strict=True)
    ]
    begin = np.array([one.begin(k) for k, one in enumerate(terms)])
    left = np.maximum(1.0 - number / total, 0.0)
    return Leverages(tuple(some), tuple(roots), np.array(mean), np.array(earlier), np.array(scale), begin, left, times)
