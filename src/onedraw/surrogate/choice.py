"""What a surrogate is made of: coordinates, transforms, features of each factor, and the law of residuals.

Everything is chosen by the log density that a fit gives to simulations which are left out of it; those that were
proposed near the posterior count most.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.estimators.weights import effective
from onedraw.model.coordinates import Support
from onedraw.surrogate.cells import Response, Summaries, coarse, known, open_ends
from onedraw.surrogate.features import Features, Sets, count, features_of
from onedraw.surrogate.likelihood import (
    ALL,
    LEAST_GAIN,
    Fit,
    LeftOut,
    Predictors,
    Terms,
    better,
    fit_alike,
    fit_factor,
    predictors,
)
from onedraw.surrogate.ordered import ways
from onedraw.surrogate.refits import windows
from onedraw.surrogate.residuals import ResidualLaw, choose_law, law_of_series
from onedraw.surrogate.training import Training
from onedraw.surrogate.transforms import Transform, choose_transform, find_masses, varying

SMOOTH = {
    "0": ("1", "2"), "1": ("1+", "2", "0"), "1+": ("2+", "2", "1"), "2": ("2+", "along", "3", "steps", "1"),
    "2+": ("along", "steps", "3", "2"), "3": ("along", "steps", "2+", "2"), "steps": ("along", "3", "2+", "2"),
    "along": ("steps", "3", "2+", "2"),
}  # fmt: skip
"""Sets of features that are tried in place of each, richer ones first."""
Axes = dict[str, dict[Any, tuple[Any, ...]]]
BESIDE: Axes = {
    "mean": SMOOTH,
    "scale": SMOOTH,
    "earlier": {"": ("0",), "0": ("1", ""), "1": ("2", "0"), "2": ("1",)},
    "lags": {ALL: (1, 3, 8), 8: (1, 3, ALL), 3: (1, 8, ALL), 1: (3, 8, ALL)},
    "ridge": {1.0: (10.0,), 10.0: (1.0, 100.0), 100.0: (10.0,)},
}
"""What is tried in place of what a factor has."""
BESIDE_IF_MANY = BESIDE | {
    "curves": {"": ("0",), "0": ("1", ""), "1": ("0",)}, "volatility": {"": ("0",), "0": ("1", ""), "1": ("0",)},
}  # fmt: skip
"""The same from MANY effective simulations on: laws of order statistics, for example, have other spreads and curves for
each value of the one before."""
BESIDE_IN_STEPS = BESIDE | {"curves": BESIDE_IF_MANY["curves"]}
"""The same of summaries in order that are taken in steps: the log of a step is a curve of the value before it."""
MANY = 1000.0
BESIDE_IN_SERIES = BESIDE | {
    "earlier": BESIDE["earlier"] | {"2": ("3", "1"), "3": ("2",)},
    "lags": {1: (2,), 2: (4, 1), 4: (ALL, 2), ALL: (4,)},
    "curves": {"": ("0",), "0": ("1", ""), "1": ("2", "0"), "2": ("1",)},
    "volatility": {"": ("0", "1"), "0": ("1", ""), "1": ("2", "0"), "2": ("1",)},
}
"""The same for the one law of a series, for which there are many more data."""
STARTS = 3
"""Factors before, each unlike the others, at whose terms a search may begin: a step along one axis may gain only
together with another, as a slope does that is zero on average, so that a search from elsewhere would not find it."""
PER_COEFFICIENT = 3.0
"""Simulations per coefficient that a factor needs to be tried."""
LEAST_ERRORS, FEW = 1.0, 100.0
"""Gain in the mean log score, in its standard errors, for which a factor has richer features if there are only so many
simulations: many are tried, and the best by chance are too sure. It falls as their number grows: then features that are
missing make a bias that no refit shows."""
BRIEF = 3
"""Steps of a fit to cells from the fit of other terms on, after which it is clear whether it is worth any more."""
LEAST_PROMISE = 1.0
"""Of a score test, per coefficient, from which it is tried whether a scale varies: 1 is what a constant one
has on average, and simulations left out lose by fits that promise less than 2."""
FEWEST_IN_SERIES, LONGEST, SEARCHED = 6, 8, 12_000
"""Summaries that may be a series, most values that a step of it depends on, and steps from which terms are chosen."""
CLEARLY_WORSE = 0.1
"""Loss in log score per summary from which one law for all is not looked at any further."""
IN_SERIES = (
    Terms("1", "1", "0", 10.0, 1), Terms("1", "1", "0", 10.0, 1, "1"), Terms("1", "1", "0", 10.0),
    Terms("1", "0", "1", 10.0, 1, volatility="1"),
)  # fmt: skip
"""Where the search for the terms of a series begins: a line, a curve, a long memory, a scale that varies."""
ANY_STEP = Terms("1", "0", "1", 10.0)
"""By which ways to take summaries in steps are compared."""
MOST_COLUMNS = 40
"""Summaries up to which each may have a law of its own."""
LOOKED_AT, LAWS_FROM = 10, 20_000
"""Values of a longer series from which coordinates and transforms are chosen, and steps from which the law of residuals
is."""
CHOSEN_FROM, BRIEFLY_FROM = 3000, 1000
"""Simulations from which a surrogate is chosen at the end of a run, and on the way."""


class Coordinates(NamedTuple):
    """Coordinates in which features of parameters are computed, those of bounded parameters in two ways."""

    support: Support
    kinds: tuple[str, ...]
    """Of each parameter: "unbounded", "natural" (as it is) or "log"."""

    def __call__(self, unbounded: Array) -> Array:
        """From unbounded coordinates (n, dim): each parameter in its kind, and then bounded ones in another."""
        natural = self.support.bounded(unbounded)
        found = [self._one(unbounded, natural, j, kind) for j, kind in enumerate(self.kinds)]
        found += [self._one(unbounded, natural, j, kind) for j, kind in self.others()]
        return np.stack(found, axis=1)

    def others(self) -> list[tuple[int, str]]:
        """Which parameters have a second coordinate, and of which kind."""
        bounded = np.isfinite(self.support.low) | np.isfinite(self.support.high)
        other = np.where(self.support.low >= 0, "log", "unbounded")
        return [
            (j, str(other[j]) if kind == "natural" else "natural") for j, kind in enumerate(self.kinds) if bounded[j]
        ]

    def _one(self, unbounded: Array, natural: Array, j: int, kind: str) -> Array:
        if kind == "log":
            return np.log(np.maximum(natural[:, j], 1e-300))
        return natural[:, j] if kind == "natural" else unbounded[:, j]


class Form(NamedTuple):
    """What a surrogate is made of, without its coefficients."""

    coordinates: Coordinates
    features: Features
    transform: Transform
    terms: tuple[Terms, ...]
    law: ResidualLaw
    common: int = ALL
    """The first of the factors that have the same coefficients: in a series, how many values a step depends on."""

    @property
    def long(self) -> bool:
        """Whether it is that of a series so long that its values have no laws of their own."""
        return self.common < len(self.terms) > MOST_COLUMNS

    @property
    def cells(self) -> Array:
        """Which factors are probabilities of the cells of whole numbers."""
        return np.array([one.cells for one in self.terms], dtype=bool)

    @property
    def flat(self) -> bool:
        """Whether no factor depends on the parameters: too few simulations were there to learn how."""
        return all(name == "0" for one in self.terms for name in one.names())

    def columns(self, theta: Array) -> Array:
        """Features (n, p) of parameters in unbounded coordinates (n, dim)."""
        return self.features(self.coordinates(theta))

    def trimmed(self, least: int) -> "Form":
        """The same form without features that no factor has, beyond the first `least`: sums over them are zero."""
        names = {name for one in self.terms for name in one.names()}
        most, dim = self.features.degree, self.features.dim
        # The names of sets begin with their degree; both kinds of steps have squares as well.
        used = max(min(most, 2) if name in ("steps", "along") else int(name[:1]) for name in names)
        degree = next(one for one in range(max(used, 1), most + 1) if one == most or count(dim, one) >= least)
        lower = self.features.lower(degree, "steps" in names, "along" in names)
        return self if lower is self.features else self._replace(features=lower)


def options(support: Support) -> list[Coordinates]:
    """The coordinates that are tried: the first has boxes as they are, and logarithms beside a single bound.

    >>> one = Support(np.array([0.5, 0.0]), np.array([1.0, np.inf]))
    >>> [choice.kinds for choice in options(one)]
    [('natural', 'unbounded'), ('natural', 'natural'), ('unbounded', 'unbounded'), ('log', 'log')]
    """
    low, high = np.isfinite(support.low), np.isfinite(support.high)
    positive = low & (support.low >= 0)
    tried = [
        np.where(low & high, "natural", "unbounded"),
        np.where(low | high, "natural", "unbounded"),
        np.full(len(low), "unbounded"),
        np.where(positive, "log", np.where(low & high, "natural", "unbounded")),
    ]
    # In the order in which they are listed, each once.
    kinds = dict.fromkeys(tuple(one.tolist()) for one in tried)
    return [Coordinates(support, one) for one in kinds]


def choose_form(
    support: Support, training: Training, observed: Array, thorough: bool, series: bool = True
) -> Form | None:
    """The form that describes simulations best; None if no summary varies.

    It may be that of a series if it is chosen thoroughly, unless `series` is False. Summaries in order are also tried
    in steps, each given the values before it.
    """
    most, training = CHOSEN_FROM if thorough else BRIEFLY_FROM, training.counted()
    some = training.some(slice(None, None, -(-len(training.rows) // most)))
    theta, rows, places, weights = some.single_rows(most)
    numbers = len(some.rows), len(training.rows)
    prepared = _prepare(support, theta, rows, places, weights, observed, *numbers, True)
    if prepared is None:
        return None
    best = prepared, _choose_all(prepared.given, prepared.transform.summaries(rows, places))
    each = [
        (other._replace(transform=together), together.summaries(rows, places))
        for steps in (ways(rows, observed) if training.rows.ndim == 2 else ())
        if (other := _prepare(support, theta, steps(rows), places, weights, steps(observed), *numbers, True))
        and (together := prepared.transform.in_steps(steps, other.transform))
    ]
    if each:
        totals = [_total(_with_same_terms(*one), one[0].transform, rows) for one in each]
        other, summaries = max(zip(each, totals, strict=True), key=lambda one: float(weights @ one[1]))[0]
        tried = other, _choose_all(other.given, summaries, BESIDE_IN_STEPS)
        before, after = (_total(found.scores, one.transform, rows) for one, found in (best, tried))
        if better(after, before, weights / weights.sum(), LEAST_ERRORS):
            best = tried
    (coordinates, features, transform, given), found = best
    as_they_are = transform.values is None and len(found.terms) >= FEWEST_IN_SERIES
    if thorough and series and training.rows.ndim == 2 and as_they_are:
        transform, found = _as_series(given, rows, places, observed, transform, found)
    law = choose_law(found.residuals, weights, thorough, densities(found.terms))
    return Form(coordinates, features, transform, found.terms, law, found.common)


def _with_same_terms(prepared: "Prepared", rows: Summaries) -> Array:
    """Scores (n, s) of factors with the same terms, by which ways to take steps are compared before the search."""
    columns = range(len(rows.whole))
    fits = (fit_factor(prepared.given, rows.middle, k, ANY_STEP, rows.response(k)) for k in columns)
    return np.stack([one.bounded for one in fits], axis=1)


def _total(scores: Array, transform: Transform, rows: Array) -> Array:
    """Log densities (n,) of summaries as they are, from scores (n, s) of the transformed ones."""
    total: Array = scores.sum(axis=1) + transform.log_slopes(rows)
    return total


def choose_series(support: Support, training: Training, observed: Array, thorough: bool) -> Form | None:
    """The form of a series of any length, all of whose values but the first have one law; None if they clearly do not.

    The work hardly depends on the length: coordinates and transforms are chosen from a few values, and the law of a
    step from some of all steps.
    """
    most, training = CHOSEN_FROM if thorough else BRIEFLY_FROM, training.counted()
    theta, rows, places, weights = training.some(slice(None, None, -(-len(training.rows) // most)))
    kept = varying(rows, observed)
    whole = np.all(np.concatenate([rows, observed[None]])[:, kept] % 1.0 == 0.0, axis=0)
    some = kept[:: -(-len(kept) // LOOKED_AT)] if len(kept) else kept
    prepared = _prepare(support, theta, rows[:, some], places[:, some], weights, observed[some], len(rows), 0, False)
    if prepared is None or len(kept) <= 2 * LONGEST:
        return None
    coordinates, features, transform, given = prepared
    kinds = [warp.kind for warp in transform.warps]
    warp = transform.warps[kinds.index(max(kinds, key=kinds.count))]
    ends = open_ends(rows[:, kept], observed[None, kept])
    every = Transform(kept, whole, (warp,) * len(kept), np.zeros(len(kept)), np.ones(len(kept)), ends)
    common = every.in_common(rows, observed)
    if common is None:
        return None
    series = common.summaries(rows, places)
    searched = SEARCHED if thorough else BRIEFLY_FROM
    step = _law_of_steps(given, series, LONGEST, searched, _single_scores(given, series))
    if step is None:
        return None
    lags, width = step.lags, len(kept)
    values, number, time = windows(series.middle, lags, LAWS_FROM)
    steps = predictors(given.columns[number], weights[number], given.sets)
    fit = fit_factor(steps, values, lags, step, series.at((number, time)))
    first = _choose_all(given, series.first(lags))
    law = law_of_series(
        choose_law(first.residuals, weights, thorough, densities(first.terms)),
        choose_law(fit.residuals[:, None], weights[number], thorough, densities((step,))), lags, width,
    )  # fmt: skip
    return Form(coordinates, features, common, (*first.terms, *[step] * (width - lags)), law, lags)


def densities(terms: Sequence[Terms]) -> Array:
    """Which factors are densities, whose residuals have a law to be chosen."""
    return np.flatnonzero([not one.cells for one in terms])


class Prepared(NamedTuple):
    """The coordinates, features and transforms with which parameters predict summaries best."""

    coordinates: Coordinates
    features: Features
    transform: Transform
    given: Predictors


def _prepare(
    support: Support,
    theta: Array,
    rows: Array,
    places: Array,
    weights: Array,
    observed: Array,
    number: int,
    total: int,
    masses: bool,
) -> Prepared | None:
    """From single rows of so many simulations, which are some of a total; None if no summary varies.

    Summaries may have point `masses`.
    """
    best, tried, chosen, found = -math.inf, options(support), None, None
    for coordinates in tried:
        there = coordinates(theta)
        features = features_of(there, theta.shape[1], number // 3, weights, total)
        columns, sets = features(there), features.sets()
        simulations = columns, rows, places, observed, weights, sets
        if masses and coordinates is tried[0]:
            found = find_masses(*simulations)
        transform, score = choose_transform(*simulations, scored=len(tried) > 1, masses=found)
        if score > best + LEAST_GAIN:
            best, chosen = score, Prepared(coordinates, features, transform, predictors(columns, weights, sets))
    return chosen


class Factors(NamedTuple):
    """The terms of all factors, and what they say of simulations left out."""

    terms: tuple[Terms, ...]
    residuals: Array
    """(n, s)"""
    scores: Array
    """(n, s) log densities, which no single simulation dominates."""
    common: int = ALL
    """As in `Form`."""


class Alike(NamedTuple):
    """Fits of terms without earlier summaries: when one summary asks for them, others are likely to ask as well.

    As many further summaries are fitted at once as have asked for these terms.
    """

    given: Predictors
    values: Array
    """(s, n)"""
    asked: Counter[Terms]
    known: dict[tuple[int, Terms], LeftOut]

    def __call__(self, k: int, terms: Terms) -> LeftOut:
        """That of summary k."""
        if (k, terms) not in self.known:
            number = max(1, self.asked[terms])
            found = fit_alike(self.given, self.values[k : k + number], terms)
            self.known.update(((k + j, terms), one) for j, one in enumerate(found))
        self.asked[terms] += 1
        return self.known.pop((k, terms))


def _choose_all(given: Predictors, rows: Summaries, if_few: Axes = BESIDE) -> Factors:
    """Terms of each factor, one after another, with what is tried if simulations are few."""
    chosen: list[Terms] = []
    alike = Alike(given, rows.placed.T, Counter(), {})
    beside = BESIDE_IF_MANY if effective(given.weights) >= MANY else if_few
    residuals, scores = np.empty((2, *rows.middle.shape))
    for k in range(rows.middle.shape[1]):
        # Summaries are often alike, one by one or by turns.
        before = list(dict.fromkeys(one._replace(cells=False) for one in reversed(chosen)))[:STARTS]
        terms, fit = choose_terms(given, rows.middle, k, before, beside, rows.response(k), alike)
        chosen.append(terms)
        residuals[:, k], scores[:, k] = fit.residuals, fit.bounded
    return Factors(tuple(chosen), residuals, scores)


def _as_series(
    given: Predictors, rows: Array, places: Array, observed: Array, transform: Transform, single: Factors
) -> tuple[Transform, Factors]:
    """The factors as those of a series, if these predict as well as single ones.

    All summaries but the first few then have one law given as many summaries before, and a simulation has many steps
    to learn it from.
    """
    other = transform.in_common(rows, observed)
    if other is None:
        return transform, single
    series, share = other.summaries(rows, places), given.weights / given.weights.sum()
    n, width = series.middle.shape
    to_reach = _total(single.scores, transform, rows) - other.log_slopes(rows)
    step = _law_of_steps(given, series, min(LONGEST, width // 2), SEARCHED, float(share @ to_reach) / width)
    if step is None:
        return transform, single
    lags = step.lags
    every, number, time = windows(series.middle, lags, series.middle.size)
    steps = predictors(given.columns[number], given.weights[number], given.sets)
    fit = fit_factor(steps, every, lags, step, series.at((number, time)))
    first = _choose_all(given, series.first(lags))
    after = (one.reshape(n, -1) for one in (fit.residuals, fit.bounded))
    residuals, scores = (np.concatenate(both, axis=1) for both in zip(first[1:3], after, strict=True))
    if better(to_reach, scores.sum(axis=1), share, LEAST_ERRORS):
        return transform, single
    return other, Factors((*first.terms, *[step] * (width - lags)), residuals, scores, common=lags)


def _law_of_steps(given: Predictors, series: Summaries, longest: int, most: int, to_reach: float) -> Terms | None:
    """The terms of the one law of all steps, chosen from at most so many; None if it scores clearly less than this.

    Terms are compared on the same steps, however long their memory. One law for all is most often much worse, and that
    is soon seen.
    """
    values, number, time = windows(series.middle, longest, most)
    searched, response = predictors(given.columns[number], given.weights[number], given.sets), series.at((number, time))
    tried = (fit_factor(searched, values, longest, one, response).bounded for one in IN_SERIES)
    best = max(float(searched.weights @ one) for one in tried) / float(searched.weights.sum())
    if best < to_reach - CLEARLY_WORSE:
        return None
    terms, _ = choose_terms(searched, values, longest, IN_SERIES, BESIDE_IN_SERIES, response)
    return terms._replace(lags=min(terms.lags, longest) if terms.begin(longest) < longest else 1)


def _single_scores(given: Predictors, series: Summaries) -> float:
    """The mean log score of a few values of series (n, s), each with a law of its own given those before it."""
    looked_at = np.linspace(LONGEST, series.middle.shape[1] - 1, LOOKED_AT).astype(np.int64)
    law, share = Terms("1", "0", "1", 10.0), given.weights / given.weights.sum()
    fits = (
        fit_factor(given, series.middle[:, k - LONGEST : k + 1], LONGEST, law, series.response(k))
        for k in looked_at.tolist()
    )
    return sum(float(share @ one.bounded) for one in fits) / LOOKED_AT


def coefficient_count(terms: Terms, k: int, sets: Sets) -> int:
    """How many coefficients a factor has."""
    products = (1, terms.earlier), (2, terms.curves), (3, terms.volatility)
    each = sum(number * len(sets[name]) for number, name in products if name)
    return len(sets[terms.mean]) + (k - terms.begin(k)) * each + len(sets[terms.scale])


def choose_terms(
    given: Predictors,
    rows: Array,
    k: int,
    before: Sequence[Terms] = (),
    beside: Axes = BESIDE,
    response: Response | None = None,
    alike: Alike | None = None,
) -> tuple[Terms, Fit | LeftOut]:
    """The terms of factor k by a search from the best of `before` on, one axis after another, and the fit with them.

    A whole number has the law of cells if these are wide for the terms at which the search begins.
    """
    sets, share = given.sets, given.weights / given.weights.sum()
    of_cells = None if response is None else response.cells
    number = max(effective(given.weights if of_cells is None else given.weights[known(of_cells)]), 1.0)
    most, errors = number / PER_COEFFICIENT, LEAST_ERRORS * min(1.0, FEW / number)
    tried: dict[Terms, Fit | LeftOut] = {}
    unfinished: set[Terms] = set()

    def allowed(terms: Terms) -> bool:
        there = all(name in sets for name in terms.names())
        shorter = terms.lags == ALL or 0 < terms.begin(k) < k
        return there and shorter and coefficient_count(terms, k, sets) <= most

    def fitted(terms: Terms, near: Terms | None = None) -> Fit | LeftOut:
        if terms not in tried:
            other = tried[near] if near in tried and terms.cells else None
            if isinstance(other, Fit):
                tried[terms] = fit_factor(given, rows, k, terms, response, other.factor, BRIEF)
                unfinished.add(terms)
            elif alike is None or terms.earlier or terms.volatility or terms.cells:
                tried[terms] = fit_factor(given, rows, k, terms, response)
            else:
                tried[terms] = alike(k, terms)
        return tried[terms]

    def scores(terms: Terms, near: Terms | None = None) -> Array:
        return fitted(terms, near).bounded

    def preferred(terms: Terms, over: Terms) -> bool:
        """Whether other terms are better: the simpler of two unless the richer gains."""
        if varies(terms, over):
            promise = given.of_scale(rows, k, terms).promise(given.weights, fitted(over).residuals)
            if promise < LEAST_PROMISE:
                return False
        if _richness(terms, k, sets) > _richness(over, k, sets):
            return better(scores(terms, over), scores(over), share, errors)
        return not better(scores(over), scores(terms, over), share, errors)

    def varies(terms: Terms, over: Terms) -> bool:
        """Whether the one thing that is new is that the scale of a density varies."""
        new = terms.scale != over.scale == "0" and terms == over._replace(scale=terms.scale)
        return new and not (terms.cells or terms.volatility)

    def taken(terms: Terms, over: Terms) -> bool:
        """Whether they are preferred, and then their fit is completed."""
        found = preferred(terms, over)
        if found and terms in unfinished:
            own = tried[terms]
            assert isinstance(own, Fit)
            tried[terms] = fit_factor(given, rows, k, terms, response, own.factor)
            unfinished.discard(terms)
        return found

    starts = [*filter(allowed, before)] or [*filter(allowed, (Terms(), Terms("1", "", "0")))][:1]
    start, *others = starts or [Terms("0", "", "0")]
    for other in others:
        start = other if preferred(other, start) else start
    if response is not None and of_cells is not None:
        typical = float(fit_factor(given, rows, k, start, response).factor.scale[0])
        start = start._replace(cells=response.massive or coarse(of_cells, given.weights, typical))
    axes = {axis: tried for axis, tried in beside.items() if k or axis != "earlier"}
    found = _climb(start, allowed, taken, axes)
    return found, fitted(found)


def _richness(terms: Terms, k: int, sets: Sets) -> tuple[int, float]:
    return coefficient_count(terms, k, sets), -terms.ridge


def _tidy(terms: Terms) -> Terms:
    """The same factor under one name: without earlier summaries there are neither lags nor curves."""
    if terms.earlier:
        return terms
    return terms._replace(lags=terms.lags if terms.volatility else ALL, curves="")


def _climb(
    start: Terms, allowed: Callable[[Terms], bool], preferred: Callable[[Terms, Terms], bool], axes: Axes
) -> Terms:
    """Along one axis after another, until no step along any of them is preferred; nowhere twice."""
    current, still, k, seen, names = start, 0, 0, {start}, list(axes)
    while still < len(axes):
        axis = names[k]
        beside = [_tidy(current._replace(**{axis: value})) for value in axes[axis][getattr(current, axis)]]
        other = next((one for one in beside if one not in seen and allowed(one) and preferred(one, current)), None)
        if other is None:
            still, k = still + 1, (k + 1) % len(axes)
        else:
            current, still = other, 0
            seen.add(other)
    return current
