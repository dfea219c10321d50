"""Chains of compiled simulators in one loop: the same draws as step by step in NumPy, whatever they are made of."""

import itertools

import numpy as np
import pytest
from scipy import stats

import onedraw as od
from onedraw.engines import numba_chains
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.run import chain_blocks
from tests.deadlines import LONG, up_after
from tests.reference import toy
from tests.test_compiled import (
    DISTANCE,
    KERNELS,
    OBSERVED,
    PICKY,
    SIGNED,
    SIMULATE,
    STILL,
    SUMMARY,
    THETA,
    TWO,
    model,
)
from tests.test_contract import bytes_of

FAMILIES = {
    "norm": stats.norm(1.0, 2.0),
    "uniform": stats.uniform(-1.0, 5.0),
    "expon": stats.expon(0.5, 2.0),
    "gamma": stats.gamma(2.5, scale=1.5),
    "beta": stats.beta(2.0, 3.0, 0.0, 4.0),
    "lognorm": stats.lognorm(0.5, scale=2.0),
    "t": stats.t(5.0, 1.0, 2.0),
}
WHOLE = {"randint": stats.randint(-2, 6, 1), "poisson": stats.poisson(2.0)}


@od.compiled
def counted(rng, theta):
    return (theta >> 1) + rng.standard_normal()  # only an integer can be shifted


def step_by_step(patch):
    """Chains as they are without the loop."""
    patch.setattr(numba_chains, "chain_loop", lambda sampler: None)


def assert_same(one, other):
    """The same draws, distances, moves and counts."""
    for name in one.draws:
        assert np.array_equal(one.draws[name], other.draws[name])
    assert bytes_of(one)[:4] == bytes_of(other)[:4]
    assert one.acceptance_rate == other.acceptance_rate
    assert one.cost._replace(seconds=0.0) == other.cost._replace(seconds=0.0)
    # Only the lines of this package in a traceback differ.
    assert [one._replace(traceback="") for one in one.failures] == [
        one._replace(traceback="") for one in other.failures
    ]


def compared(monkeypatch, run):
    """A run in the loop, after it has been compared with the same one step by step."""
    loops = []
    real = numba_chains.advance
    with monkeypatch.context() as patch:
        patch.setattr(numba_chains, "advance", lambda *args, **more: loops.append(1) or real(*args, **more))
        inside = run()
    assert loops, "the run did not go through the loop"
    with monkeypatch.context() as patch:
        step_by_step(patch)
        outside = run()
    assert_same(inside, outside)
    return inside


def test_streams_have_the_names_that_rng_gives_them():
    rng = Rng(2**63 - 5, Phase.RUN, 1234)
    states = numba_chains._named(rng, Purpose.MOVE, 2**40, 3)
    for place, state in enumerate(states):
        rng.step = 2**40 + place
        assert rng.bulk(Purpose.MOVE).bit_generator.state["state"]["state"].tolist() == state[:4].tolist()


@pytest.mark.parametrize("family", [*FAMILIES, *WHOLE])
def test_log_densities_are_those_of_the_prior(family):
    prior = od.Prior(theta=(FAMILIES | WHOLE)[family])
    theta = np.concatenate([prior.sample(np.random.default_rng(1), 200)[:, 0], np.linspace(-3, 9, 25), [0.0, 4.0]])
    table = numba_chains._table(prior.formula)
    density = numba_chains._density()
    found = [density(table, theta[None, :].copy(), i) for i in range(len(theta))]
    assert np.allclose(found, prior.logpdf(theta[:, None]), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("family", ["norm", "uniform", "lognorm", pytest.param("gamma", marks=pytest.mark.slow),
                                    pytest.param("beta", marks=pytest.mark.slow), "expon",
                                    pytest.param("t", marks=pytest.mark.slow)])  # fmt: skip
def test_priors_and_proposals_give_the_same_draws(family, monkeypatch):
    problem = od.Model(od.Prior(theta=FAMILIES[family]), toy("compiled").simulate, observed=2.0)
    proposals = [od.random_walk(0.8), od.independence(), od.independence(stats.norm(1.5, 2.5))]
    for proposal, hold in itertools.product(proposals, (None, 0.4)):
        one = proposal if hold is None else od.lazy(proposal, hold)
        post = compared(
            monkeypatch,
            lambda one=one: od.pseudo_marginal(problem, od.uniform(0.8), draws=12, chains=300, proposal=one, seed=3),
        )
        assert 0.02 < post.acceptance_rate < 0.9


@pytest.mark.parametrize("family", [pytest.param("randint", marks=pytest.mark.slow), "poisson"])
def test_whole_numbers_give_the_same_draws(family, monkeypatch):
    problem = od.Model(od.Prior(theta=WHOLE[family]), counted, observed=1.0)
    for proposal in (od.random_walk(2.0), od.independence()):
        compared(
            monkeypatch,
            lambda p=proposal: od.pseudo_marginal(problem, od.uniform(0.8), draws=10, chains=300, proposal=p, seed=3),
        )


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_samplers_and_kernels_give_the_same_draws(kernel, monkeypatch):
    proposal = od.lazy(od.random_walk(0.8), 0.2)
    for pseudo_samples, early, keep in ((1, True, None), (5, True, "distances"), (5, False, "draws")):
        post = compared(
            monkeypatch,
            lambda m=pseudo_samples, early=early, keep=keep: od.pseudo_marginal(
                toy("compiled"), kernel, draws=9, chains=280, pseudo_samples=m, early=early, keep=keep, thin=3,
                proposal=proposal, seed=4,
            ),
        )  # fmt: skip
        assert (post.cost.skipped > 0) == early
    for early in (True, False):
        compared(
            monkeypatch,
            lambda early=early: od.wilkinson(
                toy("compiled"), kernel, draws=9, chains=280, early=early, proposal=proposal, seed=4
            ),
        )


@pytest.mark.parametrize(
    "distance", ["own", *(pytest.param(name, marks=pytest.mark.slow) for name in ("euclidean", "mahalanobis"))]
)
def test_several_parameters_and_failures_give_the_same_draws(distance, monkeypatch):
    """Products with a matrix, whole numbers beside others, simulations that are not finite, a user's distance."""
    walk = od.random_walk(np.array([[0.5, 0.3], [0.3, 1.5]]))
    for proposal in (walk, od.independence(od.Prior(mu=stats.norm(0.2, 1.2), count=stats.randint(2, 7)))):
        post = compared(
            monkeypatch,
            lambda p=proposal: od.pseudo_marginal(
                model(distance), od.gaussian(0.7), draws=15, chains=300, pseudo_samples=3, proposal=p, seed=2
            ),
        )
        assert 0 < post.cost.failed < post.cost.simulations and len(post.failures) > 1


def test_what_a_simulator_raises_is_told_as_step_by_step(monkeypatch):
    problem = od.Model(THETA, PICKY, 2.0)

    def run(**more):
        return od.pseudo_marginal(problem, od.gaussian(0.6), draws=20, chains=40, pseudo_samples=2, seed=1, **more)

    post = compared(monkeypatch, run)
    assert post.failures[-1].step > 1 and "beyond the model" in post.failures[-1].traceback
    with pytest.raises(od.SimulationError) as inside:
        run(on_error="raise")
    step_by_step(monkeypatch)
    with pytest.raises(od.SimulationError) as outside:
        run(on_error="raise")
    assert str(inside.value) == str(outside.value)


def test_a_negative_distance_stops_the_chains():
    with pytest.raises(ValueError, match="as distance gave a negative number or NaN at"):
        od.pseudo_marginal(SIGNED, od.uniform(99.0), draws=9, chains=4, start={"theta": np.full(4, 30.0)}, seed=1,
                           proposal=od.random_walk(900.0))  # fmt: skip


@pytest.mark.parametrize("what", ["prior", "where", "proposal", "kernel", "distance", "estimator"])
def test_what_the_loop_does_not_know_is_stepped_in_numpy(what, monkeypatch):
    monkeypatch.setattr(numba_chains, "advance", None)
    prior = {
        "prior": od.Prior.joint(["theta"], lambda rng, n: rng.standard_normal((n, 1)), lambda t: -0.5 * t[:, 0] ** 2),
        "where": od.Prior(theta=stats.norm(), where=lambda theta: theta > -2),
    }.get(what, THETA)
    kernel = od.kernel(lambda u: -0.5 * u * u, 0.7) if what == "kernel" else od.gaussian(0.7)
    problem = od.Model(
        prior, toy("compiled").simulate, 2.0, distance=(lambda a, b: abs(a - b)) if what == "distance" else None
    )
    proposal = (lambda rng, theta: (theta + rng.normal(size=theta.shape), 0.0)) if what == "proposal" else None
    asked = {"model": problem, "kernel": kernel}
    if what == "estimator":
        from onedraw.estimators.abc_average import AbcAverage
        from onedraw.estimators.handicapped import handicapped

        asked = {"estimator": handicapped(AbcAverage(problem, kernel), 0.5)}
    post = od.pseudo_marginal(**asked, draws=4, chains=6, proposal=proposal, start={"theta": np.ones(6)}, seed=1)
    assert post.shape == (6, 4)


def test_groups_segments_and_workers_change_nothing(monkeypatch):
    def run(**more):
        return od.pseudo_marginal(toy("compiled"), KERNELS[1], draws=12, chains=600, thin=3, pseudo_samples=2,
                                  proposal=od.lazy(), seed=5, **more)  # fmt: skip

    whole = run()
    monkeypatch.setattr(chain_blocks, "LOOK_SECONDS", 0.0)
    assert_same(run(), whole)
    for values in (1, 1000):
        monkeypatch.setattr(numba_chains, "GROUP_VALUES", values)
        assert_same(run(), whole)
    many = run(workers=2)
    assert bytes_of(many)[:4] == bytes_of(whole)[:4] and many.cost.simulations == whole.cost.simulations


@pytest.mark.parametrize("kind", ["plain", "batched", "compiled"])
def test_draws_written_in_place_are_those_that_are_handed_on(kind, monkeypatch):
    """A run has room for all draws from the first, or makes it as they come."""

    def run():
        return od.pseudo_marginal(toy(kind), KERNELS[0], draws=7, chains=5 if kind == "plain" else 600, thin=2,
                                  proposal=od.independence(), seed=5)  # fmt: skip

    monkeypatch.setattr(chain_blocks, "LOOK_SECONDS", 0.0)
    whole = run()
    assert np.isfinite(whole.draws["theta"]).all() and len(np.unique(whole.draws["theta"])) > 5
    monkeypatch.setattr(chain_blocks, "FIRST_ROOM", 0)
    assert_same(run(), whole)


def test_uniforms_that_decide_nothing_are_not_drawn(monkeypatch):
    """One pseudo-sample with a uniform kernel, proposed from the prior; several, or another kernel, need them."""

    def run(sampler=od.pseudo_marginal, kernel=KERNELS[0], **more):
        compared(
            monkeypatch,
            lambda: sampler(toy("compiled"), kernel, draws=9, chains=300, seed=6,
                            proposal=od.lazy(od.independence(), 0.3), **more),
        )  # fmt: skip

    assert KERNELS[0].indicator and not KERNELS[1].indicator
    for sampler, early in itertools.product((od.pseudo_marginal, od.wilkinson), (True, False)):
        run(sampler, early=early)
    run(pseudo_samples=4)
    run(kernel=KERNELS[1])


def test_a_stopped_run_goes_on_with_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(chain_blocks, "LOOK_SECONDS", 0.0)
    problem = od.Model(TWO, SIMULATE, OBSERVED, summary=SUMMARY, distance=DISTANCE)

    def run(**more):
        return od.pseudo_marginal(problem, KERNELS[0], chains=40, draws=50, seed=5, **more)

    whole, file = run(), tmp_path / "run.db"
    with up_after(6):
        run(store=file, segment=1e-3, max_seconds=LONG)
    assert 0 < od.load(file).shape[1] < 50
    again = od.resume(file, model=problem)
    assert bytes_of(again)[:2] == bytes_of(whole)[:2] and again.cost.simulations == whole.cost.simulations


def test_a_simulator_that_draws_nothing_is_told_by_chains():
    with pytest.warns(UserWarning, match="drew nothing from the rng"):
        od.pseudo_marginal(STILL, od.uniform(1.0), draws=2, chains=3, start={"theta": np.full(3, -60.0)}, seed=1,
                           proposal=od.random_walk(0.1))  # fmt: skip
