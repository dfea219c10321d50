"""The chain samplers against exact answers.

Chains start stationary, so the last state of each of many chains is an independent draw of pi_K if, and only if, the
step keeps pi_K: a KS test on last states and z-tests on chain means see a step that does not. Seeds are fixed; a
correct sampler passes each check with probability above 0.9999.
"""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

import onedraw as od
from onedraw import paper
from onedraw.engines.streams import Phase, Rng
from onedraw.estimators.abc_average import AbcAverage
from onedraw.model.kernels import Kernel
from onedraw.paper import finite_chains as grid_chains
from onedraw.paper.study import quadrature as study
from onedraw.paper.study.settings import Toy
from onedraw.proposals.resolve import resolve
from onedraw.run.chains import acceptance as chain_acceptance
from onedraw.run.driver import drive
from onedraw.run.lockstep import advance
from onedraw.run.starts import starting_states, units_of
from onedraw.samplers import pseudo_marginal, r_hit, wilkinson
from tests.reference import Exact, hit, toy

UNIFORM, GAUSSIAN = od.uniform(0.6), od.gaussian(0.5)
PROPOSALS = {
    "walk": od.random_walk(0.5),
    "independence": od.independence(),
    "off-centre": od.independence(stats.norm(1.0, 1.3)),
    "lazy": od.lazy(od.random_walk(0.5), hold=0.3),
    # A drifting walk: asymmetric, so that the q ratio matters.
    "drift": lambda rng, theta: _drift(rng, theta),
}


def _drift(rng, theta, shift=0.3, sd=0.7):
    step = shift + sd * rng.standard_normal(theta.shape)
    return theta + step, (-2 * shift * step[:, 0]) / sd**2


def agrees(post, exact):
    draws = post.draws["theta"]
    chains = len(draws)
    assert stats.kstest(draws[:, -1], exact.cdf).pvalue > 1e-4
    means = draws.mean(axis=1)
    assert abs(means.mean() - exact.mean) < 4 * means.std() / np.sqrt(chains)
    spreads = ((draws - exact.mean) ** 2).mean(axis=1)
    assert abs(spreads.mean() - exact.sd**2) < 4 * spreads.std() / np.sqrt(chains)


def with_drift(*numbers):
    """Every proposal with the first number, and the drifting walk with the others; the rest is for the slow tests."""
    return [
        pytest.param(number, name, marks=() if number == numbers[0] or name == "drift" else pytest.mark.slow)
        for number in numbers
        for name in PROPOSALS
    ]


@pytest.mark.parametrize(("pseudo_samples", "proposal"), with_drift(1, 4, 16))
@pytest.mark.parametrize("kernel", [UNIFORM, GAUSSIAN], ids=lambda kernel: kernel.name)
def test_pseudo_marginal_is_exact(kernel, pseudo_samples, proposal):
    chains = 8192 if pseudo_samples < 16 else 4096
    post = od.pseudo_marginal(
        toy(), kernel, draws=40, chains=chains, pseudo_samples=pseudo_samples, proposal=PROPOSALS[proposal], seed=21
    )
    agrees(post, Exact(kernel))


@pytest.mark.parametrize("proposal", PROPOSALS)
@pytest.mark.parametrize("kernel", [UNIFORM, GAUSSIAN], ids=lambda kernel: kernel.name)
def test_wilkinson_is_exact(kernel, proposal):
    post = od.wilkinson(toy(), kernel, draws=60, chains=8192, proposal=PROPOSALS[proposal], seed=22)
    agrees(post, Exact(kernel))


@pytest.mark.parametrize(("hits", "proposal"), with_drift(1, 2, 3))
def test_r_hit_is_exact(hits, proposal):
    kernel = od.uniform(1.2)
    post = od.r_hit(toy(), kernel, hits=hits, draws=8, chains=2048, proposal=PROPOSALS[proposal], seed=23)
    agrees(post, Exact(kernel))


@pytest.mark.parametrize("kind", ["plain", "staged"])
@pytest.mark.parametrize("pseudo_samples", [1, 3])
def test_other_simulators_are_exact(kind, pseudo_samples):
    post = od.pseudo_marginal(toy(kind), GAUSSIAN, draws=12, chains=400, pseudo_samples=pseudo_samples, seed=24)
    agrees(post, Exact(GAUSSIAN))
    if kind == "staged":
        assert post.cost.setups == post.cost.simulations / pseudo_samples or pseudo_samples > 1


def test_the_default_walk_learns_its_scale_near_the_posterior():
    post = od.pseudo_marginal(toy(), od.uniform(0.25), draws=10, chains=512, seed=1)
    proposal = post.settings["proposal"]
    exact = Exact(od.uniform(0.25))
    assert proposal["name"] == "random_walk"
    assert np.sqrt(proposal["cov"][0][0]) == pytest.approx(exact.sd, rel=0.4)
    assert proposal["scale"] == pytest.approx(2.38)


@pytest.mark.parametrize(("kind", "chains"), [("batched", 200), ("plain", 4)])
def test_a_walk_learns_from_draws_that_no_chain_starts_from(kind, chains):
    """Otherwise the kernel would depend on the starts, and the chains would not be stationary from the first step."""
    estimator = AbcAverage(toy(kind), UNIFORM)
    found = drive(starting_states("rejection", estimator, chains, 3, None))
    assert len(found.theta) == chains and len(found.spread) >= 12
    assert not set(found.theta[:, 0]) & set(found.spread[:, 0])


def test_the_default_walk_of_few_chains_is_not_as_wide_as_the_prior():
    """Four plain chains start after few proposals; what is nearest among them must still say where the posterior is."""
    model = od.Model(
        od.Prior(mu=stats.norm(0, 5), sigma=stats.uniform(0.1, 8)),
        lambda rng, mu, sigma: rng.normal(mu, sigma, 40),
        observed=np.random.default_rng(2026).normal(1.5, 2.0, 40),
        summary=lambda y: [y.mean(), y.std()],
    )
    spread = [
        np.diag(od.pseudo_marginal(model, od.uniform(1.0), draws=1, seed=seed).settings["proposal"]["cov"])
        for seed in range(8)
    ]
    # The posterior's variances are about 0.33 and 0.32, the prior's 25 and 5.3.
    assert (np.median(spread, axis=0) < [3.0, 2.0]).all()


# Acceptance rates


@pytest.mark.parametrize(
    ("eps", "pseudo_samples"),
    [
        *((0.25, number) for number in (1, 2, 8)),
        *((0.0625, number) for number in (1, 64)),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in ((0.25, 64), (0.0625, 2), (0.0625, 8))),
    ],
)
def test_acceptance_rates_of_the_study(eps, pseudo_samples):
    """The study's own chain: proposals from the prior, uniform kernel (docs/study.md)."""
    post = od.pseudo_marginal(
        toy(),
        od.uniform(eps),
        draws=60,
        chains=4096,
        pseudo_samples=pseudo_samples,
        proposal=od.independence(),
        seed=31,
    )
    expected = study.uniform_acceptance_rate(Toy(), eps, pseudo_samples)
    assert abs(post.acceptance_rate - expected) < 4 * post.acceptance_rate_se
    assert post.acceptance_rate_se < 0.05 * expected


@pytest.mark.parametrize("pseudo_samples", [1, 4])
def test_acceptance_rates_of_the_gaussian_kernel(pseudo_samples):
    post = od.pseudo_marginal(
        toy(), GAUSSIAN, draws=100, chains=4096, pseudo_samples=pseudo_samples, proposal=od.independence(), seed=32
    )
    expected = study.gaussian_acceptance_rate(Toy(), GAUSSIAN.eps, pseudo_samples)
    assert abs(post.acceptance_rate - expected.value) < 4 * post.acceptance_rate_se + expected.error


@pytest.mark.parametrize(
    ("run", "chain", "eps"),
    [
        (od.pseudo_marginal, grid_chains.pseudo_marginal, 0.6),
        (
            lambda *a, **k: od.pseudo_marginal(*a, pseudo_samples=3, **k),
            lambda problem: grid_chains.pseudo_marginal(problem, 3),
            0.6,
        ),
        (od.wilkinson, grid_chains.wilkinson, 0.6),
        (od.r_hit, grid_chains.one_hit, 0.6),
        (lambda *a, **k: od.r_hit(*a, hits=3, **k), lambda problem: grid_chains.r_hit(problem, 3, tail=1e-5), 2.0),
    ],
    ids=["M=1", "M=3", "wilkinson", "one-hit", "3-hit"],
)
def test_acceptance_rates_of_the_random_walk_equal_those_of_the_exact_chain(run, chain, eps):
    """A grid fine enough that its walk is the continuous one to four digits."""
    grid = np.linspace(-1.8, 5.0, 137) if eps < 1 else np.linspace(-2.4, 4.6, 71)
    problem = grid_chains.discretise(stats.norm.pdf, lambda t: hit(t, od.uniform(eps)), grid, scale=0.7)
    expected = grid_chains.acceptance_rate(chain(problem))
    post = run(toy(), od.uniform(eps), draws=20, chains=2048, proposal=od.random_walk(0.49), seed=33)
    assert abs(post.acceptance_rate - expected) < 4 * post.acceptance_rate_se + 2e-4


@pytest.mark.slow
def test_the_error_of_the_acceptance_rate_is_its_spread_over_runs():
    for chains, draws in ((4, 400), (64, 40)):
        runs = [
            od.pseudo_marginal(toy(), UNIFORM, draws=draws, chains=chains, proposal=od.random_walk(0.5), seed=s)
            for s in range(60)
        ]
        spread = np.std([run.acceptance_rate for run in runs], ddof=1)
        stated = np.sqrt(np.mean([run.acceptance_rate_se**2 for run in runs]))
        assert 0.7 < stated / spread < 1.4


def test_the_two_sides_of_a_race_are_independent():
    """Proposing the same theta, the race is won with probability 1 / (2 - tau); with shared draws it always would."""
    tau = hit(1.5, UNIFORM)
    stay = {"start": {"theta": 1.5}, "proposal": lambda rng, theta: (theta, 0.0)}
    for kind in ("plain", "batched"):
        post = od.r_hit(toy(kind), UNIFORM, draws=100, chains=40, seed=34, **stay)
        assert abs(post.acceptance_rate - 1 / (2 - tau)) < 4 * post.acceptance_rate_se


# The joint test of Geweke (2004): parameters and data drawn together


def through_the_kernel(kernel, rng, n):
    """Kernel noise: y_obs given y has density proportional to K(y_obs - y)."""
    return rng.uniform(-kernel.eps, kernel.eps, n) if kernel.indicator else rng.normal(0, kernel.eps, n)


JOINT = od.Prior.joint(
    ["theta", "y_obs"],
    sample=lambda rng, n: np.column_stack([rng.standard_normal(n), np.zeros(n)]),
    logpdf=lambda t: stats.norm.logpdf(t[:, 0]),
)
JOINT_MODEL = od.Model(
    JOINT, od.batched(lambda rng, theta, y_obs: theta + rng.standard_normal(theta.size) - y_obs), observed=0.0
)


def walk_in_theta(rng, theta):
    moved, log_q_ratio = _drift(rng, theta[:, :1])
    return np.column_stack([moved, theta[:, 1]]), log_q_ratio


@pytest.mark.parametrize(
    ("algorithm", "kernel", "pseudo_samples"),
    [
        *[("pseudo_marginal", kernel, m) for kernel in (UNIFORM, GAUSSIAN) for m in (1, 4)],
        ("wilkinson", UNIFORM, 1),
        ("wilkinson", GAUSSIAN, 1),
        ("one-hit", UNIFORM, 1),
        pytest.param("2-hit", UNIFORM, 1, marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_joint_draws_of_parameters_and_data(algorithm, kernel, pseudo_samples):
    """theta from the prior, data through the kernel, then steps of the chain: theta must still follow the prior.

    Every chain has its own y_obs, carried as a parameter that never moves.
    """
    chains, rng = 6000, np.random.default_rng(41)
    theta = rng.standard_normal(chains)
    y = theta + rng.standard_normal(chains)
    y_obs = y + through_the_kernel(kernel, rng, chains)
    fresh = theta[:, None] + rng.standard_normal((chains, pseudo_samples - 1))
    distances = np.abs(np.column_stack([y, fresh]) - y_obs[:, None])
    start = np.column_stack([theta, y_obs])
    estimator = AbcAverage(JOINT_MODEL, kernel, pseudo_samples)
    proposal = resolve(walk_in_theta, JOINT, lambda: None)
    log_prior = JOINT.logpdf(start)
    if algorithm == "pseudo_marginal":
        sampler = pseudo_marginal.PseudoMarginal(estimator, proposal, True, pseudo_samples)
        state = pseudo_marginal.State(start, log_prior, kernel.log_average(distances), distances)
    elif algorithm == "wilkinson":
        sampler = wilkinson.Wilkinson(estimator, proposal, True)
        state = wilkinson.State(start, log_prior, distances)
    else:
        sampler = r_hit.RHit(estimator, proposal, 2 if algorithm == "2-hit" else 1, 10**5)
        state = r_hit.State(start, log_prior, distances)
    steps = 40 if "hit" not in algorithm else 8
    kept = np.empty((steps, chains, 2))
    state, tally = advance(sampler, Rng(41, Phase.RUN), state, 0, steps, 1, kept, None, 1)
    assert tally.accepted.sum() > 0.5 * chains
    last = state.theta
    assert stats.kstest(last[:, 0], "norm").pvalue > 1e-4
    # The posterior of theta given y_obs depends on it; the joint law must not have moved.
    assert abs(np.mean(last[:, 0] * last[:, 1]) - 1.0) < 4 * np.std(last[:, 0] * last[:, 1]) / np.sqrt(chains)


# Early rejection


@pytest.mark.parametrize("kernel", [UNIFORM, GAUSSIAN], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("pseudo_samples", [1, 5])
@pytest.mark.parametrize("algorithm", ["pseudo_marginal", "wilkinson"])
def test_early_rejection_leaves_the_chain_as_it_is(algorithm, pseudo_samples, kernel):
    """With streams keyed by (chain, step, pseudo-sample) the chain is the same, draw for draw, at a lower cost."""
    run = getattr(od, algorithm)
    more = {"pseudo_samples": pseudo_samples} if algorithm == "pseudo_marginal" else {}
    a, b = (
        run(toy("plain"), kernel, draws=150, chains=6, proposal=od.random_walk(2.0), seed=5, early=early, **more)
        for early in (True, False)
    )
    assert a.draws["theta"].tobytes() == b.draws["theta"].tobytes()
    assert a.acceptance_rate == b.acceptance_rate
    assert a.cost.simulations < b.cost.simulations
    assert a.cost.simulations + a.cost.skipped == b.cost.simulations + b.cost.skipped


def test_early_rejection_stops_between_draws():
    """With M = 5 fewer simulations are made than whole proposals would take."""
    post = od.pseudo_marginal(toy("plain"), GAUSSIAN, draws=100, chains=4, pseudo_samples=5, seed=5)
    whole = od.pseudo_marginal(toy("batched"), GAUSSIAN, draws=100, chains=4, pseudo_samples=5, seed=5)
    assert whole.cost.skipped % 5 == 0  # a batched simulator skips whole proposals
    assert post.cost.skipped % 5 != 0


@pytest.mark.slow
def test_the_saving_is_what_theory_says():
    """Expected simulations a step, with early rejection before and between the draws, from the exact chain."""
    kernel = od.uniform(1.0)
    grid = np.linspace(-3.0, 5.5, 120)
    problem = grid_chains.discretise(stats.norm.pdf, lambda t: hit(t, kernel), grid, scale=1.5)
    expected = grid_chains.expected_simulations(problem, 4)
    run = {"draws": 150, "chains": 100, "pseudo_samples": 4, "proposal": od.random_walk(2.25), "seed": 8}
    between = od.pseudo_marginal(toy("plain"), kernel, **run)
    steps = 150 * 100
    start = od.pseudo_marginal(toy("plain"), kernel, **(run | {"draws": 1})).cost.simulations
    per_step = (between.cost.simulations - start) / (steps - 100)
    assert per_step == pytest.approx(expected.between, rel=0.05)
    before = od.pseudo_marginal(toy("batched"), kernel, **run)
    per_step = 4 - before.cost.skipped / steps
    assert per_step == pytest.approx(expected.before, rel=0.05)


def test_proposals_outside_the_prior_cost_nothing():
    seen = []

    def simulate(rng, p):
        seen.append(p)
        return rng.binomial(10, p)

    model = od.Model(od.Prior(p=stats.uniform(0, 1)), simulate, observed=9)
    post = od.pseudo_marginal(model, od.uniform(0.5), draws=200, chains=4, proposal=od.random_walk(4.0), seed=1)
    assert min(seen) >= 0 and max(seen) <= 1
    assert post.cost.skipped > 400
    assert len(seen) == post.cost.simulations


# Other problems


def test_a_discrete_parameter_and_a_constraint():
    """N ~ Poisson(6), k ~ randint(0, 10), k <= N; y = N - k + noise in {-1, 0, 1}: enumerable."""
    prior = od.Prior(n=stats.poisson(6), k=stats.randint(0, 10), where=lambda n, k: k <= n)
    model = od.Model(prior, od.batched(lambda rng, n, k: n - k + rng.integers(-1, 2, n.size)), observed=3)
    n, k = np.meshgrid(np.arange(60), np.arange(10), indexing="ij")
    weight = stats.poisson(6).pmf(n) * (k <= n) * np.isin(n - k, [2, 3, 4])
    weight = weight / weight.sum()
    for proposal in (None, od.independence(), od.random_walk([4.0, 4.0])):
        post = od.pseudo_marginal(model, od.uniform(0.5), draws=50, chains=4000, proposal=proposal, seed=2)
        assert post.draws["n"].dtype == np.int64
        last = post.draws["n"][:, -1]
        expected = weight.sum(axis=1)[2:14]  # n - k is 2, 3 or 4 and k below 10, so n lies in 2..13
        observed = np.bincount(last, minlength=14)[2:14]
        assert observed.sum() == 4000
        chi = stats.chisquare(observed, expected * 4000)
        assert chi.pvalue > 1e-4


def test_two_parameters_with_a_learnt_walk():
    """A correlated normal problem: the exact posterior for a Gaussian kernel is normal."""
    prior = od.Prior(a=stats.norm(0, 1), b=stats.norm(0, 2))
    design = np.array([[1.0, 0.5], [0.2, 1.0]])

    @od.batched
    def simulate(rng, a, b):
        return np.column_stack([a, b]) @ design.T + rng.standard_normal((a.size, 2)) * 0.5

    model = od.Model(prior, simulate, observed=[1.0, 1.5])
    eps = 0.6
    precision = np.diag([1.0, 0.25]) + design.T @ design / (0.25 + eps**2)
    covariance = np.linalg.inv(precision)
    mean = covariance @ design.T @ np.array([1.0, 1.5]) / (0.25 + eps**2)
    post = od.pseudo_marginal(model, od.gaussian(eps), draws=60, chains=6000, seed=3)
    last = np.column_stack([post.draws["a"][:, -1], post.draws["b"][:, -1]])
    distance = np.einsum("ij,jk,ik->i", last - mean, precision, last - mean)
    assert stats.kstest(distance, stats.chi2(2).cdf).pvalue > 1e-4
    assert np.all(np.abs(last.mean(axis=0) - mean) < 4 * np.sqrt(np.diag(covariance) / 6000))
    assert np.allclose(post.settings["proposal"]["cov"], covariance, atol=1.2 * covariance.max())


# Estimators


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_a_handicapped_estimator_has_the_same_target(alpha):
    estimator = paper.handicapped(paper.abc_average(toy(), GAUSSIAN, pseudo_samples=2), alpha)
    post = od.pseudo_marginal(estimator=estimator, draws=60, chains=6000, proposal=od.random_walk(0.5), seed=4)
    agrees(post, Exact(GAUSSIAN))


def test_a_handicap_is_a_lazy_chain():
    """The x-chain of the handicapped estimator is that of alpha I + (1 - alpha) H: acceptance falls by 1 - alpha."""
    whole = od.pseudo_marginal(toy(), UNIFORM, draws=100, chains=4096, proposal=od.random_walk(0.5), seed=5)
    estimator = paper.handicapped(paper.abc_average(toy(), UNIFORM), 0.4)
    part = od.pseudo_marginal(estimator=estimator, draws=100, chains=4096, proposal=od.random_walk(0.5), seed=6)
    error = np.hypot(part.acceptance_rate_se, 0.6 * whole.acceptance_rate_se)
    assert abs(part.acceptance_rate - 0.6 * whole.acceptance_rate) < 4 * error
    assert part.cost.simulations < whole.cost.simulations


def test_a_users_own_estimator():
    """Log-normal noise with mean one around the likelihood of the toy: the target is the true posterior."""

    def log_estimate(rng, theta):
        noise = 0.5 * rng.standard_normal(len(theta)) - 0.125
        return stats.norm.logpdf(2.0, theta[:, 0], 1.0) + noise

    estimator = od.unbiased(log_estimate, od.Prior(theta=stats.norm(0, 1)))
    start = np.random.default_rng(1).normal(1.0, np.sqrt(0.5), size=(6000, 1))
    post = od.pseudo_marginal(estimator=estimator, draws=60, start=start, proposal=od.random_walk(1.0), seed=7)
    last = post.draws["theta"][:, -1]
    assert stats.kstest(last, stats.norm(1.0, np.sqrt(0.5)).cdf).pvalue > 1e-4
    assert post.distances is None
    with pytest.raises(ValueError, match="needs a run with a kernel"):
        post.at(0.1)


def test_a_bad_estimator_is_named():
    prior = od.Prior(theta=stats.norm(0, 1))
    for value, bound in ((np.nan, None), (np.inf, None), (0.5, 0.0)):
        estimator = od.unbiased(lambda rng, t, value=value: np.full(len(t), value), prior, log_bound=bound)
        with pytest.raises(ValueError, match="log_estimate is"):
            od.pseudo_marginal(estimator=estimator, draws=5, start={"theta": 0.0}, proposal=od.random_walk(1.0), seed=1)
    with pytest.raises(ValueError, match="has no prior"):
        od.pseudo_marginal(estimator=lambda rng, t: 0, draws=5)
    with pytest.raises(ValueError, match="not both"):
        od.pseudo_marginal(toy(), UNIFORM, estimator=estimator, draws=5)
    with pytest.raises(ValueError, match="known log_bound"):
        od.pseudo_marginal(estimator=od.unbiased(lambda rng, t: t[:, 0], prior), draws=5)


# Smaller tolerances


@pytest.mark.parametrize(
    "run",
    [
        lambda k: od.pseudo_marginal(toy(), k, draws=400, chains=512, seed=9),
        lambda k: od.pseudo_marginal(toy(), k, draws=200, chains=512, pseudo_samples=3, keep="distances", seed=9),
        lambda k: od.wilkinson(toy(), k, draws=400, chains=512, seed=9),
        lambda k: od.r_hit(toy(), k, draws=40, chains=1024, seed=9),
        lambda k: od.r_hit(toy(), k, hits=2, draws=30, chains=1024, seed=9),
    ],
    ids=["M=1", "M=3", "wilkinson", "one-hit", "2-hit"],
)
def test_at_a_smaller_tolerance(run):
    post = run(od.uniform(1.0))
    exact, row = Exact(od.uniform(0.4)), post.at(0.4).summary()["theta"]
    assert abs(row.mean - exact.mean) < 4 * row.mcse
    assert row.mcse < 0.05 * exact.sd
    weights = post.at(0.4).weights
    second = (weights * post.draws["theta"] ** 2).sum()
    assert second == pytest.approx(exact.sd**2 + exact.mean**2, rel=0.04)


def test_at_for_many_pseudo_samples_needs_them_all():
    post = od.pseudo_marginal(toy(), UNIFORM, draws=20, chains=64, pseudo_samples=2, seed=1)
    with pytest.raises(ValueError, match="keep='distances'"):
        post.at(0.1)


# Acceptance rates


def test_the_error_of_the_acceptance_rate_of_many_chains():
    """With as many proposals in every chain: the spread of the chains' rates over the root of their number."""
    rng = np.random.default_rng(1)
    accepted = rng.binomial(20, rng.beta(2, 8, 300), (1, 300))
    rate, error = chain_acceptance([SimpleNamespace(accepted=accepted, proposals=np.full((1, 300), 20))])
    assert rate == pytest.approx(accepted.mean() / 20, rel=1e-12)
    assert error == pytest.approx((accepted[0] / 20).std(ddof=1) / np.sqrt(300), rel=1e-12)


def test_the_error_of_the_acceptance_rate_of_few_chains():
    """Four chains in eight stretches each, some steps held back: the error of a ratio, by hand."""
    rng = np.random.default_rng(2)
    proposals = 5 - rng.permuted(np.arange(32).reshape(8, 4) % 4 == 0, axis=1)
    accepted = rng.binomial(proposals, 0.3)
    rate, error = chain_acceptance([SimpleNamespace(accepted=accepted, proposals=proposals)])
    residual = accepted - accepted.sum() / proposals.sum() * proposals
    assert rate == accepted.sum() / proposals.sum()
    assert error == pytest.approx(np.sqrt((residual**2).sum() * 32 / 31) / proposals.sum(), rel=1e-12)


@pytest.mark.parametrize("chains", [16, 400])
def test_errors_of_acceptance_rates_hold(chains):
    """Against the spread of the rates of 120 runs, within 4 of its own errors."""
    runs, kernel = 120, od.uniform(1.0)
    found = [
        od.pseudo_marginal(toy(), kernel, draws=20, chains=chains, proposal=od.independence(), seed=seed)
        for seed in range(runs)
    ]
    rates = np.array([post.acceptance_rate for post in found])
    errors = np.array([post.acceptance_rate_se for post in found])
    assert rates.std(ddof=1) == pytest.approx(np.sqrt((errors**2).mean()), rel=4 / np.sqrt(2 * runs))


def test_the_error_of_the_acceptance_rate_of_rejection_is_binomial():
    post = od.rejection(toy(), od.uniform(0.5), budget=5_000, seed=1)
    rate = post.shape[1] / post.cost.proposals
    assert post.acceptance_rate == pytest.approx(rate)
    assert post.acceptance_rate_se == pytest.approx(np.sqrt(rate * (1 - rate) / post.cost.proposals), rel=1e-12)


# Starts


@pytest.mark.parametrize(
    ("before", "now", "stationary"),
    [
        (od.uniform(1.5), od.uniform(0.5), True),
        (od.gaussian(0.4), od.uniform(1.0), True),
        (od.gaussian(1.0), od.gaussian(0.5), True),
        (od.epanechnikov(1.02), od.uniform(1.0), True),
        (od.gaussian(0.5), od.gaussian(1.0), True),
        (od.gaussian(0.7), od.gaussian(0.7), True),
        (od.uniform(0.3), od.uniform(1.5), False),
        (od.uniform(1.0), od.gaussian(1.0), False),
    ],
    ids=lambda part: f"{part.name} {part.eps}" if isinstance(part, Kernel) else "",
)
def test_a_start_from_a_run_at_another_kernel(before, now, stationary):
    """The first draws are those of the new posterior, or the run says that they are not."""
    model = toy()
    start = od.rejection(model, before, draws=40_000, seed=11)
    post = od.pseudo_marginal(
        model, now, start=start, draws=1, chains=4_000, proposal=od.random_walk(1e-12), early=False, seed=12
    )
    exact, values = Exact(now), post.draws["theta"]
    z = (values.mean() - exact.mean) / (exact.sd / np.sqrt(4_000))
    assert bool(abs(z) < 4.0) is stationary
    assert [note for note in post.notes if "do not start in their posterior" in note] == list(post.notes)
    assert bool(post.notes) is not stationary


def test_a_start_of_weighted_draws_counts_the_weights_of_the_run_once():
    model = toy()
    start = od.rejection(model, od.gaussian(1.0), draws=40_000, seed=13).at(0.8)
    post = od.pseudo_marginal(
        model, od.gaussian(0.4), start=start, draws=1, chains=4_000, proposal=od.random_walk(1e-12), seed=14
    )
    exact = Exact(od.gaussian(0.4))
    assert abs(post.draws["theta"].mean() - exact.mean) < 4 * exact.sd / np.sqrt(4_000)


def test_a_start_from_few_draws_says_so():
    model = toy()
    start = od.rejection(model, od.uniform(1.5), draws=200, seed=15)
    post = od.pseudo_marginal(model, od.uniform(0.02), start=start, draws=5, chains=64, seed=16)
    assert "all chains start from these" in post.notes[0]


def test_errors_of_many_chains_allow_for_starts_from_few_draws(tmp_path):
    """Some 80 draws of the earlier run are left, and 512 chains start from these: on their own they seem to be 512."""
    model, z = toy(), []
    for seed in range(60):
        start = od.rejection(model, od.uniform(1.5), draws=400, seed=seed)
        post = od.pseudo_marginal(
            model, UNIFORM, start=start, draws=2, chains=512, proposal=od.random_walk(0.2), seed=100 + seed
        )
        found = post.estimate("theta")
        z.append((found.value - Exact(UNIFORM).mean) / found.mcse)
        assert found.ess < 150
    assert 0.75 < np.sqrt(np.mean(np.square(z))) < 1.35
    given = {"start": start, "draws": 2, "chains": 512, "proposal": od.random_walk(0.2), "seed": 159}
    od.pseudo_marginal(model, UNIFORM, store=tmp_path / "run.db", **given)
    assert od.load(tmp_path / "run.db").estimate("theta") == found
    few = od.pseudo_marginal(model, UNIFORM, **{**given, "chains": 8, "draws": 50})
    assert few.groups is None


def test_draws_of_an_earlier_run_that_go_together():
    """Of chains they are segments worth two effective draws; of sequential samplers, what has one ancestor."""
    independent = od.rejection(toy(), UNIFORM, draws=5, seed=1)
    assert units_of(independent).tolist() == [0, 1, 2, 3, 4]
    chains = od.pseudo_marginal(toy(), UNIFORM, draws=200, chains=4, proposal=od.random_walk(0.5), seed=1)
    units, worth = units_of(chains), chains.estimate("theta").ess
    pieces = int(worth / 8)
    assert 1 < pieces < 100 and len(np.unique(units)) == 4 * pieces
    assert all(len(np.unique(one)) == pieces and (np.diff(one) >= 0).all() for one in units.reshape(4, 200))
    unknown = od.pseudo_marginal(toy(), UNIFORM, draws=3, chains=2, proposal=od.random_walk(0.5), seed=1)
    assert units_of(unknown).tolist() == [0, 0, 0, 1, 1, 1]
    particles = od.smc(toy(), kernel=UNIFORM, particles=100, seed=1)
    assert (units_of(particles) == particles.groups.reshape(-1)).all()


def test_a_start_at_points():
    points = od.pseudo_marginal(toy(), UNIFORM, draws=400, chains=256, start={"theta": 1.0}, seed=1)
    assert points.notes and "discard" in points.notes[0]
    means = points.draws["theta"][:, 100:].mean(axis=1)
    assert abs(means.mean() - Exact(UNIFORM).mean) < 4 * means.std() / 16


@pytest.mark.parametrize(
    ("start", "chains"),
    [({"theta": [1.0, 1.5, 2.0]}, 3), (np.ones((5, 1)), 5), ([[1.0], [1.2]], 2), ({"theta": 1.0}, 4), ([1.0], 4)],
)
def test_there_are_as_many_chains_as_points(start, chains):
    post = od.pseudo_marginal(toy("plain"), UNIFORM, draws=3, start=start, proposal=od.random_walk(0.5), seed=1)
    assert post.shape == (chains, 3)


@pytest.mark.parametrize("pseudo_samples", [1, 4])
@pytest.mark.parametrize("kernel", [od.uniform(0.6), od.gaussian(0.5)], ids=lambda kernel: kernel.name)
def test_a_start_from_an_earlier_posterior_is_stationary(kernel, pseudo_samples):
    """From a run at a larger tolerance, with no step of burn-in to speak of and no simulation to find starts."""
    model = toy()
    wide = od.rejection(model, kernel.with_eps(2 * kernel.eps), draws=60_000, seed=2)
    post = od.pseudo_marginal(
        model,
        kernel,
        draws=2,
        chains=4000,
        start=wide,
        pseudo_samples=pseudo_samples,
        proposal=od.random_walk(0.5),
        seed=3,
    )
    assert post.cost.simulations <= 4000 * (2 * pseudo_samples + pseudo_samples - 1)
    assert stats.kstest(post.draws["theta"][:, -1], Exact(kernel).cdf).pvalue > 1e-4


def test_a_start_from_a_posterior_that_does_not_reach():
    model = toy()
    near = od.rejection(model, od.uniform(1.0), draws=50, seed=1)
    with pytest.raises(ValueError, match="no draw of the posterior given as start is within eps"):
        od.pseudo_marginal(model, od.uniform(1e-6), draws=5, chains=4, start=near, seed=1)
    other = od.Model(od.Prior(p=stats.norm()), lambda rng, p: rng.normal(p), 1.0)
    with pytest.raises(ValueError, match=r"start holds draws of \['theta'\], the model has \['p'\]"):
        od.pseudo_marginal(other, od.uniform(1.0), draws=5, start=near, seed=1)


def test_a_hopeless_start_suggests_an_eps():
    with pytest.raises(ValueError, match=r"estimate of zero in 1000 tries; the nearest simulation was at distance"):
        od.pseudo_marginal(toy("plain"), od.uniform(1e-3), draws=5, chains=2, start={"theta": -6.0}, seed=1)


class Spent:
    prepared = drawn = failed = 0


def count_and_prepare(theta):
    Spent.prepared += 1
    return theta


def count_and_draw(rng, theta, m):
    Spent.drawn += m
    values = theta + rng.standard_normal(m)
    if values[0] > 2.5:
        Spent.failed += m
        raise RuntimeError("beyond the model")
    return values


@pytest.mark.parametrize("pseudo_samples", [1, 3])
def test_tries_at_given_points_are_in_the_cost(pseudo_samples):
    """One try at a point hardly ever hits, so the start's own sums are most of the cost."""
    Spent.prepared = Spent.drawn = Spent.failed = 0
    model = od.Model(od.Prior(theta=stats.norm()), od.staged(count_and_prepare, count_and_draw), 2.0)
    post = od.pseudo_marginal(
        model, od.uniform(0.02), draws=1, chains=4, start={"theta": 1.0}, pseudo_samples=pseudo_samples, early=False,
        proposal=od.random_walk(0.1), seed=3,
    )  # fmt: skip
    assert Spent.prepared > 40 and Spent.failed > 0
    assert (post.cost.simulations, post.cost.setups, post.cost.failed) == (Spent.drawn, Spent.prepared, Spent.failed)
    assert len(post.failures) == min(20, Spent.failed // pseudo_samples)


def test_a_budget_spent_before_all_chains_start():
    post = od.pseudo_marginal(toy("plain", y_obs=9.0), od.uniform(0.01), draws=10, budget=500, seed=1)
    assert post.shape == (4, 0) and post.status.reason == "budget"
    assert post.cost.simulations == 500
    assert "found a starting point" in post.notes[-1]


# What is reported


def test_a_chain_that_never_moved_is_reported():
    post = od.pseudo_marginal(
        toy("plain"), od.uniform(0.02), draws=40, chains=4, proposal=od.random_walk(1.0), start={"theta": 1.5}, seed=6
    )
    moved = (np.diff(post.draws["theta"], axis=1) != 0).any(axis=1)
    assert not moved.all()
    text = str(post.summary())
    assert f"{(~moved).sum()} of 4 chains never moved" in text
    assert post.longest_stall == 40 - 1 or post.longest_stall >= 20


def test_stalls_are_counted():
    post = od.pseudo_marginal(toy(), UNIFORM, draws=300, chains=64, seed=1)
    longest = 0
    for chain in post.draws["theta"]:
        run = 0
        for same in np.diff(chain) == 0:
            run = run + 1 if same else 0
            longest = max(longest, run)
    assert post.longest_stall == longest > 5


def test_r_hat_and_ess_gates():
    far = np.array([[0.0], [2.5], [0.2], [2.2]])
    post = od.pseudo_marginal(
        toy("plain"), od.uniform(1.0), draws=60, chains=4, start=far, proposal=od.random_walk(1e-4), seed=1
    )
    assert "R-hat" in str(post.summary())
    good = od.pseudo_marginal(toy(), od.uniform(1.0), draws=500, chains=64, seed=1)
    assert "R-hat" not in str(good.summary()) and good.summary()["theta"].r_hat < 1.01


def test_the_cap_of_r_hit_is_reported():
    post = od.r_hit(toy("plain"), od.uniform(0.05), max_draws=4, draws=50, chains=4, seed=1)
    assert "reached the limit of draws" in str(post.summary())
    with pytest.raises(ValueError, match="the gaussian kernel does not have"):
        od.r_hit(toy(), GAUSSIAN, draws=5)
