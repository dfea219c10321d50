"""Monotone transforms of summaries, each chosen by how well the transformed summary is predicted from the parameters.

Whole numbers get a uniform place in their cell, so that their density stands for a probability. Summaries that hardly
ever vary are left out: they say nothing that a regression could learn.
"""

import math
from typing import NamedTuple

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.surrogate.features import Sets
from onedraw.surrogate.likelihood import Terms, better, fit_factor

LEAST_VARIED = 0.005
"""Share of simulations that must differ from the median of a summary for it to be used."""
LEAST_ERRORS = 2.0
"""Gain in the mean log score, in its standard errors, for which a summary is transformed."""
HEAVY = 100.0
"""Range of a summary, in median deviations, from which its tails may be drawn in."""
LOWEST_SCORE = -20.0
"""Scores are cut here, so that no single simulation decides."""


class Warp(NamedTuple):
    """A monotone function of one summary: "plain", "log" and "root" of what exceeds `shift`, or "asinh"."""

    kind: str = "plain"
    shift: float = 0.0
    unit: float = 1.0

    def __call__(self, values: Array) -> Array:
        """The transformed values (n,)."""
        if self.kind == "plain":
            return values
        if self.kind == "log":
            return np.log(np.maximum(values - self.shift, 1e-3 * self.unit))
        if self.kind == "root":
            return np.sqrt(np.maximum(values - self.shift, 0.0))
        return np.arcsinh((values - self.shift) / self.unit)

    def log_slope(self, values: Array) -> Array:
        """Log of the derivative at values (n,).

        >>> Warp("asinh", 0.0, 2.0).log_slope(np.array([0.0])).round(4).tolist()
        [-0.6931]
        """
        away = values - self.shift
        if self.kind == "plain":
            return np.zeros(len(values))
        if self.kind == "log":
            return -np.log(np.maximum(away, 1e-3 * self.unit))
        if self.kind == "root":
            return -0.5 * np.log(np.maximum(away, 1e-12)) - math.log(2.0)
        found: Array = -0.5 * np.log1p(np.square(away / self.unit)) - math.log(self.unit)
        return found


class Transform(NamedTuple):
    """A map from summaries (n, s) to standardised transformed ones (n, k)."""

    kept: Array
    """Columns that vary."""
    whole: Array
    """Which of these are whole numbers."""
    warps: tuple[Warp, ...]
    centre: Array
    spread: Array

    def __call__(self, rows: Array, places: Array | None = None) -> Array:
        """The transformed rows; `places` (n, s) are added to whole numbers."""
        some = rows[:, self.kept]
        if places is not None:
            some = some + np.where(self.whole, places[:, self.kept], 0.0)
        return (_warped(some, self.warps) - self.centre) / self.spread

    def log_slope(self, row: Array) -> float:
        """Log of the volume that a unit of summaries has after the transform, at a row (s,)."""
        slopes = [warp.log_slope(row[k : k + 1])[0] for k, warp in zip(self.kept, self.warps, strict=True)]
        return float(np.sum(slopes) - np.log(self.spread).sum())


def _warped(some: Array, warps: tuple[Warp, ...]) -> Array:
    columns = [warp(column) for warp, column in zip(warps, some.T, strict=True)]
    return np.stack(columns, axis=1) if columns else np.empty((len(some), 0))


def choose_transform(
    columns: Array, rows: Array, places: Array, observed: Array, relevance: Array, sets: Sets
) -> tuple[Transform, float]:
    """The transform of each summary by the log score of its regression on features (n, p) of the parameters.

    The data are one row or several. Scores count by the relevance (n,) of the simulations. Given with the sum of the
    mean scores; minus infinity if no summary varies.
    """
    observed = np.atleast_2d(observed)
    varied = np.mean(rows != np.median(rows, axis=0), axis=0)
    kept = np.flatnonzero((varied > LEAST_VARIED) & (rows.std(axis=0) > 0))
    whole = np.all(rows[:, kept] == np.rint(rows[:, kept]), axis=0)
    whole &= np.all(observed[:, kept] == np.rint(observed[:, kept]), axis=0)
    some = rows[:, kept] + np.where(whole, places[:, kept], 0.0)
    low = np.minimum(rows[:, kept].min(axis=0), observed[:, kept].min(axis=0))
    best = [
        _best_warp(columns, values, float(least), bool(counts), relevance, sets)
        for values, least, counts in zip(some.T, low, whole, strict=True)
    ]
    warps = tuple(warp for warp, _ in best)
    warped = _warped(some, warps)
    mean, spread = warped.mean(axis=0), warped.std(axis=0)
    transform = Transform(kept, whole, warps, mean, np.where(spread > 0, spread, 1.0))
    return transform, sum(score for _, score in best) if best else -math.inf


def _best_warp(
    columns: Array, values: Array, low: float, counts: bool, relevance: Array, sets: Sets
) -> tuple[Warp, float]:
    richest = next(name for name in ("2", "1") if name == "1" or (name in sets and len(values) > 4 * len(sets[name])))
    terms, share, weights = Terms(richest, "", richest), relevance / relevance.sum(), np.ones(len(values))
    best, chosen = np.full(len(values), -np.inf), Warp()
    for warp in _warps(values, low, counts):
        warped = warp(values)
        mean, spread = float(warped.mean()), float(warped.std())
        if not spread > 0:
            continue
        fit = fit_factor(columns, ((warped - mean) / spread)[:, None], weights, 0, terms, sets)
        scores = np.maximum(fit.scores, LOWEST_SCORE) - math.log(spread) + warp.log_slope(values)
        if better(scores, best, share, LEAST_ERRORS):
            best, chosen = scores, warp
    return chosen, float(share @ best)


def _warps(values: Array, low: float, counts: bool) -> list[Warp]:
    """The transforms that values from `low` on allow."""
    found = [Warp()]
    if counts and low >= 0:
        found.append(Warp("root", -0.5))
    if low > 0 or (counts and low >= 0):
        shift = -0.5 if counts else 0.0
        found.append(Warp("log", shift, max(float(np.quantile(values - shift, 0.01)), 1e-300)))
    median = float(np.median(values))
    unit = float(np.median(np.abs(values - median))) or float(values.std())
    heavy = unit > 0 and float(np.ptp(values)) > HEAVY * unit
    return [*found, Warp("asinh", median, unit)] if heavy else found
