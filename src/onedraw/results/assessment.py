"""What simulations say about the posterior: which summary, region and regression do best near the data."""

import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr, stdtrit

from onedraw.engines.arrays import Array
from onedraw.estimators.weights import effective
from onedraw.model.distance import Euclidean
from onedraw.model.model import Model
from onedraw.results.learned_summary import learn_near
from onedraw.results.learnt_likelihood import (
    CLEARLY,
    LIKELY_ERRORS,
    MOST_LEARNT,
    DescribedRows,
    LearntLikelihood,
    SimulatedPairs,
    learn_likelihood,
    learning_work,
)
from onedraw.results.regression import AdjustedDraws, Method, Neighbourhood, distances_from, estimate, with_clusters
from onedraw.results.series_moments import SeriesMoments, moments_of
from onedraw.results.trial import TrialResult, choose_method, held_out_count, near_data, standardising
from onedraw.surrogate.choice import MOST_COLUMNS
from onedraw.surrogate.likelihood import better, mean_gain

NEAREST = 5000
"""Simulations that are assessed, the nearest by each summary."""
LEARN_FROM, LEARN_SHARE = 5000, 0.3
"""The most simulations from which a summary is learnt, and the share of all, the nearest, that a local one has."""
FEWEST_CLUSTERED = 100
"""Simulations below which no clusters are sought."""
TOO_SURE = 0.8
"""A power of the likelihood of rows below this share of the other's says that the rows are not independent."""
LEAST_LEAD = 0.2
"""How much of the log score, beyond its error, others must be ahead of a surrogate: the best of many methods of
regression is chosen at the same simulations, so its score is too good. Standard deviations that are wrong by a factor
of one and a half lose as much."""
FEWEST_EFFECTIVE = 50.0
"""Effective draws of a regression that may be preferred: few heavy ones score well at each other."""
FEWEST_PER_SUMMARY, PER_SUMMARY = 3, 20
"""Simulations per summary from which summaries are learnt, and the number of the nearest that is used at least."""
FEWEST_LEARNT = 20
"""Simulations below which no likelihood is learnt."""
HELD_OUT_OF_OWN = 12
"""Simulations that are taken as data if the distance is the user's own, which may be slow."""

LEARNT, FROM_MOMENTS = "learnt summaries", "summaries learnt from moments of the series"
"""What learnt summaries are called, by what they are learnt from."""

Rows = Callable[[Array], Array]


class Assessment(NamedTuple):
    """What the simulations so far say."""

    neighbourhoods: tuple[Neighbourhood, ...]
    """The same simulations by each summary."""
    observed: tuple[Array, ...]
    names: tuple[str, ...]
    trial: TrialResult
    draws: AdjustedDraws
    members: Array
    """Which of all good simulations are in the neighbourhoods."""
    held_out: Array
    """Which of these the methods were tried at."""
    distances: Rows
    """From raw summaries to distances by the chosen summary."""
    learnt: LearntLikelihood | None = None
    """The surrogate that did best at the same held-out simulations, if there is one."""
    constant: LearntLikelihood | None = None
    """A surrogate that depends on no parameter, if there is no other: it says how dense the data are, and no more."""
    left_out: bool = False
    """Whether a surrogate was not tried because it would have taken too long."""

    @property
    def method(self) -> Method:
        """The method of regression that was chosen."""
        return self.trial.method

    @property
    def likelihood(self) -> LearntLikelihood | None:
        """The surrogate unless regression does better, by two standard errors and more, and leans on enough draws."""
        if self.learnt is None or effective(self.draws.weights) < FEWEST_EFFECTIVE:
            return self.learnt
        return None if ahead(self.trial.scores, self.learnt.scores, self.trial.share) else self.learnt

    @property
    def gain(self) -> tuple[float, float]:
        """Mean log score of the surrogate over that of the regression, and its standard error; NaN if not tried."""
        if self.learnt is None:
            return math.nan, math.nan
        return gain_of(self.learnt.scores, self.trial.scores, self.trial.share)

    @property
    def chosen(self) -> tuple[Neighbourhood, Array]:
        """The neighbourhood by the chosen summary, and the data."""
        return self.neighbourhoods[self.method.summary], self.observed[self.method.summary]


def own_distance(model: Model) -> Callable[[Array, Array], Array] | None:
    """The user's distance on flat rows; None if it is a built-in one."""
    return None if hasattr(model.distance, "learnt") else model.apart


def spread_of(rows: Array) -> Array:
    """The spread of each column: from the median absolute deviation, the standard deviation if that is zero."""
    median = np.median(rows, axis=0)
    spread = np.median(np.abs(rows - median), axis=0) / 0.6744897501960817
    spread = np.where(spread > 0, spread, rows.std(axis=0))
    return np.where(spread > 0, spread, 1.0)


def scaled_summary(model: Model, rows: Array) -> tuple[str, Rows]:
    """The model's distance as a map to rows whose Euclidean distance it is, learnt from pilot rows if needed."""
    distance: Any = model.distance
    if isinstance(distance, Euclidean):
        spread = spread_of(rows)
        return "scaled summaries", lambda some: some / spread
    if model.pilot:
        distance = distance.learnt(rows, model.labels())
    scale, whiten = getattr(distance, "scale", None), getattr(distance, "whiten", None)
    if scale is not None:
        return "scaled summaries", lambda some: some / scale
    if whiten is not None:
        return "whitened summaries", lambda some: some @ whiten.T
    return "the distance given", lambda some: some


def assess(
    model: Model,
    simulations: SimulatedPairs,
    pilot: int,
    rng: np.random.Generator,
    thorough: bool,
    less: bool = False,
    most_work: float = math.inf,
) -> Assessment:
    """Try methods at simulations near the data, and estimate the posterior by the best.

    The first `pilot` simulations are from the prior. With `less`, a thorough assessment tries regressions briefly, and
    a brief one tries none: it takes half as long, and a learnt likelihood is used if there is one.
    No likelihood is learnt if that takes more than `most_work` operations.
    """
    own, theta, rows = own_distance(model), simulations.theta, simulations.rows
    name, scale = scaled_summary(model, rows[:pilot])
    maps, names = [scale], [name]
    order = [np.argsort(_distances(scale, own, model)(rows), kind="stable")]
    if own is None:
        # Rows that the user says are independent are no series.
        moments = None if model.replicates is not None else moments_of(rows[:pilot], model.recipe.layout.shapes)
        learnt = _learned(theta, rows, scale, moments, order[0])
        if learnt is not None:
            names.append(learnt[0])
            maps.append(learnt[1])
            order.append(np.argsort(_distances(maps[1], None, model)(rows), kind="stable"))
    index = np.unique(np.concatenate([some[:NEAREST] for some in order]))
    weights, observed = simulations.log_weights(theta[index]), tuple(one(model.observed_row[None])[0] for one in maps)
    neighbourhoods = []
    for one, there in zip(maps, observed, strict=True):
        near = Neighbourhood(theta[index], one(rows[index]), weights, ~np.asarray(model.prior.discrete), (), own)
        neighbourhoods.append(with_clusters(near, there) if len(index) >= FEWEST_CLUSTERED else near)
    tried_long = thorough and not less
    # With a distance of the user's own there is no likelihood to lean on.
    most = 0 if less and not thorough and own is None else held_out_count(tried_long)
    each = max(min(1, most), (most if own is None else min(most, HELD_OUT_OF_OWN)) // len(maps))
    among = min(max(60, len(rows) // 50), len(index) // 2)
    picked = [
        near_data(near, there, among, each, rng, index % 2 == 1)
        for near, there in zip(neighbourhoods, observed, strict=True)
    ]
    held_out = np.concatenate(picked)
    trial = choose_method(neighbourhoods, held_out, tried_long)
    k = trial.method.summary
    draws = estimate(neighbourhoods[k], observed[k], trial.method)
    distances = _distances(maps[k], own, model)
    found = Assessment(
        tuple(neighbourhoods), observed, tuple(names), trial, draws, index, np.unique(held_out), distances
    )
    _, every = simulations.together()
    if own is not None or len(every) < FEWEST_LEARNT:
        return found
    to_compare = standardising(neighbourhoods[0], trial.held_out) if trial.tried else np.eye(theta.shape[1])
    held_out = index[trial.held_out]
    alone, series = _by_row(model, every), _series(model, every)
    described = _described(maps, every, model.observed_row), alone or series
    too_long = [one is not None and learning_work(one, theta.shape[1]) > most_work for one in described]
    whole, other = (
        None
        if some is None or left
        else learn_likelihood(simulations, some, held_out, trial.share, to_compare, deepcopy(rng), thorough)
        for some, left in zip(described, too_long, strict=True)
    )
    whole, constant = (None, whole) if whole is not None and whole.constant else (whole, None)
    other = None if other is not None and other.constant else other
    best = _likelier(whole, other) if alone is None else _better(whole, other, trial.share)
    none = best is None
    return found._replace(learnt=best, constant=constant if none else None, left_out=none and any(too_long))


def _better(whole: LearntLikelihood | None, by_row: LearntLikelihood | None, share: Array) -> LearntLikelihood | None:
    """The likelihood of all summaries, or that of one row of the data: the latter unless it is clearly behind.

    That rows are independent was said by the user, and from that many more of them little is left to chance. If they
    are not, the sum over them is too sure, and is raised to a power below 1. The first power below 1 may be chance.
    """
    if whole is None or by_row is None:
        return by_row or whole
    if by_row.surrogate.power < TOO_SURE * whole.surrogate.power:
        return whole
    return whole if ahead(whole.scores, by_row.scores, share) else by_row


def _likelier(whole: LearntLikelihood | None, series: LearntLikelihood | None) -> LearntLikelihood | None:
    """The likelihood of learnt summaries, or that of one series if it is ahead by a standard error.

    One loses what the summaries do not show, and the other what values long before say of a hidden state. They are
    compared at the same simulations, proposed near the posterior: those near the data by a distance of many summaries
    are few that count, and not near it.
    """
    if whole is None or series is None:
        return series or whole
    share = np.full(len(series.gains), 1.0 / max(len(series.gains), 1))
    return series if better(series.gains, whole.gains, share, LIKELY_ERRORS) else whole


def gain_of(scores: Array, others: Array, share: Array, errors: float = 1.0) -> tuple[float, float]:
    """Mean of the difference of scores (m,) with these shares, and so many standard errors of it; NaN if m < 2.

    A few of the held-out simulations may have most of the weight. A standard error from so few is itself uncertain, so
    it is multiplied by Student's quantile instead of the normal one.

    >>> gains = np.array([0.6, 0.9, 0.7, 0.8])
    >>> for share in (np.full(4, 0.25), np.array([0.7, 0.3, 0.0, 0.0])):
    ...     print("{:.2f}, {:.2f}".format(*gain_of(gains, np.zeros(4), share, errors=2.0)))
    0.75, 0.21
    0.69, 5.08
    """
    if len(scores) < 2:
        return math.nan, math.nan
    mean, error = mean_gain(scores, others, share)
    # That of the mean of so many, from as many: shares of a few simulations leave little to estimate it from.
    number = effective(share)
    if number <= 1.0:
        return mean, math.inf
    return mean, error * math.sqrt(number / (number - 1.0)) * float(stdtrit(number - 1.0, ndtr(errors)))


def ahead(scores: Array, others: Array, share: Array) -> bool:
    """Whether scores are above others clearly, and by enough."""
    mean, uncertain = gain_of(scores, others, share, CLEARLY)
    return mean > uncertain + LEAST_LEAD


def _by_row(model: Model, rows: Array) -> DescribedRows | None:
    """Data sets of rows that are independent and identically distributed; None if the model does not say so."""
    if model.replicates is None:
        return None
    return DescribedRows(model.by_row(rows), model.by_row(model.observed_row[None])[0], learnt=False)


def _series(model: Model, rows: Array) -> DescribedRows | None:
    """The summaries as they are, as the values of one series; None if each of them can have a law of its own.

    Rows that the user says are independent are no series.
    """
    if model.replicates is not None or rows.shape[1] <= MOST_COLUMNS:
        return None
    return DescribedRows(rows, model.observed_row, learnt=False, series=True)


def _described(maps: list[Rows], rows: Array, observed: Array) -> DescribedRows | None:
    """The summaries as a surrogate has them: as they are if they are few, and learnt ones if they are many.

    None if those are many, too, as they are with many parameters: a likelihood of them would take minutes to fit.
    """
    if rows.shape[1] <= MOST_COLUMNS:
        return DescribedRows(rows, observed, learnt=False)
    if len(maps) == 1:
        return None
    there = maps[1](observed[None])[0]
    return DescribedRows(maps[1](rows), there, learnt=True) if len(there) <= MOST_LEARNT else None


def _learned(
    theta: Array, rows: Array, scale: Rows, moments: SeriesMoments | None, order: Array
) -> tuple[str, Rows] | None:
    """A summary learnt from simulations with even numbers, and its name: the odd ones validate it.

    They count without weights: the posterior mean given the proposals as a prior is as good a summary, and leans on
    more of them. It is learnt from the summaries, or from moments of the series among them if these predict better.
    """
    maps = {LEARNT: scale} if len(rows) >= FEWEST_PER_SUMMARY * (rows.shape[1] + 1) else {}
    if moments is not None and len(rows) >= FEWEST_PER_SUMMARY * (moments.width + 1):
        maps[FROM_MOMENTS] = moments.of
    if not maps:
        return None
    close = order[: max(int(LEARN_SHARE * len(rows)), min(len(rows), 1000), PER_SUMMARY * rows.shape[1])]
    everywhere, near = (
        one[:: max(1, math.ceil(len(one) / LEARN_FROM))] for one in (np.arange(0, len(rows), 2), close[close % 2 == 0])
    )
    both = np.union1d(everywhere, near)
    described = [one(rows[both]) for one in maps.values()]
    found = learn_near(theta[both], described, np.isin(both, everywhere), np.isin(both, near))
    if found is None:
        return None
    (name, first), learnt = list(maps.items())[found[0]], found[1]
    return name, lambda raw: learnt(first(raw))


def _distances(summary: Rows, own: Callable[[Array, Array], Array] | None, model: Model) -> Rows:
    """From raw summaries to distances from the data."""
    observed = model.observed_row
    if own is not None:
        return lambda rows: own(rows, observed)
    return lambda rows: distances_from(summary(rows), summary(observed[None])[0])
