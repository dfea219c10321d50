"""v(f, Q), kappa and running times of real runs, against exact chains.

The grid problem is a model of its own: theta is a whole number on a grid, the simulator hits (1) with probability
tau(theta), and one hit is what was observed. With the uniform kernel the run *is* the finite chain of theory/exact.py.
"""

import functools
import itertools
import math

import numpy as np
import pytest
from scipy import stats

import onedraw as od
from onedraw.paper import finite_chains as exact
from onedraw.results.efficiency import efficiency, running_time
from onedraw.results.monte_carlo_error import Interval, variances
from tests.reference import toy

POINTS = 15
TAU = 0.02 + 0.5 * np.exp(-0.5 * ((np.arange(POINTS) - 10) / 2.5) ** 2)
WALK = np.array([0.3, 0.2, 0.2, 0.3])
"""Chances of the steps -2, -1, 1, 2 of a walk around a ring."""
FUNCTIONS = {"theta": lambda theta: theta, "high": lambda theta: theta > 9}


@od.batched
def hits(rng, theta):
    return rng.random(theta.size) < TAU[theta]


def around_the_ring(rng, theta):
    steps = rng.choice([-2, -1, 1, 2], p=WALK, size=theta.shape)
    return (theta + steps) % POINTS, np.zeros(len(theta))


def grid_model():
    return od.Model(od.Prior(theta=stats.randint(0, POINTS)), hits, observed=1.0)


@functools.cache
def exact_chain(pseudo_samples, proposal):
    matrix = np.full((POINTS, POINTS), 1 / POINTS)
    if proposal == "ring":
        matrix = sum(
            chance * np.roll(np.eye(POINTS), step, axis=1) for step, chance in zip((-2, -1, 1, 2), WALK, strict=True)
        )
    problem = exact.Problem(np.ones(POINTS), matrix, exact.bernoulli(TAU))
    return exact.pseudo_marginal(problem, pseudo_samples)


def grid_run(pseudo_samples, proposal, **more):
    walk = around_the_ring if proposal == "ring" else od.independence()
    return od.pseudo_marginal(grid_model(), od.uniform(0.5), pseudo_samples=pseudo_samples, proposal=walk, **more)


# Agreement with exact chains


LONG_CHAINS = [(1, "ring"), (2, "independence"), (8, "ring")]
"""Of few long chains, which take the time, each M and each proposal once; the slow tests have the other pairs."""
RUNS = [
    pytest.param(*few, *pair, marks=[pytest.mark.slow] * (few[0] == 4 and pair not in LONG_CHAINS))
    for few in ((1024, 300), (4, 8000))
    for pair in itertools.product((1, 2, 8), ("ring", "independence"))
]


@pytest.mark.parametrize(("chains", "draws", "pseudo_samples", "proposal"), RUNS)
def test_variances_agree_with_the_exact_chain(chains, draws, pseudo_samples, proposal):
    post = grid_run(pseudo_samples, proposal, chains=chains, draws=draws, seed=101)
    chain = exact_chain(pseudo_samples, proposal)
    found = efficiency(post, FUNCTIONS)
    for name, function in FUNCTIONS.items():
        f = np.asarray(function(np.arange(POINTS)), dtype=float)
        numbers = found[name].variances
        for got, expected in (
            (numbers.v, exact.variance(f, chain)),
            (numbers.v_chain, exact.asymptotic_variance(f, chain)),
            (numbers.kappa, exact.integrated_autocorrelation(f, chain)),
        ):
            assert abs(got.value - expected) < 4 * got.se
            assert got.se < (0.12 if chains == 1024 else 0.4) * expected


def test_more_pseudo_samples_are_seen_to_help():
    kappas = [efficiency(grid_run(m, "ring", chains=512, draws=300, seed=5))["theta"].kappa for m in (1, 8)]
    assert kappas[0].low > 1.5 * kappas[1].high


def test_arviz_agrees_where_chains_are_long():
    row = efficiency(grid_run(2, "ring", chains=8, draws=3000, seed=6))["theta"]
    assert row.kappa_arviz == pytest.approx(row.kappa.value, rel=0.15)


def simulated(rng, chain, chains, draws):
    """Runs of a finite chain from its stationary law, f = grid point: (chains, draws)."""
    size = len(chain.stationary)
    edges = np.cumsum(chain.transition, axis=1)
    edges = (edges / edges[:, -1:] + np.arange(size)[:, None]).ravel()
    state = rng.choice(size, chains, p=chain.stationary)
    values = np.empty((chains, draws))
    for step in range(draws):
        state = np.minimum(np.searchsorted(edges, state + rng.random(chains)) - state * size, size - 1)
        values[:, step] = chain.point[state]
    return values


@pytest.mark.slow
@pytest.mark.parametrize("pseudo_samples", [1, 8])
@pytest.mark.parametrize(("chains", "draws"), [(1024, 200), (256, 400), (32, 1500), (4, 12_000)])
def test_intervals_cover(chains, draws, pseudo_samples):
    """200 runs each: many short chains and few long ones; M = 1 is a chain with sticky states (kappa 35)."""
    runs = 200
    chain = exact_chain(pseudo_samples, "ring")
    f = np.arange(POINTS, dtype=float)
    v_chain, kappa = exact.asymptotic_variance(f, chain), exact.integrated_autocorrelation(f, chain)
    rng = np.random.default_rng([chains, pseudo_samples])
    values = simulated(rng, chain, chains * runs, draws).reshape(runs, chains, draws)
    found = [variances(one) for one in values]
    assert np.mean([part.resolved for part in found]) > 0.97
    found = [part for part in found if part.resolved]
    for name, true in (("v_chain", v_chain), ("kappa", kappa)):
        parts = [getattr(part, name) for part in found]
        covered = np.mean([part.low <= true <= part.high for part in parts])
        assert 0.9 <= covered <= 0.98, f"{name}: {covered}"
        assert np.mean([part.value for part in parts]) == pytest.approx(true, rel=0.05)


# Few draws, no movement, short chains


def test_short_chains_bound_kappa_from_below():
    post = grid_run(1, "ring", chains=1024, draws=5, seed=7)
    numbers = efficiency(post)["theta"].variances
    assert "too short" in numbers.reason
    assert math.isnan(numbers.kappa.value)
    true = exact.integrated_autocorrelation(np.arange(POINTS, dtype=float), exact_chain(1, "ring"))
    assert 3 < numbers.kappa.low < true
    assert "cannot be estimated" in str(efficiency(post))


def test_many_chains_a_few_kappas_long_are_enough():
    """1024 chains of 60 steps at kappa near 20: the tail beyond the chains' length is extrapolated."""
    true = exact.integrated_autocorrelation(np.arange(POINTS, dtype=float), exact_chain(1, "ring"))
    kappa = efficiency(grid_run(1, "ring", chains=4096, draws=int(2.5 * true), seed=8))["theta"].kappa
    assert kappa.low < true < kappa.high
    assert kappa.se < 0.15 * true


def test_a_chain_that_never_moved_has_no_kappa():
    for values in (np.zeros((4, 1000)), np.arange(8.0)[:, None] * np.ones((8, 500))):
        found = variances(values)
        assert found.reason
        assert math.isnan(found.kappa.value)


def test_two_long_chains_are_cut_into_stretches():
    rng = np.random.default_rng(1)
    noise = rng.standard_normal((2, 50_000))
    for step in range(1, noise.shape[1]):
        noise[:, step] += 0.8 * noise[:, step - 1]
    found = variances(noise)
    assert found.degrees >= 31
    assert abs(found.kappa.value - 9.0) < 4 * found.kappa.se
    assert found.kappa.se < 0.6


def test_errors_are_widened_for_rare_large_values():
    """Sticky states give skewed sums: the error of their mean, by hand, and 1 + skewness/(2 sqrt(units))."""
    values = np.random.default_rng(3).gamma(0.2, size=(50, 1))
    each = (values[:, 0] - values.mean()) ** 2
    sd, skewness = each.std(ddof=1), ((each - each.mean()) ** 3).mean() / each.std(ddof=1) ** 3
    assert skewness > 2
    found = variances(values, independent=True)
    assert found.v.se == pytest.approx(sd / math.sqrt(50) * (1 + 0.5 * skewness / math.sqrt(50)), rel=1e-9)
    symmetric = variances(np.repeat([[1.0], [-1.0], [2.0], [-2.0]], 10, axis=0), independent=True).v
    assert symmetric.se == pytest.approx(np.repeat([1.0, 4.0], 20).std(ddof=1) / math.sqrt(40), rel=1e-9)


# Rejection, weights, costs


def test_independent_draws_have_kappa_one():
    post = od.rejection(toy(), od.uniform(0.5), draws=2000, seed=1)
    row = efficiency(post)["theta"]
    assert row.kappa == Interval(1.0, 0.0, 1.0, 1.0)
    assert row.ess == 2000
    assert row.ess_per_simulation == 2000 / post.cost.simulations


def test_weights_count():
    """Half the draws of a rejection run with weight zero are half as many draws."""
    post = od.rejection(toy(), od.uniform(0.5), draws=4000, seed=2)
    row = efficiency(post.at(0.25))["theta"]
    assert row.ess == pytest.approx(np.count_nonzero(post.distances < 0.25), rel=0.1)


@pytest.mark.parametrize("proposal", [od.random_walk(0.5), od.lazy(od.random_walk(0.5), hold=0.4)])
@pytest.mark.parametrize("pseudo_samples", [1, 3])
def test_simulations_are_those_of_the_steps(pseudo_samples, proposal):
    """The same starts with twice the steps: what was added is what the steps took."""
    runs = [
        od.pseudo_marginal(
            toy(), od.uniform(0.5), chains=500, draws=n, pseudo_samples=pseudo_samples, proposal=proposal, seed=3
        )
        for n in (40, 80)
    ]
    first, second = (efficiency(post).simulations for post in runs)
    added = runs[1].cost.simulations - runs[0].cost.simulations
    assert second - first == pytest.approx(added, rel=0.02)
    assert first < runs[0].cost.simulations


def test_running_times_follow_the_table():
    """M v(f,Q_M)/delta serially; v(f,Q_M)/delta side by side; chains on P processors divide by P."""
    post = grid_run(4, "ring", chains=256, draws=300, seed=9)
    v_chain = efficiency(post)["theta"].variances.v_chain.value
    times = running_time(post, mc_error=0.1, processors=4)
    assert times["theta"].steps == pytest.approx(v_chain / 0.01)
    assert times["theta"].serial == pytest.approx(4 * v_chain / 0.01)
    assert times["theta"].within == pytest.approx(v_chain / 0.01)
    assert times["theta"].across == pytest.approx(v_chain / 0.01)
    discounted = running_time(post, mc_error={"theta": 0.1}, processors=2, discount=3.0)["theta"]
    assert discounted.serial == pytest.approx(2 * v_chain / 0.01)
    assert discounted.within == pytest.approx((1 + 1 / 3) * v_chain / 0.01)
    assert discounted.across == pytest.approx(v_chain / 0.01)


def test_running_times_of_rejection_follow_the_table():
    post = od.rejection(toy(), od.uniform(0.5), budget=65_536, pseudo_samples=2, seed=4)
    v = efficiency(post)["theta"].variances.v.value
    times = running_time(post, mc_error=0.05, processors=2)["theta"]
    assert times.serial == pytest.approx(2 * v / (0.0025 * post.acceptance_rate), rel=1e-3)
    assert times.within == times.across == pytest.approx(times.serial / 2)
    assert times.simulations == pytest.approx(times.serial, rel=1e-3)


def test_the_error_asked_for_is_the_error_reached():
    steps = running_time(grid_run(1, "ring", chains=512, draws=400, seed=10), mc_error=0.2)["theta"].steps
    many = grid_run(1, "ring", chains=64 * 40, draws=round(steps / 64), seed=11)
    means = many.draws["theta"].mean(axis=1).reshape(40, 64).mean(axis=1)
    assert 0.2 * 0.6 < means.std(ddof=1) < 0.2 * 1.4


def test_a_measured_discount_sees_the_set_up():
    def prepare(theta):
        return np.linalg.eigvalsh(np.eye(200) + theta)[0]

    model = od.Model(
        od.Prior(theta=stats.norm(0, 1)),
        od.staged(prepare, lambda rng, state, m: rng.standard_normal(m)),
        observed=0.0,
    )
    post = od.pseudo_marginal(model, od.uniform(1.0), chains=8, draws=50, pseudo_samples=4, seed=1)
    times = running_time(post, mc_error=0.1, discount="measured")
    assert times.discount > 4
    assert times["theta"].serial == pytest.approx(times["theta"].steps * (1 + 3 / times.discount), nan_ok=True)


def test_tables_are_readable():
    post = grid_run(1, "ring", chains=128, draws=300, seed=12)
    table = str(efficiency(post, FUNCTIONS))
    assert "v(f,Q)" in table and "high" in table and "the chains' own steps" in table
    assert "(b) across" in str(running_time(post, mc_error=0.1))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda post: efficiency(post, {"f": 3}), "must be a function of theta"),
        (lambda post: efficiency(post, {"f": lambda x: x}), "takes 'x', which is not a parameter: there are theta"),
        (lambda post: efficiency(post, {"f": lambda theta: theta.mean()}), "returned shape"),
        (lambda post: efficiency(post, {"f": lambda theta: theta * np.inf}), "not finite"),
        (lambda post: running_time(post, mc_error=0), "mc_error must be positive, got 0"),
        (lambda post: running_time(post, mc_error={"mu": 1}), r"names \['mu'\]"),
        (lambda post: running_time(post, mc_error=1, discount=0.5), "discount must be at least 1, got 0.5"),
        (lambda post: running_time(post, mc_error=1, processors=0), "processors must be"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_bad_input_is_refused(call, message):
    post = grid_run(1, "ring", chains=16, draws=20, seed=13)
    with pytest.raises(ValueError, match=message):
        call(post)
