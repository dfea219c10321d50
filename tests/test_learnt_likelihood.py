"""The learnt likelihood as the estimate of `od.infer`: against exact posteriors, from small budgets on."""

import numpy as np
import pytest
from scipy import stats

import onedraw as od
from onedraw.model.coordinates import support_of
from onedraw.proposals.mixture import Mixture
from onedraw.results.learnt_likelihood import share_unseen
from onedraw.run.bank import Bank

NORMAL = od.Prior(theta=stats.norm(0, 1))


@od.batched
def noisy(rng, theta):
    return theta + rng.standard_normal(len(theta))


@pytest.mark.parametrize("budget", [300, 1000])
def test_the_error_of_the_mean_is_stated(budget):
    """A normal mean: the exact posterior is N(1, 1/2)."""
    posts = [od.infer(od.Model(NORMAL, noisy, 2.0), budget=budget, seed=seed, draws=1000) for seed in range(5)]
    assert all(post.cost.simulations == budget for post in posts)
    rows = [post.summary()["theta"] for post in posts]
    z = np.array([(row.mean - 1.0) / row.mcse for row in rows])
    # Five squares of normals: 15.1 is passed by one set in a hundred.
    assert np.square(z).sum() < 15.1
    spread = np.array([np.log(row.sd / np.sqrt(0.5)) for row in rows])
    assert abs(spread.mean()) < 4 * np.sqrt(0.5 / (budget / 4)) / np.sqrt(5) + 0.05


def test_fifty_simulations_are_some_use():
    posts = [od.infer(od.Model(NORMAL, noisy, 2.0), budget=50, seed=seed, draws=1000) for seed in range(8)]
    rows = [post.summary()["theta"] for post in posts]
    # The prior's own mean is off by 1.4 posterior standard deviations, and its spread by a factor of 1.4.
    assert np.sqrt(np.mean([(row.mean - 1.0) ** 2 for row in rows])) < 0.5 * np.sqrt(0.5)
    assert np.mean([row.sd for row in rows]) == pytest.approx(np.sqrt(0.5), rel=0.25)


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


def test_many_outputs_of_which_summaries_are_learnt():
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
    draws = np.column_stack([values[0] for values in post.draws.values()])
    # Coefficients of 120 outputs are known from some 1,200 simulations: a third of a posterior deviation is lost.
    assert np.sqrt(np.mean(np.square((draws.mean(axis=0) - mean) / sd))) < 1.0
    assert np.all(np.abs(np.log(draws.std(axis=0) / sd)) < 0.25)


def test_a_distance_of_the_users_own_is_kept():
    post = od.infer(od.Model(NORMAL, noisy, 2.0, distance=lambda x, y: abs(x - y)), budget=300, seed=1, draws=100)
    assert "learnt" not in post.method and post.distances is not None


def bank_with(of_prior, aimed):
    support = support_of(NORMAL)
    mixture = Mixture(np.full((1, 1), 2.0), np.full((1, 1, 1), 0.5), np.empty((1, 0)), np.array([False]))
    return Bank(NORMAL, support, np.zeros((1, 1)), np.zeros((1, 1)), ((aimed, mixture),), of_prior)


def test_which_proposals_are_aimed():
    """With 300 from N(0, 1) and 100 from N(2, 1/4), the share of the second at theta is that of their densities."""
    points = np.array([[-3.0], [0.0], [1.0], [2.0], [3.0]])
    first, second = 300 * stats.norm.pdf(points[:, 0]), 100 * stats.norm.pdf(points[:, 0], 2.0, 0.5)
    assert np.allclose(bank_with(300, 100).aimed(points), second / (first + second))
    empty = bank_with(300, 100)._replace(mixtures=())
    assert np.all(empty.aimed(points) == 1.0)


def test_draws_of_all_proposals():
    draws = bank_with(300, 100).sample(np.random.default_rng(1), 40_000)[:, 0]
    mean, square = 0.25 * 2.0, 0.75 + 0.25 * 4.25
    assert abs(draws.mean() - mean) < 4 * np.sqrt(square - mean**2) / 200
    assert abs(np.square(draws).mean() - square) < 4 * np.square(draws).std() / 200


def test_posterior_mass_without_simulations_is_seen():
    rng = np.random.default_rng(1)
    theta, draws = rng.standard_normal((2000, 3)), rng.standard_normal((500, 3))
    assert share_unseen(theta, draws) < 0.01
    draws[:100] += 20.0
    assert share_unseen(theta, draws) == pytest.approx(0.2, abs=0.02)
