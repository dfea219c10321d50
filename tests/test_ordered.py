"""Summaries that are always in order, which are taken in steps if that predicts them better."""

import itertools

import numpy as np
import pytest
from scipy import stats

import onedraw as od
from onedraw.model.coordinates import Support
from onedraw.surrogate import ordered
from onedraw.surrogate.choice import choose_form
from onedraw.surrogate.ordered import Steps, ways
from onedraw.surrogate.surrogate import fit_surrogate
from onedraw.surrogate.training import training_of
from tests.test_compare import learnt_from

ANYWHERE = Support(np.full(1, -np.inf), np.full(1, np.inf))


def waiting_times(n, size, seed=1):
    """Log means of exponential waiting times, and the times in order."""
    rng = np.random.default_rng(seed)
    theta = 0.7 * rng.normal(size=(n, 1))
    return theta, np.sort(np.exp(theta) * rng.exponential(size=(n, size)), axis=1)


def totals(n, size, seed=2):
    """Log means of counts, and their running totals."""
    rng = np.random.default_rng(seed)
    theta = 0.5 * rng.normal(size=(n, 1))
    return theta, rng.poisson(2.0 * np.exp(theta), size=(n, size)).cumsum(axis=1).astype(float)


def surrogate_of(theta, rows):
    """The surrogate of simulations that all count, the first one as the data."""
    training = training_of(theta, rows, np.ones(len(rows)))
    form = choose_form(ANYWHERE, training, rows[0], thorough=True)
    assert form is not None
    return fit_surrogate(form, training, None)


class TestWays:
    def test_steps_are_never_negative_and_keep_volumes(self):
        """Also of summaries that fall, and beside others that are in no order."""
        rng = np.random.default_rng(3)
        rows = np.concatenate(
            [np.sort(rng.normal(size=(50, 5)), axis=1), -rng.gamma(1.0, size=(50, 4)).cumsum(axis=1)], axis=1
        )
        found = ways(rows, rows[0])
        assert len(found) == 2
        for steps in found:
            inside = np.array(steps.order) != np.array(steps.other)
            assert inside.sum() == 7 and (steps(rows)[:, inside] >= 0).all()
            assert np.array_equal(np.sort(steps.order), np.arange(9))
            assert abs(np.linalg.det(steps(np.eye(9)))) == pytest.approx(1.0)

    def test_two_summaries_in_order_are_no_run(self):
        _, rows = waiting_times(100, 3)
        assert ways(rows, rows[0]) and not ways(rows[:, :2], rows[0, :2])

    def test_data_or_a_simulation_out_of_order(self):
        _, rows = waiting_times(100, 3)
        assert ways(rows, rows[0]) and not ways(rows, rows[0, ::-1])
        one = rows.copy()
        one[7] = one[7, ::-1]
        assert not ways(one, rows[0])

    def test_values_that_are_far_apart_are_in_no_order(self):
        rng = np.random.default_rng(4)
        rows = np.arange(5.0) * 10.0 + rng.normal(size=(200, 5))
        assert (np.diff(rows, axis=1) > 0).all() and not ways(rows, rows[0])

    def test_no_steps(self):
        assert Steps()(np.array([[3, 1]])).tolist() == [[3, 1]]


class TestLearnt:
    def test_sorted_waiting_times_are_taken_in_steps(self):
        surrogate = surrogate_of(*waiting_times(600, 6))
        assert surrogate.form.transform.steps.order == (0, 1, 2, 3, 4, 5)
        assert {warp.kind for warp in surrogate.form.transform.warps} == {"log"}

    def test_summaries_in_no_order_are_not(self):
        theta = np.random.default_rng(5).normal(size=(300, 1))
        form = surrogate_of(theta, theta + np.random.default_rng(6).normal(size=(300, 4))).form
        assert form.transform.values is None and form.transform.steps == Steps()

    def test_densities_of_values_in_order_integrate_to_one(self, monkeypatch):
        monkeypatch.setattr(ordered, "FEWEST", 2)
        surrogate = surrogate_of(*waiting_times(600, 2))
        assert surrogate.form.transform.values is not None
        # Logs of both steps: what a unit of these is of values is their product.
        at = np.linspace(-14.0, 5.0, 77)
        first, step = (one.ravel() for one in np.meshgrid(np.exp(at), np.exp(at)))
        rows = np.column_stack([first, first + step])
        density = np.exp([surrogate.log_density(np.zeros((1, 1)), one)[0] for one in rows]) * first * step
        assert density.sum() * (at[1] - at[0]) ** 2 == pytest.approx(1.0, abs=0.02)

    def test_probabilities_of_running_totals_sum_to_one(self):
        theta, rows = totals(600, 3)
        surrogate = surrogate_of(theta, rows)
        assert surrogate.form.transform.values is not None and surrogate.form.transform.whole.all()
        counts = np.array(list(itertools.product(range(16), repeat=3)))
        found = np.exp([surrogate.log_density(np.zeros((1, 1)), one)[0] for one in counts.cumsum(axis=1).astype(float)])
        assert found.sum() == pytest.approx(1.0, abs=0.02)
        assert np.abs(found - stats.poisson(2.0).pmf(counts).prod(axis=1)).sum() < 0.2

    def test_densities_follow_the_exact_ones(self):
        """Of sorted normals, at other simulations: each value depends on the one before it."""
        rng = np.random.default_rng(9)
        theta = rng.normal(size=(1100, 1))
        rows = np.sort(theta + rng.normal(size=(1100, 6)), axis=1)
        surrogate = surrogate_of(theta[:1000], rows[:1000])
        assert surrogate.form.transform.values is not None
        pairs = zip(theta[1000:], rows[1000:], strict=True)
        found = [surrogate.log_density(one[None], row)[0] for one, row in pairs]
        exact = np.log(720.0) + stats.norm.logpdf(rows[1000:] - theta[1000:]).sum(axis=1)
        assert abs(np.mean(found - exact)) < 0.4

    def test_densities_of_steps_can_be_compared_with_those_of_values(self):
        theta, rows = waiting_times(400, 3)
        steps, _ = learnt_from(theta, rows, rows[0])
        values, _ = learnt_from(theta, np.random.default_rng(8).lognormal(size=(400, 3)), rows[0])
        of_steps, of_values = (one.surrogate.form.transform for one in (steps, values))
        assert of_steps.steps != Steps() and of_values.steps == Steps()
        assert of_steps.measures() == of_values.measures()


def test_a_posterior_of_sorted_normals_is_that_of_their_mean_and_deviation():
    """The errors were .34 and .20 posterior standard deviations, and -.26 and -.25 of log standard deviations."""

    def simulate(rng, mu, sigma):
        return np.sort(mu[:, None] + sigma[:, None] * rng.normal(size=(len(mu), 12)), axis=1)

    prior = od.Prior(mu=stats.norm(0.0, 5.0), sigma=stats.uniform(0.1, 5.9))
    data = simulate(np.random.default_rng(100), np.array([1.0]), np.array([1.5]))[0]
    mu, sigma = (one.ravel() for one in np.meshgrid(np.linspace(-5.0, 7.0, 400), np.linspace(0.1, 6.0, 400)))
    log_density = stats.norm.logpdf(mu, 0.0, 5.0) - 12 * np.log(sigma)
    log_density -= 6 * (data.var() + np.square(data.mean() - mu)) / sigma**2
    weights = np.exp(log_density - log_density.max())
    post = od.infer(od.Model(prior, od.batched(simulate), data), budget=1000, seed=0)
    for name, values in (("mu", mu), ("sigma", sigma)):
        mean = np.average(values, weights=weights)
        sd = np.sqrt(np.average(np.square(values - mean), weights=weights))
        row = post.summary().rows[name]
        assert abs(row.mean - mean) < 0.18 * sd and abs(np.log(row.sd / sd)) < 0.24
