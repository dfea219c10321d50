"""Monotone transforms of summaries, each chosen by how well the transformed summary is predicted from the parameters.

Whole numbers get a uniform place in their cell, so that their density stands for a probability. Summaries that hardly
ever vary are left out: they say nothing that a regression could learn. A summary with a point mass at an end of its
range becomes two columns (`point_masses.py`).
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.surrogate.cells import Cells, Summaries, open_ends
from onedraw.surrogate.features import Sets
from onedraw.surrogate.likelihood import Predictors, Regression, Terms, better, fit_factor, fit_scores, predictors
from onedraw.surrogate.ordered import AS_THEY_ARE, Steps
from onedraw.surrogate.point_masses import NO_MASSES, Masses, PointMasses, ends_of, no_masses, without_density
from onedraw.surrogate.redundant import redundant

LEAST_VARIED = 0.005
"""Share of simulations that must differ from the median of a summary for it to be used."""
LEAST_ERRORS = 2.0
"""Gain in the mean log score, in its standard errors, for which a summary is transformed."""
HEAVY = 100.0
"""Range of a summary, in median deviations, from which its tails may be drawn in."""
LOWEST_SCORE = -20.0
"""Scores are cut here, so that no single simulation decides."""
MOST_STEPS, ROUNDED = 200, 1e-9
"""Steps of a lattice up to the largest value, at most, and rounding errors in parts of it."""
NARROW = 1e-3
"""Half the width of a cell that stands for a density, in standard deviations of the summary."""
MOST_TRIED, PER_COLUMN, FEWEST_NUMBERS = 600, 8, 2
"""Simulations at which point masses are tried, how many for each feature if there are squares, and whole numbers that
are no more than their ends."""


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
    masses: PointMasses = NO_MASSES
    units: Array | float = 1.0
    """(k,) what summaries are divided by before everything else: those on a lattice are whole numbers of its steps."""
    steps: Steps = AS_THEY_ARE
    """What becomes of summaries in order first. All other fields are about what becomes of them."""
    values: "Transform | None" = None
    """That of summaries in order as they are, on which later steps depend."""

    def _kept(self, rows: Array) -> Array:
        return in_units(self.steps(rows)[:, self.kept], self.units)

    def in_steps(self, steps: Steps, transform: "Transform") -> "Transform | None":
        """That of steps, beside this one of values; None if their densities are of other things.

        Then a summary is left out, a step has a point mass, or one of the two is a whole number.
        """
        every = np.arange(len(steps.order))
        if not (np.array_equal(self.kept, every) and np.array_equal(transform.kept, every)):
            return None
        order = list(steps.order)
        units = np.broadcast_to(self.units, every.shape)[order]
        same = np.array_equal(self.whole[order], transform.whole) and np.allclose(units, transform.units, rtol=1e-6)
        if not same or (self.massive & ~self.whole).any() or (transform.massive & ~transform.whole).any():
            return None
        values = self._replace(
            kept=self.kept[order], whole=self.whole[order], warps=tuple(self.warps[k] for k in order),
            centre=self.centre[order], spread=self.spread[order], ends=self.ends[:, order], units=units,
        )  # fmt: skip
        return transform._replace(steps=steps, values=values)

    def before(self, rows: Array) -> Array:
        """What later summaries depend on: the transformed rows, those in order as they are."""
        return self(rows) if self.values is None else self.values(rows)

    @property
    def massive(self) -> Array:
        """(k,) which columns have no density because of a point mass: at it, or beside it."""
        ends = ~self.whole & np.isfinite(self.ends).any(axis=0)
        return np.broadcast_to(ends | self.masses.beside, self.whole.shape)

    def measures(self) -> list[tuple[int, bool, float, float]]:
        """Of each summary, whether it has probabilities, and the point masses that it has beside a density.

        Densities by two transforms can be compared if these agree.
        """
        itself = np.broadcast_to(np.isnan(self.masses.value), self.kept.shape)
        low = np.where(self.whole, -np.inf, np.maximum(self.masses.low, self.ends[0]))
        high = np.where(self.whole, np.inf, np.minimum(self.masses.high, self.ends[1]))
        which = np.array(self.steps.order)[self.kept] if self.steps.order else self.kept
        each = (one[itself].tolist() for one in (which, self.whole, low, high))
        return sorted(zip(*each, strict=True))

    def __call__(self, rows: Array, places: Array | None = None) -> Array:
        """The transformed rows; `places` (n, s) are added to whole numbers."""
        some = self._kept(rows)
        at_mass, some = self.masses.hold(some), self.masses.indicated(some)
        if places is not None:
            some = some + np.where(self.whole, places[:, self.kept], 0.0)
        found = self._standardised(some)
        if not at_mass.any():
            return found
        # Fits to cells begin at a regression of places: without spread, its scale would be zero there.
        return np.where(at_mass, 0.0 if places is None else math.sqrt(12.0) * places[:, self.kept], found)

    def _standardised(self, some: Array) -> Array:
        return (_warped(some, self.warps) - self.centre) / self.spread

    def cells(self, rows: Array) -> Cells | None:
        """The cells (n, k) of columns that have them; None if there are none.

        Those of continuous numbers are narrow, so that their masses are densities times widths, but for point masses.
        """
        massive = self.massive
        if not (self.whole | massive).any():
            return None
        some = self._kept(rows)
        at_mass, some = self.masses.hold(some), self.masses.indicated(some)
        half, narrow = np.where(self.whole, 0.5, 0.0), np.where(self.whole, 0.0, np.where(massive, NARROW, np.nan))
        low, high = self._standardised(some - half) - narrow, self._standardised(some + half) + narrow
        below, above = at_mass | (some <= self.ends[0]), at_mass | (some >= self.ends[1])
        return Cells(np.where(below, -np.inf, low), np.where(above, np.inf, high), np.log(high - low))

    def summaries(self, rows: Array, places: Array) -> Summaries:
        """The transformed rows, in all the forms that fits need."""
        middle, cells = self.before(rows), self.cells(rows)
        if cells is None:
            return Summaries(middle, middle if self.values is None else self(rows), self.whole)
        return Summaries(middle, self(rows, places), self.whole, cells, self.massive)

    def log_slope(self, row: Array) -> float:
        """Log of the volume that a unit of summaries has after the transform, at a row (s,)."""
        return float(self.log_slopes(row[None])[0])

    def log_slopes(self, rows: Array) -> Array:
        """The same at each of some rows (n, s); of whole numbers, the volume of their cells; of a point mass, 1."""
        some = self._kept(rows)
        slopes = np.array([warp.log_slope(column) for column, warp in zip(some.T, self.warps, strict=True)]).T
        slopes, cells = slopes.reshape(len(rows), -1) - np.log(self.spread), self.cells(rows)
        if cells is not None:
            # A cell without an end is a probability, as those of whole numbers are.
            points = self.massive & (np.isinf(cells.low) | np.isinf(cells.high))
            slopes = np.where(self.whole | points, cells.log_width, slopes)
        found: Array = slopes.sum(axis=1)
        return found

    def in_common(self, rows: Array, observed: Array) -> "Transform | None":
        """One transform for all summaries, of the kind that most have; None if some are whole numbers and some not.

        Neither have point masses columns of their own, nor has any other summary one.
        """
        own = np.broadcast_to(np.isnan(self.masses.value), self.kept.shape)
        kept, whole, units = self.kept[own], self.whole[own], np.broadcast_to(self.units, self.kept.shape)[own]
        if np.ptp(units) > 0:
            return None
        if whole.any() != whole.all() or (self.massive[own] & ~whole).any():
            return None
        some, whole_ones = in_units(rows[:, kept], units), bool(whole.all())
        of_data = in_units(observed[None, kept], units)
        low = min(float(some.min()), float(of_data.min()))
        kinds = [warp.kind for warp, one in zip(self.warps, own, strict=True) if one]
        offered = {warp.kind: warp for warp in _warps(some.ravel(), low, whole_ones)}
        warp = offered.get(max(kinds, key=kinds.count), Warp())
        warped = warp(some)
        same = np.ones(len(kinds))
        spread = (float(warped.std()) or 1.0) * same
        ends = self.ends if own.all() else open_ends(some, of_data)
        return Transform(kept, whole, (warp,) * len(kinds), float(warped.mean()) * same, spread, ends, units=units)


def _warped(some: Array, warps: tuple[Warp, ...]) -> Array:
    columns = [warp(column) for warp, column in zip(warps, some.T, strict=True)]
    return np.stack(columns, axis=1) if columns else np.empty((len(some), 0))


def varying(rows: Array, observed: Array) -> Array:
    """The columns that vary."""
    varied = np.mean(rows != np.median(rows, axis=0), axis=0)
    return np.flatnonzero((varied > LEAST_VARIED) & (rows.std(axis=0) > 0))


def step_of(values: Array) -> float:
    """The step of the lattice that values (n,) lie on, 1 for whole numbers; 0 if there is none that is wide enough.

    >>> [round(step_of(np.array(one)), 9) for one in ([3.0, 9.0], [0.1, 0.15, 0.4, 0.95], [0.1, 0.3711])]
    [1.0, 0.05, 0.0]
    """
    if np.all(values == np.rint(values)):
        return 1.0
    lowest, width = float(values.min()), float(np.ptp(values))
    if not width > 0:
        return 0.0
    # Equal numbers may differ in their last digits.
    different = np.unique(np.round((values - lowest) / (ROUNDED * width)))
    if not 1 < len(different) <= MOST_STEPS:
        return 0.0
    step = width / round(1.0 / (ROUNDED * float(np.diff(different).min())))
    number = np.append(ROUNDED * width * different, values) / step
    even = np.abs(values).max() < MOST_STEPS * step and np.abs(number - np.rint(number)).max() < ROUNDED * MOST_STEPS
    return step if even else 0.0


def in_units(some: Array, units: Array | float) -> Array:
    """Columns (n, k) divided by their units, on a lattice without rounding errors."""
    if np.all(units == 1.0):
        return some
    found: Array = np.where(units == 1.0, some, np.rint(some / units))
    return found


def described(rows: Array, observed: Array) -> tuple[Array, Array, Array]:
    """The columns that vary and do not follow from others, which of these are whole numbers of units, and the units."""
    kept = varying(rows, observed)
    kept = kept[~redundant(rows[:, kept])]
    steps, both = (
        np.array([step_of(column) for column in some[:, kept].T]) for some in (rows, np.concatenate([rows, observed]))
    )
    # Data between the steps of simulations have a density.
    whole = (steps > 0) & np.isclose(steps, both, rtol=1e-6)
    return kept, whole, np.where(whole, steps, 1.0)


def choose_transform(
    columns: Array,
    rows: Array,
    places: Array,
    observed: Array,
    relevance: Array,
    sets: Sets,
    scored: bool = True,
    masses: Masses | None = None,
) -> tuple[Transform, float]:
    """The transform of each summary by the log score of its regression on features (n, p) of the parameters.

    The data are one row or several. Scores count by the relevance (n,) of the simulations. `masses` are those of
    `find_masses`. Given with the sum of the mean scores; minus infinity if no summary varies. Unless it is to be
    `scored`, a summary with one possible transform adds zero to it.
    """
    of_all, total = _richest(columns, sets), 0.0

    def choose(values: Array, inside: Array, offered: list[Warp]) -> Warp:
        nonlocal total
        if len(offered) == 1 and not scored:
            return offered[0]
        shared = of_all if inside.all() else _richest(columns[inside], sets)
        warp, score = _best_warp(shared, values, offered, relevance[inside])
        total += score * float(relevance[inside].sum() / relevance.sum())
        return warp

    transform = _transform(rows, places, np.atleast_2d(observed), masses, choose)
    return transform, total if len(transform.kept) else -math.inf


def _transform(
    rows: Array,
    places: Array,
    observed: Array,
    masses: Masses | None,
    choose: Callable[[Array, Array, list[Warp]], Warp],
) -> Transform:
    """With the warps that are chosen for values, the simulations (n,) that they are from, and what they allow."""
    kept, whole, units = described(rows, observed)
    masses = masses or no_masses(len(kept))
    at_ends, units = (np.repeat(one, masses.columns(), axis=-1) for one in (masses.at_ends, units))
    kept, whole, apart = masses.split(kept, whole)
    of_data, some = in_units(observed[:, kept], units), in_units(rows[:, kept], units)
    counted, known = ~apart.hold(some), ~apart.hold(of_data)
    some, of_data = apart.indicated(some), apart.indicated(of_data)
    placed = some + np.where(whole, places[:, kept], 0.0)
    warps, (mean, spread), ends = [], np.ones((2, len(kept))), np.empty((2, len(kept)))
    for k, (inside, values) in enumerate(zip(counted.T, placed.T, strict=True)):
        here, data = some[inside, k], of_data[known[:, k], k]
        ends[:, k] = open_ends(here[:, None], data[:, None])[:, 0] if whole[k] else at_ends[:, k]
        low = min(float(here.min()), float(data.min(initial=np.inf)))
        warps.append(choose(values[inside], inside, _warps(values[inside], low, bool(whole[k]))))
        warped = warps[-1](values[inside])
        mean[k], spread[k] = warped.mean(), warped.std() or 1.0
    return Transform(kept, whole, tuple(warps), mean, spread, ends, apart, units)


def find_masses(
    columns: Array, rows: Array, places: Array, observed: Array, relevance: Array, sets: Sets
) -> Masses | None:
    """Point masses at the ends of the summaries that vary; None if none has any.

    Each is tried in two ways: as an end at which the summary was cut, and apart. What predicts better from features
    (n, p) of the parameters is taken; for whole numbers, which have cells at any rate, it must do so by `LEAST_ERRORS`.
    """
    observed = np.atleast_2d(observed)
    kept, whole, units = described(rows, observed)
    if not len(kept):
        return None
    in_steps, of_data = in_units(rows[:, kept], units), in_units(observed[:, kept], units)
    some, masses = slice(None, None, -(-len(rows) // MOST_TRIED)), no_masses(len(kept))
    ends = ends_of(in_steps[some], of_data)
    ends = np.where(ends == ends_of(in_steps, of_data), ends, np.nan)
    enough = "2" in sets and len(columns[some]) > PER_COLUMN * len(sets["2"])
    given, terms = predictors(columns[some], relevance[some], sets), Terms("2" if enough else "1", "", "1", cells=True)
    share = relevance[some] / relevance[some].sum()
    for k in np.flatnonzero(~np.isnan(ends).all(axis=0)).tolist():
        one = [kept[k]]
        these = rows[some, one], places[some, one], observed[:, one]
        if not whole[k]:
            if not without_density(in_steps[:, k], *ends[:, k]):
                continue
            masses.at_ends[:, k] = np.where(np.isnan(ends[:, k]), [-np.inf, np.inf], ends[:, k])
        elif len(np.unique(these[0])) <= FEWEST_NUMBERS:
            continue
        best = _scores_in_cells(given, terms, *these, masses.some([k]))
        for number in np.flatnonzero(~np.isnan(ends[:, k])).tolist():
            tried = masses.some([k]).moved(number, ends[number, k])
            scores = _scores_in_cells(given, terms, *these, tried)
            if better(scores, best, share, LEAST_ERRORS if whole[k] else 0.0):
                best = scores
                masses.at_ends[:, k], masses.apart[:, k] = tried.at_ends[:, 0], tried.apart[:, 0]
    return masses


def _scores_in_cells(
    given: Predictors, terms: Terms, rows: Array, places: Array, observed: Array, masses: Masses
) -> Array:
    """Log probabilities (n,) of one summary, each by a fit without it."""

    def choose(values: Array, inside: Array, offered: list[Warp]) -> Warp:
        if len(offered) == 1:
            return offered[0]
        return _best_warp(_richest(given.columns[inside], given.sets), values, offered, given.weights[inside])[0]

    transform = _transform(rows, places, observed, masses, choose)
    some, found = transform.summaries(rows, places), transform.log_slopes(rows)
    for k in range(len(transform.kept)):
        found = found + fit_factor(given, some.middle, k, terms, some.response(k)).scores
    return np.maximum(found, LOWEST_SCORE)


def _richest(columns: Array, sets: Sets) -> Regression:
    """Regressions on features (n, p), squares among them if there are enough simulations."""
    richest = next(name for name in ("2", "1") if name == "1" or (name in sets and len(columns) > 4 * len(sets[name])))
    terms = Terms(richest, "", "along" if "along" in sets else richest)
    return predictors(columns, np.ones(len(columns)), sets).regression(columns, 0, terms)


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
