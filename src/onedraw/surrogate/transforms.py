"""Monotone transforms of summaries, each chosen by how well the transformed summary is predicted from the parameters.

Whole numbers get a uniform place in their cell, so that their density stands for a probability. Summaries that hardly
ever vary are left out: they say nothing that a regression could learn.
"""

import math
from typing import NamedTuple

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.surrogate.cells import Cells, Summaries, open_ends
from onedraw.surrogate.features import Sets
from onedraw.surrogate.likelihood import Regression, Terms, better, fit_scores, predictors

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
    ends: Array
    """(2, k) numbers from which on a cell has no end."""

    def __call__(self, rows: Array, places: Array | None = None) -> Array:
        """The transformed rows; `places` (n, s) are added to whole numbers."""
        some = rows[:, self.kept]
        if places is not None:
            some = some + np.where(self.whole, places[:, self.kept], 0.0)
        return self._standardised(some)

    def _standardised(self, some: Array) -> Array:
        return (_warped(some, self.warps) - self.centre) / self.spread

    def cells(self, rows: Array) -> Cells | None:
        """The cells (n, k) of whole numbers; None if there are none."""
        if not self.whole.any():
            return None
        some, half = rows[:, self.kept], np.where(self.whole, 0.5, np.nan)
        low, high = self._standardised(some - half), self._standardised(some + half)
        log_width = np.log(high - low)
        low, high = np.where(some <= self.ends[0], -np.inf, low), np.where(some >= self.ends[1], np.inf, high)
        return Cells(low, high, log_width)

    def summaries(self, rows: Array, places: Array) -> Summaries:
        """The transformed rows, in all the forms that fits need."""
        middle, cells = self(rows), self.cells(rows)
        return Summaries(middle, middle if cells is None else self(rows, places), self.whole, cells)

    def log_slope(self, row: Array) -> float:
        """Log of the volume that a unit of summaries has after the transform, at a row (s,)."""
        return float(self.log_slopes(row[None])[0])

    def log_slopes(self, rows: Array) -> Array:
        """The same at each of some rows (n, s); of whole numbers, the volume of their cells."""
        slopes = np.array([warp.log_slope(rows[:, k]) for k, warp in zip(self.kept, self.warps, strict=True)]).T
        slopes, cells = slopes.reshape(len(rows), -1) - np.log(self.spread), self.cells(rows)
        found: Array = (slopes if cells is None else np.where(self.whole, cells.log_width, slopes)).sum(axis=1)
        return found

    def in_common(self, rows: Array, observed: Array) -> "Transform | None":
        """One transform for all summaries, of the kind that most have; None if some are whole numbers and some not."""
        if self.whole.any() != self.whole.all():
            return None
        some, whole = rows[:, self.kept], bool(self.whole.all())
        low = min(float(some.min()), float(observed[self.kept].min()))
        kinds = [warp.kind for warp in self.warps]
        offered = {warp.kind: warp for warp in _warps(some.ravel(), low, whole)}
        warp = offered.get(max(kinds, key=kinds.count), Warp())
        warped = warp(some)
        same = np.ones(len(kinds))
        return self._replace(
            warps=(warp,) * len(kinds), centre=float(warped.mean()) * same, spread=(float(warped.std()) or 1.0) * same
        )


def _warped(some: Array, warps: tuple[Warp, ...]) -> Array:
    columns = [warp(column) for warp, column in zip(warps, some.T, strict=True)]
    return np.stack(columns, axis=1) if columns else np.empty((len(some), 0))


def varying(rows: Array, observed: Array) -> tuple[Array, Array]:
    """The columns that vary, and which of these are whole numbers, in the data as well."""
    varied = np.mean(rows != np.median(rows, axis=0), axis=0)
    kept = np.flatnonzero((varied > LEAST_VARIED) & (rows.std(axis=0) > 0))
    both = np.concatenate([rows[:, kept], np.atleast_2d(observed)[:, kept]])
    return kept, np.all(both == np.rint(both), axis=0)


def choose_transform(
    columns: Array, rows: Array, places: Array, observed: Array, relevance: Array, sets: Sets, scored: bool = True
) -> tuple[Transform, float]:
    """The transform of each summary by the log score of its regression on features (n, p) of the parameters.

    The data are one row or several. Scores count by the relevance (n,) of the simulations. Given with the sum of the
    mean scores; minus infinity if no summary varies. Unless it is to be `scored`, a summary with one possible
    transform adds zero to it.
    """
    observed, (kept, whole) = np.atleast_2d(observed), varying(rows, observed)
    some = rows[:, kept] + np.where(whole, places[:, kept], 0.0)
    low = np.minimum(rows[:, kept].min(axis=0), observed[:, kept].min(axis=0))
    richest = next(name for name in ("2", "1") if name == "1" or (name in sets and len(rows) > 4 * len(sets[name])))
    shared = predictors(columns, np.ones(len(rows)), sets).regression(
        some, 0, Terms(richest, "", "along" if "along" in sets else richest)
    )
    best = [
        (warps[0], 0.0) if len(warps) == 1 and not scored else _best_warp(shared, values, warps, relevance)
        for values, warps in ((one, _warps(one, *rest)) for one, *rest in zip(some.T, low, whole, strict=True))
    ]
    warps = tuple(warp for warp, _ in best)
    warped = _warped(some, warps)
    mean, spread = warped.mean(axis=0), warped.std(axis=0)
    ends = open_ends(rows[:, kept], observed[:, kept])
    transform = Transform(kept, whole, warps, mean, np.where(spread > 0, spread, 1.0), ends)
    return transform, sum(score for _, score in best) if best else -math.inf


def _best_warp(shared: Regression, values: Array, warps: list[Warp], relevance: Array) -> tuple[Warp, float]:
    share = relevance / relevance.sum()
    best, chosen = np.full(len(values), -np.inf), Warp()
    for warp in warps:
        warped = warp(values)
        mean, spread = float(warped.mean()), float(warped.std())
        if not spread > 0:
            continue
        scores = fit_scores(shared, (warped - mean) / spread)
        scores = np.maximum(scores, LOWEST_SCORE) - math.log(spread) + warp.log_slope(values)
        if better(scores, best, share, LEAST_ERRORS):
            best, chosen = scores, warp
    return chosen, float(share @ best)


def _warps(values: Array, low: float, counts: bool) -> list[Warp]:
    """The transforms that values from `low` on allow, the one first that others must be better than.

    That is the root for counts, whose noise grows with them: a regression on the parameters alone hardly shows it if
    most of the spread comes from earlier counts.
    """
    found = [Warp("root", -0.5), Warp()] if counts and low >= 0 else [Warp()]
    if low > 0 or (counts and low >= 0):
        shift = -0.5 if counts else 0.0
        found.append(Warp("log", shift, max(float(np.quantile(values - shift, 0.01)), 1e-300)))
    median = float(np.median(values))
    unit = float(np.median(np.abs(values - median))) or float(values.std())
    heavy = unit > 0 and float(np.ptp(values)) > HEAVY * unit
    return [*found, Warp("asinh", median, unit)] if heavy else found
