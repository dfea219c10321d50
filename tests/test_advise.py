"""Advice on the number of pseudo-samples: right where the answer is known, silent where it cannot be told."""

import json
import math
import time
from functools import partial
from importlib import import_module
from unittest.mock import ANY

import click.testing
import numpy as np
import pytest
from scipy import stats

import onedraw as od
from onedraw import paper
from onedraw.cli.advise import advise as advise_command
from onedraw.cli.advise import verify as verify_command
from onedraw.engines.streams import Rng
from onedraw.paper import verification as checks
from onedraw.paper.contrast import problems
from onedraw.paper.study.efficiency import posterior_moments, random_walk_variance
from onedraw.paper.study.settings import Toy
from onedraw.results import efficiency
from onedraw.results.efficiency import measured_discount
from onedraw.results.monte_carlo_error import Interval
from onedraw.tuning.advise import advise
from onedraw.tuning.particles import log_variance
from onedraw.tuning.prices import Timed, time_steps
from tests.reference import simulate_one, toy

advise_module = import_module("onedraw.tuning.advise")  # od.advise is the function in it


def gaussian_process(points, observed_scale=0.3):
    """A Gaussian process with an unknown length scale: one Cholesky for each scale, then cheap draws."""
    x = np.linspace(0, 1, points)
    gap = np.abs(x[:, None] - x)

    def prepare(scale):
        return np.linalg.cholesky(np.exp(-gap / scale) + 1e-6 * np.eye(points))

    def draw(rng, root, m):
        return rng.standard_normal((m, points)) @ root.T

    @od.batched
    def spread(y):
        return np.stack([y.std(axis=1), np.abs(y).mean(axis=1)], axis=1)

    observed = draw(np.random.default_rng(0), prepare(observed_scale), 1)[0]
    prior = od.Prior(scale=stats.uniform(0.05, 2.0))
    return od.Model(prior, od.staged(prepare, draw), observed=observed, summary=spread)


# Known answers


@pytest.fixture(scope="module")
def toy_advice():
    return advise(toy(), od.uniform(0.05), proposal=od.random_walk(), budget=1_200_000, seed=1, processors=8)


def test_one_is_enough_where_simulations_cost(toy_advice):
    answer = toy_advice.simulations
    assert toy_advice.pseudo_samples == answer.pseudo_samples == 1
    assert answer.certificate.certified >= 18
    assert answer.still_possible <= 1.1
    for gain in answer.gains:
        assert gain.capped is None or gain.capped.value <= 1.1
    assert toy_advice.verdict.startswith("pseudo_samples=1: certified against M <= ")


def test_measured_numbers_are_those_of_the_exact_chain(toy_advice):
    v = posterior_moments(Toy(), 0.05).sd ** 2
    for pilot in toy_advice.pilots:
        if pilot.pseudo_samples in (1, 4):
            kappa = pilot.variances["theta"].kappa
            # The walk learns its scale from draws; kappa depends on it only weakly around the best.
            exact = random_walk_variance(Toy(), 0.05, pilot.pseudo_samples, grid=120).value / v
            assert abs(math.log(kappa.value / exact)) < 4 * kappa.se / kappa.value + 0.15


def test_costs_are_measured_in_both_currencies(toy_advice):
    for gain in toy_advice.simulations.gains:
        # Batched draws are not stopped early, and a chain with more draws is asked more often: a little above M.
        assert gain.pseudo_samples <= gain.cost.value < 1.8 * gain.pseudo_samples
    for gain in toy_advice.seconds.gains:
        assert gain.cost.value < gain.pseudo_samples
    assert toy_advice.discount.value > 1
    assert toy_advice.seconds.currency in str(toy_advice)


def test_the_budget_is_a_hard_limit_and_the_seed_counts(toy_advice):
    assert toy_advice.cost.simulations <= 1_200_000
    again = [advise(toy("plain"), od.uniform(0.6), budget=4000, seed=3, max_pseudo_samples=4) for _ in range(2)]
    assert again[0].cost.simulations <= 4000
    assert [p.variances for p in again[0].pilots] == [p.variances for p in again[1].pilots]
    assert again[0].cost.simulations == again[1].cost.simulations


@pytest.mark.parametrize(
    ("kind", "budget"),
    [
        *(("plain", budget) for budget in (40, 300, 1000, 2500)),
        *((kind, 1000) for kind in ("batched", "staged")),
        *(pytest.param(kind, n, marks=pytest.mark.slow) for kind in ("batched", "staged") for n in (40, 300, 2500)),
    ],
)
def test_no_budget_is_passed(kind, budget):
    calls = 0

    def count(rows):
        nonlocal calls
        calls += rows

    def plain(rng, theta):
        count(1)
        return theta + rng.standard_normal()

    def batch(rng, theta):
        count(theta.size)
        return theta + rng.standard_normal(theta.size)

    def draw(rng, theta, m):
        count(m)
        return theta + rng.standard_normal(m)

    simulators = {"plain": plain, "batched": od.batched(batch), "staged": od.staged(lambda theta: theta, draw)}
    model = od.Model(od.Prior(theta=stats.norm(0, 1)), simulators[kind], observed=2.0)
    found = advise(model, od.uniform(0.8), budget=budget, seed=1)
    assert calls == found.cost.simulations <= budget


def test_rejection_is_recommended_where_it_is_better(toy_advice):
    """p_acc = 0.0104 at eps = 0.05, so 96 simulations a draw; the chain needs about 230."""
    against = toy_advice.against_rejection
    assert against.acceptance_rate.low < 0.0104 < against.acceptance_rate.high
    assert against.rejection_is_better and "plain rejection" in toy_advice.verdict


def test_the_chain_is_recommended_where_the_prior_is_wide():
    """A prior 30 times as wide as the posterior: 1/p_acc grows with it, kappa does not."""
    model = od.Model(
        od.Prior(theta=stats.norm(0, 30)), od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0
    )
    found = advise(model, od.uniform(0.5), budget=600_000, seed=1, max_pseudo_samples=4)
    assert not found.against_rejection.rejection_is_better
    assert "the chain is the better choice" in found.against_rejection.text


def test_layouts_on_processors(toy_advice):
    """kappa falls almost like 1/M here, so 8 draws side by side are about as good as 8 chains."""
    assert toy_advice.layout.processors == 8
    assert toy_advice.layout.ratio.low < 1.4 and toy_advice.layout.ratio.high > 0.9
    assert "8 processors" in str(toy_advice)


# Staged simulators


class Clock:
    """Seconds that a simulator's parts and a proposal say they took."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def model(self):
        def prepare(theta):
            self.now += 10.0
            return theta

        def draw(rng, state, m):
            self.now += 1.0 * m
            return state + rng.standard_normal(m)

        return od.Model(od.Prior(theta=stats.norm(0, 1)), od.staged(prepare, draw), observed=1.0)

    def proposal(self, rng, theta):
        self.now += 3.0 * len(theta)
        there = rng.standard_normal(theta.shape)
        return there, 0.5 * (there**2 - theta**2)[:, 0]


@pytest.mark.parametrize(("own", "step"), [(False, 0.0), (True, 3.0)])
def test_the_price_of_a_set_up_that_every_step_makes(own, step):
    """With an independence proposal there are as many set-ups as steps; the clock is the simulator's own account."""
    clock = Clock()
    model, kernel = clock.model(), od.uniform(1.0)
    starts = od.rejection(model, kernel, draws=20, seed=1)
    proposal = clock.proposal if own else od.independence()
    seconds, cost = time_steps(model, kernel, proposal, starts, (1, 2, 4), 4, 10, 1, clock=clock)
    assert Timed.of(seconds["seconds"]).prices == pytest.approx((step, 10.0, 1.0), abs=1e-6)
    assert cost.setups == 6 * 10 * 4 * 4 + 2 * 4  # turns, steps, chains, three M and none; two M have starts to fill up


@pytest.fixture
def own_clock(monkeypatch):
    """The clock of this process, which other work on the machine does not disturb."""
    monkeypatch.setattr(efficiency.time, "perf_counter", time.process_time)
    monkeypatch.setattr(advise_module, "time_steps", partial(time_steps, clock=time.process_time))


@pytest.mark.slow
def test_a_set_up_makes_more_draws_pay(own_clock):
    found = advise(gaussian_process(120), od.uniform(0.2), budget=40_000, seed=1, max_pseudo_samples=8)
    assert found.discount.value > 4
    assert found.stages.prepare > 4 * found.stages.draw
    assert found.pseudo_samples > 1
    assert found.seconds.gain.low > 1
    assert f"pseudo_samples={found.pseudo_samples}: the measured gain" in found.verdict


@pytest.mark.slow
def test_a_set_up_of_400_points(own_clock):
    found = advise(gaussian_process(400), od.uniform(0.2), budget=20_000, seed=1, max_pseudo_samples=16)
    assert found.discount.value > 4
    assert found.pseudo_samples > 1
    assert found.seconds.gain.low > 1


def work():
    for _ in range(5):
        np.linalg.eigvalsh(np.eye(40))


@pytest.mark.slow
def test_a_tiny_discount_changes_nothing(own_clock):
    """The draw takes far longer than the set-up and the step: a discount of which no M can make much."""

    def draw(rng, theta, m):
        for _ in range(m):
            work()
        return theta + rng.standard_normal(m)

    model = od.Model(od.Prior(theta=stats.norm(0, 1)), od.staged(lambda theta: theta, draw), observed=1.0)
    found = advise(model, od.uniform(1.5), budget=12_000, seed=1, max_pseudo_samples=4)
    assert found.discount.value < 2
    assert found.pseudo_samples == found.seconds.pseudo_samples == 1


def test_discounts_of_simulators_alone(monkeypatch):
    """By a clock that only the simulators advance, the discount is (set-up + draw) / draw."""
    seconds = [0.0]

    def simulate(rng, theta):
        seconds[0] += 1.0
        return theta + rng.standard_normal()

    def prepare(theta):
        seconds[0] += 10.0
        return theta

    def draw(rng, theta, m):
        seconds[0] += m
        return theta + rng.standard_normal(m)

    monkeypatch.setattr(efficiency.time, "perf_counter", lambda: seconds[0])
    prior = od.Prior(theta=stats.norm(0, 1))
    assert measured_discount(od.Model(prior, simulate, observed=1.0), seed=1).value == pytest.approx(1.0)
    staged = od.Model(prior, od.staged(prepare, draw), observed=1.0)
    assert measured_discount(staged, seed=1).value == pytest.approx(11.0)


@pytest.mark.slow
def test_discounts_of_simulators_alone_by_the_clock(own_clock):

    def simulate(rng, theta):
        work()
        return theta + rng.standard_normal()

    model = od.Model(od.Prior(theta=stats.norm(0, 1)), simulate, observed=1.0)
    assert measured_discount(model, seed=1).value < 2
    assert measured_discount(gaussian_process(60), seed=1).value > 4


# Where it cannot be told


def test_a_deterministic_simulator_is_recognised():
    simulators = [
        lambda rng, theta: theta,
        od.batched(lambda rng, theta: theta + 0.0),
        od.staged(lambda theta: theta, lambda rng, theta, m: np.full(m, theta)),
    ]
    for simulate in simulators:
        model = od.Model(od.Prior(theta=stats.norm(0, 1)), simulate, observed=0.0)
        found = advise(model, od.uniform(0.5), budget=5000, seed=1)
        assert found.pseudo_samples is None
        assert found.verdict.startswith("cannot tell: the simulator draws nothing")


def test_no_acceptance_is_said():
    found = advise(toy(y_obs=60.0), od.uniform(0.1), budget=20_000, seed=1)
    assert found.verdict.startswith("cannot tell: nothing was accepted at eps = 0.1")


def test_chains_that_do_not_move_are_said():
    far = od.random_walk(1e16)
    found = advise(toy(), od.uniform(0.5), proposal=far, budget=40_000, seed=1)
    assert found.pseudo_samples is None and "cannot tell: the chains did not move" in found.verdict


def test_a_kappa_that_cannot_be_estimated_is_said():
    crawling = od.random_walk(1e-6)
    found = advise(toy(), od.uniform(1.0), proposal=crawling, budget=100_000, seed=1)
    assert found.pseudo_samples is None and "cannot tell: kappa of theta cannot be estimated" in found.verdict
    assert found.pilots[0].variances["theta"].reason
    assert json.loads(found.to_json())["pseudo_samples"] is None


def test_a_budget_too_small_for_pilots_is_said():
    for budget in (60, 200):
        found = advise(toy("plain"), od.uniform(1.0), budget=budget, seed=1)
        assert found.pseudo_samples is None and found.verdict.startswith("cannot tell: ")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"budget": 0}, "budget must be"),
        ({"processors": 0}, "processors must be"),
        ({"max_pseudo_samples": 1}, "max_pseudo_samples must be a whole number of at least 2"),
        ({"chains": 1.5}, "chains must be"),
    ],
)
def test_bad_input_is_refused(more, message):
    with pytest.raises(ValueError, match=message):
        advise(toy(), od.uniform(0.5), **more)


# The commands

MODEL = """
import onedraw as od
from scipy import stats

model = od.Model(od.Prior(theta=stats.norm(0, 1)), od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
number = 3
"""


def run(command, *arguments):
    return click.testing.CliRunner().invoke(command, list(map(str, arguments)))


def test_advise_command(tmp_path):
    file = tmp_path / "problem.py"
    file.write_text(MODEL)
    result = run(advise_command, file, "--eps", 0.5, "--budget", 100_000, "--seed", 1, "--json")
    found = json.loads(result.output)
    assert result.exit_code == 0 and found["seed"] == 1 and found["simulations"]["pseudo_samples"] == 1
    text = run(advise_command, f"{file}:model", "--eps", 0.5, "--kernel", "gaussian", "--budget", 50_000)
    assert text.exit_code == 0 and "simulations, seed" in text.output


def test_advise_command_takes_an_estimator(tmp_path):
    file = tmp_path / "level.py"
    file.write_text("from onedraw.paper.contrast.problems import state_space\nlevel = state_space(5, 4)\n")
    result = run(advise_command, f"{file}:level", "--start", "mu=0.5", "--budget", 600_000, "--seed", 1, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["rules"][0]["rule"]["name"] == "Pitt et al. (2012)"
    assert "needs --start" in run(advise_command, f"{file}:level").output
    assert "name=number" in run(advise_command, f"{file}:level", "--start", "mu").output


def test_advise_command_explains_what_is_wrong(tmp_path):
    file = tmp_path / "problem.py"
    file.write_text(MODEL)
    assert "--eps is the tolerance" in run(advise_command, file).output
    assert "is a int, not an od.Model" in run(advise_command, f"{file}:number", "--eps", 1).output
    assert "does not define 'other'" in run(advise_command, f"{file}:other", "--eps", 1).output
    assert "there is no file" in run(advise_command, tmp_path / "none.py", "--eps", 1).output
    file.write_text("1 / 0")
    result = run(advise_command, file, "--eps", 1)
    assert isinstance(result.exception, ZeroDivisionError)


def test_verify_command(tmp_path, monkeypatch):
    """With one sampler on one engine: test_verify.py has each of both, and all of them are the default."""
    places = []
    monkeypatch.setattr(checks, "_run", lambda chosen, engines, seed: places.append((chosen, engines)) or ())
    assert run(verify_command, "--trials", 1).exit_code == 0
    [(chosen, engines)] = places
    assert engines == ("plain", "batched", "staged", "compiled", "jax")
    assert {one.name for one in checks.RUNS} < set(chosen)
    monkeypatch.undo()
    batched = ("--engine", "batched")
    monkeypatch.setattr(checks, "RUNS", checks.RUNS[:1])
    good = run(verify_command, "--trials", 3, "--seed", 2, *batched)
    assert good.exit_code == 0 and "statements hold" in good.output and "functions that were run do" in good.output
    assert json.loads(run(verify_command, "--trials", 2, "--json", *batched).output)["ok"]
    saved = tmp_path / "failure.json"
    monkeypatch.setattr(checks, "star_bound", lambda m, many, v: 0.5 * (m * many + (m - 1) * v))
    bad = run(verify_command, "--trials", 20, "--save", saved, *batched)
    assert bad.exit_code == 1 and str(saved) in bad.output
    assert run(verify_command, "--rerun", saved).exit_code == 1
    monkeypatch.undo()
    assert run(verify_command, "--rerun", saved).exit_code == 0
    saved.write_text("[1]")
    assert "not a saved instance" in run(verify_command, "--rerun", saved).output


def test_plain_simulators_are_stopped_early():
    """Between draws a plain simulator is stopped: c_M in simulations is then what was drawn, not M."""
    model = od.Model(od.Prior(theta=stats.norm(0, 1)), simulate_one, observed=2.0)
    found, without = (
        advise(model, od.uniform(1.0), budget=4_000, seed=1, max_pseudo_samples=4, early=early)
        for early in (True, False)
    )
    assert without.simulations.gains[-1].cost.value == pytest.approx(4)
    assert found.simulations.gains[-1].cost.value != pytest.approx(4, rel=0.01)
    assert found.pilots[0].simulations < 1 == without.pilots[0].simulations


# Particles


@pytest.fixture(scope="module")
def tuning():
    """The level of a short series; see `onedraw.paper.contrast.problems`."""
    return advise(estimator=problems.state_space(20, 8), start={"mu": 0.0}, budget=2_500_000, seed=1)


@pytest.mark.slow
def test_the_rules_choose_by_the_spread_of_the_log_estimate(tuning):
    """Measured again at the central theta: the particles named have the standard deviation the rule asks for."""
    names = [choice.rule.name for choice in tuning.rules]
    assert names == ["Pitt et al. (2012)", "Doucet et al. (2015)", "Sherlock et al. (2015)"]
    theta = np.tile(list(tuning.central.values()), (4000, 1))
    for choice in tuning.rules:
        for particles, sd in ((choice.fewest, choice.rule.largest), (choice.most, choice.rule.smallest)):
            found = problems.state_space(20, particles).evaluate(Rng(5, 1), theta, None).log_estimate
            # 200 estimates: the sd is known to about 7 %, N is a whole number, and few particles have heavy tails.
            assert found.std(ddof=1) == pytest.approx(sd, rel=0.35)
    assert tuning.rules[2].fewest <= tuning.rules[1].fewest <= tuning.rules[1].most <= tuning.rules[0].most


def test_efficiency_is_measured_around_the_rules_within_the_budget(tuning):
    assert tuning.cost.simulations <= 2_500_000
    tried = [one.particles for one in tuning.curve]
    assert tried[0] <= tuning.rules[2].fewest and tried[-1] >= tuning.rules[0].most
    assert tuning.particles in tried
    best = max((one for one in tuning.curve if not one.reason), key=lambda one: one.efficiency.value)
    assert tuning.particles == best.particles
    assert tuning.verdict.startswith(f"particles={best.particles}: measured to be most efficient")
    text = str(tuning)
    assert "Sherlock et al. (2015): a standard deviation of 1.81" in text and "measured at equal cost" in text
    assert json.loads(tuning.to_json())["particles"] == tuning.particles


def test_the_variance_of_the_log_estimate_and_the_law_of_its_fall():
    values = np.random.default_rng(1).normal(0.0, 1.5, 5000)
    variance, zeros = log_variance(values)
    assert variance.value == pytest.approx(values.var(ddof=1)) and zeros == 0
    assert variance.low < 2.25 < variance.high
    assert log_variance(np.array([0.0, 1.0, -np.inf, 2.0])) == (Interval(math.inf, ANY, ANY, math.inf), 0.25)
    # Unbiased: of two values the variance is half of the squared difference, not a quarter.
    assert log_variance(np.array([0.0, 1.0]))[0].value == 0.5


def test_an_abc_average_needs_no_such_tuning():
    average = paper.abc_average(toy(), od.uniform(0.5))
    found = advise(estimator=average, budget=60_000, seed=1, max_pseudo_samples=4)
    assert found.pseudo_samples == 1
    assert "the variance of its log need not be tuned" in str(found)
    assert [gain.pseudo_samples for gain in found.simulations.gains] == [2, 4]


def test_advice_on_estimators_explains_what_is_wrong():
    level = problems.state_space(20, 8)
    with pytest.raises(ValueError, match=r"needs starting points, .*start=\{'mu': ...\}"):
        advise(estimator=level)
    with pytest.raises(ValueError, match="not both"):
        advise(toy(), od.uniform(0.5), estimator=level)
    with pytest.raises(ValueError, match="cannot change the number of particles of FunctionEstimator"):
        advise(estimator=od.unbiased(lambda rng, theta: theta[:, 0], level.prior), start={"mu": 0.0})
    with pytest.raises(ValueError, match="start names"):
        advise(estimator=level, start={"nu": 0.0})
    poor = advise(estimator=level, start={"mu": 0.0}, budget=10_000, seed=1)
    assert poor.particles is None and poor.verdict.startswith("cannot tell: the pilot's")
    assert poor.cost.simulations <= 10_000
    stuck = advise(estimator=level, start={"mu": 0.0}, proposal=od.random_walk(1e8), budget=2_000_000, seed=1)
    assert stuck.particles is None and "cannot tell: the pilot accepted 0.00%" in stuck.verdict


def test_advice_is_kept_in_a_file_with_its_timings(tmp_path):
    """The same call again simulates nothing and says the same, seconds included."""
    model = od.Model(od.Prior(theta=stats.norm(0, 1)), od.batched(counted_normal), 2.0)
    given = {"proposal": od.independence(), "budget": 100_000, "seed": 1, "store": tmp_path / "advice.db"}
    first = od.advise(model, od.uniform(0.5), **given)
    before = Calls.count
    again = od.advise(model, od.uniform(0.5), **given)
    assert Calls.count - before <= 1  # the test whether the simulator uses its generator
    assert (again.verdict, again.prices, again.pilots) == (first.verdict, first.prices, first.pilots)
    assert again.cost.simulations == first.cost.simulations <= 100_000
    late = od.advise(model, od.uniform(0.5), proposal=od.independence(), budget=100_000, seed=1, max_seconds=1e-9)
    assert late.verdict.startswith("cannot tell: max_seconds = 1e-09 passed")


class Calls:
    """Of `counted_normal`; no part of its identity, since it is reached through a class."""

    count = 0


def counted_normal(rng, theta):
    Calls.count += 1
    return rng.normal(theta, 1.0)
