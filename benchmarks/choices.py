"""Problems of model choice whose answer is known: the models for given data, and their log evidences."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import integrate, special, stats

import onedraw as od

N = 16


class Problem(NamedTuple):
    """Models by name, as functions of the data, and exact log evidences."""

    priors: dict[str, od.Prior]
    simulators: dict[str, Callable]
    """Batched: they give the summaries themselves."""
    log_evidence: Callable[[np.ndarray], np.ndarray]
    budget: int = 2000
    """With which the benchmark runs it."""

    def models(self, observed) -> dict[str, od.Model]:
        """For some data."""
        return {name: od.Model(prior, self.simulators[name], observed) for name, prior in self.priors.items()}

    def probability(self, observed) -> dict[str, float]:
        """Exact, for equal prior probabilities."""
        logs = self.log_evidence(np.atleast_1d(np.asarray(observed, dtype=float)))
        shares = np.exp(logs - special.logsumexp(logs))
        return dict(zip(self.priors, shares.tolist(), strict=True))

    def log_odds(self, observed) -> float:
        """Exact, of the last model against all others, for equal prior probabilities."""
        logs = self.log_evidence(np.atleast_1d(np.asarray(observed, dtype=float)))
        return float(logs[-1] - special.logsumexp(logs[:-1]))

    def data(self, seed: int):
        """A data set of a model picked at random, at a draw from its prior, and the model's name."""
        rng = np.random.default_rng([seed, 23])
        name = list(self.priors)[rng.integers(len(self.priors))]
        prior = self.priors[name]
        return self.simulators[name](rng, **prior.columns(prior.sample(rng, 1)))[0], name


# Normal data with known and unknown mean: their mean and log variance.

SPREAD = stats.uniform(0.5, 1.5)


def _normal(rng, mu, sigma):
    y = mu[:, None] + sigma[:, None] * rng.standard_normal((len(sigma), N))
    return np.column_stack([y.mean(axis=1), np.log(y.var(axis=1, ddof=1))])


@od.batched
def _known(rng, sigma):
    return _normal(rng, np.zeros(len(sigma)), sigma)


@od.batched
def _unknown(rng, mu, sigma):
    return _normal(rng, mu, sigma)


def _normal_evidence(s):
    sigma = np.linspace(0.5, 2.0, 4001)
    chi = (N - 1) * np.exp(s[1]) / sigma**2
    common = stats.chi2(N - 1).logpdf(chi) + np.log(chi)
    sds = sigma / math.sqrt(N), np.sqrt(sigma**2 / N + 1.0)
    return np.log([integrate.simpson(np.exp(common + stats.norm.logpdf(s[0], 0, sd)) / 1.5, x=sigma) for sd in sds])


NORMAL = Problem(
    {"known": od.Prior(sigma=SPREAD), "unknown": od.Prior(mu=stats.norm(0, 1), sigma=SPREAD)},
    {"known": _known, "unknown": _unknown}, _normal_evidence,
)  # fmt: skip

# Counts: Poisson or geometric, by their sum, which can be matched exactly.

COUNTS = 5


@od.batched
def _poisson(rng, rate):
    return rng.poisson(rate[:, None], (len(rate), COUNTS)).sum(axis=1)


@od.batched
def _geometric(rng, p):
    return (rng.geometric(p[:, None], (len(p), COUNTS)) - 1).sum(axis=1)


def _count_evidence(s):
    total = s[0]
    poisson = total * math.log(COUNTS) - (total + 1) * math.log(COUNTS + 1)
    ways = special.gammaln(total + COUNTS) - special.gammaln(total + 1) - special.gammaln(COUNTS)
    return np.array([poisson, ways + special.betaln(COUNTS + 1, total + 1)])


COUNTED = Problem(
    {"poisson": od.Prior(rate=stats.expon()), "geometric": od.Prior(p=stats.uniform())},
    {"poisson": _poisson, "geometric": _geometric}, _count_evidence,
)  # fmt: skip

# Linear regression with one or two predictors, by its least squares estimates.

X = np.column_stack([np.ones(20), np.linspace(-1, 1, 20), np.cos(3 * np.linspace(-1, 1, 20))])
NOISE = np.linalg.inv(X.T @ X)
ROOT = np.linalg.cholesky(NOISE)


def _fitted(rng, *coefficients):
    beta = np.zeros((len(coefficients[0]), 3))
    beta[:, : len(coefficients)] = np.column_stack(coefficients)
    return beta + rng.standard_normal(beta.shape) @ ROOT.T


@od.batched
def _one(rng, a, b):
    return _fitted(rng, a, b)


@od.batched
def _two(rng, a, b, c):
    return _fitted(rng, a, b, c)


def _regression_evidence(s):
    spreads = np.diag([1.0, 1.0, 0.0]), np.eye(3)
    return np.array([stats.multivariate_normal(np.zeros(3), NOISE + spread).logpdf(s) for spread in spreads])


UNIT = stats.norm(0, 1)
REGRESSION = Problem(
    {"one": od.Prior(a=UNIT, b=UNIT), "two": od.Prior(a=UNIT, b=UNIT, c=UNIT)}, {"one": _one, "two": _two},
    _regression_evidence,
)  # fmt: skip

# Three nested hypotheses about the means of two groups, with an unknown standard error.

ERROR = stats.uniform(0.3, 0.4)


def _groups(rng, first, second, error):
    means = np.column_stack([first, second])
    return means + error[:, None] * rng.standard_normal(means.shape)


@od.batched
def _none(rng, error):
    return _groups(rng, np.zeros(len(error)), np.zeros(len(error)), error)


@od.batched
def _common(rng, mu, error):
    return _groups(rng, mu, mu, error)


@od.batched
def _different(rng, first, second, error):
    return _groups(rng, first, second, error)


def _nested_evidence(s):
    # The mean of both groups and their difference are independent, each normal given the error.
    error, logs = np.linspace(0.3, 0.7, 801), []
    both, apart = (s[0] + s[1]) / math.sqrt(2), (s[0] - s[1]) / math.sqrt(2)
    for of_both, of_apart in ((0.0, 0.0), (2.0, 0.0), (1.0, 1.0)):
        density = np.exp(
            stats.norm.logpdf(both, 0, np.sqrt(of_both + error**2))
            + stats.norm.logpdf(apart, 0, np.sqrt(of_apart + error**2))
        )
        logs.append(math.log(integrate.simpson(density / 0.4, x=error)))
    return np.array(logs)


NESTED = Problem(
    {
        "none": od.Prior(error=ERROR),
        "common": od.Prior(mu=UNIT, error=ERROR),
        "different": od.Prior(first=UNIT, second=UNIT, error=ERROR),
    },
    {"none": _none, "common": _common, "different": _different}, _nested_evidence, 3000,
)  # fmt: skip

# A model far behind.

APART, SD = 5.0, 0.3
RARE_AT = 0.492
"""Data at which the second model has a probability of 1e-4."""


@od.batched
def _shifted(rng, mu):
    return rng.normal(mu, SD)


def _rare_evidence(s):
    return np.array([stats.norm(centre, math.hypot(1.0, SD)).logpdf(s[0]) for centre in (0.0, APART)])


RARE = Problem(
    {"near": od.Prior(mu=stats.norm(0, 1)), "far": od.Prior(mu=stats.norm(APART, 1))},
    {"near": _shifted, "far": _shifted}, _rare_evidence,
)  # fmt: skip

PROBLEMS = {"normal": NORMAL, "counts": COUNTED, "regression": REGRESSION, "nested": NESTED, "rare": RARE}
