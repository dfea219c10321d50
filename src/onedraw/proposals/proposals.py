"""Proposals for chains: random walk, independence, lazy, or your own function.

A proposal moves a block of chains at once: theta (n, dim) -> theta' (n, dim), with the log of
pi(theta') q(theta | theta') / (pi(theta) q(theta' | theta)) for each chain, and which chains are held this step. A
held chain repeats its whole state: nothing is proposed, simulated or tested (docs/theory.md).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from onedraw.arguments import positive
from onedraw.engines.arrays import Array, namespace
from onedraw.model.prior import Prior

OPTIMAL_SCALE = 2.38
"""Over the root of the dimension: the random-walk scale of Roberts, Gelman and Gilks (1997) for smooth targets."""


class Proposed(NamedTuple):
    """What a proposal hands to a sampler's step."""

    theta: Array
    log_prior: Array
    """Of theta', (n,); -inf outside the support."""
    log_ratio: Array | float
    """log of pi(theta') q(theta | theta') / (pi(theta) q(theta' | theta)), which is 0 for draws from the prior."""
    held: Array | None = None
    """(n,) True for chains that repeat their state; None where none does."""


def rounded_mass(away: Array, deviation: Array | float) -> Array:
    """The probability that a normal of this deviation, rounded, lies so far from its mean, a whole number.

    >>> rounded_mass(np.array([0.0, 1.0, -1.0, 40.0]), 0.5).round(4).tolist()
    [0.6827, 0.1573, 0.1573, 0.0]
    """
    from scipy.special import ndtr

    # Both from the lower tail, where a difference of small numbers is exact.
    mass: Array = ndtr((0.5 - np.abs(away)) / deviation) - ndtr((-0.5 - np.abs(away)) / deviation)
    return mass


@dataclass(frozen=True, eq=False)
class RandomWalk:
    """theta' = theta + a normal increment; made by `random_walk`."""

    cov: Array | None
    scale: float | None
    root: Array | None = None
    prior: Prior | None = None

    def resolved(self, prior: Prior, spread: Callable[[], Array]) -> "RandomWalk":
        """Ready for use; `spread()` gives the covariance where none was given."""
        cov, scale = self.cov, 1.0 if self.scale is None else self.scale
        if cov is None:
            cov = spread()
            scale = OPTIMAL_SCALE / math.sqrt(prior.dim) if self.scale is None else self.scale
            # Increments of discrete parameters are rounded, and smaller ones would hardly ever move.
            cov = cov + np.diag(np.where(prior.discrete, np.maximum(0.25 / scale**2 - np.diag(cov), 0.0), 0.0))
        elif cov.ndim < 2:
            cov = np.diag(np.broadcast_to(cov, prior.dim))
        if cov.shape != (prior.dim, prior.dim):
            raise ValueError(
                f"cov has shape {cov.shape} for {prior.dim} parameters {list(prior.names)}: expected "
                f"({prior.dim}, {prior.dim})"
            )
        values, vectors = np.linalg.eigh(cov)
        if not values[0] > 1e-14 * values[-1]:
            involved = prior.names[int(np.abs(vectors[:, 0]).argmax())]
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


@dataclass(frozen=True, eq=False)
class Independence:
    """theta' drawn from one distribution whatever theta is; made by `independence`."""

    distribution: Any
    prior: Prior | None = None

    def resolved(self, prior: Prior, spread: Callable[[], Array]) -> "Independence":
        if self.distribution is None:
            return Independence(prior, prior)
        distribution = self.distribution
        if not isinstance(distribution, Prior):
            if prior.dim != 1:
                raise ValueError(
                    f"independence() needs a distribution of {list(prior.names)}: give an od.Prior with these names"
                )
            distribution = Prior(**{prior.names[0]: distribution})
        if distribution.names != prior.names:
            raise ValueError(
                f"the proposal is a distribution of {list(distribution.names)}, the model has {list(prior.names)}"
            )
        return Independence(distribution, prior)

    def propose(self, rng: np.random.Generator, theta: Array, log_prior: Array) -> Proposed:
        assert self.prior is not None
        there = self.distribution.sample(rng, len(theta))
        if self.distribution is self.prior:
            # Densities cancel, so none is computed: the chains' log_prior is not read again.
            return Proposed(there, log_prior, 0.0)
        log_prior_there = self.prior.logpdf(there)
        log_q_ratio = self.distribution.logpdf(theta) - self.distribution.logpdf(there)
        return Proposed(there, log_prior_there, log_prior_there - log_prior + log_q_ratio)

    def described(self) -> dict[str, Any]:
        return {
            "name": "independence",
            "distribution": "prior" if self.distribution is self.prior else repr(self.distribution),
        }


@dataclass(frozen=True, eq=False)
class Lazy:
    """With probability `hold` the chain stays; made by `lazy`."""

    proposal: Any
    hold: float

    def resolved(self, prior: Prior, spread: Callable[[], Array]) -> "Lazy":
        return replace(self, proposal=resolve(self.proposal, prior, spread))

    def propose(self, rng: np.random.Generator, theta: Array, log_prior: Array) -> Proposed:
        held = rng.random(len(theta)) < self.hold
        return self.proposal.propose(rng, theta, log_prior)._replace(held=held)

    def described(self) -> dict[str, Any]:
        return {"name": "lazy", "hold": self.hold, "proposal": self.proposal.described()}


@dataclass(frozen=True, eq=False)
class FunctionProposal:
    """A user's function (rng, theta) -> (theta', log q ratio), checked at every use."""

    function: Callable[[np.random.Generator, Array], tuple[Array, Array]]
    prior: Prior | None = None

    def resolved(self, prior: Prior, spread: Callable[[], Array]) -> "FunctionProposal":
        return replace(self, prior=prior)

    def propose(self, rng: np.random.Generator, theta: Array, log_prior: Array) -> Proposed:
        assert self.prior is not None
        xp, given = namespace(theta), theta
        if xp is np:
            given = theta.view()
            given.flags.writeable = False
        try:
            proposed, log_q_ratio = self.function(rng, given)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"the proposal failed ({error}): it is called as proposal(rng, theta) with theta of shape "
                f"{theta.shape} and returns (theta', log q(theta | theta') - log q(theta' | theta))"
            ) from error
        proposed = xp.array(proposed, dtype=theta.dtype)
        log_q_ratio = xp.asarray(log_q_ratio, dtype=theta.dtype)
        if proposed.shape != theta.shape or log_q_ratio.shape not in ((), (len(theta),)):
            raise ValueError(
                f"the proposal returned shapes {proposed.shape} and {log_q_ratio.shape}: expected {theta.shape} "
                f"and ({len(theta)},)"
            )
        wrong = ~xp.isfinite(proposed).all(axis=1) | xp.isnan(log_q_ratio) | (log_q_ratio == np.inf)
        if xp is not np:
            # What cannot be looked at on a device is never accepted.
            log_q_ratio = xp.where(wrong, -np.inf, log_q_ratio)
        elif wrong.any():
            row = int(np.argmax(wrong))
            ratio = np.broadcast_to(log_q_ratio, len(theta))[row]
            raise ValueError(
                f"the proposal moved {self.prior.named(theta[row])} to {self.prior.named(proposed[row])} with log q "
                f"ratio {ratio}: both must be numbers (the ratio may be -inf)"
            )
        log_prior_there = self.prior.logpdf(proposed)
        return Proposed(proposed, log_prior_there, log_prior_there - log_prior + log_q_ratio)

    def described(self) -> dict[str, Any]:
        return {"name": getattr(self.function, "__name__", "function")}


def random_walk(cov: Any = None, scale: float | None = None) -> RandomWalk:
    """Normal increments with covariance scale² · cov.

    `cov` is a matrix (dim, dim), variances (dim,), or one variance for all. Without it the covariance comes from
    draws of the starting phase that no chain starts from, with scale 2.38 / sqrt(dim); with it the scale is 1.
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
        matrix = np.array(cov, dtype=float)
    except (TypeError, ValueError):
        matrix = np.array(np.nan)
    if not np.isfinite(matrix).all() or matrix.ndim > 2 or matrix.size == 0:
        raise ValueError(f"cov must be a matrix of finite numbers, got {cov!r}")
    if matrix.ndim == 2 and (matrix.shape[0] != matrix.shape[1] or not np.allclose(matrix, matrix.T)):
        raise ValueError(f"cov must be square and symmetric, got shape {matrix.shape}: {cov!r}")
    if matrix.ndim < 2 and not (matrix > 0).all():
        raise ValueError(f"cov must hold positive variances, got {cov!r}")
    return RandomWalk(matrix, scale)


def independence(distribution: Any = None) -> Independence:
    """Proposals drawn from one distribution: the prior by default, or an `od.Prior`, or SciPy's for one parameter.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> post = od.pseudo_marginal(model, od.uniform(0.5), draws=100, chains=64, proposal=od.independence(), seed=1)
    >>> post.settings["proposal"]["name"]
    'independence'
    """
    return Independence(distribution)


def lazy(proposal: Any = None, hold: float = 0.5) -> Lazy:
    """The proposal held back with probability `hold`: the chain repeats its state and nothing is simulated.

    With hold = 1/2 the chain is non-negative definite for any proposal, which the factor-two theorem asks for; it
    costs accuracy (its asymptotic variance is 2v + v(f) for v of the chain without), so it is never the default.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> post = od.pseudo_marginal(model, od.uniform(0.5), draws=100, chains=64, proposal=od.lazy(), seed=1)
    >>> post.settings["proposal"]["hold"]
    0.5
    """
    if not 0.0 <= hold < 1.0:
        raise ValueError(f"hold must be at least 0 and below 1, got {hold!r}: it is the chance to stay")
    return Lazy(proposal, float(hold))


def resolve(proposal: Any, prior: Prior, spread: Callable[[], Array]) -> Any:
    """A proposal ready for use in a run; None is a random walk."""
    if proposal is None:
        proposal = random_walk()
    elif not hasattr(proposal, "propose"):
        if not callable(proposal):
            raise ValueError(
                f"proposal must be od.random_walk(), od.independence(), od.lazy(...) or a function, got {proposal!r}"
            )
        proposal = FunctionProposal(proposal)
    return proposal.resolved(prior, spread)
