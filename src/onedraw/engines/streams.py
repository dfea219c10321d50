"""Keyed random streams: every number a run uses is a function of the seed and of where it is used.

A stream is named by (seed, phase, purpose) and up to three counters, such as (chain, step, pseudo-sample). The names
go into the key and the upper three words of the counter of a Philox generator (Salmon et al. 2011), which leaves
2**64 blocks of numbers in each stream, so that streams never overlap and none needs to be stored or handed on.

Philox pays for that with slower draws. Bulk work (a whole batch from one stream) therefore uses an SFC64 generator
whose 256-bit state is filled with four words of the named Philox stream: the same naming, about twice the speed.
"""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from functools import cache
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence


class Blank(ISeedSequence):
    """Zeros for generators whose state is set before use: hashing a seed would cost more than a small block."""

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        return np.zeros(n_words, dtype)


BLANK: Any = Blank()


def state_words(generator: np.random.Generator) -> Any:
    """The state of an SFC64 generator in memory, (5,) uint64: four words, and what is left of one that was halved."""
    words: Any = (ctypes.c_uint64 * 5).from_address(generator.bit_generator.ctypes.state_address)
    return np.frombuffer(words, np.uint64)


@cache
def state_is_in_words() -> bool:
    """Whether NumPy keeps the state of SFC64 as `state_words` expects it."""
    generator = np.random.Generator(np.random.SFC64(BLANK))
    state_words(generator)[:] = 1, 2, 3, 4, 1 | 7 << 32
    state: Any = generator.bit_generator.state
    return bool(state["state"]["state"].tolist() == [1, 2, 3, 4] and (state["has_uint32"], state["uinteger"]) == (1, 7))


@contextmanager
def words_of(generator: np.random.Generator) -> Iterator[Any]:
    """The state of an SFC64 generator as `state_words`, while compiled code draws from it."""
    if state_is_in_words():
        yield state_words(generator)
        return
    state: Any = generator.bit_generator.state
    words = np.array([*state["state"]["state"], state["has_uint32"] | state["uinteger"] << 32], np.uint64)
    yield words
    state["state"]["state"], (last,) = words[:4], words[4:].tolist()
    generator.bit_generator.state = {**state, "has_uint32": last & 1, "uinteger": last >> 32}


def derived_seed(seed: int, *part: int) -> int:
    """A seed for one part of a larger computation.

    >>> derived_seed(1, 2) == derived_seed(1, 2) != derived_seed(1, 3)
    True
    """
    return int(np.random.SeedSequence([seed, *part]).generate_state(1, np.uint64)[0] >> np.uint64(1))


class Phase(IntEnum):
    """The part of a run a stream belongs to."""

    PILOT = 1
    START = 2
    FILL = 3
    RUN = 4
    PREDICT = 5
    RESAMPLE = 6
    SEARCH = 7
    SEQUENCE = 8
    IMPORTANCE = 9


class Purpose(IntEnum):
    """What a stream's numbers decide."""

    PRIOR = 1
    MOVE = 2
    SIMULATE = 3
    ACCEPT = 4
    HANDICAP = 5
    CONTINUE = 6


SIMULATE = int(Purpose.SIMULATE)


class Rng:
    """The random streams of one block of chains (or of proposals) at one step.

    `first` is the index of the block's first chain in the whole run: row r of the block has index first + r, and a
    result does not depend on how the run was cut for the machine at hand.
    """

    def __init__(self, seed: int, phase: int, first: int = 0, step: int = 0) -> None:
        self.seed, self.phase, self.first, self.step = seed, phase, first, step
        self._philox = np.random.Philox(BLANK)
        self._single = np.random.Generator(self._philox)
        self._bulk: dict[int, tuple[np.random.Generator, Any]] = {}
        # Setting a whole state empties the buffer too; plain tuples are taken over faster than arrays.
        self._name: dict[str, tuple[int, ...]] = {"counter": (0, 0, 0, 0), "key": (0, 0)}
        self._state: Any = {
            "bit_generator": "Philox",
            "state": self._name,
            "buffer": (0, 0, 0, 0),
            "buffer_pos": 4,
            "has_uint32": 0,
            "uinteger": 0,
        }

    def _position(self, purpose: int, a: int, b: int, c: int) -> None:
        self._name["counter"] = (0, c, b, a)
        self._name["key"] = (self.seed, (self.phase << 8) | purpose)
        self._philox.state = self._state

    def words(self, purpose: int, chunk: int = 0) -> Any:
        """The state that `bulk` gives its generator, (5,) uint64 as in `state_words`, for compiled code."""
        self._position(purpose, self.first, self.step, chunk)
        words = np.zeros(5, np.uint64)
        words[:4] = self._philox.random_raw(4)
        return words

    def bulk(self, purpose: int, chunk: int = 0) -> np.random.Generator:
        """The stream for a whole batch of rows: (first, step, chunk).

        The generator is used again for the next stream of the same purpose: draw from it before asking again.
        """
        self._position(purpose, self.first, self.step, chunk)
        known = self._bulk.get(purpose)
        if known is None:
            generator = np.random.Generator(np.random.SFC64(BLANK))
            known = self._bulk[purpose] = generator, state_words(generator) if state_is_in_words() else None
        generator, words = known
        if words is not None:
            # Five times as fast as setting the state.
            words[:4], words[4] = self._philox.random_raw(4), 0
            return generator
        generator.bit_generator.state = {
            "bit_generator": "SFC64",
            "state": {"state": self._philox.random_raw(4)},
            "has_uint32": 0,
            "uinteger": 0,
        }
        return generator

    def single(self, row: int, pseudo_sample: int = 0) -> np.random.Generator:
        """The stream of one simulation: (first + row, step, pseudo_sample). The generator is used again."""
        # As `_position`, which would be called as often as the simulator.
        self._name["counter"] = (0, pseudo_sample, self.step, self.first + row)
        self._name["key"] = (self.seed, self.phase << 8 | SIMULATE)
        self._philox.state = self._state
        return self._single

    def used(self) -> bool:
        """Whether anything was drawn since `single` was called."""
        state = self._philox.state
        return bool(state["buffer_pos"] != 4 or state["state"]["counter"][0] != 0 or state["has_uint32"])


_of_thread = threading.local()


@contextmanager
def borrowed(seed: int, phase: int, first: int) -> Iterator[Rng]:
    """An Rng for as long as it takes to simulate one block: making its generators would take longer than a small one.

    Work inside that asks for another one, such as a simulator that runs a sampler, gets another one.
    """
    rng: Rng | None = getattr(_of_thread, "rng", None)
    _of_thread.rng = None
    if rng is None:
        rng = Rng(seed, phase, first)
    rng.seed, rng.phase, rng.first, rng.step = seed, phase, first, 0
    try:
        yield rng
    finally:
        _of_thread.rng = rng
