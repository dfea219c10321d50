"""The evidences of several models from their simulations: every route, the trial, error rates and the curve."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import LinAlgError

from onedraw.engines.arrays import Array
from onedraw.estimators.weights import effective
from onedraw.results.learnt_likelihood import LearntLikelihood, SimulatedPairs, fitted_to
from onedraw.results.model_choice import (
    INNER,
    MOST_FITTED,
    Classifier,
    ErrorRates,
    HeldOutRows,
    Pool,
    RouteEstimate,
    accepted,
    accepted_at,
    classify,
    curve_of,
    epanechnikov,
    exact_matches,
    first_of_the_best,
    fit_logistic,
    held_out_near,
    local_error,
    polynomial,
    prior_errors,
    radius,
    tolerance,
    wide_radius,
    with_curvature_error,
    with_tolerance_error,
    without,
)
from onedraw.results.model_evidence import FREEDOM, NO_EVIDENCE, comparable, held_out_evidence, learnt_evidence

LEARNT, CLASSIFIER, ACCEPTANCE = "learnt likelihoods", "classifier", "acceptance ratio"
ROUTES = (LEARNT, CLASSIFIER, ACCEPTANCE)
"""In the order in which ties are decided: the first rests on all simulations, the last on the fewest."""
MOST_POOLED = 10_000
"""Simulations of each model that are looked at, the nearest."""
MOST_PRIOR = 1000
"""Simulations from the prior of each model at which the prior error rate is measured."""
DISAGREE = 2.0
"""Combined standard errors by which two routes may differ; more is an error of its own."""
NONE_OF = 3.0
"""Of n proposals none hits with a probability of 5 % if each does so with probability 3/n."""
ONE_SIDED = 1.645
BEYOND_SUMMARIES, LEAST_GAIN = 2.5, 0.05
"""Standard errors, and log probability per simulation, by which a check must tell models apart beyond the summaries."""


class Contender(NamedTuple):
    """One model with its simulations."""

    pairs: SimulatedPairs | None
    """None if no simulation has succeeded."""
    proposals: int
    of_prior: int
    """How many of the proposals came from the prior; the first ones did."""
    pilot: int
    """Simulations that succeeded among the first, which are all from the prior."""
    learnt: LearntLikelihood | None
    held_out: Array
    """Numbers of simulations that the learnt likelihood was tried at."""

    def trained(self) -> Array:
        """The simulations that the learnt likelihood was fitted to, by number."""
        assert self.pairs is not None
        return np.union1d(fitted_to(len(self.pairs.theta)), self.held_out)


class Pooled(NamedTuple):
    """The pool, and which simulation of its model each of it is."""

    pool: Pool
    number: Array
    raw: Array
    """(n, s) summaries as they are."""
    distances: Callable[[Array], Callable[[Array], Array]]
    """For some numbers of the pool, a function of one of the scaled rows that gives their distances from it."""


class DecidedModels(NamedTuple):
    """Everything that simulations say about the choice."""

    route: int
    estimates: tuple[RouteEstimate | None, ...]
    """By each of ROUTES."""
    scores: tuple[Array | None, ...]
    """Log probabilities of the true model of held-out simulations."""
    share: Array
    """Weights of these, so that all models have the same."""
    bounds: Array
    """(models,) upper bounds of the log evidence of models that never came near the data, NaN for the others."""
    near: Array
    """(models,) simulations in the neighbourhood of the acceptance ratio."""
    eps: float
    exact: bool
    errors: ErrorRates
    curve: Array
    """(g, 1 + 2 models): tolerances, log evidences, relative variances."""
    unavailable: str
    """Why there are no learnt likelihoods; "" if there are."""

    def packed(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """As the values and arrays of a record."""
        arrays: dict[str, Array] = {"bounds": self.bounds, "near": self.near, "curve": self.curve, "share": self.share}
        arrays |= {"confusion": self.errors.confusion, "rates": np.array(self.errors[:4])}
        for name, one, scores in zip("lca", self.estimates, self.scores, strict=True):
            if one is not None:
                arrays |= {f"{name}.log": one.log_evidence, f"{name}.cov": one.covariance}
            if scores is not None:
                arrays[f"{name}.scores"] = scores
        arrays["eps"] = np.array([self.eps])
        return {"route": self.route, "exact": self.exact, "unavailable": self.unavailable}, arrays

    @staticmethod
    def unpacked(scalars: Mapping[str, Any], arrays: Mapping[str, Array]) -> "DecidedModels":
        """As it was packed."""
        estimates, scores = [], []
        for name, route in zip("lca", ROUTES, strict=True):
            freedom = float(FREEDOM) if route == LEARNT else math.inf
            there = f"{name}.log" in arrays
            estimates.append(RouteEstimate(arrays[f"{name}.log"], arrays[f"{name}.cov"], freedom) if there else None)
            scores.append(arrays.get(f"{name}.scores"))
        rates = [float(one) for one in arrays["rates"]]
        return DecidedModels(
            int(scalars["route"]), tuple(estimates), tuple(scores), arrays["share"], arrays["bounds"], arrays["near"],
            float(arrays["eps"][0]), bool(scalars["exact"]),
            ErrorRates(rates[0], rates[1], rates[2], rates[3], arrays["confusion"]), arrays["curve"],
            str(scalars["unavailable"]),
        )  # fmt: skip

    @property
    def chosen(self) -> RouteEstimate:
        """The estimate of the route that was chosen."""
        found = self.estimates[self.route]
        assert found is not None
        return found


Scale = Callable[[Array], Array]
Apart = Callable[[Array, Array], Array]


def pooled(models: Sequence[Contender], observed: Array, scale: Scale, apart: Apart | None) -> Pooled:
    """The nearest simulations of all models, in scaled summaries less those of the data."""
    parts, numbers, raws, centre = [], [], [], scale(observed[None])[0]
    for label, one in enumerate(models):
        if one.pairs is None:
            continue
        rows = scale(one.pairs.rows)
        away = np.sqrt(np.square(rows - centre).sum(axis=1)) if apart is None else apart(one.pairs.rows, observed)
        some = np.flatnonzero(np.isfinite(away))
        if len(some) > MOST_POOLED:
            some = np.sort(some[np.argsort(away[some], kind="stable")[:MOST_POOLED]])
        weights = np.exp(one.pairs.log_weights(one.pairs.theta[some])) / one.proposals
        parts.append((rows[some] - centre, away[some], weights, np.full(len(some), label)))
        numbers.append(some)
        raws.append(one.pairs.rows[some])
    rows, away, weights, labels = map(np.concatenate, zip(*parts, strict=True))
    raw = np.concatenate(raws)
    pool = Pool(rows, away, weights, labels, np.array([one.proposals for one in models], dtype=float))

    def distances(keep: Array) -> Callable[[Array], Array]:
        def from_row(number: Array) -> Array:
            if apart is None:
                return np.sqrt(np.square(rows[keep] - rows[int(number)]).sum(axis=1))
            return apart(raw[keep], raw[int(number)])

        return from_row

    return Pooled(pool, np.concatenate(numbers), raw, distances)


def decide(
    models: Sequence[Contender],
    observed: Array,
    scale: Scale,
    apart: Apart | None,
    log_prior: Array,
    rng: np.random.Generator,
) -> DecidedModels:
    """All routes, tried at held-out simulations near the data; the best that rests on most simulations is chosen."""
    found = pooled(models, observed, scale, apart)
    pool = found.pool
    eps, exact = tolerance(pool), exact_matches(pool)
    wide = eps if exact else wide_radius(pool)
    ratio = accepted(pool, eps)
    if not exact:
        ratio = with_tolerance_error(ratio, accepted(pool, wide), eps, wide)
    near = np.bincount(pool.label[pool.distances < eps], minlength=len(models))
    classified = None if exact else classifier_estimate(pool, wide)
    unavailable = _unavailable(models, apart)
    learnt = None if unavailable or exact else _learnt(models, rng)
    if learnt is None and not unavailable and not exact:
        unavailable = "halves of the simulations do not learn the same summaries"
    estimates: tuple[RouteEstimate | None, ...] = (learnt, classified, ratio)
    held = held_out_near(pool, wide, rng)
    scores: tuple[Array | None, ...] = (None, None, None)
    share = np.empty(0)
    local = math.nan, math.nan
    route = ROUTES.index(ACCEPTANCE) if exact or learnt is None else ROUTES.index(LEARNT)
    if held is not None:
        logs = _at_held_out(models, found, held, wide, [one is not None for one in estimates], exact, rng)
        scores, share = tuple(None if one is None else held.scores(one) for one in logs), held.share()
        route = ROUTES.index(ACCEPTANCE) if exact else first_of_the_best(scores, held.share())
        at_held = logs[route]
        assert at_held is not None
        total, _ = pool.evidence((pool.distances < wide).astype(float))
        local = local_error(held, at_held, log_prior, total)
    rows, label = _prior_rows(models, scale, observed)
    rate, rate_se, confusion = prior_errors(rows, label, log_prior)
    curve = curve_of(pool)
    parts = [pool.evidence((pool.distances < one).astype(float)) for one in curve]
    with np.errstate(divide="ignore"):
        table = np.column_stack([curve, np.log([one for one, _ in parts]), [one for _, one in parts]])
    chosen = estimates[route]
    assert chosen is not None
    chosen = _with_disagreement(chosen, ratio)
    bounds = bounds_of(near, np.array([float(max(one.of_prior, 1)) for one in models]), table, chosen)
    # A likelihood that was learnt from simulations farther away cannot say more than their number does.
    least = chosen._replace(log_evidence=np.fmin(chosen.log_evidence, bounds))
    estimates = (*estimates[:route], least, *estimates[route + 1 :])
    return DecidedModels(
        route, estimates, scores, share, bounds, near, eps, exact,
        ErrorRates(rate, rate_se, *local, confusion), table, unavailable,
    )  # fmt: skip


def classifier_estimate(pool: Pool, wide: float) -> RouteEstimate | None:
    """What the classifier states at the data; None if there is none, or if its bias cannot be told."""
    whole = classifier_near(pool, wide)
    if whole is None:
        return None
    worth = effective(pool.weights * epanechnikov(pool.distances, wide))
    narrow = radius(pool.distances, pool.weights, INNER * worth)
    inner = classifier_near(pool, narrow, whole.quadratic) if narrow < wide else None
    if inner is None or len(inner.present) < len(whole.present):
        return None
    return with_curvature_error(whole.estimate(), inner.estimate(), narrow / wide)


def classifier_near(pool: Pool, wide: float, quadratic: bool | None = None) -> Classifier | None:
    """The classifier of the nearest simulations, few enough to be fitted fast; None if it cannot be fitted."""
    kernel = epanechnikov(pool.distances, wide)
    inside = np.flatnonzero(kernel > 0)
    if len(inside) > MOST_FITTED * len(pool.proposals):
        drop = np.ones(len(inside), dtype=bool)
        drop[:: -(-len(inside) // (MOST_FITTED * len(pool.proposals)))] = False
        kernel[inside[drop]] = 0.0
    try:
        return classify(pool, kernel, quadratic)
    except LinAlgError:
        return None


def _unavailable(models: Sequence[Contender], apart: Apart | None) -> str:
    if apart is not None:
        return "the distance is your own"
    alive = [one.learnt for one in models if one.pairs is not None]
    return comparable(alive) if len(alive) > 1 else "the simulations of one model alone succeed"


def _learnt(models: Sequence[Contender], rng: np.random.Generator) -> RouteEstimate | None:
    found = [
        NO_EVIDENCE if one.pairs is None or one.learnt is None else learnt_evidence(one.learnt, one.pairs, rng)
        for one in models
    ]
    values, variances = (np.array(one) for one in zip(*found, strict=True))
    there = np.isfinite(values)
    if not there.any() or not np.isfinite(variances[there]).all():
        return None
    return RouteEstimate(values, np.diag(variances), float(FREEDOM))


def _at_held_out(
    models: Sequence[Contender],
    found: Pooled,
    held: HeldOutRows,
    wide: float,
    available: list[bool],
    exact: bool,
    rng: np.random.Generator,
) -> list[Array | None]:
    """Log evidences (m, models) of every route at the held-out simulations, which none of them has seen."""
    pool, rest = found.pool, without(found.pool, held.number, wide)
    keep = np.setdiff1d(np.arange(len(pool.rows)), held.number)
    logs: list[Array | None] = [None, None, None]
    if available[0]:
        columns = []
        for label, one in enumerate(models):
            if one.learnt is None or one.pairs is None:
                columns.append(np.full(len(held.number), -np.inf))
                continue
            left_out = np.flatnonzero(np.isin(one.trained(), found.number[held.number[held.label == label]]))
            columns.append(held_out_evidence(one.learnt, one.pairs, left_out, found.raw[held.number], rng))
        logs[0] = np.column_stack(columns)
    if available[1] and not exact:
        fitted = classifier_near(rest, wide)
        logs[1] = None if fitted is None else fitted.log_evidence(pool.rows[held.number])
    logs[2] = accepted_at(rest, held.number, found.distances(keep))
    return logs


def _with_disagreement(one: RouteEstimate, other: RouteEstimate) -> RouteEstimate:
    """The first estimate with a larger error if the second differs from it by more than their errors explain."""
    best = int(np.argmax(one.log_evidence))
    covariance = one.covariance.copy()
    for model in range(len(covariance)):
        some, contrast = [model, best], np.array([1.0, -1.0])
        if model == best or not all(np.isfinite(each.log_evidence[some]).all() for each in (one, other)):
            continue
        variance = sum(float(contrast @ each.covariance[np.ix_(some, some)] @ contrast) for each in (one, other))
        away = float((one.log_evidence[some] - other.log_evidence[some]) @ contrast)
        covariance[model, model] += max(0.0, away * away - DISAGREE**2 * variance)
    return one._replace(covariance=covariance)


def _prior_rows(models: Sequence[Contender], scale: Scale, observed: Array) -> tuple[Array, Array]:
    """Scaled summaries of simulations from the prior, dealt out so that folds have all models."""
    centre = scale(observed[None])
    parts = [
        (scale(one.pairs.rows[: min(one.pilot, MOST_PRIOR)]) - centre, label)
        for label, one in enumerate(models)
        if one.pairs is not None
    ]
    rows = np.concatenate([part for part, _ in parts])
    label = np.concatenate([np.full(len(part), number) for part, number in parts])
    # Heavy tails would dominate a regression on squares.
    return np.arcsinh(rows), label


def bounds_of(near: Array, of_prior: Array, curve: Array, chosen: RouteEstimate) -> Array:
    """Upper bounds of log evidences in the units of the route chosen, for models of which no simulation came near.

    At each tolerance of the curve, the upper end of an interval for such a model, relative to the best model. The
    smallest of them holds if the model does not fall behind less as the tolerance falls.
    """
    models = len(near)
    logs, variance = curve[:, 1 : 1 + models], curve[:, 1 + models :]
    best = int(np.argmax(np.where(near > 0, chosen.log_evidence, -np.inf)))
    with np.errstate(invalid="ignore"):
        upper = np.where(np.isfinite(logs), logs + ONE_SIDED * np.sqrt(variance), np.log(NONE_OF / of_prior))
    upper = np.where(np.isfinite(logs[:, best])[:, None], upper - logs[:, best][:, None], np.inf)
    return np.where(near == 0, upper.min(axis=0) + chosen.log_evidence[best], np.nan)


class Beyond(NamedTuple):
    """A check of the raw data that tells models apart beyond the summaries."""

    label: str
    gain: float
    """In mean log probability of the true model."""
    se: float


def beyond_summaries(rows: Array, label: Array, summaries: int, labels: Sequence[str]) -> list[Beyond]:
    """Which columns behind the summaries tell models apart at simulations (n, s + checks) of known models.

    A classifier with the column is compared with one without, at simulations left out of both.
    """
    good = np.isfinite(rows).all(axis=1)
    rows, label = rows[good], label[good]
    present = np.unique(label)
    if len(present) < 2 or min(np.bincount(label)[present]) < 2 * FEWEST_COMPARED:
        return []
    label = np.searchsorted(present, label)
    spread = rows.std(axis=0)
    scaled = np.arcsinh((rows - np.median(rows, axis=0)) / np.where(spread > 0, spread, 1.0))
    base = _cross_scores(scaled[:, :summaries], label, len(present))
    found = []
    for column in range(summaries, rows.shape[1]):
        gain = _cross_scores(np.column_stack([scaled[:, :summaries], scaled[:, column]]), label, len(present)) - base
        mean, se = float(gain.mean()), float(gain.std(ddof=1)) / math.sqrt(len(gain))
        if mean > max(LEAST_GAIN, BEYOND_SUMMARIES * se):
            found.append(Beyond(labels[column], mean, se))
    return sorted(found, key=lambda one: -one.gain)


FEWEST_COMPARED = 10


def _cross_scores(rows: Array, label: Array, classes: int) -> Array:
    """Log probability of the true model by classifiers that have not seen the simulation (n,)."""
    order = np.argsort(label, kind="stable")
    fold = np.empty(len(label), dtype=int)
    fold[order] = np.arange(len(label)) % 5
    squares = len(label) > 20 * (rows.shape[1] + 1) ** 2
    columns, found = polynomial(rows, squares), np.empty(len(label))
    for part in range(5):
        test = fold == part
        counts = np.bincount(label[~test], minlength=classes)
        weights = (len(label) / classes / np.maximum(counts, 1))[label[~test]]
        coefficients, _ = fit_logistic(columns[~test], label[~test], weights, classes)
        linear = columns[test] @ coefficients.T
        found[test] = linear[np.arange(len(linear)), label[test]] - np.logaddexp.reduce(linear, axis=1)
    return found
