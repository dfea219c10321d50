"""Compiled simulators: the same numbers as from NumPy, the same answers as from any other simulator.

One loop is compiled for each simulator, summary and distance, which takes about a second: tests share them.
"""

import pickle
import subprocess
import sys
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

import cloudpickle
import numba
import numpy as np
import pytest
from scipy import stats

import onedraw as od
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.estimators import abc_average as estimator_module
from onedraw.estimators.abc_average import AbcAverage
from onedraw.model.distance import Euclidean, Mahalanobis
from onedraw.run import chain_blocks as chains_module
from onedraw.run import pool as pool_module
from onedraw.run.fingerprint import fingerprint
from onedraw.run.pool import WorkerPool, opened_pool
from tests.deadlines import LONG, up_after
from tests.marks import long_in_slow_tests
from tests.reference import Exact, beta_evidence, beta_posterior, simulate_one, toy
from tests.test_chains import agrees
from tests.test_contract import bytes_of

compiled_module = import_module("onedraw.engines.numba")  # od.compiled is the function in it
KERNELS = [od.uniform(0.6), od.gaussian(0.5), od.epanechnikov(0.9), od.triangular(0.9), od.laplace(0.4)]
THETA = od.Prior(theta=stats.norm(0, 1))
TWO = od.Prior(mu=stats.norm(0, 1), count=stats.randint(2, 7))


def averages(rng, count, mu):
    """The mean and the spread of a few normals, NaN for large mu; the parameters are not in the prior's order."""
    total, squares = 0.0, 0.0
    for _ in range(count):
        y = rng.normal(mu, 1.0)
        total += y
        squares += y * y
    if mu > 1.0:
        total = np.nan
    return np.array([total / count, squares / count, total * squares])


def shortened(y):
    return y[0], y[1] - y[0] * y[0]


def apart(simulated, observed):
    largest = 0.0
    for k in range(2):
        largest = max(largest, abs(simulated[k] - observed[k]))
    return largest


def picky(rng, theta):
    """Raises for large theta and draws nothing at very small ones."""
    if theta > 1.5:
        raise RuntimeError("beyond the model")
    if theta < -50.0:
        return theta
    return theta + rng.standard_normal()


SIMULATE, SUMMARY, DISTANCE, PICKY = map(od.compiled, (averages, shortened, apart, picky))
OBSERVED = np.array([0.3, 1.2, 0.4])
SIGNED = od.Model(THETA, od.compiled(simulate_one), 0.0, distance=od.compiled(lambda a, b: a - b))
"""Its distance may be negative."""
STILL = od.Model(od.Prior(theta=stats.norm(-60, 1)), PICKY, -60.0)
"""It draws nothing from the rng."""
DISTANCES = {
    "euclidean": od.euclidean(),
    "scaled": od.scaled(scale=[0.5, 2.0]),
    "robust": od.scaled(scale=[0.5, 2.0], robust=True),
    "mahalanobis": Mahalanobis(0, np.array([[1.0, 0.3], [-0.2, 0.7]])),
    "own": DISTANCE,
}


def model(distance="euclidean"):
    return od.Model(TWO, SIMULATE, OBSERVED, summary=SUMMARY, distance=DISTANCES[distance])


# Random numbers


def test_numba_draws_the_numbers_of_numpy_and_reads_a_state_set_in_place():
    @numba.njit
    def few(rng):
        return rng.standard_normal(), rng.standard_exponential(), rng.random(), rng.normal(1.0, 2.0)

    rng, again = Rng(3, Phase.RUN, 5, 7), Rng(3, Phase.RUN, 5, 7)
    seen = []
    for chunk in (0, 1, 0):
        there, here = rng.bulk(Purpose.SIMULATE, chunk), again.bulk(Purpose.SIMULATE, chunk)
        seen.append(few(there))
        expected = here.standard_normal(), here.standard_exponential(), here.random(), here.normal(1.0, 2.0)
        assert seen[-1] == expected
        assert (
            there.bit_generator.state["state"]["state"].tolist() == here.bit_generator.state["state"]["state"].tolist()
        )
    assert seen[0] == seen[2] != seen[1]


def test_a_compiled_simulator_draws_what_its_python_function_draws():
    theta = TWO.sample(np.random.default_rng(1), 40)
    drawn = model().simulate_rows(Rng(1, Phase.RUN), theta, None, 3)
    generator = Rng(1, Phase.RUN).bulk(Purpose.SIMULATE)
    for i, (mu, count) in enumerate(theta):
        for m in range(3):
            expected = shortened(averages(generator, count=int(count), mu=mu))
            expected = [np.nan, np.nan] if mu > 1.0 else expected
            assert np.allclose(drawn.rows[i, m], expected, rtol=1e-12, equal_nan=True)
    assert drawn.cost.failed == 3 * np.count_nonzero(theta[:, 0] > 1.0) > 0


def test_chunks_have_streams_of_their_own(monkeypatch):
    theta = np.full((30, 1), 1.0)
    average = AbcAverage(toy("compiled"), od.gaussian(1.0), 2)
    whole = average.evaluate(Rng(1, Phase.RUN), theta, None)
    monkeypatch.setattr(estimator_module, "COMPILED_ROWS", 10)
    cut = average.evaluate(Rng(1, Phase.RUN), theta, None)
    assert np.array_equal(cut.distances[:10], whole.distances[:10])
    assert len(np.unique(cut.distances)) == 60
    assert cut.distances.shape == whole.distances.shape and cut.cost.simulations == 60


# The loop against NumPy


@pytest.mark.parametrize(
    "distance",
    # With given scales, a robust one has the formula of the other.
    long_in_slow_tests(DISTANCES, "robust", "euclidean"),
)
def test_the_loop_agrees_with_numpy_on_the_same_stream(distance, monkeypatch):
    theta = TWO.sample(np.random.default_rng(2), 60)
    theta[::7, 0] = 2.0
    for kernel in KERNELS:
        for draws in (1, 9):
            # At the distance of one of them, so that "below" and "not above" differ.
            first = AbcAverage(model(distance), kernel, draws).evaluate(Rng(4, Phase.RUN), theta, None)
            near = np.sort(first.distances[np.isfinite(first.distances)])
            for eps in (kernel.eps, float(near[len(near) // 3]), 3.0):
                average = AbcAverage(model(distance), kernel.with_eps(eps), draws, keep_rows=True)
                assert compiled_module.fusible(average.model, average.kernel)
                inside = average.evaluate(Rng(4, Phase.RUN), theta, None)
                with monkeypatch.context() as patch:
                    patch.setattr(estimator_module, "fusible", lambda *_: False)
                    outside = average.evaluate(Rng(4, Phase.RUN), theta, None)
                assert np.allclose(inside.log_estimate, outside.log_estimate, rtol=1e-10, atol=1e-12)
                assert np.array_equal(np.isneginf(inside.log_estimate), np.isneginf(outside.log_estimate))
                assert np.allclose(inside.distances, outside.distances, rtol=1e-12)
                assert np.array_equal(inside.rows, outside.rows, equal_nan=True)
                assert inside.cost == outside.cost and inside.cost.failed > 0
                assert inside.failures == outside.failures
                bare = AbcAverage(average.model, average.kernel, draws, keep_distances=False)
                without = bare.evaluate(Rng(4, Phase.RUN), theta, None)
                assert np.array_equal(without.log_estimate, inside.log_estimate) and without.distances.size == 0


def test_averages_far_from_the_data_keep_their_log():
    average = AbcAverage(toy("compiled"), od.gaussian(0.01), 5)
    result = average.evaluate(Rng(1, Phase.RUN), np.linspace(-3, 0, 20)[:, None], None)
    assert np.isfinite(result.log_estimate).all() and (result.log_estimate < -800).any()
    assert np.allclose(result.log_estimate, average.kernel.log_average(result.distances), rtol=1e-12)


def test_no_array_of_rows_times_draws_is_made():
    theta, draws = np.zeros((2000, 1)), 500
    average = AbcAverage(toy("compiled"), od.uniform(0.5), draws, keep_distances=False)
    average.evaluate(Rng(1, Phase.RUN), theta[:1], None)
    tracemalloc.start()
    average.evaluate(Rng(1, Phase.RUN), theta, None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * theta.nbytes


class Signed(Euclidean):
    """A subclass, whose formula the loops do not know: here it happens to be the same."""

    def __call__(self, simulated, observed):
        return np.sqrt(((simulated - observed) ** 2).sum(axis=1))


@pytest.mark.parametrize("part", ["kernel", "summary", "batched summary", "distance", "subclass of a distance"])
def test_what_is_not_compiled_goes_on_in_numpy(part):
    """The same draws, whoever compares them."""
    theta = TWO.sample(np.random.default_rng(2), 30)
    whole = AbcAverage(model(), od.gaussian(0.7), 3).evaluate(Rng(5, Phase.RUN), theta, None)
    parts = {"summary": SUMMARY, "distance": None}
    kernel = od.gaussian(0.7)
    if part == "kernel":
        kernel = od.kernel(lambda u: -0.5 * u * u, 0.7)
    elif part == "summary":
        parts["summary"] = shortened
    elif part == "batched summary":
        parts["summary"] = od.batched(lambda y: np.column_stack([y[:, 0], y[:, 1] - y[:, 0] ** 2]))
    elif part == "subclass of a distance":
        parts["distance"] = Signed()
    else:
        parts["distance"] = lambda a, b: np.sqrt(np.sum((a - b) ** 2))
    mixed = od.Model(TWO, SIMULATE, OBSERVED, **parts)
    assert not compiled_module.fusible(mixed, kernel)
    result = AbcAverage(mixed, kernel, 3).evaluate(Rng(5, Phase.RUN), theta, None)
    assert np.allclose(result.log_estimate, whole.log_estimate, rtol=1e-10)
    assert result.cost.failed == whole.cost.failed > 0 and result.failures[0].theta == whole.failures[0].theta


def test_a_compiled_summary_and_distance_serve_other_simulators():
    theta = TWO.sample(np.random.default_rng(2), 10)
    for simulate in (averages, od.batched(lambda rng, mu, count: np.column_stack([mu, mu**2 + 1, 0 * mu]))):
        both = od.Model(TWO, simulate, OBSERVED, summary=SUMMARY, distance=DISTANCE)
        neither = od.Model(TWO, simulate, OBSERVED, summary=shortened, distance=apart)
        a, b = (one.simulate_rows(Rng(1, Phase.RUN), theta) for one in (both, neither))
        assert np.allclose(a.rows, b.rows, equal_nan=True)
        assert np.allclose(both.distances(a.rows), neither.distances(b.rows))


# Exact answers. The loop was compared with NumPy for every kernel above: here two of them, and with the slow tests all.

SOME = [
    pytest.param(kernel, pseudo_samples, id=f"{kernel.name}-{pseudo_samples}",
                 marks=[pytest.mark.slow] * ((kernel.name, pseudo_samples) not in (("uniform", 1), ("gaussian", 8))))
    for kernel in KERNELS
    for pseudo_samples in (1, 8)
]  # fmt: skip


@pytest.mark.parametrize(
    "kernel",
    [pytest.param(one, marks=[pytest.mark.slow] * (one.name not in ("uniform", "gaussian"))) for one in KERNELS],
    ids=lambda kernel: kernel.name,
)
def test_rejection_is_exact(kernel):
    post = od.rejection(toy("compiled"), kernel, budget=60_000, seed=11)
    exact = Exact(kernel)
    assert stats.kstest(post.draws["theta"].ravel(), exact.cdf).pvalue > 1e-4
    error = np.sqrt(exact.acceptance * (1 - exact.acceptance) / 60_000)
    assert abs(post.acceptance_rate - exact.acceptance) < 4 * error
    assert post.cost.simulations == 60_000


@pytest.mark.parametrize(("kernel", "pseudo_samples"), SOME)
def test_pseudo_marginal_is_exact(kernel, pseudo_samples):
    post = od.pseudo_marginal(
        toy("compiled"), kernel, draws=25, chains=4096, pseudo_samples=pseudo_samples, proposal=od.random_walk(0.5),
        seed=21,
    )  # fmt: skip
    agrees(post, Exact(kernel))


def test_wilkinson_and_r_hit_are_exact():
    run = {"chains": 4096, "proposal": od.random_walk(0.5)}
    agrees(od.wilkinson(toy("compiled"), KERNELS[1], draws=20, seed=22, **run), Exact(KERNELS[1]))
    for hits in (1, 2):
        kernel = od.uniform(1.2)
        agrees(od.r_hit(toy("compiled"), kernel, hits=hits, draws=4, seed=23, **run), Exact(kernel))


def test_counts_are_exact():
    """Integers out, a closed-form posterior, and data that must be met exactly."""

    def successes(rng, p):
        count = 0
        for _ in range(12):
            count += rng.random() < p
        return count

    problem = od.Model(od.Prior(p=stats.beta(1.5, 2.0)), od.compiled(successes), observed=4)
    post = od.rejection(problem, od.uniform(0.5), budget=40_000, seed=3)
    assert stats.kstest(post.draws["p"].ravel(), beta_posterior().cdf).pvalue > 1e-4
    evidence = beta_evidence()
    assert abs(post.acceptance_rate - evidence) < 4 * np.sqrt(evidence * (1 - evidence) / 40_000)


def test_sequential_samplers_and_infer_run(quick):
    exact = Exact(od.uniform(1e-9))
    for sampler in (od.smc, od.importance, od.infer):
        budget = 1_500 if sampler is od.infer else 20_000
        post = sampler(toy("compiled"), budget=budget, seed=1)
        assert post.cost.simulations <= budget
        row = post.summary()["theta"]
        assert abs(row.mean - exact.mean) < 5 * row.mcse + 0.05
    post = od.infer(model(), budget=300, seed=1, draws=200)
    assert post.cost.simulations <= 300 and post.cost.failed > 0
    assert post.predict(5, seed=1).shape == (5, 2)


def test_a_learnt_summary_stands_behind_a_compiled_one():
    fitted = od.fit_summary(model(), budget=2500, seed=1)
    theta = TWO.sample(np.random.default_rng(3), 20)
    rows = fitted.model.simulate_rows(Rng(1, Phase.RUN), theta).rows[:, 0]
    expected = fitted.learnt(model().simulate_rows(Rng(1, Phase.RUN), theta).rows[:, 0])
    assert np.allclose(rows, expected, equal_nan=True)


# Parameters and results


def test_parameters_go_by_name_and_discrete_ones_are_whole():
    def echo(rng, c, a, n=2.0, b=0):
        return a, b / 2, c >> 1, n  # a float cannot be shifted

    prior = od.Prior(a=stats.norm(), b=stats.randint(1, 9), c=stats.poisson(5.0))
    theta = np.array([[0.25, 7.0, 5.0], [-1.5, 2.0, 3.0]])
    rows = od.Model(prior, od.compiled(echo), np.zeros(4)).simulate_rows(Rng(1, Phase.RUN), theta).rows[:, 0]
    assert rows.tolist() == [[0.25, 3.5, 2.0, 2.0], [-1.5, 1.0, 1.0, 2.0]]


@pytest.mark.parametrize(
    ("function", "observed", "expected"),
    [
        (lambda rng, theta: theta > 0, 1.0, [1.0]),
        (lambda rng, theta: np.array([[1, 2], [3, 4]]).T, np.zeros((2, 2)), [1.0, 3.0, 2.0, 4.0]),
        pytest.param(lambda rng, theta: np.arange(4.0)[::2], [0.0, 0.0], [0.0, 2.0], marks=pytest.mark.slow),
        pytest.param(lambda rng, theta: [theta, 2.0 * theta], [0.0, 0.0], [0.5, 1.0], marks=pytest.mark.slow),
        pytest.param(lambda rng, theta: np.array([theta]), 0.0, [0.5], marks=pytest.mark.slow),
        pytest.param(lambda rng, theta: theta, [0.0], [0.5], marks=pytest.mark.slow),
    ],
    ids=["bool", "matrix", "strided", "list", "array of one", "number"],
)
def test_results_come_in_many_forms(function, observed, expected):
    rows = od.Model(THETA, od.compiled(function), observed).simulate_rows(Rng(1, Phase.RUN), np.array([[0.5]])).rows
    assert rows[0, 0].tolist() == expected


def test_a_distance_sees_summaries_in_their_own_shape():
    def corner(a, b):
        return abs(a[1, 0] - b[1, 0])

    problem = od.Model(THETA, od.compiled(lambda rng, theta: np.array([[0.0, 1.0], [theta, 3.0]])), np.ones((2, 2)),
                       distance=od.compiled(corner))  # fmt: skip
    average = AbcAverage(problem, od.uniform(0.2))
    result = average.evaluate(Rng(1, Phase.RUN), np.array([[1.1], [2.0]]), None)
    assert np.allclose(result.distances[:, 0], [0.1, 1.0]) and result.log_estimate.tolist() == [0.0, -np.inf]


# Failures


def test_failures_are_counted_and_told():
    theta = np.array([[0.0], [2.0], [1.0], [3.0]])
    result = AbcAverage(toy("compiled"), KERNELS[0], 2).evaluate(Rng(9, Phase.RUN, 100, 3), theta, None)
    problem = od.Model(THETA, PICKY, 2.0)
    failing = AbcAverage(problem, KERNELS[0], 2).evaluate(Rng(9, Phase.RUN, 100, 3), theta, None)
    # Before the first failure the guarded loop has drawn what the other one draws.
    assert np.array_equal(failing.distances[0], result.distances[0])
    assert np.isinf(failing.distances[[1, 3]]).all() and np.isfinite(failing.distances[[0, 2]]).all()
    assert failing.cost.failed == 4 and failing.cost.simulations == 8
    (failure,) = failing.failures
    assert failure.theta == {"theta": 2.0} and (failure.chain, failure.step, failure.pseudo_sample) == (101, 3, 0)
    assert failure.message == "RuntimeError: beyond the model" and "picky" in failure.traceback
    with pytest.raises(od.SimulationError, match=r"simulation failed at theta = 2: RuntimeError: beyond"):
        AbcAverage(problem, KERNELS[0], 2, on_error="raise").evaluate(Rng(9, Phase.RUN), theta, None)
    rows = problem.simulate_rows(Rng(9, Phase.RUN, 100, 3), theta, np.array([4, 5, 6, 7]), 2, 10)
    assert rows.cost.failed == 4 and np.isnan(rows.rows[1]).all() and rows.failures[0].chain == 105
    assert rows.failures[0].pseudo_sample == 10


@pytest.mark.parametrize("loop", ["average", "rows"])
def test_the_guarded_loop_draws_what_the_other_draws(loop, monkeypatch):
    problem = od.Model(THETA, PICKY, 2.0)
    theta = np.linspace(-2, 1.4, 25)[:, None]

    def run():
        if loop == "rows":
            return problem.simulate_rows(Rng(2, Phase.RUN), theta, None, 3).rows
        return AbcAverage(problem, od.gaussian(0.3), 3).evaluate(Rng(2, Phase.RUN), theta, None).log_estimate

    quick = run()
    once = compiled_module._run
    monkeypatch.setattr(compiled_module, "_run", lambda loop, *rest: once(lambda careful: loop(True), *rest))
    assert np.array_equal(run(), quick)


def test_a_run_counts_failures_as_rejections():
    problem = od.Model(THETA, PICKY, 2.0)
    for run in (
        lambda **k: od.rejection(problem, KERNELS[0], budget=3000, **k),
        lambda **k: od.pseudo_marginal(problem, KERNELS[0], draws=30, chains=64, pseudo_samples=3, **k),
        lambda **k: od.r_hit(problem, KERNELS[0], draws=5, chains=64, **k),
    ):
        post = run(seed=1)
        assert post.draws["theta"].max() <= 1.5 and 0 < post.cost.failed < post.cost.simulations
        assert "beyond the model" in post.failures[0].traceback and "count as misses" in str(post.summary())
        with pytest.raises(od.SimulationError, match="beyond the model"):
            run(seed=1, on_error="raise")


def test_results_of_the_wrong_size_are_failures():
    def growing(rng, theta):
        return np.zeros(3 if theta > 0 else 2)

    problem = od.Model(THETA, od.compiled(growing), np.zeros(2))
    result = problem.simulate_rows(Rng(1, Phase.RUN), np.array([[-1.0], [1.0]]))
    assert result.cost.failed == 1 and "does not have shape (2,)" in result.failures[0].message
    assert np.isnan(result.rows[1]).all() and result.rows[0].tolist() == [[0.0, 0.0]]


def test_a_bad_distance_stops_the_run():
    with pytest.raises(ValueError, match="as distance gave a negative number or NaN at"):
        od.rejection(SIGNED, od.uniform(1.0), budget=50, seed=1)


def test_a_summary_in_python_that_fails_says_so():
    def summary(y):
        if y[0] > 0.9:
            raise KeyError("no such thing")
        return y[:2] if y[0] < 0.5 else y[:2] * np.nan

    problem = od.Model(TWO, SIMULATE, OBSERVED, summary=summary)
    result = problem.simulate_rows(Rng(1, Phase.RUN), np.array([[0.6, 60.0], [-9.0, 60.0]]))
    assert result.cost.failed == 1 and result.failures[0].message == "the output is not finite"
    beyond = np.array([[-9.0, 60.0], [0.99, 6000.0]])
    result = problem.simulate_rows(Rng(1, Phase.RUN), beyond)
    assert result.cost.failed == 1 and result.failures[0].message == "KeyError: 'no such thing'"
    assert result.failures[0].chain == 1 and list(result.failures[0].theta.values()) == [0.99, 6000.0]
    with pytest.raises(od.SimulationError, match=r"simulation failed at .*KeyError: 'no such thing'"):
        problem.simulate_rows(Rng(1, Phase.RUN), beyond, on_error="raise")


def test_a_simulator_that_draws_nothing_is_told():
    with pytest.warns(UserWarning, match="drew nothing from the rng"):
        od.rejection(STILL, od.uniform(1.0), budget=50, seed=1)


# Same seed, same bytes


@pytest.mark.parametrize(
    "run",
    [
        lambda **k: od.rejection(toy("compiled"), KERNELS[0], budget=9000, **k),
        lambda **k: od.pseudo_marginal(toy("compiled"), KERNELS[1], draws=30, chains=1000, pseudo_samples=2, **k),
        lambda **k: od.r_hit(toy("compiled"), KERNELS[0], draws=3, chains=600, **k),
        lambda **k: od.smc(toy("compiled"), particles=600, budget=9000, **k),
        lambda **k: od.importance(toy("compiled"), budget=9000, **k),
        lambda **k: od.infer(toy("compiled"), budget=600, draws=500, **k),
    ],
    ids=["rejection", "pseudo_marginal", "r_hit", "smc", "importance", "infer"],
)
def test_workers_are_threads_and_change_nothing(run, monkeypatch, quick):
    def no_processes(*_, **__):
        raise AssertionError("a process was asked for")

    monkeypatch.setattr(pool_module, "_new_workers", no_processes)
    monkeypatch.setattr(chains_module, "LOOK_SECONDS", 0.0)
    alone = run(seed=5)
    for workers in (2,) if alone.settings["algorithm"] == "infer" else (1, 2, 3):
        many = run(seed=5, workers=workers)
        assert bytes_of(many)[:4] == bytes_of(alone)[:4]
        assert many.cost._replace(seconds=0, surplus=0) == alone.cost._replace(seconds=0, surplus=0)


@pytest.mark.parametrize("sampler", ["rejection", pytest.param("pseudo_marginal", marks=pytest.mark.slow)])
def test_processes_give_the_same_bytes(sampler):
    import loky

    def run(**more):
        if sampler == "rejection":
            return od.rejection(toy("compiled"), KERNELS[0], draws=500, pseudo_samples=2, seed=5, **more)
        return od.pseudo_marginal(toy("compiled"), KERNELS[0], draws=20, chains=600, pseudo_samples=2, seed=5, **more)

    executor = loky.ProcessPoolExecutor(1)
    try:
        assert bytes_of(run(executor=executor))[:4] == bytes_of(run())[:4]
    finally:
        executor.shutdown(kill_workers=True)


def test_other_threads_go_on_while_a_loop_runs():
    average = AbcAverage(toy("compiled"), KERNELS[0], 2000, keep_distances=False)
    average.evaluate(Rng(1, Phase.RUN), np.zeros((1, 1)), None)
    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(average.evaluate, Rng(1, Phase.RUN), np.zeros((5000, 1)), None)
        woken = 0
        while not future.done():
            time.sleep(1e-3)
            woken += 1
    assert woken > 5


def test_threads_end_with_their_run():
    with opened_pool(2, None, threads=True) as crew:
        assert isinstance(crew, WorkerPool) and isinstance(crew._executor, ThreadPoolExecutor)
    with pytest.raises(RuntimeError, match="shutdown"):
        crew._executor.submit(int)


def test_a_run_goes_on_from_its_file(tmp_path):
    def run(problem, **more):
        return od.pseudo_marginal(problem, KERNELS[0], chains=300, seed=5, proposal=od.random_walk(0.5), **more)

    whole = run(toy("compiled"), draws=60)
    file = tmp_path / "run.db"
    with up_after(4):
        run(toy("compiled"), draws=60, store=file, segment=1e-3, max_seconds=LONG)
    half = od.load(file)
    assert half.status.reason == "max_seconds" and 0 < half.shape[1] < 60
    other = od.Model(THETA, od.compiled(lambda rng, theta: theta + rng.normal()), 2.0)
    with pytest.raises(od.StoreError, match=r"model\.simulate changed"):
        od.resume(file, model=other)
    again = od.resume(file, model=toy("compiled"), workers=2)
    assert bytes_of(again)[0] == bytes_of(whole)[0] and bytes_of(again)[1] == bytes_of(whole)[1]
    assert again.cost.simulations == whole.cost.simulations


def test_fingerprints_see_the_function_within():
    def times(rate):
        return od.compiled(lambda rng, theta: theta * rate)

    one, same, other = fingerprint(times(2.0)), fingerprint(times(2.0)), fingerprint(times(3.0))
    assert one == same and [name for name in one if one[name] != other[name]] == ["closure rate"]
    nested = fingerprint({"inner": SUMMARY})
    SUMMARY(OBSERVED)
    assert fingerprint({"inner": SUMMARY}) == nested != fingerprint({"inner": DISTANCE})


@pytest.mark.parametrize("budget", [300, 5000])
def test_the_budget_is_never_passed_and_hardly_missed(budget):
    problem = od.Model(TWO, SIMULATE, OBSERVED, summary=SUMMARY, distance=od.scaled(pilot=50))
    assert od.rejection(problem, od.uniform(1.0), budget=budget, seed=1).cost.simulations == budget
    post = od.pseudo_marginal(problem, od.uniform(1.0), budget=budget, chains=8, pseudo_samples=3, seed=1)
    assert 0 <= budget - post.cost.simulations < 24


def test_the_default_is_that_of_batched_simulators():
    post = od.pseudo_marginal(toy("compiled"), KERNELS[0], draws=2, seed=1)
    assert post.shape == (1024, 2)
    assert toy("compiled").batched and not toy("compiled").plain


def test_only_open_rows_are_simulated():
    average = AbcAverage(toy("compiled"), KERNELS[1], 4)
    theta = np.zeros((6, 1))
    needed = np.array([-np.inf, np.inf, -1.0, 0.5, -2.0, 1.0])
    result = average.evaluate(Rng(1, Phase.RUN), theta, needed)
    assert result.cost.simulations == 12
    assert np.isneginf(result.log_estimate[[1, 3, 5]]).all() and np.isinf(result.distances[[1, 3, 5]]).all()
    assert np.isfinite(result.log_estimate[[0, 2, 4]]).all()


# Marks, errors and pickles


def test_a_mark_is_pickled_as_its_function(by_name):
    toy("compiled").simulate_rows(Rng(1, Phase.RUN), np.zeros((1, 1)))
    mark = toy("compiled").simulate
    again = pickle.loads(cloudpickle.dumps(mark))
    assert again.function is simulate_one and vars(again).keys() == vars(mark).keys()
    assert not any("numba" in type(value).__module__ for value in vars(mark).values())
    assert repr(mark) == "od.compiled(simulate_one)"
    shipped = pickle.loads(cloudpickle.dumps(od.Model(TWO, SIMULATE, OBSERVED, summary=SUMMARY, distance=DISTANCE)))
    theta = TWO.sample(np.random.default_rng(2), 20)
    a, b = (
        AbcAverage(one, KERNELS[0], 2).evaluate(Rng(1, Phase.RUN), theta, None).distances
        for one in (shipped, model("own"))
    )
    assert np.array_equal(a, b)


def test_a_function_that_numba_has_compiled_is_taken_with_its_options():
    mark = od.compiled(numba.njit(fastmath=True)(simulate_one))
    assert mark.function is simulate_one and mark.options["fastmath"] is True
    assert od.compiled(mark) is mark and pickle.loads(pickle.dumps(mark)).options == mark.options
    assert mark(np.random.default_rng(1), 0.0) == np.random.default_rng(1).standard_normal()
    with pytest.raises(ValueError, match="parallel=True: its threads would share one random stream"):
        od.compiled(numba.njit(parallel=True)(simulate_one))


def _dict(rng, theta):
    return {"y": theta}


def _nothing(rng, theta):
    if theta > 0:
        return 1.0
    return None


def _scipy(rng, theta):
    return stats.norm.rvs(theta)


@pytest.mark.parametrize(
    ("function", "observed", "message"),
    [
        # Numba takes several seconds to compile a dict.
        pytest.param(_dict, 2.0, r"\(_dict\) returns a dict: return one number or one array", marks=pytest.mark.slow),
        (_nothing, 2.0, "returns OptionalType.*on every path it must return numbers"),
        (_scipy, 2.0, r"(?s)od.compiled\(_scipy\) cannot be compiled. Numba says: Unknown attribute 'norm'.*leave out"),
        (lambda rng, theta: np.zeros((2, 2)), [0.0] * 4, r"the observed data give an array of shape \(4,\)"),
        (lambda rng, theta: 1j * theta, 2.0, "returns complex128, and the observed data give a number"),
        pytest.param(
            lambda rng, theta: (theta, theta),
            np.zeros(3),
            "observed data give an array of shape",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["dict", "None", "scipy", "shape", "complex", "tuple"],
)
def test_what_cannot_be_compiled_is_refused_with_a_remedy(function, observed, message):
    with pytest.raises(ValueError, match=message):
        od.rejection(od.Model(THETA, od.compiled(function), observed), od.uniform(1.0), budget=10, seed=1)


def test_parts_that_do_not_fit_are_refused():
    simulate = od.compiled(simulate_one)
    with pytest.raises(ValueError, match=r"od\.compiled marks a Python function"):
        od.compiled(od.batched(simulate_one))
    with pytest.raises(ValueError, match=r"od\.batched marks a function of arrays"):
        od.batched(simulate)
    with pytest.raises(ValueError, match=r"od\.staged calls its stages from Python"):
        od.staged(simulate, simulate)
    with pytest.raises(ValueError, match="does not fit the prior's parameters"):
        od.Model(TWO, simulate, 2.0)
    with pytest.raises(ValueError, match="observed is a dict"):
        od.Model(THETA, simulate, {"y": 2.0})
    with pytest.raises(ValueError, match="inside a batched, compiled or staged simulator"):
        od.rejection(toy("compiled"), od.uniform(1.0), budget=10, timeout=1.0)
    with pytest.raises(ValueError, match="layout='draws' is for plain simulators"):
        od.pseudo_marginal(toy("compiled"), od.uniform(1.0), draws=1, layout="draws")
    with pytest.raises(ValueError, match=r"cannot be compiled\. Numba says"):
        od.Model(THETA, simulate_one, [1.0, 2.0], summary=od.compiled(lambda y: y.nonsense()))
    problem = od.Model(THETA, simulate, 2.0, distance=od.compiled(lambda a, b: np.zeros(2)))
    with pytest.raises(ValueError, match="as distance returns array"):
        od.rejection(problem, od.uniform(1.0), budget=10, seed=1)


def test_a_failure_cannot_be_replayed_alone(tmp_path):
    problem = od.Model(THETA, PICKY, 2.0)
    od.rejection(problem, KERNELS[0], budget=200, seed=1, store=tmp_path / "run.db")
    with pytest.raises(ValueError, match="a compiled simulator draws a whole block"):
        od.replay(tmp_path / "run.db", model=problem)


def test_numba_is_imported_when_it_is_used_and_missed_with_its_remedy():
    code = """
import sys
import onedraw as od
from scipy import stats
mark = od.compiled(lambda rng, theta: theta + rng.standard_normal())
model = od.Model(od.Prior(theta=stats.norm()), mark, 2.0)
assert "numba" not in sys.modules
sys.modules["numba"] = None
try:
    od.rejection(model, od.uniform(1.0), budget=10)
except ValueError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == 'od.compiled needs Numba: pip install "onedraw[numba]"\n'
