"""The generator of compiled code: the numbers of NumPy's Generator over SFC64, and their distribution."""

import numpy as np
import pytest
from scipy import stats

from onedraw.engines import streams

pytest.importorskip("numba")
import numba

from onedraw.engines import numba_streams

DRAWN = {
    "one": (
        "rng.standard_normal()", "rng.normal(1.5, 2)", "rng.normal(scale=0.5)", "rng.random()", "rng.uniform(-1, 2.5)",
        "rng.standard_exponential()", "rng.exponential(0.3)",
    ),
    "arrays": (
        "rng.standard_normal(3).sum()", "rng.standard_normal((2, 2))[1, 0]", "rng.normal(2.0, size=3)[2]",
        "rng.random(3)[1]", "rng.uniform(1.0, 2.0, 3)[2]", "rng.standard_exponential(2)[1]",
        "rng.exponential(2.0, (3, 1))[2, 0]",
    ),
    "halves": (
        "rng.integers(0, 10)", "rng.random(dtype=np.float32)", "rng.standard_normal(dtype=np.float32)",
    ),
    "others": (
        "rng.standard_gamma(2.5)", "rng.poisson(3.0)", "rng.standard_exponential(method='inv')", "rng.beta(0.5, 3.0)",
    ),
}  # fmt: skip


def loop_of(calls):
    """(rng, n) -> (n, calls), each call in turn, for any generator."""
    names = {"np": np}
    lines = "\n".join(f"        values[i, {k}] = {call}" for k, call in enumerate(calls))
    text = f"def draw(rng, n):\n    values = np.empty((n, {len(calls)}))\n    for i in range(n):\n{lines}\n"
    exec(f"{text}    return values", names)
    draw, stream = numba.njit(names["draw"]), numba_streams.stream
    return draw, numba.njit(lambda words, n: draw(stream(words), n))


# Numba's own code takes as long to compile as all of ours.
@pytest.mark.parametrize("kind", [*list(DRAWN)[:-1], pytest.param("others", marks=pytest.mark.slow)])
def test_numbers_are_those_of_numpy(kind):
    """To the last bit, with the rare branches of the ziggurats, and the state afterwards too."""
    ours, n = loop_of(DRAWN[kind])[1], 8_000
    rng = np.random.Generator(np.random.SFC64(3))
    words, names = streams.state_words(rng).copy(), {"np": np, "rng": rng}
    calls = [compile(call, call, "eval") for call in DRAWN[kind]]
    expected = np.array([[eval(call, names) for call in calls] for _ in range(n)])
    found = ours(words, n)
    if kind != "others":
        assert np.array_equal(found, expected) and np.array_equal(words, streams.state_words(rng))
    else:
        # Numba's own code, which takes other logarithms.
        assert np.allclose(found, expected, rtol=1e-12)


def drawn(call, n, seed):
    words = streams.Rng(seed, streams.Phase.RUN).words(streams.Purpose.MOVE)
    return loop_of([call])[1](words, n)[:, 0]


def test_moments_tails_and_pairs_of_normals():
    n = 1_500_000
    x = drawn("rng.standard_normal()", n, 1)
    for power, (mean, variance) in {1: (0, 1), 2: (1, 2), 3: (0, 15), 4: (3, 96), 6: (15, 10170)}.items():
        assert abs((x**power).mean() - mean) < 4.5 * np.sqrt(variance / n)
    for edge in (1.0, 2.0, 3.0, 3.6541528853610088, 4.0, 4.5):
        for tail in (x > edge, x < -edge):
            expected = n * stats.norm.sf(edge)
            assert abs(tail.sum() - expected) < 4.5 * np.sqrt(expected) + 1
    assert stats.kstest(x, "norm").pvalue > 1e-4
    # Neighbours and numbers a chain apart, by where they are and by their sizes.
    for lag in (1, 2, 256):
        table = np.histogram2d(stats.norm.cdf(x[:-lag:lag]), stats.norm.cdf(x[lag::lag]), 16, [[0, 1], [0, 1]])[0]
        assert stats.chisquare(table.ravel()).pvalue > 1e-4
        assert abs(np.mean(x[:-lag] * x[lag:])) < 4.5 / np.sqrt(n)


def test_normals_beyond_the_last_layer_follow_the_tail_to_six_sigma():
    """Every number beyond the last layer of the ziggurat is drawn by a rule of its own: made to happen by the word."""
    edge = numba_streams.NORMAL_R
    rare = numba.njit(lambda words, word: numba_streams._rare_normal(numba_streams.stream(words).bit_generator, word))
    words = streams.Rng(2, streams.Phase.RUN).words(streams.Purpose.MOVE)
    largest = np.uint64(0x000FFFFFFFFFFFFF)
    signs = np.arange(100_000, dtype=np.uint64) & np.uint64(1)
    # Layer 0, beyond its width; the sign of the tail is the ninth bit of the size.
    found = np.array([rare(words, (largest ^ (s << np.uint64(8))) << np.uint64(9)) for s in signs])
    assert np.array_equal(found < 0, signs == 0)
    beyond = np.abs(found)
    assert beyond.min() >= edge and beyond.max() > 5.5
    assert stats.kstest(stats.norm.sf(beyond) / stats.norm.sf(edge), "uniform").pvalue > 1e-3
    expected = len(found) * stats.norm.sf(6.0) / stats.norm.sf(edge)
    assert abs((beyond > 6.0).sum() - expected) < 4.5 * np.sqrt(expected) + 1


def test_uniforms_and_exponentials_follow_their_laws():
    n = 1_000_000
    u, e = drawn("rng.random()", n, 3), drawn("rng.standard_exponential()", n, 4)
    assert u.min() >= 0 and u.max() < 1
    assert stats.kstest(u, "uniform").pvalue > 1e-4 and stats.kstest(e, "expon").pvalue > 1e-4
    # All 53 bits: each is set half of the time.
    bits = (u * 2**53).astype(np.uint64)
    for place in range(53):
        share = ((bits >> np.uint64(place)) & np.uint64(1)).mean()
        assert abs(share - 0.5) < 4.5 * 0.5 / np.sqrt(n)
    for edge in (2.0, 5.0, 7.69711747013104972, 9.0, 11.0):
        assert abs((e > edge).sum() - n * np.exp(-edge)) < 4.5 * np.sqrt(n * np.exp(-edge)) + 1
    table = np.histogramdd(u[: n // 3 * 3].reshape(-1, 3), 12, [(0, 1)] * 3)[0]
    assert stats.chisquare(table.ravel()).pvalue > 1e-4


def test_words_that_numpy_keeps_elsewhere_are_carried_back(monkeypatch):
    """A particle filter's generator goes on behind what compiled code drew from it."""
    one, other = (np.random.Generator(np.random.SFC64(5)) for _ in range(2))
    one.integers(0, 10, dtype=np.uint32), other.integers(0, 10, dtype=np.uint32)
    ours = loop_of(["rng.integers(0, 10)"])[1]
    with streams.words_of(one) as words:
        here = ours(words, 7)
    monkeypatch.setattr(streams, "state_is_in_memory", lambda: False)
    with streams.words_of(other) as words:
        there = ours(words, 7)
    assert np.array_equal(here, there) and one.integers(0, 2**31) == other.integers(0, 2**31)


def test_a_function_that_a_simulator_calls_refuses_a_stream_from_python():
    helper = numba.njit(lambda rng: rng.random())
    numba.njit(lambda words: helper(numba_streams.stream(words)))(np.ones(5, np.uint64))
    assert 0 <= helper(np.random.default_rng(1)) < 1
