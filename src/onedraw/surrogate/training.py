"""The simulations that a surrogate is fitted to."""

from typing import NamedTuple

from onedraw.engines.arrays import Array
from onedraw.engines.streams import Phase, Purpose, Rng


class Training(NamedTuple):
    """Simulations with the weight that each has in a fit.

    Any weights that depend on the parameters alone are right: they say where the fit should be best.
    """

    theta: Array
    """(n, dim) in unbounded coordinates."""
    rows: Array
    """(n, s) summaries."""
    places: Array
    """(n, s) places of whole numbers in their cells."""
    weights: Array
    """(n,)"""

    def some(self, index: Array | slice) -> "Training":
        """Some of them."""
        return Training(*(one[index] for one in self))


def training_of(theta: Array, rows: Array, weights: Array) -> Training:
    """Simulations whose whole numbers have places in their cells, the same in every run."""
    places = Rng(0, Phase.RESAMPLE).bulk(Purpose.SIMULATE).random(rows.shape) - 0.5
    return Training(theta, rows, places, weights)
