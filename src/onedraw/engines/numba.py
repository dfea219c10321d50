"""Simulators compiled by Numba: one pseudo-sample in plain loops, at the speed of C.

A function marked by `compiled` draws one pseudo-sample, as a plain simulator does, and is called from a compiled loop
over rows of theta and their M draws. If summary, distance and kernel can be compiled too, the loop includes them:
a pseudo-sample is drawn, summarised, compared and added to the average before the next one, so that no array of rows
x M exists, and nothing holds Python's lock. Otherwise the loop returns rows, as a batched simulator would.

Random numbers come from the stream of a chunk of rows (`Rng.words`), as for batched simulators: compiled code draws the
numbers from it that NumPy would (`numba_streams`). If something is raised inside the loop, the same stream is drawn
again by a slower loop that notes what fails and goes on.

Loops are made when they are first needed, and belong to the marked function: only the Python function is pickled, and
globals that it reads are taken as they are when the loop is made. Distances and kernels say themselves which of the
formulas in this module they are.
"""

import inspect
import math
import re
import threading
import weakref
from collections.abc import Callable, Mapping
from functools import cache, partial, update_wrapper
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from onedraw.engines.arrays import NO_DISTANCES, Array
from onedraw.engines.streams import Purpose, Rng, words_of

CHUNK_ROWS = 32_768
"""The most rows of theta that share a stream."""
BLOCK_ROWS = 2_048
"""Proposals per block: compiled simulators may be slow, and a block is the least that a worker does."""
SHARES, FEWEST_CHAINS, MOST_CHAINS = 4, 256, 4_096
"""Number of blocks of chains, and the least and most chains in each: a step of a block costs about as much as a
thousand cheap simulations besides its own."""
FINE, NOT_FINITE, WRONG_SHAPE, RAISED, BAD_DISTANCE, NO_DISTANCE = range(6)
"""What became of a pseudo-sample."""
PROFILES = ("flat", "gaussian", "epanechnikov", "triangular", "laplace")
"""What a kernel may name as its `formula`. Kernels are numbers to a loop, so that one loop serves them all."""
FLAT, GAUSSIAN, EPANECHNIKOV, TRIANGULAR, LAPLACE = range(len(PROFILES))
NOTHING = np.empty((1, 1))
NOTHING.flags.writeable = False
NO_ROWS = np.empty((0, 0, 0))
MISSING = 'od.compiled needs Numba: pip install "onedraw[numba]"'


class Compiled:
    """A function marked to be compiled; made by `compiled`."""

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any] | None = None) -> None:
        self.function = function
        self.options = dict(options or {})
        update_wrapper(self, function, updated=())

    def __reduce__(self) -> Any:
        return Compiled, (self.function, self.options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = made(self, "itself", lambda numba: numba.njit(**self.options)(self.function))
        try:
            return call(*args, **kwargs)
        except Exception as error:
            if type(error).__module__.startswith("numba"):
                raise _not_compiled(self, error) from None
            raise

    def __repr__(self) -> str:
        return f"od.compiled({self.function.__name__})"


def compiled(function: Any) -> Compiled:
    """Mark a simulator, summary or distance to be compiled by Numba (`pip install "onedraw[numba]"`).

    A simulator is `function(rng, **parameters)` and draws one pseudo-sample: a number, an array, or a few numbers in a
    tuple or list. It must use only the Python that Numba supports: numbers, arrays, loops, and some methods of `rng`.
    Without the decorator the same function is a plain simulator. Debug it in this form: compiled code
    does not check that an index lies inside its array. Discrete parameters are integers. An exception, or a result
    that is not finite, is a failed simulation.

    A summary takes one data set and gives a number or numbers. A distance takes two summaries, the simulated one
    and the observed one, and gives a number. If the summary is not compiled, data sets must all have the shape of
    the observed one. What a function reads of its module is read once, when it is compiled; functions that it calls
    must be compiled, by `numba.njit`.

    `workers=N` are threads then, since compiled code runs side by side in one process.

    >>> @compiled
    ... def simulate(rng, rate):
    ...     waiting, events = rng.standard_exponential() / rate, 0
    ...     while waiting < 1.0:
    ...         events += 1
    ...         waiting += rng.standard_exponential() / rate
    ...     return events
    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(rate=stats.expon(scale=4.0)), simulate, observed=3)
    >>> post = od.rejection(model, od.uniform(0.5), draws=1000, seed=1)
    >>> bool(abs(post.summary()["rate"].mean - 3.2) < 0.2)
    True
    """
    if isinstance(function, Compiled):
        return function
    options: dict[str, Any] = {}
    if hasattr(function, "py_func"):
        options = {name: value for name, value in function.targetoptions.items() if name != "nopython"}
        function = function.py_func
    if not inspect.isfunction(function):
        raise ValueError(f"od.compiled marks a Python function that draws one data set per call, got {function!r}")
    if options.get("parallel"):
        raise ValueError(
            f"{function.__name__} is compiled with parallel=True: its threads would share one random stream; leave it "
            "out, and give the sampler workers="
        )
    if find_spec("numba") is None:
        raise ValueError(MISSING)
    return Compiled(function, options)


class LoopReport(NamedTuple):
    """What a loop says of its pseudo-samples: how many failed, and the first of these."""

    failed: int
    row: int
    pseudo_sample: int
    code: int
    error: Exception | None = None
    """What the first raised that was not guarded."""
    ignored_rng: bool = False

    @property
    def raised(self) -> Exception | None:
        """What the first that failed has raised."""
        return self.error if self.code == RAISED else None

    def message(self, shape: tuple[int, ...]) -> str:
        """What went wrong with the first that failed."""
        if self.raised is not None:
            return f"{type(self.raised).__name__}: {self.raised}"
        if self.code == NO_DISTANCE:
            return "the distance is nan: it must give one number of at least 0 for each simulation"
        return "the output is not finite" if self.code == NOT_FINITE else f"the output does not have shape {shape}"


def chains_per_block(chains: int) -> int:
    """Chains per block, by the number of chains of the run.

    >>> [chains_per_block(chains) for chains in (100, 1024, 8192, 100_000)]
    [256, 256, 2048, 4096]
    """
    return min(MOST_CHAINS, max(FEWEST_CHAINS, -(-chains // SHARES)))


def draw_rows(recipe: Any, rng: Rng, theta: Array, draws: int, chunk: int, watch: bool) -> tuple[Array, LoopReport]:
    """M pseudo-samples at each row of theta: summaries (n, M, s) if the summary is compiled, otherwise data."""
    layout = drawn_layout(recipe)
    rows = np.empty((len(theta), draws, layout.size))
    key = ("rows", *simulator_key(recipe))

    def loop(careful: bool) -> Any:
        return made(recipe.simulator, (*key, careful), lambda numba: _rows_loop(numba, recipe, careful))

    return rows, _run(loop, rng, chunk, watch, (_columns(theta), draws, rows))


def drawn_layout(recipe: Any) -> Any:
    """The layout of what `draw_rows` returns."""
    if recipe.summary is None or isinstance(recipe.summary, Compiled):
        return recipe.layout
    if recipe.raw is None:
        raise ValueError(
            "the observed data are not one array of numbers, and a compiled simulator's are: give observed= in the "
            "form that the simulator returns"
        )
    return recipe.raw


class Averages(NamedTuple):
    """Log averages of the kernel (n,), with distances (n, M) and summaries (n, M, s) if they were asked for."""

    log_estimate: Array
    distances: Array
    rows: Array
    report: LoopReport


def fusible(model: Any, kernel: Any) -> bool:
    """Whether summary, distance and kernel can all be part of the compiled loop."""
    return (
        isinstance(model.simulate, Compiled)
        and (model.summary is None or isinstance(model.summary, Compiled))
        # A subclass may compute something else.
        and (isinstance(model.distance, Compiled) or "formula" in vars(type(model.distance)))
        and kernel.formula in PROFILES
    )


def averages(
    model: Any, kernel: Any, rng: Rng, theta: Array, draws: int, chunk: int, distances: bool, rows: bool
) -> Averages:
    """The mean of K over M pseudo-samples at each row of theta, drawn and compared in one loop."""
    recipe, n = model.recipe, len(theta)
    formula, own, extra = distance_in_loops(model)
    key = ("average", *simulator_key(recipe), formula, own)
    result = Averages(
        np.empty(n),
        np.empty((n, draws)) if distances else NO_DISTANCES,
        np.empty((n, draws, recipe.layout.size)) if rows else NO_ROWS,
        LoopReport(0, 0, 0, FINE),
    )

    def loop(careful: bool) -> Any:
        return made(
            recipe.simulator, (*key, careful), lambda numba: _average_loop(numba, recipe, formula, own, careful)
        )

    given = (
        _columns(theta), draws, fixed(model.observed_row), extra, PROFILES.index(kernel.formula), kernel.indicator,
        float(kernel.eps), float(kernel.support), *result[:3], np.empty(recipe.layout.size), np.zeros(4, np.int64),
    )  # fmt: skip
    watch = rng.first == 0 and rng.step == 0 and chunk == 0
    report = _run(loop, rng, chunk, watch, given)
    if report.code == BAD_DISTANCE:
        refuse_distance(own, recipe.prior.named(theta[report.row]))
    return result._replace(report=report)


def refuse_distance(own: Compiled | None, place: Mapping[str, Any]) -> None:
    """A ValueError for a user's distance that is not one."""
    raise ValueError(f"{own!r} as distance gave a negative number or NaN at {place}: it must be at least 0 and not NaN")


def distances_of(distance: Compiled, layout: Any, rows: Array, observed: Array) -> Array:
    """Distances (n,) of summaries (n, s) from the observed one (s,), by a compiled distance."""
    key = ("distances", layout)
    loop = made(distance, key, lambda numba: _distances_loop(numba, distance, layout))
    result = np.empty(len(rows))
    loop(fixed(rows), fixed(observed), result)
    return result


def moved_particles(
    function: Compiled, prior: Any, rng: np.random.Generator, x: Array, theta: Array, time: int
) -> Array:
    """States (n, N) or (n, N, k) one time later, each particle moved by itself; theta is (n, dim)."""
    if x.ndim > 3:
        raise ValueError(f"states have shape {x.shape[2:]}: a compiled transition moves numbers, or arrays (k,)")
    key = ("transition", prior.layout, tuple(prior.discrete.tolist()), x.ndim)
    loop = made(function, key, lambda numba: _transition_loop(numba, function, prior, x.ndim))
    moved = np.empty(x.shape)
    # The time is one more whole number behind the parameters.
    given = _columns(np.column_stack([theta, np.full(len(theta), float(time))]))
    # A transition may write to the state that it is given.
    with words_of(rng) as words:
        loop(words, given, np.array(x, order="C"), moved)
    return moved


def _transition_loop(numba: Any, function: Compiled, prior: Any, axes: int) -> Any:
    """(words, theta, x, moved): all particles of all filters."""
    from onedraw.engines.numba_streams import stream

    move = inlined(function.function, **function.options)
    given = _parameters(list(inspect.signature(function).parameters.values())[2:], prior, time=True)
    number = numba.float64
    if axes == 2:

        def loop(words, theta, x, moved):  # type: ignore[no-untyped-def]
            rng = stream(words)
            for i in range(x.shape[0]):
                for j in range(x.shape[1]):
                    moved[i, j] = move(rng, x[i, j], *given(theta, i))

        states = number[:, ::1]
    else:

        def loop(words, theta, x, moved):  # type: ignore[no-untyped-def]
            rng, width = stream(words), x.shape[2]
            for i in range(x.shape[0]):
                for j in range(x.shape[1]):
                    value = move(rng, x[i, j], *given(theta, i))
                    if len(value) != width:
                        raise ValueError("the new state does not have the length of the old one")
                    for k in range(width):
                        moved[i, j, k] = value[k]

        states = number[:, :, ::1]
    try:
        return compiled_loop(numba, loop, states, states)
    except Exception as error:
        raise _not_compiled(function, error) from None


def _run(loop: Callable[[bool], Any], rng: Rng, chunk: int, watch: bool, given: tuple[Any, ...]) -> LoopReport:
    """Draw a chunk; if something is raised, once more with each pseudo-sample guarded."""
    quick = loop(False)
    words = rng.words(Purpose.SIMULATE, chunk)
    before = words.copy() if watch else None
    raised: Exception | None = None
    try:
        found = quick(words, *given)
    except Exception as error:
        raised = error
        found = loop(True)(rng.words(Purpose.SIMULATE, chunk), *given)
    ignored = before is not None and np.array_equal(before, words)
    failed, row, pseudo_sample, code = found
    return LoopReport(failed, row, pseudo_sample, code, raised, bool(ignored))


def _columns(theta: Array) -> Array:
    """Theta as (dim, n) of one type, for which one loop is compiled."""
    columns = np.ascontiguousarray(theta.T)
    columns.flags.writeable = False
    return columns


_loops: "weakref.WeakKeyDictionary[Compiled, dict[Any, Any]]" = weakref.WeakKeyDictionary()
_lock = threading.RLock()


def made(owner: Compiled, key: Any, make: Callable[[Any], Any]) -> Any:
    """What was compiled for a marked function before, or is now."""
    known = _loops.get(owner)
    found = None if known is None else known.get(key)
    if found is not None:
        return found
    with _lock:
        known = _loops.setdefault(owner, {})
        if key not in known:
            known[key] = make(numba_module())
        return known[key]


def numba_module() -> Any:
    try:
        import numba
    except ImportError as error:
        raise ValueError(MISSING) from error
    return numba


def simulator_key(recipe: Any) -> tuple[Any, ...]:
    """What of a recipe goes into a loop, besides the simulator."""
    summary = recipe.summary if isinstance(recipe.summary, Compiled) else None
    return recipe.prior.layout, tuple(recipe.prior.discrete.tolist()), summary, drawn_layout(recipe)


def _parameters(taken: list[inspect.Parameter], prior: Any, time: bool = False) -> Any:
    """(theta, i) -> the tuple of what a function is given of theta[:, i], in its own order.

    With `time`, an argument `t` is the whole number behind the parameters, unless the prior has a `t`.
    """
    names, layout = list(prior.names), prior.layout
    place_of = {name: (layout.slices()[k], layout.shapes[k] != ()) for k, name in enumerate(names)}
    if time and "t" not in names:
        place_of["t"] = slice(layout.size, layout.size + 1), False
    last = max(place for place, one in enumerate(taken) if one.name in place_of)
    parts = []
    for one in taken[: last + 1]:
        if one.name not in place_of:
            parts.append(_fixed_part(one.default))
            continue
        columns, vector = place_of[one.name]
        whole = columns.start == layout.size or bool(prior.discrete[columns.start])
        parts.append(_part(columns, vector, whole))
    together = parts[0]
    for part in parts[1:]:
        together = _end_to_end(together, part)
    return together


def inlined(function: Callable[..., Any], **options: Any) -> Any:
    """A function that only compiled code calls, for which Numba then makes no form that Python can call."""
    made_for: Any = numba_module().njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)
    return made_for(function)


def _fixed_part(fixed: Any) -> Any:
    """(theta, i) -> a tuple of one: a default that stands before a parameter."""
    return inlined(lambda theta, i: (fixed,))


def _part(columns: slice, vector: bool, discrete: bool) -> Any:
    """(theta, i) -> a tuple of one: the parameter in these columns, an array of its own if it is a vector."""
    k, end = columns.start, columns.stop
    if vector:
        kind = np.int64 if discrete else np.float64
        return inlined(lambda theta, i: (theta[k:end, i].astype(kind),))
    return inlined((lambda theta, i: (int(theta[k, i]),)) if discrete else (lambda theta, i: (theta[k, i],)))


def _end_to_end(first: Any, second: Any) -> Any:
    return inlined(lambda theta, i: first(theta, i) + second(theta, i))


def array_type(numba: Any, dimensions: int, writable: bool = False) -> Any:
    """The type of arrays of numbers."""
    return numba.types.Array(numba.float64, dimensions, "C", readonly=not writable)


def _attempt(recipe: Any, careful: bool) -> Any:
    """(rng, theta, i, row) -> code: one pseudo-sample at theta[:, i], flat in `row`."""
    key = ("attempt", *simulator_key(recipe), careful)
    return made(recipe.simulator, key, lambda numba: _new_attempt(numba, recipe, careful))


def _new_attempt(numba: Any, recipe: Any, careful: bool) -> Any:
    if careful:
        bare = _attempt(recipe, False)

        @inlined
        def guarded(rng, theta, i, row):  # type: ignore[no-untyped-def]
            code = RAISED
            try:
                code = bare(rng, theta, i, row)
            except Exception:
                code = RAISED
            return code

        return guarded
    from onedraw.engines.numba_streams import STREAM

    simulator, summary = recipe.simulator, recipe.summary
    draw = inlined(simulator.function, **{**simulator.options, "forceinline": True})
    given = _parameters(list(inspect.signature(simulator).parameters.values())[1:], recipe.prior)
    types = (STREAM, array_type(numba, 2), numba.int64)
    one, owner = inlined(lambda rng, theta, i: draw(rng, *given(theta, i)), forceinline=True), simulator
    returned = _returned(numba, owner, one, types)
    if isinstance(summary, Compiled):
        shorten = inlined(summary.function, **summary.options)
        data, owner = one, summary
        one = inlined(lambda rng, theta, i: shorten(data(rng, theta, i)))
        returned = _returned(numba, owner, one, types)
    layout = drawn_layout(recipe)
    put, width = _put(numba, returned, layout, owner), layout.size

    @partial(inlined, forceinline=True)
    def attempt(rng, theta, i, row):  # type: ignore[no-untyped-def]
        if not put(row, one(rng, theta, i)):
            return WRONG_SHAPE
        for k in range(width):
            if not math.isfinite(row[k]):
                return NOT_FINITE
        return FINE

    if not isinstance(returned, numba.types.Number | numba.types.Boolean):
        # Loops count no references, and neither does what is compiled for them; arrays and lists need them.
        attempt.compile((*types, array_type(numba, 1, writable=True)))
    return attempt


def _returned(numba: Any, owner: Compiled, function: Any, arguments: tuple[Any, ...]) -> Any:
    """The type that a compiled function gives for arguments of these types."""
    try:
        function.compile(arguments)
    except Exception as error:
        raise _not_compiled(owner, error) from None
    return function.overloads[arguments].signature.return_type


def _not_compiled(owner: Compiled, error: Exception) -> ValueError:
    """What Numba says, in few lines."""
    lines: list[str] = []
    quoting = False
    for line in re.sub(r"\x1b\[[0-9;]*m", "", str(error)).splitlines():
        bare = line.strip().removeprefix("- ")
        if re.match(r'File "', bare):
            quoting = True
        elif quoting:
            quoting = bare != "^"
        elif bare and not re.match(r"(During|Failed in|>>>|\^|\[?[0-9]+\] )", bare) and bare not in lines:
            lines.append(bare)
    said = " ".join(lines[:4])
    said = said if len(said) <= 400 else f"{said[:400]} ..."
    return ValueError(
        f"{owner!r} cannot be compiled. Numba says: {said or type(error).__name__}\nWrite it in the Python that Numba "
        "knows (numbers, arrays, loops, methods of rng such as rng.normal; called functions marked numba.njit), or "
        "leave out od.compiled: the same function is a plain simulator, summary or distance"
    )


def _put(numba: Any, returned: Any, layout: Any, owner: Any) -> Any:
    """(row, value) -> bool: writes a value of this type into a flat row; False if its shape is not the layout's."""
    types = numba.types
    if layout.keys is not None:
        raise ValueError(f"{owner!r} is to be compared with a dict: give observed= as a number or an array")
    (shape,) = layout.shapes
    number = (types.Integer, types.Float, types.Boolean)
    size = layout.size
    if isinstance(returned, number) and size == 1 and len(shape) <= 1:

        @inlined
        def put(row, value):  # type: ignore[no-untyped-def]
            row[0] = value
            return True

    elif isinstance(returned, types.Array) and isinstance(returned.dtype, number) and returned.ndim == len(shape) > 0:

        @inlined
        def put(row, value):  # type: ignore[no-untyped-def]
            if value.shape != shape:
                return False
            for k, one in enumerate(value.flat):
                row[k] = one
            return True

    elif isinstance(returned, types.Array) and isinstance(returned.dtype, number) and size == 1 and len(shape) <= 1:

        @inlined
        def put(row, value):  # type: ignore[no-untyped-def]
            if value.size != 1:
                return False
            for one in value.flat:
                row[0] = one
            return True

    elif isinstance(returned, types.List) and isinstance(returned.dtype, number) and len(shape) == 1:

        @inlined
        def put(row, value):  # type: ignore[no-untyped-def]
            if len(value) != size:
                return False
            for k in range(size):
                row[k] = value[k]
            return True

    elif (
        isinstance(returned, types.BaseTuple)
        and all(isinstance(one, number) for one in returned)
        and shape == (len(returned),)
    ):
        unroll = numba.literal_unroll

        @inlined
        def put(row, value):  # type: ignore[no-untyped-def]
            k = 0
            for one in unroll(value):
                row[k] = one
                k += 1  # noqa: SIM113
            return True

    elif isinstance(returned, types.DictType):
        raise ValueError(f"{owner!r} returns a dict: return one number or one array, and give observed= in that form")
    else:
        raise ValueError(
            f"{owner!r} returns {returned}, and the observed data give "
            f"{'a number' if shape == () else f'an array of shape {shape}'}: on every path it must return numbers in "
            "that form"
        )
    return put


def distance_in_loops(model: Any) -> tuple[str, Compiled | None, Array]:
    """The name of a distance's function here, the user's own function, and what it has learnt (k, s)."""
    if isinstance(model.distance, Compiled):
        return "own", model.distance, NOTHING
    name, array, _ = model.distance.formula
    if name == "euclidean" and model.observed_row.size == 1:
        name = "absolute"
    return f"_{name}", None, NOTHING if array is None else fixed(array)


def fixed(value: Array) -> Array:
    """An array in the one form for which loops are compiled; one that was pickled may be written to, for instance."""
    array = np.ascontiguousarray(value).view()
    array.flags.writeable = False
    return array


# The formulas of the distances, for two flat summaries.


def _absolute(row: Array, observed: Array, extra: Array) -> float:
    return abs(row[0] - observed[0])


def _euclidean(row: Array, observed: Array, extra: Array) -> float:
    total = 0.0
    for k in range(row.size):
        difference = row[k] - observed[k]
        total += difference * difference
    return math.sqrt(total)


def _scaled(row: Array, observed: Array, extra: Array) -> float:
    if row.size == 1:
        return abs(row[0] / extra[0, 0] - observed[0] / extra[0, 0])
    total = 0.0
    for k in range(row.size):
        difference = row[k] / extra[0, k] - observed[k] / extra[0, k]
        total += difference * difference
    return math.sqrt(total)


def _robust(row: Array, observed: Array, extra: Array) -> float:
    total = 0.0
    for k in range(row.size):
        total += abs(row[k] - observed[k]) / extra[0, k]
    return total


def _mahalanobis(row: Array, observed: Array, extra: Array) -> float:
    total = 0.0
    for j in range(row.size):
        whitened = 0.0
        for k in range(row.size):
            whitened += (row[k] - observed[k]) * extra[j, k]
        total += whitened * whitened
    return math.sqrt(total)


def _log_kernel(kind: int, u: float) -> float:
    """log K(u) of the built-in kernels inside their support."""
    if kind == GAUSSIAN:
        return -0.5 * u * u
    if kind == EPANECHNIKOV:
        return math.log1p(-u * u)
    if kind == TRIANGULAR:
        return math.log1p(-u)
    return -u if kind == LAPLACE else 0.0


@cache
def built_in(function: Callable[..., Any]) -> Any:
    """A function of these modules, compiled once for all loops."""
    return inlined(function, error_model="numpy")


def _own_distance(numba: Any, own: Compiled, layout: Any) -> Any:
    """The user's distance as a function of flat summaries, with the arguments of the built-in ones."""
    if layout.keys is not None:
        raise ValueError(f"{own!r} as distance is to compare dicts: give observed= as a number or an array")
    (shape,) = layout.shapes
    compare = inlined(own.function, **own.options)
    if shape == ():
        function = inlined(lambda row, observed, extra: compare(row[0], observed[0]))
    elif len(shape) == 1:
        function = inlined(lambda row, observed, extra: compare(row, observed))
    else:
        function = inlined(lambda row, observed, extra: compare(row.reshape(shape), observed.reshape(shape)))
    arguments = (array_type(numba, 1, writable=True), array_type(numba, 1), array_type(numba, 2))
    returned = _returned(numba, own, function, arguments)
    if not isinstance(returned, numba.types.Integer | numba.types.Float | numba.types.Boolean):
        raise ValueError(f"{own!r} as distance returns {returned}: it must give one number of at least 0")
    return function


def _guarded(distance: Any) -> Any:
    """A distance that is -inf where the user's raises."""

    @inlined
    def guarded(row, observed, extra):  # type: ignore[no-untyped-def]
        apart = -np.inf
        try:
            apart = float(distance(row, observed, extra))
        except Exception:
            apart = -np.inf
        return apart

    return guarded


def row_average(recipe: Any, formula: str, own: Compiled | None, careful: bool) -> Any:
    """(rng, theta, i, ...) -> the log average at theta[:, i], which all loops of averages share."""
    key = ("row", *simulator_key(recipe), formula, own, careful)
    return made(recipe.simulator, key, lambda numba: _new_row_average(numba, recipe, formula, own, careful))


def _new_row_average(numba: Any, recipe: Any, formula: str, own: Compiled | None, careful: bool) -> Any:
    measured = _measured(numba, recipe, formula, own, careful)
    log_kernel = built_in(_log_kernel)
    width, infinity = recipe.layout.size, math.inf

    @partial(inlined, error_model="numpy", _nrt=False, forceinline=True)
    def average(  # type: ignore[no-untyped-def]
        rng, theta, i, draws, observed, extra, profile, indicator, eps, support, distances, rows, place, row, noted
    ):
        keep_distances, keep_rows = distances.size > 0, rows.size > 0
        if indicator and not keep_rows:
            hits = 0
            for m in range(draws):
                apart = measured(rng, theta, i, m, observed, extra, row, noted)
                if keep_distances:
                    distances[place, m] = apart
                hits += apart < eps
            if 0 < hits < draws:
                return math.log(hits / draws)
            return 0.0 if hits > 0 else -infinity
        # The sum of K so far is total * exp(largest).
        largest, total = -infinity, 0.0
        for m in range(draws):
            failed = noted[0]
            apart = measured(rng, theta, i, m, observed, extra, row, noted)
            if keep_distances:
                distances[place, m] = apart
            if keep_rows:
                for k in range(width):
                    rows[place, m, k] = row[k] if noted[0] == failed else np.nan
            scaled = apart / eps
            if apart < eps if indicator else scaled < support:
                log_weight = 0.0 if indicator else log_kernel(profile, scaled)
                if log_weight <= largest:
                    if log_weight > -infinity:
                        total += math.exp(log_weight - largest)
                else:
                    total = total * math.exp(largest - log_weight) + 1.0
                    largest = log_weight
        return math.log(total / draws) + largest if total > 0.0 else -infinity

    return average


def _measured(numba: Any, recipe: Any, formula: str, own: Compiled | None, careful: bool) -> Any:
    """(rng, theta, i, ...) -> the distance of one pseudo-sample, inf if it failed.

    `noted` is what a LoopReport says, and is written to only if something fails: the number of failures so far, and
    row, pseudo-sample and code of the first.
    """
    attempt = _attempt(recipe, careful)
    distance = built_in(globals()[formula]) if own is None else _own_distance(numba, own, recipe.layout)
    if own is not None and careful:
        distance = _guarded(distance)
    users, infinity = own is not None, math.inf

    @partial(inlined, error_model="numpy", _nrt=False, forceinline=True)
    def measured(rng, theta, i, m, observed, extra, row, noted):  # type: ignore[no-untyped-def]
        code = attempt(rng, theta, i, row)
        if code == FINE:
            apart = distance(row, observed, extra)
            if not users or apart >= 0.0:
                return apart
            if careful and apart == -infinity:
                code = RAISED
            elif apart < 0.0:
                noted[1], noted[2], noted[3] = i, m, BAD_DISTANCE
                return infinity
            else:
                code = NO_DISTANCE
        if noted[0] == 0:
            noted[1], noted[2], noted[3] = i, m, code
        noted[0] += 1
        return infinity

    return measured


def _average_loop(numba: Any, recipe: Any, formula: str, own: Compiled | None, careful: bool) -> Any:
    """The loop over rows and draws that returns log averages."""
    from onedraw.engines.numba_streams import stream

    average = row_average(recipe, formula, own, careful)

    def loop(  # type: ignore[no-untyped-def]
        words, theta, draws, observed, extra, profile, indicator, eps, support, log_estimate, distances, rows, row,
        noted,
    ):  # fmt: skip
        rng = stream(words)
        for k in range(4):
            noted[k] = 0
        for i in range(theta.shape[1]):
            log_estimate[i] = average(
                rng, theta, i, draws, observed, extra, profile, indicator, eps, support, distances, rows, i, row, noted
            )
            if noted[3] == BAD_DISTANCE:
                break
        return noted[0], noted[1], noted[2], noted[3]

    return compiled_loop(
        numba, loop, numba.int64, array_type(numba, 1), array_type(numba, 2), numba.int64, numba.boolean,
        numba.float64, numba.float64, array_type(numba, 1, True), array_type(numba, 2, True),
        array_type(numba, 3, True), array_type(numba, 1, True), numba.int64[::1], _nrt=False,
    )  # fmt: skip


def _rows_loop(numba: Any, recipe: Any, careful: bool) -> Any:
    """The loop over rows and draws that returns what was drawn."""
    from onedraw.engines.numba_streams import stream

    attempt = _attempt(recipe, careful)

    def loop(words, theta, draws, rows):  # type: ignore[no-untyped-def]
        rng = stream(words)
        failed, first_row, first_draw, first_code = 0, 0, 0, FINE
        for i in range(theta.shape[1]):
            for m in range(draws):
                code = attempt(rng, theta, i, rows[i, m])
                if code != FINE:
                    rows[i, m] = np.nan
                    if failed == 0:
                        first_row, first_draw, first_code = i, m, code
                    failed += 1
        return failed, first_row, first_draw, first_code

    return compiled_loop(numba, loop, numba.int64, array_type(numba, 3, True))


def compiled_loop(numba: Any, loop: Any, *given: Any, **options: Any) -> Any:
    """A loop whose first argument is the state of its stream, and the second theta or something like it."""
    given = (numba.uint64[::1], array_type(numba, 2), *given)
    return numba.njit(given, nogil=True, error_model="numpy", no_cfunc_wrapper=True, **options)(loop)


def _distances_loop(numba: Any, distance: Compiled, layout: Any) -> Any:
    compare = _own_distance(numba, distance, layout)

    def loop(rows, observed, result):  # type: ignore[no-untyped-def]
        row = np.empty(rows.shape[1])
        for i in range(rows.shape[0]):
            row[:] = rows[i]
            result[i] = compare(row, observed, row.reshape(1, -1))
        return 0

    one, two = array_type(numba, 1), array_type(numba, 2)
    return numba.njit((two, one, array_type(numba, 1, True)), nogil=True, error_model="numpy")(loop)
