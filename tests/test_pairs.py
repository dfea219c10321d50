"""Simulators in two parts: the posterior is that of the expensive simulation, exactly, whatever is left out.

y is binomial with 4 trials and success probability theta, uniform on (0, 1), and 3 was observed. Given y, theta is
Beta(y + 1, 5 - y), and every y from 0 to 4 has probability 1/5, so the posterior is a mixture of such laws with weights
proportional to K(|y - 3|).
"""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

import onedraw as od
from onedraw.engines.streams import Phase, Rng
from onedraw.estimators import pairs
from onedraw.estimators.abc_average import AbcAverage
from onedraw.model.pair import ContinuationRule
from onedraw.results.monte_carlo_error import Draws, monte_carlo

PRIOR = od.Prior(theta=stats.uniform(0, 1))
KERNELS = {"uniform": od.uniform(1.5), "gaussian": od.gaussian(1.2), "triangular": od.triangular(2.0)}
OUTCOMES = np.arange(5)


def exact(kernel, of=lambda law: law.mean()):
    """A linear function of the posterior, by mixing Beta laws."""
    weight = np.exp(kernel.log_weight(np.abs(OUTCOMES - 3.0)))
    return sum(w * of(stats.beta(y + 1, 5 - y)) for y, w in zip(OUTCOMES, weight, strict=True)) / weight.sum()


def first(rng, theta):
    return rng.binomial(2, theta)


def rest(rng, state, theta):
    return state + rng.binomial(2, theta)


def cheap(rng, theta):
    """Biased: too many successes, and too little noise."""
    return np.round(4 * np.minimum(theta + 0.1, 1.0) + rng.normal(0, 0.5, np.shape(theta)))


def expensive(rng, theta):
    return rng.binomial(4, theta)


def signal(state):
    return 2.0 - state


CONTINUATIONS = {
    "constant": 0.4,
    "always": 1.0,
    "extreme": lambda signal, theta: np.where(signal > 0.5, 0.1, 1.0),
    "of theta": lambda signal, theta: 0.1 + 0.9 * theta,
    "learnt": None,
}


def staged_model(continuation=0.4, kind="batched", **more):
    more = {"price": (1, 4), "pilot": 500} | more
    mark = od.batched if kind == "batched" else lambda function: function
    pair = od.stages(mark(first), mark(rest), signal=signal, continuation=continuation, **more)
    return od.Model(PRIOR, pair, observed=3.0)


def two_models(continuation=0.4, kind="batched", **more):
    more = {"price": (1, 20), "pilot": 500} | more
    mark = od.batched if kind == "batched" else lambda function: function
    pair = od.multifidelity(mark(cheap), mark(expensive), continuation=continuation, **more)
    return od.Model(PRIOR, pair, observed=3.0)


SAMPLERS = {
    "rejection": lambda model, kernel, **k: od.rejection(model, kernel, **({"budget": 200_000} | k)),
    "importance": lambda model, kernel, **k: od.importance(model, kernel=kernel, **({"budget": 100_000} | k)),
    "smc": lambda model, kernel, **k: od.smc(model, kernel=kernel, **({"budget": 300_000} | k)),
    "pseudo_marginal": lambda model, kernel, **k: od.pseudo_marginal(
        model, kernel, **({"chains": 200, "draws": 150} | k)
    ),
}
SIGNED = ("rejection", "importance")


def bytes_of(post):
    weights = None if post.weights is None else post.weights.tobytes()
    return post.draws["theta"].tobytes(), weights, post.cost._replace(seconds=0.0, surplus=0)


def agrees(post, kernel, largest=0.025):
    """Mean and two probabilities, each within 4.5 errors that are small."""
    for function, of in (
        (lambda theta: theta, lambda law: law.mean()),
        (lambda theta: theta < 0.6, lambda law: law.cdf(0.6)),
        (lambda theta: theta > 0.8, lambda law: law.sf(0.8)),
    ):
        found = post.estimate(function)
        assert found.mcse < largest
        assert abs(found.value - exact(kernel, of)) < 4.5 * found.mcse


# --- exact posteriors ---------------------------------------------------------------------------------------

# Every rule with one kernel and every kernel with one rule; the whole product is for the slow tests.
RULES = [
    pytest.param(kernel, rule, marks=() if kernel == "uniform" or rule == "extreme" else pytest.mark.slow)
    for kernel in KERNELS
    for rule in CONTINUATIONS
]


@pytest.mark.parametrize(("kernel", "continuation"), RULES)
@pytest.mark.parametrize("name", SAMPLERS)
def test_stages_leave_the_posterior_as_it_is(name, kernel, continuation):
    model = staged_model(CONTINUATIONS[continuation])
    # Particles that count twenty times are resampled together: fewer of them are worth something.
    largest = 0.06 if (name, continuation) == ("smc", "extreme") else 0.025
    agrees(SAMPLERS[name](model, KERNELS[kernel], seed=1), KERNELS[kernel], largest)


@pytest.mark.parametrize(("kernel", "continuation"), RULES)
@pytest.mark.parametrize("name", SIGNED)
def test_a_bad_cheap_model_leaves_the_posterior_as_it_is(name, kernel, continuation):
    model = two_models(CONTINUATIONS[continuation], price=(1, 4))
    post = SAMPLERS[name](model, KERNELS[kernel], seed=1, budget=150_000)
    agrees(post, KERNELS[kernel])
    assert continuation == "always" or post.weights.min() < 0


@pytest.mark.parametrize("kind", ["plain", "batched"])
def test_the_estimates_have_the_right_mean_at_each_theta(kind):
    """E T = P(hit) exactly: by many estimates at two parameter values."""
    kernel = KERNELS["gaussian"]
    theta = np.repeat([0.3, 0.7], 10_000)[:, None]
    for model in (staged_model(CONTINUATIONS["extreme"], kind), two_models(CONTINUATIONS["extreme"], kind)):
        found = pairs.draw_pairs(model, Rng(1, Phase.RUN), theta, None, "raise")
        estimate = pairs.estimates(kernel, found.distances, found.counted).reshape(2, -1)
        for at, some in zip((0.3, 0.7), estimate, strict=True):
            mean = stats.binom(4, at).expect(lambda y: np.exp(kernel.log_weight(np.abs(y - 3.0))))
            assert abs(some.mean() - mean) < 4.5 * some.std() / math.sqrt(some.size)


def test_the_estimate_is_unbiased_by_enumeration():
    """Over all outcomes of both parts and of the coin, with numbers that nothing is special about."""
    rng = np.random.default_rng(1)
    probability, of_cheap, of_expensive, alpha = (rng.random((3, 4)), rng.random(3), rng.random((3, 4)), rng.random(3))
    probability /= probability.sum()
    total = 0.0
    for c, d, on in itertools.product(range(3), range(4), (False, True)):
        chance = probability[c, d] * (alpha[c] if on else 1 - alpha[c])
        factor = np.array([1 / alpha[c] if on else 0.0])
        total += chance * pairs.combined(of_expensive[c, d : d + 1], of_cheap[c : c + 1], factor)[0]
    assert abs(total - (probability * of_expensive).sum()) < 1e-12


def test_a_probability_below_the_floor_is_raised_to_it():
    """The floor is the probability that is used, and the weight is its inverse."""
    model = staged_model(lambda signal, theta: 0.0, floor=0.2, price=None)
    post = od.rejection(model, od.uniform(1.5), budget=20_000, seed=1)
    assert abs(post.cost.expensive / 20_000 - 0.2) < 4.5 * math.sqrt(0.2 * 0.8 / 20_000)
    assert abs(post.acceptance_rate - 3 / 5) < 4.5 * post.acceptance_rate_se


def test_with_certainty_all_draws_count_the_same():
    for post in (
        od.rejection(staged_model(1.0), od.uniform(0.5), draws=500, seed=1),
        od.rejection(two_models(1.0), od.uniform(0.5), draws=500, seed=1),
    ):
        assert np.allclose(post.weights, 1 / 500)
        assert post.cost.expensive == post.cost.simulations
        assert post.summary()["theta"].ess == pytest.approx(500, rel=0.01)


def test_chains_start_in_their_stationary_law():
    """A single step: the draws are those of exact starts, with estimates that carry 1/alpha."""
    kernel = KERNELS["uniform"]
    post = od.pseudo_marginal(staged_model(CONTINUATIONS["extreme"]), kernel, chains=4000, draws=1, seed=3)
    agrees(post, kernel)


def test_particles_from_the_prior_have_weights():
    """Before the first move they are weighted simulations: moves would make up for wrong weights."""
    model = staged_model(CONTINUATIONS["extreme"], price=None)
    post = od.smc(model, kernel=od.uniform(2.5), particles=20_000, budget=20_000, seed=1)
    assert post.cost.proposals == 20_000
    agrees(post, post.kernel)


def test_at_a_smaller_tolerance():
    for name in SAMPLERS:
        post = SAMPLERS[name](staged_model(CONTINUATIONS["extreme"]), od.uniform(1.5), seed=5).at(0.5)
        found = post.estimate("theta")
        assert abs(found.value - exact(od.uniform(0.5))) < 4.5 * found.mcse < 0.15


# --- errors with negative weights ---------------------------------------------------------------------------


def test_stated_errors_hold_with_negative_weights():
    """95 % intervals hold the truth in about 95 % of runs."""
    model, kernel = two_models(0.3, price=None), KERNELS["uniform"]
    truth, held, runs = exact(kernel), 0, 200
    for seed in range(runs):
        found = od.rejection(model, kernel, budget=1500, seed=seed).estimate("theta")
        held += abs(found.value - truth) < 1.96 * found.mcse
    assert abs(held / runs - 0.95) < 3.5 * math.sqrt(0.95 * 0.05 / runs)


def test_the_error_is_the_delta_method_of_signed_weights():
    rng = np.random.default_rng(1)
    values, weights = rng.normal(size=(1, 400)), rng.normal(0.5, 1.0, size=(1, 400))
    weights /= weights.sum()
    found = monte_carlo(values, Draws(weights, independent=True))
    mean = (weights * values).sum()
    assert found.value == pytest.approx(mean)
    assert found.mcse == pytest.approx(math.sqrt((weights**2 * (values - mean) ** 2).sum()), rel=0.02)


def test_quantiles_and_intervals_do_not_go_back_and_forth():
    post = od.rejection(two_models(0.3), KERNELS["uniform"], budget=200_000, seed=1)
    quantiles = [post.estimate("theta", of=p).value for p in (0.05, 0.25, 0.5, 0.75, 0.95)]
    assert quantiles == sorted(quantiles)
    median = post.estimate("theta", of=0.5)
    assert abs(exact(KERNELS["uniform"], lambda law: law.cdf(median.value)) - 0.5) < 0.05
    row = post.summary()["theta"]
    assert 0 < row.hdi_low < row.mean < row.hdi_high < 1


def test_nothing_is_said_if_negative_weights_outweigh_the_others():
    found = monte_carlo(np.array([[0.0, 1.0, -1.0]]), Draws(np.array([[2.0, -0.5, -0.5]]), independent=True))
    assert "negative weights" in found.reason and math.isnan(found.mcse)


def test_negative_weights_are_not_resampled():
    post = od.rejection(two_models(0.3), KERNELS["uniform"], budget=20_000, seed=1)
    with pytest.raises(ValueError, match="negative"):
        post.resample()
    assert post.to_dataframe(weighted=True)["weight"].min() < 0
    with pytest.raises(ValueError, match="negative weights"):
        od.pseudo_marginal(staged_model(), od.uniform(1.5), start=post, draws=5)


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pseudo_marginal", "smc"])
def test_estimates_that_may_be_negative_are_refused(name):
    with pytest.raises(ValueError, match=r"may be negative.*od\.rejection or od\.importance"):
        SAMPLERS[name](two_models(), od.uniform(1.5), seed=1)


def test_samplers_of_whole_simulations_say_so():
    model = staged_model()
    for call in (
        lambda: od.wilkinson(model, od.uniform(1.5), draws=5),
        lambda: od.r_hit(model, od.uniform(1.5), draws=5),
        lambda: od.infer(model, budget=1000),
    ):
        with pytest.raises(ValueError, match="runs whole simulations"):
            call()


def test_arguments_are_checked():
    good = {"signal": signal, "continuation": 0.5}
    for make, message in (
        (lambda: od.stages(first, rest, continuation=0.0), "a probability above 0"),
        (lambda: od.stages(first, rest, **good, floor=0.0), "floor must lie above 0"),
        (lambda: od.stages(first, rest, **good, price=(1, -2)), "two positive numbers"),
        (lambda: od.stages(first, rest, signal=signal), r"give price=\(cheap, expensive\)"),
        (lambda: od.stages(first, rest, price=(1, 2)), "give signal="),
        (lambda: od.stages(od.batched(first), rest, **good), "of one kind"),
        (
            lambda: od.multifidelity(od.batched(cheap), od.batched(expensive), price=(1, 2), common=True),
            "plain simulators",
        ),
        (lambda: od.multifidelity(cheap, 3, price=(1, 2)), "expensive must be a function"),
        (lambda: od.Model(PRIOR, od.stages(first, first, **good), 3.0), r"it is called as rest\(rng, state, theta\)"),
        (lambda: od.pseudo_marginal(staged_model(), od.uniform(1), draws=5, pseudo_samples=2), "pseudo_samples = 2"),
        (lambda: od.rejection(staged_model(), od.uniform(1), budget=4), "may cost 5"),
        (lambda: od.smc(staged_model(None), budget=9000), "has no tolerance"),
        (lambda: od.importance(two_models(), budget=9000), "has no tolerance"),
        (lambda: od.rejection(staged_model(None), od.uniform(1), budget=2500), "pilot of the continuation"),
        (lambda: od.rejection(staged_model(lambda signal, theta: 2.0), od.uniform(1), draws=5), "between 0 and 1"),
        (lambda: od.rejection(staged_model(), od.uniform(1), draws=5, timeout=1.0), "for plain simulators"),
    ):
        with pytest.raises(ValueError, match=message):
            make()


# --- cost, budget and the learnt probability ----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "batched"])
@pytest.mark.parametrize("continuation", ["constant", "learnt"])
@pytest.mark.parametrize("name", SAMPLERS)
def test_the_budget_is_never_passed(name, continuation, kind):
    model = staged_model(CONTINUATIONS[continuation], kind, pilot=100)
    more = {"chains": 8, "draws": None} if name == "pseudo_marginal" else {}
    post = SAMPLERS[name](model, od.uniform(1.5), seed=1, budget=3000, **more)
    spent = post.cost.simulations + 4 * post.cost.expensive
    assert spent <= 3000
    assert spent > 2800 or name == "smc"
    assert 0 < post.cost.expensive <= post.cost.simulations - (continuation == "constant")


def test_parts_are_counted_apart():
    calls = {"first": 0, "rest": 0}

    def begin(rng, theta):
        calls["first"] += 1
        return first(rng, theta)

    def end(rng, state, theta):
        calls["rest"] += 1
        return rest(rng, state, theta)

    model = od.Model(PRIOR, od.stages(begin, end, continuation=0.3), observed=3.0)
    post = od.rejection(model, od.uniform(0.5), budget=500, seed=1)
    assert calls == {"first": post.cost.simulations, "rest": post.cost.expensive}
    assert post.cost.simulations == 500
    assert abs(post.cost.expensive - 150) < 4.5 * math.sqrt(500 * 0.3 * 0.7)


def test_common_random_numbers():
    """Both parts draw the same numbers, so an expensive model that is the cheap one never changes anything."""

    def same(rng, theta):
        return rng.normal(theta)

    for common in (True, False):
        pair = od.multifidelity(same, same, continuation=0.5, common=common)
        post = od.rejection(od.Model(PRIOR, pair, observed=0.5), od.uniform(0.3), budget=2000, seed=1)
        assert np.allclose(post.weights, post.weights[0, 0]) == common


def test_pilots_are_kept_out():
    """With the same rule, the run that has learnt it and the run that was given it have the same draws."""
    learnt = od.rejection(staged_model(None, price=(1, 4)), od.uniform(0.5), draws=400, seed=1)
    rule = ContinuationRule(*(np.array(part) for part in learnt.settings["continuation"].values()))
    given = od.rejection(staged_model(rule), od.uniform(0.5), draws=400, seed=1)
    assert learnt.draws["theta"].tobytes() == given.draws["theta"].tobytes()
    assert learnt.weights.tobytes() == given.weights.tobytes()
    assert learnt.cost.simulations == given.cost.simulations + 500


def product(alpha, share, change, rest, price):
    return (rest + (share * change / alpha).sum()) * (price[0] + price[1] * (share * alpha).sum())


@pytest.mark.parametrize("seed", range(20))
def test_the_best_probability_is_the_best(seed):
    """Against a search over all alpha by SciPy, from several starts."""
    from scipy.optimize import minimize

    rng = np.random.default_rng(seed)
    share, change = rng.dirichlet(np.ones(4)), rng.random(4) ** 3
    rest_moment, price = rng.choice([-0.5, 0.0, 0.3]) * (share * change).sum(), (1.0, rng.choice([2.0, 20.0, 200.0]))
    found = pairs.best_alpha(share, change, rest_moment, price, 0.02)
    value = product(found, share, change, rest_moment, price)
    for start in (np.full(4, 0.1), np.full(4, 0.9), rng.uniform(0.05, 1, 4)):
        other = minimize(product, start, (share, change, rest_moment, price), bounds=[(0.02, 1.0)] * 4)
        assert value <= other.fun * (1 + 1e-6)


def test_without_change_nothing_expensive_is_needed():
    assert pairs.best_alpha(np.ones(2) / 2, np.zeros(2), 0.2, (1.0, 9.0), 0.05).tolist() == [0.05, 0.05]


def test_a_useless_first_stage_is_found_out():
    """A signal that says nothing: to stop would only add noise, so nothing is stopped."""
    pair = od.stages(od.batched(first), od.batched(rest), signal=lambda s: np.zeros(len(s)), price=(1, 4))
    post = od.rejection(od.Model(PRIOR, pair, observed=3.0), od.uniform(0.5), budget=30_000, seed=1)
    assert post.cost.expensive == post.cost.simulations


def test_a_pilot_without_hits_learns_at_a_larger_tolerance():
    signals, distances = np.linspace(0, 1, 500), np.linspace(0, 1, 500)
    pair = staged_model(None).pair
    rule, eps = pairs.learnt_rule(pair, od.uniform(1e-6), signals, np.full(500, np.inf), distances)
    assert eps == distances[pairs.FEWEST_HITS]
    at_hits, elsewhere = rule(np.array([0.01, 0.9]))
    assert at_hits == 1.0 and pair.floor <= elsewhere < 0.1


# --- the same bytes however a run is made -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "batched"])
@pytest.mark.parametrize("name", SAMPLERS)
def test_workers_and_files_change_nothing(name, kind, tmp_path):
    more = {"chains": 8, "draws": None} if name == "pseudo_marginal" else {}
    every = [
        SAMPLERS[name](staged_model(None, kind, pilot=100), od.uniform(1.5), seed=1, budget=2500, **more, **how)
        for how in ({}, {"workers": 2}, {"store": tmp_path / "run.db", "segment": 0.001})
    ]
    assert bytes_of(every[0]) == bytes_of(every[1]) == bytes_of(every[2])
    again = od.load(tmp_path / "run.db")
    assert bytes_of(again) == bytes_of(every[0])
    assert again.settings["continuation"] == every[0].settings["continuation"]


@pytest.mark.parametrize("name", SIGNED)
def test_signed_weights_come_back_from_a_file(name, tmp_path):
    post = SAMPLERS[name](two_models(None), od.uniform(1.5), seed=1, budget=40_000, store=tmp_path / "run.db")
    assert bytes_of(od.load(tmp_path / "run.db")) == bytes_of(post)


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(name, tmp_path):
    more = {"chains": 8, "draws": None} if name == "pseudo_marginal" else {}
    file, model = tmp_path / "run.db", staged_model(None, "plain", pilot=100)
    whole = SAMPLERS[name](model, od.uniform(1.5), seed=1, budget=6000, **more)
    for _ in range(3):
        SAMPLERS[name](model, od.uniform(1.5), seed=1, budget=6000, store=file, max_seconds=0.05, segment=0.01, **more)
    assert bytes_of(od.resume(file, model=model)) == bytes_of(whole)


def test_another_probability_is_another_run(tmp_path):
    od.rejection(staged_model(0.5), od.uniform(1.5), budget=900, seed=1, store=tmp_path / "run.db")
    with pytest.raises(od.StoreError, match="continuation"):
        od.rejection(staged_model(0.6), od.uniform(1.5), budget=900, seed=1, store=tmp_path / "run.db")


def test_a_raised_budget_goes_on(tmp_path):
    """What was done under the smaller budget is kept, and the larger one is spent, too."""
    model, kernel, file = staged_model(0.3), od.uniform(1.5), tmp_path / "run.db"
    small = od.rejection(model, kernel, budget=2000, seed=1, store=file)
    large = od.rejection(model, kernel, budget=5000, seed=1, store=file)
    kept = small.shape[1]
    assert large.draws["theta"][:, :kept].tobytes() == small.draws["theta"].tobytes()
    assert 4900 < large.cost.simulations + 4 * large.cost.expensive <= 5000


# --- failures -----------------------------------------------------------------------------------------------


def test_failures_of_either_part_are_misses():
    def broken_first(rng, theta):
        state = first(rng, theta)
        if state == 0:
            raise RuntimeError("the first stage failed")
        return state

    def broken_rest(rng, state, theta):
        data = rest(rng, state, theta)
        if data == 4:
            raise RuntimeError("the rest failed")
        return data

    pair = od.stages(broken_first, broken_rest, continuation=0.5)
    post = od.rejection(od.Model(PRIOR, pair, observed=3.0), od.uniform(1.5), budget=4000, seed=1)
    assert 0 < post.cost.failed < 4000
    # What is left is y = 2 with at least one success of the first two trials, probability 5/6, and y = 3.
    mean = (5 / 6 * 3 / 6 + 4 / 6) / (5 / 6 + 1)
    found = post.estimate("theta")
    # Of the two successes in y = 2, the first stage has seen none with probability 1/6 whatever theta is.
    assert abs(found.value - mean) < 4.5 * found.mcse
    with pytest.raises(od.SimulationError, match="failed"):
        od.rejection(od.Model(PRIOR, pair, observed=3.0), od.uniform(1.5), budget=4000, seed=1, on_error="raise")


def test_states_may_be_anything():
    """States of plain simulators are handed on as they are."""

    def begin(rng, theta):
        return {"trials": [bool(rng.random() < theta) for _ in range(2)]}

    def end(rng, state, theta):
        return sum(state["trials"]) + rng.binomial(2, theta)

    pair = od.stages(begin, end, signal=lambda state: sum(state["trials"]), continuation=lambda signal, theta: 0.5)
    post = od.rejection(od.Model(PRIOR, pair, observed=3.0), od.uniform(1.5), budget=8000, seed=1)
    found = post.estimate("theta")
    assert abs(found.value - exact(od.uniform(1.5))) < 4.5 * found.mcse < 0.1


def test_surplus_of_a_device_is_not_counted_as_reused():
    from onedraw.cost import Cost
    from onedraw.estimators.protocol import Evaluation
    from onedraw.proposals.protocol import Proposed
    from onedraw.samplers.pseudo_marginal import info_of

    proposed = Proposed(np.zeros((2, 1)), np.zeros(2), np.zeros(2))
    found = Evaluation(np.zeros(2), np.zeros((2, 1)), Cost(2, surplus=3, expensive=1))
    cost = info_of(np.array([True, False]), proposed, found, 1).cost
    assert (cost.surplus, cost.reused, cost.expensive) == (3, 0, 1)


def test_the_average_bounds_itself():
    average = AbcAverage(staged_model(0.5, floor=0.25), od.uniform(1.5))
    assert average.log_bound == pytest.approx(math.log(4))
    assert average.worst == 5


# --- advice -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [od.uniform(0.1), od.gaussian(0.08)])
def test_advice_agrees_with_what_runs_cost(kernel):
    """The predicted gain of rejection is the measured one, of the weights' own effective number."""

    def near(rng, theta):
        return theta + 0.05 * rng.standard_normal(len(theta))

    price = (1, 20)
    pair = od.multifidelity(od.batched(lambda rng, theta: theta), od.batched(near), price=price, pilot=1000)
    model = od.Model(PRIOR, pair, observed=0.5)
    found = od.advise(model, kernel, budget=100_000, seed=1)
    assert found.pays and found.gain.low > 1.2
    assert found.cost.simulations == found.cost.expensive == 100_000 // 21
    post = od.rejection(model, kernel, budget=400_000, seed=2)
    pilot = 1000
    spent = post.cost.simulations - pilot + 20 * (post.cost.expensive - pilot)
    worth = 1 / float((post.weights**2).sum())
    # The expensive simulator alone has a draw for each acceptance: with probability 0.2, or the integral of the kernel.
    rate = {"uniform": 0.2, "gaussian": 0.08 * math.sqrt(2 * math.pi)}[kernel.name]
    gain = (20 / rate) / (spent / worth)
    assert abs(math.log(gain / found.gain.value)) < 0.15


def test_advice_on_a_useless_cheap_model():
    pair = od.multifidelity(od.batched(lambda rng, theta: rng.random(len(theta))), od.batched(expensive), price=(1, 50))
    found = od.advise(od.Model(PRIOR, pair, observed=3.0), od.uniform(0.5), seed=1)
    assert 0.9 < found.gain.value < 1.0
    assert "do not pay" in str(found) or "no difference" in str(found)


def test_advice_says_if_it_cannot_tell():
    far = od.Model(PRIOR, two_models(None).simulate, observed=99.0)
    assert "cannot tell" in str(od.advise(far, od.uniform(0.5), budget=2000, seed=1))
    with pytest.raises(ValueError, match="give price="):
        od.advise(staged_model(0.5, price=None), od.uniform(0.5))
