"""Keys of the JAX engine, as `jax.random` takes them, and the hash behind them.

Naming a key costs nothing: it is the key of the block and step with the number of the pseudo-sample as a counter, and
only drawing from it hashes (Threefry 2x32 with 20 rounds, Salmon et al. 2011, the hash of JAX's own keys, which would
be hashed twice). A hash gives two words. If M is even, two neighbouring pseudo-samples share one: the even one draws
the first words, the odd one the second. Where a program has both at hand it hashes half as often.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import random as jax_keys

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
"""The constant of Threefry's key schedule for 32-bit words."""
SPLIT, FOLD, WIDE, NORMAL, ALONE = 0x10000000, 0x20000000, 0x30000000, 0x40000000, 0x50000000
"""What a key is used for besides words of 32 bits, added to its second word; purposes of a step are small numbers."""
ODD = 0x08000000
"""Added to it by the odd one of two neighbours where they do not share."""


def threefry(key: tuple[Any, Any], first: Any, second: Any) -> tuple[Any, Any]:
    """Two words of 32 bits from a key and a counter of two words each."""
    schedule = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(PARITY))
    x, y = first + schedule[0], second + schedule[1]
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            x = x + y
            y = ((y << jnp.uint32(rotation)) | (y >> jnp.uint32(32 - rotation))) ^ x
        x = x + schedule[(group + 1) % 3]
        y = y + schedule[(group + 2) % 3] + jnp.uint32(group + 1)
    return x, y


def _alone(key: Any, use: int, place: Any) -> tuple[Any, Any]:
    """Both words of a hash that belongs to one key."""
    return threefry((key[0], key[1] + jnp.uint32(use) + key[3] * jnp.uint32(ODD)), key[2], place)


def _places(shape: tuple[int, ...]) -> Any:
    return lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)


def _seed(seed: Any) -> Any:
    low = jnp.asarray(seed).astype(jnp.uint32)
    nothing = jnp.zeros_like(low)
    return jnp.stack([nothing, low, nothing, nothing])


def _split(key: Any, shape: tuple[int, ...]) -> Any:
    x, y = _alone(key, SPLIT, _places(shape))
    return jnp.stack([x, y, jnp.zeros_like(x), jnp.zeros_like(x)], axis=-1)


def _fold_in(key: Any, data: Any) -> Any:
    x, y = _alone(key, FOLD, jnp.asarray(data).astype(jnp.uint32))
    return jnp.stack([x, y, jnp.zeros_like(x), jnp.zeros_like(x)])


def _random_bits(key: Any, width: int, shape: tuple[int, ...]) -> Any:
    if width == 64:
        x, y = _alone(key, WIDE, _places(shape))
        return (x.astype(jnp.uint64) << jnp.uint64(32)) | y.astype(jnp.uint64)
    x, y = threefry((key[0], key[1]), key[2], _places(shape))
    return jnp.where(key[3] == 0, x, y).astype(getattr(jnp, f"uint{width}"))


COUNTED = jax_keys.define_prng_impl(
    key_shape=(4,), seed=_seed, split=_split, random_bits=_random_bits, fold_in=_fold_in, name="onedraw", tag="od"
)
"""Keys (k0, k1, c, odd) of `jax.random`: a Threefry key, the first word of its counter and which word of a hash is
theirs; the second word of the counter is the place of a number within a draw."""


def key_at(words: tuple[Any, Any], pair: Any, odd: Any) -> Any:
    """The key of the even or the odd one of two neighbours."""
    parts = (words[0], words[1], jnp.asarray(pair, jnp.uint32), jnp.asarray(odd, jnp.uint32))
    return jax.random.wrap_key_data(jnp.stack(parts), impl=COUNTED)


def key_of(words: tuple[Any, Any], counter: Any, paired: bool = False) -> Any:
    """A key that jax.random takes, alone or one of two neighbours."""
    return key_at(words, counter >> 1, counter & 1) if paired else key_at(words, counter, 0)


def threefry_key(words: tuple[Any, Any], counter: Any) -> Any:
    """A key of JAX's own kind, for the few functions that take no other (jax.random.poisson)."""
    pair = threefry(words, jnp.asarray(counter, jnp.uint32), jnp.uint32(0xFFFFFFFF))
    return jax.random.wrap_key_data(jnp.stack(pair), impl="threefry2x32")


def counted(key: Any) -> bool:
    """Whether a key is one of ours."""
    return bool(jax.random.key_impl(key) == COUNTED)


def pairs(key: Any, shape: tuple[int, ...], turn: Any = 0) -> tuple[Any, Any]:
    """Two words of 32 bits at each place of a shape, others at each turn."""
    if not counted(key):
        x, y = jax.random.bits(jax.random.fold_in(key, turn), (2, *shape), jnp.uint32)
        return x, y
    first = jnp.asarray(turn, jnp.uint32) * jnp.uint32(math.prod(shape))
    return _alone(jax.random.key_data(key), ALONE, _places(shape) + first)


def shared_pairs(key: Any, shape: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """Two words at each place that two neighbours share, and whether this key is the even one."""
    if not counted(key):
        return *pairs(key, shape), True
    data = jax.random.key_data(key)
    return *threefry((data[0], data[1] + jnp.uint32(NORMAL)), data[2], _places(shape)), data[3] == 0
