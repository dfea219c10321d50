"""Weighted draws: their effective number, and picks from them."""

import numpy as np

from onedraw.engines.arrays import Array


def effective(weights: Array) -> float:
    """Kish's effective number of weights (n,).

    >>> effective(np.array([1.0, 1.0, 0.0]))
    2.0
    """
    total = float(weights.sum())
    return total * total / float(np.square(weights).sum()) if total > 0 else 0.0


def cumulated(weights: Array) -> Array:
    """Sums of the weights (n,) up to each; where some are negative, the largest so far, and never above the total.

    >>> cumulated(np.array([0.5, 0.75, -0.5, 0.25])).tolist()
    [0.5, 1.0, 1.0, 1.0]
    """
    sums = np.cumsum(weights)
    return sums if weights.min(initial=0.0) >= 0 else np.minimum(np.maximum.accumulate(sums), sums[-1])


def check_signs(weights: Array) -> None:
    """A ValueError if draws cannot be picked by their weights, since some are negative."""
    if weights.min(initial=0.0) < 0:
        raise ValueError(
            "some of the weights are negative (od.multifidelity), and draws of equal weight cannot stand for them: use "
            "post.summary(), post.estimate(), or to_dataframe(weighted=True)"
        )


def systematic(weights: Array, count: int, u: float) -> Array:
    """Indices of `count` draws by weight, at equal distances along the sum of the weights from a uniform u on.

    >>> systematic(np.array([0.5, 0.0, 0.5]), 4, 0.5)
    array([0, 0, 2, 2])
    """
    check_signs(weights)
    ends = np.cumsum(weights)
    places = (np.arange(count) + u) / count * ends[-1]
    return np.minimum(np.searchsorted(ends, places, side="right"), int(np.flatnonzero(weights)[-1]))
