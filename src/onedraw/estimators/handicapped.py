"""An estimator made worse on purpose, to compare it with others in the convex order."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onedraw.engines.arrays import Array, DeviceParts, namespace
from onedraw.engines.streams import Purpose, Rng
from onedraw.estimators.protocol import Evaluation, check_estimator, evaluate, from_device, public_estimate
from onedraw.model.model import Model
from onedraw.model.prior import Prior


@dataclass(frozen=True, eq=False)
class Handicapped:
    """An estimator made worse on purpose; made by `handicapped`."""

    estimator: Any
    alpha: float
    device_parts = DeviceParts(("estimator",), ("alpha",))

    @property
    def prior(self) -> Prior:
        prior: Prior = self.estimator.prior
        return prior

    @property
    def log_bound(self) -> float | None:
        bound: float | None = self.estimator.log_bound
        return None if bound is None else bound - math.log1p(-self.alpha)

    @property
    def simulations(self) -> int:
        """Simulations of one estimate, if it is not zero."""
        return int(getattr(self.estimator, "simulations", 1))

    @property
    def engine(self) -> Any:
        """The JAX engine, if the estimator within is on it."""
        return getattr(self.estimator, "engine", None)

    def with_model(self, model: Model) -> "Handicapped":
        """The same estimator for a model whose distance is ready."""
        return replace(self, estimator=self.estimator.with_model(model))

    def evaluate(self, rng: Rng, theta: Array, log_needed: Array | None) -> Evaluation:
        """As the estimator within, at the rows whose coin spared them."""
        if self.engine is not None and isinstance(rng, Rng):
            return from_device(self, rng, theta, log_needed)
        spared = rng.bulk(Purpose.HANDICAP).random(len(theta)) >= self.alpha
        xp = namespace(spared)
        log_share = -math.log1p(-self.alpha)
        log_needed_within = -np.inf if log_needed is None else log_needed - log_share
        inner = evaluate(self.estimator, rng, theta, xp.where(spared, log_needed_within, np.inf))
        return inner._replace(log_estimate=xp.where(spared, inner.log_estimate + log_share, -np.inf))

    on_device = evaluate

    def log_estimate(self, rng: np.random.Generator, theta: Array, worth: Array) -> tuple[Array, int]:
        """The public form (see `Estimator`)."""
        return public_estimate(self, rng, theta, worth)


def handicapped(estimator: Any, alpha: float) -> Handicapped:
    """The estimator replaced by 0 with probability alpha and divided by 1 - alpha otherwise.

    It has the same mean and is worse in the convex order, which is the paper's way of comparing M pseudo-samples
    with one (docs/theory.md, L3). If it is 0 nothing is simulated.

    >>> import onedraw as od
    >>> from onedraw import paper
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> half = paper.handicapped(paper.abc_average(model, od.uniform(0.5)), alpha=0.5)
    >>> round(half.log_bound, 4)
    0.6931
    """
    if not 0.0 <= alpha < 1.0:
        raise ValueError(f"alpha must be at least 0 and below 1, got {alpha!r}: it is the chance of a zero")
    check_estimator(estimator)
    return Handicapped(estimator, float(alpha))
