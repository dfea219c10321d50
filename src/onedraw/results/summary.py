"""Numbers that describe draws: mean, spread, interval, Monte Carlo error; and the tables that show them.

Errors and effective draws are those of `monte_carlo_error.py`; R-hat and the HDI of equally weighted draws are those of
arviz-stats.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from onedraw import markup
from onedraw.arguments import entry
from onedraw.engines.arrays import Array
from onedraw.estimators.weights import cumulated
from onedraw.results.monte_carlo_error import Draws, Interval, Variances, mean_and_sd

GROUPS = 8
"""Groups into which many chains are put before their agreement is judged."""
FEWEST = 4
"""Draws a chain needs for R-hat, which splits it."""
R_HAT_LIMIT, ESS_LIMIT = 1.01, 100
"""R-hat that chains which agree may have, and effective draws below which estimates are rough."""
BY_CHANCE = 1e-3
"""Probability with which chains that agree exceed the limit of `disagree`."""


class SummaryRow(NamedTuple):
    """One parameter's summary."""

    mean: float
    sd: float
    hdi_low: float
    hdi_high: float
    mcse: float = math.nan
    """Monte Carlo standard error of the mean."""
    ess: float = math.nan
    """Independent draws that would give the mean this accuracy: sd²/mcse²."""
    r_hat: float = math.nan
    reason: str = ""
    """Why no Monte Carlo error is known, in plain words."""


@dataclass(frozen=True)
class Summary:
    """A row for each parameter, `summary["mu"].mean`, and notes in plain words; printed as a table."""

    rows: dict[str, SummaryRow]
    hdi_prob: float
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> SummaryRow:
        return entry(self.rows, name, "row")

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def lines(self) -> list[list[str]]:
        """The table, its head first."""
        percent = f"{100 * self.hdi_prob:g}%"
        lines = [["", "mean", "sd", f"hdi {percent} low", f"hdi {percent} high", "mcse", "ess", "r_hat"]]
        for name, row in self.rows.items():
            lines.append([name, *(f"{value:.4g}" for value in row[:5]), f"{row.ess:.0f}", f"{row.r_hat:.3f}"])
        if all(math.isnan(row.r_hat) for row in self.rows.values()):
            lines = [line[:-1] for line in lines]
        return lines

    def __str__(self) -> str:
        return table(self.lines(), self.notes)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """For notebooks: the table with its intervals as bars."""
        drawn = markup.bars([markup.Span(row.hdi_low, row.mean, row.hdi_high) for row in self.rows.values()])
        return markup.block(markup.table(self.lines(), drawn), markup.lines(self.notes))


class TolerancePoint(NamedTuple):
    """An estimate at one tolerance."""

    eps: float
    mean: float
    low: float
    """Lower end of the interval by the Monte Carlo error."""
    high: float
    mcse: float
    ess: float


@dataclass(frozen=True)
class ToleranceCurve:
    """Estimates at several tolerances, `curve["mu"]` a tuple of points, smallest eps last; printed as a table."""

    points: dict[str, tuple[TolerancePoint, ...]]
    probability: float

    def __getitem__(self, name: str) -> tuple[TolerancePoint, ...]:
        return entry(self.points, name, "row")

    def __iter__(self) -> Iterator[str]:
        return iter(self.points)

    def lines(self) -> list[list[str]]:
        """The table, its head first."""
        lines = [["", "eps", "mean", f"{100 * self.probability:g}% low", "high", "mcse", "ess"]]
        for name, points in self.points.items():
            lines += [[name, *(f"{value:.4g}" for value in one[:5]), f"{one.ess:.0f}"] for one in points]
        return lines

    def __str__(self) -> str:
        return table(self.lines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """For notebooks: the table with its intervals as bars."""
        drawn = []
        for points in self.points.values():
            drawn += markup.bars([markup.Span(point.low, point.mean, point.high) for point in points])
        return markup.block(markup.table(self.lines(), drawn))


class EfficiencyRow(NamedTuple):
    """One function's efficiency."""

    name: str
    variances: Variances
    ess: float
    """Independent draws that would be as accurate, as in the summary: draws/kappa, up to the errors of both, unless the
    chains are short."""
    ess_per_simulation: float
    ess_per_second: float
    kappa_arviz: float
    """kappa by arviz-stats' ESS of the mean, as a cross-check; too small if chains are short."""

    @property
    def kappa(self) -> Interval:
        """v(f, Q)/v(f)."""
        return self.variances.kappa


@dataclass(frozen=True)
class Efficiency:
    """A row for each function of a run, `efficiency["mu"].kappa`; printed as a table.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> post = od.pseudo_marginal(model, od.uniform(0.25), draws=1_000, chains=64, seed=1)
    >>> found = post.efficiency()
    >>> found["theta"].ess < post.draws["theta"].size
    True
    """

    rows: dict[str, EfficiencyRow]
    draws: int
    """Kept draws of all chains together."""
    simulations: float
    """Simulations that the rows are divided by."""
    seconds: float
    notes: tuple[str, ...]

    def __getitem__(self, name: str) -> EfficiencyRow:
        return entry(self.rows, name, "row")

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def lines(self) -> list[list[str]]:
        """The table, its head first."""
        lines = [["", "v(f)", "v(f,Q)", "kappa [95 %]", "arviz", "ess", "ess/simulation", "ess/second"]]
        for name, row in self.rows.items():
            _, v, v_chain, kappa, *_, reason = row.variances
            shown = f"above {kappa.low:.3g}" if reason else str(kappa)
            rest = (row.kappa_arviz, row.ess, row.ess_per_simulation, row.ess_per_second)
            lines.append([name, f"{v.value:.4g}", f"{v_chain.value:.4g}", shown, *(f"{x:.4g}" for x in rest)])
        return lines

    def __str__(self) -> str:
        return table(self.lines(), self.notes)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """For notebooks."""
        return markup.block(markup.table(self.lines()), markup.lines(self.notes))


def table(lines: list[list[str]], notes: Iterable[str] = ()) -> str:
    """Lines of cells as text, the first column to the left and the others to the right, with notes below.

    >>> print(table([["", "mean"], ["theta", "1"]]))
           mean
    theta     1
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = [
        "  ".join([line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    ]
    return "\n".join([*rows, *notes])


def describe(values: Array, draws: Draws, hdi_prob: float) -> SummaryRow:
    """The summary of one parameter's values (chains, n)."""
    values = np.asarray(values, dtype=float)
    if values.size == 0:
        return SummaryRow(math.nan, math.nan, math.nan, math.nan)
    mean, sd = mean_and_sd(values, draws)
    if draws.weights is not None:
        low, high = weighted_interval(values.ravel(), draws.weights.ravel(), hdi_prob)
        return SummaryRow(mean.value, sd.value, low, high, mean.mcse, mean.ess, math.nan, mean.reason)
    if sd.value == 0.0:
        return SummaryRow(mean.value, 0.0, mean.value, mean.value, reason=mean.reason)
    from arviz_stats.base import array_stats

    low, high = (float(end) for end in array_stats.hdi(values.ravel(), prob=hdi_prob))
    return SummaryRow(mean.value, sd.value, low, high, mean.mcse, mean.ess, _r_hat(values), mean.reason)


def _r_hat(values: Array) -> float:
    if values.shape[1] < FEWEST:
        return math.nan
    from arviz_stats.base import array_stats

    with np.errstate(divide="ignore", invalid="ignore"):
        if len(values) < 2 * GROUPS:
            return float(array_stats.rhat(values, chain_axis=0, draw_axis=1))
        # Many short chains disagree by chance alone; groups of them should not (nested R-hat).
        groups = np.arange(len(values) // GROUPS * GROUPS) % GROUPS
        return float(array_stats.rhat_nested(values[: groups.size], groups, chain_axis=0, draw_axis=1))


def disagree(row: SummaryRow, chains: int) -> bool:
    """Whether R-hat is above 1.01, and larger than chains that agree have by chance: the one rule for all warnings.

    R-hat compares m parts of the draws, halves of chains or groups of them. If they agree, (R-hat^2 - 1) ESS / m is
    about chi square with m - 1 degrees of freedom, over m - 1.

    >>> row = SummaryRow(0.0, 1.0, -1.6, 1.6, 0.05, 400.0, 1.02)
    >>> disagree(row, 4), disagree(row._replace(ess=4000.0), 4), disagree(row._replace(r_hat=1.2), 4)
    (False, True, True)
    """
    if not row.r_hat > R_HAT_LIMIT:
        return False
    from scipy.stats import chi2

    parts = 2 * chains if chains < 2 * GROUPS else GROUPS
    # The effective draws of chains that disagree are few for that very reason.
    ess = row.ess if row.ess > ESS_LIMIT else ESS_LIMIT
    return row.r_hat**2 > 1.0 + parts / ess * float(chi2.isf(BY_CHANCE, parts - 1)) / (parts - 1)


def weighted_interval(values: Array, weights: Array, probability: float) -> tuple[float, float]:
    """The shortest interval that holds at least `probability` of the weight of values (n,).

    >>> weighted_interval(np.array([0.0, 1.0, 1.1, 1.2, 9.0]), np.full(5, 0.2), 0.6)
    (1.0, 1.2)
    """
    keep = np.flatnonzero(weights)
    order = keep[np.argsort(values[keep], kind="stable")]
    values, mass = values[order], np.concatenate([[0.0], cumulated(weights[order])])
    last = np.searchsorted(mass, mass[:-1] + probability * mass[-1] * (1 - 1e-12)) - 1
    starts = np.flatnonzero(last < values.size)
    best = starts[int((values[last[starts]] - values[starts]).argmin())]
    return float(values[best]), float(values[last[best]])
