"""Summaries with equal values: many at an end of their range, or all on a lattice."""

import math

import numpy as np
import pytest
from scipy import special, stats

import onedraw as od
from onedraw.model.coordinates import Support
from onedraw.results.model_evidence import comparable
from onedraw.surrogate.choice import choose_form
from onedraw.surrogate.features import features_of
from onedraw.surrogate.point_masses import FEWEST, LEAST_SHARE, ends_of, no_masses, without_density
from onedraw.surrogate.surrogate import fit_surrogate
from onedraw.surrogate.training import training_of
from onedraw.surrogate.transforms import find_masses, in_units, step_of
from tests.test_compare import learnt_from

ANYWHERE = Support(np.full(1, -np.inf), np.full(1, np.inf))


def found_masses(theta, rows):
    """Of simulations that all count, the first one as the data."""
    features = features_of(theta, theta.shape[1], 40)
    places = training_of(theta, rows, np.ones(len(rows))).places
    return find_masses(features(theta), rows, places, rows[0], np.ones(len(rows)), features.sets())


def zeros_and_sizes(theta, rng):
    """Nothing with a probability that falls with theta; otherwise a log-normal size that rises with it."""
    there = rng.random(len(theta)) < special.expit(theta[:, 0])
    return there * np.exp(0.5 * theta[:, 0] + 0.4 * rng.normal(size=len(theta)))


def cut(theta, rng):
    """A normal number that is measured from 0 to 1."""
    return np.clip(theta[:, 0] + 0.7 * rng.normal(size=len(theta)), 0.0, 1.0)


def too_many_zeros(theta, rng):
    """A Poisson count of mean 6, or 0."""
    return (rng.random(len(theta)) < special.expit(theta[:, 0])) * rng.poisson(6, len(theta)).astype(float)


def shares(theta, rng):
    """Of five."""
    return rng.binomial(5, special.expit(theta[:, 0])) / 5


class TestFound:
    @pytest.fixture
    def theta(self):
        return np.random.default_rng(1).normal(size=(500, 1))

    def test_zeros_that_nothing_else_explains_are_apart(self, theta):
        rows = np.column_stack([zeros_and_sizes(theta, np.random.default_rng(2)), theta[:, 0]])
        masses = found_masses(theta, rows)
        assert np.array_equal(masses.apart, [[0.0, math.nan], [math.nan, math.nan]], equal_nan=True)
        assert masses.at_ends.tolist() == [[-math.inf, -math.inf], [math.inf, math.inf]]

    def test_limits_of_a_measurement_are_ends(self, theta):
        masses = found_masses(theta, cut(theta, np.random.default_rng(3))[:, None])
        assert np.isnan(masses.apart).all() and masses.at_ends.tolist() == [[0.0], [1.0]]

    def test_counts_with_too_many_zeros_have_them_apart_and_others_do_not(self, theta):
        rng = np.random.default_rng(4)
        rows = np.column_stack([too_many_zeros(theta, rng), rng.poisson(np.exp(0.5 * theta[:, 0]))])
        masses = found_masses(theta, rows)
        assert np.array_equal(masses.apart, [[0.0, math.nan], [math.nan, math.nan]], equal_nan=True)

    def test_proportions_have_no_masses(self, theta):
        """They lie on a lattice, with many at its end."""
        rows = np.random.default_rng(5).binomial(20, special.expit(theta - 2)) / 20
        assert np.mean(rows == 0) > LEAST_SHARE
        masses = found_masses(theta, rows)
        assert np.isnan(masses.apart).all() and np.isinf(masses.at_ends).all()

    @pytest.mark.parametrize(("number", "is_one"), [(FEWEST - 1, False), (FEWEST, True), (191, False)])
    def test_few_values_at_an_end_or_beside_it_are_no_mass(self, number, is_one):
        rows = np.append(np.zeros(number), 1.0 + np.arange(200 - number))[:, None]
        assert np.isnan(ends_of(rows, np.ones((1, 1)))).tolist() == [[not is_one], [True]]

    def test_data_beyond_all_simulations_leave_no_mass_at_that_end(self):
        rows = np.append(np.zeros(50), np.linspace(1, 2, 50))[:, None]
        assert np.isnan(ends_of(rows, np.full((1, 1), -1.0))).all()

    def test_other_values_of_a_continuous_summary_differ(self):
        values = np.append(np.zeros(50), np.linspace(1, 2, 50))
        assert without_density(values, 0.0, math.nan) and not without_density(np.round(values, 1), 0.0, math.nan)


def whole_probability(surrogate, theta, points, grid):
    """The sum of the probabilities of points and of the integral between them."""
    at = np.array([np.exp(surrogate.log_density(theta, np.array([one]))) for one in grid])
    between = np.trapezoid(at, grid, axis=0) if len(grid) else 0.0
    return between + sum(np.exp(surrogate.log_density(theta, np.array([one]))) for one in points)


class TestSurrogates:
    @pytest.mark.parametrize(
        ("simulate", "points", "grid"),
        [
            (zeros_and_sizes, [0.0], np.geomspace(1e-4, 1e3, 4001)),
            (cut, [0.0, 1.0], np.linspace(1e-6, 1 - 1e-6, 801)),
            (too_many_zeros, [float(k) for k in range(60)], []),
            (shares, [k / 5 for k in range(6)], []),
        ],
    )
    def test_masses_and_densities_have_the_probability_one_together(self, simulate, points, grid):
        rng = np.random.default_rng(7)
        theta = rng.normal(size=(400, 1))
        rows = simulate(theta, rng)[:, None]
        training = training_of(theta, rows, np.ones(400))
        form = choose_form(ANYWHERE, training, rows[0], False)
        surrogate = fit_surrogate(form, training, None)
        some = theta[:5]
        assert whole_probability(surrogate, some, points, grid) == pytest.approx(np.ones(5), abs=3e-3)

    def test_the_probability_of_a_mass_is_the_right_one(self):
        """Within three errors of the best possible estimate of it, at five parameters."""
        rng = np.random.default_rng(8)
        theta = rng.normal(size=(2_000, 1))
        rows = zeros_and_sizes(theta, rng)[:, None]
        training = training_of(theta, rows, np.ones(2_000))
        surrogate = fit_surrogate(choose_form(ANYWHERE, training, rows[0], False), training, None)
        at = np.linspace(-1.5, 1.5, 5)[:, None]
        found, exact = np.exp(surrogate.log_density(at, np.zeros(1))), special.expit(-at[:, 0])
        x = np.column_stack([np.ones(2_000), theta])
        slope = special.expit(theta) * special.expit(-theta)
        there = np.column_stack([np.ones(5), at])
        variance = np.einsum("ij,jk,ik->i", there, np.linalg.inv((x * slope).T @ x), there)
        assert np.all(np.abs(special.logit(found) - special.logit(exact)) < 3 * np.sqrt(variance) + 0.1)

    def test_what_comes_after_a_mass_does_not_count_at_it(self):
        """The size says nothing at zero: only the probability of zero does."""
        rng = np.random.default_rng(9)
        theta = rng.normal(size=(400, 1))
        rows = zeros_and_sizes(theta, rng)[:, None]
        training = training_of(theta, rows, np.ones(400))
        form = choose_form(ANYWHERE, training, rows[0], False)
        assert len(form.terms) == 2 and all(one.cells for one in form.terms)
        surrogate = fit_surrogate(form, training, None)
        size = surrogate.factors[1]
        other = surrogate._replace(factors=(surrogate.factors[0], size._replace(mean=size.mean + 5.0)))
        zero, one = np.zeros(1), np.ones(1)
        assert np.array_equal(other.log_density(theta, zero), surrogate.log_density(theta, zero))
        assert not np.allclose(other.log_density(theta, one), surrogate.log_density(theta, one))

    def test_a_series_of_counts_has_no_masses_apart(self):
        rng = np.random.default_rng(10)
        theta = rng.normal(size=(300, 1))
        rows = np.column_stack([too_many_zeros(theta, rng) for _ in range(3)])
        training = training_of(theta, rows, np.ones(300))
        transform = choose_form(ANYWHERE, training, rows[0], False).transform
        assert len(transform.kept) == 6
        common = transform.in_common(rows, rows[0])
        assert common.kept.tolist() == [0, 1, 2] and common.whole.all() and not common.massive.any()
        sizes = np.column_stack([zeros_and_sizes(theta, rng) for _ in range(3)])
        training = training_of(theta, sizes, np.ones(300))
        assert choose_form(ANYWHERE, training, sizes[0], False).transform.in_common(sizes, sizes[0]) is None

    def test_a_series_with_a_mass_in_one_value_may_have_one_law(self):
        """Counts of a chain, the first of which is zero too often: columns and factors agree in number."""
        rng = np.random.default_rng(12)
        theta = rng.normal(size=(120, 1))
        rows = np.empty((120, 20))
        rows[:, 0] = (rng.random(120) < 0.6) * rng.poisson(9, 120)
        for k in range(1, 20):
            rows[:, k] = rng.poisson(2 + np.exp(0.3 * theta[:, 0]) * 0.5 * rows[:, k - 1])
        masses = found_masses(theta, rows)
        assert masses is not None and not np.isnan(masses.apart[0, 0])
        training = training_of(theta, rows, np.ones(120))
        form = choose_form(ANYWHERE, training, rows[0], True)
        assert form.common < len(form.terms) == len(form.transform.kept) == 20
        assert np.isfinite(fit_surrogate(form, training, None).log_density(theta[:5], rows[0])).all()

    def test_no_masses_change_nothing(self):
        kept, whole = np.array([1, 4]), np.array([True, False])
        assert no_masses(2).split(kept, whole)[0] is kept and no_masses(2).columns().tolist() == [1, 1]


class TestLattices:
    @pytest.mark.parametrize("step", [1.0, 0.05, 1 / 3, 1e-7, 12.5])
    def test_steps_are_found_in_spite_of_rounding_errors(self, step):
        rng = np.random.default_rng(13)
        values = step * rng.poisson(7, 300) + 1e-14 * step * rng.normal(size=300)
        assert step_of(values) == pytest.approx(step, rel=1e-9)
        assert step_of(-values) == pytest.approx(step, rel=1e-9)

    def test_continuous_values_have_no_step(self):
        rng = np.random.default_rng(14)
        assert not any(step_of(rng.normal(size=n)) for n in (20, 50, 150, 500) for _ in range(50))
        assert step_of(np.append(0.1 * np.arange(5), 0.1234567)) == 0.0
        assert step_of(1e12 + rng.normal(size=300)) == step_of(0.05 + 0.1 * rng.poisson(3, 300)) == 0.0

    def test_shares_are_whole_numbers_of_their_steps(self):
        rng = np.random.default_rng(15)
        theta = rng.normal(size=(300, 1))
        rows = np.column_stack([shares(theta, rng), theta[:, 0] + rng.normal(size=300)])
        training = training_of(theta, rows, np.ones(300))
        form = choose_form(ANYWHERE, training, rows[0], False)
        assert form.transform.whole.tolist() == [True, False] and form.terms[0].cells
        assert form.transform.units == pytest.approx([0.2, 1.0])

    def test_whole_numbers_of_steps_are_exact(self):
        """Otherwise the last of them may lie beyond the end of its cell."""
        assert in_units(np.array([[0.6], [0.7]]), np.array([0.1])).tolist() == [[6.0], [7.0]]

    def test_a_series_of_shares_has_one_unit(self):
        rng = np.random.default_rng(16)
        theta = rng.normal(size=(300, 1))
        rows = np.column_stack([shares(theta, rng) for _ in range(4)])
        transform = choose_form(ANYWHERE, training_of(theta, rows, np.ones(300)), rows[0], False).transform
        common = transform.in_common(rows, rows[0])
        assert common.units == pytest.approx([0.2] * 4) and common.ends.tolist() == [[0.0] * 4, [5.0] * 4]
        rows[:, 0] *= 5 / 4
        transform = choose_form(ANYWHERE, training_of(theta, rows, np.ones(300)), rows[0], False).transform
        assert transform.in_common(rows, rows[0]) is None


def test_densities_of_models_are_compared_only_if_masses_agree():
    rng = np.random.default_rng(11)
    theta = rng.normal(size=(300, 1))
    zeros, sizes = zeros_and_sizes(theta, rng)[:, None], np.exp(theta + 0.3 * rng.normal(size=(300, 1)))
    one, other = (learnt_from(theta, rows, np.ones(1))[0] for rows in (zeros, sizes))
    assert comparable([one, one]) == "" and comparable([other, other]) == ""
    assert comparable([one, other]) == "some summaries often have the same value under one model alone"


AXIS = np.linspace(-7, 7, 281)
GRID = np.stack([one.ravel() for one in np.meshgrid(AXIS, AXIS, indexing="ij")], axis=1)


@od.batched
def catch_and_index(rng, a, b):
    """Whether anything was caught, how much, and an index of both parameters."""
    there = rng.random(len(a)) < special.expit(a)
    return np.column_stack([there * np.exp(b + 0.5 * rng.normal(size=len(a))), a + b + rng.normal(size=len(a))])


def log_likelihood(y):
    a, b = GRID.T
    size = stats.norm.logpdf(math.log(y[0]), b, 0.5) if y[0] else 0.0
    return special.log_expit(a if y[0] else -a) + size + stats.norm.logpdf(y[1], a + b, 1.0)


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("observed", [(0.0, 1.5), (2.0, 1.5)], ids=["nothing caught", "something caught"])
def test_the_posterior_of_a_catch_that_may_be_nothing(observed):
    """Against quadrature: a density of the catch was off by up to .9 standard deviations."""
    log_posterior = log_likelihood(observed) - np.square(GRID / 2).sum(axis=1) / 2
    weights = np.exp(log_posterior - log_posterior.max())
    mean = weights @ GRID / weights.sum()
    sd = np.sqrt(weights @ np.square(GRID - mean) / weights.sum())
    model = od.Model(od.Prior(a=stats.norm(0, 2), b=stats.norm(0, 2)), catch_and_index, np.array(observed))
    found = od.infer(model, budget=1_000, seed=1).summary()
    errors = [(found[name].mean - m) / s for name, m, s in zip("ab", mean, sd, strict=True)]
    errors += [np.log(found[name].sd / s) for name, s in zip("ab", sd, strict=True)]
    assert np.abs(errors).max() < 0.2
