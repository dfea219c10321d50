"""Random streams of the JAX engine: the names of `engines.streams`, drawn on a device.

All 64 bits of a seed are used; `jax.random.key` would take 32 of them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from onedraw.engines import jax_draws
from onedraw.engines.arrays import Array
from onedraw.engines.jax_keys import key_of, threefry
from onedraw.engines.streams import Rng


class StreamName(NamedTuple):
    """Where a block's streams begin: what `Rng` holds, as numbers for a device."""

    words: Array
    """(5,) uint32: seed (2), phase, index of the first chain (2)."""
    step: Any

    @staticmethod
    def of(rng: Rng) -> "StreamName":
        for name, value in (("step", rng.step), ("phase", rng.phase)):
            if not 0 <= value < 2**32:
                raise ValueError(f"{name} = {value} is beyond the 2**32 that a key of the JAX engine can name")
        words = (rng.seed & 0xFFFFFFFF, rng.seed >> 32, rng.phase, rng.first & 0xFFFFFFFF, rng.first >> 32)
        return StreamName(np.array(words, np.uint32), np.uint32(rng.step))


class DeviceRng:
    """The random streams of one block at one step: `engines.streams.Rng` for arrays on a device."""

    def __init__(self, words: tuple[Any, Any], dtype: Any) -> None:
        self.words, self.dtype = words, dtype

    @staticmethod
    def of(name: StreamName, dtype: Any) -> "DeviceRng":
        """The streams that a name stands for."""
        return DeviceRng(DeviceRng.at(DeviceRng.block_of(name.words), name.step), dtype)

    @staticmethod
    def at(block: tuple[Any, Any], step: Any) -> tuple[Any, Any]:
        """The key of a block's step, or the keys of several."""
        return threefry(block, jnp.asarray(step, jnp.uint32), jnp.uint32(0))

    @staticmethod
    def block_of(words: Any) -> tuple[Any, Any]:
        """The key of a block, which all its steps share."""
        key = threefry((words[0], words[1]), words[2], words[4])
        return threefry(key, words[3], jnp.uint32(1))

    def named(self, purpose: int, chunk: Any = 0) -> tuple[Any, Any]:
        """The key for one purpose at this step."""
        key = self.words[0], self.words[1] + jnp.uint32(int(purpose))
        if isinstance(chunk, int) and chunk == 0:
            return key
        return threefry(key, jnp.asarray(chunk, jnp.uint32), jnp.uint32(0x80000000))

    def bulk(self, purpose: int, chunk: Any = 0) -> "Stream":
        """The stream for a whole batch of rows."""
        return Stream(self.named(purpose, chunk), self.dtype)


class Stream:
    """The methods of a NumPy Generator that priors, proposals and filters use, drawn on a device.

    Each call has a key of its own, counted from the first.
    """

    def __init__(self, words: tuple[Any, Any], dtype: Any, calls: int = 0) -> None:
        self.words, self.dtype, self.calls = words, dtype, calls

    def _next(self) -> Any:
        self.calls += 1
        return key_of(self.words, self.calls - 1)

    def standard_normal(self, size: Any = ()) -> Any:
        return jax.random.normal(self._next(), _shape(size), self.dtype)

    def random(self, size: Any = ()) -> Any:
        return jax.random.uniform(self._next(), _shape(size), self.dtype)

    def standard_exponential(self, size: Any = ()) -> Any:
        # All 32 (or 64) bits count: rare acceptances are decided by small u, which 23 of them would round away.
        width = 32 if self.dtype == np.float32 else 64
        bits = jax.random.bits(self._next(), _shape(size), getattr(jnp, f"uint{width}"))
        return -jnp.log((bits.astype(self.dtype) + self.dtype.type(0.5)) * self.dtype.type(2.0**-width))

    def normal(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Any:
        shape = jnp.broadcast_shapes(jnp.shape(loc), jnp.shape(scale)) if size is None else _shape(size)
        return loc + scale * self.standard_normal(shape)

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        shape = jnp.broadcast_shapes(jnp.shape(low), jnp.shape(high)) if size is None else _shape(size)
        return low + (high - low) * self.random(shape)

    def exponential(self, scale: Any = 1.0, size: Any = None) -> Any:
        return scale * self.standard_exponential(jnp.shape(scale) if size is None else size)

    def integers(self, low: int, high: int, size: Any = ()) -> Any:
        return jax.random.randint(self._next(), _shape(size), low, high)

    def standard_gamma(self, shape: Any, size: Any = ()) -> Any:
        return jax.random.gamma(self._next(), shape, _shape(size), self.dtype)

    def beta(self, a: Any, b: Any, size: Any = ()) -> Any:
        return jax.random.beta(self._next(), a, b, _shape(size), self.dtype)

    def standard_t(self, df: Any, size: Any = ()) -> Any:
        return jax.random.t(self._next(), df, _shape(size), self.dtype)

    def poisson(self, lam: Any = 1.0, size: Any = None) -> Any:
        shape = jnp.shape(lam) if size is None else _shape(size)
        return jax_draws.poisson(self._next(), jnp.asarray(lam, self.dtype), shape)

    def until(self, draw: Callable[["Stream"], Any], allowed: Callable[[Any], Any]) -> Any:
        """Draws of which each row is drawn again until it is allowed."""

        def again(carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
            theta, ok, turn = carry
            fresh = draw(Stream(threefry(self.words, turn, jnp.uint32(0x40000000)), self.dtype))
            theta = jnp.where(ok[:, None], theta, fresh)
            return theta, ok | allowed(fresh), turn + jnp.uint32(1)

        first = draw(self)
        start = first, allowed(first), jnp.uint32(0)
        return lax.while_loop(lambda carry: ~carry[1].all(), again, start)[0]


def _shape(size: Any) -> tuple[int, ...]:
    return tuple(size) if isinstance(size, tuple | list) else (int(size),)
