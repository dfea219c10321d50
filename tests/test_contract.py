"""Demands that every sampler must meet, whatever its algorithm."""

import contextlib
import dataclasses
import inspect

import numpy as np
import pytest
from scipy import stats

import onedraw as od
from onedraw.run import chain_blocks, session
from onedraw.run.options import IDENTITY, Options, RunOptions
from onedraw.run.pool import InProcess
from onedraw.runs import samplers
from tests.deadlines import LONG, up_after
from tests.reference import Exact, toy

SAMPLERS = samplers()
KERNEL = od.uniform(1.5)
"""Wide: most demands here are about runs, whatever their tolerance."""
WITH_KERNEL = ("rejection", "pseudo_marginal", "wilkinson", "r_hit")
CHAINS = {
    "pseudo_marginal": od.pseudo_marginal,
    "pseudo_marginal, M=3": lambda *a, **k: od.pseudo_marginal(*a, pseudo_samples=3, **k),
    "wilkinson": od.wilkinson,
    "one-hit": od.r_hit,
    "2-hit": lambda *a, **k: od.r_hit(*a, hits=2, **k),
}
ALL = {"rejection": od.rejection, **CHAINS}
GIVEN = od.rejection(toy(), KERNEL, draws=100, seed=1)
SEQUENTIAL = {
    "smc": od.smc,
    "smc, M=3": lambda *a, **k: od.smc(*a, pseudo_samples=3, **k),
    "importance": od.importance,
    "importance, M=3": lambda *a, **k: od.importance(*a, pseudo_samples=3, **k),
    "importance, proposal": lambda *a, **k: od.importance(*a, proposal=GIVEN, **k),
}
"""They find their own tolerance, and take no draws."""
WORST = {"rejection": 1, "pseudo_marginal": 1, "pseudo_marginal, M=3": 3, "wilkinson": 1, "one-hit": 200, "2-hit": 200}


def run(name, model, kernel=KERNEL, **more):
    if name in CHAINS:
        more = {"chains": 12} | more
    if "hit" in name:
        more = {"max_draws": 200} | more
    return ALL[name](model, kernel, **({"seed": 1} | more))


def bytes_of(post):
    return (
        b"".join(values.tobytes() for values in post.draws.values()),
        None if post.distances is None else post.distances.tobytes(),
        None if post.weights is None else post.weights.tobytes(),
        post.path,
        post.cost._replace(seconds=0.0),
        repr(post.acceptance_rate),
        repr(post.acceptance_rate_se),
    )


class Counter:
    """A plain simulator that counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, rng, theta):
        self.calls += 1
        return theta + rng.standard_normal()


@pytest.mark.parametrize("kind", ["batched", "plain", "staged", "compiled"])
@pytest.mark.parametrize("name", ALL)
def test_same_seed_same_bytes(name, kind):
    first, again = (run(name, toy(kind), draws=30) for _ in range(2))
    assert bytes_of(first) == bytes_of(again)
    assert bytes_of(first) != bytes_of(run(name, toy(kind), draws=30, seed=2))


@pytest.mark.parametrize("name", ALL)
def test_the_mean_is_right(name):
    kernel, each = od.uniform(0.8), 100 if "hit" in name else 300
    given = {"draws": each, "chains": 64} if name in CHAINS else {"draws": 4000}
    exact, row = Exact(kernel), run(name, toy(), kernel, **given).summary()["theta"]
    assert abs(row.mean - exact.mean) < 4.5 * row.mcse
    assert row.mcse < 0.1 * exact.sd


@pytest.mark.parametrize("name", CHAINS)
def test_segments_have_no_influence(name, monkeypatch):
    """Where a run looks up depends on the clock; its bytes must not."""
    whole = run(name, toy("plain"), draws=40)
    monkeypatch.setattr(chain_blocks, "LOOK_SECONDS", 0.0)
    assert bytes_of(run(name, toy("plain"), draws=40)) == bytes_of(whole)


@pytest.mark.parametrize("name", CHAINS)
def test_blocks_of_chains_are_independent(name):
    """Each block of a run is what it would be alone: the first block does not notice that there are others."""
    few = run(name, toy("plain"), draws=20, chains=4, start={"theta": 1.5}, proposal=od.random_walk(0.5))
    many = run(name, toy("plain"), draws=20, chains=8, start={"theta": 1.5}, proposal=od.random_walk(0.5))
    assert np.array_equal(few.draws["theta"], many.draws["theta"][:4])
    assert not np.array_equal(few.draws["theta"], many.draws["theta"][4:])


@pytest.mark.parametrize("budget", [300, 1000, pytest.param(5000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ALL)
def test_the_budget_is_never_passed_and_hardly_missed(name, budget):
    simulate = Counter()
    model = od.Model(od.Prior(theta=stats.norm()), simulate, 2.0, distance=od.scaled(pilot=50))
    post = run(name, model, od.uniform(0.5), budget=budget, **({"chains": 4} if name in CHAINS else {}))
    assert simulate.calls == post.cost.simulations <= budget
    each = WORST[name] * (4 if name in CHAINS else 1)
    assert budget - post.cost.simulations < each
    assert post.status.reason == "budget"


@pytest.mark.parametrize("name", CHAINS)
def test_the_budget_with_early_rejection_and_thinning(name):
    post = run(name, toy("plain"), budget=6000, thin=5, chains=4, proposal=od.random_walk(9.0))
    assert 0 <= 6000 - post.cost.simulations < 4 * 5 * WORST[name]


@pytest.mark.parametrize("name", ["pseudo_marginal", "wilkinson"])
def test_a_budget_that_nothing_is_worth_spends_itself_in_the_end(name):
    """A walk that leaves the prior at every step simulates nothing: the run must end all the same, and say why."""
    model = od.Model(od.Prior(theta=stats.uniform(0, 1)), od.batched(lambda rng, theta: rng.normal(theta)), 0.5)
    post = run(name, model, od.uniform(1.0), budget=400, chains=8, proposal=od.random_walk(1e16))
    assert post.status.reason == "budget"
    assert "hardly any of" in str(post.notes)


def test_few_chains_do_not_pay_for_a_large_block_of_starts():
    post = od.pseudo_marginal(toy(), od.uniform(0.1), budget=5000, chains=8, proposal=od.independence(), seed=1)
    assert post.shape[1] > 300 and post.cost.simulations <= 5000


@pytest.mark.parametrize("name", ALL)
def test_costs_add_up(name):
    simulate = Counter()
    model = od.Model(od.Prior(theta=stats.norm()), simulate, 2.0)
    post = run(name, model, draws=50)
    assert simulate.calls == post.cost.simulations
    assert post.cost.failed == post.cost.setups == post.cost.surplus == 0
    assert post.cost.seconds > 0


@pytest.mark.parametrize("name", CHAINS)
def test_thinning_keeps_every_so_many_steps(name):
    every = run(name, toy("plain"), draws=30)
    thinned = run(name, toy("plain"), draws=10, thin=3)
    assert np.array_equal(thinned.draws["theta"], every.draws["theta"][:, 2::3])
    assert np.array_equal(thinned.distances, every.distances[:, 2::3]) if every.distances is not None else True
    assert thinned.cost.simulations == every.cost.simulations


@pytest.mark.parametrize("name", CHAINS)
def test_held_steps_are_not_proposals(name):
    post = run(name, toy("plain"), draws=50, proposal=od.lazy(od.random_walk(0.5), hold=0.7))
    awake = run(name, toy("plain"), draws=50, proposal=od.random_walk(0.5))
    share = post.cost.proposals / awake.cost.proposals
    start = run(name, toy("plain"), draws=1).cost.proposals - 12
    held = 1 - (post.cost.proposals - start) / 600
    assert abs(held - 0.7) < 4 * np.sqrt(0.21 / 600)
    assert share < 1


@pytest.mark.parametrize("name", ALL)
def test_failures_are_counted_rejections(name):
    def picky(rng, theta):
        if theta > 1.5:
            raise RuntimeError("beyond the model")
        return theta + rng.standard_normal()

    model = od.Model(od.Prior(theta=stats.norm()), picky, 2.0)
    post = run(name, model, draws=60)
    assert post.draws["theta"].max() <= 1.5
    assert 0 < post.cost.failed < post.cost.simulations
    assert "beyond the model" in post.failures[0].traceback
    assert "count as misses" in str(post.summary())
    with pytest.raises(od.SimulationError, match="beyond the model"):
        run(name, model, draws=60, on_error="raise")


@pytest.mark.parametrize("name", CHAINS)
def test_ctrl_c_returns_whole_draws(name):
    class Interrupted(Counter):
        def __call__(self, rng, theta):
            if self.calls == 1500:
                self.calls += 1
                raise KeyboardInterrupt
            return super().__call__(rng, theta)

    model = od.Model(od.Prior(theta=stats.norm()), Interrupted(), 2.0)
    post = run(name, model, draws=100_000)
    whole = run(name, toy("plain"), draws=max(post.shape[1], 1))
    assert post.status.reason == "interrupted"
    assert 0 < post.shape[1] < 1500
    assert np.array_equal(post.draws["theta"], whole.draws["theta"])


@pytest.mark.parametrize("name", CHAINS)
def test_max_seconds(name):
    with up_after(50):
        post = run(name, toy("plain"), draws=10**6, max_seconds=LONG)
    assert post.status.reason == "max_seconds" and 0 < post.shape[1] < 10**6


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"draws": 0}, "draws must be a whole number"),
        ({}, "give draws=, budget= or both"),
        ({"budget": -1}, "budget must be a whole number"),
        ({"draws": 5, "chains": 0}, "chains must be a whole number"),
        ({"draws": 5, "thin": 0}, "thin must be a whole number"),
        ({"draws": 5, "seed": -1}, "seed must be a whole number"),
        ({"draws": 5, "seed": True}, "seed must be a whole number"),
        ({"draws": 5, "on_error": "no"}, "on_error must be one of"),
        ({"draws": 5, "progress": 3}, "progress must be True, False or None"),
        ({"draws": 5, "max_seconds": -1}, "max_seconds must be positive"),
        ({"draws": 5, "start": "random"}, "start must be 'rejection'"),
        ({"draws": 5, "start": {"mu": 1.0}}, r"start names \['mu'\]"),
        ({"draws": 5, "start": {"theta": np.nan}}, "the start of chain 0, .*is outside the prior's support"),
        ({"draws": 5, "start": np.zeros((3, 1))}, r"points of shape \(12, 1\)"),
        ({"draws": 5, "proposal": 3}, "proposal must be"),
    ],
)
def test_bad_settings_are_refused_before_any_simulation(name, arguments, message):
    def never(rng, theta):
        raise AssertionError("simulated")

    model = od.Model(od.Prior(theta=stats.norm()), never, 2.0)
    if "proposal" in arguments:
        model = toy()
    with pytest.raises(ValueError, match=message):
        run(name, model, **arguments)


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_takes_the_run_options_with_one_default(name):
    """They are written once, and every signature shows them."""
    given = inspect.signature(SAMPLERS[name].function).parameters
    for field in dataclasses.fields(Options):
        assert given[field.name].default == (None if field.name == "seed" else field.default), field.name
    assert set(RunOptions.__annotations__) == {field.name for field in dataclasses.fields(Options)}
    assert set(IDENTITY) <= {field.name for field in dataclasses.fields(Options)}


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"on_error": "no"}, "on_error must be one of 'reject', 'raise', got 'no'"),
        ({"max_seconds": 0}, "max_seconds must be positive, got 0: it is the longest time"),
        ({"workers": 0}, "workers must be a whole number of at least 1"),
        ({"executor": 3}, "executor must be a concurrent.futures.Executor"),
        ({"workers": 2, "executor": 3}, "give workers= or executor=, not both"),
        ({"timeout": -1}, "timeout must be positive"),
        ({"store": 3}, "store must be the name of a file"),
        ({"segment": 0}, "segment must be positive"),
        ({"progress": 3}, "progress must be True, False or None"),
        ({"model": 3}, "model must be an od.Model"),
        ({"budget": 1.5}, "budget must be a whole number"),
    ],
)
def test_shared_arguments_are_checked_before_any_simulation(name, wrong, message):
    def never(rng, theta):
        raise AssertionError("simulated")

    model = od.Model(od.Prior(theta=stats.norm()), never, 2.0)
    kernel = {"kernel": KERNEL} if name in WITH_KERNEL else {}
    with pytest.raises(ValueError, match=message):
        SAMPLERS[name].function(**({"model": model, "budget": 500, **kernel} | wrong))


@pytest.mark.parametrize("name", SAMPLERS)
def test_what_the_workers_have_thrown_away_is_in_the_cost(name, monkeypatch, quick):
    @contextlib.contextmanager
    def wasteful(workers, executor, threads):
        crew = InProcess()
        yield crew
        assert crew.surplus == 17

    monkeypatch.setattr(InProcess, "surplus", 17)
    monkeypatch.setattr(session, "opened_pool", wasteful)
    kernel = {"kernel": KERNEL} if name in WITH_KERNEL else {}
    post = SAMPLERS[name].function(model=toy("plain"), budget=400, seed=1, **kernel)
    assert post.cost.surplus == 17 and post.cost.simulations <= 400


BOUNDED = od.Model(od.Prior(a=stats.uniform(0, 1), b=stats.uniform(0, 1)), lambda rng, a, b: rng.normal(a + b), 1.0)


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: {"proposal": od.random_walk([[1.0, 2.0], [2.0, 1.0]])}, "not positive definite"),
        (lambda: {"proposal": od.random_walk([[1.0, 0.0], [0.0, 0.0]])}, "not positive definite .*'b'"),
        (lambda: {"proposal": od.random_walk([[1.0, 0.5], [0.2, 1.0]])}, "square and symmetric"),
        (lambda: {"proposal": od.random_walk(np.eye(3))}, r"shape \(3, 3\) for 2 parameters"),
        (lambda: {"proposal": od.random_walk(-1.0)}, "positive variances"),
        (lambda: {"proposal": od.random_walk("wide")}, "matrix of finite numbers"),
        (lambda: {"proposal": od.random_walk(scale=0)}, "scale must be positive"),
        (lambda: {"proposal": od.lazy(hold=1.0)}, "hold must be at least 0 and below 1"),
        (lambda: {"proposal": od.independence(stats.norm())}, "needs a distribution of"),
        (lambda: {"proposal": od.independence(od.Prior(a=stats.norm()))}, r"distribution of \['a'\]"),
        (lambda: {"proposal": lambda rng, theta: theta}, "it is called as proposal"),
        (lambda: {"proposal": lambda rng, theta: (theta[:, :1], 0.0)}, "returned shapes"),
        (lambda: {"proposal": lambda rng, theta: (theta * np.nan, 0.0)}, "both must be numbers"),
        (lambda: {"proposal": lambda rng, theta: (theta, np.full(len(theta), np.nan))}, "both must be numbers"),
        (lambda: {"start": {"a": 0.5, "b": 1.5}}, "'b': 1.5}, is outside the prior's support"),
    ],
)
def test_bad_proposals_and_starts_are_refused(name, make, message):
    with pytest.raises(ValueError, match=message):
        run(name, BOUNDED, od.uniform(1.0), draws=5, **make())


# --- samplers that find their own tolerance -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["batched", "plain", "staged", "compiled"])
@pytest.mark.parametrize("name", SEQUENTIAL)
def test_sequential_same_seed_same_bytes(name, kind):
    first, again, other = (SEQUENTIAL[name](toy(kind), budget=1500, seed=seed) for seed in (1, 1, 2))
    assert bytes_of(first) == bytes_of(again) != bytes_of(other)
    assert first.weights.sum() == pytest.approx(1.0) and first.weights.shape == first.draws["theta"].shape


@pytest.mark.parametrize("pilot", [0, 5])
@pytest.mark.parametrize("budget", [10, 100, 1000, 5000])
@pytest.mark.parametrize("name", SEQUENTIAL)
def test_sequential_budgets_are_never_passed(name, budget, pilot):
    simulate = Counter()
    distance = od.scaled(pilot=10) if pilot else None
    model = od.Model(od.Prior(theta=stats.norm()), simulate, 2.0, distance=distance)
    if pilot and budget == 10:
        with pytest.raises(ValueError, match="leaves nothing after the 10 pilot simulations"):
            SEQUENTIAL[name](model, budget=budget, seed=1)
        assert simulate.calls == 0
        return
    post = SEQUENTIAL[name](model, budget=budget, seed=1)
    assert simulate.calls == post.cost.simulations <= budget
    assert post.status.reason == "budget" and post.status.complete
    # At the most one proposal of each chain, or less than one estimate, is left.
    each = 3 if "M=3" in name else 1
    assert budget - post.cost.simulations < each * post.settings.get("particles", 1)
    assert post.weights.sum() == pytest.approx(1.0)
    reached = post.kernel.log_average(post.distances[..., None] if post.distances.ndim == 2 else post.distances)
    assert np.isfinite(post.settings["eps"]) and (reached > -np.inf).all()


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_sequential_failures_are_counted_rejections(name):
    def picky(rng, theta):
        if theta > 1.5:
            raise RuntimeError("beyond the model")
        return theta + rng.standard_normal()

    model = od.Model(od.Prior(theta=stats.norm()), picky, 2.0)
    post = SEQUENTIAL[name](model, budget=2000, seed=1)
    assert post.draws["theta"].max() <= 1.5
    assert 0 < post.cost.failed < post.cost.simulations
    assert "beyond the model" in post.failures[0].traceback and "count as misses" in str(post.summary())
    with pytest.raises(od.SimulationError, match="beyond the model"):
        SEQUENTIAL[name](model, budget=2000, seed=1, on_error="raise")


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_sequential_runs_whose_simulations_all_fail_say_so(name):
    def never(rng, theta):
        raise RuntimeError("beyond the model")

    model = od.Model(od.Prior(theta=stats.norm()), never, 2.0)
    for budget in (20, 2000):
        with pytest.raises(od.SimulationError, match=r"(?s)all of the first .*beyond the model"):
            SEQUENTIAL[name](model, budget=budget, seed=1)


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_sequential_runs_that_are_stopped_are_whole(name):
    class Interrupted(Counter):
        def __call__(self, rng, theta):
            if self.calls == 1500:
                self.calls += 1
                raise KeyboardInterrupt
            return super().__call__(rng, theta)

    model = od.Model(od.Prior(theta=stats.norm()), Interrupted(), 2.0)
    post = SEQUENTIAL[name](model, budget=50_000, seed=1)
    assert post.status.reason == "interrupted" and not post.status.complete
    assert post.weights.sum() == pytest.approx(1.0) and post.cost.simulations <= 1500
    exact, row = Exact(od.uniform(post.settings["eps"])), post.summary()["theta"]
    if "M=3" not in name:
        assert abs(row.mean - exact.mean) < 4.5 * row.mcse
    with up_after(100):
        late = SEQUENTIAL[name](toy("plain"), budget=20_000, seed=1, max_seconds=LONG)
    assert late.status.reason == "max_seconds" and late.shape[1] > 0
    nothing = SEQUENTIAL[name](toy("plain"), budget=10**8, seed=1, max_seconds=1e-9)
    assert nothing.status.reason == "max_seconds" and nothing.shape == (1, 0)
    assert np.isnan(nothing.summary()["theta"].mean)


@pytest.mark.parametrize("name", SEQUENTIAL)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": 0}, "budget must be a whole number"),
        ({"budget": 2}, "does not cover"),
        ({"budget": 100, "kernel": od.uniform}, "kernel must be a kernel such as od.uniform"),
        ({"budget": 100, "seed": -1}, "seed must be a whole number"),
        ({"budget": 100, "on_error": "no"}, "on_error must be one of"),
        ({"budget": 100, "progress": 3}, "progress must be True, False or None"),
        ({"budget": 100, "max_seconds": -1}, "max_seconds must be positive"),
        ({"budget": 100, "kernel": 3}, "kernel must be a kernel such as od.uniform"),
        ({"budget": 100, "segment": 0}, "segment must be positive"),
    ],
)
def test_sequential_bad_settings_are_refused_before_any_simulation(name, arguments, message):
    def never(rng, theta):
        raise AssertionError("simulated")

    model = od.Model(od.Prior(theta=stats.norm()), never, 2.0)
    if arguments.get("budget") == 2:
        arguments = {"budget": 2, "pseudo_samples": 4} if "M=3" not in name else {"budget": 2}
    sampler = SEQUENTIAL[name.split(",")[0]] if "pseudo_samples" in arguments else SEQUENTIAL[name]
    with pytest.raises(ValueError, match=message):
        sampler(model, **arguments)


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_sequential_weights_are_used_everywhere(name):
    post = SEQUENTIAL[name](toy(), budget=3000, seed=3)
    theta, weight = post.draws["theta"][0], post.weights[0]
    row = post.summary()["theta"]
    assert row.mean == pytest.approx(weight @ theta)
    assert row.sd == pytest.approx(np.sqrt(weight @ (theta - weight @ theta) ** 2))
    assert 1 < row.ess < theta.size and post.efficiency()["theta"].ess == pytest.approx(row.ess, rel=0.02)
    inside = (theta >= row.hdi_low) & (theta <= row.hdi_high)
    assert weight[inside].sum() == pytest.approx(0.9, abs=2 * weight.max())
    drawn = post.sample(20_000, seed=1)["theta"]
    assert abs(drawn.mean() - row.mean) < 5 * row.sd / np.sqrt(20_000)
    tree = post.to_datatree(weighted=True)
    assert np.array_equal(tree["sample_stats"]["weight"].values, post.weights)
    assert post.predict(50).shape == (50,)
    # A smaller tolerance starts from the run's own weights, once or in two steps.
    eps = 0.6 * post.settings["eps"]
    near = post.at(eps)
    distances = post.distances[..., None] if post.distances.ndim == 2 else post.distances
    expected = post.weights * np.exp(od.uniform(eps).log_average(distances) - post.kernel.log_average(distances))
    assert near.weights == pytest.approx(expected / expected.sum())
    assert post.at(0.8 * post.settings["eps"]).at(eps).weights == pytest.approx(near.weights)


# --- a budget in, a posterior out -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["batched", "plain", "staged", pytest.param("compiled", marks=pytest.mark.slow)])
def test_infer_gives_the_same_bytes_with_and_without_a_file(kind, tmp_path, quick):
    first, stored, other = (
        od.infer(toy(kind), budget=300, draws=500, seed=seed, store=store, segment=1e-9)
        for seed, store in ((1, None), (1, tmp_path / "run.db"), (2, None))
    )
    assert bytes_of(first) == bytes_of(stored) == bytes_of(od.load(tmp_path / "run.db")) != bytes_of(other)
    assert first.settings == stored.settings and first.notes == stored.notes


@pytest.mark.parametrize("budget", [10, 100, 1500])
def test_infer_never_passes_its_budget(budget, quick):
    simulate = Counter()
    model = od.Model(od.Prior(theta=stats.norm()), simulate, 2.0, distance=od.scaled(pilot=50))
    post = od.infer(model, budget=budget, seed=1, draws=200)
    assert simulate.calls == post.cost.simulations == budget and post.status.reason == "budget"
    assert np.isfinite(post.draws["theta"]).all()
