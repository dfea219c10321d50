"""The learnt likelihood as the estimate of `od.infer`: against exact posteriors, from small budgets on."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

import onedraw as od
from onedraw.model.coordinates import support_of
from onedraw.proposals.mixture import Mixture
from onedraw.results import assessment, learnt_likelihood
from onedraw.results.assessment import Assessment, _better, _described, _likelier, _series, ahead, gain_of
from onedraw.results.learned_summary import _penalised, learn, learn_near
from onedraw.results.learnt_likelihood import (
    BEYOND_EDGE,
    DECAY,
    LATE_WORK,
    DescribedRows,
    LearntLikelihood,
    PickedSimulations,
    SimulatedPairs,
    _placed,
    _scores,
    fitted_to,
    learning_work,
    likely,
    unseen,
)
from onedraw.results.model_evidence import comparable
from onedraw.results.monte_carlo_error import effective_on_average
from onedraw.results.regression import AdjustedDraws, Method
from onedraw.results.trial import BROAD, TrialResult, log_densities, log_with_broad
from onedraw.run.bank import Bank
from onedraw.run.estimate import SPARE
from onedraw.surrogate.surrogate import Surrogate
from onedraw.surrogate.training import Training
from onedraw.surrogate.validation import FreeDraws, HeldOut, choose_power

NORMAL = od.Prior(theta=stats.norm(0, 1))


@od.batched
def noisy(rng, theta):
    return theta + rng.standard_normal(len(theta))


@pytest.mark.parametrize(
    ("budget", "seeds"),
    [
        (300, range(5, 10)),
        pytest.param(300, range(24), marks=pytest.mark.slow),
        pytest.param(1000, range(5), marks=pytest.mark.slow),
    ],
)
def test_the_error_of_the_mean_is_stated(budget, seeds):
    """A normal mean: the exact posterior is N(1, 1/2)."""
    posts = [od.infer(od.Model(NORMAL, noisy, 2.0), budget=budget, seed=seed, draws=1000) for seed in seeds]
    assert all(post.cost.simulations == budget for post in posts)
    rows = [post.summary()["theta"] for post in posts]
    z = np.array([(row.mean - 1.0) / row.mcse for row in rows])
    # Squares of normals: one set in a hundred passes this sum.
    assert np.square(z).sum() < stats.chi2(len(seeds)).isf(0.01)
    spread = np.array([np.log(row.sd / np.sqrt(0.5)) for row in rows])
    assert abs(spread.mean()) < 4 * np.sqrt(0.5 / (budget / 4)) / np.sqrt(len(seeds)) + 0.05


def test_fifty_simulations_are_some_use():
    posts = [od.infer(od.Model(NORMAL, noisy, 2.0), budget=50, seed=seed, draws=1000) for seed in range(8)]
    rows = [post.summary()["theta"] for post in posts]
    # The prior's own mean is off by 1.4 posterior standard deviations, and its spread by a factor of 1.4.
    assert np.sqrt(np.mean([(row.mean - 1.0) ** 2 for row in rows])) < 0.5 * np.sqrt(0.5)
    assert np.mean([row.sd for row in rows]) == pytest.approx(np.sqrt(0.5), rel=0.25)


@pytest.mark.slow
def test_mean_and_scale_of_ten_normals():
    """Against quadrature: the scale of the summaries depends on a parameter, and their law is skewed."""
    prior, n, observed = od.Prior(mu=stats.norm(0, 5), sigma=stats.uniform(0.1, 6)), 10, np.array([1.98, 1.57])

    @od.batched
    def simulate(rng, mu, sigma):
        data = rng.normal(mu[:, None], sigma[:, None], (len(mu), n))
        return np.column_stack([data.mean(axis=1), data.std(axis=1)])

    mu, sigma = np.meshgrid(np.linspace(-4, 8, 400), np.linspace(0.101, 6.099, 400), indexing="ij")
    log_post = stats.norm(0, 5).logpdf(mu) + stats.norm.logpdf(observed[0], mu, sigma / np.sqrt(n))
    log_post += stats.chi2.logpdf(n * observed[1] ** 2 / sigma**2, n - 1) - 2 * np.log(sigma)
    share = np.exp(log_post - log_post.max())
    share /= share.sum()
    posts = [od.infer(od.Model(prior, simulate, observed), budget=3000, seed=seed, draws=4000) for seed in (1, 2, 3)]
    for name, values in (("mu", mu), ("sigma", sigma)):
        mean = float((share * values).sum())
        sd = float(np.sqrt((share * (values - mean) ** 2).sum()))
        rows = [post.summary()[name] for post in posts]
        error = np.sqrt(sum(row.mcse**2 for row in rows)) / 3
        assert abs(np.mean([row.mean for row in rows]) - mean) < 3.5 * error < 0.3 * sd
        assert np.mean([row.sd for row in rows]) == pytest.approx(sd, rel=0.15)


def test_failures_are_part_of_the_likelihood():
    """A simulation fails the more often the larger theta is: P(success | theta) multiplies the likelihood."""
    observed, grid = 0.5, np.linspace(-5, 5, 2001)

    def simulate(rng, theta):
        if rng.random() < 1 / (1 + np.exp(-3 * theta)):
            raise RuntimeError("diverged")
        return theta + rng.standard_normal()

    post = od.infer(od.Model(NORMAL, simulate, observed), budget=1500, seed=2, draws=4000)
    assert post.method == "learnt likelihood" and post.cost.failed > 200
    log_post = stats.norm.logpdf(grid) + stats.norm.logpdf(observed, grid) - np.logaddexp(0, 3 * grid)
    share = np.exp(log_post - log_post.max())
    share /= share.sum()
    mean = share @ grid
    row = post.summary()["theta"]
    assert abs(row.mean - mean) < 4 * row.mcse + 0.05 * row.sd
    assert row.sd == pytest.approx(np.sqrt(share @ (grid - mean) ** 2), rel=0.12)
    # Without the failures the mean would be 1/4.
    assert mean < -0.1 and row.mean < 0.0


def test_many_outputs_of_which_summaries_are_learnt(quick):
    rng = np.random.default_rng(0)
    outputs, dim, noise = 120, 3, 3.0
    design = rng.standard_normal((outputs, dim))
    prior = od.Prior(**{f"t{j}": stats.norm(0, 1) for j in range(dim)})

    @od.batched
    def simulate(rng, **theta):
        means = np.column_stack(list(theta.values())) @ design.T
        return means + noise * rng.standard_normal(means.shape)

    observed = design @ np.array([1.0, -0.5, 0.2]) + noise * rng.standard_normal(outputs)
    covariance = np.linalg.inv(np.eye(dim) + design.T @ design / noise**2)
    mean, sd = covariance @ design.T @ observed / noise**2, np.sqrt(np.diag(covariance))
    post = od.infer(od.Model(prior, simulate, observed), budget=2500, seed=1, draws=2000)
    assert post.method == "learnt likelihood" and post.settings["summary"] == "learnt summaries"
    assert "the likelihood of 3 learnt summaries was learnt from" in str(post.summary())
    assert "what they lose of the data makes it wider" in str(post.summary())
    draws = np.column_stack([values[0] for values in post.draws.values()])
    # Coefficients of 120 outputs are known from some 1,200 simulations: a third of a posterior deviation is lost.
    assert np.sqrt(np.mean(np.square((draws.mean(axis=0) - mean) / sd))) < 1.0
    assert np.all(np.abs(np.log(draws.std(axis=0) / sd)) < 0.25)


def test_a_distance_of_the_users_own_is_kept():
    post = od.infer(od.Model(NORMAL, noisy, 2.0, distance=lambda x, y: abs(x - y)), budget=300, seed=1, draws=100)
    assert "learnt" not in post.method and post.distances is not None


def test_simulations_count_less_where_the_data_are_unlikely():
    """A normal with known variance: a share of the posterior is farther than a quantile of chi-square, exactly."""
    rng, n = np.random.default_rng(6), 8000
    theta = rng.normal(2.0, 3.0, size=(n, 1))
    simulations = SimpleNamespace(
        theta=theta, log_weights=lambda points: -stats.norm.logpdf(points[:, 0], 2.0, 3.0),
        _replace=lambda **new: SimpleNamespace(**new),
    )  # fmt: skip
    surrogate = SimpleNamespace(
        of_data=lambda observed: observed, form=SimpleNamespace(columns=lambda points: points),
        data_log_likelihood=lambda points, data: -0.5 * np.square(points[:, 0] - data[0]),
    )  # fmt: skip
    nearer = likely(simulations, SimpleNamespace(surrogate=surrogate, observed=np.array([2.0])))
    away = np.array([0.0, 1.0, 1.9, 3.0, 6.0])
    edge = stats.chi2(1).isf(BEYOND_EDGE)
    expected = np.exp(0.5 * DECAY * np.minimum(edge - np.square(away), 0.0))
    # Some 500 of the simulations are beyond the edge, so that it is known within about .1.
    assert nearer.aimed(2.0 + away[:, None], np.zeros(5)) == pytest.approx(expected, rel=0.05)


def bank_with(of_prior, aimed):
    support = support_of(NORMAL)
    mixture = Mixture(np.full((1, 1), 2.0), np.full((1, 1, 1), 0.5), np.empty((1, 0)), np.array([False]))
    return Bank(NORMAL, support, np.zeros((1, 1)), np.zeros((1, 1)), ((aimed, mixture),), of_prior)


def test_which_proposals_are_aimed():
    """With 300 from N(0, 1) and 100 from N(2, 1/4), the share of the second at theta is that of their densities."""
    points = np.array([[-3.0], [0.0], [1.0], [2.0], [3.0]])
    first, second = 300 * stats.norm.pdf(points[:, 0]), 100 * stats.norm.pdf(points[:, 0], 2.0, 0.5)
    for bank, share in ((bank_with(300, 100), second / (first + second)), (bank_with(300, 0), 1.0)):
        bank = bank if bank.mixtures[0][0] else bank._replace(mixtures=())
        simulations = bank.simulations()
        assert np.allclose(simulations.aimed(points, simulations.log_weights(points)), share)


def test_draws_of_all_proposals():
    draws = bank_with(300, 100).sample(np.random.default_rng(1), 40_000)[:, 0]
    mean, square = 0.25 * 2.0, 0.75 + 0.25 * 4.25
    assert abs(draws.mean() - mean) < 4 * np.sqrt(square - mean**2) / 200
    assert abs(np.square(draws).mean() - square) < 4 * np.square(draws).std() / 200


def test_posterior_mass_without_simulations_is_seen():
    rng = np.random.default_rng(1)
    theta, draws = rng.standard_normal((2000, 3)), rng.standard_normal((500, 3))
    assert unseen(theta, draws).mean() < 0.01
    draws[:100] += 20.0
    assert unseen(theta, draws)[:100].all() and unseen(theta, draws)[100:].mean() < 0.02


def test_tails_of_the_posterior_are_not_unseen():
    """In one dimension draws lie closely: those a little beyond all simulations stay."""
    theta, draws = np.linspace(-2.8, 2.8, 4000)[:, None], np.random.default_rng(2).standard_normal((4000, 1))
    assert np.abs(draws).max() > 3.0 and not unseen(theta, draws).any()


def test_simulations_made_by_chance_do_not_count_as_a_look():
    theta, draws = np.concatenate([np.zeros((50, 1)), np.full((5, 1), 9.0)]), np.array([[0.1]] * 30 + [[9.0]])
    weights = np.where(np.arange(55) < 50, 1.0, 0.05)
    training = Training(theta, theta, theta, weights)
    picked = PickedSimulations(training, np.arange(0), None, None, None)
    for fitted in (training, picked.weighted(1.0)):
        learnt = LearntLikelihood(None, fitted, None, False, None, None, None, picked.looks())
        assert learnt.unseen(draws).tolist() == [False] * 30 + [True]


def test_a_learnt_likelihood_does_not_forget_where_earlier_stages_looked():
    assert fitted_to(20_000).tolist() == list(range(20_000))
    number = fitted_to(100_000)
    assert len(np.unique(number)) == 20_000 and number[-10_000:].tolist() == list(range(90_000, 100_000))
    assert np.diff(number[:10_000]).max() == 9


def test_draws_where_no_stage_has_looked_are_left_out(monkeypatch, quick):
    """Of a posterior with a tenth of its mass in the wrong place, the rest is left, as many draws as were asked for."""
    draws = LearntLikelihood.draws

    def with_false_mass(self, simulations, number, rng):
        found = draws(self, simulations, number, rng)
        if number == 777 + 777 // SPARE:
            found.draws[::10] += 40.0
        return found

    monkeypatch.setattr(LearntLikelihood, "draws", with_false_mass)
    post = od.infer(od.Model(NORMAL, noisy, 2.0), budget=300, seed=1, draws=777)
    assert post.draws["theta"].shape == (1, 777) and post.draws["theta"].max() < 10
    assert any("10 % of the posterior lies where there are hardly any simulations" in note for note in post.notes)


class TestPlaces:
    """Where known parameters lie in their posteriors."""

    points = np.array([[0.0, 1.0], [1.0, 2.0], [2.0, 2.0], [4.0, 3.0]])
    weights = np.array([[0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25]])

    def test_ranks_are_masses_below_and_half_of_what_is_equal_for_whole_numbers(self):
        known = np.array([[1.5, 2.0], [9.0, 1.0]])
        ranks, _ = _placed(self.weights, self.points, known, np.array([False, True]))
        assert np.allclose(ranks, [[0.1 + 0.2, 0.1 + 0.5 * (0.2 + 0.3)], [1.0, 0.5 * 0.25]])

    def test_distances_are_in_posterior_deviations(self):
        known = np.array([[1.5, 2.0], [9.0, 1.0]])
        _, away = _placed(self.weights, self.points, known, np.array([False, False]))
        for k, share in enumerate(self.weights):
            mean = np.average(self.points, axis=0, weights=share)
            deviation = np.sqrt(np.average((self.points - mean) ** 2, axis=0, weights=share))
            assert np.allclose(away[k], (known[k] - mean) / deviation)

    def test_coverage_counts_ranks_inside_central_intervals(self):
        ranks = np.array([[0.03, 0.5], [0.2, 0.96], [0.9, 0.04], [0.97, 0.1]])
        learnt = LearntLikelihood(None, None, None, False, None, ranks, ranks, None)
        assert learnt.coverage(0.9).tolist() == [0.5, 0.5]
        assert learnt.coverage(0.5).tolist() == [0.0, 0.25]
        assert np.isnan(learnt._replace(ranks=np.empty((0, 2))).coverage(0.9)).all()


class TestScores:
    """Both families are scored by the density of known parameters, up to the same constant."""

    def exact(self, n, seed):
        """The posterior of a correlated normal, N(m, S), at known parameters, as free draws and as its own draws."""
        rng = np.random.default_rng(seed)
        root, mean = np.array([[0.6, 0.0], [0.3, 0.4]]), np.array([0.5, -0.2])
        prior, posterior = stats.multivariate_normal(np.zeros(2), 4.0), stats.multivariate_normal(mean, root @ root.T)
        points, known = 2.0 * rng.standard_normal((n, 2)), mean + 0.5 * rng.standard_normal((6, 2))

        def log_likelihood(theta):
            return posterior.logpdf(theta) - prior.logpdf(theta)

        held = HeldOut(log_likelihood(known), np.tile(log_likelihood(points), (6, 1)))
        own = mean + rng.standard_normal((n, 2)) @ root.T
        return known, held, FreeDraws(points, np.zeros(n), np.zeros(n)), prior, own

    def test_the_score_of_a_surrogate_is_the_log_density_in_the_coordinates_of_the_trial(self):
        known, held, free, prior, own = self.exact(40_000, 1)
        scale = np.array([[1.7, 0.4], [0.0, 2.0]])
        support, names = support_of(od.Prior(a=stats.norm(0, 2), b=stats.norm(0, 2))), [False, False]
        simulations = SimulatedPairs(support, known, known, known[:0], names, None, prior.logpdf, 1.0, None, None)
        found = _scores(held, known, simulations, free, scale, 1.0)
        share = np.full((1, len(own)), 1.0 / len(own))
        kernel = [log_densities((own @ scale)[None], share, point[None] @ scale, [False])[0, 0] for point in known]
        # A smoothed density is a little too low at the centre and too high in the tails; its constant is the same.
        assert np.mean(found - kernel) == pytest.approx(0.0, abs=0.06)
        assert np.allclose(found, kernel, atol=0.2)

    def test_the_broad_normal_bounds_a_score(self):
        points, share = np.array([[-1.0], [1.0]]), np.full((1, 2), 0.5)
        found = log_with_broad(np.array([-np.inf]), points, share, np.array([[2.0]]))
        assert found[0] == pytest.approx(np.log(BROAD) - 0.5 * (2.0 / 2.0) ** 2 - np.log(2.0), abs=1e-8)

    def test_the_broad_normal_has_twice_the_deviations_of_weighted_draws(self):
        rng = np.random.default_rng(2)
        points, known = 5.0 + rng.normal(size=(40, 3)) @ rng.normal(size=(3, 3)), 5.0 + rng.normal(size=(4, 3))
        weights = rng.dirichlet(np.ones(40), 4)
        found = log_with_broad(np.full(4, -np.inf), points, weights, known)
        for one, share, there in zip(found, weights, known, strict=True):
            spread = np.cov(points, rowvar=False, aweights=share, ddof=0)
            broad = stats.multivariate_normal(share @ points, 4.0 * spread).logpdf(there)
            assert one == pytest.approx(np.log(BROAD) + broad + 1.5 * np.log(2 * np.pi), abs=1e-6)
        assert log_with_broad(np.empty(0), points, weights[:0], known[:0]).shape == (0,)


class TestPower:
    def held(self, narrower, seed=1):
        """Normal posteriors whose stated deviations are too small by a factor, at parameters drawn from right ones."""
        rng = np.random.default_rng(seed)
        points = np.linspace(-6.0, 6.0, 1201)
        known, means = np.empty(200), rng.standard_normal(200)
        known[:] = means + 0.3 * rng.standard_normal(200)
        deviation = 0.3 * narrower

        def log_likelihood(theta, mean):
            return -0.5 * np.square((theta - mean) / deviation) - np.log(deviation)

        at_draws = np.array([log_likelihood(points, mean) for mean in means])
        return HeldOut(log_likelihood(known, means), at_draws), np.zeros(len(points))

    def test_a_surrogate_that_is_right_keeps_its_weight(self):
        assert choose_power(*self.held(1.0)) == 1.0

    def test_a_surrogate_that_is_too_sure_is_raised_to_a_power(self):
        """A power that gains less than a standard error is not taken: too small a one is biased."""
        assert choose_power(*self.held(0.4)) == 0.5
        assert choose_power(*self.held(0.6)) < 1.0

    def test_one_that_is_too_wide_is_left_alone(self):
        assert choose_power(*self.held(1.5)) == 1.0


class TestChoice:
    """Regression is used only if it is clearly ahead, and leans on enough draws."""

    def assessment(self, gain, spread, draws, rows=(), power=1.0):
        scores = np.array([1.0, -1.0] * 50)
        trial = TrialResult(
            Method(0, 10, "linear"), 100, 0.0, 0.0, 0.9, np.arange(100), 0.0 * scores, np.full(100, 0.01)
        )
        surrogate, observed, found = Surrogate(None, (), None, power), np.zeros((*rows, 1)), gain + spread * scores
        learnt = LearntLikelihood(surrogate, None, observed, False, found, scores, scores, None)
        adjusted = AdjustedDraws(np.zeros((draws, 1)), np.ones(draws), np.arange(draws), 1.0)
        return Assessment((), (), (), trial, adjusted, np.arange(0), np.arange(0), None, learnt)

    @pytest.mark.parametrize(
        ("gain", "spread", "draws", "surrogate"),
        [
            (0.3, 1.0, 500, True),
            # The error is .1005 with 99 degrees of freedom: 2.026 of them and .2 are .404.
            (-0.39, 1.0, 500, True),
            (-0.41, 1.0, 500, False),
            (-0.41, 1.0, 49, True),
            (-0.21, 0.01, 500, False),
            (-0.19, 0.01, 500, True),
        ],
    )
    def test_which_family(self, gain, spread, draws, surrogate):
        assert (self.assessment(gain, spread, draws).likelihood is not None) == surrogate

    @pytest.mark.parametrize(("few", "repetitions"), [(3, 40_000), (6, 20_000)])
    def test_errors_of_few_held_out_simulations_hold(self, few, repetitions):
        """Exactly for normal gains: one mean in 44 is beyond two errors, however few simulations have the weight."""
        rng, share = np.random.default_rng(1), np.append(np.full(few, 1 / few), np.zeros(20))
        gains = rng.standard_normal((repetitions, few + 20))
        beyond = [mean > errors for mean, errors in (gain_of(one, np.zeros(few + 20), share, 2.0) for one in gains)]
        assert abs(np.mean(beyond) - 0.02275) < 4 * math.sqrt(0.02275 / repetitions)

    def test_a_lead_from_one_heavy_simulation_is_none(self):
        share = np.append(0.91, np.full(9, 0.01))
        lead = np.append(1.4, np.full(9, 0.8))
        assert not ahead(lead, np.zeros(10), share) and ahead(lead, np.zeros(10), np.full(10, 0.1))

    @pytest.mark.parametrize(
        ("gain", "power", "rows"), [(-0.19, 1.0, True), (-0.21, 1.0, False), (0.3, 0.85, True), (0.3, 0.7, False)]
    )
    def test_all_summaries_or_one_row(self, gain, power, rows):
        whole = self.assessment(0.0, 0.0, 500).learnt
        by_row = self.assessment(gain, 0.001, 500, (10,), power).learnt
        assert (_better(whole, by_row, np.full(100, 0.01)) is by_row) == rows
        none = np.empty(0)
        assert _better(None, by_row, none) is by_row and _better(whole, None, none) is whole
        assert _better(None, None, none) is None

    @pytest.mark.parametrize(("gain", "series"), [(0.15, True), (0.05, False), (-0.5, False)])
    def test_learnt_summaries_or_one_series(self, gain, series):
        """The standard error of the gain is .1: the series must be ahead by that, whatever the scores say."""
        whole, other = (self.assessment(some, 0.0, 500).learnt for some in (0.0, -gain))
        whole, other = whole._replace(gains=np.zeros(100)), other._replace(gains=gain + np.array([1.0, -1.0] * 50))
        assert (_likelier(whole, other) is other) == series
        assert _likelier(None, other) is other and _likelier(whole, None) is whole and _likelier(None, None) is None


def test_what_may_be_one_series():
    rows = np.zeros((5, 41))
    model = SimpleNamespace(replicates=None, observed_row=np.ones(41))
    assert _series(model, rows).series and _series(model, rows).rows is rows
    assert _series(model, rows[:, :40]) is None
    assert _series(SimpleNamespace(replicates="y", observed_row=np.ones(41)), rows) is None


@pytest.mark.parametrize(("length", "late"), [(50, True), (200, True), (1000, False)])
def test_a_long_series_is_too_much_work_after_a_time_limit(length, late):
    """Not because of its fits, which are of so many steps at most, but of the likelihoods of draws."""
    rows = np.zeros((8000, length))
    assert (learning_work(DescribedRows(rows, rows[0], False, series=True), 3) < LATE_WORK) == late


def test_densities_of_long_series_are_not_compared_between_models():
    form = SimpleNamespace(long=True)
    assert "too many" in comparable([SimpleNamespace(learnt_summary=False, surrogate=SimpleNamespace(form=form))])


class TestLearntNear:
    def test_a_line_through_all_simulations_unless_others_are_better(self):
        """Near the data parameters have a narrow range: predictions there are shrunk, which says nothing more."""
        rng = np.random.default_rng(4)
        theta = rng.standard_normal((800, 1))
        rows = theta @ rng.standard_normal((1, 20)) + 3.0 * rng.standard_normal((800, 20))
        everywhere, near = np.ones(800, dtype=bool), np.abs(theta[:, 0]) < 0.5
        _, found = learn_near(theta, [rows], everywhere, near)
        assert found.coefficients.tolist() == learn(theta, rows, np.ones(800), "linear").coefficients.tolist()

    def test_another_summary_near_the_data(self):
        """Of two columns one shows the parameter near the data, and the other elsewhere."""
        rng = np.random.default_rng(5)
        theta = rng.uniform(-3.0, 3.0, (800, 1))
        near = np.abs(theta[:, 0]) < 0.7
        rows = np.where(near[:, None] == [True, False], theta, 3.0 * rng.standard_normal((800, 2)))
        rows += 0.1 * rng.standard_normal((800, 2))
        _, found = learn_near(theta, [rows], np.ones(800, dtype=bool), near)
        slopes = learn(theta, rows, near.astype(float), "linear").coefficients
        assert found.terms == "linear" and found.coefficients == pytest.approx(slopes)

    def test_squares_where_they_predict_better(self):
        rng = np.random.default_rng(6)
        rows = rng.standard_normal((300, 30))
        theta, near = np.square(rows[:, :1]) + 0.3 * rng.standard_normal((300, 1)), np.arange(300) % 3 == 0
        assert learn_near(theta, [rows], np.ones(300, dtype=bool), near)[1].terms == "squares"

    def test_nothing_is_learnt_from_noise(self):
        rng = np.random.default_rng(7)
        theta, rows = rng.standard_normal((2000, 1)), rng.standard_normal((2000, 3))
        assert learn_near(theta, [rows], np.ones(2000, dtype=bool), np.arange(2000) % 3 == 0) is None


def autoregression(rng, slope, length=60):
    series = [rng.standard_normal(len(slope))]
    for _ in range(length - 1):
        series.append(slope * series[-1] + rng.standard_normal(len(slope)))
    return np.column_stack(series)


def test_a_series_of_more_values_than_can_have_laws_of_their_own(monkeypatch):
    """Against the exact posterior; the error of the mean is found without a law for each of its values."""

    def not_asked(*_, **__):
        raise AssertionError("a law for each value of a long series")

    asked, real = {}, assessment.learn_likelihood

    def learnt(simulations, described, held_out, share, scale, rng, thorough):
        asked.setdefault(len(simulations.theta), []).append(str(rng.bit_generator.state))
        return real(simulations, described, held_out, share, scale, rng, thorough)

    monkeypatch.setattr("onedraw.surrogate.validation.choose_form", not_asked)
    monkeypatch.setattr(assessment, "learn_likelihood", learnt)
    # Moments of the series are as good here: either may be ahead.
    monkeypatch.setattr(assessment, "moments_of", lambda *_: None)
    observed = autoregression(np.random.default_rng(1), np.array([0.4]))[0]
    model = od.Model(od.Prior(slope=stats.uniform(-0.9, 1.8)), od.batched(autoregression), observed)
    post = od.infer(model, budget=400, seed=1, draws=1000)
    assert post.settings["summary"] == "summaries as given" and len(post.settings["terms"]) == 2
    grid = np.linspace(-0.9, 0.9, 2001)
    squares = np.square(observed[1:] - grid[:, None] * observed[:-1]).sum(axis=1)
    share = np.exp(-0.5 * (squares - squares.min()))
    share /= share.sum()
    mean = share @ grid
    sd = np.sqrt(share @ np.square(grid - mean))
    row = post.summary()["slope"]
    # Both likelihoods are tried at the same simulations.
    assert [len(set(one)) for one in asked.values()] == [1] * len(asked)
    assert max(map(len, asked.values())) == 2
    # With summaries learnt from the values themselves the mean is off by more than one standard deviation.
    assert abs(row.mean - mean) < 0.35 * sd and abs(np.log(row.sd / sd)) < 0.25


@pytest.mark.parametrize("number", [0, 1, 7, 8, 9])
def test_a_learnt_summary_of_many_rows_is_computed_in_pieces(monkeypatch, number):
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(60, 3))
    learnt = learn(rows @ rng.normal(size=(3, 2)), rows, np.ones(60), "products")
    each = [learnt(one[None])[0] for one in rows[:number]]
    monkeypatch.setattr("onedraw.results.learned_summary.AT_ONCE", 4 * len(learnt.coefficients))
    assert learnt(rows[:number]) == pytest.approx(np.array(each).reshape(number, 2), rel=1e-12)


def test_the_error_of_a_learnt_summary_is_that_of_simulations_left_out():
    """The formula for ridge regression against a fit without each simulation."""
    rng = np.random.default_rng(3)
    columns = np.column_stack([np.ones(40), rng.normal(size=(40, 5))])
    targets, share = rng.normal(size=(40, 2)) + columns[:, 1:3], rng.uniform(0.5, 1.5, 40)
    share /= share.sum()
    _, found = _penalised(columns, targets, share, 0.1)
    residuals = np.empty((40, 2))
    for i in range(40):
        rest = np.where(np.arange(40) == i, 0.0, share)
        gram = (columns * rest[:, None]).T @ columns + np.diag([1e-10] + [0.1] * 5)
        residuals[i] = targets[i] - columns[i] @ np.linalg.solve(gram, columns.T @ (rest[:, None] * targets))
    assert np.allclose(found, residuals)


def test_many_learnt_summaries_are_left_to_regression():
    """A likelihood of two hundred of them would take minutes to fit."""
    rows, observed = np.ones((5, 300)), np.ones(300)
    for number, fitted in ((80, True), (81, False)):
        found = _described([lambda some: some, lambda some, k=number: some[:, :k]], rows, observed)
        assert (found is not None and found.learnt and found.rows.shape == (5, number)) == fitted
    assert not _described([lambda some: some], rows[:, :40], observed[:40]).learnt
    assert _described([lambda some: some], rows[:, :60], observed[:60]) is None


def test_effective_draws_follow_from_both_errors(monkeypatch):
    """Changes a (simulations) and b (form) of a mean: 1 / N = 9 / 7 (sum a^2 + sum b^2) / variance + 1 / n."""
    rng = np.random.default_rng(1)
    draws, groups = rng.standard_normal((500, 2)) * [1.0, 3.0], []
    without, other = (0.002 * (found - found.mean(axis=1)[:, None]) for found in map(rng.random, ((8, 500), (2, 500))))
    monkeypatch.setattr(learnt_likelihood, "without_groups", lambda *given: groups.append(given[-1]) or without)
    monkeypatch.setattr(learnt_likelihood, "with_other_forms", lambda *_: other)
    few, many = (SimpleNamespace(rows=np.empty((n, 1))) for n in (2000, 2001))
    learnt = LearntLikelihood(None, few, None, False, None, None, None, None)
    refits = learnt.refits(draws)
    squared = np.square(without @ draws).sum(axis=0) + np.square(other @ draws).sum(axis=0)
    each = 9 / 7 * squared / draws.var(axis=0) + 1 / 500
    assert effective_on_average(draws, refits) == pytest.approx(1 / each.mean(), rel=1e-5)
    # So many independent draws are the others worth that the likelihood was not fitted again for.
    more = 1 / (each.mean() - 1 / 500 + 1 / 3000)
    assert effective_on_average(draws, refits, 3000.0) == pytest.approx(more, rel=1e-5)
    # A parameter that does not vary says nothing.
    draws[:, 1] = 7.0
    refits = learnt._replace(training=many).refits(draws)
    assert effective_on_average(draws, refits) == pytest.approx(1 / each[0], rel=1e-5)
    # Fits to few simulations are quick, so that more of them are made.
    assert groups == [24, 8]
    # Of many draws, at most 2,000 are reweighted.
    shapes = []
    monkeypatch.setattr(learnt_likelihood, "without_groups", lambda *given: shapes.append(given[3].shape) or without)
    learnt.refits(np.zeros((4001, 2)))
    assert shapes == [(1334, 2)]


def test_a_posterior_that_is_mostly_unseen_is_kept_and_told(monkeypatch, quick):
    monkeypatch.setattr(LearntLikelihood, "unseen", lambda self, draws: np.arange(len(draws)) % 4 > 0)
    post = od.infer(od.Model(NORMAL, noisy, 2.0), budget=300, seed=1, draws=400)
    assert np.unique(post.draws["theta"]).size == 400
    assert any("75 % of the posterior lies where there are hardly any simulations" in note for note in post.notes)


def test_a_likelihood_that_depends_on_no_parameter_is_none(quick):
    """Fifty simulations are too few for twelve parameters: the prior would pass for a posterior without error."""
    names, mixed = [f"t{j}" for j in range(12)], np.random.default_rng(1).standard_normal((12, 20))

    def simulate(rng, **theta):
        rows = np.column_stack([theta[name] for name in names]) @ mixed
        return rows + 0.5 * rng.standard_normal(rows.shape)

    model = od.Model(od.Prior(**{name: stats.norm(0, 1) for name in names}), od.batched(simulate), 2.0 * mixed[0])
    post = od.infer(model, budget=50, seed=1, draws=400)
    assert post.effective < 50


@pytest.mark.parametrize("draws", [1, 2, 3, 200])
def test_few_draws_can_be_asked_for(draws, quick, monkeypatch):
    """Whether draws are far from all simulations is measured by their own spread, which a few do not have."""
    asked, whole = [], LearntLikelihood.draws

    def counted(self, simulations, number, rng):
        asked.append(number)
        return whole(self, simulations, number, rng)

    monkeypatch.setattr(LearntLikelihood, "draws", counted)
    model = od.Model(
        od.Prior(a=stats.norm(0, 1), b=stats.uniform(0, 1)),
        od.batched(lambda rng, a, b: np.column_stack([a, b]) + rng.standard_normal((len(a), 2))), np.array([0.5, 0.5]),
    )  # fmt: skip
    post = od.infer(model, budget=300, seed=1, draws=draws)
    assert post.shape == (1, draws) and np.isfinite(post.draws["a"]).all()
    # The sampler needs a hundred to reach the posterior; the others are spare.
    assert asked[-1] == (100 if draws < 100 else 204)


@pytest.mark.parametrize(("first", "second"), [(None, None), (None, "in full"), ("weighted", None)])
def test_of_two_fits_the_one_that_there_is_is_taken(monkeypatch, first, second):
    first, second = (None if name is None else SimpleNamespace(name=name, constant=False) for name in (first, second))
    fits = {learnt_likelihood.LEAST_RELEVANCE: first, 1.0: second}
    picked = SimpleNamespace(training=SimpleNamespace(weights=np.array([0.5, 1.0])))
    monkeypatch.setattr(learnt_likelihood, "_picked", lambda *given: picked)
    monkeypatch.setattr(learnt_likelihood, "_learnt", lambda pairs, rows, picked, least, *given: fits[least])
    found = learnt_likelihood.learn_likelihood(SimpleNamespace(for_others=True), *[None] * 5, thorough=True)
    assert found is (first or second)
