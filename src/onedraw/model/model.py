"""Model: prior, simulator, observed data, summary and distance, checked when made."""

import copy
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from onedraw.arguments import LONGEST, positive, shown
from onedraw.cost import Cost
from onedraw.engines.arrays import Array, DeviceParts
from onedraw.engines.children import Limited
from onedraw.engines.numba import BLOCK_ROWS, Compiled, distances_of
from onedraw.engines.streams import Rng
from onedraw.failures import FAULTS, told
from onedraw.model.distance import Distance, Euclidean, Mahalanobis, Scaled, euclidean, mahalanobis, scaled
from onedraw.model.external import Command
from onedraw.model.layout import Layout, key_of, numbers, read_only, refuse_masked
from onedraw.model.pair import Pair, check_pair
from onedraw.model.prior import Prior
from onedraw.model.simulator import (
    CHUNK_ROWS,
    Batched,
    Fault,
    JaxSimulator,
    Recipe,
    Simulated,
    Staged,
    one_by_one,
    simulate_rows,
    summarise_observed,
    without,
)

DEVICE_ROWS, DEVICE_VALUES = 2**17, 2**25
"""Simulations per block on a device, and the numbers that they may hold."""

BUILT_IN = (Euclidean, Scaled, Mahalanobis)
"""Distances that need no look at what they give."""
ONE_NUMBER = "it must give one number of at least 0 for each, never NaN"
NO_NUMBER = "the distance is nan: it must give one number of at least 0 for each simulation"


@dataclass(frozen=True, eq=False)
class Model:
    """A simulator with its prior and the data it should explain.

    Parameters
    ----------
    prior
        `od.Prior(...)`.
    simulate
        A function `simulate(rng, **parameters)` that draws one pseudo-sample (a number, an array, or a dict of
        arrays); or one marked `@od.batched` or `@od.compiled`; or `od.staged(prepare, draw)`; or `od.command([...])`;
        or one in two parts, `od.stages(...)` or `od.multifidelity(...)`.
    observed
        The data, in the form that the simulator returns. In a dict, keys and their order matter.
    summary
        A function of one data set (or `@od.batched`, `@od.compiled`) that gives the numbers to compare; the data
        themselves if there is none. With a summary, data sets may vary in size.
    distance
        `od.euclidean()` (the default), `od.scaled()`, `od.mahalanobis()`, or a function
        `distance(simulated, observed)` of two summaries (or `@od.compiled`; or `@od.batched`, with simulated ones
        stacked).
    names
        A name for each number that is compared, for tables and plots, as in `names=["mean", "sd"]`. A summary that
        returns a dict names its numbers itself.
    replicates
        The axis of the data (of the summary, if there is one) along which rows are independent and identically
        distributed given the parameters, as `replicates=0` for data of shape (rows, k). `od.infer` then also tries the
        learnt likelihood of one row, summed over all rows; no other sampler uses it.

    >>> from scipy import stats
    >>> model = Model(
    ...     prior=Prior(mu=stats.norm(0, 3), sigma=stats.uniform(0.1, 5)),
    ...     simulate=lambda rng, mu, sigma: rng.normal(mu, sigma, size=50),
    ...     observed=np.linspace(-1, 3, 50),
    ...     summary=lambda y: [y.mean(), y.std()],
    ... )
    >>> model
    Model(mu, sigma -> 2 summaries)
    """

    prior: Prior
    simulate: Any
    observed: Any
    summary: Callable[..., Any] | None = None
    distance: Any = None
    names: Sequence[str] | None = None
    replicates: int | None = None
    recipe: Recipe = field(init=False, repr=False)
    observed_row: Array = field(init=False, repr=False)
    device_parts = DeviceParts(numbers=("simulate", "distance", "observed_row"), fixed=("prior", "summary", "recipe"))

    def __post_init__(self) -> None:
        if not isinstance(self.prior, Prior):
            raise ValueError(f"prior must be an od.Prior, got {self.prior!r}: write od.Prior(mu=stats.norm(0, 1))")
        _check_simulator(self.simulate, self.prior, self.observed)
        if isinstance(self.simulate, JaxSimulator):
            object.__setattr__(self, "simulate", _tried(self.simulate, self.prior))
        for name, value in (("summary", self.summary), ("distance", self.distance)):
            if value is not None and not callable(value):
                raise ValueError(f"{name} must be a function or None, got {value!r}")
        for makes in (euclidean, scaled, mahalanobis):
            if self.distance is makes:
                name = makes.__name__
                raise ValueError(f"distance = od.{name} makes a distance: call it, as in od.{name}()")
        observed = _as_data(self.observed, raw_allowed=self.summary is not None)
        with _precisely(self.simulate):
            try:
                summarised = summarise_observed(self.summary, observed)
            except FAULTS as error:
                raise ValueError(f"the summary failed on the observed data: {told(error)}") from error
        word = "observed" if self.summary is None else "summary"
        if isinstance(summarised, Mapping) and not summarised:
            raise ValueError(f"{word} is empty: there is nothing to compare simulations with")
        try:
            layout = Layout.of(summarised)
            row = layout.flatten(summarised)
        except ValueError as error:
            raise ValueError(f"{word} {error}") from error
        if row.size == 0:
            raise ValueError(f"{word} is empty: there is nothing to compare simulations with")
        if not np.isfinite(row).all():
            raise ValueError(_where_not_finite(observed, row, layout, word))
        row = row.copy()
        row.flags.writeable = False
        object.__setattr__(self, "observed", observed)
        object.__setattr__(self, "observed_row", row)
        width = max(_width(observed), row.size)
        whole = self.simulate.whole if isinstance(self.simulate, Pair) else self.simulate
        raw = Layout(None, (observed.shape,)) if isinstance(observed, np.ndarray) else None
        object.__setattr__(self, "recipe", Recipe(self.prior, whole, self.summary, layout, width, raw))
        if self.names is not None:
            object.__setattr__(self, "names", _checked_names(self.names, layout))
        if self.replicates is not None:
            object.__setattr__(self, "replicates", _checked_axis(self.replicates, layout))
        if self.distance is None:
            object.__setattr__(self, "distance", Euclidean())
        scale = getattr(self.distance, "scale", None)
        if isinstance(scale, np.ndarray) and scale.size != row.size:
            raise ValueError(f"scale has {scale.size} numbers for {row.size} summaries: give one for each")

    @property
    def plain(self) -> bool:
        """Whether the simulator draws one pseudo-sample per call."""
        return not isinstance(self.recipe.simulator, Batched | Compiled | Staged | JaxSimulator)

    @property
    def batched(self) -> bool:
        """Whether the simulator draws a batch per call."""
        return isinstance(self.recipe.simulator, Batched | Compiled | JaxSimulator)

    @property
    def compiled(self) -> bool:
        """Whether the simulator is compiled: its workers are threads then."""
        return isinstance(self.recipe.simulator, Compiled)

    @property
    def block(self) -> int | None:
        """Proposals per block if a simulator draws many per call; None if it draws one."""
        if isinstance(self.simulate, JaxSimulator):
            return min(DEVICE_ROWS, max(1, DEVICE_VALUES // self.recipe.width))
        return BLOCK_ROWS if self.compiled else CHUNK_ROWS if self.batched else None

    @property
    def pilot(self) -> int:
        """Simulations the distance needs before it can be used."""
        return int(getattr(self.distance, "pilot", 0))

    @property
    def adaptive(self) -> bool:
        """Whether the distance is learnt again during a run."""
        return bool(getattr(self.distance, "adapt", False))

    @property
    def pair(self) -> Pair | None:
        """The simulator's two parts, if it has two."""
        return self.simulate if isinstance(self.simulate, Pair) else None

    @property
    def worst(self) -> float:
        """What one simulation costs at most, in the unit of the budget."""
        return 1 if self.pair is None else self.pair.worst

    @property
    def priced(self) -> bool:
        """Whether simulations differ in what they cost."""
        return self.pair is not None and self.pair.price is not None

    @property
    def ahead(self) -> float:
        """What is spent on pilots before a run, in the unit of the budget."""
        learns = self.pair is not None and self.pair.learns
        return (self.pilot + (self.pair.pilot or 0 if self.pair is not None and learns else 0)) * self.worst

    def for_budget(self, budget: float | None) -> "Model":
        """The model with the size of the pilot of its simulator in two parts, if it has one."""
        return self if self.pair is None else replace(self, simulate=self.pair.for_budget(budget))

    def units(self, cost: Cost) -> float:
        """What was spent, in the unit of the budget: simulations, or what the two parts of a simulation cost."""
        return cost.simulations if self.pair is None else self.pair.units(cost)

    def placed(self, engine: Any) -> "Model":
        """The model with its simulator on the engine of a run."""
        simulate = replace(self.simulate, engine=engine)
        made = copy.copy(self)
        # What was checked when the model was made is not checked again: a trial of the simulator takes milliseconds.
        object.__setattr__(made, "simulate", simulate)
        object.__setattr__(made, "recipe", self.recipe._replace(simulator=simulate))
        return made

    def limited(self, timeout: float | None) -> "Model":
        """The model with each simulation given up after `timeout` seconds; itself if that is None."""
        if timeout is None:
            return self
        timeout = positive("timeout", timeout, "the number of seconds that one simulation may take", LONGEST)
        if not self.plain:
            raise ValueError(
                f"timeout = {timeout:g} is for plain simulators and od.command, which draw one pseudo-sample per call: "
                "limit the time inside a batched, compiled or staged simulator, and return NaN"
            )
        if self.pair is not None:
            return replace(self, simulate=self.pair.limited(timeout))
        if isinstance(self.simulate, Command):
            return replace(self, simulate=replace(self.simulate, timeout=timeout))
        inner = self.simulate.function if isinstance(self.simulate, Limited) else self.simulate
        return replace(self, simulate=Limited(inner, timeout))

    def labels(self) -> list[str]:
        """A name for each number that is compared, for tables and plots."""
        if self.names is not None:
            return list(self.names)
        return self.recipe.layout.titles("observed" if self.summary is None else "summary")

    def places(self) -> list[str]:
        """Where each number that is compared is found, for error messages."""
        return self.recipe.layout.labels("observed" if self.summary is None else "summary")

    def by_row(self, rows: Array) -> Array:
        """Flat rows of data sets (n, s) as data sets of independent rows (n, rows, k)."""
        assert self.replicates is not None
        shaped = rows.reshape(len(rows), *self.recipe.layout.shapes[0])
        moved = np.moveaxis(shaped, 1 + self.replicates, 1)
        return np.ascontiguousarray(moved.reshape(*moved.shape[:2], -1))

    def simulate_rows(
        self,
        rng: Rng,
        theta: Array,
        index: Array | None = None,
        pseudo_samples: int = 1,
        first_pseudo_sample: int = 0,
        chunk: int = 0,
        on_error: str = "reject",
    ) -> Simulated:
        """Summaries of pseudo-samples at rows of theta: see `onedraw.model.simulator.simulate_rows`."""
        found = simulate_rows(self.recipe, rng, theta, index, pseudo_samples, first_pseudo_sample, chunk, on_error)
        return (
            found if self.pair is None else found._replace(cost=found.cost._replace(expensive=found.cost.simulations))
        )

    def measured(
        self,
        found: Simulated,
        rng: Rng,
        theta: Array,
        index: Sequence[int] | Array | None,
        first_pseudo_sample: int,
        on_error: str,
    ) -> tuple[Simulated, Array]:
        """Simulations (n, M, s) with their distances (n, M), inf if one failed: those without a distance have, too.

        The other arguments are those with which they were simulated.
        """
        distances, fault = self._distances(found.rows, found.cost.failed)
        if type(self.distance) not in BUILT_IN and np.isnan(distances).any():
            bad = np.isnan(distances)
            message, error = (NO_NUMBER, None) if fault is None else (told(fault.error), fault.error)
            found = without(
                self.recipe, found, rng, theta, index, first_pseudo_sample, bad, message, error, on_error
            )  # fmt: skip
            distances[bad] = np.inf
        return found, distances

    def distances(self, rows: Array, failed: int | None = None) -> Array:
        """Distances (n, M) of simulated summaries (n, M, s) from the observed one; inf if there is none.

        A failed simulation is a row of NaN. `failed` says how many there are, if that is known.
        """
        distances, _ = self._distances(rows, failed)
        if type(self.distance) not in BUILT_IN:
            distances[np.isnan(distances)] = np.inf
        return distances

    def _distances(self, rows: Array, failed: int | None) -> tuple[Array, Fault | None]:
        """Distances (n, M), inf if a simulation failed and NaN if the distance did, and what it raised first."""
        n, draws, width = rows.shape
        rows = rows.reshape(n * draws, width)
        good = None if failed == 0 else ~np.isnan(rows[:, 0])
        if good is None or good.all():
            distance, fault = self._distance(rows, self.observed_row)
            return distance.reshape(n, draws), fault
        distance, fault = np.full(n * draws, np.inf), None
        if good.any():
            distance[good], fault = self._distance(rows[good], self.observed_row)
        return distance.reshape(n, draws), fault

    def apart(self, rows: Array, observed: Array) -> Array:
        """Distances (n,) of summaries (n, s) from any other (s,); inf where there is none."""
        values, _ = self._distance(rows, observed)
        return np.where(np.isnan(values), np.inf, values)

    def _distance(self, rows: Array, observed: Array) -> tuple[Array, Fault | None]:
        """Distances (n,) of summaries (n, s), NaN where there is none, and what was raised at the first such row."""
        distance, restore = self.distance, self.recipe.layout.restore
        if type(distance) in BUILT_IN:
            return distance(rows, observed), None
        # A distance may write to the summaries that it is given, which others still need.
        rows, observed = rows.copy(), read_only(observed)
        if hasattr(distance, "learnt"):
            return _together_or_one_by_one(lambda some: np.asarray(distance(some, observed), dtype=float), rows)
        if isinstance(distance, Compiled):
            layout = self.recipe.layout
            # What cannot be compiled is no simulation's fault.
            observed = observed.copy()
            distances_of(distance, layout, rows[:0], observed)
            values, fault = _together_or_one_by_one(lambda some: distances_of(distance, layout, some, observed), rows)
        elif isinstance(distance, Batched):
            given = restore(observed)
            values, fault = _together_or_one_by_one(
                lambda some: np.asarray(distance(restore(some), given), dtype=float), rows
            )
        else:
            given = restore(observed)
            each, fault = one_by_one(lambda row: distance(restore(row), given), rows, np.nan)
            try:
                values = np.array([numbers(one) for one in each], dtype=float)
            except (TypeError, ValueError, OverflowError) as error:
                raise ValueError(f"distance returned {each[0]!r} ({error}): {ONE_NUMBER}") from error
        if values.shape != (len(rows),) or (values < 0).any():
            raise ValueError(
                f"distance returned {values.min() if values.size else 'nothing'} in shape {values.shape} for "
                f"{len(rows)} simulations: {ONE_NUMBER}"
            )
        return values, fault

    def with_distance(self, distance: Distance) -> "Model":
        """The same model with another distance."""
        return replace(self, distance=distance)

    def with_summary(self, summary: Any) -> "Model":
        """The same model with another summary, or none. Names and a distance belong to the numbers compared before."""
        return replace(self, summary=summary, distance=None, names=None, replicates=None)

    def __repr__(self) -> str:
        count = self.observed_row.size
        kind = "value" if self.summary is None else "summary"
        plural = kind if count == 1 else ("values" if kind == "value" else "summaries")
        return f"Model({', '.join(self.prior.names)} -> {count} {plural})"


def _checked_names(names: Any, layout: Layout) -> tuple[str, ...]:
    """Names of the numbers that are compared, one for each."""
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(one, str) for one in names):
        raise ValueError(f"names must be a list of texts, as in ['mean', 'sd'], got {shown(names)}")
    if len(names) != layout.size or len(set(names)) < len(names):
        raise ValueError(
            f"names must be {layout.size} different names, one for each number compared, got {shown(names)}"
        )
    return tuple(names)


def _checked_axis(axis: Any, layout: Layout) -> int:
    """The axis of the replicates, counted from the first."""
    try:
        number = operator.index(axis)
    except TypeError:
        number = None
    if number is None or isinstance(axis, bool):
        raise ValueError(f"replicates must be an axis of the data, as in replicates=0, or None, got {shown(axis)}")
    if layout.keys is not None:
        raise ValueError(
            f"replicates = {axis} is an axis of one array, and the data are a dict: give observed= or the summary as "
            "one array of shape (rows, k)"
        )
    dim = len(layout.shapes[0])
    if not -dim <= number < dim:
        raise ValueError(f"replicates = {number} is not an axis of data of shape {layout.shapes[0]}: give one")
    return number % dim


def _together_or_one_by_one(distances: Callable[[Array], Array], rows: Array) -> tuple[Array, Fault | None]:
    """Distances (n,) of rows (n, s), measured one by one if together they raise, which shows whose fault it is."""
    try:
        return distances(rows), None
    except FAULTS:
        values, fault = one_by_one(lambda row: distances(row[None]).item(), rows, np.nan)
        return np.array(values, dtype=float), fault


def _check_simulator(simulate: Any, prior: Prior, observed: Any) -> None:
    if isinstance(simulate, Pair):
        check_pair(simulate, prior)
        return
    function = simulate.prepare if isinstance(simulate, Staged) else simulate
    if isinstance(simulate, JaxSimulator):
        function = simulate.function
    if isinstance(simulate, Compiled) and isinstance(observed, Mapping):
        raise ValueError(f"observed is a dict, and {simulate!r} returns a number or an array: give observed= as one")
    if isinstance(simulate, Command):
        unknown = sorted(simulate.names() - {*prior.names, "seed"})
        if unknown:
            raise ValueError(
                f"the command names {{{unknown[0]}}}, and the prior has {', '.join(prior.names)}: braces may hold "
                "a parameter, seed, input or output"
            )
        left_out = [name for name in prior.names if not simulate.uses(name)]
        if left_out and simulate.unused != "allow":
            raise ValueError(
                f"the command does not use the parameter {left_out[0]}: write {{{left_out[0]}}} among its arguments, "
                "pass all parameters as a file with {input}, or set unused='allow'"
            )
        return
    if not callable(function):
        raise ValueError(f"simulate must be a function simulate(rng, **parameters), got {simulate!r}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    given = dict.fromkeys(prior.names)
    try:
        signature.bind(**given) if isinstance(simulate, Staged) else signature.bind(None, **given)
    except TypeError as error:
        name = "prepare" if isinstance(simulate, Staged) else "simulate"
        form = ", ".join(prior.names if isinstance(simulate, Staged) else ("rng", *prior.names))
        raise ValueError(
            f"{name}{signature} does not fit the prior's parameters ({error}): it is called as {name}({form})"
        ) from None


def _tried(simulate: JaxSimulator, prior: Prior) -> JaxSimulator:
    """The simulator after one trial, which tells what it needs."""
    try:
        from onedraw.engines.jax import tried
    except ImportError as error:
        raise ValueError(
            'od.jax_simulator needs JAX: install it with pip install "onedraw[jax]" (or jax with the right plugin for '
            "your accelerator)"
        ) from error
    try:
        return replace(simulate, own_keys=tried(simulate.function, prior))
    except Exception as error:
        raise ValueError(
            f"the JAX simulator failed when it was tried: {type(error).__name__}: {str(error).splitlines()[0]} It is "
            f"called as simulate(key, {', '.join(prior.names)}) with scalars and vectors, and draws with "
            "jax.random from its key"
        ) from error


def _precisely(simulate: Any) -> AbstractContextManager[None]:
    """What a summary written with JAX makes of the data is computed in double precision."""
    if not isinstance(simulate, JaxSimulator):
        return nullcontext()
    from onedraw.engines.jax import Engine

    return Engine("float64").active()


def _as_data(observed: Any, raw_allowed: bool) -> Any:
    """Observed data as arrays if they are numbers; otherwise as they are, for a summary to read."""
    if isinstance(observed, Mapping):
        for key in observed:
            try:
                key_of(key)
            except ValueError as error:
                raise ValueError(f"observed {error}") from error
        return {key_of(key): _as_data(part, raw_allowed) for key, part in observed.items()}
    try:
        refuse_masked(observed)
    except ValueError as error:
        raise ValueError(f"observed {error}") from error
    try:
        array = np.array(observed)
        if array.dtype.kind in "biuf":
            array.flags.writeable = False
            return array
    except ValueError:
        pass
    if raw_allowed:
        return observed
    raise ValueError(
        f"observed must be numbers, an array or a dict of arrays, got {type(observed).__name__}: give a summary= "
        "that turns such data into numbers"
    )


def _width(observed: Any) -> int:
    if isinstance(observed, dict):
        return sum(_width(part) for part in observed.values())
    return int(np.size(observed))


def _where_not_finite(observed: Any, row: Array, layout: Layout, word: str) -> str:
    labels = layout.labels(word)
    column = int(np.argmax(~np.isfinite(row)))
    missing = int(np.sum(np.isnan(row)))
    remedy = (
        f"observed data must be finite. If {missing} of {row.size} numbers are missing, leave them out of observed and "
        "of what simulate returns, or give a summary= of the numbers that are there"
    )
    message = f"{labels[column]} is {row[column]}: {remedy if missing else 'observed data must be finite'}"
    if word == "summary":
        message = f"the summary of the observed data is not finite: {labels[column]} is {row[column]}"
        try:
            raw = Layout.of(observed)
            values = raw.flatten(observed)
        except ValueError:
            return message
        if not np.isfinite(values).all():
            at = int(np.argmax(~np.isfinite(values)))
            message += f" ({raw.labels('observed')[at]} is {values[at]})"
    return message
