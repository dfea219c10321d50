"""Normal and Poisson numbers for simulators on a device, where those of `jax.random` are slow or have short tails.

`jax.random.normal` knows 2^23 values in single precision, none of them beyond 5.42 standard deviations, and inverts the
distribution function. `normal` is the method of Box and Muller (1958) on two words of 32 bits: up to 6.76 standard
deviations, and two pseudo-samples share the work.

`jax.random.poisson` waits in one loop for the largest count and in another for the last rejection. `poisson` inverts
the distribution function where the rate is small, without a loop, and rejects where it is large (Hörmann 1993, PTRS).
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from onedraw.engines.jax_keys import pairs, shared_pairs

SMALL = 10.0
"""Rates up to which a distribution function is inverted; rejection needs larger ones."""
LARGEST = {np.dtype(np.float32): 37, np.dtype(np.float64): 56}
"""Counts beyond which, at such rates, there is less than the smallest uniform (2^-33 and 2^-54) leaves."""
TRIES = 4
"""Proposals in one turn of the loop: on a GPU a turn takes longer than a proposal."""
SINE = (3.14159264, -5.16771009, 2.55007766, -0.59829216, 0.07765941)
"""sin(pi x) / x as a polynomial of x^2 for |x| < 1/2, with the smallest largest error (1.4e-8). The sine of a GPU is
slower, since it takes any angle."""
STIRLING = np.array(
    [0.0, *(math.lgamma(k + 1) - (k + 0.5) * math.log(k) + k - 0.5 * math.log(2 * math.pi) for k in range(1, 16))]
)
"""What Stirling's formula for log k! is short of, for k below 16."""


def normal(key: Any, shape: tuple[int, ...] = (), dtype: Any = float) -> Any:
    """Standard normal numbers, as `jax.random.normal`.

    >>> normal(jax.random.key(1), (3,)).shape
    (3,)
    """
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    if dtype != np.float32:
        return jax.random.normal(key, shape, dtype)
    x, y, even = shared_pairs(key, shape)
    radius = jnp.sqrt(np.float32(-2.0) * jnp.log(_uniform(x, dtype)))
    # The cosine of one of the two is the sine of the other, a quarter of a turn (2^30 of 2^32) apart.
    turn = lax.bitcast_convert_type(jnp.where(even, y, y - jnp.uint32(2**30)), jnp.int32)
    side = dtype.type(0.5) - jnp.abs(turn.astype(dtype)) * dtype.type(2.0**-31)
    square = side * side
    sine = jnp.full_like(side, SINE[-1])
    for coefficient in SINE[-2::-1]:
        sine = sine * square + dtype.type(coefficient)
    return radius * (side * sine)


def _uniform(bits: Any, dtype: Any) -> Any:
    """Numbers between 0 and 1, never 0, that are the finer the smaller they are."""
    width = np.dtype(bits.dtype).itemsize * 8
    return (bits.astype(dtype) + dtype.type(0.5)) * dtype.type(2.0**-width)


def poisson(key: Any, rate: Any, shape: tuple[int, ...] | None = None) -> Any:
    """Poisson counts as `jax.random.poisson`, -1 if a rate is negative or no finite number.

    Counts beyond 2^24 are rounded in single precision.

    >>> poisson(jax.random.key(1), jnp.array([0.0, 3.0, 1e4])).shape
    (3,)
    """
    rate = jnp.asarray(rate, jnp.result_type(float, rate))
    rate = jnp.broadcast_to(rate, jnp.shape(rate) if shape is None else shape)
    possible = (rate >= 0) & jnp.isfinite(rate)
    large = possible & (rate >= SMALL)
    found = _inverted(key, jnp.where(possible & ~large, rate, 0.0))
    found = _rejected(key, jnp.where(large, rate, SMALL), large, found)
    return jnp.where(possible, found, -1.0).astype(jnp.int32)


def _inverted(key: Any, rate: Any) -> Any:
    """The quantile of a uniform number u, from below if it is less than a half and from above otherwise.

    Summed from one side alone, the probabilities of the other tail would be lost in rounding.
    """
    dtype = np.dtype(rate.dtype)
    bits = jax.random.bits(key, rate.shape, jnp.uint32 if dtype == np.float32 else jnp.uint64)
    width = dtype.itemsize * 8
    upper = bits >> (width - 1) == 1
    # The distance of u from its end of the unit interval.
    u = _uniform(jnp.where(upper, ~bits, bits), dtype)
    masses = [jnp.exp(-rate)]
    for k in range(1, LARGEST[dtype] + 1):
        masses.append(masses[-1] * (rate * dtype.type(1 / k)))
    below = above = jnp.zeros_like(rate)
    from_below = from_above = jnp.zeros_like(rate)
    for mass in masses[:-1]:
        below = below + mass
        from_below = from_below + (below <= u)
    for mass in reversed(masses[1:]):
        above = above + mass
        from_above = from_above + (above > u)
    return jnp.where(upper, from_above, from_below)


def _rejected(key: Any, rate: Any, wanted: Any, found: Any) -> Any:
    """The counts found, with those that are wanted drawn by transformed rejection."""
    dtype = np.dtype(rate.dtype)
    b = 0.931 + 2.53 * jnp.sqrt(rate)
    a = -0.059 + 0.02483 * b
    log_scale = jnp.log(1.1239 + 1.1328 / (b - 3.4))

    def turn(carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        number, waiting, found = carry
        for k in range(TRIES):
            u, v = _two_uniforms(key, rate.shape, number * TRIES + k, dtype)
            short = 0.5 - jnp.abs(u - 0.5)
            count = jnp.floor((2 * a / short + b) * (u - 0.5) + rate + 0.43)
            accepted = jnp.log(v) + log_scale - jnp.log(a / (short * short) + b) <= log_mass(count, rate)
            found = jnp.where(waiting & accepted, count, found)
            waiting = waiting & ~accepted
        return number + jnp.uint32(1), waiting, found

    return lax.while_loop(lambda carry: carry[1].any(), turn, (jnp.uint32(0), wanted, found))[2]


def _two_uniforms(key: Any, shape: tuple[int, ...], turn: Any, dtype: Any) -> tuple[Any, Any]:
    if dtype == np.float32:
        x, y = pairs(key, shape, turn)
    else:
        x, y = jax.random.bits(jax.random.fold_in(key, turn), (2, *shape), jnp.uint64)
    return _uniform(x, dtype), _uniform(y, dtype)


def log_mass(count: Any, rate: Any) -> Any:
    """The log probability of a count at a rate, -inf below zero.

    From the difference of the two (Loader 2000): log count! and count log rate would cancel in single precision.
    """
    k = jnp.maximum(count, 1.0)
    apart = (k - rate) / rate
    distance = rate * ((1 + apart) * jnp.log1p(apart) - apart)
    inverse = 1 / k
    series = inverse * (1 / 12 - inverse * inverse * (1 / 360 - inverse * inverse / 1260))
    short = jnp.where(k < STIRLING.size, jnp.asarray(STIRLING, k.dtype)[jnp.minimum(k, 15).astype(jnp.int32)], series)
    log_mass = -distance - short - 0.5 * jnp.log(2 * math.pi * k)
    return jnp.where(count < 0, -jnp.inf, jnp.where(count == 0, -rate, log_mass))
