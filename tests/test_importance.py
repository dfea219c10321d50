"""Importance sampling in rounds against exact posteriors, its weights, and what it keeps."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy import integrate, stats

import onedraw as od
from onedraw.engines.streams import Rng
from onedraw.estimators.weights import effective
from onedraw.proposals.mixture import Mixture
from onedraw.samplers import importance as module
from onedraw.samplers.importance import around, importance, round_sizes
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
from tests.test_smc import COUNT, ONE, PAIR, TWO


@pytest.mark.parametrize(
    ("problem", "functions", "settings"),
    [
        (Toy, ONE, {"budget": 4000}),
        (Toy, ONE, {"budget": 8000, "pseudo_samples": 4}),
        (Toy, ONE, {"budget": 2000, "kernel": od.gaussian()}),
        (TwoPieces, TWO, {"budget": 4000}),
        (TwoPieces, TWO, {"budget": 8000, "pseudo_samples": 4}),
        (TwoPieces, TWO, {"budget": 2000, "kernel": od.gaussian()}),
        (Ordered, PAIR, {"budget": 3000}),
        (Counted, COUNT, {"budget": 1000}),
    ],
)
def test_draws_follow_the_posterior_at_the_tolerance_reached(problem, functions, settings):
    # A piece that few proposals have found can leave one run in fifty with an error that it does not see.
    assert_right(errors(importance, problem, functions, range(16), **settings), spread=1.8)


@pytest.mark.parametrize("pseudo_samples", [1, 4])
@pytest.mark.parametrize("problem", [Toy, TwoPieces])
def test_many_simulations_at_a_given_tolerance(problem, pseudo_samples):
    functions = (lambda theta: theta, lambda theta: abs(theta))
    z = errors(
        importance, problem, functions, range(4), kernel=od.uniform(0.3), budget=30_000, pseudo_samples=pseudo_samples
    )
    assert_right(z, spread=1.9, bias=0.0)


def test_the_evidence_comes_out_too():
    """The mean of pi / mixture x K over all proposals is the acceptance probability of Algorithm 1: weights that are
    off by any factor, as where a component is forgotten, would miss it."""
    for seed in range(5):
        post = importance(toy(), budget=20_000, kernel=od.uniform(0.3), keep="all", seed=seed)
        bank = post.bank
        value = np.exp(bank.log_weight) * (bank.distances[:, 0] < 0.3)
        exact = Exact(od.uniform(0.3)).acceptance
        assert abs(value.mean() - exact) < 4 * value.std() / np.sqrt(value.size)
        # Nor do weights without K: their mean is the prior's mass, 1.
        weight = np.exp(bank.log_weight)
        assert abs(weight.mean() - 1) < 4 * weight.std() / np.sqrt(weight.size)


def test_the_evidence_under_a_constraint():
    """The mean of pi / mixture over all proposals, those outside included, is 1 only with the constraint's constant."""
    post = importance(Ordered.model, budget=20_000, keep="all", seed=1)
    outside = np.zeros(post.cost.proposals - len(post.bank.log_weight))
    weight = np.concatenate([np.exp(post.bank.log_weight), outside])
    assert abs(weight.mean() - 1) < 4 * weight.std() / np.sqrt(weight.size)


def test_exact_matching_of_a_count():
    post = importance(beta_binomial(), budget=20_000, kernel=od.uniform(1.0), seed=1)
    assert post.settings["eps"] == 1.0 and (post.distances == 0).all()
    row = post.summary()["p"]
    assert abs(row.mean - beta_posterior().mean()) < 4 * row.mcse


def test_the_constant_of_a_constraint_is_estimated_and_reported():
    post = importance(Ordered.model, budget=500, seed=1)
    value, error = post.settings["prior_constant"]
    assert abs(value - 0.5) < 4 * error and 0 < error < 0.01
    assert f"holds with prior probability {value:.4g}" in str(post.notes)
    assert "prior_constant" not in importance(toy(), budget=500, seed=1).settings


class TestRule:
    def test_the_default_number_of_draws_is_kept(self):
        for budget in (1000, 10_000):
            post = importance(toy(), budget=budget, seed=1)
            assert effective(post.weights) == pytest.approx(np.sqrt(10 * budget), rel=0.05)

    def test_ends_when_eps_and_ess_are_reached(self):
        post = importance(toy(), budget=100_000, kernel=od.uniform(0.5), ess=200, seed=1)
        assert post.status.reason == "finished" and post.cost.simulations < 20_000
        assert post.settings["eps"] == 0.5 and effective(post.weights) >= 200

    def test_an_eps_that_is_out_of_reach(self):
        post = importance(toy(), budget=1000, kernel=od.uniform(1e-6), seed=1)
        assert post.settings["eps"] > 1e-6 and "raise the budget" in str(post.notes)

    def test_the_tolerance_is_the_distance_of_the_next_draw(self):
        """With draws from the prior alone, those kept are distributed as at a tolerance fixed beforehand."""
        z = errors(importance, Toy, ONE, range(60), budget=39)
        assert_right(z, bias=0.1)
        post = importance(toy(), budget=39, keep="all", seed=1)
        assert post.settings["eps"] in post.bank.distances and post.distances.max() < post.settings["eps"]

    def test_sizes_use_every_simulation(self):
        for total in (1, 10, 100, 999, 123_456):
            assert sum(round_sizes(total, 3)) == total


class TestKept:
    def test_every_simulation_of_every_round(self):
        post = importance(TwoPieces.model, budget=3000, keep="all", seed=1)
        bank = post.bank
        assert len(bank.theta) == len(bank.distances) == len(bank.log_weight) == len(bank.rows) == 3000
        assert np.array_equal(np.abs(bank.rows[:, 0, 0] - 2.0), bank.distances[:, 0])
        near = bank.distances[:, 0] < post.settings["eps"]
        assert np.array_equal(bank.theta[near, 0], post.draws["theta"][0])
        weight = np.exp(bank.log_weight[near])
        assert post.weights[0] == pytest.approx(weight / weight.sum())
        assert importance(toy(), budget=300, seed=1).bank is None

    def test_no_weight_is_above_the_inverse_of_the_defensive_share(self):
        post = importance(toy(), budget=3000, keep="all", defensive=0.2, seed=1)
        assert np.exp(post.bank.log_weight).max() <= 1 / 0.2 + 1e-9

    def test_proposals_outside_the_prior_cost_nothing(self):
        model = od.Model(od.Prior(a=stats.uniform(0, 1)), od.batched(lambda rng, a: rng.normal(a, 0.3)), observed=0.0)
        post = importance(model, budget=3000, seed=1)
        assert post.cost.skipped > 100 and post.cost.simulations == 3000
        assert post.cost.proposals == post.cost.simulations + post.cost.skipped

    def test_both_pieces_are_proposed_and_little_between_them(self):
        post = importance(TwoPieces.model, budget=6000, keep="all", seed=1)
        late = np.abs(post.bank.theta[-2000:, 0])
        assert np.mean((late > 0.9) & (late < 1.9)) > 0.6
        mean = TwoPieces.weights(post.kernel) @ (TwoPieces.grid["theta"] > 0)
        assert 0.05 < mean < 0.95 and post.acceptance_rate > 0.02


class TestMixture:
    def made(self, discrete):
        theta = np.random.default_rng(4).normal(size=(60, 2)) @ np.array([[1.0, 0.4], [0.0, 0.5]])
        if discrete:
            theta[:, 1] = np.rint(4 * theta[:, 1])
        prior = od.Prior(a=stats.norm(), b=stats.poisson(3) if discrete else stats.norm())
        return around(theta, np.ones(60), prior.discrete, np.random.default_rng(5))[0]

    def test_density_integrates_to_one(self):
        mixture = self.made(discrete=False)
        axis = np.linspace(-30, 30, 1501)
        a, b = (part.ravel() for part in np.meshgrid(axis, axis))
        density = np.exp(mixture.log_density(np.column_stack([a, b])))
        assert density.sum() * (axis[1] - axis[0]) ** 2 == pytest.approx(1.0, abs=2e-3)

    def test_mass_of_whole_numbers_sums_to_one(self):
        mixture = self.made(discrete=True)
        axis = np.linspace(-60, 60, 2401)
        total = sum(
            integrate.simpson(np.exp(mixture.log_density(np.column_stack([axis, np.full(axis.size, k)]))), x=axis)
            for k in range(-60, 61)
        )
        assert total == pytest.approx(1.0, abs=2e-3)

    @pytest.mark.parametrize("discrete", [False, True])
    def test_draws_have_that_density(self, discrete):
        mixture = self.made(discrete)
        drawn = mixture.sample(np.random.default_rng(6), 200_000)
        edges = np.linspace(-2, 2, 9)
        axis = np.linspace(-2, 2, 161)
        b = np.linspace(-25, 25, 1001) if not discrete else np.arange(-40, 41)
        for low, high in itertools.pairwise(edges):
            inside = (drawn[:, 0] >= low) & (drawn[:, 0] < high)
            some = axis[(axis >= low - 1e-9) & (axis <= high + 1e-9)]
            along = [np.exp(mixture.log_density(np.column_stack([np.full(b.size, a), b]))).sum() * (b[1] - b[0])
                     for a in some]  # fmt: skip
            expected = integrate.simpson(along, x=some)
            assert abs(inside.mean() - expected) < 4 * np.sqrt(expected / 200_000) + 1e-3

    def test_few_or_equal_draws_still_give_a_proposal(self):
        prior = od.Prior(a=stats.norm(), b=stats.norm())
        mixture, _ = around(np.ones((4, 2)), np.ones(4), prior.discrete, np.random.default_rng(1))
        assert isinstance(mixture, Mixture) and np.isfinite(mixture.sample(np.random.default_rng(2), 10)).all()


def test_refusals():
    with pytest.raises(ValueError, match="defensive must lie between 0 and 1"):
        importance(toy(), budget=100, defensive=0)
    with pytest.raises(ValueError, match="ess must be positive"):
        importance(toy(), budget=100, ess=-3)
    with pytest.raises(ValueError, match="keep must be"):
        importance(toy(), budget=100, keep="yes")


def test_the_task_is_a_function_of_its_item():
    from onedraw.estimators.abc_average import AbcAverage

    task = module.Simulate(AbcAverage(toy("plain"), od.uniform(1.0), early=False), 3)
    item = module.ProposalBlock(32, 4, np.asfortranarray(np.zeros((4, 1))), 4)
    assert np.array_equal(task(item).arrays["distances"], task(item).arrays["distances"])
    drawn = [Rng(3, 9, 32).single(row).standard_normal() for row in range(4)]
    assert task(item).arrays["distances"][:, 0] == pytest.approx(np.abs(np.array(drawn) - 2.0))


class TestAdaptiveDistance(SignalAndNoise):
    def test_scales_follow_the_posterior_and_the_draws_follow_the_last_distance(self):
        z = []
        for seed in range(12):
            post = importance(self.model(adapt=True), budget=4000, seed=seed)
            scale, eps = post.settings["distance"]["scale"], post.settings["eps"]
            assert scale[0] < 5 and 0.7 < scale[1] < 1.4
            assert post.settings["scales"][-1] == scale and len(post.settings["scales"]) > 2
            mean, sd = self.exact(scale, eps)
            row = post.summary()["theta"]
            z.append((row.mean - mean) / row.mcse)
            assert row.sd == pytest.approx(sd, rel=0.35)
        assert_right(np.array(z)[:, None], spread=1.8)

    def test_it_pays(self):
        """At the tolerance of as many draws, the adapted posterior is narrower."""
        sds = [
            importance(self.model(adapt=adapt), budget=4000, seed=1).summary()["theta"].sd for adapt in (False, True)
        ]
        assert sds[1] < 0.8 * sds[0]

    def test_it_is_resumed_with_its_scales(self, tmp_path):
        whole = importance(self.model(adapt=True), budget=3000, seed=1, store=tmp_path / "run.db", segment=1e-9)
        from onedraw.run.store import Store

        with Store(tmp_path / "run.db", write=True) as file:
            file.drop_after(file.count() - 3)
        again = od.resume(tmp_path / "run.db", self.model(adapt=True))
        assert again.settings == whole.settings == od.load(tmp_path / "run.db").settings
        assert np.array_equal(again.draws["theta"], whole.draws["theta"])
        assert np.array_equal(again.distances, whole.distances)

    def test_robust(self):
        """The second datum is out of the model's reach: by squares it is all that counts, robustly it is not."""
        far = {"observed": [3.0, 40.0]}
        spread = {}
        for robust in (False, True):
            model = replace(self.model(adapt=True, robust=robust), **far)
            post = importance(model, budget=4000, seed=1)
            spread[robust] = post.summary()["theta"].sd
            if robust:
                assert post.settings["distance"]["scale"][1] > 30
        assert spread[True] < 0.5 * spread[False]
        with pytest.raises(ValueError, match="adapt must be True or False"):
            od.scaled(adapt="yes")


@needs_fork
def test_its_file_shows_draws_while_it_goes_on_and_after_a_kill(tmp_path):
    assert_shown("importance", tmp_path / "run.db")
