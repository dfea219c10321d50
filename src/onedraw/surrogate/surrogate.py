"""The whole surrogate likelihood: how it is fitted to simulations, and its value at parameters for given summaries."""

import itertools
from typing import Any, NamedTuple

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.surrogate.cells import Cells, log_mass
from onedraw.surrogate.choice import Form, coefficient_count
from onedraw.surrogate.features import Sets, columns_of
from onedraw.surrogate.likelihood import ALL, Factor, Terms, gram, penalty
from onedraw.surrogate.refits import fit_common, fit_factors, parts_of, window_count
from onedraw.surrogate.residuals import Student, student_of
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
PRODUCTS = 8
"""Variances that are multiplied before a logarithm is taken: few enough for a product to stay finite."""


class Coefficients(NamedTuple):
    """A surrogate for one row of summaries, or for several, as a function of the features of parameters."""

    row: Array
    """(k,) or (rows, k)"""
    mean: Array
    """(k, p); of several rows, without what earlier summaries add."""
    added: Array | None = None
    """(k, p) what the earlier summaries added; None if they are several rows."""
    scale: Array | None = None
    """(k, p) of the log scales; None if they do not depend on the row."""
    cells: Cells | None = None
    """As the row; of those factors alone that are probabilities of cells."""


class Uncertain(NamedTuple):
    """How uncertain the k factors are at n places, whatever the row."""

    mean: Array
    """(k, n) variances of residuals with those of their means, without what the earlier summaries add."""
    earlier: Array
    """(k, n) what a unit of the earlier summaries' squared residuals adds to them; (k, 1) if that is nothing."""
    freedom: Array
    """(k, n) degrees of freedom of the scales; (k, 1) if they are the same everywhere."""


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
    information: Array
    """(k,) how much a simulation says of each mean."""

    def at(self, columns: Array) -> Uncertain:
        """At features (n, p)."""
        spread = (columns_of(columns, some) @ root for some, root in zip(self.columns, self.roots, strict=True))
        found = np.array([np.einsum("ij,ij->i", one, one) for one in spread])
        left, times = self.left[:, None], self.times[:, None]
        certain = times * self.information[:, None]
        mean = found[self.mean] * (1.0 / certain)
        mean += 1.0
        earlier = np.zeros((len(left), 1))
        if (self.earlier >= 0).any():
            each = 1.0 / (np.maximum(left, LEAST_LEFT) * certain)
            earlier = found[self.earlier] * np.where(self.earlier[:, None] < 0, 0.0, each)
        # The constant alone is the same everywhere.
        constant = all(len(self.columns[k]) == 1 for k in set(self.scale.tolist()))
        freedom = left * times / found[self.scale, : 1 if constant else None]
        return Uncertain(mean, earlier, np.maximum(freedom, FEWEST_FREE, out=freedom))

    def variances(self, there: Uncertain, residuals: Array) -> Array:
        """Variances (k, n) of residuals (k, n) with those of the mean.

        The residuals of the earlier summaries are independent of each other and of the features: each of their
        coefficients adds its own variance. These residuals are fitted ones, which are smaller than they would be.
        """
        # Of the first factors alone, if others have no earlier summaries.
        number = int(np.flatnonzero((self.earlier >= 0) & (self.begin < np.arange(len(residuals)))).max(initial=-1)) + 1
        if number == 0:
            return there.mean
        squares = np.empty((number, residuals.shape[1]))
        squares[0] = 0.0
        np.square(residuals[: number - 1], out=squares[1:])
        # Sums over earlier summaries: np.cumsum takes ten times as long along the first axis.
        for before, here in itertools.pairwise(squares[1:]):
            here += before
        if self.begin.any():
            squares -= squares[self.begin[:number]]
        squares *= there.earlier[:number]
        variances = there.mean.copy()
        variances[:number] += squares
        return variances


class There(NamedTuple):
    """What a surrogate says at n places, whatever the row."""

    mean: Array
    """(k, n) of one row, without what earlier summaries add."""
    scale: Array
    """(k, n); (k, 1) if it is the same everywhere."""
    log_scale: Array
    """(n,) or (1,) sum of their logarithms, those of cells left out."""
    uncertain: Uncertain | None
    student: Student | None
    """The law of the residuals that are normal, if scales are uncertain."""


class Surrogate(NamedTuple):
    """The law of the summaries given the parameters, and the probability that a simulation succeeds."""

    form: Form
    factors: tuple[Factor, ...]
    success: Success | None
    power: float = 1.0
    """Of the likelihood: below 1 if the surrogate is too sure."""
    leverages: Leverages | None = None
    """How uncertain the coefficients are; None if there are so many simulations that they are not."""

    def at(self, rows: Array) -> list[Coefficients]:
        """For each of some rows of summaries (m, s), or of some data sets of rows (m, rows, s)."""
        every = rows.reshape(-1, rows.shape[-1])
        shape, transformed = rows.shape[:-1], self.form.transform(every)
        cells: list[Cells | None] = [None] * len(rows)
        if self.form.cells.any():
            found = self.form.transform.cells(every)
            assert found is not None
            some = (one[:, self.form.cells].reshape(*shape, -1) for one in found)
            cells = [Cells(*one) for one in zip(*some, strict=True)]
        mean = self.of_each([factor.mean for factor in self.factors])
        if rows.ndim == 3:
            each = transformed.reshape(*shape, -1)
            return [Coefficients(one, mean, None, None, mine) for one, mine in zip(each, cells, strict=True)]
        earlier = transformed if self.form.transform.values is None else self.form.transform.before(every)
        terms, lags = self.form.terms, self.form.common
        vary = any(one.volatility for one in terms)
        means = np.repeat(mean[None], len(rows), axis=0)
        scales = np.repeat(self.of_each([factor.scale for factor in self.factors])[None], len(rows), axis=0)
        for k, factor in enumerate(self.factors[:lags]):
            if terms[k].begin(k) < k:
                means[:, k], scales[:, k] = factor.given(earlier[:, :k])
        if lags < len(terms):
            before = np.lib.stride_tricks.sliding_window_view(earlier, lags, axis=1)[:, :-1]
            means[:, lags:], scales[:, lags:] = self.factors[-1].given(before)
        return [
            Coefficients(one, whole, whole - mean, scale if vary else None, mine)
            for one, whole, scale, mine in zip(transformed, means, scales, cells, strict=True)
        ]

    def there(self, columns: Array) -> There:
        """What it says at features (n, p), whatever the row: scales are those without earlier summaries."""
        uncertain = None if self.leverages is None else self.leverages.at(columns)
        mean = _at(columns, self.of_each([factor.mean for factor in self.factors]))
        scales = self._scales(columns, self.of_each([factor.scale for factor in self.factors]))
        student = None if uncertain is None else student_of(uncertain.freedom[self.form.law.plain])
        return There(mean, *scales, uncertain, student)

    def of_each(self, of_factors: list[Any]) -> Array:
        """What is known of factors for each summary: in a series, all but the first have the last one."""
        return np.array(of_factors)[np.minimum(np.arange(len(self.form.terms)), len(self.factors) - 1)]

    def _scales(self, columns: Array, coefficients: Array) -> tuple[Array, Array]:
        """Scales (k, n) at features (n, p), and sums (n,) of their logs; (k, 1) and (1,) if they are constant."""
        low, high = self.of_each([(factor.low, factor.high) for factor in self.factors]).T[:, :, None]
        log_scale = _at(columns, coefficients) if coefficients[:, 1:].any() else coefficients[:, :1].copy()
        np.minimum(np.maximum(log_scale, low, out=log_scale), high, out=log_scale)
        scale = np.exp(log_scale)
        log_scale[self.form.cells] = 0.0
        return scale, log_scale.sum(axis=0)

    def data_log_likelihood(self, columns: Array, observed: Array, there: There | None = None) -> Array:
        """Log likelihood of the data, one row (s,) or several, at features (n, p); `there` may be given."""
        (data,) = self.at(observed[None])
        pieces = -(-len(columns) * len(self.form.terms) // AT_ONCE)
        if there is None and pieces > 1:
            return np.concatenate([self.log_likelihood(one, data) for one in np.array_split(columns, pieces)])
        return self.log_likelihood(columns, data, there)

    def log_likelihood(self, columns: Array, given: Coefficients, there: There | None = None) -> Array:
        """Log density of a row, or of all rows of a data set, in transformed summaries, at features (n, p).

        That of a row is averaged over the uncertainty of the coefficients. In a cell it is the mean density. `there`
        may be given.
        """
        there = self.there(columns) if there is None else there
        if given.row.ndim == 2:
            found = self._of_rows(columns, given, there)
        else:
            assert given.added is not None
            if given.scale is not None:
                scale, log_scale = self._scales(columns, given.scale)
                there = there._replace(scale=scale, log_scale=log_scale)
            # The first column is constant.
            residuals = (given.row - given.added[:, 0])[:, None] - there.mean
            if given.added[:, 1:].any():
                residuals -= _at(columns[:, 1:], given.added[:, 1:])
            in_cells = self.form.cells
            mean = given.row[in_cells, None] - residuals[in_cells]
            residuals /= there.scale
            found, spread = self._predictive(residuals, there)
            found -= there.log_scale
            if given.cells is not None:
                of_cells = given.cells.some((slice(None), None))
                log_scale = np.log(spread * there.scale[in_cells])
                mass = log_mass(*of_cells.standardised(mean, log_scale)) - of_cells.log_width
                found += mass.sum(axis=0)
        if self.success is not None:
            found = found + self.success.log_probability(columns)
        return self.power * found

    def _predictive(self, residuals: Array, there: There) -> tuple[Array, Array]:
        """Log densities (n,) of residuals (k, n), averaged over the uncertainty of the coefficients.

        Those of cells are left out. Given with the deviations (c, n) of these, which are 1 if coefficients are known.
        """
        if self.leverages is None or there.uncertain is None or there.student is None:
            return self.form.law.log_density(residuals.T), np.ones((1, 1))
        in_cells, variances = self.form.cells, self.leverages.variances(there.uncertain, residuals)
        # The log of a product of few variances is one logarithm instead of many.
        some = variances[~in_cells] if in_cells.any() else variances
        products = [some[k : k + PRODUCTS].prod(axis=0) for k in range(0, len(some), PRODUCTS)]
        found = self.form.law.log_predictive(residuals, variances, there.student)
        deviations = np.sqrt(variances[in_cells])
        return found - 0.5 * np.log(products).sum(axis=0), deviations

    def _of_rows(self, columns: Array, given: Coefficients, there: There) -> Array:
        """Sums (n,) of the log densities of the rows of a data set."""
        (number, width), mean = given.row.shape, there.mean.T
        scale = np.broadcast_to(there.scale.T, mean.shape)
        slopes, in_cells = [columns @ factor.earlier.T for factor in self.factors], self.form.cells
        found, size = np.empty(len(columns)), max(1, CHUNK // (number * width))
        for some in (slice(top, top + size) for top in range(0, len(columns), size)):
            residuals = given.row - mean[some, None, :]
            for k, slope in enumerate(slopes):
                if self.factors[k].earlier.any():
                    residuals[:, :, k] -= slope[some] @ given.row[:, :k].T
            mean_in_cells = (given.row - residuals)[:, :, in_cells]
            residuals /= scale[some, None, :]
            found[some] = self.form.law.log_density(residuals.reshape(-1, width)).reshape(-1, number).sum(axis=1)
            if given.cells is not None:
                log_scale = np.log(scale[some, None, in_cells])
                mass = log_mass(*given.cells.standardised(mean_in_cells, log_scale)) - given.cells.log_width
                found[some] += mass.sum(axis=(1, 2))
        return found - number * there.log_scale

    def log_density(self, points: Array, row: Array) -> Array:
        """Log density (n,) of one row of summaries as they are, at parameters (n, dim); of counts, a probability."""
        slope = self.form.transform.log_slope(row)
        return self.data_log_likelihood(self.form.columns(points), row) + slope


def _at(columns: Array, coefficients: Array) -> Array:
    """Sums (k, n) of features (n, p) with coefficients (k, p), the last of which are often zero."""
    last = int(np.flatnonzero(coefficients.any(axis=0)).max(initial=-1)) + 1
    found: Array = coefficients[:, :last] @ columns[:, :last].T
    return found


def fit_surrogate(form: Form, training: Training, success: Success | None) -> Surrogate:
    """The surrogate of a form, fitted to simulations; its own form has no features beyond those that are used."""
    return fit_surrogates(form, training, np.ones((1, len(training.rows)), dtype=bool), success)[0]


def fit_surrogates(form: Form, training: Training, kept: Array, success: Success | None) -> list[Surrogate]:
    """Surrogates of a form, each fitted to the simulations that one row of `kept` (m, n) has."""
    form = form.trimmed(0 if success is None else len(success.coefficients))
    theta, rows, places, weights = training.single_rows(MOST_ROWS)
    kept = np.repeat(kept, len(rows) // len(training.rows), axis=1)
    columns, sets, some = form.columns(theta), form.features.sets(), form.transform.summaries(rows, places)
    parts = parts_of(columns, weights, kept, sets)
    each = [
        fit_factors(parts, some.middle, k, terms, some.response(k)) for k, terms in enumerate(form.terms[: form.common])
    ]
    if form.common < len(form.terms):
        each.append(fit_common(parts, some, form.terms[-1], form.common))
    known = training.rows.ndim == 3
    surrogates = []
    for one, mine in zip(zip(*each, strict=True), parts.weights, strict=True):
        alone = Surrogate(form, one, success)
        information = alone.of_each([factor.information for factor in one])
        leverages = None if known else leverages_of(form.terms, columns, mine, sets, information, form.common)
        surrogates.append(alone._replace(leverages=leverages))
    return surrogates


def leverages_of(
    terms: tuple[Terms, ...], columns: Array, weights: Array, sets: Sets, information: Array, common: int = ALL
) -> Leverages | None:
    """How uncertain the coefficients of factors are that were fitted to features (n, p) of simulations with weights.

    `information` (k,) is how much a simulation says of each mean, where the residual itself says 1.
    Those of curves and volatility only count by their number: where factors have them, coefficients are known well.
    """
    later = np.arange(len(terms)) >= common
    times = np.where(later, np.clip(window_count(len(terms)) / len(columns), 1.0, later.sum()), 1.0)
    number = np.array([coefficient_count(one, k, sets) - len(sets[one.scale]) for k, one in enumerate(terms)]) / times
    total = float(weights.sum())
    if CERTAIN * (number / information).max() <= total:
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
    return Leverages(
        tuple(some), tuple(roots), np.array(mean), np.array(earlier), np.array(scale), begin, left, times, information
    )
