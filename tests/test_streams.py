import numpy as np
import pytest
from scipy import stats

from onedraw.engines import streams
from onedraw.engines.streams import Phase, Purpose, Rng


def test_a_stream_equals_a_fresh_philox_with_that_key_and_counter():
    rng = Rng(12, Phase.RUN, first=30, step=7)
    ours = rng.single(5, 2).standard_normal(1000)
    key = np.array([12, (Phase.RUN << 8) | Purpose.SIMULATE], np.uint64)
    fresh = np.random.Generator(np.random.Philox(key=key, counter=np.array([0, 2, 7, 35], np.uint64)))
    assert np.array_equal(ours, fresh.standard_normal(1000))


def test_positioning_forgets_what_was_drawn_before():
    """The buffers of 64-bit and 32-bit numbers are emptied."""
    rng = Rng(1, Phase.RUN)
    first = rng.single(0).integers(0, 100, 3, dtype=np.int32)
    rng.single(1).random(3)
    rng.single(9).integers(0, 100, 1, dtype=np.int32)
    assert np.array_equal(rng.single(0).integers(0, 100, 3, dtype=np.int32), first)


def test_a_row_has_its_stream_in_any_block():
    whole, late = Rng(3, Phase.RUN, first=0, step=4), Rng(3, Phase.RUN, first=8, step=4)
    assert whole.single(10).random() == late.single(2).random()


def test_streams_differ_in_every_part_of_their_name():
    names = [
        (s, p, f, t, q, c)
        for s in (1, 2)
        for p in (1, 2)
        for f in (0, 1)
        for t in (0, 1)
        for q in (1, 3)
        for c in (0, 1)
    ]
    numbers = [Rng(s, p, f, t).bulk(q, c).random() for s, p, f, t, q, c in names]
    assert len(set(numbers)) == len(names)


@pytest.mark.parametrize("purpose", [Purpose.MOVE, Purpose.SIMULATE])
def test_neighbouring_bulk_streams_are_uniform_and_uncorrelated(purpose):
    draws = np.array(
        [Rng(5, Phase.RUN, first, step).bulk(purpose).random(40) for first in range(30) for step in range(30)]
    )
    assert stats.kstest(draws.ravel(), "uniform").pvalue > 1e-4
    neighbours = np.corrcoef(draws[:-1].ravel(), draws[1:].ravel())[0, 1]
    assert abs(neighbours) < 4 / np.sqrt(draws[1:].size)
    assert abs(stats.norm.ppf(draws[:, 0]).mean()) < 4 / np.sqrt(len(draws))


def test_use_is_noticed():
    rng = Rng(1, Phase.RUN)
    generator = rng.single(0)
    assert not rng.used()
    generator.random()
    assert rng.used()
    rng.single(0).integers(0, 5, dtype=np.int32)
    assert rng.used()


def test_streams_are_the_same_if_numpy_sets_their_states(monkeypatch):
    """States are written to memory where NumPy keeps them as we expect it."""

    def drawn():
        rng = Rng(2**63 - 1, Phase.RUN, 5, 3)
        found = [rng.bulk(Purpose.MOVE, 2).standard_normal(9)]
        for row in (4, 1, 4):
            stream = rng.single(row, 7)
            found.append([stream.integers(0, 2**31, dtype=np.int32), *stream.random(6)])
        found.append(rng.bulk(Purpose.MOVE, 2).integers(0, 99, 3, dtype=np.int32))
        return found, rng.words(Purpose.SIMULATE)

    assert streams.state_is_in_memory(), "NumPy keeps states elsewhere: streams are named at half the speed"
    ours, words = drawn()
    monkeypatch.setattr(streams, "state_is_in_memory", lambda: False)
    theirs, others = drawn()
    assert all(np.array_equal(*both) for both in zip(ours, theirs, strict=True)) and np.array_equal(words, others)
