"""Summary statistics learnt by regression (semi-automatic ABC).

The posterior mean of the parameters, as a function of the data, is the summary that loses least for estimating them;
it is approximated by a ridge regression of parameters on data over simulations. Besides each parameter its distance
from the centre is regressed, so that a parameter of which the data show only the size is not lost. Columns are divided
by the standard deviation of the residuals, which puts distances in units of what the data leave open.

Reference: Fearnhead and Prangle (2012).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.engines.numba import Compiled
from onedraw.estimators.weights import effective
from onedraw.model.layout import Layout
from onedraw.model.model import Model
from onedraw.model.simulator import Batched, summarise_observed
from onedraw.results.regression import RIDGE, design

LEAST_EXPLAINED = 0.02
"""Share of a parameter's variance that a column must explain to be kept."""
FEW_EACH, PENALTIES = 10, (RIDGE, 0.01, 0.1, 1.0)
"""Simulations per coefficient below which one of these penalties is chosen."""
FEWEST_EACH = 5
"""Simulations per coefficient from which squares and products are used unless asked for."""


@dataclass(frozen=True, eq=False)
class LearnedSummary:
    """A summary: standardised data and their squares or products, times fitted coefficients."""

    centre: Array
    scale: Array
    terms: str
    coefficients: Array
    """(1 + terms, columns)"""

    def __call__(self, rows: Array) -> Array:
        """Rows of data (n, s) to rows of the summary (n, columns)."""
        return design((rows - self.centre) / self.scale, self.terms) @ self.coefficients


def terms_for(width: int, simulations: int) -> str:
    """The richest regression on this many columns that the simulations can support.

    >>> terms_for(10, 1000), terms_for(100, 1200), terms_for(100, 400)
    ('products', 'squares', 'linear')
    """
    if simulations > FEWEST_EACH * (width * (width + 3) // 2) and width <= 40:
        return "products"
    return "squares" if simulations > FEWEST_EACH * 2 * width else "linear"


def learn(theta: Array, rows: Array, weights: Array, terms: str) -> LearnedSummary | None:
    """The summary from a regression of parameters (n, dim) on rows (n, s); None if the rows explain nothing.

    With few simulations per coefficient the penalty is the one that predicts simulations left out best.
    """
    share = weights / weights.sum()
    centre, spread = rows.mean(axis=0), rows.std(axis=0)
    scale = np.where(spread > 0, spread, 1.0)
    middle = share @ theta
    deviation = np.sqrt(share @ (theta - middle) ** 2)
    scaled = (theta - middle) / np.where(deviation > 0, deviation, 1.0)
    targets = np.concatenate([scaled, np.abs(scaled)], axis=1)
    columns = design((rows - centre) / scale, terms)
    few = effective(share) < FEW_EACH * columns.shape[1]
    fits = [_penalised(columns, targets, share, ridge) for ridge in (PENALTIES if few else (RIDGE,))]
    coefficients, left_out = min(fits, key=lambda fit: float(fit[1].sum()))
    fitted = columns @ coefficients
    residual = share @ (targets - fitted) ** 2
    if few:
        residual, variance = left_out, share @ (targets - share @ targets) ** 2
        r_squared, least = 1.0 - left_out / np.maximum(variance, 1e-300), LEAST_EXPLAINED
    else:
        explained = share @ (fitted - share @ fitted) ** 2
        r_squared = explained / np.maximum(explained + residual, 1e-300)
        least = max(LEAST_EXPLAINED, 3.0 * columns.shape[1] / effective(share) / 2)
    keep, dim = r_squared > least, theta.shape[1]
    # The size of a parameter that is seen itself says little more, and the two are nearly functions of each other.
    keep[dim:] &= r_squared[dim:] > r_squared[:dim]
    if not keep.any():
        return None
    return LearnedSummary(centre, scale, terms, coefficients[:, keep] / np.sqrt(np.maximum(residual[keep], 1e-12)))


def _penalised(columns: Array, targets: Array, share: Array, ridge: float) -> tuple[Array, Array]:
    """Coefficients of a ridge regression, and the mean squares of residuals of simulations left out."""
    penalty = np.full(columns.shape[1], ridge)
    penalty[0] = 1e-10
    weighted = columns * share[:, None]
    gram = weighted.T @ columns + np.diag(penalty)
    coefficients = np.linalg.solve(gram, weighted.T @ targets)
    leverage = np.einsum("ij,ji->i", weighted, np.linalg.solve(gram, columns.T))
    left_out = (targets - columns @ coefficients) / np.maximum(1.0 - leverage, 0.05)[:, None]
    return coefficients, share @ np.square(left_out)


@dataclass(frozen=True, eq=False)
class ComposedSummary:
    """A model's own summary followed by the learnt one."""

    inner: Any
    layout: Layout
    learnt: LearnedSummary

    def __call__(self, value: Any) -> Array:
        """Of one data set."""
        row = self.layout.flatten(summarise_observed(self.inner, value))
        return self.learnt(row[None, :])[0]

    def batch(self, values: Any) -> Array:
        """Of a batch of data sets."""
        n = len(next(iter(values.values())) if isinstance(values, dict) else values)
        if isinstance(self.inner, Compiled):
            return self.learnt(self.layout.flatten_batch([self.inner(one) for one in values], n))
        return self.learnt(self.layout.flatten_batch(values if self.inner is None else self.inner(values), n))


def with_learned(model: Model, learnt: LearnedSummary) -> Model:
    """The model with the learnt summary behind its own, and Euclidean distance."""
    composed = ComposedSummary(model.summary, model.recipe.layout, learnt)
    whole = model.batched and (model.summary is None or isinstance(model.summary, Batched | Compiled))
    return model.with_summary(Batched(composed.batch) if whole else composed)


class Fitted(NamedTuple):
    """A model with a learnt summary, and the simulations it was learnt from.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> fitted = od.fit_summary(model, budget=200, seed=1)
    >>> fitted.theta.shape
    (200, 1)
    """

    model: Model
    theta: Array
    """(n, dim) draws from the prior."""
    rows: Array
    """(n, s) summaries of the model that was given, at these draws; NaN if a simulation failed."""
    cost: Cost
    learnt: Callable[[Array], Array]
    """From these rows to those of the model with the learnt summary."""
    seed: int
