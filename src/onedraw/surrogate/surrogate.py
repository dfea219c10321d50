"""The whole surrogate likelihood: how it is fitted to simulations, and its value at parameters for given summaries."""

from typing import NamedTuple

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.surrogate.choice import Form
from onedraw.surrogate.likelihood import Factor, fit_factor
from onedraw.surrogate.success import Success
from onedraw.surrogate.training import Training


class Coefficients(NamedTuple):
    """A surrogate for one row of summaries, as a function of the features of parameters."""

    row: Array
    mean: Array
    """(p, k)"""
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
        """For each of some rows of summaries (m, s)."""
        scale = np.array([factor.scale for factor in self.factors]).T
        low, high = np.array([(factor.low, factor.high) for factor in self.factors]).T
        return [
            Coefficients(row, np.array([f.mean + row[:k] @ f.earlier for k, f in enumerate(self.factors)]).T, scale,
                         low, high)
            for row in self.form.transform(rows, places)
        ]  # fmt: skip

    def log_likelihood(self, columns: Array, given: Coefficients) -> Array:
        """Log density of a row, in transformed summaries, at features (n, p)."""
        log_scale = np.clip(columns @ given.scale, given.low, given.high)
        residuals = (given.row - columns @ given.mean) * np.exp(-log_scale)
        found = self.form.law.log_density(residuals) - log_scale.sum(axis=1)
        if self.success is not None:
            found = found + self.success.log_probability(columns)
        return self.power * found

    def log_density(self, points: Array, row: Array) -> Array:
        """Log density (n,) of one row of summaries as they are, at parameters (n, dim)."""
        slope = self.form.transform.log_slope(row)
        return self.log_likelihood(self.form.columns(points), self.at(row[None])[0]) + slope


def fit_surrogate(form: Form, training: Training, success: Success | None) -> Surrogate:
    """The surrogate of a form, fitted to simulations."""
    theta, rows, places, weights = training
    columns, sets, transformed = form.columns(theta), form.features.sets(), form.transform(rows, places)
    factors = [fit_factor(columns, transformed, weights, k, terms, sets).factor for k, terms in enumerate(form.terms)]
    return Surrogate(form, tuple(factors), success)
