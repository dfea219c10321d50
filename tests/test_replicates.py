"""Data whose rows are independent and identically distributed: the learnt likelihood of one row, summed over all."""

import numpy as np
import pytest
from scipy import stats

import onedraw as od
from onedraw.model.coordinates import Support
from onedraw.surrogate.choice import choose_form
from onedraw.surrogate.likelihood import Terms
from onedraw.surrogate.success import Success
from onedraw.surrogate.surrogate import fit_surrogate
from onedraw.surrogate.training import training_of
from tests.deadlines import LONG, up_after

MU = od.Prior(mu=stats.norm(0, 3))


def normals(n):
    @od.batched
    def simulate(rng, mu):
        return rng.normal(mu[:, None], 1.0, (len(mu), n))

    return simulate


def normal_model(n, **given):
    return od.Model(MU, normals(n), np.random.default_rng(3).normal(1.0, 1.0, n), replicates=0, **given)


@pytest.mark.parametrize("n", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_the_mean_of_normal_rows(n):
    """With 500 simulations the means are off by less than a tenth of the exact posterior's standard deviation."""
    model = normal_model(n)
    sd = (1 / 9 + n) ** -0.5
    mean = sd**2 * model.observed.sum()
    posts = [od.infer(model, budget=500, seed=seed, draws=2000) for seed in (1, 2, 3)]
    rows = [post.summary()["mu"] for post in posts]
    away = np.array([row.mean - mean for row in rows])
    assert all(post.settings["summary"] == f"{n} independent rows" for post in posts)
    assert f"the likelihood of one of {n} independent rows was learnt" in posts[0].notes[0]
    assert np.sqrt(np.mean(np.square(away))) < 0.1 * sd
    # Three squares of normals: 16.3 is passed by one set in a thousand.
    assert np.square(away / [row.mcse for row in rows]).sum() < 16.3
    # The error of a standard deviation of 2,000 draws is 1.6 %.
    assert np.mean([row.sd for row in rows]) == pytest.approx(sd, rel=0.06)


@pytest.mark.slow
def test_a_gamma_sample():
    """Against quadrature: rows are skewed, and their scale depends on both parameters."""
    prior, n = od.Prior(shape=stats.uniform(1, 5), rate=stats.uniform(0.3, 2.7)), 20
    observed = np.random.default_rng(5).gamma(3.0, 1.0, (n, 1))

    @od.batched
    def simulate(rng, shape, rate):
        return rng.gamma(shape[:, None, None], 1.0 / rate[:, None, None], (len(shape), n, 1))

    a, b = (grid.ravel() for grid in np.meshgrid(np.linspace(1, 6, 300), np.linspace(0.3, 3, 300)))
    logged = stats.gamma.logpdf(observed, a, scale=1 / b).sum(axis=0)
    share = np.exp(logged - logged.max())
    share /= share.sum()
    post = od.infer(od.Model(prior, simulate, observed, replicates=0), budget=1500, seed=1, draws=4000)
    assert post.settings["summary"] == "20 independent rows"
    for name, values in (("shape", a), ("rate", b)):
        row, mean = post.summary()[name], share @ values
        sd = np.sqrt(share @ (values - mean) ** 2)
        assert abs(row.mean - mean) < 3 * row.mcse + 0.03 * sd
        assert row.mcse < 0.3 * sd
        assert row.sd == pytest.approx(sd, rel=0.12)


def test_rows_that_are_not_independent_are_found_out():
    """All rows share a noise that is larger than their own: the sum over rows would be far too sure."""

    @od.batched
    def simulate(rng, mu):
        shared = rng.normal(mu, 1.0)
        return rng.normal(shared[:, None], 0.3, (len(mu), 10))

    observed = np.random.default_rng(1).normal(0.5, 0.3, 10)
    post = od.infer(od.Model(MU, simulate, observed, replicates=0), budget=1000, seed=1, draws=2000)
    exact = (1 / 9 + 1 / (1 + 0.09 / 10)) ** -0.5
    assert "independent" not in post.settings["summary"]
    assert post.summary()["mu"].sd == pytest.approx(exact, rel=0.15)


def pairs(width=2, rows=4, n=300):
    """Parameters, and data sets of rows whose second summary depends on the first."""
    rng = np.random.default_rng(2)
    theta = rng.normal(size=(n, 1))
    data = theta[:, None, :] + rng.normal(size=(n, rows, width))
    data[:, :, 1:] += 0.5 * theta[:, None, :] * data[:, :, :1]
    return training_of(theta, data, rng.uniform(0.5, 1.0, n))


def test_the_likelihood_of_a_data_set_is_the_product_of_those_of_its_rows():
    training = pairs()
    form = choose_form(Support(np.array([-np.inf]), np.array([np.inf])), training, training.rows[0], thorough=True)
    form = form._replace(terms=(Terms(), Terms("1", "1", "1")))
    surrogate = fit_surrogate(form, training, Success(np.array([0.3, -0.7])))._replace(power=0.7)
    columns = surrogate.form.columns(np.linspace(-2, 2, 50)[:, None])
    whole = surrogate.log_likelihood(columns, surrogate.at(training.rows[:1])[0])
    each = [surrogate.log_likelihood(columns, one) for one in surrogate.at(training.rows[0])]
    # That the simulation succeeded counts once.
    success = 0.7 * surrogate.success.log_probability(columns)
    assert whole == pytest.approx(np.sum(each, axis=0) - 3 * success, rel=1e-12)


def test_a_fit_to_data_sets_is_the_fit_to_their_rows():
    training = pairs()
    theta, rows = np.repeat(training.theta, 4, axis=0), training.rows.reshape(-1, 2)
    single = training_of(theta, rows, np.repeat(training.weights, 4))._replace(places=training.places.reshape(-1, 2))
    form = choose_form(Support(np.array([-np.inf]), np.array([np.inf])), training, training.rows[0], thorough=True)
    for one, other in zip(fit_surrogate(form, training, None).factors, fit_surrogate(form, single, None).factors,
                          strict=True):  # fmt: skip
        assert one.mean == pytest.approx(other.mean, rel=1e-12)


def test_rows_lie_along_the_axis_that_is_named():
    data, rng = np.arange(24.0).reshape(2, 3, 4), np.random.default_rng(1)
    for axis, at in ((0, 0), (2, 2), (-1, 2), (np.int64(1), 1)):
        model = od.Model(MU, lambda rng, mu: data + mu, data, replicates=axis)
        assert model.replicates == at
        drawn = rng.normal(size=(5, 24))
        expected = [[np.take(one.reshape(2, 3, 4), row, axis=at).ravel() for row in range(data.shape[at])]
                    for one in drawn]  # fmt: skip
        assert model.by_row(drawn).tolist() == np.array(expected).tolist()


@pytest.mark.parametrize(("observed", "axis", "message"), [
    (np.zeros((3, 2)), 2, r"replicates = 2 is not an axis of data of shape \(3, 2\)"),
    (np.zeros(3), -2, r"replicates = -2 is not an axis of data of shape \(3,\)"),
    (1.0, 0, r"replicates = 0 is not an axis of data of shape \(\)"),
    (np.zeros(3), True, "replicates must be an axis of the data, as in replicates=0, or None, got True"),
    (np.zeros(3), 0.0, "replicates must be an axis of the data, as in replicates=0, or None, got 0.0"),
    ({"a": np.zeros(3)}, 0, "replicates = 0 is an axis of one array, and the data are a dict"),
    ([[1.0, 2.0], [3.0]], 0, "observed must be numbers, an array or a dict of arrays"),
])  # fmt: skip
def test_an_axis_that_is_none_is_refused(observed, axis, message):
    with pytest.raises(ValueError, match=message):
        od.Model(MU, lambda rng, mu: mu, observed, replicates=axis)


def test_simulations_of_another_number_of_rows_fail_as_everywhere():
    model = od.Model(MU, lambda rng, mu: rng.normal(mu, 1.0, 4), np.zeros(5), replicates=0)
    with pytest.raises(od.SimulationError, match=r"shape \(4,\), but the observed data give \(5,\)"):
        od.infer(model, budget=50, seed=1)


def test_workers_files_and_interruptions_change_no_byte(tmp_path, quick):
    model = od.Model(MU, lambda rng, mu: rng.normal(mu, 1.0, (6, 1)), np.full((6, 1), 0.5), replicates=0)
    given = {"budget": 150, "draws": 200, "seed": 1}
    whole = od.infer(model, **given)
    assert whole.settings["summary"] == "6 independent rows"
    with up_after(4):
        part = od.infer(model, **given, store=tmp_path / "run.db", max_seconds=LONG)
    assert part.status.reason == "max_seconds"
    for post in (od.infer(model, **given, workers=2), od.infer(model, **given, store=tmp_path / "run.db")):
        assert post.draws["mu"].tobytes() == whole.draws["mu"].tobytes()
    assert od.load(tmp_path / "run.db").draws["mu"].tobytes() == whole.draws["mu"].tobytes()
    other = od.Model(MU, model.simulate, model.observed)
    with pytest.raises(ValueError, match="replicates"):
        od.infer(other, **given, store=tmp_path / "run.db")


def test_other_data_use_the_rows_too(quick):
    post = od.infer(normal_model(10), budget=500, seed=1, draws=1000)
    found = post.observed(normal_model(10).observed + 1.0, draws=1000)
    assert found.settings["summary"] == "10 independent rows"
    assert found.summary()["mu"].mean - post.summary()["mu"].mean == pytest.approx(90 / 91, abs=0.15)


def test_other_samplers_make_no_use_of_it():
    model = normal_model(10)
    same = od.Model(MU, model.simulate, model.observed)
    first, second = (od.rejection(one, od.uniform(3.5), draws=20, seed=1) for one in (model, same))
    assert first.draws["mu"].tobytes() == second.draws["mu"].tobytes()


def test_a_learnt_summary_has_no_rows():
    assert od.fit_summary(normal_model(10), budget=200, seed=1).model.replicates is None
