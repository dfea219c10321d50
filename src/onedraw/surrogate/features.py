"""Features of parameters: powers and products of standardised coordinates, and smooth steps.

Steps are in random directions, the same in every run, and, if there are many simulations, along single coordinates at
quantiles of those that count: then they are where the posterior is, however narrow that is.

All sets of features are columns of one matrix, the constant first, so that a regression is told which columns it has.
"""

from functools import lru_cache
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.engines.streams import Phase, Purpose, Rng

MOST_COLUMNS = 160
"""Powers beyond which a degree is not offered."""
RIDGES = 60
"""Smooth steps in random directions."""
FEWEST_ALONG, GROWTH = 1500, 0.4
"""Simulations from which there are steps along each coordinate, and how many: so many times their cube root."""
OVERLAP, NARROWEST = 1.5, 0.02
"""Widths of these steps in distances between them, and the least in standard deviations of the coordinate."""
BEYOND = 0.1
"""How far beyond the simulations, in their range, features still change."""


Sets = dict[str, Array]
"""Columns of each set of features that a regression may have, by name."""


class Features(NamedTuple):
    """A map from coordinates (n, dim + others) to columns (n, p), standardised over the simulations.

    The first `dim` coordinates have powers and products; the others are further columns as they are.
    """

    dim: int
    centre: Array
    spread: Array
    low: Array
    high: Array
    """Range of the standardised coordinates: beyond it nothing is known, and features stay as they are at its edge."""
    degree: int
    ridges: int
    along: Array
    """(2, dim, number) places and widths of steps along the first coordinates."""
    mean: Array
    scale: Array

    def __call__(self, coordinates: Array) -> Array:
        """The columns at these coordinates."""
        points = np.clip((coordinates - self.centre) / self.spread, self.low, self.high)
        columns = raw_columns(points, self.dim, self.degree, self.ridges, self.along)
        columns[:, 1:] -= self.mean
        columns[:, 1:] /= self.scale
        return columns

    def lower(self, degree: int, steps: bool, along: bool) -> "Features":
        """The same features up to a lower degree, with or without either kind of steps; itself if it has no others."""
        steps, along = steps and self.ridges > 0, along and self.along.size > 0
        if (degree, steps, along) == (self.degree, self.ridges > 0, self.along.size > 0):
            return self
        powers, ridges, last = self._ends()
        number = np.arange(1, last)
        kept = (number < count(self.dim, degree)) | ((number >= count(self.dim, self.degree)) & (number < powers))
        kept |= (number >= powers) & np.where(number < ridges, steps, along)
        return self._replace(
            degree=degree, ridges=self.ridges if steps else 0, along=self.along if along else self.along[..., :0],
            mean=self.mean[kept], scale=self.scale[kept],
        )  # fmt: skip

    def _ends(self) -> tuple[int, int, int]:
        """Where powers and other coordinates end, steps in random directions, and those along coordinates."""
        powers = count(self.dim, self.degree) + len(self.centre) - self.dim
        return powers, powers + self.ridges, powers + self.ridges + self.along[0].size

    def sets(self) -> Sets:
        """The sets by name: "0" is the constant alone, "2" has all products of two.

        Those with a plus have the other coordinates too, "steps" those in random directions, and "along" those along
        coordinates.
        """
        found = {str(degree): np.arange(count(self.dim, degree)) for degree in range(self.degree + 1)}
        powers, ridges, last = self._ends()
        further = np.arange(count(self.dim, self.degree), powers)
        if len(further):
            found |= {f"{name}+": np.append(found[name], further) for name in ("1", "2") if name in found}
        smooth = np.append(found[str(min(self.degree, 2))], further)
        if self.ridges:
            found["steps"] = np.append(smooth, np.arange(powers, ridges))
        if self.along.size:
            found["along"] = np.append(smooth, np.arange(ridges, last))
        return found


def columns_of(columns: Array, some: Array) -> Array:
    """The columns (n, q) of a set, given by their numbers in rising order; no copy if they are the first ones.

    >>> columns_of(np.array([[1.0, 2.0, 3.0]]), np.array([0, 2])).tolist()
    [[1.0, 3.0]]
    """
    return columns[:, : len(some)] if some[-1] == len(some) - 1 else columns[:, some]


@lru_cache(maxsize=32)
def powers(dim: int, degree: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """For each degree from 1 on, which coordinates are multiplied.

    >>> powers(2, 2)
    (((0,), (1,)), ((0, 0), (0, 1), (1, 1)))
    """
    return tuple(tuple(combinations_with_replacement(range(dim), power)) for power in range(1, degree + 1))


def count(dim: int, degree: int) -> int:
    """Columns of all powers up to a degree, the constant among them.

    >>> count(2, 2)
    6
    """
    return 1 + sum(map(len, powers(dim, degree)))


@lru_cache(maxsize=8)
def directions(dim: int, number: int) -> tuple[Array, Array]:
    """Directions (dim, number) and offsets (number,) of smooth steps, the same in every run."""
    rng = Rng(0, Phase.RESAMPLE).bulk(Purpose.MOVE)
    normal = rng.standard_normal((dim, number))
    length = np.array([0.6, 1.2, 2.4])[np.arange(number) % 3]
    return normal / np.linalg.norm(normal, axis=0) * length, rng.uniform(-1.5, 1.5, number)


def raw_columns(points: Array, dim: int, degree: int, ridges: int, along: Array | None = None) -> Array:
    """The constant, products of the first `dim` coordinates, the other coordinates, and both kinds of steps.

    >>> raw_columns(np.array([[2.0, 3.0, 7.0]]), 2, 2, 0).tolist()
    [[1.0, 2.0, 3.0, 4.0, 6.0, 9.0, 7.0]]
    """
    n, width = points.shape
    places, widths = np.zeros((2, dim, 0)) if along is None else along
    # Each column in one piece of memory.
    columns = np.empty((count(dim, degree) + width - dim + ridges + places.size, n))
    across = np.ascontiguousarray(points.T)
    columns[0] = 1.0
    known: dict[tuple[int, ...], int] = {(): 0}
    for factors in (one for of_degree in powers(dim, degree) for one in of_degree):
        known[factors] = len(known)
        np.multiply(columns[known[factors[:-1]]], across[factors[-1]], out=columns[known[factors]])
    end = len(known) + width - dim
    columns[len(known) : end] = across[dim:]
    if ridges:
        direction, offset = directions(dim, ridges)
        steps = direction.T @ across[:dim]
        steps += offset[:, None]
        np.tanh(steps, out=columns[end : end + ridges])
    if places.size:
        bends = (across[:dim, None] - places[:, :, None]) / widths[:, :, None]
        np.tanh(bends.reshape(-1, n), out=columns[end + ridges :])
    return columns.T


def steps_along(points: Array, weights: Array, number: int) -> Array:
    """Places and widths (2, dim, number) of steps along each coordinate of points (n, dim): evenly spread quantiles.

    >>> steps_along(np.arange(8.0)[:, None], np.repeat([0.0, 1.0], 4), 2).tolist()
    [[[4.0, 6.0]], [[3.0, 3.0]]]
    """
    order = np.argsort(points, axis=0, kind="stable")
    below = np.cumsum(weights[order], axis=0) / weights.sum()
    levels = (np.arange(number) + 0.5) / number
    picked = np.array([np.searchsorted(one, levels) for one in below.T])
    places = np.take_along_axis(points, np.take_along_axis(order, picked.T, axis=0), axis=0).T
    share = weights / weights.sum()
    spread = np.sqrt(share @ np.square(points - share @ points))
    widths = np.maximum(OVERLAP * np.gradient(places, axis=1), NARROWEST * np.where(spread > 0, spread, 1.0)[:, None])
    return np.array([places, widths])


def features_of(coordinates: Array, dim: int, most: int, weights: Array | None = None, total: int = 0) -> Features:
    """Features with at most about `most` columns, standardised over these coordinates (n, dim + others).

    They are some of `total` simulations, with the weight that each has in a fit.
    """
    centre, spread = coordinates.mean(axis=0), coordinates.std(axis=0)
    # The mean of equal numbers may differ from them in the last digit.
    spread = np.where(spread > 1e-12 * np.abs(centre), spread, 1.0)
    points = (coordinates - centre) / spread
    low, high = points.min(axis=0), points.max(axis=0)
    margin = BEYOND * (high - low)
    degree = max(d for d in (1, 2, 3) if d == 1 or count(dim, d) <= min(most, MOST_COLUMNS))
    smooth, number = count(dim, min(degree, 2)), round(GROWTH * total ** (1 / 3))
    ridges = RIDGES if smooth + RIDGES <= most else 0
    along = np.empty((2, dim, 0))
    if weights is not None and total >= FEWEST_ALONG and smooth + dim * number <= most:
        along = steps_along(points[:, :dim], weights, number)
    columns = raw_columns(points, dim, degree, ridges, along)[:, 1:]
    scale = columns.std(axis=0)
    scale = np.where(scale > 1e-12, scale, 1.0)
    mean = columns.mean(axis=0)
    return Features(dim, centre, spread, low - margin, high + margin, degree, ridges, along, mean, scale)
