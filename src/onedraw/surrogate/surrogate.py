"""The whole surrogate likelihood: how it is fitted to simulations, and its value at parameters for given summaries."""

from typing import NamedTuple

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.surrogate.choice import Form
from onedraw.surrogate.likelihood import Factor, only_factor
from onedraw.surrogate.success import Success
from onedraw.surrogate.training import Training

MOST_ROWS = 60_000
"""Rows that a surrogate is fitted to, if data sets have several."""
CHUNK = 2**16
"""Residuals of rows computed at once, few enough for the cache."""


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


class Surrogate(NamedTuple):
    """The law of the summaries given the parameters, and the probability that a simulation succeeds."""

    form: Form
    factors: tuple[Factor, ...]
    success: Success | None
    power: float = 1.0
    """Of the likelihood: below 1 if the surrogate is too sure."""

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

    def log_likelihood(self, columns: Array, given: Coefficients) -> Array:
        """Log density of a row, or of all rows of a data set, in transformed summaries, at features (n, p)."""
        log_scale = np.clip(columns @ given.scale, given.low, given.high)
        if given.row.ndim == 2:
            found = self._of_rows(columns, given, log_scale)
        else:
            residuals = (given.row - columns @ given.mean) * np.exp(-log_scale)
            found = self.form.law.log_density(residuals) - log_scale.sum(axis=1)
        if self.success is not None:
            found = found + self.success.log_probability(columns)
        return self.power * found

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
    return Surrogate(form, tuple(factors), success)
