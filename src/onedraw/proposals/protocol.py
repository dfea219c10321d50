"""What a proposal hands to a sampler's step.

A proposal moves a block of chains at once: theta (n, dim) -> theta' (n, dim), with the log of
pi(theta') q(theta | theta') / (pi(theta) q(theta' | theta)) for each chain, and which chains are held this step. A
held chain repeats its whole state: nothing is proposed, simulated or tested (docs/theory.md).
"""

from typing import NamedTuple

from onedraw.engines.arrays import Array


class Proposed(NamedTuple):
    """What a proposal hands to a sampler's step."""

    theta: Array
    log_prior: Array
    """Of theta', (n,); -inf outside the support."""
    log_ratio: Array | float
    """log of pi(theta') q(theta | theta') / (pi(theta) q(theta' | theta)), which is 0 for draws from the prior."""
    held: Array | None = None
    """(n,) True for chains that repeat their state; None if none does."""
