"""The particle filter against exact likelihoods, and any unbiased estimator in Algorithm 2."""

import numpy as np
import pytest
from scipy import stats

import onedraw as od
from onedraw import paper
from onedraw.engines.streams import Phase, Rng
from onedraw.estimators.particle_filter import ancestors, weigh
from onedraw.estimators.protocol import Estimator

RUNS = 10_000
A, NOISE = 0.8, 0.7


def linear(data, particles, **more):
    """x_0 ~ N(0, 1), x_t = a x_(t-1) + N(0, 1), y_t = x_t + N(0, 0.7^2)."""
    given = {
        "initial": lambda rng, shape, a: rng.standard_normal(shape),
        "transition": lambda rng, x, a: a * x + rng.standard_normal(x.shape),
        "log_observation": lambda y, x, a: stats_norm(y, x, NOISE),
    }
    return od.particle_filter(od.Prior(a=stats.uniform(0, 1)), **(given | more), data=data, particles=particles)


def stats_norm(y, mean, sd):
    return -0.5 * ((y - mean) / sd) ** 2 - np.log(sd * np.sqrt(2 * np.pi))


def joint_normal(times, a=A):
    """The covariance of y_0..y_(T-1), written out: no filter."""
    cov = np.empty((times, times))
    variance = 1.0
    for s in range(times):
        for t in range(s, times):
            cov[s, t] = cov[t, s] = a ** (t - s) * variance
        variance = a * a * variance + 1.0
    return stats.multivariate_normal(np.zeros(times), cov + NOISE**2 * np.eye(times))


def log_estimates(estimator, theta, runs=RUNS, seed=1):
    return estimator.evaluate(Rng(seed, 1), np.tile(theta, (runs, 1)), None).log_estimate


def check_unbiased(log_estimate, log_exact, largest_error=0.02):
    ratio = np.exp(log_estimate - log_exact)
    error = ratio.std(ddof=1) / np.sqrt(ratio.size)
    assert error < largest_error
    assert abs(ratio.mean() - 1.0) < 4 * error
    return ratio


DATA = joint_normal(12).rvs(random_state=3)


# The likelihood


@pytest.mark.parametrize(("particles", "times"), [(2, 4), (3, 6), (10, 12), (40, 12)])
def test_the_mean_of_the_estimate_is_the_likelihood(particles, times):
    found = log_estimates(linear(DATA[:times], particles), [A], RUNS * (8 if particles < 5 else 1))
    exact = joint_normal(times).logpdf(DATA[:times])
    check_unbiased(found, exact)
    # Jensen: the mean of the log is not the log of the mean, and nobody should claim that it is.
    below = found - exact
    assert below.mean() < -8 * below.std() / np.sqrt(below.size)


def test_one_particle_is_plain_simulation():
    found = log_estimates(linear(DATA[:3], 1), [A], 40_000)
    check_unbiased(found, joint_normal(3).logpdf(DATA[:3]))


def test_the_filter_is_right_at_every_parameter():
    """Chains side by side have their own parameters, in blocks that are cut into chunks."""
    grid = np.repeat([0.1, 0.5, 0.9], RUNS)
    found = linear(DATA, 20).evaluate(Rng(2, 1), grid[:, None], None).log_estimate
    for a in (0.1, 0.5, 0.9):
        check_unbiased(found[grid == a], joint_normal(12, a).logpdf(DATA), 0.05)


def test_states_of_two_dimensions_and_observations_of_two():
    """Position and speed, both observed with noise; the exact likelihood from the joint normal of all."""
    move = np.array([[1.0, 0.5], [0.0, 0.9]])
    times = 5
    blocks = [[None] * times for _ in range(times)]
    variance = np.eye(2)
    for s in range(times):
        for t in range(s, times):
            blocks[t][s] = np.linalg.matrix_power(move, t - s) @ variance
            blocks[s][t] = blocks[t][s].T
        variance = move @ variance @ move.T + 0.25 * np.eye(2)
    exact = stats.multivariate_normal(np.zeros(2 * times), np.block(blocks) + np.eye(2 * times))
    data = exact.rvs(random_state=1).reshape(times, 2)
    estimator = od.particle_filter(
        od.Prior(noise=stats.uniform(0.1, 2)),
        initial=lambda rng, shape, noise: rng.standard_normal((*shape, 2)),
        transition=lambda rng, x, noise: x @ move.T + 0.5 * rng.standard_normal(x.shape),
        log_observation=lambda y, x, noise: stats_norm(y[0], x[..., 0], noise) + stats_norm(y[1], x[..., 1], noise),
        data=data,
        particles=30,
    )
    check_unbiased(log_estimates(estimator, [1.0]), exact.logpdf(data.ravel()))


def test_times_that_were_not_observed():
    gaps = DATA.copy()
    gaps[[0, 4, 5, 11]] = np.nan
    seen = ~np.isnan(gaps)
    cov = joint_normal(12).cov[np.ix_(seen, seen)]
    exact = stats.multivariate_normal(np.zeros(seen.sum()), cov).logpdf(gaps[seen])
    check_unbiased(log_estimates(linear(gaps, 10), [A]), exact)


def test_functions_that_ask_for_the_time_get_it():
    told = []

    def transition(rng, x, a, t):
        told.append(t)
        return (a if t != 2 else 0.0) * x + rng.standard_normal(x.shape)

    estimator = linear(DATA[:4], 5, transition=transition)
    estimator.evaluate(Rng(1, 1), np.array([[A]]), None)
    assert told == [1, 2, 3]


# Weights and resampling


def test_weights_far_below_the_smallest_number():
    weighted = weigh(np.array([[-2000.0, -2000.0 + np.log(3.0)], [-np.inf, -np.inf], [-np.inf, 0.0]]))
    assert weighted.log_mean == pytest.approx([-2000 + np.log(2), -np.inf, -np.log(2)])
    assert weighted.shares[0] == pytest.approx([1 / 3, 1])


@pytest.mark.parametrize("particles", [1, 2, 7, 100])
def test_systematic_resampling(particles):
    """Copies are N w_i on average over u, and never more than one away; nothing of weight zero is copied."""
    rng = np.random.default_rng(1)
    shares = rng.exponential(size=particles) * (rng.random(particles) < 0.7)
    shares[-1] = 0.0 if particles > 1 else 1.0
    shares[0] = 0.3
    expected = particles * shares / shares.sum()
    cuts = 20_000
    u = (np.arange(cuts) + 0.5) / cuts
    found = ancestors(np.tile(shares, (cuts, 1)), u).reshape(cuts, particles) % particles
    copies = np.stack([np.bincount(row, minlength=particles) for row in found])
    assert (np.abs(copies - expected) < 1 + 1e-9).all()
    assert not copies[:, shares == 0].any()
    assert copies.mean(axis=0) == pytest.approx(expected, abs=2 / cuts * particles)


def test_rounding_never_loses_a_particle():
    rng = np.random.default_rng(2)
    shares = np.exp(rng.normal(scale=30.0, size=(2000, 13)))
    found = ancestors(shares, np.where(rng.random(2000) < 0.5, 0.0, 1 - 2.0**-53)).reshape(2000, 13)
    assert (found // 13 == np.arange(2000)[:, None]).all()


def test_resampling_inside_the_filter_is_unbiased():
    """States that are not random: only resampling is, and the mean of the estimate is a sum written out."""
    places, weights, later = np.arange(5), np.array([0.1, 1.0, 0.3, 2.0, 0.2]), np.array([3.0, 0.1, 5.0, 0.4, 2.0])
    estimator = linear(
        [0.0, 1.0],
        5,
        initial=lambda rng, shape, a: np.broadcast_to(places, shape),
        transition=lambda rng, x, a: x,
        log_observation=lambda y, x, a: np.log((weights, later)[int(y)][x.astype(int)]),
    )
    check_unbiased(log_estimates(estimator, [A]), np.log((weights * later).mean()))


# What it costs, and what can go wrong


def test_the_cost_is_particles_times_observations():
    moved = 0

    def transition(rng, x, a):
        nonlocal moved
        moved += x.size
        return a * x + rng.standard_normal(x.shape)

    def initial(rng, shape, a):
        nonlocal moved
        moved += shape[0] * shape[1]
        return rng.standard_normal(shape)

    estimator = linear(DATA, 7, initial=initial, transition=transition)
    assert estimator.simulations == 84
    post = od.pseudo_marginal(
        estimator=estimator, budget=20_000, chains=5, start={"a": 0.5}, proposal=od.random_walk(0.1), seed=1
    )
    assert moved == post.cost.simulations
    assert 20_000 - 84 * 5 < post.cost.simulations <= 20_000
    # Proposals outside the prior are not filtered.
    assert post.cost.skipped > 0
    assert post.cost.skipped + post.cost.simulations == 84 * 5 * (post.shape[1] + 1)


def test_a_filter_without_a_living_particle_is_zero_and_ends_there():
    def log_observation(y, x, a):
        return np.where(np.abs(y - x) < 0.3, 0.0, -np.inf)

    estimator = linear(DATA, 16, log_observation=log_observation)
    found = estimator.evaluate(Rng(1, 1), np.full((500, 1), A), None)
    dead = np.isneginf(found.log_estimate)
    assert 0.3 < dead.mean() < 1.0
    assert 500 * 16 < found.cost.simulations < 500 * estimator.simulations
    assert np.isfinite(found.log_estimate[~dead]).all()
    # An indicator density has an exact probability, and zeros are part of the mean.
    short = log_estimates(linear(DATA[:1], 4, log_observation=log_observation), [A])
    chance = stats.norm.cdf(DATA[0] + 0.3) - stats.norm.cdf(DATA[0] - 0.3)
    check_unbiased(short, np.log(chance))


def test_a_weight_that_is_not_a_number_is_a_failed_simulation():
    def log_observation(y, x, a):
        return np.where(x > 2.5, np.nan, stats_norm(y, x, NOISE))

    estimator = linear(DATA, 20, log_observation=log_observation)
    found = estimator.evaluate(Rng(1, 1), np.full((50, 1), A), None)
    assert found.cost.failed > 0 and np.isfinite(found.log_estimate).all()
    assert "log_observation is nan at time" in found.failures[0].message
    assert found.failures[0].theta == {"a": A}
    post = od.pseudo_marginal(estimator=estimator, draws=10, chains=4, start={"a": 0.5}, seed=1)
    assert post.cost.failed and any("log_observation is nan" in note for note in post.notes)
    strict = linear(DATA, 20, log_observation=log_observation, on_error="raise")
    with pytest.raises(od.SimulationError, match="log_observation is nan at time"):
        od.pseudo_marginal(estimator=strict, draws=100, chains=4, start={"a": 0.5}, seed=1)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"particles": 0}, "particles must be a whole number of at least 1, got 0"),
        ({"data": []}, "at least one observation"),
        ({"data": ["a"]}, "data must be numbers"),
        ({"data": [10**400]}, "data must be numbers"),
        ({"data": [1.0, np.inf]}, "data is infinite at time 1"),
        ({"transition": 3}, "transition must be a function"),
        ({"transition": lambda rng, x, b: x}, "does not fit .*called as transition"),
        ({"on_error": "retry"}, "on_error must be one of"),
    ],
)
def test_bad_settings_are_refused(more, message):
    given = {"data": DATA, "particles": 5} | more
    with pytest.raises(ValueError, match=message):
        linear(given.pop("data"), given.pop("particles"), **given)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"initial": lambda rng, shape, a: rng.standard_normal(shape[1])}, r"initial returned shape \(5,\)"),
        ({"transition": lambda rng, x, a: x[:, :1]}, r"transition turned shape \(3, 5\) into \(3, 1\)"),
        ({"log_observation": lambda y, x, a: x.sum(axis=1)}, r"log_observation returned shape \(3,\)"),
        ({"transition": lambda rng, x, a: 1 / 0}, "transition failed at time 1 .*ZeroDivisionError"),
    ],
)
def test_functions_of_the_wrong_form_are_named(more, message):
    with pytest.raises(od.SimulationError, match=message):
        linear(DATA, 5, **more).evaluate(Rng(1, 1), np.full((3, 1), A), None)


# In Algorithm 2


def exact_posterior(data, points=401):
    grid = (np.arange(points) + 0.5) / points
    log_density = np.array([joint_normal(len(data), a).logpdf(data) for a in grid])
    density = np.exp(log_density - log_density.max())
    return grid, density / density.sum()


def test_the_chain_has_the_posterior_of_the_exact_likelihood():
    grid, mass = exact_posterior(DATA)
    rng = np.random.default_rng(4)
    start = {"a": rng.choice(grid, 4000, p=mass)}
    post = od.pseudo_marginal(estimator=linear(DATA, 8), draws=60, start=start, proposal=od.random_walk(0.3**2), seed=5)
    last = post.draws["a"][:, -1]
    cdf = np.cumsum(mass)
    assert stats.kstest(last, lambda a: np.interp(a, grid, cdf)).pvalue > 1e-4
    assert post.kernel is None and post.model is None
    assert "a" in str(post.summary())
    with pytest.raises(ValueError, match="needs a run with a kernel"):
        post.at(0.1)


def test_no_bound_means_given_starts_and_no_early_rejection():
    estimator = linear(DATA, 5)
    assert estimator.log_bound is None and isinstance(estimator, Estimator)
    with pytest.raises(ValueError, match=r"start=\{'a': ...\}"):
        od.pseudo_marginal(estimator=estimator, draws=5)
    inside = od.pseudo_marginal(
        estimator=estimator, draws=20, chains=6, start={"a": 0.5}, proposal=od.random_walk(1e-4), seed=1
    )
    assert inside.cost.skipped == 0


def test_runs_in_files_go_on(tmp_path):
    given = {"start": {"a": 0.5}, "chains": 6, "proposal": od.random_walk(0.1), "seed": 3}
    path = tmp_path / "filter.db"
    od.pseudo_marginal(estimator=linear(DATA, 6), draws=10, **given, store=path)
    more = od.resume(path, estimator=linear(DATA, 6), draws=25)
    whole = od.pseudo_marginal(estimator=linear(DATA, 6), draws=25, **given)
    assert more.draws["a"].tobytes() == whole.draws["a"].tobytes()
    assert more.cost._replace(seconds=0) == whole.cost._replace(seconds=0)
    for other in (linear(DATA, 7), linear(DATA + 1, 6), linear(DATA, 6, transition=lambda rng, x, a: x)):
        with pytest.raises(od.StoreError):
            od.resume(path, estimator=other, draws=30)


class Own:
    """An estimator of a user's own, with a cost of its own."""

    log_bound = None

    def __init__(self, reported, simulations=None):
        self.prior = od.Prior(theta=stats.norm(0, 1))
        self.reported = reported
        if simulations is not None:
            self.simulations = simulations

    def log_estimate(self, rng, theta, worth):
        return -0.5 * (theta[:, 0] - 1) ** 2 - rng.random(len(theta)), self.reported(int(worth.sum()))


def test_the_cost_of_an_own_estimator_is_counted_and_keeps_the_budget():
    given = {"start": {"theta": 0.0}, "chains": 4, "budget": 1000, "proposal": od.random_walk(1.0), "seed": 1}
    post = od.pseudo_marginal(estimator=Own(lambda rows: 7 * rows, 10), **given)
    assert 1000 - 40 < post.cost.simulations <= 1000 and post.cost.simulations % 28 == 0
    for reported in (lambda rows: 2 * rows, lambda rows: -1, lambda rows: 1.5):
        with pytest.raises(ValueError, match="in an attribute `simulations` of the estimator"):
            od.pseudo_marginal(estimator=Own(reported), **given)


def test_the_public_form_and_the_handicap():
    """Any sampler may ask in the public form; handicapped, the filter keeps its mean."""
    estimator = linear(DATA, 20)
    rng = np.random.default_rng(1)
    worth = np.arange(RUNS) % 2 == 0
    found, simulations = estimator.log_estimate(rng, np.full((RUNS, 1), A), worth)
    assert simulations == estimator.simulations * RUNS // 2
    exact = joint_normal(12).logpdf(DATA)
    check_unbiased(found[worth], exact)
    held = paper.handicapped(estimator, 0.3).evaluate(Rng(3, 1), np.full((RUNS, 1), A), None)
    check_unbiased(held.log_estimate, exact)
    assert held.cost.simulations == pytest.approx(0.7 * RUNS * estimator.simulations, rel=0.05)


# Compiled transitions


def test_a_compiled_transition_moves_one_particle_at_a_time():
    """The numbers come from the same stream, particle after particle: those that NumPy draws as one array."""

    @od.compiled
    def move(rng, x, b, a):
        return a * x + b + rng.standard_normal()

    prior = od.Prior(a=stats.uniform(0, 1), b=stats.norm(0, 1))
    parts = {
        "initial": lambda rng, shape, a, b: rng.standard_normal(shape),
        "log_observation": lambda y, x, a, b: -0.5 * (y - x) ** 2,
        "data": [0.3, -0.1, 1.2],
        "particles": 40,
    }
    arrays = od.particle_filter(
        prior, transition=lambda rng, x, a, b: a * x + b + rng.standard_normal(x.shape), **parts
    )  # fmt: skip
    compiled = od.particle_filter(prior, transition=move, **parts)
    theta = prior.sample(np.random.default_rng(1), 30)
    here, there = (one.evaluate(Rng(1, Phase.RUN), theta, None) for one in (arrays, compiled))
    assert np.allclose(here.log_estimate, there.log_estimate, rtol=1e-12) and here.cost == there.cost
    runs = [od.pseudo_marginal(estimator=one, start={"a": 0.5, "b": 0.0}, chains=6, draws=15, seed=1)
            for one in (arrays, compiled)]  # fmt: skip
    assert np.allclose(runs[0].draws["b"], runs[1].draws["b"], rtol=1e-9)


def test_compiled_states_may_be_arrays_and_be_told_the_time():
    @od.compiled
    def move(rng, x, t, k):
        return np.array([x[0] + t, x[1] + k + rng.random()])

    def moved(rng, x, k, t):
        return np.stack([x[..., 0] + t, x[..., 1] + k + rng.random(x.shape[:2])], axis=2)

    prior = od.Prior(k=stats.randint(1, 5))
    parts = {
        "initial": lambda rng, shape, k: np.zeros((*shape, 2)),
        "log_observation": lambda y, x, k: -0.5 * (y - x[..., 0] - 0.1 * x[..., 1]) ** 2,
        "data": [0.0, 1.0, 3.0],
        "particles": 7,
    }
    theta = np.array([[2.0], [4.0]])
    found = [
        od.particle_filter(prior, transition=one, **parts).evaluate(Rng(1, Phase.RUN), theta, None).log_estimate
        for one in (move, moved)
    ]
    assert np.allclose(found[0], found[1], rtol=1e-12)


def test_a_compiled_transition_that_fails_is_told():
    parts = {
        "initial": lambda rng, shape, a: np.zeros((*shape, 2)),
        "log_observation": lambda y, x, a: -0.5 * (y - x[..., 0]) ** 2,
        "data": [0.0, 1.0],
        "particles": 3,
    }
    prior = od.Prior(a=stats.uniform(0, 1))
    short = od.particle_filter(prior, transition=od.compiled(lambda rng, x, a: x[:1]), **parts)
    with pytest.raises(od.SimulationError, match=r"transition failed at time 1.*the length of the old one"):
        short.evaluate(Rng(1, Phase.RUN), np.array([[0.5]]), None)
    wrong = od.particle_filter(prior, transition=od.compiled(lambda rng, x, a: x.nonsense()), **parts)
    with pytest.raises(od.SimulationError, match=r"(?s)cannot be compiled.*Numba says"):
        wrong.evaluate(Rng(1, Phase.RUN), np.array([[0.5]]), None)
