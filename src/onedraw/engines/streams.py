"""Keyed random streams: every number a run uses is a function of the seed and of where it is used.

A stream is named by (seed, phase, purpose) and up to three counters, such as (chain, step, pseudo-sample). The names
go into the key and the upper three words of the counter of a Philox generator (Salmon et al. 2011), which leaves
2**64 blocks of numbers in each stream, so that streams never overlap and none needs to be stored or handed on.

Philox pays for that with slower draws. Bulk work (a whole batch from one stream) therefore uses an SFC64 generator
whose 256-bit state is filled with four words of the named Philox stream: the same naming, about twice the speed.
"""

import ctypes
import struct
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


PHILOX = struct.Struct("=i36xiI2Q4Q")
"""The state of a Philox generator in memory, behind two pointers: how much of its buffer is used, the buffer, what is
left of a word that was halved, key and counter."""
PACK = PHILOX.pack_into
NOTHING_LEFT = bytes(8)
SPENT = 4
"""How much of a buffer is used when nothing is left in it."""


def _memory(generator: np.random.Generator, first: int, size: int) -> Any:
    """Bytes of a generator's state, for as long as it exists."""
    place = generator.bit_generator.ctypes.state_address + first
    return memoryview((ctypes.c_char * size).from_address(place)).cast("B")


def state_words(generator: np.random.Generator) -> Any:
    """The state of an SFC64 generator in memory, (5,) uint64: four words, and what is left of one that was halved."""
    return np.frombuffer(_memory(generator, 0, 40), np.uint64)


@cache
def state_is_in_memory() -> bool:
    """Whether NumPy keeps the states of SFC64 and Philox as `state_words` and `PHILOX` expect them."""
    generator = np.random.Generator(np.random.SFC64(BLANK))
    state_words(generator)[:] = 1, 2, 3, 4, 1 | 7 << 32
    state: Any = generator.bit_generator.state
    if state["state"]["state"].tolist() != [1, 2, 3, 4] or (state["has_uint32"], state["uinteger"]) != (1, 7):
        return False
    philox = np.random.Philox(BLANK)
    at = philox.ctypes.state_address
    # The pointers must be to what lies behind them, or something else would be written to.
    if struct.unpack("=2Q", _memory(np.random.Generator(philox), 0, 16)) != (at + 80, at + 64):
        return False
    memory = _memory(np.random.Generator(philox), 16, PHILOX.size)
    PACK(memory, 0, SPENT, 0, 0, 1, 2, 3, 4, 5, 6)
    other: Any = np.random.Philox(key=np.array([1, 2], np.uint64), counter=np.array([3, 4, 5, 6], np.uint64))
    same = philox.random_raw() == (words := other.random_raw(4)).tolist()[0] and memory[8:40] == words.tobytes()
    PACK(memory, 0, 3, 1, 7, 1, 2, 3, 4, 5, 6)
    state = philox.state
    return bool(same and (state["buffer_pos"], state["has_uint32"], state["uinteger"]) == (3, 1, 7))


@contextmanager
def words_of(generator: np.random.Generator) -> Iterator[Any]:
    """The state of an SFC64 generator as `state_words`, while compiled code draws from it."""
    if state_is_in_memory():
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
        # Written to directly, a state takes a third of the time that NumPy takes to set it.
        self._memory: Any = _memory(self._single, 16, PHILOX.size) if state_is_in_memory() else None
        self._buffer = None if self._memory is None else self._memory[8:40]

    def _position(self, purpose: int, a: int, b: int, c: int) -> None:
        if self._memory is not None:
            PACK(self._memory, 0, SPENT, 0, 0, self.seed, self.phase << 8 | purpose, 0, c, b, a)
            return
        state: Any = {
            "bit_generator": "Philox",
            "state": {"counter": (0, c, b, a), "key": (self.seed, self.phase << 8 | purpose)},
            "buffer": (0, 0, 0, 0),
            "buffer_pos": SPENT,
            "has_uint32": 0,
            "uinteger": 0,
        }
        self._philox.state = state

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
            parts = None if self._memory is None else (_memory(generator, 0, 32), _memory(generator, 32, 8))
            known = self._bulk[purpose] = generator, parts
        generator, memory = known
        if memory is not None:
            # The first of four words fills the buffer with all of them.
            self._philox.random_raw()
            words, left = memory
            words[:], left[:] = self._buffer, NOTHING_LEFT
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
        if self._memory is None:
            self._position(SIMULATE, self.first + row, self.step, pseudo_sample)
        else:
            # As `_position`, which would be called as often as the simulator.
            PACK(
                self._memory, 0, SPENT, 0, 0, self.seed, self.phase << 8 | SIMULATE, 0, pseudo_sample, self.step,
                self.first + row,
            )  # fmt: skip
        return self._single

    def used(self) -> bool:
        """Whether anything was drawn since `single` was called."""
        state = self._philox.state
        return bool(state["buffer_pos"] != 4 or state["state"]["counter"][0] != 0 or state["has_uint32"])


_of_thread = threading.local()


class Borrowed:
    """An Rng for as long as it takes to simulate one block: making its generators would take longer than a small one.

    Work inside that asks for another one, such as a simulator that runs a sampler, gets another one.
    """

    def __init__(self, seed: int, phase: int, first: int) -> None:
        self._name = seed, phase, first

    def __enter__(self) -> Rng:
        rng: Rng | None = getattr(_of_thread, "rng", None)
        _of_thread.rng = None
        if rng is None:
            rng = Rng(*self._name)
        rng.seed, rng.phase, rng.first = self._name
        rng.step = 0
        self._rng = rng
        return rng

    def __exit__(self, *error: object) -> None:
        _of_thread.rng = self._rng
