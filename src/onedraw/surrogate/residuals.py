"""The law of standardised residuals: normal, a mixture for each summary, or one mixture for all of them together."""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.engines.clock import look
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.estimators.weights import effective
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
LEAST_DEPARTURE = 5.0
"""Chi-square statistic of four moments from which a residual may be other than normal; if it is normal, the mean is 4.
For a gain of one standard error in the scores of the other half it must be about 7."""
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
        return _log_skewed(residuals[:, self.column], *self[1:])[0]


class Normal(NamedTuple):
    """One residual that is standard normal."""

    column: int

    def log_density(self, residuals: Array) -> Array:
        """At residuals (n, s)."""
        found: Array = -0.5 * np.square(residuals[:, self.column]) - HALF_LOG_2PI
        return found


class Shared(NamedTuple):
    """The law of each of some residuals alone, which is the same for all."""

    columns: Array
    law: Skewed | Mixed
    """Of the only column of residuals (n, 1)."""

    def log_density(self, residuals: Array) -> Array:
        """Sums (n,) at residuals (n, s)."""
        some = residuals[:, self.columns]
        found: Array = self.law.log_density(some.reshape(-1, 1)).reshape(some.shape).sum(axis=1)
        return found


Part = Normal | Skewed | Mixed | Shared
Fitting = Callable[..., Sequence[Part]]
"""From residuals (n, s) and weights to parts, one of each of some columns or of all together."""


class Student(NamedTuple):
    """Student's law for residuals (s, n) with degrees of freedom: what follows from these alone.

    The constant is right within .002 from three degrees of freedom on.

    >>> student_of(np.array([[5.0]])).log_densities(np.array([[1.0]])).round(3).tolist()
    [-1.516]
    """

    inverse: Array
    """(s, n) of the degrees of freedom; or (s, 1), as the others."""
    power: Array
    constant: Array
    """(n,) sum over the residuals."""

    def log_densities(self, squares: Array) -> Array:
        """Sums (n,) of the log densities at residuals with these squares (s, n), which are overwritten."""
        squares *= self.inverse
        squares += 1.0
        # Less exact than log1p for small squares, and exact enough for a sum.
        logs = np.log(squares, out=squares)
        alike = self.power.shape[1] == 1
        return self.constant - (self.power[:, 0] @ logs if alike else np.einsum("kn,kn->n", self.power, logs))


def student_of(freedom: Array) -> Student:
    """From degrees of freedom (s, n), or (s, 1)."""
    inverse = 1.0 / freedom
    return Student(inverse, 0.5 * (freedom + 1.0), -(0.25 * inverse + HALF_LOG_2PI).sum(axis=0))


class ResidualLaw(NamedTuple):
    """The law of all residuals of a surrogate, whose parts are independent."""

    name: str
    parts: tuple[Part, ...]

    @property
    def plain(self) -> Array:
        """Columns of the residuals that are normal."""
        return np.array([part.column for part in self.parts if isinstance(part, Normal)], dtype=np.int64)

    def log_density(self, residuals: Array) -> Array:
        """At residuals (n, s)."""
        plain = self.plain
        some = residuals if len(plain) == residuals.shape[1] else residuals[:, plain]
        found = -0.5 * np.einsum("ij,ij->i", some, some) - HALF_LOG_2PI * len(plain)
        return self._with_others(found, residuals)

    def log_predictive(self, residuals: Array, variances: Array, student: Student) -> Array:
        """At residuals (s, n) that have these variances; normal ones have Student's law: scales are uncertain."""
        if len(student.power) == len(residuals):
            squares = np.square(residuals)
            squares /= variances
            return student.log_densities(squares)
        scaled = residuals / np.sqrt(variances)
        return self._with_others(student.log_densities(np.square(scaled[self.plain])), scaled.T)

    def _with_others(self, found: Array, residuals: Array) -> Array:
        for part in self.parts:
            if not isinstance(part, Normal):
                found += part.log_density(residuals)
        return found


def _log_skewed(
    values: Array, shift: float, log_scale: float, skew: float, log_tail: float
) -> tuple[Array, Array, Array, Array]:
    """Log densities (n,) of a `Skewed` law at values, and the ratios, their hyperbolic angles and the normals there."""
    ratio = (values - shift) * math.exp(-log_scale)
    angle = np.arcsinh(ratio)
    normal = np.sinh(np.clip(math.exp(log_tail) * angle - skew, -LARGEST, LARGEST))
    # The cosine is the root of 1 + sinh^2.
    square = np.square(normal)
    log_slope = log_tail - log_scale + 0.5 * np.log((1.0 + square) / (1.0 + np.square(ratio)))
    return log_slope - 0.5 * square - HALF_LOG_2PI, ratio, angle, normal


def skewed_loss(x: Array, values: Array, share: Array) -> tuple[float, Array]:
    """What `fit_skewed` makes small, at the four numbers of a law, and its gradient (4,).

    It is the negative mean of the log densities of values (n,), by weights that sum to 1, and a penalty.
    """
    log_density, ratio, angle, normal = _log_skewed(values, *x.tolist())
    tail, penalty = math.exp(x[3]), PENALTY / len(values)
    square, slope = np.square(normal), 1.0 / np.sqrt(1.0 + np.square(ratio))
    by_angle = -normal * square / np.sqrt(1.0 + square)
    by_ratio = (tail * by_angle - ratio * slope) * slope
    # Where the angle is cut off, the density is as well.
    counted = np.where(log_density > -LOWEST, share, 0.0)
    gradient = np.array([
        -math.exp(-x[1]) * (counted @ by_ratio),
        -(counted @ (ratio * by_ratio)) - counted.sum(),
        -(counted @ by_angle),
        tail * (counted @ (by_angle * angle)) + counted.sum(),
    ])  # fmt: skip
    loss = -float(share @ np.maximum(log_density, -LOWEST)) + penalty * float(x @ x)
    return loss, 2.0 * penalty * x - gradient


def fit_skewed(residuals: Array, weights: Array, column: int) -> Skewed:
    """By maximum likelihood, with a penalty that keeps it near the normal."""
    from scipy.optimize import minimize

    given, options = (residuals[:, column], weights / weights.sum()), {"maxiter": 30, "gtol": 1e-4}
    found = minimize(skewed_loss, np.zeros(4), given, "BFGS", jac=True, options=options)
    return Skewed(column, *found.x.tolist())


def fit_mixture(residuals: Array, weights: Array, columns: Array, number: int) -> Mixed:
    """A mixture of `number` normals by the EM algorithm, and a wide one; two begin as one inside the other."""
    return _fit_mixtures(residuals, weights, columns[None], number)[0]


def fit_mixtures(residuals: Array, weights: Array, columns: Array, number: int) -> list[Mixed]:
    """A mixture of each of some columns alone, all at once."""
    return _fit_mixtures(residuals, weights, columns[:, None], number)


def _fit_mixtures(residuals: Array, weights: Array, columns: Array, number: int) -> list[Mixed]:
    """Mixtures on sets of columns (m, k): both steps of EM are sums over powers and products of the residuals."""
    k, share = columns.shape[1], weights / weights.sum()
    some, (i, j) = residuals.T[columns], upper(k)
    mean = some @ share
    # Around the mean, so that little is lost in differences of squares.
    some = some - mean[:, :, None]
    powers = np.concatenate([np.ones((len(some), 1, len(share))), some, some[:, i] * some[:, j]], axis=1)
    whole = _symmetric(powers[:, k + 1 :] @ share, k) + 1e-9 * np.eye(k)
    floor = LEAST * (whole * np.eye(k))[:, None]
    centre, spread = _first(some, whole, number)
    mass = np.full((len(some), number), 1.0 / number)
    for _ in range(ROUNDS):
        each = _quadratic(mass, centre, *_inverses(spread)) @ powers
        each -= each.max(axis=1, keepdims=True)
        np.exp(each, out=each)
        each *= (share / each.sum(axis=1))[:, None]
        sums = each @ powers.transpose(0, 2, 1)
        mass = np.maximum(sums[:, :, 0], 1e-9)
        sums /= mass[:, :, None]
        centre = sums[:, :, 1 : k + 1]
        spread = _symmetric(sums[:, :, k + 1 :] - centre[:, :, i] * centre[:, :, j], k) + floor
        mass = mass / mass.sum(axis=1, keepdims=True)
    mass = np.append((1 - WIDE) * mass, np.full((len(some), 1), WIDE), axis=1)
    centre = np.append(centre + mean[:, None], mean[:, None], axis=1)
    inverse, log_constant = _inverses(np.append(spread, WIDTH**2 * whole[:, None], axis=1))
    return [Mixed(*one) for one in zip(columns, mass, centre, inverse, log_constant, strict=True)]


@lru_cache(maxsize=8)
def upper(k: int) -> tuple[Array, Array]:
    """Rows and columns of the upper triangle of a matrix (k, k)."""
    return np.triu_indices(k)


def _symmetric(values: Array, k: int) -> Array:
    """Matrices (..., k, k) of these upper triangles, row by row."""
    if k == 1:
        return values[..., None]
    i, j = upper(k)
    found = np.empty((*values.shape[:-1], k, k))
    found[..., i, j] = found[..., j, i] = values
    return found


def _quadratic(mass: Array, centre: Array, inverse: Array, log_constant: Array) -> Array:
    """Coefficients (m, g, f) of 1, of residuals and of their products in the log densities of normals."""
    i, j = upper(centre.shape[2])
    precision = np.swapaxes(inverse, -1, -2) @ inverse
    slope = (precision @ centre[..., None])[..., 0]
    constant = log_constant + np.log(mass) - 0.5 * np.einsum("mgi,mgi->mg", slope, centre)
    return np.concatenate([constant[..., None], slope, np.where(i == j, -0.5, -1.0) * precision[..., i, j]], axis=2)


def _first(some: Array, whole: Array, number: int) -> tuple[Array, Array]:
    """Centres (m, g, k) and covariances of the normals that EM begins with; residuals (m, k, n) have mean zero."""
    if number == 2:
        return np.zeros((len(some), 2, some.shape[1])), np.stack([0.2 * whole, 2.0 * whole], axis=1)
    # The same residuals in every run.
    picked = Rng(0, Phase.RESAMPLE).bulk(Purpose.ACCEPT).choice(some.shape[2], number, replace=False)
    return some[:, :, picked].transpose(0, 2, 1), np.stack([0.5 * whole] * number, axis=1)


def _inverses(spread: Array) -> tuple[Array, Array]:
    """Of the roots of covariances (..., k, k), and the log densities at the centres."""
    if spread.shape[-1] == 1:
        return 1.0 / np.sqrt(spread), -0.5 * np.log(spread[..., 0, 0]) - HALF_LOG_2PI
    root = np.linalg.cholesky(spread)
    log_root = np.log(np.diagonal(root, axis1=-2, axis2=-1)).sum(axis=-1)
    return np.linalg.inv(root), -log_root - HALF_LOG_2PI * spread.shape[-1]


def choose_law(residuals: Array, weights: Array, thorough: bool = True, among: Array | None = None) -> ResidualLaw:
    """The law of each residual, or of all together, that predicts the other half of them best.

    Unless it is thorough, single residuals are normal. Those that are not `among` these columns have no law here.
    """
    if among is None or len(among) == residuals.shape[1]:
        return _choose_law(residuals, weights, thorough)
    found = _choose_law(residuals[:, among], weights, thorough)
    name = " and ".join(filter(None, (found.name, "cells")))
    return ResidualLaw(name, tuple(_of_columns(part, among) for part in found.parts))


def _of_columns(part: "Part", columns: Array) -> "Part":
    """The same of other columns, given by those that it has."""
    if isinstance(part, Mixed | Shared):
        return part._replace(columns=columns[part.columns])
    return part._replace(column=int(columns[part.column]))


def _choose_law(residuals: Array, weights: Array, thorough: bool) -> ResidualLaw:
    if not residuals.shape[1]:
        return ResidualLaw("", ())
    step = -(-len(residuals) // MOST_FITTED)
    some, weight = residuals[::step], weights[::step]
    width, n = some.shape[1], effective(weight) / 2
    of_one, of_all = _fits_of_one(n if thorough else 0.0), _fits_of_all(width, n, (2, 4, 8, 16) if thorough else (2, 4))
    each, scores = np.zeros(width, dtype=np.int64), _bounded(-0.5 * np.square(some) - HALF_LOG_2PI)
    # One alone may be other than normal only if its moments are.
    tried = np.flatnonzero(departures(some, weight) > LEAST_DEPARTURE) if len(of_one) > 1 else each[:0]
    if len(tried):
        each[tried], scores[:, tried] = _best(some, weight, [partial(fit, columns=tried) for fit in of_one])
    together, _ = _best(some, weight, [_normals, *of_all], scores.sum(axis=1, keepdims=True))
    if together[0]:
        (joint,) = of_all[together[0] - 1](some, weight)
        return ResidualLaw(f"joint mixture of {len(joint.share) - 1}", (joint,))
    columns = [np.flatnonzero(each == k) for k in range(len(of_one))]
    parts = [part for fit, mine in zip(of_one, columns, strict=True) if len(mine) for part in fit(some, weight, mine)]
    names = {type(part).__name__.lower() for part in parts}
    order = np.argsort(np.concatenate(columns))
    return ResidualLaw(" and ".join(sorted(names)), tuple(parts[k] for k in order))


def law_of_series(first: ResidualLaw, steps: ResidualLaw, lags: int, width: int) -> ResidualLaw:
    """The law of a series of so many residuals: that of the first ones, and that of a step (n, 1) for each other."""
    later, names = np.arange(lags, width), {*first.name.split(" and "), steps.name}
    of_steps: list[Part] = []
    for part in steps.parts:
        of_steps = [Shared(later, part)] if isinstance(part, Skewed | Mixed) else [Normal(k) for k in later.tolist()]
    return ResidualLaw(" and ".join(sorted(filter(None, names))), (*first.parts, *of_steps))


def departures(residuals: Array, weights: Array) -> Array:
    """How far the first four moments of residuals (n, s) are from those of normals: chi-square statistics (s,).

    Means of Hermite polynomials are independent for normals, and zero; the squares of the j-th have the mean j!.

    >>> some = np.random.default_rng(1).standard_normal((1000, 2))
    >>> departures(np.column_stack([some, np.abs(some[:, 0])]), np.ones(1000)).round().tolist()
    [3.0, 1.0, 715.0]
    """
    share, x = weights / weights.sum(), residuals
    square = np.square(x)
    moments = (x, square - 1.0, x * (square - 3.0), square * (square - 6.0) + 3.0)
    found: Array = sum(np.square(share @ one) / math.factorial(j) for j, one in enumerate(moments, 1))
    return effective(weights) * found


def _normals(residuals: Array, weights: Array, columns: Array) -> list[Normal]:
    return [Normal(k) for k in columns.tolist()]


def _skewed(residuals: Array, weights: Array, columns: Array) -> list[Skewed]:
    return [fit_skewed(residuals, weights, k) for k in columns.tolist()]


def _fits_of_one(n: float) -> list[Fitting]:
    found: list[Fitting] = [_normals, _skewed] if n > FEWEST_SKEWED else [_normals]
    return found + [partial(fit_mixtures, number=g) for g in (2, 3) if n > 60 * g]


def _fits_of_all(width: int, n: float, numbers: tuple[int, ...]) -> list[Fitting]:
    each = 6 * (1 + width * (width + 3) / 2)
    return [partial(_mixture, np.arange(width), g) for g in numbers if 1 < width <= MOST_JOINT and n > g * each]


def _mixture(columns: Array, number: int, residuals: Array, weights: Array) -> list[Mixed]:
    return [fit_mixture(residuals, weights, columns, number)]


def _best(residuals: Array, weights: Array, fits: Sequence[Fitting], first: Array | None = None) -> tuple[Array, Array]:
    """Which fit predicts best (m,), for each of the m parts that a fit gives, and its scores (n, m).

    Each score is from the other half. `first` are scores of the first, if they are known.
    """
    share, even, chosen = weights / weights.sum(), np.arange(len(residuals)) % 2 == 0, np.zeros(0)
    best = np.empty((len(residuals), 0))
    for number, fit in enumerate(fits):
        look()
        scores = first if first is not None and number == 0 else _crossed(residuals, weights, fit, even)
        scores = _bounded(scores)
        if number == 0:
            best, chosen = scores, np.zeros(scores.shape[1], dtype=np.int64)
            continue
        for k in range(scores.shape[1]):
            if better(scores[:, k], best[:, k], share, LEAST_ERRORS):
                best[:, k], chosen[k] = scores[:, k], number
    return chosen, best


def _bounded(scores: Array) -> Array:
    return np.maximum(scores, np.median(scores, axis=0) - LOWEST)


def _crossed(residuals: Array, weights: Array, fit: Fitting, even: Array) -> Array:
    """Log densities (n, m) of the parts, each half by what is fitted to the other."""
    of_even, of_odd = (
        np.stack([part.log_density(residuals[~half]) for part in fit(residuals[half], weights[half])], axis=1)
        for half in (even, ~even)
    )
    found = np.empty((len(residuals), of_even.shape[1]))
    found[~even], found[even] = of_even, of_odd
    return found
