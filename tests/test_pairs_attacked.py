"""Simulators in two parts, attacked: parts that fail, signals and probabilities that are none, and all after a run.

Each ends in the right posterior or in a refusal that says why.
"""

import math
import os
import signal as signals
import subprocess
import sys
import time

import numpy as np
import pytest

import onedraw as od
from onedraw.cost import Cost
from onedraw.estimators import pairs
from onedraw.model import pair as pair_parts
from onedraw.model.pair import ContinuationRule, Pair
from tests.marks import long_in_slow_tests
from tests.test_pairs import (
    KERNELS,
    PRIOR,
    SAMPLERS,
    agrees,
    bytes_of,
    cheap,
    exact,
    expensive,
    first,
    rest,
    signal,
    staged_model,
    two_models,
)

K = od.uniform(1.5)


def staged(**more):
    more = {"signal": signal, "continuation": lambda signal, theta: 0.5} | more
    return od.Model(PRIOR, od.stages(first, rest, **more), observed=3.0)


def right(post, kernel=K):
    found = post.estimate("theta")
    assert abs(found.value - exact(kernel)) < 4.5 * found.mcse < 0.15


# --- signals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "batched"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("learnt", [True, False])
def test_a_simulation_without_a_signal_is_finished(value, kind, learnt):
    """It belongs to the posterior: left out, the mean would be off by many errors."""
    mark = od.batched if kind == "batched" else lambda function: function
    how = {"price": (1, 4), "pilot": 200} if learnt else {"continuation": lambda signal, theta: 0.3 + 0 * signal}
    pair = od.stages(
        mark(first), mark(rest), signal=lambda state: np.where(np.asarray(state) == 2, value, 1.0), **how
    )  # fmt: skip
    post = od.rejection(od.Model(PRIOR, pair, observed=3.0), K, budget=20_000 if learnt else 4000, seed=1)
    right(post)
    assert post.cost.failed == 0


@pytest.mark.parametrize("kind", ["plain", "batched"])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda state: 1 / 0, "division by zero"),
        (lambda state: "far", "not an array of numbers"),
        (lambda state: np.ones((3, 2)), "shape"),
        (lambda state: 1j, "complex"),
    ],
)
def test_a_signal_that_fails_stops_the_run(wrong, message, kind):
    """As a failed simulation it would be left out of the posterior."""
    mark = od.batched if kind == "batched" else lambda function: function
    pair = od.stages(mark(first), mark(rest), signal=wrong, continuation=lambda signal, theta: 0.5)
    with pytest.raises(ValueError, match=rf"signal\(state\) must give one number.*{message}"):
        od.rejection(od.Model(PRIOR, pair, observed=3.0), K, budget=200, seed=1)


# --- probabilities ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [staged_model, two_models])
@pytest.mark.parametrize(
    ("alpha", "message"),
    [
        (lambda signal, theta: 1.5 + 0 * signal, r"is 1\.5 at signal = .*between 0 and 1"),
        (lambda signal, theta: -0.1, "between 0 and 1"),
        (lambda signal, theta: np.nan * signal, "is nan at signal"),
        (lambda signal, theta: None, "a return statement may be missing"),
        (lambda signal, theta: np.full(3, 0.5), r"failed for .* signals.*shape"),
        (lambda signal, theta: np.full((len(signal), 1), 0.5), r"failed for .* signals"),
        (lambda signal, theta: "x", "not an array of numbers"),
        (lambda signal, theta: 1 / 0, "division by zero"),
    ],
)
def test_what_is_no_probability_is_refused(make, alpha, message):
    with pytest.raises(ValueError, match=message):
        od.rejection(make(alpha, "plain", price=None), K, budget=500, seed=1)


def test_a_probability_of_zero_is_the_floor():
    for make in (staged_model, two_models):
        right(od.rejection(make(lambda signal, theta: 0 * signal, price=None), K, budget=20_000, seed=1))


# --- parts that fail ----------------------------------------------------------------------------------------


def nothing(rng, theta):
    return math.nan


def broken(rng, theta):
    raise RuntimeError("out of order")


def sometimes(rng, theta):
    return cheap(rng, theta) if rng.random() < 0.5 else math.nan


@pytest.mark.parametrize("continuation", [0.4, None])
@pytest.mark.parametrize("name", ["rejection", "importance"])
def test_a_cheap_model_that_fails_half_the_time(name, continuation):
    pair = od.multifidelity(sometimes, expensive, continuation=continuation, price=(1, 4), pilot=200)
    right(SAMPLERS[name](od.Model(PRIOR, pair, observed=3.0), K, budget=15_000, seed=1))


@pytest.mark.parametrize("part", [nothing, broken])
@pytest.mark.parametrize("other", [expensive, broken])
def test_a_cheap_model_that_always_fails_is_refused(part, other):
    """Also if the expensive one fails with it: a simulation that fails twice is one."""
    pair = od.multifidelity(part, other, continuation=0.5)
    with pytest.raises(od.SimulationError, match="all of the first"):
        od.rejection(od.Model(PRIOR, pair, observed=3.0), K, budget=500, seed=1)


def test_failures_count_simulations():
    def rarely(rng, theta):
        return broken(rng, theta) if theta < 0.9 else expensive(rng, theta)

    post = od.rejection(
        od.Model(PRIOR, od.multifidelity(rarely, rarely, continuation=0.9), observed=3.0), K, budget=600, seed=1
    )
    assert post.cost.failed < post.cost.simulations
    assert abs(post.cost.failed - 540) < 4.5 * math.sqrt(600 * 0.09)


def test_a_failed_expensive_simulation_is_a_miss_and_not_the_cheap_one():
    """y = 4 fails: what is left of the posterior at eps = 1.5 are y = 2 and 3."""

    def without_four(rng, theta):
        data = expensive(rng, theta)
        return data if data < 4 else broken(rng, theta)

    post = od.rejection(
        od.Model(PRIOR, od.multifidelity(cheap, without_four, continuation=0.4), observed=3.0), K, budget=8000, seed=1
    )
    found = post.estimate("theta")
    assert abs(found.value - (3 / 6 + 4 / 6) / 2) < 4.5 * found.mcse < 0.1


# --- the pilot ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [2000, 5000, 8000, 20_000, 200_000])
def test_the_pilot_is_a_small_share_of_the_budget(budget):
    """Whole simulations of a pilot cost what they cost: at most a twentieth, even if the cheap model is useless."""
    pair = od.multifidelity(cheap, expensive, price=(1, 99)).for_budget(100 * budget)
    assert 0 < pair.pilot <= budget / 20
    assert pair.pilot >= min(1000, budget / 20 - 1)


def test_too_small_a_budget_learns_nothing():
    """A hundred simulations teach something; of fewer, nothing is learnt and nothing left out."""
    for model in (staged_model(None, pilot=None), two_models(None, pilot=None, price=(1, 4))):
        post = od.rejection(model, K, budget=5 * 1500, seed=1)
        assert post.settings["continuation"] == {"edges": [], "alpha": [1.0]}
        assert post.cost.expensive == post.cost.simulations == post.cost.proposals
        right(post)


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_pilot_of_a_run_is_that_of_its_first_budget(name, tmp_path):
    more = {"pseudo_marginal": {"chains": 8, "draws": None}, "smc": {"particles": 80}}.get(name, {})
    model, file = staged_model(None, pilot=None), tmp_path / "run.db"
    small = SAMPLERS[name](model, K, seed=1, budget=10_000, store=file, **more)
    large = SAMPLERS[name](model, K, seed=1, budget=14_000, store=file, **more)
    assert small.settings["continuation"] == large.settings["continuation"]
    assert large.cost.simulations + 4 * large.cost.expensive <= 14_000
    agrees(large, large.kernel, 0.2)


def loose(rng, n):
    """Distances of a cheap and of an expensive model that differ by more than the tolerance, which 1 % reach."""
    of_expensive = 100 * rng.random(n)
    return np.abs(of_expensive + rng.normal(0, 5.0, n)), of_expensive


def test_a_rule_learnt_at_a_larger_tolerance_loses_nothing_at_the_smaller():
    """There two models disagree far from the data; near the data, alpha must not be small for that."""
    rng, kernel, price = np.random.default_rng(1), od.uniform(1.0), (1.0, 100.0)
    pair = Pair(cheap, expensive, True, None, None, price, 0.05, None)
    of_cheap, of_expensive = loose(rng, 100_000)
    hit, near = (np.exp(kernel.log_weight(of)) for of in (of_expensive, of_cheap))
    gains = []
    for _ in range(40):
        seen, whole = loose(rng, 150)
        rule, eps = pairs.learnt_rule(pair, kernel, seen, seen, whole)
        assert eps > kernel.eps
        assert (np.diff(rule.alpha) <= 0).all()
        spent = pairs.effective_price(price, pairs.PairMoments(hit**2, (hit - near) ** 2), rule(of_cheap))
        gains.append(price[1] * float((hit**2).mean()) / spent)
    assert np.mean(gains) > 1.3


def test_without_a_use_for_the_cheap_model_it_is_not_run():
    calls = []

    def counted(rng, theta):
        calls.append(theta)
        return cheap(rng, theta)

    for continuation in (1.0, ContinuationRule(np.empty(0), np.ones(1))):
        pair = od.multifidelity(counted, expensive, continuation=continuation, price=(3, 7))
        post = od.rejection(od.Model(PRIOR, pair, observed=3.0), K, budget=7000, seed=1)
        assert not calls
        assert post.cost.expensive == post.cost.proposals == 1000
        assert np.allclose(post.weights, post.weights[0, 0])
        right(post)
        weighted = od.importance(od.Model(PRIOR, pair, observed=3.0), kernel=K, budget=7000, seed=1)
        assert not calls and weighted.cost.expensive <= 1000
        right(weighted)


@pytest.mark.parametrize(
    ("continuation", "spent"),
    [
        (1.0, 7 * 40),
        (ContinuationRule(np.array([2.0]), np.ones(2)), 7 * 40),
        (0.5, 3 * 100 + 7 * 40),
        (ContinuationRule(np.array([2.0]), np.array([1.0, 0.5])), 3 * 100 + 7 * 40),
        (lambda signal, theta: np.ones(len(signal)), 3 * 100 + 7 * 40),
    ],
)
def test_what_is_spent_is_the_price_of_what_was_run(continuation, spent):
    """A cheap model that is never run costs nothing, and neither is it part of the most expensive simulation."""
    pair = od.multifidelity(cheap, expensive, continuation=continuation, price=(3, 7))
    assert pair.units(Cost(simulations=100, expensive=40)) == spent
    assert pair.worst == (7 if spent == 7 * 40 else 10)
    assert od.stages(first, rest, continuation=1.0, price=(3, 7)).units(Cost(simulations=100, expensive=40)) == 580


# --- time limits and failures again -------------------------------------------------------------------------


def by_tosses(rng, theta):
    return int(sum(rng.random() < theta for _ in range(2)))


@pytest.mark.parametrize("name", long_in_slow_tests(SAMPLERS, "smc", "importance"))
def test_a_time_limit_changes_no_number(name):
    """Parts run in processes of their own, and the pilot of the distance runs them one after the other."""
    more = {"chains": 4, "draws": None} if name == "pseudo_marginal" else {}
    pair = od.stages(by_tosses, rest, continuation=0.5)
    model = od.Model(PRIOR, pair, observed=3.0, distance=od.scaled(pilot=20))
    plain = SAMPLERS[name](model, K, seed=1, budget=300, **more)
    limited = SAMPLERS[name](model, K, seed=1, budget=300, timeout=60.0, **more)
    assert bytes_of(plain) == bytes_of(limited)
    assert plain.model.distance.scale.tobytes() == limited.model.distance.scale.tobytes()


def slow_rest(rng, state, theta):
    if state == 0:
        time.sleep(60.0)
    return state + rng.binomial(2, theta)


def test_a_part_that_takes_too_long_has_failed():
    model = od.Model(PRIOR, od.stages(first, slow_rest, continuation=0.5), observed=3.0)
    post = od.rejection(model, K, budget=30, seed=1, timeout=0.5)
    assert post.cost.failed > 0 and "not finished after timeout" in post.failures[0].message
    pair = od.multifidelity(cheap, expensive, continuation=0.5)
    signed = od.Model(PRIOR, pair, observed=3.0)
    assert bytes_of(od.rejection(signed, K, budget=100, seed=1, timeout=60.0)) == bytes_of(
        od.rejection(signed, K, budget=100, seed=1)
    )


SEEN = []


def noted(function):
    def run(rng, *state, theta):
        value = function(rng, *state, theta=theta)
        SEEN.append((function.__name__, theta, float(value)))
        if float(value) == 0:
            raise RuntimeError(f"{function.__name__} gave 0")
        return value

    return run


@pytest.mark.parametrize("common", [False, True])
def test_a_failed_part_is_run_again(common, tmp_path):
    """With the numbers of its failure: the same value comes out, and of the part that failed."""
    every = {
        "stages": od.stages(noted(first), noted(rest), continuation=0.9),
        "multifidelity": od.multifidelity(noted(cheap), noted(expensive), continuation=0.9, common=common),
    }
    for name, pair in every.items():
        model, file = od.Model(PRIOR, pair, observed=3.0), tmp_path / f"{name}.db"
        post = od.rejection(model, K, budget=600, seed=1, store=file)
        parts = set()
        for number, failure in enumerate(post.failures):
            SEEN.clear()
            with pytest.raises(RuntimeError, match=failure.message.removeprefix("RuntimeError: ")):
                od.replay(file, number, model=model)
            assert SEEN[-1][0] in failure.message and SEEN[-1][1] == failure.theta["theta"]
            parts.add(SEEN[-1][0])
        assert len(parts) == 2 or name == "stages"


# --- other functions, and what comes after a run ------------------------------------------------------------


@pytest.mark.parametrize("make", [staged_model, two_models])
def test_functions_of_whole_simulations_refuse(make):
    """Their budgets are numbers of simulations, and those of such a model are prices."""
    model = make(0.4)
    for call, name in (
        (lambda: od.compare({"one": model, "other": model}, budget=2000), "compare"),
        (lambda: od.fit_summary(model, budget=500), "fit_summary"),
        (lambda: od.tolerance_for(model, 0.1, budget=50_000), "tolerance_for"),
        (lambda: od.infer(model, budget=2000), "infer"),
    ):
        with pytest.raises(ValueError, match=rf"od\.{name} runs whole simulations"):
            call()


def test_an_analysis_with_stages_is_calibrated():
    found = od.calibrate(
        staged_model(0.5), od.rejection, budget=5000, data_sets=60, seed=1, arguments={"kernel": od.uniform(0.5)}
    )
    assert found.level == "green"


def test_ranks_among_negative_weights_are_refused():
    with pytest.raises(ValueError, match="negative"):
        od.calibrate(
            two_models(0.3), od.rejection, budget=5000, data_sets=20, seed=1, arguments={"kernel": od.uniform(0.5)}
        )


@pytest.mark.parametrize("name", ["rejection", "importance"])
def test_a_posterior_with_negative_weights_does_what_it_can(name, tmp_path):
    post = SAMPLERS[name](two_models(0.3), K, budget=40_000, seed=1)
    assert post.weights.min() < 0
    for call in (
        lambda: post.resample(),
        lambda: post.sample(5),
        lambda: post.predict(5),
        lambda: post.misfit(),
        lambda: post.to_dataframe(),
        lambda: post.plot("predictive"),
        lambda: post.report(tmp_path / "asked.html", predictive=50),
    ):
        with pytest.raises(ValueError, match="weights are negative"):
            call()
    with pytest.raises(ValueError, match=r"od\.multifidelity come from two"):
        post.at(0.5)
    page = post.report(tmp_path / "run.html").read_text()
    assert "units of the price" in page and "theta" in page
    tree = post.to_datatree(weighted=True)
    assert float(tree["sample_stats"]["weight"].sum()) == pytest.approx(1.0)
    assert abs(float((post.to_dataframe(weighted=True).prod(axis=1)).sum()) - post.summary()["theta"].mean) < 1e-12
    for kind in ("marginals", "corner", "pairs", "intervals"):
        assert post.plot(kind) is not None
    assert "what their weights cost" in str(post.efficiency())
    assert "40,000 units of the price" in post.status.message


def test_what_a_signed_run_cannot_keep_is_refused(tmp_path):
    for keep in ("distances", "summaries", "all"):
        with pytest.raises(ValueError, match=f"keep='{keep}'"):
            od.rejection(two_models(0.3), K, budget=2000, keep=keep, store=tmp_path / "run.db")


@pytest.mark.parametrize("kernel", ["gaussian", "triangular"])
def test_a_smaller_tolerance_of_a_smooth_kernel(kernel):
    smaller = {"gaussian": od.gaussian(0.6), "triangular": od.triangular(1.2)}[kernel]
    for name in ("rejection", "importance", "pseudo_marginal"):
        post = SAMPLERS[name](staged_model(0.4), KERNELS[kernel], seed=2)
        right(post.at(smaller.eps), smaller)


def test_common_random_numbers_leave_the_posterior_as_it_is():
    """A cheap model that agrees with the expensive one half of the time, by the same numbers."""

    def nearly(rng, theta):
        return rng.binomial(4, min(theta + 0.05, 1.0))

    for kernel in KERNELS.values():
        pair = od.multifidelity(nearly, expensive, continuation=0.3, common=True)
        right(od.rejection(od.Model(PRIOR, pair, observed=3.0), kernel, budget=8000, seed=1), kernel)


# --- the same bytes however a run is made -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "batched"])
@pytest.mark.parametrize("name", ["rejection", "importance"])
def test_workers_change_nothing_of_signed_runs(name, kind):
    model = two_models(None, kind, pilot=100)
    alone, together = (SAMPLERS[name](model, K, seed=1, budget=9000, **how) for how in ({}, {"workers": 2}))
    assert bytes_of(alone) == bytes_of(together)


@pytest.mark.parametrize("make", [staged_model, two_models])
def test_jobs_of_a_queue_give_the_same(make, tmp_path):
    from onedraw.run.shard_work import work

    model = make(None, pilot=100)
    jobs = od.job_array(tmp_path, shards=2)
    for _ in range(30):
        try:
            post = od.rejection(model, K, budget=5000, seed=1, executor=jobs)
            break
        except od.ShardsMissing:
            for shard in (2, 1):
                work(str(tmp_path), shard)
    assert bytes_of(post) == bytes_of(od.rejection(model, K, budget=5000, seed=1))


KILLED = """
import sys, time
import onedraw as od
from tests.test_pairs import cheap, expensive, PRIOR

def slow(rng, theta):
    time.sleep(0.002)
    return expensive(rng, theta)

def model():
    return od.Model(PRIOR, od.multifidelity(cheap, slow, price=(1, 4), pilot=100), observed=3.0)

if __name__ == "__main__":
    od.rejection(model(), od.uniform(1.5), budget=6000, seed=1, store=sys.argv[1], segment=0.05)
"""


def simulations_in(file):
    """None yet where the file is not there, or is there and empty."""
    try:
        return od.load(file).cost.simulations
    except od.StoreError:
        return 0


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signals, "SIGKILL"), reason="no such signal here")
def test_a_killed_run_goes_on(tmp_path, monkeypatch):
    (tmp_path / "killed_pair.py").write_text(KILLED)
    monkeypatch.syspath_prepend(str(tmp_path))
    import killed_pair

    file = tmp_path / "run.db"
    path = os.pathsep.join([str(tmp_path), *sys.path])
    command = [sys.executable, str(tmp_path / "killed_pair.py"), str(file)]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path})
    until = time.monotonic() + 60.0
    while time.monotonic() < until and simulations_in(file) <= 200:
        assert process.poll() is None
        time.sleep(0.1)
    process.kill()
    process.wait()
    before = od.load(file).cost.simulations
    post = od.resume(file, model=killed_pair.model())
    assert 0 < before < post.cost.simulations
    assert post.cost.simulations + 4 * post.cost.expensive <= 6000
    assert bytes_of(post) == bytes_of(od.rejection(killed_pair.model(), K, budget=6000, seed=1))


def test_the_number_that_names_the_second_streams_is_above_all_phases():
    from onedraw.engines.streams import Phase

    assert max(Phase) < pair_parts.SECOND
