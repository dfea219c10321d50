"""Point masses at an end of a summary's range: days without rain, measurements below a limit, no survivors.

A summary with such a mass becomes two columns or three: one for each mass, a whole number that is 0 at the mass and 1
beside it, and the summary itself, which is looked at only beside its masses. This is a hurdle model (Cragg 1971,
Mullahy 1986). At the mass the cell of the summary itself is everything, so that it has the probability 1 there and
counts in no fit.
"""

from typing import Any, NamedTuple

import numpy as np

from onedraw.engines.arrays import Array

LEAST_SHARE = 0.02
"""Share of simulations at an end of a continuous summary from which it is a point mass."""
FEWEST = 10
"""Simulations at a mass and beside all masses, at least."""
DISTINCT = 0.5
"""Share of the other values that must differ from each other: otherwise they lie on a lattice, as proportions do."""


class PointMasses(NamedTuple):
    """What each column says of its summary; single numbers hold for all columns."""

    value: Any
    """(k,) the mass of which a column says whether the summary differs from it; NaN if it is the summary itself."""
    low: Any
    """(k,) the mass above which the summary is looked at, and the one below which it is; infinite if there is none."""
    high: Any

    @property
    def beside(self) -> Any:
        """(k,) which columns are summaries beside a mass."""
        return np.isnan(self.value) & (np.isfinite(self.low) | np.isfinite(self.high))

    def hold(self, some: Array) -> Array:
        """Which of the summaries (n, k) are at a mass of an earlier column, so that this one says nothing."""
        found: Array = (some <= self.low) | (some >= self.high)
        return found

    def indicated(self, some: Array) -> Array:
        """Summaries (n, k), those with a column for a mass as 0 or 1.

        >>> PointMasses(np.array([0.0, np.nan]), np.array([-np.inf, 0.0]), np.inf).indicated(np.array([[0.0], [7.0]]))
        array([[0., 0.],
               [1., 7.]])
        """
        found: Array = np.where(np.isnan(self.value), some, some != self.value)
        return found


NO_MASSES = PointMasses(np.nan, -np.inf, np.inf)


class Masses(NamedTuple):
    """Point masses of s summaries."""

    at_ends: Array
    """(2, s) of continuous ones: ends at which they were cut; infinite if there are none."""
    apart: Array
    """(2, s) that have columns of their own; NaN if there are none."""

    def some(self, index: list[int]) -> "Masses":
        """Of some summaries."""
        return Masses(self.at_ends[:, index], self.apart[:, index])

    def moved(self, number: int, mass: float) -> "Masses":
        """With the mass at this end of the only summary in a column of its own."""
        at_ends, apart = self.at_ends.copy(), self.apart.copy()
        at_ends[number], apart[number] = (-np.inf, np.inf)[number], mass
        return Masses(at_ends, apart)

    def columns(self) -> Array:
        """(s,) how many columns each summary has."""
        return 1 + (~np.isnan(self.apart)).sum(axis=0)

    def split(self, kept: Array, whole: Array) -> tuple[Array, Array, PointMasses]:
        """The columns: of which summary each is, which are whole numbers, and what they say.

        >>> masses = no_masses(2).moved(0, np.array([0.0, np.nan])).moved(1, np.array([1.0, np.nan]))
        >>> kept, whole, found = masses.split(np.array([3, 5]), np.array([False, False]))
        >>> kept.tolist(), whole.tolist(), found.value.tolist(), found.low.tolist()
        ([3, 3, 3, 5], [True, True, False, False], [0.0, 1.0, nan, nan], [-inf, 0.0, 0.0, -inf])
        """
        if np.isnan(self.apart).all():
            return kept, whole, NO_MASSES
        columns = []
        for summary, its_whole, low, high in zip(kept, whole, *self.apart, strict=True):
            below = -np.inf if np.isnan(low) else low
            if not np.isnan(low):
                columns.append((summary, True, low, -np.inf, np.inf))
            if not np.isnan(high):
                columns.append((summary, True, high, below, np.inf))
            columns.append((summary, its_whole, np.nan, below, np.inf if np.isnan(high) else high))
        numbers, are_whole, *says = (np.array(one) for one in zip(*columns, strict=True))
        return numbers, are_whole, PointMasses(*says)


def no_masses(number: int) -> Masses:
    """Of so many summaries."""
    return Masses(np.repeat([[-np.inf], [np.inf]], number, axis=1), np.full((2, number), np.nan))


def ends_of(rows: Array, observed: Array) -> Array:
    """The ends (2, s) of rows and data that enough simulations are at, and enough are not; NaN for the others."""
    both = np.concatenate([rows, observed])
    ends = np.stack([both.min(axis=0), both.max(axis=0)])
    number = (rows == ends[:, None]).sum(axis=1)
    enough = (number >= np.maximum(FEWEST, LEAST_SHARE * len(rows))) & (number <= len(rows) - FEWEST)
    return np.where(enough, ends, np.nan)


def without_density(values: Array, low: float, high: float) -> bool:
    """Whether values (n,) with masses at these ends are continuous beside them."""
    others = values[(values != low) & (values != high)]
    return len(others) >= FEWEST and len(np.unique(others)) > DISTINCT * len(others)
