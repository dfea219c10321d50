"""The evidence at a tolerance against quadrature, its stated error over seeds, and who refuses to tell it."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

import onedraw as od
from onedraw.run.population import Particles, Population, StageChains, collected, with_evidence
from tests.reference import hit, toy
from tests.test_pairs import KERNELS, OUTCOMES, staged_model, two_models

GRID = np.linspace(-8.0, 8.0, 4001)
SEEDS = pytest.mark.parametrize(
    "seeds", [range(20), pytest.param(range(60), marks=pytest.mark.slow)], ids=["few", "many"]
)
"""Few here, many in the slow tests; the limits follow from their number."""


def exact(kernel):
    """Of the toy: theta ~ N(0, 1), y ~ N(theta, 1), y_obs = 2."""
    return math.log(integrate.simpson(stats.norm.pdf(GRID) * hit(GRID, kernel), x=GRID))


def scores(make, seeds):
    """(estimate - truth) / stated error of many runs, each at the tolerance that it has reached."""
    found = []
    for seed in seeds:
        post = make(seed)
        one = post.log_evidence
        kernel = {"uniform": od.uniform, "gaussian": od.gaussian}[one.kernel](one.eps)
        found.append((one.value - exact(kernel)) / one.se)
    return np.array(found)


def assert_errors_are_right(z):
    """The mean is zero within 4 errors and a tenth, and the sd is 1 within 4 errors and a sixth."""
    n = len(z)
    assert abs(z.mean()) < 4 / math.sqrt(n) + 0.1
    assert 1 - 1 / 6 - 4 / math.sqrt(2 * n) < z.std() < 1 + 1 / 6 + 4 / math.sqrt(2 * n)


@pytest.mark.parametrize(
    ("kernel", "pseudo_samples"),
    [
        (od.uniform(0.4), 1),
        (od.gaussian(0.3), 3),
        pytest.param(od.gaussian(0.3), 1, marks=pytest.mark.slow),
        pytest.param(od.uniform(0.4), 3, marks=pytest.mark.slow),
    ],
)
def test_of_rejection(kernel, pseudo_samples):
    def make(seed):
        return od.rejection(toy(), kernel, budget=6000, seed=seed, pseudo_samples=pseudo_samples)

    assert_errors_are_right(scores(make, range(60)))


FOUND_OR_GIVEN = [None, od.gaussian(0.1), pytest.param(od.uniform(0.1), marks=pytest.mark.slow)]
"""Kernels of samplers that find their tolerance if none is given."""


@pytest.mark.parametrize("kernel", FOUND_OR_GIVEN)
@SEEDS
def test_of_importance(kernel, seeds):
    assert_errors_are_right(scores(lambda seed: od.importance(toy(), budget=2000, kernel=kernel, seed=seed), seeds))


@pytest.mark.parametrize("kernel", FOUND_OR_GIVEN)
@SEEDS
def test_of_smc(kernel, seeds):
    assert_errors_are_right(scores(lambda seed: od.smc(toy(), budget=6000, kernel=kernel, seed=seed), seeds))


def population(founder, weight, **more):
    """Particles of the prior and their descendants, with what an evidence needs to know of them."""
    number = np.arange(len(founder))
    rows = np.zeros((len(founder), 1))
    particles = Particles(rows, rows[:, 0], rows, np.asarray(weight), number, number, np.asarray(founder))
    return Population(None, None, particles, 0.0, **more)


def test_the_error_of_smc_is_what_founders_change():
    """The derivatives of the log evidence by how often each particle from the prior counts."""
    founder = [np.array([0, 0, 1, 2]), np.array([0, 1, 1, 1, 2])]
    before, after = [[0.25] * 4, [0.1, 0.2, 0.3, 0.2, 0.2]], [[0.2, 0.05, 0.25, 0.1], [0.1, 0.15, 0.05, 0.2, 0.1]]
    stages = list(zip(founder, map(np.array, before), map(np.array, after), strict=True))
    now = population(founder[0], before[0], influence=np.zeros(3))
    for of, weight, lowered in stages:
        particles = population(of, weight).particles
        now = with_evidence(now._replace(particles=particles), lowered)

    def log_evidence(counts):
        return sum(math.log((counts[of] @ lowered) / (counts[of] @ weight)) for of, weight, lowered in stages)

    step = 1e-6 * np.eye(3)
    slopes = [(log_evidence(1 + one) - log_evidence(1 - one)) / 2e-6 for one in step]
    assert now.log_evidence == pytest.approx(log_evidence(np.ones(3))) and now.influence == pytest.approx(slopes)


def test_particles_of_smc_descend_from_those_of_the_prior():
    origin = population([5, 5, 7], [0.2, 0.3, 0.5]).particles
    row = np.ones((1, 1))
    moves = {"chain": np.array([1]), "time": np.array([0]), "theta": row, "log_prior": row[0], "distances": row}
    chains = StageChains(origin, np.array([2, 0]), {}, row, 0, 0, moves, steps=2)
    assert collected(chains).founder.tolist() == [5, 7, 5]


@pytest.mark.slow
def test_stated_errors_of_smc_in_two_dimensions():
    """A normal kernel turns the evidence into a normal density: particles that are far apart count, too."""

    @od.batched
    def both(rng, a, b):
        return np.column_stack([rng.normal(a, 1.0), rng.normal(a + b, 0.7)])

    data, eps = np.array([0.8, 2.5]), 0.5
    model = od.Model(od.Prior(a=stats.norm(0, 1.5), b=stats.norm(0, 1)), both, data)
    covariance = np.array([[3.25, 2.25], [2.25, 3.74]]) + eps**2 * np.eye(2)
    truth = math.log(2 * math.pi * eps**2) + stats.multivariate_normal([0, 0], covariance).logpdf(data)
    found = [od.smc(model, budget=8000, kernel=od.gaussian(eps), seed=seed).log_evidence for seed in range(100)]
    z = np.array([(one.value - truth) / one.se for one in found])
    assert abs(z.mean()) < 0.4 and 0.8 < z.std() < 1.35


@pytest.mark.parametrize("sampler", ["rejection", "importance", "smc"])
@SEEDS
def test_at_a_smaller_tolerance_of_the_same_run(sampler, seeds):
    kernel = od.gaussian(0.8)
    runs = {
        "rejection": lambda seed: od.rejection(toy(), kernel, budget=4000, seed=seed),
        "importance": lambda seed: od.importance(toy(), budget=2000, kernel=kernel, seed=seed),
        "smc": lambda seed: od.smc(toy(), budget=6000, kernel=kernel, seed=seed),
    }
    assert_errors_are_right(scores(lambda seed: runs[sampler](seed).at(0.2), seeds))


def of_parts(make, seeds):
    """Scores of runs of simulators in two parts, whose outcomes all have the same prior probability."""
    found = []
    for seed in seeds:
        one = make(seed).log_evidence
        kernel = getattr(od, one.kernel)(one.eps)
        truth = math.log(np.exp(kernel.log_weight(np.abs(OUTCOMES - 3.0))).mean())
        found.append((one.value - truth) / one.se)
    return np.array(found)


PARTS = {
    "rejection": lambda model, kernel, seed: od.rejection(model, kernel, budget=8000, seed=seed),
    "importance": lambda model, kernel, seed: od.importance(model, kernel=kernel, budget=8000, seed=seed),
    "smc": lambda model, kernel, seed: od.smc(model, kernel=kernel, budget=8000, seed=seed),
}


ONE_OF_THE_KERNELS = [name if name == "triangular" else pytest.param(name, marks=pytest.mark.slow) for name in KERNELS]


@pytest.mark.parametrize("kernel", ONE_OF_THE_KERNELS)
@pytest.mark.parametrize("sampler", PARTS)
@SEEDS
def test_of_simulators_in_stages(sampler, kernel, seeds):
    """Some simulations are given up, and the others count more for it."""
    assert_errors_are_right(of_parts(lambda seed: PARTS[sampler](staged_model(0.4), KERNELS[kernel], seed), seeds))


@pytest.mark.parametrize("kernel", ONE_OF_THE_KERNELS)
@pytest.mark.parametrize("sampler", ["rejection", "importance"])
@SEEDS
def test_of_two_models_whose_weights_may_be_negative(sampler, kernel, seeds):
    assert_errors_are_right(of_parts(lambda seed: PARTS[sampler](two_models(0.4), KERNELS[kernel], seed), seeds))


@pytest.mark.parametrize("sampler", PARTS)
@SEEDS
def test_of_a_continuation_probability_that_was_learnt(sampler, seeds):
    assert_errors_are_right(of_parts(lambda seed: PARTS[sampler](staged_model(None), KERNELS["gaussian"], seed), seeds))


@pytest.mark.parametrize("sampler", PARTS)
@SEEDS
def test_of_simulators_in_stages_at_a_smaller_tolerance(sampler, seeds):
    assert_errors_are_right(
        of_parts(lambda seed: PARTS[sampler](staged_model(0.4), KERNELS["gaussian"], seed).at(0.6), seeds)
    )


def test_of_a_prior_whose_density_does_not_integrate_to_one():
    """Half of the prior is cut off: draws follow the rest, and so does the evidence."""
    prior = od.Prior(theta=stats.norm(0, 1), where=lambda theta: theta > 0)
    model = od.Model(prior, od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    kernel, there = od.uniform(0.3), np.linspace(0, 8.0, 4001)
    truth = math.log(2 * integrate.simpson(stats.norm.pdf(there) * hit(there, kernel), x=there))
    for post in (
        od.rejection(model, kernel, budget=20_000, seed=1),
        od.importance(model, budget=4000, kernel=kernel, seed=1),
        od.smc(model, budget=20_000, kernel=kernel, seed=1),
    ):
        assert abs(post.log_evidence.value - truth) < 4 * post.log_evidence.se < 0.6


def test_failed_simulations_count_as_misses():
    @od.batched
    def simulate(rng, theta):
        y = rng.normal(theta, 1.0)
        return np.where(rng.random(theta.size) < 0.5, np.nan, y)

    model = od.Model(od.Prior(theta=stats.norm(0, 1)), simulate, observed=2.0)
    kernel = od.uniform(0.4)
    for post in (
        od.rejection(model, kernel, budget=20_000, seed=1),
        od.importance(model, budget=4000, kernel=kernel, seed=1),
        od.smc(model, budget=20_000, kernel=kernel, seed=1),
    ):
        assert abs(post.log_evidence.value - exact(kernel) - math.log(0.5)) < 4 * post.log_evidence.se < 0.6


def test_a_distance_that_is_learned_again_keeps_the_evidence_of_its_last_scale():
    model = toy(distance=od.scaled(adapt=True))
    for post in (od.smc(model, budget=20_000, seed=3), od.importance(model, budget=4000, seed=3)):
        [scale], one = post.settings["distance"]["scale"], post.log_evidence
        assert abs(one.value - exact(od.uniform(one.eps * scale))) < 4 * one.se < 0.8


def test_a_file_holds_it(tmp_path):
    runs = {
        "rejection": lambda **more: od.rejection(toy(), od.uniform(0.4), budget=2000, seed=1, **more),
        "importance": lambda **more: od.importance(toy(), budget=1000, seed=1, **more),
        "smc": lambda **more: od.smc(toy(), budget=3000, seed=1, **more),
    }
    for name, make in runs.items():
        post = make(store=tmp_path / f"{name}.db")
        assert od.load(tmp_path / f"{name}.db").log_evidence == post.log_evidence == make().log_evidence


def test_a_chain_refuses_and_names_the_way():
    kernel = od.uniform(0.4)
    post = od.pseudo_marginal(toy(), kernel, draws=50, chains=8, seed=1)
    with pytest.raises(ValueError, match=r"od\.importance\(model, budget=\.\.\., kernel=od\.uniform\(0\.4\), prop"):
        _ = post.log_evidence
    one = od.importance(toy(), budget=2000, kernel=kernel, proposal=post, seed=1).log_evidence
    assert one.eps == 0.4 and abs(one.value - exact(kernel)) < 4 * one.se < 0.4


def test_others_refuse_with_a_reason(quick):
    with pytest.raises(ValueError, match=r"compare models with od\.compare"):
        _ = od.infer(toy(), budget=50, seed=1, draws=100).log_evidence
    with pytest.raises(ValueError, match=r"nothing was accepted of 100 proposals: it is below log\(3/100\) = -3\.51"):
        _ = od.rejection(toy(y_obs=50.0), od.uniform(0.1), budget=100, seed=1).log_evidence
    with pytest.raises(ValueError, match="before it was adjusted or resampled"):
        _ = od.rejection(toy(), od.uniform(0.4), budget=2000, seed=1).resample(20).log_evidence


def test_says_what_it_is():
    one = od.rejection(toy(), od.uniform(0.4), budget=2000, seed=1).log_evidence
    low, high = one.interval(0.9)
    assert low < one.value < high and "uniform kernel, eps = 0.4" in str(one)
    with pytest.raises(ValueError, match="probability must lie between 0 and 1"):
        one.interval(1.5)
