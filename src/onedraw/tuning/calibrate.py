"""Does a whole analysis give posteriors that can be trusted? It is tried on data sets whose parameters are known.

1. *Data sets*: parameters from the prior, and data simulated there. If a simulation fails, another one takes its place,
   at other parameters: posteriors, too, are conditional on a simulation that does not fail.
2. *Analyses*: each data set is analysed by the method, with a seed of its own. With `shared`, all of them use one bank
   of simulations at draws from the prior.
3. *Places* of the true parameters among the draws (`results.calibration`), from which all tests and pictures are made.

A data set with its analysis is one item of one round, so that workers, files, signals and progress are those of every
run. What is kept of it are a few numbers.

References: Talts et al. (2018); Säilynoja, Bürkner and Vehtari (2022); Lemos et al. (2023); docs/calibration.md.
"""

import copy
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Unpack

import numpy as np

from onedraw.arguments import optional_whole_number, shown, true_or_false, whole_number
from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.engines.clock import OutOfTime
from onedraw.engines.numba import Compiled
from onedraw.engines.streams import Phase, Purpose, Rng, derived_seed
from onedraw.estimators.abc_average import AbcAverage
from onedraw.failures import FAULTS, Failure, NoAnswer, SimulationError, first_failures, in_words
from onedraw.model.kernels import Kernel, uniform
from onedraw.model.layout import Layout
from onedraw.model.model import Model
from onedraw.model.prior import columns_by_name
from onedraw.model.simulator import Batched, JaxSimulator, Simulated, simulate_rows
from onedraw.results.calibration import Calibration, placed
from onedraw.results.learned_summary import Fitted
from onedraw.results.posterior import Posterior, Status
from onedraw.run.blocks import Block, cut
from onedraw.run.options import Options, RunOptions, check_model, check_pays, on_engine
from onedraw.run.plan import Bar, Limits, Outcome, Plan, Round
from onedraw.run.prior_draws import block_size
from onedraw.run.registry import SAMPLERS, Entry
from onedraw.run.session import Run
from onedraw.run.signals import Stopped
from onedraw.run.specification import specify_model
from onedraw.samplers import rejection as algorithm_1
from onedraw.samplers.infer import infer
from onedraw.tuning.tolerance import EVERYTHING

FEWEST = 20
"""Data sets, below which the tests say nothing."""
MOST_TRIES = 1000
"""Simulations that may fail before there is a data set."""
PRIOR_DRAWS = 10_000
"""Draws from which the spread of the prior is known."""
BANK_EACH = 10
"""Simulations of a bank per data set, below which its own error is no longer small against that of the tests."""
PASSED_ON = ("on_error", "engine", "timeout")
"""Options that each analysis gets, too."""
OPTIONS = ("seed", "max_seconds", "workers", "executor", "store", "segment", "progress", *PASSED_ON, "budget")
"""Arguments of a method that are given to `calibrate` itself."""
DATA, ANALYSIS, RANKS, PRIOR, BANK = range(5)
"""Names of the streams of each data set, and of the whole."""


class PriorBank(NamedTuple):
    """Simulations at draws from the prior that all data sets share."""

    theta: Array
    rows: Array
    """(n, s) summaries; failed simulations are missing."""
    distance: Any
    """The model's, as it has learnt its scale."""


@dataclass(frozen=True, eq=False)
class Analyse:
    """The pure task: draw a data set, analyse it, and find the places of its parameters in the posterior."""

    model: Model
    method: Callable[..., Any]
    entry: tuple[str, Entry] | None
    """The name under which the method is registered, if it is."""
    arguments: Mapping[str, Any]
    seed: int
    on_error: str
    scale: Array
    """(dim,): the spread of the prior."""
    most: int
    """Draws that a rank is made of."""
    bank: PriorBank | None = None

    def __call__(self, block: Block) -> Outcome:
        if self.entry is not None:
            # A worker knows the samplers of the package alone.
            SAMPLERS.setdefault(*self.entry)
        theta, model, drawn = draw_data_set(self.model, derived_seed(self.seed, DATA, block.first), self.on_error)
        post = self._posterior(model, derived_seed(self.seed, ANALYSIS, block.first), block.first, theta)
        _refuse_unfinished(post.status)
        rng = np.random.default_rng(derived_seed(self.seed, RANKS, block.first))
        reference = model.prior.sample(rng, 1)[0]
        found = placed(theta, post, self.most, reference, self.scale, rng)
        arrays = {
            "theta": theta[None], "places": found.places[None], "mean": found.mean[None], "sd": found.sd[None],
            "draws": np.array([[found.picked, found.draws]], dtype=np.int64),
        }  # fmt: skip
        cost = drawn.cost.plus(post.cost)._replace(seconds=0.0)
        return Outcome(arrays, cost, first_failures(drawn.failures, post.failures), drawn.ignored_rng)

    def _posterior(self, model: Model, seed: int, number: int, theta: Array) -> Posterior:
        try:
            if self.bank is not None:
                return from_bank(self.bank, model, self.method, self.arguments, seed)
            return as_posterior(self.method(model, seed=seed, **self.arguments), model, seed)
        except FAULTS as error:
            error.add_note(f"In the analysis of data set {number}, drawn at {in_words(model.prior.named(theta))}")
            raise


def _refuse_unfinished(status: Status) -> None:
    """Ctrl-C and a time limit end an analysis early and leave it valid; here they end all of them."""
    if status.reason in ("interrupted", "terminated"):
        raise Stopped(status.reason)
    if status.reason == "max_seconds":
        raise OutOfTime


# --- data sets ----------------------------------------------------------------------------------------------


def draw_data_set(model: Model, seed: int, on_error: str) -> tuple[Array, Model, Simulated]:
    """Parameters (dim,) from the prior, the model with data simulated there, and what it took."""
    cost, failures, told = Cost(), tuple[Failure, ...](), ""
    for attempt in range(MOST_TRIES):
        rng = Rng(seed, Phase.PREDICT, 0, attempt)
        theta = model.prior.sample(rng.bulk(Purpose.PRIOR), 1)
        data, found = simulated_data(model, rng, theta, on_error)
        cost, failures = cost.plus(found.cost), first_failures(failures, found.failures)
        if np.isnan(found.rows).any():
            continue
        try:
            observed = replace(model, observed=data)
        except ValueError as error:
            # The summary of data that were drawn on a device is seen here for the first time.
            cost, told = cost._replace(failed=cost.failed + 1), f": {error}"
            continue
        return theta[0], observed, found._replace(cost=cost, failures=failures)
    told = told or (f": {failures[0]}" if failures else "")
    raise SimulationError(f"{MOST_TRIES} simulations at draws from the prior gave no data set{told}")


def simulated_data(model: Model, rng: Rng, theta: Array, on_error: str) -> tuple[Any, Simulated]:
    """One data set at theta (1, dim), in the form of the observed one, and the simulation."""
    recipe = model.recipe
    if recipe.summary is None:
        found = simulate_rows(recipe, rng, theta, on_error=on_error)
        return recipe.layout.restore(found.rows[0, 0]), found
    if isinstance(model.simulate, JaxSimulator | Compiled):
        raw = Layout.of(model.observed)
        found = simulate_rows(recipe._replace(summary=None, layout=raw), rng, theta, on_error=on_error)
        return raw.restore(found.rows[0, 0]), found
    kept = KeptData(recipe.summary)
    summary = Batched(kept) if isinstance(recipe.summary, Batched) else kept
    found = simulate_rows(recipe._replace(summary=summary), rng, theta, on_error=on_error)
    data = kept.data
    if isinstance(recipe.summary, Batched) and data is not None:
        # It was given a batch of one.
        data = {key: part[0] for key, part in data.items()} if isinstance(data, dict) else data[0]
    return data, found


class KeptData:
    """A summary that keeps the data that it is given: they may have any form and size."""

    def __init__(self, summary: Callable[..., Any]) -> None:
        self.summary = summary
        self.__name__ = "summary"
        self.data: Any = None

    def __call__(self, data: Any) -> Any:
        """The summary of the data."""
        self.data = copy.deepcopy(data)
        return self.summary(data)


# --- analyses -----------------------------------------------------------------------------------------------


def as_posterior(value: Any, model: Model, seed: int) -> Posterior:
    """What a method returns, as a Posterior: draws by name, or an array (draws, dim), are independent draws."""
    if isinstance(value, Posterior):
        if set(value.columns) != set(model.prior.labels):
            raise ValueError(
                f"the method returned draws of {', '.join(value.columns)}, and the model's parameters are "
                f"{', '.join(model.prior.labels)}"
            )
        return replace(value, draws={name: value.draws[name] for name in model.prior.names})
    names, shapes, dim = model.prior.names, model.prior.layout.shapes, model.prior.dim
    if isinstance(value, Mapping):
        missing = [name for name in names if name not in value]
        if missing:
            raise ValueError(f"the method returned no draws of {missing[0]}: it must give all parameters by name")
        parts = zip(names, shapes, strict=True)
        theta = np.column_stack([np.asarray(value[name], dtype=float).reshape(-1, *shape) for name, shape in parts])
    else:
        theta = np.asarray(value, dtype=float)
        theta = theta[:, None] if theta.ndim == 1 and dim == 1 else theta
    if theta.ndim != 2 or theta.shape[1] != dim or not np.isfinite(theta).all():
        raise ValueError(
            f"the method returned {shown(value)}: it must return a Posterior, or finite draws, as an array "
            f"(draws, {dim}) or by parameter"
        )
    return independent_posterior(theta, model, seed)


def independent_posterior(theta: Array, model: Model, seed: int) -> Posterior:
    """Independent draws (n, dim) as a Posterior that cost nothing."""
    floats = [False] * theta.shape[1]
    draws = columns_by_name(model.prior.layout, floats, theta.copy()[None])
    finished = Status("finished", f"finished: {len(theta):,} draws")
    return Posterior(draws, None, None, math.nan, math.nan, Cost(), finished, seed, {}, model=model, independent=True)


def from_bank(
    bank: PriorBank, model: Model, method: Callable[..., Any], arguments: Mapping[str, Any], seed: int
) -> Posterior:
    """The posterior of one data set from simulations that all data sets share; it costs none."""
    if method is algorithm_1.rejection:
        return rejected_from_bank(bank, model.with_distance(bank.distance), seed, **arguments)
    given = Fitted(model, bank.theta, bank.rows, Cost(len(bank.rows)), _as_it_is, seed)
    post: Posterior = method(given, budget=len(bank.rows), seed=seed, **arguments)
    return replace(post, cost=Cost(), failures=())


def _as_it_is(rows: Array) -> Array:
    return rows


def rejected_from_bank(bank: PriorBank, model: Model, seed: int, kernel: Kernel, draws: int | None = None) -> Posterior:
    """Algorithm 1 over the bank: with a uniform kernel, the draws of `od.rejection` with the bank's seed."""
    log_weight = kernel.log_weight(model.distances(bank.rows[:, None, :])[:, 0])
    log_u = -np.random.default_rng(seed).standard_exponential(len(log_weight))
    return independent_posterior(bank.theta[log_u < log_weight][:draws], model, seed)


# --- the plan -----------------------------------------------------------------------------------------------


def plan(task: Analyse, data_sets: int, bank: Plan[PriorBank] | None) -> Plan[Outcome]:
    """The bank, if there is one, and then the data sets; what was done in time, if that is enough."""
    try:
        if bank is not None:
            task = replace(task, bank=(yield from bank))
        outcome: Outcome = yield Round(
            task, lambda gathered: cut(data_sets, 1, gathered.done), "data_set",
            bar=Bar("calibrate", data_sets, "data sets"),
        )  # fmt: skip
    except Stopped as stopped:
        done = 0 if stopped.partial is None else len(stopped.partial.arrays.get("theta", ()))
        if stopped.reason != "max_seconds":
            raise
        if done < FEWEST:
            raise TimeoutError(
                f"max_seconds passed after {done} data sets, and {FEWEST} are needed: raise it; with store= the same "
                "call continues"
            ) from None
        outcome = stopped.partial
    return outcome


def make_bank(model: Model, budget: int, seed: int, on_error: str) -> Plan[PriorBank]:
    """Simulations at draws from the prior: Algorithm 1 with a tolerance that accepts everything."""
    estimator = AbcAverage(
        model, uniform(EVERYTHING), on_error=on_error, keep_distances=True, early=False, keep_rows=True
    )
    arguments = {"seed": derived_seed(seed, BANK), "keep": "summaries", "block": block_size(model, 1)}
    result = yield from algorithm_1.plan(estimator, arguments, [Limits(None, budget)])
    _refuse_unfinished_bank(result.reason)
    assert result.model is not None and result.bank is not None and result.bank.rows is not None
    return PriorBank(result.bank.theta, result.bank.rows[:, 0, :], result.model.distance)


def _refuse_unfinished_bank(reason: str) -> None:
    if reason not in ("finished", "budget"):
        raise Stopped(reason)


# --- the public function ------------------------------------------------------------------------------------


def calibrate(
    model: Model,
    method: Callable[..., Any] = infer,
    *,
    budget: int | None = None,
    data_sets: int = 200,
    arguments: Mapping[str, Any] | None = None,
    shared: bool = False,
    ranks: int = 100,
    **options: Unpack[RunOptions],
) -> Calibration:
    """Try a whole analysis on data sets drawn from the prior, and see whether its posteriors are right.

    Parameters
    ----------
    model
        Prior and simulator; the observed data are not used, except for their form.
    method
        A sampler, as `od.infer` or `od.rejection`. Or a function of your own `method(model, seed=...)` of a model
        whose `observed` is the data set; it returns a Posterior, or independent draws: an array (draws, parameters) or
        a dict of arrays.
    budget
        Simulations of each analysis, given to the method as `budget=`. With `shared`, simulations of the bank.
    data_sets
        How many data sets to draw and analyse, at least 20. More data sets find smaller errors: the summary says how
        small.
    arguments
        All other arguments of the method, by name, as in `arguments={"kernel": od.uniform(0.1)}`.
    shared
        Analyse all data sets with one bank of simulations at draws from the prior: budget + data_sets simulations in
        all. For `od.rejection`, and for `od.infer`, which then has no stages near the data.
    ranks
        The number of different ranks, a multiple of 10: each posterior is thinned to ranks - 1 draws.
    **options
        As in every function that simulates: see `RunOptions` (seed, workers, executor, engine, timeout, store,
        segment, progress, max_seconds, on_error). Workers analyse whole data sets. With a store, you can add
        data sets later.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> found = od.calibrate(model, od.rejection, budget=2000, data_sets=100, shared=True, seed=1,
    ...                      arguments={"kernel": od.uniform(0.1)})
    >>> found.level, found.cost.simulations
    ('green', 2100)
    """
    checked = Options.checked(options)
    check_model(model)
    budget = optional_whole_number("budget", budget, "the number of simulations of each analysis")
    data_sets = whole_number("data_sets", data_sets, "the number of data sets to analyse", least=FEWEST)
    ranks = whole_number("ranks", ranks, "the number of different ranks", least=20)
    if ranks % 10:
        raise ValueError(f"ranks must be a multiple of 10, so that bins divide them evenly, got {ranks}")
    shared = true_or_false("shared", shared)
    name, entry = known_method(method)
    given = checked_arguments(method, name, entry, arguments, budget, shared, model)
    # The kernel is not used: what is put on an engine is the simulator.
    estimator = on_engine(AbcAverage(model.limited(checked.timeout), uniform(1.0)), checked)
    if entry is not None and not shared:
        given |= {key: getattr(checked, key) for key in PASSED_ON} | {"progress": False}
    spread, scale = spread_of_prior(model, derived_seed(checked.seed, PRIOR))
    task = Analyse(
        estimator.model, method, None if entry is None else (name, entry), given, checked.seed,
        checked.on_error, scale, ranks - 1,
    )  # fmt: skip
    settings = {"method": name, "budget": budget, "data_sets": data_sets, "shared": shared}
    asked = {
        "method": name, "each": budget, "data_sets": data_sets, "shared": shared, "ranks": ranks,
        **checked.identity(estimator),
    }  # fmt: skip
    bank = make_bank(estimator.model, budget, checked.seed, checked.on_error) if shared and budget else None
    parts = {"the method's arguments": dict(arguments or {})} | ({} if entry is not None else {"method": method})
    run = Run(
        "calibrate", asked, lambda: specify_model("calibrate", model, asked, **parts), checked,
        lambda limits: plan(task, data_sets, bank), model.prior, None,
    )  # fmt: skip
    outcome, cost = run.value()
    arrays = outcome.arrays
    refuse_unanswered(arrays["draws"][:, 0])
    return Calibration(
        model.prior.labels, arrays["places"], arrays["theta"], arrays["mean"], arrays["sd"], arrays["draws"][:, 0],
        arrays["draws"][:, 1], spread, ranks, cost, checked.seed,
        {**settings, "arguments": {key: shown(value) for key, value in (arguments or {}).items()}},
        notes_on(arrays["draws"], data_sets, ranks, budget, shared, entry is None),
    )  # fmt: skip


def known_method(method: Any) -> tuple[str, Entry | None]:
    """The name of a method, and its entry if it is a registered sampler."""
    if not callable(method):
        raise ValueError(
            f"method must be a sampler such as od.infer, or a function method(model, seed=...) of your own, got "
            f"{shown(method)}"
        )
    name = getattr(method, "__name__", type(method).__name__)
    entry = SAMPLERS.get(name)
    return name, entry if entry is not None and entry.function is method else None


def checked_arguments(
    method: Callable[..., Any],
    name: str,
    entry: Entry | None,
    arguments: Any,
    budget: int | None,
    shared: bool,
    model: Model,
) -> dict[str, Any]:
    """What each analysis is called with, besides model and seed; an error if the method does not take it."""
    if not (arguments is None or (isinstance(arguments, Mapping) and all(isinstance(key, str) for key in arguments))):
        raise ValueError(f"arguments must be a dict of the method's arguments by name, got {shown(arguments)}")
    given = dict(arguments or {})
    for key in given:
        if key in OPTIONS:
            raise ValueError(f"arguments has {key!r}: give it to od.calibrate itself, as {key}=")
    if shared:
        _check_shared(method, entry, given, budget, model)
        return given
    given |= {} if budget is None else {"budget": budget}
    try:
        inspect.signature(method).bind(model, seed=0, **given)
    except TypeError as error:
        raise ValueError(
            f"{name} cannot be called with these arguments ({error}): it is called as {name}(model, "
            f"{', '.join([f'{key}=...' for key in (*given, 'seed')])})"
        ) from None
    except ValueError:
        # A function without a signature.
        pass
    if entry is not None and budget is None and given.get("draws") is None:
        raise ValueError(f"budget = None: give budget=, which ends each run of od.{name}, or draws in arguments=")
    return given


def _check_shared(
    method: Callable[..., Any], entry: Entry | None, given: Mapping[str, Any], budget: int | None, model: Model
) -> None:
    allowed = {algorithm_1.rejection: ("kernel", "draws"), infer: ("draws",)}.get(method)
    if entry is None or allowed is None:
        raise ValueError(
            f"shared=True is for od.rejection and od.infer, which can use simulations of the prior for every data set, "
            f"not for {getattr(method, '__name__', method)}: leave shared out"
        )
    if budget is None:
        raise ValueError("shared=True needs budget=, the number of simulations that all data sets share")
    check_pays(budget, 1, model.pilot)
    for key in given:
        if key not in allowed:
            raise ValueError(f"arguments has {key!r}: with shared=True {method.__name__} takes {', '.join(allowed)}")
    if "kernel" in allowed and not isinstance(given.get("kernel"), Kernel):
        raise ValueError(f"arguments must have a kernel, as in {{'kernel': od.uniform(0.1)}}, got {shown(dict(given))}")


def spread_of_prior(model: Model, seed: int) -> tuple[Array, Array]:
    """Standard deviations (dim,) of the prior, and scales that put the parameters into one unit."""
    theta = model.prior.sample(np.random.default_rng(seed), PRIOR_DRAWS)
    sd = theta.std(axis=0)
    low, high = np.quantile(theta, (0.16, 0.84), axis=0)
    scale = np.where(high > low, (high - low) / 2, np.where(sd > 0, sd, 1.0))
    return sd, scale


def refuse_unanswered(picked: Array) -> None:
    """A NoAnswer if too few data sets have a posterior for any test."""
    answered = int((picked > 0).sum())
    if answered < FEWEST:
        raise NoAnswer(
            f"only {answered} of {len(picked)} analyses gave draws, and {FEWEST} are needed: raise the tolerance or "
            "the budget, or data_sets"
        )


def notes_on(draws: Array, data_sets: int, ranks: int, budget: int | None, shared: bool, own: bool) -> tuple[str, ...]:
    """What a reader should know."""
    notes = []
    if len(draws) < data_sets:
        notes.append(f"max_seconds passed after {len(draws)} of {data_sets} data sets")
    few = np.median(draws[:, 0])
    if few < ranks // 5:
        notes.append(
            f"the posteriors have few effective draws (half of them at most {few:.0f}): small errors are not seen"
        )
    if shared and budget is not None and budget < BANK_EACH * data_sets:
        notes.append(
            f"the bank has {budget:,} simulations for {data_sets} data sets: its own error, which all data sets share, "
            f"is seen by the tests; give at least {BANK_EACH * data_sets:,}"
        )
    if own:
        notes.append("simulations of a method of your own are counted if it returns a Posterior")
    return tuple(notes)
