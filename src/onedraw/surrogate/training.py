"""The simulations that a surrogate is fitted to."""

from typing import NamedTuple

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.engines.streams import Phase, Purpose, Rng

NEGLIGIBLE = 1e-4
"""Share of the largest weight below which a simulation does not count."""


class Training(NamedTuple):
    """Simulations with the weight that each has in a fit.

    Any weights that depend on the parameters alone are right: they say where the fit should be best.
    """

    theta: Array
    """(n, dim) in unbounded coordinates."""
    rows: Array
    """(n, s) summaries; or (n, rows, s), if a data set has rows that are independent and identically distributed."""
    places: Array
    """Places of whole numbers in their cells, of the same shape."""
    weights: Array
    """(n,)"""

    def some(self, index: Array | slice) -> "Training":
        """Some of them."""
        return Training(*(one[index] for one in self))

    def counted(self) -> "Training":
        """Those that count: some are there only to be predicted, with next to no weight, often every second one.

        >>> weights = np.array([1e-6, 0.05, 1e-6, 1.0])
        >>> training_of(np.zeros((4, 1)), np.arange(4.0)[:, None], weights).counted().rows.tolist()
        [[1.0], [3.0]]
        """
        count = self.weights > NEGLIGIBLE * self.weights.max(initial=0.0)
        return self if count.all() else self.some(count)

    def single_rows(self, most: int) -> "Training":
        """Single rows of summaries: some of each data set if it has several, about `most` in all.

        >>> several = training_of(np.zeros((2, 1)), np.arange(12.0).reshape(2, 3, 2), np.ones(2))
        >>> several.single_rows(5).rows.tolist(), several.single_rows(1).theta.shape
        ([[0.0, 1.0], [2.0, 3.0], [6.0, 7.0], [8.0, 9.0]], (2, 1))
        """
        if self.rows.ndim == 2:
            return self
        number = max(1, min(self.rows.shape[1], most // max(len(self.rows), 1)))
        rows, places = (one[:, :number].reshape(-1, one.shape[2]) for one in (self.rows, self.places))
        return Training(np.repeat(self.theta, number, axis=0), rows, places, np.repeat(self.weights, number))


def training_of(theta: Array, rows: Array, weights: Array) -> Training:
    """Simulations whose whole numbers have places in their cells, the same in every run."""
    places = Rng(0, Phase.RESAMPLE).bulk(Purpose.SIMULATE).random(rows.shape) - 0.5
    return Training(theta, rows, places, weights)
