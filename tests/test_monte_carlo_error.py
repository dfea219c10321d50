"""The one account of Monte Carlo error: exact where it can be, and right over repeated runs."""

import math

import numpy as np
import pytest
from scipy import stats

import onedraw as od
from onedraw.paper import finite_chains as exact
from onedraw.results.monte_carlo_error import (
    MANY,
    Draws,
    _pooled,
    _summed,
    mean_and_sd,
    monte_carlo,
    variances,
)
from tests.reference import Exact, toy
from tests.test_efficiency import exact_chain, simulated

RUNS = 200
SHAPES = [(4, 3000), (64, 200), (1024, 20), (512, 10), (1024, 5), (16_384, 3)]


def assert_calibrated(z, runs=RUNS):
    """rms z is 1 and 95 % intervals hold, within three errors of what this many runs can say, and a little for t."""
    z = np.asarray(z)
    assert z.size == runs and np.isfinite(z).all()
    assert abs(np.sqrt(np.mean(z**2)) - 1) < 3 / math.sqrt(2 * runs) + 0.02
    assert abs(np.mean(np.abs(z) < 1.96) - 0.95) < 3 * math.sqrt(0.95 * 0.05 / runs) + 0.005


def widened(added, degrees, beside=None, number=None):
    """What is stated over what is estimated: Student's t, and 2 (1.8 g)² less what noise gives, of what units add.

    `beside` is what they add to a mean that the squares are around, and `number` that of other units.
    """
    size = len(added)
    cubes = 1.8 * (added**3).sum() - (0 if beside is None else 4 * (added @ beside) ** 2)
    squared = size * cubes**2 / (added**2).sum() ** 3 - 6 * 1.8**2 / size
    return math.sqrt(degrees / (degrees - 2) * (1 + 2 * max(squared, 0) / (number or size)))


def autoregressive(rng, shape, rho):
    """x_t = rho x_(t-1) + noise from its stationary law, N(0, 1)."""
    values = rng.standard_normal(shape)
    values[:, 1:] *= math.sqrt(1 - rho**2)
    for step in range(1, shape[1]):
        values[:, step] += rho * values[:, step - 1]
    return values


# Exact identities


@pytest.mark.parametrize("shape", [(MANY, 7), (1024, 5), (300, 1)])
def test_many_chains_have_the_error_of_their_means(shape):
    values = autoregressive(np.random.default_rng(1), shape, 0.9) + 3
    found, means = monte_carlo(values), values.mean(axis=1)
    error = means.std(ddof=1) / math.sqrt(shape[0])
    assert found.mcse == pytest.approx(error * widened(means - means.mean(), shape[0] - 1), rel=1e-9)
    assert found.degrees == shape[0] - 1


def test_few_chains_too_short_for_their_own_error_have_that_of_their_means():
    """With 7 degrees of freedom the mean of t² is 7/5, and the stated error makes up for that."""
    values = autoregressive(np.random.default_rng(2), (8, 20), 0.99)
    error = values.mean(axis=1).std(ddof=1) / math.sqrt(8)
    found = monte_carlo(values)
    assert found.mcse == pytest.approx(error * math.sqrt(7 / 5), rel=1e-12) and found.degrees == 7
    # The variance of one draw is that of the draws and the squared error of their mean, which is not widened.
    assert found.ess == pytest.approx((values.var() + error**2) / found.mcse**2, rel=1e-12)
    assert monte_carlo(values, of="sd").value == pytest.approx(math.sqrt(values.var() + error**2), rel=1e-12)
    alone = monte_carlo(values[:1])
    assert math.isnan(alone.mcse) and "1 x 20 draws are too few" in alone.reason


@pytest.mark.parametrize("rho", [0.5, 0.99])
def test_mean_and_sd_together_are_those_one_by_one(rho):
    values = autoregressive(np.random.default_rng(6), (4, 300), rho)
    for draws in (Draws(), Draws(independent=True), Draws(effective=5.0)):
        assert mean_and_sd(values, draws) == (monte_carlo(values, draws), monte_carlo(values, draws, "sd"))


def test_summing_all_lags_is_the_spread_of_the_chain_means():
    """The estimate within chains turns into the one between chains at the longest lag."""
    values = autoregressive(np.random.default_rng(3), (10, 50), 0.5)
    found, lags = _summed(_pooled(values - values.mean()), len(values), 49)
    assert found == pytest.approx(values.mean(axis=1).var(ddof=1) / 10, rel=1e-9)
    assert lags == pytest.approx(50)


@pytest.mark.parametrize("of", ["mean", "sd"])
@pytest.mark.parametrize("kind", ["draws", "groups", "chains"])
def test_weighted_errors_are_those_of_the_jackknife(kind, of):
    """Each unit left out in turn, by hand; for the sd, of the squares around the mean, which moves too."""
    rng = np.random.default_rng(4)
    shape = (MANY, 6)
    values, weights = rng.gamma(1.0, size=shape), rng.gamma(0.3, size=shape)
    weights[:, 2] = 0
    weights /= weights.sum()
    groups = rng.integers(0, 30, shape)
    units, draws = {
        "draws": (np.arange(values.size).reshape(shape), Draws(weights, independent=True)),
        "groups": (groups, Draws(weights, groups=groups)),
        "chains": (np.repeat(np.arange(MANY), 6).reshape(shape), Draws(weights)),
    }[kind]
    mean, sizes = (weights * values).sum(), []

    def moved(f):
        left_out = []
        for unit in np.unique(units[weights > 0]):
            keep = units != unit
            left_out.append((weights * f)[keep].sum() / weights[keep].sum())
        sizes.append(len(left_out))
        return np.array(left_out) - (weights * f).sum()

    added = -moved(values if of == "mean" else (values - mean) ** 2)
    size = sizes[0]
    by_hand = math.sqrt((size - 1) / size * (added**2).sum())
    by_hand *= widened(added, size - 1, None if of == "mean" else moved(values))
    found = monte_carlo(values, draws, of)
    assert found.mcse == pytest.approx(by_hand / (1 if of == "mean" else 2 * found.value), rel=1e-9)


def test_heavy_weights_widen_the_error():
    """Normal proposals that are too narrow: a run in which no draw is far away knows nothing of such draws."""
    values = 0.85 * np.random.default_rng(11).standard_normal((1000, 1, 300))
    weights = np.exp(-0.5 * values**2 * (1 - 0.85**-2))
    weights /= weights.sum(axis=2, keepdims=True)
    found = [monte_carlo(x**2, Draws(w, independent=True)) for x, w in zip(values, weights, strict=True)]
    z = np.array([(one.value - 1) / one.mcse for one in found])
    assert 0.9 < math.sqrt(np.mean(z**2)) < 1.1
    assert np.mean(np.abs(z) < 1.96) > 0.92


def test_probabilities_quantiles_and_sds_of_independent_normals():
    """Against the errors of large samples: sqrt(p(1-p)/n), the same over the density, sd/sqrt(2n)."""
    size = 40_000
    values = np.random.default_rng(5).standard_normal((1, size))
    drawn = Draws(independent=True)
    assert monte_carlo(values > 1, drawn).mcse == pytest.approx(math.sqrt(0.1587 * 0.8413 / size), rel=0.03)
    spread = monte_carlo(values, drawn, "sd")
    assert spread.value == pytest.approx(values.std(ddof=1), rel=1e-12)
    assert spread.mcse == pytest.approx(1 / math.sqrt(2 * size), rel=0.03)
    for probability in (0.05, 0.5, 0.9):
        found = monte_carlo(values, drawn, probability)
        at = stats.norm.ppf(probability)
        assert found.value == np.quantile(values, probability, method="inverted_cdf")
        assert found.mcse == pytest.approx(
            math.sqrt(probability * (1 - probability) / size) / stats.norm.pdf(at), rel=0.2
        )


def test_the_skewness_of_an_indicator_follows_from_its_share():
    """Of 6 in 200: (1 - 2p)²/(p(1 - p)), which no larger values are missing from."""
    values, p = (np.arange(200) < 6)[None], 0.03
    skewness = (1 - 2 * p) ** 2 / (p * (1 - p))
    wider = 199 / 197 * (1 + 2 * (skewness - 6 / 200) / 200)
    found = monte_carlo(values, Draws(independent=True))
    assert found.mcse == pytest.approx(math.sqrt(wider * p * (1 - p) / 199), rel=1e-12) and found.ess == 200


def test_what_cannot_be_known_says_why():
    drawn = Draws(independent=True)
    one_weight = np.array([[0.0, 1.0, 0.0]])
    for found, reason in (
        (monte_carlo(np.zeros((3, 5))), "all draws are equal"),
        (monte_carlo(np.arange(3.0)[None], Draws(one_weight, independent=True)), "one draw has all the weight"),
        (monte_carlo(np.arange(6.0)[None], Draws(groups=np.zeros((1, 6), int))), "belong to one group"),
        (monte_carlo(np.arange(20.0)[None], drawn, 0.01), "too few effective draws beyond the quantile of 0.01"),
        (monte_carlo(np.arange(20.0)[None], drawn._replace(effective=1.5)), "rests on 1.5 effective simulations"),
        (monte_carlo(np.zeros((1, 0))), "there are no draws"),
    ):
        assert math.isnan(found.mcse) and reason in found.reason
    for wrong in ("median", 0.0, 1.0, 95):
        with pytest.raises(ValueError, match='of must be "mean", "sd" or the probability of a quantile'):
            monte_carlo(np.arange(5.0)[None], drawn, wrong)


def test_few_long_chains_agree_with_arviz():
    """Where arviz is right: both estimates have errors of some 5 %."""
    from arviz_stats.base import array_stats

    for rho in (0.0, 0.5, 0.9):
        values = autoregressive(np.random.default_rng(6), (4, 20_000), rho)
        found = monte_carlo(values)
        assert found.mcse == pytest.approx(float(array_stats.mcse(values, chain_axis=0, draw_axis=1)), rel=0.12)
        assert found.mcse == pytest.approx(math.sqrt((1 + rho) / (1 - rho) / values.size), rel=0.12)
        quantile = float(array_stats.mcse(values, chain_axis=0, draw_axis=1, method="quantile", prob=0.9))
        assert monte_carlo(values, of=0.9).mcse == pytest.approx(quantile, rel=0.15)


# Antithetic chains


@pytest.mark.parametrize("rho", [-0.3, -0.8])
@pytest.mark.parametrize("shape", [(4, 5000), (256, 400)])
def test_kappa_of_antithetic_chains(shape, rho):
    """Autocorrelations that take turns: the sum is small long before they are."""
    values = autoregressive(np.random.default_rng(7), shape, rho)
    kappa = variances(values).kappa
    exact_kappa = (1 + rho) / (1 - rho)
    assert abs(kappa.value - exact_kappa) < 4 * kappa.se
    assert kappa.se < 0.5 * exact_kappa
    # The error of this run is smaller than that of independent draws.
    assert monte_carlo(values).mcse < 0.9 / math.sqrt(values.size)


def test_antithetic_runs_of_a_finite_chain():
    """A flip that is nearly always accepted, against the exact kappa."""
    tau = np.array([0.5, 0.45])
    chain = exact.pseudo_marginal(exact.Problem(np.ones(2), np.eye(2)[::-1], exact.bernoulli(tau)), 16)
    f = np.arange(2.0)
    true = exact.integrated_autocorrelation(f, chain)
    assert true < 0.5
    found = variances(simulated(np.random.default_rng(8), chain, 200, 400)).kappa
    assert abs(found.value - true) < 4 * found.se < true


# Calibration


@pytest.mark.parametrize(("pseudo_samples", "proposal"), [(8, "ring"), (1, "independence")])
@pytest.mark.parametrize(("chains", "draws"), SHAPES)
def test_errors_of_chains_hold(chains, draws, pseudo_samples, proposal):
    runs = RUNS if chains * draws < 40_000 else RUNS // 2
    chain = exact_chain(pseudo_samples, proposal)
    true = float(chain.stationary @ chain.point)
    rng = np.random.default_rng([chains, pseudo_samples])
    values = simulated(rng, chain, chains * runs, draws).reshape(runs, chains, draws)
    found = [monte_carlo(one) for one in values]
    assert_calibrated([(one.value - true) / one.mcse for one in found], runs)


@pytest.mark.parametrize("rho", [0.9, 0.97])
def test_errors_of_few_short_chains_allow_for_their_few_degrees_of_freedom(rho):
    """4 x 120 draws are worth some 25 and 7: their error has 6 and 3 degrees of freedom (rms z was 1.1 and 1.4)."""
    runs = 800
    values = autoregressive(np.random.default_rng(5), (4 * runs, 120), rho).reshape(runs, 4, 120)
    found = [monte_carlo(one) for one in values]
    z = np.array([one.value / one.mcse for one in found])
    assert abs(np.sqrt(np.mean(z**2)) - 1) < 0.1 + 2 / math.sqrt(2 * runs)
    assert 0.92 < np.mean(np.abs(z) < 1.96) < 0.975


def test_errors_of_few_chains_allow_for_skewness():
    """Means of fourth powers: a run of few large ones states too small an error (rms z was 1.16, 91 % held)."""
    runs = 800
    values = autoregressive(np.random.default_rng(21), (4 * runs, 1000), 0.9).reshape(runs, 4, 1000) ** 4
    found = [monte_carlo(one) for one in values]
    z = np.array([(one.value - 3) / one.mcse for one in found])
    assert abs(np.sqrt(np.mean(z**2)) - 1) < 0.02 + 2 / math.sqrt(2 * runs)
    assert np.mean(np.abs(z) < 1.96) > 0.92


@pytest.mark.parametrize("leave", [0.02, 0.1])
def test_errors_of_sds_allow_for_the_mean_that_moves(leave):
    """Two modes that chains stay in: the squares around the mean vary with it (rms z was 1.7 and 1.5, 82 % held)."""
    rng, runs, chains, share = np.random.default_rng(23), 800, 64, 0.6
    upper = rng.random(chains * runs) < share
    values = np.empty((chains * runs, 20))
    for step in range(20):
        values[:, step] = np.where(upper, 1.5, -1.5) + 0.3 * rng.standard_normal(upper.size)
        upper = np.where(rng.random(upper.size) < leave, rng.random(upper.size) < share, upper)
    true = math.sqrt(9 * share * (1 - share) + 0.09)
    found = [monte_carlo(one, of="sd") for one in values.reshape(runs, chains, 20)]
    z = np.array([(one.value - true) / one.mcse for one in found])
    assert abs(np.sqrt(np.mean(z**2)) - 1) < 0.1 + 2 / math.sqrt(2 * runs)
    assert 0.92 < np.mean(np.abs(z) < 1.96) < 0.975


@od.batched
def simulate_counts(rng, rate):
    return rng.poisson(rate)


COUNTS = od.Model(od.Prior(rate=stats.gamma(2, scale=5)), simulate_counts, observed=4)
RATE = stats.gamma(6, scale=5 / 6)
"""The posterior of a Gamma prior and one Poisson count."""
FUNCTIONS = {
    "mean": (lambda post: post.estimate("rate"), RATE.mean()),
    "sd": (lambda post: post.estimate("rate", of="sd"), RATE.std()),
    "upper": (lambda post: post.estimate("rate", of=0.9), RATE.ppf(0.9)),
    "tail": (lambda post: post.estimate(lambda rate: rate > 6), RATE.sf(6)),
}


@pytest.mark.parametrize(("chains", "draws"), [(1024, 5), (512, 10), (64, 60)])
def test_errors_hold_for_a_gamma_poisson_model(chains, draws):
    runs = 100
    z = {name: [] for name in FUNCTIONS}
    for seed in range(runs):
        post = od.pseudo_marginal(COUNTS, od.uniform(0.5), draws=draws, chains=chains, seed=seed)
        for name, (estimate, true) in FUNCTIONS.items():
            found = estimate(post)
            z[name].append((found.value - true) / found.mcse)
    for each in z.values():
        assert_calibrated(each, runs)


@pytest.mark.parametrize("case", ["rejection", "at", "chains at", "importance", "smc"])
def test_errors_of_weighted_and_independent_draws_hold(case):
    runs, kernel = 100, od.uniform(0.25)
    sampler = {
        "rejection": lambda seed: od.rejection(toy(), kernel, draws=200, seed=seed),
        "at": lambda seed: od.rejection(toy(), od.uniform(1.0), draws=1000, seed=seed).at(0.25),
        "chains at": lambda seed: od.pseudo_marginal(toy(), od.uniform(1.0), draws=10, chains=512, seed=seed).at(0.25),
        "importance": lambda seed: od.importance(toy(), kernel=kernel, budget=8_000, seed=seed),
        "smc": lambda seed: od.smc(toy(), kernel=kernel, particles=300, budget=20_000, seed=seed),
    }[case]
    true = Exact(kernel).mean
    found = [sampler(seed).estimate("theta") for seed in range(runs)]
    assert_calibrated([(one.value - true) / one.mcse for one in found], runs)


def test_errors_of_quantiles_allow_for_the_noise_of_the_slope():
    """60 draws have 13 within two errors of the upper quartile: the slope there is known to 28 %."""
    values = np.random.default_rng(12).standard_normal((2000, 1, 60))
    found = [monte_carlo(one, Draws(independent=True), 0.75) for one in values]
    z = np.array([(one.value - stats.norm.ppf(0.75)) / one.mcse for one in found])
    assert abs(np.sqrt(np.mean(z**2)) - 1) < 3 / math.sqrt(4000)


@pytest.mark.parametrize("stride", [1, 3])
def test_each_estimate_of_a_learnt_likelihood_has_its_own_error(stride):
    """Fits that move a standard normal by a, or widen it by 1 + b: what each estimate changes by is known."""
    values = stats.norm.ppf((np.arange(6000) + 0.5) / 6000)
    some, a, b = values[::stride], [0.03, -0.02, -0.01], [0.02, 0.01]
    others = [stats.norm(one, 1).pdf(some) for one in a] + [stats.norm(0, 1 + one).pdf(some) for one in b]
    refits = np.array([(one / stats.norm.pdf(some)) for one in others])
    refits = refits / refits.sum(axis=1, keepdims=True) - 1 / some.size
    moves, widens, (q, p, c) = np.sum(np.square(a)), np.sum(np.square(b)), (stats.norm.ppf(0.9), 0.9, 0.5)
    density, n = stats.norm.pdf(c), some.size
    # Five fits have four degrees of freedom: the mean square of Student's t is 2.
    expected = {
        "mean": 2 * moves + 1 / n,
        "sd": 2 * widens + 1 / (2 * n),
        p: 2 * (moves + q**2 * widens) + p * (1 - p) / stats.norm.pdf(q) ** 2 / n,
    }
    draws = Draws(independent=True, effective=7.0, refits=refits)
    for of, squared in expected.items():
        found = monte_carlo(values[None], draws, of)
        # The quantile is widened for the noise of a slope between four errors of its probability.
        factor = math.sqrt(1 + 2.5 / math.sqrt(found.ess)) if of == p else 1.0
        assert found.mcse == pytest.approx(factor * math.sqrt(squared), rel=0.03)
        assert found.degrees == 4 and not found.reason
    above = monte_carlo((values > c)[None], draws)
    share = stats.norm.sf(c)
    squared = 2 * density**2 * (moves + c**2 * widens) + share * (1 - share) / n
    assert above.mcse == pytest.approx(math.sqrt(squared), rel=0.03)
    # Both account for the same: effective draws are the variance over the squared error.
    assert above.ess == pytest.approx(share * (1 - share) / above.mcse**2, rel=1e-3)
    # What is estimated is that of all draws.
    assert monte_carlo(values[None], draws, "sd").value == pytest.approx(values.std(ddof=1), rel=1e-9)


# One account


@pytest.mark.parametrize("case", ["rejection", "weighted", "short chains", "long chains", "adjusted"])
def test_effective_draws_and_errors_never_disagree(case):
    post = {
        "rejection": lambda: od.rejection(toy(), od.uniform(0.5), draws=400, seed=1),
        "weighted": lambda: od.rejection(toy(), od.uniform(0.5), draws=400, seed=1).at(0.2),
        "short chains": lambda: od.pseudo_marginal(toy(), od.uniform(0.5), draws=5, chains=1024, seed=1),
        "long chains": lambda: od.pseudo_marginal(toy(), od.uniform(0.5), draws=3000, chains=4, seed=1),
        "adjusted": lambda: od.rejection(toy(), od.uniform(1.5), draws=500, seed=1, keep="summaries").adjust(seed=1),
    }[case]()
    row, found = post.summary()["theta"], post.estimate("theta")
    theta = post.draws["theta"]
    if case in ("rejection", "adjusted"):
        # Independent draws are as many as there are: only their error is widened.
        number, degrees = post.effective or 400, math.inf if post.effective else 399
        wider = widened(theta[0] - theta.mean(), min(degrees, 1e15), number=number)
        assert row.ess == found.ess == number
        assert row.mcse == pytest.approx(wider * row.sd / math.sqrt(number), rel=1e-9)
    else:
        # The sd of weighted draws is that of the weights as they are, without the + 1.
        assert row.ess == found.ess == pytest.approx((row.sd / row.mcse) ** 2 + (case == "weighted"), rel=1e-3)
    assert row.mcse == found.mcse == post.mcse("theta") == post.mcse(lambda theta: theta)
    if case != "adjusted":
        assert post.efficiency()["theta"].ess == row.ess


def test_effective_draws_of_many_short_chains_are_not_those_of_arviz():
    """1,024 x 5 draws were once said to be worth 14,796 independent ones."""
    post = od.pseudo_marginal(COUNTS, od.uniform(0.5), draws=5, chains=1024, seed=1)
    row = post.summary()["rate"]
    means = post.draws["rate"].mean(axis=1)
    assert row.mcse == pytest.approx(means.std(ddof=1) / 32 * widened(means - means.mean(), 1023), rel=1e-9)
    assert row.ess < 2 * 1024


def test_estimates_name_what_is_wrong():
    post = od.rejection(toy(), od.uniform(0.5), draws=50, seed=1)
    with pytest.raises(ValueError, match="there is no parameter 'mu': the parameters are theta"):
        post.mcse("mu")
    with pytest.raises(ValueError, match="takes 'x', which is not a parameter: there are theta"):
        post.mcse(lambda x: x)
    note = str(od.pseudo_marginal(toy(), od.uniform(0.5), draws=5, chains=2, seed=1).summary())
    assert "the Monte Carlo error of theta is not known" in note
