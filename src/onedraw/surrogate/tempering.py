"""Draws from a posterior whose density is known: sequential Monte Carlo from the prior, by powers of the likelihood.

Moves along differences of particles follow the shape of a posterior, and particles that are drawn anew forget where
they were: with ten parameters, moves of the first kind alone leave draws worth a seventh of as many independent ones.

Reference: Del Moral, Doucet and Jasra (2006); ter Braak (2006) for moves along differences of particles.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.engines.clock import look
from onedraw.estimators.weights import effective, systematic

KEEP = 0.5
"""Effective share of the particles that one step of the power leaves."""
MOVES, MOST_MOVES = 6, 24
"""Of each particle after a step of the power, at least and at most."""
KINDS = 3
"""Moves of all kinds, one after the other."""
COMMON = 0.5
"""Draws have moved enough when r^2 of the variance of m draws that come from one particle is common to them, on average
over all draws, and m r^2 is below this: their mean has at most about 1.5 times the variance of independent ones."""
MOST_STEPS = 60
"""Of the power: the last of them goes to 1 whatever is left."""
FREEDOM = 10.0
"""Degrees of freedom of the law from which new points are drawn: its tails are heavier than a normal's."""

LogDensity = Callable[[Array], Array]


class Tempered(NamedTuple):
    """Draws of a posterior, and the constant of its density."""

    draws: Array
    """(n, dim)"""
    log_evidence: float
    """Log of the prior mean of the likelihood."""
    worth: float
    """About how many independent draws they are worth at least: n/(1 + m r^2), as in `COMMON`."""


def next_power(log_likelihood: Array, power: float, keep: float = KEEP) -> float:
    """The power at which this share of the particles, by weight, is left.

    >>> next_power(np.zeros(10), 0.3)
    1.0
    """

    def left(more: float) -> float:
        weights = np.exp(more * (log_likelihood - log_likelihood.max()))
        return effective(weights) / len(weights)

    if left(1.0 - power) >= keep:
        return 1.0
    low, high = 0.0, 1.0 - power
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if left(middle) >= keep else (low, middle)
    return power + max(low, 1e-9)


def tempered(
    start: Array,
    log_prior: LogDensity,
    log_likelihood: LogDensity,
    discrete: Array,
    rng: np.random.Generator,
    last_moves: int = MOST_MOVES,
    number: int | None = None,
) -> Tempered:
    """The draws with the evidence: the product of the mean weights of all steps of the power.

    The particles to start with are draws from the prior. After each step they move until they have forgotten where they
    were. The last step picks `number` of them, and the moves after it serve the draws alone. How far these have
    forgotten it says what they are worth.
    """
    points, log_evidence = start.copy(), 0.0
    prior, likelihood, power = log_prior(points), log_likelihood(points), 0.0
    for step in range(MOST_STEPS):
        new = 1.0 if step == MOST_STEPS - 1 else next_power(likelihood, power)
        top = float(likelihood.max())
        weights = np.exp((new - power) * (likelihood - top))
        log_evidence += (new - power) * top + math.log(float(weights.mean()))
        pick = systematic(weights, len(points) if new < 1.0 else number or len(points), rng.random())
        points, prior, likelihood, power = points[pick], prior[pick], likelihood[pick], new
        origin, shared = points.copy(), float(np.square(np.bincount(pick)).sum()) / len(pick)
        for move in range(last_moves if power == 1.0 else MOST_MOVES):
            look()
            if move >= MOVES and move % KINDS == 0 and shared * remembered(origin, points) < COMMON:
                break
            proposed, log_ratio = proposals(points, move, discrete, rng)
            log_p = log_prior(proposed)
            inside = np.flatnonzero(log_p > -np.inf)
            log_l = np.full(len(points), -np.inf)
            log_l[inside] = log_likelihood(proposed[inside])
            with np.errstate(invalid="ignore"):
                gain = log_p - prior + power * (log_l - likelihood) + log_ratio
                accept = np.log(rng.random(len(points))) < gain
            points[accept], prior[accept], likelihood[accept] = proposed[accept], log_p[accept], log_l[accept]
        if power == 1.0:
            break
    return Tempered(points, log_evidence, len(points) / (1.0 + shared * remembered(origin, points)))


def remembered(origin: Array, points: Array) -> float:
    """The largest squared correlation of points (n, dim) with where they come from, or of distances from the mean.

    >>> some = np.random.default_rng(1).standard_normal((1000, 2))
    >>> [round(remembered(some, one), 1) for one in (some[::-1], some, some * [1, -1])]
    [0.0, 1.0, 1.0]
    """
    pairs = [(_standardised(origin), _standardised(points))]
    pairs += [(_standardised(np.abs(before)), _standardised(np.abs(now))) for before, now in pairs]
    return max(float(np.square(np.einsum("ij,ij->j", *pair) / len(points)).max()) for pair in pairs)


def _standardised(points: Array) -> Array:
    away = points - points.mean(axis=0)
    spread = away.std(axis=0)
    found: Array = away / np.where(spread > 0, spread, 1.0)
    return found


def proposals(points: Array, move: int, discrete: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Points moved along differences of others or, one move in three, drawn anew from a Student law fitted to all.

    Given with the log density of the proposals at the points over that at what is proposed: zero where steps are
    symmetric. Whole numbers have no such law: with them, the third move is a normal step with the covariance of all.
    """
    n, dim = points.shape
    if move % KINDS == 2 and not discrete.any():
        return drawn_anew(points, rng)
    scale = 2.38 / math.sqrt(dim)
    if move % KINDS == 2:
        step = 0.5 * scale * rng.standard_normal((n, dim)) @ _root(points).T
    else:
        factor = np.where(rng.random(n) < 0.5, scale / math.sqrt(2.0), 0.25 * scale)
        first, second = rng.integers(0, n, n), rng.integers(0, n, n)
        step = factor[:, None] * (points[first] - points[second])
        step += 1e-6 * rng.standard_normal((n, dim)) * points.std(axis=0)
    # Rounded up or down at random, in proportion: short steps move whole numbers too.
    step[:, discrete] = np.floor(step[:, discrete] + rng.random((n, int(discrete.sum()))))
    return points + step, np.zeros(n)


def drawn_anew(points: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Draws from a Student law with the mean and the covariance of points, and the log ratios of its densities."""
    (n, dim), mean, root = points.shape, points.mean(axis=0), _root(points)
    away = rng.standard_normal((n, dim)) / np.sqrt(rng.chisquare(FREEDOM, (n, 1)) / FREEDOM)
    before = (points - mean) @ np.linalg.inv(root).T
    squares = (np.square(one).sum(axis=1) for one in (away, before))
    log_new, log_old = (-0.5 * (FREEDOM + dim) * np.log1p(square / FREEDOM) for square in squares)
    return mean + away @ root.T, log_old - log_new


def _root(points: Array) -> Array:
    """The Cholesky root of the covariance of points (n, dim)."""
    spread = np.atleast_2d(np.cov(points, rowvar=False))
    return np.linalg.cholesky(spread + 1e-10 * np.diag(np.diag(spread)) + 1e-300 * np.eye(points.shape[1]))
