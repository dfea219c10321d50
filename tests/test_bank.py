"""Simulations that are used again: a bank for another run, and the posterior of other data without a new simulation."""

import numpy as np
import pytest
from scipy import stats

import onedraw as od
from onedraw.model.coordinates import support_of
from onedraw.proposals.mixture import Mixture
from onedraw.results.learnt_likelihood import SimulatedPairs, UnweightedPairs
from onedraw.results.posterior import SimulatedData
from onedraw.run.bank import Bank
from onedraw.run.earlier import packed, starting_bank, unpacked
from tests.conftest import hurry

NOISE = 0.5
SHAPE = np.array([[1.0, 0.5, 0.0], [0.0, 1.0, 0.3]])
PRIOR = od.Prior(a=stats.norm(0, 2), b=stats.norm(0, 2))


@od.batched
def mixed(rng, a, b):
    return np.column_stack([a, b]) @ SHAPE + NOISE * rng.standard_normal((len(a), 3))


def one_by_one(rng, a, b):
    return np.array([a, b]) @ SHAPE + NOISE * rng.standard_normal(3)


def exact(data):
    """Mean and standard deviations of the posterior, which is normal."""
    covariance = np.linalg.inv(np.eye(2) / 4 + SHAPE @ SHAPE.T / NOISE**2)
    return covariance @ SHAPE @ data / NOISE**2, np.sqrt(np.diag(covariance))


def errors(post, data):
    """Of the means in standard deviations, and of the log standard deviations."""
    draws = np.column_stack([values[0] for values in post.draws.values()])
    mean, sd = exact(np.asarray(data))
    return (draws.mean(axis=0) - mean) / sd, np.log(draws.std(axis=0) / sd)


def bytes_of(post):
    return [values.tobytes() for values in post.draws.values()], post.notes, post.cost._replace(seconds=0.0)


HERE, THERE = [1.0, -1.0, 0.5], [-2.0, 1.0, 1.0]
KEPT = 1960
"""Simulations that a run of 2,000 keeps: the others are replicates at posterior draws, for its check."""


@pytest.fixture(scope="module")
def earlier():
    return od.infer(od.Model(PRIOR, mixed, HERE), budget=2000, seed=1, draws=4000)


@pytest.fixture(scope="module")
def without():
    """Runs with other data and no bank: of 300 simulations, and of 2,300."""
    return [od.infer(od.Model(PRIOR, mixed, THERE), budget=budget, seed=2, draws=4000) for budget in (300, 2300)]


@pytest.fixture(scope="module")
def small():
    with pytest.MonkeyPatch.context() as patch:
        hurry(patch)
        return od.infer(od.Model(PRIOR, one_by_one, HERE), budget=200, seed=1, draws=500)


class TestReuse:
    @pytest.mark.parametrize("known", [True, False])
    @pytest.mark.slow
    def test_a_bank_is_worth_its_simulations(self, earlier, without, known):
        """300 simulations and 1,960 earlier ones give what 2,300 give, to within their error; 300 alone know less."""
        model = od.Model(PRIOR, mixed, THERE)
        bank = earlier if known else od.bank_from_arrays(*earlier.simulations)
        post = od.infer(model, budget=300, seed=2, bank=bank, draws=4000)
        mean, log_sd = errors(post, THERE)
        # The stated error of each mean is that of so many draws; a standard deviation has 1 / sqrt(2 n) besides.
        assert np.all(np.abs(mean) < 4 / np.sqrt(post.effective))
        assert np.all(np.abs(log_sd) < 4 / np.sqrt(2 * post.effective) + 4 / np.sqrt(2 * 4000))
        alone, long = without
        assert post.effective > alone.effective
        both = np.sqrt(1 / post.effective + 1 / long.effective)
        assert np.all(np.abs(mean - errors(long, THERE)[0]) < 4 * both)

    def test_what_is_told(self, quick, earlier):
        post = od.infer(od.Model(PRIOR, mixed, THERE), budget=100, seed=1, bank=earlier, draws=100)
        assert post.cost.simulations == 100 and post.cost.reused == KEPT
        assert any(
            f"{KEPT:,} earlier simulations" in note and "not count towards the budget" in note for note in post.notes
        )
        assert post.settings["bank"] == {"simulations": KEPT, "unknown_proposals": 0}
        theta, x = post.simulations
        assert theta.shape == (KEPT + 100, 2) and x.shape == (KEPT + 100, 3)
        assert np.array_equal(theta[:KEPT], earlier.simulations.theta)

    def test_no_random_number_is_used_twice(self, quick, small):
        """Also with the seed of the run that the bank comes from, and for a bank made of its arrays."""
        for bank in (small, od.bank_from_arrays(*small.simulations)):
            post = od.infer(od.Model(PRIOR, one_by_one, THERE), budget=60, seed=1, bank=bank, draws=100)
            theta, x = post.simulations
            assert len(np.unique(theta[:, 0])) == len(np.unique(np.round(x - theta @ SHAPE, 9)[:, 0])) == 260
            arrays = od.bank_from_arrays(theta, x)
            again = od.infer(od.Model(PRIOR, one_by_one, HERE), budget=40, seed=1, bank=arrays, draws=100)
            theta, x = again.simulations
            assert len(np.unique(theta[:, 0])) == len(np.unique(np.round(x - theta @ SHAPE, 9)[:, 0])) == 300

    def test_draws_from_the_prior_serve_regression_too(self, paced):
        rng = np.random.default_rng(1)
        theta = PRIOR.sample(rng, 1500)
        x = mixed(rng, *theta.T)
        model = od.Model(PRIOR, mixed, THERE, distance=od.batched(lambda x, y: np.abs(x - y).sum(axis=1)))
        bank = od.bank_from_arrays({"b": theta[:, 1], "a": theta[:, 0]}, x, from_prior=True)
        post = od.infer(model, budget=100, seed=1, bank=bank, draws=500)
        assert "learnt" not in post.method
        assert np.all(np.abs(errors(post, THERE)[0]) < 4 / np.sqrt(post.effective) + 0.3)
        with pytest.raises(ValueError, match="distance of your own"):
            od.infer(model, budget=100, seed=1, bank=od.bank_from_arrays(theta, x))

    def test_another_prior(self, earlier, paced):
        """The likelihood is the same, and the proposals of the earlier run are not those of this prior."""
        prior = od.Prior(a=stats.norm(0, 4), b=stats.uniform(-5, 10))
        post = od.infer(od.Model(prior, mixed, HERE), budget=200, seed=1, bank=earlier, draws=2000)
        inside = np.abs(earlier.simulations.theta[:, 1]) < 5
        assert post.settings["bank"]["unknown_proposals"] == post.cost.reused == inside.sum() < KEPT
        # Nearly flat priors: the mean of least squares, and the covariance that goes with it.
        covariance = np.linalg.inv(np.diag([1 / 16, 0.0]) + SHAPE @ SHAPE.T / NOISE**2)
        mean = covariance @ SHAPE @ np.array(HERE) / NOISE**2
        draws = np.column_stack([values[0] for values in post.draws.values()])
        assert np.all(np.abs(draws.mean(axis=0) - mean) < 4 * np.sqrt(np.diag(covariance) / post.effective))

    def test_importance_sampling_has_a_bank_too(self, quick):
        model = od.Model(PRIOR, mixed, HERE)
        run = od.importance(model, kernel=od.uniform(2.0), budget=600, seed=1, keep="all")
        post = od.infer(model, budget=100, seed=1, bank=run, draws=200)
        assert post.cost.reused == len(run.bank.theta) > 500

    def test_rejection_with_all_its_simulations(self, quick, tmp_path):
        model, file = od.Model(PRIOR, mixed, HERE), tmp_path / "all.db"
        od.rejection(model, od.uniform(1.0), budget=500, seed=1, store=file, keep="all")
        post = od.infer(model, budget=60, seed=1, bank=od.load(file), draws=100)
        assert post.cost.reused == 500


class TestSeveral:
    def test_proposals_of_both_are_known(self, quick, small):
        """The density of a mixture of both runs, at any point, is the mean of theirs by their numbers of proposals."""
        model = od.Model(PRIOR, one_by_one, THERE)
        other = od.infer(model, budget=100, seed=2, draws=100)
        support = support_of(PRIOR)
        one, two, both = (starting_bank(given, model, support) for given in (small, other, [small, other]))
        points = support.unbounded(PRIOR.sample(np.random.default_rng(1), 50))

        def density(bank):
            return np.exp(bank.log_prior(points) - bank.log_weights(points))

        numbers = np.array([one.proposals(), two.proposals()])
        expected = (numbers[0] * density(one) + numbers[1] * density(two)) / numbers.sum()
        assert np.allclose(density(both), expected, rtol=1e-12) and both.reused == one.reused + two.reused == 300
        assert both.ends == (*one.ends, *(one.ends[-1] + end for end in two.ends)) and both.earlier == len(
            both.mixtures
        )
        assert np.array_equal(both.theta, np.concatenate([one.theta, two.theta]))
        assert both.stages not in (one.stages, two.stages)

    def test_simulations_that_both_have_count_once(self, quick, small):
        """With the same seed, runs begin with the same simulations; a run that was given a bank has its simulations."""
        model, support = od.Model(PRIOR, one_by_one, THERE), support_of(PRIOR)
        same_seed = od.infer(model, budget=100, seed=1, draws=100)
        given_it = od.infer(model, budget=40, seed=2, draws=100, bank=small)
        for other in (same_seed, given_it):
            bank = starting_bank([small, other], model, support)
            theta = np.concatenate([bank.theta, bank.more.theta])
            assert len(np.unique(theta, axis=0)) == len(theta) == bank.reused
            every = np.concatenate([small.simulations.theta, other.simulations.theta])
            assert len(np.unique(every, axis=0)) == len(theta) < len(every)
            assert np.array_equal(bank.log_weights(theta), starting_bank(small, model, support).log_weights(theta))
        assert starting_bank([small, small], model, support).reused == small.cost.simulations

    def test_failed_simulations_are_kept(self):
        theta, x = np.arange(8.0).reshape(4, 2), np.ones((4, 3))
        x[1] = np.nan
        banks = [od.bank_from_arrays(theta + k, x) for k in (0.0, 0.5)]
        bank = starting_bank(banks, od.Model(PRIOR, mixed, HERE), support_of(PRIOR))
        assert np.isnan(bank.more.x[:, 0]).tolist() == [False, True, False, False] * 2

    def test_draws_of_discrete_parameters_may_be_equal(self):
        model = od.Model(od.Prior(k=stats.randint(0, 4)), lambda rng, k: float(rng.poisson(k + 1)), 2.0)
        bank = od.bank_from_arrays(np.array([0, 1, 2, 3]), np.array([1.0, 2.0, 1.0, 4.0]), from_prior=True)
        assert starting_bank([bank, bank], model, support_of(model.prior)).reused == 8

    def test_none(self):
        with pytest.raises(ValueError, match="one earlier run at least, got none: leave it out"):
            od.infer(od.Model(PRIOR, mixed, HERE), budget=50, bank=[])


class TestRefused:
    model = od.Model(PRIOR, mixed, HERE)

    @pytest.mark.parametrize(
        ("theta", "x", "words"),
        [
            (np.zeros((5, 3)), np.zeros((5, 3)), r"shape \(5, 3\), the model has 2 \(a, b\)"),
            ({"a": np.zeros(5), "c": np.zeros(5)}, np.zeros((5, 3)), r"simulations of \['a', 'c'\], the model has"),
            (np.zeros((5, 2)), np.zeros((5, 4)), "4 summaries per simulation and the model compares 3"),
            (np.zeros((5, 2)), np.full((5, 3), np.nan), "no simulation that succeeded"),
        ],
    )
    def test_arrays_that_do_not_fit_the_model(self, theta, x, words):
        with pytest.raises(ValueError, match=words):
            od.infer(self.model, budget=50, bank=od.bank_from_arrays(theta, x))

    @pytest.mark.parametrize(
        ("theta", "x", "words"),
        [
            (np.zeros((5, 2)), np.zeros((4, 3)), "theta has 5 rows and x has 4"),
            ([[0.0, np.nan]], [[1.0]], "not finite in row 0"),
            ("many", np.zeros(3), "theta must be an array of numbers"),
            (np.zeros(3), [[1.0], [2.0, 3.0]], "x must be an array of numbers"),
            (np.zeros((0, 2)), np.zeros((0, 3)), "a row for each simulation"),
        ],
    )
    def test_arrays_that_are_no_simulations(self, theta, x, words):
        with pytest.raises(ValueError, match=words):
            od.bank_from_arrays(theta, x)

    def test_what_is_no_bank(self):
        with pytest.raises(ValueError, match=r"bank must be the Posterior of an earlier run or od.bank_from_arrays"):
            od.infer(self.model, budget=50, bank=np.zeros((5, 2)))

    def test_simulations_that_were_chosen_by_their_results(self):
        """Those that rejection accepts are near the data by choice: their law is not that of the simulator."""
        run = od.rejection(self.model, od.uniform(2.0), draws=100, seed=1, keep="summaries")
        for post in (run, od.rejection(self.model, od.uniform(2.0), draws=10, seed=1)):
            with pytest.raises(ValueError, match="only those that were accepted"):
                od.infer(self.model, budget=50, bank=post)

    def test_another_simulator(self, small):
        with pytest.raises(ValueError, match=r"another model: .*simulate"):
            od.infer(self.model, budget=50, bank=small)
        other = od.Model(od.Prior(a=stats.norm(), c=stats.norm()), lambda rng, a, c: np.zeros(3), HERE)
        with pytest.raises(ValueError, match=r"simulations of \['a', 'b'\], the model has \['a', 'c'\]"):
            od.infer(other, budget=50, bank=small)

    def test_simulations_of_a_learnt_summary_are_not_used_twice(self, quick):
        fitted = od.fit_summary(od.Model(PRIOR, mixed, HERE), budget=200, seed=1)
        post = od.infer(fitted, budget=300, seed=1, draws=100)
        with pytest.raises(ValueError, match=r"od\.infer\(fitted\.model, budget=..., bank=post\)"):
            od.infer(fitted, budget=300, seed=2, bank=post)
        again = od.infer(fitted.model, budget=50, seed=2, bank=post, draws=100)
        assert again.cost.reused == 300 and len(np.unique(again.simulations.theta[:, 0])) == 350

    def test_draws_that_cannot_be_from_the_prior(self):
        prior = od.Prior(a=stats.uniform(0, 1), b=stats.norm())
        theta = np.array([[0.5, 0.0], [1.5, 0.0]])
        bank = od.bank_from_arrays(theta, np.zeros((2, 3)), from_prior=True)
        with pytest.raises(ValueError, match="row 1 of the bank lies outside the prior"):
            od.infer(od.Model(prior, mixed, HERE), budget=50, bank=bank)


class TestFiles:
    def run(self, bank, path=None, **more):
        return od.infer(od.Model(PRIOR, one_by_one, THERE), budget=90, seed=3, draws=200, bank=bank, store=path, **more)

    @pytest.mark.parametrize("known", [pytest.param(True, marks=pytest.mark.slow), False])
    def test_workers_files_and_resuming_change_nothing(self, quick, small, known, tmp_path):
        bank = small if known else od.bank_from_arrays(*small.simulations)
        whole = self.run(bank)
        assert bytes_of(self.run(bank, workers=2)) == bytes_of(whole)
        file = tmp_path / "run.db"
        stopped = self.run(bank, file, max_seconds=1e-6)
        assert stopped.status.reason == "max_seconds"
        assert bytes_of(self.run(bank, file)) == bytes_of(whole)
        again = od.resume(file, od.Model(PRIOR, one_by_one, THERE), bank=bank)
        assert bytes_of(again) == bytes_of(whole)

    def test_a_file_goes_on_with_its_own_bank_alone(self, quick, small, tmp_path):
        file, model = tmp_path / "run.db", od.Model(PRIOR, one_by_one, THERE)
        self.run(small, file)
        theta, x = small.simulations
        for other in (None, od.bank_from_arrays(theta, x), od.bank_from_arrays(theta, x + 1e-9)):
            with pytest.raises(od.StoreError, match="bank"):
                self.run(other, file)
        with pytest.raises(od.StoreError, match=r"a bank of 200 simulations: give it again, as bank="):
            od.resume(file, model)

    @pytest.mark.parametrize("known", [pytest.param(True, marks=pytest.mark.slow), False])
    def test_what_is_loaded_has_all_simulations(self, quick, small, known, tmp_path):
        """With the model, proposals and weights included: other data get the same bytes, and so does another run."""
        bank, file = small if known else od.bank_from_arrays(*small.simulations), tmp_path / "run.db"
        post, model = self.run(bank, file), od.Model(PRIOR, one_by_one, THERE)
        without, loaded = od.load(file), od.load(file, model)
        for found in (without, loaded):
            assert all(np.array_equal(a, b) for a, b in zip(found.simulations, post.simulations, strict=True))
            assert found.cost.reused == 200
        points = support_of(PRIOR).unbounded(PRIOR.sample(np.random.default_rng(1), 20))
        assert np.array_equal(loaded.kept.log_weights(points), post.kept.log_weights(points))
        here = [one.observed(HERE, draws=100, seed=4) for one in (post, loaded)]
        assert bytes_of(here[0]) == bytes_of(here[1])
        longer = [od.infer(model, budget=40, seed=5, bank=one, draws=50) for one in (post, loaded)]
        assert bytes_of(longer[0]) == bytes_of(longer[1])
        with pytest.raises(ValueError, match=r"od.load\(file, model\)"):
            without.observed(HERE)

    def test_a_bank_is_packed_and_unpacked(self):
        discrete = np.array([False, False])
        mixtures = tuple(
            (10 * k, Mixture(np.full((k, 2), k), np.tile(np.eye(2), (k, 1, 1)), np.empty((k, 0)), discrete))
            for k in (1, 3)
        )
        support, theta = support_of(PRIOR), np.arange(8.0).reshape(4, 2)
        more = SimulatedData(theta, np.full((4, 3), 7.0))
        bank = Bank(PRIOR, support, theta, np.ones((4, 3)), mixtures, 5, 0.5, 2, (1, 4), reused=8, earlier=2, more=more)
        again = unpacked(packed(bank), PRIOR, support)
        assert packed(again).keys() == packed(bank).keys()
        assert all(np.array_equal(one, packed(bank)[name]) for name, one in packed(again).items())
        assert [number for number, _ in again.mixtures] == [10, 30]
        same = ("of_prior", "log_constant", "stages", "ends", "cost", "reused", "earlier", "focus")
        assert [getattr(again, name) for name in same] == [getattr(bank, name) for name in same]


class TestOtherData:
    @pytest.mark.parametrize("data", [THERE, [0.0, 0.0, 0.0], [3.0, 1.0, -1.0], HERE])
    @pytest.mark.slow
    def test_the_posterior_is_that_of_the_other_data(self, earlier, data):
        post = earlier.observed(data, draws=4000, seed=1)
        mean, log_sd = errors(post, data)
        assert np.all(np.abs(mean) < 4 / np.sqrt(post.effective))
        assert np.all(np.abs(log_sd) < 4 / np.sqrt(2 * post.effective) + 4 / np.sqrt(2 * 4000))
        assert post.cost.simulations == 0 and post.cost.reused == KEPT and post.shape == (1, 4000)
        assert np.array_equal(post.model.observed, data) and post.predict(5, seed=1).shape == (5, 3)
        assert any(f"None of the {KEPT:,} simulations was made for these data" in note for note in post.notes)
        assert post.alternatives and not any(note.startswith("warning") for note in post.notes)

    def test_data_far_from_all_simulations(self, earlier, quick):
        post = earlier.observed([60.0, 60.0, 60.0], draws=500, seed=1)
        warned = [note for note in post.notes if note.startswith("warning")]
        assert any("may not be able to produce these data" in note for note in warned)
        assert any("100 % of the posterior lies where there are hardly any" in note for note in warned)

    def test_a_posterior_of_other_data_is_a_bank_as_well(self, quick, small):
        other = small.observed(THERE, draws=100, seed=1)
        first, second = (post.observed(HERE, draws=100, seed=1) for post in (small, other))
        assert bytes_of(first) == bytes_of(second)
        post = od.infer(od.Model(PRIOR, one_by_one, THERE), budget=40, seed=1, bank=other, draws=100)
        assert post.cost.reused == 200

    def test_it_is_an_ordinary_posterior(self, quick, unrendered, earlier, tmp_path):
        post = earlier.observed(THERE, draws=200, seed=1)
        assert post.report(tmp_path / "page.html", predictive=0).exists()
        assert len(post.to_dataframe()) <= 200 and "None of the" in str(post.summary())

    @pytest.mark.parametrize(
        ("data", "more", "words"),
        [([1.0, 2.0], {}, "another form"), (HERE, {"draws": 0}, "draws must be"), ([1.0, np.nan, 0.0], {}, "finite")],
    )
    def test_data_that_do_not_fit(self, earlier, data, more, words):
        with pytest.raises(ValueError, match=words):
            earlier.observed(data, **more)

    def test_other_runs_have_no_such_simulations(self):
        run = od.rejection(od.Model(PRIOR, mixed, HERE), od.uniform(2.0), draws=10, seed=1)
        with pytest.raises(ValueError, match=r"every simulation of a run of od\.infer"):
            run.observed(THERE)


class TestWeights:
    """What an earlier run was aimed at is not near the posterior of other data."""

    @staticmethod
    def normal(mean):
        return Mixture(np.full((1, 1), mean), np.full((1, 1, 1), 0.5), np.empty((1, 0)), np.array([False]))

    def bank(self, **more):
        prior = od.Prior(theta=stats.norm())
        mixtures = ((100, self.normal(2.0)), (50, self.normal(-1.0)))
        return Bank(prior, support_of(prior), np.zeros((1, 1)), np.zeros((1, 1)), mixtures, 300, **more)

    points = np.array([[-3.0], [-1.0], [0.0], [2.0], [3.0]])

    def densities(self):
        at = self.points[:, 0]
        return 300 * stats.norm.pdf(at), 100 * stats.norm.pdf(at, 2, 0.5), 50 * stats.norm.pdf(at, -1, 0.5)

    @pytest.mark.parametrize("earlier", [0, 1])
    def test_proposals_of_an_earlier_run_are_not_aimed(self, earlier):
        bank, (prior, first, second) = self.bank(earlier=earlier), self.densities()
        aimed = second if earlier else first + second
        found = bank.aimed(self.points, bank.log_weights(self.points))
        assert np.allclose(found, aimed / (prior + first + second), atol=1e-12)

    def test_without_an_aim_all_count(self):
        bank = self.bank(earlier=2)
        assert bank.aimed(self.points, bank.log_weights(self.points)).tolist() == [1.0] * 5

    def test_a_focus_counts_as_many_draws_as_there_are(self):
        bank, every = self.bank(earlier=2, focus=self.normal(0.5)), sum(self.densities()) / 450
        there = stats.norm.pdf(self.points[:, 0], 0.5, 0.5)
        found = bank.aimed(self.points, bank.log_weights(self.points))
        assert np.allclose(found, there / (there + every), atol=1e-12)

    @pytest.mark.parametrize("failed", [0, 3])
    def test_failures_count_if_the_bank_has_them(self, failed):
        """Without a single failed one they may have been left out, and would say that nothing ever fails."""
        theta = np.zeros((4, 1))
        more = UnweightedPairs(np.ones((6, 1)), np.ones((6, 1)), np.ones((failed, 1)))
        pairs = SimulatedPairs(None, theta, theta, theta[:2], None, None, None, None, None, None, more)
        good, bad = pairs.outcomes()
        assert (len(good), len(bad)) == ((10, 5) if failed else (4, 2))

    def test_rows_outside_the_prior_are_left_out(self):
        prior = od.Prior(a=stats.uniform(0, 1))
        model = od.Model(prior, lambda rng, a: a, 0.5)
        given = od.bank_from_arrays(np.array([0.2, 0.7, 1.5]), [[1.0], [np.inf], [2.0]])
        bank = starting_bank(given, model, support_of(prior))
        assert bank.more.theta.tolist() == [[0.2], [0.7]] and np.isnan(bank.more.x).tolist() == [[False], [True]]
