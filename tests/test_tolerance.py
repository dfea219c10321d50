"""tolerance_for against exact eps, its stated error, its budget, and what it refuses."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

import onedraw as od
from onedraw.cost import Cost
from onedraw.failures import NoAnswer
from onedraw.paper.study import quadrature as exact
from onedraw.paper.study.run import toy_model
from onedraw.paper.study.settings import Toy
from onedraw.run.blocks import Deadline
from onedraw.run.options import Options
from onedraw.run.saving import Saver
from onedraw.tuning import tolerance
from onedraw.tuning.runs import Runs
from onedraw.tuning.tolerance import (
    DEVICE_CHAINS,
    DEVICE_STEPS,
    DEVICE_THIN,
    ToleranceSearch,
    Trial,
    chord,
    parabola,
    tolerance_for,
)
from tests import reference

POINTS = [
    (Toy(), 0.05, 1, "uniform", 600_000),
    (Toy(), 0.256, 64, "uniform", 6_000_000),
    (Toy(y_obs=8.0), 0.004, 1, "uniform", 600_000),
    (Toy(sigma_y=0.05), 0.0195, 32, "uniform", 6_000_000),  # the rate is almost flat over a decade below the root
    (Toy(y_obs=4.0), 0.02, 4, "gaussian", 1_500_000),
]


@pytest.mark.parametrize(("toy", "rate", "pseudo_samples", "kernel", "budget"), POINTS)
def test_exact_tolerances_within_4_stated_errors(toy, rate, pseudo_samples, kernel, budget):
    found = tolerance_for(
        toy_model(toy), rate, kernel=getattr(od, kernel)(), pseudo_samples=pseudo_samples,
        proposal=od.independence(), budget=budget, seed=3,
    )  # fmt: skip
    expected = exact.tolerance(rate, toy, pseudo_samples, kernel)
    assert abs(found.eps - expected) < 4 * found.std_error
    assert found.std_error < 0.05 * expected
    assert found.cost.simulations <= budget
    # The verifying run got most of the budget, and its rate is the exact one of its eps.
    assert found.path[-1].stage == "verify" and found.path[-1].simulations > 0.3 * budget
    truth = exact.acceptance_rate(toy, found.verified_eps, pseudo_samples, kernel)
    assert abs(found.acceptance_rate - truth) < 4 * found.acceptance_rate_se
    assert sum(run.simulations for run in found.path) <= found.cost.simulations


def chi_squared(rate, pseudo_samples, budget, seeds):
    """Sum of squared errors in units of the stated ones."""
    expected = exact.tolerance(rate, Toy(), pseudo_samples)
    model = toy_model(Toy())
    z = []
    for seed in seeds:
        found = tolerance_for(
            model, rate, pseudo_samples=pseudo_samples, proposal=od.independence(), budget=budget, seed=seed
        )
        z.append((found.eps - expected) / found.std_error)
    return float(np.square(z).sum())


def test_stated_error_is_neither_too_small_nor_too_large():
    """Two-sided at 1e-4 each. Errors stated half as large or twice as large give 4 or 1/4 of the chi-squared."""
    assert stats.chi2.ppf(1e-4, 30) < chi_squared(0.1, 4, 400_000, range(30)) < stats.chi2.isf(1e-4, 30)


def test_the_stated_error_is_made_of_the_parts_that_are_told():
    """se(log eps)² = (se(log r)² + (correction se(slope))²)/slope², by hand from the answer's own numbers."""
    for seed in (1, 2):
        found = tolerance_for(toy_model(Toy()), 0.1, proposal=od.independence(), budget=60_000, seed=seed)
        of_rate = found.acceptance_rate_se / found.acceptance_rate
        of_slope = np.log(found.eps / found.verified_eps) * found.slope_se
        assert found.std_error == pytest.approx(found.eps * np.hypot(of_rate, of_slope) / found.slope, rel=1e-9)
        assert found.path[-1].error == pytest.approx(of_rate, rel=1e-9)


def test_stated_error_with_a_small_budget():
    """Few simulations, also for a batched simulator: the error is larger, and stated as such."""
    assert stats.chi2.ppf(1e-4, 12) < chi_squared(0.1, 1, 10_000, range(12)) < stats.chi2.isf(1e-4, 12)


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "pseudo_samples", "budget"), [(0.004, 1, 700_000), (0.0284, 16, 4_000_000)])
def test_stated_error_at_low_rates(rate, pseudo_samples, budget):
    found = chi_squared(rate, pseudo_samples, budget, range(60))
    assert stats.chi2.ppf(1e-4, 60) < found < stats.chi2.isf(1e-4, 60)


def test_precision_is_reached_without_a_budget():
    expected = exact.tolerance(0.1, Toy(), 1)
    for precision in (0.03, 0.01):
        found = tolerance_for(toy_model(Toy()), 0.1, proposal=od.independence(), precision=precision, seed=5)
        assert 0.5 * precision < found.std_error / found.eps < 1.3 * precision
        assert abs(found.eps - expected) < 4 * found.std_error


def test_random_walk_by_an_independent_run_at_the_eps_found():
    found = tolerance_for(reference.toy(), 0.1, precision=0.03, seed=2)
    again = od.pseudo_marginal(reference.toy(), od.uniform(found.eps), draws=400, chains=1024, seed=99)
    # Both errors count: that of eps moves the rate by the slope.
    error = np.hypot(again.acceptance_rate_se, 0.1 * found.slope * found.std_error / found.eps)
    assert abs(again.acceptance_rate - 0.1) < 4 * error


@pytest.mark.parametrize("budget", [6_000, pytest.param(20_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["plain", "staged"])
def test_simulators_called_one_by_one(kind, budget):
    found = tolerance_for(reference.toy(kind), 0.3, proposal=od.independence(), budget=budget, seed=1)
    assert found.cost.simulations <= budget
    assert abs(found.eps - exact.tolerance(0.3, Toy(), 1)) < 4 * found.std_error


def test_scaled_distance_is_learnt_once():
    model = reference.toy(distance=od.scaled(pilot=500))
    found = tolerance_for(model, 0.2, proposal=od.independence(), budget=400_000, seed=1)
    assert found.cost.simulations <= 400_000
    # The distance is |y - 2| over the spread of y, so eps shrinks by about that spread.
    assert 0.3 < found.eps / exact.tolerance(0.2, Toy(), 1) < 1.2


def test_same_seed_same_answer():
    def once(seed):
        found = tolerance_for(toy_model(Toy()), 0.2, proposal=od.independence(), budget=300_000, seed=seed)
        return found.eps, found.std_error, found.path

    assert once(7) == once(7)
    assert once(7)[0] != once(8)[0]


def test_the_answer_says_what_it_is():
    found = tolerance_for(toy_model(Toy()), 0.2, proposal=od.independence(), budget=300_000, seed=1)
    assert f"{found.cost.simulations:,} simulations" in str(found)
    assert "acceptance rate of 0.2" in str(found)


def test_slopes_of_a_straight_line_and_of_a_parabola():
    def run(log_eps, log_rate):
        return Trial("bracket", np.exp(log_eps), np.exp(log_rate), 1e-3, 100, 100, 1)

    low, middle, high = (run(x, -3 + 0.7 * x + 0.2 * x**2) for x in (-0.5, 0.1, 0.6))
    slope, error, bend = parabola(low, middle, high)
    assert slope == pytest.approx(0.7 + 0.4 * 0.1) and bend == pytest.approx(0.4)
    assert error > 0
    assert chord(run(-1, -2.0), run(1, -1.0))[0] == pytest.approx(0.5)
    # Errors of the rates are independent: by hand, as the derivative of each slope in each log rate.
    first, last = run(-1, -2.0), run(1, -1.0)
    assert chord(first, last)[1] == pytest.approx(np.hypot(1e-3 * np.exp(2.0), 1e-3 * np.exp(1.0)) / 2)
    steps = np.array([-0.5, 0.1, 0.6])
    by_hand = np.linalg.inv(np.vander(steps - 0.1, 3))[1] * [1e-3 / np.exp(one.log_rate) for one in (low, middle, high)]
    assert error == pytest.approx(np.sqrt((by_hand**2).sum()))


def even_search(engine="numpy", pseudo_samples=1, fewest=32):
    """A search whose pilot found distances evenly from 0 to 1, so that the mean weight at eps is eps."""
    model, distances = toy_model(Toy(), engine), np.linspace(0, 1, 10_001)[1:]
    runs = Runs(None, Options.checked({"seed": 1, "progress": False}), Saver(), Deadline(None))
    return ToleranceSearch(
        model, od.uniform(), pseudo_samples, None, None, 0.01, runs, fewest, distances=distances, pilot=10_000
    )


def test_short_runs_do_not_step_where_none_can_start():
    search, eps = even_search(), np.log(0.1)
    assert search.affordable_step(eps, -5.0, None) == search.affordable_step(eps, -5.0, 10_000) == -np.log(8)
    # Starting points of 96 chains in 2,000 simulations need a weight of 0.048; a quarter of the step leads to 0.059.
    assert search.affordable_step(eps, -5.0, 2_000) == pytest.approx(-np.log(8) / 4)
    assert search.affordable_step(eps, 0.3, 10) == 0.3
    assert search.affordable_half(eps, 0.5, 10_000) == 0.5
    assert search.affordable_half(eps, 0.5, 700) == pytest.approx(0.5 * 0.8**2)


@pytest.mark.parametrize(("eps", "error"), [(0.045, 0.42), (0.5, 0.1)])
def test_the_slope_of_the_prior_is_not_left_to_chance(eps, error):
    """Distances whose share below eps is eps^2, so that the slope is 2; at the smaller eps, 20 of 10,000 lie below."""
    away = []
    for seed in range(100):
        distances = np.sort(np.sqrt(np.random.default_rng(seed).random(10_000)))
        away.append(replace(even_search(), distances=distances).slope_of_prior(eps) - 2.0)
    assert np.sqrt(np.mean(np.square(away))) < error


@pytest.mark.parametrize(("engine", "thin"), [("numpy", 1), ("jax", DEVICE_THIN)])
def test_steps_are_counted_whatever_comes_back(engine, thin, monkeypatch):
    """On a device one draw in 16 comes back, and all steps count."""
    asked = {}

    def run(model, kernel, **given):
        asked.update(given)
        status = SimpleNamespace(reason="budget")
        return SimpleNamespace(
            status=status, shape=(given["chains"], given["draws"] or 25), acceptance_rate=0.1, acceptance_rate_se=0.01,
            cost=Cost(simulations=7),
        )  # fmt: skip

    monkeypatch.setattr(tolerance, "pseudo_marginal", run)
    search = even_search(engine, fewest=256)
    path = search.path
    search.run("search", np.log(0.001), 256 * 1000, None)
    assert asked["thin"] == thin and asked["draws"] == -(-1000 // thin)
    assert path[0].steps == asked["draws"] * thin >= 1000 and path[0].chains == 256
    search.run("bracket", np.log(0.001), np.inf, 2_000_000)
    assert asked["draws"] is None and path[1].steps == 25 * thin and path[1].simulations == 7


def test_chains_on_a_device_are_few_numbers():
    """Each is a program; at most a quarter of the simulations goes into their starting points."""
    for simulations in (1e4, 1e5, 1e6, 1e7):
        for eps in (0.001, 0.01, 0.1, 0.9):
            for pseudo_samples in (1, 16):
                chains = even_search("jax", pseudo_samples, DEVICE_CHAINS[0]).chains_for(eps, simulations)
                assert chains in (256, 4096)
                if chains > DEVICE_CHAINS[0]:
                    assert chains / eps <= 0.25 * simulations
                    assert chains * DEVICE_STEPS * pseudo_samples <= simulations
    assert even_search("jax").chains_for(0.1, 1e7) == DEVICE_CHAINS[1]
    assert even_search("jax", fewest=16).chains_for(0.1, 1000) == 16


@pytest.mark.parametrize(
    ("engine", "arguments", "fewest"),
    [
        ("numpy", {"budget": 500_000}, 32), ("numpy", {"budget": 20_000}, 8), ("numpy", {"precision": 0.01}, 32),
        ("jax", {"budget": 5_000_000}, 256), ("jax", {"budget": 1_500_000}, 64), ("jax", {"budget": 20_000}, 16),
        ("jax", {"budget": 5_000_000, "pseudo_samples": 4}, 64), ("jax", {"precision": 0.01}, 256),
        ("jax", {"budget": 5_000_000, "chains": 100}, 100),
    ],
)  # fmt: skip
def test_the_fewest_chains_follow_the_budget(engine, arguments, fewest, monkeypatch):
    seen = []
    monkeypatch.setattr(ToleranceSearch, "simulate_prior", lambda search: (seen.append(search.fewest), 1 / 0))
    with pytest.raises(ZeroDivisionError):
        tolerance_for(toy_model(Toy(), engine), 0.1, seed=1, **arguments)
    assert seen == [fewest]


def test_a_rate_above_that_of_every_eps_is_refused():
    with pytest.raises(ValueError, match=r"0\.9 cannot be reached: even at eps = .* ask for less"):
        tolerance_for(reference.toy(), 0.9, seed=1)


def test_a_rate_below_that_of_exact_matches_is_refused():
    with pytest.raises(ValueError, match=r"as low as 0\.001 cannot be reached"):
        tolerance_for(reference.beta_binomial(), 0.001, proposal=od.independence(), seed=1)


def test_a_jump_of_the_rate_is_named():
    # Counts match exactly (rate 0.11) or within one (0.31): nothing in between.
    with pytest.raises(ValueError, match=r"it jumps from .* at eps = .* to .*; ask for a rate on one side"):
        tolerance_for(reference.beta_binomial(), 0.19, proposal=od.independence(), seed=1)


@pytest.mark.parametrize(
    ("distances", "error", "words"),
    [
        (np.linspace(0.1, 3.0, 30), NoAnswer, r"disagree \(0\.1 ± 0\.03 at eps = 0\.9.*raise budget"),
        (np.repeat([0.0, 1.0, 2.0], 10), ValueError, r"it jumps from 0\.1 at eps = 0\.9 to 0\.36 at eps = 1\.9"),
    ],
    ids=["continuous", "counts"],
)
def test_only_distances_with_few_values_make_a_jump(distances, error, words):
    """Continuous distances have none: two runs that disagree were too short."""
    search = ToleranceSearch(reference.toy(), od.uniform(), 1, None, 2, 0.3, None, 2, distances=distances)
    search.path += [Trial("search", 0.9, 0.1, 0.03, 2, 50, 100), Trial("search", 1.9, 0.36, 0.04, 2, 50, 100)]
    with pytest.raises(error, match=words):
        raise search.jump()


def test_a_model_without_noise_in_its_distance_is_refused():
    model = od.Model(od.Prior(theta=stats.norm(0, 1)), od.batched(lambda rng, theta: 0 * theta), observed=0.0)
    with pytest.raises(ValueError, match="same for every eps"), pytest.warns(UserWarning, match="drew nothing"):
        tolerance_for(model, 0.5, proposal=od.independence(), seed=1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"acceptance_rate": 0.0}, "acceptance_rate must be positive"),
        ({"acceptance_rate": 1.0}, "acceptance_rate must be below 1"),
        ({"acceptance_rate": float("nan")}, "acceptance_rate must be positive"),
        ({"kernel": od.uniform(0.1)}, r"has the tolerance eps = 0\.1, which is what"),
        ({"kernel": 3}, r"such as od\.uniform\(\), got 3"),
        ({"kernel": od.uniform}, "must be a kernel without a tolerance"),
        ({"pseudo_samples": 0}, "pseudo_samples must be"),
        ({"budget": 10}, "budget = 10 is too small"),
        ({"precision": -1.0}, "precision must be positive"),
        ({"chains": 0}, "chains must be"),
        ({"seed": -1}, "seed must be"),
        ({"progress": "yes"}, "progress must be"),
        ({"model": 3}, r"model must be an od\.Model"),
        ({"budget": 1000}, "too small .* give at least 1024"),
        ({"budget": 300_000, "acceptance_rate": 1e-5}, "raise budget"),
    ],
)
def test_bad_input_is_named_with_its_remedy(arguments, words):
    with pytest.raises(ValueError, match=words):
        tolerance_for(**{"model": reference.toy(), "acceptance_rate": 0.1, "seed": 1, **arguments})


def numbers(found):
    return found.eps, found.std_error, found.path, found.cost._replace(seconds=0.0, surplus=0)


def test_a_search_that_is_killed_continues_from_its_file(tmp_path):
    """All runs of a search share one file; what it holds is not simulated again, and the answer is the same."""
    Calls.count = 0
    model = od.Model(od.Prior(theta=stats.norm(0, 1)), counted_normal, 2.0, distance=od.scaled(scale=[1.0]))
    given = {"budget": 4_000, "proposal": od.independence(), "seed": 3, "segment": 1e-9}
    file = tmp_path / "search.db"
    with pytest.raises(KeyboardInterrupt):
        od.tolerance_for(model, 0.1, **given, store=file)
    before = Calls.count
    found = od.tolerance_for(model, 0.1, **given, store=file)
    assert 0 < Calls.count - before < found.cost.simulations - 1_500
    assert numbers(found) == numbers(od.tolerance_for(model, 0.1, **given))
    with pytest.raises(od.StoreError, match=r"acceptance_rate: 0\.1 -> 0\.2"):
        od.tolerance_for(model, 0.2, **given, store=file)
    with pytest.raises(od.StoreError, match=r"holds what od\.tolerance_for has measured, and no draws"):
        od.load(file)


def test_workers_and_time_limits_of_a_search():
    model = od.Model(od.Prior(theta=stats.norm(0, 1)), plain_normal, 2.0)
    given = {"budget": 3_000, "proposal": od.independence(), "seed": 3}
    assert numbers(od.tolerance_for(model, 0.1, **given, workers=2)) == numbers(od.tolerance_for(model, 0.1, **given))
    with pytest.raises(TimeoutError, match=r"max_seconds = 1e-09 passed after"):
        od.tolerance_for(model, 0.1, **given, max_seconds=1e-9)


class Calls:
    """Of `counted_normal`; no part of its identity, since it is reached through a class."""

    count = 0


def counted_normal(rng, theta):
    Calls.count += 1
    if Calls.count == 2_500:
        raise KeyboardInterrupt
    return rng.normal(theta, 1.0)


def plain_normal(rng, theta):
    return rng.normal(theta, 1.0)
