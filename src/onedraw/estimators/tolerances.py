"""Rules for runs that choose their tolerance: weights at a smaller one, and how small it may be."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from onedraw.engines.arrays import Array
from onedraw.model.kernels import Kernel, uniform


def kernel_asked(kernel: Any) -> Kernel:
    """The kernel of a run that chooses its tolerance, which may have one that is aimed at; None is the uniform one.

    >>> kernel_asked(None).name
    'uniform'
    >>> kernel_asked(0.1)
    Traceback (most recent call last):
    ...
    ValueError: kernel must be a kernel such as od.uniform() or od.uniform(0.1), got 0.1
    """
    if kernel is None:
        return uniform()
    if not isinstance(kernel, Kernel):
        raise ValueError(f"kernel must be a kernel such as od.uniform() or od.uniform(0.1), got {kernel!r}")
    return kernel


def reweighted(kernel: Kernel, eps: float, new: float, distances: Array, weight: Array) -> Array:
    """Weights (n,) at tolerance `new` of draws with distances (n, M) that have `weight` at `eps`; not normalised.

    Each is multiplied by the ratio of the averages of K over its M pseudo-samples (docs/theory.md). At eps = inf, K is
    1 for every simulation.
    """
    log_ratio = kernel.with_eps(new).log_average(distances)
    if math.isfinite(eps):
        before = kernel.with_eps(eps).log_average(distances)
        log_ratio = np.where(np.isneginf(before), -np.inf, log_ratio - np.maximum(before, -1e300))
    ratio: Array = weight * np.exp(log_ratio)
    return ratio


def tolerance_with(kernel: Kernel, eps: float, distances: Array, weight: Array, target: float) -> float:
    """The smallest tolerance up to `eps` at which the effective number of draws of that weight at `eps` is `target`.

    If there is none, it is the largest that makes sense: eps, or beyond all distances if eps is inf. For the uniform
    kernel with M = 1 it is the distance of the next draw, which is itself left out: given that distance, those nearer
    are distributed as at a tolerance fixed beforehand.

    >>> from onedraw.model.kernels import uniform
    >>> distances = np.array([[0.1], [0.2], [0.3], [0.3], [0.7]])
    >>> tolerance_with(uniform(1.0), 1.0, distances, np.ones(5), 2.0)
    0.3
    """
    return _smallest(kernel, eps, distances, weight, lambda total, squares: total * total >= target * squares)


def tolerance_keeping(kernel: Kernel, eps: float, distances: Array, weight: Array, share: float) -> float:
    """The smallest tolerance up to `eps` that keeps this share of the weight at `eps`."""
    if share >= 1:
        return eps
    least = share * float(weight.sum())
    return _smallest(kernel, eps, distances, weight, lambda total, squares: total >= least)


def _smallest(kernel: Kernel, eps: float, distances: Array, weight: Array, enough: Callable[[Any, Any], Any]) -> float:
    """The smallest tolerance at which sum and sum of squares of the weights are enough."""
    alive = (weight > 0) & np.isfinite(distances).any(axis=1)
    distances, weight = distances[alive], weight[alive]
    finite = distances[np.isfinite(distances)]
    if finite.size == 0:
        return eps
    largest = eps if math.isfinite(eps) else float(np.nextafter(finite.max(), np.inf))
    if kernel.indicator and distances.shape[1] == 1:
        # A tolerance that is itself one of the distances leaves out the draws at that distance.
        order = np.argsort(distances[:, 0], kind="stable")
        ordered, some = distances[order, 0], weight[order]
        ends = np.flatnonzero(enough(np.cumsum(some), np.cumsum(some * some))[:-1] & (ordered[1:] > ordered[:-1]))
        return min(largest, float(ordered[ends[0] + 1])) if ends.size else largest
    if not math.isfinite(eps) and math.isinf(kernel.support):
        largest *= 10.0
    positive = finite[finite > 0]
    if positive.size == 0 or positive.min() >= largest:
        return largest
    low, high = math.log(float(positive.min())), math.log(largest)
    while high - low > 1e-9:
        middle = 0.5 * (low + high)
        there = reweighted(kernel, eps, math.exp(middle), distances, weight)
        low, high = (low, middle) if enough(there.sum(), (there * there).sum()) else (middle, high)
    return min(math.exp(high), largest)
