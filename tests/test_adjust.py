"""Regression adjustment against posteriors in closed form, and the trial that decides about it."""

import numpy as np
import pytest
from scipy import stats

import onedraw as od
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.estimators.weights import effective, systematic
from onedraw.model.coordinates import Support, support_of
from onedraw.proposals.mixture import local_roots
from onedraw.results import regression, trial
from onedraw.results.learned_summary import learn
from onedraw.results.regression import (
    AdjustedDraws,
    Method,
    Neighbourhood,
    clusters,
    effective_draws,
    estimate,
    ridge,
    smoothed,
    with_clusters,
)
from onedraw.results.trial import affordable, choose_method, preference, ranks, score_methods
from tests.deadlines import LONG, up_after

DIM = 2
NOISE = 0.5
OBSERVED = np.array([1.0, -0.5])
GAIN = 1.0 / (1.0 + NOISE**2)
"""The posterior of theta ~ N(0, I), s ~ N(theta, NOISE^2 I) is N(GAIN s, GAIN NOISE^2 I)."""


def linear_normal(n, seed=1, scale=None):
    """Draws of a linear normal model; with a scale, theta comes from N(0, scale^2) and has weights."""
    rng = np.random.default_rng(seed)
    theta = rng.standard_normal((n, DIM)) * (1.0 if scale is None else scale)
    rows = theta + NOISE * rng.standard_normal((n, DIM))
    log_weight = np.zeros(n)
    if scale is not None:
        log_weight = (stats.norm.logpdf(theta) - stats.norm.logpdf(theta, scale=scale)).sum(axis=1)
    return Neighbourhood(theta, rows, log_weight, np.ones(DIM, dtype=bool))


def two_moons(n, seed=1):
    rng = np.random.default_rng(seed)
    theta = rng.uniform(-1, 1, (n, 2))
    angle, radius = rng.uniform(-np.pi / 2, np.pi / 2, n), 0.1 + 0.01 * rng.standard_normal(n)
    shift = np.column_stack([-np.abs(theta.sum(axis=1)), theta[:, 1] - theta[:, 0]]) / np.sqrt(2)
    rows = np.column_stack([radius * np.cos(angle) + 0.25, radius * np.sin(angle)]) + shift
    free = Support(np.full(2, -1.0), np.full(2, 1.0)).unbounded(theta)
    return Neighbourhood(free, rows / rows.std(axis=0), np.zeros(n), np.ones(2, dtype=bool))


def check_moments(found):
    """Mean and covariance within four standard errors of the closed form."""
    draws = effective(found.weights)
    mean = found.weights @ found.theta
    away = found.theta - mean
    covariance = (away * found.weights[:, None]).T @ away
    variance = GAIN * NOISE**2
    assert np.all(np.abs(mean - GAIN * OBSERVED) < 4 * np.sqrt(2 * variance / draws))
    assert np.all(np.abs(np.diag(covariance) / variance - 1) < 4 * np.sqrt(2 / draws))
    assert abs(covariance[0, 1]) < 4 * variance / np.sqrt(draws)


@pytest.mark.parametrize("scale", [None, 1.5, 0.8])
def test_linear_regression_is_exact_on_a_linear_normal_model(scale):
    near = linear_normal(20_000, scale=scale)
    found = estimate(near, OBSERVED, Method(0, 12_000, "linear"))
    check_moments(found)
    plain = estimate(near, OBSERVED, Method(0, 12_000, "none"))
    assert np.any(np.abs(plain.weights @ plain.theta - GAIN * OBSERVED) > 0.1)


def test_products_and_clusters_leave_a_linear_model_as_it_is():
    near = with_clusters(linear_normal(20_000), OBSERVED)
    check_moments(estimate(near, OBSERVED, Method(0, 12_000, "products")))
    pieces = estimate(near, OBSERVED, Method(0, 4_000, "linear", 2))
    assert np.all(np.abs(pieces.weights @ pieces.theta - GAIN * OBSERVED) < 0.15)


def test_the_variance_does_not_shrink_with_many_coefficients_and_few_draws():
    """Over many small samples the adjusted variance, corrected for its own mean, is that of the posterior."""
    variances = []
    for seed in range(400):
        found = estimate(linear_normal(40, seed), np.zeros(2), Method(0, 30, "linear"))
        away = found.theta - found.weights @ found.theta
        variances.append(found.weights @ away**2)
    share, error = np.mean(variances) / (GAIN * NOISE**2), np.std(variances) / np.sqrt(800) / (GAIN * NOISE**2)
    # Three coefficients of about 23 effective draws would take 13 % of it.
    assert error < 0.015 and abs(share - 1) < 4 * error


@pytest.mark.parametrize("local", [False, True])
def test_smoothing_keeps_mean_and_variance(local):
    near = linear_normal(2000)
    found = estimate(near, OBSERVED, Method(0, 1500, "linear"))
    rng = np.random.default_rng(1)
    drawn, origin = smoothed(rng, found, 40_000, Method(0, 1500, "linear", local=local))
    mean, away = found.weights @ found.theta, found.theta - found.weights @ found.theta
    variance = found.weights @ away**2
    assert np.all(np.abs(drawn.mean(axis=0) - mean) < 0.02)
    # Local noise has the variance of the neighbours, a few percent of the whole.
    assert np.all(np.abs(drawn.var(axis=0) / variance - 1) < (0.03 if local else 0.02))
    assert set(origin) <= set(range(len(found.source)))


def test_bounds_are_found_and_kept():
    prior = od.Prior(a=stats.uniform(-2, 3), b=stats.gamma(2.0, loc=1.0), c=stats.norm(0, 1), k=stats.poisson(3))
    support = support_of(prior)
    assert np.allclose(support.low, [-2, 1, -np.inf, -np.inf]) and np.allclose(support.high, [1] + [np.inf] * 3)
    theta = prior.sample(np.random.default_rng(1), 1000)
    assert np.allclose(support.bounded(support.unbounded(theta)), theta)
    wild = support.bounded(np.random.default_rng(2).normal(0, 100, (1000, 4)))
    assert wild[:, 0].min() >= -2 and wild[:, 0].max() <= 1 and wild[:, 1].min() >= 1
    negative = support_of(
        od.Prior.joint(
            ["x"], lambda rng, n: -(rng.random((n, 1)) ** 2), lambda t: np.where(t[:, 0] <= 0, t[:, 0], -np.inf)
        )
    )
    assert negative.low[0] == -np.inf and abs(negative.high[0]) < 1e-9


def test_the_jacobian_is_that_of_the_transform():
    support = Support(np.array([-1.0, 0.0, -np.inf, -np.inf]), np.array([2.0, np.inf, 3.0, np.inf]))
    free = np.random.default_rng(1).standard_normal((50, 4))
    step = 1e-6
    numeric = np.zeros(50)
    for j in range(4):
        up = free.copy()
        up[:, j] += step
        numeric += np.log((support.bounded(up) - support.bounded(free))[:, j] / step)
    assert np.allclose(support.log_jacobian(free), numeric, atol=1e-4)


def held_out(near, observed):
    return np.argsort(near.distances(observed))[:64]


def test_the_trial_says_yes_on_a_linear_model():
    rng = np.random.default_rng(1)
    theta = rng.standard_normal((1500, 6))
    near = Neighbourhood(theta, theta + NOISE * rng.standard_normal((1500, 6)), np.zeros(1500), np.ones(6, dtype=bool))
    near = with_clusters(near, np.zeros(6))
    decision = choose_method([near], held_out(near, np.zeros(6)))
    assert decision.method.terms != "none" and decision.method.clusters == 1
    assert decision.gain > 2 * decision.gain_se > 0
    assert 0.8 < decision.coverage <= 1.0
    assert "adjusted by linear regression" in decision.words()


def test_the_trial_says_no_to_one_regression_for_two_unlike_clusters():
    """One cluster is thin and does not depend on the data, the other does: one slope for both blurs the first."""
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((6000, 1))
    thin = rng.random((6000, 1)) < 0.5
    theta = np.where(thin, 3 + 0.01 * rng.standard_normal((6000, 1)), -3 + 6 * rows + rng.standard_normal((6000, 1)))
    near = Neighbourhood(theta, rows, np.zeros(6000), np.ones(1, dtype=bool))
    decision = choose_method([near], held_out(near, np.zeros(1)))
    assert decision.method.terms == "none" and decision.gain < -2 * decision.gain_se
    assert "not adjusted" in decision.words()


def test_the_trial_finds_a_regression_in_clusters_for_two_crescents():
    near = with_clusters(two_moons(6000), np.zeros(2))
    decision = choose_method([near], held_out(near, np.zeros(2)))
    assert decision.method.clusters > 1 and decision.method.local and decision.gain > 2 * decision.gain_se


def test_a_simulation_that_is_picked_several_times_counts_as_often():
    """Picks are by weight: without their multiplicity means would be over the proposals, and not over the prior."""
    rng = np.random.default_rng(2)
    theta = rng.standard_normal((400, 1))
    near = Neighbourhood(theta, theta + rng.standard_normal((400, 1)), np.zeros(400), np.ones(1, dtype=bool))
    picked, times = held_out(near, np.zeros(1))[:20], 1 + np.arange(20) % 7
    once, often = choose_method([near], picked), choose_method([near], np.repeat(picked, times))
    assert sorted(often.held_out.tolist()) == sorted(picked.tolist()) and often.tried == 20
    expected = dict(zip(picked.tolist(), (times / times.sum()).tolist(), strict=True))
    assert often.share.tolist() == pytest.approx([expected[one] for one in often.held_out.tolist()])
    assert once.share.tolist() == pytest.approx([1 / 20] * 20)
    every = choose_method([near], np.repeat(picked, 3))
    assert (
        every[1:5] == pytest.approx(once[1:5])
        and every.method == once.method
        and np.array_equal(every.scores, once.scores)
    )
    # The gain of a set of which one simulation is nearly all is that of the simulation.
    heavy = choose_method([near], np.concatenate([picked, np.repeat(picked[:1], 10**5)]))
    other = choose_method([near], np.concatenate([picked, np.repeat(picked[1:2], 10**5)]))
    assert heavy.gain != pytest.approx(other.gain, abs=1e-3) and min(heavy.coverage, 1 - heavy.coverage) < 1e-3


def test_the_answer_is_not_among_the_draws_that_are_judged():
    """With the simulation itself left in, the score of a small region would be that of knowing the answer."""
    near = linear_normal(300)
    j = 7
    left_out = estimate(near, near.rows[j], Method(0, 20, "none"), left_out=j)
    assert j not in left_out.source
    assert j in estimate(near, near.rows[j], Method(0, 20, "none")).source
    noise = Neighbourhood(
        np.random.default_rng(3).standard_normal((2000, 2)), near_noise(), np.zeros(2000), near.continuous
    )
    scores, _ = score_methods([noise], [Method(0, 25, "none", local=True)], np.arange(64), np.eye(2))
    # Rows say nothing here, so no estimate can beat the density of a standard normal, up to the constant left out.
    best = -0.5 * np.square(noise.theta[:64]).sum(axis=1)
    assert scores.mean() < best.mean() + 4 * scores.std() / 8


@pytest.mark.parametrize(("whole", "together", "most"), [(False, 8, 800), (True, 2, 2**21), (False, 2, 2**21)])
def test_several_held_out_simulations_are_scored_as_each_alone(whole, together, most, monkeypatch):
    """Also if many are equally far, if clusters are too small for a regression, and if parameters are whole numbers."""
    monkeypatch.setattr(regression, "FEWEST_TOGETHER", together)
    monkeypatch.setattr(trial, "MOST_ORDERED", most)
    rng = np.random.default_rng(5)
    theta = np.rint(3 * rng.standard_normal((400, 2)))
    rows = np.rint(theta + rng.standard_normal((400, 2))) if whole else theta + rng.standard_normal((400, 2))
    labels = (np.arange(400) % 2, np.minimum(np.arange(400) % 40, 3))
    near = Neighbourhood(theta, rows, 0.1 * rng.standard_normal(400), np.array([True, not whole]), labels)
    methods = [
        Method(0, number, terms, clusters, local)
        for number in (60, 398)
        for terms, clusters in (("none", 1), ("linear", 1), ("linear", 2), ("linear", 4), ("products", 1))
        for local in (False, True)
    ]
    held_out, scale = np.array([3, 50, 51, 200, 399]), np.array([[0.7, 0.2], [0.0, 0.4]])
    scores, covered = score_methods([near], methods, held_out, scale)
    for k in range(5):
        alone = score_methods([near], methods, held_out[k : k + 1], scale)
        assert scores[:, k] == pytest.approx(alone[0][:, 0], rel=1e-8)
        assert covered[:, k].tolist() == alone[1][:, 0].tolist()
    # Each regression is that of its cluster alone.
    fit, there = estimate(near, np.zeros(2), Method(0, 398, "linear", 2)), near.labels[0]
    weights = near.weights(fit.source) * np.maximum(1 - (near.distances(np.zeros(2))[fit.source] / fit.eps) ** 2, 1e-9)
    for cluster in range(2):
        mine = there[fit.source] == cluster
        some = fit.source[mine]
        own = ridge(rows, theta, some[None], np.zeros((1, 2)), weights[None, mine])
        assert fit.theta[mine][:, 0] == pytest.approx(own.moved(rows[some], theta[some])[0, :, 0], abs=1e-9)


@pytest.mark.parametrize("terms", ["linear", "products"])
def test_regressions_fitted_together_are_those_fitted_alone(terms):
    """Around far data, with a summary that is constant, and with simulations that only some of them use."""
    rng = np.random.default_rng(3)
    rows, theta = 40.0 + rng.standard_normal((700, 3)), rng.standard_normal((700, 2))
    rows[:, 1] = 1 / 3
    observed, weights = rows[:9] + np.arange(9)[:, None] * [3.0, 0.0, 1.0], rng.random((9, 700))
    weights[3:, ::5] = 0.0
    fit, everything = ridge(rows, theta, np.arange(700), observed, weights, terms), np.arange(700)[None]
    for k in range(9):
        alone = ridge(rows, theta, everything, observed[k : k + 1], weights[k : k + 1], terms)
        np.testing.assert_allclose(fit.moved(rows, theta)[k], alone.moved(rows, theta)[0], rtol=1e-8, atol=1e-8)
        assert fit.effective[k] == pytest.approx(alone.effective[0])


def test_no_more_draws_are_moved_than_are_asked_for():
    near, observed = linear_normal(500), np.stack([OBSERVED, 0.5 * OBSERVED])
    orders = [regression.ordered(near, one, 500) for one in observed]
    for method in (Method(0, 400, "linear"), Method(0, 400, "none")):
        ((_, whole),), ((_, some),) = (
            list(regression.estimates(near, observed, method, orders, most)) for most in (None, 150)
        )
        assert np.array_equal(some.source, whole.source[:, ::3])
        np.testing.assert_allclose(some.theta, whole.theta[:, ::3], rtol=1e-12)
        assert some.weights.sum(axis=1) == pytest.approx(1.0)
        np.testing.assert_allclose(some.weights / some.weights[:, :1], (whole.weights / whole.weights[:, :1])[:, ::3])


def near_noise():
    return np.random.default_rng(4).standard_normal((2000, 2))


def test_ranks_are_uniform_and_tell_a_wrong_method():
    """Of a linear normal model: by regression uniform, by draws from a region that is too wide in the middle."""
    rng = np.random.default_rng(1)
    free = rng.standard_normal((4000, 1))
    near = Neighbourhood(free, free + 0.5 * rng.standard_normal((4000, 1)), np.zeros(4000), np.ones(1, dtype=bool))
    held_out = np.arange(0, 4000, 10)
    right = ranks(near, Method(0, 1000, "linear"), held_out)[:, 0]
    assert stats.kstest(right, "uniform").pvalue > 1e-3
    wrong = ranks(near, Method(0, 3998, "none"), held_out)[:, 0]
    assert stats.kstest(wrong, "uniform").pvalue > 1e-3  # the prior's ranks are uniform, too,
    close = np.flatnonzero(np.abs(near.rows[:, 0]) < 0.1)  # but not near given data
    assert stats.kstest(ranks(near, Method(0, 3998, "none"), close)[:, 0], "uniform").pvalue < 1e-3
    assert stats.kstest(ranks(near, Method(0, 1000, "linear"), close)[:, 0], "uniform").pvalue > 1e-3


def test_a_simulation_is_not_ranked_among_its_own_draws():
    rng = np.random.default_rng(1)
    free = rng.standard_normal((400, 1))
    near = Neighbourhood(free, rng.standard_normal((400, 1)), np.zeros(400), np.ones(1, dtype=bool))
    above = ranks(near, Method(0, 1, "none"), np.arange(400))
    assert set(np.unique(above)) == {0.0, 1.0} and abs(above.mean() - 0.5) < 4 * 0.5 / np.sqrt(400)


def test_equal_whole_numbers_are_ranked_by_chance():
    rng = np.random.default_rng(1)
    free = np.column_stack([np.full(1000, 3.0), rng.standard_normal(1000)])
    near = Neighbourhood(free, rng.standard_normal((1000, 1)), np.zeros(1000), np.array([False, True]))
    found = ranks(near, Method(0, 500, "none"), np.arange(0, 1000, 3))
    assert stats.kstest(found[:, 0], "uniform").pvalue > 1e-3
    # A number is not confused with the next, and others are left alone.
    scored = near.jittered(free, np.arange(1000))
    assert np.array_equal(scored[:, 1], free[:, 1]) and np.array_equal(np.rint(scored[:, 0]), free[:, 0])


def test_what_a_draw_adds_to_the_mean():
    """The influence of each draw is the derivative of the moved draws' mean, which is linear in them."""
    rng = np.random.default_rng(1)
    free, rows = rng.standard_normal((60, 1)), rng.standard_normal((60, 2))
    weights = rng.random(60)
    observed = np.array([1.5, 0.3])
    for terms in ("linear", "products"):
        share, given = weights / weights.sum(), (np.arange(60)[None], observed[None], weights[None], terms)
        fit = ridge(rows, free, *given)
        found = fit.influence(rows, share)[0]
        here = share @ fit.moved(rows, free)[0, :, 0]
        for k in range(0, 60, 7):
            moved = free.copy()
            moved[k] += 1.0
            there = share @ ridge(rows, moved, *given).moved(rows, moved)[0, :, 0]
            assert abs(there - here - found[k]) < 1e-6


def test_far_clusters_count_by_their_shares():
    """Each cluster is known exactly, and how much of the posterior it has by the number of draws in it alone."""
    rng = np.random.default_rng(1)
    free = np.repeat([-10.0, 10.0], 300)[:, None] + 0.01 * rng.standard_normal((600, 1))
    log_weight = rng.normal(0, 0.5, 600)
    near = with_clusters(
        Neighbourhood(free, rng.standard_normal((600, 2)), log_weight, np.ones(1, dtype=bool)), np.zeros(2)
    )
    method = Method(0, 598, "linear", 2)
    found = estimate(near, np.zeros(2), method)
    assert effective_draws(near, np.zeros(2), method, found) == pytest.approx(effective(found.weights), rel=0.05)


def test_what_is_preferred_where_scores_do_not_tell():
    methods = [
        Method(0, 400, "linear"), Method(0, 60, "linear"), Method(0, 60, "none"), Method(1, 400, "linear"),
        Method(0, 400, "products"), Method(0, 400, "linear", 2), Method(0, 400, "linear", 3),
    ]  # fmt: skip
    turned = methods[::-1]
    turned.sort(key=preference)
    assert turned == methods


def test_the_best_of_each_kind_is_tried_to_the_end(monkeypatch):
    """Otherwise it could not be told what adjusting gains."""
    monkeypatch.setattr(trial, "ROUNDS", ((8, 2), (16, 1)))
    near = linear_normal(3000)
    decision = choose_method([near], held_out(near, OBSERVED))
    assert decision.tried == 16 and np.isfinite(decision.gain) and decision.gain_se > 0


def test_all_that_are_equally_near_count():
    """Of counts, hundreds may be at distance 0: to take 60 of them would throw the rest away."""
    rng = np.random.default_rng(5)
    theta = rng.gamma(3.0, size=(4000, 1))
    counts = rng.poisson(theta).astype(float)
    near = Neighbourhood(theta, counts, np.zeros(4000), np.ones(1, dtype=bool))
    for number in (10, int((counts == 3).sum())):
        found = estimate(near, np.array([3.0]), Method(0, number, "none"))
        assert sorted(found.source) == np.flatnonzero(counts == 3).tolist()
        assert found.eps == 1.0
    nearly_all = estimate(near, np.array([3.0]), Method(0, 3999, "linear"))
    assert np.isfinite(nearly_all.theta).all() and nearly_all.weights.sum() == pytest.approx(1.0)


def test_weights_count():
    """Draws from a wrong proposal without their weights give another answer."""
    near = linear_normal(20_000, scale=1.5)
    with pytest.raises(AssertionError):
        check_moments(estimate(near._replace(log_weights=np.zeros(20_000)), OBSERVED, Method(0, 12_000, "linear")))


def test_clusters_are_found_and_named_alike_everywhere():
    rng = np.random.default_rng(1)
    free = np.concatenate([rng.normal(-3, 0.3, (300, 2)), rng.normal(3, 0.3, (200, 2))])
    label = clusters(free, np.ones(500), 2, free)
    assert len(set(label[:300])) == len(set(label[300:])) == 1 and label[0] != label[300]
    again = clusters(free, np.ones(500), 2, np.array([[-3.0, -3.0], [3.0, 3.0]]))
    assert again.tolist() == [label[0], label[300]]


@od.batched
def two_normals(rng, a, b):
    return np.column_stack([a, b]) + NOISE * rng.standard_normal((len(a), 2))


MODEL = od.Model(od.Prior(a=stats.norm(0, 1), b=stats.norm(0, 1)), two_normals, OBSERVED)


def test_adjusting_rejection_gives_the_posterior():
    post = od.rejection(MODEL, od.uniform(1.5), draws=3000, seed=1, keep="summaries")
    better = post.adjust()
    for k, name in enumerate(("a", "b")):
        row, exact = better.summary()[name], GAIN * OBSERVED[k]
        assert abs(row.mean - exact) < 5 * row.mcse
        assert abs(row.sd**2 / (GAIN * NOISE**2) - 1) < 0.15
        assert abs(post.summary()[name].mean - exact) > 5 * row.mcse
    assert better.effective < 3000 and "adjusted by" in str(better.notes)
    assert np.array_equal(better.draws["a"], post.adjust().draws["a"])
    assert better.shape == post.shape and post.adjust(draws=70).shape == (1, 70)


def test_keeping_summaries_changes_no_draw(tmp_path):
    plain = od.rejection(MODEL, od.uniform(1.0), draws=200, seed=3)
    kept = od.rejection(MODEL, od.uniform(1.0), draws=200, seed=3, keep="summaries")
    assert np.array_equal(plain.draws["a"], kept.draws["a"]) and kept.bank.rows.shape == (200, 1, 2)
    distance = np.linalg.norm(kept.bank.rows[:, 0] - OBSERVED, axis=1)
    assert np.allclose(distance, kept.distances[0])
    stored = od.rejection(MODEL, od.uniform(1.0), draws=200, seed=3, keep="summaries", store=tmp_path / "run.db")
    again = od.rejection(MODEL, od.uniform(1.0), draws=200, seed=3, keep="summaries", store=tmp_path / "run.db")
    assert np.array_equal(again.bank.rows, kept.bank.rows) and np.array_equal(stored.bank.rows, kept.bank.rows)


@pytest.mark.parametrize("most", [10**6, 24])
def test_each_draw_has_its_own_noise_in_the_shape_of_its_neighbours(monkeypatch, most):
    """Whatever the order in which draws are picked, and in however many parts they are worked on."""
    monkeypatch.setattr(regression, "MOST_ROOTS", most)
    rng = np.random.default_rng(3)
    theta, noise = rng.normal(size=(30, 2)) * [1.0, 5.0], rng.normal(size=(20, 2))
    weights, pick = np.full(30, 1 / 30), rng.integers(0, 30, 20)
    found = regression._shaped(theta, weights, pick, 8, noise)
    for one, place, own in zip(found, pick, noise, strict=True):
        np.testing.assert_allclose(one, local_roots(theta, weights, theta[[place]], 8)[0] @ own, rtol=1e-12)


def test_noise_of_many_draws_has_the_shape_of_their_neighbourhood(monkeypatch):
    """Two long clusters at right angles, of unequal weights: each draw has the noise of its own cluster."""
    monkeypatch.setattr(regression, "MOST_CENTRES", 200)
    rng = np.random.default_rng(1)
    theta = rng.standard_normal((4000, 2)) * np.where(np.arange(4000)[:, None] < 2000, [1.0, 0.05], [0.05, 1.0])
    theta[:2000] += 10.0
    weights = np.where(np.arange(4000) < 2000, 3.0, 1.0) * rng.random(4000)
    around, mass, place = regression._centres(theta, weights, np.arange(4000))
    assert len(around) <= 200 == mass.sum()
    assert np.array_equal(around[place, 0] > 5, theta[:, 0] > 5)
    assert mass[around[:, 0] > 5].sum() == pytest.approx(200 * weights[:2000].sum() / weights.sum(), abs=1.0)
    found = AdjustedDraws(theta, weights / weights.sum(), np.arange(4000), 1.0)
    drawn, pick = regression.smoothed(rng, found, 4000, Method(0, 4000, "linear", local=True))
    first, added = theta[pick, 0] > 5, np.abs(drawn - theta[pick])
    (along, across), (other_across, other_along) = added[first].mean(axis=0), added[~first].mean(axis=0)
    assert along > 2 * across and other_along > 2 * other_across


def test_importance_can_be_adjusted():
    post = od.importance(MODEL, budget=4000, seed=1, keep="all").adjust(draws=4000)
    for k, name in enumerate(("a", "b")):
        row = post.summary()[name]
        assert abs(row.mean - GAIN * OBSERVED[k]) < 5 * row.mcse + 0.02


def test_what_cannot_be_adjusted_is_refused():
    with pytest.raises(ValueError, match="keep='summaries'"):
        od.rejection(MODEL, od.uniform(1.0), draws=50, seed=1).adjust()
    with pytest.raises(ValueError, match="one pseudo-sample"):
        od.rejection(MODEL, od.uniform(1.0), draws=50, seed=1, keep="summaries", pseudo_samples=2).adjust()
    few = od.rejection(MODEL, od.uniform(1.0), draws=5, seed=1, keep="summaries").adjust()
    assert "too few" in few.notes[-1]


def test_adjusted_draws_stay_inside_the_prior():
    model = od.Model(
        od.Prior(p=stats.uniform(0, 1), rate=stats.expon()),
        od.batched(lambda rng, p, rate: np.column_stack([rng.binomial(20, p), rng.exponential(rate)])),
        [19.0, 0.05],
    )
    post = od.rejection(model, od.uniform(4.0), draws=2000, seed=1, keep="summaries").adjust(draws=5000)
    assert post.draws["p"].min() >= 0 and post.draws["p"].max() <= 1 and post.draws["rate"].min() >= 0


def test_fit_summary_finds_the_sufficient_statistic():
    """For 20 normals with an unknown mean the summary must be their mean, up to scale."""
    model = od.Model(od.Prior(mu=stats.norm(0, 2)), lambda rng, mu: rng.normal(mu, 1.0, size=20), np.zeros(20))
    fitted = od.fit_summary(model, budget=2000, terms="linear", seed=1)
    weights = fitted.learnt.coefficients[1:, 0] / fitted.learnt.scale
    cosine = weights.sum() / np.sqrt(20 * np.square(weights).sum())
    assert cosine > 0.99
    assert fitted.cost.simulations == 2000 == len(fitted.theta) == len(fitted.rows)
    row = np.random.default_rng(1).normal(1.0, 1.0, 20)
    assert np.allclose(fitted.model.summary(row), fitted.learnt(row[None])[0])


def test_fit_summary_sees_the_size_of_a_parameter_whose_sign_is_lost():
    rng = np.random.default_rng(1)
    theta = rng.standard_normal((4000, 1))
    rows = (theta**2 + 0.1 * rng.standard_normal((4000, 1))) @ np.ones((1, 3))
    learnt = learn(theta, rows, np.ones(4000), "linear")
    assert learnt is not None
    fitted = learnt(rows)
    assert np.max(np.abs(np.corrcoef(np.abs(theta[:, 0]), fitted[:, -1])[0, 1])) > 0.8


def test_fit_summary_for_batches_and_dicts(quick):
    simulate = od.batched(lambda rng, mu: {"x": rng.normal(mu[:, None], 1.0, (len(mu), 5)), "n": mu * 0 + 5.0})
    model = od.Model(od.Prior(mu=stats.norm(0, 2)), simulate, {"x": np.ones(5), "n": 5.0})
    fitted = od.fit_summary(model, budget=1000, seed=1)
    post = od.infer(fitted, budget=1500, seed=1)
    row = post.summary()["mu"]
    assert post.cost.simulations == 1500
    assert abs(row.mean - 20 / 21) < 5 * row.mcse + 0.05


class Calls:
    """Calls of the simulator; reached through a class, so no part of a model."""

    number = 0


def twenty(rng, mu):
    Calls.number += 1
    return rng.normal(mu, 1.0, size=20)


def test_fit_summary_goes_on_from_its_file(tmp_path):
    model, store = od.Model(od.Prior(mu=stats.norm(0, 2)), twenty, np.zeros(20)), tmp_path / "fit.db"
    Calls.number = 0
    whole = od.fit_summary(model, budget=320, seed=1)
    first = od.fit_summary(model, budget=320, seed=1, store=store)
    assert Calls.number == 640
    again = od.fit_summary(model, budget=320, seed=1, store=store)
    assert Calls.number == 640 and again.cost.simulations == 320
    for fitted in (first, again):
        assert np.array_equal(fitted.rows, whole.rows) and np.array_equal(fitted.theta, whole.theta)
        assert np.array_equal(fitted.learnt.coefficients, whole.learnt.coefficients)
    more = od.fit_summary(model, budget=500, seed=1, store=store)
    assert Calls.number == 820 and more.cost.simulations == 500 == len(more.rows)
    assert np.array_equal(more.rows[:320], whole.rows)
    with pytest.raises(od.StoreError, match="may be raised, not lowered"):
        od.fit_summary(model, budget=100, seed=1, store=store)
    with pytest.raises(od.StoreError, match=r"holds what od\.fit_summary has measured, and no draws"):
        od.load(store)


def test_fit_summary_takes_the_options_of_a_run():
    model = od.Model(od.Prior(mu=stats.norm(0, 2)), twenty, np.zeros(20))
    one, two = (od.fit_summary(model, budget=200, seed=1, workers=workers) for workers in (None, 2))
    assert np.array_equal(one.rows, two.rows)
    Calls.number = 0
    with up_after(50):
        short = od.fit_summary(model, budget=10**7, seed=1, max_seconds=LONG)
    assert 10 < short.cost.simulations == Calls.number == len(short.rows) < 10**7
    with pytest.raises(TypeError, match="there is no option 'worker'"):
        od.fit_summary(model, budget=200, worker=2)


def test_fit_summary_refuses_what_cannot_be():
    model = od.Model(od.Prior(mu=stats.norm(0, 2)), lambda rng, mu: rng.normal(size=3), np.zeros(3))
    with pytest.raises(ValueError, match="no dependence of the data"):
        od.fit_summary(model, budget=500, seed=1)
    with pytest.raises(ValueError, match="terms must be one of"):
        od.fit_summary(model, budget=500, terms="cubes")
    with pytest.raises(ValueError, match="budget must be a whole number of at least 10"):
        od.fit_summary(model, budget=5)
    with pytest.raises(ValueError, match="must be an od"):
        od.fit_summary(3, budget=50)


def test_systematic_picks_by_weight():
    rng = Rng(1, Phase.RESAMPLE).bulk(Purpose.MOVE)
    weights = np.array([0.1, 0.0, 0.6, 0.3])
    counts = np.bincount(systematic(weights, 1000, rng.random()), minlength=4)
    assert np.all(np.abs(counts - 1000 * weights) <= 1)


def test_methods_that_take_too_long_are_not_tried():
    rng = np.random.default_rng(1)
    near = Neighbourhood(rng.normal(size=(500, 2)), rng.normal(size=(500, 3)), np.zeros(500), np.ones(2, dtype=bool))
    methods = [Method(0, 60, "none"), Method(0, 498, "linear"), Method(0, 498, "products"), Method(0, 498, "none")]
    assert affordable([near], methods, 1e12) == methods
    assert affordable([near], methods, 0.0) == [methods[1], methods[3]]


def test_a_round_tries_methods_at_as_many_held_out_simulations_as_it_can_afford(monkeypatch):
    rng = np.random.default_rng(2)
    theta = rng.normal(size=(300, 1))
    near = Neighbourhood(theta, theta + rng.normal(size=(300, 1)), np.zeros(300), np.ones(1, dtype=bool))
    assert choose_method([near], np.arange(100), thorough=False).tried == 24
    monkeypatch.setattr(trial, "MOST_BRIEF_WORK", 0.0)
    assert choose_method([near], np.arange(100), thorough=False).tried == trial.FEWEST_HELD_OUT
