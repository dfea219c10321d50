"""Chains of plain simulators, each stepped by itself on numbers: the draws are those of steps on arrays."""

import numpy as np
import pytest
from scipy import stats

import onedraw as od
from onedraw.engines.streams import Borrowed, Phase, Purpose, Rng
from onedraw.run import one_chain
from tests.test_compiled_chains import assert_same

ONE = od.Prior(theta=stats.norm(0, 1))
TWO = od.Prior(mu=stats.uniform(-2, 6), count=stats.randint(1, 6))
KERNELS = [od.uniform(0.9), od.gaussian(0.6), od.epanechnikov(1.5)]


def simulate(rng, theta):
    if theta < -0.5:
        raise RuntimeError("below the model")
    return theta + rng.standard_normal() if theta < 1.5 else np.nan


def both(rng, mu, count):
    return {"a": mu + rng.standard_normal(2), "b": float(rng.poisson(count))}


def compared(monkeypatch, run):
    steps = []
    real = one_chain.advance
    with monkeypatch.context() as patch:
        patch.setattr(one_chain, "advance", lambda *args, **more: steps.append(1) or real(*args, **more))
        alone = run()
    assert steps, "the run did not step its chains one by one"
    with monkeypatch.context() as patch:
        patch.setattr(one_chain, "alone", lambda sampler, chains: False)
        together = run()
    assert_same(alone, together)
    assert [one.traceback.splitlines()[-1:] for one in alone.failures] == [
        one.traceback.splitlines()[-1:] for one in together.failures
    ]
    return alone


@pytest.mark.parametrize("sampler", [od.pseudo_marginal, od.wilkinson])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_proposals_and_kernels_give_the_same_draws(sampler, kernel, monkeypatch):
    problem = od.Model(ONE, simulate, observed=1.0)
    own = lambda rng, theta: (theta + rng.normal(size=theta.shape), np.zeros(len(theta)))  # noqa: E731
    for proposal in (None, od.random_walk(0.5), od.independence(), od.independence(stats.norm(1, 2)), od.lazy(), own):
        for early in (True, False):
            post = compared(
                monkeypatch,
                lambda p=proposal, early=early: sampler(
                    problem, kernel, draws=25, chains=3, thin=2, proposal=p, early=early, seed=7
                ),
            )
        assert 0 < post.cost.failed < post.cost.simulations


@pytest.mark.parametrize("distance", [None, od.scaled(scale=[1.0, 2.0, 0.5]), lambda a, b: abs(a["b"] - b["b"])])
def test_summaries_and_distances_give_the_same_draws(distance, monkeypatch):
    problem = od.Model(TWO, both, {"a": [1.0, 0.5], "b": 3.0}, distance=distance)
    for proposal in (od.random_walk([0.5, 1.0]), od.independence()):
        compared(
            monkeypatch,
            lambda p=proposal: od.pseudo_marginal(problem, od.gaussian(1.2), draws=30, chains=2, proposal=p, seed=2),
        )


def test_the_simulator_is_called_once_for_each_simulation():
    calls = []

    def counted(rng, theta):
        calls.append(theta)
        return theta + rng.standard_normal()

    post = od.pseudo_marginal(od.Model(ONE, counted, 1.0), od.uniform(0.5), draws=40, chains=2, seed=1)
    assert len(calls) == post.cost.simulations and all(type(one) is float for one in calls)


@pytest.mark.parametrize("output", ["raise", "nan"])
def test_an_error_is_raised_if_that_was_asked_for(output, monkeypatch):
    def failing(rng, theta):
        if theta > 1.2 and output == "raise":
            raise KeyError("none")
        return np.nan if theta > 1.2 else theta + rng.standard_normal()

    def run():
        with pytest.raises(od.SimulationError) as error:
            od.pseudo_marginal(od.Model(ONE, failing, 1.0), od.uniform(2.0), draws=90, chains=1, seed=1,
                               start={"theta": 1.0}, on_error="raise")  # fmt: skip
        return str(error.value)

    alone = run()
    monkeypatch.setattr(one_chain, "alone", lambda sampler, chains: False)
    assert run() == alone


def test_a_simulator_that_draws_nothing_is_told():
    problem = od.Model(ONE, lambda rng, theta: theta, 1.0)
    with pytest.warns(UserWarning, match="drew nothing from the rng"):
        od.pseudo_marginal(problem, od.uniform(1.0), draws=2, chains=1, start={"theta": 1.0}, seed=1,
                           proposal=od.random_walk(0.1))  # fmt: skip


def test_a_borrowed_rng_is_lent_once_at_a_time():
    with Borrowed(1, Phase.RUN, 5) as outer:
        stream = outer.bulk(Purpose.MOVE)
        first = stream.random()
        with Borrowed(2, Phase.RUN, 6) as inner:
            assert inner is not outer
            inner.bulk(Purpose.MOVE).random(3)
        second = stream.random()
    expected = Rng(1, Phase.RUN, 5).bulk(Purpose.MOVE).random(2)
    assert (first, second) == tuple(expected)
    with Borrowed(3, Phase.START, 7) as again:
        assert again.bulk(Purpose.MOVE).random() == Rng(3, Phase.START, 7).bulk(Purpose.MOVE).random()
