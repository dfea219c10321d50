"""Vector parameters and hierarchical priors, from the density to files, tables and plots."""

import csv
import io

import numpy as np
import pytest
from scipy import stats

import onedraw as od
from onedraw.cli.export import table
from onedraw.model.coordinates import support_of
from onedraw.run.fingerprint import fingerprint

GROUPS = 3
TAU, NOISE = 1.5, 1.0


def schools(size=8):
    return od.Prior(
        mu=stats.norm(0, 5),
        tau=stats.halfnorm(0, 5),
        group=lambda mu, tau: od.vector(stats.norm(mu, tau), size),
    )


def test_a_vector_is_its_entries():
    """The same bytes and density as a prior with a scalar for each entry."""
    whole = od.Prior(a=stats.norm(1, 2), beta=od.vector(stats.gamma(2.0), 3), k=od.vector(stats.poisson([1.0, 9.0])))
    parts = od.Prior(
        a=stats.norm(1, 2), b0=stats.gamma(2.0), b1=stats.gamma(2.0), b2=stats.gamma(2.0),
        k0=stats.poisson(1.0), k1=stats.poisson(9.0),
    )  # fmt: skip
    assert whole.names == ("a", "beta", "k") and whole.dim == 6 and whole.on_device
    assert whole.labels == ("a", "beta[0]", "beta[1]", "beta[2]", "k[0]", "k[1]")
    assert repr(whole) == "Prior(a, beta[3], k[2])"
    theta, other = (prior.sample(np.random.default_rng(1), 50) for prior in (whole, parts))
    assert theta.tobytes() == other.tobytes()
    assert whole.logpdf(theta).tobytes() == parts.logpdf(theta).tobytes()
    columns = whole.columns(theta)
    assert [one.shape for one in columns.values()] == [(50,), (50, 3), (50, 2)]
    assert columns["k"].dtype.kind == "i" and not columns["beta"].flags.writeable
    assert whole.named(theta[0]) == {
        "a": theta[0, 0], "beta": theta[0, 1:4].tolist(), "k": [int(one) for one in theta[0, 4:]],
    }  # fmt: skip


@pytest.mark.parametrize(
    "given",
    [
        od.vector(stats.norm([0, 1, 2], 1)),
        od.vector(stats.norm([0, 1, 2], 1), 3),
        od.vector(stats.norm(loc=np.arange(3), scale=[1, 1, 1])),
        od.vector(stats.norm(np.arange(3.0), scale=1)),
    ],
)
def test_a_distribution_with_arrays_has_one_entry_for_each(given):
    prior = od.Prior(beta=given)
    theta = prior.sample(np.random.default_rng(1), 20)
    assert np.allclose(prior.logpdf(theta), stats.norm([0, 1, 2], 1).logpdf(theta).sum(axis=1), rtol=1e-13)


def test_the_log_density_is_the_sum_of_the_conditionals():
    prior = schools()
    theta = prior.sample(np.random.default_rng(1), 200)
    mu, tau, group = theta[:, 0], theta[:, 1], theta[:, 2:]
    by_hand = stats.norm(0, 5).logpdf(mu) + stats.halfnorm(0, 5).logpdf(tau)
    by_hand = by_hand + stats.norm.logpdf(group, mu[:, None], tau[:, None]).sum(axis=1)
    before = prior.logpdf(theta)
    assert np.allclose(before, by_hand, rtol=1e-13, atol=1e-12)
    # Children have no distribution where a parent has no density.
    theta[::2, 1] = -theta[::2, 1]
    assert (prior.logpdf(theta)[::2] == -np.inf).all() and np.array_equal(prior.logpdf(theta)[1::2], before[1::2])


def test_a_row_has_the_same_density_in_any_company():
    prior = schools()
    theta = prior.sample(np.random.default_rng(1), 40)
    theta[3, 1] = -1.0
    together = prior.logpdf(theta)
    for order in "CF":
        again = np.concatenate([prior.logpdf(np.array(theta[i : i + 1], order=order)) for i in range(40)])
        assert again.tobytes() == together.tobytes()


def test_prior_draws_have_the_moments_of_the_hierarchy():
    """E group = 0, var group = 25 + E tau^2 = 50, cov of two groups = var mu = 25."""
    n = 40_000
    theta = schools().sample(np.random.default_rng(1), n)
    group = theta[:, 2:]
    covariance = np.cov(group.T)
    assert (np.abs(group.mean(axis=0)) < 4.5 * np.sqrt(50 / n)).all()
    # The variance of x^2 is at most E x^4 = 3 E (25 + tau^2)^2 = 3 (625 + 50 * 25 + 3 * 625) = 11,250.
    assert (np.abs(covariance.diagonal() - 50) < 4.5 * np.sqrt(11_250 / n)).all()
    assert (np.abs(covariance[np.triu_indices(8, 1)] - 25) < 4.5 * np.sqrt(11_250 / n)).all()
    inner = (group - theta[:, :1]) / theta[:, 1:2]
    assert stats.kstest(inner.ravel(), "norm").pvalue > 1e-4


def test_children_of_all_kinds():
    """A scalar child, a child of a vector, a grandchild, a whole number, and a regression on known values."""
    x = np.arange(4.0)
    prior = od.Prior(
        scale=stats.expon(0, 2),
        sigma=lambda scale: stats.halfnorm(scale=scale),
        line=lambda scale, sigma: od.vector(stats.norm(scale + sigma * x, 1.0)),
        last=lambda line: stats.norm(line.mean(axis=1, keepdims=True), 0.1),
        count=lambda sigma: od.vector(stats.poisson(1 + sigma), 2),
        pick=lambda count: stats.binom(count[:, :1] + 1, 0.5),
    )
    assert prior.discrete.tolist() == [False] * 7 + [True] * 3
    theta = prior.sample(np.random.default_rng(1), 100)
    scale, sigma, line, last, count, pick = (
        theta[:, part] for part in (slice(1), slice(1, 2), slice(2, 6), slice(6, 7), slice(7, 9), slice(9, 10))
    )
    by_hand = np.concatenate(
        [
            stats.expon.logpdf(scale, 0, 2), stats.halfnorm.logpdf(sigma, scale=scale),
            stats.norm.logpdf(line, scale + sigma * x, 1.0), stats.norm.logpdf(last, line.mean(axis=1)[:, None], 0.1),
            stats.poisson.logpmf(count, 1 + sigma), stats.binom.logpmf(pick, count[:, :1] + 1, 0.5),
        ],
        axis=1,
    ).sum(axis=1)  # fmt: skip
    assert np.allclose(prior.logpdf(theta), by_hand, rtol=1e-12, atol=1e-12)
    assert prior.named(theta[0])["pick"] == int(theta[0, 9])


def test_a_constraint_sees_vectors():
    prior = od.Prior(
        mu=stats.norm(),
        beta=lambda mu: od.vector(stats.norm(mu, 1), 3),
        where=lambda mu, beta: (beta[:, 0] < beta[:, 1]) & (mu > -1),
    )
    theta = prior.sample(np.random.default_rng(1), 300)
    assert (theta[:, 1] < theta[:, 2]).all() and (theta[:, 0] > -1).all()
    theta[0, 1] = theta[0, 2] + 1
    assert prior.logpdf(theta)[0] == -np.inf and (prior.logpdf(theta)[1:] > -np.inf).all()


N = stats.norm()
OWN = np.random.default_rng(1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: od.vector(3.0, 8), "od.vector takes a frozen SciPy distribution, .* got 3.0"),
        (lambda: od.vector(stats.norm, 8), "od.vector takes a frozen SciPy distribution"),
        (lambda: od.vector(od.vector(N, 2), 2), "od.vector takes a frozen SciPy distribution"),
        (lambda: od.vector(N, 0), "size"),
        (lambda: od.vector(N, 2.5), "size"),
        (lambda: od.Prior(a=od.vector(N)), "'a': how long is the vector"),
        (lambda: od.Prior(a=od.vector(stats.norm([0, 1, 2]), 8)), "a vector of 8 entries has a .* with 3 values"),
        (lambda: od.Prior(a=od.vector(stats.norm(np.zeros((2, 3))))), r"shape \(2, 3\): a vector has one axis"),
        (lambda: od.Prior(a=od.vector(stats.norm([0, 1], [1, 1, 1]))), "do not fit together"),
        (lambda: od.Prior(a=od.vector(stats.norm([0, 1], [1, -1]))), r"prior 'a\[1\]': norm has scale = -1"),
        (lambda: od.Prior(a=stats.norm([0, 1])), "it must be one finite number; od.vector"),
        (lambda: od.Prior(a=N, b=lambda c: N), "'b' is a function of 'c', which is not a parameter: before it .* a$"),
        (lambda: od.Prior(b=lambda a: N, a=N), "'b' is a function of 'a', which is defined after it: put"),
        (lambda: od.Prior(b=lambda b: N), "'b' is a function of 'b', which is the parameter itself"),
        (lambda: od.Prior(b=lambda c: N), "'b' is a function of 'c', .* no parameter is defined before it"),
        (lambda: od.Prior(a=N, b=lambda *a: N), r"'b' takes \*a: name the earlier parameters"),
        (lambda: od.Prior(a=N, b=lambda **a: N), r"'b' takes \*\*a: name the earlier parameters"),
        (lambda: od.Prior(a=N, b=lambda a: 3), "'b' returned 3: it takes earlier parameters by name"),
        (lambda: od.Prior(a=N, b=lambda a: stats.norm), "'b' returned .*: it takes earlier parameters by name"),
        (lambda: od.Prior(a=N, b=lambda a: 1 / 0), "'b' failed at arrays of a .ZeroDivisionError"),
        (lambda: od.Prior(a=N, b=lambda a: stats.norm(0, 1 if a > 0 else 2)), "'b' failed at .* ambiguous"),
        (lambda: od.Prior(a=N, b=lambda a: stats.norm(a, a)), "'b' cannot be drawn at a = -.*Domain error"),
        (lambda: od.Prior(a=N, b=lambda a: od.vector(stats.norm(a, 1))), "'b': how long is the vector"),
        (
            lambda: od.Prior(a=od.vector(N, 4), b=lambda a: od.vector(stats.norm(a, 1), 8)),
            "'b': a vector of 8 entries has a distribution with 4 values",
        ),
        (lambda: od.Prior(a=od.vector(N, 4), b=lambda a: stats.norm(a, 1)), "'b': .* write od.vector"),
        (lambda: od.Prior(a=N, b=lambda a: od.vector(stats.norm(a[:, 0], 1), 8)), "'b': a vector of 8 entries"),
        (lambda: od.Prior(a=N, b=lambda a: od.vector(stats.norm(a[:, 0], 1))), "'b' returned a vector of 64 .* 61"),
        (lambda: od.Prior(a=N, b=lambda a: stats.norm(a[:, 0], 1)), "'b': the arguments of its .* write od.vector"),
        (lambda: od.Prior(a=N, b=lambda a: stats.norm(OWN.random(), 1)), "a generator in the same state"),
        (lambda: od.Prior(a=N, b=lambda a: stats.norm(a * np.inf, 1)), "the prior drew"),
        (lambda: od.Prior(a=N, b=max), "'b'"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_mistakes_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_code_of_a_conditional_belongs_to_the_identity_of_a_run(tmp_path):
    def made(scale, sign=1):
        if sign < 0:
            return od.Prior(mu=stats.norm(), b=lambda mu: stats.norm(-mu, scale))
        return od.Prior(mu=stats.norm(), b=lambda mu: stats.norm(mu, scale))

    same, again, other, turned = (fingerprint(one) for one in (made(1.0), made(1.0), made(2.0), made(1.0, -1)))
    assert same == again and same != other and same != turned
    assert fingerprint(schools(8)) != fingerprint(schools(7))

    def model(scale):
        return od.Model(made(scale), lambda rng, mu, b: rng.normal(mu + b), 1.0)

    file = tmp_path / "run.db"
    od.rejection(model(1.0), od.uniform(1.0), budget=200, seed=1, store=file)
    assert od.resume(file, model(1.0), budget=300).cost.simulations == 300
    with pytest.raises(od.StoreError, match="prior"):
        od.resume(file, model(2.0), budget=400)


def test_a_range_that_depends_on_others_is_no_bound():
    """Coordinates must hold every draw: a bound that some draws pass would move them."""
    prior = od.Prior(
        top=stats.uniform(1, 2),
        below=lambda top: stats.uniform(0, top),
        both=lambda top: od.vector(stats.uniform(-top, 2 * top), 2),
        positive=lambda top: stats.gamma(2.0, scale=top),
    )
    support = support_of(prior)
    assert np.allclose(support.low, [1, 0, -np.inf, -np.inf, 0]) and np.allclose(support.high, [3] + [np.inf] * 4)
    theta = prior.sample(np.random.default_rng(1), 2_000)
    assert np.allclose(support.bounded(support.unbounded(theta)), theta, rtol=1e-9)


def test_bounds_under_a_constraint_are_those_of_the_marginals():
    prior = od.Prior(a=stats.uniform(0, 1), b=stats.uniform(0, 1), where=lambda a, b: a < b)
    support = support_of(prior)
    assert np.allclose(support.low, 0) and np.allclose(support.high, 1)
    theta = prior.sample(np.random.default_rng(1), 2_000)
    assert np.allclose(support.bounded(support.unbounded(theta)), theta, rtol=1e-9)
