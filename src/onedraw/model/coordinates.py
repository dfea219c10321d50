"""The bounds of a prior's parameters, and coordinates that have none: logits and logarithms of bounded parameters."""

import math
from typing import NamedTuple

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.engines.streams import Phase, Purpose, Rng
from onedraw.model.prior import Prior

PROBES = 64
"""Prior draws from which the search for the prior's bounds starts."""
FARTHEST = 1e6
"""A density that is still positive this far out, in ranges of the prior draws, has no bound."""
SAME = 1e-9
"""Bounds at different parameters that differ by no more than this are the same."""
INSIDE = 1e-12
"""The share of a bounded range that is kept free at each end."""


class Support(NamedTuple):
    """The range of each parameter, infinite if it has no bound, and coordinates in which there are none.

    >>> support = Support(np.array([0.0]), np.array([1.0]))
    >>> support.unbounded(np.array([[0.5], [0.75]])).round(4).tolist()
    [[0.0], [1.0986]]
    """

    low: Array
    high: Array

    def unbounded(self, theta: Array) -> Array:
        """Parameters (n, dim) in coordinates without bounds."""
        (both, above, below), out = self._bounds(), np.array(theta, dtype=float)
        share = (out[:, both] - self.low[both]) / (self.high - self.low)[both]
        share = np.clip(share, INSIDE, 1.0 - INSIDE)
        out[:, both] = np.log(share) - np.log1p(-share)
        out[:, above] = np.log(np.maximum(out[:, above] - self.low[above], 1e-300))
        out[:, below] = -np.log(np.maximum(self.high[below] - out[:, below], 1e-300))
        return out

    def bounded(self, unbounded: Array) -> Array:
        """The parameters of unbounded coordinates (n, dim)."""
        (both, above, below), out = self._bounds(), np.array(unbounded, dtype=float)
        share = 1.0 + np.exp(-np.clip(out[:, both], -700.0, 700.0))
        out[:, both] = self.low[both] + (self.high - self.low)[both] / share
        out[:, above] = self.low[above] + np.exp(np.minimum(out[:, above], 700.0))
        out[:, below] = self.high[below] - np.exp(np.minimum(-out[:, below], 700.0))
        return out

    def log_jacobian(self, unbounded: Array) -> Array:
        """log |d theta / d unbounded| at each row: what a log density gains in these coordinates."""
        (both, above, below), out = self._bounds(), np.zeros(unbounded.shape)
        z = unbounded[:, both]
        out[:, both] = np.log((self.high - self.low)[both]) - np.logaddexp(0.0, z) - np.logaddexp(0.0, -z)
        out[:, above], out[:, below] = unbounded[:, above], -unbounded[:, below]
        return sum(out.T, np.zeros(len(out)))

    def _bounds(self) -> tuple[Array, Array, Array]:
        """Which columns are bounded on both sides, from below only, and from above only."""
        low, high = np.isfinite(self.low), np.isfinite(self.high)
        return low & high, low & ~high, high & ~low


def support_of(prior: Prior) -> Support:
    """The bounds of each parameter, as its distribution states them, or found by bisection of its density.

    Columns of whole numbers are left as they are. If the range of a parameter depends on the others, it counts as
    unbounded: the prior's density is then 0 in some places.

    >>> from scipy import stats
    >>> found = support_of(Prior(a=stats.norm(0, 1), b=stats.uniform(-1, 2), c=stats.gamma(2.0)))
    >>> found.low.round(9).tolist(), found.high.round(9).tolist()
    ([-inf, -1.0, 0.0], [inf, 1.0, inf])
    >>> found = support_of(Prior(c=stats.gamma(2.0), d=lambda c: stats.uniform(0, c)))
    >>> found.low.round(9).tolist(), found.high.round(9).tolist()
    ([0.0, 0.0], [inf, inf])
    """
    theta = prior.sample(Rng(0, Phase.PILOT).bulk(Purpose.PRIOR), PROBES)
    low, high = np.full(prior.dim, -np.inf), np.full(prior.dim, np.inf)
    for j in np.flatnonzero(~prior.discrete).tolist():
        stated = prior.range_of(theta, j)
        low[j] = -_common(-stated[0] if stated else _last_inside(prior, theta, j, -1.0))
        high[j] = _common(stated[1] if stated else _last_inside(prior, theta, j, 1.0))
    return Support(low, high)


def _common(ends: Array) -> float:
    """The upper end (n,) of a range at each row if it is the same everywhere, infinite otherwise."""
    top = float(ends.max())
    same = math.isfinite(top) and top - float(ends.min()) <= SAME * max(1.0, abs(top))
    return top if same else math.inf


def _last_inside(prior: Prior, theta: Array, column: int, sign: float) -> Array:
    """The largest values (n,) of sign * theta_column with a positive density at each row; inf if there seems no end."""
    far = FARTHEST * (float(np.ptp(theta[:, column])) or 1.0)
    with np.errstate(all="ignore"):
        moved = np.array(theta, order="F")
        moved[:, column] = theta[:, column] + sign * far
        if not np.isneginf(prior.own_log_density(moved, column)).all():
            return np.full(len(theta), np.inf)
        inside, outside = theta[:, column].copy(), moved[:, column].copy()
        for _ in range(100):
            middle = 0.5 * (inside + outside)
            moved[:, column] = middle
            out = np.isneginf(prior.own_log_density(moved, column))
            outside, inside = np.where(out, middle, outside), np.where(out, inside, middle)
    return sign * inside
