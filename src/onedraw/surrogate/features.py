"""Features of parameters: powers and products of standardised coordinates, and smooth steps in random directions.

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
    mean: Array
    scale: Array

    def __call__(self, coordinates: Array) -> Array:
        """The columns at these coordinates."""
        points = np.clip((coordinates - self.centre) / self.spread, self.low, self.high)
        columns = raw_columns(points, self.dim, self.degree, self.ridges)
        columns[:, 1:] -= self.mean
        columns[:, 1:] /= self.scale
        return columns

    def lower(self, degree: int, steps: bool) -> "Features":
        """The same features up to a lower degree, with or without smooth steps; itself if it has no others."""
        if degree == self.degree and (steps or not self.ridges):
            return self
        end, others = count(self.dim, self.degree), len(self.centre) - self.dim
        kept = np.arange(1, len(self.mean) + 1)
        kept = kept[(kept < count(self.dim, degree)) | ((kept >= end) & ((kept < end + others) | steps))] - 1
        ridges = self.ridges if steps else 0
        return self._replace(degree=degree, ridges=ridges, mean=self.mean[kept], scale=self.scale[kept])

    def sets(self) -> Sets:
        """The sets by name: "0" is the constant alone, "2" has all products of two, "steps" has smooth steps too.

        Those with a plus have the other coordinates too.
        """
        found = {str(degree): np.arange(count(self.dim, degree)) for degree in range(self.degree + 1)}
        others = len(self.centre) - self.dim
        end = count(self.dim, self.degree) + others
        further = np.arange(end - others, end)
        if others:
            found |= {f"{name}+": np.append(found[name], further) for name in ("1", "2") if name in found}
        if self.ridges:
            smooth = found[str(min(self.degree, 2))]
            found["steps"] = np.concatenate([smooth, further, np.arange(end, end + self.ridges)])
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


def raw_columns(points: Array, dim: int, degree: int, ridges: int) -> Array:
    """The constant, products of the first `dim` coordinates, the other coordinates, and smooth steps.

    >>> raw_columns(np.array([[2.0, 3.0, 7.0]]), 2, 2, 0).tolist()
    [[1.0, 2.0, 3.0, 4.0, 6.0, 9.0, 7.0]]
    """
    n, width = points.shape
    # Each column in one piece of memory.
    columns, across = np.empty((count(dim, degree) + width - dim + ridges, n)), np.ascontiguousarray(points.T)
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
        np.tanh(steps, out=columns[end:])
    return columns.T


def features_of(coordinates: Array, dim: int, most: int) -> Features:
    """Features with at most about `most` columns, standardised over these coordinates (n, dim + others)."""
    centre, spread = coordinates.mean(axis=0), coordinates.std(axis=0)
    # The mean of equal numbers may differ from them in the last digit.
    spread = np.where(spread > 1e-12 * np.abs(centre), spread, 1.0)
    points = (coordinates - centre) / spread
    low, high = points.min(axis=0), points.max(axis=0)
    margin = BEYOND * (high - low)
    degree = max(d for d in (1, 2, 3) if d == 1 or count(dim, d) <= min(most, MOST_COLUMNS))
    ridges = RIDGES if count(dim, min(degree, 2)) + RIDGES <= most else 0
    columns = raw_columns(points, dim, degree, ridges)[:, 1:]
    scale = columns.std(axis=0)
    scale = np.where(scale > 1e-12, scale, 1.0)
    return Features(dim, centre, spread, low - margin, high + margin, degree, ridges, columns.mean(axis=0), scale)
