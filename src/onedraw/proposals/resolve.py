"""The proposal that a run asks for, ready for use: a random walk by default, and a user's function as a proposal."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onedraw.engines.arrays import Array, DeviceParts, namespace
from onedraw.failures import FAULTS, told
from onedraw.model.layout import numbers
from onedraw.model.prior import Prior
from onedraw.proposals.protocol import Proposed
from onedraw.proposals.random_walk import random_walk


@dataclass(frozen=True, eq=False)
class FunctionProposal:
    """A user's function (rng, theta) -> (theta', log q ratio), checked at every use."""

    function: Callable[[np.random.Generator, Array], tuple[Array, Array]]
    prior: Prior | None = None
    device_parts = DeviceParts(fixed=("function", "prior"))

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
            if xp is np:
                proposed, log_q_ratio = numbers(proposed).copy(), numbers(log_q_ratio)
            proposed = xp.asarray(proposed, dtype=theta.dtype)
            log_q_ratio = xp.asarray(log_q_ratio, dtype=theta.dtype)
        except FAULTS as error:
            raise ValueError(
                f"the proposal failed ({told(error)}): it is called as proposal(rng, theta) with theta of shape "
                f"{theta.shape} and returns (theta', log q(theta | theta') - log q(theta' | theta))"
            ) from error
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


def resolve(proposal: Any, prior: Prior, spread: Callable[[], Array]) -> Any:
    """A proposal ready for use in a run; None is a random walk."""
    if proposal is None:
        proposal = random_walk()
    elif not hasattr(proposal, "propose") or isinstance(proposal, type):
        if not callable(proposal) or isinstance(proposal, type):
            raise ValueError(
                f"proposal must be od.random_walk(), od.independence(), od.lazy(...) or a function, got {proposal!r}"
            )
        proposal = FunctionProposal(proposal)
    return proposal.resolved(prior, spread)
