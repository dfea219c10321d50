"""A user's function as an estimator."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from onedraw.arguments import number_or_nan, shown, whole_number
from onedraw.cost import Cost
from onedraw.engines.arrays import Array, DeviceParts, namespace
from onedraw.engines.streams import Purpose
from onedraw.estimators.protocol import Evaluation
from onedraw.model.layout import numbers
from onedraw.model.prior import Prior


@dataclass(frozen=True, eq=False)
class FunctionEstimator:
    """A user's function as an Estimator; made by `unbiased`."""

    prior: Prior
    function: Callable[[np.random.Generator, Array], Array]
    log_bound: float | None = None
    simulations: int = 1
    engine: Any = None
    """The JAX engine, if the function is to run there."""
    device_parts = DeviceParts(fixed=("prior", "function", "log_bound", "simulations", "engine"))

    def on_device(self, rng: Any, theta: Array, log_needed: Array | None) -> Evaluation:
        """The function as a part of a program for a device; what is no estimate is zero there, and failed."""
        from onedraw.engines.jax import FailureMask

        log_estimate = self.function(rng.bulk(Purpose.SIMULATE), theta)
        xp = namespace(log_estimate)
        if log_estimate.shape != (theta.shape[0],):
            raise ValueError(f"the estimator returned shape {log_estimate.shape} for {theta.shape[0]} rows")
        wrong = ~(log_estimate < np.inf) if self.log_bound is None else ~(log_estimate <= self.log_bound + 1e-6)
        wrong = wrong if log_needed is None else wrong & (log_needed < np.inf)
        kept = xp.where(wrong, -np.inf, log_estimate)
        nothing: Any = None
        failures: Any = (FailureMask(theta, wrong[:, None]),)
        failed: Any = wrong.astype(int)
        cost = Cost(theta.shape[0] * self.simulations, failed=failed)
        return Evaluation(kept, nothing, cost, failures)

    def log_estimate(self, rng: np.random.Generator, theta: Array, worth: Array) -> tuple[Array, int]:
        """The function at the rows that are worth it."""
        log_estimate = np.full(len(theta), -np.inf)
        rows = np.flatnonzero(worth)
        if rows.size:
            found = numbers(self.function(rng, theta[rows]))
            if found.shape != (rows.size,):
                raise ValueError(f"it returned shape {found.shape} for {rows.size} rows: expected ({rows.size},)")
            log_estimate[rows] = found
        return log_estimate, self.simulations * int(rows.size)


def unbiased(
    function: Callable[[np.random.Generator, Array], Array],
    prior: Prior,
    *,
    log_bound: float | None = None,
    simulations: int = 1,
) -> FunctionEstimator:
    """An estimator from a function `log_estimate(rng, theta)` of a batch of parameters (n, dim) -> (n,).

    exp(log_estimate) must be non-negative and have the likelihood, up to a constant, as its mean. `simulations` is
    the cost of one estimate; `log_bound`, if you know one, lets proposals be rejected early.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> def log_estimate(rng, theta):
    ...     return -0.5 * (theta[:, 0] - 2.0) ** 2 + np.log(rng.exponential(size=len(theta)))
    >>> estimator = od.unbiased(log_estimate, od.Prior(theta=stats.norm(0, 1)))
    >>> post = od.pseudo_marginal(estimator=estimator, start={"theta": 1.0}, draws=500, chains=64,
    ...                           proposal=od.random_walk(1.0), seed=1)
    >>> bool(abs(post.draws["theta"][:, 100:].mean() - 1.0) < 0.1)
    True
    """
    if not callable(function):
        raise ValueError(f"function must be callable as function(rng, theta), got {function!r}")
    if not isinstance(prior, Prior):
        raise ValueError(f"prior must be an od.Prior, got {prior!r}")
    if log_bound is not None and not math.isfinite(number_or_nan(log_bound)):
        raise ValueError(f"log_bound must be a finite number or None, got {shown(log_bound)}")
    return FunctionEstimator(
        prior,
        function,
        None if log_bound is None else float(log_bound),
        whole_number("simulations", simulations, "the cost of one estimate"),
    )
