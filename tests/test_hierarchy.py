"""Vector parameters and hierarchical priors, from the density to files, tables and plots."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import onedraw as od
from onedraw.cli.export import table
from onedraw.model.coordinates import support_of
from onedraw.run.earlier import starting_bank
from onedraw.run.fingerprint import fingerprint
from tests.marks import long_in_slow_tests

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


def test_no_rows_are_no_question_to_a_function():
    prior = schools()
    assert prior.sample(np.random.default_rng(1), 0).shape == (0, 10)
    assert prior.logpdf(np.empty((0, 10))).shape == (0,)
    assert np.array_equal(prior.logpdf(np.full((3, 10), -1.0)), [-np.inf] * 3)


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
        (lambda: od.Prior(a=od.vector(stats.multivariate_normal([0, 0]))), "its entries are independent, so give"),
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


# --- runs: a vector is its entries, whatever the simulator and the sampler --------------------------------------------

OBSERVED = np.array([-1.0, 0.5, 3.0])


def plain(rng, mu, group):
    return group + mu + rng.standard_normal(GROUPS)


def flat(rng, mu, a, b, c):
    return np.array([a, b, c]) + mu + rng.standard_normal(GROUPS)


def stacked(rng, mu, group):
    return group + mu[:, None] + rng.standard_normal(group.shape)


def stacked_flat(rng, mu, a, b, c):
    return np.stack([a, b, c], axis=1) + mu[:, None] + rng.standard_normal((mu.size, GROUPS))


def by_key(key, mu, group):
    import jax

    return group + mu + jax.random.normal(key, (GROUPS,))


def by_key_flat(key, mu, a, b, c):
    import jax
    import jax.numpy as jnp

    return jnp.stack([a, b, c]) + mu + jax.random.normal(key, (GROUPS,))


def drawn(rng, middle, m):
    return middle + rng.standard_normal((m, GROUPS))


SIMULATORS = {
    "plain": (plain, flat),
    "batched": (od.batched(stacked), od.batched(stacked_flat)),
    "compiled": (od.compiled(plain), od.compiled(flat)),
    "staged": (
        od.staged(lambda mu, group: mu + group, drawn),
        od.staged(lambda mu, a, b, c: mu + np.array([a, b, c]), drawn),
    ),
    "jax": (od.jax_simulator(by_key), od.jax_simulator(by_key_flat)),
}
PAIR = (
    od.Prior(mu=stats.norm(), group=od.vector(stats.norm(0, TAU), GROUPS)),
    od.Prior(mu=stats.norm(), **dict.fromkeys("abc", stats.norm(0, TAU))),
)


def as_bytes(post):
    return b"".join(values.tobytes() for values in post.columns.values())


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind in ("jax", "compiled"))) for kind in SIMULATORS]
)
def test_simulators_receive_vectors(kind):
    vectors, scalars = (
        od.Model(prior, simulate, OBSERVED) for prior, simulate in zip(PAIR, SIMULATORS[kind], strict=True)
    )
    ours, others = (od.rejection(model, od.uniform(2.0), draws=50, seed=1) for model in (vectors, scalars))
    assert ours.draws["group"].shape == (1, 50, GROUPS) and not ours.draws["group"].flags.writeable
    assert as_bytes(ours) == as_bytes(others) and ours.cost.simulations == others.cost.simulations
    assert list(ours.columns) == ["mu", "group[0]", "group[1]", "group[2]"]
    if kind == "jax":
        return
    ours, others = (od.pseudo_marginal(m, od.uniform(2.0), draws=6, chains=4, seed=1) for m in (vectors, scalars))
    assert ours.draws["group"].shape == (4, 6, GROUPS) and as_bytes(ours) == as_bytes(others)


SAMPLED = {
    "wilkinson": lambda model, **k: od.wilkinson(model, od.uniform(2.0), draws=5, chains=4, **k),
    "r_hit": lambda model, **k: od.r_hit(model, od.uniform(2.0), draws=5, chains=4, **k),
    "smc": lambda model, **k: od.smc(model, budget=1_000, **k),
    "importance": lambda model, **k: od.importance(model, budget=1_000, **k),
    "infer": lambda model, **k: od.infer(model, budget=200, draws=200, **k),
}


@pytest.mark.parametrize("name", SAMPLED)
def test_samplers_treat_a_vector_as_its_entries(name, quick):
    ours, others = (
        SAMPLED[name](od.Model(prior, simulate, OBSERVED), seed=1)
        for prior, simulate in zip(PAIR, SIMULATORS["batched"], strict=True)
    )
    assert ours.draws["group"].shape == (*ours.shape, GROUPS) and as_bytes(ours) == as_bytes(others)
    rows = ours.summary()["group[1]"], others.summary()["b"]
    assert np.allclose(*(row[:4] for row in rows), rtol=1e-12)


def test_a_whole_vector_reaches_simulators_as_integers():
    seen = set()

    def simulate(rng, k):
        seen.add((k.dtype.kind, k.shape, k.flags.writeable))
        return float(k.sum())

    model = od.Model(od.Prior(k=od.vector(stats.poisson(2.0), 4)), simulate, 8.0)
    with pytest.warns(UserWarning, match="drew nothing"):
        post = od.rejection(model, od.uniform(0.5), budget=300, seed=1)
    assert seen == {("i", (4,), False)} and post.draws["k"].dtype.kind == "i"
    assert (post.draws["k"].sum(axis=2) == 8).all()
    assert post.summary()["k[3]"].mean == pytest.approx(2.0, abs=5 * post.summary()["k[3]"].mcse)


def test_a_program_reads_vectors(tmp_path):
    import sys

    code = "import sys; print(sum(map(float, sys.argv[1].split(','))))"
    by_words = od.command([sys.executable, "-c", code, "{beta}"])
    assert by_words(np.random.default_rng(1), beta=np.array([1.5, 2.0])) == 3.5
    code = "import json, sys; print(json.dumps(json.load(open(sys.argv[1]))['beta']))"
    by_file = od.command([sys.executable, "-c", code, "{input}"])
    assert by_file(np.random.default_rng(1), beta=np.array([1.5, 2.0])).tolist() == [1.5, 2.0]


def test_a_failure_names_its_vector_and_can_be_run_again(tmp_path):
    def simulate(rng, mu, group):
        if group[1] < 0:
            raise RuntimeError(f"no group below zero: {group[1]}")
        return group + rng.standard_normal(GROUPS)

    model, file = od.Model(PAIR[0], simulate, OBSERVED), tmp_path / "run.db"
    post = od.rejection(model, od.uniform(3.0), budget=200, seed=1, store=file)
    assert od.load(file).failures == post.failures
    worst = post.failures[0].theta["group"]
    assert len(worst) == GROUPS and worst[1] < 0 and str(worst[1]) in str(post.failures[0])
    with pytest.raises(RuntimeError, match=f"no group below zero: {worst[1]}"):
        od.replay(file, model=model)
    assert f"group = [{worst[0]:.4g}, {worst[1]:.4g}" in post.report(tmp_path / "run.html", predictive=0).read_text()


# --- hierarchical runs against exact answers --------------------------------------------------------------------------

CENTRE, WIDTH = 3.0, 2.0


def hierarchical(kind="batched"):
    prior = od.Prior(
        mu=stats.norm(0, CENTRE),
        tau=stats.halfnorm(0, WIDTH),
        group=lambda mu, tau: od.vector(stats.norm(mu, tau), GROUPS),
    )

    def one(rng, mu, tau, group):
        return group + NOISE * rng.standard_normal(GROUPS)

    def many(rng, mu, tau, group):
        return group + NOISE * rng.standard_normal(group.shape)

    return od.Model(prior, one if kind == "plain" else od.batched(many), OBSERVED)


def exact(eps):
    """Posterior means and sds of (mu, tau, group): normal given tau, which is integrated on a grid.

    The Gaussian kernel adds eps^2 to the variance of the noise.
    """
    tau = np.linspace(1e-3, 6 * WIDTH, 4_000)
    own, noise = np.diag([0.0, *[1.0] * GROUPS]), (NOISE**2 + eps**2) * np.eye(GROUPS)
    # Of (mu, group) given tau, and of the data, which are the groups and noise.
    covariance = CENTRE**2 + tau[:, None, None] ** 2 * own
    of_data = covariance[:, 1:, 1:] + noise
    gain = covariance[:, :, 1:] @ np.linalg.inv(of_data)
    means = np.insert(gain @ OBSERVED, 1, tau, axis=1)
    rest = np.diagonal(covariance - gain @ covariance[:, 1:], axis1=1, axis2=2)
    seconds = np.insert(rest, 1, 0.0, axis=1) + means**2
    square = np.einsum("i,tij,j->t", OBSERVED, np.linalg.inv(of_data), OBSERVED)
    log_weight = stats.halfnorm.logpdf(tau, 0, WIDTH) - (np.linalg.slogdet(of_data)[1] + square) / 2
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    mean = weight @ means
    return mean, np.sqrt(weight @ seconds - mean**2)


def right(post, eps, errors=4.5):
    mean, sd = exact(eps)
    rows = post.summary().rows
    assert list(rows) == ["mu", "tau", "group[0]", "group[1]", "group[2]"]
    for row, middle, spread in zip(rows.values(), mean, sd, strict=True):
        assert abs(row.mean - middle) < errors * row.mcse and row.mcse < 0.25 * spread


EPS = 1.0
EXACT = {
    "rejection": lambda: od.rejection(hierarchical(), od.gaussian(EPS), draws=2_000, seed=1),
    "pseudo_marginal": lambda: od.pseudo_marginal(hierarchical(), od.gaussian(EPS), draws=200, chains=256, seed=1),
    "importance": lambda: od.importance(hierarchical(), kernel=od.gaussian(EPS), budget=60_000, seed=1),
    "smc": lambda: od.smc(hierarchical(), kernel=od.gaussian(EPS), budget=60_000, seed=1),
}


@pytest.mark.parametrize("name", long_in_slow_tests(EXACT, "importance"))
def test_hierarchical_posteriors_are_exact(name):
    """The Gaussian kernel is exact at every eps, also at the one that smc reaches."""
    post = EXACT[name]()
    assert EPS <= post.settings["eps"] < 2 * EPS
    right(post, post.settings["eps"])


@pytest.mark.slow
def test_infer_learns_a_hierarchical_model():
    post = od.infer(hierarchical(), budget=1_500, seed=1)
    mean, sd = exact(0.0)
    rows = list(post.summary().rows.values())
    assert (np.abs([row.mean for row in rows] - mean) < 0.15 * sd).all()
    assert (np.abs(np.log([row.sd for row in rows] / sd)) < 0.15).all()


def test_a_device_refuses_functions_of_parameters():
    model = od.Model(
        od.Prior(mu=stats.norm(), group=lambda mu: od.vector(stats.norm(mu, 1), GROUPS)),
        od.jax_simulator(by_key),
        OBSERVED,
    )
    with pytest.raises(ValueError, match=r"engine='jax' has no JAX form of this prior: .* no functions of other param"):
        od.rejection(model, od.uniform(1.0), draws=10, seed=1)


# --- results ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    file = tmp_path_factory.mktemp("hierarchy") / "run.db"
    return od.rejection(hierarchical(), od.gaussian(EPS), draws=300, seed=1, store=file), file


def test_a_file_knows_the_shapes(stored):
    post, file = stored
    loaded = od.load(file)
    assert loaded.draws["group"].shape == (1, 300, GROUPS) and as_bytes(loaded) == as_bytes(post)
    assert str(loaded.summary()) == str(post.summary())
    assert list(loaded.summary().rows) == list(loaded.columns)


@pytest.mark.parametrize("kind", long_in_slow_tests(["plain", "batched"], "plain"))
def test_same_bytes_for_any_worker_segment_and_resume(kind, tmp_path):
    model = hierarchical(kind)
    for run in (
        lambda **more: od.rejection(model, od.gaussian(2.0), budget=more.pop("budget", 600), seed=1, **more),
        lambda **more: od.pseudo_marginal(
            model, od.gaussian(2.0), budget=more.pop("budget", 600), chains=4, seed=1, **more
        ),
    ):
        whole = run()
        assert as_bytes(run(workers=2)) == as_bytes(whole)
        file = tmp_path / f"{whole.settings['algorithm']}.db"
        run(budget=300, store=file, segment=0.01)
        assert as_bytes(od.resume(file, model, budget=600)) == as_bytes(od.load(file))
        assert as_bytes(run(budget=600, store=file)) == as_bytes(od.load(file))


@pytest.mark.parametrize("name", long_in_slow_tests(SAMPLED, "infer", "r_hit", "smc"))
def test_every_sampler_meets_its_contract_with_a_hierarchical_prior(name, tmp_path):
    """The same bytes again, with two workers, from the file, and when the file is continued."""
    model, file = hierarchical("plain"), tmp_path / "run.db"
    run = SAMPLED[name]
    whole = run(model, seed=1, store=file, segment=0.05)
    assert as_bytes(od.load(file)) == as_bytes(whole) and od.load(file).draws["group"].shape[2] == GROUPS
    assert as_bytes(run(model, seed=1, store=file)) == as_bytes(whole)
    assert as_bytes(run(model, seed=1, workers=2)) == as_bytes(whole)
    assert as_bytes(run(model, seed=2)) != as_bytes(whole)


def test_starts_of_vectors(stored):
    post, _ = stored
    model = hierarchical()
    point = {"mu": 0.0, "tau": 1.0, "group": [0.0, 1.0, 2.0]}
    one = od.pseudo_marginal(model, od.gaussian(EPS), draws=3, chains=5, start=point, seed=1)
    rows = [{**point, "group": [point["group"]] * 5}, np.array([[0.0, 1.0, 0.0, 1.0, 2.0]] * 5)]
    for given in rows:
        again = od.pseudo_marginal(model, od.gaussian(EPS), draws=3, start=given, seed=1)
        assert again.shape == (5, 3) and as_bytes(again) == as_bytes(one)
    assert od.pseudo_marginal(model, od.gaussian(EPS), draws=3, chains=4, start=post, seed=1).shape == (4, 3)
    with pytest.raises(ValueError, match=r"parameters \['mu', 'tau', 'group\[0\]'"):
        od.pseudo_marginal(model, od.gaussian(EPS), draws=3, chains=5, start={**point, "group": [0.0, 1.0]}, seed=1)
    with pytest.raises(ValueError, match="cov has 3 variances for 5 parameters"):
        od.pseudo_marginal(model, od.gaussian(EPS), draws=3, proposal=od.random_walk([1.0, 1.0, 1.0]), seed=1)


def test_estimates_and_functions(stored):
    post, _ = stored
    assert post.estimate("group[2]").value == pytest.approx(post.draws["group"][..., 2].mean())
    largest = post.estimate(lambda group, **_: group.max(axis=-1))
    assert largest.value == pytest.approx(post.draws["group"].max(axis=2).mean())
    with pytest.raises(ValueError, match=r"no parameter 'group': .* entries of a vector are called group\[0\]"):
        post.estimate("group")
    with pytest.raises(ValueError, match=r"returned shape \(1, 300, 3\)"):
        post.estimate(lambda group, **_: group)
    assert post.sample(7, seed=1)["group"].shape == (7, GROUPS)
    assert post.resample(20, seed=1).draws["group"].shape == (1, 20, GROUPS)
    assert post.at(0.8).draws["group"].shape == (1, 300, GROUPS)
    assert post.predict(10, seed=1).shape == (10, GROUPS)


def test_tables_and_trees(stored):
    post, _ = stored
    frame = post.to_dataframe()
    assert list(frame) == ["mu", "tau", "group[0]", "group[1]", "group[2]"]
    assert np.array_equal(frame["group[1]"], post.draws["group"][0, :, 1])
    rows = list(csv.DictReader(io.StringIO(table(post))))
    assert [float(row["group[2]"]) for row in rows] == post.draws["group"][0, :, 2].tolist()
    tree = post.to_datatree(predictive=20)
    for group in ("posterior", "prior"):
        assert tree[group]["group"].dims == ("chain", "draw", "group_dim_0")
        assert tree[group]["group_dim_0"].values.tolist() == [0, 1, 2]
    assert np.array_equal(tree["posterior"]["group"], post.draws["group"])
    errors = tree["monte_carlo_error"]["group"]
    assert errors.dims == ("group_dim_0", "statistic", "quantity")
    assert float(errors.sel(statistic="mean", quantity="value")[1]) == post.estimate("group[1]").value


def test_arviz_reads_vectors(stored):
    az = pytest.importorskip("arviz")
    post, _ = stored
    found = az.summary(post.to_datatree(predictive=0)["posterior"].to_dataset())
    assert list(found.index) == list(post.columns)


def test_plots_and_pages(stored, tmp_path, unrendered):
    pytest.importorskip("matplotlib")
    post, _ = stored
    assert len(od.plots.marginals(post).axes) == 5
    figure = od.plots.marginals(post, "group", names={"group": r"$\\eta$"}, truth={"group": [0.0, 1.0, 2.0]})
    assert [axes.get_title(loc="left") for axes in figure.axes] == [rf"$\\eta$[{i}]" for i in range(3)]
    assert len(od.plots.intervals(post, ["mu", "group"]).axes[0].get_yticks()) == 4
    od.plots.corner(post, ["tau", "group[0]"])
    with pytest.raises(ValueError, match="truth has 2 values for group, which has 3"):
        od.plots.marginals(post, truth={"group": [0.0, 1.0]})
    text = post.report(tmp_path / "run.html", predictive=20).read_text()
    assert "group[2]" in text


def test_the_command_line_shows_vectors(stored, tmp_path):
    from click.testing import CliRunner

    from onedraw.cli.main import main

    _, file = stored
    example = Path(__file__).parent.parent / "examples" / "eight_schools.py"
    looked = CliRunner().invoke(main, ["check", str(example), "--simulations", "20"])
    assert looked.exit_code == 0 and "effect = [" in looked.output, looked.output
    shown = CliRunner().invoke(main, ["show", str(file)])
    assert shown.exit_code == 0 and "group[2]" in shown.output
    target = tmp_path / "draws.csv"
    assert CliRunner().invoke(main, ["export", str(file), "-o", str(target)]).exit_code == 0
    assert target.read_text().splitlines()[0] == "chain,draw,mu,tau,group[0],group[1],group[2],distance"
    pytest.importorskip("h5netcdf")
    written = CliRunner().invoke(main, ["export", str(file), "-o", str(tmp_path / "draws.nc")])
    assert written.exit_code == 0, written.output


@pytest.mark.slow
def test_simulations_and_banks(quick):
    model = hierarchical()
    post = od.infer(model, budget=150, draws=100, seed=1)
    theta, x = post.simulations
    assert theta.shape == (150, 5) and x.shape == (150, GROUPS)
    by_name = {"mu": theta[:, 0], "tau": theta[:, 1], "group": theta[:, 2:]}
    ours, others = (
        starting_bank(od.bank_from_arrays(given, x), model, support_of(model.prior)) for given in (by_name, theta)
    )
    assert np.array_equal(ours.more.theta, others.more.theta) and ours.reused == 150
    more = od.infer(model, budget=50, bank=post, draws=100, seed=1)
    assert more.cost.reused == 150 and more.draws["group"].shape == (1, 100, GROUPS)
    assert post.observed(OBSERVED + 1, draws=100, seed=1).draws["group"].shape == (1, 100, GROUPS)
    with pytest.raises(ValueError, match=r"bank has group of shape \(150, 2\): the model's is a vector of 3"):
        od.infer(model, budget=200, bank=od.bank_from_arrays({**by_name, "group": theta[:, 3:]}, x), seed=1)


def test_calibration_of_a_hierarchical_model():
    found = od.calibrate(
        hierarchical(), od.rejection, data_sets=20, arguments={"kernel": od.uniform(3.0), "draws": 30}, seed=1
    )
    assert found.names == ("mu", "tau", "group[0]", "group[1]", "group[2]") and found.places.shape == (20, 7)

    def own(model, seed):
        draws = model.prior.sample(np.random.default_rng(seed), 30)
        return {"mu": draws[:, 0], "tau": draws[:, 1], "group": draws[:, 2:]}

    assert od.calibrate(hierarchical(), own, data_sets=20, seed=1).names == found.names


def test_a_filter_takes_vectors():
    """A vector comes as (chains, 1, size): each entry broadcasts against states (chains, particles)."""

    def filtered(prior, first, second):
        return od.particle_filter(
            prior,
            initial=lambda rng, shape, **p: first(**p) + rng.standard_normal(shape),
            transition=lambda rng, x, **p: second(**p) * x + rng.standard_normal(x.shape),
            log_observation=lambda y, x, **p: -0.5 * (y - x) ** 2,
            data=[0.3, -0.1, 1.2],
            particles=20,
        )

    whole = filtered(
        od.Prior(p=od.vector(stats.uniform(0, 1), 2)), lambda p: p[..., 0], lambda p: p[..., 1]
    )  # fmt: skip
    parts = filtered(od.Prior(a=stats.uniform(0, 1), b=stats.uniform(0, 1)), lambda a, b: a, lambda a, b: b)
    ours = od.pseudo_marginal(estimator=whole, start={"p": [0.5, 0.2]}, chains=3, draws=10, seed=1)
    others = od.pseudo_marginal(estimator=parts, start={"a": 0.5, "b": 0.2}, chains=3, draws=10, seed=1)
    assert ours.draws["p"].shape == (3, 10, 2) and as_bytes(ours) == as_bytes(others)
