"""A budget in, a posterior out: its accuracy, its honesty, its budget, and runs that are broken off."""

import math
import pickle
import re
import time
import warnings

import numpy as np
import pytest
from scipy import stats

import onedraw as od
from onedraw.cost import Cost
from onedraw.engines.clock import OutOfTime
from onedraw.engines.threads import one_blas_thread
from onedraw.model.coordinates import support_of
from onedraw.proposals.mixture import Mixture
from onedraw.proposals.mixture import normals_around as around
from onedraw.results import assessment, trial
from onedraw.results.assessment import Assessment
from onedraw.results.coverage import measure_coverage
from onedraw.results.diagnostics import predictive_check, tolerance_path
from onedraw.results.learnt_likelihood import LATE_WORK
from onedraw.results.regression import Method, Neighbourhood
from onedraw.run.bank import Bank
from onedraw.run.blocks import Block, Deadline
from onedraw.run.driver import Driver
from onedraw.run.plan import Bar, Outcome
from onedraw.run.pool import opened_pool
from onedraw.run.saving import Saver
from onedraw.run.store import Store
from onedraw.samplers.infer import (
    Inference,
    ProposeAndSimulate,
    Replicates,
    assessed,
    fulfil,
    next_proposal,
    next_size,
    stage_block,
)
from onedraw.surrogate import likelihood, refits, surrogate
from onedraw.surrogate.likelihood import gram
from tests.conftest import hurry
from tests.deadlines import LONG, up_after
from tests.reference import toy

NOISE = 0.5
GAIN = 1.0 / (1.0 + NOISE**2)


@od.batched
def shifted(rng, a, b):
    return np.column_stack([a, b]) + NOISE * rng.standard_normal((len(a), 2))


PRIOR = od.Prior(a=stats.norm(0, 1), b=stats.norm(0, 1))
LINEAR = od.Model(PRIOR, shifted, [1.0, -0.5])


class Counter:
    """Calls of the simulator, and the one at which it stops; reached through a class, so no part of a model."""

    calls = 0
    stop_at = 0
    hook = None
    """Called with the number of calls."""


def simulate(rng, theta):
    Counter.calls += 1
    if Counter.hook is not None:
        Counter.hook(Counter.calls)
    if Counter.calls == Counter.stop_at:
        raise KeyboardInterrupt
    return theta + rng.standard_normal()


def counted(**more):
    Counter.calls = Counter.stop_at = 0
    return Counter, od.Model(od.Prior(theta=stats.norm()), simulate, 2.0, **more)


@pytest.fixture(scope="module")
def linear():
    return od.infer(LINEAR, budget=2000, seed=1)


def test_the_posterior_of_a_linear_normal_model(linear):
    for name, observed in (("a", 1.0), ("b", -0.5)):
        row = linear.summary()[name]
        assert abs(row.mean - GAIN * observed) < 5 * row.mcse
        assert abs(row.sd / np.sqrt(GAIN * NOISE**2) - 1) < 0.1
    assert linear.shape == (1, 10_000) and linear.weights is None
    assert np.unique(linear.draws["a"]).size == 10_000


def test_two_crescents_are_followed(quick):
    """Most draws must lie on the crescents, which fill about one part in 200 of the prior."""

    @od.batched
    def moons(rng, a, b):
        angle, radius = rng.uniform(-np.pi / 2, np.pi / 2, len(a)), 0.1 + 0.01 * rng.standard_normal(len(a))
        shift = np.column_stack([-np.abs(a + b), b - a]) / np.sqrt(2)
        return np.column_stack([radius * np.cos(angle) + 0.25, radius * np.sin(angle)]) + shift

    model = od.Model(od.Prior(a=stats.uniform(-1, 2), b=stats.uniform(-1, 2)), moons, [0.0, 0.0])
    post = od.infer(model, budget=3000, seed=1, draws=4000)
    a, b = post.draws["a"][0], post.draws["b"][0]
    u, v = np.abs(a + b) / np.sqrt(2) - 0.25, (a - b) / np.sqrt(2)
    on_it = (np.abs(np.hypot(u, v) - 0.1) < 0.06) & (u > -0.06)
    assert on_it.mean() > 0.8
    assert abs(np.mean(a + b > 0) - 0.5) < 0.2
    assert "adapted proposals" in post.settings["method"]


def test_in_many_dimensions_of_a_wide_posterior(quick):
    prior = od.Prior(**{f"t{i}": stats.norm(0, 1) for i in range(8)})

    @od.batched
    def simulate(rng, **theta):
        means = np.column_stack(list(theta.values()))
        return means + rng.standard_normal(means.shape)

    model = od.Model(prior, simulate, np.full(8, 0.3))
    post = od.infer(model, budget=1500, seed=1)
    means = np.array([values.mean() for values in post.draws.values()])
    sds = np.array([values.std() for values in post.draws.values()])
    assert np.all(np.abs(means - 0.15) < 4 * np.sqrt(0.5 * 2 / 1000)) and np.all(np.abs(sds / np.sqrt(0.5) - 1) < 0.12)


@pytest.mark.parametrize("budget", [1, 2, 3, 10, 100, 260, 1100])
def test_the_budget_is_spent_and_never_passed(budget, quick):
    simulate, model = counted()
    post = od.infer(model, budget=budget, seed=1, draws=50)
    assert simulate.calls == post.cost.simulations == budget
    assert post.shape == (1, 50) and np.isfinite(post.draws["theta"]).all()
    assert post.status.reason == "budget"
    if budget <= 10:
        assert "warning: the effective sample size is only about" in str(post.summary())


def test_simulations_of_a_learnt_summary_count(quick):
    simulate, model = counted()
    fitted = od.fit_summary(model, budget=300, seed=2)
    assert simulate.calls == 300
    post = od.infer(fitted, budget=500, seed=1, draws=200)
    assert simulate.calls == post.cost.simulations == 500
    with pytest.raises(ValueError, match="below the 300 simulations"):
        od.infer(fitted, budget=200, seed=1)


def test_pilots_of_distances_cost_nothing_extra(quick):
    simulate, model = counted(distance=od.scaled(pilot=50))
    assert od.infer(model, budget=400, seed=1, draws=200).cost.simulations == simulate.calls == 400


def test_little_of_a_small_stage_is_lost(quick, tmp_path):
    """A slow simulator is interrupted in its tenth simulation: the file has the eight of the blocks before, of 25."""
    counter, model = counted()
    counter.stop_at = 10
    stopped = od.infer(model, budget=50, seed=1, draws=100, store=tmp_path / "run.db")
    assert stopped.status.reason == "interrupted" and od.load(tmp_path / "run.db").cost.simulations == 8
    whole = od.infer(counted()[1], budget=50, seed=1, draws=100, store=tmp_path / "run.db")
    assert counter.calls == 42
    assert (
        whole.draws["theta"].tobytes() == od.infer(counted()[1], budget=50, seed=1, draws=100).draws["theta"].tobytes()
    )


def test_blocks_of_a_stage():
    """Plain simulators are handed out two by two if the stage is small; batched ones are not divided further."""
    assert [stage_block(toy("plain"), size) for size in (1, 25, 99, 100, 10_000)] == [2, 2, 2, 32, 32]
    assert stage_block(toy("batched"), 57) > 1000


def test_the_summary_says_what_was_done(linear):
    text = str(linear.summary())
    for words in ("Method: ", "learnt from", "Effective sample size: about", "Held-out score: ",
                  "simulations proposed near the posterior", "Posterior predictive check passed"):  # fmt: skip
        assert words in text
    row = linear.summary()["a"]
    each = [one.ess for one in linear.summary().rows.values()]
    assert linear.effective == pytest.approx(stats.hmean(each), rel=1e-9) and max(each) < 10_000
    assert np.isclose(row.mcse, row.sd / np.sqrt(row.ess))
    assert linear.method == "learnt likelihood" == linear.alternatives[0]["estimate"]
    assert "regression" in linear.alternatives[1]["estimate"] and linear.alternatives[1]["se"] > 0


@pytest.mark.parametrize("dim", [1, 2, 4])
def test_the_tolerance_at_the_end_of_each_stage(dim):
    """Distances whose i-th nearest of n is (i / n)^(1 / dim)."""
    away = (np.arange(1, 10_001) * 0.6180339887498949 % 1.0) ** (1 / dim)
    ends = (800, 2000, 5000, 10_000)
    path = tolerance_path(away, ends, 150)
    assert tuple(end for end, _ in path) == ends
    assert np.allclose([eps for _, eps in path], (151 / np.array(ends)) ** (1 / dim), rtol=0.03 / dim)


def test_data_that_the_model_cannot_produce_are_named(quick):
    post = od.infer(od.Model(PRIOR, shifted, [30.0, 30.0]), budget=1200, seed=1, draws=500)
    assert "may not be able to produce these data (prior predictive check, p = 0.0044)" in str(post.notes)
    assert "the posterior predictive check failed" in str(post.notes)


def test_the_predictive_check_on_its_own():
    rows = np.random.default_rng(1).standard_normal((100, 3))
    # No more unusual than most.
    assert re.search("check passed: [5-9][0-9] of 100 replicates", predictive_check(rows, np.median(rows, axis=0))[0])
    assert "check passed" in predictive_check(rows, np.zeros(3))[0]
    assert "check failed: 0 of 100 replicates" in predictive_check(rows, np.full(3, 9.0))[0]
    assert predictive_check(rows[:5], np.zeros(3)) == []


def test_constraints_bounds_and_whole_numbers_are_kept(quick):
    prior = od.Prior(a=stats.norm(), b=stats.norm(), where=lambda a, b: a < b)
    model = od.Model(prior, shifted, [0.4, 0.5])
    post = od.infer(model, budget=300, seed=1, draws=1000)
    assert (post.draws["a"] < post.draws["b"]).all() and post.cost.simulations == 300
    counts = od.Model(
        od.Prior(k=stats.poisson(3), p=stats.uniform(0, 1)), lambda rng, k, p: [rng.poisson(k + 1), rng.binomial(9, p)],
        [4.0, 9.0],
    )  # fmt: skip
    post = od.infer(counts, budget=300, seed=1, draws=1000)
    assert post.draws["k"].dtype == np.int64 and post.draws["k"].min() >= 0
    assert post.draws["p"].max() <= 1 and post.draws["p"].mean() > 0.7


def test_a_distance_of_the_users_own_is_kept(quick):
    model = od.Model(PRIOR, shifted, [1.0, -0.5], distance=od.batched(lambda s, o: np.abs(s - o).max(axis=1)))
    post = od.infer(model, budget=1000, seed=1, draws=1000)
    assert post.settings["summary"] == "the distance given"
    assert abs(post.draws["a"].mean() - GAIN) < 0.2


def test_failures_are_counted_misses(quick):
    def picky(rng, theta):
        if theta > 1.5:
            raise RuntimeError("beyond the model")
        return theta + rng.standard_normal()

    model = od.Model(od.Prior(theta=stats.norm()), picky, 2.0)
    post = od.infer(model, budget=500, seed=1, draws=500)
    assert 0 < post.cost.failed < 500 and "count as misses" in str(post.summary())
    assert "beyond the model" in post.failures[0].traceback
    with pytest.raises(od.SimulationError, match="beyond the model"):
        od.infer(model, budget=500, seed=1, on_error="raise")

    def never(rng, theta):
        raise RuntimeError("no luck")

    with pytest.raises(od.SimulationError, match="no luck"):
        od.infer(od.Model(od.Prior(theta=stats.norm()), never, 2.0), budget=50, seed=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": 0}, "budget must be a whole number"),
        ({"budget": 10, "draws": 0}, "draws must be a whole number"),
        ({"budget": 10, "seed": -1}, "seed must be a whole number"),
        ({"budget": 10, "on_error": "no"}, "on_error must be one of"),
        ({"budget": 10, "max_seconds": -1}, "max_seconds must be positive"),
        ({"budget": 10, "progress": 3}, "progress must be True, False or None"),
    ],
)
def test_bad_settings_are_refused_before_any_simulation(arguments, message):
    simulate, model = counted()
    with pytest.raises(ValueError, match=message):
        od.infer(model, **arguments)
    assert simulate.calls == 0


def test_what_is_no_model_is_refused():
    with pytest.raises(ValueError, match="must be an od"):
        od.infer(3, budget=10)


@pytest.fixture(scope="module")
def uninterrupted():
    """A run that is compared with those broken off."""
    _, model = counted()
    with pytest.MonkeyPatch.context() as patch:
        hurry(patch)
        whole = od.infer(model, budget=1100, seed=5, draws=300)
    assert Counter.calls == 1100
    return model, whole


@pytest.mark.parametrize("at", [1, 150, 420, 1090])
def test_an_interrupted_run_goes_on_to_the_same_bytes(at, tmp_path, uninterrupted, quick):
    """In the pilot, in later stages, and in the check at the end."""
    model, whole = uninterrupted
    Counter.calls, Counter.stop_at = 0, at
    store = tmp_path / "run.db"
    broken = od.infer(model, budget=1100, seed=5, draws=300, store=store)
    assert broken.status.reason == "interrupted" and broken.cost.simulations < 1100
    opened = od.load(store) if at > 64 else broken
    assert opened.cost.simulations == broken.cost.simulations
    if at > 64:
        assert opened.shape[1] > 0 and np.isfinite(opened.draws["theta"]).all()
    Counter.calls = Counter.stop_at = 0
    done = od.infer(model, budget=1100, seed=5, draws=300, store=store) if at == 1 else od.resume(store, model)
    assert Counter.calls == 1100 - broken.cost.simulations
    for post in (done, od.load(store), od.infer(model, budget=1100, seed=5, draws=300, store=store)):
        assert post.draws["theta"].tobytes() == whole.draws["theta"].tobytes()
        assert post.settings == whole.settings
        assert post.cost._replace(seconds=0.0) == whole.cost._replace(seconds=0.0)
        assert post.notes == whole.notes and post.status == whole.status and dict(post.settings) == dict(whole.settings)


def test_a_raised_budget_counts_all_that_was_spent(tmp_path, quick):
    simulate, model = counted()
    store = tmp_path / "run.db"
    od.infer(model, budget=300, seed=5, draws=200, store=store)
    post = od.resume(store, model, budget=500)
    assert simulate.calls == post.cost.simulations == 500
    assert od.load(store).cost.simulations == 500
    with pytest.raises(od.StoreError, match="may be raised, not lowered"):
        od.infer(model, budget=200, seed=5, draws=200, store=store)
    with pytest.raises(od.StoreError, match="has no kernel"):
        od.resume(store, model, kernel=od.uniform(1.0))


def staged_draw(rng, state, m):
    if state > 2:
        raise RuntimeError("beyond the model")
    return state + rng.standard_normal(m)


def told(post):
    arrays = [*post.draws.values(), *(() if post.distances is None else (post.distances,))]
    rest = post.cost._replace(seconds=0.0), post.notes, post.status, dict(post.settings), post.failures
    return [array.tobytes() for array in arrays], rest, post.effective, str(post.acceptance_rate)


@pytest.mark.parametrize(
    ("kind", "segment"),
    [
        ("plain", 1e-9),
        ("staged", 30.0),
        pytest.param("batched", 1e-9, marks=pytest.mark.slow),
        pytest.param("staged", 1e-9, marks=pytest.mark.slow),
    ],
)
def test_records_that_are_lost_are_computed_again(kind, segment, tmp_path, quick):
    """A run that saves at every chance, or a stage at a time, is cut off behind any of its records, as a kill would."""
    simulators = {"batched": od.batched(lambda rng, theta: theta + rng.standard_normal(len(theta))), "plain": simulate,
                  "staged": od.staged(lambda theta: theta, staged_draw)}  # fmt: skip
    model = od.Model(od.Prior(theta=stats.norm()), simulators[kind], 2.0)
    path = tmp_path / "run.db"
    whole = od.infer(model, budget=300, seed=5, draws=100, store=path, segment=segment)
    assert told(od.infer(model, budget=300, seed=5, draws=100)) == told(whole) == told(od.load(path))
    with Store(path) as file:
        number = file.count()
    # Behind the check but without the end, and behind others.
    for left in (number - 1, number - 2, number - 3, number // 2, 1):
        with Store(path, write=True) as file:
            file.drop_after(left)
        assert told(od.resume(path, model, segment=segment)) == told(whole)


def test_more_draws_cost_nothing(tmp_path, quick):
    _, model = counted()
    store = tmp_path / "run.db"
    od.infer(model, budget=1000, seed=5, draws=100, store=store)
    Counter.calls = 0
    more = od.resume(store, model, draws=400)
    assert Counter.calls == 0 and more.shape == od.load(store).shape == (1, 400) and more.cost.simulations == 1000


@pytest.mark.slow
def test_the_error_of_the_mean_is_that_of_repeated_runs():
    """Means of many runs scatter around the exact ones by their mcse, where data lie at the edge of the simulations.

    The region of a wide posterior in four dimensions is nearly all simulations, and the data lie far from its middle:
    the weights alone would promise a third of the error.
    """
    prior = od.Prior(**{f"t{i}": stats.norm(0, 1) for i in range(4)})

    @od.batched
    def simulate(rng, **theta):
        means = np.column_stack(list(theta.values()))
        return means + rng.standard_normal(means.shape)

    away = []
    for seed in range(8):
        post = od.infer(od.Model(prior, simulate, np.full(4, 1.8)), budget=500, seed=seed, draws=1000)
        away += [(row.mean - 0.9) / row.mcse for row in post.summary().rows.values()]
    # Eight independent groups of four numbers: the standard error of their root mean square is 0.125 to 0.25.
    assert 0.5 < np.sqrt(np.mean(np.square(away))) < 1.6


def test_coverage_on_request(tmp_path, quick):
    path = tmp_path / "run.db"
    Counter.calls = 0
    _, model = counted()
    before = od.infer(model, budget=1000, seed=3, draws=400, store=path)
    assert "coverage" not in before.settings
    # No more simulations, and the same draws: the file is asked for more.
    after = od.infer(model, budget=1000, seed=3, draws=400, coverage=100, store=path)
    assert Counter.calls == 1000 and np.array_equal(after.draws["theta"], before.draws["theta"])
    found = after.settings["coverage"]
    assert 50 < found["number"] <= 100 and found["levels"] == [0.5, 0.8, 0.9, 0.95]
    for level, held, error in zip(found["levels"], found["held"]["theta"], found["se"], strict=True):
        assert abs(held - level) < 4 * error
    assert after.notes[-1].startswith(f"Coverage: 50 / 80 / 90 / 95 % intervals at {found['number']} simulations")
    assert od.load(path).settings["coverage"] == found == od.resume(path, model).settings["coverage"]
    assert Counter.calls == 1000
    few = od.infer(model, budget=10, seed=3, coverage=5)
    assert few.settings["coverage"]["number"] == 0 and "raise the budget" in few.notes[-1]
    with pytest.raises(ValueError, match="coverage must be a whole number of at least 0, got -1"):
        od.infer(model, budget=10, coverage=-1)


def test_coverage_counts_a_simulation_as_often_as_it_was_picked():
    """Of two that are near, one has all but a hundredth of the weight, and lies outside of every interval."""
    n = 400
    free = np.linspace(-1.0, 1.0, n)[:, None]
    log_weight = np.zeros(n)
    free[[101, 103], 0] = 50.0, 0.0
    rows = np.full((n, 1), 5.0)
    rows[[101, 103]] = 0.0
    log_weight[101] = np.log(99.0)
    near = Neighbourhood(free, rows, log_weight, np.ones(1, dtype=bool))
    chosen = trial.TrialResult(Method(0, n - 2, "none"), 0, 0.0, 0.0, 0.0, *[np.empty(0)] * 3)
    held_out = np.setdiff1d(np.arange(1, n, 2), [101, 103])
    said = Assessment((near,), (np.zeros(1),), ("given",), chosen, None, np.arange(n), held_out, None)
    found = measure_coverage(said, ("theta",), 100, np.random.default_rng(1))
    assert found["number"] == 2 and np.allclose(found["held"]["theta"], 0.01)
    # The effective number of simulations is (99 + 1)^2 / (99^2 + 1).
    assert found["se"] == pytest.approx([np.sqrt(one * (1 - one) / (1e4 / 9802)) for one in found["levels"]])
    equal = near._replace(log_weights=np.zeros(n))
    said = said._replace(neighbourhoods=(equal,), held_out=np.arange(1, 301, 2))
    found = measure_coverage(said, ("theta",), 50, np.random.default_rng(1))
    assert found["number"] == 50
    assert found["se"] == pytest.approx([np.sqrt(one * (1 - one) / 50) for one in found["levels"]])


def test_the_draws_are_not_sold_as_a_samplers(linear):
    with pytest.raises(ValueError, match=r"with about [0-9]+ effective draws"):
        linear.efficiency()
    with pytest.raises(ValueError, match="needs a run with a kernel"):
        linear.at(0.1)


def test_max_seconds_gives_what_there_is(quick):
    def simulate(rng, theta):
        return theta + rng.standard_normal()

    with up_after(20):
        post = od.infer(od.Model(od.Prior(theta=stats.norm()), simulate, 2.0), budget=10**6, seed=1, max_seconds=LONG)
    assert post.status.reason == "max_seconds" and 0 < post.cost.simulations < 1000
    assert np.isfinite(post.draws["theta"]).all()


def normals(centre, root):
    """A mixture without columns of whole numbers."""
    return Mixture(centre, root, np.empty((len(centre), 0)), np.zeros(centre.shape[1], dtype=bool))


def inference(model, seed=1):
    return Inference(model, support_of(model.prior), seed, "reject")


def test_tasks_travel_between_processes():
    """The pure task of a stage gives the same after a trip through pickle."""
    mixture = normals(np.zeros((2, 2)), np.stack([np.eye(2)] * 2))
    task = ProposeAndSimulate(inference(od.Model(PRIOR, shifted, [1.0, -0.5]), 3), 1, mixture)
    assert np.array_equal(task(Block(0, 20)).arrays["rows"], task(Block(0, 20)).arrays["rows"])
    assert np.array_equal(pickle.loads(pickle.dumps(mixture)).sample(np.random.default_rng(1), 3),
                          mixture.sample(np.random.default_rng(1), 3))  # fmt: skip


def test_mixture_density_is_a_density_and_that_of_its_draws():
    mixture = normals(np.array([[-1.0], [2.0]]), np.array([[[0.5]], [[1.5]]]))
    grid = np.linspace(-15, 15, 6001)[:, None]
    density = np.exp(mixture.log_density(grid))
    assert abs(density.sum() * 0.005 - 1) < 1e-6
    drawn = mixture.sample(np.random.default_rng(1), 20_000)
    assert abs(drawn.mean() - 0.5) < 4 * drawn.std() / np.sqrt(20_000)
    exact = 0.5 * stats.norm.cdf(drawn[:, 0], -1, 0.5) + 0.5 * stats.norm.cdf(drawn[:, 0], 2, 1.5)
    assert stats.kstest(exact, "uniform").pvalue > 1e-3


def test_a_mixture_with_whole_numbers_is_that_of_its_draws():
    mixture = Mixture(
        np.array([[3.0, 0.2], [10.0, -0.5]]),
        np.array([[[0.5]], [[1.5]]]),
        np.array([[0.5], [2.0]]),
        np.array([True, False]),
    )
    values = np.arange(-5.0, 26.0)
    grid = np.linspace(-12, 12, 2401)
    both = np.column_stack([np.repeat(values, grid.size), np.tile(grid, values.size)])
    mass = np.exp(mixture.log_density(both)).reshape(values.size, grid.size).sum(axis=1) * 0.01
    assert abs(mass.sum() - 1) < 1e-6
    drawn = mixture.sample(np.random.default_rng(1), 20_000)
    seen = (drawn[:, :1] == values).sum(axis=0)
    assert seen.sum() == 20_000
    often = mass * 20_000 > 5
    assert stats.chisquare(seen[often], mass[often] * seen[often].sum() / mass[often].sum()).pvalue > 1e-3
    # Of the continuous column given a whole number: its share of either normal.
    few, many = stats.norm(3, 0.5), stats.norm(10, 2.0)
    share = np.array([one.cdf(6.5) - one.cdf(5.5) for one in (few, many)])
    share /= share.sum()
    some = drawn[drawn[:, 0] == 6, 1]
    exact = share[0] * stats.norm.cdf(some, 0.2, 0.5) + share[1] * stats.norm.cdf(some, -0.5, 1.5)
    assert some.size > 100 and stats.kstest(exact, "uniform").pvalue > 1e-3


def animals(rng, N, p):
    """Mean and standard deviation of six counts of N animals, each seen with probability p."""
    seen = rng.binomial(N.astype(np.int64)[:, None], p[:, None], size=(len(N), 6))
    return np.column_stack([seen.mean(axis=1), seen.std(axis=1)])


@pytest.mark.slow
def test_whole_numbers_are_followed():
    """The number of animals and the chance to see one, against sums over all numbers on a grid of chances.

    The posterior of the number lies in a twentieth of its prior. Means of two runs have 0.7 of the error of one.
    """
    counts = np.array([121, 123, 111, 118, 117, 117])
    model = od.Model(
        od.Prior(N=stats.randint(1, 2001), p=stats.beta(30, 20)), od.batched(animals), [counts.mean(), counts.std()]
    )
    posts = [od.infer(model, budget=3000, seed=seed, draws=4000) for seed in (1, 2)]
    assert all("adapted proposals" in post.settings["method"] for post in posts)
    number, chance = np.arange(1, 2001)[:, None], np.linspace(0.001, 0.999, 999)
    log_post = stats.binom.logpmf(counts[:, None, None], number, chance).sum(axis=0) + stats.beta(30, 20).logpdf(chance)
    exact = np.exp(log_post - log_post.max())
    exact /= exact.sum()
    for name, values, mass in (("N", number[:, 0], exact.sum(axis=1)), ("p", chance, exact.sum(axis=0))):
        rows, mean = [post.summary()[name] for post in posts], mass @ values
        sd = np.sqrt(mass @ (values - mean) ** 2)
        error = np.sqrt(sum(row.mcse**2 for row in rows)) / len(rows)
        assert abs(np.mean([row.mean for row in rows]) - mean) < 4 * error
        assert abs(np.mean([row.sd for row in rows]) / sd - 1) < 0.3
    assert all(row.mcse < 0.2 * sd for row in rows) and posts[0].draws["N"].dtype == np.int64


def bank_of(prior, n, mixture, seed=1):
    rng = np.random.default_rng(seed)
    support = support_of(prior)
    theta = np.concatenate([prior.sample(rng, n), support.bounded(mixture.sample(rng, n))])
    return Bank(prior, support, theta, theta, ((n, mixture),), of_prior=n), support.unbounded(theta)


def test_weights_make_every_proposal_stand_for_the_prior():
    """Weighted means over prior and mixture draws together are those of the prior."""
    prior = od.Prior(a=stats.gamma(3.0), b=stats.uniform(0, 1))
    bank, unbounded = bank_of(prior, 20_000, normals(np.array([[0.5, 1.0]]), 0.7 * np.eye(2)[None]))
    weight = np.exp(bank.log_weights(unbounded))
    assert abs(weight.mean() - 1) < 0.02
    for column, exact, sd in ((0, 3.0, 3**0.5), (1, 0.5, 12**-0.5)):
        assert abs(weight @ bank.theta[:, column] / weight.sum() - exact) < 4 * sd * 2 / np.sqrt(20_000)


@pytest.mark.parametrize("joint", [False, True])
def test_the_constant_of_a_prior_that_does_not_integrate_to_one(joint):
    """Of a constraint on named parameters, and of a joint density without its constant."""
    prior = od.Prior(a=stats.norm(), b=stats.norm(), where=lambda a, b: a < b)
    if joint:
        prior = od.Prior.joint(
            ["a", "b"], prior.sample,
            lambda t: np.where(t[:, 0] < t[:, 1], -0.5 * np.square(t).sum(axis=1) - np.log(2 * np.pi), -np.inf),
        )  # fmt: skip
    mixture = normals(np.array([[-0.5, 0.5]]), 0.5 * np.eye(2)[None])
    bank = Bank(prior, support_of(prior), np.empty((0, 2)), np.empty((0, 2)))
    theta = prior.sample(np.random.default_rng(1), 40)
    made = Outcome({"theta": theta, "rows": theta}, Cost(simulations=40, proposals=40))
    bank = bank.with_stage(made, None, 1).with_stage(made, mixture, 1)
    assert abs(bank.log_constant - np.log(0.5)) < 0.05
    assert bank.of_prior == 44 and bank.mixtures[0][0] == 36 and bank.ends == (40, 80)


def test_a_proposal_is_used_only_where_it_pays():
    rng = np.random.default_rng(1)
    prior = od.Prior(a=stats.uniform(-10, 20))
    theta = prior.sample(rng, 600)
    for noise, pays in ((0.2, True), (30.0, False)):
        rows = theta + noise * rng.standard_normal((600, 1))
        model = od.Model(prior, od.batched(lambda rng, a: a), 1.0)
        cost = Cost(simulations=600, proposals=600)
        bank = Bank(prior, support_of(prior), theta, rows, of_prior=600, stages=1, ends=(600,), cost=cost)
        found = assessed(inference(model), bank, thorough=False)
        source = found.draws.source[: 60 if pays else 400]
        found = found._replace(draws=found.draws._replace(source=source), learnt=None)
        assert (next_proposal(inference(model), bank, found) is not None) is pays


def test_proposals_for_whole_numbers_always_move():
    """Also where all draws agree on one number: its neighbours must be tried."""
    rng = np.random.default_rng(1)
    free = np.column_stack([np.full(200, 7.0), rng.standard_normal(200)])
    mixture = around(free, np.ones(200), 1.0, 30, rng, np.array([True, False]))
    assert np.array_equal(mixture.deviation, np.full((30, 1), 0.5))
    drawn = mixture.sample(rng, 4000)
    away = np.mean(drawn[:, 0] != 7.0)
    # Rounded normals of deviation 1/2 move with probability 2 Phi(-1).
    expected = 2 * stats.norm.cdf(-1.0)
    assert abs(away - expected) < 4 * np.sqrt(expected * (1 - expected) / 4000)


def test_proposals_follow_their_neighbours():
    rng = np.random.default_rng(1)
    along = rng.uniform(-1, 1, 2000)
    free = np.column_stack([along, along**2 + 0.01 * rng.standard_normal(2000)])
    mixture = around(free, np.ones(2000), 1.0, 100, rng, np.zeros(2, dtype=bool))
    drawn = mixture.sample(rng, 5000)
    assert np.median(np.abs(drawn[:, 1] - drawn[:, 0] ** 2)) < 0.15


def test_stages_grow_and_end():
    for budget in (1, 10, 249, 250, 1000, 54_321, 10**6):
        done, sizes = 0, []
        while done < budget:
            sizes.append(next_size(budget, done))
            done += sizes[-1]
        assert done == budget and min(sizes) >= 1 and len(sizes) < 14


@pytest.mark.slow
def test_coverage_of_a_normal_sample():
    """Over 60 data sets from the prior, 90 % intervals hold the truth as often as they say."""
    inside = 0
    for k in range(60):
        rng = np.random.default_rng(k)
        truth = PRIOR.sample(rng, 1)
        observed = shifted(rng, **PRIOR.columns(truth))[0]
        post = od.infer(od.Model(PRIOR, shifted, observed), budget=2000, seed=k, draws=2000)
        for column, values in enumerate(post.draws.values()):
            low, high = np.quantile(values, [0.05, 0.95])
            inside += int(low <= truth[0, column] <= high)
    assert abs(inside / 120 - 0.9) < 4 * np.sqrt(0.09 / 120)


def bank_after(model, budget, seed=1):
    """All simulations of a run with this budget."""
    bank = Bank(model.prior, support_of(model.prior), np.empty((0, 1)), np.empty((0, 1)))
    with opened_pool(None, None) as pool:
        driver = Driver(Saver(), pool, Deadline(None), False, Bar("infer", budget, "simulations"))
        bank, _, result = driver.run(fulfil(inference(model, seed), bank, Replicates(0, bank.rows), budget, 50, 0))
    assert result.reason == "budget"
    return bank


def test_every_proposal_is_counted_where_it_came_from(quick):
    """One in ten proposals of an adapted stage is from the prior; the weights rest on these numbers."""
    model = od.Model(od.Prior(a=stats.uniform(-10, 20)), od.batched(lambda rng, a: rng.normal(a, 0.1)), 1.0)
    bank = bank_after(model, 900)
    made = [number for number, _ in bank.mixtures]
    assert made and bank.of_prior + sum(made) == bank.cost.proposals == 900
    stages = np.split(bank.theta, bank.ends[:-1])
    assert made == [len(theta) - -(-len(theta) // 10) for theta in stages[1:]]
    # Draws from the prior are every tenth: they alone are spread over its whole range.
    spread = [(np.std(theta[::10]), np.std(np.delete(theta, slice(None, None, 10)))) for theta in stages[2:]]
    assert all(4 < safe < 8 and adapted < 2 for safe, adapted in spread)


def test_every_component_takes_its_turn():
    """Draws from the prior take no component's turn: in a long block each of 20 components has its share."""
    mixture = normals(np.arange(0.0, 2000.0, 100.0)[:, None], np.full((20, 1, 1), 0.1))
    model = od.Model(od.Prior(a=stats.norm(0, 1)), od.batched(lambda rng, a: a), 1.0)
    theta = ProposeAndSimulate(inference(model), 1, mixture)(Block(0, 400)).arrays["theta"][:, 0]
    adapted = np.delete(theta, slice(None, None, 10))
    assert np.bincount(np.rint(adapted / 100).astype(int), minlength=20).tolist() == [18] * 20


def test_no_stage_repeats_the_numbers_of_another(quick):
    model = od.Model(od.Prior(a=stats.norm()), od.batched(lambda rng, a: rng.normal(a, 3.0)), 1.0)
    theta, rows = bank_after(model, 900).good()
    assert np.unique(theta).size == np.unique(rows).size == 900
    assert np.unique(rows - theta).size == 900


def test_a_run_that_goes_on_shows_its_draws(tmp_path, quick):
    """The file holds the estimate from the stages before, as soon as the next one saves."""
    store, seen = tmp_path / "run.db", []
    _, model = counted()
    Counter.hook = lambda calls: seen.append(od.load(store)) if calls in (150, 700) else None
    whole = od.infer(model, budget=1100, seed=5, draws=300, store=store, segment=1e-9)
    Counter.hook = None
    pilot, later = seen
    assert pilot.shape == (1, 0) and 64 <= pilot.cost.simulations <= 150
    assert later.shape == (1, 1000) and 600 <= later.cost.simulations <= 700
    for post in seen:
        assert post.status.reason == "unfinished" and "od.resume" in post.status.message
    assert abs(later.draws["theta"].mean() - whole.draws["theta"].mean()) < 0.5
    assert later.notes[0].startswith("Method: ") and later.settings["stages"] < whole.settings["stages"]


def test_a_killed_run_shows_its_draws(tmp_path, quick):
    """Behind any record from the second stage on; what it has spent is that of all segments."""
    store = tmp_path / "run.db"
    _, model = counted()
    whole = od.infer(model, budget=1100, seed=5, draws=300, store=store, segment=1e-9)
    with Store(store) as file:
        number = file.count()
    spent = []
    for left in (number - 2, 3 * number // 4, number // 2):
        with Store(store, write=True) as file:
            file.drop_after(left)
        post = od.load(store)
        assert post.status.reason == "unfinished" and post.shape == (1, 1000)
        spent.append(post.cost.simulations)
    assert spent == sorted(spent, reverse=True) and 200 < spent[-1] < spent[0] <= 1100
    assert told(od.resume(store, model)) == told(whole)


def many_normals(parameters):
    """A summary of each parameter: itself with noise."""

    @od.batched
    def simulate(rng, **theta):
        columns = np.column_stack(list(theta.values()))
        return columns + rng.standard_normal(columns.shape)

    prior = od.Prior(**{f"t{k}": stats.norm() for k in range(parameters)})
    return od.Model(prior, simulate, np.zeros(parameters))


@pytest.mark.parametrize("parameters", [80, 200])
def test_a_time_limit_holds_with_many_parameters(parameters, monkeypatch):
    """A run takes little longer than its limit and a trial of regressions, which it has to make after it.

    The yardstick is that trial in the same run, so that it does not depend on the machine. Measured in time of the
    processor: others may use the machine as well.
    """
    real, seconds = assessment.choose_method, []

    def timed(*given):
        began = time.process_time()
        try:
            return real(*given)
        finally:
            seconds.append(time.process_time() - began)

    monkeypatch.setattr(assessment, "choose_method", timed)
    with one_blas_thread():
        began = time.process_time()
        post = od.infer(many_normals(parameters), budget=100_000, seed=1, draws=1000, max_seconds=1.0)
        spent = time.process_time() - began
    assert post.status.reason == "max_seconds"
    # The limit, the second that work in progress has after it, and all else that is done after it.
    assert spent < 2.0 + 2.5 * seconds[-1], (spent, seconds)


@pytest.mark.parametrize(("parameters", "learnt"), [(80, False), (20, True)])
def test_what_is_fitted_after_a_time_limit_is_bounded(parameters, learnt, monkeypatch):
    """By counts of simulations, parameters and summaries, without a clock; of few summaries a likelihood is learnt."""
    products, stopped = [], []

    def counted(x, root_weights):
        products.append(x.shape[0] * x.shape[1] ** 2)
        return gram(x, root_weights)

    def once_in_time(*given, **more):
        if not stopped:
            stopped.append(True)
            raise OutOfTime
        return assessed(*given, **more)

    for module in (likelihood, refits, surrogate):
        monkeypatch.setattr(module, "gram", counted)
    monkeypatch.setattr("onedraw.samplers.infer.assessed", once_in_time)
    model = many_normals(parameters)
    post = od.infer(model, budget=100_000, seed=1, draws=1000, max_seconds=LONG)
    assert post.status.reason == "max_seconds" and sum(products) < LATE_WORK, sum(products)
    assert (post.settings["estimate"] == "learnt likelihood") is learnt
    assert any("No likelihood was learnt" in note for note in post.notes) is not learnt
    draws = np.column_stack([post.draws[name].ravel() for name in model.prior.labels])
    assert np.abs(draws.mean(axis=0)).mean() < 0.1
    assert draws.std(axis=0).mean() == pytest.approx(math.sqrt(0.5), rel=0.15)


@pytest.mark.parametrize("given_up", ["stage", "estimate"])
def test_what_takes_too_long_is_given_up_and_made_when_the_run_goes_on(given_up, tmp_path, monkeypatch, quick):
    model = od.Model(od.Prior(theta=stats.norm()), od.batched(lambda rng, theta: rng.normal(theta, 1.0)), 2.0)
    real, asked = assessed, []

    def slow(run, bank, thorough, **more):
        asked.append(thorough)
        # The second brief one is that of a result.
        if thorough if given_up == "estimate" else asked == [False]:
            raise OutOfTime
        return real(run, bank, thorough, **more)

    whole = od.infer(model, budget=300, draws=100, seed=1)
    with monkeypatch.context() as patch:
        patch.setattr("onedraw.samplers.infer.assessed", slow)
        post = od.infer(model, budget=300, draws=100, seed=1, max_seconds=LONG, store=tmp_path / "run.db")
    assert post.status.reason == "max_seconds" and asked[-1] is False
    assert post.cost.simulations == (300 if given_up == "estimate" else next_size(300, 0))
    assert np.isfinite(post.draws["theta"]).all()
    again = od.infer(model, budget=300, draws=100, seed=1, store=tmp_path / "run.db")
    assert again.status.reason == "budget" and again.draws["theta"].tobytes() == whole.draws["theta"].tobytes()


def _normal(rng, n, *shape):
    return rng.standard_normal((n, *shape))


UNUSUAL = {
    "far from zero": (
        lambda rng, a, b: np.column_stack([1e12 + a, 1e9 * b]) + [1.0, 1e9] * _normal(rng, len(a), 2),
        [1e12, 1e9],
    ),
    "tiny": (lambda rng, a, b: 1e-15 * (np.column_stack([a, b]) + _normal(rng, len(a), 2)), [1e-15, 1e-15]),
    "enormous tails": (lambda rng, a, b: (a + b * rng.standard_cauchy(len(a))) ** 5, [3.0]),
    "repeated": (lambda rng, a, b: np.repeat(a[:, None] + _normal(rng, len(a), 1), 4, axis=1), [0.3] * 4),
    "repeated, unlike the data": (
        lambda rng, a, b: np.repeat(a[:, None] + _normal(rng, len(a), 1), 3, axis=1),
        [0.3, 0.31, 0.29],
    ),
    "almost without noise": (lambda rng, a, b: np.column_stack([a, b + 0 * rng.random(len(a))]), [0.3, 1.0]),
    "impossible": (lambda rng, a, b: np.column_stack([a, b]) + _normal(rng, len(a), 2), [1e6, 1.0]),
    "yes and no": (lambda rng, a, b: np.column_stack([a, b]) + _normal(rng, len(a), 2) > 0.5, [1.0, 0.0]),
    "rounded": (lambda rng, a, b: np.round(a[:, None] + 0.3 * _normal(rng, len(a), 3), 2), [0.31, 0.22, 0.44]),
    "at a limit": (lambda rng, a, b: np.minimum(np.exp(a + _normal(rng, len(a))), 1.0), [1.0]),
    "hardly ever not zero": (
        lambda rng, a, b: (
            np.column_stack([(rng.random(len(a)) < 0.03) * np.exp(b), a]) + [0, 1] * _normal(rng, len(a), 2)
        ),
        [2.0, 0.1],
    ),
    "of all sizes": (
        lambda rng, a, b: np.column_stack([np.exp(5 * a), -np.exp(8 * b)]) * np.exp(_normal(rng, len(a), 2)),
        [2.0, -3000.0],
    ),
}


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_summaries_end_no_run(name):
    """Draws are inside the prior, and nothing divides by zero."""
    simulate, observed = UNUSUAL[name]
    prior = od.Prior(a=stats.norm(0, 1), b=stats.uniform(0, 2))
    with np.errstate(divide="raise"), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        post = od.infer(od.Model(prior, od.batched(simulate), observed), budget=120, seed=1, draws=200)
    assert np.isfinite(post.draws["a"]).all() and np.all((post.draws["b"] >= 0) & (post.draws["b"] <= 2))
