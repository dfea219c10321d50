"""Whole numbers that take few values: the probability that a normal number lies in a cell of its scale.

A whole number k is what is left of a normal number that was rounded: its cell reaches from k - 1/2 to k + 1/2, through
the transform of the summary. The cells of the smallest and of the largest number reach to infinity if many simulations
have these numbers. With a mean and a log scale that are linear in features this is ordered probit regression; with two
numbers it is probit regression.

Reference: McCullagh (1980) on regression models for ordinal data.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr

from onedraw.engines.arrays import Array

LEAST_MASS = 1e-300
FARTHEST = 30.0
"""Standard deviations beyond which cells are taken to be this far: their masses stay positive."""
LEAST_CURVATURE = 1e-6
LEAST_INFORMATION = 0.05
"""Mean squared slope of a log mass in the log scale, 2 for a density, below which steps of it grow no further."""
WIDE_CELL = 0.5
"""Width of a cell, in standard deviations, from which the mass differs from width times density in the middle."""
PILED_UP = 0.05
"""Share of simulations in cells without an end from which a density fits badly, however wide the other cells are."""
OPEN = 0.01
"""Share of simulations at the smallest or largest number from which nothing is taken to lie beyond it."""
NO_DENSITY = 50.0
"""Standard deviations beyond which a normal density is zero in double precision."""
ROOT_2PI = 2.5066282746310002


class Cells(NamedTuple):
    """Cells of transformed whole numbers; NaN where numbers are not whole."""

    low: Array
    high: Array
    log_width: Array
    """Of the cell with both of its ends."""

    def standardised(self, mean: Array, log_scale: Array) -> tuple[Array, Array]:
        """Both ends, for these means and log scales."""
        precision = np.exp(-log_scale)
        return (self.low - mean) * precision, (self.high - mean) * precision

    def some(self, index: object) -> "Cells":
        """Those at an index of the arrays."""
        return Cells(*(one[index] for one in self))  # type: ignore[call-overload]


class Response(NamedTuple):
    """A summary of simulations, as the regression of it has it."""

    values: Array
    """(n,) with whole numbers at their places in their cells."""
    cells: Cells | None = None
    """Of (n,) whole numbers, or of numbers with a point mass."""
    massive: bool = False
    """Whether there is a point mass, so that there is no density."""


class Summaries(NamedTuple):
    """Transformed summaries of simulations: those that others depend on, and those that are regressed on others."""

    middle: Array
    """(n, s), whole numbers as they are."""
    placed: Array
    """(n, s), whole numbers at their places."""
    whole: Array
    """(s,) which are whole numbers."""
    cells: Cells | None = None
    """(n, s); None if no summary has any."""
    massive: Any = False
    """(s,) which have no density because of a point mass."""

    def response(self, k: int) -> Response:
        """Summary k."""
        massive = bool(np.broadcast_to(self.massive, self.whole.shape)[k])
        if self.cells is None or not (self.whole[k] or massive):
            return Response(self.placed[:, k])
        return Response(self.placed[:, k], self.cells.some((slice(None), k)), massive)

    def first(self, number: int) -> "Summaries":
        """The first of them."""
        some = slice(None), slice(number)
        cells = None if self.cells is None else self.cells.some(some)
        return Summaries(self.middle[some], self.placed[some], self.whole[:number], cells)

    def at(self, index: tuple[Array, Array]) -> Response:
        """Summaries of some simulations, all of which are whole numbers if the first is."""
        cells = None if self.cells is None or not self.whole[0] else self.cells.some(index)
        return Response(self.placed[index], cells)


class Slopes(NamedTuple):
    """Derivatives of log masses at standardised cells."""

    mean: Array
    """By the mean, in standard deviations."""
    curvature: Array
    """Negative second derivative by the mean; 1 for a density."""
    scale: Array
    """By the log scale; the squared residual less 1 for a density."""
    log_mass: Array
    """Itself."""
    mixed: Array
    """Negative second derivative by both, the mean in standard deviations; twice the residual for a density."""
    of_scale: Array
    """Negative second derivative by the log scale; twice the squared residual for a density."""


def log_mass(low: Array, high: Array) -> Array:
    """Log of the probability that a standard normal number lies between low and high.

    >>> log_mass(np.array([-np.inf, -1.0, 20.0]), np.array([0.0, 1.0, np.inf])).round(3).tolist()
    [-0.693, -0.382, -203.917]
    """
    found: Array = np.log(_mass(*_near(low, high)))
    return found


def slopes(low: Array, high: Array) -> Slopes:
    """Derivatives of the log mass between low and high.

    >>> found = slopes(np.array([0.0, 1.99]), np.array([np.inf, 2.01]))
    >>> [one.round(2).tolist() for one in found]
    [[0.8, 2.0], [0.64, 1.0], [0.0, 3.0], [-0.69, -6.83], [0.8, 4.0], [0.0, 8.0]]
    """
    low, high = _near(low, high)
    mass = _mass(low, high)
    at_low, at_high = (np.exp(-0.5 * np.square(one)) / (ROOT_2PI * mass) for one in (low, high))
    mean = at_low - at_high
    # A bound beyond which densities are zero stands for infinity, so that the product is zero.
    low, high = np.maximum(low, -NO_DENSITY), np.minimum(high, NO_DENSITY)
    scale = low * at_low - high * at_high
    # By the log scale, the densities at the bounds change by these.
    by_low, by_high = (one * (np.square(end) - scale) for one, end in ((at_low, low), (at_high, high)))
    curvature = np.maximum(np.square(mean) - scale, LEAST_CURVATURE)
    return Slopes(mean, curvature, scale, np.log(mass), mean - by_low + by_high, scale - low * by_low + high * by_high)


def _near(low: Array, high: Array) -> tuple[Array, Array]:
    """The cells, those far away moved nearer as they are."""
    if low.max() < FARTHEST and high.min() > -FARTHEST:
        return low, high
    away = np.maximum(low - FARTHEST, 0.0) - np.maximum(-FARTHEST - high, 0.0)
    return low - away, high - away


def _mass(low: Array, high: Array) -> Array:
    # Below the mean, where probabilities keep their relative precision.
    flip = low > -high
    return np.maximum(ndtr(np.where(flip, -low, high)) - ndtr(np.where(flip, -high, low)), LEAST_MASS)


def open_ends(rows: Array, observed: Array) -> Array:
    """Numbers (2, s) at which cells have no lower end, and no upper end; infinite where all have.

    >>> open_ends(np.array([[0.0], [0.0], [1.0], [5.0]] * 100 + [[9.0]]), np.array([[3.0]])).tolist()
    [[0.0], [inf]]
    """
    both = np.concatenate([rows, observed])
    lowest, highest = both.min(axis=0), both.max(axis=0)
    return np.stack([
        np.where(np.mean(rows == lowest, axis=0) > OPEN, lowest, -np.inf),
        np.where(np.mean(rows == highest, axis=0) > OPEN, highest, np.inf),
    ])  # fmt: skip


def coarse(cells: Cells, weights: Array, log_scale: float) -> bool:
    """Whether numbers in cells have another law than a density at places in them, by weights (n,) of simulations."""
    share = weights / weights.sum()
    piled = np.isinf(cells.low) | np.isinf(cells.high)
    return bool(share @ np.exp(cells.log_width - log_scale) > WIDE_CELL or share @ piled > PILED_UP)


def known(cells: Cells) -> Array:
    """Which cells say anything: at a point mass they are everything."""
    found: Array = ~(np.isinf(cells.low) & np.isinf(cells.high))
    return found


def only_two(cells: Cells) -> bool:
    """Whether there are only two numbers, whose scale cannot be told from their mean."""
    return bool((np.isinf(cells.low) | np.isinf(cells.high)).all())
