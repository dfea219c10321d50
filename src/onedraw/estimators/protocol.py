"""What an estimator is, and how samplers ask for estimates.

An estimator gives unbiased, non-negative estimates of the likelihood part of the target, up to one constant. Samplers
ask for them through `evaluate`, and hand over the least log estimate that would still be accepted, so that a
pseudo-sample that cannot matter is not drawn (early rejection).
"""

import math
import operator
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from onedraw.cost import Cost
from onedraw.engines.arrays import NO_DISTANCES, Array, namespace
from onedraw.engines.clock import OutOfTime
from onedraw.engines.streams import Purpose, Rng
from onedraw.failures import FAULTS, Failure, SimulationError, first_failures, in_words, told
from onedraw.model.layout import numbers
from onedraw.model.prior import Prior


class Evaluation(NamedTuple):
    """Estimates at n rows of theta, and what they cost."""

    log_estimate: Array
    """(n,), the prior not included; -inf for an estimate of zero and for rows that were skipped."""
    distances: Array
    """(n, M) if they are kept (inf if not simulated or failed), otherwise (0, 0)."""
    cost: Cost = Cost()
    """On a device `failed` is (n,)."""
    failures: tuple[Failure, ...] = ()
    ignored_rng: bool = False
    rows: Array | None = None
    """Summaries (n, M, s) if they are asked for."""
    counted: Array | None = None
    """Of simulators in two parts, (n, 2): what each simulation counts, see `estimators.pairs`."""


@runtime_checkable
class Estimator(Protocol):
    """What Algorithm 2 needs from an estimator. Samplers accept any object with these three members.

    `log_bound` is a number that no log estimate exceeds (0 for an ABC average), or None if none is known: then nothing
    is rejected early, and starting points must be given. An attribute `simulations` gives the largest number of
    simulations of one estimate (1 without it), so that a budget is never exceeded.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> class Exact:
    ...     prior = od.Prior(theta=stats.norm(0, 1))
    ...     log_bound = 0.0
    ...     def log_estimate(self, rng, theta, worth):
    ...         return -0.5 * (theta[:, 0] - 2.0) ** 2, int(worth.sum())
    >>> isinstance(Exact(), Estimator)
    True
    """

    @property
    def prior(self) -> Prior:
        """Of the parameters; not part of the estimate."""
        ...

    @property
    def log_bound(self) -> float | None:
        """A number that no log estimate exceeds, or None."""
        ...

    def log_estimate(self, rng: np.random.Generator, theta: Array, worth: Array) -> tuple[Array, int]:
        """Log of an unbiased non-negative estimate at each row of theta (n, dim), and the simulations it took.

        Rows for which `worth` (n,) is False are rejected whatever the estimate: their value is not read. The prior is
        not part of the estimate.
        """
        ...


def evaluate(
    estimator: Any, rng: Rng, theta: Array, log_needed: Array | None, instead: Array | None = None
) -> Evaluation:
    """Estimates of any estimator at rows of theta; for those of users, checked.

    On a device all rows are simulated, those of which nothing is wanted at the rows of `instead`: a simulator might
    never return from a proposal outside the prior.
    """
    if getattr(estimator, "engine", None) is not None or not isinstance(theta, np.ndarray):
        if instead is not None and log_needed is not None:
            theta = namespace(theta).where((log_needed < np.inf)[:, None], theta, instead)
        on_device = partial(from_device, estimator) if isinstance(theta, np.ndarray) else estimator.on_device
        there: Evaluation = on_device(rng, theta, log_needed)
        return there
    if hasattr(estimator, "evaluate"):
        result: Evaluation = estimator.evaluate(rng, theta, log_needed)
        return result
    bound = math.inf if estimator.log_bound is None else estimator.log_bound
    worth = np.ones(len(theta), bool) if log_needed is None else (log_needed <= bound) & (log_needed < np.inf)
    if not worth.any():
        return Evaluation(np.full(len(theta), -np.inf), NO_DISTANCES)
    try:
        log_estimate, simulations = estimator.log_estimate(rng.bulk(Purpose.SIMULATE), theta, worth)
        log_estimate = numbers(log_estimate)
    except (OutOfTime, SimulationError):
        raise
    except FAULTS as error:
        others = f" and {len(theta) - 1} other rows" if len(theta) > 1 else ""
        raise ValueError(
            f"log_estimate failed at {in_words(estimator.prior.named(theta[0]))}{others}: {told(error)}"
        ) from error
    if log_estimate.shape != (len(theta),):
        raise ValueError(
            f"log_estimate returned shape {log_estimate.shape} for {len(theta)} rows: expected ({len(theta)},)"
        )
    log_estimate = np.where(worth, log_estimate, -np.inf)
    wrong = ~(log_estimate <= (math.inf if bound is math.inf else bound + 1e-9)) | (log_estimate == np.inf)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"log_estimate is {log_estimate[row]} at {in_words(estimator.prior.named(theta[row]))}: it must be a "
            f"number or -inf, and not above log_bound = {estimator.log_bound}"
        )
    return Evaluation(log_estimate, NO_DISTANCES, Cost(_counted(estimator, simulations, int(np.count_nonzero(worth)))))


def from_device(estimator: Any, rng: Rng, theta: Array, log_needed: Array | None) -> Evaluation:
    """Estimates at rows of theta, computed on the device that the estimator was placed on."""
    from onedraw.engines import jax as device

    found = device.evaluate(estimator, estimator.engine, rng, theta, log_needed)
    cost = Cost(found.simulations, failed=found.failed, surplus=found.surplus)
    distances = NO_DISTANCES if found.distances is None else found.distances
    return Evaluation(found.log_estimate, distances, cost, found.failures, rows=found.rows)


def public_estimate(estimator: Any, rng: np.random.Generator, theta: Array, worth: Array) -> tuple[Array, int]:
    """`Estimator.log_estimate` from `evaluate`: the streams are keyed by a number drawn from `rng`."""
    keyed = Rng(int(rng.integers(2**63)), 0)
    result = estimator.evaluate(keyed, np.asarray(theta, dtype=float), np.where(worth, -np.inf, np.inf))
    return result.log_estimate, result.cost.simulations


def joined(parts: list[Evaluation]) -> Evaluation:
    """The evaluations of several blocks of rows as one."""
    if len(parts) == 1:
        return parts[0]
    rows = [part.rows for part in parts if part.rows is not None]
    return Evaluation(
        np.concatenate([part.log_estimate for part in parts]),
        np.concatenate([part.distances for part in parts]),
        Cost.total(part.cost for part in parts),
        first_failures(*(part.failures for part in parts)),
        parts[0].ignored_rng,
        np.concatenate(rows) if rows else None,
    )


def check_estimator(estimator: Any) -> None:
    """A ValueError if an object is not an Estimator."""
    missing = [name for name in ("prior", "log_bound", "log_estimate") if not hasattr(estimator, name)]
    if missing:
        raise ValueError(
            f"estimator {estimator!r} has no {missing[0]}: wrap a function as od.unbiased(function, prior)"
        )


def _counted(estimator: Any, simulations: Any, rows: int) -> int:
    """The simulations that a user's estimator reports, checked: a budget is kept by what one estimate may take."""
    most = int(getattr(estimator, "simulations", 1))
    try:
        count = operator.index(simulations)
    except TypeError:
        count = -1
    if not 0 <= count <= most * rows:
        raise ValueError(
            f"log_estimate reported {simulations!r} simulations for {rows} estimates: it must be a whole number of at "
            f"most {most} each; say how many an estimate may take in an attribute `simulations` of the estimator"
        )
    return count
