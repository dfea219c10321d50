"""Probabilities of models: exact answers, stated errors, error rates, degenerate cases, files, workers and pages."""

import json
import math
import os
import signal
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import stats

import onedraw as od
from benchmarks.choices import COUNTED, NESTED, NORMAL, RARE, RARE_AT, REGRESSION, Problem
from onedraw import failures
from onedraw.cli.main import main
from onedraw.model.coordinates import Support
from onedraw.results import model_evidence
from onedraw.results.comparison import _log_factor
from onedraw.results.learnt_likelihood import LearntLikelihood, SimulatedPairs
from onedraw.results.model_choice import (
    RIDGE,
    HeldOutRows,
    Pool,
    RouteEstimate,
    accepted,
    accepted_at,
    classify,
    epanechnikov,
    exact_matches,
    first_of_the_best,
    fit_logistic,
    local_error,
    log_odds,
    prior_errors,
    probabilities,
    tolerance,
    with_tolerance_error,
    without,
)
from onedraw.results.model_evidence import FREEDOM, comparable, held_out_evidence, learnt_evidence, of_prior
from onedraw.results.model_trial import beyond_summaries, classifier_estimate, classifier_near
from onedraw.surrogate.choice import choose_form
from onedraw.surrogate.surrogate import fit_surrogate
from onedraw.surrogate.tempering import tempered
from onedraw.surrogate.training import training_of
from onedraw.surrogate.transforms import Transform, Warp
from onedraw.surrogate.validation import evidence_ratio
from onedraw.tuning.compare import blocks_of, checked_models, shares
from tests.browser import Browser, needs_chromium

# What is tested does not depend on how thoroughly infer tries regressions.
pytestmark = pytest.mark.usefixtures("brief")


@od.batched
def normal(rng, mu):
    return rng.normal(mu, 1.0)


def shifted(centre, observed=1.2, sd=0.5, **more):
    return od.Model(od.Prior(mu=stats.norm(centre, sd)), normal, observed, **more)


PAIR = {"zero": shifted(0.0), "two": shifted(2.0)}


def exact_pair(observed=1.2):
    """Probability of the second of the pair."""
    zero, two = (stats.norm(centre, math.sqrt(1.25)).pdf(observed) for centre in (0.0, 2.0))
    return two / (zero + two)


@pytest.fixture(scope="module")
def pair(brief):
    return od.compare(PAIR, budget=1000, draws=500, seed=1)


# --- formulas -----------------------------------------------------------------------------------------------


def pool_of(seed=1, n=4000, centres=(0.0, 1.0), observed=0.8):
    """Prior predictive simulations of normal models, weighted equally."""
    rng = np.random.default_rng(seed)
    rows = np.concatenate([rng.normal(centre, 1.0, n) for centre in centres])[:, None] - observed
    label = np.repeat(np.arange(len(centres)), n)
    counts = np.full(len(centres), float(n))
    return Pool(rows, np.abs(rows[:, 0]), np.full(len(rows), 1 / n), label, counts)


def exact_log(centres=(0.0, 1.0), observed=0.8):
    return stats.norm.logpdf(observed, centres)


def test_the_acceptance_ratio_is_the_probability_of_the_neighbourhood_and_its_error_is_binomial():
    pool = pool_of()
    found = accepted(pool, 0.5)
    p = stats.norm.cdf(1.3 - np.array([0.0, 1.0])) - stats.norm.cdf(0.3 - np.array([0.0, 1.0]))
    se = np.sqrt((1 - p) / (4000 * p))
    assert np.all(np.abs(found.log_evidence - np.log(p)) < 4 * se)
    assert np.allclose(np.sqrt(np.diag(found.covariance)), se, rtol=0.1)


def test_weights_by_proposals_give_the_evidence_of_the_prior():
    """Proposals from a wider normal: their weights make them a mean under the model."""
    rng = np.random.default_rng(2)
    theta = rng.normal(0, 3.0, 20_000)
    weights = stats.norm.pdf(theta) / stats.norm.pdf(theta, 0, 3.0) / 20_000
    away = np.abs(rng.normal(theta, 1.0) - 1.0)
    pool = Pool(away[:, None], away, weights, np.zeros(20_000, dtype=int), np.array([20_000.0]))
    truth = np.diff(stats.norm(0, math.sqrt(2)).cdf([0.7, 1.3]))[0]
    found = accepted(pool, 0.3)
    assert abs(found.log_evidence[0] - math.log(truth)) < 4 * math.sqrt(found.covariance[0, 0]) < 0.2


def test_the_classifier_finds_log_ratios_with_its_stated_error():
    """Of two normals the log ratio is linear: 60 fits at the data, and away from them."""
    truth, z, off = np.diff(exact_log())[0], [], []
    for seed in range(60):
        pool = pool_of(seed, 1000)
        found = classify(pool, epanechnikov(pool.distances, 1.5))
        one = found.estimate()
        value, error = log_odds(one, np.log([0.5, 0.5]), 1)
        z.append((value - truth) / error)
        away = found.log_evidence(np.array([[0.5]]))[0]
        off.append(away[1] - away[0] - np.diff(exact_log(observed=1.3))[0])
    assert abs(np.mean(z)) < 4 / math.sqrt(60) + 0.1 and 0.7 < np.std(z) < 1.35
    assert abs(np.mean(off)) < 4 * np.std(off) / math.sqrt(60) + 0.02


def test_the_classifier_of_three_models_with_curved_log_ratios():
    rng = np.random.default_rng(3)
    sds, n, observed = np.array([1.0, 2.0, 0.7]), 20_000, 0.4
    rows = np.concatenate([rng.normal(0, sd, n) for sd in sds])[:, None] - observed
    pool = Pool(rows, np.abs(rows[:, 0]), np.full(3 * n, 1 / n), np.repeat(np.arange(3), n), np.full(3, float(n)))
    found = classify(pool, epanechnikov(pool.distances, 1.5))
    assert found.quadratic
    one, logs = found.estimate(), stats.norm.logpdf(observed, 0, sds)
    for model in range(3):
        value, error = log_odds(one, np.full(3, -math.log(3)), model)
        others = np.delete(logs, model)
        assert abs(value - (logs[model] - np.logaddexp.reduce(others))) < 4 * error < 0.3


def test_intervals_of_the_classifier_hold_where_the_log_ratio_is_no_polynomial():
    """Cauchy against normal, in a wide neighbourhood; without the part for its width they would not hold."""
    laws, observed, held, blind = (stats.cauchy(), stats.norm()), 1.5, 0, 0
    truth = laws[1].pdf(observed) / (laws[0].pdf(observed) + laws[1].pdf(observed))
    for seed in range(30):
        rng = np.random.default_rng([seed, 3])
        rows = np.concatenate([law.rvs(1000, random_state=rng) for law in laws])[:, None] - observed
        pool = Pool(rows, np.abs(rows[:, 0]), np.full(2000, 1e-3), np.repeat([0, 1], 1000), np.full(2, 1000.0))
        right, wrong = (
            probabilities(one, np.log([0.5, 0.5]), np.full(2, np.nan), 0.9)[1]
            for one in (classifier_estimate(pool, 4.0), classifier_near(pool, 4.0).estimate())
        )
        held, blind = held + (right.low <= truth <= right.high), blind + (wrong.low <= truth <= wrong.high)
    assert held >= stats.binom.ppf(1e-3, 30, 0.9) > blind


def test_a_classifier_whose_bias_cannot_be_told_is_no_route():
    """All simulations of one model are at the edge of the neighbourhood: a narrower one has none of them."""
    near, far = np.linspace(-1.0, 1.0, 400), np.linspace(1.5, 1.9, 100)
    rows = np.concatenate([near, far])[:, None]
    weights = np.repeat([1 / 400, 1 / 100], [400, 100])
    pool = Pool(rows, np.abs(rows[:, 0]), weights, np.repeat([0, 1], [400, 100]), np.array([400.0, 100.0]))
    assert classifier_near(pool, 2.0) is not None and classifier_estimate(pool, 2.0) is None


def test_logistic_regression_solves_its_equations():
    rng = np.random.default_rng(4)
    x = np.column_stack([np.ones(300), rng.normal(size=(300, 2))])
    label, weights = rng.integers(0, 3, 300), rng.exponential(size=300)
    found, covariance = fit_logistic(x, label, weights, 3)
    shares = np.exp(x @ found.T)
    shares /= shares.sum(axis=1, keepdims=True)
    slope = (weights[:, None] * ((label[:, None] == np.arange(3)) - shares)).T @ x
    penalty = np.full(found.shape, 0.02)
    penalty[:, 0] = 1e-8
    assert np.allclose(slope[1:], (penalty * found)[1:], atol=1e-3) and covariance[1, 1] > 0


def test_the_error_of_a_logistic_regression_is_that_of_fits_without_each_row():
    """Its constants move by one step of Newton's method as each row is left out."""
    rng = np.random.default_rng(8)
    columns = np.column_stack([np.ones(60), rng.normal(size=(60, 3))])
    label, weights = np.digitize(columns[:, 1] + rng.logistic(size=60), [-0.7, 0.7]), rng.uniform(0.5, 1.5, 60)
    found, covariance = fit_logistic(columns, label, weights, 3)
    probability = np.exp(columns @ found.T)
    probability = (probability / probability.sum(axis=1, keepdims=True))[:, 1:]
    scores, information = [], []
    for row, p, w, k in zip(columns, probability, weights, label, strict=True):
        scores.append(w * np.kron((np.array([1, 2]) == k) - p, row))
        information.append(w * np.kron(np.diag(p) - np.outer(p, p), np.outer(row, row)))
    penalty = np.diag(np.tile([1e-8, RIDGE, RIDGE, RIDGE], 2))
    whole = np.sum(information, axis=0) + penalty
    moved = [np.linalg.solve(whole - one, -score)[[0, 4]] for one, score in zip(information, scores, strict=True)]
    assert np.allclose(covariance[1:, 1:], np.transpose(moved) @ np.array(moved), rtol=1e-6)


def test_log_odds_and_their_error_by_numerical_derivatives():
    logs, covariance = np.array([-1.0, 0.3, -2.0]), np.array([[0.04, 0.01, 0], [0.01, 0.09, 0], [0, 0, 0.16]])
    log_prior = np.log([0.2, 0.3, 0.5])

    def odds(at):
        return at[1] + log_prior[1] - np.logaddexp(at[0] + log_prior[0], at[2] + log_prior[2])

    gradient = [(odds(logs + 1e-6 * unit) - odds(logs - 1e-6 * unit)) / 2e-6 for unit in np.eye(3)]
    one = RouteEstimate(logs, covariance)
    value, error = log_odds(one, log_prior, 1)
    assert math.isclose(value, odds(logs))
    assert math.isclose(error, math.sqrt(gradient @ covariance @ gradient), rel_tol=1e-6)
    found = probabilities(one, log_prior, np.full(3, np.nan), 0.9)
    assert sum(each.value for each in found) == pytest.approx(1.0)
    assert found[1].high == pytest.approx(1 / (1 + math.exp(-value - stats.norm.ppf(0.95) * error)))


def test_a_model_that_never_came_near_has_an_upper_bound():
    one = RouteEstimate(np.array([math.log(0.01), -math.inf]), np.diag([0.01, math.inf]))
    first, second = probabilities(one, np.log([0.5, 0.5]), np.array([math.nan, math.log(1e-4)]), 0.9)
    assert (first.value, second.value) == (pytest.approx(1.0), pytest.approx(0.0))
    odds, reach = math.log(100), 0.1 * stats.norm.ppf(0.95)
    assert first.low == pytest.approx(1 / (1 + math.exp(reach - odds))) and first.high == 1.0
    # The same two numbers from the other side.
    assert second.low == 0.0 and second.high == pytest.approx(1 - first.low)
    # How far below its bound the second is, nobody knows.
    assert first.se == pytest.approx(second.se) and second.se == pytest.approx(second.high / (2 * stats.norm.ppf(0.95)))


def test_exact_matches_are_a_neighbourhood_of_their_own():
    distances = np.repeat([0.0, 1.0, 2.0], [150, 300, 300])
    pool = Pool(distances[:, None], distances, np.full(750, 1 / 750), np.zeros(750, dtype=int), np.array([750.0]))
    assert exact_matches(pool) and tolerance(pool) == 1.0
    assert not exact_matches(pool._replace(distances=distances + 0.1))


def held(label, variance=1e-6):
    label = np.asarray(label)
    return HeldOutRows(np.arange(len(label)), label, np.zeros(2), np.full(2, variance))


def test_scores_are_log_probabilities_of_the_true_model_and_all_models_count_alike():
    one = held([0, 0, 0, 1])
    logs = np.log([[0.8, 0.2]] * 3 + [[0.4, 0.6]])
    assert np.allclose(np.exp(one.scores(logs)), [0.8, 0.8, 0.8, 0.6], atol=1e-3)
    assert np.allclose(one.share(), [1 / 6, 1 / 6, 1 / 6, 1 / 2])


def test_a_balance_that_is_uncertain_may_be_moved_by_every_route():
    """Log evidences that are all off by one constant lose nothing if the balance is unknown by much more."""
    label = np.tile([0, 1], 200)
    right = np.where((label[:, None] == np.arange(2)), math.log(0.7), math.log(0.3))
    off = right + np.array([0.0, 0.8])
    sure, unsure = held(label), held(label, 4.0)
    assert sure.scores(off).mean() < sure.scores(right).mean() - 0.03
    assert abs(unsure.scores(off).mean() - unsure.scores(right).mean()) < 0.01


def test_the_first_route_is_left_only_if_it_is_clearly_behind():
    rng, share = np.random.default_rng(5), np.full(100, 0.01)
    scores = rng.normal(-0.5, 0.3, 100)
    noise = rng.normal(0, 0.05, 100)
    assert first_of_the_best([scores + noise, None, scores], share) == 0
    assert first_of_the_best([scores - 0.1 + noise, None, scores], share) == 2
    assert first_of_the_best([None, scores, scores - 1], share) == 1


def test_others_count_for_the_simulations_left_out():
    pool = pool_of(n=500)
    near = np.flatnonzero(pool.distances < 1.0)[::3]
    rest = without(pool, near, 1.0)
    for eps in (1.0, 2.0):
        assert np.allclose(pool.evidence(pool.distances < eps)[0], rest.evidence(rest.distances < eps)[0])
    assert len(rest.rows) == len(pool.rows) - len(near)


def test_the_acceptance_ratio_at_other_simulations():
    pool = pool_of(n=4000)
    logs = accepted_at(pool, np.array([0.5, -0.5]), lambda row: np.abs(pool.rows[:, 0] - row))
    truth = [np.diff(exact_log(observed=0.8 + row))[0] for row in (0.5, -0.5)]
    assert np.allclose(logs[:, 1] - logs[:, 0], truth, atol=0.25)


def test_error_rates_of_two_normals():
    """The best classifier of N(0, 1) and N(2, 1) is wrong with probability Phi(-1)."""
    rng = np.random.default_rng(6)
    rows, label = np.concatenate([rng.normal(0, 1, 2000), rng.normal(2, 1, 2000)])[:, None], np.repeat([0, 1], 2000)
    order = rng.permutation(4000)
    rate, se, confusion = prior_errors(rows[order], label[order], np.log([0.5, 0.5]))
    assert abs(rate - stats.norm.cdf(-1)) < 4 * se < 0.03
    assert np.allclose(confusion.sum(axis=1), 1.0)
    unequal, *_ = prior_errors(rows[order], label[order], np.log([0.99, 0.01]))
    assert unequal < 0.012
    # A third model without simulations has no error rate.
    same, same_se, third = prior_errors(rows[order], label[order], np.log([0.25, 0.25, 0.5]))
    assert (same, same_se) == pytest.approx((rate, se)) and not third[2].any()


def test_the_local_error_rate_weights_models_by_how_often_they_come_near():
    one = held([0, 0, 1, 1])
    logs = np.log([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.1, 0.9]])
    rate, _ = local_error(one, logs, np.log([0.5, 0.5]), np.array([0.3, 0.1]))
    assert rate == pytest.approx(0.25 / 2)


def test_an_error_rate_of_zero_has_an_error():
    """Of 48 simulations none is wrong: the posterior of the rate is Beta(1, 49)."""
    one, right = held(np.repeat([0, 1], 24)), np.log(np.repeat([[0.9, 0.1], [0.1, 0.9]], 24, axis=0))
    rate, error = local_error(one, right, np.log([0.5, 0.5]), np.array([0.2, 0.2]))
    assert rate == 0.0 and error == pytest.approx(stats.beta(1, 49).std())
    rows, label = np.tile([-5.0, 5.0], 200)[:, None], np.tile([0, 1], 200)
    rate, error, _ = prior_errors(rows, label, np.log([0.5, 0.5]))
    assert rate == 0.0 and error == pytest.approx(stats.beta(1, 201).std() / math.sqrt(2))


def test_shares_follow_the_roots_of_the_probabilities():
    assert np.allclose(shares(np.log([0.09, 0.01]), np.log([0.5, 0.5])), [0.75, 0.25])
    assert np.allclose(shares(np.array([0.0, -np.inf]), np.log([0.5, 0.5])), [1.0, 0.0])


# --- the evidence of a learnt likelihood --------------------------------------------------------------------


def test_the_tempered_sampler_knows_the_constant_of_a_density():
    rng, found = np.random.default_rng(7), []
    for _ in range(40):
        start = rng.normal(0, 1, (1000, 1))
        found.append(tempered(
            start, lambda x: stats.norm.logpdf(x[:, 0]), lambda x: stats.norm.logpdf(3.0, x[:, 0], 0.5),
            np.array([False]), rng,
        ).log_evidence)  # fmt: skip
    truth = stats.norm(0, math.sqrt(1.25)).logpdf(3.0)
    assert abs(np.mean(found) - truth) < 4 * np.std(found) / math.sqrt(40) + 0.01 and np.std(found) < 0.2


def test_a_transformed_density_is_one_of_the_summaries_themselves():
    """The integral of slope times a standard normal density of the transformed summary is 1."""
    one, ends = np.ones(1), np.array([[-np.inf], [np.inf]])
    transform = Transform(np.array([0]), one < 0, (Warp("log", 0.0, 1.0),), 0.5 * one, 2.0 * one, ends)
    at = np.geomspace(1e-6, 1e7, 40_001)
    density = stats.norm.pdf(transform(at[:, None])[:, 0]) * np.exp([transform.log_slope(np.array([s])) for s in at])
    assert abs(np.trapezoid(density, at) - 1) < 1e-3


def test_the_learnt_evidence_at_the_data_and_at_other_data(pair):
    """Against the exact density of a normal model, within the stated error and at rows that were left out."""
    post = pair.posteriors["two"]
    bank = post.kept
    from onedraw.results.assessment import assess

    pairs = bank.simulations()
    found = assess(post.model, pairs, bank.ends[0], np.random.default_rng(1), thorough=False)
    one = learnt_evidence(found.learnt, pairs, np.random.default_rng(2))
    exact = stats.norm(2, math.sqrt(1.25))
    assert abs(one.value - exact.logpdf(1.2)) < 4 * math.sqrt(one.variance) < 0.5
    rows = np.array([[0.5], [1.2], [2.0]])
    left_out = held_out_evidence(found.learnt, pairs, np.arange(10), rows, np.random.default_rng(3))
    assert np.allclose(left_out, exact.logpdf(rows[:, 0]), atol=0.3)


def learnt_from(theta, rows, observed):
    """A learnt likelihood of standard normal parameters and one summary, and its simulations."""
    support, none = Support(np.array([-np.inf]), np.array([np.inf])), np.empty((0, 1))
    training = training_of(theta, rows, np.ones(len(rows)))
    surrogate = fit_surrogate(choose_form(support, training, observed, thorough=True), training, None)
    pairs = SimulatedPairs(
        support, theta, rows, none, np.array([False]), lambda at: np.zeros(len(at)),
        lambda at: stats.norm.logpdf(at[:, 0]), None, None, lambda rng, n: rng.normal(size=(n, 1)),
    )  # fmt: skip
    return LearntLikelihood(surrogate, training, observed, False, np.empty(0), none, none, theta), pairs


def skewed_log_density(observed):
    """Of theta + log(chi2_8 / 8) / 2 with theta ~ N(0, 1)."""
    at = np.linspace(-8.0, 8.0, 2001)
    chi = 8 * np.exp((observed - at) / 0.5)
    return math.log(np.trapezoid(stats.norm.pdf(at) * stats.chi2(8).pdf(chi) * chi / 0.5, at))


def learnt_scores(seeds, monkeypatch, factor=1.0):
    """Errors of learnt evidences in stated ones, times a factor, and how many 90 % intervals of one half hold."""
    monkeypatch.setattr(model_evidence, "PARTICLES", 300)
    z, held = [], 0
    for seed in seeds:
        rng = np.random.default_rng([seed, 5])
        theta = rng.normal(size=(401, 1))
        rows = theta + 0.5 * np.log(rng.chisquare(8, (401, 1)) / 8)
        found = learnt_evidence(*learnt_from(theta[1:], rows[1:], rows[0]), rng)
        truth, variance = skewed_log_density(rows[0, 0]), factor**2 * found.variance
        z.append((found.value - truth) / math.sqrt(variance))
        # Against a model whose evidence is known and the same.
        one = RouteEstimate(np.array([found.value, truth]), np.diag([variance, 0.0]), FREEDOM)
        first, _ = probabilities(one, np.log([0.5, 0.5]), np.full(2, np.nan), 0.9)
        held += first.low <= 0.5 <= first.high
    return np.array(z), held


def test_stated_errors_of_learnt_evidences_are_not_too_small(monkeypatch):
    """Summaries with a skewed error. Squares of z have the mean of those of a t law, within 4 of its errors."""
    z, held = learnt_scores(range(24), monkeypatch)
    mean, fourth = (stats.t.moment(order, FREEDOM) for order in (2, 4))
    assert np.mean(z**2) < mean + 4 * math.sqrt((fourth - mean**2) / len(z))
    assert held >= stats.binom.ppf(1e-3, len(z), 0.9)


@pytest.mark.slow
def test_intervals_of_learnt_evidences_hold_neither_too_seldom_nor_too_often(monkeypatch):
    z, held = learnt_scores(range(200), monkeypatch)
    error = math.sqrt(0.9 * 0.1 / len(z))
    assert 0.86 - 2 * error < held / len(z) < 0.94 + 2 * error
    assert abs(z.mean()) < 4 * z.std() / math.sqrt(len(z))


def test_intervals_of_the_acceptance_ratio_hold_for_the_data_themselves():
    """At a tolerance at which the ratio is biased by about its error; without the tolerance's part they would not."""
    truth, held, blind = np.diff(exact_log((0.0, 3.0), 0.8))[0], 0, 0
    eps, wide = 0.8, 1.6
    for seed in range(200):
        pool = pool_of(seed, 2000, (0.0, 3.0))
        ratio = accepted(pool, eps)
        for one, right in ((with_tolerance_error(ratio, accepted(pool, wide), eps, wide), True), (ratio, False)):
            [_, last] = probabilities(one, np.log([0.5, 0.5]), np.full(2, np.nan), 0.9)
            inside = last.low <= 1 / (1 + math.exp(-truth)) <= last.high
            held, blind = held + (right and inside), blind + (not right and inside)
    assert held >= stats.binom.ppf(1e-3, 200, 0.9) > blind


def test_why_densities_cannot_be_compared():
    rng = np.random.default_rng(1)
    theta = rng.normal(size=(60, 1))
    one, _ = learnt_from(theta, theta + rng.normal(size=(60, 1)), np.zeros(1))
    assert comparable([one, one]) == ""
    assert comparable([one, None]) == "not every model has a learnt likelihood"
    assert "single rows of the data" in comparable([one, one._replace(observed=np.zeros((5, 1)))])
    assert "too many summaries" in comparable([one, one._replace(learnt_summary=True)])


def test_the_variance_of_a_learnt_evidence_is_that_of_its_parts(monkeypatch):
    """Of the sampler, of forms chosen again and of fits to halves, from known log evidences."""
    logs, ratios = [0.1, 0.3, -0.2, 0.2], {"form": [0.5, -0.1], "half": [0.2, -0.3, 0.4]}
    runs = iter(logs)
    for name, fake in {
        "tempered": lambda *args: SimpleNamespace(log_evidence=next(runs), draws=None),
        "density": lambda *args: SimpleNamespace(log_density=None),
        "chosen_again": lambda *args: ratios["form"],
        "fitted_again": lambda *args: ratios["half"],
        "evidence_ratio": lambda own, other, observed, draws: other,
    }.items():
        monkeypatch.setattr(model_evidence, name, fake)
    learnt = SimpleNamespace(surrogate=SimpleNamespace(form=None, success=None), training=None, observed=None)
    pairs = SimpleNamespace(of_prior=lambda rng, n: None, log_prior=None, discrete=None)
    value, variance = learnt_evidence(learnt, pairs, np.random.default_rng(1))
    assert value == pytest.approx(math.log(np.mean(np.exp(logs))), rel=1e-12)
    parts = np.var(logs, ddof=1) / 4 + (0.25 + 0.01) / 2 + (0.04 + 0.09 + 0.16) / 3
    assert variance == pytest.approx(parts, rel=1e-12)


def test_the_ratio_of_evidences_is_the_mean_of_ratios_over_a_posterior():
    draws = np.random.default_rng(8).normal(size=(50, 1))
    one, other = (SimpleNamespace(log_density=lambda at, row, a=a: a * at[:, 0] ** 2 + row[0]) for a in (-0.5, -0.2))
    exact = math.log(np.exp(0.3 * draws[:, 0] ** 2).mean())
    assert evidence_ratio(one, other, np.array([2.0]), draws) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(("eps", "wider", "factor"), [(1.0, 2.0, 1.0), (0.5, 2.0, 1 / 3), (0.0, 1.0, 1.0)])
def test_the_bias_of_a_tolerance_is_the_change_to_a_wider_one_in_proportion(eps, wider, factor):
    near, wide = (RouteEstimate(np.array(logs), np.diag([0.01, 0.02])) for logs in ([0.0, 1.0], [0.3, 1.6]))
    bias = factor * np.array([0.3, 0.6])
    found = with_tolerance_error(near, wide, eps, wider)
    assert found.covariance == pytest.approx(np.diag([0.01, 0.02]) + np.outer(bias, bias), rel=1e-12)


def test_the_evidence_of_held_out_rows_is_a_density_of_the_summaries_themselves():
    """The mean of the density over draws from the prior, without the simulations left out."""
    rng = np.random.default_rng(6)
    theta = rng.normal(size=(120, 1))
    learnt, pairs = learnt_from(theta, 30 * (theta + rng.normal(size=(120, 1))), np.zeros(1))
    pairs = pairs._replace(of_proposals=pairs.of_prior)
    rows, keep = np.array([[-20.0], [35.0]]), np.arange(120) >= 7
    found = held_out_evidence(learnt, pairs, np.arange(7), rows, np.random.default_rng(7))
    points = pairs.of_proposals(np.random.default_rng(7), model_evidence.FREE)
    other = model_evidence.density(learnt.surrogate.form, learnt.training.some(keep), None)
    exact = [math.log(np.exp(other.log_density(points, row)).mean()) for row in rows]
    assert found == pytest.approx(exact, abs=1e-9)
    assert found == pytest.approx(stats.norm(0, 30 * math.sqrt(2)).logpdf(rows[:, 0]), abs=0.5)


def test_evidences_of_small_counts_are_probabilities():
    """Counts whose standard deviation is less than a cell: they sum to one, and are those of the model."""
    rng = np.random.default_rng(11)
    theta = rng.normal(size=(1000, 1))
    counts = rng.binomial(4, stats.norm.cdf(2 + 0.3 * theta)).astype(float)
    learnt, pairs = learnt_from(theta, counts, np.array([4.0]))
    pairs = pairs._replace(of_proposals=pairs.of_prior)
    rows = np.unique(counts)[:, None]
    found = held_out_evidence(learnt, pairs, np.arange(0), rows, np.random.default_rng(7))
    whole = learnt_evidence(learnt, pairs, rng)
    assert np.exp(found).sum() == pytest.approx(1.0, abs=1e-3)
    at = np.linspace(-6, 6, 2001)
    exact = [np.trapezoid(stats.norm.pdf(at) * stats.binom.pmf(k, 4, stats.norm.cdf(2 + 0.3 * at)), at) for k in (3, 4)]
    error = np.sqrt(np.array(exact) * (1 - np.array(exact)) / 1000)
    assert (np.abs(np.exp(found[-2:]) - exact) < 4 * error).all()
    assert whole.value == pytest.approx(found[-1], abs=0.02)


def test_a_likelihood_that_depends_on_no_parameter_is_the_evidence(monkeypatch):
    """Learnt from proposals off the prior, of summaries that do depend on them: it is the density under the prior."""
    rng = np.random.default_rng(9)
    theta = rng.normal(1.0, 1.0, size=(4000, 1))
    learnt, pairs = learnt_from(theta, rng.normal(size=(4000, 1)), np.zeros(1))
    assert learnt.constant
    log_ratio = stats.norm.logpdf(theta[:, 0]) - stats.norm.logpdf(theta[:, 0], 1.0)
    monkeypatch.setattr(model_evidence, "choose_form", lambda *args, **more: learnt.surrogate.form)
    training = learnt.training._replace(rows=theta + rng.normal(size=(4000, 1)))
    found = of_prior(learnt._replace(training=training), pairs._replace(log_weights=lambda at: log_ratio))
    [stated] = found.surrogate.log_density(np.zeros((1, 1)), np.zeros(1))
    # Weights that are the exponents of normals are worth n / e.
    worth = len(theta) / math.e
    assert found.training.weights.sum() == pytest.approx(worth, rel=0.2)
    assert abs(stated - stats.norm(0, math.sqrt(2)).logpdf(0.0)) < 4 * math.sqrt(0.5 / worth)


def test_halves_that_learn_other_summaries_leave_no_learnt_evidence(monkeypatch):
    rng = np.random.default_rng(1)
    theta = rng.normal(size=(100, 1))
    given = learnt_from(theta, theta + rng.normal(size=(100, 1)), np.zeros(1))
    assert math.isfinite(learnt_evidence(*given, rng).variance)
    monkeypatch.setattr(model_evidence, "choose_form", lambda *args, **more: None)
    assert math.isinf(learnt_evidence(*given, rng).variance)


# --- exact answers ------------------------------------------------------------------------------------------


def z_scores(problem: Problem, datasets, budget=1200):
    """(stated - exact) / error of the log odds of the last model, and the comparisons."""
    scores, found = [], []
    for seed, observed in enumerate(datasets):
        one = od.compare(problem.models(observed), budget=budget, draws=200, seed=seed)
        exact = problem.probability(observed)
        last = list(exact)[-1]
        value, error = log_odds(one.decided.chosen, one.log_prior, len(exact) - 1)
        scores.append((value - math.log(exact[last] / (1 - exact[last]))) / error)
        found.append(one)
    return np.array(scores), found


@pytest.mark.slow
@pytest.mark.parametrize("problem", [NORMAL, REGRESSION, NESTED])
def test_stated_errors_are_right_over_data_sets(problem):
    """Other data each time, from a model picked at random: fewer hold with a probability of 1e-3."""
    held = 0
    for seed in range(20):
        observed, _ = problem.data(seed)
        found = od.compare(problem.models(observed), budget=1000, draws=200, seed=seed)
        exact = problem.probability(observed)
        last = list(exact)[-1]
        held += found[last].low <= exact[last] <= found[last].high
    assert held >= stats.binom.ppf(1e-3, 20, 0.9)


@pytest.mark.parametrize(
    ("problem", "datasets"),
    [
        pytest.param(NORMAL, [np.array([0.3, 0.2]), np.array([0.7, -0.5])], marks=pytest.mark.slow),
        (REGRESSION, [np.array([0.2, 0.5, 0.6])]),
        pytest.param(NESTED, [np.array([0.9, 0.7])], marks=pytest.mark.slow),
    ],
)
def test_probabilities_are_exact_within_their_errors(problem, datasets):
    scores, found = z_scores(problem, datasets)
    assert np.all(np.abs(scores) < stats.t.isf(1e-3, FREEDOM))
    assert all(one.cost.simulations <= 1200 for one in found)
    assert all(sum(one.probabilities.values()) == pytest.approx(1.0) for one in found)


def test_counts_that_match_exactly():
    [score], [found] = z_scores(COUNTED, [np.int64(2)], 2000)
    assert found.decided.exact and found.route == "acceptance ratio" and abs(score) < 4
    assert "match the data exactly" in found.notes[0]


def test_a_probability_of_one_in_ten_thousand():
    [score], [found] = z_scores(RARE, [np.float64(RARE_AT)])
    assert abs(score) < stats.t.isf(1e-3, FREEDOM)
    assert 3e-5 < found["far"].probability < 3e-4 and found["near"].simulations > found["far"].simulations


def test_prior_probabilities_count(pair):
    other = od.compare(PAIR, budget=1000, draws=500, seed=1, prior={"zero": 0.9, "two": 0.1})
    exact = exact_pair()
    odds = exact / (1 - exact) / 9
    assert other["two"].low - 0.02 < odds / (1 + odds) < other["two"].high + 0.02
    assert other["two"].prior == pytest.approx(0.1) and other["two"].probability < pair["two"].probability


def test_bayes_factors_and_the_table(pair):
    value, se = pair.log_bayes_factor("two", "zero")
    back, _ = pair.log_bayes_factor("zero", "two")
    exact = exact_pair()
    assert value == -back and abs(value - math.log(exact / (1 - exact))) < 4 * se < 0.8
    assert pair["two"].low < pair["two"].probability < pair["two"].high
    with pytest.raises(KeyError, match="there is no model 'three': there are zero, two"):
        _ = pair["three"]


def test_each_model_has_its_posterior_from_the_same_simulations(pair):
    post = pair.posteriors["two"]
    row = post.summary()["mu"]
    assert abs(row.mean - (2.0 + (1.2 - 2.0) * 0.2)) < 0.15 and post.shape == (1, 500)
    assert sum(one.cost.simulations for one in pair.posteriors.values()) == pair.cost.simulations <= 1000


def test_the_trial_has_all_routes_the_chosen_one_first(pair):
    assert {one.route for one in pair.trial} == {"learnt likelihoods", "classifier", "acceptance ratio"}
    assert pair.trial[0].chosen and pair.trial[0].route == pair.route
    exact = exact_pair()
    assert all(abs(one.probabilities[1] - exact) < 0.2 for one in pair.trial)


def test_words(pair):
    text = pair.summary()
    assert "two" in pair.headline and "90 % interval" in pair.headline
    assert "log Bayes factor" in text and "held-out simulations" in text
    assert "Comparison(zero" in repr(pair)
    html = pair._repr_html_()
    assert html.count("<svg") == 2 and "probability" in html


@pytest.mark.parametrize(
    ("odds", "error", "level", "words", "advice"),
    [
        (0.6, 0.05, "amber", "The data do not decide between two and zero", "averages over the models"),
        (0.6, 0.80, "amber", "These simulations do not decide between two and zero", "Raise the budget"),
        (1.4, 0.90, "amber", "These simulations do not decide between two and zero", "Raise the budget"),
        (1.4, 0.20, "green", "two is the most probable model", "averages over the models"),
        (4.0, 0.20, "green", "two is the most probable model", "Report the probability"),
    ],
)
def test_the_verdict_is_green_only_if_a_model_can_be_chosen(pair, odds, error, level, words, advice):
    one = RouteEstimate(np.array([0.0, odds]), np.diag([0.0, error**2]))
    decided = pair.decided._replace(route=0, estimates=(one, *pair.decided.estimates[1:]))
    found = replace(pair, decided=decided._replace(errors=decided.errors._replace(local=0.01)))
    assert (found.level, found.undecided) == (level, level == "amber")
    assert found.headline.startswith(words) and advice in found.advice


@pytest.mark.parametrize(
    ("odds", "words"),
    [
        (0.1, "The data do not decide between two and zero, and two does"),
        (3.0, "two is the most probable of these models, but two does"),
    ],
)
def test_a_best_model_that_is_unlike_the_data_is_red_whether_it_is_chosen_or_not(pair, odds, words):
    one = RouteEstimate(np.array([0.0, odds]), np.diag([0.0, 0.01]))
    decided = pair.decided._replace(route=0, estimates=(one, *pair.decided.estimates[1:]))
    worst = SimpleNamespace(words=lambda: "its mean")
    misfits = {name: SimpleNamespace(p=p, worst=worst) for name, p in (("zero", 0.5), ("two", 1e-3))}
    found = replace(pair, decided=decided, misfits=misfits)
    assert found.level == "red" and found.headline.startswith(f"{words} not reproduce")


@pytest.mark.parametrize(("error", "least"), [(1.0, "; two does so least badly among them"), (73.0, "")])
def test_which_of_wrong_models_is_least_bad_is_said_if_it_is_known(pair, error, least):
    one = RouteEstimate(np.array([0.0, 34.0]), np.diag([0.0, error**2]))
    decided = pair.decided._replace(route=0, estimates=(one, *pair.decided.estimates[1:]))
    misfits = {name: SimpleNamespace(p=1e-3, worst=SimpleNamespace(words=str)) for name in pair.names}
    found = replace(pair, decided=decided, misfits=misfits)
    assert found.headline == f"None of the models reproduces the data{least}"
    # The error is that of the interval: p (1 - p) times that of the log odds would be nothing.
    assert found["two"].se == pytest.approx((found["two"].high - found["two"].low) / (2 * stats.norm.ppf(0.95)))
    assert (found["two"].se > 0.2) == (error > 1)


def test_predictions_average_over_the_models(pair):
    drawn = pair.predict(4000, seed=1)
    means = [2.0 + (1.2 - 2.0) * 0.2, 0.0 + 1.2 * 0.2]
    share = pair["two"].probability
    assert drawn.shape == (4000,)
    assert abs(drawn.mean() - (share * means[0] + (1 - share) * means[1])) < 0.15
    assert np.array_equal(pair.predict(50, seed=3), pair.predict(50, seed=3))


# --- what summaries leave out -------------------------------------------------------------------------------

SIZE = 100


@od.batched
def of_normals(rng, mu, sigma):
    return mu[:, None] + sigma[:, None] * rng.standard_normal((len(mu), SIZE))


@od.batched
def of_laplace(rng, mu, sigma):
    return mu[:, None] + sigma[:, None] / math.sqrt(2) * rng.laplace(size=(len(mu), SIZE))


@od.batched
def mean_and_variance(data):
    return np.column_stack([data.mean(axis=1), data.var(axis=1)])


def test_insufficient_summaries_are_found_out_and_said():
    """Laplace against normal by mean and variance (Robert et al. 2011): about one half whatever the data."""
    prior = od.Prior(mu=stats.norm(0, 1), sigma=stats.uniform(0.5, 1.5))
    data = np.random.default_rng(1).laplace(0.3, 0.8, SIZE)
    models = {"normal": of_normals, "laplace": of_laplace}
    found = od.compare(
        {name: od.Model(prior, one, data, summary=mean_and_variance) for name, one in models.items()},
        budget=2000, draws=500, seed=1,
    )  # fmt: skip
    assert 0.2 < found["laplace"].probability < 0.8
    assert "tails" in {one.label for one in found.beyond} and found.level != "green"
    assert any("the summaries leave out what tells the models apart" in one for one in found.findings)


def test_checks_that_tell_nothing_more_are_not_named():
    rng, named = np.random.default_rng(8), 0
    for _ in range(40):
        label = np.repeat([0, 1], 50)
        rows = np.column_stack([rng.normal(label, 1.0), rng.normal(size=100), rng.normal(size=100)])
        named += len(beyond_summaries(rows, label, 1, ["s", "a", "b"])) > 0
    assert named <= 4
    rows = np.column_stack([rng.normal(size=100), rng.normal(2 * label, 1.0)])
    assert [one.label for one in beyond_summaries(rows, label, 1, ["s", "a"])] == ["a"]


# --- cases that end in a clear statement --------------------------------------------------------------------


def test_a_model_that_cannot_make_the_data():
    wide = {"right": shifted(1.0), "wrong": shifted(30.0, sd=0.01)}
    found = od.compare(wide, budget=600, draws=200, seed=1)
    assert found.best == "right" and found["wrong"].near == 0 and found["wrong"].probability < 1e-3
    assert any("no simulation of wrong came near the data" in one for one in found.findings)
    assert found["right"].low > 0.9 and found["wrong"].high < 0.1
    assert found["wrong"].simulations < found["right"].simulations
    assert "wrong does not reproduce the data" in " ".join(found.findings)
    # What is said rests on the bound, and has no more digits than that.
    assert "at least" in found.headline and "or more" in found.headline and "probability 1 (" in found.headline
    assert found["wrong"].told == "0" and found["wrong"].interval.startswith("0–0.0")
    assert found.notes[0].endswith("without a trial: fewer than two models came near the data often enough.")


def test_a_model_whose_simulations_all_fail(monkeypatch):
    # All simulations of the first model, more than a run of a single model would make.
    monkeypatch.setattr(failures, "ALL_FAILED", 20)

    @od.batched
    def failing(rng, mu):
        return np.nan * rng.normal(mu, 1.0)

    broken = od.Model(od.Prior(mu=stats.norm(0, 1)), failing, 1.2)
    for models in ({"good": shifted(1.0), "broken": broken}, {"broken": broken, "good": shifted(1.0)}):
        found = od.compare(models, budget=400, draws=200, seed=1)
        assert found.best == "good" and found["broken"].probability == 0.0
        assert any("every simulation of broken failed" in one for one in found.findings)
        assert found.posteriors["broken"].shape == (1, 0) and found.predict(20).shape == (20,)


def test_a_model_that_fails_does_not_change_how_the_others_are_compared(brief, unrendered, tmp_path):
    @od.batched
    def failing(rng, mu):
        return np.nan * rng.normal(mu, 1.0)

    broken, far = od.Model(od.Prior(mu=stats.norm(0, 1)), failing, 1.2), shifted(60.0, sd=0.01)
    found = od.compare({"broken": broken, **PAIR, "far": far}, budget=1200, draws=200, seed=1)
    assert found.decided.unavailable == "" and "learnt likelihoods" in [one.route for one in found.trial]
    assert found["broken"].probability == 0.0 and math.isnan(found["broken"].misfit)
    share = found["two"].probability / (found["two"].probability + found["zero"].probability)
    value, se = found.log_bayes_factor("two", "zero")
    assert abs(value - math.log(exact_pair() / (1 - exact_pair()))) < stats.t.isf(1e-3, FREEDOM) * se < 2.0
    assert share == pytest.approx(1 / (1 + math.exp(-value)))
    assert found.log_bayes_factor("two", "broken")[0] == math.inf
    assert "not compared" in found.report(tmp_path / "models.html").read_text()


def test_two_models_without_evidence_have_no_bayes_factor():
    none = RouteEstimate(np.full(2, -np.inf), np.diag([np.inf, np.inf]))
    assert all(map(math.isnan, _log_factor(none, 0, 1))) and _log_factor(none, 1, 1) == (0.0, 0.0)


def test_all_models_that_fail_are_an_error():
    @od.batched
    def failing(rng, mu):
        return np.nan * rng.normal(mu, 1.0)

    broken = od.Model(od.Prior(mu=stats.norm(0, 1)), failing, 1.2)
    with pytest.raises(od.SimulationError, match="simulations failed"):
        od.compare({"a": broken, "b": broken}, budget=400, seed=1)


@pytest.mark.slow
def test_models_of_one_and_of_twelve_parameters():
    names = [f"b{k}" for k in range(12)]

    @od.batched
    def twelve(rng, **b):
        return sum(b.values()) / math.sqrt(12) + rng.standard_normal(len(b["b0"]))

    large = od.Model(od.Prior(**{name: stats.norm(0, 1) for name in names}), twelve, 1.2)
    small = od.Model(od.Prior(mu=stats.norm(0, 1)), normal, 1.2)
    found = od.compare({"one": small, "twelve": large}, budget=1000, draws=200, seed=1)
    # Both have the same evidence.
    assert found["one"].low < 0.5 < found["one"].high and found.posteriors["twelve"].names == tuple(names)
    assert "do not decide between" in found.headline


def test_all_models_may_be_wrong_and_that_is_said_first():
    wrong = {"a": shifted(0.0, 40.0), "b": shifted(2.0, 40.0)}
    found = od.compare(wrong, budget=600, draws=200, seed=1)
    assert found.headline.startswith("None of the models reproduces the data") and found.level == "red"
    assert found.summary().splitlines()[1].startswith("red: None of the models")


@pytest.mark.parametrize(
    ("models", "more", "words"),
    [
        (lambda: [shifted(0.0)], {}, "must be a dict of two models or more"),
        (lambda: {"a": shifted(0.0)}, {}, "two models or more to compare, got 1"),
        (lambda: {"a": shifted(0.0), "b": 3}, {}, "must be an od.Model"),
        (lambda: {"a": shifted(0.0), "": shifted(1.0)}, {}, "names of models must be texts"),
        (lambda: {"a": shifted(0.0), "b": shifted(0.0, observed=[1.2, 1.3])}, {}, "b has other summaries than a"),
        (lambda: {"a": shifted(0.0), "b": shifted(0.0, observed=1.3)}, {}, "b has other observed data than a"),
        (
            lambda: {"a": shifted(0.0, summary=lambda y: 2 * y), "b": shifted(0.0, summary=lambda y: 3 * y)},
            {},
            "b has another summary than a",
        ),
        # They agree on the data alone.
        (
            lambda: {"a": shifted(0.0, [1, 2, 3], summary=np.mean), "b": shifted(0.0, [1, 2, 3], summary=np.median)},
            {},
            "b has another summary than a",
        ),
        (
            lambda: {"a": shifted(0.0, 2.0, summary=lambda y: y + 2), "b": shifted(0.0, 2.0, summary=lambda y: 2 * y)},
            {},
            "b has another summary than a",
        ),
        (
            lambda: {
                "a": shifted(0.0, distance=lambda simulated, observed: abs(simulated - observed)),
                "b": shifted(0.0, distance=lambda simulated, observed: (simulated - observed) ** 2),
            },
            {},
            "b has another distance than a",
        ),
        (lambda: PAIR, {"prior": {"zero": 0.5, "two": 0.4}}, "must sum to 1, got 0.9"),
        (lambda: PAIR, {"prior": {"zero": 1.0}}, "a probability for each of zero, two"),
        (lambda: PAIR, {"prior": {"zero": 1.0, "two": 0.0}}, "must be positive"),
        (lambda: PAIR, {"budget": 50}, "budget = 50 is too small for 2 models: give at least 200"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_simulated(models, more, words):
    with pytest.raises(ValueError, match=words):
        od.compare(models(), **{"budget": 1000, "seed": 1, **more})


def test_summaries_that_are_written_twice_are_the_same():
    """One is written in other words; one knows the observed data alone."""
    once, twice = (shifted(0.0, [1.0, 2.5], summary=one) for one in (np.mean, lambda y: (y[0] + y[1]) / 2))
    assert checked_models({"a": once, "b": twice})[0] == ("a", "b")

    def strict(y):
        if list(y) != [1.0, 2.5]:
            raise ValueError("no such data")
        return 1.75

    assert checked_models({"a": once, "b": shifted(0.0, [1.0, 2.5], summary=strict)})[0] == ("a", "b")


def test_distances_that_are_written_twice_are_the_same():
    once, twice = (
        shifted(0.0, distance=one) for one in (lambda s, y: abs(s - y), lambda s, y: max(float(s - y), float(y - s)))
    )
    assert checked_models({"a": once, "b": twice})[0] == ("a", "b")


def test_a_distance_of_the_users_own():
    def far(simulated, observed):
        return float(abs(simulated - observed))

    models = {name: shifted(centre, distance=far) for name, centre in (("zero", 0.0), ("two", 2.0))}
    found = od.compare(models, budget=600, draws=200, seed=1)
    assert found.decided.unavailable == "the distance is your own" and found.route != "learnt likelihoods"
    assert abs(found["two"].probability - exact_pair()) < 0.2


# --- files, workers, budgets --------------------------------------------------------------------------------


def same(one, other):
    """Whether two comparisons are the same, to the byte."""
    assert one.models == other.models and one.summary() == other.summary()
    assert one.cost[:6] == other.cost[:6]
    for name in one.names:
        for parameter, draws in one.posteriors[name].draws.items():
            assert draws.tobytes() == other.posteriors[name].draws[parameter].tobytes()


def one_by_one(rng, mu):
    return rng.normal(mu, 1.0)


def plain(centre):
    return od.Model(od.Prior(mu=stats.norm(centre, 0.5)), one_by_one, 1.2)


def test_the_same_bytes_from_a_file_from_workers_and_after_a_stop(tmp_path):
    models = {"zero": plain(0.0), "two": plain(2.0)}
    given = {"budget": 400, "draws": 100, "seed": 5}
    whole = od.compare(models, **given)
    file = tmp_path / "models.db"
    same(whole, od.compare(models, store=file, segment=1e-3, **given))
    same(whole, od.compare(models, store=file, **given))
    same(whole, od.compare(models, workers=2, **given))
    with pytest.raises(od.StoreError, match="another"):
        od.compare({"zero": plain(0.0), "other": plain(2.0)}, store=file, **given)
    with pytest.raises(od.StoreError, match=r"holds what od\.compare has measured"):
        od.load(file)


def test_a_kill_in_the_middle_changes_no_byte(tmp_path):
    """What the file holds when the run is interrupted is used, and nothing is simulated twice."""
    file, counted, given = tmp_path / "models.db", str(tmp_path / "count"), {"budget": 400, "draws": 100, "seed": 5}

    def simulate(rng, mu):
        with open(counted, "ab") as count:
            count.write(b".")
        if os.path.getsize(counted) == 250:
            os.kill(os.getpid(), signal.SIGINT)
        return rng.normal(mu, 1.0)

    priors = {name: od.Prior(mu=stats.norm(centre, 0.5)) for name, centre in (("zero", 0.0), ("two", 2.0))}
    models = {name: od.Model(prior, simulate, 1.2) for name, prior in priors.items()}
    with pytest.raises(KeyboardInterrupt):
        od.compare(models, store=file, segment=1e-3, **given)
    resumed = od.compare(models, store=file, segment=1e-3, **given)
    # At most one block is made again.
    assert os.path.getsize(counted) <= resumed.cost.simulations + 32
    same(resumed, od.compare(models, **given))


def test_a_raised_budget_uses_what_was_done(tmp_path):
    file = tmp_path / "models.db"
    small = od.compare(PAIR, budget=400, draws=100, seed=2, store=file)
    large = od.compare(PAIR, budget=800, draws=100, seed=2, store=file)
    assert small.cost.simulations <= 400 < large.cost.simulations <= 800


@pytest.mark.parametrize("budget", [200, 333, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_budget_is_never_passed(budget):
    three = {**PAIR, "one": shifted(1.0)} if budget > 300 else PAIR
    assert od.compare(three, budget=budget, draws=100, seed=3).cost.simulations <= budget


def test_time_that_runs_out():
    import time

    def slow(rng, mu):
        time.sleep(2e-3)
        return rng.normal(mu, 1.0)

    models = {name: od.Model(od.Prior(mu=stats.norm(0, 0.5)), slow, 1.2) for name in ("a", "b")}
    with pytest.raises(TimeoutError, match="before every model had its first simulations"):
        od.compare(models, budget=1000, seed=1, max_seconds=0.05)


def test_blocks_begin_behind_what_is_done(pair):
    from onedraw.samplers.infer import Inference

    runs = [Inference(model, None, 1, "reject") for model in (plain(0.0), plain(2.0))]
    every = list(blocks_of(runs, [40, 40], 0))
    assert sum(one.size for one in every) == 80 and [one.model for one in every] == [0, 0, 1, 1]
    assert list(blocks_of(runs, [40, 40], 40)) == every[2:]


# --- the page and the command -------------------------------------------------------------------------------


def test_the_page_has_everything(pair, tmp_path):
    text = pair.report(tmp_path / "models.html").read_text()
    assert text.count("<img") == 4 and "<script" not in text and "http:" not in text
    assert pair.headline in text and f'class="verdict {pair.level}"' in text
    assert "How often the choice is wrong" in text and "learnt likelihoods" in text
    # All may be wrong: said before the probabilities.
    assert text.index("Can the models reproduce the data?") < text.index("Probabilities of the models")
    assert text == pair.report(tmp_path / "again.html").read_text()


BROKEN = """[...document.querySelectorAll('th')].filter(cell => {
  const text = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), range = document.createRange();
  for (let node; node = text.nextNode();)
    for (const word of node.data.matchAll(/\\S+/g)) {
      range.setStart(node, word.index); range.setEnd(node, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map(r => Math.round(r.top))).size > 1) return true;
    }
}).map(cell => cell.textContent)"""


@needs_chromium
def test_the_page_fits_its_window(pair, tmp_path):
    names = {"zero": "incommensurable", "two": "two"}
    other = {
        one: {names[name]: value for name, value in getattr(pair, one).items()}
        for one in ("prior", "posteriors", "misfits")
    }
    page = replace(pair, names=tuple(names.values()), **other).report(tmp_path / "models.html")
    browser = Browser(tmp_path)
    try:
        for width, dark in ((1200, False), (400, True)):
            browser.open(page, width, dark=dark)
            assert browser.run("[innerWidth, document.documentElement.scrollWidth]") == [width, width]
            assert browser.run("[...document.images].map(i => i.naturalWidth > 0 && i.width > 250)") == [True] * 4
            # No word of a table's head is broken: every column is as wide as its longest word.
            assert browser.run(BROKEN) == []
        assert browser.console == []
    finally:
        browser.close()


MODEL = """
import onedraw as od
from scipy import stats

@od.batched
def simulate(rng, mu):
    return rng.normal(mu, 1.0)

model = od.Model(od.Prior(mu=stats.norm(CENTRE, 0.5)), simulate, observed=1.2)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, centre in (("zero", 0), ("two", 2)):
        (tmp_path / f"{name}.py").write_text(MODEL.replace("CENTRE", str(centre)))
    return tmp_path


def test_the_command(folder, unrendered):
    command = ["compare", "zero.py", "two.py", "--budget", "400", "--draws", "100", "--seed", "1"]
    ran = CliRunner().invoke(main, command)
    assert ran.exit_code == 0, ran.output
    assert "comparison of zero, two" in ran.stdout and (folder / "models.db").exists()
    assert "Probabilities of the models" in (folder / "models.html").read_text()
    told = json.loads(CliRunner().invoke(main, [*command, "--json"]).stdout)
    assert set(told["models"]) == {"zero", "two"} and 0 < told["models"]["two"]["probability"] < 1
    assert told["cost"]["simulations"] <= 400 and told["path"] == "models.html"
    command[1:3] = ["a=zero.py", "b=two.py"]
    again = CliRunner().invoke(main, [*command, "-o", "other.html", "--prior", "a=0.1", "--prior", "b=0.9", "--json"])
    assert json.loads(again.stdout)["models"]["b"]["prior"] == 0.9


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (["zero.py", "zero.py", "--budget", "400"], 2, "two models would be called 'model'"),
        (["zero.py", "--budget", "400"], 1, "two models or more to compare, got 1"),
        (["zero.py", "two.py"], 2, "Missing option '--budget'"),
        (["zero.py", "two.py", "--budget", "400", "--prior", "zero"], 2, "must be LABEL=NUMBER"),
        (["zero.py", "two.py", "--budget", "400", "-o", "a.db"], 2, "would both be a.db"),
        (["zero.py", "three.py", "--budget", "400"], 1, "there is no file 'three.py'"),
    ],
)
def test_a_command_that_cannot_be_carried_out(folder, more, code, words):
    ran = CliRunner().invoke(main, ["compare", *more])
    assert ran.exit_code == code and words in ran.output
