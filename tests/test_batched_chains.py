"""Chains of batched simulators, whose states are changed in place: the draws are those of steps that make them anew."""

import numpy as np
import pytest
from scipy import stats

import onedraw as od
from onedraw.run import batched_chains
from tests.test_compiled_chains import assert_same

ONE = od.Prior(theta=stats.norm(0, 1))
TWO = od.Prior(mu=stats.uniform(-2, 6), count=stats.randint(1, 6))


@od.batched
def simulate(rng, theta):
    return np.where(theta < -0.5, np.nan, theta + rng.standard_normal(theta.size))


@od.batched
def both(rng, mu, count):
    return {"a": mu[:, None] + rng.standard_normal((mu.size, 2)), "b": rng.poisson(count).astype(float)}


def compared(monkeypatch, run):
    steps = []
    real = batched_chains.advance
    with monkeypatch.context() as patch:
        patch.setattr(batched_chains, "advance", lambda *args, **more: steps.append(1) or real(*args, **more))
        in_place = run()
    assert steps, "the run did not change its states in place"
    with monkeypatch.context() as patch:
        patch.setattr(batched_chains, "suits", lambda sampler, chains: False)
        anew = run()
    assert_same(in_place, anew)
    return in_place


@pytest.mark.parametrize("sampler", [od.pseudo_marginal, od.wilkinson])
@pytest.mark.parametrize("kernel", [od.uniform(0.9), od.epanechnikov(1.5)], ids=lambda kernel: kernel.name)
def test_proposals_and_kernels_give_the_same_draws(sampler, kernel, monkeypatch):
    problem = od.Model(ONE, simulate, observed=1.0)
    proposals = (od.random_walk(0.5), od.independence(), od.independence(stats.norm(1, 2)), od.lazy(od.independence()))
    for proposal in proposals:
        for early in (True, False):
            post = compared(
                monkeypatch,
                lambda p=proposal, early=early: sampler(
                    problem, kernel, draws=12, chains=30, thin=2, proposal=p, early=early, seed=7
                ),
            )
        assert 0 < post.cost.failed < post.cost.simulations and 0 < post.acceptance_rate < 1


@pytest.mark.parametrize("distance", [None, od.batched(lambda a, b: np.abs(a["b"] - b["b"]))])
def test_summaries_distances_and_what_is_kept_give_the_same_draws(distance, monkeypatch):
    problem = od.Model(TWO, both, {"a": [1.0, 0.5], "b": 3.0}, distance=distance)
    for proposal in (od.random_walk([0.5, 1.0]), od.independence()):
        for keep in ("distances", "draws"):
            compared(
                monkeypatch,
                lambda p=proposal, keep=keep: od.pseudo_marginal(
                    problem, od.gaussian(1.2), draws=15, chains=20, proposal=p, keep=keep, seed=2
                ),
            )


def test_segments_and_later_steps_go_on_from_states_as_they_were(tmp_path):
    problem = od.Model(TWO, both, {"a": [1.0, 0.5], "b": 3.0})

    def run(draws, **more):
        return od.pseudo_marginal(problem, od.uniform(2.0), draws=draws, chains=40, seed=3, **more)

    whole, file = run(60), tmp_path / "run.db"
    run(25, store=file, segment=1e-3)
    assert_same(od.resume(file, model=problem, draws=60), whole)


def test_what_keeps_states_or_draws_more_is_stepped_as_before(monkeypatch):
    """A function may keep the array of states that it is given, so that this must not change later."""
    problem, seen = od.Model(ONE, simulate, observed=1.0), []

    def own(rng, theta):
        seen.append((theta, theta.copy()))
        return theta + rng.normal(size=theta.shape), np.zeros(len(theta))

    monkeypatch.setattr(batched_chains, "advance", None)
    od.pseudo_marginal(problem, od.uniform(0.9), draws=9, chains=8, proposal=own, seed=1)
    assert all(np.array_equal(*both) for both in seen)
    od.pseudo_marginal(problem, od.uniform(0.9), draws=3, chains=8, pseudo_samples=2, seed=1)
