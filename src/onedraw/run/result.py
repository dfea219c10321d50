"""What a plan returns, what a run's file holds of it, and the Posterior that it becomes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from onedraw.cost import Cost
from onedraw.engines.arrays import Array
from onedraw.failures import Failure
from onedraw.model.kernels import Kernel
from onedraw.model.model import Model
from onedraw.model.prior import columns_by_name
from onedraw.results.monte_carlo_error import some_of
from onedraw.results.posterior import Posterior, Status

HIDDEN = ("seed", "parameters", "kernel", "eps", "block", "timeout", "engine", "keep", "layout", "coverage", "bank")
"""Arguments of a run that its settings do not repeat."""
ARRAYS = ("theta", "distances", "weights", "groups", "refits", "path")
NUMBERS = ("rate", "rate_se", "effective", "log_evidence", "log_evidence_se", "draws_worth")


class Stage(NamedTuple):
    """One entry of the path of a sequential run: what was simulated, and at which tolerance it ended."""

    eps: float
    acceptance_rate: float
    """Share of this stage's proposals that were accepted at this eps."""
    proposals: int
    simulations: int
    ess: float
    """Effective number of draws at the end of the stage, by their weights alone."""


@dataclass(frozen=True, eq=False)
class Result:
    """Draws of a run and what its plan says of them."""

    theta: Array
    """(chains, draws, dim)"""
    distances: Array | None
    """(chains, draws, M) if they are kept."""
    reason: str
    """Why the run ended: see `Status`."""
    made: str
    """What it has made, in words."""
    rate: float = math.nan
    rate_se: float = math.nan
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the run has chosen itself."""
    notes: tuple[str, ...] = ()
    weights: Array | None = None
    """(chains, draws), summing to 1."""
    groups: Array | None = None
    path: tuple[Stage, ...] = ()
    eps: float | None = None
    """The tolerance, if the run has chosen it."""
    effective: float | None = None
    refits: Array | None = None
    """(m, k) of a learnt likelihood: see `monte_carlo_error.Draws`."""
    draws_worth: float | None = None
    """The same."""
    independent: bool = True
    after: str = ""
    """When the run was stopped, in words."""
    model: Model | None = None
    """With its distance as the run has learnt it."""
    bank: Any = None
    kept: Any = None
    """All simulations: as SimulatedData, or as the bank of infer."""
    log_evidence: float | None = None
    """Log of the prior mean of K at the tolerance, if the run can tell, and its standard error."""
    log_evidence_se: float | None = None

    def packed(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """As the values and arrays of a record."""
        path = np.array([tuple(stage) for stage in self.path], dtype=float).reshape(-1, len(Stage._fields))
        arrays = {name: getattr(self, name) for name in ARRAYS[:-1] if getattr(self, name) is not None}
        scalars = {
            "reason": self.reason, "made": self.made, "settings": dict(self.settings), "notes": list(self.notes),
            "eps": None if self.eps is None else repr(self.eps), "independent": self.independent, "after": self.after,
            **{name: repr(getattr(self, name)) for name in NUMBERS},
        }  # fmt: skip
        return scalars, {**arrays, "path": path}

    @staticmethod
    def unpacked(scalars: Mapping[str, Any], arrays: Mapping[str, Array]) -> "Result":
        """As it was packed."""
        known = {name: arrays[name].copy(order="K") if name in arrays else None for name in ARRAYS[1:-1]}
        theta, weights = arrays["theta"].copy(order="K"), known["weights"]
        if weights is not None and not 0 < float(weights.sum()) < math.inf:
            raise ValueError("weights of draws must be finite and add up to more than 0")
        for name in ("weights", "groups"):
            some = known[name]
            if some is not None and some.shape != theta.shape[:2]:
                raise ValueError(f"{name} of shape {some.shape} are none of draws of shape {theta.shape[:2]}")
        refits, draws = known["refits"], theta.shape[0] * theta.shape[1]
        if refits is not None and (refits.ndim != 2 or not refits.size or some_of(draws, refits).size != len(refits.T)):
            raise ValueError(f"refits of shape {refits.shape} are none of {draws} draws")
        path = tuple(Stage(a, b, int(c), int(d), e) for a, b, c, d, e in arrays["path"].tolist())
        numbers = {name: None if scalars[name] == "None" else float(scalars[name]) for name in NUMBERS}
        eps = None if scalars["eps"] is None else float(scalars["eps"])
        plain = {name: scalars[name] for name in ("reason", "made", "settings", "independent", "after")}
        return Result(theta=theta, **known, **plain, **numbers, eps=eps, path=path, notes=tuple(scalars["notes"]))  # type: ignore[arg-type]


def nothing(dim: int, reason: str, **more: Any) -> Result:
    """The result of a run that was stopped before its first draws."""
    return Result(np.empty((1, 0, dim)), None, reason, "0 draws", **more)


def status_of(result: Result, budget: int | None) -> Status:
    """Why a run ended, with what it has made."""
    unit = "simulations" if result.settings.get("price") is None else "units of the price"
    message = {
        "finished": f"finished: {result.made}",
        "budget": f"the budget of {budget or 0:,} {unit} is spent: {result.made}",
        "max_seconds": f"stopped by max_seconds{result.after}: {result.made}",
        "unfinished": f"not finished: {result.made} so far; od.resume continues it",
    }
    return Status(result.reason, message.get(result.reason, f"{result.reason}{result.after}: {result.made}"))


def posterior(
    algorithm: str,
    arguments: Mapping[str, Any],
    result: Result,
    columns: Any,
    kernel: Kernel | None,
    asked: tuple[str, float | None] | None,
    cost: Cost,
    failures: tuple[Failure, ...],
    status: Status,
    notes: tuple[str, ...] = (),
) -> Posterior:
    """The Posterior of a run; of `columns`, a prior or what a file knows of one, only layout and types are used.

    `asked` is the kernel by name, with the tolerance that was asked for; None for a run without one. `kernel` is None
    also if it is not known, as that of a file whose kernel was the user's own.
    """
    if result.theta.ndim != 3 or result.theta.shape[2] != columns.layout.size:
        raise ValueError(f"draws of shape {result.theta.shape} are none of {columns.layout.size} parameters")
    eps = result.eps if result.eps is not None or asked is None else asked[1]
    shown = {name: value for name, value in arguments.items() if name not in HIDDEN}
    chosen = {"kernel": None if asked is None else asked[0], "eps": eps}
    if result.eps is not None and asked is not None:
        chosen["target_eps"] = asked[1]
    distances = result.distances
    if distances is not None and distances.shape[2] == 1:
        distances = distances[:, :, 0]
    return Posterior(
        draws=columns_by_name(columns.layout, columns.discrete, result.theta),
        weights=result.weights,
        distances=distances,
        acceptance_rate=result.rate,
        acceptance_rate_se=result.rate_se,
        cost=cost,
        status=status,
        seed=arguments["seed"],
        settings={"algorithm": algorithm, **chosen, **shown, **result.settings},
        failures=failures,
        model=result.model,
        kernel=None if kernel is None or eps is None or not math.isfinite(eps) else kernel.with_eps(eps),
        independent=result.independent,
        notes=(*result.notes, *_failed(cost, failures), *_limited(arguments), *notes),
        groups=result.groups,
        path=result.path,
        bank=result.bank,
        kept=result.kept,
        effective=result.effective,
        refits=result.refits,
        draws_worth=result.draws_worth,
        evidence=_evidence(result),
    )


def _evidence(result: Result) -> tuple[float, float] | None:
    if result.log_evidence is None or result.log_evidence_se is None:
        return None
    return result.log_evidence, result.log_evidence_se


def _failed(cost: Cost, failures: tuple[Failure, ...]) -> tuple[str, ...]:
    if not (cost.failed and failures):
        return ()
    return (
        f"{cost.failed:,} of {cost.simulations:,} simulations failed and count as misses; the first failed "
        f"{failures[0]}",
    )


def _limited(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """What a reader must know of a run whose simulations had a time limit."""
    timeout = arguments.get("timeout")
    if timeout is None:
        return ()
    return (
        f"simulations that took more than timeout = {timeout:g} s were killed and count as misses: the posterior is "
        "that of the model conditional on finishing in time",
    )
