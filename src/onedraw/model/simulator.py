"""Simulators: plain, batched, compiled or staged, all run through `simulate_rows`, the one calling form.

A plain simulator draws one pseudo-sample per call and has a random stream for each, named by (chain, step,
pseudo-sample), so that any of them can be run again alone. A batched one draws a pseudo-sample for each row of its
parameter arrays from one stream. A staged one prepares once for a theta and then draws as many as are asked for.
"""

import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, NamedTuple

import numpy as np

from onedraw.cost import Cost
from onedraw.engines.arrays import Array, DeviceParts
from onedraw.engines.children import NoRoom, apart, kept_apart
from onedraw.engines.clock import limited, look
from onedraw.engines.numba import NOT_FINITE, Compiled, LoopReport, draw_rows, drawn_layout
from onedraw.engines.streams import Purpose, Rng
from onedraw.failures import FAULTS, Failure, SimulationError, in_words, told
from onedraw.model.first_simulation import LOOKS, QUICK, FirstSimulation, is_first, left_to_look_at, listener
from onedraw.model.layout import Layout
from onedraw.model.prior import Prior

CHUNK_ROWS = 32_768
"""Rows handed to a batched simulator at once: few enough for the cache, many enough to drown the call overhead."""
CHUNK_VALUES = 4_194_304
"""Numbers a chunk may hold at once (32 MiB), so that wide data sets are cut finer."""

NOT_FINITE_OUTPUT = "the output is not finite"
SCALARS = (float, int, np.float64)
"""Results that need no look at their shape."""


class Batched:
    """A function marked as working on batches: parameters are arrays (n,), vectors (n, size), results have n rows."""

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function) or isinstance(function, Compiled):
            raise ValueError(f"od.batched marks a function of arrays, got {function!r}")
        self.function = function
        update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


@dataclass(frozen=True)
class Staged:
    """A simulator in two stages; made by `staged`."""

    prepare: Callable[..., Any]
    draw: Callable[..., Any]

    def both(self, rng: np.random.Generator, m: int, parameters: dict[str, Any]) -> Any:
        """Prepare for a theta, and draw m pseudo-samples."""
        return self.draw(rng, self.prepare(**parameters), m)


@dataclass(frozen=True, eq=False)
class JaxSimulator:
    """A simulator for the JAX engine; made by `jax_simulator`."""

    function: Callable[..., Any]
    own_keys: bool = False
    """Whether it calls functions that take no other keys than JAX's own."""
    engine: Any = None
    """The engine that a run has chosen."""
    device_parts = DeviceParts(numbers=("function",), fixed=("own_keys", "engine"))


def batched(function: Callable[..., Any]) -> Batched:
    """Mark a simulator, summary or distance as working on batches.

    A batched simulator receives each parameter as a read-only array of length n (a vector as (n, size)) and returns n
    rows. It returns NaN for rows that cannot be simulated. An exception stops the run, since the row that caused it
    is unknown.

    >>> @batched
    ... def simulate(rng, mu, sigma):
    ...     return rng.normal(mu[:, None], sigma[:, None], size=(mu.size, 50))
    """
    return Batched(function)


def staged(prepare: Callable[..., Any], draw: Callable[..., Any]) -> Staged:
    """A simulator whose set-up is needed only once per theta.

    `prepare(**parameters) -> state` does the expensive part; `draw(rng, state, m) -> m rows` draws pseudo-samples.

    >>> def prepare(scale):
    ...     return np.linalg.cholesky(scale * np.eye(3))
    >>> def draw(rng, root, m):
    ...     return rng.standard_normal((m, 3)) @ root.T
    >>> simulator = staged(prepare, draw)
    """
    for name, function in (("prepare", prepare), ("draw", draw)):
        if not callable(function):
            raise ValueError(f"{name} must be a function, got {function!r}")
        if isinstance(function, Compiled):
            raise ValueError(
                f"{name} is {function!r}, and od.staged calls its stages from Python: mark it numba.njit instead, or "
                "write both stages as one od.compiled simulator"
            )
    return Staged(prepare, draw)


def jax_simulator(function: Callable[..., Any]) -> JaxSimulator:
    """A simulator written with JAX: `function(key, **parameters)` draws one pseudo-sample.

    onedraw maps it over chains and pseudo-samples and compiles whole steps, for a CPU or a GPU (the extra `jax`). The
    parameters are scalars, or arrays if they are vectors; use the key for one draw only
    (`jax.random.split` gives more). Summary and distance must then be written with `jax.numpy` too. A
    simulation that fails returns NaN.

    If a constant of the simulator changes from run to run, `jax.tree_util.Partial(function, constant=...)` saves
    compiling it again.

    >>> import jax
    >>> simulator = jax_simulator(lambda key, mu: mu + jax.random.normal(key, (50,)))
    """
    if not callable(function):
        raise ValueError(f"od.jax_simulator takes a function(key, **parameters), got {function!r}")
    return JaxSimulator(function)


class Simulated(NamedTuple):
    """What `simulate_rows` returns for n rows of theta and M pseudo-samples each."""

    rows: Array
    """Summaries (n, M, s); NaN if the simulation failed."""
    cost: Cost
    failures: tuple[Failure, ...] = ()
    """The first failure only: the count is in `cost`."""
    ignored_rng: bool = False


class Recipe(NamedTuple):
    """How a model's pseudo-samples are made: what `simulate_rows` needs of a Model."""

    prior: Prior
    simulator: Any
    summary: Callable[..., Any] | None
    layout: Layout
    """Of the summary, or of the data if there is no summary."""
    width: int
    """Numbers in one raw data set, by which chunks are cut."""
    raw: Layout | None = None
    """Of the data if they are one array, which a compiled simulator fills before a summary in Python reads it."""

    def compared(self) -> str:
        """A word for what is compared with the data's."""
        return "output" if self.summary is None else "summary"


def simulate_rows(
    recipe: Recipe,
    rng: Rng,
    theta: Array,
    index: Array | None = None,
    pseudo_samples: int = 1,
    first_pseudo_sample: int = 0,
    chunk: int = 0,
    on_error: str = "reject",
) -> Simulated:
    """Summaries of M pseudo-samples at each row of theta (n, dim).

    `index` (n,) are the rows' places in their block (None: they are the whole block), which name the streams of
    plain and staged simulators; `chunk` names that of a batched one.
    """
    look()
    shape = (len(theta), pseudo_samples, recipe.layout.size)
    watch = rng.step == 0 and rng.first == 0 and chunk == 0 and first_pseudo_sample == 0
    first = watch and is_first()
    began = time.perf_counter() if first else 0.0
    batched = isinstance(recipe.simulator, Batched)
    # A batched simulator's rows have places if one of them fails.
    places: Any = range(len(theta)) if index is None else index if batched else index.tolist()
    if not batched and isinstance(recipe.simulator, Compiled):
        found = _compiled_rows(recipe, rng, theta, places, shape, first_pseudo_sample, chunk, on_error, watch)
        return _with_first(recipe, rng, theta, index, found, began) if first else found
    setups = surplus = 0
    failures: list[Failure] = []
    ignored_rng = False
    if batched:
        rows, ignored_rng, fault = _batched_rows(recipe, rng, theta, shape, chunk, watch)
        if fault is not None:
            row, m = divmod(fault.row, pseudo_samples)
            m += first_pseudo_sample
            note_failure(recipe, rng, theta[row], int(places[row]), m, fault.error, failures, on_error)
    elif isinstance(recipe.simulator, JaxSimulator):
        from onedraw.engines import jax as device

        chunk = chunk << 16 | first_pseudo_sample
        rows, surplus = device.simulate_rows(recipe, rng, theta, pseudo_samples, chunk)
    elif isinstance(recipe.simulator, Staged):
        setups = len(theta)
        rows, surplus = _staged_rows(recipe, rng, theta, places, shape, first_pseudo_sample, failures, on_error, first)
    else:
        rows, used, surplus = _plain_rows(
            recipe, rng, theta, places, shape, first_pseudo_sample, failures, on_error, watch, first
        )
        ignored_rng = not used
    failed = 0
    finite = np.isfinite(rows)
    if np.count_nonzero(finite) < finite.size:
        bad = ~finite.all(axis=2)
        failed = int(bad.sum())
        rows[bad] = np.nan
        if not failures:
            row, m = (int(k) for k in np.argwhere(bad)[0])
            where = int(places[row]), first_pseudo_sample + m
            failures.append(_failure(recipe, rng, theta[row], *where, NOT_FINITE_OUTPUT))
            if on_error == "raise":
                raise SimulationError(f"simulation failed {failures[0]}")
    cost = Cost(shape[0] * pseudo_samples, setups, failed=failed, surplus=surplus)
    found = Simulated(rows, cost, tuple(failures), ignored_rng)
    together = first and (batched or isinstance(recipe.simulator, JaxSimulator))
    return _with_first(recipe, rng, theta, index, found, began) if together else found


def _with_first(
    recipe: Recipe, rng: Rng, theta: Array, index: Array | None, found: Simulated, began: float
) -> Simulated:
    """The first simulations of a run, made together, after the listener was told of them."""
    seconds = time.perf_counter() - began
    surplus = _tell_of_first(recipe, rng, theta, index, found.rows, seconds, not found.ignored_rng, found.failures)
    return found._replace(cost=found.cost._replace(surplus=found.cost.surplus + surplus))


def _tell_of_first(
    recipe: Recipe,
    rng: Rng,
    theta: Array,
    index: Array | None,
    rows: Array,
    seconds: float,
    used: bool,
    failures: Sequence[Failure],
) -> int:
    """Tell the listener of the first simulations (n, M, s) of a run; how many were repeated for that."""
    ears, (n, draws, _) = listener(), rows.shape
    if ears is None:
        return 0
    same, again = None, 0
    finite = np.isfinite(rows).all()
    if not failures and finite and seconds <= QUICK and n * draws <= ears.repeat:
        began, again = time.perf_counter(), n * draws
        other = simulate_rows(recipe, rng, theta, index, draws)
        # The first call may have compiled something.
        seconds = min(seconds, time.perf_counter() - began)
        same = np.array_equal(rows, other.rows)
    failed = failures[0].message if failures else "" if finite else NOT_FINITE_OUTPUT
    ears.tell(FirstSimulation(recipe.prior.named(theta[0]), seconds / (n * draws), n * draws, used, same, failed))
    return again


class PlainCall:
    """A plain simulator and its summary, as one call at one theta; prepared once for many of them."""

    def __init__(self, recipe: Recipe) -> None:
        self.simulate, self._flatten = kept_apart(recipe.simulator), recipe.layout.flatten
        self._summary = None if recipe.summary is None else _one_at_a_time(recipe.summary)
        self.one_number = recipe.layout.keys is None and recipe.layout.size == 1
        """Whether a summary is a number; otherwise it is a flat row."""
        self.as_they_are = self.one_number and recipe.summary is None
        """Whether results are numbers that are compared as they are."""

    def summarised(self, value: Any) -> Any:
        """The summary of one data set, as a number or a flat row of its own."""
        if self._summary is not None:
            value = self._summary(value)
        if not self.one_number:
            return self._flatten(value).copy()
        return value if type(value) in SCALARS else self._flatten(value)[0]


def _plain_rows(
    recipe: Recipe,
    rng: Rng,
    theta: Array,
    index: Sequence[int],
    shape: tuple[int, int, int],
    first: int,
    failures: list[Failure],
    on_error: str,
    watch: bool,
    first_of_run: bool,
) -> tuple[Array, bool, int]:
    """Rows (n, M, s), whether the simulator draws from its generator (True unless that is watched), and a surplus."""
    call, single = PlainCall(recipe), rng.single
    simulate, summarised, as_they_are = call.simulate, call.summarised, call.as_they_are
    used = not watch
    missing: Any = np.nan if call.one_number else np.full(shape[2], np.nan)
    # Results wait in a list: after a slow simulation, storing a single one in an array costs ten times its usual price.
    drawn: list[Any] = []
    began, surplus = time.perf_counter(), 0
    looks = min(LOOKS, shape[0] * shape[1]) if first_of_run else 0
    in_time, draws = limited(), range(first, first + shape[1])
    for row, (parameters, place) in enumerate(zip(recipe.prior.rows(theta), index, strict=True)):
        for m in draws:
            if in_time:
                look()
            fault: BaseException | None = None
            try:
                value = simulate(single(place, m), **parameters)
                if not used:
                    used = rng.used()
                drawn.append(value if as_they_are and type(value) in SCALARS else summarised(value))
            except FAULTS as error:
                drawn.append(missing)
                note_failure(recipe, rng, theta[row], place, m, error, failures, on_error)
                used, fault = True, error
            if looks and (m == first or shape[0] == 1):
                looks = left_to_look_at(looks, fault, recipe.prior.named(theta[row]), recipe.compared())
            if first_of_run:
                first_of_run, seconds = False, time.perf_counter() - began
                one = np.array(drawn, dtype=float).reshape(1, 1, -1)
                surplus = _tell_of_first(recipe, rng, theta[:1], np.array([place]), one, seconds, used, failures)
    return np.array(drawn, dtype=float).reshape(shape), used, surplus


def _staged_rows(
    recipe: Recipe,
    rng: Rng,
    theta: Array,
    index: Sequence[int],
    shape: tuple[int, int, int],
    first: int,
    failures: list[Failure],
    on_error: str,
    first_of_run: bool,
) -> tuple[Array, int]:
    """Rows (n, M, s), and a surplus."""
    rows, surplus, looks = np.empty(shape), 0, min(LOOKS, shape[0]) if first_of_run else 0
    began = time.perf_counter()
    both_stages = kept_apart(recipe.simulator.both)
    for row, (parameters, place) in enumerate(zip(recipe.prior.rows(theta), index, strict=True)):
        try:
            drawn = both_stages(rng.single(place, first), shape[1], parameters)
            rows[row], fault = _summaries(recipe, drawn, shape[1])
        except FAULTS as error:
            rows[row], fault = np.nan, Fault(0, error)
        if fault is not None:
            note_failure(recipe, rng, theta[row], place, first + fault.row, fault.error, failures, on_error)
        if looks:
            raised = None if fault is None else fault.error
            looks = left_to_look_at(looks, raised, recipe.prior.named(theta[row]), recipe.compared())
        if first_of_run:
            first_of_run, seconds = False, time.perf_counter() - began
            surplus = _tell_of_first(recipe, rng, theta[:1], np.array([place]), rows[:1], seconds, True, failures)
    return rows, surplus


def _batched_rows(
    recipe: Recipe, rng: Rng, theta: Array, shape: tuple[int, int, int], chunk: int, watch: bool
) -> tuple[Array, bool, "Fault | None"]:
    """Rows (n, M, s), whether the simulator ignored its generator (False unless that is watched), and a fault."""
    repeated = theta if shape[1] == 1 else np.repeat(theta, shape[1], axis=0)
    n = len(repeated)
    generator = rng.bulk(Purpose.SIMULATE, chunk)
    before = generator.bit_generator.state["state"]["state"] if watch else None
    try:
        values = kept_apart(recipe.simulator.function)(generator, **recipe.prior.columns(repeated))
        rows, fault = _summaries(recipe, values, n)
    except FAULTS as error:
        raise SimulationError(
            f"the batched simulator failed on {n} rows of parameters, the first of them "
            f"{in_words(recipe.prior.named(theta[0]))}: {told(error)}. It is not known which row failed: "
            "return NaN for rows that cannot be simulated"
        ) from error
    ignored = before is not None and np.array_equal(before, generator.bit_generator.state["state"]["state"])
    shaped = rows.reshape(shape)
    if not shaped.flags.writeable or np.shares_memory(rows, theta):
        shaped = shaped.copy()
    return shaped, bool(ignored), fault


def _compiled_rows(
    recipe: Recipe,
    rng: Rng,
    theta: Array,
    places: Sequence[int],
    shape: tuple[int, int, int],
    first: int,
    chunk: int,
    on_error: str,
    watch: bool,
) -> Simulated:
    rows, report = draw_rows(recipe, rng, theta, shape[1], chunk, watch)
    failures = loop_failures(recipe, rng, theta, places, first, report, on_error)
    if recipe.summary is not None and not isinstance(recipe.summary, Compiled):
        good = ~np.isnan(rows[:, :, 0])
        values, rows = rows[good], np.full(shape, np.nan)
        fault = None
        try:
            data = drawn_layout(recipe).restore(values)
            if len(data):
                rows[good], fault = _summaries(recipe, data, len(data))
        except FAULTS as error:
            raise SimulationError(
                f"the summary failed on data of a compiled simulator: {told(error)}. Return NaN for "
                "data that cannot be summarised"
            ) from error
        bad = ~np.isfinite(rows).all(axis=2)
        rows[bad] = np.nan
        if np.count_nonzero(bad) > report.failed:
            row, m = (int(k) for k in np.argwhere(bad)[0])
            failed = int(np.count_nonzero(bad))
            if fault is not None and not failures:
                row, m = (int(k) for k in np.argwhere(good)[fault.row])
                noted: list[Failure] = []
                note_failure(recipe, rng, theta[row], places[row], first + m, fault.error, noted, on_error)
                failures = tuple(noted)
            report = LoopReport(failed, row, m, NOT_FINITE, None, report.ignored_rng)
            failures = failures or loop_failures(recipe, rng, theta, places, first, report, on_error)
    return Simulated(rows, Cost(shape[0] * shape[1], failed=report.failed), failures, report.ignored_rng)


def loop_failures(
    recipe: Recipe,
    rng: Rng,
    theta: Array,
    places: Sequence[int] | Array,
    first: int,
    report: LoopReport,
    on_error: str,
) -> tuple[Failure, ...]:
    """The first failure that a compiled loop reports, if there is one."""
    if not report.failed:
        return ()
    layout = drawn_layout(recipe)
    where = int(places[report.row]), first + report.pseudo_sample, report.message(layout.shapes[0])
    failure = _failure(recipe, rng, theta[report.row], *where, report.raised)
    if on_error == "raise":
        raise SimulationError(f"simulation failed {failure}") from report.raised
    return (failure,)


class Fault(NamedTuple):
    """What the user's summary or distance has raised at one of several rows."""

    row: int
    error: BaseException


def one_by_one(function: Callable[[Any], Any], items: Iterable[Any], missing: Any) -> tuple[list[Any], Fault | None]:
    """What a function gives for each item, `missing` where it raises, and the first fault."""
    values, fault = [], None
    for row, item in enumerate(items):
        try:
            values.append(function(item))
        except FAULTS as error:
            values.append(missing)
            fault = fault or Fault(row, error)
    return values, fault


def _summaries(recipe: Recipe, values: Any, n: int) -> tuple[Array, Fault | None]:
    """Raw values stacked along a first axis -> summary rows (n, s), NaN where the summary of one raises."""
    summary, flatten = recipe.summary, recipe.layout.flatten
    if summary is not None:
        if not isinstance(summary, Batched):
            missing = np.full(recipe.layout.size, np.nan)
            rows, fault = one_by_one(lambda one: flatten(summary(one)), _unstacked(values, n), missing)
            return np.array(rows).reshape(n, -1), fault
        values = summary(values)
    return recipe.layout.flatten_batch(values, n), None


def without(
    recipe: Recipe,
    found: Simulated,
    rng: Rng,
    theta: Array,
    index: Sequence[int] | Array | None,
    first_pseudo_sample: int,
    bad: Array,
    message: str,
    error: BaseException | None,
    on_error: str,
) -> Simulated:
    """Simulations some of which turn out to be of no use: where `bad` (n, M), they count as failed."""
    failures = found.failures
    if on_error == "raise" or not failures:
        row, m = (int(k) for k in np.argwhere(bad)[0])
        place = row if index is None else int(index[row])
        failures = (_failure(recipe, rng, theta[row], place, first_pseudo_sample + m, message, error),)
        if on_error == "raise":
            raise SimulationError(f"simulation failed {failures[0]}") from error
    cost = found.cost._replace(failed=found.cost.failed + int(np.count_nonzero(bad)))
    return found._replace(rows=np.where(bad[:, :, None], np.nan, found.rows), cost=cost, failures=failures)


def _unstacked(values: Any, n: int) -> list[Any]:
    """The n single values of a stacked one."""
    if isinstance(values, dict):
        return [{key: part[i] for key, part in values.items()} for i in range(n)]
    if len(values) != n:
        raise ValueError(f"{len(values)} rows were returned for {n} rows of parameters")
    return list(values)


def _one_at_a_time(summary: Callable[..., Any]) -> Callable[[Any], Any]:
    """A summary that takes one value, whichever way it was written."""
    if not isinstance(summary, Batched):
        return summary

    def on_one(value: Any) -> Any:
        if isinstance(value, dict):
            return _first(summary({key: np.asarray(part)[None] for key, part in value.items()}))
        return _first(summary(np.asarray(value)[None]))

    return on_one


def _first(values: Any) -> Any:
    return {key: part[0] for key, part in values.items()} if isinstance(values, dict) else values[0]


def summarise_observed(summary: Callable[..., Any] | None, observed: Any) -> Any:
    """The summary of the observed data, by the same route as a simulated one."""
    if isinstance(summary, Compiled) and isinstance(observed, np.ndarray):
        # In the form in which a simulated one comes: a number, or an array that may be written to.
        return summary(observed.item() if observed.ndim == 0 else observed.copy())
    return observed if summary is None else _one_at_a_time(summary)(observed)


def note_failure(
    recipe: Recipe,
    rng: Rng,
    theta: Array,
    place: int,
    m: int,
    error: BaseException,
    failures: list[Failure],
    on_error: str,
) -> None:
    """Note the first failure of several simulations, or raise it.

    A lack of memory in this process is none: earlier simulations may have left it full (`run.pool.attempted`). It is
    one if it is found again when simulations have a process of their own.
    """
    if isinstance(error, NoRoom) or (isinstance(error, MemoryError) and not apart()):
        raise error
    if on_error == "raise" or not failures:
        failure = _failure(recipe, rng, theta, place, m, told(error), error)
        if on_error == "raise":
            raise SimulationError(f"simulation failed {failure}") from error
        failures.append(failure)


def not_finite(recipe: Recipe, rng: Rng, theta: Array, place: int, m: int) -> Failure:
    """The failure of a simulation whose output is not finite."""
    return _failure(recipe, rng, theta, place, m, NOT_FINITE_OUTPUT)


def _failure(
    recipe: Recipe, rng: Rng, theta: Array, place: int, m: int, message: str, error: BaseException | None = None
) -> Failure:
    text = "" if error is None else "".join(traceback.format_exception(error))
    return Failure(recipe.prior.named(theta), rng.seed, rng.phase, rng.first + place, rng.step, m, message, text)
