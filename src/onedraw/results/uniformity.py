"""Are numbers uniform on (0, 1)? Four tests, of which two say what is wrong, and the bands that pictures show.

A posterior that is right puts the true parameter at a uniform place among its draws. The *place* u of a truth is
(rank + V)/(L + 1), with its rank among L draws and V uniform: uniform on (0, 1) itself, exactly, for every L.

- *bias* and *width*: z = Phi^-1(u) is standard normal. The mean of z is tested by its normal law, the variance by its
  chi-squared law, both exact. Errors of posteriors are mostly of these two kinds, and these tests find them first.
- *bins*: chi-squared of the counts in bins that divide the ranks evenly (Talts et al. 2018).
- *ecdf*: the smallest two-sided binomial probability of the cumulative counts of the ranks, whose law is computed
  exactly (Säilynoja, Bürkner and Vehtari 2022): given their sum, counts of ranks are independent Poisson counts, so
  that the probability to stay within limits is a chain of convolutions.

References: docs/calibration.md.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import special, stats

from onedraw.engines.arrays import Array

EACH, MOST_BINS = 20, 20
"""Data sets per bin, and the most bins."""
TESTS = 4
"""Tests of each quantity: of bias, width, bins and ecdf."""
CONFIDENCE = 0.95
NEGLIGIBLE = 1e-18
"""A probability of a Poisson count beyond which no term is added."""


class Uniformity(NamedTuple):
    """What the tests say of places (n,)."""

    mean: float
    """Of z; 0 if the places are uniform."""
    spread: float
    """Standard deviation of z; 1 if the places are uniform."""
    difference: float
    """The largest distance of the empirical distribution function from the uniform one."""
    p_bias: float
    p_width: float
    p_bins: float
    p_ecdf: float

    @property
    def p_values(self) -> tuple[float, ...]:
        """Of the four tests."""
        return self[-TESTS:]


def uniformity(places: Array, ranks: int) -> Uniformity:
    """All tests of places (n,) that belong to `ranks` different ranks.

    >>> even = (np.arange(200) + 0.5) / 200
    >>> min(uniformity(even, 100).p_values) > 0.9
    True
    >>> uniformity(even**2, 100).p_bias < 1e-6
    True
    """
    n = len(places)
    z = special.ndtri(np.clip(places, 1e-12, 1 - 1e-12))
    mean, spread = float(z.mean()), float(z.std(ddof=1))
    square = (n - 1) * spread**2
    p_width = 2 * min(stats.chi2.cdf(square, n - 1), stats.chi2.sf(square, n - 1))
    ordered = np.sort(places)
    steps = np.arange(n + 1) / n
    difference = float(max((steps[1:] - ordered).max(), (ordered - steps[:-1]).max()))
    counts = counts_of(places, ranks)
    return Uniformity(
        mean, spread, difference, 2 * float(stats.norm.sf(abs(mean) * math.sqrt(n))), float(p_width), p_of_bins(counts),
        p_of_ecdf(counts),
    )  # fmt: skip


def counts_of(places: Array, cells: int) -> Array:
    """How many places (n,) lie in each of equally wide cells."""
    return np.bincount(cell_of(places, cells), minlength=cells)


def cell_of(places: Array, cells: int) -> Array:
    """The number of the equally wide cell, 0 to cells - 1, that each place lies in.

    >>> cell_of(np.array([0.0, 0.49, 0.5, 1.0]), 2).tolist()
    [0, 0, 1, 1]
    """
    return np.minimum((places * cells).astype(int), cells - 1)


def bins_for(n: int, ranks: int) -> int:
    """The number of bins for n data sets: it divides the number of ranks, so that no bin gets more of them.

    >>> bins_for(199, 100), bins_for(1000, 100), bins_for(20, 100)
    (10, 20, 2)
    """
    return max(many for many in range(2, MOST_BINS + 1) if ranks % many == 0 and (many == 2 or many <= round(n / EACH)))


def p_of_bins(counts: Array) -> float:
    """The chi-squared test of counts of ranks, gathered into bins."""
    n, ranks = int(counts.sum()), len(counts)
    bins = bins_for(n, ranks)
    gathered = counts.reshape(bins, -1).sum(axis=1)
    return float(stats.chi2.sf(((gathered - n / bins) ** 2).sum() * bins / n, bins - 1))


def p_of_ecdf(counts: Array) -> float:
    """The probability of cumulative counts that are anywhere as improbable as the most improbable of these.

    >>> round(p_of_ecdf(np.array([0, 2])), 12), p_of_ecdf(np.array([1, 1]))
    (0.5, 1.0)
    """
    n, cells = int(counts.sum()), len(counts)
    tails = two_sided(n, cells)
    least = float(tails[np.cumsum(counts)[:-1], np.arange(cells - 1)].min())
    return min(1.0, max(0.0, 1.0 - staying(n, tails > least * (1 + 1e-9))))


@lru_cache(maxsize=8)
def two_sided(n: int, cells: int) -> Array:
    """(n + 1, cells - 1): 2 min(P(R <= r), P(R >= r)), with R the number of n places in the first k + 1 cells."""
    r, share = np.arange(n + 1)[:, None], np.arange(1, cells) / cells
    return np.minimum(1.0, 2 * np.minimum(stats.binom.cdf(r, n, share), stats.binom.sf(r - 1, n, share)))


def staying(n: int, allowed: Array) -> float:
    """The probability that cumulative counts of n uniform places are allowed (n + 1, cells - 1) in all cells."""
    cells = allowed.shape[1] + 1
    each = stats.poisson.pmf(np.arange(n + 1), n / cells)
    each = each[: int(np.flatnonzero(each > NEGLIGIBLE)[-1]) + 1]
    chance = np.zeros(n + 1)
    chance[0] = 1.0
    for cell in range(cells):
        chance = np.convolve(chance, each)[: n + 1]
        if cell < cells - 1:
            chance *= allowed[:, cell]
    return float(chance[n] / stats.poisson.pmf(n, n))


@lru_cache(maxsize=16)
def ecdf_band(n: int, cells: int, confidence: float = CONFIDENCE) -> tuple[Array, Array]:
    """Limits of the empirical distribution function of n uniform places at the ends of cells, for all at once.

    Each end has limits of one and the same two-sided probability, the largest with which the whole function stays
    inside with the probability `confidence` at least.
    """
    tails = two_sided(n, cells)
    low, high = 0.0, 1.0 - confidence
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if staying(n, tails > middle) >= confidence else (low, middle)
    allowed = tails > low
    lower = np.argmax(allowed, axis=0) / n
    upper = (n - np.argmax(allowed[::-1], axis=0)) / n
    return np.r_[0.0, lower, 1.0], np.r_[0.0, upper, 1.0]


def chance_band(n: int, share: Array | float, confidence: float = CONFIDENCE) -> tuple[Array, Array]:
    """Limits of a single share of n by chance alone: quantiles of the binomial law.

    >>> [round(float(one), 3) for one in chance_band(200, 0.9)]
    [0.855, 0.94]
    """
    tail = (1 - confidence) / 2
    return stats.binom.ppf(tail, n, share) / n, stats.binom.isf(tail, n, share) / n


def holm(p: Array) -> Array:
    """p-values (m,) adjusted for their number: the chance that any true hypothesis gets one below x is at most x.

    >>> holm(np.array([0.01, 0.04, 0.03])).tolist()
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p, kind="stable")
    adjusted = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1)))
    found = np.empty(p.size)
    found[order] = adjusted
    return found
