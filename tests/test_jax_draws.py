"""Random numbers on a device: words of neighbouring keys, normal and Poisson numbers, against exact laws."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import onedraw as od
from onedraw.engines import jax as device
from onedraw.engines import jax_draws, jax_keys
from onedraw.engines.streams import Rng
from onedraw.estimators.abc_average import AbcAverage
from onedraw.run.options import placed

WORDS = jnp.uint32(0xC0FFEE), jnp.uint32(11)
SIZES = [2**18, pytest.param(2**24, marks=pytest.mark.slow)]
SINGLE = np.dtype(np.float32)


def over_counters(draw, n, paired=True):
    """A draw from the key of each of n pseudo-samples."""
    keys = jax.vmap(lambda counter: jax_keys.key_of(WORDS, counter, paired))
    return np.asarray(jax.jit(lambda counters: jax.vmap(draw)(keys(counters)))(jnp.arange(n, dtype=jnp.uint32)))


# Keys


def test_neighbours_have_the_two_words_of_a_hash():
    found = over_counters(lambda key: jax.random.bits(key, (3,)), 8)
    pair, place = np.meshgrid(np.arange(4, dtype=np.uint32), np.arange(3, dtype=np.uint32), indexing="ij")
    x, y = jax_keys.threefry(WORDS, jnp.asarray(pair), jnp.asarray(place))
    assert (found[0::2] == np.asarray(x)).all() and (found[1::2] == np.asarray(y)).all()


def test_no_two_uses_of_keys_share_a_number():
    def every(key):
        first, second = jax.random.split(key)
        words = [jax.random.bits(one, (50,)) for one in (key, first, second, jax.random.fold_in(key, 0))]
        return jnp.concatenate([*words, *jax_keys.pairs(key, (50,)), *jax_keys.pairs(key, (50,), 1)])

    found = over_counters(every, 16)
    assert len(np.unique(found)) == found.size == 16 * 400
    with jax.enable_x64(True):
        wide = over_counters(lambda key: jax.random.bits(key, (50,), jnp.uint64), 16)
    halves = np.concatenate([wide >> 32, wide & 0xFFFFFFFF])
    assert len(np.unique(np.concatenate([halves.ravel(), found.ravel()]))) == halves.size + found.size


@pytest.mark.parametrize("n", SIZES)
def test_words_of_neighbouring_keys(n):
    """Bytes and their pairs, runs, gaps and correlations, along the counters and along the places of a draw."""
    by_counter, by_key_alone = (over_counters(lambda key: jax.random.bits(key), n, paired) for paired in (True, False))
    by_place = np.asarray(jax.random.bits(jax_keys.key_of(WORDS, 7), (n,)))
    by_key = np.asarray(
        jax.jit(jax.vmap(lambda k: jax.random.bits(jax_keys.key_of((WORDS[0], k), 0))))(jnp.arange(n, dtype=jnp.uint32))
    )
    for words in (by_counter, by_key_alone, by_place, by_key):
        for shift in range(0, 32, 8):
            bytes_ = (words >> shift) & 0xFF
            assert stats.chisquare(np.bincount(bytes_, minlength=256)).pvalue > 1e-5
        share = np.array([(words >> k & 1).mean() for k in range(32)])
        assert np.abs(share - 0.5).max() < 5 * 0.5 / np.sqrt(n)
        for lag in (1, 2, 3, 64):
            table = np.bincount((words[:-lag] >> 28) * 16 + (words[lag:] >> 28), minlength=256)
            # Pairs overlap: 15 of their degrees of freedom are those of single numbers.
            whole = n - lag
            pairs_ = (table**2).sum() * 256 / whole - whole
            singles = (table.reshape(16, 16).sum(axis=1) ** 2).sum() * 16 / whole - whole
            assert 1e-5 < stats.chi2.sf(pairs_ - singles, 240) < 1 - 1e-5
            u = words / 2**32 - 0.5
            assert abs(np.mean(u[:-lag] * u[lag:])) < 5 / 12 / np.sqrt(n)
            # Bits that two neighbours have in common.
            same = np.bitwise_count(words[:-lag] ^ words[lag:]).mean()
            assert abs(same - 16) < 5 * np.sqrt(8 / n)
        rises = np.diff(words.astype(np.int64)) > 0
        runs = 1 + np.count_nonzero(rises[1:] != rises[:-1])
        # Runs up and down of n numbers: mean (2n - 1)/3, variance (16n - 29)/90.
        assert abs(runs - (2 * n - 1) / 3) < 5 * np.sqrt((16 * n - 29) / 90)
        gaps = np.diff(np.flatnonzero(words < 2**28)) - 1
        counts = np.bincount(np.minimum(gaps, 40), minlength=41)
        law = np.append(stats.geom.pmf(np.arange(1, 41), 1 / 16), stats.geom.sf(40, 1 / 16))
        assert stats.chisquare(counts, gaps.size * law).pvalue > 1e-5


# Programs that draw several pseudo-samples side by side

PRIOR = od.Prior(theta=stats.norm(0, 1))
SIMULATORS = {
    "jax": od.jax_simulator(lambda key, theta: theta + jax.random.normal(key, dtype=theta.dtype)),
    "ours": od.jax_simulator(lambda key, theta: theta + jax_draws.normal(key, dtype=theta.dtype)),
}


def failing(key, theta):
    u = jax.random.uniform(key, dtype=theta.dtype)
    return jnp.where(u < 0.25, jnp.nan, theta + u)


SIMULATORS["failing"] = od.jax_simulator(failing)
SLOW = [pytest.param(*one, marks=pytest.mark.slow) for one in itertools.product(SIMULATORS, (2, 3, 6, 8))]


@pytest.mark.parametrize(("name", "pseudo_samples"), [("ours", 4), ("failing", 6), *SLOW])
def test_hits_are_those_of_the_distances(name, pseudo_samples, monkeypatch):
    device._evaluated.clear_cache()
    monkeypatch.setattr(device, "MANY", 1)
    monkeypatch.setattr(device, "draw", Drawn(device.draw))
    theta = np.linspace(0, 3, 500)[:, None]
    model = od.Model(PRIOR, SIMULATORS[name], observed=2.0)
    needed = np.where(np.arange(500) < 400, -np.inf, np.inf)
    found, expected = (
        placed(AbcAverage(model, od.uniform(0.6), pseudo_samples, keep_distances=keep), "jax:float32").evaluate(
            Rng(1, 4), theta, needed
        )
        for keep in (False, True)
    )
    assert (found.log_estimate == expected.log_estimate).all() and np.isfinite(found.log_estimate).any()
    assert found.cost == expected.cost and (found.cost.failed > 0) == (name == "failing")
    assert found.failures == expected.failures
    # Once for each mask of failures; hits are counted side by side if M is even.
    assert len(device.draw.asked) == (2 if pseudo_samples % 2 == 0 else 3)


class Drawn:
    """Counts how often a program draws one by one."""

    def __init__(self, draw):
        self.draw, self.asked = draw, []

    def __call__(self, *arguments):
        self.asked.append(arguments[4])
        return self.draw(*arguments)


def test_loops_and_arrays_are_not_drawn_side_by_side():
    def numbers_of(function):
        return device._numbers(jax.make_jaxpr(function)(jax_keys.key_of(WORDS, 1), 0.5))

    assert numbers_of(lambda key, theta: theta + jax.random.normal(key)) < 64
    assert numbers_of(lambda key, theta: theta + jax_draws.normal(key)) < device.FEW_NUMBERS
    assert numbers_of(lambda key, theta: (theta + jax.random.normal(key, (5,))).mean()) == np.inf
    assert numbers_of(lambda key, theta: jax.lax.fori_loop(0, 3, lambda k, x: x + 1, theta)) == np.inf
    assert numbers_of(lambda key, theta: jax.random.gamma(key, theta)) == np.inf


# Normal numbers


@pytest.mark.parametrize("n", [2**19, pytest.param(2**25, marks=pytest.mark.slow)])
def test_moments_tails_and_pairs_of_normals(n):
    x = over_counters(jax_draws.normal, n).astype(float)
    for power, (mean, variance) in {1: (0, 1), 2: (1, 2), 3: (0, 15), 4: (3, 96), 6: (15, 10170)}.items():
        assert abs((x**power).mean() - mean) < 4.5 * np.sqrt(variance / n)
    for edge in (0.0, 1.0, 2.0, 3.0, 4.0, 4.5):
        for tail in (x > edge, x < -edge):
            expected = n * stats.norm.sf(edge)
            assert abs(tail.sum() - expected) < 4.5 * np.sqrt(expected) + 1
    assert stats.kstest(x, "norm").pvalue > 1e-4
    # The two normals of a hash are those at distance one, from even places.
    for lag, by in ((1, 2), (1, 1), (2, 2), (256, 1)):
        first, second = x[:-lag:by], x[lag::by]
        cells = [stats.norm.cdf(one) for one in (first, second)]
        table = np.histogram2d(*cells, 16, [[0, 1], [0, 1]])[0]
        if by > 1:
            assert stats.chisquare(table.ravel()).pvalue > 1e-4
        for f in (lambda v: v, np.abs, np.square):
            one, other = f(first) - f(first).mean(), f(second) - f(second).mean()
            assert abs(np.mean(one * other) / (one.std() * other.std())) < 4.5 / np.sqrt(first.size)


def test_normals_beyond_five_sigma_follow_the_tail(monkeypatch):
    """Given a first word below 2^12, numbers beyond 6 are as frequent as the law says."""
    n, most = 2**20, 2**12
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.integers(0, most, n, dtype=np.uint32))
    y = jnp.asarray(rng.integers(0, 2**32, n, dtype=np.uint32))
    monkeypatch.setattr(jax_draws, "shared_pairs", lambda key, shape: (x, y, True))
    z = np.asarray(jax_draws.normal(jax.random.key(0), (n,), np.float32), dtype=float)
    assert 6.3 < np.abs(z).max() < 6.77
    for edge in (5.5, 5.8, 6.0, 6.2):
        expected = n * stats.norm.sf(edge) * 2**32 / most
        for tail in (z > edge, z < -edge):
            # Words are whole: near the end of the law a cell is counted as its middle.
            assert abs(tail.sum() - expected) < 4.5 * np.sqrt(expected) + 0.01 * expected


def test_the_two_normals_of_a_hash_are_cosine_and_sine(monkeypatch):
    x, y = jnp.uint32([0, 5, 2**31, 2**32 - 1024, 77]), jnp.uint32([0, 2**30, 2**31, 2**32 - 1, 12345678])
    u = (np.asarray(x, float) + 0.5) / 2**32
    angle = np.asarray(y).astype(np.int32).astype(float) * np.pi / 2**31
    for even, side in ((True, np.cos), (False, np.sin)):
        monkeypatch.setattr(jax_draws, "shared_pairs", lambda key, shape, even=even: (x, y, even))
        found = np.asarray(jax_draws.normal(jax.random.key(0), (5,), np.float32))
        assert found == pytest.approx(np.sqrt(-2 * np.log(u)) * side(angle), rel=2e-6, abs=2e-6)


def test_normals_of_other_keys_and_precisions():
    found = np.asarray(jax_draws.normal(jax.random.key(3), (20_000,), np.float32), dtype=float)
    assert stats.kstest(found, "norm").pvalue > 1e-4
    with jax.enable_x64(True):
        key = jax_keys.key_of(WORDS, 3)
        assert (jax_draws.normal(key, (5,)) == jax.random.normal(key, (5,))).all()


# Poisson numbers

RATES = (0.0, 1e-9, 1e-3, 0.3, 1.0, 4.0, 9.99)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_small_rates_are_inverted_in_both_tails(precision, monkeypatch):
    width = int(precision[-2:])
    # u from 2^-33 (2^-65) on, and as near to 1.
    small = [0, 1, 5, *(2**k for k in range(4, width, 3)), 2 ** (width - 1) - 1]
    words = np.array([*small, *(2**width - 1 - word for word in small)], dtype=f"uint{width}")
    with jax.enable_x64(precision == "float64"):
        monkeypatch.setattr(jax.random, "bits", lambda key, shape, dtype: jnp.asarray(words))
        for rate in RATES:
            rates = jnp.full(words.shape, rate, precision)
            found = np.asarray(jax_draws._inverted(None, rates), dtype=float)
            low = np.array([*small, *small], dtype=float) + 0.5
            u, upper = low * 2.0**-width, np.arange(words.size) >= len(small)
            law = stats.poisson(float(rates[0]))
            slack = 1 + (2e-5 if width == 32 else 1e-12)
            most = jax_draws.LARGEST[np.dtype(precision)]
            assert found.max() <= most and (found == found.round()).all()
            # From below cdf(k - 1) <= u < cdf(k), from above sf(k) <= u < sf(k - 1).
            assert (np.where(upper, law.sf(found), law.cdf(found - 1)) <= u * slack).all(), rate
            reached = np.where(upper, law.sf(found - 1), law.cdf(found))
            assert ((u <= reached * slack) | (found == most)).all(), rate
    assert stats.poisson.sf(jax_draws.LARGEST[SINGLE], jax_draws.SMALL) < 2.0**-33
    assert stats.poisson.sf(jax_draws.LARGEST[np.dtype(float)], jax_draws.SMALL) < 2.0**-54


@pytest.mark.parametrize(
    ("precision", "error"), [("float32", 2e-5), pytest.param("float64", 1e-10, marks=pytest.mark.slow)]
)
def test_log_probabilities_of_counts(precision, error):
    with jax.enable_x64(precision == "float64"):
        for rate in (10.0, 33.5, 1e3, 1e6):
            count = np.unique(np.round(rate + np.sqrt(rate) * np.linspace(-6, 6, 101)).clip(0))
            there = jnp.asarray(count, precision)
            found = np.asarray(jax_draws.log_mass(there, jnp.asarray(rate, precision)), dtype=float)
            # Both numbers are exact here; what is compared is the difference that decides.
            assert found == pytest.approx(stats.poisson.logpmf(count, rate), abs=error * (1 + np.sqrt(rate) / 10))
        assert np.isneginf(jax_draws.log_mass(jnp.asarray(-1.0, precision), jnp.asarray(12.0, precision)))


def frequencies(found, rate):
    """The p-value of counts against the law, tails pooled."""
    low, high = stats.poisson.ppf([1e-4, 1 - 1e-4], rate)
    cells = np.unique(np.round(np.linspace(low, high, 60)))
    share = np.diff([0.0, *stats.poisson.cdf(cells, rate), 1.0])
    counts = np.histogram(found, [-1.5, *(cells + 0.5), np.inf])[0]
    return stats.chisquare(counts, found.size * share / share.sum()).pvalue


@pytest.mark.parametrize("precision", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize("n", [20_000, pytest.param(2_000_000, marks=pytest.mark.slow)])
def test_poisson_numbers_of_all_rates(n, precision):
    rates = (0.02, 0.7, 3.0, 9.9, 10.0, 11.0, 25.0, 300.0, 1e5)
    with jax.enable_x64(precision == "float64"):
        columns = jnp.broadcast_to(jnp.asarray(rates, precision), (n, len(rates)))
        keys = jax.vmap(lambda c: jax_keys.key_of(WORDS, c, True))(jnp.arange(n, dtype=jnp.uint32))
        found = np.asarray(jax.jit(jax.vmap(jax_draws.poisson))(keys, columns))
    for rate, counts in zip(rates, found.T, strict=True):
        assert frequencies(counts, rate) > 1e-5, rate
        # Neighbouring keys, and neighbouring places of one.
        assert abs(np.corrcoef(counts[:-1], counts[1:])[0, 1]) < 4.5 / np.sqrt(n)
    between = np.corrcoef(found.T)[np.triu_indices(len(rates), 1)]
    assert np.abs(between).max() < 4.5 / np.sqrt(n)


def test_rates_that_are_none():
    rates = jnp.array([-1.0, jnp.nan, jnp.inf, 0.0, 2.0])
    found = np.asarray(jax_draws.poisson(jax.random.key(1), rates))
    assert found[:4].tolist() == [-1, -1, -1, 0] and found[4] >= 0
