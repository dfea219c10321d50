"""Calibration of whole analyses: right ones pass at the stated rate, wrong ones are found, and nothing is lost."""

import itertools
import json
import math
import os
import signal
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import stats
from scipy.signal import lfilter

import onedraw as od
from onedraw.cli.main import main
from onedraw.cost import Cost
from onedraw.engines.streams import derived_seed
from onedraw.failures import NoAnswer
from onedraw.results.calibration import (
    LEVELS,
    Calibrated,
    Calibration,
    from_centre,
    independent_draws,
    place,
    placed,
    visible,
)
from onedraw.results.posterior import Posterior, Status
from onedraw.results.uniformity import (
    Uniformity,
    counts_of,
    ecdf_band,
    holm,
    p_of_bins,
    p_of_ecdf,
    staying,
    two_sided,
    uniformity,
)
from onedraw.run.registry import SAMPLERS, sampler
from onedraw.tuning.calibrate import BANK, DATA, draw_data_set
from tests.browser import Browser, fits, needs_chromium
from tests.deadlines import LONG, up_after

L = 99
POSTERIOR_SD = math.sqrt(0.5)
"""Of mu, with a standard normal prior and one observation of unit variance; the mean is half the observation."""


def simulate(rng, mu):
    return rng.normal(mu, 1.0)


@pytest.fixture(scope="module")
def model():
    return od.Model(od.Prior(mu=stats.norm(0, 1)), simulate, observed=2.0)


def exact(model, seed):
    """The exact posterior."""
    return np.random.default_rng(seed).normal(model.observed / 2, POSTERIOR_SD, size=L)


def narrow(model, seed):
    """20 % too narrow."""
    return np.random.default_rng(seed).normal(model.observed / 2, 0.8 * POSTERIOR_SD, size=L)


def biased(model, seed):
    """Too high by .4 posterior sds."""
    return 0.4 * POSTERIOR_SD + exact(model, seed)


def other_prior(model, seed):
    """The exact posterior under another prior: normal around 1."""
    return np.random.default_rng(seed).normal((model.observed + 1) / 2, POSTERIOR_SD, size=L)


def same(one, other):
    """Whether two calibrations are equal, byte for byte, and cost as much."""
    arrays = ("places", "theta", "mean", "sd", "picked", "draws", "prior_sd")
    assert [name for name in arrays if getattr(one, name).tobytes() != getattr(other, name).tobytes()] == []
    assert one.cost[:6] == other.cost[:6] and one.summary() == other.summary()


# Uniform or not: exact answers


def compositions(n, cells):
    """All counts of n places in cells, with their multinomial probabilities."""
    for counts in itertools.product(range(n + 1), repeat=cells):
        if sum(counts) == n:
            yield np.array(counts), float(stats.multinomial.pmf(counts, n, np.full(cells, 1 / cells)))


@pytest.mark.parametrize(("n", "cells"), [(6, 4), (5, 5), (9, 3)])
def test_the_law_of_the_ecdf_test_is_exact(n, cells):
    tails = two_sided(n, cells)
    places = np.arange(cells - 1)
    every = [(tails[np.cumsum(counts)[:-1], places].min(), p, counts) for counts, p in compositions(n, cells)]
    for least, _, counts in every:
        wanted = sum(p for other, p, _ in every if other <= least * (1 + 1e-9))
        assert p_of_ecdf(counts) == pytest.approx(wanted, abs=1e-12)


def test_the_band_holds_with_its_probability_by_enumeration():
    n, cells = 8, 4
    low, high = ecdf_band(n, cells, 0.8)
    inside = sum(
        p
        for counts, p in compositions(n, cells)
        if ((np.cumsum(counts) / n >= low[1:]) & (np.cumsum(counts) / n <= high[1:])).all()
    )
    tails = two_sided(n, cells)
    levels = np.unique(tails)
    # The widest band but one: with it, the probability would be below.
    assert inside >= 0.8
    tighter = min(staying(n, tails > level) for level in levels if staying(n, tails > level) >= 0.8)
    assert inside == pytest.approx(tighter, abs=1e-12)


def test_the_band_of_many_data_sets():
    rng, (low, high) = np.random.default_rng(1), ecdf_band(200, 100)
    share = [np.r_[0, np.cumsum(counts_of(rng.random(200), 100))] / 200 for _ in range(2000)]
    inside = np.mean([((one >= low - 1e-12) & (one <= high + 1e-12)).all() for one in share])
    assert abs(inside - 0.95) < 3.5 * math.sqrt(0.95 * 0.05 / 2000)


def test_bins_are_those_of_a_chi_squared_test():
    counts = counts_of(np.random.default_rng(1).random(200), 100)
    assert p_of_bins(counts) == pytest.approx(stats.chisquare(counts.reshape(10, 10).sum(axis=1)).pvalue)


@pytest.mark.parametrize("number", [400, pytest.param(1500, marks=pytest.mark.slow)])
def test_each_test_keeps_its_level(number):
    rng = np.random.default_rng(2)
    p = np.array([uniformity(rng.random(200), 100).p_values for _ in range(number)])
    for level in (0.05, 0.2):
        # The bins' law is an approximation, and that of the ecdf is discrete.
        error = 3.5 * math.sqrt(level * (1 - level) / len(p))
        assert (abs((p[:, :2] < level).mean(axis=0) - level) < error).all()
        assert ((p[:, 2:] < level).mean(axis=0) < level + error).all()


def test_holm_is_bonferroni_for_the_smallest():
    p = np.array([0.2, 0.001, 0.04, 0.04])
    assert holm(p).tolist() == [0.2, 0.004, 0.12, 0.12]


# Places


def test_a_place_is_uniform_for_every_number_of_draws():
    rng = np.random.default_rng(3)
    for draws in (1, 2, 7):
        found = np.array([place(rng.normal(size=draws + 1), rng) for _ in range(2000)])
        assert stats.kstest(found, "uniform").pvalue > 1e-3


def test_a_place_among_ties_is_uniform():
    rng = np.random.default_rng(4)
    found = np.array([place(rng.integers(0, 3, size=6).astype(float), rng) for _ in range(3000)])
    assert stats.kstest(found, "uniform").pvalue > 1e-3


def test_the_first_value_is_placed_among_the_others():
    rng = np.random.default_rng(5)
    assert 0.75 < place(np.array([9.0, 1.0, 2.0, 3.0]), rng) < 1
    assert 0 < place(np.array([0.0, 1.0, 2.0, 3.0]), rng) < 0.25


def test_the_joint_distance_is_mahalanobis():
    rng = np.random.default_rng(6)
    truth, draws = rng.normal(size=2), rng.normal(size=(50, 2)) @ np.array([[1.0, 0.9], [0.0, 0.5]])
    every = np.vstack([truth, draws])
    away, inverse = every - every.mean(axis=0), np.linalg.inv(np.cov(every.T, bias=True))
    assert from_centre(truth, draws) == pytest.approx(np.einsum("ij,jk,ik->i", away, inverse, away), abs=1e-8)


def test_fewer_draws_than_parameters_are_ties():
    rng = np.random.default_rng(7)
    assert len(np.unique(from_centre(rng.normal(size=5), rng.normal(size=(3, 5))))) == 1


def posterior(draws, weights=None, independent=False):
    return Posterior({"mu": draws}, weights, None, math.nan, math.nan, Cost(), Status("finished", ""), 1, {},
                     independent=independent)  # fmt: skip


def places_of(make, number, seed):
    """Places of a standard normal truth in `number` posteriors that are right: standard normal as well."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(number):
        post = make(rng)
        found.append(placed(rng.normal(size=1), post, L, rng.normal(size=1), np.ones(1), rng))
    return np.array([one.places for one in found]), np.array([one.picked for one in found])


def weighted(rng):
    """Importance draws: from a normal with sd 2.5."""
    draws = rng.normal(0, 2.5, size=(1, 150))
    weights = np.exp(-(draws**2) / 2 + draws**2 / 12.5)
    return posterior(draws, weights / weights.sum())


def chains(rng):
    """Four stationary chains of an autoregression."""
    first, noise = rng.normal(size=4), rng.normal(0, math.sqrt(1 - 0.9**2), size=(4, 300))
    noise[:, 0] = first
    return posterior(lfilter([1.0], [1.0, -0.9], noise))


@pytest.mark.parametrize("make", [weighted, chains])
def test_places_among_weighted_draws_and_in_chains_are_uniform(make):
    found, picked = places_of(make, 600, 8)
    assert 20 < np.median(picked) < L
    for column in found.T:
        assert min(uniformity(column, 100).p_values) > 1e-3


def test_places_would_not_be_uniform_without_thinning():
    """What the rule is for: the same chains with all draws taken for independent ones."""
    found, _ = places_of(lambda rng: replace(chains(rng), independent=True), 600, 8)
    short, _ = places_of(lambda rng: posterior(chains(rng).draws["mu"][:, :30], independent=True), 600, 8)
    assert uniformity(short[:, 0], 100).p_width < 1e-3 and found.shape == short.shape


def test_how_many_draws_count():
    rng = np.random.default_rng(9)
    assert independent_draws(posterior(rng.normal(size=(1, 60)), independent=True), L) == 60
    assert independent_draws(posterior(rng.normal(size=(1, 600)), independent=True), L) == L
    heavy = np.r_[0.5, np.full(99, 0.5 / 99)][None]
    assert independent_draws(posterior(rng.normal(size=(1, 100)), heavy), L) == 2
    assert independent_draws(posterior(np.zeros((2, 50))), L) == 1


def test_joint_places_are_ranks_of_distances():
    """Each column of the places has the rank of its own distance; TARP's is in units of the scale."""
    rng = np.random.default_rng(15)
    truth, reference, scale = np.array([1.5, 0.0]), np.array([0.0, 4.0]), np.array([1.0, 20.0])
    draws = rng.normal(size=(60, 2)) * (1.0, 10.0)
    post = replace(
        posterior(draws[None, :, 0], independent=True), draws={"a": draws[None, :, 0], "b": draws[None, :, 1]}
    )
    found = placed(truth, post, L, reference, scale, rng)
    every = np.vstack([truth, draws])
    columns = [*every.T, from_centre(truth, draws), np.linalg.norm((every - reference) / scale, axis=1)]
    wanted = [int((one[1:] < one[0]).sum()) for one in columns]
    assert (found.places * 61).astype(int).tolist() == wanted and len(set(wanted)) == 4
    unscaled = np.linalg.norm(every - reference, axis=1)
    assert wanted[3] != (unscaled[1:] < unscaled[0]).sum()
    assert found.mean == pytest.approx(draws.mean(axis=0)) and found.sd == pytest.approx(draws.std(axis=0))


def test_a_posterior_without_draws_has_no_place():
    found = placed(np.zeros(1), posterior(np.empty((1, 0))), L, np.zeros(1), np.ones(1), np.random.default_rng(1))
    assert np.isnan(found.places).all() and found.picked == found.draws == 0


# The verdict: its false alarms, and what it finds


def calibration_of(rng, shift=0.0, width=1.0, number=200):
    """A calibration of posteriors of mu that are normal, moved by `shift` sds and `width` times as wide."""
    mu = rng.normal(size=number)
    mean = (mu + rng.normal(size=number)) / 2 + shift * POSTERIOR_SD
    draws = rng.normal(mean[:, None], width * POSTERIOR_SD, size=(number, L))
    reference = rng.normal(size=number)
    every = np.concatenate([mu[:, None], draws], axis=1)
    centred = np.abs(every - every.mean(axis=1, keepdims=True))
    away = np.abs(every - reference[:, None])
    ranks = np.array([(one[:, 1:] < one[:, :1]).sum(axis=1) for one in (every, centred, away)]).T
    places = (ranks + rng.random(ranks.shape)) / (L + 1)
    sd = draws.std(axis=1)[:, None]
    full, one = np.full(number, L), np.ones(1)
    settings = {"method": "exact", "budget": None, "data_sets": number, "shared": False, "arguments": {}}
    return Calibration(("mu",), places, mu[:, None], mean[:, None], sd, full, full, one, 100, Cost(), 1, settings)


@pytest.mark.parametrize("number", [200, pytest.param(500, marks=pytest.mark.slow)])
def test_a_right_analysis_is_green_at_the_stated_rate(number):
    rng = np.random.default_rng(10)
    levels = [calibration_of(rng).level for _ in range(number)]
    alarms = 1 - levels.count("green") / len(levels)
    # At most 5 %; adjusting for tests that go together makes it less, and not much less.
    assert 0.01 < alarms < 0.05 + 3 * math.sqrt(0.05 * 0.95 / number)
    assert levels.count("red") / len(levels) < 0.01 + 3 * math.sqrt(0.01 * 0.99 / number)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"width": 0.8}, "too narrow"),
        ({"width": 1.3}, "too wide"),
        ({"shift": 0.4}, "too high"),
        ({"shift": -0.4}, "too low"),
    ],
)
def test_wrong_analyses_are_found(wrong, told):
    rng = np.random.default_rng(11)
    found = [calibration_of(rng, **wrong) for _ in range(50)]
    assert sum(one.level != "green" for one in found) >= 40
    assert sum(any(told in line for line in one.findings) for one in found) >= 40


def test_what_would_have_been_found_is_found_in_nine_of_ten_cases():
    smallest, rng = visible(200, 3), np.random.default_rng(12)
    for wrong in ({"shift": smallest.bias}, {"width": 1 - smallest.width}):
        power = np.mean([calibration_of(rng, **wrong).level != "green" for _ in range(150)])
        assert 0.8 < power <= 1


@pytest.mark.parametrize(
    ("method", "level", "told"),
    [
        (exact, "green", ""),
        (narrow, "red", "the posterior of mu is too narrow (its sd is 0."),
        (biased, "red", "the posterior of mu is too high (by 0."),
        (other_prior, "red", "the posterior of mu is too high (by 0."),
    ],
)
def test_with_200_data_sets(model, method, level, told):
    found = od.calibrate(model, method, seed=2)
    assert found.level == level and len(found.picked) == 200
    assert any(told in line for line in found.findings) or not told
    assert level in found.summary() and found.cost.simulations == 200
    assert found["mu"].sharpness == pytest.approx(POSTERIOR_SD * (0.8 if method is narrow else 1), abs=0.05)


def test_a_prior_in_place_of_the_posterior_is_not_sharp(model):
    found = od.calibrate(model, lambda model, seed: np.random.default_rng(seed).normal(size=L), seed=1)
    assert found["mu"].sharpness == pytest.approx(1.0, abs=0.05)


def test_a_small_error_is_amber_however_sure_it_is():
    rng = np.random.default_rng(13)
    found = calibration_of(rng, shift=0.07, number=20_000)
    assert found["mu"].p < 1e-6 and found["mu"].level == "amber"


@pytest.mark.parametrize(
    ("p", "bias", "width", "difference", "level"),
    [
        (0.009, 0.1, 1.09, 0.05, "amber"),
        (0.009, 0.11, 1.0, 0.0, "red"),
        (0.009, -0.11, 1.0, 0.0, "red"),
        (0.009, 0.0, 1.11, 0.0, "red"),
        (0.009, 0.0, 0.89, 0.0, "red"),
        (0.009, 0.0, 1.0, 0.051, "red"),
        (0.009, math.nan, math.nan, 0.05, "amber"),
        (0.009, math.nan, math.nan, 0.051, "red"),
        (0.011, 0.5, 0.5, 0.5, "amber"),
        (0.051, 0.5, 0.5, 0.5, "green"),
    ],
)
def test_red_is_for_errors_that_are_sure_and_matter(p, bias, width, difference, level):
    tests = Uniformity(0.0, 1.0, difference, 1.0, 1.0, 1.0, 1.0)
    assert Calibrated("mu", tests, (1.0, 1.0, p, 1.0), (0.5, 0.8, 0.9, 0.95), bias, width, 0.5).level == level


@pytest.mark.parametrize(("width", "told"), [(0.6, "too small"), (1.7, "too large")])
def test_regions_of_all_parameters_have_their_own_words(width, told):
    found = calibration_of(np.random.default_rng(16), width=width)
    assert found["joint"].told.startswith(f"joint regions are {told}: 90 % regions contain the truth in ")


def test_sharpness_is_a_root_mean_square_over_the_prior():
    found = calibration_of(np.random.default_rng(17), number=200)
    found = replace(found, sd=np.tile([[1.0], [7.0]], (100, 1)), prior_sd=np.array([10.0]))
    assert found["mu"].sharpness == pytest.approx(0.5)


def test_ranks_are_those_that_the_places_were_made_of():
    found, every = calibration_of(np.random.default_rng(18)), np.arange(200)[:, None] // 2
    for within in (1e-9, 0.5, 1 - 1e-9):
        assert (replace(found, places=(every + within).repeat(3, 1) / 100).ranks == every).all()


def test_coverage_is_the_share_of_intervals_that_hold_the_truth():
    """Of posteriors half as wide as they should be, with ends of intervals that 99 draws know to a few percent."""
    found = calibration_of(np.random.default_rng(14), width=0.5, number=2000)
    # The joint region of a single parameter is its central interval.
    for level, held, joint in zip(LEVELS, found["mu"].coverage, found["joint"].coverage, strict=True):
        exactly = 2 * stats.norm.cdf(0.5 * stats.norm.ppf((1 + level) / 2)) - 1
        error = 0.01 + 3.5 * math.sqrt(exactly * (1 - exactly) / 2000)
        assert held == pytest.approx(exactly, abs=error) and joint == pytest.approx(exactly, abs=error)
    with pytest.raises(KeyError, match="there is no 'nu'"):
        found["nu"]


# Data sets


FORMS = {
    "plain": (lambda rng, mu: rng.normal(mu, 1.0, size=3), np.zeros(3), None),
    "dict": (lambda rng, mu: {"y": rng.normal(mu, 1.0, size=3), "n": 2}, {"y": np.zeros(3), "n": 2}, None),
    "summary": (lambda rng, mu: rng.normal(mu, 1.0, size=3), np.zeros(3), np.mean),
    "any size": (lambda rng, mu: rng.normal(mu, 1.0, size=rng.integers(3, 9)).tolist(), [0.0, 1.0], lambda y: sum(y)),
    "batched": (
        od.batched(lambda rng, mu: rng.normal(mu[:, None], 1.0, size=(len(mu), 3))), np.zeros(3),
        od.batched(lambda y: y.mean(axis=1)),
    ),
    "plain, batched summary": (
        lambda rng, mu: {"y": rng.normal(mu, 1.0, size=3)}, {"y": np.zeros(3)},
        od.batched(lambda y: y["y"].mean(axis=1)),
    ),
    "staged": (
        od.staged(lambda mu: mu, lambda rng, mu, m: rng.normal(mu, 1.0, size=(m, 3))), np.zeros(3), np.mean,
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_data_set_has_the_form_of_the_observed_one(form):
    simulator, observed, summary = FORMS[form]
    model = od.Model(od.Prior(mu=stats.norm(0, 1)), simulator, observed, summary=summary)
    theta, made, found = draw_data_set(model, 7, "reject")
    assert theta.shape == (1,) and found.cost.simulations == 1
    assert type(made.observed) is type(model.observed)
    if not isinstance(observed, dict | list):
        assert made.observed.shape == observed.shape
    # What the analysis sees is the summary of these very data.
    assert made.observed_row == pytest.approx(found.rows[0, 0]) and not (made.observed_row == 0).all()


def test_compiled_simulators_have_their_data_too():
    pytest.importorskip("numba")

    model = od.Model(
        od.Prior(mu=stats.norm(0, 1)), od.compiled(lambda rng, mu: rng.normal(mu, 1.0, 3)), np.zeros(3), summary=np.mean
    )
    _, made, _ = draw_data_set(model, 7, "reject")
    assert made.observed.shape == (3,) and made.observed_row[0] == pytest.approx(made.observed.mean())


def test_a_simulation_that_fails_is_drawn_again_and_counted():
    def sometimes(rng, mu):
        return math.nan if mu < 0 else rng.normal(mu, 1.0)

    model = od.Model(od.Prior(mu=stats.norm(0, 1)), sometimes, observed=2.0)
    found = od.calibrate(model, exact, data_sets=40, seed=1)
    assert (found.theta > 0).all() and found.cost.simulations == 40 + found.cost.failed > 60


def test_a_model_that_always_fails_is_refused():
    model = od.Model(od.Prior(mu=stats.norm(0, 1)), lambda rng, mu: math.nan, observed=2.0)
    with pytest.raises(od.SimulationError, match="gave no data set"):
        od.calibrate(model, exact, data_sets=20, seed=1)


def test_discrete_parameters_have_uniform_places():
    """k of 10 with a Poisson observation: many draws equal the truth."""
    prior = od.Prior(k=stats.randint(1, 5))
    model = od.Model(prior, lambda rng, k: rng.poisson(k), observed=3)
    values = np.arange(1, 5)

    def enumerated(model, seed):
        p = stats.poisson.pmf(int(model.observed), values)
        return np.random.default_rng(seed).choice(values, size=L, p=p / p.sum())

    assert od.calibrate(model, enumerated, data_sets=300, seed=1).level == "green"


# Methods and their arguments


def test_samplers_are_called_with_their_arguments(model):
    found = od.calibrate(
        model,
        od.rejection,
        budget=300,
        data_sets=20,
        seed=1,
        arguments={"kernel": od.uniform(0.5), "pseudo_samples": 3},
    )
    assert found.cost.simulations == 20 * 301 and found.cost.proposals == 20 * 100
    assert found.settings["method"] == "rejection" and "uniform" in found.settings["arguments"]["kernel"]


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        (od.pseudo_marginal, {"kernel": od.uniform(0.3), "chains": 2}),
        (od.smc, {"kernel": od.uniform(0.5), "particles": 50}),
        (od.importance, {"kernel": od.uniform(0.5)}),
    ],
)
def test_chains_and_weighted_samplers(method, arguments):
    fast = od.Model(od.Prior(mu=stats.norm(0, 1)), od.batched(simulate), observed=2.0)
    found = od.calibrate(fast, method, budget=800, data_sets=20, seed=1, arguments=arguments)
    assert found.level == "green" and found.cost.simulations <= 20 * 801
    assert (found.picked <= L).all() and found.number == 20


def test_methods_may_return_draws_in_any_form(model):
    forms = [
        exact,
        lambda model, seed: exact(model, seed)[:, None],
        lambda model, seed: {"mu": exact(model, seed)},
        lambda model, seed: posterior(exact(model, seed)[None], independent=True),
    ]
    found = [od.calibrate(model, one, data_sets=20, seed=1) for one in forms]
    assert all((one.places == found[0].places).all() for one in found)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (np.zeros((5, 2)), "it must return a Posterior"),
        ({"nu": np.zeros(5)}, "no draws of mu"),
        (math.nan, "finite draws"),
    ],
)
def test_a_method_that_returns_something_else_is_told(model, value, told):
    with pytest.raises(ValueError, match=told) as error:
        od.calibrate(model, lambda model, seed: value, data_sets=20, seed=1)
    assert "In the analysis of data set 0, drawn at mu = " in error.value.__notes__[0]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"method": 3}, "method must be a sampler"),
        ({"method": od.rejection, "budget": 10}, "cannot be called with these arguments"),
        ({"method": od.infer}, "missing a required argument: 'budget'"),
        ({"method": exact, "arguments": {"seed": 3}}, "give it to od.calibrate itself, as seed="),
        ({"method": exact, "arguments": [1]}, "arguments must be a dict"),
        ({"method": exact, "data_sets": 10}, "data_sets must be a whole number of at least 20"),
        ({"method": exact, "ranks": 101}, "ranks must be a multiple of 10"),
        ({"method": exact, "shared": True}, "shared=True is for od.rejection and od.infer"),
        ({"method": od.infer, "shared": True}, "shared=True needs budget="),
        ({"method": od.rejection, "shared": True, "budget": 100}, "arguments must have a kernel"),
        ({"method": od.infer, "shared": True, "budget": 100, "arguments": {"coverage": 3}}, "takes draws"),
        ({"method": exact, "wrong": 3}, "there is no option 'wrong'"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_simulated(given, told):
    model = od.Model(od.Prior(mu=stats.norm(0, 1)), lambda rng, mu: pytest.fail("simulated"), observed=2.0)
    with pytest.raises((ValueError, TypeError), match=told):
        od.calibrate(model, **{"seed": 1, **given})


def test_data_sets_without_a_posterior_are_told(model):
    found = od.calibrate(model, od.rejection, budget=40, data_sets=60, seed=1, arguments={"kernel": od.uniform(0.05)})
    assert found.unanswered > 3 and found.level == "red" and found.number == len(found.ranks) == 60 - found.unanswered
    assert "gave no draws" in found.findings[-1]
    few = replace(
        found, picked=np.where(np.arange(60) == 0, 0, L), places=np.linspace(0.01, 0.99, 60)[:, None].repeat(3, 1)
    )
    assert few.level == "amber" and few.headline == "1 of 60 data sets have no posterior"
    assert "Raise the tolerance or the budget" in few.summary() and few.number == 59


def test_analyses_that_give_nothing_are_refused(model):
    with pytest.raises(NoAnswer, match="only 0 of 20 analyses gave draws"):
        od.calibrate(model, od.rejection, budget=5, data_sets=20, seed=1, arguments={"kernel": od.uniform(1e-9)})


def test_a_sampler_of_your_own_is_known_to_workers(model):
    """It is registered in this process alone."""

    @sampler()
    def fixed_tolerance(model, *, budget, **options):
        post = od.rejection(model, od.uniform(0.5), budget=budget, **options)
        return replace(post, settings={**post.settings, "algorithm": "fixed_tolerance"})

    try:
        given = {"budget": 100, "data_sets": 20, "seed": 1}
        same(od.calibrate(model, fixed_tolerance, **given), od.calibrate(model, fixed_tolerance, workers=2, **given))
    finally:
        del SAMPLERS["fixed_tolerance"]


# One bank for all data sets


def test_shared_rejection_has_the_draws_of_rejection(model):
    """With a uniform kernel, the bank gives what od.rejection gives with the bank's seed, data set by data set."""
    kernel, bank_seed = od.uniform(0.5), derived_seed(1, BANK)
    shared = od.calibrate(
        model, od.rejection, budget=2000, data_sets=60, shared=True, seed=1, arguments={"kernel": kernel}
    )
    each = od.calibrate(
        model, lambda model, seed: od.rejection(model, kernel, budget=2000, seed=bank_seed), data_sets=60, seed=1
    )
    assert shared.places.tobytes() == each.places.tobytes() and shared.sd.tobytes() == each.sd.tobytes()
    assert shared.cost.simulations == 2060 and each.cost.simulations == 60 * 2001


def test_shared_and_separate_rejection_agree():
    """Both have the same expected coverage: the ABC posterior is too wide, by as much."""
    fast = od.Model(od.Prior(mu=stats.norm(0, 1)), od.batched(simulate), observed=2.0)
    given = {"data_sets": 300, "arguments": {"kernel": od.gaussian(1.5)}}
    shared = od.calibrate(fast, od.rejection, budget=20_000, shared=True, seed=1, **given)
    separate = od.calibrate(fast, od.rejection, budget=1000, seed=2, **given)
    one, other = shared["mu"], separate["mu"]
    assert one.sharpness == pytest.approx(other.sharpness, rel=0.02)
    # The widths are known to 1/sqrt(2n) each.
    assert abs(one.width / other.width - 1) < 3.5 / math.sqrt(300)
    assert one.width == pytest.approx(math.sqrt(1 - 1 / (1 + 1 + 1.5**2)) / POSTERIOR_SD, rel=0.15)


def test_a_learnt_distance_is_shared_too():
    model = od.Model(
        od.Prior(mu=stats.norm(0, 1)), od.batched(lambda rng, mu: rng.normal(mu[:, None], (1.0, 100.0), (len(mu), 2))),
        observed=[0.0, 0.0], distance=od.scaled(pilot=200),
    )  # fmt: skip
    found = od.calibrate(
        model, od.rejection, budget=5000, data_sets=40, shared=True, seed=1, arguments={"kernel": od.uniform(0.3)}
    )
    assert found.cost.simulations == 5040 and found.number == 40


@pytest.mark.parametrize(("number", "fewest"), [(8, 6), pytest.param(25, 21, marks=pytest.mark.slow)])
def test_shared_right_analyses_are_green_at_the_stated_rate(number, fewest):
    """Data sets that share a bank are not independent: its own error must be small against that of the tests."""
    fast = od.Model(od.Prior(mu=stats.norm(0, 1)), od.batched(simulate), observed=2.0)
    given = {"budget": 5000, "data_sets": 100, "shared": True, "arguments": {"kernel": od.uniform(0.1)}}
    levels = [od.calibrate(fast, od.rejection, seed=seed, **given).level for seed in range(number)]
    # Passed by fewer in about one set in a hundred.
    assert levels.count("green") >= fewest


def test_a_small_bank_is_told(model):
    found = od.calibrate(
        model, od.rejection, budget=100, data_sets=20, shared=True, seed=1, arguments={"kernel": od.uniform(1.0)}
    )
    assert any("give at least 200" in note for note in found.notes)


def test_shared_and_separate_infer_agree(quick):
    """Both ways find the exact posterior of each data set, as far as 80 simulations can."""
    fast = od.Model(od.Prior(mu=stats.norm(0, 1)), od.batched(simulate), observed=2.0)
    shared = od.calibrate(fast, budget=80, data_sets=20, seed=2, shared=True, arguments={"draws": 200})
    assert shared.cost.simulations == 100
    errors = []
    for number in range(20):
        _, one, _ = draw_data_set(fast, derived_seed(2, DATA, number), "reject")
        errors.append((shared.mean[number, 0] - one.observed / 2) / POSTERIOR_SD)
        if number < 3:
            separate = od.infer(one, budget=80, draws=200, seed=number).draws["mu"]
            assert abs(separate.mean() - shared.mean[number, 0]) < 0.6 * POSTERIOR_SD
            assert separate.std() == pytest.approx(shared.sd[number, 0], rel=0.4)
    # In posterior sds; all data sets share the bank, and with it most of the error.
    assert np.median(np.abs(errors)) < 3 / math.sqrt(80)
    assert shared["mu"].sharpness == pytest.approx(POSTERIOR_SD, rel=0.2)


# Files, workers, signals


def test_workers_change_nothing(model):
    given = {"budget": 200, "data_sets": 24, "seed": 1, "arguments": {"kernel": od.uniform(0.5)}}
    same(od.calibrate(model, od.rejection, **given), od.calibrate(model, od.rejection, workers=2, **given))


class Killed(BaseException):
    """Raised where a run is to end without warning."""


def test_a_killed_calibration_continues_with_the_same_bytes(model, tmp_path):
    file, calls = tmp_path / "calibration.db", itertools.count()

    def dying(model, seed):
        if next(calls) == 30:
            raise Killed
        return exact(model, seed)

    with pytest.raises(Killed):
        od.calibrate(model, dying, data_sets=50, seed=1, store=file, segment=1e-9)
    resumed = od.calibrate(model, dying, data_sets=50, seed=1, store=file)
    # The one that was killed is made again, and no other.
    assert next(calls) == 51
    same(resumed, replace(od.calibrate(model, exact, data_sets=50, seed=1), settings=resumed.settings))


def test_more_data_sets_may_be_asked_for_and_nothing_else(model, tmp_path):
    file = tmp_path / "calibration.db"
    given = {"budget": 100, "arguments": {"kernel": od.uniform(0.5)}, "store": file}
    od.calibrate(model, od.rejection, data_sets=20, seed=1, **given)
    more = od.calibrate(model, od.rejection, data_sets=30, **given)
    same(more, od.calibrate(model, od.rejection, data_sets=30, seed=1, **{**given, "store": None}))
    with pytest.raises(od.StoreError, match="data_sets: 30 -> 20"):
        od.calibrate(model, od.rejection, data_sets=20, **given)
    with pytest.raises(od.StoreError, match="each: 100 -> 200"):
        od.calibrate(model, od.rejection, data_sets=30, **{**given, "budget": 200})
    with pytest.raises(od.StoreError, match="arguments changed"):
        od.calibrate(model, od.rejection, data_sets=30, **{**given, "arguments": {"kernel": od.uniform(0.6)}})
    with pytest.raises(od.StoreError, match="method: rejection -> exact"):
        od.calibrate(model, exact, data_sets=30, store=file)
    other = replace(model, observed=3.0)
    with pytest.raises(od.StoreError, match="Repeat the call that it was made with, or give store= another") as error:
        od.calibrate(other, od.rejection, data_sets=30, **given)
    assert "resume" not in str(error.value)
    with pytest.raises(od.StoreError, match=r"what od\.calibrate has measured"):
        od.load(file)


def test_a_shared_calibration_continues_too(model, tmp_path):
    given = {"budget": 500, "shared": True, "arguments": {"kernel": od.gaussian(0.5)}, "seed": 1}
    od.calibrate(model, od.rejection, data_sets=20, store=tmp_path / "one.db", **given)
    more = od.calibrate(model, od.rejection, data_sets=40, store=tmp_path / "one.db", **given)
    same(more, od.calibrate(model, od.rejection, data_sets=40, **given))
    assert more.cost.simulations == 540


def test_max_seconds_gives_what_was_done(model):
    given = {"budget": 20, "arguments": {"kernel": od.uniform(1.0)}, "seed": 1}
    with up_after(25):
        found = od.calibrate(model, od.rejection, data_sets=100, max_seconds=LONG, **given)
    assert 20 <= len(found.picked) < 30 and f"max_seconds passed after {len(found.picked)} of 100" in found.notes[0]
    whole = od.calibrate(model, od.rejection, data_sets=30, **given)
    assert (found.places == whole.places[: len(found.picked)]).all()
    with up_after(5), pytest.raises(TimeoutError, match="20 are needed"):
        od.calibrate(model, od.rejection, data_sets=20, max_seconds=LONG, **given)


def test_time_is_up_within_an_analysis(model):
    """An analysis that its own simulations make too long is given up, not taken for a posterior."""

    def endless(rng, mu):
        time.sleep(0.01)
        return rng.normal(mu, 1.0)

    slow = replace(model, simulate=endless)
    began = time.perf_counter()
    with pytest.raises(TimeoutError, match="max_seconds passed after 0 data sets"):
        od.calibrate(
            slow,
            od.rejection,
            budget=10**6,
            data_sets=20,
            seed=1,
            max_seconds=0.2,
            arguments={"kernel": od.uniform(1.0)},
        )
    assert time.perf_counter() - began < 30


def test_ctrl_c_within_an_analysis_ends_the_calibration(model, tmp_path):
    file, calls = tmp_path / "calibration.db", itertools.count()

    def interrupted(rng, mu):
        if next(calls) == 999:
            os.kill(os.getpid(), signal.SIGINT)
        return rng.normal(mu, 1.0)

    one = replace(model, simulate=interrupted)
    given = {"budget": 50, "data_sets": 30, "arguments": {"kernel": od.uniform(0.5)}, "seed": 1}
    with pytest.raises(KeyboardInterrupt):
        od.calibrate(one, od.rejection, store=file, **given)
    assert 1000 <= next(calls) < 1100
    resumed = od.calibrate(one, od.rejection, store=file, **given)
    assert next(calls) < 30 * 51 + 60
    same(resumed, od.calibrate(one, od.rejection, **given))


def test_progress_is_shown(model):
    ticks = []
    od.calibrate(model, exact, data_sets=30, seed=1, progress=ticks.append)
    assert ticks[-1].done == ticks[-1].total == 30 and ticks[-1].unit == "data sets"


# The page and the command line


def test_the_page_shows_everything(model, tmp_path):
    prior = od.Prior(mu=stats.norm(0, 1), nu=stats.norm(0, 1))
    two = od.Model(prior, lambda rng, **both: rng.normal(list(both.values()), 1.0), observed=[0.0, 0.0])

    def method(model, seed):
        return np.random.default_rng(seed).normal(model.observed / 2, (POSTERIOR_SD, 0.5 * POSTERIOR_SD), size=(L, 2))

    found = od.calibrate(two, method, data_sets=100, seed=1)
    text = found.report(tmp_path / "calibration.html").read_text()
    assert text.count("<img") == 3 * 4 and "<script" not in text
    assert found.headline in text and 'class="verdict red"' in text and "http:" not in text
    assert text == found.report(tmp_path / "again.html").read_text()


def test_the_page_of_a_right_analysis_is_green(model, tmp_path, unrendered):
    green = od.calibrate(model, exact, data_sets=60, seed=1).report(tmp_path / "green.html").read_text()
    assert 'class="verdict green"' in green and "would have been found" in green


@needs_chromium
@pytest.mark.parametrize(
    ("width", "dark"),
    [(1200, False), (400, True), pytest.param(1200, True, marks=pytest.mark.slow),
     pytest.param(400, False, marks=pytest.mark.slow), pytest.param(390, True, marks=pytest.mark.slow)],
)  # fmt: skip
def test_the_page_fits_its_window_and_scheme(model, tmp_path, width, dark):
    page = od.calibrate(model, exact, data_sets=40, seed=1).report(tmp_path / "calibration.html")
    browser = Browser(tmp_path)
    try:
        assert fits(browser, page, width, dark) == 9
        assert browser.run("[...document.images].map(i => i.naturalWidth > 0 && i.width > 250)") == [True] * 9
        assert browser.console == []
    finally:
        browser.close()


def test_the_page_is_no_run(model, tmp_path, unrendered):
    found = od.calibrate(model, exact, data_sets=20, seed=1, store=tmp_path / "one.db")
    with pytest.raises(OSError, match="cannot be written"):
        found.report(tmp_path / "one.db")


MODEL = """
import onedraw as od
from scipy import stats

def simulate(rng, mu):
    return rng.normal(mu, 1.0)

model = od.Model(od.Prior(mu=stats.norm(0, 1)), simulate, observed=2.0)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "problem.py").write_text(MODEL)
    return tmp_path


def test_the_command(folder, unrendered):
    command = ["calibrate", "problem.py", "--eps", "0.5", "--budget", "300", "--data-sets", "20", "--seed", "1"]
    ran = CliRunner().invoke(main, command)
    assert ran.exit_code == 0, ran.output
    assert "calibration of rejection on 20 data sets" in ran.stdout
    assert (folder / "problem_calibration.html").exists() and (folder / "problem_calibration.db").exists()
    command += ["-o", "page.html", "--shared", "--json"]
    told = json.loads(CliRunner().invoke(main, command).stdout)
    assert told["cost"]["simulations"] == 320 and told["rows"]["mu"]["coverage"] and told["path"] == "page.html"
    wrong = CliRunner().invoke(main, [*command, "--chains", "3"])
    assert wrong.exit_code == 2 and "--chains is not for rejection" in wrong.output
    wrong = CliRunner().invoke(main, [*command, "--store", "page.html"])
    assert wrong.exit_code == 2 and "would both be page.html" in wrong.output


def test_an_interrupted_command_goes_on(folder, unrendered):
    stopping = "    if mu > 1.5 and not Path('stopped').exists():\n        Path('stopped').touch()\n"
    stopping += "        os.kill(os.getpid(), signal.SIGTERM)\n    return"
    (folder / "problem.py").write_text(
        "import os, signal\nfrom pathlib import Path\n" + MODEL.replace("    return", stopping)
    )
    command = [
        "calibrate",
        "problem.py",
        "--eps",
        "0.5",
        "--budget",
        "40",
        "--data-sets",
        "20",
        "--seed",
        "1",
        "--json",
    ]
    stopped = CliRunner().invoke(main, command)
    assert stopped.exit_code == 143 and "To continue, give the same command again" in stopped.stderr
    resumed = CliRunner().invoke(main, command)
    whole = CliRunner().invoke(main, [*command, "-o", "other.html"])
    one, other = json.loads(resumed.stdout), json.loads(whole.stdout)
    assert one["rows"] == other["rows"] and one["cost"]["simulations"] == other["cost"]["simulations"] == 20 * 41


def test_a_method_that_nothing_ends_is_refused_before_the_first_simulation():
    calls = []

    def simulate(rng, mu):
        calls.append(mu)
        return rng.normal(mu, 1.0)

    given = od.Model(od.Prior(mu=stats.norm()), simulate, 1.0)
    calls.clear()
    kernel = {"kernel": od.uniform(1.0)}
    for arguments in (kernel, kernel | {"draws": None}):
        with pytest.raises(ValueError, match="budget = None: give budget="):
            od.calibrate(given, od.rejection, data_sets=20, arguments=arguments)
    assert not calls
