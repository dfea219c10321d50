"""The trial that chooses how to estimate the posterior: summary, region, regression and smoothing.

Which method is best is not assumed but tried: simulations near the data are taken as data in turn, left out, and the
estimate is scored by the log density that it gives to the parameters which are known to have made them. Methods drop
out in rounds, each with more held-out simulations than the one before.

Reference: Gneiting and Raftery (2007) for scores.
"""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.engines.clock import look
from onedraw.estimators.weights import systematic
from onedraw.results.regression import (
    CLUSTERS,
    TERMS,
    Method,
    Neighbourhood,
    coefficient_count,
    estimate,
    estimates,
    kernel_width,
    ordered,
)
from onedraw.surrogate.likelihood import mean_gain

MOST_PRODUCTS = 70
"""Coefficients beyond which a regression on squares and products is not tried."""
BROAD = 0.02
"""Share of a broad normal in a score, which bounds the damage of a single held-out simulation."""
ROUNDS = ((12, 12), (48, 5), (160, 4))
"""Held-out simulations of the trial up to each round, and how many methods, the best so far, go on."""
BRIEF_ROUNDS = ((8, 4), (24, 3))
"""The same while a run goes on."""
FEWEST_HELD_OUT = 6
"""Held-out simulations below which nothing is tried."""
GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
"""Its multiples, taken modulo 1, fill the unit interval evenly from the first few on."""
MOST_WORK, MOST_BRIEF_WORK = 3e7, 5e6
"""Operations of one round, per simulation, beyond which less is tried: with many parameters and summaries alone."""
COUNTS = (60, 150, 400, 1000, 2500)
"""Numbers of nearest simulations that are tried, besides all."""
MOST_SCORED = 1500
"""Draws of an estimate from which its score is computed."""
FEWEST = 20
"""Draws that an estimate needs at least."""
MOST_ORDERED = 2**21
"""Distances that are sorted and kept at once."""
PER_COEFFICIENT = {"none": 0, "linear": 2, "products": 3}
"""Simulations per coefficient that a regression needs to be tried."""


class TrialResult(NamedTuple):
    """Which method was chosen, and how the methods did at simulations whose parameters are known."""

    method: Method
    tried: int
    """Held-out simulations at which the chosen method was scored."""
    gain: float
    """Mean log score of the best adjusting method over the best without adjustment; NaN if only one kind was tried."""
    gain_se: float
    coverage: float
    """Share of the known parameters inside the chosen method's central 90 % intervals."""
    held_out: Array
    """(tried,) which they were."""
    scores: Array
    """(tried,) log scores of the chosen method."""
    share: Array
    """(tried,) of each in means, which sum to 1: a simulation of a large weight is picked several times."""

    def words(self) -> str:
        """The result in plain words."""
        if math.isnan(self.gain):
            return f"{self.method.words()}: too few simulations to try other methods"
        return (
            f"{self.method.words()}: at {self.tried} held-out simulations near the data, adjustment changes the log "
            f"score of the known parameters by {self.gain:+.2f} ± {self.gain_se:.2f}; 90 % intervals cover "
            f"{100 * self.coverage:.0f} % of them"
        )


def held_out_count(thorough: bool) -> int:
    """How many held-out simulations a trial uses."""
    return (ROUNDS if thorough else BRIEF_ROUNDS)[-1][0]


def candidate_methods(summary: int, near: Neighbourhood, thorough: bool) -> list[Method]:
    """The methods that are worth a trial with these simulations."""
    n, width, dim = len(near.theta), near.rows.shape[1], near.theta.shape[1]
    counts = [count for count in COUNTS if FEWEST + 2 * dim <= count < 0.9 * n]
    found = []
    for count in (*counts[:: 1 if thorough or len(counts) < 4 else 2], n - 2):
        for terms in TERMS:
            needed = coefficient_count(width, terms)
            if count < PER_COEFFICIENT[terms] * needed:
                continue
            if terms == "products" and (needed > MOST_PRODUCTS or not thorough):
                continue
            found.append(Method(summary, count, terms))
            if terms == "linear" and near.labels:
                numbers = [number for number in CLUSTERS[: None if thorough else 1] if count > 3 * needed * number]
                found += [Method(summary, count, terms, number) for number in numbers]
    return [method._replace(local=local) for method in found for local in (False, True)]


def choose_method(
    neighbourhoods: Sequence[Neighbourhood], held_out: Array, thorough: bool = True, all_or_adjust: bool = False
) -> TrialResult:
    """Choose a method by its scores at held-out simulations near the data.

    `neighbourhoods` are the same simulations described by one or more summaries, `held_out` the indices of those that
    are taken as data in turn; one that is there several times counts as often. `thorough` tries all methods, at many
    of them. With `all_or_adjust`, methods without adjustment use all simulations, and not the nearest alone.
    """
    methods = [one for k, near in enumerate(neighbourhoods) for one in candidate_methods(k, near, thorough)]
    n = len(neighbourhoods[0].theta)
    if all_or_adjust:
        methods = [one for one in methods if one.terms != "none" or one.number == n - 2]
    held_out, times = np.unique(held_out, return_counts=True)
    if not methods or len(held_out) < FEWEST_HELD_OUT:
        count = min(n - 2, max(FEWEST, n // 5))
        none, nothing = np.empty(0, dtype=np.int64), np.empty(0)
        chosen_alone = Method(0, max(count, 1), "none")
        return TrialResult(chosen_alone, 0, math.nan, math.nan, math.nan, none, nothing, nothing)
    # Any first part of this order is spread over all of them.
    mixed = np.argsort(np.modf(np.arange(len(held_out)) * GOLDEN)[0], kind="stable")
    order, times = held_out[mixed], times[mixed]
    rounds, most = (ROUNDS, MOST_WORK) if thorough else (BRIEF_ROUNDS, MOST_BRIEF_WORK)
    methods, scores, covered = _race(neighbourhoods, methods, order, times, rounds, n * most)
    number = scores.shape[1]
    share = times[:number] / times[:number].sum()
    mean = scores @ share
    best = int(mean.argmax())
    chosen = min(
        (k for k in range(len(methods)) if _not_worse(scores[k], scores[best], share)),
        key=lambda k: (preference(methods[k]), -mean[k]),
    )
    plain, adjusting = _best_of_each_kind(methods, mean)
    gain = (math.nan, math.nan)
    if plain is not None and adjusting is not None:
        gain = mean_gain(scores[adjusting], scores[plain], share)
    inside = float(covered[chosen] @ share)
    return TrialResult(methods[chosen], number, *gain, inside, order[:number], scores[chosen], share)


def _race(
    neighbourhoods: Sequence[Neighbourhood],
    methods: list[Method],
    order: Array,
    times: Array,
    rounds: Sequence[tuple[int, int]],
    most: float,
) -> tuple[list[Method], Array, Array]:
    """The methods that are left after all rounds, with their scores and coverage (methods, held out).

    `most` is the work of a round: if that is less than is planned, methods are tried at fewer held-out simulations, and
    only those that are preferred if even the fewest are too many.
    """
    scale, methods = standardising(neighbourhoods[0], order), affordable(neighbourhoods, methods, most)
    scores, covered = np.empty((2, len(methods), 0))
    for planned, number in rounds:
        done = scores.shape[1]
        paid = int(most / sum(work(neighbourhoods[one.summary], one) for one in methods))
        upto = min(planned, done + (max(paid, FEWEST_HELD_OUT) if done == 0 else paid))
        more = score_methods(neighbourhoods, methods, order[done:upto], scale)
        scores, covered = np.concatenate([scores, more[0]], axis=1), np.concatenate([covered, more[1]], axis=1)
        mean = scores @ times[: scores.shape[1]]
        keep = set(np.argsort(mean, kind="stable")[::-1][:number].tolist())
        # The best of each kind goes on, so that the gain from adjustment is known.
        some = sorted(keep | {k for k in _best_of_each_kind(methods, mean) if k is not None})
        methods, scores, covered = [methods[k] for k in some], scores[some], covered[some]
    return methods, scores, covered


def work(near: Neighbourhood, method: Method) -> float:
    """About how many operations a score of the method takes, shared with its other smoothing."""
    (n, dim), width = near.theta.shape, coefficient_count(near.rows.shape[1], method.terms)
    number = min(method.number, n)
    fitted = number * width * (width + 4 * dim) if method.terms != "none" else 0
    return 0.5 * fitted + 2.0 * min(number, MOST_SCORED) * dim * dim + near.rows.size


def affordable(neighbourhoods: Sequence[Neighbourhood], methods: list[Method], most: float) -> list[Method]:
    """The methods that can be tried at the fewest held-out simulations, the preferred ones first if not all can be."""
    order = sorted(range(len(methods)), key=lambda k: preference(methods[k]))
    total = np.cumsum([work(neighbourhoods[methods[k].summary], methods[k]) for k in order])
    number = max(2, int(np.searchsorted(FEWEST_HELD_OUT * total, most, side="right")))
    return [methods[k] for k in sorted(order[:number])]


def _best_of_each_kind(methods: list[Method], mean: Array) -> tuple[int | None, int | None]:
    """The best method without adjustment, and the best with it."""
    plain = [k for k, method in enumerate(methods) if method.terms == "none"]
    adjusting = [k for k, method in enumerate(methods) if method.terms != "none"]
    return max(plain, key=mean.__getitem__, default=None), max(adjusting, key=mean.__getitem__, default=None)


def preference(method: Method) -> tuple[int, int, int, int, int]:
    """What is preferred if scores do not tell methods apart: few assumptions, and then many draws.

    One regression rather than several, few coefficients, summaries as they were given, and a regression rather than
    none: simulations near the data are nearer to the middle of all than the data are, so that scores show too little
    of the bias that a regression takes away.
    """
    return method.clusters, method.terms == "products", method.summary, method.terms == "none", -method.number


def _not_worse(scores: Array, others: Array, share: Array) -> bool:
    """Whether paired scores fall behind by less than half a standard error."""
    mean, error = mean_gain(scores, others, share)
    return mean >= -0.5 * error


def standardising(near: Neighbourhood, held_out: Array) -> Array:
    """A map (dim, dim) to coordinates in which the held-out parameters have unit covariance."""
    dim, known = near.theta.shape[1], near.jittered(near.theta[held_out], held_out)
    found = np.atleast_2d(np.cov(known, rowvar=False)) if len(held_out) > dim + 1 else np.eye(dim)
    found = found + 1e-6 * np.diag(np.diag(found)) + 1e-12 * np.eye(dim)
    return np.linalg.inv(np.linalg.cholesky(found)).T


def score_methods(
    neighbourhoods: Sequence[Neighbourhood], methods: Sequence[Method], held_out: Array, scale: Array
) -> tuple[Array, Array]:
    """Log scores (methods, held out), and the share of known parameters inside 90 % intervals (methods, held out)."""
    scores, covered = np.empty((2, len(methods), len(held_out)))
    most, summaries = max(method.number for method in methods), {method.summary for method in methods}
    size = max(1, MOST_ORDERED // len(neighbourhoods[0].theta))
    for top in range(0, len(held_out), size):
        part = held_out[top : top + size]
        # The simulation that is taken as data must not be among the draws that its parameters score.
        orders = {
            k: [ordered(neighbourhoods[k], neighbourhoods[k].rows[j], most + 1, j) for j in part.tolist()]
            for k in summaries
        }
        for same, some in groupby(range(len(methods)), key=lambda k: methods[k]._replace(local=False)):
            near, group = neighbourhoods[same.summary], np.array(list(some))
            local = [methods[k].local for k in group]
            for which, found in estimates(near, near.rows[part], same, orders[same.summary], MOST_SCORED):
                look()
                j = part[which]
                theta, known = near.jittered(found.theta, found.source), near.jittered(near.theta[j], j)
                scored = log_densities(theta @ scale, found.weights, known @ scale, local)
                scores[group[:, None], top + which] = scored
                below = weighted_means(found.weights, theta < known[:, None])
                covered[group[:, None], top + which] = np.mean((below > 0.05) & (below < 0.95), axis=1)
    return scores, covered


def weighted_means(weights: Array, values: Array) -> Array:
    """Means (m, dim) of values (m, n, dim) by weights (m, n) that sum to 1."""
    found: Array = (weights[:, None, :] @ values)[:, 0]
    return found


def log_densities(theta: Array, weights: Array, points: Array, local: Sequence[bool]) -> Array:
    """Log densities (k, m) of smoothed draws (m, n, dim) and broad normals at points (m, dim), up to a constant.

    `local` (k,) smooths with a kernel shaped like the point's neighbours; otherwise draws are smoothed as a whole, with
    their variance kept.
    """
    away = theta - points[:, None]
    whole = _moments(away, weights)
    each = (_log_local_density(away, weights) if one else _log_density(away, weights, whole) for one in local)
    return np.array([_with_broad(one, whole) for one in each])


def log_with_broad(inside: Array, theta: Array, weights: Array, points: Array) -> Array:
    """Log densities (m,) at points (m, dim), mixed with those of normals of twice the draws' deviations.

    They have the constant of `log_densities`. The draws (n, dim) are the same for all points, with weights (m, n).
    """
    if not len(points):
        return inside
    each = (_moments((theta - one)[None], share[None]) for one, share in zip(points, weights, strict=True))
    return _with_broad(inside, _Moments(*(np.concatenate(some) for some in zip(*each, strict=True))))


class _Moments(NamedTuple):
    """Of draws around m points at the origin."""

    mean: Array
    """(m, dim)"""
    inverse: Array
    """(m, dim, dim) of the roots of the covariances."""
    log_det: Array
    """(m,) of the roots."""


def _moments(away: Array, weights: Array) -> _Moments:
    mean = weighted_means(weights, away)
    return _Moments(mean, *_whitening(_spread(away - mean[:, None], weights)))


def _spread(away: Array, weights: Array) -> Array:
    """Covariances (m, dim, dim) of draws (m, n, dim) around their means."""
    scaled = away * np.sqrt(weights)[:, :, None]
    found: Array = np.swapaxes(scaled, 1, 2) @ scaled
    return found


def _whitening(spread: Array) -> tuple[Array, Array]:
    """The inverses of the roots of covariances (m, dim, dim), and the log determinants of the roots."""
    root = np.linalg.cholesky(spread + 1e-9 * np.eye(spread.shape[1]))
    return np.linalg.inv(root), np.log(np.diagonal(root, axis1=1, axis2=2)).sum(axis=1)


def _with_broad(inside: Array, whole: _Moments) -> Array:
    log_det = whole.log_det + whole.mean.shape[1] * math.log(2.0)
    broad = -0.125 * np.square(whole.inverse @ whole.mean[:, :, None]).sum(axis=(1, 2)) - log_det
    return np.logaddexp(math.log1p(-BROAD) + inside, math.log(BROAD) + broad)


def _log_density(away: Array, weights: Array, whole: _Moments) -> Array:
    """Log densities (m,) at the origin of draws (m, n, dim) that are smoothed as a whole."""
    dim, width = away.shape[2], np.minimum(0.5, kernel_width(1.0 / np.square(weights).sum(axis=1), away.shape[2]))
    mean = whole.mean[:, None]
    shrunk = mean + np.sqrt(1 - np.square(width))[:, None, None] * (away - mean)
    return _log_kernel_mean(shrunk, weights, whole.inverse, width) - dim * np.log(width) - whole.log_det


def _log_local_density(away: Array, weights: Array) -> Array:
    """Log densities (m,) at the origin, by normal kernels shaped like its neighbours."""
    (_, n, dim), draws = away.shape, 1.0 / np.square(weights).sum(axis=1)
    counts = np.minimum(n, np.maximum(2 * dim + 2, draws**0.6) * n / draws).astype(np.int64)
    square, most = np.einsum("mij,mij->mi", away, away), int(counts.max())
    close = np.argpartition(square, most - 1, axis=1)[:, :most]
    close = np.take_along_axis(close, np.argsort(np.take_along_axis(square, close, axis=1), axis=1), axis=1)
    away = np.take_along_axis(away, close[:, :, None], axis=1)
    share = np.where(np.arange(most) < counts[:, None], np.take_along_axis(weights, close, axis=1), 0.0)
    mass = share.sum(axis=1)
    share = share / np.maximum(mass, 1e-300)[:, None]
    there = _spread(away - weighted_means(share, away)[:, None], share)
    smallest = BROAD * np.trace(there, axis1=1, axis2=2) / dim
    inverse, log_det = _whitening(there + smallest[:, None, None] * np.eye(dim))
    width = kernel_width(np.maximum(1.0 / np.maximum(np.square(share).sum(axis=1), 1e-300), 2.0), dim)
    log_mean = _log_kernel_mean(away, share, inverse, width) - (dim * np.log(width) + log_det)
    with np.errstate(divide="ignore"):
        return np.log(mass) + log_mean


def _log_kernel_mean(away: Array, weights: Array, inverse: Array, width: Array) -> Array:
    """Logs (m,) of the weighted means of normal kernels at draws (m, n, dim) this far away, without their constant."""
    z = away @ np.swapaxes(inverse, 1, 2)
    square = np.einsum("mij,mij->mi", z, z) / np.square(width)[:, None]
    return np.log(np.maximum(np.einsum("mi,mi->m", weights, np.exp(-0.5 * square)), 1e-300))


def near_data(
    near: Neighbourhood,
    observed: Array,
    among: int,
    number: int,
    rng: np.random.Generator,
    allowed: Array | None = None,
) -> Array:
    """`number` of the `among` nearest simulations allowed, picked by weight, so that they represent the prior."""
    order = np.argsort(near.distances(observed), kind="stable")
    close = (order if allowed is None else order[allowed[order]])[:among]
    return close[systematic(near.weights(close), number, rng.random())] if len(close) else close


def ranks(near: Neighbourhood, method: Method, held_out: Array) -> Array:
    """Ranks (m, dim), in [0, 1], of the known parameters among the draws that a method gives at held-out simulations.

    They are uniform if the draws are those of the posterior. Reference: Prangle, Blum, Popovic and Sisson (2014).
    """
    found = np.empty((len(held_out), near.theta.shape[1]))
    for k, j in enumerate(held_out.tolist()):
        there = estimate(near, near.rows[j], method, left_out=j)
        found[k] = there.weights @ (near.jittered(there.theta, there.source) < near.jittered(near.theta[j], j))
    return found
