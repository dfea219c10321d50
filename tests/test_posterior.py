import numpy as np
import pytest
from scipy import stats

import onedraw as od
from onedraw.results.monte_carlo_error import Draws
from onedraw.results.summary import describe, weighted_interval
from tests.reference import Exact, toy


@pytest.fixture(scope="module")
def post():
    return od.rejection(toy(), od.uniform(0.5), draws=2000, seed=3)


def test_summary_of_independent_draws(post):
    from arviz_stats.base import array_stats

    draws = post.draws["theta"]
    row = post.summary(hdi_prob=0.8)["theta"]
    low, high = array_stats.hdi(draws.ravel(), prob=0.8)
    assert (row.hdi_low, row.hdi_high) == (low, high)
    assert row.ess == 2000
    assert row.ess == pytest.approx(float(array_stats.ess(draws, chain_axis=0, draw_axis=1)), rel=0.1)
    plain = draws.std(ddof=1) / np.sqrt(2000)
    # Widened a little for the skewness of the draws.
    assert plain <= row.mcse == pytest.approx(plain, rel=2e-3)
    assert "hdi 80% low" in str(post.summary(hdi_prob=0.8))


def test_weighted_summaries_equal_repeated_draws():
    """Weights 1, 2, 3 stand for draws repeated so often."""
    rng = np.random.default_rng(1)
    values = rng.normal(size=(1, 300))
    repeats = rng.integers(1, 4, 300)
    weights = (repeats / repeats.sum())[None]
    row = describe(values, Draws(weights, independent=True), 0.9)
    long = np.repeat(values[0], repeats)
    assert row.mean == pytest.approx(long.mean())
    assert row.sd == pytest.approx(long.std())
    low, high = weighted_interval(long, np.full(long.size, 1 / long.size), 0.9)
    assert (row.hdi_low, row.hdi_high) == (low, high)
    inside = (long >= low) & (long <= high)
    assert 0.9 <= inside.mean() < 0.9 + 4 / long.size


def test_the_weighted_error_is_the_spread_over_replications():
    rng = np.random.default_rng(2)
    means, errors = [], []
    for _ in range(400):
        values = rng.normal(size=(1, 200))
        weights = np.exp(0.5 * values)
        weights /= weights.sum()
        row = describe(values, Draws(weights, independent=True), 0.9)
        means.append(row.mean)
        errors.append(row.mcse)
    assert np.std(means) == pytest.approx(np.mean(errors), rel=0.15)


def test_a_chain_that_never_moved_has_no_error_to_report():
    row = describe(np.full((2, 50), 3.0), Draws(), 0.9)
    assert row.mean == 3.0 and np.isnan(row.ess) and np.isnan(row.mcse)


def test_draws_cannot_be_changed(post):
    with pytest.raises(ValueError, match="read-only"):
        post.draws["theta"][0, 0] = 1.0
    with pytest.raises(TypeError):
        post.draws["theta"] = 1.0


def test_functions_take_the_parameters_that_they_name_and_wrong_names_are_told():
    prior = od.Prior(a=stats.norm(), b=stats.norm())
    pair = od.Model(prior, od.batched(lambda rng, a, b: rng.normal(a + b)), observed=1.0)
    both = od.rejection(pair, od.uniform(1.0), draws=50, seed=1)
    assert both.estimate(lambda b: b).value == both.estimate("b").value
    assert both.estimate(lambda **all: all["a"]).value == both.estimate("a").value
    with pytest.raises(ValueError, match=r"takes 'c', which is not a parameter: there are a, b"):
        both.estimate(lambda c: c)
    for table in (both.draws, both.summary(), both.efficiency()):
        with pytest.raises(KeyError, match=r"there is no (parameter|row) 'c': there are a, b"):
            table["c"]


def test_more_draws_than_memory_holds_are_refused_with_their_size(post):
    numbers = len(post.draws)
    for ask in (post.sample, post.predict):
        with pytest.raises(ValueError, match=rf"n = 1,000,000,000,000 draws of {numbers} .* {8000 * numbers:,} GB"):
            ask(10**12)


def test_sample_honours_weights(post):
    weighted = post.at(0.1)
    sample = weighted.sample(4000, seed=1)["theta"]
    allowed = set(post.draws["theta"][post.distances < 0.1].tolist())
    assert set(sample.tolist()) <= allowed
    row = weighted.summary()["theta"]
    assert abs(sample.mean() - row.mean) < 4 * row.sd / np.sqrt(4000)


def test_predictions_come_from_the_posterior_predictive(post):
    predicted = post.predict(5000, seed=1)
    theta = post.draws["theta"]
    assert predicted.shape == (5000,)
    assert abs(predicted.mean() - theta.mean()) < 4 * np.hypot(theta.std(), 1) / np.sqrt(5000)
    assert predicted.std() == pytest.approx(np.hypot(theta.std(), 1), rel=0.05)
    assert np.array_equal(predicted, post.predict(5000, seed=1))


def test_predictions_keep_the_form_of_the_data():
    model = od.Model(
        od.Prior(mu=stats.norm()),
        lambda rng, mu: {"x": rng.normal(mu, 1, 3), "n": rng.poisson(2)},
        {"x": [0, 0, 0], "n": 2},
    )
    predicted = od.rejection(model, od.uniform(3), draws=10, seed=1).predict(7)
    assert predicted["x"].shape == (7, 3) and predicted["n"].shape == (7,)


def test_datatree_round_trip(post, tmp_path):
    xarray = pytest.importorskip("xarray")
    weighted = post.at(0.25)
    weighted.to_datatree(weighted=True).to_netcdf(tmp_path / "run.nc", engine="h5netcdf")
    tree = xarray.open_datatree(tmp_path / "run.nc", engine="h5netcdf")
    assert np.array_equal(tree["posterior"]["theta"], post.draws["theta"])
    assert np.array_equal(tree["sample_stats"]["weight"], weighted.weights)
    assert np.array_equal(tree["sample_stats"]["distance"], post.distances)
    assert float(tree["observed_data"]["observed"]) == 2.0
    assert tree["posterior"].attrs["cost_simulations"] == post.cost.simulations
    errors = tree["monte_carlo_error"]["theta"]
    for of in ("mean", "sd", 0.05, 0.5):
        assert np.array_equal(errors.sel(statistic=str(of)), weighted.estimate("theta", of)[:3])
    assert errors.sel(statistic="mean", quantity="mcse") == weighted.summary()["theta"].mcse


def test_at_refuses_what_it_cannot_know(post):
    with pytest.raises(ValueError, match="no draw is within eps"):
        post.at(1e-12)
    with pytest.raises(ValueError, match="eps must be positive"):
        post.at(0)
    blind = od.rejection(toy(), od.uniform(0.5), draws=10, seed=1, keep="draws")
    with pytest.raises(ValueError, match="keep='distances'"):
        blind.at(0.1)


def test_at_twice_is_at_once(post):
    assert np.allclose(post.at(0.4).at(0.2).weights, post.at(0.2).weights)
    assert post.at(0.4).at(0.2).notes == post.at(0.2).notes


def test_over_a_range_of_tolerances_from_one_inflated_run():
    """A chain at eps = 1 against exact posteriors at smaller eps: the stated intervals hold them."""
    chains = od.pseudo_marginal(toy(), od.uniform(1.0), draws=400, chains=256, seed=2)
    found = chains.over([0.25, 1.0, 0.5], {"theta": lambda theta: theta, "tail": lambda theta: theta > 1.5})
    assert [point.eps for point in found["theta"]] == [1.0, 0.5, 0.25]
    for point, tail in zip(found["theta"], found["tail"], strict=True):
        exact = Exact(od.uniform(point.eps))
        assert abs(point.mean - exact.mean) < 4 * point.mcse
        assert abs(tail.mean - (1 - exact.cdf(1.5))) < 4 * tail.mcse
        assert point.high - point.mean == pytest.approx(1.959964 * point.mcse)
        assert point.mean == pytest.approx(chains.at(point.eps).summary()["theta"].mean)
    errors = [point.mcse for point in found["theta"]]
    assert errors == sorted(errors) and found["theta"][0].ess > found["theta"][-1].ess
    assert "95% low" in str(found)
    with pytest.raises(ValueError, match="is larger than the run's"):
        chains.over([0.5, 2.0])
    with pytest.raises(ValueError, match="at least one tolerance"):
        chains.over([])
    with pytest.raises(ValueError, match="probability must lie between 0 and 1"):
        chains.over([0.5], probability=95)


NAMED = {
    "predict": lambda post, folder: post.predict(5, seed=1, data=True),
    "misfit": lambda post, folder: post.misfit(50, seed=1),
    "report": lambda post, folder: post.report(folder / "page.html", predictive=50),
    "band": lambda post, folder: od.plots.predictive_band(post, n=20, seed=1),
    "fit_summary": lambda post, folder: od.fit_summary(post.model, budget=100, seed=1),
}


@pytest.mark.parametrize("name", NAMED)
def test_names_belong_to_the_summary(name, tmp_path):
    """They are not asked of the raw data, of checks or of a learnt summary, which have other numbers."""
    model = od.Model(
        od.Prior(mu=stats.norm(0, 1)), lambda rng, mu: rng.normal(mu, 1.0, 9), np.linspace(-1, 1, 9),
        summary=lambda y: [y.mean(), y.std()], names=["mean", "sd"],
    )  # fmt: skip
    NAMED[name](od.rejection(model, od.uniform(2.0), draws=60, seed=1), tmp_path)
