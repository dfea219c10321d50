"""Lazy chains: another proposal, held back at random."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onedraw.arguments import number_or_nan, shown
from onedraw.engines.arrays import Array, DeviceParts, Formula, declared
from onedraw.model.prior import Prior
from onedraw.proposals.protocol import Proposed
from onedraw.proposals.resolve import resolve


@dataclass(frozen=True, eq=False)
class Lazy:
    """With probability `hold` the chain stays; made by `lazy`."""

    proposal: Any
    hold: float
    holds = True
    """Whether chains may be held back, which an engine asks of every proposal."""
    device_parts = DeviceParts(("proposal",), ("hold",))

    @property
    def formula(self) -> Formula | None:
        """For compiled loops."""
        inner = declared(self.proposal)
        # A proposal that is held twice is not one that they know.
        return None if inner is None or inner.name == "lazy" else Formula("lazy", np.array([self.hold]), (inner,))

    def resolved(self, prior: Prior, spread: Callable[[], Array]) -> "Lazy":
        return replace(self, proposal=resolve(self.proposal, prior, spread))

    def propose(self, rng: np.random.Generator, theta: Array, log_prior: Array) -> Proposed:
        held = rng.random(len(theta)) < self.hold
        return self.proposal.propose(rng, theta, log_prior)._replace(held=held)

    def described(self) -> dict[str, Any]:
        return {"name": "lazy", "hold": self.hold, "proposal": self.proposal.described()}


def lazy(proposal: Any = None, hold: float = 0.5) -> Lazy:
    """The proposal held back with probability `hold`: the chain repeats its state and nothing is simulated.

    With hold = 1/2 the chain is non-negative definite for any proposal, which the factor-two theorem requires. This
    costs accuracy: the asymptotic variance is 2v + v(f), if v is that of the chain without holding. So it is never
    the default.

    >>> import onedraw as od
    >>> from scipy import stats
    >>> model = od.Model(od.Prior(theta=stats.norm(0, 1)),
    ...                  od.batched(lambda rng, theta: rng.normal(theta, 1.0)), observed=2.0)
    >>> post = od.pseudo_marginal(model, od.uniform(0.5), draws=100, chains=64, proposal=od.lazy(), seed=1)
    >>> post.settings["proposal"]["hold"]
    0.5
    """
    chance = number_or_nan(hold)
    if not 0.0 <= chance < 1.0:
        raise ValueError(f"hold must be at least 0 and below 1, got {shown(hold)}: it is the chance to stay")
    return Lazy(proposal, chance)
