"""Random streams in compiled code: the generator that compiled simulators are given.

To a simulator it is NumPy's Generator over SFC64, with the methods that Numba knows of one, and it draws the same
numbers. Numba would call NumPy's SFC64 through a pointer for each word. Here the generator is part of the loop that
uses it, so that its state stays in registers, and the usual draws (normal, uniform, exponential) are made in place: the
state is an array of five words (`streams.state_words`), and `stream` makes a generator of it.

The ziggurats are those of NumPy, with its tables. Anything that is not a double, and all other distributions, are
Numba's own code over this generator. This module imports Numba, and is imported when something is compiled.
"""

# mypy: disable-error-code="misc, untyped-decorator, no-untyped-def"

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import (
    NativeValue,
    intrinsic,
    make_attribute_wrapper,
    models,
    overload,
    overload_method,
    register_model,
    unbox,
)
from numba.np.random import _constants as tables
from numba.np.random import generator_core
from numba.np.random import generator_methods as numbas

from onedraw.engines.arrays import Array

WORD, HALF = ir.IntType(64), ir.IntType(32)
WORDS = 5
TO_UNIT = 1.0 / 9007199254740992.0
MASK = np.uint64(0x000FFFFFFFFFFFFF)
U0, U1, U3, U8, U9, U11, U255 = (np.uint64(n) for n in (0, 1, 3, 8, 9, 11, 255))
NORMAL_R, NORMAL_INV_R, EXPONENTIAL_R = tables.ziggurat_nor_r, tables.ziggurat_nor_inv_r, tables.ziggurat_exp_r
WI, KI, FI = tables.wi_double, tables.ki_double, tables.fi_double
WE, KE, FE = tables.we_double, tables.ke_double, tables.fe_double
IN_PLACE = {"forceinline": True, "error_model": "numpy"}


class StreamBits(types.Type):
    """Where the words of a stream are."""

    def __init__(self) -> None:
        super().__init__("StreamBits")


class CompiledStream(types.NumPyRandomGeneratorType):
    """The generator: NumPy's to Numba, except that its bits are ours."""

    def __init__(self) -> None:
        types.Type.__init__(self, "CompiledStream")


BITS, STREAM = StreamBits(), CompiledStream()


@register_model(StreamBits)
class _BitsModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, WORD.as_pointer())


@register_model(CompiledStream)
class _StreamModel(models.StructModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, [("bit_generator", BITS)])


make_attribute_wrapper(CompiledStream, "bit_generator", "bit_generator")


@unbox(CompiledStream)
def _never_from_python(kind: Any, given: Any, c: Any) -> Any:
    """Functions that a simulator calls may be called from Python too, but not with this generator."""
    c.pyapi.err_set_string("PyExc_TypeError", "a stream exists in compiled code only")
    nothing = cgutils.create_struct_proxy(kind)(c.context, c.builder)
    return NativeValue(nothing._getvalue(), is_error=cgutils.true_bit)


@intrinsic
def stream(context: Any, words: Any) -> Any:
    """The generator whose state is in these words, (5,) uint64; they must be there for as long as it draws."""

    def code(target: Any, builder: Any, signature: Any, given: Any) -> Any:
        made = cgutils.create_struct_proxy(STREAM)(target, builder)
        made.bit_generator = target.make_array(signature.args[0])(target, builder, given[0]).data
        return made._getvalue()

    return STREAM(words), code


@intrinsic
def own_stream(context: Any, words: Any) -> Any:
    """The generator that begins with these words, with a state of its own: in registers if all draws are in place."""

    def code(target: Any, builder: Any, signature: Any, given: Any) -> Any:
        made = cgutils.create_struct_proxy(STREAM)(target, builder)
        made.bit_generator = cgutils.alloca_once(builder, WORD, size=WORDS)
        _copy(builder, target.make_array(signature.args[0])(target, builder, given[0]).data, made.bit_generator)
        return made._getvalue()

    return STREAM(words), code


@intrinsic
def left_by(context: Any, rng: Any, words: Any) -> Any:
    """Put the state of a generator into these words."""

    def code(target: Any, builder: Any, signature: Any, given: Any) -> Any:
        bits = cgutils.create_struct_proxy(STREAM)(target, builder, value=given[0]).bit_generator
        _copy(builder, bits, target.make_array(signature.args[1])(target, builder, given[1]).data)
        return target.get_dummy_value()

    return types.void(rng, words), code


def _copy(builder: Any, source: Any, place: Any) -> None:
    for k in range(WORDS):
        at = [ir.Constant(HALF, k)]
        builder.store(builder.load(builder.gep(source, at)), builder.gep(place, at))


@intrinsic
def _word(context: Any, bits: Any) -> Any:
    """The next word of SFC64."""

    def code(target: Any, builder: Any, signature: Any, given: Any) -> Any:
        places = [builder.gep(given[0], [ir.Constant(HALF, k)]) for k in range(4)]
        a, b, c, count = (builder.load(place) for place in places)
        shifted = {n: ir.Constant(WORD, n) for n in (1, 3, 11, 24, 40)}
        found = builder.add(builder.add(a, b), count)
        turned = builder.or_(builder.shl(c, shifted[24]), builder.lshr(c, shifted[40]))
        after = (
            builder.xor(b, builder.lshr(b, shifted[11])),
            builder.add(c, builder.shl(c, shifted[3])),
            builder.add(turned, found),
            builder.add(count, shifted[1]),
        )
        for value, place in zip(after, places, strict=True):
            builder.store(value, place)
        return found

    return types.uint64(bits), code


@intrinsic
def _half_word(context: Any, bits: Any) -> Any:
    """The fifth word, which is half a word left over from the last draw of 32 bits, above whether there is one."""

    def code(target: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.load(builder.gep(given[0], [ir.Constant(HALF, 4)]))

    return types.uint64(bits), code


@intrinsic
def _keep_half(context: Any, bits: Any, value: Any) -> Any:
    def code(target: Any, builder: Any, signature: Any, given: Any) -> Any:
        builder.store(given[1], builder.gep(given[0], [ir.Constant(HALF, 4)]))
        return target.get_dummy_value()

    return types.void(bits, types.uint64), code


@intrinsic
def _signed(context: Any, size: Any, word: Any) -> Any:
    """A positive number, negative if the last bit of a word says so."""

    def code(target: Any, builder: Any, signature: Any, given: Any) -> Any:
        sign = builder.shl(given[1], ir.Constant(WORD, 63))
        return builder.bitcast(builder.or_(builder.bitcast(given[0], WORD), sign), ir.DoubleType())

    return types.float64(types.float64, types.uint64), code


@overload(generator_core.next_uint64, jit_options=IN_PLACE)
def _next_uint64(bitgen):
    return (lambda bitgen: _word(bitgen)) if isinstance(bitgen, StreamBits) else None


@overload(generator_core.next_double, jit_options=IN_PLACE)
def _next_double(bitgen):
    return (lambda bitgen: _unit(bitgen)) if isinstance(bitgen, StreamBits) else None


@overload(generator_core.next_uint32)
def _next_uint32(bitgen):
    if not isinstance(bitgen, StreamBits):
        return None

    def one(bitgen):
        left = _half_word(bitgen)
        if left & U1:
            _keep_half(bitgen, left & ~U1)
            return types.uint32(left >> np.uint64(32))
        word = _word(bitgen)
        _keep_half(bitgen, (word >> np.uint64(32)) << np.uint64(32) | U1)
        return types.uint32(word & np.uint64(0xFFFFFFFF))

    return one


@njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **IN_PLACE)
def _unit(bits):
    return np.int64(_word(bits) >> U11) * TO_UNIT


def _seldom(rare: Any) -> Any:
    """(bits, word) -> a draw by a function that is called, with a copy of the state, and not put in place.

    The caller's state could not stay in registers if its address were handed on.
    """
    state = types.UniTuple(types.uint64, 4)

    def on_a_copy(a, b, c, count, word):
        bits = _bits_of(a, b, c, count)
        drawn = rare(bits, word)
        return drawn, _state_of(bits)

    @intrinsic
    def call(context: Any, bits: Any, word: Any) -> Any:
        def code(target: Any, builder: Any, signature: Any, given: Any) -> Any:
            places = [builder.gep(given[0], [ir.Constant(HALF, k)]) for k in range(4)]
            returned = types.Tuple((types.float64, state))
            inner = returned(*[types.uint64] * 5)
            compiled = target.compile_subroutine(builder, on_a_copy, inner)
            callee = target.declare_function(builder.module, compiled.fndesc)
            _, found = target.call_conv.call_function(
                builder, callee, returned, inner.args, [*(builder.load(place) for place in places), given[1]],
                attrs=("noinline",),
            )  # fmt: skip
            drawn, after = cgutils.unpack_tuple(builder, found)
            for value, place in zip(cgutils.unpack_tuple(builder, after), places, strict=True):
                builder.store(value, place)
            return drawn

        return types.float64(bits, types.uint64), code

    return call


@intrinsic
def _bits_of(context: Any, a: Any, b: Any, c: Any, count: Any) -> Any:
    def code(target: Any, builder: Any, signature: Any, given: Any) -> Any:
        bits = cgutils.alloca_once(builder, WORD, size=WORDS)
        for k, value in enumerate(given):
            builder.store(value, builder.gep(bits, [ir.Constant(HALF, k)]))
        return bits

    return BITS(a, b, c, count), code


@intrinsic
def _state_of(context: Any, bits: Any) -> Any:
    state = types.UniTuple(types.uint64, 4)

    def code(target: Any, builder: Any, signature: Any, given: Any) -> Any:
        words = [builder.load(builder.gep(given[0], [ir.Constant(HALF, k)])) for k in range(4)]
        return target.make_tuple(builder, state, words)

    return state(bits), code


@njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **IN_PLACE)
def _normal(bits):
    word = _word(bits)
    layer, size = word & U255, (word >> U9) & MASK
    if size < KI[layer]:
        return _signed(np.int64(size) * WI[layer], word >> U8)
    return _other_normal(bits, word)


@njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy")
def _rare_normal(bits, word):
    """A normal from a word that is not inside its layer, which one in a hundred is not."""
    while True:
        layer, size = word & U255, (word >> U9) & MASK
        x = _signed(np.int64(size) * WI[layer], word >> U8)
        if size < KI[layer]:
            return x
        if layer == U0:
            while True:
                beyond = -NORMAL_INV_R * np.log1p(-_unit(bits))
                height = -np.log1p(-_unit(bits))
                if height + height > beyond * beyond:
                    return -(NORMAL_R + beyond) if (size >> U8) & U1 else NORMAL_R + beyond
        if (FI[layer - U1] - FI[layer]) * _unit(bits) + FI[layer] < np.exp(-0.5 * x * x):
            return x
        word = _word(bits)


_other_normal = _seldom(_rare_normal)


@njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **IN_PLACE)
def _exponential(bits):
    word = _word(bits) >> U3
    layer, size = word & U255, word >> U8
    if size < KE[layer]:
        return np.int64(size) * WE[layer]
    return _other_exponential(bits, word)


@njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy")
def _rare_exponential(bits, word):
    while True:
        layer, size = word & U255, word >> U8
        x = np.int64(size) * WE[layer]
        if size < KE[layer]:
            return x
        if layer == U0:
            return EXPONENTIAL_R - np.log1p(-_unit(bits))
        if (FE[layer - U1] - FE[layer]) * _unit(bits) + FE[layer] < np.exp(-x):
            return x
        word = _word(bits) >> U3


_other_exponential = _seldom(_rare_exponential)


@njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy")
def _many(bits, size, one):
    values = np.empty(size)
    flat = values.flat
    for k in range(values.size):
        flat[k] = one(bits)
    return values


@njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy")
def _many_scaled(bits, size, one, loc, scale):
    values = np.empty(size)
    flat = values.flat
    for k in range(values.size):
        flat[k] = loc + scale * one(bits)
    return values


def _given(value: Any) -> Any:
    return value.value if isinstance(value, types.Omitted) else value


def _one(size: Any) -> bool:
    """Whether one number is asked for, and not an array."""
    return _given(size) is None or isinstance(size, types.NoneType)


def _doubles(dtype: Any) -> bool:
    return _given(dtype) is np.float64 or getattr(dtype, "dtype", None) == types.float64


# The methods. Numba's own are asked first, since they refuse what is no argument.


@overload_method(CompiledStream, "random", jit_options=IN_PLACE)
def _random(inst, size=None, dtype=np.float64):
    theirs = numbas.NumPyRandomGeneratorType_random(inst, size, dtype)
    if not _doubles(dtype):
        return theirs
    if _one(size):
        return lambda inst, size=None, dtype=np.float64: _unit(inst.bit_generator)
    return lambda inst, size=None, dtype=np.float64: _many(inst.bit_generator, size, _unit)


@overload_method(CompiledStream, "standard_normal", jit_options=IN_PLACE)
def _standard_normal(inst, size=None, dtype=np.float64):
    theirs = numbas.NumPyRandomGeneratorType_standard_normal(inst, size, dtype)
    if not _doubles(dtype):
        return theirs
    if _one(size):
        return lambda inst, size=None, dtype=np.float64: _normal(inst.bit_generator)
    return lambda inst, size=None, dtype=np.float64: _many(inst.bit_generator, size, _normal)


@overload_method(CompiledStream, "standard_exponential", jit_options=IN_PLACE)
def _standard_exponential(inst, size=None, dtype=np.float64, method="zig"):
    theirs = numbas.NumPyRandomGeneratorType_standard_exponential(inst, size, dtype, method)
    if not _doubles(dtype) or _given(method) != "zig":
        return theirs
    if _one(size):
        return lambda inst, size=None, dtype=np.float64, method="zig": _exponential(inst.bit_generator)
    return lambda inst, size=None, dtype=np.float64, method="zig": _many(inst.bit_generator, size, _exponential)


@overload_method(CompiledStream, "normal", jit_options=IN_PLACE)
def _scaled_normal(inst, loc=0.0, scale=1.0, size=None):
    numbas.NumPyRandomGeneratorType_normal(inst, loc, scale, size)
    if _one(size):
        return lambda inst, loc=0.0, scale=1.0, size=None: loc + scale * _normal(inst.bit_generator)
    return lambda inst, loc=0.0, scale=1.0, size=None: _many_scaled(inst.bit_generator, size, _normal, loc, scale)


@overload_method(CompiledStream, "uniform", jit_options=IN_PLACE)
def _uniform(inst, low=0.0, high=1.0, size=None):
    numbas.NumPyRandomGeneratorType_uniform(inst, low, high, size)
    if _one(size):
        return lambda inst, low=0.0, high=1.0, size=None: low + (high - low) * _unit(inst.bit_generator)
    return lambda inst, low=0.0, high=1.0, size=None: _many_scaled(inst.bit_generator, size, _unit, low, high - low)


@overload_method(CompiledStream, "exponential", jit_options=IN_PLACE)
def _scaled_exponential(inst, scale=1.0, size=None):
    numbas.NumPyRandomGeneratorType_exponential(inst, scale, size)
    if _one(size):
        return lambda inst, scale=1.0, size=None: scale * _exponential(inst.bit_generator)
    return lambda inst, scale=1.0, size=None: _many_scaled(inst.bit_generator, size, _exponential, 0.0, scale)


# Loops over the streams of several steps. They are the same for all simulators.


def philox(states: Array, seed: Any, key: Any, first: Any, step: Any) -> None:
    """States (S, 5) for SFC64: four words of Philox4x64-10, of the stream with these names at S steps.

    Numbers are unsigned words; products of two of them are made of halves.
    """
    low = np.uint64(0xFFFFFFFF)
    half, one = np.uint64(32), np.uint64(1)
    for s in range(len(states)):
        x0, x1, x2, x3 = one, np.uint64(0), step + np.uint64(s), first
        k0, k1 = seed, key
        for _ in range(10):
            y0, y1, y2, y3 = x0, x1, x2, x3
            for turn in range(2):
                a = y0 if turn == 0 else y2
                b = np.uint64(0xD2E7470EE14C6C93) if turn == 0 else np.uint64(0xCA5A826395121157)
                a0, a1, b0, b1 = a & low, a >> half, b & low, b >> half
                middle = a1 * b0 + ((a0 * b0) >> half)
                other = a0 * b1 + (middle & low)
                upper = a1 * b1 + (middle >> half) + (other >> half)
                if turn == 0:
                    x2, x3 = upper ^ y3 ^ k1, a * b
                else:
                    x0, x1 = upper ^ y1 ^ k0, a * b
            k0 += np.uint64(0x9E3779B97F4A7C15)
            k1 += np.uint64(0xBB67AE8584CAA73B)
        states[s, 0], states[s, 1], states[s, 2], states[s, 3] = x0, x1, x2, x3
        states[s, 4] = np.uint64(0)


def normals(states: Array, values: Array) -> None:
    """Fill a row of values (S, n) from each of S streams, which are left where the next draws begin."""
    for s in range(len(states)):
        rng = stream(states[s])
        for j in range(values.shape[1]):
            values[s, j] = rng.standard_normal()


def exponentials(states: Array, values: Array) -> None:
    """As `normals`."""
    for s in range(len(states)):
        rng = stream(states[s])
        for j in range(values.shape[1]):
            values[s, j] = rng.standard_exponential()


def uniforms(states: Array, values: Array) -> None:
    """As `normals`."""
    for s in range(len(states)):
        rng = stream(states[s])
        for j in range(values.shape[1]):
            values[s, j] = rng.random()


@cache
def kept_on_disk(function: Callable[..., Any], *given: Any) -> Any:
    """A function compiled for arguments of these types, once for all runs if there is a folder to keep it in."""
    states = types.uint64[:, ::1]
    if not given:
        given = (states, *[types.uint64] * 4) if function is philox else (states, types.float64[:, ::1])
    try:
        return njit(given, nogil=True, error_model="numpy", cache=True)(function)
    except RuntimeError:
        return njit(given, nogil=True, error_model="numpy")(function)
