"""The study's exact values against independent quadrature, closed forms and brute force."""

import itertools
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import integrate, special, stats

from onedraw.paper.study import efficiency
from onedraw.paper.study import quadrature as exact
from onedraw.paper.study.settings import (
    FIGURES,
    PSEUDO_SAMPLES,
    RATE_PER_COST,
    SERIES,
    FigurePoint,
    Toy,
    points,
    series,
    step_cost,
)

BASE = Toy()


# Settings


def test_every_line_has_seven_points_and_the_labels_of_the_study():
    labels = {figure: [line.label for line in series([figure])] for figure in FIGURES}
    assert labels == {
        "1L": ["eps=0.25", "eps=0.125", "eps=0.0625", "eps=0.03125", "eps=0.015625"],
        "1R": ["discount=1", "discount=2", "discount=4", "discount=8", "discount=16"],
        "2L": ["y_obs=2", "y_obs=4", "y_obs=6", "y_obs=8"],
        "2R": ["sigma_y=0.01", "sigma_y=0.05", "sigma_y=0.1", "sigma_y=0.5", "sigma_y=1", "sigma_y=2"],
    }
    assert all([point.pseudo_samples for point in line.points] == [1, 2, 4, 8, 16, 32, 64] for line in SERIES)
    assert len(set(points())) == len(points()) == 140


def test_grey_levels_follow_the_captions():
    shade = {(line.figure, line.label): line.grey for line in SERIES}
    black = [key for key, grey in shade.items() if grey == 0]
    assert black == [("1L", "eps=0.25"), ("1R", "discount=1"), ("2L", "y_obs=8"), ("2R", "sigma_y=0.01")]
    lightest = [key for key, grey in shade.items() if grey == max(shade.values())]
    assert lightest == [("1L", "eps=0.015625"), ("1R", "discount=16"), ("2L", "y_obs=2"), ("2R", "sigma_y=2")]


def test_required_rates_are_those_of_the_text():
    required = {(p.figure, p.series, p.pseudo_samples): p.acceptance_rate for p in points()}
    assert required["1R", "discount=1", 64] == pytest.approx(0.256)
    assert required["1R", "discount=16", 64] == pytest.approx(0.01975)
    assert required["2L", "y_obs=4", 1] == RATE_PER_COST
    assert required["1L", "eps=0.25", 64] is None


# Uniform kernel


def test_values_stated_in_the_theory():
    assert exact.acceptance_rate(BASE, 0.25, 1) == pytest.approx(0.052157, abs=5e-7)
    assert exact.acceptance_rate(BASE, 0.25, 64) / 64 == pytest.approx(0.0058751, abs=5e-8)
    assert exact.tolerance(0.004, BASE, 1) == pytest.approx(0.01927, abs=5e-6)
    assert exact.tolerance(0.004, Toy(y_obs=8.0), 1) == pytest.approx(4.2494, abs=5e-5)
    # The two eps printed in the paper belong to other rates.
    assert exact.acceptance_rate(BASE, 0.08, 1) == pytest.approx(0.0166, abs=5e-5)
    assert exact.tolerance(0.4, Toy(y_obs=8.0), 1) == pytest.approx(7.64, abs=5e-3)


def rate_by_adaptive_quadrature(toy: Toy, eps: float, pseudo_samples: int) -> float:
    """The double sum of docs/study.md, with every p(j) from QUADPACK: nothing shared with the package."""
    kinks = sorted(
        {toy.y_obs + sign * eps + k * toy.sigma_y for sign in (-1, 1) for k in (-9, -6, -3, -1, 0, 1, 3, 6, 9)}
    )
    low, high = min(-9.0, kinks[0] - 4 * toy.sigma_y), max(9.0, kinks[-1] + 4 * toy.sigma_y)
    edges = [low, *[kink for kink in kinks if low < kink < high], high]

    def integrand(theta: float, hits: int) -> float:
        distance = abs(toy.y_obs - theta)
        near, far = (distance - eps) / toy.sigma_y, (distance + eps) / toy.sigma_y
        tau = special.ndtr(-near) - special.ndtr(-far)
        miss = special.ndtr(near) + special.ndtr(-far)
        return (
            special.binom(pseudo_samples, hits)
            * tau**hits
            * miss ** (pseudo_samples - hits)
            * math.exp(-0.5 * theta**2)
            / math.sqrt(2 * math.pi)
        )

    law = [
        math.fsum(
            integrate.quad(integrand, a, b, args=(hits,), epsabs=0, epsrel=1e-11, limit=200)[0]
            for a, b in itertools.pairwise(edges)
            if integrand(0.5 * (a + b), hits) > 1e-60
        )
        for hits in range(1, pseudo_samples + 1)
    ]
    size = sum(hits * p for hits, p in enumerate(law, start=1))
    return sum(
        hits * p / size * p_new * min(1.0, new / hits)
        for hits, p in enumerate(law, start=1)
        for new, p_new in enumerate(law, start=1)
    )


@pytest.mark.parametrize(
    ("toy", "eps", "pseudo_samples"),
    [
        (BASE, 0.25, 8),
        (BASE, 0.25, 64),
        (BASE, 0.0015550757, 8),
        (Toy(y_obs=8.0), 4.2494, 4),
        (Toy(y_obs=8.0), 0.01, 3),
        (Toy(sigma_y=0.01), 0.001, 4),
        (Toy(sigma_y=0.01), 0.31, 8),
        (Toy(sigma_y=2.0), 0.0024, 4),
    ],
)
def test_acceptance_rate_against_adaptive_quadrature(toy, eps, pseudo_samples):
    expected = rate_by_adaptive_quadrature(toy, eps, pseudo_samples)
    assert_allclose(exact.acceptance_rate(toy, eps, pseudo_samples), expected, rtol=1e-10)


def test_no_point_of_the_study_moves_when_the_order_is_doubled():
    values = {point: exact.exact_value(point) for point in points()}
    assert len(values) == 140
    for point, value in values.items():
        eps = value if point.eps is None else point.eps
        rate = exact.uniform_acceptance_rate(point.toy, eps, point.pseudo_samples)
        finer = exact.uniform_acceptance_rate(point.toy, eps, point.pseudo_samples, order=2 * exact.ORDER)
        assert_allclose(rate, finer, rtol=1e-12)
        wanted = point.acceptance_rate
        assert_allclose(rate, value * point.pseudo_samples if wanted is None else wanted, rtol=1e-12)
        law = exact.hit_count_law(point.toy, eps, point.pseudo_samples)
        mean_hits = law @ np.arange(point.pseudo_samples + 1)
        assert_allclose(mean_hits, point.pseudo_samples * exact.kernel_mean(point.toy, eps), rtol=1e-12)


def test_rate_lies_between_its_bounds_and_rises_with_eps():
    for kernel, counts in (("uniform", PSEUDO_SAMPLES), ("gaussian", (2, 8))):
        single = exact.acceptance_rate(BASE, 0.1, 1, kernel)
        rates = [exact.acceptance_rate(BASE, 0.1, count, kernel) for count in counts]
        assert all(single <= rate <= count * single for rate, count in zip(rates, counts, strict=True))
        assert rates == sorted(rates)
    rising = [exact.acceptance_rate(BASE, eps, 16) for eps in np.geomspace(1e-4, 50, 30)]
    assert rising == sorted(rising) and rising[-1] > 0.999


def test_hit_probability_keeps_its_relative_accuracy():
    # Narrow windows: the first terms of the series in eps. Far tails: Mills' ratio by its continued fraction.
    for distance, width in itertools.product([0.0, 3.0, 20.0, 30.0], [1e-12, 1e-6, 1e-4]):
        series_value = 2 * width * stats.norm.pdf(distance) * (1 + (distance**2 - 1) * width**2 / 6)
        assert_allclose(exact.window_probability(distance, 1.0, width), series_value, rtol=1e-10)
    for narrow, wide in [(0.4999999, 0.5000001), (0.49999999, 0.50000001)]:
        low, high = exact.window_probability(9.0, 1.0, [narrow, wide])
        slope = stats.norm.pdf(9.0 - 0.5) + stats.norm.pdf(9.0 + 0.5)
        assert_allclose(high - low, slope * (wide - narrow), rtol=1e-5)
    inside, outside = exact.window_probability(0.3, 0.7, 1.1), exact.outside_probability(0.3, 0.7, 1.1)
    assert_allclose(inside + outside, 1.0, rtol=1e-15)
    assert exact.miss_probability(Toy(sigma_y=0.01), 0.3, 2.0) == pytest.approx(2 * stats.norm.sf(30), rel=1e-12)


def test_the_observation_s_sign_does_not_matter():
    left, right = Toy(y_obs=-3.0, sigma_y=0.2), Toy(y_obs=3.0, sigma_y=0.2)
    assert_allclose(exact.acceptance_rate(left, 0.1, 8), exact.acceptance_rate(right, 0.1, 8), rtol=1e-13)
    assert_allclose(exact.posterior_moments(left, 0.1).mean, -exact.posterior_moments(right, 0.1).mean)
    assert_allclose(exact.posterior_cdf(left, 0.1, -2.9), 1 - exact.posterior_cdf(right, 0.1, 2.9), rtol=1e-10)


# Gaussian kernel


def test_gaussian_lattice_reproduces_the_quadrature_at_one_pseudo_sample():
    for toy, eps in [(BASE, 0.25), (Toy(y_obs=8.0), 1.15), (Toy(sigma_y=0.05), 0.02)]:
        coarse, middle, fine = (
            exact._expected_minimum(toy, eps, 1, lattice, exact.SPACING) for lattice in (64, 128, 256)
        )
        limit = exact.acceptance_rate(toy, eps, 1, "gaussian") * exact.kernel_mean(toy, eps, "gaussian")
        assert_allclose(fine, limit, rtol=1e-5)
        assert abs(fine - limit) < abs(middle - limit) / 3 < abs(coarse - limit) / 9


@pytest.mark.parametrize(("toy", "eps", "pseudo_samples"), [(BASE, 0.25, 24), (BASE, 3.0, 5), (Toy(6.0), 0.02, 33)])
def test_law_of_the_sum_against_plain_convolution(toy, eps, pseudo_samples):
    """Damping, dropped values and shortened sums of the Fourier route must not show beside np.convolve."""
    lattice = 16
    theta, weights = exact._gaussian_nodes(toy, eps, 0.5)
    levels = np.linspace(0.0, 1.0, lattice + 1)
    means = np.diff(exact._mean_capped(toy, eps, theta, levels), axis=1) * lattice
    whole = np.zeros(pseudo_samples * lattice + 1)
    for weight, masses in zip(weights, -np.diff(means, axis=1, prepend=1.0, append=0.0), strict=True):
        law = np.ones(1)
        for _ in range(pseudo_samples):
            law = np.convolve(law, masses)
        whole += weight * law
    expected = whole[::-1].cumsum()[::-1][1:]
    longest = exact._longest_sum(toy, eps, pseudo_samples)
    found = exact._sum_survival(toy, eps, pseudo_samples, longest, longest * lattice, 0.5)
    assert_allclose(found, expected[: found.size], atol=2e-12)
    assert np.all(expected[found.size :] < 1e-15)
    zoomed = exact._sum_survival(toy, eps, pseudo_samples, 0.5, lattice // 2, 0.5)
    assert_allclose(zoomed, expected[: lattice // 2], atol=2e-12)


def test_gaussian_single_rate_and_mean_against_adaptive_quadrature():
    toy, eps = Toy(y_obs=4.0), 0.6

    def survival(t: float) -> float:
        radius = eps * math.sqrt(-2 * math.log(t))
        return stats.norm.cdf(4 + radius, scale=math.sqrt(2)) - stats.norm.cdf(4 - radius, scale=math.sqrt(2))

    mean = integrate.quad(survival, 0, 1, epsabs=0, epsrel=1e-10, limit=200)[0]
    square = integrate.quad(lambda t: survival(t) ** 2, 0, 1, epsabs=0, epsrel=1e-10, limit=200)[0]
    assert_allclose(exact.kernel_mean(toy, eps, "gaussian"), mean, rtol=1e-8)
    assert_allclose(exact.acceptance_rate(toy, eps, 1, "gaussian"), square / mean, rtol=1e-8)


@pytest.mark.parametrize(("toy", "eps"), [(BASE, 0.25), (Toy(y_obs=6.0), 0.74)])
def test_gaussian_rate_of_two_pseudo_samples_by_brute_force(toy, eps):
    """P(K1 + K2 > s) by integrating over theta and the first draw, the second in closed form."""
    theta = np.linspace(-8, 10, 91)
    prior, away = stats.norm.pdf(theta) * 0.2, (toy.y_obs - theta)[:, None]
    nodes, weights = np.polynomial.legendre.leggauss(40)

    def reach(kernel_value):
        return eps * np.sqrt(-2 * np.log(kernel_value))

    def window(radius):
        return special.ndtr((radius - away) / toy.sigma_y) - special.ndtr((-radius - away) / toy.sigma_y)

    def survival(s: float) -> float:
        # Start at the distance where the integrand has its root (K1 = s, or K1 = s - 1 beyond 1), squared out.
        start, sign = (reach(s), 1) if s < 1 else (reach(s - 1), -1)
        longest = math.sqrt(20.0 if s < 1 else start)
        v = 0.5 * longest * (nodes + 1)
        distance, weight = start + sign * v**2, longest * weights * v
        second = window(reach(np.minimum(s - np.exp(-0.5 * (distance / eps) ** 2), 1.0)))
        first = sum(stats.norm.pdf(side * distance, away, toy.sigma_y) for side in (-1, 1))
        certain = window(np.array([start]))[:, 0] if s < 1 else 0.0
        return prior @ ((first * second) @ weight + certain)

    # s = 2 exp(-u^2/2) opens up the small values of s; at s = 1, where one draw alone reaches s, G has a root.
    root = math.sqrt(2 * math.log(2))
    square = 0.0
    for low, high in ((0.0, root), (root, 2.5), (2.5, 4.5), (4.5, 7.0)):
        for node, weight in zip(nodes, weights, strict=True):
            u = 0.5 * (low + high + (high - low) * node)
            s = 2 * math.exp(-0.5 * u**2)
            square += 0.5 * (high - low) * weight * u * s * survival(s) ** 2
    brute = square / 2 / exact.kernel_mean(toy, eps, "gaussian")
    found = exact.gaussian_acceptance_rate(toy, eps, 2)
    assert_allclose(found.value, brute, rtol=1e-5)
    assert found.error < 1e-5 * found.value


def test_gaussian_rate_against_simulation():
    """E[min(T, T')]/E[T] from independent pairs; 4 standard errors, a false alarm in 16,000."""
    rng = np.random.default_rng(20)
    pairs, pseudo_samples, eps = 40_000, 16, 0.25
    theta = rng.standard_normal((2, pairs, 1))
    draws = theta + rng.standard_normal((2, pairs, pseudo_samples))
    first, second = np.exp(-0.5 * ((draws - 2) / eps) ** 2).mean(axis=2)
    smaller = np.minimum(first, second) / exact.kernel_mean(BASE, eps, "gaussian")
    standard_error = smaller.std() / math.sqrt(pairs)
    assert standard_error < 0.01 * smaller.mean()
    assert abs(smaller.mean() - exact.acceptance_rate(BASE, eps, pseudo_samples, "gaussian")) < 4 * standard_error


def test_gaussian_error_statement_covers_the_change_to_a_finer_lattice():
    for toy, eps, pseudo_samples in [(BASE, 0.25, 4), (Toy(y_obs=8.0), 1.1, 64)]:
        coarse = exact.gaussian_acceptance_rate(toy, eps, pseudo_samples, lattice=128)
        fine = exact.gaussian_acceptance_rate(toy, eps, pseudo_samples)
        assert abs(coarse.value - fine.value) < coarse.error + fine.error
        assert fine.error < coarse.error / 4


def test_gaussian_tolerance_gives_the_rate_asked_for():
    eps = exact.tolerance(0.0055, BASE, 4, "gaussian")
    assert_allclose(exact.acceptance_rate(BASE, eps, 4, "gaussian"), 0.0055, rtol=1e-6)
    single = exact.tolerance(0.004, BASE, 1, "gaussian")
    assert_allclose(exact.acceptance_rate(BASE, single, 1, "gaussian"), 0.004, rtol=1e-12)


# Posterior and Algorithm 1


@pytest.mark.parametrize(("toy", "eps"), [(BASE, 0.25), (Toy(8.0, 1.0), 4.0), (Toy(2.0, 0.01), 0.3), (BASE, 60.0)])
def test_posterior_moments_are_those_of_a_truncated_normal_mixture(toy, eps):
    s = toy.marginal_sd
    data = stats.truncnorm((toy.y_obs - eps) / s, (toy.y_obs + eps) / s, scale=s)
    mean, sd = exact.posterior_moments(toy, eps)
    assert_allclose(mean, data.mean() / s**2, rtol=1e-9, atol=1e-12)
    assert_allclose(sd**2, toy.sigma_y**2 / s**2 + data.var() / s**4, rtol=1e-8)


@pytest.mark.parametrize("kernel", ["uniform", "gaussian"])
@pytest.mark.parametrize(("toy", "eps"), [(BASE, 0.25), (Toy(8.0, 1.0), 4.0), (Toy(2.0, 0.01), 0.3)])
def test_posterior_cdf_is_the_integral_of_prior_times_mean_kernel(toy, eps, kernel):
    mean, sd = exact.posterior_moments(toy, eps, kernel)

    def unnormalised(theta: float) -> float:
        if kernel == "uniform":
            hit = stats.norm.cdf(toy.y_obs + eps, theta, toy.sigma_y) - stats.norm.cdf(
                toy.y_obs - eps, theta, toy.sigma_y
            )
        else:
            spread = math.hypot(toy.sigma_y, eps)
            hit = eps / spread * math.exp(-0.5 * ((toy.y_obs - theta) / spread) ** 2)
        return hit * stats.norm.pdf(theta)

    low, high = mean - 12 * sd, mean + 12 * sd
    inner = [toy.y_obs - eps, toy.y_obs + eps]
    breaks = [low, *[place for place in inner if low < place < high], high]

    def integral(upper: float) -> float:
        edges = [*[place for place in breaks if place < upper], upper]
        return sum(integrate.quad(unnormalised, a, b, epsabs=1e-13, limit=200)[0] for a, b in itertools.pairwise(edges))

    total = integral(high)
    assert_allclose(exact.kernel_mean(toy, eps, kernel), total, rtol=1e-8)
    places = mean + sd * np.array([-1.5, 0.0, 1.2])
    expected = [integral(place) / total for place in places]
    assert_allclose(exact.posterior_cdf(toy, eps, places, kernel), expected, rtol=1e-7)
    assert_allclose(exact.posterior_pdf(toy, eps, mean, kernel), unnormalised(mean) / total, rtol=1e-7)


def test_posterior_cdf_keeps_the_shape_and_ends_at_zero_and_one():
    places = np.array([[-np.inf, -50.0], [50.0, np.inf]])
    assert exact.posterior_cdf(BASE, 0.25, places).tolist() == [[0.0, 0.0], [1.0, 1.0]]
    grid = exact.posterior_cdf(Toy(sigma_y=0.01), 0.3, np.linspace(1.5, 2.5, 400))
    assert np.all(np.diff(grid) >= 0)


# Asymptotic variances


def dense_variance(prior, proposal, hits, values):
    """v(f, Q_M) by writing out the whole matrix on (theta, j), entry by entry from Algorithm 2's definition."""
    size, most = hits.shape
    states = [(i, j) for i in range(size) for j in range(1, most + 1)]
    matrix = np.zeros((len(states), len(states)))
    for (a, (i, j)), (b, (k, j_new)) in itertools.product(enumerate(states), repeat=2):
        ratio = prior[k] * j_new * proposal[k, i] / (prior[i] * j * proposal[i, k])
        matrix[a, b] = proposal[i, k] * hits[k, j_new - 1] * min(1.0, ratio)
    matrix[np.diag_indices_from(matrix)] += 1 - matrix.sum(axis=1)
    stationary = np.array([prior[i] * hits[i, j - 1] * j for i, j in states])
    stationary /= stationary.sum()
    assert_allclose(stationary @ matrix, stationary, atol=1e-14)
    f = np.array([values[i] for i, _ in states])
    f = f - stationary @ f
    h = np.linalg.solve(np.eye(len(states)) - matrix + stationary, f)
    return stationary @ (f * (2 * h - f))


@pytest.fixture(scope="module")
def small_chain():
    theta = np.linspace(-2.0, 3.0, 12)
    prior = np.exp(-0.5 * theta**2)
    prior /= prior.sum()
    return theta, prior, exact.binomial_table(BASE, 0.6, 5, theta)


def test_independence_decomposition_against_the_whole_matrix(small_chain):
    theta, prior, hits = small_chain
    proposal = np.tile(prior, (theta.size, 1))
    for values in (theta, theta**2, np.sin(3 * theta)):
        expected = dense_variance(prior, proposal, hits, values)
        assert_allclose(efficiency.independence_variance_on_grid(prior, hits, values), expected, rtol=1e-11)
        ratio = np.ones_like(proposal)
        assert_allclose(efficiency.grid_variance(prior, proposal, ratio, hits, values), expected, rtol=1e-11)


def test_random_walk_against_the_whole_matrix(small_chain):
    theta, prior, hits = small_chain
    gap = theta[1] - theta[0]
    proposal = np.exp(-0.5 * (theta[None, :] - theta[:, None]) ** 2) * gap / math.sqrt(2 * math.pi)
    ratio = prior[None, :] / prior[:, None]
    for values in (theta, theta**2):
        expected = dense_variance(prior, proposal, hits, values)
        assert_allclose(efficiency.grid_variance(prior, proposal, ratio, hits, values), expected, rtol=1e-11)


def test_a_proposal_that_is_not_symmetric_against_the_whole_matrix(small_chain):
    theta, prior, hits = small_chain
    proposal = np.random.default_rng(3).dirichlet(np.ones(theta.size), size=theta.size)
    ratio = (prior * proposal.T) / (prior[:, None] * proposal)
    expected = dense_variance(prior, proposal, hits, theta)
    assert_allclose(efficiency.grid_variance(prior, proposal, ratio, hits, theta), expected, rtol=1e-11)


@pytest.mark.parametrize("eps", [0.25, 0.015625])
@pytest.mark.parametrize("pseudo_samples", [1, 2, 8, 64])
def test_random_walk_settles_as_the_grid_is_refined(eps, pseudo_samples):
    coarse = efficiency.random_walk_variance(BASE, eps, pseudo_samples, grid=160)
    fine = efficiency.random_walk_variance(BASE, eps, pseudo_samples)
    assert abs(coarse.value - fine.value) < coarse.error
    assert fine.error < 3e-5 * fine.value


def test_a_wide_random_walk_at_a_flat_prior_is_slower_in_proportion():
    # With a scale far beyond the prior nearly every proposal falls where nothing hits: twice the scale, half the
    # acceptance rate, twice the variance.
    wide, wider = (
        efficiency.random_walk_variance(BASE, 0.25, 1, scale=scale, grid=160).value for scale in (40.0, 80.0)
    )
    assert_allclose(wider / wide, 2.0, rtol=0.02)


@pytest.fixture(scope="module", params=["independence", "random_walk"])
def curve(request):
    return efficiency.efficiency_curve(request.param, BASE, 0.25, (1, 2, 3, 4, 8, 16, 32, 64), grid=160)


def test_exact_variances_obey_the_inequalities_of_the_theory(curve):
    variance, count = np.array(curve.variance), np.array(curve.pseudo_samples)
    slack = 1 + 1e-4
    assert np.all(np.diff(variance) < 0)  # L2
    assert np.all(variance[0] <= (2 * count - 1) * variance * slack)  # L4
    star = count * variance + (count - 1) * curve.posterior_variance
    assert np.all(variance[0] <= star * slack)
    one_chain, many_chains = efficiency.parallel_cost(curve)
    assert np.all(many_chains <= 2 * one_chain)  # L5
    for discount in (1.0, 2.0, 4.0, 8.0, 16.0):
        cost = efficiency.serial_cost(curve, discount)
        assert_allclose(cost, variance * [step_cost(m, discount) for m in curve.pseudo_samples])
        assert np.all(efficiency.cost_floor(curve, discount) <= cost * slack)
        assert np.all(variance[0] / cost <= 2 * discount)


def test_gain_bounds_are_the_three_of_the_certificate(curve):
    bounds = efficiency.gain_bounds(curve, 4.0)
    at, cost = curve.pseudo_samples.index(8), step_cost(8, 4.0)
    assert_allclose(bounds.general[at], 8 / cost * curve.kappa / (curve.kappa - 7))
    assert_allclose(bounds.positive[at], 15 / cost)
    assert_allclose(bounds.kappa[at], curve.kappa / cost)
    beyond = np.array(curve.pseudo_samples) >= curve.kappa + 1
    assert np.array_equal(np.isinf(bounds.general), beyond)
    assert np.all(np.isfinite(bounds.best))


def test_certificate_s_numbers_in_the_theory():
    curve = efficiency.EfficiencyCurve("independence", BASE, 0.1, (2, 10), (1.0, 1.0), (0.0, 0.0), 200.0, 1.0)
    assert_allclose(efficiency.gain_bounds(curve).general - 1, [0.005, 0.047], atol=5e-4)


# Bad input


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: exact.acceptance_rate(BASE, -0.1, 1), "eps must be positive"),
        (lambda: exact.acceptance_rate(BASE, 0.1, 0), "pseudo_samples must be"),
        (lambda: exact.acceptance_rate(BASE, 0.1, 1, "box"), "kernel must be one of 'uniform', 'gaussian', got 'box'"),
        (lambda: exact.tolerance(1.5, BASE, 1), "strictly between 0 and 1"),
        (lambda: exact.gaussian_acceptance_rate(BASE, 0.1, 2, lattice=50), "multiple of"),
        (lambda: exact.gaussian_acceptance_rate(Toy(y_obs=9.0), 0.01, 2), "larger eps"),
        (lambda: Toy(sigma_y=0.0), "sigma_y must be positive"),
        (lambda: Toy(y_obs=math.nan), "y_obs must be a finite"),
        (lambda: FigurePoint("1L", "eps=1", 1, BASE), "either eps or a discount"),
        (lambda: step_cost(2, 0.5), "discount must be at least 1"),
        (lambda: step_cost(0), "at least 1"),
        (lambda: series(["3"]), "no figure '3'"),
        (lambda: efficiency.random_walk_variance(Toy(sigma_y=0.01), 0.1, 1), "too coarse"),
        (lambda: efficiency.random_walk_variance(BASE, 0.1, 1, grid=10), "multiple of 4"),
        (lambda: efficiency.random_walk_variance(BASE, 0.1, 1, scale=0.0), "scale must be positive"),
        (lambda: efficiency.efficiency_curve("lazy", BASE, 0.1), "choose 'independence' or 'random_walk'"),
    ],
)
def test_bad_input_is_named_with_its_remedy(call, words):
    with pytest.raises(ValueError, match=words):
        call()
