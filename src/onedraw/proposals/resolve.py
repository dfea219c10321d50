"""The proposal that a run asks for, ready for use."""

from collections.abc import Callable
from typing import Any

from onedraw.engines.arrays import Array
from onedraw.model.prior import Prior
from onedraw.proposals.own import FunctionProposal
from onedraw.proposals.random_walk import random_walk


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
