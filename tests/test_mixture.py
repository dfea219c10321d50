"""Mixtures as proposals: densities, draws, and the weights of draws from several of them."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, stats

import onedraw as od
from onedraw.proposals.mixture import (
    Mixture,
    bridge,
    local_mixture,
    local_roots,
    log_prior_constant,
    log_weights,
    squared_distances,
)

KINDS = pytest.mark.parametrize("freedom", [None, 5])


def mixture_of(freedom, discrete=False):
    """Three components in two columns, the second of them whole numbers if asked for."""
    centre = np.array([[-1.0, 2.0], [0.5, 0.0], [1.5, -3.0]])
    if discrete:
        return Mixture(centre, np.array([0.5, 1.0, 0.3])[:, None, None], np.array([[0.5], [2.0], [1.0]]),
                       np.array([False, True]), freedom)  # fmt: skip
    root = np.array([[[0.5, 0.0], [0.4, 1.0]], [[1.0, 0.0], [-0.3, 0.2]], [[0.3, 0.0], [0.0, 0.6]]])
    return Mixture(centre, root, np.empty((3, 0)), np.zeros(2, dtype=bool), freedom)


def exact_density(mixture, points):
    """By SciPy, component by component."""
    total = np.zeros(len(points))
    for k, centre in enumerate(mixture.centre):
        free = ~mixture.discrete
        cov = mixture.root[k] @ mixture.root[k].T
        if mixture.freedom is None:
            value = stats.multivariate_normal(centre[free], cov).pdf(points[:, free])
        else:
            value = stats.multivariate_t(centre[free], cov, df=mixture.freedom).pdf(points[:, free])
        for column, deviation in zip(np.flatnonzero(mixture.discrete), mixture.deviation[k], strict=True):
            at = stats.norm(centre[column], deviation)
            value = value * (at.cdf(points[:, column] + 0.5) - at.cdf(points[:, column] - 0.5))
        total += value
    return total / len(mixture.centre)


class TestDensity:
    @KINDS
    @pytest.mark.parametrize("discrete", [False, True])
    def test_is_that_of_its_formula(self, freedom, discrete):
        mixture = mixture_of(freedom, discrete)
        points = np.random.default_rng(1).normal(size=(1000, 2)) * 3
        points[:, 1] = np.rint(points[:, 1]) if discrete else points[:, 1]
        assert np.exp(mixture.log_density(points)) == pytest.approx(exact_density(mixture, points), rel=1e-9)

    @KINDS
    def test_integrates_to_one(self, freedom):
        axis = np.linspace(-40, 40, 1601)
        a, b = (part.ravel() for part in np.meshgrid(axis, axis))
        density = np.exp(mixture_of(freedom).log_density(np.column_stack([a, b])))
        assert density.sum() * (axis[1] - axis[0]) ** 2 == pytest.approx(1.0, abs=2e-3)

    @KINDS
    def test_masses_of_whole_numbers_sum_to_one(self, freedom):
        axis, mixture = np.linspace(-60, 60, 2401), mixture_of(freedom, discrete=True)
        total = sum(
            integrate.simpson(np.exp(mixture.log_density(np.column_stack([axis, np.full(axis.size, k)]))), x=axis)
            for k in range(-40, 41)
        )
        assert total == pytest.approx(1.0, abs=2e-3)

    def test_whole_numbers_alone(self):
        mixture = Mixture(np.array([[3.0], [7.0]]), np.empty((2, 0, 0)), np.array([[0.5], [2.0]]), np.array([True]), 5)
        mass = np.exp(mixture.log_density(np.arange(-30.0, 40.0)[:, None]))
        assert mass.sum() == pytest.approx(1.0)
        drawn = mixture.sample(np.random.default_rng(1), 50_000)[:, 0]
        assert np.mean(drawn == 3.0) == pytest.approx(mass[33], abs=4 * np.sqrt(0.25 / 50_000))

    def test_far_away_it_is_zero_or_small_but_a_number(self):
        points = np.array([[1e6, 0.0], [1e200, 1e200], [0.5, 1e9]])
        assert not np.isnan(mixture_of(None).log_density(points)).any()
        assert np.isneginf(mixture_of(None, discrete=True).log_density(points[2:])).all()

    def test_tiny_and_huge_components_side_by_side(self):
        """Their densities are beyond the largest number and below the smallest."""
        dim, scale = 40, np.array([1e-10, 1e10])
        mixture = Mixture(np.array([np.zeros(dim), np.full(dim, 1e12)]), scale[:, None, None] * np.eye(dim),
                          np.empty((2, 0)), np.zeros(dim, dtype=bool), 5)  # fmt: skip
        at = mixture.log_density(mixture.centre)
        assert np.isfinite(at).all() and at[0] - at[1] == pytest.approx(-dim * np.log(scale[0] / scale[1]))

    @pytest.mark.parametrize("dim", [1, 2, 5])
    def test_squared_distances_near_and_far_are_those_of_their_definition(self, dim):
        rng = np.random.default_rng(dim)
        centre, root = rng.normal(50.0, 3.0, (7, dim)), np.tril(rng.normal(size=(7, dim, dim))) + 2.0 * np.eye(dim)
        squares, points = squared_distances(centre, root), rng.normal(50.0, 5.0, (30, dim))
        far = np.append(points, np.full((1, dim), 1e9), axis=0)
        z = np.array([np.linalg.solve(one, (far - middle).T) for one, middle in zip(root, centre, strict=True)])
        exact = np.square(z).sum(axis=1)
        assert np.abs(points - squares.middle).max() < squares.near < 1e9
        assert squares(points) == pytest.approx(exact[:, :-1], rel=1e-9, abs=1e-7)
        assert squares(far) == pytest.approx(exact, rel=1e-9)

    def test_no_points(self):
        assert mixture_of(5).log_density(np.empty((0, 2))).shape == (0,)


class TestDraws:
    @KINDS
    @pytest.mark.parametrize("discrete", [False, True])
    def test_have_that_density(self, freedom, discrete):
        mixture = mixture_of(freedom, discrete)
        drawn = mixture.sample(np.random.default_rng(6), 200_000)
        axis = np.linspace(-2, 2, 161)
        b = np.arange(-40, 41) if discrete else np.linspace(-25, 25, 2001)
        for low, high in itertools.pairwise(np.linspace(-2, 2, 9)):
            inside = (drawn[:, 0] >= low) & (drawn[:, 0] < high)
            some = axis[(axis >= low - 1e-9) & (axis <= high + 1e-9)]
            along = [np.exp(mixture.log_density(np.column_stack([np.full(b.size, a), b]))).sum() * (b[1] - b[0])
                     for a in some]  # fmt: skip
            expected = integrate.simpson(along, x=some)
            assert abs(inside.mean() - expected) < 4 * np.sqrt(expected / 200_000) + 1e-3
        assert (drawn[:, 1] == np.rint(drawn[:, 1])).all() == discrete

    def test_components_take_turns(self):
        mixture = mixture_of(None)._replace(root=np.full((3, 2, 2), 0.0))
        drawn = mixture.sample(np.random.default_rng(1), 9)
        assert (drawn[:3] == drawn[3:6]).all() and len(np.unique(drawn[:, 0])) == 3

    def test_widened(self):
        mixture = mixture_of(None, discrete=True).widened(4.0)
        assert np.array_equal(mixture.root, 2 * mixture_of(None, discrete=True).root)
        assert np.array_equal(mixture.deviation, 2 * mixture_of(None, discrete=True).deviation)


class TestLocalMixture:
    def test_components_have_the_covariance_of_their_neighbours(self):
        """Two pieces, one wide and one narrow: each component has the width of its own."""
        rng = np.random.default_rng(1)
        points = np.concatenate([rng.normal(-5, 0.1, (500, 1)), rng.normal(5, 1.0, (500, 1))])
        mixture = local_mixture(points, np.ones(1000), np.array([0, 500]), 400, np.array([False]))
        assert mixture.root[:, 0, 0] == pytest.approx([0.1, 1.0], rel=0.5) and mixture.freedom is None
        mixed = local_mixture(points, np.ones(1000), np.array([0, 500]), 400, np.array([False]), 5, towards_all=1.0)
        assert mixed.root[:, 0, 0] == pytest.approx(points.std(), rel=1e-3) and mixed.freedom == 5

    @pytest.mark.parametrize("value", [0.0, 7.0, 1e9])
    @pytest.mark.parametrize("discrete", [[False, False], [False, True], [True, True]])
    def test_points_that_agree_still_give_a_proposal(self, value, discrete):
        points, discrete = np.full((40, 2), value), np.array(discrete)
        points[:, 0] += 0.0 if discrete[0] else np.random.default_rng(1).normal(size=40)
        mixture = local_mixture(points, np.ones(40), np.arange(3), 10, discrete)
        drawn = mixture.sample(np.random.default_rng(2), 300)
        assert np.isfinite(drawn).all() and (mixture.deviation == max(0.5, 1e-6 * value)).all()
        assert np.isfinite(mixture.log_density(mixture.centre)).all()
        assert not discrete.any() or len(np.unique(drawn[:, 1])) > 1


def test_weights_make_every_proposal_stand_for_the_prior():
    """Weighted means over draws of the prior and two mixtures together are those of the prior."""
    prior, rng, n = od.Prior(a=stats.norm(), b=stats.norm(1, 2)), np.random.default_rng(1), 20_000
    mixtures = [mixture_of(None), mixture_of(5)]
    theta = np.concatenate([prior.sample(rng, n), *(mixture.sample(rng, n) for mixture in mixtures)])
    weight = np.exp(log_weights(prior.logpdf(theta), n, [(n, mixture.log_density(theta)) for mixture in mixtures]))
    assert weight.mean() == pytest.approx(1.0, abs=4 * weight.std() / np.sqrt(weight.size))
    assert weight.max() <= 3.0
    for column, exact in ((0, 0.0), (1, 1.0)):
        value = weight * (theta[:, column] - exact)
        assert abs(value.mean()) < 4 * value.std() / np.sqrt(value.size)


class TestPriorConstant:
    mixture = Mixture(np.array([[-0.5, 0.5]]), 0.7 * np.eye(2)[None], np.empty((1, 0)), np.zeros(2, dtype=bool), 5)

    def joint(self, **more):
        """A standard normal pair whose density is a thousand times too large."""
        return od.Prior.joint(
            ["a", "b"], lambda rng, n: rng.standard_normal((n, 2)),
            lambda theta: stats.norm.logpdf(theta).sum(axis=1) + math.log(1000.0), **more,
        )  # fmt: skip

    def test_is_known_of_named_parameters(self):
        assert log_prior_constant(od.Prior(a=stats.norm(), b=stats.cauchy()), 1, self.mixture) == (0.0, 0.0)

    def test_of_a_constraint_is_its_probability(self):
        prior = od.Prior(a=stats.norm(), b=stats.norm(), where=lambda a, b: a < b)
        found, error = log_prior_constant(prior, 1, self.mixture)
        assert abs(found - math.log(0.5)) < 4 * error and 0 < error < 0.005

    @pytest.mark.parametrize(("where", "share"), [(None, 1.0), (lambda a, b: a < b, 0.5)])
    def test_of_a_joint_prior(self, where, share):
        z = []
        for seed in range(20):
            found, error = log_prior_constant(self.joint(where=where), seed, self.mixture)
            assert 0 < error < 0.02
            z.append((found - math.log(1000.0 * share)) / error)
        assert abs(np.mean(z)) < 4 / math.sqrt(20) and np.std(z) < 1.6

    def test_in_other_coordinates(self):
        found, error = log_prior_constant(
            self.joint(), 1, self.mixture, lambda theta: 2 * theta,
            lambda free: self.joint().logpdf(free / 2) - 2 * math.log(2.0),
        )  # fmt: skip
        assert abs(found - math.log(1000.0)) < 4 * error

    def test_a_bridge_between_far_scales(self):
        rng = np.random.default_rng(1)
        first, second = rng.standard_normal(4000), rng.standard_normal(4000) * 1.2
        ratio = [stats.norm.logpdf(some) - 5000.0 - stats.norm.logpdf(some, scale=1.2) for some in (first, second)]
        found, error = bridge(*ratio)
        assert abs(found + 5000.0) < 4 * error < 0.1


def test_correlations_of_few_neighbours_are_shrunk_by_how_few_there_are():
    """Variances stay; a correlation keeps its share n / (n + dim) among n neighbours of equal weight."""
    rng = np.random.default_rng(1)
    points = rng.standard_normal((200, 2)) @ np.array([[1.0, 0.9], [0.0, 0.4]])
    given = points, np.ones(200), points[:3], 8
    whole, shrunk = (root @ root.transpose(0, 2, 1) for root in (local_roots(*given), local_roots(*given, shrink=True)))
    assert np.allclose(shrunk[:, 0, 0], whole[:, 0, 0]) and np.allclose(shrunk[:, 1, 1], whole[:, 1, 1])
    assert np.allclose(shrunk[:, 0, 1], 8 / 10 * whole[:, 0, 1])
