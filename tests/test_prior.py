import csv
import functools
import io
import unicodedata

import numpy as np
import pytest
from scipy import stats

import onedraw as od
from onedraw.cli.export import table
from onedraw.model.prior import FAMILIES

DISTRIBUTIONS = {
    "norm": stats.norm(1.5, 2.0),
    "uniform": stats.uniform(-1, 3),
    "expon": stats.expon(0.5, 2.0),
    "gamma": stats.gamma(2.5, 0.3, 1.7),
    "gamma-small": stats.gamma(0.5),
    "gamma-one": stats.gamma(1.0, scale=2.0),
    "beta": stats.beta(1.5, 0.7, loc=-1, scale=2),
    "lognorm": stats.lognorm(0.8, 0.1, 3.0),
    "t": stats.t(3.5, 1.0, 0.5),
    "randint": stats.randint(2, 9),
    "randint-shifted": stats.randint(0, 4, loc=-2),
    "poisson": stats.poisson(4.2),
    "poisson-shifted": stats.poisson(0.7, loc=3),
    "keywords": stats.norm(scale=3.0, loc=-1.0),
}


def log_density(distribution, x):
    return distribution.logpmf(x) if hasattr(distribution.dist, "logpmf") else distribution.logpdf(x)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_direct_formulas_equal_scipy(name):
    distribution = DISTRIBUTIONS[name]
    prior = od.Prior(x=distribution)
    low, high = distribution.support()
    inside = distribution.ppf(np.linspace(0.001, 0.999, 200))
    ends = [low, high, -50.0, 50.0, 0.0, 0.5, 1.0, low - 1e-9, high + 1e-9]
    x = np.unique(np.concatenate([inside, [end for end in ends if np.isfinite(end)]]))
    with np.errstate(divide="ignore"):
        expected = log_density(distribution, x)
    keep = expected < np.inf  # an infinite density has no log to compare
    got = prior.logpdf(x[keep, None])
    assert np.allclose(got, expected[keep], rtol=1e-12, atol=1e-12)
    if not keep.all():
        with pytest.raises(ValueError, match="log density is inf at"):
            prior.logpdf(x[:, None])


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_draws_equal_those_of_scipy(name):
    distribution = DISTRIBUTIONS[name]
    ours = od.Prior(x=distribution).sample(np.random.default_rng(3), 1000)[:, 0]
    theirs = distribution.rvs(1000, random_state=np.random.default_rng(3))
    assert np.allclose(ours, theirs, rtol=1e-13)


def test_every_direct_family_is_tested():
    assert {d.dist.name for d in DISTRIBUTIONS.values()} == set(FAMILIES)


@pytest.mark.parametrize("distribution", [stats.cauchy(1, 2), stats.truncnorm(-1, 2), stats.geom(0.3)])
def test_other_families_fall_back_to_scipy(distribution):
    prior = od.Prior(x=distribution)
    draws = prior.sample(np.random.default_rng(1), 500)
    assert np.allclose(prior.logpdf(draws), log_density(distribution, draws[:, 0]), rtol=1e-12)
    assert bool(prior.discrete[0]) == hasattr(distribution.dist, "logpmf")


def test_columns_are_read_only_and_discrete_ones_whole():
    prior = od.Prior(k=stats.randint(0, 5), x=stats.norm())
    columns = prior.columns(prior.sample(np.random.default_rng(1), 10))
    assert columns["k"].dtype == np.int64 and columns["x"].dtype == float
    with pytest.raises(ValueError, match="read-only"):
        columns["x"][0] = 1.0


def test_a_constraint_restricts_draws_and_density():
    prior = od.Prior(a=stats.uniform(0, 1), b=stats.uniform(0, 1), where=lambda a, b: a < b)
    draws = prior.sample(np.random.default_rng(1), 5000)
    assert draws.shape == (5000, 2) and (draws[:, 0] < draws[:, 1]).all()
    # Uniform on the triangle: a has density 2(1 - a).
    assert stats.kstest(draws[:, 0], lambda a: 1 - (1 - a) ** 2).pvalue > 1e-4
    assert prior.logpdf(np.array([[0.2, 0.1], [0.1, 0.2]])).tolist() == [-np.inf, 0.0]


def test_a_joint_prior():
    covariance = np.array([[1.0, 0.8], [0.8, 2.0]])
    exact = stats.multivariate_normal([0, 1], covariance)
    prior = od.Prior.joint(
        ["x", "y"], sample=lambda rng, n: rng.multivariate_normal([0, 1], covariance, n), logpdf=exact.logpdf
    )
    draws = prior.sample(np.random.default_rng(1), 20_000)
    assert np.allclose(np.cov(draws, rowvar=False), covariance, atol=0.06)
    assert np.allclose(prior.logpdf(draws[:5]), exact.logpdf(draws[:5]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: od.Prior(), "at least one parameter"),
        (lambda: od.Prior(stats.norm(0, 1)), "needs the name of its parameter"),
        (lambda: od.Prior(rng=stats.norm()), "'rng' cannot be a parameter's name"),
        (lambda: od.Prior(x=3.0), "prior 'x' is 3.0: expected a frozen SciPy distribution"),
        (lambda: od.Prior(x=stats.norm), "expected a frozen SciPy distribution"),
        (lambda: od.Prior(x=stats.norm(0, -1)), "norm has scale = -1"),
        (lambda: od.Prior(x=stats.gamma(-1.0)), "gamma does not exist for"),
        (lambda: od.Prior(x=stats.randint(5, 5)), "randint does not exist for"),
        (lambda: od.Prior(x=stats.norm(np.nan, 1)), "norm has loc = nan"),
        (lambda: od.Prior(x=stats.norm([0, 1], 1)), "it must be one finite number"),
        (lambda: od.Prior(x=stats.multivariate_normal([0, 0])), "od.Prior.joint"),
        (lambda: od.Prior(x=stats.uniform(0, 1), where=lambda x: x > 2), "prior draws in a row"),
        (lambda: od.Prior(a=stats.norm(), b=stats.norm(), where=lambda a, b: a < 0 and b < 0), "instead of and, or"),
        (lambda: od.Prior(x=stats.norm(), where=lambda x: True), "one truth value a row"),
        (lambda: od.Prior.joint(["x"], lambda rng, n: np.full((n, 1), np.nan), lambda t: t[:, 0]), "drew nan for 'x'"),
        (lambda: od.Prior.joint(["x"], lambda rng, n: rng.random((n, 2)), lambda t: t[:, 0]), r"expected \(64, 1\)"),
        (lambda: od.Prior.joint(["x"], lambda rng, n: rng.random((n, 1)), lambda t: t), r"logpdf returned shape"),
        (
            lambda: od.Prior.joint(["x"], lambda rng, n: rng.random((n, 1)), lambda t: np.full(len(t), np.nan)),
            r"log density is nan at x = ",
        ),
        (
            lambda: od.Prior.joint(["x"], lambda rng, n: rng.random((n, 1)), lambda t: np.full(len(t), -np.inf)),
            "do not belong together",
        ),
        (lambda: od.Prior.joint(["x", "x"], lambda rng, n: rng.random((n, 2)), lambda t: t[:, 0]), "must differ"),
        (lambda: od.Prior.joint(["x"], None, None, discrete=["y"]), "not a parameter"),
    ],
)
def test_bad_priors_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_constraint_takes_the_parameters_that_it_names():
    """The same draws and density, whichever others there are; functions that say nothing get all."""
    parts = {"a": stats.norm(), "b": stats.uniform(0, 2), "c": stats.poisson(3.0)}

    class Ordered:
        def __call__(self, b, a):
            return a < b

        def method(self, a, b):
            return a < b

    theta = np.array([[0.0, 1.0, 2.0], [1.5, 1.0, 2.0]])
    draws = set()
    for where in (
        lambda a, b, c: a < b,
        lambda a, b: a < b,
        lambda b, a: a < b,
        lambda *, a, b: a < b,
        lambda a, b, limit=0.0: a < b + limit,
        lambda **all_of_them: all_of_them["a"] < all_of_them["b"],
        Ordered(),
        Ordered().method,
        functools.partial(lambda shift, a, b: a < b + shift, 0.0),
    ):
        prior = od.Prior(**parts, where=where)
        assert prior.logpdf(theta)[0] > -np.inf and prior.logpdf(theta)[1] == -np.inf
        draws.add(prior.sample(np.random.default_rng(1), 50).tobytes())
    assert len(draws) == 1
    whole = []
    od.Prior(**parts, where=lambda c: whole.append(c.dtype.kind) or c > 0)
    assert set(whole) == {"i"}
    with pytest.raises(ValueError, match=r"where= takes 'd', which is not a parameter: there are a, b, c"):
        od.Prior(**parts, where=lambda a, d: a < d)


NAMES = ["lambda_", "θ", "weights", "weight", "distance", "draws", "seed", "m", "n", "state", "x", "where_", "µ", "_"]


@pytest.mark.parametrize("name", NAMES)
def test_parameters_may_be_called_anything_that_python_allows(name, tmp_path):
    """From the simulator to the file, the table and the summary."""
    scope = {}
    exec(f"def simulate(rng, {name}, b):\n    return rng.normal({name}, 0.5 + b)\n", scope)
    made = od.Prior(**{name: stats.norm(), "b": stats.uniform(0, 1)}, where=eval(f"lambda {name}: {name} < 5"))
    known = unicodedata.normalize("NFKC", name)
    model = od.Model(made, scope["simulate"], 0.5)
    post = od.importance(model, budget=300, seed=1, store=tmp_path / "run.db")
    assert post.names == (known, "b") and known in str(post.summary())
    assert od.load(tmp_path / "run.db").draws[known].tobytes() == post.draws[known].tobytes()
    chains = od.pseudo_marginal(model, od.uniform(1.0), draws=5, chains=2, start={known: 0.3, "b": 0.5}, seed=1)
    assert chains.shape == (2, 5)
    rows = list(csv.DictReader(io.StringIO(table(post))))
    column = f"parameter {known}" if known in ("weight", "distance") else known
    assert [float(row[column]) for row in rows] == post.draws[known].ravel().tolist()
    assert [float(row["weight"]) for row in rows] == post.weights.ravel().tolist()


@pytest.mark.parametrize(
    "law",
    [stats.norm(), stats.norm(2, 0.3), stats.uniform(), stats.uniform(-1, 3), stats.expon(), stats.expon(0.5, 2)],
)
def test_the_log_density_of_a_plain_number_is_that_in_an_array(law):
    """To the last bit, inside the support and outside: chains of one parameter step on numbers."""
    prior = od.Prior(theta=law)
    at = np.concatenate([np.random.default_rng(1).normal(0.5, 2, 200), [-1.0, 0.0, 0.5, 1.0, 2.0, np.nextafter(2, 3)]])
    assert [prior.logpdf_of_number(x) for x in at.tolist()] == prior.logpdf(at[:, None]).tolist()
    assert prior.logpdf(at[:, None]) == pytest.approx(law.logpdf(at), rel=1e-12)


def test_other_priors_have_no_log_density_of_a_plain_number():
    for prior in (
        od.Prior(a=stats.norm(), b=stats.norm()),
        od.Prior(theta=stats.gamma(2)),
        od.Prior(theta=stats.norm(), where=lambda theta: theta > 0),
    ):
        assert prior.logpdf_of_number is None
