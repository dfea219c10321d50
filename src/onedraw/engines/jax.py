"""The JAX engine: the same step functions, traced once, compiled, and run on a CPU or a GPU.

`jax.jit` writes a program from our array code by running it on stand-ins for arrays (tracers). So everything between
a chain's state and its next state must be array code that asks `arrays.namespace` for its module, and no value may be
inspected there. What differs from NumPy is here (the loop over steps, the transfer to the device and back) and in
`jax_keys` and `jax_streams`.

*Declared parts.* The engine knows no class of the package. It reads which attributes a class declares as numbers and
which as part of the program (`arrays.DeviceParts`), and returns plain tuples of arrays and numbers.

*Precision.* Programs are traced with 64-bit numbers on or off as the engine says, whatever the setting of the process:
float64 on a CPU and float32 on a GPU unless asked otherwise.

*All rows.* Shapes are fixed, so every row is simulated and counted. Rows that only fill up a program are `surplus`.
"""

import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from onedraw.engines.arrays import Array, DeviceParts
from onedraw.engines.jax_keys import key_at, key_of, threefry_key
from onedraw.engines.jax_streams import DeviceRng, StreamName
from onedraw.engines.streams import Purpose, Rng
from onedraw.failures import Failure, SimulationError

PRECISIONS = ("float32", "float64")
LONGEST = 512
"""The most draws of each chain that one program keeps on the device."""
UNROLLED, LONG_LOOP = 4, 64
"""Steps that a GPU takes in one turn of a loop, and the thinning from which it does: the state of the chains then stays
in its registers for longer, but the program takes longer to compile."""
VALUES = 2**25
"""Numbers of raw data that a step holds at once; beyond that the M pseudo-samples are drawn in groups."""
MANY, TOGETHER, FEW_NUMBERS = 2**20, 4, 256
"""If a step draws that many pseudo-samples, these are drawn side by side, each computed from at most so many numbers:
two share a hash, and the sum of all M has fewer terms, but the program takes longer to compile."""


def _options() -> dict[str, Any]:
    """How programs are compiled, if the compiler knows of it."""
    # The few kernels of a step as one graph: launched one by one they take a GPU up to three times as long.
    wanted = {"xla_gpu_graph_min_graph_size": 1}
    if jax.default_backend() != "gpu":
        return {}
    try:
        jax.jit(lambda: 0, compiler_options=wanted)()
    except jax.errors.JaxRuntimeError:
        return {}
    return wanted


OPTIONS = _options()
MOST_PROGRAMS = 2**30
"""Bytes of compiled programs that are kept in the user's cache folder, if JAX can count them."""


def _keep_programs() -> None:
    """Keep what is compiled for a GPU from one process to the next, unless the user has said where or that it is not.

    What is compiled for a CPU depends on its make, and a cache folder may be shared by machines: it is not kept.
    """
    if jax.default_backend() != "gpu" or jax.config.jax_compilation_cache_dir is not None:
        return
    if not jax.config.jax_enable_compilation_cache:
        return
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onedraw" / "jax"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if find_spec("filelock") is not None:
        # JAX needs that package to remove the oldest.
        jax.config.update("jax_compilation_cache_max_size", MOST_PROGRAMS)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


_keep_programs()


class Engine(NamedTuple):
    """What a run on JAX depends on besides its arguments."""

    precision: str

    @staticmethod
    def named(name: str) -> "Engine":
        """The engine that "jax", "jax:float32" or "jax:float64" names."""
        word, _, precision = name.partition(":")
        if word != "jax" or precision not in ("", *PRECISIONS):
            raise ValueError(
                f"engine must be 'numpy', 'numba', 'jax', 'jax:float32' or 'jax:float64', got {name!r}: it says what "
                "takes the steps of a run"
            )
        return Engine(precision or ("float64" if jax.default_backend() == "cpu" else "float32"))

    def __str__(self) -> str:
        return f"jax:{self.precision}"

    @contextmanager
    def active(self) -> Iterator[None]:
        """Programs traced in here have this precision."""
        with jax.enable_x64(self.precision == "float64"), jax.default_matmul_precision("highest"):
            try:
                yield
            except TRACING as error:
                raise ValueError(
                    "engine='jax' turns array code into a program, and some function of the model (simulator, summary, "
                    f"distance, kernel, proposal or `where`) is not such code: {str(error).splitlines()[0]} Write it "
                    "with jax.numpy and jax.random instead of numpy, and without `if` or `while` on values "
                    "(jnp.where, jax.lax.cond), or use engine='numpy' with an ordinary simulator"
                ) from error

    @property
    def dtype(self) -> Any:
        """The type of its numbers."""
        return np.dtype(self.precision)


TRACING = (
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.ConcretizationTypeError,
)


def versions() -> dict[str, str]:
    """What the bytes of a run depend on besides its specification."""
    return {"jax": jax.__version__, "device": jax.devices()[0].device_kind}


# ------------------------------------------------------------------------------------------- models as programs


def known(value: Any) -> Any:
    """The value, after JAX was told how to take apart its class and those of its parts (`DeviceParts`)."""
    kind = type(value)
    parts: DeviceParts | None = getattr(kind, "device_parts", None)
    if parts is not None:
        if kind not in REGISTERED:
            with REGISTERING:
                if kind not in REGISTERED:
                    _register(kind, *parts)
        for name in parts.numbers:
            known(getattr(value, name))
    return value


def _register(kind: type, numbers: tuple[str, ...], fixed: tuple[str, ...]) -> None:
    def flatten(value: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        children = [getattr(value, name) for name in numbers]
        # A user's function in the place of one of our objects is no number.
        own = tuple(None if _numeric(child) else Held(child) for child in children)
        shown = tuple(None if mark is not None else child for child, mark in zip(children, own, strict=True))
        return shown, (own, tuple(Held(_without_simulator(getattr(value, name))) for name in fixed))

    def unflatten(aux: Any, children: Any) -> Any:
        own, held = aux
        made: Any = object.__new__(kind)
        for name, child, mark in zip(numbers, children, own, strict=True):
            object.__setattr__(made, name, child if mark is None else mark.value)
        for name, one in zip(fixed, held, strict=True):
            object.__setattr__(made, name, one.value)
        return made

    jax.tree_util.register_pytree_node(kind, flatten, unflatten)
    REGISTERED.add(kind)


REGISTERED: set[type] = set()
REGISTERING = threading.Lock()


def _numeric(value: Any) -> bool:
    """Whether a value is made of numbers alone, or is of a kind that says which of its parts are."""
    numbers = (int, float, np.generic, np.ndarray, jax.Array, jax.tree_util.Partial)
    return value is None or isinstance(value, numbers) or type(value) in REGISTERED


def _without_simulator(value: Any) -> Any:
    """A recipe names its simulator too, whose numbers may change."""
    return value._replace(simulator=None) if hasattr(value, "simulator") else value


@dataclass(frozen=True, eq=False)
class Held:
    """A part of a program: equal to another if it is the same object, or an equal plain value."""

    value: Any

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Held) or type(self.value) is not type(other.value):
            return False
        if isinstance(self.value, tuple):
            # Part by part: what users gave is not asked whether it is equal.
            return [Held(part) for part in self.value] == [Held(part) for part in other.value]
        return self.value is other.value or (isinstance(self.value, PLAIN) and bool(self.value == other.value))

    def __hash__(self) -> int:
        if isinstance(self.value, tuple):
            return hash(tuple(Held(part) for part in self.value))
        return hash(self.value) if isinstance(self.value, PLAIN) else id(self.value)


PLAIN = (bool, int, float, str, frozenset)


def simulator_key(simulator: Any, words: tuple[Any, Any], counter: Any, every: int) -> Any:
    """The key of one pseudo-sample of `every`, of the kind that the simulator's functions take."""
    return threefry_key(words, counter) if simulator.own_keys else key_of(words, counter, every % 2 == 0)


class DeviceDraws(NamedTuple):
    """Pseudo-samples at n rows of theta, m each, on a device."""

    distances: Any
    """(n, m); no kernel counts those of failed simulations."""
    bad: Any
    """(n, m) which failed."""
    rows: Any
    """(n, m, s) summaries."""


def draw(model: Any, rng: DeviceRng, theta: Any, first: Any, count: int, every: int, chunk: Any = 0) -> DeviceDraws:
    """Pseudo-samples first .. first + count - 1 of `every` at each row of theta (n, dim)."""
    words = rng.named(Purpose.SIMULATE, chunk)
    theta = _computed_once(theta) if count > 1 else theta
    model = known(model)

    def one(counter: Any, row: Any) -> Any:
        return _compared(model, simulator_key(model.simulate, words, counter, every), row, dtype=rng.dtype)

    return DeviceDraws(*_mapped(one, theta, first, count, every))


def _computed_once(theta: Any) -> Any:
    """Theta, in whose computation pseudo-samples have no part: otherwise it belongs to the program of each of them."""
    barrier: Any = lax.optimization_barrier
    return barrier(theta)


@partial(jax.jit, static_argnames=("dtype",))
def _compared(model: Any, key: Any, row: Any, *, dtype: Any) -> DeviceDraws:
    """One pseudo-sample at one row of theta (dim,); a program by itself, so that it is traced once for all others."""
    summary = simulated(model.recipe, model.simulate, key, row, dtype)
    distance = distance_of(model, summary, jnp.asarray(model.observed_row, dtype))
    # Our own distances are not finite if a summary is not; others are checked more closely.
    bad = ~(distance < jnp.inf)
    if not hasattr(model.distance, "learnt"):
        bad = bad | ~jnp.isfinite(summary).all() | (distance < 0)
        distance = jnp.where(bad, jnp.inf, distance)
    return DeviceDraws(distance, bad, summary)


def simulated(recipe: Any, simulator: Any, key: Any, row: Any, dtype: Any) -> Any:
    """The summary (s,) of one pseudo-sample at one row of theta (dim,)."""
    return summarised(recipe, simulator.function(key, **recipe.prior.columns(row)), dtype)


def hits(model: Any, rng: DeviceRng, theta: Any, draws: int, eps: Any) -> tuple[Any, Any]:
    """How many of `draws` pseudo-samples at each row of theta are within eps, and how many failed: those of `draw`.

    One sum for both: two would draw every pseudo-sample twice.
    """
    words = rng.named(Purpose.SIMULATE)
    theta, model = _computed_once(theta), known(model)

    def one(pair: Any, odd: Any, row: Any) -> Any:
        drawn = _compared(model, key_at(words, pair, odd), row, dtype=rng.dtype)
        return jnp.where(drawn.bad, 2**16, drawn.distances < eps)

    together = math.gcd(draws, TOGETHER)
    few = together == 1 or theta.shape[0] * draws < MANY
    if few or model.simulate.own_keys or not _few_numbers(one, theta):
        drawn = draw(model, rng, theta, 0, draws, draws)
        total = jnp.where(drawn.bad, 2**16, drawn.distances < eps).sum(axis=1)
    else:

        def several(group: Any, row: Any) -> Any:
            # The keys' last word is a constant here: the compiler sees which of them share a hash.
            pairs = group * jnp.uint32(together // 2)
            return sum(one(pairs + jnp.uint32(k // 2), jnp.uint32(k % 2), row) for k in range(together))

        total = _mapped(several, theta, 0, draws // together, draws // together).sum(axis=1)
    return total & 0xFFFF, total >> 16


def _few_numbers(one: Callable[..., Any], theta: Any) -> bool:
    """Whether a pseudo-sample is computed from few numbers, without loops or long arrays."""
    word = jax.ShapeDtypeStruct((), jnp.uint32)
    return _numbers(jax.make_jaxpr(one)(word, word, jax.ShapeDtypeStruct(theta.shape[1:], theta.dtype))) <= FEW_NUMBERS


def _numbers(program: Any) -> float:
    """How many numbers a traced program computes; infinite if it has loops or arrays longer than a key."""
    total = 0.0
    for step in program.eqns:
        inner = [part for part in step.params.values() if hasattr(part, "eqns")]
        sizes = [math.prod(one.aval.shape) for one in step.outvars]
        if step.primitive.name in LOOPS or max(sizes, default=0) > LONGEST_ARRAY:
            return math.inf
        total += sum(map(_numbers, inner)) if inner else sum(sizes)
    return total


LOOPS, LONGEST_ARRAY = ("scan", "while", "cond", "random_gamma"), 4


def _mapped(one: Callable[[Any, Any], Any], theta: Any, first: Any, count: int, every: int) -> Any:
    """`one` for each row of theta and each of `count` pseudo-samples, counted from `first` of `every`."""
    counters = lax.iota(jnp.uint32, theta.shape[0])[:, None] * jnp.uint32(every)
    counters = counters + jnp.asarray(first, jnp.uint32) + lax.iota(jnp.uint32, count)[None, :]
    return jax.vmap(jax.vmap(one, (0, None)))(counters, theta)


def summarised(recipe: Any, value: Any, dtype: Any) -> Any:
    """The flat summary (s,) of one simulated value."""
    summary, layout = recipe.summary, recipe.layout
    if summary is not None:
        if hasattr(summary, "function"):
            stacked = jax.tree.map(lambda part: jnp.asarray(part)[None], value)
            value = jax.tree.map(lambda part: part[0], summary(stacked))
        else:
            value = summary(value)
    parts = [value] if layout.keys is None else [part for _, part in layout._parts(value)]
    flat = []
    for part, shape in zip(parts, layout.shapes, strict=True):
        array = jnp.asarray(part, dtype)
        if array.shape != shape and not (array.size == 1 and shape in ((), (1,))):
            raise ValueError(f"the simulator's output has shape {array.shape}, but the observed data give {shape}")
        flat.append(array.reshape(-1))
    return flat[0] if len(flat) == 1 else jnp.concatenate(flat)


def distance_of(model: Any, summary: Any, observed: Any) -> Any:
    """The distance of one summary (s,) from the observed one."""
    distance, restore = model.distance, model.recipe.layout.restore
    if hasattr(distance, "learnt"):
        return distance(summary[None, :], observed)[0]
    if hasattr(distance, "function"):
        return jnp.asarray(distance(restore(summary[None, :]), restore(observed)))[0]
    return jnp.asarray(distance(restore(summary), restore(observed)))


def groups(pseudo_samples: int, rows: int, width: int) -> int:
    """How many of M pseudo-samples are drawn together: the largest divisor of M that fits into memory."""
    most = max(1, VALUES // max(1, rows * width))
    return max(size for size in range(1, pseudo_samples + 1) if pseudo_samples % size == 0 and size <= most)


# --------------------------------------------------------------------------------------------- in and out


def padded(rows: int) -> int:
    """Rows that a program is compiled for: a power of two, so that there are few programs."""
    return max(16, 1 << (rows - 1).bit_length())


def with_padding(array: Array, rows: int) -> Array:
    """An array with its last row repeated up to `rows`; what is computed for these is thrown away."""
    return np.concatenate([array, np.repeat(array[-1:], rows - len(array), axis=0)])


@partial(jax.jit, static_argnames=("engine",), compiler_options=OPTIONS)
def _evaluated(estimator: Any, name: StreamName, theta: Any, log_needed: Any, *, engine: Engine) -> Any:
    rng = DeviceRng.of(name, engine.dtype)
    result = estimator.on_device(rng, theta.astype(engine.dtype), log_needed)
    return result.log_estimate, result.distances, result.cost.failed, result.failures, result.rows


class DeviceEvaluation(NamedTuple):
    """Estimates at n rows of theta, computed on a device."""

    log_estimate: Array
    """(n,)"""
    distances: Array | None
    """(n, M), or None if they are not kept."""
    rows: Array | None
    """Summaries (n, M, s), or None if they are not kept."""
    simulations: int
    failed: int
    failures: tuple[Failure, ...]
    surplus: int
    """Simulations of rows that only fill up the program."""


def evaluate(estimator: Any, engine: Engine, rng: Rng, theta: Array, log_needed: Array | None) -> DeviceEvaluation:
    """`Estimator.evaluate` for arrays here, computed on the device; every row is simulated."""
    with engine.active():
        n, room = len(theta), padded(len(theta))
        needed = None if log_needed is None else with_padding(np.asarray(log_needed, engine.dtype), room)
        found = _evaluated(known(estimator), StreamName.of(rng), with_padding(theta, room), needed, engine=engine)
        bad = found[3]
        # Cut here: on a device each length would be a program of its own.
        fetched = jax.device_get((*found[:3], found[4]))
        log_estimate, distances, failed, rows = jax.tree.map(lambda part: part[:n], fetched)
        count = int(failed.sum())
        return DeviceEvaluation(
            host(log_estimate),
            None if distances is None else host(distances),
            None if rows is None else host(rows),
            n * estimator.simulations,
            count,
            first_failure(estimator, rng, bad) if count else (),
            (room - n) * estimator.simulations,
        )


def host(array: Any) -> Array:
    """An array from the device as one of double precision that may be written to."""
    return np.array(array, dtype=np.float64)


class FailureMask(NamedTuple):
    """Which simulations of a step failed, and where."""

    theta: Any
    """(n, dim)"""
    mask: Any
    """(n, M)"""


def first_failure(estimator: Any, rng: Rng, bad: Any) -> tuple[Failure, ...]:
    """The first failure of a step, for its report; a SimulationError if the run is to stop at it."""
    on_error = getattr(getattr(estimator, "estimator", estimator), "on_error", "reject")

    (found,) = bad
    mask = np.asarray(found.mask)
    row, m = (int(k) for k in np.argwhere(mask)[0])
    theta = np.asarray(found.theta, dtype=np.float64)[row]
    told = "the output is not finite"
    failure = Failure(estimator.prior.named(theta), rng.seed, rng.phase, rng.first + row, rng.step, m, told, "")
    if on_error == "raise":
        raise SimulationError(f"simulation failed {failure}")
    return (failure,)


@partial(jax.jit, static_argnames=("recipe", "draws", "engine"))
def _rows(simulator: Any, name: StreamName, theta: Any, chunk: Any, *, recipe: Held, draws: int, engine: Engine) -> Any:
    words = DeviceRng.of(name, engine.dtype).named(Purpose.SIMULATE, chunk)

    def one(counter: Any, row: Any) -> Any:
        return simulated(recipe.value, simulator, simulator_key(simulator, words, counter, draws), row, engine.dtype)

    return _mapped(one, theta.astype(engine.dtype), 0, draws, draws)


class DeviceRows(NamedTuple):
    """Pseudo-samples drawn on a device."""

    rows: Array
    """Summaries (n, M, s); not finite if a simulation failed."""
    surplus: int
    """Simulations of rows that only fill up the program."""


def simulate_rows(recipe: Any, rng: Rng, theta: Array, pseudo_samples: int, chunk: int) -> DeviceRows:
    """M pseudo-samples at each row of theta."""
    engine: Engine = recipe.simulator.engine or Engine.named("jax")
    with engine.active():
        fixed = Held(_without_simulator(recipe))
        room = padded(len(theta))
        rows = _rows(
            known(recipe.simulator), StreamName.of(rng), with_padding(theta, room), np.uint32(chunk), recipe=fixed,
            draws=pseudo_samples, engine=engine,
        )  # fmt: skip
        return DeviceRows(host(rows)[: len(theta)], (room - len(theta)) * pseudo_samples)


def tried(function: Any, prior: Any) -> bool:
    """Trace a simulator once, for its mistakes; whether it needs keys of JAX's own kind."""

    def attempt(kind: Callable[..., Any]) -> None:
        words = jnp.uint32(0), jnp.uint32(0)
        given = prior.columns(jnp.where(prior.discrete, 1.0, 0.5))
        # The parameters are stand-ins here too: numbers would let a NumPy function through.
        jax.eval_shape(lambda parameters: function(kind(words, 0), **parameters), given)

    with Engine.named("jax").active():
        try:
            attempt(key_of)
        except NotImplementedError:
            attempt(threefry_key)
            return True
        return False


# -------------------------------------------------------------------------------------------- steps of chains


class Sums(NamedTuple):
    """What the steps of a program add up on the device."""

    accepted: Any
    """(batches, n)"""
    held: Any
    """(batches, n) steps at which a chain proposed nothing, or None if it always does."""
    failed: Any
    """(n,)"""
    turns: Any
    """Simulations of each chain if their number is not known beforehand, otherwise 0."""
    capped: Any


@partial(
    jax.jit, static_argnames=("room", "full", "thin", "batches", "keep_distances", "engine"), compiler_options=OPTIONS
)
def _steps(
    sampler: Any, name: StreamName, state: Any, begin: Any, end: Any, kept: Any, *, room: int, full: bool, thin: int,
    batches: int, keep_distances: bool, engine: Engine,
) -> Any:  # fmt: skip
    """`kept` x `thin` steps, with space for `room` kept draws; `full` if there are that many."""
    block = DeviceRng.block_of(name.words)
    n = state.theta.shape[0]
    each = 0
    """Simulations of each chain in a step, if that is known."""

    def step(number: Any, words: tuple[Any, Any], carry: tuple[Any, Sums]) -> tuple[Any, Sums]:
        nonlocal each
        state, sums = carry
        state, info = sampler.step(DeviceRng(words, engine.dtype), state)
        place = 0 if batches == 1 else ((number - begin).astype(jnp.int32) * batches) // (end - begin).astype(jnp.int32)
        held = sums.held
        if (held is None) != isinstance(info.proposals, int):
            raise ValueError(
                f"{type(sampler.proposal).__name__} must say in an attribute `holds` whether it may hold chains back: "
                f"it is {held is not None}"
            )
        if held is not None:
            held = held.at[place].add(~info.proposals)
        turns = sums.turns
        if isinstance(info.cost.simulations, int):
            each = info.cost.simulations // n
        else:
            turns = turns + info.cost.simulations
        return state, Sums(
            sums.accepted.at[place].add(info.accepted) if batches > 1 else sums.accepted + info.accepted,
            held,
            sums.failed + jnp.asarray(info.cost.failed, jnp.int32),
            turns,
            sums.capped + jnp.asarray(info.capped, jnp.int32),
        )

    unrolls = jax.default_backend() == "gpu" and thin >= LONG_LOOP and thin % UNROLLED == 0
    # The keys of many steps at once: a small program for each would cost a GPU more than the step.
    every = DeviceRng.at(block, name.step + lax.iota(jnp.uint32, room)) if thin == 1 else None

    def thinned(carry: tuple[Any, Sums], turn: Any) -> tuple[Any, Sums]:
        first = name.step + jnp.asarray(turn, jnp.uint32) * jnp.uint32(thin)
        if every is not None:
            return step(first, (every[0][turn], every[1][turn]), carry)
        words = DeviceRng.at(block, first + lax.iota(jnp.uint32, thin))

        def one_of(k: Any, inner: tuple[Any, Sums]) -> tuple[Any, Sums]:
            return step(first + jnp.asarray(k, jnp.uint32), (words[0][k], words[1][k]), inner)

        return lax.fori_loop(0, thin, one_of, carry, unroll=UNROLLED if unrolls else 1)

    def shown(state: Any) -> tuple[Any, Any]:
        return state.theta, state.distances if keep_distances else None

    counts = jnp.zeros((batches, n), jnp.int32)
    held = counts if getattr(sampler.proposal, "holds", False) else None
    carry = state, Sums(counts, held, jnp.zeros(n, jnp.int32), jnp.uint32(0), jnp.int32(0))
    if full:

        def one(carry: Any, turn: Any) -> Any:
            carry = thinned(carry, turn)
            return carry, shown(carry[0])

        (state, sums), draws = lax.scan(one, carry, jnp.arange(room))
        return state, draws, *_counted(sums, each)

    def into(turn: Any, everything: Any) -> Any:
        carry, draws = everything
        carry = thinned(carry, turn)
        return carry, jax.tree.map(lambda rows, row: rows.at[turn].set(row), draws, shown(carry[0]))

    empty = jax.tree.map(lambda row: jnp.zeros((room, *row.shape), row.dtype), shown(state))
    (state, sums), draws = lax.fori_loop(0, kept, into, (carry, empty))
    return state, draws, *_counted(sums, each)


def _counted(sums: Sums, each: int) -> tuple[Any, ...]:
    """What is fetched of the sums, in few arrays, since each takes its time; and the failures, mostly not."""
    few = (sums.turns, sums.capped.astype(jnp.uint32), jnp.uint32(each), sums.failed.any().astype(jnp.uint32))
    return sums.accepted, sums.held, jnp.stack(few), sums.failed


def most_kept(state: Any) -> int:
    """The most draws of all chains that one program keeps on the device."""
    return max(1, min(LONGEST, VALUES // _values(state)))


def _values(state: Any) -> int:
    """Numbers in one draw of all chains."""
    return int(state.theta.shape[0] * (state.theta.shape[1] + state.distances.shape[1]))


def room_for(kept: int, state: Any) -> int:
    """Space for `kept` draws: of few sizes, since each is a program of its own, and little of it unused.

    What is unused is fetched too, so there is less of it if a draw is large.
    """
    least = 64 if jax.default_backend() == "cpu" or _values(state) <= 2**14 else 8
    return min(most_kept(state), max(least, 8 ** math.ceil(math.log(kept, 8) - 1e-9)))


class DeviceSteps(NamedTuple):
    """What some steps of n chains give."""

    state: Any
    """Still on the device."""
    theta: Array
    """(kept, n, dim)"""
    distances: Array | None
    accepted: Array
    """(batches, n) moves."""
    proposals: Array
    """(batches, n)"""
    simulations: int
    failed: int
    failures: tuple[Failure, ...]
    """The first, if it was asked for."""
    capped: int
    surplus: int
    """Simulations that were done again to find the first failure."""


def advance(
    sampler: Any, engine: Engine, rng: Rng, state: Any, steps: int, *, thin: int, batches: int,
    stretch: tuple[int, int], keep_distances: bool, find_failure: bool,
) -> DeviceSteps:  # fmt: skip
    """Steps of a block of chains on the device, from step `rng.step` on: the counterpart of `run.lockstep.advance`."""
    with engine.active():
        began = _state_for(engine, state)
        begin, end = (np.uint32(one) for one in stretch)
        kept = steps // thin
        room = room_for(kept, began)
        # A loop whose length is known beforehand saves a GPU a wait in every turn; on a CPU it would only be compiled.
        full = kept == room and jax.default_backend() != "cpu"
        state, draws, accepted, held, few, failed = _steps(
            known(sampler), StreamName.of(rng), began, begin, end, np.int32(kept), room=room, full=full, thin=thin,
            batches=batches, keep_distances=keep_distances, engine=engine,
        )  # fmt: skip
        # All at once: to wait for each by itself takes longer than a few steps.
        (theta, distances), accepted, held, few = jax.device_get((draws, accepted, held, few))
        turns, capped, each, any_failed = (int(one) for one in few)
        places = (np.arange(rng.step, rng.step + steps) - stretch[0]) * batches // (stretch[1] - stretch[0])
        made = np.bincount(places, minlength=batches)[:, None] - (0 if held is None else held.astype(np.int64))
        count = int(np.asarray(failed, np.int64).sum()) if any_failed else 0
        failures, surplus = _find_failure(sampler, engine, rng, began, steps) if count and find_failure else ((), 0)
        return DeviceSteps(
            state, theta[:kept], None if distances is None else distances[:kept], accepted.astype(np.int64),
            np.broadcast_to(made, accepted.shape), (turns + steps * each) * began.theta.shape[0], count, failures,
            capped, surplus,
        )  # fmt: skip


def _state_for(engine: Engine, state: Any) -> Any:
    """The state that steps begin with: on the device if the steps before left it there."""
    if isinstance(state.theta, jax.Array):
        return state
    return jax.device_put(jax.tree.map(lambda part: np.asarray(part, engine.dtype), state))


@partial(jax.jit, static_argnames=("engine",))
def _one_step(sampler: Any, name: StreamName, state: Any, *, engine: Engine) -> Any:
    state, info = sampler.step(DeviceRng.of(name, engine.dtype), state)
    n, simulations = state.theta.shape[0], info.cost.simulations
    each = simulations // n if isinstance(simulations, int) else simulations
    return state, info.cost.failed, info.failures, each


def _find_failure(sampler: Any, engine: Engine, rng: Rng, state: Any, steps: int) -> tuple[tuple[Failure, ...], int]:
    """The first failure of some steps, which are taken again up to the one that failed, and what that costs."""
    surplus = 0
    for number in range(rng.step, rng.step + steps):
        there = Rng(rng.seed, rng.phase, rng.first, number)
        state, failed, bad, each = _one_step(sampler, StreamName.of(there), state, engine=engine)
        # They counted when the steps were taken, and are drawn once more now.
        surplus += int(each) * state.theta.shape[0]
        if np.asarray(failed).any():
            return first_failure(sampler.estimator, there, bad), surplus
    return (), surplus


# ------------------------------------------------------------------------------------------ proposals of rejection


@partial(jax.jit, static_argnames=("passes", "room", "neighbours", "summaries", "engine"), compiler_options=OPTIONS)
def _proposals(
    estimator: Any, name: StreamName, log_bound: Any, size: Any, *, passes: Callable[..., Any], room: int,
    neighbours: int, summaries: bool, engine: Engine,
) -> Any:  # fmt: skip
    rng = DeviceRng.of(name, engine.dtype)
    theta = estimator.prior.sample(rng.bulk(Purpose.PRIOR), room)
    asked = jnp.arange(room) < size
    result = estimator.on_device(rng, theta, jnp.where(asked, -jnp.inf, jnp.inf))
    log_u = -rng.bulk(Purpose.ACCEPT).standard_exponential(room)
    accepted = asked & passes(log_u, result.log_estimate, log_bound)
    near = None
    if neighbours and result.distances is not None:
        rest = jnp.where(accepted | ~asked, jnp.inf, result.distances[:, 0])
        place = _smallest(rest, min(neighbours, room))
        near = jnp.concatenate([theta[place], rest[place][:, None]], axis=1)
    # Side by side in one array: each that is fetched takes its time.
    columns = [theta, result.log_estimate[:, None], *([] if result.distances is None else [result.distances])]
    arrays = jnp.concatenate(columns, axis=1), result.rows if summaries else None
    # What was accepted comes back with the count, unless it is more than there was room for.
    some = _taken(arrays, accepted, room=max(1, room // 16))
    counts = jnp.stack([accepted.sum(), result.cost.failed.sum()])
    return (some, counts, near), arrays, accepted, result.rows, result.failures


def _smallest(values: Any, count: int) -> Any:
    """Places of the smallest of values (n,), n a power of two: they are in the groups whose own smallest are so.

    >>> _smallest(jnp.array([5.0, 1.0, 7.0, 8.0, 2.0, 3.0, 9.0, 6.0]), 3).tolist()
    [1, 4, 5]
    """
    n = values.shape[0]
    groups = values.reshape(1 << (n.bit_length() // 2), -1)
    # To sort all of them would take longer than to simulate them.
    chosen = lax.top_k(-groups.min(axis=1), min(count, groups.shape[0]))[1]
    width = groups.shape[1]
    places = (chosen[:, None] * width + jnp.arange(width)).reshape(-1)
    return places[lax.top_k(-values[places], count)[1]]


@partial(jax.jit, static_argnames=("room",))
def _taken(arrays: Any, accepted: Any, *, room: int) -> Any:
    rows = jnp.nonzero(accepted, size=room, fill_value=0)[0]
    return jax.tree.map(lambda array: array[rows], arrays)


class DeviceProposals(NamedTuple):
    """What a block of proposals gives: only what was accepted has left the device."""

    theta: Array
    log_estimate: Array
    distances: Array | None
    rows: Array | None
    """Summaries of those accepted, if they are kept."""
    near_theta: Array
    """Rejected proposals that came nearest to the data, with their distances."""
    near_distance: Array
    bank: dict[str, Array]
    """Theta, summaries and distances of all proposals, if they are kept."""
    simulations: int
    failed: int
    failures: tuple[Failure, ...]
    surplus: int
    """Simulations of rows that only fill up the program."""


def proposals(
    estimator: Any, engine: Engine, rng: Rng, size: int, *, log_bound: float, passes: Callable[..., Any],
    neighbours: int, keep: str,
) -> DeviceProposals:  # fmt: skip
    """Proposals from the prior, those kept for which `passes(log_u, log_estimate, log_bound)` holds."""
    with engine.active():
        room = padded(size)
        found, arrays, accepted, rows, bad = _proposals(
            known(estimator), StreamName.of(rng), np.asarray(log_bound, engine.dtype), np.int32(size), passes=passes,
            room=room, neighbours=neighbours, summaries=keep == "summaries", engine=engine,
        )  # fmt: skip
        some, (kept, failed), near = jax.device_get(found)
        if kept > room // 16:
            some = jax.device_get(_taken(arrays, accepted, room=room))
        dim, (values, summaries) = estimator.prior.dim, (None if part is None else host(part[:kept]) for part in some)
        assert values is not None
        theta, log_estimate, distances = (
            np.ascontiguousarray(part) for part in (values[:, :dim], values[:, dim], values[:, dim + 1 :])
        )
        near = np.empty((0, dim + 1)) if near is None else host(near[np.isfinite(near[:, -1])])
        bank = {}
        if rows is not None and keep == "all":
            every = host(arrays[0][:size])
            bank = {"theta": every[:, :dim], "rows": host(rows[:size]), "distances": every[:, dim + 1 :]}
        return DeviceProposals(
            theta, log_estimate, distances if distances.shape[1] else None, summaries, near[:, :-1], near[:, -1], bank,
            size * estimator.simulations, int(failed), first_failure(estimator, rng, bad) if failed else (),
            (room - size) * estimator.simulations,
        )  # fmt: skip
