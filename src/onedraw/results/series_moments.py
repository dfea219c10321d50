"""What a long series shows of its law, as a few numbers: level, size and shape, and how values depend on earlier ones.

Parameters of a series, such as how long a hidden state lasts, are often seen in no single value, and in no square of
one: the mean of each value is then the same whatever they are. They are seen in products of values some steps apart,
averaged over the series. The numbers of a series y of length n, with mean m, standard deviation s and standardised
values u = (y - m) / s, are

- m, in units of the usual s and of its own; log s;
- autocorrelations at lags 1 to 4, and their mean at lags 5 to 8, of u, of |u| and of log(|u| + .02);
- partial autocorrelations of u at lags 2 to 4, and the log of the share of its variance that the last eight values
  leave open: of moving averages, and of states with noise, these show more than autocorrelations do;
- mean and log standard deviation of |u| and of log(|u| + .02);
- means of u^3 and u^4, and of products of a square and a neighbour, which say whether it looks the same upside down
  and backwards.

Those that have no bound are compressed by logarithms: one series with an outlier would otherwise decide a regression.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from onedraw.engines.arrays import Array

LAGS, BAND = 4, 8
"""Lags with an autocorrelation each, and the last of the further ones that have one mean together."""
LEAST_SIZE = 0.02
"""In standard deviations, added to sizes before logarithms are taken: zeros have none."""
LEAST_OPEN = 1e-9
"""Share of the variance of a value that the values before it leave open at least."""
LONG, MOST_SERIES = 40, 4
"""Values that a long series has more of, and series up to which each array is described by moments."""


class SeriesMoments(NamedTuple):
    """From rows of data to moments of their long series, followed by the numbers that belong to none."""

    places: tuple[Array, ...]
    """The columns of each series."""
    units: tuple[float, ...]
    """A usual standard deviation of each."""
    others: Array
    """Columns that belong to no series."""

    @property
    def width(self) -> int:
        """How many numbers come out."""
        return len(self.places) * _moments(np.zeros((1, 2 * BAND)), 1.0).shape[1] + len(self.others)

    def of(self, rows: Array) -> Array:
        """Rows (n, s) to (n, width)."""
        found = [_moments(rows[:, one], unit) for one, unit in zip(self.places, self.units, strict=True)]
        return np.concatenate([*found, rows[:, self.others]], axis=1)


def moments_of(rows: Array, shapes: Sequence[tuple[int, ...]]) -> SeriesMoments | None:
    """The moments of data that are arrays of these shapes, end to end, learnt from rows (n, s); None if none is long.

    >>> moments_of(np.ones((3, 104)), [(100,), (4,)]).width, moments_of(np.ones((3, 40)), [(40,)])
    (34, None)
    >>> [len(one) for one in moments_of(np.ones((3, 150)), [(50, 3)]).places]
    [50, 50, 50]
    >>> moments_of(np.ones((3, 4100)), [(41, 100)]) is None
    True
    """
    places: list[Array] = []
    start = 0
    for shape in shapes:
        columns = start + np.arange(int(np.prod(shape))).reshape(shape)
        start += columns.size
        if columns.ndim and max(shape) > LONG and columns.size <= MOST_SERIES * max(shape):
            places += list(np.moveaxis(columns, int(np.argmax(shape)), -1).reshape(-1, max(shape)))
    if not places:
        return None
    units = tuple(float(np.median(_spread(rows[:, one]))) for one in places)
    return SeriesMoments(tuple(places), units, np.setdiff1d(np.arange(start), np.concatenate(places)))


def _spread(series: Array) -> Array:
    """Standard deviations (n, 1) of series (n, length), 1 if all values are the same."""
    found = series.std(axis=1, keepdims=True)
    return np.where(found > 0, found, 1.0)


def _moments(series: Array, unit: float) -> Array:
    """Of series (n, length)."""
    mean, spread = series.mean(axis=1, keepdims=True), _spread(series)
    u = (series - mean) / spread
    size = np.abs(u)
    at_lags = _autocorrelations(u)
    found = [np.arcsinh(mean / unit), np.arcsinh(mean / spread), np.log(spread), _banded(at_lags), _partial(at_lags)]
    for one in (size, np.log(size + LEAST_SIZE)):
        found += [one.mean(axis=1, keepdims=True), np.log(_spread(one)), _banded(_autocorrelations(one))]
    later, before = u[:, 1:], u[:, :-1]
    cubes = (u**3, np.square(later) * before, later * np.square(before))
    found += [np.arcsinh(one.mean(axis=1, keepdims=True)) for one in cubes]
    return np.concatenate([*found, np.log1p((u**4).mean(axis=1, keepdims=True))], axis=1)


def _autocorrelations(values: Array) -> Array:
    """(n, BAND) of values (n, length), at lags 1 to BAND."""
    length = values.shape[1]
    z = (values - values.mean(axis=1, keepdims=True)) / _spread(values)
    return np.stack([np.einsum("ij,ij->i", z[:, k:], z[:, : length - k]) / length for k in range(1, BAND + 1)], axis=1)


def _banded(at_lags: Array) -> Array:
    """(n, LAGS + 1): one for each of the first lags, and the mean of the others."""
    return np.column_stack([at_lags[:, :LAGS], at_lags[:, LAGS:].mean(axis=1)])


def _partial(at_lags: Array) -> Array:
    """(n, LAGS): partial autocorrelations at lags 2 to LAGS, and the log of the share of the variance left open.

    By the recursion of Levinson and Durbin. Autocorrelations that are sums over pairs, divided by the length of the
    series, are those of some process, so that no share falls to zero but by rounding.
    """
    (n, lags), left = at_lags.shape, np.ones(len(at_lags))
    slopes, partial = np.zeros((n, 0)), np.empty((n, lags))
    for k in range(lags):
        last = (at_lags[:, k] - np.einsum("ij,ij->i", slopes, at_lags[:, :k][:, ::-1])) / left
        slopes = np.column_stack([slopes - last[:, None] * slopes[:, ::-1], last])
        partial[:, k], left = last, np.maximum(left * (1.0 - np.square(last)), LEAST_OPEN)
    return np.column_stack([partial[:, 1:LAGS], np.log(left)])
