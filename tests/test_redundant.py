"""Summaries that follow from others: they say nothing, and must not be counted again."""

import math

import numpy as np
import pytest
from scipy import stats

import onedraw as od
from onedraw.surrogate.likelihood import LEAST_LOG_SCALE, Terms, fit_factor, predictors
from onedraw.surrogate.redundant import redundant
from onedraw.surrogate.refits import fit_factors, parts_of
from onedraw.surrogate.transforms import described


class TestFound:
    def test_functions_of_a_sample(self):
        """A mean of squares follows from mean and standard deviation, and a curve of their ratio from no product."""
        y = np.random.default_rng(1).normal(1.0, 1.5, size=(300, 10))
        mean, sd = y.mean(axis=1), y.std(axis=1)
        squares, curve = np.square(y).mean(axis=1), np.tanh(mean / sd)
        rows = np.column_stack([mean, sd, sd**2, 7 - 2 * mean, squares, mean * sd, curve])
        assert redundant(rows).tolist() == [False, False, True, True, True, True, False]

    def test_parts_and_their_total(self):
        """The last part follows from the others, wherever the total is."""
        parts = np.random.default_rng(2).multinomial(40, [0.2, 0.3, 0.5], size=200).astype(float)
        assert redundant(parts).tolist() == [False, False, True]
        counts = np.random.default_rng(3).poisson(5.0, size=(200, 3)).astype(float)
        assert redundant(np.column_stack([counts.sum(axis=1), counts])).tolist() == [False, False, False, True]

    def test_noise_of_a_thousandth_is_enough(self):
        rng = np.random.default_rng(4)
        rows = rng.normal(size=(300, 2))
        assert not redundant(np.column_stack([rows, rows.sum(axis=1) + 1e-3 * rng.normal(size=300)])).any()

    def test_extreme_values_do_not_make_summaries_alike(self):
        """The mean of a Cauchy sample is nearly its largest value over its size, where that is extreme."""
        y = np.random.default_rng(5).standard_cauchy((500, 10)) ** 3
        rows = np.column_stack([y.mean(axis=1), y.max(axis=1), y.min(axis=1)])
        assert not redundant(rows).any()

    def test_few_simulations_say_nothing(self):
        """Fewer rows than columns are always linear in each other."""
        assert not redundant(np.random.default_rng(6).normal(size=(8, 12))).any()
        assert not redundant(np.random.default_rng(6).normal(size=(30, 12))).any()

    def test_many_summaries(self):
        rows = np.random.default_rng(7).normal(size=(400, 40))
        rows[:, 30] = rows[:, :5].sum(axis=1)
        assert np.flatnonzero(redundant(rows)).tolist() == [30]

    def test_summaries_that_hardly_vary_are_left_out_first(self):
        rows = np.column_stack([np.full(100, 3.0), np.arange(100.0), np.arange(100.0) ** 2])
        kept, whole, _ = described(rows, rows[:1])
        assert kept.tolist() == [1] and whole.tolist() == [True]


def test_a_summary_that_follows_from_others_can_be_fitted():
    """As a cube of another does, which is not looked for: its scale has a least value."""
    rng = np.random.default_rng(8)
    x = rng.normal(size=(200, 1))
    columns, sets = np.column_stack([np.ones(200), x]), {"0": np.array([0]), "1": np.array([0, 1])}
    rows = np.column_stack([x[:, 0] + rng.normal(size=200), np.zeros(200)])
    rows[:, 1] = rows[:, 0]
    for scale in ("0", "1"):
        terms = Terms("1", "0", scale, ridge=0.0)
        fit = fit_factor(predictors(columns, np.ones(200), sets), rows, 1, terms)
        (again,) = fit_factors(parts_of(columns, np.ones(200), np.ones((1, 200), dtype=bool), sets), rows, 1, terms)
        for factor in (fit.factor, again):
            assert factor.low >= LEAST_LOG_SCALE - 1e-9 and factor.earlier[0, 0] == pytest.approx(1.0, abs=1e-6)
        assert np.isfinite(fit.scores).all()


@pytest.mark.usefixtures("brief")
def test_functions_of_summaries_change_no_posterior():
    """Against quadrature; with all of them counted, standard deviations were .6 of the exact ones."""

    @od.batched
    def simulate(rng, mu, sigma):
        y = mu[:, None] + sigma[:, None] * rng.normal(size=(len(mu), 10))
        mean, sd = y.mean(axis=1), y.std(axis=1)
        return np.column_stack([mean, sd, sd**2, mean**2, 10 * mean, np.log(sd), mean * sd, np.square(y).mean(axis=1)])

    mean, sd = 1.2, 1.4
    observed = np.array([mean, sd, sd**2, mean**2, 10 * mean, math.log(sd), mean * sd, sd**2 + mean**2])
    mu, sigma = (one.ravel() for one in np.meshgrid(np.linspace(-4, 6, 401), np.geomspace(0.2, 12, 401), indexing="ij"))
    log_posterior = (
        stats.norm.logpdf(mu, 0, 3) + stats.lognorm.logpdf(sigma, 0.7) + np.log(sigma)
        - 10 * np.log(sigma) - 0.5 * 10 * (sd**2 + (mean - mu) ** 2) / sigma**2
    )  # fmt: skip
    weights = np.exp(log_posterior - log_posterior.max())
    weights /= weights.sum()
    model = od.Model(od.Prior(mu=stats.norm(0, 3), sigma=stats.lognorm(0.7)), simulate, observed)
    found = od.infer(model, budget=1_000, seed=1).summary()
    for name, values in (("mu", mu), ("sigma", sigma)):
        exact = weights @ values
        spread = math.sqrt(weights @ (values - exact) ** 2)
        assert abs(found[name].mean - exact) < 0.2 * spread and abs(math.log(found[name].sd / spread)) < 0.15
