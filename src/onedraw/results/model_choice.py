"""Which model? Three estimates of the evidence of several models, and the trial that decides between them.

All models have the same summaries. A simulation i of model m has the weight W_i = w(theta_i) / n_m, prior over
proposals divided by the number of proposals, so that sum_i W_i f(s_i) is the mean of f under the model.

1. *Acceptance*: the evidence of a model is sum_i W_i over its simulations in one neighbourhood of the data, the same
   for all models. It is exact for the tolerance; if simulations match the data exactly, for the data.
2. *Learnt likelihoods* (`results.model_evidence`): the density of the data under each model's surrogate.
3. *Classifier*: multinomial logistic regression of the model on a polynomial of the summaries, in a neighbourhood of
   the data, with the W_i as weights.

Each is tried at held-out simulations near the data, as many of each model, whose model is known: the mean log
probability of the true model decides.

References: Beaumont (2008) for the local regression; Robert, Cornuet, Marin and Pillai (2011) for what summaries cannot
tell; Pudlo et al. (2016) for error rates at the data.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from onedraw.engines.arrays import Array
from onedraw.estimators.weights import effective, systematic
from onedraw.surrogate.likelihood import mean_gain

FEWEST_EXACT = 40.0
"""Effective number of simulations that match the data exactly from which no other neighbourhood is used."""
FEWEST_NEAR = 50.0
WIDER = 4.0
"""Size of the classifier's neighbourhood, in effective simulations of the other."""
INNER = 0.5
"""Size of a narrower neighbourhood of the classifier, in effective simulations of its own."""
PER_COLUMN = 12
"""Effective simulations per column of a polynomial that is used."""
RIDGE = 0.02
"""Penalty on the coefficients of the classifier, for summaries between -1 and 1."""
NEWTON = 60
MOST_HELD_OUT, FEWEST_HELD_OUT = 100, 8
"""Held-out simulations of each model, and the fewest for a trial."""
MOST_FITTED = 4000
"""Simulations that the classifier is fitted to."""
FOLDS = 5
CURVE = 25
"""Tolerances of the curve."""
TIED = 2.0, 0.01
"""Standard errors of the mean log score within which routes are alike, and how much more."""


class Pool(NamedTuple):
    """Simulations of all models, with weights that make those of a model a mean under it."""

    rows: Array
    """(n, s) scaled summaries, less those of the data."""
    distances: Array
    """(n,) from the data."""
    weights: Array
    """(n,) W_i."""
    label: Array
    """(n,) number of the model."""
    proposals: Array
    """(models,) n_m."""

    def evidence(self, kernel: Array) -> tuple[Array, Array]:
        """Means of a kernel (n,) under the models, and their relative variances (inf if none counts)."""
        models = len(self.proposals)
        weighted = self.weights * kernel
        total = np.bincount(self.label, weighted, models)
        squares = np.bincount(self.label, np.square(weighted), models)
        safe = np.where(total > 0, total, 1.0)
        variance = np.maximum(squares / np.square(safe) - 1.0 / self.proposals, 0.0)
        return total, np.where(total > 0, variance, np.inf)


class RouteEstimate(NamedTuple):
    """Log evidences of the models by one route, up to a common constant, and their covariance."""

    log_evidence: Array
    """(models,); minus infinity if a model never came near."""
    covariance: Array
    """(models, models)"""
    freedom: float = math.inf
    """Degrees of freedom of the errors."""


def radius(distances: Array, weights: Array, target: float) -> float:
    """The smallest tolerance at which the simulations strictly nearer have this effective number; all if there is none.

    >>> radius(np.array([0.0, 0.1, 0.2, 0.4]), np.ones(4), 2.0)
    0.2
    """
    order = np.argsort(distances, kind="stable")
    ordered, some = distances[order], weights[order]
    enough = np.square(np.cumsum(some)) >= target * np.cumsum(np.square(some))
    ends = np.flatnonzero(enough[:-1] & (ordered[1:] > ordered[:-1]))
    return float(ordered[ends[0] + 1]) if ends.size else float(np.nextafter(ordered[-1], np.inf))


def near_number(n: int, columns: int) -> float:
    """The effective number of simulations in a neighbourhood, of n with so many summaries.

    >>> round(near_number(4000, 1)), round(near_number(4000, 10))
    (381, 50)
    """
    return min(max(FEWEST_NEAR, 0.5 * n ** (4 / (4 + columns))), n / 4)


def exact_matches(pool: Pool) -> bool:
    """Whether enough simulations match the data exactly."""
    return effective(pool.weights[pool.distances == 0]) >= FEWEST_EXACT


def tolerance(pool: Pool) -> float:
    """Of the neighbourhood of the acceptance ratio; beyond zero alone if enough simulations match exactly."""
    if exact_matches(pool):
        away = pool.distances[pool.distances > 0]
        return float(away.min()) if away.size else 1.0
    return radius(pool.distances, pool.weights, near_number(len(pool.rows), pool.rows.shape[1]))


def wide_radius(pool: Pool) -> float:
    """Of the neighbourhood of the classifier, which tells what the other's tolerance does to the acceptance ratio."""
    target = min(WIDER * near_number(*pool.rows.shape), len(pool.rows) / 2)
    return radius(pool.distances, pool.weights, target)


def accepted(pool: Pool, eps: float) -> RouteEstimate:
    """The acceptance ratio at a tolerance."""
    total, variance = pool.evidence((pool.distances < eps).astype(float))
    with np.errstate(divide="ignore"):
        return RouteEstimate(np.log(total), np.diag(variance))


def with_tolerance_error(near: RouteEstimate, wide: RouteEstimate, eps: float, wider: float) -> RouteEstimate:
    """The acceptance ratio at a tolerance with an error that holds for the data themselves.

    The bias of a log evidence grows at least in proportion to the tolerance (with its square if that is small), so that
    its change from one tolerance to a wider one says how large it is at most.

    >>> narrow, broad = (RouteEstimate(np.array([0.0, log]), np.diag([0.01, 0.02])) for log in (1.0, 1.6))
    >>> with_tolerance_error(narrow, broad, 1.0, 2.0).covariance.round(4).tolist()
    [[0.01, 0.0], [0.0, 0.38]]
    """
    there = np.isfinite(near.log_evidence)
    change = np.where(there, wide.log_evidence, 0.0) - np.where(there, near.log_evidence, 0.0)
    bias = change / (wider / eps - 1.0) if wider > eps > 0 else change
    return near._replace(covariance=near.covariance + np.outer(bias, bias))


# --- the classifier -----------------------------------------------------------------------------------------


def polynomial(rows: Array, quadratic: bool) -> Array:
    """Columns 1, s_k and, if asked for, s_j s_k.

    >>> polynomial(np.array([[2.0, 3.0]]), True).tolist()
    [[1.0, 2.0, 3.0, 4.0, 6.0, 9.0]]
    """
    first, second = np.triu_indices(rows.shape[1])
    parts = [np.ones((len(rows), 1)), rows, *([rows[:, first] * rows[:, second]] if quadratic else [])]
    return np.concatenate(parts, axis=1)


class Classifier(NamedTuple):
    """A multinomial logistic regression near the data."""

    present: Array
    """Which models have simulations there."""
    models: int
    coefficients: Array
    """(present, columns); zero for the first."""
    offset: Array
    """(present,) what is added to get log evidences."""
    covariance: Array
    """Of the constants (present, present)."""
    quadratic: bool
    unit: float
    """Of the scaled rows: the largest near the data."""

    def log_evidence(self, rows: Array) -> Array:
        """(m, models) at scaled rows (m, s), up to a constant of each row; minus infinity for absent models."""
        found = np.full((len(rows), self.models), -np.inf)
        found[:, self.present] = polynomial(rows / self.unit, self.quadratic) @ self.coefficients.T + self.offset
        return found

    def estimate(self) -> RouteEstimate:
        """At the data, whose scaled row is zero."""
        covariance = np.full((self.models, self.models), 0.0)
        np.fill_diagonal(covariance, np.inf)
        covariance[np.ix_(self.present, self.present)] = self.covariance
        return RouteEstimate(self.log_evidence(np.zeros((1, (self._width()))))[0], covariance)

    def _width(self) -> int:
        columns = self.coefficients.shape[1]
        return columns - 1 if not self.quadratic else int((math.sqrt(8 * columns + 1) - 3) / 2)


def classify(pool: Pool, kernel: Array, quadratic: bool | None = None) -> Classifier | None:
    """The classifier, with a kernel (n,) that says which simulations are near; None if fewer than two models are.

    It is quadratic if enough simulations are near, unless that is said.
    """
    models = len(pool.proposals)
    total, _ = pool.evidence(kernel)
    present, near = np.flatnonzero(total > 0), np.flatnonzero((kernel > 0) & (pool.weights > 0))
    if len(present) < 2:
        return None
    # In the fit all models have the same weight; what that changes is taken off again.
    balanced = pool.weights[near] * kernel[near] / total[pool.label[near]]
    worth = effective(balanced)
    weights = balanced * worth / balanced.sum()
    width = pool.rows.shape[1]
    if quadratic is None:
        quadratic = worth >= PER_COLUMN * (len(present) - 1) * (1 + width + width * (width + 1) // 2)
    unit = float(np.abs(pool.rows[near]).max()) or 1.0
    columns = polynomial(pool.rows[near] / unit, quadratic)
    label = np.searchsorted(present, pool.label[near])
    coefficients, covariance = fit_logistic(columns, label, weights, len(present))
    return Classifier(present, models, coefficients, np.log(total[present]), covariance, quadratic, unit)


def with_curvature_error(whole: RouteEstimate, inner: RouteEstimate, shrunk: float) -> RouteEstimate:
    """What a classifier states at the data, with an error that has the bias from a polynomial of few terms.

    The bias grows at least in proportion to the neighbourhood's radius, so that its change to a radius `shrunk` times
    as large says how large it is at most. The change has an error of its own: the inner simulations are among all, so
    that its variance is the difference of both variances. It is taken off.

    >>> whole, inner = (RouteEstimate(np.array([0.0, log]), np.diag([0.0, v])) for log, v in ((1.0, 0.01), (1.5, 0.05)))
    >>> with_curvature_error(whole, inner, 0.5).covariance.round(4).tolist()
    [[0.0, 0.0], [0.0, 0.85]]
    """
    there = np.isfinite(whole.log_evidence)
    change = np.where(there, inner.log_evidence, 0.0) - np.where(there, whole.log_evidence, 0.0)
    change = np.where(there, change - change[np.argmax(there)], 0.0)
    noise = float(np.maximum(np.diag(inner.covariance)[there] - np.diag(whole.covariance)[there], 0.0).sum())
    total = float(change @ change)
    left = max(0.0, 1.0 - noise / total) if total > 0 else 0.0
    bias = change / (1.0 - shrunk)
    return whole._replace(covariance=whole.covariance + left * np.outer(bias, bias))


def fit_logistic(columns: Array, label: Array, weights: Array, classes: int) -> tuple[Array, Array]:
    """Coefficients (classes, p) of a penalised multinomial logistic regression, those of the first class zero.

    With them comes the covariance of the constants, which allows for the weights: the sum of the squares of what each
    row changes if it is left out (a sandwich with leverages; MacKinnon and White 1985).
    """
    n, p = columns.shape
    others = classes - 1
    chosen = (label[:, None] == np.arange(1, classes)).astype(float)
    penalty = np.full((others, p), RIDGE)
    penalty[:, 0] = 1e-8
    found = np.zeros((others, p))

    def parts(at: Array) -> tuple[float, Array]:
        linear = columns @ at.T
        log_total = np.logaddexp.reduce(np.concatenate([np.zeros((n, 1)), linear], axis=1), axis=1)
        value = float(weights @ ((chosen * linear).sum(axis=1) - log_total)) - 0.5 * float((penalty * at * at).sum())
        return value, np.exp(linear - log_total[:, None])

    value, probability = parts(found)
    for _ in range(NEWTON):
        gradient = ((weights[:, None] * (chosen - probability)).T @ columns - penalty * found).reshape(-1)
        factor = cho_factor(_information(columns, weights, probability, penalty))
        step = cho_solve(factor, gradient).reshape(others, p)
        size = 1.0
        while True:
            new, there = parts(found + size * step)
            if new >= value or size < 1e-4:
                break
            size /= 2
        found, probability, gain, value = found + size * step, there, new - value, new
        if gain < 1e-9 * (1 + abs(value)):
            break
    factor = cho_factor(_information(columns, weights, probability, penalty))
    inverse = cho_solve(factor, np.eye(others * p)).reshape(others, p, others, p)
    away = _without_each(columns, weights, chosen - probability, probability, inverse)
    spread = np.einsum("nj,np,jpk->nk", away, columns, inverse[:, :, :, 0], optimize=True)
    covariance = np.zeros((classes, classes))
    covariance[1:, 1:] = spread.T @ spread
    return np.concatenate([np.zeros((1, p)), found]), covariance


def _without_each(columns: Array, weights: Array, residual: Array, probability: Array, inverse: Array) -> Array:
    """Scores (n, others) of the rows, each by a fit without the row: residuals are too small where it draws the fit."""
    others = residual.shape[1]
    variance = probability[:, :, None] * (np.eye(others) - probability[:, None, :]) * weights[:, None, None]
    reach = np.einsum("np,jpkq,nq->njk", columns, inverse, columns, optimize=True)
    found: Array = np.linalg.solve(np.eye(others) - variance @ reach, (weights[:, None] * residual)[:, :, None])
    return found[:, :, 0]


def _information(columns: Array, weights: Array, probability: Array, penalty: Array) -> Array:
    others, p = penalty.shape
    found = np.empty((others, p, others, p))
    for j in range(others):
        for k in range(others):
            share = weights * probability[:, j] * ((j == k) - probability[:, k])
            found[j, :, k, :] = (columns * share[:, None]).T @ columns
    return found.reshape(others * p, others * p) + np.diag(penalty.reshape(-1))


def epanechnikov(distances: Array, eps: float) -> Array:
    """K(d / eps), which falls to zero at eps."""
    return np.maximum(1.0 - np.square(distances / eps), 0.0)


# --- the trial ----------------------------------------------------------------------------------------------


class HeldOutRows(NamedTuple):
    """Simulations near the data whose model is known, as many of each model."""

    number: Array
    """(m,) in the pool."""
    label: Array
    log_balance: Array
    """(models,) log of the prior probabilities under which all models are as likely there."""
    variance: Array
    """(models,) of these: they rest on the same simulations."""

    def share(self) -> Array:
        """(m,) the weight of each, so that all models have the same."""
        each = np.bincount(self.label)[self.label]
        found: Array = 1.0 / (each * len(np.unique(self.label)))
        return found

    def scores(self, log_evidence: Array) -> Array:
        """Log probability (m,) of the true model, for log evidences (m, models).

        The balance has an error, which is no fault of a route: each may move it at the price of its log density.
        """
        logs, shift = log_evidence + self.log_balance, np.zeros(len(self.log_balance))
        there = np.isfinite(self.log_balance)
        true = (self.label[:, None] == np.arange(len(there))).astype(float)
        # As many as the weights are worth.
        weight, precision = self.share(), 1.0 / np.maximum(self.variance, 1e-12)
        number = effective(weight)
        for _ in range(SHIFTS):
            probability = _shares(logs + shift)
            gradient = number * (weight @ (true - probability)) - precision * shift
            step = gradient / (number * (weight @ np.maximum(probability * (1 - probability), 1e-9)) + precision)
            shift = np.where(there, shift + np.clip(0.7 * step, -1.0, 1.0), 0.0)
        with np.errstate(divide="ignore"):
            found = np.log(_shares(logs + shift)[np.arange(len(logs)), self.label])
        price = 0.5 * float(precision[there] @ np.square(shift[there])) / number
        return np.maximum(found, LOWEST_SCORE) - price


def _shares(logs: Array) -> Array:
    top = np.maximum(logs.max(axis=1, keepdims=True), -1e300)
    parts = np.exp(logs - top)
    found: Array = parts / np.maximum(parts.sum(axis=1, keepdims=True), 1e-300)
    return found


SHIFTS = 50
LOWEST_SCORE = math.log(1e-3)
"""Of a held-out simulation, so that no single one decides."""


def held_out_near(pool: Pool, eps: float, rng: np.random.Generator) -> HeldOutRows | None:
    """Simulations within a distance of the data, picked by weight; None if fewer than two models have enough."""
    total, variance = pool.evidence((pool.distances < eps).astype(float))
    picked = []
    for model in range(len(pool.proposals)):
        near = np.flatnonzero((pool.label == model) & (pool.distances < eps) & (pool.weights > 0))
        number = min(MOST_HELD_OUT, int(effective(pool.weights[near]) / 4) if near.size else 0)
        if number >= FEWEST_HELD_OUT:
            picked.append(near[np.unique(systematic(pool.weights[near], number, rng.random()))])
    if len(picked) < 2:
        return None
    index = np.concatenate(picked)
    there = np.isin(np.arange(len(total)), pool.label[index])
    with np.errstate(divide="ignore"):
        balance = np.where(there, -np.log(np.where(there, total, 1.0)), -np.inf)
    return HeldOutRows(index, pool.label[index], balance, variance)


def without(pool: Pool, index: Array, eps: float) -> Pool:
    """The pool without some simulations within a distance, the others there of their model counting for them."""
    keep, near, models = np.ones(len(pool.rows), dtype=bool), pool.distances < eps, len(pool.proposals)
    keep[index] = False
    before, after = (np.bincount(pool.label[some], pool.weights[some], models) for some in (near, near & keep))
    factor = np.where(after > 0, before / np.where(after > 0, after, 1.0), 1.0)
    weights = np.where(near, pool.weights * factor[pool.label], pool.weights)
    return Pool(pool.rows[keep], pool.distances[keep], weights[keep], pool.label[keep], pool.proposals)


def accepted_at(pool: Pool, others: Array, distances: Callable[[Array], Array]) -> Array:
    """Log evidences (m, models) by the acceptance ratio at other simulations, which are not in the pool.

    `distances` are those of the pool from one of them, by number. A model that is not near counts as if half a
    simulation were.
    """
    found = np.empty((len(others), len(pool.proposals)))
    for k, other in enumerate(others):
        there = pool._replace(distances=distances(other))
        eps = tolerance(there)
        inside = (there.distances < eps).astype(float)
        total, _ = there.evidence(inside)
        found[k] = np.log(np.maximum(total, 0.5 / pool.proposals))
    return found


class ErrorRates(NamedTuple):
    """How often the most probable model is not the true one."""

    prior: float
    """At simulations from the priors."""
    prior_se: float
    local: float
    """At simulations near the data; NaN if they were too few."""
    local_se: float
    confusion: Array
    """(models, models): of simulations of each model (rows), the share for which each is the most probable.

    Zero for a model without simulations."""


def prior_errors(rows: Array, label: Array, log_prior: Array) -> tuple[float, float, Array]:
    """Error rate at simulations from the priors of all models, its standard error, and the confusion matrix.

    A classifier of all simulations, fitted to four fifths of them and tried at the rest in turn.
    """
    models = len(log_prior)
    counts = np.bincount(label, minlength=models)
    guess = np.full(len(label), -1)
    for fold in range(FOLDS):
        test = np.arange(len(label)) % FOLDS == fold
        train = ~test
        share = np.bincount(label[train], minlength=models)
        weights = 1.0 / np.maximum(share, 1)[label[train]]
        pool = Pool(rows[train], np.zeros(int(train.sum())), weights, label[train], np.maximum(share, 1).astype(float))
        fitted = _classified(pool)
        if fitted is None:
            guess[test] = int(np.argmax(np.where(share > 0, log_prior, -np.inf)))
        else:
            guess[test] = np.argmax(fitted.log_evidence(rows[test]) + log_prior, axis=1)
    confusion = np.zeros((models, models))
    np.add.at(confusion, (label, guess), 1.0)
    confusion /= np.maximum(counts, 1)[:, None]
    # A model without simulations has no error rate, and counts for nothing.
    prior = np.where(counts > 0, np.exp(log_prior), 0.0)
    prior, wrong = prior / prior.sum(), 1.0 - np.diag(confusion)
    error = math.sqrt(float(np.square(prior * share_error(wrong, counts)).sum()))
    return float(prior @ wrong), error, confusion


def share_error(share: Array, number: Array) -> Array:
    """Standard error of a share of so many: the spread of its posterior, which is not zero if none or all of them are.

    >>> share_error(np.array([0.0, 0.3]), np.array([48, 4000])).round(4).tolist()
    [0.0196, 0.0072]
    """
    mean = (share * number + 1.0) / (number + 2.0)
    found: Array = np.sqrt(mean * (1.0 - mean) / (number + 3.0))
    return found


def _classified(pool: Pool) -> Classifier | None:
    try:
        return classify(pool, np.ones(len(pool.rows)))
    except LinAlgError:
        return None


def local_error(held: HeldOutRows, log_evidence: Array, log_prior: Array, total: Array) -> tuple[float, float]:
    """Error rate at held-out simulations near the data, and its standard error.

    Those of a model count by its prior probability and by how often it comes near, `total` (models,).
    """
    each = np.bincount(held.label, minlength=len(total))
    weight = (np.exp(log_prior) * total)[held.label] / each[held.label]
    weight = weight / weight.sum()
    wrong = (np.argmax(log_evidence + log_prior, axis=1) != held.label).astype(float)
    rate = float(weight @ wrong)
    spread = math.sqrt(float(np.square(weight) @ np.square(wrong - rate)))
    return rate, max(spread, float(share_error(np.array(rate), np.array(effective(weight)))))


def first_of_the_best(scores: Sequence[Array | None], share: Array) -> int:
    """The first route whose mean score is not clearly below that of the best."""
    tried = {k: one for k, one in enumerate(scores) if one is not None}
    best = max(tried, key=lambda k: float(share @ tried[k]))
    for k, one in tried.items():
        behind, error = mean_gain(tried[best], one, share)
        if behind <= TIED[0] * error + TIED[1]:
            return k
    return best


def curve_of(pool: Pool) -> Array:
    """Tolerances at which the acceptance ratio is shown: from few near simulations to half of all."""
    low = tolerance(pool) if exact_matches(pool) else radius(pool.distances, pool.weights, 10.0)
    high = max(radius(pool.distances, pool.weights, len(pool.rows) / 4), 1.01 * low)
    return np.geomspace(low, high, CURVE) if low > 0 else np.linspace(low, high, CURVE)


# --- probabilities ------------------------------------------------------------------------------------------


class Probability(NamedTuple):
    """The posterior probability of a model."""

    value: float
    se: float
    low: float
    high: float
    """Interval."""


def log_odds(estimate: RouteEstimate, log_prior: Array, model: int) -> tuple[float, float]:
    """Log odds of a model against all others together, and their standard error.

    >>> one = RouteEstimate(np.zeros(2), np.diag([0.03, 0.01]))
    >>> log_odds(one, np.log([0.5, 0.5]), 0)
    (0.0, 0.2)
    """
    logs = estimate.log_evidence + log_prior
    rest = float(np.logaddexp.reduce(np.delete(logs, model)))
    if not np.isfinite(logs[model]) or not math.isfinite(rest):
        return (-math.inf if math.isfinite(rest) else math.inf), math.nan
    gradient, some = _gradient(logs, model), np.isfinite(logs)
    variance = float(gradient[some] @ estimate.covariance[np.ix_(some, some)] @ gradient[some])
    return float(logs[model]) - rest, math.sqrt(max(variance, 0.0))


def _gradient(logs: Array, model: int) -> Array:
    """Of the log odds of a model, by the log evidences of all."""
    others = np.arange(len(logs)) != model
    rest = np.logaddexp.reduce(logs[others])
    return np.where(others, -np.exp(np.where(others, logs - rest, -np.inf)), 1.0)


def reach(estimate: RouteEstimate, log_prior: Array, model: int, level: float) -> float:
    """How many standard errors of log odds an interval of this level extends to each side.

    The errors of the models are independent, so that their sum has more degrees of freedom than each (Satterthwaite).

    >>> both, one = (RouteEstimate(np.zeros(2), np.diag([0.1, v]), 8.0) for v in (0.1, 0.0))
    >>> round(reach(both, np.zeros(2), 0, 0.9), 3), round(reach(one, np.zeros(2), 0, 0.9), 3)
    (1.746, 1.86)
    """
    from scipy import stats

    logs, freedom = estimate.log_evidence + log_prior, estimate.freedom
    some = np.isfinite(logs)
    if math.isfinite(freedom) and some[model] and some.sum() > 1:
        parts = np.square(_gradient(logs, model)[some]) * np.diag(estimate.covariance)[some]
        freedom *= float(np.square(parts.sum()) / np.square(parts).sum()) if parts.any() else 1.0
    return float(stats.t.ppf(0.5 + level / 2, freedom))


def probabilities(estimate: RouteEstimate, log_prior: Array, bounds: Array, level: float) -> list[Probability]:
    """Posterior probabilities with intervals of this level, symmetric on the scale of log odds.

    `bounds` (models,) are upper bounds of the log evidence of models that never came near the data, NaN for others:
    their probability is at most what the bound gives. A standard error is the length of the interval in units of the
    errors of log odds: a derivative says nothing near 0 and 1.
    """
    absent, found = ~np.isnan(bounds), []
    near = estimate._replace(log_evidence=np.where(absent, -np.inf, estimate.log_evidence))
    worst = estimate._replace(log_evidence=np.where(absent, bounds, estimate.log_evidence))
    worst = worst._replace(covariance=np.where(absent[:, None] | absent, 0.0, estimate.covariance))
    for model in range(len(log_prior)):
        odds, _ = log_odds(estimate, log_prior, model)
        low, high = _interval(estimate, log_prior, model, level)
        if absent[model]:
            # The others may be less probable than they seem, too.
            _, high = _interval(worst, log_prior, model, level)
        elif absent.any():
            # From models that came near the data alone, and with the others at their bounds.
            low, _ = _interval(worst, log_prior, model, level)
            _, high = _interval(near, log_prior, model, level)
        value = _share(odds)
        low, high = min(low, value), max(high, value)
        found.append(Probability(value, (high - low) / (2 * reach(estimate, log_prior, model, level)), low, high))
    return found


def _interval(estimate: RouteEstimate, log_prior: Array, model: int, level: float) -> tuple[float, float]:
    odds, se = log_odds(estimate, log_prior, model)
    away = 0.0 if math.isnan(se) else se * reach(estimate, log_prior, model, level)
    return _share(odds - away), _share(odds + away)


def _share(odds: float) -> float:
    from scipy.special import expit

    return float(expit(odds))
