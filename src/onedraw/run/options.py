"""How every sampler begins and ends: the arguments that all of them take, checked once, and a run with crew and file.

A sampler spells these arguments out in its signature and hands them over as they are, by `Shared.checked(locals())`.
So a new one is a line in each signature and a field here, with its check.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from onedraw.arguments import one_of, optional_whole_number, positive, seed_or_fresh
from onedraw.cost import Cost
from onedraw.estimators.average import placed
from onedraw.model.model import Model
from onedraw.results.posterior import Posterior, Status
from onedraw.run.blocks import Deadline
from onedraw.run.pool import hired
from onedraw.run.progress import Progress, Show
from onedraw.run.saving import Saver, Specification, begin, checked_segment, recorded_seed
from onedraw.run.signals import guarded

IDENTITY = ("seed", "on_error", "timeout")
"""Those of the shared arguments that a run's numbers depend on; its file holds them, and the others are a session's."""


@dataclass(frozen=True)
class Shared:
    """The arguments that every sampler takes, checked; see `onedraw.samplers.rejection.rejection` for what they mean.

    >>> Shared.checked({"seed": 7, "on_error": "reject", "draws": 100}).seed
    7
    >>> Shared.checked({"segment": 0})
    Traceback (most recent call last):
    ...
    ValueError: segment must be positive, got 0: it is the number of seconds between saves
    """

    seed: int
    on_error: str = "reject"
    max_seconds: float | None = None
    workers: int | None = None
    executor: Any = None
    timeout: float | None = None
    store: Any = None
    segment: float = 30.0
    progress: Show = None
    engine: str | None = None

    @staticmethod
    def checked(given: Mapping[str, Any]) -> "Shared":
        """From the arguments of a call by name, which may hold others too; those that are missing have their default.

        Workers and executor are checked where they are hired, the time limit and the engine where they meet the
        simulator (`on_engine`).
        """
        some = {one.name: given[one.name] for one in fields(Shared) if one.name in given}
        asked = Shared(**{"seed": None, **some})
        max_seconds = asked.max_seconds
        if max_seconds is not None:
            max_seconds = positive("max_seconds", max_seconds, "the longest time the run may take")
        return replace(
            asked,
            max_seconds=max_seconds,
            on_error=one_of("on_error", asked.on_error, ("reject", "raise")),
            seed=seed_or_fresh(recorded_seed(asked.store, asked.seed)),
            segment=checked_segment(asked.segment),
            progress=Progress(asked.progress, "", None).asked,
        )

    def identity(self, estimator: Any) -> dict[str, Any]:
        """What a run's file says of them; the engine is the one that the estimator was put on."""
        engine = getattr(estimator, "engine", None)
        named = {name: getattr(self, name) for name in IDENTITY}
        return named if engine is None else {**named, "engine": str(engine)}


def on_engine(estimator: Any, shared: Shared) -> Any:
    """The estimator on the engine asked for, and a ValueError where that does not go with the rest."""
    estimator = placed(estimator, shared.engine)
    if getattr(estimator, "engine", None) is not None and (shared.workers or shared.executor is not None):
        raise ValueError(
            "workers= and executor= are for the NumPy engine: on the JAX engine one device does all the work; leave "
            "them out, and start a process for each device where there are several"
        )
    return estimator


def opened(
    shared: Shared,
    specification: Callable[[], Specification],
    run: Callable[[Saver, Deadline], Posterior],
    threads: bool = False,
) -> Posterior:
    """The Posterior of `run`, made with the crew, the signals and the file that were asked for.

    `threads` says that `workers` are threads, as for compiled simulators, which let go of Python's lock.
    The time limit begins here. What the crew has thrown away is added to the cost.
    """
    deadline = Deadline(shared.max_seconds)
    with (
        hired(shared.workers, shared.executor, threads=threads) as crew,
        guarded(terminate=shared.store is not None),
        begin(shared.store, shared.segment, specification) as saver,
    ):
        post = run(saver, deadline)
        return replace(post, cost=post.cost.plus(Cost(surplus=crew.surplus)))


def check_model(model: Any) -> None:
    """A ValueError where the first argument of a sampler is not a model."""
    if not isinstance(model, Model):
        raise ValueError(f"model must be an od.Model, got {type(model).__name__}")


def checked_ends(draws: Any, budget: Any, meaning: str) -> tuple[int | None, int | None]:
    """`draws` and `budget` as whole numbers, one of which may be None; `meaning` says what draws are."""
    draws = optional_whole_number("draws", draws, meaning)
    budget = optional_whole_number("budget", budget, "the largest number of simulations")
    if draws is None and budget is None:
        raise ValueError("give draws=, budget= or both: one of them must end the run")
    return draws, budget


def check_pays(budget: int | None, pseudo_samples: int, pilot: int = 0) -> None:
    """A ValueError where a budget does not pay for one proposal, after so many simulations of a pilot.

    >>> check_pays(12, 3, 10)
    Traceback (most recent call last):
    ...
    ValueError: budget = 12 does not pay for one proposal of pseudo_samples = 3 simulations after 10 pilot simulations
    """
    if budget is not None and budget - pilot < pseudo_samples:
        after = f" after {pilot} pilot simulations" if pilot else ""
        raise ValueError(
            f"budget = {budget} does not pay for one proposal of pseudo_samples = {pseudo_samples} simulations{after}"
        )


def ended(reason: str, budget: int | None, made: str, after: str = "") -> Status:
    """Why a run ended, with what it has made; `after` says when, where it was stopped.

    >>> print(ended("max_seconds", None, "12 draws", " after 300 proposals").message)
    stopped by max_seconds after 300 proposals: 12 draws
    """
    message = {
        "finished": f"finished: {made}",
        "budget": f"the budget of {budget or 0:,} simulations is spent: {made}",
        "max_seconds": f"stopped by max_seconds{after}: {made}",
    }
    return Status(reason, message.get(reason, f"{reason}{after}: {made}"))
