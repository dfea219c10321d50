"""Model, simulators and distances: every form gives the same rows, and bad input is named."""

import sys

import numpy as np
import pytest
from scipy import stats

import onedraw as od
from onedraw.engines.streams import Phase, Rng
from tests.marks import long_in_slow_tests

PRIOR = od.Prior(mu=stats.norm(0, 1), sigma=stats.uniform(0.5, 1))
DATA = np.linspace(-1, 1, 20)


def simulate(rng, mu, sigma):
    return rng.normal(mu, sigma, size=20)


def simulate_wrong(rng, mu, sigma):
    return rng.normal(mu, sigma, size=7)


def rows_of(model, n=5, pseudo_samples=2):
    rng = Rng(1, Phase.RUN)
    theta = model.prior.sample(np.random.default_rng(0), n)
    return theta, model.simulate_rows(rng, theta, pseudo_samples=pseudo_samples)


def test_forms_of_summary_agree():
    plain = od.Model(PRIOR, simulate, DATA, summary=lambda y: [y.mean(), y.std()])
    batch = od.Model(PRIOR, simulate, DATA, summary=od.batched(lambda y: np.stack([y.mean(1), y.std(1)], axis=1)))
    raw = od.Model(PRIOR, simulate, DATA)
    (_, a), (_, b), (_, c) = rows_of(plain), rows_of(batch), rows_of(raw)
    assert np.allclose(a.rows, b.rows, rtol=1e-14)
    assert np.allclose(a.rows[..., 0], c.rows.mean(axis=2))
    assert np.allclose(plain.observed_row, batch.observed_row)


def test_a_batched_simulator_with_a_summary_of_one():
    batch = od.batched(lambda rng, mu, sigma: rng.normal(mu[:, None], sigma[:, None], (mu.size, 20)))
    plain = od.Model(PRIOR, batch, DATA, summary=lambda y: y.mean())
    both = od.Model(PRIOR, batch, DATA, summary=od.batched(lambda y: y.mean(axis=1)))
    assert np.allclose(rows_of(plain)[1].rows, rows_of(both)[1].rows)


def test_dicts_are_laid_out_in_the_order_of_the_observed_data():
    def pair(rng, mu, sigma):
        return {"n": rng.poisson(3), "x": rng.normal(mu, sigma, 2)}

    model = od.Model(PRIOR, pair, {"x": [1.0, 2.0], "n": 3})
    assert model.places() == ["observed['x'][0]", "observed['x'][1]", "observed['n']"]
    assert model.labels() == ["x[0]", "x[1]", "n"]
    assert model.observed_row.tolist() == [1.0, 2.0, 3.0]
    _, result = rows_of(model)
    assert result.cost.failed == 0 and (result.rows[..., 2] == np.floor(result.rows[..., 2])).all()


def test_a_distance_sees_the_users_own_form():
    seen = []

    def distance(simulated, observed):
        seen.append((set(simulated), simulated["x"].shape, observed["n"]))
        return abs(simulated["x"] - observed["x"]).max()

    model = od.Model(PRIOR, lambda rng, mu, sigma: {"x": rng.normal(mu, sigma, 2), "n": 1}, {"x": [0, 0], "n": 3},
                     distance=distance)  # fmt: skip
    _, result = rows_of(model, 3, 1)
    assert np.allclose(model.distances(result.rows)[:, 0], np.abs(result.rows[:, 0, :2]).max(axis=1))
    assert seen[0] == ({"x", "n"}, (2,), 3.0)


def test_data_sets_of_varying_size_need_a_summary():
    def events(rng, mu, sigma):
        return rng.normal(mu, sigma, size=rng.poisson(5) + 1)

    model = od.Model(PRIOR, events, DATA, summary=lambda y: [y.size, y.mean()])
    assert rows_of(model)[1].cost.failed == 0


def test_a_staged_simulator_prepares_once_for_each_theta():
    calls = []

    def prepare(mu, sigma):
        calls.append(mu)
        return mu, sigma

    staged = od.staged(prepare, lambda rng, state, m: rng.normal(*state, size=(m, 20)))
    _, result = rows_of(od.Model(PRIOR, staged, DATA), n=5, pseudo_samples=4)
    assert len(calls) == result.cost.setups == 5
    assert result.rows.shape == (5, 4, 20)


def test_a_numba_function_is_a_plain_simulator():
    numba = pytest.importorskip("numba")

    @numba.njit
    def compiled(rng, mu, sigma):
        return mu + sigma * rng.standard_normal()

    model = od.Model(PRIOR, compiled, 0.5)
    interpreted = od.Model(PRIOR, lambda rng, mu, sigma: mu + sigma * rng.standard_normal(), 0.5)
    a = od.rejection(model, od.uniform(0.5), draws=200, seed=1)
    b = od.rejection(interpreted, od.uniform(0.5), draws=200, seed=1)
    assert np.allclose(a.draws["mu"], b.draws["mu"], rtol=1e-12)


def test_every_plain_simulation_can_be_run_again_alone():
    model = od.Model(PRIOR, simulate, DATA)
    theta, result = rows_of(model, n=4, pseudo_samples=3)
    alone = simulate(Rng(1, Phase.RUN).single(2, 1), **model.prior.named(theta[2]))
    assert np.array_equal(alone, result.rows[2, 1])


# Distances


def test_scaled_divides_by_the_mad_of_the_pilot():
    def wide(rng, mu, sigma):
        return [mu + rng.normal(), 1000 * rng.normal()]

    model = od.Model(PRIOR, wide, [0.0, 0.0], distance=od.scaled(pilot=4000))
    post = od.rejection(model, od.uniform(0.5), draws=100, seed=1)
    scale = np.array(post.settings["distance"]["scale"])
    # The MAD's standard error is about 1.17 sd / sqrt(n).
    assert np.allclose(scale, [np.sqrt(2), 1000], rtol=5 * 1.17 / np.sqrt(4000))
    assert post.cost.simulations == 4000 + post.cost.proposals


def test_mahalanobis_whitens():
    def correlated(rng, mu, sigma):
        x = rng.normal(size=2)
        return [x[0], 10 * (x[0] + 0.1 * x[1])]

    model = od.Model(PRIOR, correlated, [0.0, 0.0], distance=od.mahalanobis(pilot=5000))
    post = od.rejection(model, od.uniform(50), draws=64, seed=1)
    rows = np.random.default_rng(3).normal(size=(4000, 2))
    rows = np.column_stack([rows[:, 0], 10 * (rows[:, 0] + 0.1 * rows[:, 1])])
    squared = post.model.distance(rows, np.zeros(2)) ** 2
    assert squared.mean() == pytest.approx(2.0, abs=0.2)  # chi-squared with 2 degrees of freedom


def test_a_column_without_spread_is_named():
    def constant(rng, mu, sigma):
        return {"x": rng.normal(mu, sigma, 2), "flag": 1.0}

    for distance in (od.scaled(), od.mahalanobis()):
        model = od.Model(PRIOR, constant, {"x": [0, 0], "flag": 1.0}, distance=distance)
        with pytest.raises(ValueError, match=r"observed\['flag'\] has no spread: it was 1 in"):
            od.rejection(model, od.uniform(1), draws=10, seed=1)


def test_dependent_columns_are_named():
    model = od.Model(PRIOR, lambda rng, mu, sigma: [mu, 2 * mu, rng.random()], [0, 0, 0], distance=od.mahalanobis())
    with pytest.raises(ValueError, match=r"singular: observed\[0\], observed\[1\] depend on each other"):
        od.rejection(model, od.uniform(1), draws=10, seed=1)


@pytest.mark.parametrize("scale", [[1.0], [1.0, 0.0], [1.0, -1.0], [np.nan, 1.0], []])
def test_bad_scales_are_refused(scale):
    with pytest.raises(ValueError, match="scale"):
        od.Model(PRIOR, lambda rng, mu, sigma: rng.normal(mu, sigma, 2), [0, 0], distance=od.scaled(scale=scale))


@pytest.mark.parametrize(
    ("distance", "error"),
    [
        (lambda a, b: -1.0, ValueError),
        (lambda a, b: "far", ValueError),
        (lambda a, b: [1.0, 2.0], ValueError),
        (od.batched(lambda a, b: 1.0), ValueError),
        (lambda a, b: np.nan, od.SimulationError),
    ],
)
def test_bad_distances_are_refused(distance, error):
    with pytest.raises(error, match="one number of at least 0 for each"):
        od.rejection(od.Model(PRIOR, simulate, DATA, distance=distance), od.uniform(1), draws=10, seed=1)


@pytest.mark.parametrize("name", ["euclidean", "scaled", "mahalanobis"])
def test_a_distance_that_is_not_called_is_refused(name):
    with pytest.raises(ValueError, match=rf"distance = od\.{name} makes a distance.*call it, as in od\.{name}\(\)"):
        od.Model(PRIOR, simulate, DATA, distance=getattr(od, name))


LIMIT = 1.0


def nan_beyond(a, b):
    return np.nan if a > LIMIT else abs(a - b)


def raises_beyond(a, b):
    if a > LIMIT:
        raise RuntimeError("too far")
    return abs(a - b)


def exits_beyond(a, b):
    return sys.exit(0) if a > LIMIT else abs(a - b)


def raises_beyond_in_batches(a, b):
    if (a > LIMIT).any():
        raise RuntimeError("too far")
    return np.abs(a - b)


class Learning:
    """A distance that learns, of the user's own."""

    pilot = 0

    def learnt(self, rows, labels):
        return self

    def __call__(self, rows, observed):
        return raises_beyond_in_batches(rows[:, 0], observed[0])


NO_DISTANCE = {
    "NaN": nan_beyond,
    "raises": raises_beyond,
    "exits": exits_beyond,
    "batched NaN": od.batched(lambda a, b: np.where(a > LIMIT, np.nan, np.abs(a - b))),
    "batched raises": od.batched(raises_beyond_in_batches),
    "learning": Learning(),
    "compiled NaN": od.compiled(nan_beyond),
    "compiled raises": od.compiled(raises_beyond),
}
ONE = od.Prior(theta=stats.norm())


def one(rng, theta):
    return theta + rng.standard_normal()


def in_batches(rng, theta):
    return theta + rng.standard_normal(len(theta))


def several(rng, theta, m):
    return theta + rng.standard_normal(m)


SIMULATORS = {
    "plain": one,
    "batched": od.batched(in_batches),
    "staged": od.staged(lambda theta: theta, several),
    "compiled": od.compiled(one),
}


@pytest.mark.parametrize("kind", SIMULATORS)
@pytest.mark.parametrize("name", long_in_slow_tests(NO_DISTANCE, "compiled raises"))
def test_a_simulation_without_a_distance_is_a_failed_one(name, kind):
    model = od.Model(ONE, SIMULATORS[kind], 0.0, distance=NO_DISTANCE[name])
    sound = od.Model(ONE, SIMULATORS[kind], 0.0, distance=lambda a, b: np.inf if a > LIMIT else abs(a - b))
    post, expected = (od.rejection(one, od.uniform(0.8), budget=200, seed=1) for one in (model, sound))
    assert post.draws["theta"].tolist() == expected.draws["theta"].tolist()
    assert 20 < post.cost.failed < 100 and post.cost.simulations == 200
    failure = post.failures[0]
    assert set(failure.theta) == {"theta"} and failure.message.startswith(
        "the distance is nan" if "NaN" in name else "SystemExit: 0" if name == "exits" else "RuntimeError: too far"
    )
    with pytest.raises(od.SimulationError, match=r"simulation failed at theta = "):
        od.rejection(model, od.uniform(0.8), budget=200, seed=1, on_error="raise")


@pytest.mark.parametrize("sampler", [od.pseudo_marginal, od.r_hit, od.smc, od.infer])
def test_samplers_go_on_without_some_distances(sampler):
    model = od.Model(ONE, one, 0.0, distance=raises_beyond)
    sound = od.Model(ONE, one, 0.0, distance=lambda a, b: np.inf if a > LIMIT else abs(a - b))
    given = {"kernel": od.uniform(0.8), "draws": 50} if sampler in (od.pseudo_marginal, od.r_hit) else {"budget": 400}
    if sampler is od.pseudo_marginal:
        given["pseudo_samples"] = 3
    post, expected = (sampler(one, seed=1, **given) for one in (model, sound))
    assert post.cost.failed > 5 and "too far" in post.failures[0].message
    if sampler is not od.infer:
        assert post.draws["theta"].tolist() == expected.draws["theta"].tolist()


def fussy(y):
    if y > LIMIT:
        raise RuntimeError("no summary")
    return y


@pytest.mark.parametrize("kind", SIMULATORS)
def test_a_simulation_without_a_summary_is_a_failed_one(kind):
    post = od.rejection(od.Model(ONE, SIMULATORS[kind], 0.0, summary=fussy), od.uniform(0.8), budget=200, seed=1)
    expected = od.rejection(
        od.Model(ONE, SIMULATORS[kind], 0.0, distance=nan_beyond), od.uniform(0.8), budget=200, seed=1
    )
    assert post.draws["theta"].tolist() == expected.draws["theta"].tolist()
    assert post.cost == expected.cost._replace(seconds=post.cost.seconds)
    assert post.failures[0].message == "RuntimeError: no summary" and "in fussy" in post.failures[0].traceback
    assert post.failures[0].theta == expected.failures[0].theta


# Bad models


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prior": 3}, "prior must be an od.Prior"),
        ({"simulate": 3}, "simulate must be a function"),
        ({"simulate": lambda rng, mu: 0}, r"does not fit the prior's parameters .*simulate\(rng, mu, sigma\)"),
        ({"simulate": lambda mu, sigma: 0}, "does not fit the prior's parameters"),
        ({"simulate": od.staged(lambda mu: 0, lambda r, s, m: 0)}, r"called as prepare\(mu, sigma\)"),
        (
            {"observed": [1.0, np.nan, 2.0]},
            r"observed\[1\] is nan: observed data must be finite. If 1 of 3 numbers are missing, leave them out of obs",
        ),
        ({"observed": {"x": [[1.0, np.inf]]}}, r"observed\['x'\]\[0\]\[1\] is inf"),
        ({"observed": []}, "observed is empty"),
        ({"observed": "text"}, "observed must be numbers"),
        ({"observed": [[1.0], [1.0, 2.0]]}, "observed must be numbers"),
        ({"summary": lambda y: []}, "summary is empty"),
        ({"summary": lambda y: np.nan}, "summary of the observed data is not finite"),
        ({"observed": [0.0, np.nan], "summary": lambda y: y.mean()}, r"observed\[1\] is nan"),
        ({"summary": lambda y: "a"}, "summary is not an array of numbers"),
        ({"summary": 3}, "summary must be a function"),
        ({"distance": "euclidean"}, "distance must be a function"),
    ],
)
def test_bad_models_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        od.Model(**{"prior": PRIOR, "simulate": simulate, "observed": DATA} | arguments)


def run(simulator, **more):
    model = od.Model(PRIOR, simulator, DATA)
    return od.rejection(model, od.uniform(8.0), **({"budget": 300, "seed": 1} | more))


def test_a_simulator_that_raises_at_some_theta_is_a_counted_rejection():
    def picky(rng, mu, sigma):
        if mu > 0.5:
            raise RuntimeError("no equilibrium")
        return simulate(rng, mu, sigma)

    post = run(picky)
    assert 0 < post.cost.failed < post.cost.simulations == 300
    assert post.draws["mu"].max() <= 0.5
    failure = post.failures[0]
    assert failure.theta["mu"] > 0.5 and "no equilibrium" in failure.traceback
    assert "simulations failed and count as misses" in str(post.summary())
    with pytest.raises(od.SimulationError, match=r"mu = .*no equilibrium"):
        run(picky, on_error="raise")


def test_a_simulator_that_returns_nan_at_some_theta_is_a_counted_rejection():
    def picky(rng, mu, sigma):
        y = simulate(rng, mu, sigma)
        return y * np.nan if mu > 0.5 else y

    post = run(picky)
    assert post.draws["mu"].max() <= 0.5 and post.cost.failed > 0
    assert "not finite" in post.failures[0].message

    @od.batched
    def batch(rng, mu, sigma):
        y = rng.normal(mu[:, None], sigma[:, None], (mu.size, 20))
        y[mu > 0.5, 3] = np.nan
        return y

    post = run(batch)
    assert post.draws["mu"].max() <= 0.5 and post.cost.failed > 0
    with pytest.raises(od.SimulationError, match="not finite"):
        run(batch, on_error="raise")


def test_one_bad_pseudo_sample_of_many_counts_as_zero():
    """E[K] with a third of the draws failing is two thirds of what it was."""

    def flaky(rng, theta):
        return np.nan if rng.random() < 1 / 3 else theta + rng.standard_normal()

    from tests.reference import Exact

    model = od.Model(od.Prior(theta=stats.norm()), flaky, 2.0)
    post = od.rejection(model, od.uniform(1.0), budget=24_000, pseudo_samples=3, seed=1)
    expected = Exact(od.uniform(1.0)).acceptance * 2 / 3
    assert abs(post.acceptance_rate - expected) < 4 * post.acceptance_rate_se


def test_a_shape_that_varies_with_theta_is_a_counted_rejection_naming_theta():
    post = run(lambda rng, mu, sigma: simulate_wrong(rng, mu, sigma) if mu > 0.5 else simulate(rng, mu, sigma))
    assert post.failures[0].theta["mu"] > 0.5
    assert "has shape (7,), but the observed data give (20,)" in post.failures[0].message


@pytest.mark.parametrize(
    ("simulator", "message"),
    [
        (
            simulate_wrong,
            r"the first simulations failed: at mu = .*the output has shape \(7,\), but .* give \(20,\)",
        ),
        (lambda rng, mu, sigma: 1 / 0, r"all of the first 112 simulations failed.* mu = .*division by zero"),
        (lambda rng, mu, sigma: {"x": 1.0}, "not an array of numbers"),
        (lambda rng, mu, sigma: None, "the output is None: a return statement may be missing"),
        (od.batched(lambda rng, mu, sigma: np.zeros(3)), r"shape \(3,\) for 300 rows: expected \(300, 20\)"),
        (od.batched(lambda rng, mu, sigma: 1 / 0), "division by zero.*return NaN for rows"),
        (od.staged(lambda mu, sigma: 1 / 0, lambda rng, s, m: 0), "division by zero"),
        (od.staged(lambda mu, sigma: 0, lambda rng, s, m: np.zeros((m + 1, 20))), "expected"),
    ],
)
def test_a_simulator_that_always_fails_stops_the_run(simulator, message):
    import re

    with pytest.raises(od.SimulationError, match=re.compile(message, re.DOTALL)):
        run(simulator)


def test_inputs_are_read_only():
    @od.batched
    def writes(rng, mu, sigma):
        mu += 1
        return np.zeros((mu.size, 20))

    with pytest.raises(od.SimulationError, match="read-only"):
        run(writes)


def test_a_simulator_that_ignores_its_rng_is_warned_about():
    for simulator in (
        lambda rng, mu, sigma: np.random.default_rng(0).normal(mu, sigma, 20),
        od.batched(lambda rng, mu, sigma: mu[:, None] + np.zeros((mu.size, 20))),
    ):
        with pytest.warns(UserWarning, match="drew nothing from the rng"):
            run(simulator)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"draws": 0}, "draws must be a whole number of at least 1, got 0"),
        ({"draws": 2.5}, "draws must be a whole number"),
        ({"draws": True}, "draws must be a whole number"),
        ({"budget": -5}, "budget must be a whole number"),
        ({"pseudo_samples": 0}, "pseudo_samples must be a whole number"),
        ({"pseudo_samples": 500}, "budget = 300 does not cover one proposal"),
        ({"budget": None}, "give draws=, budget= or both"),
        ({"seed": -1}, "seed must be a whole number from 0"),
        ({"seed": 1.0}, "seed must be a whole number"),
        ({"seed": True}, "seed must be a whole number"),
        ({"seed": 2**64}, "seed must be a whole number"),
        ({"on_error": "ignore"}, "on_error must be one of 'reject', 'raise'"),
        ({"max_seconds": 0}, "max_seconds must be positive"),
        ({"progress": "yes"}, "progress must be True, False or None"),
    ],
)
def test_bad_settings_are_refused_before_any_simulation(arguments, message):
    def never(rng, mu, sigma):
        raise AssertionError("simulated")

    with pytest.raises(ValueError, match=message):
        run(never, **arguments)


def test_a_model_and_a_kernel_are_asked_for():
    with pytest.raises(ValueError, match=r"model must be an od\.Model"):
        od.rejection(3, od.uniform(1), draws=1)
    with pytest.raises(ValueError, match="kernel must be a kernel"):
        od.rejection(od.Model(PRIOR, simulate, DATA), 0.1, draws=1)


def test_a_pilot_larger_than_the_budget_is_refused():
    model = od.Model(PRIOR, simulate, DATA, distance=od.scaled(pilot=500))
    with pytest.raises(ValueError, match=r"lower the pilot, as in od\.scaled\(pilot=20\)"):
        od.rejection(model, od.uniform(1), budget=200)


def test_a_failed_row_is_a_miss_even_where_the_distance_would_not_look():
    @od.batched
    def half_broken(rng, mu, sigma):
        y = np.column_stack([0 * mu, rng.standard_normal(mu.size)])
        y[mu > 0, 1] = np.inf
        return y

    model = od.Model(PRIOR, half_broken, [0.0, 0.0], distance=lambda simulated, observed: abs(simulated[0]))
    post = od.rejection(model, od.uniform(1.0), budget=500, seed=1)
    assert post.draws["mu"].max() <= 0 and post.cost.failed > 100


# Names of what is compared


def test_summaries_have_the_names_that_they_are_given():
    def named(y):
        return {"mean": y.mean(), "ends": y[:2]}

    assert od.Model(PRIOR, simulate, DATA, summary=named).labels() == ["mean", "ends[0]", "ends[1]"]
    unnamed = od.Model(PRIOR, simulate, DATA, summary=lambda y: [y.mean(), y.std()])
    assert unnamed.labels() == ["summary[0]", "summary[1]"]
    model = od.Model(PRIOR, simulate, DATA, summary=lambda y: [y.mean(), y.std()], names=["mean", "sd"])
    assert model.labels() == ["mean", "sd"] and od.Model(PRIOR, simulate, DATA).labels()[0] == "observed[0]"
    # They are words and no part of the run: the same draws, also after the samplers' own changes to the model.
    post = od.rejection(model, od.uniform(2.0), budget=200, seed=1)
    plain = od.rejection(unnamed, od.uniform(2.0), budget=200, seed=1)
    assert post.draws["mu"].tobytes() == plain.draws["mu"].tobytes() and post.model.labels() == ["mean", "sd"]
    ticks = [one.get_text() for one in od.plots.predictive(post, n=20, seed=1).axes[0].get_yticklabels()]
    assert ticks == ["mean", "sd"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("ab", r"names must be a list of texts, as in \['mean', 'sd'\], got 'ab'"),
        ([1, 2], "names must be a list of texts"),
        (["mean"], "names must be 2 different names, one for each number compared, got"),
        (["mean", "mean"], "names must be 2 different names"),
    ],
)
def test_wrong_names_are_refused(names, message):
    with pytest.raises(ValueError, match=message):
        od.Model(PRIOR, simulate, DATA, summary=lambda y: [y.mean(), y.std()], names=names)
