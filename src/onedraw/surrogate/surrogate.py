"""The whole surrogate likelihood: how it is fitted to simulations, and its value at parameters for given summaries."""

from typing import NamedTuple

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.surrogate.choice import Form, coefficient_count
from onedraw.surrogate.features import Sets
from onedraw.surrogate.likelihood import Factor, Terms, gram, only_factor, penalty
from onedraw.surrogate.success import Success
from onedraw.surrogate.training import Training

MOST_ROWS = 60_000
"""Rows that a surrogate is fitted to, if data sets have several."""
CHUNK = 2**16
"""Residuals of rows computed at once, few enough for the cache."""
CERTAIN = 100.0
"""Simulations per coefficient from which coefficients count as known."""
LEAST_LEFT = 0.1
"""Share of the simulations that is left at least when coefficients are fitted."""
FEWEST_FREE = 3.0
"""Degrees of freedom that a scale has at least."""


class Coefficients(NamedTuple):
    """A surrogate for one row of summaries, or for several, as a function of the features of parameters."""

    row: Array
    """(k,) or (rows, k)"""
    mean: Array
    """(p, k); of several rows, without what earlier summaries add."""
    scale: Array
    """(p, k)"""
    low: Array
    high: Array


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

    def at(self, columns: Array) -> Array:
        """The variances (m, n) of all sets at features (n, p)."""
        return np.array([
            np.square(columns[:, some] @ root).sum(axis=1) for some, root in zip(self.columns, self.roots, strict=True)
        ])  # fmt: skip

    def spread(self, found: Array, residuals: Array) -> tuple[Array, Array]:
        """Variances (n, k) of residuals (n, k) with those of the mean, and degrees of freedom of their scales.

        The residuals of the earlier summaries are independent of each other and of the features: each of their
        coefficients adds its own variance. These residuals are fitted ones, which are smaller than they would be.
        """
        squares = np.concatenate([np.zeros((len(residuals), 1)), np.cumsum(np.square(residuals), axis=1)], axis=1)
        before = squares[:, :-1] - squares[:, self.begin]
        of_earlier = np.where(self.earlier < 0, 0.0, found[self.earlier].T / np.maximum(self.left, LEAST_LEFT))
        variances: Array = 1.0 + found[self.mean].T + of_earlier * before
        return variances, np.maximum(self.left / found[self.scale].T, FEWEST_FREE)


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
        scale = np.array([factor.scale for factor in self.factors]).T
        low, high = np.array([(factor.low, factor.high) for factor in self.factors]).T
        if rows.ndim == 3:
            mean = np.array([factor.mean for factor in self.factors]).T
            flat = None if places is None else places.reshape(-1, rows.shape[2])
            every = self.form.transform(rows.reshape(-1, rows.shape[2]), flat).reshape(len(rows), rows.shape[1], -1)
            return [Coefficients(some, mean, scale, low, high) for some in every]
        return [
            Coefficients(row, np.array([f.mean + row[:k] @ f.earlier for k, f in enumerate(self.factors)]).T, scale,
                         low, high)
            for row in self.form.transform(rows, places)
        ]  # fmt: skip

    def uncertain(self, columns: Array) -> Array | None:
        """How uncertain fitted values are at features (n, p), whatever the row."""
        return None if self.leverages is None else self.leverages.at(columns)

    def log_likelihood(self, columns: Array, given: Coefficients, uncertain: Array | None = None) -> Array:
        """Log density of a row, or of all rows of a data set, in transformed summaries, at features (n, p).

        That of a row is averaged over the uncertainty of the coefficients, which may be given.
        """
        log_scale = np.clip(columns @ given.scale, given.low, given.high)
        if given.row.ndim == 2:
            found = self._of_rows(columns, given, log_scale)
        else:
            residuals = (given.row - columns @ given.mean) * np.exp(-log_scale)
            found = self._predictive(columns, residuals, uncertain) - log_scale.sum(axis=1)
        if self.success is not None:
            found = found + self.success.log_probability(columns)
        return self.power * found

    def _predictive(self, columns: Array, residuals: Array, uncertain: Array | None) -> Array:
        """Log densities (n,) of residuals, averaged over the uncertainty of the coefficients."""
        if self.leverages is None:
            return self.form.law.log_density(residuals)
        found = self.leverages.at(columns) if uncertain is None else uncertain
        variances, freedom = self.leverages.spread(found, residuals)
        averaged = self.form.law.log_density(residuals / np.sqrt(variances), freedom)
        return averaged - 0.5 * np.log(variances).sum(axis=1)

    def _of_rows(self, columns: Array, given: Coefficients, log_scale: Array) -> Array:
        """Sums (n,) of the log densities of the rows of a data set."""
        (number, width), mean = given.row.shape, columns @ given.mean
        slopes = [columns @ factor.earlier.T for factor in self.factors]
        found, size = np.empty(len(columns)), max(1, CHUNK // (number * width))
        for some in (slice(top, top + size) for top in range(0, len(columns), size)):
            residuals = given.row - mean[some, None, :]
            for k, slope in enumerate(slopes):
                if self.factors[k].earlier.any():
                    residuals[:, :, k] -= slope[some] @ given.row[:, :k].T
            residuals *= np.exp(-log_scale[some])[:, None, :]
            found[some] = self.form.law.log_density(residuals.reshape(-1, width)).reshape(-1, number).sum(axis=1)
        return found - number * log_scale.sum(axis=1)

    def log_density(self, points: Array, row: Array) -> Array:
        """Log density (n,) of one row of summaries as they are, at parameters (n, dim)."""
        slope = self.form.transform.log_slope(row)
        return self.log_likelihood(self.form.columns(points), self.at(row[None])[0]) + slope


def fit_surrogate(form: Form, training: Training, success: Success | None) -> Surrogate:
    """The surrogate of a form, fitted to simulations."""
    theta, rows, places, weights = training.single_rows(MOST_ROWS)
    columns, sets, transformed = form.columns(theta), form.features.sets(), form.transform(rows, places)
    factors = [only_factor(columns, transformed, weights, k, terms, sets) for k, terms in enumerate(form.terms)]
    leverages = None if training.rows.ndim == 3 else leverages_of(form.terms, columns, weights, sets)
    return Surrogate(form, tuple(factors), success, leverages=leverages)


def leverages_of(terms: tuple[Terms, ...], columns: Array, weights: Array, sets: Sets) -> Leverages | None:
    """How uncertain the coefficients of factors are that were fitted to features (n, p) of simulations with weights."""
    number = np.array([coefficient_count(one, k, sets) - len(sets[one.scale]) for k, one in enumerate(terms)])
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
    return Leverages(tuple(some), tuple(roots), np.array(mean), np.array(earlier), np.array(scale), begin, left)
