"""Random walks: normal increments, rounded for discrete parameters."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onedraw.arguments import numbers, positive
from onedraw.engines.arrays import Array, DeviceParts, Formula, declared, namespace
from onedraw.model.prior import Prior
from onedraw.proposals.protocol import Proposed

OPTIMAL_SCALE = 2.38
"""Over the root of the dimension: the random-walk scale of Roberts, Gelman and Gilks (1997) for smooth targets."""


@dataclass(frozen=True, eq=False)
class RandomWalk:
    """theta' = theta + a normal increment; made by `random_walk`."""

    cov: Array | None
    scale: float | None
    root: Array | None = None
    prior: Prior | None = None
    device_parts = DeviceParts(("root",), ("prior",))

    @property
    def formula(self) -> Formula | None:
        """For compiled loops."""
        prior = declared(self.prior)
        return None if prior is None else Formula("random_walk", self.root, (prior,))

    def resolved(self, prior: Prior, spread: Callable[[], Array]) -> "RandomWalk":
        """Ready for use; `spread()` gives the covariance if none was given."""
        cov, scale = self.cov, 1.0 if self.scale is None else self.scale
        if cov is None:
            cov = spread()
            scale = OPTIMAL_SCALE / math.sqrt(prior.dim) if self.scale is None else self.scale
            # Increments of discrete parameters are rounded, and smaller ones would hardly ever move.
            cov = cov + np.diag(np.where(prior.discrete, np.maximum(0.25 / scale**2 - np.diag(cov), 0.0), 0.0))
        elif cov.ndim < 2:
            if cov.size not in (1, prior.dim):
                raise ValueError(
                    f"cov has {cov.size} variances for {prior.dim} parameters {list(prior.labels)}: give one for each"
                )
            cov = np.diag(np.broadcast_to(cov, prior.dim))
        if cov.shape != (prior.dim, prior.dim):
            raise ValueError(
                f"cov has shape {cov.shape} for {prior.dim} parameters {list(prior.labels)}: expected "
                f"({prior.dim}, {prior.dim})"
            )
        values, vectors = np.linalg.eigh(cov)
        if not values[0] > 1e-14 * values[-1]:
            involved = prior.labels[int(np.abs(vectors[:, 0]).argmax())]
            raise ValueError(
                f"cov is not positive definite (smallest eigenvalue {values[0]:.3g}, mostly along {involved!r}): the "
                "walk would never move in that direction; give random_walk(cov=...) a full covariance"
            )
        return replace(self, cov=cov, scale=scale, root=scale * np.linalg.cholesky(cov), prior=prior)

    def propose(self, rng: np.random.Generator, theta: Array, log_prior: Array) -> Proposed:
        assert self.root is not None and self.prior is not None
        normal = rng.standard_normal(theta.shape)
        increment = normal * self.root[0, 0] if self.root.size == 1 else normal @ self.root.T
        if self.prior.discrete.any():
            xp = namespace(increment)
            increment = xp.where(self.prior.discrete, xp.rint(increment), increment)
        increment += theta
        log_prior_there = self.prior.logpdf(increment)
        return Proposed(increment, log_prior_there, log_prior_there - log_prior)

    def described(self) -> dict[str, Any]:
        """For the run's settings."""
        return {"name": "random_walk", "cov": np.asarray(self.cov).tolist(), "scale": self.scale}


def random_walk(cov: Any = None, scale: float | None = None) -> RandomWalk:
    """Normal increments with covariance scale² · cov.

    `cov` is a matrix (dim, dim), variances (dim,), or one variance for all. Without it the covariance comes from
    draws of the starting phase that are not starting points, with scale 2.38 / sqrt(dim); with it the scale is 1.
    Increments of discrete parameters are rounded.

    >>> random_walk([0.1, 0.4]).cov
    array([0.1, 0.4])
    >>> random_walk(cov=-1)
    Traceback (most recent call last):
    ...
    ValueError: cov must hold positive variances, got -1
    """
    if scale is not None:
        scale = positive("scale", scale, "the factor by which the walk's increments are stretched")
    if cov is None:
        return RandomWalk(None, scale)
    try:
        matrix = numbers(cov)
    except (TypeError, ValueError):
        matrix = np.array(np.nan)
    if not np.isfinite(matrix).all() or matrix.ndim > 2 or matrix.size == 0:
        raise ValueError(f"cov must be a matrix of finite numbers, got {cov!r}")
    if matrix.ndim == 2 and (matrix.shape[0] != matrix.shape[1] or not np.allclose(matrix, matrix.T)):
        raise ValueError(f"cov must be square and symmetric, got shape {matrix.shape}: {cov!r}")
    if matrix.ndim < 2 and not (matrix > 0).all():
        raise ValueError(f"cov must hold positive variances, got {cov!r}")
    return RandomWalk(matrix, scale)


def rounded_mass(away: Array, deviation: Array | float) -> Array:
    """The probability that a rounded normal of this deviation lies `away` from its mean, a whole number.

    >>> rounded_mass(np.array([0.0, 1.0, -1.0, 40.0]), 0.5).round(4).tolist()
    [0.6827, 0.1573, 0.1573, 0.0]
    """
    from scipy.special import ndtr

    # Both from the lower tail: there a difference of small numbers is exact.
    mass: Array = ndtr((0.5 - np.abs(away)) / deviation) - ndtr((-0.5 - np.abs(away)) / deviation)
    return mass
