"""What a surrogate is made of: coordinates, transforms, features of each factor, and the law of residuals.

Everything is chosen by the log density that a fit gives to simulations which are left out of it; those that were
proposed near the posterior count most.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.estimators.weights import effective
from onedraw.model.coordinates import Support
from onedraw.surrogate.features import Features, Sets, features_of
from onedraw.surrogate.likelihood import ALL, LEAST_GAIN, Fit, Terms, better, fit_factor
from onedraw.surrogate.residuals import ResidualLaw, choose_law
from onedraw.surrogate.training import Training
from onedraw.surrogate.transforms import Transform, choose_transform

SMOOTH = {
    "0": ("1", "2"), "1": ("1+", "2", "0"), "1+": ("2+", "2", "1"), "2": ("2+", "3", "steps", "1"),
    "2+": ("steps", "3", "2"), "3": ("steps", "2+", "2"), "steps": ("3", "2+", "2"),
}  # fmt: skip
"""Sets of features that are tried in place of each, richer ones first."""
BESIDE: dict[str, dict[Any, tuple[Any, ...]]] = {
    "mean": SMOOTH,
    "scale": SMOOTH,
    "earlier": {"": ("0",), "0": ("1", ""), "1": ("2", "0"), "2": ("1",)},
    "lags": {ALL: (8,), 8: (3, ALL), 3: (8,)},
    "ridge": {1.0: (10.0,), 10.0: (1.0, 100.0), 100.0: (10.0,)},
}
"""What is tried in place of what a factor has."""
PER_COEFFICIENT = 3.0
"""Simulations per coefficient that a factor needs to be tried."""
LEAST_ERRORS, FEW = 1.0, 100.0
"""Gain in the mean log score, in its standard errors, for which a factor has richer features if there are only so many
simulations: many are tried, and the best by chance are too sure. It falls as their number grows: then features that are
missing make a bias that no refit shows."""
BROAD, BREADTH = 0.01, 5.0
"""Share and width of the wide normal that bounds a score."""
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

    @property
    def flat(self) -> bool:
        """Whether no factor depends on the parameters: too few simulations were there to learn how."""
        return all(one.mean == one.scale == "0" and one.earlier in ("", "0") for one in self.terms)

    def columns(self, theta: Array) -> Array:
        """Features (n, p) of parameters in unbounded coordinates (n, dim); smooth steps are zero if no factor has them.

        Sums over the features are then the same to the last bit, and most of the work is saved.
        """
        return self.features(self.coordinates(theta), any("steps" in (one.mean, one.scale) for one in self.terms))


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


def choose_form(support: Support, training: Training, observed: Array, thorough: bool) -> Form | None:
    """The form that describes simulations best; None if no summary varies."""
    most = CHOSEN_FROM if thorough else BRIEFLY_FROM
    some = training.some(slice(None, None, -(-len(training.rows) // most)))
    theta, rows, places, weights = some.single_rows(most)
    best = -math.inf
    for coordinates in options(support):
        there = coordinates(theta)
        features = features_of(there, theta.shape[1], len(some.rows) // 3)
        columns, sets = features(there), features.sets()
        transform, score = choose_transform(columns, rows, places, observed, weights, sets)
        if score > best + LEAST_GAIN:
            best, chosen = score, (coordinates, features, transform, columns, sets)
    if best == -math.inf:
        return None
    coordinates, features, transform, columns, sets = chosen
    terms, residuals = _choose_all(columns, transform(rows, places), weights, sets)
    return Form(coordinates, features, transform, terms, choose_law(residuals, weights, thorough))


def _choose_all(columns: Array, rows: Array, weights: Array, sets: Sets) -> tuple[tuple[Terms, ...], Array]:
    """Terms of all factors, and residuals (n, s) of simulations left out."""
    chosen, residuals, first = [], np.empty(rows.shape), Terms()
    for k in range(rows.shape[1]):
        # Summaries are often alike: the search begins at what the one before has.
        first, fit = choose_terms(columns, rows, weights, sets, k, first)
        chosen.append(first)
        residuals[:, k] = fit.residuals
    return tuple(chosen), residuals


def bounded_scores(fit: Fit) -> Array:
    """Scores that no single simulation dominates."""
    square = np.square(fit.residuals)
    wide = fit.scores + 0.5 * square * (1.0 - BREADTH**-2) + math.log(BROAD / BREADTH)
    return np.logaddexp(fit.scores + math.log1p(-BROAD), wide)


def coefficient_count(terms: Terms, k: int, sets: Sets) -> int:
    """How many coefficients a factor has."""
    earlier = (k - terms.begin(k)) * len(sets[terms.earlier]) if terms.earlier else 0
    return len(sets[terms.mean]) + earlier + len(sets[terms.scale])


def choose_terms(columns: Array, rows: Array, weights: Array, sets: Sets, k: int, first: Terms) -> tuple[Terms, Fit]:
    """The terms of factor k by a search from `first` on, one axis after another, and the fit with them."""
    number, share = effective(weights), weights / weights.sum()
    most, errors = number / PER_COEFFICIENT, LEAST_ERRORS * min(1.0, FEW / number)
    tried: dict[Terms, Fit] = {}

    def allowed(terms: Terms) -> bool:
        known = all(name in sets for name in (terms.mean, terms.scale, terms.earlier or "0"))
        shorter = terms.lags == ALL or 0 < terms.begin(k) < k
        return known and shorter and coefficient_count(terms, k, sets) <= most

    def scores(terms: Terms) -> Array:
        if terms not in tried:
            tried[terms] = fit_factor(columns, rows, weights, k, terms, sets)
        return bounded_scores(tried[terms])

    def preferred(terms: Terms, over: Terms) -> bool:
        """Whether other terms are better: the simpler of two unless the richer gains."""
        if _richness(terms, k, sets) > _richness(over, k, sets):
            return better(scores(terms), scores(over), share, errors)
        return not better(scores(over), scores(terms), share, errors)

    start = next((terms for terms in (first, Terms(), Terms("1", "", "0")) if allowed(terms)), Terms("0", "", "0"))
    found = _climb(start, allowed, preferred, [axis for axis in BESIDE if k or axis != "earlier"])
    return found, tried.get(found) or fit_factor(columns, rows, weights, k, found, sets)


def _richness(terms: Terms, k: int, sets: Sets) -> tuple[int, float]:
    return coefficient_count(terms, k, sets), -terms.ridge


def _climb(
    start: Terms, allowed: Callable[[Terms], bool], preferred: Callable[[Terms, Terms], bool], axes: Sequence[str]
) -> Terms:
    """Along one axis after another, until no step along any of them is preferred; nowhere twice."""
    current, still, k, seen = start, 0, 0, {start}
    while still < len(axes):
        axis = axes[k]
        beside = [current._replace(**{axis: value}) for value in BESIDE[axis][getattr(current, axis)]]
        other = next((one for one in beside if one not in seen and allowed(one) and preferred(one, current)), None)
        if other is None:
            still, k = still + 1, (k + 1) % len(axes)
        else:
            current, still = other, 0
            seen.add(other)
    return current
