"""The sequential sampler against exact posteriors at the tolerance it reaches, its path, and how it ends."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import onedraw as od
from onedraw.estimators.abc_average import AbcAverage
from onedraw.estimators.tolerances import reweighted, tolerance_keeping, tolerance_with
from onedraw.estimators.weights import effective, systematic
from onedraw.run import sequence as sequence_module
from onedraw.run.population import (
    ParticleBlock,
    Particles,
    Population,
    Schedule,
    StageChains,
    collected,
    occupation,
    resampled,
)
from onedraw.run.store import Store
from onedraw.samplers import smc as module
from onedraw.samplers.smc import smc
from tests.reference import Exact, beta_binomial, beta_posterior, toy
from tests.sequential import (
    Counted,
    Ordered,
    SignalAndNoise,
    Toy,
    TwoPieces,
    assert_right,
    assert_shown,
    errors,
    needs_fork,
)

ONE = (lambda theta: theta, lambda theta: theta**2, lambda theta: theta > 0.5)
TWO = (lambda theta: theta, lambda theta: theta > 0, lambda theta: abs(theta))
PAIR = (lambda a, b: a, lambda a, b: b, lambda a, b: b - a)
COUNT = (lambda k, mu: k, lambda k, mu: mu, lambda k, mu: k == 2)


@pytest.mark.parametrize(
    ("problem", "functions", "settings"),
    [
        (Toy, ONE, {"budget": 4000}),
        pytest.param(Toy, ONE, {"budget": 16_000, "pseudo_samples": 4}, marks=pytest.mark.slow),
        (Toy, ONE, {"budget": 4000, "kernel": od.gaussian()}),
        pytest.param(TwoPieces, TWO, {"budget": 4000}, marks=pytest.mark.slow),
        (TwoPieces, TWO, {"budget": 16_000, "pseudo_samples": 4}),
        pytest.param(TwoPieces, TWO, {"budget": 4000, "kernel": od.gaussian()}, marks=pytest.mark.slow),
        (Ordered, PAIR, {"budget": 4000}),
        (Counted, COUNT, {"budget": 2000}),
    ],
)
def test_draws_follow_the_posterior_at_the_tolerance_reached(problem, functions, settings):
    """Each problem, each kernel and each M; the slow tests have the other pairs."""
    assert_right(errors(smc, problem, functions, range(32), **settings))


@pytest.mark.parametrize(
    ("problem", "pseudo_samples"),
    [
        (Toy, 4),
        (TwoPieces, 1),
        pytest.param(Toy, 1, marks=pytest.mark.slow),
        pytest.param(TwoPieces, 4, marks=pytest.mark.slow),
    ],
)
def test_many_particles_at_a_given_tolerance(problem, pseudo_samples):
    """So many particles that the bias of adapting does not show: each run is within 4 of its errors."""
    z = errors(
        smc, problem, (lambda theta: theta, lambda theta: abs(theta)), range(4), kernel=od.uniform(0.4), particles=4000,
        pseudo_samples=pseudo_samples,
    )  # fmt: skip
    assert_right(z, spread=1.9, bias=0.0)


def test_the_distribution_not_only_its_mean():
    post = smc(toy(), kernel=od.uniform(0.3), particles=8000, seed=2)
    exact = Exact(od.uniform(0.3))
    order = np.argsort(post.draws["theta"][0])
    theta, mass = post.draws["theta"][0, order], np.cumsum(post.weights[0, order])
    worth = effective(post.weights)
    # Kolmogorov's distance, at 1e-4, with half of the effective number of draws since they are not independent.
    assert np.abs(mass - exact.cdf(theta)).max() < stats.kstwobign.isf(1e-4) / np.sqrt(worth / 2)


def test_exact_matching_of_a_count():
    """Distances are whole numbers: the tolerance falls to 1, below which only exact matches are left."""
    post = smc(beta_binomial(), kernel=od.uniform(1.0), particles=4000, seed=1)
    assert post.settings["eps"] == 1.0 and (post.distances == 0).all()
    row = post.summary()["p"]
    assert abs(row.mean - beta_posterior().mean()) < 4 * row.mcse
    further = smc(beta_binomial(), budget=60_000, seed=1)
    assert further.status.reason == "finished" and "matches the data exactly" in str(further.notes)
    assert (further.distances == 0).all()


class TestEnds:
    def test_at_eps(self):
        post = smc(toy(), kernel=od.uniform(0.2), particles=500, seed=1)
        assert post.settings["eps"] == post.settings["target_eps"] == post.kernel.eps == 0.2
        assert post.status == ("finished", post.status.message) and post.status.complete
        assert (post.distances < 0.2).all()

    def test_at_the_budget_before_eps(self):
        post = smc(toy(), kernel=od.uniform(1e-4), budget=5000, seed=1)
        assert post.status.reason == "budget" and post.settings["eps"] > 1e-4
        assert "eps = 0.0001 was not reached" in str(post.notes)

    def test_when_acceptance_collapses(self):
        post = smc(toy(), kernel=od.uniform(1e-3), particles=300, least_acceptance=0.02, seed=1)
        assert post.status.reason == "finished" and "fewer than 0.02 of the moves were accepted" in str(post.notes)
        assert post.settings["eps"] > 1e-3
        exact, row = Exact(post.kernel), post.summary()["theta"]
        assert abs(row.mean - exact.mean) < 4.5 * row.mcse

    def test_a_simulator_that_cannot_reach_the_data(self):
        """Distances that never fall below 5: the run ends on its budget and says at which eps."""
        far = od.Model(od.Prior(theta=stats.norm()), od.batched(lambda rng, theta: 5 + rng.random(theta.size)), 0.0)
        post = smc(far, kernel=od.uniform(0.1), budget=3000, seed=1)
        assert post.settings["eps"] > 5 and "was not reached" in str(post.notes)
        assert post.cost.simulations <= 3000

    def test_needs_an_end(self):
        with pytest.raises(ValueError, match="give budget=, a kernel with a tolerance or both"):
            smc(toy())
        with pytest.raises(ValueError, match="does not cover particles = 500"):
            smc(toy(), budget=400, particles=500)
        with pytest.raises(ValueError, match="least_acceptance must be positive"):
            smc(toy(), budget=400, least_acceptance=0)


class TestPath:
    def test_tells_tolerance_acceptance_and_cost(self):
        post = smc(toy(), budget=20_000, seed=4)
        eps = [stage.eps for stage in post.path]
        assert len(eps) > 2 and eps == sorted(eps, reverse=True) and eps[-1] == post.settings["eps"]
        drawn = post.settings["particles"]
        assert drawn + sum(stage.simulations for stage in post.path) == post.cost.simulations
        assert drawn + sum(stage.proposals for stage in post.path) == post.cost.proposals
        assert post.path[-1].acceptance_rate == pytest.approx(post.acceptance_rate)
        rates = [stage.acceptance_rate for stage in post.path]
        assert rates == sorted(rates, reverse=True)
        assert post.path[-1].ess == pytest.approx(effective(post.weights))

    def test_moves_refresh_duplicates_whatever_the_acceptance_rate(self):
        """Each stage goes on until there were about MOVES moves for each chain."""
        post = smc(toy(), kernel=od.uniform(0.05), particles=400, seed=4)
        moves = [stage.acceptance_rate * stage.proposals / 400 for stage in post.path]
        assert min(moves) >= module.MOVES
        assert post.path[-1].proposals > 10 * post.path[0].proposals
        assert len(np.unique(post.draws["theta"])) == post.shape[1]

    def test_early_rejection_saves_simulations(self):
        post = smc(toy(), budget=20_000, seed=4)
        assert post.cost.skipped > 0.2 * post.cost.proposals
        assert post.cost.simulations + post.cost.skipped == post.cost.proposals


class TestAdaptiveDistance(SignalAndNoise):
    @pytest.mark.parametrize("pseudo_samples", [1, 3])
    def test_draws_follow_the_last_distance(self, pseudo_samples):
        """A tolerance that was not restated, or weights that were not, would belong to another posterior."""
        z = []
        for seed in range(12):
            post = smc(self.model(adapt=True), budget=6000 * pseudo_samples, pseudo_samples=pseudo_samples, seed=seed)
            scale = post.settings["distance"]["scale"]
            assert scale[0] < 15 and 0.6 < scale[1] < 1.6 and post.settings["scales"][-1] == scale
            mean, sd = self.exact(scale, post.settings["eps"])
            row = post.summary()["theta"]
            z.append((row.mean - mean) / row.mcse)
            assert row.sd == pytest.approx(sd, rel=0.35)
            assert (post.kernel.log_average(np.atleast_3d(post.distances)) > -np.inf).all()
        assert_right(np.array(z)[:, None])

    def test_the_new_tolerance_lies_within_the_old(self, monkeypatch):
        """A column whose scale grows would let in what the old tolerance kept out, were it not restated."""
        seen, plain = [], sequence_module.relearned

        def watched(now, outcome, least):
            then = plain(now, outcome, least)
            scale, new = (np.array(one.estimator.model.distance.scale) for one in (now, then))
            seen.append((now.eps, scale, then.eps, new))
            return then

        monkeypatch.setattr(sequence_module, "relearned", watched)
        model = replace(self.model(), distance=od.scaled(scale=[20.0, 0.8], adapt=True))
        smc(model, budget=6000, seed=1)
        growth = [(new / old).max() for _, old, _, new in seen]
        assert max(growth) > 1.1
        for (eps, _, restated, _), factor in zip(seen, growth, strict=True):
            assert restated == pytest.approx(eps / factor)

    def test_it_is_counted_and_resumed(self, tmp_path):
        path = tmp_path / "run.db"
        whole = smc(self.model(adapt=True), budget=3000, seed=1, store=path, segment=1e-9)
        assert whole.cost.simulations <= 3000 and len(whole.settings["scales"]) > 1
        with Store(path, write=True) as file:
            file.drop_after(file.count() // 2)
        again = od.resume(path, self.model(adapt=True))
        assert again.settings == whole.settings == od.load(path).settings
        assert np.array_equal(again.draws["theta"], whole.draws["theta"])
        assert again.weights.tobytes() == whole.weights.tobytes()
        assert again.cost._replace(seconds=0) == whole.cost._replace(seconds=0)


class TestParts:
    def test_visited_states_count_as_often_as_chains_stood_there(self):
        """The states of chains before their first step and after each one, listed by hand."""
        begin, steps = 7, 5
        origin = Particles(
            np.array([[10.0], [20.0], [30.0]]), np.zeros(3), np.zeros((3, 1)), np.full(3, 1 / 3), *3 * [np.arange(3)]
        )
        # Chain 0 moves at the first and at the last step, chain 1 never, chain 2 in between; 1 and 2 began together.
        moves = [(0, 7, 11.0), (2, 9, 31.0), (0, 11, 12.0), (2, 10, 32.0)]
        chain, time, theta = (np.array(part) for part in zip(*moves, strict=True))
        kept = {"chain": chain, "time": time, "theta": theta[:, None], "log_prior": np.zeros(4)}
        chains = StageChains(
            origin, np.array([0, 2, 2]), {}, np.eye(1), 0, begin, kept | {"distances": np.zeros((4, 1))}, steps
        )
        stood = [10, 11, 11, 11, 11, 12] + 6 * [30] + [30, 30, 30, 31, 32, 32]
        found = collected(chains)
        expected = {value: stood.count(value) / len(stood) for value in set(stood)}
        assert dict(zip(found.theta[:, 0], found.weight, strict=True)) == pytest.approx(expected)

    def test_chains_that_are_ahead_count_with_all_their_states(self):
        """Two chains, of which the first has taken two steps and the second none."""
        origin = Particles(
            np.array([[1.0], [2.0]]), np.zeros(2), np.zeros((2, 1)), np.full(2, 0.5), *3 * [np.arange(2)]
        )
        moves = {"chain": np.array([0]), "time": np.array([8]), "theta": np.array([[3.0]])}
        moves |= {"log_prior": np.zeros(1), "distances": np.zeros((1, 1))}
        chains = StageChains(origin, np.arange(2), {}, np.eye(1), 0, 7, moves, lead=1, ahead=2)
        assert chains.proposals == 2
        found = collected(chains)
        expected = {1.0: 2 / 4, 3.0: 1 / 4, 2.0: 1 / 4}
        assert dict(zip(found.theta[:, 0], found.weight, strict=True)) == pytest.approx(expected)

    def test_occupation_by_hand(self):
        """Chain 0 moves at 3, chain 1 not, chain 2 at 1 and 2; they are at their starts at time 0 and end before 4."""
        first, after = occupation(np.array([2, 2, 0]), np.array([1, 2, 3]), 3, 0, 4)
        assert first.tolist() == [3, 4, 1] and after.tolist() == [1, 2, 1]
        nothing = occupation(np.empty(0, int), np.empty(0, int), 2, 5, 9)
        assert nothing[0].tolist() == [4, 4] and nothing[1].size == 0

    def test_occupation_of_chains_that_are_ahead(self):
        """As above, but chain 0 has been seen until before 6 and chain 2 until before 4."""
        first, after = occupation(np.array([2, 2, 0]), np.array([1, 2, 3]), 3, 0, np.array([6, 5, 4]))
        assert first.tolist() == [3, 5, 1] and after.tolist() == [1, 2, 3]

    def test_systematic_counts_are_within_one_of_the_weights(self):
        rng = np.random.default_rng(1)
        weight = rng.exponential(size=50)
        weight[::7] = 0
        counts = np.bincount(systematic(weight, 200, rng.random()), minlength=50)
        assert (np.abs(counts - 200 * weight / weight.sum()) < 1 + 1e-9).all() and (counts[::7] == 0).all()

    def test_each_half_of_the_starts_stands_for_all_particles(self):
        """Also the second, which is drawn when more are known."""
        rng = np.random.default_rng(1)
        estimator = AbcAverage(toy("plain"), od.uniform(1.0))

        def population(number):
            weight = np.arange(1.0, number + 1)
            theta, distances = np.asfortranarray(rng.normal(size=(number, 1))), rng.random((number, 1))
            every = np.arange(number)
            particles = Particles(theta, np.zeros(number), distances, weight / weight.sum(), every, every, every)
            return Population(Schedule(64, None, 1e-4, 1), estimator, particles, 0.0, eps=2.0)

        def near(ancestor, weight):
            counts = np.bincount(ancestor, minlength=len(weight))
            return (np.abs(counts - 32 * weight) < 1 + 1e-9).all()

        few, many = population(20), population(30)
        before = resampled(few).chains
        assert near(before.ancestor[:32], few.particles.weight) and near(before.ancestor[32:], few.particles.weight)
        after = resampled(many, before).chains
        assert (after.ancestor[:32] == before.ancestor[:32]).all() and near(after.ancestor[32:], many.particles.weight)
        assert after.root is before.root

    def test_one_draw_is_systematic_too(self):
        picks = [int(systematic(np.array([0.3, 0.0, 0.7]), 1, u)[0]) for u in (np.arange(100) + 0.5) / 100]
        assert np.bincount(picks).tolist() == [30, 0, 70]

    def test_reweighting_is_the_ratio_of_averages(self):
        distances = np.array([[0.1, 0.9], [0.6, 0.7], [2.0, 3.0]])
        ratio = reweighted(od.uniform(1.0), 0.8, 0.65, distances, np.array([0.2, 0.4, 0.4]))
        assert ratio == pytest.approx([0.2, 0.2, 0.0])
        prior = reweighted(od.uniform(1.0), math.inf, 0.65, distances, np.array([0.2, 0.4, 0.4]))
        assert prior == pytest.approx([0.1, 0.2, 0.0])

    @pytest.mark.parametrize("kernel", [od.uniform(1.0), od.gaussian(1.0), od.triangular(1.0)])
    @pytest.mark.parametrize("pseudo_samples", [1, 3])
    def test_tolerances_keep_what_was_asked(self, kernel, pseudo_samples):
        distances = np.random.default_rng(2).exponential(size=(400, pseudo_samples))
        weight = np.random.default_rng(3).random(400)
        eps = tolerance_with(kernel, math.inf, distances, weight, 100.0)
        assert effective(reweighted(kernel, math.inf, eps, distances, weight)) == pytest.approx(100, abs=2.5)
        lower = tolerance_with(kernel, eps, distances, reweighted(kernel, math.inf, eps, distances, weight), 40.0)
        assert effective(reweighted(kernel, math.inf, lower, distances, weight)) == pytest.approx(40, abs=2.5)
        half = tolerance_keeping(kernel, eps, distances, weight, 0.5)
        assert reweighted(kernel, eps, half, distances, weight).sum() == pytest.approx(0.5 * weight.sum(), rel=0.5)
        # Nothing to choose from: distances that do not tell draws apart, or none that is finite.
        assert tolerance_with(kernel, 2.0, np.full((5, 1), np.inf), np.ones(5), 2.0) == 2.0

    def test_the_task_is_pure_and_can_be_sent_away(self):
        import pickle

        task = module.Moves(AbcAverage(PICKLED, od.uniform(1.0)), 3)
        item = ParticleBlock(0, 8)
        there = pickle.loads(pickle.dumps(item))
        assert np.array_equal(task(item).arrays["theta"], task(there).arrays["theta"])


@needs_fork
def test_its_file_shows_draws_while_it_goes_on_and_after_a_kill(tmp_path):
    assert_shown("smc", tmp_path / "run.db")


PICKLED = toy("plain")


def test_a_larger_budget_keeps_the_particles_of_the_first(tmp_path):
    """Their default follows from the budget, and a run that goes on has those that it began with."""
    for budget in (200, 600):
        post = od.smc(toy("plain"), budget=budget, seed=1, store=tmp_path / "run.db")
        assert post.settings["particles"] == 28 and budget - 28 <= post.cost.simulations <= budget
    assert od.resume(tmp_path / "run.db", model=toy("plain"), budget=700).settings["particles"] == 28


@pytest.mark.parametrize("budget", [1, 2, 3])
def test_a_tiny_budget_gives_what_it_pays_for(budget):
    """A single particle has no tolerance at which half of the particles are left."""
    assert od.smc(toy("plain"), budget=budget, seed=1).cost.simulations <= budget


def test_most_simulations_may_fail():
    """Then no tolerance leaves half of the particles: the first one is beyond all distances."""

    def simulate(rng, theta):
        if rng.random() < 0.7:
            raise ValueError("no convergence")
        return rng.normal(theta, 1.0)

    post = od.smc(od.Model(od.Prior(theta=stats.norm()), simulate, 2.0), budget=4000, seed=1)
    assert post.cost.failed > 2000 and 0 < post.settings["eps"] < np.inf
    row = post.summary()["theta"]
    assert abs(row.mean - Exact(od.uniform(post.settings["eps"])).mean) < 4.5 * row.mcse
