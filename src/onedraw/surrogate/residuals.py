"""The law of standardised residuals: normal, a mixture for each summary, or one mixture for all of them together."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.engines.clock import look
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.estimators.weights import effective
from onedraw.proposals.mixture import moments
from onedraw.surrogate.likelihood import HALF_LOG_2PI, better

ROUNDS = 40
"""Of the EM algorithm."""
LEAST = 1e-3
"""Added to variances, relative to those of all residuals."""
MOST_FITTED = 4000
"""Residuals from which a mixture is fitted."""
WIDE = 0.0005
"""Share of a wide normal, so that no residual is impossible."""
WIDTH = 4.0
"""Its standard deviation, in those of the residuals."""
LEAST_ERRORS = 1.0
"""Gain in the mean log score, in its standard errors, for which a mixture has more parts."""
MOST_JOINT = 8
"""Residuals that may have one mixture together."""
FEWEST_SKEWED, PENALTY = 40, 1.0
"""Residuals from which skewness is tried, and the penalty that keeps it near the normal if they are few."""
LARGEST = 30.0
"""Of the angle whose hyperbolic sine is normal: beyond it a density is zero in double precision."""
LOWEST = 20.0
"""Scores are cut this far below their median, so that no single one decides."""


class Mixed(NamedTuple):
    """A mixture of normals on some of the residuals."""

    columns: Array
    share: Array
    """(g,)"""
    centre: Array
    """(g, k)"""
    inverse: Array
    """(g, k, k), of the Cholesky roots."""
    log_constant: Array
    """(g,) log densities at the centres."""

    def log_density(self, residuals: Array) -> Array:
        """At residuals (n, s)."""
        each = self.log_parts(residuals[:, self.columns])
        top = each.max(axis=0)
        found: Array = top + np.log(np.exp(each - top).sum(axis=0))
        return found

    def log_parts(self, some: Array) -> Array:
        """Log densities (g, n) of the normals at some of the residuals (n, k), times their shares."""
        each = np.empty((len(self.share), len(some)))
        for j, middle in enumerate(self.centre):
            z = (some - middle) @ self.inverse[j].T
            each[j] = np.einsum("ij,ij->i", z, z)
        each *= -0.5
        each += (self.log_constant + np.log(self.share))[:, None]
        return each


class Skewed(NamedTuple):
    """A normal through a hyperbolic sine: one residual with skewness and tails of its own.

    With r = (e - shift) / scale, sinh(tail asinh(r) - skew) is standard normal (Jones and Pewsey, 2009).
    """

    column: int
    shift: float
    log_scale: float
    skew: float
    log_tail: float

    def log_density(self, residuals: Array) -> Array:
        """At residuals (n, s).

        >>> Skewed(0, 0.0, 0.0, 0.0, 0.0).log_density(np.array([[0.0], [1.0]])).round(4).tolist()
        [-0.9189, -1.4189]
        """
        ratio = (residuals[:, self.column] - self.shift) * math.exp(-self.log_scale)
        angle = np.clip(math.exp(self.log_tail) * np.arcsinh(ratio) - self.skew, -LARGEST, LARGEST)
        slope = self.log_tail + np.log(np.cosh(angle)) - 0.5 * np.log1p(np.square(ratio)) - self.log_scale
        found: Array = slope - 0.5 * np.square(np.sinh(angle)) - HALF_LOG_2PI
        return found


class Normal(NamedTuple):
    """One residual that is standard normal."""

    column: int

    def log_density(self, residuals: Array) -> Array:
        """At residuals (n, s)."""
        found: Array = -0.5 * np.square(residuals[:, self.column]) - HALF_LOG_2PI
        return found


Part = Normal | Skewed | Mixed
Fitting = Callable[[Array, Array], Any]
"""From residuals (n, s) and weights to a part."""


class ResidualLaw(NamedTuple):
    """The law of all residuals of a surrogate, whose parts are independent."""

    name: str
    parts: tuple[Part, ...]

    def log_density(self, residuals: Array, freedom: Array | None = None) -> Array:
        """At residuals (n, s); with degrees of freedom (n, s), normal ones have Student's law: scales are uncertain."""
        plain = [part.column for part in self.parts if isinstance(part, Normal)]
        some = residuals[:, plain]
        found: Array
        if freedom is None:
            found = -0.5 * np.einsum("ij,ij->i", some, some) - HALF_LOG_2PI * len(plain)
        else:
            found = log_student(some, freedom[:, plain]).sum(axis=1)
        for part in self.parts:
            if not isinstance(part, Normal):
                found += part.log_density(residuals)
        return found


def log_student(values: Array, freedom: Array) -> Array:
    """Log densities of Student's law; its constant is right within .002 from three degrees of freedom on.

    >>> log_student(np.array([1.0]), np.array([5.0])).round(3).tolist()
    [-1.516]
    """
    kernel = -0.5 * (freedom + 1.0) * np.log1p(np.square(values) / freedom)
    found: Array = kernel - 0.25 / freedom - HALF_LOG_2PI
    return found


def fit_skewed(residuals: Array, weights: Array, column: int) -> Skewed:
    """By maximum likelihood, with a penalty that keeps it near the normal."""
    from scipy.optimize import minimize

    values, share = residuals[:, [column]], weights / weights.sum()
    penalty = PENALTY / len(values)

    def loss(x: Array) -> float:
        bounded = np.maximum(Skewed(0, *x.tolist()).log_density(values), -LOWEST)
        return -float(share @ bounded) + penalty * float(x @ x)

    return Skewed(column, *minimize(loss, np.zeros(4), method="BFGS", options={"maxiter": 30, "gtol": 1e-4}).x.tolist())


def fit_mixture(residuals: Array, weights: Array, columns: Array, number: int) -> Mixed:
    """A mixture of `number` normals by the EM algorithm, and a wide one; two begin as one inside the other."""
    some, share = residuals[:, columns], weights / weights.sum()
    k = some.shape[1]
    mean, whole = moments(some, share)
    whole = whole + 1e-9 * np.eye(k)
    floor = LEAST * np.diag(np.diag(whole))
    centre, spread = _first(some, mean, whole, number)
    mass = np.full(number, 1.0 / number)
    for _ in range(ROUNDS):
        each = Mixed(np.arange(k), mass, centre, *_inverses(spread)).log_parts(some)
        each = np.exp(each - each.max(axis=0))
        part = each / each.sum(axis=0) * share
        mass = np.maximum(part.sum(axis=1), 1e-9)
        found = [moments(some, one / one_mass) for one, one_mass in zip(part, mass, strict=True)]
        centre, spread = np.array([one for one, _ in found]), np.array([one + floor for _, one in found])
        mass = mass / mass.sum()
    mass = np.append((1 - WIDE) * mass, WIDE)
    inverse, constant = _inverses(np.concatenate([spread, WIDTH**2 * whole[None]]))
    return Mixed(columns, mass, np.concatenate([centre, mean[None]]), inverse, constant)


def _first(some: Array, mean: Array, whole: Array, number: int) -> tuple[Array, Array]:
    if number == 2:
        return np.array([mean, mean]), np.array([0.2 * whole, 2.0 * whole])
    # The same residuals in every run.
    picked = Rng(0, Phase.RESAMPLE).bulk(Purpose.ACCEPT).choice(len(some), number, replace=False)
    return some[picked].copy(), np.array([0.5 * whole] * number)


def _inverses(spread: Array) -> tuple[Array, Array]:
    root = np.linalg.cholesky(spread)
    inverse = np.linalg.inv(root)
    log_root = np.log(np.diagonal(root, axis1=1, axis2=2)).sum(axis=1)
    return inverse, -log_root - HALF_LOG_2PI * spread.shape[1]


def choose_law(residuals: Array, weights: Array, thorough: bool = True) -> ResidualLaw:
    """The law of each residual, or of all together, that predicts the other half of them best.

    Unless it is thorough, single residuals are normal.
    """
    step = -(-len(residuals) // MOST_FITTED)
    some, weight = residuals[::step], weights[::step]
    width, n = some.shape[1], effective(weight) / 2
    of_one = [_fits_of_one(k, n if thorough else 0.0) for k in range(width)]
    each = [_best(some, weight, fits) for fits in of_one]
    numbers = (2, 4, 8, 16) if thorough else (2, 4)
    apart = np.sum([scores for _, scores in each], axis=0)
    together = _best(some, weight, [lambda r, w: None, *_fits_of_all(width, n, numbers)], apart)
    if together[0] is not None:
        return ResidualLaw(f"joint mixture of {len(together[0].share) - 1}", (together[0],))
    parts = tuple(part for part, _ in each)
    names = {type(part).__name__.lower() for part in parts}
    return ResidualLaw(" and ".join(sorted(names)), parts)


def _fits_of_one(k: int, n: float) -> list[Fitting]:
    found: list[Fitting] = [lambda r, w: Normal(k)]
    if n > FEWEST_SKEWED:
        found.append(lambda r, w: fit_skewed(r, w, k))
    return found + [partial(_mixture, np.array([k]), g) for g in (2, 3) if n > 60 * g]


def _fits_of_all(width: int, n: float, numbers: tuple[int, ...]) -> list[Fitting]:
    each = 6 * (1 + width * (width + 3) / 2)
    return [partial(_mixture, np.arange(width), g) for g in numbers if 1 < width <= MOST_JOINT and n > g * each]


def _mixture(columns: Array, number: int, residuals: Array, weights: Array) -> Mixed:
    return fit_mixture(residuals, weights, columns, number)


def _best(residuals: Array, weights: Array, fits: list[Fitting], first: Array | None = None) -> tuple[Any, Array]:
    """The part that predicts best, fitted to all, and its scores (n,), each from the other half.

    `first` are scores of the first, if they are known.
    """
    share, even = weights / weights.sum(), np.arange(len(residuals)) % 2 == 0
    best, chosen = np.full(len(residuals), -np.inf), fits[0]
    for fit in fits:
        look()
        scores = np.empty(len(residuals))
        if first is not None and fit is fits[0]:
            scores = first
        else:
            for half in (even, ~even):
                scores[~half] = fit(residuals[half], weights[half]).log_density(residuals[~half])
        scores = np.maximum(scores, float(np.median(scores)) - LOWEST)
        if better(scores, best, share, LEAST_ERRORS):
            best, chosen = scores, fit
    return chosen(residuals, weights), best
