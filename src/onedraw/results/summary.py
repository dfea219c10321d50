"""Numbers that describe draws: mean, spread, interval, and how far the Monte Carlo error lets them be trusted.

ESS, R-hat, MCSE and HDI of equally weighted draws are those of arviz-stats. Weighted draws are averages of ratios,
sum w f / sum w; their error is that of the mean of w (f - mean) / mean(w), to which the same tools apply.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from onedraw.engines.arrays import Array

GROUPS = 8
"""Groups into which many chains are put before their agreement is judged."""
FEWEST = 4
"""Draws a chain needs before its error can be estimated."""


class Row(NamedTuple):
    """One parameter's summary."""

    mean: float
    sd: float
    hdi_low: float
    hdi_high: float
    mcse: float
    """Monte Carlo standard error of the mean."""
    ess: float
    """Independent draws that would give the mean this accuracy (equal weights: arviz's bulk ESS)."""
    r_hat: float

    def worth(self, draws: float) -> "Row":
        """The same row where the draws are worth only so many independent ones."""
        if not draws < self.ess:
            return self
        error = self.sd / math.sqrt(draws) if draws >= 2 else math.nan
        return self._replace(ess=draws, mcse=error, r_hat=math.nan)


@dataclass(frozen=True)
class Summary:
    """A row for each parameter, `summary["mu"].mean`, and notes in plain words; printed as a table."""

    rows: dict[str, Row]
    hdi_prob: float
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Row:
        return self.rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __str__(self) -> str:
        percent = f"{100 * self.hdi_prob:g}%"
        lines = [["", "mean", "sd", f"hdi {percent} low", f"hdi {percent} high", "mcse", "ess", "r_hat"]]
        for name, row in self.rows.items():
            lines.append([name, *(f"{value:.4g}" for value in row[:5]), f"{row.ess:.0f}", f"{row.r_hat:.3f}"])
        if all(math.isnan(row.r_hat) for row in self.rows.values()):
            lines = [line[:-1] for line in lines]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = [
            "  ".join(
                [line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))]
            )
            for line in lines
        ]
        return "\n".join([*table, *self.notes])

    __repr__ = __str__


class Point(NamedTuple):
    """An estimate at one tolerance."""

    eps: float
    mean: float
    low: float
    """Lower end of the interval that the Monte Carlo error leaves."""
    high: float
    mcse: float
    ess: float


@dataclass(frozen=True)
class Over:
    """Estimates over a range of tolerances, `over["mu"]` a tuple of points, smallest eps last; printed as a table."""

    points: dict[str, tuple[Point, ...]]
    probability: float

    def __getitem__(self, name: str) -> tuple[Point, ...]:
        return self.points[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.points)

    def __str__(self) -> str:
        lines = [["", "eps", "mean", f"{100 * self.probability:g}% low", "high", "mcse", "ess"]]
        for name, points in self.points.items():
            lines += [[name, *(f"{value:.4g}" for value in one[:5]), f"{one.ess:.0f}"] for one in points]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        cells = [[cell.rjust(width) for cell, width in zip(line, widths, strict=True)] for line in lines]
        return "\n".join("  ".join([line[0].strip().ljust(widths[0]), *line[1:]]) for line in cells)

    __repr__ = __str__


def describe(
    draws: Array, weights: Array | None, independent: bool, hdi_prob: float, groups: Array | None = None
) -> Row:
    """The summary of one parameter's draws (chains, n) with weights of the same shape, or None.

    `groups`, of the same shape, are equal for weighted draws whose errors may go together.
    """
    draws = np.asarray(draws, dtype=float)
    if weights is not None:
        if draws.size == 0:
            return Row(*([math.nan] * 7))
        return _describe_weighted(draws, weights, independent, hdi_prob, groups)
    if draws.size == 0:
        return Row(*([math.nan] * 7))
    mean, sd = float(draws.mean()), float(draws.std(ddof=1 if draws.size > 1 else 0))
    if sd == 0.0:
        # arviz calls a chain that never moved perfect; it has told us nothing about its error.
        return Row(mean, 0.0, mean, mean, math.nan, math.nan, math.nan)
    from arviz_stats.base import array_stats

    low, high = (float(end) for end in array_stats.hdi(draws.ravel(), prob=hdi_prob))
    if draws.shape[1] < FEWEST:
        return Row(mean, sd, low, high, math.nan, math.nan, math.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        mcse = float(array_stats.mcse(draws, chain_axis=0, draw_axis=1))
        ess = float(array_stats.ess(draws, chain_axis=0, draw_axis=1))
        if len(draws) < 2 * GROUPS:
            r_hat = float(array_stats.rhat(draws, chain_axis=0, draw_axis=1))
        else:
            # Many short chains disagree by chance alone; groups of them should not (nested R-hat).
            groups = np.arange(len(draws) // GROUPS * GROUPS) % GROUPS
            r_hat = float(array_stats.rhat_nested(draws[: groups.size], groups, chain_axis=0, draw_axis=1))
    return Row(mean, sd, low, high, mcse, ess, r_hat)


def _describe_weighted(draws: Array, weights: Array, independent: bool, hdi_prob: float, groups: Array | None) -> Row:
    mean = float((weights * draws).sum())
    variance = float((weights * (draws - mean) ** 2).sum())
    low, high = weighted_interval(draws.ravel(), weights.ravel(), hdi_prob)
    mcse = ratio_error(draws, weights, independent, groups)
    return Row(mean, math.sqrt(variance), low, high, mcse, variance / mcse**2 if mcse > 0 else math.nan, math.nan)


def ratio_error(values: Array, weights: Array, independent: bool, groups: Array | None = None) -> float:
    """Standard error of sum w f for weights (chains, n) that sum to 1, f the values.

    With `groups` the errors of draws are added up within each group first, and only groups count as independent.

    >>> two = np.array([[0.0, 0.0, 1.0, 1.0]]), np.full((1, 4), 0.25)
    >>> ratio_error(*two, True), ratio_error(*two, True, np.array([[0, 0, 1, 1]]))
    (0.25, 0.3535...)
    """
    if np.count_nonzero(weights) < 2:
        return math.nan
    influence = weights * (values - (weights * values).sum()) * weights.size
    if groups is not None:
        _, member = np.unique(groups, return_inverse=True)
        influence = np.bincount(member.reshape(-1), influence.reshape(-1))
        return float(np.sqrt((influence**2).sum()) / weights.size)
    if independent or values.shape[1] < FEWEST:
        return float(np.sqrt((influence**2).sum()) / weights.size)
    from arviz_stats.base import array_stats

    return float(array_stats.mcse(influence, chain_axis=0, draw_axis=1))


def weighted_interval(values: Array, weights: Array, probability: float) -> tuple[float, float]:
    """The shortest interval that holds at least `probability` of the weight of values (n,).

    >>> weighted_interval(np.array([0.0, 1.0, 1.1, 1.2, 9.0]), np.full(5, 0.2), 0.6)
    (1.0, 1.2)
    """
    keep = np.flatnonzero(weights)
    order = keep[np.argsort(values[keep], kind="stable")]
    values, mass = values[order], np.concatenate([[0.0], np.cumsum(weights[order])])
    last = np.searchsorted(mass, mass[:-1] + probability * mass[-1] * (1 - 1e-12)) - 1
    starts = np.flatnonzero(last < values.size)
    best = starts[int((values[last[starts]] - values[starts]).argmin())]
    return float(values[best]), float(values[last[best]])
