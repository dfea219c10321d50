"""Importance sampling in rounds against exact posteriors, its weights, and what it keeps."""

import itertools
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy import integrate, stats

import onedraw as od
from onedraw.engines.streams import Rng
from onedraw.estimators.weights import effective
from onedraw.proposals.mixture import Mixture
from onedraw.run.fitted_mixture import around, draws_inside, given_proposal, prior_constant
from onedraw.run.store import Store
from onedraw.samplers import importance as module
from onedraw.samplers.importance import importance, round_sizes
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
    simulate_sum,
)
from tests.stored_run import told
from tests.test_smc import COUNT, ONE, PAIR, TWO


@pytest.mark.parametrize(
    ("problem", "functions", "settings"),
    [
        (Toy, ONE, {"budget": 4000}),
        pytest.param(Toy, ONE, {"budget": 8000, "pseudo_samples": 4}, marks=pytest.mark.slow),
        (Toy, ONE, {"budget": 2000, "kernel": od.gaussian()}),
        pytest.param(TwoPieces, TWO, {"budget": 4000}, marks=pytest.mark.slow),
        (TwoPieces, TWO, {"budget": 8000, "pseudo_samples": 4}),
        pytest.param(TwoPieces, TWO, {"budget": 2000, "kernel": od.gaussian()}, marks=pytest.mark.slow),
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
        axis = np.linspace(-30, 30, 501)
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


@od.batched
def simulate_five(rng, a, b, c, d, e):
    return np.stack([a, b, c, d, e], axis=1) + rng.standard_normal((a.size, 5))


def posterior_of(model, **draws):
    """A Posterior with these draws, as if a run had made them."""
    post = od.rejection(model, od.uniform(100.0), draws=5, seed=1)
    rows = {name: np.array(values, dtype=post.draws[name].dtype).reshape(1, -1) for name, values in draws.items()}
    return replace(post, draws=rows, weights=None, distances=None)


def normals(mean, sd, number=1000):
    return stats.norm(mean, sd).ppf((np.arange(number) + 0.5) / number)


def counts(mean, number=1000):
    rng = np.random.default_rng(1)
    return {"k": rng.poisson(mean, number), "mu": rng.normal(1.0, 0.7, number)}


ONE_PIECE = posterior_of(TwoPieces.model, theta=normals(1.4, 0.1))
GIVEN = posterior_of(toy(), theta=normals(1.0, 0.7))
SHIFTED = posterior_of(toy(), theta=normals(-1.5, 0.3))
NARROW = posterior_of(toy(), theta=normals(1.0, 0.02))
WIDE = posterior_of(toy(), theta=normals(0.0, 1.0))
AT = od.uniform(0.3)


class TestGivenProposal:
    @pytest.mark.parametrize(
        ("problem", "functions", "post", "settings"),
        [
            (Toy, ONE, GIVEN, {"kernel": AT}),
            (Toy, ONE, GIVEN, {"pseudo_samples": 4, "budget": 4000}),
            (Toy, ONE, GIVEN, {"kernel": od.gaussian()}),
            (Toy, ONE, SHIFTED, {"kernel": AT}),
            (Toy, ONE, NARROW, {"kernel": AT}),
            (Toy, ONE, WIDE, {"kernel": AT}),
            (Ordered, PAIR, {"a": normals(0.4, 0.1), "b": normals(1.0, 0.1)}, {}),
            (Counted, COUNT, counts(2.5), {}),
            (Counted, COUNT, counts(0.01), {}),
        ],
    )
    @pytest.mark.slow
    def test_right_whatever_is_given(self, problem, functions, post, settings):
        """Draws near the posterior, to the side of it, too narrow, too wide: the same target."""
        post = posterior_of(problem.model, **post) if isinstance(post, dict) else post
        z = errors(importance, problem, functions, range(16), **({"budget": 2000, "proposal": post} | settings))
        assert_right(z, spread=1.8)

    def test_right_with_the_posterior_of_infer(self, quick):
        post = od.infer(toy(), budget=300, seed=1)
        z = errors(importance, Toy, ONE, range(16), kernel=AT, budget=2000, proposal=post)
        assert_right(z, spread=1.8)

    @pytest.mark.parametrize("post", [GIVEN, SHIFTED, NARROW])
    def test_both_sums_are_right(self, post):
        """The evidence and the prior's mass: a mixture that is left out of the weights of any round would miss them."""
        for seed in range(5):
            bank = importance(toy(), budget=5000, kernel=AT, keep="all", seed=seed, proposal=post).bank
            weight = np.exp(bank.log_weight)
            for value, exact in ((weight, 1.0), (weight * (bank.distances[:, 0] < 0.3), Exact(AT).acceptance)):
                assert abs(value.mean() - exact) < 4 * value.std() / np.sqrt(value.size)
            assert weight.max() <= 1 / 0.1 + 1e-9

    def test_it_is_used_from_the_first_round_on(self):
        first = round_sizes(3000, 1)[0]
        post = importance(toy(), budget=3000, keep="all", seed=1, proposal=SHIFTED)
        of_prior = -(-first // 10)
        assert np.mean(np.abs(post.bank.theta[of_prior:first, 0] + 1.5) < 1.5) > 0.8
        assert np.array_equal(post.bank.theta[:of_prior], importance(
            toy(), budget=3000, keep="all", seed=1, proposal=GIVEN).bank.theta[:of_prior])  # fmt: skip
        assert post.settings["proposal"] == "1,000 draws of rejection"
        assert importance(toy(), budget=300, seed=1).settings["proposal"] is None

    def test_one_that_is_far_off_is_given_up(self):
        theta = importance(toy(), budget=3000, keep="all", seed=1, proposal=SHIFTED).bank.theta[-1000:, 0]
        assert theta.mean() > 0.3

    def test_a_piece_that_it_lacks_is_found(self):
        z = errors(importance, TwoPieces, TWO, range(6), budget=16_000, proposal=ONE_PIECE)
        assert_right(z, spread=1.9)

    def test_what_the_prior_has_not_looked_for_is_said(self):
        """Few draws that are near leave a piece unseen that the proposal lacks; every such run says so."""
        runs = [importance(TwoPieces.model, budget=2000, seed=seed, proposal=ONE_PIECE) for seed in range(16)]
        lacking = [run for run in runs if (run.draws["theta"] > 0).all()]
        assert lacking and all("that the given proposal lacks" in str(run.notes) for run in lacking)
        enough = importance(toy(), budget=10_000, kernel=od.uniform(0.5), seed=1, proposal=GIVEN)
        assert "lacks" not in str(enough.notes)
        assert "lacks" not in str(importance(TwoPieces.model, budget=300, seed=1).notes)

    def test_it_saves_simulations(self):
        """Five means with wide priors: what it takes to reach the tolerance with an effective number of draws."""
        centre = np.array([4.0, -3.0, 2.0, 5.0, 0.0])
        model = od.Model(od.Prior(**{name: stats.norm(0, 10) for name in "abcde"}), simulate_five, observed=centre)
        drawn = np.random.default_rng(1).normal(centre, 1.0, (2000, 5)).T
        given = posterior_of(model, **dict(zip("abcde", drawn, strict=True)))
        for seed in range(3):
            runs = [
                importance(model, kernel=od.uniform(2.0), budget=100_000, ess=40, seed=seed, proposal=post)
                for post in (given, None)
            ]
            assert all(run.settings["eps"] == 2.0 and run.status.reason == "finished" for run in runs)
            assert runs[0].cost.simulations < 0.5 * runs[1].cost.simulations

    def test_parameters_go_by_name(self):
        a, b = normals(0.4, 0.2)[::-1], normals(1.0, 0.2)
        inside, post = (a > 0) & (b > a), posterior_of(Ordered.model, a=a, b=b)
        turned = replace(post, draws={"b": post.draws["b"], "a": post.draws["a"]})
        theta, weight = draws_inside(turned, Ordered.prior)
        assert np.array_equal(theta, np.column_stack([a, b])[inside]) and (weight == 1).all()
        runs = [importance(Ordered.model, budget=500, seed=1, proposal=one) for one in (post, turned)]
        assert np.array_equal(*(run.draws["a"] for run in runs))

    def test_weighted_and_many_draws(self):
        """Draws of the prior with the weights of the posterior are fitted as draws of the posterior."""
        theta = normals(0.0, 1.0, 30_000)
        weights = stats.norm(1.0, np.sqrt(0.5)).pdf(theta) / stats.norm.pdf(theta)
        post = replace(posterior_of(toy(), theta=theta), weights=(weights / weights.sum())[None])
        drawn = [
            given_proposal(one, toy().prior, 0.1, 1).mixture.sample(np.random.default_rng(1), 20_000)[:, 0]
            for one in (post, posterior_of(toy(), theta=normals(1.0, np.sqrt(0.5))))
        ]
        assert np.quantile(drawn[0], [0.1, 0.5, 0.9]) == pytest.approx(np.quantile(drawn[1], [0.1, 0.5, 0.9]), abs=0.1)

    def test_the_constant_of_a_joint_prior_does_not_depend_on_it(self):
        """Bridging to the prior from a posterior that covers a 1000th of it would leave the constant unknown."""
        prior = od.Prior.joint(
            ["a", "b"], lambda rng, n: rng.normal(0, 10, (n, 2)), lambda theta: 3.0 - (theta**2).sum(axis=1) / 200
        )
        value, error = prior_constant(prior, 1)
        assert abs(value - 3.0 - np.log(2 * np.pi * 100)) < 4 * error and error < 0.02
        model = od.Model(prior, simulate_sum, observed=1.5)
        post = posterior_of(model, a=normals(0.0, 0.1), b=normals(1.5, 0.1)[::-1])
        found = importance(model, budget=200, seed=1, proposal=post).settings["prior_constant"][0]
        assert found == pytest.approx(np.exp(value), rel=1e-12)

    def test_refusals(self):
        def never(rng, theta):
            raise AssertionError("simulated")

        model = od.Model(od.Prior(theta=stats.uniform(0, 1)), never, 2.0)
        for wrong, message in (
            (od.random_walk(), "proposal must be a Posterior of a run with the same parameters"),
            ({"theta": [0.5]}, "proposal must be a Posterior"),
            (posterior_of(Ordered.model, a=[1.0], b=[2.0]), r"proposal holds draws of \['a', 'b'\], the model has"),
            (posterior_of(toy(), theta=[]), "proposal has 0 draws inside the prior's support, of 0"),
            (
                posterior_of(toy(), theta=normals(5.0, 1.0, 20)),
                "proposal has 0 draws inside the prior's support, of 20",
            ),
        ):
            with pytest.raises(ValueError, match=message):
                importance(model, budget=100, proposal=wrong)
        halves = posterior_of(Ordered.model, a=normals(0.0, 1.0), b=normals(0.0, 1.0))
        halves = replace(halves, draws={"k": halves.draws["a"], "mu": halves.draws["b"]})
        with pytest.raises(ValueError, match="proposal has 0 draws inside the prior's support, of 1000"):
            importance(Counted.model, budget=100, proposal=halves)


class TestGivenProposalInAFile:
    """The draws given are part of what a run is: its file has their fingerprint, and a resumed run needs them again."""

    arguments: ClassVar[dict[str, Any]] = {"budget": 1500, "seed": 3, "keep": "all"}

    def run(self, store=None, **more):
        return importance(toy("plain"), proposal=GIVEN, store=store, **(self.arguments | more))

    def test_resumed_after_any_record(self, tmp_path):
        whole = self.run()
        assert told(self.run(tmp_path / "run.db", segment=1e-9)) == told(whole)
        with Store(tmp_path / "run.db") as file:
            number = file.count()
        for kept in (number - 1, number // 2, number // 4, 1):
            with Store(tmp_path / "run.db", write=True) as file:
                file.drop_after(kept)
            assert told(od.resume(tmp_path / "run.db", toy("plain"), proposal=GIVEN)) == told(whole)
            assert told(od.load(tmp_path / "run.db")) == told(whole)
            with Store(tmp_path / "run.db", write=True) as file:
                file.drop_after(kept)

    def test_workers_and_interruptions_change_nothing(self, tmp_path):
        whole = self.run()
        assert told(self.run(workers=2)) == told(whole)
        self.run(tmp_path / "run.db", max_seconds=1e-9)
        assert told(od.resume(tmp_path / "run.db", toy("plain"), proposal=GIVEN)) == told(whole)

    def test_a_raised_budget_goes_on(self, tmp_path):
        self.run(tmp_path / "run.db")
        more = od.resume(tmp_path / "run.db", toy("plain"), proposal=GIVEN, budget=3000)
        assert more.cost.simulations == 3000 and more.settings["proposal"] == "1,000 draws of rejection"
        row, exact = more.summary()["theta"], Exact(od.uniform(more.settings["eps"]))
        assert abs(row.mean - exact.mean) < 4 * row.mcse

    def test_it_needs_the_same_draws(self, tmp_path):
        self.run(tmp_path / "run.db")
        with pytest.raises(od.StoreError, match="give it again, as proposal="):
            od.resume(tmp_path / "run.db", toy("plain"))
        with pytest.raises(od.StoreError, match="proposal"):
            od.resume(tmp_path / "run.db", toy("plain"), proposal=SHIFTED)
        with pytest.raises(od.StoreError, match="proposal"):
            importance(toy("plain"), store=tmp_path / "run.db", **self.arguments)
        importance(toy("plain"), store=tmp_path / "none.db", **self.arguments)
        with pytest.raises(od.StoreError, match="proposal"):
            od.resume(tmp_path / "none.db", toy("plain"), proposal=GIVEN)

    def test_a_posterior_from_a_file_is_the_same_one(self, tmp_path, quick):
        post = od.infer(toy("plain"), budget=200, draws=500, seed=1, store=tmp_path / "infer.db")
        read = od.load(tmp_path / "infer.db")
        whole = importance(toy("plain"), budget=400, seed=1, proposal=post, store=tmp_path / "run.db")
        assert whole.settings["proposal"] == "500 draws of infer"
        again = od.resume(tmp_path / "run.db", toy("plain"), proposal=read)
        assert told(again) == told(whole) == told(importance(toy("plain"), budget=400, seed=1, proposal=read))


@needs_fork
def test_its_file_shows_draws_while_it_goes_on_and_after_a_kill(tmp_path):
    assert_shown("importance", tmp_path / "run.db")
