"""Summary statistics learnt by regression (semi-automatic ABC).

The posterior mean of the parameters, as a function of the data, is the summary that loses least for estimating them;
it is approximated by a ridge regression of parameters on data over simulations. Besides each parameter its distance
from the centre is regressed, so that a parameter of which the data show only the size is not lost. Columns are divided
by the standard deviation of the residuals, which puts distances in units of what the data leave open.

Reference: Fearnhead and Prangle (2012).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg.blas import dtrsm
from scipy.linalg.lapack import dpotrf, dpotrs

from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.engines.clock import look
from onedraw.engines.numba import Compiled
from onedraw.estimators.weights import effective
from onedraw.model.layout import Layout
from onedraw.model.model import Model
from onedraw.model.simulator import Batched, summarise_observed
from onedraw.results.learnt_likelihood import CLEARLY
from onedraw.results.regression import RIDGE, design
from onedraw.surrogate.likelihood import better

LEAST_EXPLAINED = 0.02
"""Share of a parameter's variance that a column must explain to be kept."""
FEW_EACH, PENALTIES = 10, (RIDGE, 0.01, 0.1, 1.0)
"""Simulations per coefficient below which one of these penalties is chosen."""
AT_ONCE = 2**18
"""Numbers that the columns of a regression hold at once when a summary is computed, few enough for the cache."""
LEAST_LEFT = 1e-6
"""Of one minus the leverage of a simulation, which rounding could make zero. With more columns than simulations it is
nearly as small: were it taken for larger, a fit that goes through all simulations would seem to predict them."""
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
        size = max(1, AT_ONCE // len(self.coefficients))
        pieces = (rows[top : top + size] for top in range(0, max(len(rows), 1), size))
        return np.concatenate(
            [design((some - self.centre) / self.scale, self.terms) @ self.coefficients for some in pieces]
        )


def terms_for(width: int, simulations: int) -> str:
    """The richest regression on this many columns that the simulations can support.

    >>> terms_for(10, 1000), terms_for(100, 1200), terms_for(100, 400)
    ('products', 'squares', 'linear')
    """
    if simulations > FEWEST_EACH * (width * (width + 3) // 2) and width <= 40:
        return "products"
    return "squares" if simulations > FEWEST_EACH * 2 * width else "linear"


def learn(theta: Array, rows: Array, weights: Array, terms: str) -> LearnedSummary | None:
    """The summary from a regression of parameters (n, dim) on rows (n, s); None if the rows explain nothing."""
    return _regressed(theta, rows, weights, terms)[0]


def learn_near(
    theta: Array, described: Sequence[Array], everywhere: Array, near: Array
) -> tuple[int, LearnedSummary] | None:
    """The summary from a line through all simulations, unless another predicts those near the data better.

    `described` are the same data (n, s) in one or several descriptions: the first counts unless another is better; the
    number of the description comes with the summary. Others are learnt from those near (n,) alone, or have squares or
    products: fewer simulations per coefficient. They must be ahead by two standard errors in the log density of the
    parameters of simulations left out.
    """
    share = near / near.sum()
    found, best = None, np.empty(0)
    for number, rows in enumerate(described):
        for terms in dict.fromkeys(("linear", "squares", terms_for(rows.shape[1], int(near.sum())))):
            for some in (everywhere, near):
                learnt, left_out = _regressed(theta, rows, some.astype(float), terms)
                if learnt is None:
                    continue
                scores = np.zeros(len(theta))
                scores[near] = _log_explained(theta[near], theta[near] - left_out[near])
                if found is None or better(scores, best, share, CLEARLY):
                    found, best = (number, learnt), scores
    return found


def _log_explained(theta: Array, predicted: Array) -> Array:
    """Log densities (m,) of parameters (m, dim) under a normal law around the best line in what was predicted.

    The constant is left out. A summary is as good as its multiples: predictions that are not shrunk as much as the
    narrow range of parameters near the data asks for lose nothing.
    """
    columns = np.column_stack([np.ones(len(theta)), predicted])
    residuals = theta - columns @ np.linalg.lstsq(columns, theta, rcond=None)[0]
    spread = residuals.T @ residuals / len(residuals)
    root = np.linalg.cholesky(spread + 1e-9 * np.diag(np.diag(spread)) + 1e-300 * np.eye(len(spread)))
    found: Array = -0.5 * np.square(np.linalg.solve(root, residuals.T)).sum(axis=0) - np.log(np.diag(root)).sum()
    return found


def _regressed(theta: Array, rows: Array, weights: Array, terms: str) -> tuple[LearnedSummary | None, Array]:
    """The summary of a regression, and the residuals (n, dim) of parameters, each left out of its own fit.

    Parameters that are not seen have their mean as prediction.

    With few simulations per coefficient the penalty is the one that predicts simulations left out best.
    """
    share = weights / weights.sum()
    centre = share @ rows
    spread = np.sqrt(share @ np.square(rows - centre))
    scale = np.where(spread > 0, spread, 1.0)
    middle = share @ theta
    deviation = np.sqrt(share @ (theta - middle) ** 2)
    unit = np.where(deviation > 0, deviation, 1.0)
    scaled = (theta - middle) / unit
    targets = np.concatenate([scaled, np.abs(scaled)], axis=1)
    columns = design((rows - centre) / scale, terms)
    few = effective(share) < FEW_EACH * columns.shape[1]
    fits = [_penalised(columns, targets, share, ridge) for ridge in (PENALTIES if few else (RIDGE,))]
    coefficients, left_out = min(fits, key=lambda fit: float((share @ np.square(fit[1])).sum()))
    if few:
        residual, variance = share @ np.square(left_out), share @ (targets - share @ targets) ** 2
        r_squared, least = 1.0 - residual / np.maximum(variance, 1e-300), LEAST_EXPLAINED
    else:
        fitted = columns @ coefficients
        residual, explained = share @ (targets - fitted) ** 2, share @ (fitted - share @ fitted) ** 2
        r_squared = explained / np.maximum(explained + residual, 1e-300)
        least = max(LEAST_EXPLAINED, 3.0 * columns.shape[1] / effective(share) / 2)
    keep, dim = r_squared > least, theta.shape[1]
    of_theta = left_out[:, :dim] * unit
    # The size of a parameter that is seen itself says little more, and the two are nearly functions of each other.
    keep[dim:] &= r_squared[dim:] > r_squared[:dim]
    # Left out, a parameter that is not seen is predicted by the mean of the others, which falls as it rises: a line in
    # that would seem to predict it exactly.
    of_theta[:, ~keep[:dim]] = theta[:, ~keep[:dim]] - middle[~keep[:dim]]
    if not keep.any():
        return None, of_theta
    coefficients = coefficients[:, keep] / np.sqrt(np.maximum(residual[keep], 1e-12))
    return LearnedSummary(centre, scale, terms, coefficients), of_theta


def _penalised(columns: Array, targets: Array, share: Array, ridge: float) -> tuple[Array, Array]:
    """Coefficients of a ridge regression, and residuals (n, targets) of simulations left out."""
    penalty = np.full(columns.shape[1], ridge)
    penalty[0] = 1e-10
    look()
    weighted = columns * np.sqrt(share)[:, None]
    # Regressions with hundreds of columns take seconds: products of a matrix with itself, and triangles, take half.
    root, failed = dpotrf(weighted.T @ weighted + np.diag(penalty), lower=True)
    if failed:
        return np.full((len(penalty), targets.shape[1]), np.nan), np.full(targets.shape, np.nan)
    coefficients, _ = dpotrs(root, columns.T @ (share[:, None] * targets), lower=True)
    spread = dtrsm(1.0, root, weighted.T, lower=True, overwrite_b=True)
    leverage = np.einsum("ij,ij->j", spread, spread)
    left_out = (targets - columns @ coefficients) / np.maximum(1.0 - leverage, LEAST_LEFT)[:, None]
    return coefficients, left_out


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
