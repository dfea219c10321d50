"""Whole numbers that take few values: probabilities of cells, their fits, and the posteriors that follow from them."""

import math
from itertools import product

import numpy as np
import pytest
from scipy import optimize, special, stats

import onedraw as od
from onedraw.model.coordinates import Support
from onedraw.surrogate import choice
from onedraw.surrogate.cells import (
    FARTHEST,
    OPEN,
    Cells,
    Response,
    coarse,
    log_mass,
    only_two,
    open_ends,
    slopes,
)
from onedraw.surrogate.choice import Coordinates, Form, choose_form, choose_terms
from onedraw.surrogate.features import features_of
from onedraw.surrogate.likelihood import Terms, fit_cells, fit_factor, limited, predictors
from onedraw.surrogate.refits import fit_factors, parts_of
from onedraw.surrogate.residuals import ResidualLaw
from onedraw.surrogate.surrogate import fit_surrogate
from onedraw.surrogate.training import training_of
from onedraw.surrogate.transforms import Transform, Warp

TINY = 1e-10


def ordered(n, seed, cuts=(-0.5, 0.5, 1.5), scale=lambda x: np.ones(len(x))):
    """Features of one parameter, and the cells of a normal number with a mean that is linear in it."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 1))
    features = features_of(x, 1, 3)
    latent = 0.4 + 0.8 * x[:, 0] + scale(x[:, 0]) * rng.normal(size=n)
    ends = np.array([-np.inf, *cuts, np.inf])
    number = np.searchsorted(cuts, latent)
    cells = Cells(ends[number], ends[number + 1], np.zeros(n))
    return features(x), features.sets(), Response(number - 0.5, cells), rng


class TestMasses:
    @pytest.mark.parametrize(("low", "high"), [(-np.inf, 0.3), (1.2, np.inf), (-0.5, 0.8), (-9.0, -8.5), (25.0, 25.1)])
    def test_they_are_probabilities_of_a_normal(self, low, high):
        low_tail, high_tail = (-high, -low) if low > 0 else (low, high)
        less, more = stats.norm.logcdf([low_tail, high_tail])
        exact = more + np.log1p(-np.exp(less - more))
        assert log_mass(np.array([low]), np.array([high]))[0] == pytest.approx(exact, rel=1e-9)

    @pytest.mark.parametrize(("low", "high"), [(-np.inf, 0.3), (1.2, np.inf), (-0.5, 0.8), (6.0, 6.2), (-8.0, -7.0)])
    def test_slopes_are_their_derivatives(self, low, high):
        def mass(mean, log_scale):
            return log_mass(*(np.array([(one - mean) * math.exp(-log_scale)]) for one in (low, high)))[0]

        found, step = slopes(np.array([low]), np.array([high])), 1e-4
        assert found.mean[0] == pytest.approx((mass(step, 0) - mass(-step, 0)) / (2 * step), rel=1e-5, abs=1e-7)
        assert found.scale[0] == pytest.approx((mass(0, step) - mass(0, -step)) / (2 * step), rel=1e-5, abs=1e-7)
        second = (mass(step, 0) - 2 * mass(0, 0) + mass(-step, 0)) / step**2
        assert found.curvature[0] == pytest.approx(-second, rel=1e-4, abs=1e-5)
        of_scale = (mass(0, step) - 2 * mass(0, 0) + mass(0, -step)) / step**2
        assert found.of_scale[0] == pytest.approx(-of_scale, rel=1e-4, abs=1e-5)
        corners = mass(step, step) - mass(step, -step) - mass(-step, step) + mass(-step, -step)
        assert found.mixed[0] == pytest.approx(-corners / (4 * step**2), rel=1e-4, abs=1e-5)

    def test_cells_that_are_far_away_pull_with_finite_force(self):
        low, high = np.array([200.0, -np.inf]), np.array([np.inf, -300.0])
        found = slopes(low, high)
        assert np.isfinite(log_mass(low, high)).all()
        assert found.mean == pytest.approx([FARTHEST, -FARTHEST], rel=0.01)

    def test_the_smallest_and_largest_of_many_have_no_end(self):
        rows = np.column_stack([np.arange(1000) % 3, np.arange(1000), np.zeros(1000)])
        rows[0, 2] = 7.0
        assert open_ends(rows, rows[:1]).tolist() == [[0.0, -np.inf, 0.0], [2.0, np.inf, np.inf]]
        # If the data lie beyond, there are numbers beyond.
        assert open_ends(rows, np.array([[-1.0, 0.0, 0.0]]))[0, 0] == -np.inf
        assert OPEN == 0.01


class TestFits:
    @pytest.mark.parametrize("seed", [1, 2])
    def test_coefficients_have_the_largest_penalised_likelihood(self, seed):
        columns, sets, response, rng = ordered(400, seed, scale=lambda x: np.exp(0.3 * x))
        weights, terms = rng.uniform(0.2, 1.0, 400), Terms("2", "", "1", 1.0, cells=True)
        factor = fit_factor(predictors(columns, weights, sets), np.empty((400, 0)), 0, terms, response).factor

        def loss(found):
            mean, log_scale = columns[:, :3] @ found[:3], columns[:, :2] @ found[3:]
            penalty = 0.5 * (found[1] ** 2 + found[2] ** 2 + found[4] ** 2)
            return penalty - weights @ log_mass(*response.cells.standardised(mean, log_scale))

        best = optimize.minimize(loss, np.zeros(5), method="BFGS").x
        # Steps end within a small part of a standard error.
        assert factor.mean[:3] == pytest.approx(best[:3], abs=0.01)
        assert factor.scale[:2] == pytest.approx(best[3:], abs=0.01)

    def test_scales_that_vary_much_are_found(self):
        """A scale that grows by a factor of fifty, where most cells are narrow, and a pile of zeros."""
        columns, sets, response, _ = ordered(2000, 7, scale=lambda x: 0.3 * np.exp(0.8 * x))
        terms = Terms("2", "", "2", 1.0, cells=True)
        fit = fit_factor(predictors(columns, np.ones(2000), sets), np.empty((2000, 0)), 0, terms, response)

        def loss(found):
            mean, log_scale = columns[:, :3] @ found[:3], columns[:, :3] @ found[3:]
            penalty = 0.5 * (np.square(found[1:3]).sum() + np.square(found[4:]).sum())
            return penalty - log_mass(*response.cells.standardised(mean, log_scale)).sum()

        found = np.append(fit.factor.mean[:3], fit.factor.scale[:3])
        best = optimize.minimize(loss, found, method="BFGS")
        # A log likelihood that is lower by a tenth is that of coefficients that are off by less than half an error.
        assert loss(found) < best.fun + 0.1

    @pytest.mark.parametrize("seed", range(3))
    def test_fits_hardly_depend_on_where_they_begin(self, seed):
        columns, _, response, _ = ordered(300, seed, scale=lambda x: 0.3 * np.exp(0.8 * x))
        x, on = columns[:, :3], np.array([0.0, 1.0, 1.0])

        def log_probability(mean, scale):
            start = np.array([mean, 0.0, 0.0]), np.array([scale, 0.0, 0.0])
            found = fit_cells(x, x, (on, on), np.ones((1, 300)), (x.T @ x)[None], response.cells, start)
            mass = log_mass(*response.cells.standardised(found.mean[0], found.log_scale[0])).sum()
            return mass - 0.5 * (np.square(found.coefficients[0]) @ on + np.square(found.scale[0]) @ on)

        every = [log_probability(mean, scale) for mean in (-2.0, 0.0, 2.0) for scale in (-4.0, -2.0, 0.0, 1.0)]
        assert min(every) > max(every) - 0.5

    @pytest.mark.parametrize(("n", "seed"), [(100, 3), (300, 1)])
    def test_counts_over_a_wide_range_have_the_largest_likelihood(self, n, seed):
        rng = np.random.default_rng(seed)
        theta = rng.normal(size=(n, 1))
        features = features_of(theta, 1, 50)
        columns, sets = features(theta), features.sets()
        counts = rng.poisson(np.exp(1 + 1.5 * theta[:, 0])).astype(float)
        low, high = (np.sqrt(one) / np.sqrt(counts).std() for one in (counts, counts + 1))
        response = Response(0.5 * (low + high), Cells(np.where(counts > 0, low, -np.inf), high, np.zeros(n)))
        terms = Terms("3", "", "2", 1.0, cells=True)
        factor = fit_factor(predictors(columns, np.ones(n), sets), np.empty((n, 0)), 0, terms, response).factor

        def loss(found):
            mean, log_scale = columns[:, :4] @ found[:4], limited(columns[:, :3] @ found[4:], np.ones(n))
            penalty = 0.5 * (np.square(found[1:4]).sum() + np.square(found[5:]).sum())
            return penalty - log_mass(*response.cells.standardised(mean, log_scale)).sum()

        found = np.append(factor.mean[:4], factor.scale[:3])
        assert loss(found) < optimize.minimize(loss, found, method="BFGS").fun + 0.05

    def test_two_numbers_are_probit_regression(self):
        columns, sets, response, _ = ordered(600, 3, cuts=(0.0,))
        assert only_two(response.cells)
        terms = Terms("1", "", "0", TINY, cells=True)
        factor = fit_factor(predictors(columns, np.ones(600), sets), np.empty((600, 0)), 0, terms, response).factor
        one = response.values > 0

        def loss(found):
            return -special.log_ndtr(np.where(one, 1, -1) * (columns[:, :2] @ found)).sum()

        assert factor.mean[:2] == pytest.approx(optimize.minimize(loss, np.zeros(2)).x, abs=1e-3)
        assert not factor.scale.any() and 0.3 < factor.information < 2 / math.pi

    def test_scores_of_simulations_are_those_of_fits_without_them(self):
        columns, sets, response, rng = ordered(60, 4)
        weights, terms = rng.uniform(0.3, 1.0, 60), Terms("1", "", "0", TINY, cells=True)
        found, without, with_it = (
            fit_factor(predictors(columns, weights, sets), np.empty((60, 0)), 0, terms, response),
            [],
            [],
        )
        for i in range(60):
            kept = np.arange(60) != i
            some = Response(response.values[kept], response.cells.some(kept))
            alone = fit_factor(predictors(columns[kept], weights[kept], sets), np.empty((59, 0)), 0, terms, some).factor
            for factor, scores in ((alone, without), (found.factor, with_it)):
                at = response.cells.some(slice(i, i + 1)).standardised(columns[i] @ factor.mean, factor.scale[:1])
                scores.append(log_mass(*at)[0])
        without, optimism = np.array(without), np.mean(with_it) - np.mean(without)
        assert optimism > 0.02
        # To first order, and the uncertainty of the mean is averaged over.
        assert np.mean(found.scores) == pytest.approx(without.mean(), abs=0.4 * optimism)
        assert np.corrcoef(found.scores, without)[0, 1] > 0.99

    @pytest.mark.parametrize("terms", [Terms("1", "", "0", cells=True), Terms("2", "", "1", cells=True)])
    def test_parts_of_the_simulations_have_the_fits_of_each_alone(self, terms):
        columns, sets, response, rng = ordered(150, 5)
        weights, kept = rng.uniform(0.2, 1.0, 150), rng.random((3, 150)) < 0.8
        rows = np.empty((150, 0))
        for mine, found in zip(
            kept, fit_factors(parts_of(columns, weights, kept, sets), rows, 0, terms, response), strict=True
        ):
            some = Response(response.values[mine], response.cells.some(mine))
            alone = fit_factor(predictors(columns[mine], weights[mine], sets), rows[mine], 0, terms, some).factor
            for one, other in zip(found, alone, strict=True):
                # Both end where another step would gain little; standard errors are a tenth.
                np.testing.assert_allclose(one, other, rtol=5e-3, atol=1e-3)

    def test_a_fit_may_begin_at_that_of_other_terms(self):
        columns, sets, response, rng = ordered(400, 8)
        rows = np.column_stack([rng.normal(size=400), response.values])
        given = predictors(columns, np.ones(400), sets)
        for earlier in ("0", ""):
            rich, poor = Terms("2", "1", "1", cells=True), Terms("1", earlier, "0", cells=True)
            alone, other = (fit_factor(given, rows, 1, one, response) for one in (rich, poor))
            near = fit_factor(given, rows, 1, rich, response, other.factor)
            assert near.scores.sum() == pytest.approx(alone.scores.sum(), abs=0.01)
            # With no step to take it has the coefficients of the other.
            same = fit_factor(given, rows, 1, rich, response, other.factor, 0).factor
            for one, expected in zip(same[:5], other.factor[:5], strict=True):
                np.testing.assert_array_equal(one, expected)

    def test_the_fit_that_is_chosen_is_completed(self, monkeypatch):
        whole, real = [], choice.fit_factor

        def recorded(*given):
            found = real(*given)
            if len(given) < 7:
                whole.append(found)
            return found

        monkeypatch.setattr(choice, "fit_factor", recorded)
        columns, sets, response, _ = ordered(600, 9, scale=lambda x: np.exp(0.6 * x))
        given = predictors(columns, np.ones(600), sets)
        terms, fit = choice.choose_terms(given, np.empty((600, 0)), 0, response=response)
        assert terms.cells
        assert terms.scale != "0"
        assert any(fit is one for one in whole)

    def test_wide_cells_have_probabilities_and_narrow_ones_densities(self):
        rng = np.random.default_rng(6)
        theta = rng.normal(size=(500, 1))
        for rate, wide in ((0.5, True), (200.0, False)):
            rows = rng.poisson(rate * np.exp(0.2 * theta)).astype(float)
            support = Support(np.full(1, -np.inf), np.full(1, np.inf))
            form = choose_form(support, training_of(theta, rows, np.ones(500)), rows[0], True)
            assert form.terms[0].cells is wide and ("cells" in form.law.name) is wide

    def test_a_pile_of_zeros_has_a_probability(self):
        n = 1000
        cells = Cells(np.where(np.arange(n) % 10, 1.0, -np.inf), np.full(n, 1.001), np.full(n, math.log(0.001)))
        assert coarse(cells, np.ones(n), 0.0) and not coarse(cells.some(np.arange(n) % 10 > 0), np.ones(n - 100), 0.0)

    def test_numbers_are_compared_by_the_probabilities_of_cells(self):
        """Of numbers that depend on the parameter and on the number before, both are found."""
        rng = np.random.default_rng(8)
        theta = rng.normal(size=(800, 1))
        first = (rng.random(800) < special.expit(theta[:, 0])).astype(float)
        second = (rng.random(800) < special.expit(1.5 * theta[:, 0] + 2 * (first - 0.5))).astype(float)
        rows = np.column_stack([first, second])
        features = features_of(theta, 1, 3)
        low, high = (np.where(rows == end, sign * np.inf, 0.0) for end, sign in ((0.0, -1), (1.0, 1)))
        cells = Cells(low[:, 1], high[:, 1], np.zeros(800))
        given = predictors(features(theta), np.ones(800), features.sets())
        terms, fit = choose_terms(given, 2 * rows - 1, 1, response=Response(2 * second - 1, cells))
        assert terms.cells and terms.mean != "0" and terms.earlier == "0"
        assert fit.scores.mean() > fit_factor(
            given, 2 * rows - 1, 1, terms._replace(earlier=""), Response(2 * second - 1, cells)
        ).scores.mean() + 0.05  # fmt: skip


def whole_form(theta, rows, terms, warp=None):
    """Summaries that are whole numbers with cells, with features of the parameters as they are."""
    dim, width = theta.shape[1], rows.shape[1]
    warp = warp or Warp()
    there = warp(rows.ravel()).reshape(rows.shape)
    transform = Transform(
        np.arange(width), np.ones(width, dtype=bool), (warp,) * width, there.mean(axis=0), there.std(axis=0),
        open_ends(rows, rows[:1]),
    )  # fmt: skip
    coordinates = Coordinates(Support(np.full(dim, -np.inf), np.full(dim, np.inf)), ("unbounded",) * dim)
    return Form(coordinates, features_of(theta, dim, 6), transform, (terms,) * width, ResidualLaw("cells", ()))


class TestSurrogates:
    @pytest.mark.parametrize("warp", [Warp(), Warp("root", -0.5)], ids=str)
    def test_probabilities_of_all_numbers_sum_to_one(self, warp):
        """At every parameter, with the uncertainty of the coefficients, also if the second depends on the first."""
        rng = np.random.default_rng(9)
        theta = rng.normal(size=(200, 1))
        first = rng.binomial(3, special.expit(theta[:, 0]))
        second = rng.binomial(2, special.expit(theta[:, 0] + first - 1))
        rows = np.column_stack([first, second]).astype(float)
        surrogate = fit_surrogate(
            whole_form(theta, rows, Terms("1", "0", "1", cells=True), warp),
            training_of(theta, rows, np.ones(200)),
            None,
        )
        assert surrogate.leverages is not None
        each = [
            np.exp(surrogate.log_density(theta[:5], np.array(one, dtype=float))) for one in product(range(4), range(3))
        ]
        assert np.sum(each, axis=0) == pytest.approx(np.ones(5), rel=1e-9)
        # The frequency of the first number, whatever the second.
        zero = np.mean([
            np.exp(surrogate.log_density(theta, np.array([0.0, k]))) for k in (0.0, 1.0, 2.0)
        ], axis=1).sum()  # fmt: skip
        frequency = np.mean(first == 0)
        assert abs(zero - frequency) < 2 * math.sqrt(frequency * (1 - frequency) / 200)

    def test_probabilities_are_averaged_over_uncertain_coefficients(self):
        """A probit of a normal mean is the probit of that mean over the root of 1 and its variance."""
        rng = np.random.default_rng(12)
        theta = rng.normal(size=(60, 1))
        rows = (rng.random((60, 1)) < special.ndtr(0.3 + theta)).astype(float)
        surrogate = fit_surrogate(
            whole_form(theta, rows, Terms("1", "", "0", cells=True)), training_of(theta, rows, np.ones(60)), None
        )
        x = surrogate.form.columns(theta)[:, :2]
        mean = x @ surrogate.factors[0].mean[:2]
        threshold = surrogate.form.transform(np.array([[0.5]]))[0, 0]
        low, high = (np.where(rows[:, 0] == end, sign * np.inf, threshold) for end, sign in ((0.0, -1), (1.0, 1)))
        information = (x * slopes(low - mean, high - mean).curvature[:, None]).T @ x + np.diag([0.0, 1.0])
        exact = np.einsum("ij,jk,ik->i", x, np.linalg.inv(information), x)
        one = special.ndtri(np.exp(surrogate.log_density(theta, np.array([1.0]))))
        some = np.abs(mean - threshold) > 0.3
        found = np.square((mean - threshold)[some] / one[some]) - 1
        # What a simulation says is taken to be the same everywhere, right on average.
        assert found.mean() == pytest.approx(exact[some].mean(), rel=0.2) and exact.mean() > 0.03

    def test_a_density_and_a_probability_are_multiplied(self):
        rng = np.random.default_rng(10)
        theta = rng.normal(size=(300, 1))
        rows = np.column_stack([theta[:, 0] + rng.normal(size=300), rng.binomial(1, special.expit(theta[:, 0]))])
        form = choose_form(
            Support(np.full(1, -np.inf), np.full(1, np.inf)), training_of(theta, rows, np.ones(300)), rows[0], False
        )
        assert [one.cells for one in form.terms] == [False, True] and len(form.law.parts) == 1
        surrogate = fit_surrogate(form, training_of(theta, rows, np.ones(300)), None)
        at = np.linspace(-8, 8, 801)
        both = sum(
            np.trapezoid([np.exp(surrogate.log_density(theta[:3], np.array([y, k]))) for y in at], at, axis=0)
            for k in (0.0, 1.0)
        )
        assert both == pytest.approx(np.ones(3), abs=2e-3)

    def test_rows_that_are_alike_have_the_sum_of_their_log_probabilities(self):
        rng = np.random.default_rng(11)
        theta = rng.normal(size=(100, 1))
        rows = (rng.random((100, 4, 2)) < special.expit(theta)[:, :, None]).astype(float)
        form = whole_form(theta, rows.reshape(-1, 2), Terms("1", "0", "0", cells=True))
        surrogate = fit_surrogate(form, training_of(theta, rows, np.ones(100)), None)
        columns = surrogate.form.columns(theta[:6])
        whole = surrogate.log_likelihood(columns, surrogate.at(rows[:1])[0])
        each = [surrogate.log_likelihood(columns, one) for one in surrogate.at(rows[0])]
        assert whole == pytest.approx(np.sum(each, axis=0), rel=1e-9)


@pytest.mark.usefixtures("brief")
def test_the_posterior_of_yes_and_no_is_that_of_logistic_regression():
    """Against quadrature: a density at places in the cells is off by a third of a standard deviation."""
    at, errors = np.linspace(-2, 2, 14), []

    @od.batched
    def answers(rng, a, b):
        return (rng.random((len(a), 14)) < special.expit(a[:, None] + b[:, None] * at)).astype(float)

    axis = np.linspace(-6, 6, 241)
    grid = np.stack([one.ravel() for one in np.meshgrid(axis, axis, indexing="ij")], axis=1)
    for seed in (1, 2):
        rng = np.random.default_rng(seed)
        observed = (rng.random(14) < special.expit(0.5 + 1.2 * at)).astype(float)
        linear = grid[:, :1] + grid[:, 1:] * at
        log_posterior = (observed * linear - np.logaddexp(0, linear)).sum(axis=1) - 0.5 * np.square(grid / 1.5).sum(
            axis=1
        )
        weights = np.exp(log_posterior - log_posterior.max())
        mean = weights @ grid / weights.sum()
        sd = np.sqrt(weights @ np.square(grid - mean) / weights.sum())
        model = od.Model(od.Prior(a=stats.norm(0, 1.5), b=stats.norm(0, 1.5)), answers, observed)
        found = od.infer(model, budget=1_000, seed=seed).summary()
        errors += [(found[name].mean - m) / s for name, m, s in zip("ab", mean, sd, strict=True)]
        errors += [np.log(found[name].sd / s) for name, s in zip("ab", sd, strict=True)]
    assert np.sqrt(np.mean(np.square(errors))) < 0.15
