"""The options that every function takes that simulates: written, documented and checked once."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypedDict

from numpy.random import SeedSequence

from onedraw.arguments import LONGEST, one_of, optional_whole_number, positive, seed_or_fresh
from onedraw.estimators.abc_average import AbcAverage
from onedraw.estimators.handicapped import Handicapped
from onedraw.model.kernels import Kernel
from onedraw.model.model import Model
from onedraw.model.prior import FAMILIES
from onedraw.model.simulator import JaxSimulator
from onedraw.run.job_array import JobArray
from onedraw.run.progress import Progress, Show
from onedraw.run.saving import Continue, Part, recorded_seed

IDENTITY = ("seed", "on_error", "timeout")
"""Options that a run's numbers depend on; its file holds them. The others belong to a session."""

MOST_WORKERS = 10_000
"""The most processes on this machine."""


class RunOptions(TypedDict, total=False):
    """Options of every function that simulates.

    seed
        A whole number or a `numpy.random.SeedSequence`; drawn and recorded if None. The same seed gives identical
        results on any number of workers, after any interruption.
    on_error
        "reject" (the default) counts a failed simulation as a miss (K = 0), "raise" stops at the first.
    max_seconds
        Stop after the block in which this time has passed; a block that takes a second longer is given up.
    workers
        Simulate in this many processes on this machine (threads for compiled simulators).
    executor
        Simulate on this `concurrent.futures.Executor`, `dask.distributed.Client` or `od.job_array` instead
        (docs/scaling.md).
    engine
        What runs the simulations (docs/engines.md); by default the engine that the simulator is written for. "jax" is
        for `od.jax_simulator`, with double precision on a CPU and single on a GPU ("jax:float64" or "jax:float32" to
        choose); "numba" requires an `od.compiled` simulator; "numpy" is for all others.
    timeout
        Seconds that one simulation of a plain simulator or an `od.command` may take. One that takes longer is killed
        and counts as failed, so the posterior is conditional on finishing in time.
    store
        The file of this run. Finished work is saved there, and the same call continues where an earlier one ended
        (docs/store.md). None: in memory only.
    segment
        Seconds between saves, 30 by default. It does not affect the result.
    progress
        Show progress: True, False, None (a bar in terminals, an occasional line in logs), or a function that is
        called with an `onedraw.run.progress.Tick`.
    """

    seed: int | SeedSequence | None
    on_error: str
    max_seconds: float | None
    workers: int | None
    executor: Any
    engine: str | None
    timeout: float | None
    store: str | os.PathLike[str] | Continue | Part | None
    segment: float
    progress: Show


@dataclass(frozen=True)
class Options:
    """The options of a run, checked: see `RunOptions`.

    >>> Options.checked({"seed": 7, "on_error": "reject"}).seed
    7
    >>> Options.checked({"segment": 0})
    Traceback (most recent call last):
    ...
    ValueError: segment must be positive, got 0: it is the number of seconds between saves
    >>> Options.checked({"sede": 7})
    Traceback (most recent call last):
    ...
    TypeError: there is no option 'sede': the options of a run are seed, on_error, max_seconds, workers, executor, \
engine, timeout, store, segment, progress
    """

    seed: int
    on_error: str = "reject"
    max_seconds: float | None = None
    workers: int | None = None
    executor: Any = None
    engine: str | None = None
    timeout: float | None = None
    store: Any = None
    segment: float = 30.0
    progress: Show = None

    @staticmethod
    def checked(given: Mapping[str, Any]) -> "Options":
        """From the options of a call.

        Whether workers and executor go together is checked when the pool is opened, the engine when it meets the
        simulator (`on_engine`), and whether the simulator can be limited in time by the model (`Model.limited`).
        """
        names = [one.name for one in fields(Options)]
        for name in given:
            if name not in names:
                raise TypeError(f"there is no option {name!r}: the options of a run are {', '.join(names)}")
        asked = Options(**{"seed": None, **given})
        if isinstance(asked.executor, JobArray):
            asked = replace(asked, store=asked.executor.store(asked.store), seed=asked.executor.seed(asked.seed))
        max_seconds, timeout = asked.max_seconds, asked.timeout
        if max_seconds is not None:
            max_seconds = positive("max_seconds", max_seconds, "the longest time the run may take")
        if timeout is not None:
            timeout = positive("timeout", timeout, "the number of seconds that one simulation may take", LONGEST)
        return replace(
            asked,
            max_seconds=max_seconds,
            timeout=timeout,
            workers=optional_whole_number(
                "workers", asked.workers, "the number of workers that simulate side by side", MOST_WORKERS
            ),
            executor=_checked_executor(asked.executor),
            on_error=one_of("on_error", asked.on_error, ("reject", "raise")),
            seed=seed_or_fresh(recorded_seed(asked.store, asked.seed)),
            segment=positive("segment", asked.segment, "the number of seconds between saves"),
            progress=Progress(asked.progress, "", None).asked,
        )

    def identity(self, estimator: Any) -> dict[str, Any]:
        """What a run's file says of them; the engine is the one that the estimator was put on."""
        engine = getattr(estimator, "engine", None)
        named = {name: getattr(self, name) for name in IDENTITY}
        return named if engine is None else {**named, "engine": str(engine)}


def _checked_executor(executor: Any) -> Any:
    """The executor; a ValueError for a Dask client that waits for nobody."""
    if getattr(executor, "asynchronous", False) is True:
        raise ValueError(
            "executor is an asynchronous dask.distributed.Client, whose results are coroutines: make the client with "
            "asynchronous=False, and call from a thread of its own inside an event loop (asyncio.to_thread)"
        )
    return executor


def on_engine(estimator: Any, options: Options) -> Any:
    """The estimator on the engine asked for, and a ValueError if that does not go with the rest."""
    estimator = placed(estimator, options.engine)
    if getattr(estimator, "engine", None) is not None and (options.workers or options.executor is not None):
        raise ValueError(
            "workers= and executor= are for the NumPy engine: on the JAX engine one device does all the work; leave "
            "them out, and start a process for each device if there are several"
        )
    return estimator


def placed(estimator: Any, engine: Any) -> Any:
    """The estimator on the engine that a run asks for, or None for the one that its simulator is for."""
    inner = estimator.estimator if isinstance(estimator, Handicapped) else estimator
    on_jax = isinstance(inner, AbcAverage) and isinstance(inner.model.simulate, JaxSimulator)
    if not isinstance(engine, str | None):
        raise ValueError(
            f"engine must be None, 'numpy', 'numba', 'jax', 'jax:float32' or 'jax:float64', got {engine!r}"
        )
    if engine == "numba" and not (isinstance(inner, AbcAverage) and inner.model.compiled):
        raise ValueError("engine='numba' needs a simulator made by od.compiled(function): leave engine= out")
    if engine in (None, "numpy", "numba"):
        if on_jax and engine == "numpy":
            raise ValueError("engine='numpy' cannot run a simulator made by od.jax_simulator: leave engine= out")
        if not on_jax:
            return estimator
    if isinstance(inner, AbcAverage) and not on_jax:
        raise ValueError(
            f"engine={engine!r} needs a simulator made by od.jax_simulator(function), with function(key, **parameters) "
            "written with jax.numpy: this model's is for NumPy; leave engine= out"
        )
    if not isinstance(inner, AbcAverage) and not hasattr(inner, "on_device"):
        raise ValueError(
            f"engine={engine!r} cannot run an estimator of your own class {type(inner).__name__}: write it as a "
            "function with jax.numpy, od.unbiased(function, prior), or leave engine= out"
        )
    if not estimator.prior.on_device:
        raise ValueError(
            f"engine={engine or 'jax'!r} has no JAX form of this prior: it takes {', '.join(FAMILIES)} with bounded "
            "densities, also as vectors (where= may be used), and no functions of other parameters; draw what depends "
            "on them inside the simulator, or leave engine= out if the simulator is for NumPy"
        )
    try:
        from onedraw.engines.jax import Engine
    except ImportError as error:
        raise ValueError(f'engine={engine!r} needs JAX: install it with pip install "onedraw[jax]"') from error

    chosen = Engine.named(engine or "jax")
    if isinstance(inner, AbcAverage):
        return estimator.with_model(inner.model.placed(chosen))
    if isinstance(estimator, Handicapped):
        return replace(estimator, estimator=replace(inner, engine=chosen))
    return replace(estimator, engine=chosen)


def check_model(model: Any) -> None:
    """A ValueError if the first argument of a sampler is not a model."""
    if not isinstance(model, Model):
        raise ValueError(f"model must be an od.Model, got {type(model).__name__}")


def check_parts(
    model: Model, algorithm: str, *, signed: bool = False, pseudo_samples: int = 1, kernel: Kernel | None = None
) -> None:
    """A ValueError if this is no model, or if a sampler cannot run its simulator in two parts with this M and kernel.

    `signed` says whether it can use estimates that may be negative.
    """
    check_model(model)
    pair = model.pair
    if pair is None:
        return
    maker = "multifidelity" if pair.signed else "stages"
    if algorithm in ("wilkinson", "r_hit", "infer", "compare", "fit_summary", "tolerance_for"):
        other = "" if algorithm in ("compare", "fit_summary") else ", or use od.rejection or od.importance"
        raise ValueError(
            f"od.{algorithm} runs whole simulations and cannot leave out a part of them, and the simulator is made by "
            f"od.{maker}: give od.Model the whole simulator{other}"
        )
    if pair.signed and not signed:
        raise ValueError(
            f"the estimates of od.multifidelity may be negative, and od.{algorithm} needs an estimate of at least 0 to "
            "carry along or to move by: use od.rejection or od.importance, or od.stages, whose estimates are not "
            "negative"
        )
    if pseudo_samples > 1:
        raise ValueError(
            f"pseudo_samples = {pseudo_samples} with od.{maker}: a simulator in two parts takes 1, since further ones "
            "are better spent at other parameters"
        )
    if model.adaptive:
        raise ValueError(f"od.scaled(adapt=True) does not go with od.{maker}: the continuation probability is fixed")
    if kernel is not None and kernel.eps is None and (pair.learns or pair.signed):
        raise ValueError(
            f"kernel = od.{kernel.name}() has no tolerance, and the parts of od.{maker} are used for one: give it, as "
            f"in od.{kernel.name}(0.1)" + ("" if pair.signed else ", or give continuation=")
        )


def checked_ends(draws: Any, budget: Any, meaning: str) -> tuple[int | None, int | None]:
    """`draws` and `budget` as whole numbers, one of which may be None; `meaning` says what draws are."""
    draws = optional_whole_number("draws", draws, meaning)
    budget = optional_whole_number("budget", budget, "the largest number of simulations")
    if draws is None and budget is None:
        raise ValueError("give draws=, budget= or both: one of them must end the run")
    return draws, budget


def check_pays(budget: int | None, pseudo_samples: int, pilot: float = 0, worst: float = 1) -> None:
    """A ValueError if a budget does not cover one proposal, after so many simulations of a pilot.

    >>> check_pays(12, 3, 10)
    Traceback (most recent call last):
    ...
    ValueError: budget = 12 does not cover one proposal of pseudo_samples = 3 simulations after 10 pilot simulations
    """
    if budget is not None and budget - pilot < pseudo_samples * worst:
        if worst != 1:
            raise ValueError(f"budget = {budget} does not cover one simulation, which may cost {worst:g}: raise it")
        after = f" after {pilot:g} pilot simulations" if pilot else ""
        raise ValueError(
            f"budget = {budget} does not cover one proposal of pseudo_samples = {pseudo_samples} simulations{after}"
        )
