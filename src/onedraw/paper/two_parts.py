"""Exact statements about simulations in two parts and averages of fewer draws, for verification.py.

A first part gives a signal z, and the second part is run with probability α(z); a simulation that was finished counts
1/α(z) times. With finitely many outcomes the law of this estimator is again a finite one, and its chain an exact one.
"""

from typing import Any, NamedTuple

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.estimators.pairs import best_alpha, combined
from onedraw.paper import finite_chains as exact

SIGNALS = 2


class Stopping(NamedTuple):
    """How simulations of a problem are stopped."""

    given: Array
    """(n, k, z) probability of each signal given θ and the outcome."""
    alpha: Array
    """(z,) continuation probabilities."""


def stopping(pick: int, law: exact.Law) -> Stopping:
    """Signals that say something of the outcome, and probabilities for them, by a number that names them."""
    rng = np.random.default_rng([pick, 1])
    given = rng.dirichlet(np.full(SIGNALS, 0.4), size=law.values.shape)
    return Stopping(given, rng.uniform(0.05, 1.0, SIGNALS))


def stopped(law: exact.Law, stop: Stopping) -> exact.Law:
    """The law of 1{continued}/α · K: 0 if the simulation was stopped."""
    went_on = law.probabilities[:, :, None] * stop.given * stop.alpha
    n = len(law.values)
    values = (law.values[:, :, None] / stop.alpha).reshape(n, -1)
    mass = went_on.reshape(n, -1)
    zero = np.maximum(1 - mass.sum(axis=1, keepdims=True), 0.0)
    mass = np.hstack([zero, mass])
    return exact.Law(np.hstack([np.zeros((n, 1)), values]), mass / mass.sum(axis=1, keepdims=True))


def stopping_bound(least: float, whole: Array, v_target: Array) -> Array:
    """v(f, stopped) ≤ (v(f, whole) + (1 − α_min)·v(f))/α_min, as forms."""
    return (whole + (1 - least) * v_target) / least


def fewer_bound(few: int, many: int, v_many: Array, v_target: Array) -> Array:
    """v(f, Q_s) + v(f) ≤ (M/s)·(v(f, Q_M) + v(f)) for s ≤ M, as forms."""
    return many / few * (v_many + v_target)


def second_moment(share: Array, cheap: Array, expensive: Array, alpha: Array) -> float:
    """E T² of T = R + c(K − R), from the outcomes: shares (z, a, b), and K of the cheap and the expensive data."""
    on, off = (
        combined(expensive, cheap, factor) for factor in (1 / alpha[:, None, None], np.zeros((len(alpha), 1, 1)))
    )
    chance = alpha[:, None, None]
    return float((share * (chance * on**2 + (1 - chance) * off**2)).sum())


class Pairs(NamedTuple):
    """Outcomes of a cheap and an expensive simulation at parameters from the prior."""

    share: Array
    """(z, a, b) probability of signal and both outcomes."""
    cheap: Array
    """(1, a, 1) K of the cheap data; zeros for stages."""
    expensive: Array
    """(1, 1, b) K of the expensive data."""
    price: tuple[float, float]
    floor: float

    @property
    def parts(self) -> tuple[Array, Array, float]:
        """Shares and mean squared changes of the signals, and the rest of the second moment."""
        each = self.share.sum(axis=(1, 2))
        squared = (self.share * (self.expensive - self.cheap) ** 2).sum(axis=(1, 2))
        rest = float((self.share * self.expensive**2).sum() - squared.sum())
        return each, squared / each, rest

    def best(self) -> Array:
        """The best α by the package's formula."""
        return best_alpha(*self.parts, self.price, self.floor)

    def product(self, alpha: Array) -> float:
        """Cost times second moment, from the outcomes."""
        spent = self.price[0] + self.price[1] * float((self.share.sum(axis=(1, 2)) * alpha).sum())
        return spent * second_moment(self.share, self.cheap, self.expensive, alpha)


def random_pairs(pick: int) -> Pairs:
    """Random outcomes, often alike for both simulations."""
    rng = np.random.default_rng([pick, 2])
    signals, a, b = rng.integers(1, 5), rng.integers(1, 4), rng.integers(2, 4)
    share = rng.dirichlet(np.full(signals * a * b, 0.5)).reshape(signals, a, b) + 1e-6
    uniform = rng.random() < 0.5
    cheap, expensive = ((rng.random(k) < 0.5).astype(float) if uniform else rng.random(k) for k in (a, b))
    expensive[0] = 1.0
    cheap = cheap * (rng.random() < 0.7)
    price = (1.0, float(10 ** rng.uniform(-1, 3)))
    return Pairs(
        share / share.sum(), cheap[None, :, None], expensive[None, None], price, float(rng.choice([0.01, 0.1]))
    )


# --- checks: each gives ratios that must not exceed 1 -------------------------------------------------------


def unbiased(work: Any) -> Any:
    """Stopping and correcting leave the mean as it is, at every θ and for outcomes of both forms."""
    law = work.problem.law
    found = stopped(law, stopping(work.instance.pick, law))
    yield 1 + float(np.abs(found.mean - law.mean).max() / law.mean.max())
    pairs = random_pairs(work.instance.pick)
    alpha = pairs.best()[:, None, None]
    mean = alpha * combined(pairs.expensive, pairs.cheap, 1 / alpha) + (1 - alpha) * pairs.cheap
    truth = float((pairs.share * pairs.expensive).sum())
    yield 1 + abs(float((pairs.share * mean).sum()) - truth) / truth


def stopping_costs_variance(work: Any) -> Any:
    """v(f, Q_1) ≤ v(f, stopped)."""
    yield work.worst(work.v(1), _form(work), 1e-3)


def stopping_is_bounded(work: Any) -> Any:
    """By the handicap of the least α."""
    law = work.problem.law
    least = float(stopping(work.instance.pick, law).alpha.min())
    yield work.worst(_form(work), stopping_bound(least, work.v(1), work.v_target))


def stopping_one_draw(work: Any) -> Any:
    """(★) for an average of M simulations, each of which may be stopped."""
    law = work.problem.law
    found = stopped(law, stopping(work.instance.pick, law))
    if found.values.shape[1] > 7:
        return
    m = 2
    many = exact.variance_form(work.with_law(exact.average(found, m)))
    yield work.worst(_form(work), m * many + (m - 1) * work.v_target)


def _form(work: Any) -> Array:
    law = work.problem.law
    return exact.variance_form(work.with_law(stopped(law, stopping(work.instance.pick, law))))


def best_is_best(work: Any) -> Any:
    """No α between floor and 1 has a smaller product of cost and second moment: random ones, and steps from it."""
    pairs = random_pairs(work.instance.pick)
    rng, best = np.random.default_rng([work.instance.pick, 3]), pairs.best()
    value = pairs.product(best)
    for scale in (0.01, 0.1, 1.0):
        other = np.clip(best * np.exp(scale * rng.normal(size=(4, best.size))), pairs.floor, 1.0)
        yield from (value / pairs.product(alpha) for alpha in other)
    yield from (value / pairs.product(alpha) for alpha in rng.uniform(pairs.floor, 1.0, (8, best.size)))


def always_or_not(work: Any) -> Any:
    """α is 1 throughout, or the floor, just if every mean squared change is large enough, or small enough."""
    pairs = random_pairs(work.instance.pick)
    share, change, rest = pairs.parts
    (cheap, expensive), floor, best = pairs.price, pairs.floor, pairs.best()
    moment = float((pairs.share * pairs.expensive**2).sum())
    margin = change.min() / (expensive / (cheap + expensive) * moment)
    if abs(margin - 1) > 1e-6:
        yield 1.0 if bool(np.allclose(best, 1)) == (margin > 1) else 2.0
    moment = rest + float((share * change).sum()) / floor
    margin = change.max() / (expensive * floor**2 * moment / (cheap + expensive * floor))
    if abs(margin - 1) > 1e-6:
        yield 1.0 if bool(np.allclose(best, floor)) == (margin < 1) else 2.0


def weighted_one_draw(work: Any) -> Any:
    """For weighted draws, cost times second moment does not fall with M, whatever α is."""
    law, prior = work.problem.law, work.problem.prior
    found = stopped(law, stopping(work.instance.pick, law))
    once, mean = (found.values**2 * found.probabilities).sum(axis=1), found.mean
    m = work.m
    many = (once + (m - 1) * mean**2) / m
    if found.values.shape[1] <= 7 and m <= 3:
        average = exact.average(found, m)
        same = (average.values**2 * average.probabilities).sum(axis=1)
        yield 1 + float(np.abs(same - many).max() / many.max())
    yield float((prior * once).sum() / (m * (prior * many).sum()))


def fewer_draws(work: Any) -> Any:
    """s(v(f, Q_s) + v(f)) ≤ M(v(f, Q_M) + v(f)), in continuous time the conjecture of Sherlock, Thiery and Lee."""
    few, many = work.m, work.n
    yield work.worst(work.v(few) + work.v_target, fewer_bound(few, many, work.v(many), work.v_target))


def exchangeable(work: Any) -> Any:
    """(★) for draws that are exchangeable: independent given a coin that they share."""
    law, m = work.problem.law, work.m
    other = exact.Law(law.values, np.roll(law.probabilities, 1, axis=1))
    if law.values.shape[1] > 4:
        return
    share = float(np.random.default_rng([work.instance.pick, 4]).uniform(0.1, 0.9))

    def mixed(one: exact.Law, two: exact.Law) -> exact.Law:
        mass = np.hstack([share * one.probabilities, (1 - share) * two.probabilities])
        return exact.Law(np.hstack([one.values, two.values]), mass)

    one, many = mixed(law, other), mixed(exact.average(law, m), exact.average(other, m))
    forms = [exact.variance_form(work.with_law(part)) for part in (one, many)]
    target = work.problem.prior * one.mean
    target = target / target.sum()
    v_target = np.diag(target) - np.outer(target, target)
    kept = np.flatnonzero((target > 0) & (np.arange(target.size) != target.argmax()))
    if kept.size:
        block = np.ix_(kept, kept)
        right = (m * forms[1] + (m - 1) * v_target)[block]
        yield float(np.linalg.eigvals(np.linalg.solve(right, forms[0][block])).real.max())
