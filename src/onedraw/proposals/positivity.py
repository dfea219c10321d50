"""Which proposals are known to make chains of Algorithm 2 non-negative definite (docs/theory.md)."""

from typing import Any

from onedraw.proposals.independence import Independence
from onedraw.proposals.lazy import Lazy
from onedraw.proposals.random_walk import RandomWalk


def known_nonnegative(proposal: Any) -> bool:
    """Whether Q_M >= 0 is known for a proposal that is ready for use; False if it is not known.

    It is for independence proposals, for Gaussian random walks without rounded increments (those of discrete
    parameters are rounded), and for chains held with probability 1/2 or more. The type decides: a proposal of the
    user's own may have any name.
    """
    if type(proposal) is Lazy:
        return proposal.hold >= 0.5 or known_nonnegative(proposal.proposal)
    if type(proposal) is RandomWalk:
        return proposal.prior is not None and not proposal.prior.discrete.any()
    return type(proposal) is Independence
