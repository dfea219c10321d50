"""Draws for other programs: pandas, ArviZ, sbi. No weight is lost in silence, and what leaves is worth its number."""

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import onedraw as od
from onedraw.results import export
from onedraw.results.posterior import SimulatedData
from onedraw.run.store import StoreError

pytestmark = pytest.mark.usefixtures("brief")

pandas = pytest.importorskip("pandas")
xarray = pytest.importorskip("xarray")


@od.batched
def simulate(rng, mu, nu):
    return np.column_stack([rng.normal(mu, 1.0), rng.normal(nu, 2.0)])


def toy(**more):
    return od.Model(od.Prior(mu=stats.norm(0, 1), nu=stats.norm(0, 1)), simulate, observed=[1.0, 0.2], **more)


RUNS = {
    "rejection": lambda: od.rejection(toy(), od.uniform(1.0), draws=400, seed=1),
    "at": lambda: od.rejection(toy(), od.uniform(1.0), draws=1500, seed=1).at(0.5),
    "importance": lambda: od.importance(toy(), budget=4000, seed=1),
    "smc": lambda: od.smc(toy(), budget=4000, seed=1),
    "infer": lambda: od.infer(toy(), budget=300, seed=1),
    "chains": lambda: od.pseudo_marginal(toy(), od.uniform(1.0), draws=500, chains=4, seed=1),
    "many short chains": lambda: od.pseudo_marginal(toy(), od.uniform(0.5), draws=5, chains=256, seed=1),
}
AS_THEY_ARE = ("rejection", "chains")


@pytest.fixture(scope="module", params=RUNS)
def run(request):
    return request.param, RUNS[request.param]()


@pytest.fixture(scope="module")
def weighted():
    return RUNS["at"]()


# Equal weights


def test_what_leaves_by_default_is_worth_its_number(run):
    name, post = run
    tree, frame = post.to_datatree(predictive=0), post.to_dataframe()
    worth = min(row.ess for row in post.summary().rows.values())
    shape = tree["posterior"]["mu"].shape
    assert shape == (post.shape if name in AS_THEY_ARE else (1, int(worth)))
    assert np.array_equal(tree["posterior"]["mu"].values.reshape(-1), frame["mu"].to_numpy())
    assert "weight" not in tree["sample_stats"] and "weight" not in frame
    assert tree["posterior"].attrs["effective_draws"] == frame.attrs["effective_draws"] == worth
    assert set(frame["mu"]) <= set(post.draws["mu"].reshape(-1).tolist())


def test_weighted_exports_lose_nothing(run):
    _, post = run
    tree, frame = post.to_datatree(weighted=True, predictive=0), post.to_dataframe(weighted=True)
    for name in post.names:
        assert np.array_equal(tree["posterior"][name], post.draws[name])
        assert np.array_equal(frame[name], post.draws[name].reshape(-1))
    assert ("weight" in frame) == ("weight" in tree["sample_stats"]) == (post.weights is not None)
    if post.weights is not None:
        assert np.array_equal(frame["weight"], post.weights.reshape(-1))
        assert np.array_equal(tree["sample_stats"]["weight"], post.weights)


def test_resampled_draws_agree_with_the_original(run):
    _, post = run
    equal = post.resample()
    assert equal.weights is None and equal.independent and equal.effective is None
    for name, row in post.summary().rows.items():
        other = equal.summary()[name]
        # The draws are spread evenly over the posterior: they add less to the error than draws picked by chance.
        assert abs(other.mean - row.mean) < row.mcse + 1e-12
        # A parameter that is worth more draws than the one with the fewest has errors of fewer than it is worth.
        assert abs(other.sd - row.sd) < 2 * max(post.mcse(name, "sd"), equal.mcse(name, "sd")) + 1e-12
        assert other.ess == equal.shape[1]


@pytest.mark.parametrize("name", ["infer", "smc"])
@pytest.mark.slow
def test_draws_spread_evenly_add_little_to_the_error(name):
    """Draws picked by chance would double the variance: here each stands for its own part of the posterior."""
    post = RUNS[name]()
    size = post.resample().shape[1]
    for key, row in post.summary().rows.items():
        by_chance = row.sd / math.sqrt(size)
        away = [post.resample(seed=seed).draws[key].mean() - row.mean for seed in range(20)]
        assert np.sqrt(np.mean(np.square(away))) < 0.35 * by_chance
        # Whether or not their number can be halved.
        away = [post.resample(size - 1, seed=seed).draws[key].mean() - row.mean for seed in range(20)]
        assert np.sqrt(np.mean(np.square(away))) < 0.35 * by_chance


def test_resampling_has_the_law_of_the_weights():
    """Of two values, each is picked as often as its weight says, whatever the seed."""
    post = RUNS["rejection"]()
    values = np.repeat([0.0, 1.0, 2.0], [200, 100, 100])
    weight = np.repeat([1.0, 4.0, 2.0], [200, 100, 100])
    given = replace(post, draws={"mu": values[None], "nu": np.zeros((1, 400))}, weights=(weight / 800)[None],
                    distances=None, kernel=None)  # fmt: skip
    for seed in range(5):
        counted = np.bincount(given.resample(80, seed=seed).draws["mu"].reshape(-1).astype(int))
        assert np.abs(counted - [20, 40, 20]).max() <= 1


def test_more_draws_than_they_are_worth_say_so(weighted):
    equal = weighted.resample(2000, seed=1)
    row = weighted.summary()["mu"]
    assert equal.shape == (1, 2000) and equal.summary()["mu"].ess == pytest.approx(row.ess, rel=0.02)
    assert equal.resample().shape == weighted.resample().shape
    assert weighted.to_dataframe(draws=2000).shape == (2000, 2)


def test_resampling_is_repeatable(weighted):
    first, again, other = (weighted.resample(seed=seed).draws["mu"].tobytes() for seed in (1, 1, 2))
    assert first == again != other
    assert weighted.resample().draws["mu"].tobytes() == weighted.resample(seed=weighted.seed).draws["mu"].tobytes()


def test_distances_stay_with_their_draws(weighted):
    equal = weighted.resample()
    of = dict(zip(weighted.draws["mu"].reshape(-1), weighted.distances.reshape(-1), strict=True))
    assert [of[value] for value in equal.draws["mu"][0]] == equal.distances[0].tolist()
    assert max(equal.distances[0]) < 0.5


def test_neighbours_lie_together():
    theta = np.random.default_rng(1).uniform(size=(1024, 2))
    order = export.neighbours_in_order(theta, 16)
    assert sorted(order) == list(range(1024))
    # Each stretch of a sixteenth is a cell with a sixteenth of the square, not a strip across it.
    for cell in theta[order].reshape(16, 64, 2):
        assert np.ptp(cell, axis=0).max() < 0.6


def test_the_order_goes_on_at_the_nearest_border():
    """Around a square, and not back to its other side."""
    corners = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    assert export.neighbours_in_order(corners, 4).tolist() == [0, 1, 3, 2]


@pytest.mark.parametrize("form", ["to_dataframe", "to_datatree", "resample"])
def test_no_draws_are_not_exported(form):
    empty = od.rejection(toy(), od.uniform(1e-9), budget=10, seed=1)
    with pytest.raises(ValueError, match="there are no draws to export: nothing was accepted"):
        getattr(empty, form)()


def test_all_draws_and_a_number_of_draws_exclude_each_other(weighted):
    with pytest.raises(ValueError, match="weighted=True gives all draws as they are"):
        weighted.to_dataframe(weighted=True, draws=10)


# pandas


def test_a_table_has_the_chain_and_the_draw_as_its_index():
    post = RUNS["chains"]()
    frame = post.to_dataframe()
    assert frame.index.names == ["chain", "draw"] and list(frame) == ["mu", "nu"]
    assert np.array_equal(frame.loc[2, "nu"], post.draws["nu"][2])
    assert frame.mean().to_dict() == pytest.approx({name: row.mean for name, row in post.summary().rows.items()})


def test_a_parameter_may_be_called_weight(weighted):
    post = replace(weighted, draws={"weight": weighted.draws["mu"]}, model=None)
    assert list(post.to_dataframe(weighted=True)) == ["weight", "weight of the draw"]


def test_draws_by_name_do_not_become_a_column_of_names(weighted):
    with pytest.raises(TypeError, match=r"use post\.to_dataframe\(\)"):
        pandas.DataFrame(weighted.draws)
    with pytest.raises(TypeError, match=r"use post\.to_dataframe\(\)"):
        np.asarray(weighted.draws)
    assert list(weighted.draws) == ["mu", "nu"] and len(weighted.draws) == 2 and "mu" in weighted.draws
    assert pickle.loads(pickle.dumps(weighted.draws)).keys() == weighted.draws.keys()
    assert {**weighted.draws}.keys() == {"mu", "nu"}


# ArviZ


def test_a_tree_has_arviz_groups(weighted, tmp_path):
    tree = weighted.to_datatree(predictive=30, seed=2)
    assert set(tree.children) == {
        "posterior", "prior", "posterior_predictive", "observed_data", "sample_stats", "monte_carlo_error",
    }  # fmt: skip
    assert np.array_equal(tree["posterior_predictive"]["observed"].values[0], weighted.predict(30, seed=2))
    assert tree["posterior_predictive"]["observed"].dims == ("chain", "draw", "observed_0")
    assert tree["observed_data"]["observed"].dims == ("observed_0",)
    prior = tree["prior"]["mu"].values
    assert stats.kstest(prior.reshape(-1), "norm").pvalue > 1e-4
    assert tree["sample_stats"]["distance"].shape == tree["posterior"]["mu"].shape
    tree.to_netcdf(tmp_path / "run.nc", engine="h5netcdf")
    with xarray.open_datatree(tmp_path / "run.nc", engine="h5netcdf") as read:
        assert np.array_equal(read["posterior"]["mu"], tree["posterior"]["mu"])
    # What is said of errors is that of the weighted draws.
    errors = tree["monte_carlo_error"]["mu"].sel(statistic="mean", quantity="ess")
    assert float(errors) == weighted.summary()["mu"].ess


def test_predictive_simulations_keep_the_form_of_the_data():
    model = od.Model(
        od.Prior(mu=stats.norm()),
        lambda rng, mu: {"x": rng.normal(mu, 1, 3), "n": rng.poisson(2)},
        {"x": [0, 0, 0], "n": 2},
    )
    tree = od.rejection(model, od.uniform(3), draws=10, seed=1).to_datatree(predictive=7)
    assert tree["posterior_predictive"]["x"].shape == (1, 7, 3) and tree["posterior_predictive"]["n"].shape == (1, 7)
    assert tree["observed_data"]["x"].dims == ("x_0",)


def test_slow_simulators_are_not_run_unasked(weighted):
    slow = replace(weighted, cost=weighted.cost._replace(seconds=1.1 * weighted.cost.simulations))
    assert "posterior_predictive" not in slow.to_datatree()
    some = replace(weighted, cost=weighted.cost._replace(seconds=0.5 * weighted.cost.simulations))
    assert some.to_datatree()["posterior_predictive"]["observed"].shape == (1, 40, 2)


@pytest.mark.parametrize("run", [name for name in RUNS if "chains" not in name], indirect=True)
def test_arviz_says_what_the_summary_says(run):
    """Of chains, ArviZ and onedraw estimate autocorrelations differently: see the next test."""
    az = pytest.importorskip("arviz")
    _, post = run
    tree = post.to_datatree(predictive=0)
    shown = az.summary(tree["posterior"].to_dataset(), round_to="none")
    size = tree["posterior"]["mu"].size
    # What ArviZ says of so many independent draws, which it does not know to be independent.
    rng = np.random.default_rng(1)
    chance = [float(az.ess(rng.normal(size=(1, size)), method="bulk")) for _ in range(1000)]
    for key, row in post.summary().rows.items():
        assert abs(shown.loc[key, "mean"] - row.mean) < row.mcse
        # As many draws leave as the parameter with the fewest is worth.
        assert abs(shown.loc[key, "sd"] - row.sd) < 2.5 * max(post.mcse(key, "sd"), row.sd / math.sqrt(2 * size))
        assert min(chance) < shown.loc[key, "ess_bulk"] <= max(chance)
    assert min(chance) < min(row.ess for row in post.summary().rows.values()) < max(chance)


def test_arviz_is_told_the_truth_about_many_short_chains():
    az = pytest.importorskip("arviz")
    post = RUNS["many short chains"]()
    own = post.summary()["mu"].ess
    before = float(az.ess(np.asarray(post.draws["mu"]), method="mean"))
    after = float(az.ess(post.to_datatree(predictive=0)["posterior"]["mu"].values, method="mean"))
    assert before > 1.5 * own and 0.6 * own < after < 1.6 * own


# Files with their model


def test_a_loaded_run_can_predict(tmp_path):
    model = toy(distance=od.scaled(pilot=50))
    post = od.rejection(model, od.uniform(1.0), draws=50, seed=1, store=tmp_path / "run.db")
    again = od.load(tmp_path / "run.db", toy(distance=od.scaled(pilot=50)))
    assert np.array_equal(again.predict(20, seed=1), post.predict(20, seed=1))
    assert np.array_equal(again.model.distance.scale, post.model.distance.scale)
    assert again.plot("predictive", n=20) is not None
    assert od.load(tmp_path / "run.db").model is None


def test_a_run_with_fitted_summaries_can_be_loaded_with_them(tmp_path, quick):
    fitted = od.fit_summary(toy(), budget=200, seed=1)
    post = od.infer(fitted, budget=300, seed=1, draws=200, store=tmp_path / "run.db")
    again = od.load(tmp_path / "run.db", fitted)
    assert np.array_equal(again.predict(20, seed=1), post.predict(20, seed=1))
    assert np.array_equal(again.simulations.theta, post.simulations.theta) and len(post.simulations.theta) == 300


def test_another_model_is_refused(tmp_path):
    od.rejection(toy(), od.uniform(1.0), draws=20, seed=1, store=tmp_path / "run.db")
    other = od.Model(od.Prior(mu=stats.norm(0, 2), nu=stats.norm(0, 1)), simulate, observed=[1.0, 0.2])
    with pytest.raises(StoreError, match=r"made with another model: prior changed .* Give the model of the run"):
        od.load(tmp_path / "run.db", other)
    with pytest.raises(StoreError, match="observed changed"):
        od.load(tmp_path / "run.db", od.Model(toy().prior, simulate, observed=[1.0, 0.3]))
    with pytest.raises(ValueError, match="model"):
        od.load(tmp_path / "run.db", 3)
    blind = od.load(tmp_path / "run.db")
    with pytest.raises(ValueError, match=r"od\.load\(file, model\)"):
        blind.predict(3)


def plain(rng, mu):
    return rng.normal(mu, 1.0)


def test_a_run_with_a_time_limit_can_be_loaded_with_its_model(tmp_path):
    model = od.Model(od.Prior(mu=stats.norm(0, 1)), plain, observed=1.0)
    od.rejection(model, od.uniform(1.0), draws=5, seed=1, store=tmp_path / "run.db", timeout=20)
    assert od.load(tmp_path / "run.db", model).predict(2, seed=1).shape == (2,)


# Simulations as arrays


def test_infer_gives_all_its_simulations(tmp_path, quick):
    post = od.infer(toy(), budget=300, seed=1, draws=200, store=tmp_path / "run.db")
    theta, x = post.simulations
    assert theta.shape == x.shape == (300, 2) and theta.dtype == x.dtype == float
    again = od.load(tmp_path / "run.db").simulations
    assert np.array_equal(again.theta, theta) and np.array_equal(again.x, x)
    # They are simulations of this model: the residuals have its spreads.
    assert (x - theta).std(axis=0) == pytest.approx([1.0, 2.0], abs=4 * 2 / math.sqrt(2 * 300))


def test_rejection_gives_what_it_has_kept(tmp_path):
    near = od.rejection(toy(), od.uniform(1.0), draws=60, seed=1, keep="summaries")
    theta, x = near.simulations
    assert np.array_equal(theta[:, 0], near.draws["mu"][0]) and x.shape == (60, 2)
    assert np.allclose(np.linalg.norm(x - [1.0, 0.2], axis=1), near.distances[0])
    post = od.rejection(toy(), od.uniform(1.0), budget=500, seed=1, keep="all", store=tmp_path / "run.db")
    every = od.load(tmp_path / "run.db").simulations
    assert len(every.theta) == len(every.x) == 500 > post.shape[1]
    assert np.isin(post.draws["mu"], every.theta[:, 0]).all()
    assert stats.kstest(every.theta[:, 0], "norm").pvalue > 1e-4


def test_importance_gives_every_pseudo_sample():
    post = od.importance(toy(), budget=600, seed=1, keep="all", pseudo_samples=2)
    theta, x = post.simulations
    assert len(theta) == len(x) == 600 and np.array_equal(theta[::2], theta[1::2])


def test_failed_simulations_are_left_out():
    found = SimulatedData.of(np.array([[1.0], [2.0]]), np.array([[np.nan, np.nan], [3.0, 4.0]]))
    assert found.theta.tolist() == [[2.0]] and found.x.tolist() == [[3.0, 4.0]]


@pytest.mark.parametrize("name", ["smc", "chains", "rejection"])
def test_runs_that_kept_nothing_say_which_do(name, tmp_path):
    with pytest.raises(ValueError, match=r"has not kept its simulations: od\.infer does"):
        _ = RUNS[name]().simulations
    kept = od.smc(toy(distance=od.scaled(pilot=50)), budget=2000, seed=1, store=tmp_path / "run.db")
    with pytest.raises(ValueError, match="has not kept its simulations"):
        _ = kept.simulations
    with pytest.raises(ValueError, match="has not kept its simulations"):
        _ = od.load(tmp_path / "run.db").simulations


def test_simulations_go_into_sbi():
    torch, inference = pytest.importorskip("torch"), pytest.importorskip("sbi.inference")
    theta, x = od.infer(toy(), budget=300, seed=1).simulations
    learner = inference.NLE()
    learner.append_simulations(*(torch.as_tensor(part, dtype=torch.float32) for part in (theta, x)))
    assert learner.get_simulations()[0].shape == (300, 2)
