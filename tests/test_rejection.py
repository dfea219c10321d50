"""Algorithm 1 against exact answers. Statistical checks run at fixed seeds; each accepts a correct sampler with
probability above 0.9999 and names what it would catch."""

import numpy as np
import pytest
from scipy import stats

import onedraw as od
from onedraw import paper
from tests.reference import SIMULATORS, Exact, beta_binomial, beta_evidence, beta_posterior, toy

KERNELS = [od.uniform(0.5), od.gaussian(0.4), od.epanechnikov(0.9), od.triangular(1.0), od.laplace(0.3)]


def agrees(draws, exact):
    """Independent draws against an exact law: the whole distribution (KS) and two moments."""
    assert stats.kstest(draws, exact.cdf).pvalue > 1e-4
    assert abs(draws.mean() - exact.mean) < 4 * exact.sd / np.sqrt(draws.size)
    fourth = np.mean((draws - draws.mean()) ** 4) / draws.var() ** 2
    assert abs(draws.std() / exact.sd - 1) < 4 * np.sqrt((fourth - 1) / (4 * draws.size))


@pytest.mark.parametrize("pseudo_samples", [1, 4, 16])
@pytest.mark.parametrize("kernel", KERNELS[:2], ids=lambda kernel: kernel.name)
def test_draws_follow_the_exact_posterior(kernel, pseudo_samples):
    exact = Exact(kernel)
    post = od.rejection(toy(), kernel, draws=40_000, pseudo_samples=pseudo_samples, seed=5)
    agrees(post.draws["theta"][0], exact)
    # The acceptance rate is that of M = 1 (L1): counting one hit among M as enough would fail here.
    assert abs(post.acceptance_rate - exact.acceptance) < 4 * post.acceptance_rate_se


@pytest.mark.parametrize("kernel", KERNELS[2:], ids=lambda kernel: kernel.name)
def test_other_kernels(kernel):
    exact = Exact(kernel)
    post = od.rejection(toy(), kernel, draws=20_000, seed=6)
    agrees(post.draws["theta"][0], exact)
    assert abs(post.acceptance_rate - exact.acceptance) < 4 * post.acceptance_rate_se


@pytest.mark.parametrize("kind", ["plain", "staged"])
@pytest.mark.parametrize("pseudo_samples", [1, 3])
def test_other_simulators(kind, pseudo_samples):
    kernel = od.gaussian(0.4)
    post = od.rejection(toy(kind), kernel, draws=3_000, pseudo_samples=pseudo_samples, seed=7)
    agrees(post.draws["theta"][0], Exact(kernel))
    assert post.cost.simulations == post.cost.proposals * pseudo_samples
    assert post.cost.setups == (post.cost.proposals if kind == "staged" else 0)


@pytest.mark.parametrize("pseudo_samples", [1, 4])
def test_exact_matching_of_a_count(pseudo_samples):
    post = od.rejection(beta_binomial(), od.uniform(0.5), draws=20_000, pseudo_samples=pseudo_samples, seed=8)
    draws = post.draws["p"][0]
    exact = beta_posterior()
    assert stats.kstest(draws, exact.cdf).pvalue > 1e-4
    assert abs(draws.mean() - exact.mean()) < 4 * exact.std() / np.sqrt(draws.size)
    assert abs(post.acceptance_rate - beta_evidence()) < 4 * post.acceptance_rate_se


def test_a_user_kernel_equals_the_built_in_one():
    own = od.kernel(lambda u: -0.5 * u**2, eps=0.4)
    a = od.rejection(toy(), own, draws=500, seed=1)
    b = od.rejection(toy(), od.gaussian(0.4), draws=500, seed=1)
    assert a.draws["theta"].tobytes() == b.draws["theta"].tobytes()


@pytest.mark.parametrize("kind", SIMULATORS)
def test_distances_belong_to_the_draws(kind):
    """A deterministic relation between theta and the data shows whether rows were mixed up."""
    model = od.Model(
        od.Prior(a=stats.uniform(0, 1), b=stats.uniform(0, 1)),
        {
            "batched": od.batched(lambda rng, a, b: np.stack([a + 0 * rng.random(a.size), b], axis=1)),
            "plain": lambda rng, a, b: [a + 0 * rng.random(), b],
            "compiled": od.compiled(lambda rng, a, b: [a + 0 * rng.random(), b]),
            "staged": od.staged(lambda a, b: (a, b), lambda rng, s, m: np.tile(s, (m, 1)) + 0 * rng.random((m, 1))),
        }[kind],
        observed=[0.5, 0.25],
    )
    post = od.rejection(model, od.uniform(0.3), draws=200, pseudo_samples=2, seed=3)
    a, b = post.draws["a"], post.draws["b"]
    expected = np.hypot(a - 0.5, b - 0.25)
    assert np.allclose(post.distances, expected[..., None], atol=1e-15)


@pytest.mark.parametrize("pseudo_samples", [1, 3, 7])
@pytest.mark.parametrize("kind", SIMULATORS)
def test_a_budget_is_a_hard_limit(kind, pseudo_samples):
    budget = 100
    post = od.rejection(toy(kind), od.uniform(1.0), budget=budget, pseudo_samples=pseudo_samples, seed=1)
    assert post.cost.proposals == budget // pseudo_samples
    assert post.cost.simulations == post.cost.proposals * pseudo_samples <= budget
    assert post.status.reason == "budget"


def test_budget_counts_what_the_simulator_saw():
    seen = []

    def simulate(rng, theta):
        seen.append(theta)
        return theta + rng.standard_normal()

    model = od.Model(od.Prior(theta=stats.norm()), simulate, 2.0, distance=od.scaled(pilot=30))
    post = od.rejection(model, od.uniform(0.5), budget=100, pseudo_samples=3, seed=2)
    assert len(seen) == post.cost.simulations == 30 + 69
    assert post.cost.proposals == 23


def test_draws_or_budget_whichever_comes_first():
    by_draws = od.rejection(toy(), od.uniform(0.5), draws=10, budget=10**9, seed=1)
    assert by_draws.status.reason == "finished" and by_draws.shape == (1, 10)
    by_budget = od.rejection(toy(), od.uniform(0.5), draws=10**6, budget=1000, seed=1)
    assert by_budget.status.reason == "budget" and by_budget.cost.simulations == 1000


def test_draws_beyond_those_asked_for_are_dropped_from_the_end():
    few = od.rejection(toy("plain"), od.uniform(1.0), draws=20, seed=4)
    many = od.rejection(toy("plain"), od.uniform(1.0), draws=200, seed=4)
    assert np.array_equal(few.draws["theta"][0], many.draws["theta"][0, :20])


@pytest.mark.parametrize("kind", SIMULATORS)
def test_same_seed_same_bytes(kind):
    def run(seed):
        post = od.rejection(toy(kind), od.gaussian(0.5), draws=100, pseudo_samples=2, seed=seed)
        return post.draws["theta"].tobytes() + post.distances.tobytes(), post.cost._replace(seconds=0)

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_blocks_run_apart_give_the_same_bytes():
    """Blocks are pure: run backwards, in any order, they are the blocks of the run."""
    from onedraw.engines.streams import Phase
    from onedraw.estimators.abc_average import AbcAverage
    from onedraw.run.blocks import cut
    from onedraw.run.prior_draws import PriorDraws, block_size

    model, kernel = toy("plain"), od.gaussian(0.5)
    whole = od.rejection(model, kernel, budget=500, seed=9)
    task = PriorDraws(AbcAverage(model, kernel), 9, Phase.RUN)
    blocks = list(cut(500, block_size(model, 1)))
    apart = [task(block) for block in reversed(blocks)][::-1]
    assert np.concatenate([part.arrays["theta"][:, 0] for part in apart]).tobytes() == whole.draws["theta"].tobytes()


@pytest.mark.parametrize(
    ("kind", "keep", "each"), [("plain", "all", 1), ("plain", "draws", 3), ("staged", "summaries", 2)]
)
def test_parts_of_a_block_are_joined_to_the_same_bytes(kind, keep, each):
    """Acceptance is decided by one stream per block: it needs the whole."""
    from onedraw.engines.streams import Phase
    from onedraw.estimators.abc_average import AbcAverage
    from onedraw.run.blocks import Block, parts_of
    from onedraw.run.prior_draws import PriorDraws

    model, block = toy(kind), Block(64, 50)
    estimator = AbcAverage(model, od.gaussian(0.5), each, keep_rows=keep != "draws")
    task = PriorDraws(estimator, 9, Phase.RUN, neighbours=4, keep=keep)
    whole, one = task(block), task.joined(block, [task(part) for part in parts_of(block, 50)])
    for found in (one, task.joined(block, [task(part) for part in parts_of(block, 7)])):
        for mine, other in ((found.arrays, whole.arrays), (found.filed, whole.filed)):
            assert mine.keys() == other.keys()
            assert all(mine[name].tobytes() == other[name].tobytes() for name in other)
        assert found._replace(arrays={}, filed={}) == whole._replace(arrays={}, filed={})
    assert len(whole.arrays["theta"]) > 3


def test_parts_have_the_failures_of_their_block():
    from onedraw.engines.streams import Phase
    from onedraw.estimators.abc_average import AbcAverage
    from onedraw.run.blocks import Block, parts_of
    from onedraw.run.prior_draws import PriorDraws

    def simulate(rng, theta):
        if theta > 1:
            raise ValueError("too large")
        return np.nan if theta < -1 else rng.normal(theta, 1.0)

    model, block = od.Model(od.Prior(theta=stats.norm(0, 1)), simulate, observed=1.0), Block(0, 60)
    task = PriorDraws(AbcAverage(model, od.uniform(0.5)), 3, Phase.RUN)
    whole, found = task(block), task.joined(block, [task(part) for part in parts_of(block, 8)])
    assert found.failures == whole.failures and found.cost == whole.cost and whole.cost.failed > 10


def test_blocks_of_a_long_run_grow(monkeypatch):
    """By the number of proposals made, whatever the workers: draws, cost and what is kept have the same bytes."""
    from concurrent.futures import ThreadPoolExecutor

    from onedraw.run import prior_draws

    monkeypatch.setattr(prior_draws, "GROW_FROM", 100)
    monkeypatch.setattr(prior_draws, "GROW_SHARE", 4)
    model = toy("plain")
    assert [prior_draws.grown(16, model, 1, made) for made in (99, 100, 1000, 10**6)] == [16, 25, 250, 256]
    assert [prior_draws.grown(5, model, 3, made) for made in (33, 34, 1000)] == [5, 8, 85]
    assert prior_draws.grown(32_768, toy("batched"), 1, 10**6) == 32_768
    given = {"kernel": od.gaussian(0.5), "draws": 300, "seed": 4, "keep": "summaries"}
    alone = od.rejection(model, **given)
    with ThreadPoolExecutor(3) as pool:
        shared = od.rejection(model, **given, executor=pool)
    assert alone.cost.proposals > 800 and alone.draws["theta"].tobytes() == shared.draws["theta"].tobytes()
    assert alone.bank.rows.tobytes() == shared.bank.rows.tobytes()
    assert shared.cost._replace(seconds=0, surplus=0) == alone.cost._replace(seconds=0, surplus=0)


def test_parts_of_blocks_that_are_complete_are_no_surplus():
    """A budget is spent to the end, so that nothing is simulated in vain."""
    from concurrent.futures import ThreadPoolExecutor

    from onedraw.cost import Cost
    from onedraw.run.blocks import Block, in_parts
    from onedraw.run.plan import Outcome, whole_outcome
    from onedraw.run.pool import WorkerPool

    pool, taken = WorkerPool(ThreadPoolExecutor(2)), []
    blocks, take = in_parts(pool, [Block(0, 64), Block(64, 64)], lambda block, one: taken.append(one), whole_outcome)
    for part in blocks:
        take(part, Outcome({"theta": np.zeros((part.size, 1))}, Cost(part.size)))
    assert [one.cost.simulations for one in taken] == [64, 64] and pool.surplus == 0


def test_a_seed_is_drawn_and_recorded_when_absent():
    first = od.rejection(toy(), od.uniform(0.5), draws=10)
    again = od.rejection(toy(), od.uniform(0.5), draws=10, seed=first.seed)
    assert first.draws["theta"].tobytes() == again.draws["theta"].tobytes()


def test_a_huge_m_is_worked_off_in_chunks():
    import tracemalloc

    tracemalloc.start()
    post = od.rejection(toy(), od.uniform(0.5), budget=3_000_000, pseudo_samples=1_000_000, seed=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert post.cost.simulations == 3_000_000
    assert peak < 10_000_000  # the pseudo-samples of one theta alone would take 8 MB an array


def test_chunks_do_not_change_the_average():
    """At a fixed theta the estimate with a chunked M is the hit share of all M draws."""
    from onedraw.engines.streams import Rng

    estimator = paper.abc_average(toy(), od.gaussian(0.5), pseudo_samples=100_000)
    log_estimate = estimator.evaluate(Rng(1, 0), np.array([[1.0]]), None)
    exact = 0.5 * np.sqrt(2 * np.pi) * stats.norm.pdf(2.0, 1.0, np.hypot(1, 0.5))
    assert np.exp(log_estimate.log_estimate[0]) == pytest.approx(exact, rel=0.02)
    kept = np.exp(od.gaussian(0.5).log_weight(log_estimate.distances)).mean()
    assert np.exp(log_estimate.log_estimate[0]) == pytest.approx(kept, rel=1e-12)


def test_memory_does_not_grow_with_proposals():
    import tracemalloc

    def peak(budget):
        tracemalloc.start()
        od.rejection(toy(y_obs=12.0), od.uniform(0.01), budget=budget, seed=1)
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top

    peak(10_000)
    assert peak(2_000_000) < 1.5 * peak(200_000)


def test_at_a_smaller_tolerance():
    post = od.rejection(toy(), od.uniform(1.0), draws=60_000, seed=11)
    smaller = post.at(0.3)
    inside = post.distances < 0.3
    assert np.array_equal(smaller.weights > 0, inside)
    assert smaller.weights.sum() == pytest.approx(1.0, abs=1e-12)
    exact, row = Exact(od.uniform(0.3)), smaller.summary()["theta"]
    assert abs(row.mean - exact.mean) < 4 * row.mcse
    assert row.mcse == pytest.approx(exact.sd / np.sqrt(inside.sum()), rel=0.05)
    assert row.ess == pytest.approx(inside.sum(), rel=0.05)
    with pytest.raises(ValueError, match=r"eps = 1\.5 is larger than the run's 1\.0"):
        post.at(1.5)


@pytest.mark.parametrize("pseudo_samples", [1, 4])
def test_at_a_smaller_tolerance_for_a_gaussian_kernel(pseudo_samples):
    post = od.rejection(toy(), od.gaussian(1.0), draws=60_000, pseudo_samples=pseudo_samples, seed=12)
    exact, row = Exact(od.gaussian(0.5)), post.at(0.5).summary()["theta"]
    assert abs(row.mean - exact.mean) < 4 * row.mcse
    assert abs(row.sd - exact.sd) < 0.02


def test_nothing_accepted_is_a_posterior_that_says_so():
    post = od.rejection(toy(y_obs=50.0), od.uniform(0.1), budget=500, seed=1)
    assert post.shape == (1, 0)
    assert "nothing was accepted" in str(post.summary())
    with pytest.raises(ValueError, match="nothing was accepted"):
        post.sample(10)


def test_max_seconds_stops_the_run():
    post = od.rejection(toy(y_obs=50.0), od.uniform(1e-9), draws=10, max_seconds=0.05, seed=1)
    assert post.status.reason == "max_seconds" and not post.status.complete


def test_ctrl_c_returns_what_is_there():
    calls = 0

    def simulate(rng, theta):
        nonlocal calls
        calls += 1
        if calls == 1000:
            raise KeyboardInterrupt
        return theta + rng.standard_normal()

    model = od.Model(od.Prior(theta=stats.norm()), simulate, 2.0)
    post = od.rejection(model, od.uniform(1.0), draws=10**6, seed=1)
    assert post.status.reason == "interrupted"
    assert 0 < post.shape[1] < 1000


def test_simulations_run_with_one_blas_thread():
    from threadpoolctl import threadpool_info

    seen = set()

    def simulate(rng, theta):
        seen.update(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")
        return theta + rng.standard_normal()

    od.rejection(od.Model(od.Prior(theta=stats.norm()), simulate, 2.0), od.uniform(1.0), budget=5, seed=1)
    assert seen == {1}
